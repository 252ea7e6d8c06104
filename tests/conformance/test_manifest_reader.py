"""Manifests in the layout of the Iceberg project, as Iceberg's own reader shows them and as sparkmeta does."""

from __future__ import annotations

import datetime as dt
import json
import math
import re
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sparkmeta as sm
from sparkmeta.manifests.v4.layout import read_manifest
from sparkmeta.spec.mumbling import read_mumbling
from tests.conformance.tree_corpus import NAMES, Answer, answers, unpack_tables
from tests.peers.v4_comparison import (
    assert_same_entries,
    assert_same_manifests,
    assert_same_stats,
    decoded,
    partition_fields,
)
from tests.peers.v4_entries import Entry, ManifestToRead, TableToRead, Tree, read_manifests, read_trees

pytestmark = [pytest.mark.java, pytest.mark.jvm]

EVERYWHERE = pytest.mark.parametrize(("group", "name"), NAMES, ids=[name for _, name in NAMES])

Trees = dict[tuple[str, str], list[Tree]]


def to_read(group: str, name: str) -> TableToRead:
    """Return what to read of a table of the corpus."""
    metadata = Path(answers()[f"{group}/{name}.json"]["metadata_file"].removeprefix("file:"))
    is_partitioned = any(spec["fields"] for spec in json.loads(metadata.read_text())["partition-specs"])
    # The prototype writes a column for no partition, on which the reader fails.
    without = () if is_partitioned or group != "proto" else ("partition",)
    return TableToRead(metadata, without=without)


@pytest.fixture(scope="module")
def trees() -> Trees:
    """The trees of all tables of the corpus."""
    unpack_tables()
    return dict(zip(NAMES, read_trees([to_read(*name) for name in NAMES]), strict=True))


# -- The answers -------------------------------------------------------------------------------------------------------


def recorded(entry: Entry, names: dict[str, str]) -> Answer:
    """Return an entry as the answers write it."""
    same = ("status", "snapshot_id", "sequence_number", "file_sequence_number", "dv_snapshot_id", "first_row_id",
            "format_version", "location", "file_format", "record_count", "spec_id", "sort_order_id", "split_offsets",
            "equality_ids")  # fmt: skip
    answer: Answer = {name: entry[name] for name in same}
    answer |= {"pos": entry["position"], "content": entry["content_type"], "file_size": entry["file_size_in_bytes"]}
    if entry["partition"] is not None:
        values = {number: shown(part["value"], part["type"]) for number, part in entry["partition"].items()}
        answer["partition"] = {names[number]: value for number, value in values.items()}
    if (vector := entry["deletion_vector"]) is not None:
        answer["dv"] = {name: vector[name] for name in ("location", "offset", "cardinality")}
        answer["dv"]["size"] = vector["size_in_bytes"]
    if (info := entry["manifest_info"]) is not None:
        answer["manifest_info"] = {name.removesuffix("_count"): count for name, count in info.items() if name != "dv"}
        if info["dv"] is not None:
            answer["manifest_info"] |= {"dv_positions": info["dv"], "dv_cardinality": len(info["dv"])}
    if entry["content_stats"] is not None:
        answer["stats"] = {column: recorded_stats(known) for column, known in entry["content_stats"].items()}
    positions = {name: entry[name] for name in ("deleted_positions", "replaced_positions")}
    return answer | {name: value for name, value in positions.items() if value is not None}


def recorded_stats(known: Answer) -> Answer:
    bounds = (
        {name: shown(known[name], known["type"]) for name in ("lower_bound", "upper_bound")} if known["type"] else {}
    )
    counts = {name: known[name] for name in ("value_count", "null_value_count", "nan_value_count")}
    return bounds | {name: count for name, count in counts.items() if count is not None}


def shown(digits: str | None, type_name: str) -> Any:
    match decoded(digits, type_name):
        case bool() as value:
            return value
        case float() as value if math.isnan(value):
            return "NaN"
        case Decimal() as value:
            return str(value)
        case bytes() as value:
            return f"0x{value.hex()}"
        case value:
            return value


