"""`content_stats` (field 149 of a content entry): what is known of each column's values, by ids of its own.

A column or expression with id `f` has the struct `f`, of id 10000 + 200 * f; its children follow at fixed offsets.
Structs are named by the decimal id, so that a renamed column changes nothing and names and ids say the same.
"""

from __future__ import annotations

import pyarrow as pa

from sparkmeta.spec.entry import FieldSpec

CONTENT_STATS_ID = 149
LARGEST_STATS_FIELD = (2**31 - 1 - 10_000) // 200 - 1
"""The largest id of a column that can have stats: ids of structs are 32-bit."""

_BASE, _STEP = 10_000, 200

# Child -> its offset, and its type; None: the type of the column's values.
_CHILDREN: dict[str, tuple[int, pa.DataType | None]] = {
    "lower_bound": (1, None),
    "upper_bound": (2, None),
    "tight_bounds": (3, pa.bool_()),
    "value_count": (4, pa.int64()),
    "null_value_count": (5, pa.int64()),
    "nan_value_count": (6, pa.int64()),
    "avg_value_size_in_bytes": (7, pa.int32()),
}

BOUNDS = ("lower_bound", "upper_bound")
COUNTS = ("value_count", "null_value_count", "nan_value_count")


def stats_struct_id(field_id: int) -> int:
    """The id of the struct of a column's stats."""
    return _BASE + _STEP * field_id


def stats_children(field_id: int, bound: pa.DataType) -> tuple[FieldSpec, ...]:
    """The children of a column's struct; `bound` is the type of its bounds."""
    base = stats_struct_id(field_id)
    return tuple(FieldSpec(base + offset, name, kind or bound) for name, (offset, kind) in _CHILDREN.items())


def full_stats_struct(bound: pa.DataType) -> pa.StructType:
    """The Arrow type of one column's stats, every child."""
    return pa.struct([pa.field(name, kind or bound) for name, (_, kind) in _CHILDREN.items()])
