"""The rows that one snapshot changed, in units for tasks: planned and read without a session.

A unit is a file, or all files of a partition in which the snapshot both inserted and deleted rows. The rows of such a
partition are compared, since a row that was deleted and inserted again is no change. The order of a snapshot's units
depends only on its files. Batches divide them only between inserts, or between deletes: an update that moves a row to
another file inserts and deletes the row, and a reader that applies batches one after the other would delete it last.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.changes.changed_files import INSERT, ChangedFiles, appended_files, changed_files, inserted, live_files
from sparkmeta.changes.compared_rows import ComparedRows, row_codes
from sparkmeta.expr.arrays import whole
from sparkmeta.rows.arrow_reader import matching_rows, parts_table
from sparkmeta.rows.file_rows import CHANGE_COLUMNS, MatchingRows
from sparkmeta.rows.planned import PARTITION_KEY, Indices

if TYPE_CHECKING:
    from sparkmeta.plan.filter import ScanFilter
    from sparkmeta.rows.planned import Flags, PlannedFiles
    from sparkmeta.rows.read import RowScan
    from sparkmeta.spec.metadata import Snapshot

_TYPE, _ORDINAL, _ = CHANGE_COLUMNS
_ORDER: Final = ("file_path", "data_sequence_number", "first_row_id", "record_count")

Parts = tuple[pa.Table, np.ndarray[Any, np.dtype[np.int64]]]
"""Parts of files, and their sizes; see `parts_table`."""


@dataclass(frozen=True)
class SnapshotChanges:
    """The files in which a snapshot changed rows.

    Attributes:
        files: the files.
        units: the number of each file's unit: first of `files.whole`, then of `files.partly`.
        compared: whether each unit is compared.
    """

    files: ChangedFiles
    units: Indices
    compared: Flags

    @staticmethod
    def of(files: ChangedFiles) -> SnapshotChanges:
        """Divide the files of one snapshot into units."""
        sides = [side.table for side in (files.whole, files.partly)]
        table = pa.concat_tables([side.select([*_ORDER, "spec_id", PARTITION_KEY, _TYPE]) for side in sides])
        is_insert, row_numbers = np.asarray(pc.equal(table.column(_TYPE), INSERT)), np.arange(len(table))
        groups = np.zeros(len(table), np.int64)
        if len(pc.unique(table.column("spec_id"))) == 1:
            groups = row_codes([whole(table.column(PARTITION_KEY))])
        sums = np.bincount(groups, is_insert, minlength=1)
        is_compared = ((sums > 0) & (sums < np.bincount(groups, minlength=1)))[groups]
        ranks = np.empty(len(table), np.int64)
        ranks[pc.sort_indices(table, [(name, "ascending") for name in _ORDER]).to_numpy()] = row_numbers
        firsts = np.full(int(groups.max(initial=0)) + 1, len(table))
        np.minimum.at(firsts, groups, ranks)
        _, units = np.unique(np.where(is_compared, firsts[groups], ranks), return_inverse=True)
        compared = np.zeros(int(units.max(initial=-1)) + 1, np.bool_)
        compared[units] = is_compared
        return SnapshotChanges(files, units.reshape(-1), compared)

    def __len__(self) -> int:
        return len(self.compared)

    @property
    def is_mixed(self) -> bool:
        """Whether the snapshot both inserted and deleted rows, which are then read in one batch."""
        return bool(len(self.files.mixed_ordinals))

    @cached_property
    def file_counts(self) -> Indices:
        """The number of files of each unit."""
        return np.bincount(self.units, minlength=len(self))

    def totals(self, column: str) -> Indices:
        """Return the sum of a column of numbers for each unit."""
        numbers = np.concatenate([side.numbers(column) for side in (self.files.whole, self.files.partly)])
        return np.bincount(self.units, np.maximum(numbers, 0), minlength=len(self)).astype(np.int64)

    def uncompared(self, start: int, stop: int, ordinal: int) -> list[Parts]:
        """Return the parts of files in the units of a range that are not compared. They can be read in any order."""
        is_chosen = (self.units >= start) & (self.units < stop) & ~self.compared[self.units]
        return self._parts(np.flatnonzero(is_chosen), ordinal)

    def of_compared(self, start: int, stop: int, ordinal: int) -> list[list[Parts]]:
        """Return the parts of the files of each compared unit in a range."""
        units = np.flatnonzero(self.compared[start:stop]) + start
        order = np.argsort(self.units, kind="stable")
        starts, stops = (np.searchsorted(self.units[order], units, side) for side in ("left", "right"))
        return [self._parts(order[begin:end], ordinal) for begin, end in zip(starts, stops, strict=True)]

    def _parts(self, file_rows: Indices, ordinal: int) -> list[Parts]:
        count, parts = len(self.files.whole), []
        sides = (
            (self.files.whole, file_rows[file_rows < count]),
            (self.files.partly, file_rows[file_rows >= count] - count),
        )
        for side, rows in sides:
            if len(rows):
                table, sizes = parts_table(side.take(rows).with_deletes())
                ordinals = pa.repeat(pa.scalar(ordinal, pa.int32()), len(table))
                parts.append((table.set_column(table.column_names.index(_ORDINAL), _ORDINAL, ordinals), sizes))
        return parts


def changes_of(scan_filter: ScanFilter, snapshot: Snapshot) -> SnapshotChanges | None:
    """Return the files in which a snapshot changed rows that may match a filter; None if there are none.

    Raises:
        NoSuchSnapshotError: the snapshot removed files or changed deletes, and its parent has expired.
        ValidationError: metadata or deletes contradict each other.
    """
    files = changed_files(scan_filter, [snapshot])
    return None if files is None else SnapshotChanges.of(files)


def appends_of(scan_filter: ScanFilter, snapshot: Snapshot) -> SnapshotChanges | None:
    """Return the files that a snapshot added, without deletes, as changes that insert; None if there are none."""
    files = appended_files(scan_filter, snapshot)
    return None if files is None else _insertions(inserted(files))


def rows_of_snapshot(scan_filter: ScanFilter, snapshot: Snapshot) -> SnapshotChanges:
    """Return the files of a snapshot, with their deletes, as changes that insert all of their live rows."""
    return _insertions(live_files(scan_filter, snapshot))


def _insertions(files: PlannedFiles) -> SnapshotChanges:
    return SnapshotChanges.of(ChangedFiles(files, replace(files, table=files.table.slice(0, 0))))


@dataclass(frozen=True)
class ChangeReaders:
    """Readers of the parts of `SnapshotChanges`, for tasks.

    Attributes:
        uncompared: reads parts that are not compared.
        compared: reads the parts of a unit that is compared; None if there is no such unit.
    """

    uncompared: MatchingRows
    compared: ComparedRows | None = None

    @staticmethod
    def of(scan: RowScan, *, changes: bool) -> ChangeReaders:
        """Return the readers of a scan.

        Args:
            scan: the columns and the filter.
            changes: whether to add `CHANGE_COLUMNS` and to compare rows.
        """
        if not changes:
            return ChangeReaders(matching_rows(scan.filter, scan.projection, scan.metadata_columns))
        names = tuple(CHANGE_COLUMNS)
        selected = matching_rows(scan.filter, scan.projection, names)
        compared = matching_rows(scan.filter, scan.filter.schema, names)
        return ChangeReaders(selected, ComparedRows(compared, selected.schema))
