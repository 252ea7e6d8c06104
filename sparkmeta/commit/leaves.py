"""Write and read leaves of a commit, and keep a root small by moving its files and large vectors out of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.commit.next_root import FileKey, TreeChange, file_keys, file_versions, restamped
from sparkmeta.entries.live import is_live
from sparkmeta.entries.manifest_records import whole_manifests
from sparkmeta.entries.projection import CONTENT_STATS, MANIFEST, EntryProjection
from sparkmeta.entries.relation import at_most_one
from sparkmeta.expr import evaluate, sql
from sparkmeta.expr.arrays import sorted_indices, whole
from sparkmeta.manifests.decoder import EntryDecoder
from sparkmeta.manifests.v4.colocated import with_vectors
from sparkmeta.manifests.v4.convert import conversion_projection, converted
from sparkmeta.manifests.v4.layout import TreeTypes, tree_schema
from sparkmeta.manifests.v4.root import FILES, MANIFEST_DVS, Root, one_of, version
from sparkmeta.manifests.v4.spark import read_leaf_entries
from sparkmeta.manifests.v4.tree_manifests import leaf_manifests
from sparkmeta.manifests.v4.write import OWNER, LeafFormat, leaves_on_driver, write_owned_leaves
from sparkmeta.operations.table_operations import metadata_folder
from sparkmeta.session import local_frame, map_arrow, map_by_tasks, map_on_driver
from sparkmeta.snapshot.state import task_reader
from sparkmeta.spec.entry import ContentType, Status
from sparkmeta.spec.puffin import deletion_vector_blob, write_puffin
from sparkmeta.storage.files import executor_writer
from sparkmeta.storage.location import join

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.commit.options import TreeOptions
    from sparkmeta.snapshot.state import TableState


# -- Format and read the leaves that a commit writes ------------------------------------------------------------------
# No root references these leaves yet.


def few_entries(state: TableState, leaves: pa.Table, projection: EntryProjection) -> pa.Table:
    """Read every physical entry of a few leaves (rows of `tree_schema`), on the driver if it can open them."""
    if state.access.driver is None:
        return leaf_frame(state, leaves, projection).toArrow().cast(projection.schema)
    decoder = EntryDecoder(state.access.driver, state.types.tree_types, state.types.locations)
    return map_on_driver(leaf_parts(leaves), partial(decoder.decode_parts, projection), projection.schema)


def leaf_frame(state: TableState, leaves: pa.Table, projection: EntryProjection) -> DataFrame:
    """Return every physical entry of leaves as a lazy DataFrame. `manifest` is the leaf's index among the leaves."""
    units, tasks = leaf_parts(leaves), state.access.tasks
    by_spark = tasks is None or not len(units) or state.access.spark_opens(units.column("location")[0].as_py())
    if by_spark and state.layout.spark_reads:
        types = state.types
        return read_leaf_entries(
            state.spark, units, projection, types.tuple_sources, types.widened_decimals, types.locations
        )
    decoder = EntryDecoder(tasks or task_reader(state), state.types.tree_types, state.types.locations)
    decode = partial(decoder.decode_parts, projection)
    return map_by_tasks(state.spark, units, decode, projection.schema)


def leaf_parts(leaves: pa.Table) -> pa.Table:
    """Return leaves as rows of `PART_SCHEMA`, one per leaf. `manifest` is the leaf's index."""
    return whole_manifests(leaf_manifests(leaves, pa.array(range(len(leaves)), pa.int32())))


def leaf_format(state: TableState, name: str, target_bytes: int) -> LeafFormat:
    """Return the format of a table's leaves.

    Args:
        name: the prefix of the files' names.
    """
    folder, writer, types = metadata_folder(state.metadata), executor_writer(state.files), state.types
    sources, locations = partition_stats(state), types.locations
    return LeafFormat(
        folder,
        name,
        types.stats_types,
        sources,
        target_bytes,
        writer,
        locations=locations,
        layout=state.layout,
        types=types.tree_types if state.layout.colocates else None,
    )


def partition_stats(state: TableState) -> dict[int, frozenset[int]]:
    """Return the ids of the stats that hold partition values, by spec id."""
    sources = state.types.tuple_sources
    return {spec_id: frozenset(source for _, source in fields) for spec_id, fields in sources.items()}


