from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sparkmeta import Table
from sparkmeta.commit.base_root import base_root
from sparkmeta.commit.next_root import Stamp, TreeChange, next_root
from sparkmeta.errors import CorruptFileError, NoSuchSnapshotError, ValidationError
from sparkmeta.manifests.v4.layout import tree_schema
from sparkmeta.manifests.v4.root import write_root
from sparkmeta.operations.table_operations import TableVersion
from sparkmeta.spec.bitmap import PositionBitmap
from sparkmeta.spec.metadata_model import Snapshot
from sparkmeta.spec.upgrade import upgrade_metadata
from sparkmeta.storage.files import FileAccess
from tests.logging_reader import LoggingReader
from tests.small_table import write_small_table
from tests.trees import BY_PART, Entry, TreeTable, data, equality_deletes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Changes = set[tuple[str, str]]


def changes(table: Table, start: int | None, end: int | None = None, *, lenient: bool = False) -> Changes:
    """Return (+ or -, path) of each change, and assert that no row is repeated."""
    frame = table.file_changes(start, end, columns=["file_path"], lenient=lenient)
    rows = [("+" if row["change_type"] == "added" else "-", row["file_path"]) for row in frame.collect()]
    assert len(rows) == len(set(rows))
    return set(rows)


def live(table: Table, snapshot: int) -> set[str]:
    return {row["file_path"] for row in table.inspect.files(snapshot, columns=["file_path"]).collect()}


def plus(*paths: str) -> Changes:
    return {("+", path) for path in paths}


def minus(*paths: str) -> Changes:
    return {("-", path) for path in paths}


def files(*names: str) -> list[Entry]:
    return [data(name) for name in names]


@pytest.fixture
def tree(tmp_path: Path) -> TreeTable:
    return TreeTable(tmp_path / "t")


# -- the examples of the document -----------------------------------------------------------------------------------


def test_appends(tree: TreeTable, spark: SparkSession) -> None:
    m1 = tree.leaf("m1", *files("x:d1", "x:d2", "x:d3"))
    m2 = tree.leaf("m2", *files("x:d6", "x:d7"))
    d4, d5 = files("x:d4", "x:d5")
    tree.snapshot(added=[m1])
    tree.snapshot(existing=[m1], added=[d4])
    tree.snapshot(existing=[m1, d4], added=[d5])
    tree.snapshot(existing=[m1, d4, d5], added=[m2])
    table = tree.load(spark)
    assert changes(table, None, 1) == plus("x:d1", "x:d2", "x:d3")
    assert changes(table, 1, 2) == plus("x:d4")
    assert changes(table, 2, 3) == plus("x:d5")
    assert changes(table, 3) == plus("x:d6", "x:d7")
    assert changes(table, 4) == set()
    rows = table.file_changes(1, columns=["file_path"]).collect()
    assert {(row["snapshot_id"], row["file_path"]) for row in rows} == {
        (2, "x:d4"),
        (3, "x:d5"),
        (4, "x:d6"),
        (4, "x:d7"),
    }


def test_removed_from_root_and_from_leaf(tree: TreeTable, spark: SparkSession) -> None:
    m1 = tree.leaf("m1", *files("x:d1", "x:d2", "x:d3"))
    d4, d5 = files("x:d4", "x:d5")
    first = tree.mask(m1, {1})
    both = tree.mask(m1, {1, 2}, puffin=True)
    tree.snapshot(added=[m1, d4])
    tree.snapshot(existing=[m1], deleted=[d4], added=[first, d5])
    tree.snapshot(existing=[m1, d5], deleted=[first], added=[both])
    tree.snapshot(existing=[m1, d5, both])
    table = tree.load(spark)
    assert changes(table, 1, 2) == minus("x:d4", "x:d2") | plus("x:d5")
    assert changes(table, 2, 3) == minus("x:d3")
    assert changes(table, 3, 4) == set()
    assert changes(table, None, 4) == plus("x:d1", "x:d2", "x:d3", "x:d4", "x:d5") | minus("x:d2", "x:d3", "x:d4")


def test_compaction_during_an_append_is_no_change(tree: TreeTable, spark: SparkSession) -> None:
    m1, m2 = tree.leaf("m1", *files("x:d1", "x:d2", "x:d3")), tree.leaf("m2", *files("x:d4", "x:d5", "x:d6"))
    v1, v2 = tree.mask(m1, {0}), tree.mask(m2, {1})
    m3 = tree.leaf("m3", *(entry.existing() for entry in files("x:d2", "x:d3", "x:d4", "x:d6")))
    tree.snapshot(existing=[m1, v1, m2, v2])
    tree.snapshot(existing=[m3], added=files("x:d7"))
    table = tree.load(spark)
    assert changes(table, 1) == plus("x:d7")
    assert live(table, 2) == {"x:d2", "x:d3", "x:d4", "x:d6", "x:d7"}


