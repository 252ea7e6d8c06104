"""The engine on one page: which data files a scan must read, each with the deletes that apply to it.

    roots -> live, matching manifests -> entries -> live, matching entries -> their deletes -> rows of plan_files

The driver holds the manifests of one snapshot; everything about entries is a lazy DataFrame.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, IntegerType, LongType, StringType, StructType

from sparkmeta.plan.deletes import DELETES, DELETES_TYPE, attach_deletes, delete_entries
from sparkmeta.plan.prune import (
    ScanFilter,
    live_manifests,
    matching_entries,
    matching_manifests,
    residual_json,
    wanted_entries,
)
from sparkmeta.plan.rows import manifest_path, public_partition, public_partition_type
from sparkmeta.spec.entry import ContentType

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column, DataFrame

    from sparkmeta.manifests.projection import EntryProjection
    from sparkmeta.state import TableState

_DATA_COLUMNS = (
    "location",
    "file_format",
    "version_info",
    "partition_spec_id",
    "sort_order_id",
    "record_count",
    "file_size_in_bytes",
    "split_offsets",
    "first_row_id",
)

_PLAN_TYPES: dict[str, DataType] = {
    "file_path": StringType(),
    "file_format": StringType(),
    "spec_id": IntegerType(),
    "record_count": LongType(),
    "file_size_in_bytes": LongType(),
    "split_offsets": ArrayType(LongType()),
    "sort_order_id": IntegerType(),
    "first_row_id": LongType(),
    "data_sequence_number": LongType(),
    "manifest_path": StringType(),
    "manifest_pos": LongType(),
    DELETES: DELETES_TYPE,
    "residual": StringType(),
}


@dataclass(frozen=True)
class PlannedManifests:
    """The manifests that a scan opens, after pruning on the driver."""

    data: pa.Table
    deletes: pa.Table


def plan_manifests(scan_filter: ScanFilter) -> PlannedManifests:
    """The data and delete manifests that may hold files for the filter."""

    def kept(content: ContentType, *, by_stats: bool = True) -> pa.Table:
        return matching_manifests(live_manifests(scan_filter.state.manifests(content)), scan_filter, by_stats=by_stats)

    by_stats = not scan_filter.ignore_residuals
    return PlannedManifests(kept(ContentType.DATA_MANIFEST), kept(ContentType.DELETE_MANIFEST, by_stats=by_stats))


def plan_files(scan_filter: ScanFilter, manifests: PlannedManifests, *extra: Column) -> DataFrame:
    """One row a data file that may hold matching rows; lazy, computed by Spark.

    Columns: file_path, file_format, spec_id, partition (where the table has any), record_count, file_size_in_bytes,
    split_offsets, sort_order_id, first_row_id, data_sequence_number, manifest_path, manifest_pos, deletes (the order of
    Iceberg's DeleteFileIndex: global equality, partition equality, then DV or position deletes; ascending sequence
    number in each), residual (Iceberg's expression JSON).

    extra: further columns of the data entry to show after these.

    Raises, when it runs:
        ValidationError: two DVs for one file, a DV older than its file, deletes of another partition than their file.
    """
    state = scan_filter.state
    deletes = delete_entries(scan_filter, manifests.deletes)
    data = data_entries(scan_filter, manifests.data, deletes.equality_ids)
    planned = attach_deletes(data, deletes, state)
    return planned.select(*_result(scan_filter, manifests), *extra)


def plan_schema(state: TableState) -> StructType:
    """The row type of `plan_files`."""
    schema = StructType()
    for name, kind in _PLAN_TYPES.items():
        schema.add(name, kind)
        if name == "spec_id" and state.partition_type.fields:
            schema.add("partition", public_partition_type(state))
    return schema


def data_entries(scan_filter: ScanFilter, manifests: pa.Table, stats_ids: Iterable[int] = ()) -> DataFrame:
    """The live data entries that may match, with stats of the filter's columns and of `stats_ids`."""
    projection = replace(data_projection(scan_filter, stats_ids), wanted=wanted_entries(scan_filter))
    return matching_entries(scan_filter.state.entries(manifests, projection), scan_filter)


def data_projection(scan_filter: ScanFilter, stats_ids: Iterable[int] = ()) -> EntryProjection:
    """What planning reads of data entries."""
    return scan_filter.state.projection(_DATA_COLUMNS, {*scan_filter.stats_ids, *stats_ids})


def _result(scan_filter: ScanFilter, manifests: PlannedManifests) -> list[Column]:
    state = scan_filter.state
    partition = [public_partition(state).alias("partition")] if state.partition_type.fields else []
    return [
        F.col("location").alias("file_path"),
        F.col("file_format"),
        F.col("partition_spec_id").alias("spec_id"),
        *partition,
        F.col("record_count"),
        F.col("file_size_in_bytes"),
        F.col("split_offsets"),
        F.col("sort_order_id"),
        F.col("first_row_id"),
        F.col("version_info.sequence_number").alias("data_sequence_number"),
        manifest_path(manifests.data, F.col("manifest")).alias("manifest_path"),
        F.col("ordinal").alias("manifest_pos"),
        F.col(DELETES),
        residual_json(scan_filter).alias("residual"),
    ]
