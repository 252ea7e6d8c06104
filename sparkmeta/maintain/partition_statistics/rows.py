"""The rows of a partition statistics file, as an aggregation of entries.

    full         SELECT spec, partition, sum(live files) FROM all entries of the snapshot
    incremental  the same FROM rows of an ancestor's file UNION ALL what snapshots added UNION ALL (-) what they removed

The values are those of Iceberg's Java library. A removed file counts as an update of its partition: in a full
computation as long as the snapshot's manifests name it, in an incremental one always.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.types import DoubleType, FloatType
from pyspark.sql import functions as F
from pyspark.sql.types import StructField
from pyspark.sql.types import StructType as SparkStruct

from sparkmeta.changes.entry_changes import ADDED, CHANGE, SNAPSHOT, EntryChanges, at_most_one
from sparkmeta.columns.types import spark_type
from sparkmeta.errors import NoSuchSnapshotError, ValidationError
from sparkmeta.inspect.partition_statistics import DV_COUNT, rows_of_file, statistics_schema
from sparkmeta.plan.filter import is_live
from sparkmeta.plan.rows import partition_value
from sparkmeta.session import local_frame
from sparkmeta.spec.entry import ContentType

if TYPE_CHECKING:
    from pyiceberg.types import NestedField
    from pyspark.sql import Column, DataFrame

    from sparkmeta.spec.metadata import Snapshot
    from sparkmeta.spec.snapshot import PartitionStatisticsFile
    from sparkmeta.state import TableState

_COLUMNS = (
    "version_info", "content_type", "file_format", "partition_spec_id", "record_count", "file_size_in_bytes",
)  # fmt: skip
_SIGN, _UPDATER = "_sign", "_updater"
_RANK = "_rank"
_UPDATE = "update"
# Keys of summaries of snapshots that removed files.
_REMOVED = ("deleted-data-files", "removed-delete-files")
_CONTENTS = (ContentType.DATA_MANIFEST, ContentType.DELETE_MANIFEST)
_COUNTS = (
    "data_record_count", "data_file_count", "total_data_file_size_in_bytes", "position_delete_record_count",
    "position_delete_file_count", "equality_delete_record_count", "equality_delete_file_count", DV_COUNT,
)  # fmt: skip


@dataclass(frozen=True)
class Base:
    """What an incremental computation starts from.

    Attributes:
        file: the statistics file of an ancestor.
        snapshots: the snapshots since that ancestor, oldest first.
    """

    file: PartitionStatisticsFile
    snapshots: tuple[Snapshot, ...]


def changes_since(state: TableState, snapshots: Iterable[Snapshot]) -> EntryChanges:
    """Return what snapshots added and removed. Reads their manifest lists, or roots."""
    changes = EntryChanges(state, state.projection(_COLUMNS))
    for snapshot in snapshots:
        changes.add(snapshot)
    return changes


def full_rows(state: TableState) -> DataFrame:
    """Return the statistics of the snapshot's entries; see `_shown` for the columns."""
    entries = state.entries(state.manifests, state.projection(_COLUMNS))
    updater = F.col("version_info.snapshot_id")
    sign = is_live().column().cast("int")
    if state.tree is None:
        return _shown(_aggregated([_counted(state, entries, sign, updater)], state), state)
    # A root has DELETED entries of its own files only; those of its leaves are masked.
    live = _counted(state, entries.where(is_live().text), sign, updater)
    removed = [_counted(state, frame, F.lit(0), F.col(SNAPSHOT)) for frame in _removed(state)]
    return _shown(_aggregated([live, *removed], state), state)


def _removed(state: TableState) -> list[DataFrame]:
    """Return the files that a tree's snapshot removed; none if its parent has expired and they are not known."""
    snapshot = state.snapshot
    assert snapshot is not None
    # Leaves that a compaction dropped need not be read.
    if snapshot.summary and not any(snapshot.summary.get(key) for key in _REMOVED):
        return []
    try:
        changes = changes_since(state, [snapshot])
    except (NoSuchSnapshotError, ValidationError):
        return []
    return [frame for content in _CONTENTS for frame in changes.removed(content)]


def incremental_rows(state: TableState, base: Base, changes: EntryChanges) -> DataFrame:
    """Return the statistics of an ancestor, with the changes of later snapshots.

    Args:
        changes: `changes_since` of the base's snapshots.
    """
    sign = F.when(F.col(CHANGE) == ADDED, F.lit(1)).otherwise(F.lit(-1))
    frames = [frame for content in _CONTENTS for frame in changes.of_content(content)]
    changed = [_counted(state, frame, sign, F.col(SNAPSHOT)) for frame in frames]
    stored = _stored(state, base.file.statistics_path)
    if not changed:
        return _shown(stored, state)
    both = stored.unionByName(_aggregated(changed, state))
    sums = [F.sum(name).alias(name) for name in _COUNTS]
    merged = both.groupBy(*key_names(state), "spec_id").agg(*sums, F.max(_UPDATE).alias(_UPDATE))
    return _shown(merged, state)


def key_names(state: TableState) -> list[str]:
    """Return the columns of the partition tuple in the rows, in the order of the fields."""
    return [_key(field) for field in state.types.partition_type.fields]


def _key(field: NestedField) -> str:
    return f"key_{field.field_id}"


def _grouped(field: NestedField, value: Column) -> Column:
    """Return a value to group by: -0.0 and 0.0 are different, unlike in Spark's grouping."""
    is_number = isinstance(field.field_type, FloatType | DoubleType)
    return (value.cast("string") if is_number else value).alias(_key(field))


