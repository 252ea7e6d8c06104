"""The plans of the service: which run, which wait, which are finished and kept, and the tokens of their pages."""

from __future__ import annotations

import json
import logging
import math
import threading
import time
import uuid
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from sparkmeta.errors import translated_errors
from sparkmeta.plan.rest_tasks import no_rest_tasks
from sparkmeta.service.errors import NO_PLAN, NO_TASK, ApiError, busy
from sparkmeta.service.plans import PageMaker, Pages, most_files, scan_of
from sparkmeta.service.spool import RECORD, Spool
from sparkmeta.service.tokens import Signer, Ticket

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from sparkmeta.service.access import Principal
    from sparkmeta.service.options import ServeOptions
    from sparkmeta.service.requests import PlanRequest
    from sparkmeta.table import Table

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Run:
    """A plan that runs or has finished.

    Attributes:
        key: what it depends on.
        result: its name in the spool.
        future: its pages.
        started: when it was submitted, by the monotonic clock.
        ended: when it succeeded or failed, by the same clock; infinite before that.
        requests: the requests that wait for it or fetch its pages.
        cancelled: whether nobody wants it any more.
    """

    key: Any
    result: str
    future: Future[Pages] = field(default_factory=Future)
    started: float = field(default_factory=time.monotonic)
    ended: float = math.inf
    requests: set[str] = field(default_factory=set)
    cancelled: bool = False

    @property
    def pages(self) -> Pages | None:
        """The pages of a run that has succeeded."""
        done = self.future.done() and not self.future.cancelled() and self.future.exception() is None
        return self.future.result() if done else None


