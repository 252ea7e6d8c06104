"""Partitions that are too small for any merge of their files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from sparkmeta import load_catalog

if TYPE_CHECKING:
    from pathlib import Path


def test_small_partitions_recommend_a_coarser_spec(tmp_path: Path) -> None:
    catalog = load_catalog("shop", type="hadoop", warehouse=str(tmp_path))
    catalog.create_namespace("db")
    rows = pa.table({"id": range(10), "day": pa.array(range(10), pa.date32())})
    table = catalog.create_table("db.t", rows.schema, partition_by=["day(day)", "bucket(4, id)"]).append(rows)
    by_kind = {each.finding: each for each in table.maintenance.health(min_small_partitions=10).list_findings}
    finding = by_kind["small_partitions"]
    assert finding.items == 10
    assert finding.problem.startswith("10 partitions hold ")
    assert "day_day: day(day) -> month(day); id_bucket_4: bucket[4](id) -> fewer buckets" in finding.gain
    for options in ({"min_small_partitions": 11}, {"min_small_partitions": 10, "small_file_ratio": 1e-9}):
        assert "small_partitions" not in {each.finding for each in table.maintenance.health(**options).list_findings}
