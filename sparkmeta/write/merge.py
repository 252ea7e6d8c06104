"""Merges and upserts: clauses that update, delete and insert rows by how they match a source."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property, reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, GreaterThanOrEqual, IsNull, LessThanOrEqual, Or
from pyiceberg.expressions.literals import DateLiteral
from pyiceberg.schema import Schema
from pyiceberg.types import DateType, IcebergType, IntegerType, LongType, MapType, PrimitiveType, StringType, UUIDType
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType

from sparkmeta.checks import NAMES
from sparkmeta.errors import ValidationError, hint_at, shown
from sparkmeta.expr.arrays import whole
from sparkmeta.expr.sql import quoted
from sparkmeta.rows.columns import child_fields, type_name
from sparkmeta.spec.schema import VariantType
from sparkmeta.text import counted
from sparkmeta.write.files import checkpointed
from sparkmeta.write.input import (
    assigned_values,
    check_columns,
    default_column,
    evaluated_type,
    nested_value,
    require_frame,
)
from sparkmeta.write.matching import FILE, POSITION, Matching, masks_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from sparkmeta.rows.planned import PlannedFiles
    from sparkmeta.snapshot.state import TableState
    from sparkmeta.write.matching import Masks


# -- The filter of keys -----------------------------------------------------------------------------------------------
# Every row with one of the keys satisfies the filter. It prunes files and limits conflicts.


# Key types whose minimum and maximum prune files.
_RANGED: Final = (IntegerType, LongType, StringType, DateType)


@dataclass(frozen=True)
class KeyRange:
    """The range of a key column, in days since 1970 for dates, and whether the column has nulls."""

    least: Any
    greatest: Any
    has_nulls: bool


def ranged_keys(keys: Sequence[str], schema: Schema) -> list[str]:
    """Return the key columns whose lowest and highest values prune files."""
    return [name for name in keys if isinstance(schema.find_field(name).field_type, _RANGED)]


def key_filter(ranges: Mapping[str, KeyRange], schema: Schema, *, null_is_a_key: bool = False) -> BooleanExpression:
    """Return a filter that every row of the table with a key in the ranges of its columns satisfies.

    Args:
        ranges: key column -> its range.
        schema: the table's schema.
        null_is_a_key: whether a null in a key equals null.
    """
    row_filter: BooleanExpression = AlwaysTrue()
    for name, key_range in ranges.items():
        least, greatest = key_range.least, key_range.greatest
        is_null = IsNull(name)  # type: ignore[arg-type, call-arg]
        if least is None:
            if null_is_a_key:
                row_filter = And(row_filter, is_null)
            continue
        if isinstance(schema.find_field(name).field_type, DateType):
            least, greatest = DateLiteral(least), DateLiteral(greatest)
        at_least = GreaterThanOrEqual(name, least)  # type: ignore[arg-type, call-arg]
        at_most = LessThanOrEqual(name, greatest)  # type: ignore[arg-type, call-arg]
        in_range: BooleanExpression = And(at_least, at_most)
        if null_is_a_key and key_range.has_nulls:
            in_range = Or(in_range, is_null)
        row_filter = And(row_filter, in_range)
    return row_filter


def count_and_range(
    rows: DataFrame, schema: Schema, keys: Sequence[str], *, null_is_a_key: bool = False
) -> tuple[int, BooleanExpression]:
    """Return the number of rows, and a filter that every table row with one of their keys satisfies. Runs a job.

    Args:
        rows: the rows, with the columns of the key.
        schema: the table's schema.
        keys: the key columns, all top-level.
        null_is_a_key: whether a null in a key equals null.
    """
    ranged = ranged_keys(keys, schema)
    ends = [
        end(_comparable(quoted(name), schema.find_field(name).field_type)).alias(f"{end.__name__}{index}")
        for index, name in enumerate(ranged)
        for end in (F.min, F.max, F.count)
    ]
    values = rows.agg(F.count("*").alias("count"), *ends).toArrow().to_pylist()[0]
    ranges = {
        name: KeyRange(values[f"min{index}"], values[f"max{index}"], values[f"count{index}"] < values["count"])
        for index, name in enumerate(ranged)
    }
    return values["count"], key_filter(ranges, schema, null_is_a_key=null_is_a_key)


def range_of_rows(
    rows: pa.Table, schema: Schema, keys: Sequence[str], *, null_is_a_key: bool = False
) -> BooleanExpression:
    """Return the filter of `count_and_range` for rows in memory."""
    ranges = {}
    for name in ranged_keys(keys, schema):
        values = whole(rows.column(name))
        if isinstance(schema.find_field(name).field_type, DateType):
            values = values.cast(pa.int32())  # Python has no dates after the year 9999
        ends = pc.min_max(values).as_py()
        ranges[name] = KeyRange(ends["min"], ends["max"], bool(values.null_count))
    return key_filter(ranges, schema, null_is_a_key=null_is_a_key)


def _comparable(name: str, kind: IcebergType) -> Column:
    """Return a key column with the order of the table's values, which a collation of the rows may lack."""
    if isinstance(kind, DateType):
        return F.unix_date(name)  # Python has no dates after the year 9999.
    return F.col(name).cast("string") if isinstance(kind, StringType) else F.col(name)


