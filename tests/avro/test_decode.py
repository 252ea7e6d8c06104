"""Avro manifests of any writer become content entries: by field ids, in both map encodings, only what is asked for."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from sparkmeta.avro import decode, program
from sparkmeta.avro.container import Data, Windows
from sparkmeta.avro.decode import decode_manifest
from sparkmeta.entries.manifest_records import ManifestContext, ManifestPart
from sparkmeta.entries.projection import FILE_COLUMNS, EntryFilter, EntryProjection
from sparkmeta.errors import CorruptFileError
from sparkmeta.expr.bounds import ANY, AllOf, BoundTest
from tests.avro.avro_files import (
    SEQUENCES,
    avro_file,
    data_file,
    entry,
    entry_schema,
    field,
    mislabelled_file,
    pairs,
    plain_map,
)
from tests.avro.decoders import Always

NANOS = 18_262 * 86_400 * 10**9
BOUND_MAPS = {"lower_bounds": 125, "upper_bounds": 128}
LONG_BYTES = {number: number.to_bytes(8, "little", signed=True) for number in range(-5, 100)}
CONTEXT = ManifestContext(snapshot_id=77, sequence_number=4, first_row_id=None)


@pytest.fixture(autouse=True, params=[False, True], ids=["fastavro", "compiled"])
def _decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "compiler", Always(request.param))


def rows(data: Data, projection: EntryProjection, part: int = 0, parts: int = 1, context: Any = CONTEXT) -> list[Any]:
    described = ManifestPart(3, "file:///m.avro", 1, context, part, parts)
    batches = list(decode_manifest(data, described, projection))
    assert all(batch.schema == projection.schema for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


def test_a_version_1_entry_gets_its_defaults() -> None:
    data = avro_file(entry_schema(data_file()), [entry()])
    (row,) = rows(data, EntryProjection.of(FILE_COLUMNS), context=ManifestContext(77, 0, None))
    assert row == {
        "content_type": 0,
        "location": "file:///t/0.parquet",
        "file_format": "PARQUET",
        "version_info": {"status": 1, "snapshot_id": 77, "sequence_number": 0, "file_sequence_number": 0},
        "deletion_vector": None,
        "partition_spec_id": 1,
        "sort_order_id": None,
        "record_count": 10,
        "file_size_in_bytes": 100,
        "referenced_file": None,
        "key_metadata": None,
        "split_offsets": None,
        "equality_ids": None,
        "first_row_id": None,
        "manifest": 3,
        "ordinal": 0,
    }


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("string", "é", "é"),
        ("int", -7, "-7"),
        ("double", 1.5, "1.5"),
        ("boolean", True, "True"),
        ("bytes", b"\xff", "ff"),
    ],
)
def test_values_of_an_unknown_transform_are_text(kind: str, value: Any, text: str) -> None:
    schema = entry_schema(data_file(partition=[field("x", 1000, ["null", kind])]))
    records = [entry(number, partition={"x": partition_value}) for number, partition_value in enumerate([value, None])]
    decoded = rows(avro_file(schema, records), EntryProjection.of(("location",), {1000: ANY}))
    assert [row["partition"]["1000"] for row in decoded] == [text, None]


def test_fixed_partition_values_as_avro_and_as_java_write_them() -> None:
    """Iceberg's Java library writes a length before such values, though it declares a fixed type."""
    kinds = {"fixed": {"type": "fixed", "name": "fixed_4", "size": 4}, "bytes": "bytes"}
    declared, prefixed = (
        entry_schema(data_file(partition=[field("fx", 1000, ["null", kinds[form]])])) for form in ("fixed", "bytes")
    )
    values = [b"\x00\xff\x80\x00", None, b"\x08abc", b"\x02\x00\x02\x00"]
    records = [entry(number, partition={"fx": value}) for number, value in enumerate(values)]
    projection = EntryProjection.of(("location", "record_count"), {1000: "fixed[4]"})
    nulls = [entry(number, partition={"fx": None}) for number in range(3)]
    first_of_nulls = mislabelled_file(declared, prefixed, nulls, [], nulls, records)
    assert [row["partition"]["1000"] for row in rows(first_of_nulls, projection)] == [None] * 6 + values
    for data in (avro_file(declared, records), mislabelled_file(declared, prefixed, records)):
        decoded = rows(data, projection)
        assert [row["partition"]["1000"] for row in decoded] == values
        assert [row["record_count"] for row in decoded] == [10, 11, 12, 13]


