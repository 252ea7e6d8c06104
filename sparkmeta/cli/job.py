"""What the maintenance jobs of `jobs/` share: a table by its folder or catalog, a plan, its commit, a JSON result."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sparkmeta.catalog import load_catalog
from sparkmeta.errors import CommitConflictError, CommitFailedError, SparkmetaError, from_spark
from sparkmeta.table import load_table

if TYPE_CHECKING:
    from sparkmeta.maintain.compact import CompactionPlan
    from sparkmeta.maintain.rewrite_manifests import ManifestRewritePlan
    from sparkmeta.table import Table

    Plan = CompactionPlan[Table] | ManifestRewritePlan[Table]


def run_job(parser: argparse.ArgumentParser, plan: Callable[..., Plan], arguments: Sequence[str] | None) -> int:
    """Plans by the options that are given, commits if that is asked for, and prints what was done; the exit code.

    plan: of a table and its options by name. parser: a `job_parser`, with these options as further arguments.
    """
    asked = parser.parse_args(arguments)
    name = parser.prog.removesuffix(".py")
    try:
        print(json.dumps(_done(asked, name, plan)))  # noqa: T201
    except (SparkmetaError, PySparkException) as error:
        print(f"{name}: {str(from_spark(error) or error).strip().splitlines()[0]}", file=sys.stderr)  # noqa: T201
        return 3 if isinstance(error, CommitConflictError | CommitFailedError) else 1
    return 0


def job_parser(prog: str, description: str) -> argparse.ArgumentParser:
    """The arguments that all jobs have."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("--table", required=True, help="folder; with --catalog an identifier")
    parser.add_argument("--catalog", help="name of a catalog of pyiceberg's configuration")
    parser.add_argument("--branch", help="the branch to commit to, instead of main")
    parser.add_argument("--commit", action="store_true", help="do it; without this only the plan is made")
    return parser


_NO_OPTIONS = {"table", "catalog", "commit"}


def _done(asked: argparse.Namespace, name: str, plan_of: Callable[..., Plan]) -> dict[str, Any]:
    started = time.perf_counter()
    spark = SparkSession.builder.appName(f"{name} {asked.table}").getOrCreate()
    given = {name: value for name, value in vars(asked).items() if name not in _NO_OPTIONS and value is not None}
    plan = plan_of(_table(spark, asked), **given)
    print(plan.summary(), file=sys.stderr)  # noqa: T201
    planned = time.perf_counter()
    if asked.commit:
        plan.commit()
    seconds = {"plan": round(planned - started, 3), "commit": round(time.perf_counter() - planned, 3)}
    return {**plan.result(), "seconds": seconds}


def _table(spark: SparkSession, asked: argparse.Namespace) -> Table:
    if asked.catalog is None:
        return load_table(asked.table, spark=spark)
    table: Table = load_catalog(asked.catalog).load_table(asked.table)
    return table
