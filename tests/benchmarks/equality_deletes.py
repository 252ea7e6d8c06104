"""Compare the ways to get rid of equality deletes: `python -m tests.benchmarks.equality_deletes`.

A stream has appended data files to each partition, and deleted keys of earlier ones, in turns. sparkmeta converts the
deletes; Iceberg's procedure `rewrite_data_files` applies them to new data files. Each run starts from the same table.
Print a table, and write build/bench/equality-deletes-<time>.json.
"""

from __future__ import annotations

import shutil
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType
from rich.console import Console
from rich.table import Table as RichTable

import sparkmeta as sm
from tests.benchmarks.expiry import restored
from tests.benchmarks.memory import MIB, peak_resident_set
from tests.benchmarks.report import write_runs
from tests.benchmarks.session import bench_session
from tests.benchmarks.timing import consume, timed
from tests.benchmarks.workload import BUILD

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CATALOG, _COMMITS, _ROWS, _KEYS = "equality_deletes", 10, 1_000, 5
_SCHEMA = Schema(
    NestedField(1, "id", LongType()), NestedField(2, "part", IntegerType()), NestedField(3, "text", StringType())
)
_SPEC = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"))
_FIELDS = {"id": pa.int64(), "part": pa.int32(), "text": pa.string()}

console = Console(width=None if sys.stdout.isatty() else 150)


@dataclass
class Conversion:
    """A run of a contender.

    Attributes:
        plan_before: seconds of a whole plan of the table with equality deletes.
        plan_after: seconds of the same plan afterwards.
        rows: the table's rows, before and after.
        deletes_after: the number of equality delete files that are left.
        driver_python: the peak resident set of the driver's Python process since it began, in MiB.
    """

    contender: str
    data_files: int
    delete_files: int
    seconds: float
    plan_before: float
    plan_after: float
    rows: int
    deletes_after: int
    driver_python: int


@click.command()
@click.option("--data-files", type=int, default=100, show_default=True, help="Data files of each partition.")
@click.option("--delete-files", type=int, default=1_000, show_default=True, help="Delete files of each partition.")
@click.option("--partitions", type=int, default=100, show_default=True)
@click.option("--heap", default="4g", show_default=True, help="Heap of the JVM, e.g. 4g.")
@click.option("--only", default="", help="Run only contenders whose name contains this text.")
def main(data_files: int, delete_files: int, partitions: int, heap: str, only: str) -> None:
    """Convert 100,000 equality delete files over 10,000 data files, and rewrite the data files instead."""
    spark = bench_session(heap)
    warehouse = BUILD / "equality-deletes" / f"{data_files}-{delete_files}-{partitions}"
    catalog = f"spark.sql.catalog.{_CATALOG}"
    spark.conf.set(catalog, "org.apache.iceberg.spark.SparkCatalog")
    for option, value in {"type": "hadoop", "warehouse": warehouse.as_uri(), "cache-enabled": "false"}.items():
        spark.conf.set(f"{catalog}.{option}", value)
    folder = warehouse / "db" / "t"
    if not (folder / "done").exists():
        start = time.perf_counter()
        _generate(spark, warehouse, partitions, data_files, delete_files)
        console.print(f"made the table in {time.perf_counter() - start:.0f} s")
    results: list[Conversion] = []
    for name, convert in {"sparkmeta": _by_spark, "Iceberg rewrite_data_files": _by_java}.items():
        if only in name:
            with restored(folder / "metadata"), restored(folder / "data"):
                results.append(_measured(spark, name, folder, partial(convert, spark, folder)))
            console.print(results[-1])
    _show(results)
    console.print(f"written: {write_runs(BUILD, 'equality-deletes', results)}")