# -- `Merge`, the builder of merges -----------------------------------------------------------------------------------


ResultT = TypeVar("ResultT")


class When(StrEnum):
    """The rows that a clause applies to."""

    MATCHED = "when_matched"
    NOT_MATCHED = "when_not_matched"
    NOT_MATCHED_BY_SOURCE = "when_not_matched_by_source"


class Action(StrEnum):
    """The action of a clause."""

    UPDATE = "update"
    DELETE = "delete"
    INSERT = "insert"


@dataclass(frozen=True)
class Clause:
    """A clause of a merge.

    Attributes:
        when: the rows that the clause applies to.
        condition: restricts these rows; None for all.
        action: the action on the rows.
        values: the values of columns; None for the source's values.
    """

    when: When
    condition: Column | str | None
    action: Action
    values: Mapping[str, Any] | None = None

    @property
    def takes_all(self) -> bool:
        """Whether the clause assigns the values of all the source's columns."""
        return self.action != Action.DELETE and self.values is None


@dataclass(frozen=True)
class MergeRequest:
    """A merge to carry out.

    Attributes:
        source: the rows to merge.
        on: the condition on which rows match, or the key columns.
        clauses: what happens to the rows.
    """

    source: DataFrame
    on: str | Sequence[str] | Column
    clauses: tuple[Clause, ...] = ()


@dataclass(frozen=True, repr=False)
class Merge(Generic[ResultT]):
    """Collects the clauses of a merge; see `Table.merge`. Each method returns a new object.

    Conditions and values are Columns over `target.<column>` and `source.<column>`; conditions may also be SQL text.
    Among the clauses of one kind, the first whose condition holds for a row applies to it.
    """

    _request: MergeRequest
    _run: Callable[[MergeRequest], ResultT]

    def __repr__(self) -> str:
        return f"Merge(on={shown(str(self._request.on))}, {counted(len(self._request.clauses), 'clause')})"

    def when_matched(self, condition: Column | str | None = None) -> WhenMatched[ResultT]:
        """Begin a clause for rows of the table that match a row of the source."""
        return WhenMatched(self, When.MATCHED, condition)

    def when_not_matched(self, condition: Column | str | None = None) -> WhenNotMatched[ResultT]:
        """Begin a clause for rows of the source that match no row of the table."""
        return WhenNotMatched(self, condition)

    def when_not_matched_by_source(self, condition: Column | str | None = None) -> WhenNotMatchedBySource[ResultT]:
        """Begin a clause for rows of the table that match no row of the source."""
        return WhenNotMatchedBySource(self, When.NOT_MATCHED_BY_SOURCE, condition)

    def merge(self) -> ResultT:
        """Run the merge. Return the table after its commit, or the transaction that it is part of.

        Raises:
            ValidationError: there is no clause, or a clause without a condition precedes another of its kind; a
                condition or value can't be evaluated; a row of the table matches several rows of the source; or as
                `Table.append`.
            CommitConflictError: another commit changed the data that this merge is based on.
        """
        clauses = self._request.clauses
        if not clauses:
            raise ValidationError("a merge needs at least one clause: when_matched().update_all(), for example")
        for when in When:
            same_kind = [clause for clause in clauses if clause.when == when]
            if any(clause.condition is None for clause in same_kind[:-1]):
                problem = "a clause without a condition precedes others of its kind, which would never apply"
                raise ValidationError(f"{when}: {problem}")
        return self._run(self._request)

    def _with(self, clause: Clause) -> Merge[ResultT]:
        return replace(self, _request=replace(self._request, clauses=(*self._request.clauses, clause)))


