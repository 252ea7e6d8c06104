"""Which metrics of a column writers keep: the table properties `write.metadata.metrics.*`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyiceberg.types import ListType, MapType, NestedField, PrimitiveType, StructType

from sparkmeta.errors import ValidationError, shown

if TYPE_CHECKING:
    from sparkmeta.spec.metadata import TableMetadata

_DEFAULT = "write.metadata.metrics.default"
_MOST_INFERRED = "write.metadata.metrics.max-inferred-column-defaults"
_COLUMN = "write.metadata.metrics.column."
_TRUNCATE = re.compile(r"truncate\((\d+)\)")


@dataclass(frozen=True)
class MetricsMode:
    """What is kept of a column.

    Attributes:
        counts: whether counts are.
        bounds: whether bounds are.
        length: the most characters or bytes of a bound; None for no limit.
    """

    counts: bool = True
    bounds: bool = True
    length: int | None = None


_NONE = MetricsMode(counts=False, bounds=False)
_MODES = {"none": _NONE, "counts": MetricsMode(bounds=False), "full": MetricsMode()}
_TRUNCATED = MetricsMode(length=16)


def metrics_modes(metadata: TableMetadata) -> dict[int, MetricsMode]:
    """Return the mode of each primitive column of the current schema, by field id.

    Without a default of the table, bounds are truncated to 16 characters, but tables with many columns keep nothing of
    those after the first hundred (`max-inferred-column-defaults`). Columns of the sort order keep at least truncated
    bounds.

    Raises:
        ValidationError: a property has an invalid value.
    """
    properties, schema = metadata.properties, metadata.schema()
    columns = [*_breadth_first(list(schema.fields))]
    default = properties.get(_DEFAULT)
    most = properties.get(_MOST_INFERRED, "100")
    if not most.isdecimal():
        raise ValidationError(f"the table property {_MOST_INFERRED} is {shown(most)}: it takes a whole number")
    inferred = len(columns) if default is not None else int(most)
    common = _TRUNCATED if default is None else _mode(_DEFAULT, default)
    modes = {field.field_id: common if place < inferred else _NONE for place, field in enumerate(columns)}
    for field in metadata.sort_order().fields:
        if field.source_id in modes and not modes[field.source_id].bounds:
            modes[field.source_id] = _TRUNCATED
    for name, value in properties.items():
        if name.startswith(_COLUMN):
            by_name = {schema.find_column_name(field_id): field_id for field_id in modes}
            field_id = by_name.get(name.removeprefix(_COLUMN))
            if field_id is not None:
                modes[field_id] = _mode(name, value)
    return modes


def _mode(name: str, text: str) -> MetricsMode:
    value = text.strip().lower()
    if value in _MODES:
        return _MODES[value]
    truncated = _TRUNCATE.fullmatch(value)
    if truncated is None or not int(truncated[1]):
        what = "it takes none, counts, truncate(<length>) or full"
        raise ValidationError(f"the table property {name} is {shown(text)}: {what}")
    return MetricsMode(length=int(truncated[1]))


def _breadth_first(fields: list[NestedField]) -> Iterator[NestedField]:
    """Yield the primitive columns of structs, those of a level before those nested in it."""
    while fields:
        nested: list[NestedField] = []
        for field in fields:
            if isinstance(field.field_type, PrimitiveType):
                yield field
            elif isinstance(field.field_type, StructType):
                nested += field.field_type.fields
            elif isinstance(field.field_type, ListType):
                nested.append(field.field_type.element_field)
            elif isinstance(field.field_type, MapType):
                nested += [field.field_type.key_field, field.field_type.value_field]
        fields = nested
