r"""Compacts the manifests of a V4 table with spark-submit.

    spark-submit --properties-file conf/spark-defaults.conf jobs/compact_manifests.py \
        --table s3://warehouse/db/events --max-entries 20000000 --commit

Without --commit it says what it would do, and does nothing. The plan goes to standard error. The last line of standard
output is a JSON object: the table, the plan (leaves, entries, reasons), what was committed (null: nothing), seconds.
Exit codes: 0 done, or nothing to do; 1 an error (one line names it); 2 wrong arguments; 3 others' commits came first,
and nothing was committed: run it again. The executors need the package sparkmeta installed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import sparkmeta as sm
from sparkmeta.errors import from_spark

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the job. Returns the exit code."""
    asked = _arguments().parse_args(arguments)
    try:
        print(json.dumps(compact_manifests(asked)))
    except (sm.SparkmetaError, PySparkException) as error:
        print(f"compact_manifests: {str(from_spark(error) or error).strip().splitlines()[0]}", file=sys.stderr)
        return 3 if isinstance(error, sm.CommitConflictError | sm.CommitFailedError) else 1
    return 0


def compact_manifests(asked: argparse.Namespace) -> dict[str, Any]:
    """Plans, commits if that is asked for, and says what was done."""
    started = time.perf_counter()
    spark = SparkSession.builder.appName(f"compact {asked.table}").getOrCreate()
    table = _table(spark, asked)
    options = {name: getattr(asked, name) for name in _OPTIONS if getattr(asked, name) is not None}
    plan = table.maintenance.compact_manifests(**options)
    print(plan.summary(), file=sys.stderr)
    planned = time.perf_counter()
    if asked.commit:
        plan.commit()
    seconds = {"plan": round(planned - started, 3), "commit": round(time.perf_counter() - planned, 3)}
    return {**plan.result(), "seconds": seconds}


_OPTIONS = ("row_filter", "cluster_by", "target_leaf_bytes", "max_entries", "max_bytes", "root_files", "branch")


def _table(spark: SparkSession, asked: argparse.Namespace) -> sm.Table:
    if asked.catalog is None:
        return sm.load_table(asked.table, spark=spark)
    return sm.load_catalog(asked.catalog).load_table(asked.table)


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="compact_manifests.py", description="Compact the manifests of a V4 table.")
    parser.add_argument("--table", required=True, help="folder; with --catalog an identifier")
    parser.add_argument("--catalog", help="name of a catalog of pyiceberg's configuration")
    parser.add_argument("--filter", dest="row_filter", help="only leaves that may hold files for these rows")
    parser.add_argument("--cluster-by", type=_names, help="columns and partition fields that order entries, as a,b")
    parser.add_argument("--target-leaf-bytes", type=int, help="size of a leaf's file")
    parser.add_argument("--max-entries", type=int, help="entries of data leaves that are rewritten at most")
    parser.add_argument("--max-bytes", type=int, help="bytes of data leaves that are rewritten at most")
    parser.add_argument("--root-files", type=int, help="files of a kind that may stay in the root")
    parser.add_argument("--branch", help="the branch to commit to, instead of main")
    parser.add_argument("--commit", action="store_true", help="do it; without this only the plan is made")
    return parser


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
