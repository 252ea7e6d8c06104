"""The engine on one page: which data files a scan must read, each with the deletes that apply to it.

    manifests -> live, matching manifests -> entries -> live, matching entries -> their deletes -> rows of plan_files

The driver holds the manifests of one snapshot; everything about entries is a DataFrame, lazy but for few of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import ArrayType, DataType, IntegerType, LongType, StringType, StructType

from sparkmeta.columns import sql
from sparkmeta.columns.sql import Aliased
from sparkmeta.plan.colocate import colocated_entries, with_vector
from sparkmeta.plan.deletes import DELETES, DELETES_TYPE, attach_deletes, delete_entries
from sparkmeta.plan.prune import (
    ScanFilter,
    data_projection,
    live_files,
    live_manifests,
    matching_entries,
    matching_manifests,
    residual_json,
    wanted_entries,
)
from sparkmeta.plan.rows import SharedTexts, manifest_path, public_partition, public_partition_type
from sparkmeta.plan.strategy import Colocation, colocation, consumed_deletes
from sparkmeta.spec.entry import ContentType

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame

    from sparkmeta.state import TableState

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
    """The manifests that a scan opens, after pruning on the driver.

    colocated: those of them that tasks read together.
    """

    data: pa.Table
    deletes: pa.Table
    colocated: Colocation


def plan_manifests(scan_filter: ScanFilter) -> PlannedManifests:
    """The data and delete manifests that may hold files for the filter."""
    state = scan_filter.state
    kept = matching_manifests(live_manifests(state.manifests), scan_filter)
    kinds = kept.column("content_type")
    data, deletes = (
        kept.filter(pc.equal(kinds, int(one))) for one in (ContentType.DATA_MANIFEST, ContentType.DELETE_MANIFEST)
    )
    deletes = consumed_deletes(scan_filter, data, deletes)
    return PlannedManifests(data, deletes, colocation(scan_filter, data, deletes))


def plan_files(scan_filter: ScanFilter, manifests: PlannedManifests, *extra: Aliased) -> DataFrame:
    """One row a data file that may hold matching rows; computed by Spark, lazily but for what few manifests hold.

    Columns: file_path, file_format, spec_id, partition (where the table has any), record_count, file_size_in_bytes,
    split_offsets, sort_order_id, first_row_id, data_sequence_number, manifest_path, manifest_pos, deletes (the order of
    Iceberg's DeleteFileIndex: global equality, partition equality, then DV or position deletes; ascending sequence
    number in each), residual (Iceberg's expression JSON).

    extra: further columns of the data entry to show after these.

    Raises, when it runs (at once, where few manifests are read on the driver):
        ValidationError: two DVs for one file, a DV older than its file, deletes of another partition than their file
            (but for DVs in manifests that have none of the file's partition: they may not be looked at).
    """
    state, groups = scan_filter.state, manifests.colocated
    deletes = delete_entries(scan_filter, groups.other_deletes, groups.only_vectors)
    if not groups.used:
        data = data_entries(scan_filter, manifests.data, deletes.equality_ids)
        planned = attach_deletes(data, deletes, state)
    else:
        data = _beside_vectors(scan_filter, groups, deletes.equality_ids)
        planned = attach_deletes(data, deletes, state)
        merged = with_vector(sql.col(DELETES), groups.deletes)
        planned = planned.selectExpr(*map(sql.quoted, data.columns), merged.alias(DELETES).selected)
    texts = SharedTexts()
    result = sql.texts([*_result(scan_filter, manifests, texts), *extra])
    return texts.beside(state.spark, planned).selectExpr(*result)


def count_files(scan_filter: ScanFilter, manifests: PlannedManifests) -> int:
    """How many rows `plan_files` has, without looking for deletes.

    Without a filter by the counts of manifests, less what deletion vectors mask: these mask live entries only
    (semantics C19). A job counts entries where there is a filter, and those of v1 manifests that have no counts.
    """
    data = manifests.data
    counts = live_files(data)
    told = counts.is_valid() if scan_filter.keeps_all else pa.repeat(pa.scalar(False), len(data))
    count: int = pc.sum(counts.filter(told)).as_py() or 0
    untold = data.filter(pc.invert(told))
    return count + data_entries(scan_filter, untold).count() if len(untold) else count


def plan_schema(state: TableState) -> StructType:
    """The row type of `plan_files`."""
    schema = StructType()
    for name, kind in _PLAN_TYPES.items():
        schema.add(name, kind)
        if name == "spec_id" and state.partition_type.fields:
            schema.add("partition", public_partition_type(state))
    return schema


def data_entries(scan_filter: ScanFilter, manifests: pa.Table, stats_ids: Iterable[int] = ()) -> DataFrame:
    """The live data entries that may match, with stats of the undecided columns and of `stats_ids`."""
    projection = replace(data_projection(scan_filter, stats_ids), wanted=wanted_entries(scan_filter))
    return matching_entries(scan_filter.state.entries(manifests, projection), scan_filter)


def _beside_vectors(scan_filter: ScanFilter, groups: Colocation, stats_ids: Iterable[int]) -> DataFrame:
    """As `data_entries`, with the columns that `with_vector` takes: null where no delete manifest stands beside."""
    projection = replace(data_projection(scan_filter, stats_ids), wanted=wanted_entries(scan_filter))
    joined = colocated_entries(scan_filter, groups, projection)
    beside = matching_entries(joined, scan_filter)
    if not len(groups.other_data):
        return beside
    alone = data_entries(scan_filter, groups.other_data, stats_ids)
    return beside.unionByName(alone, allowMissingColumns=True)


def _result(scan_filter: ScanFilter, manifests: PlannedManifests, texts: SharedTexts) -> list[Aliased]:
    state = scan_filter.state
    values = {
        "file_path": sql.col("location"),
        "file_format": sql.col("file_format"),
        "spec_id": sql.col("partition_spec_id"),
        **({"partition": public_partition(state)} if state.partition_type.fields else {}),
        "record_count": sql.col("record_count"),
        "file_size_in_bytes": sql.col("file_size_in_bytes"),
        "split_offsets": sql.col("split_offsets"),
        "sort_order_id": sql.col("sort_order_id"),
        "first_row_id": sql.col("first_row_id"),
        "data_sequence_number": sql.col("version_info.sequence_number"),
        "manifest_path": manifest_path(manifests.data, sql.col("manifest")),
        "manifest_pos": sql.col("ordinal"),
        DELETES: sql.col(DELETES),
        "residual": residual_json(scan_filter, texts.literal),
    }
    return [value.alias(name) for name, value in values.items()]
