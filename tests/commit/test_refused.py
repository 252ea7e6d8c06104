"""Change sets that would break a table are refused with one error, which names the file and the value.

They are refused wherever their entries would go, and leave nothing behind. `Table.check` would find each of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.types import LongType
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import sparkmeta as sm
from sparkmeta.errors import CommitConflictError, InvalidFilterError, ValidationError
from tests.commit.test_transaction import SCHEMA, SPEC, commit, files, live, vectors, written
from tests.frames import local_frame

# Properties that send new files to the root or to leaves, and searches to the driver or to tasks.
LAYOUTS = {"root": (100, 20_000), "leaves": (0, 20_000), "many": (0, 1)}


@pytest.fixture(params=LAYOUTS)
def table(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> sm.Table:
    direct, few = LAYOUTS[request.param]
    monkeypatch.setattr("sparkmeta.entries.relation.FEW_ROWS", few)
    catalog = sm.load_catalog("test", type="hadoop", warehouse=str(tmp_path))
    limits = {"write.tree.direct-files": str(direct)}
    empty = catalog.create_table("db.t", SCHEMA, SPEC, properties=limits, format_version=4, spark=spark)
    return commit(empty, lambda tx: tx.update_snapshot().append(files(spark, 1, 2, 5)))


@pytest.fixture
def empty(spark: SparkSession, tmp_path: Path) -> sm.Table:
    catalog = sm.load_catalog("test", type="hadoop", warehouse=str(tmp_path))
    return catalog.create_table("db.t", SCHEMA, SPEC, format_version=4, spark=spark)


def refused(table: sm.Table, change: Callable[[Any], Any], problem: str) -> ValidationError:
    """Return the error of a commit, after asserting that the commit leaves nothing behind."""
    before = written(table)
    with pytest.raises(ValidationError, match=problem) as caught:
        commit(table, change)
    assert written(table) == before
    assert live(table.refresh()) == ["f1", "f2", "f5"]
    return caught.value


def changed(frame: DataFrame, **values: Any) -> DataFrame:
    """Return the rows with other values, of the columns' own types."""
    return frame.withColumns({name: F.lit(value).cast(frame.schema[name].dataType) for name, value in values.items()})


def equality_deletes(spark: SparkSession, *ids: int) -> DataFrame:
    row = {"content": 2, "file_path": "/data/e1", "file_format": "PARQUET", "record_count": 1, "equality_ids": [*ids],
           "file_size_in_bytes": 10, "partition": {"s": "a", "id_bucket": 1}}  # fmt: skip
    kinds = {"content": pa.int32(), "equality_ids": pa.list_(pa.int32())}
    table = pa.Table.from_pylist([row])
    schema = pa.schema([pa.field(field.name, kinds.get(field.name, field.type)) for field in table.schema])
    return local_frame(spark, pa.Table.from_pylist([row], schema=schema))


def test_a_file_that_is_added_twice(table: sm.Table, spark: SparkSession) -> None:
    twice = files(spark, 7, 8).unionByName(files(spark, 7, part="z"))
    refused(table, lambda tx: tx.update_snapshot().append(twice), "/data/f7 is added twice by the commit")


def test_a_file_that_is_added_by_two_appends(table: sm.Table, spark: SparkSession) -> None:
    def change(tx: Any) -> None:
        tx.update_snapshot().append(files(spark, 7)).append(files(spark, 7, 8))

    refused(table, change, "/data/f7 is added twice by the commit")


def test_a_file_that_is_there_already(table: sm.Table, spark: SparkSession) -> None:
    again = files(spark, 7, 2)
    error = refused(table, lambda tx: tx.update_snapshot().append(again), "/data/f2 is in the table already")
    assert isinstance(error, CommitConflictError)


def test_a_file_may_replace_itself(table: sm.Table, spark: SparkSession) -> None:
    old, new = spark.sql("SELECT '/data/f2' AS file_path"), files(spark, 2, records=4)
    table = commit(table, lambda tx: tx.update_snapshot().overwrite(new, old))
    assert live(table) == ["f1", "f2", "f5"]
    assert [row.asDict() for row in table.check().collect()] == []


