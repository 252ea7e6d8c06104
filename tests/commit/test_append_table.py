"""The files of a whole table are added to another: as new files, with the same partitions and metrics."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import sparkmeta as sm
from sparkmeta.errors import CommitConflictError, ValidationError
from tests.frames import local_frame
from tests.handmade import (
    BY_PART,
    BY_RATIO,
    COLUMNS,
    HandmadeTable,
    data,
    deletion_vector,
    equality_deletes,
    long_bounds,
    position_deletes,
)
from tests.inspect.comparison import collected
from tests.maintain.clones import clone
from tests.maintain.test_convert import DROPPED, counted, metrics
from tests.peers import corpus as peers
from tests.peers.filters import filters
from tests.peers.slices import FILTERS, SOAK

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

IN_LEAVES = {"write.tree.affiliated-deletes": "2", "write.tree.direct-files": "1"}
A, B = ({"partition": {"part": value}} for value in "ab")
NUMBERS = ("first_row_id", "data_sequence_number", "manifest_path", "manifest_pos")


def loaded(spark: SparkSession, table: HandmadeTable) -> sm.Table:
    table.write()
    return sm.load_table(f"file://{table.folder}", spark=spark)


def source_of(folder: Path, **options: Any) -> HandmadeTable:
    """Return a table of data files of two partitions, one of them removed, and of no partition."""
    table = HandmadeTable(folder, summaries=True, **options)
    table.add(0, 1, *(data(f"x:a{i}", 1, status=2 if i == 1 else 1, **long_bounds(i, i + 9), **A) for i in range(4)))
    table.add(0, 1, *(data(f"x:b{i}", 1, status=0, **B) for i in range(3)))
    return table.add(0, 0, data("x:c0", 1, **long_bounds(50, 60)))


def target_of(spark: SparkSession, folder: Path, properties: dict[str, str] = IN_LEAVES, **options: Any) -> sm.Table:
    """Return a tree with one file, whose partition specs have other ids than the source's."""
    table = HandmadeTable(folder, properties=properties, specs=((), BY_RATIO, BY_PART), **options)
    return loaded(spark, table.add(0, 0, data("x:old"))).maintenance.upgrade(4).commit()


def committed(table: sm.Table, change: Callable[[Any], Any]) -> sm.Table:
    with table.transaction() as tx:
        change(tx.update_snapshot())
    return table.refresh()


def planned(table: sm.Table, **options: Any) -> list[dict[str, Any]]:
    """Return a plan without the file `old`, the numbers and positions of entries, and the ids of specs."""
    rows = [row.asDict(recursive=True) for row in table.scan(**options).plan_files().collect()]
    for row in rows:
        for entry in (row, *row["deletes"]):
            for name in NUMBERS:
                entry.pop(name, None)
        del row["spec_id"]
    return sorted((row for row in rows if row["file_path"] != "x:old"), key=lambda row: str(row["file_path"]))


def assert_appended(after: sm.Table, by_frame: sm.Table, source: sm.Table) -> None:
    """Assert that a table has the source's files, all new in its snapshot.

    `by_frame` is a table with the same files, added by a DataFrame.
    """
    assert [row["file_path"] for row in planned(after)] == ["x:a0", "x:a2", "x:a3", "x:b0", "x:b1", "x:b2", "x:c0"]
    for row_filter in ("true", "id > 11", "part = 'a'", "id = 55", "part = 'b' and id = 3"):
        assert planned(after, row_filter=row_filter) == planned(source, row_filter=row_filter), row_filter
    frame = source.inspect.files().replace({1: 2}, subset=["spec_id"])
    by_frame = committed(by_frame, lambda update: update.append(frame))
    # Row ids follow the order of a DataFrame's rows.
    files = [
        table.inspect.data_files().drop("first_row_id").orderBy("file_path").collect() for table in (after, by_frame)
    ]
    assert files[0] == files[1]
    assert {row["spec_id"] for row in files[0]} == {0, 2}
    head = after.current_snapshot()
    assert head is not None
    assert head.summary is not None
    counts = head.summary.additional_properties
    assert (head.operation, counts["added-data-files"], counts["added-records"]) == ("append", "7", "70")
    assert counts["added-files-size"] == "700"
    entries = after.inspect.entries().where("data_file.file_path != 'x:old'").collect()
    assert {(row["status"], row["snapshot_id"], row["sequence_number"]) for row in entries} == {
        (1, head.snapshot_id, head.sequence_number)
    }


