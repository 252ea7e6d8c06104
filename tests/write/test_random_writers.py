"""Random histories of writers whose changes overlap: each begins on a state of the table, and commits after others.

There are no threads: a writer reads and writes its files, others commit, and then it commits. After each commit, the
rows equal a model's, for the isolation level of the change. A conflict needs a commit that changed files which the
change read.

`make test` runs a short history of some kinds of tables. SPARKMETA_SOAK=1 runs long ones of all, and SPARKMETA_STEPS of
that number of steps, seeded by SPARKMETA_SEED.
"""

from __future__ import annotations

import os
import random
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

import sparkmeta as sm
from sparkmeta.errors import CommitConflictError
from tests.frames import local_frame
from tests.peers.slices import SOAK
from tests.write.list_files import avro_records, unreached_files
from tests.write.test_changes import BY_PART, MODES, SCHEMA

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from sparkmeta import RowTransaction

STEPS, SEED = int(os.environ.get("SPARKMETA_STEPS", "0")), int(os.environ.get("SPARKMETA_SEED", "1"))
PARTS = "abcd"
# Each of the table's first files has the ids of one block.
BLOCK, LAST_ID = 12, 36
COMMANDS = ("delete", "update", "merge")

Row = tuple[int, str, int]
Rows = Counter[Row]
Split = Callable[[Rows], tuple[Rows, Rows]]
"""The rows that a change takes from given rows, and those that it adds."""


class Scope(NamedTuple):
    """The rows that a change reads: rows of some or all partitions, with an id in a range."""

    parts: frozenset[str] = frozenset(PARTS)
    low: int = -1
    high: int = 1 << 40

    @property
    def text(self) -> str:
        parts = "" if self == Scope(low=self.low, high=self.high) else f"part = '{min(self.parts)}'"
        ids = [f"id >= {self.low}"] * (self.low > -1) + [f"id < {self.high}"] * (self.high < 1 << 40)
        return " and ".join([part for part in (parts, *ids) if part])

    def holds(self, row: Row) -> bool:
        return row[1] in self.parts and self.low <= row[0] < self.high

    def of(self, rows: Rows) -> Rows:
        return Counter({row: count for row, count in rows.items() if self.holds(row)})

    def may_hold(self, part: str, low: int, high: int) -> bool:
        """Return whether the scope may contain rows of a file."""
        return part in self.parts and low < self.high and high >= self.low


@dataclass(frozen=True)
class Change:
    """A change of rows.

    Attributes:
        write: makes the change, in a transaction.
        split: returns the rows that the change removes and adds.
        scope: the rows that it reads; None if it reads none.
        level: "serializable", "snapshot", or "none" if no concurrent commit is a conflict.
        by_filter: whether it may remove files by a filter, as of its commit.
    """

    name: str
    write: Callable[[RowTransaction[Any], dict[str, str]], object]
    split: Split
    scope: Scope | None
    level: str
    by_filter: bool = False


@dataclass
class Begun:
    """A change that has written its files.

    Attributes:
        commit: commits the change.
        start: the snapshot that it read.
        rows: the rows of that snapshot.
    """

    number: int
    change: Change
    commit: Callable[[], sm.Table]
    start: int
    rows: Rows

    def __str__(self) -> str:
        return f"{self.number}: {self.change.name} ({self.change.level})"


