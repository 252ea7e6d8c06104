"""Random columns, files and filters: hypothesis strategies, and what they mean, worked out row by row in Python."""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from pyiceberg import types as t
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    BoundEqualTo,
    BoundGreaterThan,
    BoundGreaterThanOrEqual,
    BoundIn,
    BoundIsNaN,
    BoundIsNull,
    BoundLessThan,
    BoundLessThanOrEqual,
    BoundNotEqualTo,
    BoundNotIn,
    BoundNotNaN,
    BoundNotNull,
    BoundNotStartsWith,
    BoundPredicate,
    BoundStartsWith,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNaN,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    NotEqualTo,
    NotIn,
    NotNaN,
    NotNull,
    NotStartsWith,
    Or,
    StartsWith,
)
from pyiceberg.expressions.literals import literal

from sparkmeta.expr import evaluate, sql
from sparkmeta.expr.conditions import fold

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from sparkmeta.expr.sql import Sql

DAY_MICROS = 86_400_000_000
LONGS = st.integers(-(2**63), 2**63 - 1) | st.integers(-100, 100) | st.sampled_from([-(2**63), 2**63 - 1, 0])
DAYS = st.integers(-800_000, 800_000) | st.integers(-400, 400) | st.integers(-141_440, -141_425)
MICROS = (
    LONGS
    | st.integers(-3, 3)
    | st.builds(operator.add, st.integers(-400, 400).map(DAY_MICROS.__mul__), st.integers(-2, 2))
)
NANOS = LONGS | st.builds(operator.add, st.integers(-400, 400).map((DAY_MICROS * 1000).__mul__), st.integers(-2, 2))
FLOATS = st.floats(width=32, allow_nan=False) | st.sampled_from([0.0, -0.0, math.inf, -math.inf, 1.5])
TEXTS = (
    st.text(st.sampled_from("ab\uffff\U0001f600\U0010ffff\ud7ff\x00"), max_size=6)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
    | st.text("a", max_size=20)
)
BYTES = st.binary(max_size=6) | st.lists(st.sampled_from([0, 1, 127, 128, 255]), max_size=6).map(bytes)


def _decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    limit = 10**precision - 1
    unscaled = st.integers(-limit, limit) | st.integers(-300, 300) | st.sampled_from([limit, -limit])
    return unscaled.map(lambda value: Decimal((int(value < 0), tuple(map(int, str(abs(value)))), -scale)))


VALUES: dict[t.PrimitiveType, st.SearchStrategy[Any]] = {
    t.BooleanType(): st.booleans(),
    t.IntegerType(): st.integers(-(2**31), 2**31 - 1) | st.integers(-50, 50) | st.sampled_from([-(2**31), 2**31 - 1]),
    t.LongType(): LONGS,
    t.FloatType(): FLOATS,
    t.DoubleType(): st.floats(allow_nan=False) | FLOATS,
    t.DecimalType(9, 2): _decimals(9, 2),
    t.DecimalType(38, 10): _decimals(38, 10),
    t.DateType(): DAYS,
    t.TimeType(): st.integers(0, DAY_MICROS - 1),
    t.TimestampType(): MICROS,
    t.TimestamptzType(): MICROS,
    t.TimestampNanoType(): NANOS,
    t.TimestamptzNanoType(): NANOS,
    t.StringType(): TEXTS,
    t.UUIDType(): st.binary(min_size=16, max_size=16)
    | st.lists(st.sampled_from([0, 127, 128, 255]), min_size=16, max_size=16).map(bytes),
    t.FixedType(4): st.binary(min_size=4, max_size=4),
    t.BinaryType(): BYTES,
}


def is_floating(primitive: t.IcebergType) -> bool:
    return isinstance(primitive, t.FloatType | t.DoubleType)


def signed_key(value: bytes) -> tuple[int, int]:
    """How java.util.UUID sorts."""
    return struct.unpack(">qq", value)


Key = Callable[[Any], Any]


def same(value: Any) -> Any:
    return value


# Filters


def near(primitive: t.PrimitiveType, value: Any) -> st.SearchStrategy[Any]:
    """Literals close to a value of a column."""
    if isinstance(value, str):
        return st.sampled_from([value, value[:1], value[:3], value + "a", value[:-1]])
    if isinstance(value, bytes) and isinstance(primitive, t.BinaryType):
        return st.sampled_from([value, value[:2], value + b"\x00"])
    return st.just(value)


@st.composite
def literals(draw: st.DrawFn, primitive: t.PrimitiveType, pool: Sequence[Any]) -> Any:
    if pool and draw(st.integers(0, 3)):
        return draw(near(primitive, draw(st.sampled_from(pool))))
    return draw(VALUES[primitive])


COMPARISONS = [LessThan, LessThanOrEqual, GreaterThan, GreaterThanOrEqual, EqualTo, NotEqualTo]


@st.composite
def predicates(draw: st.DrawFn, name: str, primitive: t.PrimitiveType, pool: Sequence[Any]) -> BooleanExpression:
    kinds = [*COMPARISONS, *COMPARISONS, In, NotIn, IsNull, NotNull]
    kinds += [IsNaN, NotNaN] if is_floating(primitive) else []
    kinds += [StartsWith, NotStartsWith] * 2 if isinstance(primitive, t.StringType) else []
    kind = draw(st.sampled_from(kinds))
    if kind in (IsNull, NotNull, IsNaN, NotNaN):
        return kind(name)
    if kind in (In, NotIn):
        values = draw(st.lists(literals(primitive, pool), min_size=1, max_size=4))
        return kind(name, {as_literal(value) for value in values})
    return kind(name, as_literal(draw(literals(primitive, pool))))