def test_several_vectors_of_one_leaf(tree: TreeTable, spark: SparkSession) -> None:
    """Example 10 in the draft's own form, which only lenient readers accept."""
    m1 = tree.leaf("m1", *files("x:d1", "x:d2", "x:d3"))
    v1, v2, v3 = tree.mask(m1, {1}), tree.mask(m1, {2}), tree.mask(m1, {1, 2})
    tree.snapshot(added=[m1])
    tree.snapshot(existing=[m1], added=[v1])
    tree.snapshot(existing=[m1, v1], added=[v2])
    tree.snapshot(existing=[m1, v3], added=files("x:d4"))
    table = tree.load(spark)
    assert changes(table, 2, 3, lenient=True) == minus("x:d3")
    assert changes(table, 3, 4, lenient=True) == plus("x:d4")
    with pytest.raises(CorruptFileError, match="two live deletion vectors"):
        table.file_changes(2, 3)


def test_masked_in_the_snapshot_that_added_it(tree: TreeTable, spark: SparkSession) -> None:
    m1 = tree.leaf("m1", *files("x:d1", "x:d2", "x:d3"))
    tree.snapshot(added=[m1, tree.mask(m1, {1}), *files("x:d5")])
    assert changes(tree.load(spark), None) == plus("x:d1", "x:d3", "x:d5")


TEN = [f"x:d{number}" for number in range(10)]
SEVEN = set(range(7))


@pytest.mark.parametrize("form", ["option 1", "option 1 without tombstone", "option 2", "canonical"])
def test_a_whole_leaf_is_removed(tree: TreeTable, spark: SparkSession, form: str) -> None:
    m1 = tree.leaf("m1", *files(*TEN))
    old, rest, whole = tree.mask(m1, SEVEN), tree.mask(m1, {7, 8, 9}), tree.mask(m1, range(10))
    tree.snapshot(existing=[m1, old])
    match form:
        case "option 1":
            tree.snapshot(deleted=[m1, old])
        case "option 1 without tombstone":
            tree.snapshot(deleted=[m1])
        case "option 2":
            tree.snapshot(deleted=[m1], added=[rest])
        case _:
            tree.snapshot(existing=[m1], deleted=[old], added=[whole])
    assert changes(tree.load(spark), 1) == minus("x:d7", "x:d8", "x:d9")


def test_a_rewrite_is_no_change(tree: TreeTable, spark: SparkSession) -> None:
    m1 = tree.leaf("m1", *files(*TEN))
    m2 = tree.leaf("m2", *(entry.existing() for entry in files("x:d7", "x:d8", "x:d9")))
    tree.snapshot(existing=[m1, tree.mask(m1, SEVEN)])
    tree.snapshot(added=[m2])
    tree.snapshot(existing=[m2], parent=1)
    table = tree.load(spark)
    assert changes(table, 1, 2) == set()
    assert changes(table, 1, 3) == set()


@pytest.mark.parametrize("form", ["draft", "draft, carried by a compaction", "canonical", "compacted"])
def test_a_rewrite_with_changes(tree: TreeTable, spark: SparkSession, form: str) -> None:
    m1 = tree.leaf("m1", *files(*TEN))
    old = tree.mask(m1, SEVEN)
    new = files("x:n1", "x:n2", "x:n3", "x:n4", "x:n5")
    carried = [entry.existing() for entry in files("x:d7", "x:d8", "x:d9")]
    tree.snapshot(existing=[m1, old])
    match form:
        case "draft":
            m2 = tree.leaf("m2", *carried[:2], data("x:d9").deleted(), *new)
            tree.snapshot(deleted=[m1, old], added=[m2])
        case "draft, carried by a compaction":
            m2, m3 = tree.leaf("m2", carried[0]), tree.leaf("m3", *new)
            tree.snapshot(deleted=[m1, old], existing=[m2, carried[1]], added=[m3])
        case "canonical":
            tree.snapshot(existing=[m1], deleted=[old], added=[tree.mask(m1, {*SEVEN, 9}), *new])
        case _:
            m2, m3 = tree.leaf("m2", *carried), tree.leaf("m3", *new)
            tree.snapshot(existing=[m2], added=[tree.mask(m2, {2}), m3])
    table = tree.load(spark)
    assert changes(table, 1, lenient=True) == minus("x:d9") | plus("x:n1", "x:n2", "x:n3", "x:n4", "x:n5")
    if form == "draft":
        with pytest.raises(CorruptFileError, match="deleted_files_count is 1"):
            table.file_changes(1)


