"""Refuse changes that conflict with other commits (semantics 12.3 to 12.6), and files that are added twice."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue, BooleanExpression, Or
from pyspark.sql import functions as F

from sparkmeta.changes.file_changes import SNAPSHOT, EntryChanges, snapshots_since
from sparkmeta.checks import one_of
from sparkmeta.commit.new_files import in_partitions, replaced_partitions
from sparkmeta.commit.removed_files import without
from sparkmeta.entries.live import is_kind
from sparkmeta.entries.relation import (
    columns_of,
    distinct,
    elements,
    first,
    has_rows,
    matching,
    matching_key,
    names,
    repeated,
    some_columns,
    union,
    where,
)
from sparkmeta.errors import CommitConflictError, ValidationError
from sparkmeta.expr import sql
from sparkmeta.expr.predicate import parse_filter
from sparkmeta.manifests.v4.root import one_of as of_kinds
from sparkmeta.manifests.v4.tree_manifests import IN_ROOT
from sparkmeta.plan.deletes.attach import attach_deletes
from sparkmeta.plan.deletes.groups import DeleteEntries
from sparkmeta.plan.deletes.rules import is_dv, is_global_delete
from sparkmeta.plan.filter import DELETES, ScanFilter, stats_match, tuple_matches
from sparkmeta.plan.prune import matching_manifests
from sparkmeta.snapshot.search import (
    SEARCH_COLUMNS,
    leaves_of_partitions,
    live_entries,
    live_leaves,
    live_relation,
    names_of,
    root_manifests,
    search_all,
)
from sparkmeta.spec.entry import DELETE_FILE_PATH_ID, ContentType
from sparkmeta.storage.reading import location_key

if TYPE_CHECKING:
    from sparkmeta.commit.new_files import NewFiles
    from sparkmeta.commit.removed_files import Removal, Searches
    from sparkmeta.entries.relation import Relation
    from sparkmeta.snapshot.state import TableState
    from sparkmeta.spec.metadata import Snapshot


# -- Relevant changes of other commits --------------------------------------------------------------------------------
# Changes are relevant if they are in files that an operation read or replaces.


COLUMNS = (*SEARCH_COLUMNS, "equality_ids")
OTHERS = "another commit or an earlier change of this transaction"
REPLACE = "replace"


@dataclass(frozen=True)
class RelevantChanges:
    """The changes of concurrent snapshots that are relevant to an operation.

    Attributes:
        history: the snapshots, newest first.
        filter: a filter that relevant files may match.
        partitions: the partitions of relevant files, rows of `new_partitions`; None for all partitions.
        more_stats: columns whose stats are read in addition to the filter's columns.
    """

    head: TableState
    history: Sequence[Snapshot]
    filter: ScanFilter
    partitions: Relation | None = None
    more_stats: frozenset[int] = frozenset()

    @cached_property
    def _changes(self) -> EntryChanges:
        projection = self.head.projection(COLUMNS, self.filter.undecided_ids | self.more_stats)
        changes = EntryChanges(self.head, projection, keep=lambda manifests: matching_manifests(manifests, self.filter))
        for snapshot in reversed(self.history):
            changes.add(snapshot)
        return changes

    def added(self, content: ContentType, *, rewritten: bool = False) -> list[Relation]:
        """Return the added files. Unless `rewritten`, omit files that rewrites added, since rewrites change no rows."""
        changes = self._changes_of_rows(rewritten=rewritten)
        return [*map(self._matching, changes.added(content))]

    def removed(self, content: ContentType, *, rewritten: bool = True) -> list[Relation]:
        """Return the removed files. Unless `rewritten`, omit files that rewrites replaced."""
        changes = self._changes_of_rows(rewritten=rewritten)
        return [*map(self._matching, changes.removed(content))]

    def _changes_of_rows(self, *, rewritten: bool) -> EntryChanges:
        """Return the changes. Unless `rewritten`, omit changes by rewrites."""
        ids = {snapshot.snapshot_id for snapshot in self.history if rewritten or snapshot.operation != REPLACE}
        return self._changes.of_snapshots(ids)

    def _matching(self, entries: Relation) -> Relation:
        """Return the relevant entries, including DELETED ones."""
        matching = where(entries, tuple_matches(self.filter) & stats_match(self.filter))
        if self.partitions is None or not has_rows(matching):
            return matching
        return in_partitions(self.head, matching, self.partitions)


def changes_matching(
    head: TableState, history: Sequence[Snapshot], row_filter: BooleanExpression | str
) -> RelevantChanges:
    """Return the changes of snapshots, newest first, in files that may match a filter.

    A file is a conflict if it may match in either meaning of the filter: as in Iceberg's Java library, where a null
    matches `!=`, NOT IN and NOT LIKE, and as in SQL, where NaN is greater than all numbers.
    """
    scan, as_java = (ScanFilter.of(head, row_filter, two_valued=two_valued) for two_valued in (False, True))
    if scan.row_filter == as_java.row_filter:
        return RelevantChanges(head, history, scan)
    return RelevantChanges(head, history, replace(scan, row_filter=Or(scan.row_filter, as_java.row_filter)))


def refuse(head: TableState, changes: Iterable[Relation], problem: str) -> None:
    """Raise CommitConflictError if there are changes of other commits, rows with `location` and `SNAPSHOT`."""
    for rows in changes:
        if row := first(some_columns(rows, ("location", SNAPSHOT))):
            raise conflict(head, f"snapshot {row[SNAPSHOT]}, of {OTHERS},", problem, row["location"])


def conflict(head: TableState, author: str, problem: str, location: str) -> CommitConflictError:
    """Return the error for a file that another commit changed."""
    return CommitConflictError(f"{head.metadata.location}: {author} {problem}: {location}")


# -- Refuse files that are already live or added twice ----------------------------------------------------------------
# Only leaves that may hold the file's partition are searched. The root's stats select leaves, and Parquet statistics
# select row groups. A path that is live in another partition, or is spelled differently, is detected only by
# `refuse_added_paths` and `Table.check`.


_KINDS = (
    ([ContentType.DATA], ContentType.DATA_MANIFEST),
    ([ContentType.POSITION_DELETES, ContentType.EQUALITY_DELETES], ContentType.DELETE_MANIFEST),
)


def refuse_duplicates(state: TableState, added: NewFiles, removal: Removal, searches: Searches) -> None:
    """Refuse a commit that would give the table two live entries for a file.

    Args:
        added: the new files.
        removal: the files that the commit removes; a new file may reuse the path of one of them.
        searches: the commit's searches.

    Raises:
        ValidationError: the commit adds a file twice.
        CommitConflictError: a file is already in the table.
    """
    if not added.count:
        return
    files = added.relation(state)
    names = columns_of(files, {"path": "location", "offset": "deletion_vector.offset"})
    if duplicate := repeated(names, ["path", "offset"]):
        raise ValidationError(f"{state.metadata.location}: {duplicate['path']} is added twice by the commit")
    for suspects in _suspects(state, added, files, searches):
        live = without(suspects, removal, state)
        if live_entry := first(matching(live, names, {"location": "path", "deletion_vector.offset": "offset"})):
            raise _already_in_table(state, live_entry["location"])


def refuse_added_paths(head: TableState, state: TableState, added: NewFiles, start: int | None) -> None:
    """Refuse new data files that have been added since the snapshot `start`, however their paths are spelled.

    Args:
        head: the table at the branch's head.
        state: the state that the files are added to.
        added: the new files.
        start: the branch's head when the operation began.

    Raises:
        CommitConflictError: another commit, or an earlier change of the transaction, added one of the files.
    """
    if not (history := snapshots_since(head, start)):
        return
    changes = changes_matching(head, history, AlwaysTrue())
    new_data = added.of([ContentType.DATA], ContentType.DATA_MANIFEST).relation(state)
    for others in changes.added(ContentType.DATA_MANIFEST, rewritten=True):
        if duplicate := first(_same_paths(new_data, others)):
            raise _already_in_table(state, duplicate["location"])


def _same_paths(files: Relation, others: Relation) -> Relation:
    """Return the `location` of files that are also in `others`, however their paths are spelled."""
    return matching_key(some_columns(files, ["location"]), others, location_key(sql.col("location")))


def _suspects(state: TableState, added: NewFiles, files: Relation, searches: Searches) -> Iterator[Relation]:
    """Yield live entries that may have the path of a new file."""
    if isinstance(files, pa.Table):
        stages = [search_all(root_manifests(state))]
        for kinds, content in _KINDS:
            if len(new_files := files.filter(of_kinds(files, kinds))):
                stages.append(search_all(leaves_of_partitions(state, live_leaves(state, content), new_files)))
        yield searches.new_files.find(state, names_of(files), stages)
        return
    path = F.xxhash64("location", "deletion_vector.offset")
    for kinds, content in _KINDS:
        new_files, leaves = added.of(kinds, content), live_leaves(state, content)
        if new_files.count and len(leaves) and len(sharing_leaves := new_files.sharing_partitions(state, leaves)):
            # Spark broadcasts hashes instead of shuffling the paths of all live files.
            hashes = F.broadcast(new_files.frame(state).select(path.alias("hash")))
            yield live_entries(state, sharing_leaves).join(hashes, path == F.col("hash"), "left_semi")


def _already_in_table(state: TableState, path: str) -> CommitConflictError:
    return CommitConflictError(f"{state.metadata.location}: {path} is in the table already")


# -- Conflicts with other commits (semantics 12.3 to 12.6) ------------------------------------------------------------
# Each added or removed file is compared by its own partition and stats. Only leaves that other commits wrote and that
# may hold relevant files are read.


Isolation = Literal["serializable", "snapshot"]
ISOLATION: Final = one_of("serializable", "snapshot")

_APPEND, _DELETE = "append", "delete"
_REPLACING = ("overwrite", REPLACE)


@dataclass(frozen=True)
class Validation:
    """A request to fail a commit that conflicts with concurrent ones.

    Attributes:
        row_filter: the rows that the operation read; None to use the files that it replaces.
        isolation: "serializable" also treats added data as a conflict.
        ignores_deletes: whether others may delete rows that the operation read. For operations that only delete or add
            rows.
        depends_on_rows: whether the operation depends on rows that it read but does not replace. If it is serializable,
            others must not delete any of them.
    """

    row_filter: BooleanExpression | str | None = None
    isolation: Isolation = "serializable"
    ignores_deletes: bool = False
    depends_on_rows: bool = False


@dataclass(frozen=True)
class Operation:
    """The parts of an update that decide whether other commits conflict with it.

    Attributes:
        filters: the filters that select the data files to remove.
        partitions_of: new files. The update removes the data files in their partitions.
        names_files: whether the update removes files by name.
        adds_deletes: whether the update adds deletes of rows.
    """

    filters: Sequence[BooleanExpression | str] = ()
    partitions_of: Sequence[Relation] = ()
    names_files: bool = False
    adds_deletes: bool = False

    @property
    def removes_by_rows(self) -> bool:
        """Whether the update removes files by their rows, so that concurrent removals of matching files conflict."""
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
        CommitConflictError: another commit added or removed a relevant file, or the start is not an ancestor of the
            head.
    """
    history = snapshots_since(head, start)
    if not history:
        return
    names_rows = operation.names_files or operation.adds_deletes
    scopes = _scopes(head, history, validation.row_filter, operation)
    is_serializable = validation.isolation == "serializable"
    if is_serializable:
        reads_whole_table = validation.row_filter is None and names_rows
        for scope in [changes_matching(head, history, AlwaysTrue())] if reads_whole_table else scopes:
            refuse(head, scope.added(ContentType.DATA_MANIFEST), "added data that may match")
    depends_on_rows = is_serializable and validation.depends_on_rows
    by_rows = not validation.ignores_deletes and (operation.removes_by_rows or not names_rows)
    for scope in scopes:
        if depends_on_rows or by_rows or (operation.adds_deletes and not validation.ignores_deletes):
            refuse(head, scope.added(ContentType.DELETE_MANIFEST), "added deletes of rows that may match")
        if depends_on_rows or by_rows:
            removed = scope.removed(ContentType.DATA_MANIFEST, rewritten=by_rows)
            refuse(head, removed, "removed a data file that may match")


