"""The sessions that plan, whose jobs other threads can cancel."""

from __future__ import annotations

import threading
from collections import OrderedDict
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from sparkmeta.session import is_connect
from sparkmeta.state import TableState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from sparkmeta.table import Table

_MOST_TABLES = 32


@dataclass(eq=False)
class PlanSession:
    """A session that runs one plan at a time.

    Attributes:
        spark: the session.
        lock: held while the session gets another plan, or is interrupted.
    """

    spark: SparkSession
    lock: threading.Lock = field(default_factory=threading.Lock)
    _tables: OrderedDict[str, Table] = field(default_factory=OrderedDict)

    def table(self, table: Table) -> Table:
        """Return a table as this session reads it, with the manifests that its state has read."""
        if table.state.session is self.spark:
            return table
        bound = self._tables.get(table.metadata_location)
        # A table that was loaded again may have other credentials.
        if bound is None or bound.state.files is not table.state.files or bound.metadata is not table.metadata:
            state = table.state
            bound = replace(table, state=TableState(self.spark, state.files, state.metadata, state.snapshot))
            self._tables[table.metadata_location] = bound
        self._tables.move_to_end(table.metadata_location)
        while len(self._tables) > _MOST_TABLES:
            self._tables.popitem(last=False)
        return bound


class PlanSessions:
    """A session for each thread that plans.

    Classic Spark interrupts a tag only from the thread that has set it, which waits for its job, but all jobs of a
    session from any thread. On Spark Connect, tags suffice, and sessions are not cheap.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._by_tag = is_connect(spark)
        self._own = threading.local()
        self._lock = threading.Lock()
        self._running: dict[str, PlanSession] = {}

    @contextmanager
    def running(self, plan: str) -> Iterator[PlanSession]:
        """Run a plan in this thread's session."""
        session = self._of_thread()
        with self._lock:
            self._running[plan] = session
        if self._by_tag:
            session.spark.addTag(plan)
        try:
            yield session
        finally:
            if self._by_tag:
                session.spark.removeTag(plan)
            with session.lock, self._lock:
                if self._running.get(plan) is session:
                    del self._running[plan]

    def interrupt(self, plan: str) -> None:
        """Cancel the running jobs of a plan."""
        with self._lock:
            session = self._running.get(plan)
        if session is None:
            return
        with session.lock:
            with self._lock:
                still_runs = self._running.get(plan) is session
            if still_runs and self._by_tag:
                session.spark.interruptTag(plan)
            elif still_runs:
                session.spark.interruptAll()

    def _of_thread(self) -> PlanSession:
        session: PlanSession | None = getattr(self._own, "session", None)
        if session is None:
            session = self._own.session = PlanSession(self._spark if self._by_tag else _copy(self._spark))
        return session


def _copy(spark: SparkSession) -> SparkSession:
    """Return a new session with the settings of another one."""
    copy = spark.newSession()
    for key, value in spark.conf.getAll.items():
        # Sessions share the settings that can't be set. `isModifiable` knows only Spark's own.
        if copy.conf.get(key, None) != value:
            with suppress(PySparkException):
                copy.conf.set(key, value)
    return copy
