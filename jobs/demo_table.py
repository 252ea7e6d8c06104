"""Write the demo's first table: a year of a shop's orders in some thousand small files.

Iceberg's Java runtime writes position deletes of format version 2, then deletion vectors of version 3. pyiceberg writes
no delete files.
"""

from __future__ import annotations

from calendar import monthrange
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import parquet
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

YEAR = 2025
COUNTRIES = ("AT", "CH", "DE", "DK", "FI", "NL", "NO", "SE")
ORDERS_PER_FILE = 40
NAME = "shop.orders"
CATALOG = "demo"

_COLUMNS = "order_id bigint, customer_id bigint, ts timestamp_ntz, country string, amount decimal(9,2), status string"
_STATUS = ("paid", "paid", "paid", "open", "cancelled")


def java_config(jar: Path, warehouse: Path) -> dict[str, str]:
    """Return Spark's settings for a catalog `demo` of Iceberg's Java runtime in a folder."""
    return {
        "spark.jars": str(jar),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        f"spark.sql.catalog.{CATALOG}": "org.apache.iceberg.spark.SparkCatalog",
        f"spark.sql.catalog.{CATALOG}.type": "hadoop",
        f"spark.sql.catalog.{CATALOG}.warehouse": warehouse.as_uri(),
    }


def write_with_java(spark: SparkSession, warehouse: Path, months: int, say: Callable[[str], None]) -> str:
    """Write the table with Iceberg's Java runtime, with merge-on-read deletes, and return its folder."""
    table = f"{CATALOG}.{NAME}"
    properties = {"format-version": "2", "write.distribution-mode": "none", "write.spark.fanout.enabled": "true"}
    properties |= {f"write.{command}.mode": "merge-on-read" for command in ("delete", "update", "merge")}
    pairs = ", ".join(f"'{name}'='{value}'" for name, value in properties.items())
    spark.sql(
        f"CREATE TABLE {table} ({_COLUMNS}) USING iceberg PARTITIONED BY (days(ts), country) TBLPROPERTIES ({pairs})"
    )
    for month in range(1, months + 1):
        day = F.to_date("ts")
        spark.createDataFrame(orders(month)).repartitionByRange(2, day).writeTo(table).append()
        if month % 4 == 0 or month == months:
            say(f"{month} of {months} months appended by Iceberg's Java runtime")
    spark.sql(f"DELETE FROM {table} WHERE status = 'cancelled' AND ts < '{YEAR}-04-01'")
    say("a delete of cancelled orders in format version 2: position delete files")
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('format-version'='3')")
    spark.sql(f"DELETE FROM {table} WHERE customer_id % 10 = 3 AND ts >= '{YEAR}-03-01' AND ts < '{YEAR}-06-01'")
    say("a delete of some customers after the upgrade to format version 3: deletion vectors")
    return (warehouse / NAME.replace(".", "/")).as_uri()


def write_with_pyiceberg(warehouse: Path, months: int, say: Callable[[str], None]) -> str:
    """Write the table with pyiceberg, whose delete rewrites files, and return its metadata file."""
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.transforms import DayTransform, IdentityTransform

    warehouse.mkdir(parents=True, exist_ok=True)
    catalog = SqlCatalog(CATALOG, uri=f"sqlite:///{warehouse}/catalog.db", warehouse=warehouse.as_uri())
    catalog.create_namespace("shop")
    table = catalog.create_table(NAME, orders(1).schema)
    with table.update_spec() as spec:
        spec.add_field("ts", DayTransform(), "ts_day")
        spec.add_field("country", IdentityTransform(), "country")
    for month in range(1, months + 1):
        table.add_files(_parquet_files(orders(month), warehouse / "shop" / "orders" / "data"))
    say(f"{months} months of Parquet files added by pyiceberg")
    table.delete(f"ts < '{YEAR}-01-04T00:00:00'")
    say("a delete of three days as whole files; pyiceberg writes no delete files: run `make jars` to have some")
    return table.metadata_location


def _parquet_files(rows: pa.Table, folder: Path) -> list[str]:
    """Write a file for each day and country, and return their locations."""
    folder.mkdir(parents=True, exist_ok=True)
    keyed = rows.append_column("day", rows["ts"].cast(pa.date32())).sort_by(
        [("day", "ascending"), ("country", "ascending")]
    )
    paths = []
    for start in range(0, len(keyed), ORDERS_PER_FILE):
        orders_of_file = keyed.slice(start, ORDERS_PER_FILE)
        path = folder / f"{orders_of_file['day'][0]}-{orders_of_file['country'][0]}.parquet"
        parquet.write_table(orders_of_file.drop_columns("day"), path)
        paths.append(path.as_uri())
    return paths


def orders(month: int) -> pa.Table:
    """Return a month's orders: ORDERS_PER_FILE per day and country, with ids that ascend with time."""
    rows = list(_orders(month))
    kinds = [pa.int64(), pa.int64(), pa.timestamp("us"), pa.string(), pa.decimal128(9, 2), pa.string()]
    names = [column.split()[0] for column in _COLUMNS.replace("(9,2)", "").split(", ")]
    arrays = [_array(list(values), kind) for values, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
    return pa.table(arrays, names=names)


def _orders(month: int) -> Iterator[tuple[Any, ...]]:
    for day in range(1, monthrange(YEAR, month)[1] + 1):
        midnight = datetime(YEAR, month, day)  # noqa: DTZ001  the column has no time zone
        first = midnight.timetuple().tm_yday * len(COUNTRIES) * ORDERS_PER_FILE
        for number in range(len(COUNTRIES) * ORDERS_PER_FILE):
            order = first + number
            moment = midnight.replace(hour=number * 24 // (len(COUNTRIES) * ORDERS_PER_FILE), minute=number % 60)
            country = COUNTRIES[number % len(COUNTRIES)]
            status = _STATUS[order // len(COUNTRIES) % len(_STATUS)]
            yield order, order * 7919 % 5000, moment, country, order * 104_729 % 99_900 + 100, status


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_decimal(kind):
        return pa.array([f"{value // 100}.{value % 100:02}" for value in values], pa.string()).cast(kind)
    return pa.array(values, kind)
