"""List folders through a pyiceberg FileIO. Light: Spark tasks import this."""

from __future__ import annotations

import re
from datetime import datetime
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from sparkmeta.errors import UnsupportedError
from sparkmeta.storage.content import client_location
from sparkmeta.storage.location import file_name, join

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pyiceberg.io import FileIO
    from pyiceberg.io.fsspec import FsspecFileIO
    from pyiceberg.io.pyarrow import PyArrowFileIO


T = TypeVar("T")

# Keys of the modification time in s3fs, gcsfs, adlfs and fsspec's own file systems.
_MODIFIED = ("LastModified", "mtime", "updated", "last_modified", "created")


class FileStatus(NamedTuple):
    """A file in a folder; ``modified_ms`` is milliseconds since 1970."""

    location: str
    length: int
    modified_ms: int


def glob(
    folder: str,
    pattern: str,
    leaf: str | None,
    folders_in: Callable[[str], Sequence[str]],
    files_in: Callable[[str, str], Sequence[str]],
    apply: Callable[[Callable[[str], Sequence[str]], Sequence[str]], Iterable[Sequence[str]]] = map,
) -> list[str]:
    """Return the files below a folder whose relative path matches a pattern; see `Files.glob`.

    Args:
        folder: where to begin.
        pattern: the pattern.
        leaf: see `Files.glob`.
        folders_in: returns the folders directly in a folder.
        files_in: returns the files directly in a folder whose names match a pattern, given both.
        apply: applies a function to folders, possibly several at a time.
    """

    def below(parent: str) -> Sequence[str]:
        folders = folders_in(parent)
        if leaf is not None:
            name, _, files = leaf.rpartition("/")
            if any(file_name(child) == name for child in folders) and files_in(join(parent, name), files):
                return []
        return folders

    *levels, name_pattern = pattern.split("/")
    folders: list[str] = [folder]
    for level in levels:
        if re.search(r"[*?\[]", level):
            inner = chain.from_iterable(apply(below, folders))
            folders = [name for name in inner if fnmatchcase(file_name(name), level)]
        else:
            folders = [join(name, level) for name in folders]
    return [*chain.from_iterable(apply(lambda parent: files_in(parent, name_pattern), folders))]


def by_client(io: FileIO, folder: str) -> Callable[[str, str], list[FileStatus]]:
    """Return the function of folder and pattern that lists files with a FileIO's client: `by_pyarrow` or `by_fsspec`.

    Raises:
        UnsupportedError: the FileIO has another client.
    """
    return _of_client(io, folder, by_pyarrow, by_fsspec)


def folders_by_client(io: FileIO, folder: str) -> Callable[[str], list[str]]:
    """Return the function that lists folders with a FileIO's client; see `by_client`."""
    return _of_client(io, folder, folders_by_pyarrow, folders_by_fsspec)


def _of_client(
    io: FileIO, folder: str, with_pyarrow: Callable[..., T], with_fsspec: Callable[..., T]
) -> Callable[..., T]:
    from pyiceberg.io.fsspec import FsspecFileIO
    from pyiceberg.io.pyarrow import PyArrowFileIO

    if not isinstance(io, FsspecFileIO | PyArrowFileIO):
        raise UnsupportedError(f"{folder}: {type(io).__name__} lists no folders")
    return partial(with_fsspec if isinstance(io, FsspecFileIO) else with_pyarrow, io)


def pyarrow_infos(io: PyArrowFileIO, location: str, *, recursive: bool = False) -> tuple[str, list[Any]]:
    """Return the path of a folder in its file system, and the status of the files and folders in it.

    Raises:
        FileNotFoundError: the folder is missing.
    """
    from pyarrow.fs import FileSelector

    kind, authority, path = io.parse_location(location, io.properties)
    return path, io.fs_by_scheme(kind, authority).get_file_info(FileSelector(path, recursive=recursive))


def by_pyarrow(io: PyArrowFileIO, folder: str, pattern: str) -> list[FileStatus]:
    """Return the files directly in a folder whose names match. Raises FileNotFoundError if the folder is missing."""
    from pyarrow.fs import FileType

    _, infos = pyarrow_infos(io, client_location(io, folder))
    return [
        FileStatus(join(folder, info.base_name), info.size, (info.mtime_ns or 0) // 1_000_000)
        for info in infos
        if info.type == FileType.File and fnmatchcase(info.base_name, pattern)
    ]


def folders_by_pyarrow(io: PyArrowFileIO, folder: str) -> list[str]:
    """Return the locations of the folders directly in a folder. Raises FileNotFoundError if it is missing."""
    from pyarrow.fs import FileType

    _, infos = pyarrow_infos(io, client_location(io, folder))
    return [join(folder, info.base_name) for info in infos if info.type == FileType.Directory]


def folders_by_fsspec(io: FsspecFileIO, folder: str) -> list[str]:
    """Return the locations of the folders directly in a folder. Raises FileNotFoundError if it is missing."""
    store: Any = io.new_input(join(folder, "x"))._fs
    store.invalidate_cache()
    infos: list[dict[str, Any]] = store.ls(client_location(io, folder), detail=True)
    return [join(folder, file_name(info["name"].rstrip("/"))) for info in infos if info["type"] == "directory"]


def by_fsspec(io: FsspecFileIO, folder: str, pattern: str) -> list[FileStatus]:
    """Return the files directly in a folder whose names match, listing only names with the pattern's prefix.

    Raises:
        FileNotFoundError: the folder is missing.
    """
    store: Any = io.new_input(join(folder, "x"))._fs
    # fsspec caches listings in this process.
    store.invalidate_cache()
    prefix = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
    options = {"prefix": prefix} if prefix else {"maxdepth": 1}
    opened = client_location(io, folder)
    infos: dict[str, dict[str, Any]] = store.find(opened, detail=True, **options)
    root = store._strip_protocol(opened).rstrip("/")
    if not infos and not store.exists(opened):
        raise FileNotFoundError(folder)
    return [
        FileStatus(join(folder, file_name(path)), int(info["size"] or 0), modified_ms(info) or 0)
        for path, info in infos.items()
        if path.rpartition("/")[0] == root and fnmatchcase(file_name(path), pattern)
    ]


def modified_ms(info: dict[str, Any]) -> int | None:
    """Return when a file was modified, from its fsspec info; None if the info does not say."""
    modified = next((info[key] for key in _MODIFIED if info.get(key) is not None), None)
    if modified is None:
        return None
    if isinstance(modified, str):
        modified = datetime.fromisoformat(modified)
    return int((modified.timestamp() if isinstance(modified, datetime) else modified) * 1000)