# -- deletion vectors of data files ---------------------------------------------------------------------------------


def positions(table: Table, start: int, end: int | None = None) -> set[tuple[str, str, tuple[int, ...] | None]]:
    rows = table.file_changes(start, end, columns=["referenced_data_file", "file_path"]).collect()
    return {
        (row["change_type"], row["referenced_data_file"] or row["file_path"],
         None if row["added_positions"] is None else tuple(row["added_positions"])) for row in rows
    }  # fmt: skip


def test_row_delta_in_the_root(tree: TreeTable, spark: SparkSession) -> None:
    d1, d2 = files("x:d1", "x:d2")
    first, second = tree.vector("x:d1", {5, 12}), tree.vector("x:d1", {3, 5, 12})
    tree.snapshot(added=[d1])
    tree.snapshot(existing=[d1], added=[first, d2])
    tree.snapshot(existing=[d1, d2], deleted=[first], added=[second, equality_deletes("x:e1")])
    tree.snapshot(existing=[d2], deleted=[d1, second])
    table = tree.load(spark)
    assert positions(table, 1, 2) == {("added", "x:d1", (5, 12)), ("added", "x:d2", None)}
    changed = {("removed", "x:d1", None), ("added", "x:d1", (3,)), ("added", "x:e1", None)}
    assert positions(table, 2, 3) == changed
    assert table.file_changes(3, columns=["file_path"]).where("added_positions IS NOT NULL").count() == 0
    assert table.file_changes(3).count() == 2


def test_row_delta_in_leaves(tree: TreeTable, spark: SparkSession) -> None:
    m1 = tree.leaf("m1", *files("x:d1", "x:d2"))
    old = tree.leaf("x1", tree.vector("x:d1", {1}), tree.vector("x:d2", {2}))
    new = tree.leaf("x2", tree.vector("x:d1", {1, 7}))
    m2 = tree.leaf("m2", *files("x:d3"))
    tree.snapshot(added=[m1, old])
    tree.snapshot(existing=[m1, old], added=[tree.mask(old, {0}), new, m2])
    expected = {("removed", "x:d1", None), ("added", "x:d1", (7,)), ("added", "x:d3", None)}
    assert positions(tree.load(spark), 1) == expected


def test_positions_where_only_spark_reads(tree: TreeTable, spark: SparkSession) -> None:
    d1, first = data("x:d1"), tree.vector("x:d1", {5, 12})
    tree.snapshot(added=[d1, first])
    tree.snapshot(existing=[d1], deleted=[first], added=[tree.vector("x:d1", {5, 6, 12})])
    spark.conf.set("spark.sparkmeta.executor-reads", "spark")
    try:
        assert positions(tree.load(spark), 1) == {("removed", "x:d1", None), ("added", "x:d1", (6,))}
    finally:
        spark.conf.unset("spark.sparkmeta.executor-reads")


@pytest.mark.parametrize("reads", ["direct", "spark"])
def test_positions_of_vectors_that_share_files(
    tree: TreeTable, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, reads: str
) -> None:
    """Each snapshot appends to one Puffin file. Only the bytes at the vectors' offsets are read."""
    names = [f"x:d{number}" for number in range(6)]
    old = tree.vectors({name: {number} for number, name in enumerate(names)}, gap=500_000)
    new = tree.vectors({name: {number, 7, 9} for number, name in enumerate(names)})
    tree.snapshot(added=[*files(*names), tree.leaf("x1", *old)])
    tree.snapshot(existing=files(*names), added=new, deleted=[tree.leaf("x1", *old)])
    spark.conf.set("spark.sparkmeta.executor-reads", reads)
    try:
        table = tree.load(spark)
        reader = LoggingReader(log=f"{tree.folder}/requests")
        if reads == "direct":
            monkeypatch.setattr(FileAccess, "tasks", reader)
        added = {("added", name, (7, 9)) for name in names}
        assert positions(table, 1) == added | {("removed", name, None) for name in names}
    finally:
        spark.conf.unset("spark.sparkmeta.executor-reads")
    assert not [request for request in reader.requests if request.endswith("whole")]
    if reads == "direct":
        assert reader.requests
        assert sum(int(request.split()[-1]) for request in reader.requests) < 10_000


