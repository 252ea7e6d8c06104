"""Leaves on their way to a disk or store while the next ones are made."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from sparkmeta.manifests.v4.layout import tree_schema
from sparkmeta.manifests.v4.write import LeafFormat, encode_leaf, put_behind
from sparkmeta.spec.entry import Status

if TYPE_CHECKING:
    from collections.abc import Iterator

LEAVES = 6
STATS = {1: "long"}


@dataclass
class SlowWriter:
    """A writer that is slower for the first leaves than for later ones, and fails at the leaf number `broken`."""

    broken: int | None = None
    started: list[str] = field(default_factory=list)
    written: dict[str, bytes] = field(default_factory=dict)
    at_once: int = 0
    _lock: Any = field(default_factory=threading.Lock)

    def write_new(self, location: str, data: bytes) -> None:
        with self._lock:
            number = len(self.started)
            self.started.append(location)
            self.at_once = max(self.at_once, len(self.started) - len(self.written))
        time.sleep(0.05 if number < 2 else 0.01)
        if number == self.broken:
            raise OSError("the disk is full")
        with self._lock:
            self.written[location] = data


def form(writer: SlowWriter) -> LeafFormat:
    return LeafFormat("file:///t/metadata", "leaf", STATS, {0: frozenset()}, 1 << 20, writer)  # type: ignore[arg-type]


def entries(number: int) -> pa.Table:
    row = {
        "content_type": 0,
        "location": f"file:///t/data/{number}.parquet",
        "file_format": "parquet",
        "version_info": {"status": int(Status.ADDED)},
        "partition_spec_id": 0,
        "record_count": number,
        "file_size_in_bytes": 1,
    }
    return pa.Table.from_pylist([row] * (number + 1), schema=tree_schema(STATS))


def encoded(of: LeafFormat) -> Iterator[tuple[int, tuple[bytes, pa.Table]]]:
    for number in range(LEAVES):
        yield number, encode_leaf(entries(number), of)


def test_each_leaf_is_given_once_its_file_is_there_in_the_order_of_leaves() -> None:
    writer = SlowWriter()
    of = form(writer)
    leaf_counts = []
    for number, row in put_behind(encoded(of), of.writer):
        location = row.column("location")[0].as_py()
        assert len(writer.written[location]) == row.column("file_size_in_bytes")[0].as_py()
        leaf_counts.append((number, row.column("record_count")[0].as_py()))
    assert leaf_counts == [(number, number + 1) for number in range(LEAVES)]
    assert writer.at_once > 1


def test_a_leaf_that_cannot_be_written_ends_the_task() -> None:
    writer = SlowWriter(broken=2)
    of = form(writer)
    leaves = put_behind(encoded(of), of.writer)
    assert [next(leaves)[0], next(leaves)[0]] == [0, 1]
    with pytest.raises(OSError, match="the disk is full"):
        next(leaves)
    begun = list(writer.started)
    assert len(begun) < LEAVES
    time.sleep(0.1)
    assert writer.started == begun


def test_a_task_that_is_given_up_writes_nothing_more() -> None:
    writer = SlowWriter()
    of = form(writer)
    leaves = put_behind(encoded(of), of.writer)
    assert next(leaves)[0] == 0
    leaves.close()  # type: ignore[attr-defined]
    begun = list(writer.started)
    assert len(begun) < LEAVES
    assert len(writer.written) == len(begun)
    time.sleep(0.1)
    assert writer.started == begun
