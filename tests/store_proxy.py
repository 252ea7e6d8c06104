"""A proxy before a store or a catalog that drops connections, loses, cuts and delays answers, and answers by 500."""

from __future__ import annotations

import http.client
import random
import threading
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tests.served import served

if TYPE_CHECKING:
    from collections.abc import Iterator

# Headers of one connection, which the proxy does not pass on.
_OF_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "expect"}
_SLOW = 0.3


class Trouble(Enum):
    """What goes wrong with a request."""

    DROPPED = "the connection is closed, and the request not passed on"
    REFUSED = "answered by 500, and not passed on"
    ANSWER_LOST = "carried out, and the connection closed"
    ANSWER_REPLACED = "carried out, and answered by 500"
    CUT = "carried out, and the connection closed in the middle of the answer"
    SLOW = "carried out late"


@dataclass
class StoreProxy:
    """A proxy.

    Attributes:
        chance: decides what goes wrong.
        share: the share of requests that go wrong.
        spared: the path of requests that never go wrong.
        uri: its address.
        seen: how often each thing went wrong.
    """

    chance: random.Random
    share: float
    spared: str
    uri: str = ""
    seen: Counter[Trouble] = field(default_factory=Counter)
    _lock: Any = field(default_factory=threading.Lock)

    def next_trouble(self, path: str) -> Trouble | None:
        """Return what goes wrong with the next request."""
        with self._lock:
            if path == self.spared or self.chance.random() >= self.share:
                return None
            trouble = self.chance.choice(list(Trouble))
            self.seen[trouble] += 1
            return trouble


class _Handler(BaseHTTPRequestHandler):
    """Passes on the requests of a connection. Subclasses set the attributes."""

    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16
    proxy: StoreProxy
    server_uri: str

    def _handle(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        trouble = self.proxy.next_trouble(urlsplit(self.path).path)
        if trouble is Trouble.SLOW:
            time.sleep(_SLOW)
        status, headers, content = 500, [("Content-Type", "text/plain")], b"injected"
        if trouble not in {Trouble.DROPPED, Trouble.REFUSED}:
            answer = self._passed_on(data)
            if trouble is not Trouble.ANSWER_REPLACED:
                status, headers, content = answer
        if trouble in {Trouble.DROPPED, Trouble.ANSWER_LOST}:
            self._close()
            return
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        if not any(name.lower() == "content-length" for name, _ in headers):
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[: len(content) // 2] if trouble is Trouble.CUT else content)
        if trouble is Trouble.CUT:
            self.wfile.flush()
            self._close()

    def handle_expect_100(self) -> bool:
        """Answer, so that the client sends the content of its request."""
        super().handle_expect_100()
        self.wfile.flush()
        return True

    def _passed_on(self, data: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        address = urlsplit(self.server_uri)
        connection = http.client.HTTPConnection(str(address.hostname), address.port)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _OF_CONNECTION}
        try:
            connection.request(self.command, self.path, data, headers)
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        passed = [(name, value) for name, value in response.getheaders() if name.lower() not in _OF_CONNECTION]
        return response.status, passed, content

    def _close(self) -> None:
        self.close_connection = True
        self.connection.close()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle  # noqa: N815  the names that the server looks for

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def store_proxy(server_uri: str, seed: int, share: float = 0.1, spared: str = "") -> Iterator[StoreProxy]:
    """Run a proxy in threads of this process."""
    proxy = StoreProxy(random.Random(seed), share, spared)
    handler = type("Handler", (_Handler,), {"proxy": proxy, "server_uri": server_uri})
    with served(handler) as proxy.uri:
        yield proxy
