"""The manifests of a v1-v3 table put in order as a plan: what is rewritten and into how much, then the commit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Generic

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from sparkmeta.columns.bounds import ANY
from sparkmeta.columns.predicate import bind_filter, parse_filter
from sparkmeta.commit.attempts import commit_steps, discard
from sparkmeta.commit.compact.job import executor_reader_of
from sparkmeta.commit.exchange import RANGE_SCHEMA, exchanged, range_bounds
from sparkmeta.commit.manifests import NewList
from sparkmeta.commit.new_snapshot import SnapshotNames, branch_head
from sparkmeta.commit.summary import ManifestCounts, Tally, snapshot_summary
from sparkmeta.errors import (
    CommitConflictError,
    CommitFailedError,
    NoSuchTableError,
    UnsupportedError,
    ValidationError,
    from_spark,
    shown,
)
from sparkmeta.maintain.manifest_tasks import ManifestTasks, key_schema
from sparkmeta.maintain.outcome import committed_counts
from sparkmeta.maintain.upgrade import refuse_encrypted
from sparkmeta.manifests.avro.write import ManifestFormat, entry_schema, manifest_codec, manifest_properties
from sparkmeta.manifests.manifest_list import MANIFEST_FILE_SCHEMA, live_count, live_counts
from sparkmeta.manifests.parts import manifest_parts
from sparkmeta.manifests.projection import MANIFEST, ORDINAL, PARTITION
from sparkmeta.operations.base_table import TableT
from sparkmeta.operations.table_operations import metadata_folder
from sparkmeta.plan.filter import ScanFilter
from sparkmeta.plan.prune import matching_manifests
from sparkmeta.session import local_frame, read_tasks, spark_schema
from sparkmeta.spec.entry import ContentType, Status
from sparkmeta.spec.partitioning import spec_partition_type
from sparkmeta.storage.access import executor_writer

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
        pa.field("live_files", pa.int64()),
        pa.field("deleted_files", pa.int64()),
        pa.field("file_size_in_bytes", pa.int64()),
    ]
)
"""The columns of `ManifestRewritePlan.files`."""

REWRITTEN = "sparkmeta.rewritten-manifests"
"""A key of the summary of a snapshot that rewrote manifests: how it did, as JSON.

