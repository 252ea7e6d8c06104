"""Data files are read like in a Spark task, without Spark: formats, evolution, deletes, and refused files."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from decimal import Decimal
from random import Random
from typing import TYPE_CHECKING, Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import orc

from sparkmeta.errors import CorruptFileError, FileAccessError, NotFoundError, UnsupportedError
from sparkmeta.rows import data_file
from sparkmeta.rows import orc as orc_parts
from sparkmeta.rows.data_file import ComparedField
from sparkmeta.rows.file_rows import METADATA_COLUMNS, KeySet, RowReader
from sparkmeta.rows.resolve import IcebergColumn
from sparkmeta.spec.bitmap import PositionBitmap
from sparkmeta.spec.locations import Locations
from sparkmeta.storage.executors import ExecutorReader
from sparkmeta.write.delete_tasks import read_masks
from tests.rows.files import with_ids, write, write_position_deletes, write_vector

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FORMATS = ("parquet", "orc", "avro")
DELETE = pa.struct(
    [
        pa.field("content", pa.int32()),
        pa.field("file_path", pa.string()),
        pa.field("file_format", pa.string()),
        pa.field("referenced_data_file", pa.string()),
        pa.field("content_offset", pa.int64()),
        pa.field("content_size_in_bytes", pa.int64()),
        pa.field("record_count", pa.int64()),
        pa.field("equality_ids", pa.list_(pa.int32())),
    ]
)
PLANNED = pa.schema(
    [
        pa.field("file_path", pa.string()),
        pa.field("file_format", pa.string()),
        pa.field("spec_id", pa.int32()),
        pa.field("partition", pa.struct([pa.field("p", pa.string())])),
        pa.field("record_count", pa.int64()),
        pa.field("first_row_id", pa.int64()),
        pa.field("data_sequence_number", pa.int64()),
        pa.field("deletes", pa.list_(DELETE)),
        pa.field("start", pa.int64()),
        pa.field("stop", pa.int64()),
    ]
)
ID = IcebergColumn("id", 1, "long")
LOCATIONS = Locations("/t", 4)
ROWS = RowReader(ExecutorReader(), LOCATIONS, (ID,), (), (), pa.schema([("id", pa.int64())]), None, {0: {}, 1: {9: 0}})


def part(path: Path | str, rows: int = -1, **more: Any) -> dict[str, Any]:
    """Return a planned file, whose format is the extension of its name."""
    kind = str(path).rpartition(".")[2].upper()
    return {"file_path": str(path), "file_format": kind, "spec_id": 0, "record_count": rows, "start": 0} | more


def read(reader: RowReader, *parts: dict[str, Any]) -> list[dict[str, Any]]:
    planned = pa.RecordBatch.from_pylist([{"deletes": [], **planned_part} for planned_part in parts], PLANNED)
    batches = list(reader.read([planned]))
    assert all(batch.schema == reader.schema for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


def reading(*columns: tuple[IcebergColumn, pa.DataType], **more: Any) -> RowReader:
    schema = pa.schema([pa.field(column.name, kind) for column, kind in columns])
    return replace(ROWS, columns=tuple(column for column, _ in columns), schema=schema, **more)


def numbers(path: Path, count: int = 5, **options: Any) -> Path:
    """Write a file of the ids from 0 on."""
    return write(path, pa.table({"id": pa.array(range(count), pa.int64())}), **options)


def delete_of(path: Path, **more: Any) -> dict[str, Any]:
    return {"content": 1, "file_path": str(path), "file_format": path.suffix[1:].upper(), **more}


def vector(path: Path, positions: list[int], **more: Any) -> dict[str, Any]:
    """Write a deletion vector behind other bytes, and return its entry."""
    return delete_of(path, **write_vector(path, positions)) | {"file_format": "PUFFIN"} | more


# -- columns ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FORMATS)
def test_evolved_columns(kind: str, tmp_path: Path) -> None:
    """Columns are renamed, promoted and moved. Missing ones come from the partition, a default or nowhere."""
    table = pa.table({"a": pa.array([1, None], pa.int32()), "b": ["x", "y"], "f": pa.array([0.5, 1.5], pa.float32())})
    path = write(tmp_path / f"f.{kind}", table)
    reader = reading(
        (IcebergColumn("B", 2, "string"), pa.string()),
        (IcebergColumn("p", 9, "string"), pa.string()),
        (IcebergColumn("A", 1, "long"), pa.int64()),
        (IcebergColumn("d", 7, "decimal(9, 2)", default=Decimal("1.5")), pa.decimal128(9, 2)),
        (IcebergColumn("n", 8, "date"), pa.date32()),
        (IcebergColumn("f", 3, "double"), pa.float64()),
    )
    rows = read(reader, part(path, 2, spec_id=1, partition={"p": "tuple"}))
    common = {"p": "tuple", "d": Decimal("1.50"), "n": None}
    assert rows == [
        {"B": "x", "A": 1, "f": 0.5} | common,
        {"B": "y", "A": None, "f": 1.5} | common,
    ]


def nested_table() -> pa.Table:
    inner = pa.struct([ided("x", pa.int32(), 11), ided("y", pa.string(), 12)])
    elements = pa.list_(ided("element", inner, 13))
    pairs = pa.map_(ided("key", pa.string(), 14).with_nullable(False), ided("value", inner, 15))
    x = {"x": 1, "y": "y"}
    return pa.table(
        [
            pa.array([x, None, {"x": None, "y": None}, x], inner),
            pa.array([[x, None], None, [], [x, x, x]], elements),
            pa.array([[("k", x)], None, [], [("k", None), ("l", x)]], pairs),
        ],
        schema=pa.schema([ided("s", inner, 1), ided("l", elements, 2), ided("m", pairs, 3)]),
    )


def ided(name: str, kind: pa.DataType, field_id: int) -> pa.Field:
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(field_id)})


def write_nested(path: Path, table: pa.Table) -> Path:
    """Write a file, with the ids of the schema."""
    (orc if path.suffix == ".orc" else pq).write_table(table, path)
    return path


@pytest.mark.parametrize("kind", ["parquet", "orc"])
def test_nested_columns_in_small_batches(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are slices, whose offsets must not be mistaken for offsets of whole arrays."""
    path = write_nested(tmp_path / f"f.{kind}", nested_table())
    inner = (IcebergColumn("Y", 12, "string"), IcebergColumn("z", 16, "int"), IcebergColumn("x", 11, "long"))
    struct = pa.struct([("Y", pa.string()), ("z", pa.int32()), ("x", pa.int64())])
    element, key = IcebergColumn("element", 13, "struct", inner), IcebergColumn("key", 14, "string", required=True)
    columns = (
        (IcebergColumn("s", 1, "struct", inner), struct),
        (IcebergColumn("l", 2, "list", (element,)), pa.list_(struct)),
        (
            IcebergColumn("m", 3, "map", (key, IcebergColumn("value", 15, "struct", inner))),
            pa.map_(pa.string(), struct),
        ),
    )
    x, nulls = {"Y": "y", "z": None, "x": 1}, {"Y": None, "z": None, "x": None}
    expected = [
        {"s": x, "l": [x, None], "m": [("k", x)]},
        {"s": None, "l": None, "m": None},
        {"s": nulls, "l": [], "m": []},
        {"s": x, "l": [x, x, x], "m": [("k", None), ("l", x)]},
    ]
    for rows in (1, 3, 100):
        monkeypatch.setattr(data_file, "BATCH_ROWS", rows)
        assert read(reading(*columns), part(path, 4)) == expected


