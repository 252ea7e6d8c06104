"""Detect conflicts of an operation with commits made since it began (semantics 12.3 to 12.6).

Each added or removed file is compared by its own partition and stats. Only leaves that other commits wrote and that may
hold relevant files are read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue, BooleanExpression, Or
from pyspark.sql import functions as F

from sparkmeta.changes.history import snapshots_since
from sparkmeta.checks import one_of
from sparkmeta.columns.predicate import parse_filter
from sparkmeta.commit.partitions import replaced_partitions
from sparkmeta.commit.relevant_changes import (
    COLUMNS,
    OTHERS,
    REPLACE,
    RelevantChanges,
    changes_matching,
    conflict,
    has_rows,
    refuse,
)
from sparkmeta.errors import CommitConflictError, ValidationError
from sparkmeta.manifests.v4.tree_manifests import IN_ROOT
from sparkmeta.plan.deletes.attach import attach_deletes
from sparkmeta.plan.deletes.entries import DeleteEntries
from sparkmeta.plan.deletes.views import is_dv, is_global_delete
from sparkmeta.plan.rows import DELETES
from sparkmeta.spec.entry import DELETE_FILE_PATH_ID, ContentType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.commit.new_files import NewFiles
    from sparkmeta.commit.removal import Removal
    from sparkmeta.spec.metadata import Snapshot
    from sparkmeta.state import TableState

Isolation = Literal["serializable", "snapshot"]
ISOLATION: Final = one_of("serializable", "snapshot")

_APPEND, _DELETE = "append", "delete"
_REPLACING = ("overwrite", REPLACE)


@dataclass(frozen=True)
class Validation:
    """A request to fail a commit that conflicts with concurrent ones.

    Attributes:
        row_filter: the rows that it read; None to use the files that it replaces.
        isolation: "serializable" also treats added data as a conflict.
        ignores_deletes: whether rows that it read may be deleted if it only deletes or adds rows.
    """

    row_filter: BooleanExpression | str | None = None
    isolation: Isolation = "serializable"
    ignores_deletes: bool = False


@dataclass(frozen=True)
class Operation:
    """The parts of an update that decide whether other commits conflict with it.

    Attributes:
        filters: the filters by which it removes data files.
        partitions_of: the files in whose partitions it removes the data files.
        names_files: whether it removes files by name.
        adds_deletes: whether it adds deletes of rows.
    """

    filters: Sequence[BooleanExpression | str] = ()
    partitions_of: Sequence[DataFrame] = ()
    names_files: bool = False
    adds_deletes: bool = False

    @property
    def removes_by_rows(self) -> bool:
        """Whether it removes files by their rows, so that concurrent removals of matching files conflict."""
        return bool(self.filters or self.partitions_of)


def validate(head: TableState, validation: Validation, operation: Operation, start: int | None) -> None:
    """Refuse an operation that conflicts with commits since the snapshot `start` (semantics 12.3 to 12.5).

    Deletes that apply to files removed by name are checked by `refuse_new_deletes`.

    Args:
        head: the table at the branch's head.
        validation: what to check.
        operation: the parts of the update that decide what conflicts.
        start: the snapshot that was read; None for an empty table.

    Raises:
        CommitConflictError: another commit added or removed a relevant file, or the start is no ancestor of the head.
    """
    history = snapshots_since(head, start)
    if not history:
        return
    names_rows = operation.names_files or operation.adds_deletes
    scopes = _scopes(head, history, validation.row_filter, operation)
    if validation.isolation == "serializable":
        everything = validation.row_filter is None and names_rows
        for scope in [changes_matching(head, history, AlwaysTrue())] if everything else scopes:
            refuse(head, scope.added(ContentType.DATA_MANIFEST), "added data that may match")
    by_rows = not validation.ignores_deletes and (operation.removes_by_rows or not names_rows)
    for scope in scopes:
        if by_rows or (operation.adds_deletes and not validation.ignores_deletes):
            refuse(head, scope.added(ContentType.DELETE_MANIFEST), "added deletes of rows that may match")
        if by_rows:
            refuse(head, scope.removed(ContentType.DATA_MANIFEST), "removed a data file that may match")


def refuse_new_data(head: TableState, files: DataFrame, start: int | None) -> None:
    """Refuse to overwrite the partitions of files if data was added to them since the snapshot `start`.

    Args:
        files: rows with the columns of `inspect.files`.

    Raises:
        CommitConflictError: another commit added a data file to one of the partitions.
    """
    if history := snapshots_since(head, start):
        for scope in _scopes(head, history, None, Operation(partitions_of=(files,))):
            refuse(head, scope.added(ContentType.DATA_MANIFEST), "added data to a partition that is overwritten")


def refuse_missing_data(head: TableState, files: DataFrame, start: int | None, *, with_deletes: bool) -> None:
    """Refuse deletes of rows in data files that others have removed since the snapshot `start` (semantics 12.5).

    The deletes would not apply to the files that replace these.

    Args:
        head: the state to which the deletes are to be added.
        files: the data files, rows with `file_path`.
        start: the snapshot that was read.
        with_deletes: whether data files removed by a `delete` operation count as well.

    Raises:
        CommitConflictError: one of the files is gone.
    """
    operations = {*_REPLACING, _DELETE} if with_deletes else {*_REPLACING}
    history = [snapshot for snapshot in snapshots_since(head, start) if snapshot.operation in operations]
    if not history:
        return
    paths = files.select(F.col("file_path").alias("referenced_path"))
    for removed in changes_matching(head, history, AlwaysTrue()).removed(ContentType.DATA_MANIFEST):
        gone = removed.join(paths, F.col("location") == F.col("referenced_path"), "left_semi")
        refuse(head, [gone], "removed a data file that the new position deletes are about")


def refuse_new_dvs(
    head: TableState, state: TableState, new: NewFiles, named: Sequence[DataFrame], start: int | None
) -> None:
    """Refuse new deletion vectors of data files that got one since the snapshot `start` (semantics 12.5).

    A change that names a live deletion vector to replace it has read it.

    Args:
        head: the table at the branch's head.
        state: the state to which the deletion vectors are to be added.
        new: the new files.
        named: the files that the change removes by name, which are live.
        start: the snapshot that was read.

    Raises:
        CommitConflictError: another commit added a deletion vector for one of the data files.
    """
    history = [snapshot for snapshot in snapshots_since(head, start) if snapshot.operation != _APPEND]
    if not history:
        return
    deletes = new.of([ContentType.POSITION_DELETES], ContentType.DELETE_MANIFEST).frame(state)
    targets = deletes.where(is_dv().text).select(F.col("referenced_file").alias("target"))
    frames = changes_matching(head, history, AlwaysTrue()).added(ContentType.DELETE_MANIFEST, rewritten=True)
    if not frames:
        return
    dvs = _union(frames).where(is_dv().text)
    same = dvs.join(targets, F.col("referenced_file") == F.col("target"), "left_semi")
    for files in named:
        if "content_offset" in files.columns:
            names = files.select("file_path", "content_offset")
            is_named = F.col("location") == F.col("file_path")
            is_named &= F.col("deletion_vector.offset") == F.col("content_offset")
            read = dvs.join(names, is_named, "left_semi").select(F.col("referenced_file").alias("read"))
            same = same.join(read, F.col("referenced_file") == F.col("read"), "left_anti")
    refuse(head, [same], "added a deletion vector for the same data file")


def refuse_other_specs(head: TableState, specs: Collection[int], start: int | None) -> None:
    """Refuse equality deletes that don't apply to data files which were added since the snapshot `start`.

    Args:
        head: the table at the branch's head.
        specs: the partition specs of the deletes.
        start: the snapshot that was read.

    Raises:
        CommitConflictError: a data file of another partition spec was added.
    """
    if not (history := snapshots_since(head, start)):
        return
    for added in changes_matching(head, history, AlwaysTrue()).added(ContentType.DATA_MANIFEST, rewritten=True):
        uncovered = added.where(~F.col("partition_spec_id").isin(*specs))
        refuse(head, [uncovered], "added data of a partition spec to which the new equality deletes do not apply")


def refuse_deletes_of_moved_rows(
    head: TableState, state: TableState, files: DataFrame, removal: Removal, new: NewFiles, start: int | None
) -> None:
    """Refuse to move rows to another partition spec past partitioned equality deletes added since the snapshot `start`.

    Such a delete applies only to data files of its spec: to the replaced files but not the new ones, or vice versa.

    Args:
        head: the table at the branch's head.
        state: the state that the files are removed from.
        files: the replaced files, rows with `file_path`.
        removal: the entries of these files.
        new: the new files.
        start: the snapshot that was read.

    Raises:
        CommitConflictError: another commit added an equality delete of one of the specs.
    """
    if not (history := snapshots_since(head, start)):
        return
    equality = F.col("content_type") == int(ContentType.EQUALITY_DELETES)
    scope = changes_matching(head, history, AlwaysTrue())
    partitioned = [
        added.where(equality & ~is_global_delete(head).column()) for added in scope.added(ContentType.DELETE_MANIFEST)
    ]
    if not any(map(has_rows, partitioned)):
        return
    moved = [_named_entries(state, files, removal), new.of([ContentType.DATA], ContentType.DATA_MANIFEST).frame(state)]
    specs = [row[0] for row in _union([frame.select("partition_spec_id") for frame in moved]).distinct().collect()]
    if len(specs) > 1:
        deletes = [frame.where(F.col("partition_spec_id").isin(specs)) for frame in partitioned]
        refuse(head, deletes, "added equality deletes of one partition spec, and rows move to another one")


def refuse_new_row_ids(head: TableState, start: Snapshot | None) -> None:
    """Refuse rows that were read before their files had row ids, since the new files would give them others.

    The first commit after an upgrade to format version 3 assigns row ids to all files.

    Args:
        head: the table at the branch's head.
        start: the snapshot that was read; None if the table was empty.

    Raises:
        CommitConflictError: another commit has assigned row ids.
    """
    if start is None or start.first_row_id is not None or head.snapshot is None or head.snapshot.first_row_id is None:
        return
    raise CommitConflictError(
        f"{head.metadata.location}: another commit has assigned row ids to the files of snapshot {start.snapshot_id}, "
        "but this one read their rows without row ids: read them again"
    )


def refuse_replaced_data(head: TableState, start: int | None) -> None:
    """Refuse new position delete files if data files may have been replaced since the snapshot `start`.

    For delete files that don't name their data files.

    Raises:
        CommitConflictError: another commit has replaced files.
    """
    for snapshot in snapshots_since(head, start):
        if snapshot.operation in _REPLACING:
            raise CommitConflictError(
                f"{head.metadata.location}: snapshot {snapshot.snapshot_id} may have replaced data files that the new "
                "position delete files are about"
            )


def refuse_new_deletes(
    head: TableState,
    state: TableState,
    files: DataFrame,
    removal: Removal,
    start: int | None,
    row_filter: BooleanExpression | str | None = None,
    *,
    by_position: bool = False,
) -> None:
    """Refuse to replace data files if rows of them were deleted since the snapshot `start`.

    The new files might contain these rows. As in scan planning, a deletion vector applies to a file by path, and an
    equality delete by partition, sequence number and stats.

    Args:
        head: the table at the branch's head.
        state: the state that the files are removed from.
        files: the replaced files, rows with `file_path`.
        removal: the entries of these files.
        start: the snapshot that was read.
        row_filter: the rows that were read; deletes of other rows do not conflict.
        by_position: whether only deletes by position conflict, since equality deletes apply to the new files as well.

    Raises:
        CommitConflictError: a new delete applies to one of the files.
    """
    history = snapshots_since(head, start)
    if not history or not (removal.masks or removal.keys):
        return
    scope = changes_matching(head, history, AlwaysTrue() if row_filter is None else row_filter)
    paths = files.select(F.col("file_path").alias("replaced_path"))
    compared_ids = []
    others = ~is_dv().column()
    if by_position:
        others &= F.col("content_type") == int(ContentType.POSITION_DELETES)
    for added in scope.added(ContentType.DELETE_MANIFEST):
        dvs, equality_deletes = added.where(is_dv().text), added.where(others)
        if has_rows(dvs):
            replaced = dvs.join(paths, F.col("referenced_file") == F.col("replaced_path"), "left_semi")
            refuse(head, [replaced], "deleted rows of a file to replace")
        if has_rows(equality_deletes):
            compared_ids.append(equality_deletes.select(F.explode("equality_ids").alias("id")))
    if not compared_ids:
        return
    ids = frozenset(row["id"] for row in _union(compared_ids).distinct().collect())
    with_stats = replace(scope, more_stats=ids | {DELETE_FILE_PATH_ID})
    new = _union([frame.where(others) for frame in with_stats.added(ContentType.DELETE_MANIFEST)])
    deletes = DeleteEntries(new, head.delete_manifests, ids)
    applied = attach_deletes(_named_entries(state, files, removal, ids), deletes, state).where(F.size(DELETES) > 0)
    for row in applied.select("location").limit(1).collect():
        raise conflict(head, OTHERS, "added deletes that apply to a file to replace", row["location"])


def refuse_newer_data(state: TableState, files: DataFrame, removal: Removal, sequence_number: int) -> None:
    """Refuse to replace data files with files that have a lower data sequence number.

    Deletes between the two numbers do not apply to the replaced files, but would apply to the new ones.

    Args:
        state: the state that the files are removed from.
        files: the replaced files, rows with `file_path`.
        removal: the entries of these files.
        sequence_number: the data sequence number of the new files.

    Raises:
        ValidationError: a replaced file has a higher number.
    """
    if state.snapshot is None or (state.snapshot.sequence_number or 0) <= sequence_number:
        return
    number = F.col("version_info.sequence_number")
    newer = _named_entries(state, files, removal).where(number > sequence_number)
    for location, higher in newer.select("location", number).limit(1).collect():
        raise ValidationError(
            f"{state.metadata.location}: data_sequence_number is {sequence_number}: {location}, which is replaced, has "
            f"{higher}"
        )


def _named_entries(state: TableState, files: DataFrame, removal: Removal, stats: Iterable[int] = ()) -> DataFrame:
    """Return the live entries of replaced data files, from the root and the leaves that these are removed from."""
    manifests = state.data_manifests
    masked = pc.is_in(manifests.column("location"), pa.array(sorted(removal.masks), pa.string()))
    manifests = manifests.filter(pc.or_(masked, pc.equal(manifests.column("file_format"), IN_ROOT)))
    live = state.entries(manifests, state.projection(COLUMNS, stats)).where(F.col("version_info.status") < 2)
    paths = files.select(F.col("file_path").alias("replaced_path"))
    return live.join(paths, F.col("location") == F.col("replaced_path"), "left_semi")


# -- what others changed ------------------------------------------------------------------------------------------


def _scopes(
    head: TableState,
    history: Sequence[Snapshot],
    row_filter: BooleanExpression | str | None,
    operation: Operation,
) -> list[RelevantChanges]:
    """Return the scopes of an operation: what it read, otherwise what it replaces, otherwise the whole table."""
    if row_filter is not None:
        return [changes_matching(head, history, row_filter)]
    everything = changes_matching(head, history, AlwaysTrue())
    scopes = [replace(everything, partitions=replaced_partitions(head, files)) for files in operation.partitions_of]
    if operation.filters:
        scopes.append(changes_matching(head, history, reduce(Or, map(parse_filter, operation.filters))))
    return scopes or [everything]


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(lambda left, right: left.unionByName(right), frames)
