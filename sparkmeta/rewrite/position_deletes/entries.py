"""New delete files as rows for the commit to a tree, and as entries of Avro manifests. Spark jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from sparkmeta.arrow_types import spark_schema
from sparkmeta.avro.manifest_list import MANIFEST_FILE_SCHEMA
from sparkmeta.columns import sql
from sparkmeta.edit.entry_manifests import EntryManifests
from sparkmeta.edit.manifest_format import manifest_format
from sparkmeta.edit.tally import KindCount, Tally, file_kind
from sparkmeta.entries.projection import CONTENT_STATS, FILE_COLUMNS, MANIFEST, ORDINAL, PARTITION, stats_struct
from sparkmeta.errors import translated_errors
from sparkmeta.plan.filter import is_live
from sparkmeta.plan.prune import live_manifests
from sparkmeta.plan.rows import full_partition, manifest_path
from sparkmeta.rewrite.manifests.groups import ManifestRewriteOptions, target_bytes
from sparkmeta.session import materialize
from sparkmeta.spec.entry import CONTENT_ENTRY, DELETE_FILE_PATH_ID, DELETE_FILE_POS_ID, ContentType, Status

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from sparkmeta.state import TableState

_SPEC, _DATA_PATH = "partition_spec_id", "location"
_STATS_COLUMNS = 2


def public_files(written: DataFrame, state: TableState) -> DataFrame:
    """Return new deletes, rows of `WRITTEN_SCHEMA`, with the partitions of their data files, as commits take them."""
    columns = {
        "content": sql.lit(int(ContentType.POSITION_DELETES)),
        "spec_id": sql.col(_SPEC),
        **({PARTITION: full_partition(state)} if state.types.partition_fields else {}),
        "manifest_path": manifest_path(state.data_manifests, sql.col(MANIFEST)),
        "data_path": sql.col(_DATA_PATH),
    }
    named = _data(state).selectExpr(*sql.texts(value.alias(name) for name, value in columns.items()))
    return written.join(named, "data_path").drop("data_path")


def write_delete_manifests(
    written: DataFrame, state: TableState, snapshot_id: int, name: str
) -> tuple[pa.Table, Tally]:
    """Write manifests of new deletes, and return their rows of `MANIFEST_FILE_SCHEMA` and counts. Runs jobs.

    The entries are ADDED in the snapshot, and have explicit sequence numbers.

    Args:
        written: rows of `WRITTEN_SCHEMA`.
        snapshot_id: the snapshot that adds the deletes.
        name: the beginning of the names of manifests.
    """
    size = F.coalesce("deletion_vector.size_in_bytes", "file_size_in_bytes")
    sums = [F.count("*").alias("files"), F.sum("record_count").alias("records"), F.sum(size).alias("size")]
    target = target_bytes(state.metadata, ManifestRewriteOptions())
    manifests, tally = [MANIFEST_FILE_SCHEMA.empty_table()], Tally(partitions=None)
    with translated_errors():
        entries = materialize(_entries(written, state, snapshot_id))
        for row in entries.groupBy(_SPEC, "file_format").agg(*sums).toArrow().to_pylist():
            spec_id, kind = row.pop(_SPEC), file_kind(int(ContentType.POSITION_DELETES), row.pop("file_format"))
            tally = tally.plus(Tally({kind: KindCount(**row)}, None))
            of_spec = entries.where(F.col(_SPEC) == spec_id)
            form = manifest_format(state, ContentType.DELETE_MANIFEST, spec_id, name, target)
            writer = EntryManifests(state, form, snapshot_id, row["files"], _STATS_COLUMNS)
            manifests.append(writer.write(of_spec, of_spec))
    return pa.concat_tables(manifests), tally


def _data(state: TableState) -> DataFrame:
    """Return the live data entries with their partitions."""
    projection = state.projection(("version_info", _DATA_PATH, _SPEC))
    return state.entries(live_manifests(state.data_manifests), projection).where(is_live().text)


def _entries(written: DataFrame, state: TableState, snapshot_id: int) -> DataFrame:
    """Return new deletes as content entries."""
    partition = [PARTITION] if state.types.partition_fields else []
    data = _data(state).select(F.col(_DATA_PATH).alias("data_path"), _SPEC, *partition)
    version = F.struct(
        F.lit(int(Status.ADDED)).alias("status"),
        F.lit(snapshot_id).cast("long").alias("snapshot_id"),
        F.col("sequence_number"),
        F.lit(None).cast("long").alias("file_sequence_number"),
    )
    vector = F.struct(
        F.col("content_offset").alias("offset"),
        F.col("content_size_in_bytes").alias("size_in_bytes"),
        F.lit(None).cast("binary").alias("inline_content"),
    )
    known: dict[str, Column] = {
        "content_type": F.lit(int(ContentType.POSITION_DELETES)),
        "location": F.col("file_path"),
        "file_format": F.col("file_format"),
        "version_info": version,
        "deletion_vector": vector,
        _SPEC: F.col(_SPEC),
        "record_count": F.col("record_count"),
        "file_size_in_bytes": F.col("file_size_in_bytes"),
        "referenced_file": F.col("referenced_data_file"),
    }
    types = spark_schema(pa.schema([field.arrow for field in CONTENT_ENTRY]))
    columns = [known.get(name, F.lit(None)).cast(types[name].dataType).alias(name) for name in FILE_COLUMNS]
    stats = F.struct(
        _stats(DELETE_FILE_PATH_ID, pa.string(), "first_path", "last_path"),
        _stats(DELETE_FILE_POS_ID, pa.int64(), "first_position", "last_position"),
    )
    places = [F.lit(0).alias(MANIFEST), F.lit(0).cast("long").alias(ORDINAL)]
    return written.join(data, "data_path").select(*columns, *partition, stats.alias(CONTENT_STATS), *places)


def _stats(field_id: int, bound: pa.DataType, lower: str, upper: str) -> Column:
    """Return the stats of a column of position delete files; of deletion vectors there are none."""
    known = {"lower_bound": F.col(lower), "upper_bound": F.col(upper)}
    counts = {"value_count": F.col("record_count"), "null_value_count": F.lit(0)}
    is_file = F.col(lower).isNotNull()
    values = {**known, **{name: F.when(is_file, count) for name, count in counts.items()}}
    kind = spark_schema(pa.schema([pa.field("stats", stats_struct(bound))]))["stats"].dataType
    fields = [values.get(name, F.lit(None)).alias(name) for name in kind.fieldNames()]  # type: ignore[attr-defined]
    return F.struct(*fields).cast(kind).alias(str(field_id))
