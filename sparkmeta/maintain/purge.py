"""Drop a table and delete the files that its metadata and manifests reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sparkmeta.entries.relation import frame_of, union
from sparkmeta.errors import CommitFailedError
from sparkmeta.maintain.plans import Plan, PlanSummary
from sparkmeta.maintain.reachable import UNREACHABLE, count_files, public_files, unreachable_files
from sparkmeta.maintain.reachable_tasks import Deletion, delete_files
from sparkmeta.operations.table_operations import BaseTable
from sparkmeta.spec.expiry import Expired, expired_ids, refuse_without_gc
from sparkmeta.storage.files import executor_writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.entries.relation import Relation

_METADATA = "metadata"


@dataclass(frozen=True)
class PurgeSummary(PlanSummary):
    """The files that a purge deletes; `str` formats them.

    Attributes:
        files: content -> the number of files.
        bytes: content -> the size of these files, as far as metadata records it.
        missing: the number of missing lists and manifests. Files that they list are kept.
        by_catalog: whether the catalog deletes the files, now or later.
    """

    files: Mapping[str, int]
    bytes: Mapping[str, int]
    missing: int
    by_catalog: bool

    def __str__(self) -> str:
        actor = "the catalog deletes" if self.by_catalog else "a purge deletes"
        total = f"{self.table}: {actor} {sum(self.files.values())} files with at least {sum(self.bytes.values())} bytes"
        missing_text = f"  {self.missing} lists and manifests are missing; the files that they list stay"
        sizes = {content: f", {size} bytes" for content, size in self.bytes.items() if size}
        counts = (f"  {content}: {count} files{sizes.get(content, '')}" for content, count in self.files.items())
        return "\n".join([total, *counts, *([missing_text] if self.missing else [])])


@dataclass(frozen=True)
class PurgePlan(Plan[BaseTable, Deletion | None]):
    """A plan to drop a table and delete its files, carried out by `commit`.

    Files shared with other tables are deleted as well. Files that no snapshot references are kept.

    Attributes:
        by_catalog: whether the catalog deletes the table's files itself.
    """

    _doing = "Dropping the table"

    # Drops the table and returns its remaining files.
    _drop: Callable[[], Sequence[str]]
    by_catalog: bool

    def to_df(self) -> DataFrame:
        """Return one row per file: content, file_path, file_size_in_bytes; see `ExpiryPlan.to_df`. Runs jobs.

        Metadata files have the content "metadata".
        """
        return public_files(frame_of(self._files, self.table.state))

    def summary(self) -> PurgeSummary:
        """Return the plan in numbers. Runs the jobs of `to_df`."""
        return PurgeSummary(self.table.full_name, *count_files(self._files), self.by_catalog)

    def commit(self) -> Deletion | None:
        """Drop the table, then delete its files, by tasks if there are many. This can't be undone.

        If this process dies in between, the table is gone from its catalog and files remain. If a manifest is damaged,
        nothing is dropped. A second call does nothing.

        Returns:
            The outcome of the first call's deletion; None if the catalog deletes the files itself.

        Raises:
            NoSuchTableError: the table is gone.
            CommitFailedError: the table has changed since the plan. Nothing was dropped.
            CatalogError: the catalog refused to drop it, or did not answer.
        """
        return super().commit()

    def _commit(self) -> Deletion | None:
        if self.table.refresh().metadata_location != self.table.metadata_location:
            raise CommitFailedError(f"{self.table.full_name}: the table has changed since the plan: plan again")
        if self.by_catalog:
            self._drop()
            return None
        writer, files = executor_writer(self.table.state.files), self._files
        # Read all manifests before the drop: serverless sessions, which keep no rows, read them only to count.
        count = sum(count_files(files).files.values())
        self.table.state.files.delete_many(self._drop())
        return delete_files(files, writer, self.table.state, count)

    def _outcome(self) -> dict[str, Any] | None:
        if not self._committed:
            return None
        deletion = self._committed[0]
        return {"by_catalog": True} if deletion is None else asdict(deletion)

    @cached_property
    def _files(self) -> Relation:
        state, metadata = self.table.state, self.table.metadata
        paths = [*(entry.metadata_file for entry in metadata.metadata_log), self.table.metadata_location]
        rows = [{"content": _METADATA, "path": path} for path in dict.fromkeys(paths)]
        everything = Expired(tuple(metadata.snapshots), tuple(metadata.refs))
        of_snapshots = unreachable_files(state, expired_ids(metadata, everything))
        return union(of_snapshots, pa.Table.from_pylist(rows, UNREACHABLE), state)


def plan_purge(table: BaseTable, drop: Callable[[], Sequence[str]], *, by_catalog: bool) -> PurgePlan:
    """Plan to drop a table and delete its files; see `PurgePlan`.

    Raises:
        ValidationError: the table property `gc.enabled` says that its files may belong to other tables.
        UnsupportedError: only Spark can open the table's files.
    """
    refuse_without_gc(table.metadata)
    if not by_catalog:
        executor_writer(table.state.files)
    return PurgePlan(table, drop, by_catalog)
