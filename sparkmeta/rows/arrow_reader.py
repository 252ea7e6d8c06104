"""Read rows of data files with Arrow: few files on the driver, files that Spark's reader can't read in tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.types import NestedField, StructType
from pyspark.sql.types import BooleanType, IntegerType, LongType, StringType
from pyspark.sql.types import StructType as SparkStruct

from sparkmeta.arrow_types import arrow_schema, arrow_type_of, spark_type_of
from sparkmeta.entries.relation import where
from sparkmeta.errors import UnsupportedError
from sparkmeta.expr import sql
from sparkmeta.expr.arrays import whole
from sparkmeta.expr.predicate import referenced_ids, row_predicate
from sparkmeta.expr.sql import Sql
from sparkmeta.expr.types import spark_type, uuid_value
from sparkmeta.manifests.sorted_manifests import packed
from sparkmeta.plan.filter import DELETES, public_partition_type
from sparkmeta.rows.columns import (
    identity_sources,
    name_mapping,
    projected_column,
)
from sparkmeta.rows.data_file import ComparedField
from sparkmeta.rows.file_rows import (
    ALL_METADATA_COLUMNS,
    CHANGE_COLUMNS,
    SELECTED_BY,
    START,
    STOP,
    MatchingRows,
    RowReader,
)
from sparkmeta.rows.masks import DRIVER_REQUESTS
from sparkmeta.rows.planned import PARTITION
from sparkmeta.rows.resolve import IcebergColumn
from sparkmeta.session import map_arrow, map_on_driver, read_tasks
from sparkmeta.storage.encryption import KEY_METADATA

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

    from sparkmeta.entries.relation import Relation
    from sparkmeta.plan.filter import ScanFilter
    from sparkmeta.snapshot.state import TableState


# Tasks lazily read ORC and Avro files, and the Parquet files that Spark's reader can't read. A Parquet file is cut into
# parts of `PART_BYTES`; one task reads a whole ORC or Avro file. The driver reads no more than the size of one part.


PART_BYTES = 128 << 20
# Maximum bytes of files that a process without Spark reads for a change of rows.
ALONE_BYTES = 512 << 20
# The cost of opening a file, in bytes to read (Iceberg's default of read.split.open-file-cost).
_OPEN_FILE = 4 << 20

_METADATA_TYPES = {"string": StringType(), "long": LongType(), "int": IntegerType(), "boolean": BooleanType()}

PLANNED = (
    "file_path", "file_format", "spec_id", "record_count", "first_row_id", "data_sequence_number", DELETES,
)  # fmt: skip
"""The columns of a plan that tasks need to read a data file."""
_OPTIONAL = (PARTITION, KEY_METADATA, SELECTED_BY, *CHANGE_COLUMNS)
"""Further columns that tasks need if the plan contains them."""


def read_by_tasks(
    scan_filter: ScanFilter, planned: DataFrame, projected: Schema, metadata_columns: Sequence[str] = ()
) -> DataFrame:
    """Return the live rows of planned data files that match a filter.

    Args:
        scan_filter: the filter and the table.
        planned: any rows of `plan_files`.
        projected: the columns of the table to read.
        metadata_columns: names of metadata columns, which follow the table's columns. With `_deleted`, deleted rows are
            included.

    Raises:
        UnsupportedError: tasks can't open the table's files in this session.
    """
    state = scan_filter.state
    leaves = filter_leaves(scan_filter)
    rows = task_rows(state, projected, metadata_columns, leaves)
    row_type = _row_type(state, projected, rows.columns[len(projected.fields) :], leaves)
    with_leaves = map_arrow(planned_parts(planned).repartition(read_tasks(state.spark)), rows.read, row_type)
    matching = where(with_leaves, _matches(scan_filter))
    return matching.select(row_type.fieldNames()[: len(rows.columns)]).toDF(*(column.name for column in rows.columns))


def few_planned(planned: Relation, state: TableState) -> pa.Table | None:
    """Return planned files as a table if the driver has planned them and can read them itself; None if not.

    The driver reads few files, with a total size of at most one part.
    """
    if not isinstance(planned, pa.Table) or state.access.driver is None or state.access.tasks is None:
        return None
    deletes = pa.Table.from_struct_array(whole(planned.column(DELETES)).flatten())
    deletes = deletes.group_by(["file_path", "content_offset"]).aggregate(
        [("content_size_in_bytes", "max"), ("file_size_in_bytes", "max")]
    )
    sizes = pc.coalesce(deletes.column("content_size_in_bytes_max"), deletes.column("file_size_in_bytes_max"))
    size = sum(
        pc.sum(byte_counts, min_count=0).as_py() for byte_counts in (planned.column("file_size_in_bytes"), sizes)
    )
    is_small = size <= PART_BYTES and len(planned) + len(deletes) <= DRIVER_REQUESTS
    return planned if (size <= ALONE_BYTES if state.access.alone else is_small) else None


def read_on_driver(
    scan_filter: ScanFilter,
    planned: pa.Table,
    projected: Schema,
    metadata_columns: Sequence[str] = (),
    row_limit: int | None = None,
    *,
    matches: bool = True,
    keep: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None,
) -> pa.Table:
    """Return the rows of `read_by_tasks` in memory, read by threads of the driver.

    Args:
        scan_filter: the filter and the table.
        planned: rows of `plan_files` that `few_planned` returns.
        projected: the columns of the table to read.
        metadata_columns: names of metadata columns, which follow the table's columns.
        row_limit: the maximum number of rows. Files are then read one after another until there are enough.
        matches: whether to return the rows that match the filter, or the rows that don't.
        keep: filters a batch to the rows to return; None to return all rows.

    Raises:
        CorruptFileError: a data file or delete file is damaged.
        NotFoundError: a data file or delete file is missing.
    """
    rows, units = matching_rows(scan_filter, projected, metadata_columns, matches=matches), _whole_files(planned)
    if row_limit is None:
        read = rows.read if keep is None else lambda parts: map(keep, rows.read(parts))
        return map_on_driver(units, read, rows.schema, runs=True)
    return pa.Table.from_batches(_limited(rows.read(units.to_batches()), row_limit), rows.schema)


def streamed_rows(scan_filter: ScanFilter, projected: Schema, metadata_columns: Sequence[str] = ()) -> MatchingRows:
    """Return a reader that yields the rows of `read_by_tasks` on the driver, for `read_in_batches`.

    Raises:
        UnsupportedError: the driver can't open the table's files in this session.
    """
    rows, state = matching_rows(scan_filter, projected, metadata_columns), scan_filter.state
    if state.access.driver is None:
        raise UnsupportedError(
            f"{state.metadata.location}: the driver does not open files in this session, by its settings or for want "
            "of credentials: use to_df()"
        )
    return rows


def read_in_batches(
    rows: MatchingRows, planned: Iterable[pa.Table], row_limit: int | None = None
) -> pa.RecordBatchReader:
    """Return a reader of rows. The driver reads one file after another, as the caller asks for batches.

    The driver holds a batch of one file, and the deletes that `DeleteReader` caches.

    Args:
        rows: reads the files.
        planned: rows of `plan_files`, in tables.
        row_limit: the maximum number of rows.
    """
    batches = rows.read(batch for files in planned for batch in _whole_files(files).to_batches())
    limited = batches if row_limit is None else _limited(batches, row_limit)
    return pa.RecordBatchReader.from_batches(rows.schema, limited)


def _whole_files(planned: pa.Table) -> pa.Table:
    """Return the `parts` of files that are not cut: one part for each file."""
    further_columns = [name for name in _OPTIONAL if name in planned.column_names]
    units = planned.select([*PLANNED, *further_columns]).append_column(
        START, pa.repeat(pa.scalar(0, pa.int64()), len(planned))
    )
    return units.append_column(STOP, pa.nulls(len(units), pa.int64()))


def _limited(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the first `rows` rows of batches. Consume no more batches than needed."""
    for batch in batches if rows else ():
        yield batch.slice(0, rows)
        rows -= min(rows, len(batch))
        if not rows:
            return