`target-bytes` of a manifest, and `sorted-by`: spec id -> ids of the partition fields in order.
"""

_TARGET = "commit.manifest.target-size-bytes"
_TARGET_BYTES = 8 << 20
# Of a manifest: one task holds its entries, uncompressed, as one array.
_MOST_BYTES = 64 << 20
_CONTENTS = {ContentType.DATA_MANIFEST: "data", ContentType.DELETE_MANIFEST: "deletes"}

# More ranges are too many for the one task that cuts its entries into them.
_MOST_RANGES = 16_384
# Entries of a range in a sample.
_SAMPLED = 60
_LARGEST_SAMPLE = 100_000
# Of an entry in a manifest that does not say how many it has.
_ENTRY_BYTES = 200
# A single manifest is left alone up to so many times the target.
_SURPLUS = 1.1


@dataclass(frozen=True)
class ManifestRewriteOptions:
    """What to rewrite, and into what; see `Maintenance.rewrite_manifests`."""

    row_filter: BooleanExpression | str = AlwaysTrue()  # noqa: RUF009  an immutable singleton
    spec_id: int | None = None
    sort_by: Sequence[str] | None = None
    target_manifest_bytes: int | None = None


@dataclass(frozen=True)
class ManifestRewriteSummary:
    """What is rewritten, by the manifest list alone; text for people by `str`.

    manifests_after: about. live_files: entries that are written; None where a manifest does not say. bytes: of the
    manifests that are read.
    """

    table: str
    snapshot_id: int | None
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

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

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
class ManifestGroup:
    """The manifests of one content and spec that are rewritten together, rows of `TableState.manifests`.

    keys: ids of the partition fields that order the entries. parts: how many manifests they become, about.
    """

    content: ContentType
    spec_id: int
    manifests: pa.Table
    keys: tuple[int, ...]
    parts: int

    @property
    def paths(self) -> set[str]:
        return set(self.manifests.column("location").to_pylist())


@dataclass(frozen=True)
class ManifestRewritePlan(Generic[TableT]):
    """A rewriting that happens when `commit` is called."""

    table: TableT
    options: ManifestRewriteOptions
    branch: str
    properties: Mapping[str, str]
    _state: TableState
    _groups: tuple[ManifestGroup, ...]
    _done: list[TableT] = field(default_factory=list)

    def files(self) -> DataFrame:
        """A row a manifest that is rewritten; starts no job.

        Columns: content ("data", "deletes"), path, spec_id, live_files and deleted_files (null: the list does not say),
        file_size_in_bytes.
        """
        found = [PLANNED.empty_table()]
        for group in self._groups:
            manifests = group.manifests
            stats = manifests.column("manifest_stats").combine_chunks()
            columns = {
                "content": pa.repeat(_CONTENTS[group.content], len(manifests)),
                "path": manifests.column("location"),
                "spec_id": manifests.column("partition_spec_id"),
                "live_files": live_counts(manifests),
                "deleted_files": stats.field("deleted_files_count").cast(pa.int64()),
                "file_size_in_bytes": manifests.column("file_size_in_bytes"),
            }
            found.append(pa.table(columns, schema=PLANNED))
        return local_frame(self._state.spark, pa.concat_tables(found))

    def summary(self) -> ManifestRewriteSummary:
        """All of it in numbers; starts no job."""
        counts = dict.fromkeys(_CONTENTS, 0)
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
            live_files=None if None in live else sum(one or 0 for one in live),
            bytes=sum(_size(group.manifests) for group in self._groups),
        )

    def commit(self) -> TableT:
        """Writes the manifests and makes a snapshot that has them; the table as it is then, itself without a plan.

        What other commits add meanwhile stays. An attempt that meets them is made again with the manifests that were
        written; only the manifest list is written anew.

        Raises:
            CommitFailedError: other commits came first each time (`commit.retry.num-retries`).
            CommitConflictError: other commits have rewritten or removed manifests of each partition spec and content
                that was to be rewritten: plan again.
            CommitStateUnknownError: it may have been committed; nothing that it wrote is deleted.
            ValidationError: manifests that hold other numbers of files than the manifest list says.
        """
        if not self._done and not self._groups:
            self._done.append(self.table)
        if not self._done:
            step = _Rewrite(self)
            try:
                self._done.append(commit_steps(self.table, [step]))
            except (CommitFailedError, ValidationError, UnsupportedError, NoSuchTableError, OSError):
                step.discard(set())  # nothing was committed
                raise
            step.discard(step.used)
        return self._done[0]

    def result(self) -> dict[str, Any]:
        """The summary and, once it is committed, what came of it (else null), for JSON."""
        after = self._done[0].metadata.snapshot_by_name(self.branch) if self._done else None
        committed = committed_counts(self._state.snapshot, after)
        return {"table": self.table.metadata.location, "plan": self.summary().to_dict(), "committed": committed}


@dataclass
class _Rewrite:
    """The step that a commit makes: manifests are written once, each attempt puts them into the list that it meets."""

    plan: ManifestRewritePlan[Any]
    names: SnapshotNames = field(default_factory=SnapshotNames)
    done: list[tuple[ManifestGroup, pa.Table]] | None = None
    used: set[str] = field(default_factory=set)

    def apply(self, state: TableState) -> TableMetadata:
        plan, head = self.plan, branch_head(state, self.plan.branch)
        _refuse(head)
        self.names.next_attempt(head.metadata)
        done = self._written(head)
        now = _numbers(head)
        same = head.metadata.format_version == plan._state.metadata.format_version
        before = _numbers(plan._state)
        fitting = [one for one in done if same and all(now.get(path) == before[path] for path in one[0].paths)]
        if not fitting:
            raise CommitConflictError(
                f"{head.metadata.location}: other commits have changed the manifests that were to be put in order: "
                "plan it again"
            )
        made = pa.concat_tables([one for _, one in fitting])
        self.used = set(made.column("manifest_path").to_pylist())
        replaced = set().union(*(group.paths for group, _ in fitting))
        counts = ManifestCounts(len(made), len(now) - len(replaced), len(replaced), _files(made))
        sorted_by = {str(group.spec_id): group.keys for group, _ in fitting}
        how = {"target-bytes": _target(plan._state.metadata, plan.options), "sorted-by": sorted_by}
        properties = {**plan.properties, REWRITTEN: json.dumps(how)}

        def summary() -> Summary:
            return snapshot_summary("replace", Tally(), Tally(), head.snapshot, properties, counts)

        return NewList(head, plan.branch, self.names).commit(made, replaced, summary)

    def _written(self, head: TableState) -> list[tuple[ManifestGroup, pa.Table]]:
        if self.done is not None:
            return self.done
        self.done = []
        try:
            for group in self.plan._groups:
                job = ManifestJob(self.plan._state, group, self.plan.options, self.names.file("m"))
                self.done.append((group, job.run()))
                _check_count(group, self.done[-1][1], head)
        except BaseException:
            self.discard(set())
            raise
        return self.done

    def discard(self, kept: set[str]) -> None:
        """Deletes the manifests that no snapshot has, and none will: all but those kept."""
        paths = {path for _, made in self.done or () for path in made.column("manifest_path").to_pylist()}
        discard(self.plan._state.files, sorted(paths - kept))
        self.done = None


def _numbers(state: TableState) -> dict[str, tuple[Any, ...]]:
    """What entries inherit from each manifest of a snapshot, and what it is, by its path."""
    names = ("manifest_path", "partition_spec_id", "content", "added_snapshot_id", "sequence_number", "first_row_id")
    rows = zip(*(state.manifest_files.column(one).to_pylist() for one in names), strict=True)
    return {path: tuple(values) for path, *values in rows}


@dataclass(frozen=True)
class ManifestJob:
    """The Spark jobs that rewrite a group. name: begins the names of its manifests."""

    state: TableState
    group: ManifestGroup
    options: ManifestRewriteOptions
    name: str

    def run(self) -> pa.Table:
        """Writes the manifests; their rows of `MANIFEST_FILE_SCHEMA`.

        Raises UnsupportedError where executors can't open the table's files by themselves, and CorruptFileError for a
        manifest that is none.
        """
        state, group = self.state, self.group
        tasks = ManifestTasks(executor_reader_of(state), self._form, group.keys)
        ranges = min(group.parts, _MOST_RANGES)
        bounds = self._bounds(ranges)
        projection = state.projection(("first_row_id",))
        parts = manifest_parts(group.manifests, projection, state.settings.split_manifest_bytes)
        most = 8 * read_tasks(state.spark)
        units = local_frame(state.spark, parts).repartition(min(len(parts), most))
        found = units.mapInArrow(partial(tasks.cut_parts, bounds), spark_schema(RANGE_SCHEMA))
        together = exchanged(found, min(ranges, most))
        written = together.mapInArrow(tasks.write_ranges, spark_schema(MANIFEST_FILE_SCHEMA))
        try:
            return written.toArrow().cast(MANIFEST_FILE_SCHEMA)
        except PySparkException as error:
            raise from_spark(error) or error from error

    @cached_property
    def _form(self) -> ManifestFormat:
        state, group = self.state, self.group
        metadata, spec = state.metadata, state.specs[group.spec_id]
        version, content = metadata.format_version, int(group.content) - int(ContentType.DATA_MANIFEST)
        codec, level = manifest_codec(metadata.properties)
        kinds = spec_partition_type(spec, metadata.schemas, state.types.typing_schema)
        return ManifestFormat(
            version,
            content,
            group.spec_id,
            tuple(state.types.spec_fields[group.spec_id]),
            entry_schema(version, kinds),
            manifest_properties(version, metadata.schema(), spec, content),
            codec,
            level,
            metadata_folder(metadata),
            self.name,
            _target(metadata, self.options),
            executor_writer(state.files),
        )

    def _bounds(self, ranges: int) -> pa.Table:
        """The keys that end the ranges, by a sample of the entries' keys; runs a job that reads nothing else."""
        state, group = self.state, self.group
        schema = key_schema(dict(state.types.spec_fields[group.spec_id]), group.keys)
        if ranges < 2:
            return schema.empty_table()
        frame = state.entries(group.manifests, state.projection(("version_info",)))
        live = frame.where(F.col("version_info.status") != int(Status.DELETED))
        columns = [F.col(f"{PARTITION}.`{key}`").alias(f"k{place}") for place, key in enumerate(group.keys)]
        wanted = min(_LARGEST_SAMPLE, max(2_000, ranges * _SAMPLED))
        entries = live_count(group.manifests)
        share = min(1.0, wanted / max(_size(group.manifests) // _ENTRY_BYTES if entries is None else entries, 1))
        sequence = F.col("version_info.sequence_number").alias("sequence_number")
        sample = live.select(*columns, sequence, MANIFEST, ORDINAL).sample(share, seed=7).toArrow()
        return range_bounds(sample.cast(schema), ranges)


def _check_count(group: ManifestGroup, made: pa.Table, state: TableState) -> None:
    known = live_count(group.manifests)
    if known is not None and known != _files(made):
        raise ValidationError(
            f"{state.metadata.location}: the manifest list says that the {_CONTENTS[group.content]} manifests of "
            f"partition spec {group.spec_id} have {known} live files: they have {_files(made)}"
        )


def plan_rewrite(
    table: TableT, options: ManifestRewriteOptions, branch: str, properties: Mapping[str, str]
) -> ManifestRewritePlan[TableT]:
    """See `Maintenance.rewrite_manifests`."""
    table.refuse_read_only()
    head = branch_head(table.state, branch)
    _refuse(head)
    groups = _groups(head, options)
    return ManifestRewritePlan(table, options, branch, properties, head, tuple(groups))


def _refuse(state: TableState) -> None:
    metadata = state.metadata
    if metadata.format_version > 3:
        raise UnsupportedError(
            f"{metadata.location}: Avro manifests are rewritten in tables of format version 1 to 3; the leaves of the "
            "metadata tree that one of version 4 has, or gets by upgrade, are put in order by compact_manifests"
        )
    refuse_encrypted(metadata, "whose manifests can't be rewritten")


def _groups(state: TableState, options: ManifestRewriteOptions) -> list[ManifestGroup]:
    target = _target(state.metadata, options)
    manifest_codec(state.metadata.properties)
    keys = _keys(state, options)
    schema = state.metadata.schema()
    scan = ScanFilter(state, bind_filter(parse_filter(options.row_filter), schema, case_sensitive=True), schema)
    manifests = matching_manifests(state.manifests, scan)
    groups = []
    for content in _CONTENTS:
        of_content = manifests.filter(pc.equal(manifests.column("content_type"), int(content)))
        for spec_id in sorted(set(of_content.column("partition_spec_id").to_pylist()) & keys.keys()):
            found = of_content.filter(pc.equal(of_content.column("partition_spec_id"), spec_id))
            parts = max(1, min(-(-_size(found) // target), live_count(found) or _size(found)))
            group = ManifestGroup(content, spec_id, found, keys[spec_id], parts)
            if not _is_in_order(group, state, target):
                _refuse_group(group, state)
                groups.append(group)
    return groups


def _is_in_order(group: ManifestGroup, state: TableState, target: int) -> bool:
    """Whether a group is as it would be made: a manifest that is not too large, or one snapshot wrote all of it in this
    order, with this target."""
    count = len(group.manifests)
    if count == 1 and _size(group.manifests) <= _SURPLUS * target:
        return True
    writers = pc.struct_field(group.manifests.column("version_info"), "snapshot_id").unique().to_pylist()
    writer = state.metadata.snapshot_by_id(writers[0]) if len(writers) == 1 and writers[0] is not None else None
    if writer is None or writer.summary is None:
        return False
    try:
        how = json.loads(writer.summary.additional_properties.get(REWRITTEN, "{}"))
    except ValueError:  # of another writer's
        return False
    known = how.get("sorted-by", {}) if isinstance(how, dict) else {}
    return known.get(str(group.spec_id)) == list(group.keys) and how.get("target-bytes") == target


def _refuse_group(group: ManifestGroup, state: TableState) -> None:
    unknown = [field_id for field_id, kind in state.types.spec_fields[group.spec_id] if kind == ANY]
    if unknown:
        raise UnsupportedError(
            f"{state.metadata.location}: partition spec {group.spec_id} has a transform that is not known, of field "
            f"{unknown[0]}: its manifests can't be rewritten"
        )
    encrypted = group.manifests.filter(group.manifests.column("key_metadata").is_valid())
    if len(encrypted):
        raise UnsupportedError(f"{encrypted.column('location')[0]} is encrypted: it can't be rewritten")
    other = group.manifests.filter(pc.not_equal(group.manifests.column("file_format"), "AVRO"))
    if len(other):
        raise UnsupportedError(f"{other.column('location')[0]} is no Avro manifest: it can't be rewritten")


def _keys(state: TableState, options: ManifestRewriteOptions) -> dict[int, tuple[int, ...]]:
    """The specs whose manifests are rewritten, and the ids of the partition fields that order each one's entries."""
    specs = state.specs
    if options.spec_id is not None:
        if options.spec_id not in specs:
            known = ", ".join(map(str, sorted(specs)))
            raise ValidationError(
                f"{state.metadata.location} has no partition spec {options.spec_id!r}: it has {known}"
            )
        specs = {options.spec_id: specs[options.spec_id]}
    default = {one: tuple(part.field_id for part in spec.fields) for one, spec in specs.items()}
    names = options.sort_by
    if names is None:
        return default
    if isinstance(names, str) or not names or len(set(names)) < len(names):
        raise ValidationError(f"sort_by is {shown(names)}: it takes names of partition fields, each once")
    by_name = {one: {part.name: part.field_id for part in spec.fields} for one, spec in specs.items()}
    for name in names:
        if not any(name in fields for fields in by_name.values()):
            raise ValidationError(
                f"{state.metadata.location}: sort_by names {name!r}: there is no such partition field"
            )
    found = {one: tuple(fields[name] for name in names if name in fields) for one, fields in by_name.items()}
    return {one: chosen or default[one] for one, chosen in found.items()}


def _target(metadata: TableMetadata, options: ManifestRewriteOptions) -> int:
    asked: Any = options.target_manifest_bytes
    if asked is not None:
        if isinstance(asked, bool) or not isinstance(asked, int) or not 1 <= asked <= _MOST_BYTES:
            problem = f"it takes a number of bytes from 1 to {_MOST_BYTES}"
            raise ValidationError(f"target_manifest_bytes is {shown(asked)}: {problem}")
        return int(asked)
    text = metadata.properties.get(_TARGET, str(_TARGET_BYTES))
    if not text.isdecimal() or not int(text):
        raise ValidationError(f"the table property {_TARGET} is {shown(text)}: it takes a number of bytes")
    return min(int(text), _MOST_BYTES)


def _size(manifests: pa.Table) -> int:
    return pc.sum(manifests.column("file_size_in_bytes")).as_py() or 0


def _files(made: pa.Table) -> int:
    return pc.sum(made.column("existing_files_count")).as_py() or 0
