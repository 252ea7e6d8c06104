"""A Spark Connect session that refuses what Databricks serverless refuses: most settings, and to keep rows.

The errors have the conditions of serverless. These are refused in the client's API, which is all that the package uses.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors.exceptions.connect import AnalysisException

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

_TESTS = str(Path(__file__).parent)
# What serverless documents as settable.
SETTINGS = frozenset(
    {
        "spark.databricks.execution.timeout",
        "spark.sql.ansi.enabled",
        "spark.sql.files.maxPartitionBytes",
        "spark.sql.legacy.timeParserPolicy",
        "spark.sql.session.timeZone",
        "spark.sql.shuffle.partitions",
    }
)


def refuse(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, *, skip: bool = False) -> list[str]:
    """Refuse as serverless does from now on. Returns a list that gets what was refused.

    skip: skip a test that itself sets one of sparkmeta's settings, and let tests set others.
    """
    refused: list[str] = []
    conf, frame = type(spark.conf), type(spark.range(0))

    def restrict(name: str, is_allowed: Callable[[str], bool]) -> None:
        method = getattr(conf, name)

        def checked(self: Any, key: str, *args: Any) -> Any:
            if skip and _is_called_by_test():
                if key.startswith("spark.sparkmeta."):
                    pytest.skip(f"serverless refuses to {name} {key}")
            elif not is_allowed(key):
                refused.append(f"{name} {key}")
                raise AnalysisException(
                    f"[CONFIG_NOT_AVAILABLE] Configuration {key} is not available. SQLSTATE: 42K0I",
                    errorClass="CONFIG_NOT_AVAILABLE",
                )
            return method(self, key, *args)

        monkeypatch.setattr(conf, name, checked)

    restrict("set", SETTINGS.__contains__)
    restrict("unset", SETTINGS.__contains__)
    # PySpark's client itself asks for some of Spark's.
    restrict("get", lambda key: key.startswith(("spark.sql.", "spark.python.")))
    every = conf.getAll.fget

    def shown(self: Any) -> dict[str, str]:
        hides = not (skip and _is_called_by_test())
        return {key: value for key, value in every(self).items() if key in SETTINGS or not hides}

    monkeypatch.setattr(conf, "getAll", property(shown))

    def no_rows_kept(name: str) -> None:
        def refusal(*_: Any, **__: Any) -> None:
            refused.append(name)
            raise AnalysisException(
                "[NOT_SUPPORTED_WITH_SERVERLESS] PERSIST TABLE is not supported on serverless compute. SQLSTATE: 0A000",
                errorClass="NOT_SUPPORTED_WITH_SERVERLESS",
            )

        monkeypatch.setattr(frame, name, refusal)

    for name in ("cache", "persist", "checkpoint", "localCheckpoint"):
        no_rows_kept(name)
    return refused


def _is_called_by_test() -> bool:
    """Return whether the caller of the calling function is of the tests."""
    return sys._getframe(2).f_code.co_filename.startswith(_TESTS)