def partition_columns(state: TableState) -> list[str]:
    """Return the columns of `tree_schema` that hold the partition values of entries, for all specs."""
    sources = dict.fromkeys(source for fields in state.types.tuple_sources.values() for _, source in fields)
    return [value_column(source) for source in sources]


def value_column(field_id: int) -> str:
    """Return the column of `tree_schema` with the lower bound of a field, which is the value of a partition."""
    return f"{CONTENT_STATS}.`{field_id}`.lower_bound"


def write_few_leaves(entries: pa.Table, keys: Sequence[str], form: LeafFormat) -> pa.Table:
    """Write entries as leaves on the driver, sorted by columns, and return the root's entries for the leaves."""
    order = sorted_indices([(evaluate.values(entries, sql.col(key)), True, True) for key in keys])
    return leaves_on_driver(entries.take(order).combine_chunks(), form)


# -- Write affiliated delete leaves (semantics 16.12) -----------------------------------------------------------------
# Many deletion vectors for one data leaf get a separate delete leaf, which only plans that open the data leaf read.
# For few deletion vectors, another file would cost more than it saves.


DELETE_ENTRY_BYTES = 100.0
"""The estimated size of a deletion vector's entry in a leaf. It is used until a leaf has been written."""

_DATA_PATH = "data_path"


def write_affiliated(placed: DataFrame, form: LeafFormat, least: int, entry_bytes: float) -> tuple[DataFrame, pa.Table]:
    """Write delete leaves for data leaves that have at least `least` deletion vectors.

    Args:
        placed: materialized entries of deletes with `owner`.
        least: the minimum number of deletion vectors that get a separate delete leaf.
        entry_bytes: the expected size of an entry in a leaf.

    Returns:
        The other entries, with null as `owner`, and the root's entries for the new leaves.
    """
    counts = placed.where(F.col(OWNER).isNotNull()).groupBy(OWNER).count().where(F.col("count") >= least)
    data_leaves = counts.select(F.col(OWNER).alias("chosen")).toArrow()
    if not len(data_leaves):
        return placed.withColumn(OWNER, F.lit(None).cast("string")), form.schema.empty_table()
    data_leaves_frame = F.broadcast(local_frame(placed.sparkSession, data_leaves))
    is_chosen = F.col(OWNER) == F.col("chosen")
    owned = placed.join(data_leaves_frame, is_chosen, "left_semi").repartition(F.col(OWNER))
    delete_leaves = write_owned_leaves(
        owned.sortWithinPartitions(OWNER, "referenced_file", "location"), form, entry_bytes
    )
    unaffiliated = placed.join(data_leaves_frame, is_chosen, "left_anti").withColumn(OWNER, F.lit(None).cast("string"))
    return unaffiliated, delete_leaves


def with_owners(entries: DataFrame, owners: DataFrame) -> DataFrame:
    """Return entries with `owner`, the data leaf of a deletion vector's file; null if the file is in several leaves.

    Args:
        entries: entries of deletes.
        owners: rows with `data_path` and `owner`. A file may occur several times.
    """
    is_position_delete = F.col("content_type") == int(ContentType.POSITION_DELETES)
    by_path = owners.groupBy(_DATA_PATH).agg(F.min(OWNER).alias(OWNER), F.max(OWNER).alias("last"))
    unique = by_path.where(F.col(OWNER) == F.col("last")).drop("last")
    return entries.join(unique, is_position_delete & (F.col("referenced_file") == F.col(_DATA_PATH)), "left").drop(
        _DATA_PATH
    )


def live_owners(state: TableState, manifests: pa.Table) -> DataFrame:
    """Return `data_path` and `owner` of the live data files in leaves, rows of `state.manifests`."""
    projection = EntryProjection.of(("location", "version_info"))
    return named_owners(state, state.live_entries(manifests, projection), _by_id(manifests))


def _by_id(manifests: pa.Table) -> Mapping[int, str]:
    return dict(zip(manifests.column(MANIFEST).to_pylist(), manifests.column("location").to_pylist(), strict=True))


def named_owners(state: TableState, entries: DataFrame, locations: Mapping[int, str]) -> DataFrame:
    """Return `data_path` and `owner` of entries, given the locations of their manifests by small id."""
    columns = {MANIFEST: (list(locations), pa.int32()), OWNER: (list(locations.values()), pa.string())}
    table = pa.table({name: pa.array(values, kind) for name, (values, kind) in columns.items()})
    names = F.broadcast(local_frame(state.spark, table))
    return entries.join(names, MANIFEST).select(F.col("location").alias(_DATA_PATH), OWNER)


