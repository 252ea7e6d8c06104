"""Tables that hold every type: values at the edges, columns of nulls and NaN, metrics modes, file formats."""

from __future__ import annotations

import uuid
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
    for rows in FILES:
        shop.insert(*rows)


FILES = [
    [row(i) for i in range(1, 4)],
    [*(row(i) for i in range(3, 9)), NULLS],
    [NEGATIVE],
    [ZERO, NEGATIVE],
    [NULLS],
    [NAN, NAN],
    [NAN_AND_NUMBERS, row(2)],
    [INFINITE],
    *([text] for text in LONG),
    [row(7), INFINITE, NULLS, ZERO],
]


@recipe("types", "metrics", versions=(2, 4))
def metrics_none(shop: Workshop, version: int) -> None:
    """No column has metrics, except one by its own mode."""
    modes = {"write.metadata.metrics.default": "none", "write.metadata.metrics.column.i": "full"}
    shop.create(COLUMNS, version=version, properties=modes)
    shop.insert_files(*FILES)


@recipe("types", "metrics", versions=(1, 2, 3))
def metrics_counts(shop: Workshop, version: int) -> None:
    """Counts but no bounds; then none, then truncated ones: files of one table differ in what is known."""
    shop.create(COLUMNS, version=version, properties={"write.metadata.metrics.default": "counts"})
    shop.insert(*(row(i) for i in range(1, 4)))
    shop.insert(NULLS)
    shop.insert(NAN, NAN)
    shop.insert(NAN_AND_NUMBERS, row(2))
    shop.insert(ZERO, NEGATIVE)
    shop.set(write__metadata__metrics__default="none")
    shop.insert(*(row(i) for i in range(4, 6)))
    shop.set(write__metadata__metrics__default="truncate(2)")
    shop.insert(*(row(i) for i in range(6, 9)))
    shop.insert(NULLS, row(1))


@recipe("types", "metrics")
def metrics_truncate(shop: Workshop, version: int) -> None:
    """Bounds cut to three characters or bytes, and to one in another column."""
    modes = {"write.metadata.metrics.default": "truncate(3)", "write.metadata.metrics.column.bin": "truncate(1)"}
    shop.create(COLUMNS, version=version, properties=modes)
    shop.insert_files(*FILES)


@recipe("types", "metrics", versions=(2, 3))
def metrics_full(shop: Workshop, version: int) -> None:
    """Bounds are whole values, however long."""
    shop.create(COLUMNS, version=version, properties={"write.metadata.metrics.default": "full"})
    shop.insert_files(*FILES)


@recipe("types", "metrics")
def metrics_inferred(shop: Workshop, version: int) -> None:
    """Only the first three columns have metrics, since the table has more than it may infer them for."""
    shop.create(COLUMNS, version=version, properties={"write.metadata.metrics.max-inferred-column-defaults": "3"})
    shop.insert_files(*FILES)


@recipe("types", "formats", versions=(1, 2, 3, 4))
def format_orc(shop: Workshop, version: int) -> None:
    """ORC data files."""
    shop.create(COLUMNS, version=version, properties={"write.format.default": "orc"})
    shop.insert_files(*FILES)


@recipe("types", "formats", versions=(1, 2, 3, 4))
def format_avro(shop: Workshop, version: int) -> None:
    """Avro data files, which have no column sizes."""
    shop.create(COLUMNS, version=version, properties={"write.format.default": "avro"})
    shop.insert_files(*FILES)


@recipe("types", "formats", "partitions")
def format_mixed(shop: Workshop, version: int) -> None:
    """Data files of all three formats, partitioned."""
    shop.create("id INT, p STRING, x DOUBLE", "p", version=version)
    for i, kind in enumerate(("parquet", "orc", "avro", "parquet", "orc", "avro")):
        shop.set(write__format__default=kind)
        shop.insert(f"{i}, 'a', {i}.5D", f"{i + 1}, 'b', double('NaN')", f"{i + 2}, null, null")


@recipe("types", versions=(2, 3))
def required(shop: Workshop, version: int) -> None:
    """Required columns, also inside optional structs."""
    shop.create(
        "id INT NOT NULL, s STRING NOT NULL, d DOUBLE NOT NULL, st STRUCT<x: INT NOT NULL, y: INT>, "
        "req STRUCT<z: INT NOT NULL, deep: STRUCT<w: STRING NOT NULL> NOT NULL> NOT NULL",
        "bucket(2, id)",
        version=version,
    )
    for i in range(4):
        optional = f"named_struct('x', {i}, 'y', cast(null as int))" if i % 2 else "null"
        shop.insert(f"{i}, 's{i}', {i}.5D, {optional}, named_struct('z', {i}, 'deep', named_struct('w', 'w{i}'))")
    shop.insert(
        "9, 's', double('NaN'), null, named_struct('z', 9, 'deep', named_struct('w', ''))",
        "10, 't', double('-0.0'), named_struct('x', 10, 'y', 11), named_struct('z', 9, 'deep', named_struct('w', 'q'))",
    )


