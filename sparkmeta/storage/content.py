"""Read files, whole or in ranges, with repeated requests and clear errors. Light: Spark tasks import this."""

from __future__ import annotations

import os
import random
import re
import sys
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from sparkmeta.errors import (
    CorruptFileError,
    FileAccessError,
    FileAlreadyExistsError,
    NotFoundError,
    SparkmetaError,
    UnsupportedError,
    is_access_problem,
)
from sparkmeta.storage.location import local_path, scheme

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from pyiceberg.io import FileIO, InputStream


# -- Keep credentials out of messages ---------------------------------------------------------------------------------


_SECRET_KEY = re.compile(
    r"token$|token\.|secret|passw(?:or)?d|credential|access[-_]key|account-key|api[-_]?key|connection-string|sas-|"
    r"signature|authorization|cookie",
    re.IGNORECASE,
)
_SIGNED = re.compile(
    r"((?:X-Amz-(?:Signature|Credential|Security-Token)|sig|X-Goog-(?:Signature|Credential))=)[^&\s\"']+", re.IGNORECASE
)
# Shorter values are words such as "true".
_MIN_SECRET_LENGTH = 6
_HIDDEN = "***"


def secrets_in(properties: Mapping[str, Any]) -> list[str]:
    """Return the credentials in the properties of a catalog or FileIO, the longest first."""
    return sorted({value for value in _secrets(properties) if len(value) >= _MIN_SECRET_LENGTH}, key=len, reverse=True)


def _secrets(properties: Mapping[str, Any]) -> Iterator[str]:
    for key, value in properties.items():
        if isinstance(value, dict):
            yield from _secrets(value)
        elif _SECRET_KEY.search(key):
            text = str(value)
            # An id with its secret; a scheme, such as Bearer, with its token.
            yield from (text, *text.split(":"), text.rpartition(" ")[2])
        elif key.endswith("uri"):
            yield from _secrets_of_uri(str(value))


def _secrets_of_uri(uri: str) -> Iterator[str]:
    url = urlsplit(uri)
    password = url.password or ""
    # Messages contain the password in either spelling.
    yield from (password, unquote(password))
    yield from _secrets(dict(parse_qsl(url.query)))


def without_secrets(text: str, properties: Mapping[str, Any]) -> str:
    """Replace credentials in a text: those in properties, and parts of signed URLs."""
    for secret in secrets_in(properties):
        text = text.replace(secret, _HIDDEN)
    return _SIGNED.sub(rf"\1{_HIDDEN}", text)


# -- Tell damaged files from files that can't be read -----------------------------------------------------------------


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
        if error is None or isinstance(error, SparkmetaError) or not _is_read_error(error):
            return
        message = " ".join(str(error).split())[:300]
        if isinstance(error, FileNotFoundError):
            raise NotFoundError(f"{self._location}: there is no such file") from error
        # Arrow sets `errno` for errors of the operating system, but not for errors of stores and of content.
        if isinstance(error, OSError) and (error.errno is not None or is_access_problem(message)):
            raise FileAccessError(f"{self._location}: {message}") from error
        problem = f"{self._problem}: {message}"
        raise CorruptFileError(self._location, self._field, type(error).__name__, problem) from error


def _is_read_error(error: BaseException) -> bool:
    """Return whether Arrow and byte decoders raise such errors for damaged content.

    Arrow's OSError may also come from the store. Processes that read without Arrow do not import it.
    """
    import pyarrow as pa

    return isinstance(error, (pa.ArrowException, OSError, ValueError, LookupError, zlib.error))


# -- Credentials that expire ------------------------------------------------------------------------------------------


VENDED_FOR = "sparkmeta.vended-for"
"""The property of a FileIO that names the catalog and the table of its credentials, for errors."""

