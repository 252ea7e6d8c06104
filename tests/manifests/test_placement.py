"""Entries are the same wherever manifests are read; the driver reads what costs less than a job."""

from __future__ import annotations

from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import sparkmeta as sm
from sparkmeta.entries.projection import FILE_COLUMNS
from sparkmeta.errors import from_spark
from sparkmeta.manifests.placement import ManifestLoad, Placement
from tests import trees
from tests.handmade import HandmadeTable, data, deletion_vector, equality_deletes, long_bounds
from tests.plans import optimized_plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from sparkmeta.snapshot.state import TableState

PART = {"partition": {"part": "x"}}
PLACEMENTS = [None, *Placement]


def listed(folder: Path, spark: SparkSession) -> TableState:
    """Avro manifests of data and deletes, of two specs; entries inherit row ids and sequence numbers."""
    table = HandmadeTable(folder, summaries=True)
    table.add(0, 1, *(data(f"file:///t/{n}", None, **PART, **long_bounds(n, n + 9)) for n in range(9)))
    table.add(0, 0, data("file:///t/gone", 1, status=2), data("file:///t/other", 1, **long_bounds(0, 99)))
    table.add(1, 1, deletion_vector("file:///t/2", **PART)).add(1, 0, equality_deletes("x:eq", 3))
    return sm.load_table(table.write(), spark=spark).state


def tree(folder: Path, spark: SparkSession) -> TableState:
    """Leaves of data and deletes, masked inline and in a Puffin file or not at all, and files of the root."""
    table = trees.TreeTable(folder, trees.BY_PART)
    leaves = [
        table.leaf("plain", trees.data("x:b1", "b").existing(), trees.data("x:b2", None).deleted()),
        table.leaf("inline", *(trees.data(f"x:a{n}") for n in range(70))),
        table.leaf("puffin", *(trees.equality_deletes(f"x:e{n}") for n in range(9))),
    ]
    files = [trees.data("x:root1"), trees.equality_deletes("x:root2", "c")]
    table.snapshot(added=[*leaves, *files])
    masks = [table.mask(leaves[1], [0, 64, 69]), table.mask(leaves[2], [3, 8], puffin=True)]
    table.snapshot(existing=[*leaves, files[1]], deleted=files[:1], added=masks)
    return table.load(spark).state


@pytest.mark.parametrize("make", [listed, tree], ids=["listed", "tree"])
@pytest.mark.parametrize("columns", [FILE_COLUMNS, ("location", "lower_bounds", "value_counts")], ids=["file", "maps"])
def test_entries_are_the_same_wherever_they_are_read(
    make: Callable[[Path, SparkSession], TableState], columns: tuple[str, ...], tmp_path: Path, spark: SparkSession
) -> None:
    state, order = make(tmp_path / "t", spark), itemgetter("manifest", "ordinal")
    projection = state.projection([name for name in columns if name != "deletion_vector"], (1,))
    rows = {
        placement: sorted(state.entries(state.manifests, projection, placement).toArrow().to_pylist(), key=order)
        for placement in PLACEMENTS
    }
    assert len(rows[None]) == (13 if make is listed else 2 + 67 + 7 + 2)
    for placement in Placement:
        assert rows[placement] == rows[None], placement


@pytest.mark.connect
@pytest.mark.parametrize("placement", Placement)
@pytest.mark.parametrize("make", [listed, tree], ids=["listed", "tree"])
def test_an_empty_manifest_is_an_error(
    make: Callable[[Path, SparkSession], TableState], placement: Placement, tmp_path: Path, spark: SparkSession
) -> None:
    """Spark passes over empty files."""
    state = make(tmp_path / "t", spark)
    path = Path(state.data_manifests.column("location")[0].as_py().removeprefix("file://"))
    path.write_bytes(b"")
    with pytest.raises(Exception) as raised:  # noqa: PT011
        state.entries(state.data_manifests, state.projection(("location",)), placement).collect()
    error = raised.value if isinstance(raised.value, sm.SparkmetaError) else from_spark(raised.value)
    assert error is not None
    assert path.name in str(error)


@pytest.mark.parametrize(
    ("make", "placement", "nodes"),
    [
        (listed, Placement.DRIVER, set()),
        (listed, Placement.TASKS, {"MapInArrow"}),
        (listed, Placement.SPARK, {"MapInArrow", "binaryFile"}),
        (tree, Placement.DRIVER, set()),
        (tree, Placement.TASKS, {"MapInArrow"}),
        # With Spark Connect, there is a check for files that Spark has passed over as well.
        pytest.param(tree, Placement.SPARK, {"parquet"}, marks=pytest.mark.classic),
    ],
)
def test_the_placement_says_who_opens_manifests(
    make: Callable[[Path, SparkSession], TableState],
    placement: Placement,
    nodes: set[str],
    tmp_path: Path,
    spark: SparkSession,
) -> None:
    state = make(tmp_path / "t", spark)
    frame = state.entries(state.data_manifests, state.projection(("location",)), placement)
    plan = optimized_plan(frame)
    assert {name for name in ("MapInArrow", "binaryFile", "parquet") if name in plan} == nodes


@pytest.mark.parametrize(
    ("load", "driver_bytes", "fits"),
    [
        (ManifestLoad(100, 10, 10), 100, True),
        (ManifestLoad(101, 10, 10), 100, False),
        (ManifestLoad(100, 11, 10), 100, False),
        (ManifestLoad(100, None, 10), 100, True),
        (ManifestLoad(100, None, 10), 99, False),
        (ManifestLoad(1, 1, 10), 0, False),
    ],
)
def test_manifests_that_the_driver_reads_sooner_than_tasks(load: ManifestLoad, driver_bytes: int, fits: bool) -> None:
    assert load.fits_driver(driver_bytes) == fits
