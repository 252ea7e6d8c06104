"""Write deletes of rows: deletion vectors, or position delete files in tables of format version 2. Spark jobs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.columns import sql
from sparkmeta.edit.range_sort import task_reader
from sparkmeta.entries.arrays import whole
from sparkmeta.errors import translated_errors
from sparkmeta.manifests.placement import MOST_REQUESTS
from sparkmeta.plan.deletes.views import data_path
from sparkmeta.plan.filter import is_live
from sparkmeta.plan.prune import live_manifests
from sparkmeta.rows.planned import PARTITION
from sparkmeta.session import local_frame, map_arrow, read_tasks
from sparkmeta.spec.entry import DELETE_FILE_PATH_ID, ContentType
from sparkmeta.storage.access import executor_writer
from sparkmeta.write.cleanup import named_on_failure
from sparkmeta.write.delete_options import (
    BY_FILE,
    VECTORS_SINCE,
    delete_codec,
    delete_granularity,
    delete_target_bytes,
)
from sparkmeta.write.delete_tasks import BOUNDS, ENDS, WRITTEN_SCHEMA, PositionFileTasks, VectorFileTasks
from sparkmeta.write.files import checkpointed
from sparkmeta.write.places import Places
from sparkmeta.write.vector_tasks import MASK_SCHEMA, VectorTasks, read_masks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.rows.planned import PlannedFiles
    from sparkmeta.state import TableState
    from sparkmeta.storage.executors import ExecutorWriter
    from sparkmeta.storage.files import Files
    from sparkmeta.write.delete_tasks import WriteTasks
    from sparkmeta.write.matching import Masks

GROUP: Final = "group"
"""The masks of a group go to the same position delete files."""

_PATH_ID: Final = DELETE_FILE_PATH_ID
# Up to this many bytes of masks, writing on the driver is faster than starting tasks.
_DRIVER_BYTES: Final = 16 << 20
_NOT_SHOWN: Final = ("data_path", "sequence_number", *ENDS)
_BOUNDED: Final = pa.schema([pa.field("file_path", pa.string()), pa.field("data_path", pa.string())])


@dataclass(frozen=True)
class WrittenDeletes:
    """New deletes of rows.

    Attributes:
        files: one row per deletion vector or position delete file with columns of `inspect.files`, computed once.
        superseded: the older position delete files whose deletes the new ones include, rows with `file_path`. The
            commit finds older deletion vectors itself.
        data_files: the data files of position delete files, rows with `file_path`, because the rows of `files` don't
            name all of them.
    """

    files: DataFrame
    superseded: DataFrame | None = None
    data_files: DataFrame | None = None


def write_deletes(state: TableState, masks: Masks, files: PlannedFiles) -> WrittenDeletes:
    """Write deletes of rows, on the driver if they are few, otherwise in tasks.

    A deletion vector includes the positions of older position deletes of its data file, since readers ignore these. So
    does a position delete file of a single data file, which then replaces the older ones, as in Iceberg's Java library.

    Args:
        state: the table at the snapshot that the positions refer to.
        masks: the rows, as returned by `masks_of`.
        files: the planned data files of these rows, with their deletes.

    Raises:
        ValidationError: a table property has an invalid value.
        UnsupportedError: tasks can't open or write the table's files.
        CorruptFileError: an older delete file is damaged.
    """
    makes_vectors = state.metadata.format_version >= VECTORS_SINCE
    writer = _VectorWriter(state, masks, files) if makes_vectors else _FileWriter(state, masks, files)
    with translated_errors():
        return writer.write()


@dataclass(frozen=True)
class _Writer:
    """Writes masks, and the older position deletes of their data files, to delete files."""

    state: TableState
    masks: Masks
    files: PlannedFiles

    def write(self) -> WrittenDeletes:
        raise NotImplementedError

    def tasks(self, writer: ExecutorWriter | Files) -> WriteTasks:
        """Return the tasks that write masks."""
        raise NotImplementedError

    @property
    def groups(self) -> pa.Table | None:
        """The group of each data file: `data_path` and `GROUP`. None if tasks need no groups."""
        raise NotImplementedError

    def written(self, older: pa.Table) -> DataFrame:
        """Write the masks and return the new deletes with the partitions of their data files.

        Args:
            older: older deletes to include in the new ones: `data_path` and `delete`.
        """
        by_tasks = self.tasks(executor_writer(self.state.files))
        few = len(older) <= MOST_REQUESTS and self._size <= _DRIVER_BYTES
        if few and self.state.access.driver is not None:
            table = self._written_by_driver(older, self.state.access.driver)
            return local_frame(self.state.spark, table.drop_columns(list(_NOT_SHOWN)))
        with named_on_failure(self.state.metadata.location, f"{by_tasks.name}-*-deletes.*"):
            written = checkpointed(map_arrow(self._arranged(older), by_tasks.write, WRITTEN_SCHEMA))
        kind = F.lit(int(ContentType.POSITION_DELETES)).alias("content")
        return written.join(local_frame(self.state.spark, self.owners), "data_path").select(kind, "*").drop(*_NOT_SHOWN)

    @property
    def _size(self) -> int:
        """The total bytes of the masks."""
        if isinstance(self.masks, pa.Table):
            return int(pc.sum(pc.binary_length(self.masks.column("vector"))).as_py() or 0)
        return int(self.masks.agg(F.coalesce(F.sum(F.length("vector")), F.lit(0))).toArrow().column(0)[0].as_py())

    def _written_by_driver(self, older: pa.Table, driver: Files) -> pa.Table:
        masks = self.masks if isinstance(self.masks, pa.Table) else self.masks.toArrow().cast(MASK_SCHEMA)
        if len(older):
            locations = self.state.types.locations
            read = pa.Table.from_batches(read_masks(driver, locations, _units(older).to_batches()), MASK_SCHEMA)
            owner = pc.struct_field(whole(older.column("delete")), "file_path")
            applied = set(zip(owner.to_pylist(), older.column("data_path").to_pylist(), strict=True))
            pairs = zip(read.column("delete_path").to_pylist(), read.column("data_path").to_pylist(), strict=True)
            masks = pa.concat_tables([masks, read.filter(pa.array([pair in applied for pair in pairs], pa.bool_()))])
        order = [("data_path", "ascending")]
        if self.groups is not None:
            places = pc.index_in(masks.column("data_path"), whole(self.groups.column("data_path")))
            masks = masks.append_column(GROUP, self.groups.column(GROUP).take(places))
            order = [(GROUP, "ascending"), *order]
        tasks = self.tasks(driver)
        with named_on_failure(self.state.metadata.location, f"{tasks.name}-*-deletes.*"):
            written = pa.Table.from_batches(tasks.write(masks.sort_by(order).to_batches()), WRITTEN_SCHEMA)
        owners = self.owners
        rows = owners.take(pc.index_in(written.column("data_path"), whole(owners.column("data_path"))))
        for name in owners.column_names[1:]:
            written = written.append_column(name, rows.column(name))
        kind = pa.repeat(pa.scalar(int(ContentType.POSITION_DELETES), pa.int32()), len(written))
        return written.append_column("content", kind)

    def _arranged(self, older: pa.Table) -> DataFrame:
        """Return the masks in the order that tasks expect."""
        spark = self.state.spark
        masks = local_frame(spark, self.masks) if isinstance(self.masks, pa.Table) else self.masks
        if len(older):
            masks = masks.unionByName(self._older_masks(local_frame(spark, older)))
        if self.groups is None:
            return masks.repartition("data_path").sortWithinPartitions("data_path")
        groups = F.broadcast(local_frame(spark, self.groups))
        return masks.join(groups, "data_path").repartition(GROUP).sortWithinPartitions(GROUP, "data_path")

    def _older_masks(self, deletes: DataFrame) -> DataFrame:
        """Read position deletes in tasks and return them as rows of `MASK_SCHEMA`."""
        delete = sql.col("delete")
        vector = sql.struct(
            sql.col("data_path").alias("referenced_file"),
            delete["content_offset"].alias("offset"),
            delete["content_size_in_bytes"].alias("size_in_bytes"),
            delete["record_count"].alias("record_count"),
        )
        places = deletes.groupBy(
            F.col("delete.file_path").alias("location"), F.col("delete.file_format").alias("file_format")
        )
        units = places.agg(F.collect_list(vector.column()).alias("vectors"))
        read = partial(read_masks, task_reader(self.state), self.state.types.locations)
        masks = map_arrow(units.repartition(read_tasks(self.state.spark)), read, MASK_SCHEMA)
        applied = deletes.select("data_path", F.col("delete.file_path").alias("delete_path"))
        return masks.join(applied, ["delete_path", "data_path"], "left_semi").select(*MASK_SCHEMA.names)

    @cached_property
    def owners(self) -> pa.Table:
        """The data files (`data_path`) and their partitions."""
        owners = self.files.table.select(["file_path", "spec_id"]).rename_columns(["data_path", "spec_id"])
        partitions = self.files.partitions(self.state.types)
        return owners if partitions is None else owners.append_column(PARTITION, partitions)

    def of_files(self, deletes: pa.Table) -> pa.Table:
        """Return deletes that have an `owner` as `delete`, with the `data_path` and partition of their owner."""
        structs = deletes.drop_columns(["owner"]).to_struct_array()
        return self.owners.take(deletes.column("owner")).append_column("delete", structs)

    @property
    def folder(self) -> str:
        return Places.of(self.state.metadata, ()).folder

    @property
    def target_bytes(self) -> int:
        return delete_target_bytes(self.state.metadata.properties)


@dataclass(frozen=True)
class _VectorWriter(_Writer):
    """Writes deletion vectors, several to a Puffin file."""

    groups: ClassVar[None] = None

    def write(self) -> WrittenDeletes:
        bounds = ("split_offsets", "column_sizes", *BOUNDS)
        return WrittenDeletes(self.written(self._older()).drop(*bounds))

    def tasks(self, writer: ExecutorWriter | Files) -> WriteTasks:
        return VectorFileTasks(VectorTasks(writer, self.folder, self.target_bytes))

    def _older(self) -> pa.Table:
        """Return all position deletes of the data files. A delete file of several data files occurs once for each."""
        files = self.files
        deletes = files.file_deletes
        is_shared = files.shared_deletes(ContentType.POSITION_DELETES)
        if is_shared.any():
            owners, members = files.sets.members_of(files.set_codes)
            chosen = is_shared[members]
            shared = files.sets.deletes.take(pa.array(members[chosen]))
            shared = shared.append_column("owner", pa.array(owners[chosen], pa.int64()))
            deletes = pa.concat_tables([deletes, shared.cast(deletes.schema)])
        return self.of_files(deletes)


@dataclass(frozen=True)
class _FileWriter(_Writer):
    """Writes position delete files, one or more per data file or per partition."""

    def write(self) -> WrittenDeletes:
        older, superseded = self.owners.slice(0, 0), None
        if self._by_file:
            older = self.of_files(self._bounded_deletes())
            if len(older):
                paths = pc.struct_field(whole(older.column("delete")), "file_path")
                named = older.drop_columns(["data_path", "delete"]).append_column("file_path", paths)
                superseded = local_frame(self.state.spark, named).dropDuplicates(["file_path"])
        data_files = local_frame(self.state.spark, self.files.table.select(["file_path"]))
        return WrittenDeletes(self.written(older), superseded, data_files)

    def tasks(self, writer: ExecutorWriter | Files) -> WriteTasks:
        return PositionFileTasks(writer, self.folder, delete_codec(self.state.metadata.properties), self.target_bytes)

    @property
    def _by_file(self) -> bool:
        return delete_granularity(self.state.metadata.properties) == BY_FILE

    @property
    def groups(self) -> pa.Table:
        """See `_Writer.groups`."""
        paths = self.files.table.column("file_path")
        return pa.table({"data_path": paths, GROUP: paths if self._by_file else self.files.partition_codes})

    def _bounded_deletes(self) -> pa.Table:
        """Return the position delete files that cover a single data file, with their `owner`."""
        named = self.files.file_deletes
        shared = self.files.sets.deletes.filter(pa.array(self.files.shared_deletes(ContentType.POSITION_DELETES)))
        bounded = self._bounded(shared.column("file_path")) if len(shared) else _BOUNDED.empty_table()
        places = pc.index_in(whole(bounded.column("file_path")), whole(shared.column("file_path")))
        owners = pc.index_in(whole(bounded.column("data_path")), whole(self.files.table.column("file_path")))
        bounded_deletes = shared.take(places).append_column("owner", owners.cast(pa.int64()))
        deletes = pa.concat_tables([named, bounded_deletes.cast(named.schema)])
        return deletes.filter(deletes.column("owner").is_valid())

    def _bounded(self, paths: pa.ChunkedArray) -> pa.Table:
        """Return the delete files whose path bounds name one data file, as Java's writers do; rows of `_BOUNDED`."""
        state = self.state
        projection = state.projection(("version_info", "content_type", "location", "referenced_file"), {_PATH_ID})
        entries = state.entries(live_manifests(state.delete_manifests), projection).where(is_live().text)
        files = entries.selectExpr("location AS file_path", data_path().alias("data_path").selected)
        given = local_frame(state.spark, pa.table({"file_path": paths.unique()}))
        return files.where("data_path IS NOT NULL").join(F.broadcast(given), "file_path", "left_semi").toArrow()


def _units(deletes: pa.Table) -> pa.Table:
    """Return deletes as units of work for `read_masks`."""
    units: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for path, delete in zip(*(deletes.column(name).to_pylist() for name in ("data_path", "delete")), strict=True):
        vectors = units.setdefault((delete["file_path"], delete["file_format"]), [])
        place = {"offset": delete["content_offset"], "size_in_bytes": delete["content_size_in_bytes"]}
        vectors.append({"referenced_file": path, **place, "record_count": delete["record_count"]})
    rows = [{"location": key[0], "file_format": key[1], "vectors": vectors} for key, vectors in units.items()]
    return pa.Table.from_pylist(rows)
