"""The plan of a compaction, and the step that commits it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sparkmeta.compact.choose import Scope, choose
from sparkmeta.compact.groups import Choice, Reason
from sparkmeta.compact.job import Rewritten
from sparkmeta.compact.layout import OldLayout, old_layout
from sparkmeta.compact.options import CompactionOptions, scope_of
from sparkmeta.compact.ranges import leaf_ranges
from sparkmeta.compact.rebase import rebase
from sparkmeta.compact.rewrite import rewrite
from sparkmeta.edit.base_root import base_root
from sparkmeta.edit.new_snapshot import NewSnapshot, blob_loader, branch_head, with_root
from sparkmeta.edit.next_root import TreeChange
from sparkmeta.edit.rewrite_plan import RewritePlan, RewriteStep, RewriteSummary, rewritten_by_others
from sparkmeta.edit.summary import ManifestCounts
from sparkmeta.errors import CommitConflictError
from sparkmeta.operations.base_table import TableT
from sparkmeta.session import local_frame
from sparkmeta.spec.entry import ContentType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.state import TableState

PLANNED = pa.schema(
    [
        pa.field("content", pa.string()),
        pa.field("file_path", pa.string()),
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
class CompactionSummary(RewriteSummary):
    """The numbers of a compaction, computed from the root alone.

    Attributes:
        data_leaves: the data leaves to rewrite.
        delete_leaves: the delete leaves to rewrite.
        converted_leaves: those of both that have the layout of versions 1 to 3.
        moved_files: the files that move from the root into leaves.
        leaves_after: the expected number of new leaves.
        entries: the entries to read.
        masked: the masked entries, which are dropped.
        bytes: the bytes to read.
        overlaps: the mean number of others that a data leaf overlaps in the order of the clustering columns.
        reasons: the number of leaves and files by reason.
        position_deletes: manifest that keeps its layout -> its live position delete files of version 2. They and the
            manifest's other deletes stay, since a tree has deletion vectors instead.
        unknown_transforms: manifests that keep their layout since their partition spec has an unknown transform.
    """

    data_leaves: int
    delete_leaves: int
    converted_leaves: int
    moved_files: int
    leaves_after: int
    entries: int
    masked: int
    bytes: int
    overlaps: float
    reasons: Mapping[str, int]
    position_deletes: Mapping[str, int] = field(default_factory=dict)
    unknown_transforms: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.data_leaves or self.delete_leaves or self.moved_files)

    def __str__(self) -> str:
        return "\n".join([*self._rewritten, *self._unchanged])

    @property
    def _rewritten(self) -> list[str]:
        if self.is_empty:
            return [f"{self.table}: its manifests need no compaction"]
        why = ", ".join(f"{count} {reason}" for reason, count in sorted(self.reasons.items()))
        before = f"{self.data_leaves} data leaves, {self.delete_leaves} delete leaves and {self.moved_files} root files"
        return [
            f"{self.table}: {before} become about {self.leaves_after} leaves",
            *self._converted,
            f"  {self.entries} entries in {self.bytes} bytes are read, {self.masked} of them masked",
            f"  reasons: {why}",
            f"  a data leaf overlaps {self.overlaps:.1f} others, at the mean",
        ]

    @property
    def _converted(self) -> list[str]:
        if not self.converted_leaves:
            return []
        return [f"  {self.converted_leaves} leaves have the layout of versions 1 to 3 and get the tree's"]

    @property
    def _unchanged(self) -> list[str]:
        files = sum(self.position_deletes.values())
        lines = [
            (self.position_deletes, f"{files} position delete files of version 2 stay"),
            (self.unknown_transforms, "files of specs with unknown transforms stay"),
        ]
        return [f"  {text} in {named(list(manifests))}" for manifests, text in lines if manifests]


def named(locations: Sequence[str]) -> str:
    """Return the number of manifests, and the first of them by name."""
    shown, others = locations[:_NAMED], len(locations) - _NAMED
    return f"{len(locations)} manifests: {', '.join(shown)}{f' and {others} more' if others > 0 else ''}"


# Most manifests that a summary names.
_NAMED = 3


@dataclass(frozen=True)
class CompactionPlan(RewritePlan[TableT]):
    """A plan to compact manifests, carried out by `commit`."""

    options: CompactionOptions
    _scope: Scope | None
    _old: OldLayout = field(default_factory=OldLayout)

    def files(self) -> DataFrame:
        """Return a row for each leaf, or file of the root, to rewrite, without a job.

        Columns: content ("data leaf", "delete leaf", "data file", "delete file"), file_path, spec_id, reasons
        (see `Reason`), gain (the benefit, in words), group (rows with the same number are rewritten together),
        group_parts (the expected number of new leaves), entries, masked_entries, overlaps (the number of overlapping
        leaves in the order of the clustering columns), file_size_in_bytes.
        """
        table = pa.Table.from_pylist(self._rows, schema=PLANNED)
        return local_frame(self.table.state.spark, table)

    def summary(self) -> CompactionSummary:
        """Return the plan in numbers, without a job."""
        rows, choice = self._rows, self._choice
        kinds = Counter(row["content"] for row in rows)
        return CompactionSummary(
            table=self.table.full_name,
            snapshot_id=self._state.snapshot.snapshot_id if self._state.snapshot else None,
            data_leaves=kinds["data leaf"],
            delete_leaves=kinds["delete leaf"],
            converted_leaves=sum(Reason.LAYOUT in row["reasons"] for row in rows),
            moved_files=kinds["data file"] + kinds["delete file"],
            leaves_after=sum(group.parts for group in choice.groups),
            entries=sum(row["entries"] for row in rows),
            masked=sum(row["masked_entries"] for row in rows),
            bytes=sum(row["file_size_in_bytes"] or 0 for row in rows if row["content"].endswith("leaf")),
            overlaps=round(self._mean_overlaps, 2),
            reasons=dict(Counter(reason for row in rows for reason in row["reasons"])),
            position_deletes=self._old.position_deletes,
            unknown_transforms=self._old.unknown_transforms,
        )

    def step(self) -> RewriteStep | None:
        """See `RewritePlan.step`."""
        if self._scope is None or not self._choice.groups:
            return None
        return _CompactionStep(self.branch, self.properties, self._state, self._scope, self._choice)

    @cached_property
    def _choice(self) -> Choice:
        return Choice() if self._scope is None else choose(self._scope)

    @property
    def _mean_overlaps(self) -> float:
        return sum(self._overlaps.values()) / len(self._overlaps) if self._overlaps else 0.0

    @cached_property
    def _overlaps(self) -> dict[int, int]:
        """Row number of a data leaf in the root -> the number of others that overlap it."""
        scope, overlaps = self._scope, dict[int, int]()
        if scope is None:
            return overlaps
        for spec_id in sorted(set(scope.root.leaves.column("partition_spec_id").to_pylist())):
            leaves = scope.leaves(ContentType.DATA_MANIFEST, spec_id)
            ranges = leaf_ranges(leaves.table, scope.keys[spec_id], scope.sources[spec_id])
            overlaps.update(zip(leaves.places.tolist(), ranges.overlaps.tolist(), strict=True))
        return overlaps

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
                masked_entries = masked.get(row["location"], 0) if is_leaf else 0
                reasons = self._choice.reasons.get(place, ())
                overlaps = self._overlaps.get(place)
                rows.append(
                    {
                        "content": _CONTENTS[ContentType(row["content_type"])],
                        "file_path": row["location"],
                        "spec_id": row["partition_spec_id"],
                        "reasons": [str(reason) for reason in reasons],
                        "gain": _gain(reasons, masked_entries, overlaps, len(group.leaves), group.parts),
                        "group": number,
                        "group_parts": group.parts,
                        "entries": row["record_count"] if is_leaf else 1,
                        "masked_entries": masked_entries,
                        "overlaps": overlaps,
                        "file_size_in_bytes": row["file_size_in_bytes"],
                    }
                )
        return rows


_SHOWN = ["content_type", "location", "partition_spec_id", "record_count", "file_size_in_bytes"]


def _gain(reasons: tuple[Reason, ...], masked: int, overlaps: int | None, leaves: int, parts: int) -> str:
    texts = {
        Reason.LAYOUT: "becomes columnar, so that Spark reads and skips entries by themselves",
        Reason.MASKED: f"{masked} masked entries go",
        Reason.SMALL: f"one of {leaves} leaves that become {parts}",
        Reason.OVERLAP: f"overlaps {overlaps} other leaves",
        Reason.ROOT: "leaves the root, which every commit copies",
        Reason.AFFINITY: "its deletion vectors follow their data files",
    }
    return "; ".join(texts[reason] for reason in reasons)


@dataclass
class _CompactionStep(RewriteStep):
    """Writes leaves once; each attempt rebases them on the newest root."""

    planned_on: TableState
    scope: Scope
    choice: Choice
    rewritten: list[Rewritten] | None = None

    def apply_to(self, head: TableState) -> TableMetadata:
        """See `RewriteStep.apply_to`."""
        if not head.types.has_tuples_of(self.planned_on.types):
            location = head.metadata.location
            raise CommitConflictError(f"{location}: its upgrade gives its expressions other ids by now: plan again")
        if self.rewritten is None:
            self.rewritten = rewrite(self.planned_on, self.scope, self.choice, self.names.file("compact"))
            self.names.written.update(*(group.new_leaves.column("location").to_pylist() for group in self.rewritten))
        base = base_root(head)
        if base.root is None:
            raise CommitConflictError(f"{head.metadata.location}: the branch no longer has a snapshot")
        state = with_root(head, base)
        rebased = rebase(state, base.root, self.rewritten, blob_loader(head))
        if rebased.left_out == len(self.rewritten):
            raise rewritten_by_others(head)
        counts = rebased.counts.plus(ManifestCounts(kept=len(base.root.leaves)))
        new = NewSnapshot(state, base, self.branch, self.names)
        return new.commit(rebased.into(TreeChange()), self.summary(head, counts))


def plan_compaction(
    table: TableT, options: CompactionOptions, branch: str, properties: Mapping[str, str]
) -> CompactionPlan[TableT]:
    """See `Maintenance.compact_manifests`."""
    table.refuse_lists()
    table.refuse_read_only()
    options.check()
    return compaction_of(table, table.state, options, branch, properties)


def compaction_of(
    table: TableT, upgraded: TableState, options: CompactionOptions, branch: str, properties: Mapping[str, str]
) -> CompactionPlan[TableT]:
    """Return the plan to compact a table in a state that it has, or will have after an upgrade."""
    head = branch_head(upgraded, branch)
    base = base_root(head)
    state = with_root(head, base)
    if base.root is None:
        return CompactionPlan(table, branch, properties, state, options, None)
    old = old_layout(state)
    scope = scope_of(state, base.root, options, convertible=old.convertible)
    return CompactionPlan(table, branch, properties, state, options, scope, old)
