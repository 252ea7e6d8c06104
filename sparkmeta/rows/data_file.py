"""Open a data file: its schema, and its columns in batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import orc

from sparkmeta.avro.container import AvroFile, Windows
from sparkmeta.errors import CorruptFileError, UnsupportedError
from sparkmeta.expr.arrays import UUID_BYTES, field_id, uuid_texts
from sparkmeta.expr.variants import rebuilt
from sparkmeta.rows.defaults import repeated_default
from sparkmeta.rows.orc import OrcSeconds
from sparkmeta.rows.resolve import FromDefault, FromFile, FromPartition, IcebergColumn, Source
from sparkmeta.storage.content import translated_read_errors

if TYPE_CHECKING:
    from sparkmeta.storage.executors import ExecutorReader


# -- Schemas of data files --------------------------------------------------------------------------------------------
# Spark tasks import this module, so it imports little.


_TYPES = {
    pa.null(): "unknown",
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.uint8(): "int",
    pa.uint16(): "int",
    pa.uint32(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
    pa.time64("us"): "time",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.string_view(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.binary_view(): "binary",
}


def file_columns(fields: Iterable[pa.Field]) -> tuple[IcebergColumn, ...]:
    """Return the columns of a Parquet or ORC file, given its Arrow fields.

    A type that Iceberg lacks keeps Arrow's name.
    """
    return tuple(_column(field.name, field) for field in fields)


def _column(name: str, field: pa.Field) -> IcebergColumn:
    type_name, children = _type(_storage(field.type))
    return IcebergColumn(name, field_id(field), type_name, children)


def _type(kind: pa.DataType) -> tuple[str, tuple[IcebergColumn, ...]]:
    if pa.types.is_struct(kind):
        return "struct", file_columns(kind)
    if pa.types.is_map(kind):
        return "map", (_column("key", kind.key_field), _column("value", kind.item_field))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return "list", (_column("element", kind.value_field),)
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision}, {kind.scale})", ()
    if pa.types.is_fixed_size_binary(kind):
        return f"fixed[{kind.byte_width}]", ()
    if pa.types.is_timestamp(kind):
        zone = "timestamp" if kind.tz is None else "timestamptz"
        return f"{zone}_ns" if kind.unit == "ns" else zone, ()
    return _TYPES.get(kind, str(kind)), ()


def _storage(kind: pa.DataType) -> pa.DataType:
    """Return the value type of a dictionary type or the storage type of an extension type; else the type itself."""
    if pa.types.is_dictionary(kind):
        return _storage(kind.value_type)
    return _storage(kind.storage_type) if isinstance(kind, pa.BaseExtensionType) else kind


# -- Arrays in the shape of the projected columns ---------------------------------------------------------------------
# Spark tasks import this module, so it imports little.


Partition = Mapping[int | None, pa.Scalar | None]
"""The identity partition values of a file, by the ids of the columns; None for values that the plan lacks."""


@dataclass(frozen=True)
class ComparedField:
    """A field that a filter or equality delete uses.

    Attributes:
        id: the field's id.
        column: the field, or the top-level struct that contains it, with no other fields.
        kind: the Arrow type of `column`.
    """

    id: int
    column: IcebergColumn
    kind: pa.DataType

    def unnested(self) -> ComparedField:
        """Return the leaf without its enclosing structs."""
        column, kind = self.column, self.kind
        while column.id != self.id:
            column, kind = column.children[0], kind.field(0).type
        return ComparedField(self.id, column, kind)

    def values(self, array: pa.Array) -> pa.Array:
        """Extract the field's values from values of `column`."""
        column = self.column
        while column.id != self.id:
            array, column = array.flatten()[0], column.children[0]
        return array


def column_values(batch: pa.RecordBatch, source: Source, kind: pa.DataType, partition: Partition) -> pa.Array:
    """Return the values of a projected column in a batch of a file; see `projected_array`."""
    array = batch.column(source.physical.name) if isinstance(source, FromFile) else None
    values = projected_array(array, source, kind, partition, len(batch))
    refuse_nulls(values, source.column)
    return values


