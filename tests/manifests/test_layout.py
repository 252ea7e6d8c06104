from __future__ import annotations

import io
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.conversions import to_bytes

from sparkmeta.commit.options import TreeOptions, property_name
from sparkmeta.errors import CorruptFileError
from sparkmeta.expr.bounds import _ARROW_TYPES, decode_bounds
from sparkmeta.manifests.v4.layout import DATA, DELETE, ROOT, read_manifest, tree_schema, write_manifest
from sparkmeta.manifests.v4.root import write_root
from sparkmeta.spec.entry import CONTENT_ENTRY
from tests.manifests.entry_rows import (
    EQ,
    PD,
    SCHEMA,
    STATS,
    Row,
    bounds,
    entry_table,
    file_row,
    leaf_row,
    version,
    whole_root,
)
from tests.properties.cases import VALUES

ROUNDS = settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
LAYOUT_PAGE = Path(__file__).parents[2] / "docs" / "layout.md"

# -- the bytes that are promised ------------------------------------------------------------------------------------


def described(data: bytes) -> str:
    """A file's Parquet schema with its field ids, and its key-value metadata, as text."""
    file = pq.ParquetFile(io.BytesIO(data))
    metadata = {key.decode(): value.decode() for key, value in file.metadata.metadata.items()}
    return str(file.schema).split("\n", 1)[1].strip() + "".join(
        f"\n{key} = {value}" for key, value in sorted(metadata.items())
    )


@pytest.mark.parametrize("content", [ROOT, DATA, DELETE])
def test_the_layout_is_the_one_that_the_page_documents(content: str) -> None:
    """A change of what is written is a change of the layout page, and of the layout revision where readers notice."""
    table = whole_root()
    rows = {DATA: table.slice(3, 1), DELETE: table.slice(4, 2)}
    data = write_root(table) if content == ROOT else write_manifest(rows[content], content)
    blocks = dict(re.findall(r'^```text title="(\w+)"\n(.*?)\n```$', LAYOUT_PAGE.read_text(), re.MULTILINE | re.DOTALL))
    assert described(data) == blocks[content]


def test_the_page_names_every_property() -> None:
    rows = re.findall(r"^\| `(write\.tree\.[\w-]+)` \| (\d+) \|", LAYOUT_PAGE.read_text(), re.MULTILINE)
    known = [(property_name(option.name), str(option.default)) for option in fields(TreeOptions)]
    assert rows == known


def columns_of(data: bytes) -> dict[str, Any]:
    group = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(0)
    return {group.column(place).path_in_schema: group.column(place) for place in range(group.num_columns)}


def test_encodings_and_statistics() -> None:
    columns = columns_of(write_manifest(whole_root().slice(3, 1), DATA))
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    assert "DELTA_BYTE_ARRAY" in columns["location"].encodings
    assert columns["content_stats.1.lower_bound"].is_stats_set
    for path in ("split_offsets.list.element", "key_metadata"):
        assert not columns[path].is_stats_set


