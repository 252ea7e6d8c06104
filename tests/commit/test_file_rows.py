"""Rows of files, as users pass them, become entries: derived columns, partition values and refused rows."""

from __future__ import annotations

import math
import pickle
import struct
from dataclasses import replace
from datetime import date
from typing import Any

import pyarrow as pa
import pytest

from sparkmeta.commit.file_rows import FileRows, TupleField
from sparkmeta.entries.manifest_records import map_type
from sparkmeta.errors import ValidationError
from sparkmeta.expr.bounds import ANY
from sparkmeta.manifests.v4.layout import tree_schema

TABLE = "/warehouse/t"
STATS = {1: "long", 2: "string", 3: "double", 4: "uuid", 101: "date"}
SPECS = {
    0: (),
    1: (TupleField(1000, ("part",), 2, "string"), TupleField(1001, ("ts_day", "day"), 101, "date")),
    2: (TupleField(1002, ("ratio",), 3, "double"), TupleField(1003, ("old",), None, "int")),
    3: (TupleField(1004, ("id",), 4, "uuid"),),
    4: (TupleField(1005, ("zorder",), None, ANY),),
}
ROWS = FileRows(TABLE, STATS, SPECS, 0, frozenset(STATS), encrypted=False)

Row = dict[str, Any]


def file(**values: Any) -> Row:
    row = {"file_path": "/d/a.parquet", "file_format": "PARQUET", "record_count": 10, "file_size_in_bytes": 99}
    return row | values


def entries(*files: Row, rows: FileRows = ROWS) -> list[Row]:
    names = dict.fromkeys(name for row in files for name in row)
    table = pa.Table.from_pylist([{name: row.get(name) for name in names} for row in files])
    converted = rows.entries(table)
    assert converted.schema == tree_schema(rows.stats)
    converted.validate(full=True)
    entry_rows: list[Row] = converted.to_pylist()
    return entry_rows


def vector(**values: Any) -> Row:
    row = file(content=1, file_format="PUFFIN", referenced_data_file="/d/a.parquet", content_offset=4)
    return row | {"content_size_in_bytes": 40} | values


def test_a_minimal_file_row() -> None:
    row = entries(file())[0]
    assert row["version_info"] == {
        "status": 1, "snapshot_id": None, "sequence_number": None, "file_sequence_number": None
    }  # fmt: skip
    required = ("content_type", "location", "file_format", "partition_spec_id", "record_count", "file_size_in_bytes")
    assert [row[name] for name in required] == [0, "/d/a.parquet", "parquet", 0, 10, 99]
    others = set(row) - {*required, "version_info", "content_stats"}
    assert {name: row[name] for name in others} == dict.fromkeys(others)
    assert set(row["content_stats"].values()) == {None}


def test_all_that_a_file_may_have() -> None:
    more = {"sort_order_id": 2, "split_offsets": [4, 50], "first_row_id": 7, "whatever": 1}
    row = entries(file(**more))[0]
    assert (row["sort_order_id"], row["split_offsets"], row["key_metadata"]) == (2, [4, 50], None)
    assert row["first_row_id"] is None  # the commit gives it


def test_only_files_of_encrypted_tables_have_keys() -> None:
    encrypted, with_key = replace(ROWS, encrypted=True), pa.Table.from_pylist([file(key_metadata=b"k")])
    assert encrypted.entries(with_key).column("key_metadata").to_pylist() == [b"k"]
    with pytest.raises(ValidationError, match=r"key_metadata of file .*a.parquet is present: the table is not enc"):
        ROWS.entries(with_key)
    with pytest.raises(ValidationError, match=r"key_metadata of file .*a.parquet is null: the table is encrypted"):
        encrypted.entries(pa.Table.from_pylist([file()]))


