"""Write data files in Parquet, ORC and Avro, and find columns that Java can't read. Spark tasks import this module."""

from __future__ import annotations

import json
import math
import os
import shutil
import struct
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, Final, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import orc

from sparkmeta.avro.container import SYNC_SIZE, container_blocks, container_header, deflater
from sparkmeta.avro.schema import fixed_sizes, named_once
from sparkmeta.avro.write import ColumnEncoder
from sparkmeta.errors import UnsupportedError, ValidationError
from sparkmeta.expr.arrays import field_id, narrowed
from sparkmeta.expr.variants import FILE_VARIANT, is_file_variant
from sparkmeta.rows.data_file import row_group_start
from sparkmeta.rows.orc import (
    BYTES,
    SECONDARY,
    TIMESTAMPS,
    Field,
    Numbers,
    OrcParts,
    decoded_runs,
    encoded,
    encoded_runs,
    number_in,
    parsed,
    with_numbers,
)
from sparkmeta.rows.resolve import IcebergColumn
from sparkmeta.spec.avro_name import avro_name
from sparkmeta.storage.encryption import EncryptingSink, FileKey, parquet_encryption
from sparkmeta.write.file_schema import written
from sparkmeta.write.parquet_footer import FooterSink
from sparkmeta.write.shredding import FieldBounds, Shredder

if TYPE_CHECKING:
    from sparkmeta.write.options import WriteOptions


# -- The Avro schema of data files (table spec, Avro) -----------------------------------------------------------------


_PRIMITIVES: Final[dict[str, Any]] = {
    "boolean": "boolean",
    "int": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "bytes",
    "date": {"type": "int", "logicalType": "date"},
    "time": {"type": "long", "logicalType": "time-micros"},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": False},
    "timestamptz": {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True},
    "timestamp_ns": {"type": "long", "logicalType": "timestamp-nanos", "adjust-to-utc": False},
    "timestamptz_ns": {"type": "long", "logicalType": "timestamp-nanos", "adjust-to-utc": True},
    "uuid": {"type": "fixed", "name": "uuid_fixed", "size": 16, "logicalType": "uuid"},
}


def avro_schema(columns: Sequence[IcebergColumn]) -> dict[str, Any]:
    """Return the Avro schema of rows. Named types, such as fixed, are defined at each occurrence.

    Args:
        columns: the columns of the table.
    """
    return {"type": "record", "name": "table", "fields": [_field(column) for column in written(columns)]}


def _field(column: IcebergColumn) -> dict[str, Any]:
    name = avro_name(column.name)
    field = {"name": name, "type": _type(column), "field-id": column.id}
    if not column.required:
        field["default"] = None
    return field if name == column.name else {**field, "iceberg-field-name": column.name}


def _type(column: IcebergColumn) -> Any:
    kind = _value_type(column)
    return kind if column.required else ["null", kind]


def _value_type(column: IcebergColumn) -> Any:
    match column.type:
        case "struct":
            return {"type": "record", "name": f"r{column.id}", "fields": list(map(_field, written(column.children)))}
        case "list":
            (element,) = column.children
            return {"type": "array", "items": _type(element), "element-id": element.id}
        case "map":
            return _map(*column.children)
        case "variant":
            fields = [{"name": field.name, "type": "bytes"} for field in FILE_VARIANT]
            return {"type": "record", "name": f"r{column.id}", "fields": fields, "logicalType": "variant"}
    if column.type.startswith("decimal"):
        precision, scale = map(int, column.type[len("decimal(") : -1].split(","))
        attributes = {"logicalType": "decimal", "precision": precision, "scale": scale}
        return {
            "type": "fixed",
            "name": f"decimal_{precision}_{scale}",
            "size": _decimal_bytes(precision),
            **attributes,
        }
    if column.type.startswith("fixed"):
        size = int(column.type[len("fixed[") : -1])
        return {"type": "fixed", "name": f"fixed_{size}", "size": size}
    return _PRIMITIVES[column.type]