def with_comparable(answer: Answer, entry: Entry) -> Answer:
    """Return a recorded entry with floats in single precision, and with positions for bitmaps."""
    changed = dict(answer)
    for name in ("deleted_positions", "replaced_positions"):
        if name in answer:
            changed[name] = read_mumbling(bytes.fromhex(answer[name][2:]), "answer", name).tolist()
    floats = {column for column, known in (entry["content_stats"] or {}).items() if known["type"] == "float"}
    if "stats" in answer:
        changed["stats"] = {
            column: {
                name: struct.unpack("<f", struct.pack("<f", value))[0] if isinstance(value, float) else value
                for name, value in known.items()
            }
            if column in floats
            else known
            for column, known in answer["stats"].items()
        }
    return changed


@EVERYWHERE
def test_entries_are_those_of_the_answers(trees: Trees, group: str, name: str) -> None:
    snapshots = answers()[f"{group}/{name}.tracked.json"]["snapshots"]
    names = partition_fields(to_read(group, name).json)
    assert [tree.snapshot_id for tree in trees[group, name]] == [snapshot["snapshot_id"] for snapshot in snapshots]
    for tree, snapshot in zip(trees[group, name], snapshots, strict=True):
        manifests = {"root": (tree.root, snapshot["root"])}
        assert [*tree.leaves] == [*snapshot["leaves"]]
        manifests |= {location: (tree.leaves[location], snapshot["leaves"][location]) for location in tree.leaves}
        for location, (entries, expected) in manifests.items():
            assert len(entries) == len(expected), location
            for entry, answer in zip(entries, expected, strict=True):
                # Answers of large leaves lack some fields.
                actual = {name: value for name, value in recorded(entry, names).items() if name in answer}
                assert actual == with_comparable(answer, entry), location


# -- Our entries -------------------------------------------------------------------------------------------------------


@EVERYWHERE
def test_entries_agree(trees: Trees, group: str, name: str) -> None:
    table = sm.load_table(answers()[f"{group}/{name}.json"]["metadata_file"])
    metadata = to_read(group, name).json
    for tree in trees[group, name]:
        assert_same_manifests(tree.root, table.inspect.arrow.manifests(tree.snapshot_id))
        if tree.is_whole:
            assert_same_entries(tree.entries(), table.inspect.arrow.entries(tree.snapshot_id), metadata)
        for location, entries in tree.leaves.items():
            assert_same_stats(entries, rows_in_memory(location, entries), metadata)


def rows_in_memory(location: str, entries: list[Entry]) -> pa.Table:
    """Return the rows of a leaf with the statistics that Java reads."""
    stats = {
        int(column): known["type"].replace(" ", "")
        for entry in entries
        for column, known in (entry["content_stats"] or {}).items()
        if known["type"]
    }
    return read_manifest(Path(location.removeprefix("file:")).read_bytes(), stats, location)[0]


