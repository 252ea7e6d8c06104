"""Group files by layout, the same columns under the same names, and read those that only Python can read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.types import NestedField, StructType
from pyspark.sql import functions as F
from pyspark.sql import types as spark
from pyspark.sql.types import BooleanType, IntegerType, LongType, StringType
from pyspark.sql.types import StructType as SparkStruct

from sparkmeta.arrow_types import arrow_schema, arrow_type_of, spark_type_of
from sparkmeta.columns import sql
from sparkmeta.columns.predicate import referenced_ids, row_predicate
from sparkmeta.columns.sql import Sql
from sparkmeta.columns.types import default_literal, spark_type
from sparkmeta.errors import UnsupportedError, translated_errors
from sparkmeta.manifests.placement import MOST_REQUESTS
from sparkmeta.plan.filter import DELETES, public_partition_type
from sparkmeta.rows.columns import (
    ReadColumns,
    identity_sources,
    name_mapping,
    projected_column,
    read_type,
    spark_reads,
    widened_value,
)
from sparkmeta.rows.data_file import ComparedField, file_columns, refuse_other_count
from sparkmeta.rows.file_rows import ALL_METADATA_COLUMNS, CHANGE_COLUMNS, SELECTED_BY, START, STOP, RowReader
from sparkmeta.rows.planned import PARTITION, ROW_INDEX, Indices, PlannedFiles, column_name
from sparkmeta.rows.resolve import FromDefault, FromFile, FromPartition, IcebergColumn, Null, Source, resolve
from sparkmeta.session import local_frame, map_arrow, map_on_driver, read_tasks
from sparkmeta.storage.content import translated_read_errors

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.types import PrimitiveType
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

    from sparkmeta.plan.filter import ScanFilter
    from sparkmeta.state import TableState
    from sparkmeta.storage.executors import ExecutorReader


# -- Group files by layout --------------------------------------------------------------------------------------------
# If names don't identify columns, the field ids in footers do. Files of one layout are read together, by the names in
# the files. A layout that Spark's Parquet reader can't read, or not by name, has no columns.


_PLACE: Final = "place"
_SCHEMA: Final = "schema"
_FOOTERS: Final = pa.schema([pa.field(_PLACE, pa.int64()), pa.field(_SCHEMA, pa.binary())])


def layouts(
    state: TableState, files: PlannedFiles, rows: Indices, fields: tuple[NestedField, ...]
) -> Iterator[tuple[ReadColumns | None, Indices]]:
    """Group files by layout. Few footers are read by driver threads, many by tasks.

    Args:
        state: the table.
        files: the planned files.
        rows: the rows of the files to group.
        fields: the columns to read.

    Yields:
        How to read the columns (None if Spark can't), and the rows of the files.

    Raises:
        CorruptFileError: a footer contradicts the table.
        NotFoundError: a file is missing.
    """
    names, projected = name_mapping(state.metadata), tuple(map(projected_column, fields))
    spec_ids = files.numbers("spec_id")
    for schema, places in _by_schema(state, files, rows):
        columns = file_columns(pa.ipc.read_schema(pa.py_buffer(schema)))
        for spec_id in sorted(set(spec_ids[places].tolist())):
            of_spec = places[spec_ids[places] == spec_id]
            location = files.table.column("file_path")[int(of_spec[0])].as_py()
            identities = identity_sources(state.specs[spec_id])
            sources = resolve(columns, projected, location, names=names, partition_ids=identities, by_position=True)
            partition = {field.field_id: field.name for field in state.types.partition_type.fields}
            values = {source: partition[field_id] for source, field_id in identities.items() if field_id in partition}
            yield _read_columns(columns, fields, sources, values), of_spec


def _by_schema(state: TableState, files: PlannedFiles, rows: Indices) -> Iterator[tuple[bytes, Indices]]:
    taken = files.table.select(["file_path", "record_count"]).take(pa.array(rows))
    units = taken.append_column(_PLACE, pa.array(rows))
    reader = state.access.tasks
    assert reader is not None
    read = partial(_footers, reader)
    if state.access.driver is not None and len(units) <= MOST_REQUESTS:
        footers = map_on_driver(units, read, _FOOTERS).group_by(_SCHEMA).aggregate([(_PLACE, "list")])
        grouped = footers.select([_SCHEMA, f"{_PLACE}_list"])
    else:
        frame = map_arrow(local_frame(state.spark, units), read, _FOOTERS)
        with translated_errors():
            grouped = frame.groupBy(_SCHEMA).agg(F.collect_list(_PLACE).alias(_PLACE)).toArrow()
    for schema, places in zip(*grouped.columns, strict=True):
        yield schema.as_py(), places.values.sort().to_numpy()


def _footers(reader: ExecutorReader, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        planned = zip(*(batch.column(name).to_pylist() for name in ("file_path", "record_count")), strict=True)
        schemas = [_schema(reader, location, record_count) for location, record_count in planned]
        yield pa.RecordBatch.from_arrays([batch.column(_PLACE), pa.array(schemas, pa.binary())], schema=_FOOTERS)


def _schema(reader: ExecutorReader, location: str, record_count: int) -> bytes:
    """Return the fields of a file's schema with their ids, without anything else that differs between files."""
    with translated_read_errors(location, "footer"), reader.open(location) as file:
        footer = pq.ParquetFile(file)
        schema, rows = footer.schema_arrow, footer.metadata.num_rows
    refuse_other_count(location, record_count, rows)
    return bytes(schema.remove_metadata().serialize())


# -- Read by names ----------------------------------------------------------------------------------------------------


class _UnreadError(Exception):
    """Spark's Parquet reader can't read a column by its name."""


def _read_columns(
    columns: Sequence[IcebergColumn],
    fields: tuple[NestedField, ...],
    sources: Sequence[Source],
    partition: dict[int, str],
) -> ReadColumns | None:
    """Return how Spark reads the columns of files with one layout.

    Args:
        columns: the columns of the files.
        fields: the columns to read.
        sources: where each comes from.
        partition: the names of identity partition fields by column id.
    """
    read: list[spark.StructField] = []
    values: list[Sql] = []
    try:
        for field, source in zip(fields, sources, strict=True):
            match source:
                case FromFile(physical=physical):
                    _refuse_ambiguous(physical, columns)
                    kind = read_type(field.field_type)
                    stored = _stored_type(source, kind)
                    value = sql.col(column_name(len(read)))
                    value = value if stored == kind else value.cast(kind)
                    values.append(widened_value(field, value, set(_widened(source))))
                    read.append(spark.StructField(physical.name, stored))
                case FromPartition():
                    values.append(_partition_value(field, partition))
                case FromDefault(column=column):
                    kind = read_type(field.field_type)
                    values.append(default_literal(column.default, cast("PrimitiveType", field.field_type)).cast(kind))
                case Null():
                    values.append(sql.lit(None).cast(read_type(field.field_type)))
    except _UnreadError:
        return None
    names = [field.name.lower() for field in read]
    if len(set(names)) < len(names) or ROW_INDEX in names:
        return None
    has_partition_values = any(isinstance(source, FromPartition) for source in sources)
    return ReadColumns(fields, spark.StructType(read), tuple(values), has_partition_values)


def _widened(source: Source) -> Iterator[int]:
    """Yield the ids of columns, and of fields inside them, that have another type in the file."""
    if isinstance(source, FromFile):
        if source.physical.type != source.column.type and source.column.id is not None:
            yield source.column.id
        for child in source.children:
            yield from _widened(child)


def _partition_value(field: NestedField, partition: dict[int, str]) -> Sql:
    if field.field_id not in partition or str(field.field_type) == "uuid":
        raise _UnreadError
    return sql.col(PARTITION)[partition[field.field_id]].cast(read_type(field.field_type))


def _refuse_ambiguous(column: IcebergColumn, siblings: Sequence[IcebergColumn]) -> None:
    """Refuse a name that differs from a sibling's only in case, since Spark may look up names case-insensitively."""
    if sum(sibling.name.lower() == column.name.lower() for sibling in siblings) > 1:
        raise _UnreadError


def _stored_type(source: FromFile, kind: spark.DataType) -> spark.DataType:
    """Return the type that Spark reads for a file column: the wanted type with the file's field names."""
    column, physical = source.column, source.physical
    match kind:
        case spark.StructType():
            return _stored_struct(source, kind)
        case spark.ArrayType():
            return spark.ArrayType(_stored_type(_child(source, 0), kind.elementType))
        case spark.MapType():
            key, value = (_child(source, place) for place in range(2))
            return spark.MapType(_stored_type(key, kind.keyType), _stored_type(value, kind.valueType))
    if column.type in ("unknown", "variant") or physical.type == "unknown" or not _is_promoted(physical, column):
        raise _UnreadError
    return kind


def _child(source: FromFile, place: int) -> FromFile:
    child = source.children[place]
    if not isinstance(child, FromFile):
        raise _UnreadError
    return child


def _is_promoted(physical: IcebergColumn, column: IcebergColumn) -> bool:
    """Return whether Spark can read values of a file's type as the table's type."""
    if column.type == "uuid":
        return physical.type in ("uuid", "fixed[16]")
    if column.type.startswith(("geometry", "geography")):
        return physical.type == "binary"
    return spark_reads(physical.type, column.type) or (physical.type, column.type) == ("long", "time")


def _stored_struct(source: FromFile, kind: spark.StructType) -> spark.StructType:
    names = {child.name.lower() for child in source.physical.children}
    fields: list[spark.StructField] = []
    for child, field in zip(source.children, kind.fields, strict=True):
        match child:
            case FromFile(physical=physical):
                _refuse_ambiguous(physical, source.physical.children)
                fields.append(spark.StructField(physical.name, _stored_type(child, field.dataType)))
            case Null(column=column) if f"missing_{column.id}" not in names:
                fields.append(spark.StructField(f"missing_{column.id}", field.dataType))
            case _:
                raise _UnreadError
    # Spark treats a struct as null if it reads none of its fields.
    if not any(isinstance(child, FromFile) for child in source.children):
        raise _UnreadError
    return spark.StructType(fields)


# -- Read files in Python ---------------------------------------------------------------------------------------------
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
