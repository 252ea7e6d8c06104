"""Leaves of the manifest cache as the tasks write them that decode manifests. Free of Spark.

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

from sparkmeta.columns.bounds import bound_arrow_type
from sparkmeta.errors import FileAlreadyExistsError, NotFoundError
from sparkmeta.manifests.arrays import whole
from sparkmeta.manifests.avro.container import Data, read_header
from sparkmeta.manifests.avro.decode import decode_records
from sparkmeta.manifests.avro.schema import manifest_schema
from sparkmeta.manifests.cache.layout import (
    LEAF_SUFFIX,
    TYPES_SUFFIX,
    UNKNOWN_TYPE,
    CacheTypes,
    leaf_folder,
    leaf_key,
    manifests_folder,
    short_digest,
)
from sparkmeta.manifests.entries import EntryBuilder
from sparkmeta.manifests.inherit import ManifestContext
from sparkmeta.manifests.metrics_maps import stats_of_maps
from sparkmeta.manifests.parquet_file import parquet_bytes
from sparkmeta.manifests.parts import ManifestPart
from sparkmeta.manifests.projection import (
    CONTENT_STATS,
    FILE_COLUMNS,
    MANIFEST,
    EntryProjection,
    stats_struct,
)
from sparkmeta.spec.entry import METRICS_MAP_IDS, ROW_ID_OFFSET
from sparkmeta.storage.executors import ExecutorReader, ExecutorWriter
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
