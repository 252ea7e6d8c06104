"""Partition transforms: project filters onto partition tuples, and compute partition values of rows in SQL."""

from __future__ import annotations

import math
from decimal import Context, Decimal
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    BoundEqualTo,
    BoundGreaterThan,
    BoundGreaterThanOrEqual,
    BoundIn,
    BoundIsNull,
    BoundLessThan,
    BoundLessThanOrEqual,
    BoundLiteralPredicate,
    BoundNotEqualTo,
    BoundNotIn,
    BoundNotStartsWith,
    BoundPredicate,
    BoundSetPredicate,
    BoundStartsWith,
    BoundUnaryPredicate,
    Or,
)
from pyiceberg.expressions.literals import literal
from pyiceberg.schema import Accessor
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TimeTransform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    FixedType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from sparkmeta.expr import sql
from sparkmeta.expr.conditions import fold, is_floating, junction_of
from sparkmeta.expr.predicate import field_type
from sparkmeta.expr.predicate_terms import FieldReference, TransformReference, with_term
from sparkmeta.expr.sql import Sql
from sparkmeta.expr.types import spark_type
from sparkmeta.spec.transforms import ColumnsBucket, hashed_bytes

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.transforms import Transform
    from pyiceberg.types import PrimitiveType

    from sparkmeta.expr.conditions import Junction


# -- Project row predicates onto partition tuples ---------------------------------------------------------------------


_EXACT: Final = Context(prec=76)
_HOUR_SECONDS: Final = 3600
_DAY_SECONDS: Final = 86_400
_TICKS_PER_SECOND: Final = {
    "timestamp": 1_000_000,
    "timestamptz": 1_000_000,
    "timestamp_ns": 1_000_000_000,
    "timestamptz_ns": 1_000_000_000,
}


def inclusive_projection(bound: BooleanExpression, spec: PartitionSpec) -> BooleanExpression:
    """Return a filter's inclusive projection to the partition tuples of matching rows.

    If it is false for a tuple, no row of the partition matches.

    Args:
        bound: a bound filter without NOT. Its columns have the types of the tuples' sources.
        spec: the partition spec of the tuples.

    Returns:
        An expression over partition field ids; TRUE if the filter implies nothing.
    """
    return _project(bound, spec, strict=False)


def strict_projection(bound: BooleanExpression, spec: PartitionSpec) -> BooleanExpression:
    """Return a condition on partition tuples under which all rows of the partition match a filter.

    Arguments and result are as for ``inclusive_projection``; it is FALSE if no tuple guarantees a match.
    """
    return _project(bound, spec, strict=True)


def undecided(bound: BooleanExpression, identities: Collection[int]) -> BooleanExpression:
    """Return the part of a filter that its inclusive projection does not decide; TRUE if it decides everything.

    Terms of the filter's AND that use only identity-partitioned columns are removed, since they are true for every row
    if the tuple satisfies the projection. Comparisons of floating point numbers stay, since a NaN passes the projection
    of a two-valued filter that does not select it.

    Args:
        bound: a bound filter without NOT.
        identities: the ids of identity-partitioned columns.
    """

    def split(leaf: BooleanExpression, _negated: bool) -> tuple[BooleanExpression, BooleanExpression]:
        return leaf, AlwaysTrue() if _is_decided(leaf, identities) else leaf

    def join(
        junction: Junction, operands: list[tuple[BooleanExpression, BooleanExpression]]
    ) -> tuple[BooleanExpression, BooleanExpression]:
        full = junction_of(junction, [operand for operand, _ in operands])
        parts = [part for _, part in operands]
        if junction is And:
            return full, junction_of(And, parts)
        return full, AlwaysTrue() if all(isinstance(part, AlwaysTrue) for part in parts) else full

    return fold(bound, split, join)[1]


def _is_decided(leaf: BooleanExpression, identities: Collection[int]) -> bool:
    if not isinstance(leaf, BoundPredicate):
        return False
    field = leaf.term.ref().field
    return not is_floating(field.field_type) and field.field_id in identities


