"""The data files in which snapshots changed rows, planned before and after each snapshot.

    snapshots -> what their manifests changed -> paths of data files -> plans before and after -> `ChangedFiles`

A first job reads what the snapshots added and removed, from the manifests that they wrote. If that includes deletes
that don't name their data file, a second one looks for the files that they apply to. The last one plans all these files
as a scan of the parent does, and as a scan of the snapshot does. The driver compares the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sparkmeta.changes.entry_changes import ADDED, CHANGE, SNAPSHOT, EntryChanges, at_most_one
from sparkmeta.changes.history import snapshot_of
from sparkmeta.manifests.projection import EntryProjection
from sparkmeta.plan.choose import choose
from sparkmeta.plan.deletes.attach import attach_deletes
from sparkmeta.plan.entries import read_entries
from sparkmeta.plan.files import planned_rows
from sparkmeta.plan.match import match_deletes
from sparkmeta.plan.prune import matching_manifests, prune_manifests
from sparkmeta.plan.rows import DELETES
from sparkmeta.rows.appended import written_by
from sparkmeta.rows.planned import SELECTED_BY, Indices, PlannedFiles, partition_column, translated_errors
from sparkmeta.session import local_frame
from sparkmeta.spec.entry import ContentType

if TYPE_CHECKING:
    from sparkmeta.plan.entries import ScanEntries
    from sparkmeta.plan.filter import ScanFilter
    from sparkmeta.plan.prune import PrunedManifests
    from sparkmeta.spec.metadata import Snapshot

Flags = np.ndarray[Any, np.dtype[np.bool_]]

INSERT: Final = "INSERT"
DELETE: Final = "DELETE"

_ORDINAL: Final = "_change_ordinal"
_IS_AFTER: Final = "is_after"
_CHANGED_PATH: Final = "changed_path"
# Plans that one query makes: Spark analyzes each, and the query as a whole.
_PLANS_AT_ONCE: Final = 16


@dataclass(frozen=True)
class ChangedFiles:
    """Files with changed rows; a file has a row for each snapshot that changed it, and kind of change.

    Attributes:
        whole: files that a snapshot added or removed: all rows that their deletes leave.
        partly: files whose deletes a snapshot changed: the rows that deletes of the other side delete (`SELECTED_BY`).
    """

    whole: PlannedFiles
    partly: PlannedFiles

    @cached_property
    def mixed_ordinals(self) -> pa.Array:
        """The ordinals of snapshots that may have both inserted and deleted rows."""
        ordinals = {
            kind: [
                side.table.filter(pc.equal(side.table.column("_change_type"), kind)).column(_ORDINAL)
                for side in (self.whole, self.partly)
            ]
            for kind in (INSERT, DELETE)
        }
        inserts, deletes = (np.concatenate([np.asarray(column) for column in ordinals[kind]]) for kind in ordinals)
        return pa.array(np.intersect1d(inserts, deletes), pa.int32())

    def filtered(self, ordinals: pa.Array, *, invert: bool) -> Iterator[PlannedFiles]:
        """Yield the files of some snapshots, or with `invert` of all others, where there are any."""
        for files in (self.whole, self.partly):
            is_chosen = pc.is_in(files.table.column(_ORDINAL), ordinals)
            chosen = files.table.filter(pc.invert(is_chosen) if invert else is_chosen)
            if len(chosen):
                yield PlannedFiles(chosen.combine_chunks())


def changed_files(scan_filter: ScanFilter, snapshots: Sequence[Snapshot]) -> ChangedFiles | None:
    """Plan the files in which snapshots changed rows that may match a filter.

    Args:
        scan_filter: the filter.
        snapshots: oldest first; their places are the ordinals of changes.

    Returns:
        None if there are none.

    Raises:
        NoSuchSnapshotError: a snapshot removed files or changed deletes, and its parent has expired.
        ValidationError: metadata or deletes contradict each other.
    """
    steps = _with_files_of_deletes([*_steps(scan_filter, snapshots)])
    plans = [plan for step in steps for plan in step.plans()]
    if not plans:
        return None
    tables = [
        PlannedFiles.of(reduce(_union, batch), scan_filter.state, _ORDINAL, _IS_AFTER).table
        for batch in _batches(plans, _PLANS_AT_ONCE)
    ]
    return _compared(PlannedFiles(pa.concat_tables(tables).combine_chunks()), snapshots)


def _union(left: DataFrame, right: DataFrame) -> DataFrame:
    return left.unionByName(right)


def _batches(frames: Sequence[DataFrame], size: int) -> Iterator[Sequence[DataFrame]]:
    return (frames[start : start + size] for start in range(0, len(frames), size))


# -- what snapshots changed -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Step:
    """What a snapshot changed.

    Attributes:
        ordinal: of the changes.
        snapshot: the snapshot.
        filter: the scan's, at any snapshot.
        paths: of data files in which it may have changed rows.
        shared_deletes: locations of removed deletes and of added ones that don't name their data file.
        only_adds: it added data files, and changed nothing else.
    """

    ordinal: int
    snapshot: Snapshot
    filter: ScanFilter
    paths: pa.Array
    shared_deletes: tuple[pa.Array, pa.Array]
    only_adds: bool

    def plans(self) -> Iterator[DataFrame]:
        """Yield rows of `plan_rows` for the paths, before and after the snapshot."""
        if not len(self.paths):
            return
        if not self.only_adds and (before := self.before) is not None:
            yield self._plan(prune_manifests(before), is_after=False)
        pruned = prune_manifests(self.after)
        if self.only_adds:
            pruned = replace(pruned, data=self._written(pruned.data), deletes=self._written(pruned.deletes))
        yield self._plan(pruned, is_after=True)

    @cached_property
    def before(self) -> ScanFilter | None:
        parent = self.snapshot.parent_snapshot_id
        if parent is None:
            return None
        state = self.filter.state
        return replace(self.filter, state=state.at(snapshot_of(state.metadata, parent)))

    @cached_property
    def after(self) -> ScanFilter:
        return replace(self.filter, state=self.filter.state.at(self.snapshot))

    def _plan(self, pruned: PrunedManifests, *, is_after: bool) -> DataFrame:
        entries = read_entries(choose(pruned))
        chosen = replace(entries, data=_with_paths(entries.data, self.paths))
        planned = planned_rows(match_deletes(chosen), partition_column(pruned.filter.state))
        return planned.withColumns({_ORDINAL: F.lit(self.ordinal), _IS_AFTER: F.lit(is_after)})

    def _written(self, manifests: pa.Table) -> pa.Table:
        """Return the manifests of files that the snapshot added. Older deletes don't apply to added data files."""
        return manifests.filter(written_by(manifests, self.snapshot.snapshot_id))

    def files_of_shared_deletes(self) -> Iterator[DataFrame]:
        """Yield the paths of data files that changed deletes apply to, or did before they were removed."""
        removed, added = self.shared_deletes
        if len(removed) and (before := self.before) is not None:
            yield from self._files_of(read_entries(choose(prune_manifests(before))), removed)
        if len(added):
            pruned = prune_manifests(self.after)
            yield from self._files_of(
                read_entries(choose(replace(pruned, deletes=self._written(pruned.deletes)))), added
            )

    def _files_of(self, entries: ScanEntries, locations: pa.Array) -> Iterator[DataFrame]:
        deletes = entries.deletes
        if deletes.entries is None:
            return
        changed = replace(deletes, entries=_with_paths(deletes.entries, locations))
        state = entries.choice.pruned.filter.state
        matched = attach_deletes(entries.data, changed, state).where(f"size({DELETES}) > 0")
        yield matched.select(F.lit(self.ordinal).alias(_ORDINAL), F.col("location").alias(_CHANGED_PATH))