@dataclass(frozen=True)
class _TargetClause(Generic[ResultT]):
    """A clause for rows of the table."""

    _merge: Merge[ResultT]
    _when: When
    _condition: Column | str | None

    def update(self, assignments: Mapping[str, Column | Any]) -> Merge[ResultT]:
        """Assign values to columns, given as column name -> value or Column. Other columns keep their values.

        A field of a struct is assigned by its path, such as `address.zip`.
        """
        return self._merge._with(Clause(self._when, self._condition, Action.UPDATE, dict(assignments)))

    def delete(self) -> Merge[ResultT]:
        """Delete the rows."""
        return self._merge._with(Clause(self._when, self._condition, Action.DELETE))


@dataclass(frozen=True)
class WhenMatched(_TargetClause[ResultT]):
    """A clause for rows of the table that match a row of the source."""

    def update_all(self) -> Merge[ResultT]:
        """Assign the source's values to the columns of the same names. Other columns keep their values."""
        return self._merge._with(Clause(self._when, self._condition, Action.UPDATE))


@dataclass(frozen=True)
class WhenNotMatchedBySource(_TargetClause[ResultT]):
    """A clause for rows of the table that match no row of the source."""


@dataclass(frozen=True)
class WhenNotMatched(Generic[ResultT]):
    """A clause for rows of the source that match no row of the table."""

    _merge: Merge[ResultT]
    _condition: Column | str | None

    def insert(self, values: Mapping[str, Column | Any]) -> Merge[ResultT]:
        """Insert rows, given column name -> value or Column. Other columns get their write default, or null."""
        return self._merge._with(Clause(When.NOT_MATCHED, self._condition, Action.INSERT, dict(values)))

    def insert_all(self) -> Merge[ResultT]:
        """Insert rows with the values of the source's columns of the same names, as `Table.append` does."""
        return self._merge._with(Clause(When.NOT_MATCHED, self._condition, Action.INSERT))


# -- The source of a merge --------------------------------------------------------------------------------------------
# The source is checked and computed once. Its keys determine a filter that every matched row of the table satisfies.


SOURCE_ROW: Final = "_merge_source_row"
"""The column with a number for each row of the source."""

_ROWS: Final = "_merge_rows"


@dataclass(frozen=True)
class MergeSource:
    """The rows of the source.

    Attributes:
        rows: the rows with `SOURCE_ROW`, checkpointed.
        keys: the key columns; None if rows match by a condition.
        count: the number of rows.
        range: a filter that every matching row of the table satisfies.
        duplicate: a key that occurs in several rows; None if keys are unique or there are none.
    """

    rows: DataFrame
    keys: tuple[str, ...] | None
    count: int
    range: BooleanExpression
    duplicate: dict[str, object] | None

    @property
    def is_unique(self) -> bool:
        """Whether no row of the table can match two rows of the source."""
        return self.keys is not None and self.duplicate is None