def test_values_that_repeat_have_a_dictionary() -> None:
    """The lower bound repeats in each half of the entries; the upper bound never repeats."""
    rows = (
        file_row(location=f"/t/{number}", content_stats={"1": bounds(number // 50, 1_000 + number)})
        for number in range(100)
    )
    columns = columns_of(write_manifest(entry_table(*rows), DATA))
    assert columns["content_stats.1.lower_bound"].has_dictionary_page
    assert columns["file_format"].has_dictionary_page
    assert not columns["content_stats.1.upper_bound"].has_dictionary_page


def test_stats_of_every_type_are_written() -> None:
    """This includes columns of type unknown, whose values are all null."""
    types = dict(enumerate(_ARROW_TYPES, 1))
    stats = {str(field_id): {"value_count": 5, "null_value_count": 5} for field_id in types}
    row = file_row() | {"content_stats": stats}
    table = pa.Table.from_pylist([row], schema=tree_schema(types))
    read, _ = read_manifest(write_manifest(table, DATA), types, "file:///t/m.parquet")
    assert read.column("content_stats").to_pylist()[0].keys() == stats.keys()
    assert all(
        column_stats["null_value_count"] == 5 for column_stats in read.column("content_stats").to_pylist()[0].values()
    )


def test_roots_are_read_as_a_whole() -> None:
    columns = columns_of(write_root(whole_root()))
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    for path in ("location", "referenced_file"):
        assert "DELTA_BYTE_ARRAY" in columns[path].encodings
    assert "DELTA_BINARY_PACKED" in columns["content_stats.1.lower_bound"].encodings
    assert not any(column.is_stats_set or column.has_dictionary_page for column in columns.values())


def test_a_large_leaf_has_row_groups_to_prune() -> None:
    rows = pa.concat_tables([entry_table(*(file_row(location=f"/t/{number:06}") for number in range(100)))] * 250)
    file = pq.ParquetFile(io.BytesIO(write_manifest(rows, DATA)))
    assert file.metadata.num_rows == 25_000
    assert file.metadata.num_row_groups == 2


# -- round trips ----------------------------------------------------------------------------------------------------

LONG = st.integers(0, 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
STATUS = st.fixed_dictionaries(
    {
        "status": st.integers(0, 2),
        "snapshot_id": st.none() | LONG,
        "sequence_number": st.none() | LONG,
        "file_sequence_number": st.none() | LONG,
    }
)
VECTOR = st.fixed_dictionaries(
    {name: st.none() | LONG for name in ("offset", "size_in_bytes")} | {"inline_content": st.none() | st.binary()}
)
COUNTS = st.fixed_dictionaries(
    {f"{status}_files_count": st.none() | st.integers(0, 2**31 - 1) for status in ("added", "existing", "deleted")}
    | {f"{status}_rows_count": st.none() | LONG for status in ("added", "existing", "deleted")}
    | {"min_sequence_number": st.none() | LONG}
)
FIELDS = {
    "content_type": st.integers(0, 5),
    "location": st.none() | TEXT,
    "file_format": TEXT,
    "version_info": STATUS,
    "deletion_vector": st.none() | VECTOR,
    "partition_spec_id": st.integers(0, 3),
    "sort_order_id": st.none() | st.integers(0, 3),
    "record_count": LONG,
    "file_size_in_bytes": st.none() | LONG,
    "manifest_stats": st.none() | COUNTS,
    "referenced_file": st.none() | TEXT,
    "key_metadata": st.none() | st.binary(),
    "split_offsets": st.none() | st.lists(LONG, max_size=3),
    "equality_ids": st.none() | st.lists(st.integers(0, 9), max_size=3),
    "first_row_id": st.none() | LONG,
}
TYPES = {number: str(primitive) for number, primitive in enumerate(VALUES, 1)}


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Rows of `tree_schema` with stats of columns of every type."""
    rows = draw(st.lists(st.fixed_dictionaries(FIELDS), max_size=5))
    types = {field_id: TYPES[field_id] for field_id in draw(st.sets(st.sampled_from(sorted(TYPES)), max_size=3))}
    schema = tree_schema(types)
    stats = [stats_of(draw, field_id, len(rows)) for field_id in sorted(types)]
    kind = schema.field("content_stats").type
    absent = pa.array([draw(st.booleans()) for _ in rows], pa.bool_())
    whole = (
        pa.StructArray.from_arrays(stats, fields=list(kind), mask=absent) if stats else pa.array([{}] * len(rows), kind)
    )
    table = pa.Table.from_pylist(rows, schema=schema.remove(len(schema) - 1))
    return table.append_column(schema.field("content_stats"), whole)


def stats_of(draw: st.DrawFn, field_id: int, rows: int) -> pa.StructArray:
    primitive = list(VALUES)[field_id - 1]
    value = st.none() | VALUES[primitive].map(lambda bound: to_bytes(primitive, bound))
    count = st.none() | LONG
    kind = tree_schema({field_id: str(primitive)}).field("content_stats").type.field(str(field_id)).type
    children = []
    for child in kind:
        if child.name.endswith("_bound"):
            raw = pa.array([draw(value) for _ in range(rows)], pa.binary())
            children.append(decode_bounds(raw, str(primitive)))
        elif child.name == "tight_bounds":
            children.append(pa.array([draw(st.none() | st.booleans()) for _ in range(rows)], pa.bool_()))
        else:
            small = st.none() | st.integers(0, 100)
            chosen = small if child.name == "avg_value_size_in_bytes" else count
            children.append(pa.array([draw(chosen) for _ in range(rows)], child.type))
    absent = pa.array([draw(st.booleans()) for _ in range(rows)], pa.bool_())
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=absent)


def as_text(table: pa.Table) -> list[str]:
    """Return rows as text, which distinguishes -0.0 from 0.0, without stats whose fields are all null."""
    rows = table.cast(readable(table.schema)).to_pylist()
    for row in rows:
        stats = row["content_stats"] or {}
        row["content_stats"] = {name: value for name, value in stats.items() if value is not None} or None
    return [repr(row) for row in rows]


def readable(schema: pa.Schema) -> pa.Schema:
    """The schema with integers for temporal types, since Python's types don't cover Iceberg's range."""

    def kind(arrow_type: pa.DataType) -> pa.DataType:
        if pa.types.is_struct(arrow_type):
            return pa.struct([pa.field(child.name, kind(child.type)) for child in arrow_type])
        if pa.types.is_date(arrow_type):
            return pa.int32()
        return pa.int64() if pa.types.is_temporal(arrow_type) else arrow_type

    return pa.schema([pa.field(field.name, kind(field.type)) for field in schema])


@ROUNDS
@given(tables(), st.integers(0, 2))
def test_a_root_comes_back_as_it_was(table: pa.Table, skipped: int) -> None:
    table = table.slice(skipped)
    types = {int(field.name): TYPES[int(field.name)] for field in table.schema.field("content_stats").type}
    data = write_manifest(table, ROOT, {"own": "ü"})
    read, properties = read_manifest(data, types, "root", as_written=True)
    assert read.schema == table.schema
    assert as_text(read) == as_text(table)
    assert properties == {"format-version": "4", "content": "root", "own": "ü"}


def test_leaves_leave_out_what_they_cannot_hold() -> None:
    table = entry_table(file_row(sort_order_id=3, first_row_id=5), file_row(EQ), file_row(PD))
    data, deletes = (read_manifest(write_manifest(table, content), STATS, "leaf")[0] for content in (DATA, DELETE))
    for name in ("deletion_vector", "referenced_file", "equality_ids"):
        assert data.column(name).null_count == 3
        assert deletes.column(name).equals(table.column(name))
    for name in ("sort_order_id", "first_row_id"):
        assert deletes.column(name).null_count == 3
        assert data.column(name).equals(table.column(name))


def test_an_empty_partition_value_is_told_from_a_missing_one() -> None:
    """An empty partition value has a struct of stats that contains only counts (semantics 17.4)."""
    rows = entry_table(file_row(content_stats={"101": bounds(None, None)}), file_row(content_stats=None))
    read, _ = read_manifest(write_manifest(rows, DATA), STATS, "leaf")
    stats = [(row["content_stats"] or {}).get("101") for row in read.to_pylist()]
    assert stats[1] is None
    assert stats[0] is not None
    assert stats[0]["lower_bound"] is None


# -- other writers' files -------------------------------------------------------------------------------------------


def field_id(field: pa.Field) -> bytes:
    return (field.metadata or {})[b"PARQUET:field_id"]


def renamed(field: pa.Field, keep_name: bool = False) -> pa.Field:
    """The field and its children under other names, with the same ids."""
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([renamed(child) for child in kind])
    name = field.name if keep_name else f"x{field_id(field).decode()}"
    return pa.field(name, kind, field.nullable, field.metadata)


def rewritten(data: bytes, change: Any) -> bytes:
    """Return a manifest with another Arrow schema and columns, and the same key-value metadata."""
    table = change(pq.read_table(io.BytesIO(data)))
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, table.schema, store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({"format-version": "4", "content": "root"})
    return sink.getvalue()


def test_fields_are_found_by_id() -> None:
    """The proposal's own examples use different names (semantics 17.1)."""
    data = write_manifest(whole_root(), ROOT)

    def change(table: pa.Table) -> pa.Table:
        schema = pa.schema([renamed(field) for field in table.schema])
        arrays = [
            pa.StructArray.from_arrays(
                [renamed_values(child, kind) for child, kind in zip(values.flatten(), field.type, strict=True)],
                fields=list(field.type), mask=values.is_null(),
            ) if pa.types.is_struct(field.type) else values
            for values, field in zip((column.combine_chunks() for column in table.columns), schema, strict=True)
        ]  # fmt: skip
        return pa.Table.from_arrays(arrays[::-1], schema=pa.schema(list(schema)[::-1]))

    def renamed_values(values: pa.Array, field: pa.Field) -> pa.Array:
        if not pa.types.is_struct(field.type):
            return values
        return pa.StructArray.from_arrays(values.flatten(), fields=list(field.type), mask=values.is_null())

    read, _ = read_manifest(rewritten(data, change), STATS, "root")
    assert as_text(read) == as_text(whole_root())


@pytest.mark.parametrize("name", [field.name for field in CONTENT_ENTRY] + ["content_stats"])
def test_a_missing_column_is_null(name: str) -> None:
    data = rewritten(write_manifest(whole_root(), ROOT), lambda table: table.drop_columns([name]))
    read, _ = read_manifest(data, STATS, "root")
    assert read.schema == SCHEMA
    assert read.column(name).null_count == len(read)
    others = [column for column in SCHEMA.names if column != name]
    assert plain_columns(read, others) == plain_columns(whole_root(), others)


def plain_columns(table: pa.Table, names: list[str]) -> list[Row]:
    return [{name: row[name] for name in names} for row in table.to_pylist()]


def test_extra_columns_and_stats_are_passed_over() -> None:
    def change(table: pa.Table) -> pa.Table:
        later = pa.field("later", pa.int32(), metadata={b"PARQUET:field_id": b"9999"})
        nameless = pa.field("location", pa.int32())  # no id, so it is not a field of a manifest
        more = pa.array(range(len(table)), pa.int32())
        return table.append_column(later, more).append_column(nameless, more)

    data = rewritten(write_manifest(whole_root(), ROOT), change)
    read, _ = read_manifest(data, {1: "long", 77: "string"}, "root")
    assert [field.name for field in read.schema.field("content_stats").type] == ["1", "77"]
    assert read.column("location").equals(whole_root().column("location"))
    stats = [row["content_stats"] for row in read.to_pylist()]
    assert stats[0]["1"]["lower_bound"] == 1
    assert stats[0]["77"] is None


def test_narrower_numbers_are_widened() -> None:
    """Stats of an int column that has become a long."""
    narrow = entry_table(file_row(content_stats={"1": bounds(1, 9)}), schema=tree_schema({1: "int"}))
    read, _ = read_manifest(write_manifest(narrow, ROOT), {1: "long"}, "root")
    assert read.schema.field("content_stats").type.field("1").type.field("lower_bound").type == pa.int64()
    assert read.to_pylist()[0]["content_stats"]["1"]["upper_bound"] == 9


@pytest.mark.parametrize(
    ("name", "values", "field"),
    [
        ("record_count", ["x"] * 6, "record_count"),
        ("version_info", [1] * 6, "version_info"),
        ("content_stats", [1] * 6, "content_stats"),
        ("content_type", [2**40] * 6, "content_type"),
    ],
)
def test_a_field_of_another_type(name: str, values: list[Any], field: str) -> None:
    def change(table: pa.Table) -> pa.Table:
        index = table.column_names.index(name)
        array = pa.array(values)
        return table.set_column(index, pa.field(name, array.type, metadata=table.schema.field(name).metadata), array)

    data = rewritten(write_manifest(whole_root(), ROOT), change)
    with pytest.raises(CorruptFileError, match=field) as caught:
        read_manifest(data, STATS, "/t/root.parquet")
    assert "/t/root.parquet" in str(caught.value)


def test_files_that_are_no_manifests() -> None:
    sink = io.BytesIO()
    pq.write_table(whole_root(), sink)
    for data, problem in (
        (b"", "not a Parquet file"),
        (b"PAR1" * 9, "not a Parquet"),
        (sink.getvalue(), "format-version"),
    ):
        with pytest.raises(CorruptFileError, match=problem):
            read_manifest(data, STATS, "root")


def test_a_required_field_without_a_value_is_not_written() -> None:
    row = leaf_row(version_info=version())
    row["record_count"] = None
    with pytest.raises((pa.ArrowException, ValueError)):
        write_manifest(entry_table(row), ROOT)


def test_data_leaves_have_row_id_offsets() -> None:
    """Only entries that take their row ids from the leaf have one; without such entries there is no column."""
    counts = [(10, None, 1), (5, 700, 0), (7, None, 2), (3, None, 1)]
    rows = [file_row(record_count=records, first_row_id=row_id) for records, row_id, _ in counts]
    for row, (_, _, status) in zip(rows, counts, strict=True):
        row["version_info"] = {**row["version_info"], "status": status}
    written = pq.read_table(io.BytesIO(write_manifest(entry_table(*rows), DATA)))
    assert written.column("row_id_offset").to_pylist() == [0, None, None, 10]
    assert written.schema.field("row_id_offset").metadata == {b"PARQUET:field_id": b"9001"}
    with_row_ids = [file_row(first_row_id=row_id) for row_id in (0, 10)]
    assert "row_id_offset" not in pq.read_schema(io.BytesIO(write_manifest(entry_table(*with_row_ids), DATA))).names
