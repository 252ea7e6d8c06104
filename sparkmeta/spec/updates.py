"""Apply pyiceberg's metadata updates without losing unknown fields, and express a change as updates."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from pyiceberg import exceptions
from pyiceberg.expressions import Reference
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import index_by_id
from pyiceberg.table import update as iceberg
from pyiceberg.table.update import TableUpdate
from pyiceberg.table.update.spec import UpdateSpec as IcebergUpdateSpec
from pyiceberg.transforms import VoidTransform

from sparkmeta.errors import UnsupportedError, ValidationError
from sparkmeta.spec.metadata import add_expressions, check_expressions, serialize_table_metadata
from sparkmeta.spec.metadata_model import SnapshotLogEntry, SnapshotRef, TableMetadata, TableMetadataV4
from sparkmeta.spec.metadata_rules import refuse_unfit, refuse_unreadable, refuse_unsupported
from sparkmeta.spec.table_properties import refuse_invalid_retries
from sparkmeta.spec.transform_text import Terms, transform_of
from sparkmeta.spec.transforms import ColumnsBucket, field_sources
from sparkmeta.spec.update_expressions import AddExpression, RemoveExpression
from sparkmeta.spec.update_schema import names_table
from sparkmeta.text import partition_terms, sort_terms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyiceberg.table import Transaction
    from pyiceberg.table.sorting import SortField, SortOrder
    from pyiceberg.transforms import Transform


_Item = TypeVar("_Item")


# -- Apply pyiceberg's metadata updates -------------------------------------------------------------------------------


MetadataUpdate = TableUpdate | AddExpression | RemoveExpression


def update_table_metadata(metadata: TableMetadata, changes: Sequence[MetadataUpdate]) -> TableMetadata:
    """Return the metadata with updates applied: the ones that builders and commits make.

    The updates are applied by pyiceberg. In addition:

    - Unknown fields are preserved.
    - Sequence numbers and row ids never decrease, and no id is assigned twice.
    - The snapshot log has no snapshots that were added but did not become current.
    - Times do not go back if the clock of an earlier writer was ahead: other readers would refuse the metadata.
    - In a V4 tree, each partition spec has expressions.

    Args:
        metadata: The metadata to change. The object itself is not modified.
        changes: The updates, in order, with models of sparkmeta.spec.metadata_model for snapshots and statistics. From
            format version 3 on, new snapshots have first-row-id and added-rows. None of the updates removes snapshots
            or changes the format version, which sparkmeta.spec.expiry and sparkmeta.spec.upgrade do. Changes of
            expressions are applied last.

    Raises:
        ValidationError: An update contradicts the metadata.
    """
    expression_changes = [change for change in changes if isinstance(change, AddExpression | RemoveExpression)]
    updates = [change for change in changes if not isinstance(change, AddExpression | RemoveExpression)]
    applicable, counters = [], _counters(metadata, updates)
    for update in updates:
        _refuse_later_version(update, metadata)
        _refuse_unreadable(update, metadata)
        if isinstance(update, iceberg.SetPropertiesUpdate):
            refuse_invalid_retries(update.updates, metadata.location)
        applicable.append(_restricted(update, metadata))
    try:
        updated = iceberg.update_table_metadata(cast("Any", metadata), tuple(applicable))
    except (ValueError, KeyError, exceptions.ValidationError) as error:
        problem = _deleted_source(metadata, metadata, updates) or error
        raise ValidationError(f"{metadata.location}: {problem}") from error
    changed = cast("TableMetadata", updated)
    # pyiceberg knows only the first source column of a field.
    fields: tuple[PartitionField | SortField, ...] = (*changed.spec().fields, *changed.sort_order().fields)
    others = {source for field in fields for source in field_sources(field)[1:]}
    if others & metadata.schema().field_ids - changed.schema().field_ids:
        raise ValidationError(f"{metadata.location}: {_deleted_source(metadata, changed, updates)}")
    for update in updates:
        refuse_unfit(metadata.location, changed.schema(), *_added_specs_and_orders(update))
    parts = {"refs": _converted_refs(metadata, changed)} | _lists(changed, updates)
    restored = changed.model_copy(update=counters | parts | _times(metadata, changed, parts["snapshot_log"]))
    for change in expression_changes:
        restored = change.apply(restored)
    return _with_expressions(restored) if isinstance(restored, TableMetadataV4) else restored


@names_table
class UpdateSpec(IcebergUpdateSpec):
    """pyiceberg's builder of partition specs, with the ids of partition fields corrected.

    - A field that equals a field of an earlier spec gets its id, from version 2 on. pyiceberg does this only for
      version 2.
    - New ids are larger than the ids in all specs, even if last-partition-id is too small.
    - A field that is removed and added again stays where it is, as in Java, with the new name if there is one.
    - A new field may have the name of a field that is removed, from version 2 on. In version 1, a removed field stays
      as a void one, which gets another name when a later change takes its name.
    - Transforms are texts such as `bucket(16)`, or transforms of pyiceberg. A text may also name the column, as in
      `add_field("bucket(16, id)")`, or several columns of a bucket, as in `add_field("bucket(16, country, id)")`.
    """

    def __init__(self, transaction: Transaction, case_sensitive: bool = True) -> None:
        super().__init__(transaction, case_sensitive)
        assigned = (spec.last_assigned_field_id for spec in transaction.table_metadata.specs().values())
        self._last_assigned_partition_id = max([self._last_assigned_partition_id, *assigned])

    def add_field(
        self,
        source_column_name: str,
        transform: str | Transform[Any, Any] | None = None,
        partition_field_name: str | None = None,
    ) -> UpdateSpec:
        metadata = self._transaction.table_metadata
        schema = metadata.schema()
        if transform is None:
            where = f"{metadata.location}: add_field({source_column_name!r})"
            column, parsed = Terms(schema, where, "partitioned", self._case_sensitive).transformed(source_column_name)
            source_column_name = str(schema.find_column_name(column.field_id))
        else:
            parsed = transform_of(transform)
        bound = Reference(source_column_name).bind(schema, self._case_sensitive)
        existing = self._transform_to_field.get((bound.field.field_id, repr(parsed)))
        if existing is None or existing.field_id not in self._deletes:
            super().add_field(source_column_name, parsed, partition_field_name)
            return self
        self._deletes.remove(existing.field_id)
        self._name_to_field[existing.name] = existing
        if partition_field_name not in (None, existing.name):
            self.rename_field(existing.name, partition_field_name)
        return self

    def remove_field(self, name: str) -> UpdateSpec:
        super().remove_field(name)
        if self._transaction.table_metadata.format_version >= 2:  # in version 1 the field stays, as a void one
            del self._name_to_field[name]
        return self

    def rename_field(self, name: str, new_name: str) -> UpdateSpec:
        if not new_name:
            raise ValueError(f"partition field {name} can't have an empty name")
        existing = self._name_to_field.get(new_name)
        if existing is not None and isinstance(existing.transform, VoidTransform):
            self.rename_field(new_name, f"{new_name}_{existing.field_id}")
            del self._name_to_field[new_name]
        super().rename_field(name, new_name)
        return self

    def _partition_field(self, transform_key: tuple[int, Transform[Any, Any]], name: str | None) -> PartitionField:
        metadata = self._transaction.table_metadata
        earlier = (field for spec in metadata.specs().values() for field in spec.fields)
        for field in earlier if metadata.format_version >= 2 else ():
            same = field.source_id == transform_key[0] and repr(field.transform) == repr(transform_key[1])
            if same and name in (None, field.name):
                return PartitionField(transform_key[0], field.field_id, transform_key[1], field.name)
        if name is None and isinstance(transform_key[1], ColumnsBucket):
            name = transform_key[1].default_name(metadata.schema())
        return super()._partition_field(transform_key, name)


def _deleted_source(metadata: TableMetadata, changed: TableMetadata, updates: Iterable[TableUpdate]) -> str | None:
    """Return why updates can't delete a column: the partition spec or sort order of `changed` uses it. None if none."""
    schema, spec, order = metadata.schema(), changed.spec(), changed.sort_order()
    for ids in (index_by_id(update.schema_) for update in updates if isinstance(update, iceberg.AddSchemaUpdate)):
        fields: tuple[PartitionField | SortField, ...] = (*spec.fields, *order.fields)
        for field in fields:
            deleted = (source for source in field_sources(field) if source in schema.field_ids and source not in ids)
            if (source := next(deleted, None)) is None or isinstance(field.transform, VoidTransform):
                continue
            name = schema.find_column_name(source)
            problem = f"column {name} can't be deleted: it is a source of"
            if isinstance(field, PartitionField):
                term = partition_terms(PartitionSpec(field), schema)[0]
                remedy = f"remove this field first: update_spec().remove_field({field.name!r}).commit()"
                return f"{problem} the partition field {field.name} = {term}: {remedy}"
            remedy = 'replace this order first: update_sort_order().asc("...").commit(), or .commit() alone for none'
            return f"{problem} the sort order ({', '.join(sort_terms(order, schema))}): {remedy}"
    return None


