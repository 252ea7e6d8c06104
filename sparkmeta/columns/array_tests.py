"""Tests that tasks make on Arrow arrays before rows reach Spark: what surely matches nothing need not get there.

Data, made on the driver and pickled; free of Spark and of pyiceberg. A test keeps what it can't decide.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

Source = Literal["partition", "lower_bound", "upper_bound", "contains_null"]
# (source, field id, Iceberg type name) -> the values, dates and times as numbers; None where they are of another type.
Columns = Callable[[Source, int, str], pa.Array | None]


@dataclass(frozen=True)
class ArrayTest:
    """`value >= limit` (upward) or `value <= limit`, without the equals sign where it is not inclusive.

    source, field_id: what is compared. type_name: the Iceberg type of the limit; dates and times are the numbers that
    they are stored as. waived_by: where that is null of the same field, everything passes. null_passes: null does.
    """

    source: Source
    field_id: int
    type_name: str
    upward: bool
    inclusive: bool
    limit: int | str | bytes | Any
    waived_by: Source | None = None
    null_passes: bool = True

    @property
    def key(self) -> tuple[Source, int, bool, Source | None]:
        """Equal for tests of stats or tuples that differ in the limit only."""
        return self.source, self.field_id, self.upward, self.waived_by

    def passes(self, columns: Columns) -> pa.BooleanArray | None:
        """Which values pass; None: all of them."""
        values = columns(self.source, self.field_id, self.type_name)
        waiver = None if self.waived_by is None else columns(self.waived_by, self.field_id, self.type_name)
        if values is None or (self.waived_by is not None and waiver is None):
            return None
        try:
            limit = pa.scalar(self.limit, values.type)
        except (pa.ArrowException, OverflowError):
            return None
        passed = pc.fill_null(_COMPARISONS[self.upward, self.inclusive](values, limit), self.null_passes)
        return passed if waiver is None else pc.or_(passed, waiver.is_null())


_COMPARISONS: dict[tuple[bool, bool], Callable[..., pa.BooleanArray]] = {
    (True, True): pc.greater_equal,
    (True, False): pc.greater,
    (False, True): pc.less_equal,
    (False, False): pc.less,
}


@dataclass(frozen=True)
class AllOf:
    """Every one of some tests; none: anything passes."""

    tests: tuple[ArrayTest | AnyOf, ...] = ()

    def passes(self, columns: Columns) -> pa.BooleanArray | None:
        """Which rows pass; None: all of them."""
        passed: pa.BooleanArray | None = None
        for test in self.tests:
            one = test.passes(columns)
            if one is not None:
                passed = one if passed is None else pc.and_(passed, one)
        return passed


@dataclass(frozen=True)
class AnyOf:
    """At least one of several."""

    choices: tuple[AllOf, ...]

    def passes(self, columns: Columns) -> pa.BooleanArray | None:
        passed: pa.BooleanArray | None = None
        for choice in self.choices:
            one = choice.passes(columns)
            if one is None:
                return None
            passed = one if passed is None else pc.or_(passed, one)
        return passed