def refuse_new_data(head: TableState, files: Relation, start: int | None) -> None:
    """Refuse to overwrite the partitions of files if data was added to them since the snapshot `start`.

    Args:
        files: rows with the columns of `inspect.files`.

    Raises:
        CommitConflictError: another commit added a data file to one of the partitions.
    """
    if history := snapshots_since(head, start):
        for scope in _scopes(head, history, None, Operation(partitions_of=(files,))):
            refuse(head, scope.added(ContentType.DATA_MANIFEST), "added data to a partition that is overwritten")


def refuse_missing_data(head: TableState, files: Relation, start: int | None, *, with_deletes: bool) -> None:
    """Refuse deletes of rows in data files that others have removed since the snapshot `start` (semantics 12.5).

    The deletes would not apply to the files that replace the removed ones.

    Args:
        head: the state that the deletes are added to.
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
    for removed in changes_matching(head, history, AlwaysTrue()).removed(ContentType.DATA_MANIFEST):
        missing = matching(removed, files, {"location": "file_path"})
        refuse(head, [missing], "removed a data file that the new position deletes are about")


def refuse_new_dvs(
    head: TableState, state: TableState, new: NewFiles, named: Sequence[Relation], start: int | None
) -> None:
    """Refuse new deletion vectors if others added one for the same data file since the snapshot `start`.

    See semantics 12.5. A change that replaces a live deletion vector by name has read it: this is no conflict.

    Args:
        head: the table at the branch's head.
        state: the state that the deletion vectors are added to.
        new: the new files.
        named: the files that the change removes by name, which are live.
        start: the snapshot that was read.

    Raises:
        CommitConflictError: another commit added a deletion vector for one of the data files.
    """
    history = [snapshot for snapshot in snapshots_since(head, start) if snapshot.operation != _APPEND]
    if not history:
        return
    changes = changes_matching(head, history, AlwaysTrue()).added(ContentType.DELETE_MANIFEST, rewritten=True)
    if not changes:
        return
    dvs = where(_union(changes, head), is_dv())
    deletes = new.of([ContentType.POSITION_DELETES], ContentType.DELETE_MANIFEST).relation(state)
    of_file = {"referenced_file": "referenced_file"}
    conflicting = matching(dvs, where(deletes, is_dv()), of_file)
    for files in named:
        if "content_offset" in names(files):
            read_dvs = matching(dvs, files, {"location": "file_path", "deletion_vector.offset": "content_offset"})
            conflicting = matching(conflicting, read_dvs, of_file, absent=True)
    refuse(head, [conflicting], "added a deletion vector for the same data file")


def refuse_other_specs(head: TableState, specs: Collection[int], start: int | None) -> None:
    """Refuse equality deletes that don't apply to data files added since the snapshot `start`.

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
        uncovered = where(added, ~sql.col("partition_spec_id").isin(specs))
        refuse(head, [uncovered], "added data of a partition spec to which the new equality deletes do not apply")


