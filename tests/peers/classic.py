"""A classic Spark session beside one of Spark Connect, for peers that are called through py4j."""

from __future__ import annotations

import os
from functools import cache
from unittest import mock

from pyspark.sql import DataFrame, SparkSession

from sparkmeta.session import is_connect

# With these variables, PySpark makes each new session a Spark Connect session.
_CONNECT = ("SPARK_CONNECT_MODE_ENABLED", "SPARK_REMOTE", "SPARK_LOCAL_REMOTE")
_SHARED = ("spark.driver.extraClassPath", "spark.jars", "spark.sql.catalog.", "spark.sql.extensions")


def classic_session(spark: SparkSession) -> SparkSession:
    """Return a session itself if it is classic, else a classic one with the same jars and catalogs."""
    if not is_connect(spark):
        return spark
    return _local_session(
        frozenset((key, value) for key, value in spark.conf.getAll.items() if key.startswith(_SHARED))
    )


def classic_environment() -> dict[str, str]:
    """Return the environment of this process without what makes PySpark start sessions of Spark Connect."""
    return {name: value for name, value in os.environ.items() if name not in _CONNECT}


@cache
def _local_session(options: frozenset[tuple[str, str]]) -> SparkSession:
    with mock.patch.dict(os.environ, classic_environment(), clear=True):
        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        for key, value in options:
            builder = builder.config(key, value)
        session = builder.getOrCreate()
    # Beside a classic session, PySpark's builder otherwise refuses to return a Spark Connect session.
    os.environ["SPARK_LOCAL_REMOTE"] = "1"
    return session


def moved(rows: DataFrame, spark: SparkSession) -> DataFrame:
    """Return rows as a DataFrame of a session."""
    return rows if rows.sparkSession is spark else spark.createDataFrame(rows.toArrow(), rows.schema)
