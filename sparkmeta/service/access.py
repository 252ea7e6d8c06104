"""The options of a planning service: who may read what, and the tokens of plans and pages."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from sparkmeta.errors import SettingError
from sparkmeta.service.requests import FORBIDDEN, UNAUTHORIZED, ApiError

if TYPE_CHECKING:
    from collections.abc import Sequence


# -- Tokens of plans and pages ----------------------------------------------------------------------------------------


_SIGNATURE_BYTES = 16


@dataclass(frozen=True)
class Ticket:
    """The content of a token.

    Attributes:
        result: the plan's name in the spool.
        page: the page's name; empty in the id of a plan.
        table: the names of the table.
        principal: the name of the user who may use it.
        expires: the time at which it becomes invalid, in seconds since 1970.
        request: the id of the request that the plan was made for; empty in tokens of pages.
    """

    result: str
    page: str
    table: tuple[str, ...]
    principal: str
    expires: int
    request: str = ""


class Signer:
    """Writes and reads tokens with a secret."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def token(self, ticket: Ticket) -> str:
        """Return the token of a ticket."""
        fields = [
            ticket.result, ticket.page, ticket.table, ticket.principal, ticket.expires, ticket.request
        ]  # fmt: skip
        payload = json.dumps(fields, separators=(",", ":")).encode()
        return f"{_text(payload)}.{_text(self._signature(payload))}"

    def ticket(self, token: str) -> Ticket | None:
        """Return the ticket of a token; None if this secret has not signed it, or it has expired."""
        try:
            payload, signature = (base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in token.split("."))
            # The last character of Base64 has bits that decoding ignores.
            if f"{_text(payload)}.{_text(signature)}" != token:
                return None
            if not hmac.compare_digest(signature, self._signature(payload)):
                return None
            result, page, table, principal, expires, request = json.loads(payload)
        except ValueError:
            return None
        ticket = Ticket(result, page, tuple(table), principal, expires, request)
        return ticket if time.time() < expires else None

    def _signature(self, payload: bytes) -> bytes:
        return hmac.new(self._secret, payload, hashlib.sha256).digest()[:_SIGNATURE_BYTES]


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


# -- Users and their tables -------------------------------------------------------------------------------------------


_BEARER = "bearer "
_SHORTEST_TOKEN = 16


@dataclass(frozen=True)
class Principal:
    """A user of the service.

    Attributes:
        name: the name, for logs and tokens.
        tables: patterns of the full names of tables that the user may read, such as `sales.*`.
    """

    name: str
    tables: tuple[str, ...] = ("*",)

    def may_read(self, table: tuple[str, ...]) -> bool:
        """Return whether the user may read a table, given by its names.

        A pattern must also match when both are in lower case, since some catalogs ignore case: `sales.[!s]*` does not
        allow `sales.SECRET`.
        """
        name = ".".join(table)
        return any(fnmatchcase(name, pattern) and fnmatchcase(name.lower(), pattern.lower()) for pattern in self.tables)

    def check(self, table: tuple[str, ...]) -> None:
        """Raise ApiError if the user may not read a table."""
        if not self.may_read(table):
            raise ApiError(403, FORBIDDEN, f"{self.name} may not read {'.'.join(table)}")


ANYBODY = Principal("anybody")


@dataclass(frozen=True)
class Principals:
    """The users of a service by their bearer tokens.

    Attributes:
        by_token: the users.
        header: the header in which a proxy with a token names the user that it has authenticated, by OIDC or otherwise.
            The token's patterns apply to all of the proxy's users.
    """

    by_token: Mapping[str, Principal] = field(repr=False)
    header: str | None = None

    def __post_init__(self) -> None:
        if not self.by_token:
            raise SettingError("there are no principals: no client could use the service")
        for token, principal in self.by_token.items():
            if not token.isascii():
                raise SettingError(f"the token of {principal.name} has characters that are not ASCII")
            if len(token) < _SHORTEST_TOKEN:
                problem = f"expected at least {_SHORTEST_TOKEN} characters"
                raise SettingError(f"the token of {principal.name} has {len(token)} characters: {problem}")

    def authenticated(self, headers: Mapping[str, str]) -> Principal:
        """Return the user of a request. Raises ApiError if its token is missing or unknown."""
        value = headers.get("authorization", "")
        sent = value[len(_BEARER) :].strip().encode() if value.lower().startswith(_BEARER) else b""
        # All tokens are compared, so that the response time reveals nothing.
        matching = [user for token, user in self.by_token.items() if hmac.compare_digest(token.encode(), sent)]
        if not matching:
            raise ApiError(401, UNAUTHORIZED, "the request has no valid bearer token")
        (principal,) = matching
        if self.header is None:
            return principal
        if not (name := headers.get(self.header.lower(), "").strip()):
            raise ApiError(401, UNAUTHORIZED, f"the request has no header {self.header}")
        return Principal(f"{principal.name}/{name}", principal.tables)


