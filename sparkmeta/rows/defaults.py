"""Defaults of columns as Arrow arrays. Spark tasks import this module, so it imports little."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sparkmeta.expr.arrays import default_scalar
from sparkmeta.rows.resolve import NESTED, IcebergColumn

if TYPE_CHECKING:
    from collections.abc import Iterable


def repeated_default(column: IcebergColumn, kind: pa.DataType, length: int) -> pa.Array:
    """Return an array that repeats a column's default. Structs of the Arrow type may lack fields of type unknown."""
    if column.type not in NESTED:
        return pa.repeat(default_scalar(column.default, kind), length)
    # Arrow does not repeat lists zero times.
    return _array(column, kind).take(pa.repeat(pa.scalar(0, pa.int64()), length))


def _array(column: IcebergColumn, kind: pa.DataType) -> pa.Array:
    """Return an array of one element, the default."""
    if column.default is None:
        return pa.nulls(1, kind)
    match column.type:
        case "struct":
            values, children = dict(column.default), column.children
            if len(children) != kind.num_fields:
                children = tuple(child for child in children if child.type != "unknown")
            fields = [
                _array(_with(child, values.get(child.id, child.default)), field.type)
                for child, field in zip(children, kind, strict=True)
            ]
            return pa.StructArray.from_arrays(fields, fields=list(kind))
        case "list":
            elements = _arrays(column.children[0], column.default, kind.value_type)
            return pa.ListArray.from_arrays([0, len(elements)], elements, type=kind)
        case "map":
            pairs = zip(*column.default, strict=True) if column.default else ((), ())
            types = kind.key_type, kind.item_type
            keys, items = map(_arrays, column.children, pairs, types)
            return pa.MapArray.from_arrays([0, len(keys)], keys, items, type=kind)
    return pa.repeat(default_scalar(column.default, kind), 1)


def _arrays(column: IcebergColumn, values: Iterable[Any], kind: pa.DataType) -> pa.Array:
    return pa.concat_arrays([pa.nulls(0, kind), *(_array(_with(column, value), kind) for value in values)])


def _with(column: IcebergColumn, default: Any) -> IcebergColumn:
    return replace(column, default=default)
