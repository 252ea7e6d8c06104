"""Position delete files of every format and deletion vectors, read as a Spark task reads them, without Spark."""

from __future__ import annotations

import datetime as dt
import io
import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc
from pyroaring import BitMap

from sparkmeta.avro.container import records_with_ids
from sparkmeta.errors import CorruptFileError
from sparkmeta.rows import delete_rows as tasks
from sparkmeta.rows.delete_rows import DeleteRows, RowField
from sparkmeta.spec.locations import Locations

LOCATIONS = Locations("file:///t", 2)
ROW = RowField(
    0,
    "struct",
    (
        RowField(1, "long"),
        RowField(2, "struct", (RowField(5, "string"), RowField(6, "int", default=7))),
        RowField(3, "list", (RowField(8, "date"),)),
        RowField(4, "map", (RowField(9, "string"), RowField(10, "double"))),
    ),
)
ROW_TYPE = pa.struct(
    [
        pa.field("id", pa.int64()),
        pa.field("st", pa.struct([pa.field("renamed", pa.string()), pa.field("added", pa.int32())])),
        pa.field("days", pa.list_(pa.date32())),
        pa.field("m", pa.map_(pa.string(), pa.float64())),
    ]
)
SCHEMA = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False),
        pa.field("pos", pa.int64(), nullable=False),
        pa.field("row", ROW_TYPE),
        pa.field("partition", pa.struct([pa.field("p", pa.string())]), nullable=False),
        pa.field("spec_id", pa.int32(), nullable=False),
        pa.field("delete_file_path", pa.string(), nullable=False),
        pa.field("content_offset", pa.int64()),
        pa.field("content_size_in_bytes", pa.int64()),
    ]
)
ENTRY = pa.struct(
    [
        pa.field("record_count", pa.int64()),
        pa.field("referenced_data_file", pa.string()),
        pa.field("content_offset", pa.int64()),
        pa.field("content_size_in_bytes", pa.int64()),
        pa.field("spec_id", pa.int32()),
        pa.field("partition", SCHEMA.field("partition").type),
    ]
)


@dataclass
class Memory:
    """Stands for the reader of executors; counts how often each file is opened."""

    files: dict[str, bytes]
    opened: list[str] = field(default_factory=list)

    def read(self, location: str) -> bytes:
        self.opened.append(location)
        return self.files[location]


def entry(**fields: Any) -> dict[str, Any]:
    return {"record_count": 2, "spec_id": 3, "partition": {"p": "x"}} | fields


def read(
    data: bytes, file_format: str, entries: list[dict[str, Any]], of: DeleteRows | None = None
) -> list[dict[str, Any]]:
    reader = Memory({"f": data})
    files = pa.RecordBatch.from_pydict(
        {
            "location": pa.array(["f"]),
            "file_format": pa.array([file_format]),
            "deletes": pa.array([entries], pa.list_(ENTRY)),
        }
    )
    batches: Iterator[pa.RecordBatch] = (of or DeleteRows(SCHEMA, ROW, LOCATIONS)).read(reader, [files])  # type: ignore[arg-type]
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert reader.opened == ["f"]
    return rows


def ided(name: str, kind: pa.DataType, field_id: int) -> pa.Field:
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(field_id)})


def parquet(columns: dict[str, tuple[int, pa.Array]]) -> bytes:
    schema = pa.schema([ided(name, array.type, field_id) for name, (field_id, array) in columns.items()])
    target = io.BytesIO()
    pq.write_table(pa.table([array for _, array in columns.values()], schema=schema), target)
    return target.getvalue()


def uncompressed(kind: str) -> bytes:
    """A delete file of two positions in the file format."""
    paths, positions = pa.array(["x:a", "x:b"]), pa.array([5, 1 << 40])
    if kind == "PARQUET":
        return parquet({"x": (2147483546, paths), "y": (2147483545, positions)})
    target = io.BytesIO()
    if kind == "ORC":
        orc.write_table(pa.table({"file_path": paths, "pos": positions}), target)
    else:
        schema = {
            "type": "record",
            "name": "d",
            "fields": [
                {"name": "file_path", "type": "string", "field-id": 2147483546},
                {"name": "pos", "type": "long", "field-id": 2147483545},
            ],
        }
        records = [{"file_path": a, "pos": b} for a, b in zip(["x:a", "x:b"], [5, 1 << 40], strict=True)]
        fastavro.writer(target, schema, records, codec="deflate")
    return target.getvalue()