@dataclass
class Writers:
    """A table, and writers that change it.

    Attributes:
        states: loaded tables, and their rows.
        pending: changes that are not committed yet.
        told: the history so far, for messages.
    """

    spark: SparkSession
    table: sm.Table
    folder: Path
    level: str
    version: int
    rng: random.Random
    rows: Rows = field(default_factory=Counter)
    states: list[tuple[sm.Table, Rows]] = field(default_factory=list)
    pending: list[Begun] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    # -- changes ------------------------------------------------------------------------------------------------------

    def frame(self, rows: Rows) -> DataFrame:
        ids, parts, numbers = zip(*sorted(rows.elements()), strict=True)
        columns = {"id": pa.array(ids, pa.int64()), "part": pa.array(parts), "n": pa.array(numbers, pa.int32())}
        return local_frame(self.spark, pa.table(columns)).coalesce(1)

    def new_rows(self, parts: str = PARTS, limit: int = 2) -> Rows:
        first, chosen = self.rng.randrange(LAST_ID), self.rng.sample(parts, self.rng.randint(1, min(limit, len(parts))))
        return Counter((first + i, chosen[i % len(chosen)], self.rng.randrange(100)) for i in range(3))

    def scope(self) -> Scope:
        parts = frozenset(self.rng.choice(PARTS)) if self.rng.random() < 0.7 else frozenset(PARTS)
        if len(parts) == 1 and self.rng.random() < 0.4:
            return Scope(parts)
        if self.rng.random() < 0.4:
            low = self.rng.randrange(0, LAST_ID, BLOCK)
            return Scope(parts, low, low + BLOCK)
        low = self.rng.randrange(LAST_ID)
        return Scope(parts, low, low + self.rng.randint(1, 8))

    def append(self) -> Change:
        rows = self.new_rows()
        return Change(
            f"append {sorted(rows)}",
            lambda tx, notes: tx.append(self.frame(rows), snapshot_properties=notes),
            lambda _: (Counter(), rows), None, "none",
        )  # fmt: skip

    def delete(self) -> Change:
        scope = self.scope()
        return Change(
            f"delete {scope.text}",
            lambda tx, notes: tx.delete(scope.text, snapshot_properties=notes),
            lambda rows: (scope.of(rows), Counter()), scope, self.level, by_filter=True,
        )  # fmt: skip

    def update(self) -> Change:
        scope, part = self.scope(), self.rng.choice([None, *PARTS])
        assignments: dict[str, Any] = {"n": F.col("n") + 1} if part is None else {"part": part}

        def split(rows: Rows) -> tuple[Rows, Rows]:
            matching = scope.of(rows)
            new: Rows = Counter()
            for (i, old, n), count in matching.items():
                new[(i, old, n + 1) if part is None else (i, part, n)] += count
            return matching, new

        return Change(
            f"update {scope.text}: {part or 'n + 1'}",
            lambda tx, notes: tx.update(assignments, scope.text, snapshot_properties=notes),
            split, scope, self.level,
        )  # fmt: skip

    def upsert(self) -> Change:
        first = self.rng.randrange(LAST_ID)
        new = {i: (i, self.rng.choice(PARTS), 200 + i) for i in range(first, first + 3)}
        source = Counter(new.values())

        def split(rows: Rows) -> tuple[Rows, Rows]:
            matched = Counter({row: count for row, count in rows.items() if row[0] in new})
            changed = Counter({row: count for row, count in matched.items() if row != new[row[0]]})
            added: Rows = Counter()
            for row, count in changed.items():
                added[new[row[0]]] += count
            present = {row[0] for row in matched}
            added.update(row for i, row in new.items() if i not in present)
            return changed, added

        return Change(
            f"upsert {sorted(source)}",
            lambda tx, notes: tx.upsert(self.frame(source), ["id"], snapshot_properties=notes),
            split, Scope(low=first, high=first + 3), self.level,
        )  # fmt: skip

    def merge(self) -> Change:
        first = self.rng.randrange(LAST_ID)
        source: Rows = Counter((i, self.rng.choice(PARTS), 300 + i) for i in range(first, first + 3))
        new = {row[0]: row for row in source}

        def write(tx: RowTransaction[Any], notes: dict[str, str]) -> object:
            merge = tx.merge(self.frame(source), on=["id"], snapshot_properties=notes)
            merge = merge.when_matched("target.n < 50").delete()
            return merge.when_matched().update({"n": F.col("source.n")}).when_not_matched().insert_all().merge()

        def split(rows: Rows) -> tuple[Rows, Rows]:
            matched = Counter({row: count for row, count in rows.items() if row[0] in new})
            added: Rows = Counter()
            for (i, part, n), count in matched.items():
                if n >= 50:
                    added[i, part, new[i][2]] += count
            present = {row[0] for row in matched}
            added.update(row for i, row in new.items() if i not in present)
            return matched, added

        return Change(f"merge {sorted(source)}", write, split, Scope(low=first, high=first + 3), self.level)

    def overwrite(self) -> Change:
        scope, rows = self.scope(), self.new_rows()
        level: Any = self.rng.choice([None, self.level])
        return Change(
            f"overwrite {scope.text}: {sorted(rows)}",
            lambda tx, notes: tx.overwrite(self.frame(rows), scope.text, snapshot_properties=notes, isolation=level),
            lambda old: (scope.of(old), rows), scope, level or "snapshot", by_filter=True,
        )  # fmt: skip

    def replace_partitions(self) -> Change:
        rows = self.new_rows()
        scope = Scope(frozenset(row[1] for row in rows))
        level: Any = self.rng.choice([None, self.level])
        return Change(
            f"replace partitions {sorted(rows)}",
            lambda tx, notes: tx.dynamic_partition_overwrite(
                self.frame(rows), snapshot_properties=notes, isolation=level
            ),
            lambda old: (scope.of(old), rows), scope, level or "none", by_filter=True,
        )  # fmt: skip

    def equality_delete(self) -> Change:
        part, first = self.rng.choice(PARTS), self.rng.randrange(LAST_ID)
        scope = Scope(frozenset(part), first, first + 3)
        keys: Rows = Counter((i, part, 0) for i in range(first, first + 3))
        level: Any = self.rng.choice([None, self.level])
        return Change(
            f"equality delete {scope.text}",
            lambda tx, notes: tx.equality_delete(self.frame(keys), ["id"], snapshot_properties=notes, isolation=level),
            lambda rows: (scope.of(rows), Counter()), scope, level or "none", by_filter=True,
        )  # fmt: skip

    # -- turns --------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a change on the newest state, or on an earlier one."""
        table, rows = self.states[-1] if self.rng.random() < 0.7 else self.rng.choice(self.states[-4:])
        head = table.current_snapshot()
        assert head is not None
        number = len(self.told)
        if self.rng.random() < 0.05:
            plan = table.maintenance.rewrite_data_files(rewrite_all=True, snapshot_properties={"change": str(number)})
            plan.summary()
            change = Change(
                "rewrite data files", lambda *_: None, lambda _: (Counter(), Counter()), Scope(), "snapshot"
            )
            begun = Begun(number, change, plan.commit, head.snapshot_id, rows)
        else:
            make = [
                *([self.append] * 4), *([self.delete] * 2), *([self.update] * 2), self.upsert, self.merge,
                self.overwrite, self.replace_partitions, self.equality_delete,
            ]  # fmt: skip
            change = self.rng.choice(make)()
            tx: Any = table.transaction()
            change.write(tx, {"change": str(number)})
            begun = Begun(number, change, tx.commit, head.snapshot_id, rows)
        self.pending.append(begun)
        self.told.append(f"begin {begun}")

    def finish(self) -> None:
        """Commit a change that has begun, and compare the rows, or find the reason of its refusal."""
        begun = self.pending.pop(self.rng.randrange(len(self.pending)))
        before = self.table
        self.told.append(f"commit {begun}")
        try:
            begun.commit()
        except CommitConflictError as error:
            self.counts["refused"] += 1
            self.told[-1] += f": {error}"
            assert self.reason(begun), self.said("refused without a cause")
            assert self.table.refresh().metadata_location == before.metadata_location, self.said("refused, and there")
            return
        self.table = self.table.refresh()
        notes = [snapshot.summary.additional_properties.get("change") for snapshot in self.table.snapshots()
                 if snapshot.summary is not None]  # fmt: skip
        after: Rows = Counter(map(tuple, self.table.scan(selected_fields=("id", "part", "n")).to_df().collect()))
        is_there = self.table.metadata_location != before.metadata_location
        assert notes.count(str(begun.number)) == is_there, self.said("not there once")
        self.counts["committed"] += 1
        overlaps = self.table.snapshots()[-2].snapshot_id != begun.start
        self.counts["concurrent"] += is_there and overlaps
        outcomes = self.expected(begun)
        if not is_there:
            taken, added = begun.change.split(begun.rows)
            assert taken == added, self.said("a change that makes no snapshot")
            outcomes = [self.rows]
        assert after in outcomes, self.said(f"{sorted(after - outcomes[0])} more, {sorted(outcomes[0] - after)} less")
        self.rows = after
        self.states.append((self.table, after))

    def expected(self, begun: Begun) -> list[Rows]:
        """Return the possible rows after a committed change.

        A serializable change has its effect at its commit. Under snapshot isolation, it may also change only the rows
        that it read. A delete may find some of them already deleted.
        """
        taken, added = begun.change.split(self.rows)
        outcomes = [self.rows - taken + added]
        if begun.change.level == "snapshot":
            taken, added = begun.change.split(begun.rows)
            if taken <= self.rows or not added:
                outcomes.append(self.rows - taken + added)
        return outcomes

    def reason(self, begun: Begun) -> bool:
        """Return whether a commit since a change began has changed files of rows that the change read."""
        scope, level = begun.change.scope, begun.change.level
        if scope is None or level == "none":
            return False
        snapshots = self.table.snapshots()
        start = [snapshot.snapshot_id for snapshot in snapshots].index(begun.start)
        for snapshot in snapshots[start + 1 :]:
            assert snapshot.manifest_list is not None
            for manifest in avro_records(snapshot.manifest_list):
                if manifest["added_snapshot_id"] != snapshot.snapshot_id:
                    continue
                for entry in avro_records(manifest["manifest_path"]):
                    is_change = entry["status"] != 0 and entry["snapshot_id"] == snapshot.snapshot_id
                    if not is_change or not scope.may_hold(*place_of(entry["data_file"])):
                        continue
                    is_data, is_added = not entry["data_file"].get("content"), entry["status"] == 1
                    adds_rows = is_data and is_added and snapshot.operation != "replace"
                    counts = level == "serializable" or begun.change.by_filter
                    if (adds_rows and counts) or is_data != is_added:
                        return True
        return False

    def said(self, problem: str) -> str:
        return "\n".join([problem, *self.told])