@pytest.mark.parametrize(("later", "expected"), [("timestamp", dt.datetime(2020, 1, 1)), ("timestamp_ns", NANOS)])  # noqa: DTZ001
def test_partition_values_from_before_a_promotion(later: str, expected: Any) -> None:
    """The Avro int contains the days of a date that became a timestamp."""
    schema = entry_schema(data_file(partition=[field("d", 1000, ["null", {"type": "int", "logicalType": "date"}])]))
    data, beyond = (
        avro_file(schema, [entry(partition={"d": day}) for day in days]) for days in ((18_262, None), (2**31 - 1,))
    )
    projection = EntryProjection.of(("location",), {1000: later})
    assert [row["partition"]["1000"] for row in rows(data, projection)] == [expected, None]
    with pytest.raises(CorruptFileError, match=r"m\.avro.*partition\.1000.*2147483647"):
        rows(beyond, projection)


def test_a_deletion_vector_of_version_3() -> None:
    file = data_file(
        field("content", 134, "int"),
        field("referenced_data_file", 143, ["null", "string"]),
        field("content_offset", 144, ["null", "long"]),
        field("content_size_in_bytes", 145, ["null", "long"]),
    )
    dv = entry(
        content=1, file_format="PUFFIN", referenced_data_file="file:///d", content_offset=4, content_size_in_bytes=40
    )
    (row,) = rows(avro_file(entry_schema(file, *SEQUENCES), [dv]), EntryProjection.of(FILE_COLUMNS))
    assert row["deletion_vector"] == {"offset": 4, "size_in_bytes": 40, "inline_content": None}
    assert (row["content_type"], row["referenced_file"]) == (1, "file:///d")
    assert row["version_info"]["sequence_number"] == 4


@pytest.mark.parametrize("encode", [pairs, None], ids=["array of pairs", "map"])
def test_stats_and_raw_maps_in_both_encodings(encode: Any) -> None:
    counts = pairs(119, 120, "long") if encode else plain_map("long")
    bounds = pairs(126, 127, "bytes") if encode else plain_map("bytes")
    file = data_file(field("value_counts", 109, counts), field("lower_bounds", 125, bounds))

    def value(items: dict[int, Any]) -> Any:
        return [{"key": k, "value": v} for k, v in items.items()] if encode else {str(k): v for k, v in items.items()}

    data = avro_file(
        entry_schema(file), [entry(value_counts=value({1: 8, 2: 9}), lower_bounds=value({2: LONG_BYTES[-5]}))]
    )
    projection = EntryProjection.of(
        ["value_counts", "lower_bounds", "nan_value_counts"], stats={2: "long", 7: "string"}
    )
    (row,) = rows(data, projection)
    assert row["value_counts"] == [(1, 8), (2, 9)]
    assert row["lower_bounds"] == [(2, LONG_BYTES[-5])]
    assert row["nan_value_counts"] is None
    unknown = {"lower_bound": None, "upper_bound": None, "value_count": None, "null_value_count": None}
    assert row["content_stats"] == {
        "2": {**unknown, "lower_bound": -5, "value_count": 9, "nan_value_count": None},
        "7": {**unknown, "nan_value_count": None},
    }


def test_fields_are_found_by_id_whatever_their_names_and_order() -> None:
    fields = [
        field("größe".encode().hex(), 104, "long"),
        field("_x66oo", 103, "long"),
        field("c", 102, {"type": "record", "name": "tuple", "fields": [field("_1a", 1000, ["string", "null"])]}),
        field("b", 101, "string"),
        field("a", 100, "string"),
    ]
    schema = {
        "type": "record",
        "name": "x",
        "fields": [field("f", 2, {"type": "record", "name": "y", "fields": fields}), field("s", 0, "int")],
    }
    record = {
        "f": {fields[0]["name"]: 5, "_x66oo": 6, "c": {"_1a": "p"}, "b": "orc", "a": "file:///x"},
        "s": 0,
    }
    (row,) = rows(avro_file(schema, [record]), EntryProjection.of(FILE_COLUMNS, {1000: "string", 1001: "int"}))
    assert (row["location"], row["file_format"], row["record_count"], row["file_size_in_bytes"]) == (
        "file:///x",
        "ORC",
        6,
        5,
    )
    assert row["partition"] == {"1000": "p", "1001": None}


