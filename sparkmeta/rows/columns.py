"""The columns that a scan needs from data files, how Spark reads them, and their form for tasks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import MappedField, NameMapping, parse_mapping_from_json
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    DecimalType,
    IcebergType,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StructType,
    UUIDType,
)
from pyspark.sql import types as spark

from sparkmeta.errors import ValidationError, shown
from sparkmeta.expr import sql
from sparkmeta.expr.bounds import reads_as
from sparkmeta.expr.conditions import unpushed
from sparkmeta.expr.sql import Sql
from sparkmeta.expr.types import public_value, spark_type
from sparkmeta.rows.planned import ROW_INDEX, column_name
from sparkmeta.rows.resolve import IcebergColumn, MappedName
from sparkmeta.spec.avro_name import avro_name
from sparkmeta.spec.entry import FIRST_RESERVED_ID
from sparkmeta.spec.schema import column_default, pruned

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec

    from sparkmeta.snapshot.state import TableState
    from sparkmeta.spec.metadata import TableMetadata


# -- Columns and metadata for tasks -----------------------------------------------------------------------------------


NAME_MAPPING = "schema.name-mapping.default"
"""The table property that contains the name mapping."""


def projected_column(field: NestedField) -> IcebergColumn:
    """Return a field of a schema as an `IcebergColumn`."""
    kind = field.field_type
    children = tuple(map(projected_column, child_fields(kind)))
    default = column_default(kind, field.initial_default)
    return IcebergColumn(field.name, field.field_id, type_name(kind), children, field.required, default)


def type_name(kind: IcebergType) -> str:
    """Return the name of a type in the form that `IcebergColumn` uses."""
    match kind:
        case StructType():
            return "struct"
        case ListType():
            return "list"
        case MapType():
            return "map"
    return str(kind)


def child_fields(kind: IcebergType) -> tuple[NestedField, ...]:
    """Return the fields of a nested type; none for a primitive type."""
    match kind:
        case StructType():
            return kind.fields
        case ListType():
            return (kind.element_field,)
        case MapType():
            return kind.key_field, kind.value_field
    return ()


def name_mapping(metadata: TableMetadata) -> tuple[MappedName, ...] | None:
    """Return the table's name mapping; None if it has none.

    Raises:
        ValidationError: the table property is not a name mapping.
    """
    text = metadata.properties.get(NAME_MAPPING)
    if text is None:
        return None
    try:
        mapping: NameMapping = parse_mapping_from_json(text)
    except ValueError as error:
        problem = str(error).splitlines()[0]
        raise ValidationError(f"{metadata.location}: {NAME_MAPPING} is {shown(text)}: {problem}") from error
    return _mapped(mapping.root)


def _mapped(fields: Iterable[MappedField]) -> tuple[MappedName, ...]:
    return tuple(MappedName(tuple(field.names), field.field_id, _mapped(field.fields)) for field in fields)


def identity_sources(spec: PartitionSpec) -> dict[int, int]:
    """Return the ids of a spec's identity partition fields by source column id."""
    identities = (field for field in spec.fields if isinstance(field.transform, IdentityTransform))
    return {field.source_id: field.field_id for field in identities}


# -- Columns of a scan in data files ----------------------------------------------------------------------------------


# Types that Spark's Parquet reader can't read.
_UNREAD: Final = ("unknown", "variant")
# Types that Spark reads as numbers. Files added to a table may store them in other units.
_NUMBERS_OF_UNITS: Final = ("time", "timestamp_ns", "timestamptz_ns")

_PARQUET_ID: Final = "parquet.field.id"


def needed_fields(projection: Schema, schema: Schema, others: Iterable[int]) -> tuple[NestedField, ...]:
    """Return the top-level columns that a scan needs, with unneeded nested fields pruned.

    Args:
        projection: the columns of the result.
        schema: the schema that the projection was selected from.
        others: ids of further fields of the schema to read.
    """
    leaves = {field_id for field in projection.fields for field_id in _leaves(field)}
    ids = leaves.union(others)
    return (projection if ids == leaves else pruned(schema, ids)).fields


