"""Decode V4 manifests from their bytes. Without Spark: tasks import this.

A root is decoded as a manifest of the files that it lists itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.columns.bounds import bound_arrow_type
from sparkmeta.entries.arrays import narrowed, whole
from sparkmeta.entries.inherit import ManifestContext, RowIdCounter, with_inherited_version
from sparkmeta.entries.metrics_maps import has_metrics_maps, stats_for_maps, with_metrics_maps
from sparkmeta.entries.parts import ManifestPart
from sparkmeta.entries.projection import CONTENT_STATS, MANIFEST, ORDINAL, PARTITION, EntryProjection
from sparkmeta.errors import CorruptFileError
from sparkmeta.manifests.v4.layout import CONTENT_KEY, ROOT, read_manifest
from sparkmeta.manifests.v4.root import FILES, one_of, version
from sparkmeta.manifests.v4.types import TreeTypes, TupleSources, stats_of_fields

_BATCH_ROWS = 8_192


def decode_tree_manifest(
    data: bytes | memoryview, part: ManifestPart, projection: EntryProjection, types: TreeTypes
) -> Iterator[pa.RecordBatch]:
    """Yield the entries of a leaf, or the files of a root, as batches of `projection.schema` with inheritance applied.

    Raises:
        CorruptFileError: not a V4 manifest, or an entry lacks stats that hold its partition values.
    """
    if not has_metrics_maps(projection):
        yield from tree_entries(data, part, projection, types).to_batches()
        return
    columns = {field_id: types.stats[field_id] for field_id in types.columns}
    entries = tree_entries(data, part, stats_for_maps(projection, columns), types)
    yield from with_metrics_maps(projection, types.columns, entries.to_batches(max_chunksize=_BATCH_ROWS))


def tree_entries(
    data: bytes | memoryview, part: ManifestPart, projection: EntryProjection, types: TreeTypes
) -> pa.Table:
    """Decode a tree manifest into one chunk, for a projection without metrics maps; see `decode_tree_manifest`."""
    read, columns = types.stats_of(projection), {*projection.columns, *types.ALWAYS_READ}
    sources = stats_of_fields(types.sources)
    table, properties = read_manifest(data, read, part.location, columns, sources, as_written=projection.as_written)
    ordinals = pa.array(np.arange(len(table)), pa.int64())
    if properties.get(CONTENT_KEY) == ROOT:
        files = one_of(table, FILES)
        table, ordinals = table.filter(files), ordinals.filter(files.combine_chunks())
    return entries_of_rows(table, ordinals, part, projection, types)


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
    """Return inherited first row ids; those of the entries if the manifest has none."""
    if part.context.first_row_id is None:
        return ids
    return RowIdCounter(part.context.first_row_id).assign(ids, info.field("status"), counts)


def _tuple(
    columns: Mapping[str, pa.Array], projection: EntryProjection, types: TreeTypes, location: str
) -> pa.StructArray:
    specs, stats = columns["partition_spec_id"], columns[CONTENT_STATS]
    children = []
    for field_id, type_name in projection.partition:
        kind = bound_arrow_type(type_name)
        values = _values_of(field_id, specs, stats, types.sources, location)
        children.append(pa.nulls(len(specs), kind) if values is None else values.cast(kind))
    return pa.StructArray.from_arrays(children, fields=list(projection.partition_type))


def _values_of(
    field_id: int, specs: pa.Array, stats: pa.StructArray, sources: TupleSources, location: str
) -> pa.Array | None:
    """Return the values of a partition field from the stats that hold them; None if no spec has the field."""
    by_id = {int(child.name): values for child, values in zip(stats.type, stats.flatten(), strict=True)}
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
    lower = pc.struct_field(stats, "lower_bound")
    if not pa.types.is_floating(lower.type):
        return lower
    nan = pc.and_(lower.is_null(), pc.fill_null(pc.greater(pc.struct_field(stats, "nan_value_count"), 0), False))
    return pc.if_else(nan, pa.scalar(float("nan"), lower.type), lower)
