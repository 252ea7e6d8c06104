"""Filters for a table: every operator on every column, with literals picked around what its files hold."""

from __future__ import annotations

import datetime as dt
import math
import random
import uuid
from collections import defaultdict
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any

from pyiceberg import expressions as e
from pyiceberg.conversions import from_bytes
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UnknownType,
    UUIDType,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyiceberg.schema import Schema

    from tests.peers.corpus import PeerTable

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
COMPARISONS: dict[str, Any] = {
    "eq": e.EqualTo,
    "not-eq": e.NotEqualTo,
    "lt": e.LessThan,
    "lt-eq": e.LessThanOrEqual,
    "gt": e.GreaterThan,
    "gt-eq": e.GreaterThanOrEqual,
}
# Literals that a type's binding must cope with, whatever the table holds.
EDGES: dict[type[IcebergType], list[Any]] = {
    BooleanType: [True, False],
    IntegerType: [0, -1, 2**31 - 1, -(2**31), 2**31, -(2**31) - 1],
    LongType: [0, -1, 2**63 - 1, -(2**63)],
    FloatType: [0.0, -0.0, 1.5, float("inf"), float("-inf"), 1e300, -1e300, 3],
    DoubleType: [0.0, -0.0, 1.5, float("inf"), float("-inf"), 1e300, 3],
    DateType: ["1969-12-31", "1970-01-01", -400, 2**31],
    TimeType: [dt.time(0, 0, 0, 1), dt.time(23, 59, 59, 999999), 3_600_000_000],
    TimestampType: ["1969-12-31T23:59:59.999999", "1970-01-01T00:00:00", -1, 0],
    TimestamptzType: ["1969-12-31T23:59:59.999999+00:00", "1970-01-01T05:00:00+05:00", -1, 0],
    TimestampNanoType: ["1969-12-31T23:59:59.999999", 0],
    TimestamptzNanoType: ["1969-12-31T23:59:59.999999+00:00", 0],
    StringType: ["", "a", "z" * 17, "\uffee", "\U0001f600", "\U0010ffff" * 17],
    UUIDType: [uuid.UUID(int=0), uuid.UUID(int=2**127), uuid.UUID(int=2**128 - 1)],
    BinaryType: [b"", b"\x00", b"\x7f", b"\xff" * 17],
    FixedType: [],
    UnknownType: [],
}


@dataclass(frozen=True)
class Filter:
    """A filter and how its names are to be looked up; the name says operator, column and literal."""

    name: str
    expression: e.BooleanExpression
    case_sensitive: bool = True

    def __str__(self) -> str:
        return self.name


def filters(table: PeerTable, limit: int | None = None, schema: Schema | None = None) -> list[Filter]:
    """A broad set of filters for the table's current schema (or another), or `limit` of them over all operators.

    The choice and its order are the same in every run.
    """
    schema = schema or table.schema
    held = table.java.bounds()
    by_operator: dict[str, list[Filter]] = defaultdict(list)
    for name, field in columns(schema):
        values = literals(field.field_type, held.get(field.field_id, []))
        for operator, expression in column_filters(name, field.field_type, values):
            by_operator[operator].append(Filter(text_of(expression), expression))
    rng = random.Random(table.name)
    singles = [each for group in by_operator.values() for each in group]
    by_operator["combined"] = list(combinations(singles, rng, 60))
    by_operator["any-case"] = [
        Filter(f"any-case {each.name}", renamed(each.expression), case_sensitive=False)
        for each in rng.sample(singles, min(len(singles), 12))
    ]
    return (
        [each for group in by_operator.values() for each in group] if limit is None else spread(by_operator, limit, rng)
    )


def spread(groups: dict[str, list[Filter]], limit: int, rng: random.Random) -> list[Filter]:
    """`limit` filters, taken from each operator in turn; which operators come first differs from table to table."""
    shuffled = [rng.sample(group, len(group)) for group in groups.values() if group]
    rng.shuffle(shuffled)
    turns = max((len(group) for group in shuffled), default=0)
    return [group[turn] for turn in range(turns) for group in shuffled if turn < len(group)][:limit]


# --- columns and literals