def projected_array(
    array: pa.Array | None, source: Source, kind: pa.DataType, partition: Partition, length: int
) -> pa.Array:
    """Return the values of a projected column.

    Args:
        array: the file's column as read by Arrow, if the source is a column.
        source: the source of the values.
        kind: the Arrow type of the projected column.
        partition: the identity partition values of the file.
        length: the number of rows.

    Raises:
        ValueError: a value does not fit the type, or a required field is null.
    """
    match source:
        case FromFile():
            assert array is not None
            return _from_file(array, source, kind, partition)
        case FromPartition():
            value = partition[source.column.id]
            if value is None:
                raise ValueError(f"column {source.column.name} was dropped, and its partition values are not planned")
            return pa.repeat(value.cast(kind), length)
        case FromDefault(children=children) if children:
            fields = [
                projected_array(None, child, field.type, partition, length)
                for child, field in zip(children, kind, strict=True)
            ]
            return pa.StructArray.from_arrays(fields, fields=list(kind))
        case FromDefault():
            return repeated_default(source.column, kind, length)
    return pa.nulls(length, kind)


def _from_file(array: pa.Array, source: FromFile, kind: pa.DataType, partition: Partition) -> pa.Array:
    stored = _stored(array)
    if pa.types.is_null(stored.type) or pa.types.is_null(kind):
        return pa.nulls(len(array), kind)
    match source.column.type:
        case "struct":
            return _struct(stored, source, kind, partition)
        case "list":
            return _list(stored, source, kind, partition)
        case "map":
            return _map(stored, source, kind, partition)
        case "variant":
            return _variant(stored, kind)
    return _primitive(stored, source.column.type, kind)


def _stored(array: pa.Array) -> pa.Array:
    """Return the values of a dictionary or extension array as an array of their stored type."""
    if isinstance(array, pa.ExtensionArray):
        return _stored(array.storage)
    return _stored(array.dictionary_decode()) if isinstance(array, pa.DictionaryArray) else array


def _struct(array: pa.StructArray, source: FromFile, kind: pa.StructType, partition: Partition) -> pa.StructArray:
    stored = {field.name: child for field, child in zip(array.type, array.flatten(), strict=True)}
    children = []
    for child, field in zip(source.children, kind, strict=True):
        values = stored[child.physical.name] if isinstance(child, FromFile) else None
        children.append(projected_array(values, child, field.type, partition, len(array)))
        refuse_nulls(children[-1], child.column, array)
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())


def refuse_nulls(values: pa.Array, column: IcebergColumn, parent: pa.Array | None = None) -> None:
    """Check that a required column has no nulls.

    Args:
        values: the values of the column.
        column: the column.
        parent: the enclosing structs. Values may be null where these are null.

    Raises:
        ValueError: a value is null.
    """
    if column.required and values.null_count and (parent is None or values.null_count > parent.null_count):
        raise ValueError(f"column {column.name} (field id {column.id}) is required, and has nulls")


def _list(array: pa.Array, source: FromFile, kind: pa.ListType, partition: Partition) -> pa.ListArray:
    variable = array.cast(pa.list_(array.type.value_type)) if pa.types.is_fixed_size_list(array.type) else array
    offsets, start, end = _offsets(variable)
    values = _child(variable.values.slice(start, end - start), source.children[0], kind.value_type, partition)
    return pa.ListArray.from_arrays(offsets, values, type=kind, mask=array.is_null())


def _map(array: pa.MapArray, source: FromFile, kind: pa.MapType, partition: Partition) -> pa.MapArray:
    offsets, start, end = _offsets(array)
    keys, items = (values.slice(start, end - start) for values in (array.keys, array.items))
    key_source, item_source = source.children
    keys = _child(keys, key_source, kind.key_type, partition)
    if keys.null_count:
        raise ValueError(f"map {source.column.name} (field id {source.column.id}) has a null for a key")
    items = _child(items, item_source, kind.item_type, partition)
    return pa.MapArray.from_arrays(offsets, keys, items, type=kind, mask=array.is_null())


def _child(array: pa.Array, source: Source, kind: pa.DataType, partition: Partition) -> pa.Array:
    values = projected_array(array, source, kind, partition, len(array))
    refuse_nulls(values, source.column)
    return values


def _offsets(array: pa.Array) -> tuple[pa.Int32Array, int, int]:
    """Return the offsets of a list or map array from 0, and the start and end of its values in the child array."""
    offsets = array.offsets.to_numpy()
    start, end = int(offsets[0]), int(offsets[-1])
    return pa.array((offsets - start).astype(np.int32)), start, end


def _variant(array: pa.StructArray, kind: pa.StructType) -> pa.StructArray:
    metadata, values = rebuilt(array)
    parts = {"metadata": pc.fill_null(metadata, b""), "value": values}
    children = [parts[field.name] for field in kind]
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())


