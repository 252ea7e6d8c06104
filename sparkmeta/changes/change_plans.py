"""Plan what the snapshots of a table changed, in shares of tasks, in a process without a session.

The planning process finds the changed files of each snapshot, and divides them among tasks.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from sparkmeta.changes.changed_files import APPEND
from sparkmeta.changes.changelog import REPLACE, refuse_change_columns
from sparkmeta.changes.snapshot_changes import ChangeReaders, appends_of, changes_of, rows_of_snapshot
from sparkmeta.expr.arrays import from_stream, to_stream
from sparkmeta.manifests.sorted_manifests import packed
from sparkmeta.reports import ScanResult
from sparkmeta.rows.arrow_reader import PART_BYTES, row_shares, row_type
from sparkmeta.rows.file_rows import CHANGE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql.types import StructType

    from sparkmeta.changes.snapshot_changes import Parts, SnapshotChanges
    from sparkmeta.scan import Scan
    from sparkmeta.spec.metadata import Snapshot


@dataclass(frozen=True)
class ChangedSnapshot:
    """A snapshot whose changes are read.

    Attributes:
        snapshot: the snapshot.
        is_whole: whether all of its rows are inserted, since the history before it has expired.
    """

    snapshot: Snapshot
    is_whole: bool = False


def _key(step: ChangedSnapshot) -> tuple[int, bool]:
    return step.snapshot.snapshot_id, step.is_whole


@dataclass
class ChangePlans:
    """Plans the changes of a table's snapshots.

    Attributes:
        scan: the columns, the filter and the table.
        is_changelog: whether to read changelogs. If not, only the rows that snapshots of the operation `append` added
            are read.
    """

    scan: Scan
    is_changelog: bool
    _plans: dict[tuple[int, bool], SnapshotChanges | None] = field(default_factory=dict)

    def select(self, names: Sequence[str]) -> None:
        """Restrict the scan to some columns.

        Raises:
            InvalidArgumentError: the table has no such column.
        """
        if not self.is_changelog:
            self.scan = self.scan.select(*names)
            return
        chosen = [name for name in names if name not in CHANGE_COLUMNS]
        self.scan = self.scan.select(*(chosen or [self.scan.projection().fields[0].name]))
        refuse_change_columns(self.scan.plan.rows)

    @property
    def row_type(self) -> StructType:
        """The type of the rows."""
        scan = self.scan
        columns = tuple(CHANGE_COLUMNS) if self.is_changelog else scan.metadata_columns
        return row_type(scan.state.at(scan.snapshot()), scan.projection(), columns)

    def changes(self, step: ChangedSnapshot) -> SnapshotChanges | None:
        """Return the files in which a snapshot changed rows; None if there are none. Plans are cached.

        Raises:
            NoSuchSnapshotError: its parent is needed, and has expired.
            ValidationError: metadata or deletes contradict each other.
        """
        key = _key(step)
        if key not in self._plans:
            self._plans[key] = self._planned(step)
        return self._plans[key]

    def forget(self, steps: Iterable[ChangedSnapshot]) -> None:
        """Forget the plans of some snapshots."""
        for step in steps:
            self._plans.pop(_key(step), None)

    def _planned(self, step: ChangedSnapshot) -> SnapshotChanges | None:
        scan_filter, snapshot = self.scan.plan.rows.filter, step.snapshot
        if step.is_whole:
            return rows_of_snapshot(scan_filter, snapshot)
        if self.is_changelog:
            return None if snapshot.operation == REPLACE else changes_of(scan_filter, snapshot)
        return appends_of(scan_filter, snapshot) if snapshot.operation == APPEND else None

    def shares(self, ranges: Iterable[tuple[ChangedSnapshot, int, int | None]]) -> list[Share]:
        """Divide changes among tasks.

        Args:
            ranges: snapshots, oldest first, each with its first unit to read and the first unit not to read; None to
                read all further units.
        """
        started, steps = time.perf_counter(), [*ranges]
        uncompared: list[Parts] = []
        compared: list[list[Parts]] = []
        ordinal = files = size = 0
        for step, start, stop in steps:
            changes = self.changes(step)
            if changes is not None:
                end = len(changes) if stop is None else stop
                files += int(changes.file_counts[start:end].sum())
                size += int(changes.totals("file_size_in_bytes")[start:end].sum())
                uncompared += changes.uncompared(start, end, ordinal)
                compared += changes.of_compared(start, end, ordinal)
            ordinal += step.is_whole or step.snapshot.operation != REPLACE
        if steps:
            first, last = steps[0][0], steps[-1][0]
            since = None if first.is_whole else first.snapshot.parent_snapshot_id
            result = partial(ScanResult, files, size)
            self.scan.plan.report_changes(result, time.perf_counter() - started, since, last.snapshot)
        readers = ChangeReaders.of(self.scan.plan.rows, changes=self.is_changelog)
        return [*_uncompared_shares(readers, uncompared), *_compared_shares(readers, compared)]


@dataclass(frozen=True)
class Share:
    """The parts of files that a task reads.

    Attributes:
        readers: read the parts.
        uncompared: parts that are not compared.
        compared: units whose rows are compared.
        bucket: the number of the bucket of rows that the task reads of these units.
        buckets: the number of buckets.
    """

    readers: ChangeReaders
    uncompared: bytes | None = None
    compared: tuple[tuple[bytes, ...], ...] = ()
    bucket: int = 0
    buckets: int = 1

    def rows(self) -> Iterator[pa.Table]:
        """Read the rows."""
        if self.uncompared is not None:
            for batch in self.readers.uncompared.read(from_stream(self.uncompared).to_batches()):
                yield pa.Table.from_batches([batch])
        for unit in self.compared:
            assert self.readers.compared is not None
            parts = (batch for part in unit for batch in from_stream(part).to_batches())
            yield self.readers.compared.read(parts, self.bucket, self.buckets)


def _uncompared_shares(readers: ChangeReaders, parts: Sequence[Parts]) -> Iterator[Share]:
    # Parts whose rows are selected by deletes have a further column.
    for width in sorted({table.num_columns for table, _ in parts}):
        same_width = [(table, sizes) for table, sizes in parts if table.num_columns == width]
        whole_table = pa.concat_tables([table for table, _ in same_width], promote_options="permissive")
        for share in row_shares(whole_table, np.concatenate([sizes for _, sizes in same_width])):
            yield Share(readers, uncompared=to_stream(share, "zstd"))


def _compared_shares(readers: ChangeReaders, units: Sequence[list[Parts]]) -> Iterator[Share]:
    sized = [
        (tuple(to_stream(table, "zstd") for table, _ in parts), sum(int(sizes.sum()) for _, sizes in parts))
        for parts in units
    ]
    for pack in packed(sized, PART_BYTES, lambda unit: unit[1]):
        buckets = -(-sum(size for _, size in pack) // PART_BYTES) or 1
        for bucket in range(buckets):
            yield Share(readers, compared=tuple(unit for unit, _ in pack), bucket=bucket, buckets=buckets)
