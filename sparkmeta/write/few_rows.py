"""Write a few rows on the driver with the functions that tasks run, as one task would write them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import PartitionField
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection
from pyiceberg.transforms import (
    IdentityTransform,
    TimeTransform,
    TruncateTransform,
    VoidTransform,
)
from pyiceberg.types import BinaryType, DecimalType, PrimitiveType, StringType, StructType

from sparkmeta.arrow_types import spark_schema
from sparkmeta.errors import SparkmetaError, ValidationError, first_line
from sparkmeta.expr.arrays import indices_where, sorted_indices, whole
from sparkmeta.expr.bounds import bound_arrow_type
from sparkmeta.expr.transforms import OrderedTransform
from sparkmeta.rows.columns import child_fields
from sparkmeta.spec.schema import path_to
from sparkmeta.spec.transforms import ColumnsBucket
from sparkmeta.write.file_schema import file_schema
from sparkmeta.write.files import LINEAGE, data_file_tasks, refuse_transforms, write_files
from sparkmeta.write.input import check_schema
from sparkmeta.write.tasks import PARTITION_COLUMN, PROBLEM, TaskValue, TaskValues, named_on_failure

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyiceberg.table.sorting import SortField
    from pyiceberg.transforms import Transform
    from pyiceberg.types import IcebergType

    from sparkmeta.entries.relation import Relation
    from sparkmeta.snapshot.state import TableState
    from sparkmeta.write.file_schema import FileColumns
    from sparkmeta.write.tasks import DataFileTasks

# Rows of a batch that a writer divides by partition.
_BATCH_ROWS: Final = 1 << 16


def write_rows(state: TableState, rows: Relation, *, lineage: bool = False) -> Relation:
    """Write the rows of a table to data files on the driver, or the rows of a DataFrame by jobs; see `write_files`.

    Args:
        state: the table.
        rows: see `input_rows`.
        lineage: whether the rows have the `LINEAGE` columns, which are then written to the files.

    Returns:
        One row per file with columns of `inspect.files`.

    Raises:
        ValidationError: the rows or the table's properties are not valid, or a required column has a null. No file is
            left behind.
        UnsupportedError: as `write_files`.
    """
    if not isinstance(rows, pa.Table):
        return write_files(state, rows, lineage=lineage)
    metadata, table = state.metadata, state.metadata.location
    schema = Schema(*metadata.schema().fields, *LINEAGE) if lineage else metadata.schema()
    refuse_transforms(state, metadata.sort_order())
    check_schema(spark_schema(rows.schema), schema, table)
    tasks = data_file_tasks(state, schema)
    return run(tasks, arranged(rows, state, tasks.columns, schema, metadata.sort_order().fields), table)


def run(tasks: DataFileTasks, rows: pa.Table, table: str) -> pa.Table:
    """Write rows that have their partition values, and return one row per file."""
    return files_of(tasks, tasks.write(rows.to_batches(max_chunksize=_BATCH_ROWS)), table)


def files_of(tasks: DataFileTasks, results: Iterable[pa.RecordBatch], table: str) -> pa.Table:
    """Write files in this process, and return one row per file.

    Args:
        tasks: writes the files.
        results: what the tasks yield, lazily.
        table: the table's location.
    """
    try:
        with named_on_failure(table, f"*-{tasks.name}-*"):
            files = pa.Table.from_batches(results, tasks.result_schema)
    except SparkmetaError:
        raise
    except Exception as error:
        raise SparkmetaError(f"{table}: no data files are written: {first_line(error)}") from error
    for problem in files.column(PROBLEM).drop_null().to_pylist():
        raise ValidationError(problem)  # the task has deleted its files
    return files.drop_columns([PROBLEM])


def arranged(
    rows: pa.Table, state: TableState, columns: FileColumns, schema: Schema, order: Sequence[SortField]
) -> pa.Table:
    """Return rows with their partition values, sorted by partition and a sort order if it has fields.

    Args:
        rows: the rows.
        state: the table, whose default partition spec is used.
        columns: converts the rows to rows of files, with the columns of `schema`.
        schema: the columns of the table that the partition spec and the sort order need, and others.
        order: the fields of the sort order.
    """
    fields = state.metadata.spec().fields
    if not len(rows) or not (fields or order):
        return rows
    (batch,) = rows.combine_chunks().to_batches()
    values = _Values(state, schema, columns.table_of(batch, file_schema(columns.columns, columns.file_format)))
    partitions = [values.of(field) for field in fields]
    for index, partition in enumerate(partitions):
        rows = rows.append_column(PARTITION_COLUMN.format(index), partition)
    if not order:
        return rows
    keys = [(partition, True, True) for partition in partitions]
    keys += [(values.of(field), *_direction(field)) for field in order]
    return rows.take(sorted_indices(keys))


def _direction(field: SortField) -> tuple[bool, bool]:
    """Return whether values ascend, and whether nulls come first."""
    return field.direction == SortDirection.ASC, field.null_order == NullOrder.NULLS_FIRST


class _Values:
    """Computes the values of partition and sort fields for rows.

    Args:
        state: the table.
        schema: the schema of the rows.
        rows: the rows in the form of data files.
    """

    def __init__(self, state: TableState, schema: Schema, rows: pa.Table) -> None:
        self._state, self._schema, self._rows = state, schema, rows
        names = [field.name for field in schema.fields if str(field.field_type) != "unknown"]
        self._index_by_name = {name: index for index, name in enumerate(names)}

    def of(self, field: PartitionField | SortField) -> pa.Array:
        """Return the values of a field, in the Arrow type of bounds of its source or result.

        Raises:
            ValidationError: a truncated decimal has too many digits.
        """
        transform = field.transform
        if isinstance(transform, VoidTransform):
            kinds = self._state.types.partition_fields
            type_name = kinds[field.field_id] if isinstance(field, PartitionField) else "int"
            return pa.nulls(len(self._rows), bound_arrow_type(type_name))
        if isinstance(transform, ColumnsBucket):
            return self._bucket(transform)
        kind = self._schema.find_type(field.source_id)
        assert isinstance(kind, PrimitiveType)
        source = self._source(field.source_id, str(kind))
        values = transformed(transform, kind, source)
        invalid_rows = indices_where(pc.and_(source.is_valid(), values.is_null()))
        if len(invalid_rows):
            name, value = self._schema.find_column_name(field.source_id), source[invalid_rows[0].as_py()].as_py()
            problem = f"column {name} is {value}: {transform} of it does not fit {kind}"
            raise ValidationError(f"{self._state.metadata.location}: {problem}")
        return values

    def _bucket(self, transform: ColumnsBucket) -> pa.Array:
        fields = [self._schema.find_field(source) for source in transform.sources]
        sources = [self._source(field.field_id, str(field.field_type)) for field in fields]
        rows = pa.StructArray.from_arrays(sources, [str(field.field_id) for field in fields])
        return _by_tasks(transform, StructType(*fields), rows)

    def _source(self, field_id: int, type_name: str) -> pa.Array:
        top, *inside = path_to(self._schema, field_id)
        if top.name not in self._index_by_name:
            return pa.nulls(len(self._rows), bound_arrow_type(type_name))
        array = whole(self._rows.column(self._index_by_name[top.name]))
        parent = top
        for field in inside:
            children = child_fields(parent.field_type)
            written = [child.name for child in children if str(child.field_type) != "unknown"]
            array, parent = pc.struct_field(array, [written.index(field.name)]), field
        stored = array.storage if isinstance(array, pa.ExtensionArray) else array
        if pa.types.is_fixed_size_binary(stored.type):
            stored = stored.cast(pa.binary())
        return stored.cast(bound_arrow_type(type_name))


# -- Transforms in Arrow ----------------------------------------------------------------------------------------------


def transformed(transform: Transform[Any, Any], source: PrimitiveType, values: pa.Array) -> pa.Array:
    """Return the transform of values; null for a truncated decimal that has more digits than its type.

    Args:
        transform: a transform of the spec or the sort order, neither void nor unknown.
        source: the type of the column.
        values: its values, in the Arrow type of its bounds.
    """
    match transform:
        case IdentityTransform():
            return values
        case TruncateTransform() if isinstance(source, StringType):
            return pc.utf8_slice_codeunits(values, 0, transform.width)
        case TruncateTransform() if isinstance(source, BinaryType):
            return pc.binary_slice(values, 0, transform.width)
        case TruncateTransform() | TimeTransform() if not isinstance(source, DecimalType):
            steps = OrderedTransform(transform, source).step(pc.fill_null(_numbers(values), 0).to_numpy())
            kind = values.type if isinstance(transform, TruncateTransform) else pa.int32()
            return pc.if_else(values.is_valid(), pa.array(steps).cast(kind), pa.scalar(None, kind))
    return _by_tasks(transform, source, _numbers(values))


def _by_tasks(transform: Transform[Any, Any], source: IcebergType, values: pa.Array) -> pa.Array:
    """Compute buckets or truncated decimals with the function that tasks use."""
    batch = pa.RecordBatch.from_arrays([values], ["value"])
    (result,) = TaskValues((TaskValue("value", transform, source),))([batch])
    return result.column(0)


def _numbers(values: pa.Array) -> pa.Array:
    """Return dates and timestamps as integers, and other values unchanged."""
    if not pa.types.is_temporal(values.type):
        return values
    return values.view(pa.int32() if pa.types.is_date32(values.type) else pa.int64())