@pytest.mark.parametrize("direct_files", [1, 100])
def test_files_become_new_files(spark: SparkSession, tmp_path: Path, direct_files: int) -> None:
    """Files in leaves and in the root have the same metrics as files that a DataFrame adds."""
    source = loaded(spark, source_of(tmp_path / "source"))
    limits = IN_LEAVES | {"write.tree.direct-files": str(direct_files)}
    target = target_of(spark, tmp_path / "target", limits)
    after = committed(target, lambda update: update.append(source))
    assert_appended(after, target_of(spark, tmp_path / "frame", limits), source)
    assert after.check().collect() == []
    row_ids = [row["first_row_id"] for row in after.scan().plan_files().where("file_path != 'x:old'").collect()]
    assert len(set(row_ids)) == 7
    assert min(row_ids) >= 1000
    leaves = int(direct_files == 1)
    assert len(after.state.tree.root.leaves) == 1 + 2 * leaves  # type: ignore[union-attr]


def tree_source(spark: SparkSession, tmp_path: Path) -> sm.Table:
    """Return a tree with leaves of both layouts, masked entries, and files in the root."""
    source = loaded(spark, source_of(tmp_path / "source", properties=IN_LEAVES)).maintenance.upgrade(4).commit()
    gone = local_frame(spark, pa.table({"file_path": ["x:b1"]}))
    source = committed(source, lambda update: update.delete(gone))
    more = loaded(spark, HandmadeTable(tmp_path / "more").add(0, 1, *(data(f"x:d{i}", **A) for i in range(3))))
    source = committed(source, lambda update: update.append(more))
    file = local_frame(spark, pa.table({"file_path": ["x:e"], "record_count": [5], "file_size_in_bytes": [9]}))
    source = committed(
        source, lambda update: update.append(file.selectExpr("*", "0 AS spec_id", "'parquet' file_format"))
    )
    tree = source.state.tree
    assert tree is not None
    assert tree.root.manifest_dvs
    assert {row["file_format"] for row in tree.root.leaves.to_pylist()} == {"avro", "parquet"}
    return source


def test_a_tree_as_source(spark: SparkSession, tmp_path: Path) -> None:
    """All files of a tree are added, also of an older snapshot."""
    source = tree_source(spark, tmp_path)
    target = target_of(spark, tmp_path / "target")
    after = committed(target, lambda update: update.append(source))
    assert planned(after) == planned(source)
    assert len(planned(after)) == 10
    assert after.check().collect() == []
    first = source.state.at(source.snapshots()[0])
    before = committed(target_of(spark, tmp_path / "before"), lambda update: update.append(first))
    assert planned(before) == planned(source, snapshot_id=source.snapshots()[0].snapshot_id)


def test_deletion_vectors_follow(spark: SparkSession, tmp_path: Path) -> None:
    """The vectors are affiliated with the new leaves, except for the vector of a removed data file.

    Without their data files, the vectors are refused.
    """
    handmade = source_of(tmp_path / "source")
    places = {"file_size_in_bytes": 999, "content_size_in_bytes": 40}
    vectors = (("x:a0", A), ("x:b0", B), ("x:a3", A), ("x:b2", B), ("x:a1", A))
    handmade.add(
        1,
        1,
        *(deletion_vector(of, 2, content_offset=4 + 40 * i, **places, **part) for i, (of, part) in enumerate(vectors)),
    )
    source = loaded(spark, handmade)
    for limit in ("1", "100"):
        target = target_of(spark, tmp_path / limit, IN_LEAVES | {"write.tree.direct-files": limit})
        with pytest.raises(
            ValidationError, match=r"deleted rows would come back: 1 delete manifests.*m3\.avro; row_delta"
        ):
            committed(target, lambda update: update.append(source))
        with pytest.raises(ValidationError, match="added must be the same one"):
            committed(target, lambda update: update.row_delta(deletes=source))
        after = committed(target, lambda update: update.row_delta(added=source, deletes=source))
        assert planned(after) == planned(source)
        assert sum(len(row["deletes"]) for row in planned(after)) == 4
        rules = {row["rule"] for row in after.check().collect()}
        assert rules <= {"vector-content"}, rules  # the vectors' Puffin file does not exist
        if limit == "1":
            assert after.state.tree is not None
            rows = after.state.tree.root.leaves.to_pylist()
            owners = {row["referenced_file"] for row in rows if row["content_type"] == 4}
            assert owners & {row["location"] for row in rows if row["content_type"] == 3}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            equality_deletes("x:e0", 3, **A),
            "e0, of .* an equality delete, which would apply to older files of this table",
        ),
        (
            position_deletes("x:p0", 3, **A),
            "p0, of .* a position delete file, and only deletion vectors can: rewrite_position_",
        ),
    ],
)
def test_deletes_that_can_not_follow(spark: SparkSession, tmp_path: Path, entry: dict[str, Any], message: str) -> None:
    source = loaded(spark, source_of(tmp_path / "source").add(1, 1, entry))
    target = target_of(spark, tmp_path / "target")
    with pytest.raises(ValidationError, match=message):
        committed(target, lambda update: update.row_delta(added=source, deletes=source))
    assert target.refresh().metadata_location == target.metadata_location
    written = {path.name for path in (tmp_path / "target" / "metadata").glob("*.parquet")}
    assert not written


