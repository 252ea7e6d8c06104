"""Decide which maintenance a table needs, by the options of `Maintenance.health` and by plans."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.transforms import BucketTransform, TruncateTransform

from sparkmeta.checks import SHARE, Options, Rule, are_texts, at_least, option
from sparkmeta.commit.compaction import CompactionOptions
from sparkmeta.commit.compaction_groups import LeafRanges, Reason
from sparkmeta.commit.options import ListOptions
from sparkmeta.errors import UnsupportedError
from sparkmeta.inspect.check import inverted_summaries
from sparkmeta.maintain.compact_manifests import compaction_of
from sparkmeta.maintain.file_groups import DataRewriteOptions
from sparkmeta.maintain.health_measures import ClusteredManifests
from sparkmeta.maintain.rewrite_manifests import ManifestRewriteOptions, manifest_groups
from sparkmeta.maintain.rewrite_position_deletes import DeleteRewriteOptions
from sparkmeta.spec.entry import FIRST_RESERVED_ID, ContentType
from sparkmeta.spec.metadata import has_tree
from sparkmeta.spec.metrics_modes import COUNTS_ONLY, FULL, NO_METRICS, metrics_modes
from sparkmeta.spec.transforms import ColumnsBucket
from sparkmeta.text import byte_size, counted, partition_terms

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema

    from sparkmeta.maintain.health_measures import (
        EntryFigures,
        History,
        Layout,
        SampledMetrics,
        SampledStats,
        SmallFileLimits,
    )
    from sparkmeta.maintain.rewrite_manifests import ManifestGroup
    from sparkmeta.operations.table_operations import BaseTable
    from sparkmeta.snapshot.state import TableState


@dataclass(frozen=True)
class HealthOptions(Options):
    """See `Maintenance.health`."""

    _: KW_ONLY
    columns: Sequence[str] | None = option(
        None,
        "columns whose overlaps between manifests are measured, in addition to partition fields. Defaults to the "
        "columns of the sort order.",
        Rule("names of columns, each once", lambda value: are_texts(value) and len(set(value)) == len([*value])),
    )
    max_overlap: int = option(
        3, "report manifests if one overlaps more than this number of others on average.", at_least(0)
    )
    min_small_files: int = option(5, "report a partition with at least this number of small data files.", at_least(2))
    min_small_partitions: int = option(
        100,
        "report the partition spec if at least this number of partitions average less than a small data file.",
        at_least(2),
    )
    small_file_ratio: float = option(0.25, "data files below this share of the target size are small.", SHARE)
    max_deleted_ratio: float = option(
        0.3,
        "report a partition if deletes that name their data files delete this share of its rows or more.",
        SHARE,
    )
    max_excess_stats_ratio: float = option(
        0.1,
        "report if, in a sample of manifests, more than this share of metrics exceeds what the table's properties "
        "keep.",
        SHARE,
    )
    max_ref_age_days: int = option(
        30, "report branches and tags, except main, that are older than this number of days.", at_least(0)
    )
    max_metadata_json_bytes: int = option(5 << 20, "report a metadata file that is larger than this.", at_least(1))


# -- Metrics of columns that the table's properties drop --------------------------------------------------------------


# Maximum number of bytes of a character in a truncated bound.
_CHARACTER_BYTES = 4
_TRUNCATED = ("string", "binary")
_COUNT_BYTES = 4


@dataclass(frozen=True)
class ExcessStats:
    """Metrics in sampled manifests that the properties `write.metadata.metrics.*` would drop.

    Attributes:
        columns: the names of their columns, in descending order of bytes; the id for a dropped column.
        ratio: their share of the bytes of all metrics.
    """

    columns: tuple[str, ...]
    ratio: float

    @staticmethod
    def of(state: TableState, stats: SampledStats) -> ExcessStats:
        """Compare sampled metrics with the table's properties. These do not govern metrics of metadata columns."""
        schema = state.metadata.schema()
        modes = metrics_modes(state.metadata, schema)
        columns = {field_id: column for field_id, column in stats.columns.items() if field_id < FIRST_RESERVED_ID}
        excess = {}
        for field_id, column in columns.items():
            type_name = str(schema.find_field(field_id).field_type) if field_id in modes else ""
            size = _excess_bytes(column, modes.get(field_id, NO_METRICS), type_name)
            if size:
                excess[schema.find_column_name(field_id) or f"dropped column {field_id}"] = size
        total = sum(column.bytes for column in columns.values())
        names = tuple(sorted(excess, key=lambda name: -excess[name]))
        return ExcessStats(names, sum(excess.values()) / total if total else 0.0)


