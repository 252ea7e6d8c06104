"""Rewrite the Avro manifests of a v1 to v3 table: the groups, the work on the driver or by Spark, and the plan."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue, BooleanExpression

from sparkmeta.avro.write import manifest_codec
from sparkmeta.checks import Rule, is_whole, names_of, option
from sparkmeta.commit.lists import NewList, driver_rewrites, manifest_format, refuse_rewrite, without_manifests
from sparkmeta.commit.new_snapshot import LeafCounts, branch_head
from sparkmeta.commit.options import MOST_BYTES, BranchOptions, ListOptions
from sparkmeta.entries.live import ENTRY_BYTES, live_count, live_counts
from sparkmeta.entries.manifest_records import manifest_parts
from sparkmeta.errors import UnsupportedError, ValidationError, translated_errors
from sparkmeta.expr.predicate import parse_filter
from sparkmeta.maintain.plans import RewritePlan, RewriteStep, SnapshotPlanSummary, rewritten_by_others
from sparkmeta.manifests.manifest_tasks import ManifestTasks
from sparkmeta.manifests.sorted_manifests import MOST_RANGES, file_count, key_columns, spread
from sparkmeta.operations.table_operations import TableT, refuse_read_only
from sparkmeta.plan.filter import ScanFilter
from sparkmeta.plan.prune import matching_manifests
from sparkmeta.progress import tracked
from sparkmeta.session import local_frame
from sparkmeta.snapshot.state import task_reader
from sparkmeta.spec.entry import ContentType
from sparkmeta.spec.metadata import refuse_encrypted
from sparkmeta.spec.summary import summary_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.snapshot.state import TableState
    from sparkmeta.spec.metadata import TableMetadata

CONTENTS = {ContentType.DATA_MANIFEST: "data", ContentType.DELETE_MANIFEST: "deletes"}

REWRITTEN = "sparkmeta.rewritten-manifests"
"""A key in the summary of a snapshot that rewrote manifests. Its value is JSON with the parameters.

