"""A slice of the engine on any session; as a program, on a Spark Connect server of its own: prints the rows as JSON.

Usage: python -m tests.connect.engine_slice <metadata file>
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import sparkmeta as sm

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

INSPECTED = ("files", "entries", "manifests", "partitions", "snapshots", "refs", "history")


def rows(frame: DataFrame) -> list[str]:
    """Rows as text that is equal for equal rows, sorted."""
    return sorted(repr(row.asDict(recursive=True)) for row in frame.collect())


def engine_slice(spark: SparkSession, location: str) -> dict[str, Any]:
    """What a notebook would do: open the table, look at it, plan scans."""
    table = sm.load_table(location, spark=spark)
    scan = table.scan("id >= 15 and part = 'x'")
    return {
        "plan": rows(table.scan().plan_files()),
        "filtered": rows(scan.plan_files()),
        "tasks": rows(scan.plan_tasks()),
        "report": {k: v for k, v in scan.report().to_dict().items() if not k.endswith("_seconds")},
        **{name: rows(getattr(table.inspect, name)()) for name in INSPECTED},
    }


def main() -> None:
    from pyspark.sql import SparkSession

    from sparkmeta.session import local_config, prepare_environment

    prepare_environment()
    builder = SparkSession.builder.remote("local[2]")
    for key, value in (local_config(2, "1g") | {"spark.sql.shuffle.partitions": "2"}).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    sys.stdout.write(json.dumps(engine_slice(spark, sys.argv[1])) + "\n")
    spark.stop()


if __name__ == "__main__":
    main()
