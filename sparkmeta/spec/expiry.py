"""Choose the snapshots and refs of a table that expire, and remove them from its metadata (semantics 14.1)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType

from sparkmeta.checks import at_least
from sparkmeta.errors import ValidationError
from sparkmeta.spec.metadata import lineage_of, snapshot_of
from sparkmeta.spec.metadata_model import StoredSnapshots
from sparkmeta.spec.partitioning import partition_sources
from sparkmeta.spec.summary import summary_number
from sparkmeta.spec.table_properties import number_property

if TYPE_CHECKING:
    from sparkmeta.spec.metadata import Snapshot, TableMetadata
    from sparkmeta.spec.metadata_model import AnySnapshot, SnapshotLogEntry, SnapshotRef

GC_ENABLED = "gc.enabled"
_MAX_SNAPSHOT_AGE = "history.expire.max-snapshot-age-ms"
_MIN_SNAPSHOTS = "history.expire.min-snapshots-to-keep"
_MAX_REF_AGE = "history.expire.max-ref-age-ms"
_FIVE_DAYS_MS = 5 * 24 * 60 * 60 * 1000
_FOREVER_MS = (1 << 63) - 1
_ID_NAMES = {
    "snapshots": "snapshot_id",
    "schemas": "schema_id",
    "partition_specs": "spec_id",
    "statistics": "snapshot_id",
    "partition_statistics": "snapshot_id",
}


@dataclass(frozen=True)
class ExpiryRules:
    """Which snapshots expire.

    Attributes:
        now_ms: the time from which ages are counted, in milliseconds since 1970.
        older_than_ms: older snapshots expire. Defaults to the table's `history.expire.max-snapshot-age-ms`.
        retain_last: the number of a branch's newest snapshots that stay at any age. Defaults to the table's
            `history.expire.min-snapshots-to-keep`. A branch's own settings take precedence over both.
        snapshot_ids: snapshots that expire at any age.
        clean_metadata: whether to remove unused schemas and partition specs.
    """

    now_ms: int
    older_than_ms: int | None = None
    retain_last: int | None = None
    snapshot_ids: tuple[int, ...] = ()
    clean_metadata: bool = False


@dataclass(frozen=True)
class Expired:
    """The snapshots, branches and tags that expire.

    Attributes:
        snapshots: in the order of the metadata.
        refs: the names of branches and tags.
    """

    snapshots: tuple[AnySnapshot, ...]
    refs: tuple[str, ...]


def choose_expired(metadata: TableMetadata, rules: ExpiryRules) -> Expired:
    """Return the snapshots and refs that expire.

    A branch keeps its snapshots from the head back, until the first one that is older than the cutoff and not among the
    newest ones to retain. Tagged snapshots stay. A snapshot that is not reachable from a ref stays while it is young.

    Raises:
        NoSuchSnapshotError: the table lacks a snapshot of `snapshot_ids`.
        ValidationError: a remaining branch or tag refers to a snapshot of `snapshot_ids`, a value is out of range, or
            `gc.enabled` is false.
        CorruptFileError: a snapshot is its own ancestor.
    """
    refuse_without_gc(metadata)
    if rules.retain_last is not None:
        at_least(1).check("retain_last", rules.retain_last)
    max_age = _property(metadata, _MAX_SNAPSHOT_AGE, _FIVE_DAYS_MS)
    cutoff = rules.now_ms - max_age if rules.older_than_ms is None else rules.older_than_ms
    min_snapshots = rules.retain_last or max(1, _property(metadata, _MIN_SNAPSHOTS, 1))
    refs = {name: ref for name, ref in metadata.refs.items() if _stays(name, ref, metadata, rules.now_ms)}
    _check_named(metadata, rules.snapshot_ids, refs)
    retained, referenced = {ref.snapshot_id for ref in refs.values()}, set[int]()
    for ref in refs.values():
        if ref.snapshot_ref_type is SnapshotRefType.BRANCH:
            oldest = cutoff if ref.max_snapshot_age_ms is None else rules.now_ms - ref.max_snapshot_age_ms
            ancestors = [*lineage_of(metadata, ref.snapshot_id)]
            retained |= _retained(ancestors, oldest, ref.min_snapshots_to_keep or min_snapshots)
            referenced |= {snapshot.snapshot_id for snapshot in ancestors}
        else:
            referenced.add(ref.snapshot_id)
    retained |= {
        snapshot.snapshot_id
        for snapshot in metadata.stored_snapshots
        if snapshot.snapshot_id not in referenced and snapshot.timestamp_ms >= cutoff
    }
    retained -= set(rules.snapshot_ids)
    return Expired(
        tuple(snapshot for snapshot in metadata.stored_snapshots if snapshot.snapshot_id not in retained),
        tuple(sorted(metadata.refs.keys() - refs.keys())),
    )


def expired_ids(metadata: TableMetadata, expired: Expired) -> set[int]:
    """Return the ids of expiring snapshots, and of missing snapshots whose statistics are still listed."""
    ids = {snapshot.snapshot_id for snapshot in metadata.stored_snapshots}
    ids_with_statistics = {file.snapshot_id for file in (*metadata.statistics, *metadata.partition_statistics)}
    return {snapshot.snapshot_id for snapshot in expired.snapshots} | (ids_with_statistics - ids)


def without_expired(
    metadata: TableMetadata, expired: Expired, used_spec_ids: Collection[int] | None, now_ms: int
) -> TableMetadata:
    """Return the metadata without expired snapshots and their statistics, branches and tags.

    Args:
        metadata: the metadata.
        expired: the snapshots, branches and tags that expire.
        used_spec_ids: the partition specs of the remaining snapshots' manifests. Other specs are removed, except for
            the default. Schemas are removed too, except for the current one, the newest, the schemas of remaining
            snapshots, and the newest schema with the source column of a remaining spec or a column that equality
            deletes may compare. None removes no specs and schemas.
        now_ms: the time of the change, in milliseconds since 1970.
    """
    removed = expired_ids(metadata, expired)
    snapshots = StoredSnapshots(each for each in metadata.stored_snapshots if each.snapshot_id not in removed)
    log = [entry for entry in metadata.snapshot_log if entry.snapshot_id not in removed]
    changes: dict[str, Any] = {
        "snapshots": snapshots,
        "refs": {name: ref for name, ref in metadata.refs.items() if name not in expired.refs},
        "snapshot_log": _log_after_gap(metadata, log, removed),
        "statistics": _without_snapshots(metadata.statistics, removed),
        "partition_statistics": _without_snapshots(metadata.partition_statistics, removed),
        "last_updated_ms": max(now_ms, metadata.last_updated_ms),
    }
    if used_spec_ids is not None:
        specs = {*used_spec_ids, metadata.default_spec_id}
        # The newest schema stays, so that a gap in the ids shows that schemas were removed.
        newest = max(schema.schema_id for schema in metadata.schemas)
        schemas = {metadata.current_schema_id, newest, *(snapshot.schema_id for snapshot in snapshots)}
        changes["partition_specs"] = [spec for spec in metadata.partition_specs if spec.spec_id in specs]
        columns = set(
            chain.from_iterable(ids for spec in changes["partition_specs"] for ids in partition_sources(spec))
        )
        if any(_may_have_equality_deletes(metadata, snapshot) for snapshot in snapshots):
            columns |= set().union(*(schema.field_ids for schema in metadata.schemas))
        schemas |= _typing_schemas(metadata, columns, schemas)
        changes["schemas"] = [schema for schema in metadata.schemas if schema.schema_id in schemas]
    return metadata.model_copy(update=changes)


def _log_after_gap(base: TableMetadata, log: list[SnapshotLogEntry], removed: set[int]) -> list[SnapshotLogEntry]:
    """Return the part of the snapshot log after the last removed snapshot.

    Entries before it would not tell which snapshot was current at a given time.
    """
    remaining = since_gap = 0
    for entry in base.snapshot_log:
        if entry.snapshot_id in removed:
            since_gap = 0
        else:
            remaining, since_gap = remaining + 1, since_gap + 1
    return log[remaining - since_gap :]


def with_removed(metadata: TableMetadata, base: TableMetadata) -> TableMetadata:
    """Return the metadata with the snapshots, statistics, specs and schemas that only its base contains."""
    changes = {}
    for name, key in _ID_NAMES.items():
        items = getattr(metadata, name)
        ids = {getattr(item, key) for item in items}
        changes[name] = [*items, *(item for item in getattr(base, name) if getattr(item, key) not in ids)]
    return metadata.model_copy(update=changes)


def _may_have_equality_deletes(metadata: TableMetadata, snapshot: Snapshot) -> bool:
    return metadata.format_version > 1 and summary_number(snapshot, "total-equality-deletes") != 0


def _typing_schemas(metadata: TableMetadata, columns: set[int], schema_ids: Collection[int | None]) -> set[int]:
    """Return, for each column that the schemas of `schema_ids` lack, the id of the newest schema that contains it."""
    newest_first = sorted(metadata.schemas, key=lambda schema: schema.schema_id, reverse=True)
    known = set().union(*(schema.field_ids for schema in metadata.schemas if schema.schema_id in schema_ids))
    candidates = (
        [schema.schema_id for schema in newest_first if column in schema.field_ids] for column in columns - known
    )
    return {ids[0] for ids in candidates if ids}


def refuse_without_gc(metadata: TableMetadata) -> None:
    """Raise ValidationError if the table's property `gc.enabled` is false."""
    enabled = metadata.properties.get(GC_ENABLED, "true")
    if enabled.lower() != "true":
        problem = f"the table property {GC_ENABLED} is {enabled}: its files may belong to other tables"
        raise ValidationError(f"{metadata.location}: {problem}, so that none is deleted")