def changed(entry: Entry, path: str, value: Any) -> Entry:
    """Return an entry with another value of a field; names of nested fields have a dot between them."""
    name, _, rest = path.partition(".")
    return entry | {name: changed(entry[name], rest, value) if rest else value}


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        *(
            ("dv", path, value)
            for path, value in [
                ("status", "DELETED"),
                *((name, 77) for name in ("snapshot_id", "sequence_number", "file_sequence_number", "first_row_id")),
                *((name, 77) for name in ("record_count", "file_size_in_bytes", "spec_id", "sort_order_id")),
                *((name, [77]) for name in ("split_offsets", "equality_ids")),
                *((name, "x") for name in ("location", "file_format", "key_metadata")),
                ("content_type", "EQUALITY_DELETES"),
                ("deletion_vector", None),
                ("deletion_vector.location", "x"),
                *((f"deletion_vector.{name}", 77) for name in ("offset", "size_in_bytes", "cardinality")),
                *((f"content_stats.3.{name}_count", 77) for name in ("value", "null_value", "nan_value")),
                *((f"content_stats.3.{name}_bound", "00" * 7 + "80") for name in ("lower", "upper")),
                ("content_stats", None),
            ]
        ),
        ("transforms", "partition.1000.value", "78"),
        ("transforms", "partition", None),
    ],
)
def test_other_entries_are_told(trees: Trees, name: str, path: str, value: Any) -> None:
    """Each field is compared."""
    table, tree = sm.load_table(answers()[f"proto/{name}.json"]["metadata_file"]), trees["proto", name][-1]
    entries, metadata = tree.entries(), to_read("proto", name).json
    status = "MODIFIED" if name == "dv" else "ADDED"
    ours = table.inspect.arrow.entries(tree.snapshot_id)
    index = next(index for index, entry in enumerate(entries) if entry["status"] == status)
    entries[index] = changed(entries[index], path, value)
    with pytest.raises(AssertionError, match="only "):
        assert_same_entries(entries, ours, metadata)
    with pytest.raises(AssertionError, match="only ours"):
        assert_same_entries(entries[:index] + entries[index + 1 :], ours, metadata)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        *((name, 77) for name in ("file_size_in_bytes", "spec_id", "snapshot_id")),
        *((f"manifest_info.{name}_files_count", 77) for name in ("added", "existing", "deleted", "replaced")),
        ("location", "x"),
        ("status", "DELETED"),
    ],
)
def test_other_manifests_are_told(trees: Trees, path: str, value: Any) -> None:
    table, tree = sm.load_table(answers()["proto/dv.json"]["metadata_file"]), trees["proto", "dv"][-1]
    with pytest.raises(AssertionError, match="only"):
        assert_same_manifests(
            [changed(tree.root[0], path, value), *tree.root[1:]], table.inspect.arrow.manifests(tree.snapshot_id)
        )


@pytest.mark.parametrize(
    ("path", "value"),
    [("tight_bounds", True), ("avg_value_size_in_bytes", 1), ("lower_bound", None), ("nan_value_count", None)],
)
def test_other_stats_are_told(trees: Trees, path: str, value: Any) -> None:
    [(location, entries)] = [*trees["proto", "dv"][0].leaves.items()]
    rows = rows_in_memory(location, entries)
    with pytest.raises(AssertionError, match="data/f001"):
        assert_same_stats(
            [entries[0], changed(entries[1], f"content_stats.3.{path}", value)], rows, to_read("proto", "dv").json
        )


# -- A leaf with everything --------------------------------------------------------------------------------------------

METADATA = {
    "format-version": 4,
    "location": "file:/t",
    "current-schema-id": 1,
    "schemas": [
        {"schema-id": 0, "type": "struct", "fields": [{"id": 1, "name": "a", "required": True, "type": "int"}]},
        {
            "schema-id": 1,
            "type": "struct",
            "fields": [
                {"id": 1, "name": "a", "required": False, "type": "long"},
                {"id": 2, "name": "b", "required": False, "type": {
                    "type": "struct",
                    "fields": [
                        {"id": 3, "name": "s", "required": False, "type": "string"},
                        {"id": 4, "name": "f", "required": False, "type": "float"},
                    ],
                }},
                {"id": 5, "name": "d", "required": False, "type": "double"},
            ],
        },
    ],
    "partition-specs": [
        {"spec-id": 0, "fields": []},
        {"spec-id": 1, "fields": [{"field-id": 1000, "source-id": 3, "transform": "identity", "name": "b.s"}]},
        {"spec-id": 2, "fields": [{"field-id": 1001, "source-id": 1, "transform": "bucket[8]", "name": "a_bucket"},
                                  {"field-id": 1002, "source-id": 4, "transform": "identity", "name": "f"}]},
    ],
}  # fmt: skip


def column(number: int, name: str, kind: pa.DataType, *, required: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=not required, metadata={"PARQUET:field_id": str(number)})


def struct_of(*columns: pa.Field) -> pa.StructType:
    return pa.struct([*columns])


