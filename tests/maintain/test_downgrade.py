"""Trees become manifest lists of format version 3: other libraries read the tree's files, and continue from there."""

from __future__ import annotations

import json
import random
import runpy
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.table import StaticTable
from pyspark.sql import functions as F

import sparkmeta as sm
from sparkmeta.commit import lists
from sparkmeta.errors import CommitStateUnknownError, UnsupportedError, ValidationError
from sparkmeta.operations.filesystem import FileSystemOperations
from sparkmeta.snapshot import state as snapshot_state
from sparkmeta.spec.bitmap import PositionBitmap, write_deletion_vector
from sparkmeta.spec.entry import DELETE_FILE_PATH_ID
from sparkmeta.spec.puffin import deletion_vector_blob, write_puffin
from sparkmeta.storage.executors import ExecutorReader, ExecutorWriter
from tests.commit.test_transaction import SCHEMA, SPEC
from tests.commit.test_tree_faults import attempt
from tests.faults import FaultyFiles, faults, through
from tests.frames import local_frame
from tests.handmade import HandmadeTable, data, position_deletes
from tests.inspect.comparison import collected
from tests.maintain.clones import clone
from tests.maintain.test_commands import command
from tests.maintain.test_compact import append, delete, mask_rows, new_table, seen
from tests.maintain.test_expire import JOBS, files_below, opened, random_history
from tests.peers import corpus as peers
from tests.peers.file_maker import local_path
from tests.peers.java import At, Java
from tests.peers.slices import SOAK
from tests.peers.workshop import MERGE_ON_READ, Workshop
from tests.rows.comparison import row_texts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


CHOSEN = [
    "unknown_counts_v1", "spec_dropped_source_v2", "upgraded_with_deletes_v3", "upgraded_with_deletes_v4",
]  # fmt: skip
# Java's JSON of files fails on partitions of a column of a former type.
WITHOUT_JSON = ("spec_promoted_source", "replaced_retyped")
_OF_FILE = (
    "file_path", "file_format", "spec_id", "record_count", "file_size_in_bytes", "split_offsets", "sort_order_id",
    "first_row_id", "data_sequence_number",
)  # fmt: skip
_OF_DELETE = (
    "content", "file_path", "file_format", "file_size_in_bytes", "referenced_data_file", "content_offset",
    "content_size_in_bytes", "record_count", "data_sequence_number", "equality_ids",
)  # fmt: skip


def comparable(rows: list[dict[str, Any]]) -> list[str]:
    """Return planned files and their deletes, without the positions of their entries, and without partitions."""
    texts = []
    for row in rows:
        deletes = [[delete.get(name) for name in _OF_DELETE] for delete in row["deletes"]]
        texts.append(str([*(row[name] for name in _OF_FILE), deletes]))
    return sorted(texts)


def plans(table: sm.Table, snapshot_ids: list[int]) -> dict[int, list[str]]:
    frames = {snapshot_id: table.scan(snapshot_id=snapshot_id).plan_files() for snapshot_id in snapshot_ids}
    return {snapshot_id: comparable(rows) for snapshot_id, rows in collected(frames).items()}


def java_plans(table: sm.Table, snapshot_ids: list[int]) -> dict[int, list[str]]:
    java = Java(table.state.spark).table(table.metadata_location)
    return {snapshot_id: comparable(java.plan(at=At(snapshot_id=snapshot_id))) for snapshot_id in snapshot_ids}


def delete_files(table: sm.Table, paths: list[str]) -> sm.Table:
    with table.transaction() as tx:
        tx.update_snapshot().delete(local_frame(table.state.spark, pa.table({"file_path": paths})))
    return table.refresh()


