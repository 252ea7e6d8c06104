"""Express a change of table metadata as updates and requirements of the REST catalog protocol."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from sparkmeta.errors import UnsupportedError
from sparkmeta.spec.metadata import serialize_table_metadata

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from sparkmeta.spec.metadata import TableMetadata

# The lists of a metadata file whose elements have ids, by the keys of these.
_ID_KEYS = {
    "schemas": "schema-id",
    "partition-specs": "spec-id",
    "sort-orders": "order-id",
    "snapshots": "snapshot-id",
    "statistics": "snapshot-id",
    "partition-statistics": "snapshot-id",
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
# Snapshots use these, or are these, and branches and tags lead to snapshots.
_USED_BY_REFS = {"snapshots", "schemas", "partition-specs"}
_CURRENT = {"schemas": "current-schema-id", "partition-specs": "default-spec-id"}
# What a catalog sets to the element that the same request has added last.
_LAST_ADDED = -1


class Part(NamedTuple):
    """A part of table metadata that a change replaces as a whole: a field, or the element of a list or map.

    Attributes:
        key: the element's id or name; None for a field.
    """

    field: str
    key: int | str | None = None


Changes = dict[Part, Any]


def changed_parts(base: TableMetadata, new: TableMetadata) -> Changes:
    """Return the JSON of the parts that differ, as in `new`; None for those that it lacks."""
    before, after = _parts(base), _parts(new)
    different = (part for part in before | after if before.get(part) != after.get(part))
    return {part: after.get(part) for part in different}


def has_changes(metadata: TableMetadata, changes: Changes) -> bool:
    """Return whether all changed parts of table metadata are as the changes say."""
    parts = _parts(metadata)
    return all(parts.get(part) == value for part, value in changes.items())


def updates_of(changes: Changes, new: TableMetadata) -> list[dict[str, Any]]:
    """Return the updates that make changes.

    Args:
        changes: the changes.
        new: the metadata with the changes.

    Raises:
        UnsupportedError: the protocol has no update for a changed field.
    """
    if unknown := next((part.field for part in changes if part.field not in _UPDATES), None):
        raise UnsupportedError(f"{new.location}: REST catalogs have no update that changes {unknown}")
    return [update for field, updates in _UPDATES.items() for update in updates(_Changed(field, changes, new))]


def requirements_of(base: TableMetadata, changes: Changes) -> list[dict[str, Any]]:
    """Return the requirements of changes: the parts that they are based on must be as in `base`.

    What is removed must not have come into use, so all branches and tags must be as in `base`. The protocol can't
    require that there is no other.
    """
    required: list[dict[str, Any]] = []
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


class _Changed(NamedTuple):
    """The changes of one field."""

    field: str
    changes: Changes
    new: TableMetadata

    def elements(self) -> Mapping[Any, Any]:
        """Return the changed elements by id or name, sorted; None for those that are removed."""
        return {part.key: value for part, value in sorted(self.changes.items()) if part.field == self.field}

    def set(self) -> dict[Any, Any]:
        return {key: value for key, value in self.elements().items() if value is not None}

    def removed(self) -> list[Any]:
        return [key for key, value in self.elements().items() if value is None]

    def of(self, field: str) -> _Changed:
        """Return the changes of another field."""
        return self._replace(field=field)


def _field_update(action: str, key: str) -> Callable[[_Changed], Iterator[dict[str, Any]]]:
    def updates(changed: _Changed) -> Iterator[dict[str, Any]]:
        for value in changed.set().values():
            yield {"action": action, key: value}

    return updates


def _selection(action: str, key: str, elements: str) -> Callable[[_Changed], Iterator[dict[str, Any]]]:
    """Return the update that selects the current one of some elements."""

    def updates(changed: _Changed) -> Iterator[dict[str, Any]]:
        for selected in changed.set().values():
            added = changed.of(elements).set()
            yield {"action": action, key: _LAST_ADDED if selected == max(added, default=None) else selected}

    return updates


def _additions(
    action: str, key: str, removal: tuple[str, str] | None = None
) -> Callable[[_Changed], Iterator[dict[str, Any]]]:
    """Return the updates that add elements, and the one that removes some.

    Args:
        removal: the action that removes elements, and its key of their ids; None if there is none.
    """

    def updates(changed: _Changed) -> Iterator[dict[str, Any]]:
        for element in changed.set().values():
            yield {"action": action, key: element}
        if ids := changed.removed():
            if removal is None:
                raise UnsupportedError(f"{changed.new.location}: {changed.field} can't be removed in a REST catalog")
            yield {"action": removal[0], removal[1]: ids}

    return updates


def _schemas(changed: _Changed) -> Iterator[dict[str, Any]]:
    for update in _additions("add-schema", "schema", ("remove-schemas", "schema-ids"))(changed):
        yield update | ({"last-column-id": changed.new.last_column_id} if "schema" in update else {})


def _snapshots(changed: _Changed) -> Iterator[dict[str, Any]]:
    added = changed.set()
    # Catalogs refuse a snapshot whose sequence number is lower than that of an earlier one.
    in_order = (snapshot.snapshot_id for snapshot in changed.new.snapshots)
    for snapshot_id in filter(added.__contains__, in_order):
        yield {"action": "add-snapshot", "snapshot": added[snapshot_id]}
    if snapshot_ids := changed.removed():
        yield {"action": "remove-snapshots", "snapshot-ids": snapshot_ids}


def _properties(changed: _Changed) -> Iterator[dict[str, Any]]:
    if values := changed.set():
        yield {"action": "set-properties", "updates": values}
    if names := changed.removed():
        yield {"action": "remove-properties", "removals": names}


def _refs(changed: _Changed) -> Iterator[dict[str, Any]]:
    for name, ref in changed.set().items():
        yield {"action": "set-snapshot-ref", "ref-name": name, **ref}
    for name in changed.removed():
        yield {"action": "remove-snapshot-ref", "ref-name": name}


def _statistics(changed: _Changed) -> Iterator[dict[str, Any]]:
    for snapshot_id, file in changed.set().items():
        yield {"action": f"set-{changed.field}", "snapshot-id": snapshot_id, changed.field: file}
    for snapshot_id in changed.removed():
        yield {"action": f"remove-{changed.field}", "snapshot-id": snapshot_id}


# In the order of requests: what an update refers to comes before it.
_UPDATES: dict[str, Callable[[_Changed], Iterator[dict[str, Any]]]] = {
    "format-version": _field_update("upgrade-format-version", "format-version"),
    "location": _field_update("set-location", "location"),
    "schemas": _schemas,
    "current-schema-id": _selection("set-current-schema", "schema-id", "schemas"),
    "partition-specs": _additions("add-spec", "spec", ("remove-partition-specs", "spec-ids")),
    "default-spec-id": _selection("set-default-spec", "spec-id", "partition-specs"),
    "sort-orders": _additions("add-sort-order", "sort-order"),
    "default-sort-order-id": _selection("set-default-sort-order", "sort-order-id", "sort-orders"),
    "properties": _properties,
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