def test_partition_values_of_every_type() -> None:
    cases: dict[str, tuple[Any, Any, Any]] = {
        "boolean": ("boolean", True, True),
        "int": ("int", -3, -3),
        "long": ("int", 3, 3),
        "float": ("float", 1.5, 1.5),
        "double": ("double", -0.0, -0.0),
        "date": ({"type": "int", "logicalType": "date"}, dt.date(1969, 12, 31), dt.date(1969, 12, 31)),
        "time": ({"type": "long", "logicalType": "time-micros"}, dt.time(0, 0, 1), 1_000_000),
        "timestamp": ("long", -1, dt.datetime(1969, 12, 31, 23, 59, 59, 999999)),  # noqa: DTZ001  a timestamp without zone
        "timestamptz": ("long", 1, dt.datetime(1970, 1, 1, 0, 0, 0, 1, dt.UTC)),
        "timestamp_ns": ("long", 2**63 - 1, 2**63 - 1),
        "string": ("string", "é%/=", "é%/="),
        "binary": ("bytes", b"\x00\xff", b"\x00\xff"),
        "fixed[2]": ({"type": "fixed", "size": 2, "name": "fixed_2"}, b"ab", b"ab"),
        "uuid": ({"type": "fixed", "size": 16, "name": "uuid_fixed"}, bytes(range(16)), bytes(range(16))),
        "decimal(9, 2)": (
            {"type": "fixed", "size": 4, "name": "d", "logicalType": "decimal", "precision": 9, "scale": 2},
            Decimal("-1.25"),
            Decimal("-1.25"),
        ),
    }
    fields = [field(f"p{i}", 1000 + i, ["null", kind]) for i, (kind, _, _) in enumerate(cases.values())]
    values = {f"p{i}": value for i, (_, value, _) in enumerate(cases.values())}
    data = avro_file(
        entry_schema(data_file(partition=fields)),
        [entry(partition=values), entry(partition=dict.fromkeys(values))],
    )
    full, empty = rows(data, EntryProjection.of([], {1000 + i: name for i, name in enumerate(cases)}))
    assert list(full["partition"].values()) == [expected for _, _, expected in cases.values()]
    assert set(empty["partition"].values()) == {None}


def test_parts_of_a_manifest_share_out_its_blocks_and_keep_ordinals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "BATCH_RECORDS", 100)
    data = avro_file(entry_schema(data_file()), [entry(number) for number in range(3000)], block_bytes=2000)
    projection = EntryProjection.of(["location"])
    whole = rows(data, projection)
    assert [row["ordinal"] for row in whole] == list(range(3000))
    assert [row["location"] for row in whole] == [f"file:///t/{number}.parquet" for number in range(3000)]
    shares = [rows(data, projection, part, 7) for part in range(7)]
    assert min(map(len, shares)) > 100
    assert [row for share in shares for row in share] == whole


def test_parts_of_a_long_manifest_are_read_in_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Windows, "SIZE", 5_000)
    data = avro_file(entry_schema(data_file()), [entry(number) for number in range(3000)], block_bytes=2000)
    asked: list[int] = []

    def read(offset: int, size: int) -> bytes:
        asked.append(offset + size)
        return data[offset : offset + size]

    projection = EntryProjection.of(["location"])
    for part in range(7):
        asked.clear()
        assert rows(Windows(read, len(data), "m"), projection, part, 7) == rows(data, projection, part, 7)
        assert max(asked) < len(data) * (part + 1) // 7 + 3 * Windows.SIZE


def test_large_records_come_in_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    data = avro_file(entry_schema(data_file()), [entry(number) for number in range(300)], block_bytes=1000)
    part, projection = ManifestPart(0, "m", 0, CONTEXT), EntryProjection.of(["location"])
    (whole,) = decode_manifest(data, part, projection)
    monkeypatch.setattr(decode, "BATCH_BYTES", 2000)
    monkeypatch.setattr(program, "BATCH_BYTES", 2000)
    batches = list(decode_manifest(data, part, projection))
    assert pa.Table.from_batches(batches).combine_chunks().equals(pa.Table.from_batches([whole]))
    assert max(map(len, batches)) < 100


