"""Partitions as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyiceberg.transforms import HourTransform, MonthTransform, YearTransform
from pyiceberg.types import IntegerType

from sparkmeta.inspect.excerpt import middle_out, printable

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionField

    from sparkmeta.health.entries import PartitionFigures
    from sparkmeta.state import TableState

_PERIODS = (YearTransform, MonthTransform, HourTransform)
_MOST_CHARACTERS = 60


def partition_text(state: TableState, partition: PartitionFigures) -> str:
    """Return a partition such as `day=2026-01-31, country=NO`, shortened if it is long."""
    fields = state.specs[partition.spec_id].fields
    texts = [f"{field.name}={_value_text(field, partition.values.get(field.field_id))}" for field in fields]
    return middle_out(printable(", ".join(texts) or "whole table"), _MOST_CHARACTERS)


def _value_text(field: PartitionField, value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(field.transform, _PERIODS) and isinstance(value, int):
        return str(field.transform.to_human_string(IntegerType(), value))
    return value.hex() if isinstance(value, bytes) else str(value)
