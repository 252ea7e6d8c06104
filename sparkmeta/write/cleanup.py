"""Delete the files of uncommitted writes in tasks."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from sparkmeta.errors import UnsupportedError, first_line, proves_failure
from sparkmeta.session import map_arrow
from sparkmeta.storage.access import executor_writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.state import TableState
    from sparkmeta.storage.executors import ExecutorWriter

_log = logging.getLogger(__name__)

_FAILURES = pa.schema([pa.field("path", pa.string()), pa.field("reason", pa.string())])
# Maximum number of files that a log message names.
_NAMED = 1000


def delete_written(state: TableState, files: DataFrame) -> None:
    """Delete files that no snapshot references. Failures are logged; such files become orphans.

    Args:
        state: the table.
        files: what `write_files` returned.
    """
    try:
        deleter = _Deleter(executor_writer(state.files))
        failures = map_arrow(files.select("file_path").distinct(), deleter, _FAILURES)
        for failure in failures.limit(_NAMED).toArrow().to_pylist():
            _log.warning("%s: not deleted: %s", failure["path"], failure["reason"])
    except Exception as error:  # noqa: BLE001  deleting is best effort
        location, named = state.metadata.location, _named(files)
        _log.warning("%s: the files of a write that failed are not deleted: %s: %s", location, error, named)


@contextmanager
def named_on_failure(table: str, pattern: str) -> Iterator[None]:
    """If the block fails to write files, log the name pattern of those that may be left: its tasks may still run.

    Args:
        table: the table's location.
        pattern: the pattern of the files' names.
    """
    try:
        yield
    except UnsupportedError:
        raise
    except Exception:
        _log.warning("%s: files named %s may be left of a write that failed", table, pattern)
        raise


@contextmanager
def deleted_on_failure(state: TableState, written: Sequence[DataFrame]) -> Iterator[None]:
    """Delete files if the commit in the block is known to have failed. After any other error, keep them.

    Args:
        state: the table.
        written: what `write_files` returned.
    """
    try:
        yield
    except BaseException as error:
        if proves_failure(error):
            for files in written:
                delete_written(state, files)
        elif written:
            location, reason, named = state.metadata.location, first_line(error), ", ".join(map(_named, written))
            problem = "the files of the write stay, since this does not rule out a commit"
            _log.warning("%s: %s: %s: %s", location, problem, reason, named)
        raise


def _named(files: DataFrame) -> str:
    """Return the locations of files, up to a limit."""
    try:
        paths = files.select("file_path").distinct().limit(_NAMED + 1).toArrow().column(0).to_pylist()
    except Exception as error:  # noqa: BLE001  the log is best effort
        return f"their names are not known: {first_line(error)}"
    return ", ".join([*paths[:_NAMED], *(["..."] if len(paths) > _NAMED else [])])


@dataclass(frozen=True)
class _Deleter:
    """Deletes files in tasks. Picklable."""

    writer: ExecutorWriter

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            failures = self.writer.delete_many(batch.column(0).to_pylist())
            columns = [[failure.location for failure in failures], [failure.reason for failure in failures]]
            yield pa.RecordBatch.from_arrays([pa.array(column, pa.string()) for column in columns], schema=_FAILURES)