# Credentials are replaced this many seconds before they expire, so that a job that starts with them has time to run.
# Short-lived credentials are replaced after half of their remaining lifetime.
_AHEAD = 300.0
_EXPIRY = re.compile(
    r"s3\.session-token-expires-at-ms|gcs\.oauth2\.token-expires-at|adls\.sas-token-expires-at-ms(?:\..*)?"
)
_EXPIRED = re.compile(r"expired.?token|token (?:is|has) expired|request.?expired", re.IGNORECASE)


class VendedIO:
    """A FileIO with credentials that expire, and that its catalog replaces.

    Args:
        io: the FileIO with the first credentials.
        load: asks the catalog for the FileIO again, with new credentials.
    """

    def __init__(self, io: FileIO, load: Callable[[], FileIO]) -> None:
        self._io, self._load = io, load
        self._lock = Lock()
        self._replaced_at = _replaced_at(io)

    def current(self) -> FileIO:
        """Return the FileIO with credentials that do not expire soon.

        If the catalog can't vend new ones, the old ones are used until they expire.

        Raises:
            SparkmetaError: the catalog can't vend new ones, and the old ones have expired.
        """
        with self._lock:
            if time.time() >= self._replaced_at:
                with suppress(*(() if has_expired(self._io.properties) else (SparkmetaError,))):
                    self._io = self._load()
                    self._replaced_at = _replaced_at(self._io)
            return self._io


def expiry(properties: Mapping[str, str]) -> float | None:
    """Return when the first credentials in the properties of a FileIO expire, in seconds since 1970; None if never."""
    texts = [str(value) for name, value in properties.items() if _EXPIRY.fullmatch(name)]
    times = [int(text) / 1000 for text in texts if text.isdecimal()]
    return min(times, default=None)


def has_expired(properties: Mapping[str, str]) -> bool:
    """Return whether some credentials in the properties of a FileIO have expired."""
    end = expiry(properties)
    return end is not None and end <= time.time()


def expired_reason(properties: Mapping[str, str], reason: str) -> str | None:
    """Return why a request failed if its credentials, which a catalog has vended, have expired; None otherwise.

    Args:
        properties: the properties of the FileIO.
        reason: the message of the store's client. Some responses don't mention expiry; then the time decides.
    """
    if (vended_for := properties.get(VENDED_FOR)) is None:
        return None
    if not has_expired(properties) and _EXPIRED.search(reason) is None:
        return None
    return f"the credentials that {vended_for} have expired: a new plan or read gets new ones"


def _replaced_at(io: FileIO) -> float:
    end, now = expiry(io.properties), time.time()
    return float("inf") if end is None else end - min(_AHEAD, max(0.0, (end - now) / 2))


# -- Requests to a store ----------------------------------------------------------------------------------------------


T = TypeVar("T")

# Seconds between attempts. An attempt may already be several requests, since clients retry for a few seconds.
_WAITS = (0.5, 2.0)
# Words in errors of a store that is busy or drops connections, in the spelling of pyarrow, botocore, aiohttp and
# others. Failures to connect are not among them: clients retry these for long enough.
_TRANSIENT = re.compile(
    r"slow.?down|throttl|request rate|unavailable|internal.?(?:error|failure)|\b50[0234]\b|time.?out|timed out|"
    r"connection.?(?:closed|reset|aborted)|disconnected|reset by peer|broken pipe|incomplete|httpclient",
    re.IGNORECASE,
)

_NO_CREDENTIALS = re.compile(r"NoCredentials|(?:no|locate) credentials", re.IGNORECASE)
_WHOSE_CREDENTIALS = "; tasks have a catalog's properties, but not the credentials of the driver's environment"