LONG, INT, TEXT, BYTES = pa.int64(), pa.int32(), pa.string(), pa.binary()
LEAF = pa.schema(
    [
        column(
            147,
            "tracking",
            struct_of(
                column(0, "status", INT, required=True),
                column(1, "snapshot_id", LONG),
                column(3, "sequence_number", LONG),
                column(4, "file_sequence_number", LONG),
                column(5, "dv_snapshot_id", LONG),
                column(142, "first_row_id", LONG),
            ),
            required=True,
        ),
        column(134, "content_type", INT, required=True),
        column(157, "format_version", INT, required=True),
        column(100, "location", TEXT, required=True),
        column(101, "file_format", TEXT, required=True),
        column(103, "record_count", LONG, required=True),
        column(104, "file_size_in_bytes", LONG, required=True),
        column(141, "spec_id", INT),
        column(
            102,
            "partition",
            struct_of(column(1000, "b.s", TEXT), column(1001, "a_bucket", INT), column(1002, "f", pa.float32())),
        ),
        column(
            146,
            "content_stats",
            struct_of(
                column(
                    10200,
                    "a",
                    # As it was written when the column was an int.
                    struct_of(
                        column(10201, "lower_bound", INT),
                        column(10202, "upper_bound", INT),
                        column(10203, "tight_bounds", pa.bool_()),
                        column(10204, "value_count", LONG),
                        column(10205, "null_value_count", LONG),
                    ),
                ),
                column(
                    10600,
                    "b_s",
                    struct_of(
                        column(10601, "lower_bound", TEXT),
                        column(10602, "upper_bound", TEXT),
                        column(10603, "tight_bounds", pa.bool_()),
                        column(10604, "value_count", LONG),
                        column(10605, "null_value_count", LONG),
                        column(10607, "avg_value_size_in_bytes", INT),
                    ),
                ),
                column(
                    10800,
                    "b_f",
                    struct_of(
                        column(10801, "lower_bound", pa.float32()),
                        column(10802, "upper_bound", pa.float32()),
                        column(10803, "tight_bounds", pa.bool_()),
                        column(10806, "nan_value_count", LONG),
                    ),
                ),
                column(11000, "d", struct_of(column(11004, "value_count", LONG))),
            ),
        ),
        column(140, "sort_order_id", INT),
        column(
            148,
            "deletion_vector",
            struct_of(
                column(155, "location", TEXT, required=True),
                column(144, "offset", LONG, required=True),
                column(145, "size_in_bytes", LONG, required=True),
                column(156, "cardinality", LONG, required=True),
                column(149, "key_metadata", BYTES),
            ),
        ),
        column(131, "key_metadata", BYTES),
        column(132, "split_offsets", pa.list_(column(133, "element", LONG, required=True))),
        column(135, "equality_ids", pa.list_(column(136, "element", INT, required=True))),
    ]
)


def leaf_row(**values: Any) -> Entry:
    row: Entry = {field.name: None for field in LEAF}
    row |= {"tracking": {"status": 1}, "content_type": 0, "format_version": 4, "location": "data/a.parquet"}
    return row | {"file_format": "parquet", "record_count": 3, "file_size_in_bytes": 700, "spec_id": 0} | values


ROWS = [
    leaf_row(
        sort_order_id=0,
        key_metadata=b"\x01\xff",
        split_offsets=[4, 300],
        deletion_vector={
            "location": "data/dv.puffin", "offset": 4, "size_in_bytes": 42, "cardinality": 1, "key_metadata": b"\x07",
        },
        content_stats={
            "a": {"lower_bound": -1, "upper_bound": 5, "tight_bounds": True, "value_count": 3, "null_value_count": 0},
            "b_s": {"lower_bound": "", "upper_bound": "é", "tight_bounds": False, "value_count": 3,
                    "avg_value_size_in_bytes": 2},
            "b_f": {"lower_bound": -0.0, "upper_bound": math.inf, "tight_bounds": False, "nan_value_count": 2},
        },
    ),
    leaf_row(location="data/b.parquet", spec_id=1, partition={"b.s": "x" * 20}, record_count=2),
    leaf_row(location="data/empty.parquet", record_count=0),
    leaf_row(
        location="s3://b/c.parquet",
        spec_id=2,
        partition={"a_bucket": 7, "f": math.nan},
        tracking={"status": 3, "snapshot_id": 8, "sequence_number": 1, "file_sequence_number": 2, "first_row_id": 50},
    ),
    leaf_row(location="data/eq.parquet", content_type=2, equality_ids=[1, 3]),
]  # fmt: skip


