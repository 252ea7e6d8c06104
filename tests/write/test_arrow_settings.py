"""Changes of rows in sessions whose settings give Python other Arrow types and smaller batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionSpec

from tests.conftest import configured
from tests.write.test_changes import MODES, Rows, frame, new_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    import sparkmeta as sm

SETTINGS = {
    "spark.sql.execution.arrow.useLargeVarTypes": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "2",
    "spark.sql.execution.arrow.pyspark.validateSchema.enabled": "true",
    "spark.sql.session.timeZone": "Asia/Kathmandu",
}


def rows_of(table: sm.Table, **scan: str) -> Rows:
    return sorted(map(tuple, table.scan(**scan).to_df().collect()))


@pytest.mark.parametrize(("version", "mode"), [(2, MODES[1]), (3, MODES[1]), (3, MODES[0])])
def test_changes(spark: SparkSession, tmp_path: Path, version: int, mode: str) -> None:
    modes = {f"write__{change}__mode": mode for change in ("delete", "update", "merge")}
    with configured(spark, SETTINGS):
        table = new_table(spark, tmp_path, PartitionSpec(), version=version, **modes)
        table = table.append(frame(spark, [(number, "a", number) for number in range(6)]).coalesce(1))
        table = table.delete("id = 0").update({"part": "b"}, "id = 1")
        table = table.upsert(frame(spark, [(2, "c", 2), (7, "c", 7)]), ["id"])
        table = table.equality_delete(frame(spark, [(3, None, None)]).select("id"), ["id"]).delete("id = 4")
        assert rows_of(table, row_filter="id > 1") == [(2, "c", 2), (5, "a", 5), (7, "c", 7)]
        assert table.scan().count() == 4
    assert rows_of(table) == [(1, "b", 1), (2, "c", 2), (5, "a", 5), (7, "c", 7)]


def _named_by_batch(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield files whose paths have the number of rows in the batch from Spark."""
    for batch in batches:
        paths = [f"/{len(batch)}/{number}.parquet" for number in batch.column("id").to_pylist()]
        ones = pa.repeat(pa.scalar(1, pa.int64()), len(batch))
        yield pa.RecordBatch.from_arrays(
            [pa.array(paths), pa.array(["PARQUET"] * len(batch)), ones, ones],
            ["file_path", "file_format", "record_count", "file_size_in_bytes"],
        )


LIMIT = "spark.sql.execution.arrow.maxBytesPerBatch"


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize(("limit", "rows"), [(None, "90"), ("1", "1")])
def test_batches_of_commits(spark: SparkSession, tmp_path: Path, version: int, limit: str | None, rows: str) -> None:
    """Jobs of a commit have no limit on the bytes of a batch, which is slow, unless the session has one."""
    if limit is not None and spark.version.startswith("4.0."):
        pytest.skip("Spark has the limit since 4.1")
    wide = spark.range(0, 90, 1, 1).selectExpr("id", "repeat('x', 1 << 20) AS text")
    files = wide.mapInArrow(
        _named_by_batch, "file_path string, file_format string, record_count long, file_size_in_bytes long"
    )
    table = new_table(spark, tmp_path, PartitionSpec(), version=version)
    with configured(spark, {} if limit is None else {LIMIT: limit}):
        with table.transaction() as transaction:
            transaction.update_snapshot().append(files)
        assert spark.conf.get(LIMIT, None) == limit
    paths = table.refresh().inspect.arrow.files(columns=["file_path"]).column(0).to_pylist()
    assert {path.split("/")[1] for path in paths} == {rows}
