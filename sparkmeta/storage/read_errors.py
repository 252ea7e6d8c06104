"""Tell damaged files from files that could not be read, by the errors of readers."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import pyarrow as pa

from sparkmeta.errors import CorruptFileError, FileAccessError, NotFoundError, SparkmetaError, is_access_problem

if TYPE_CHECKING:
    from types import TracebackType

# Errors that Arrow and byte decoders raise for damaged content. Arrow's OSError may also be one of the store.
_ERRORS = (pa.ArrowException, OSError, ValueError, LookupError, zlib.error)


class translated_read_errors:  # noqa: N801  used like a function
    """Translate errors of readers in the block.

    Errors of the operating system or the store become NotFoundError or FileAccessError, others CorruptFileError. Errors
    of sparkmeta stay.

    Args:
        location: the file.
        field: the `field` of a CorruptFileError, whose `value` is the name of the reader's error.
        problem: what a CorruptFileError says before the reader's message.
    """

    def __init__(self, location: str, field: str = "content", problem: str = "not readable") -> None:
        self._location, self._field, self._problem = location, field, problem

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, _ERRORS) or isinstance(error, SparkmetaError):
            return
        message = " ".join(str(error).split())[:300]
        if isinstance(error, FileNotFoundError):
            raise NotFoundError(f"{self._location}: there is no such file") from error
        # Arrow sets `errno` for errors of the operating system, not for those of stores and of content.
        if isinstance(error, OSError) and (error.errno is not None or is_access_problem(message)):
            raise FileAccessError(f"{self._location}: {message}") from error
        problem = f"{self._problem}: {message}"
        raise CorruptFileError(self._location, self._field, type(error).__name__, problem) from error
