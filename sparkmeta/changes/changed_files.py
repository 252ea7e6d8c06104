"""Plan the data files that snapshots appended, or in which they changed rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from sparkmeta.changes.file_changes import ADDED, CHANGE, REMOVED, SNAPSHOT, EntryChanges, snapshots_between
from sparkmeta.entries.projection import MANIFEST, PARTITION, EntryProjection
from sparkmeta.entries.relation import (
    among,
    at_most_one,
    distinct,
    frame_of,
    names,
    select,
    united,
    where,
    with_columns,
)
from sparkmeta.errors import translated_errors
from sparkmeta.expr import sql
from sparkmeta.expr.arrays import whole
from sparkmeta.plan.choose import choose
from sparkmeta.plan.deletes.attach import attach_deletes
from sparkmeta.plan.deletes.rules import is_global
from sparkmeta.plan.filter import DELETES, data_projection, may_match, no_deletes, shown_deletes
from sparkmeta.plan.match import match_deletes, read_entries
from sparkmeta.plan.prune import matching_manifests, part_of, prune_manifests
from sparkmeta.rows.file_rows import CHANGE_COLUMNS
from sparkmeta.rows.planned import (
    DELETE_SET,
    FILE_DELETES,
    SELECTING,
    DeleteSets,
    Indices,
    PlannedFiles,
    RowPlan,
    plan_of_entries,
    plan_rows,
)
from sparkmeta.rows.read import RowScan, empty_rows, rows_of
from sparkmeta.snapshot.search import PathSearch, leaves_of_partitions
from sparkmeta.spec.entry import ContentType
from sparkmeta.spec.metadata import snapshot_of

if TYPE_CHECKING:
    from sparkmeta.entries.relation import Relation
    from sparkmeta.expr.sql import Aliased
    from sparkmeta.plan.filter import ScanFilter
    from sparkmeta.plan.match import ScanEntries
    from sparkmeta.plan.prune import PrunedManifests
    from sparkmeta.snapshot.state import TableState
    from sparkmeta.spec.metadata import Snapshot


# -- Rows that snapshots appended -------------------------------------------------------------------------------------


APPEND: Final = "append"
_DATA: Final = ContentType.DATA_MANIFEST


def read_appended(
    scan: RowScan,
    from_exclusive: int | None,
    to_inclusive: int | None,
    planned: Callable[[Iterable[PlannedFiles]], None],
) -> DataFrame:
    """Return the rows that a range of snapshots appended.

    As in Iceberg's Java library, these are the rows of files added by snapshots of the operation `append`. Changes by
    other operations are ignored, and rows may have been deleted since. The plan runs at once.

    Args:
        scan: the rows and columns to read.
        from_exclusive: None for the whole history.
        to_inclusive: None for the current snapshot.
        planned: called with the planned files.

    Raises:
        NoSuchSnapshotError: the table does not have one of the snapshots.
        ValidationError: the first is not an ancestor of the second, or the history between them has expired.
    """
    entries = appended_entries(scan.filter, from_exclusive, to_inclusive)
    if entries is None:
        planned([])
        return empty_rows(scan)
    files = PlannedFiles.of([plan_of_entries(entries, scan.state, SNAPSHOT)], scan.state)
    planned([files])
    return rows_of(scan, files)


def appended_entries(
    scan_filter: ScanFilter, from_exclusive: int | None, to_inclusive: int | None, columns: Iterable[str] = ()
) -> DataFrame | None:
    """Return the entries of the files that snapshots appended, without deletes; None if there are none.

    For the other arguments and errors, see `read_appended`.

    Args:
        columns: further columns of the entries to return.
    """
    snapshots = snapshots_between(scan_filter.state.metadata, from_exclusive, to_inclusive)
    appends = [snapshot for snapshot in snapshots if snapshot.operation == APPEND]
    changes = entry_changes(scan_filter, appends, columns)
    matching = _matching_without_deletes(changes.added(_DATA), scan_filter)
    return None if matching is None else frame_of(matching, scan_filter.state)


def appended_files(scan_filter: ScanFilter, snapshot: Snapshot) -> PlannedFiles | None:
    """Plan the data files that a snapshot added and that may match a filter, without deletes; None if there are none.

    The files have `_commit_snapshot_id`.
    """
    plan = _without_deletes(entry_changes(scan_filter, [snapshot]).added(_DATA), scan_filter)
    return None if plan is None else _with_ordinals(PlannedFiles.of([plan], scan_filter.state, SNAPSHOT), [snapshot])


def entry_changes(scan_filter: ScanFilter, snapshots: Iterable[Snapshot], columns: Iterable[str] = ()) -> EntryChanges:
    """Return added and removed files by snapshot, oldest first, from manifests that may list files for the filter."""
    keep = partial(matching_manifests, scan_filter=scan_filter)
    changes = EntryChanges(scan_filter.state, data_projection(scan_filter, columns=columns), keep=keep)
    for snapshot in snapshots:
        changes.add(snapshot)
    return changes


def _without_deletes(entries: Sequence[Relation], scan_filter: ScanFilter) -> RowPlan | None:
    """Return a plan of the entries of `EntryChanges` that may match a filter, without deletes.

    Args:
        entries: data entries, with the `SNAPSHOT` that changed them.
        scan_filter: the filter.

    Returns:
        None for no entries.
    """
    matching = _matching_without_deletes(entries, scan_filter)
    return None if matching is None else plan_of_entries(matching, scan_filter.state, SNAPSHOT)


def _matching_without_deletes(entries: Sequence[Relation], scan_filter: ScanFilter) -> Relation | None:
    """Return the entries that may match a filter, with an empty array of deletes; None for no entries."""
    for rows in united(entries, scan_filter.state):
        return with_columns(
            where(rows, may_match(scan_filter)), shown_deletes(no_deletes(scan_filter.state.is_encrypted))
        )
    return None


# -- Files in which snapshots changed rows ----------------------------------------------------------------------------
#     snapshots -> changes in their manifests -> plans before and after -> `ChangedFiles`
# 1. The first job reads the files that the snapshots added and removed from the manifests that they wrote.
# 2. If these include deletes that don't name their data file, a second job finds the files that they apply to.
# 3. The last job plans the files that a snapshot removed, with its parent's deletes; the files that it added, with its
#    own deletes; and the files whose deletes it changed, with both. Only these are looked up in all data manifests.
# 4. The driver compares the plans.


INSERT: Final = "INSERT"
DELETE: Final = "DELETE"

_TYPE, _ORDINAL, _SNAPSHOT_ID = CHANGE_COLUMNS
_IS_AFTER: Final = "is_after"
_PATH: Final = "changed_path"
# Plans per query, limited because Spark analyzes each plan and the query as a whole.
_PLANS_AT_ONCE: Final = 16
P = TypeVar("P")


@dataclass(frozen=True)
class ChangedFiles:
    """Files with changed rows. There is one row for each file, snapshot that changed it, and kind of change.

    Attributes:
        whole: files that a snapshot added or removed. All their live rows changed.
        partly: files whose deletes a snapshot changed. The changed rows are the rows that `SELECTED_BY` deletes, either
            only before or only after the snapshot.
    """

    whole: PlannedFiles
    partly: PlannedFiles

    @cached_property
    def mixed_ordinals(self) -> pa.Array:
        """The ordinals of snapshots that may have both inserted and deleted rows."""
        ordinals = {
            kind: [
                side.table.filter(pc.equal(side.table.column(_TYPE), kind)).column(_ORDINAL)
                for side in (self.whole, self.partly)
            ]
            for kind in (INSERT, DELETE)
        }
        inserts, deletes = (np.concatenate([np.asarray(column) for column in ordinals[kind]]) for kind in ordinals)
        return pa.array(np.intersect1d(inserts, deletes), pa.int32())

    def all_parts(self) -> list[PlannedFiles]:
        """Return `whole` and `partly`, which are read in different ways, but omit them if they are empty."""
        return [files for files in (self.whole, self.partly) if len(files)]

    def parts(self, ordinals: pa.Array, *, invert: bool = False) -> list[PlannedFiles]:
        """Return `all_parts` for only some snapshots or, with `invert`, for all others."""
        sides = (
            files.filter(np.isin(files.numbers(_ORDINAL), ordinals, invert=invert))
            for files in (self.whole, self.partly)
        )
        return ChangedFiles(*sides).all_parts()


def changed_files(scan_filter: ScanFilter, snapshots: Sequence[Snapshot]) -> ChangedFiles | None:
    """Plan the files in which snapshots changed rows that may match a filter.

    Args:
        scan_filter: the filter.
        snapshots: the snapshots, oldest first. Their indices are the change ordinals.

    Returns:
        None if there are none.

    Raises:
        NoSuchSnapshotError: a snapshot removed files or changed deletes, and its parent has expired.
        ValidationError: metadata or deletes contradict each other.
    """
    changes = entry_changes(scan_filter, snapshots)
    steps = _with_files_of_deletes([*_steps(changes, scan_filter, snapshots)], scan_filter.state)
    plans = [*_added_without_deletes(changes, steps, scan_filter), *(plan for step in steps for plan in step.plans())]
    if not plans:
        return None
    files = PlannedFiles.of(
        [RowPlan.union(batch, scan_filter.state) for batch in _batches(plans)], scan_filter.state, SNAPSHOT, _IS_AFTER
    )
    return _compared(_with_ordinals(files, snapshots))


def live_files(scan_filter: ScanFilter, snapshot: Snapshot) -> PlannedFiles:
    """Plan all data files of a snapshot, with their deletes, as changes that insert their rows."""
    state = scan_filter.state.at(snapshot)
    plan = plan_rows(choose(prune_manifests(replace(scan_filter, state=state))))
    marked = with_columns(plan.rows, _snapshot_id(snapshot))
    return inserted(_with_ordinals(PlannedFiles.of([replace(plan, rows=marked)], state, SNAPSHOT), [snapshot]))


def _snapshot_id(snapshot: Snapshot) -> Aliased:
    return sql.lit(snapshot.snapshot_id).cast("bigint").alias(SNAPSHOT)


def inserted(files: PlannedFiles) -> PlannedFiles:
    """Mark all rows of files as inserted."""
    return replace(files, table=_changes(files, INSERT))


def _with_ordinals(files: PlannedFiles, snapshots: Sequence[Snapshot]) -> PlannedFiles:
    """Add the ordinal of the snapshot that changed each file, given by `SNAPSHOT`."""
    table = files.table.rename_columns({SNAPSHOT: _SNAPSHOT_ID})
    ids = pa.array([snapshot.snapshot_id for snapshot in snapshots], pa.int64())
    ordinals = pc.index_in(table.column(_SNAPSHOT_ID), ids)
    return replace(files, table=table.append_column(_ORDINAL, ordinals).combine_chunks())


def _batches(plans: Sequence[P]) -> Iterator[Sequence[P]]:
    """Yield plans in batches of at most `_PLANS_AT_ONCE`."""
    for start in range(0, len(plans), _PLANS_AT_ONCE):
        yield plans[start : start + _PLANS_AT_ONCE]


# -- The changes of snapshots -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Step:
    """The files that a snapshot changed.

    Attributes:
        snapshot: the snapshot.
        pruned_at: returns the manifests that a scan of a snapshot opens, given its id.
        changes: the snapshot's changes.
        added: the paths of added data files.
        removed: the paths of removed data files.
        adds_deletes: whether the snapshot added deletes. If not, no delete applies to the added data files, since they
            have the snapshot's own sequence number.
        targets: the paths of data files whose deletes the snapshot changed, except removed files.
        shared_deletes: the locations of added and removed deletes that don't name their data file.
        partitions: the specs and partitions of added and removed deletes; None if there are many changes.
    """

    snapshot: Snapshot
    pruned_at: Callable[[int], PrunedManifests]
    changes: EntryChanges
    added: pa.ChunkedArray
    removed: pa.ChunkedArray
    adds_deletes: bool
    targets: pa.Array
    shared_deletes: tuple[pa.Array, pa.Array]
    partitions: pa.Table | None = None

    @property
    def before(self) -> PrunedManifests | None:
        parent = self.snapshot.parent_snapshot_id
        return None if parent is None else self.pruned_at(parent)

    @property
    def after(self) -> PrunedManifests:
        return self.pruned_at(self.snapshot.snapshot_id)

    @property
    def added_alone(self) -> bool:
        """Whether the snapshot added data files and no deletes."""
        return bool(len(self.added)) and not self.adds_deletes

    def plans(self) -> Iterator[RowPlan]:
        """Yield plans of the files with changed rows, before and after the snapshot."""
        if (len(self.removed) or len(self.targets)) and (before := self.before) is not None:
            yield from self._plans(before, changed=bool(len(self.removed)), is_after=False)
        plans_added = bool(len(self.added)) and self.adds_deletes
        if plans_added or len(self.targets):
            yield from self._plans(self.after, changed=plans_added, is_after=True)

    def _plans(self, pruned: PrunedManifests, *, changed: bool, is_after: bool) -> Iterator[RowPlan]:
        """Yield plans before or after the snapshot: of the data files that it changed, and of `targets`."""
        if changed:
            entries = read_entries(choose(replace(pruned, data=pruned.data.slice(0, 0))))
            changes = replace(self.changes, shown=data_projection(pruned.filter, entries.deletes.equality_ids))
            for data in united((changes.added if is_after else changes.removed)(_DATA), changes.state):
                # An added file that was already listed may be in `targets`, whose plan has all entries of its paths.
                unplanned = among(where(data, may_match(pruned.filter)), "location", self.targets, absent=True)
                yield self._plan(replace(entries, data=unplanned), is_after=is_after)
        if len(self.targets):
            entries = read_entries(choose(self._restricted(pruned, self.targets)))
            targets = among(entries.data, "location", self.targets)
            yield self._plan(replace(entries, data=targets), is_after=is_after)

    def _plan(self, entries: ScanEntries, *, is_after: bool) -> RowPlan:
        matched, state = match_deletes(entries).rows, entries.choice.pruned.filter.state
        columns = [sql.col(sql.quoted(name)).alias(name) for name in names(matched) if name != SNAPSHOT]
        marks = [_snapshot_id(self.snapshot), sql.lit(is_after).alias(_IS_AFTER)]
        matched = select(matched, [*columns, *marks])
        return plan_of_entries(matched, state, SNAPSHOT, _IS_AFTER, deletes=entries.deletes)

    def _restricted(self, pruned: PrunedManifests, paths: pa.Array | None = None) -> PrunedManifests:
        """Return the manifests that may hold the data files of changed deletes, if there are few changes.

        Args:
            pruned: all manifests.
            paths: the paths of the data files if they are known. Leaves of trees are searched for them.
        """
        if self.partitions is None:
            return pruned
        state, data = pruned.filter.state, pruned.data
        partitioned = [spec_id for spec_id, spec in state.specs.items() if not is_global(spec)]
        specs = whole(self.partitions.column("partition_spec_id"))
        if pc.all(pc.is_in(specs, pa.array(partitioned, pa.int32())), min_count=0).as_py():
            data = leaves_of_partitions(state, data, self.partitions)
        if paths is not None and state.tree is not None:
            entries = PathSearch("location").search(state, data, paths.to_pylist())
            data = data.filter(pc.is_in(whole(data.column(MANIFEST)), whole(entries.column(MANIFEST))))
        return part_of(pruned, data.column(MANIFEST).to_pylist())

    def files_of_shared_deletes(self) -> Iterator[Relation]:
        """Yield the paths of data files that changed deletes apply to, or applied to before they were removed."""
        removed, added = self.shared_deletes
        if len(removed) and (before := self.before) is not None:
            yield from self._files_of(before, removed)
        if len(added):
            pruned = self.after
            writers = pc.struct_field(pruned.deletes.column("version_info"), "snapshot_id")
            # The root of a tree, which can list files itself, has no snapshot id.
            is_written = pc.fill_null(pc.equal(writers, self.snapshot.snapshot_id), True)
            yield from self._files_of(replace(pruned, deletes=pruned.deletes.filter(is_written)), added)

    def _files_of(self, pruned: PrunedManifests, locations: pa.Array) -> Iterator[Relation]:
        entries = read_entries(choose(self._restricted(pruned)))
        if entries.deletes.entries is None:
            return
        changed_deletes = replace(entries.deletes, entries=among(entries.deletes.entries, "location", locations))
        attached = attach_deletes(entries.data, changed_deletes, pruned.filter.state)
        matched = where(attached, sql.size(sql.col(DELETES)) > 0)
        yield select(matched, [_snapshot_id(self.snapshot), sql.col("location").alias(_PATH)])


def _added_without_deletes(changes: EntryChanges, steps: Sequence[_Step], scan_filter: ScanFilter) -> Iterator[RowPlan]:
    """Yield a plan of the files added by snapshots that added no deletes."""
    ids = {step.snapshot.snapshot_id for step in steps if step.added_alone}
    if ids:
        plan = _without_deletes(changes.of_snapshots(ids).added(_DATA), scan_filter)
        if plan is not None:
            yield replace(plan, rows=with_columns(plan.rows, sql.lit(True).alias(_IS_AFTER)))


def _steps(changes: EntryChanges, scan_filter: ScanFilter, snapshots: Sequence[Snapshot]) -> Iterator[_Step]:
    """Yield the changes of each snapshot."""
    state = scan_filter.state

    # The manifests after a snapshot are the manifests before the next one.
    @cache
    def pruned_at(snapshot_id: int) -> PrunedManifests:
        return prune_manifests(replace(scan_filter, state=state.at(snapshot_of(state.metadata, snapshot_id))))

    entries = _changed_entries(changes)
    for snapshot in snapshots:
        entries_of_snapshot = entries.filter(pc.equal(entries.column(SNAPSHOT), snapshot.snapshot_id))
        is_data = pc.equal(entries_of_snapshot.column("content_type"), int(ContentType.DATA))
        data, deletes = entries_of_snapshot.filter(is_data), entries_of_snapshot.filter(pc.invert(is_data))
        added_data, added_deletes = (pc.equal(side.column(CHANGE), ADDED) for side in (data, deletes))
        removed_paths = data.filter(pc.invert(added_data)).column("location")
        targets = pc.unique(deletes.column("referenced_file").drop_null().combine_chunks())
        is_shared = pc.is_null(deletes.column("referenced_file"))
        removed_shared, added_shared = (
            deletes.filter(pc.and_(is_shared, side)).column("location").combine_chunks()
            for side in (pc.invert(added_deletes), added_deletes)
        )
        yield _Step(
            snapshot,
            pruned_at,
            changes.of_snapshots({snapshot.snapshot_id}),
            added=data.filter(added_data).column("location"),
            removed=removed_paths,
            adds_deletes=bool(pc.any(added_deletes, min_count=0).as_py()),
            targets=_without(targets, removed_paths),
            shared_deletes=(removed_shared, added_shared),
            partitions=deletes if "partition_spec_id" in deletes.column_names else None,
        )


def _changed_entries(changes: EntryChanges) -> pa.Table:
    """Return the data and delete files that snapshots added and removed."""
    narrow = replace(changes, shown=EntryProjection.of(()))
    names = [SNAPSHOT, CHANGE, "content_type", "location", "referenced_file"]
    contents = (ContentType.DATA_MANIFEST, ContentType.DELETE_MANIFEST)
    if changes.is_few:
        narrow = replace(changes, shown=changes.state.projection(["partition_spec_id"]))
        names += [name for name in ("partition_spec_id", PARTITION) if name in narrow.projection.schema.names]
        tables = [
            table.append_column(CHANGE, pa.repeat(kind, len(table))).select(names)
            for content in contents
            for kind, table in ((ADDED, narrow.few_added(content)), (REMOVED, narrow.few_removed(content)))
        ]
        return pa.concat_tables(tables)
    frames = [frame for content in contents for frame in narrow.of_content(content)]
    empty_frame = changes.state.spark.createDataFrame([], narrow.schema)
    with translated_errors():
        united = at_most_one(frames) or [empty_frame]
        return united[0].select(*names).toArrow()


def _with_files_of_deletes(steps: Sequence[_Step], state: TableState) -> list[_Step]:
    """Add the files of shared deletes, which don't name their data file, to the targets."""
    relations = [rows for step in steps for rows in step.files_of_shared_deletes()]
    if not relations:
        return [*steps]
    with translated_errors():
        tables = [distinct(rows, names(rows)) for batch in _batches(relations) for rows in united(batch, state)]
    matched = pa.concat_tables(tables, promote_options="permissive")
    return [
        replace(step, targets=_without(pc.unique(pa.chunked_array([step.targets, *of_step.chunks])), step.removed))
        for step in steps
        for of_step in [matched.filter(pc.equal(matched.column(SNAPSHOT), step.snapshot.snapshot_id)).column(_PATH)]
    ]


