"""Choose the metrics of each column in data files from the table properties write.metadata.metrics.*, as in Java."""

from __future__ import annotations

import logging
import re
from itertools import islice
from typing import TYPE_CHECKING, Final

from pyiceberg.schema import index_by_name
from pyiceberg.transforms import BucketTransform, UnknownTransform, VoidTransform
from pyiceberg.types import ListType, MapType, PrimitiveType, StructType

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType

    from sparkmeta.spec.metadata import TableMetadata

_log = logging.getLogger(__name__)

NO_METRICS: Final = -1
COUNTS_ONLY: Final = 0
FULL: Final = 1 << 31
"""A mode is the maximum length of bounds in characters or bytes; `NO_METRICS` or `COUNTS_ONLY` if there are none."""

DEFAULT_LENGTH: Final = 16
"""The default maximum length of bounds in characters or bytes."""

_DEFAULT_KEY: Final = "write.metadata.metrics.default"
_COLUMN_KEY: Final = "write.metadata.metrics.column."
_MAX_COLUMNS_KEY: Final = "write.metadata.metrics.max-inferred-column-defaults"
_MAX_COLUMNS: Final = 100
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_TRUNCATE: Final = re.compile(rf"truncate\(({_NUMBER.pattern})\)")
_MODES: Final = {"none": NO_METRICS, "counts": COUNTS_ONLY, "full": FULL}


def metrics_modes(metadata: TableMetadata, schema: Schema) -> dict[int, int]:
    """Return the mode of each field of a schema by field id.

    As in Java, a property with an invalid value is ignored with a warning.
    """
    properties = metadata.properties
    modes: dict[int, int] = {}
    if _DEFAULT_KEY in properties:
        default = _mode(properties, _DEFAULT_KEY, DEFAULT_LENGTH)
    elif _count(metadata.schema().as_struct()) <= (limit := _max_columns(properties)):
        default = DEFAULT_LENGTH
    else:
        default = NO_METRICS
        modes = dict.fromkeys(islice(_primitives(metadata.schema().as_struct()), limit), DEFAULT_LENGTH)
    sort_column_mode = DEFAULT_LENGTH if default in (NO_METRICS, COUNTS_ONLY) else default
    for field in metadata.sort_order().fields:
        if not isinstance(field.transform, BucketTransform | VoidTransform | UnknownTransform):
            modes[field.source_id] = sort_column_mode
    ids = index_by_name(schema)
    for key in properties:
        name = key.removeprefix(_COLUMN_KEY)
        if key.startswith(_COLUMN_KEY) and name in ids:
            modes[ids[name]] = _mode(properties, key, default)
    return {field_id: modes.get(field_id, default) for field_id in schema.field_ids}


def _count(kind: IcebergType) -> int:
    """Return the number of fields that Java compares with the limit.

    They are the structs and primitives in structs, and the primitives of lists and maps. A map's key counts, whatever
    it is, if the value is primitive.
    """
    match kind:
        case StructType():
            return sum(isinstance(child, StructType | PrimitiveType) + _count(child) for _, child in _children(kind))
        case ListType():
            return isinstance(kind.element_type, PrimitiveType) + _count(kind.element_type)
        case MapType():
            key_and_value = 2 if isinstance(kind.value_type, PrimitiveType) else 0
            return key_and_value + _count(kind.key_type) + _count(kind.value_type)
    return 0


def _primitives(kind: IcebergType) -> Iterator[int]:
    """Yield the ids of primitive fields: fields directly in a type before fields that are nested deeper."""
    children = _children(kind)
    yield from (field_id for field_id, child in children if isinstance(child, PrimitiveType))
    for _, child in children:
        yield from _primitives(child)


def _children(kind: IcebergType) -> list[tuple[int, IcebergType]]:
    match kind:
        case StructType():
            return [(field.field_id, field.field_type) for field in kind.fields]
        case ListType():
            return [(kind.element_id, kind.element_type)]
        case MapType():
            return [(kind.key_id, kind.key_type), (kind.value_id, kind.value_type)]
    return []


def _mode(properties: Mapping[str, str], key: str, fallback: int) -> int:
    text = properties[key].lower()
    if text in _MODES:
        return _MODES[text]
    if (match := _TRUNCATE.fullmatch(text)) and int(match[1]) > 0:
        return int(match[1])
    _log.warning("the table property %s is %r, which is not a metrics mode: it is ignored", key, properties[key])
    return fallback


def _max_columns(properties: Mapping[str, str]) -> int:
    text = properties.get(_MAX_COLUMNS_KEY, str(_MAX_COLUMNS))
    if _NUMBER.fullmatch(text):
        return int(text)
    _log.warning("the table property %s is %r: expected a whole number", _MAX_COLUMNS_KEY, text)
    return _MAX_COLUMNS
