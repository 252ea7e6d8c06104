"""Sum entries by partition in the tasks that decode them. Without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.columns.bounds import bound_arrow_type
from sparkmeta.manifests.projection import PARTITION
from sparkmeta.spec.entry import ContentType, Status

SPEC, RANK = "spec_id", "rank"
SIGN, UPDATER = "sign", "updater"
"""Columns of changes: 1 to count an entry, -1 to subtract it, 0 for an update only; and the snapshot that did it."""

ENTRY_COLUMNS = ("content_type", "file_format", "partition_spec_id", "record_count", "file_size_in_bytes")
"""What is read of an entry, besides its partition, and its version or `SIGN` and `UPDATER`."""

# A deletion vector; other kinds of entries are their content types.
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
COUNTS = tuple(_COUNTED)
"""The columns of statistics that are sums over entries."""

# A group's kind and sign as one number.
_GROUP = "group"
_SIGNS = 3

# The entries that are summed at once, and the most sums that a task holds.
_AT_ONCE = 1 << 17


def key_name(field_id: int) -> str:
    """Return the name of the column that has a partition field's values."""
    return f"key_{field_id}"


@dataclass(frozen=True)
class PartialSums:
    """Sums entries by partition and spec. Picklable.

    Attributes:
        partition: (partition field id, Iceberg type name) of the table's partition fields.
        snapshots: the ids of the table's snapshots, the oldest first. The place of the last one that updated a
            partition is the partition's `RANK`.
    """

    partition: tuple[tuple[int, str], ...]
    snapshots: tuple[int, ...]

    @cached_property
    def schema(self) -> pa.Schema:
        """The sums: partition values in bound form by `key_name`, `SPEC`, `COUNTS` and `RANK`."""
        keys = [pa.field(key_name(field_id), bound_arrow_type(kind)) for field_id, kind in self.partition]
        counts = [pa.field(name, pa.int64()) for name in COUNTS]
        return pa.schema([*keys, pa.field(SPEC, pa.int32()), *counts, pa.field(RANK, pa.int32())])

    def of_all(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Sum entries with `version_info`. Those of status DELETED are updates only."""
        yield from self._sums(
            (batch, pc.if_else(_is_live(batch), 1, 0), _version(batch, "snapshot_id")) for batch in batches
        )

    def of_live(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Sum entries with `version_info`, without those of status DELETED."""
        yield from self.of_all(batch.filter(_is_live(batch)) for batch in batches)

    def of_changes(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Sum entries by their `SIGN` and `UPDATER`."""
        yield from self._sums((batch, batch.column(SIGN), batch.column(UPDATER)) for batch in batches)

    def _sums(self, signed: Iterable[tuple[pa.RecordBatch, Any, Any]]) -> Iterator[pa.RecordBatch]:
        """Yield sums as `schema`. Those of one partition are in one row, or in few if there are many partitions."""
        entries: list[pa.Table] = []
        sums = self._grouped.empty_table()
        for batch, sign, updater in signed:
            entries.append(self._values(batch, sign, updater))
            if sum(map(len, entries)) >= _AT_ONCE:
                sums, entries = self._merged([sums, self._summed(entries)]), []
                if len(sums) >= _AT_ONCE:
                    yield from self._shown(sums)
                    sums = self._grouped.empty_table()
        if entries:
            sums = self._merged([sums, self._summed(entries)])
        yield from self._shown(sums)

    @cached_property
    def _grouped(self) -> pa.Schema:
        """`schema` with keys to group by."""
        return pa.schema([field.with_type(_key_type(field.type)) for field in self.schema])

    @property
    def _keys(self) -> list[str]:
        """The columns to group by: values of an unknown type are all null."""
        names = [key_name(field_id) for field_id, _ in self.partition]
        return [*(name for name in names if not pa.types.is_null(self.schema.field(name).type)), SPEC]

    def _values(self, batch: pa.RecordBatch, sign: Any, updater: Any) -> pa.Table:
        """Return what the entries of a batch are grouped by, and what is summed."""
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
            RANK: pc.index_in(updater, pa.array(self.snapshots, pa.int64())),
        }
        # By place, since names of Spark's fields are those of the projection.
        for (field_id, kind), column in zip(self.partition, batch.column(PARTITION).flatten(), strict=True):
            values[key_name(field_id)] = _to_key(column.cast(bound_arrow_type(kind)))
        return pa.table(values)

    def _summed(self, entries: list[pa.Table]) -> pa.Table:
        """Return the sums of `_values`, as `_grouped`; a partition has a row for each kind and sign of its entries."""
        table = pa.concat_tables(entries)
        sums = [("records", "sum"), ("bytes", "sum"), (RANK, "max"), ([], "count_all")]
        groups = table.group_by([*self._keys, _GROUP], use_threads=False).aggregate(sums)
        number = groups.column(_GROUP)
        kind, sign = pc.divide(number, _SIGNS), pc.subtract(_remainder(number), 1)
        measured = {
            "records": pc.multiply(groups.column("records_sum"), sign),
            "bytes": pc.multiply(groups.column("bytes_sum"), sign),
            "files": pc.multiply(groups.column("count_all"), sign),
        }
        columns = {name: groups.column(name) for name in self._keys} | {RANK: groups.column(f"{RANK}_max")}
        for name, (kinds, measure) in _COUNTED.items():
            columns[name] = pc.if_else(pc.is_in(kind, pa.array(kinds, kind.type)), measured[measure], 0)
        return self._conformed(columns, len(groups))

    def _merged(self, sums: list[pa.Table]) -> pa.Table:
        """Return sums, rows of `_grouped`, with a row for each partition."""
        table = pa.concat_tables(sums)
        totals: Any = [*((name, "sum") for name in COUNTS), (RANK, "max")]
        groups = table.group_by(self._keys, use_threads=False).aggregate(totals)
        columns = {name.removesuffix("_sum").removesuffix("_max"): groups.column(name) for name in groups.column_names}
        return self._conformed(columns, len(groups))

    def _conformed(self, columns: dict[str, Any], size: int) -> pa.Table:
        arrays = [
            columns[field.name].cast(field.type) if field.name in columns else pa.nulls(size, field.type)
            for field in self._grouped
        ]
        return pa.Table.from_arrays(arrays, schema=self._grouped)

    def _shown(self, sums: pa.Table) -> Iterator[pa.RecordBatch]:
        """Yield sums, rows of `_grouped`, as `schema`."""
        for batch in sums.combine_chunks().to_batches():
            columns = [
                column if column.type == field.type else column.view(field.type)
                for column, field in zip(batch.columns, self.schema, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _version(batch: pa.RecordBatch, field: str) -> pa.Array:
    return pc.struct_field(batch.column("version_info"), field)


def _is_live(batch: pa.RecordBatch) -> pa.Array:
    return pc.not_equal(_version(batch, "status"), int(Status.DELETED))


def _remainder(number: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.subtract(number, pc.multiply(pc.divide(number, _SIGNS), _SIGNS))


def _key_type(kind: pa.DataType) -> pa.DataType:
    """Return the type by which values are grouped: floats by their bits, since -0.0 and 0.0 are different."""
    return {pa.float32(): pa.int32(), pa.float64(): pa.int64()}.get(kind, kind)


def _to_key(values: pa.Array) -> pa.Array:
    if not pa.types.is_floating(values.type):
        return values
    nan = pa.scalar(float("nan"), values.type)
    return pc.if_else(pc.is_nan(values), nan, values).view(_key_type(values.type))