def _counters(metadata: TableMetadata, updates: Iterable[TableUpdate]) -> dict[str, Any]:
    """Return last_sequence_number and next_row_id after the updates.

    Raises:
        ValidationError: The numbers of a new snapshot do not follow the numbers of the metadata.
    """
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


def _refuse_later_version(update: TableUpdate, metadata: TableMetadata) -> None:
    """Raise ValidationError if an added schema needs a later format version."""
    schemas = [update.schema_] if isinstance(update, iceberg.AddSchemaUpdate) else []
    refuse_unsupported(metadata.format_version, schemas, metadata.location)


def _refuse_unreadable(update: TableUpdate, metadata: TableMetadata) -> None:
    """Raise ValidationError if readers would refuse an added schema, spec or sort order."""
    schemas = [update.schema_] if isinstance(update, iceberg.AddSchemaUpdate) else []
    refuse_unreadable(metadata.location, schemas, *_added_specs_and_orders(update))


def _added_specs_and_orders(update: TableUpdate) -> tuple[list[PartitionSpec], list[SortOrder]]:
    """Return the partition spec or the sort order that an update adds, each in a list."""
    return (
        [update.spec] if isinstance(update, iceberg.AddPartitionSpecUpdate) else [],
        [update.sort_order] if isinstance(update, iceberg.AddSortOrderUpdate) else [],
    )


