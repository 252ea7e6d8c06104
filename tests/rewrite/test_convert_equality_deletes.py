"""Equality deletes that are converted to deletion vectors or position deletes: rows stay, and the deletes go."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.transforms import BucketTransform

import sparkmeta as sm
from sparkmeta.operations.filesystem import FileSystemOperations
from tests.command_line import invoke
from tests.maintain.clones import clone
from tests.maintain.test_expire import files_below
from tests.peers import corpus as peers
from tests.peers.java import Java
from tests.peers.slices import SOAK
from tests.peers.workshop import MERGE_ON_READ
from tests.rows.comparison import row_texts
from tests.write.test_changes import BY_PART, SCHEMA, frame, ordinary
from tests.write.test_files import EVERY_TYPE, QUERY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from pyiceberg.schema import Schema
    from pyspark.sql import SparkSession

KINDS = {"v2": 2, "v2-partition": 2, "v3": 3, "v4": 4, "iceberg": 4}
"""Kinds of tables, with their versions."""
PROPERTIES = {"v2-partition": {"write.delete.granularity": "partition"}, "iceberg": {"write.tree.layout": "iceberg"}}


def new_table(
    spark: SparkSession,
    folder: Path,
    kind: str,
    spec: PartitionSpec = BY_PART,
    schema: Schema = SCHEMA,
    **properties: str,
) -> sm.Table:
    catalog = sm.load_catalog("rows", type="hadoop", warehouse=folder.as_uri())
    named = {key.replace("__", ".").replace("_", "-"): value for key, value in properties.items()}
    named = MERGE_ON_READ | PROPERTIES.get(kind, {}) | named
    return catalog.create_table("db.t", schema, spec, format_version=KINDS[kind], properties=named, spark=spark)


def equality_files(table: sm.Table) -> list[Any]:
    return table.inspect.delete_files().where("content = 2").collect()


def data_files(table: sm.Table) -> list[Any]:
    plan = table.scan().plan_files().select("file_path", "first_row_id", "data_sequence_number")
    return plan.orderBy("file_path").collect()


def converted(spark: SparkSession, table: sm.Table, **options: Any) -> sm.Table:
    """Convert deletes, and assert that rows, data files and other engines' answers stay the same."""
    before, files, snapshots = row_texts(table.scan().to_df()), data_files(table), len(table.snapshots())
    plan = table.maintenance.convert_equality_deletes(**options)
    chosen, summary = plan.to_df().collect(), plan.summary()
    assert summary.equality_delete_files == len(chosen) > 0
    assert summary.other_files == len(equality_files(table)) - len(chosen)
    assert len(table.refresh().snapshots()) == snapshots
    after = plan.commit()
    assert row_texts(after.scan().to_df()) == before
    # The first commit after an upgrade assigns row ids.
    for old, new in zip(files, data_files(after), strict=True):
        assert (old.file_path, old.data_sequence_number) == (new.file_path, new.data_sequence_number)
        assert old.first_row_id in (None, new.first_row_id)
    gone = {row["file_path"] for row in chosen}
    assert not gone & {row["file_path"] for row in equality_files(after)}
    assert len(equality_files(after)) == summary.other_files
    assert not after.check().collect()
    head = after.current_snapshot()
    assert head is not None
    assert head.operation == "replace"
    assert after.changelog(table.current_snapshot().snapshot_id).to_df().isEmpty()
    if after.format_version < 4:
        assert len(Java(spark).records(after.metadata_location)) == len(before)
    return after


def history(spark: SparkSession, table: sm.Table, rng: random.Random, steps: int) -> sm.Table:
    """Append, delete by position, and delete by several keys, with nulls, in random order."""
    next_id = 0
    for _ in range(steps):
        table = table.append(frame(spark, ordinary(next_id, next_id + 12)).coalesce(1))
        next_id += 12
        ids = rng.sample(range(next_id), 6)
        keys = frame(spark, [row for number in ids for row in ordinary(number, number + 1)]).coalesce(1)
        table = table.equality_delete(keys, rng.choice([["id"], ["n"], ["part", "n"], ["n", "id"]]))
        if rng.random() < 0.5:
            table = table.delete(f"id in ({rng.randrange(next_id)}, {rng.randrange(next_id)})")
    return table.refresh()


@pytest.mark.java
@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(10) if SOAK else [0])
def test_histories(spark: SparkSession, tmp_path: Path, kind: str, seed: int) -> None:
    rng = random.Random(seed)
    table = history(spark, new_table(spark, tmp_path, kind), rng, 3)
    with table.update_spec() as update:
        update.add_field("id", BucketTransform(3), "bucket")
    table = history(spark, table.refresh(), rng, 2)
    with table.refresh().update_spec() as update:
        update.remove_field("part").remove_field("bucket")
    table = history(spark, table.refresh(), rng, 1)
    table = converted(spark, table, max_files=3)
    table = converted(spark, table, row_filter="part = 'a'")
    table = converted(spark, table)
    assert not equality_files(table)
    assert table.maintenance.convert_equality_deletes().summary().is_empty
    assert table.maintenance.convert_equality_deletes().commit() is table


