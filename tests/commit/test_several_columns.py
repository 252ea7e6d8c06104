"""Partition fields that are computed from several columns, as in the proposal's example."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import IntegerType, NestedField, TimestampType

import sparkmeta as sm
from sparkmeta.spec.partitioning import partition_sources, partition_spec_from_json
from tests.frames import local_frame

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

SCHEMA = Schema(
    NestedField(9, "ts", TimestampType()), NestedField(2, "a", IntegerType()), NestedField(3, "b", IntegerType())
)
SPEC = partition_spec_from_json(
    {
        "spec-id": 0,
        "fields": [
            {"source-id": 9, "transform": "day", "name": "ts_day", "field-id": 1000},
            {"source-ids": [2, 3], "transform": "bucket[16]", "name": "bucket_a_b", "field-id": 1001},
        ],
    }
)
TUPLE = pa.struct([pa.field("ts_day", pa.int32()), pa.field("bucket_a_b", pa.int32())])


@pytest.fixture(params=[3, 4])
def table(request: pytest.FixtureRequest, tmp_path: Path, spark: SparkSession) -> sm.Table:
    """Return a table of version 4, created or upgraded from version 3."""
    catalog = sm.load_catalog("several", type="hadoop", warehouse=f"file://{tmp_path}")
    table = catalog.create_table("ns.t", SCHEMA, SPEC, UNSORTED_SORT_ORDER, format_version=request.param)
    return table.maintenance.upgrade(4).commit() if request.param == 3 else table


def files(spark: SparkSession, names: list[str], **more: Any) -> DataFrame:
    """Return a file for each name, which consists of the day and the bucket of its partition, as in `1/5`."""
    values = [[None if text == "-" else int(text) for text in name.split("/")[:2]] for name in names]
    rows = [
        {"file_path": f"x:{name}", "file_format": "PARQUET", "record_count": 10, "file_size_in_bytes": 100, **more}
        | {"partition": dict(zip(("ts_day", "bucket_a_b"), value, strict=True))}
        for name, value in zip(names, values, strict=True)
    ]
    table = pa.Table.from_pylist(rows)
    partition_index = table.column_names.index("partition")
    return local_frame(spark, table.set_column(partition_index, "partition", table.column("partition").cast(TUPLE)))


def append(table: sm.Table, added: DataFrame) -> sm.Table:
    with table.transaction() as tx:
        tx.update_snapshot().append(added)
    return table.refresh()


def planned(table: sm.Table, row_filter: str = "true") -> dict[str, list[str]]:
    rows = table.scan(row_filter).plan_files().collect()
    return {row["file_path"][2:]: [delete["file_path"][2:] for delete in row["deletes"]] for row in rows}


def test_a_new_table_keeps_all_columns_of_a_field(table: sm.Table) -> None:
    """Columns get new ids."""
    names = [
        table.schema().find_column_name(source) for source in partition_sources(table.metadata.partition_specs[0])[1]
    ]
    assert names == ["a", "b"]
    assert str(table.state.types.partition_type.fields[1].field_type) == "int"


@pytest.mark.parametrize("direct", ["0", "500"])
def test_files_are_appended_planned_and_removed(table: sm.Table, spark: SparkSession, direct: str) -> None:
    """The files are in leaves and in the root. A filter on all columns of the field keeps one bucket."""
    with table.transaction() as tx:
        tx.set_properties({"write.tree.direct-files": direct})
    names = ["1/5", "1/-", "2/5", "-/0", "2/15"]
    table = append(table.refresh(), files(spark, names))
    assert planned(table) == {name: [] for name in names}
    assert planned(table, "a = 1") == planned(table, "a = 1 and b > 1") == planned(table)
    assert planned(table, "a = 1 and b = 2") == {"-/0": []}
    assert planned(table, "b is null and a is null") == {"1/-": []}
    assert planned(table, "ts >= '1970-01-03'") == {"2/5": [], "2/15": []}
    shown = table.inspect.files().select("file_path", "partition.bucket_a_b").collect()
    assert {row[0][2:]: row[1] for row in shown} == {"1/5": 5, "1/-": None, "2/5": 5, "-/0": 0, "2/15": 15}
    assert table.inspect.partitions().count() == 5
    with table.transaction() as tx:
        tx.update_snapshot().delete(table.scan("ts >= '1970-01-03'").plan_files())
    table = table.refresh()
    assert [*planned(table)] == [name for name in planned(table) if not name.startswith("2")]
    assert len(planned(table)) == 3
    assert table.check().count() == 0
    compacted = table.maintenance.compact_manifests(min_masked_ratio=0.01).commit()
    assert planned(compacted) == planned(table)
    assert compacted.check().count() == 0


def test_equality_deletes_apply_to_their_bucket(table: sm.Table, spark: SparkSession) -> None:
    table = append(table, files(spark, ["1/5", "1/6", "1/-", "2/5"]))
    deletes = files(spark, ["1/5/e", "1/-/e"], content=2, equality_ids=[1])
    with table.transaction() as tx:
        tx.update_snapshot().row_delta(deletes=deletes)
    assert planned(table.refresh()) == {"1/5": ["1/5/e"], "1/6": [], "1/-": ["1/-/e"], "2/5": []}


def test_a_value_that_is_no_number_is_refused(table: sm.Table, spark: SparkSession) -> None:
    wrong = files(spark, ["1/5"]).selectExpr("*", "named_struct('ts_day', 1, 'bucket_a_b', 'x') AS wrong")
    with pytest.raises(sm.ValidationError, match=r"partition\.bucket_a_b of the files is string"):
        append(table, wrong.drop("partition").withColumnRenamed("wrong", "partition"))