def columns(schema: Schema) -> list[tuple[str, NestedField]]:
    """The primitive columns that a filter can name, with their full names: not those inside lists and maps."""

    def walk(fields: Iterable[NestedField]) -> Iterator[NestedField]:
        for field in fields:
            if isinstance(field.field_type, StructType):
                yield from walk(field.field_type.fields)
            elif isinstance(field.field_type, PrimitiveType):
                yield field

    return [(str(schema.find_column_name(field.field_id)), field) for field in walk(schema.fields)]


def literals(field_type: IcebergType, held: Sequence[bytes], max_values: int = 7) -> list[Any]:
    """Values of the type from the bounds of files, their neighbours, and the type's edges."""
    near: list[Any] = []
    for raw in sorted(set(held), key=lambda bound: (len(bound), bound)):
        value = decoded(field_type, raw)
        near += [] if value is None else [value, *NEIGHBOURS.get(type(field_type), no_neighbours)(value)]
    rng = random.Random(len(near))
    picked = rng.sample(near, min(len(near), max_values))
    return [*(literal(field_type, value) for value in picked), *edges(field_type)]


def edges(field_type: IcebergType) -> list[Any]:
    if isinstance(field_type, DecimalType):
        digits = tuple([9] * field_type.precision)
        largest = [Decimal((sign, digits, -field_type.scale)) for sign in (0, 1)]
        return [
            *(Decimal((sign, (digit,), -field_type.scale)) for sign, digit in ((0, 0), (0, 1), (1, 1))),
            *largest,
            0,
        ]
    if isinstance(field_type, FixedType):
        return [bytes(len(field_type)), b"\xff" * len(field_type), b"\x7f" + b"\xff" * (len(field_type) - 1)]
    return EDGES[type(field_type)]


def decoded(field_type: IcebergType, raw: bytes) -> Any:
    """A bound's value (dates, times and timestamps as integers), or None where it is NaN or of a narrower type."""
    stored_type = LongType() if isinstance(field_type, (*MICROS, *NANOS)) else field_type
    if isinstance(stored_type, DateType):
        stored_type = IntegerType()
    try:
        value: Any = from_bytes(stored_type, raw)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 - whatever it says of four bytes for a long
        return None
    return None if isinstance(value, float) and math.isnan(value) else value


MICROS = (TimestampType, TimestamptzType, TimeType)
NANOS = (TimestampNanoType, TimestamptzNanoType)


def literal(field_type: IcebergType, value: Any) -> Any:
    """What a user would write for a value of the type: text for dates and timestamps that text can name."""
    if isinstance(field_type, TimestampType | TimestamptzType | TimestampNanoType | TimestamptzNanoType):
        micros = value // 1000 if isinstance(field_type, NANOS) else value
        text = (EPOCH + dt.timedelta(microseconds=micros)).isoformat() if abs(micros) < 2 * 10**17 else micros
        zoned = isinstance(field_type, TimestamptzType | TimestamptzNanoType)
        return text if zoned or isinstance(text, int) else text.removesuffix("+00:00")
    if isinstance(field_type, DateType):
        return (EPOCH.date() + dt.timedelta(days=value)).isoformat() if -700_000 < value < 2_900_000 else value
    if isinstance(field_type, TimeType):
        return (EPOCH + dt.timedelta(microseconds=value % 86_400_000_000)).time()
    return uuid.UUID(bytes=value) if isinstance(field_type, UUIDType) and isinstance(value, bytes) else value


def no_neighbours(_: Any) -> list[Any]:
    return []


def next_numbers(value: Any) -> list[Any]:
    return [value - 1, value + 1]


# The default context rounds to 28 digits.
WIDE = Context(prec=60)
NEIGHBOURS: dict[type[IcebergType], Callable[[Any], list[Any]]] = {
    **dict.fromkeys((IntegerType, LongType, DateType, *MICROS, *NANOS), next_numbers),
    DecimalType: lambda value: [WIDE.subtract(value, Decimal(1).scaleb(value.as_tuple().exponent)) if value else value],
    FloatType: lambda value: [value + 0.5],
    DoubleType: lambda value: [value + 0.25, -value],
    StringType: lambda value: [value + "a", value[:1], value[:-1]],
    BinaryType: lambda value: [value + b"\x00", value[:-1]],
}


