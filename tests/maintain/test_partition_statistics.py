"""Partition statistics: the values and files of Iceberg's Java library, from all entries or from what changed."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

import sparkmeta as sm
from tests.maintain.clones import clone
from tests.peers import corpus as peers
from tests.peers.content_files import elements
from tests.peers.file_maker import local_path
from tests.peers.java import Java
from tests.peers.slices import slice_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

COUNTS = (
    "data_record_count", "data_file_count", "total_data_file_size_in_bytes", "position_delete_record_count",
    "position_delete_file_count", "equality_delete_record_count", "equality_delete_file_count", "dv_count",
)  # fmt: skip


def file_rows(location: str) -> list[dict[str, Any]]:
    """The rows of a statistics file, by pyarrow."""
    return pq.read_table(local_path(location)).to_pylist()


def shape(location: str) -> list[Any]:
    """The field ids, names, types and repetition of a statistics file."""
    return _shape(pq.read_schema(local_path(location)))


def _shape(fields: Any) -> list[Any]:
    shown = []
    for field in fields:
        kind = _shape(field.type) if field.name == "partition" else str(field.type)
        shown.append((field.metadata[b"PARQUET:field_id"], field.name, kind, field.nullable))
    return shown


def comparable(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(repr(row) for row in rows)


class JavaStatistics:
    """Java's computation of partition statistics of a table in a folder."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        self.java = Java(spark)
        conf = self.java.session.sessionState().newHadoopConf()
        self.tables, self.location = self.java.iceberg.hadoop.HadoopTables(conf), location

    @property
    def table(self) -> Any:
        return self.tables.load(self.location)

    def compute(self, snapshot_id: int, *, register: bool = False) -> str | None:
        """The path of a new statistics file; None for no rows."""
        table = self.table
        file = self.java.iceberg.PartitionStatsHandler.computeAndWriteStatsFile(
            table, self.java.jvm.java.lang.Long.valueOf(snapshot_id)
        )
        if file is None:
            return None
        if register:
            table.updatePartitionStatistics().setPartitionStatistics(file).commit()
        return str(file.path())

    def scanned(self, snapshot_id: int) -> Counter[str]:
        """What Java reads of the registered statistics of a snapshot."""
        rows = self.table.newPartitionStatisticsScan().useSnapshot(snapshot_id).scan()
        counters = []
        for row in elements(rows):
            values = [
                row.specId(), row.dataRecordCount(), row.dataFileCount(), row.totalDataFileSizeInBytes(),
                row.positionDeleteRecordCount(), row.positionDeleteFileCount(), row.equalityDeleteRecordCount(),
                row.equalityDeleteFileCount(), row.dvCount(), row.lastUpdatedAt(), row.lastUpdatedSnapshotId(),
            ]  # fmt: skip
            counters.append(repr(values))
        return Counter(counters)


def partitioned(names: list[str]) -> list[str]:
    return names


@pytest.mark.java
@pytest.mark.parametrize("name", slice_of(peers.names()))
def test_equal_to_java(name: str, corpus: peers.Corpus, spark: SparkSession, tmp_path: Path) -> None:
    peer = corpus.table(name)
    if not any(spec["fields"] for spec in peer.metadata.get("partition-specs", [])):
        pytest.skip("not partitioned")
    table = clone(peer, tmp_path / "ours")
    java = JavaStatistics(spark, clone(peer, tmp_path / "java").location())
    for snapshot in table.metadata.snapshots:
        expected = java.compute(snapshot.snapshot_id)
        plan = table.maintenance.compute_partition_stats(snapshot.snapshot_id, full=True)
        committed = plan.commit()
        result = plan.result()["committed"]
        if expected is None:
            assert result is None
            continue
        ours = result["statistics_path"]
        assert shape(ours) == shape(expected)
        assert comparable(file_rows(ours)) == comparable(file_rows(expected))
        reader = JavaStatistics(spark, committed.location())
        print(reader.scanned(snapshot.snapshot_id))
