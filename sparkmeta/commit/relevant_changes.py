"""What other commits changed, of the files that an operation read or replaces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pyiceberg.expressions import BooleanExpression
from pyspark.sql import functions as F

from sparkmeta.changes.entry_changes import SNAPSHOT, EntryChanges
from sparkmeta.columns import sql
from sparkmeta.commit.partitions import PARTITION_KEY
from sparkmeta.commit.search import SEARCH_COLUMNS
from sparkmeta.errors import CommitConflictError
from sparkmeta.plan.deletes.views import partition_key
from sparkmeta.plan.filter import ScanFilter, stats_match, tuple_matches
from sparkmeta.plan.prune import matching_manifests

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.spec.entry import ContentType
    from sparkmeta.spec.metadata import Snapshot
    from sparkmeta.state import TableState

COLUMNS = (*SEARCH_COLUMNS, "equality_ids")
OTHERS = "another commit or an earlier change of this transaction"
REPLACE = "replace"


@dataclass(frozen=True)
class RelevantChanges:
    """The changes of concurrent snapshots that are relevant to an operation.

    Attributes:
        history: the snapshots, newest first.
        filter: a filter that relevant files may match.
        partitions: rows of `replaced_partitions` with the partitions of relevant files; None for all partitions.
        more_stats: columns whose stats are read in addition to those of the filter.
    """

    head: TableState
    history: Sequence[Snapshot]
    filter: ScanFilter
    partitions: DataFrame | None = None
    more_stats: frozenset[int] = frozenset()

    @cached_property
    def _changes(self) -> EntryChanges:
        projection = self.head.projection(COLUMNS, self.filter.undecided_ids | self.more_stats)
        changes = EntryChanges(self.head, projection, keep=lambda manifests: matching_manifests(manifests, self.filter))
        for snapshot in reversed(self.history):
            changes.add(snapshot)
        return changes

    def added(self, content: ContentType, *, rewritten: bool = False) -> list[DataFrame]:
        """Return the added files; unless `rewritten`, without those of rewrites, which change no rows."""
        ids = {snapshot.snapshot_id for snapshot in self.history if rewritten or snapshot.operation != REPLACE}
        return [self._matching(frame) for frame in self._changes.of_snapshots(ids).added(content)]

    def removed(self, content: ContentType) -> list[DataFrame]:
        """Return the removed files."""
        return [self._matching(frame) for frame in self._changes.removed(content)]

    def _matching(self, entries: DataFrame) -> DataFrame:
        """Return the relevant entries, including DELETED ones."""
        matching = entries.where((tuple_matches(self.filter) & stats_match(self.filter)).text)
        if self.partitions is None or not has_rows(matching):
            return matching
        same = partition_key(self.head).eqNullSafe(sql.col(PARTITION_KEY))
        return matching.join(F.broadcast(self.partitions), same.column(), "left_semi")


def changes_matching(
    head: TableState, history: Sequence[Snapshot], row_filter: BooleanExpression | str
) -> RelevantChanges:
    """Return the changes of snapshots, newest first, in files that may match a filter.

    As in Iceberg's Java library, a null matches `!=`, NOT IN and NOT LIKE, so a file of such rows is a conflict.
    """
    return RelevantChanges(head, history, ScanFilter.of(head, row_filter, two_valued=True))


def has_rows(frame: DataFrame) -> bool:
    """Return whether a frame has rows. Uses `collect`, which starts no job for local rows such as those of a root."""
    return bool(frame.select("location").limit(1).collect())


def refuse(head: TableState, frames: Iterable[DataFrame], problem: str) -> None:
    """Raise CommitConflictError if there are changes of other commits, rows with `location` and `SNAPSHOT`."""
    for frame in frames:
        for row in frame.select("location", SNAPSHOT).limit(1).collect():
            raise conflict(head, f"snapshot {row[SNAPSHOT]}, of {OTHERS},", problem, row["location"])


def conflict(head: TableState, who: str, problem: str, location: str) -> CommitConflictError:
    """Return the error for a file that another commit changed."""
    return CommitConflictError(f"{head.metadata.location}: {who} {problem}: {location}")
