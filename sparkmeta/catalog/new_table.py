"""Make the metadata of new tables from a schema of Spark, Arrow or pyiceberg, and terms such as `day(ts)`."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyiceberg import types as t
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException
from pyiceberg.partitioning import (
    PARTITION_FIELD_ID_START,
    PartitionField,
    PartitionSpec,
    _PartitionNameGenerator,
    _visit_partition_field,
)
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortOrder
from pyspark.sql import types as spark

from sparkmeta.checks import NAMES
from sparkmeta.errors import ValidationError, first_line, shown
from sparkmeta.spec.new_table import new_metadata
from sparkmeta.spec.schema import VariantType
from sparkmeta.spec.transform_text import Terms
from sparkmeta.spec.transforms import ColumnsBucket
from sparkmeta.spec.update_schema import with_fresh_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sparkmeta.spec.metadata import TableMetadata

_NEWEST_TYPES: Final = 3
_TYPES: Final[dict[type[spark.DataType], Callable[[Any], t.IcebergType]]] = {
    spark.BooleanType: lambda _: t.BooleanType(),
    spark.ByteType: lambda _: t.IntegerType(),
    spark.ShortType: lambda _: t.IntegerType(),
    spark.IntegerType: lambda _: t.IntegerType(),
    spark.LongType: lambda _: t.LongType(),
    spark.FloatType: lambda _: t.FloatType(),
    spark.DoubleType: lambda _: t.DoubleType(),
    spark.DecimalType: lambda kind: t.DecimalType(kind.precision, kind.scale),
    spark.StringType: lambda _: t.StringType(),
    spark.CharType: lambda _: t.StringType(),
    spark.VarcharType: lambda _: t.StringType(),
    spark.BinaryType: lambda _: t.BinaryType(),
    spark.DateType: lambda _: t.DateType(),
    spark.TimestampType: lambda _: t.TimestamptzType(),
    spark.TimestampNTZType: lambda _: t.TimestampType(),
    spark.VariantType: lambda _: VariantType(),
    spark.NullType: lambda _: t.UnknownType(),
}


def metadata_of_new_table(  # noqa: PLR0913  the parameters of `Catalog.create_table`
    location: str,
    schema: Schema | pa.Schema | spark.StructType,
    spec: PartitionSpec,
    sort_order: SortOrder,
    properties: Mapping[str, str] | None,
    *,
    format_version: int | None,
    partition_by: Sequence[str],
    sort_by: Sequence[str],
) -> TableMetadata:
    """Make the metadata of an empty table; see `Catalog.create_table` and `new_metadata`.

    Raises:
        ValidationError: Iceberg has no counterpart of a type, a term does not fit the schema, or a layout is given
            twice; or see `new_metadata`.
    """
    NAMES.check(f"{location}: partition_by", partition_by)
    NAMES.check(f"{location}: sort_by", sort_by)
    columns = _columns(location, schema)
    if partition_by:
        _refuse_second(location, "partition_by", "partition_spec", spec.fields)
        spec = _spec(location, columns, partition_by)
    if sort_by:
        _refuse_second(location, "sort_by", "sort_order", sort_order.fields)
        terms = Terms(columns, f"{location}: sort_by is {shown(list(sort_by))}")
        sort_order = SortOrder(*map(terms.sort_field, sort_by), order_id=1)
    return new_metadata(location, columns, spec, sort_order, properties, format_version)


def _refuse_second(location: str, name: str, other_name: str, fields: Sequence[object]) -> None:
    if fields:
        raise ValidationError(f"{location}: {name} and {other_name} are both given: expected one of them")


def _spec(location: str, schema: Schema, partition_by: Sequence[str]) -> PartitionSpec:
    terms = Terms(schema, f"{location}: partition_by is {shown(list(partition_by))}", "partitioned")
    fields = []
    for field_id, term in enumerate(partition_by, PARTITION_FIELD_ID_START):
        column, transform = terms.transformed(term)
        field = PartitionField(column.field_id, field_id, transform, "unnamed")
        name = (
            transform.default_name(schema)
            if isinstance(transform, ColumnsBucket)
            else _visit_partition_field(schema, field, _PartitionNameGenerator())
        )
        fields.append(field.model_copy(update={"name": name}))
    return PartitionSpec(*fields)


def _columns(location: str, schema: Any) -> Schema:
    """Return a schema as Iceberg's. Columns of Spark and Arrow have no ids and get new ones."""
    if isinstance(schema, Schema):
        return schema
    try:
        if isinstance(schema, spark.StructType):
            return Schema(*_fields(schema, count(1).__next__))
        if isinstance(schema, pa.Schema):
            return with_fresh_ids(Catalog._convert_schema_if_needed(schema, format_version=_NEWEST_TYPES))
    except (TypeError, ValueError, UnsupportedPyArrowTypeException) as error:
        raise ValidationError(f"{location}: schema: {first_line(error)}") from error
    expected = "expected a Schema of pyiceberg or Arrow, or a StructType of Spark, such as df.schema"
    raise ValidationError(f"{location}: schema is {shown(schema)}: {expected}")


def _fields(struct: spark.StructType, next_id: Callable[[], int]) -> list[t.NestedField]:
    """Return the fields of a Spark struct. Comments become documentation."""
    ids = [next_id() for _ in struct.fields]
    return [
        t.NestedField(
            field_id,
            field.name,
            _type(field.name, field.dataType, next_id),
            required=not field.nullable,
            doc=field.metadata.get("comment"),
        )
        for field_id, field in zip(ids, struct.fields, strict=True)
    ]


def _type(name: str, kind: spark.DataType, next_id: Callable[[], int]) -> t.IcebergType:
    match kind:
        case spark.StructType():
            return t.StructType(*_fields(kind, next_id))
        case spark.ArrayType():
            element_id = next_id()
            return t.ListType(element_id, _type(name, kind.elementType, next_id), not kind.containsNull)
        case spark.MapType():
            key_id, value_id = next_id(), next_id()
            key, value = (_type(name, part, next_id) for part in (kind.keyType, kind.valueType))
            return t.MapType(key_id, key, value_id, value, not kind.valueContainsNull)
    if type(kind) not in _TYPES:
        raise TypeError(f"column {name}: Iceberg has no type for Spark's {kind.simpleString()}")
    return _TYPES[type(kind)](kind)
