"""Start the Spark session of a command, with Spark's log hidden from the terminal."""

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
_LOG_LINES = 3


def cli_session(config: Mapping[str, str], remote: str | None, *, show_log: bool) -> SparkSession:
    """Start the session that a command runs in: on a Spark Connect server, or on this machine.

    Args:
        config: Spark settings.
        remote: The URL of a Spark Connect server (``sc://host``). The default is the variable SPARK_REMOTE.
        show_log: Leave Spark's log on stderr.

    Raises:
        SessionError: Spark did not start.
    """
    from pyspark.errors import PySparkException

    remote = remote or os.environ.get("SPARK_REMOTE")
    with tempfile.TemporaryFile() as log, _stderr_into(None if show_log else log):
        try:
            return _remote_session(remote, config) if remote else local_session(config=config)
        except PySparkException as error:
            raise SessionError(f"Spark did not start: {_reason(error, log)}") from error


def _remote_session(url: str, config: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote(url)
    for key, value in config.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


@contextmanager
def _stderr_into(log: IO[bytes] | None) -> Iterator[None]:
    """Redirect stderr to a file for processes that are started inside.

    A logging configuration would not help: Spark's launcher prints its first lines before it reads one.
    """
    if log is None:
        yield
        return
    sys.stderr.flush()
    original = os.dup(_STDERR)
    os.dup2(log.fileno(), _STDERR)
    try:
        yield
    finally:
        os.dup2(original, _STDERR)
        os.close(original)


def _reason(error: Exception, log: IO[bytes]) -> str:
    log.seek(0)
    lines = [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    return "; ".join([str(error).strip().splitlines()[0], *lines[-_LOG_LINES:]])
