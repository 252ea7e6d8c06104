"""Rewrite the position deletes of chosen entries as deletion vectors or position delete files. Spark jobs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

from pyiceberg.expressions import AlwaysTrue
from pyspark.sql import Window
from pyspark.sql import functions as F

from sparkmeta.edit.range_sort import most_tasks, task_reader
from sparkmeta.errors import translated_errors
from sparkmeta.plan.choose import choose
from sparkmeta.plan.deletes.views import partition_key
from sparkmeta.plan.files import plan_files
from sparkmeta.plan.filter import ScanFilter
from sparkmeta.plan.prune import prune_manifests
from sparkmeta.rewrite.position_deletes.choose import chosen_entries
from sparkmeta.session import map_arrow, materialize, read_tasks
from sparkmeta.spec.entry import ContentType
from sparkmeta.storage.access import executor_writer
from sparkmeta.write.cleanup import named_on_failure
from sparkmeta.write.delete_options import BY_FILE, VECTORS_SINCE, delete_codec, delete_granularity
from sparkmeta.write.delete_tasks import WRITTEN_SCHEMA, PositionFileTasks, VectorFileTasks
from sparkmeta.write.deletes import GROUP
from sparkmeta.write.files import checkpointed
from sparkmeta.write.places import Places
from sparkmeta.write.vector_tasks import MASK_SCHEMA, VectorTasks, read_masks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.rewrite.position_deletes.options import DeleteRewriteOptions
    from sparkmeta.state import TableState
    from sparkmeta.write.delete_tasks import WriteTasks


@dataclass(frozen=True)
class DeleteRewrite:
    """The position deletes of a snapshot that are to be rewritten."""

    state: TableState
    options: DeleteRewriteOptions

    @cached_property
    def entries(self) -> DataFrame:
        """The chosen entries: position delete files, and the deletion vectors of small Puffin files. May run a job."""
        return chosen_entries(self.state, self.options)

    @property
    def makes_vectors(self) -> bool:
        """Whether the deletes become deletion vectors."""
        return self.state.metadata.format_version >= VECTORS_SINCE

    def write(self) -> DataFrame:
        """Write the new files by tasks, and return rows of `WRITTEN_SCHEMA`, checkpointed.

        A delete counts if plans apply its file to the data file, so positions that a deletion vector of the file
        supersedes are left out, and so are those of data files that are gone.

        Raises:
            UnsupportedError: tasks can't open or write the table's files, or the session can't checkpoint rows.
            CorruptFileError: a delete file is damaged.
            ValidationError: deletes contradict each other or their data files.
        """
        state, properties = self.state, self.state.metadata.properties
        target = self.options.sizes(properties).target
        folder = Places.of(state.metadata, ()).folder
        writer = executor_writer(state.files)
        tasks: WriteTasks
        with translated_errors():
            masks = materialize(self._masks())
            if self.makes_vectors:
                tasks = VectorFileTasks(VectorTasks(writer, folder, target))
                ordered = self._by_data_file(masks, target)
            else:
                tasks = PositionFileTasks(writer, folder, delete_codec(properties), target)
                ordered = self._by_group(masks, target)
            with named_on_failure(state.metadata.location, f"{tasks.name}-*-deletes.*"):
                return checkpointed(map_arrow(ordered, tasks.write, WRITTEN_SCHEMA))

    def _masks(self) -> DataFrame:
        """Return the masks of the chosen delete files that plans apply: `MASK_SCHEMA`, and sequence_number."""
        state = self.state
        place = F.col("deletion_vector")
        vector = F.struct(
            "referenced_file", place["offset"].alias("offset"), place["size_in_bytes"].alias("size_in_bytes"),
            "record_count",
        )  # fmt: skip
        units = self.entries.groupBy("location", "file_format").agg(F.collect_list(vector).alias("vectors"))
        read = partial(read_masks, task_reader(state), state.types.locations)
        masks = map_arrow(units.repartition(read_tasks(state.spark)), read, MASK_SCHEMA)
        return masks.join(_applied(state), ["delete_path", "data_path"])

    def _by_data_file(self, masks: DataFrame, target: int) -> DataFrame:
        """Return masks ordered by data file, in as many tasks as files of the target size result."""
        size = masks.agg(F.coalesce(F.sum(F.length("vector")), F.lit(0)).alias("size")).toArrow()["size"][0].as_py()
        count = max(1, min(-(-size // target), most_tasks(self.state.spark)))
        return masks.repartitionByRange(count, "data_path").sortWithinPartitions("data_path")

    def _by_group(self, masks: DataFrame, target: int) -> DataFrame:
        """Return masks with the column `group`, of which each becomes a file, ordered by it and by data file.

        A group is a data file or a partition. A partition whose files exceed the target size is divided by data files.
        """
        if delete_granularity(self.state.metadata.properties) == BY_FILE:
            grouped = masks.withColumn(GROUP, F.col("data_path"))
        else:
            partition = partition_key(self.state).column()
            size = F.sum("file_size_in_bytes").over(Window.partitionBy("partition"))
            groups = self.entries.select(
                F.col("location").alias("delete_path"), partition.alias("partition"), "file_size_in_bytes"
            ).select("delete_path", "partition", F.ceil(size / target).cast("int").alias("parts"))
            part = F.pmod(F.hash("data_path"), F.col("parts"))
            grouped = masks.join(groups, "delete_path").withColumn(GROUP, F.struct("partition", part.alias("part")))
            grouped = grouped.drop("partition", "parts")
        tasks = min(read_tasks(self.state.spark), most_tasks(self.state.spark))
        return grouped.repartition(tasks, GROUP).sortWithinPartitions(GROUP, "data_path")


def _applied(state: TableState) -> DataFrame:
    """Return the pairs of data files and position deletes that plans make, and the deletes' sequence numbers."""
    planned = plan_files(choose(prune_manifests(ScanFilter.of(state, AlwaysTrue()))))
    pairs = planned.select(F.col("file_path").alias("data_path"), F.explode("deletes").alias("delete"))
    positional = pairs.where(F.col("delete.content") == int(ContentType.POSITION_DELETES))
    return positional.select(
        "data_path",
        F.col("delete.file_path").alias("delete_path"),
        F.col("delete.data_sequence_number").alias("sequence_number"),
    )