@dataclass(frozen=True)
class ReadColumns:
    """Columns of a table, as expressions over the columns that Spark reads from Parquet files.

    Attributes:
        fields: the columns.
        schema: the schema that Spark reads, with the names in the files and values in bound form.
        sources: the value of each field, in terms of the columns of `read_files` and the file's `partition`.
        has_partition_values: whether a source is a partition value.
    """

    fields: tuple[NestedField, ...]
    schema: spark.StructType
    sources: tuple[Sql, ...]
    has_partition_values: bool = False

    @staticmethod
    def by_names(fields: tuple[NestedField, ...], widened: Collection[int]) -> ReadColumns:
        """Return columns that have the same names in the files as in the table.

        They have field ids, so that Spark refuses files without ids, whose columns are identified by position.

        Args:
            fields: the columns.
            widened: ids of decimals that may have a lower precision in some files.
        """
        read_fields = [
            spark.StructField(field.name, read_type(field.field_type), True, {_PARQUET_ID: field.field_id})
            for field in fields
        ]
        sources = [widened_value(field, sql.col(column_name(index)), widened) for index, field in enumerate(fields)]
        return ReadColumns(fields, spark.StructType(read_fields), tuple(sources))

    @cached_property
    def values(self) -> Mapping[int, Sql]:
        """The values of columns and struct fields by field id, in bound form."""
        pairs = zip(self.fields, self.sources, strict=True)
        return {field_id: value for field, source in pairs for field_id, value in field_values(field, source)}

    @cached_property
    def types(self) -> Mapping[int, IcebergType]:
        """The types of the columns by field id."""
        return {field.field_id: field.field_type for field in self.fields}

    def shown(self, field: NestedField) -> Sql:
        """Return a column's value in public form, with only the nested fields of the given field."""
        return shaped(self.values[field.field_id], self.types[field.field_id], field.field_type)


def _leaves(field: NestedField) -> Iterator[int]:
    children = child_fields(field.field_type)
    if not children:
        yield field.field_id
    for child in children:
        yield from _leaves(child)


def field_values(field: NestedField, value: Sql) -> Iterator[tuple[int, Sql]]:
    """Yield the id and value of a field and of the struct fields inside it."""
    yield field.field_id, value
    if isinstance(field.field_type, StructType):
        for child, inside in zip(
            field.field_type.fields, struct_fields(value, spark_type(field.field_type)), strict=True
        ):
            yield from field_values(child, inside)


def struct_fields(value: Sql, kind: spark.DataType) -> list[Sql]:
    """Return the fields of a struct in public form; names that differ only in case are ambiguous in Spark."""
    assert isinstance(kind, spark.StructType)
    if len({name.lower() for name in kind.names}) < len(kind.names):
        fields = [spark.StructField(f"f{index}", field.dataType) for index, field in enumerate(kind.fields)]
        kind = spark.StructType(fields)
        value = value.cast(kind)
    return [value[name] for name in kind.names]


def widened_value(field: NestedField, value: Sql, widened: Collection[int]) -> Sql:
    """Return the value of a file's column, with widened decimals in expressions that Spark can't push into Parquet.

    Spark pushes down filters on columns and on struct fields, but not on anything in lists and maps.

    Args:
        field: the column, or a field of a struct.
        value: its value.
        widened: ids of decimals that may have a lower precision in the file.
    """
    match field.field_type:
        case DecimalType() if field.field_id in widened:
            return unpushed(value)
        case StructType() as kind:
            sources = [value[child.name] for child in kind.fields]
            values = [widened_value(child, source, widened) for child, source in zip(kind.fields, sources, strict=True)]
            if any(widened_child is not source for widened_child, source in zip(values, sources, strict=True)):
                children = (
                    widened_child.alias(child.name) for child, widened_child in zip(kind.fields, values, strict=True)
                )
                return sql.when(value.isNotNull(), sql.struct(*children))
    return value


def spark_reads(file_type: str, kind: str) -> bool:
    """Return whether Spark's Parquet reader can read values of a file's type as the table's type.

    Times and nanosecond timestamps are read as unscaled numbers, so dates, which count days, can't be read as them.
    """
    return reads_as(file_type, kind) and (file_type == kind or kind not in _NUMBERS_OF_UNITS)


def read_type(kind: IcebergType) -> spark.DataType:
    """Return the type of values from Spark's Parquet reader: `spark_type`, except that UUIDs are binary."""
    match kind:
        case StructType():
            return spark.StructType(
                [spark.StructField(child.name, read_type(child.field_type)) for child in kind.fields]
            )
        case ListType():
            return spark.ArrayType(read_type(kind.element_type))
        case MapType():
            return spark.MapType(read_type(kind.key_type), read_type(kind.value_type))
    return spark_type(BinaryType() if isinstance(kind, UUIDType) else kind)


