"""The endpoints of the service, on ASGI, and its metrics."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import math
import re
import time
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from sparkmeta.errors import shown
from sparkmeta.service.access import ANYBODY, Principal, is_loopback
from sparkmeta.service.pages import compressed
from sparkmeta.service.planning import Planning
from sparkmeta.service.plans import MODE, SERVER, ServedTable, Tables
from sparkmeta.service.requests import (
    BAD_REQUEST,
    CANCELLED,
    FORBIDDEN,
    NO_TABLE,
    UNSUPPORTED,
    ApiError,
    api_error,
    busy,
    parse_json,
    parse_plan_request,
)

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from sparkmeta.service.access import ServeOptions
    from sparkmeta.service.plans import Pages
    from sparkmeta.service.requests import PlanRequest


# -- Metrics in Prometheus' text format -------------------------------------------------------------------------------


_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class Metrics:
    """The counters of one service."""

    def __init__(self, planning: Planning) -> None:
        self._registry = registry = CollectorRegistry()
        names = ("sparkmeta_requests", "Requests by endpoint and HTTP status.")
        self._requests = Counter(*names, ("endpoint", "status"), registry=registry)
        names = ("sparkmeta_request_seconds", "How long requests took, by endpoint.")
        self._seconds = Histogram(*names, ("endpoint",), buckets=_SECONDS, registry=registry)
        self._tasks = Counter("sparkmeta_scan_tasks", "Scan tasks of plans that clients got.", registry=registry)
        unfinished = Gauge("sparkmeta_plans_unfinished", "Plans that run or wait for a thread.", registry=registry)
        unfinished.set_function(lambda: len(planning.runs.unfinished))
        known = Gauge("sparkmeta_plans_known", "Plans in memory, finished ones included.", registry=registry)
        known.set_function(lambda: planning.runs.known)

    def request(self, endpoint: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(endpoint, str(status)).inc()
        self._seconds.labels(endpoint).observe(seconds)

    def planned(self, tasks: int) -> None:
        """Count the scan tasks of a plan that a client got."""
        self._tasks.inc(tasks)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        text: bytes = generate_latest(self._registry)
        return text


# -- Endpoints --------------------------------------------------------------------------------------------------------


T = TypeVar("T")
Names = tuple[str, ...]

_JSON = "application/json"
_PREFIX = "/v1/{prefix}/namespaces"
_TABLE = f"{_PREFIX}/{{namespace}}/tables/{{table}}"
ENDPOINTS = (
    f"GET {_PREFIX}",
    f"GET {_PREFIX}/{{namespace}}",
    f"HEAD {_PREFIX}/{{namespace}}",
    f"GET {_PREFIX}/{{namespace}}/tables",
    f"GET {_TABLE}",
    f"HEAD {_TABLE}",
    f"POST {_TABLE}/plan",
    f"GET {_TABLE}/plan/{{plan-id}}",
    f"DELETE {_TABLE}/plan/{{plan-id}}",
    f"POST {_TABLE}/tasks",
)
"""The endpoints, spelled as in the protocol's specification: clients compare these strings."""

_SEPARATOR = "\x1f"
# This client can't poll, and reads no null in partitions.
_IMPATIENT = "pyiceberg"
_LOOK_SECONDS = 0.5
# A request's body has to arrive within this number of seconds.
_BODY_SECONDS = 60.0
# Maximum number of calls of the catalog that run or wait.
_MOST_CATALOG_CALLS = 256
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:/?#@,\[\]]+))(?::\d{1,5})?")
# Shorter answers are not compressed.
_LONG = 16_000
_GZIP = {"content-encoding": "gzip"}
_HANDLERS = 32

_log = logging.getLogger("sparkmeta.serve")


@dataclass(frozen=True)
class Call:
    """A request that has been routed.

    Attributes:
        request: the request.
        principal: the user.
        namespace: the names of the namespace.
        table: the names of the table, empty for none.
        plan_id: the id of the plan, empty for none.
    """

    request: Request
    principal: Principal
    namespace: Names = ()
    table: Names = ()
    plan_id: str = ""

    @property
    def client(self) -> str:
        headers = self.request.headers
        return headers.get("x-client-version") or headers.get("user-agent") or ""

    @property
    def is_impatient(self) -> bool:
        return _IMPATIENT in self.client.lower()

    @property
    def asks_for_credentials(self) -> bool:
        return "vended-credentials" in self.request.headers.get("x-iceberg-access-delegation", "")

    @property
    def takes_gzip(self) -> bool:
        return "gzip" in self.request.headers.get("accept-encoding", "")


