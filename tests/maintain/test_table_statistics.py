"""Table statistics: sketches that Iceberg's Java library reads, with the values that it counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import datasketches
import pytest

from sparkmeta.spec.puffin import read_blob, read_footer
from tests.maintain.clones import clone
from tests.maintain.test_partition_statistics import JavaStatistics
from tests.peers import corpus as peers
from tests.peers.file_maker import local_path
from tests.peers.slices import SOAK

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def blobs(location: str) -> dict[int, tuple[Any, bytes]]:
    """Field id -> the metadata and content of its blob in a Puffin file."""
    from pathlib import Path

    data = Path(local_path(location)).read_bytes()
    footer = read_footer(data, location)
    return {blob.fields[0]: (blob, read_blob(data, blob, location)) for blob in footer.blobs}


def sketch(data: bytes) -> Any:
    return datasketches.compact_theta_sketch.deserialize(data)


def java_computes(java: JavaStatistics, snapshot_id: int, columns: list[str] | None = None) -> str:
    actions = java.java.iceberg.spark.actions.SparkActions.get()
    action = actions.computeTableStats(java.table).snapshot(snapshot_id)
    if columns:
        action = action.columns(java.java.strings(columns))
    return str(action.execute().statisticsFile().path())


NAMES = peers.names() if SOAK else ["types_v2", "types_v3"]


@pytest.mark.java
@pytest.mark.parametrize("name", NAMES)
def test_equal_to_java(name: str, corpus: peers.Corpus, spark: SparkSession, tmp_path: Path) -> None:
    peer = corpus.table(name)
    table = clone(peer, tmp_path / "ours")
    java = JavaStatistics(spark, clone(peer, tmp_path / "java").location())
    for snapshot in table.metadata.snapshots[-1:]:
        expected = blobs(java_computes(java, snapshot.snapshot_id))
        plan = table.maintenance.compute_table_stats(snapshot.snapshot_id)
        after = plan.commit()
        (file,) = after.metadata.statistics
        ours = blobs(file.statistics_path)
        assert list(ours) == list(expected)
        for field_id, (blob, data) in ours.items():
            other, java_data = expected[field_id]
            assert (blob.type, blob.snapshot_id, blob.sequence_number, blob.compression_codec, blob.properties) == (
                other.type,
                other.snapshot_id,
                other.sequence_number,
                other.compression_codec,
                other.properties,
            ), field_id
            assert data == java_data, field_id
            assert list(sketch(data)) == list(sketch(java_data))
