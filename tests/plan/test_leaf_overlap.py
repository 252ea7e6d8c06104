"""Unaffiliated delete leaves whose partitions meet no data leaf that a scan opens are not opened."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.partitioning import PartitionSpec

import sparkmeta as sm
from sparkmeta.manifests.v4.layout import tree_schema
from sparkmeta.manifests.v4.write import leaf_row
from sparkmeta.snapshot.overlaps import leaf_overlaps
from sparkmeta.spec.entry import ContentType
from tests.costs import limit
from tests.trees import BY_PART, Entry, TreeTable, data, equality_deletes, stats

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

# -- bounds alone ---------------------------------------------------------------------------------------------------

NAN = float("nan")
TYPES = {1: "int", 2: "double", 3: "string", 4: "uuid"}
SPEC_FIELDS = {0: [], 1: [(1000, "int")], 2: [(1001, "double"), (1002, "string")], 3: [(1003, "uuid")]}
SOURCES = {0: (), 1: ((1000, 1),), 2: ((1001, 2), (1002, 3)), 3: ((1003, 4),)}
VALUES: dict[int, st.SearchStrategy[Any]] = {
    1: st.none() | st.integers(0, 9),
    2: st.none() | st.sampled_from([NAN, -1.0, -0.0, 0.0, 5.0]),
    3: st.none() | st.sampled_from("abc"),
    4: st.none() | st.sampled_from([b"\x00" * 16, b"\x7f" * 16, b"\xff" * 16]),
}

File = tuple[int, dict[int, Any]]


@st.composite
def files(draw: st.DrawFn, max_files: int = 3) -> list[File]:
    """Draw (spec id, partition value by the id of its stats) of files of one spec."""
    spec_id = draw(st.sampled_from([*SOURCES]))
    values = st.fixed_dictionaries({source: VALUES[source] for _, source in SOURCES[spec_id]})
    return [(spec_id, partition) for partition in draw(st.lists(values, min_size=1, max_size=max_files))]


def entries(kind: ContentType, files: list[File], *, counts: bool) -> pa.Table:
    rows = [
        {
            "content_type": int(kind),
            "location": str(place),
            "version_info": {"status": 1},
            "partition_spec_id": spec_id,
            "record_count": 5,
            "content_stats": {str(source): value_stats(value, counts) for source, value in values.items()},
        }
        for place, (spec_id, values) in enumerate(files)
    ]
    return pa.Table.from_pylist(rows, schema=tree_schema(TYPES))


def value_stats(value: Any, counts: bool) -> dict[str, Any]:
    nan = isinstance(value, float) and math.isnan(value)
    bounds = {"lower_bound": None if nan else value}
    nans = {"nan_value_count": 5 if nan else 0} if counts or nan else {}
    return bounds | nans | ({"value_count": 5, "null_value_count": 5 if value is None else 0} if counts else {})


@settings(max_examples=400, deadline=None, derandomize=True)
@given(data=st.lists(files(), min_size=1, max_size=4), deletes=st.lists(files(), min_size=1, max_size=4),
       in_root=files(), counts=st.booleans())  # fmt: skip
def test_leaves_that_share_a_partition_are_never_kept_apart(
    data: list[list[File]], deletes: list[list[File]], in_root: list[File], counts: bool
) -> None:
    """The data files `in_root` are listed by the root itself."""

    def leaves(kind: ContentType, groups: list[list[File]]) -> pa.Table:
        return pa.concat_tables(
            leaf_row(entries(kind, group, counts=counts), "m", 1, [source for _, source in SOURCES[group[0][0]]], [4])
            for group in groups
        )

    all_data = pa.concat_tables([leaves(ContentType.DATA, data), entries(ContentType.DATA, in_root, counts=counts)])
    flags = leaf_overlaps(all_data, leaves(ContentType.EQUALITY_DELETES, deletes), SPEC_FIELDS, SOURCES)
    for row, mine in zip(flags, [*data, *([file] for file in in_root)], strict=True):
        for flag, theirs in zip(row, deletes, strict=True):
            assert flag or not {*map(repr, mine)} & {*map(repr, theirs)}, (mine, theirs)
            assert not flag or mine[0][0] == theirs[0][0]


def test_bounds_of_leaves_that_overlap() -> None:
    def leaf(kind: ContentType, *values: Any) -> pa.Table:
        return leaf_row(entries(kind, [(1, {1: value}) for value in values], counts=True), "m", 1, [1])

    data = pa.concat_tables([leaf(ContentType.DATA, 1, 3), leaf(ContentType.DATA, 7, None)])
    deletes = [leaf(ContentType.EQUALITY_DELETES, *values) for values in ([3, 4], [4, 5], [None], [2, None])]
    flags = leaf_overlaps(data, pa.concat_tables(deletes), SPEC_FIELDS, SOURCES)
    assert flags.tolist() == [[True, False, False, True], [False, False, True, True]]
    counted = {"lower_bound": None, "value_count": 0, "null_value_count": 0}
    row = entries(ContentType.DATA, [(1, {1: None})], counts=True).to_pylist()[0]
    file = pa.Table.from_pylist([row | {"content_stats": {"1": counted}}], schema=data.schema)
    flags = leaf_overlaps(file, pa.concat_tables(deletes), SPEC_FIELDS, SOURCES)
    assert flags.tolist() == [[False, False, True, True]]


# -- plans ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path) -> TreeTable:
    return TreeTable(tmp_path / "t", BY_PART)


@pytest.fixture
def planning(spark: SparkSession) -> Iterator[None]:
    yield
    spark.conf.unset("spark.sparkmeta.planning")


def plan(table: sm.Table, row_filter: str) -> dict[str, list[str]]:
    rows = table.scan(row_filter).plan_files().collect()
    return {row["file_path"]: sorted(delete["file_path"] for delete in row["deletes"]) for row in rows}


def delete_of(tree: TreeTable, path: str, part: str) -> Entry:
    """An equality delete file whose stats rule out no id."""
    return equality_deletes(path, part, content_stats=stats(part, (0, 99)))


def numbered(path: str, part: str | None, number: int) -> Entry:
    return data(path, part, content_stats=stats(part, (number, number)))


def unlink(entry: Entry) -> None:
    Path(entry.location.removeprefix("file://")).unlink()


@pytest.mark.parametrize("planning_by", ["join", "auto", "colocated"])
@pytest.mark.usefixtures("planning")
def test_delete_leaves_of_other_partitions_are_not_opened(
    tree: TreeTable, spark: SparkSession, planning_by: str
) -> None:
    spark.conf.set("spark.sparkmeta.planning", planning_by)
    parts = "abc"
    leaves = [tree.leaf(f"m{part}", numbered(f"x:d{part}", part, place)) for place, part in enumerate(parts)]
    deletes = {
        part: tree.leaf(f"x{part}", tree.vector(f"x:d{part}", [1], part), delete_of(tree, f"x:e{part}", part))
        for part in parts
    }
    wide = tree.leaf("wide", delete_of(tree, "w1", "a"), delete_of(tree, "w2", "b"))
    tree.snapshot(added=leaves)
    tree.snapshot(existing=leaves, added=[*deletes.values(), wide])
    table = tree.load(spark)
    report = table.scan("id = 1").report()
    assert (report.data_manifests.scanned, report.delete_manifests.scanned) == (1, 2)
    for part in "ac":
        unlink(deletes[part])
    vector = deletes["b"]
    assert [len(deletes) for deletes in plan(table, "id = 1").values()] == [3]
    unlink(vector)
    with pytest.raises(Exception, match=r"xb\.parquet"):
        plan(table, "id = 1")


def test_deletes_of_files_in_the_root_are_opened(tree: TreeTable, spark: SparkSession) -> None:
    leaves = [tree.leaf("m", numbered("x:d1", "a", 1)), numbered("x:d2", "b", 7), numbered("x:d3", None, 7)]
    deletes = [tree.leaf(f"x{part}", delete_of(tree, f"x:e{part}", part)) for part in ("a", "b", None)]  # type: ignore[arg-type]
    tree.snapshot(added=leaves)
    tree.snapshot(existing=leaves, added=deletes)
    unlink(deletes[0])
    assert plan(tree.load(spark), "id = 7") == {"x:d2": ["x:eb"], "x:d3": ["x:eNone"]}


@pytest.mark.parametrize("lacks", ["stats", "bounds", "affinity"])
def test_missing_statistics_keep_delete_leaves(tree: TreeTable, spark: SparkSession, lacks: str) -> None:
    """A delete leaf without stats, or affiliated to a data leaf that was removed, is opened."""
    leaves = [tree.leaf("ma", numbered("x:da", "a", 1)), tree.leaf("mb", numbered("db", "b", 2))]
    deletes = tree.leaf("x", tree.vector("x:da", [1], "a"))
    known = deletes.row["content_stats"]
    changed: dict[str, dict[str, Any]] = {
        "stats": {"content_stats": known | {"2": None}},
        "bounds": {"content_stats": known | {"2": {"lower_bound": None, "value_count": 10}}},
        "affinity": {"referenced_file": "gone"},
    }
    deletes = deletes.with_fields(**changed[lacks])
    tree.snapshot(added=[*leaves, deletes])
    table = tree.load(spark)
    assert [len(deletes) for deletes in plan(table, "id = 1").values()] == [1]
    assert table.scan("id = 2").report().delete_manifests.scanned == (0 if lacks == "affinity" else 1)


def test_global_deletes_apply_to_every_partition(tmp_path: Path, spark: SparkSession) -> None:
    tree = TreeTable(tmp_path / "t", BY_PART, others=[PartitionSpec(spec_id=1)])
    leaves = [tree.leaf(f"m{number}", numbered(f"x:d{number}", "a", number)) for number in range(2)]
    deletes = tree.leaf("x", delete_of(tree, "x:e", "zzz").with_fields(partition_spec_id=1))
    tree.snapshot(added=leaves)
    tree.snapshot(existing=leaves, added=[deletes])
    assert plan(tree.load(spark), "id = 1") == {"x:d1": ["x:e"]}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.usefixtures("planning")
def test_random_trees_are_planned_as_without_pruning(
    tree: TreeTable, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Every strategy plans random leaves of data and deletes, some affiliated, and files of the root."""
    draw = random.Random(seed)
    parts = ["a", "b", "c", "d", None]
    files = [(f"x:d{number}", draw.choice(parts), number) for number in range(24)]
    in_root, *groups = [files[start : start + 4] for start in range(0, 24, 4)]
    leaves = [tree.leaf(f"m{place}", *(numbered(*file) for file in group)) for place, group in enumerate(groups)]
    vectors = {path: tree.vector(path, [1], part) for path, part, _ in files if draw.random() < 0.6}  # type: ignore[arg-type]
    affiliated = [path for path, _, _ in groups[0] if path in vectors]
    rest = [vector for path, vector in vectors.items() if path not in affiliated]
    rest += [delete_of(tree, f"x:e{place}", draw.choice(parts)) for place in range(8)]  # type: ignore[arg-type]
    rest.sort(key=lambda entry: (entry.row["content_stats"]["2"]["lower_bound"] or "", entry.location))
    deletes = [tree.leaf(f"x{start}", *rest[start : start + 3]) for start in range(0, len(rest), 3)]
    if affiliated:
        deletes.append(tree.leaf("own", *(vectors[path] for path in affiliated), referenced_file=leaves[0].location))
    before = [*leaves, *(numbered(*file) for file in in_root)]
    tree.snapshot(added=before)
    tree.snapshot(existing=before, added=deletes)
    for row_filter in ("id = 3", "id >= 10 and id < 13", "id > 20 or part = 'b'", "part is null", "id < 2"):
        spark.conf.set("spark.sparkmeta.planning", "join")
        with monkeypatch.context() as patch:
            limit(patch, compared_pairs=-1)
            expected = plan(tree.load(spark), row_filter)
        for by in ("join", "colocated"):
            spark.conf.set("spark.sparkmeta.planning", by)
            assert plan(tree.load(spark), row_filter) == expected
