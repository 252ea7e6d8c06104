"""Rows of tables with manifest lists, changed in turns by sparkmeta and Iceberg's Spark runtime, which reads all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform
from pyiceberg.types import BinaryType, DecimalType, NestedField, StringType, TimestampType
from pyspark.sql import functions as F

import sparkmeta as sm
from tests.peers.java import Java
from tests.peers.slices import SOAK
from tests.write.test_changes import BY_PART, SCHEMA, Rows, frame, ordinary

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.java


MERGE = "merge-on-read"
CASES = [(2, "partition"), (3, MERGE), (1, "copy-on-write"), (2, "copy-on-write"), (2, "file"), (3, "copy-on-write")]


@pytest.mark.parametrize(("version", "mode"), CASES if SOAK else CASES[:2])
def test_changes_alternate_with_those_of_spark_sql(
    spark: SparkSession, tmp_path: Path, version: int, mode: str
) -> None:
    java, location = Java(spark), f"file://{tmp_path}/t"
    iceberg = java.iceberg
    granularity, mode = ("file", mode) if "-" in mode else (mode, MERGE)
    properties = {f"write.{command}.mode": mode for command in ("delete", "update", "merge")}
    properties["format-version"] = str(version)
    properties["write.delete.granularity"] = granularity
    schema = iceberg.SchemaParser.fromJson(SCHEMA.model_dump_json())
    spec = iceberg.PartitionSpecParser.fromJson(schema, BY_PART.model_dump_json())
    tables = iceberg.hadoop.HadoopTables(java.session.sessionState().newHadoopConf())
    tables.create(schema, spec, properties, location)
    table = sm.load_table(location, spark=spark)
    model: Rows = []
    with_ids = version >= 3

    def check(expected: Rows) -> None:
        nonlocal table, model
        table, model = table.refresh(), sorted(expected, key=repr)
        columns = ("id", "part", "n", *(("_row_id", "_last_updated_sequence_number") if with_ids else ()))
        ours = sorted(map(tuple, table.scan(selected_fields=columns).to_df().collect()), key=repr)
        loaded = spark.read.format("iceberg").load(location)
        assert sorted(map(tuple, loaded.select(*columns).collect()), key=repr) == ours
        assert [row[:3] for row in ours] == model

    def change(changed: sm.Table, expected: Callable[[Rows], Rows]) -> None:
        assert changed.metadata_location != table.metadata_location
        check(expected(model))

    def append_by_java(rows: Rows) -> None:
        frame(spark, rows).write.format("iceberg").mode("append").save(location)
        check([*model, *rows])

    change(table.append(frame(spark, ordinary(0, 40))), lambda _: ordinary(0, 40))
    append_by_java(ordinary(40, 60))
    change(table.delete("part = 'a'"), lambda rows: [row for row in rows if row[1] != "a"])
    change(table.delete("id >= 20 and id < 25"), lambda rows: [row for row in rows if not 20 <= row[0] < 25])
    append_by_java(ordinary(60, 70))
    changed = table.update({"n": F.lit(-1)}, "id < 10 or id > 65")
    change(changed, lambda rows: [(i, p, -1 if i < 10 or i > 65 else n) for i, p, n in rows])
    new: Rows = [(1, "b", 1), (100, "c", 100)]
    changed = table.upsert(frame(spark, new), ["id"])
    change(changed, lambda rows: [*(row for row in rows if row[0] != 1), *new])
    replaced: Rows = [(200, "b", 5), (201, "d", None)]
    changed = table.dynamic_partition_overwrite(frame(spark, replaced))
    change(changed, lambda rows: [*(row for row in rows if row[1] not in {"b", "d"}), *replaced])
    append_by_java(ordinary(300, 320))
    change(table.overwrite(frame(spark, new), "id >= 310"), lambda rows: [*(r for r in rows if r[0] < 310), *new])


def test_removed_partition_fields_of_version_1(spark: SparkSession, tmp_path: Path) -> None:
    """Removed fields stay as void fields, with the type of their column, not of their values."""
    kinds = (StringType(), BinaryType(), DecimalType(9, 2), TimestampType())
    schema = Schema(*(NestedField(number, f"c{number}", kind) for number, kind in enumerate(kinds, 1)))
    transforms = (*[BucketTransform(3)] * 3, DayTransform())
    fields = [
        PartitionField(number, 999 + number, transform, f"p{number}") for number, transform in enumerate(transforms, 1)
    ]
    catalog = sm.load_catalog("voids", type="hadoop", warehouse=f"file://{tmp_path}")
    table = catalog.create_table("db.t", schema, PartitionSpec(*fields), format_version=1, spark=spark)
    row = spark.sql("SELECT 'x' c1, X'01' c2, CAST(1.25 AS DECIMAL(9, 2)) c3, timestamp_ntz'2020-01-01 00:00:00' c4")
    table = table.append(row)
    for number in range(1, 5):
        with table.update_spec() as update:
            update.remove_field(f"p{number}")
        table = table.refresh().append(row)
    expected = row.collect() * 5
    assert table.scan().to_df().collect() == expected
    assert spark.read.format("iceberg").load(table.location()).collect() == expected
    table = table.delete("c1 = 'x'")
    assert spark.read.format("iceberg").load(table.location()).isEmpty()
