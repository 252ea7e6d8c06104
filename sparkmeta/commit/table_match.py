"""Check that a table can adopt another table's files unchanged, and map between their ids.

Data files identify columns by field id, so each id must mean the same in both tables. Partition specs, sort orders and
expressions are the same if they have the same fields, regardless of their ids.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from pyiceberg.schema import Schema, index_by_id
from pyiceberg.transforms import VoidTransform
from pyiceberg.types import PrimitiveType

from sparkmeta.columns.bounds import reads_as
from sparkmeta.errors import ValidationError
from sparkmeta.manifests.v4.adopt import Adoption, TableMatch
from sparkmeta.spec.metadata import refuse_encrypted
from sparkmeta.spec.partitioning import has_unknown_values, partition_sources

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.table.sorting import SortOrder
    from pyiceberg.types import NestedField

    from sparkmeta.state import TableState

# Types to which narrower types can be promoted on read (table spec, Schema Evolution).
_WIDER = ("long", "double", "decimal")
_NAME_MAPPING = "schema.name-mapping.default"

T = TypeVar("T")


def table_match(source: TableState, target: TableState, spec_ids: Collection[int]) -> TableMatch:
    """Return the ids of one table in another.

    Args:
        source: the table with the entries.
        target: the table that adopts them.
        spec_ids: the partition specs of the entries.

    Raises:
        ValidationError: a column or a partition spec of the source means something else in the target.
        UnsupportedError: the source is encrypted.
    """
    refuse_encrypted(source.metadata, "and its files can't be added to another")
    _check_schemas(source, target)
    _check_name_mapping(source, target)
    specs = _specs(source, target, spec_ids)
    sort_orders = _same(_orders(source), _orders(target), None)
    return TableMatch(source.metadata.location, frozenset(source.types.primitive_fields), specs, sort_orders)


def adoption(source: TableState, target: TableState, spec_ids: Collection[int]) -> Adoption:
    """Return the converter from entries of one table to those of a tree. See `table_match` for errors.

    Args:
        source: the table with the entries, including expressions for its partition fields.
        target: the tree that adopts them.
        spec_ids: the partition specs of the entries.
    """
    match = table_match(source, target, spec_ids)
    columns = source.types.primitive_fields.keys() & target.types.primitive_fields.keys()
    stats = {column: column for column in columns}
    for spec_id, same in match.specs.items():
        pairs = zip(source.types.tuple_sources[spec_id], target.types.tuple_sources[same], strict=True)
        stats |= {of_target: of_source for (_, of_source), (_, of_target) in pairs}
    return Adoption(match.table, match.columns, match.specs, match.sort_orders, target.types.stats_types, stats)


# -- columns --------------------------------------------------------------------------------------------------------


def _check_schemas(source: TableState, target: TableState) -> None:
    theirs, ours = source.metadata.schema(), target.metadata.schema()
    places, target_places = _places(theirs), _places(ours)
    where = f"{target.metadata.location}: files of {source.metadata.location}"
    target_fields = index_by_id(ours)
    for field_id, field in sorted(index_by_id(theirs).items(), key=lambda item: _depth(item[0], places)):
        target_field = target_fields.get(field_id)
        if target_field is None:
            raise ValidationError(f"{where} have column {_text(field)}: this table's schema has no column of the id")
        difference = _difference(field, target_field)
        if difference is None and places[field_id] != target_places[field_id]:
            difference = "it is in another column"
        if difference is not None:
            raise ValidationError(
                f"{where} have column {_text(field)}, which is {_text(target_field)} in this table: {difference}"
            )
    _check_missing(source, target, where)


def _check_missing(source: TableState, target: TableState, where: str) -> None:
    """Refuse columns missing from the source's schema that its files may still have, or that the target requires."""
    known, ours = index_by_id(source.metadata.schema()), target.metadata.schema()
    target_fields, places = index_by_id(ours), _places(ours)
    for field_id, field in source.types.fields.items():
        if field_id not in known and (field_id in target_fields or field_id > target.metadata.last_column_id):
            use = f"is {_text(target_fields[field_id])} in" if field_id in target_fields else "will be a new column of"
            raise ValidationError(f"{where} may have the dropped column {_text(field)}, whose id {use} this table")
    for field_id, target_field in target_fields.items():
        in_known = places[field_id] is None or places[field_id] in known
        if field_id not in known and in_known and target_field.required and target_field.initial_default is None:
            raise ValidationError(f"{where} lack column {_text(target_field)}, which this table requires")