def _map(key: IcebergColumn, value: IcebergColumn) -> dict[str, Any]:
    """Return the schema of a map, or of an array of pairs if its keys are not strings."""
    if key.type == "string":
        return {"type": "map", "values": _type(value), "key-id": key.id, "value-id": value.id}
    pair = {"type": "record", "name": f"k{key.id}_v{value.id}", "fields": [_field(key), _field(value)]}
    return {"type": "array", "items": pair, "logicalType": "map"}


def _decimal_bytes(precision: int) -> int:
    """Return the minimum number of bytes of a signed integer with `precision` digits."""
    digits: int = 10**precision
    return digits.bit_length() // 8 + 1


# -- Write times before 1970 to ORC files -----------------------------------------------------------------------------
# ORC stores a time as seconds and nanoseconds. The nanoseconds count from the next lower second. If they are more than
# 999999, the stored seconds are rounded up. Arrow's writer rounds seconds towards zero, so it stores negative
# nanoseconds for times before 1970 that have a fraction of a second. Arrow's reader understands them; Java reads most
# of these times one second early.
# Therefore, other times are passed to Arrow, whose seconds and negated nanoseconds are the correct values to store. In
# the finished file, the nanoseconds are then negated.


_SECOND: Final = {"us": 10**6, "ns": 10**9}
# ORC readers assume that a negative second is rounded up if there are at least this many nanoseconds.
_MIN_ROUNDED: Final = 10**6
# Kinds of streams that are part of a stripe's index.
_INDEXES: Final = (6, 7, 8)
_TIMESTAMP_STATISTICS: Final = 9


def has_times(kind: pa.DataType) -> bool:
    """Return whether a type is a type of times, or contains one."""
    return pa.types.is_timestamp(kind) or any(has_times(kind.field(index).type) for index in range(kind.num_fields))


# -- Before writing ---------------------------------------------------------------------------------------------------