@pytest.mark.parametrize("kind", ["PARQUET", "ORC", "AVRO"])
def test_formats(kind: str) -> None:
    rows = read(uncompressed(kind), kind, [entry()])
    assert [(row["file_path"], row["pos"], row["row"]) for row in rows] == [("x:a", 5, None), ("x:b", 1 << 40, None)]
    assert {key: rows[0][key] for key in ("partition", "spec_id", "delete_file_path", "content_offset")} == {
        "partition": {"p": "x"},
        "spec_id": 3,
        "delete_file_path": "f",
        "content_offset": None,
    }


def deleted_rows() -> pa.Array:
    """Rows of an older schema: id an int, other names, no field 6, days and map unchanged."""
    kind = pa.struct(
        [
            ided("old_st", pa.struct([ided("old", pa.string(), 5)]), 2),
            ided("gone", pa.int32(), 99),
            ided("id", pa.int32(), 1),
            ided("days", pa.list_(ided("element", pa.date32(), 8)), 3),
        ]
    )
    values = [{"old_st": {"old": "v"}, "gone": 1, "id": 4, "days": [None]}, None]
    return pa.array(values, kind)


def test_deleted_rows_in_the_present_schema() -> None:
    data = parquet(
        {
            "file_path": (2147483546, pa.array(["x:a", "x:b"])),
            "pos": (2147483545, pa.array([0, 1])),
            "row": (2147483544, deleted_rows()),
        }
    )
    first, second = read(data, "PARQUET", [entry()])
    assert first["row"] == {"id": 4, "st": {"renamed": "v", "added": 7}, "days": [None], "m": None}
    assert second["row"] is None


def delete_schema(row: dict[str, Any]) -> dict[str, Any]:
    """The Avro schema of a position delete file with deleted rows."""
    fields = [
        {"name": "file_path", "type": "string", "field-id": 2147483546},
        {"name": "pos", "type": "long", "field-id": 2147483545},
        {"name": "row", "type": ["null", row], "field-id": 2147483544},
    ]
    return {"type": "record", "name": "d", "fields": fields}


@pytest.mark.parametrize("attributes", [{"logicalType": "map"}, {}])
def test_deleted_rows_of_avro(attributes: dict[str, str]) -> None:
    pair = {
        "type": "record",
        "name": "kv",
        "fields": [{"name": "key", "type": "string"}, {"name": "value", "type": "double"}],
    }
    row = {
        "type": "record",
        "name": "r",
        "fields": [
            {"name": "id", "type": "int", "field-id": 1},
            {"name": "days", "field-id": 3, "type": {"type": "array", "items": {"type": "int", "logicalType": "date"}}},
            {"name": "m", "field-id": 4, "type": {"type": "array", "items": pair, **attributes}},
        ],
    }
    schema = delete_schema(row)
    target = io.BytesIO()
    values = {"id": 4, "days": [1], "m": [{"key": "k", "value": 1.5}]}
    fastavro.writer(target, schema, [{"file_path": "x:a", "pos": 1, "row": values}])
    [deleted] = read(target.getvalue(), "AVRO", [entry()])
    assert {**deleted["row"], "days": [str(day) for day in deleted["row"]["days"]]} == {
        "id": 4,
        "st": None,
        "days": ["1970-01-02"],
        "m": [("k", 1.5)],
    }


