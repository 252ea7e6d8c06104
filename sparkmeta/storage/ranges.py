"""Read many ranges of files, with one request for neighbours and several requests at a time.

Light: Spark tasks import this.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, Protocol, TypeVar

T = TypeVar("T")
R = TypeVar("R")

# Bytes that a store could send in the 30 ms or so that another request takes.
_LARGEST_GAP = 1 << 18
# Most bytes of a merged request, so that several run at a time and memory stays bounded.
_LARGEST_REQUEST = 4 << 20
_THREADS = 16


class RangeReader(Protocol):
    """Reads ranges of files: `Files` on the driver, `ExecutorReader` in tasks."""

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
    for request, data in read_ahead(requests, lambda request: request.read(reader), _size):
        yield from request.parts(data)


def read_ahead(items: Iterable[T], read: Callable[[T], R], size: Callable[[T], int]) -> Iterator[tuple[T, R]]:
    """Read items, several at a time, and before they are asked for.

    Args:
        items: what to read.
        read: reads an item; called by several threads.
        size: returns the bytes that reading an item takes, which limit how many are read at a time.

    Yields:
        Each item, in order, with what was read.
    """
    running: deque[tuple[T, int, Future[R]]] = deque()
    try:
        for item in items:
            bytes_of_item = size(item)
            while running and not _fits(bytes_of_item, [bytes_of_running for _, bytes_of_running, _ in running]):
                yield _finished(running)
            running.append((item, bytes_of_item, _threads().submit(read, item)))
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
        for place, (_, offset, size) in self.ranges:
            yield place, data[offset - self.start : offset - self.start + size]


def _requests(ranges: Sequence[FileRange]) -> list[_Request]:
    requests: list[_Request] = []
    for place, part in sorted(enumerate(ranges), key=lambda numbered: numbered[1]):
        end = part.offset + part.size
        last = requests[-1] if requests else None
        if last is not None and last.location == part.location and _joins(last, part):
            last.end = max(last.end, end)
            last.ranges.append((place, part))
        else:
            requests.append(_Request(part.location, part.offset, end, [(place, part)]))
    return requests


def _joins(request: _Request, part: FileRange) -> bool:
    """Return whether a request should include a range. Invalid ranges, which metadata may name, are read alone."""
    is_range = request.start >= 0 and request.end >= request.start and part.size >= 0
    near = part.offset - request.end <= _LARGEST_GAP
    return is_range and near and max(request.end, part.offset + part.size) - request.start <= _LARGEST_REQUEST


def _size(request: _Request) -> int:
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
