"""The entries of manifests, whatever their format and wherever they are read.

A format says how a manifest becomes Arrow from its bytes (`EntryDecoder`) and, where Spark can read it, how it becomes
a DataFrame; `Placement` says which of the two is used, and where.

    format                    from bytes, on the driver or in tasks    by Spark's sources
    Avro                      avro.decode                              whole files (binaryFile), then as in tasks
    Parquet, v1-v3 layout     v3_parquet.decode                        v3_parquet.spark
    V4 leaf                   v4.decode                                v4.spark
    V4 leaf of another layout v4.decode                                whole files (binaryFile), then as in tasks
    files of a V4 root        v4.decode, on the driver                 v4.spark
    leaf of the cache         cache.decode                             cache.spark
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.manifests.cache.folder import open_cache
from sparkmeta.manifests.cache.spark import read_cached_entries
from sparkmeta.manifests.decoder import CACHED_LEAF, EntryDecoder, decode_contents
from sparkmeta.manifests.deletion_vectors import few_masks, inlined, without_masked
from sparkmeta.manifests.metrics_maps import has_metrics_maps, stats_for_maps, with_metrics_maps
from sparkmeta.manifests.parts import manifest_parts, whole_manifests
from sparkmeta.manifests.placement import MOST_TESTED_ENTRIES, ManifestLoad, Placement
from sparkmeta.manifests.projection import MANIFEST
from sparkmeta.manifests.v3_parquet.spark import read_parquet_entries
from sparkmeta.manifests.v4.decode import root_entries
from sparkmeta.manifests.v4.spark import read_leaf_entries, read_rows
from sparkmeta.manifests.v4.tree_manifests import FILE_TYPES, IN_ROOT
from sparkmeta.session import local_frame, map_by_tasks, map_on_driver, selectable_frame, spark_schema
from sparkmeta.spec.entry import ContentType
from sparkmeta.storage.files import SparkFiles
from sparkmeta.storage.reading import with_content

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from sparkmeta.manifests.cache.folder import ManifestCache
    from sparkmeta.manifests.projection import EntryProjection
    from sparkmeta.manifests.types import TableTypes
    from sparkmeta.manifests.v4.tree_manifests import Tree
    from sparkmeta.manifests.v4.types import TreeTypes
    from sparkmeta.settings import Settings
    from sparkmeta.storage.access import FileAccess


@dataclass(frozen=True)
class ManifestReader:
    """Reads the entries of manifests, rows of `TableState.manifests`.

    Args:
        spark: the session.
        settings: of the session.
        access: opens manifests on the driver and in tasks.
        types: of the table.
        tree: the snapshot's metadata tree; None where a manifest list describes it.
        trees: the types of V4 manifests; None for a table that has none.
    """

    spark: SparkSession
    settings: Settings
    access: FileAccess
    types: TableTypes
    tree: Tree | None
    trees: TreeTypes | None

    # -- where ------------------------------------------------------------------------------------------------------

    def placement(self, manifests: pa.Table, projection: EntryProjection) -> Placement | None:
        """Return where `entries` reads manifests by default: few of a manifest list are for the driver.

        None means lazily, each manifest as suits its format: Parquet by Spark, others by tasks.
        """
        is_list = self.tree is None and self.manifest_cache is None
        if is_list and self.fits_driver(manifests, projection):
            return Placement.DRIVER
        if self.access.tasks is None:
            return Placement.SPARK
        is_avro = manifests.column("file_format").unique().to_pylist() == ["AVRO"]
        return Placement.TASKS if is_avro and self.tree is None else None

    def fits_driver(self, manifests: pa.Table, projection: EntryProjection, most_entries: int | None = None) -> bool:
        """Return whether threads of this process read manifests sooner than Python tasks do; see `ManifestLoad`.

        False where the driver does not open files, and for manifests that only Spark reads.
        """
        if self.access.driver is None or pc.all(self._decodable(manifests)).as_py() is False:
            return False
        load = ManifestLoad.of(manifests, projection, most_entries)
        return load.fits_driver(self.settings.driver_manifest_bytes)

    def _decodable(self, manifests: pa.Table) -> pa.Array:
        """Return which manifests the driver may decode, or has already."""
        if self.tree is None:
            return pc.equal(manifests.column("file_format"), "AVRO")
        in_root = pc.equal(manifests.column("file_format"), IN_ROOT)
        return pc.or_(in_root, pc.or_(self.tree.has_tree_layout(manifests), self.tree.is_foreign(manifests)))

    # -- entries ----------------------------------------------------------------------------------------------------

    def entries(
        self, manifests: pa.Table, projection: EntryProjection, placement: Placement | None = None
    ) -> DataFrame:
        """Return the entries of manifests as a DataFrame of `projection.schema`, inheritance applied.

        Every physical row that no deletion vector of its manifest masks, DELETED ones included. Lazy but for what the
        driver reads: all by `Placement.DRIVER`, else few small deletion vectors.

        Args:
            manifests: the manifests.
            projection: what to read.
            placement: where; see `placement` for the default.
        """
        placement = placement or self.placement(manifests, projection)
        if self.tree is not None and has_metrics_maps(projection):
            stats = stats_for_maps(projection, self.types.column_types)
            fill = partial(with_metrics_maps, projection, frozenset(self.types.column_types))
            return self.entries(manifests, stats, placement).mapInArrow(fill, spark_schema(projection.schema))
        if placement is Placement.DRIVER:
            return selectable_frame(self.spark, self.table(manifests, projection))
        if self.tree is None:
            return self._union(self._listed_frames(manifests, projection, placement), projection)
        frames = [*self._leaf_frames(manifests, projection, placement), *self._root_frames(manifests, projection)]
        return self._union(frames, projection)

    def table(self, manifests: pa.Table, projection: EntryProjection) -> pa.Table:
        """As `entries`, read by threads of this process into Arrow: for manifests that fit the driver."""
        parts = self.driver_parts(manifests, projection)
        assert parts is not None
        return self._table(manifests, parts, projection)

    def driver_table(
        self, manifests: pa.Table, projection: EntryProjection, most_entries: int = MOST_TESTED_ENTRIES
    ) -> pa.Table | None:
        """As `table`; None where tasks read the manifests sooner (`fits_driver`, `driver_parts`)."""
        if not self.fits_driver(manifests, projection, most_entries):
            return None
        parts = self.driver_parts(manifests, projection)
        return None if parts is None else self._table(manifests, parts, projection)

    def _table(self, manifests: pa.Table, parts: pa.Table, projection: EntryProjection) -> pa.Table:
        masks: dict[int, dict[str, Any]] = {}
        if self.tree is not None:
            masks = {row[MANIFEST]: row for row in inlined(self._dvs_of(manifests).to_pylist(), self.access.files)}
        decode = partial(self.decoder(Placement.DRIVER).decode_unmasked, projection, masks)
        tables = [map_on_driver(parts, decode, projection.schema)]
        for manifest, rows in self._root_files(manifests):
            assert self.tree is not None
            assert self.trees is not None
            tables.append(root_entries(rows, manifest, self.tree.root.location, projection, self.trees))
        return pa.concat_tables(tables)

    def physical_frames(
        self, manifests: pa.Table, projection: EntryProjection, placement: Placement | None = None
    ) -> list[DataFrame]:
        """Return every entry of leaves of a tree, masked and DELETED ones included: a DataFrame a layout.

        Without metrics maps: these are made of stats (`stats_for_maps`, `with_metrics_maps`).
        """
        assert self.tree is not None
        is_ours, is_foreign = self.tree.has_tree_layout(manifests), self.tree.is_foreign(manifests)
        if placement is Placement.TASKS:
            is_ours, is_foreign = pa.repeat(False, len(manifests)), pc.or_(is_ours, is_foreign)
        leaves, decoded = manifests.filter(is_ours), manifests.filter(is_foreign)
        listed = manifests.filter(pc.invert(pc.or_(is_ours, is_foreign)))
        frames = []
        if len(leaves):
            frames.append(read_leaf_entries(self.spark, whole_manifests(leaves), projection, self.tree.sources))
        if len(decoded):
            frames.append(self._decoded(self.parts(decoded, projection), projection, placement))
        if len(listed):
            frames.append(self.without_tree().entries(listed, projection, placement))
        return frames

    def without_tree(self) -> ManifestReader:
        """Return a reader of manifests of the v1-v3 layout, which tables have that became trees."""
        return replace(self, tree=None)

    def _listed_frames(
        self, manifests: pa.Table, projection: EntryProjection, placement: Placement | None
    ) -> list[DataFrame]:
        by_spark = pc.equal(manifests.column("file_format"), "PARQUET")
        if placement is Placement.TASKS:
            by_spark = pa.repeat(False, len(manifests))
        parquet, decoded = manifests.filter(by_spark), manifests.filter(pc.invert(by_spark))
        frames = []
        if len(decoded):
            parts = self.parts(decoded, projection, split=True)
            cached, missing = (parts.filter(test(parts.column(CACHED_LEAF))) for test in (pc.is_valid, pc.is_null))
            if len(cached):
                frames.append(read_cached_entries(self.spark, cached, projection))
            if len(missing):
                frames.append(self._decoded(missing, projection, placement))
        if len(parquet):
            names = self.types.partition_names
            frames.append(read_parquet_entries(self.spark, whole_manifests(parquet), projection, names))
        return frames

    def _leaf_frames(
        self, manifests: pa.Table, projection: EntryProjection, placement: Placement | None
    ) -> list[DataFrame]:
        leaves = manifests.filter(pc.not_equal(manifests.column("file_format"), IN_ROOT))
        dvs = self._dvs_of(leaves)
        if not len(dvs):
            return self.physical_frames(leaves, projection, placement)
        if few_masks(dvs, self.access):  # one relation is planned sooner than two
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
        assert self.tree is not None
        frames = []
        for manifest, rows in self._root_files(manifests):
            with_manifest = rows.append_column(MANIFEST, pa.repeat(pa.scalar(manifest, pa.int32()), len(rows)))
            frames.append(read_rows(self.spark, with_manifest, projection, self.tree.sources))
        return frames

    def _root_files(self, manifests: pa.Table) -> Iterator[tuple[int, pa.Table]]:
        """Yield the small ids of those manifests that are the root's own files, with these, DELETED ones included."""
        in_root = manifests.filter(pc.equal(manifests.column("file_format"), IN_ROOT))
        for content in in_root.column("content_type").to_pylist():
            assert self.tree is not None
            yield self.tree.root_id(content), self.tree.root.of(FILE_TYPES[ContentType(content)], live=False)

    # -- parts ------------------------------------------------------------------------------------------------------

    def decoder(self, placement: Placement) -> EntryDecoder:
        """Return what decodes parts of manifests on the driver, or in tasks."""
        cache = self.manifest_cache
        if placement is Placement.DRIVER:
            return EntryDecoder(self.access.files, self.trees, None if cache is None else cache.files)
        assert self.access.tasks is not None
        writer = None if cache is None else cache.writer
        return EntryDecoder(self.access.tasks, self.trees, self.access.tasks, writer)

    def parts(self, manifests: pa.Table, projection: EntryProjection, *, split: bool = False) -> pa.Table:
        """Return manifests as parts to decode: rows of `PART_SCHEMA` with `CACHED_LEAF`; none for the root's own files.

        Args:
            manifests: the manifests.
            projection: what is read of them.
            split: whether several tasks may read one manifest. The manifest cache has manifests in such parts always.
        """
        cache = self.manifest_cache
        split_bytes = self.settings.split_manifest_bytes if split or cache is not None else None
        files = manifests.filter(pc.not_equal(manifests.column("file_format"), IN_ROOT))
        parts = manifest_parts(files, projection, split_bytes)
        may_be_cached = cache is not None and pc.any(pc.equal(parts.column("file_format"), "AVRO")).as_py()
        leaves = cache.leaves_of(parts, projection) if cache and may_be_cached else pa.nulls(len(parts), pa.string())
        return parts.append_column(CACHED_LEAF, leaves)

    def driver_parts(self, manifests: pa.Table, projection: EntryProjection) -> pa.Table | None:
        """As `parts`, for the driver; None where the manifest cache has not all of them.

        It is tasks that keep what they decode.
        """
        parts, cache = self.parts(manifests, projection), self.manifest_cache
        if self.tree is None and cache is not None:
            return None if parts.column(CACHED_LEAF).null_count or isinstance(cache.files, SparkFiles) else parts
        return parts

    def _decoded(self, parts: pa.Table, projection: EntryProjection, placement: Placement | None) -> DataFrame:
        """Return the entries of parts, decoded by tasks; these or Spark open the files."""
        if self.access.tasks is None or placement is Placement.SPARK:
            files = with_content(self.spark, parts)
            if len(parts) > len(parts.column("location").unique()):
                files = files.repartition(len(parts), MANIFEST, "part")
            decode = partial(decode_contents, projection, self.trees)
            return files.mapInArrow(decode, spark_schema(projection.schema))
        decode = partial(self.decoder(Placement.TASKS).decode_parts, projection)
        return map_by_tasks(self.spark, parts, decode, projection.schema)

    @cached_property
    def manifest_cache(self) -> ManifestCache | None:
        """The cache of decoded Avro manifests; None where the session names no folder for it."""
        if not self.settings.manifest_cache:
            return None
        return open_cache(self.spark, self.settings.manifest_cache, self.access, self.types)

    def _union(self, frames: list[DataFrame], projection: EntryProjection) -> DataFrame:
        if not frames:
            return local_frame(self.spark, projection.schema.empty_table())
        return reduce(lambda left, right: left.unionByName(right), frames)
