"""Conditions that are Columns or known already: constants fold away, chains become balanced trees."""

from __future__ import annotations

import operator

from pyspark.sql import Column
from pyspark.sql import functions as F

from sparkmeta.columns.tree import balanced

Truth = Column | bool


def all_of(*conditions: Truth) -> Truth:
    """Whether all of the conditions hold."""
    if any(condition is False for condition in conditions):
        return False
    columns = [condition for condition in conditions if isinstance(condition, Column)]
    return balanced(columns, operator.and_) if columns else True


def any_of(*conditions: Truth) -> Truth:
    """Whether any of the conditions holds."""
    if any(condition is True for condition in conditions):
        return True
    columns = [condition for condition in conditions if isinstance(condition, Column)]
    return balanced(columns, operator.or_) if columns else False


def negated(condition: Truth) -> Truth:
    """Whether the condition does not hold; it must not be null."""
    return not condition if isinstance(condition, bool) else ~condition


def as_column(condition: Truth) -> Column:
    """The condition as a boolean Column."""
    return F.lit(condition) if isinstance(condition, bool) else condition