@pytest.mark.java
@pytest.mark.parametrize("kind", ["v2", "v3", "iceberg"] if SOAK else ["v3"])
@pytest.mark.parametrize("file_format", ["parquet", "orc", "avro"] if SOAK else ["parquet", "avro"])
def test_keys_of_every_type(spark: SparkSession, tmp_path: Path, kind: str, file_format: str) -> None:
    """Data files are in the same format as the delete files."""
    formats = {"write__format__default": file_format, "write__delete__format__default": file_format}
    table = new_table(spark, tmp_path, kind, PartitionSpec(), EVERY_TYPE, **formats)
    rows = spark.sql(QUERY)
    table = table.append(rows.coalesce(1))
    names = [field.name for field in EVERY_TYPE.fields if field.name not in {"id", "d", "l", "m", "st"}]
    for number, name in enumerate([*names, "st.x", "st.y"]):
        table = table.equality_delete(rows.where(f"id = {number * 4}"), [name])
    assert not equality_files(converted(spark, table.refresh()))


EQUALITY = [
    name
    for name in peers.names("equality", without=("made_up", "not_spark", "v4"))
    if not name.startswith("equality_void")  # its data files do not exist
]
"""Keys of all types with NaN, zeros and nulls; of several sets; of columns and specs that changed."""


@pytest.mark.java
@pytest.mark.parametrize("layout", [None, "proposal", "iceberg"])
@pytest.mark.parametrize("name", EQUALITY)
def test_tables_of_java(name: str, layout: str | None, corpus: peers.Corpus, tmp_path: Path) -> None:
    """Rows are those that Java reads before; also in trees, after an upgrade."""
    peer = corpus.table(name)
    table = clone(peer, tmp_path / "t")
    if layout is not None:
        with table.transaction() as tx:
            tx.set_properties({"write.tree.layout": layout})
        table = table.refresh().maintenance.upgrade(4).commit()
    if not name.startswith("equality_evolved"):  # Java reads no keys of a dropped column whose name is used again
        read_by_java = corpus.spark.read.format("iceberg").load(peer.metadata_location)
        assert row_texts(table.scan().to_df()) == row_texts(read_by_java)
    after = converted(corpus.spark, table)
    assert not equality_files(after)
    assert not after.maintenance.remove_dangling_deletes().summary().equality_delete_files