def _with_paths(entries: DataFrame, paths: pa.Array) -> DataFrame:
    """Return the entries of some files."""
    chosen = local_frame(entries.sparkSession, pa.table({_CHANGED_PATH: paths}))
    return entries.join(chosen, F.col("location") == F.col(_CHANGED_PATH), "left_semi")


def _steps(scan_filter: ScanFilter, snapshots: Sequence[Snapshot]) -> Iterator[_Step]:
    """Yield what each snapshot changed."""
    changes = _changed_entries(scan_filter, snapshots)
    for ordinal, snapshot in enumerate(snapshots):
        changed = changes.filter(pc.equal(changes.column(SNAPSHOT), snapshot.snapshot_id))
        is_data = pc.equal(changed.column("content_type"), int(ContentType.DATA))
        is_added = pc.equal(changed.column(CHANGE), ADDED)
        paths = pc.if_else(is_data, changed.column("location"), changed.column("referenced_file"))
        is_shared = pc.is_null(paths)
        shared = [
            changed.filter(pc.and_(is_shared, side)).column("location") for side in (pc.invert(is_added), is_added)
        ]
        yield _Step(
            ordinal,
            snapshot,
            scan_filter,
            pc.unique(paths.drop_null().combine_chunks()),
            (shared[0].combine_chunks(), shared[1].combine_chunks()),
            only_adds=bool(pc.all(pc.and_(is_data, is_added), min_count=0).as_py()),
        )