def _excess_bytes(column: SampledMetrics, mode: int, type_name: str) -> int:
    counts = column.counts * _COUNT_BYTES
    if mode == NO_METRICS:
        return column.bytes
    if mode == COUNTS_ONLY:
        return column.bytes - counts
    if mode == FULL or type_name not in _TRUNCATED:
        return 0
    longest = mode * (_CHARACTER_BYTES if type_name == "string" else 1)
    return max(0, column.bytes - counts - column.bounds * longest) if column.longest > longest else 0


# -- Decide which maintenance a table needs ---------------------------------------------------------------------------
# The plans of maintenance jobs decide. Thresholds decide where there is no plan.


_FIRST_WITH_VECTORS = 3

FINDINGS = pa.schema(
    [
        pa.field("finding", pa.string()),
        pa.field("items", pa.int64()),
        pa.field("bytes", pa.int64()),
        pa.field("problem", pa.string()),
        pa.field("cost", pa.string()),
        pa.field("gain", pa.string()),
        pa.field("job", pa.string()),
        pa.field("call", pa.string()),
        pa.field("command", pa.string()),
    ]
)
"""The columns of `HealthReport.findings`."""


@dataclass(frozen=True)
class Finding:
    """A problem, its cost, and its remedy.

    Attributes:
        finding: the kind, such as `small_manifests`.
        items: the number of manifests, files, snapshots or other objects concerned.
        bytes: the bytes concerned; None if unknown.
        problem: the finding in words.
        cost: the cost for a plan.
        gain: the effect of maintenance.
        job: the maintenance operation; None if another library does it.
        call: the call of the job; None if only another library does it.
        command: the command line of the job; None if there is none.
        options: the options of the call.
    """

    finding: str
    items: int
    bytes: int | None
    problem: str
    cost: str
    gain: str
    job: str | None = None
    call: str | None = None
    command: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def severity(self) -> str:
        """How much the finding matters: one of `SEVERITIES`."""
        return _SEVERITY.get(self.finding, "medium")


SEVERITIES = ("high", "medium", "low")
"""High: plans or readers may miss rows, or every reader does unnecessary work. Medium: plans and readers open or keep
more than they need. Low: only storage and commits are affected."""
# Other kinds are of medium severity.
_SEVERITY = {
    **dict.fromkeys(("inverted_bounds", "equality_deletes", "dense_deletes"), "high"),
    **dict.fromkeys(("excess_stats", "old_refs", "large_metadata_json", "files_in_root"), "low"),
}


