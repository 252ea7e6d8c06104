"""Write the rows of a DataFrame to data files in tasks.

rows -> checked columns -> partition values -> distributed, sorted if needed -> data files -> one row per file
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyiceberg.partitioning import PartitionField as SpecField
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection
from pyiceberg.transforms import TruncateTransform, VoidTransform
from pyiceberg.types import DecimalType, LongType, NestedField, StructType, UUIDType
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.types import LongType as SparkLong
from pyspark.sql.types import StructType as SparkStruct

from sparkmeta.errors import SparkmetaError, UnsupportedError, ValidationError, first_line, from_spark
from sparkmeta.expr import sql
from sparkmeta.expr.bounds import bound_arrow_type
from sparkmeta.expr.functions import function_value
from sparkmeta.expr.transforms import partition_value, uuid_bytes
from sparkmeta.expr.types import spark_type
from sparkmeta.session import advised_shuffles, local_frame, map_arrow, materialize
from sparkmeta.spec.metrics_modes import DEFAULT_LENGTH, metrics_modes
from sparkmeta.spec.transforms import ColumnsBucket, is_unknown
from sparkmeta.storage.files import executor_writer
from sparkmeta.write.file_schema import FileColumns
from sparkmeta.write.input import check_columns, field_value, positional_names, refuse_kinds, written_columns
from sparkmeta.write.metrics import MEASURED, MeasuredColumn, leaf_ids, metric_leaves, sized_leaves
from sparkmeta.write.options import WriteOptions
from sparkmeta.write.tasks import (
    PARTITION_COLUMN,
    PROBLEM,
    DataFileTasks,
    LocationProvider,
    PartitionField,
    TaskValue,
    TaskValues,
    delete_written,
    named_on_failure,
)

if TYPE_CHECKING:
    from pyiceberg.table.sorting import SortField, SortOrder
    from pyiceberg.types import IcebergType
    from pyspark.sql import Column, DataFrame

    from sparkmeta.expr.sql import Sql
    from sparkmeta.manifests.types import TableTypes
    from sparkmeta.rows.resolve import IcebergColumn
    from sparkmeta.session import MapFunction
    from sparkmeta.snapshot.state import TableState
    from sparkmeta.spec.metadata import TableMetadata

_SORT_COLUMN: Final = "_sort_value_{}"
_CONSTANT: Final = "_constant"
_ADAPTIVE: Final = "spark.sql.adaptive.enabled"

# The first format version whose rows have ids.
_LINEAGE_SINCE: Final = 3
# By file format: a pattern of the names of types that can't be written, and why.
_REFUSED: Final = {
    "parquet": ("geography.*'(?!spherical')[a-z]+'\\)", "whose edges pyarrow can't mark in Parquet files"),
    "orc": ("variant|geo", "which Iceberg's Spark writer can't write to ORC files"),
    "avro": ("geo", "which Iceberg's Spark writer can't write to Avro files"),
}
# The driver holds the rows of at most this many written files.
_FEW_RESULTS: Final = 1_000

LINEAGE: Final = (
    NestedField(2147483540, "_row_id", LongType(), required=False),
    NestedField(2147483539, "_last_updated_sequence_number", LongType(), required=False),
)
"""Columns of rows that move from other files (table spec, Row Lineage)."""


@dataclass(frozen=True)
class Arrangement:
    """The distribution of rows among tasks and their order within a task. It overrides the table's properties.

    Attributes:
        order: the order of rows within partitions.
        tasks: the number of tasks; None to let Spark's adaptive execution choose it.
        by_range: whether each task gets a range of partitions and the sort order, instead of whole partitions.
        curve: adds the column `CURVE_COLUMN` to batches of rows. Rows are then sorted by this column within partitions.
            The curve finds the other columns by their position.
    """

    order: SortOrder
    tasks: int | None
    by_range: bool = False
    curve: MapFunction | None = None


CURVE_COLUMN: Final = "_curve_value"


def lineage_columns(metadata: TableMetadata) -> tuple[str, ...]:
    """Return the names of the `LINEAGE` columns; none if the rows of a table have no ids."""
    return tuple(column.name for column in LINEAGE) if metadata.format_version >= _LINEAGE_SINCE else ()


def write_files(
    state: TableState, rows: DataFrame, *, lineage: bool = False, arrangement: Arrangement | None = None
) -> DataFrame:
    """Write rows to data files of the table's schema, default partition spec and sort order. Runs jobs.

    Args:
        state: the table.
        rows: see `check_columns`.
        lineage: whether the rows have the `LINEAGE` columns, which are then written to the files.
        arrangement: how rows are distributed and sorted; None to follow the table's properties.

    Returns:
        One row per file with columns of `inspect.files`, checkpointed.

    Raises:
        ValidationError: the rows or the table's properties are not valid, or a required column has a null.
        UnsupportedError: the table has a type, transform or codec that can't be written; or tasks can't open its
            files; or the session can't checkpoint rows.
    """
    schema = state.metadata.schema()
    return _Write(state, rows, Schema(*schema.fields, *LINEAGE) if lineage else schema, arrangement).files()


def arranged_rows(state: TableState, rows: DataFrame, arrangement: Arrangement) -> DataFrame:
    """Return rows with the values of the default partition spec, distributed and sorted, for `DataFileTasks.write`."""
    return _Write(state, rows, state.metadata.schema(), arrangement).arranged()


def data_file_tasks(state: TableState, schema: Schema, keys: Schema | None = None) -> DataFileTasks:
    """Return the tasks that write data files of a table, or equality delete files.

    Args:
        state: the table.
        schema: the table's schema, possibly with more columns.
        keys: the columns that equality deletes compare, which are their files' only columns; None for data files.

    Raises:
        ValidationError: a table property is not valid.
        UnsupportedError: tasks can't write the table's files.
    """
    metadata, types = state.metadata, state.types
    spec, options = metadata.spec(), WriteOptions.of(metadata)
    modes = metrics_modes(metadata, schema)
    refuse_kinds(schema, metadata.location, *_REFUSED[options.file_format])
    if options.data_key_length is not None and options.file_format == "parquet":
        refuse_kinds(schema, metadata.location, "variant", "which can't be marked in encrypted Parquet files")
    columns = written_columns(schema if keys is None else keys)
    kinds = types.partition_fields
    location_provider = LocationProvider.of(
        metadata, [PartitionField(field.name, str(field.transform), kinds[field.field_id]) for field in spec.fields]
    )
    tuple_fields, ids = types.partition_type.fields, [field.field_id for field in spec.fields]
    partition = pa.struct([pa.field(field.name, bound_arrow_type(kinds[field.field_id])) for field in tuple_fields])
    return DataFileTasks(
        writer=executor_writer(state.files),
        columns=FileColumns(metadata.location, columns, options.file_format),
        options=options,
        location_provider=location_provider,
        name=str(uuid.uuid4()),
        leaves=(*metric_leaves(columns, modes), *(_functions(types, columns, modes) if keys is None else ())),
        sized=sized_leaves(columns, modes),
        spec_id=spec.spec_id,
        partition=partition if tuple_fields else None,
        tuple_indices=tuple(ids.index(field.field_id) if field.field_id in ids else None for field in tuple_fields),
        sort_order_id=metadata.default_sort_order_id,
        equality_ids=() if keys is None else leaf_ids(columns),
    )


def _functions(
    types: TableTypes, columns: Sequence[IcebergColumn], modes: Mapping[int, int]
) -> Iterator[MeasuredColumn]:
    """Yield the expressions with functions of columns. Their bounds are at least as long as by default."""
    leaves = {leaf.id: leaf for leaf in metric_leaves(columns, defaultdict(int))} if types.functions else {}
    for expr_id, (source, function, field) in types.functions.items():
        if (leaf := leaves.get(source)) is not None:
            value, length = function_value(function, sql.col(MEASURED)), max(modes[source], DEFAULT_LENGTH)
            yield MeasuredColumn(expr_id, str(field.field_type), leaf.path, length, value)


@dataclass(frozen=True)
class _Write:
    """One write of a DataFrame's rows."""

    state: TableState
    rows: DataFrame
    schema: Schema
    arrangement: Arrangement | None = None

    @cached_property
    def table(self) -> str:
        return self.state.metadata.location

    @cached_property
    def row_type(self) -> SparkStruct:
        return self.rows.schema

    @cached_property
    def columns(self) -> list[str]:
        """The names of the rows' columns during the arrangement."""
        return positional_names(self.row_type.names)

    @cached_property
    def fields(self) -> Sequence[SpecField]:
        return self.state.metadata.spec().fields

    @cached_property
    def order(self) -> SortOrder:
        return self.state.metadata.sort_order() if self.arrangement is None else self.arrangement.order

    def files(self) -> DataFrame:
        refuse_transforms(self.state, self.order)
        check_columns(self.rows, self.schema, self.table)
        tasks = replace(data_file_tasks(self.state, self.schema), sort_order_id=self.order.order_id)
        return written_files(self.state, map_arrow(self.arranged(), tasks.write, tasks.result_schema), tasks.name)

    # -- Arrangement ------------------------------------------------------------------------------------------------

    def arranged(self) -> DataFrame:
        """Return the rows with their partition values, distributed among tasks and sorted within them if needed."""
        partitions = [PARTITION_COLUMN.format(index) for index in range(len(self.fields))]
        order = self.order.fields
        frame = self._with_values()
        keys = [F.col(name).asc_nulls_first() for name in partitions]
        keys += [_ordered(_SORT_COLUMN.format(index), field) for index, field in enumerate(order)]
        if self.arrangement is not None:
            return self._as_arranged(frame, partitions, keys, self.arrangement)
        distribution = WriteOptions.of(self.state.metadata).distribution
        match distribution:
            case "hash" if partitions:
                frame = frame.hint("rebalance", *partitions)
            case "range" if keys:
                frame = frame.repartitionByRange(*keys)
        # Tasks can divide rows by partition, which is faster than Spark's sort. Adaptive execution limits their rows,
        # so that hardly any file ends before its partition does.
        divided_by_tasks = distribution == "hash" and self.state.spark.conf.get(_ADAPTIVE, "true") == "true"
        if order or (keys and not divided_by_tasks):
            frame = frame.sortWithinPartitions(*keys)
        return self._selected(frame, partitions)

    def _as_arranged(
        self, frame: DataFrame, partitions: Sequence[str], keys: Sequence[Column], arrangement: Arrangement
    ) -> DataFrame:
        if arrangement.curve is not None:
            row_type = SparkStruct([*frame.schema.fields]).add(CURVE_COLUMN, SparkLong())
            frame = map_arrow(frame, arrangement.curve, row_type)
            keys = [*keys, F.col(CURVE_COLUMN).asc_nulls_first()]
        if arrangement.tasks is None:
            frame = frame.hint("rebalance", *partitions)
        elif arrangement.by_range and keys:
            frame = frame.repartitionByRange(arrangement.tasks, *keys)
        else:
            frame = frame.repartition(arrangement.tasks, *partitions)
        if keys:
            frame = frame.sortWithinPartitions(*keys)
        return self._selected(frame, partitions)

    def _selected(self, frame: DataFrame, partitions: Sequence[str]) -> DataFrame:
        """Return the columns that tasks expect, with the rows' names.

        If there are none, the result has a constant column, since batches without columns lose rows.
        """
        if not self.columns and not partitions:
            return frame.select(F.lit(0).alias(_CONSTANT))
        return frame.select(*self.columns, *partitions).toDF(*self.row_type.names, *partitions)

    def _with_values(self) -> DataFrame:
        """Return the rows as `columns`, followed by the values of partition fields and sort fields."""
        values: list[tuple[str, SpecField | SortField]] = [
            *((PARTITION_COLUMN.format(index), field) for index, field in enumerate(self.fields)),
            *((_SORT_COLUMN.format(index), field) for index, field in enumerate(self.order.fields)),
        ]
        expressions: list[sql.Aliased] = []
        task_values: list[TaskValue] = []
        for name, field in values:
            source = self._source(field)
            value = partition_value(field.transform, source.type, source.value)
            if value is None:
                task_values.append(TaskValue(name, field.transform, source.type))
                value = source.value
            expressions.append(value.alias(name))
        frame = self.rows.toDF(*self.columns)
        if not expressions:
            return frame
        frame = frame.select("*", *(value.column() for value in expressions))
        if task_values:
            frame = self._transformed(frame, values, task_values)
        fitting = {name: self._fitting(name, field).column() for name, field in values if self._may_not_fit(field)}
        return frame.withColumns(fitting) if fitting else frame

    def _transformed(
        self, frame: DataFrame, values: Sequence[tuple[str, SpecField | SortField]], task_values: Sequence[TaskValue]
    ) -> DataFrame:
        """Replace values with their transforms if Spark SQL has no exact form of the transforms."""
        results = {value.name: spark_type(value.transform.result_type(value.source)) for value in task_values}
        row_type = SparkStruct()
        for name, column in zip(self.columns, self.row_type.fields, strict=True):
            row_type.add(name, column.dataType)
        for name, field in values:
            source = self._source(field)
            row_type.add(name, results.get(name, spark_type(field.transform.result_type(source.type))))
        return map_arrow(frame, TaskValues(tuple(task_values)), row_type)

    def _may_not_fit(self, field: SpecField | SortField) -> bool:
        """Return whether a transform's results can have more digits than their type. Such results are null."""
        truncates = isinstance(field.transform, TruncateTransform)
        return truncates and isinstance(self._source(field).type, DecimalType)

    def _fitting(self, name: str, field: SpecField | SortField) -> Sql:
        """Return truncated decimals. The query fails for a value whose result is null."""
        source, result = self._source(field), sql.col(name)
        column = f"{self.table}: column {self.schema.find_column_name(field.source_id)} is "
        problem = f": {field.transform} of it does not fit {source.type}"
        failure = sql.raise_error(sql.concat(column, source.value.cast("STRING"), problem))
        unfit = source.value.isNotNull() & result.isNull()
        return sql.when(unfit, failure.cast(spark_type(source.type))).otherwise(result)

    def _source(self, field: SpecField | SortField) -> _Source:
        if isinstance(field, SpecField) and isinstance(field.transform, VoidTransform):
            # The schema may lack the column.
            return _Source(self.state.types.partition_types[field.field_id], sql.lit(None))
        if isinstance(field.transform, ColumnsBucket):
            fields = [self.schema.find_field(source) for source in field.transform.sources]
            values = [self._bytes_or_value(source).alias(str(source.field_id)) for source in fields]
            return _Source(StructType(*fields), sql.struct(*values))
        return _Source(self.schema.find_type(field.source_id), self._value(field.source_id))

    def _value(self, field_id: int) -> Sql:
        return field_value(self.row_type, self.schema, field_id, self.columns)

    def _bytes_or_value(self, field: NestedField) -> Sql:
        """Return a column's value, for a UUID as bytes."""
        value = self._value(field.field_id)
        return uuid_bytes(value) if isinstance(field.field_type, UUIDType) else value


