"""Write the demo's second table, of format version 4, whose metadata is a tree."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from demo_table import NAME, ORDERS_PER_FILE, orders
from pyarrow import parquet
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DecimalType, LongType, NestedField, StringType, TimestampType

import sparkmeta as sm

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = Schema(
    NestedField(1, "order_id", LongType()),
    NestedField(2, "customer_id", LongType()),
    NestedField(3, "ts", TimestampType()),
    NestedField(4, "country", StringType()),
    NestedField(5, "amount", DecimalType(9, 2)),
    NestedField(6, "status", StringType()),
)
SPEC = PartitionSpec(PartitionField(4, 1000, IdentityTransform(), "country"))
# A limit that the demo's first commit exceeds, so that it writes a leaf.
PROPERTIES = {"write.tree.direct-files": "16"}

_FILES = (
    "file_path string, file_format string, record_count long, file_size_in_bytes long, "
    "partition struct<country: string>, value_counts map<int, long>, null_value_counts map<int, long>, "
    "lower_bounds map<int, binary>, upper_bounds map<int, binary>"
)


def write_tree(spark: SparkSession, warehouse: Path, say: Callable[[str], None]) -> sm.Table:
    """Create the table and commit to it three times: a large append, a small one, and a delete of one file."""
    catalog = sm.load_catalog("demo", type="hadoop", warehouse=warehouse.as_uri())
    table = catalog.create_table(NAME, SCHEMA, SPEC, properties=PROPERTIES, format_version=4, spark=spark)
    say("created by load_catalog(...).create_table(..., format_version=4)")
    files = parquet_files(warehouse / "shop" / "orders" / "data")
    with table.transaction() as transaction:
        transaction.update_snapshot().append(spark.createDataFrame(files[:-2], _FILES))
    say(f"an append of {len(files) - 2} files: their entries are in a leaf")
    table = table.refresh()
    with table.transaction() as transaction:
        transaction.update_snapshot().append(spark.createDataFrame(files[-2:], _FILES))
    say("an append of 2 files: their entries are in the root, the only manifest that is written")
    table = table.refresh()
    with table.transaction() as transaction:
        transaction.update_snapshot().delete(first_file(table))
    say("a delete of one file: a deletion vector in the root masks its entry in the leaf")
    return table.refresh()


def first_file(table: sm.Table) -> DataFrame:
    """Return the plan row of the file with the first order."""
    return table.scan(f"order_id = {_first_order()}").plan_files()


def _first_order() -> int:
    first: int = orders(1)["order_id"][0].as_py()
    return first


def parquet_files(folder: Path) -> list[tuple[Any, ...]]:
    """Write some of a month's orders as Parquet files of one country each, and return rows to append."""
    folder.mkdir(parents=True)
    rows = orders(1).sort_by([("country", "ascending"), ("order_id", "ascending")])
    kinds = schema_to_pyarrow(SCHEMA)
    tables = [rows.slice(start, ORDERS_PER_FILE).cast(kinds) for start in range(0, len(rows), ORDERS_PER_FILE)]
    return [_write_file(table, folder / f"{number:02}.parquet") for number, table in enumerate(tables[::5])]


def _write_file(rows: pa.Table, path: Path) -> tuple[Any, ...]:
    parquet.write_table(rows, path)
    ids, country = rows["order_id"].to_pylist(), rows["country"][0].as_py()
    counts = {1: len(ids)}
    bounds = [{1: bytearray(struct.pack("<q", bound))} for bound in (min(ids), max(ids))]
    return path.as_uri(), "PARQUET", len(ids), path.stat().st_size, (country,), counts, {1: 0}, *bounds
