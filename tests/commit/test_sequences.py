"""Random sequences of commits by Spark are compared with a model: at every snapshot, readers see the model's table.

Some sequences begin as a table of version 2 or 3 that Iceberg's Java library wrote, and is upgraded. SPARKMETA_SOAK=1
runs 300 sequences. SPARKMETA_SEEDS names others, such as 5 or 100-200.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType
from pyspark.sql import functions as F

import sparkmeta as sm
from tests.commit.java_start import JavaStart
from tests.commit.random_commits import (
    ON_STALE,
    OPERATIONS,
    PARTITION_FIELDS,
    Maker,
    Operation,
    Task,
    chosen,
    random_filter,
)
from tests.commit.table_model import Change, Delete, Draft, Planned, Snapshot, matches, plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "s", StringType()))
SPEC = PartitionSpec(
    PartitionField(2, 1000, IdentityTransform(), "s_identity"), PartitionField(1, 1001, BucketTransform(4), "id_bucket")
)
COMMITS = 8
# The number of ranges that are compared, in addition to all snapshots of a sequence.
RANGES = 2
LIMITS = {
    "direct-files": (0, 2, 5, 5, 100),
    "flush-data-files": (0, 3, 8, 100),
    "flush-delete-files": (0, 2, 100),
    "inline-vector-bytes": (0, 60, 16384),
    "inline-vectors-bytes": (0, 100, 1_000_000),
    "leaf-target-bytes": (1, 20_000, 1_000_000),
}
QUICK = {"commit.retry.min-wait-ms": "1", "write.tree.direct-files": "5", "write.tree.flush-data-files": "8"}


@dataclass
class Run:
    """A table, its model, and the history of both."""

    maker: Maker
    table: sm.Table
    snapshots: dict[int, Snapshot] = field(default_factory=dict)
    refs: dict[str, int] = field(default_factory=dict)
    earlier: sm.Table | None = None
    story: list[str] = field(default_factory=list)

    @property
    def rng(self) -> random.Random:
        return self.maker.rng

    @property
    def is_iceberg(self) -> bool:
        """Whether trees may have the layout of the Iceberg project."""
        return self.table.properties.get("write.tree.layout") == "iceberg"

    def head(self, branch: str) -> Snapshot | None:
        return self.snapshots[self.refs[branch]] if branch in self.refs else None

    # -- commits ----------------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Make a random commit, and follow it in the model."""
        before = self.table
        if self.rng.random() < 0.15:
            self._change_metadata()
        elif self.rng.random() < 0.15 and self.earlier is not None:
            self._change_files([chosen(self.rng, ON_STALE)], "main", self.earlier)
        else:
            count = self.rng.choice((1, 1, 1, 1, 2))
            operations = [chosen(self.rng, OPERATIONS) for _ in range(count)]
            self._change_files(operations, self.rng.choice(["main", "main", *self._branches()]), self.table)
        self.earlier = before

    def _branches(self) -> list[str]:
        return [name for name in self.refs if self.table.refs()[name].snapshot_ref_type == "branch"]

    def _change_files(self, operations: list[Operation], branch: str, table: sm.Table) -> None:
        head = self.head(branch)
        base = table.snapshot_by_name(branch)
        known = frozenset() if base is None else paths(self.snapshots[base.snapshot_id])
        known &= frozenset() if head is None else paths(head)
        tx = table.transaction()
        drafts: list[tuple[Task, Draft]] = []
        live = {} if head is None else dict(head.files)
        number = self.table.metadata.last_sequence_number
        for operation in operations:
            draft, update = Draft(live), tx.update_snapshot(branch)
            before = {} if head is None else head.files
            task = Task(self.maker, update, table, branch, draft, known, spec_of(table), before=before)
            operation(task)
            drafts.append((task, draft))
            known -= {key.path for key in draft.removed}
            live = draft.finished(number + len(drafts))[1]
        self.story.append(f"{branch}: {', '.join(operation.__name__ for operation in operations)}"
                          f"{' on an earlier version' if table is not self.table else ''}")  # fmt: skip
        expected = next((task.error for task, _ in drafts if task.error), None)
        if expected is not None:
            with pytest.raises(expected):
                tx.commit()
            self.table = self.table.refresh()
            assert [snapshot.snapshot_id for snapshot in self.table.snapshots()] == [*self.snapshots]
            return
        self.table = tx.commit()
        self._follow(branch, head, drafts, number, table)

    def _follow(
        self, branch: str, head: Snapshot | None, drafts: list[tuple[Task, Draft]], number: int, begun: sm.Table
    ) -> None:
        """Add the snapshots of a commit to the model.

        Args:
            begun: the table from which the transaction began. Its limits apply to the first attempt.
        """
        new = [
            snapshot.snapshot_id for snapshot in self.table.snapshots() if snapshot.snapshot_id not in self.snapshots
        ]
        assert len(new) == len(drafts)
        limit = int(begun.properties["write.tree.direct-files"])
        for step, (snapshot_id, (task, draft)) in enumerate(zip(new, drafts, strict=True), 1):
            added, files = draft.finished(number + step)
            few = task.fits_root(limit)
            head = Snapshot(snapshot_id, head, number + step, task.operation, added, draft.removed, files, few)
            self.snapshots[snapshot_id] = head
            self.refs[branch] = snapshot_id

    # -- changes of metadata ----------------------------------------------------------------------------------------

    def _change_metadata(self) -> None:
        change = self.rng.choice(
            [self._limits, self._limits, self._schema, self._spec, self._branch, self._tag, self._back]
        )
        self.story.append(change.__name__)
        with (tx := self.table.transaction()):
            change(tx)
        self.table = tx.commit()

    def _limits(self, tx: Any) -> None:
        tx.set_properties({f"write.tree.{name}": self.rng.choice(values) for name, values in LIMITS.items()})

    def _schema(self, tx: Any) -> None:
        count = len(self.table.schema().fields)
        tx.update_schema().add_column(f"more{count}", IntegerType()).commit()

    def _spec(self, tx: Any) -> None:
        names = spec_of(self.table)[1]
        name = self.rng.choice([*PARTITION_FIELDS])
        update = tx.update_spec()
        if name in names:
            update.remove_field(name)
        else:
            count = PARTITION_FIELDS[name]
            update.add_field(
                *(("s", IdentityTransform(), name) if count is None else ("id", BucketTransform(count), name))
            )
        update.commit()

    def _branch(self, tx: Any) -> None:
        self._name("branch", tx.manage_snapshots().create_branch, tx)

    def _tag(self, tx: Any) -> None:
        self._name("tag", tx.manage_snapshots().create_tag, tx)

    def _name(self, kind: str, create: Any, tx: Any) -> None:
        if self.snapshots:
            name, snapshot_id = f"{kind}{len(self.refs)}", self.rng.choice([*self.snapshots])
            create(snapshot_id, name).commit()
            self.refs[name] = snapshot_id

    def _back(self, tx: Any) -> None:
        head = self.head("main")
        if head is not None and head.parent is not None:
            tx.manage_snapshots().rollback_to_snapshot(head.parent.snapshot_id).commit()
            self.refs["main"] = head.parent.snapshot_id

    # -- checks of every table --------------------------------------------------------------------------------------

    def check(self) -> None:
        self.check_metadata()
        table = sm.load_table(self.table.location(), spark=self.maker.spark)
        row_ids: dict[int, dict[str, int | None]] = {}
        for snapshot in self.snapshots.values():
            planned = plan_of(table, snapshot)
            rows, expected = {path: row for path, (row, _) in planned.items()}, plan(snapshot.files)
            if self.is_iceberg:
                rows, expected = without_vector_numbers(rows), without_vector_numbers(expected)
            assert rows == expected, snapshot.snapshot_id
            row_ids[snapshot.snapshot_id] = {path: first for path, (_, first) in planned.items()}
            self.check_row_ids(snapshot, row_ids)
            parent = None if snapshot.parent is None else snapshot.parent.snapshot_id
            assert changes_of(table, parent, snapshot) == {
                (snapshot.snapshot_id, *change) for change in snapshot.changes()
            }
        for snapshot in self.rng.sample([*self.snapshots.values()], min(RANGES, len(self.snapshots))):
            line = ancestors(snapshot)
            start = self.rng.choice([None, *line[1:]])
            within = line if start is None else line[: line.index(start)]
            expected = {(ancestor.snapshot_id, *each) for ancestor in within for each in ancestor.changes()}
            assert changes_of(table, None if start is None else start.snapshot_id, snapshot) == expected
        for name in self.refs:
            self.check_filter(table, name)
            if table.snapshot_by_name(name).root_manifest is not None:  # type: ignore[union-attr]
                assert table.check(self.refs[name]).collect() == []

    def check_metadata(self) -> None:
        """Check ids, sequence numbers, row ids and summaries, by the metadata file alone."""
        table, before = self.table, 0
        assert [snapshot.snapshot_id for snapshot in table.snapshots()] == [*self.snapshots]
        assert {name: ref.snapshot_id for name, ref in table.refs().items()} == self.refs
        for snapshot in table.snapshots():
            expected = self.snapshots[snapshot.snapshot_id]
            parent = expected.parent
            assert snapshot.sequence_number == expected.sequence
            assert snapshot.parent_snapshot_id == (None if parent is None else parent.snapshot_id)
            if snapshot.first_row_id is not None:
                assert snapshot.first_row_id == before
                before += snapshot.added_rows
            summary = snapshot.summary.additional_properties
            of_parent = {} if parent is None else table.snapshot_by_id(parent.snapshot_id).summary.additional_properties  # type: ignore[union-attr]
            counts = {key: value for key, value in summary.items() if key.split("-")[0] in _COUNTS}
            if self.is_iceberg and not expected.few:
                # The root's own data files keep their deletion vectors, however many get one.
                counts.pop("changed-partition-count", None)
            assert counts == expected.summary(of_parent), snapshot.snapshot_id
            assert expected.operation in (None, snapshot.summary.operation.value)
        assert table.metadata.last_sequence_number == max(
            [0, *(snapshot.sequence for snapshot in self.snapshots.values())]
        )
        assert table.metadata.next_row_id == before  # type: ignore[union-attr]

    def check_row_ids(self, snapshot: Snapshot, known: dict[int, dict[str, int | None]]) -> None:
        """Check that files keep their row ids, new ids are in the commit's range, and no two rows share an id."""
        row_ids = known[snapshot.snapshot_id]
        earlier = {} if snapshot.parent is None else known[snapshot.parent.snapshot_id]
        records = {file.path: file.records for file in snapshot.files.values() if not file.content}
        new = {path for path, first in row_ids.items() if earlier.get(path) is None}
        looked_up = self.table.snapshot_by_id(snapshot.snapshot_id)
        assert looked_up is not None
        assert all(row_ids[path] == first for path, first in earlier.items() if first is not None and path in row_ids)
        if looked_up.first_row_id is None:
            assert set(row_ids.values()) <= {None}
            return
        end = looked_up.first_row_id + looked_up.added_rows
        spans = sorted((row_ids[path], row_ids[path] + records[path]) for path in row_ids)  # type: ignore[operator]
        assert all(span[1] <= following[0] for span, following in pairwise(spans))
        assert all(looked_up.first_row_id <= row_ids[path] <= end - records[path] for path in new)  # type: ignore[operator]
        if looked_up.root_manifest is not None and not any(first is None for first in earlier.values()):
            assert looked_up.added_rows == sum(records[path] for path in new)

    def check_filter(self, table: sm.Table, name: str) -> None:
        text, part, below = random_filter(self.rng)
        planned = {
            local(row.file_path) for row in table.scan(text).use_ref(name).plan_files().select("file_path").collect()
        }
        files = self.snapshots[self.refs[name]].files.values()
        assert planned == {file.path for file in files if not file.content and matches(file, part, below) != "none"}, (
            text
        )