def test_a_struct_of_new_fields_only(tmp_path: Path) -> None:
    """A field that is not projected shows whether the struct is null."""
    pq.write_table(nested_table(), path := tmp_path / "f.parquet")
    column = IcebergColumn("s", 1, "struct", (IcebergColumn("z", 16, "int", default=5),))
    rows = read(reading((column, pa.struct([("z", pa.int32())]))), part(path))
    assert rows == [{"s": {"z": 5}}, {"s": None}, {"s": {"z": 5}}, {"s": {"z": 5}}]


def test_hostile_names(tmp_path: Path) -> None:
    """A name with a dot is not a path."""
    names = ["a", "a.b", "`", "B", "b"]
    struct = pa.array([[("k", {"b": 1})]], pa.map_(pa.string(), pa.struct([ided("b", pa.int64(), 20)])))
    table = pa.table([struct, *(pa.array([index]) for index in range(2, 6))], names=names)
    for kind in ("parquet", "orc"):
        path = write(tmp_path / f"f.{kind}", table)
        columns = [(IcebergColumn(name, index, "long"), pa.int64()) for index, name in enumerate(names[1:], 2)]
        assert read(reading(*columns), part(path)) == [{"a.b": 2, "`": 3, "B": 4, "b": 5}]


EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
NAIVE = EPOCH.replace(tzinfo=None)
VALUES: list[tuple[str, pa.Array, pa.DataType, list[Any]]] = [
    ("uuid", pa.array([UUID(int=5).bytes, None, UUID(int=2**127).bytes], pa.binary(16)), pa.string(),
     [str(UUID(int=5)), None, str(UUID(int=2**127))]),
    ("uuid", pa.array([UUID(int=5).bytes], pa.binary()), pa.string(), [str(UUID(int=5))]),
    ("fixed[2]", pa.array([b"ab", None], pa.binary(2)), pa.binary(), [b"ab", None]),
    ("time", pa.array([1, None], pa.time64("us")), pa.int64(), [1, None]),
    ("time", pa.array([2], pa.time32("ms")), pa.int64(), [2000]),
    ("timestamp_ns", pa.array([1, None], pa.timestamp("ns")), pa.int64(), [1, None]),
    ("timestamp_ns", pa.array([1], pa.date32()), pa.int64(), [86_400_000_000_000]),
    ("timestamp", pa.array([-1, None], pa.date32()), pa.timestamp("us"), [NAIVE - dt.timedelta(days=1), None]),
    ("timestamp", pa.array([5000], pa.timestamp("ns")), pa.timestamp("us"), [NAIVE + dt.timedelta(microseconds=5)]),
    ("timestamptz", pa.array([0], pa.timestamp("ms")), pa.timestamp("us", "UTC"), [EPOCH]),
    ("timestamptz", pa.array([0], pa.timestamp("us", "Asia/Tokyo")), pa.timestamp("us", "UTC"), [EPOCH]),
    ("decimal(18, 2)", pa.array([Decimal("1.25")], pa.decimal128(5, 2)), pa.decimal128(18, 2), [Decimal("1.25")]),
    ("string", pa.array(["x", None]).dictionary_encode(), pa.string(), ["x", None]),
    ("string", pa.array(["x"], pa.large_string()), pa.string(), ["x"]),
    ("list", pa.array([[1, None], None], pa.large_list(pa.int64())), pa.list_(pa.int64()), [[1, None], None]),
    ("list", pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2)), pa.list_(pa.int64()), [[1, 2], [3, 4]]),
    ("variant", pa.array([{"metadata": b"m", "value": b"v"}, None]),
     pa.struct([("value", pa.binary()), ("metadata", pa.binary())]), [{"value": b"v", "metadata": b"m"}, None]),
    ("geometry", pa.array([b"\x01"]), pa.binary(), [b"\x01"]),
    ("unknown", pa.array([None], pa.null()), pa.null(), [None]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("type_name", "array", "kind", "expected"), VALUES, ids=[f"{v[0]} {v[1].type}" for v in VALUES]
)
def test_values(type_name: str, array: pa.Array, kind: pa.DataType, expected: list[Any], tmp_path: Path) -> None:
    path = write(tmp_path / "f.parquet", pa.table({"v": array}))
    children = (IcebergColumn("element", 2, "long"),) if type_name == "list" else ()
    assert read(reading((IcebergColumn("v", 1, type_name, children), kind)), part(path)) == [
        {"v": value} for value in expected
    ]


