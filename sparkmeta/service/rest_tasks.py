"""Convert planned files to scan tasks of Iceberg's REST catalog protocol (FileScanTask)."""

from __future__ import annotations

import math
import sys
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial, reduce
from operator import and_
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.exceptions import ResolveError
from pyiceberg.expressions import (
    AlwaysTrue,
    BooleanExpression,
    BoundGreaterThan,
    BoundGreaterThanOrEqual,
    BoundLessThan,
    BoundLessThanOrEqual,
    BoundLiteralPredicate,
    BoundPredicate,
    BoundSetPredicate,
)
from pyiceberg.schema import promote
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import BinaryType, DateType, FixedType, UUIDType

from sparkmeta.changes.changed_files import appended_entries
from sparkmeta.checks import NAMES
from sparkmeta.entries.relation import frame_of, may_have_elements, select, with_types
from sparkmeta.errors import InvalidFilterError, UnsupportedError
from sparkmeta.expr import sql
from sparkmeta.expr.conditions import fold, is_floating, junction_of
from sparkmeta.expr.expression_json import TRUE_JSON
from sparkmeta.expr.predicate_terms import SchemaFields
from sparkmeta.expr.sql import Sql
from sparkmeta.plan.choose import result_of
from sparkmeta.plan.filter import DELETES, SharedTexts, partition_value, residual_json
from sparkmeta.plan.match import match_deletes, read_entries
from sparkmeta.plan.tasks import content_file, content_name, single_value
from sparkmeta.scan import Scan, plans
from sparkmeta.spec.entry import METRICS_MAP_IDS
from sparkmeta.spec.metadata import is_encrypted
from sparkmeta.spec.transforms import has_unknown_values

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyspark.sql import DataFrame

    from sparkmeta.changes.range_scan import IncrementalScan
    from sparkmeta.entries.relation import Relation
    from sparkmeta.plan.filter import ScanFilter
    from sparkmeta.snapshot.state import TableState

INEXPRESSIBLE = "the REST protocol's scan tasks can't express"
"""The beginning of messages about correct plans that can't be sent."""

_RANGES = (BoundLessThan, BoundLessThanOrEqual, BoundGreaterThan, BoundGreaterThanOrEqual)
_SCHEMA = pa.schema([("task", pa.string()), ("delete_files", pa.list_(pa.string())), ("sure_rows", pa.int64())])


def to_rest_tasks(
    scan: Scan | IncrementalScan, *, null_partitions: bool = True, stats_fields: Collection[str] = ()
) -> DataFrame:
    """Return `rest_tasks` as a DataFrame."""
    tasks = rest_tasks(scan, null_partitions=null_partitions, stats_fields=stats_fields)
    return frame_of(tasks, scan.state)


@plans
def rest_tasks(
    scan: Scan | IncrementalScan, *, null_partitions: bool = True, stats_fields: Collection[str] = ()
) -> Relation:
    """Return the planned or appended files as scan tasks, as an Arrow table in memory if the driver plans them.

    A DataFrame is lazy.

    Args:
        scan: the scan.
        null_partitions: whether clients understand null in a partition's tuple.
        stats_fields: the columns whose sizes, counts and bounds to include, by their names in the scan's schema or
            the table's.

    Returns:
        One row for each data file, with the columns of `converted`.

    Raises:
        InvalidFilterError: the table has no such column.
        NoSuchSnapshotError: the table does not have a snapshot of a range.
        UnsupportedError: the protocol can't express the plan.
        ValidationError: `stats_fields` is not a collection of strings, or the history of a range has expired.
    """
    NAMES.check("stats_fields", stats_fields)
    files = scan if isinstance(scan, Scan) else scan.scan
    schemas = (files.schema(), scan.state.metadata.schema())
    ids = stats_ids_of(stats_fields, schemas, files.case_sensitive)
    if isinstance(scan, Scan):
        return _planned(scan, null_partitions, ids)
    columns = metrics_columns(ids)
    entries = appended_entries(files.plan.filter, scan.from_exclusive, scan.to_inclusive, columns)
    return no_rest_tasks() if entries is None else converted(entries, files.plan.filter, null_partitions, ids)