def _project(bound: BooleanExpression, spec: PartitionSpec, *, strict: bool) -> BooleanExpression:
    def project(leaf: BooleanExpression, _negated: bool) -> BooleanExpression:
        if not isinstance(leaf, BoundPredicate):
            return leaf
        return junction_of(Or if strict else And, projections(leaf, spec, strict=strict))

    projected = fold(bound, project, junction_of)
    # A bucket of several columns guarantees nothing about any of them.
    several = [] if strict else [_on_columns(bound, field, position) for position, field in enumerate(spec.fields)]
    return junction_of(And, [projected, *several])


def projections(predicate: BoundPredicate, spec: PartitionSpec, *, strict: bool) -> list[BooleanExpression]:
    """Return the projections of a predicate onto the partition fields of its column.

    A predicate on a transform has a projection onto a field of the same transform, whose values it tests.
    """
    reference = predicate.term.ref()
    if isinstance(reference, TransformReference):
        targets = [(field, position) for position, field in enumerate(spec.fields) if reference.is_value_of(field)]
        return [
            with_term(predicate, _reference(field, position, reference.field.field_type)) for field, position in targets
        ]
    source_id, source_type = reference.field.field_id, reference.field.field_type
    projected = (
        _on_field(predicate, field, _reference(field, position, field.transform.result_type(source_type)), strict)
        for position, field in enumerate(spec.fields)
        if field.source_id == source_id
    )
    return [expression for expression in projected if expression is not None]


def _reference(field: PartitionField, position: int, kind: IcebergType) -> FieldReference:
    partition = NestedField(field.field_id, field.name, kind, required=False)
    return FieldReference(partition, Accessor(position), field.name)


def _on_field(
    predicate: BoundPredicate, field: PartitionField, target: FieldReference, strict: bool
) -> BooleanExpression | None:
    transform = field.transform
    if isinstance(transform, IdentityTransform):
        return with_term(predicate, target)
    if not isinstance(transform, BucketTransform | TruncateTransform | TimeTransform):
        return None
    if isinstance(predicate, BoundUnaryPredicate):
        return with_term(predicate, target)
    if isinstance(transform, BucketTransform):
        return _on_bucket(predicate, transform, target, strict)
    if isinstance(field_type(predicate), StringType | BinaryType):
        assert isinstance(transform, TruncateTransform)
        return _on_prefix(predicate, transform.width, target, strict)
    return _on_number(predicate, transform, target, strict)


def _predicate(kind: Any, target: FieldReference, value: Any = None) -> BooleanExpression:
    if value is None:
        predicate: BooleanExpression = kind(target)
    elif isinstance(value, set):
        predicate = kind(target, {literal(member) for member in value})
    else:
        predicate = kind(target, literal(value))
    return predicate


def _on_bucket(
    predicate: BoundPredicate, transform: BucketTransform[Any], target: FieldReference, strict: bool
) -> BooleanExpression | None:
    """Project a predicate onto buckets: equal values have equal buckets, and nothing else is known."""
    bucket = transform.transform(field_type(predicate))
    if isinstance(predicate, BoundNotEqualTo if strict else BoundEqualTo):
        return _predicate(type(predicate), target, bucket(predicate.literal.value))
    if isinstance(predicate, BoundNotIn if strict else BoundIn):
        return _predicate(type(predicate), target, {bucket(value) for value in predicate.value_set})
    return None


# Maximum number of combinations of values that a filter selects. A bucket is computed for each.
_MAX_COMBINATIONS: Final = 10_000
# Column id -> the only values that a filter allows, as the bytes that buckets hash. None is null.
_Limits = dict[int, frozenset[bytes | None]]


