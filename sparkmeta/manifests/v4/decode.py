"""V4 manifests decoded from their bytes, without Spark's reader: for tasks that learn only then which files they are,
and for the driver, where they are few.

Roots count as manifests of the files that stand in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.columns.bounds import bound_arrow_type
from sparkmeta.errors import CorruptFileError
from sparkmeta.manifests.arrays import kept_rows, narrowed, whole
from sparkmeta.manifests.avro.read import decode_contents, spark_schema, with_content
from sparkmeta.manifests.deletion_vectors import inlined, unmasked
from sparkmeta.manifests.inherit import ManifestContext, RowIdCounter, with_inherited_version
from sparkmeta.manifests.metrics_maps import with_metrics_maps
from sparkmeta.manifests.parts import ManifestPart, leaf_units, part_of
from sparkmeta.manifests.projection import CONTENT_STATS, MANIFEST, ORDINAL, PARTITION, EntryProjection
from sparkmeta.manifests.v4.layout import CONTENT_KEY, ROOT, read_manifest
from sparkmeta.manifests.v4.root import FILES, Root, one_of, read_root, version
from sparkmeta.manifests.v4.spark import TupleSources, stats_of_fields
from sparkmeta.manifests.v4.tree_manifests import IN_ROOT, OWN_ENTRIES, Tree, tree_manifest_files
from sparkmeta.spec.entry import METRICS_MAP_IDS, ContentType

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from sparkmeta.storage.files import ExecutorReader, Files

_BATCH_ROWS = 8_192


@dataclass(frozen=True)
class TreeContext:
    """What a table's metadata says of its V4 manifests; travels to executors.

    stats: ids that have stats -> Iceberg types. columns: those of them that are columns of a schema. spec_fields: spec
    id -> its fields' (partition field id, type). sources: spec id -> (partition field id, id of its stats).
    """

    stats: Mapping[int, str]
    columns: frozenset[int]
    spec_fields: Mapping[int, Sequence[tuple[int, str]]]
    sources: TupleSources

    def root(self, data: bytes, location: str, snapshot_id: int, sequence_number: int) -> Root:
        """A snapshot's root; raises CorruptFileError."""
        fields = stats_of_fields(self.sources)
        return read_root(data, self.stats, self.spec_fields, location, (snapshot_id, sequence_number), fields)

    ALWAYS_READ: ClassVar = (
        "content_type",
        "version_info",
        "location",
        "file_format",
        "partition_spec_id",
        "record_count",
    )
    """Fields of entries that are read whatever is asked for."""

    def stats_of(self, projection: EntryProjection) -> dict[int, str]:
        """The stats to read for a projection: those that it names, and those of its partition values."""
        wanted, partition = set(dict(projection.stats)), dict(projection.partition)
        for fields in self.sources.values():
            wanted.update(source for field_id, source in fields if field_id in partition)
        return {one: name for one, name in self.stats.items() if one in wanted}

    def listed(self, root: Root) -> pa.RecordBatch:
        """A root as rows of a manifest list: its leaves, and itself for the files that stand in it."""
        table = tree_manifest_files(root, self.spec_fields, self.sources, own=True)
        return table.combine_chunks().to_batches()[0] if len(table) else pa.RecordBatch.from_pylist([], table.schema)


def decode_tree_manifest(
    data: bytes, part: ManifestPart, projection: EntryProjection, context: TreeContext
) -> Iterator[pa.RecordBatch]:
    """The entries of a leaf, or the files that stand in a root, as batches of `projection.schema`; inheritance applied.

    Raises:
        CorruptFileError: no V4 manifest, or an entry without the stats that its partition value is derived from.
    """
    mapped = context.columns if frozenset(METRICS_MAP_IDS).intersection(projection.columns) else frozenset()
    stats = dict(projection.stats) | {one: context.stats[one] for one in mapped}
    plain = EntryProjection(
        tuple(name for name in projection.columns if name not in METRICS_MAP_IDS),
        projection.partition,
        tuple(sorted(stats.items())),
    )
    batches = tree_entries(data, part, plain, context).to_batches(max_chunksize=_BATCH_ROWS)
    yield from with_metrics_maps(projection, mapped, batches) if mapped else batches


