"""Compaction of a table's manifests as a plan: what is rewritten and why, then the commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic

import pyarrow as pa

from sparkmeta.commit.attempts import commit_steps
from sparkmeta.commit.base_root import BaseRoot, base_root
from sparkmeta.commit.compact.choose import Choice, Reason, Scope, choose
from sparkmeta.commit.compact.fold import fold
from sparkmeta.commit.compact.job import Rewritten
from sparkmeta.commit.compact.options import CompactionOptions, scope_of
from sparkmeta.commit.compact.ranges import leaf_ranges
from sparkmeta.commit.compact.rewrite import rewrite
from sparkmeta.commit.new_snapshot import NewSnapshot, SnapshotNames, blob_loader, branch_head, with_root
from sparkmeta.commit.summary import ManifestCounts, Tally, snapshot_summary
from sparkmeta.commit.tree import TreeChange
from sparkmeta.errors import CommitConflictError
from sparkmeta.maintain.outcome import committed_counts
from sparkmeta.manifests.v4.root import Root
from sparkmeta.operations.base_table import TableT
from sparkmeta.session import local_frame
from sparkmeta.spec.entry import ContentType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.spec.snapshot import Summary
    from sparkmeta.state import TableState

PLANNED = pa.schema(
    [
        pa.field("content", pa.string()),
        pa.field("path", pa.string()),
        pa.field("spec_id", pa.int32()),
        pa.field("reasons", pa.list_(pa.string())),
        pa.field("gain", pa.string()),
        pa.field("group", pa.int32()),
        pa.field("group_parts", pa.int32()),
        pa.field("entries", pa.int64()),
        pa.field("masked_entries", pa.int64()),
        pa.field("overlaps", pa.int32()),
        pa.field("file_size_in_bytes", pa.int64()),
    ]
)
"""The columns of `CompactionPlan.files`."""

_CONTENTS = {
    ContentType.DATA: "data file",
    ContentType.POSITION_DELETES: "delete file",
    ContentType.EQUALITY_DELETES: "delete file",
    ContentType.DATA_MANIFEST: "data leaf",
    ContentType.DELETE_MANIFEST: "delete leaf",
}


@dataclass(frozen=True)
class CompactionSummary:
    """What a compaction rewrites, by the root alone; text for people by `str`.

    leaves_after: of those that are rewritten, about. entries, masked: that are read, and those among them that are left
    out. overlaps: how many others a data leaf overlaps in the order of the clustering columns, at the mean of all.
    reasons: how many leaves and files are rewritten for each.
    """

    table: str
    snapshot_id: int | None
    data_leaves: int
    delete_leaves: int
    root_files: int
    leaves_after: int
    entries: int
    masked: int
    bytes: int
    overlaps: float
    reasons: Mapping[str, int]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.data_leaves or self.delete_leaves or self.root_files)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def __str__(self) -> str:
        if self.is_empty:
            return f"{self.table}: its manifests need no compaction"
        why = ", ".join(f"{count} {reason}" for reason, count in sorted(self.reasons.items()))
        before = f"{self.data_leaves} data leaves, {self.delete_leaves} delete leaves and {self.root_files} root files"
        return "\n".join(
            [
                f"{self.table}: {before} become about {self.leaves_after} leaves",
                f"  {self.entries} entries in {self.bytes} bytes are read, {self.masked} of them masked",
                f"  reasons: {why}",
                f"  a data leaf overlaps {self.overlaps:.1f} others, at the mean",
            ]
        )


@dataclass(frozen=True)
class CompactionPlan(Generic[TableT]):
    """A compaction that happens when `commit` is called."""

    table: TableT
    options: CompactionOptions
    branch: str
    properties: Mapping[str, str]
    _state: TableState
    _scope: Scope | None
    _done: list[TableT] = field(default_factory=list)

    def files(self) -> DataFrame:
        """A row a leaf, or file of the root, that is rewritten; starts no job.

        Columns: content ("data leaf", "delete leaf", "data file", "delete file"), path, spec_id, reasons (of `Reason`),
        gain (what comes of it, in words), group (what is rewritten together), group_parts (how many leaves it becomes,
        about), entries, masked_entries, overlaps (other leaves in the order of the clustering columns),
        file_size_in_bytes.
        """
        table = pa.Table.from_pylist(self._rows, schema=PLANNED)
        return local_frame(self.table.state.spark, table)

    def summary(self) -> CompactionSummary:
        """All of it in numbers; starts no job."""
        rows, choice = self._rows, self._choice
        kinds = Counter(row["content"] for row in rows)
        return CompactionSummary(
            table=self.table.full_name,
            snapshot_id=self._state.snapshot.snapshot_id if self._state.snapshot else None,
            data_leaves=kinds["data leaf"],
            delete_leaves=kinds["delete leaf"],
            root_files=kinds["data file"] + kinds["delete file"],
            leaves_after=sum(one.parts for one in choice.groups),
            entries=sum(row["entries"] for row in rows),
            masked=sum(row["masked_entries"] for row in rows),
            bytes=sum(row["file_size_in_bytes"] or 0 for row in rows if row["content"].endswith("leaf")),
            overlaps=round(self._mean_overlaps, 2),
            reasons=dict(Counter(reason for row in rows for reason in row["reasons"])),
        )

    def commit(self) -> TableT:
        """Rewrites the leaves and makes a snapshot of the new tree; the table as it is then, itself without a plan.

        What other commits add and remove meanwhile stays so. An attempt that meets them is made again with the leaves
        that were written; nothing is written anew but the root.

        Raises:
            CommitFailedError: other commits came first each time (`commit.retry.num-retries`).
            CommitConflictError: other compactions have rewritten all of the leaves: plan again.
            CommitStateUnknownError: the compaction may have been committed; nothing that it wrote is deleted.
        """
        if not self._done:
            changes = self._scope is not None and self._choice.groups
            self._done.append(commit_steps(self.table, [_Compaction(self)]) if changes else self.table)
        return self._done[0]

    def result(self) -> dict[str, Any]:
        """The summary and, once it is committed, what came of it (else null), for JSON."""
        after = self._done[0].metadata.snapshot_by_name(self.branch) if self._done else None
        committed = committed_counts(self._state.snapshot, after)
        return {"table": self.table.metadata.location, "plan": self.summary().to_dict(), "committed": committed}

    @cached_property
    def _choice(self) -> Choice:
        return Choice() if self._scope is None else choose(self._scope)

    @property
    def _mean_overlaps(self) -> float:
        return sum(self._overlaps.values()) / len(self._overlaps) if self._overlaps else 0.0

    @cached_property
    def _ranges(self) -> dict[int, Any]:
        """The data leaves' ranges by spec."""
        if self._scope is None:
            return {}
        scope = self._scope
        specs = sorted(set(scope.root.leaves.column("partition_spec_id").to_pylist()))
        tables = {one: scope.leaves(ContentType.DATA_MANIFEST, one).table for one in specs}
        return {one: leaf_ranges(table, scope.keys[one], scope.sources[one]) for one, table in tables.items()}

    @cached_property
    def _overlaps(self) -> dict[int, int]:
        """Place of a data leaf in the root -> how many others overlap it."""
        found: dict[int, int] = {}
        for spec_id, ranges in self._ranges.items():
            assert self._scope is not None
            places = self._scope.leaves(ContentType.DATA_MANIFEST, spec_id).places
            found.update(zip(places.tolist(), ranges.overlaps.tolist(), strict=True))
        return found

    @cached_property
    def _rows(self) -> list[dict[str, Any]]:
        if self._scope is None:
            return []
        masked, root = self._scope.masked, self._scope.root.table
        rows = []
        for number, group in enumerate(self._choice.groups):
            places = pa.array([*group.leaves, *group.files], pa.int64())
            for place, row in zip(places.to_pylist(), root.select(_SHOWN).take(places).to_pylist(), strict=True):
                is_leaf = row["content_type"] in (ContentType.DATA_MANIFEST, ContentType.DELETE_MANIFEST)
                dead = masked.get(row["location"], 0) if is_leaf else 0
                reasons = self._choice.reasons.get(place, ())
                overlaps = self._overlaps.get(place)
                rows.append(
                    {
                        "content": _CONTENTS[ContentType(row["content_type"])],
                        "path": row["location"],
                        "spec_id": row["partition_spec_id"],
                        "reasons": [str(one) for one in reasons],
                        "gain": _gain(reasons, dead, overlaps, len(group.leaves), group.parts),
                        "group": number,
                        "group_parts": group.parts,
                        "entries": row["record_count"] if is_leaf else 1,
                        "masked_entries": dead,
                        "overlaps": overlaps,
                        "file_size_in_bytes": row["file_size_in_bytes"],
                    }
                )
        return rows