@pytest.mark.parametrize(
    ("default", "type_name", "kind", "expected"),
    [
        (UUID(int=5), "uuid", pa.string(), str(UUID(int=5))),
        (dt.time(0, 0, 1), "time", pa.int64(), 1_000_000),
        (dt.date(1970, 1, 2), "date", pa.date32(), dt.date(1970, 1, 2)),
        (7, "timestamp_ns", pa.int64(), 7),
        (b"\x01", "binary", pa.binary(), b"\x01"),
    ],
)
def test_defaults(default: Any, type_name: str, kind: pa.DataType, expected: Any, tmp_path: Path) -> None:
    reader = reading((IcebergColumn("d", 5, type_name, default=default), kind))
    assert read(reader, part(numbers(tmp_path / "f.parquet", 1))) == [{"d": expected}]


def avro_file(path: Path, fields: list[dict[str, Any]], records: list[dict[str, Any]]) -> Path:
    with path.open("wb") as file:
        fastavro.writer(file, {"type": "record", "name": "t", "fields": fields}, records)
    return path


def logical(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "int" if name == "date" else "long", "logicalType": name, **more}


_DECIMAL = {"type": "fixed", "name": "d", "size": 4, "logicalType": "decimal", "precision": 9, "scale": 2}
_UUID = {"type": "fixed", "name": "u", "size": 16, "logicalType": "uuid"}
_LISTS = {"type": "array", "items": "long", "element-id": 23}
_PAIR = {
    "type": "record",
    "name": "k21_v22",
    "fields": [
        {"name": "key", "type": "int", "field-id": 21},
        {"name": "value", "type": ["null", _LISTS], "field-id": 22},
    ],
}
_RECORD = {"type": "record", "name": "r", "fields": [{"name": "x", "type": "string", "field-id": 30}]}
_LIST = IcebergColumn("value", 22, "list", (IcebergColumn("element", 23, "long"),))
_STRUCT = IcebergColumn("element", 29, "struct", (IcebergColumn("X", 30, "string"),))
# Iceberg's Avro type, the column's type and children, Arrow's type, values and the values that are read.
AVRO_TYPES: list[tuple[Any, str, tuple[IcebergColumn, ...], pa.DataType, list[Any], list[Any]]] = [
    (logical("date"), "date", (), pa.date32(), [10**7, -1], [10**7, -1]),
    (logical("time-micros"), "time", (), pa.int64(), [5], [5]),
    (logical("timestamp-micros", **{"adjust-to-utc": False}), "timestamp", (), pa.timestamp("us"), [10**18], [10**18]),
    (logical("timestamp-micros"), "timestamptz", (), pa.timestamp("us", "UTC"), [-(10**18)], [-(10**18)]),
    (logical("timestamp-millis"), "timestamptz", (), pa.timestamp("us", "UTC"), [5], [5000]),
    (logical("timestamp-nanos"), "timestamptz_ns", (), pa.int64(), [7], [7]),
    (["null", _DECIMAL], "decimal(9, 2)", (), pa.decimal128(9, 2), [Decimal("-1.25"), None], [Decimal("-1.25"), None]),
    (_UUID, "uuid", (), pa.string(), [UUID(int=5).bytes], [str(UUID(int=5))]),
    ({"type": "fixed", "name": "x", "size": 2}, "fixed[2]", (), pa.binary(), [b"ab"], [b"ab"]),
    ({"type": "enum", "name": "e", "symbols": ["A", "B"]}, "string", (), pa.string(), ["B"], ["B"]),
    ({"type": "map", "values": ["null", "int"]}, "map",
     (IcebergColumn("key", 11, "string"), IcebergColumn("value", 12, "int")),
     pa.map_(pa.string(), pa.int32()), [{"a": 1, "b": None}], [[("a", 1), ("b", None)]]),
    (["null", {"type": "array", "items": _PAIR, "logicalType": "map"}], "map", (IcebergColumn("key", 21, "int"), _LIST),
     pa.map_(pa.int32(), pa.list_(pa.int64())), [[{"key": 1, "value": [2]}, {"key": 2, "value": None}], None],
     [[(1, [2]), (2, None)], None]),
    ({"type": "array", "items": ["null", _RECORD]}, "list", (_STRUCT,), pa.list_(pa.struct([("X", pa.string())])),
     [[{"x": "q"}, None]], [[{"X": "q"}, None]]),
    ("null", "unknown", (), pa.null(), [None], [None]),
]  # fmt: skip


