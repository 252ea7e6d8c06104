"""Pairs of changes: each of two is made on the same snapshot, and the second one is committed after the first.

Either the second one is a conflict, or the rows are equal to a serial order of both, by a model in plain Python. Under
snapshot isolation, the second one may also change just the rows that it has read. A conflict leaves no files, and needs
a changed file that the second change may have read.

`make test` tries few pairs of each kind of table. SPARKMETA_SOAK=1 tries many, and SPARKMETA_STEPS that number, seeded
by SPARKMETA_SEED.
"""

from __future__ import annotations

import os
import random
import struct
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyspark.sql import functions as F

import sparkmeta as sm
from sparkmeta.errors import CommitConflictError
from tests.frames import local_frame
from tests.maintain.test_expire import files_below
from tests.peers.slices import SOAK
from tests.write.test_changes import BY_PART, MODES, SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

STEPS, SEED = int(os.environ.get("SPARKMETA_STEPS", "0")), int(os.environ.get("SPARKMETA_SEED", "1"))
PARTS, LAST_ID, BLOCK = "abc", 12, 6
LEVELS = ("serializable", "snapshot")
NAN = float("nan")

Row = tuple[int, str, int]
Rows = Counter[Row]

# The rows of each appended block of ids; part c is in the second block only.
FIRST: list[Rows] = [
    Counter((i, PARTS[i % (2 + low // BLOCK)], i) for i in range(low, low + BLOCK)) for low in (0, BLOCK)
]
INITIAL: Rows = sum(FIRST, Counter())


@dataclass(frozen=True)
class Change:
    """A change of rows.

    Attributes:
        write: makes and commits the change.
        split: returns the rows that the change removes from given rows, and those that it adds.
        level: "serializable" or "snapshot"; "none" if the change reads no rows before its commit.
        parts, low, high: the partitions and ids, up to `high`, of the rows that it reads.
        at_commit: whether it may remove files by a filter, as of its commit.
        ignores_deletes: whether deletes of rows by others are never a conflict.
        rewrites: whether the rows stay the same.
        keeps_found: whether rows are not added if given rows have their keys.
    """

    name: str
    write: Callable[[sm.Table], object]
    split: Callable[[Rows], tuple[Rows, Rows]]
    level: str
    parts: str = PARTS
    low: int = 0
    high: int = 1 << 40
    at_commit: bool = False
    ignores_deletes: bool = False
    rewrites: bool = False
    keeps_found: Callable[[Rows], bool] = lambda _: False

    def on(self, rows: Rows) -> Rows:
        taken, added = self.split(rows)
        return rows - taken + added


@dataclass
class Changes:
    """Makes random changes."""

    spark: SparkSession
    rng: random.Random
    partitioned: bool
    version: int

    def any(self) -> Change:
        makers = [
            self.append,
            self.delete,
            self.delete,
            self.update,
            self.upsert,
            self.upsert,
            self.merge,
            self.overwrite,
        ]
        makers += [self.rewrite, self.removal_of_a_file]
        makers += [self.equality_delete] * (self.version > 1) + [self.replace_partitions] * self.partitioned
        return self.rng.choice(makers)()

    def rows(self, *, copies: float = 0.0) -> dict[int, Row]:
        """Return rows by id. Some are copies of the first rows. Often some or all ids are new."""
        first = self.rng.choice([self.rng.randrange(LAST_ID), LAST_ID - 2, LAST_ID - 2 if copies else LAST_ID * 2])
        known = {row[0]: row for row in INITIAL}
        new = {i: (i, self.rng.choice(PARTS), self.rng.randrange(LAST_ID)) for i in range(first, first + 3)}
        return {i: known[i] if i in known and self.rng.random() < copies else row for i, row in new.items()}

    def arrow(self, rows: Rows) -> pa.Table:
        ids, parts, numbers = zip(*sorted(rows.elements()), strict=True)
        return pa.table({"id": pa.array(ids, pa.int64()), "part": pa.array(parts), "n": pa.array(numbers, pa.int32())})

    def frame(self, rows: Rows) -> DataFrame:
        return local_frame(self.spark, self.arrow(rows)).coalesce(1)

    def level(self) -> Any:
        return self.rng.choice(LEVELS)

    def scope(self) -> tuple[str, dict[str, Any], Callable[[Rows], Rows]]:
        """Return a filter, the places of its rows, and a function that returns matching rows."""
        part = self.rng.choice([*PARTS, ""])
        low, high = self.rng.choice([(0, LAST_ID * 2), (0, BLOCK), (BLOCK, LAST_ID), (3, 5), (8, 13)])
        text = f"id >= {low} and id < {high}" + (f" and part = '{part}'" if part else "")
        parts = part or PARTS

        def matching(rows: Rows) -> Rows:
            return Counter({row: n for row, n in rows.items() if row[1] in parts and low <= row[0] < high})

        return text, {"parts": parts, "low": low, "high": high - 1}, matching

    # -- changes ------------------------------------------------------------------------------------------------------

    def append(self) -> Change:
        rows = Counter(self.rows().values())
        return Change(
            f"append {sorted(rows)}", lambda table: table.append(self.arrow(rows)), lambda _: (Counter(), rows), "none"
        )

    def delete(self) -> Change:
        (text, places, matching), level = self.scope(), self.level()
        return Change(
            f"delete {text}", lambda table: table.delete(text, isolation=level),
            lambda rows: (matching(rows), Counter()), level, **places, at_commit=True,
        )  # fmt: skip

    def update(self) -> Change:
        (text, places, matching), level = self.scope(), self.level()
        part = self.rng.choice([None, *PARTS])

        def split(rows: Rows) -> tuple[Rows, Rows]:
            added: Rows = Counter()
            for (i, old, n), count in matching(rows).items():
                added[(i, old, n + 1) if part is None else (i, part, n)] += count
            return matching(rows), added

        def write(table: sm.Table) -> object:
            return table.update({"n": F.col("n") + 1} if part is None else {"part": part}, text, isolation=level)

        return Change(f"update {text}: {part or 'n + 1'}", write, split, level, **places)

    def upsert(self) -> Change:
        new, level = self.rows(copies=0.8), self.level()
        updates, inserts = self.rng.choice([(True, True), (True, True), (False, True), (True, False)])

        def split(rows: Rows) -> tuple[Rows, Rows]:
            matched = {row: count for row, count in rows.items() if row[0] in new}
            taken = Counter({row: count for row, count in matched.items() if updates and row != new[row[0]]})
            added: Rows = Counter()
            for row, count in taken.items():
                added[new[row[0]]] += count
            present = {row[0] for row in matched}
            added.update(row for i, row in new.items() if inserts and i not in present)
            return taken, added

        def keeps_found(rows: Rows) -> bool:
            return inserts and any(row[0] in new and (not updates or row == new[row[0]]) for row in rows)

        names = {"when_matched_update_all": updates, "when_not_matched_insert_all": inserts}
        rows = self.rng.choice([self.arrow, self.frame])(Counter(new.values()))
        return Change(
            f"upsert {sorted(new.values())}, {updates}, {inserts}",
            lambda table: table.upsert(rows, ["id"], isolation=level, **names),
            split, level, low=min(new), high=max(new), keeps_found=keeps_found,
        )  # fmt: skip

    def merge(self) -> Change:
        new, level = self.rows(copies=0.4), self.level()
        deletes, updates, inserts, by_source = (self.rng.random() < 0.5 for _ in range(4))
        inserts = inserts or not (deletes or updates or by_source)
        least = self.rng.randrange(LAST_ID)

        def action(row: Row) -> str | None:
            if row[0] not in new:
                return "by source" if by_source and row[2] == 3 else None
            if deletes and row[2] < least:
                return "delete"
            return "update" if updates and row[2] != new[row[0]][2] else None

        def split(rows: Rows) -> tuple[Rows, Rows]:
            taken = Counter({row: count for row, count in rows.items() if action(row) is not None})
            added: Rows = Counter()
            for row, count in taken.items():
                if action(row) == "update":
                    added[row[0], row[1], new[row[0]][2]] += count
            present = {row[0] for row in rows}
            added.update(row for i, row in new.items() if inserts and i not in present)
            return taken, added

        def write(table: sm.Table) -> object:
            merge: Any = table.merge(self.frame(Counter(new.values())), on=["id"], isolation=level)
            merge = merge.when_matched(f"target.n < {least}").delete() if deletes else merge
            if updates:
                merge = merge.when_matched("target.n != source.n").update({"n": F.col("source.n")})
            merge = merge.when_not_matched().insert_all() if inserts else merge
            return (merge.when_not_matched_by_source("target.n = 3").delete() if by_source else merge).merge()

        def keeps_found(rows: Rows) -> bool:
            return inserts and any(row[0] in new and action(row) is None for row in rows)

        places = {} if by_source else {"low": min(new), "high": max(new)}
        flags = {"deletes": deletes and least, "updates": updates, "inserts": inserts, "by_source": by_source}
        return Change(f"merge {sorted(new.values())}, {flags}", write, split, level, **places, keeps_found=keeps_found)

    def overwrite(self) -> Change:
        (text, places, matching), level = self.scope(), self.level()
        rows = Counter(self.rows().values())
        return Change(
            f"overwrite {text}: {sorted(rows)}",
            lambda table: table.overwrite(self.arrow(rows), text, isolation=level),
            lambda old: (matching(old), rows), level, **places, at_commit=True,
        )  # fmt: skip

    def replace_partitions(self) -> Change:
        rows, level = Counter(self.rows().values()), self.rng.choice([None, *LEVELS])
        parts = "".join({row[1] for row in rows})
        return Change(
            f"replace partitions: {sorted(rows)}",
            lambda table: table.dynamic_partition_overwrite(self.arrow(rows), isolation=level),
            lambda old: (Counter({row: n for row, n in old.items() if row[1] in parts}), rows),
            level or "none", parts, at_commit=True,
        )  # fmt: skip

    def equality_delete(self) -> Change:
        new, level = self.rows(copies=1), self.rng.choice([None, *LEVELS])
        keys = {row[: 2 if self.partitioned else 1] for row in new.values()}
        return Change(
            f"equality delete {sorted(keys)}",
            lambda table: table.equality_delete(self.arrow(Counter(new.values())), ["id"], isolation=level),
            lambda rows: (Counter({row: n for row, n in rows.items() if row[: len(min(keys))] in keys}), Counter()),
            level or "none", low=min(new), high=max(new), ignores_deletes=True,
        )  # fmt: skip

    def rewrite(self) -> Change:
        return Change(
            "rewrite", lambda table: table.maintenance.rewrite_data_files(rewrite_all=True).commit(),
            lambda _: (Counter(), Counter()), "snapshot", rewrites=True,
        )  # fmt: skip

    def removal_of_a_file(self) -> Change:
        """Return the removal of a file by its name, whose rows have been read."""
        block, part = self.rng.choice([0, 1]), self.rng.choice(PARTS[:2])
        removed = Counter(row for row in FIRST[block] if row[1] == part or not self.partitioned)

        def write(table: sm.Table) -> object:
            ids, parts = pa.array([row[0] for row in removed]), {row[1] for row in removed}
            low, high = min(ids.to_pylist()), max(ids.to_pylist())
            files = table.inspect.arrow.files()
            rows = [
                index
                for index, file in enumerate(files.to_pylist())
                if not file["content"] and bounds(file) == (min(parts), max(parts), low, high)
            ]
            update: Any = table.transaction()
            update.update_snapshot().delete(files.take(rows)).validate_no_conflicts()
            return update.commit()

        return Change(
            f"remove the file of {sorted(removed)}", write, lambda rows: (rows & removed, Counter()), "serializable"
        )


def bounds(file: dict[str, Any]) -> tuple[str, str, int, int]:
    """Return the lowest and highest partition and id of a file; for a delete file, the ids that it may be about."""
    low, high = (dict(file[name] or ()) for name in ("lower_bounds", "upper_bounds"))
    if file["content"]:
        part = (file.get("partition") or {}).get("part")
        return part or PARTS[0], part or PARTS[-1], 0, 1 << 40
    (least,), (greatest,) = (struct.unpack("<q", of[1]) for of in (low, high))
    return low[2].decode(), high[2].decode(), least, greatest


def changed(before: pa.Table, after: pa.Table) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the files that were added to a table, and those that were removed."""
    old, new = (
        {(file["file_path"], file["content_offset"]): file for file in files.to_pylist()} for files in (before, after)
    )
    return [new[key] for key in new.keys() - old.keys()], [old[key] for key in old.keys() - new.keys()]


def may_conflict(first: Change, second: Change, before: pa.Table, after: pa.Table) -> bool:
    """Return whether the files that the first change added and removed are a cause to refuse the second one."""

    def is_read(file: dict[str, Any]) -> bool:
        least_part, most_part, low, high = bounds(file)
        parts = any(least_part <= part <= most_part for part in second.parts)
        return parts and low <= second.high and high >= second.low

    added, removed = changed(before, after)
    adds_rows = not first.rewrites and any(is_read(file) for file in added if not file["content"])
    if second.level == "none":
        return False
    if adds_rows and (second.level == "serializable" or second.at_commit):
        return True
    taken, _ = second.split(INITIAL)
    depends = second.level == "serializable" and second.keeps_found(INITIAL) and not first.rewrites
    if second.ignores_deletes or not (taken or second.at_commit or second.rewrites or depends):
        return False
    return any(map(is_read, removed)) or any(is_read(file) for file in added if file["content"])


def outcomes(first: Change, second: Change) -> list[Rows]:
    """Return the rows that both changes may result in."""
    after_first = first.on(INITIAL)
    orders = [second.on(after_first), first.on(second.on(INITIAL))]
    taken, added = second.split(INITIAL)
    if second.level == "snapshot" and (taken <= after_first or not added):
        orders.append(after_first - taken + added)
    return orders


def rows_of(table: sm.Table) -> Rows:
    columns = table.scan().to_arrow().select(["id", "part", "n"]).to_pydict().values()
    return Counter(zip(*columns, strict=True))


@pytest.mark.parametrize("seed", range(SEED, SEED + (12 if SOAK else 1)))
@pytest.mark.parametrize("is_partitioned", [False, True])
@pytest.mark.parametrize(
    ("version", "mode"), [(1, MODES[0]), *((version, mode) for version in (2, 3, 4) for mode in MODES)]
)
def test_pairs_of_changes(
    interpreted: SparkSession, tmp_path: Path, version: int, mode: str, is_partitioned: bool, seed: int
) -> None:
    rng = random.Random(f"{version} {mode} {is_partitioned} {seed}")
    changes = Changes(interpreted, rng, is_partitioned, version)
    properties = {f"write.{command}.mode": mode for command in ("delete", "update", "merge")}
    properties["commit.retry.min-wait-ms"] = "1"
    spec = BY_PART if is_partitioned else UNPARTITIONED_PARTITION_SPEC
    catalog = sm.load_catalog("pairs", type="hadoop", warehouse=str(tmp_path))
    start = catalog.create_table("db.t", SCHEMA, spec, format_version=version, properties=properties, spark=interpreted)
    for block in FIRST:
        start = start.append(changes.arrow(block))
    head, results = start.current_snapshot(), Counter[str]()
    assert head is not None
    for _ in range(STEPS or (25 if SOAK else 10)):
        start.refresh().manage_snapshots().rollback_to_snapshot(head.snapshot_id).commit()
        start = start.refresh()
        before, first, second = start.inspect.arrow.files(), changes.any(), changes.any()
        first.write(start)
        after = start.refresh()
        files, pair = files_below(tmp_path), f"{first.name}\n{second.name} ({second.level})"
        assert rows_of(after) == first.on(INITIAL), pair
        try:
            second.write(start)
            refusal = None
        except CommitConflictError as error:
            refusal = str(error)
        results["committed" if refusal is None else "refused"] += 1
        newest = start.refresh()
        if refusal is not None:
            assert may_conflict(first, second, before, after.inspect.arrow.files()), f"{pair}\nneedless: {refusal}"
            assert newest.metadata_location == after.metadata_location, pair
            assert files_below(tmp_path) == files, f"{pair}\nfiles are left"
        else:
            # A change without an effect makes no snapshot, and is as if it came first.
            rows, orders = rows_of(newest), outcomes(first, second)
            assert rows in orders, f"{pair}\n{sorted(rows - orders[0])} more, {sorted(orders[0] - rows)} less"
    assert len(results) == 2, results


@pytest.mark.parametrize(("version", "mode"), [(2, "copy-on-write"), (3, "merge-on-read"), (4, "merge-on-read")])
@pytest.mark.parametrize(("added", "row_filter", "conflicts"), [
    (NAN, "d > 5", True), (NAN, "d >= 5", True), (NAN, "d != 1", True), (NAN, "d < 0.25", False), (NAN, "d = 5", False),
    (2.0, "d > 5", False), (7.0, "d > 5", True),
])  # fmt: skip
def test_nan_is_above_all_numbers_for_conflicts(
    added: float, row_filter: str, conflicts: bool, version: int, mode: str, tmp_path: Path
) -> None:
    """A file of NaN and small numbers has small bounds, and yet has rows above each number."""
    catalog = sm.load_catalog("c", type="hadoop", warehouse=str(tmp_path))
    schema = pa.schema([("id", pa.int64()), ("d", pa.float64())])
    properties = {"write.delete.mode": mode, "write.delete.isolation-level": "serializable"}
    table = catalog.create_table("db.t", schema, format_version=version, properties=properties)
    table = table.append(pa.table({"id": [1, 2], "d": [1.0, 9.0]}, schema))
    with_nan = pa.table({"id": [3, 4], "d": [0.5, added]}, schema)
    refused = pytest.raises(CommitConflictError, match="added data that may match") if conflicts else nullcontext()
    with refused, table.transaction() as transaction:
        transaction.delete(row_filter)
        table.append(with_nan)
    assert {3, 4} <= {*table.refresh().scan().to_arrow().column("id").to_pylist()}