def _matches(scan_filter: ScanFilter) -> Sql:
    """Return the filter as a condition on the rows that tasks yield."""
    return row_predicate(scan_filter.row_filter, _leaf_value(leaves_of(scan_filter.schema)))


def row_type(state: TableState, projected: Schema, metadata_columns: Iterable[str]) -> SparkStruct:
    """Return the type of the rows of a scan."""
    result = SparkStruct()
    for field in projected.fields:
        result.add(field.name, spark_type(field.field_type))
    for name in metadata_columns:
        result.add(name, metadata_type(ALL_METADATA_COLUMNS[name], state))
    return result


def matching_rows(
    scan_filter: ScanFilter, projected: Schema, metadata_columns: Sequence[str], *, matches: bool = True
) -> MatchingRows:
    """Return the reader of the rows that match a filter, or of the rows that don't; see `read_by_tasks`."""
    state = scan_filter.state
    rows = task_rows(state, projected, metadata_columns, filter_leaves(scan_filter))
    condition, schema = _matches(scan_filter), arrow_schema(row_type(state, projected, metadata_columns))
    return MatchingRows(rows, condition if matches else ~condition, schema)


def parts_table(planned: pa.Table, *others: str) -> tuple[pa.Table, np.ndarray[Any, np.dtype[np.int64]]]:
    """Return the `parts` of files that the driver has planned, with the columns that tasks need, and the parts' sizes.

    Args:
        planned: rows of `plan_files`.
        others: names of further columns to keep.
    """
    length = planned.column("file_size_in_bytes").to_numpy()
    is_parquet = pc.equal(pc.utf8_upper(planned.column("file_format")), "PARQUET").to_numpy()
    last_part = np.maximum(length - 1, 0) // PART_BYTES * is_parquet
    files = np.repeat(np.arange(len(planned)), last_part + 1)
    part = np.arange(len(files)) - np.repeat(np.cumsum(last_part + 1) - last_part - 1, last_part + 1)
    is_last = part == last_part[files]
    sizes = np.where(is_last, length[files] - part * PART_BYTES, PART_BYTES)
    names = [
        *PLANNED,
        *others,
        *(name for name in _OPTIONAL if name in planned.column_names),
    ]
    stop = pc.if_else(pa.array(is_last), pa.scalar(None, pa.int64()), pa.array((part + 1) * PART_BYTES))
    rows = planned.select(names).take(pa.array(files)).append_column(START, pa.array(part * PART_BYTES))
    return rows.append_column(STOP, stop), sizes


