"""Read rows of data files in Python tasks: ORC, Avro, and Parquet that Spark's reader can't read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.types import NestedField, StructType
from pyspark.sql.types import BooleanType, IntegerType, LongType, StringType
from pyspark.sql.types import StructType as SparkStruct

from sparkmeta.arrow_types import arrow_schema, arrow_type_of, spark_type_of
from sparkmeta.columns import sql
from sparkmeta.columns.predicate import referenced_ids, row_predicate
from sparkmeta.columns.sql import Sql
from sparkmeta.columns.types import spark_type
from sparkmeta.errors import UnsupportedError
from sparkmeta.plan.filter import DELETES, public_partition_type
from sparkmeta.rows.columns import (
    identity_sources,
    name_mapping,
    projected_column,
)
from sparkmeta.rows.data_file import ComparedField
from sparkmeta.rows.file_rows import ALL_METADATA_COLUMNS, CHANGE_COLUMNS, SELECTED_BY, START, STOP, RowReader
from sparkmeta.rows.planned import PARTITION
from sparkmeta.rows.resolve import IcebergColumn
from sparkmeta.session import map_arrow, read_tasks

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

    from sparkmeta.plan.filter import ScanFilter
    from sparkmeta.state import TableState


# ORC, Avro, and Parquet that Spark's reader can't read.
# Reading is lazy. Parquet files are cut into parts of `PART_BYTES`; an ORC or Avro file is read by one task.


PART_BYTES = 128 << 20

_METADATA_TYPES = {"string": StringType(), "long": LongType(), "int": IntegerType(), "boolean": BooleanType()}

PLANNED = (
    "file_path", "file_format", "spec_id", "record_count", "first_row_id", "data_sequence_number", DELETES,
)  # fmt: skip
"""The columns of plans that tasks need of a data file."""


def read_by_tasks(
    scan_filter: ScanFilter, planned: DataFrame, projected: Schema, metadata_columns: Sequence[str] = ()
) -> DataFrame:
    """Return the live rows of planned data files that match a filter.

    Args:
        scan_filter: The filter and the table.
        planned: Any rows of `plan_files`.
        projected: The columns of the table to read.
        metadata_columns: Names of metadata columns, which follow the table's columns. With `_deleted`, deleted rows are
            included.

    Raises:
        UnsupportedError: Tasks can't open the table's files in this session.
    """
    state = scan_filter.state
    by_id, leaves = leaves_of(scan_filter.schema), filter_leaves(scan_filter)
    rows = task_rows(state, projected, metadata_columns, leaves)
    row_type = _row_type(state, projected, rows.columns[len(projected.fields) :], leaves)
    read = map_arrow(planned_parts(planned).repartition(read_tasks(state.spark)), rows.read, row_type)
    matching = read.where(row_predicate(scan_filter.row_filter, _leaf_value(by_id)).text)
    return matching.select(row_type.fieldNames()[: len(rows.columns)]).toDF(*(column.name for column in rows.columns))


def task_rows(
    state: TableState, projected: Schema, metadata_columns: Sequence[str] = (), leaves: tuple[ComparedField, ...] = ()
) -> RowReader:
    """Return the reader of planned data files for tasks; see `read_by_tasks`.

    Args:
        state: The table.
        projected: The columns of the table to read.
        metadata_columns: Names of metadata columns, which follow the table's columns.
        leaves: Fields of the table, which follow the columns.

    Raises:
        UnsupportedError: Tasks can't open the table's files in this session.
    """
    if state.access.tasks is None:
        raise UnsupportedError(
            f"{state.metadata.location}: only Spark's own sources open files in this session, and they can't read all "
            "data files of the table; if executors can open them, set spark.sparkmeta.executor-reads to direct"
        )
    metadata = tuple(ALL_METADATA_COLUMNS[name] for name in metadata_columns)
    return RowReader(
        state.access.tasks,
        state.types.locations,
        (*map(projected_column, projected.fields), *metadata),
        leaves,
        tuple(_key_columns(state)),
        arrow_schema(_row_type(state, projected, metadata, leaves)),
        name_mapping(state.metadata),
        _identity_places(state),
    )


def _row_type(
    state: TableState, projected: Schema, metadata: Iterable[IcebergColumn], leaves: Iterable[ComparedField]
) -> SparkStruct:
    """Return the type of the rows that tasks yield. Columns are named by index, since their names may clash."""
    row_type = SparkStruct()
    for field in projected.fields:
        row_type.add(f"c{len(row_type)}", spark_type(field.field_type), not field.required)
    for column in metadata:
        row_type.add(f"c{len(row_type)}", metadata_type(column, state))
    for leaf in leaves:
        row_type.add(_leaf_name(leaf.id), spark_type_of(leaf.alone().kind))
    return row_type


def metadata_type(column: IcebergColumn, state: TableState) -> DataType:
    """Return the Spark type of a metadata column."""
    return _METADATA_TYPES.get(column.type) or public_partition_type(state)


def leaves_of(schema: Schema) -> dict[int, ComparedField]:
    """Return the fields of a schema by id, except those inside lists and maps."""
    return {leaf.id: leaf for field in schema.fields for leaf in _leaves(field)}


def filter_leaves(scan_filter: ScanFilter) -> tuple[ComparedField, ...]:
    """Return the fields that a filter uses."""
    by_id = leaves_of(scan_filter.schema)
    return tuple(by_id[field_id] for field_id in sorted(referenced_ids(scan_filter.row_filter)))


def _leaves(field: NestedField) -> Iterator[ComparedField]:
    """Yield a field and its nested fields, all as optional."""
    column = replace(projected_column(field), required=False)
    yield ComparedField(field.field_id, column, arrow_type_of(spark_type(field.field_type)))
    if isinstance(field.field_type, StructType):
        for child in field.field_type.fields:
            for leaf in _leaves(child):
                inside = replace(column, children=(leaf.column,))
                yield ComparedField(leaf.id, inside, pa.struct([pa.field(child.name, leaf.kind)]))


def _key_columns(state: TableState) -> Iterable[ComparedField]:
    """Return all columns that equality deletes may compare, including dropped ones; see `TableTypes.fields`."""
    schemas = sorted(state.metadata.schemas, key=lambda schema: schema.schema_id)
    by_id: dict[int, ComparedField] = {}
    for schema in [*schemas, state.types.typing_schema]:
        by_id.update(leaves_of(schema))
    return [leaf for leaf in by_id.values() if leaf.id in state.types.primitive_fields]


def _identity_places(state: TableState) -> dict[int, dict[int, int | None]]:
    """Return spec id -> column id -> the index of its identity partition field in `partition`.

    The index is None if plans omit the field because its column was dropped.
    """
    places = {field.field_id: place for place, field in enumerate(state.types.partition_type.fields)}
    return {
        spec_id: {column_id: places.get(field_id) for column_id, field_id in identity_sources(spec).items()}
        for spec_id, spec in state.specs.items()
    }


def planned_parts(planned: DataFrame) -> DataFrame:
    """Return the `parts` of files with the columns that tasks need to read their rows."""
    return parts(planned, *(name for name in (PARTITION, SELECTED_BY, *CHANGE_COLUMNS) if name in planned.columns))


def parts(planned: DataFrame, *others: str) -> DataFrame:
    """Return one row per part of the files. A file's last part has no end, regardless of the size in the manifest.

    Args:
        planned: Rows of `plan_files`.
        others: Names of further columns to keep, which not all plans have.
    """
    last = f"IF(upper(file_format) = 'PARQUET', greatest(file_size_in_bytes - 1, 0) div {PART_BYTES}, 0L)"
    numbered = planned.selectExpr(*PLANNED, *others, f"{last} AS last", f"explode(sequence(0L, {last})) AS part")
    stop = f"IF(part = last, NULL, (part + 1) * {PART_BYTES}) AS {STOP}"
    return numbered.selectExpr(*PLANNED, *others, f"part * {PART_BYTES} AS {START}", stop)


def _leaf_name(field_id: int) -> str:
    return f"leaf{field_id}"


def _leaf_value(leaves: Mapping[int, ComparedField]) -> Callable[[int], Sql]:
    """Return a function that maps a field id to the SQL of the field's value in bound form."""

    def value(field_id: int) -> Sql:
        column = sql.col(_leaf_name(field_id))
        is_uuid = leaves[field_id].alone().column.type == "uuid"
        return sql.call("unhex", sql.call("replace", column, "-", "")) if is_uuid else column

    return value
