"""The metadata table `partitions`, without a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, NestedField

import sparkmeta as sm

if TYPE_CHECKING:
    from pathlib import Path

VALUES = [0.0, -0.0, float("nan"), 1.0000000000000002, None]


@pytest.mark.parametrize("version", [2, 4])
def test_floats_keep_their_sign_and_digits(tmp_path: Path, version: int) -> None:
    catalog: Any = sm.load_catalog("partitions", type="hadoop", warehouse=tmp_path.as_uri())
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "d"))
    table = catalog.create_table(
        "db.t", Schema(NestedField(1, "d", DoubleType())), partition_spec=spec, format_version=version
    )
    rows = pa.table(
        {
            "file_format": ["parquet"] * 5, "spec_id": pa.array([0] * 5, pa.int32()),
            "partition": pa.array([{"d": value} for value in VALUES], pa.struct([("d", pa.float64())])),
            "record_count": [2] * 5, "file_size_in_bytes": [7] * 5,
        }
    )  # fmt: skip
    for number in range(2):
        paths = pa.array([f"file:///w/{number}-{place}.parquet" for place in range(5)])
        with table.refresh().transaction() as tx:
            tx.update_snapshot().append(rows.append_column("file_path", paths))

    table = table.refresh()
    partitions = table.inspect.arrow.partitions().to_pylist()
    assert {repr(row["partition"]["d"]) for row in partitions} == {repr(value) for value in VALUES}
    newest = table.current_snapshot().snapshot_id
    assert {(row["file_count"], row["record_count"], row["last_updated_snapshot_id"]) for row in partitions} == {
        (2, 4, newest)
    }
