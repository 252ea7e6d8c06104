"""Group files by layout: the same columns under the same names, according to their footers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.types import NestedField
from pyspark.sql import functions as F
from pyspark.sql import types as spark

from sparkmeta.errors import translated_errors
from sparkmeta.expr import sql
from sparkmeta.expr.sql import Sql
from sparkmeta.expr.types import default_literal
from sparkmeta.manifests.placement import MOST_REQUESTS
from sparkmeta.rows.columns import (
    ReadColumns,
    identity_sources,
    name_mapping,
    projected_column,
    read_type,
    spark_reads,
    widened_value,
)
from sparkmeta.rows.data_file import file_columns, refuse_other_count
from sparkmeta.rows.planned import PARTITION, ROW_INDEX, Indices, PlannedFiles, column_name
from sparkmeta.rows.resolve import NESTED, FromDefault, FromFile, FromPartition, IcebergColumn, Null, Source, resolve
from sparkmeta.session import local_frame, map_arrow, map_on_driver
from sparkmeta.storage.content import translated_read_errors

if TYPE_CHECKING:
    from pyiceberg.types import PrimitiveType

    from sparkmeta.snapshot.state import TableState
    from sparkmeta.storage.executors import ExecutorReader


# -- Group files by layout --------------------------------------------------------------------------------------------
# If names don't identify columns, the field ids in footers do. Files of one layout are read together, by the names in
# the files. If Spark's Parquet reader can't read a layout by name, no columns are returned for it.


_ROW: Final = "row"
_SCHEMA: Final = "schema"
_FOOTERS: Final = pa.schema([pa.field(_ROW, pa.int64()), pa.field(_SCHEMA, pa.binary())])


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
        The columns to read (None if Spark can't read them), and the rows of the files.

    Raises:
        CorruptFileError: a footer contradicts the table.
        NotFoundError: a file is missing.
    """
    names, projected = name_mapping(state.metadata), tuple(map(projected_column, fields))
    spec_ids = files.numbers("spec_id")
    for schema, file_rows in _by_schema(state, files, rows):
        columns = file_columns(pa.ipc.read_schema(pa.py_buffer(schema)))
        for spec_id in sorted(set(spec_ids[file_rows].tolist())):
            spec_rows = file_rows[spec_ids[file_rows] == spec_id]
            location = files.table.column("file_path")[int(spec_rows[0])].as_py()
            identities = identity_sources(state.specs[spec_id])
            sources = resolve(columns, projected, location, names=names, partition_ids=identities, by_position=True)
            partition = {field.field_id: field.name for field in state.types.partition_type.fields}
            values = {source: partition[field_id] for source, field_id in identities.items() if field_id in partition}
            yield _read_columns(columns, fields, sources, values), spec_rows


def _by_schema(state: TableState, files: PlannedFiles, rows: Indices) -> Iterator[tuple[bytes, Indices]]:
    chosen_files = files.table.select(["file_path", "record_count"]).take(pa.array(rows))
    units = chosen_files.append_column(_ROW, pa.array(rows))
    reader = state.access.tasks
    assert reader is not None
    read_footers = partial(_footers, reader)
    if state.access.driver is not None and len(units) <= MOST_REQUESTS:
        footers = map_on_driver(units, read_footers, _FOOTERS).group_by(_SCHEMA).aggregate([(_ROW, "list")])
        grouped = footers.select([_SCHEMA, f"{_ROW}_list"])
    else:
        frame = map_arrow(local_frame(state.spark, units), read_footers, _FOOTERS)
        with translated_errors():
            grouped = frame.groupBy(_SCHEMA).agg(F.collect_list(_ROW).alias(_ROW)).toArrow()
    for schema, file_rows in zip(*grouped.columns, strict=True):
        yield schema.as_py(), file_rows.values.sort().to_numpy()


def _footers(reader: ExecutorReader, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        planned = zip(*(batch.column(name).to_pylist() for name in ("file_path", "record_count")), strict=True)
        schemas = [_schema(reader, location, record_count) for location, record_count in planned]
        yield pa.RecordBatch.from_arrays([batch.column(_ROW), pa.array(schemas, pa.binary())], schema=_FOOTERS)


def _schema(reader: ExecutorReader, location: str, record_count: int) -> bytes:
    """Serialize the fields of a file's schema with their ids, without metadata that differs between files."""
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
    """Return the columns of files with one layout, as Spark reads them; None if it can't.

    Args:
        columns: the columns of the files.
        fields: the columns to read.
        sources: the sources of the columns.
        partition: the names of identity partition fields by column id.
    """
    read_fields: list[spark.StructField] = []
    values: list[Sql] = []
    try:
        for field, source in zip(fields, sources, strict=True):
            match source:
                case FromFile(physical=physical):
                    _refuse_ambiguous(physical, columns)
                    kind = read_type(field.field_type)
                    stored = _stored_type(source, kind)
                    value = sql.col(column_name(len(read_fields)))
                    value = value if stored == kind else value.cast(kind)
                    values.append(widened_value(field, value, set(_widened(source))))
                    read_fields.append(spark.StructField(physical.name, stored))
                case FromPartition():
                    values.append(_partition_value(field, partition))
                case FromDefault(column=column) if column.type in NESTED:
                    return None
                case FromDefault(column=column):
                    kind = read_type(field.field_type)
                    value = default_literal(column.default, cast("PrimitiveType", field.field_type)).cast(kind)
                    values.append(sql.nullable(value))
                case Null():
                    values.append(sql.lit(None).cast(read_type(field.field_type)))
    except _UnreadError:
        return None
    names = [field.name.lower() for field in read_fields]
    if len(set(names)) < len(names) or ROW_INDEX in names:
        return None
    has_partition_values = any(isinstance(source, FromPartition) for source in sources)
    return ReadColumns(fields, spark.StructType(read_fields), tuple(values), has_partition_values)


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
    """Return the type that Spark reads for a file column: the table's type with the file's field names."""
    column, physical = source.column, source.physical
    match kind:
        case spark.StructType():
            return _stored_struct(source, kind)
        case spark.ArrayType():
            return spark.ArrayType(_stored_type(_child(source, 0), kind.elementType))
        case spark.MapType():
            key, value = (_child(source, index) for index in range(2))
            return spark.MapType(_stored_type(key, kind.keyType), _stored_type(value, kind.valueType))
    if column.type in ("unknown", "variant") or physical.type == "unknown" or not _is_promoted(physical, column):
        raise _UnreadError
    return kind


def _child(source: FromFile, index: int) -> FromFile:
    child = source.children[index]
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
