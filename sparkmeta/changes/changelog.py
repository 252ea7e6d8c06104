"""Read the rows that snapshots inserted and deleted: for each snapshot, how the table's rows differ before and after.

Rows are compared as multisets. A row that a snapshot deleted and inserted again, for example by overwriting its file,
is not a change. Snapshots of the operation `replace` change no rows and are skipped.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    FloatType,
    MapType,
    StructType,
    VariantType,
)

from sparkmeta.changes.changed_files import DELETE, INSERT, changed_files
from sparkmeta.changes.file_changes import snapshots_between
from sparkmeta.errors import ValidationError
from sparkmeta.expr import sql
from sparkmeta.expr.sql import Sql
from sparkmeta.expr.types import spark_type
from sparkmeta.rows.columns import field_values, shaped, struct_fields
from sparkmeta.rows.file_rows import CHANGE_COLUMNS
from sparkmeta.rows.read import RowScan, are_few, empty_rows, rows_of, rows_of_few, union_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pyiceberg.schema import Schema
    from pyspark.sql import Column, DataFrame

    from sparkmeta.rows.planned import PlannedFiles

UPDATE_BEFORE: Final = "UPDATE_BEFORE"
UPDATE_AFTER: Final = "UPDATE_AFTER"

REPLACE: Final = "replace"
"""The operation of snapshots that change no rows."""
_TYPE, _ORDINAL, _SNAPSHOT = CHANGE_COLUMNS
_COUNTS: Final = {DELETE: "deletes", INSERT: "inserts"}
_COUNT, _STEPS, _NET, _COPY = "change_count", "change_steps", "net_change", "copy"


@dataclass(frozen=True)
class Changelog:
    """The changes to read.

    Attributes:
        scan: the filter and columns. All rows are read with their schema.
        from_exclusive: the snapshot to begin after; None for the whole history.
        to_inclusive: the last snapshot; None for the current one.
        net_changes: whether to leave out rows that are both inserted and deleted within the range.
        identifiers: ids of the columns that are equal in both rows of an update; empty to label no updates.
    """

    scan: RowScan
    from_exclusive: int | None
    to_inclusive: int | None
    net_changes: bool = False
    identifiers: tuple[int, ...] = ()


def read_changelog(changelog: Changelog, planned: Callable[[Iterable[PlannedFiles]], None]) -> DataFrame:
    """Return the changed rows with the scan's columns, then `CHANGE_COLUMNS`.

    Plans run at once (see `changed_files`); rows are read when the DataFrame runs.

    Args:
        changelog: what to read.
        planned: called with the planned files.

    Raises:
        NoSuchSnapshotError: the table does not have one of the snapshots.
        ValidationError: the first is not an ancestor of the second, or the history between them has expired; see also
            `refuse_change_columns`.
    """
    scan, schema = changelog.scan, changelog.scan.filter.schema
    state = scan.state
    refuse_change_columns(scan)
    snapshots = [
        snapshot
        for snapshot in snapshots_between(state.metadata, changelog.from_exclusive, changelog.to_inclusive)
        if snapshot.operation != REPLACE
    ]
    rows = replace(scan, metadata_columns=tuple(CHANGE_COLUMNS))
    files = changed_files(scan.filter, snapshots)
    planned([] if files is None else files.all_parts())
    if files is None:
        return empty_rows(rows)
    compared, others = files.all_parts(), []
    if not changelog.net_changes:
        compared, others = files.parts(files.mixed_ordinals), files.parts(files.mixed_ordinals, invert=True)
    read = rows_of_few if are_few(scan, files.all_parts()) else rows_of
    frames = [read(rows, part) for part in others]
    if compared:
        whole_rows = replace(rows, projection=schema)
        changed = _ComparedRows(schema, union_of(whole_rows, [read(whole_rows, part) for part in compared]))
        frames.append(changed.changes(changelog).selectExpr(*_projected(scan.projection, schema)))
    return union_of(rows, frames)


def refuse_change_columns(scan: RowScan) -> None:
    """Raise ValidationError if the table has columns that `CHANGE_COLUMNS` hide, or the scan has metadata columns."""
    if scan.metadata_columns:
        raise ValidationError(f"a changelog has no column {scan.metadata_columns[0]}")
    for field in scan.filter.schema.fields:
        if field.name.lower() in CHANGE_COLUMNS:
            location = scan.state.metadata.location
            raise ValidationError(f"{location}: column {field.name} has the name of a changelog's column")


def _projected(projection: Schema, schema: Schema) -> list[str]:
    """Return the columns of a projection and `CHANGE_COLUMNS`, as SQL over `c0`, `c1` ... for the schema's columns."""
    index_by_id = {field.field_id: index for index, field in enumerate(schema.fields)}
    columns = []
    for field in projection.fields:
        index = index_by_id[field.field_id]
        value = shaped(_column(index), schema.fields[index].field_type, field.field_type, is_public=True)
        columns.append(value.alias(field.name).selected)
    return [*columns, *CHANGE_COLUMNS]


