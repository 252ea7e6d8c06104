"""Decode V4 manifests from their bytes, all entries or those with given values. Without Spark: tasks import this."""

from __future__ import annotations

import io
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.entries.locations import table_with_locations
from sparkmeta.entries.manifest_records import (
    ManifestContext,
    ManifestPart,
    RowIdCounter,
    has_metrics_maps,
    matching_rows,
    part_of,
    stats_for_maps,
    with_inherited_version,
    with_metrics_maps,
)
from sparkmeta.entries.projection import CONTENT_STATS, MANIFEST, ORDINAL, PARTITION, EntryProjection
from sparkmeta.errors import CorruptFileError
from sparkmeta.expr.arrays import narrowed, whole
from sparkmeta.expr.bounds import bound_arrow_type
from sparkmeta.manifests.deletion_vectors import mask_flags
from sparkmeta.manifests.v4.colocated import VECTOR, as_existing
from sparkmeta.manifests.v4.fields import partition_value, with_version
from sparkmeta.manifests.v4.iceberg_layout import NOT_AN_ENTRY, VECTORS, entries_only
from sparkmeta.manifests.v4.layout import (
    OpenManifest,
    TreeTypes,
    TupleSources,
    open_manifest,
    read_manifest,
    stats_of_fields,
)
from sparkmeta.manifests.v4.root import FILES, LEAVES, one_of, version
from sparkmeta.spec.entry import Status

if TYPE_CHECKING:
    from sparkmeta.spec.locations import Locations
    from sparkmeta.storage.executors import ExecutorReader
    from sparkmeta.storage.files import Files


# -- Decode manifests -------------------------------------------------------------------------------------------------
# A root is decoded as a manifest of the files that it lists itself.


_BATCH_ROWS = 8_192


