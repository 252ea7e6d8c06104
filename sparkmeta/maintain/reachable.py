"""Find the files that snapshots need, and the files that only expired snapshots need."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyspark.sql import functions as F

from sparkmeta.arrow_types import spark_schema
from sparkmeta.avro.manifest_list import inline_manifest_list
from sparkmeta.commit.sorted_manifests import task_reader
from sparkmeta.errors import translated_errors
from sparkmeta.maintain.reachable_tasks import (
    CONTENTS,
    LISTED,
    MANIFEST,
    MANIFEST_DV,
    MISSING,
    PATHS,
    REACHED,
    ROOT,
    SNAPSHOTS,
    ContentReader,
    ListReader,
    SharedFiles,
    listed_manifests,
)
from sparkmeta.session import local_frame, map_arrow, materialize, read_tasks
from sparkmeta.spec.entry import ContentType

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from pyspark.sql import DataFrame

    from sparkmeta.spec.metadata import Snapshot, TableMetadata
    from sparkmeta.state import TableState
    from sparkmeta.storage.executors import ExecutorReader


#     SELECT content, path, max(length) FROM
#       statistics UNION lists UNION manifests UNION manifest DVs UNION live files of manifests
#     GROUP BY path HAVING NOT any(retained)
#
# Tasks read each list once, and each manifest once for each deletion vector that masks it. Manifests of retained
# snapshots are read too if they may list a file of an expired manifest again, as after a rewrite. `reachable_tasks`
# chooses the manifests that are likely to list one. The others are read only if a data file would be deleted otherwise.


UNREACHABLE = pa.schema([REACHED.field(name) for name in ("content", "path", "length")])
_DATA_KIND = 0
_IS_READABLE = f"content IN ('{MANIFEST}', '{ROOT}') AND NOT removed"
_STATISTICS = {"statistics": "statistics file", "partition_statistics": "partition statistics file"}


def unreachable_files(state: TableState, expired: Collection[int], *, content_files: bool = True) -> DataFrame:
    """Find the files that only expired snapshots need, and return them as `UNREACHABLE`. Runs jobs.

    Files of an expired snapshot that are already gone have the content `MISSING`.

    Args:
        state: the table, with the expired snapshots.
        expired: the ids of the expired snapshots.
        content_files: whether to look for data and delete files too, not only for files of metadata.

    Raises:
        NotFoundError: a list or manifest of a retained snapshot is gone.
        UnsupportedError: tasks can't open the table's files.
    """
    if not expired:
        return local_frame(state.spark, UNREACHABLE.empty_table())
    with translated_errors():
        manifests = materialize(_listed(state, task_reader(state), expired))
        readable = manifests.where(_IS_READABLE)
        if not content_files or readable.where("NOT retained").isEmpty():
            return materialize(_unneeded(_of_metadata(state, manifests, expired)))
        needed = materialize(_needed(state, manifests))
        reached = _of_metadata(state, manifests, expired).union(_content_files(state, needed, REACHED))
        unneeded = materialize(_unneeded(reached))
        others = readable.where(f"retained AND kind = {_DATA_KIND} AND has_live IS NOT false")
        others = others.join(needed.select("path"), "path", "left_anti").select(*LISTED.names)
        if others.isEmpty() or unneeded.where(F.col("content") == CONTENTS[ContentType.DATA]).isEmpty():
            return unneeded
        return materialize(unneeded.join(_content_files(state, others, PATHS), "path", "left_anti"))


class FileCounts(NamedTuple):
    """The numbers and known bytes of files by content, and the number of missing files."""

    files: dict[str, int]
    bytes: dict[str, int]
    missing: int


def count_files(files: DataFrame) -> FileCounts:
    """Count files, rows of `UNREACHABLE`, by a job."""
    grouped = files.groupBy("content").agg(F.count("*").alias("files"), F.sum("length").alias("bytes"))
    # Without checkpoints, the job also computes which files these are.
    with translated_errors():
        rows = {row.content: row for row in grouped.orderBy("content").collect()}
    missing = rows.pop(MISSING, None)
    return FileCounts(
        {content: row.files for content, row in rows.items()},
        {content: row.bytes or 0 for content, row in rows.items()},
        missing.files if missing is not None else 0,
    )


def public_files(files: DataFrame) -> DataFrame:
    """Return files, rows of `UNREACHABLE`, in the form for plans: without missing files."""
    shown = files.where(F.col("content") != MISSING)
    return shown.withColumnsRenamed({"path": "file_path", "length": "file_size_in_bytes"})


def reachable_paths(state: TableState) -> DataFrame:
    """Return the paths of the files that snapshots need, and of their statistics. Paths may repeat. Runs jobs.

    Raises:
        NotFoundError: a list or manifest is gone.
        UnsupportedError: tasks can't open the table's files.
    """
    with translated_errors():
        manifests = materialize(_listed(state, task_reader(state), ()))
        return _of_metadata(state, manifests, ()).select("path").union(_content_files(state, manifests, PATHS))


def _unneeded(reached: DataFrame) -> DataFrame:
    """Return the files in rows of `REACHED` that no retained snapshot needs, as rows of `UNREACHABLE`."""
    # A missing manifest also has a row from its list.
    missing = F.max(F.when(F.col("content") == MISSING, F.col("content")))
    content = F.coalesce(missing, F.min("content")).alias("content")
    lengths = F.max("length").alias("length")
    by_path = reached.groupBy("path").agg(content, lengths, F.max("retained").alias("retained"))
    return by_path.where("NOT retained").select(*UNREACHABLE.names)


def _needed(state: TableState, manifests: DataFrame) -> DataFrame:
    """Return the expired manifests, rows of `LISTED`, and the retained ones that probably share a file with them."""
    readable = manifests.where(_IS_READABLE)
    if state.has_trees:
        return readable
    with_files = readable.where("has_live IS NOT false").select(*LISTED.names)
    expired = with_files.where("NOT retained").select("kind", "spec_id").distinct().collect()
    of_kinds = with_files.where(F.col("kind").isin({row.kind for row in expired}))
    specs = {row.spec_id for row in expired if row.kind == _DATA_KIND}
    if len(specs) != 1:
        return of_kinds
    is_comparable = (F.col("kind") == _DATA_KIND) & F.col("spec_id").eqNullSafe(*specs)
    shared = SharedFiles({spec_id: tuple(fields) for spec_id, fields in state.types.spec_fields.items()})
    compared = of_kinds.where(is_comparable).groupBy("spec_id")
    # PySpark mistakes a method for a function of two arguments.
    chosen = compared.applyInArrow(lambda manifests: shared.chosen(manifests), spark_schema(LISTED))  # noqa: PLW0108
    return chosen.union(of_kinds.where(~is_comparable))


def _of_metadata(state: TableState, manifests: DataFrame, expired: Collection[int]) -> DataFrame:
    """Return statistics, lists, roots, manifests and their deletion vectors as `REACHED`."""
    paths = manifests.select("content", "path", "length", "retained")
    dvs = manifests.where("dv.location IS NOT NULL").select(
        F.lit(MANIFEST_DV).alias("content"), F.col("dv.location").alias("path"), F.lit(None).cast("long"), "retained"
    )
    return local_frame(state.spark, _statistics(state.metadata, expired)).union(paths).union(dvs)


def _content_files(state: TableState, manifests: DataFrame, schema: pa.Schema) -> DataFrame:
    """Return the live files of manifests, rows of `LISTED`, as columns of `REACHED`. Runs a job."""
    trees = state.types.tree_types if state.has_trees else None
    read = ContentReader(task_reader(state), trees, state.types.locations, schema)
    readable = manifests.where(_IS_READABLE)
    count, size = readable.agg(F.count("*"), F.coalesce(F.sum("length"), F.lit(0))).collect()[0]
    return map_arrow(readable.repartition(read_tasks(state.spark, count, size)), read, schema)


def used_specs(state: TableState, expired: Collection[int]) -> set[int] | None:
    """Return the ids of the partition specs of the retained snapshots' manifests. Runs a job.

    Returns:
        None if snapshots have trees, since their leaves may have files of several specs.
    """
    if state.has_trees:
        return None
    manifests = _listed(state, task_reader(state), expired).where("retained AND spec_id IS NOT NULL")
    return {row.spec_id for row in manifests.select("spec_id").distinct().collect()}


def _listed(state: TableState, reader: ExecutorReader, expired: Collection[int]) -> DataFrame:
    """Return the lists, roots and distinct manifests of all snapshots, as `LISTED`."""
    read = ListReader(reader, state.types.tree_types if state.has_trees else None, state.types.locations)
    snapshots = _snapshots(state.metadata, expired)
    lists = local_frame(state.spark, snapshots).repartition(read_tasks(state.spark, len(snapshots), 0))
    rows = map_arrow(lists, read, LISTED)
    inline = [*_inline_lists(state.metadata, expired)]
    if inline:
        rows = rows.union(local_frame(state.spark, pa.Table.from_batches(inline, LISTED)))
    keys = ("content", "path", "dv", "removed")
    firsts = [F.first(name).alias(name) for name in LISTED.names if name not in (*keys, "retained")]
    distinct = rows.groupBy(*keys).agg(F.max("retained").alias("retained"), *firsts)
    return distinct.select(*LISTED.names)


def _snapshots(metadata: TableMetadata, expired: Collection[int]) -> pa.Table:
    rows = [
        {
            "snapshot_id": snapshot.snapshot_id,
            "sequence_number": snapshot.sequence_number,
            "location": snapshot.manifests_location,
            "retained": snapshot.snapshot_id not in expired,
        }
        for snapshot in metadata.snapshots
        if snapshot.manifests_location
    ]
    return pa.Table.from_pylist(rows, SNAPSHOTS)


def _inline_lists(metadata: TableMetadata, expired: Collection[int]) -> Iterator[pa.RecordBatch]:
    """Yield the manifests of v1 snapshots that the table metadata lists itself, as `LISTED`."""
    for snapshot in metadata.snapshots:
        if paths := _inline(snapshot):
            manifests = inline_manifest_list(paths, [0] * len(paths), snapshot.snapshot_id)
            yield listed_manifests(manifests, retained=snapshot.snapshot_id not in expired)


def _inline(snapshot: Snapshot) -> list[str]:
    return [] if snapshot.manifests_location else list(snapshot.inline_manifests or ())


def _statistics(metadata: TableMetadata, expired: Collection[int]) -> pa.Table:
    rows = [
        {
            "content": content,
            "path": file.statistics_path,
            "length": file.file_size_in_bytes,
            "retained": file.snapshot_id not in expired,
        }
        for name, content in _STATISTICS.items()
        for file in getattr(metadata, name)
    ]
    return pa.Table.from_pylist(rows, REACHED)
