"""Decode manifests of every format from their bytes, in tasks or on the driver. Without Spark: tasks import this."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import pairwise
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparkmeta.avro.container import Data, Windows, manifest_data
from sparkmeta.avro.decode import decode_manifest
from sparkmeta.entries.locations import with_locations
from sparkmeta.entries.manifest_records import (
    PART_SCHEMA,
    EntryBuilder,
    ManifestPart,
    matching_rows,
    part_of,
    projected_fields,
    promoted_values,
)
from sparkmeta.entries.projection import MANIFEST, ORDINAL, EntryProjection
from sparkmeta.errors import CorruptFileError, UnsupportedError
from sparkmeta.expr.arrays import field_id
from sparkmeta.expr.bounds import ANY, bound_arrow_type
from sparkmeta.manifests.cache_leaves import decode_leaf
from sparkmeta.manifests.deletion_vectors import mask_flags, unmasked_entries
from sparkmeta.manifests.entry_memory import SMALL_MANIFEST_BYTES
from sparkmeta.manifests.v4.decode import decode_tree_manifest
from sparkmeta.manifests.v4.iceberg_layout import VECTORS
from sparkmeta.manifests.v4.layout import is_tree_manifest
from sparkmeta.session import local_frame, map_arrow
from sparkmeta.spec.entry import (
    DATA_FILE_FIELD_ID,
    ENTRY_NAMES,
    FILE_NAMES,
    METRICS_MAP_IDS,
    METRICS_MAPS,
    PARTITION_FIELD_ID,
    STATS_SOURCES,
    V3_ENTRY_PATHS,
)
from sparkmeta.spec.locations import Locations
from sparkmeta.storage.content import read_ahead, translated_read_errors
from sparkmeta.storage.encryption import KEY_METADATA, Stream
from sparkmeta.storage.location import PATH_KEY, is_local, spark_path_key

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from sparkmeta.manifests.cache_leaves import CacheWriter
    from sparkmeta.manifests.entry_memory import EntryMemory
    from sparkmeta.manifests.v4.layout import TreeTypes
    from sparkmeta.storage.executors import ExecutorReader
    from sparkmeta.storage.files import Files


# -- Parquet manifests of the v1 to v3 layout, from bytes -------------------------------------------------------------
# For manifests whose locations are unknown when a plan is made, such as the manifests of a table's whole history. For
# others, Spark's reader is faster. Columns are resolved by field id.


MAGIC = b"PAR1"
BATCH_RECORDS = 8192


def decode_parquet_manifest(
    data: bytes | memoryview, part: ManifestPart, projection: EntryProjection
) -> Iterator[pa.RecordBatch]:
    """Yield the entries of a manifest as batches of `projection.schema` in physical order, with inheritance applied.

    Raises:
        CorruptFileError: not a Parquet file, or not a manifest.
    """
    builder, ordinal, unique_ids = EntryBuilder(part, projection), 0, projection.unique_ids(part.spec_id)
    with translated_read_errors(part.location, "file", "not readable as Parquet"):
        file = pq.ParquetFile(pa.BufferReader(data))
        columns = _projected_columns(file.schema_arrow, projection, part.location)
        for batch in file.iter_batches(BATCH_RECORDS, columns=columns):
            ordinals = pa.array(np.arange(ordinal, ordinal + len(batch)), pa.int64())
            yield builder.batch(ordinals, ParquetRecords(batch, part.location, unique_ids))
            ordinal += len(batch)


class ParquetRecords:
    """`RawRecords` over a batch of a manifest's columns. See `EntryProjection` for `unique_ids`."""

    def __init__(self, batch: pa.RecordBatch, location: str, unique_ids: Mapping[int, int]) -> None:
        self._batch = batch
        self._fields = _by_id(batch.schema, batch.columns)
        file = self._fields.pop(DATA_FILE_FIELD_ID, None)
        self._fields |= {} if file is None else _by_id(file.type, file.flatten())
        tuples = self._fields.get(PARTITION_FIELD_ID)
        values = {} if tuples is None else _by_id(tuples.type, tuples.flatten())
        self._partition = {unique_ids.get(field_id, field_id): column for field_id, column in values.items()}
        self._unique_ids = unique_ids
        self._location = location

    def __len__(self) -> int:
        return len(self._batch)

    def values(self, field_id: int, kind: pa.DataType) -> pa.Array:
        return self._cast(self._fields.get(field_id), kind, field_id)

    def partition(self, field_id: int, type_name: str) -> pa.Array:
        if (values := self._partition.get(field_id)) is None:
            return pa.nulls(len(self), bound_arrow_type(type_name))
        return promoted_values(values, type_name, self._location, f"partition.{field_id}")

    def metrics_map(self, map_id: int, kind: pa.MapType) -> pa.Array:
        return self._cast(self._fields.get(map_id), kind, map_id)

    def metric(self, map_id: int, key: int, kind: pa.DataType) -> pa.Array:
        maps = self._fields.get(map_id)
        values = None if maps is None else pc.map_lookup(maps, pa.scalar(key, maps.type.key_type), "first")
        return self._cast(values, kind, map_id)

    def take(self, indices: np.ndarray[Any, Any]) -> ParquetRecords:
        return ParquetRecords(self._batch.take(pa.array(indices)), self._location, self._unique_ids)

    def _cast(self, values: pa.Array | None, kind: pa.DataType, field_id: int) -> pa.Array:
        if values is None:
            return pa.nulls(len(self), kind)
        try:
            return values.cast(kind)
        except pa.ArrowException as error:
            raise CorruptFileError(self._location, f"field {field_id}", str(values.type), f"not {kind}") from error