def without_vector_numbers(planned: Mapping[str, Planned]) -> dict[str, Planned]:
    """Return planned files without the sequence numbers of deletion vectors, which entries of data files lack."""
    return {
        path: row._replace(
            deletes=frozenset(
                delete if delete.offset is None else delete._replace(sequence=0) for delete in row.deletes
            )
        )
        for path, row in planned.items()
    }


_COUNTS = {"added", "deleted", "removed", "total", "changed"}


def paths(snapshot: Snapshot) -> frozenset[str]:
    return frozenset(key.path for key in snapshot.files if not key.content)


def ancestors(snapshot: Snapshot | None) -> list[Snapshot]:
    """Return a snapshot and its ancestors, newest first."""
    lineage = []
    while snapshot is not None:
        lineage.append(snapshot)
        snapshot = snapshot.parent
    return lineage


def spec_of(table: sm.Table) -> tuple[int, list[str]]:
    return table.metadata.default_spec_id, [field.name for field in table.spec().fields]


def local(path: str) -> str:
    return path.removeprefix("file://")


def plan_of(table: sm.Table, snapshot: Snapshot) -> dict[str, tuple[Planned, int | None]]:
    """Return the planned row and the first row id by data file."""
    deletes = F.transform("deletes", lambda delete: F.struct(*(delete[name] for name in _DELETE)))
    rows = table.scan(snapshot_id=snapshot.snapshot_id).plan_files()
    columns = (
        "file_path",
        "record_count",
        "file_size_in_bytes",
        "data_sequence_number",
        "spec_id",
        "partition",
        "first_row_id",
    )
    specs = {spec_id: [field.name for field in spec.fields] for spec_id, spec in table.specs().items()}
    by_path = {}
    for row in rows.select(*columns, deletes.alias("deletes")).collect():
        names = specs[row.spec_id]
        tuple_of = row.partition.asDict() if row.partition is not None else {}
        # Version 4 spells local paths with their scheme.
        texts = [
            [local(value) if isinstance(value, str) else value for value in delete] for delete in row.deletes or []
        ]
        applied = [Delete(*values) for values in texts]
        assert len(applied) == len(set(applied))
        planned = Planned(row.record_count, row.file_size_in_bytes, row.data_sequence_number, row.spec_id,
                          tuple((name, tuple_of[name]) for name in names), frozenset(applied))  # fmt: skip
        assert local(row.file_path) not in by_path
        by_path[local(row.file_path)] = (planned, row.first_row_id)
    return by_path


