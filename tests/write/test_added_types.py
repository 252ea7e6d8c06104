"""Existing files whose types Iceberg's Java readers misread or can't read are refused, and Java reads added files."""

from __future__ import annotations

import io
import os
import uuid
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema

import sparkmeta as sm
from sparkmeta.avro.container import container_blocks, container_header
from sparkmeta.write.add_files import existing_files
from tests.maintain.test_expire import opened
from tests.peers.java import Java
from tests.peers.slices import SOAK
from tests.peers.workshop import Workshop
from tests.write.test_add_files import new_table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

TIME = datetime.fromisoformat("2024-01-02T03:04:05.678")
UUID = uuid.UUID(int=77)


class Stored(NamedTuple):
    """Values of a column of a file, and the type of the table's column.

    Attributes:
        values: an array; for Avro a stored value, which is written with a null.
        kind: the Avro type.
        options: options of the Parquet writer.
    """

    name: str
    values: Any
    type: str
    kind: Any = None
    options: dict[str, Any] = {}  # noqa: RUF012

    @property
    def format(self) -> str:
        return self.name.partition(" ")[0]


def logical(kind: str, logical_type: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": logical_type, **more}


def instants(unit: str, zone: str | None = None) -> pa.Array:
    return pa.array([TIME, None], pa.timestamp("us")).cast(pa.timestamp(unit, zone), safe=False)


NUMBER = pa.array([5, None], pa.int64())
DAYS = pa.array([date(2024, 1, 2), None])
MILLIS = round(TIME.replace(tzinfo=UTC).timestamp() * 1000)
DECIMAL = pa.array([Decimal("1.23"), None], pa.decimal128(9, 2))
FIXED = pa.array([UUID.bytes, None], pa.binary(16))
OLD = {"use_deprecated_int96_timestamps": True}
PLAIN = [
    *(Stored(f"{each} {kind}", NUMBER.cast(kind), name)
      for each in ("parquet", "orc")
      for kind, name in (("int8", "int"), ("int16", "int"), ("int32", "int"), ("int32", "long"), ("int64", "long"))),
    *(Stored(f"{each} {array.type}", array, name)
      for each in ("parquet", "orc")
      for array, name in (
          (pa.array([1.5, None], pa.float32()), "float"), (pa.array([1.5, None], pa.float32()), "double"),
          (pa.array([True, None]), "boolean"), (DAYS, "date"), (DECIMAL, "decimal(9, 2)"), (DECIMAL, "decimal(38, 2)"),
          (pa.array(["a", None]), "string"), (pa.array([b"a", None]), "binary"),
          (instants("us"), "timestamp"), (instants("us", "UTC"), "timestamptz"))),
    Stored("parquet int8", NUMBER.cast("int8"), "long"),
    Stored("parquet integer of a decimal", DECIMAL, "decimal(12, 2)", None, {"store_decimal_as_integer": True}),
    Stored("parquet items", NUMBER, "long", None, {"use_compliant_nested_type": False}),
    Stored("parquet int96", instants("us"), "timestamp", None, OLD),
    Stored("parquet int96", instants("us"), "timestamptz", None, OLD),
    Stored("parquet dictionary", pa.array(["a", None]).dictionary_encode(), "string"),
    Stored("parquet fixed", FIXED, "fixed[16]"),
    Stored("parquet fixed", FIXED, "uuid"),
    Stored("orc nanoseconds", instants("ns"), "timestamp"),
    Stored("avro int", 5, "long", "int"),
    Stored("avro float", 1.5, "double", "float"),
    Stored("avro timestamp", MILLIS, "timestamp", logical("long", "timestamp-millis")),
    Stored("avro timestamp", MILLIS * 1000, "timestamptz", logical("long", "timestamp-micros")),
    Stored("avro decimal", b"\x7b", "decimal(12, 2)", logical("bytes", "decimal", precision=9, scale=2)),
    Stored("avro uuid", UUID.bytes, "uuid", logical("fixed", "uuid", size=16, name="f")),
    Stored("avro fixed", UUID.bytes, "fixed[16]", {"type": "fixed", "size": 16, "name": "f"}),
]  # fmt: skip
REFUSED = [
    *(Stored(f"parquet {kind}", NUMBER.cast(kind), name)
      for kind, name in (("uint8", "int"), ("uint16", "int"), ("uint32", "long"), ("uint64", "long"))),
    Stored("parquet milliseconds", instants("ms"), "timestamp"),
    Stored("parquet seconds", instants("s"), "timestamp"),
    Stored("parquet milliseconds", instants("ms", "UTC"), "timestamptz"),
    Stored("parquet nanoseconds", instants("ns"), "timestamp"),
    Stored("parquet half", pa.array([1.5, None], pa.float16()), "float"),
    Stored("parquet null", pa.nulls(2), "string"),
    Stored("parquet date", DAYS, "timestamp"),
    Stored("parquet string", pa.array(["a", None]), "binary"),
    Stored("parquet binary", pa.array([b"a", None]), "string"),
    Stored("parquet boolean as RLE", pa.array([True, None]), "boolean", None, {"data_page_version": "2.0"}),
    Stored("orc tinyint", NUMBER.cast("int8"), "long"),
    Stored("orc smallint", NUMBER.cast("int16"), "long"),
    Stored("orc date", DAYS, "timestamp"),
    Stored("orc timestamp", instants("us"), "timestamptz"),
    Stored("orc instant", instants("us", "UTC"), "timestamp"),
    Stored("orc string", pa.array(["a", None]), "binary"),
    Stored("orc binary", pa.array([b"a", None]), "string"),
    Stored("avro date", 1, "timestamp", logical("int", "date")),
    Stored("avro local timestamp", MILLIS, "timestamp", logical("long", "local-timestamp-millis")),
    Stored("avro local timestamp", MILLIS, "timestamptz", logical("long", "local-timestamp-micros")),
    Stored("avro nanoseconds", MILLIS * 10**6, "timestamp", logical("long", "timestamp-nanos")),
    Stored("avro string", "a", "binary", "string"),
    Stored("avro bytes", b"a", "string", "bytes"),
    Stored("avro text of a uuid", str(UUID), "uuid", logical("string", "uuid")),
    Stored("avro fixed", UUID.bytes, "uuid", {"type": "fixed", "size": 16, "name": "f"}),
]  # fmt: skip
# Spark lacks these types, or only Iceberg's generic reader fails.
BY_GENERIC_READER = [
    Stored("parquet milliseconds", pa.array([time(1), None], pa.time32("ms")), "time"),
    Stored("avro time", 3_600_000_000, "time", logical("long", "time-micros")),
]
REFUSED_BY_GENERIC_READER = [
    Stored("parquet nanoseconds", pa.array([time(1), None], pa.time64("ns")), "time"),
    Stored("avro milliseconds", 3_600_000, "time", logical("int", "time-millis")),
    Stored("avro long", 3_600_000_000, "time", "long"),
    Stored("avro enum", "a", "string", {"type": "enum", "name": "e", "symbols": ["a"]}),
]
PLACES = "cslm"


def write(folder: Path, stored: Stored, number: int = 0, places: str = PLACES) -> str:
    """Write a file with several columns of the same values: a column c, a struct s, a list l and a map m."""
    path = folder / f"{stored.name.replace(' ', '-')}-{stored.type}-{places}-{number}.{stored.format}"
    if stored.format == "avro":
        path.write_bytes(avro(stored, number, places))
        return str(path)
    values, count = stored.values, len(stored.values)
    offsets = pa.array(range(count + 1), pa.int32())
    columns = {
        "c": values,
        "s": pa.StructArray.from_arrays([values], names=["x"]),
        "l": pa.ListArray.from_arrays(offsets, values),
        "m": pa.MapArray.from_arrays(offsets, pa.array(["k"] * count), values),
    }
    table = pa.table({f"{name}{number}": columns[name] for name in places})
    if stored.format == "orc":
        orc.write_table(table, path)
    else:
        pq.write_table(table, path, **stored.options)
    return str(path)


def avro(stored: Stored, number: int, places: str) -> bytes:
    """Return a file of a value and null.

    fastavro would convert values, so the records are written without logical types.
    """

    def schema(kind: Any) -> dict[str, Any]:
        listed = []
        for name in places:
            union = ["null", kind]
            types: dict[str, Any] = {
                "c": union,
                "s": {"type": "record", "name": "r", "fields": [{"name": "x", "type": union}]},
                "l": {"type": "array", "items": union},
                "m": {"type": "map", "values": union},
            }
            listed.append({"name": f"{name}{number}", "type": types[name]})
            kind = kind.get("name", kind) if isinstance(kind, dict) else kind
        return {"type": "record", "name": "row", "fields": listed}

    kind = stored.kind
    raw = {key: value for key, value in kind.items() if key != "logicalType"} if isinstance(kind, dict) else kind
    records = []
    for value in (stored.values, None):
        columns = {"c": value, "s": {"x": value}, "l": [value], "m": {"k": value}}
        record = io.BytesIO()
        named = {f"{name}{number}": columns[name] for name in places}
        fastavro.schemaless_writer(record, fastavro.parse_schema(schema(raw)), named)
        records.append(record.getvalue())
    sync = os.urandom(16)
    blocks = container_blocks(pa.array(records, pa.binary()), bytes, sync)
    return container_header(schema(kind), "null", {}, sync) + b"".join(blocks)


def fields(listed: list[Stored]) -> Iterator[dict[str, Any]]:
    for number, stored in enumerate(listed):
        ids, kind = number * 20, stored.type
        inside = {"id": ids + 3, "name": "x", "required": False, "type": kind}
        kinds = (
            kind,
            {"type": "struct", "fields": [inside]},
            {"type": "list", "element-id": ids + 5, "element": kind, "element-required": False},
            {
                "type": "map",
                "key-id": ids + 7,
                "key": "string",
                "value-id": ids + 8,
                "value": kind,
                "value-required": False,
            },
        )
        for place, name, nested in zip((1, 2, 4, 6), PLACES, kinds, strict=True):
            yield {"id": ids + place, "name": f"{name}{number}", "required": False, "type": nested}


def values_of(stored: Stored) -> list[Any]:
    """Return the values as in Spark's rows."""
    values = stored.values.to_pylist() if stored.format != "avro" else [stored.values, None]
    if stored.format == "avro" and isinstance(stored.kind, dict):
        shown = {"timestamp-millis": TIME, "timestamp-micros": TIME, "decimal": Decimal("1.23"), "time-micros": time(1)}
        values[0] = shown.get(stored.kind.get("logicalType", ""), values[0])
    if stored.type == "uuid":
        return [str(UUID), None]
    return [value.replace(tzinfo=None) if isinstance(value, datetime) else value for value in values]


@pytest.mark.java
def test_java_reads_what_is_added(spark: SparkSession, tmp_path: Path) -> None:
    shop = Workshop(Java(spark), "added_types")
    shop.create_by_java([*fields(PLAIN)])
    opened(shop).add_files([write(tmp_path, stored, number) for number, stored in enumerate(PLAIN)])
    # Java's vectorized reader reads only columns that are not nested.
    selected = {"c": "c{0}", "s": "s{0}.x", "l": "l{0}[0]", "m": "m{0}['k']"}
    for vectors, places in ((True, "c"), (False, "cslm")):
        table = spark.read.option("vectorization-enabled", str(vectors).lower()).table(shop.sql_name)
        columns = [
            f"{selected[place].format(number)} AS {place}{number}" for number in range(len(PLAIN)) for place in places
        ]
        rows = table.selectExpr("_file", *columns).toArrow().to_pylist()
        for number, stored in enumerate(PLAIN):
            of_file = [row for row in rows if row["_file"].endswith(f"-{number}.{stored.format}")]
            for place in places:
                read = [row[f"{place}{number}"] for row in of_file]
                read = [value.replace(tzinfo=None) if isinstance(value, datetime) else value for value in read]
                assert read == values_of(stored), (stored.name, stored.type, place, vectors)
    others = Workshop(Java(spark), "added_types_of_generic_reader")
    others.create_by_java([*fields(BY_GENERIC_READER)])
    opened(others).add_files([write(tmp_path, stored, number) for number, stored in enumerate(BY_GENERIC_READER)])
    for number in range(len(BY_GENERIC_READER)):
        records = Java(spark).records(others.metadata_location, f"c{number}")
        assert sorted(str(record.get(0)) for record in records) == ["01:00", "None", "None", "None"]


def test_what_java_does_not_read_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    listed = REFUSED + REFUSED_BY_GENERIC_READER
    schema = Schema.model_validate({"type": "struct", "fields": [*fields(listed)]})
    table = new_table(spark, tmp_path, PartitionSpec(), schema=schema)
    # The driver does the tasks' work, since a commit for each file would run jobs.
    tasks = existing_files(table.state, check_other_tables=True)
    for number, stored in enumerate(listed):
        names = {"c": "c{}", "s": "s{}.x", "l": "l{}.element", "m": "m{}.value"}
        for place, name in names.items():
            path = write(tmp_path, stored, number, place)
            (described,) = tasks.describe([pa.record_batch({"file_path": [path]})])
            (problem,) = described["problem"].to_pylist()
            assert problem is not None, (stored, place)
            assert problem.startswith(f"{path}: "), problem
            assert name.format(number) in problem, problem
            assert stored.type in problem, problem
            assert f"table.append(spark.read.{stored.format.replace('avro', 'format')}(" in problem, problem
    path = write(tmp_path, REFUSED[0], 0, "c")
    with pytest.raises(sm.ValidationError, match="column c0 is an unsigned integer of 8 bits: Iceberg's Java readers"):
        table.add_files([path])
    assert table.refresh().current_snapshot() is None


@pytest.mark.java
@pytest.mark.skipif(not SOAK, reason="a table for each type")
def test_java_does_not_read_what_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    for number, stored in enumerate(REFUSED + REFUSED_BY_GENERIC_READER):
        shop = Workshop(Java(spark), f"refused_{number}")
        shop.create_by_java([*fields([stored])][:1])
        mapping = Java(spark).iceberg.mapping
        names = mapping.NameMappingParser.toJson(mapping.MappingUtil.create(shop.table.schema()))
        shop.table.updateProperties().set("schema.name-mapping.default", names).commit()
        path = write(tmp_path, stored, 0, "c")
        size = os.path.getsize(path)  # noqa: PTH202
        file = {"file-path": f"file://{path}", "file-format": stored.format, "file-size-in-bytes": size}
        shop.table.newAppend().appendFile(shop.content_file({**file, "record-count": 2})).commit()
        expected = values_of(stored)

        def by_spark(*, vectors: bool) -> list[Any]:
            table = spark.read.option("vectorization-enabled", str(vectors).lower()).table(shop.sql_name)  # noqa: B023
            return [row.c0 for row in table.collect()]

        def by_generic_reader() -> list[Any]:
            return [record.get(0) for record in Java(spark).records(shop.metadata_location)]  # noqa: B023

        readers = [by_generic_reader] if stored in REFUSED_BY_GENERIC_READER else [
            lambda: by_spark(vectors=True), lambda: by_spark(vectors=False),
        ]  # fmt: skip
        read = []
        for reader in readers:
            try:
                read.append(reader())
            except Exception as error:  # noqa: BLE001  Java's, of any class
                read.append(error)
        assert any(rows != expected for rows in read), (stored, read)