@recipe("types")
def nested(shop: Workshop, version: int) -> None:
    """Structs in structs, in lists and in maps; names with dots in them."""
    shop.create(
        "id INT, a STRUCT<b: STRUCT<c: STRUCT<d: BIGINT, e: STRING>>>, l ARRAY<STRUCT<x: INT, y: STRING>>, "
        "m MAP<STRING, STRUCT<v: DOUBLE>>, ll ARRAY<ARRAY<INT>>, `a.dotted` INT, `st.x` STRUCT<`q.r`: INT>",
        version=version,
    )
    for i in range(6):
        inner = f"named_struct('d', {i}L, 'e', 'e{i}')" if i % 3 else "null"
        shop.insert(
            f"{i}, named_struct('b', named_struct('c', {inner})), array(named_struct('x', {i}, 'y', 'y')), "
            f"map('k', named_struct('v', double('{i}'))), array(array({i})), {i}, named_struct('q.r', {i})"
        )
    shop.insert("7, named_struct('b', null), null, null, null, null, null", "8, null, null, null, null, null, null")


FIELDS_V2 = [("t", "time"), ("u", "uuid"), ("fx", "fixed[4]"), ("i", "int")]
FIELDS_V3 = [*FIELDS_V2, ("ns", "timestamp_ns"), ("tzns", "timestamptz_ns")]


def json_fields(fields: list[tuple[str, str]]) -> list[dict[str, object]]:
    return [
        {"id": number, "name": name, "required": False, "type": kind} for number, (name, kind) in enumerate(fields, 1)
    ]


UUIDS = [uuid.UUID(int=n).bytes for n in (1, 2**127, 2**128 - 1, 2**64, 2**63)]
NANOS = [1_600_000_000_123_456_789, -1, 0, -86_400_000_000_001, 4_000_000_000_000_000_001]


def java_columns(start: int, stop: int, version: int) -> dict[str, list[object]]:
    """Values of the columns that Spark does not know, null included where stop is 5."""
    null: list[object] = [None] * (stop == 5)
    columns: dict[str, list[object]] = {
        "t": [n * 3_600_000_000 + n for n in range(start, stop)] + null,
        "u": [*UUIDS[start:stop], *null],
        "fx": [*[bytes([n, 255 - n, 128, n]) for n in range(start, stop)], *null],
        "i": [*range(start, stop), *null],
    }
    return columns | ({"ns": [*NANOS[start:stop], *null], "tzns": [*NANOS[start:stop], *null]} if version > 2 else {})


@recipe("types", "not_spark", versions=(1, 2, 3, 4))
def java_types(shop: Workshop, version: int) -> None:
    """time, uuid, fixed and (from version 3) nanosecond timestamps, in Parquet files that Java measured."""
    shop.create_by_java(json_fields(FIELDS_V3 if version > 2 else FIELDS_V2), version=version)
    for start, stop in ((0, 1), (1, 2), (2, 3), (0, 3), (3, 5), (0, 5), (1, 4)):
        shop.append(shop.data_file(f"{start}-{stop}.parquet", java_columns(start, stop, version)))
    shop.append(shop.data_file("nulls.parquet", {"t": [None], "u": [None], "fx": [None], "i": [None]}))
    shop.append(shop.data_file("few-columns.parquet", {"i": [1, 2]}))


@recipe("types", "variant", versions=(3, 4))
def variant(shop: Workshop, version: int) -> None:
    """A variant column beside others: it has counts, and bounds that no primitive filter may use."""
    shop.create("id INT, v VARIANT, st STRUCT<`inner`: VARIANT>", version=version)
    for i in range(4):
        shop.insert(f"{i}, parse_json('{{\"a\": {i}}}'), named_struct('inner', parse_json('[1, {i}]'))")
    shop.insert("9, null, null")


@recipe("types", "not_spark", versions=(3, 4))
def unusual_types(shop: Workshop, version: int) -> None:
    """unknown, geometry and geography columns (from version 3)."""
    fields = [("id", "int"), ("nothing", "unknown"), ("g", "geometry"), ("g4", "geometry(EPSG:3857)")]
    fields += [("h", "geography"), ("hh", "geography(OGC:CRS84, karney)")]
    shop.create_by_java(json_fields(fields), version=version)
    for i in range(4):
        shop.append(shop.content_file({"file-path": shop.file_location(f"{i}.parquet")}))


@recipe("types", versions=(3,))
def unknown_type(shop: Workshop, version: int) -> None:
    """A column of type unknown: always null, in no file."""
    shop.create_by_java(json_fields([("id", "int"), ("nothing", "unknown"), ("s", "string")]), version=version)
    for i in range(3):
        shop.append(shop.data_file(f"{i}.parquet", {"id": [i, i + 1], "s": [f"s{i}", None]}))


@recipe("types", "schema", "defaults", versions=(3, 4))
def defaults(shop: Workshop, version: int) -> None:
    """Columns added later with initial defaults (version 3): older files lack them."""
    shop.create("id INT, s STRING", version=version)
    shop.insert("1, 'a'")
    types, literals = shop.java.iceberg.types.Types, shop.java.iceberg.expressions.Expressions
    update = shop.table.updateSchema()
    update.addColumn("n", types.IntegerType.get(), "with a default", literals.lit(7))
    update.addColumn("text", types.StringType.get(), "with a default", literals.lit("seven"))
    update.commit()
    shop.insert("2, 'b', 8, 'eight'", "3, 'c', null, null")
    shop.insert("4, 'd', 7, 'seven'")
