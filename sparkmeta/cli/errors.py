"""Describe errors in one line, for commands and jobs."""

from __future__ import annotations

import sys

from sparkmeta.errors import SparkmetaError, first_line, from_spark
from sparkmeta.inspect.excerpt import printable


def report_error(program: str, error: Exception) -> None:
    """Print an error of a job in one line. Raises the error if it is a bug of sparkmeta."""
    if (line := _known_line(error)) is None:
        raise error
    print(f"{program}: {line}", file=sys.stderr)  # noqa: T201


def error_line(error: Exception, hint: str) -> str:
    """Return one line that describes an error to users.

    Args:
        error: the error.
        hint: what to add to errors whose first line says little: those of Spark, and bugs of sparkmeta.
    """
    return _known_line(error, hint) or f"{type(error).__name__}: {printable(first_line(error))}{hint}"


def _known_line(error: Exception, hint: str = "") -> str | None:
    """Return the line of an error; None if the error is a bug of sparkmeta."""
    known = error if isinstance(error, SparkmetaError) else from_spark(error)
    if known is not None:
        return printable(first_line(known))
    from pyspark.errors import PySparkException

    module = type(error).__module__
    if module == "pyiceberg.exceptions" or isinstance(error, OSError):
        return printable(first_line(error))
    if isinstance(error, PySparkException) or module == "py4j.protocol":
        return f"Spark: {printable(first_line(error))}{hint}"
    return None