@pytest.fixture
def leaf(tmp_path: Path) -> TableToRead:
    (tmp_path / "v1.metadata.json").write_text(json.dumps(METADATA))
    pq.write_table(pa.Table.from_pylist(ROWS, schema=LEAF), tmp_path / "leaf.parquet")
    return TableToRead(tmp_path / "v1.metadata.json", [ManifestToRead(f"file:{tmp_path}/leaf.parquet", 9, 4, 100)])


def test_all_fields_are_read(leaf: TableToRead) -> None:
    [[entries]] = read_manifests([leaf])
    assert_same_stats(entries, rows_in_memory(leaf.manifests[0].path, entries), METADATA)
    first, second, replaced, deletes = entries
    assert [entry["position"] for entry in entries] == [0, 1, 3, 4]
    assert {name: value for name, value in first.items() if name not in ("content_stats", "deletion_vector")} == {
        "position": 0, "status": "ADDED", "snapshot_id": 9, "sequence_number": 4, "file_sequence_number": 4,
        "dv_snapshot_id": None, "first_row_id": 100, "deleted_positions": None, "replaced_positions": None,
        "content_type": "DATA", "format_version": 4, "location": "file:/t/data/a.parquet", "file_format": "PARQUET",
        "record_count": 3, "file_size_in_bytes": 700, "spec_id": 0, "partition": None, "sort_order_id": 0,
        "split_offsets": [4, 300], "equality_ids": None, "manifest_info": None, "key_metadata": "01ff",
    }  # fmt: skip
    assert first["deletion_vector"] == {
        "location": "file:/t/data/dv.puffin", "offset": 4, "size_in_bytes": 42, "cardinality": 1, "key_metadata": "07",
    }  # fmt: skip
    unknown = {"value_count": None, "null_value_count": None, "nan_value_count": None, "avg_value_size_in_bytes": None}
    assert first["content_stats"] == {
        "1": unknown | {"type": "long", "lower_bound": "ff" * 8, "upper_bound": "05" + "00" * 7, "tight_bounds": True,
                        "value_count": 3, "null_value_count": 0},
        "3": unknown | {"type": "string", "lower_bound": "", "upper_bound": "c3a9", "tight_bounds": False,
                        "value_count": 3, "avg_value_size_in_bytes": 2},
        "4": unknown | {"type": "float", "lower_bound": "00000080", "upper_bound": "0000807f", "tight_bounds": False,
                        "nan_value_count": 2},
    }  # fmt: skip
    assert second["partition"] == {
        "1000": {"type": "string", "value": b"x".hex() * 20},
        "1001": {"type": "int", "value": None},
        "1002": {"type": "float", "value": None},
    }
    assert (second["first_row_id"], second["content_stats"], second["deletion_vector"]) == (103, None, None)
    tracking = ("status", "snapshot_id", "sequence_number", "file_sequence_number", "first_row_id")
    assert [replaced[name] for name in tracking] == ["REPLACED", 8, 1, 2, 50]
    assert (replaced["location"], replaced["partition"]["1002"]["value"]) == ("s3://b/c.parquet", "0000c07f")
    assert (deletes["content_type"], deletes["equality_ids"]) == ("EQUALITY_DELETES", [1, 3])


@pytest.mark.parametrize("name", ["a", "d"], ids=["null", "no field"])
def test_unknown_tightness_is_refused(leaf: TableToRead, tmp_path: Path, name: str) -> None:
    """The reader fails on statistics of a column without `tight_bounds`: writers have to know it."""
    row = leaf_row(content_stats={name: {"value_count": 3}})
    pq.write_table(pa.Table.from_pylist([row], schema=LEAF), tmp_path / "leaf.parquet")
    with pytest.raises(AssertionError, match="NullPointerException"):
        read_manifests([leaf])


def test_a_file_that_cannot_be_read_fails(leaf: TableToRead, tmp_path: Path) -> None:
    (tmp_path / "leaf.parquet").write_bytes(b"PAR1")
    with pytest.raises(AssertionError, match=r"Iceberg's reader fails: file:.*/leaf\.parquet: "):
        read_manifests([leaf])


# -- A tree with values of all types -----------------------------------------------------------------------------------

