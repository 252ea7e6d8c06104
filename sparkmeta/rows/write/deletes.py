"""Write deletes of rows: deletion vectors, or position delete files in tables of format version 2. Spark jobs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from sparkmeta.columns import sql
from sparkmeta.edit.range_sort import task_reader
from sparkmeta.errors import from_spark
from sparkmeta.manifests.arrays import whole
from sparkmeta.plan.deletes.views import data_path
from sparkmeta.plan.filter import is_live
from sparkmeta.plan.prune import live_manifests
from sparkmeta.rows.planned import PARTITION
from sparkmeta.rows.write.delete_options import (
    BY_FILE,
    VECTORS_SINCE,
    delete_codec,
    delete_granularity,
    delete_target_bytes,
)
from sparkmeta.rows.write.delete_tasks import BOUNDS, ENDS, WRITTEN_SCHEMA, PositionFileTasks, VectorFileTasks
from sparkmeta.rows.write.files import checkpointed
from sparkmeta.rows.write.matching import FILE, POSITION
from sparkmeta.rows.write.places import Places
from sparkmeta.rows.write.vector_tasks import MASK_SCHEMA, VectorTasks, position_masks, read_masks
from sparkmeta.session import local_frame, map_arrow, read_tasks
from sparkmeta.spec.entry import DELETE_FILE_PATH_ID, ContentType
from sparkmeta.storage.access import executor_writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.rows.planned import PlannedFiles
    from sparkmeta.rows.write.delete_tasks import WriteTasks
    from sparkmeta.state import TableState

GROUP: Final = "group"
"""The masks of a group go to the same position delete files."""

_PATH_ID: Final = DELETE_FILE_PATH_ID
_BOUNDED: Final = pa.schema([pa.field("file_path", pa.string()), pa.field("data_path", pa.string())])


@dataclass(frozen=True)
class WrittenDeletes:
    """New deletes of rows.

    Attributes:
        files: a row for each deletion vector or position delete file with columns of `inspect.files`, which Spark
            keeps.
        superseded: the older position delete files whose deletes these have as well, rows with `file_path`. The
            commit finds older deletion vectors by itself.
        data_files: the data files of the deletes, rows with `file_path`, for position delete files: their rows don't
            name all of these.
    """

    files: DataFrame
    superseded: DataFrame | None = None
    data_files: DataFrame | None = None


def write_deletes(state: TableState, positions: DataFrame, files: PlannedFiles) -> WrittenDeletes:
    """Write deletes of rows. Runs jobs.

    A deletion vector has the positions that older deletes of its data file delete as well, since readers pass these
    over. So has a position delete file of a single data file, which then replaces older ones of it, as Java's does.

    Args:
        state: the table at the snapshot that the positions are of.
        positions: `FILE` and `POSITION` of rows.
        files: the planned data files that these rows are in, with their deletes.

    Raises:
        ValidationError: a table property has an invalid value.
        UnsupportedError: tasks can't open or write the table's files.
        CorruptFileError: an older delete file is damaged.
    """
    makes_vectors = state.metadata.format_version >= VECTORS_SINCE
    writer = _VectorWriter(state, positions, files) if makes_vectors else _FileWriter(state, positions, files)
    try:
        return writer.write()
    except PySparkException as error:
        raise from_spark(error) or error from error


@dataclass(frozen=True)
class _Writer:
    state: TableState
    positions: DataFrame
    files: PlannedFiles

    def write(self) -> WrittenDeletes:
        raise NotImplementedError

    @property
    def new_masks(self) -> DataFrame:
        """The rows to delete, rows of `MASK_SCHEMA`; those of a data file are in one task."""
        columns = self.positions.select(FILE, POSITION)
        return map_arrow(columns.repartition(FILE).sortWithinPartitions(FILE), position_masks, MASK_SCHEMA)

    def older_masks(self, deletes: DataFrame) -> DataFrame:
        """Read position deletes.

        Args:
            deletes: `data_path`, and `delete`, a position delete that applies to it.

        Returns:
            Rows of `MASK_SCHEMA`.
        """
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
        read = partial(read_masks, task_reader(self.state))
        masks = map_arrow(units.repartition(read_tasks(self.state.spark)), read, MASK_SCHEMA)
        applied = deletes.select("data_path", F.col("delete.file_path").alias("delete_path"))
        return masks.join(applied, ["delete_path", "data_path"], "left_semi").select(*MASK_SCHEMA.names)

    def written(self, masks: DataFrame, tasks: WriteTasks) -> DataFrame:
        """Write masks, and return the new deletes with the partitions of their data files."""
        written = checkpointed(map_arrow(masks, tasks.write, WRITTEN_SCHEMA))
        owners = local_frame(self.state.spark, self._owners)
        kind = F.lit(int(ContentType.POSITION_DELETES)).alias("content")
        return written.join(owners, "data_path").select(kind, "*").drop("data_path", "sequence_number", *ENDS)

    @property
    def _owners(self) -> pa.Table:
        """The data files, `data_path`, and their partitions."""
        table = self.files.table
        names = [name for name in ("spec_id", PARTITION) if name in table.column_names]
        return table.select(["file_path", *names]).rename_columns(["data_path", *names])

    @property
    def folder(self) -> str:
        return Places.of(self.state.metadata, ()).folder

    @property
    def target_bytes(self) -> int:
        return delete_target_bytes(self.state.metadata.properties)


@dataclass(frozen=True)
class _VectorWriter(_Writer):
    """Writes deletion vectors, several to a Puffin file."""

    def write(self) -> WrittenDeletes:
        tasks = VectorFileTasks(VectorTasks(executor_writer(self.state.files), self.folder, self.target_bytes))
        masks = self.new_masks
        if self.files.have(ContentType.POSITION_DELETES).any():
            masks = masks.unionByName(self.older_masks(self._older))
            masks = masks.repartition("data_path").sortWithinPartitions("data_path")
        return WrittenDeletes(self.written(masks, tasks).drop("split_offsets", "column_sizes", *BOUNDS))

    @property
    def _older(self) -> DataFrame:
        pairs = self.files.frame(self.state.spark)
        deletes = pairs.select(F.col("file_path").alias("data_path"), F.explode("deletes").alias("delete"))
        return deletes.where(F.col("delete.content") == int(ContentType.POSITION_DELETES))


@dataclass(frozen=True)
class _FileWriter(_Writer):
    """Writes position delete files, of a data file or of a partition each."""

    def write(self) -> WrittenDeletes:
        state, properties = self.state, self.state.metadata.properties
        tasks = PositionFileTasks(
            executor_writer(state.files), self.folder, delete_codec(properties), self.target_bytes
        )
        superseded = None
        if delete_granularity(properties) == BY_FILE:
            masks = self.new_masks
            older = self._of_files()
            if len(older):
                deletes = local_frame(state.spark, older)
                masks = masks.unionByName(self.older_masks(deletes))
                superseded = deletes.select("delete.file_path", *self._placed).distinct()
            grouped = masks.withColumn(GROUP, F.col("data_path"))
        else:
            groups = pa.table({"data_path": self.files.table.column("file_path"), GROUP: self.files.partition_codes})
            grouped = self.new_masks.join(F.broadcast(local_frame(state.spark, groups)), "data_path")
        ordered = grouped.repartition(GROUP).sortWithinPartitions(GROUP, "data_path")
        data_files = local_frame(state.spark, self.files.table.select(["file_path"]))
        return WrittenDeletes(self.written(ordered, tasks), superseded, data_files)

    def _of_files(self) -> pa.Table:
        """Return the position delete files of a single data file: `data_path` and its partition, and `delete`."""
        named = self.files.file_deletes
        shared = self.files.sets.deletes.filter(pa.array(self.files.shared_deletes(ContentType.POSITION_DELETES)))
        bounded = self._bounded(shared.column("file_path")) if len(shared) else _BOUNDED.empty_table()
        places = pc.index_in(whole(bounded.column("file_path")), whole(shared.column("file_path")))
        owners = pc.index_in(whole(bounded.column("data_path")), whole(self.files.table.column("file_path")))
        bounded_deletes = shared.take(places).append_column("owner", owners.cast(pa.int64()))
        deletes = pa.concat_tables([named, bounded_deletes.cast(named.schema)])
        deletes = deletes.filter(deletes.column("owner").is_valid())
        structs = deletes.drop_columns(["owner"]).to_struct_array()
        return self._owners.take(deletes.column("owner")).append_column("delete", structs)

    def _bounded(self, paths: pa.ChunkedArray) -> pa.Table:
        """Return the delete files whose bounds name a data file, rows of `_BOUNDED`: so Java's writers do."""
        state = self.state
        projection = state.projection(("version_info", "content_type", "location", "referenced_file"), {_PATH_ID})
        entries = state.entries(live_manifests(state.delete_manifests), projection).where(is_live().text)
        files = entries.selectExpr("location AS file_path", data_path().alias("data_path").selected)
        given = local_frame(state.spark, pa.table({"file_path": paths.unique()}))
        return files.where("data_path IS NOT NULL").join(F.broadcast(given), "file_path", "left_semi").toArrow()

    @property
    def _placed(self) -> list[str]:
        return [name for name in self._owners.column_names if name != "data_path"]
