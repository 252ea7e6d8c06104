"""Read local files, or files of a pyiceberg FileIO. Light: Spark tasks import this.

Every function raises NotFoundError if the file is missing.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from sparkmeta.errors import NotFoundError, UnsupportedError
from sparkmeta.storage.location import local_path, scheme
from sparkmeta.storage.requests import requested

if TYPE_CHECKING:
    from pyiceberg.io import FileIO, InputStream

NO_FILE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
"""What the operating system raises if a location is not that of a file."""

# What ends the path of a URL, and what its parser drops.
_NOT_IN_URL_PATHS = re.compile(r"[#?\t\r\n]")


def read_local(location: str) -> bytes:
    """Read a local file."""
    try:
        return Path(local_path(location)).read_bytes()
    except NO_FILE:
        missing(location)


def read_local_range(location: str, offset: int, size: int) -> bytes:
    """Read a range of a local file, up to its end."""
    try:
        with Path(local_path(location)).open("rb") as file:
            start, end = within(offset, size, os.fstat(file.fileno()).st_size)
            file.seek(start)
            return file.read(end - start)
    except NO_FILE:
        missing(location)


def local_length(location: str) -> int:
    """Return the length of a local file in bytes."""
    try:
        return Path(local_path(location)).stat().st_size
    except NO_FILE:
        missing(location)


def read_io(io: FileIO, location: str) -> bytes:
    """Read a file through a FileIO."""
    return requested(io, location, partial(_read, io, client_location(io, location)))


def read_io_range(io: FileIO, location: str, offset: int, size: int) -> bytes:
    """Read a range of a file through a FileIO, up to its end."""
    return requested(io, location, partial(_read_range, io, client_location(io, location), offset, size))


def open_io(io: FileIO, location: str) -> InputStream:
    """Open a file through a FileIO. Its reads raise the errors of the FileIO's client."""
    opened = client_location(io, location)
    return requested(io, location, lambda: io.new_input(opened).open())


def io_length(io: FileIO, location: str) -> int:
    """Return the length of a file in bytes, as a FileIO reports it."""
    opened = client_location(io, location)
    return requested(io, location, lambda: len(io.new_input(opened)))


def io_exists(io: FileIO, location: str) -> bool:
    """Return whether a file exists, as a FileIO reports it."""
    opened = client_location(io, location)
    return requested(io, location, lambda: io.new_input(opened).exists())


def client_location(io: FileIO, location: str) -> str:
    """Return a location as the client of a FileIO takes it.

    Raises:
        UnsupportedError: PyArrowFileIO, which parses locations as URLs, would open another file.
    """
    if _is_a(io, "pyiceberg.io.pyarrow", "PyArrowFileIO") and _NOT_IN_URL_PATHS.search(location):
        reason = "PyArrowFileIO takes # and ? for a URL's and drops tabs and line breaks, and would open another file"
        raise UnsupportedError(f"{location}: {reason}")
    # s3fs takes the scheme s3n for a bucket.
    is_s3n = scheme(location) == "s3n" and _is_a(io, "pyiceberg.io.fsspec", "FsspecFileIO")
    return f"s3{location[len('s3n') :]}" if is_s3n else location


def fsspec_store(io: FileIO, location: str) -> Any:
    """Return the fsspec file system of a FileIO; None if it has another client."""
    is_fsspec = _is_a(io, "pyiceberg.io.fsspec", "FsspecFileIO")
    return io.new_output(location)._fs if is_fsspec else None  # type: ignore[attr-defined]


def _is_a(io: FileIO, module: str, name: str) -> bool:
    """Return whether a FileIO is of a class, whose module is not imported: this takes 0.1 s."""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(io, getattr(loaded, name))


def _read(io: FileIO, location: str) -> bytes:
    if (store := fsspec_store(io, location)) is not None:
        return _fetched(store, location, 0, None)
    # Seekable: pyarrow reads other streams in sequential requests of 1 MiB.
    with io.new_input(location).open() as stream:
        return stream.read()


def _read_range(io: FileIO, location: str, offset: int, size: int) -> bytes:
    store = fsspec_store(io, location)
    if store is not None and offset >= 0 and size > 0:
        return _fetched(store, location, offset, offset + size)
    with io.new_input(location).open() as stream:
        start, end = within(offset, size, _size(stream))
        stream.seek(start)
        return stream.read(end - start) if end > start else b""


def _fetched(store: Any, location: str, start: int, end: int | None) -> bytes:
    """Read a range, or from its start to the file's end, in one request, without asking for the file's size first."""
    try:
        return bytes(store.cat_file(location, start=start, end=end))
    except FileNotFoundError:
        raise
    except Exception:
        # Stores refuse a range that begins at the end of the file, or later.
        with suppress(Exception):
            if start >= store.size(location):
                return b""
        raise


def _size(stream: InputStream) -> int:
    """Return the size of an open file, for which its client needs no further request."""
    size = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    return size


def within(offset: int, size: int, length: int) -> tuple[int, int]:
    """Return the part of a range that a file of `length` bytes has, possibly empty. The range may be invalid."""
    start = min(max(offset, 0), length)
    return (start, min(start + max(size, 0), length)) if offset >= 0 else (0, 0)


def missing(location: str) -> NoReturn:
    """Raise NotFoundError for a location."""
    raise NotFoundError(f"{location}: there is no such file")