def test_deletes() -> None:
    deletes = file(content=2, equality_ids=[1, 2], file_format="parquet")
    vector_entry, delete_entry = entries(vector(), deletes)
    assert vector_entry["deletion_vector"] == {"offset": 4, "size_in_bytes": 40, "inline_content": None}
    assert (vector_entry["referenced_file"], vector_entry["file_format"]) == ("/d/a.parquet", "puffin")
    assert (delete_entry["deletion_vector"], delete_entry["equality_ids"]) == (None, [1, 2])


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (file(file_path=None), "file_path.*missing"),
        (file(file_format=None), "file_format.*missing"),
        (file(record_count=None), "record_count.*missing"),
        (file(file_size_in_bytes=None), "file_size_in_bytes.*missing"),
        (file(record_count=-1), "record_count.*-1.*negative"),
        (file(file_size_in_bytes=-1), "file_size_in_bytes.*negative"),
        (file(content=3), "content of file.* is 3: this is the type of a manifest"),
        (file(spec_id=9), "spec_id.*9.*not one of 0, 1"),
        (file(spec_id=4, partition={"zorder": "x"}), "spec_id.*4.*an unknown transform"),
        (file(file_format="csv"), "file_format.*csv"),
        (file(content=1, referenced_data_file="/d/x"), "new position deletes are deletion vectors in Puffin files"),
        (file(file_format="puffin"), "file_format.*puffin.*has one of avro, orc, parquet"),
        (file(content=2, equality_ids=[1], file_format="puffin"), "file_format.*puffin.*has one of avro, orc, parquet"),
        (vector(referenced_data_file=None), "referenced_data_file"),
        (vector(content_offset=None), "content_offset"),
        (vector(content_size_in_bytes=None), "content_size_in_bytes"),
        (file(content=2), "equality_ids"),
        (file(content=2, equality_ids=[1, 77]), r"equality_ids of file /d/a.parquet is \[1, 77\]: no schema"),
        (file(equality_ids=[1]), "equality_ids.*no such field"),
        (file(file_path=""), "file_path of file  is '': it is empty"),
        (file(referenced_data_file="/d/b"), "referenced_data_file.*no such field"),
        (vector(content_offset=-1), "content_offset.*outside its file"),
        (vector(content_size_in_bytes=96), "content_offset.*outside its file"),
        (file(record_count="many"), "column record_count"),
        (file(partition={"part": "x"}, spec_id=1), "partition of file /d/a.parquet has no field ts_day"),
        (file(spec_id=1), "partition of file /d/a.parquet has no field part"),
        (file(spec_id=1, partition=None), "partition of file /d/a.parquet has no field part"),
        (file(spec_id=1, partition="part=x"), "partition of file /d/a.parquet has no field part"),
        (file(spec_id=2, partition={"ratio": "x"}), r"partition.ratio of the files is string"),
    ],
    ids=lambda value: value if isinstance(value, str) else "row",
)
def test_an_invalid_file(row: Row, problem: str) -> None:
    with pytest.raises(ValidationError, match=problem) as caught:
        entries(row)
    assert TABLE in str(caught.value)


@pytest.mark.parametrize(
    ("metrics", "problem"),
    [
        ({"null_value_counts": {1: -1}}, r"null_value_counts\[1\] of file /d/a.parquet is -1: it is negative"),
        ({"value_counts": {1: 3}, "null_value_counts": {1: 4}}, r"null_value_counts\[1\].* 4: .* value_counts\[1\]"),
        ({"value_counts": {3: 3}, "nan_value_counts": {3: 4}}, r"nan_value_counts\[3\].* 4: .* value_counts\[3\]"),
        ({"lower_bounds": {2: b"b"}, "upper_bounds": {2: b"a"}}, r"lower_bounds\[2\].*'b'.*upper_bounds\[2\]"),
    ],
)
def test_statistics_that_contradict_each_other(metrics: dict[str, dict[int, Any]], problem: str) -> None:
    fields = [pa.field(name, map_type(name)) for name in metrics]
    table = pa.Table.from_pylist([file()])
    for field in fields:
        table = table.append_column(field, pa.array([list(metrics[field.name].items())], field.type))
    with pytest.raises(ValidationError, match=problem):
        ROWS.entries(table)