def _restricted(update: TableUpdate, metadata: TableMetadata) -> TableUpdate:
    """Restrict an update that removes properties to the table's properties, as pyiceberg requires."""
    if not isinstance(update, iceberg.RemovePropertiesUpdate):
        return update
    return iceberg.RemovePropertiesUpdate(removals=[name for name in update.removals if name in metadata.properties])


def _converted_refs(base: TableMetadata, changed: TableMetadata) -> dict[str, SnapshotRef]:
    """Return the refs as models of this library. A ref that replaces another one inherits its unknown fields."""
    refs: dict[str, Any] = dict(changed.refs)
    return {name: _converted_ref(ref, base.refs.get(name)) for name, ref in refs.items()}


def _converted_ref(ref: Any, earlier: SnapshotRef | None) -> SnapshotRef:
    if isinstance(ref, SnapshotRef):
        return ref
    unknown = (earlier.model_extra if earlier is not None else None) or {}
    return SnapshotRef.model_validate(unknown | ref.model_dump())


def _lists(changed: TableMetadata, updates: Sequence[TableUpdate]) -> dict[str, Any]:
    """Return the lists of the changed metadata, corrected as update_table_metadata describes."""
    added = {update.snapshot.snapshot_id for update in updates if isinstance(update, iceberg.AddSnapshotUpdate)}
    never_current = added - {changed.current_snapshot_id}
    return {
        "snapshot_log": [_log_entry(entry) for entry in changed.snapshot_log if entry.snapshot_id not in never_current],
        "schemas": _deduplicated(changed, "schemas", changed.schemas, lambda schema: schema.schema_id),
        "partition_specs": _deduplicated(
            changed, "partition-specs", changed.partition_specs, lambda spec: spec.spec_id
        ),
        "sort_orders": _deduplicated(changed, "sort-orders", changed.sort_orders, lambda order: order.order_id),
    }


def _log_entry(entry: Any) -> SnapshotLogEntry:
    return entry if isinstance(entry, SnapshotLogEntry) else SnapshotLogEntry.model_validate(entry.model_dump())