def _stays(name: str, ref: SnapshotRef, metadata: TableMetadata, now_ms: int) -> bool:
    if name == MAIN_BRANCH:
        return True
    head = metadata.stored_by_id.get(ref.snapshot_id)
    if head is None:
        return False
    max_age = ref.max_ref_age_ms
    return now_ms - head.timestamp_ms <= (
        _property(metadata, _MAX_REF_AGE, _FOREVER_MS) if max_age is None else max_age
    )


def _check_named(metadata: TableMetadata, snapshot_ids: Iterable[int], refs: dict[str, SnapshotRef]) -> None:
    for snapshot_id in snapshot_ids:
        snapshot_of(metadata, snapshot_id, "snapshot_ids")
        names = sorted(name for name, ref in refs.items() if ref.snapshot_id == snapshot_id)
        if names:
            raise ValidationError(
                f"{metadata.location}: snapshot {snapshot_id} can't expire: it is the head of {', '.join(names)}"
            )


def _retained(lineage: list[AnySnapshot], oldest_ms: int, min_snapshots: int) -> set[int]:
    """Return the ids of a lineage's newest snapshots, until one is too old and not in the first `min_snapshots`."""
    too_old = (index for index, snapshot in enumerate(lineage) if snapshot.timestamp_ms < oldest_ms)
    end = next((index for index in too_old if index >= min_snapshots), len(lineage))
    return {snapshot.snapshot_id for snapshot in lineage[:end]}


def _without_snapshots(files: Iterable[Any], removed: Collection[int]) -> list[Any]:
    return [file for file in files if file.snapshot_id not in removed]


def _property(metadata: TableMetadata, name: str, default: int) -> int:
    return number_property(metadata.properties, name, default, location=metadata.location)