def fields_of_rows(schema: Schema) -> dict[int, Sql]:
    """Return the fields of a schema by id, as SQL over columns `c0`, `c1` ..., except those inside lists and maps."""
    return {
        field_id: value
        for index, field in enumerate(schema.fields)
        for field_id, value in field_values(field, _column(index))
    }


def _name(index: int) -> str:
    return f"c{index}"


def _column(index: int) -> Sql:
    return sql.col(_name(index))


@dataclass(frozen=True)
class _ComparedRows:
    """Inserted and deleted rows that may cancel each other out.

    Rows are grouped by keys `k0`, `k1` ..., since Spark can't group values of all types and treats -0.0 as 0.0. If a
    key is not the value itself, the value of the group's first row is used.

    Attributes:
        schema: the schema of the rows.
        rows: the columns of the schema, then `CHANGE_COLUMNS`.
    """

    schema: Schema
    rows: DataFrame

    def changes(self, changelog: Changelog) -> DataFrame:
        """Return the remaining changes: `c0`, `c1` ... for the columns of the schema, and `CHANGE_COLUMNS`."""
        names = [_name(index) for index in range(len(self.schema.fields))]
        named = self.rows.toDF(*names, *CHANGE_COLUMNS)
        types = [spark_type(field.field_type) for field in self.schema.fields]
        keys = [_comparable(_column(index), kind).alias(f"k{index}") for index, kind in enumerate(types)]
        values = [name for index, name in enumerate(names) if keys[index].text != _column(index).text]
        count = sql.when(sql.col(_TYPE) == INSERT, 1).otherwise(-1).cast("bigint").alias(_COUNT)
        rows = named.selectExpr(*sql.texts(keys), *values, _ORDINAL, _SNAPSHOT, count.selected)
        key_names = [key.name for key in keys]
        counted = _grouped(rows, [*key_names, _ORDINAL, _SNAPSHOT], values, F.sum(_COUNT).alias(_COUNT))
        counted = counted.where(f"{_COUNT} <> 0")
        if changelog.net_changes:
            counted = _netted(counted, key_names, values)
        column_texts = [
            name if name in values else f"{key_name} AS {name}" for name, key_name in zip(names, key_names, strict=True)
        ]
        kind = f"IF({_COUNT} > 0, '{INSERT}', '{DELETE}') AS {_TYPE}"
        copies = f"explode(sequence(1L, abs({_COUNT}))) AS {_COPY}"
        changes = counted.selectExpr(*column_texts, kind, _ORDINAL, _SNAPSHOT, copies).drop(_COPY)
        return self._with_updates(changes, changelog) if changelog.identifiers else changes

    def _with_updates(self, changes: DataFrame, changelog: Changelog) -> DataFrame:
        """Label a deleted and an inserted row of one snapshot with the same identifier as an update."""
        by_id = fields_of_rows(self.schema)
        identifier = [by_id[field_id] for field_id in changelog.identifiers]
        kinds = [spark_type(self.schema.find_field(field_id).field_type) for field_id in changelog.identifiers]
        keys = (_comparable(value, kind) for value, kind in zip(identifier, kinds, strict=True))
        window = f"OVER (PARTITION BY {_ORDINAL}, {', '.join(key.text for key in keys)})"
        counts = [f"count_if({_TYPE} = '{kind}') {window} AS {name}" for kind, name in _COUNTS.items()]
        deletes, inserts = map(sql.col, _COUNTS.values())
        names = ", ".join(self.schema.find_column_name(field_id) or "" for field_id in changelog.identifiers)
        texts = sql.call("concat_ws", ", ", *(sql.coalesce(value.cast("string"), "null") for value in identifier))
        location = changelog.scan.state.metadata.location
        problem = f"{location}: a snapshot inserted or deleted several rows with the same {names}: "
        refused = sql.raise_error(sql.concat(problem, texts)).cast("string")
        update = sql.when(sql.col(_TYPE) == DELETE, UPDATE_BEFORE).otherwise(UPDATE_AFTER)
        kind = (
            sql.when((deletes == 0) | (inserts == 0), sql.col(_TYPE))
            .when((deletes == 1) & (inserts == 1), update)
            .otherwise(refused)
        )
        columns = [name for name in changes.columns if name != _TYPE]
        counted = changes.selectExpr("*", *counts)
        named = counted.selectExpr(*columns, kind.alias(_TYPE).selected)
        return named.select(*changes.columns)


