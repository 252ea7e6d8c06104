"""Partition statistics equal the values and files of Iceberg's Java library, computed in full or incrementally."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sparkmeta as sm
from sparkmeta.errors import CommitConflictError, NoSuchSnapshotError, UnsupportedError, ValidationError
from sparkmeta.operations.filesystem import FileSystemOperations
from sparkmeta.spec.metadata import ancestors_of
from tests.commit.test_tree_faults import attempt
from tests.faults import FaultyFiles, Kind, faults
from tests.handmade import BY_ID, BY_PART, BY_RATIO, HandmadeTable
from tests.maintain.clones import clone
from tests.maintain.test_compact import append, delete, new_table
from tests.maintain.test_expire import change_refs, opened
from tests.peers import corpus as peers
from tests.peers.content_files import elements
from tests.peers.file_maker import local_path
from tests.peers.java import Java
from tests.peers.slices import SOAK
from tests.peers.workshop import MERGE_ON_READ, Workshop
from tests.rows.test_changelog import History

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES = peers.names() if SOAK else [
    "identity_others_v3", "spec_evolution_v2", "spec_dropped_source_v2", "equality_across_specs_v3",
    "deletes_by_partition_v2", "emptied_v2", "expired_v1", "hostile_columns_v2", "identity_u_v2", "types_v2",
]  # fmt: skip
COUNTS = (
    "data_record_count", "data_file_count", "total_data_file_size_in_bytes", "position_delete_record_count",
    "position_delete_file_count", "equality_delete_record_count", "equality_delete_file_count", "dv_count",
)  # fmt: skip


def file_rows(location: str) -> list[dict[str, Any]]:
    """Return the rows of a statistics file, by pyarrow."""
    return pq.read_table(local_path(location)).to_pylist()


def shape(location: str) -> list[Any]:
    """Return the field ids, names, types and repetition of a statistics file."""
    return _shape(pq.read_schema(local_path(location)))


def _shape(fields: Any) -> list[Any]:
    shown = []
    for field in fields:
        kind = _shape(field.type) if field.name == "partition" else str(field.type)
        shown.append((field.metadata[b"PARQUET:field_id"], field.name, kind, field.nullable))
    return shown


def comparable(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(repr(row) for row in rows)


def comparable_counts(rows: list[dict[str, Any]]) -> Counter[str]:
    """Return the rows without the partition, as from `JavaStatistics.scanned`."""
    names = ("spec_id", *COUNTS, "last_updated_at", "last_updated_snapshot_id")
    return Counter(repr([row.get(name) for name in names]) for row in rows)


class JavaStatistics:
    """Java's computation of partition statistics of a table in a folder."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        self.java = Java(spark)
        conf = self.java.session.sessionState().newHadoopConf()
        self.tables, self.location = self.java.iceberg.hadoop.HadoopTables(conf), location

    @property
    def table(self) -> Any:
        return self.tables.load(self.location)

    def compute(self, snapshot_id: int, *, register: bool = False) -> str | None:
        """Write a new statistics file, and return its path; None if there are no rows."""
        table = self.table
        file = self.java.iceberg.PartitionStatsHandler.computeAndWriteStatsFile(
            table, self.java.jvm.java.lang.Long.valueOf(snapshot_id)
        )
        if file is None:
            return None
        if register:
            table.updatePartitionStatistics().setPartitionStatistics(file).commit()
        return str(file.path())

    def scanned(self, snapshot_id: int) -> Counter[str]:
        """Return the registered statistics of a snapshot, as Java reads them."""
        rows = self.table.newPartitionStatisticsScan().useSnapshot(snapshot_id).scan()
        counters = []
        for row in elements(rows):
            values = [
                row.specId(), row.dataRecordCount(), row.dataFileCount(), row.totalDataFileSizeInBytes(),
                row.positionDeleteRecordCount(), row.positionDeleteFileCount(), row.equalityDeleteRecordCount(),
                row.equalityDeleteFileCount(), row.dvCount(), row.lastUpdatedAt(), row.lastUpdatedSnapshotId(),
            ]  # fmt: skip
            counters.append(repr(values))
        return Counter(counters)


def partition_key(row: Any) -> tuple[Any, ...]:
    return row["spec_id"], tuple(row["partition"].asDict().items())


