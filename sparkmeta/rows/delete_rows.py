"""Read the rows of position delete files and deletion vectors in tasks. Light: Spark tasks import this."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sparkmeta.avro.container import records_with_ids
from sparkmeta.entries.locations import resolved
from sparkmeta.errors import CorruptFileError
from sparkmeta.expr.arrays import default_scalar, field_id, narrowed
from sparkmeta.spec.bitmap import PositionBitmap
from sparkmeta.spec.locations import Locations
from sparkmeta.storage.content import translated_read_errors
from sparkmeta.storage.encryption import KEY_METADATA, FileKeys
from sparkmeta.storage.executors import ExecutorReader
from sparkmeta.storage.vectors import vector_of, vector_range

# -- Deleted rows in position delete files ----------------------------------------------------------------------------
# Columns are resolved by field id (table spec, Column Projection): missing ones have their initial default or null,
# and promoted ones are widened.


@dataclass(frozen=True)
class RowField:
    """A field of the table's schema.

    Attributes:
        type: the name of a primitive type, or `struct`, `list` or `map`.
    """

    id: int
    type: str
    children: tuple[RowField, ...] = ()
    default: Any = None


def projected(array: pa.Array, target: RowField, kind: pa.DataType) -> pa.Array:
    """Convert an array from a file to a field of Arrow type `kind`. Raises ValueError if values don't fit."""
    if pa.types.is_null(array.type) or pa.types.is_null(kind):
        return pa.nulls(len(array), kind)
    shape = {"struct": _struct, "list": _list, "map": _map}.get(target.type)
    return _primitive(array, target.type, kind) if shape is None else shape(array, target, kind)


def _struct(array: pa.StructArray, target: RowField, kind: pa.StructType) -> pa.StructArray:
    by_id = {field_id(field): child for field, child in zip(array.type, array.flatten(), strict=True)}
    children = [
        projected(by_id[child.id], child, field.type) if child.id in by_id else _default(child, field.type, len(array))
        for child, field in zip(target.children, kind, strict=True)
    ]
    if not children:
        return pa.array([None if valid is None else {} for valid in array.is_valid().to_pylist()], kind)
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())


def _default(target: RowField, kind: pa.DataType, length: int) -> pa.Array:
    return pa.nulls(length, kind) if target.default is None else pa.repeat(default_scalar(target.default, kind), length)


def _list(array: pa.ListArray, target: RowField, kind: pa.ListType) -> pa.ListArray:
    values = projected(array.values, target.children[0], kind.value_type)
    return pa.ListArray.from_arrays(array.offsets, values, type=kind, mask=array.is_null())


def _map(array: pa.Array, target: RowField, kind: pa.MapType) -> pa.MapArray:
    """Convert a map, or a list of pairs."""
    keys, items = array.values.flatten() if pa.types.is_list(array.type) else (array.keys, array.items)
    key_field, item_field = target.children
    pairs = projected(keys, key_field, kind.key_type), projected(items, item_field, kind.item_type)
    return pa.MapArray.from_arrays(array.offsets, *pairs, type=kind, mask=array.is_null())


def _primitive(array: pa.Array, type_name: str, kind: pa.DataType) -> pa.Array:
    if type_name == "variant":
        raise ValueError("deleted rows with variants can't be shown")
    if type_name == "uuid":
        return _uuid_texts(array.cast(pa.binary()))
    if type_name.startswith("timestamp") and (pa.types.is_date(array.type) or pa.types.is_int32(array.type)):
        days = array.cast(pa.date32())  # dates from before a promotion
        array = days.cast(pa.timestamp("ns" if type_name.endswith("_ns") else "us"))
    if pa.types.is_integer(kind) and not pa.types.is_integer(array.type):
        return array.cast(pa.int64())  # times and nanoseconds
    return array.cast(kind)


def _uuid_texts(array: pa.BinaryArray) -> pa.StringArray:
    from uuid import UUID

    return pa.array([None if value is None else str(UUID(bytes=value)) for value in array.to_pylist()], pa.string())


# -- Position deletes and deletion vectors ----------------------------------------------------------------------------


BATCH_ROWS = 1 << 16

# Reserved field ids of position delete files (table spec, Position Delete Files), and names for files without ids.
_IDS = {"file_path": 2147483546, "pos": 2147483545, "row": 2147483544}

Columns = dict[str, pa.Array]