class App:
    """The ASGI application of a service."""

    def __init__(self, tables: Tables, planning: Planning, options: ServeOptions) -> None:
        self.tables, self.planning, self.options = tables, planning, options
        self.metrics = Metrics(planning)
        self.is_ready = False
        self._threads = ThreadPoolExecutor(_HANDLERS, "requests")
        # Pages and results must not wait for a slow catalog.
        self._catalog_threads = ThreadPoolExecutor(_HANDLERS, "catalog")
        self._catalog_calls = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "http":
            response = await self._answer(Request(scope, receive))
            await response(scope, receive, send)

    def close(self) -> None:
        """Stop the threads that answer requests."""
        for threads in (self._threads, self._catalog_threads):
            threads.shutdown(wait=False, cancel_futures=True)

    async def _answer(self, request: Request) -> Response:
        started, endpoint, principal = time.perf_counter(), "other", None
        request_id = uuid.uuid4().hex
        problem: BaseException | None = None
        try:
            endpoint, handler, call = self._routed(request)
            principal = call.principal.name
            response = await handler(call)
        except ClientDisconnect:
            response = Response(status_code=499)
        except Exception as error:  # noqa: BLE001  clients get every error in the protocol's form
            problem = error
            response = _refusal(api_error(error))
        seconds = time.perf_counter() - started
        response.headers["x-request-id"] = request_id
        self.metrics.request(endpoint, response.status_code, seconds)
        record = {
            "request": request_id,
            "endpoint": endpoint,
            "path": request.scope["path"],
            "status": response.status_code,
            "ms": round(seconds * 1000, 1),
            "principal": principal,
            "client": request.headers.get("x-client-version") or request.headers.get("user-agent"),
        }
        unexpected = problem if response.status_code >= 500 and not isinstance(problem, ApiError) else None
        _log.log(logging.ERROR if unexpected else logging.INFO, "%s", json.dumps(record), exc_info=unexpected)
        return response

    def _routed(self, request: Request) -> tuple[str, Callable[[Call], Awaitable[Response]], Call]:
        """Return the name of the endpoint, its handler, and the call."""
        # Encoded slashes are part of names.
        raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
        path = raw.partition(b"?")[0].decode("latin-1").strip("/").split("/")
        if path in (["healthz"], ["metrics"], ["v1", "config"]) and request.method not in ("GET", "HEAD"):
            raise ApiError(405, UNSUPPORTED, f"{request.method} {request.scope['path']}: expected GET")
        if path == ["healthz"]:
            return "healthz", self._healthz, Call(request, ANYBODY)
        principals = self.options.principals
        if principals is None:
            self._refuse_foreign_host(request)
        principal = ANYBODY if principals is None else principals.authenticated(request.headers)
        if path == ["metrics"]:
            return "metrics", self._metrics, Call(request, principal)
        if path == ["v1", "config"]:
            return "config", self._config, Call(request, principal)
        if path[:2] != ["v1", "namespaces"]:
            raise ApiError(404, BAD_REQUEST, f"no such endpoint: {request.method} {request.scope['path']}")
        return self._below_namespaces(request, principal, [unquote(part, errors="replace") for part in path[2:]])

    def _refuse_foreign_host(self, request: Request) -> None:
        """Raise ApiError if a request to a service without users names another host.

        A web page may have forged such a request.
        """
        if (header := request.headers.get("host")) is None:
            return
        parts = _HOST.fullmatch(header)
        host = "" if parts is None else parts[1] or parts[2]
        if host != self.options.host and not is_loopback(host):
            raise ApiError(403, FORBIDDEN, f"the host {shown(header)} is not an address of this service")

    def _below_namespaces(
        self, request: Request, principal: Principal, path: list[str]
    ) -> tuple[str, Callable[[Call], Awaitable[Response]], Call]:
        namespace = tuple(path[0].split(_SEPARATOR)) if path else ()
        table = (*namespace, path[2]) if len(path) > 2 else ()
        call = Call(request, principal, namespace, table, path[4] if len(path) > 4 else "")
        shape = "/".join("*" if index in (0, 2, 4) else part for index, part in enumerate(path))
        handler = {
            "GET ": ("namespaces", self._namespaces),
            "GET *": ("namespace", self._namespace),
            "HEAD *": ("namespace", self._namespace),
            "GET */tables": ("tables", self._tables),
            "GET */tables/*": ("table", self._table),
            "HEAD */tables/*": ("table", self._table_exists),
            "POST */tables/*/plan": ("plan", self._plan),
            "GET */tables/*/plan/*": ("plan-result", self._plan_result),
            "DELETE */tables/*/plan/*": ("plan-cancel", self._plan_cancel),
            "POST */tables/*/tasks": ("tasks", self._tasks),
        }.get(f"{request.method} {shape}")
        if handler is None:
            message = f"{request.method} {request.scope['path']}: no such endpoint; this catalog is read-only"
            raise ApiError(406, UNSUPPORTED, message)
        return *handler, call

    async def _in_thread(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, partial(function, *arguments, **named))

    async def _from_catalog(self, call: Call, function: Callable[..., T], *arguments: Any) -> T:
        """Call the catalog in a thread. A call that has not begun is dropped when its client leaves.

        Raises:
            ApiError: too many calls wait for the catalog.
            ClientDisconnect: the client has gone.
        """
        if self._catalog_calls >= _MOST_CATALOG_CALLS:
            raise busy(f"{self._catalog_calls} requests wait for the catalog, which is the limit")
        self._catalog_calls += 1
        try:
            loop = asyncio.get_running_loop()
            return await self._waited(call, loop.run_in_executor(self._catalog_threads, function, *arguments))
        except TimeoutError as error:
            raise busy("the catalog or its storage has not answered in time") from error
        finally:
            self._catalog_calls -= 1

    # -- the service itself -----------------------------------------------------------------------------------------

    async def _healthz(self, _call: Call) -> Response:
        return _json({"status": "ok"} if self.is_ready else {"status": "starting"}, 200 if self.is_ready else 503)

    async def _metrics(self, _call: Call) -> Response:
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4")

    async def _config(self, _call: Call) -> Response:
        # Iceberg's Java library reads the mode from each table, pyiceberg only from this response.
        return _json({"defaults": {}, "overrides": {MODE: SERVER}, "endpoints": list(ENDPOINTS)})

    # -- the catalog ------------------------------------------------------------------------------------------------

    async def _namespaces(self, call: Call) -> Response:
        parent = call.request.query_params.get("parent", "")
        names = tuple(parent.split(_SEPARATOR)) if parent else ()
        return _json({"namespaces": await self._from_catalog(call, self.tables.namespaces, names)})

    async def _namespace(self, call: Call) -> Response:
        await self._from_catalog(call, self.tables.check_namespace, call.namespace)
        if call.request.method == "HEAD":
            return Response(status_code=204)
        return _json({"namespace": call.namespace, "properties": {}})

    async def _tables(self, call: Call) -> Response:
        await self._from_catalog(call, self.tables.check_namespace, call.namespace)
        listed = await self._from_catalog(call, self.tables.tables, call.namespace, call.principal)
        return _json({"identifiers": [{"namespace": names[:-1], "name": names[-1]} for names in listed]})

    async def _table(self, call: Call) -> Response:
        served = await self._from_catalog(call, self.tables.load, call.table, call.principal)
        only_refs = call.request.query_params.get("snapshots") == "refs"
        with_credentials = self._vends(call, served)
        etag = served.etag[:-1] + ('-refs"' if only_refs else '"')
        # Credentials expire, though the table does not change.
        headers = {"cache-control": "no-store"} if with_credentials else {"etag": etag}
        if not with_credentials and _matches(call.request.headers.get("if-none-match", ""), etag):
            return Response(status_code=304, headers=headers)
        return _sent(await self._in_thread(served.document, only_refs, with_credentials=with_credentials), headers)

    def _vends(self, call: Call, served: ServedTable) -> bool:
        return self.options.vend_credentials and call.asks_for_credentials and bool(served.credentials)

    async def _table_exists(self, call: Call) -> Response:
        if not await self._from_catalog(call, self.tables.exists, call.table, call.principal):
            raise ApiError(404, NO_TABLE, f"Table does not exist: {'.'.join(call.table)}")
        return Response(status_code=204)

    # -- plans ------------------------------------------------------------------------------------------------------

    async def _plan(self, call: Call) -> Response:
        body = await self._body(call.request)
        call.principal.check(call.table)
        request, served = await self._from_catalog(call, self._asked, call, body)
        submit = partial(self.planning.submit, null_partitions=not call.is_impatient)
        run, plan_id = await self._in_thread(submit, served.table, request, call.principal)
        patience = self.options.plan_seconds if call.is_impatient else self.options.wait_seconds
        try:
            # Others may wait for the same plan.
            pages = await self._waited(call, asyncio.shield(asyncio.wrap_future(run.future)), patience)
            response = await self._completed(call, pages, plan_id, served)
        except TimeoutError:
            await self._in_thread(self.planning.poll, run)
            return _json({"status": "submitted", "plan-id": plan_id})
        except BaseException:
            self._release(call, plan_id)
            raise
        finally:
            self.planning.runs.answered(run)
        if not pages.names:
            self._release(call, plan_id)
        return response

    def _asked(self, call: Call, body: bytes) -> tuple[PlanRequest, ServedTable]:
        return parse_plan_request(body), self.tables.load(call.table, call.principal)

    def _release(self, call: Call, plan_id: str) -> None:
        ticket = self.planning.ticket(plan_id, call.table, call.principal, page=False)
        self._threads.submit(self.planning.release, ticket)

    async def _waited(self, call: Call, future: asyncio.Future[T], patience: float = math.inf) -> T:
        """Wait for a result as long as the client does, and cancel it if the client leaves.

        Raises:
            TimeoutError: the client has to ask again.
            ClientDisconnect: the client has gone.
        """
        deadline = time.monotonic() + patience
        # Without this, asyncio would log an error that no request waits for as never retrieved.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        while True:
            left = deadline - time.monotonic()
            try:
                return await asyncio.wait_for(asyncio.shield(future), max(0.0, min(left, _LOOK_SECONDS)))
            except TimeoutError:
                # It may have ended meanwhile, or with this very error.
                if future.done():
                    return future.result()
                if left <= _LOOK_SECONDS:
                    raise
                if await call.request.is_disconnected():
                    future.cancel()
                    raise ClientDisconnect from None

    async def _completed(self, call: Call, pages: Pages, plan_id: str | None, served: ServedTable | None) -> Response:
        self.metrics.planned(pages.tasks)
        credentials = served.credentials if served is not None and self._vends(call, served) else ()
        answer = partial(self.planning.completed, pages, plan_id, call.table, call.principal, credentials)
        # Signing many tokens takes long.
        data = await self._in_thread(answer) if pages.names else answer()
        headers = {"cache-control": "no-store"}
        if call.takes_gzip and len(data) > _LONG:
            data, headers = await self._in_thread(compressed, data), headers | _GZIP
        return _sent(data, headers)

    async def _plan_result(self, call: Call) -> Response:
        call.principal.check(call.table)
        ticket = self.planning.ticket(call.plan_id, call.table, call.principal, page=False)
        result = await self._in_thread(self.planning.result, ticket)
        if result is None:
            return _json({"status": "submitted"})
        if isinstance(result, ApiError):
            failed = {"status": "failed", **result.document()}
            return _json({"status": "cancelled"} if result.kind == CANCELLED else failed)
        vends = self.options.vend_credentials and call.asks_for_credentials
        served = await self._from_catalog(call, self.tables.load, call.table, call.principal) if vends else None
        return await self._completed(call, result, None, served)

    async def _plan_cancel(self, call: Call) -> Response:
        call.principal.check(call.table)
        ticket = self.planning.ticket(call.plan_id, call.table, call.principal, page=False)
        await self._in_thread(self.planning.release, ticket)
        return Response(status_code=204)

    async def _tasks(self, call: Call) -> Response:
        token = parse_json(await self._body(call.request)).get("plan-task")
        if not isinstance(token, str):
            raise ApiError(400, BAD_REQUEST, "plan-task is missing or is not a string")
        call.principal.check(call.table)
        ticket = self.planning.ticket(token, call.table, call.principal, page=True)
        data = await self._in_thread(self.planning.page, ticket)
        if call.takes_gzip:
            return _sent(data, _GZIP)
        return _sent(await self._in_thread(gzip.decompress, data))

    # -- bodies -----------------------------------------------------------------------------------------------------

    async def _body(self, request: Request) -> bytes:
        limit, parts, size = self.options.max_request_bytes, [], 0
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                async for part in request.stream():
                    size += len(part)
                    if size > limit:
                        raise ApiError(413, BAD_REQUEST, f"the request has more than {limit:,} bytes, the limit")
                    parts.append(part)
        except TimeoutError:
            raise ApiError(408, BAD_REQUEST, f"the request's body did not arrive in {_BODY_SECONDS:g} s") from None
        return b"".join(parts)


def _matches(header: str, etag: str) -> bool:
    """Return whether If-None-Match names an ETag. Proxies that compress answers make ETags weak."""
    names = [name.strip().removeprefix("W/") for name in header.split(",")]
    return etag in names or names == ["*"]


def _sent(data: bytes, headers: dict[str, str] | None = None) -> Response:
    return Response(data, media_type=_JSON, headers=headers)


def _json(document: Any, status: int = 200) -> Response:
    return Response(json.dumps(document), status, media_type=_JSON)


def _refusal(error: ApiError) -> Response:
    response = _json(error.document(), error.status)
    if error.retry_after is not None:
        response.headers["retry-after"] = str(error.retry_after)
    if error.status == 401:
        response.headers["www-authenticate"] = "Bearer"
    return response