# -- Deletes of other manifests ---------------------------------------------------------------------------------------


def converted_deletes(state: TableState, manifests: pa.Table) -> DataFrame:
    """Return the live deletes of delete manifests, rows of `state.manifests`, as rows of `tree_schema`.

    In a tree in the layout of the Iceberg project, they include the deletion vectors in entries of data files.
    """
    types = state.types.tree_types
    specs = manifests.column("partition_spec_id")
    spec_ids = sorted(types.spec_fields if specs.null_count else {*specs.to_pylist()})
    schema = tree_schema(types.stats)
    frames = []
    for spec_id in spec_ids:
        entries = state.live_entries(manifests, conversion_projection(types, spec_id))
        spec_entries = entries.where(F.col("partition_spec_id") == spec_id)
        frames.append(map_arrow(spec_entries, partial(_as_tree_rows, types, spec_id), schema))
    return at_most_one(frames)[0]


def _as_tree_rows(types: TreeTypes, spec_id: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for table in converted(batches, types, spec_id, "a delete manifest"):
        yield from table.to_batches()


# -- Keep a root small ------------------------------------------------------------------------------------------------
# Files move into leaves, and large manifest deletion vectors into a Puffin file.


@dataclass(frozen=True)
class Flush:
    """The files that a commit moves from the root into leaves.

    Attributes:
        moved: the files with their file sequence numbers, since a path may be added again with other rows.
        leaves: the root's entries for the leaves.
        with_vectors: whether data entries in the leaves contain their deletion vectors.
    """

    moved: Mapping[FileKey, int] = field(default_factory=dict)
    leaves: pa.Table | None = None
    with_vectors: bool = False

    def into(self, change: TreeChange) -> TreeChange:
        """Return the change with the flush added to it."""
        if not self.moved:
            return change
        tables = [table for table in (change.existing, self.leaves) if table is not None]
        return replace(change, moved=change.moved | self.moved.keys(), existing=pa.concat_tables(tables))

    def fits(self, base: Root | None, change: TreeChange) -> bool:
        """Return whether the flush, computed for another root, can be applied to this one."""
        if base is None or not change.removed.isdisjoint(self.moved):
            return False
        versions = file_versions(base)
        if self.with_vectors and not changed_vectors(base, change, self.moved).isdisjoint(self.moved):
            return False
        return all(versions.get(key) == sequence for key, sequence in self.moved.items())


def changed_vectors(base: Root, change: TreeChange, moved: Collection[FileKey] = ()) -> frozenset[FileKey]:
    """Return the root's own data files whose deletion vectors a change adds or removes, or whose vectors don't move.

    Args:
        base: the root.
        change: the change.
        moved: the files and vectors that move into leaves; if there are none, all may move.
    """
    live = base.table.filter(pc.and_(one_of(base.table, [ContentType.POSITION_DELETES]), is_live(base.table)))
    paths = dict(zip(file_keys(live), live.column("referenced_file").to_pylist(), strict=True))
    changed = {path for key, path in paths.items() if key in change.removed or (moved and key not in moved)}
    if change.added is not None:
        changed.update(change.added.column("referenced_file").drop_null().to_pylist())
    return frozenset(data_keys(changed))


def data_keys(paths: Iterable[str]) -> Iterator[FileKey]:
    """Yield the keys of data files."""
    return (FileKey(int(ContentType.DATA), path) for path in paths)


def flush_of(base: Root | None, change: TreeChange, state: TableState, options: TreeOptions, name: str) -> Flush:
    """Return the flush that the thresholds for data and delete files require.

    Only carried-over files are moved; the commit's new files stay in the root (semantics 16.6).
    """
    if base is None:
        return Flush()
    colocates = state.layout.colocates
    live = base.table.filter(pc.and_(one_of(base.table, FILES), is_live(base.table)))
    staying = change.removed | changed_vectors(base, change) if colocates else change.removed
    carried = live.filter(pa.array([key not in staying for key in file_keys(live)], pa.bool_()))
    vectors = carried.slice(0, 0)
    if colocates:
        is_vector = one_of(carried, [ContentType.POSITION_DELETES])
        carried, vectors = carried.filter(pc.invert(is_vector)), carried.filter(is_vector)
    data = one_of(carried, [ContentType.DATA])
    excess = [
        rows
        for rows, limit in (
            (carried.filter(data), options.flush_data_files),
            (carried.filter(pc.invert(data)), options.flush_delete_files),
        )
        if len(rows) > limit
    ]
    if not excess:
        return Flush()
    rows = pa.concat_tables(excess)
    vectors = vectors.filter(pc.is_in(vectors.column("referenced_file"), whole(rows.column("location"))))
    moved = pa.concat_tables([rows, vectors])
    versions = dict(zip(file_keys(moved), version(moved, "file_sequence_number").to_pylist(), strict=True))
    keys = ["content_type", "partition_spec_id", *partition_columns(state), "location"]
    entries = with_vectors(existing(rows), existing(vectors)) if colocates else existing(rows)
    form = leaf_format(state, name, options.leaf_target_bytes)
    return Flush(versions, write_few_leaves(entries, keys, form), colocates)


def existing(rows: pa.Table) -> pa.Table:
    """Return entries as EXISTING, with unchanged version numbers. Flushes and compactions write such entries."""
    return restamped(rows, status=Status.EXISTING)


def spill_manifest_dvs(
    table: pa.Table,
    state: TableState,
    options: TreeOptions,
    name: str,
    spilled: dict[tuple[str, bytes], Mapping[str, Any]],
) -> pa.Table:
    """Move the largest inline manifest DVs of a new root into a Puffin file, so that the others fit the size budget.

    Args:
        table: the new root.
        name: the prefix of the file's name.
        spilled: (leaf, bitmap) -> columns of the entry of a moved DV, from earlier attempts. Newly moved DVs are added.
    """
    manifest_dvs = pc.and_(one_of(table, MANIFEST_DVS), is_live(table))
    blobs = pc.struct_field(table.column("deletion_vector"), "inline_content")
    sizes = pc.if_else(manifest_dvs, pc.fill_null(pc.binary_length(blobs), 0), 0).to_pylist()
    large_rows = _too_large(sizes, options)
    if not large_rows:
        return table
    targets = table.column("referenced_file")
    keys = {row: (targets[row].as_py(), blobs[row].as_py()) for row in large_rows}
    new_rows = [row for row, key in keys.items() if key not in spilled]
    if new_rows:
        counts = [table.column("record_count")[row].as_py() for row in new_rows]
        spilled |= _write_puffin(
            state, name, [(*keys[row], count) for row, count in zip(new_rows, counts, strict=True)]
        )
    for column in ("location", "file_size_in_bytes", "deletion_vector"):
        values = table.column(column).to_pylist()
        for row, key in keys.items():
            values[row] = spilled[key][column]
        column_field = table.schema.field(column)
        table = table.set_column(table.column_names.index(column), column_field, pa.array(values, column_field.type))
    return table


def _write_puffin(
    state: TableState, name: str, dvs: list[tuple[str, bytes, int]]
) -> dict[tuple[str, bytes], Mapping[str, Any]]:
    """Write DVs, (leaf, bitmap, cardinality), to one Puffin file and return the changed columns of their entries."""
    location = join(metadata_folder(state.metadata), f"{name}.puffin")
    file = write_puffin([deletion_vector_blob(blob, target, count) for target, blob, count in dvs])
    state.files.write_new(location, file.data)
    return {
        (target, blob): {
            "location": location,
            "file_size_in_bytes": len(file.data),
            "deletion_vector": {"offset": stored.offset, "size_in_bytes": stored.length, "inline_content": None},
        }
        for (target, blob, _), stored in zip(dvs, file.blobs, strict=True)
    }


def _too_large(sizes: list[int], options: TreeOptions) -> list[int]:
    """Return the rows of DVs to move: all above the size limit, then the largest until the rest fits the budget."""
    order = sorted((row for row, size in enumerate(sizes) if size), key=lambda row: -sizes[row])
    total, large_rows = sum(sizes), []
    for row in order:
        if sizes[row] <= options.inline_vector_bytes and total <= options.inline_vectors_bytes:
            break
        large_rows.append(row)
        total -= sizes[row]
    return large_rows
