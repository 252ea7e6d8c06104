"""Find the files that snapshots need, and the files that only expired snapshots need."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark.sql import functions as F

from sparkmeta.avro.manifest_list import inline_manifest_list
from sparkmeta.entries.relation import (
    collected,
    computed,
    distinct,
    first,
    grouped,
    head,
    mapped_together,
    matching,
    select,
    totals,
    union,
    where,
)
from sparkmeta.errors import translated_errors
from sparkmeta.expr import sql
from sparkmeta.inspect.manifests import few_lists
from sparkmeta.inspect.metadata_rows import few_files
from sparkmeta.maintain.reachable_tasks import (
    CONTENTS,
    LIST,
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
from sparkmeta.manifests.placement import MOST_ENTRIES, mapped_files
from sparkmeta.session import read_tasks
from sparkmeta.snapshot.state import task_reader
from sparkmeta.spec.entry import ContentType
from sparkmeta.storage.encryption import KEY_METADATA
from sparkmeta.storage.keys import manifest_list_key

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame

    from sparkmeta.entries.relation import Relation
    from sparkmeta.expr.sql import Sql
    from sparkmeta.session import MapFunction
    from sparkmeta.snapshot.state import TableState
    from sparkmeta.spec.metadata import Snapshot, TableMetadata
    from sparkmeta.storage.files import Files


#     SELECT content, path, max(length) FROM
#       statistics UNION lists UNION manifests UNION manifest DVs UNION live files of manifests
#     GROUP BY path HAVING NOT any(retained)
#
# Tasks read each list once, and each manifest once for each deletion vector that masks it. Manifests of retained
# snapshots are read too if they may list a file of an expired manifest again, as after a rewrite. `reachable_tasks`
# chooses the manifests that are likely to list such a file; in trees, they are the leaves newer than an expired root.
# The other manifests are read only if a data file would be deleted otherwise, or any file of a tree.


UNREACHABLE = pa.schema([REACHED.field(name) for name in ("content", "path", "length")])
_STATISTICS = {"statistics": "statistics file", "partition_statistics": "partition statistics file"}
_ALL_CONTENTS = (LIST, ROOT, MANIFEST, MANIFEST_DV, *CONTENTS.values(), *_STATISTICS.values(), MISSING)
_DATA_KIND = 0
_IS_READABLE = sql.col("content").isin([MANIFEST, ROOT]) & ~sql.col("removed")
_HAS_LIVE = ~sql.col("has_live").eqNullSafe(False)
# Maximum number of paths that are sent to tasks.
_MOST_SENT = 1 << 17
# An entry can occupy as little as 12 bytes of a leaf, but it takes 300 bytes of the driver's memory.
_LEAF_DENSITY = 8


def unreachable_files(state: TableState, expired: Collection[int], *, content_files: bool = True) -> Relation:
    """Find the files that only expired snapshots need, and return them as `UNREACHABLE`.

    The driver finds them if the lists and manifests are few; otherwise jobs do.

    Files of an expired snapshot that are already gone have the content `MISSING`.

    Args:
        state: the table, with the expired snapshots.
        expired: the ids of the expired snapshots.
        content_files: whether to find data and delete files as well, not only files of metadata.

    Raises:
        NotFoundError: a list or manifest of a retained snapshot is gone.
        UnsupportedError: tasks can't open the table's files.
    """
    if not expired:
        return UNREACHABLE.empty_table()
    with translated_errors():
        manifests = computed(_listed(state, expired))
        if not content_files or first(manifests, _IS_READABLE & ~sql.col("retained")) is None:
            return computed(_unneeded(_metadata_files(state, manifests, expired)))
        to_read, other_manifests, contents = _manifests_to_read(state, manifests, expired)
        reached = union(_metadata_files(state, manifests, expired), _content_files(state, to_read, REACHED), state)
        unneeded = computed(_unneeded(reached))
        files = _columns(where(unneeded, sql.col("content").isin(contents)), ["path"])
        allowed = state.access.limit(_MOST_SENT)
        paths = head(files, allowed + 1).column("path")
        if not len(paths) or first(other_manifests) is None:
            return unneeded
        sought = sorted(paths.to_pylist()) if len(paths) <= allowed else None
        listed = _content_files(state, other_manifests, PATHS, sought)
        return computed(matching(unneeded, listed, {"path": "path"}, absent=True))


class FileCounts(NamedTuple):
    """The numbers and known bytes of files by content, and the number of missing files."""

    files: dict[str, int]
    bytes: dict[str, int]
    missing: int


def count_files(files: Relation) -> FileCounts:
    """Count files, rows of `UNREACHABLE`. Runs a job if there are many."""
    counts = {"files": sql.call("sum", 1), "bytes": sql.call("sum", sql.col("length"))}
    counted = grouped(files, sql.columns("content"), sql.named(counts))
    # Without checkpoints, the job also computes which files these are.
    with translated_errors():
        listed = collected(counted).sort_by("content").to_pylist()
    rows = {row["content"]: row for row in listed}
    missing = rows.pop(MISSING, None)
    return FileCounts(
        {content: row["files"] for content, row in rows.items()},
        {content: row["bytes"] or 0 for content, row in rows.items()},
        missing["files"] if missing is not None else 0,
    )


def public_files(files: DataFrame) -> DataFrame:
    """Return files, rows of `UNREACHABLE`, as rows of plans, without missing files."""
    existing = files.where(F.col("content") != MISSING)
    return existing.withColumnsRenamed({"path": "file_path", "length": "file_size_in_bytes"})


def reachable_paths(state: TableState) -> Relation:
    """Return the paths of the files that snapshots need, and of their statistics. Paths may repeat. May run jobs.

    Raises:
        NotFoundError: a list or manifest is gone.
        UnsupportedError: tasks can't open the table's files.
    """
    with translated_errors():
        manifests = computed(_listed(state, ()))
        of_metadata = _columns(_metadata_files(state, manifests, ()), ["path"])
        return union(of_metadata, _content_files(state, manifests, PATHS), state)


def _unneeded(reached: Relation) -> Relation:
    """Return the files in rows of `REACHED` that no retained snapshot needs, as rows of `UNREACHABLE`."""
    content, length = sql.col("content"), sql.col("length")
    # A missing manifest also has a row from its list. Spark sorts rows to aggregate texts, so contents are numbers.
    number = _chosen((content == name, number) for number, name in enumerate(_ALL_CONTENTS))
    aggregates = {
        "missing": sql.call("max", content == MISSING),
        "content": sql.call("min", number),
        "length": sql.call("max", length),
        "retained": sql.call("max", sql.col("retained")),
    }
    by_path = grouped(reached, sql.columns("path"), sql.named(aggregates))
    name = _chosen((content == number, name) for number, name in enumerate(_ALL_CONTENTS))
    columns = {"content": sql.when(sql.col("missing"), MISSING).otherwise(name), "path": sql.col("path")}
    return select(where(by_path, ~sql.col("retained")), sql.named(columns | {"length": length}))


def _chosen(values: Iterable[tuple[Sql, Any]]) -> Sql:
    """Return the value of the first condition that is true; null if none is."""
    (condition, value), *others = values
    result = sql.when(condition, value)
    for condition, value in others:
        result = result.when(condition, value)
    return result.otherwise(None)


def _manifests_to_read(
    state: TableState, manifests: Relation, expired: Collection[int]
) -> tuple[Relation, Relation, list[str]]:
    """Divide manifests, rows of `LISTED`, by whether to read them first, or only before files are deleted.

    Returns:
        The expired manifests, with the retained manifests that are likely to share a file with them; the other retained
        manifests that may share one; and the contents of the files that the other manifests may list.
    """
    readable = where(manifests, _IS_READABLE)
    if state.has_trees:
        # Leaves of one snapshot rarely list the same file. If retained snapshots keep files of a dropped leaf, newer
        # leaves list them.
        snapshots = (snapshot for snapshot in state.metadata.snapshots if snapshot.snapshot_id in expired)
        oldest = min(snapshot.sequence_number or 0 for snapshot in snapshots)
        is_older = sql.col("retained") & (sql.col("first_listed") <= oldest).eqNullSafe(True)
        return where(readable, ~is_older), where(readable, is_older), list(CONTENTS.values())
    to_read = computed(_sharing(state, readable))
    is_data = _HAS_LIVE & sql.col("retained") & (sql.col("kind") == _DATA_KIND)
    others = matching(where(readable, is_data), _columns(to_read, ["path"]), {"path": "path"}, absent=True)
    return to_read, others, [CONTENTS[ContentType.DATA]]


def _sharing(state: TableState, readable: Relation) -> Relation:
    """Return the expired manifests of lists, and the retained manifests that are likely to share a file with them."""
    with_files = where(readable, _HAS_LIVE)
    expired = distinct(where(with_files, ~sql.col("retained")), ["kind", "spec_id"]).to_pylist()
    of_kinds = where(with_files, sql.col("kind").isin({row["kind"] for row in expired}))
    specs = {row["spec_id"] for row in expired if row["kind"] == _DATA_KIND}
    if len(specs) != 1:
        return of_kinds
    is_comparable = (sql.col("kind") == _DATA_KIND) & sql.col("spec_id").eqNullSafe(*specs)
    shared = SharedFiles({spec_id: tuple(fields) for spec_id, fields in state.types.spec_fields.items()})
    sharing = mapped_together(where(of_kinds, is_comparable), shared.chosen, LISTED)
    return union(sharing, where(of_kinds, ~is_comparable), state)


def _metadata_files(state: TableState, manifests: Relation, expired: Collection[int]) -> Relation:
    """Return statistics, lists, roots, manifests and their deletion vectors as `REACHED`."""
    dvs = {
        "content": sql.lit(MANIFEST_DV),
        "path": sql.col("dv.location"),
        "length": sql.lit(None).cast("bigint"),
        "retained": sql.col("retained"),
    }
    masked = where(manifests, sql.col("dv.location").isNotNull())
    vectors = select(masked, sql.named(dvs))
    statistics = statistics_files(state.metadata)
    retained = pa.array(
        [file_id not in expired for file_id in statistics.column("snapshot_id").to_pylist()], pa.bool_()
    )
    reached = statistics.select(UNREACHABLE.names).append_column(REACHED.field("retained"), retained)
    files = union(reached, _columns(manifests, REACHED.names), state)
    return union(files, vectors, state)


def _content_files(
    state: TableState, manifests: Relation, schema: pa.Schema, sought: Sequence[str] | None = None
) -> Relation:
    """Return the live files of manifests, rows of `LISTED`, as columns of `REACHED`. May run a job.

    Args:
        sought: the sorted paths of the files to return, possibly among others; None for all files.
    """
    trees = state.types.tree_types if state.has_trees else None
    reader = ContentReader(task_reader(state), trees, state.types.locations, schema, sought)
    readable = where(manifests, _IS_READABLE)
    return mapped_by_size(state, readable, reader, schema, 1 if trees is None else _LEAF_DENSITY)


def mapped_by_size(
    state: TableState, files: Relation, function: MapFunction, schema: pa.Schema, density: int = 1
) -> Relation:
    """Apply a function to files with their `length`, on the driver if they are few and small, else lazily in tasks.

    Args:
        function: opens the files itself, and yields batches of `schema`.
        density: the number of entries per byte, relative to Avro manifests.
    """
    figures = {"count": sql.call("sum", 1), "size": sql.call("sum", sql.col("length"))}
    count, size = (number or 0 for number in totals(files, sql.named(figures)).values())
    are_few, tasks = few_files(state, count, size * density), partial(read_tasks, files=count, size=size)
    return mapped_files(files, lambda _: function, schema, state, are_few=lambda _: are_few, tasks=tasks)


def _columns(rows: Relation, names: Sequence[str]) -> Relation:
    return select(rows, sql.columns(*names))


def used_specs(state: TableState, expired: Collection[int]) -> set[int] | None:
    """Return the ids of the partition specs of the retained snapshots' manifests. May run a job.

    Returns:
        None if snapshots have trees, since their leaves may have files of several specs.
    """
    if state.has_trees:
        return None
    manifests = where(_listed(state, expired), sql.col("retained") & sql.col("spec_id").isNotNull())
    return set(distinct(manifests, ["spec_id"]).column(0).to_pylist())


def manifests_of_snapshots(state: TableState) -> Relation:
    """Return the distinct manifests that snapshots list, as `UNREACHABLE`. May run jobs.

    Raises:
        NotFoundError: a list is gone.
    """
    with translated_errors():
        manifests = where(_listed(state, ()), (sql.col("content") == MANIFEST) & ~sql.col("removed"))
        return computed(_columns(manifests, UNREACHABLE.names))


def _listed(state: TableState, expired: Collection[int]) -> Relation:
    """Return the lists, roots and distinct manifests of all snapshots, as `LISTED`."""
    reader = ListReader(task_reader(state), state.types.tree_types if state.has_trees else None, state.types.locations)
    lists = snapshot_lists(state.files, state.metadata, expired)
    inline = pa.Table.from_batches(_inline_lists(state.metadata, expired), LISTED)
    are_few, tasks = partial(few_lists, state, MOST_ENTRIES), partial(read_tasks, files=len(lists), size=0)
    rows = mapped_files(lists, lambda _: reader, LISTED, state, are_few=are_few, tasks=tasks)
    rows = union(rows, inline, state) if len(inline) else rows
    keys = ("content", "path", "dv", "removed")
    functions = {"retained": "max", "first_listed": "min"}
    others = [name for name in LISTED.names if name not in keys]
    aggregates = [sql.call(functions.get(name, "first"), sql.col(name)).alias(name) for name in others]
    return _columns(grouped(rows, sql.columns(*keys), aggregates), LISTED.names)


def snapshot_lists(files: Files, metadata: TableMetadata, expired: Collection[int]) -> pa.Table:
    """Return the manifest lists and roots of snapshots, as `SNAPSHOTS`, without lists inside the metadata file.

    Raises:
        EncryptionError: the key of a manifest list is missing, refused or wrong.
    """
    rows = [
        {
            "snapshot_id": snapshot.snapshot_id,
            "sequence_number": snapshot.sequence_number,
            "location": snapshot.manifests_location,
            "retained": snapshot.snapshot_id not in expired,
            KEY_METADATA: manifest_list_key(files, metadata, snapshot),
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


def statistics_files(metadata: TableMetadata) -> pa.Table:
    """Return the statistics files that table metadata names, as `UNREACHABLE` with the id of their snapshot."""
    rows = [
        {
            "content": content,
            "path": file.statistics_path,
            "length": file.file_size_in_bytes,
            "snapshot_id": file.snapshot_id,
        }
        for name, content in _STATISTICS.items()
        for file in getattr(metadata, name)
    ]
    return pa.Table.from_pylist(rows, UNREACHABLE.append(pa.field("snapshot_id", pa.int64())))