def _grouped(rows: DataFrame, keys: Sequence[str], values: Sequence[str], *aggregates: Column) -> DataFrame:
    return rows.groupBy(*keys).agg(*aggregates, *(F.first(name).alias(name) for name in values))


def _netted(counted: DataFrame, keys: Sequence[str], values: Sequence[str]) -> DataFrame:
    """Sum the changes of each row over all snapshots.

    The remaining changes have the ordinal and snapshot of the first change that no later one undoes, as in Iceberg's
    Java library.
    """
    fields = (_ORDINAL, _SNAPSHOT, _COUNT)
    steps = F.array_sort(F.collect_list(F.struct(*fields))).alias(_STEPS)
    start = sql.struct(
        *(sql.lit(0).cast(kind).alias(name) for name, kind in zip(fields, ("int", "bigint", "bigint"), strict=True))
    )

    def added(total: Sql, step: Sql) -> Sql:
        count = total[_COUNT] + step[_COUNT]
        same_sign = sql.call("signum", total[_COUNT]) == sql.call("signum", count)
        first_change = (
            sql.when(same_sign, total[name]).otherwise(step[name]).alias(name) for name in (_ORDINAL, _SNAPSHOT)
        )
        return sql.struct(*first_change, count.alias(_COUNT))

    net = sql.aggregate(sql.col(_STEPS), start, added).alias(_NET)
    grouped = _grouped(counted, keys, values, steps).selectExpr(*keys, *values, net.selected)
    return grouped.selectExpr(*keys, *values, f"{_NET}.*").where(f"{_COUNT} <> 0")


def _comparable(value: Sql, kind: DataType) -> Sql:
    """Return an expression that is equal for equal values and has a type that Spark can group."""
    match kind:
        case FloatType() | DoubleType():
            return value.cast("string")
        case VariantType():
            return sql.concat(sql.call("schema_of_variant", value), " ", sql.call("to_json", value))
        case StructType():
            values = struct_fields(value, kind)
            keys = [_comparable(*pair) for pair in zip(values, (field.dataType for field in kind.fields), strict=True)]
            if all(key.text == field.text for key, field in zip(keys, values, strict=True)):
                return value
            return sql.when(value.isNotNull(), sql.struct(*(key.alias(f"f{index}") for index, key in enumerate(keys))))
        case ArrayType():
            with_keys = sql.transform(value, lambda element: _comparable(element, kind.elementType))
            is_same = sql.transform(value, lambda element: element).text == with_keys.text
            return value if is_same else with_keys
        case MapType():

            def entry(pair: Sql) -> Sql:
                key, item = _comparable(pair["key"], kind.keyType), _comparable(pair["value"], kind.valueType)
                return sql.struct(key.alias("key"), item.alias("value"))

            return sql.call("array_sort", sql.transform(sql.call("map_entries", value), entry))
    return value
