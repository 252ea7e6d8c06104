"""Plans and metadata tables are the same from the manifest cache and from manifests, on other libraries' tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import sparkmeta as sm
from tests.conformance.test_plan_java import _rows, snapshots_of
from tests.peers import corpus as peers
from tests.peers import slices
from tests.peers.filters import filters
from tests.peers.slices import SOAK
from tests.plans import optimized_plan

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.java

SETTING = "spark.sparkmeta.manifest-cache"
FILTERS = 3
# One of each kind: specs and schemas that evolved, inheritance of each version, row ids, branches, deletes.
SLICE = [
    "spec_evolution_v1",
    "spec_promoted_source_v2",
    "metrics_counts_v1",
    "upgraded_and_rewritten_v3",
    "branches_and_tags_v3",
    "equality_across_specs_v2",
]
# Manifests of version 4 are Parquet already.
NAMES = [name for name in peers.names(without=["v4", "encrypted"]) if SOAK or name in SLICE]


@pytest.fixture
def cache(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "a cache"
    spark.conf.unset(SETTING)


@pytest.mark.parametrize("name", NAMES)
def test_the_cache_changes_no_plan(
    name: str, cache: Path, spark: SparkSession, corpus: peers.Corpus, soak: bool
) -> None:
    peer = corpus.table(name)
    expected = _rows(_frames(peer, spark, soak))
    spark.conf.set(SETTING, str(cache))
    last: list[DataFrame] = []
    for _ in range(2):
        last = _frames(peer, spark, soak)
        for ours, theirs in zip(_rows(last), expected, strict=True):
            assert _sorted(ours) == _sorted(theirs)
    # Manifests whose entries nobody needs are in no plan, and so may be missing here.
    assert not any(_decodes(frame) for frame in last[:2])


def _frames(peer: peers.PeerTable, spark: SparkSession, soak: bool) -> list[DataFrame]:
    """Entries and plan of the current table, then its plans at every snapshot and with filters."""
    table = sm.load_table(peer.metadata_location, spark=spark)
    chosen = filters(peer, slices.FILTERS if soak else FILTERS)
    history = [table.scan(snapshot_id=snapshot_id) for snapshot_id in snapshots_of(peer, 2)]
    filtered = [
        table.scan(row_filter=row_filter.expression, case_sensitive=row_filter.case_sensitive) for row_filter in chosen
    ]
    return [table.inspect.entries(), *(scan.plan_files() for scan in [table.scan(), *history, *filtered])]


def _decodes(frame: DataFrame) -> bool:
    return "MapInArrow" in optimized_plan(frame)


def _sorted(rows: list[dict[str, object]]) -> list[str]:
    return sorted(str(sorted(row.items())) for row in rows)