`target-bytes` is the target size of a manifest. `sorted-by` maps spec ids to ids of partition fields in order.
"""

# A single manifest is not rewritten up to this multiple of the target size.
_SURPLUS = 1.1


@dataclass(frozen=True)
class ManifestRewriteOptions(BranchOptions):
    """See `Maintenance.rewrite_manifests`."""

    row_filter: BooleanExpression | str = option(
        AlwaysTrue(), "rewrite only manifests that may hold matching files, by their partition summaries."
    )
    _: KW_ONLY
    spec_id: int | None = option(None, "rewrite only manifests of this partition spec.")
    sort_by: Sequence[str] | None = option(
        None,
        "names of partition fields by which files are sorted. Defaults to a spec's fields.",
        names_of("partition fields"),
    )
    target_manifest_bytes: int | None = option(
        None,
        "target size of a manifest. Defaults to the table's `commit.manifest.target-size-bytes` (8 MiB).",
        Rule(f"a number of bytes from 1 to {MOST_BYTES}", lambda value: is_whole(value) and 1 <= value <= MOST_BYTES),
    )

    def check(self) -> None:
        """See `Options.check`. Raises InvalidFilterError for a filter that is not valid."""
        super().check()
        parse_filter(self.row_filter)


@dataclass(frozen=True)
class ManifestGroup:
    """The manifests of one content and spec that are rewritten together, rows of `TableState.manifests`.

    Attributes:
        keys: ids of the partition fields that sort entries.
        parts: the expected number of new manifests.
    """

    content: ContentType
    spec_id: int
    manifests: pa.Table
    keys: tuple[int, ...]
    parts: int

    @property
    def paths(self) -> set[str]:
        return set(self.manifests.column("location").to_pylist())


def manifest_groups(state: TableState, options: ManifestRewriteOptions) -> list[ManifestGroup]:
    """Return the groups that are not in order yet.

    Raises:
        ValidationError: an option is not valid for the table.
        InvalidFilterError: the filter is not valid for the table.
        UnsupportedError: a manifest can't be rewritten.
    """
    options.check()
    target = target_bytes(state.metadata, options)
    manifest_codec(state.metadata)
    keys = _keys(state, options)
    manifests = matching_manifests(state.manifests, ScanFilter.of(state, options.row_filter))
    groups = []
    for content in CONTENTS:
        of_content = manifests.filter(pc.equal(manifests.column("content_type"), int(content)))
        for spec_id in sorted(set(of_content.column("partition_spec_id").to_pylist()) & keys.keys()):
            of_spec = of_content.filter(pc.equal(of_content.column("partition_spec_id"), spec_id))
            parts = max(1, min(-(-total_bytes(of_spec) // target), live_count(of_spec) or total_bytes(of_spec)))
            group = ManifestGroup(content, spec_id, of_spec, keys[spec_id], parts)
            if not _is_in_order(group, state, target):
                refuse_rewrite(group.manifests, spec_id, state)
                groups.append(group)
    return groups


def _is_in_order(group: ManifestGroup, state: TableState, target: int) -> bool:
    """Return whether a group need not be rewritten.

    The group is then one manifest that is not too large, or manifests that a single rewrite wrote in the same order and
    size.
    """
    count = len(group.manifests)
    if count == 1 and total_bytes(group.manifests) <= _SURPLUS * target:
        return True
    writers = pc.struct_field(group.manifests.column("version_info"), "snapshot_id").unique().to_pylist()
    writer = state.metadata.snapshot_by_id(writers[0]) if len(writers) == 1 and writers[0] is not None else None
    try:
        parameters = json.loads(summary_of(writer).get(REWRITTEN, "{}"))
    except ValueError:  # written by another library
        return False
    sorted_by = parameters.get("sorted-by", {}) if isinstance(parameters, dict) else {}
    return sorted_by.get(str(group.spec_id)) == list(group.keys) and parameters.get("target-bytes") == target


def _keys(state: TableState, options: ManifestRewriteOptions) -> dict[int, tuple[int, ...]]:
    """Return the ids of the partition fields that sort entries, for each spec to rewrite."""
    specs = state.specs
    if options.spec_id is not None:
        if options.spec_id not in specs:
            spec_ids = ", ".join(map(str, sorted(specs)))
            raise ValidationError(
                f"{state.metadata.location} has no partition spec {options.spec_id!r}: it has {spec_ids}"
            )
        specs = {options.spec_id: specs[options.spec_id]}
    default = {key: tuple(part.field_id for part in spec.fields) for key, spec in specs.items()}
    names = options.sort_by
    if names is None:
        return default
    by_name = {key: {part.name: part.field_id for part in spec.fields} for key, spec in specs.items()}
    for name in names:
        if not any(name in fields for fields in by_name.values()):
            raise ValidationError(
                f"{state.metadata.location}: sort_by names {name!r}: there is no such partition field"
            )
    named = {key: tuple(fields[name] for name in names if name in fields) for key, fields in by_name.items()}
    return {key: key_ids or default[key] for key, key_ids in named.items()}


def target_bytes(metadata: TableMetadata, options: ManifestRewriteOptions) -> int:
    """Return the target size of a manifest.

    Raises:
        ValidationError: the table property has an invalid value.
    """
    size = options.target_manifest_bytes
    return ListOptions.of(metadata).target_bytes if size is None else size


def total_bytes(manifests: pa.Table) -> int:
    """Return the total size of manifests in bytes."""
    return pc.sum(manifests.column("file_size_in_bytes")).as_py() or 0


# -- Rewrite a group of Avro manifests, a few on the driver and more by Spark jobs ------------------------------------


def write_group(state: TableState, group: ManifestGroup, options: ManifestRewriteOptions, name: str) -> pa.Table:
    """Write the live entries of a group to new manifests, and return their rows of `MANIFEST_FILE_SCHEMA`.

    Args:
        state: the table with the group.
        group: the manifests to rewrite.
        options: the options of the rewrite.
        name: the beginning of the names of new manifests.

    Raises:
        UnsupportedError: tasks can't open the table's files.
        CorruptFileError: a manifest is damaged.
        ValidationError: the manifests hold another number of files than the manifest list says.
    """
    form = manifest_format(state, group.content, group.spec_id, name, options.target_manifest_bytes)
    tasks = ManifestTasks(form, group.keys, task_reader(state))
    projection = state.projection(("first_row_id",))
    parts = manifest_parts(group.manifests, projection, state.settings.split_manifest_bytes)
    live_total, size = live_count(group.manifests), total_bytes(group.manifests)
    with translated_errors():
        if group.parts <= state.access.limit(1) and driver_rewrites(state, len(group.manifests), size):
            written = tasks.run_on_driver(parts, tasks.cut_parts)
        else:
            units = spread(state.spark, parts, size)
            entries = state.live_entries(group.manifests, state.projection(("version_info",)))
            live_estimate = size // ENTRY_BYTES if live_total is None else live_total
            ranges = min(group.parts, MOST_RANGES)
            written = tasks.run(units, tasks.cut_parts, key_columns(entries, group.keys), live_estimate, ranges)
    if live_total is not None and live_total != (count := file_count(written)):
        raise ValidationError(
            f"{state.metadata.location}: the manifest list says that the {CONTENTS[group.content]} manifests of "
            f"partition spec {group.spec_id} have {live_total} live files: they have {count}"
        )
    return written


# -- The plan to rewrite Avro manifests -------------------------------------------------------------------------------


def public_manifests(manifests: pa.Table, **columns: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Return manifests, rows of `TableState.manifests`, in the form for plans: content, file_path, `columns` and size.

    Args:
        columns: the other columns.
    """
    contents = [CONTENTS[kind] for kind in manifests.column("content_type").to_pylist()]
    values = {"content": pa.array(contents, pa.string()), "file_path": manifests.column("location"), **columns}
    return pa.table({**values, "file_size_in_bytes": manifests.column("file_size_in_bytes")})