@pytest.mark.parametrize("case", AVRO_TYPES, ids=lambda case: f"{case[1]} {case[0]}"[:60])
def test_avro_types(
    case: tuple[Any, str, tuple[IcebergColumn, ...], pa.DataType, list[Any], list[Any]], tmp_path: Path
) -> None:
    """Dates and timestamps are out of Python's range, so they are compared as numbers."""
    declared, type_name, children, kind, values, expected = case
    fields = [{"name": "v", "type": declared, "field-id": 1}, {"name": "n", "type": "int", "field-id": 2}]
    path = avro_file(tmp_path / "f.avro", fields, [{"v": value, "n": 0} for value in values])
    planned = pa.RecordBatch.from_pylist([part(path, len(values)) | {"deletes": []}], PLANNED)
    (batch,) = reading((IcebergColumn("v", 1, type_name, children), kind)).read([planned])
    read_values = batch.column(0)
    if pa.types.is_temporal(kind):
        read_values = read_values.view(pa.int32() if pa.types.is_date(kind) else pa.int64())
    assert read_values.to_pylist() == expected


def test_avro_types_by_name(tmp_path: Path) -> None:
    fields = [{"name": name, "type": kind, "field-id": n} for n, (name, kind) in enumerate([("a", _UUID), ("b", "u")])]
    path = avro_file(tmp_path / "f.avro", fields, [{"a": UUID(int=5).bytes, "b": UUID(int=6).bytes}])
    rows = read(reading((IcebergColumn("b", 1, "uuid"), pa.string())), part(path))
    assert rows == [{"b": str(UUID(int=6))}]


# -- metadata columns -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FORMATS)
def test_metadata_columns(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_file, "BATCH_ROWS", 2)
    path = numbers(tmp_path / f"f.{kind}", 3)
    names = ("_file", "_pos", "_spec_id", "_deleted", "_row_id", "_last_updated_sequence_number", "_partition")
    kinds = (pa.string(), pa.int64(), pa.int32(), pa.bool_(), pa.int64(), pa.int64(), pa.struct([("p", pa.string())]))
    reader = reading((ID, pa.int64()), *zip(map(METADATA_COLUMNS.__getitem__, names), kinds, strict=True))
    deletes = [vector(tmp_path / "dv.puffin", [1])]
    planned = part(path, 3, partition={"p": "x"}, first_row_id=100, data_sequence_number=7, deletes=deletes)
    assert read(reader, planned) == [
        {"id": n, "_file": str(path), "_pos": n, "_spec_id": 0, "_deleted": n == 1, "_row_id": 100 + n,
         "_last_updated_sequence_number": 7, "_partition": {"p": "x"}}
        for n in range(3)
    ]  # fmt: skip
    assert {row["_row_id"] for row in read(reader, part(path, 3))} == {None}


@pytest.mark.parametrize("kind", FORMATS)
def test_nothing_but_metadata_columns(kind: str, tmp_path: Path) -> None:
    rows = read(reading((METADATA_COLUMNS["_pos"], pa.int64())), part(numbers(tmp_path / f"f.{kind}", 3)))
    assert rows == [{"_pos": 0}, {"_pos": 1}, {"_pos": 2}]


def test_stored_lineage_wins(tmp_path: Path) -> None:
    schema = with_ids(pa.schema([("_row_id", pa.int64()), ("u", pa.int64())]), {"_row_id": 2147483540, "u": 2147483539})
    pq.write_table(pa.table([pa.array([5, None]), pa.array([None, 3])], schema=schema), path := tmp_path / "f.parquet")
    names = ("_row_id", "_last_updated_sequence_number")
    reader = reading(*((METADATA_COLUMNS[name], pa.int64()) for name in names))
    rows = read(reader, part(path, first_row_id=100, data_sequence_number=7))
    assert [tuple(row.values()) for row in rows] == [(5, 7), (101, 3)]
    rows = read(reader, part(path, data_sequence_number=7))
    assert [tuple(row.values()) for row in rows] == [(None, None), (None, None)]


# -- deletes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delete_kind", FORMATS)
@pytest.mark.parametrize("kind", FORMATS)
def test_positions(kind: str, delete_kind: str, tmp_path: Path) -> None:
    path = numbers(tmp_path / f"f.{kind}")
    pairs = [("other", 0), (str(path), 3), (str(path), 1), ("other", 2)]
    if delete_kind == "avro":
        fields = [{"name": "file_path", "type": "string", "field-id": 2147483546},
                  {"name": "pos", "type": "long", "field-id": 2147483545}]  # fmt: skip
        records = [{"file_path": of, "pos": position} for of, position in pairs]
        deletes = avro_file(tmp_path / "d.avro", fields, records)
    else:
        deletes = write_position_deletes(tmp_path / f"d.{delete_kind}", pairs)
    rows = read(ROWS, part(path, 5, deletes=[delete_of(deletes), vector(tmp_path / "dv.puffin", [4])]))
    assert [row["id"] for row in rows] == [0, 2]