def _changed_entries(scan_filter: ScanFilter, snapshots: Iterable[Snapshot]) -> pa.Table:
    """Return the data and delete files that snapshots added and removed."""
    keep = partial(matching_manifests, scan_filter=scan_filter)
    changes = EntryChanges(scan_filter.state, EntryProjection.of(()), keep=keep)
    for snapshot in snapshots:
        changes.add(snapshot)
    contents = (ContentType.DATA_MANIFEST, ContentType.DELETE_MANIFEST)
    frames = [frame for content in contents for frame in changes.of_content(content)]
    empty = scan_filter.state.spark.createDataFrame([], changes.schema)
    with translated_errors():
        changed = at_most_one(frames) or [empty]
        return changed[0].select(SNAPSHOT, CHANGE, "content_type", "location", "referenced_file").toArrow()


def _with_files_of_deletes(steps: Sequence[_Step]) -> list[_Step]:
    """Add the paths of the files that deletes apply to which don't name their file."""
    frames = [frame for step in steps for frame in step.files_of_shared_deletes()]
    if not frames:
        return [*steps]
    with translated_errors():
        tables = [reduce(_union, batch).distinct().toArrow() for batch in _batches(frames, _PLANS_AT_ONCE)]
    matched = pa.concat_tables(tables)
    return [
        replace(step, paths=pc.unique(pa.chunked_array([step.paths, *_paths_of(matched, step.ordinal).chunks])))
        for step in steps
    ]


def _paths_of(matched: pa.Table, ordinal: int) -> pa.ChunkedArray:
    return matched.filter(pc.equal(matched.column(_ORDINAL), ordinal)).column(_CHANGED_PATH)


# -- before and after -------------------------------------------------------------------------------------------------


def _compared(files: PlannedFiles, snapshots: Sequence[Snapshot]) -> ChangedFiles:
    """Compare the plans of files before and after the snapshots.

    Args:
        files: rows of both plans, with `_change_ordinal` and `is_after`.
        snapshots: by ordinal.
    """
    before, after = _pairs(files)
    is_whole = np.ones(len(files), np.bool_)
    is_whole[before] = is_whole[after] = False
    is_after = np.asarray(files.table.column(_IS_AFTER))
    whole = [
        _changes(files.table.filter(pa.array(is_whole & (is_after == inserts))), kind, snapshots)
        for kind, inserts in ((DELETE, False), (INSERT, True))
    ]
    deletes = _PairedDeletes(files, before, after)
    partly = [
        _changes(_selected(files, before, deletes.only(after=True)), DELETE, snapshots),
        _changes(_selected(files, after, deletes.only(after=False)), INSERT, snapshots),
    ]
    return ChangedFiles(*(PlannedFiles(pa.concat_tables(side).combine_chunks()) for side in (whole, partly)))