def _projected_columns(schema: pa.Schema, projection: EntryProjection, location: str) -> list[str]:
    """Return the paths of the projected columns, and of the whole partition tuple, since its names may have dots."""
    ids = {*projected_fields(projection), *([PARTITION_FIELD_ID] if projection.partition else [])}
    file = next((field for field in schema if field_id(field) == DATA_FILE_FIELD_ID), None)
    if file is None or not pa.types.is_struct(file.type):
        raise CorruptFileError(location, "schema", "data_file", "field 2 (data_file) is not a struct")
    entry_columns = [field.name for field in schema if field_id(field) in ids]
    return [*entry_columns, *(f"{file.name}.{field.name}" for field in file.type if field_id(field) in ids)]


def _by_id(fields: Any, columns: list[pa.Array]) -> dict[int, pa.Array]:
    ids = map(field_id, fields)
    return {number: column for number, column in zip(ids, columns, strict=True) if number is not None}


# -- Parquet manifests of the v1 to v3 layout, read by Spark ----------------------------------------------------------
# Iceberg 1.12 writes them for format version 4.
# Spark's Parquet reader reads the projected columns. One pass in Arrow types bounds and applies inheritance, with the
# code for Avro manifests.


# Field id -> the name in the file, of fields of the entry and of data_file.
_ENTRY_NAMES = {field_id: name for name, field_id in ENTRY_NAMES.items() if field_id in V3_ENTRY_PATHS}
_FILE_NAMES = {field_id: name for name, field_id in FILE_NAMES.items() if field_id in V3_ENTRY_PATHS}
_TYPES = {
    **dict.fromkeys((0, 134, 140), pa.int32()),
    **dict.fromkeys((1, 3, 4, 103, 104, 142, 144, 145), pa.int64()),
    **dict.fromkeys((100, 101, 143), pa.string()),
    131: pa.binary(),
    132: pa.list_(pa.int64()),
    135: pa.list_(pa.int32()),
}

# Spec id -> (partition field id, name in the manifest's partition struct) of its fields.
PartitionNames = Mapping[int, Sequence[tuple[int, str]]]


def read_parquet_entries(
    spark: SparkSession, parts: pa.Table, projection: EntryProjection, names: PartitionNames, locations: Locations
) -> DataFrame:
    """Return every physical entry of Parquet manifests as a lazy DataFrame of `projection.schema`.

    Args:
        spark: the session.
        parts: rows of `PART_SCHEMA`, one per manifest. Manifests of each spec are read together, since tuples differ.
        projection: the columns to return.
        names: the names of partition fields.
        locations: resolves the locations in manifests.
    """
    from sparkmeta.arrow_types import spark_schema
    from sparkmeta.storage.reading import failing_if_skipped

    if unknown := [field_id for field_id, type_name in projection.partition if type_name == ANY]:
        path = parts.column("location")[0].as_py()
        raise UnsupportedError(f"{path}: the transform of partition field {unknown[0]}, and so its type, is not known")
    reads = []
    for spec_id in sorted(parts.column("partition_spec_id").unique().to_pylist()):
        spec_parts = parts.filter(pc.equal(parts.column("partition_spec_id"), spec_id))
        reads.append(_read_spec(spark, spec_parts, projection, dict(names[spec_id])))
    raw = reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), reads)
    if "first_row_id" in projection.columns:
        raw = raw.repartition("manifest").sortWithinPartitions("manifest", "ordinal")
    entries = map_arrow(raw, partial(_build, projection, locations), projection.schema)
    paths = parts.column("location").to_pylist()
    return failing_if_skipped(spark, entries, paths, spark_schema(projection.schema))


