"""Rows as callers pass them to a change: a Spark DataFrame, or rows in memory, which become an Arrow table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyiceberg.types import ListType, MapType, StructType
from pyspark.sql import DataFrame

from sparkmeta.arrow_types import marked_variant, spark_type_of
from sparkmeta.errors import ValidationError
from sparkmeta.rows.columns import type_name
from sparkmeta.session import selectable_frame
from sparkmeta.write.input import require_frame
from sparkmeta.write.options import WriteOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType

    from sparkmeta.entries.relation import Relation
    from sparkmeta.snapshot.state import TableState

# Arrow types -> the types in which Spark would pass their values to tasks.
_SPARK_TYPES: Final = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.date64(): pa.date32(),
    pa.time32("s"): pa.time64("us"),
    pa.time32("ms"): pa.time64("us"),
    pa.time64("ns"): pa.time64("us"),
}


def input_rows(rows: Any, state: TableState) -> Relation:
    """Return rows to write: a few rows in memory as a table, all others as a DataFrame.

    Rows in memory are few if their bytes do not exceed the share of one task. The table's columns have the types that
    Spark would pass to tasks. The driver writes the table, unless only Spark's sources or tasks can open the files.

    Args:
        rows: a Spark DataFrame, a DataFrame of pandas or polars, or any object with the Arrow stream interface.
        state: the table, with the metadata that rows are written for.

    Raises:
        ValidationError: the rows are none of these, or a stream; or a value does not fit its column.
    """
    table = in_memory(rows, state)
    if table is None:
        require_frame(rows, state.metadata.location)
        return rows
    is_few = table.nbytes <= WriteOptions.of(state.metadata).shuffled_bytes
    return table if is_few and state.access.driver is not None else selectable_frame(state.spark, table)


def input_frame(rows: Any, state: TableState) -> DataFrame:
    """Return rows to write as a DataFrame; see `input_rows`."""
    table = in_memory(rows, state)
    return rows if table is None else selectable_frame(state.spark, table)


def in_memory(rows: Any, state: TableState) -> pa.Table | None:
    """Return rows in memory as a table; None for other objects. See `input_rows`."""
    table = state.metadata.location
    module = type(rows).__module__.partition(".")[0]
    if isinstance(rows, DataFrame) or not (module == "pandas" or hasattr(rows, "__arrow_c_stream__")):
        return None
    try:
        arrow = pa.Table.from_pandas(rows, preserve_index=False) if module == "pandas" else pa.table(rows)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise ValidationError(f"{table}: the rows: {' '.join(str(error).split())}") from error
    return _with_spark_types(arrow, state.metadata.schema(), table)


def _with_spark_types(rows: pa.Table, schema: Schema, table: str) -> pa.Table:
    """Return rows with the types that Spark would pass to tasks. See `check_schema` for the types that it accepts."""
    kinds = {field.name: field.field_type for field in schema.fields}
    columns = []
    for name, original in zip(rows.column_names, rows.columns, strict=True):
        column = original
        try:
            if pa.types.is_dictionary(column.type):
                column = _decoded(column)
            for as_numbers in (False, True):
                column = column.cast(_typed(column.type, kinds.get(name), as_numbers))
            columns.append(column)
        except (pa.ArrowException, ValueError) as error:
            problem = " ".join(str(error).split())
            raise ValidationError(f"{table}: column {name} of the rows is {original.type}: {problem}") from error
        _refuse_unknown(column.type, name, kinds.get(name), table)
    return pa.Table.from_arrays(columns, names=rows.column_names)


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the values of dictionaries. Polars stores them as views, which are converted since `take` refuses them."""
    value_type = _SPARK_TYPES.get(column.type.value_type, column.type.value_type)
    return pa.chunked_array(
        [chunk.dictionary.cast(value_type).take(chunk.indices) for chunk in column.chunks], value_type
    )


def _refuse_unknown(kind: pa.DataType, name: str, wanted: IcebergType | None, table: str) -> None:
    try:
        spark_type_of(kind)
    except TypeError as error:
        mismatch = "" if wanted is None else f", which is no value of the table's type {type_name(wanted)}"
        raise ValidationError(f"{table}: column {name} of the rows is {kind}{mismatch}") from error


def _typed(kind: pa.DataType, wanted: IcebergType | None, as_numbers: bool) -> pa.DataType:
    """Return the type in which Spark would pass values of a type.

    Args:
        kind: the type.
        wanted: the type of the table's column; None if the table lacks the column.
        as_numbers: whether times become microseconds since midnight, and timestamps of a column of nanoseconds become
            nanoseconds since 1970, since Spark lacks these types. A cast to integers keeps the unit, so
            values of other units are converted to the right unit first.
    """
    if isinstance(kind, pa.BaseExtensionType):
        return _typed(kind.storage_type, wanted, as_numbers)
    if pa.types.is_dictionary(kind):
        return _typed(kind.value_type, wanted, as_numbers)
    if pa.types.is_struct(kind):
        if str(wanted) == "variant":
            kind = marked_variant(kind)
        inside = {field.name: field.field_type for field in wanted.fields} if isinstance(wanted, StructType) else {}
        fields = [field.with_type(_typed(field.type, inside.get(field.name), as_numbers)) for field in kind]
        # Arrow can't cast a null struct to a struct with required fields.
        return pa.struct([field.with_nullable(True) for field in fields])
    if pa.types.is_map(kind):
        key, item = (wanted.key_type, wanted.value_type) if isinstance(wanted, MapType) else (None, None)
        return pa.map_(
            kind.key_field.with_type(_typed(kind.key_type, key, as_numbers)),
            kind.item_field.with_type(_typed(kind.item_type, item, as_numbers)),
        )
    if any(is_list(kind) for is_list in _LISTS):
        element = wanted.element_type if isinstance(wanted, ListType) else None
        return pa.list_(kind.value_field.with_type(_typed(kind.value_type, element, as_numbers)))
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_decimal(kind):
        return pa.decimal128(kind.precision, kind.scale) if kind.precision <= _MAX_DIGITS else kind
    supported = _SPARK_TYPES.get(kind, kind)
    if pa.types.is_timestamp(supported):
        zone = None if supported.tz is None else "UTC"
        in_nanos = str(wanted) == ("timestamp_ns" if zone is None else "timestamptz_ns")
        return pa.int64() if in_nanos and as_numbers else pa.timestamp("ns" if in_nanos else "us", zone)
    return pa.int64() if as_numbers and pa.types.is_time(supported) and str(wanted) == "time" else supported


_MAX_DIGITS: Final = 38
_LISTS: Final[tuple[Callable[[pa.DataType], bool], ...]] = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)