def test_two_vectors_for_a_file(table: sm.Table, spark: SparkSession, tmp_path: Path) -> None:
    both = vectors(spark, tmp_path, "a.puffin", f1=[1]).unionByName(
        vectors(spark, tmp_path, "b.puffin", f1=[2], f2=[0])
    )
    refused(table, lambda tx: tx.update_snapshot().row_delta(deletes=both), "/data/f1 gets two deletion vectors")


def test_two_vectors_for_a_file_by_two_deltas(table: sm.Table, spark: SparkSession, tmp_path: Path) -> None:
    first, second = (vectors(spark, tmp_path, f"{name}.puffin", f1=[1]) for name in "ab")

    def change(tx: Any) -> None:
        tx.update_snapshot().row_delta(deletes=first).row_delta(deletes=second)

    refused(table, change, "/data/f1 gets two deletion vectors")


@pytest.mark.parametrize("part", ["b", None])
def test_a_vector_of_another_partition(table: sm.Table, spark: SparkSession, tmp_path: Path, part: str | None) -> None:
    vector = vectors(spark, tmp_path, "a.puffin", f1=[1])
    foreign = vector.withColumn("partition", F.struct(F.lit(part).cast("string").alias("s"), "partition.id_bucket"))
    vector_in, file_in = (f"s={value!r}/id_bucket=1 of spec 0" for value in (part, "a"))
    problem = f"partition of the deletion vector of /data/f1 is {vector_in}: the file is in {file_in}"
    refused(table, lambda tx: tx.update_snapshot().row_delta(deletes=foreign), problem)


def test_a_vector_of_more_rows_than_its_file(table: sm.Table, spark: SparkSession, tmp_path: Path) -> None:
    longer = vectors(spark, tmp_path, "a.puffin", f1=list(range(11)))
    problem = "record_count of the deletion vector of /data/f1 is 11: the file has 10 rows"
    refused(table, lambda tx: tx.update_snapshot().row_delta(deletes=longer), problem)


def test_a_vector_of_no_live_file(table: sm.Table, spark: SparkSession, tmp_path: Path) -> None:
    lost = vectors(spark, tmp_path, "a.puffin", f1=[1], f77=[2])
    refused(table, lambda tx: tx.update_snapshot().row_delta(deletes=lost), "/data/f77.* is not a live file")


def test_a_vector_of_a_file_that_goes(table: sm.Table, spark: SparkSession, tmp_path: Path) -> None:
    both = vectors(spark, tmp_path, "a.puffin", f1=[1], f2=[0])
    gone = spark.sql("SELECT '/data/f1' file_path")
    problem = "/data/f1 gets a deletion vector and is removed in one commit"
    error = refused(table, lambda tx: tx.update_snapshot().row_delta(deletes=both, removed=gone), problem)
    assert not isinstance(error, CommitConflictError)


def test_a_vector_of_a_file_that_comes_with_it(table: sm.Table, spark: SparkSession, tmp_path: Path) -> None:
    vector = vectors(spark, tmp_path, "a.puffin", f9=[1, 2])
    new = files(spark, 9)
    table = commit(table, lambda tx: tx.update_snapshot().row_delta(new, deletes=vector))
    rows = table.scan().plan_files().collect()
    planned = {row.file_path: [delete.record_count for delete in row.deletes] for row in rows}
    assert planned == {"/data/f1": [], "/data/f2": [], "/data/f5": [], "/data/f9": [2]}
    assert [row.asDict() for row in table.check().collect()] == []


@pytest.mark.parametrize(
    ("positions", "problem"),
    [
        ([3], "record_count of the deletion vector of /data/f1 is 1: the one that it replaces has 3"),
        ([0, 5, 7], "the deletion vector of /data/f1 lacks position 6"),
        ([0, 1, 2, 3, 5], "the deletion vector of /data/f1 lacks position 6"),
    ],
)
def test_a_vector_that_forgets_positions(
    table: sm.Table, spark: SparkSession, tmp_path: Path, positions: list[int], problem: str
) -> None:
    first = vectors(spark, tmp_path, "a.puffin", f1=[0, 5, 6], f2=[1])
    table = commit(table, lambda tx: tx.update_snapshot().row_delta(deletes=first))
    second = vectors(spark, tmp_path, "b.puffin", f2=[1, 3], f1=positions)
    refused(table, lambda tx: tx.update_snapshot().row_delta(deletes=second), problem)


