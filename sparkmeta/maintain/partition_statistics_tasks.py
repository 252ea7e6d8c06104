"""Sum entries by partition in tasks, and write the partition statistics file. Without Spark."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparkmeta.entries.live import is_live
from sparkmeta.entries.projection import PARTITION
from sparkmeta.errors import CorruptFileError
from sparkmeta.expr.arrays import from_stream, identities, identity_type, to_stream, whole
from sparkmeta.expr.bounds import bound_arrow_type
from sparkmeta.manifests.v4.root import version
from sparkmeta.spec.entry import ContentType
from sparkmeta.storage.executors import ExecutorWriter
from sparkmeta.storage.location import join

# -- Sum entries by partition, and merge the sums ---------------------------------------------------------------------
# Spark moves sums as blobs of many rows, `SUMS`.


SUMS = pa.schema([pa.field("sums", pa.binary())])
"""Rows of `PartitionSums.schema`, as an Arrow IPC stream."""

ENTRY_COLUMNS = ("content_type", "file_format", "partition_spec_id", "record_count", "file_size_in_bytes")
"""The columns of an entry to read, in addition to its partition, and its version or `SIGN` and `UPDATER`."""

SIGN, UPDATER = "sign", "updater"
"""Columns of changes: 1 to count an entry, -1 to subtract it, 0 for an update only; and the snapshot of the change."""

SPEC, AT, BY = "spec_id", "last_updated_at", "last_updated_snapshot_id"

# The kind of a deletion vector. The kinds of other entries are their content types.
_VECTOR = len(ContentType)
_DATA = (int(ContentType.DATA),)
_POSITIONS = (int(ContentType.POSITION_DELETES),)
_EQUALITY = (int(ContentType.EQUALITY_DELETES),)
_COUNTED = {
    "data_record_count": (_DATA, "records"),
    "data_file_count": (_DATA, "files"),
    "total_data_file_size_in_bytes": (_DATA, "bytes"),
    "position_delete_record_count": ((*_POSITIONS, _VECTOR), "records"),
    "position_delete_file_count": (_POSITIONS, "files"),
    "equality_delete_record_count": (_EQUALITY, "records"),
    "equality_delete_file_count": (_EQUALITY, "files"),
    "dv_count": ((_VECTOR,), "files"),
}

# A group's kind and sign as one number, and the index of its last update among all updates, oldest first.
_GROUP, _RANK = "group", "rank"
_SIGNS = 3

# The entries that are summed at once, and the sums that a task holds until it yields or merges them.
_AT_ONCE = 1 << 17
_MERGED_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class PartitionSums:
    """Sums entries by partition and spec. Picklable.

    Attributes:
        partition: (partition field id, Iceberg type name) of the fields of the tuple in statistics files.
        snapshots: (id, time in milliseconds) of the table's snapshots, the oldest first.
    """

    partition: tuple[tuple[int, str], ...]
    snapshots: tuple[tuple[int, int], ...]

    @cached_property
    def schema(self) -> pa.Schema:
        """The sums: partition values in bound form, floats as their bits, `SPEC`, counts, `AT` and `BY`."""
        keys = [pa.field(_key(field_id), identity_type(bound_arrow_type(kind))) for field_id, kind in self.partition]
        numbers = [pa.field(name, pa.int64()) for name in (*_COUNTED, AT, BY)]
        return pa.schema([*keys, pa.field(SPEC, pa.int32()), *numbers])

    # -- Entries -----------------------------------------------------------------------------------------------------

    def of_all(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Sum entries with `version_info`, and yield `SUMS`. Entries of status DELETED are updates only."""
        signed = ((batch, pc.if_else(is_live(batch), 1, 0), version(batch, "snapshot_id")) for batch in batches)
        yield from self._sums(signed)

    def of_live(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Sum entries with `version_info`, except for entries of status DELETED, and yield `SUMS`."""
        yield from self.of_all(batch.filter(is_live(batch)) for batch in batches)

    def of_changes(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Sum entries by their `SIGN` and `UPDATER`, and yield `SUMS`."""
        yield from self._sums((batch, batch.column(SIGN), batch.column(UPDATER)) for batch in batches)

    def _sums(self, signed: Iterable[tuple[pa.RecordBatch, Any, Any]]) -> Iterator[pa.RecordBatch]:
        entries: list[pa.Table] = []
        sums = self.schema.empty_table()
        for batch, sign, updater in signed:
            entries.append(self._values(batch, sign, updater))
            if sum(map(len, entries)) >= _AT_ONCE:
                sums, entries = self._merged([sums, self._summed(entries)]), []
                if len(sums) >= _AT_ONCE:
                    yield _blob(sums)
                    sums = self.schema.empty_table()
        if entries:
            sums = self._merged([sums, self._summed(entries)])
        yield _blob(sums)

    def _values(self, batch: pa.RecordBatch, sign: Any, updater: Any) -> pa.Table:
        """Return the keys that group the entries of a batch, and the values to sum."""
        content = batch.column("content_type").cast(pa.int32())
        is_position = pc.equal(content, int(ContentType.POSITION_DELETES))
        if pc.any(is_position).as_py():
            is_vector = pc.and_(is_position, pc.equal(pc.utf8_upper(batch.column("file_format")), "PUFFIN"))
            content = pc.if_else(is_vector, pa.scalar(_VECTOR, pa.int32()), content)
        values = {
            _GROUP: pc.add(pc.multiply(content, _SIGNS), pc.add(sign, 1)).cast(pa.int32()),
            SPEC: batch.column("partition_spec_id"),
            "records": batch.column("record_count"),
            "bytes": batch.column("file_size_in_bytes"),
            _RANK: pc.index_in(updater, pa.array([snapshot_id for snapshot_id, _ in self.snapshots], pa.int64())),
        }
        partition = batch.column(PARTITION)
        indices = [partition.type.get_field_index(str(field_id)) for field_id, _ in self.partition]
        return pa.table(self._keyed([partition.field(index) for index in indices]) | values)

    def _keyed(self, values: list[pa.Array]) -> dict[str, pa.Array]:
        """Return partition values by key."""
        columns = zip(self.partition, values, strict=True)
        return {_key(field_id): identities(_bound(column, kind)) for (field_id, kind), column in columns}

    def _summed(self, entries: list[pa.Table]) -> pa.Table:
        """Return the sums of `_values`; a partition has a row for each kind and sign of its entries."""
        table = pa.concat_tables(entries)
        sums = [("records", "sum"), ("bytes", "sum"), (_RANK, "max"), ([], "count_all")]
        groups = table.group_by([*self._group_keys, _GROUP], use_threads=False).aggregate(sums)
        number = groups.column(_GROUP)
        kind = pc.divide(number, _SIGNS)
        sign = pc.subtract(pc.subtract(number, pc.multiply(kind, _SIGNS)), 1)
        measured = {
            "records": pc.multiply(groups.column("records_sum"), sign),
            "bytes": pc.multiply(groups.column("bytes_sum"), sign),
            "files": pc.multiply(groups.column("count_all"), sign),
        }
        columns = {name: groups.column(name) for name in self._group_keys}
        for name, (kinds, measure) in _COUNTED.items():
            columns[name] = pc.if_else(pc.is_in(kind, pa.array(kinds, kind.type)), measured[measure], 0)
        return self._conformed(columns | _updates(self.snapshots, groups.column(f"{_RANK}_max")), len(groups))

    # -- A statistics file -------------------------------------------------------------------------------------------

    def of_statistics(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a statistics file as `SUMS`. Counts that the file lacks are 0."""
        for batch in batches:
            # By position: names of partition fields may differ only in case.
            columns = self._keyed(batch.column(PARTITION).flatten())
            for name in (SPEC, *_COUNTED, AT, BY):
                values = batch.column(name) if name in batch.schema.names else pa.nulls(len(batch), pa.int64())
                columns[name] = pc.fill_null(values, 0) if name in _COUNTED else values
            yield _blob(self._conformed(columns, len(batch)))

    # -- All sums ----------------------------------------------------------------------------------------------------

    def merged(self, blobs: Iterable[pa.RecordBatch]) -> pa.Table:
        """Merge `SUMS`, and return one row of `schema` for each partition and spec, sorted by both, nulls first."""
        pending: list[pa.Table] = []
        for batch in blobs:
            for blob in batch.column(0):
                pending.append(from_stream(blob.as_buffer()))
                if sum(map(len, pending)) >= _MERGED_AT_ONCE:
                    pending = [self._merged(pending)]
        if not pending:
            return self.schema.empty_table()
        sums = self._merged(pending)
        kinds, order = dict(self.partition), dict[str, pa.Array]()
        for name in self._group_keys:
            values = _ordered(sums.column(name), kinds.get(_field_id(name)))
            order |= {f"{name} is valid": values.is_valid(), name: values}
        keys = [(name, "ascending") for name in order]
        return sums.take(pc.sort_indices(pa.table(order), sort_keys=keys))

    def partition_values(self, sums: pa.Table) -> list[pa.Array]:
        """Return the partition values of sums in bound form, in the order of `partition`."""
        values = []
        for field_id, kind in self.partition:
            column, bound = whole(sums.column(_key(field_id))), bound_arrow_type(kind)
            values.append(column if column.type == bound else column.view(bound))
        return values

    def _merged(self, tables: list[pa.Table]) -> pa.Table:
        """Return sums with a row for each partition and spec."""
        table = pa.concat_tables(tables)
        updates = self._known_updates(table)
        ranks = pc.index_in(table.column(BY), pa.array([snapshot_id for snapshot_id, _ in updates], pa.int64()))
        totals: Any = [*((name, "sum") for name in _COUNTED), (_RANK, "max")]
        groups = table.append_column(_RANK, ranks).group_by(self._group_keys, use_threads=False).aggregate(totals)
        columns = {name: groups.column(name) for name in self._group_keys}
        columns |= {name: groups.column(f"{name}_sum") for name in _COUNTED}
        return self._conformed(columns | _updates(updates, groups.column(f"{_RANK}_max")), len(groups))

    def _known_updates(self, sums: pa.Table) -> list[tuple[int, int]]:
        """Return the id and time of the last updates of sums, oldest first. Some snapshots may have expired."""
        times = sums.select([BY, AT]).group_by(BY, use_threads=False).aggregate([(AT, "max")]).to_pylist()
        order = {snapshot_id: index for index, (snapshot_id, _) in enumerate(self.snapshots)}
        updates = ((row[BY], row[f"{AT}_max"]) for row in times if row[BY] is not None and row[f"{AT}_max"] is not None)
        return sorted(updates, key=lambda update: (update[1], order.get(update[0], -1)))

    @property
    def _group_keys(self) -> list[str]:
        """The columns to group by. Values of an unknown type are all null."""
        names = [_key(field_id) for field_id, _ in self.partition]
        return [*(name for name in names if not pa.types.is_null(self.schema.field(name).type)), SPEC]

    def _conformed(self, columns: dict[str, Any], size: int) -> pa.Table:
        arrays = [
            columns[field.name].cast(field.type) if field.name in columns else pa.nulls(size, field.type)
            for field in self.schema
        ]
        return pa.Table.from_arrays(arrays, schema=self.schema)


def _blob(sums: pa.Table) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([to_stream(sums)], pa.binary())], schema=SUMS)


def _updates(snapshots: Sequence[tuple[int, int]], ranks: Any) -> dict[str, Any]:
    """Return `BY` and `AT` of the snapshots at the given indices."""
    ids, times = zip(*snapshots, strict=True) if snapshots else ((), ())
    return {BY: pa.array(ids, pa.int64()).take(ranks), AT: pa.array(times, pa.int64()).take(ranks)}


# -- Partition values -------------------------------------------------------------------------------------------------


def _key(field_id: int) -> str:
    return f"key_{field_id}"


def _field_id(key: str) -> int:
    return int(key.rpartition("_")[2]) if key != SPEC else -1


def _bound(values: pa.Array, type_name: str) -> pa.Array:
    """Return values of an entry or a statistics file in bound form."""
    if type_name == "uuid" and pa.types.is_string(values.type):
        encoded = values.dictionary_encode()
        codes = pa.array([uuid.UUID(text).bytes for text in encoded.dictionary.to_pylist()], pa.binary())
        return codes.take(encoded.indices)
    return values.cast(bound_arrow_type(type_name))


def _ordered(keys: pa.ChunkedArray, type_name: str | None) -> pa.Array:
    """Return the values that sort keys: the bits of a negative float descend."""
    values = whole(keys)
    if type_name not in ("float", "double"):
        return values
    is_negative, largest = pc.less(values, 0), np.iinfo(values.type.to_pandas_dtype()).max
    return pc.if_else(is_negative, pc.bit_wise_xor(values, pa.scalar(largest, values.type)), values)


# -- The task that writes a partition statistics file -----------------------------------------------------------------


WRITTEN = pa.schema(
    [pa.field("location", pa.string()), pa.field("length", pa.int64()), pa.field("partitions", pa.int64())]
)
"""The file that was written."""

_ROW_GROUP_ROWS = 100_000


@dataclass(frozen=True)
class StatisticsWriter:
    """Writes all rows of statistics to one Parquet file. Picklable.

    Attributes:
        sums: merges the sums of other tasks.
        folder: the folder of the file.
        name: the beginning of the file's name.
        schema: the file's schema, with field ids.
        base: the statistics file that the rows were computed from, for errors; None for a full computation.
    """

    writer: ExecutorWriter
    sums: PartitionSums
    folder: str
    name: str
    schema: pa.Schema
    base: str | None

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write a file of the rows of `SUMS`, and yield a row of `WRITTEN`. Without rows, write no file."""
        sums = self.sums.merged(batches)
        if not len(sums):
            return
        # The compressed file is in memory, since stores take whole files.
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(
            sink, self.schema, compression="zstd", store_schema=False, write_page_checksum=True
        ) as file:
            for start in range(0, len(sums), _ROW_GROUP_ROWS):
                file.write_table(self._converted(sums.slice(start, _ROW_GROUP_ROWS)), row_group_size=_ROW_GROUP_ROWS)
        data = sink.getvalue()
        location = join(self.folder, f"{self.name}-{uuid.uuid4()}.parquet")
        self.writer.write_new(location, data.to_pybytes())
        yield pa.RecordBatch.from_arrays([[location], [data.size], [len(sums)]], schema=WRITTEN)

    def _converted(self, sums: pa.Table) -> pa.Table:
        partition = self.schema.field("partition")
        values = zip(self.sums.partition_values(sums), partition.type, strict=True)
        tuples = [_file_values(column, field.type) for column, field in values]
        columns = [pa.StructArray.from_arrays(tuples, fields=list(partition.type))]
        for field in list(self.schema)[1:]:
            has_column = field.name in sums.column_names
            column = whole(sums.column(field.name)).cast(field.type) if has_column else pa.nulls(len(sums), field.type)
            if (
                field.name.endswith(("_count", "_bytes"))
                and (minimum := pc.min(column).as_py()) is not None
                and minimum < 0
            ):
                location = self.base or self.folder
                raise CorruptFileError(
                    location, field.name, minimum, "more files were removed from a partition than it had"
                )
            columns.append(column)
        return pa.Table.from_arrays(columns, schema=self.schema)


def _file_values(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert partition values from bound form to the file's form."""
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, array.cast(kind.storage_type))
    return array.cast(kind)
