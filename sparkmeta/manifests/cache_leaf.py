"""Leaves of the manifest cache: written by the tasks that decode, and read without Spark's reader. Free of Spark.

A leaf has the columns of a content entry without what entries inherit, the metrics maps, `partition` and
`content_stats` with a child for each field id, `ordinal`, and `row_id_offset`: how many rows of the entries before take
row ids.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparkmeta.columns.bounds import bound_arrow_type
from sparkmeta.errors import CorruptFileError, FileAlreadyExistsError, NotFoundError
from sparkmeta.manifests.avro.container import Data, read_header
from sparkmeta.manifests.avro.decode import decode_records
from sparkmeta.manifests.avro.schema import manifest_schema
from sparkmeta.manifests.cache import (
    LEAF_SUFFIX,
    TYPES_SUFFIX,
    UNKNOWN_TYPE,
    CacheTypes,
    leaf_folder,
    leaf_key,
    manifests_folder,
    short_digest,
)
from sparkmeta.manifests.entries import EntryBuilder, ManifestPart, wanted_rows
from sparkmeta.manifests.inherit import ManifestContext, with_inherited_version
from sparkmeta.manifests.layout import narrowed, parquet_bytes, whole
from sparkmeta.manifests.maps import stats_of_maps
from sparkmeta.manifests.projection import (
    CONTENT_STATS,
    FILE_COLUMNS,
    MANIFEST,
    ORDINAL,
    PARTITION,
    EntryProjection,
    stats_struct,
)
from sparkmeta.spec.entry import METRICS_MAP_IDS, ROW_ID_OFFSET
from sparkmeta.storage.files import ExecutorReader, ExecutorWriter
from sparkmeta.storage.location import join

MOST_BYTES = 32 << 20
"""A part of a manifest that is longer is not kept: to make a leaf, a task holds some ten times as much."""

_FIRST_ROW_ID = 142
# No snapshot id or sequence number is handed down, and row ids are counted from zero.
_NOTHING_INHERITED = ManifestContext(None, None, 0)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CacheWriter:
    """Writes leaves to a cache folder; travels to executors. types: those of the table, for manifests of any folder."""

    folder: str
    types: CacheTypes
    reader: ExecutorReader
    writer: ExecutorWriter

    def keep(self, data: Data, part: ManifestPart) -> None:
        """Writes the leaf of a manifest's part. Whatever keeps it from being written is logged, and harms nobody."""
        if len(data) > MOST_BYTES * part.parts:
            return
        try:
            self._write(data, part)
        except Exception as error:  # noqa: BLE001  a full disk, a store's refusal, a manifest with a value that can't be
            _log.warning("%s is not kept in the manifest cache: %s", part.location, error)

    def _write(self, data: Data, part: ManifestPart) -> None:
        content, types = encode_leaf(data, part, self.types)
        self._put(join(self.folder, f"{types.name}{TYPES_SUFFIX}"), types.document)
        key = leaf_key(part.location, len(data), part.spec_id, part.part, part.parts)
        name = f"{key}-{types.name}-{short_digest(content)}-{len(content)}{LEAF_SUFFIX}"
        self._put(join(leaf_folder(self.folder, types.manifests), name), content)

    def _put(self, location: str, content: bytes) -> None:
        """Makes a file have the content that its name stands for: one that has another is damaged, and not read."""
        try:
            present = self.reader.read(location)
        except NotFoundError:
            with suppress(FileAlreadyExistsError):  # another task's, and the same
                self.writer.write_new(location, content)
            return
        if present != content:
            self.writer.overwrite(location, content)


def encode_leaf(data: Data, part: ManifestPart, types: CacheTypes) -> tuple[bytes, CacheTypes]:
    """A manifest's part as a leaf, and the types that it has: those given, and None for other fields that it holds.

    Raises:
        CorruptFileError: as decoding does, of any field; a bound that is no value of its column's type.
    """
    table, ids = _decoded(data, part, _known(types.partition))
    maps = {name: whole(table.column(name)) for name in METRICS_MAP_IDS}
    stats = stats_of_maps(maps, _known(types.stats), len(table), part.location)
    if stats:
        table = table.append_column(CONTENT_STATS, _stats_column(stats, types.stats, len(table)))
    if part.parts == 1:
        table = table.append_column(ROW_ID_OFFSET.name, ids)
    schema = manifest_schema(read_header(data, part.location).schema, part.location)
    found = CacheTypes(
        manifests_folder(part.location),
        _with_strangers(types.stats, _keys(maps.values())),
        _with_strangers(types.partition, schema.partition_fields),
    )
    return parquet_bytes(table, {}), found


def _decoded(data: Data, part: ManifestPart, partition: Mapping[int, str]) -> tuple[pa.Table, pa.ChunkedArray]:
    """The entries with their own first row ids only, and row id offsets of those that have none."""
    projection = EntryProjection.of([*FILE_COLUMNS, *METRICS_MAP_IDS], partition)
    builder = EntryBuilder(replace(part, context=_NOTHING_INHERITED), projection)
    batches, offsets = [], []
    for ordinals, records in decode_records(data, part, projection):
        batch = builder.batch(ordinals, records)
        place = batch.schema.get_field_index("first_row_id")
        own = records.values(_FIRST_ROW_ID, pa.int64())
        offsets.append(pc.if_else(own.is_null(), batch.column(place), pa.scalar(None, pa.int64())))
        batches.append(batch.set_column(place, "first_row_id", own))
    table = pa.Table.from_batches(batches, projection.schema).drop_columns([MANIFEST])
    return table, pa.chunked_array(offsets, pa.int64())