def _on_columns(bound: BooleanExpression, field: PartitionField, position: int) -> BooleanExpression:
    """Project a filter onto a bucket of several columns: TRUE unless it limits each of them to few values."""
    bucket = field.transform
    if not isinstance(bucket, ColumnsBucket):
        return AlwaysTrue()
    target = _reference(field, position, IntegerType())

    def limits(leaf: BooleanExpression, _negated: bool) -> tuple[BooleanExpression, _Limits]:
        reference = leaf.term.ref() if isinstance(leaf, BoundPredicate) else None
        if not isinstance(reference, FieldReference) or reference.field.field_id not in bucket.sources:
            return AlwaysTrue(), {}
        column = reference.field
        match leaf:
            case BoundEqualTo() | BoundIn() if bucket.can_transform(column.field_type):
                values = frozenset(hashed_bytes(value, column.field_type) for value in _literals(leaf))
                return AlwaysTrue(), {column.field_id: values}
            case BoundIsNull():
                return AlwaysTrue(), {column.field_id: frozenset([None])}
        return AlwaysTrue(), {}

    def join(
        junction: Junction, operands: list[tuple[BooleanExpression, _Limits]]
    ) -> tuple[BooleanExpression, _Limits]:
        terms, limited = [term for term, _ in operands], [columns for _, columns in operands]
        if junction is Or:
            common = set(limited[0]).intersection(*limited[1:])
            union = {column: frozenset[bytes | None]().union(*(each[column] for each in limited)) for column in common}
            return junction_of(Or, terms), union
        shared: _Limits = {}
        for column, values in (item for columns in limited for item in columns.items()):
            shared[column] = shared.get(column, values) & values
        return junction_of(And, [*terms, _in_buckets(shared, bucket, target)]), shared

    return fold(bound, limits, join)[0]


def _in_buckets(limits: _Limits, bucket: ColumnsBucket, target: FieldReference) -> BooleanExpression:
    """Return a test of the bucket for columns that are limited to few values; TRUE if a column is not limited."""
    if not limits.keys() >= {*bucket.sources}:
        return AlwaysTrue()
    columns = [limits[source] for source in bucket.sources]
    if math.prod(map(len, columns)) > _MAX_COMBINATIONS:
        return AlwaysTrue()
    results = {bucket.of_values(combination) for combination in product(*columns)}
    tests = [_predicate(BoundIn, target, results - {None})] if results - {None} else []
    return junction_of(Or, [*tests, _predicate(BoundIsNull, target)] if None in results else tests)


# Projections of a comparison with n onto a step function: the comparison of the partition with the step of n + shift.
_INCLUSIVE: Final[dict[type[BoundPredicate], tuple[type[BoundPredicate], int]]] = {
    BoundLessThan: (BoundLessThanOrEqual, -1),
    BoundLessThanOrEqual: (BoundLessThanOrEqual, 0),
    BoundGreaterThan: (BoundGreaterThanOrEqual, 1),
    BoundGreaterThanOrEqual: (BoundGreaterThanOrEqual, 0),
    BoundEqualTo: (BoundIn, 0),
    BoundIn: (BoundIn, 0),
}
_STRICT: Final[dict[type[BoundPredicate], tuple[type[BoundPredicate], int]]] = {
    BoundLessThan: (BoundLessThan, 0),
    BoundLessThanOrEqual: (BoundLessThan, 1),
    BoundGreaterThan: (BoundGreaterThan, 0),
    BoundGreaterThanOrEqual: (BoundGreaterThan, -1),
    BoundNotEqualTo: (BoundNotIn, 0),
    BoundNotIn: (BoundNotIn, 0),
}