def test_equality_deletes_of_an_unknown_column(table: sm.Table, spark: SparkSession) -> None:
    deletes = equality_deletes(spark, 1, 99)
    problem = r"equality_ids of file /data/e1 is \[1, 99\]: no schema"
    with pytest.raises(Exception, match=problem) as caught:
        commit(table, lambda tx: tx.update_snapshot().row_delta(deletes=deletes))
    assert isinstance(sm.errors.from_spark(caught.value) or caught.value, ValidationError)
    assert live(table.refresh()) == ["f1", "f2", "f5"]


def test_a_path_that_is_null(table: sm.Table, spark: SparkSession) -> None:
    gone = spark.sql("SELECT '/data/f1' AS file_path UNION ALL SELECT NULL")
    problem = "file_path of a file to remove is None"
    refused(table, lambda tx: tx.update_snapshot().delete(gone), problem)
    refused(table, lambda tx: tx.update_snapshot().row_delta(superseded=gone), problem)


def test_a_file_that_is_removed_twice(table: sm.Table, spark: SparkSession) -> None:
    gone = spark.sql("SELECT '/data/f1' AS file_path UNION ALL SELECT '/data/f1'")
    refused(table, lambda tx: tx.update_snapshot().delete(gone), "/data/f1 is to be removed twice")


def test_a_hint_that_is_wrong_costs_time_alone(table: sm.Table, spark: SparkSession) -> None:
    """A commit first searches in the partition that the row names, and then everywhere."""
    gone = files(spark, 2).withColumn("partition", F.struct(F.lit("z").alias("s"), F.lit(3).alias("id_bucket")))
    gone = gone.withColumns({"spec_id": F.lit(0), "manifest_path": F.lit("/nowhere")})
    table = commit(table, lambda tx: tx.update_snapshot().delete(gone))
    assert live(table) == ["f1", "f5"]


def test_a_rewrite_of_other_kinds_of_files(table: sm.Table, spark: SparkSession, tmp_path: Path) -> None:
    data, vector = (
        spark.sql("SELECT '/data/f2' file_path"),
        vectors(spark, tmp_path, "a.puffin", f1=[1]),
    )
    refused(
        table, lambda tx: tx.update_snapshot().rewrite(data, None, vector), "a rewrite adds deletes and removes none"
    )
    table = commit(table, lambda tx: tx.update_snapshot().row_delta(deletes=vector))
    removed, new = vector.select("file_path", "content_offset"), files(spark, 9, records=0)
    refused(table, lambda tx: tx.update_snapshot().rewrite(removed, new), "a rewrite adds data files and removes none")


def test_a_vector_of_no_rows(table: sm.Table, spark: SparkSession, tmp_path: Path) -> None:
    empty = changed(vectors(spark, tmp_path, "a.puffin", f1=[1]), record_count=0)
    problem = "record_count of file .*a.puffin is 0: a deletion vector deletes at least one row"
    refused(table, lambda tx: tx.update_snapshot().row_delta(deletes=empty), problem)


@pytest.mark.parametrize("bad", ["/data/f1", ["/data/f1"], 5])
def test_files_that_are_no_frame(empty: sm.Table, spark: SparkSession, bad: Any) -> None:
    update, good = empty.transaction().update_snapshot(), files(spark, 1)
    for change in (
        lambda: update.delete(bad),
        lambda: update.overwrite(good, bad),
        lambda: update.row_delta(removed=bad),
        lambda: update.row_delta(superseded=bad),
        lambda: update.rewrite(bad, good),
        lambda: update.rewrite(good, bad),
        lambda: update.rewrite(good, deletes=bad),
        lambda: update.replace_partitions(bad),
        lambda: update.validate_data_files_exist(bad),
    ):
        with pytest.raises(ValidationError, match=f"files is of type {type(bad).__name__}: expected a DataFrame"):
            change()


