"""The columns of new data files: Arrow types with Iceberg's field ids, and the conversion of values to them.

Spark tasks import this module, so it imports little.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.errors import ValidationError, shown
from sparkmeta.expr.arrays import UUID_BYTES, compact_lists, uuid_bytes, with_field_id
from sparkmeta.expr.bounds import bound_arrow_type
from sparkmeta.expr.variants import FILE_VARIANT
from sparkmeta.rows.defaults import repeated_default
from sparkmeta.rows.resolve import IcebergColumn
from sparkmeta.spec.avro_name import avro_name

SHAPES: Final = ("geometry", "geography")
"""The beginnings of the names of types of shapes, which are stored as WKB."""

UNWRITTEN: Final = "unknown"
"""The type of columns that are not written to files."""

_DAY_MICROS: Final = 86_400_000_000
_SHAPE: Final = re.compile(r"(geometry|geography)(?:\('([^']*)'(?:, '(\w+)')?\))?")
_TEMPORAL: Final = {
    "time": pa.time64("us"),
    "timestamp_ns": pa.timestamp("ns"),
    "timestamptz_ns": pa.timestamp("ns", "UTC"),
}
# ORC attributes for types that ORC lacks (table spec, ORC).
_ORC_ATTRIBUTES: Final = {
    "uuid": {"iceberg.binary-type": "UUID"},
    "time": {"iceberg.long-type": "TIME"},
    "timestamp_ns": {"iceberg.timestamp-unit": "NANOS"},
    "timestamptz_ns": {"iceberg.timestamp-unit": "NANOS"},
}


class Shape(pa.ExtensionType):  # type: ignore[misc]
    """The type of shapes in WKB, for which Arrow's writer marks a column as GEOMETRY or GEOGRAPHY."""

    def __init__(self, description: str) -> None:
        """Create the type.

        Args:
            description: the JSON of GeoArrow: the coordinate reference system, and the edges unless they are planar.
        """
        self._description = description
        super().__init__(pa.binary(), "geoarrow.wkb")

    @staticmethod
    def of(type_name: str) -> Shape:
        """Return the type for an Iceberg type. Without a coordinate reference system, both have the same default."""
        match = _SHAPE.fullmatch(type_name)
        assert match is not None
        parts = {"crs": match[2], "edges": "spherical" if match[1] == "geography" else None}
        return Shape(json.dumps({name: value for name, value in parts.items() if value}))

    def __arrow_ext_serialize__(self) -> bytes:
        """Return the description."""
        return self._description.encode()

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> Shape:
        """Return the type for a serialized description."""
        return cls(serialized.decode())


def written(columns: Sequence[IcebergColumn]) -> tuple[IcebergColumn, ...]:
    """Return the columns that are written to files."""
    return tuple(column for column in columns if column.type != UNWRITTEN)


def file_schema(columns: Sequence[IcebergColumn], file_format: str) -> pa.Schema:
    """Return the Arrow schema of a data file, with field ids where Arrow's writer for the format expects them."""
    return pa.schema([_field(column, file_format) for column in written(columns)])


def _field(column: IcebergColumn, file_format: str) -> pa.Field:
    kind = file_type(column, file_format)
    if file_format == "orc":
        attributes = {"iceberg.id": str(column.id), "iceberg.required": str(column.required).lower()}
        attributes |= _ORC_ATTRIBUTES.get(column.type, {})
        if column.type.startswith("fixed"):
            length = column.type.removeprefix("fixed[").removesuffix("]")
            attributes |= {"iceberg.binary-type": "FIXED", "iceberg.length": length}
        return pa.field(column.name, kind, not column.required, attributes)
    return with_field_id(pa.field(avro_name(column.name), kind, not column.required), column.id)