def without_intermediate(metadata: TableMetadata, base: TableMetadata) -> TableMetadata:
    """Return metadata whose snapshot log lacks snapshots that were never current for a reader (semantics 11.2).

    Args:
        metadata: The metadata after the changes of one commit.
        base: The metadata before.
    """
    before = {snapshot.snapshot_id for snapshot in base.stored_snapshots} | {metadata.current_snapshot_id}
    log = [entry for entry in metadata.snapshot_log if entry.snapshot_id in before]
    return metadata if len(log) == len(metadata.snapshot_log) else metadata.model_copy(update={"snapshot_log": log})


def _times(base: TableMetadata, changed: TableMetadata, log: Sequence[SnapshotLogEntry]) -> dict[str, Any]:
    """Return the snapshot log and the time of the last update, neither before the times in the base."""
    base_entries = {(entry.snapshot_id, entry.timestamp_ms) for entry in base.snapshot_log}
    last_ms = max((entry.timestamp_ms for entry in base.snapshot_log), default=0)
    logged = []
    for entry in log:
        if (entry.snapshot_id, entry.timestamp_ms) in base_entries:
            logged.append(entry)
        else:
            last_ms = max(last_ms + 1, entry.timestamp_ms)
            logged.append(entry.model_copy(update={"timestamp_ms": last_ms}))
    updated = max([base.last_updated_ms, changed.last_updated_ms, *(entry.timestamp_ms for entry in logged)])
    return {"snapshot_log": logged, "last_updated_ms": updated}


def _deduplicated(
    metadata: TableMetadata, field: str, items: Iterable[_Item], id_of: Callable[[_Item], int]
) -> list[_Item]:
    """Return the items without duplicates, since pyiceberg adds items that are already present.

    Raises:
        ValidationError: Different items have the same id.
    """
    by_id: dict[int, _Item] = {}
    for item in items:
        if by_id.setdefault(id_of(item), item) != item:
            raise ValidationError(f"{metadata.location}: {field} already has a different item with id {id_of(item)}")
    return list(by_id.values())


def _with_expressions(metadata: TableMetadataV4) -> TableMetadataV4:
    if metadata.layout_revision is not None:
        for spec in metadata.partition_specs:
            metadata = add_expressions(metadata, spec)
    check_expressions(metadata, metadata.location)
    return metadata


# -- Updates and requirements of a change, for REST catalogs ----------------------------------------------------------


# The lists of a metadata file whose elements have ids, and the keys of these ids.
_ID_KEYS = {
    "schemas": "schema-id",
    "partition-specs": "spec-id",
    "sort-orders": "order-id",
    "snapshots": "snapshot-id",
    "statistics": "snapshot-id",
    "partition-statistics": "snapshot-id",
    "encryption-keys": "key-id",
}
_MAPS = {"properties", "refs"}
# The catalog derives these from the updates.
_DERIVED = {
    "last-updated-ms",
    "last-sequence-number",
    "last-column-id",
    "last-partition-id",
    "next-row-id",
    "current-snapshot-id",
    "snapshot-log",
    "metadata-log",
    "schema",
    "partition-spec",
}
# Snapshots, what snapshots use, and the branches and tags that lead to them.
_USED_BY_REFS = {"snapshots", "schemas", "partition-specs"}
_CURRENT = {"schemas": "current-schema-id", "partition-specs": "default-spec-id"}
# The id of the element that the same request has added last.
_LAST_ADDED = -1


class Part(NamedTuple):
    """A part of table metadata that a change replaces as a whole: a field, or the element of a list or map.

    Attributes:
        key: the element's id or name; None for a field.
    """

    field: str
    key: int | str | None = None


Changes = dict[Part, Any]


def changed_parts(base: TableMetadata | None, new: TableMetadata) -> Changes:
    """Return the JSON of the parts that differ, as in `new`; None for parts that `new` lacks.

    Args:
        base: the metadata before the changes; None for a new table.
        new: the metadata with the changes.
    """
    before, after = {} if base is None else _parts(base), _parts(new)
    different = (part for part in before | after if before.get(part) != after.get(part))
    return {part: after.get(part) for part in different}