def _without(paths: pa.Array, others: pa.ChunkedArray) -> pa.Array:
    return paths.filter(pc.invert(pc.is_in(paths, others)))


# -- Plans before and after each snapshot -----------------------------------------------------------------------------


def _compared(files: PlannedFiles) -> ChangedFiles:
    """Compare the plans of files before and after the snapshots.

    Args:
        files: rows of both plans, with `_change_ordinal`, `_commit_snapshot_id` and `is_after`.
    """
    before, after = _pairs(files)
    is_whole = np.ones(len(files), np.bool_)
    is_whole[before] = is_whole[after] = False
    is_after = np.asarray(files.table.column(_IS_AFTER))
    removed, added = (files.filter(is_whole & (is_after == side)) for side in (False, True))
    deleted = _selected(files, before, after)
    inserted = _selected(replace(files, sets=deleted.sets), after, before)
    return ChangedFiles(_both_kinds(removed, added), _both_kinds(deleted, inserted))


def _both_kinds(deletes: PlannedFiles, inserts: PlannedFiles) -> PlannedFiles:
    """Return files with deleted rows and files with inserted rows in one table, with the kinds of their changes."""
    table = pa.concat_tables([_changes(deletes, DELETE), _changes(inserts, INSERT)]).combine_chunks()
    return PlannedFiles(table, inserts.sets)