def _read_spec(
    spark: SparkSession, parts: pa.Table, projection: EntryProjection, names: Mapping[int, str]
) -> DataFrame:
    from pyspark.sql import functions as F

    from sparkmeta.storage.reading import read_parquet

    locations = parts.column("location").to_pylist()
    partition = {field_id: names[field_id] for field_id, _ in projection.partition if field_id in names}
    types = dict(projection.partition)
    schema = _schema(projection, {name: types[field_id] for field_id, name in partition.items()})
    files = read_parquet(spark, locations, schema)
    keys = pa.array([spark_path_key(location) for location in locations])
    units = F.broadcast(local_frame(spark, parts.append_column("path", keys)))
    columns = [*_columns(projection), *(_field(f"data_file.partition.`{n}`", f"p{i}") for i, n in partition.items())]
    entries = files.select(
        *columns,
        F.expr(PATH_KEY).alias("path"),
        F.col("_metadata.row_index").alias("ordinal"),
    )
    return entries.join(units, "path", "left")


def _schema(projection: EntryProjection, partition: Mapping[str, str]) -> Any:
    """Return the schema to read: the projected fields, and partition fields by their names in the file."""
    from sparkmeta.arrow_types import spark_schema

    ids = projected_fields(projection)
    file = [pa.field(name, _TYPES[field_id]) for field_id, name in _FILE_NAMES.items() if field_id in ids]
    file += [pa.field(n, pa.map_(pa.int32(), value)) for i, (n, value) in METRICS_MAPS.items() if i in ids]
    if partition:
        fields = [pa.field(name, bound_arrow_type(type_name)) for name, type_name in partition.items()]
        file.append(pa.field("partition", pa.struct(fields)))
    entry = [pa.field(name, _TYPES[field_id]) for field_id, name in _ENTRY_NAMES.items() if field_id in ids]
    return spark_schema(pa.schema([*entry, pa.field("data_file", pa.struct(file))] if file else entry))


def _columns(projection: EntryProjection) -> list[Column]:
    """Return the projected fields and metrics maps as `f<id>`, and single keys of metrics maps as `m<id>_<key>`."""
    from pyspark.sql import functions as F

    ids = projected_fields(projection)
    columns = [_field(name, f"f{field_id}") for field_id, name in _ENTRY_NAMES.items() if field_id in ids]
    columns += [_field(f"data_file.{n}", f"f{i}") for i, n in _FILE_NAMES.items() if i in ids]
    for name in projection.columns:
        if name in METRICS_MAP_IDS:
            columns.append(_field(f"data_file.{name}", f"f{METRICS_MAP_IDS[name]}"))
    for map_id in STATS_SOURCES.values() if projection.stats else ():
        values = F.col(f"data_file.{METRICS_MAPS[map_id][0]}")
        columns += [F.try_element_at(values, F.lit(key)).alias(f"m{map_id}_{key}") for key, _ in projection.stats]
    return columns


def _field(path: str, alias: str) -> Column:
    from pyspark.sql import functions as F

    column: Column = F.col(path).alias(alias)
    return column


