"""Tables that hold every type: values at the edges, columns of nulls and NaN, metrics modes, file formats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.peers.corpus import ALL_VERSIONS, recipe

if TYPE_CHECKING:
    from tests.peers.workshop import Workshop

COLUMNS = """
    i INT, l BIGINT, f FLOAT, d DOUBLE, b BOOLEAN, small DECIMAL(5,2), mid DECIMAL(18,4), big DECIMAL(38,10),
    day DATE, ts TIMESTAMP, ntz TIMESTAMP_NTZ, s STRING, bin BINARY,
    st STRUCT<x: INT, deep: STRUCT<y: STRING, z: DOUBLE>>, arr ARRAY<INT>, m MAP<STRING, INT>
"""
NESTED_NULL = "null, null, null"
NAMES = "i, l, f, d, b, small, mid, big, day, ts, ntz, s, bin, st, arr, m"


def row(i: int) -> str:
    """An ordinary row: every value grows with i."""
    return (
        f"{i}, {i * 10**12}, float('{i}.5'), double('{i * 1000}.25'), {'true' if i % 2 else 'false'}, "
        f"cast({i} as decimal(5,2)), cast({i}.1234 as decimal(18,4)), cast({i}000000000000000000 as decimal(38,10)), "
        f"date_add(date'2020-01-01', {i * 20}), timestamp_micros({i * 10**14 + 123456}), "
        f"cast(timestamp_micros({i * 10**14 + 1}) as timestamp_ntz), 's{i:03d}', X'{i % 256:02x}10', "
        f"named_struct('x', {i}, 'deep', named_struct('y', 'y{i}', 'z', double('{i}.5'))), "
        f"array({i}, null), map('k', {i})"
    )


NEGATIVE = (
    "-5, -9000000000000000000, float('-0.0'), double('-0.0'), false, cast(-999.99 as decimal(5,2)), "
    "cast(-1.0001 as decimal(18,4)), cast(-9999999999999999999999999999.9999999999 as decimal(38,10)), "
    "date'1969-12-31', timestamp'1969-12-31 23:59:59.999999 UTC', timestamp_ntz'1900-01-01 00:00:00.000001', '', X'', "
    "named_struct('x', -1, 'deep', named_struct('y', '', 'z', double('-1.5'))), array(-1), map('', -1)"
)
ZERO = (
    "0, 0, float('0.0'), double('0.0'), true, cast(0 as decimal(5,2)), cast(0 as decimal(18,4)), "
    "cast(0 as decimal(38,10)), date'1970-01-01', timestamp'1970-01-01 00:00:00 UTC', "
    "timestamp_ntz'1970-01-01 00:00:00', '\\u0000', X'00', named_struct('x', 0, 'deep', null), array(), map()"
)
NULLS = ", ".join(["null"] * 16)
NAN = f"null, null, float('NaN'), double('NaN'), {', '.join(['null'] * 9)}, {NESTED_NULL}"
NAN_AND_NUMBERS = f"1, 1, float('NaN'), double('NaN'), {', '.join(['null'] * 9)}, {NESTED_NULL}"
INFINITE = (
    "2147483647, 9223372036854775807, float('Infinity'), double('-Infinity'), null, cast(999.99 as decimal(5,2)), "
    "cast(99999999999999.9999 as decimal(18,4)), cast(9999999999999999999999999999.9999999999 as decimal(38,10)), "
    "date'9999-12-31', timestamp'9999-12-31 23:59:59.999999 UTC', timestamp_ntz'9999-12-31 23:59:59.999999', "
    "'\\uFFFF', X'ffffffff', named_struct('x', null, 'deep', null), array(2147483647), map('z', null)"
)


def text_row(text: str, binary: bytes) -> str:
    return f"{', '.join(['null'] * 11)}, '{text}', X'{binary.hex()}', {NESTED_NULL}"


LONG = [
    text_row("abcdefgh" * 5, b"\x01\xff" * 20),
    text_row("abcdefgh" + "\U0001f600" * 30, b"\xff" * 40),
    text_row("\U0001f600" * 20, bytes(16)),
    text_row("\U0010ffff" * 20, bytes(17)),
    text_row("z" * 15 + "\ud7ff" * 2, b"\xff" * 15 + b"\x7f\xff"),
    text_row("z" * 15 + "\uffee" + "tail", b"\x01"),
    text_row("q" * 16, b"\x02"),
]


@recipe("types", versions=ALL_VERSIONS)
def types(shop: Workshop, version: int) -> None:
    """Every type that Spark writes, unpartitioned: nulls, NaN, zeros, extremes, long and astral text, nested."""
    shop.create(COLUMNS, version=version)
    fill(shop)


def fill(shop: Workshop) -> None:
    shop.insert(*(row(i) for i in range(1, 4)))
    shop.insert(*(row(i) for i in range(3, 9)), NULLS)
    shop.insert(NEGATIVE)
    shop.insert(ZERO, NEGATIVE)
    shop.insert(NULLS)
    shop.insert(NAN, NAN)
    shop.insert(NAN_AND_NUMBERS, row(2))
    shop.insert(INFINITE)
    for text in LONG:
        shop.insert(text)
    shop.insert(row(7), INFINITE, NULLS, ZERO)