def _primitive(array: pa.Array, type_name: str, kind: pa.DataType) -> pa.Array:
    if type_name.startswith("timestamp"):
        return _timestamp(array, type_name, kind)
    if type_name == "time" and pa.types.is_time(array.type):
        return array.cast(pa.time64("us")).cast(kind)
    if type_name == "uuid":
        return uuid_texts(_fixed_bytes(array, UUID_BYTES))
    if type_name.startswith("fixed"):
        return _fixed_bytes(array, int(type_name[len("fixed[") : -1]))
    return array.cast(kind)


def _timestamp(array: pa.Array, type_name: str, kind: pa.DataType) -> pa.Array:
    """Convert timestamps, or dates promoted to timestamps, to the unit of the type. The zone is only a label."""
    unit = "ns" if type_name.endswith("_ns") else "us"
    if pa.types.is_date(array.type):
        return array.cast(pa.timestamp(unit)).view(kind)
    unzoned = array.view(pa.int64()).view(pa.timestamp(array.type.unit))
    return unzoned.cast(pa.timestamp(unit)).view(kind)


def _fixed_bytes(array: pa.Array, length: int) -> pa.BinaryArray:
    """Return values as binary. Raise ValueError if the length of a value is not `length`."""
    values = array.cast(pa.binary())
    lengths = pc.min_max(pc.binary_length(values)).as_py()
    if any(extreme not in (None, length) for extreme in lengths.values()):
        raise ValueError(f"values have {lengths['min']} to {lengths['max']} bytes, not {length}")
    return values


# -- Open a data file -------------------------------------------------------------------------------------------------
# Memory is bounded: for Parquet by some pages per column and `BATCH_BYTES` of decoded rows, for ORC by a stripe, for
# Avro by a block.
#
# Spark tasks import this module, so it imports little.


BATCH_ROWS = 1 << 16
BATCH_BYTES = 32 << 20

_PAGE_BUFFER = 1 << 20
# Maximum size of an Avro file that is held in memory as a whole.
_WHOLE_BYTES = 32 << 20


