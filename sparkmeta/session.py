"""Spark sessions: choose or start one when it is needed, and bridge the differences of Spark Connect.

Nothing here imports PySpark or Arrow before a session is used.
"""

from __future__ import annotations

import gc
import inspect
import logging
import math
import os
import re
import socket
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary
from zipimport import zipimporter

from sparkmeta.errors import NoSessionError, SessionError, SparkmetaError
from sparkmeta.java import spark_java_home
from sparkmeta.settings import Settings, environment_conf, is_unavailable, setting, settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    MapFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_GIB = 1 << 30
# Most of these threads wait for files of a store.
_THREADS = 16

# The optimizer evaluates projections of local rows on the driver, one row at a time. Above this number of rows, tasks
# evaluate them: a coalesce to more partitions than exist prevents the optimization, and has no other effect.
_INTERPRETED_ROWS = 1000
_MANY_PARTITIONS = 1 << 16

# The archives that Spark puts on the path of Python workers.
_SPARK_ARCHIVE = re.compile(r"pyspark\.zip|py4j-.*\.zip|spark-core_.*\.jar")

# Paths of sockets have at most 103 bytes on macOS, and Spark's names 43.
_MOST_SOCKET_FOLDER = 60

_MOST_BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_ADVISORY_SIZE = "spark.sql.adaptive.advisoryPartitionSizeInBytes"

# Without this configuration, Spark logs failed tasks with Java's stack traces before their error is raised.
_LOG_CONFIG = (Path(__file__).parent / "log4j2.properties").as_uri()

# A task takes some 50 ms to start. In this time, it opens this many files, or decodes this many bytes.
_TASK_FILES = 16
_TASK_BYTES = 1 << 20

# Spark's default of spark.sql.shuffle.partitions, for sessions that do not show it.
_DEFAULT_TASKS = 200

# A session that ran within this time still runs, since a stop takes ten times as long. A check takes 0.5 ms.
_IN_USE_SECONDS = 0.02
_last_in_use: WeakKeyDictionary[SparkSession, float] = WeakKeyDictionary()


class _QueriesOfUsers(logging.Filter):
    """A filter of PySpark's loggers that drops records of failed queries of this package.

    This package raises the errors itself, in one line. PySpark logs each with Java's stack trace.
    """

    def filter(self, record: logging.LogRecord) -> bool:  # noqa: ARG002
        frame = inspect.currentframe()
        while frame is not None:
            if frame.f_code.co_filename.startswith(_PACKAGE) and frame.f_code.co_filename != __file__:
                return False
            frame = frame.f_back
        return True


_PACKAGE = os.path.dirname(__file__) + os.sep  # noqa: PTH120


@cache
def _log_queries_of_users_only() -> None:
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).addFilter(_QueriesOfUsers())


# -- The session of a table -------------------------------------------------------------------------------------------


_log = logging.getLogger(__name__)
_starting = threading.Lock()


@dataclass(frozen=True)
class SessionSource:
    """Where a table, a view or a catalog gets its Spark session when it needs one.

    This is the session that the caller gave. If the caller gave none, it is the session that runs when a session is
    first needed; after that session was stopped, it is the next one that runs. If no session runs, one is started.

    Attributes:
        given: the session that the caller gave.
        start: starts a session; by default a local one.
    """

    given: SparkSession | None = None
    start: Callable[[], SparkSession] | None = field(default=None, compare=False, repr=False)
    _last: list[SparkSession] = field(default_factory=list, compare=False, repr=False)

    @property
    def alone(self) -> bool:
        """Whether there is no session and none can start, so that this process reads all files itself."""
        return False

    def for_caller(self, spark: SparkSession | None) -> SessionSource:
        """Return a source for an object whose caller gave the session `spark`; None for this source's session."""
        return replace(self, given=self.given if spark is None else spark, _last=[])

    def get(self) -> SparkSession:
        """Return the session, to be used at once. Start one if none was given and none runs.

        Raises:
            SessionError: the given session was stopped, or Spark can't be started.
        """
        if (session := self.running()) is not None:
            return session
        with _starting:
            if (session := self.running()) is None:
                session = (self.start or _start_local_session)()
                self._last[:] = [session]
        _log_queries_of_users_only()
        return session

    def running(self) -> SparkSession | None:
        """Return the session; None if none was given and none runs. Never starts one.

        Raises:
            SessionError: the given session was stopped.
        """
        session = self._last_running() if self.given is None else in_use(self.given)
        if session is not None:
            _log_queries_of_users_only()
        return session

    def settings(self) -> Settings:
        """Return the current settings of the session, or of the environment if none runs. Never starts a session."""
        return settings(self.running())

    def _last_running(self) -> SparkSession | None:
        last = next(iter(self._last), None)
        if last is not None and not _is_stopped(last):
            return last
        session = running_session()
        self._last[:] = [] if session is None else [session]
        return session