@pytest.mark.parametrize(
    ("properties", "problem"),
    [
        ({"a": None}, "properties['a'] is None: keys and values are strings"),
        ({"a": ["b"]}, "properties['a'] is ['b']: keys and values are strings"),
        ({5: "x"}, "properties[5] is 'x': keys and values are strings"),
        ([1], "properties is [1]: expected a mapping of strings to strings"),
        ("ab", "properties is 'ab': expected a mapping of strings to strings"),
    ],
)
def test_properties_of_a_table_that_are_no_text(empty: sm.Table, properties: Any, problem: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(f"db.t: {problem}")):
        empty.transaction().set_properties(properties)
    with pytest.raises(ValidationError, match=re.escape("db.t: properties['b'] is None: keys")):
        empty.transaction().set_properties({"a": "x"}, b=None)
    for names in ((5,), (["a"],), (None, "a")):
        with pytest.raises(ValidationError, match=re.escape(f"db.t: names is {names!r}: expected a list of strings")):
            empty.transaction().remove_properties(*names)  # type: ignore[arg-type]


def test_numbers_in_properties_become_text(empty: sm.Table) -> None:
    table = empty.transaction().set_properties({"a": 5, "b": True}, c=0.5).commit()
    assert {key: table.properties[key] for key in "abc"} == {"a": "5", "b": "true", "c": "0.5"}


@pytest.mark.parametrize("properties", [{"a": 1}, {"a": None}, {1: "x"}])
def test_properties_of_a_snapshot_that_are_no_text(empty: sm.Table, properties: Any) -> None:
    (key, value), *_ = properties.items()
    problem = re.escape(f"snapshot_properties[{key!r}] is {value!r}: keys and values are strings")
    for begin in (empty.transaction().update_snapshot, empty.maintenance.compact_manifests):
        with pytest.raises(ValidationError, match=problem):
            begin(snapshot_properties=properties)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"row_filter": "nope = 1"}, "no column 'nope' in the schema"),
        ({"row_filter": "id = 'x'"}, "column id has type long"),
        ({"row_filter": "id ="}, "id ="),
        ({"row_filter": 5}, "the filter is 5: expected a filter string"),
        ({"from_snapshot_id": "1"}, "db/t: from_snapshot_id is '1': expected a whole number"),
        ({"from_snapshot_id": True}, "db/t: from_snapshot_id is True: expected a whole number"),
        ({"isolation": 5}, "db/t: isolation is 5: expected serializable or snapshot"),
        ({"ignore_deletes": "no"}, "db/t: ignore_deletes is 'no': expected true or false"),
    ],
)
def test_a_validation_that_can_not_be(empty: sm.Table, arguments: dict[str, Any], problem: str) -> None:
    """The validation is refused when it is requested, with or without other commits."""
    update = empty.transaction().update_snapshot()
    with pytest.raises((ValidationError, InvalidFilterError), match=problem):
        update.validate_no_conflicts(**arguments)


def test_a_validation_of_a_column_of_the_same_transaction(empty: sm.Table, spark: SparkSession) -> None:
    with empty.transaction() as tx:
        tx.update_schema().add_column("new", LongType()).commit()
        tx.update_snapshot().append(files(spark, 1)).validate_no_conflicts("new = 1")
    assert live(tx.commit()) == ["f1"]


@pytest.mark.parametrize(
    ("spec_ids", "value"),
    [
        ([99], "(99,)"),
        ([0, 99], "(0, 99)"),
        ("abc", "('a', 'b', 'c')"),
        (3, "3"),
        (None, "None"),
        ([False], "(False,)"),
        ([0.0], "(0.0,)"),
        ([[0]], "([0],)"),
    ],
)
def test_partition_specs_that_the_table_does_not_have(empty: sm.Table, spec_ids: Any, value: str) -> None:
    update = empty.transaction().update_snapshot().validate_partition_specs(iter([0]))
    problem = re.escape(f"db/t: spec_ids is {value}: expected ids of its partition specs, [0]")
    with pytest.raises(ValidationError, match=problem):
        update.validate_partition_specs(spec_ids)
