"""The metadata table position_deletes: the rows of position delete files, and the positions in deletion vectors."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.types import IcebergType, ListType, MapType, StructType
from pyspark.sql.types import IntegerType, LongType, StringType
from pyspark.sql.types import StructType as SparkStructType

from sparkmeta.arrow_types import arrow_schema
from sparkmeta.entries.live import entry_count, is_live_entry
from sparkmeta.entries.relation import grouped, where
from sparkmeta.expr import sql
from sparkmeta.expr.types import spark_type
from sparkmeta.inspect.metadata_rows import MetadataRows, few_files, read_files
from sparkmeta.plan.filter import public_partition, public_partition_type
from sparkmeta.rows.delete_rows import DeleteRows, RowField
from sparkmeta.session import read_tasks
from sparkmeta.snapshot.search import live_manifests
from sparkmeta.spec.entry import ContentType

if TYPE_CHECKING:
    from pyiceberg.types import NestedField

    from sparkmeta.entries.relation import Relation
    from sparkmeta.snapshot.state import TableState

_COLUMNS = (
    "version_info",
    "content_type",
    "location",
    "file_format",
    "partition_spec_id",
    "record_count",
    "file_size_in_bytes",
    "referenced_file",
    "deletion_vector",
)
_SIZE, _POSITIONS = "size_in_bytes", "positions"


def position_deletes(state: TableState, most_entries: int) -> MetadataRows:
    """Return a row for each position in the snapshot's live position delete files and deletion vectors.

    The driver opens the files if they are few and contain few positions. Otherwise tasks open them, lazily. If only
    Spark's own sources can open files, a job collects the paths when this function is called. Each file is opened once.

    Args:
        state: the table.
        most_entries: the maximum number of positions that the driver decodes.
    """
    row_type = position_deletes_type(state)
    row = row_field(0, state.metadata.schema().as_struct())
    rows = DeleteRows(arrow_schema(row_type), row, state.types.locations)
    files = delete_files(state)

    def are_few(files: pa.Table) -> bool:
        size, positions = (pc.sum(files.column(name)).as_py() or 0 for name in (_SIZE, _POSITIONS))
        return few_files(state, len(files), size, positions, most_entries)

    entries = entry_count(live_manifests(state.delete_manifests))
    tasks = partial(read_tasks, files=entries)
    return MetadataRows(state, read_files(state, files, rows, row_type, are_few, tasks), row_type)


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


def delete_files(state: TableState) -> Relation:
    """Return the live position delete files as input of `DeleteRows`: location, file_format, deletes array<struct>."""
    read = state.relation(live_manifests(state.delete_manifests), state.projection((*_COLUMNS, *state.key_columns)))
    is_positional = sql.col("content_type") == int(ContentType.POSITION_DELETES)
    entry = {
        "record_count": sql.col("record_count"),
        "referenced_data_file": sql.col("referenced_file"),
        "content_offset": sql.col("deletion_vector.offset"),
        "content_size_in_bytes": sql.col("deletion_vector.size_in_bytes"),
        "spec_id": sql.col("partition_spec_id"),
        **({"partition": public_partition(state)} if state.types.partition_type.fields else {}),
    }
    keys = sql.columns("location", "file_format")
    aggregates = {
        "deletes": sql.call("collect_list", sql.struct(*sql.named(entry))),
        _SIZE: sql.call("first", sql.col("file_size_in_bytes")),
        _POSITIONS: sql.call("sum", sql.col("record_count")),
        **{name: sql.call("first", sql.col(name)) for name in state.key_columns},
    }
    positional = where(read, is_live_entry() & is_positional)
    return grouped(positional, keys, sql.named(aggregates))


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
