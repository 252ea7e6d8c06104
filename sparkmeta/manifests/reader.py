"""Find the manifests of a snapshot, and read their entries, of any format."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.avro.manifest_list import decode_manifest_list, inline_manifest_list, refuse_encrypted_parquet
from sparkmeta.entries.manifest_records import (
    has_metrics_maps,
    manifest_parts,
    matching_rows,
    stats_for_maps,
    whole_manifests,
    with_metrics_maps,
)
from sparkmeta.entries.projection import MANIFEST
from sparkmeta.errors import UnsupportedError
from sparkmeta.expr.arrays import kept_rows
from sparkmeta.manifests.decoder import CACHED_LEAF, MASK, EntryDecoder, decode_contents, read_parquet_entries
from sparkmeta.manifests.deletion_vectors import few_masks, inlined, without_masked
from sparkmeta.manifests.entry_memory import EntryMemory
from sparkmeta.manifests.placement import MOST_WIDE_ENTRIES, ManifestLoad, Placement
from sparkmeta.manifests.v4.decode import root_entries
from sparkmeta.manifests.v4.tree_manifests import FILE_TYPES, IN_ROOT
from sparkmeta.session import local_frame, map_arrow, map_by_tasks, map_on_driver, selectable_frame
from sparkmeta.spec.entry import ContentType
from sparkmeta.spec.metadata_model import locations_of
from sparkmeta.storage.encryption import decrypted
from sparkmeta.storage.files import SparkFiles
from sparkmeta.storage.keys import manifest_list_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from sparkmeta.entries.projection import EntryProjection
    from sparkmeta.entries.relation import Relation
    from sparkmeta.manifests.cache import ManifestCache
    from sparkmeta.manifests.types import TableTypes
    from sparkmeta.manifests.v4.layout import TreeTypes
    from sparkmeta.manifests.v4.tree_manifests import Tree
    from sparkmeta.session import MapFunction, SessionSource
    from sparkmeta.settings import Settings
    from sparkmeta.spec.metadata import Snapshot, TableMetadata
    from sparkmeta.storage.files import FileAccess, Files


# -- Find a snapshot's manifests --------------------------------------------------------------------------------------


def read_manifest_list(files: Files, metadata: TableMetadata, snapshot: Snapshot | None) -> pa.Table:
    """Read a snapshot's manifest list as `MANIFEST_FILE_SCHEMA`; no rows for a table without snapshots.

    Raises:
        NotFoundError: the list is missing.
        CorruptFileError: not a manifest list.
        EncryptionError: the manifest list is encrypted, and its key is missing, refused or wrong.
        UnsupportedError: its manifests are encrypted Parquet files.
    """
    if snapshot is None:
        return pa.Table.from_batches([inline_manifest_list([], [], 0)])
    location = snapshot.manifest_list
    if location is None:
        paths = snapshot.inline_manifests or []
        batch = inline_manifest_list(paths, [files.length(path) for path in paths], snapshot.snapshot_id)
    else:
        content = decrypted(files.read(location), location, manifest_list_key(files, metadata, snapshot))
        batch = decode_manifest_list(content, location, locations_of(metadata))
    table = pa.Table.from_batches([batch])
    refuse_encrypted_parquet(table, location or f"snapshot {snapshot.snapshot_id}")
    return table


def root_location(metadata: TableMetadata, snapshot: Snapshot | None) -> str | None:
    """Return the location of a snapshot's root manifest; None if it has a manifest list."""
    if snapshot is None:
        return None
    if not snapshot.has_root:
        return None
    if snapshot.key_id is not None:
        subject = f"{metadata.location}: snapshot {snapshot.snapshot_id}"
        raise UnsupportedError(f"{subject}: its metadata tree is encrypted (key-id {snapshot.key_id})")
    return snapshot.manifests_location


