"""Plans made by Spark for requests, and the tokens of their results."""

from __future__ import annotations

import json
import logging
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from sparkmeta.errors import translated_errors
from sparkmeta.plan.rest_tasks import no_rest_tasks
from sparkmeta.service.errors import NO_PLAN, NO_TASK, TIMEOUT, ApiError, api_error, busy
from sparkmeta.service.plans import PageMaker, Pages, most_files, refuse_dropped_columns, scan_of
from sparkmeta.service.runs import Run, Runs, cancelled
from sparkmeta.service.sessions import PlanSession, PlanSessions
from sparkmeta.service.spool import POLLED, RECORD, Spool
from sparkmeta.service.tables import CREDENTIALS, version_key
from sparkmeta.service.tokens import Signer, Ticket

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

    from sparkmeta.service.access import Principal
    from sparkmeta.service.options import ServeOptions
    from sparkmeta.service.requests import PlanRequest
    from sparkmeta.table import Table

_log = logging.getLogger("sparkmeta.serve")

# Sweeps come late, and clocks of replicas differ.
_SLACK_SECONDS = 120.0
# How long stopping waits for the threads of cancelled plans, which may still write pages.
_STOP_SECONDS = 5.0
_STOP_STEP = 0.05


class Planning:
    """Runs plans in a bounded number of threads, and hands out their results.

    Plans of many files have threads of their own, half as many, so that they don't hold up those of few files.
    """

    def __init__(self, spark: SparkSession, options: ServeOptions) -> None:
        self.options, self._sessions = options, PlanSessions(spark)
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
        """Start a plan, or join one that runs or is kept. Return it and the id of the plan for this request.

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

    def _start(self, pool: ThreadPoolExecutor, run: Run, work: Callable[[PlanSession], Pages | None]) -> None:
        try:
            pool.submit(self._work, run, work)
        except RuntimeError:
            self._fail(run, _stopping())

    def _work(self, run: Run, work: Callable[[PlanSession], Pages | None]) -> None:
        if not self.runs.begin_work(run):
            return
        try:
            with self._sessions.running(run.result) as session, translated_errors():
                pages = work(session)
            if pages is not None:
                self.runs.finish(run, pages)
                self._record(run)
        except BaseException as error:  # noqa: BLE001  requests for the plan get it
            self._fail(run, error)
        finally:
            self.runs.end_work(run)
            self._delete_forgotten()

    def _look(
        self, run: Run, table: Table, request: PlanRequest, null_partitions: bool, session: PlanSession
    ) -> Pages | None:
        """Make a plan of few files; hand others over to the threads of large plans."""
        files = most_files(scan_of(session.table(table), request))
        if files == 0:
            return self._maker.make(run.result, no_rest_tasks(session.spark), 0, None)

        def make(session: PlanSession) -> Pages:
            scan = scan_of(session.table(table), request)
            tasks = scan.to_rest_tasks(null_partitions=null_partitions, stats_fields=request.stats_fields)
            return self._maker.make(run.result, tasks, files, request.min_rows)

        if files is not None and files <= self.options.driver_files:
            return make(session)
        self._start(self._long, run, make)
        return None

    def _fail(self, run: Run, error: BaseException) -> None:
        """End a plan with an error, if it has not ended. Its traceback is not kept, since it holds the plan's data."""
        known = api_error(error)
        if self.runs.fail(run, known) and known is not error and known.status >= 500:
            _log.error("plan %s failed", run.result, exc_info=error)
        # Of a plan that was cancelled before, the thread may have written more pages.
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
            ApiError: it is not a token of such a plan or page, of this table and user, or it has expired.
        """
        ticket = self._signer.ticket(token)
        if ticket is None or bool(ticket.page) != page or (ticket.table, ticket.principal) != (table, principal.name):
            what = ("plan task", NO_TASK) if page else ("plan id", NO_PLAN)
            raise ApiError(404, what[1], f"{'.'.join(table)}: there is no such {what[0]}, or it has expired")
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
            plan_id: the plan's id, for the client that asked for the plan; None for one that asks for its result.
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
        """Record that a request no longer needs its plan. A plan that no request waits for is cancelled."""
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
