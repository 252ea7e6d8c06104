"""Equality deletes of random partitions and of the whole table against a model that asks each of them for each file.

Plans take a group of them as a whole where its extremes allow it; here they do for a part of the files.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from tests.handmade import HandmadeTable, data, deletion_vector, equality_deletes, long_bounds, position_deletes
from tests.plan.test_deletes import deletes

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyspark.sql import SparkSession

# Column id -> lower bound, upper bound, nulls of 10 values or None.
Stats = dict[int, tuple[int, int, int | None]]
LONG, DOUBLE = 1, 3
LATEST = 7


@dataclass(frozen=True)
class Delete:
    name: str
    sequence: int
    ids: tuple[int, ...]
    stats: Stats

    def applies(self, sequence: int, stats: Stats) -> bool:
        may_share = (shares(stats.get(one), self.stats.get(one)) for one in self.ids)
        return self.sequence > sequence and all(may_share)

    def entry(self, **partition: Any) -> dict[str, Any]:
        return equality_deletes(self.name, self.sequence, self.ids, **metrics(self.stats), **partition)


def shares(one: tuple[int, int, int | None] | None, other: tuple[int, int, int | None] | None) -> bool:
    """Whether two files may have a value of a column in common, null among them."""
    if one is None or other is None or (one[2] != 0 and other[2] != 0):
        return True
    only_null = 10 in (one[2], other[2])  # then the other one has no null
    return not only_null and one[0] <= other[1] and other[0] <= one[1]


def metrics(stats: Stats) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for field_id, (low, high, nulls) in stats.items():
        of_one = long_bounds(low, high, nulls, field_id)
        if field_id == DOUBLE:
            for name, value in (("lower_bounds", low), ("upper_bounds", high)):
                of_one[name] = [{"key": field_id, "value": struct.pack("<d", value)}]
        for name, pairs in of_one.items():
            merged.setdefault(name, []).extend(pairs)
    return merged


@dataclass
class Model:
    """A table, and the names of the deletes of its files."""

    rng: random.Random
    expected: dict[str, list[str]] = field(default_factory=dict)
    added: dict[tuple[int, int], list[dict[str, Any]]] = field(default_factory=dict)

    def add(self, content: int, spec_id: int, *entries: dict[str, Any]) -> None:
        self.added.setdefault((content, spec_id), []).extend(entries)

    def stats(self) -> Stats:
        found: Stats = {}
        for field_id in (LONG, DOUBLE):
            low, nulls = self.rng.randrange(30), self.rng.choice((0, 0, 0, 1, 10, None))
            if self.rng.random() < 0.7:
                found[field_id] = (low, low + self.rng.choice((3, 20, 60)), nulls)
        return found

    def deletes(self, name: str, most: int, first: int) -> list[Delete]:
        ids = self.rng.choice(((LONG,), (LONG,), (DOUBLE,), (LONG, DOUBLE)))
        return [
            Delete(f"{name}.{one}", self.rng.randrange(first, LATEST), ids, self.stats())
            for one in range(self.rng.randrange(most))
        ]

    def partition(self, number: int, everywhere: Iterable[Delete]) -> None:
        """Four files with their deletes; in some partitions position deletes stand in the same group, or a vector."""
        tuples = {"partition": {"part": f"p{number}"}}
        own = self.deletes(f"eq{number}", 4, 2)
        positions = [position_deletes(f"pos{number}", LATEST, **tuples)] * (self.rng.random() < 0.3)
        for one in range(4):
            path, sequence, stats = f"file:///t/{number}.{one}", self.rng.randrange(1, 5), self.stats()
            groups = (sorted(group, key=lambda delete: delete.sequence) for group in (everywhere, own))
            names = [delete.name for group in groups for delete in group if delete.applies(sequence, stats)]
            if self.rng.random() < 0.2:
                self.add(1, 1, vector := deletion_vector(path, LATEST, **tuples))
                names.append(vector["data_file"]["file_path"])
            else:
                names += [position["data_file"]["file_path"] for position in positions]
            self.add(0, 1, data(path, sequence, **metrics(stats), **tuples))
            self.expected[path] = names
        self.add(1, 1, *(delete.entry(**tuples) for delete in own), *positions)


@pytest.mark.parametrize("seed", range(3))
def test_random_groups(tmp_path: Path, spark: SparkSession, seed: int, soak: bool) -> None:
    model, table = Model(random.Random(seed)), HandmadeTable(tmp_path)
    everywhere = model.deletes("every", 3, 5)
    for number in range(300 if soak else 60):
        model.partition(number, everywhere)
    model.add(1, 0, *(delete.entry() for delete in everywhere))
    for (content, spec_id), entries in model.added.items():
        if entries:
            table.add(content, spec_id, *entries)
    assert deletes(table, spark) == model.expected