def has_changes(metadata: TableMetadata, changes: Changes) -> bool:
    """Return whether all changed parts of table metadata match the expected changes."""
    parts = _parts(metadata)
    return all(parts.get(part) == value for part, value in changes.items())


def updates_of(changes: Changes, new: TableMetadata) -> list[dict[str, Any]]:
    """Return the updates of the REST protocol that make the changes.

    Args:
        changes: the changes.
        new: the metadata with the changes.

    Raises:
        UnsupportedError: the protocol has no update for a changed field.
    """
    if unknown := next((part.field for part in changes if part.field not in _UPDATES), None):
        raise UnsupportedError(f"{new.location}: REST catalogs have no update that changes {unknown}")
    return [update for field, updates in _UPDATES.items() for update in updates(_FieldChanges(field, changes, new))]


def requirements_of(base: TableMetadata | None, changes: Changes) -> list[dict[str, Any]]:
    """Return the requirements of changes: the parts that they are based on must equal those in `base`.

    Without a base, there must be no table.

    A part that is removed must not have come into use, so all branches and tags must be the same as in `base`. The
    protocol can't require that there are no others.
    """
    required: list[dict[str, Any]] = []
    if base is None:
        return [{"type": "assert-create"}]
    if base.table_uuid is not None:
        required.append({"type": "assert-table-uuid", "uuid": str(base.table_uuid)})
    removing = {part.field for part, value in changes.items() if value is None}
    fields = {part.field for part in changes} | {_CURRENT[field] for field in removing if field in _CURRENT}
    for field, (name, value) in _ASSERTED.items():
        if field in fields:
            required.append({"type": f"assert-{name}", name: value(base)})
    names = {str(part.key) for part in changes if part.field == "refs"}
    for name in sorted(names | base.refs.keys() if removing & _USED_BY_REFS else names):
        ref = base.refs.get(name)
        asserted = {"ref": name, "snapshot-id": None if ref is None else ref.snapshot_id}
        required.append({"type": "assert-ref-snapshot-id"} | asserted)
    return required


class _FieldChanges(NamedTuple):
    """The changes of one field."""

    field: str
    changes: Changes
    new: TableMetadata

    def elements(self) -> Mapping[Any, Any]:
        """Return the changed elements by id or name, sorted; None for removed ones."""
        return {part.key: value for part, value in sorted(self.changes.items()) if part.field == self.field}

    def set(self) -> dict[Any, Any]:
        return {key: value for key, value in self.elements().items() if value is not None}

    def removed(self) -> list[Any]:
        return [key for key, value in self.elements().items() if value is None]

    def of(self, field: str) -> _FieldChanges:
        """Return the changes of another field."""
        return self._replace(field=field)


def _field_update(action: str, key: str) -> Callable[[_FieldChanges], Iterator[dict[str, Any]]]:
    def updates(changes: _FieldChanges) -> Iterator[dict[str, Any]]:
        for value in changes.set().values():
            yield {"action": action, key: value}

    return updates


def _selection(action: str, key: str, elements: str) -> Callable[[_FieldChanges], Iterator[dict[str, Any]]]:
    """Return a function that yields the update that makes an element the current one."""

    def updates(changes: _FieldChanges) -> Iterator[dict[str, Any]]:
        for selected in changes.set().values():
            added = changes.of(elements).set()
            yield {"action": action, key: _LAST_ADDED if selected == max(added, default=None) else selected}

    return updates


def _additions(
    action: str, key: str, removal: tuple[str, str] | None = None
) -> Callable[[_FieldChanges], Iterator[dict[str, Any]]]:
    """Return a function that yields the updates that add elements, and the one that removes elements.

    Args:
        removal: the action that removes elements, and its key for their ids; None if there is no such action.
    """

    def updates(changes: _FieldChanges) -> Iterator[dict[str, Any]]:
        for element in changes.set().values():
            yield {"action": action, key: element}
        if ids := changes.removed():
            if removal is None:
                raise UnsupportedError(f"{changes.new.location}: {changes.field} can't be removed in a REST catalog")
            yield {"action": removal[0], removal[1]: ids}

    return updates


def _schemas(changes: _FieldChanges) -> Iterator[dict[str, Any]]:
    for update in _additions("add-schema", "schema", ("remove-schemas", "schema-ids"))(changes):
        yield update | ({"last-column-id": changes.new.last_column_id} if "schema" in update else {})