def file_type(column: IcebergColumn, file_format: str) -> pa.DataType:
    """Return the Arrow type of a column in a data file."""
    children = [_field(child, file_format) for child in written(column.children)]
    match column.type:
        case "struct":
            return pa.struct(children)
        case "list":
            return pa.list_(children[0])
        case "map":
            return pa.map_(children[0], children[1])
        case "variant":
            return FILE_VARIANT
        case "uuid" if file_format == "parquet":
            return pa.uuid()
        case "time" if file_format == "orc":
            return pa.int64()
    if column.type.startswith(SHAPES) and file_format == "parquet":
        return Shape.of(column.type)
    if column.type in _TEMPORAL:
        return _TEMPORAL[column.type]
    if column.type.startswith("fixed") and file_format != "orc":
        return pa.binary(int(column.type[len("fixed[") : -1]))
    return bound_arrow_type(column.type)


@dataclass(frozen=True)
class FileColumns:
    """Converts rows of a DataFrame to rows of data files. Picklable.

    Attributes:
        table: the table, for errors.
        columns: the table's columns, with write defaults as their defaults.
        file_format: the format of the files.
    """

    table: str
    columns: tuple[IcebergColumn, ...]
    file_format: str

    def table_of(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.Table:
        """Convert rows to rows of a file.

        Args:
            batch: the rows. Columns are matched by name; further columns are ignored.
            schema: the file's schema, from `file_schema`.

        Raises:
            ValidationError: a value does not fit its column, or a required column has a null.
        """
        index_by_name = {name: index for index, name in enumerate(batch.schema.names)}
        arrays = []
        for column, field in zip(written(self.columns), schema, strict=True):
            index = index_by_name.get(column.name)
            array = None if index is None else batch.column(index)
            values = self._values(array, column, field.type, len(batch), (column.name,))
            self._refuse_nulls(values, column, (column.name,))
            arrays.append(values)
        return pa.Table.from_arrays(arrays, schema=schema)

    def _values(
        self, array: pa.Array | None, column: IcebergColumn, kind: pa.DataType, row_count: int, path: tuple[str, ...]
    ) -> pa.Array:
        if array is None and column.default is not None:
            return repeated_default(column, kind, row_count)
        if array is None or pa.types.is_null(array.type):
            if column.type not in ("struct", "variant"):
                return pa.nulls(row_count, kind)
            # Its required fields must have values.
            array = pa.nulls(row_count, pa.struct([]) if column.type == "struct" else kind)
        match column.type:
            case "struct":
                return self._struct(array, column, kind, path)
            case "list":
                return self._list(array, column, kind, path)
            case "map":
                return self._map(array, column, kind, path)
        try:
            return _variant(array, kind) if column.type == "variant" else _primitive(array, column.type, kind)
        except (pa.ArrowException, ValueError) as error:
            problem = " ".join(str(error).split())[:200]
            raise ValidationError(f"{self.table}: column {'.'.join(path)} of type {column.type}: {problem}") from error

    def _struct(
        self, array: pa.StructArray, column: IcebergColumn, kind: pa.StructType, path: tuple[str, ...]
    ) -> pa.Array:
        values = dict(zip((field.name for field in array.type), array.flatten(), strict=True))
        children = []
        for child, field in zip(written(column.children), kind, strict=True):
            inside = (*path, child.name)
            children.append(self._values(values.get(child.name), child, field.type, len(array), inside))
            self._refuse_nulls(children[-1], child, inside, array)
            if child.required and children[-1].null_count:
                children[-1] = _without_nulls(children[-1])
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())

    def _list(self, array: pa.Array, column: IcebergColumn, kind: pa.ListType, path: tuple[str, ...]) -> pa.Array:
        lists = array.cast(pa.list_(array.type.value_type)) if pa.types.is_large_list(array.type) else array
        offsets, values = compact_lists(lists)
        child = column.children[0]
        inside = (*path, child.name)
        elements = self._values(values, child, kind.value_type, len(values), inside)
        self._refuse_nulls(elements, child, inside)
        return pa.ListArray.from_arrays(offsets, elements, type=kind, mask=array.is_null())

    def _map(self, array: pa.MapArray, column: IcebergColumn, kind: pa.MapType, path: tuple[str, ...]) -> pa.Array:
        offsets, entries = compact_lists(array)
        parts = []
        for child, values, field in zip(
            column.children, entries.flatten(), (kind.key_field, kind.item_field), strict=True
        ):
            inside = (*path, child.name)
            parts.append(self._values(values, child, field.type, len(values), inside))
            self._refuse_nulls(parts[-1], child, inside)
        return pa.MapArray.from_arrays(offsets, *parts, type=kind, mask=array.is_null())

    def _refuse_nulls(
        self, values: pa.Array, column: IcebergColumn, path: tuple[str, ...], parent: pa.Array | None = None
    ) -> None:
        nulls = values.null_count
        if not column.required or not nulls:
            return
        if parent is not None and parent.null_count:
            nulls = pc.sum(pc.and_(values.is_null(), parent.is_valid())).as_py() or 0
        if nulls:
            raise ValidationError(f"{self.table}: column {'.'.join(path)} is required, and has nulls in {nulls} rows")