def shaped(value: Sql, kind: IcebergType, wanted: IcebergType, *, is_public: bool = False) -> Sql:
    """Return a value in public form, without fields that the wanted type lacks.

    Args:
        value: the value, in the form in which Spark read it or in public form.
        kind: its type.
        wanted: the same type, possibly with fewer fields.
        is_public: whether the value is in public form already.
    """
    if not _changes(kind, wanted, is_public):
        return value

    def shaped_child(child: Sql, kind: IcebergType, wanted: IcebergType) -> Sql:
        return shaped(child, kind, wanted, is_public=is_public)

    match kind, wanted:
        case StructType(), StructType():
            children = zip(kind.fields, struct_fields(value, spark_type(kind)), strict=True)
            by_id = {field.field_id: (inside, field.field_type) for field, inside in children}
            fields = [
                shaped_child(*by_id[field.field_id], field.field_type).alias(field.name) for field in wanted.fields
            ]
            return sql.when(value.isNotNull(), sql.struct(*fields))
        case ListType(), ListType():
            return sql.transform(value, lambda element: shaped_child(element, kind.element_type, wanted.element_type))
        case MapType(), MapType():
            keys = sql.transform(
                sql.call("map_keys", value), lambda key: shaped_child(key, kind.key_type, wanted.key_type)
            )
            items = sql.transform(
                sql.call("map_values", value), lambda item: shaped_child(item, kind.value_type, wanted.value_type)
            )
            return sql.call("map_from_arrays", keys, items)
    assert isinstance(wanted, PrimitiveType)
    return public_value(value, wanted)


def _changes(kind: IcebergType, wanted: IcebergType, is_public: bool) -> bool:
    if isinstance(kind, UUIDType):
        return not is_public
    children = {field.field_id: field for field in child_fields(kind)}
    common = [field for field in child_fields(wanted) if field.field_id in children]
    return len(common) < len(children) or any(
        _changes(children[field.field_id].field_type, field.field_type, is_public) for field in common
    )


# -- Do names identify the columns? -----------------------------------------------------------------------------------


def names_tell(state: TableState, fields: Iterable[NestedField]) -> bool:
    """Return whether every file of the table either stores the columns under their current names or lacks them.

    This holds if no column was renamed, no name was reused (ignoring case), and names are stored unescaped. The files'
    footers have to be inspected if

    - a column has an initial default and may be missing,
    - the table has a name mapping and files may lack ids,
    - Spark can't read a type or promotion,
    - files may have times in another unit, or
    - schemas that files may have been written with were removed from the metadata.
    """
    if name_mapping(state.metadata) is not None or not state.types.has_all_schemas:
        return False
    history = _History(defaultdict(set), defaultdict(set), defaultdict(set))
    for schema in state.metadata.schemas:
        for field in schema.fields:
            history.add(field, ())
    return all(history.tells(field, ()) for field in fields if field.field_id < FIRST_RESERVED_ID)


@dataclass(frozen=True)
class _History:
    """All names of fields in a table's schemas.

    Attributes:
        paths: names from the top-level column to the field, by field id.
        ids: field ids by lower-case path.
        types: types by field id.
    """

    paths: dict[int, set[tuple[str, ...]]]
    ids: dict[tuple[str, ...], set[int]]
    types: dict[int, set[str]]

    def add(self, field: NestedField, parents: tuple[str, ...]) -> None:
        path = (*parents, field.name)
        self.paths[field.field_id].add(path)
        self.ids[tuple(name.lower() for name in path)].add(field.field_id)
        self.types[field.field_id].add(type_name(field.field_type))
        for child in child_fields(field.field_type):
            self.add(child, path)

    def tells(self, field: NestedField, parents: tuple[str, ...]) -> bool:
        path = (*parents, field.name)
        path_ids = self.ids[tuple(name.lower() for name in path)]
        kind = type_name(field.field_type)
        return (
            self.paths[field.field_id] == {path}
            and path_ids == {field.field_id}
            and avro_name(field.name) == field.name
            and field.name.lower() != ROW_INDEX
            and field.initial_default is None
            and kind not in (*_UNREAD, *_NUMBERS_OF_UNITS)
            and not (kind == "struct" and not child_fields(field.field_type))
            and all(earlier != "unknown" and reads_as(earlier, kind) for earlier in self.types[field.field_id])
            and all(self.tells(child, path) for child in child_fields(field.field_type))
        )