def test_positions_of_parts(tmp_path: Path) -> None:
    """However a file is split, each row is in one part and has its position."""
    path = numbers(tmp_path / "f.parquet", 100, row_group_size=7)
    deletes = [vector(tmp_path / "dv.puffin", [0, 8, 50, 99])]
    size = path.stat().st_size
    reader = reading((ID, pa.int64()), (METADATA_COLUMNS["_pos"], pa.int64()))
    for cuts in ([], [1], [4], [size // 3, size // 2], list(range(10, size, 10))):
        ends = [*cuts, None]
        parts = [part(path, 100, start=a, stop=b, deletes=deletes) for a, b in zip([0, *cuts], ends, strict=True)]
        rows = read(reader, *parts)
        assert [row["id"] for row in rows] == [n for n in range(100) if n not in (0, 8, 50, 99)], cuts
        assert all(row["id"] == row["_pos"] for row in rows)


def equality_delete(path: Path, table: pa.Table, ids: dict[str, int]) -> dict[str, Any]:
    pq.write_table(table.cast(with_ids(table.schema, ids)), path)
    return delete_of(path) | {"content": 2, "equality_ids": list(ids.values())}


A, B = IcebergColumn("a", 1, "long"), IcebergColumn("b", 2, "string")
KEYS = (ComparedField(1, A, pa.int64()), ComparedField(2, B, pa.string()))


def test_equality_deletes(tmp_path: Path) -> None:
    """Sets of columns, nulls, a promoted and a dropped column, a column that is not projected."""
    table = pa.table({"a": pa.array([1, 2, None, 3, 1], pa.int32()), "b": ["x", None, "x", "y", "z"]})
    path = write(tmp_path / "f.parquet", table)
    by_a = equality_delete(tmp_path / "1.parquet", pa.table({"a": pa.array([3, 9], pa.int64())}), {"a": 1})
    both = pa.table({"b": ["x", None, "q"], "a": pa.array([None, 2, 1], pa.int64())})
    by_both = equality_delete(tmp_path / "2.parquet", both, {"b": 2, "a": 1})
    reader = reading((IcebergColumn("c", 3, "int"), pa.int32()), (A, pa.int64()), keys=KEYS)
    rows = read(reader, part(path, 5, deletes=[by_a, by_both]))
    assert rows == [{"c": None, "a": 1}, {"c": None, "a": 1}]
    without_a = write(tmp_path / "g.parquet", pa.table({"a": [1]}).select([]).append_column("b", [["x"]]))
    pq.write_table(pa.table([["x"]], schema=with_ids(pa.schema([("b", pa.string())]), {"b": 2})), without_a)
    assert read(reader, part(without_a, 1, deletes=[by_both])) == []


@pytest.mark.parametrize("kind", ["parquet", "orc"])
def test_nested_equality_deletes(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_file, "BATCH_ROWS", 1)
    struct = pa.struct([ided("x", pa.int64(), 2)])
    schema = pa.schema([ided("s", struct, 1)])
    table = pa.table([pa.array([{"x": 1}, {"x": 2}, None], struct)], schema=schema)
    path = write_nested(tmp_path / f"f.{kind}", table)
    key = ComparedField(
        2, IcebergColumn("s", 1, "struct", (IcebergColumn("x", 2, "long"),)), pa.struct([("x", pa.int64())])
    )
    reader = reading((METADATA_COLUMNS["_pos"], pa.int64()), keys=(key,))
    nested = pa.table([pa.array([{"x": 2}], struct)], schema=schema)
    pq.write_table(nested, tmp_path / "n.parquet")
    delete = delete_of(tmp_path / "n.parquet") | {"content": 2, "equality_ids": [2]}
    assert [row["_pos"] for row in read(reader, part(path, deletes=[delete]))] == [0, 2]
    flat = equality_delete(tmp_path / "flat.parquet", pa.table({"s.x": pa.array([None, 1], pa.int64())}), {"s.x": 2})
    assert [row["_pos"] for row in read(reader, part(path, deletes=[flat]))] == [1]


def test_a_field_of_a_null_struct_has_no_default(tmp_path: Path) -> None:
    struct = pa.struct([ided("y", pa.int64(), 3)])
    table = pa.table([pa.array([{"y": 1}, None], struct)], schema=pa.schema([ided("s", struct, 1)]))
    path = write_nested(tmp_path / "f.parquet", table)
    key = ComparedField(
        2, IcebergColumn("s", 1, "struct", (IcebergColumn("x", 2, "long", default=5),)), pa.struct([("x", pa.int64())])
    )
    reader = reading((METADATA_COLUMNS["_pos"], pa.int64()), keys=(key,))
    fives = equality_delete(tmp_path / "d.parquet", pa.table({"x": [5]}), {"x": 2})
    assert [row["_pos"] for row in read(reader, part(path, deletes=[fives]))] == [1]


def test_uuids_in_small_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_file, "BATCH_ROWS", 2)
    path = write(tmp_path / "f.orc", pa.table({"u": pa.array([UUID(int=n).bytes for n in range(5)], pa.binary())}))
    assert [row["u"] for row in read(reading((IcebergColumn("u", 1, "uuid"), pa.string())), part(path))] == [
        str(UUID(int=n)) for n in range(5)
    ]


VALUE = st.none() | st.integers(0, 3)


@given(
    st.integers(1, 4).flatmap(lambda n: st.tuples(
        st.lists(st.tuples(*[VALUE] * n), min_size=1, max_size=20), st.lists(st.tuples(*[VALUE] * n), min_size=1)
    ))
)  # fmt: skip
def test_key_set(drawn: tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]) -> None:
    keys, rows = drawn

    def columns(tuples: list[tuple[Any, ...]]) -> list[pa.Array]:
        kinds = (pa.int64(), pa.string(), pa.float64(), pa.decimal128(5, 1))
        casts = (int, str, float, Decimal)
        return [
            pa.array([None if value is None else cast(value) for value in values], kind)
            for values, kind, cast in zip(zip(*tuples, strict=True), kinds, casts, strict=False)
        ]

    flags = KeySet(columns(keys)).contains(columns(rows))
    assert flags.tolist() == [row in set(keys) for row in rows]