@pytest.mark.parametrize("kind", ["PARQUET", "AVRO"])
def test_deleted_rows_with_dates_that_became_timestamps(kind: str) -> None:
    days, types = {"x:a": 18262, "x:b": -1, "x:c": None}, {1: "timestamp", 2: "timestamptz", 3: "timestamp_ns"}
    row = RowField(0, "struct", tuple(RowField(field_id, name) for field_id, name in types.items()))
    shown = pa.struct(
        [pa.field("t", pa.timestamp("us")), pa.field("tz", pa.timestamp("us", "UTC")), pa.field("ns", pa.int64())]
    )
    if kind == "PARQUET":
        dates = pa.array(days.values(), pa.date32())
        fields = [ided(f"c{field_id}", pa.date32(), field_id) for field_id in types]
        rows = pa.StructArray.from_arrays([dates] * 3, fields=fields)
        data = parquet({
            "file_path": (2147483546, pa.array(list(days))), "pos": (2147483545, pa.array([0, 1, 2])),
            "row": (2147483544, rows),
        })  # fmt: skip
    else:
        date = ["null", {"type": "int", "logicalType": "date"}]
        of_row = [{"name": f"c{field_id}", "type": date, "field-id": field_id} for field_id in types]
        of_file = [
            {"name": "file_path", "type": "string", "field-id": 2147483546},
            {"name": "pos", "type": "long", "field-id": 2147483545},
            {"name": "row", "type": {"type": "record", "name": "r", "fields": of_row}, "field-id": 2147483544},
        ]
        target = io.BytesIO()
        records = [
            {"file_path": path, "pos": place, "row": {f"c{field_id}": day for field_id in types}}
            for place, (path, day) in enumerate(days.items())
        ]
        fastavro.writer(target, {"type": "record", "name": "d", "fields": of_file}, records)
        data = target.getvalue()
    schema = SCHEMA.set(SCHEMA.get_field_index("row"), pa.field("row", shown))
    deleted = read(data, kind, [entry(record_count=3)], DeleteRows(schema, row, LOCATIONS))
    naive = {"x:a": dt.datetime.fromisoformat("2020-01-01"), "x:b": dt.datetime.fromisoformat("1969-12-31")}
    expected = [
        {"t": at, "tz": at.replace(tzinfo=dt.UTC), "ns": days[path] * 86_400 * 10**9} for path, at in naive.items()
    ]
    assert [row["row"] for row in deleted] == [*expected, {"t": None, "tz": None, "ns": None}]


def test_deleted_rows_of_avro_with_maps() -> None:
    """Iceberg writes maps with keys of strings as maps of Avro."""
    strings = {"type": "map", "values": "double"}
    row = {"type": "record", "name": "r", "fields": [{"name": "m", "field-id": 4, "type": strings}]}
    schema = delete_schema(row)
    target = io.BytesIO()
    records = [{"file_path": "x:a", "pos": place, "row": {"m": {"k": 1.5, str(place): 2.5}}} for place in range(2)]
    fastavro.writer(target, schema, records)
    deleted = read(target.getvalue(), "AVRO", [entry()])
    assert [row["row"]["m"] for row in deleted] == [[("k", 1.5), ("0", 2.5)], [("k", 1.5), ("1", 2.5)]]