# -- partitions -----------------------------------------------------------------------------------------------------


def test_partition_values_stand_in_stats() -> None:
    day = date(2024, 1, 5)
    row = entries(file(spec_id=1, partition={"part": "x", "day": day}))[0]
    for field_id, value in (("2", "x"), ("101", day)):
        stats = row["content_stats"][field_id]
        assert (stats["lower_bound"], stats["upper_bound"]) == (value, value)
        assert (stats["value_count"], stats["null_value_count"]) == (10, 0)
    assert row["content_stats"]["1"] is None


def test_the_name_in_the_table_comes_first() -> None:
    row = entries(file(spec_id=1, partition={"part": "x", "day": date(1999, 9, 9), "ts_day": date(2024, 1, 5)}))[0]
    assert row["content_stats"]["101"]["lower_bound"] == date(2024, 1, 5)


def test_the_partition_value_null() -> None:
    row = entries(file(spec_id=1, partition={"part": None, "ts_day": None}))[0]
    for field_id in ("2", "101"):
        stats = row["content_stats"][field_id]
        assert (stats["lower_bound"], stats["upper_bound"], stats["null_value_count"]) == (None, None, 10)


def test_the_partition_value_nan_is_counted() -> None:
    rows = entries(file(spec_id=2, partition={"ratio": math.nan}), file(spec_id=2, partition={"ratio": 1.5}))
    stats = [row["content_stats"]["3"] for row in rows]
    assert [(field_stats["lower_bound"], field_stats["nan_value_count"]) for field_stats in stats] == [
        (None, 10),
        (1.5, 0),
    ]


def test_uuids_are_given_as_text_or_bytes() -> None:
    text = "00112233-4455-6677-8899-aabbccddeeff"
    for value in (text, bytes.fromhex(text.replace("-", ""))):
        row = entries(file(spec_id=3, partition={"id": value}))[0]
        assert row["content_stats"]["4"]["lower_bound"] == bytes.fromhex(text.replace("-", ""))


@pytest.mark.parametrize("text", ["no uuid", "0011", "00112233-4455-6677-8899-aabbccddeeff00"])
def test_texts_that_are_no_uuids(text: str) -> None:
    with pytest.raises(ValidationError, match=f"partition.id of the files: '{text}' is not a UUID"):
        entries(file(spec_id=3, partition={"id": text}))


def test_files_of_several_specs() -> None:
    partition = {"part": "x", "ts_day": date(2024, 1, 5), "ratio": 2.5}
    rows = entries(*(file(spec_id=spec_id, partition=partition) for spec_id in (0, 1, 2)))
    filled = [{name for name, stats in row["content_stats"].items() if stats is not None} for row in rows]
    assert filled == [set(), {"2", "101"}, {"3"}]


def test_files_without_a_spec_are_of_the_default_one() -> None:
    rows = FileRows(TABLE, STATS, SPECS, 2, frozenset(STATS), encrypted=False)
    row = entries(file(partition={"ratio": 1.0}), rows=rows)[0]
    assert row["partition_spec_id"] == 2


# -- metrics --------------------------------------------------------------------------------------------------------


def with_maps(row: Row, **maps: dict[int, Any]) -> pa.Table:
    table = pa.Table.from_pylist([row])
    for name, values in maps.items():
        table = table.append_column(name, pa.array([list(values.items())], map_type(name)))
    return table


def test_metrics_become_stats() -> None:
    low, high = struct.pack("<q", -4), struct.pack("<q", 9)
    table = with_maps(
        file(),
        value_counts={1: 10, 77: 3},
        null_value_counts={1: 2},
        nan_value_counts={3: 1},
        lower_bounds={1: low, 2: b"a"},
        upper_bounds={1: high},
    )
    stats = ROWS.entries(table).to_pylist()[0]["content_stats"]
    long_stats = [stats["1"][name] for name in ("lower_bound", "upper_bound", "value_count", "null_value_count")]
    assert long_stats == [-4, 9, 10, 2]
    assert (stats["2"]["lower_bound"], stats["2"]["upper_bound"]) == ("a", None)
    assert stats["3"]["nan_value_count"] == 1
    assert stats["4"] is None


