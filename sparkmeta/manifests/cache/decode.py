"""Decode leaves of the manifest cache from their bytes. Without Spark: tasks import this."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparkmeta.entries.arrays import narrowed, whole
from sparkmeta.entries.inherit import with_inherited_version
from sparkmeta.entries.parts import ManifestPart
from sparkmeta.entries.projection import (
    CONTENT_STATS,
    MANIFEST,
    ORDINAL,
    PARTITION,
    EntryProjection,
)
from sparkmeta.entries.records import matching_rows
from sparkmeta.errors import CorruptFileError
from sparkmeta.spec.entry import ROW_ID_OFFSET


def decode_leaf(data: bytes, part: ManifestPart, projection: EntryProjection, leaf: str) -> list[pa.RecordBatch]:
    """Return the entries of a manifest's part from its leaf, as `decode_manifest` does.

    Args:
        data: the content of the leaf, which must serve the projection (`CacheTypes.serves`).
        leaf: the leaf's location, for errors.

    Raises:
        CorruptFileError: the leaf was damaged after it was written.
    """
    wide, tested = (
        EntryProjection.of({*columns, *_TESTED}, dict(projection.partition), dict(projection.stats))
        for columns in ({*projection.columns, "location"}, ())
    )
    batches: list[pa.RecordBatch] = []
    try:
        with pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True) as file:
            if missing := {"location", *_TESTED, ORDINAL} - set(file.schema_arrow.names):
                raise ValueError(f"it has no {sorted(missing)}")  # noqa: TRY301  one message for all kinds of damage
            for group in range(file.num_row_groups):
                if _is_tested(projection) and not len(matching_rows(_entries(file, group, part, tested), projection)):
                    continue
                entries = matching_rows(_entries(file, group, part, wide), projection)
                batches += entries.select(projection.schema.names).to_batches(max_chunksize=_BATCH_ROWS)
    except (OSError, pa.ArrowException, ValueError, LookupError, AttributeError, MemoryError) as error:
        raise CorruptFileError(leaf, "file", data[:4].hex(), f"no leaf of the manifest cache: {error}"[:300]) from error
    return batches


_BATCH_ROWS = 8_192
_TESTED = ("version_info", "partition_spec_id", "record_count")


def _is_tested(projection: EntryProjection) -> bool:
    """Return whether the projection's filter tests stats or tuples, which are then read before other columns."""
    tests = projection.entry_filter
    return tests is not None and bool(tests.stats.tests or any(of_spec.tests for _, of_spec in tests.partitions))


def _entries(file: pq.ParquetFile, group: int, part: ManifestPart, read: EntryProjection) -> pa.Table:
    """Return the entries of a row group as rows of `read.schema` with inheritance applied."""
    nested = [f"{PARTITION}.{field_id}" for field_id, _ in read.partition]
    nested += [f"{CONTENT_STATS}.{field_id}" for field_id, _ in read.stats]
    table = file.read_row_group(group, [*read.columns, *nested, ORDINAL, ROW_ID_OFFSET.name])
    table.validate(full=True)
    columns = {name: whole(table.column(name)) for name in table.column_names}
    columns["version_info"] = with_inherited_version(columns["version_info"], part.context)
    if "first_row_id" in read.columns:
        columns["first_row_id"] = _first_row_ids(columns, part.context.first_row_id)
    columns[MANIFEST] = pa.repeat(pa.scalar(part.manifest, pa.int32()), len(table))
    arrays = [_typed(columns.get(field.name), field, len(table)) for field in read.schema]
    return pa.Table.from_arrays(arrays, schema=read.schema)


def _first_row_ids(columns: Mapping[str, pa.Array], start: int | None) -> pa.Array:
    """Return first row ids as `RowIdCounter` does: null if the manifest has none."""
    ids = columns["first_row_id"]
    if start is None:
        return pa.nulls(len(ids), pa.int64())
    return pc.coalesce(ids, pc.add(columns[ROW_ID_OFFSET.name], start))


def _typed(values: pa.Array | None, field: pa.Field, rows: int) -> pa.Array:
    """Return a column of a leaf as a field's type; nulls if the leaf has no such column."""
    if field.name in (PARTITION, CONTENT_STATS):
        return _struct(values, field.type, rows)
    return pa.nulls(rows, field.type) if values is None else narrowed(values, field.type)


def _struct(values: pa.StructArray | None, kind: pa.StructType, rows: int) -> pa.StructArray:
    """Return a struct without nulls at any depth, as decoding makes them."""
    by_name = {} if values is None else dict(zip(values.type.names, values.flatten(), strict=True))
    children = []
    for field in kind:
        child = by_name.get(field.name)
        if pa.types.is_struct(field.type):
            children.append(_struct(child, field.type, rows))
        else:
            children.append(pa.nulls(rows, field.type) if child is None else narrowed(child, field.type))
    return pa.StructArray.from_arrays(children, fields=list(kind))