def decode_leaf(data: bytes, part: ManifestPart, projection: EntryProjection, leaf: str) -> list[pa.RecordBatch]:
    """The entries of a manifest's part from its leaf, as `decode_manifest` gives them.

    leaf: the location of `data`, which serves the projection (`CacheTypes.serves`).

    Raises CorruptFileError: the leaf was damaged after it was written.
    """
    wide, tested = (
        EntryProjection.of({*columns, *_TESTED}, dict(projection.partition), dict(projection.stats))
        for columns in ({*projection.columns, "location"}, ())
    )
    batches: list[pa.RecordBatch] = []
    try:
        with pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True) as file:
            if missing := {"location", *_TESTED, ORDINAL} - set(file.schema_arrow.names):
                raise ValueError(f"it has no {sorted(missing)}")  # noqa: TRY301  one message for all that may be wrong
            for group in range(file.num_row_groups):
                if _is_tested(projection) and not len(wanted_rows(_entries(file, group, part, tested), projection)):
                    continue
                kept = wanted_rows(_entries(file, group, part, wide), projection)
                batches += kept.select(projection.schema.names).to_batches(max_chunksize=_BATCH_ROWS)
    except (OSError, pa.ArrowException, ValueError, LookupError, AttributeError, MemoryError) as error:
        raise CorruptFileError(leaf, "file", data[:4].hex(), f"no leaf of the manifest cache: {error}"[:300]) from error
    return batches


_BATCH_ROWS = 8_192
_TESTED = ("version_info", "partition_spec_id", "record_count")


def _is_tested(projection: EntryProjection) -> bool:
    """Whether entries may be left out for what their stats or tuples are: then these are read first, and alone."""
    wanted = projection.wanted
    return wanted is not None and bool(wanted.stats.tests or any(tests.tests for _, tests in wanted.partitions))


def _entries(file: pq.ParquetFile, group: int, part: ManifestPart, read: EntryProjection) -> pa.Table:
    """The rows of a row group as rows of `read.schema`, inheritance applied."""
    nested = [f"{PARTITION}.{one}" for one, _ in read.partition] + [f"{CONTENT_STATS}.{one}" for one, _ in read.stats]
    table = file.read_row_group(group, [*read.columns, *nested, ORDINAL, ROW_ID_OFFSET.name])
    table.validate(full=True)
    columns = {one: whole(table.column(one)) for one in table.column_names}
    columns["version_info"] = with_inherited_version(columns["version_info"], part.context)
    if "first_row_id" in read.columns:
        columns["first_row_id"] = _first_row_ids(columns, part.context.first_row_id)
    columns[MANIFEST] = pa.repeat(pa.scalar(part.manifest, pa.int32()), len(table))
    arrays = [_typed(columns.get(one.name), one, len(table)) for one in read.schema]
    return pa.Table.from_arrays(arrays, schema=read.schema)


def _first_row_ids(columns: Mapping[str, pa.Array], start: int | None) -> pa.Array:
    """As `RowIdCounter` has them: a manifest without a first row id leaves its entries none."""
    own = columns["first_row_id"]
    if start is None:
        return pa.nulls(len(own), pa.int64())
    return pc.coalesce(own, pc.add(columns[ROW_ID_OFFSET.name], start))


def _typed(values: pa.Array | None, field: pa.Field, rows: int) -> pa.Array:
    """A column of a leaf as another type; null where the leaf has none."""
    if field.name in (PARTITION, CONTENT_STATS):
        return _struct(values, field.type, rows)
    return pa.nulls(rows, field.type) if values is None else narrowed(values, field.type)


def _struct(values: pa.StructArray | None, kind: pa.StructType, rows: int) -> pa.StructArray:
    """As decoding makes structs: never null themselves, at whatever depth."""
    found = {} if values is None else dict(zip(values.type.names, values.flatten(), strict=True))
    children = []
    for field in kind:
        child = found.get(field.name)
        if pa.types.is_struct(field.type):
            children.append(_struct(child, field.type, rows))
        else:
            children.append(pa.nulls(rows, field.type) if child is None else narrowed(child, field.type))
    return pa.StructArray.from_arrays(children, fields=list(kind))


def _known(types: Mapping[int, str | None]) -> dict[int, str]:
    return {one: kind for one, kind in types.items() if kind is not None and kind != UNKNOWN_TYPE}


def _with_strangers(types: Mapping[int, str | None], ids: Iterable[int]) -> dict[int, str | None]:
    """The types, and None for ids that have none or that of no values."""
    known = _known(types)
    return {**types, **{one: None for one in sorted(ids) if one not in known}}


def _keys(maps: Iterable[pa.MapArray]) -> set[int]:
    return {key for values in maps for key in np.unique(values.keys.to_numpy(zero_copy_only=False)).tolist()}


def _stats_column(
    stats: Mapping[int, Mapping[str, pa.Array]], types: Mapping[int, str | None], rows: int
) -> pa.StructArray:
    structs, fields = [], []
    for field_id in sorted(stats):
        kind = stats_struct(bound_arrow_type(types[field_id] or ""))
        children = [stats[field_id].get(child.name, pa.nulls(rows, child.type)) for child in kind]
        structs.append(pa.StructArray.from_arrays(children, fields=list(kind)))
        fields.append(pa.field(str(field_id), kind))
    return pa.StructArray.from_arrays(structs, fields=fields)
