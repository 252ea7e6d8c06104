"""Find the delete entries that apply to no live data file, by the rules of scan planning (semantics 6.1 to 6.6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from sparkmeta.columns import sql
from sparkmeta.plan.deletes.kinds import DV_COLUMNS
from sparkmeta.plan.deletes.views import SEQUENCE, data_path, is_dv, is_global, is_global_delete, partition_key
from sparkmeta.plan.filter import is_live
from sparkmeta.plan.prune import live_manifests
from sparkmeta.plan.rows import manifest_path, public_partition
from sparkmeta.spec.entry import DELETE_FILE_PATH_ID, ContentType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.columns.sql import Sql
    from sparkmeta.state import TableState

ENTRY_COLUMNS = (*DV_COLUMNS, "equality_ids")
"""The columns of delete entries that `public_rows` shows."""

# What a delete entry is about, and the least sequence number of the live data files in each scope.
_PATH, _PARTITION = "deleted_path", "deleted_partition"
_OF_FILE, _OF_PARTITION, _OF_TABLE = "oldest_of_file", "oldest_of_partition", "oldest_of_table"
_DATA_PATH, _DATA_PARTITION = "data_path", "data_partition"


def dangling_deletes(state: TableState) -> DataFrame:
    """Return the live delete entries that apply to no live data file of the snapshot, lazily.

    Statistics are not considered, and neither are position deletes that a deletion vector of their file supersedes.
    Whatever contradicts the rules of planning, such as a deletion vector that is older than its data file, stays.
    """
    projection = state.projection(ENTRY_COLUMNS, {DELETE_FILE_PATH_ID})
    entries = state.entries(live_manifests(state.delete_manifests), projection).where(is_live().text)
    scopes = (data_path().alias(_PATH).selected, partition_key(state).alias(_PARTITION).selected)
    data = _data(state)
    by_partition = data.groupBy(_DATA_PARTITION).agg(F.min(_OF_FILE).alias(_OF_PARTITION))
    by_file = data.groupBy(_DATA_PATH).agg(F.min(_OF_FILE).alias(_OF_FILE))
    compared = entries.selectExpr("*", *scopes)
    compared = compared.join(by_file, F.expr(f"{_PATH} = {_DATA_PATH}"), "left")
    compared = compared.join(by_partition, F.expr(f"{_PARTITION} <=> {_DATA_PARTITION}"), "left")
    if any(map(is_global, state.specs.values())):
        oldest_of_table = by_partition.agg(F.min(_OF_PARTITION).alias(_OF_TABLE))
        compared = compared.crossJoin(F.broadcast(oldest_of_table))
    else:
        compared = compared.withColumn(_OF_TABLE, F.lit(None).cast("long"))
    return compared.where((~_applies(state)).text).select(*entries.columns)


def _data(state: TableState) -> DataFrame:
    """Return the path, partition and sequence number of each live data file; unknown numbers are 0."""
    projection = state.projection(("location", "partition_spec_id", "version_info"))
    entries = state.entries(live_manifests(state.data_manifests), projection).where(is_live().text)
    return entries.selectExpr(
        sql.col("location").alias(_DATA_PATH).selected,
        partition_key(state).alias(_DATA_PARTITION).selected,
        sql.coalesce(sql.col(SEQUENCE), 0).alias(_OF_FILE).selected,
    )


def _applies(state: TableState) -> Sql:
    """Return SQL for whether a delete entry, joined with the least sequence numbers, may apply to a live data file."""
    by_partition = sql.when(is_global_delete(state), sql.col(_OF_TABLE)).otherwise(sql.col(_OF_PARTITION))
    oldest = sql.when(sql.col(_PATH).isNotNull(), sql.col(_OF_FILE)).otherwise(by_partition)
    is_equality = sql.col("content_type") == int(ContentType.EQUALITY_DELETES)
    sequence = sql.col(SEQUENCE)
    newer = sql.when(is_equality, oldest < sequence).otherwise(is_dv() | (oldest <= sequence))
    return oldest.isNotNull() & sql.coalesce(newer, True)


def public_rows(entries: DataFrame, state: TableState) -> DataFrame:
    """Return delete entries of `ENTRY_COLUMNS` as rows of `inspect.delete_files`, with the places of the entries."""
    place = sql.col("deletion_vector")
    columns = {
        "content": sql.col("content_type"),
        "file_path": sql.col("location"),
        "file_format": sql.col("file_format"),
        "spec_id": sql.col("partition_spec_id"),
        **({"partition": public_partition(state)} if state.types.partition_type.fields else {}),
        "record_count": sql.col("record_count"),
        "file_size_in_bytes": sql.col("file_size_in_bytes"),
        "equality_ids": sql.col("equality_ids"),
        "referenced_data_file": sql.col("referenced_file"),
        "content_offset": place["offset"],
        "content_size_in_bytes": place["size_in_bytes"],
        "data_sequence_number": sql.col(SEQUENCE),
        "manifest_path": manifest_path(state.delete_manifests, sql.col("manifest")),
        "manifest_pos": sql.col("ordinal"),
    }
    return entries.selectExpr(*sql.texts(value.alias(name) for name, value in columns.items()))