@pytest.mark.parametrize("reads", ["direct", "spark"])
def test_positions_are_read_only_if_asked_for(tree: TreeTable, spark: SparkSession, reads: str) -> None:
    vector = tree.vector("x:d1", {5})
    tree.snapshot(added=files("x:d1"))
    tree.snapshot(existing=files("x:d1"), added=[vector])
    spark.conf.set("spark.sparkmeta.executor-reads", reads)
    try:
        frame = tree.load(spark).file_changes(1)
        Path(vector.location.removeprefix("file://")).write_bytes(b"no Puffin file")
        assert frame.select("file_path").collect()[0][0] == vector.location
        with pytest.raises(Exception, match="puffin"):
            frame.select("added_positions").collect()
    finally:
        spark.conf.unset("spark.sparkmeta.executor-reads")


# -- columns --------------------------------------------------------------------------------------------------------


def test_columns_are_those_of_files(tmp_path: Path, spark: SparkSession) -> None:
    tree = TreeTable(tmp_path / "t", BY_PART)
    m1 = tree.leaf("m1", *files("x:d1", "x:d2"))
    tree.snapshot(added=[m1, data("x:d3", "b"), tree.vector("x:d1", {1}), equality_deletes("x:e1")])
    table = tree.load(spark)
    frame, expected = table.file_changes(None), table.inspect.files()
    assert frame.columns == ["change_type", "snapshot_id", *expected.columns, "added_positions"]
    assert dict(frame.dtypes)["added_positions"] == "array<bigint>"
    rows = frame.drop("change_type", "snapshot_id", "added_positions")
    assert dict(rows.dtypes) == dict(expected.dtypes)
    shown = {row["file_path"]: row.asDict(recursive=True) for row in rows.collect()}
    assert shown == {row["file_path"]: row.asDict(recursive=True) for row in expected.collect()}
    assert shown["x:d3"]["partition"] == {"part": "b"}
    assert shown["x:d2"]["value_counts"] == {1: 10, 2: 10}
    empty = table.file_changes(1)
    assert empty.columns == frame.columns
    assert empty.count() == 0


# -- manifest lists -------------------------------------------------------------------------------------------------


def test_manifest_lists_and_the_first_tree_after_them(tmp_path: Path, spark: SparkSession) -> None:
    source = write_small_table(tmp_path)
    source.delete("country == 'NO' and id < 10")
    table = Table.from_pyiceberg(source, spark)
    ids = [None, *(snapshot.snapshot_id for snapshot in table.snapshots())]
    states: list[set[str]] = [set(), *(live(table, snapshot_id) for snapshot_id in ids if snapshot_id is not None)]
    for step in range(1, len(ids)):
        before, after = states[step - 1], states[step]
        expected = plus(*(after - before)) | minus(*(before - after))
        assert len(expected) in (1, 2)
        assert changes(table, ids[step - 1], ids[step]) == expected
    removed = table.scan().plan_files().first()
    upgraded = masked_after_upgrade(table, removed["manifest_path"], removed["manifest_pos"])
    assert changes(upgraded, ids[-1]) == minus(removed["file_path"])
    assert changes(upgraded, ids[-2]) == minus(removed["file_path"]) | changes(table, ids[-2])


def masked_after_upgrade(table: Table, manifest: str, ordinal: int) -> Table:
    """Return the table in version 4, after a first root that masks an entry of an unchanged manifest."""
    state = replace(table.state, metadata=upgrade_metadata(table.metadata))
    metadata, base = state.metadata, base_root(state)
    change = TreeChange(masks={manifest: PositionBitmap.of([ordinal])})
    sequence = metadata.last_sequence_number + 1
    root = next_root(base.root, change, Stamp(1, sequence, 0), tree_schema(state.types.stats_types), lambda *_: b"")
    location = f"{metadata.location}/metadata/root.parquet"
    state.files.write_new(location, write_root(root.table, base.properties))
    document = {
        "snapshot-id": 1,
        "parent-snapshot-id": metadata.current_snapshot_id,
        "sequence-number": sequence,
        "timestamp-ms": metadata.last_updated_ms + 1,
        "root-manifest": location,
    }
    snapshots = [*metadata.snapshots, Snapshot.model_validate(document)]
    changed = {"snapshots": snapshots, "current_snapshot_id": 1, "last_sequence_number": sequence}
    return table.at(TableVersion("v4.metadata.json", metadata.model_copy(update=changed)))


# -- cost -----------------------------------------------------------------------------------------------------------


