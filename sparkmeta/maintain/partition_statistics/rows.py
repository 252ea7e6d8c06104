"""The rows of a partition statistics file, as an aggregation of entries.

    full         SELECT spec, partition, sum(live files) FROM all entries of the snapshot
    incremental  the same FROM rows of an ancestor's file UNION ALL what snapshots added UNION ALL (-) what they removed

Tasks sum entries in Arrow (`partials.py`), Spark sums what they yield. The values are those of Iceberg's Java library.
A removed file counts as an update of its partition: in a full computation as long as the snapshot's manifests name it,
in an incremental one always.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
from sparkmeta.inspect.partition_statistics import rows_of_file, statistics_schema
from sparkmeta.maintain.partition_statistics.partials import (
    COUNTS,
    ENTRY_COLUMNS,
    RANK,
    SIGN,
    SPEC,
    UPDATER,
    PartialSums,
    key_name,
)
from sparkmeta.manifests.projection import PARTITION
from sparkmeta.session import local_frame, map_arrow
from sparkmeta.spec.entry import ContentType

if TYPE_CHECKING:
    from pyiceberg.types import NestedField
    from pyspark.sql import Column, DataFrame

    from sparkmeta.spec.metadata import Snapshot
    from sparkmeta.spec.snapshot import PartitionStatisticsFile
    from sparkmeta.state import TableState

_COLUMNS = ("version_info", *ENTRY_COLUMNS)
_UPDATE = "update"
# Keys of summaries of snapshots that removed files.
_REMOVED = ("deleted-data-files", "removed-delete-files")
_CONTENTS = (ContentType.DATA_MANIFEST, ContentType.DELETE_MANIFEST)


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
    sums = _partial_sums(state)
    # A root has DELETED entries of its own files only; those of its leaves are masked.
    function = sums.of_all if state.tree is None else sums.of_live
    partials = [state.reader.map_entries(state.manifests, state.projection(_COLUMNS), function, sums.schema)]
    if state.tree is not None:
        partials += [_changed(sums, frame, F.lit(0)) for frame in _removed(state)]
    return _shown(_aggregated(partials, state), state)


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
    sums, sign = _partial_sums(state), F.when(F.col(CHANGE) == ADDED, F.lit(1)).otherwise(F.lit(-1))
    frames = [frame for content in _CONTENTS for frame in changes.of_content(content)]
    changed = [_changed(sums, frame, sign) for frame in frames]
    stored = _stored(state, base.file.statistics_path)
    if not changed:
        return _shown(stored, state)
    both = stored.unionByName(_aggregated(changed, state))
    totals = [F.sum(name).alias(name) for name in COUNTS]
    merged = both.groupBy(*key_names(state), SPEC).agg(*totals, F.max(_UPDATE).alias(_UPDATE))
    return _shown(merged, state)


def key_names(state: TableState) -> list[str]:
    """Return the columns of the partition tuple in the rows, in the order of the fields."""
    return [_key(field) for field in state.types.partition_type.fields]


def _key(field: NestedField) -> str:
    return key_name(field.field_id)


def _grouped(field: NestedField, value: Column) -> Column:
    """Return a value to group by: -0.0 and 0.0 are different, unlike in Spark's grouping."""
    is_number = isinstance(field.field_type, FloatType | DoubleType)
    return (value.cast("string") if is_number else value).alias(_key(field))


def _partial_sums(state: TableState) -> PartialSums:
    return PartialSums(state.projection(()).partition, tuple(snapshot_id for snapshot_id, _ in _by_age(state)))


def _by_age(state: TableState) -> list[tuple[int, int]]:
    """Return the ids and times of the snapshots, the oldest first."""
    by_time = sorted(state.metadata.snapshots, key=lambda each: (each.timestamp_ms, each.sequence_number or 0))
    return [(each.snapshot_id, each.timestamp_ms) for each in by_time]


def _changed(sums: PartialSums, entries: DataFrame, sign: Column) -> DataFrame:
    """Return the sums of what snapshots changed, by `SNAPSHOT`.

    Args:
        sign: 1 to count an entry, -1 to subtract it, 0 for an update only.
    """
    columns = (*ENTRY_COLUMNS, PARTITION, sign.alias(SIGN), F.col(SNAPSHOT).alias(UPDATER))
    return map_arrow(entries.select(*columns), sums.of_changes, sums.schema)


def _stored(state: TableState, location: str) -> DataFrame:
    """Return the rows of a statistics file, by `_grouped` keys, with `_UPDATE`."""
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
    counts = [F.coalesce(F.col(name), F.lit(0)) if name in names else F.lit(0) for name in COUNTS]
    update = _update("last_updated_at", "last_updated_snapshot_id")
    return rows.select(
        *keys,
        SPEC,
        *(count.cast("long").alias(name) for name, count in zip(COUNTS, counts, strict=True)),
        F.when(F.col("last_updated_at").isNotNull(), update).alias(_UPDATE),
    )


def _aggregated(partials: list[DataFrame], state: TableState) -> DataFrame:
    """Return the sums of partial sums by partition, with the last update, like `_stored`."""
    fields = state.types.partition_type.fields
    keys = [_grouped(field, F.col(_key(field))) for field in fields]
    sums = at_most_one(partials)[0].select(*keys, SPEC, *COUNTS, RANK).groupBy(*key_names(state), SPEC)
    # Spark aggregates numbers by hash, but structs by sorting.
    grouped = sums.agg(*(F.sum(name).alias(name) for name in COUNTS), F.max(RANK).alias(RANK))
    updated = grouped.join(F.broadcast(_ranked_snapshots(state)), RANK, "left")
    update = F.when(F.col("at").isNotNull(), _update("at", "by")).alias(_UPDATE)
    return updated.select(*key_names(state), SPEC, *COUNTS, update)


def _ranked_snapshots(state: TableState) -> DataFrame:
    """Return `RANK` of the snapshots, with their times `at` and ids `by`."""
    by_age = _by_age(state)
    columns = {
        RANK: pa.array(range(len(by_age)), pa.int32()),
        "at": pa.array([time for _, time in by_age], pa.int64()),
        "by": pa.array([snapshot_id for snapshot_id, _ in by_age], pa.int64()),
    }
    return local_frame(state.spark, pa.table(columns))


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