@dataclass(frozen=True)
class Examination:
    """A table and its measurements.

    Attributes:
        source: the arguments that name the table on a command line.
    """

    table: BaseTable
    options: HealthOptions
    limits: SmallFileLimits
    entries: EntryFigures
    layout: Layout
    history: History
    source: str

    def findings(self) -> tuple[Finding, ...]:
        """Return all findings, beginning with findings about manifests."""
        manifests = self._tree_findings() if has_tree(self.table.metadata) else self._list_findings()
        others = (
            self._delete_findings(),
            self._file_findings(),
            self._partition_findings(),
            self._bound_findings(),
            self._stats_findings(),
            self._metadata_findings(),
        )
        return (*manifests, *chain.from_iterable(others))

    def _remedy(self, job: str, command: str, **options: float | bool) -> dict[str, Any]:
        arguments = ", ".join(f"{name}={value}" for name, value in options.items())
        flags = "".join(
            f" --{name.replace('_', '-')}{'' if value is True else f' {value}'}" for name, value in options.items()
        )
        return {
            "job": job,
            "call": f"table.maintenance.{job}({arguments}).commit()",
            "command": f"sparkmeta {command} {self.source}{flags} --commit",
            "options": options,
        }

    # -- Manifests ---------------------------------------------------------------------------------------------------

    def _tree_findings(self) -> Iterator[Finding]:
        options = CompactionOptions(max_overlap=self.options.max_overlap)
        plan = compaction_of(self.table, self.table.state, options)
        summary = plan.summary()
        if summary.is_empty:
            return
        chosen = {"max_overlap": options.max_overlap} if options.max_overlap != CompactionOptions.max_overlap else {}
        remedy = self._remedy("compact_manifests", "compact", **chosen)
        leaves = summary.data_leaves + summary.delete_leaves
        before = f"{leaves:,} leaves and {counted(summary.moved_files, 'root file')}"
        gain = f"{before} become about {summary.leaves_after} leaves, without {summary.masked:,} masked entries"
        for reason, (kind, problem, cost) in _TREE_FINDINGS.items():
            count = summary.reasons.get(reason, 0)
            if count:
                words = problem.format(count=f"{count:,}", overlaps=f"{summary.overlaps:.1f}")
                yield Finding(kind, count, summary.bytes, words, cost, gain, **remedy)

    def _list_findings(self) -> Iterator[Finding]:
        try:
            groups = [] if self.table.metadata.format_version > 3 else self._groups
        except UnsupportedError:  # such as an unknown transform: no plan rewrites these manifests
            return
        remedy = self._remedy("rewrite_manifests", "rewrite-manifests")
        before, after = sum(len(group.manifests) for group in groups), sum(group.parts for group in groups)
        size = sum(pc.sum(group.manifests.column("file_size_in_bytes")).as_py() or 0 for group in groups)
        gain = f"{before:,} manifests become about {after:,}, sorted by partition"
        if before - after >= self._merge_count:
            problem = f"{before:,} manifests average {byte_size(size / max(before, 1))}"
            cost = f"a plan opens up to {before:,} files where {after:,} would do"
            yield Finding("small_manifests", before, size, problem, cost, gain, **remedy)
        data = [group for group in groups if group.content == ContentType.DATA_MANIFEST]
        overlaps = [int(count) for group in data for count in self._ranges(group).overlaps]
        mean = sum(overlaps) / len(overlaps) if overlaps else 0.0
        if mean > self.options.max_overlap:
            size = sum(pc.sum(group.manifests.column("file_size_in_bytes")).as_py() or 0 for group in data)
            problem = f"the partition range of a data manifest overlaps {mean:.1f} others on average"
            cost = f"a plan of one partition opens about {mean + 1:.0f} manifests where 1 or 2 would do"
            yield Finding("overlapping_manifests", len(overlaps), size, problem, cost, gain, **remedy)

    @property
    def _groups(self) -> list[ManifestGroup]:
        return manifest_groups(self.table.state, ManifestRewriteOptions(AlwaysTrue()))

    @property
    def _merge_count(self) -> int:
        return ListOptions.of(self.table.metadata).min_count

    def _ranges(self, group: ManifestGroup) -> LeafRanges:
        keyed = ClusteredManifests.of(self.table.state, group.manifests, {})
        return keyed.ranges(group.spec_id, group.keys)

    # -- Deletes -----------------------------------------------------------------------------------------------------

    def _delete_findings(self) -> Iterator[Finding]:
        entries, dangling = self.entries, self.entries.dangling
        if dangling.files:
            kinds = (
                f"{dangling.position_files:,} position delete files, {dangling.equality_files:,} equality delete files "
                f"and {dangling.vectors:,} deletion vectors apply to no data file"
            )
            cost = f"every plan reads and matches {counted(dangling.files, 'delete')} for nothing"
            remedy = self._remedy("remove_dangling_deletes", "remove-dangling-deletes")
            gain = f"{entries.deletes.files - dangling.files:,} of {entries.deletes.files:,} deletes remain"
            yield Finding("dangling_deletes", dangling.files, dangling.bytes, kinds, cost, gain, **remedy)
        metadata = self.table.metadata
        if (count := entries.deletes.equality_files - dangling.equality_files) > 0:
            yield Finding(
                "equality_deletes",
                count,
                None,
                f"{counted(count, 'equality delete file')} may apply to any row of older files",
                "plans match them by partition and statistics, and readers compare their keys with all of these rows",
                "deletes by position, which plans and readers find by data file",
                **self._remedy("convert_equality_deletes", "convert-equality-deletes"),
            )
        allows_vectors = has_tree(metadata) or metadata.format_version == _FIRST_WITH_VECTORS
        if allows_vectors and entries.deletes.position_files:
            count = entries.deletes.position_files
            yield Finding(
                "position_delete_files",
                count,
                None,
                f"{counted(count, 'position delete file')} of version 2 instead of deletion vectors",
                "plans match them by partition, and readers open each for every data file of its partition",
                "each data file has one deletion vector",
                **self._remedy("rewrite_position_delete_files", "rewrite-position-delete-files"),
            )
        merged = entries.small_puffin.merged(self.limits.puffin_sizes, DeleteRewriteOptions.min_input_files)
        if allows_vectors and merged is not None:
            small = entries.small_puffin
            mean = byte_size(small.bytes / small.files)
            yield Finding(
                "small_puffin_files",
                small.files,
                small.bytes,
                f"{counted(small.files, 'Puffin file')} have deletion vectors of {mean} on average",
                "readers open more files than necessary",
                f"{counted(merged, 'Puffin file')} instead of {small.files:,}",
                **self._remedy("rewrite_position_delete_files", "rewrite-position-delete-files"),
            )
        if entries.dense_partitions:
            share = f"{self.options.max_deleted_ratio:.0%}"
            yield Finding(
                "dense_deletes",
                entries.dense_partitions,
                None,
                f"{counted(entries.dense_partitions, 'partition')} with {counted(entries.dense_files, 'data file')} "
                f"have {share} or more of their rows deleted",
                "readers read these rows and drop them; plans carry the deletes",
                "data files without deleted rows, and fewer deletes",
                **self._rewritten(delete_ratio_threshold=self.options.max_deleted_ratio),
            )

    # -- Data files --------------------------------------------------------------------------------------------------

    def _file_findings(self) -> Iterator[Finding]:
        entries, limits = self.entries, self.limits
        if not entries.files_saved:
            return
        chosen = {"min_input_files": self.options.min_small_files}
        default = DataRewriteOptions(target_file_size_bytes=limits.target_bytes).sizes(self.table.metadata)
        if limits.small_bytes > default.least:
            chosen["min_file_size_bytes"] = limits.small_bytes
        yield Finding(
            "small_files",
            entries.small_files,
            None,
            f"{counted(entries.small_files, 'data file')} below {byte_size(limits.small_bytes)} in "
            f"{counted(entries.crowded_partitions, 'partition')}",
            f"{entries.files_saved / max(entries.files, 1):.0%} of the entries that plans read and of the files that "
            "readers open",
            f"{entries.files_saved:,} fewer data files (of {entries.files:,})",
            **self._rewritten(**chosen),
        )

    def _partition_findings(self) -> Iterator[Finding]:
        """Find a spec whose partitions are too small for data files of a good size, however often they are merged."""
        entries, metadata = self.entries, self.table.metadata
        mean = entries.bytes / max(entries.partitions, 1)
        coarser = list(_coarser(metadata.spec(), metadata.schema()))
        if entries.partitions < self.options.min_small_partitions or mean >= self.limits.small_bytes or not coarser:
            return
        yield Finding(
            "small_partitions",
            entries.partitions,
            entries.bytes,
            f"{entries.partitions:,} partitions hold {byte_size(mean)} on average: too little for a data file of "
            f"{byte_size(self.limits.small_bytes)}, and files of different partitions can't be merged",
            f"plans read an entry and readers open a file for each {byte_size(entries.bytes / max(entries.files, 1))}",
            f"a coarser partition spec makes fewer and larger files: {'; '.join(coarser)}; then rewrite_data_files "
            "with rewrite_all writes the old files again",
        )

    def _rewritten(self, **options: float) -> dict[str, Any]:
        """Return the job, call and command that rewrite data files with options; nothing for read-only tables."""
        if self.table.metadata.format_version > _FIRST_WITH_VECTORS and not has_tree(self.table.metadata):
            return {}
        return self._remedy("rewrite_data_files", "rewrite-data-files", **options)

    def _bound_findings(self) -> Iterator[Finding]:
        """Find lower bounds that exceed upper bounds, in the sampled entries and in the manifest list."""
        stats, state = self.entries.stats, self.table.state
        summaries = [] if state.tree is not None else [*inverted_summaries(state)]
        count = stats.inverted + len(summaries)
        if not count:
            return
        first = stats.first_inverted or f"{summaries[0].field} of {summaries[0].location}"
        yield Finding(
            "inverted_bounds",
            count,
            None,
            f"lower bounds are above the upper ones, such as in {first}",
            "these bounds prove nothing, so that plans can't skip the files; other engines may skip files with rows",
            "files that are written again have right bounds; a check of the table names all files",
        )

    def _stats_findings(self) -> Iterator[Finding]:
        rewritten = self._remedy("rewrite_data_files", "rewrite-data-files", rewrite_all=True)
        excess = ExcessStats.of(self.table.state, self.entries.stats)
        if excess.ratio < self.options.max_excess_stats_ratio:
            return
        yield Finding(
            "excess_stats",
            len(excess.columns),
            None,
            f"more metrics than write.metadata.metrics.* keeps, for {counted(len(excess.columns), 'column')}: "
            f"{', '.join(excess.columns[:5])}{', ...' if len(excess.columns) > 5 else ''}",
            f"{excess.ratio:.0%} of the metrics in manifests, which plans inflate or skip",
            "rewritten files keep only the configured metrics",
            # No job: a schedule must not rewrite a whole table for its metrics.
            **{key: value for key, value in rewritten.items() if key != "job"},
        )

    # -- Metadata ----------------------------------------------------------------------------------------------------

    def _metadata_findings(self) -> Iterator[Finding]:
        history = self.history
        expiry = self._remedy("expire_snapshots", "expire-snapshots") if history.may_expire else {}
        refusal = "" if history.may_expire else "; the table property gc.enabled is false, so nothing expires"
        if history.expired or history.expired_refs:
            refs = f" and {counted(len(history.expired_refs), 'branch or tag')}" if history.expired_refs else ""
            yield Finding(
                "old_snapshots",
                history.expired,
                history.pinned_bytes,
                f"{history.expired:,} of {counted(history.snapshots, 'snapshot')}{refs} are due to expire{refusal}",
                "every load of the table parses them, and every commit writes them",
                f"{history.snapshots - history.expired:,} snapshots remain; about {byte_size(history.pinned_bytes)} of "
                "data files and their manifests are deleted",
                **expiry,
            )
        if history.old_refs:
            first = history.old_refs[0]
            kind = "branch" if self.table.metadata.refs[first].snapshot_ref_type == "branch" else "tag"
            names = f"{', '.join(history.old_refs[:5])}{', ...' if len(history.old_refs) > 5 else ''}"
            yield Finding(
                "old_refs",
                len(history.old_refs),
                None,
                f"branches or tags older than {self.options.max_ref_age_days} days: {names}",
                f"they keep {counted(history.kept_by_refs, 'snapshot')} with all their files",
                "without them, these snapshots expire",
                call=f"table.manage_snapshots().remove_{kind}({first!r}).commit()",
                command=f"sparkmeta {kind} {self.source} {shlex.quote(first)} --remove --commit",
            )
        if history.metadata_json_bytes > self.options.max_metadata_json_bytes:
            remedy = self._remedy("expire_snapshots", "expire-snapshots", clean_expired_metadata=True)
            shrinks = history.expired or history.expired_refs or history.unused_schemas
            if not shrinks:
                # A schedule may set another age for snapshots.
                remedy = {name: value for name, value in remedy.items() if name not in ("call", "command")}
            less = "fewer snapshots, schemas and partition specs; " if shrinks and history.may_expire else ""
            yield Finding(
                "large_metadata_json",
                1,
                history.metadata_json_bytes,
                f"the metadata file is {byte_size(history.metadata_json_bytes)}: {self._contents()}{refusal}",
                "every load of the table parses it, and every commit writes it",
                f"{less}the table property write.metadata.compression-codec=gzip makes it smaller",
                **(remedy if history.may_expire else {}),
            )

    def _contents(self) -> str:
        metadata = self.table.metadata
        counts = {
            "snapshot": len(metadata.snapshots),
            "schema": len(metadata.schemas),
            "partition spec": len(metadata.partition_specs),
            "logged file": len(metadata.metadata_log),
            "statistics file": len(metadata.statistics) + len(metadata.partition_statistics),
        }
        return ", ".join(counted(count, noun) for noun, count in counts.items() if count)


