"""Deletes of random partitions and of the whole table against a model that asks each of them for each file.

Plans by Spark take a group of them as a whole where its extremes allow it; here they do for a part of the files. Plans
by the driver match deletes once for all files that share them; here some files of a partition do.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

import sparkmeta as sm
from sparkmeta.expr import sql
from sparkmeta.plan.deletes import attach, groups
from sparkmeta.spec.entry import DELETE_FILE_PATH_ID
from tests.costs import limit
from tests.handmade import HandmadeTable, data, deletion_vector, equality_deletes, long_bounds, position_deletes
from tests.plan.test_deletes import deletes

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyspark.sql import SparkSession

# Column id -> lower bound, upper bound, nulls of 10 values or None.
Stats = dict[int, tuple[int, int, int | None]]
LONG, DOUBLE = 1, 3
KINDS = EQUALITY, EVERYWHERE, POSITIONS, VECTORS, OF_FILES = (
    "equality",
    "everywhere",
    "positions",
    "vectors",
    "of files",
)
LATEST = 7


@dataclass(frozen=True)
class Delete:
    name: str
    sequence: int
    ids: tuple[int, ...]
    stats: Stats

    def applies(self, sequence: int, stats: Stats) -> bool:
        may_share = (shares(stats.get(field_id), self.stats.get(field_id)) for field_id in self.ids)
        return self.sequence > sequence and all(may_share)

    def entry(self, **partition: Any) -> dict[str, Any]:
        return equality_deletes(self.name, self.sequence, self.ids, **metrics(self.stats), **partition)


def shares(left: tuple[int, int, int | None] | None, right: tuple[int, int, int | None] | None) -> bool:
    """Return whether two files may have a value of a column in common, including null."""
    if left is None or right is None or (left[2] != 0 and right[2] != 0):
        return True
    only_null = 10 in (left[2], right[2])  # then the other one has no null
    return not only_null and left[0] <= right[1] and right[0] <= left[1]


def metrics(stats: Stats) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for field_id, (low, high, nulls) in stats.items():
        bounds = long_bounds(low, high, nulls, field_id)
        if field_id == DOUBLE:
            for name, value in (("lower_bounds", low), ("upper_bounds", high)):
                bounds[name] = [{"key": field_id, "value": struct.pack("<d", value)}]
        for name, pairs in bounds.items():
            merged.setdefault(name, []).extend(pairs)
    return merged


@dataclass
class Model:
    """A table with deletes of the given kinds, and the expected names of the deletes of each file."""

    rng: random.Random
    kinds: frozenset[str]
    expected: dict[str, list[str]] = field(default_factory=dict)
    added: dict[tuple[int, int], list[dict[str, Any]]] = field(default_factory=dict)

    def add(self, content: int, spec_id: int, *entries: dict[str, Any]) -> None:
        self.added.setdefault((content, spec_id), []).extend(entries)

    def stats(self, known: float = 0.7) -> Stats:
        stats: Stats = {}
        for field_id in (LONG, DOUBLE):
            low, nulls = self.rng.randrange(30), self.rng.choice((0, 0, 0, 1, 10, None))
            if self.rng.random() < known:
                stats[field_id] = (low, low + self.rng.choice((3, 20, 60)), nulls)
        return stats

    def deletes(self, name: str, count: int, *compared: tuple[int, ...], known: float = 0.7) -> list[Delete]:
        return [
            Delete(f"{name}.{number}", self.rng.randrange(2, LATEST), self.rng.choice(compared), self.stats(known))
            for number in range(count)
        ]

    def partition(self, number: int, everywhere: Iterable[Delete]) -> None:
        """Add eight files with their deletes to a partition.

        In some partitions, position deletes share a group with equality deletes, or form a group alone. Some files
        have a vector, or position deletes of their own. The last four files are copies of the others, and some of them
        have no deletes of their own. The first partition has the value null, the last files are not partitioned.
        """
        spec_id, tuples = (0, {}) if number < 0 else (1, {"partition": {"part": f"p{number}" if number else None}})
        keys = (((LONG,),), ((LONG,), ()), ((LONG,), (DOUBLE,), (LONG, DOUBLE)))
        count, known = self.rng.choice((0, 0, 1, 2, 3)), self.rng.choice((0.7, 0))
        of_partition = self.deletes(f"x:eq{number}", count, *self.rng.choice(keys), known=known)
        of_partition = of_partition if EQUALITY in self.kinds and spec_id else []
        sequences = sorted(self.rng.randrange(1, LATEST) for _ in range(self.rng.choice((0, 0, 1, 3))))
        sequences = sequences if POSITIONS in self.kinds else []
        positions = {f"x:pos{number}.{place}": sequence for place, sequence in enumerate(sequences)}
        chosen = [(self.rng.randrange(1, 5), self.stats()) for _ in range(4)] * 2
        for place, (sequence, stats) in enumerate(chosen):
            path = f"file:///t/{number}.{place}"
            groups = (sorted(group, key=lambda delete: delete.sequence) for group in (everywhere, of_partition))
            names = [delete.name for group in groups for delete in group if delete.applies(sequence, stats)]
            kind = self.rng.random()
            if kind < 0.2 and VECTORS in self.kinds:
                self.add(1, spec_id, vector := deletion_vector(path, LATEST, **tuples))
                names.append(vector["data_file"]["file_path"])
            else:
                names += [name for name, of_name in positions.items() if of_name >= sequence]
            if kind > 0.8 and OF_FILES in self.kinds:
                scope = self.rng.choice(({"referenced_data_file": path}, path_bounds(path, path)))
                self.add(1, spec_id, position_deletes(f"x:of{number}.{place}", LATEST, **scope, **tuples))
                names.append(f"x:of{number}.{place}")
            self.add(0, spec_id, data(path, sequence, **metrics(stats), **tuples))
            self.expected[path] = names
        self.add(1, spec_id, *(delete.entry(**tuples) for delete in of_partition))
        # Bounds that differ drop no file.
        bounds = [self.rng.choice(({}, path_bounds("file:///a", "file:///b"))) for _ in positions]
        of_names = zip(positions.items(), bounds, strict=True)
        self.add(1, spec_id, *(position_deletes(name, sequence, **of, **tuples) for (name, sequence), of in of_names))


def path_bounds(lower: str, upper: str) -> dict[str, Any]:
    """Stats of the paths in a position delete file."""
    return {
        name: [{"key": DELETE_FILE_PATH_ID, "value": path.encode()}]
        for name, path in (("lower_bounds", lower), ("upper_bounds", upper))
    }


def random_table(folder: Path, seed: int, kinds: tuple[str, ...], partitions: int) -> tuple[HandmadeTable, Model]:
    model, table = Model(random.Random(seed), frozenset(kinds)), HandmadeTable(folder)
    known = model.rng.choice((0.7, 0))
    everywhere = model.deletes("x:every", seed % 5 + 1, (LONG,), known=known) if EVERYWHERE in kinds else []
    for number in range(-1, partitions - 1):
        model.partition(number, everywhere)
    model.add(1, 0, *(delete.entry() for delete in everywhere))
    if EQUALITY in kinds:  # deletes that name no column are refused if all do
        model.add(1, 1, equality_deletes("x:of nothing", LATEST, (LONG,), partition={"part": "without files"}))
    for (content, spec_id), added in model.added.items():
        if added:
            table.add(content, spec_id, *added)
    return table, model


FEW, BROADCAST, BY_SPARK, MANY = "few", "broadcast", "by Spark", "many"


@pytest.mark.parametrize("size", [FEW, BROADCAST, BY_SPARK, MANY])
@pytest.mark.parametrize(
    ("seed", "kinds"),
    [*((seed, KINDS) for seed in range(3)), *enumerate([(kind,) for kind in KINDS], 3), (8, (EVERYWHERE, OF_FILES))],
)
def test_random_groups(
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    kinds: tuple[str, ...],
    size: str,
    soak: bool,
) -> None:
    """Deletes are joined on the driver, or grouped there and broadcast, or grouped by a job, or joined by hash."""
    if size == BROADCAST:
        limit(monkeypatch, driver_pairs=-1)
    if size in (BY_SPARK, MANY):
        limit(monkeypatch, driver_deletes=-1)
    if size == MANY:
        limit(monkeypatch, broadcast_deletes=0)
    table, model = random_table(tmp_path, seed, kinds, 300 if soak else 40)
    assert deletes(table, spark) == model.expected


@pytest.mark.parametrize("kinds", [KINDS, *((kind,) for kind in KINDS), (POSITIONS, OF_FILES), (EQUALITY, EVERYWHERE)])
@pytest.mark.parametrize("alike", [True, False])
def test_random_groups_without_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kinds: tuple[str, ...], alike: bool, soak: bool
) -> None:
    """Without `alike`, the keys of all partitions and files are equal."""
    if not alike:
        monkeypatch.setattr(groups, "_hash", lambda _: sql.lit(1).cast("bigint"))
    for seed in range(200 if soak else 4):
        table, model = random_table(tmp_path / str(seed), seed, kinds, 20 if alike else 4)
        planned = sm.load_table(table.write()).scan().arrow.plan_files().to_pylist()
        paths = {row["file_path"]: [delete["file_path"] for delete in row["deletes"]] for row in planned}
        assert paths == model.expected, f"seed {seed}"


@pytest.mark.parametrize("place", [(1, {"partition": {"part": "x:x"}}), (0, {})])
def test_a_group_that_applies_as_a_whole_is_not_looked_at(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, place: tuple[int, dict[str, Any]]
) -> None:
    spec_id, tuples = place
    limit(monkeypatch, driver_pairs=-1)
    looked_at = sql.raise_error("a delete is looked at").cast("boolean")
    monkeypatch.setattr(attach, "may_share_values", lambda *_: looked_at)
    table = HandmadeTable(tmp_path).add(0, spec_id, data("x:a", 1, **long_bounds(1, 9), **tuples))
    both = (
        equality_deletes(name, 2, **long_bounds(low, low + 5), **tuples) for name, low in (("x:one", 1), ("x:two", 4))
    )
    table.add(1, spec_id, *both)
    assert deletes(table, spark) == {"x:a": ["x:one", "x:two"]}
    table.add(0, spec_id, data("x:b", 1, **long_bounds(7, 9), **tuples))
    with pytest.raises(PySparkException, match="a delete is looked at"):
        deletes(table, spark)


@pytest.mark.parametrize("place", [(1, {"partition": {"part": "x:x"}}), (0, {})])
def test_a_group_that_is_older_than_a_file_is_not_looked_at(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, place: tuple[int, dict[str, Any]]
) -> None:
    """An equality delete applies to older files, a position delete also to files of its own sequence number."""
    spec_id, tuples = place
    limit(monkeypatch, driver_pairs=-1)
    looked_at = sql.raise_error("a delete is looked at").cast("boolean")
    monkeypatch.setattr(attach, "_overlapping", lambda group, *_: sql.filter(group, lambda _: looked_at))
    table = HandmadeTable(tmp_path).add(0, spec_id, data("x:old", 2, **tuples), data("x:new", 4, **tuples))
    table.add(1, spec_id, equality_deletes("x:eq", 4, **tuples))
    assert deletes(table, spark) == {"x:old": ["x:eq"], "x:new": []}
    table.add(0, spec_id, data("x:between", 3, **tuples)).add(1, spec_id, equality_deletes("x:eq 3", 3, **tuples))
    with pytest.raises(PySparkException, match="a delete is looked at"):
        deletes(table, spark)


@pytest.mark.parametrize("size", [FEW, BROADCAST, MANY])
@pytest.mark.parametrize("everywhere", [False, True])
def test_groups_of_one_hash(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, everywhere: bool, size: str
) -> None:
    """Every key has the same hash: keys of a partition, and of the whole table."""
    if size == BROADCAST:
        limit(monkeypatch, driver_pairs=-1)
    if size == MANY:
        limit(monkeypatch, broadcast_deletes=0)
    monkeypatch.setattr(groups, "_hash", lambda _: sql.lit(1).cast("bigint"))
    x, y = ({"partition": {"part": part}} for part in "xy")
    table = HandmadeTable(tmp_path).add(0, 1, data("x:x", 1, **x), data("x:y", 1, **y)).add(0, 0, data("x:none", 1))
    if everywhere:
        table.add(1, 0, equality_deletes("x:one", 2), equality_deletes("x:two", 3))
        assert deletes(table, spark) == {path: ["x:one", "x:two"] for path in ("x:x", "x:y", "x:none")}
    else:
        table.add(1, 1, equality_deletes("x:one", 2, **x), equality_deletes("x:two", 3, **x))
        assert deletes(table, spark) == {"x:x": ["x:one", "x:two"], "x:y": [], "x:none": []}