def _counted(state: TableState, entries: DataFrame, sign: Column, updater: Column) -> DataFrame:
    """Return what each entry adds to the statistics of its partition.

    Args:
        sign: 1 to count an entry, -1 to subtract it, 0 for an update only.
        updater: the id of the snapshot that updated the partition.
    """
    keys = [_grouped(field, partition_value(field.field_id).column()) for field in state.types.partition_type.fields]
    columns = ("content_type", "file_format", "record_count", "file_size_in_bytes")
    spec = F.col("partition_spec_id").alias("spec_id")
    signed = entries.select(*keys, spec, *columns, sign.alias(_SIGN), updater.alias(_UPDATER))
    known = signed.join(F.broadcast(_ranked_snapshots(state)), F.col(_UPDATER) == F.col("snapshot_id"), "left")
    return known.select(*key_names(state), "spec_id", *_measures(), _RANK)


def _ranked_snapshots(state: TableState) -> DataFrame:
    """Return snapshot_id and `_RANK` of the snapshots, a number by which later ones are larger.

    Spark aggregates numbers by hash, but structs by sorting.
    """
    by_time = sorted(state.metadata.snapshots, key=lambda each: (each.timestamp_ms, each.sequence_number or 0))
    ids = pa.array([each.snapshot_id for each in by_time], pa.int64())
    ranks = {"snapshot_id": ids, _RANK: pa.array(range(len(by_time)), pa.int32())}
    ranks["at"] = pa.array([each.timestamp_ms for each in by_time], pa.int64())
    return local_frame(state.spark, pa.table(ranks))


def _measures() -> list[Column]:
    """Return the columns `_COUNTS` of an entry."""
    is_data = F.col("content_type") == int(ContentType.DATA)
    is_positions = F.col("content_type") == int(ContentType.POSITION_DELETES)
    is_equality = F.col("content_type") == int(ContentType.EQUALITY_DELETES)
    is_vector = is_positions & (F.upper("file_format") == "PUFFIN")
    records, files = F.col("record_count") * F.col(_SIGN), F.col(_SIGN).cast("long")
    values = (
        (is_data, records),
        (is_data, files),
        (is_data, F.col("file_size_in_bytes") * F.col(_SIGN)),
        (is_positions, records),
        (is_positions & ~is_vector, files),
        (is_equality, records),
        (is_equality, files),
        (is_vector, files),
    )
    zero = F.lit(0).cast("long")
    return [
        F.when(chosen, value).otherwise(zero).alias(name) for name, (chosen, value) in zip(_COUNTS, values, strict=True)
    ]


def _stored(state: TableState, location: str) -> DataFrame:
    """Return the rows of a statistics file like `_counted`."""
    rows = rows_of_file(state, location)
    # By place: names of partition fields may be equal but for their case.
    fields = state.types.partition_type.fields
    places = SparkStruct([StructField(_key(field), spark_type(field.field_type)) for field in fields])
    keys = []
    for field in fields:
        value = F.col("partition").cast(places).getField(_key(field))
        is_uuid = str(field.field_type) == "uuid"
        keys.append(_grouped(field, F.unhex(F.replace(value, F.lit("-"), F.lit(""))) if is_uuid else value))
    names = rows.columns
    counts = [F.coalesce(F.col(name), F.lit(0)) if name in names else F.lit(0) for name in _COUNTS]
    update = _update("last_updated_at", "last_updated_snapshot_id")
    return rows.select(
        *keys,
        "spec_id",
        *(count.cast("long").alias(name) for name, count in zip(_COUNTS, counts, strict=True)),
        F.when(F.col("last_updated_at").isNotNull(), update).alias(_UPDATE),
    )


def _aggregated(counted: Sequence[DataFrame], state: TableState) -> DataFrame:
    """Return the sums of entries by partition, with the last update, like `_stored`."""
    keys = [*key_names(state), "spec_id"]
    sums = [F.sum(name).alias(name) for name in _COUNTS]
    grouped = at_most_one(counted)[0].groupBy(*keys).agg(*sums, F.max(_RANK).alias(_RANK))
    updated = grouped.join(F.broadcast(_ranked_snapshots(state)), _RANK, "left")
    return updated.select(*keys, *_COUNTS, F.when(F.col("at").isNotNull(), _update("at", "snapshot_id")).alias(_UPDATE))


def _update(at: str, snapshot_id: str) -> Column:
    return F.struct(F.col(at).alias("at"), F.col(snapshot_id).alias("by"))


def _shown(sums: DataFrame, state: TableState) -> DataFrame:
    """Return the statistics: the columns `key_names`, then those of `statistics_schema` without the partition.

    Values of the partition are in bound form.
    """
    columns = []
    for field in statistics_schema(state).fields[1:]:
        value = _UPDATES[field.name]() if field.name in _UPDATES else F.col(field.name)
        kind = "int" if str(field.field_type) == "int" else "long"
        columns.append(value.cast(kind).alias(field.name))
    tuples = [
        F.col(_key(field)).cast(str(field.field_type)).alias(_key(field))
        if isinstance(field.field_type, FloatType | DoubleType)
        else F.col(_key(field))
        for field in state.types.partition_type.fields
    ]
    return sums.select(*tuples, *columns)


_UPDATES: dict[str, Callable[[], Column]] = {
    "last_updated_at": lambda: F.col(_UPDATE).getField("at"),
    "last_updated_snapshot_id": lambda: F.col(_UPDATE).getField("by"),
    "total_record_count": lambda: F.lit(None),
}