def merge_source(merge: MergeRequest, schema: Schema, table: str) -> MergeSource:
    """Check the source of a merge against a table and compute its rows. Runs jobs.

    Args:
        merge: the merge.
        schema: the table's schema.
        table: the table, for errors.

    Raises:
        ValidationError: a column that the merge uses has a different type; or a key is not in both.
        UnsupportedError: a column has a type that can't be written; or the session can't checkpoint rows.
    """
    source = merge.source
    require_frame(source, table)
    keys = _keys(merge, schema, table)
    if any(clause.takes_all for clause in merge.clauses):
        _check(merge, schema, table)
        source = _as_in_table(source, schema)
    elif keys is not None:
        names = set(keys)
        key_schema = Schema(*(field for field in schema.fields if field.name in names))
        check_columns(source.select(*map(quoted, keys)), key_schema, table)
        # UUIDs may have any notation, and strings a collation.
        converted = (field for field in key_schema.fields if isinstance(field.field_type, UUIDType | StringType))
        source = _as_in_table(source, Schema(*converted))
    rows = checkpointed(source.withColumn(SOURCE_ROW, F.monotonically_increasing_id()))
    count, row_filter = count_and_range(rows, schema, keys or ())
    duplicate = None
    if keys is not None:
        columns = [F.col(quoted(name)) for name in keys]
        counts = rows.dropna(subset=list(map(quoted, keys))).groupBy(*columns).agg(F.count("*").alias(_ROWS))
        duplicates = counts.where(F.col(_ROWS) > 1).limit(1)
        duplicate = next(
            iter(duplicates.select(*map(_shown, duplicates.drop(_ROWS).dtypes)).toArrow().to_pylist()), None
        )
    return MergeSource(rows, keys, count, row_filter, duplicate)


def _shown(column: tuple[str, str]) -> Column:
    """Return a key column, given as (name, type), for an error message. Python has no dates after the year 9999."""
    name, kind = column
    value = F.col(quoted(name))
    return value.cast("string").alias(name) if kind.startswith(("date", "timestamp")) else value


def _keys(merge: MergeRequest, schema: Schema, table: str) -> tuple[str, ...] | None:
    """Return the names of the key columns; None if rows match by a condition."""
    on = merge.on
    if isinstance(on, str):
        if on not in {field.name for field in schema.fields}:
            return None
        on = (on,)
    elif not isinstance(on, Sequence):
        return None
    return key_names(on, merge.source.columns, schema, table)


def key_names(names: Sequence[str], present: Sequence[str], schema: Schema, table: str) -> tuple[str, ...]:
    """Return the names of key columns.

    Args:
        names: the names that the caller gave.
        present: the columns of the rows.
        schema: the table's schema.
        table: the table, for errors.

    Raises:
        ValidationError: there is no name; a column is not in both the rows and the table; or it is not primitive.
    """
    top_level = {field.name: field for field in schema.fields}
    if not names:
        raise ValidationError(f"{table}: a merge takes at least one column to match by")
    for name in names:
        if name not in present or name not in top_level:
            hint = hint_at(name, [common for common in top_level if common in present])
            raise ValidationError(f"{table}: column {name} of the key is not in both the rows and the table{hint}")
        if not isinstance(top_level[name].field_type, PrimitiveType):
            kind = type_name(top_level[name].field_type)
            raise ValidationError(f"{table}: key column {name} is of type {kind}: keys must be primitive")
    return tuple(names)


def _check(merge: MergeRequest, schema: Schema, table: str) -> None:
    """Check the source's columns that are in the table. Clauses that insert rows need all required columns."""
    source = merge.source
    inserts = any(clause.takes_all and clause.when == When.NOT_MATCHED for clause in merge.clauses)
    common = [field for field in schema.fields if field.name in source.columns]
    if not common:
        action = Action.INSERT if inserts else Action.UPDATE
        raise ValidationError(f"{table}: the source has no column of the table: {action}_all has no value to take")
    rows = source.select(*(quoted(field.name) for field in common))
    check_columns(rows, schema if inserts else Schema(*common), table)


def _as_in_table(source: DataFrame, schema: Schema) -> DataFrame:
    """Return the source, with columns that are in the schema converted to the table's types."""
    row_type, values = source.schema, {}
    for field in schema.fields:
        if field.name in source.columns:
            value = F.col(quoted(field.name))
            values[field.name] = nested_value(value, row_type[field.name].dataType, field.field_type)
    return source.select(*(values.get(name, F.col(quoted(name))).alias(name) for name in source.columns))


# -- Match rows with a source and apply the clauses of a merge --------------------------------------------------------


_TARGET, _SOURCE = "target", "source"
# The index of the clause that applies to a row.
_CLAUSE: Final = "_merge_clause"
# A source of up to this many rows is broadcast, so that tasks join rows of the table as they read them.
_BROADCAST_ROWS: Final = 200_000


