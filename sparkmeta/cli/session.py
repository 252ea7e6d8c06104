"""The command line's Spark session: started when it is needed, with its log kept away from the terminal."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from sparkmeta.errors import SessionError
from sparkmeta.session import local_session

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

_STDERR = 2
_SHOWN_LOG = 3


def cli_session(config: Mapping[str, str], remote: str | None, *, show_log: bool) -> SparkSession:
    """The session that a command runs in: a Spark Connect server's, else one on this machine.

    config: Spark settings. remote: a Connect URL (``sc://host``), by default that of SPARK_REMOTE. show_log: leave
    Spark's log on stderr. Raises SessionError where no session can be had.
    """
    from pyspark.errors import PySparkException

    remote = remote or os.environ.get("SPARK_REMOTE")
    if not show_log:
        _silence_error_log()
    with tempfile.TemporaryFile() as log, _stderr_into(None if show_log else log):
        try:
            return _remote_session(remote, config) if remote else local_session(config=config)
        except PySparkException as error:
            raise SessionError(f"Spark did not start: {_reason(error, log)}") from error


def _silence_error_log() -> None:
    """PySpark logs errors of queries as JSON on stderr, besides raising them."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


def _remote_session(url: str, config: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote(url)
    for key, value in config.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


@contextmanager
def _stderr_into(log: IO[bytes] | None) -> Iterator[None]:
    """Processes started inside inherit the file as their stderr; this process gets its own back.

    Spark's first lines come before any logging configuration of ours could be read, so its log is not configured away.
    """
    if log is None:
        yield
        return
    sys.stderr.flush()
    own = os.dup(_STDERR)
    os.dup2(log.fileno(), _STDERR)
    try:
        yield
    finally:
        os.dup2(own, _STDERR)
        os.close(own)


def _reason(error: Exception, log: IO[bytes]) -> str:
    log.seek(0)
    lines = [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    return "; ".join([str(error).strip().splitlines()[0], *lines[-_SHOWN_LOG:]])