def _planned(scan: Scan, null_partitions: bool, stats_ids: Collection[int]) -> Relation:
    refuse_dropped(scan.state, scan.schema(), scan.selected_fields, scan.case_sensitive)
    choice, started = scan.plan.choice, time.perf_counter()
    matched = match_deletes(read_entries(choice, metrics_columns(stats_ids))).rows
    tasks = converted(matched, scan.plan.filter, null_partitions, stats_ids)
    choice.report(started, partial(result_of, matched))
    return tasks


def converted(
    matched: Relation, scan_filter: ScanFilter, null_partitions: bool, stats_ids: Collection[int]
) -> Relation:
    """Convert planned data entries to scan tasks of the REST protocol. A DataFrame is lazy.

    Args:
        matched: data entries with `deletes` and the columns of `metrics_columns`.
        scan_filter: the scan's filter.
        null_partitions: whether a partition tuple may contain null. If not, a tuple with null is written as `[]`. So is
            a tuple with bytes, since clients without null support mistake bytes for text.
        stats_ids: the columns whose sizes, counts and bounds to include.

    Returns:
        Columns `task` (the JSON of a FileScanTask without its delete-file-references), `delete_files` (an array with
        the JSON of each DeleteFile), `sure_rows` (the number of rows that are certain to match, by metadata alone).

    Raises:
        UnsupportedError: the protocol can't express the plan, or a client could not apply the filter.
    """
    _refuse_inexpressible(scan_filter)
    texts = SharedTexts.of(matched, sys.maxsize)
    readable = replace(scan_filter, row_filter=_without_infinities(scan_filter.row_filter))
    residual = residual_json(readable, texts.literal)
    partition = _partition(scan_filter.state, null_partitions)
    first_members = sql.concat('{"spec-id":', sql.col("partition_spec_id").cast("string"), ',"partition":', partition)
    members = ("file_size_in_bytes", "record_count", "split_offsets", "sort_order_id", "first_row_id")
    data_file = content_file(
        first_members,
        "data",
        {
            "file_path": sql.col("location"),
            "file_format": sql.call("lower", sql.col("file_format")),
            **{name: sql.col(name) for name in members},
            **{name: _metrics(name, stats_ids) for name in metrics_columns(stats_ids)},
        },
    )
    deletes = sql.empty_array(sql.lit(""))
    if may_have_elements(matched, DELETES):
        deletes = sql.transform(sql.col(DELETES), lambda delete: _delete_file(first_members, delete))
    no_deletes = sql.call("size", sql.col(DELETES)) == 0
    exact = residual if readable == scan_filter else residual_json(scan_filter, texts.literal)
    sure_rows = sql.when((exact == TRUE_JSON) & no_deletes, sql.col("record_count")).otherwise(0)
    columns = [
        sql.concat('{"data-file":', data_file, ',"residual-filter":', residual, "}").alias("task"),
        deletes.alias("delete_files"),
        sql.call("greatest", sure_rows, sql.lit(0).cast("bigint")).alias("sure_rows"),
    ]
    rows = select(texts.joined_to(matched, scan_filter.state), columns)
    return with_types(rows, {field.name: field for field in _SCHEMA})


def metrics_columns(stats_ids: Collection[int]) -> tuple[str, ...]:
    """Return the columns of data entries that are needed for tasks with stats of some columns."""
    return tuple(METRICS_MAP_IDS) if stats_ids else ()


def stats_ids_of(names: Collection[str], schemas: Iterable[Schema], case_sensitive: bool) -> frozenset[int]:
    """Return the ids of columns by their full names, each in the first schema that has it.

    Raises:
        InvalidFilterError: no schema has a column of that name.
    """
    fields = [SchemaFields(schema, case_sensitive) for schema in schemas] if names else []
    return frozenset(_column_id(name, fields) for name in names)


def _column_id(name: str, fields: list[SchemaFields]) -> int:
    *others, last = fields
    for schema_fields in others:
        with suppress(InvalidFilterError):
            return schema_fields.find(name).field.field_id
    return last.find(name).field.field_id


