"""Conditions as SQL, or known already: constants fold away, chains become balanced trees."""

from __future__ import annotations

import operator

from sparkmeta.columns import sql
from sparkmeta.columns.sql import Sql
from sparkmeta.columns.tree import balanced

Truth = Sql | bool


def all_of(*conditions: Truth) -> Truth:
    """Whether all of the conditions hold."""
    if any(condition is False for condition in conditions):
        return False
    columns = [condition for condition in conditions if isinstance(condition, Sql)]
    return balanced(columns, operator.and_) if columns else True


def any_of(*conditions: Truth) -> Truth:
    """Whether any of the conditions holds."""
    if any(condition is True for condition in conditions):
        return True
    columns = [condition for condition in conditions if isinstance(condition, Sql)]
    return balanced(columns, operator.or_) if columns else False


def negated(condition: Truth) -> Truth:
    """Whether the condition does not hold; it must not be null."""
    return not condition if isinstance(condition, bool) else ~condition


def as_column(condition: Truth) -> Sql:
    """The condition as a boolean Sql."""
    return sql.lit(condition) if isinstance(condition, bool) else condition
