"""Locations of files: their parts, comparable forms, and their spelling in Spark. Light: Spark tasks import this.

A location is written as in metadata: not percent-encoded, with a scheme or as an absolute local path.
"""

from __future__ import annotations

import os
import posixpath
import re
import unicodedata

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_PARTS = re.compile(r"(?:([A-Za-z][A-Za-z0-9+.-]*):)?(?://([^/]*))?(.*)", re.DOTALL)
_GLOB = re.compile(r"([\\{}\[\]*?])")

S3_SCHEMES = frozenset({"s3", "s3a", "s3n"})
"""Schemes that name the same files."""

_QUOTED = frozenset(' "#%<>?[\\]^`{|}')


def scheme(location: str) -> str:
    """Return the scheme in lower case without the colon, or an empty string."""
    match = _SCHEME.match(location)
    return match[1].lower() if match else ""


def is_local(location: str) -> bool:
    """Return whether a location is on a local disk: its scheme is ``file``, or it has none."""
    return scheme(location) in {"", "file"}


def local_path(location: str) -> str:
    """Return the path of a local location for ``open``."""
    return _parts(location)[2]


def absolute(location: str) -> str:
    """Return a location with an absolute path if it is a relative local path: tasks run in other folders."""
    is_relative = location and not scheme(location) and not location.startswith("/")
    return posixpath.join(os.getcwd(), location) if is_relative else location  # noqa: PTH109


def file_name(location: str) -> str:
    """Return the name after the last slash."""
    return location.rpartition("/")[2]


def join(folder: str, name: str) -> str:
    """Return the location of a name in a folder."""
    return f"{folder.rstrip('/')}/{name}"


def parents(location: str) -> list[str]:
    """Return the locations of the folders above a location, from the nearest to the topmost of its store."""
    path = _PARTS.fullmatch(location.rstrip("/"))[3]  # type: ignore[index]  # the pattern matches any text
    store = location.rstrip("/").removesuffix(path)
    names = path.split("/")[1:-1]
    return [store + "".join(f"/{name}" for name in names[:count]) for count in range(len(names), -1, -1)]


def parts_of(location: str) -> tuple[str, str]:
    """Return the scheme and authority of a location, not normalized, or empty strings."""
    match = _PARTS.fullmatch(location)
    assert match is not None
    return match[1] or "", match[2] or ""


def store_of(location: str) -> str:
    """Return the prefix of a location that names its store: the scheme, and the bucket or host."""
    return "/".join(location.split("/", 3)[:3])


def path_of(location: str) -> str:
    """Return the comparable path, without scheme and authority."""
    return _hadoop_path(_parts(location)[2])


def normalize(location: str) -> str:
    """Return a form that is equal for all locations of a file: s3a becomes s3, and ``file:/a`` equals ``/a``.

    It is only for comparison; files are opened by the original location.
    """
    kind, authority, path = _parts(location)
    authority = "" if kind == "file" else authority
    host = f"//{authority}" if authority else ""
    return f"{kind}:{host}{_hadoop_path(path)}"


def spark_path_key(location: str) -> str:
    """Return the value of ``PATH_KEY`` for a file that Spark reads from a location."""
    return _quoted(normalize(location))


def spark_name_key(location: str) -> str:
    """Return the value of ``_metadata.file_name`` for a file that Spark reads from a location."""
    return file_name(spark_path_key(location))


def spark_uri(location: str) -> str:
    """Return a location as a percent-encoded URI for Hadoop. A path without a scheme is on this machine."""
    match = _PARTS.fullmatch(location)
    assert match is not None
    return f"{match[1] or 'file'}://{match[2] or ''}{_quoted(match[3])}"


PATH_KEY = "regexp_replace(_metadata.file_path, '^s3[an]:', 's3:')"
"""The comparable path of the file that a row was read from, in SQL; see ``spark_path_key``."""


def escape_glob(location: str) -> str:
    r"""Escape a location for ``spark.read.load`` and similar methods, which treat ``{ } [ ] * ? \`` as patterns."""
    return _GLOB.sub(r"\\\1", location)


def _parts(location: str) -> tuple[str, str, str]:
    match = _PARTS.fullmatch(location)
    assert match is not None
    kind = (match[1] or "file").lower()
    return "s3" if kind in S3_SCHEMES else kind, match[2] or "", match[3]


def _hadoop_path(path: str) -> str:
    """Return a path as org.apache.hadoop.fs.Path writes it: no empty or dot segments, no trailing slash."""
    return posixpath.normpath(re.sub("/+", "/", path)) if path else ""


def _quoted(text: str) -> str:
    """Quote a path like java.net.URI: illegal ASCII characters, control characters and all spaces."""
    return "".join("".join(f"%{byte:02X}" for byte in c.encode()) if _is_quoted(c) else c for c in text)


def _is_quoted(character: str) -> bool:
    return character in _QUOTED or unicodedata.category(character) in {"Cc", "Zs", "Zl", "Zp"}