def _on_number(
    predicate: BoundPredicate,
    transform: TruncateTransform[Any] | TimeTransform[Any],
    target: FieldReference,
    strict: bool,
) -> BooleanExpression | None:
    projected = (_STRICT if strict else _INCLUSIVE).get(type(predicate))
    if projected is None:
        return None
    kind, shift = projected
    ordered = OrderedTransform(transform, field_type(predicate))
    steps = {ordered.step(ordered.ordinal(value) + shift) for value in _literals(predicate)}
    if ordered.wrote_negatives_wrong:
        steps = _with_wrong_negatives(kind, steps)
    wrapped = ordered.wrapped()
    if issubclass(kind, BoundSetPredicate):
        steps |= {wrapped[step] for step in steps & wrapped.keys()}
    if not all(ordered.holds(step) for step in steps):
        return None
    results = {ordered.result(step) for step in steps}
    if issubclass(kind, BoundSetPredicate):
        return _predicate(kind, target, results)
    compared = _predicate(kind, target, results.pop())
    # The least values may have wrapped around, to partitions that compare like some of the greatest.
    if kind is BoundLessThanOrEqual and wrapped:
        return Or(compared, _predicate(BoundIn, target, set(wrapped.values())))
    if kind is BoundGreaterThan and wrapped:
        return And(compared, _predicate(BoundNotIn, target, set(wrapped.values())))
    return compared


def _with_wrong_negatives(kind: type[BoundPredicate], steps: set[int]) -> set[int]:
    """Add steps for old writers, whose partition values of times before 1970 may be one too great."""
    if issubclass(kind, BoundSetPredicate):
        return steps | {step + 1 for step in steps if step < 0}
    if kind is BoundLessThanOrEqual:
        return {step + 1 if step < 0 else step for step in steps}
    if kind is BoundGreaterThan:
        return {step + 1 if step <= 0 else step for step in steps}
    return steps


def _on_prefix(predicate: BoundPredicate, width: int, target: FieldReference, strict: bool) -> BooleanExpression | None:
    """Project a predicate onto truncated strings or bytes."""
    if isinstance(predicate, BoundStartsWith | BoundNotStartsWith):
        return _on_prefix_of_prefix(predicate, width, target, strict)
    projected = (_STRICT if strict else _INCLUSIVE).get(type(predicate))
    if projected is None:
        return None
    kind, _ = projected
    cut = {value[:width] for value in _literals(predicate)}
    return _predicate(kind, target, cut if issubclass(kind, BoundSetPredicate) else cut.pop())


def _literals(predicate: BoundPredicate) -> set[Any]:
    if isinstance(predicate, BoundLiteralPredicate):
        return {predicate.literal.value}
    assert isinstance(predicate, BoundSetPredicate)
    return predicate.value_set


def _on_prefix_of_prefix(
    predicate: BoundStartsWith | BoundNotStartsWith, width: int, target: FieldReference, strict: bool
) -> BooleanExpression | None:
    prefix = predicate.literal.value
    starts = isinstance(predicate, BoundStartsWith)
    if len(prefix) < width:
        return _predicate(type(predicate), target, prefix)
    if len(prefix) == width:
        return _predicate(BoundEqualTo if starts else BoundNotEqualTo, target, prefix)
    return None if starts == strict else _predicate(type(predicate), target, prefix[:width])


