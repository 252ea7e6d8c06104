"""Leaves of the manifest cache: their layout, and how tasks read and write them. Without Spark: tasks import this."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparkmeta.avro.container import Data, read_header
from sparkmeta.avro.decode import decode_records, writer_schema
from sparkmeta.entries.locations import with_locations
from sparkmeta.entries.manifest_records import (
    EntryBuilder,
    ManifestContext,
    ManifestPart,
    matching_rows,
    stats_of_maps,
    with_inherited_version,
)
from sparkmeta.entries.projection import (
    CONTENT_STATS,
    FILE_COLUMNS,
    MANIFEST,
    ORDINAL,
    PARTITION,
    EntryProjection,
    SpecTuples,
    stats_struct,
)
from sparkmeta.errors import CorruptFileError, FileAlreadyExistsError, NotFoundError
from sparkmeta.expr.arrays import narrowed, whole
from sparkmeta.expr.bounds import bound_arrow_type, inverted
from sparkmeta.manifests.parquet_file import parquet_bytes
from sparkmeta.spec.entry import BOUNDS, METRICS_MAP_IDS, ROW_ID_OFFSET
from sparkmeta.spec.locations import Locations
from sparkmeta.storage.executors import ExecutorReader, ExecutorWriter
from sparkmeta.storage.listing import FileStatus
from sparkmeta.storage.location import file_name, join, normalize

# -- The layout of the cache ------------------------------------------------------------------------------------------
#     <cache>/<types>.json                                          the types of stats and partition values
#     <cache>/<folder>/<key>-<types>-<digest>-<size>.parquet        a leaf: a manifest, or a task's part of one
# The key is a digest of the manifest's location, length, partition spec and part. `types` is a digest of the document
# with this name; a leaf serves only plans that read every value with the type in this document. `size` is the leaf's
# length; a leaf of another length is torn, and ignored. The name depends on the content, so files never change, and
# concurrent writers write the same bytes.
#
# A leaf holds the manifest's entries before inheritance.


LAYOUT = 4
"""The version of the layout and of the decoded values of leaves, which is part of keys."""

LEAF_SUFFIX, TYPES_SUFFIX = ".parquet", ".json"
_DIGITS, _FEW_DIGITS = 32, 16
_DIGEST = re.compile(rf"[0-9a-f]{{{_DIGITS}}}")


@dataclass(frozen=True)
class CacheTypes:
    """The Iceberg types of the values in a leaf.

    A type is None if manifests contain values of the field, but the leaf does not.

    Attributes:
        manifests: the folder of the manifests.
        stats: column id -> type.
        partition: partition field id -> type.
    """

    manifests: str
    stats: Mapping[int, str | None]
    partition: Mapping[int, str | None]

    @property
    def document(self) -> bytes:
        """The content of the file of types."""
        types = {"stats": _by_text(self.stats), "partition": _by_text(self.partition)}
        return json.dumps({"manifests": self.manifests, **types}, sort_keys=True).encode()

    @property
    def name(self) -> str:
        return _digest(self.document)

    @staticmethod
    def is_name(text: str) -> bool:
        """Return whether a document of types can have this name."""
        return _DIGEST.fullmatch(text) is not None

    @staticmethod
    def parse(document: bytes) -> CacheTypes:
        """Parse a document of types. Raises ValueError if it is not one."""
        content: Any = json.loads(document)
        try:
            stats, partition = (
                {int(field_id): kind for field_id, kind in content[key].items()} for key in ("stats", "partition")
            )
            return CacheTypes(str(content["manifests"]), stats, partition)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no document of types: {error!r}") from error

    def serves(self, projection: EntryProjection) -> bool:
        """Return whether a leaf of these types contains all values of a projection, in the projection's types.

        Fields that the document does not name have no values in the manifest, and are null in the leaf.
        """
        projected = ((self.stats, projection.stats), (self.partition, projection.partition))
        return all(types.get(field_id, kind) == kind for types, fields in projected for field_id, kind in fields)


def _by_text(types: Mapping[int, str | None]) -> dict[str, str | None]:
    return {str(field_id): kind for field_id, kind in types.items()}


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()[:_DIGITS]


def short_digest(content: bytes) -> str:
    """Return the digest of a leaf's content for the leaf's name."""
    return _digest(content)[:_FEW_DIGITS]


def manifests_folder(location: str) -> str:
    """Return the normalized folder of a manifest."""
    return normalize(location).rpartition("/")[0]


def leaf_folder(cache: str, manifests: str) -> str:
    """Return the cache's folder with the leaves of a folder of manifests."""
    return join(cache, short_digest(manifests.encode()))


