from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from sparkmeta import Table
from sparkmeta.errors import CorruptFileError
from sparkmeta.inspect.check import ENTRY_RULES, ROOT_RULES, TREE_RULES
from sparkmeta.spec.bitmap import PositionBitmap, write_deletion_vector
from sparkmeta.spec.entry import Status
from tests.conftest import configured
from tests.plans import optimized_plan
from tests.trees import BY_PART, Entry, TreeTable, data, equality_deletes, stats

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

Broken = tuple[str, str, str]
BY_SPARK = {"spark.sparkmeta.driver-manifest-bytes": "0"}


def violations(table: Table) -> set[Broken]:
    """(rule, last part of the location, value) of each, which the driver and Spark find."""
    rows = table.arrow.check().to_pylist()
    assert all(row["problem"] for row in rows)
    with configured(table.state.spark, BY_SPARK):
        by_spark = [row.asDict() for row in table.refresh().check().collect()]
    if any(row["problem"] == "the root has two live entries for this manifest" for row in rows):
        # Spark reads the two as one leaf.
        by_spark = [row for row in by_spark if row["rule"] != "manifest-counts"]
    assert sorted(map(str, rows)) == sorted(map(str, by_spark))
    return {(row["rule"], row["location"].rpartition("/")[2], row["value"]) for row in rows}


def files(*names: str) -> list[Entry]:
    return [data(name) for name in names]


def test_a_sound_tree(tmp_path: Path, spark: SparkSession) -> None:
    """The tree has every kind of entry, masks, affinity, tombstones, and a compaction and an append in one commit."""
    tree = TreeTable(tmp_path / "t", BY_PART)
    m1, m2 = tree.leaf("m1", *files("x:d1", "x:d2", "x:d3")), tree.leaf("m2", data("x:d4", None), *files("x:d5"))
    x1 = tree.leaf("x1", tree.vector("x:d1", {1}), tree.vector("x:d2", {2}), referenced_file=m1.location)
    x2 = tree.leaf("x2", equality_deletes("x:e1"))
    first, old = tree.mask(m2, {0}, puffin=True), tree.vector("x:d6", {1})
    root = [*files("x:d6"), equality_deletes("x:e2")]
    tree.snapshot(added=[m1, m2, x1, x2, *root, old])
    tree.snapshot(existing=[m1, m2, x1, x2, *root], deleted=[old], added=[first, tree.vector("x:d6", {1, 4})])
    m3 = tree.leaf("m3", data("x:d5").existing())
    masks = [tree.mask(m1, {0}), tree.mask(x1, {0})]
    tree.snapshot(existing=[m1, x1, x2, m3, root[1]], deleted=[root[0]], added=[*masks, *files("x:d7")])
    table = tree.load(spark)
    assert violations(table) == set()
    assert table.check(2).count() == 0
    assert table.check().columns == ["rule", "location", "value", "problem"]
    with configured(spark, BY_SPARK):
        plan = optimized_plan(table.refresh().check())
    lines = plan.splitlines()
    mapped = [below for line, below in pairwise(lines) if "MapInArrow" in line]
    assert mapped
    assert not [below for below in mapped if "LocalRelation" not in below], "the tasks open leaves themselves"
    outer = [line for line in lines if "Join LeftOuter" in line]
    assert outer
    assert not [line for line in outer if "leftHint" in line], "Spark warns of hints that it can't follow"


def wrong_kind_in_data_leaf(tree: TreeTable) -> Broken:
    tree.snapshot(added=[tree.leaf("m1", data("x:d1"), equality_deletes("x:e1"))])
    return "leaf-content", "m1.parquet", "2"


def wrong_kind_in_delete_leaf(tree: TreeTable) -> Broken:
    tree.snapshot(added=[tree.leaf("x1", equality_deletes("x:e1"), data("x:d1"), content="delete")])
    return "leaf-content", "x1.parquet", "0"


def manifest_in_leaf(tree: TreeTable) -> Broken:
    tree.snapshot(added=[tree.leaf("m1", data("x:d1"), data("x:m0", content_type=3))])
    return "leaf-content", "m1.parquet", "3"