def _build(
    projection: EntryProjection, locations: Locations, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield batches of entries of one manifest. A manifest's row id counter continues from batch to batch."""
    builder: EntryBuilder | None = None
    for batch in batches:
        for run in _runs(batch):
            part = part_of(_row(run))
            if builder is None or builder.part.manifest != part.manifest:
                builder = EntryBuilder(part, projection)
            entries = builder.batch(run.column("ordinal"), ArrowRecords(run))
            yield from with_locations([entries], locations, part.location)


def _runs(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    ids = batch.column("manifest")
    if ids.null_count:
        path = batch.filter(ids.is_null()).column("path")[0].as_py()
        raise CorruptFileError(path, "path", path, "Spark read a file that no manifest names")
    edges = np.flatnonzero(np.diff(ids.to_numpy())) + 1
    starts = [0, *edges.tolist(), len(batch)]
    return (batch.slice(a, b - a) for a, b in pairwise(starts) if b > a)


def _row(run: pa.RecordBatch) -> dict[str, Any]:
    row: dict[str, Any] = run.slice(0, 1).select(PART_SCHEMA.names).to_pylist()[0]
    return row


class ArrowRecords:
    """`RawRecords` over the raw columns of `_columns`."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return len(self._batch)

    def values(self, field_id: int, kind: pa.DataType) -> pa.Array:
        return self._cast(f"f{field_id}", kind)

    def partition(self, field_id: int, type_name: str) -> pa.Array:
        return self._cast(f"p{field_id}", bound_arrow_type(type_name))

    def metrics_map(self, map_id: int, kind: pa.MapType) -> pa.Array:
        return self._cast(f"f{map_id}", kind)

    def metric(self, map_id: int, key: int, kind: pa.DataType) -> pa.Array:
        return self._cast(f"m{map_id}_{key}", kind)

    def take(self, indices: np.ndarray[Any, Any]) -> ArrowRecords:
        return ArrowRecords(self._batch.take(pa.array(indices)))

    def _cast(self, name: str, kind: pa.DataType) -> pa.Array:
        if name not in self._batch.schema.names:
            return pa.nulls(len(self), kind)
        return self._batch.column(name).cast(kind)


# -- Manifests of every format, from bytes ----------------------------------------------------------------------------


CACHED_LEAF = "cached_leaf"
"""A column that rows of `PART_SCHEMA` may have: the location of the part's leaf in the manifest cache."""

MASK = "manifest_dv"
"""A column that rows of `PART_SCHEMA` may have: the deletion vector of the manifest, a row of `DV_SCHEMA`."""

_log = logging.getLogger(__name__)

_decoding_small = Lock()
"""Held while a small manifest is decoded: concurrent threads would spend half of their time on Python's own lock.

Without it, a plan of 100 files in 20 manifests takes 1.6 times as long.
"""


@dataclass(frozen=True)
class EntryDecoder:
    """Opens parts of manifests, rows of `PART_SCHEMA`, and decodes their entries. Picklable.

    Attributes:
        files: opens manifests.
        trees: the types of the table's V4 manifests; None if it has none.
        locations: resolves the locations in manifests.
        cached: opens leaves of the manifest cache.
        writer: stores parts that have been decoded completely in the manifest cache.
        memory: remembers the entries of small manifests for further plans; None in tasks.
    """

    files: Files | ExecutorReader
    trees: TreeTypes | None
    locations: Locations
    cached: Files | ExecutorReader | None = None
    writer: CacheWriter | None = None
    memory: EntryMemory | None = None

    def entries(self, part: Mapping[str, Any], projection: EntryProjection) -> Iterator[pa.RecordBatch]:
        """Decode the entries of a part in physical order, masked ones included, with inheritance applied.

        If a cached leaf can't be read, the manifest is decoded.

        Raises:
            NotFoundError: the manifest does not exist.
            CorruptFileError: it is not a manifest.
        """
        remembered = self._remembered(part, projection)
        if remembered is None:
            yield from self._decoded(part, self._read(part), projection)
        else:
            yield from matching_rows(remembered, projection).to_batches()

    def _remembered(self, part: Mapping[str, Any], projection: EntryProjection) -> pa.Table | None:
        """Return all entries of a small manifest; None if the manifest is longer, or the projection has no filter."""
        is_small = (part["file_size_in_bytes"] or 0) <= SMALL_MANIFEST_BYTES
        if self.memory is None or projection.entry_filter is None or not is_small:
            return None

        def read(unfiltered: EntryProjection) -> pa.Table:
            content = self._read(part)
            with _decoding_small:
                return pa.Table.from_batches(self._decoded(part, content, unfiltered), unfiltered.schema)

        return self.memory.of((part[MANIFEST], part["part"], part["parts"]), projection, read)

    def _read(self, part: Mapping[str, Any]) -> _Content:
        leaf, dv = part.get(CACHED_LEAF), part.get(MASK)
        masked = None if dv is None else mask_flags(dv, self.files)
        if leaf is not None and (cached := self._cached(leaf)) is not None:
            return _Content(cached, leaf, masked)
        return _Content(manifest_data(self.files, part), None, masked)

    def _decoded(
        self, part: Mapping[str, Any], content: _Content, projection: EntryProjection
    ) -> Iterator[pa.RecordBatch]:
        data, leaf, _ = content
        if leaf is not None:
            assert isinstance(data, bytes)
            entries = decode_leaf(data, part_of(part), projection, leaf)
            yield from with_locations(entries, self.locations.before_version_4, part["location"])
            return
        yield from decode(data, part, projection, self.trees, self.locations)
        if self.writer is not None and part["file_format"] == "AVRO":
            self.writer.keep(data, part_of(part))

    def table(self, part: Mapping[str, Any], projection: EntryProjection) -> pa.Table:
        """Decode the entries of a part into one table."""
        return pa.Table.from_batches(self.entries(part, projection), projection.schema).combine_chunks()

    def decode_parts(self, projection: EntryProjection, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Decode the entries of parts, rows of the batches. Several parts are read from a store at a time.

        Entries that the part's deletion vector, `MASK`, masks are left out.
        """
        for batch in batches:
            parts = batch.to_pylist()
            if len(parts) == 1 or all(is_local(part["location"]) for part in parts):
                contents: Iterable[tuple[dict[str, Any], _Content]] = ((part, self._read(part)) for part in parts)
            else:
                contents = read_ahead(parts, self._read, _size)
            for part, content in contents:
                entries = self._decoded(part, content, projection)
                yield from entries if content.masked is None else _without(content.masked, entries)

    def _cached(self, leaf: str) -> bytes | None:
        if self.cached is None:
            return None
        try:
            return self.cached.read(leaf)
        except Exception as error:  # noqa: BLE001  each store's client has its own errors
            _log.warning("the manifest cache's leaf %s can't be read: %s", leaf, error)
            return None

    def decode_unmasked(
        self,
        projection: EntryProjection,
        masks: Mapping[int, Mapping[str, Any]],
        batches: Iterable[pa.RecordBatch],
    ) -> Iterator[pa.RecordBatch]:
        """Decode the unmasked entries of parts, rows of the batches. Some may not pass the projection's filter.

        Args:
            masks: small id of a leaf -> its deletion vector, `inlined`.
        """
        for batch in batches:
            for part in batch.to_pylist():
                mask = masks.get(part[MANIFEST])
                if mask is None:
                    remembered = self._remembered(part, projection)
                    yield from self.entries(part, projection) if remembered is None else remembered.to_batches()
                else:
                    table = self.table(part, projection)
                    some = part["file_format"] == VECTORS or projection.entry_filter is not None
                    yield from unmasked_entries(table, mask, some=some).to_batches()


class _Content(NamedTuple):
    """The bytes of a part of a manifest, or of its leaf in the manifest cache at the location `cached_leaf`.

    Attributes:
        masked: whether each ordinal of the manifest is masked; None if it has no deletion vector.
    """

    data: Data
    cached_leaf: str | None
    masked: np.ndarray[Any, Any] | None


def _without(masked: np.ndarray[Any, Any], entries: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the entries whose ordinals are not masked."""
    for batch in entries:
        flags = np.take(masked, batch.column(ORDINAL).to_numpy(), mode="clip")
        yield batch.filter(pa.array(~flags)) if flags.any() else batch


def _size(part: Mapping[str, Any]) -> int:
    return part["file_size_in_bytes"] or 0


def decode(
    data: Data, part: Mapping[str, Any], projection: EntryProjection, trees: TreeTypes | None, locations: Locations
) -> Iterator[pa.RecordBatch]:
    """Decode the entries of a part of a manifest, a row of `PART_SCHEMA`, from the manifest's bytes."""
    vectors = part["file_format"] == VECTORS
    if part["file_format"] != "PARQUET" and not vectors:
        entries = decode_manifest(data, part_of(part), projection)
        return with_locations(entries, locations.before_version_4, part["location"])
    assert not isinstance(data, Windows)
    if trees is not None and (vectors or is_tree_manifest(data, part["location"])):
        entries = decode_tree_manifest(data, part_of(part), projection, trees, vectors=vectors)
    else:
        entries = decode_parquet_manifest(data, part_of(part), projection)
    return with_locations(entries, locations, part["location"])


def decode_contents(
    projection: EntryProjection, trees: TreeTypes | None, locations: Locations, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Decode the entries of manifests that Spark has read: rows of `PART_SCHEMA` with `path` and `content`."""
    for batch in batches:
        contents = batch.column("content")
        for index, part in enumerate(batch.drop_columns(["content"]).to_pylist()):
            if part[MANIFEST] is None:
                raise CorruptFileError(part["path"], "path", part["path"], "Spark read a file that no manifest names")
            data = memoryview(contents[index].as_buffer()).cast("B")
            if (key := part.get(KEY_METADATA)) is not None:
                data = memoryview(Stream.of(part["location"], key).decrypted(data))
            yield from decode(data, part, projection, trees, locations)
