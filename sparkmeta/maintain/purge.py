"""Drop a table and delete its files: those that its metadata and the manifests of its snapshots name."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from sparkmeta.errors import CommitFailedError, ValidationError
from sparkmeta.inspect.all_files import all_files
from sparkmeta.inspect.manifests import all_manifests
from sparkmeta.session import local_frame
from sparkmeta.storage.access import executor_writer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame

    from sparkmeta.operations.base_table import BaseTable

_GC_ENABLED = "gc.enabled"
# In the order in which they are deleted: a file before the files that name it.
_KINDS = ("data file", "delete file", "manifest", "manifest list", "statistics", "metadata")
_BATCH = 1000

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PurgeSummary:
    """How many files of a table a purge deletes, or has deleted.

    Attributes:
        name: the table's name.
        files: the number of files of each kind.
        failures: the number of files that could not be deleted. Warnings in the log name them.
        by_catalog: whether the catalog deletes the files, now or later.
    """

    name: str
    files: dict[str, int]
    failures: int = 0
    by_catalog: bool = False

    def __str__(self) -> str:
        counts = ", ".join(f"{kind}: {count:,}" for kind, count in self.files.items()) or "no files"
        notes = ["the catalog deletes them"] * self.by_catalog + [f"{self.failures:,} not deleted"] * bool(
            self.failures
        )
        return "; ".join([f"{self.name}: {counts}", *notes])


@dataclass(frozen=True)
class PurgePlan:
    """A plan to drop a table and delete its files, carried out by `commit`.

    Files that other tables share are deleted as well. Files that no snapshot names stay.

    Attributes:
        table: the table.
        drop: drops the table, and returns files that are left of it; None if the catalog deletes all files itself.
    """

    table: BaseTable
    drop: Callable[[], Sequence[str] | None]

    def files(self) -> DataFrame:
        """Return the files, lazily, each once: its `kind`, such as "data file" or "manifest", and `file_path`."""
        state = self.table.state
        content = F.when(F.col("content") == 0, _KINDS[0]).otherwise(_KINDS[1]).alias("kind")
        listed = all_files(state, None, ["content", "file_path"]).select(content, "file_path").distinct()
        manifests = all_manifests(state).select(F.lit("manifest").alias("kind"), F.col("path").alias("file_path"))
        others = pa.Table.from_pylist(self._others(), pa.schema([("kind", pa.string()), ("file_path", pa.string())]))
        return listed.union(manifests.distinct()).union(local_frame(state.spark, others))

    def summary(self) -> PurgeSummary:
        """Count the files, by a Spark job."""
        counts = {row.kind: row["count"] for row in self.files().groupBy("kind").count().collect()}
        return PurgeSummary(self.table.full_name, {kind: counts[kind] for kind in _KINDS if kind in counts})

    def commit(self) -> PurgeSummary:
        """Drop the table, then delete its files, metadata last. What has been deleted can't be restored.

        If this process ends meanwhile, the table is gone from its catalog, and files stay.

        Raises:
            NoSuchTableError: the table is gone.
            CommitFailedError: it has changed since it was planned. Nothing was dropped.
            CatalogError: the catalog refused to drop it, or did not answer.
        """
        if self.table.refresh().metadata_location != self.table.metadata_location:
            raise CommitFailedError(f"{self.table.full_name}: the table has changed since the plan: plan again")
        remaining = self.drop()
        if remaining is None:
            return PurgeSummary(self.table.full_name, {}, by_catalog=True)
        files = self.files()
        deleted: Counter[str] = Counter()
        failures = 0
        for kind in _KINDS:
            locations = (row.file_path for row in files.where(F.col("kind") == kind).toLocalIterator())
            while batch := list(islice(locations, _BATCH)):
                failures += self._delete(batch)
                deleted[kind] += len(batch)
        failures += self._delete(remaining)
        return PurgeSummary(self.table.full_name, dict(deleted), failures)

    def _delete(self, locations: Sequence[str]) -> int:
        """Delete files, and return how many could not be."""
        failed = self.table.state.files.delete_many(locations)
        for location, reason in failed:
            _log.warning("%s: not deleted: %s", location, reason)
        return len(failed)

    def _others(self) -> list[dict[str, str]]:
        metadata = self.table.metadata
        lists = (snapshot.manifest_list or snapshot.root_manifest for snapshot in metadata.snapshots)
        logged = (entry.metadata_file for entry in metadata.metadata_log)
        by_kind = {
            "manifest list": filter(None, lists),
            "statistics": (file.statistics_path for file in [*metadata.statistics, *metadata.partition_statistics]),
            "metadata": [*logged, self.table.metadata_location],
        }
        return [{"kind": kind, "file_path": path} for kind, paths in by_kind.items() for path in dict.fromkeys(paths)]


def plan_purge(table: BaseTable, drop: Callable[[], Sequence[str] | None]) -> PurgePlan:
    """Plan to drop a table and delete its files; see `PurgePlan`.

    Raises:
        ValidationError: the table property `gc.enabled` says that its files may belong to other tables.
        UnsupportedError: only Spark can open the table's files, or the table is read-only.
    """
    enabled = table.metadata.properties.get(_GC_ENABLED, "true")
    if enabled.lower() != "true":
        raise ValidationError(
            f"{table.full_name}: the table property {_GC_ENABLED} is {enabled}: its files may belong to other tables, "
            "so drop_table alone can drop it"
        )
    executor_writer(table.state.files)
    return PurgePlan(table, drop)
