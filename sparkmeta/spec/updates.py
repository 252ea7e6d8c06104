"""Changes of table metadata: pyiceberg's update models, applied so that nothing is lost and no counter goes back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic import BaseModel
from pyiceberg import exceptions
from pyiceberg.partitioning import PartitionField
from pyiceberg.table import update as iceberg
from pyiceberg.table.update.spec import UpdateSpec as IcebergUpdateSpec

from sparkmeta.errors import UnsupportedError, ValidationError
from sparkmeta.spec.metadata_model import TableMetadata, TableMetadataV4
from sparkmeta.spec.partitioning import partition_sources, partition_spec_from_json, partition_spec_to_json
from sparkmeta.spec.snapshot import (
    MetadataLogEntry,
    PartitionStatisticsFile,
    Snapshot,
    SnapshotLogEntry,
    SnapshotRef,
    StatisticsFile,
)
from sparkmeta.spec.table_expressions import add_expressions, check_expressions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pyiceberg.table import Transaction
    from pyiceberg.table.update import TableUpdate
    from pyiceberg.transforms import Transform

_Model = TypeVar("_Model", bound=BaseModel)
_Numbered = TypeVar("_Numbered")


def update_table_metadata(
    metadata: TableMetadata, updates: Sequence[TableUpdate], metadata_location: str | None = None
) -> TableMetadata:
    """The metadata with changes applied, by the rules of semantics 3.3.

    pyiceberg applies them; on top of that, unknown fields stay, sequence numbers and row ids never go back, ids are
    given once, a snapshot that is removed takes its partition statistics along and leaves its children's parent ids,
    the snapshot log has neither gaps nor snapshots that no one ever saw as current, and each spec of a V4 tree has
    expressions.

    Args:
        metadata: the base; left as it is.
        updates: in order. A snapshot of version 3 and later has first-row-id and added-rows.
        metadata_location: the base's file, which the metadata log then names.

    Raises:
        ValidationError: an update that does not fit the metadata.
        UnsupportedError: a change of the format version (sparkmeta.spec.upgrade does the one that there is).
    """
    kept, numbers = [], _numbers(metadata, updates)
    for update in updates:
        if not isinstance(update, iceberg.UpgradeFormatVersionUpdate):
            kept.append(_with_all_sources(update, metadata))
        elif update.format_version != metadata.format_version:
            problem = (
                f"format version {metadata.format_version} can't be changed to {update.format_version} by an update"
            )
            raise UnsupportedError(f"{metadata.location}: {problem}")
    try:
        changed = iceberg.update_table_metadata(cast("Any", metadata), tuple(kept), metadata_location=metadata_location)
    except (ValueError, KeyError, exceptions.ValidationError) as error:
        raise ValidationError(f"{metadata.location}: {error}") from error
    own = cast("TableMetadata", changed)
    restored = own.model_copy(update=numbers | _own_parts(metadata, own) | _lists(metadata, own, updates))
    return _with_expressions(restored) if isinstance(restored, TableMetadataV4) else restored


class UpdateSpec(IcebergUpdateSpec):
    """pyiceberg's builder of partition specs, which gives an earlier field its id again from version 2 on.

    pyiceberg's own does so in version 2 alone, so that from version 3 on a field that comes back would be a new one.
    New ids are above all that any spec has, also where last-partition-id is not.
    """

    def __init__(self, transaction: Transaction, case_sensitive: bool = True) -> None:
        super().__init__(transaction, case_sensitive)
        given = (spec.last_assigned_field_id for spec in transaction.table_metadata.specs().values())
        self._last_assigned_partition_id = max([self._last_assigned_partition_id, *given])

    def _partition_field(self, transform_key: tuple[int, Transform[Any, Any]], name: str | None) -> PartitionField:
        metadata = self._transaction.table_metadata
        earlier = (field for spec in metadata.specs().values() for field in spec.fields)
        for field in earlier if metadata.format_version >= 2 else ():
            same = field.source_id == transform_key[0] and repr(field.transform) == repr(transform_key[1])
            if same and name in (None, field.name):
                return PartitionField(transform_key[0], field.field_id, transform_key[1], field.name)
        return super()._partition_field(transform_key, name)


def _numbers(metadata: TableMetadata, updates: Iterable[TableUpdate]) -> dict[str, Any]:
    """The counters, where the version has them, after the snapshots added, each of which must go on from them."""
    sequence = metadata.last_sequence_number
    next_row_id: int | None = getattr(metadata, "next_row_id", None)
    for update in updates:
        if not isinstance(update, iceberg.AddSnapshotUpdate):
            continue
        snapshot = update.snapshot
        number = snapshot.sequence_number or 0
        if metadata.format_version >= 2 and snapshot.parent_snapshot_id is not None and number <= sequence:
            _refuse(metadata, snapshot, f"has sequence number {number}, and the table's last is {sequence}")
        sequence = max(sequence, number)
        if next_row_id is not None:
            next_row_id = _next_row_id(metadata, snapshot, next_row_id)
    return {"last_sequence_number": sequence, "next_row_id": next_row_id}


def _next_row_id(metadata: TableMetadata, snapshot: Any, next_row_id: int) -> int:
    first, added = snapshot.first_row_id, snapshot.added_rows
    if first is None or first < next_row_id:
        _refuse(metadata, snapshot, f"has first-row-id {first}, and the table's next-row-id is {next_row_id}")
    if added is None or added < 0:
        _refuse(metadata, snapshot, f"has first-row-id {first} and added-rows {added}")
    return cast("int", first + added)


def _refuse(metadata: TableMetadata, snapshot: Any, problem: str) -> None:
    raise ValidationError(f"{metadata.location}: snapshot {snapshot.snapshot_id} {problem}")


def _with_all_sources(update: TableUpdate, metadata: TableMetadata) -> TableUpdate:
    """The update; if a new spec, with all source columns of the fields that earlier specs compute from several.

    pyiceberg's fields know the first alone.
    """
    if not isinstance(update, iceberg.AddPartitionSpecUpdate):
        return update
    several = {
        (field.field_id, field.source_id, str(field.transform)): sources
        for spec in metadata.partition_specs
        for field, sources in zip(spec.fields, partition_sources(spec), strict=True)
        if len(sources) > 1
    }
    fields = partition_spec_to_json(update.spec)["fields"]
    completed = [
        _with_sources(entry, several.get((field.field_id, field.source_id, str(field.transform))))
        for entry, field in zip(fields, update.spec.fields, strict=True)
    ]
    if completed == fields:
        return update
    spec = partition_spec_from_json({"spec-id": update.spec.spec_id, "fields": completed})
    return iceberg.AddPartitionSpecUpdate(spec=spec)


def _with_sources(entry: dict[str, Any], sources: tuple[int, ...] | None) -> dict[str, Any]:
    if sources is None:
        return entry
    return {key: value for key, value in entry.items() if key != "source-id"} | {"source-ids": list(sources)}


def _own_parts(base: TableMetadata, changed: TableMetadata) -> dict[str, Any]:
    """The parts of which pyiceberg makes its own models, as ours; of those it replaces, with their unknown fields."""
    refs: dict[str, Any] = dict(changed.refs)
    return {
        "refs": {name: _own_ref(ref, base.refs.get(name)) for name, ref in refs.items()},
        "metadata_log": [_own(entry, MetadataLogEntry) for entry in changed.metadata_log],
        "statistics": [_own(file, StatisticsFile) for file in changed.statistics],
    }


def _own_ref(ref: Any, earlier: SnapshotRef | None) -> SnapshotRef:
    if isinstance(ref, SnapshotRef):
        return ref
    unknown = (earlier.model_extra if earlier is not None else None) or {}
    return SnapshotRef.model_validate(unknown | ref.model_dump())


def _own(made: Any, kind: type[_Model]) -> _Model:
    return made if isinstance(made, kind) else kind.model_validate(made.model_dump())


def _lists(base: TableMetadata, changed: TableMetadata, updates: Sequence[TableUpdate]) -> dict[str, Any]:
    as_they_were = {snapshot.snapshot_id: snapshot for snapshot in base.snapshots}
    snapshots = [as_they_were.get(snapshot.snapshot_id) or _own(snapshot, Snapshot) for snapshot in changed.snapshots]
    removed = as_they_were.keys() - {snapshot.snapshot_id for snapshot in snapshots}
    added = {update.snapshot.snapshot_id for update in updates if isinstance(update, iceberg.AddSnapshotUpdate)}
    passed_over = added - {changed.current_snapshot_id}
    log = [_own(entry, SnapshotLogEntry) for entry in changed.snapshot_log if entry.snapshot_id not in passed_over]
    partition_statistics = [
        _own(file, PartitionStatisticsFile) for file in changed.partition_statistics if file.snapshot_id not in removed
    ]
    return {
        "snapshots": snapshots,
        "snapshot_log": _after_gap(base, log, removed),
        "partition_statistics": partition_statistics,
        "schemas": _once(changed, "schemas", changed.schemas, lambda schema: schema.schema_id),
        "partition_specs": _once(changed, "partition-specs", changed.partition_specs, lambda spec: spec.spec_id),
        "sort_orders": _once(changed, "sort-orders", changed.sort_orders, lambda order: order.order_id),
    }


def _after_gap(base: TableMetadata, log: list[SnapshotLogEntry], removed: set[int]) -> list[SnapshotLogEntry]:
    """The log from the last entry of a removed snapshot on: what came before says nothing of a time any more."""
    kept = after = 0
    for entry in base.snapshot_log:
        gone = entry.snapshot_id in removed
        kept, after = kept + (not gone), 0 if gone else after + 1
    return log[kept - after :]


def _once(
    metadata: TableMetadata, listed: str, items: Iterable[_Numbered], number: Callable[[_Numbered], int]
) -> list[_Numbered]:
    """The items, of which pyiceberg adds one again that is there; ValidationError where two of one id differ."""
    by_id: dict[int, _Numbered] = {}
    for item in items:
        if by_id.setdefault(number(item), item) != item:
            raise ValidationError(f"{metadata.location}: {listed} has another one of id {number(item)}")
    return list(by_id.values())


def _with_expressions(metadata: TableMetadataV4) -> TableMetadataV4:
    if metadata.layout_revision is not None:
        for spec in metadata.partition_specs:
            metadata = add_expressions(metadata, spec)
    check_expressions(metadata, metadata.location)
    return metadata