def two_vectors_of_a_leaf(tree: TreeTable) -> Broken:
    m1 = tree.leaf("m1", *files("x:d1", "x:d2", "x:d3"))
    tree.snapshot(added=[m1])
    tree.snapshot(existing=[m1], added=[tree.mask(m1, {0}), tree.mask(m1, {1})])
    return "one-vector-per-manifest", "m1.parquet", "deletion vectors is 2"


def two_vectors_of_a_file(tree: TreeTable) -> Broken:
    leaf = tree.leaf("x1", tree.vector("x:d1", {1}), tree.vector("x:d2", {1}))
    tree.snapshot(added=[*files("x:d1", "x:d2"), leaf, tree.vector("x:d1", {2})])
    return "one-vector-per-file", "x:d1", "2"


def vector_of_no_leaf(tree: TreeTable) -> Broken:
    m1 = tree.leaf("m1", *files("x:d1"))
    tree.snapshot(added=[tree.mask(m1, {0})])
    return "vector-target", "root1.parquet", f"referenced_file is {m1.location!r}"


def vector_of_a_deleted_leaf(tree: TreeTable) -> Broken:
    m1 = tree.leaf("m1", *files("x:d1"))
    mask = tree.mask(m1, {0})
    tree.snapshot(added=[m1, mask])
    tree.snapshot(existing=[mask], deleted=[m1])
    return "vector-target", "root2.parquet", f"referenced_file is {m1.location!r}"


def ordinal_out_of_range(tree: TreeTable) -> Broken:
    m1 = tree.leaf("m1", *files("x:d1", "x:d2"))
    tree.snapshot(added=[m1, tree.mask(m1, {1, 2})])
    return "ordinal-range", "m1.parquet", "2"


def ordinal_of_a_deleted_entry(tree: TreeTable) -> Broken:
    m1 = tree.leaf("m1", data("x:d1").existing(), data("x:d2").deleted())
    tree.snapshot(added=files("x:d1"))
    tree.snapshot(existing=[m1], added=[tree.mask(m1, {1})])
    return "ordinal-deleted", "m1.parquet", "1"


def broken_checksum(tree: TreeTable) -> Broken:
    m1 = tree.leaf("m1", *files("x:d1", "x:d2"))
    blob = bytearray(write_deletion_vector(PositionBitmap.of([0])))
    crc = blob[-4:].hex()
    blob[-8] ^= 1
    tree.snapshot(added=[m1, tree.mask(m1, {0}, deletion_vector={"inline_content": bytes(blob)})])
    return "vector-content", "m1.parquet", repr(crc)


def wrong_cardinality(tree: TreeTable) -> Broken:
    m1 = tree.leaf("m1", *files("x:d1", "x:d2"))
    tree.snapshot(added=[m1, tree.mask(m1, {0}, record_count=2, puffin=True).with_fields(record_count=2)])
    return "vector-content", "m1.parquet", "2"


def existing_without_sequence(tree: TreeTable) -> Broken:
    m1 = tree.leaf("m1", data("x:d1").existing(sequence=None), data("x:d2").existing())
    tree.snapshot(added=files("x:d1", "x:d2"))
    tree.snapshot(existing=[m1])
    return "sequence-numbers", "m1.parquet", "x:d1"


def existing_in_an_added_leaf(tree: TreeTable) -> Broken:
    m1 = tree.leaf("m1", data("x:d1").existing(), data("x:d2"))
    tree.snapshot(added=files("x:d1"))
    tree.snapshot(added=[m1])
    return "added-manifest", "m1.parquet", str(int(Status.EXISTING))


def carried_from_nowhere(tree: TreeTable) -> Broken:
    m1, m2 = (
        tree.leaf("m1", *files("x:d1", "x:d2")),
        tree.leaf("m2", *(entry.existing() for entry in files("x:d1", "x:d2"))),
    )
    tree.snapshot(added=[m1, tree.mask(m1, {0})])
    tree.snapshot(existing=[m2])
    return "carried-entries", "x:d1", "0"


def carried_in_the_root_from_nowhere(tree: TreeTable) -> Broken:
    tree.snapshot(added=files("x:d1"))
    tree.snapshot(existing=files("x:d1", "x:d2"))
    return "carried-entries", "x:d2", "0"


