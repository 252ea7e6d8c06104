"""The Spark session in which all contenders run."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sparkmeta import local_session
from tests.benchmarks.workload import class_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession


def bench_session(heap: str, jars: Sequence[str] = ()) -> SparkSession:
    """Return a local session with the settings that Iceberg's planning needs and its PlanningBenchmark uses.

    Args:
        heap: of the JVM, such as `4g`.
        jars: more entries of the class path.
    """
    iceberg = {
        "spark.driver.extraClassPath": os.pathsep.join([class_path(), *jars]),
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