def leaf_key(location: str, length: int, spec_id: int, part: int, parts: int) -> str:
    """Return the key of the leaf for a manifest's part; a whole manifest is part 0 of 1."""
    return _digest(json.dumps([LAYOUT, normalize(location), length, spec_id, part, parts]).encode())


@dataclass(frozen=True)
class CachedLeaf:
    """A leaf, described by its name.

    Attributes:
        size: the length of the file, according to its name.
    """

    key: str
    types: str
    size: int
    status: FileStatus

    @property
    def whole(self) -> bool:
        """Whether the file has the length in its name. If not, it is torn."""
        return self.size == self.status.length

    @staticmethod
    def of(status: FileStatus) -> CachedLeaf | None:
        """Return the leaf in a file; None if the file does not have the name of a leaf."""
        parts = file_name(status.location).removesuffix(LEAF_SUFFIX).split("-")
        if len(parts) != 4 or not parts[3].isdecimal():
            return None
        return CachedLeaf(parts[0], parts[1], int(parts[3]), status)


# -- Decode leaves ----------------------------------------------------------------------------------------------------


def decode_leaf(data: bytes, part: ManifestPart, projection: EntryProjection, leaf: str) -> list[pa.RecordBatch]:
    """Return the entries of a manifest's part from its leaf, as `decode_manifest` does.

    Args:
        data: the content of the leaf, which must serve the projection (`CacheTypes.serves`).
        leaf: the leaf's location, for errors.

    Raises:
        CorruptFileError: the leaf was damaged after it was written.
    """
    full_projection, test_projection = (
        EntryProjection.of({*columns, *_TESTED}, dict(projection.partition), dict(projection.stats))
        for columns in ({*projection.columns, "location"}, ())
    )
    batches: list[pa.RecordBatch] = []
    try:
        with pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True) as file:
            if missing := {"location", *_TESTED, ORDINAL} - set(file.schema_arrow.names):
                raise ValueError(f"it has no {sorted(missing)}")  # noqa: TRY301  one message for all kinds of damage
            for group in range(file.num_row_groups):
                if _is_tested(projection) and not len(
                    matching_rows(_entries(file, group, part, test_projection), projection)
                ):
                    continue
                entries = matching_rows(_entries(file, group, part, full_projection), projection)
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


def _entries(file: pq.ParquetFile, group: int, part: ManifestPart, projection: EntryProjection) -> pa.Table:
    """Return the entries of a row group as rows of `projection.schema` with inheritance applied."""
    nested = [f"{PARTITION}.{field_id}" for field_id, _ in projection.partition]
    nested += [f"{CONTENT_STATS}.{field_id}" for field_id, _ in projection.stats]
    table = file.read_row_group(group, [*projection.columns, *nested, ORDINAL, ROW_ID_OFFSET.name])
    table.validate(full=True)
    columns = {name: whole(table.column(name)) for name in table.column_names}
    columns["version_info"] = with_inherited_version(columns["version_info"], part.context)
    if "first_row_id" in projection.columns:
        columns["first_row_id"] = _first_row_ids(columns, part.context.first_row_id)
    columns[MANIFEST] = pa.repeat(pa.scalar(part.manifest, pa.int32()), len(table))
    arrays = [_typed(columns.get(field.name), field, len(table)) for field in projection.schema]
    return pa.Table.from_arrays(arrays, schema=projection.schema)


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
    """Return structs without nulls at any depth, like the structs of a decoded manifest."""
    by_name = {} if values is None else dict(zip(values.type.names, values.flatten(), strict=True))
    children = []
    for field in kind:
        child = by_name.get(field.name)
        if pa.types.is_struct(field.type):
            children.append(_struct(child, field.type, rows))
        else:
            children.append(pa.nulls(rows, field.type) if child is None else narrowed(child, field.type))
    return pa.StructArray.from_arrays(children, fields=list(kind))


