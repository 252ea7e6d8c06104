"""Convert planned splits to the File Scan Task JSON that Iceberg's libraries read (table spec, Appendix C).

Spark writes the JSON: schema and specs are constants, the rest comes from the split's columns.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    FixedType,
    PrimitiveType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
)
from pyspark.sql import functions as F

from sparkmeta.columns import sql
from sparkmeta.columns.sql import Sql
from sparkmeta.columns.types import public_value
from sparkmeta.plan.rows import partition_value
from sparkmeta.spec.partitioning import partition_spec_to_json
from sparkmeta.spec.schema import schema_to_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.schema import Schema
    from pyspark.sql import Column, DataFrame

    from sparkmeta.state import TableState

PARTITION_JSON = "partition_json"

CONTENTS = ("data", "position-deletes", "equality-deletes")


def task_json(splits: DataFrame, state: TableState, schema: Schema) -> DataFrame:
    """Convert splits to JSON in the single column `task`.

    Args:
        splits: columns of `plan_files`, `start` and `length` in bytes, and `partition_json`.
        state: the table.
        schema: the schema that the scan reads.
    """
    parts = [
        _member("schema", F.lit(json.dumps(schema_to_json(schema)))),
        _member("spec", _spec_json(state)),
        _member("data-file", _data_file()),
        F.concat(F.lit('"start":'), F.col("start"), F.lit(',"length":'), F.col("length")),
        _member(
            "delete-files", F.concat(F.lit("["), F.array_join(F.transform("deletes", _delete_file), ","), F.lit("]"))
        ),
        _member("residual-filter", F.col("residual")),
    ]
    return splits.select(F.concat(F.lit("{"), F.concat_ws(",", *parts), F.lit("}")).alias("task"))


def partition_json(state: TableState) -> Sql:
    """Return an entry's partition tuple as a JSON object: partition field id -> single-value JSON, without nulls."""
    renumbered = dict(state.types.partition_ids)
    text = _tuple_json(state, {field_id: field_id for field_id in state.types.partition_fields})
    for spec_id, ids in renumbered.items():
        of_spec = _tuple_json(state, {unique: written for written, unique in ids})
        text = sql.when(sql.col("partition_spec_id") == spec_id, of_spec).otherwise(text)
    return text


def _tuple_json(state: TableState, ids: Mapping[int, int]) -> Sql:
    """Return partition values as a JSON object. `ids` maps unique partition field ids to the ids used as keys."""
    types = state.types.partition_types
    values = [
        single_value(partition_value(field_id), types[field_id]).alias(str(written))
        for field_id, written in ids.items()
    ]
    without_nulls = sql.call("map", "ignoreNullFields", "true")
    return sql.call("to_json", sql.struct(*values), without_nulls) if values else sql.lit("{}")


def _spec_json(state: TableState) -> Column:
    chosen = F.lit(None).cast("string")
    for spec_id, spec in state.specs.items():
        chosen = F.when(F.col("spec_id") == spec_id, json.dumps(partition_spec_to_json(spec))).otherwise(chosen)
    return chosen


def _member(name: str, value: Column) -> Column:
    return F.concat(F.lit(f'"{name}":'), value)


def _data_file() -> Column:
    return _content_file(
        {
            "content": F.lit("data"),
            "file-path": F.col("file_path"),
            "file-format": F.lower("file_format"),
            "file-size-in-bytes": F.col("file_size_in_bytes"),
            "record-count": F.col("record_count"),
            "split-offsets": F.col("split_offsets"),
            "sort-order-id": F.col("sort_order_id"),
            "first-row-id": F.col("first_row_id"),
        }
    )


def _delete_file(delete: Column) -> Column:
    contents = F.array(*map(F.lit, CONTENTS))
    return _content_file(
        {
            "content": F.get(contents, delete.content),
            "file-path": delete.file_path,
            "file-format": F.lower(delete.file_format),
            "file-size-in-bytes": delete.file_size_in_bytes,
            "record-count": delete.record_count,
            "equality-ids": delete.equality_ids,
            "referenced-data-file": delete.referenced_data_file,
            "content-offset": delete.content_offset,
            "content-size-in-bytes": delete.content_size_in_bytes,
        }
    )


def _content_file(members: dict[str, Column]) -> Column:
    """Return the JSON object of a content file.

    Deletes are written with the spec and partition of the data file that they apply to, since a task has only one spec.
    """
    text = F.to_json(F.struct(*(value.alias(name) for name, value in members.items())), {"ignoreNullFields": "true"})
    head = F.concat(F.lit('{"spec-id":'), F.col("spec_id"), F.lit(',"partition":'), F.col(PARTITION_JSON), F.lit(","))
    return F.concat(head, F.substring(text, 2, 2**31 - 1))


def single_value(value: Sql, kind: Any) -> Sql:
    """Return a value in JSON single-value serialization, before quoting (table spec, Appendix D)."""
    if isinstance(kind, BinaryType | FixedType):
        return sql.call("hex", value)
    if isinstance(kind, DateType | DecimalType):
        return value.cast("string")
    if isinstance(kind, TimestampType):
        return sql.call("replace", value.cast("string"), " ", "T")
    if isinstance(kind, TimestamptzType):
        return _iso(sql.call("unix_micros", value), 6, "+00:00")
    if isinstance(kind, TimestampNanoType | TimestamptzNanoType):
        return _iso(value, 9, "" if isinstance(kind, TimestampNanoType) else "+00:00")
    if isinstance(kind, TimeType):
        return sql.call("substring", _iso(value, 6, ""), 12, 15)
    return public_value(value, kind) if isinstance(kind, PrimitiveType) else value


def _iso(ticks: Sql, digits: int, zone: str) -> Sql:
    """Return ticks since 1970 (10^digits per second) as ISO text in UTC, regardless of the session's time zone."""
    per_second = sql.lit(10**digits).cast("bigint")
    rest = sql.call("pmod", ticks, per_second)
    seconds = _div(ticks - rest, per_second)
    clock = sql.call("pmod", seconds, 86400)
    date = sql.call("date_from_unix_date", _div(seconds - clock, 86400).cast("int"))
    pieces = (_div(clock, 3600), sql.call("pmod", _div(clock, 60), 60), sql.call("pmod", clock, 60))
    time = sql.call("format_string", "%02d:%02d:%02d", *(piece.cast("int") for piece in pieces))
    fraction = sql.call("lpad", rest.cast("string"), digits, "0")
    return sql.concat(date.cast("string"), "T", time, ".", fraction, zone)


def _div(number: Sql, divisor: object) -> Sql:
    """Divide integers, exactly for every bigint."""
    return sql.call("div", number, divisor)