def one_token(token: str, header: str | None = None) -> Principals:
    """Return the principals of a service whose users share a token."""
    return Principals({token.strip(): Principal("client")}, header)


def principals_from_json(text: str, header: str | None = None) -> Principals:
    """Return the principals in a JSON file: `{"<name>": {"token": "<token>", "tables": ["sales.*"]}}`.

    Raises:
        SettingError: the file is something else, or two principals have one name or token.
    """
    try:
        document = json.loads(text, object_pairs_hook=_without_duplicates)
    except json.JSONDecodeError as error:
        raise SettingError(f"the principals are not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise SettingError("the principals are not a JSON object of names")
    by_token: dict[str, Principal] = {}
    for name, entry in document.items():
        token, tables = _entry(name, entry)
        if token in by_token:
            raise SettingError(f"the principals {by_token[token].name} and {name} have the same token")
        by_token[token] = Principal(name, tuple(tables))
    return Principals(by_token, header)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if duplicates := {name for name in names if names.count(name) > 1}:
        raise SettingError(f"the principals have several entries named {', '.join(sorted(duplicates))}")
    return dict(pairs)


def _entry(name: str, entry: Any) -> tuple[str, Sequence[str]]:
    token = entry.get("token") if isinstance(entry, dict) else None
    tables = entry.get("tables", ["*"]) if isinstance(entry, dict) else None
    if not isinstance(token, str) or not isinstance(tables, list) or not all(isinstance(x, str) for x in tables):
        raise SettingError(f"the principal {name} needs a token, and tables as a list of patterns")
    if unknown := set(entry) - {"token", "tables"}:
        raise SettingError(f"the principal {name} has the unknown keys {', '.join(sorted(unknown))}")
    return token.strip(), tables


# -- Options ----------------------------------------------------------------------------------------------------------


DEFAULT_PORT = 8181
_LAST_PORT = 65_535
_MIB = 1 << 20
_SHORTEST_SECRET = 16


@dataclass(frozen=True)
class ServeOptions:
    """The options of a service.

    Attributes:
        host: the address to listen on.
        port: the port to listen on; 0 chooses a free one.
        principals: who may read what. If None, everyone may read everything, which is allowed only on a loopback
            address.
        secret: signs the tokens of plans. Replicas that share a spool share it, so that each serves the others' pages.
        spool: the folder of large plans' pages, which the driver and the executors can access; None for a temporary
            folder.
        spool_properties: properties of the FileIO that opens the spool, if it is on a store.
        page_tasks: the maximum number of scan tasks on a page.
        page_bytes: the maximum size of a page; a larger task gets a separate page.
        driver_files: plans whose manifests list at most this many files are collected on the driver.
        wait_seconds: how long a client waits for a plan before it has to ask again.
        plan_seconds: how long a plan may take.
        keep_seconds: how long pages and their tokens last after the plan was made.
        slots: how many plans run at a time.
        queued: how many plans wait for a slot; further ones are refused.
        cached_bytes: how much of the answers of finished plans is kept in memory.
        vend_credentials: whether clients that ask for credentials get the ones that the catalog vends to the service.
        max_request_bytes: the largest request body, in bytes.
        max_pages: the maximum number of pages of a plan.
        max_spool_bytes: the maximum number of bytes that this service has in the spool.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    principals: Principals | None = None
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    spool: str | None = None
    spool_properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    page_tasks: int = 5_000
    page_bytes: int = 16 * _MIB
    driver_files: int = 20_000
    wait_seconds: float = 30.0
    plan_seconds: float = 600.0
    keep_seconds: float = 3_600.0
    slots: int = 4
    queued: int = 64
    cached_bytes: int = 256 * _MIB
    vend_credentials: bool = False
    max_request_bytes: int = _MIB
    max_pages: int = 100_000
    max_spool_bytes: int = 10_240 * _MIB


def check_options(options: ServeOptions) -> None:
    """Raise SettingError if an option of a service is invalid, or the catalog could be read without authentication."""
    for name in ("page_tasks", "page_bytes", "slots", "max_request_bytes", "max_pages", "keep_seconds"):
        if getattr(options, name) <= 0:
            raise SettingError(f"{name} is {getattr(options, name)}: expected a number above 0")
    if not 0 <= options.port <= _LAST_PORT:
        raise SettingError(f"port is {options.port}: expected a number from 0 to {_LAST_PORT}")
    for name in ("driver_files", "wait_seconds", "plan_seconds", "queued", "cached_bytes"):
        if getattr(options, name) < 0:
            raise SettingError(f"{name} is {getattr(options, name)}: expected a number from 0")
    if len(options.secret) < _SHORTEST_SECRET:
        raise SettingError(f"the secret has {len(options.secret)} bytes: expected at least {_SHORTEST_SECRET}")
    if options.principals is None and not is_loopback(options.host):
        raise SettingError(
            f"host is {options.host}: a service that others can reach needs a bearer token (--token-file, "
            "--principals), also behind a proxy that authenticates users"
        )


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