def tree_entries(data: bytes, part: ManifestPart, projection: EntryProjection, context: TreeContext) -> pa.Table:
    """As `decode_tree_manifest`, in one chunk, of a projection without metrics maps."""
    read, columns = context.stats_of(projection), {*projection.columns, *context.ALWAYS_READ}
    table, properties = read_manifest(data, read, part.location, columns, stats_of_fields(context.sources))
    ordinals = pa.array(np.arange(len(table)), pa.int64())
    if properties.get(CONTENT_KEY) == ROOT:
        files = one_of(table, FILES)
        table, ordinals = table.filter(files), ordinals.filter(files.combine_chunks())
    return entries_of_rows(table, ordinals, part, projection, context)


def read_foreign_leaves(
    spark: SparkSession,
    leaves: pa.Table,
    projection: EntryProjection,
    reader: ExecutorReader | None,
    context: TreeContext,
) -> DataFrame:
    """The entries of leaves (rows of `leaf_manifests`) whose layout may be read by ids alone, as a lazy DataFrame.

    reader: opens them on executors; None where only Spark's sources can.
    """
    from sparkmeta.session import map_units

    units, decode = leaf_units(leaves), partial(decode_tree_manifest, context=context)
    if reader is None:
        contents = with_content(spark, units)
        return contents.mapInArrow(partial(decode_contents, decode, projection), spark_schema(projection))
    return map_units(spark, units, partial(_decode_leaves, reader, decode, projection), projection.schema, here=False)


