"""Changes of rows in sessions whose settings give Python other Arrow types and smaller batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyiceberg.partitioning import PartitionSpec

from tests.conftest import configured
from tests.write.test_changes import MODES, Rows, frame, new_table

if TYPE_CHECKING:
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