def row_shares(parts: pa.Table, sizes: np.ndarray[Any, np.dtype[np.int64]]) -> Iterator[pa.Table]:
    """Pack neighbouring parts of files, as `parts_table` returns them, into shares, each for one task."""
    for rows in packed(range(len(parts)), PART_BYTES, (sizes + _OPEN_FILE).tolist().__getitem__):
        yield parts.slice(rows[0], len(rows))


def task_rows(
    state: TableState, projected: Schema, metadata_columns: Sequence[str] = (), leaves: tuple[ComparedField, ...] = ()
) -> RowReader:
    """Return the reader of planned data files for tasks; see `read_by_tasks`.

    Args:
        state: the table.
        projected: the columns of the table to read.
        metadata_columns: names of metadata columns, which follow the table's columns.
        leaves: fields of the table, which follow the columns.

    Raises:
        UnsupportedError: tasks can't open the table's files in this session.
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
        _identity_indices(state),
    )


def _row_type(
    state: TableState, projected: Schema, metadata: Iterable[IcebergColumn], leaves: Iterable[ComparedField]
) -> SparkStruct:
    """Return the type of the rows that tasks yield. Columns are named by index, since their names may clash."""
    row_type = SparkStruct()
    for field in projected.fields:
        row_type.add(f"c{len(row_type)}", spark_type(field.field_type))
    for column in metadata:
        row_type.add(f"c{len(row_type)}", metadata_type(column, state))
    for leaf in leaves:
        row_type.add(_leaf_name(leaf.id), spark_type_of(leaf.unnested().kind))
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


def _identity_indices(state: TableState) -> dict[int, dict[int, int | None]]:
    """Return spec id -> column id -> the index of its identity partition field in `partition`.

    The index is None if plans omit the field because its column was dropped.
    """
    index_by_field = {field.field_id: index for index, field in enumerate(state.types.partition_type.fields)}
    return {
        spec_id: {column_id: index_by_field.get(field_id) for column_id, field_id in identity_sources(spec).items()}
        for spec_id, spec in state.specs.items()
    }


def planned_parts(planned: DataFrame) -> DataFrame:
    """Return the `parts` of files with the columns that tasks need to read their rows."""
    return parts(planned, *(name for name in _OPTIONAL if name in planned.columns))


def parts(planned: DataFrame, *others: str) -> DataFrame:
    """Return one row per part of the files. A file's last part has no end, regardless of the size in the manifest.

    Args:
        planned: rows of `plan_files`.
        others: names of further columns to keep, which not all plans have.
    """
    last_part = f"IF(upper(file_format) = 'PARQUET', greatest(file_size_in_bytes - 1, 0) div {PART_BYTES}, 0L)"
    numbered = planned.selectExpr(
        *PLANNED, *others, f"{last_part} AS last", f"explode(sequence(0L, {last_part})) AS part"
    )
    stop = f"IF(part = last, NULL, (part + 1) * {PART_BYTES}) AS {STOP}"
    return numbered.selectExpr(*PLANNED, *others, f"part * {PART_BYTES} AS {START}", stop)


def _leaf_name(field_id: int) -> str:
    return f"leaf{field_id}"


def _leaf_value(leaves: Mapping[int, ComparedField]) -> Callable[[int], Sql]:
    """Return a function that maps a field id to the SQL of the field's value in bound form."""

    def value(field_id: int) -> Sql:
        column = sql.col(_leaf_name(field_id))
        return uuid_value(column) if leaves[field_id].unnested().column.type == "uuid" else column

    return value
