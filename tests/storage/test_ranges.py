"""Many ranges of files: their bytes, and with how many requests they are read."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Barrier

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkmeta.errors import NotFoundError
from sparkmeta.storage import content
from sparkmeta.storage.content import FileRange, read_ranges, request_count
from sparkmeta.storage.files import LocalFiles

GAP, LARGEST = 10, 50
CONTENT = bytes(range(200))


@dataclass
class Memory:
    """Files in memory that record requests. With `meeting`, requests wait until as many as its parties run."""

    meeting: Barrier | None = None
    requests: list[FileRange] = field(default_factory=list)

    def read_range(self, location: str, offset: int, size: int) -> bytes:
        self.requests.append(FileRange(location, offset, size))
        if self.meeting is not None:
            self.meeting.wait(timeout=60)
        return CONTENT[offset : offset + size] if offset >= 0 else b""


def read(reader: Memory, ranges: list[FileRange]) -> list[bytes]:
    contents = dict(read_ranges(reader, ranges))
    assert len(reader.requests) == request_count(ranges)
    assert [*range(len(ranges))] == sorted(contents)
    return [contents[place] for place in range(len(ranges))]


@pytest.fixture(autouse=True, scope="module")
def _small_limits() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(content, "_LARGEST_GAP", GAP)
        patch.setattr(content, "_LARGEST_REQUEST", LARGEST)
        yield


@settings(deadline=None)
@given(st.lists(st.builds(FileRange, st.sampled_from("ab"), st.integers(-5, 220), st.integers(0, 70))))
def test_each_range_has_its_bytes(ranges: list[FileRange]) -> None:
    """Ranges may be in any order, overlap, or extend beyond the end of the file."""
    reader = Memory()
    assert read(reader, ranges) == [Memory().read_range(*part) for part in ranges]
    joined = [part.size for part in reader.requests if part not in ranges]
    assert len(reader.requests) <= len(ranges)
    assert max(joined, default=0) <= LARGEST


@pytest.mark.parametrize(
    ("ranges", "requests"),
    [
        ([("a", 0, 5), ("a", 5, 5)], [("a", 0, 10)]),
        ([("a", 20, 5), ("a", 0, 10)], [("a", 0, 25)]),
        ([("a", 0, 10), ("a", 21, 5)], [("a", 0, 10), ("a", 21, 5)]),
        ([("a", 0, 40), ("a", 45, 5)], [("a", 0, 50)]),
        ([("a", 0, 40), ("a", 45, 6)], [("a", 0, 40), ("a", 45, 6)]),
        ([("a", 0, 30), ("a", 5, 5), ("a", 32, 2)], [("a", 0, 34)]),
        ([("a", 0, 5), ("b", 5, 5)], [("a", 0, 5), ("b", 5, 5)]),
        ([("a", -3, 5), ("a", 0, 5)], [("a", -3, 5), ("a", 0, 5)]),
    ],
)
def test_neighbours_are_one_request(ranges: list[tuple[str, int, int]], requests: list[tuple[str, int, int]]) -> None:
    reader = Memory()
    read(reader, [FileRange(*part) for part in ranges])
    assert sorted(reader.requests) == requests


def test_requests_run_side_by_side() -> None:
    """Each request waits until all of them run."""
    ranges = [FileRange(str(number), 0, 3) for number in range(16)]
    assert read(Memory(Barrier(16)), ranges) == [CONTENT[:3]] * 16


@pytest.mark.parametrize(("size", "running"), [(3, 16), (300, 2), (900, 1)])
def test_requests_wait_for_their_bytes_to_be_taken(size: int, running: int) -> None:
    reader = Memory()
    ranges = [FileRange(str(number), 0, size) for number in range(100)]
    taken = read_ranges(reader, ranges)
    next(taken)
    assert len(reader.requests) <= running
    taken.close()


def test_items_are_read_ahead_in_order() -> None:
    """Items that are read at the same time wait for each other. A later one begins once an earlier one is yielded."""
    meeting, begun = Barrier(16), []

    def read_item(item: int) -> int:
        begun.append(item)
        if item < 16:
            meeting.wait(timeout=60)
        return -item

    ahead = content.read_ahead(range(40), read_item, lambda _: 1)
    assert next(ahead) == (0, 0)
    assert max(begun) < 17
    assert list(ahead) == [(item, -item) for item in range(1, 40)]


def test_a_missing_file_is_named() -> None:
    ranges = [FileRange(f"file:///no/{number}", 0, 3) for number in range(3)]
    with pytest.raises(NotFoundError, match="file:///no/0"):
        list(read_ranges(LocalFiles(), ranges))
