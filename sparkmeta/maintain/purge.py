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
from sparkmeta.session import local_frame, materialize
from sparkmeta.storage.access import executor_writer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

    from sparkmeta.operations.base_table import BaseTable

_GC_ENABLED = "gc.enabled"
_SCHEMA = pa.schema([("kind", pa.string()), ("file_path", pa.string())])
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
        drop: drops the table, and returns files that are left of it.
        by_catalog: whether the catalog then deletes the table's files itself.
    """

    table: BaseTable
    drop: Callable[[], Sequence[str]]
    by_catalog: bool

    def files(self) -> DataFrame:
        """Return the files, lazily, each once: its `kind`, such as "data file" or "manifest", and `file_path`."""
        rows = [{"kind": kind, "file_path": path} for kind, paths in self._named_by_metadata() for path in paths]
        others = local_frame(self.table.state.spark, pa.Table.from_pylist(rows, _SCHEMA))
        return self._content_files().union(self._manifests()).union(others)

    def summary(self) -> PurgeSummary:
        """Count the files, by a Spark job."""
        counts = {row.kind: row["count"] for row in self.files().groupBy("kind").count().collect()}
        return PurgeSummary(self.table.full_name, _in_order(counts))

    def commit(self) -> PurgeSummary:
        """Drop the table, then delete its files, metadata last. What has been deleted can't be restored.

        If this process ends meanwhile, the table is gone from its catalog, and files stay. If a manifest can't be read,
        nothing is dropped.

        Raises:
            NoSuchTableError: the table is gone.
            CommitFailedError: it has changed since it was planned. Nothing was dropped.
            CatalogError: the catalog refused to drop it, or did not answer.
        """
        if self.table.refresh().metadata_location != self.table.metadata_location:
            raise CommitFailedError(f"{self.table.full_name}: the table has changed since the plan: plan again")
        if self.by_catalog:
            self.drop()
            return PurgeSummary(self.table.full_name, {}, by_catalog=True)
        # All manifests are read before anything is dropped.
        frames = [materialize(self._content_files()), materialize(self._manifests())]
        remaining = self.drop()
        counts, failures = Counter[str](), 0
        for rows in self._stages(frames):
            while batch := list(islice(rows, _BATCH)):
                failures += self._delete([path for _, path in batch])
                counts.update(kind for kind, _ in batch)
        failures += self._delete(remaining)
        return PurgeSummary(self.table.full_name, _in_order(counts), failures)

    def _stages(self, frames: Sequence[DataFrame]) -> Iterator[Iterator[tuple[str, str]]]:
        """Yield kinds and paths of the files that are deleted together: those of frames, then those of the metadata."""
        for frame in frames:
            yield frame.toLocalIterator()
        for kind, paths in self._named_by_metadata():
            yield ((kind, path) for path in paths)

    def _content_files(self) -> DataFrame:
        kind = F.when(F.col("content") == 0, "data file").otherwise("delete file").alias("kind")
        return all_files(self.table.state, None, ["content", "file_path"]).select(kind, "file_path").distinct()

    def _manifests(self) -> DataFrame:
        paths = all_manifests(self.table.state).select("path").distinct()
        return paths.select(F.lit("manifest").alias("kind"), F.col("path").alias("file_path"))

    def _delete(self, locations: Sequence[str]) -> int:
        """Delete files, and return how many could not be."""
        failed = self.table.state.files.delete_many(locations)
        for location, reason in failed:
            _log.warning("%s: not deleted: %s", location, reason)
        return len(failed)

    def _named_by_metadata(self) -> list[tuple[str, list[str]]]:
        """Return the files that the table metadata itself names, by their kind; metadata files last."""
        metadata = self.table.metadata
        lists = [snapshot.manifest_list or snapshot.root_manifest for snapshot in metadata.snapshots]
        statistics = [file.statistics_path for file in [*metadata.statistics, *metadata.partition_statistics]]
        logged = [entry.metadata_file for entry in metadata.metadata_log]
        return [
            ("manifest list", [path for path in dict.fromkeys(lists) if path]),
            ("statistics", list(dict.fromkeys(statistics))),
            ("metadata", list(dict.fromkeys([*logged, self.table.metadata_location]))),
        ]


def _in_order(counts: Mapping[str, int]) -> dict[str, int]:
    return {kind: counts[kind] for kind in _KINDS if kind in counts}


def plan_purge(table: BaseTable, drop: Callable[[], Sequence[str]], *, by_catalog: bool) -> PurgePlan:
    """Plan to drop a table and delete its files; see `PurgePlan`.

    Raises:
        ValidationError: the table property `gc.enabled` says that its files may belong to other tables.
        UnsupportedError: only Spark can open the table's files.
    """
    enabled = table.metadata.properties.get(_GC_ENABLED, "true")
    if enabled.lower() != "true":
        raise ValidationError(
            f"{table.full_name}: the table property {_GC_ENABLED} is {enabled}: its files may belong to other tables, "
            "so drop_table alone can drop it"
        )
    if not by_catalog:
        executor_writer(table.state.files)
    return PurgePlan(table, drop, by_catalog)
