"""`Merge`: a builder of merges, whose clauses update, delete and insert rows by how they match a source."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from sparkmeta.errors import ValidationError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ResultT = TypeVar("ResultT")


class When(StrEnum):
    """The rows to which a clause applies."""

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
        when: the rows that it applies to.
        condition: restricts these rows; None for all.
        action: what it does with the rows.
        values: the values of columns; None for those of the source.
    """

    when: When
    condition: Column | str | None
    action: Action
    values: Mapping[str, Any] | None = None

    @property
    def takes_all(self) -> bool:
        """Whether it takes its values from the source's columns."""
        return self.action != Action.DELETE and self.values is None


@dataclass(frozen=True)
class Merge(Generic[ResultT]):
    """Collects the clauses of a merge; see `Table.merge`. Each method returns a new object.

    Conditions and values are Columns over `target.<column>` and `source.<column>`; conditions may also be SQL text.
    Among the clauses of one kind, the first whose condition holds for a row applies to it.
    """

    source: DataFrame
    on: str | Sequence[str] | Column
    run: Callable[[Merge[ResultT]], ResultT]
    clauses: tuple[Clause, ...] = ()

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
            ValidationError: there is no clause, or one without a condition precedes another of its kind; a condition or
                value can't be evaluated; a row of the table matches several rows of the source; or as `Table.append`.
            CommitConflictError: another commit changed the data that this merge is based on.
        """
        if not self.clauses:
            raise ValidationError("a merge needs at least one clause: when_matched().update_all(), for example")
        for when in When:
            of_kind = [clause for clause in self.clauses if clause.when == when]
            if any(clause.condition is None for clause in of_kind[:-1]):
                problem = "a clause without a condition precedes others of its kind, which would never apply"
                raise ValidationError(f"{when}: {problem}")
        return self.run(self)

    def _with(self, clause: Clause) -> Merge[ResultT]:
        return replace(self, clauses=(*self.clauses, clause))


@dataclass(frozen=True)
class _OfTarget(Generic[ResultT]):
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
class WhenMatched(_OfTarget[ResultT]):
    """A clause for rows of the table that match a row of the source."""

    def update_all(self) -> Merge[ResultT]:
        """Assign the source's values to the columns of the same names. Other columns keep their values."""
        return self._merge._with(Clause(self._when, self._condition, Action.UPDATE))


@dataclass(frozen=True)
class WhenNotMatchedBySource(_OfTarget[ResultT]):
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
