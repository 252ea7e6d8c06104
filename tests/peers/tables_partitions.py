"""Tables for every partition transform, and identity partitions on every type."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from tests.peers.corpus import ALL_VERSIONS, add, recipe
from tests.peers.tables_types import UUIDS, java_columns, json_fields

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.peers.workshop import Workshop

COLUMNS = (
    "id INT, l BIGINT, f FLOAT, d DOUBLE, b BOOLEAN, dec DECIMAL(9,2), big DECIMAL(38,0), day DATE, ts TIMESTAMP, "
    "ntz TIMESTAMP_NTZ, s STRING, bin BINARY"
)
KEYS = [column.split()[0] for column in COLUMNS.split(", ")]
# Two ordinary values, the edges, and null: in the order of the columns.
VALUES = {
    "id": ["1", "34", "-1", "0", "2147483647", "-2147483648", "1000", "null"],
    "l": ["1", "10000000000", "-1", "0", "9223372036854775807", "-9223372036854775808", "34", "null"],
    "f": [f"float('{v}')" for v in ("1.5", "-2.25", "-0.0", "0.0", "NaN", "Infinity", "-Infinity")] + ["null"],
    "d": [f"double('{v}')" for v in ("1.5", "-2.25", "-0.0", "0.0", "NaN", "Infinity", "-Infinity")] + ["null"],
    "b": ["true", "false", "true", "false", "true", "true", "false", "null"],
    "dec": [f"cast({v} as decimal(9,2))" for v in ("14.20", "-14.20", "0", "0.01", "9999999.99", "-0.01", "10.65")]
    + ["null"],
    "big": [f"cast({v} as decimal(38,0))" for v in ("1", "-1", "0", "9" * 38, "-" + "9" * 37, "256", "-129")]
    + ["null"],
    "day": [f"date'{v}'" for v in ("2020-02-29", "1969-12-31", "1970-01-01", "1970-01-02", "9999-12-31", "1899-01-01")]
    + ["date'1969-01-31'", "null"],
    "ts": [f"timestamp'{v} UTC'" for v in ("2020-02-29 11:59:59.999999", "1969-12-31 23:59:59.999999")]
    + [f"timestamp'{v} UTC'" for v in ("1970-01-01 00:00:00", "1969-12-31 00:00:00", "1969-01-31 22:30:00.5")]
    + ["timestamp'1968-12-31 23:00:00 UTC'", "timestamp'2262-04-11 23:47:16 UTC'", "null"],
    "s": ["'a'", "'abcdef'", "''", "'\U0001f600\U0001f600\U0001f601'", "'abc'", "'ab'", "'\uffee'", "null"],
    "bin": ["X'01'", "X'00ff7f'", "X''", "X'ffffffff'", "X'00ff'", "X'80'", "X'00'", "null"],
}
VALUES["ntz"] = [value.replace("timestamp'", "timestamp_ntz'").replace(" UTC", "") for value in VALUES["ts"]]


def rows() -> list[str]:
    """Eight rows, each of the n-th value of every column."""
    return [", ".join(VALUES[key][n] for key in KEYS) for n in range(8)]


def build(shop: Workshop, version: int, partitioned: str) -> None:
    shop.create(COLUMNS, partitioned, version=version)
    shop.insert(*rows()[:5])
    shop.insert(*rows()[4:])
    shop.insert(*rows()[7:])


SINGLE = {
    **{f"identity_{key}": key for key in KEYS},
    **{f"bucket_{key}": f"bucket(3, {key})" for key in KEYS if key not in ("f", "d", "b")},
    **{f"truncate_{key}": f"truncate(10, {key})" for key in ("id", "l", "dec", "big")},
    **{f"truncate_{key}": f"truncate(2, {key})" for key in ("s", "bin")},
    **{f"{unit}_{key}": f"{unit}({key})" for unit in ("years", "months", "days") for key in ("day", "ts", "ntz")},
    **{f"hours_{key}": f"hours({key})" for key in ("ts", "ntz")},
}
COMBINED = {
    "identity_numbers": "id, l, f, d, b, dec, big",
    "identity_others": "day, ts, ntz, s, bin",
    "transforms": "bucket(2, id), truncate(2, s), years(day), months(ntz), hours(ts), truncate(100, dec)",
    "days_and_bucket": "days(ts), bucket(4, s)",
}

for _name, _by in SINGLE.items():
    add(
        f"{_name}_v2",
        lambda shop, version, by=_by: build(shop, version, by),
        2,
        ("partitions", "single"),
        f"Partitioned by {_by}: ordinary values, edges and null.",
    )
for _name, _by in COMBINED.items():
    for _version in ALL_VERSIONS:
        add(
            f"{_name}_v{_version}",
            lambda shop, version, by=_by: build(shop, version, by),
            _version,
            ("partitions",),
            f"Partitioned by {_by}: ordinary values, edges and null.",
        )


@recipe("partitions", versions=ALL_VERSIONS)
def void(shop: Workshop, version: int) -> None:
    """A void field beside an identity field, and a table whose only field is void."""
    fields = [
        {"id": 1, "name": "id", "required": False, "type": "int"},
        {"id": 2, "name": "s", "required": False, "type": "string"},
    ]
    shop.create_by_java(fields, [("id", "void"), ("s", "identity")], version=version)
    shop.insert("1, 'a'", "2, 'b'", "3, null")
    shop.insert("4, 'a'")


JAVA_ONLY = {"t": "time", "u": "uuid", "fx": "fixed[4]", "ns": "timestamp_ns", "tzns": "timestamptz_ns"}
# Partition values in JSON of the rows that `java_columns` makes, and what the transforms make of them.
IDENTITIES: dict[str, Sequence[object]] = {
    "t": ["00:00:00", "01:00:00.000001", "02:00:00.000002"],
    "u": [str(uuid.UUID(bytes=value)) for value in UUIDS[:3]],
    "fx": ["00FF8000", "01FE8001", "02FD8002"],
    "ns": ["2020-09-13T12:26:40.123456789", "1969-12-31T23:59:59.999999999", "1970-01-01T00:00:00"],
    "tzns": [f"{v}+00:00" for v in ("2020-09-13T12:26:40.123456789", "1969-12-31T23:59:59.999999999")]
    + ["1970-01-01T00:00:00+00:00"],
}
ORDINALS: dict[str, Sequence[object]] = {
    "year": [50, -1, 0],
    "month": [608, -1, 0],
    "day": ["2020-09-13", "1969-12-31", "1970-01-01"],
    "hour": [444420, -1, 0],
}


def java_only(shop: Workshop, version: int, column: str, transform: str, values: Sequence[object]) -> None:
    shop.create_by_java(
        json_fields([(column, JAVA_ONLY[column]), ("i", "int")]), [(column, transform)], version=version
    )
    for n, value in enumerate(values):
        columns = {key: list(java_columns(n, n + 1, 3)[key]) for key in (column, "i")}
        shop.append(shop.data_file(f"{n}.parquet", columns, [value]))
    shop.append(shop.data_file("null.parquet", {column: [None], "i": [9]}, [None]))


for _column, _kind in JAVA_ONLY.items():
    _least = 3 if _column.endswith("ns") else 2
    for _transform, _values in {"identity": IDENTITIES[_column], "bucket[3]": [0, 1, 2]}.items():
        add(
            f"{_transform.split('[')[0]}_{_column}_v{_least}",
            lambda shop, version, args=(_column, _transform, _values): java_only(shop, version, *args),
            _least,
            ("partitions", "single", *(["not_spark"] if _kind != "fixed[4]" else [])),
            f"Partitioned by {_transform} of a {_kind} column"
            + (", with made-up values." if _transform != "identity" else "."),
        )
for _column in ("ns", "tzns"):
    for _transform, _values in ORDINALS.items():
        add(
            f"{_transform}s_{_column}_v3",
            lambda shop, version, args=(_column, _transform, _values): java_only(shop, version, *args),
            3,
            ("partitions", "single", "not_spark"),
            f"Partitioned by {_transform} of a {JAVA_ONLY[_column]} column.",
        )
