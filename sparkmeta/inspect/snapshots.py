"""The metadata tables of table metadata, and of partition statistics files."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.transforms import VoidTransform
from pyiceberg.types import IntegerType, LongType, NestedField
from pyspark.sql.types import StructField as SparkField
from pyspark.sql.types import StructType as SparkStructType

from sparkmeta.arrow_types import arrow_schema
from sparkmeta.columns.types import spark_type
from sparkmeta.errors import NoSuchSnapshotError, ValidationError
from sparkmeta.inspect.position_deletes import row_field
from sparkmeta.inspect.tasks import StatisticsRows
from sparkmeta.session import local_frame, map_arrow
from sparkmeta.spec.metadata import ancestors_of
from sparkmeta.storage.reading import with_content

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame

    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.spec.metadata_model import PartitionStatisticsFile
    from sparkmeta.state import TableState


# -- Tables of table metadata -----------------------------------------------------------------------------------------


TIMESTAMPTZ = pa.timestamp("us", "UTC")


def _required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


_SNAPSHOTS = pa.schema(
    [
        _required("committed_at", TIMESTAMPTZ),
        _required("snapshot_id", pa.int64()),
        pa.field("parent_id", pa.int64()),
        pa.field("operation", pa.string()),
        pa.field("manifest_list", pa.string()),
        pa.field("summary", pa.map_(pa.string(), _required("value", pa.string()))),
    ]
)
_HISTORY = pa.schema(
    [
        _required("made_current_at", TIMESTAMPTZ),
        _required("snapshot_id", pa.int64()),
        pa.field("parent_id", pa.int64()),
        _required("is_current_ancestor", pa.bool_()),
    ]
)
_REFS = pa.schema(
    [
        _required("name", pa.string()),
        _required("type", pa.string()),
        _required("snapshot_id", pa.int64()),
        pa.field("max_reference_age_in_ms", pa.int64()),
        pa.field("min_snapshots_to_keep", pa.int32()),
        pa.field("max_snapshot_age_in_ms", pa.int64()),
    ]
)
_METADATA_LOG_ENTRIES = pa.schema(
    [
        _required("timestamp", TIMESTAMPTZ),
        _required("file", pa.string()),
        pa.field("latest_snapshot_id", pa.int64()),
        pa.field("latest_schema_id", pa.int32()),
        pa.field("latest_sequence_number", pa.int64()),
    ]
)


def snapshots(state: TableState) -> DataFrame:
    """Return a row for each snapshot that has not expired."""
    rows = (
        {
            "committed_at": _micros(snapshot.timestamp_ms),
            "snapshot_id": snapshot.snapshot_id,
            "parent_id": snapshot.parent_snapshot_id,
            "operation": snapshot.operation,
            "manifest_list": snapshot.manifests_location,
            "summary": list(snapshot.summary.additional_properties.items()) if snapshot.summary else None,
        }
        for snapshot in state.metadata.snapshots
    )
    return _frame(state, rows, _SNAPSHOTS)


def history(state: TableState) -> DataFrame:
    """Return a row for each change of the current snapshot. parent_id is null for expired snapshots.

    Raises:
        CorruptFileError: a snapshot is its own ancestor.
    """
    ancestors = {snapshot.snapshot_id for snapshot in ancestors_of(state.metadata, state.metadata.current_snapshot_id)}
    rows = []
    for entry in state.metadata.snapshot_log:
        snapshot = state.metadata.snapshot_by_id(entry.snapshot_id)
        rows.append(
            {
                "made_current_at": _micros(entry.timestamp_ms),
                "snapshot_id": entry.snapshot_id,
                "parent_id": snapshot.parent_snapshot_id if snapshot else None,
                "is_current_ancestor": entry.snapshot_id in ancestors,
            }
        )
    return _frame(state, rows, _HISTORY)


def refs(state: TableState) -> DataFrame:
    """Return a row for each branch or tag. Its retention is null if the table's retention applies."""
    rows = (
        {
            "name": name,
            "type": ref.snapshot_ref_type.upper(),
            "snapshot_id": ref.snapshot_id,
            "max_reference_age_in_ms": ref.max_ref_age_ms,
            "min_snapshots_to_keep": ref.min_snapshots_to_keep,
            "max_snapshot_age_in_ms": ref.max_snapshot_age_ms,
        }
        for name, ref in state.metadata.refs.items()
    )
    return _frame(state, rows, _REFS)


def metadata_log_entries(state: TableState, metadata_location: str) -> DataFrame:
    """Return a row for each metadata file, the current one last, with the snapshot that was current at its time."""
    logged = [(entry.timestamp_ms, entry.metadata_file) for entry in state.metadata.metadata_log]
    rows = []
    for timestamp_ms, file in [*logged, (state.metadata.last_updated_ms, metadata_location)]:
        snapshot_id = _snapshot_id_at(state, timestamp_ms)
        snapshot = None if snapshot_id is None else state.metadata.snapshot_by_id(snapshot_id)
        rows.append(
            {
                "timestamp": _micros(timestamp_ms),
                "file": file,
                "latest_snapshot_id": snapshot_id,
                "latest_schema_id": snapshot.schema_id if snapshot else None,
                "latest_sequence_number": (snapshot.sequence_number or 0) if snapshot else None,
            }
        )
    return _frame(state, rows, _METADATA_LOG_ENTRIES)


def _snapshot_id_at(state: TableState, timestamp_ms: int) -> int | None:
    try:
        return state.snapshot_id_at(timestamp_ms)
    except NoSuchSnapshotError:
        return None


def _micros(milliseconds: int) -> int:
    return milliseconds * 1000


def _frame(state: TableState, rows: Iterable[dict[str, Any]], schema: pa.Schema) -> DataFrame:
    return local_frame(state.spark, pa.Table.from_pylist(list(rows), schema=schema))


# -- `partition_statistics` -------------------------------------------------------------------------------------------


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


def partition_statistics(state: TableState) -> DataFrame:
    """Return the rows of the snapshot's partition statistics file, lazily.

    Raises:
        ValidationError: the snapshot has no such file, or the table has no partitions.
    """
    snapshot = state.snapshot
    file = None if snapshot is None else statistics_file(state.metadata, snapshot.snapshot_id)
    if file is None:
        what = "the table is empty" if snapshot is None else f"snapshot {snapshot.snapshot_id} has none"
        call = "table.maintenance.compute_partition_stats().commit() computes them"
        raise ValidationError(f"{state.metadata.location}: no partition statistics: {what}; {call}")
    return rows_of_file(state, file.statistics_path)


def rows_of_file(state: TableState, location: str) -> DataFrame:
    """Return the rows of a partition statistics file of the table, lazily, as `statistics_schema` in Spark's types."""
    struct = statistics_schema(state).as_struct()
    row_type = SparkStructType([SparkField(each.name, spark_type(each.field_type)) for each in struct.fields])
    rows = StatisticsRows(arrow_schema(row_type), row_field(0, struct))
    files = pa.table({"location": pa.array([location], pa.string())})
    if state.access.tasks is not None:
        return map_arrow(local_frame(state.spark, files), partial(rows.read, state.access.tasks), row_type)
    return map_arrow(with_content(state.spark, files), rows.read_contents, row_type)