@pytest.mark.java
@pytest.mark.parametrize("name", peers.names() if SOAK else CHOSEN)
def test_a_table_comes_back(name: str, corpus: peers.Corpus, tmp_path: Path) -> None:
    """A table of another library is upgraded, loses files, and is downgraded. Tags keep their snapshots."""
    peer = corpus.table(name)
    before = clone(peer, tmp_path / "t")
    table = before.maintenance.upgrade(4).commit()
    with table.transaction() as tx:
        tx.update_snapshot()
    table = table.refresh()
    head = table.metadata.current_snapshot_id
    table.manage_snapshots().create_tag(head, "first tree").commit()
    rows = table.scan().plan_files().select("file_path", "deletes").collect()
    paths = Counter(row.file_path for row in rows)
    victims = [row.file_path for row in rows if paths[row.file_path] == 1]
    table = delete_files(table.refresh(), [*victims[:1], *victims[-1:]]) if victims else table.refresh()
    snapshot_ids = [snapshot.snapshot_id for snapshot in before.snapshots()]
    trees = list(dict.fromkeys([head, table.metadata.current_snapshot_id]))
    expected = plans(table, [*snapshot_ids, *trees])
    if "unknown_transform" in name:
        with pytest.raises(UnsupportedError, match="has a transform or source column that is not known, of field 1000"):
            table.maintenance.downgrade(3)
        return
    after = table.maintenance.downgrade(3).commit()
    assert after.format_version == 3
    assert plans(after, [*snapshot_ids, *trees]) == expected
    if name.startswith(WITHOUT_JSON):
        java = Java(after.state.spark).table(after.metadata_location)
        planned = {
            snapshot_id: after.scan(snapshot_id=snapshot_id).plan_files().select("file_path")
            for snapshot_id in expected
        }
        by_java = {snapshot_id: java.paths(at=At(snapshot_id=snapshot_id)) for snapshot_id in expected}
        assert {
            snapshot_id: sorted(row.file_path for row in frame.collect()) for snapshot_id, frame in planned.items()
        } == by_java
    else:
        assert java_plans(after, [*snapshot_ids, *trees]) == expected
    assert after.metadata.next_row_id == table.metadata.next_row_id  # type: ignore[union-attr]
    again = after.maintenance.upgrade(4).commit()
    with again.transaction() as tx:
        tx.update_snapshot()
    assert plans(again.refresh(), trees) == {snapshot_id: expected[snapshot_id] for snapshot_id in trees}


def heads_of(table: sm.Table) -> dict[str, int]:
    return {name: ref.snapshot_id for name, ref in table.metadata.refs.items()}


def branched(spark: SparkSession, folder: Path) -> sm.Table:
    """Return a table that began as a tree, with leaves, masks, deletion vectors, a branch, tags and lost snapshots."""
    table = append(new_table(spark, folder), *range(20))
    table = append(table, 20, 21, part="b")
    table = delete(mask_rows(table, folder, "a.puffin", f0=[1], f4=[2], f8=[3]), 2, 4, 20)
    table.manage_snapshots().create_tag(table.metadata.current_snapshot_id, "audit").commit()
    table = append(table.refresh(), 30, 31, part=None)
    table.manage_snapshots().create_branch(table.metadata.current_snapshot_id, "side").commit()
    table = mask_rows(table.refresh(), folder, "b.puffin", f1=[1], f5=[0])
    table = table.maintenance.compact_manifests(max_root_files=0).commit()
    return append(append(table, 40), 41)