def _pairs(files: PlannedFiles) -> tuple[Indices, Indices]:
    """Return pairs of rows for files that exist both before and after a snapshot.

    A file that was itself added or removed, or that the table lists several times, is in no pair.
    """
    columns = ("spec_id", "record_count", "first_row_id", "data_sequence_number")
    codes = files.table.column("file_path").combine_chunks().dictionary_encode().indices.to_numpy().astype(np.int64)
    keys = np.stack([codes, files.partition_codes, *map(files.numbers, (_ORDINAL, *columns))])
    _, numbers = np.unique(keys, axis=1, return_inverse=True)
    numbers = numbers.reshape(-1)
    is_after = np.asarray(files.table.column(_IS_AFTER))
    rows = np.arange(len(files))
    is_single = [np.bincount(numbers[side], minlength=len(files)) == 1 for side in (~is_after, is_after)]
    in_both = (is_single[0] & is_single[1])[numbers]
    before, after = rows[in_both & ~is_after], rows[in_both & is_after]
    return before[np.argsort(numbers[before])], after[np.argsort(numbers[after])]


def _selected(files: PlannedFiles, rows: Indices, other_rows: Indices) -> PlannedFiles:
    """Return the files at `rows` whose pairs at `other_rows` have further deletes, which select their rows."""
    further_deletes = _further_file_deletes(files, rows, other_rows)
    codes, sets = _further_members(files, rows, other_rows)
    table = files.table.take(pa.array(rows)).append_column(SELECTING[FILE_DELETES], further_deletes)
    selected = PlannedFiles(table.append_column(SELECTING[DELETE_SET], pa.array(codes)), sets)
    return selected.filter((np.asarray(pc.list_value_length(further_deletes)) > 0) | (np.diff(sets.offsets)[codes] > 0))


