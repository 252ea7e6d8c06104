"""Choose the delete files to rewrite, and write their deletes as deletion vectors. Spark jobs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from sparkmeta.columns.predicate import bind_filter, parse_filter
from sparkmeta.edit.range_sort import most_tasks, task_reader
from sparkmeta.errors import ValidationError, from_spark, shown
from sparkmeta.maintain.dangling_deletes.search import ENTRY_COLUMNS
from sparkmeta.maintain.position_deletes.tasks import MASK_SCHEMA, VECTOR_SCHEMA, VectorTasks, read_masks
from sparkmeta.plan.choose import choose
from sparkmeta.plan.files import plan_files
from sparkmeta.plan.filter import ScanFilter, is_live, tuple_matches
from sparkmeta.plan.prune import live_manifests, prune_manifests
from sparkmeta.session import map_arrow, materialize, read_tasks
from sparkmeta.spec.entry import ContentType
from sparkmeta.storage.access import executor_writer
from sparkmeta.storage.location import join

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.state import TableState

_TARGET, _TARGET_BYTES = "write.delete.target-file-size-bytes", 64 << 20
# A Puffin file is small if its live deletion vectors take less than this share of the target size.
_SMALL = 0.75
_IS_VECTOR = "file_format = 'PUFFIN'"
_FOLDER = "write.data.path"


@dataclass(frozen=True)
class DeleteRewriteOptions:
    """See `Maintenance.rewrite_position_delete_files`."""

    row_filter: BooleanExpression | str = AlwaysTrue()  # noqa: RUF009  an immutable singleton
    target_file_size_bytes: int | None = None
    min_input_files: int = 5
    rewrite_all: bool = False

    def target_bytes(self, state: TableState) -> int:
        """Return the target size of a Puffin file.

        Raises:
            ValidationError: an option or a table property has an invalid value.
        """
        _check_count("min_input_files", self.min_input_files)
        if self.target_file_size_bytes is not None:
            return _check_count("target_file_size_bytes", self.target_file_size_bytes)
        text = state.metadata.properties.get(_TARGET, str(_TARGET_BYTES))
        if not text.isdecimal() or not int(text):
            raise ValidationError(f"the table property {_TARGET} is {shown(text)}: it takes a number of bytes")
        return int(text)


def _check_count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValidationError(f"{name} is {shown(value)}: it takes a whole number of 1 or more")
    return value


@dataclass(frozen=True)
class DeleteRewrite:
    """The position deletes of a snapshot that are to be rewritten."""

    state: TableState
    options: DeleteRewriteOptions

    @cached_property
    def entries(self) -> DataFrame:
        """The chosen entries: position delete files, and the deletion vectors of small Puffin files. Runs a job."""
        state = self.state
        schema = state.metadata.schema()
        bound = bind_filter(parse_filter(self.options.row_filter), schema, case_sensitive=True)
        manifests = live_manifests(state.delete_manifests)
        live = state.entries(manifests, state.projection(ENTRY_COLUMNS)).where(is_live().text)
        positional = live.where(F.col("content_type") == int(ContentType.POSITION_DELETES))
        matching = positional.where(tuple_matches(ScanFilter(state, bound, schema)).text)
        files = matching.where(f"NOT ({_IS_VECTOR})")
        vectors = matching.where(_IS_VECTOR)
        if self.options.rewrite_all:
            return matching
        target = self.options.target_bytes(state)
        size = F.sum("deletion_vector.size_in_bytes")
        small = vectors.groupBy("location").agg(size.alias("size")).where(F.col("size") < _SMALL * target)
        figures = small.agg(F.count("*").alias("files"), F.coalesce(F.sum("size"), F.lit(0)).alias("size"))
        count, total = figures.toArrow().to_pylist()[0].values()
        if count < self.options.min_input_files or count <= -(-total // target):
            return files
        return files.unionByName(vectors.join(small.select("location"), "location", "left_semi").select(*files.columns))

    def write(self) -> DataFrame:
        """Write the new deletion vectors by tasks, and return them, rows of `VECTOR_SCHEMA` that Spark keeps.

        A delete counts if plans apply its file to the data file, so positions that a deletion vector of the file
        supersedes are left out, and so are those of data files that are gone.

        Raises:
            UnsupportedError: tasks can't open or write the table's files.
            CorruptFileError: a delete file is damaged.
            ValidationError: deletes contradict each other or their data files.
        """
        state, target = self.state, self.options.target_bytes(self.state)
        location = state.metadata.location
        folder = state.metadata.properties.get(_FOLDER, join(location, "data"))
        tasks = VectorTasks(executor_writer(state.files), folder, target)
        try:
            masks = materialize(self._masks())
            size = masks.agg(F.coalesce(F.sum(F.length("vector")), F.lit(0)).alias("size")).toArrow()["size"][0].as_py()
            count = max(1, min(-(-size // target), most_tasks(state.spark)))
            ordered = masks.repartitionByRange(count, "data_path").sortWithinPartitions("data_path")
            return materialize(map_arrow(ordered, tasks.write, VECTOR_SCHEMA))
        except PySparkException as error:
            raise from_spark(error) or error from error

    def _masks(self) -> DataFrame:
        """Return the masks of the chosen delete files that plans apply, rows of `MASK_SCHEMA`."""
        state = self.state
        place = F.col("deletion_vector")
        vector = F.struct(
            "referenced_file", place["offset"].alias("offset"), place["size_in_bytes"].alias("size_in_bytes"),
            "record_count",
        )  # fmt: skip
        units = self.entries.groupBy("location", "file_format").agg(F.collect_list(vector).alias("vectors"))
        reader = task_reader(state)
        masks = map_arrow(units.repartition(read_tasks(state.spark)), partial(read_masks, reader), MASK_SCHEMA)
        return masks.join(_applied(state), ["delete_path", "data_path"], "left_semi")


def _applied(state: TableState) -> DataFrame:
    """Return the pairs of data files and position deletes that plans of the snapshot make."""
    everything = ScanFilter(state, AlwaysTrue(), state.metadata.schema())
    planned = plan_files(choose(prune_manifests(everything)))
    pairs = planned.select(F.col("file_path").alias("data_path"), F.explode("deletes").alias("delete"))
    positional = pairs.where(F.col("delete.content") == int(ContentType.POSITION_DELETES))
    return positional.select("data_path", F.col("delete.file_path").alias("delete_path"))
