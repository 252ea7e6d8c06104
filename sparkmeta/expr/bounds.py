"""Bounds of columns: their binary form (table spec, Appendix D), and comparisons with them.

This imports only numpy and pyarrow, so that Spark tasks can use it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.expr.variants import bounds_of_field

if TYPE_CHECKING:
    from decimal import Decimal


# -- Single-value serialization (table spec, Appendix D) --------------------------------------------------------------


ANY: Final = "any"
"""The type name for values of unknown transforms, which are read as text."""

_ARROW_TYPES: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "time": pa.int64(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "timestamp_ns": pa.int64(),
    "timestamptz_ns": pa.int64(),
    "string": pa.string(),
    "uuid": pa.binary(),
    "binary": pa.binary(),
    "variant": pa.binary(),
    "unknown": pa.null(),
    ANY: pa.string(),
}
UNORDERED: Final = ("variant", "geometry", "geography")
"""The prefixes of the names of types whose bounds have no order as bytes."""

_BINARY_WITH_PARAMETERS: Final = ("fixed", "geometry", "geography")
_DECIMAL: Final = re.compile(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)")
_DAY_MICROS: Final = 86_400_000_000

# Promoted types: the narrow type, its form, and the size of its unit in the wide type.
_PROMOTED: Final = {
    "long": ("int", "<i4", 1),
    "double": ("float", "<f4", 1),
    "timestamp": ("date", "<i4", _DAY_MICROS),
    "timestamp_ns": ("date", "<i4", _DAY_MICROS * 1000),
}


def bound_arrow_type(name: str) -> pa.DataType:
    """Return the Arrow type of values and bounds of an Iceberg primitive type.

    UUIDs, geometries and variants are binary. Times and nanosecond timestamps are 64-bit integers. Other types are as
    in Spark.

    Raises:
        ValueError: not a primitive type.
    """
    if decimal := _DECIMAL.fullmatch(name):
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    if name.startswith(_BINARY_WITH_PARAMETERS):
        return pa.binary()
    if name not in _ARROW_TYPES:
        raise ValueError(f"{name!r} is not a primitive type of Iceberg")
    return _ARROW_TYPES[name]


def decode_bounds(values: pa.BinaryArray, type_name: str) -> pa.Array:
    """Decode the bytes of lower_bounds, upper_bounds and partition summaries.

    Args:
        values: serialized values; null stays null.
        type_name: the column's current Iceberg type. Values of types before a promotion are widened: int to long, float
            to double, decimal to a higher precision, date to timestamp or timestamp_ns.

    Returns:
        An array of ``bound_arrow_type(type_name)``; nulls for the type `ANY`, which can't be decoded.

    Raises:
        ValueError: bytes are not a value of the type; the message names both.
    """
    arrow_type = bound_arrow_type(type_name)
    if len(values) == 0 or pa.types.is_null(arrow_type) or type_name == ANY:
        return pa.nulls(len(values), arrow_type)
    if pa.types.is_binary(arrow_type):
        return _binary(values, type_name)
    if pa.types.is_string(arrow_type):
        return _strings(values)
    if pa.types.is_decimal(arrow_type):
        return _decimals(values, type_name, arrow_type)
    if pa.types.is_boolean(arrow_type):
        return pa.array(_fixed_width(values, type_name, "u1") != 0, mask=_null_mask(values))
    decoded = pa.array(_numbers(values, type_name, arrow_type), mask=_null_mask(values))
    return decoded.cast(arrow_type)


def known_bounds(values: pa.BinaryArray, type_name: str) -> pa.Array:
    """Decode bounds like `decode_bounds`, but return null for bytes that are not a value of the type.

    Some writers truncate texts inside a character. A bound that can't be decoded is unknown.
    """
    while True:
        try:
            return decode_bounds(values, type_name)
        except _UndecodableError as error:
            values = pc.if_else(pa.array(error.bad), pa.scalar(None, values.type), values)


def inverted(lower: pa.Array, upper: pa.Array, type_name: str) -> pa.BooleanArray | None:
    """Return whether each lower bound is above the upper one, null if one is unknown; None if no pair is inverted.

    Inverted bounds prove nothing. UUIDs are compared in both orders in use, since a pair may be inverted in only one of
    them.
    """
    if pa.types.is_null(lower.type) or type_name.startswith(UNORDERED):
        return None
    above = pc.greater(lower, upper)
    if not pc.any(above).as_py():
        return None
    if type_name == "uuid":
        signed = [_signed_uuids(pc.if_else(above, bound, pa.scalar(bytes(16)))) for bound in (lower, upper)]
        above = pc.and_(above, pa.array(signed[0] > signed[1]))
    return above


def ordered_bounds(lower: pa.Array, upper: pa.Array, type_name: str) -> tuple[pa.Array, pa.Array]:
    """Return bounds, null where they are `inverted`."""
    wrong = inverted(lower, upper, type_name)
    if wrong is None:
        return lower, upper
    wrong = pc.fill_null(wrong, False)
    ordered_lower, ordered_upper = (pc.if_else(wrong, pa.scalar(None, bound.type), bound) for bound in (lower, upper))
    return ordered_lower, ordered_upper


def _signed_uuids(values: pa.BinaryArray) -> np.ndarray:
    """Return texts that sort like java.util.UUID: two signed halves."""
    raw = pc.if_else(values.is_valid(), values, pa.scalar(bytes(16))).cast(pa.binary(16))
    content = np.frombuffer(raw.buffers()[1], np.uint8).reshape(-1, 16)[raw.offset : raw.offset + len(raw)].copy()
    content[:, [0, 8]] ^= 0x80
    # numpy drops zeros at the end of texts, which does not change their order.
    return content.view("S16")[:, 0]


def reads_as(name: str, later: str) -> bool:
    """Return whether `decode_bounds` reads values of a type as a later type: the same, or one it was promoted to."""
    decimals = [_DECIMAL.fullmatch(type_name) for type_name in (name, later)]
    if decimals[0] and decimals[1]:
        (digits, scale), (later_digits, later_scale) = (map(int, match.groups()) for match in decimals if match)
        return digits <= later_digits and scale == later_scale
    if later in _PROMOTED and name == _PROMOTED[later][0]:
        return True
    return name in {later, "unknown"} or (name, later) == ("string", "binary")


def as_numbers(values: pa.Array) -> pa.Array:
    """Return dates and times as the numbers that represent them."""
    if not pa.types.is_temporal(values.type):
        return values
    return values.view(pa.int32() if pa.types.is_date32(values.type) else pa.int64())


def day_units(type_name: str) -> int | None:
    """Return the number of units in a day of a type that dates are promoted to; None for other types."""
    narrow, _, units = _PROMOTED.get(type_name, ("", "", 0))
    return units if narrow == "date" else None


def promoted_days(values: pa.Array, type_name: str) -> pa.Array:
    """Convert dates to a type that they were promoted to; return other values unchanged, which Arrow casts.

    Raises:
        ValueError: a date is outside of the type's range.
    """
    units = day_units(type_name)
    if units is None or not pa.types.is_date32(values.type):
        return values
    days = values.cast(pa.int32()).cast(pa.int64())
    beyond = days.filter(pc.greater(pc.abs(days), np.iinfo(np.int64).max // units))
    if len(beyond):
        raise ValueError(f"day {beyond[0]} since 1970 is not a value of type {type_name}: it is outside of its range")
    return pc.multiply(days, units).cast(bound_arrow_type(type_name))


def encode_bounds(values: pa.Array) -> pa.BinaryArray:
    """Encode values of a `bound_arrow_type` as bytes for `decode_bounds`; null stays null."""
    kind = values.type
    if pa.types.is_null(kind):
        return pa.nulls(len(values), pa.binary())
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        return values.cast(pa.binary())
    if pa.types.is_decimal(kind):
        encoded = [None if value is None else _decimal_bytes(value) for value in values.to_pylist()]
        return pa.array(encoded, pa.binary())
    if pa.types.is_boolean(kind):
        values = values.cast(pa.uint8())
    elif pa.types.is_temporal(kind):
        values = values.cast(pa.int32() if pa.types.is_date(kind) else pa.int64())
    numbers = (pc.fill_null(values, 0) if values.null_count else values).to_numpy(zero_copy_only=False)
    width = numbers.dtype.itemsize
    fixed = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(width), len(values), [None, pa.py_buffer(np.ascontiguousarray(numbers))]
    )
    encoded = fixed.cast(pa.binary())
    return pc.if_else(values.is_valid(), encoded, pa.scalar(None, pa.binary())) if values.null_count else encoded


def _decimal_bytes(value: Decimal) -> bytes:
    """Return the unscaled value in big-endian two's complement with the fewest bytes."""
    sign, digits, _ = value.as_tuple()
    unscaled = int("".join(map(str, digits))) * (-1 if sign else 1)
    size = (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1
    return unscaled.to_bytes(size, "big", signed=True)


def _numbers(values: pa.BinaryArray, type_name: str, arrow_type: pa.DataType) -> np.ndarray:
    width = arrow_type.bit_width // 8
    dtype = f"<f{width}" if pa.types.is_floating(arrow_type) else f"<i{width}"
    if type_name not in _PROMOTED:
        return _fixed_width(values, type_name, dtype)
    _, narrow_dtype, unit = _PROMOTED[type_name]
    narrow = pc.equal(pc.binary_length(values), 4)
    if not pc.any(narrow).as_py():
        return _fixed_width(values, type_name, dtype)
    narrow_values = _fixed_width(_null_unless(values, narrow), type_name, narrow_dtype).astype(dtype)
    if unit != 1:
        _check_days(values, narrow_values, type_name, unit)
        narrow_values *= unit
    wide_values = _fixed_width(_null_unless(values, pc.invert(narrow)), type_name, dtype)
    return np.where(np.asarray(pc.fill_null(narrow, False)), narrow_values, wide_values)


def _check_days(values: pa.BinaryArray, days: np.ndarray, type_name: str, unit: int) -> None:
    limit = np.iinfo(np.int64).max // unit
    _refuse(values, np.abs(days) > limit, type_name, "it is a date outside of the type's range")


def _null_unless(values: pa.BinaryArray, mask: pa.BooleanArray) -> pa.BinaryArray:
    return pc.if_else(mask, values, pa.scalar(None, values.type))


def _fixed_width(values: pa.BinaryArray, type_name: str, dtype: str) -> np.ndarray:
    """Return values of fixed width as a numpy array; nulls are zero."""
    width = np.dtype(dtype).itemsize
    starts, lengths, data = _layout(values)
    valid = ~_null_mask(values)
    _refuse(values, valid & (lengths != width), type_name, f"it should be {width} bytes long")
    rows = np.zeros((len(values), width), np.uint8)
    if lengths.sum() == width * valid.sum():  # nulls have no bytes, so the values are adjacent
        rows[valid] = data[starts[0] : starts[0] + lengths.sum()].reshape(-1, width)
    else:
        rows[valid] = data[starts[valid, None] + np.arange(width)]
    return rows.view(dtype)[:, 0]


def _decimals(values: pa.BinaryArray, type_name: str, arrow_type: pa.Decimal128Type) -> pa.Array:
    """Convert big-endian two's complement of any length to Arrow's little-endian 16 bytes."""
    starts, lengths, data = _layout(values)
    valid = ~_null_mask(values)
    _refuse(values, valid & ((lengths == 0) | (lengths > 16)), type_name, "it should be 1 to 16 bytes long")
    rows = np.zeros((len(values), 16), np.uint8)
    negative = np.zeros(len(values), bool)
    negative[valid] = data[starts[valid]] >= 0x80
    rows[negative] = 0xFF
    for position in range(16):
        present = valid & (lengths > position)
        rows[present, position] = data[(starts + lengths - 1 - position)[present]]
    decimals = pa.Array.from_buffers(
        pa.decimal128(38, arrow_type.scale), len(values), [None, pa.py_buffer(rows.tobytes())]
    )
    _check_digits(values, decimals, type_name, arrow_type)
    return pc.if_else(values.is_valid(), decimals, pa.scalar(None, decimals.type)).cast(arrow_type)


def _check_digits(values: pa.BinaryArray, decimals: pa.Array, type_name: str, arrow_type: pa.Decimal128Type) -> None:
    extremes = pc.min_max(decimals).as_py()
    if max(_digits(extreme) for extreme in extremes.values()) > arrow_type.precision:
        beyond = np.array([_digits(decimal) > arrow_type.precision for decimal in decimals.to_pylist()])
        _refuse(values, beyond, type_name, f"it has more than {arrow_type.precision} digits")


def _digits(value: Decimal) -> int:
    return len(value.as_tuple().digits)


def _strings(values: pa.BinaryArray) -> pa.StringArray:
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        bad = np.array([value is not None and not _is_utf8(value) for value in values.to_pylist()])
        _refuse(values, bad, "string", "it is not UTF-8")
        raise


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _binary(values: pa.BinaryArray, type_name: str) -> pa.BinaryArray:
    if type_name == "uuid":
        _, lengths, _ = _layout(values)
        _refuse(values, ~_null_mask(values) & (lengths != 16), type_name, "it should be 16 bytes long")
    return values.cast(pa.binary())


def _layout(values: pa.BinaryArray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the start and length of each value, and all bytes."""
    _, offset_buffer, data_buffer = values.buffers()
    offset_type = np.int64 if pa.types.is_large_binary(values.type) else np.int32
    offsets = np.frombuffer(offset_buffer, offset_type)[values.offset : values.offset + len(values) + 1]
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.zeros(0, np.uint8)
    return offsets[:-1].astype(np.int64), np.diff(offsets).astype(np.int64), data


def _null_mask(values: pa.BinaryArray) -> np.ndarray:
    return np.asarray(values.is_null())


class _UndecodableError(ValueError):
    """Some bytes are not values of a type. `bad` has a flag for each value."""

    def __init__(self, message: str, bad: np.ndarray) -> None:
        super().__init__(message)
        self.bad = bad


def _refuse(values: pa.BinaryArray, bad: np.ndarray, type_name: str, problem: str) -> None:
    if bad.any():
        value = values[int(np.argmax(bad))].as_py()
        raise _UndecodableError(f"0x{value.hex()} is not a value of type {type_name}: {problem}", bad)


# -- Tests of bounds and partition values -----------------------------------------------------------------------------
# The driver creates the tests, and pickles them for tasks. They are evaluated on Arrow arrays here, and in SQL by
# `ColumnStats.passes`. Undecidable values pass.


Source = Literal["partition", "lower_bound", "upper_bound"]
# (source, field id, Iceberg type name) -> the values, dates and times as numbers; None if they have another type.
Columns = Callable[[Source, int, str], pa.Array | None]

# (upward, inclusive) -> the comparison of a value with the limit.
_OPERATIONS: Final = {
    (True, True): operator.ge,
    (True, False): operator.gt,
    (False, True): operator.le,
    (False, False): operator.lt,
}
_ARROW: Final[dict[Any, Callable[..., pa.BooleanArray]]] = {
    operator.ge: pc.greater_equal,
    operator.gt: pc.greater,
    operator.le: pc.less_equal,
    operator.lt: pc.less,
}


@dataclass(frozen=True)
class BoundTest:
    """A comparison `value >= limit` (upward) or `value <= limit`, or `>` and `<` if not inclusive.

    Attributes:
        source: the kind of value that is compared.
        field_id: the id of the column or partition field.
        type_name: the Iceberg type of the limit. Dates and times are compared as numbers.
        upward: see above.
        inclusive: see above.
        limit: a literal, or in SQL an expression.
        waived_by: a source of the same field; if its value is null, everything passes.
        path: the path of a field of a variant whose bounds are compared; empty for the column itself.
    """

    source: Source
    field_id: int
    type_name: str
    upward: bool
    inclusive: bool
    limit: Any
    waived_by: Source | None = None
    path: str = ""

    @property
    def operation(self) -> Callable[[Any, Any], Any]:
        """The comparison, a function of the operator module."""
        return _OPERATIONS[self.upward, self.inclusive]

    @property
    def key(self) -> tuple[Any, ...]:
        """A key that is equal for tests that differ only in the limit and its inclusion."""
        return self.source, self.field_id, self.upward, self.waived_by, self.path, self.type_name

    def passes(self, columns: Columns) -> pa.BooleanArray | None:
        """Return whether each value passes; None if all do."""
        values = self._values(columns, self.source)
        waiver = None if self.waived_by is None else self._values(columns, self.waived_by)
        if values is None or (self.waived_by is not None and waiver is None):
            return None
        try:
            limit = pa.scalar(self.limit, values.type)
        except (pa.ArrowException, OverflowError):
            return None
        passed = pc.fill_null(_ARROW[self.operation](values, limit), True)
        return passed if waiver is None else pc.or_(passed, waiver.is_null())

    def _values(self, columns: Columns, source: Source) -> pa.Array | None:
        if not self.path:
            return columns(source, self.field_id, self.type_name)
        variants = columns(source, self.field_id, "variant")
        return None if variants is None else as_numbers(bounds_of_field(variants, self.path, self.type_name))


@dataclass(frozen=True)
class AllOf:
    """A conjunction of tests. Without tests, everything passes."""

    tests: tuple[BoundTest | AnyOf, ...] = ()

    def passes(self, columns: Columns) -> pa.BooleanArray | None:
        """Return whether each row passes; None if all do."""
        passed: pa.BooleanArray | None = None
        for test in self.tests:
            test_passed = test.passes(columns)
            if test_passed is not None:
                passed = test_passed if passed is None else pc.and_(passed, test_passed)
        return passed


@dataclass(frozen=True)
class AnyOf:
    """A disjunction of conjunctions."""

    choices: tuple[AllOf, ...]

    def passes(self, columns: Columns) -> pa.BooleanArray | None:
        """Return whether each row passes; None if all do."""
        passed: pa.BooleanArray | None = None
        for choice in self.choices:
            choice_passed = choice.passes(columns)
            if choice_passed is None:
                return None
            passed = choice_passed if passed is None else pc.or_(passed, choice_passed)
        return passed