@pytest.mark.java
def test_branches_and_tags_of_a_tree(spark: SparkSession, tmp_path: Path) -> None:
    table = branched(spark, tmp_path)
    heads = heads_of(table)
    assert len(set(heads.values())) == 3
    expected = plans(table, [*heads.values()])
    partitions = {snapshot_id: partitions_of(table, snapshot_id) for snapshot_id in heads.values()}
    plan = table.maintenance.downgrade(3)
    summary = plan.summary()
    gone = {each.snapshot_id for each in table.snapshots()} - set(heads.values())
    assert set(summary.snapshots_removed) == gone
    assert {head.refs: (head.snapshot_id, head.keeps_parent) for head in summary.heads} == {
        ("audit",): (heads["audit"], False), ("side",): (heads["side"], True), ("main",): (heads["main"], True),
    }  # fmt: skip
    assert [head.live_files for head in summary.heads] == [19 + 2, 21 + 2, 23 + 4]
    rows = plan.to_df().collect()
    assert {row.snapshot_id for row in rows} == set(heads.values())
    assert {row.action for row in rows} == {"write"}
    assert sum(row.live_files for row in rows) == sum(head.live_files or 0 for head in summary.heads)
    assert summary.leaves_written < len(rows), "heads share leaves"
    assert "write.tree.direct-files" in str(summary)
    (lost,) = (line for line in str(summary).splitlines() if "incremental reads across it fail" in line)
    assert lost.strip().startswith("audit: ")
    after = plan.commit()
    assert (after.format_version, heads_of(after)) == (3, heads)
    assert plans(after, [*heads.values()]) == expected == java_plans(after, [*heads.values()])
    assert {each: partitions_of(after, each) for each in heads.values()} == partitions
    by_pyiceberg = StaticTable.from_metadata(after.metadata_location).scan().plan_files()
    planned = after.scan().plan_files().select("file_path").collect()
    assert sorted(task.file.file_path for task in by_pyiceberg) == sorted(row.file_path for row in planned)
    assert after.metadata.next_row_id == table.metadata.next_row_id  # type: ignore[union-attr]
    assert not [name for name in after.properties if name.startswith("write.tree.")]
    parents = {each.snapshot_id: each.parent_snapshot_id for each in after.snapshots()}
    assert (parents[heads["audit"]], parents[heads["side"]]) == (None, heads["audit"])
    assert [each.snapshot_id for each in after.history()] == [heads["main"]]
    added = after.file_changes(heads["audit"], heads["side"]).select("change_type", "file_path").collect()
    assert sorted(map(tuple, added)) == [("added", "/data/f30"), ("added", "/data/f31")]
    shared = [set(paths_of_manifests(after, heads[name])) for name in ("audit", "side", "main")]
    assert shared[0] & shared[1], "what two heads share is written once"
    assert plan.commit() is after
    again = after.maintenance.upgrade(4).commit()
    assert plans(append(again, 50), [*heads.values()]) == expected


def partitions_of(table: sm.Table, snapshot_id: int) -> list[tuple[Any, ...]]:
    rows = table.inspect.partitions(snapshot_id).drop("last_updated_at", "last_updated_snapshot_id").collect()
    return sorted(map(tuple, rows), key=repr)


def paths_of_manifests(table: sm.Table, snapshot_id: int) -> list[str]:
    return [row.path for row in table.inspect.manifests(snapshot_id).collect()]


def test_what_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    table = append(new_table(spark, tmp_path), 1)
    with pytest.raises(ValidationError, match="format_version is 2: expected 3; undo_upgrade returns"):
        table.maintenance.downgrade(2)
    with table.transaction() as tx:
        tx.set_properties({"write.manifest.compression-codec": "no such codec"})
    before = files_below(tmp_path)
    with pytest.raises(ValidationError, match=r"write.manifest.compression-codec is 'no such codec'"):
        table.refresh().maintenance.downgrade(3)
    with table.refresh().transaction() as tx:
        tx.set_properties({"write.manifest.compression-codec": "zstd"})
    after = table.refresh().maintenance.downgrade(3).commit()
    assert len(files_below(tmp_path) - before) >= 3
    with pytest.raises(ValidationError, match="no metadata tree, but manifest lists of format version 3"):
        after.maintenance.downgrade(3)


def test_an_empty_tree(spark: SparkSession, tmp_path: Path) -> None:
    """Without a root, only metadata is written."""
    after = new_table(spark, tmp_path).maintenance.downgrade(3).commit()
    assert (after.format_version, after.scan().plan_files().count()) == (3, 0)