@pytest.mark.parametrize("kind", ["v2", "v3", "v4", "iceberg"])
def test_budgets(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """A run takes the deletes of the oldest commits, and of one commit at least."""
    table = new_table(spark, tmp_path, kind, PartitionSpec())
    table = table.append(frame(spark, ordinary(0, 60)).coalesce(1))
    for number in range(5):
        table = table.equality_delete(frame(spark, ordinary(number * 9, number * 9 + 2)).coalesce(1), ["id"])
    sizes = [row["file_size_in_bytes"] for row in sorted(equality_files(table), key=lambda row: row["file_path"])]
    rows = row_texts(table.scan().to_df())

    def numbers(**options: Any) -> list[int]:
        chosen = table.maintenance.convert_equality_deletes(**options).to_df().collect()
        return sorted(row["data_sequence_number"] for row in chosen)

    every = numbers()
    assert len(every) == 5
    assert numbers(max_files=2) == every[:2]
    assert numbers(max_bytes=1) == every[:1]
    assert numbers(max_bytes=3 * max(sizes), max_files=4) == every[:3]
    with pytest.raises(sm.ValidationError, match="max_files is 0"):
        numbers(max_files=0)
    for remaining in (3, 1, 0):
        table = table.maintenance.convert_equality_deletes(max_files=2).commit()
        assert len(equality_files(table)) == remaining
        assert row_texts(table.scan().to_df()) == rows


@pytest.mark.parametrize("kind", ["v2", "v3", "v4", "iceberg"])
def test_deletes_of_nothing(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """Deletes without matching rows or data files go, and no new ones are written."""
    table = new_table(spark, tmp_path, kind).append(frame(spark, [(1, "a", 1), (3, "a", 1)]).coalesce(1))
    table = table.delete("id = 1")
    for key in [(2, "a", 0), (1, "a", 0), (1, "b", 0)]:
        table = table.equality_delete(frame(spark, [key]), ["id"])
    before = files_below(tmp_path / "db" / "t" / "data")
    after = converted(spark, table.refresh())
    assert files_below(tmp_path / "db" / "t" / "data") == before
    assert not equality_files(after)


Change: TypeAlias = "Callable[[SparkSession, sm.Table], object]"


def _remove_data(spark: SparkSession, table: sm.Table) -> object:
    with table.transaction() as tx:
        tx.update_snapshot().delete(table.scan("part = 'a'").plan_files())
    return spark


OTHERS: dict[str, tuple[Change, bool | str]] = {
    "append": (lambda spark, table: table.append(frame(spark, [(4, "a", 7), (9, "b", 0)])), False),
    "equality_delete": (lambda spark, table: table.equality_delete(frame(spark, [(7, "b", 0)]), ["id"]), False),
    "upsert": (lambda spark, table: table.upsert(frame(spark, [(50, "c", 0)]), ["id"]), False),
    "delete_elsewhere": (lambda _, table: table.delete("id = 14"), False),
    "delete_in_file": (lambda _, table: table.delete("id = 12"), "vectors"),
    "remove_data": (_remove_data, True),
    "rewrite": (lambda _, table: table.maintenance.rewrite_data_files(rewrite_all=True).commit(), True),
    "convert": (lambda _, table: table.maintenance.convert_equality_deletes().commit(), True),
}


@pytest.mark.parametrize("kind", ["v2", "v3", "v4", "iceberg"])
@pytest.mark.parametrize("name", OTHERS)
def test_other_commits(interpreted: SparkSession, tmp_path: Path, kind: str, name: str) -> None:
    spark = interpreted
    table = new_table(spark, tmp_path, kind).append(frame(spark, ordinary(0, 30)).repartition(1, "part"))
    table = table.equality_delete(frame(spark, ordinary(3, 7)), ["id"]).refresh()
    plan = table.maintenance.convert_equality_deletes()
    plan.summary()
    change, conflicts = OTHERS[name]
    change(spark, table)
    changed, files = table.refresh(), files_below(tmp_path)
    rows = row_texts(changed.scan().to_df())
    if conflicts is True or (conflicts == "vectors" and kind != "v2"):
        with pytest.raises(sm.CommitConflictError):
            plan.commit()
        assert files_below(tmp_path) == files
        after = changed.maintenance.convert_equality_deletes().commit()
    else:
        after = plan.commit()
    assert row_texts(after.scan().to_df()) == rows
    assert not after.check().collect()
    assert len(equality_files(after)) == (name == "equality_delete")


@pytest.mark.parametrize("kind", ["v2", "v3", "v4"])
def test_a_run_that_ends_early(interpreted: SparkSession, tmp_path: Path, kind: str, monkeypatch: Any) -> None:
    """A known failure deletes the new files, an unknown one keeps them. A second run finishes."""
    spark = interpreted
    table = new_table(spark, tmp_path, kind).append(frame(spark, ordinary(0, 30)))
    table = table.equality_delete(frame(spark, ordinary(3, 7)), ["id"]).refresh()
    rows, before = row_texts(table.scan().to_df()), files_below(tmp_path)
    errors: Iterable[tuple[BaseException, bool]] = [
        (sm.CommitFailedError("others were faster"), False),
        (sm.CommitStateUnknownError("who knows"), True),
        (KeyboardInterrupt(), True),
    ]
    for error, stays in errors:

        def fails(*_: Any, error: BaseException = error) -> Any:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(FileSystemOperations, "commit", fails)
            patch.setattr("sparkmeta.commit.attempts.time.sleep", lambda _: None)
            with pytest.raises(type(error)):
                table.maintenance.convert_equality_deletes().commit()
        assert any("deletes" in path for path in files_below(tmp_path) - before) == stays
        assert row_texts(table.refresh().scan().to_df()) == rows
    after = table.refresh().maintenance.convert_equality_deletes().commit()
    assert row_texts(after.scan().to_df()) == rows
    assert not equality_files(after)


def test_command(spark: SparkSession, tmp_path: Path) -> None:
    table = new_table(spark, tmp_path, "v3").append(frame(spark, ordinary(0, 30)))
    table = table.equality_delete(frame(spark, ordinary(3, 7)), ["id"]).refresh()
    location = table.location()
    shown = invoke(["convert-equality-deletes", location, "--filter", "part = 'a'"])
    assert shown.exit_code == 0, shown.output
    assert "1 equality delete files with 2 keys" in shown.output
    listed = invoke(["convert-equality-deletes", location, "--max-files", "1", "--files", "-o", "json"])
    assert len(listed.output.splitlines()) == 3
    assert len(equality_files(table.refresh())) == 3
    done = invoke(["convert-equality-deletes", location, "--commit", "-o", "json"])
    assert done.exit_code == 0, done.output
    assert not equality_files(table.refresh())
