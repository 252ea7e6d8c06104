"""Plans a scan of an Iceberg table with spark-submit, and writes the plan where other jobs can read it.

    spark-submit --properties-file conf/spark-defaults.conf jobs/plan_table.py \
        --table s3://warehouse/db/events --filter "ts >= '2026-01-01'" --output s3://plans/events --format parquet

The plan is written by Spark's tasks, one row a data file with its deletes (or, with --tasks, one row a task of splits).
The last line of standard output is a JSON object: the table, its snapshot, what was planned, the seconds it took, and
a report of what planning scanned and skipped. Exit codes: 0 written, 1 an error (one line names it), 2 wrong arguments.
The executors need the package sparkmeta installed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import Observation, SparkSession
from pyspark.sql import functions as F

import sparkmeta as sm
from sparkmeta.cli.output import JSON_OPTIONS
from sparkmeta.errors import from_spark

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the job. Returns the exit code."""
    asked = _arguments().parse_args(arguments)
    try:
        print(json.dumps(plan_table(asked)))
    except (sm.SparkmetaError, PySparkException) as error:
        print(f"plan_table: {str(from_spark(error) or error).strip().splitlines()[0]}", file=sys.stderr)
        return 1
    return 0


def plan_table(asked: argparse.Namespace) -> dict[str, Any]:
    """Plans, writes the plan, and says what was done."""
    started = time.perf_counter()
    spark = SparkSession.builder.appName(f"plan {asked.table}").getOrCreate()
    table = _table(spark, asked)
    scan = _scan(table, asked)
    opened = time.perf_counter()
    planned = _write(scan.plan_tasks() if asked.tasks else scan.plan_files(), asked)
    written = time.perf_counter()
    report = scan.report().to_dict() if asked.report else None
    snapshot = scan.snapshot()
    return {
        "table": table.location(),
        "snapshot_id": snapshot.snapshot_id if snapshot else None,
        "filter": asked.filter,
        "output": asked.output,
        "format": asked.format,
        **planned,
        "seconds": {
            "open": round(opened - started, 3),
            "plan_and_write": round(written - opened, 3),
            "report": round(time.perf_counter() - written, 3) if report else None,
        },
        "report": report,
    }


def _table(spark: SparkSession, asked: argparse.Namespace) -> sm.Table:
    if asked.catalog is None:
        return sm.load_table(asked.table, spark=spark)
    return sm.load_catalog(asked.catalog).load_table(asked.table)


def _scan(table: sm.Table, asked: argparse.Namespace) -> sm.Scan:
    scan = table.scan(case_sensitive=not asked.case_insensitive, snapshot_id=asked.snapshot_id)
    if asked.ref is not None:
        scan = scan.use_ref(asked.ref)
    if asked.as_of is not None:
        scan = scan.as_of(asked.as_of)
    return scan.filter(asked.filter) if asked.filter else scan


def _write(plan: DataFrame, asked: argparse.Namespace) -> dict[str, int]:
    """Writes the plan and counts what is written, in one pass."""
    counted = Observation()
    writer = plan.observe(counted, *_counts(tasks=asked.tasks)).write.mode("overwrite" if asked.overwrite else "error")
    if asked.format == "json":
        writer.options(**JSON_OPTIONS).json(asked.output)
    else:
        writer.parquet(asked.output)
    return {name: int(value or 0) for name, value in counted.get.items()}


def _counts(*, tasks: bool) -> list[Column]:
    if tasks:
        return [F.count(F.lit(1)).alias("tasks"), F.sum("size_in_bytes").alias("bytes")]
    return [
        F.count(F.lit(1)).alias("files"),
        F.sum("file_size_in_bytes").alias("bytes"),
        F.sum("record_count").alias("records"),
        F.sum(F.size("deletes")).alias("deletes"),
    ]


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="plan_table.py", description="Plan a scan of an Iceberg table.")
    parser.add_argument("--table", required=True, help="folder or metadata file; with --catalog an identifier")
    parser.add_argument("--catalog", help="name of a catalog of pyiceberg's configuration")
    parser.add_argument("--filter", help="the rows to find, e.g. \"id = 7 and name like 'a%%'\"")
    parser.add_argument("--case-insensitive", action="store_true", help="look up columns without regard to case")
    moment = parser.add_mutually_exclusive_group()
    moment.add_argument("--snapshot-id", type=int, help="the snapshot to plan, instead of the current one")
    moment.add_argument("--ref", help="a branch or tag to plan")
    moment.add_argument("--as-of", type=_time, help="plan the snapshot that was current then; UTC without a zone")
    parser.add_argument("--output", required=True, help="folder to write the plan to")
    parser.add_argument("--format", choices=["parquet", "json"], default="parquet")
    parser.add_argument("--overwrite", action="store_true", help="replace what is in the output folder")
    parser.add_argument("--tasks", action="store_true", help="write tasks of packed splits instead of files")
    parser.add_argument("--no-report", dest="report", action="store_false", help="leave out the report and its jobs")
    return parser


def _time(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


if __name__ == "__main__":
    sys.exit(main())