def _snapshots(changes: _FieldChanges) -> Iterator[dict[str, Any]]:
    added = changes.set()
    # Catalogs refuse a snapshot with a lower sequence number than an earlier one.
    in_order = (snapshot.snapshot_id for snapshot in changes.new.stored_snapshots)
    for snapshot_id in filter(added.__contains__, in_order):
        yield {"action": "add-snapshot", "snapshot": added[snapshot_id]}
    if snapshot_ids := changes.removed():
        yield {"action": "remove-snapshots", "snapshot-ids": snapshot_ids}


def _properties(changes: _FieldChanges) -> Iterator[dict[str, Any]]:
    if values := changes.set():
        yield {"action": "set-properties", "updates": values}
    if names := changes.removed():
        yield {"action": "remove-properties", "removals": names}


def _refs(changes: _FieldChanges) -> Iterator[dict[str, Any]]:
    for name, ref in changes.set().items():
        yield {"action": "set-snapshot-ref", "ref-name": name, **ref}
    for name in changes.removed():
        yield {"action": "remove-snapshot-ref", "ref-name": name}


def _statistics(changes: _FieldChanges) -> Iterator[dict[str, Any]]:
    for snapshot_id, file in changes.set().items():
        yield {"action": f"set-{changes.field}", "snapshot-id": snapshot_id, changes.field: file}
    for snapshot_id in changes.removed():
        yield {"action": f"remove-{changes.field}", "snapshot-id": snapshot_id}


def _encryption_keys(changes: _FieldChanges) -> Iterator[dict[str, Any]]:
    for element in changes.set().values():
        yield {"action": "add-encryption-key", "encryption-key": element}
    for key_id in changes.removed():
        yield {"action": "remove-encryption-key", "key-id": key_id}


# In the order of requests: an update follows the updates of what it refers to.
_UPDATES: dict[str, Callable[[_FieldChanges], Iterator[dict[str, Any]]]] = {
    "table-uuid": _field_update("assign-uuid", "uuid"),
    "format-version": _field_update("upgrade-format-version", "format-version"),
    "location": _field_update("set-location", "location"),
    "schemas": _schemas,
    "current-schema-id": _selection("set-current-schema", "schema-id", "schemas"),
    "partition-specs": _additions("add-spec", "spec", ("remove-partition-specs", "spec-ids")),
    "default-spec-id": _selection("set-default-spec", "spec-id", "partition-specs"),
    "sort-orders": _additions("add-sort-order", "sort-order"),
    "default-sort-order-id": _selection("set-default-sort-order", "sort-order-id", "sort-orders"),
    "properties": _properties,
    "encryption-keys": _encryption_keys,
    "snapshots": _snapshots,
    "refs": _refs,
    "statistics": _statistics,
    "partition-statistics": _statistics,
}
_ASSERTED: dict[str, tuple[str, Callable[[TableMetadata], int]]] = {
    "schemas": ("last-assigned-field-id", lambda metadata: metadata.last_column_id),
    "current-schema-id": ("current-schema-id", lambda metadata: metadata.current_schema_id),
    "partition-specs": ("last-assigned-partition-id", lambda metadata: metadata.last_partition_id),
    "default-spec-id": ("default-spec-id", lambda metadata: metadata.default_spec_id),
    "default-sort-order-id": ("default-sort-order-id", lambda metadata: metadata.default_sort_order_id),
}


def _parts(metadata: TableMetadata) -> Changes:
    # A changed copy has the fields that the file left to defaults.
    document = json.loads(serialize_table_metadata(metadata.model_copy(update={"location": metadata.location})))
    parts: Changes = {}
    for field, value in document.items():
        if field in _ID_KEYS:
            # Java refuses nulls where it accepts absent values.
            present = [{key: item for key, item in element.items() if item is not None} for element in value]
            # Schemas of early writers have no id, which means 0.
            parts |= {Part(field, element.get(_ID_KEYS[field], 0)): element for element in present}
        elif field in _MAPS:
            parts |= {Part(field, key): element for key, element in value.items()}
        elif field not in _DERIVED and value not in ([], {}):
            parts[Part(field)] = value
    return parts