def test_nan_is_a_key() -> None:
    keys = KeySet([pa.array([float("nan")])])
    assert keys.contains([pa.array([1.0, float("nan"), None])]).tolist() == [False, True, False]


@given(st.sets(st.integers(0, 40) | st.integers((1 << 32) - 20, (1 << 32) + 20)), st.integers(0, 60), st.booleans())
def test_flags(positions: set[int], length: int, is_far: bool) -> None:
    start = (1 << 32) - 30 if is_far else 3
    flags = PositionBitmap.of(positions).flags(start, length)
    assert flags.tolist() == [start + index in positions for index in range(length)]


class Counting(ExecutorReader):
    """A reader that records the files that it opened."""

    opened: list[str]

    def open(self, location: str) -> Any:
        self.opened.append(location.rpartition("/")[2])
        return super().open(location)


def test_delete_files_are_opened_once_for_many_data_files(tmp_path: Path) -> None:
    paths = [numbers(tmp_path / f"{n}.parquet") for n in range(3)]
    positions = delete_of(write_position_deletes(tmp_path / "p.parquet", [(str(path), 1) for path in paths]))
    keys = equality_delete(tmp_path / "e.parquet", pa.table({"id": [2]}), {"id": 1})
    reader = Counting()
    object.__setattr__(reader, "opened", [])
    rows = read(
        replace(ROWS, reader=reader, keys=(ComparedField(1, ID, pa.int64()),)),
        *(part(path, 5, deletes=[positions, keys]) for path in paths),
    )
    assert [row["id"] for row in rows] == [0, 3, 4] * 3
    assert sorted(reader.opened) == ["0.parquet", "1.parquet", "2.parquet", "e.parquet", "p.parquet"]


# -- bounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FORMATS)
def test_batches_are_bounded(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = numbers(tmp_path / f"f.{kind}", 20_000)
    monkeypatch.setattr(data_file, "BATCH_ROWS", 3000)
    planned = pa.RecordBatch.from_pylist([part(path, 20_000) | {"deletes": []}], PLANNED)
    sizes = [len(batch) for batch in ROWS.read([planned])]
    assert sum(sizes) == 20_000
    assert max(sizes) <= (3000 if kind != "avro" else 16_000)


def test_wide_rows_come_in_small_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"id": range(1000), "s": [f"{n:05}" * 200 for n in range(1000)]})
    path = write(tmp_path / "f.parquet", table, compression="none", use_dictionary=False)
    monkeypatch.setattr(data_file, "BATCH_BYTES", 100_000)
    wide = reading((IcebergColumn("s", 2, "string"), pa.string()))
    planned = pa.RecordBatch.from_pylist([part(path, 1000) | {"deletes": []}], PLANNED)
    assert max(len(batch) for batch in wide.read([planned])) <= 100
    assert len(list(ROWS.read([planned]))) == 1