def _further_file_deletes(files: PlannedFiles, rows: Indices, other_rows: Indices) -> pa.ListArray:
    """Return the `FILE_DELETES` of files at `other_rows` that their pairs at `rows` lack."""
    deletes = files.file_deletes
    owners = deletes.column("owner").to_numpy()
    offsets = pc.fill_null(deletes.column("content_offset"), -1).cast(pa.string())
    names = _codes(pc.binary_join_element_wise(deletes.column("file_path"), offsets, "\0"))

    def paired(side: Indices) -> tuple[Indices, Indices]:
        pairs = np.full(len(files), -1, np.int64)
        pairs[side] = np.arange(len(side))
        delete_rows = np.flatnonzero(pairs[owners] >= 0)
        return delete_rows, pairs[owners[delete_rows]]

    further, pairs = _further(paired(other_rows), paired(rows), names)
    order = np.argsort(pairs, kind="stable")
    ends = np.searchsorted(pairs[order], np.arange(len(rows) + 1))
    values = whole(files.table.column(FILE_DELETES)).flatten().take(pa.array(further[order]))
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values)


def _further_members(files: PlannedFiles, rows: Indices, other_rows: Indices) -> tuple[Indices, DeleteSets]:
    """Return the sets of deletes of files at `other_rows` that their pairs at `rows` lack.

    Returns:
        The index of each pair's set, and the sets. They begin with the sets of the files.
    """
    sets = files.sets
    pairs, codes = np.unique(files.set_codes[rows] * len(sets) + files.set_codes[other_rows], return_inverse=True)
    sets_of_rows, sets_of_others = (sets.members_of(side)[::-1] for side in np.divmod(pairs, len(sets)))
    further, owners = _further(sets_of_others, sets_of_rows, _codes(sets.deletes.column("file_path")))
    lengths = np.bincount(owners, minlength=len(pairs))
    return len(sets) + codes, sets.with_sets(lengths, further)


def _further(
    deletes: tuple[Indices, Indices], known_deletes: tuple[Indices, Indices], names: Indices
) -> tuple[Indices, Indices]:
    """Return the deletes that are not known: their indices among all deletes, and their owners.

    Args:
        deletes: indices among all deletes, and owners.
        known_deletes: the same for known deletes.
        names: a number for each delete, equal for equal deletes.
    """
    (keys, known_keys) = (
        owners * (names.max(initial=0) + 1) + names[indices] for indices, owners in (deletes, known_deletes)
    )
    is_further = ~np.isin(keys, known_keys)
    return deletes[0][is_further], deletes[1][is_further]


def _codes(names: pa.ChunkedArray) -> Indices:
    """Return a number for each name, equal for equal names."""
    codes: Indices = whole(names).dictionary_encode().indices.to_numpy().astype(np.int64)
    return codes


def _changes(files: PlannedFiles, kind: str) -> pa.Table:
    return files.table.append_column(_TYPE, pa.repeat(kind, len(files)))
