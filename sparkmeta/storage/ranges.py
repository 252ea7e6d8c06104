"""Many ranges of files at once: neighbours are read by one request, and several requests run at a time.

Light: Spark tasks import this.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, Protocol

# A request takes a store some 30 ms, in which it could have sent this many bytes more.
_LARGEST_GAP = 1 << 18
# Requests of more bytes are left apart, so that several run at a time and memory stays bounded.
_LARGEST_REQUEST = 4 << 20
_THREADS = 16


class RangeReader(Protocol):
    """Whoever reads a part of a file: `Files` on the driver, `ExecutorReader` in tasks."""

    def read_range(self, location: str, offset: int, size: int) -> bytes:
        """Bytes from an offset on; fewer where the file ends before."""


class FileRange(NamedTuple):
    """A part of a file."""

    location: str
    offset: int
    size: int


def read_ranges(reader: RangeReader, ranges: Sequence[FileRange]) -> Iterator[tuple[int, bytes]]:
    """Read parts of files, with few requests and several at a time.

    At most `_THREADS` requests run or wait to be consumed, so that the bytes held don't grow with the ranges.

    Args:
        reader: used by several threads.
        ranges: in any order; they may overlap.

    Yields:
        The place of each range in `ranges` and its bytes, fewer where the file ends before; by file and offset.

    Raises:
        NotFoundError: a file is missing.
    """
    requests = _requests(ranges)
    if len(requests) == 1:
        yield from requests[0].parts(requests[0].read(reader))
        return
    running: deque[tuple[_Request, Future[bytes]]] = deque()
    try:
        for request in requests:
            if len(running) == _THREADS:
                yield from _finished(running)
            running.append((request, _threads().submit(request.read, reader)))
        while running:
            yield from _finished(running)
    finally:
        for _, future in running:
            future.cancel()


@dataclass
class _Request:
    """Ranges of one file, by their places, that are read together."""

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
    """Whether a request should read the part too. Metadata may name what is no range: that is asked for alone."""
    is_range = request.start >= 0 and request.end >= request.start and part.size >= 0
    near = part.offset - request.end <= _LARGEST_GAP
    return is_range and near and max(request.end, part.offset + part.size) - request.start <= _LARGEST_REQUEST


def _finished(running: deque[tuple[_Request, Future[bytes]]]) -> Iterator[tuple[int, bytes]]:
    request, future = running.popleft()
    yield from request.parts(future.result())


@cache
def _threads() -> ThreadPoolExecutor:
    """The same ones for all, since some FileIOs keep connections by thread."""
    return ThreadPoolExecutor(_THREADS, "sparkmeta-ranges")