# -- Write leaves in tasks --------------------------------------------------------------------------------------------
# A leaf contains the columns of a content entry before inheritance, the metrics maps, `partition` and `content_stats`
# with a child for each field id, `ordinal`, and `row_id_offset`, the number of row ids that earlier entries use.


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
    """A writer of leaves to a cache folder. Picklable.

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
    """Return the leaf of a manifest's part, and its types: `types`, and None for other fields of the manifest.

    Args:
        tuples: the partition fields of the table's specs.

    Raises:
        CorruptFileError: a field can't be decoded, a location is relative, or a lower bound is above the upper one.
    """
    columns = [*FILE_COLUMNS, *METRICS_MAP_IDS]
    projection = EntryProjection.of(columns, _without_untyped(types.partition), spec_tuples=tuples)
    table, ids = _decoded(data, part, projection)
    maps = {name: whole(table.column(name)) for name in METRICS_MAP_IDS}
    stats = stats_of_maps(maps, _without_untyped(types.stats), len(table), part.location, lenient=True)
    _refuse_inverted(stats, types.stats, part.location)
    if stats:
        table = table.append_column(CONTENT_STATS, _stats_column(stats, types.stats, len(table)))
    if part.parts == 1:
        table = table.append_column(ROW_ID_OFFSET.name, ids)
    schema = writer_schema(data, part, read_header(data, part.location), projection)
    leaf_types = CacheTypes(
        manifests_folder(part.location),
        _with_untyped(types.stats, _keys(maps.values())),
        _with_untyped(types.partition, schema.partition_fields),
    )
    return parquet_bytes(table, {}), leaf_types


def _refuse_inverted(
    stats: Mapping[int, Mapping[str, pa.Array]], types: Mapping[int, str | None], location: str
) -> None:
    """Refuse a lower bound above the upper one, which plans would treat as unknown, but metadata tables would show."""
    for field_id, children in stats.items():
        lower, upper = (children.get(name) for name in BOUNDS)
        if lower is not None and upper is not None and inverted(lower, upper, types[field_id] or "") is not None:
            raise CorruptFileError(location, f"lower_bounds[{field_id}]", None, "one is above the upper bound")


def _decoded(data: Data, part: ManifestPart, projection: EntryProjection) -> tuple[pa.Table, pa.ChunkedArray]:
    """Return entries without inherited first row ids, and the row id offsets of entries without an id."""
    builder = EntryBuilder(replace(part, context=_NOTHING_INHERITED), projection)
    batches: list[pa.RecordBatch] = []
    offsets = []
    for ordinals, records in decode_records(data, part, projection):
        batch = builder.batch(ordinals, records)
        index = batch.schema.get_field_index("first_row_id")
        ids = records.values(_FIRST_ROW_ID, pa.int64())
        offsets.append(pc.if_else(ids.is_null(), batch.column(index), pa.scalar(None, pa.int64())))
        batches.extend(with_locations([batch.set_column(index, "first_row_id", ids)], _ABSOLUTE, part.location))
    table = pa.Table.from_batches(batches, projection.schema).drop_columns([MANIFEST])
    return table, pa.chunked_array(offsets, pa.int64())


def _without_untyped(types: Mapping[int, str | None]) -> dict[int, str]:
    return {field_id: kind for field_id, kind in types.items() if kind is not None}


def _with_untyped(types: Mapping[int, str | None], ids: Iterable[int]) -> dict[int, str | None]:
    """Return the types, with None for each id without a known type."""
    typed = _without_untyped(types)
    return {**types, **{field_id: None for field_id in sorted(ids) if field_id not in typed}}


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