def merged_rows(state: TableState, merge: MergeRequest, lineage: tuple[str, ...]) -> MergedRows:
    """Check a merge and return the rows that it changes and adds. Runs jobs.

    Args:
        state: the table at the branch's head.
        merge: the merge.
        lineage: the metadata columns that rows keep.

    Raises:
        ValidationError: see `Merge.merge`.
        UnsupportedError: see `merge_source`.
    """
    metadata = state.metadata
    source = merge_source(merge, metadata.schema(), metadata.location)
    by_source = any(clause.when == When.NOT_MATCHED_BY_SOURCE for clause in merge.clauses)
    matching = Matching(state, AlwaysTrue() if by_source else source.range, by_rows=True)
    rows = MergedRows(matching, merge, source, lineage)
    rows.check()
    return rows


@dataclass(frozen=True)
class MergedRows:
    """The rows that a merge changes, deletes and adds.

    Attributes:
        matching: the files of the table whose rows may change.
        merge: the clauses.
        source: the source.
        lineage: the metadata columns that rows keep.
    """

    matching: Matching
    merge: MergeRequest
    source: MergeSource
    lineage: tuple[str, ...]

    # -- For the commit -----------------------------------------------------------------------------------------------

    @property
    def positions(self) -> DataFrame:
        """The `FILE` and `POSITION` of the rows that are updated or deleted."""
        return self._changes.where(F.col(_CLAUSE).isNotNull()).select(FILE, POSITION).distinct()

    @cached_property
    def changed_files(self) -> pa.Array:
        """The paths of the files with rows that are updated or deleted."""
        return whole(self.positions.select(FILE).distinct().toArrow().column(0))

    @cached_property
    def has_new_rows(self) -> bool:
        """Whether there are rows to write besides unchanged ones."""
        changed = self._changes.where(self._is_update) if self._target_clauses else None
        frames = [frame for frame in (changed, self._inserted) if frame is not None]
        return any(len(frame.limit(1).toArrow()) for frame in frames)

    @property
    def depends_on_rows(self) -> bool:
        """Whether rows of the table that stay unchanged may have kept rows of the source from being inserted."""
        if self._inserted is None:
            return False
        if not self._target_clauses:
            return self._inserted.count() < self.source.count
        return bool(len(self._changes.where(F.col(_CLAUSE).isNull()).limit(1).toArrow()))

    @property
    def new_rows(self) -> DataFrame:
        """The updated rows with their new values and the inserted rows, with the columns of `lineage`."""
        names = [*self._names, *self.lineage]
        inserted = self._inserted
        if not self._target_clauses:
            assert inserted is not None
            return inserted.select(*map(quoted, names))
        changed = self._changes.where(self._is_update).select(*map(quoted, names))
        return changed if inserted is None else changed.union(inserted.select(*map(quoted, names)))

    def masks(self, files: PlannedFiles) -> Masks:
        """Return the rows that are updated or deleted as masks of their files."""
        positions = self.positions
        by_file = positions if self.matching.reads_on_driver else positions.repartition(FILE)
        return masks_of(by_file, files, self.matching.state)

    def rewritten(self, files: PlannedFiles) -> DataFrame:
        """Return the unchanged rows of files, and the new rows."""
        rows = self.matching.frame(files, (*self.lineage, FILE, POSITION))
        unchanged = rows.join(self.positions, [FILE, POSITION], "left_anti")
        return unchanged.select(*map(quoted, [*self._names, *self.lineage])).union(self.new_rows)

    # -- Checks -----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Evaluate all conditions and values on no rows. Raises ValidationError for the first that fails."""
        self._check_condition(When.MATCHED, "the merge's `on` condition", self._on)
        for index, clause in enumerate(self.merge.clauses):
            clause_text = f"clause {index + 1} ({clause.when})"
            if clause.condition is not None:
                self._check_condition(clause.when, clause_text, clause.condition)
            if clause.action == Action.INSERT and clause.values is not None:
                self._check_required(clause, clause_text)
        _ = self._values

    def _check_condition(self, when: When, clause_text: str, condition: Column | str) -> None:
        kind = evaluated_type(self._without_rows[when], condition, f"{self._table}: {clause_text}")
        if when == When.NOT_MATCHED_BY_SOURCE:
            # Evaluated on joined rows: a name that both sides have needs a qualifier.
            evaluated_type(self._without_rows[When.MATCHED], condition, f"{self._table}: {clause_text}")
        if not isinstance(kind, BooleanType):
            raise ValidationError(f"{self._table}: {clause_text}: the condition is {kind.simpleString()}, not boolean")

    def _check_required(self, clause: Clause, clause_text: str) -> None:
        assert clause.values is not None
        for field in self.matching.state.metadata.schema().fields:
            if field.required and field.write_default is None and field.name not in clause.values:
                problem = f"column {field.name} is required and has no write default, and gets no value"
                raise ValidationError(f"{self._table}: {clause_text}: {problem}")

    @cached_property
    def _without_rows(self) -> dict[When, DataFrame]:
        """For each kind of clause, an empty DataFrame with the columns that its conditions and values may refer to."""
        matching = self.matching
        target = matching.state.spark.createDataFrame([], matching.row_type).alias(_TARGET)
        source = self.source.rows.limit(0).alias(_SOURCE)
        return {When.MATCHED: target.crossJoin(source), When.NOT_MATCHED: source, When.NOT_MATCHED_BY_SOURCE: target}

    @cached_property
    def _values(self) -> list[dict[str, Column]]:
        """The values that each clause assigns."""
        return [self._values_of(index, clause) for index, clause in enumerate(self.merge.clauses)]

    def _values_of(self, index: int, clause: Clause) -> dict[str, Column]:
        if clause.values is not None:
            subject = f"{self._table}: clause {index + 1} ({clause.when})"
            schema = self.matching.state.metadata.schema()
            before = None if clause.action == Action.INSERT else f"{_TARGET}."
            values = assigned_values(clause.values, self._without_rows[clause.when], schema, subject, before)
            if clause.when == When.NOT_MATCHED_BY_SOURCE:
                assigned_values(clause.values, self._without_rows[When.MATCHED], schema, subject, before)
            return values
        columns = set(self.source.rows.columns)
        return {name: _side_column(_SOURCE, name) for name in self._names if name in columns}

    @property
    def _table(self) -> str:
        return self.matching.state.metadata.location

    # -- Rows of the table ------------------------------------------------------------------------------------------

    @property
    def _names(self) -> list[str]:
        return self.matching.row_type.names

    @property
    def _target_clauses(self) -> list[tuple[int, Clause]]:
        return [pair for pair in enumerate(self.merge.clauses) if pair[1].when != When.NOT_MATCHED]

    @property
    def _insert_clauses(self) -> list[tuple[int, Clause]]:
        return [pair for pair in enumerate(self.merge.clauses) if pair[1].when == When.NOT_MATCHED]

    @property
    def _on(self) -> Column:
        keys = self.source.keys
        if keys is None:
            assert not isinstance(self.merge.on, list | tuple)
            return _column(self.merge.on)  # type: ignore[arg-type]
        return reduce(and_, (_side_column(_TARGET, name) == _side_column(_SOURCE, name) for name in keys))

    @property
    def _is_update(self) -> Column:
        return F.col(_CLAUSE).isin([index for index, clause in self._target_clauses if clause.action == Action.UPDATE])

    @property
    def _source_rows(self) -> DataFrame:
        rows = self.source.rows.alias(_SOURCE)
        return F.broadcast(rows) if self.source.count <= _BROADCAST_ROWS else rows

    @cached_property
    def _changes(self) -> DataFrame:
        """The rows of the table that a clause applies to: `_CLAUSE`, new values, lineage, `FILE` and `POSITION`.

        If it matters which rows match, includes matching rows without a clause too. Each row has the `SOURCE_ROW` that
        it matches. The rows are checkpointed.

        Raises:
            ValidationError: a row of the table matches several rows of the source.
        """
        clauses, matching = self._target_clauses, self.matching
        by_source = [pair for pair in clauses if pair[1].when == When.NOT_MATCHED_BY_SOURCE]
        matched = [pair for pair in clauses if pair[1].when == When.MATCHED]
        columns = (*self.lineage, FILE, POSITION)
        if not self.source.count and not by_source:
            rows = matching.state.spark.createDataFrame([], matching.frame(matching.partial_files, columns).schema)
        else:
            rows = matching.frame(matching.partial_files, columns)
            # Spark joins and groups the rows of few small files without a shuffle.
            rows = rows.coalesce(1) if matching.reads_on_driver else rows
        joined = rows.alias(_TARGET).join(self._source_rows, self._on, "left" if by_source else "inner")
        is_matched = _side_column(_SOURCE, SOURCE_ROW).isNotNull()
        tests = [(index, is_matched & _condition(clause)) for index, clause in matched]
        tests += [(index, ~is_matched & _condition(clause)) for index, clause in by_source]
        applied = joined.withColumn(_CLAUSE, _first(tests))
        only_deletes = len(matched) == 1 and matched[0][1].action == Action.DELETE and matched[0][1].condition is None
        must_be_unique = bool(matched) and not only_deletes and not self.source.is_unique
        applies = F.col(_CLAUSE).isNotNull()
        pairs_matter = must_be_unique or bool(self._insert_clauses)
        relevant = applied.where(applies | is_matched if pairs_matter else applies)
        changes = checkpointed(
            relevant.select(
                _CLAUSE,
                *self._new_values(clauses),
                *self._lineage_and_position,
                _side_column(_SOURCE, SOURCE_ROW).alias(SOURCE_ROW),
            )
        )
        # Spark does not know how checkpointed rows are distributed, and would shuffle them.
        changes = changes.coalesce(1) if matching.reads_on_driver else changes
        if must_be_unique:
            self._refuse_several(changes)
        return changes

    def _refuse_several(self, changes: DataFrame) -> None:
        pairs = changes.where(F.col(SOURCE_ROW).isNotNull()).groupBy(FILE, POSITION).count()
        for row in pairs.where("count > 1").limit(1).toArrow().to_pylist():
            key = f", such as those with the key {shown(self.source.duplicate)}" if self.source.duplicate else ""
            problem = f"row {row[POSITION]} of {row[FILE]} matches {row['count']} rows of the source"
            limit = "a target row may match at most one source row"
            raise ValidationError(f"{self._table}: {problem}{key}: {limit}")

    def _new_values(self, clauses: list[tuple[int, Clause]]) -> list[Column]:
        """Return the values of the table's columns: the new value if a clause assigns one, otherwise the old value.

        If all updates assign a column, Spark need not read it: rows that no clause updates get null, since they are not
        written.
        """
        updates = [(index, self._values[index]) for index, clause in clauses if clause.action == Action.UPDATE]
        columns = []
        for name, field in zip(self._names, self.matching.row_type.fields, strict=True):
            assigned = [(index, values[name]) for index, values in updates if name in values]
            value = _side_column(_TARGET, name) if len(assigned) < len(updates) else F.lit(None).cast(field.dataType)
            for index, new_value in reversed(assigned):
                value = F.when(F.col(_CLAUSE) == index, new_value).otherwise(value)
            columns.append(value.alias(name))
        return columns

    @property
    def _lineage_and_position(self) -> list[Column]:
        """The lineage of updated rows, whose last updated sequence number is null, and their file and position."""
        lineage = []
        if self.lineage:
            lineage = [
                _side_column(_TARGET, self.lineage[0]).alias(self.lineage[0]),
                F.lit(None).cast("bigint").alias(self.lineage[1]),
            ]
        return [*lineage, *(_side_column(_TARGET, name).alias(name) for name in (FILE, POSITION))]

    # -- Rows of the source -----------------------------------------------------------------------------------------

    @cached_property
    def _inserted(self) -> DataFrame | None:
        """The rows to insert with `_CLAUSE` and null lineage, checkpointed. None if no clause inserts rows."""
        clauses = self._insert_clauses
        if not clauses:
            return None
        unmatched = self._unmatched.alias(_SOURCE)
        rows = unmatched.withColumn(_CLAUSE, _first([(index, _condition(clause)) for index, clause in clauses]))
        values = [(index, self._values[index]) for index, clause in clauses]
        columns = []
        for field in self.matching.state.metadata.schema().fields:
            value = self._default(field.name)
            for index, assigned in reversed(values):
                if field.name in assigned:
                    value = F.when(F.col(_CLAUSE) == index, assigned[field.name]).otherwise(value)
            columns.append(value.alias(field.name))
        lineage = [F.lit(None).cast("bigint").alias(name) for name in self.lineage]
        # A union fails if checkpointed rows have constraints on columns that they lack, such as constants in the
        # source. Dropping a column from the rows drops these constraints too.
        return checkpointed(rows.where(F.col(_CLAUSE).isNotNull()).select(_CLAUSE, *columns, *lineage))

    @property
    def _unmatched(self) -> DataFrame:
        """The rows of the source that match no row of the table."""
        rows = self.source.rows
        if self._target_clauses:
            matched = self._changes.where(F.col(SOURCE_ROW).isNotNull()).select(SOURCE_ROW).distinct()
            return rows.join(matched, SOURCE_ROW, "left_anti")
        target = self.matching.frame(self.matching.partial_files, ())
        if self.source.keys is not None:
            target = target.select(*map(quoted, self.source.keys))
        return rows.alias(_SOURCE).join(target.alias(_TARGET), self._on, "left_anti")

    def _default(self, name: str) -> Column:
        """Return the value of a column that is not assigned."""
        fields = self.matching.state.metadata.schema().fields
        return default_column(next(field for field in fields if field.name == name))