@dataclass(frozen=True)
class DeleteRows:
    """Reads deleted positions of delete files.

    Each input row is a delete file, with the columns location, file_format and `deletes`, and key_metadata if the table
    is encrypted. `deletes` lists the file's entries in manifests: struct<record_count, referenced_data_file,
    content_offset, content_size_in_bytes, spec_id>, with partition if the table has any. A Puffin file has an entry
    for each deletion vector.

    Attributes:
        schema: the schema of the result.
        row: the table's columns, as the type of the column `row`.
        locations: resolves the paths of data files.
    """

    schema: pa.Schema
    row: RowField
    locations: Locations

    def read(self, reader: ExecutorReader, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the deleted positions of delete files, which the task opens."""
        for batch in batches:
            for index, location in enumerate(batch.column("location").to_pylist()):
                yield from self._rows(batch, index, reader.read(location))

    def read_contents(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the deleted positions of delete files whose bytes are in the column `content`."""
        for batch in batches:
            for index, location in enumerate(batch.column("location").to_pylist()):
                if location is None:
                    path = batch.column("path")[index].as_py()
                    raise CorruptFileError(path, "path", path, "Spark read a file that no manifest names")
                yield from self._rows(batch, index, batch.column("content")[index].as_py())

    def _rows(self, files: pa.RecordBatch, index: int, data: bytes) -> Iterator[pa.RecordBatch]:
        location, file_format = (files.column(name)[index].as_py() for name in ("location", "file_format"))
        entries = files.column("deletes")[index].values
        keys = FileKeys()
        if KEY_METADATA in files.schema.names:
            keys.learn(location, file_format, files.column(KEY_METADATA)[index].as_py())
        if (stream := keys.stream_of(location)) is not None:
            data = stream.decrypted(data)
        if file_format == "PUFFIN":
            yield from self._vectors(entries, location, data)
            return
        readers = _READERS | {"PARQUET": partial(_parquet, keys.parquet_decryption(location))}
        row_columns = partial(_row_columns, row=self.row, row_type=self._row_type)
        for columns in _columns_of(data, file_format, location, row_columns, readers):
            columns["file_path"] = data_paths(columns["file_path"], location, self.locations)
            for entry in range(len(entries)):
                yield self._batch(columns, entries.take(pa.array([entry] * len(columns["pos"]))), location)

    @property
    def _row_type(self) -> pa.DataType:
        return self.schema.field("row").type

    def _vectors(self, entries: pa.StructArray, location: str, data: bytes) -> Iterator[pa.RecordBatch]:
        pending = _Pending()
        for index, entry in enumerate(entries.to_pylist()):
            for positions in _vector(data, entry, location).positions():
                pending.add(index, positions)
                if pending.length >= BATCH_ROWS:
                    yield self._positions(pending, entries, location)
                    pending = _Pending()
        if pending.length:
            yield self._positions(pending, entries, location)

    def _positions(self, pending: _Pending, entries: pa.StructArray, location: str) -> pa.RecordBatch:
        chosen = entries.take(pa.array(np.repeat(pending.entries, [len(positions) for positions in pending.positions])))
        positions = pa.array(np.concatenate(pending.positions))
        referenced = chosen.field("referenced_data_file")
        if referenced.null_count:
            raise CorruptFileError(location, "referenced_data_file", None, "a deletion vector's entry must have it")
        rows = pa.nulls(len(positions), self._row_type)
        return self._batch({"file_path": referenced, "pos": positions, "row": rows}, chosen, location)

    def _batch(self, columns: Columns, entries: pa.StructArray, location: str) -> pa.RecordBatch:
        """Combine columns of a delete file with the columns of its entries, which have as many rows."""
        paths = pa.repeat(pa.scalar(location, pa.string()), len(entries))
        known = columns | {"delete_file_path": paths}
        arrays = [known[field.name] if field.name in known else entries.field(field.name) for field in self.schema]
        cast = [narrowed(array, field.type) for array, field in zip(arrays, self.schema, strict=True)]
        return pa.RecordBatch.from_arrays(cast, schema=self.schema)


@dataclass
class _Pending:
    """Buffers positions of several deletion vectors for one batch."""

    entries: list[int] = field(default_factory=list)
    positions: list[np.ndarray[Any, Any]] = field(default_factory=list)
    length: int = 0

    def add(self, entry: int, positions: np.ndarray[Any, Any]) -> None:
        self.entries.append(entry)
        self.positions.append(positions)
        self.length += len(positions)


def _vector(data: bytes, entry: dict[str, Any], location: str) -> PositionBitmap:
    blob_range = vector_range(location, entry["content_offset"], entry["content_size_in_bytes"])
    return vector_of(data[blob_range.offset : blob_range.offset + blob_range.size], blob_range, entry["record_count"])


def deleted_positions(
    data: bytes, file_format: str, location: str, locations: Locations
) -> Iterator[tuple[pa.DictionaryArray, pa.Array]]:
    """Yield the columns file_path and pos of a position delete file, batch by batch.

    Args:
        data: the content of the file.
        file_format: the file's format.
        location: the file's location, for errors.
        locations: resolves the paths of data files.

    Raises:
        CorruptFileError: it is not a position delete file, or has a relative path before format version 4.
    """
    for columns in _columns_of(data, file_format, location, _position_columns, _POSITION_READERS):
        paths = columns["file_path"]
        encoded = paths if pa.types.is_dictionary(paths.type) else paths.dictionary_encode()
        yield data_paths(encoded, location, locations), columns["pos"]


def data_paths(paths: pa.Array, location: str, locations: Locations) -> pa.Array:
    """Return the paths of data files in a position delete file as absolute paths, by the rules before version 4."""
    return resolved(paths, locations.before_version_4, location, "file_path")


def _columns_of(
    data: bytes,
    file_format: str,
    location: str,
    columns: Callable[[pa.RecordBatch, str], Columns],
    readers: Mapping[str, _Reader],
) -> Iterator[Columns]:
    if file_format not in readers:
        raise CorruptFileError(location, "file_format", file_format, "no format of position delete files")
    with translated_read_errors(location, "position deletes"):
        for batch in readers[file_format](data, location):
            yield columns(batch, location)


def _row_columns(batch: pa.RecordBatch, location: str, row: RowField, row_type: pa.DataType) -> Columns:
    deleted = _by_id(batch).get(_IDS["row"])
    rows = pa.nulls(len(batch), row_type) if deleted is None else projected(deleted, row, row_type)
    return _position_columns(batch, location) | {"row": rows}


def _by_id(batch: pa.RecordBatch) -> dict[int | None, pa.Array]:
    return {
        field_id(field) or _IDS.get(field.name): column
        for field, column in zip(batch.schema, batch.columns, strict=True)
    }


def _position_columns(batch: pa.RecordBatch, location: str) -> Columns:
    by_id, required = _by_id(batch), {}
    for name, kind in (("file_path", pa.string()), ("pos", pa.int64())):
        column = by_id.get(_IDS[name])
        if column is None or column.null_count:
            raise CorruptFileError(location, name, None, "a position delete file must have it")
        required[name] = column if pa.types.is_dictionary(column.type) else column.cast(kind)
    return required


def _parquet(decryption: Any, data: bytes, _: str) -> Iterator[pa.RecordBatch]:
    yield from pq.ParquetFile(pa.BufferReader(data), decryption_properties=decryption).iter_batches(BATCH_ROWS)


def _parquet_positions(data: bytes, _: str) -> Iterator[pa.RecordBatch]:
    """Yield paths and positions without the deleted rows. Paths are dictionary-encoded, as in the file."""
    schema = pq.read_schema(pa.BufferReader(data))
    names = {field_id(field) or _IDS.get(field.name): field.name for field in schema}
    columns = [names[column] for column in (_IDS["file_path"], _IDS["pos"]) if column in names]
    file = pq.ParquetFile(pa.BufferReader(data), read_dictionary=columns[:1])
    yield from file.iter_batches(BATCH_ROWS, columns=columns)


def _orc(data: bytes, _: str) -> Iterator[pa.RecordBatch]:
    from pyarrow import orc

    file = orc.ORCFile(pa.BufferReader(data))
    for stripe in range(file.nstripes):
        yield file.read_stripe(stripe)


def _avro_positions(data: bytes, location: str) -> Iterator[pa.RecordBatch]:
    return records_with_ids(data, location, (_IDS["file_path"], _IDS["pos"]))


_Reader = Callable[[bytes, str], Iterator[pa.RecordBatch]]
_READERS: dict[str, _Reader] = {"ORC": _orc, "AVRO": records_with_ids}
_POSITION_READERS = _READERS | {"PARQUET": _parquet_positions, "AVRO": _avro_positions}