# -- Read entries -----------------------------------------------------------------------------------------------------
# Each format can be decoded from bytes to Arrow (`EntryDecoder`), and some can be read by Spark. `Placement` decides
# which of the two is used, and where.
#
#     format                      from bytes, on the driver or in tasks  by Spark's sources
#     Avro                        avro.decode                            as bytes (binaryFile), decoded by tasks
#     Parquet of v1 to v3 layout  decoder.decode_parquet_manifest        decoder.read_parquet_entries
#     V4 leaf                     v4.decode                              v4.spark
#     files of a V4 root          v4.decode, on the driver               v4.spark
#     leaf of the cache           cache_leaves                           cache
#
# Parquet that Spark misreads, and V4 leaves of another layout, are read as bytes too.


@dataclass(frozen=True)
class ManifestReader:
    """Reads the entries of manifests, rows of `TableState.manifests`.

    Attributes:
        sessions: the source of the session, for when a session is needed.
        settings: the settings.
        access: opens manifests on the driver and in tasks.
        types: the table's types.
        tree: the snapshot's metadata tree; None if it has a manifest list.
        trees: the types of V4 manifests; None if the table has none.
        encrypted: whether manifests may be encrypted.
    """

    sessions: SessionSource
    settings: Settings
    access: FileAccess
    types: TableTypes
    tree: Tree | None
    trees: TreeTypes | None
    encrypted: bool = False

    @property
    def spark(self) -> SparkSession:
        """The session; see `SessionSource.get`."""
        return self.sessions.get()

    # -- where ------------------------------------------------------------------------------------------------------

    def placement(self, manifests: pa.Table) -> Placement | None:
        """Return where `entries` reads manifests by default: few manifests of a manifest list on the driver.

        None means that each manifest is read lazily by its format: Parquet by Spark if it can open the files, other
        formats by tasks.
        """
        is_list = self.tree is None and self.manifest_cache is None
        if is_list and self.fits_driver(manifests, MOST_WIDE_ENTRIES):
            return Placement.DRIVER
        if self.access.tasks is None:
            return Placement.SPARK
        is_avro = manifests.column("file_format").unique().to_pylist() == ["AVRO"]
        return Placement.TASKS if is_avro and self.tree is None else None

    def table_placement(
        self, manifests: pa.Table, projection: EntryProjection, most_entries: int | None = None
    ) -> Placement | None:
        """Return where `relation` reads manifests by default: few of them on the driver, whatever their format."""
        if self.driver_reads(manifests, projection, most_entries):
            return Placement.DRIVER
        return self.placement(manifests)

    def driver_reads(self, manifests: pa.Table, projection: EntryProjection, most_entries: int | None = None) -> bool:
        """Return whether the driver reads manifests into a table: they fit, have few masks, and no cache lacks one."""
        if not self.fits_driver(manifests, most_entries):
            return False
        if self.tree is not None and not few_masks(self._dvs_of(manifests), self.access):
            return False
        may_lack_leaves = self.tree is None and self.manifest_cache is not None
        return not may_lack_leaves or self.driver_parts(manifests, projection) is not None

    def fits_driver(self, manifests: pa.Table, most_entries: int | None = None) -> bool:
        """Return whether the driver reads manifests faster than Python tasks would; see `ManifestLoad`.

        False if it can't decode them (`driver_decodes`).
        """
        if not self.driver_decodes(manifests):
            return False
        if self.access.alone or not len(manifests):
            return True
        return ManifestLoad.of(manifests, most_entries).fits_driver(self.settings.driver_manifest_bytes)

    def driver_decodes(self, manifests: pa.Table) -> bool:
        """Return whether the driver may open manifests and can decode all of them, so that none needs Spark."""
        if self.access.driver is None:
            return False
        if self.access.alone or not len(manifests):
            return True
        if self.tree is None:
            return bool(manifests.column("file_format").unique().to_pylist() == ["AVRO"])
        in_root = pc.equal(manifests.column("file_format"), IN_ROOT)
        known = pc.or_(in_root, pc.or_(self.tree.has_tree_layout(manifests), self.tree.is_foreign(manifests)))
        return pc.all(known).as_py() is not False

    # -- entries ----------------------------------------------------------------------------------------------------

    def relation(
        self, manifests: pa.Table, projection: EntryProjection, placement: Placement | None = None
    ) -> Relation:
        """Return the rows of `entries`, as a table if the driver reads the manifests.

        By default, `table_placement` decides where they are read. If the manifest cache has lost a leaf since then,
        tasks read the manifests.
        """
        placement = placement or self.table_placement(manifests, projection)
        if placement is not Placement.DRIVER:
            return self.entries(manifests, projection, placement)
        parts = self.driver_parts(manifests, projection)
        return self.entries(manifests, projection) if parts is None else self._table(manifests, parts, projection)

    def entries(
        self, manifests: pa.Table, projection: EntryProjection, placement: Placement | None = None
    ) -> DataFrame:
        """Return the entries of manifests as a DataFrame of `projection.schema`, with inheritance applied.

        These are all physical rows that no deletion vector masks, DELETED ones included. The DataFrame is lazy, except
        that the driver reads everything at once for `Placement.DRIVER`, and small deletion vectors otherwise.

        Args:
            manifests: the manifests.
            projection: the columns to read.
            placement: where to read; see `placement` for the default.
        """
        placement = placement or self.placement(manifests)
        if self.tree is not None and has_metrics_maps(projection):
            stats = stats_for_maps(projection, self.types.column_types)
            fill = partial(with_metrics_maps, projection, frozenset(self.types.column_types))
            return map_arrow(self.entries(manifests, stats, placement), fill, projection.schema)
        if placement is Placement.DRIVER:
            return selectable_frame(self.spark, self.table(manifests, projection))
        if self.tree is None:
            return self._union(self._listed_frames(manifests, projection, placement), projection)
        frames = [*self._leaf_frames(manifests, projection, placement), *self._root_frames(manifests, projection)]
        return self._union(frames, projection)

    def table(self, manifests: pa.Table, projection: EntryProjection) -> pa.Table:
        """Return the entries of manifests that the driver decodes as Arrow, read by its threads."""
        parts = self.driver_parts(manifests, projection)
        assert parts is not None
        return self._table(manifests, parts, projection)

    def driver_table(
        self, manifests: pa.Table, projection: EntryProjection, most_entries: int | None = None
    ) -> pa.Table | None:
        """Return the rows of `table`, or None if tasks read the manifests faster (`fits_driver`, `driver_parts`)."""
        if not self.fits_driver(manifests, most_entries):
            return None
        parts = self.driver_parts(manifests, projection)
        return None if parts is None else self._table(manifests, parts, projection)

    def _table(self, manifests: pa.Table, parts: pa.Table, projection: EntryProjection) -> pa.Table:
        masks: dict[int, dict[str, Any]] = {}
        if self.tree is not None:
            masks = {row[MANIFEST]: row for row in inlined(self._dvs_of(manifests).to_pylist(), self.access.files)}
        decode = partial(self.decoder(Placement.DRIVER).decode_unmasked, projection, masks)
        decoded = map_on_driver(parts, decode, projection.schema)
        if self.tree is None:
            return matching_rows(decoded, projection)
        return pa.concat_tables([decoded, self._root_table(manifests, projection)])

    def _root_table(self, manifests: pa.Table, projection: EntryProjection) -> pa.Table:
        """Return the root's own files if they are among manifests, DELETED ones included."""
        in_root = manifests.filter(pc.equal(manifests.column("file_format"), IN_ROOT))

        def read(unfiltered: EntryProjection) -> pa.Table:
            return pa.Table.from_batches(self.root_batches(in_root, unfiltered), unfiltered.schema)

        if projection.entry_filter is None:
            return read(projection)
        return self._memory.of((IN_ROOT, *in_root.column(MANIFEST).to_pylist()), projection, read)

    @cached_property
    def _memory(self) -> EntryMemory:
        return EntryMemory(self.settings.driver_manifest_bytes)

    def _root_entries(self, manifest: int, rows: pa.Table, projection: EntryProjection) -> pa.Table:
        assert self.tree is not None
        assert self.trees is not None
        return root_entries(rows, manifest, self.tree.root.location, projection, self.trees)

    def map_entries(
        self, manifests: pa.Table, projection: EntryProjection, function: MapFunction, schema: pa.Schema
    ) -> DataFrame:
        """Apply a function to the entries of manifests in the tasks that decode them, and return its rows, lazily.

        No entry becomes a row of Spark, so that a function that aggregates them is faster than a query.

        Args:
            manifests: the manifests.
            projection: the columns to read, without metrics maps.
            function: takes batches of the rows of `entries`, some for each task, and yields batches of `schema`.
            schema: the schema of the result.
        """
        if self.access.tasks is None:
            return map_arrow(self.entries(manifests, projection), function, schema)
        frames = []
        parts = self.task_parts(manifests, projection)
        if len(parts):
            apply = partial(_apply, partial(self.decoder(Placement.TASKS).decode_parts, projection), function)
            frames.append(map_by_tasks(self.spark, parts, apply, schema))
        if in_root := self.root_batches(manifests, projection):
            frames.append(local_frame(self.spark, pa.Table.from_batches(function(in_root), schema)))
        if not frames:
            return local_frame(self.spark, schema.empty_table())
        return reduce(lambda left, right: left.unionByName(right), frames)

    def map_physical(
        self, leaves: pa.Table, projection: EntryProjection, function: MapFunction, schema: pa.Schema
    ) -> list[DataFrame]:
        """Apply a function to every entry of a tree's leaves, as `physical_frames` returns them; see `map_entries`."""
        if self.access.tasks is None:
            return [map_arrow(frame, function, schema) for frame in self.physical_frames(leaves, projection)]
        apply = partial(_apply, partial(self.decoder(Placement.TASKS).decode_parts, projection), function)
        return [map_by_tasks(self.spark, self.parts(leaves, projection), apply, schema)] if len(leaves) else []

    def task_parts(self, manifests: pa.Table, projection: EntryProjection) -> pa.Table:
        """Return the parts of manifests for tasks, with `MASK` if they are a tree's."""
        parts = self.parts(manifests, projection, split=True)
        if self.tree is None:
            return parts
        dvs = self._dvs_of(manifests)
        dv_indices = pc.index_in(parts.column(MANIFEST), dvs.column(MANIFEST).combine_chunks())
        return parts.append_column(MASK, dvs.to_struct_array().combine_chunks().take(dv_indices.combine_chunks()))

    def root_batches(self, manifests: pa.Table, projection: EntryProjection) -> list[pa.RecordBatch]:
        """Return the root's own files if they are among manifests, DELETED ones included."""
        with_stats = stats_for_maps(projection, self.types.column_types) if has_metrics_maps(projection) else projection
        tables = [
            self._root_entries(manifest, rows, with_stats) for manifest, rows in self._root_files(manifests, with_stats)
        ]
        batches = [batch for table in tables for batch in table.to_batches()]
        if with_stats is projection:
            return batches
        return [*with_metrics_maps(projection, frozenset(self.types.column_types), batches)]

    def physical_frames(
        self, manifests: pa.Table, projection: EntryProjection, placement: Placement | None = None
    ) -> list[DataFrame]:
        """Return every entry of a tree's leaves, masked and DELETED ones included, in a DataFrame per layout.

        The projection has no metrics maps; see `stats_for_maps` and `with_metrics_maps`.
        """
        assert self.tree is not None
        is_tree_leaf, is_foreign = self.tree.has_tree_layout(manifests), self.tree.is_foreign(manifests)
        by_spark = self._spark_opens(manifests.filter(is_tree_leaf), placement)
        if not by_spark or not self.types.spark_reads_stats(projection):
            is_tree_leaf, is_foreign = pa.repeat(False, len(manifests)), pc.or_(is_tree_leaf, is_foreign)
        leaves, decoded = manifests.filter(is_tree_leaf), manifests.filter(is_foreign)
        listed = manifests.filter(pc.invert(pc.or_(is_tree_leaf, is_foreign)))
        frames = []
        if len(leaves):
            from sparkmeta.manifests.v4.spark import read_leaf_entries

            units, widened = whole_manifests(leaves), self.types.widened_decimals
            locations = self.types.locations
            frames.append(read_leaf_entries(self.spark, units, projection, self.tree.sources, widened, locations))
        if len(decoded):
            frames.append(self._decoded(self.parts(decoded, projection), projection, placement))
        if len(listed):
            frames.append(self.without_tree().entries(listed, projection, placement))
        return frames

    def physical_table(self, manifests: pa.Table, projection: EntryProjection) -> pa.Table:
        """Return the rows of `physical_frames` as a table, decoded by threads of the driver; see `fits_driver`."""
        decode = partial(self.decoder(Placement.DRIVER).decode_parts, projection)
        return map_on_driver(self.parts(manifests, projection), decode, projection.schema)

    def _spark_opens(self, manifests: pa.Table, placement: Placement | None) -> bool:
        """Return whether Spark's sources read manifests. They don't if tasks have to, or if Spark can't open them."""
        if placement is Placement.TASKS:
            return False
        return not len(manifests) or self.access.spark_opens(manifests.column("location")[0].as_py())

    def without_tree(self) -> ManifestReader:
        """Return a reader of the v1 to v3 manifests that upgraded tables have."""
        return replace(self, tree=None)

    def _listed_frames(
        self, manifests: pa.Table, projection: EntryProjection, placement: Placement | None
    ) -> list[DataFrame]:
        by_spark = pc.equal(manifests.column("file_format"), "PARQUET")
        opened = self._spark_opens(manifests.filter(by_spark), placement)
        if not opened or not self.types.spark_reads_partitions(projection):
            by_spark = pa.repeat(False, len(manifests))
        parquet, decoded = manifests.filter(by_spark), manifests.filter(pc.invert(by_spark))
        frames = []
        if len(decoded):
            parts = self.parts(decoded, projection, split=True)
            cached, uncached = (parts.filter(test(parts.column(CACHED_LEAF))) for test in (pc.is_valid, pc.is_null))
            if len(cached) and not self.access.spark_opens(cached.column(CACHED_LEAF)[0].as_py()):
                cached, uncached = cached.slice(0, 0), parts
            if len(cached):
                from sparkmeta.manifests.cache import read_cached_entries

                frames.append(read_cached_entries(self.spark, cached, projection, self.types.locations))
            if len(uncached):
                frames.append(self._decoded(uncached, projection, placement))
        if len(parquet):
            names = self.types.partition_names
            units, locations = whole_manifests(parquet), self.types.locations
            frames.append(read_parquet_entries(self.spark, units, projection, names, locations))
        return frames

    def _leaf_frames(
        self, manifests: pa.Table, projection: EntryProjection, placement: Placement | None
    ) -> list[DataFrame]:
        leaves = manifests.filter(pc.not_equal(manifests.column("file_format"), IN_ROOT))
        dvs = self._dvs_of(leaves)
        if not len(dvs):
            return self.physical_frames(leaves, projection, placement)
        if few_masks(dvs, self.access):  # Spark plans one relation faster than two
            frames = self.physical_frames(leaves, projection, placement)
            return [without_masked(frame, dvs, self.access) for frame in frames]
        is_masked = pc.is_in(leaves.column(MANIFEST), dvs.column(MANIFEST).combine_chunks())
        frames = self.physical_frames(leaves.filter(pc.invert(is_masked)), projection, placement)
        masked = self.physical_frames(leaves.filter(is_masked), projection, placement)
        return [*frames, *(without_masked(frame, dvs, self.access) for frame in masked)]

    def _dvs_of(self, leaves: pa.Table) -> pa.Table:
        assert self.tree is not None
        dvs = self.tree.manifest_dvs
        return dvs.filter(pc.is_in(dvs.column(MANIFEST), leaves.column(MANIFEST).combine_chunks()))

    def _root_frames(self, manifests: pa.Table, projection: EntryProjection) -> list[DataFrame]:
        from sparkmeta.manifests.v4.spark import read_rows

        assert self.tree is not None
        frames = []
        for manifest, rows in self._root_files(manifests, projection):
            with_manifest = rows.append_column(MANIFEST, pa.repeat(pa.scalar(manifest, pa.int32()), len(rows)))
            frames.append(read_rows(self.spark, with_manifest, projection, self.tree.sources))
        return frames

    def _root_files(self, manifests: pa.Table, projection: EntryProjection) -> Iterator[tuple[int, pa.Table]]:
        """Yield the small ids and files, DELETED ones included, of manifests that represent the root's own files.

        The files have the stats of the projection.
        """
        if self.tree is None or self.trees is None:
            return
        in_root = manifests.filter(pc.equal(manifests.column("file_format"), IN_ROOT))
        for content in in_root.column("content_type").to_pylist():
            root = self.tree.root_with(self.trees.stats_of(projection))
            yield self.tree.root_id(content), root.of(FILE_TYPES[ContentType(content)], live=False)

    # -- parts ------------------------------------------------------------------------------------------------------

    def decoder(self, placement: Placement) -> EntryDecoder:
        """Return the decoder of manifests for the driver, or for tasks."""
        cache = self.manifest_cache
        if placement is Placement.DRIVER:
            cached = None if cache is None else cache.files
            return EntryDecoder(self.access.files, self.trees, self.types.locations, cached, memory=self._memory)
        assert self.access.tasks is not None
        writer = None if cache is None else cache.writer
        return EntryDecoder(self.access.tasks, self.trees, self.types.locations, self.access.tasks, writer)

    def parts(self, manifests: pa.Table, projection: EntryProjection, *, split: bool = False) -> pa.Table:
        """Return the parts of manifests to decode, rows of `PART_SCHEMA` with `CACHED_LEAF`, without the root's files.

        Args:
            manifests: the manifests.
            projection: the columns to read.
            split: whether several tasks may read one manifest. Parts in the manifest cache are always split.
        """
        cache = self.manifest_cache
        split_bytes = self.settings.split_manifest_bytes if split or cache is not None else None
        files = kept_rows(manifests, pc.not_equal(manifests.column("file_format"), IN_ROOT))
        parts = manifest_parts(files, projection, split_bytes)
        may_be_cached = cache is not None and pc.any(pc.equal(parts.column("file_format"), "AVRO")).as_py()
        leaves = cache.leaves_of(parts, projection) if cache and may_be_cached else pa.nulls(len(parts), pa.string())
        return parts.append_column(CACHED_LEAF, leaves)

    def driver_parts(self, manifests: pa.Table, projection: EntryProjection) -> pa.Table | None:
        """Return the parts for the driver; None if the manifest cache lacks one, since only tasks fill the cache."""
        parts, cache = self.parts(manifests, projection), self.manifest_cache
        if self.tree is None and cache is not None:
            return None if parts.column(CACHED_LEAF).null_count or isinstance(cache.files, SparkFiles) else parts
        return parts

    def _decoded(self, parts: pa.Table, projection: EntryProjection, placement: Placement | None) -> DataFrame:
        """Return the entries of parts, decoded by tasks. Tasks or Spark's sources open the files."""
        if self.access.tasks is None or placement is Placement.SPARK:
            from sparkmeta.storage.reading import with_content

            files = with_content(self.spark, parts)
            if len(parts) > len(parts.column("location").unique()):
                files = files.repartition(len(parts), MANIFEST, "part")
            decode = partial(decode_contents, projection, self.trees, self.types.locations)
            return map_arrow(files, decode, projection.schema)
        decode = partial(self.decoder(Placement.TASKS).decode_parts, projection)
        return map_by_tasks(self.spark, parts, decode, projection.schema)

    @cached_property
    def manifest_cache(self) -> ManifestCache | None:
        """The cache of decoded Avro manifests; None if the session has no folder for it.

        Its leaves identify partition fields by their ids in manifests, so tables whose specs share ids are not cached.
        Encrypted tables are not cached either, since leaves are not encrypted.
        """
        if not self.settings.manifest_cache or self.types.partition_ids or self.encrypted:
            return None
        from sparkmeta.manifests.cache import open_cache

        return open_cache(self.sessions, self.settings.manifest_cache, self.access, self.types)

    def _union(self, frames: list[DataFrame], projection: EntryProjection) -> DataFrame:
        if not frames:
            return local_frame(self.spark, projection.schema.empty_table())
        return reduce(lambda left, right: left.unionByName(right), frames)


def _apply(decode: MapFunction, function: MapFunction, parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from function(decode(parts))
