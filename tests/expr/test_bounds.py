from __future__ import annotations

import math
import struct
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg import types as t
from pyiceberg.conversions import from_bytes, to_bytes

from sparkmeta.expr.bounds import ANY, bound_arrow_type, decode_bounds, encode_bounds, reads_as
from tests.properties.cases import VALUES

ROUNDS = settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def binary(*values: bytes | None) -> pa.Array:
    return pa.array(values, pa.binary())


@st.composite
def columns(draw: st.DrawFn) -> tuple[t.PrimitiveType, list[bytes | None]]:
    primitive = draw(st.sampled_from(list(VALUES)))
    value = VALUES[primitive].map(lambda value: to_bytes(primitive, value))
    return primitive, draw(st.lists(value | st.none(), max_size=8))


@ROUNDS
@given(columns(), st.integers(0, 3))
def test_equals_pyiceberg(column: tuple[t.PrimitiveType, list[bytes | None]], start: int) -> None:
    primitive, values = column
    decoded = decode_bounds(binary(*values).slice(start), str(primitive))
    assert decoded.type == bound_arrow_type(str(primitive))
    assert len(decoded) == max(0, len(values) - start)
    expected = [None if value is None else from_bytes(primitive, value) for value in values[start:]]
    assert raw(decoded) == expected


@ROUNDS
@given(columns(), st.integers(0, 3))
def test_encoding_is_the_inverse(column: tuple[t.PrimitiveType, list[bytes | None]], start: int) -> None:
    """The bytes equal pyiceberg's. A decimal has the fewest bytes that hold its value (table spec, Appendix D)."""
    primitive, values = column
    encoded = encode_bounds(decode_bounds(binary(*values), str(primitive)).slice(start))
    assert encoded.type == pa.binary()
    assert encoded.to_pylist() == values[start:]


def test_encoding_of_what_python_compares_as_equal() -> None:
    for value in (0.0, -0.0, math.inf, math.nan):
        packed = struct.pack("<d", value)
        assert encode_bounds(decode_bounds(binary(packed, None), "double")).to_pylist() == [packed, None]
    assert encode_bounds(decode_bounds(binary(b"\x01", b"\x00", None), "boolean")).to_pylist() == [b"\1", b"\0", None]


@pytest.mark.parametrize(
    "name", ["unknown", "variant", "geometry", "geography(srid:3857, karney)", "uuid", "fixed[16]"]
)
def test_encoding_of_bytes(name: str) -> None:
    values = [None, bytes(range(16))]
    expected = [None, None] if name == "unknown" else values
    assert encode_bounds(decode_bounds(binary(*values), name)).to_pylist() == expected


def raw(decoded: pa.Array) -> list[Any]:
    if pa.types.is_timestamp(decoded.type):
        return decoded.cast(pa.int64()).to_pylist()
    return (decoded.cast(pa.int32()) if pa.types.is_date(decoded.type) else decoded).to_pylist()


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("long", struct.pack("<i", -7), -7),
        ("double", struct.pack("<f", 1.5), 1.5),
        ("timestamp", struct.pack("<i", -1), -86_400_000_000),
        ("timestamp_ns", struct.pack("<i", 2), 172_800_000_000_000),
        ("decimal(20, 2)", b"\xff", -1),
    ],
)
def test_bounds_written_before_a_promotion(name: str, value: bytes, expected: Any) -> None:
    wide = decode_bounds(binary(value, None), name)
    assert wide.is_null().to_pylist() == [False, True]
    decoded = raw(wide)[0]
    assert (int(decoded.scaleb(2)) if name.startswith("decimal") else decoded) == expected


@pytest.mark.parametrize(
    ("name", "later", "read"),
    [
        ("int", "int", True),
        ("int", "long", True),
        ("long", "int", False),
        ("float", "double", True),
        ("date", "timestamp", True),
        ("date", "timestamptz", False),
        ("string", "long", False),
        ("string", "binary", True),
        ("binary", "string", False),
        ("unknown", "string", True),
        ("decimal(9, 2)", "decimal(18, 2)", True),
        ("decimal(18, 2)", "decimal(9, 2)", False),
        ("decimal(9, 2)", "decimal(18, 3)", False),
        ("int", "struct<1: a: optional int>", False),
    ],
)
def test_types_that_are_read_as_later_ones(name: str, later: str, read: bool) -> None:
    assert reads_as(name, later) is read


def test_bounds_of_any_type_say_nothing() -> None:
    assert decode_bounds(binary(b"\xff", None), ANY).to_pylist() == [None, None]


def test_promoted_and_present_widths_in_one_column() -> None:
    values = binary(struct.pack("<q", 1 << 40), struct.pack("<i", 5), None, struct.pack("<q", -2))
    assert decode_bounds(values, "long").to_pylist() == [1 << 40, 5, None, -2]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("int", b"12345"),
        ("int", b""),
        ("boolean", b"\x01\x01"),
        ("long", b"123"),
        ("date", b"12345678"),
        ("timestamptz", b"1234"),
        ("time", b"1234"),
        ("uuid", b"short"),
        ("string", b"a\xff"),
        ("decimal(2, 0)", b"\x64"),
        ("decimal(2, 0)", b""),
        ("decimal(38, 0)", bytes(17)),
        ("timestamp", b"\xff\xff\xff\x7f"),
    ],
)
def test_invalid_values_are_refused(name: str, value: bytes) -> None:
    with pytest.raises(ValueError, match="0x") as refused:
        decode_bounds(binary(None, value), name)
    assert value.hex() in str(refused.value)
    assert name.replace(" ", "") in str(refused.value).replace(" ", "")


def test_bytes_behind_nulls_are_skipped() -> None:
    """Arrow allows a null to have bytes."""
    offsets, data = pa.py_buffer(struct.pack("<3i", 0, 4, 8)), pa.py_buffer(struct.pack("<2i", 9, 5))
    values = pa.Array.from_buffers(pa.binary(), 2, [pa.py_buffer(b"\x02"), offsets, data])
    assert decode_bounds(values, "int").to_pylist() == [None, 5]


def test_large_binary_and_nan() -> None:
    (value,) = decode_bounds(pa.array([struct.pack("<f", math.nan)], pa.large_binary()), "float").to_pylist()
    assert math.isnan(value)


def test_types_without_order() -> None:
    assert decode_bounds(binary(b"x"), "unknown").type == pa.null()
    assert decode_bounds(binary(b"x"), "geometry(OGC:CRS84)").to_pylist() == [b"x"]
    with pytest.raises(ValueError, match="struct"):
        bound_arrow_type("struct<1: a: optional int>")


def test_loads_nothing_heavy() -> None:
    """Executors import it."""
    heavy = "[m for m in ('pyiceberg.table', 'pydantic', 'pyspark') if m in sys.modules]"
    code = f"import sys, sparkmeta.expr.bounds; print({heavy})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