_SHOWN = ["content_type", "location", "partition_spec_id", "record_count", "file_size_in_bytes"]


def _gain(reasons: tuple[Reason, ...], dead: int, overlaps: int | None, leaves: int, parts: int) -> str:
    texts = {
        Reason.MASKED: f"{dead} masked entries go",
        Reason.SMALL: f"one of {leaves} leaves that become {parts}",
        Reason.OVERLAP: f"overlaps {overlaps} other leaves",
        Reason.ROOT: "leaves the root, which every commit copies",
        Reason.AFFINITY: "its deletion vectors follow their data files",
    }
    return "; ".join(texts[one] for one in reasons)


@dataclass
class _Compaction:
    """The step that a commit makes: leaves are written once, each attempt folds them into the root that it meets."""

    plan: CompactionPlan[Any]
    names: SnapshotNames = field(default_factory=SnapshotNames)
    done: list[Rewritten] | None = None

    def apply(self, state: TableState) -> TableMetadata:
        plan, head = self.plan, branch_head(state, self.plan.branch)
        self.names.next_attempt(head.metadata)
        if self.done is None:
            assert plan._scope is not None
            self.done = rewrite(plan._state, plan._scope, plan._choice, self.names.file("compact"))
            self.names.written.update(*(group.made.column("location").to_pylist() for group in self.done))
        base = base_root(head)
        fitted = with_root(head, base)
        found = fold(fitted, _root(base, head), self.done, blob_loader(head))
        if found.left_out == len(self.done):
            raise CommitConflictError(
                f"{head.metadata.location}: other commits have rewritten the manifests that were to be compacted: plan "
                "the compaction again"
            )
        new = NewSnapshot(fitted, base, plan.branch, self.names)
        counts = found.counts.plus(ManifestCounts(kept=len(_root(base, head).leaves)))

        def summary() -> Summary:
            return snapshot_summary("replace", Tally(), Tally(), head.snapshot, plan.properties, counts)

        return new.commit(found.into(TreeChange()), summary)


def _root(base: BaseRoot, head: TableState) -> Root:
    if base.root is None:
        raise CommitConflictError(f"{head.metadata.location}: the branch has no snapshot any more")
    return base.root


def plan_compaction(
    table: TableT, options: CompactionOptions, branch: str, properties: Mapping[str, str]
) -> CompactionPlan[TableT]:
    """See `Maintenance.compact_manifests`."""
    table.refuse_lists()
    table.refuse_read_only()
    options.check()
    head = branch_head(table.state, branch)
    base = base_root(head)
    if base.root is None:
        return CompactionPlan(table, options, branch, properties, head, None)
    state = with_root(head, base)
    return CompactionPlan(table, options, branch, properties, state, scope_of(state, base.root, options))