@dataclass(frozen=True)
class ManifestRewriteSummary(SnapshotPlanSummary):
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
class ManifestRewritePlan(RewritePlan[TableT, ManifestRewriteOptions]):
    """A plan to rewrite Avro manifests, carried out by `commit`."""

    _doing = "Rewriting manifests"

    _groups: tuple[ManifestGroup, ...]

    def to_df(self) -> DataFrame:
        """Return a row for each manifest to rewrite, without a job.

        Columns: content ("data", "deletes"), file_path, spec_id, live_files and deleted_files (null if the list does
        not count them), file_size_in_bytes.
        """
        manifests = pa.concat_tables([self._state.manifests.slice(0, 0), *(group.manifests for group in self._groups)])
        rows = public_manifests(
            manifests,
            spec_id=manifests.column("partition_spec_id"),
            live_files=live_counts(manifests),
            deleted_files=pc.struct_field(manifests.column("manifest_stats"), "deleted_files_count").cast(pa.int64()),
        )
        return local_frame(self._state.spark, rows)

    def summary(self) -> ManifestRewriteSummary:
        """Return the plan in numbers, without a job."""
        counts = dict.fromkeys(CONTENTS, 0)
        for group in self._groups:
            counts[group.content] += len(group.manifests)
        live = [live_count(group.manifests) for group in self._groups]
        return ManifestRewriteSummary(
            table=self.table.full_name,
            snapshot_id=self._snapshot_id,
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
            groups = tracked(self.groups, ManifestRewritePlan._doing, head.sessions)
            self.written = [self._write(group) for group in groups]
        planned, current = inherited(self.planned_on), inherited(head)
        same_version = head.metadata.format_version == self.planned_on.metadata.format_version
        fitting = [
            (group, manifests)
            for group, manifests in zip(self.groups, self.written, strict=True)
            if same_version and all(current.get(path) == planned[path] for path in group.paths)
        ]
        if not fitting:
            raise rewritten_by_others(head)
        manifests = pa.concat_tables([manifests for _, manifests in fitting])
        replaced = set().union(*(group.paths for group, _ in fitting))
        counts = LeafCounts(len(manifests), len(current) - len(replaced), len(replaced), file_count(manifests))
        sorted_by = {str(group.spec_id): group.keys for group, _ in fitting}
        parameters = {"target-bytes": target_bytes(self.planned_on.metadata, self.options), "sorted-by": sorted_by}
        summary = self.summary(head, counts, {REWRITTEN: json.dumps(parameters)})
        listed = pa.concat_tables([manifests, without_manifests(head.manifest_files, replaced)])
        return NewList(head, self.branch, self.names).write(listed, summary())

    def _write(self, group: ManifestGroup) -> pa.Table:
        return self.names.noted(write_group(self.planned_on, group, self.options, self.names.file("m")))


def inherited(state: TableState) -> dict[str, tuple[Any, ...]]:
    """Return the content, spec and inherited values of each manifest of a snapshot, by path."""
    names = ("manifest_path", "partition_spec_id", "content", "added_snapshot_id", "sequence_number", "first_row_id")
    rows = zip(*(state.manifest_files.column(name).to_pylist() for name in names), strict=True)
    return {path: tuple(values) for path, *values in rows}


def plan_rewrite(table: TableT, options: ManifestRewriteOptions) -> ManifestRewritePlan[TableT]:
    """See `Maintenance.rewrite_manifests`."""
    options.check()
    refuse_read_only(table)
    head = branch_head(table.state, options.branch)
    _refuse(head)
    return ManifestRewritePlan(table, head, options, tuple(manifest_groups(head, options)))


def _refuse(state: TableState) -> None:
    metadata = state.metadata
    if metadata.format_version > 3:
        raise UnsupportedError(
            f"{metadata.location}: Avro manifests are rewritten in tables of format version 1 to 3; the leaves of the "
            "metadata tree that one of version 4 has, or gets by upgrade, are put in order by compact_manifests"
        )
    refuse_encrypted(metadata, "whose manifests can't be rewritten")