def place_of(file: Any) -> tuple[str, int, int]:
    """Return the partition of a file, and the least and greatest id that it may contain or delete.

    Deletes count for their whole partition, since rewritten files may have rows that a change does not read.
    """
    if file.get("content"):
        return file["partition"]["part"], -1, 1 << 39
    bounds = [{item["key"]: item["value"] for item in file[name] or ()} for name in ("lower_bounds", "upper_bounds")]
    low, high = (struct.unpack("<q", values[1])[0] if 1 in values else None for values in bounds)
    return file["partition"]["part"], -1 if low is None else low, 1 << 39 if high is None else high


KINDS = [(version, mode, level) for version in (2, 3) for mode in MODES for level in ("serializable", "snapshot")]
CASES = (
    [(*kind, seed) for seed in range(SEED, SEED + (12 if SOAK else 1)) for kind in KINDS]
    if SOAK or STEPS
    else [(2, MODES[1], "snapshot", SEED), (3, MODES[0], "serializable", SEED)]
)


@pytest.mark.parametrize(("version", "mode", "level", "seed"), CASES)
def test_writers_that_overlap(
    interpreted: SparkSession, tmp_path: Path, version: int, mode: str, level: str, seed: int
) -> None:
    catalog = sm.load_catalog("test", type="hadoop", warehouse=str(tmp_path))
    catalog.create_namespace("db")
    properties = {f"write.{command}.mode": mode for command in COMMANDS}
    properties |= {f"write.{command}.isolation-level": level for command in COMMANDS}
    properties |= {"commit.retry.min-wait-ms": "1", "write.metadata.previous-versions-max": "1000"}
    rng = random.Random(f"{version} {mode} {level} {seed}")
    table = catalog.create_table(
        "db.t", SCHEMA, BY_PART, format_version=version, properties=properties, spark=interpreted
    )
    writers = Writers(interpreted, table, tmp_path, level, version, rng)
    for low in range(0, LAST_ID, BLOCK):
        block = Counter((i, PARTS[i % len(PARTS)], i * 3) for i in range(low, low + BLOCK))
        writers.table, writers.rows = writers.table.append(writers.frame(block)), writers.rows + block
    writers.states.append((writers.table, writers.rows))
    steps = STEPS or (40 if SOAK else 9)
    while len(writers.told) < steps or writers.pending:
        limit = rng.randint(2, 4)
        if len(writers.told) < steps and len(writers.pending) < limit:
            writers.begin()
        else:
            writers.finish()
    assert not unreached_files(writers.table), writers.said("files are left")
    print(f"v{version} {mode} {level} {seed}: {dict(writers.counts)}")  # noqa: T201