def changed(model: dict[Any, dict[str, Any]], table: sm.Table, entry: Any, sign: int) -> None:
    """Count an entry of `inspect.entries` in a model, by a sign. The sign 0 counts only its update."""
    file = entry.data_file
    row = model.setdefault(partition_key(file), dict.fromkeys(COUNTS, 0) | {"at": None, "by": None})
    kind = ("data", "position_delete", "equality_delete")[file.content]
    is_vector = file.file_format == "PUFFIN"
    row[f"{kind}_record_count"] += sign * file.record_count
    row["dv_count" if is_vector else f"{kind}_file_count"] += sign
    if file.content == 0:
        row["total_data_file_size_in_bytes"] += sign * file.file_size_in_bytes
    snapshot = table.metadata.snapshot_by_id(entry.snapshot_id)
    if snapshot is not None and (row["at"] is None or row["at"] < snapshot.timestamp_ms):
        row["at"], row["by"] = snapshot.timestamp_ms, snapshot.snapshot_id


def in_full(table: sm.Table, snapshot_id: int) -> dict[Any, dict[str, Any]]:
    """Return the expected statistics of a snapshot, by its entries."""
    model: dict[Any, dict[str, Any]] = {}
    for entry in table.inspect.entries(snapshot_id).collect():
        changed(model, table, entry, int(entry.status != 2))
    return model


def since(table: sm.Table, base: int, snapshot_id: int) -> dict[Any, dict[str, Any]]:
    """Return expected incremental statistics: an ancestor's, plus the changes of every later snapshot."""
    model = in_full(table, base)
    chain, current = [], snapshot_id
    while current != base:
        chain.append(current)
        current = table.metadata.snapshot_by_id(current).parent_snapshot_id  # type: ignore[union-attr, assignment]
    for later_id in reversed(chain):
        for entry in table.inspect.entries(later_id).collect():
            if entry.snapshot_id == later_id and entry.status:
                changed(model, table, entry, 1 if entry.status == 1 else -1)
    return model


def shown(table: sm.Table, snapshot_id: int | None = None) -> dict[Any, dict[str, Any]]:
    """Return the statistics of a snapshot as users see them, in the form of a model."""
    rows = [row.asDict() for row in table.inspect.partition_statistics(snapshot_id).collect()]
    names = [name for name in COUNTS if name in rows[0]]
    model = {
        partition_key(row): {name: row[name] for name in names}
        | {"at": row["last_updated_at"], "by": row["last_updated_snapshot_id"]}
        for row in rows
    }
    assert len(model) == len(rows)
    assert {row["total_record_count"] for row in rows} == {None}
    return model


def without_vectors(model: dict[Any, dict[str, Any]], table: sm.Table) -> dict[Any, dict[str, Any]]:
    """Return the model with the columns of the table's format version."""
    gone = "dv_count" if table.format_version < 3 else ""
    return {key: {name: value for name, value in row.items() if name != gone} for key, row in model.items()}


def assert_incremental(plan: Any, base: int) -> None:
    summary = plan.summary()
    assert (summary.method, summary.base_snapshot_id) == ("incremental", base)
    assert summary.manifests == plan.to_df().count()
    assert summary.bytes == sum(row.file_size_in_bytes for row in plan.to_df().collect())
    plan.commit()
    assert plan.result()["committed"]["method"] == "incremental"


# -- beside Java -----------------------------------------------------------------------------------------------------


@pytest.mark.java
@pytest.mark.parametrize("name", NAMES)
def test_equal_to_java(name: str, corpus: peers.Corpus, spark: SparkSession, tmp_path: Path) -> None:
    """For every snapshot, all entries are counted, and Java reads the file."""
    peer = corpus.table(name)
    table = clone(peer, tmp_path / "ours")
    if not any(spec["fields"] for spec in peer.metadata.get("partition-specs", [])):
        with pytest.raises(ValidationError, match="the table has no partitions"):
            table.maintenance.compute_partition_stats()
        return
    java = JavaStatistics(spark, clone(peer, tmp_path / "java").location())
    java.table.updateProperties().set("write.format.default", "parquet").commit()
    for snapshot in table.metadata.snapshots if SOAK else table.metadata.snapshots[-1:]:
        expected = java.compute(snapshot.snapshot_id)
        plan = table.maintenance.compute_partition_stats(snapshot.snapshot_id, full=True)
        committed = plan.commit()
        result = plan.result()["committed"]
        if expected is None:
            assert (result, committed) == (None, table)
            continue
        ours = result["statistics_path"]
        assert shape(ours) == shape(expected)
        assert comparable(file_rows(ours)) == comparable(file_rows(expected))
        assert result["partitions"] == len(file_rows(ours))
        read = JavaStatistics(spark, committed.location()).scanned(snapshot.snapshot_id)
        assert read == comparable_counts(file_rows(ours))


