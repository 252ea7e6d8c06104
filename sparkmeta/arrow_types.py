"""Convert types between Arrow and Spark, the same way with every version of PySpark.

PySpark has such functions for its own use only: their parameters and results differ between minor versions.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql import types as spark

_PRIMITIVES: Final[dict[pa.DataType, spark.DataType]] = {
    pa.null(): spark.NullType(),
    pa.bool_(): spark.BooleanType(),
    pa.int8(): spark.ByteType(),
    pa.int16(): spark.ShortType(),
    pa.int32(): spark.IntegerType(),
    pa.int64(): spark.LongType(),
    pa.float32(): spark.FloatType(),
    pa.float64(): spark.DoubleType(),
    pa.string(): spark.StringType(),
    pa.binary(): spark.BinaryType(),
    pa.date32(): spark.DateType(),
    pa.timestamp("us"): spark.TimestampNTZType(),
    pa.timestamp("us", "UTC"): spark.TimestampType(),
}
_ARROW_TYPES: Final = {kind: arrow for arrow, kind in _PRIMITIVES.items()}

# A session may be configured to return the large types.
_SPARK_TYPES: Final = _PRIMITIVES | {pa.large_string(): spark.StringType(), pa.large_binary(): spark.BinaryType()}

# Spark reads a struct of these two fields as a variant if the field `metadata` has this metadata.
_METADATA: Final = pa.field("metadata", pa.binary(), nullable=False, metadata={"variant": "true"})
_VARIANT: Final = pa.struct([pa.field("value", pa.binary(), nullable=False), _METADATA])


def spark_schema(schema: pa.Schema) -> spark.StructType:
    """Return the Spark type of rows of an Arrow schema; timestamps without a zone stay so.

    Raises:
        TypeError: a type that no column of this package has.
    """
    return spark.StructType([_spark_field(field) for field in schema])


def arrow_schema(row_type: spark.StructType) -> pa.Schema:
    """Return the Arrow schema of rows of a Spark type, with timestamps in UTC.

    Raises:
        TypeError: a type that no column of this package has.
    """
    return pa.schema([_arrow_field(field) for field in row_type.fields])


def is_variant(kind: pa.DataType) -> bool:
    """Return whether Spark reads values of an Arrow type as variants."""
    if not pa.types.is_struct(kind) or {field.name for field in kind} != {"value", "metadata"}:
        return False
    return bool(kind.field("metadata").metadata == _METADATA.metadata)


def marked_variant(kind: pa.DataType) -> pa.DataType:
    """Return a struct of binary fields `metadata` and `value` as the type of variants, other types unchanged."""
    names = {field.name for field in kind} if pa.types.is_struct(kind) else set()
    if names != {"value", "metadata"}:
        return kind
    return pa.struct([field.with_metadata(_METADATA.metadata if field.name == "metadata" else None) for field in kind])


def spark_type_of(kind: pa.DataType) -> spark.DataType:
    """Return the Spark type of an Arrow type; see `spark_schema`."""
    if pa.types.is_decimal128(kind):
        return spark.DecimalType(kind.precision, kind.scale)
    if pa.types.is_list(kind):
        return spark.ArrayType(spark_type_of(kind.value_type), kind.value_field.nullable)
    if pa.types.is_map(kind):
        return spark.MapType(spark_type_of(kind.key_type), spark_type_of(kind.item_type), kind.item_field.nullable)
    if is_variant(kind):
        return spark.VariantType()
    if pa.types.is_struct(kind):
        return spark.StructType([_spark_field(field) for field in kind])
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return spark.TimestampType()
    if kind not in _SPARK_TYPES:
        raise TypeError(f"{kind} has no Spark type")
    return _SPARK_TYPES[kind]


def arrow_type_of(kind: spark.DataType) -> pa.DataType:
    """Return the Arrow type of a Spark type; see `arrow_schema`."""
    match kind:
        case spark.DecimalType():
            return pa.decimal128(kind.precision, kind.scale)
        case spark.ArrayType():
            return pa.list_(pa.field("element", arrow_type_of(kind.elementType), kind.containsNull))
        case spark.MapType():
            value = pa.field("value", arrow_type_of(kind.valueType), kind.valueContainsNull)
            return pa.map_(pa.field("key", arrow_type_of(kind.keyType), nullable=False), value)
        case spark.StructType():
            return pa.struct([_arrow_field(field) for field in kind.fields])
        case spark.VariantType():
            return _VARIANT
    if kind not in _ARROW_TYPES:
        raise TypeError(f"{kind.simpleString()} has no Arrow type")
    return _ARROW_TYPES[kind]


def _spark_field(field: pa.Field) -> spark.StructField:
    return spark.StructField(field.name, spark_type_of(field.type), field.nullable)


def _arrow_field(field: spark.StructField) -> pa.Field:
    return pa.field(field.name, arrow_type_of(field.dataType), field.nullable)


def with_required_fields(rows: pa.Table) -> pa.Table:
    """Fill the required fields of null structs with any value.

    Arrow allows nulls there. PySpark refuses to make a DataFrame of them.
    """
    for index, kind in enumerate(rows.schema.types):
        if _has_required(kind):
            chunks = map(_with_required, rows.column(index).chunks)
            rows = rows.set_column(index, rows.schema.field(index), pa.chunked_array(chunks, kind))
    return rows


def _has_required(kind: pa.DataType) -> bool:
    """Return whether a struct in a type has a field that is not nullable."""
    if pa.types.is_map(kind):
        return _has_required(kind.item_type)
    fields = [kind.field(index) for index in range(kind.num_fields)]
    is_struct = pa.types.is_struct(kind)
    return any((is_struct and not field.nullable) or _has_required(field.type) for field in fields)


def _with_required(values: pa.Array) -> pa.Array:
    kind = values.type
    if not _has_required(kind):
        return values
    if pa.types.is_struct(kind):
        children = [_with_required(values.field(index)) for index in range(kind.num_fields)]
        present = [
            child if field.nullable or not child.null_count else _without_nulls(child)
            for field, child in zip(kind, children, strict=True)
        ]
        mask = values.is_null() if values.null_count else None
        return pa.StructArray.from_arrays(present, fields=list(kind), mask=mask)
    elements = _elements(values)
    if pa.types.is_map(kind):
        items = [elements.field(0), _with_required(elements.field(1))]
        elements = pa.StructArray.from_arrays(items, fields=list(elements.type))
    else:
        elements = _with_required(elements)
    return pa.Array.from_buffers(kind, len(values), values.buffers()[:2], offset=values.offset, children=[elements])


def _without_nulls(values: pa.Array) -> pa.Array:
    """Return values without nulls: a null becomes the value that its buffers hold."""
    kind = values.type
    if pa.types.is_struct(kind):
        children = [values.field(index) for index in range(kind.num_fields)]
        return pa.StructArray.from_arrays(children, fields=list(kind))
    elements = [_elements(values)] if pa.types.is_nested(kind) else None
    buffers = [None, *values.buffers()[1 : kind.num_buffers]]
    return pa.Array.from_buffers(kind, len(values), buffers, offset=values.offset, children=elements)


def _elements(lists: pa.Array) -> pa.Array:
    """Return the elements of all lists; of maps, structs of a key and an item."""
    if not pa.types.is_map(lists.type):
        return lists.values
    fields = [lists.type.key_field, lists.type.item_field]
    return pa.StructArray.from_arrays([lists.keys, lists.items], fields=fields)