def requested(io: FileIO, location: str, request: Callable[[], T], *, repeat: bool = True) -> T:
    """Make a request to a file's store, and return its result.

    Args:
        io: the FileIO that the request uses.
        location: the file or folder, for errors.
        request: a request that raises FileNotFoundError for a missing file. It may run several times.
        repeat: whether to repeat it if the store is busy. False if its effect depends on earlier attempts.

    Raises:
        NotFoundError: the file is missing.
        FileAccessError: the store refused the request, or did not respond. The error contains no credentials.
    """
    waits = iter(_WAITS if repeat else ())
    while True:
        try:
            return request()
        except FileNotFoundError:
            raise NotFoundError(f"{location}: there is no such file") from None
        except SparkmetaError:
            raise
        except FileExistsError as error:
            raise FileAlreadyExistsError(f"{location}: the file already exists") from error
        except Exception as error:  # noqa: BLE001 - each store's client has its own errors
            wait = next(waits, None) if _is_transient(error) else None
            if wait is None:
                reason = expired_reason(io.properties, _text(error)) or _text(error)
                hint = _WHOSE_CREDENTIALS if _NO_CREDENTIALS.search(reason) else ""
                # Without the cause, whose text may contain credentials.
                raise FileAccessError(f"{location}: {without_secrets(reason, io.properties)}{hint}") from None
        time.sleep(wait * random.uniform(0.5, 1.5))


def _is_transient(error: BaseException) -> bool:
    return not isinstance(error, PermissionError) and _TRANSIENT.search(_text(error)) is not None


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


# -- Read a file ------------------------------------------------------------------------------------------------------
# Every function raises NotFoundError if the file is missing.


NO_FILE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
"""Errors that the operating system raises if a location can't be opened as a file."""

# Characters that end the path of a URL, and characters that its parser drops.
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
    """Return a location in the form that the client of a FileIO expects.

    Raises:
        UnsupportedError: PyArrowFileIO, which parses locations as URLs, would open another file.
    """
    if _is_a(io, "pyiceberg.io.pyarrow", "PyArrowFileIO") and _NOT_IN_URL_PATHS.search(location):
        reason = (
            "PyArrowFileIO parses # and ? as parts of a URL, and drops tabs and line breaks: it would open another file"
        )
        raise UnsupportedError(f"{location}: {reason}")
    # s3fs reads the scheme s3n as a bucket.
    is_s3n = scheme(location) == "s3n" and _is_a(io, "pyiceberg.io.fsspec", "FsspecFileIO")
    return f"s3{location[len('s3n') :]}" if is_s3n else location


def fsspec_store(io: FileIO, location: str) -> Any:
    """Return the fsspec file system of a FileIO; None if it has another client."""
    is_fsspec = _is_a(io, "pyiceberg.io.fsspec", "FsspecFileIO")
    return io.new_output(location)._fs if is_fsspec else None  # type: ignore[attr-defined]


def _is_a(io: FileIO, module: str, name: str) -> bool:
    """Return whether a FileIO is of a class, without importing the class's module, which takes 0.1 s."""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(io, getattr(loaded, name))


def _read(io: FileIO, location: str) -> bytes:
    if (store := fsspec_store(io, location)) is not None:
        return _fetched(store, location, 0, None)
    # The stream is seekable: pyarrow reads other streams in sequential requests of 1 MiB.
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
    """Return the start and end of a range within a file of `length` bytes. They are equal if the range is invalid."""
    start = min(max(offset, 0), length)
    return (start, min(start + max(size, 0), length)) if offset >= 0 else (0, 0)


def missing(location: str) -> NoReturn:
    """Raise NotFoundError for a location."""
    raise NotFoundError(f"{location}: there is no such file")


# -- Read many ranges of files ----------------------------------------------------------------------------------------


R = TypeVar("R")

# Gaps up to this size are read too: a store sends as many bytes in the time of another request, about 30 ms.
_LARGEST_GAP = 1 << 18
# Maximum bytes of a merged request, so that several run at a time and memory stays bounded.
_LARGEST_REQUEST = 4 << 20
_THREADS = 16


class RangeReader(Protocol):
    """A reader of ranges of files: `Files` on the driver, `ExecutorReader` in tasks."""

    def read_range(self, location: str, offset: int, size: int) -> bytes:
        """Return a range of a file, up to its end."""


