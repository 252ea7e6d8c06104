"""The metadata table of a partition statistics file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.transforms import VoidTransform
from pyiceberg.types import IntegerType, LongType, NestedField
from pyspark.sql.types import StructField as SparkField
from pyspark.sql.types import StructType as SparkStructType

from sparkmeta.arrow_types import arrow_schema
from sparkmeta.entries.relation import frame_of
from sparkmeta.errors import ValidationError
from sparkmeta.expr.types import spark_type
from sparkmeta.inspect.metadata_rows import MetadataRows, few_files, read_files
from sparkmeta.inspect.position_deletes import row_field
from sparkmeta.inspect.statistics_tasks import StatisticsRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.snapshot.state import TableState
    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.spec.metadata_model import PartitionStatisticsFile


DV_COUNT = "dv_count"

# Columns that files of versions 1 and 2 may lack.
_DELETE_COUNTS = {
    "position_delete_record_count": 6,
    "position_delete_file_count": 7,
    "equality_delete_record_count": 8,
    "equality_delete_file_count": 9,
}


def has_partitions(state: TableState) -> bool:
    """Return whether a spec of the table, which may be an older one, has partition fields."""
    fields = (field for spec in state.specs.values() for field in spec.fields)
    return bool(state.types.partition_type.fields) and not all(
        isinstance(field.transform, VoidTransform) for field in fields
    )


def statistics_schema(state: TableState) -> Schema:
    """Return the schema of the table's partition statistics files (table spec, Partition Statistics File).

    Raises:
        ValidationError: no spec of the table has partition fields.
    """
    partition = state.types.partition_type
    if not has_partitions(state):
        raise ValidationError(f"{state.metadata.location}: the table has no partitions, and so no statistics of them")
    counts_deletes = state.metadata.format_version >= 3
    columns = [
        NestedField(1, "partition", partition, required=True),
        NestedField(2, "spec_id", IntegerType(), required=True),
        NestedField(3, "data_record_count", LongType(), required=True),
        NestedField(4, "data_file_count", IntegerType(), required=True),
        NestedField(5, "total_data_file_size_in_bytes", LongType(), required=True),
    ]
    for name, field_id in _DELETE_COUNTS.items():
        kind = LongType() if name.endswith("record_count") else IntegerType()
        columns.append(NestedField(field_id, name, kind, required=counts_deletes))
    columns += [
        NestedField(10, "total_record_count", LongType(), required=False),
        NestedField(11, "last_updated_at", LongType(), required=False),
        NestedField(12, "last_updated_snapshot_id", LongType(), required=False),
    ]
    if counts_deletes:
        columns.append(NestedField(13, DV_COUNT, IntegerType(), required=True, initial_default=0))
    return Schema(*columns)


def statistics_file(metadata: TableMetadata, snapshot_id: int) -> PartitionStatisticsFile | None:
    """Return the partition statistics file of a snapshot; None if it has none."""
    files = (file for file in metadata.partition_statistics if file.snapshot_id == snapshot_id)
    return next(files, None)


def partition_statistics(state: TableState) -> MetadataRows:
    """Return the rows of the snapshot's partition statistics file.

    Raises:
        ValidationError: the snapshot has no such file, or the table has no partitions.
    """
    snapshot = state.snapshot
    file = None if snapshot is None else statistics_file(state.metadata, snapshot.snapshot_id)
    if file is None:
        reason = "the table is empty" if snapshot is None else f"snapshot {snapshot.snapshot_id} has none"
        raise ValidationError(
            f"{state.metadata.location}: no partition statistics: {reason}; compute_partition_stats computes them"
        )
    row_type = statistics_type(state)
    is_small = few_files(state, 1, file.file_size_in_bytes)
    files, rows = _locations(file.statistics_path), _statistics_rows(state)
    return MetadataRows(state, read_files(state, files, rows, row_type, lambda _: is_small), row_type)


def rows_of_file(state: TableState, location: str) -> DataFrame:
    """Return the rows of a partition statistics file of the table, lazily, as `statistics_schema` in Spark's types."""
    files, rows = _locations(location), _statistics_rows(state)
    return frame_of(read_files(state, files, rows, statistics_type(state), lambda _: False), state)


def _locations(location: str) -> pa.Table:
    return pa.table({"location": pa.array([location], pa.string())})


def statistics_type(state: TableState) -> SparkStructType:
    """Return the row type of partition_statistics."""
    struct = statistics_schema(state).as_struct()
    return SparkStructType([SparkField(column.name, spark_type(column.field_type)) for column in struct.fields])


def _statistics_rows(state: TableState) -> StatisticsRows:
    return StatisticsRows(arrow_schema(statistics_type(state)), row_field(0, statistics_schema(state).as_struct()))
