"""Rewrite position deletes: the options, the choice of files, the Spark jobs, and the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyspark.sql import Window
from pyspark.sql import functions as F

from sparkmeta.changes.file_changes import snapshots_since
from sparkmeta.checks import at_least, option
from sparkmeta.commit.attempts import commit_steps
from sparkmeta.commit.base_root import base_root
from sparkmeta.commit.file_rows import SEQUENCE_NUMBER
from sparkmeta.commit.file_writer import ListedFileWriter
from sparkmeta.commit.lists import ManifestRewriter, NewList, without_manifests
from sparkmeta.commit.new_snapshot import LeafCounts, branch_head, with_root
from sparkmeta.commit.options import BranchOptions, check_snapshot_options
from sparkmeta.commit.removed_files import Removal, removal_of
from sparkmeta.commit.snapshot_update import SnapshotStep, SnapshotUpdate
from sparkmeta.commit.write_target import WriteTarget
from sparkmeta.entries.live import entry_count, is_live_entry
from sparkmeta.entries.projection import MANIFEST, PARTITION
from sparkmeta.entries.relation import Rows, frame_of, grouped, matching, select, totals, union, where
from sparkmeta.errors import CommitConflictError, translated_errors
from sparkmeta.expr import sql
from sparkmeta.expr.predicate import parse_filter
from sparkmeta.maintain.dangling_deletes import ENTRY_COLUMNS, public_rows, refuse_rewrite
from sparkmeta.maintain.file_groups import FileSizes
from sparkmeta.maintain.plans import OptionsT, RewritePlan, RewriteStep, SnapshotPlanSummary
from sparkmeta.manifests.sorted_manifests import most_tasks
from sparkmeta.operations.table_operations import BaseTable, TableT, refuse_read_only
from sparkmeta.plan.choose import choose
from sparkmeta.plan.deletes.rules import data_path, partition_key
from sparkmeta.plan.files import plan_files
from sparkmeta.plan.filter import ScanFilter, full_partition, manifest_path, tuple_matches
from sparkmeta.plan.prune import prune_manifests
from sparkmeta.progress import planning
from sparkmeta.session import in_tasks, map_arrow, materialize, read_tasks
from sparkmeta.snapshot.search import live_manifests
from sparkmeta.snapshot.state import task_reader
from sparkmeta.spec.bitmap import write_deletion_vector
from sparkmeta.spec.entry import DELETE_FILE_PATH_ID, DELETE_FILE_POS_ID, ContentType
from sparkmeta.spec.metadata import has_tree
from sparkmeta.spec.summary import summary_number
from sparkmeta.storage.files import executor_writer
from sparkmeta.storage.keys import data_key_length
from sparkmeta.write.delete_tasks import (
    MASK_SCHEMA,
    WRITTEN_SCHEMA,
    PositionFileTasks,
    VectorFileTasks,
    VectorTasks,
    read_masks,
)
from sparkmeta.write.deletes import (
    BY_FILE,
    GROUP,
    VECTORS_SINCE,
    WrittenDeletes,
    delete_codec,
    delete_granularity,
    delete_target_bytes,
)
from sparkmeta.write.files import checkpointed
from sparkmeta.write.tasks import LocationProvider, deleted_on_failure, named_on_failure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.commit.attempts import Step
    from sparkmeta.commit.new_files import NewFiles
    from sparkmeta.entries.relation import Relation
    from sparkmeta.expr.sql import Sql
    from sparkmeta.snapshot.state import TableState
    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.write.delete_tasks import WriteTasks


@dataclass(frozen=True)
class DeleteRewriteOptions(BranchOptions):
    """See `Maintenance.rewrite_position_delete_files`."""

    row_filter: BooleanExpression | str = option(
        AlwaysTrue(), "rewrite only deletes of partitions that may hold matching rows."
    )
    _: KW_ONLY
    target_file_size_bytes: int | None = option(
        None,
        "target size of delete files. Defaults to the table's `write.delete.target-file-size-bytes` (64 MiB).",
        at_least(1),
    )
    min_file_size_bytes: int | None = option(
        None,
        "smaller files are merged. For Puffin files, only live deletion vectors count. Defaults to three quarters of "
        "the target size.",
        at_least(0),
    )
    max_file_size_bytes: int | None = option(
        None,
        "larger position delete files that cover several data files are split. Defaults to 1.8 times the target size.",
        at_least(1),
    )
    min_input_files: int = option(
        5, "the minimum number of small Puffin files, or of files in a partition, to merge.", at_least(1)
    )
    rewrite_all: bool = option(False, "rewrite all position deletes.")

    def check(self) -> None:
        """See `Options.check`. Raises InvalidFilterError for a filter that is not valid."""
        super().check()
        parse_filter(self.row_filter)
        if self.target_file_size_bytes is not None:
            self._sizes(self.target_file_size_bytes)

    def sizes(self, properties: Mapping[str, str]) -> FileSizes:
        """Return the sizes of files, which default to table properties.

        Raises:
            ValidationError: sizes are not in order, or the table property is invalid.
        """
        target = self.target_file_size_bytes
        return self._sizes(delete_target_bytes(properties) if target is None else target)

    def _sizes(self, target: int) -> FileSizes:
        return FileSizes.of(target, self.min_file_size_bytes, self.max_file_size_bytes)


# -- Choose the position deletes to rewrite. Spark jobs ---------------------------------------------------------------


_IS_VECTOR = sql.col("file_format") == "PUFFIN"
_GROUP, _PATH = "delete_group", "delete_of"


def chosen_entries(state: TableState, options: DeleteRewriteOptions) -> Relation:
    """Return the entries of the position deletes to rewrite. May run a job."""
    scan = ScanFilter.of(state, options.row_filter)
    manifests = live_manifests(state.delete_manifests)
    projection = state.projection(ENTRY_COLUMNS, {DELETE_FILE_PATH_ID})
    is_positional = sql.col("content_type") == int(ContentType.POSITION_DELETES)
    positional = where(state.relation(manifests, projection), is_live_entry() & is_positional)
    chosen = where(positional, tuple_matches(scan))
    if options.rewrite_all:
        return chosen
    sizes = options.sizes(state.metadata.properties)
    if state.metadata.format_version >= VECTORS_SINCE:
        return _without_large_puffin_files(chosen, state, options.min_input_files, sizes)
    return _unsuitable_files(frame_of(chosen, state), state, options.min_input_files, sizes)


class SmallPuffinFiles(NamedTuple):
    """Puffin files with deletion vectors that are too small, and the bytes of the vectors."""

    files: int
    bytes: int

    def merged(self, sizes: FileSizes, min_input_files: int) -> int | None:
        """Return the number of files after a rewrite; None if the files are not worth a rewrite."""
        after = -(-self.bytes // sizes.target)
        return None if self.files < min_input_files or self.files <= after else after


def small_puffin_files(vectors: Rows, file: str, size: Sql, sizes: FileSizes) -> tuple[Rows, SmallPuffinFiles]:
    """Return the small Puffin files, rows of `file`, and their number. For a DataFrame, runs a job.

    Args:
        vectors: a row for each deletion vector.
        file: the column that identifies the Puffin file.
        size: the size of the vector in bytes.
    """
    key, total = sql.col(file).alias(file), sql.col("size")
    small = where(grouped(vectors, [key], [sql.call("sum", size).alias("size")]), total < sizes.least)
    figures = totals(small, [sql.call("sum", 1).alias("files"), sql.call("sum", total).alias("bytes")])
    return select(small, [key]), SmallPuffinFiles(figures["files"] or 0, figures["bytes"] or 0)


def _without_large_puffin_files(
    chosen: Relation, state: TableState, min_input_files: int, sizes: FileSizes
) -> Relation:
    """Return all position delete files, and the deletion vectors of small Puffin files if fewer files result."""
    files, vectors = where(chosen, ~_IS_VECTOR), where(chosen, _IS_VECTOR)
    small, count = small_puffin_files(vectors, "location", sql.col("deletion_vector.size_in_bytes"), sizes)
    if count.merged(sizes, min_input_files) is None:
        return files
    return union(files, matching(vectors, small, {"location": "location"}), state)


def _unsuitable_files(matching: DataFrame, state: TableState, min_input_files: int, sizes: FileSizes) -> DataFrame:
    """Return the position delete files that are too small or too large, in partitions where a rewrite helps.

    A rewrite helps if it reduces the number of files, or divides a file. A file with the deletes of a single data file
    can't be divided. If each new file covers one data file, a file that is the only one of its data file stays.
    """
    keyed = matching.withColumns({_GROUP: partition_key(state).column(), _PATH: data_path().column()})
    is_small, is_large = F.col("file_size_in_bytes") < sizes.least, F.col("file_size_in_bytes") > sizes.greatest
    of_many = F.col(_PATH).isNull()
    by_file = delete_granularity(state.metadata.properties) == BY_FILE
    files = keyed.where(is_small | (is_large & of_many))
    group = Window.partitionBy(_GROUP)
    if by_file:
        of_file = F.count("*").over(Window.partitionBy(_GROUP, _PATH)) > 1
        files = files.withColumns({"of_many": F.max(of_many).over(group), "of_file": of_file})
        files = files.where("of_many OR of_file").drop("of_many", "of_file")
    count, total = F.count("*").over(group), F.sum("file_size_in_bytes").over(group)
    is_many = (count >= min_input_files) | ((count > 1) & (total > sizes.target))
    fewer = F.lit(True) if by_file else F.ceil(total / sizes.target) < count
    helps = (is_many & fewer) | F.max(is_large).over(group)
    return files.withColumn("helps", helps).where("helps").select(*matching.columns)


# -- New delete files in the form for commits -------------------------------------------------------------------------


def public_files(written: DataFrame, state: TableState) -> DataFrame:
    """Return new deletes, rows of `WRITTEN_SCHEMA`, as commits take them: with their data files' partitions."""
    columns = {
        "data_path": sql.col("location"),
        "content": sql.lit(int(ContentType.POSITION_DELETES)),
        "spec_id": sql.col("partition_spec_id"),
        **({PARTITION: full_partition(state)} if state.types.partition_fields else {}),
        "manifest_path": manifest_path(state.data_manifests, sql.col(MANIFEST)),
    }
    projection = state.projection(("version_info", "location", "partition_spec_id"))
    data = state.live_entries(live_manifests(state.data_manifests), projection)
    data_files = data.selectExpr(*sql.texts(sql.named(columns)))
    return written.join(data_files, "data_path").drop("data_path")