def column(field_id: int, name: str, kind: Any, required: bool = False, **options: Any) -> dict[str, Any]:
    return {"id": field_id, "name": name, "required": required, "type": kind} | options


ID, PART, RATIO = COLUMNS
STRUCT = {"type": "struct", "fields": [column(9, "x", "int")]}
NESTED = (*COLUMNS, column(8, "s", STRUCT))


@pytest.mark.parametrize(
    ("theirs", "ours", "message"),
    [
        ([COLUMNS], [(ID, PART)], r"have column ratio \(id 3, double\): this table's schema has no column of the id"),
        (
            [COLUMNS],
            [(column(1, "id", "int"), PART, RATIO)],
            r"id \(id 1, long\), which is id \(id 1, int\) .* long can't",
        ),
        ([COLUMNS], [(column(1, "id", "long", True), PART, RATIO)], "requires it, and the files may have nulls"),
        (
            [COLUMNS],
            [(*COLUMNS, column(4, "x", "int", True))],
            r"lack column x \(id 4, int, required\), which this table",
        ),
        ([COLUMNS, (ID, PART)], [COLUMNS], r"may have the dropped column ratio \(id 3, double\), whose id is ratio"),
        ([(*COLUMNS, column(300, "x", "int")), COLUMNS], [COLUMNS], "whose id will be a new column of this table"),
        ([NESTED], [(*COLUMNS, column(8, "s", "int"))], r"struct<9: x: optional int> can't be read as int"),
        (
            [NESTED],
            [(*COLUMNS, column(9, "x", "int"), column(8, "s", {"type": "struct", "fields": []}))],
            "another column",
        ),
        (
            [COLUMNS],
            [(column(1, "id", "long", **{"initial-default": 7}), PART, RATIO)],
            "files without it have None there and 7 here",
        ),
    ],
)
def test_columns_that_differ(spark: SparkSession, tmp_path: Path, theirs: Any, ours: Any, message: str) -> None:
    source = loaded(spark, HandmadeTable(tmp_path / "source", schemas=tuple(theirs)).add(0, 0, data("x:f")))
    empty = HandmadeTable(tmp_path / "target", schemas=tuple(ours), specs=((), BY_PART))
    target = loaded(spark, empty).maintenance.upgrade(4).commit()
    with pytest.raises(ValidationError, match=message) as error:
        committed(target, lambda update: update.append(source))
    assert f"{target.location()}: files of {source.location()} " in str(error.value)


def test_columns_that_may_differ(spark: SparkSession, tmp_path: Path) -> None:
    """Columns may differ in name, have a type that can be widened, or be in the other table only."""
    narrow = (column(1, "id", "int"), PART, column(3, "ratio", "float"))
    bounds = {
        "lower_bounds": [{"key": 1, "value": (5).to_bytes(4, "little")}],
        "upper_bounds": [{"key": 1, "value": (9).to_bytes(4, "little")}],
    }
    handmade = HandmadeTable(tmp_path / "source", schemas=(narrow,), specs=((), BY_PART))
    source = loaded(spark, handmade.add(0, 0, data("x:f", **bounds)).add(0, 1, data("x:g", **bounds, **A)))
    wide = (column(1, "number", "long"), PART, RATIO, column(4, "more", "int"))
    target = target_of(spark, tmp_path / "target", schemas=(wide,))
    after = committed(target, lambda update: update.append(source))
    assert [row["file_path"] for row in planned(after, row_filter="number = 7 and more is null")] == ["x:f", "x:g"]
    assert planned(after, row_filter="number = 4") == []
    assert after.check().collect() == []


