"""Rows of two DataFrames as sorted texts, which distinguish all values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.types import BinaryType, TimestampNTZType, TimestampType

from sparkmeta.expr.sql import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField


def typed_columns(frame: DataFrame) -> list[tuple[str, str]]:
    """Return the names and types of the columns."""
    return [(field.name, field.dataType.simpleString()) for field in frame.schema]


def row_texts(frame: DataFrame) -> list[tuple[str | None, ...]]:
    """Return the sorted rows, with each value as a text. Dates may have any year."""
    texts = [f"{_text(field)} AS t{index}" for index, field in enumerate(frame.schema)]
    return sorted(map(tuple, frame.selectExpr(*texts).collect()), key=repr)


def _text(field: StructField) -> str:
    name = quoted(field.name)
    if isinstance(field.dataType, BinaryType):
        return f"hex({name})"
    if isinstance(field.dataType, TimestampType):
        return f"CAST(unix_micros({name}) AS STRING)"
    if isinstance(field.dataType, TimestampNTZType):
        return f"CAST({name} AS STRING)"
    return f"CAST({name} AS STRING)"