def listed_files(written: DataFrame, state: TableState) -> DataFrame:
    """Return `public_files` as manifests list them: with counts and the sequence numbers of replaced deletes."""
    is_file, path, position = F.col("file_format") != "PUFFIN", F.lit(DELETE_FILE_PATH_ID), F.lit(DELETE_FILE_POS_ID)
    values = {"value_counts": F.col("record_count"), "null_value_counts": F.lit(0).cast("long")}
    counts = {name: F.when(is_file, F.create_map(path, count, position, count)) for name, count in values.items()}
    files = public_files(written, state).withColumns({**counts, SEQUENCE_NUMBER: F.col("sequence_number")})
    return files.drop("column_sizes", "split_offsets")


# -- Rewrite the position deletes of chosen entries -------------------------------------------------------------------


@dataclass(frozen=True)
class DeleteRewrite:
    """The position deletes of a snapshot that are to be rewritten."""

    state: TableState
    options: DeleteRewriteOptions

    @cached_property
    def entries(self) -> Relation:
        """The chosen entries: position delete files, and the deletion vectors of small Puffin files. May run a job."""
        return chosen_entries(self.state, self.options)

    @property
    def makes_vectors(self) -> bool:
        """Whether the deletes become deletion vectors."""
        return self.state.metadata.format_version >= VECTORS_SINCE

    def write(self, size: int) -> DataFrame:
        """Write the new files by tasks, and return rows of `WRITTEN_SCHEMA`, checkpointed.

        A delete counts only if plans apply its file to the data file. Positions that a deletion vector of the data file
        supersedes are therefore left out, and so are positions in data files that are gone.

        Args:
            size: the bytes of the chosen deletes.

        Raises:
            UnsupportedError: tasks can't open or write the table's files, or the session can't checkpoint rows.
            CorruptFileError: a delete file is damaged.
            ValidationError: deletes contradict each other or their data files.
        """
        state, properties = self.state, self.state.metadata.properties
        target = self.options.sizes(properties).target
        folder = LocationProvider.of(state.metadata, ()).folder
        writer = executor_writer(state.files)
        tasks: WriteTasks
        with translated_errors():
            masks = materialize(self._masks(size))
            if self.makes_vectors:
                tasks = VectorFileTasks(VectorTasks(writer, folder, target, data_key_length(state.metadata)))
                ordered = self._by_data_file(masks, target)
            else:
                tasks = PositionFileTasks(writer, folder, delete_codec(properties), target)
                ordered = self._by_group(masks, target)
            with named_on_failure(state.metadata.location, f"{tasks.name}-*-deletes.*"):
                return checkpointed(map_arrow(ordered, tasks.write, WRITTEN_SCHEMA))

    def _masks(self, size: int) -> DataFrame:
        """Return the masks of the chosen delete files that plans apply: `MASK_SCHEMA`, and sequence_number."""
        state = self.state
        fields = ("referenced_file", "deletion_vector.offset", "deletion_vector.size_in_bytes", "record_count")
        vector = sql.struct(*(sql.col(field).alias(field.rpartition(".")[2]) for field in fields))
        keys = sql.columns("location", "file_format")
        units = grouped(self.entries, keys, [sql.call("collect_list", vector).alias("vectors")])
        read = partial(read_masks, task_reader(state), state.types.locations)
        entries = entry_count(live_manifests(state.delete_manifests))
        tasks = read_tasks(state.spark, entries, None if entries is None else size)
        masks = map_arrow(in_tasks(frame_of(units, state), tasks), read, MASK_SCHEMA)
        return masks.join(_applied(state), ["delete_path", "data_path"])

    def _by_data_file(self, masks: DataFrame, target: int) -> DataFrame:
        """Return masks ordered by data file, in as many tasks as there are new files of the target size."""
        size = masks.agg(F.coalesce(F.sum(F.length("vector")), F.lit(0)).alias("size")).toArrow()["size"][0].as_py()
        count = max(1, min(-(-size // target), most_tasks(self.state.spark)))
        ranges = masks.coalesce(1) if count == 1 else masks.repartitionByRange(count, "data_path")
        return ranges.sortWithinPartitions("data_path")

    def _by_group(self, masks: DataFrame, target: int) -> DataFrame:
        """Return masks ordered by the column `group` and by data file. Each group becomes a file.

        A group is a data file or a partition. A partition whose files exceed the target size is divided by data files.
        """
        if delete_granularity(self.state.metadata.properties) == BY_FILE:
            grouped = masks.withColumn(GROUP, F.col("data_path"))
        else:
            partition = partition_key(self.state).column()
            size = F.sum("file_size_in_bytes").over(Window.partitionBy("partition"))
            groups = (
                frame_of(self.entries, self.state)
                .select(F.col("location").alias("delete_path"), partition.alias("partition"), "file_size_in_bytes")
                .select("delete_path", "partition", F.ceil(size / target).cast("int").alias("parts"))
            )
            part = F.pmod(F.hash("data_path"), F.col("parts"))
            grouped = masks.join(groups, "delete_path").withColumn(GROUP, F.struct("partition", part.alias("part")))
            grouped = grouped.drop("partition", "parts")
        return grouped.repartition(GROUP).sortWithinPartitions(GROUP, "data_path")


def _applied(state: TableState) -> DataFrame:
    """Return the pairs of data files and position deletes in plans, and the deletes' sequence numbers."""
    planned = plan_files(choose(prune_manifests(ScanFilter.of(state, AlwaysTrue()))))
    pairs = planned.select(F.col("file_path").alias("data_path"), F.explode("deletes").alias("delete"))
    positional = pairs.where(F.col("delete.content") == int(ContentType.POSITION_DELETES))
    return positional.select(
        "data_path",
        F.col("delete.file_path").alias("delete_path"),
        F.col("delete.data_sequence_number").alias("sequence_number"),
    )


# -- Commit rewritten position deletes as a manifest list -------------------------------------------------------------


_APPEND = "append"
_KEY = ["location", "blob_offset"]
_KINDS = (int(ContentType.POSITION_DELETES),)


@dataclass
class DeleteRewriteStep(RewriteStep):
    """Replaces the entries of rewritten position deletes; see `DeleteRewritePlan.commit`.

    Manifests of new deletes are written once. Each attempt rewrites the manifests that list replaced deletes, unless an
    earlier attempt has done so.

    Attributes:
        rewrite: the deletes that are replaced.
        new_deletes: the new deletes, rows of `WRITTEN_SCHEMA`.
        added: snapshot id -> the manifests of the new deletes.
        rewritten: the rewritten manifests, by snapshot id and the deletion vectors of replaced entries.
    """

    rewrite: DeleteRewrite
    new_deletes: DataFrame
    added: dict[int, NewFiles] = field(default_factory=dict)
    rewritten: dict[object, pa.Table] = field(default_factory=dict)

    def apply_to(self, head: TableState) -> TableMetadata:
        """See `RewriteStep.apply_to`."""
        planned = self.rewrite.state
        if head.metadata.format_version != planned.metadata.format_version:
            raise CommitConflictError(f"{head.metadata.location}: its format version has changed: plan again")
        is_same = head.snapshot == planned.snapshot
        removal = removal_of(self.rewrite.entries, planned) if is_same else self._removal(head)
        snapshot_id = self.names.snapshot_id
        if snapshot_id not in self.added:
            files = listed_files(self.new_deletes, planned)
            self.added[snapshot_id] = ListedFileWriter(planned, self.names).in_manifests(files, _KINDS)
        masks = tuple((location, write_deletion_vector(removal.masks[location])) for location in sorted(removal.masks))
        if (snapshot_id, masks) not in self.rewritten:
            rewriter = ManifestRewriter(head, self.names)
            self.rewritten[snapshot_id, masks] = rewriter.without_entries(head.manifest_files, removal.masks)
        new_files, unchanged = self.added[snapshot_id], without_manifests(head.manifest_files, removal.masks.keys())
        new_manifests = pa.concat_tables([new_files.leaves, self.rewritten[snapshot_id, masks]])
        counts = LeafCounts(len(new_manifests), len(unchanged), len(removal.masks))
        summary = self.summary(head, counts, removed=removal.tally, added=new_files.tally)
        return NewList(head, self.branch, self.names).write(pa.concat_tables([new_manifests, unchanged]), summary())

    def _removal(self, head: TableState) -> Removal:
        """Return the removal from a snapshot that others have committed since the plan.

        Raises:
            CommitConflictError: a replaced delete is gone, the planned snapshot is not an ancestor or, for deletion
                vectors, a data file is gone or has another deletion vector.
        """
        planned = self.rewrite.state
        start = planned.snapshot.snapshot_id if planned.snapshot is not None else None
        since = snapshots_since(head, start)
        replaced = materialize(_keyed(frame_of(self.rewrite.entries, planned)).select(*_KEY))
        deletes = materialize(_keyed(_live(head, head.delete_manifests)))
        present_deletes = materialize(deletes.join(replaced, _KEY, "left_semi"))
        for row in replaced.join(present_deletes, _KEY, "left_anti").limit(1).toArrow().to_pylist():
            raise _conflict(head, f"removed {row['location']}, whose deletes are rewritten")
        if self.rewrite.makes_vectors and any(snapshot.operation != _APPEND for snapshot in since):
            self._check_data_files(head, deletes.join(replaced, _KEY, "left_anti"))
        return removal_of(present_deletes.drop("blob_offset"), head)

    def _check_data_files(self, head: TableState, other_deletes: DataFrame) -> None:
        """Refuse deletion vectors of data files that are gone, or that have another deletion vector."""
        files = self.new_deletes.select("referenced_data_file")
        is_same_file = F.col("referenced_file") == F.col("referenced_data_file")
        vectors = other_deletes.where("file_format = 'PUFFIN'")
        for row in vectors.join(files, is_same_file, "left_semi").limit(1).toArrow().to_pylist():
            raise _conflict(head, f"added a deletion vector for {row['referenced_file']}")
        data = _live(head, head.data_manifests).select("location")
        missing_files = files.join(data, F.col("referenced_data_file") == F.col("location"), "left_anti")
        for row in missing_files.limit(1).toArrow().to_pylist():
            raise _conflict(head, f"removed {row['referenced_data_file']}, whose deletes are rewritten")


def _live(state: TableState, manifests: pa.Table) -> DataFrame:
    return state.live_entries(live_manifests(manifests), state.projection(ENTRY_COLUMNS))


def _keyed(entries: DataFrame) -> DataFrame:
    return entries.withColumn("blob_offset", F.coalesce("deletion_vector.offset", F.lit(-1)))


def _conflict(head: TableState, problem: str) -> CommitConflictError:
    return CommitConflictError(f"{head.metadata.location}: another commit has {problem}: plan again")


# -- The plan to rewrite position deletes, and its commit -------------------------------------------------------------


@dataclass(frozen=True)
class DeleteRewriteSummary(SnapshotPlanSummary):
    """The position deletes to rewrite, in numbers.

    Attributes:
        file_format: the format of the new files: PUFFIN, or PARQUET in tables of version 2.
        position_delete_files: the number of position delete files.
        puffin_files: the number of small Puffin files whose deletion vectors move to other files.
        deletion_vectors: the number of these deletion vectors.
        records: the number of deleted positions.
        bytes: the bytes of the files, or of the deletion vectors in Puffin files.
    """

    file_format: str
    position_delete_files: int
    puffin_files: int
    deletion_vectors: int
    records: int
    bytes: int

    @property
    def is_empty(self) -> bool:
        return not (self.position_delete_files or self.deletion_vectors)

    def __str__(self) -> str:
        if self.is_empty:
            return f"{self.table}: its position deletes need no rewrite"
        files = f"{self.position_delete_files} position delete files"
        vectors = f"{self.deletion_vectors} deletion vectors of {self.puffin_files} small Puffin files move"
        makes_vectors = self.file_format == "PUFFIN"
        text = f"{files} become deletion vectors, {vectors}" if makes_vectors else f"{files} are rewritten"
        return f"{self.table}: {text}\n  {self.records} deletes in {self.bytes} bytes"


@dataclass(frozen=True)
class NewDeletesPlan(RewritePlan[TableT, OptionsT]):
    """A plan that writes new deletes once, and deletes them if its commit fails."""

    _written: list[WrittenDeletes] = field(default_factory=list, init=False, repr=False, compare=False)

    def _outcome(self) -> dict[str, Any] | None:
        """See `Plan.result`. The counts include the new delete files and their bytes."""
        counts = super()._outcome()
        if counts is not None:
            after = self._committed[0].metadata.snapshot_by_name(self.branch)
            names = {"added_delete_files": "added-delete-files", "added_bytes": "added-files-size"}
            counts |= {name: summary_number(after, key) or 0 for name, key in names.items()}
        return counts

    def _commit(self) -> TableT:
        step = self.step()
        if step is None:
            return self.table
        written, self._written[:] = [*self._written], []
        with deleted_on_failure(self._state, [deletes.files for deletes in written]):
            return commit_steps(self.table, [step])


@dataclass(frozen=True)
class DeleteRewritePlan(NewDeletesPlan[TableT, DeleteRewriteOptions]):
    """A plan to rewrite position deletes, carried out by `commit`.

    New delete files are written once, and deleted if the commit fails. `commit` raises CommitConflictError if another
    commit removed a rewritten delete file, removed a data file that gets a deletion vector, added a deletion vector for
    such a data file, or changed the format version.
    """

    _doing = "Rewriting delete manifests"

    @cached_property
    def _rewrite(self) -> DeleteRewrite:
        return DeleteRewrite(self._state, self.options)

    def to_df(self) -> DataFrame:
        """Return a row for each position delete file and deletion vector to rewrite.

        Columns: the columns of `inspect.delete_files`, data_sequence_number, manifest_path and manifest_pos.
        """
        return public_rows(self._rewrite.entries, self._state)

    @planning
    def summary(self) -> DeleteRewriteSummary:
        """Return the plan in numbers. Runs a job, once."""
        return self._summary

    @cached_property
    def _summary(self) -> DeleteRewriteSummary:
        size = sql.coalesce(sql.col("deletion_vector.size_in_bytes"), sql.col("file_size_in_bytes"))
        of_file = {
            "entries": sql.call("sum", 1),
            "records": sql.call("sum", sql.col("record_count")),
            "bytes": sql.call("sum", size),
        }
        is_vector = _IS_VECTOR.alias("is_vector")
        by_file = grouped(self._rewrite.entries, [is_vector, *sql.columns("location")], sql.named(of_file))
        entries = sql.col("entries")
        figures = {
            "position_delete_files": sql.call("sum", sql.when(sql.col("is_vector"), 0).otherwise(entries)),
            "puffin_files": sql.count_if(sql.col("is_vector")),
            "deletion_vectors": sql.call("sum", sql.when(sql.col("is_vector"), entries).otherwise(0)),
            "records": sql.call("sum", sql.col("records")),
            "bytes": sql.call("sum", sql.col("bytes")),
        }
        row = totals(by_file, sql.named(figures))
        counts = {name: row[name] or 0 for name in figures}
        file_format = "PUFFIN" if self._rewrite.makes_vectors else "PARQUET"
        return DeleteRewriteSummary(self.table.full_name, self._snapshot_id, file_format, **counts)

    def step(self) -> Step | None:
        """See `RewritePlan.step`. Writes the new delete files."""
        if self.summary().is_empty:
            return None
        if not self._written:
            self._written.append(WrittenDeletes(self._rewrite.write(self.summary().bytes)))
        new_deletes = frame_of(self._written[0].files, self._state)
        if not has_tree(self.table.metadata):
            return DeleteRewriteStep(self.branch, self.properties, self._rewrite, new_deletes)
        removed = self.to_df().where("file_format != 'PUFFIN'").select("file_path", "manifest_path")
        step = SnapshotStep(self.table.state, WriteTarget(self.branch), dict(self.properties))
        SnapshotUpdate(step).rewrite(removed, deletes=public_files(new_deletes, self._state))
        return step


def plan_delete_rewrite(table: TableT, options: DeleteRewriteOptions) -> DeleteRewritePlan[TableT]:
    """See `Maintenance.rewrite_position_delete_files`."""
    options.check()
    state = head_for_deletes(table, options.branch)
    options.sizes(table.metadata.properties)
    return DeleteRewritePlan(table, state, options)


def head_for_deletes(table: BaseTable, branch: str) -> TableState:
    """Return a branch's head for a plan that replaces deletes.

    Raises:
        ValidationError: a table property is invalid, or the branch is unknown.
        UnsupportedError: deletes of the table can't be replaced.
    """
    refuse_read_only(table)
    metadata = table.metadata
    refuse_rewrite(metadata)
    check_snapshot_options(metadata)
    head = branch_head(table.state, branch)
    delete_granularity(metadata.properties)
    delete_codec(metadata.properties)
    task_reader(head)
    return with_root(head, base_root(head)) if has_tree(metadata) else head