def no_partition_stats(tree: TreeTable) -> Broken:
    stats = {"1": {"lower_bound": 1, "value_count": 10, "null_value_count": 0}}
    tree.snapshot(added=[tree.leaf("m1", data("x:d1"), data("x:d2", content_stats=stats))])
    return "partition-bound", "m1.parquet", "content_stats.2 of x:d2"


def no_lower_partition_bound(tree: TreeTable) -> Broken:
    stats = {"2": {"upper_bound": "a", "value_count": 10, "null_value_count": 0}}
    tree.snapshot(added=[data("x:d1"), data("x:d2", content_stats=stats)])
    return "partition-bound", "root1.parquet", "content_stats.2 of x:d2"


def no_partition_stats_of_a_leaf(tree: TreeTable) -> Broken:
    tree.snapshot(added=[tree.leaf("m1", data("x:d1")).with_fields(content_stats={})])
    return "partition-bound", "m1.parquet", "content_stats.2 is None"


def a_file_twice(tree: TreeTable) -> Broken:
    tree.snapshot(added=[tree.leaf("m1", *files("x:d1", "x:d2")), *files("x:d2")])
    return "one-entry-per-file", "x:d2", "2"


def a_leaf_twice(tree: TreeTable) -> Broken:
    m1 = tree.leaf("m1", *files("x:d1"))
    tree.snapshot(added=[m1])
    tree.snapshot(existing=[m1, m1])
    return "one-entry-per-file", "m1.parquet", f"location is {m1.location!r}"


def affiliated_to_nothing(tree: TreeTable) -> Broken:
    leaf = tree.leaf("x1", tree.vector("x:d1", {1}), referenced_file="file:///gone.parquet")
    tree.snapshot(added=[*files("x:d1"), leaf])
    return "affinity-target", "x1.parquet", "referenced_file is 'file:///gone.parquet'"


def affiliated_equality_deletes(tree: TreeTable) -> Broken:
    m1 = tree.leaf("m1", *files("x:d1"))
    tree.snapshot(added=[m1, tree.leaf("x1", equality_deletes("x:e1"), referenced_file=m1.location)])
    return "affinity-equality-deletes", "x1.parquet", "x:e1"


def affiliated_vector_of_another_leaf(tree: TreeTable) -> Broken:
    m1, m2 = tree.leaf("m1", *files("x:d1")), tree.leaf("m2", *files("x:d2"))
    leaf = tree.leaf("x1", tree.vector("x:d1", {1}), tree.vector("x:d2", {1}), referenced_file=m1.location)
    tree.snapshot(added=[m1, m2, leaf])
    return "affinity-vector", "x1.parquet", "x:d2"


def affiliated_vector_of_a_file_that_moved(tree: TreeTable) -> Broken:
    m1, m2 = tree.leaf("m1", *files("x:d1", "x:d2")), tree.leaf("m2", *files("x:d2"))
    leaf = tree.leaf("x1", tree.vector("x:d1", {1}), tree.vector("x:d2", {1}), referenced_file=m1.location)
    tree.snapshot(added=[m1, m2, leaf, tree.mask(m1, [1])])
    return "affinity-vector", "x1.parquet", "x:d2"


def other_counts(tree: TreeTable) -> Broken:
    m1 = tree.leaf("m1", *files("x:d1", "x:d2"))
    counts = {**m1.row["manifest_stats"], "added_files_count": 3}
    tree.snapshot(added=[m1.with_fields(record_count=3, manifest_stats=counts)])
    return "manifest-counts", "m1.parquet", '{"records":3,"added":3,"existing":0,"deleted":0}'


def vector_without_its_file(tree: TreeTable) -> Broken:
    tree.snapshot(added=[*files("x:d1"), tree.leaf("x1", tree.vector("x:d1", {1}, referenced_file=None))])
    return "entry-fields", "x1.parquet", "referenced_file is None"


def root_entry_without_fields(tree: TreeTable) -> Broken:
    tree.snapshot(added=[data("x:d1", file_size_in_bytes=None)])
    return "entry-fields", "root1.parquet", "file_size_in_bytes is None"


def bounds_the_wrong_way_round_in_a_leaf(tree: TreeTable) -> Broken:
    tree.snapshot(added=[tree.leaf("m1", data("x:d1"), data("x:d2", content_stats=stats("a", (9, 3))))])
    return "bounds-order", "m1.parquet", "content_stats.1.lower_bound of x:d2 is 9"