def as_literal(value: Any) -> Any:
    return literal(value)


def filters(leaves: st.SearchStrategy[BooleanExpression]) -> st.SearchStrategy[BooleanExpression]:
    return st.recursive(
        leaves,
        lambda inner: st.builds(And, inner, inner) | st.builds(Or, inner, inner) | inner.map(Not),
        max_leaves=4,
    )


# What a bound filter means for a row

ORDER = {
    BoundLessThan: operator.lt,
    BoundLessThanOrEqual: operator.le,
    BoundGreaterThan: operator.gt,
    BoundGreaterThanOrEqual: operator.ge,
    BoundEqualTo: operator.eq,
}


NEGATED = (BoundNotNull, BoundNotNaN, BoundNotEqualTo, BoundNotIn, BoundNotStartsWith)


def matches(bound: BooleanExpression, row: dict[int, Any], *, nan_is_greatest: bool = False) -> bool:
    """Two-valued: null satisfies none but IS NULL and the negated predicates; NaN is in no range, or above all."""

    def leaf(predicate: BooleanExpression, _negated: bool) -> bool:
        if not isinstance(predicate, BoundPredicate):
            return isinstance(predicate, AlwaysTrue)
        return leaf_matches(predicate, row[predicate.term.ref().field.field_id], nan_is_greatest)

    return fold(bound, leaf, lambda junction, operands: (all if junction is And else any)(operands))


def leaf_matches(predicate: BoundPredicate, value: Any, nan_is_greatest: bool) -> bool:
    if type(predicate) in NEGATED:
        return not leaf_matches(~predicate, value, nan_is_greatest)
    nan = isinstance(value, float) and math.isnan(value)
    if isinstance(predicate, BoundIsNull):
        return value is None
    if value is None:
        return False
    if nan or isinstance(predicate, BoundIsNaN):
        above = nan_is_greatest and isinstance(predicate, BoundGreaterThan | BoundGreaterThanOrEqual)
        return nan and (isinstance(predicate, BoundIsNaN) or above)
    match predicate:
        case BoundIn():
            return value in predicate.value_set
        case BoundStartsWith():
            return value.startswith(predicate.literal.value)
    return ORDER[type(predicate)](value, predicate.literal.value)


# Files: values of a column, and the stats that a writer may have kept of them


@dataclass
class ColumnChunk:
    """The values of one column in a file and their stats, bounds in pyiceberg's raw form."""

    values: list[Any]
    lower: Any = None
    upper: Any = None
    value_count: int | None = None
    null_count: int | None = None
    nan_count: int | None = None


@dataclass
class File:
    record_count: int
    rows: list[dict[int, Any]]
    chunks: dict[int, ColumnChunk] = field(default_factory=dict)
    key: Key = same


def truncated_upper(value: Any, width: int) -> Any:
    """A short value not less than every value that begins as this one; None if there is none."""
    if len(value) <= width:
        return value
    for end in range(width, 0, -1):
        if isinstance(value, bytes):
            if value[end - 1] < 255:
                return value[: end - 1] + bytes([value[end - 1] + 1])
        elif (code := ord(value[end - 1])) < 0x10FFFF:
            return value[: end - 1] + chr(0xE000 if code == 0xD7FF else code + 1)
    return None


@st.composite
def chunks(draw: st.DrawFn, values: list[Any], primitive: t.PrimitiveType, key: Key, uncounted: int = 0) -> ColumnChunk:
    """Stats of values as some writer keeps them: truncated, missing, or with the NaN bounds of old writers."""
    nans = sum(isinstance(value, float) and math.isnan(value) for value in values)
    present = [value for value in values if value is not None and value == value]  # noqa: PLR0124
    chunk = ColumnChunk(values, None, None, len(values) - uncounted, values.count(None) - uncounted, nans)
    if not is_floating(primitive):
        chunk.nan_count = None
    if present:
        chunk.lower, chunk.upper = min(present, key=key), max(present, key=key)
    if present and isinstance(primitive, t.StringType | t.BinaryType):
        width = draw(st.sampled_from([1, 2, 16]))
        chunk.lower, chunk.upper = chunk.lower[:width], truncated_upper(chunk.upper, width)
    if nans and draw(st.integers(0, 3)) == 0:
        chunk.lower, chunk.upper = draw(st.sampled_from([(math.nan, math.nan), (chunk.lower, math.nan)]))
    for name in ("lower", "upper", "value_count", "null_count", "nan_count"):
        # Writers that leave out rows with null parents write both counts, so that a reader can tell.
        if draw(st.integers(0, 7)) == 0 and not (name == "value_count" and uncounted):
            setattr(chunk, name, None)
    return chunk


def distinct(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


def by_both(spark: SparkSession, table: pa.Table, columns: list[Sql]) -> list[list[Any]]:
    """Evaluate expressions by Spark and by Arrow, which must agree; a list of values for each expression.

    Args:
        spark: the session.
        table: rows with their `place`.
        columns: the expressions.
    """
    named = [column.alias(f"c{place}") for place, column in enumerate(columns)]
    frame = spark.createDataFrame(table).coalesce(1).selectExpr("place", *sql.texts(named))
    by_spark, evaluated = frame.toArrow().sort_by("place").drop_columns(["place"]), by_arrow(table, columns)
    for place, values in enumerate(evaluated):
        assert values == by_spark.column(place).to_pylist(), columns[place]
    return evaluated


def by_arrow(table: pa.Table, columns: list[Sql]) -> list[list[Any]]:
    """Evaluate expressions by Arrow; a list of values for each."""
    rows = evaluate.select(table, [column.alias(f"c{place}") for place, column in enumerate(columns)])
    return [column.to_pylist() for column in rows.columns]
