"""Deletion vectors in affiliated delete leaves: every strategy plans the same, and what is lost is an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import sparkmeta as sm
from tests.costs import limit
from tests.trees import BY_PART, Entry, TreeTable, data, equality_deletes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

PLANNING, DRIVER_BYTES = "spark.sparkmeta.planning", "spark.sparkmeta.driver-manifest-bytes"
STRATEGIES = [("auto", "1g"), ("join", "1g"), ("colocated", "1g"), ("colocated", "0")]


@pytest.fixture
def tree(tmp_path: Path) -> TreeTable:
    return TreeTable(tmp_path / "t", BY_PART)


@pytest.fixture(params=["few", "many"])
def _many(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deletes that are too many to be broadcast are joined in another way."""
    if request.param == "many":
        limit(monkeypatch, broadcast_deletes=0)


@pytest.fixture
def planning(spark: SparkSession) -> Iterator[None]:
    yield
    for name in (PLANNING, DRIVER_BYTES):
        spark.conf.unset(name)


def plans(table: sm.Table, spark: SparkSession, row_filter: str = "true") -> dict[str, list[dict[str, Any]]]:
    """Data file -> its deletes; the same by every strategy."""
    by_strategy = []
    for strategy, driver_bytes in STRATEGIES:
        spark.conf.set(PLANNING, strategy)
        spark.conf.set(DRIVER_BYTES, driver_bytes)
        rows = sm.load_table(table.location(), spark=spark).scan(row_filter).plan_files().collect()
        assert len({row["file_path"] for row in rows}) == len(rows)
        by_strategy.append({row["file_path"]: [delete.asDict(True) for delete in row["deletes"]] for row in rows})
    assert all(planned == by_strategy[0] for planned in by_strategy)
    return by_strategy[0]


def paths(planned: dict[str, list[dict[str, Any]]]) -> dict[str, list[str]]:
    return {path: [delete["file_path"].rpartition("/")[2] for delete in deletes] for path, deletes in planned.items()}


def affiliated(tree: TreeTable, leaf: Entry, *entries: Entry, name: str = "d1") -> Entry:
    return tree.leaf(name, *entries, referenced_file=leaf.location)


def chosen(table: sm.Table, spark: SparkSession, asked: str) -> str:
    spark.conf.set(PLANNING, asked)
    return sm.load_table(table.location(), spark=spark).scan().report().strategy


@pytest.mark.usefixtures("planning", "_many")
def test_vectors_of_an_affiliated_leaf_stand_beside_their_files(tree: TreeTable, spark: SparkSession) -> None:
    m1 = tree.leaf("m1", data("x:d1"), data("x:d2"), data("x:d3", "b"), data("x:d4", "b").deleted())
    m2 = tree.leaf("m2", data("x:d5"))
    d1 = affiliated(
        tree, m1, tree.vector("x:d1", [1, 2]), tree.vector("x:d3", [7], "b"), tree.vector("x:d2", [0]).deleted()
    )
    tree.snapshot(added=[m1, m2, data("x:d6")])
    tree.snapshot(existing=[m1, m2, data("x:d6")], added=[d1, tree.vector("x:d5", [3]), tree.vector("x:d6", [4])])
    table = tree.load(spark)
    planned = plans(table, spark)
    vectors = {
        path: [(delete["record_count"], delete["manifest_pos"]) for delete in deletes]
        for path, deletes in planned.items()
    }
    assert vectors == {"x:d1": [(2, 0)], "x:d2": [], "x:d3": [(1, 1)], "x:d5": [(1, 4)], "x:d6": [(1, 5)]}
    assert planned["x:d1"][0]["manifest_path"] == d1.location
    assert planned["x:d1"][0]["referenced_data_file"] == "x:d1"
    assert set(plans(table, spark, "part = 'b'")) == {"x:d3"}
    assert chosen(table, spark, "colocated").startswith("colocated: 2 deletion vectors are in 1 delete leaves")
    assert chosen(table, spark, "join") == "join: the setting planning says so"


@pytest.mark.usefixtures("planning", "_many")
def test_masks_of_both_leaves_are_applied(tree: TreeTable, spark: SparkSession) -> None:
    m1 = tree.leaf("m1", data("x:d1"), data("x:d2"), data("x:d3"))
    d1 = affiliated(tree, m1, *(tree.vector(path, [1]) for path in ("x:d1", "x:d2", "x:d3")))
    tree.snapshot(added=[m1, d1])
    tree.snapshot(existing=[m1, d1], added=[tree.mask(m1, {0}, puffin=True), tree.mask(d1, {0, 2})])
    assert {path: len(deletes) for path, deletes in plans(tree.load(spark), spark).items()} == {"x:d2": 1, "x:d3": 0}


@pytest.mark.usefixtures("planning", "_many")
def test_several_delete_leaves_of_one_leaf_and_deletes_from_elsewhere(tree: TreeTable, spark: SparkSession) -> None:
    m1 = tree.leaf("m1", data("x:d1"), data("x:d2"), data("x:d3"))
    m2 = tree.leaf("m2", data("x:d4"), data("x:d5", "b"))
    d1 = affiliated(tree, m1, tree.vector("x:d1", [1]))
    d2 = affiliated(tree, m1, tree.vector("x:d3", [1]), name="d2")
    d3 = tree.leaf("d3", tree.vector("x:d2", [5]), tree.vector("x:d4", [6]), equality_deletes("x:eq1"))
    tree.snapshot(added=[m1, m2])
    tree.snapshot(existing=[m1, m2], added=[d1, d2, d3, equality_deletes("x:eq2", "b")])
    planned = paths(plans(tree.load(spark), spark))
    assert planned == {
        "x:d1": ["x:eq1", "dv1.puffin"],
        "x:d2": ["x:eq1", "dv3.puffin"],
        "x:d3": ["x:eq1", "dv2.puffin"],
        "x:d4": ["x:eq1", "dv4.puffin"],
        "x:d5": ["x:eq2"],
    }