def decode_tree_manifest(
    data: bytes | memoryview,
    part: ManifestPart,
    projection: EntryProjection,
    types: TreeTypes,
    *,
    vectors: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the entries of a leaf, or the files of a root, as batches of `projection.schema` with inheritance applied.

    Entries that fail the projection's filter are left out.

    Args:
        data: the content of the file.
        part: the manifest.
        projection: the columns to return.
        types: the types of the table's V4 manifests.
        vectors: whether to return the deletion vectors in the entries.

    Raises:
        CorruptFileError: not a V4 manifest, or an entry lacks stats that hold its partition values.
    """
    if not has_metrics_maps(projection):
        entries = tree_entries(data, part, projection, types, vectors=vectors)
        yield from matching_rows(entries, projection).to_batches()
        return
    columns = {field_id: types.stats[field_id] for field_id in types.columns}
    entries = tree_entries(data, part, stats_for_maps(projection, columns), types, vectors=vectors)
    yield from with_metrics_maps(projection, types.columns, entries.to_batches(max_chunksize=_BATCH_ROWS))


def tree_entries(
    data: bytes | memoryview,
    part: ManifestPart,
    projection: EntryProjection,
    types: TreeTypes,
    *,
    vectors: bool = False,
) -> pa.Table:
    """Decode a tree manifest into one chunk, for a projection without metrics maps; see `decode_tree_manifest`."""
    stats, columns = types.stats_of(projection), {*projection.columns, *types.ALWAYS_READ}
    sources = stats_of_fields(types.sources)
    with open_manifest(pa.BufferReader(data), part.location, vectors=vectors) as manifest:
        table = manifest.rows(None, stats, columns, sources, as_written=projection.as_written)
    table, ordinals = entries_only(table, pa.array(np.arange(len(table)), pa.int64()))
    if manifest.may_be_root:
        if not manifest.layout.is_strict and part.context.snapshot_id is not None:
            _refuse_leaves(table, part.location)
        files = one_of(table, FILES)
        if not pc.all(files).as_py():
            table, ordinals = table.filter(files), ordinals.filter(files.combine_chunks())
    if vectors:
        table = _numbered(table, part)
    return entries_of_rows(table, ordinals, part, projection, types)


def _refuse_leaves(entries: pa.Table, location: str) -> None:
    """Raise CorruptFileError if a leaf lists manifests, which only roots do."""
    leaves = entries.column("content_type").filter(one_of(entries, LEAVES))
    if len(leaves):
        raise CorruptFileError(location, "content_type", leaves[0].as_py(), "a leaf lists files, not manifests")


def _numbered(vectors: pa.Table, part: ManifestPart) -> pa.Table:
    """Return deletion vectors with the sequence number of their leaf, which has no other for them."""
    info = whole(vectors.column("version_info"))
    number = pa.scalar(part.context.sequence_number, pa.int64())
    status, snapshots, *numbers = info.flatten()
    return with_version(vectors, [status, snapshots, *(pc.fill_null(values, number) for values in numbers)])


def entries_of_rows(
    rows: pa.Table, ordinals: pa.Array, part: ManifestPart, projection: EntryProjection, types: TreeTypes
) -> pa.Table:
    """Return rows of `tree_schema` as entries of `projection.schema` with inheritance applied.

    First row ids are correct only if the rows are all rows of the leaf.

    Args:
        ordinals: the rows' ordinals in the leaf.
    """
    columns = _columns(rows, part, types, projection)
    columns |= {MANIFEST: pa.repeat(pa.scalar(part.manifest, pa.int32()), len(rows)), ORDINAL: ordinals}
    arrays = [narrowed(columns[field.name], field.type) for field in projection.schema]
    return pa.Table.from_arrays(arrays, schema=projection.schema)


def root_entries(
    rows: pa.Table, manifest: int, location: str, projection: EntryProjection, types: TreeTypes
) -> pa.Table:
    """Return the root's own files as entries of a manifest, without metrics maps.

    Args:
        rows: rows of the root with their `ordinal`. They inherit nothing.
        manifest: the manifest's small id.
        location: the root's location.
        projection: the columns to return.
        types: the types of the table's V4 manifests.
    """
    part = ManifestPart(manifest, location, 0, ManifestContext(None, None, None))
    return entries_of_rows(rows, rows.column(ORDINAL), part, projection, types)


def leaf_entries(data: bytes, part: ManifestPart, types: TreeTypes) -> pa.Table:
    """Return every physical entry of a leaf as rows of `tree_schema` with inheritance applied.

    Raises:
        CorruptFileError: not a V4 manifest, or an entry without a status.
    """
    table, _ = read_manifest(data, types.stats, part.location, fields=stats_of_fields(types.sources))
    return _inherited(_without_entries_before(table), part)


def colocated_entries(data: bytes, part: ManifestPart, types: TreeTypes) -> pa.Table:
    """Return every row of a leaf as `colocated_schema` with inheritance applied, and vectors as EXISTING ones.

    Rows that are no entries have the status DELETED. See `leaf_entries`.
    """
    with open_manifest(pa.BufferReader(data), part.location) as manifest:
        table = manifest.colocated_rows(types)
    table = _inherited(_without_entries_before(table), part)
    vectors = as_existing(whole(table.column(VECTOR)))
    index = table.column_names.index(VECTOR)
    return table.set_column(index, table.schema.field(index), vectors)


def _without_entries_before(table: pa.Table) -> pa.Table:
    """Return rows with the status DELETED instead of `NOT_AN_ENTRY`."""
    status, *others = whole(table.column("version_info")).flatten()
    is_before = pc.equal(status, NOT_AN_ENTRY)
    return with_version(table, [pc.if_else(is_before, pa.scalar(int(Status.DELETED), status.type), status), *others])


def _inherited(table: pa.Table, part: ManifestPart) -> pa.Table:
    info = _version_info(table, part)
    ids = _row_ids(whole(table.column("first_row_id")), info, whole(table.column("record_count")), part)
    for name, values in (("version_info", info), ("first_row_id", ids)):
        table = table.set_column(table.column_names.index(name), table.schema.field(name), values)
    return table


def _columns(table: pa.Table, part: ManifestPart, types: TreeTypes, projection: EntryProjection) -> dict[str, pa.Array]:
    columns = {name: whole(table.column(name)) for name in table.column_names}
    columns["version_info"] = info = _version_info(table, part)
    columns["file_format"] = pc.utf8_upper(columns["file_format"])
    if "first_row_id" in projection.columns:
        columns["first_row_id"] = _row_ids(columns["first_row_id"], info, columns["record_count"], part)
    if projection.partition:
        columns[PARTITION] = _tuple(columns, projection, types, part.location)
    return columns


def _version_info(table: pa.Table, part: ManifestPart) -> pa.StructArray:
    if version(table, "status").null_count:
        raise CorruptFileError(part.location, "version_info.status", None, "the field is required")
    return with_inherited_version(whole(table.column("version_info")), part.context)


def _row_ids(ids: pa.Array, info: pa.StructArray, counts: pa.Array, part: ManifestPart) -> pa.Array:
    """Return inherited first row ids; the entries' own ids if the manifest has none."""
    if part.context.first_row_id is None:
        return ids
    return RowIdCounter(part.context.first_row_id).assign(ids, info.field("status"), counts)


def _tuple(
    columns: Mapping[str, pa.Array], projection: EntryProjection, types: TreeTypes, location: str
) -> pa.StructArray:
    # Without stats if no field of the specs has a source column, as a void one.
    specs, stats = columns["partition_spec_id"], columns.get(CONTENT_STATS)
    children = []
    for field_id, type_name in projection.partition:
        kind = bound_arrow_type(type_name)
        values = _values_of(field_id, specs, stats, types.sources, location)
        children.append(pa.nulls(len(specs), kind) if values is None else values.cast(kind))
    return pa.StructArray.from_arrays(children, fields=list(projection.partition_type))


def _values_of(
    field_id: int, specs: pa.Array, stats: pa.StructArray | None, sources: TupleSources, location: str
) -> pa.Array | None:
    """Return the values of a partition field from the stats that hold them; None if no spec has the field."""
    parts = () if stats is None else zip(stats.type, stats.flatten(), strict=True)
    by_id = {int(child.name): values for child, values in parts}
    merged: pa.Array | None = None
    for spec_id, fields in sources.items():
        source = dict(fields).get(field_id)
        if source is None:
            continue
        of_spec = pc.equal(specs, spec_id)
        values = _derived(by_id[source], of_spec, source, location)
        nothing = pa.nulls(len(specs), values.type)
        merged = pc.if_else(of_spec, values, nothing if merged is None else merged.cast(values.type))
    return merged


def _derived(stats: pa.StructArray, of_spec: pa.Array, source: int, location: str) -> pa.Array:
    if pc.any(pc.and_(of_spec, stats.is_null())).as_py():
        problem = "the field is required: a partition value is derived from it"
        raise CorruptFileError(location, f"{CONTENT_STATS}.{source}", None, problem)
    return partition_value(stats)


# -- Find entries by the values of a column ---------------------------------------------------------------------------
# Only row groups that may hold the values are read.
# This runs in Spark tasks or, for few leaves, in threads of the driver.


@dataclass(frozen=True)
class SoughtValues:
    """Values of a column that leaves are searched for. Picklable.

    Attributes:
        column: a text field of the content entry: `location` or `referenced_file`.
        values: the values to find, sorted and distinct.
        locations: resolves the locations in leaves.
    """

    column: str
    values: Sequence[str]
    locations: Locations

    @cached_property
    def spellings(self) -> list[str]:
        """The values in the spellings that leaves may have, sorted."""
        return sorted({*self.values, *map(self.locations.relativize, self.values)})

    def groups(self, manifest: OpenManifest) -> list[int]:
        """Return the row groups that may hold a value, by their bounds."""
        return [group for group in range(manifest.row_groups) if self._may_hold(manifest, group)]

    def _may_hold(self, manifest: OpenManifest, group: int) -> bool:
        bounds = manifest.bounds(group, self.column)
        if bounds is None:
            return True
        index = bisect_left(self.spellings, bounds[0])
        return index < len(self.spellings) and self.spellings[index] <= bounds[1]


@dataclass(frozen=True)
class LeafSearch:
    """A search for unmasked entries of leaves by the values of a column. Picklable.

    Attributes:
        column: a text field of the content entry: `location` or `referenced_file`.
        values: the values to find, sorted and distinct.
        projection: the columns to return, without metrics maps.
        types: the types of the table's V4 manifests.
        locations: resolves the locations in leaves.
        masks: small id of a leaf -> its deletion vector, a row of `DV_SCHEMA`.
        files: opens leaves, and Puffin files with their deletion vectors.
    """

    column: str
    values: Sequence[str]
    projection: EntryProjection
    types: TreeTypes
    locations: Locations
    masks: Mapping[int, Mapping[str, Any]]
    files: ExecutorReader | Files

    def __call__(self, units: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the entries found in leaves, rows of `PART_SCHEMA`, as batches of the projection's schema."""
        for unit in units:
            for row in unit.to_pylist():
                yield from self._in_leaf(row).to_batches()

    def _in_leaf(self, unit: Mapping[str, Any]) -> pa.Table:
        source = RangedFile(self.files, unit["location"], unit["file_size_in_bytes"])
        vectors = unit["file_format"] == VECTORS
        file = pa.PythonFile(source, "r")
        with open_manifest(file, unit["location"], coalesce=True, vectors=vectors) as manifest:
            rows, ordinals = self._matching(manifest, self._sought.groups(manifest))
        mask = self.masks.get(unit["manifest"])
        if len(ordinals) and mask is not None:
            unmasked = ~mask_flags(mask, self.files)[ordinals]
            rows, ordinals = rows.filter(pa.array(unmasked)), ordinals[unmasked]
        rows = table_with_locations(rows, self.locations, unit["location"])
        is_named = pc.is_in(rows.column(self.column), pa.array(self.values, pa.string()))
        rows, ordinals = rows.filter(is_named), ordinals[is_named.to_numpy()]
        if vectors:
            rows = _numbered(rows, part_of(unit))
        return entries_of_rows(rows, pa.array(ordinals, pa.int64()), part_of(unit), self.projection, self.types)

    @cached_property
    def _sought(self) -> SoughtValues:
        return SoughtValues(self.column, self.values, self.locations)

    def _matching(self, manifest: OpenManifest, groups: list[int]) -> tuple[pa.Table, np.ndarray[Any, Any]]:
        """Return the matching rows of `tree_schema` and their ordinals.

        Other columns are read only from row groups with a match.
        """
        values = pa.array(self._sought.spellings, pa.string())
        matches: dict[int, np.ndarray[Any, Any]] = {}
        for group in groups:
            column = whole(manifest.rows([group], {}, {self.column}).column(self.column))
            indices = np.flatnonzero(pc.is_in(column, values).to_numpy(zero_copy_only=False))
            if len(indices):
                matches[group] = indices
        stats, fields = self.types.stats_of(self.projection), stats_of_fields(self.types.sources)
        columns = {*self.projection.columns, *TreeTypes.ALWAYS_READ}
        tables, ordinals = [manifest.rows([], stats, columns, fields)], [np.empty(0, np.int64)]
        for group, indices in matches.items():
            rows = manifest.rows([group], stats, columns, fields).take(pa.array(indices))
            entries, numbers = entries_only(rows, pa.array(manifest.first_row(group) + indices))
            tables.append(entries)
            ordinals.append(numbers.to_numpy())
        return pa.concat_tables(tables), np.concatenate(ordinals)


class RangedFile(io.RawIOBase):
    """A file object for pyarrow that reads ranges of a stored file."""

    def __init__(self, files: ExecutorReader | Files, location: str, size: int) -> None:
        super().__init__()
        self._files, self._location, self._size, self._position = files, location, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def size(self) -> int:
        return self._size

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = start + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        remaining = max(0, self._size - self._position)
        count = remaining if size is None or size < 0 else min(size, remaining)
        data = self._files.read_range(self._location, self._position, count) if count else b""
        self._position += len(data)
        return data