@pytest.mark.java
@pytest.mark.parametrize(("version", "seed"), [*product([2, 3], range(20))] if SOAK else [(2, 1), (3, 2)])
def test_random_histories(spark: SparkSession, version: int, seed: int) -> None:
    """The values equal Java's and a model's: in full and incrementally, from our file and Java's, Parquet and Avro."""
    rng = random.Random(seed)
    shop = Workshop(Java(spark), f"statistics_{version}_{seed}")
    shop.create("id INT, name STRING, part STRING", "part", version=version, properties=MERGE_ON_READ)
    history = History(shop, rng)
    history.insert()
    for step in range(9):
        history.step()
        change_refs(shop, rng, step)
        if step == 4:
            shop.sql("ALTER TABLE {t} ADD PARTITION FIELD bucket(2, id)")
    table = opened(shop)
    java = JavaStatistics(spark, table.location())
    head = table.metadata.current_snapshot_id
    assert head is not None
    expected = java.compute(head)
    plan = table.maintenance.compute_partition_stats(full=True)
    table = plan.commit()
    assert comparable(file_rows(plan.result()["committed"]["statistics_path"])) == comparable(file_rows(str(expected)))
    assert shown(table) == without_vectors(in_full(table, head), table)
    ancestors = [ancestor.snapshot_id for ancestor in ancestors_of(table.metadata, head)][1:]
    base = rng.choice(ancestors)
    shop.set(write__format__default=rng.choice(["parquet", "avro"]))
    by_java = rng.random() < 0.5
    if by_java:
        assert java.compute(base, register=True)
    else:
        table.refresh().maintenance.compute_partition_stats(base, full=True).commit()
    java.table.updatePartitionStatistics().removePartitionStatistics(head).commit()
    expected = java.compute(head)
    table = table.refresh()
    plan = table.maintenance.compute_partition_stats()
    assert_incremental(plan, base)
    table = table.refresh()
    model = since(table, base, head)
    assert shown(table) == without_vectors(model, table)
    read = JavaStatistics(spark, table.location())
    assert read.scanned(head) == comparable_counts(file_rows(plan.result()["committed"]["statistics_path"]))
    if str(expected).endswith("parquet"):
        ours = file_rows(plan.result()["committed"]["statistics_path"])
        assert comparable(ours) == comparable(file_rows(str(expected)))


@pytest.mark.java
def test_a_partition_field_that_was_dropped(spark: SparkSession) -> None:
    """Java merges by positions in the tuple, and so mixes partitions of a spec whose fields are not the first ones."""
    shop = Workshop(Java(spark), "statistics_of_a_dropped_field")
    shop.create("id INT, a STRING, b STRING", "a, b")
    shop.insert("1, 'x', 'p'", "2, 'y', 'q'")
    shop.sql("ALTER TABLE {t} DROP PARTITION FIELD a")
    shop.insert("3, 'x', 'p'", "4, 'x', 'q'", "5, 'x', NULL")
    table = opened(shop)
    base = table.metadata.current_snapshot_id
    assert base is not None
    table.maintenance.compute_partition_stats().commit()
    shop.sql("REFRESH TABLE {t}")
    shop.insert("6, 'x', 'q'")
    shop.sql("DELETE FROM {t} WHERE b = 'p'")
    table = table.refresh()
    assert_incremental(table.maintenance.compute_partition_stats(), base)
    table = table.refresh()
    head = table.metadata.current_snapshot_id
    assert head is not None
    assert shown(table) == without_vectors(since(table, base, head), table)
    counts = {(key[0], *dict(key[1]).values()): row["data_file_count"] for key, row in shown(table).items()}
    assert counts == {(0, "x", "p"): 0, (0, "y", "q"): 1, (1, None, "p"): 0, (1, None, "q"): 2, (1, None, None): 1}


