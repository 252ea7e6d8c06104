"""The one Spark session in which all contenders run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkmeta.session import local_session
from tests.benchmarks.workload import class_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def bench_session(heap: str) -> SparkSession:
    """A local session as users get it, and beside it what Iceberg's planning needs and its own benchmark sets."""
    iceberg = {
        "spark.driver.extraClassPath": class_path(),
        "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
        "spark.driver.maxResultSize": "8g",
        "spark.sql.iceberg.data-planning-mode": "distributed",
        "spark.sql.iceberg.delete-planning-mode": "distributed",
        "spark.ui.showConsoleProgress": "false",
        # The heap is collected before each run, and would shrink by that: the next one would grow it again first.
        "spark.driver.extraJavaOptions": f"-Xms{heap}",
    }
    spark = local_session("sparkmeta benchmarks", memory=heap, config=iceberg)
    spark.sparkContext.setLogLevel("ERROR")
    return spark