AVRO_TYPES: dict[str, tuple[Any, str, pa.DataType, Any, Any]] = {
    # Avro type, Iceberg type, type that is shown, value in the file, value that is shown
    "boolean": ("boolean", "boolean", pa.bool_(), True, True),
    "promoted int": ("int", "long", pa.int64(), 7, 7),
    "promoted float": ("float", "double", pa.float64(), 1.5, 1.5),
    "string": ("string", "string", pa.string(), "ü", "ü"),
    "binary": ("bytes", "binary", pa.binary(), b"\x00\xff", b"\x00\xff"),
    "fixed": ({"type": "fixed", "name": "f2", "size": 2}, "fixed[2]", pa.binary(), b"ab", b"ab"),
    "uuid": (
        {"type": "fixed", "name": "u", "size": 16, "logicalType": "uuid"},
        "uuid", pa.string(), UUID(int=5).bytes, "00000000-0000-0000-0000-000000000005",
    ),
    "decimal in fixed": (
        {"type": "fixed", "name": "f4", "size": 4, "logicalType": "decimal", "precision": 9, "scale": 2},
        "decimal(9, 2)", pa.decimal128(9, 2), Decimal("-1.25"), Decimal("-1.25"),
    ),
    "widened decimal": (
        {"type": "fixed", "name": "f4", "size": 4, "logicalType": "decimal", "precision": 9, "scale": 2},
        "decimal(18, 2)", pa.decimal128(18, 2), Decimal("1234567.89"), Decimal("1234567.89"),
    ),
    "decimal in bytes": (
        {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 3},
        "decimal(30, 3)", pa.decimal128(30, 3), Decimal("12.345"), Decimal("12.345"),
    ),
    "time": ({"type": "long", "logicalType": "time-micros"}, "time", pa.int64(), 5_000_001, 5_000_001),
    "timestamp": (
        {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": False},
        "timestamp", pa.timestamp("us"), -1, dt.datetime.fromisoformat("1969-12-31T23:59:59.999999"),
    ),
    "timestamptz": (
        {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True},
        "timestamptz", pa.timestamp("us", "UTC"), 1, dt.datetime(1970, 1, 1, 0, 0, 0, 1, dt.UTC),
    ),
    "timestamp_ns": (
        {"type": "long", "logicalType": "timestamp-nanos", "adjust-to-utc": False},
        "timestamp_ns", pa.int64(), 1_000_000_001, 1_000_000_001,
    ),
    "date": ({"type": "int", "logicalType": "date"}, "date", pa.date32(), -1, dt.date(1969, 12, 31)),
    "days without a logical type": ("int", "timestamp_ns", pa.int64(), -3, -3 * 86_400 * 10**9),
}  # fmt: skip


@pytest.mark.parametrize("name", AVRO_TYPES)
def test_types_of_deleted_rows_of_avro(name: str) -> None:
    stored, iceberg, shown, value, expected = AVRO_TYPES[name]
    columns = [{"name": "v", "type": ["null", stored], "default": None, "field-id": 1}]
    target = io.BytesIO()
    records = [{"file_path": "x:a", "pos": place, "row": {"v": each}} for place, each in enumerate([value, None])]
    fastavro.writer(target, delete_schema({"type": "record", "name": "r", "fields": columns}), records)
    schema = SCHEMA.set(SCHEMA.get_field_index("row"), pa.field("row", pa.struct([pa.field("v", shown)])))
    task = DeleteRows(schema, RowField(0, "struct", (RowField(1, iceberg),)), LOCATIONS)
    deleted = read(target.getvalue(), "AVRO", [entry(record_count=2)], task)
    assert [row["row"]["v"] for row in deleted] == [expected, None]


REFUSED_BY_AVRO = {
    "a field without an id": ([{"name": "v", "type": "int"}], "the field has no field-id"),
    "two fields with one id": (
        [{"name": "v", "type": "int", "field-id": 1}, {"name": "w", "type": "int", "field-id": 1}],
        "two fields have one field-id",
    ),
    "two fields with one name": (
        [{"name": "v", "type": "int", "field-id": 1}, {"name": "v", "type": "int", "field-id": 2}],
        "two fields have one name",
    ),
    "an array of nothing": (
        [{"name": "v", "type": {"type": "array", "items": "null"}, "field-id": 1}],
        "an array of nothing has no end",
    ),
    "a decimal that is too precise": (
        [{"name": "v", "field-id": 1,
          "type": {"type": "bytes", "logicalType": "decimal", "precision": 99, "scale": 2}}],
        "precision should be between 1 and 38",
    ),
    "a fixed type of no size": (
        [{"name": "v", "type": {"type": "fixed", "name": "x", "size": 0}, "field-id": 1}],
        "a fixed type needs a positive size",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED_BY_AVRO)
def test_schemas_of_avro_that_are_refused(name: str) -> None:
    columns, says = REFUSED_BY_AVRO[name]
    schema = json.dumps(delete_schema({"type": "record", "name": "r", "fields": columns})).encode()
    data = b"Obj\x01\x02" + avro_text(b"avro.schema") + avro_text(schema) + b"\x00" + bytes(16)
    with pytest.raises(CorruptFileError, match=f"^f: avro.schema is .*{says}"):
        read(data, "AVRO", [entry()])


def avro_text(value: bytes) -> bytes:
    """Encode bytes with their length, as Avro's header has them."""
    length, encoded = 2 * len(value), b""
    while length > 127:
        encoded, length = encoded + bytes([length & 127 | 128]), length >> 7
    return encoded + bytes([length]) + value


def test_positions_of_avro_are_read_without_the_rows() -> None:
    row = {
        "type": "record",
        "name": "r",
        "fields": [{"name": "m", "field-id": 4, "type": {"type": "map", "values": "int"}}],
    }
    target = io.BytesIO()
    fastavro.writer(target, delete_schema(row), [{"file_path": "x:a", "pos": 3, "row": {"m": {"k": 1}}}])
    [(paths, positions)] = tasks.deleted_positions(target.getvalue(), "AVRO", "f", LOCATIONS)
    assert (paths.to_pylist(), positions.to_pylist()) == (["x:a"], [3])
    [batch] = records_with_ids(target.getvalue(), "f", [2147483545])
    assert batch.schema.names == ["pos"]


def vector(positions: list[int]) -> bytes:
    framed = b"\xd1\xd3\x39\x64" + struct.pack("<QI", 1, 0) + BitMap(positions).serialize()
    return struct.pack(">I", len(framed)) + framed + struct.pack(">I", zlib.crc32(framed))


def puffin(*vectors: list[int]) -> tuple[bytes, list[dict[str, Any]]]:
    data, entries = b"PFA1", []
    for number, positions in enumerate(vectors):
        blob = vector(positions)
        entries.append(
            entry(
                record_count=len(positions),
                referenced_data_file=f"data-{number}",
                content_offset=len(data),
                content_size_in_bytes=len(blob),
                partition={"p": str(number)},
            )
        )
        data += blob
    return data, entries


@pytest.mark.parametrize("batch_rows", [1, 3, 1000])
def test_vectors_of_one_puffin_file(batch_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "BATCH_ROWS", batch_rows)
    vectors = [[1, 2], [7], [], list(range(100, 110))]
    data, entries = puffin(*vectors)
    rows = read(data, "PUFFIN", entries)
    assert [(row["file_path"], row["pos"]) for row in rows] == [
        (f"data-{number}", position) for number, positions in enumerate(vectors) for position in positions
    ]
    assert [row["partition"]["p"] for row in rows[:3]] == ["0", "0", "1"]
    assert rows[2]["content_offset"] == entries[1]["content_offset"]


@pytest.mark.parametrize(
    ("change", "field_name"),
    [
        ({"content_offset": None}, "content_offset"),
        ({"content_offset": -1}, "content_offset"),
        ({"content_size_in_bytes": 1 << 40}, "content_offset"),
        ({"record_count": 9}, "record_count"),
        ({"referenced_data_file": None}, "referenced_data_file"),
        ({"content_offset": 5, "content_size_in_bytes": 43}, "length"),
    ],
)
def test_entries_that_lie_about_a_vector(change: dict[str, Any], field_name: str) -> None:
    data, [vector] = puffin([1, 2])
    with pytest.raises(CorruptFileError, match=field_name):
        read(data, "PUFFIN", [vector | change])


@pytest.mark.parametrize("kind", ["PARQUET", "ORC", "AVRO"])
def test_what_is_no_delete_file(kind: str) -> None:
    for bad in (b"", b"nonsense", uncompressed(kind)[:-9]):
        with pytest.raises(CorruptFileError):
            read(bad, kind, [entry()])


def test_required_columns() -> None:
    missing = parquet({"x": (2147483546, pa.array(["x:a"]))})
    null = parquet({"x": (2147483546, pa.array(["x:a"])), "y": (2147483545, pa.array([None], pa.int64()))})
    for bad in (missing, null):
        with pytest.raises(CorruptFileError, match="pos"):
            read(bad, "PARQUET", [entry()])