def _metrics(name: str, stats_ids: Collection[int]) -> Sql:
    """Return the values of some columns in a metrics map, in the protocol's form of maps; null if there are none."""
    values = sql.col(name)
    ids = sql.call("array", *sorted(stats_ids))
    keys = sql.call("array_intersect", sql.call("map_keys", values), ids)
    is_binary = name.endswith("_bounds")

    def value(key: Sql) -> Sql:
        return sql.call("hex", values[key]) if is_binary else values[key]

    map_part = sql.struct(keys.alias("keys"), sql.transform(keys, value).alias("values"))
    by_spark = sql.when(sql.call("size", keys) > 0, map_part).otherwise(None)
    return sql.spelled(by_spark, "map part", values, sorted(stats_ids))


def no_rest_tasks() -> pa.Table:
    """Return an empty table of scan tasks."""
    return _SCHEMA.empty_table()


def refuse_table(state: TableState) -> None:
    """Raise UnsupportedError if no plan of a table can be expressed."""
    if is_encrypted(state.metadata):
        raise UnsupportedError(f"{INEXPRESSIBLE} the keys of encrypted tables")
    for spec_id, spec in state.specs.items():
        for field in spec.fields:
            if has_unknown_values(field.transform):
                raise UnsupportedError(
                    f"{INEXPRESSIBLE} values of unknown transforms: partition field {field.name} of spec {spec_id}"
                )


def _dropped_sources(state: TableState) -> set[int]:
    """Return the source columns of identity partition fields that the table's current schema lacks."""
    return {
        field.source_id
        for spec in state.specs.values()
        for field in spec.fields
        if isinstance(field.transform, IdentityTransform) and _is_dropped(state, field)
    }


def refuse_dropped(state: TableState, schema: Schema, selected: Collection[str], case_sensitive: bool) -> None:
    """Raise UnsupportedError if readers could not get partition values that they need.

    Readers lack the values of identity partition columns that the scan reads and the table has dropped, and all values
    of columns whose ids have another type in the current schema. The protocol encodes a partition value by the column's
    type in the table's current schema.

    Args:
        schema: the scan's schema.
        selected: the names of the selected columns; `*` for all.
    """
    for field in (field for spec in state.specs.values() for field in spec.fields):
        if _is_retyped(state, field, schema):
            raise UnsupportedError(
                f"{INEXPRESSIBLE} values of the partition field {field.name}, whose column has another type in the "
                "table's current schema"
            )
    key = str if case_sensitive else str.lower
    names = {key(name) for name in selected}
    for source_id in sorted(_dropped_sources(state) & schema.field_ids):
        name = schema.find_column_name(source_id) or ""
        steps = key(name).split(".")
        if "*" in names or any(".".join(steps[:count]) in names for count in range(1, len(steps) + 1)):
            raise UnsupportedError(
                f"{INEXPRESSIBLE} partition values of {name}, which the table's current schema lacks: select other "
                "columns"
            )


def _refuse_inexpressible(scan_filter: ScanFilter) -> None:
    state = scan_filter.state
    refuse_table(state)
    sources = {
        field.source_id
        for spec in state.specs.values()
        for field in spec.fields
        if isinstance(field.transform, IdentityTransform)
    }

    def refuse(leaf: BooleanExpression, _negated: bool) -> None:
        if not isinstance(leaf, BoundPredicate) or not isinstance(leaf, _RANGES):
            return
        field = leaf.term.ref().field
        if isinstance(field.field_type, UUIDType) and field.field_id in sources:
            raise UnsupportedError(
                f"a range of UUIDs, such as of the partition column {field.name}, is different in different engines: "
                "test for equality"
            )

    fold(scan_filter.row_filter, refuse, lambda _junction, _operands: None)


def _without_infinities(bound: BooleanExpression) -> BooleanExpression:
    """Widen a filter without NOT, so that it has no infinities: JSON has none, and Java can't read what it writes."""

    def is_infinite(leaf: BooleanExpression) -> bool:
        values: Iterable[Any] = leaf.value_set if isinstance(leaf, BoundSetPredicate) else ()
        if isinstance(leaf, BoundLiteralPredicate):
            values = [leaf.literal.value]
        return any(isinstance(value, float) and not math.isfinite(value) for value in values)

    return fold(bound, lambda leaf, _negated: AlwaysTrue() if is_infinite(leaf) else leaf, junction_of)