INSTANT = dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC)
LOCAL = INSTANT.replace(tzinfo=None)
ID = UUID("80000000-0000-0001-0000-000000000002")
TYPES: list[tuple[str, pa.DataType, list[Any]]] = [
    # type, its Arrow type, values of a partition and bounds
    ("boolean", pa.bool_(), [True, False, True]),
    ("int", INT, [-(2**31), -1, 2**31 - 1]),
    ("long", LONG, [2**63 - 1, -(2**63), 0]),
    ("float", pa.float32(), [-0.0, -math.inf, 0.1]),
    ("double", pa.float64(), [math.nan, -0.0, 0.1]),
    ("decimal(9, 2)", pa.decimal128(9, 2), [Decimal("-0.01"), Decimal("-9999999.99"), Decimal("1.00")]),
    ("decimal(18, 0)", pa.decimal128(18, 0), [Decimal(10**18 - 1), Decimal(-1), Decimal(128)]),
    ("decimal(38, 10)", pa.decimal128(38, 10), [Decimal("1E-10"), Decimal("-1E27"), Decimal(0)]),
    ("date", pa.date32(), [dt.date(1969, 12, 31), dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    ("time", pa.time64("us"), [dt.time(23, 59, 59, 999_999), dt.time(0), dt.time(1)]),
    ("timestamp", pa.timestamp("us"), [LOCAL, LOCAL, LOCAL.replace(year=2024)]),
    ("timestamptz", pa.timestamp("us", "UTC"), [INSTANT, INSTANT, INSTANT]),
    ("timestamp_ns", pa.timestamp("ns"), [-1, -(2**62), 2**62]),
    ("timestamptz_ns", pa.timestamp("ns", "UTC"), [-1, -(2**62), 2**62]),
    ("string", TEXT, ["\u2028a long value of a partition", "", "\U0001f600"]),
    # The reader fails on values that are not marked as UUIDs.
    ("uuid", pa.uuid(), [ID.bytes, bytes(16), b"\xff" * 16]),
    ("fixed[3]", pa.binary(3), [b"\x00\x80\xff", bytes(3), b"\xff" * 3]),
    ("binary", BYTES, [b"\x00", b"", b"\xff" * 40]),
]
TRANSFORMS = [
    # type of the source, transform, type of the value, values
    ("string", "bucket[16]", INT, 15),
    ("string", "truncate[2]", TEXT, "\u2028a"),
    ("binary", "truncate[1]", BYTES, b"\x80"),
    ("decimal(9, 2)", "truncate[50]", pa.decimal128(9, 2), Decimal("-0.50")),
    ("long", "truncate[10]", LONG, -10),
    ("date", "year", INT, -1),
    ("timestamp", "month", INT, -1),
    ("timestamptz_ns", "day", pa.date32(), dt.date(1969, 12, 31)),
    ("timestamptz", "hour", INT, -1),
    ("uuid", "void", pa.uuid(), None),
]
NUMBERS = {name: number for number, (name, _, _) in enumerate(TYPES, 1)}


def column_name(type_name: str) -> str:
    return re.sub(r"\W+", "_", f"c_{type_name}").strip("_")


def metadata_of_types(folder: Path, snapshots: list[Answer]) -> Answer:
    fields = [
        {"id": number, "name": column_name(name), "required": False, "type": name} for name, number in NUMBERS.items()
    ]
    nested = {"id": 51, "name": "c_string", "required": True, "type": "string"}
    identity = [
        {"field-id": 1000 + number, "source-id": number, "transform": "identity", "name": f"p_{column_name(name)}"}
        for name, number in NUMBERS.items()
    ]
    others = [
        {"field-id": 1100 + index, "source-id": NUMBERS[name], "transform": transform, "name": f"t_{index}"}
        for index, (name, transform, _, _) in enumerate(TRANSFORMS)
    ]
    struct_field = {"id": 50, "name": "nested", "required": False, "type": {"type": "struct", "fields": [nested]}}
    return {
        "format-version": 4,
        "table-uuid": str(ID),
        "location": f"file:{folder}",
        "last-sequence-number": 2,
        "last-updated-ms": 1,
        "last-column-id": 51,
        "current-schema-id": 0,
        "schemas": [{"schema-id": 0, "type": "struct", "fields": [*fields, struct_field]}],
        "default-spec-id": 1,
        "partition-specs": [
            {"spec-id": 0, "fields": []},
            {"spec-id": 1, "fields": identity},
            {"spec-id": 2, "fields": others},
        ],
        "last-partition-id": 1200,
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "next-row-id": 1000,
        "current-snapshot-id": snapshots[-1]["snapshot-id"],
        "snapshots": snapshots,
        "refs": {"main": {"snapshot-id": snapshots[-1]["snapshot-id"], "type": "branch"}},
    }


def leaf_of_types(*, has_partition: bool, has_stats: bool) -> pa.Schema:
    parts = [column(1000 + NUMBERS[name], f"p_{column_name(name)}", kind) for name, kind, _ in TYPES]
    parts += [column(1100 + index, f"t_{index}", kind) for index, (_, _, kind, _) in enumerate(TRANSFORMS)]
    columns = {name: (NUMBERS[name], kind) for name, kind, _ in TYPES} | {"nested": (51, TEXT)}
    stats = [
        column(
            10000 + 200 * number,
            name,
            struct_of(
                column(10001 + 200 * number, "lower_bound", kind),
                column(10002 + 200 * number, "upper_bound", kind),
                column(10003 + 200 * number, "tight_bounds", pa.bool_()),
                column(10004 + 200 * number, "value_count", LONG),
                column(10005 + 200 * number, "null_value_count", LONG),
                *([column(10006 + 200 * number, "nan_value_count", LONG)] if pa.types.is_floating(kind) else ()),
                *([column(10007 + 200 * number, "avg_value_size_in_bytes", INT)] if kind in (TEXT, BYTES) else ()),
            ),
        )
        for name, (number, kind) in columns.items()
    ]
    replaced = {"partition": struct_of(*parts), "content_stats": struct_of(*stats)}
    left_out = {name for name, there in (("partition", has_partition), ("content_stats", has_stats)) if not there}
    fields = [field for field in LEAF if field.name not in left_out]
    return pa.schema([field.with_type(replaced.get(field.name, field.type)) for field in fields])


def rows_of_types() -> list[Entry]:
    identity = {f"p_{column_name(name)}": values[0] for name, _, values in TYPES}
    others = {f"t_{index}": value for index, (_, _, _, value) in enumerate(TRANSFORMS)}
    columns = {name: values for name, _, values in TYPES} | {"nested": ["", "a", "b"]}
    stats = {
        name: {"lower_bound": lower, "upper_bound": upper, "tight_bounds": name != "string", "value_count": 3,
               "null_value_count": 0, "nan_value_count": 1, "avg_value_size_in_bytes": 9}
        for name, (_, lower, upper) in columns.items()
    }  # fmt: skip
    nulls = {name: {"tight_bounds": False, "value_count": 3, "null_value_count": 3} for name in columns}
    return [
        leaf_row(location="data/1.parquet", content_stats=stats),
        leaf_row(location="data/2.parquet", spec_id=1, partition=identity, content_stats=stats),
        leaf_row(location="data/3.parquet", spec_id=1, partition=identity),
        leaf_row(location="data/4.parquet", spec_id=1, partition={}, content_stats=nulls),
        leaf_row(location="data/5.parquet", spec_id=2, partition=others, content_stats=nulls),
        leaf_row(location="data/6.parquet", spec_id=2, partition={}),
    ]


def stored(kind: pa.DataType) -> pa.DataType:
    """Return a type with the storage of UUIDs in place of them."""
    if pa.types.is_struct(kind):
        return pa.struct([child.with_type(stored(child.type)) for child in kind])
    return kind.storage_type if isinstance(kind, pa.UuidType) else kind


def with_uuids(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return values of a `stored` type as values of the type itself."""
    if values.type == kind:
        return values
    if pa.types.is_struct(kind):
        children = [with_uuids(child, field.type) for child, field in zip(values.flatten(), kind, strict=True)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=values.is_null())
    return kind.wrap_array(values)


def manifest(rows: list[Entry], schema: pa.Schema) -> pa.Table:
    columns = [pa.array([row[field.name] for row in rows], stored(field.type)) for field in schema]
    arrays = [with_uuids(values, field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


COUNTED = ("added", "existing", "deleted", "replaced")


def root_schema() -> pa.Schema:
    files = zip((504, 505, 506, 520), COUNTED, strict=True)
    rows = zip((512, 513, 514, 521), COUNTED, strict=True)
    info = struct_of(
        *(column(number, f"{name}_files_count", INT, required=True) for number, name in files),
        *(column(number, f"{name}_rows_count", LONG, required=True) for number, name in rows),
        column(516, "min_sequence_number", LONG, required=True),
        column(522, "dv", BYTES),
    )
    fields = [field for field in LEAF if field.name not in ("partition", "content_stats", "deletion_vector")]
    return pa.schema([*fields, column(150, "manifest_info", info)])


def leaf_in_root(path: Path, count: int, spec_id: int) -> Entry:
    counts = {f"{name}_{kind}_count": 0 for name in COUNTED for kind in ("files", "rows")}
    info = counts | {"added_files_count": count, "added_rows_count": 3 * count, "min_sequence_number": 2}
    numbers = {"status": 1, "snapshot_id": 5, "sequence_number": 2, "file_sequence_number": 2, "first_row_id": 10}
    size, location = path.stat().st_size, f"metadata/{path.name}"
    values = {"record_count": count, "file_size_in_bytes": size, "spec_id": spec_id, "manifest_info": info}
    return leaf_row(location=location, content_type=3, tracking=numbers, **values)


def write_typed_table(folder: Path, *, has_partition: bool, has_stats: bool) -> Path:
    """Write a table with a root and a leaf, and return the path of its metadata."""
    (folder / "metadata").mkdir(parents=True)
    path, leaf_path = folder / "metadata" / "v1.metadata.json", folder / "metadata" / "leaf.parquet"
    rows = [row for row in rows_of_types() if has_partition or row["spec_id"] == 0]
    pq.write_table(manifest(rows, leaf_of_types(has_partition=has_partition, has_stats=has_stats)), leaf_path)
    in_root = [leaf_in_root(leaf_path, len(rows), int(has_partition))]
    pq.write_table(manifest(in_root, root_schema()), leaf_path.with_name("root.parquet"))
    snapshot = {"snapshot-id": 5, "sequence-number": 2, "timestamp-ms": 1, "root-manifest": "metadata/root.parquet",
                "schema-id": 0, "first-row-id": 10, "added-rows": 20, "summary": {"operation": "append"}}  # fmt: skip
    metadata = metadata_of_types(folder, [snapshot])
    if not has_partition:
        metadata |= {"partition-specs": metadata["partition-specs"][:1], "default-spec-id": 0}
    path.write_text(json.dumps(metadata))
    return path


FORMS = {
    "all": {"has_partition": True, "has_stats": True},
    "no statistics": {"has_partition": True, "has_stats": False},
    "no partitions": {"has_partition": False, "has_stats": True},
    "neither": {"has_partition": False, "has_stats": False},
}


@pytest.fixture(scope="module")
def typed_trees(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[TableToRead, Tree]]:
    """The tree of a table of each form."""
    folder = tmp_path_factory.mktemp("types")
    tables = [TableToRead(write_typed_table(folder / form, **columns)) for form, columns in FORMS.items()]
    return {form: (table, tree) for form, table, [tree] in zip(FORMS, tables, read_trees(tables), strict=True)}


@pytest.mark.parametrize("form", FORMS)
def test_values_of_all_types(typed_trees: dict[str, tuple[TableToRead, Tree]], form: str) -> None:
    to_compare, tree = typed_trees[form]
    table, entries = sm.load_table(str(to_compare.metadata)), tree.entries()
    assert len(entries) == (6 if FORMS[form]["has_partition"] else 1)
    assert_same_manifests(tree.root, table.inspect.arrow.manifests())
    assert_same_entries(entries, table.inspect.arrow.entries(), to_compare.json)
    [(location, in_leaf)] = tree.leaves.items()
    assert_same_stats(in_leaf, rows_in_memory(location, in_leaf), to_compare.json)