def test_partition_specs_and_properties_that_differ(spark: SparkSession, tmp_path: Path) -> None:
    source = loaded(spark, source_of(tmp_path / "source"))
    empty = HandmadeTable(tmp_path / "target", specs=((), BY_RATIO))
    target = loaded(spark, empty).maintenance.upgrade(4).commit()
    with pytest.raises(ValidationError, match="partition spec 1, identity of column 2: no spec of this table has its"):
        committed(target, lambda update: update.append(source))
    unknown = ({"source-id": 2, "field-id": 1000, "name": "part", "transform": "zorder"},)
    handmade = source_of(tmp_path / "unknown")
    source = loaded(spark, replace(handmade, specs=((), unknown)))
    with pytest.raises(ValidationError, match="whose field part has the unknown transform zorder: its values"):
        committed(target, lambda update: update.append(source))
    mapping = {"schema.name-mapping.default": json.dumps([{"field-id": 1, "names": ["id"]}])}
    source = loaded(spark, replace(source_of(tmp_path / "mapped"), properties=mapping))
    with pytest.raises(ValidationError, match=r"has the property schema\.name-mapping\.default, by which its files"):
        committed(target_of(spark, tmp_path / "other"), lambda update: update.append(source))
    same = target_of(spark, tmp_path / "same", IN_LEAVES | mapping)
    assert len(planned(committed(same, lambda update: update.append(source)))) == 7
    wrong: Any = "db.t"
    with pytest.raises(ValidationError, match=r"files is of type str: expected a DataFrame.*, or a table"):
        committed(same, lambda update: update.append(wrong))


def test_an_entry_that_readers_would_refuse(spark: SparkSession, tmp_path: Path) -> None:
    handmade = source_of(tmp_path / "source").add(0, 0, data("x:bad", record_count=-1))
    source, target = loaded(spark, handmade), target_of(spark, tmp_path / "target")
    with pytest.raises(Exception, match="record_count of file x:bad is -1: it is negative"):
        committed(target, lambda update: update.append(source))
    assert target.refresh().metadata_location == target.metadata_location


def test_duplicates_and_retries(spark: SparkSession, tmp_path: Path) -> None:
    """A second attempt reuses the leaves of the first. A file that the table already has is a conflict."""
    source = loaded(spark, source_of(tmp_path / "source"))
    target = target_of(spark, tmp_path / "target", IN_LEAVES | {"commit.retry.min-wait-ms": "1"})
    transaction = target.transaction()
    transaction.update_snapshot().append(source)
    target.transaction().set_properties(a="b").commit()
    after = transaction.commit()
    assert after.properties["a"] == "b"
    assert len(planned(after)) == 7
    leaves = {path.name for path in (tmp_path / "target" / "metadata").glob("*leaf*.parquet")}
    assert after.state.tree is not None
    assert leaves == {
        path.rpartition("/")[2] for path in after.state.tree.root.leaves["location"].to_pylist() if "leaf" in path
    }
    with pytest.raises(CommitConflictError, match="is in the table already"):
        committed(after, lambda update: update.append(source))
    empty = loaded(spark, HandmadeTable(tmp_path / "empty"))
    assert planned(committed(after, lambda update: update.append(empty))) == planned(after)
    twice = target_of(spark, tmp_path / "twice")
    with pytest.raises(ValidationError, match="is added twice by the commit"):
        committed(twice, lambda update: update.append(source).append(source))


CHOSEN = ["unknown_counts_v1", "spec_dropped_source_v2"]


@pytest.mark.java
@pytest.mark.parametrize("name", peers.names() if SOAK else CHOSEN)
def test_every_table_of_the_corpus(name: str, corpus: peers.Corpus, tmp_path: Path) -> None:
    """An emptied copy gets the table's files and plans like the table, or an error names the deletes in the way."""
    peer = corpus.table(name)
    source = clone(peer, tmp_path / "source")
    empty = clone(peer, tmp_path / "target", emptied=True).maintenance.upgrade(4).commit()
    has_deletes = any(source.inspect.delete_files().limit(1).collect())
    try:
        after = committed(empty, lambda update: update.append(source))
    except ValidationError as error:
        text = str(error)
        assert ("has deletes" in text) == has_deletes or "dropped column" in text or "unknown transform" in text, text
        return
    assert not has_deletes
    frames: dict[Any, DataFrame] = {}
    for place, table in (("source", source), ("target", after)):
        frames[place, "files"] = table.inspect.data_files().drop(*DROPPED, "first_row_id", "spec_id")
        frames[place, "metrics"] = metrics(table, after)
        for row_filter in filters(peer, FILTERS if SOAK else 2):
            scan = table.scan(row_filter.expression, case_sensitive=row_filter.case_sensitive)
            frames[place, row_filter.name] = scan.plan_files().drop(*NUMBERS, "spec_id")
    rows = {key: counted(frame_rows) for key, frame_rows in collected(frames).items()}
    for place, key in frames:
        assert rows[place, key] == rows["source", key], key
    assert after.check().isEmpty()
