"""Random nested values with nulls at every depth stay the same in every format, and in changes of rows."""

from __future__ import annotations

import random
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import ListType, LongType, MapType, NestedField, StringType, StructType
from pyspark.sql import Row

import sparkmeta as sm
from tests.frames import local_frame
from tests.peers.slices import SOAK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyiceberg.types import IcebergType
    from pyspark.sql import SparkSession

ROWS = 14
MODES = dict.fromkeys((f"write.{command}.mode" for command in ("delete", "update", "merge")), "copy-on-write")


def random_type(rng: random.Random, ids: Iterator[int], depth: int) -> IcebergType:
    kind = (
        rng.choice(("struct", "struct", "list", "map", "long", "string")) if depth else rng.choice(("long", "string"))
    )
    if kind == "struct":
        return StructType(
            *(
                NestedField(next(ids), f"f{index}", random_type(rng, ids, depth - 1), required=rng.random() < 0.5)
                for index in range(rng.randint(1, 3))
            )
        )
    is_required = rng.random() < 0.3
    if kind == "list":
        return ListType(next(ids), random_type(rng, ids, depth - 1), element_required=is_required)
    if kind == "map":
        value = random_type(rng, ids, depth - 1)
        return MapType(next(ids), StringType(), next(ids), value, value_required=is_required)
    return LongType() if kind == "long" else StringType()


def random_value(rng: random.Random, kind: IcebergType, required: bool = False) -> Any:
    if not required and rng.random() < 0.3:
        return None
    if isinstance(kind, StructType):
        return {field.name: random_value(rng, field.field_type, field.required) for field in kind.fields}
    if isinstance(kind, ListType):
        return [random_value(rng, kind.element_type, kind.element_required) for _ in range(rng.randint(0, 3))]
    if isinstance(kind, MapType):
        items = range(rng.randint(0, 3))
        return [(f"k{item}", random_value(rng, kind.value_type, kind.value_required)) for item in items]
    number = rng.randrange(1000)
    return number if isinstance(kind, LongType) else f"text {number}"


def arrow_type(kind: IcebergType) -> pa.DataType:
    if isinstance(kind, StructType):
        return pa.struct([(field.name, arrow_type(field.field_type)) for field in kind.fields])
    if isinstance(kind, ListType):
        return pa.list_(arrow_type(kind.element_type))
    if isinstance(kind, MapType):
        return pa.map_(pa.string(), arrow_type(kind.value_type))
    return pa.int64() if isinstance(kind, LongType) else pa.string()


@pytest.mark.parametrize("file_format", ["orc", "avro", "parquet"])
@pytest.mark.parametrize("seed", range(60 if SOAK else 2))
def test_changes_on_the_driver(seed: int, file_format: str, tmp_path: Path) -> None:
    change_rows(seed, file_format, tmp_path, lambda rows: rows)


@pytest.mark.parametrize("file_format", ["orc", "avro", "parquet"])
@pytest.mark.parametrize("seed", range(30 if SOAK else 2))
def test_changes_by_tasks(seed: int, file_format: str, tmp_path: Path, spark: SparkSession) -> None:
    table = change_rows(seed, file_format, tmp_path, lambda rows: local_frame(spark, rows))
    before = rows_of(table.scan().to_arrow())
    table = table.maintenance.rewrite_data_files(rewrite_all=True).commit()
    assert len(table.inspect.arrow.data_files()) == 1
    assert rows_of(table.scan().to_arrow()) == before
    if file_format == "avro":  # Spark has no reader of Avro without a further package
        return
    (path,) = table.inspect.arrow.data_files().column("file_path").to_pylist()
    # Spark's own readers.
    assert rows_of(getattr(spark.read, file_format)(path).select("id", "c").toArrow()) == before


@pytest.mark.java
@pytest.mark.parametrize("file_format", ["orc", "avro", "parquet"])
@pytest.mark.parametrize("seed", range(30 if SOAK else 1))
def test_java_reads_the_rows(seed: int, file_format: str, tmp_path: Path, spark: SparkSession) -> None:
    table = change_rows(seed, file_format, tmp_path, lambda rows: rows)
    # PySpark's `toArrow` refuses null structs with required fields.
    by_java = spark.read.format("iceberg").load(table.location()).collect()
    expected = rows_of(table.scan().to_arrow()).items()
    assert {row.id: without_maps(row.c) for row in by_java} == {key: without_maps(value) for key, value in expected}


def without_maps(value: Any) -> Any:
    """Return a value with maps and rows of Spark as pairs."""
    if isinstance(value, Row):
        value = value.asDict()
    if isinstance(value, dict):
        value = list(value.items())
    return [*map(without_maps, value)] if isinstance(value, list | tuple) else value


def rows_of(rows: pa.Table) -> dict[int, Any]:
    return dict(zip(rows["id"].to_pylist(), rows["c"].to_pylist(), strict=True))


def change_rows(seed: int, file_format: str, folder: Path, given: Callable[[pa.Table], Any]) -> sm.Table:
    """Append, delete and upsert random rows, and compare the table's rows with a model after each change.

    Args:
        seed: of the type and the rows.
        file_format: of data files.
        folder: the warehouse.
        given: returns rows in the form in which they are passed to the table.
    """
    rng, ids = random.Random(seed), count(10)
    inner = NestedField(3, "inner", random_type(rng, ids, 3), required=True)
    # Of a struct in a struct, Arrow's writer of ORC misplaces values if fields lack nulls.
    kind = StructType(NestedField(4, "outer", StructType(inner, NestedField(5, "n", LongType(), required=True))))
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "c", kind))
    lake = sm.load_catalog("lake", type="hadoop", warehouse=str(folder))
    table = lake.create_table("db.t", schema, properties={**MODES, "write.format.default": file_format})
    model = {number: random_value(rng, kind) for number in range(ROWS)}

    def rows(numbers: range) -> pa.Table:
        values = pa.array([model[number] for number in numbers], arrow_type(kind))
        return pa.table({"id": pa.array(numbers, pa.int64()), "c": values})

    def check(change: str) -> None:
        assert rows_of(table.scan().to_arrow()) == model, change

    table = table.append(given(rows(range(ROWS)).slice(3)))
    table = table.append(given(rows(range(3))))
    check("append")
    table = table.delete("id = 5")
    del model[5]
    check("delete")
    model |= {number: random_value(rng, kind) for number in (0, 6, 7, ROWS)}
    changed = pa.concat_tables([rows(range(1)), rows(range(6, 8)), rows(range(ROWS, ROWS + 1))])
    table = table.upsert(given(changed), ["id"])
    check("upsert")
    files = table.inspect.arrow.data_files()
    nulls = sum(dict(counts)[5] for counts in files["null_value_counts"].to_pylist())
    assert nulls == sum(value is None or value["outer"] is None for value in model.values())
    return table