def _difference(field: NestedField, target_field: NestedField) -> str | None:
    theirs, ours = field.field_type, target_field.field_type
    if isinstance(theirs, PrimitiveType) and isinstance(ours, PrimitiveType):
        wider = reads_as(str(theirs), str(ours)) and str(ours).startswith(_WIDER)
        if theirs != ours and not wider:
            return f"{theirs} can't be read as {ours}"
    elif type(theirs) is not type(ours):
        return f"{theirs} can't be read as {ours}"
    if target_field.required and not field.required:
        return "this table requires it, and the files may have nulls"
    if field.initial_default != target_field.initial_default:
        return f"files without it have {field.initial_default!r} there and {target_field.initial_default!r} here"
    return None


def _places(schema: Schema) -> Mapping[int, int | None]:
    """Return the parent of each column; None for top-level ones."""
    parents = schema._lazy_id_to_parent
    return {field_id: parents.get(field_id) for field_id in index_by_id(schema)}


def _depth(field_id: int | None, places: Mapping[int, int | None]) -> int:
    return 0 if field_id is None else 1 + _depth(places[field_id], places)


def _text(field: NestedField) -> str:
    return f"{field.name} (id {field.field_id}, {field.field_type}{', required' if field.required else ''})"


def _check_name_mapping(source: TableState, target: TableState) -> None:
    theirs, ours = (state.metadata.properties.get(_NAME_MAPPING) for state in (source, target))
    if theirs is not None and _parsed(theirs) != _parsed(ours):
        raise ValidationError(
            f"{target.metadata.location}: {source.metadata.location} has the property {_NAME_MAPPING}, by which its "
            "files without field ids are read: set it to the same value in this table"
        )


def _parsed(text: str | None) -> Any:
    with suppress(ValueError):
        return None if text is None else json.loads(text)
    return text


# -- partition specs and sort orders --------------------------------------------------------------------------------


def _specs(source: TableState, target: TableState, spec_ids: Collection[int]) -> dict[int, int]:
    ours = {spec_id: _spec_fields(spec) for spec_id, spec in target.specs.items()}
    theirs = {spec_id: _spec_fields(source.specs[spec_id]) for spec_id in sorted(spec_ids)}
    where = f"{target.metadata.location}: files of {source.metadata.location}"
    for spec_id in theirs:
        unknown = next((each for each in source.specs[spec_id].fields if has_unknown_values(each.transform)), None)
        if unknown is not None:
            problem = f"whose field {unknown.name} has the unknown transform {unknown.transform}"
            raise ValidationError(f"{where} have partition spec {spec_id}, {problem}: its values can't be read")
    same = _same(theirs, ours, target.metadata.default_spec_id)
    for spec_id in theirs:
        if spec_id not in same:
            fields = _fields_text(source.specs[spec_id])
            raise ValidationError(
                f"{where} have partition spec {spec_id}, {fields}: no spec of this table has its fields"
            )
        _check_values(source, target, spec_id, same[spec_id], where)
    return same


def _check_values(source: TableState, target: TableState, spec_id: int, same: int, where: str) -> None:
    """Refuse partition values whose type differs in the target, as those of a dropped column may."""
    fields = zip(source.specs[spec_id].fields, source.types.spec_fields[spec_id], target.types.spec_fields[same],
                 strict=True)  # fmt: skip
    for field, (_, kind), (_, target_kind) in fields:
        if kind != target_kind and not isinstance(field.transform, VoidTransform) and not reads_as(kind, target_kind):
            raise ValidationError(
                f"{where} have partition spec {spec_id}, whose field {field.name} has values of type {kind}: they are "
                f"{target_kind} in this table"
            )


def _same(theirs: Mapping[int, T], ours: Mapping[int, T], default: int | None) -> dict[int, int]:
    """Map ids to the ids of equal values. Among several, prefer the default, then the lowest."""
    matches = {each: [spec_id for spec_id, other in ours.items() if other == value] for each, value in theirs.items()}
    return {each: default if default in ids else min(ids) for each, ids in matches.items() if ids}


def _spec_fields(spec: PartitionSpec) -> list[tuple[tuple[int, ...], str]]:
    sources = partition_sources(spec)
    return [(columns, str(field.transform)) for field, columns in zip(spec.fields, sources, strict=True)]


def _fields_text(spec: PartitionSpec) -> str:
    if not spec.fields:
        return "which has no fields"
    return ", ".join(f"{transform} of column {', '.join(map(str, ids))}" for ids, transform in _spec_fields(spec))


def _orders(state: TableState) -> dict[int, list[tuple[int, str, str, str]]]:
    return {order.order_id: _order_fields(order) for order in state.metadata.sort_orders}


def _order_fields(order: SortOrder) -> list[tuple[int, str, str, str]]:
    return [
        (field.source_id, str(field.transform), str(field.direction), str(field.null_order)) for field in order.fields
    ]
