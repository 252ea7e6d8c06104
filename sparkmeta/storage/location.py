"""Locations of files: their parts, their comparable forms, and how Spark spells them.

A location is what metadata writes: text that is not percent-encoded, with a scheme or an absolute path of this
machine. Light: Spark tasks import this.
"""

from __future__ import annotations

import posixpath
import re
import unicodedata

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_PARTS = re.compile(r"(?:([A-Za-z][A-Za-z0-9+.-]*):)?(?://([^/]*))?(.*)", re.DOTALL)
_GLOB = re.compile(r"([\\{}\[\]*?])")
_S3 = {"s3a", "s3n"}
_QUOTED = frozenset(' "#%<>?[\\]^`{|}')


def scheme(location: str) -> str:
    """The scheme in lower case, without the colon; empty where there is none."""
    match = _SCHEME.match(location)
    return match[1].lower() if match else ""


def is_local(location: str) -> bool:
    """Whether the location is on a disk of the machine that opens it: of scheme ``file``, or of none."""
    return scheme(location) in {"", "file"}


def local_path(location: str) -> str:
    """The path that ``open`` takes, of a local location."""
    return _parts(location)[2]


def file_name(location: str) -> str:
    """What stands behind the last slash."""
    return location.rpartition("/")[2]


def join(folder: str, name: str) -> str:
    """The location of a name in a folder."""
    return f"{folder.rstrip('/')}/{name}"


def path_of(location: str) -> str:
    """The comparable path, without scheme and authority."""
    return _hadoop_path(_parts(location)[2])


def normalize(location: str) -> str:
    """A form that is equal for locations of one file: s3a is s3, ``file:/a``, ``file:///a`` and ``/a`` are one.

    For comparison only: files are opened by the location as it was written.
    """
    kind, authority, path = _parts(location)
    authority = "" if kind == "file" else authority
    place = f"//{authority}" if authority else ""
    return f"{kind}:{place}{_hadoop_path(path)}"


def spark_path_key(location: str) -> str:
    """What ``PATH_KEY`` is for the file in a DataFrame that Spark read from the location."""
    return _quoted(normalize(location))


def spark_name_key(location: str) -> str:
    """What ``_metadata.file_name`` is for the file in a DataFrame that Spark read from the location."""
    return file_name(spark_path_key(location))


PATH_KEY = "regexp_replace(_metadata.file_path, '^s3[an]:', 's3:')"
"""The comparable form of the path of the file that a row was read from, in SQL: see ``spark_path_key``."""


def escape_glob(location: str) -> str:
    r"""The location for ``spark.read.load`` and its like, which take ``{ } [ ] * ? \`` for patterns."""
    return _GLOB.sub(r"\\\1", location)


def _parts(location: str) -> tuple[str, str, str]:
    match = _PARTS.fullmatch(location)
    assert match is not None
    kind = (match[1] or "file").lower()
    return "s3" if kind in _S3 else kind, match[2] or "", match[3]


def _hadoop_path(path: str) -> str:
    """As org.apache.hadoop.fs.Path writes it: no empty or dot segments, no slash at the end."""
    return posixpath.normpath(re.sub("/+", "/", path)) if path else ""


def _quoted(text: str) -> str:
    """As java.net.URI quotes a path: what is illegal in ASCII, control characters and every kind of space."""
    return "".join("".join(f"%{byte:02X}" for byte in c.encode()) if _is_quoted(c) else c for c in text)


def _is_quoted(character: str) -> bool:
    return character in _QUOTED or unicodedata.category(character) in {"Cc", "Zs", "Zl", "Zp"}
