"""A REST catalog of few operations: it does not list what it offers, has no HEAD requests, and tokens that expire."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from tests.served import served

if TYPE_CHECKING:
    from collections.abc import Iterator

Answer = tuple[int, Any]


@dataclass
class OldServer:
    """The server and its tables, which are all in the namespace `ns`.

    Attributes:
        uri: its address.
        credential: the one that it gives tokens for.
        tables: table metadata by name.
        page_size: how many names an answer lists.
        expired: the status of answers to expired tokens.
        tokens: the tokens that it has issued; the last one is valid.
    """

    uri: str = ""
    credential: str = "someone:a-secret-of-someone"
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    page_size: int = 2
    expired: int = 401
    tokens: list[str] = field(default_factory=list)

    def answer(self, method: str, target: str, body: str, token: str) -> Answer:
        """Return the status and the JSON of an answer; None for no body."""
        url = urlsplit(target)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        if url.path == "/v1/oauth/tokens":
            return self._token(parse_qs(body))
        if token != f"Bearer {self.tokens[-1] if self.tokens else ''}":
            return self.expired, {"error": {"message": "expired", "type": "Expired", "code": self.expired}}
        match (method, *url.path.removeprefix("/v1/").split("/")):
            case "GET", "config":
                return 200, {"defaults": {}, "overrides": {}}
            case "GET", "namespaces":
                return self._page("namespaces", [["ns"], ["ns2"], ["ns3"]], query)
            case "GET", "namespaces", "ns":
                return 200, {"namespace": ["ns"], "properties": {}}
            case "GET", "namespaces", "ns", "tables":
                names = [{"namespace": ["ns"], "name": name} for name in self.tables]
                return self._page("identifiers", names, query)
            case "GET", "namespaces", "ns", "tables", name if name in self.tables:
                return 200, {"metadata-location": f"/{name}.metadata.json", "metadata": self.tables[name]}
            case "POST", "tables", "rename":
                return 406, None
        return 404, None

    def _token(self, form: dict[str, list[str]]) -> Answer:
        if f"{form['client_id'][0]}:{form['client_secret'][0]}" != self.credential:
            return 401, {"error": "invalid_client", "error_description": f"not {form['client_secret'][0]}"}
        self.tokens.append(f"token-{len(self.tokens)}")
        return 200, {"access_token": self.tokens[-1], "token_type": "bearer", "expires_in": 1}

    def _page(self, kind: str, names: list[Any], query: dict[str, str]) -> Answer:
        start = int(query.get("pageToken", 0))
        end = start + self.page_size
        following = {"next-page-token": str(end)} if end < len(names) else {}
        return 200, {kind: names[start:end], **following}


@contextmanager
def old_server() -> Iterator[OldServer]:
    """Run a server in a thread of this process."""
    old = OldServer()

    class Handler(BaseHTTPRequestHandler):
        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            status, answer = old.answer(self.command, self.path, body, self.headers.get("Authorization", ""))
            data = b"" if answer is None else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_DELETE = _handle  # noqa: N815  the names that the server looks for

        def log_message(self, *_: object) -> None:
            pass

    with served(Handler) as old.uri:
        yield old