# --- expressions


def column_filters(name: str, kind: IcebergType, values: list[Any]) -> Iterator[tuple[str, e.BooleanExpression]]:
    yield "is-null", e.IsNull(name)  # type: ignore[call-arg, arg-type]
    yield "not-null", e.NotNull(name)  # type: ignore[call-arg, arg-type]
    if isinstance(kind, FloatType | DoubleType):
        yield "is-nan", e.IsNaN(name)  # type: ignore[call-arg, arg-type]
        yield "not-nan", e.NotNaN(name)  # type: ignore[call-arg, arg-type]
    for operator, build in COMPARISONS.items():
        yield from ((operator, build(name, value)) for value in values)
    for group in sets(kind, values):
        yield "in", e.In(name, group)  # type: ignore[call-arg, arg-type]
        yield "not-in", e.NotIn(name, group)  # type: ignore[call-arg, arg-type]
    if isinstance(kind, StringType):
        for prefix in prefixes(values):
            yield "starts-with", e.StartsWith(name, prefix)
            yield "not-starts-with", e.NotStartsWith(name, prefix)


def sets(kind: IcebergType, values: list[Any]) -> list[tuple[Any, ...]]:
    """Sets of one, two and many literals; of 200, which Iceberg evaluates, and of 201, which it does not."""
    if not values:
        return []
    groups: list[tuple[Any, ...]] = [tuple(values[:1]), tuple(values[:2]), tuple(values[-3:])]
    start = next((value for value in values if type(value) is int), 0)
    if isinstance(kind, IntegerType | LongType) and abs(start) < 2**30:
        groups += [tuple(range(start, start + 200)), tuple(range(start, start + 201)), tuple(range(10**8, 10**8 + 201))]
    if isinstance(kind, StringType):
        groups += [tuple(f"{values[0]}{n:03d}" for n in range(count)) for count in (200, 201)]
    return [tuple({(type(value), str(value)): value for value in group}.values()) for group in groups]


def prefixes(values: list[Any]) -> list[str]:
    lengths = {0: (1,), 1: (1, 2, 3, 15, 16, 17, 18)}
    cut = {value[:length] for value in values for length in lengths[len(value) > 1] if value}
    return sorted(cut)


def combinations(singles: list[Filter], rng: random.Random, count: int) -> Iterator[Filter]:
    """ANDs, ORs and NOTs of other filters, up to three deep."""

    def build(depth: int) -> e.BooleanExpression:
        kind = rng.choice(("and", "or", "not", "leaf"))
        if depth == 0 or kind == "leaf":
            return rng.choice(singles).expression
        if kind == "not":
            return e.Not(build(depth - 1))
        return (e.And if kind == "and" else e.Or)(build(depth - 1), build(depth - 1))

    if singles:
        for number in range(count):
            expression = e.And(build(2), build(1)) if number % 2 else e.Or(build(2), build(2))
            yield Filter(f"combined {number} {text_of(expression)}", expression)


def renamed(expression: Any) -> Any:
    """The same leaf on the column's name in swapped case."""
    name = expression.term.name.swapcase()
    if isinstance(expression, e.SetPredicate):
        return type(expression)(name, set(expression.literals))  # type: ignore[call-arg, arg-type]
    more = (expression.literal,) if isinstance(expression, e.LiteralPredicate) else ()
    return type(expression)(name, *more)


def text_of(expression: Any) -> str:
    """What tells a filter from others, the same in every run."""
    text = ascii(described(expression))
    return text if len(text) < 100 else f"{text[:80]}...{len(text)}"


def described(expression: Any) -> Any:
    if isinstance(expression, e.And | e.Or):
        return (type(expression).__name__, described(expression.left), described(expression.right))
    if isinstance(expression, e.Not):
        return ("Not", described(expression.child))
    leaf = (type(expression).__name__, expression.term.name)
    if isinstance(expression, e.SetPredicate):
        return (*leaf, sorted((each.value for each in expression.literals), key=str))
    return (*leaf, expression.literal.value) if isinstance(expression, e.LiteralPredicate) else leaf