def _first(tests: list[tuple[int, Column]]) -> Column:
    """Return the index of the first clause that applies; null if there is none."""
    value: Column = F.lit(None).cast("int")
    for index, test in reversed(tests):
        value = F.when(test, F.lit(index)).otherwise(value)
    return value


def _condition(clause: Clause) -> Column:
    return F.lit(True) if clause.condition is None else _column(clause.condition)


def _column(condition: Column | str) -> Column:
    return F.expr(condition) if isinstance(condition, str) else condition


def _side_column(side: str, name: str) -> Column:
    return F.col(f"{side}.{quoted(name)}")


# -- Express an upsert as a merge -------------------------------------------------------------------------------------
# Rows are updated by key if a value differs; other rows of the source are inserted.


def upsert_of(
    rows: DataFrame, keys: Sequence[str] | None, schema: Schema, table: str, *, updates: bool, inserts: bool
) -> MergeRequest:
    """Check rows and return the merge that carries out their upsert.

    Args:
        rows: the rows to upsert.
        keys: the key columns; None for the schema's identifier fields.
        schema: the table's schema.
        table: the table, for errors.
        updates: whether to update existing rows.
        inserts: whether to insert new rows.

    Raises:
        ValidationError: a column does not fit, or there is no key.
    """
    names = upsert_keys(keys, schema, table)
    check_columns(rows, schema, table)
    kinds = {field.name: field.field_type for field in schema.fields}
    value_columns = [name for name in rows.columns if name not in names]
    clauses = []
    if updates and value_columns:
        # Spark can't compare maps, variants or types that contain them.
        differs = [F.lit(True) if has_incomparable(kinds[name]) else _differs(name) for name in value_columns]
        clauses.append(Clause(When.MATCHED, reduce(or_, differs), Action.UPDATE))
    if inserts:
        clauses.append(Clause(When.NOT_MATCHED, None, Action.INSERT))
    return MergeRequest(rows, names, tuple(clauses))


def upsert_keys(keys: Sequence[str] | None, schema: Schema, table: str) -> tuple[str, ...]:
    """Return the names of an upsert's key columns; see `upsert_of`."""
    if keys is not None:
        NAMES.check(f"{table}: join_cols", keys)
    names = tuple(keys) if keys is not None else tuple(sorted(schema.identifier_field_names()))
    if not names:
        raise ValidationError(f"{table}: an upsert needs join_cols: the table's schema names no identifier fields")
    return names


def has_incomparable(kind: IcebergType) -> bool:
    """Return whether a type is a map or variant, or contains one."""
    return isinstance(kind, MapType | VariantType) or any(
        has_incomparable(child.field_type) for child in child_fields(kind)
    )


def _differs(name: str) -> Column:
    target, source = (F.col(f"{side}.{quoted(name)}") for side in ("target", "source"))
    return ~target.eqNullSafe(source)
