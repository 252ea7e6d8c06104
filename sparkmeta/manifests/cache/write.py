"""Write leaves of the manifest cache in the tasks that decode manifests. Without Spark: tasks import this.

A leaf has the columns of a content entry before inheritance, the metrics maps, `partition` and `content_stats` with a
child for each field id, `ordinal`, and `row_id_offset`, the number of row ids that the entries before it take.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.avro.container import Data
from sparkmeta.avro.decode import decode_records, manifest_header
from sparkmeta.avro.schema import manifest_schema
from sparkmeta.columns.bounds import bound_arrow_type, inverted
from sparkmeta.entries.arrays import whole
from sparkmeta.entries.inherit import ManifestContext
from sparkmeta.entries.locations import with_locations
from sparkmeta.entries.metrics_maps import stats_of_maps
from sparkmeta.entries.parts import ManifestPart
from sparkmeta.entries.projection import (
    CONTENT_STATS,
    FILE_COLUMNS,
    MANIFEST,
    EntryProjection,
    SpecTuples,
    stats_struct,
)
from sparkmeta.entries.records import EntryBuilder
from sparkmeta.errors import CorruptFileError, FileAlreadyExistsError, NotFoundError
from sparkmeta.manifests.cache.layout import (
    LEAF_SUFFIX,
    TYPES_SUFFIX,
    CacheTypes,
    leaf_folder,
    leaf_key,
    manifests_folder,
    short_digest,
)
from sparkmeta.manifests.parquet_file import parquet_bytes
from sparkmeta.spec.entry import METRICS_MAP_IDS, ROW_ID_OFFSET
from sparkmeta.spec.locations import Locations
from sparkmeta.spec.stats import BOUNDS
from sparkmeta.storage.executors import ExecutorReader, ExecutorWriter
from sparkmeta.storage.location import join

MOST_BYTES = 32 << 20
"""Longer parts of manifests are not cached, since encoding a leaf takes about ten times as much memory."""

_FIRST_ROW_ID = 142
# A leaf has no relative locations, which readers of different tables would resolve differently.
_ABSOLUTE = Locations("", 3)
# Entries inherit no snapshot id or sequence number, and row ids are counted from zero.
_NOTHING_INHERITED = ManifestContext(None, None, 0)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CacheWriter:
    """Writes leaves to a cache folder. Picklable.

    Attributes:
        types: the table's types, for manifests in any folder.
        tuples: the partition fields of the table's specs.
    """

    folder: str
    types: CacheTypes
    reader: ExecutorReader
    writer: ExecutorWriter
    tuples: SpecTuples = ()

    def keep(self, data: Data, part: ManifestPart) -> None:
        """Write the leaf of a manifest's part. Errors are logged and ignored."""
        if len(data) > MOST_BYTES * part.parts:
            return
        try:
            self._write(data, part)
        except Exception as error:  # noqa: BLE001  a full disk, a store's refusal, an invalid value
            _log.warning("%s is not kept in the manifest cache: %s", part.location, error)

    def _write(self, data: Data, part: ManifestPart) -> None:
        content, types = encode_leaf(data, part, self.types, self.tuples)
        self._put(join(self.folder, f"{types.name}{TYPES_SUFFIX}"), types.document)
        key = leaf_key(part.location, len(data), part.spec_id, part.part, part.parts)
        name = f"{key}-{types.name}-{short_digest(content)}-{len(content)}{LEAF_SUFFIX}"
        self._put(join(leaf_folder(self.folder, types.manifests), name), content)

    def _put(self, location: str, content: bytes) -> None:
        """Write a file unless it has the content already. A file with other content is damaged, and overwritten."""
        try:
            present = self.reader.read(location)
        except NotFoundError:
            with suppress(FileAlreadyExistsError):  # written by another task, with the same content
                self.writer.write_new(location, content)
            return
        if present != content:
            self.writer.overwrite(location, content)


def encode_leaf(data: Data, part: ManifestPart, types: CacheTypes, tuples: SpecTuples = ()) -> tuple[bytes, CacheTypes]:
    """Return the leaf of a manifest's part, and its types: those given, and None for other fields of the manifest.

    Args:
        tuples: the partition fields of the table's specs.

    Raises:
        CorruptFileError: a field can't be decoded, a location is relative, or a lower bound is above the upper one.
    """
    columns = [*FILE_COLUMNS, *METRICS_MAP_IDS]
    projection = EntryProjection.of(columns, _known(types.partition), spec_tuples=tuples)
    table, ids = _decoded(data, part, projection)
    maps = {name: whole(table.column(name)) for name in METRICS_MAP_IDS}
    stats = stats_of_maps(maps, _known(types.stats), len(table), part.location, lenient=True)
    _refuse_inverted(stats, types.stats, part.location)
    if stats:
        table = table.append_column(CONTENT_STATS, _stats_column(stats, types.stats, len(table)))
    if part.parts == 1:
        table = table.append_column(ROW_ID_OFFSET.name, ids)
    schema = manifest_schema(manifest_header(data, part, projection).schema, part.location)
    leaf_types = CacheTypes(
        manifests_folder(part.location),
        _with_untyped(types.stats, _keys(maps.values())),
        _with_untyped(types.partition, schema.partition_fields),
    )
    return parquet_bytes(table, {}), leaf_types


def _refuse_inverted(
    stats: Mapping[int, Mapping[str, pa.Array]], types: Mapping[int, str | None], location: str
) -> None:
    """Refuse a lower bound above the upper one, which plans take for unknown and metadata tables show."""
    for field_id, children in stats.items():
        lower, upper = (children.get(name) for name in BOUNDS)
        if lower is not None and upper is not None and inverted(lower, upper, types[field_id] or "") is not None:
            raise CorruptFileError(location, f"lower_bounds[{field_id}]", None, "one is above the upper bound")


def _decoded(data: Data, part: ManifestPart, projection: EntryProjection) -> tuple[pa.Table, pa.ChunkedArray]:
    """Return entries without inherited first row ids, and the row id offsets of those without one."""
    builder = EntryBuilder(replace(part, context=_NOTHING_INHERITED), projection)
    batches: list[pa.RecordBatch] = []
    offsets = []
    for ordinals, records in decode_records(data, part, projection):
        batch = builder.batch(ordinals, records)
        place = batch.schema.get_field_index("first_row_id")
        ids = records.values(_FIRST_ROW_ID, pa.int64())
        offsets.append(pc.if_else(ids.is_null(), batch.column(place), pa.scalar(None, pa.int64())))
        batches.extend(with_locations([batch.set_column(place, "first_row_id", ids)], _ABSOLUTE, part.location))
    table = pa.Table.from_batches(batches, projection.schema).drop_columns([MANIFEST])
    return table, pa.chunked_array(offsets, pa.int64())


def _known(types: Mapping[int, str | None]) -> dict[int, str]:
    return {field_id: kind for field_id, kind in types.items() if kind is not None}


def _with_untyped(types: Mapping[int, str | None], ids: Iterable[int]) -> dict[int, str | None]:
    """Return the types, and None for ids without a known type."""
    known = _known(types)
    return {**types, **{field_id: None for field_id in sorted(ids) if field_id not in known}}


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
