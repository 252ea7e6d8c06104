"""Defaults of columns of every type: rows are read, filtered, deleted and written."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import sparkmeta as sm
from tests.handmade import COLUMNS
from tests.rows.row_table import RowTable

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

ID = "f79c3e09-677c-4bbd-a479-3f349cb785e7"
MICROS = dt.datetime(2020, 1, 2, 3, 4, 5, 6)  # noqa: DTZ001
NANOS = 1_577_934_245_000_006_007
# type -> the default in metadata, and the value in rows.
DEFAULTS: dict[str, tuple[Any, Any]] = {
    "boolean": (False, False),
    "int": (5, 5),
    "long": (6, 6),
    "float": (1.5, 1.5),
    "double": (2.5, 2.5),
    "decimal(9, 2)": ("12.34", Decimal("12.34")),
    "date": ("2020-01-02", dt.date(2020, 1, 2)),
    "time": ("01:02:03.000004", 3_723_000_004),
    "timestamp": (MICROS.isoformat(), MICROS),
    "timestamptz": (f"{MICROS.isoformat()}+00:00", MICROS.replace(tzinfo=dt.UTC)),
    "timestamp_ns": ("2020-01-02T03:04:05.000006007", NANOS),
    "timestamptz_ns": ("2020-01-02T03:04:05.000006007+00:00", NANOS),
    "string": ("x'y", "x'y"),
    "uuid": (ID, ID),
    "fixed[2]": ("0a0b", b"\x0a\x0b"),
    "binary": ("0102ff", b"\x01\x02\xff"),
}
EXPECTED = tuple(value for _, value in DEFAULTS.values())


def new_table(folder: Path, **properties: str) -> RowTable:
    added = tuple(
        {
            "id": 10 + index,
            "name": f"c{index}",
            "required": False,
            "type": kind,
            "initial-default": stored,
            "write-default": stored,
        }
        for index, (kind, (stored, _)) in enumerate(DEFAULTS.items())
    )
    named = {f"write.{operation}.mode": "copy-on-write" for operation in ("delete", "update", "merge")}
    return RowTable(folder, schemas=(COLUMNS, (*COLUMNS, *added)), specs=((),), properties=named | properties)


def rows(*ids: int) -> pa.Table:
    count = len(ids)
    return pa.table({"id": pa.array(ids, pa.int64()), "part": ["x"] * count, "ratio": [1.0] * count})


def default_values(table: sm.Table) -> list[tuple[Any, ...]]:
    """Return the ids of all rows, with the values of the columns that have defaults."""
    read = table.scan().to_df().orderBy("id").drop("part", "ratio").toArrow()
    return [tuple(row.values()) for row in read.to_pylist()]


@pytest.mark.parametrize("footers", ["auto", "always"])
def test_rows_without_the_columns(footers: str, spark: SparkSession, tmp_path: Path) -> None:
    table = new_table(tmp_path)
    # Spark skips names that begin with _, so that tasks read these files.
    names = ("a.parquet", "_a.parquet", "a.avro", "a.orc")
    table.add(0, 0, *(table.data(name, rows(index)) for index, name in enumerate(names)))
    loaded = table.load(spark)
    spark.conf.set("spark.sparkmeta.data-file-footers", footers)
    try:
        read = default_values(loaded)
        for kind, index in ((kind, index) for index, kind in enumerate(DEFAULTS)):
            if kind in ("date", "timestamp", "time", "uuid"):
                filtered = loaded.scan(f"c{index} = '{DEFAULTS[kind][0]}'", selected_fields=("id",))
                assert filtered.to_df().count() == len(names), kind
    finally:
        spark.conf.unset("spark.sparkmeta.data-file-footers")
    assert read == [(index, *EXPECTED) for index in range(len(names))]


def test_rows_that_are_written_again(spark: SparkSession, tmp_path: Path) -> None:
    table = new_table(tmp_path)
    table.add(0, 0, table.data("a.parquet", rows(1, 2, 3)))
    table.write()
    loaded = sm.load_table(f"file://{tmp_path}", spark=spark)
    loaded = loaded.delete("id = 1").update({"ratio": 7.0}, "id = 2")
    loaded = loaded.upsert(spark.sql("SELECT 3L id, 'u' part UNION ALL SELECT 4L, 'i'"), ["id"])
    loaded = loaded.append(spark.sql("SELECT 5L id"))
    assert default_values(loaded) == [(key, *EXPECTED) for key in (2, 3, 4, 5)]
