"""Masks of leaves, whoever reads their Puffin files, and with how many requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sparkmeta.errors import CorruptFileError
from sparkmeta.manifests.deletion_vectors import masked_by_tasks, masked_ordinals, without_masked
from sparkmeta.session import SessionSource
from sparkmeta.storage.executors import ExecutorReader
from sparkmeta.storage.files import FileAccess
from tests.faults import FaultyFiles
from tests.logging_reader import LoggingReader
from tests.trees import BY_PART, TreeTable, data

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from sparkmeta import Table

LEAVES = 40
ENTRIES = 70
HOSTILE = "a b%20c[d]{e}=ü+'#"


@pytest.fixture
def reader(tmp_path: Path) -> LoggingReader:
    return LoggingReader(log=str(tmp_path / "requests"))


def masked_leaves(folder: Path) -> tuple[TreeTable, dict[int, set[int]]]:
    """A table whose leaves have masks in two Puffin files and inline, and what these mask by the leaf's ordinal."""
    tree = TreeTable(folder, BY_PART)
    leaves = [
        tree.leaf(f"m{leaf}", *(data(f"x:{leaf} {ordinal}") for ordinal in range(ENTRIES))) for leaf in range(LEAVES)
    ]
    masked = {leaf: {leaf, 64} for leaf in range(LEAVES - 1)}
    places = [*masked]
    masks = tree.masks({leaf: masked[leaf] for leaf in places[:19]}, leaves)
    masks += tree.masks({leaf: masked[leaf] for leaf in places[19:38]}, leaves)
    masks += [tree.mask(leaves[38], masked[38])]
    tree.snapshot(added=[*leaves, *masks])
    return tree, masked


def vectors_of(table: Table) -> pa.Table:
    tree = table.state.tree
    assert tree is not None
    return tree.manifest_dvs


def pairs(masked: dict[int, set[int]]) -> set[tuple[int, int]]:
    return {(leaf, ordinal) for leaf, ordinals in masked.items() for ordinal in ordinals}


def all_entries(spark: SparkSession, leaves: int = LEAVES) -> DataFrame:
    """Every entry of the leaves, in one partition."""
    return spark.range(0, leaves * ENTRIES, 1, 1).selectExpr(
        f"CAST(id DIV {ENTRIES} AS INT) AS manifest", f"id % {ENTRIES} AS ordinal"
    )


def test_a_file_is_a_request_of_the_driver(tmp_path: Path, spark: SparkSession) -> None:
    tree, masked = masked_leaves(tmp_path / "t")
    files = FaultyFiles()
    access = FileAccess(files, "spark", files, SessionSource(spark))
    rows = without_masked(all_entries(spark), vectors_of(tree.load(spark)), access).collect()
    assert len(files.operations) == 2
    entries = {(leaf, ordinal) for leaf in range(LEAVES) for ordinal in range(ENTRIES)}
    assert {tuple(row) for row in rows} == entries - pairs(masked)


def test_a_file_is_a_request_of_each_task(tmp_path: Path, spark: SparkSession, reader: LoggingReader) -> None:
    tree, masked = masked_leaves(tmp_path / "t")
    ordinals = masked_ordinals(spark, vectors_of(tree.load(spark)), reader)
    assert {tuple(row) for row in ordinals.collect()} == pairs(masked)
    assert len(reader.requests) <= 3, "two files, and one of them in both tasks"


@pytest.mark.connect
def test_entries_that_come_together_look_up_their_masks_together(
    tmp_path: Path, spark: SparkSession, reader: LoggingReader
) -> None:
    tree, masked = masked_leaves(tmp_path / "t")
    is_masked = masked_by_tasks(spark, vectors_of(tree.load(spark)), reader)
    assert is_masked is not None
    rows = all_entries(spark).where(is_masked).collect()
    assert {tuple(row) for row in rows} == pairs(masked)
    assert len(reader.requests) == 2


def test_a_leaf_of_many_batches_is_looked_up_once(tmp_path: Path, spark: SparkSession, reader: LoggingReader) -> None:
    tree, masked = masked_leaves(tmp_path / "t")
    is_masked = masked_by_tasks(spark, vectors_of(tree.load(spark)), reader)
    assert is_masked is not None
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1")
    try:
        rows = all_entries(spark, 3).where(is_masked).collect()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert {tuple(row) for row in rows} == {pair for pair in pairs(masked) if pair[0] < 3}
    assert len(reader.requests) == 3


@pytest.mark.connect
def test_masks_where_only_spark_reads(tmp_path: Path, spark: SparkSession) -> None:
    """Spark spells the names of these files in its own way."""
    tree, masked = masked_leaves(tmp_path / HOSTILE)
    ordinals = masked_ordinals(spark, vectors_of(tree.load(spark)), None)
    assert sorted(tuple(row) for row in ordinals.collect()) == sorted(pairs(masked))


@pytest.mark.parametrize("only_spark", [False, True])
def test_a_mask_beyond_its_file_is_named(tmp_path: Path, spark: SparkSession, only_spark: bool) -> None:
    tree, _ = masked_leaves(tmp_path / "t")
    vectors = vectors_of(tree.load(spark)).slice(0, 1)
    beyond = vectors.set_column(vectors.column_names.index("offset"), vectors.schema.field("offset"), [[1 << 40]])
    with pytest.raises(Exception, match=f"(?s){CorruptFileError.__name__}.*dv"):
        masked_ordinals(spark, beyond, None if only_spark else ExecutorReader()).collect()