_DELETE = ("file_path", "content_offset", "record_count", "data_sequence_number")


def changes_of(table: sm.Table, start: int | None, snapshot: Snapshot) -> set[tuple[Any, ...]]:
    rows = table.file_changes(start, snapshot.snapshot_id, columns=["content", "file_path", "content_offset"])
    changes = [
        (row.snapshot_id, *Change(row.change_type, row.content, local(row.file_path), row.content_offset,
                                  None if row.added_positions is None else tuple(row.added_positions)))
        for row in rows.collect()
    ]  # fmt: skip
    assert len(changes) == len(set(changes))
    return set(changes)


def seeds(slice_of: Iterable[int], soak: Iterable[int]) -> list[int]:
    """Return the seeds that SPARKMETA_SEEDS names, or else all of the soak, or else the slice."""
    named = os.environ.get("SPARKMETA_SEEDS")
    if named:
        first, _, last = named.partition("-")
        return [*range(int(first), int(last or first) + 1)]
    return [*(soak if os.environ.get("SPARKMETA_SOAK") == "1" else slice_of)]


def play(run: Run) -> None:
    try:
        for _ in range(COMMITS):
            run.commit()
        run.check()
    except BaseException as error:
        error.add_note("\n".join(run.story))
        raise


@pytest.mark.parametrize("layout", ["proposal", "iceberg"])
@pytest.mark.parametrize("seed", seeds(range(2), range(200)))
def test_sequences(interpreted: SparkSession, tmp_path: Path, layout: str, seed: int) -> None:
    spark = interpreted
    catalog = sm.load_catalog("test", type="hadoop", warehouse=f"file://{tmp_path}")
    properties = {**QUICK, "write.tree.layout": layout}
    table = catalog.create_table("db.t", SCHEMA, SPEC, properties=properties, format_version=4, spark=spark)  # type: ignore[attr-defined]
    play(Run(Maker(random.Random(seed), spark, tmp_path), table))