# -- trees -----------------------------------------------------------------------------------------------------------


@pytest.mark.java
def test_a_tree_has_the_statistics_of_a_list(spark: SparkSession, tmp_path: Path) -> None:
    """A tree with the same commits as a table of version 3, in full and incrementally, also after a compaction."""
    shop = Workshop(Java(spark), "statistics_of_a_tree")
    shop.create("id INT, name STRING, part STRING", "part", version=3, properties=MERGE_ON_READ)
    history = History(shop, random.Random(4))
    # Files are removed only before there are deletes, which the copied commits would not remove.
    for step in (history.insert, history.insert, history.delete_partition, history.insert, history.delete):
        step()
    for step in (history.delete_by_equality, history.update, history.insert):
        step()
    source = sm.load_table(shop.metadata_location, spark=spark)
    catalog = sm.load_catalog("trees", type="hadoop", warehouse=f"file://{tmp_path}", spark=spark)
    eager = {"write.tree.direct-files": "1"}
    tree = catalog.create_table("n.t", source.schema(), source.spec(), properties=eager, format_version=4)
    twins: dict[int, int] = {}
    for snapshot in source.metadata.snapshots:
        changes = source.file_changes(snapshot.parent_snapshot_id, snapshot.snapshot_id)
        added, removed = (changes.where(f"change_type = '{kind}'") for kind in ("added", "removed"))
        with catalog.load_table("n.t").transaction() as tx:
            update = tx.update_snapshot().append(added.where("content = 0"))
            update.row_delta(deletes=added.where("content <> 0"), removed=removed.where("content = 0"))
        tree = catalog.load_table("n.t")
        twins[snapshot.snapshot_id] = tree.metadata.current_snapshot_id or 0
    times = {each.snapshot_id: each.timestamp_ms for each in tree.metadata.snapshots}
    first, *_, middle, head = twins
    for base, end in ((None, middle), (first, head), (middle, head)):
        if base is not None:
            tree = tree.refresh().maintenance.compute_partition_stats(twins[base], full=True).commit()
        plan = tree.maintenance.compute_partition_stats(twins[end], full=base is None)
        assert plan.summary().method == ("full" if base is None else "incremental")
        tree = plan.commit()
        model = in_full(source, end) if base is None else since(source, base, end)
        expected = {key: row | {"by": twins[row["by"]], "at": times[twins[row["by"]]]} for key, row in model.items()}
        of_tree = shown(tree, twins[end])
        assert live_counts(of_tree) == live_counts(expected)
        if base is not None:
            assert of_tree == expected
        tree = without_statistics(tree, twins[end])
    tree = tree.maintenance.compute_partition_stats().commit()
    tree = tree.maintenance.compact_manifests(max_root_files=0).commit()
    before, after = shown(tree, twins[head]), tree.maintenance.compute_partition_stats()
    assert after.summary().base_snapshot_id == twins[head]
    assert shown(after.commit()) == before


def live_counts(model: dict[Any, dict[str, Any]]) -> dict[Any, list[int]]:
    """Return the counts of partitions that have files."""
    counts = {key: [row[name] for name in COUNTS] for key, row in model.items()}
    return {key: values for key, values in counts.items() if any(values)}


def without_statistics(table: sm.Table, snapshot_id: int) -> sm.Table:
    """Return the table without the partition statistics of a snapshot."""
    others = [file for file in table.metadata.partition_statistics if file.snapshot_id != snapshot_id]
    changed = table.metadata.model_copy(update={"partition_statistics": others})
    return table.at(table.operations.commit(table.version, changed))