class OrderedTransform:
    """An order-preserving transform of a column type whose values can be represented by integers.

    Args:
        transform: truncate, year, month, day or hour.
        source: the column's type: int, long, decimal (by unscaled value), date (by days) or a timestamp (by ticks).
    """

    def __init__(self, transform: TruncateTransform[Any] | TimeTransform[Any], source: PrimitiveType) -> None:
        self.transform = transform
        self.source = source
        self.scale = source.scale if isinstance(source, DecimalType) else None
        of_day = isinstance(transform, DayTransform) and isinstance(source, DateType)
        self.wrote_negatives_wrong = isinstance(transform, TimeTransform) and not of_day

    def ordinal(self, value: Any) -> int:
        """Return the integer that represents a literal."""
        return int(value.scaleb(self.scale, _EXACT)) if self.scale is not None else value

    def step(self, ordinal: Any) -> Any:
        """Return the transform of an integer, which may be out of the column type's range, or of an array of integers.

        In an array, values below the column type's range wrap around.
        """
        if isinstance(self.transform, TruncateTransform):
            return ordinal - ordinal % self.transform.width
        if isinstance(self.source, DateType):
            return self._of_day(ordinal)
        per_second = _TICKS_PER_SECOND[str(self.source)]
        if isinstance(self.transform, HourTransform):
            return ordinal // (_HOUR_SECONDS * per_second)
        return self._of_day(ordinal // (_DAY_SECONDS * per_second))

    def _of_day(self, day: Any) -> Any:
        if isinstance(self.transform, DayTransform):
            return day
        unit = "M" if isinstance(self.transform, MonthTransform) else "Y"
        periods = np.asarray(day).astype("datetime64[D]").astype(f"datetime64[{unit}]").astype(np.int64)
        return periods if periods.ndim else int(periods)

    def holds(self, step: int) -> bool:
        """Return whether the partition's type can hold a step."""
        if isinstance(self.source, DecimalType):
            return abs(step) < int(10**self.source.precision)
        bits = 64 if isinstance(self.transform, TruncateTransform) and isinstance(self.source, LongType) else 32
        return _in_bits(step, bits)

    def wrapped(self) -> dict[int, int]:
        """Return the steps that writers wrap around: below the column's type, or below int, which a long may have been.

        No other step equals a wrapped one, which is not a multiple of the width.
        """
        if not isinstance(self.transform, TruncateTransform) or self.scale is not None:
            return {}
        steps = {
            bits: self.step(-(1 << bits - 1)) for bits in ((32, 64) if isinstance(self.source, LongType) else (32,))
        }
        return {step: step + (1 << bits) for bits, step in steps.items() if not _in_bits(step, bits)}

    def result(self, step: int) -> int | Decimal:
        """Return the partition value of a step."""
        return step if self.scale is None else Decimal(step).scaleb(-self.scale, _EXACT)


def _in_bits(number: int, bits: int) -> bool:
    """Return whether a signed integer fits the number of bits."""
    return -(1 << bits - 1) <= number < 1 << bits - 1


# -- Compute partition values in Spark SQL ----------------------------------------------------------------------------


# Spark's hash is 32-bit Murmur3 with the seed 42, and the hash of a value is the seed of the next one. The hash of
# this int is 0, the seed that Iceberg uses. Spark hashes bytes beyond a multiple of 4 in its own way.
_SEED: Final = sql.call("int", -1693959553)
_WORD_BYTES: Final = 4
_UUID_BYTES: Final = 16

_MIN_LONG: Final = sql.lit(-(1 << 63))
_MAX_LONG: Final = sql.lit((1 << 63) - 1)
_HOUR_MICROS: Final = 3_600_000_000
_DAY_MICROS: Final = 24 * _HOUR_MICROS
_MAX_DIGITS: Final = 38
# If a result has too many digits, Spark reduces its scale, but not below this.
_MIN_REDUCED_SCALE: Final = 6


def partition_value(transform: Transform[Any, Any], source: IcebergType, value: Sql) -> Sql | None:
    """Return the transform of a value; None if Spark SQL has no exact form of it.

    Args:
        transform: a transform of the spec, not an unknown one.
        source: the type of the column.
        value: a value of `spark_type(source)`.

    Returns:
        A value of the `spark_type` of the transform's result. It does not depend on the session's time zone. Truncated
        decimals with more digits than their type has are null.
    """
    match transform:
        case IdentityTransform():
            return value
        case VoidTransform():
            return sql.lit(None).cast(spark_type(source))
        case BucketTransform():
            hashed = _hashed(source, value)
            return None if hashed is None else sql.when(value.isNotNull(), _bucket(hashed, transform.num_buckets))
        case TruncateTransform():
            return _truncated(source, value, transform.width)
        case TimeTransform():
            return _period(transform, source, value)
        case ColumnsBucket():
            return None
    raise ValueError(f"{transform} is not a transform of Iceberg")


def _bucket(hashed: Sql, count: int) -> Sql:
    return sql.spark_only(f"(({hashed.text} & 2147483647) % {count})")


def _hashed(source: IcebergType, value: Sql) -> Sql | None:
    match source:
        case IntegerType() | LongType() | TimeType():
            return _hash(value.cast("BIGINT"))
        case DateType():
            return _hash(sql.call("unix_date", value).cast("BIGINT"))
        case TimestampType() | TimestamptzType():
            return _hash(value)
        case TimestampNanoType() | TimestamptzNanoType():
            return _hash(_floor_div(value, 1000))
        case UUIDType():
            return _hash(uuid_bytes(value))
        case FixedType() if len(source) % _WORD_BYTES == 0:
            return _hash(value)
    return None


def uuid_bytes(value: Sql) -> Sql:
    """Return the bytes of a UUID in text."""
    return sql.call("unhex", sql.call("replace", value, "-", ""))


def _hash(value: Sql) -> Sql:
    return sql.call("hash", _SEED, value)


def _floor_div(value: Sql, unit: int) -> Sql:
    """Return a bigint divided by a unit and rounded down."""
    return sql.spark_only(f"({value.text} div {unit} - CAST({value.text} % {unit} < 0 AS BIGINT))")


def _truncated(source: IcebergType, value: Sql, width: int) -> Sql | None:
    match source:
        case StringType() | BinaryType():
            return sql.call("substring", value, 1, width)
        case IntegerType():
            # As in Java, values below the least int wrap around.
            wide = value.cast("BIGINT")
            return sql.let(
                wide - sql.call("pmod", wide, sql.lit(width).cast("BIGINT")),
                lambda cut: sql.when(cut < -(1 << 31), cut + (1 << 32)).otherwise(cut).cast("INT"),
            )
        case LongType():
            return sql.let(value, lambda number: _truncated_long(number, sql.lit(width).cast("BIGINT")))
        case DecimalType() if source.precision < _MAX_DIGITS or source.scale <= _MIN_REDUCED_SCALE:
            step = Decimal(width).scaleb(-source.scale)
            kind = f"DECIMAL({source.precision}, {source.scale})"
            wide = sql.spark_only(f"CAST('{step:f}' AS DECIMAL({_MAX_DIGITS}, {source.scale}))")
            remainder = sql.spark_only(f"CAST({sql.call('pmod', value, wide).text} AS {kind})")
            if step >= 10 ** (source.precision - source.scale):
                return None
            return sql.spark_only(f"TRY_CAST({sql.call('try_subtract', value, remainder).text} AS {kind})")
    return None


def _truncated_long(number: Sql, width: Sql) -> Sql:
    remainder = sql.call("pmod", number, width)
    # As in Java, values below the least long wrap around. No intermediate result may, nor a sum of literals, which the
    # optimizer computes even if no row needs it.
    above_least = number - _MIN_LONG
    return sql.when(number < _MIN_LONG + remainder, _MAX_LONG - (remainder - above_least - 1)).otherwise(
        number - remainder
    )


def _period(transform: TimeTransform[Any], source: IcebergType, value: Sql) -> Sql:
    if isinstance(transform, HourTransform):
        if isinstance(source, TimestampType):
            days = sql.call("unix_date", value.cast("DATE"))
            return sql.spark_only(f"({days.text} * 24 + {sql.call('hour', value).text})")
        return _floor_div(_micros(source, value), _HOUR_MICROS).cast("INT")
    day = _day(source, value)
    match transform:
        case DayTransform():
            return day
        case MonthTransform():
            return sql.let(
                day, lambda date: sql.spark_only(f"((year({date.text}) - 1970) * 12 + month({date.text}) - 1)")
            )
        case YearTransform():
            return sql.spark_only(f"(year({day.text}) - 1970)")
    raise ValueError(f"{transform} is not a transform of Iceberg")


def _day(source: IcebergType, value: Sql) -> Sql:
    """Return the date in UTC."""
    if isinstance(source, DateType):
        return value
    if isinstance(source, TimestampType):
        return value.cast("DATE")
    return sql.call("date_from_unix_date", _floor_div(_micros(source, value), _DAY_MICROS).cast("INT"))


def _micros(source: IcebergType, value: Sql) -> Sql:
    if isinstance(source, TimestamptzType):
        return sql.call("unix_micros", value)
    return _floor_div(value, 1000)
