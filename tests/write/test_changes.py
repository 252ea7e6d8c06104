"""Rows are appended, overwritten, deleted and updated on V4 trees, and compared with a model in plain Python."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType
from pyspark.sql import functions as F

import sparkmeta as sm
from sparkmeta.operations.filesystem import FileSystemOperations
from sparkmeta.write import deletes
from tests.conftest import configured
from tests.peers.java import Java
from tests.peers.slices import SOAK
from tests.peers.workshop import MERGE_ON_READ, Workshop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import DataFrame, SparkSession

    from sparkmeta.commit.conflicts import Isolation

pytestmark = pytest.mark.usefixtures("either_way")

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "part", StringType()),
    NestedField(3, "n", IntegerType()),
)
BY_PART = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"))
MODES = ("copy-on-write", "merge-on-read")
Rows = list[tuple[int, str | None, int | None]]


def new_table(
    spark: SparkSession, folder: Path, spec: PartitionSpec = BY_PART, *, version: int = 4, **properties: str
) -> sm.Table:
    catalog = sm.load_catalog("rows", type="hadoop", warehouse=str(folder))
    catalog.create_namespace("db")
    named = {key.replace("__", ".").replace("_", "-"): value for key, value in properties.items()}
    return catalog.create_table("db.t", SCHEMA, spec, format_version=version, properties=named, spark=spark)


def frame(spark: SparkSession, rows: Iterable[tuple[Any, ...]]) -> DataFrame:
    return spark.createDataFrame(list(rows), "id BIGINT, part STRING, n INT")


def rows_of(table: sm.Table, **scan: Any) -> Rows:
    assert not table.check().collect()
    return sorted(map(tuple, table.scan(**scan).to_df().collect()), key=repr)


def ordinary(start: int, stop: int) -> Rows:
    return [(i, "abc"[i % 3] if i % 7 else None, i * 10 if i % 5 else None) for i in range(start, stop)]


@pytest.mark.parametrize("mode", MODES if SOAK else MODES[1:])
def test_a_history_of_changes(spark: SparkSession, tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = new_table(spark, tmp_path, write__delete__mode=mode, write__update__mode=mode)
    model: Rows = []

    def step(changed: sm.Table, expected: Rows) -> None:
        nonlocal table, model
        table, model = changed, sorted(expected, key=repr)
        assert rows_of(table) == model

    step(table.append(frame(spark, ordinary(0, 30))), ordinary(0, 30))
    step(table.append(frame(spark, ordinary(30, 40))), [*model, *ordinary(30, 40)])
    # A whole partition, by metadata.
    before = paths(table)
    step(table.delete("part = 'a'"), [row for row in model if row[1] != "a"])
    assert paths(table) < before
    # Rows of files; a null does not match, and stays.
    step(table.delete("n >= 100 and n < 200"), [row for row in model if row[2] is None or not 100 <= row[2] < 200])
    monkeypatch.setattr(deletes, "_DRIVER_BYTES", -1)  # tasks write the next ones
    step(table.delete("n >= 200 and n < 250"), [row for row in model if row[2] is None or not 200 <= row[2] < 250])
    vectors = table.inspect.delete_files().count()
    assert vectors > 0 if mode == "merge-on-read" else vectors == 0
    ids = {row[0]: row[-1] for row in rows_of(table, selected_fields=("id", "_row_id"))}
    step(
        table.update({"n": F.col("n") + 1}, "id < 10"),
        [(i, p, n + 1 if i < 10 and n is not None else n) for i, p, n in model],
    )
    assert {row[0]: row[-1] for row in rows_of(table, selected_fields=("id", "_row_id"))} == ids
    step(table.update({"part": "moved"}, "part is null"), [(i, p or "moved", n) for i, p, n in model])
    assert {row[0]: row[-1] for row in rows_of(table, selected_fields=("id", "_row_id"))} == ids
    new = [(100, "b", 1), (101, "new", 2)]
    step(table.overwrite(frame(spark, new), "id < 5"), [row for row in model if row[0] >= 5] + new)
    unreplaced = [row for row in model if row[1] not in ("b", "new")]
    step(
        table.dynamic_partition_overwrite(frame(spark, [*new[:1], (7, "new", None)])),
        [*unreplaced, new[0], (7, "new", None)],
    )
    snapshots = len(table.snapshots())
    step(table.delete("id = 123456"), model)
    assert len(table.snapshots()) == snapshots
    step(table.overwrite(frame(spark, new)), new)
    step(table.delete(), [])


def paths(table: sm.Table) -> set[str]:
    return {row.file_path for row in table.inspect.data_files().select("file_path").collect()}


def test_files_are_sorted_rolled_and_named(spark: SparkSession, tmp_path: Path) -> None:
    spec = PartitionSpec(PartitionField(1, 1000, BucketTransform(2), "id bucket"))
    table = new_table(
        spark, tmp_path, spec, write__target_file_size_bytes="4000", write__object_storage__enabled="true"
    )
    with table.update_sort_order() as update:
        update.desc("n", IdentityTransform(), NullOrder.NULLS_LAST)
    table = table.refresh()
    rows = [(i, "x", (i * 7919) % 10_000) for i in range(6_000)]
    table = table.append(frame(spark, rows).repartition(3))
    assert rows_of(table) == sorted(rows, key=repr)
    files = table.inspect.files().toArrow().to_pylist()
    assert len(files) > 4
    for file in files:
        inside = file["file_path"].removeprefix(f"{table.location()}/data/").split("/")
        assert [len(folder) for folder in inside[:4]] == [4, 4, 4, 8]
        assert inside[4] == f"id+bucket={file['partition']['id bucket']}"
        assert file["sort_order_id"] == table.sort_order().order_id == 1
        values = [row.n for row in spark.read.parquet(file["file_path"]).collect()]
        assert values == sorted(values, reverse=True)
    assert sum(file["file_size_in_bytes"] for file in files) / len(files) < 8_000


UNFIT = {
    "SELECT 1L id, 'a' part, 1L n": "column n of the rows is bigint: the table has type int",
    "SELECT 1L id, 2 other": "column other is not in the table, which has 'id', 'part', 'n'",
    "SELECT 1L ID": "column ID is not in the table: did you mean 'id'?",
    "SELECT 'a' part": "column id is required and has no write default, and the rows lack it",
    "SELECT IF(id = 3, null, id) id FROM range(5)": "column id is required, and has nulls in 1 rows",
}


@pytest.mark.parametrize("query", UNFIT)
def test_rows_that_do_not_fit(spark: SparkSession, tmp_path: Path, query: str) -> None:
    table = new_table(spark, tmp_path, PartitionSpec())
    with pytest.raises(sm.ValidationError) as caught:
        table.append(spark.sql(query))
    assert UNFIT[query] in str(caught.value)
    assert table.refresh().current_snapshot() is None
    assert not list(tmp_path.rglob("*.parquet"))


def test_files_of_a_lost_commit_are_deleted(spark: SparkSession, tmp_path: Path) -> None:
    table = new_table(spark, tmp_path).append(frame(spark, ordinary(0, 10)))
    stale = table.transaction()
    stale.delete("id = 1")
    table.append(frame(spark, [(1, "b", 5)]))
    with pytest.raises(sm.CommitConflictError):
        stale.commit()
    assert {str(path) for path in tmp_path.rglob("*.parquet") if "/data/" in str(path)} == paths(table.refresh())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("spec", [PartitionSpec(), BY_PART], ids=["unpartitioned", "partitioned"])
@pytest.mark.parametrize(("version", "direct_files"), [(2, "100"), (3, "100"), (4, "100"), (4, "0")])
def test_another_commit_changes_the_partition_spec(
    spark: SparkSession, tmp_path: Path, spec: PartitionSpec, version: int, direct_files: str, mode: str
) -> None:
    properties = {"write.tree.direct-files": direct_files, "write.update.mode": mode}
    table = new_table(spark, tmp_path, spec, version=version, **properties)
    table = table.append(frame(spark, ordinary(0, 6)).coalesce(1))
    stale = table.transaction().update({"n": -1}, "id = 1")
    table.update_spec().add_field("id", BucketTransform(2), "b").commit()
    table = stale.commit()
    after = sorted(map(tuple, table.scan().to_df().collect()))
    assert after == [(i, part, -1 if i == 1 else n) for i, part, n in ordinary(0, 6)]
    if version == 4:
        assert not table.check().collect()


def test_an_overwrite_of_no_row_appends(spark: SparkSession, tmp_path: Path) -> None:
    table = new_table(spark, tmp_path).append(frame(spark, [(1, "a", 1), (9, "a", 9)]))
    table = table.overwrite(frame(spark, [(5, "a", 5)]), "id = 5")
    assert rows_of(table) == [(1, "a", 1), (5, "a", 5), (9, "a", 9)]
    assert table.current_snapshot().operation == "append"
    levels: tuple[Isolation | None, ...] = (None, "snapshot", "serializable")
    for missing, level in enumerate(levels, start=2):
        stale = table.transaction()
        stale.overwrite(frame(spark, [(6, "b", 6)]), f"id = {missing}", isolation=level)
        table = table.append(frame(spark, [(missing, "a", 0)]))
        if level == "snapshot":
            table = stale.commit()
        else:  # a file was read, so the default is serializable
            with pytest.raises(sm.CommitConflictError):
                stale.commit()
    assert [row[0] for row in rows_of(table)] == [1, 2, 3, 4, 5, 6, 9]


def data_files(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*.parquet") if "/data/" in str(path)}


def test_an_error_after_the_commit_deletes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    table = new_table(spark, tmp_path)

    def fails_later() -> None:
        with table.transaction() as tx:
            tx.append(frame(spark, ordinary(0, 3)))
            tx.commit()
            raise RuntimeError("later")

    with pytest.raises(RuntimeError, match="later"):
        fails_later()
    assert rows_of(table.refresh()) == sorted(ordinary(0, 3), key=repr)


@pytest.mark.parametrize("error", [sm.CommitStateUnknownError("lost"), KeyboardInterrupt("now")], ids=repr)
def test_an_unknown_outcome_deletes_nothing(
    spark: SparkSession,
    tmp_path: Path,
    error: BaseException,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    table, swap = new_table(spark, tmp_path), FileSystemOperations.commit

    def interrupted(self: FileSystemOperations, base: Any, metadata: Any) -> Any:
        swap(self, base, metadata)
        raise error

    monkeypatch.setattr(FileSystemOperations, "commit", interrupted)
    transaction = table.transaction().append(frame(spark, ordinary(0, 3)))
    with pytest.raises(type(error)), transaction:
        transaction.commit()
    assert "the files of the write stay, since this does not rule out a commit" in caplog.text
    assert rows_of(table.refresh()) == sorted(ordinary(0, 3), key=repr)


def test_a_failed_commit_of_rows_is_not_repeated(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table(spark, tmp_path, commit__retry__num_retries="0")

    def failed(*_: Any) -> Any:
        raise sm.CommitFailedError("another commit came first")

    transaction = table.transaction().append(frame(spark, ordinary(0, 3)))
    with monkeypatch.context() as patch:
        patch.setattr(FileSystemOperations, "commit", failed)
        with pytest.raises(sm.CommitFailedError):
            transaction.commit()
    with pytest.raises(sm.CommitFailedError, match="came first"), transaction:
        pass
    assert table.refresh().current_snapshot() is None
    assert not data_files(tmp_path)


def test_a_failure_before_the_commit_deletes_files(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table(spark, tmp_path)

    def failed(*_: Any) -> Any:
        raise OSError("no answer")

    monkeypatch.setattr(FileSystemOperations, "commit", failed)
    with pytest.raises(OSError, match="no answer"):
        table.append(frame(spark, ordinary(0, 3)))
    assert not data_files(tmp_path)


WRITES: dict[str, Callable[[sm.Table, DataFrame], Any]] = {
    "append": lambda table, new: table.append(new),
    "overwrite": lambda table, new: table.overwrite(new, "id < 5"),
    "overwrite partitions": lambda table, new: table.dynamic_partition_overwrite(new),
    "delete": lambda table, _: table.delete("id = 5"),
    "equality delete": lambda table, new: table.equality_delete(new.select("id"), ["id"]),
    "update": lambda table, _: table.update({"n": 0}, "id = 5"),
    "upsert": lambda table, new: table.upsert(new, ["id"]),
    "merge": lambda table, new: table.merge(new, ["id"]).when_not_matched().insert_all().merge(),
    "rewrite of data": lambda table, _: table.maintenance.rewrite_data_files(rewrite_all=True).commit(),
    "rewrite of deletes": lambda table, _: table.maintenance.rewrite_position_delete_files(rewrite_all=True).commit(),
}


@pytest.mark.parametrize(
    ("version", "name", "value"),
    [
        (2, "commit.manifest.target-size-bytes", "abc"),
        (2, "commit.manifest-merge.enabled", "perhaps"),
        (2, "write.manifest.compression-codec", "rar"),
        (2, "write.manifest.compression-level", "99"),
        (4, "write.tree.direct-files", "abc"),
    ],
)
def test_properties_of_the_snapshot_are_checked_before_files_are_written(
    spark: SparkSession, tmp_path: Path, version: int, name: str, value: str
) -> None:
    table = new_table(spark, tmp_path, version=version, **MERGE_ON_READ).append(frame(spark, ordinary(0, 9)))
    table = table.delete("id = 0")
    folder = tmp_path / "elsewhere"
    table = table.transaction().set_properties({name: value, "write.data.path": str(folder)}).commit()
    for write in WRITES.values():
        with pytest.raises(sm.ValidationError, match=rf"db[/.]t: the table property {name} is '{value}'"):
            write(table, frame(spark, ordinary(100, 103)))
        assert not folder.exists()
    assert table.refresh().metadata_location == table.metadata_location


def test_an_append_reads_no_manifest(spark: SparkSession, tmp_path: Path) -> None:
    catalog = sm.load_catalog("rows", type="hadoop", warehouse=str(tmp_path))
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", SCHEMA, BY_PART, format_version=2, spark=spark)
    table = table.append(frame(spark, ordinary(0, 3)))
    (manifest,) = (path for path in tmp_path.rglob("*.avro") if not path.name.startswith("snap-"))
    hidden = manifest.rename(manifest.with_suffix(".hidden"))
    table = table.append(frame(spark, ordinary(3, 6)))
    hidden.rename(manifest)
    assert sorted(row.id for row in table.scan().to_df().collect()) == [*range(6)]
    # The table is searched for files that a user names, unless the user says that their names are new.
    read = table.inspect.data_files().limit(1)
    files = spark.createDataFrame(read.toArrow(), read.schema)
    with pytest.raises(sm.CommitConflictError, match="is in the table already"), table.transaction() as tx:
        tx.update_snapshot().append(files)
    renamed = files.withColumn("file_path", F.concat("file_path", F.lit("-copy")))
    hidden = manifest.rename(manifest.with_suffix(".hidden"))
    with table.transaction() as tx:
        tx.update_snapshot().append(renamed).assume_new_files()
    hidden.rename(manifest)
    assert table.refresh().inspect.data_files().count() == table.inspect.data_files().count() + 1


def test_changes_of_a_branch(spark: SparkSession, tmp_path: Path) -> None:
    table = new_table(spark, tmp_path).append(frame(spark, ordinary(0, 6)))
    with table.manage_snapshots() as manage:
        manage.create_branch(table.current_snapshot().snapshot_id, "audit")
    table = table.refresh().delete("id < 3", branch="audit", snapshot_properties={"job": "7"})
    assert len(rows_of(table)) == 6
    assert sorted(row.id for row in table.scan().use_ref("audit").to_df().collect()) == [3, 4, 5]
    assert table.snapshot_by_name("audit").summary["job"] == "7"


def test_what_is_refused_before_rows_are_read(spark: SparkSession, tmp_path: Path) -> None:
    table = new_table(spark, tmp_path).append(frame(spark, ordinary(0, 6)))
    unread = frame(spark, ordinary(6, 3)).withColumn("n", F.raise_error(F.lit("rows were read")).cast("int"))
    with pytest.raises(sm.ValidationError, match="property added-records is computed and can't be set"):
        table.append(unread, snapshot_properties={"added-records": "1"})
    with pytest.raises(sm.InvalidFilterError, match="nothing"):
        table.overwrite(unread, "nothing = 1")
    with pytest.raises(sm.ValidationError, match=r"n: .*window functions"):
        table.update({"n": F.expr("row_number() OVER (ORDER BY id)")})
    for change in (
        lambda: table.overwrite(unread, "id = 1", isolation="none"),  # type: ignore[arg-type]
        lambda: table.dynamic_partition_overwrite(unread, isolation="none"),  # type: ignore[arg-type]
        lambda: table.delete("id = 100", isolation="none"),  # type: ignore[arg-type]
        lambda: table.upsert(unread, ["id"], isolation="none"),  # type: ignore[arg-type]
    ):
        with pytest.raises(sm.ValidationError, match="isolation is 'none': expected serializable or snapshot"):
            change()
    texts: Any = "n = 1"
    for problem, call in {
        "assignments is 'n = 1': expected a mapping of names": lambda: table.update(texts),
        "join_cols is 'n = 1': expected a list of strings": lambda: table.upsert(unread, texts),
        "equality_cols is 'n = 1': expected a list of strings": lambda: table.equality_delete(unread, texts),
    }.items():
        with pytest.raises(sm.ValidationError, match=problem):
            call()


@pytest.mark.java
def test_a_deletion_vector_absorbs_older_deletes(spark: SparkSession) -> None:
    spark.sql("CREATE NAMESPACE IF NOT EXISTS java.peers")
    shop = Workshop(Java(spark), "older_deletes", catalog_name="java")
    shop.create("id BIGINT, part STRING, n INT", version=2, properties=MERGE_ON_READ)
    shop.insert(*(f"{i}, 'a', {i}" for i in range(20)))
    shop.sql("DELETE FROM {t} WHERE id IN (3, 4)")
    table = sm.load_table(str(shop.folder), spark=spark).maintenance.upgrade(4).commit()
    assert table.inspect.delete_files().select("file_format").first()[0] == "PARQUET"
    table = table.delete("id in (4, 5, 6)").delete("n = 7")
    assert [row[0] for row in rows_of(table)] == sorted((i for i in range(20) if i not in range(3, 8)), key=str)
    (vector,) = table.inspect.delete_files().where("file_format = 'PUFFIN'").collect()
    assert vector.record_count == 5


def test_several_changes_in_a_transaction(spark: SparkSession, tmp_path: Path) -> None:
    table = new_table(spark, tmp_path)
    with table.transaction() as tx:
        tx.update_schema().add_column("extra", IntegerType()).commit()
        tx.append(spark.sql("SELECT 1L id, 'a' part, 5 extra")).append(spark.sql("SELECT 2L id, 6 extra"))
        with pytest.raises(sm.UnsupportedError, match="commit it first"):
            tx.delete("id = 1")
        with pytest.raises(sm.ValidationError, match="column no is not in the table"):
            tx.append(spark.sql("SELECT 3L id, 1 no"))
    table = table.refresh()
    assert rows_of(table) == [(1, "a", None, 5), (2, None, None, 6)]
    assert len(table.snapshots()) == 2
    given_up = table.transaction()
    given_up.append(frame(spark, [(9, "z", 1)]))
    given_up.__exit__(RuntimeError, RuntimeError(), None)
    assert {str(path) for path in tmp_path.rglob("*.parquet") if "/data/" in str(path)} == paths(table.refresh())


@pytest.mark.parametrize("mode", MODES if SOAK else MODES[:1])
def test_upsert(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    table = new_table(spark, tmp_path, write__merge__mode=mode).append(frame(spark, ordinary(0, 20)))
    ids = {row[0]: row[-1] for row in rows_of(table, selected_fields=("id", "_row_id"))}
    rows = [(3, "moved", 3), (4, *ordinary(4, 5)[0][1:]), (50, "b", None)]
    table = table.upsert(frame(spark, rows), ["id"])
    expected = {row[0]: row for row in ordinary(0, 20)} | {row[0]: row for row in rows}
    assert rows_of(table) == sorted(expected.values(), key=repr)
    after = {row[0]: row[-1] for row in rows_of(table, selected_fields=("id", "_row_id"))}
    assert {key: after[key] for key in ids} == ids
    assert (table.inspect.delete_files().count() > 0) == (mode == "merge-on-read")
    # A column that the rows lack stays. Without a difference there is no snapshot.
    table = table.upsert(spark.sql("SELECT 50L id, 7 n"), ["id"])
    assert [row for row in rows_of(table) if row[0] == 50] == [(50, "b", 7)]
    snapshots = len(table.snapshots())
    assert len(table.upsert(spark.sql("SELECT 50L id, 7 n"), ["id"]).snapshots()) == snapshots
    with pytest.raises(sm.ValidationError, match="two of the rows have the key"):
        table.upsert(frame(spark, [(1, "a", 1), (1, "b", 1)]), ["id"])
    with pytest.raises(sm.ValidationError, match="names no identifier fields"):
        table.upsert(frame(spark, [(1, "a", 1)]))


NO_FRAMES: dict[str, tuple[Callable[[SparkSession, pa.Table], Any], str]] = {
    "list": (
        lambda _, rows: rows.to_pylist(),
        "the rows are a list: expected a DataFrame of Spark, pandas or polars",
    ),
    "stream": (
        lambda spark, _: spark.readStream.format("rate").load().selectExpr("value AS id", "'a' AS part", "1 AS n"),
        "the rows are a stream: write each batch, in a function for foreachBatch",
    ),
}


@pytest.mark.parametrize("kind", NO_FRAMES)
def test_rows_that_can_not_be_written(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    table = new_table(spark, tmp_path)
    make, problem = NO_FRAMES[kind]
    rows = make(spark, pa.table({"id": [1], "part": ["a"], "n": [1]}))
    changes: list[Callable[[], object]] = [
        lambda: table.append(rows),
        lambda: table.overwrite(rows),
        lambda: table.dynamic_partition_overwrite(rows),
        lambda: table.upsert(rows, ["id"]),
        lambda: table.equality_delete(rows, ["id"]),
        lambda: table.merge(rows, "id").when_matched().delete().merge(),
        lambda: table.merge(rows, "id").when_not_matched().insert_all().merge(),
    ]
    for change in changes:
        with pytest.raises(sm.ValidationError, match=problem):
            change()


UNFIT_VALUES: dict[str, tuple[str, Callable[[], Any]]] = {
    "overflow": ("n: 30000000000 does not fit int", lambda: F.col("id") * 10_000_000_000),
    "text": ("n: abc does not fit int", lambda: F.lit("abc")),
    "constant": ("n: 'n . 1' does not fit int; an expression is a Column", lambda: "n + 1"),
    "type": ("n: .*cannot cast .* to", lambda: F.array(F.col("id"))),
}


@pytest.mark.parametrize("ansi", ["true", "false"])
@pytest.mark.parametrize("case", UNFIT_VALUES)
def test_values_that_do_not_fit(spark: SparkSession, tmp_path: Path, case: str, ansi: str) -> None:
    table = new_table(spark, tmp_path).append(frame(spark, [(3, "a", 1)]))
    problem, value = UNFIT_VALUES[case]
    with configured(spark, {"spark.sql.ansi.enabled": ansi}):
        with pytest.raises(sm.ValidationError, match=problem):
            table.update({"n": value()})
        table = table.refresh().update({"n": F.col("id").cast("string")})
    assert rows_of(table) == [(3, "a", 3)]


@pytest.mark.parametrize("mode", MODES)
def test_a_missing_data_file(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    modes = {f"write__{change}__mode": mode for change in ("delete", "update", "merge")}
    table = new_table(spark, tmp_path, PartitionSpec(), **modes).append(
        frame(spark, [(1, "a", 1), (2, "b", 2)]).coalesce(1)
    )
    (path,) = (row.file_path for row in table.inspect.data_files().select("file_path").collect())
    Path(path.removeprefix("file:")).unlink()
    changes: list[Callable[[], object]] = [
        lambda: table.delete("n = 1"),
        lambda: table.update({"n": 7}, "id = 1"),
        lambda: table.upsert(frame(spark, [(1, "z", 3)]), ["id"]),
        lambda: table.merge(frame(spark, [(1, "z", 3)]), "id").when_matched().delete().merge(),
        lambda: table.scan().to_arrow(),
    ]
    for change in changes:
        with pytest.raises(sm.NotFoundError, match=Path(path).name):
            change()


@pytest.mark.parametrize("mode", MODES)
def test_columns_that_differ_only_in_case(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    """Spark regards the columns as the same, unless `spark.sql.caseSensitive` is set."""
    catalog = sm.load_catalog("rows", type="hadoop", warehouse=str(tmp_path))
    catalog.create_namespace("db")
    names = ("id", "a", "A", "n", "changes")
    schema = Schema(*(NestedField(index, name, LongType()) for index, name in enumerate(names, 1)))
    spec = PartitionSpec(PartitionField(3, 1000, BucketTransform(4), "A_bucket"))
    modes = {"write.update.mode": mode, "write.delete.mode": mode}
    table = catalog.create_table("db.t", schema, spec, format_version=3, properties=modes, spark=spark)
    rows = [(index, 10 + index, 20 + index, 30 + index, 40 + index) for index in range(4)]
    table = table.append(spark.createDataFrame(rows, list(names)).coalesce(1))
    table = table.update({"A": F.col("n") + 70, "n": 7}, "A = 22").update({"a": F.col("changes")}, "a = 11")
    changed = [rows[0], (1, 41, 21, 31, 41), (2, 12, 102, 7, 42), rows[3]]
    assert sorted(map(tuple, table.scan().to_df().collect())) == changed
    table = table.delete("A = 21").update({"changes": 5})
    assert sorted(map(tuple, table.scan().to_df().collect())) == [(*row[:4], 5) for row in changed if row[2] != 21]