@pytest.mark.usefixtures("planning", "_many")
def test_vectors_of_removed_files_do_no_harm(tree: TreeTable, spark: SparkSession) -> None:
    m1 = tree.leaf("m1", data("x:d1"), data("x:d2").deleted())
    d1 = affiliated(tree, m1, tree.vector("x:d1", [1]), tree.vector("x:d2", [1]))
    tree.snapshot(added=[m1, d1])
    assert {path: len(deletes) for path, deletes in plans(tree.load(spark), spark).items()} == {"x:d1": 1}


@pytest.mark.usefixtures("planning", "_many")
def test_a_leaf_affiliated_to_nothing_that_lives_is_not_lost(tree: TreeTable, spark: SparkSession) -> None:
    m1, m2 = tree.leaf("m1", data("x:d1")), tree.leaf("m2", data("x:d1").existing(), data("x:d2", "b").existing())
    d1 = affiliated(tree, m1, tree.vector("x:d1", [1]), tree.vector("x:d2", [2], "b"))
    tree.snapshot(added=[m1, d1])
    tree.snapshot(deleted=[m1], added=[m2], existing=[d1])
    planned = {path: len(deletes) for path, deletes in plans(tree.load(spark), spark).items()}
    assert planned == {"x:d1": 1, "x:d2": 1}


@pytest.mark.usefixtures("planning")
def test_delete_leaves_of_pruned_data_leaves_are_not_opened(tree: TreeTable, spark: SparkSession) -> None:
    m1, m2 = tree.leaf("m1", data("x:d1", "a")), tree.leaf("m2", data("x:d2", "b"))
    d1 = affiliated(tree, m1, tree.vector("x:d1", [1]))
    d2 = affiliated(tree, m2, tree.vector("x:d2", [1], "b"), name="d2")
    tree.snapshot(added=[m1, m2, d1, d2])
    report = tree.load(spark).scan("part = 'b'").report()
    assert (report.data_manifests.scanned, report.delete_manifests.scanned) == (1, 1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("another leaf", "a data manifest that does not have its file: x:d2"),
        ("two vectors", "two deletion vectors for"),
        ("two places", "two deletion vectors for"),
        ("partition", "another partition spec or partition"),
        ("no vector", "not a deletion vector where only deletion vectors can be"),
        ("older", "a deletion vector is older than its data file: x:d1"),
    ],
)
@pytest.mark.parametrize(("strategy", "driver_bytes"), [("colocated", "0"), ("colocated", "1g"), ("join", "1g")])
@pytest.mark.usefixtures("planning", "_many")
def test_contradictions_are_errors(
    tree: TreeTable, spark: SparkSession, wrong: str, message: str, strategy: str, driver_bytes: str
) -> None:
    m1, m2 = tree.leaf("m1", data("x:d1")), tree.leaf("m2", data("x:d2"))
    vectors = {
        "another leaf": [tree.vector("x:d2", [1])],
        "two vectors": [tree.vector("x:d1", [1]), tree.vector("x:d1", [2])],
        "two places": [tree.vector("x:d1", [1])],
        "partition": [tree.vector("x:d1", [1], "b")],
        "no vector": [tree.vector("x:d1", [1]), equality_deletes("x:eq")],
        "older": [tree.vector("x:d1", [1]).existing(0)],
    }[wrong]
    if strategy == "join" and wrong == "no vector":
        pytest.skip("joins match deletes of any kind")
    others = [tree.vector("x:d1", [5])] if wrong == "two places" else []
    tree.snapshot(added=[m1, m2, affiliated(tree, m1, *vectors), *others])
    spark.conf.set(PLANNING, strategy)
    spark.conf.set(DRIVER_BYTES, driver_bytes)
    scan = tree.load(spark).scan()
    with pytest.raises(Exception, match=message):
        scan.plan_files().collect()


@pytest.mark.parametrize("lacks", ["format", "target"])
@pytest.mark.usefixtures("planning", "_many")
def test_a_delete_that_is_no_vector_is_not_passed_over(tree: TreeTable, spark: SparkSession, lacks: str) -> None:
    m1 = tree.leaf("m1", data("x:d1"), data("x:d2"))
    other = {"file_format": "parquet"} if lacks == "format" else {"referenced_file": None}
    tree.snapshot(added=[m1, tree.leaf("d1", tree.vector("x:d1", [1]), tree.vector("x:d2", [1], **other))])
    with pytest.raises(Exception, match="not a deletion vector where only deletion vectors can be"):
        tree.load(spark).scan().plan_files().collect()


@pytest.mark.usefixtures("planning")
def test_a_root_that_is_named_as_a_manifest_list(tree: TreeTable, spark: SparkSession) -> None:
    m1 = tree.leaf("m1", data("x:d1"), data("x:d2"))
    tree.snapshot(added=[m1, affiliated(tree, m1, tree.vector("x:d1", [1]))])
    table = tree.load(spark)
    (metadata,) = tree.folder.glob("metadata/v*.metadata.json")
    metadata.write_text(metadata.read_text().replace('"root-manifest"', '"manifest-list"'))
    assert {path: len(deletes) for path, deletes in plans(table, spark).items()} == {"x:d1": 1, "x:d2": 0}
