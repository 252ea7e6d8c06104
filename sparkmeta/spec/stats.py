"""Define `content_stats` (field 149 of a content entry), the statistics of each column's values.

The stats of a column or expression with id `f` are a struct with field id 10000 + 200 * f. The ids of its children are
at fixed offsets from that. The name of the struct is `f` in decimal, which does not change if the column is renamed.
"""

from __future__ import annotations

import pyarrow as pa

from sparkmeta.spec.entry import FieldSpec

CONTENT_STATS_ID = 149

_BASE, _STEP = 10_000, 200

# Child -> offset of its field id, and type. None is the type of the column's values.
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
    """Return the field id of the struct with a column's stats."""
    return _BASE + _STEP * field_id


def stats_children(field_id: int, bound: pa.DataType) -> tuple[FieldSpec, ...]:
    """Return the children of the struct with a column's stats, given the type of its bounds."""
    base = stats_struct_id(field_id)
    return tuple(FieldSpec(base + offset, name, kind or bound) for name, (offset, kind) in _CHILDREN.items())


def full_stats_struct(bound: pa.DataType) -> pa.StructType:
    """Return the Arrow type of a column's stats with all children, given the type of its bounds."""
    return pa.struct([pa.field(name, kind or bound) for name, (_, kind) in _CHILDREN.items()])