@dataclass
class TimesBefore1970:
    """Replaces the times of rows for Arrow's writer.

    Attributes:
        table: the table, for errors.
        has_changes: whether any time was changed. `copy_negated` must then copy the file.
    """

    table: str
    has_changes: bool = field(default=False, init=False)

    def replaced(self, table: pa.Table) -> pa.Table:
        """Return rows with replaced times.

        Raises:
            ValidationError: ORC can't store a time.
        """
        for index, column in enumerate(table.schema):
            if has_times(column.type):
                chunks = [self._replaced(chunk, column.type, column.name) for chunk in table.column(index).chunks]
                table = table.set_column(index, column, pa.chunked_array(chunks, column.type))
        return table

    def _replaced(self, array: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
        if pa.types.is_timestamp(kind):
            return self._times(array, name)
        if not has_times(kind):
            return array
        mask = array.is_null()
        if pa.types.is_struct(kind):
            children = [
                self._replaced(child, part.type, f"{name}.{part.name}")
                for child, part in zip(array.flatten(), kind, strict=True)
            ]
            return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
        if pa.types.is_map(kind):
            keys = self._replaced(array.keys, kind.key_type, f"{name}.key")
            items = self._replaced(array.items, kind.item_type, f"{name}.value")
            return pa.MapArray.from_arrays(array.offsets, keys, items, type=kind, mask=mask)
        values = self._replaced(array.values, kind.value_type, f"{name}.element")
        return pa.ListArray.from_arrays(array.offsets, values, type=kind, mask=mask)

    def _times(self, array: pa.TimestampArray, name: str) -> pa.TimestampArray:
        values = np.asarray(pc.fill_null(array.view(pa.int64()), 0))
        second = _SECOND[array.type.unit]
        seconds, fractions = np.divmod(values, second)
        rows = np.flatnonzero((seconds < 0) & (fractions > 0))
        if not len(rows):
            return array
        self.has_changes = True
        seconds, fractions = seconds[rows], fractions[rows]
        seconds += fractions * (10**9 // second) >= _MIN_ROUNDED
        # Readers would take 0 seconds for a time after 1970.
        unstorable = rows[(seconds == 0) | (values[rows] < np.iinfo(np.int64).min + second)]
        if len(unstorable):
            text = array[unstorable[0]].cast(pa.string())
            problem = "ORC readers would take it for another time; Parquet and Avro can store it (write.format.default)"
            raise ValidationError(f"{self.table}: column {name} has the time {text}: {problem}")
        replaced = values.copy()
        replaced[rows] = seconds * second - fractions
        return pa.array(replaced, mask=np.asarray(array.is_null())).view(array.type)


# -- After writing ----------------------------------------------------------------------------------------------------


def copy_negated(source: pa.NativeFile, sink: IO[bytes], table: str) -> None:
    """Copy a file with negative nanoseconds made positive, and without indexes and statistics of times.

    Args:
        source: the file that Arrow wrote.
        sink: the copy.
        table: the table, for errors.
    """
    parts = OrcParts(source, table)
    kinds = [number_in(part.value, 1) for part in parts.footer if part.number == 4]
    copy = _Copy(parts, sink, tuple(index for index, kind in enumerate(kinds) if kind in TIMESTAMPS))
    copy.put(parts.read(0, 3))  # the magic bytes
    stripes = iter([copy.stripe(part.value) for part in parts.footer if part.number == 3])
    size, metadata_size = copy.size, next(part.value for part in parts.script if part.number == 5)
    metadata = parsed(parts.decoded(parts.read(parts.footer_start - metadata_size, metadata_size)))
    stored = parts.stored(encoded(each._replace(value=_without_times(each.value, 1)) for each in metadata))
    copy.put(stored)
    footer = []
    for part in parsed(_without_times(encoded(parts.footer), 7)):
        values = {2: size, 8: 0}  # the length of all stripes, and the rows between entries of an index: none
        value = next(stripes) if part.number == 3 else values.get(part.number, part.value)
        footer.append(part._replace(value=value))
    copy.put(parts.tail(footer, len(stored)))


@dataclass
class _Copy:
    parts: OrcParts
    sink: IO[bytes]
    times: tuple[int, ...]
    size: int = 0

    def put(self, data: bytes) -> None:
        self.sink.write(data)
        self.size += len(data)

    def stripe(self, described: bytes) -> bytes:
        """Copy a stripe. Return its description for the footer."""
        start, index_length, data_length, footer_length = (number_in(described, number) for number in (1, 2, 3, 4))
        position, new_start, streams = start, self.size, []
        footer = parsed(self.parts.decoded(self.parts.read(start + index_length + data_length, footer_length)))
        for part in footer:
            if part.number != 1:
                continue
            kind, column, length = (number_in(part.value, number) for number in (1, 2, 3))
            if kind not in _INDEXES:
                stream = self.parts.read(position, length)
                if kind == SECONDARY and column in self.times:
                    stream = self._negated(stream)
                self.put(stream)
                streams.append(part._replace(value=with_numbers(part.value, {3: len(stream)})))
            position += length
        new_data = self.size - new_start
        new_footer = self.parts.stored(encoded([*streams, *(part for part in footer if part.number != 1)]))
        self.put(new_footer)
        return with_numbers(described, {1: new_start, 2: 0, 3: new_data, 4: len(new_footer)})

    def _negated(self, stream: bytes) -> bytes:
        """Return a stream of nanoseconds without negative ones."""
        runs = [*decoded_runs(self.parts.decoded(stream))]
        values: Numbers = np.concatenate(runs) if runs else np.zeros(0, np.int64)
        if not (values < 0).any():
            return stream
        # The last three bits count decimal zeros that are left out.
        return self.parts.stored(encoded_runs(np.where(values < 0, -(values >> 3) << 3 | values & 7, values)))


def _without_times(message: bytes, number: int) -> bytes:
    """Return a message whose column statistics, in fields of this number, have no bounds of times."""
    return encoded(_without_time_bounds(part) if part.number == number else part for part in parsed(message))


def _without_time_bounds(part: Field) -> Field:
    assert part.wire_type == BYTES
    return part._replace(
        value=encoded(statistic for statistic in parsed(part.value) if statistic.number != _TIMESTAMP_STATISTICS)
    )


# -- Write Parquet files with Arrow -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Written:
    """Facts of a closed file.

    Attributes:
        size: the size in bytes.
        split_offsets: the offsets at which readers can split the file.
        column_sizes: the size in bytes of each primitive column with metrics, by field id.
        boxes: the lower and the upper bound of geometries, by field id.
        shredded: the bounds of fields of shredded variants, by field id.
        key_metadata: the file's key metadata, if it is encrypted.
    """

    size: int
    split_offsets: list[int]
    column_sizes: dict[int, int]
    boxes: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)
    shredded: Mapping[int | None, FieldBounds] = field(default_factory=dict)
    key_metadata: bytes | None = field(default=None, repr=False)


_POINT: Final = struct.Struct("<dd")


class ParquetOutput:
    """A Parquet file being written, one row group at a time."""

    def __init__(
        self, sink: Any, schema: pa.Schema, options: WriteOptions, sized: frozenset[int], notes: Mapping[str, str]
    ) -> None:
        """Open the file.

        Args:
            sink: the output stream.
            schema: the schema of the rows, with field ids.
            options: how to write it.
            sized: the field ids of the columns whose size is reported.
            notes: key-value metadata of the footer.
        """
        self._sink, self._schema, self._options, self._sized, self._notes = sink, schema, options, sized, notes
        variants = frozenset(_variants(schema))
        self._footer_sink = FooterSink(sink, variants) if variants else None
        self._footers: list[pq.FileMetaData] = []
        self._opened: pq.ParquetWriter | None = None
        self._key = None if options.data_key_length is None else FileKey.new(options.data_key_length)
        self._shredder: Shredder | None = None

    @property
    def size(self) -> int:
        """The bytes written so far."""
        return int(self._sink.tell())

    def write(self, table: pa.Table) -> None:
        """Write rows as a row group. The first rows determine how variants are shredded."""
        if self._footer_sink is not None and self._options.inferring_rows:
            if self._shredder is None:
                self._shredder = Shredder(table, self._options.inferring_rows)
                self._schema = self._shredder.schema
            table = self._shredder.shredded(table)
        self._writer(len(table)).write_table(table, row_group_size=max(len(table), 1))

    def _writer(self, rows: int) -> pq.ParquetWriter:
        """Return Arrow's writer. Its Bloom filters are sized for the first row group."""
        if self._opened is None:
            options, columns = self._options, [*_leaves(self._schema)]
            filters = _bloom_filters(options, columns, rows)
            self._opened = pq.ParquetWriter(
                self._sink if self._footer_sink is None else pa.PythonFile(self._footer_sink, mode="w"),
                self._schema,
                compression=options.codec,
                compression_level=options.level if options.codec != "none" else None,
                data_page_size=options.page_bytes,
                max_rows_per_page=options.page_rows,
                use_dictionary=_columns_without(columns, options.without_dictionary),
                write_statistics=_columns_without(columns, options.unmeasured),
                dictionary_pagesize_limit=options.dictionary_bytes,
                store_schema=False,
                store_decimal_as_integer=True,
                write_page_index=True,
                metadata_collector=self._footers,
                encryption_properties=None if self._key is None else parquet_encryption(self._key),
                # pyarrow before 26 does not know the option.
                **({"bloom_filter_options": filters} if filters else {}),
            )
            self._opened.add_key_value_metadata(dict(self._notes))
        return self._opened

    def close(self) -> Written:
        """Write the footer."""
        writer = self._writer(0)
        if self._footer_sink is not None:
            self._footer_sink.hold()
        writer.close()
        if self._footer_sink is not None:
            self._footer_sink.release()
        size = self.size
        self._sink.close()
        (footer,) = self._footers
        sizes: dict[int, int] = {}
        offsets, columns = [], [*_leaves(self._schema)]
        for number in range(footer.num_row_groups):
            group = footer.row_group(number)
            offsets.append(row_group_start(group))
            for index, (column, _) in enumerate(columns):
                if column in self._sized:
                    sizes[column] = sizes.get(column, 0) + group.column(index).total_compressed_size
        boxes = {
            column: box
            for index, (column, _) in enumerate(columns)
            if column is not None and (box := _box(footer, index)) is not None
        }
        shredded = {} if self._shredder is None else self._shredder.bounds()
        key_metadata = None if self._key is None else self._key.with_length(size).metadata()
        return Written(size, offsets, sizes, boxes, shredded, key_metadata)

    def abort(self) -> None:
        """Release the file without finishing it."""
        # The writer's destructor would try to write the footer to the closed stream.
        if self._opened is not None:
            self._opened.is_open = False
        self._sink.close()


def _box(footer: pq.FileMetaData, index: int) -> tuple[bytes, bytes] | None:
    """Return the bounds of a column of geometries: the least and the greatest x and y, as Java's writers do.

    None if the column is of another type or has no coordinates, or if a value is not ISO WKB.
    """
    if footer.schema.column(index).logical_type.type != "GEOMETRY":
        return None
    groups = [footer.row_group(number).column(index).geo_statistics for number in range(footer.num_row_groups)]
    if None in groups:
        return None
    known = [group for group in groups if group.xmin is not None and group.ymin is not None]
    if not known:
        return None
    lower = _POINT.pack(min(each.xmin for each in known), min(each.ymin for each in known))
    upper = _POINT.pack(max(each.xmax for each in known), max(each.ymax for each in known))
    return lower, upper


def _leaves(schema: pa.Schema) -> Iterator[tuple[int | None, str]]:
    """Yield the field ids of primitive columns and their paths in Parquet."""

    def leaves(field: pa.Field, path: str) -> Iterator[tuple[int | None, str]]:
        children = _children(field.type, path)
        if not children:
            yield field_id(field), path
        for child, inside in children:
            yield from leaves(child, inside)

    for column in schema:
        yield from leaves(column, column.name)


def _variants(schema: pa.Schema) -> Iterator[str]:
    """Yield the paths of variants in Parquet."""

    def variants(field: pa.Field, path: str) -> Iterator[str]:
        if is_file_variant(field.type):
            yield path
        else:
            for child, inside in _children(field.type, path):
                yield from variants(child, inside)

    for column in schema:
        yield from variants(column, column.name)


def _children(kind: pa.DataType, path: str) -> list[tuple[pa.Field, str]]:
    """Return the fields inside a type, with their paths in Parquet."""
    if pa.types.is_struct(kind):
        return [(child, f"{path}.{child.name}") for child in kind]
    if pa.types.is_map(kind):
        return [(kind.key_field, f"{path}.key_value.key"), (kind.item_field, f"{path}.key_value.value")]
    return [(kind.value_field, f"{path}.list.element")] if pa.types.is_list(kind) else []


def _columns_without(columns: Sequence[tuple[int | None, str]], without: Collection[int]) -> bool | list[str]:
    """Return the paths of all columns except the given ones; True for all columns."""
    return [path for column, path in columns if column not in without] if without else True


def _bloom_filters(
    options: WriteOptions, columns: Sequence[tuple[int | None, str]], rows: int
) -> dict[str, dict[str, int | float]]:
    """Return the options of Bloom filters by path. A filter takes at most `bloom_bytes`, a power of 2."""
    filters = {}
    for column, path in columns:
        bloom_filter = options.bloom_filters.get(column) if column is not None else None
        if bloom_filter is not None:
            bits = 8 << (options.bloom_bytes.bit_length() - 1)
            # The number of values that have this share of false positives in this many bits (Parquet format, Bloom
            # filter).
            maximum = int(-bits / 8 * math.log(1 - bloom_filter.false_positives ** (1 / 8)))
            values = max(1, min(bloom_filter.values or rows, maximum))
            filters[path] = {"ndv": values, "fpp": bloom_filter.false_positives}
    return filters


# -- Write Avro files. Spark tasks import this module -----------------------------------------------------------------


# Rows encoded at a time.
_ROWS: Final = 20_000


class AvroOutput:
    """An Avro file being written. It reports neither column sizes nor split offsets, since readers find its blocks."""

    def __init__(
        self, sink: Any, columns: Sequence[IcebergColumn], options: WriteOptions, notes: Mapping[str, str]
    ) -> None:
        """Open the file.

        Args:
            sink: the output stream.
            columns: the columns of the rows.
            options: how to write it.
            notes: key-value metadata of the header.
        """
        self._key = None if options.data_key_length is None else FileKey.new(options.data_key_length)
        self._sink = sink if self._key is None else EncryptingSink(sink, self._key)
        sink = self._sink
        self._sync = os.urandom(SYNC_SIZE)
        self._pack = deflater(options.codec, options.level)
        schema = avro_schema(columns)
        self._fields = schema["fields"]
        self._encoder = ColumnEncoder(fixed_sizes(schema))
        sink.write(container_header(named_once(schema), options.codec, notes, self._sync))

    @property
    def size(self) -> int:
        """The bytes written so far."""
        return int(self._sink.tell())

    def write(self, table: pa.Table) -> None:
        """Write rows."""
        for start in range(0, len(table), _ROWS):
            batch = table.slice(start, _ROWS).combine_chunks().to_batches()[0]
            records = self._encoder.records(self._fields, batch.columns, len(batch))
            for block in container_blocks(records, self._pack, self._sync):
                self._sink.write(block)

    def close(self) -> Written:
        """Finish the file."""
        if self._key is None:
            size, key_metadata = self.size, None
        else:
            size = self._sink.finish()
            key_metadata = self._key.with_length(size).metadata()
        self._sink.close()
        return Written(size, [], {}, key_metadata=key_metadata)

    def abort(self) -> None:
        """Release the file without finishing it."""
        self._sink.close()


# -- Write ORC files with Arrow. Spark tasks import this module -------------------------------------------------------


_COPIED_BYTES = 1 << 20


class OrcOutput:
    """An ORC file being written. Arrow reports neither stripe offsets nor column sizes.

    A file with times is written to the local disk first, since it may have to be corrected.
    """

    def __init__(self, sink: Any, schema: pa.Schema, options: WriteOptions, table: str) -> None:
        """Open the file.

        Args:
            sink: the output stream.
            schema: the Arrow schema of the rows, which has the field ids as attributes.
            options: how to write it.
            table: the table, for errors.
        """
        self._sink, self._table = sink, table
        self._times = TimesBefore1970(table)
        needs_spool = any(has_times(column.type) for column in schema)
        self._spool = tempfile.TemporaryFile() if needs_spool else None  # noqa: SIM115
        self._writer = orc.ORCWriter(
            self._file,
            compression=options.codec,
            compression_strategy=options.orc_strategy,
            stripe_size=options.group_bytes,
        )

    @property
    def _file(self) -> Any:
        """The file that Arrow writes."""
        return self._sink if self._spool is None else self._spool

    @property
    def size(self) -> int:
        """The bytes written so far, in whole stripes."""
        return int(self._file.tell())

    def write(self, table: pa.Table) -> None:
        """Write rows.

        Raises:
            ValidationError: ORC can't store a time.
        """
        # Arrow's writer ignores the offsets of slices of structs that have nulls: it writes other rows. In structs of
        # structs, it writes the values of children whose parent is null, and shifts all later ones.
        rows = table.take(pa.array(np.arange(len(table))))
        columns = [narrowed(column, column.type) for column in rows.columns]
        self._writer.write(self._times.replaced(pa.Table.from_arrays(columns, schema=rows.schema)))

    def close(self) -> Written:
        """Write the footer."""
        self._writer.close()
        if self._spool is not None:
            self._spool.seek(0)
            if self._times.has_changes:
                copy_negated(pa.PythonFile(self._spool, mode="r"), self._sink, self._table)
            else:
                shutil.copyfileobj(self._spool, self._sink, _COPIED_BYTES)
            self._spool.close()
        size = int(self._sink.tell())
        self._sink.close()
        return Written(size, [], {})

    def abort(self) -> None:
        """Release the file without finishing it."""
        # The writer's destructor would finish the file. On the closed stream, this ends the process.
        self._writer.is_open = False
        if self._spool is not None:
            self._spool.close()
        self._sink.close()


# -- Columns that Iceberg's Java readers misread or can't read --------------------------------------------------------
# The rules are the behaviour of the readers of Iceberg 1.12: the generic reader, and Spark's readers of rows and
# vectors.


# Promotions and other conversions of the table spec that no format's readers support.
_UNPROMOTED: Final = frozenset({("date", "timestamp"), ("date", "timestamp_ns"), ("string", "binary")})
_UNPROMOTED_BINARY: Final = _UNPROMOTED | {("binary", "string")}
_ORC_INTS: Final = {pa.int8(): "tinyint", pa.int16(): "smallint"}
_SPARK_READS: Final = {
    "PARQUET": "spark.read.parquet({!r})",
    "ORC": "spark.read.orc({!r})",
    "AVRO": "spark.read.format('avro').load({!r})",
}


def refuse(location: str, file_format: str, column: str, kind: str, type_name: str) -> NoReturn:
    """Raise UnsupportedError for a column of a file that Java's readers misread or can't read."""
    problem = f"Iceberg's Java readers misread it as {type_name}, or can't read it"
    raise UnsupportedError(f"{location}: column {column} is {kind}: {problem}: {conversion(location, file_format)}")


def conversion(location: str, file_format: str) -> str:
    """Return advice on how to convert a file whose types do not fit."""
    rows = _SPARK_READS[file_format].format(location)
    return f"convert the file with Spark, by table.append({rows}), with casts where the types are still others"


def parquet_kind(leaf: pq.ColumnSchema, file_type: str, type_name: str) -> str | None:
    """Describe a column of a Parquet file if Java's readers misread it as a type, or can't read it.

    Args:
        leaf: the primitive column.
        file_type: its Iceberg type.
        type_name: the type of the table's column.
    """
    logical = json.loads(leaf.logical_type.to_json())
    match logical["Type"]:
        case "Int" if not logical["isSigned"]:
            return f"an unsigned integer of {logical['bitWidth']} bits"
        case "Timestamp" if logical["timeUnit"] == "milliseconds":
            # Spark's reader of vectors reads the numbers as microseconds.
            return "a timestamp in milliseconds"
        case "Null":
            return "of the type null"
    return file_type if (file_type, type_name) in _UNPROMOTED else None


def orc_kind(kind: pa.DataType, file_type: str, type_name: str) -> str | None:
    """Describe a column of an ORC file, given its Arrow type; see `parquet_kind`."""
    if kind in _ORC_INTS and type_name == "long":
        return f"a {_ORC_INTS[kind]}"
    if pa.types.is_timestamp(kind) and (kind.tz is None) == type_name.startswith("timestamptz"):
        return f"a timestamp {'without' if kind.tz is None else 'with'} time zone"
    return file_type if (file_type, type_name) in _UNPROMOTED_BINARY else None


def avro_kind(schema: Mapping[str, Any], file_type: str, type_name: str) -> str | None:
    """Describe a column of an Avro file, given its schema as `avro_leaves` yields it; see `parquet_kind`."""
    kind, logical = schema["type"], str(schema.get("logicalType"))
    if kind == "enum":
        return "an enum"
    is_nanos = logical == "timestamp-nanos" and not type_name.endswith("_ns")
    if is_nanos or logical == "time-millis" or logical.startswith("local-timestamp-"):
        return f"of the logical type {logical}"
    if kind == "string" and logical == "uuid":
        return "a UUID as text"
    if type_name == "uuid" and logical != "uuid":
        return f"{file_type} without the logical type uuid"
    if type_name == "time" and not logical.startswith("time-"):
        return f"{kind} without a logical type"
    return file_type if (file_type, type_name) in _UNPROMOTED_BINARY else None


def avro_leaves(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the schemas of the primitive columns of an Avro file in file order, each as an object with a type."""
    named: dict[str, Any] = {}

    def leaves(part: Any) -> Iterator[Mapping[str, Any]]:
        if isinstance(part, list):
            part = next((branch for branch in part if branch != "null"), "null")
        if isinstance(part, str):
            part = named.get(part, {"type": part})
        if "name" in part:
            named[part["name"]] = part
        match part["type"]:
            case "record":
                for field in part["fields"]:
                    yield from leaves(field["type"])
            case "array":
                yield from leaves(part["items"])
            case "map":
                yield {"type": "string"}
                yield from leaves(part["values"])
            case dict() | list() as inner:
                yield from leaves(inner)
            case _:
                yield part

    return leaves(schema)


def leaf_names(columns: Sequence[IcebergColumn]) -> Iterator[str]:
    """Yield the full names of primitive columns in file order."""
    for column in columns:
        if not column.children:
            yield column.name
        for name in leaf_names(column.children):
            yield f"{column.name}.{name}"
