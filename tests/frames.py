"""DataFrames of rows that tests write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkmeta import session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


def local_frame(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Return the rows of an Arrow table as a DataFrame; timestamps without a zone stay so."""
    return session.local_frame(spark, rows)