def test_writers_that_make_a_block_of_every_record_still_give_full_batches() -> None:
    data = avro_file(entry_schema(data_file()), [entry(number) for number in range(300)], block_bytes=1)
    part = ManifestPart(0, "m", 0, CONTEXT)
    (batch,) = decode_manifest(data, part, EntryProjection.of(["location"]))
    assert len(batch) == 300


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"status": 7}, r"version_info.status is 7: not one of 0, 1, 2|status is 7"),
        ({"file_format": "csv"}, "file_format is 'CSV'"),
        ({"content": 9}, "content is 9"),
    ],
)
def test_unknown_enum_values_are_named(change: dict[str, Any], message: str) -> None:
    file = data_file(field("content", 134, "int"))
    data = avro_file(entry_schema(file), [entry(**{"content": 0, **change})])
    with pytest.raises(CorruptFileError, match=f"file:///m.avro: .*({message})"):
        rows(data, EntryProjection.of(FILE_COLUMNS))


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("long", {b"abc": None, b"": None, b"\x05\0\0\0": 5}),
        ("string", {b"a\xc3": None, "aé".encode(): "aé", b"\xff": None}),
        ("decimal(4, 2)", {b"": None, b"\x7f" * 17: None, b"\x01": Decimal("0.01"), b"\x7f\xff": None}),
        ("uuid", {b"x": None, b"y" * 16: b"y" * 16}),
    ],
)
def test_bounds_of_any_bytes_are_unknown(kind: str, values: dict[bytes, Any]) -> None:
    maps = [field(name, number, pairs(number + 1, number + 2, "bytes")) for name, number in BOUND_MAPS.items()]
    records = [entry(**{name: [{"key": 4, "value": value}] for name in BOUND_MAPS}) for value in values]
    decoded = rows(avro_file(entry_schema(data_file(*maps)), records), EntryProjection.of([], stats={4: kind}))
    for bound in ("lower_bound", "upper_bound"):
        assert [row["content_stats"]["4"][bound] for row in decoded] == list(values.values())


def test_bounds_the_wrong_way_round_are_unknown_and_filter_nothing() -> None:
    maps = [field(name, number, pairs(number + 1, number + 2, "bytes")) for name, number in BOUND_MAPS.items()]
    cases = [(1, 5), (5, 1), (7, 7), (5, None), (None, 1), (9, 8)]
    records = [
        entry(number, **{
            name: [] if value is None else [{"key": 4, "value": LONG_BYTES[value]}]
            for name, value in zip(BOUND_MAPS, pair, strict=True)
        })
        for number, pair in enumerate(cases)
    ]  # fmt: skip
    data, projection = avro_file(entry_schema(data_file(*maps)), records), EntryProjection.of([], stats={4: "long"})
    pairs_of = [tuple(row["content_stats"]["4"].values())[:2] for row in rows(data, projection)]
    assert pairs_of == [(1, 5), (None, None), (7, 7), (5, None), (None, 1), (None, None)]
    written = rows(data, replace(projection, as_written=True))
    assert [tuple(row["content_stats"]["4"].values())[:2] for row in written] == cases
    at_most_3 = BoundTest("lower_bound", 4, "long", upward=False, inclusive=True, limit=3)
    filtered = replace(projection, entry_filter=EntryFilter(AllOf((at_most_3,)), ()))
    assert [row["ordinal"] for row in rows(data, filtered)] == [0, 1, 4, 5]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "record", "name": "x", "fields": [{"name": "status", "type": "int"}]}, "data_file"),
        ({"type": "record", "name": "x", "fields": {}}, "'x': a record without fields"),
        ({"type": "record", "name": "x", "fields": [field("a", 0, "int"), field("b", 0, "int")]}, "one field-id"),
        (entry_schema(field("data_file", 2, "int")), "not a record"),
        ({"type": "record", "name": "x", "fields": [field("s", 0, "int")]}, "data_file"),
        (
            entry_schema(
                data_file(field("x", 5, ["null", {"type": "record", "name": "n", "fields": [field("y", 6, "n")]}]))
            ),
            "'n': a type that contains itself",
        ),
    ],
)
def test_schemas_that_no_manifest_has(schema: dict[str, Any], message: str) -> None:
    import json

    text = json.dumps(schema).encode()
    from tests.avro.test_container import varint

    data = b"Obj\x01" + varint(1) + varint(11) + b"avro.schema" + varint(len(text)) + text + b"\x00" + b"s" * 16
    with pytest.raises(CorruptFileError, match=message):
        rows(data, EntryProjection.of(FILE_COLUMNS))


def test_schemas_nested_without_end_are_refused() -> None:
    kind: Any = "int"
    for depth in range(60):
        kind = {"type": "array", "items": kind} if depth % 2 else ["null", kind]
    schema = entry_schema(data_file(field("deep", 99, kind)))
    with pytest.raises(CorruptFileError, match="nested too deep"):
        decode.manifest_schema(schema, "file:///m.avro")


def test_projections_know_their_columns() -> None:
    with pytest.raises(ValueError, match="nonsense"):
        EntryProjection.of(["nonsense"])
    assert EntryProjection.of(["record_count", "location"]).schema.names == [
        "location",
        "record_count",
        "manifest",
        "ordinal",
    ]
    assert (
        EntryProjection.of([], stats={1: "long"})
        .schema.field("content_stats")
        .type.field("1")
        .type.field("lower_bound")
        .type
        == pa.int64()
    )