def _generate(spark: SparkSession, warehouse: Path, partitions: int, data_files: int, delete_files: int) -> None:
    folder = warehouse / "db" / "t"
    shutil.rmtree(folder, ignore_errors=True)
    catalog = sm.load_catalog(_CATALOG, type="hadoop", warehouse=warehouse.as_uri())
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", _SCHEMA, _SPEC, format_version=3, spark=spark)
    (folder / "data").mkdir(exist_ok=True)
    chance = np.random.default_rng(7)
    for commit in range(_COMMITS):
        first = commit * data_files // _COMMITS * _ROWS
        count = data_files // _COMMITS
        added = [
            _file(folder, f"{part}-{commit}-{number}", part, np.arange(_ROWS) + first + number * _ROWS)
            for part in range(partitions)
            for number in range(count)
        ]
        deleted = [
            _file(
                folder,
                f"{part}-{commit}-{number}-deletes",
                part,
                np.unique(chance.integers(0, first + count * _ROWS, _KEYS)),
            )
            for part in range(partitions)
            for number in range(delete_files // _COMMITS)
        ]
        for rows in (added, deleted):
            with table.refresh().transaction() as transaction:
                update: Any = transaction.update_snapshot()
                frame = spark.createDataFrame(pa.Table.from_pylist(rows, _FILES))
                _ = update.append(frame) if rows is added else update.row_delta(deletes=frame)
    (folder / "done").touch()


_BOUNDS = pa.map_(pa.int32(), pa.binary())
_COUNTS = pa.map_(pa.int32(), pa.int64())
_FILES = pa.schema(
    {
        "content": pa.int32(),
        "file_path": pa.string(),
        "file_format": pa.string(),
        "spec_id": pa.int32(),
        "partition": pa.struct({"part": pa.int32()}),
        "record_count": pa.int64(),
        "file_size_in_bytes": pa.int64(),
        "value_counts": _COUNTS,
        "null_value_counts": _COUNTS,
        "lower_bounds": _BOUNDS,
        "upper_bounds": _BOUNDS,
        "equality_ids": pa.list_(pa.int32()),
    }
)


def _file(folder: Path, name: str, part: int, ids: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Write a data file with rows, or a delete file with keys, and return its row."""
    is_delete = name.endswith("-deletes")
    columns: dict[str, Any] = {"id": ids}
    if not is_delete:
        columns |= {"part": np.full(len(ids), part, np.int32), "text": [f"text {number}" for number in ids.tolist()]}
    fields = [
        pa.field(column, _FIELDS[column], metadata={"PARQUET:field_id": str(_SCHEMA.find_field(column).field_id)})
        for column in columns
    ]
    path = folder / "data" / f"{name}.parquet"
    pq.write_table(pa.table([*columns.values()], schema=pa.schema(fields)), path)
    return {
        "content": 2 if is_delete else 0,
        "file_path": path.as_uri(),
        "file_format": "PARQUET",
        "spec_id": 0,
        "partition": {"part": part},
        "record_count": len(ids),
        "file_size_in_bytes": path.stat().st_size,
        "value_counts": [(1, len(ids))],
        "null_value_counts": [(1, 0)],
        "lower_bounds": [(1, int(ids.min()).to_bytes(8, "little"))],
        "upper_bounds": [(1, int(ids.max()).to_bytes(8, "little"))],
        "equality_ids": [1] if is_delete else None,
    }


def _by_spark(spark: SparkSession, folder: Path) -> None:
    sm.load_table(folder.as_uri(), spark=spark).maintenance.convert_equality_deletes().commit()


def _by_java(spark: SparkSession, _folder: Path) -> None:
    options = "options => map('delete-file-threshold', '1', 'remove-dangling-deletes', 'true')"
    spark.sql(f"CALL {_CATALOG}.system.rewrite_data_files(table => 'db.t', {options})").collect()


def _measured(spark: SparkSession, name: str, folder: Path, convert: partial[None]) -> Conversion:
    before = sm.load_table(folder.as_uri(), spark=spark)
    seconds = timed(convert)
    after = sm.load_table(folder.as_uri(), spark=spark)
    plans = [timed(lambda table=table: consume(table.scan().plan_files())) for table in (before, after)]
    deletes = after.inspect.delete_files().where("content = 2").count()
    files = before.inspect.data_files().count(), before.inspect.delete_files().count()
    rows = after.scan().count()
    return Conversion(name, *files, seconds, *plans, rows, deletes, peak_resident_set() // MIB)


def _show(results: list[Conversion]) -> None:
    title = f"{results[0].delete_files:,} equality delete files, {results[0].data_files:,} data files"
    shown = RichTable(title=title, title_justify="left")
    columns = ("contender", "seconds", "plan before", "plan after", "rows", "deletes after", "driver MiB")
    for column in columns:
        shown.add_column(column, justify="left" if column == "contender" else "right")
    for run in results:
        plans = f"{run.plan_before:.1f}", f"{run.plan_after:.1f}"
        shown.add_row(
            run.contender, f"{run.seconds:.1f}", *plans, f"{run.rows:,}", f"{run.deletes_after:,}",
            f"{run.driver_python}",
        )  # fmt: skip
    console.print(shown)


if __name__ == "__main__":
    main()
