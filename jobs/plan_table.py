"""Plan a scan of an Iceberg table with spark-submit, and write the plan for other jobs to read.

    spark-submit --properties-file conf/spark-defaults.conf jobs/plan_table.py \
        --catalog prod --table db.events --filter "day >= '2026-01-01'" --output s3a://plans/events --format parquet

Spark's tasks write the plan. It has a row per data file with its deletes or, with --tasks, a row per task of splits.
The last line of standard output is a JSON object: the table, the snapshot, the number of files, the time in seconds,
and a report of what planning scanned and skipped.

Exit codes: 0 success; 1 an error, described in one line; 2 invalid arguments. The executors need sparkmeta installed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from pyspark.sql import Observation, SparkSession
from pyspark.sql import functions as F

import sparkmeta as sm
from sparkmeta.cli.job import add_table_arguments, argument, load_job_table
from sparkmeta.cli.output import JSON_OPTIONS, report_error, text_ids
from sparkmeta.cli.source import moment_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job and return the exit code."""
    args = _arguments().parse_args(arguments)
    try:
        print(json.dumps(text_ids(plan_table(args))))
    except Exception as error:  # noqa: BLE001  report_error raises what it does not know
        report_error("plan_table", error)
        return 1
    return 0


def plan_table(args: argparse.Namespace) -> dict[str, Any]:
    """Plan a scan, write the plan, and return the result to print."""
    started = time.perf_counter()
    spark = SparkSession.builder.appName(f"plan {args.table}").getOrCreate()
    table = load_job_table(spark, args)
    scan = _scan(table, args)
    opened = time.perf_counter()
    planned = _write(scan.plan_tasks() if args.tasks else scan.plan_files(), args)
    written = time.perf_counter()
    report = scan.report().to_dict() if args.report else None
    snapshot = scan.snapshot()
    return {
        "table": table.location(),
        "snapshot_id": snapshot.snapshot_id if snapshot else None,
        "filter": args.filter,
        "output": args.output,
        "format": args.format,
        **planned,
        "seconds": {
            "open": round(opened - started, 3),
            "plan_and_write": round(written - opened, 3),
            "report": round(time.perf_counter() - written, 3) if report else None,
        },
        "report": report,
    }


def _scan(table: sm.Table, args: argparse.Namespace) -> sm.Scan:
    scan = table.scan(case_sensitive=not args.case_insensitive, snapshot_id=args.snapshot_id)
    if args.ref is not None:
        scan = scan.use_ref(args.ref)
    if args.as_of is not None:
        scan = scan.as_of(args.as_of)
    return scan if args.filter is None else scan.filter(args.filter)


def _write(plan: DataFrame, args: argparse.Namespace) -> dict[str, int]:
    """Write the plan, and count its rows in the same pass."""
    observation = Observation()
    writer = plan.observe(observation, *_counts(tasks=args.tasks)).write.mode(
        "overwrite" if args.overwrite else "error"
    )
    if args.format == "json":
        writer.options(**JSON_OPTIONS).json(args.output)
    else:
        writer.parquet(args.output)
    return {name: int(value or 0) for name, value in observation.get.items()}


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
    add_table_arguments(parser)
    parser.add_argument("--filter", help="the rows to scan for, e.g. \"id = 7 and name like 'a%%'\"")
    parser.add_argument("--case-insensitive", action="store_true", help="ignore the case of column names in the filter")
    moment = parser.add_mutually_exclusive_group()
    moment.add_argument("--snapshot-id", type=int, help="the snapshot to plan, instead of the current one")
    moment.add_argument("--ref", help="a branch or tag to plan")
    moment.add_argument(
        "--as-of", type=argument(moment_of), help="plan the snapshot that was current then (UTC without a zone)"
    )
    parser.add_argument("--output", required=True, help="the folder to write the plan to")
    parser.add_argument("--format", choices=["parquet", "json"], default="parquet")
    parser.add_argument("--overwrite", action="store_true", help="replace the content of the output folder")
    parser.add_argument("--tasks", action="store_true", help="write tasks of packed splits instead of files")
    parser.add_argument(
        "--no-report", dest="report", action="store_false", help="skip the report, which takes additional Spark jobs"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