def refuse_deletes_of_moved_rows(
    head: TableState, state: TableState, files: Relation, removal: Removal, new: NewFiles, start: int | None
) -> None:
    """Refuse to move rows to another partition spec if others added partitioned equality deletes since `start`.

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
    partitioned = is_kind(ContentType.EQUALITY_DELETES) & ~is_global_delete(head)
    scope = changes_matching(head, history, AlwaysTrue())
    deletes = [where(added, partitioned) for added in scope.added(ContentType.DELETE_MANIFEST)]
    if not any(map(has_rows, deletes)):
        return
    added = new.of([ContentType.DATA], ContentType.DATA_MANIFEST).relation(state)
    specs = {spec for files in (_named_entries(state, files, removal), added) for spec in _specs_of(files)}
    if len(specs) > 1:
        of_specs = [where(rows, sql.col("partition_spec_id").isin(specs)) for rows in deletes]
        refuse(head, of_specs, "added equality deletes of one partition spec, and rows move to another one")


def _specs_of(entries: Relation) -> list[int]:
    return [*distinct(entries, ["partition_spec_id"]).column(0).to_pylist()]


def refuse_new_row_ids(head: TableState, start: Snapshot | None) -> None:
    """Refuse rows that were read before their files had row ids, since the new files would give them other ids.

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

    This check is for delete files that don't name their data files.

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
    files: Relation,
    removal: Removal,
    start: int | None,
    row_filter: BooleanExpression | str | None = None,
    *,
    by_position: bool = False,
) -> None:
    """Refuse to replace data files if others have deleted some of their rows since the snapshot `start`.

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
    other_kinds = ~is_dv()
    if by_position:
        other_kinds &= is_kind(ContentType.POSITION_DELETES)
    ids: set[int] = set()
    has_compared = False
    for added in scope.added(ContentType.DELETE_MANIFEST):
        dvs, compared = where(added, is_dv()), where(added, other_kinds)
        if has_rows(dvs):
            replaced = matching(dvs, files, {"referenced_file": "file_path"})
            refuse(head, [replaced], "deleted rows of a file to replace")
        if has_rows(compared):
            has_compared = True
            ids.update(elements(compared, "equality_ids"))
    if not has_compared:
        return
    with_stats = replace(scope, more_stats=frozenset({*ids, DELETE_FILE_PATH_ID}))
    compared_deletes = _union(
        [where(added, other_kinds) for added in with_stats.added(ContentType.DELETE_MANIFEST)], head
    )
    # Changes number their manifests independently of the head, and files of a root have no manifest number.
    no_manifests = head.delete_manifests.slice(0, 0)
    deletes = DeleteEntries(compared_deletes, no_manifests, frozenset(ids))
    named = _named_entries(state, files, removal, ids)
    if row := first(where(attach_deletes(named, deletes, state), sql.size(sql.col(DELETES)) > 0)):
        raise conflict(head, OTHERS, "added deletes that apply to a file to replace", row["location"])


def refuse_newer_data(state: TableState, files: Relation, removal: Removal, sequence_number: int) -> None:
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
    numbered = columns_of(
        _named_entries(state, files, removal), {"location": "location", "number": "version_info.sequence_number"}
    )
    if newer := first(numbered, sql.col("number") > sequence_number):
        raise ValidationError(
            f"{state.metadata.location}: data_sequence_number is {sequence_number}: {newer['location']}, which is "
            f"replaced, has {newer['number']}"
        )


def _named_entries(state: TableState, files: Relation, removal: Removal, stats: Iterable[int] = ()) -> Relation:
    """Return the live entries of replaced data files, from the root and the leaves that list them."""
    manifests = state.data_manifests
    masked = pc.is_in(manifests.column("location"), pa.array(sorted(removal.masks), pa.string()))
    manifests = manifests.filter(pc.or_(masked, pc.equal(manifests.column("file_format"), IN_ROOT)))
    live = live_relation(state, manifests, state.projection(COLUMNS, stats))
    return matching(live, files, {"location": "file_path"})


# -- Scopes of changes ------------------------------------------------------------------------------------------------


def _scopes(
    head: TableState,
    history: Sequence[Snapshot],
    row_filter: BooleanExpression | str | None,
    operation: Operation,
) -> list[RelevantChanges]:
    """Return an operation's scopes: the rows that it read, else the files that it replaces, else the whole table."""
    if row_filter is not None:
        return [changes_matching(head, history, row_filter)]
    whole_table = changes_matching(head, history, AlwaysTrue())
    scopes = [replace(whole_table, partitions=replaced_partitions(head, files)) for files in operation.partitions_of]
    if operation.filters:
        scopes.append(changes_matching(head, history, reduce(Or, map(parse_filter, operation.filters))))
    return scopes or [whole_table]


def _union(changes: Sequence[Relation], head: TableState) -> Relation:
    return reduce(lambda left, right: union(left, right, head), changes)