def _pairs(files: PlannedFiles) -> tuple[Indices, Indices]:
    """Return the places of files that are the same before and after a snapshot, in pairs.

    A file that has changed itself, or that a table lists several times, is in none.
    """
    columns = ("spec_id", "record_count", "first_row_id", "data_sequence_number")
    codes = files.table.column("file_path").combine_chunks().dictionary_encode().indices.to_numpy().astype(np.int64)
    keys = np.stack([codes, files.partition_codes, *map(files.numbers, (_ORDINAL, *columns))])
    _, numbers = np.unique(keys, axis=1, return_inverse=True)
    numbers = numbers.reshape(-1)
    is_after = np.asarray(files.table.column(_IS_AFTER))
    places = np.arange(len(files))
    single = [np.bincount(numbers[side], minlength=len(files)) == 1 for side in (~is_after, is_after)]
    in_both = (single[0] & single[1])[numbers]
    before, after = places[in_both & ~is_after], places[in_both & is_after]
    return before[np.argsort(numbers[before])], after[np.argsort(numbers[after])]


class _PairedDeletes:
    """The deletes of files before and after a snapshot, as sets."""

    def __init__(self, files: PlannedFiles, before: Indices, after: Indices) -> None:
        deletes = files.deletes
        offsets = pc.fill_null(deletes.column("content_offset"), -1).cast(pa.string())
        names = pc.binary_join_element_wise(deletes.column("file_path"), offsets, "\0").combine_chunks()
        encoded = names.dictionary_encode()
        pair = np.full(len(files), -1, np.int64)
        pair[before] = np.arange(len(before))
        pair[after] = np.arange(len(after))
        self._owners: Indices = deletes.column("owner").to_numpy()
        self._keys: Indices = pair[self._owners] * max(len(encoded.dictionary), 1) + encoded.indices.to_numpy()
        self._is_paired: Flags = pair[self._owners] >= 0
        self._is_after: Flags = np.asarray(files.table.column(_IS_AFTER))[self._owners]
        self._pairs = pair

    def only(self, *, after: bool) -> tuple[Indices, Indices]:
        """Return the deletes that are on one side only: their places among all deletes, and their pairs, ascending."""
        side = self._is_paired & (self._is_after == after)
        other = self._keys[self._is_paired & (self._is_after != after)]
        places = np.flatnonzero(side & ~np.isin(self._keys, other))
        pairs = self._pairs[self._owners[places]]
        order = np.argsort(pairs, kind="stable")
        return places[order], pairs[order]


def _selected(files: PlannedFiles, places: Indices, deletes: tuple[Indices, Indices]) -> pa.Table:
    """Return files with `SELECTED_BY`, those for which there are deletes.

    Args:
        files: all planned files.
        places: of the files, by pair.
        deletes: places among the deletes of all files, and the pairs that they select rows of.
    """
    of_pairs, starts = np.unique(deletes[1], return_index=True)
    values = files.table.column(DELETES).combine_chunks().flatten().take(pa.array(deletes[0]))
    offsets = pa.array(np.append(starts, len(deletes[0])), pa.int32())
    table = files.table.take(pa.array(places[of_pairs]))
    return table.append_column(SELECTED_BY, pa.ListArray.from_arrays(offsets, values))


def _changes(table: pa.Table, kind: str, snapshots: Sequence[Snapshot]) -> pa.Table:
    """Return files with the columns of `CHANGE_COLUMNS`."""
    ids = pa.array([snapshot.snapshot_id for snapshot in snapshots], pa.int64())
    table = table.append_column("_change_type", pa.repeat(kind, len(table)))
    return table.append_column("_commit_snapshot_id", ids.take(table.column(_ORDINAL).combine_chunks()))
