"""The metadata table position_deletes: the rows of position delete files, and the positions in deletion vectors."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pyiceberg.types import IcebergType, ListType, MapType, StructType
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType, StringType
from pyspark.sql.types import StructType as SparkStructType

from sparkmeta.arrow_types import arrow_schema
from sparkmeta.columns.types import spark_type
from sparkmeta.entries.arrays import entry_count
from sparkmeta.inspect.tasks import DeleteRows, RowField
from sparkmeta.plan.filter import public_partition, public_partition_type
from sparkmeta.plan.prune import live_manifests
from sparkmeta.session import map_arrow, read_tasks
from sparkmeta.spec.entry import ContentType
from sparkmeta.storage.reading import with_content

if TYPE_CHECKING:
    from pyiceberg.types import NestedField
    from pyspark.sql import DataFrame

    from sparkmeta.state import TableState

_COLUMNS = (
    "version_info",
    "content_type",
    "location",
    "file_format",
    "partition_spec_id",
    "record_count",
    "referenced_file",
    "deletion_vector",
)


def position_deletes(state: TableState) -> DataFrame:
    """Return a row for each position in the snapshot's live position delete files and deletion vectors.

    Spark tasks open each file once. It is lazy if tasks can open files. If only Spark's own sources can, a job collects
    the paths when this is called.
    """
    schema = position_deletes_type(state)
    row = row_field(0, state.metadata.schema().as_struct())
    rows = DeleteRows(arrow_schema(schema), row, state.types.locations)
    files = delete_files(state)
    if state.access.tasks is not None:
        most = entry_count(live_manifests(state.delete_manifests))
        files = files.repartition(read_tasks(state.spark, most))
        return map_arrow(files, partial(rows.read, state.access.tasks), schema)
    return map_arrow(with_content(state.spark, files.toArrow()), rows.read_contents, schema)


def position_deletes_type(state: TableState) -> SparkStructType:
    """Return the row type of position_deletes."""
    schema = SparkStructType().add("file_path", StringType(), False).add("pos", LongType(), False)
    schema.add("row", spark_type(state.metadata.schema().as_struct()))
    if state.types.partition_type.fields:
        schema.add("partition", public_partition_type(state), False)
    schema.add("spec_id", IntegerType(), False).add("delete_file_path", StringType(), False)
    if state.metadata.format_version >= 3:
        schema.add("content_offset", LongType()).add("content_size_in_bytes", LongType())
    return schema


def delete_files(state: TableState) -> DataFrame:
    """Return the live position delete files as input of `DeleteRows`: location, file_format, deletes array<struct>."""
    manifests = live_manifests(state.delete_manifests)
    entries = state.live_entries(manifests, state.projection(_COLUMNS))
    positional = entries.where(F.col("content_type") == int(ContentType.POSITION_DELETES))
    entry = [
        F.col("record_count"),
        F.col("referenced_file").alias("referenced_data_file"),
        F.col("deletion_vector.offset").alias("content_offset"),
        F.col("deletion_vector.size_in_bytes").alias("content_size_in_bytes"),
        F.col("partition_spec_id").alias("spec_id"),
    ]
    if state.types.partition_type.fields:
        entry.append(public_partition(state).alias("partition").column())
    return positional.groupBy("location", "file_format").agg(F.collect_list(F.struct(*entry)).alias("deletes"))


def row_field(field_id: int, kind: IcebergType, field: NestedField | None = None) -> RowField:
    """Convert an Iceberg type to a `RowField`, which is light to import."""
    match kind:
        case StructType():
            children = [row_field(field.field_id, field.field_type, field) for field in kind.fields]
            return RowField(field_id, "struct", tuple(children))
        case ListType():
            return RowField(field_id, "list", (row_field(kind.element_id, kind.element_type),))
        case MapType():
            pair = (row_field(kind.key_id, kind.key_type), row_field(kind.value_id, kind.value_type))
            return RowField(field_id, "map", pair)
    return RowField(field_id, str(kind), default=field.initial_default if field else None)