def _without_nulls(array: pa.Array) -> pa.Array:
    """Fill the nulls of a required field with arbitrary values. Such nulls occur only inside null structs."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, _without_nulls(array.storage))
    if pa.types.is_struct(kind):
        return pa.StructArray.from_arrays([array.field(index) for index in range(kind.num_fields)], fields=list(kind))
    if pa.types.is_nested(kind):
        is_map = pa.types.is_map(kind)
        entries = (kind.key_field, kind.item_field) if is_map else ()
        values = pa.StructArray.from_arrays([array.keys, array.items], fields=entries) if is_map else array.values
        buffers = [None, array.buffers()[1]]
        return pa.Array.from_buffers(kind, len(array), buffers, offset=array.offset, children=[values])
    _, *data_buffers = array.buffers()
    return pa.Array.from_buffers(kind, len(array), [None, *data_buffers], offset=array.offset)


def _variant(array: pa.StructArray, kind: pa.StructType) -> pa.Array:
    parts = [pc.fill_null(pc.struct_field(array, field.name).cast(pa.binary()), b"") for field in kind]
    for field, part in zip(kind, parts, strict=True):
        if pc.any(pc.and_(array.is_valid(), pc.equal(pc.binary_length(part), 0))).as_py():
            raise ValueError(f"a variant has no bytes of {field.name}")
    return pa.StructArray.from_arrays(parts, fields=list(kind), mask=array.is_null())


def _primitive(array: pa.Array, type_name: str, kind: pa.DataType) -> pa.Array:
    if array.type == kind:
        return array
    if type_name == "uuid":
        texts = array.cast(pa.string()) if pa.types.is_large_string(array.type) else array
        values = uuid_bytes(texts) if pa.types.is_string(texts.type) else _of_length(texts, UUID_BYTES)
        if isinstance(kind, pa.UuidType):
            return pa.ExtensionArray.from_storage(kind, values.cast(pa.binary(UUID_BYTES)))
        return values.cast(kind)
    if isinstance(kind, Shape):
        return pa.ExtensionArray.from_storage(kind, array.cast(pa.binary()))
    if type_name.startswith("fixed"):
        return _of_length(array, int(type_name[len("fixed[") : -1])).cast(kind)
    if type_name == "time":
        return _time(array).cast(kind)
    if type_name.endswith("_ns") and pa.types.is_integer(array.type):
        return array.cast(pa.int64()).view(kind)
    return array.cast(kind)


def _time(array: pa.Array) -> pa.Array:
    micros = array.cast(pa.time64("us")).cast(pa.int64()) if pa.types.is_time(array.type) else array.cast(pa.int64())
    extremes = pc.min_max(micros).as_py()
    for extreme in extremes.values():
        if extreme is not None and not 0 <= extreme < _DAY_MICROS:
            raise ValueError(f"{extreme} is not a time: expected microseconds from midnight, less than {_DAY_MICROS}")
    return micros.view(pa.time64("us"))


def _of_length(array: pa.Array, length: int) -> pa.Array:
    values = array.cast(pa.binary())
    has_wrong_length = pc.fill_null(pc.not_equal(pc.binary_length(values), length), False)
    for value in values.filter(has_wrong_length).slice(0, 1).to_pylist():
        raise ValueError(f"{shown(value)} has {len(value)} bytes, not {length}")
    return values
