"""The metadata table partitions: an aggregation of the live entries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.types import DoubleType, FloatType
from pyspark.sql import functions as F

from sparkmeta.entries.projection import PARTITION
from sparkmeta.errors import UnsupportedError
from sparkmeta.plan.filter import is_live
from sparkmeta.plan.prune import live_manifests
from sparkmeta.plan.rows import partition_value, public_partition
from sparkmeta.session import local_frame
from sparkmeta.spec.entry import ContentType
from sparkmeta.spec.partitioning import has_unknown_values

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from sparkmeta.state import TableState

_COLUMNS = ("version_info", "content_type", "partition_spec_id", "record_count", "file_size_in_bytes")
_CONTENTS = {
    "data": ContentType.DATA,
    "position_delete": ContentType.POSITION_DELETES,
    "equality_delete": ContentType.EQUALITY_DELETES,
}
_SIZE = "data_size"
_UPDATE = "update"
_FIELDS = "number_of_fields"


def partitions(state: TableState) -> DataFrame:
    """Return a row for each partition, with counts of its live files and rows, and its last update.

    Tuples of two specs are the same partition if their values are equal and the specs have the same number of fields.
    spec_id is the spec of the files that were added last. last_updated_* are of the newest unexpired snapshot that
    added one of the live files.

        SELECT first(partition), max(update).spec_id, sum(record_count) FILTER (WHERE content_type = 0), ...
        FROM entries LEFT JOIN snapshots USING (snapshot_id) WHERE status <> 2
        GROUP BY partition, number of fields of the spec

    Raises:
        UnsupportedError: an unknown partition transform.
    """
    refuse_unknown_transforms(state)
    manifests = live_manifests(state.manifests)
    live = state.entries(manifests, state.projection(_COLUMNS)).where(is_live().text)
    known = live.join(F.broadcast(_snapshots(state)), F.col("version_info.snapshot_id") == F.col("snapshot_id"), "left")
    return known.groupBy(*_keys(state)).agg(*_aggregates(state)).select(*_result(state))


def _snapshots(state: TableState) -> DataFrame:
    """Return snapshot_id, committed_at and sequence_number of the snapshots."""
    snapshots = state.metadata.snapshots
    columns = {
        "snapshot_id": pa.array([snapshot.snapshot_id for snapshot in snapshots], pa.int64()),
        "committed_at": pa.array([snapshot.timestamp_ms * 1000 for snapshot in snapshots], pa.timestamp("us", "UTC")),
        "sequence_number": pa.array([snapshot.sequence_number for snapshot in snapshots], pa.int64()),
    }
    return local_frame(state.spark, pa.table(columns))


def _keys(state: TableState) -> list[Column]:
    """Return the columns that identify a partition, with -0.0 and 0.0 different, unlike in Spark's grouping."""
    keys = []
    for field in state.types.partition_type.fields:
        value = partition_value(field.field_id).column()
        is_number = isinstance(field.field_type, FloatType | DoubleType)
        keys.append((value.cast("string") if is_number else value).alias(f"key_{field.field_id}"))
    return [*keys, _number_of_fields(state).alias(_FIELDS)]


def _number_of_fields(state: TableState) -> Column:
    """Return the number of partition fields that the spec of an entry has."""
    shown = {field.field_id for field in state.types.partition_type.fields}
    counts = {spec_id: sum(field.field_id in shown for field in spec.fields) for spec_id, spec in state.specs.items()}
    return F.coalesce(*(F.when(F.col("partition_spec_id") == spec_id, count) for spec_id, count in counts.items()))


def _aggregates(state: TableState) -> list[Column]:
    partition = [F.first(PARTITION).alias(PARTITION)] if state.types.partition_type.fields else []
    counted = []
    for name, content in _CONTENTS.items():
        is_one = F.col("content_type") == int(content)
        counted.append(F.sum(F.when(is_one, F.col("record_count"))).alias(f"{name}_records"))
        counted.append(F.count_if(is_one).alias(f"{name}_files"))
    is_data = F.col("content_type") == int(ContentType.DATA)
    size = F.sum(F.when(is_data, F.col("file_size_in_bytes"))).alias(_SIZE)
    update = F.struct("committed_at", "sequence_number", "snapshot_id", "partition_spec_id")
    return [*partition, *counted, size, F.max(F.when(F.col("committed_at").isNotNull(), update)).alias(_UPDATE)]


def _result(state: TableState) -> list[Column]:
    spec_id = F.coalesce(F.col(f"{_UPDATE}.partition_spec_id"), F.lit(0)).alias("spec_id")
    tuple_and_spec = (
        [public_partition(state).alias("partition").column(), spec_id] if state.types.partition_type.fields else []
    )
    counts = {name: (_sum(f"{name}_records"), F.col(f"{name}_files").cast("int")) for name in _CONTENTS}
    return [
        *tuple_and_spec,
        counts["data"][0].alias("record_count"),
        counts["data"][1].alias("file_count"),
        _sum(_SIZE).alias("total_data_file_size_in_bytes"),
        *(
            count.alias(f"{name}_{unit}_count")
            for name in ("position_delete", "equality_delete")
            for unit, count in zip(("record", "file"), counts[name], strict=True)
        ),
        F.col(f"{_UPDATE}.committed_at").alias("last_updated_at"),
        F.col(f"{_UPDATE}.snapshot_id").alias("last_updated_snapshot_id"),
    ]


def _sum(name: str) -> Column:
    return F.coalesce(F.col(name), F.lit(0))


def refuse_unknown_transforms(state: TableState) -> None:
    """Raise UnsupportedError if a partition field has a transform that is not known."""
    for spec in state.specs.values():
        for field in spec.fields:
            if has_unknown_values(field.transform):
                where = f"{state.metadata.location}: partition field {field.name} of spec {spec.spec_id}"
                raise UnsupportedError(f"{where} has transform {field.transform}, which is not known")
