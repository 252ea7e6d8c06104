"""The sessions that plan for requests, the plans that a service knows, and the tokens of their results."""

from __future__ import annotations

import json
import logging
import math
import threading
import time
import uuid
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import PySparkException

from sparkmeta.errors import translated_errors
from sparkmeta.scan import Scan
from sparkmeta.service.access import Signer, Ticket
from sparkmeta.service.pages import POLLED, RECORD, Spool
from sparkmeta.service.plans import (
    CREDENTIALS,
    PageMaker,
    Pages,
    most_files,
    refuse_dropped_columns,
    scan_of,
    version_key,
)
from sparkmeta.service.requests import BAD_REQUEST, CANCELLED, NO_PLAN, NO_TASK, TIMEOUT, ApiError, api_error, busy
from sparkmeta.service.rest_tasks import no_rest_tasks, rest_tasks, to_rest_tasks
from sparkmeta.session import SessionSource, is_connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from sparkmeta.service.access import Principal, ServeOptions
    from sparkmeta.service.requests import PlanRequest
    from sparkmeta.table import Table


# -- Sessions that plan -----------------------------------------------------------------------------------------------


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
        """Return a table bound to this session, with the manifests that its state has read."""
        if table.state.sessions.given is self.spark:
            return table
        bound = self._tables.get(table.metadata_location)
        # A reloaded table may have other credentials.
        if bound is None or bound.state.files is not table.state.files or bound.metadata is not table.metadata:
            bound = replace(table, state=replace(table.state, sessions=SessionSource(self.spark)))
            self._tables[table.metadata_location] = bound
        self._tables.move_to_end(table.metadata_location)
        while len(self._tables) > _MOST_TABLES:
            self._tables.popitem(last=False)
        return bound


class PlanSessions:
    """A session for each thread that plans.

    In classic Spark, only the thread that has set a tag can interrupt it, and this thread waits for its job. Any thread
    can interrupt all jobs of a session. On Spark Connect, tags suffice, and sessions are expensive.
    """

    def __init__(self, sessions: SessionSource) -> None:
        self._sessions = sessions
        self._own = threading.local()
        self._lock = threading.Lock()
        self._running: dict[str, PlanSession] = {}

    @contextmanager
    def running(self, plan: str) -> Iterator[PlanSession]:
        """Run a plan in this thread's session."""
        session = self._thread_session()
        with self._lock:
            self._running[plan] = session
        by_tag = is_connect(session.spark)
        if by_tag:
            session.spark.addTag(plan)
        try:
            yield session
        finally:
            if by_tag:
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
            if still_runs and is_connect(session.spark):
                session.spark.interruptTag(plan)
            elif still_runs:
                session.spark.interruptAll()

    def _thread_session(self) -> PlanSession:
        session: PlanSession | None = getattr(self._own, "session", None)
        if session is None:
            spark = self._sessions.get()
            session = self._own.session = PlanSession(spark if is_connect(spark) else _copy(spark))
        return session


def _copy(spark: SparkSession) -> SparkSession:
    """Return a new session with the settings of another session."""
    copy = spark.newSession()
    for key, value in spark.conf.getAll.items():
        # Sessions share the settings that can't be set. `isModifiable` knows only Spark's own.
        if copy.conf.get(key, None) != value:
            with suppress(PySparkException):
                copy.conf.set(key, value)
    return copy


# -- The plans that a service knows -----------------------------------------------------------------------------------


# Memory of a finished plan, without the text of its first page.
_RUN_BYTES = 4_000


@dataclass(eq=False)
class Run:
    """A plan that runs or has ended.

    Attributes:
        key: what the plan depends on.
        result: its name in the spool.
        future: its pages, or the ApiError with which it failed.
        started: when it was submitted, by the monotonic clock.
        ended: when it succeeded or failed, by the same clock; infinite before that.
        requests: the requests that wait for it, ask for its result later, or have tokens of its pages.
        answers: how many requests have no answer yet.
        is_polled: whether a client was asked to fetch the result later, possibly from another replica.
        threads: how many threads work at it. They may go on for a while after it was cancelled.
    """

    key: Any
    result: str
    future: Future[Pages] = field(default_factory=Future)
    started: float = field(default_factory=time.monotonic)
    ended: float = math.inf
    requests: set[str] = field(default_factory=set)
    answers: int = 0
    is_polled: bool = False
    threads: int = 0

    @property
    def has_ended(self) -> bool:
        return self.future.done()

    @property
    def error(self) -> BaseException | None:
        """Why the plan has failed; None if it has not."""
        return self.future.exception() if self.has_ended else None

    @property
    def pages(self) -> Pages | None:
        """The pages of a plan that has succeeded."""
        return self.future.result() if self.has_ended and self.error is None else None


