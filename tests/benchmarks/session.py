"""The Spark session in which all contenders run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkmeta.session import local_session
from tests.benchmarks.workload import class_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def bench_session(heap: str) -> SparkSession:
    """Return a local session with the settings that Iceberg's planning needs and its PlanningBenchmark uses."""
    iceberg = {
        "spark.driver.extraClassPath": class_path(),
        "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
        "spark.driver.maxResultSize": "8g",
        "spark.sql.iceberg.data-planning-mode": "distributed",
        "spark.sql.iceberg.delete-planning-mode": "distributed",
        "spark.ui.showConsoleProgress": "false",
        # Keep the heap from shrinking when it is collected before each run.
        "spark.driver.extraJavaOptions": f"-Xms{heap}",
    }
    spark = local_session("sparkmeta benchmarks", memory=heap, config=iceberg)
    spark.sparkContext.setLogLevel("ERROR")
    return spark
