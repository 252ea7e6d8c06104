"""Refuse schemas, partition specs and sort orders that could not be read once they were written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyiceberg.transforms import UnknownTransform

from sparkmeta.errors import CorruptFileError, ValidationError
from sparkmeta.spec.partitioning import (
    partition_spec_from_json,
    partition_spec_to_json,
    sort_order_from_json,
    sort_order_to_json,
)
from sparkmeta.spec.schema import schema_from_json, schema_to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.sorting import SortField, SortOrder


def refuse_unreadable(
    location: str,
    schemas: Iterable[Schema] = (),
    specs: Iterable[PartitionSpec] = (),
    sort_orders: Iterable[SortOrder] = (),
) -> None:
    """Raise ValidationError if readers would refuse a part of new metadata, or take a transform for an unknown one.

    Args:
        location: The table's location, for error messages.
        schemas: New schemas.
        specs: New partition specs.
        sort_orders: New sort orders.
    """
    for schema in schemas:
        _read(location, schema_from_json, schema_to_json(schema), "schema")
    for spec in specs:
        read = _read(location, partition_spec_from_json, partition_spec_to_json(spec), "partition spec")
        _refuse_unknown(location, spec.fields, read.fields, "partition spec")
    for order in sort_orders:
        read = _read(location, sort_order_from_json, sort_order_to_json(order), "sort order")
        _refuse_unknown(location, order.fields, read.fields, "sort order")


def _read(location: str, reader: Callable[[dict[str, Any]], Any], data: dict[str, Any], part: str) -> Any:
    try:
        return reader(data)
    except CorruptFileError as error:
        raise ValidationError(
            f"{location}: {error.field} of the new {part} is {error.value}: {error.problem}"
        ) from error


def _refuse_unknown(
    location: str,
    fields: Iterable[PartitionField | SortField],
    read: Iterable[PartitionField | SortField],
    part: str,
) -> None:
    for place, (field, same) in enumerate(zip(fields, read, strict=True)):
        if isinstance(same.transform, UnknownTransform) and not isinstance(field.transform, UnknownTransform):
            raise ValidationError(
                f"{location}: fields[{place}].transform of the new {part} is '{field.transform}': there is no such "
                "transform"
            )