def test_bounds_that_no_writer_truncates_are_tight() -> None:
    low, high = struct.pack("<q", -4), struct.pack("<q", 9)
    zero = struct.pack("<d", 0.0)
    bounds = {1: low, 2: b"a", 3: zero, 4: bytes(16)}
    table = with_maps(file(), lower_bounds=bounds, upper_bounds=bounds | {1: high})
    stats = ROWS.entries(table).to_pylist()[0]["content_stats"]
    assert {field_id: stats[field_id]["tight_bounds"] for field_id in "1234"} == {
        "1": True,
        "2": None,
        "3": None,
        "4": None,
    }
    half = ROWS.entries(with_maps(file(), lower_bounds=bounds, upper_bounds={2: b"b"})).to_pylist()[0]["content_stats"]
    assert half["1"]["tight_bounds"] is None


def test_partition_values_are_tight_bounds() -> None:
    partition = {"part": "x", "ts_day": None}
    stats = entries(file(spec_id=1, partition=partition))[0]["content_stats"]
    assert (stats["2"]["tight_bounds"], stats["101"]["tight_bounds"]) == (True, None)
    nan = entries(file(spec_id=2, partition={"ratio": math.nan}))[0]["content_stats"]
    assert nan["3"]["tight_bounds"] is None


@pytest.mark.parametrize(("size", "average"), [(7, 7), (0, 0), (None, None), (-1, None)])
def test_average_sizes_of_texts(size: int | None, average: int | None) -> None:
    """Average sizes are sizes in memory, as a writer reports. Sizes in the file don't determine them."""
    table = with_maps(file(), lower_bounds={2: b"a"}, value_counts={1: 10, 2: 10}, column_sizes={1: 100, 2: 100})
    sizes = [] if size is None else [(1, size), (2, size)]
    table = table.append_column("avg_value_sizes", pa.array([sizes], pa.map_(pa.int32(), pa.int32())))
    stats = ROWS.entries(table).to_pylist()[0]["content_stats"]
    assert stats["2"]["avg_value_size_in_bytes"] == average
    assert stats["1"]["avg_value_size_in_bytes"] is None


def test_a_partition_value_replaces_truncated_bounds() -> None:
    """The tuple is derived from the whole value (semantics 17.5)."""
    row = file(spec_id=1, partition={"part": "long value", "ts_day": date(2024, 1, 5)})
    table = with_maps(
        row, lower_bounds={2: b"lon"}, upper_bounds={2: b"loo"}, value_counts={2: 12}, null_value_counts={}
    )
    stats = ROWS.entries(table).to_pylist()[0]["content_stats"]["2"]
    assert (stats["lower_bound"], stats["upper_bound"]) == ("long value", "long value")
    assert (stats["value_count"], stats["null_value_count"]) == (12, 0)


def test_invalid_bounds() -> None:
    with pytest.raises(ValidationError, match=r"lower_bounds\[1\]"):
        ROWS.entries(with_maps(file(), lower_bounds={1: b"x"}))


def test_batches_are_made_by_tasks() -> None:
    rows = pickle.loads(pickle.dumps(ROWS))
    batches = [pa.RecordBatch.from_pylist([file(), file(file_path="/d/b")]), pa.RecordBatch.from_pylist([file()])]
    converted = list(rows.batches(batches))
    assert [len(batch) for batch in converted] == [2, 1]
    assert converted[0].schema == tree_schema(STATS)


def test_no_files() -> None:
    table = pa.Table.from_pylist([file(spec_id=1, partition={"part": "x", "ts_day": date(2024, 1, 5)})]).slice(1)
    assert len(ROWS.entries(table)) == 0
