"""A proxy before a REST catalog, which records requests, and can refuse, lose, repeat or change them."""

from __future__ import annotations

import http.client
import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from tests.served import served

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SILENT = -1
_PASSED_ON = {"authorization", "content-type"}


class Request(NamedTuple):
    """A request that the proxy got; the names of headers are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any

    @property
    def is_report(self) -> bool:
        """Whether it sends a metrics report."""
        return self.method == "POST" and self.path.endswith("/metrics")


class Way(Enum):
    """How often the catalog gets a request."""

    REFUSED = 0
    ANSWER_LOST = 1
    REPEATED = 2


class Fault(NamedTuple):
    """What happens to a request.

    Attributes:
        status: the answer; 0 closes the connection, SILENT leaves it open, None passes on the catalog's last answer.
        is_last: refuse every later request, until `Proxy.is_down` is reset.
    """

    way: Way
    status: int | None = 0
    is_last: bool = False


@dataclass
class Proxy:
    """A proxy.

    Attributes:
        uri: its address.
        requests: all requests since `requests.clear()`.
        faults: what happens to the next POST requests, in order; nothing where it is None.
        edit: changes the catalog's answers.
        message: the message of its own errors.
        token: the only bearer token that requests may have; empty accepts all.
        folder: the prefix before the catalog's own paths; other paths are unknown.
        is_down: refuse every request.
        reports: the metrics reports, which are not among `requests`, with the catalog's status.
        report_fault: what happens to metrics reports.
    """

    uri: str = ""
    requests: list[Request] = field(default_factory=list)
    faults: list[Fault | None] = field(default_factory=list)
    edit: Callable[[Request, Any], Any] = lambda _, answer: answer
    message: str = "injected"
    token: str = ""
    folder: str = ""
    is_down: bool = False
    reports: list[tuple[Any, int]] = field(default_factory=list)
    report_fault: Fault | None = None

    def sent(self, method: str, path: str = "") -> list[Request]:
        """The requests of a method whose path contains a text."""
        return [request for request in self.requests if request.method == method and path in request.path]

    def next_fault(self, request: Request) -> Fault | None:
        """What happens to a request."""
        if request.is_report:
            return self.report_fault
        return self.faults.pop(0) if self.faults and request.method == "POST" else None


@contextmanager
def rest_proxy(catalog_uri: str) -> Iterator[Proxy]:
    proxy, ended = Proxy(), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def _handle(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            data = self.rfile.read(size)
            headers = {name.lower(): value for name, value in self.headers.items()}
            is_json = "json" in headers.get("content-type", "")
            body = json.loads(data) if data and is_json else data.decode()
            request = Request(self.command, self.path.removeprefix(proxy.folder), headers, body)
            proxy.requests += [request] * (not request.is_report)
            if refusal := _refusal(proxy, self.path, headers):
                self._answer(refusal, _error(proxy, refusal))
                return
            fault = proxy.next_fault(request)
            proxy.is_down |= fault is not None and fault.is_last
            status, answer = 200, b""
            for _ in range(1 if fault is None else fault.way.value):
                status, answer = _ask(catalog_uri, request, data)
            proxy.reports += [(body, status)] * request.is_report
            if fault is not None and fault.status in (0, SILENT):
                ended.wait(timeout=0 if fault.status == 0 else None)
                self.close_connection = True
                self.connection.close()
            elif fault is not None and fault.status is not None:
                self._answer(fault.status, _error(proxy, fault.status))
            elif status == 200 and answer:
                self._answer(status, json.dumps(proxy.edit(request, json.loads(answer))).encode())
            else:
                self._answer(status, answer)

        def _answer(self, status: int, data: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_POST = do_DELETE = do_HEAD = _handle  # noqa: N815  the names that the server looks for

        def log_message(self, *_: object) -> None:
            pass

    with served(Handler) as proxy.uri:
        try:
            yield proxy
        finally:
            ended.set()


def _refusal(proxy: Proxy, path: str, headers: dict[str, str]) -> int:
    """The status by which the proxy refuses a request; 0 if it passes it on."""
    if proxy.is_down:
        return 403
    if proxy.token and "oauth" not in path and headers.get("authorization") != f"Bearer {proxy.token}":
        return 401
    return 0 if path.startswith(proxy.folder) else 404


def _ask(uri: str, request: Request, data: bytes) -> tuple[int, bytes]:
    address = urlsplit(uri)
    connection = http.client.HTTPConnection(str(address.hostname), address.port)
    headers = {name: value for name, value in request.headers.items() if name in _PASSED_ON}
    connection.request(request.method, request.path, data, headers)
    response = connection.getresponse()
    try:
        return response.status, response.read()
    finally:
        connection.close()


def _error(proxy: Proxy, status: int) -> bytes:
    return json.dumps({"error": {"message": proxy.message, "type": "Injected", "code": status}}).encode()
