"""Equality delete files are compared with a model, and with Iceberg's Java writers and readers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from pyarrow import orc
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import DateType, IntegerType, LongType, NestedField, StringType, StructType

import sparkmeta as sm
from tests.peers.file_maker import local_path
from tests.peers.java import Java
from tests.peers.slices import SOAK
from tests.peers.workshop import MERGE_ON_READ, Workshop
from tests.write.test_changes import BY_PART, SCHEMA, Rows, frame, ordinary
from tests.write.test_files import EVERY_TYPE, QUERY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession


def new_table(
    spark: SparkSession, folder: Path, version: int, spec: PartitionSpec = BY_PART, schema: Schema = SCHEMA, **more: str
) -> sm.Table:
    catalog = sm.load_catalog("rows", type="hadoop", warehouse=str(folder))
    catalog.create_namespace("db")
    named = MERGE_ON_READ | {key.replace("__", ".").replace("_", "-"): value for key, value in more.items()}
    return catalog.create_table("db.t", schema, spec, format_version=version, properties=named, spark=spark)


def sorted_rows(rows: Any) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, rows), key=repr)


def equality_files(table: sm.Table) -> list[dict[str, Any]]:
    files = table.inspect.delete_files().where("content = 2").orderBy("spec_id", "record_count", "file_path")
    return list(files.toArrow().to_pylist())


VERSIONS = (2, 3, 4)


@pytest.mark.java
@pytest.mark.parametrize("version", VERSIONS if SOAK else VERSIONS[1:2])
def test_a_history_with_equality_deletes(spark: SparkSession, tmp_path: Path, version: int) -> None:
    table = new_table(spark, tmp_path, version)
    model: Rows = []

    def step(changed: sm.Table, expected: Rows) -> None:
        nonlocal table, model
        table, model = changed.refresh(), expected
        assert sorted_rows(table.scan().to_df().collect()) == sorted_rows(model)
        if version < 4:
            read_by_java = spark.read.format("iceberg").load(table.location()).select("id", "part", "n")
            assert sorted_rows(read_by_java.collect()) == sorted_rows(model)
        else:
            assert not table.check().collect()

    def without(keys: set[tuple[int | None, str | None]]) -> Rows:
        return [row for row in model if (row[0], row[1]) not in keys]

    step(table.append(frame(spark, ordinary(0, 30))), ordinary(0, 30))
    # Deletes of a partition: 7 and 14 have a null partition value, and 1 is in another partition.
    keys = spark.sql("SELECT * FROM VALUES (7L, null), (4L, 'b'), (1L, 'a'), (99L, 'c') AS t(id, part)")
    step(table.equality_delete(keys, ["id"], snapshot_properties={"job": "7"}), without({(7, None), (4, "b")}))
    summary = table.current_snapshot().summary
    assert (summary["job"], summary["added-equality-deletes"]) == ("7", "4")
    assert summary.operation.value == "delete"
    # The same keys are added again; deletes apply to older files only.
    step(table.append(frame(spark, [(4, "b", 44), (7, None, 77)])), [*model, (4, "b", 44), (7, None, 77)])
    # A null key equals null, and other columns of the rows are ignored.
    nulls = spark.sql("SELECT 12345L id, n, part FROM VALUES (cast(null as int), 'b'), (80, 'c') AS t(n, part)")
    gone = [row for row in model if (row[2], row[1]) in {(None, "b"), (80, "c")}]
    assert len(gone) == 3
    step(table.equality_delete(nulls, ["n"]), [row for row in model if row not in gone])
    step(table.delete("id = 13"), [row for row in model if row[0] != 13])
    step(table.update({"n": -1}, "id = 11"), [(i, p, -1 if i == 11 else n) for i, p, n in model])
    new = [(2, "c", 5), (200, "a", 6)]
    upserted = table.upsert(frame(spark, new), ["id"])
    step(upserted, [*(row for row in model if row[0] != 2), *new])
    # An upsert of a streaming engine: deletes, then rows, in one commit.
    with table.transaction() as tx:
        tx.equality_delete(frame(spark, [(200, "a", 0), (19, "b", 0)]), ["part", "id"])
        tx.append(frame(spark, [(200, "a", 7), (19, "b", 8)]))
    changed = [(200, "a", 7), (19, "b", 8)]
    step(table.refresh(), [*without({(200, "a"), (19, "b")}), *changed])
    if version == 2:
        plan = table.maintenance.rewrite_position_delete_files(rewrite_all=True)
        step(plan.commit(), model)
    assert equality_files(table)
    step(table.maintenance.rewrite_data_files(rewrite_all=True).commit(), model)
    step(table.maintenance.remove_dangling_deletes().commit(), model)
    assert not equality_files(table)
    step(table.equality_delete(frame(spark, [(200, "a", 0)]), ["id"]), without({(200, "a")}))


@pytest.mark.parametrize("version", VERSIONS if SOAK else VERSIONS[1:])
def test_deleted_rows_of_files_that_are_written_again(interpreted: SparkSession, tmp_path: Path, version: int) -> None:
    """A change rewrites a file with a deleted key that its filter excludes: the row stays deleted."""
    modes = {f"write__{command}__mode": "copy-on-write" for command in ("delete", "update", "merge")}
    table, model = new_table(interpreted, tmp_path, version, PartitionSpec(), **modes), ordinary(0, 30)
    table = table.append(frame(interpreted, model).coalesce(1))
    new: Rows = [(7, "z", 1)]
    changes: list[tuple[Callable[[sm.Table], Any], int | None, Rows]] = [
        (lambda table: table.delete("id = 3"), 3, []),
        (lambda table: table.update({"n": -1}, "id = 5"), 5, [(5, ordinary(5, 6)[0][1], -1)]),
        (lambda table: table.upsert(frame(interpreted, new), ["id"]), 7, new),
        (lambda table: table.overwrite(frame(interpreted, [(9, "y", 2)]), "id = 9"), 9, [(9, "y", 2)]),
        (
            lambda table: table.maintenance.rewrite_data_files(
                "id < 5", rewrite_all=True, use_starting_sequence_number=False
            ).commit(),
            None,
            [],
        ),
    ]
    for key, (change, old, rows) in enumerate(changes, start=20):
        table = table.equality_delete(frame(interpreted, [(key, None, None)]), ["id"])
        change(table)
        table = table.refresh()
        model = [row for row in model if row[0] not in {old, key}] + rows
        assert sorted_rows(table.scan().to_df().collect()) == sorted_rows(model), key


# Fields that depend on names, locations or encoders.
_OURS = {"file_path", "file_size_in_bytes", "column_sizes", "readable_metrics"}
_COUNTS = ("added-delete-files", "added-equality-delete-files", "added-equality-deletes", "total-equality-deletes",
           "total-delete-files", "total-records", "changed-partition-count")  # fmt: skip


@pytest.mark.java
@pytest.mark.parametrize("version", VERSIONS[:2] if SOAK else VERSIONS[:1])
def test_files_are_those_of_java(spark: SparkSession, version: int) -> None:
    spark.sql("CREATE NAMESPACE IF NOT EXISTS java.peers")
    theirs, ours = (Workshop(Java(spark), f"{name}_equality_v{version}", catalog_name="java") for name in "ab")
    for shop in (theirs, ours):
        shop.create("id BIGINT, part STRING, long STRING, st STRUCT<y: INT, z: INT>", "part", version=version)
        shop.insert(*(f"{i}, 'p{i % 2}', '{'long ' * i}', named_struct('y', {i}, 'z', 0)" for i in range(10)))
    theirs.row_delta(theirs.equality_delete_by_java(["id", "long"], [[9, "long " * 9], [None, "x"]], ["p1"]))
    theirs.row_delta(theirs.equality_delete_by_java(["id"], [[2]], ["p0"]))
    table = sm.load_table(str(ours.folder), spark=spark)
    both = spark.createDataFrame([(9, "p1", "long " * 9), (None, "p1", "x")], "id BIGINT, part STRING, long STRING")
    table = table.equality_delete(both.coalesce(1), ["long", "id"])
    table = table.equality_delete(spark.sql("SELECT 2 id, 'p0' part"), ["id"])
    peer = sm.load_table(str(theirs.folder), spark=spark)
    files, peers = equality_files(table), equality_files(peer)
    assert [{name: row[name] for name in row if name not in _OURS} for row in files] == [
        {name: row[name] for name in row if name not in _OURS} for row in peers
    ]
    for file, of_peer in zip(files, peers, strict=True):
        assert dict(file["column_sizes"]).keys() == dict(of_peer["column_sizes"]).keys()
        notes = [pq.read_metadata(local_path(deletes["file_path"])).metadata for deletes in (file, of_peer)]
        for key in (b"delete-type", b"delete-field-ids"):
            assert notes[0][key] == notes[1][key]
    summaries = [each.current_snapshot().summary for each in (table, peer)]
    assert {name: summaries[0][name] for name in _COUNTS} == {name: summaries[1][name] for name in _COUNTS}
    assert summaries[0].operation == summaries[1].operation
    # If the key is a field of a struct, the struct's other fields are not part of the key.
    nested = spark.sql("SELECT 'p0' part, named_struct('z', 7, 'y', 4) st")
    table = table.refresh().equality_delete(nested, ["st.y"])
    expected = [i for i in range(10) if i not in {2, 4, 9}]
    for rows in (table.scan().to_df(), ours.sql("SELECT * FROM {t}")):
        assert sorted(row.id for row in rows.collect()) == expected
    old = Workshop(Java(spark), f"old_equality_v{version}", catalog_name="java")
    old.create("id BIGINT", version=1)
    with pytest.raises(sm.UnsupportedError, match="format version 1, which has no equality deletes"):
        sm.load_table(str(old.folder), spark=spark).equality_delete(spark.sql("SELECT 1L id"), ["id"])


FORMATS = ("parquet", "orc", "avro") if SOAK else ("parquet", "avro")


@pytest.mark.java
@pytest.mark.parametrize("file_format", FORMATS)
def test_keys_of_every_type(spark: SparkSession, tmp_path: Path, file_format: str, soak: bool) -> None:
    table = new_table(spark, tmp_path, 2, PartitionSpec(), EVERY_TYPE, write__delete__format__default=file_format)
    rows = spark.sql(QUERY).where("id < 12")
    table = table.append(rows)
    names = [field.name for field in EVERY_TYPE.fields if field.name not in {"id", "d", "l", "m"}]
    key = ["st.y" if name == "st" else name for name in names] if soak else ["u", "fx", "t", "dec", "tz", "b", "st.y"]
    changed = table.equality_delete(rows.where("id IN (4, 5, 8)"), key)
    (file,) = equality_files(changed)
    assert file["file_path"].endswith(f"-deletes.{file_format}")
    assert file["equality_ids"] == sorted(changed.schema().find_field(name).field_id for name in key)
    if file_format == "orc":
        assert orc.ORCFile(local_path(file["file_path"])).nrows == 3
    expected = [i for i in range(12) if i not in {4, 5, 8}]
    assert sorted(row.id for row in changed.scan(selected_fields=("id",)).to_df().collect()) == expected
    # Java reads keys in structs only if all columns are read, and never if the struct is null.
    records = Java(spark).records(changed.metadata_location)
    assert sorted(record.getField("id") for record in records) == expected


@pytest.mark.parametrize("version", [4, 2] if SOAK else [4])
def test_every_spec_with_data_gets_deletes(spark: SparkSession, tmp_path: Path, version: int) -> None:
    table = new_table(spark, tmp_path, version)
    table = table.append(frame(spark, [(1, "a", 1), (2, "b", 1)]))
    with table.update_spec() as update:
        update.add_field("id", BucketTransform(4), "id_bucket")
    table = table.refresh().append(frame(spark, [(1, "a", 2), (2, "b", 2), (3, "a", 2)]))
    changed = table.equality_delete(frame(spark, [(1, "a", 0), (2, "b", 0)]), ["id"])
    assert sorted_rows(changed.scan().to_df().collect()) == [(3, "a", 2)]
    assert [file["spec_id"] for file in equality_files(changed)] == [0, 0, 1, 1]
    with pytest.raises(sm.ValidationError, match="made from column part, which the rows lack; and the table has no"):
        changed.equality_delete(spark.sql("SELECT 3L id"), ["id"])
    # Deletes of an unpartitioned spec apply to all files.
    with changed.update_spec() as update:
        update.remove_field("part").remove_field("id_bucket")
    with changed.refresh().update_spec() as update:
        update.add_identity("n")
    table = changed.refresh().append(frame(spark, [(3, "z", 9)]))
    changed = table.equality_delete(spark.sql("SELECT 3L id"), ["id"])
    assert not changed.scan().to_df().collect()
    assert [file["spec_id"] for file in equality_files(changed)][-1] == 2
    if version == 4:
        assert not changed.check().collect()


NESTED = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "part", StringType()),
    NestedField(3, "st", StructType(NestedField(4, "x", IntegerType()))),
    identifier_field_ids=[1],
)
REFUSED = {
    ("SELECT 1L id, 'a' part", "no"): "column no of the key is not in the table",
    ("SELECT 1L id, 'a' part, 1 other", "id"): "column other is not in the table",
    ("SELECT 'a' part", "id"): "column id of the key is not in the rows",
    ("SELECT 'a' part, 1 id, 1 id", "id"): "the rows have column id twice",
    ("SELECT 'x' id, 'a' part", "id"): "column id of the rows is string: the table has type long",
    ("SELECT named_struct('y', 1) st, 'a' part", "st.x"): "column st.x of the key is not in the rows",
    ("SELECT named_struct('x', 1) st, 'a' part", "st"): "column st of the key is of type struct",
    ("SELECT 1L id", "id"): "partition field 'part' is made from column part, which the rows lack",
    ("SELECT cast(null as bigint) id, 'a' part", "id"): "column id is required, and has nulls in 1 rows",
    ("SELECT 1L id, 'a' part", "id,id"): "the key has column id twice",
}


def test_keys_that_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    table = new_table(spark, tmp_path, 3, schema=NESTED).append(spark.sql("SELECT 1L id, 'a' part"))
    for (query, columns), message in REFUSED.items():
        with pytest.raises(sm.ValidationError) as caught:
            table.equality_delete(spark.sql(query), columns.split(","))
        assert message in str(caught.value)
    snapshots = len(table.refresh().snapshots())
    unchanged = table.equality_delete(spark.sql("SELECT 1L id, 'a' part").limit(0))
    assert len(unchanged.snapshots()) == snapshots == 1
    assert len(list(tmp_path.rglob("data/**/*.parquet"))) == 1
    assert not table.equality_delete(spark.sql("SELECT 1L id, 'a' part")).scan().to_df().collect()
    of_types = new_table(spark, tmp_path / "types", 2, PartitionSpec(), EVERY_TYPE)
    for column in ("d", "l.element.e", "m"):
        with pytest.raises(sm.ValidationError, match="of the key is"):
            of_types.equality_delete(spark.sql(QUERY), [column])
    with pytest.raises(sm.ValidationError, match="takes equality_cols: the table's schema names no identifier fields"):
        of_types.equality_delete(spark.sql(QUERY))


def test_rows_of_other_commits(spark: SparkSession, tmp_path: Path) -> None:
    table = new_table(spark, tmp_path, 3, PartitionSpec()).append(frame(spark, [(1, "a", 1), (2, "b", 2)]))

    def begun(**more: Any) -> sm.RowTransaction[sm.Table]:
        return table.transaction().equality_delete(frame(spark, [(1, "x", 1)]), ["id"], **more)

    others: Sequence[tuple[int, Callable[[], Any], bool]] = [
        (1, lambda: begun(isolation="serializable"), True),
        (7, lambda: begun(isolation="serializable"), False),
        (1, lambda: begun(isolation="snapshot"), False),
        (1, begun, False),
    ]
    for added, begin, conflicts in others:
        table = table.refresh()
        stale = begin()
        after = table.append(frame(spark, [(added, "new", 0)]))
        if conflicts:
            with pytest.raises(sm.CommitConflictError, match="added data that may match"):
                stale.commit()
            assert not equality_files(after.refresh())
        else:
            assert 1 not in [row.id for row in stale.commit().scan().to_df().collect()]
    # A branch has separate deletes, and deletes of files that a rewrite replaces apply to the new files.
    table = table.refresh()
    with table.manage_snapshots() as manage:
        manage.create_branch(table.current_snapshot().snapshot_id, "audit")
    table = table.refresh().equality_delete(frame(spark, [(2, "x", 1)]), ["id"], branch="audit")
    assert [row.id for row in table.scan().use_ref("audit").to_df().collect()] == [7]
    plan = table.maintenance.rewrite_data_files(rewrite_all=True)
    table.equality_delete(frame(spark, [(2, "x", 1)]), ["id"])
    assert [row.id for row in plan.commit().scan().to_df().collect()] == [7]


def test_dates_that_python_lacks(spark: SparkSession, tmp_path: Path) -> None:
    """Keys of upserts and equality deletes, and the conflict filter, have years from 10000 on."""
    catalog = sm.load_catalog("dates", type="hadoop", warehouse=str(tmp_path))
    catalog.create_namespace("db")
    schema = Schema(NestedField(1, "d", DateType()), NestedField(2, "n", IntegerType()))
    table = catalog.create_table("db.t", schema, spark=spark)
    far = "date_add(DATE'9999-12-31', 10)"
    table = table.append(spark.sql(f"SELECT {far} d, 1 n UNION ALL SELECT DATE'2026-01-01', 2"))
    table = table.upsert(spark.sql(f"SELECT {far} d, 10 n"), ["d"], isolation="serializable")
    assert sorted(row.n for row in table.scan().to_df().select("n").collect()) == [2, 10]
    table = table.equality_delete(spark.sql(f"SELECT {far} d"), ["d"], isolation="serializable")
    assert [row.n for row in table.scan().to_df().select("n").collect()] == [2]


@pytest.mark.parametrize("version", [2, 4])
def test_others_add_data_of_a_new_partition_spec(interpreted: SparkSession, tmp_path: Path, version: int) -> None:
    """Partitioned deletes would not apply to the data, which is a conflict.

    The retried change makes new deletes, which apply.
    """
    table = new_table(interpreted, tmp_path, version).append(frame(interpreted, [(1, "a", 1), (2, "b", 2)]))
    key = frame(interpreted, [(1, "a", None)])
    stale = table.transaction()
    stale.equality_delete(key, ["id"])
    table.update_spec().add_field("id", BucketTransform(2)).commit()
    evolved = table.refresh().append(frame(interpreted, [(1, "a", 7)]))
    with pytest.raises(sm.CommitConflictError, match="added data of a partition spec to which the new"):
        stale.commit()
    assert sorted_rows(evolved.equality_delete(key, ["id"]).scan().to_df().collect()) == [(2, "b", 2)]


def test_a_transaction_that_adds_data_of_another_spec(interpreted: SparkSession, tmp_path: Path) -> None:
    table = new_table(interpreted, tmp_path, 2)
    transaction = table.transaction()
    transaction.append(frame(interpreted, [(1, "a", 1)]))
    transaction.update_spec().add_field("id", BucketTransform(2)).commit()
    transaction.equality_delete(frame(interpreted, [(1, "a", None)]), ["id"])
    with pytest.raises(sm.CommitConflictError, match="this transaction, added data of a partition spec to which"):
        transaction.commit()


def test_others_add_data_of_specs_that_deletes_apply_to(interpreted: SparkSession, tmp_path: Path) -> None:
    table = new_table(interpreted, tmp_path, 2).append(frame(interpreted, [(1, "a", 1)]))
    table.update_spec().add_field("id", BucketTransform(2)).commit()
    table = table.refresh().append(frame(interpreted, [(1, "a", 2)]))
    stale = table.transaction()
    stale.equality_delete(frame(interpreted, [(1, "a", None)]), ["id"])
    table.append(frame(interpreted, [(1, "a", 3), (2, "b", 4)]))
    assert sorted_rows(stale.commit().scan().to_df().collect()) == [(2, "b", 4)]


@pytest.mark.parametrize("collation", ["UTF8_BINARY", "UTF8_LCASE"])
def test_others_add_a_key_between_keys_of_a_collation(
    interpreted: SparkSession, tmp_path: Path, collation: str
) -> None:
    """The order of the table's strings is used: 'B' comes before 'a'."""
    table = new_table(interpreted, tmp_path, 2, PartitionSpec()).append(frame(interpreted, [(1, "a", 1)]))
    keys = frame(interpreted, [(0, "a", None), (0, "B", None)]).selectExpr("id", f"part COLLATE {collation} AS part")
    stale = table.transaction()
    stale.equality_delete(keys, ["part"], isolation="serializable")
    table.append(frame(interpreted, [(2, "a", 2)]))
    with pytest.raises(sm.CommitConflictError, match="added data that may match"):
        stale.commit()
