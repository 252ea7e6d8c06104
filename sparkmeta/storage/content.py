"""Read local files, or files of a pyiceberg FileIO. Light: Spark tasks import this.

Every function raises NotFoundError if the file is missing.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from sparkmeta.errors import NotFoundError
from sparkmeta.storage.location import local_path

if TYPE_CHECKING:
    from pyiceberg.io import FileIO


def read_local(location: str) -> bytes:
    """Read a local file."""
    try:
        return Path(local_path(location)).read_bytes()
    except FileNotFoundError:
        missing(location)


def read_local_range(location: str, offset: int, size: int) -> bytes:
    """Read a range of a local file, up to its end."""
    try:
        with Path(local_path(location)).open("rb") as file:
            start, end = within(offset, size, os.fstat(file.fileno()).st_size)
            file.seek(start)
            return file.read(end - start)
    except FileNotFoundError:
        missing(location)


def local_length(location: str) -> int:
    """Return the length of a local file in bytes."""
    try:
        return Path(local_path(location)).stat().st_size
    except FileNotFoundError:
        missing(location)


def read_io(io: FileIO, location: str) -> bytes:
    """Read a file through a FileIO."""
    try:
        with io.new_input(location).open(seekable=False) as stream:
            return stream.read()
    except FileNotFoundError:
        missing(location)


def read_io_range(io: FileIO, location: str, offset: int, size: int) -> bytes:
    """Read a range of a file through a FileIO, up to its end."""
    try:
        file = io.new_input(location)
        start, end = within(offset, size, len(file))
        with file.open() as stream:
            stream.seek(start)
            return stream.read(end - start)
    except FileNotFoundError:
        missing(location)


def io_length(io: FileIO, location: str) -> int:
    """Return the length of a file in bytes, as a FileIO reports it."""
    try:
        return len(io.new_input(location))
    except FileNotFoundError:
        missing(location)


def within(offset: int, size: int, length: int) -> tuple[int, int]:
    """Return the part of a range that a file of `length` bytes has, possibly empty. The range may be invalid."""
    start = min(max(offset, 0), length)
    return (start, min(start + max(size, 0), length)) if offset >= 0 else (0, 0)


def missing(location: str) -> NoReturn:
    """Raise NotFoundError for a location."""
    raise NotFoundError(f"{location}: there is no such file")