def bounds_the_wrong_way_round_in_the_root(tree: TreeTable) -> Broken:
    tree.snapshot(added=[data("x:d1", content_stats=stats("a", (9, 3)))])
    return "bounds-order", "x:d1", "content_stats.1.lower_bound is 9"


BROKEN: list[Callable[[TreeTable], Any]] = [
    wrong_kind_in_data_leaf,
    wrong_kind_in_delete_leaf,
    manifest_in_leaf,
    two_vectors_of_a_leaf,
    two_vectors_of_a_file,
    vector_of_no_leaf,
    vector_of_a_deleted_leaf,
    ordinal_out_of_range,
    ordinal_of_a_deleted_entry,
    broken_checksum,
    wrong_cardinality,
    existing_without_sequence,
    existing_in_an_added_leaf,
    carried_from_nowhere,
    carried_in_the_root_from_nowhere,
    no_partition_stats,
    no_lower_partition_bound,
    no_partition_stats_of_a_leaf,
    a_file_twice,
    a_leaf_twice,
    affiliated_to_nothing,
    affiliated_equality_deletes,
    affiliated_vector_of_another_leaf,
    affiliated_vector_of_a_file_that_moved,
    other_counts,
    vector_without_its_file,
    root_entry_without_fields,
    bounds_the_wrong_way_round_in_a_leaf,
    bounds_the_wrong_way_round_in_the_root,
]
# Faults that break a second rule too.
ALSO = {
    wrong_kind_in_data_leaf: {"entry-fields"},
    manifest_in_leaf: {"entry-fields"},
    a_leaf_twice: {"one-entry-per-file"},
}


@pytest.mark.parametrize("make", BROKEN, ids=lambda make: make.__name__)
def test_a_broken_tree(make: Callable[[TreeTable], Broken], tmp_path: Path, spark: SparkSession) -> None:
    tree = TreeTable(tmp_path / "t", BY_PART)
    expected = make(tree)
    actual = violations(tree.load(spark))
    assert expected in actual
    assert {rule for rule, _, _ in actual} - {expected[0]} <= ALSO.get(make, set())


def test_every_rule_has_a_case_that_no_other_rule_catches(tmp_path: Path) -> None:
    cases = [make for make in BROKEN if make not in ALSO]
    rules = {rule for rule, _ in (*ROOT_RULES, *ENTRY_RULES, *TREE_RULES)}
    assert {make(TreeTable(tmp_path / make.__name__, BY_PART))[0] for make in cases} == rules
    documented = (Table.check.__doc__ or "").replace("\n", " ")
    assert all(rule in documented for rule in rules)


@pytest.mark.parametrize("settings", [{}, BY_SPARK], ids=["driver", "Spark"])
def test_a_leaf_listed_twice_is_not_read(settings: dict[str, str], tmp_path: Path, spark: SparkSession) -> None:
    tree = TreeTable(tmp_path / "t", BY_PART)
    a_leaf_twice(tree)
    with configured(spark, settings):
        table = tree.load(spark)
        for read in (
            lambda: table.scan().plan_files().collect(),
            lambda: table.scan().count(),
            lambda: table.inspect.files().collect(),
            lambda: table.maintenance.health().findings().collect(),
            lambda: table.maintenance.compact_manifests().commit(),
            lambda: table.maintenance.expire_snapshots(older_than=datetime.now(UTC)).commit(),
        ):
            with pytest.raises(CorruptFileError, match=r"m1\.parquet.*two live entries for this manifest"):
                read()


def test_a_vector_that_lists_what_goes_with_its_leaf(tmp_path: Path, spark: SparkSession) -> None:
    tree = TreeTable(tmp_path / "t", BY_PART)
    m1 = tree.leaf("m1", *files("x:d1", "x:d2"))
    tree.snapshot(added=[m1])
    tree.snapshot(deleted=[m1], added=[tree.mask(m1, {0, 1})])
    assert violations(tree.load(spark)) == set()


def test_an_expired_parent_is_no_violation(tmp_path: Path, spark: SparkSession) -> None:
    tree = TreeTable(tmp_path / "t", BY_PART)
    tree.snapshot(added=files("x:d1"))
    tree.snapshot(existing=files("x:d2"))
    assert violations(tree.load(spark, expired=[1])) == set()