class Planning:
    """Runs plans in a bounded number of threads, and keeps what they made.

    Plans that Spark's tasks make have at most half of the slots, so that they don't hold up those of few files.
    """

    def __init__(self, spark: SparkSession, options: ServeOptions) -> None:
        self.spark, self.options = spark, options
        self.spool = Spool(options.spool, options.spool_properties)
        self._signer, self._maker = Signer(options.secret), PageMaker(options, self.spool)
        self._lock = threading.RLock()
        self._runs: dict[str, Run] = {}
        self._kept: OrderedDict[Any, Run] = OrderedDict()
        self._short = ThreadPoolExecutor(options.slots, "plans")
        self._long = ThreadPoolExecutor(max(1, options.slots // 2), "large-plans")

    # -- asking for plans -------------------------------------------------------------------------------------------

    def submit(
        self, table: Table, request: PlanRequest, principal: Principal, *, null_partitions: bool
    ) -> tuple[Run, str]:
        """Start a plan, or join one that runs or is kept. Return it and the id of the plan for this request.

        Raises:
            ApiError: too many plans wait.
        """
        key = (table.name(), table.metadata_location, table.metadata.table_uuid, null_partitions, request.key)
        ticket_id = uuid.uuid4().hex
        with self._lock:
            run = self._known(key)
            if run is None:
                if self.waiting >= self.options.slots + self.options.queued:
                    raise busy(f"{self.waiting} plans run or wait, which is the limit")
                run = Run(key, self.spool.new_result())
                self._runs[run.result] = self._kept[key] = run
                self._start(self._short, run, partial(self._look, run, table, request, null_partitions))
            self._kept.move_to_end(key)
            run.requests.add(ticket_id)
        expires = int(time.time() + self.options.plan_seconds + self.options.keep_seconds)
        return run, self._signer.token(Ticket(run.result, "", table.name(), principal.name, expires, ticket_id))

    @property
    def waiting(self) -> int:
        """How many plans run or wait."""
        return sum(not run.future.done() for run in self._runs.values())

    @property
    def finished(self) -> int:
        """How many finished plans are kept."""
        return len(self._kept)

    def _known(self, key: Any) -> Run | None:
        run = self._kept.get(key)
        if run is None or run.cancelled:
            return None
        fresh = time.monotonic() - run.ended < self.options.keep_seconds
        usable = not run.future.done() or (run.pages is not None and fresh)
        return run if usable else None

    # -- running them -----------------------------------------------------------------------------------------------

    def _start(self, pool: ThreadPoolExecutor, run: Run, work: Callable[[], Pages | None]) -> None:
        def task() -> None:
            try:
                if run.cancelled:
                    self._fail(run, _cancelled())
                    return
                self.spark.addTag(run.result)
                try:
                    with translated_errors():
                        pages = work()
                finally:
                    self.spark.removeTag(run.result)
                if pages is not None:
                    self._finish(run, pages)
            except BaseException as error:  # noqa: BLE001  whoever asks for the plan gets it
                self._fail(run, error)

        pool.submit(task)

    def _look(self, run: Run, table: Table, request: PlanRequest, null_partitions: bool) -> Pages | None:
        """Make a plan of few files; hand others over to the threads of large plans."""
        scan = scan_of(table, request)
        files = most_files(scan)
        if files == 0:
            return self._maker.make(run.result, no_rest_tasks(self.spark), 0, None)

        def make() -> Pages:
            tasks = scan.to_rest_tasks(null_partitions=null_partitions)
            return self._maker.make(run.result, tasks, files, request.min_rows)

        if files is not None and files <= self.options.driver_files:
            return make()
        self._start(self._long, run, make)
        return None

    def _finish(self, run: Run, pages: Pages) -> None:
        if time.monotonic() - run.started > self.options.wait_seconds:
            # Clients that have been sent away may ask any replica.
            record = {"first": pages.first.decode(), "names": pages.names}
            self.spool.write(run.result, RECORD, json.dumps(record).encode())
        with self._lock:
            if not run.future.done():
                run.ended = time.monotonic()
                run.future.set_result(pages)
            self._make_room(run)

    def _fail(self, run: Run, error: BaseException) -> None:
        with self._lock:
            if not run.future.done():
                run.ended = time.monotonic()
                run.future.set_exception(error)
            if self._kept.get(run.key) is run:
                del self._kept[run.key]
        self.spool.delete(run.result)

    def _make_room(self, newest: Run) -> None:
        """Forget the plans that were not used for longest, until what is kept fits the limits."""
        finished = [run for run in self._kept.values() if run.pages is not None]
        for run in finished:
            all_pages = [plan.pages for plan in self._kept.values() if plan.pages is not None]
            in_memory, in_spool = (
                sum(len(pages.first) for pages in all_pages),
                sum(pages.spooled for pages in all_pages),
            )
            if in_memory <= self.options.cached_bytes and in_spool <= self.options.max_spool_bytes:
                return
            if run is not newest:
                self._forget(run)
        if newest.pages is not None and newest.pages.spooled > self.options.max_spool_bytes:
            _log.warning("plan %s has %s bytes in the spool, above the limit", newest.result, newest.pages.spooled)

    def _forget(self, run: Run) -> None:
        if self._kept.get(run.key) is run:
            del self._kept[run.key]
        self._runs.pop(run.result, None)
        if not run.requests:
            self.spool.delete(run.result)

    # -- what clients do with them ----------------------------------------------------------------------------------

    def ticket(self, token: str, table: tuple[str, ...], principal: Principal, *, page: bool) -> Ticket:
        """Return what a token says.

        Raises:
            ApiError: it is no token of such a plan or page, of this table and user, or it has expired.
        """
        ticket = self._signer.ticket(token)
        if ticket is None or bool(ticket.page) != page or (ticket.table, ticket.principal) != (table, principal.name):
            what = ("plan task", NO_TASK) if page else ("plan id", NO_PLAN)
            raise ApiError(404, what[1], f"The {what[0]} does not exist, or has expired")
        return ticket

    def completed(self, pages: Pages, plan_id: str, table: tuple[str, ...], principal: Principal) -> bytes:
        """Return the answer with the first page of a plan and the tokens of all others."""
        expires = int(time.time() + self.options.keep_seconds)
        tickets = (Ticket(pages.result, name, table, principal.name, expires, "") for name in pages.names)
        tokens = [self._signer.token(ticket) for ticket in tickets]
        head = json.dumps({"status": "completed", "plan-id": plan_id, "plan-tasks": tokens})
        return head[:-1].encode() + (b"," + pages.first if pages.first else b"") + b"}"

    def state(self, ticket: Ticket) -> Run | Pages | None:
        """Return the run of a plan, or its pages if another replica made it; None while another one may be at it.

        Raises:
            ApiError: there is no such plan.
        """
        with self._lock:
            if (run := self._runs.get(ticket.result)) is not None:
                return run
        if (data := self.spool.read(ticket.result, RECORD)) is not None:
            record = json.loads(data)
            return Pages(ticket.result, record["first"].encode(), tuple(record["names"]), 0, 0)
        if time.time() < ticket.expires - self.options.keep_seconds:
            return None
        raise ApiError(404, NO_PLAN, "The plan id does not exist")

    def page(self, ticket: Ticket) -> bytes:
        """Return a page, compressed by gzip. Raises ApiError if it is gone."""
        if (data := self.spool.read(ticket.result, ticket.page)) is None:
            raise ApiError(404, NO_TASK, "The plan task does not exist any more")
        return data

    def release(self, ticket: Ticket) -> None:
        """Note that a request needs its plan no more. A plan that nobody waits for is cancelled."""
        with self._lock:
            run = self._runs.get(ticket.result)
            if run is None:
                return
            run.requests.discard(ticket.request)
            if run.requests or run.future.done():
                return
            run.cancelled = True
        self._cancel(run, _cancelled())

    def _cancel(self, run: Run, error: ApiError) -> None:
        run.cancelled = True
        self._fail(run, error)
        with suppress(Exception):
            self.spark.interruptTag(run.result)

    # -- upkeep -----------------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Cancel plans that take too long, forget old ones, and delete old pages, of other replicas as well."""
        now = time.monotonic()
        with self._lock:
            slow = [run for run in self._runs.values() if not run.future.done()]
            old = [run for run in self._runs.values() if run.future.done()]
            for run in old:
                age = now - run.ended
                if age > self.options.keep_seconds or (run.pages is None and age > self.options.plan_seconds):
                    self._forget(run)
        for run in slow:
            if now - run.started > self.options.plan_seconds:
                limit = f"planning took longer than {self.options.plan_seconds:g} seconds"
                self._cancel(run, ApiError(504, "GatewayTimeoutException", f"{limit}: filter more"))
        # A plan is handed out until it is as old as tokens last, and these tokens last as long again.
        self.spool.delete_older(2 * self.options.keep_seconds + self.options.plan_seconds)

    def close(self) -> None:
        """Cancel all plans."""
        with self._lock:
            running = [run for run in self._runs.values() if not run.future.done()]
        for run in running:
            self._cancel(run, busy("the service stops"))
        self._short.shutdown(wait=False, cancel_futures=True)
        self._long.shutdown(wait=False, cancel_futures=True)
        self.spool.close()


def _cancelled() -> ApiError:
    return ApiError(503, "PlanCancelledException", "the plan was cancelled")
