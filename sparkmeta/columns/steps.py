"""Transforms of numbers and times as steps on a ladder of integers."""

from __future__ import annotations

from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from pyiceberg.transforms import DayTransform, HourTransform, MonthTransform, TimeTransform, TruncateTransform
from pyiceberg.types import DateType, DecimalType, LongType

if TYPE_CHECKING:
    from pyiceberg.types import PrimitiveType

_EXACT: Final = Context(prec=76)
_HOUR_SECONDS: Final = 3600
_DAY_SECONDS: Final = 86_400
_TICKS_PER_SECOND: Final = {
    "timestamp": 1_000_000,
    "timestamptz": 1_000_000,
    "timestamp_ns": 1_000_000_000,
    "timestamptz_ns": 1_000_000_000,
}


class Steps:
    """A transform of a column type whose values are integers in disguise, in order.

    Args:
        transform: truncate, year, month, day or hour.
        source: the column's type: int, long, decimal (its unscaled value), date (days) or a timestamp (its ticks).
    """

    def __init__(self, transform: TruncateTransform[Any] | TimeTransform[Any], source: PrimitiveType) -> None:
        self.transform = transform
        self.source = source
        self.scale = source.scale if isinstance(source, DecimalType) else None
        of_day = isinstance(transform, DayTransform) and isinstance(source, DateType)
        self.wrote_negatives_wrong = isinstance(transform, TimeTransform) and not of_day

    def ordinal(self, value: Any) -> int:
        """The integer that a literal of the column stands for."""
        return int(value.scaleb(self.scale, _EXACT)) if self.scale is not None else value

    def step(self, ordinal: int) -> int:
        """The transform of an integer; the integer need not be within the column type's range."""
        if isinstance(self.transform, TruncateTransform):
            return ordinal - ordinal % self.transform.width
        if isinstance(self.source, DateType):
            return self._of_day(ordinal)
        per_second = _TICKS_PER_SECOND[str(self.source)]
        if isinstance(self.transform, HourTransform):
            return ordinal // (_HOUR_SECONDS * per_second)
        return self._of_day(ordinal // (_DAY_SECONDS * per_second))

    def _of_day(self, day: int) -> int:
        if isinstance(self.transform, DayTransform):
            return day
        unit = "M" if isinstance(self.transform, MonthTransform) else "Y"
        return int(np.datetime64(day, "D").astype(f"datetime64[{unit}]").astype(np.int64))

    def holds(self, step: int) -> bool:
        """Whether the partition's type can hold a step; writers have wrapped around where it can't."""
        if isinstance(self.source, DecimalType):
            return abs(step) < int(10**self.source.precision)
        bits = 63 if isinstance(self.transform, TruncateTransform) and isinstance(self.source, LongType) else 31
        return -(1 << bits) <= step < 1 << bits

    def result(self, step: int) -> int | Decimal:
        """The partition value that a step is."""
        return step if self.scale is None else Decimal(step).scaleb(-self.scale, _EXACT)
