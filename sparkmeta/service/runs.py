"""The plans that a service knows: which run, and which have finished and answer the same request again."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sparkmeta.service.errors import BAD_REQUEST, CANCELLED, ApiError, busy

if TYPE_CHECKING:
    from sparkmeta.service.options import ServeOptions
    from sparkmeta.service.plans import Pages

# What a finished plan takes in memory, besides the text of its first page.
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

    A finished plan answers requests for `keep_seconds`. Tokens that it hands out last as long, so it is forgotten after
    twice that time; earlier if it no longer answers new requests and all requests have released it.
    """

    def __init__(self, options: ServeOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._all: dict[str, Run] = {}
        self._unfinished: dict[str, Run] = {}
        # Those that further requests join by their key, the least recently used first.
        self._shared: OrderedDict[Any, Run] = OrderedDict()
        self._shared_bytes = self._spooled_bytes = 0
        self._forgotten: list[str] = []

    @property
    def unfinished(self) -> list[Run]:
        """The plans that run or wait, and those that have ended but that threads still work on."""
        with self._lock:
            return list(self._unfinished.values())

    @property
    def known(self) -> int:
        """How many plans there are, finished ones included."""
        return len(self._all)

    def get(self, result: str) -> Run | None:
        """Return a plan by its name; None if this service does not know it, or it no longer answers new requests."""
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
        """Note that a plan has succeeded. Others are forgotten if there is no room for all.

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
        """Note that a request no longer needs a plan. Return the plan if this cancels it."""
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
        """Forget the plans that no longer answer requests and have no valid tokens."""
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
        """Drop the first page of a plan that no longer answers requests. Tokens of its other pages may outlive it."""
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