class Converting(Run):
    """A run that converts the tree between the layouts now and then."""

    is_iceberg = True

    def commit(self) -> None:
        if self.rng.random() < 0.8 or not self.refs:
            super().commit()
            return
        layout = "proposal" if self.table.properties["write.tree.layout"] == "iceberg" else "iceberg"
        self.story.append(f"convert to {layout}")
        number = self.table.metadata.last_sequence_number
        self.table = self.table.maintenance.convert_tree(layout).commit()
        # Earlier versions have another layout, and no expressions for new partition specs.
        self.earlier = None
        for branch in sorted(self._branches()):
            head, number = self.head(branch), number + 1
            assert head is not None
            new = self.table.refs()[branch].snapshot_id
            self.snapshots[new] = Snapshot(new, head, number, "replace", {}, {}, head.files)
            self.refs[branch] = new

    def _back(self, tx: Any) -> None:
        """Change a property instead: a snapshot with another layout takes no commits."""
        self._limits(tx)


@pytest.mark.parametrize("layout", ["proposal", "iceberg"])
@pytest.mark.parametrize("seed", seeds(range(1), range(100)))
def test_converted_sequences(interpreted: SparkSession, tmp_path: Path, layout: str, seed: int) -> None:
    catalog = sm.load_catalog("test", type="hadoop", warehouse=f"file://{tmp_path}")
    properties = {**QUICK, "write.tree.layout": layout}
    table = catalog.create_table("db.t", SCHEMA, SPEC, properties=properties, format_version=4, spark=interpreted)  # type: ignore[attr-defined]
    play(Converting(Maker(random.Random(f"convert {seed}"), interpreted, tmp_path), table))


@pytest.mark.java
@pytest.mark.parametrize("seed", seeds(range(1), range(100)))
def test_sequences_after_an_upgrade(interpreted: SparkSession, java_warehouse: str, tmp_path: Path, seed: int) -> None:
    spark = interpreted
    maker = Maker(random.Random(f"java {seed}"), spark, tmp_path)
    start = JavaStart.of(maker, f"sequence{seed}", SCHEMA, QUICK)
    table = sm.load_table(start.location, spark=spark).maintenance.upgrade(4).commit()
    play(Run(maker, table, start.snapshots, {"main": [*start.snapshots][-1]}))
