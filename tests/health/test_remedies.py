"""What `table.maintenance.health()` recommends does something: a finding with a job has a plan that is not empty."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import sparkmeta as sm
from tests.handmade import BY_PART, COLUMNS, deletion_vector, equality_deletes, position_deletes
from tests.health.test_health import LARGE, X, file, healthy, history, kinds, report_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


COUNTED = {
    "vectors": [deletion_vector(f"x:x{number}", **X, record_count=90) for number in range(3)],
    "position deletes": [
        position_deletes(f"x:p{number}", **X, record_count=50, referenced_data_file="x:x1") for number in range(2)
    ],
    "a vector that supersedes position deletes": [
        deletion_vector("x:x1", **X, record_count=95),
        position_deletes("x:p", **X, record_count=95, referenced_data_file="x:x1"),
    ],
}
NOT_COUNTED = {
    "of a partition": [position_deletes("x:p", **X, record_count=300)],
    "of data files that are gone": [
        deletion_vector("x:gone", **X, record_count=100),
        position_deletes("x:p", **X, record_count=300, referenced_data_file="x:gone"),
    ],
    "older than the data file": [position_deletes("x:p", 0, **X, record_count=300, referenced_data_file="x:x1")],
    "superseded by a vector": [
        deletion_vector("x:x1", **X, record_count=20),
        position_deletes("x:p", **X, record_count=300, referenced_data_file="x:x1"),
    ],
    "equal values": [equality_deletes("x:e", 2, **X, record_count=300)],
}


def rewritten_groups(folder: Path, spark: SparkSession, **options: Any) -> int:
    """How many groups of data files the plan of a rewrite has."""
    return sm.load_table(str(folder), spark=spark).maintenance.rewrite_data_files(**options).summary().groups


@pytest.mark.parametrize("name", COUNTED)
def test_a_rewrite_removes_dense_deletes(spark: SparkSession, tmp_path: Path, name: str) -> None:
    report = report_of(healthy(tmp_path).add(1, 1, *COUNTED[name]), spark, max_deleted_ratio=0.31)
    assert "dense_deletes" in kinds(report)
    assert report.entries.densest[0].deleted == {"vectors": 270, "position deletes": 100}.get(name, 95)
    assert rewritten_groups(tmp_path, spark, delete_ratio_threshold=0.31) == 1


@pytest.mark.parametrize("name", NOT_COUNTED)
def test_deletes_that_no_rewrite_counts_are_not_dense(spark: SparkSession, tmp_path: Path, name: str) -> None:
    report = report_of(healthy(tmp_path).add(1, 1, *NOT_COUNTED[name]), spark)
    assert "dense_deletes" not in kinds(report)
    assert rewritten_groups(tmp_path, spark, delete_ratio_threshold=0.3) == 0


@pytest.mark.parametrize(
    ("ratio", "size", "chosen"), [(0.9, 0.8, int(0.9 * LARGE)), (1, 0.8, LARGE - 1), (0.6, 0.5, None)]
)
def test_a_rewrite_takes_all_small_files(
    spark: SparkSession, tmp_path: Path, ratio: float, size: float, chosen: int | None
) -> None:
    files = [file(f"s{number}", file_size_in_bytes=int(size * LARGE)) for number in range(5)]
    report = report_of(healthy(tmp_path).add(0, 1, *files), spark, small_file_ratio=ratio)
    (finding,) = report.list_findings
    assert (finding.finding, finding.options.get("min_file_size_bytes")) == ("small_files", chosen)
    assert (f"--min-file-size-bytes {chosen} " in finding.command) is (chosen is not None)
    assert rewritten_groups(tmp_path, spark, **finding.options) == 1


@pytest.mark.parametrize("schemas", [1, 2])
def test_an_expiry_makes_large_metadata_smaller(spark: SparkSession, tmp_path: Path, schemas: int) -> None:
    """The other schemas are unused. Without them, an expiry would do nothing, and compression is all that helps."""
    report = report_of(
        healthy(tmp_path, schemas=(COLUMNS,) * schemas, specs=((), BY_PART)), spark, max_metadata_json_bytes=100
    )
    (finding,) = report.list_findings
    call = "table.maintenance.expire_snapshots(clean_expired_metadata=True).commit()" if schemas > 1 else None
    assert (finding.finding, finding.call, finding.command is None) == ("large_metadata_json", call, schemas == 1)
    assert ("fewer snapshots, schemas" in finding.gain) is (schemas > 1)
    assert "compression-codec=gzip" in finding.gain
    plan = sm.load_table(str(tmp_path), spark=spark).maintenance.expire_snapshots(clean_expired_metadata=True)
    assert plan.summary().is_empty is (schemas == 1)


def test_large_metadata_of_old_snapshots(spark: SparkSession, tmp_path: Path) -> None:
    findings = history(tmp_path, spark).maintenance.health(max_metadata_json_bytes=100).list_findings
    assert [finding.finding for finding in findings] == ["old_snapshots", "large_metadata_json"]
    assert findings[1].call == "table.maintenance.expire_snapshots(clean_expired_metadata=True).commit()"