def test_commands(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = delete(append(new_table(spark, tmp_path), 1, 2, 3), 2)
    text = command(table.location(), name="downgrade")
    assert "format version 4 becomes 3" in text
    assert "nothing is changed without --commit" in text
    rows = [
        json.loads(line)
        for line in command(table.location(), "--files", "-o", "json", name="downgrade").split("\n")
        if line
    ]
    assert {(row["content"], row["live_files"], row["masked_files"]) for row in rows} == {("data", 2, 1)}
    job = runpy.run_path(str(JOBS / "downgrade.py"))["main"]
    assert job(["--table", table.location()]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["committed"] is None
    assert table.refresh().format_version == 4
    assert job(["--table", table.location(), "--commit"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["plan"]["heads"][0]["live_files"] == 2
    assert table.refresh().format_version == 3
    assert table.refresh().metadata_location == result["committed"]["metadata_location"]
    assert command(table.location(), name="downgrade", code=1)


def test_position_deletes_stay_with_their_files(spark: SparkSession, tmp_path: Path) -> None:
    """After a leaf is rewritten, a position delete file of one data file applies to no other file of its partition."""

    def of_file(path: str) -> dict[str, Any]:
        bound = [{"key": DELETE_FILE_PATH_ID, "value": path.encode()}]
        return {"lower_bounds": bound, "upper_bounds": bound, "partition": {"part": "a"}}

    paths = [f"file:///t/f{number}" for number in range(3)]
    deletes = [position_deletes(f"file:///t/d{number}", **of_file(path)) for number, path in enumerate(paths[:2])]
    handmade = HandmadeTable(tmp_path, summaries=True)
    handmade.add(0, 1, *(data(path, partition={"part": "a"}) for path in paths)).add(1, 1, *deletes).write()
    table = sm.load_table(f"file://{tmp_path}", spark=spark).maintenance.upgrade(4).commit()
    table = delete_files(table, paths[:1]).maintenance.remove_dangling_deletes().commit()
    assert {row.action for row in table.maintenance.downgrade(3).to_df().collect()} == {"write"}
    after = table.maintenance.downgrade(3).commit()
    rows = after.scan().plan_files().selectExpr("file_path", "deletes.file_path AS deletes").collect()
    assert {row.file_path: row.deletes for row in rows} == {paths[1]: ["file:///t/d1"], paths[2]: []}


def test_bounds_that_a_root_does_not_know(spark: SparkSession, tmp_path: Path) -> None:
    """A manifest without partition summaries is listed unchanged, and filters don't prune it."""
    handmade = HandmadeTable(tmp_path).add(0, 1, data("file:///t/f", partition={"part": "a"}))
    handmade.add(0, 0, data("file:///t/g")).write()
    table = sm.load_table(f"file://{tmp_path}", spark=spark).maintenance.upgrade(4).commit()
    with table.transaction() as tx:
        tx.update_snapshot()
    table = table.refresh()
    assert table.maintenance.downgrade(3).summary().leaves_written == 0
    after = table.maintenance.downgrade(3).commit()
    planned = after.scan("part = 'a'").plan_files().select("file_path").collect()
    assert "file:///t/f" in [row.file_path for row in planned]
    assert paths_of_manifests(after, table.metadata.current_snapshot_id) == paths_of_manifests(
        table, table.metadata.current_snapshot_id
    )


def test_a_table_of_a_catalog_in_a_database(spark: SparkSession, tmp_path: Path) -> None:
    catalog_properties = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}"}
    catalog = sm.load_catalog("sql", type="sql", **catalog_properties)
    catalog.create_namespace("db")
    table = append(catalog.create_table("db.t", SCHEMA, SPEC, format_version=4, spark=spark), 1, 2)
    expected = seen(table)
    table.maintenance.downgrade(3).commit()
    after = catalog.load_table("db.t", spark)
    assert (after.format_version, seen(after)) == (3, expected)


# -- rows, with real files -------------------------------------------------------------------------------------------

NUMBERS = ("_row_id", "_last_updated_sequence_number")


def mask_positions(table: sm.Table, folder: Path, path: str, *positions: int) -> sm.Table:
    """Add a deletion vector for a data file that has none."""
    bitmap = PositionBitmap.of(list(positions))
    written = write_puffin([deletion_vector_blob(write_deletion_vector(bitmap), path, len(positions))])
    puffin = folder / "masked.puffin"
    puffin.write_bytes(written.data)
    offset, length = written.blobs[0].offset, written.blobs[0].length
    deletes = table.inspect.data_files().where(F.col("file_path") == path).selectExpr(
        "1 AS content", f"'file://{puffin}' AS file_path", "'PUFFIN' AS file_format", "spec_id", "partition",
        f"{len(positions)}L AS record_count", f"{len(written.data)}L AS file_size_in_bytes",
        "file_path AS referenced_data_file", f"{offset}L AS content_offset", f"{length}L AS content_size_in_bytes",
    )  # fmt: skip
    with table.transaction() as tx:
        tx.update_snapshot().row_delta(deletes=deletes)
    return table.refresh()


def change_tree(table: sm.Table, other: sm.Table, rng: random.Random, folder: Path) -> sm.Table:
    """Append files, add an equality delete and a deletion vector, remove files, and compact, in a random order."""

    def add_files() -> sm.Table:
        with table.transaction() as tx:
            tx.update_snapshot().append(other.inspect.data_files())
        return table.refresh()

    def delete_rows() -> sm.Table:
        with table.transaction() as tx:
            tx.update_snapshot().row_delta(deletes=other.inspect.delete_files().where("content = 2"))
        return table.refresh()

    def remove_file() -> sm.Table:
        paths = [row.file_path for row in table.scan().plan_files().select("file_path").collect()]
        return delete_files(table, [rng.choice(sorted(paths))]) if paths else table

    def mask() -> sm.Table:
        rows = table.scan().plan_files().where("NOT exists(deletes, d -> d.content = 1) AND record_count > 1").collect()
        return mask_positions(table, folder, min(row.file_path for row in rows), 0) if rows else table

    def compact() -> sm.Table:
        return table.maintenance.compact_manifests(max_root_files=0).commit()

    changes = [add_files, delete_rows, remove_file, remove_file, mask, compact]
    for change in rng.sample(changes, len(changes)):
        table = change()
    return table


@pytest.mark.java
@pytest.mark.parametrize("seed", range(20) if SOAK else [5])
def test_java_goes_on(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """Rows, row ids and entries equal the tree's.

    Java changes the table and expires snapshots, and it is upgraded again.
    """
    rng = random.Random(seed)
    history = random_history(spark, f"downgraded_{seed}", rng, steps=4)
    shop, source = history.shop, Workshop(Java(spark), f"downgraded_source_{seed}")
    source.create("id INT, name STRING, part STRING", "part", version=2, properties=MERGE_ON_READ)
    source.insert("1, 'a', 'x'", "2, NULL, 'x'", "3, 'c', 'y'")
    source.row_delta(source.equality_delete("eq.parquet", {"name": ["a", None]}, ["x"]))
    table = opened(shop).maintenance.upgrade(4).commit()
    table = change_tree(table, opened(source), rng, tmp_path)
    snapshot_id = table.metadata.current_snapshot_id
    rows = row_texts(table.scan(selected_fields=("id", "name", "part", *NUMBERS)).to_df())
    expected = plans(table, [snapshot_id])
    entries = ("status", "snapshot_id", "sequence_number", "file_sequence_number", "data_file.file_path")
    listed = table.inspect.entries().where("status < 2").select(*entries[1:])
    entries_before = sorted(map(str, listed.collect()))
    after = table.maintenance.downgrade(3).commit()
    assert plans(after, [snapshot_id]) == expected == java_plans(after, [snapshot_id])
    shop.sql("REFRESH TABLE {t}")
    assert row_texts(shop.sql(f"SELECT id, name, part, {', '.join(NUMBERS)} FROM {{t}}")) == rows
    by_java = spark.table(f"{shop.sql_name}.entries").where("status < 2").select(*entries[1:])
    assert sorted(map(str, by_java.collect())) == entries_before
    history.insert()
    shop.sql("DELETE FROM {t} WHERE id = 3")
    shop.sql("UPDATE {t} SET name = 'z' WHERE id = 2")
    shop.call("rewrite_manifests")
    shop.call("expire_snapshots", "older_than => TIMESTAMP '2100-01-01', retain_last => 1")
    shop.sql("REFRESH TABLE {t}")
    by_java = row_texts(shop.sql("SELECT * FROM {t}"))
    again = opened(shop).maintenance.upgrade(4).commit()
    with again.transaction() as tx:
        tx.update_snapshot()
    assert row_texts(again.refresh().scan().to_df()) == by_java


# -- when something goes wrong, or others commit ---------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1])
def test_each_fault_of_a_commit(
    interpreted: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, soak: bool
) -> None:
    """The table is a tree or has version 3, with the same files. A failed attempt leaves no file behind."""
    monkeypatch.setattr(lists, "executor_writer", lambda _: ExecutorWriter({}))
    monkeypatch.setattr(snapshot_state, "executor_reader", lambda _: ExecutorReader())
    before = delete(append(new_table(interpreted, tmp_path), 1, 2, 3), 2)
    folder = Path(local_path(before.location())) / "metadata"
    contents = {path.name: path.read_bytes() for path in folder.iterdir()}
    expected = seen(before)

    class Stage:
        """A stage for `attempt`."""

        def commit(self, driver: FaultyFiles) -> None:
            for path in folder.iterdir():
                path.unlink()
            for name, content in contents.items():
                (folder / name).write_bytes(content)
            through(sm.load_table(before.location(), spark=interpreted), driver).maintenance.downgrade(3).commit()

    stage: Any = Stage()
    candidates = list(faults(stage.commit))
    outcomes = set()
    for fault in candidates if soak else random.Random(seed).sample(candidates, 4):
        outcome = attempt(stage, FaultyFiles(fault=fault))
        outcomes.add(outcome)
        table = sm.load_table(before.location(), spark=interpreted)
        assert seen(table) == expected, f"{fault}: {outcome}"
        assert table.format_version == 3 or outcome != "committed", f"{fault}: {outcome}"
        assert table.format_version == 4 or outcome != "failed", f"{fault}: {outcome}"
    assert not soak or outcomes == {"committed", "failed", "killed", "unknown"}


def test_an_unknown_outcome_deletes_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = append(new_table(spark, tmp_path), 1, 2, 3)
    before = files_below(tmp_path)

    def unknown(*_: Any) -> Any:
        raise CommitStateUnknownError("who knows")

    monkeypatch.setattr(FileSystemOperations, "commit", unknown)
    with pytest.raises(CommitStateUnknownError):
        table.maintenance.downgrade(3).commit()
    assert len(files_below(tmp_path) - before) == 2, "the manifest and its list stay"


def test_other_commits_come_first(spark: SparkSession, tmp_path: Path) -> None:
    """The lists contain the files of the other commits, and a leaf is written once.

    A second downgrade changes nothing.
    """
    table = branched(spark, tmp_path)
    plan, second = table.maintenance.downgrade(3), table.maintenance.downgrade(3)
    newer = append(table, 60)
    heads = list(heads_of(newer).values())
    expected, before = plans(newer, heads), files_below(tmp_path)
    after = plan.commit()
    assert plans(after, heads) == expected
    named = {local_path(path) for head in heads for path in paths_of_manifests(after, head)}
    named |= {local_path(snapshot.manifest_list or "") for snapshot in after.snapshots()}
    written = {path for path in files_below(tmp_path) - before if path.endswith(".avro")}
    assert written == named, "files that the first attempt alone needed are deleted"
    with pytest.raises(ValidationError, match="no metadata tree"):
        second.commit()
    assert {path for path in files_below(tmp_path) - before if path.endswith(".avro")} == named