def _decode_leaves(
    reader: ExecutorReader,
    decode: Callable[[bytes, ManifestPart, EntryProjection], Iterator[pa.RecordBatch]],
    projection: EntryProjection,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for row in batch.to_pylist():
            yield from decode(reader.read(row["location"]), part_of(row), projection)


def entries_of_rows(
    rows: pa.Table, ordinals: pa.Array, part: ManifestPart, projection: EntryProjection, context: TreeContext
) -> pa.Table:
    """Rows of `tree_schema`, with their ordinals in a leaf, as `tree_entries` gives them: inheritance applied.

    Row ids are right only where the rows are all that the leaf has.
    """
    columns = _columns(rows, part, context, projection)
    columns |= {MANIFEST: pa.repeat(pa.scalar(part.manifest, pa.int32()), len(rows)), ORDINAL: ordinals}
    arrays = [narrowed(columns[one.name], one.type) for one in projection.schema]
    return pa.Table.from_arrays(arrays, schema=projection.schema)


def tree_entries_here(
    tree: Tree, manifests: pa.Table, projection: EntryProjection, context: TreeContext, files: Files
) -> pa.Table | None:
    """The entries of manifests (rows of `tree_manifests`) that no deletion vector masks, by threads of this process.

    None where some manifest has the layout of v1-v3.
    """
    from sparkmeta.session import map_here

    is_own = pc.equal(manifests.column("file_format"), IN_ROOT)
    leaves = manifests.filter(pc.invert(is_own))
    if pc.all(pc.or_(tree.has_tree_layout(leaves), tree.is_foreign(leaves))).as_py() is False:
        return None
    ids = leaves.column(MANIFEST).combine_chunks()
    vectors = tree.vectors.filter(pc.is_in(tree.vectors.column(MANIFEST), ids))
    masks = {row[MANIFEST]: row for row in inlined(vectors.to_pylist(), files)}
    read = map_here(leaf_units(leaves), partial(_unmasked, projection, context, masks, files), projection.schema)
    tables = [read]
    for kind in manifests.filter(is_own).column("content_type").to_pylist():
        rows = tree.root.of(OWN_ENTRIES[ContentType(kind)], live=False)
        part = root_part(tree, ContentType(kind))
        tables.append(entries_of_rows(rows, rows.column("ordinal"), part, projection, context))
    return pa.concat_tables(tables)


def root_part(tree: Tree, content: ContentType) -> ManifestPart:
    """The root's own files of one content as a manifest; they leave nothing to be inherited."""
    return ManifestPart(tree.own_id(content), tree.root.location, 0, ManifestContext(None, None, None))


def _unmasked(
    projection: EntryProjection,
    context: TreeContext,
    masks: Mapping[int, dict[str, Any]],
    files: Files,
    units: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    for unit in units:
        for row in unit.to_pylist():
            entries = tree_entries(files.read(row["location"]), part_of(row), projection, context)
            mask = masks.get(row[MANIFEST])
            unmasked_rows = entries if mask is None else kept_rows(entries, unmasked(len(entries), mask))
            yield from unmasked_rows.to_batches()


def leaf_entries(data: bytes, part: ManifestPart, stats: Mapping[int, str]) -> pa.Table:
    """Every physical entry of a leaf as rows of `tree_schema`, inheritance applied.

    Raises CorruptFileError: no V4 manifest, or an entry without a status.
    """
    table, _ = read_manifest(data, stats, part.location)
    info = _version_info(table, part)
    ids = _row_ids(whole(table.column("first_row_id")), info, whole(table.column("record_count")), part)
    for name, values in (("version_info", info), ("first_row_id", ids)):
        table = table.set_column(table.column_names.index(name), table.schema.field(name), values)
    return table


def _columns(
    table: pa.Table, part: ManifestPart, context: TreeContext, projection: EntryProjection
) -> dict[str, pa.Array]:
    columns = {name: whole(table.column(name)) for name in table.column_names}
    columns["version_info"] = info = _version_info(table, part)
    columns["file_format"] = pc.utf8_upper(columns["file_format"])
    if "first_row_id" in projection.columns:
        columns["first_row_id"] = _row_ids(columns["first_row_id"], info, columns["record_count"], part)
    if projection.partition:
        columns[PARTITION] = _tuple(columns, projection, context, part.location)
    return columns


def _version_info(table: pa.Table, part: ManifestPart) -> pa.StructArray:
    if version(table, "status").null_count:
        raise CorruptFileError(part.location, "version_info.status", None, "the field is required")
    return with_inherited_version(whole(table.column("version_info")), part.context)


def _row_ids(own: pa.Array, info: pa.StructArray, counts: pa.Array, part: ManifestPart) -> pa.Array:
    """As the manifest's counter gives them; one without leaves those that entries have of their own."""
    if part.context.first_row_id is None:
        return own
    return RowIdCounter(part.context.first_row_id).assign(own, info.field("status"), counts)


def _tuple(
    columns: Mapping[str, pa.Array], projection: EntryProjection, context: TreeContext, location: str
) -> pa.StructArray:
    specs, stats = columns["partition_spec_id"], columns[CONTENT_STATS]
    children = []
    for field_id, type_name in projection.partition:
        kind = bound_arrow_type(type_name)
        values = _values_of(field_id, specs, stats, context.sources, location)
        children.append(pa.nulls(len(specs), kind) if values is None else values.cast(kind))
    return pa.StructArray.from_arrays(children, fields=list(projection.partition_type))


def partition_tuples(
    rows: pa.Table, field_ids: Sequence[int], sources: TupleSources, location: str
) -> dict[int, list[Any]]:
    """The partition values of rows of `tree_schema`, by partition field id; None where a spec has no such field.

    Raises CorruptFileError, naming `location`, for a row without the stats that a value is derived from.
    """
    specs, stats = whole(rows.column("partition_spec_id")), whole(rows.column(CONTENT_STATS))
    values = {one: _values_of(one, specs, stats, sources, location) for one in field_ids}
    return {one: [None] * len(rows) if found is None else found.to_pylist() for one, found in values.items()}


def _values_of(
    field_id: int, specs: pa.Array, stats: pa.StructArray, sources: TupleSources, location: str
) -> pa.Array | None:
    """One partition field's values, by the stats that each row's spec names for it; None where no spec names any."""
    by_id = {int(one.name): values for one, values in zip(stats.type, stats.flatten(), strict=True)}
    found: pa.Array | None = None
    for spec_id, fields in sources.items():
        source = dict(fields).get(field_id)
        if source is None:
            continue
        of_spec = pc.equal(specs, spec_id)
        values = _derived(by_id[source], of_spec, source, location)
        nothing = pa.nulls(len(specs), values.type)
        found = pc.if_else(of_spec, values, nothing if found is None else found.cast(values.type))
    return found


def _derived(stats: pa.StructArray, of_spec: pa.Array, source: int, location: str) -> pa.Array:
    if pc.any(pc.and_(of_spec, stats.is_null())).as_py():
        problem = "the field is required: a partition value is derived from it"
        raise CorruptFileError(location, f"{CONTENT_STATS}.{source}", None, problem)
    lower = pc.struct_field(stats, "lower_bound")
    if not pa.types.is_floating(lower.type):
        return lower
    nan = pc.and_(lower.is_null(), pc.fill_null(pc.greater(pc.struct_field(stats, "nan_value_count"), 0), False))
    return pc.if_else(nan, pa.scalar(float("nan"), lower.type), lower)
