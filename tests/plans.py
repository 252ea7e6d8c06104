"""The plans of queries as Spark explains them, on classic and Spark Connect sessions."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OPTIMIZED, _PHYSICAL = "== Optimized Logical Plan ==\n", "== Physical Plan ==\n"


def explained(frame: DataFrame) -> str:
    """All logical plans of a query, and the physical one."""
    with redirect_stdout(StringIO()) as text:
        frame.explain(extended=True)
    return text.getvalue()


def optimized_plan(frame: DataFrame) -> str:
    return _after(_OPTIMIZED, explained(frame)).partition(_PHYSICAL)[0]


def physical_plan(frame: DataFrame) -> str:
    """The physical plan; of an adaptive query that has run in a classic session, the final one and the initial one."""
    return _after(_PHYSICAL, explained(frame))


def _after(heading: str, text: str) -> str:
    _, heading_of_text, rest = text.partition(heading)
    assert heading_of_text, text
    return rest