class NoSession(SessionSource):
    """The source of a process without sessions, such as a Python worker of Spark."""

    @property
    def alone(self) -> bool:
        return True

    def get(self) -> SparkSession:
        """Raise NoSessionError."""
        raise NoSessionError(
            "this needs jobs of Spark, which Spark's Python workers can't start: use sm.load_table(..., spark) or "
            "Catalog.load_table in Python instead"
        )

    def running(self) -> None:
        """Return None."""

    def settings(self) -> Settings:
        """Return the settings with which Python opens all files. The environment names the receivers of reports."""
        return Settings(executor_reads="direct", metrics_reporter=settings(None).metrics_reporter)


def _start_local_session() -> SparkSession:
    session = local_session()
    _log.info("started a local Spark session, since none was given and none runs")
    return session


def local_session(
    app_name: str = "sparkmeta",
    *,
    cores: int | str = "*",
    memory: str | None = None,
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start a Spark session on this machine, ready for sparkmeta without any configuration.

    A new session has the settings of variables of the environment, such as SPARKMETA_PLANNING.

    Args:
        app_name: the name in Spark's logs.
        cores: the number of cores to use; `*` for all of them.
        memory: the memory of the Java process, such as `4g`. Defaults to half of the machine's, at most 8 GiB.
        config: Spark settings, which take precedence over the defaults of this function.

    Returns:
        The new session, or the running session, with `config` set on it.

    Raises:
        SessionError: there is no Java 17 or newer, the variable SPARK_REMOTE names a Spark Connect server, or the
            running session can't change a setting of `config`.
    """
    from pyspark.errors import AnalysisException
    from pyspark.sql import SparkSession

    if (running := running_session()) is not None:
        for key, value in (config or {}).items():
            try:
                running.conf.set(key, value)
            except AnalysisException as error:
                raise SessionError(f"config sets {key}: the running session can't change it") from error
        return running
    if "SPARK_REMOTE" in os.environ:
        # The value may contain a token.
        raise SessionError(
            "the variable SPARK_REMOTE names a Spark Connect server: unset it to start a local session, or connect to "
            "the server with SparkSession.builder.getOrCreate()"
        )
    prepare_environment()
    builder = SparkSession.builder.master(f"local[{cores}]").appName(app_name)
    logging_options = {"spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOG_CONFIG}"}
    for key, value in (local_config(cores, memory) | logging_options | environment_conf() | dict(config or {})).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def prepare_environment() -> None:
    """Set the environment variables that tell a local Spark about this interpreter, a Java runtime and this machine.

    PYSPARK_PYTHON and SPARK_LOCAL_IP keep their values if they are set, JAVA_HOME if it has Java 17 or newer.

    Raises:
        SessionError: there is no Java 17 or newer.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["JAVA_HOME"] = str(spark_java_home())


def local_config(cores: int | str, memory: str | None) -> dict[str, str]:
    """Return the Spark settings of a session on this machine."""
    tasks = (os.cpu_count() or 1) if cores == "*" else int(cores)
    return {
        "spark.driver.memory": memory or f"{default_memory() // (1 << 20)}m",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower(),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(max(2, tasks)),
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        **_unix_sockets(tempfile.gettempdir()),
        # If true, PySpark sends the source line of each operation on a Column to the JVM: ten calls instead of two, for
        # each of a plan's hundreds of operations. The first session that uses it decides for the process.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        # Spark lists thousands of Parquet manifests with this many tasks. The default of 10,000 takes longer to start
        # than to list.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
    }


def _unix_sockets(folder: str) -> dict[str, str]:
    """Return the settings for Unix sockets between Spark and Python workers, in a folder, where they are supported.

    On TCP sockets, each Python task waits 40 ms for delayed acknowledgements. Spark has the settings since 4.1.
    """
    usable = hasattr(socket, "AF_UNIX") and len(os.fsencode(folder)) <= _MOST_SOCKET_FOLDER
    prefix = "spark.python.unix.domain.socket"
    return {f"{prefix}.enabled": "true", f"{prefix}.dir": folder} if usable else {}


def default_memory() -> int:
    """Return half of the machine's memory in bytes, between 1 and 8 GiB."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(max(machine // 2, _GIB), 8 * _GIB)


def running_session() -> SparkSession | None:
    """Return the thread's active session, or else the default one, which all threads share; None if none runs."""
    if "pyspark.sql" not in sys.modules:
        return None
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    if (session := SparkSession.getActiveSession()) is not None:
        return session
    try:
        session = SparkSession.active()
    except PySparkException:
        return None
    # PySpark keeps a default session if only its context was stopped.
    return None if _is_stopped(session) else session


def in_use(spark: SparkSession) -> SparkSession:
    """Return a session that is about to be used.

    Raises:
        SessionError: it was stopped. Without this check, each of its methods fails in another way.
    """
    if _is_stopped(spark):
        raise SessionError("the Spark session was stopped: load tables and make DataFrames again, with one that runs")
    return spark


def _is_stopped(spark: SparkSession) -> bool:
    """Return whether a session's context, or its Java process, has stopped. Other failures do not count."""
    if is_connect(spark):
        stopped: bool = spark.is_stopped  # type: ignore[attr-defined]
        return stopped
    checked_at = time.monotonic()
    if checked_at - _last_in_use.get(spark, -math.inf) < _IN_USE_SECONDS:
        return False
    try:
        spark.newSession()
    except ConnectionRefusedError:
        return True
    except Exception as error:  # noqa: BLE001  py4j raises errors of its own
        return "IllegalStateException" in str(error)
    _last_in_use[spark] = checked_at
    return False


def is_connect(spark: SparkSession) -> bool:
    """Return whether a session is a Spark Connect client's."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def materialize(df: DataFrame) -> DataFrame:
    """Compute rows once and checkpoint them, or return the DataFrame itself if the session can't.

    Serverless sessions refuse checkpoints, so they compute the rows again for each use.
    """
    from pyspark.errors import PySparkException

    try:
        return df.localCheckpoint()
    except PySparkException as error:
        if is_unavailable(error):
            return df
        raise


def advised_shuffles(spark: SparkSession, size: int) -> AbstractContextManager[None]:
    """Let adaptive execution give each task `size` bytes of shuffled rows, unless the session has a setting for this.

    Spark has a hint for this only in Scala.
    """
    return _temporary_setting(spark, _ADVISORY_SIZE, str(size))


def batches_of_entries(spark: SparkSession | None) -> AbstractContextManager[None]:
    """Let Spark pass entries to tasks in batches of 10,000 of any size, unless the session has a limit.

    To apply its limit of 64 MiB, Spark 4.1 and newer adds up the sizes of all columns after each row. With the
    statistics of 25 columns, commits of 150,000 files take 1.6 times as long, and commits of as many deletion vectors
    2.3 times.
    """
    return _temporary_setting(spark, _MOST_BATCH_BYTES, str((1 << 31) - 1))


@contextmanager
def _temporary_setting(spark: SparkSession | None, name: str, value: str) -> Iterator[None]:
    """Change a setting of a session within a block, unless the session has a value for it.

    Jobs that other threads run in the session meanwhile get it as well. Serverless sessions keep their defaults.
    """
    from pyspark.errors import PySparkException

    if spark is None or setting(spark, name) is not None:
        yield
        return
    try:
        spark.conf.set(name, value)
    except PySparkException as error:
        if not is_unavailable(error):
            raise
    try:
        yield
    finally:
        with suppress(PySparkException):
            spark.conf.unset(name)


def local_frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Return the rows of an Arrow table on the driver as a DataFrame. Timestamps without a zone stay without one.

    Spark reads few rows without a job. The chunks are combined because Spark stops reading at an empty one.
    """
    from sparkmeta.arrow_types import spark_schema, with_required_fields

    rows = table.combine_chunks() if len(table) else table.schema.empty_table()
    return spark.createDataFrame(with_required_fields(rows), spark_schema(table.schema))


def selectable_frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Return `local_frame` for rows with wide projections: for many rows, tasks evaluate them, not the optimizer."""
    frame = local_frame(spark, table)
    return frame.coalesce(_MANY_PARTITIONS) if len(table) > _INTERPRETED_ROWS else frame


def read_tasks(spark: SparkSession, files: int | None = None, size: int | None = None) -> int:
    """Return the number of tasks for rows that name files to open. Spark would put such short rows into one task.

    Args:
        spark: the session.
        files: the maximum number of rows; None if it is unknown.
        size: the size of the files in bytes; None if it is unknown. Then each file may need a task.
    """
    configured = setting(spark, "spark.sql.shuffle.partitions")
    tasks = int(configured) if configured and configured.isdecimal() else _DEFAULT_TASKS
    if files is not None and size is not None:
        files = tasks_of_work(files, size)
    return tasks if files is None else max(1, min(files, tasks))


def in_tasks(frame: DataFrame, tasks: int) -> DataFrame:
    """Return rows in one partition per task. A single partition needs no shuffle."""
    return frame.coalesce(1) if tasks == 1 else frame.repartition(tasks)


def tasks_of_work(files: int, size: int) -> int:
    """Return the number of tasks whose work takes as long as their start.

    Args:
        files: the number of files to open.
        size: the bytes of metadata to decode.
    """
    return min(files, files // _TASK_FILES + size // _TASK_BYTES + 1)


def map_arrow(frame: DataFrame, function: MapFunction, schema: pa.Schema | StructType | str) -> DataFrame:
    """Apply a function to the batches of a DataFrame, in Python tasks; lazily.

    Args:
        frame: the rows.
        function: takes batches of rows and yields batches of `schema`.
        schema: the schema of the result.
    """
    import pyarrow as pa

    from sparkmeta.arrow_types import spark_schema

    row_type = spark_schema(schema) if isinstance(schema, pa.Schema) else schema
    names = None
    columns = frame.columns
    if any("." in name or "`" in name for name in columns) or len({name.lower() for name in columns}) < len(columns):
        # PySpark looks up the columns by their names as if these were expressions, whose case may not matter.
        names = columns
        frame = frame.toDF(*map(str, range(len(names))))
    return frame.mapInArrow(TaskFunction(function, names), row_type)


@dataclass(frozen=True)
class TaskFunction:
    """A function that makes its Python worker skip work that PySpark does between tasks.

    Attributes:
        function: the function.
        names: the names of the columns in the batches for the function; None if the batches already have them.
    """

    function: MapFunction
    names: list[str] | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        batches, names = map(_with_offsets, batches), self.names
        yield from self.function(batches if names is None else (batch.rename_columns(names) for batch in batches))
        _skip_upkeep()


def worker_call() -> AbstractContextManager[None]:
    """Run a call of Spark in its Python worker.

    Errors of sparkmeta are raised without the calls that led to them, since Spark prints these before the error. After
    a call without an error, the worker skips work that PySpark does between tasks.
    """
    return _WorkerCall()


class _WorkerCall(AbstractContextManager[None]):
    """A context manager that is a class, since `contextmanager` raises an error with its first traceback."""

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, SparkmetaError):
            raise error.with_traceback(None) from None
        if error is None:
            _skip_upkeep()


def _skip_upkeep() -> None:
    """Make this Python worker skip work that PySpark does between tasks."""
    _exempt_modules()
    _exempt_archives()


def _with_offsets(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rebuild a batch if lists in it lack offsets.

    Spark sends no offsets for nested lists without any element. Arrow still reads the first offset, for example in
    `nbytes`. This is past the end of the buffer, and crashes the worker.
    """
    import pyarrow as pa

    return batch.take(pa.array(range(len(batch)), pa.int64())) if any(map(_lacks_offsets, batch.columns)) else batch


def _lacks_offsets(array: pa.Array) -> bool:
    import pyarrow as pa

    if pa.types.is_struct(array.type):
        return any(_lacks_offsets(array.field(index)) for index in range(array.type.num_fields))
    if isinstance(array, pa.ListArray | pa.LargeListArray):
        return not len(array) or _lacks_offsets(array.values)
    return False


@cache
def _exempt_modules() -> None:
    """Exempt loaded modules from garbage collections: PySpark's daemon collects after each task, 0.1 s with these."""
    gc.freeze()


def _exempt_archives() -> None:
    """Exempt Spark's own archives from `importlib.invalidate_caches`.

    PySpark 4.0 and 4.1 call it before each task. Python before 3.13 then reads the directories of archives on the path
    again, which takes 80 ms for Spark's. An import that needs them uses the directories that were read before.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter) and _SPARK_ARCHIVE.fullmatch(os.path.basename(finder.archive)):  # noqa: PTH119
            del sys.path_importer_cache[path]


def map_by_tasks(spark: SparkSession, units: pa.Table, function: MapFunction, schema: pa.Schema) -> DataFrame:
    """Apply a function to units of work, rows of a table, in tasks of Spark; lazily.

    Args:
        spark: the session.
        units: the units; each task gets consecutive ones.
        function: takes batches of units and yields batches of `schema`.
        schema: the schema of the result.
    """
    return map_arrow(local_frame(spark, units), function, schema)


def map_on_driver(units: pa.Table, function: MapFunction, schema: pa.Schema, *, runs: bool = False) -> pa.Table:
    """Apply a function to units of work in threads of this process; see `map_by_tasks`.

    Args:
        units: the units.
        function: takes batches of units and yields batches of `schema`.
        schema: the schema of the result.
        runs: whether to pass consecutive units to one call, because neighbours share work.
    """
    import pyarrow as pa

    size = max(-(-len(units) // _THREADS), 1) if runs else 1
    groups = [units.slice(start, size).to_batches() for start in range(0, len(units), size)]
    apply = _threads().map if len(groups) > 1 else map
    results = apply(lambda group: list(function(group)), groups)
    return pa.Table.from_batches([batch for batches in results for batch in batches], schema)


@cache
def _threads() -> ThreadPoolExecutor:
    """Return the pool that all reads share, since some FileIOs keep a connection per thread."""
    return ThreadPoolExecutor(_THREADS, "sparkmeta")