class DataFile(Protocol):
    """An open data file.

    Attributes:
        columns: the columns of the file.
        rows: the number of rows; None if it is known only after reading.
        schema: the schema in the form of the format's library: Arrow's schema, or the JSON object for Avro.
    """

    columns: tuple[IcebergColumn, ...]
    schema: Any
    rows: int | None

    def batches(self, sources: Sequence[Source], start: int, end: int | None) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield rows of a part of the file.

        Args:
            sources: the sources of the columns to read. Batches contain the file columns that the sources need, and
                possibly others.
            start: the byte offset of the part: row groups that begin there or later are read. In formats without random
                access by bytes, all rows are in the part that begins at 0.
            end: the byte offset of the next part; None for the last part.

        Yields:
            The position of the first row in the file, and the rows.
        """


def open_data_file(reader: ExecutorReader, location: str, file_format: str) -> DataFile:
    """Open a data file or a delete file.

    Raises:
        NotFoundError: there is no such file.
        CorruptFileError: the file is not of the format, or is truncated.
        UnsupportedError: the format is not Parquet, ORC or Avro.
    """
    with translated_read_errors(location):
        match file_format.upper():
            case "PARQUET":
                return _ParquetFile(reader, location)
            case "ORC":
                return _OrcFile(reader, location)
            case "AVRO":
                return _AvroDataFile(reader, location)
    raise UnsupportedError(f"{location}: data files of format {file_format} can't be read")


def refuse_other_count(location: str, record_count: int, rows: int) -> None:
    """Compare a file's number of rows with its record count in the manifest, which may be unknown (-1).

    Raises:
        CorruptFileError: they differ.
    """
    if rows != record_count >= 0:
        raise CorruptFileError(location, "record_count", record_count, f"the file has {rows} rows")


class _ParquetFile:
    def __init__(self, reader: ExecutorReader, location: str) -> None:
        self._location = location
        self._file = pq.ParquetFile(
            reader.open(location),
            decryption_properties=reader.keys.parquet_decryption(location),
            buffer_size=_PAGE_BUFFER,
            pre_buffer=False,
            coerce_int96_timestamp_unit="us",
            page_checksum_verification=True,
        )
        self.schema: Any = self._file.schema_arrow
        self.columns = file_columns(self.schema)
        self.rows: int | None = self._file.metadata.num_rows

    def batches(self, sources: Sequence[Source], start: int, end: int | None) -> Iterator[tuple[int, pa.RecordBatch]]:
        leaves = sorted(set(_selected_leaves(self.columns, sources, 0)))
        position = 0
        for number in range(self._file.metadata.num_row_groups):
            group = self._file.metadata.row_group(number)
            first_row, position = position, position + group.num_rows
            begin = row_group_start(group)
            if not group.num_rows or begin < start or (end is not None and begin >= end):
                continue
            size = sum(group.column(leaf).total_uncompressed_size for leaf in leaves)
            rows = max(1, min(BATCH_ROWS, BATCH_BYTES * group.num_rows // max(size, 1)))
            # ParquetFile.iter_batches selects columns by dotted names, which are ambiguous.
            for batch in self._file.reader.iter_batches(rows, [number], column_indices=leaves, use_threads=False):
                yield first_row, batch
                first_row += len(batch)
            if first_row != position:
                raise CorruptFileError(self._location, f"row group {number}", group.num_rows, "it has fewer rows")


def row_group_start(group: pq.RowGroupMetaData) -> int:
    """Return the byte offset of a row group in the file."""
    if not group.num_columns:
        return 0
    column = group.column(0)
    pages = column.dictionary_page_offset if column.has_dictionary_page else None
    return int(column.data_page_offset if pages is None else min(pages, column.data_page_offset))


def _selected_leaves(columns: Sequence[IcebergColumn], sources: Iterable[Source], start: int) -> Iterator[int]:
    """Yield the indices of the leaf columns that sources need.

    Args:
        columns: the columns of the file, or the fields of a struct.
        sources: sources among these columns.
        start: the index of the first leaf.
    """
    ends = accumulate(map(_leaf_count, columns), initial=start)
    starts = dict(zip((column.name for column in columns), ends, strict=False))
    for source in sources:
        if isinstance(source, FromFile):
            yield from _leaves(source, starts[source.physical.name])


def _leaves(source: FromFile, start: int) -> list[int]:
    physical = source.physical
    if not source.children:
        return list(range(start, start + _leaf_count(physical)))
    # Any leaf of a struct suffices to tell where the struct is null.
    return list(_selected_leaves(physical.children, source.children, start)) or [start]


def _leaf_count(column: IcebergColumn) -> int:
    return sum(map(_leaf_count, column.children)) if column.children else 1


class _OrcFile:
    def __init__(self, reader: ExecutorReader, location: str) -> None:
        self._reader, self._location = reader, location
        self._file = orc.ORCFile(reader.open(location))
        self.schema: Any = self._file.schema
        self.columns = file_columns(self.schema)
        self.rows: int | None = self._file.nrows

    def batches(self, sources: Sequence[Source], start: int, _end: int | None) -> Iterator[tuple[int, pa.RecordBatch]]:
        if start:
            return
        first_row = 0
        for stripe in range(self._file.nstripes):
            batch = self._stripe(stripe, sources)
            for offset in range(0, len(batch), BATCH_ROWS):
                yield first_row + offset, batch.slice(offset, BATCH_ROWS)
            first_row += len(batch)
        if first_row != self.rows:
            raise CorruptFileError(self._location, "number of rows", self.rows, f"the stripes have {first_row}")

    def _stripe(self, stripe: int, sources: Sequence[Source]) -> pa.RecordBatch:
        """Read whole columns of a stripe, because Arrow's reader aborts the process when it reads part of a map."""
        names = _names(self.columns, sources)
        try:
            return self._file.read_stripe(stripe, names)
        except pa.ArrowInvalid as error:
            if "out of range for nanosecond" not in str(error):
                raise
        return self._with_seconds.read_stripe(stripe, names, self._file.schema)

    @cached_property
    def _with_seconds(self) -> OrcSeconds:
        return OrcSeconds(self._reader.open(self._location), self._location)


class _AvroDataFile:
    def __init__(self, reader: ExecutorReader, location: str) -> None:
        length = reader.length(location)
        windows = Windows(partial(reader.read_range, location), length, location)
        self._file = AvroFile(windows if length > _WHOLE_BYTES else reader.read(location), location)
        self.schema: Any = self._file.avro_schema
        self.columns = file_columns(self._file.schema)
        self.rows: int | None = None

    def batches(self, sources: Sequence[Source], start: int, _end: int | None) -> Iterator[tuple[int, pa.RecordBatch]]:
        if start:
            return
        first_row = 0
        for batch in self._file.batches(_names(self.columns, sources)):
            yield first_row, batch
            first_row += len(batch)


def _names(columns: Sequence[IcebergColumn], sources: Iterable[Source]) -> list[str]:
    """Return the names of the columns that sources need. At least one, since a batch without columns has no rows."""
    names = {source.physical.name: None for source in sources if isinstance(source, FromFile)}
    return list(names) or [column.name for column in columns[:1]]
