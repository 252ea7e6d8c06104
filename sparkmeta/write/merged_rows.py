"""Match the rows of a table with those of a source and apply the clauses of a merge."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, reduce
from operator import and_
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.types import PrimitiveType
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, StructType

from sparkmeta.columns.sql import quoted
from sparkmeta.entries.arrays import whole
from sparkmeta.errors import ValidationError, shown
from sparkmeta.write.assignments import assigned_values, evaluated_type
from sparkmeta.write.files import checkpointed
from sparkmeta.write.input import field_value
from sparkmeta.write.matching import FILE, POSITION, Matching
from sparkmeta.write.merge import Action, Clause, Merge, When
from sparkmeta.write.merge_source import SOURCE_ROW, MergeSource, merge_source

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from sparkmeta.rows.planned import PlannedFiles
    from sparkmeta.state import TableState

_TARGET, _SOURCE = "target", "source"
# The index of the clause that applies to a row.
_CLAUSE: Final = "_merge_clause"
# A source of up to this many rows is broadcast, so that tasks join rows of the table as they read them.
_BROADCAST_ROWS: Final = 200_000


def merged_rows(state: TableState, merge: Merge[Any], lineage: tuple[str, ...]) -> MergedRows:
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
    merge: Merge[Any]
    source: MergeSource
    lineage: tuple[str, ...]

    # -- what the commit needs --------------------------------------------------------------------------------------

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
    def new_rows(self) -> DataFrame:
        """The updated rows with their new values and the inserted rows, with the columns of `lineage`."""
        names = [*self._names, *self.lineage]
        inserted = self._inserted
        if not self._target_clauses:
            assert inserted is not None
            return inserted.select(*map(quoted, names))
        changed = self._changes.where(self._is_update).select(*map(quoted, names))
        return changed if inserted is None else changed.union(inserted.select(*map(quoted, names)))

    def rewritten(self, files: PlannedFiles) -> DataFrame:
        """Return the unchanged rows of files, and the new rows."""
        rows = self.matching.rows(files, (*self.lineage, FILE, POSITION))
        stay = rows.join(self.positions, [FILE, POSITION], "left_anti")
        return stay.select(*map(quoted, [*self._names, *self.lineage])).union(self.new_rows)

    # -- checks -----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Evaluate all conditions and values on no rows. Raises ValidationError for the first that fails."""
        self._check_condition(When.MATCHED, "the merge's `on` condition", self._on)
        for place, clause in enumerate(self.merge.clauses):
            what = f"clause {place + 1} ({clause.when})"
            if clause.condition is not None:
                self._check_condition(clause.when, what, clause.condition)
            if clause.action == Action.INSERT and clause.values is not None:
                self._check_required(clause, what)
        _ = self._values

    def _check_condition(self, when: When, what: str, condition: Column | str) -> None:
        kind = evaluated_type(self._without_rows[when], condition, f"{self._table}: {what}")
        if when == When.NOT_MATCHED_BY_SOURCE:
            # Evaluated on joined rows, in which a name of both needs its qualifier.
            evaluated_type(self._without_rows[When.MATCHED], condition, f"{self._table}: {what}")
        if not isinstance(kind, BooleanType):
            raise ValidationError(f"{self._table}: {what}: the condition is {kind.simpleString()}, not boolean")

    def _check_required(self, clause: Clause, what: str) -> None:
        assert clause.values is not None
        for field in self.matching.state.metadata.schema().fields:
            if field.required and field.write_default is None and field.name not in clause.values:
                problem = f"column {field.name} is required and has no write default, and gets no value"
                raise ValidationError(f"{self._table}: {what}: {problem}")

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
        return [self._values_of(place, clause) for place, clause in enumerate(self.merge.clauses)]

    def _values_of(self, place: int, clause: Clause) -> dict[str, Column]:
        if clause.values is not None:
            what = f"{self._table}: clause {place + 1} ({clause.when})"
            schema = self.matching.state.metadata.schema()
            before = None if clause.action == Action.INSERT else f"{_TARGET}."
            values = assigned_values(clause.values, self._without_rows[clause.when], schema, what, before)
            if clause.when == When.NOT_MATCHED_BY_SOURCE:
                assigned_values(clause.values, self._without_rows[When.MATCHED], schema, what, before)
            return values
        given = set(self.source.rows.columns)
        return {name: _of(_SOURCE, name) for name in self._names if name in given}

    @property
    def _table(self) -> str:
        return self.matching.state.metadata.location

    # -- rows of the table ------------------------------------------------------------------------------------------

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
        return reduce(and_, (_of(_TARGET, name) == _of(_SOURCE, name) for name in keys))

    @property
    def _is_update(self) -> Column:
        return F.col(_CLAUSE).isin([place for place, clause in self._target_clauses if clause.action == Action.UPDATE])

    @property
    def _source_rows(self) -> DataFrame:
        rows = self.source.rows.alias(_SOURCE)
        return F.broadcast(rows) if self.source.count <= _BROADCAST_ROWS else rows

    @cached_property
    def _changes(self) -> DataFrame:
        """The rows of the table to which a clause applies: `_CLAUSE`, new values, lineage, `FILE` and `POSITION`.

        If it matters which rows match, also includes matching rows to which no clause applies. Each has the
        `SOURCE_ROW` that it matches. The rows are checkpointed.

        Raises:
            ValidationError: a row of the table matches several rows of the source.
        """
        clauses, matching = self._target_clauses, self.matching
        by_source = [pair for pair in clauses if pair[1].when == When.NOT_MATCHED_BY_SOURCE]
        matched = [pair for pair in clauses if pair[1].when == When.MATCHED]
        columns = (*self.lineage, FILE, POSITION)
        if not self.source.count and not by_source:
            rows = matching.state.spark.createDataFrame([], matching.rows(matching.partial_files, columns).schema)
        else:
            rows = matching.rows(matching.partial_files, columns)
        joined = rows.alias(_TARGET).join(self._source_rows, self._on, "left" if by_source else "inner")
        is_matched = _of(_SOURCE, SOURCE_ROW).isNotNull()
        tests = [(place, is_matched & _condition(clause)) for place, clause in matched]
        tests += [(place, ~is_matched & _condition(clause)) for place, clause in by_source]
        applied = joined.withColumn(_CLAUSE, _first(tests))
        only = len(matched) == 1 and matched[0][1].action == Action.DELETE and matched[0][1].condition is None
        must_be_unique = bool(matched) and not only and not self.source.is_unique
        applies = F.col(_CLAUSE).isNotNull()
        pairs_matter = must_be_unique or bool(self._insert_clauses)
        chosen = applied.where(applies | is_matched if pairs_matter else applies)
        changes = checkpointed(
            chosen.select(_CLAUSE, *self._new_values(clauses), *self._place, _of(_SOURCE, SOURCE_ROW).alias(SOURCE_ROW))
        )
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
        """Return the value of each column of the table: the new one where a clause updates it, else the old one.

        If all updates assign a column, Spark need not read it: rows that no clause updates get null, since they are not
        written.
        """
        updates = [(place, self._values[place]) for place, clause in clauses if clause.action == Action.UPDATE]
        columns = []
        for name, field in zip(self._names, self.matching.row_type.fields, strict=True):
            assigned = [(place, values[name]) for place, values in updates if name in values]
            value = _of(_TARGET, name) if len(assigned) < len(updates) else F.lit(None).cast(field.dataType)
            for place, new in reversed(assigned):
                value = F.when(F.col(_CLAUSE) == place, new).otherwise(value)
            columns.append(value.alias(name))
        return columns

    @property
    def _place(self) -> list[Column]:
        """The lineage of updated rows, whose last updated sequence number is null, and their file and position."""
        lineage = []
        if self.lineage:
            lineage = [
                _of(_TARGET, self.lineage[0]).alias(self.lineage[0]),
                F.lit(None).cast("bigint").alias(self.lineage[1]),
            ]
        return [*lineage, *(_of(_TARGET, name).alias(name) for name in (FILE, POSITION))]

    # -- rows of the source -----------------------------------------------------------------------------------------

    @cached_property
    def _inserted(self) -> DataFrame | None:
        """The rows to insert with `_CLAUSE` and null lineage, checkpointed. None if no clause inserts rows."""
        clauses = self._insert_clauses
        if not clauses:
            return None
        unmatched = self._unmatched.alias(_SOURCE)
        rows = unmatched.withColumn(_CLAUSE, _first([(place, _condition(clause)) for place, clause in clauses]))
        values = [(place, self._values[place]) for place, clause in clauses]
        columns = []
        for field in self.matching.state.metadata.schema().fields:
            value = self._default(field.name)
            for place, assigned in reversed(values):
                if field.name in assigned:
                    value = F.when(F.col(_CLAUSE) == place, assigned[field.name]).otherwise(value)
            columns.append(value.alias(field.name))
        lineage = [F.lit(None).cast("bigint").alias(name) for name in self.lineage]
        # A union fails if checkpointed rows have constraints on columns that they lack, such as constants in the
        # source. Dropping a column from the rows drops these constraints as well.
        return checkpointed(rows.where(F.col(_CLAUSE).isNotNull()).select(_CLAUSE, *columns, *lineage))

    @property
    def _unmatched(self) -> DataFrame:
        """The rows of the source that match no row of the table."""
        rows = self.source.rows
        if self._target_clauses:
            matched = self._changes.where(F.col(SOURCE_ROW).isNotNull()).select(SOURCE_ROW).distinct()
            return rows.join(matched, SOURCE_ROW, "left_anti")
        target = self.matching.rows(self.matching.partial_files, ())
        if self.source.keys is not None:
            target = target.select(*map(quoted, self.source.keys))
        return rows.alias(_SOURCE).join(target.alias(_TARGET), self._on, "left_anti")

    def _default(self, name: str) -> Column:
        """Return the value of a column that is not assigned."""
        schema = self.matching.state.metadata.schema()
        field = next(field for field in schema.fields if field.name == name)
        if isinstance(field.field_type, PrimitiveType):
            return field_value(StructType(), schema, field.field_id).column()
        return F.lit(None).cast(self.matching.row_type[name].dataType)


def _first(tests: list[tuple[int, Column]]) -> Column:
    """Return the index of the first clause that applies; null if there is none."""
    value: Column = F.lit(None).cast("int")
    for place, test in reversed(tests):
        value = F.when(test, F.lit(place)).otherwise(value)
    return value


def _condition(clause: Clause) -> Column:
    return F.lit(True) if clause.condition is None else _column(clause.condition)


def _column(condition: Column | str) -> Column:
    return F.expr(condition) if isinstance(condition, str) else condition


def _of(side: str, name: str) -> Column:
    return F.col(f"{side}.{quoted(name)}")