def _coarser(spec: PartitionSpec, schema: Schema) -> Iterator[str]:
    """Yield how fields of a spec can be made coarser, such as `ts_day: day(ts) -> month(ts)`."""
    longer = {"hour": "day", "day": "month", "month": "year"}
    for part, term in zip(spec.fields, partition_terms(spec, schema), strict=True):
        column, name = schema.find_column_name(part.source_id), str(part.transform)
        if column is None or name == "void":
            continue
        if name in longer:
            yield f"{part.name}: {term} -> {longer[name]}({column})"
        elif isinstance(part.transform, BucketTransform | ColumnsBucket):
            if part.transform.num_buckets > 1:
                yield f"{part.name}: {term} -> fewer buckets"
        elif isinstance(part.transform, TruncateTransform):
            yield f"{part.name}: {term} -> another width, or no such field"
        else:
            yield f"{part.name}: {term} -> bucket(N, {column}), or no such field"


# Reason -> kind, problem, cost.
_TREE_FINDINGS = {
    Reason.LAYOUT: (
        "old_layout",
        "{count} leaves have the layout of versions 1 to 3",
        "plans decode whole entries of these leaves, instead of the columns that they need",
    ),
    Reason.MASKED: (
        "masked_entries",
        "{count} leaves have many entries that a deletion vector masks",
        "plans read these entries and drop them",
    ),
    Reason.SMALL: ("small_manifests", "{count} leaves are small", "plans open more files than necessary"),
    Reason.OVERLAP: (
        "overlapping_manifests",
        "{count} leaves overlap too many others; a data leaf overlaps {overlaps} on average",
        "plans with a filter open leaves that hold few matching files",
    ),
    Reason.ROOT: ("files_in_root", "the root lists {count} files itself", "every commit copies them"),
    Reason.AFFINITY: (
        "unaffiliated_deletes",
        "{count} delete leaves hold deletion vectors of several data leaves",
        "plans join these to data files in a Spark job, not leaf by leaf",
    ),
}