def test_only_changed_leaves_are_opened(tree: TreeTable, spark: SparkSession) -> None:
    """Only two of 40 leaves are opened: the plan succeeds although the other leaves are deleted."""
    leaves = [tree.leaf(f"m{number}", *files(f"x:a{number}", f"x:b{number}")) for number in range(40)]
    new = tree.leaf("new", *files("x:n1"))
    before = [tree.mask(leaf, {0}) for leaf in leaves[5:9]]
    compacted = tree.leaf("compacted", *(entry.existing() for entry in files("a0", "b0")))
    tree.snapshot(added=leaves)
    tree.snapshot(existing=leaves, added=before)
    tree.snapshot(
        existing=[compacted, *leaves[1:], *before[1:]],
        deleted=[before[0]],
        added=[tree.mask(leaves[5], {0, 1}), new, *files("x:n2")],
    )
    for leaf in [*leaves[:5], *leaves[6:], compacted]:
        Path(leaf.location.removeprefix("file://")).unlink()
    frame = tree.load(spark).file_changes(2)
    assert {Path(path).name for path in frame.inputFiles()} == {"m5.parquet", "new.parquet"}
    assert {(row["change_type"], row["file_path"]) for row in frame.collect()} == {
        ("removed", "x:b5"), ("added", "x:n1"), ("added", "x:n2")
    }  # fmt: skip


# -- ranges ---------------------------------------------------------------------------------------------------------


def test_unknown_snapshots_and_strangers(tree: TreeTable, spark: SparkSession) -> None:
    tree.snapshot(added=files("x:d1"))
    tree.snapshot(existing=files("x:d1"), added=files("x:d2"))
    tree.snapshot(existing=files("x:d1"), added=files("x:d3"), parent=1)
    table = tree.load(spark)
    assert changes(table, 1) == plus("x:d3")
    for start, end in ((9, None), (1, 9), (None, 9)):
        with pytest.raises(NoSuchSnapshotError, match="has no snapshot 9"):
            table.file_changes(start, end)
    with pytest.raises(ValidationError, match="snapshot 2 is not an ancestor of snapshot 3"):
        table.file_changes(2)


def test_expired_history(tree: TreeTable, spark: SparkSession) -> None:
    m1 = tree.leaf("m1", *files("x:d1", "x:d2", "x:d3"))
    old, new = tree.mask(m1, {0}), tree.mask(m1, {0, 1})
    tree.snapshot(added=[m1])
    tree.snapshot(existing=[m1], added=[old])
    tree.snapshot(existing=[m1], deleted=[old], added=[new])
    table = tree.load(spark, expired=[1, 2])
    assert changes(table, 2) == minus("x:d2")
    with pytest.raises(ValidationError, match="snapshot 2 has expired"):
        table.file_changes(None)
    with pytest.raises(NoSuchSnapshotError, match="has no snapshot 1"):
        table.file_changes(1)


@pytest.mark.parametrize("with_layout", [True, False])
def test_what_was_masked_before_an_expired_parent(tree: TreeTable, spark: SparkSession, with_layout: bool) -> None:
    """Roots of our layout keep replaced vectors, so that a missing one proves that none existed.

    Other roots may not.
    """
    m1 = tree.leaf("m1", *files("x:d1", "x:d2", "x:d3"))
    tree.snapshot(added=[m1])
    tree.snapshot(existing=[m1], added=[tree.mask(m1, {1})], with_layout=with_layout)
    table = tree.load(spark, expired=[1])
    assert changes(tree.load(spark), 1) == minus("x:d2")
    if with_layout:
        assert changes(table, 1) == minus("x:d2")
        return
    with pytest.raises(
        ValidationError, match=r"what was removed from .*m1.parquet before: .* no longer has snapshot 1"
    ):
        table.file_changes(1)


def test_a_dropped_leaf_of_an_expired_parent(tree: TreeTable, spark: SparkSession) -> None:
    m1 = tree.leaf("m1", *files("x:d1", "x:d2"))
    tree.snapshot(added=[m1])
    tree.snapshot(deleted=[m1])
    assert changes(tree.load(spark), 1) == minus("x:d1", "x:d2")
    with pytest.raises(ValidationError, match="no longer has snapshot 1"):
        tree.load(spark, expired=[1]).file_changes(1)


def test_a_vector_of_no_leaf(tree: TreeTable, spark: SparkSession) -> None:
    m1 = tree.leaf("m1", *files("x:d1"))
    tree.snapshot(added=[tree.mask(m1, {0})])
    with pytest.raises(CorruptFileError, match=r"referenced_file .* the root does not have"):
        tree.load(spark).file_changes(None)


def test_a_mask_beyond_its_leaf(tree: TreeTable, spark: SparkSession) -> None:
    m1 = tree.leaf("m1", *files("x:d1"))
    tree.snapshot(added=[m1])
    tree.snapshot(existing=[m1], added=[tree.mask(m1, {1})])
    with pytest.raises(Exception, match="the manifest has 1 entries"):
        tree.load(spark).file_changes(1).collect()