def test_updates_of_a_tree(spark: SparkSession, tmp_path: Path) -> None:
    """A file that the snapshot removed counts as an update of its partition, in the root and in a leaf."""
    table = new_table(spark, tmp_path)
    for part in ("a", "b", None):
        table = append(table, *({"a": (1, 2), "b": (3, 5), None: (4, 8)}[part]), part=part)
    first = {part: snapshot.snapshot_id for part, snapshot in zip("ab-", table.metadata.snapshots, strict=True)}
    table = delete(table, 1)
    plan = table.maintenance.compute_partition_stats()
    assert plan.summary().method == "full"
    table = plan.commit()
    head = table.metadata.current_snapshot_id
    rows = {key[1]: (row["data_file_count"], row["by"]) for key, row in shown(table).items()}
    tuples = {
        (("s", part), ("id_bucket", bucket)) for part, bucket in [("a", 1), ("a", 2), ("b", 3), ("b", 1), (None, 0)]
    }
    assert rows == dict.fromkeys(tuples) | {
        (("s", "a"), ("id_bucket", 1)): (0, head), (("s", "a"), ("id_bucket", 2)): (1, first["a"]),
        (("s", "b"), ("id_bucket", 3)): (1, first["b"]), (("s", "b"), ("id_bucket", 1)): (1, first["b"]),
        (("s", None), ("id_bucket", 0)): (2, first["-"]),
    }  # fmt: skip
    (file,) = table.metadata.partition_statistics
    order = [tuple(row["partition"].values()) for row in file_rows(file.statistics_path)]
    assert order == [(None, 0), ("a", 1), ("a", 2), ("b", 1), ("b", 3)], "sorted, nulls first"


# -- commits ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def tree(spark: SparkSession, tmp_path: Path) -> sm.Table:
    return append(append(new_table(spark, tmp_path), 1, 2), 3, 4, part="b")


def statistics_files(table: sm.Table) -> set[str]:
    folder = Path(local_path(table.location())) / "metadata"
    return {str(path) for path in folder.glob("partition-stats-*")}


def test_the_plan(tree: sm.Table) -> None:
    plan = tree.maintenance.compute_partition_stats()
    assert plan.result()["committed"] is None
    assert str(plan.summary()).splitlines()[0].endswith("are computed in full")
    assert not statistics_files(tree)
    after = plan.commit()
    assert plan.commit() is after
    assert [snapshot.snapshot_id for snapshot in after.metadata.snapshots] == [
        snapshot.snapshot_id for snapshot in tree.metadata.snapshots
    ]
    again = after.maintenance.compute_partition_stats()
    assert again.summary().is_empty
    assert again.to_df().collect() == []
    assert "has partition statistics" in str(again.summary())
    assert again.commit() is after
    replaced = after.maintenance.compute_partition_stats(full=True).commit()
    assert len(replaced.metadata.partition_statistics) == 1
    assert len(statistics_files(tree)) == 2
    assert shown(replaced) == shown(after)


def test_bad_options(tree: sm.Table, spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(NoSuchSnapshotError, match="has no snapshot 7"):
        tree.maintenance.compute_partition_stats(7)
    with pytest.raises(
        ValidationError, match=r"no partition statistics: snapshot \d+ has none; compute_partition_stats computes"
    ):
        tree.inspect.partition_statistics()
    with pytest.raises(UnsupportedError):
        sm.load_table(tree.metadata_location, spark=spark).maintenance.compute_partition_stats()
    empty = new_table(spark, tmp_path / "empty")
    plan = empty.maintenance.compute_partition_stats()
    assert plan.summary().is_empty
    assert plan.commit() is empty
    assert "the table is empty" in str(plan.summary())
    with pytest.raises(ValidationError, match="no partition statistics: the table is empty"):
        empty.inspect.partition_statistics()
    assert not statistics_files(empty)


def test_specs_that_share_a_field_id(spark: SparkSession, tmp_path: Path) -> None:
    """Statistics name partition fields by their ids alone."""
    HandmadeTable(tmp_path, version=2, specs=((), BY_PART, BY_RATIO, BY_RATIO, BY_ID)).write()
    table = sm.load_table(f"file://{tmp_path}", spark=spark)
    with pytest.raises(
        UnsupportedError, match=r"partition field id 1000 of spec [14] is another field in another spec"
    ):
        table.maintenance.compute_partition_stats()


@pytest.mark.parametrize("damage", ["gone", "cut", "other"])
def test_a_damaged_base(tree: sm.Table, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    """All entries are counted instead, also if the base's counts are smaller than the later removals."""
    before = tree.maintenance.compute_partition_stats().commit()
    (file,) = before.metadata.partition_statistics
    path = Path(local_path(file.statistics_path))
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:200])
    else:
        rows = pq.read_table(path)
        column_index = rows.column_names.index("data_record_count")
        few = rows.set_column(column_index, rows.schema.field(column_index), pa.array([1] * len(rows), pa.int64()))
        pq.write_table(few, path)
    after = delete(before, 1)
    plan = after.maintenance.compute_partition_stats()
    assert plan.summary().method == "incremental"
    after = plan.commit()
    assert plan.result()["committed"]["method"] == "full"
    assert path.name in caplog.text
    assert {row["data_file_count"] for row in shown(after).values()} == {0, 1}