class Runs:
    """The plans of a service. Threads share it.

    A finished plan answers requests for `keep_seconds`. Its tokens are valid as long, so it is forgotten after twice
    that time. It is forgotten earlier if it does not answer new requests and all requests have released it.
    """

    def __init__(self, options: ServeOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._all: dict[str, Run] = {}
        self._unfinished: dict[str, Run] = {}
        # The plans that further requests join, by key, the least recently used first.
        self._shared: OrderedDict[Any, Run] = OrderedDict()
        self._shared_bytes = self._spooled_bytes = 0
        self._forgotten: list[str] = []

    @property
    def unfinished(self) -> list[Run]:
        """The plans that run or wait, and ended plans that threads still work on."""
        with self._lock:
            return list(self._unfinished.values())

    @property
    def known(self) -> int:
        """How many plans there are, finished ones included."""
        return len(self._all)

    def get(self, result: str) -> Run | None:
        """Return a plan by its name; None if this service does not know it, or it does not answer new requests."""
        with self._lock:
            run = self._all.get(result)
            return None if run is None or self._is_old(run) else run

    def join(self, key: Any, result: str, request: str) -> tuple[Run, bool]:
        """Return the plan for a request, and whether it is a new one.

        Args:
            key: what the plan depends on.
            result: the name of a new plan.
            request: the id of the request.

        Raises:
            ApiError: too many plans run or wait.
        """
        with self._lock:
            run = self._shared.get(key)
            if is_new := run is None or self._is_old(run):
                if len(self._unfinished) >= self._options.slots + self._options.queued:
                    raise busy(f"{len(self._unfinished)} plans are running or waiting, which is the limit")
                if run is not None:
                    self._unshare(run)
                run = self._all[result] = self._unfinished[result] = self._shared[key] = Run(key, result)
            assert run is not None
            self._shared.move_to_end(key)
            run.requests.add(request)
            run.answers += 1
            return run, is_new

    def answered(self, run: Run) -> None:
        """Note that a request that had joined a plan has its answer, or that no request waits for it."""
        with self._lock:
            run.answers -= 1
            self._trim(run)

    def begin_work(self, run: Run) -> bool:
        """Record that a thread works on a plan. Return False if the plan has already ended."""
        with self._lock:
            if not run.has_ended:
                run.threads += 1
            return not run.has_ended

    def end_work(self, run: Run) -> None:
        """Note that a thread has left a plan."""
        with self._lock:
            run.threads -= 1
            self._trim(run)
            self._settle(run)

    def finish(self, run: Run, pages: Pages) -> None:
        """Note that a plan has succeeded. Other plans are forgotten if there is no room for all.

        Raises:
            ApiError: it was cancelled, or the spool has no room for its pages.
        """
        with self._lock:
            if run.has_ended:
                raise cancelled()
            self._make_room(run, pages)
            run.ended = time.monotonic()
            run.future.set_result(pages)
            self._spooled_bytes += pages.spooled
            if self._shared.get(run.key) is run:
                self._shared_bytes += _memory(pages)
                if self._shared_bytes > self._options.cached_bytes:
                    self._unshare(run)

    def _make_room(self, newest: Run, pages: Pages) -> None:
        limit = self._options.max_spool_bytes
        if pages.spooled > limit:
            problem = f"the pages of the plan have {pages.spooled:,} bytes, and {limit:,} are the limit"
            raise ApiError(400, BAD_REQUEST, f"{problem}: use a more selective filter")
        for run in list(self._shared.values()) if self._lacks_room(pages) else ():
            if run.has_ended and run is not newest and self._lacks_room(pages):
                self._unshare(run)
                self._settle(run)
        if self._spooled_bytes + pages.spooled > limit:
            raise busy(f"the spool has no room for the {pages.spooled:,} bytes of the plan's pages")

    def _lacks_room(self, pages: Pages) -> bool:
        options = self._options
        is_long = self._shared_bytes + _memory(pages) > options.cached_bytes
        return is_long or self._spooled_bytes + pages.spooled > options.max_spool_bytes

    def fail(self, run: Run, error: ApiError) -> bool:
        """Note that a plan has failed. Return False if it had ended before."""
        with self._lock:
            return self._fail(run, error)

    def _fail(self, run: Run, error: ApiError) -> bool:
        if run.has_ended:
            return False
        run.ended = time.monotonic()
        self._unshare(run)
        run.future.set_exception(error)
        self._settle(run)
        return True

    def poll(self, run: Run) -> bool:
        """Note that a client was asked to fetch a plan's result later. Return whether the plan has ended already."""
        with self._lock:
            run.is_polled = True
            return run.has_ended

    def release(self, result: str, request: str) -> Run | None:
        """Note that a request has released a plan. Return the plan if this cancels it."""
        with self._lock:
            run = self._all.get(result)
            if run is None:
                return None
            run.requests.discard(request)
            if run.requests:
                return None
            if self._fail(run, cancelled()):
                return run
            self._settle(run)
            return None

    def forget_old(self) -> None:
        """Forget the plans that don't answer new requests and have no valid tokens."""
        with self._lock:
            for run in [run for run in self._all.values() if self._is_old(run)]:
                self._unshare(run)
                if self._is_old(run, 2):
                    run.requests.clear()
                self._settle(run)

    def forgotten(self) -> list[str]:
        """Return the names of the plans that were forgotten since the last call. Their pages are to be deleted."""
        with self._lock:
            names, self._forgotten = self._forgotten, []
            return names

    def _is_old(self, run: Run, times: int = 1) -> bool:
        return time.monotonic() - run.ended > times * self._options.keep_seconds

    def _unshare(self, run: Run) -> None:
        if self._shared.get(run.key) is run:
            del self._shared[run.key]
            if run.pages is not None:
                self._shared_bytes -= _memory(run.pages)
        self._trim(run)

    def _trim(self, run: Run) -> None:
        """Drop the first page of a plan that does not answer new requests. Tokens of its other pages may outlive it."""
        if self._shared.get(run.key) is run or run.answers or run.threads or (pages := run.pages) is None:
            return
        run.future = Future()
        run.future.set_result(replace(pages, first=None))

    def _settle(self, run: Run) -> None:
        """Forget a plan that no request needs."""
        if not run.has_ended or run.threads:
            return
        self._unfinished.pop(run.result, None)
        # Clients that poll learn of failures.
        is_awaited = run.is_polled and run.error is not None and not self._is_old(run)
        if run.requests or is_awaited or self._shared.get(run.key) is run or self._all.pop(run.result, None) is None:
            return
        if run.pages is not None:
            self._spooled_bytes -= run.pages.spooled
        if run.is_polled or (run.pages is not None and run.pages.spooled):
            self._forgotten.append(run.result)


def cancelled() -> ApiError:
    """Return the error of a plan that no request waits for."""
    return ApiError(503, CANCELLED, "the plan was cancelled")


def _memory(pages: Pages) -> int:
    return _RUN_BYTES + len(pages.first or b"")


# -- Plan requests ----------------------------------------------------------------------------------------------------


_log = logging.getLogger("sparkmeta.serve")

# Sweeps come late, and clocks of replicas differ.
_SLACK_SECONDS = 120.0
# How long stopping waits for the threads of cancelled plans, which may still write pages.
_STOP_SECONDS = 5.0
_STOP_STEP = 0.05


class Planning:
    """Runs plans in a bounded number of threads, and hands out their results.

    A thread makes plans of few manifests itself. For other plans it uses Spark, in its own session. Plans of many files
    have separate threads, half as many, so that they don't hold up plans of few files.
    """

    def __init__(self, sessions: SessionSource, options: ServeOptions) -> None:
        self.options, self._sessions = options, PlanSessions(sessions)
        self.runs = Runs(options)
        self.spool = Spool(options.spool, options.spool_properties)
        self._signer, self._maker = Signer(options.secret), PageMaker(options, self.spool)
        self._short = ThreadPoolExecutor(options.slots, "plans")
        self._long = ThreadPoolExecutor(max(1, options.slots // 2), "large-plans")
        self._next_spool_sweep = time.monotonic()

    # -- asking for plans -------------------------------------------------------------------------------------------

    def submit(
        self, table: Table, request: PlanRequest, principal: Principal, *, null_partitions: bool
    ) -> tuple[Run, str]:
        """Start a plan, or join a plan that runs or is kept. Return the plan and its id for this request.

        Raises:
            ApiError: too many plans wait.
            UnsupportedError: the request reads a column whose values clients can't get.
        """
        refuse_dropped_columns(table, request)
        key = (table.name(), version_key(table), null_partitions, request.digest)
        request_id = uuid.uuid4().hex
        run, is_new = self.runs.join(key, self.spool.new_result(), request_id)
        if is_new:
            self._start(self._short, run, partial(self._look, run, table, request, null_partitions))
        expires = int(time.time() + self.options.plan_seconds + self.options.keep_seconds)
        return run, self._signer.token(Ticket(run.result, "", table.name(), principal.name, expires, request_id))

    # -- running them -----------------------------------------------------------------------------------------------

    def _start(self, pool: ThreadPoolExecutor, run: Run, work: Callable[[], Pages | None]) -> None:
        try:
            pool.submit(self._work, run, work)
        except RuntimeError:
            self._fail(run, _stopping())

    def _work(self, run: Run, work: Callable[[], Pages | None]) -> None:
        if not self.runs.begin_work(run):
            return
        try:
            with translated_errors():
                pages = work()
            if pages is not None:
                self.runs.finish(run, pages)
                self._record(run)
        except BaseException as error:  # noqa: BLE001  requests for the plan get it
            self._fail(run, error)
        finally:
            self.runs.end_work(run)
            self._delete_forgotten()

    def _look(self, run: Run, table: Table, request: PlanRequest, null_partitions: bool) -> Pages | None:
        """Make a plan of few files; hand others over to the threads of large plans."""
        scan = scan_of(table, request)
        files = most_files(scan)
        if files == 0:
            return self._maker.make(run.result, no_rest_tasks(), 0, None)
        is_short = files is not None and files <= self.options.driver_files
        if is_short and isinstance(scan, Scan) and scan.plan.by_driver:
            tasks = rest_tasks(scan, null_partitions=null_partitions, stats_fields=request.stats_fields)
            if isinstance(tasks, pa.Table):
                return self._maker.make(run.result, tasks, files, request.min_rows)

        def make() -> Pages:
            with self._sessions.running(run.result) as session:
                scan = scan_of(session.table(table), request)
                tasks = to_rest_tasks(scan, null_partitions=null_partitions, stats_fields=request.stats_fields)
                return self._maker.make(run.result, tasks, files, request.min_rows)

        if is_short:
            return make()
        self._start(self._long, run, make)
        return None

    def _fail(self, run: Run, error: BaseException) -> None:
        """End a plan with an error, if it has not ended. Its traceback is not kept, since it holds the plan's data."""
        known = api_error(error)
        if self.runs.fail(run, known) and known is not error and known.status >= 500:
            _log.error("plan %s failed", run.result, exc_info=error)
        # The thread may have written pages after the plan was cancelled.
        self.spool.delete(run.result)
        self._record(run)

    def _record(self, run: Run) -> None:
        """Write the result of a plan to the spool, if its clients may ask any replica for it."""
        if run.is_polled:
            with suppress(Exception):  # As for `poll`.
                self.spool.write(run.result, RECORD, json.dumps(self._recorded(run)).encode())

    def _recorded(self, run: Run) -> dict[str, Any]:
        if (pages := run.pages) is None:
            error = api_error(run.error or cancelled())
            return {"error": [error.status, error.kind, error.message]}
        until = time.time() + run.ended - time.monotonic() + self.options.keep_seconds
        assert pages.first is not None, "a plan has its first page while threads or answers need it"
        return {"first": pages.first.decode(), "names": pages.names, "until": until}

    # -- what clients do with them ----------------------------------------------------------------------------------

    def ticket(self, token: str, table: tuple[str, ...], principal: Principal, *, page: bool) -> Ticket:
        """Return the ticket in a token.

        Raises:
            ApiError: the token is not for a plan or page of this table and user, or it has expired.
        """
        ticket = self._signer.ticket(token)
        if ticket is None or bool(ticket.page) != page or (ticket.table, ticket.principal) != (table, principal.name):
            kind = ("plan task", NO_TASK) if page else ("plan id", NO_PLAN)
            raise ApiError(404, kind[1], f"{'.'.join(table)}: there is no such {kind[0]}, or it has expired")
        return ticket

    def completed(
        self,
        pages: Pages,
        plan_id: str | None,
        table: tuple[str, ...],
        principal: Principal,
        credentials: Sequence[dict[str, Any]] = (),
    ) -> bytes:
        """Return the answer with the first page of a plan and the tokens of all others.

        Args:
            pages: the pages of the plan.
            plan_id: the plan's id, for the client that requested the plan; None for a client that fetches its result.
            table: the table.
            principal: who may fetch the pages.
            credentials: the credentials of the answer. Neither the plan nor its pages have them.
        """
        assert pages.first is not None, "see `Runs.answered` and `result`"
        expires = int(time.time() + self.options.keep_seconds)
        tickets = (Ticket(pages.result, name, table, principal.name, expires, "") for name in pages.names)
        tokens = [self._signer.token(ticket) for ticket in tickets]
        named = {"plan-id": plan_id} if plan_id is not None else {}
        document = {"status": "completed", **named, "plan-tasks": tokens}
        head = json.dumps(document | ({CREDENTIALS: credentials} if credentials else {}))
        return head[:-1].encode() + (b"," + pages.first if pages.first else b"") + b"}"

    def poll(self, run: Run) -> None:
        """Note that a client will ask for a plan's result later, possibly another replica."""
        with suppress(Exception):  # Without it, clients still get the result from this service.
            self.spool.write(run.result, POLLED, b"{}")
        if self.runs.poll(run):
            self._record(run)

    def result(self, ticket: Ticket) -> Pages | ApiError | None:
        """Return the pages of a plan, or why it failed; None while it runs, possibly at another replica.

        Raises:
            ApiError: there is no such plan.
        """
        if (run := self.runs.get(ticket.result)) is not None:
            pages = run.pages
            if pages is None or pages.first is not None:
                return pages or (None if run.error is None else api_error(run.error))
        if (data := self.spool.read(ticket.result, RECORD)) is not None:
            record = json.loads(data)
            if "error" in record:
                return ApiError(*record["error"])
            if time.time() < record["until"]:
                return Pages(ticket.result, record["first"].encode(), tuple(record["names"]), 0, 0)
        elif self.spool.read(ticket.result, POLLED) and time.time() < ticket.expires - self.options.keep_seconds:
            return None
        raise ApiError(404, NO_PLAN, f"{'.'.join(ticket.table)}: there is no such plan id, or it has expired")

    def page(self, ticket: Ticket) -> bytes:
        """Return a page, compressed by gzip. Raises ApiError if it is gone."""
        if (data := self.spool.read(ticket.result, ticket.page)) is None:
            raise ApiError(404, NO_TASK, f"{'.'.join(ticket.table)}: the page of the plan task is gone")
        return data

    def release(self, ticket: Ticket) -> None:
        """Record that a request has released its plan. A plan that no request waits for is cancelled."""
        if (run := self.runs.release(ticket.result, ticket.request)) is not None:
            self._interrupt(run)
            self.spool.delete(run.result)
            self._record(run)
        self._delete_forgotten()

    def _delete_forgotten(self) -> None:
        for result in self.runs.forgotten():
            self.spool.delete(result)

    def _cancel(self, run: Run, error: ApiError) -> None:
        self._fail(run, error)
        self._interrupt(run)

    def _interrupt(self, run: Run) -> None:
        with suppress(Exception):
            self._sessions.interrupt(run.result)

    # -- upkeep -----------------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Cancel plans that take too long, forget old ones, and delete old pages, of other replicas as well."""
        now, options = time.monotonic(), self.options
        for run in self.runs.unfinished:
            if run.has_ended:
                # Its thread may have begun a job just after it was cancelled.
                self._interrupt(run)
            elif now - run.started > options.plan_seconds:
                limit = f"planning took longer than {options.plan_seconds:g} seconds"
                self._cancel(run, ApiError(504, TIMEOUT, f"{limit}: use a more selective filter"))
        self.runs.forget_old()
        self._delete_forgotten()
        if now >= self._next_spool_sweep:
            self._next_spool_sweep = now + options.keep_seconds / 4
            self.spool.delete_older(options.plan_seconds + 2 * options.keep_seconds + _SLACK_SECONDS)

    def close(self) -> None:
        """Cancel all plans."""
        self._short.shutdown(wait=False, cancel_futures=True)
        self._long.shutdown(wait=False, cancel_futures=True)
        deadline = time.monotonic() + _STOP_SECONDS
        while (unfinished := self.runs.unfinished) and time.monotonic() < deadline:
            for run in unfinished:
                self._cancel(run, _stopping())
            time.sleep(_STOP_STEP)
        self.spool.close()


def _stopping() -> ApiError:
    return busy("the service is shutting down")