# -- refused files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FORMATS)
def test_a_truncated_file(kind: str, tmp_path: Path) -> None:
    path = numbers(tmp_path / f"f.{kind}", 50_000)
    whole = path.read_bytes()
    for length in (0, 3, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(CorruptFileError, match=str(path)):
            read(ROWS, part(path, 50_000))


def test_an_avro_file_that_ends_between_blocks(tmp_path: Path) -> None:
    """Only the manifest's row count shows that some rows are missing."""
    from sparkmeta.avro.container import read_blocks, read_header

    data = numbers(path := tmp_path / "f.avro", 50_000).read_bytes()
    *_, last = read_blocks(data, read_header(data, "f"), "f")
    end = (
        max(index for index in range(last.offset - 16) if data[index : index + 16] == read_header(data, "f").sync) + 16
    )
    path.write_bytes(data[:end])
    with pytest.raises(CorruptFileError, match=f"record_count is 50000: the file has {last.first_ordinal} rows"):
        read(ROWS, part(path, 50_000))


@pytest.mark.parametrize("kind", FORMATS)
def test_a_wrong_count_of_rows(kind: str, tmp_path: Path) -> None:
    with pytest.raises(CorruptFileError, match="record_count is 6: the file has 5 rows"):
        read(ROWS, part(numbers(tmp_path / f"f.{kind}"), 6))


@pytest.mark.parametrize("kind", FORMATS)
def test_a_missing_file(kind: str, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=rf"f\.{kind}: there is no such file"):
        read(ROWS, part(tmp_path / f"f.{kind}"))


@pytest.mark.parametrize(
    "error", [PermissionError(13, "denied"), OSError("AWS Error NETWORK_CONNECTION during HeadObject: timeout")]
)
def test_a_store_that_does_not_answer(error: OSError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error does not blame the content of the file."""
    path = numbers(tmp_path / "f.orc")

    def fail(_: ExecutorReader, __: str) -> None:
        raise error

    monkeypatch.setattr(ExecutorReader, "open", fail)
    with pytest.raises(FileAccessError, match=str(path)):
        read(ROWS, part(path))


def test_an_unknown_format(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"f\.csv: data files of format CSV can't be read"):
        read(ROWS, part(tmp_path / "f.csv"))


def test_damaged_vectors(tmp_path: Path) -> None:
    path, puffin = numbers(tmp_path / "f.parquet"), tmp_path / "dv.puffin"
    for position, more, message in (
        (5, {}, f"position is 5: {path} has 5 rows"),
        (1, {"record_count": 2}, "record_count is 2"),
        (1, {"content_size_in_bytes": 10_000}, "10000 bytes there are not all in the file"),
        (1, {"content_offset": None}, "content_offset is None"),
    ):
        with pytest.raises(CorruptFileError, match=message):
            read(ROWS, part(path, 5, deletes=[vector(puffin, [position], **more)]))
    delete = vector(puffin, [1])
    puffin.write_bytes(puffin.read_bytes()[:-1] + b"\x00")
    with pytest.raises(CorruptFileError, match="CRC-32"):
        read(ROWS, part(path, 5, deletes=[delete]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"offset": None}, "content_offset is None: a deletion vector's entry must say where it is"),
        ({"offset": -4}, "content_offset is -4: a deletion vector's entry must say where it is"),
        ({"size_in_bytes": None}, "content_size_in_bytes is None: a deletion vector's entry must say where it is"),
        ({"size_in_bytes": 10_000}, "content_offset is 4: 10000 bytes there are not all in the file"),
    ],
)
def test_writers_of_deletes_check_where_older_vectors_are(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    entry = write_vector(puffin := tmp_path / "dv.puffin", [1])
    stored = {"offset": entry["content_offset"], "size_in_bytes": entry["content_size_in_bytes"]} | change
    older = {"referenced_file": "/data/f", **stored, "record_count": 1}
    schema = pa.schema([(name, pa.int64() if name != "referenced_file" else pa.string()) for name in older])
    unit = {"location": str(puffin), "file_format": "PUFFIN", "vectors": [older]}
    kinds = {"location": pa.string(), "file_format": pa.string(), "vectors": pa.list_(pa.struct([*schema]))}
    batch = pa.RecordBatch.from_pylist([unit], pa.schema([*kinds.items()]))
    with pytest.raises(CorruptFileError, match=message):
        list(read_masks(ExecutorReader({}), LOCATIONS, [batch]))


def test_position_deletes_of_another_file(tmp_path: Path) -> None:
    path = numbers(tmp_path / "f.parquet")
    foreign = write_position_deletes(tmp_path / "d.parquet", [("x:other", 1)])
    assert len(read(ROWS, part(path, 5, deletes=[delete_of(foreign)]))) == 5
    with pytest.raises(CorruptFileError, match="file_path is 'x:other'"):
        read(ROWS, part(path, 5, deletes=[delete_of(foreign, referenced_data_file=str(path))]))


def test_delete_files_without_their_columns(tmp_path: Path) -> None:
    path = numbers(tmp_path / "f.parquet")
    other = write(tmp_path / "d.parquet", pa.table({"x": [1]}))
    with pytest.raises(CorruptFileError, match=r"d\.parquet: column file_path"):
        read(ROWS, part(path, deletes=[delete_of(other)]))
    keys = delete_of(other) | {"content": 2, "equality_ids": [2]}
    with pytest.raises(CorruptFileError, match=r"d\.parquet: column b is None: a delete file must have it"):
        read(replace(ROWS, keys=KEYS), part(path, deletes=[keys]))
    with pytest.raises(CorruptFileError, match="equality_ids is 77"):
        read(replace(ROWS, keys=KEYS), part(path, deletes=[keys | {"equality_ids": [1, 77]}]))


@pytest.mark.parametrize(
    ("type_name", "array", "kind", "message"),
    [
        ("uuid", pa.array([b"short"]), pa.string(), "values have 5 to 5 bytes, not 16"),
        ("fixed[2]", pa.array([b"ab", b"abc"]), pa.binary(), "values have 2 to 3 bytes, not 2"),
        ("timestamp", pa.array([1500], pa.timestamp("ns")), pa.timestamp("us"), "would lose data"),
        ("timestamp_ns", pa.array([2**50], pa.timestamp("ms")), pa.int64(), "overflow|out of bounds"),
        ("variant", pa.array([{"metadata": b"m", "value": b"v", "others": 1}]),
         pa.struct([("value", pa.binary()), ("metadata", pa.binary())]), "a variant of the fields metadata, .*others"),
        ("long", pa.array([1], pa.uint64()), pa.int64(), "type of column v is 'uint64'"),
        ("string", pa.array([b"\xff"]), pa.string(), "UTF8"),
    ],
)  # fmt: skip
def test_values_that_do_not_fit(
    type_name: str, array: pa.Array, kind: pa.DataType, message: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "f.parquet", pa.table({"v": array}))
    with pytest.raises(CorruptFileError, match=message):
        read(reading((IcebergColumn("v", 1, type_name), kind)), part(path))


def test_nulls_in_required_columns(tmp_path: Path) -> None:
    inner = pa.struct([ided("x", pa.int32(), 2)])
    schema = pa.schema([ided("s", inner, 1)])
    x = IcebergColumn("x", 2, "int", required=True)
    kind = pa.struct([pa.field("x", pa.int32(), nullable=False)])
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table([pa.array([None, {"x": 1}], inner)], schema=schema), path)
    assert read(reading((IcebergColumn("s", 1, "struct", (x,)), kind)), part(path)) == [{"s": None}, {"s": {"x": 1}}]
    with pytest.raises(CorruptFileError, match=r"column s \(field id 1\) is required, and has nulls"):
        read(reading((IcebergColumn("s", 1, "struct", (x,), required=True), kind)), part(path))
    pq.write_table(pa.table([pa.array([None, {"x": None}], inner)], schema=schema), path)
    with pytest.raises(CorruptFileError, match=r"column x \(field id 2\) is required, and has nulls"):
        read(reading((IcebergColumn("s", 1, "struct", (x,)), kind)), part(path))


def test_avro_unions_are_refused(tmp_path: Path) -> None:
    path = avro_file(tmp_path / "f.avro", [{"name": "id", "type": ["int", "string"], "field-id": 1}], [{"id": 1}])
    with pytest.raises(UnsupportedError, match="union of 2 Avro types"):
        read(ROWS, part(path))


# -- timestamps in ORC ------------------------------------------------------------------------------------------------


# Microseconds of the years 1 to 9999.
MICROS = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)
STAMP, ZONED = pa.timestamp("us"), pa.timestamp("us", "UTC")
NESTED_STAMPS = (
    (IcebergColumn("n", 1, "long"), pa.int64()),
    (IcebergColumn("a", 2, "timestamp"), STAMP),
    (IcebergColumn("s", 3, "struct", (IcebergColumn("t", 4, "timestamptz"),)), pa.struct([("t", ZONED)])),
    (IcebergColumn("l", 5, "list", (IcebergColumn("element", 7, "timestamp"),)), pa.list_(STAMP)),
    (
        IcebergColumn("m", 6, "map", (IcebergColumn("key", 8, "int"), IcebergColumn("value", 9, "timestamptz"))),
        pa.map_(pa.int32(), ZONED),
    ),
)


def nested_stamps(micros: list[int | None]) -> pa.Table:
    """Return timestamps at the top level, and in structs, lists and maps. Some are null."""
    lists = [None if index % 5 == 1 else micros[index : index + index % 3] for index in range(len(micros))]
    maps = [None if values is None else list(enumerate(values)) for values in lists]
    structs = [None if index % 7 == 3 else {"t": value} for index, value in enumerate(micros)]
    columns = (range(len(micros)), micros, structs, lists, maps)
    arrays = [pa.array(values, kind) for values, (_, kind) in zip(columns, NESTED_STAMPS, strict=True)]
    return pa.table(arrays, names=[column.name for column, _ in NESTED_STAMPS])


def assert_orc_stamps(micros: list[int | None], path: Path, codec: str = "zlib") -> None:
    table = nested_stamps(micros)
    orc.write_table(table, path, compression=codec)
    planned = pa.RecordBatch.from_pylist([part(path, len(micros)) | {"deletes": []}], PLANNED)
    batches = reading(*NESTED_STAMPS).read([planned])
    assert pa.Table.from_batches(batches).equals(table)


@given(st.lists(MICROS | MICROS.map(lambda value: value // 10**6 * 10**6) | st.none(), min_size=1, max_size=60))
def test_orc_timestamps(tmp_path_factory: pytest.TempPathFactory, micros: list[int | None]) -> None:
    assert_orc_stamps(micros, tmp_path_factory.getbasetemp() / "f.orc")


@pytest.mark.parametrize("codec", ["uncompressed", "zlib", "snappy", "lz4", "zstd"])
def test_orc_timestamps_of_every_encoding(codec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fractions have equal, rising, falling and random runs, and small values with a few large ones in between."""
    year_9999 = 253_370_764_800_000_000
    random = Random(7)
    small = [1000 + random.randrange(30) if random.random() < 0.97 else random.randrange(10**6) for _ in range(2000)]
    # Fractions with equally many digits, which sort like their stored values.
    falling = [value * 10 + 1 for value in sorted(random.sample(range(10**5), 600), reverse=True)]
    fractions = [
        falling,
        [5] * 8 + [random.randrange(10**6) for _ in range(3)] * 3,
        range(100_000, 104_000),
        small,
        [0] * 100,
    ]
    used: list[int] = []
    runs = orc_parts.decoded_runs

    def noted(data: bytes) -> Iterator[Any]:
        used.append(data[0] >> 6)
        return runs(data)

    monkeypatch.setattr(orc_parts, "decoded_runs", noted)
    for places in fractions:
        assert_orc_stamps([year_9999 + value for value in places], tmp_path / "f.orc", codec)
    assert set(used) == {0, 1, 2, 3}