def test_other_commits_come_first(tree: sm.Table) -> None:
    """The file is written once, and registered in the newest metadata. It is deleted if its snapshot has expired."""
    plan = tree.maintenance.compute_partition_stats()
    others = append(append(tree, 7), 8)
    after = plan.commit()
    assert len(statistics_files(tree)) == 1
    assert after.metadata.current_snapshot_id == others.metadata.current_snapshot_id
    assert [file.snapshot_id for file in after.metadata.partition_statistics] == [tree.metadata.current_snapshot_id]
    plan = after.maintenance.compute_partition_stats(tree.metadata.snapshots[0].snapshot_id)
    expired = after.maintenance.expire_snapshots(older_than=4_000_000_000_000, cleanup="none").commit()
    assert expired.metadata.partition_statistics == []
    before = statistics_files(tree)
    with pytest.raises(CommitConflictError, match="has expired: it can't get statistics"):
        plan.commit()
    assert statistics_files(tree) == before


def test_orphans_and_expiry_know_the_file(tree: sm.Table) -> None:
    table = tree.maintenance.compute_partition_stats().commit()
    (file,) = table.metadata.partition_statistics
    path = local_path(file.statistics_path)
    stray = path.replace(".parquet", "-stray.parquet")
    Path(stray).write_bytes(b"")
    orphans = table.maintenance.remove_orphan_files(older_than=4_000_000_000_000, force=True)
    assert stray in {local_path(row.file_path) for row in orphans.to_df().collect()}
    orphans.commit()
    assert statistics_files(table) == {path}
    table = append(table, 9)
    plan = table.maintenance.expire_snapshots(older_than=4_000_000_000_000)
    assert ("partition statistics file", file.statistics_path) in {
        (row.content, row.file_path) for row in plan.to_df().collect()
    }


def test_an_error_after_the_commit_keeps_the_file(tree: sm.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    swap = FileSystemOperations.commit

    def interrupted(self: FileSystemOperations, base: Any, metadata: Any) -> Any:
        swap(self, base, metadata)
        raise RuntimeError("a signal's handler")

    monkeypatch.setattr(FileSystemOperations, "commit", interrupted)
    with pytest.raises(RuntimeError, match="handler"):
        tree.maintenance.compute_partition_stats().commit()
    after = tree.refresh()
    (registered,) = (local_path(file.statistics_path) for file in after.metadata.partition_statistics)
    assert registered in statistics_files(after)


def test_faults(tree: sm.Table) -> None:
    """The table has its complete statistics or none.

    A file that is not registered is deleted, or its outcome is unknown.
    """
    folder = Path(local_path(tree.location()))
    contents = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    class Stage:
        """A stage for `attempt`."""

        def commit(self, driver: FaultyFiles) -> None:
            for path in [path for path in folder.rglob("*") if path.is_file()]:
                path.unlink()
            for path, content in contents.items():
                path.write_bytes(content)
            table = sm.load_table(tree.location(), spark=tree.state.spark)
            assert isinstance(table.operations, FileSystemOperations)
            faulty = replace(table, operations=replace(table.operations, files=driver))
            faulty.maintenance.compute_partition_stats().commit()

    stage: Any = Stage()
    candidates = list(faults(stage.commit))
    assert {fault.kind for fault in candidates} == set(Kind)
    for fault in candidates if SOAK else random.Random(3).sample(candidates, 4):
        outcome = attempt(stage, FaultyFiles(fault=fault))
        after = sm.load_table(tree.location(), spark=tree.state.spark)
        registered = {local_path(file.statistics_path) for file in after.metadata.partition_statistics}
        assert registered <= statistics_files(tree), f"{fault}: {outcome}"
        assert bool(registered) == (outcome == "committed") or outcome in ("unknown", "killed"), f"{fault}: {outcome}"
        if outcome == "failed":
            assert not statistics_files(tree), f"{fault}: {outcome}"
        assert len(shown(after.maintenance.compute_partition_stats().commit())) == 4