class FileRange(NamedTuple):
    """A range of a file."""

    location: str
    offset: int
    size: int


def read_ranges(reader: RangeReader, ranges: Sequence[FileRange]) -> Iterator[tuple[int, bytes]]:
    """Read ranges of files, with few requests and several at a time.

    At most `_THREADS` requests run or wait to be consumed, with `_LARGEST_REQUEST` bytes each on average, so that
    memory does not grow with the ranges. A larger request runs alone.

    Args:
        reader: used by several threads.
        ranges: in any order; they may overlap.

    Yields:
        The index of each range in `ranges` and its bytes, up to the end of the file, ordered by file and offset.

    Raises:
        NotFoundError: a file is missing.
    """
    requests = _requests(ranges)
    if len(requests) == 1:
        yield from requests[0].parts(requests[0].read(reader))
        return
    for request, data in read_ahead(requests, lambda request: request.read(reader), _request_size):
        yield from request.parts(data)


def read_ahead(items: Iterable[T], read: Callable[[T], R], size: Callable[[T], int]) -> Iterator[tuple[T, R]]:
    """Read items ahead, several at a time.

    Args:
        items: the items to read.
        read: reads an item; called by several threads.
        size: returns the bytes that reading an item takes. They limit how many items are read at a time.

    Yields:
        Each item, in order, with its content.
    """
    running: deque[tuple[T, int, Future[R]]] = deque()
    try:
        for item in items:
            item_size = size(item)
            while running and not _fits(item_size, [running_size for _, running_size, _ in running]):
                yield _finished(running)
            running.append((item, item_size, _threads().submit(read, item)))
        while running:
            yield _finished(running)
    finally:
        for _, _, future in running:
            future.cancel()


def request_count(ranges: Sequence[FileRange]) -> int:
    """Return how many requests `read_ranges` makes."""
    return len(_requests(ranges))


@dataclass
class _Request:
    """Ranges of a file, with their indices, that are read together."""

    location: str
    start: int
    end: int
    ranges: list[tuple[int, FileRange]]

    def read(self, reader: RangeReader) -> bytes:
        return reader.read_range(self.location, self.start, self.end - self.start)

    def parts(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        if len(self.ranges) == 1:
            yield self.ranges[0][0], data
            return
        for index, (_, offset, size) in self.ranges:
            yield index, data[offset - self.start : offset - self.start + size]


def _requests(ranges: Sequence[FileRange]) -> list[_Request]:
    requests: list[_Request] = []
    for index, file_range in sorted(enumerate(ranges), key=lambda numbered: numbered[1]):
        end = file_range.offset + file_range.size
        last = requests[-1] if requests else None
        if last is not None and last.location == file_range.location and _joins(last, file_range):
            last.end = max(last.end, end)
            last.ranges.append((index, file_range))
        else:
            requests.append(_Request(file_range.location, file_range.offset, end, [(index, file_range)]))
    return requests


def _joins(request: _Request, file_range: FileRange) -> bool:
    """Return whether a request should include a range. Invalid ranges, which metadata may name, are read alone."""
    is_range = request.start >= 0 and request.end >= request.start and file_range.size >= 0
    is_near = file_range.offset - request.end <= _LARGEST_GAP
    end = max(request.end, file_range.offset + file_range.size)
    return is_range and is_near and end - request.start <= _LARGEST_REQUEST


def _request_size(request: _Request) -> int:
    return request.end - request.start


def _fits(size: int, running: Sequence[int]) -> bool:
    return len(running) < _THREADS and sum(running) + size <= _THREADS * _LARGEST_REQUEST


def _finished(running: deque[tuple[T, int, Future[R]]]) -> tuple[T, R]:
    item, _, future = running.popleft()
    return item, future.result()


@cache
def _threads() -> ThreadPoolExecutor:
    """Return shared threads, since some FileIOs keep connections by thread."""
    return ThreadPoolExecutor(_THREADS, "sparkmeta-ranges")