@dataclass(frozen=True)
class _Source:
    type: IcebergType
    value: Sql


def _ordered(name: str, field: SortField) -> Column:
    column = F.col(name)
    nulls_first = field.null_order == NullOrder.NULLS_FIRST
    if field.direction == SortDirection.ASC:
        return column.asc_nulls_first() if nulls_first else column.asc_nulls_last()
    return column.desc_nulls_first() if nulls_first else column.desc_nulls_last()


def checkpointed(frame: DataFrame) -> DataFrame:
    """Compute rows once and checkpoint them, so that tasks do not write files twice.

    Raises:
        UnsupportedError: the session can't checkpoint rows.
    """
    rows = materialize(frame)
    if rows is frame:
        raise UnsupportedError("this session can't checkpoint rows (localCheckpoint), which writing files needs")
    return rows


def written_files(state: TableState, results: DataFrame, name: str) -> DataFrame:
    """Run tasks that write data files, and return one row per file, checkpointed.

    Args:
        state: the table.
        results: the output of the tasks, rows of `DataFileTasks.result_schema`.
        name: the common part of all file names, for the log.

    Raises:
        ValidationError: a row does not fit the table. No file is left behind.
        UnsupportedError: the session can't checkpoint rows.
        SparkmetaError: the tasks failed. Spark's own exceptions with other causes are raised unchanged.
    """
    location, shuffled_bytes = state.metadata.location, WriteOptions.of(state.metadata).shuffled_bytes
    try:
        with advised_shuffles(state.spark, shuffled_bytes), named_on_failure(location, f"*-{name}-*"):
            written = checkpointed(results)
    except UnsupportedError:
        raise
    except Exception as error:
        translated = from_spark(error)
        if translated is None and isinstance(error, PySparkException):
            raise
        # py4j raises its own errors for JVM exceptions that PySpark does not know.
        raise translated or SparkmetaError(f"{location}: no data files are written: {first_line(error)}") from error
    # One task fetches few rows, so that further queries need no task.
    rows = written.coalesce(1).limit(_FEW_RESULTS + 1).toArrow()
    if len(rows) <= _FEW_RESULTS:
        written = local_frame(state.spark, rows)
    files = written.drop(PROBLEM)
    for problem in written.where(F.col(PROBLEM).isNotNull()).limit(1).toArrow().column(PROBLEM).to_pylist():
        delete_written(state, files.where("file_path IS NOT NULL"))
        raise ValidationError(problem)
    return files


def refuse_transforms(state: TableState, order: SortOrder) -> None:
    """Raise UnsupportedError for a transform of the partition spec or a sort order that can't be computed."""
    metadata = state.metadata
    for owner, fields in (("partition spec", metadata.spec().fields), ("sort order", order.fields)):
        for field in fields:
            if is_unknown(field.transform):
                problem = f"no values of the transform {field.transform} of its {owner} are written"
                raise UnsupportedError(f"{metadata.location}: {problem}")
