"""The plan to rewrite Avro manifests, and the step that commits it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sparkmeta.edit.lists import NewList, without_manifests
from sparkmeta.edit.new_snapshot import branch_head
from sparkmeta.edit.rewrite_plan import RewritePlan, RewriteStep, RewriteSummary, rewritten_by_others
from sparkmeta.edit.sorted_manifests import file_count
from sparkmeta.edit.summary import ManifestCounts
from sparkmeta.entries.counts import live_count, live_counts
from sparkmeta.errors import UnsupportedError
from sparkmeta.operations.base_table import TableT
from sparkmeta.rewrite.manifests.groups import (
    CONTENTS,
    REWRITTEN,
    ManifestGroup,
    ManifestRewriteOptions,
    manifest_groups,
    target_bytes,
    total_bytes,
)
from sparkmeta.rewrite.manifests.job import ManifestJob
from sparkmeta.session import local_frame
from sparkmeta.spec.entry import ContentType
from sparkmeta.spec.metadata import refuse_encrypted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.state import TableState

PLANNED = pa.schema(
    [
        pa.field("content", pa.string()),
        pa.field("file_path", pa.string()),
        pa.field("spec_id", pa.int32()),
        pa.field("live_files", pa.int64()),
        pa.field("deleted_files", pa.int64()),
        pa.field("file_size_in_bytes", pa.int64()),
    ]
)
"""The columns of `ManifestRewritePlan.files`."""


@dataclass(frozen=True)
class ManifestRewriteSummary(RewriteSummary):
    """The numbers of a rewrite, computed from the manifest list alone.

    Attributes:
        manifests_after: the expected number of new manifests.
        live_files: entries to write; None if a manifest does not count them.
        bytes: bytes of manifests to read.
    """

    data_manifests: int
    delete_manifests: int
    kept_manifests: int
    manifests_after: int
    live_files: int | None
    bytes: int

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.data_manifests or self.delete_manifests)

    def __str__(self) -> str:
        if self.is_empty:
            return f"{self.table}: its manifests are in order"
        files = "an unknown number of" if self.live_files is None else str(self.live_files)
        manifests = f"{self.data_manifests} data manifests and {self.delete_manifests} delete manifests"
        return "\n".join(
            [
                f"{self.table}: {manifests} become about {self.manifests_after}; {self.kept_manifests} stay",
                f"  {files} live files in {self.bytes} bytes",
            ]
        )


@dataclass(frozen=True)
class ManifestRewritePlan(RewritePlan[TableT]):
    """A plan to rewrite Avro manifests, carried out by `commit`."""

    options: ManifestRewriteOptions
    _groups: tuple[ManifestGroup, ...]

    def files(self) -> DataFrame:
        """Return a row for each manifest to rewrite, without a job.

        Columns: content ("data", "deletes"), file_path, spec_id, live_files and deleted_files (null if the list does
        not count them), file_size_in_bytes.
        """
        tables = [PLANNED.empty_table()]
        for group in self._groups:
            manifests = group.manifests
            stats = manifests.column("manifest_stats").combine_chunks()
            columns = {
                "content": pa.repeat(CONTENTS[group.content], len(manifests)),
                "file_path": manifests.column("location"),
                "spec_id": manifests.column("partition_spec_id"),
                "live_files": live_counts(manifests),
                "deleted_files": stats.field("deleted_files_count").cast(pa.int64()),
                "file_size_in_bytes": manifests.column("file_size_in_bytes"),
            }
            tables.append(pa.table(columns, schema=PLANNED))
        return local_frame(self._state.spark, pa.concat_tables(tables))

    def summary(self) -> ManifestRewriteSummary:
        """Return the plan in numbers, without a job."""
        counts = dict.fromkeys(CONTENTS, 0)
        for group in self._groups:
            counts[group.content] += len(group.manifests)
        live = [live_count(group.manifests) for group in self._groups]
        return ManifestRewriteSummary(
            table=self.table.full_name,
            snapshot_id=self._state.snapshot.snapshot_id if self._state.snapshot else None,
            data_manifests=counts[ContentType.DATA_MANIFEST],
            delete_manifests=counts[ContentType.DELETE_MANIFEST],
            kept_manifests=len(self._state.manifests) - sum(counts.values()),
            manifests_after=sum(group.parts for group in self._groups),
            live_files=None if None in live else sum(count or 0 for count in live),
            bytes=sum(total_bytes(group.manifests) for group in self._groups),
        )

    def step(self) -> RewriteStep | None:
        """See `RewritePlan.step`."""
        if not self._groups:
            return None
        return _ManifestStep(self.branch, self.properties, self._state, self.options, self._groups)


@dataclass
class _ManifestStep(RewriteStep):
    """Writes manifests once; each attempt adds them to the newest manifest list."""

    planned_on: TableState
    options: ManifestRewriteOptions
    groups: tuple[ManifestGroup, ...]
    written: list[pa.Table] | None = None

    def apply_to(self, head: TableState) -> TableMetadata:
        """See `RewriteStep.apply_to`."""
        _refuse(head)
        if self.written is None:
            self.written = [self._write(group) for group in self.groups]
        planned, present = _inherited(self.planned_on), _inherited(head)
        same_version = head.metadata.format_version == self.planned_on.metadata.format_version
        fitting = [
            (group, manifests)
            for group, manifests in zip(self.groups, self.written, strict=True)
            if same_version and all(present.get(path) == planned[path] for path in group.paths)
        ]
        if not fitting:
            raise rewritten_by_others(head)
        manifests = pa.concat_tables([manifests for _, manifests in fitting])
        replaced = set().union(*(group.paths for group, _ in fitting))
        counts = ManifestCounts(len(manifests), len(present) - len(replaced), len(replaced), file_count(manifests))
        sorted_by = {str(group.spec_id): group.keys for group, _ in fitting}
        how = {"target-bytes": target_bytes(self.planned_on.metadata, self.options), "sorted-by": sorted_by}
        summary = self.summary(head, counts, {REWRITTEN: json.dumps(how)})
        listed = pa.concat_tables([manifests, without_manifests(head.manifest_files, replaced)])
        return NewList(head, self.branch, self.names).commit(listed, summary())

    def _write(self, group: ManifestGroup) -> pa.Table:
        manifests = ManifestJob(self.planned_on, group, self.options, self.names.file("m")).run()
        self.names.written.update(manifests.column("manifest_path").to_pylist())
        return manifests


def _inherited(state: TableState) -> dict[str, tuple[Any, ...]]:
    """Return the content, spec and inherited values of each manifest of a snapshot, by path."""
    names = ("manifest_path", "partition_spec_id", "content", "added_snapshot_id", "sequence_number", "first_row_id")
    rows = zip(*(state.manifest_files.column(name).to_pylist() for name in names), strict=True)
    return {path: tuple(values) for path, *values in rows}


def plan_rewrite(
    table: TableT, options: ManifestRewriteOptions, branch: str, properties: Mapping[str, str]
) -> ManifestRewritePlan[TableT]:
    """See `Maintenance.rewrite_manifests`."""
    table.refuse_read_only()
    head = branch_head(table.state, branch)
    _refuse(head)
    return ManifestRewritePlan(table, branch, properties, head, options, tuple(manifest_groups(head, options)))


def _refuse(state: TableState) -> None:
    metadata = state.metadata
    if metadata.format_version > 3:
        raise UnsupportedError(
            f"{metadata.location}: Avro manifests are rewritten in tables of format version 1 to 3; the leaves of the "
            "metadata tree that one of version 4 has, or gets by upgrade, are put in order by compact_manifests"
        )
    refuse_encrypted(metadata, "whose manifests can't be rewritten")