def _delete_file(first_members: Sql, delete: Sql) -> Sql:
    """Return the JSON object of a delete file, with the spec and partition of the data file that it applies to.

    Readers ignore both, and plans would have to read the delete's own spec and partition.
    """
    members = (
        "file_path", "file_size_in_bytes", "record_count", "equality_ids", "referenced_data_file", "content_offset",
        "content_size_in_bytes",
    )  # fmt: skip
    values = {"file_format": sql.call("lower", delete["file_format"]), **{name: delete[name] for name in members}}
    return content_file(first_members, content_name(delete), values)


# -- Partitions -------------------------------------------------------------------------------------------------------


def _partition(state: TableState, null_partitions: bool) -> Sql:
    """Return the partition tuple as an array in the field order of the file's spec."""
    chosen = sql.call("raise_error", "a file of an unknown partition spec").cast("string")
    for spec_id, spec in state.specs.items():
        text = _tuple(state, spec, null_partitions)
        chosen = sql.when(sql.col("partition_spec_id") == spec_id, text).otherwise(chosen)
    return chosen


def _tuple(state: TableState, spec: PartitionSpec, null_partitions: bool) -> Sql:
    if not spec.fields:
        return sql.lit("[]")
    kinds = {field.field_id: state.types.partition_types[field.field_id] for field in spec.fields}
    text = sql.concat("[", *_separated([_value(state, field) for field in spec.fields]), "]")
    if null_partitions:
        return text
    has_bytes = any(isinstance(kind, BinaryType | FixedType) for kind in kinds.values())
    if has_bytes or any(_is_dropped(state, field) for field in spec.fields):
        return sql.lit("[]")
    complete = reduce(and_, (partition_value(field.field_id).isNotNull() for field in spec.fields))
    return sql.when(complete, text).otherwise("[]")


def _is_dropped(state: TableState, field: PartitionField) -> bool:
    return field.source_id not in state.metadata.schema().field_ids


def _is_retyped(state: TableState, field: PartitionField, schema: Schema) -> bool:
    """Return whether the current schema has another type under a column's id, as after a table was replaced."""
    current, source_id = state.metadata.schema(), field.source_id
    if source_id not in current.field_ids & schema.field_ids:
        return False
    read_type, current_type = schema.find_type(source_id), current.find_type(source_id)
    # pyiceberg does not support the promotion of dates to timestamps.
    if read_type == current_type or isinstance(read_type, DateType):
        return False
    try:
        promote(read_type, current_type)
    except ResolveError:
        return True
    return False


def _separated(values: list[Sql]) -> list[Sql]:
    comma = sql.lit(",")
    return [item for index, value in enumerate(values) for item in ([comma, value] if index else [value])]


def _value(state: TableState, field: PartitionField) -> Sql:
    """Return a partition value as JSON; null if its column has been dropped, since its type is then unknown."""
    if _is_dropped(state, field):
        return sql.lit("null")
    value, kind = partition_value(field.field_id), state.types.partition_types[field.field_id]
    with_nulls = sql.call("map", "ignoreNullFields", "false")
    wrapped = sql.call("to_json", sql.struct(single_value(value, kind).alias("x")), with_nulls)
    by_spark = sql.call("substring", wrapped, 6, sql.call("length", wrapped) - 6)
    text = sql.spelled(by_spark, "json", single_value(value, kind))
    if not is_floating(kind):
        return text
    finite = value.isNull() | (sql.call("abs", value) < sql.lit(float("inf")))
    spelled = sql.spelled(value.cast("string"), "by value", value, _not_finite)
    problem = sql.concat(f"{INEXPRESSIBLE} partition field {field.name} of ", spelled)
    return sql.when(finite, text).otherwise(sql.call("raise_error", problem).cast("string"))


def _not_finite(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
