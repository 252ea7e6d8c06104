"""Options of a planning service."""

from __future__ import annotations

import ipaddress
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sparkmeta.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sparkmeta.service.access import Principals

DEFAULT_PORT = 8181
_LAST_PORT = 65_535
_MIB = 1 << 20
_SHORTEST_SECRET = 16


@dataclass(frozen=True)
class ServeOptions:
    """The options of a service.

    Attributes:
        host: the address to listen on.
        port: the port to listen on; 0 takes a free one.
        principals: who may read what; None: anybody may read everything, which only a loopback address allows.
        secret: signs the tokens of plans. Replicas that share a spool share it, so that each serves the others' pages.
        spool: the folder of large plans' pages, which the driver and the executors see; None: a temporary folder.
        spool_properties: properties of the FileIO that opens the spool, if it is on a store.
        page_tasks: how many scan tasks a page has at most.
        page_bytes: the maximum size of a page; a single larger task gets a page of its own.
        driver_files: plans whose manifests list at most this many files are collected on the driver.
        wait_seconds: how long a client waits for a plan before it has to ask again.
        plan_seconds: how long a plan may take.
        keep_seconds: how long pages and their tokens last after the plan was made.
        slots: how many plans run at a time.
        queued: how many plans wait for a slot; further ones are refused.
        cached_bytes: how much of the answers of finished plans is kept in memory.
        vend_credentials: whether clients that ask for credentials get those that the catalog vends to the service.
        max_request_bytes: the largest request body, in bytes.
        max_pages: how many pages a plan has at most.
        max_spool_bytes: how many bytes this service has in the spool at most.
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

    def check(self) -> None:
        """Raise SettingError if a value is invalid, or the catalog could be read without authentication."""
        for name in ("page_tasks", "page_bytes", "slots", "max_request_bytes", "max_pages", "keep_seconds"):
            if getattr(self, name) <= 0:
                raise SettingError(f"{name} is {getattr(self, name)}: expected a number above 0")
        if not 0 <= self.port <= _LAST_PORT:
            raise SettingError(f"port is {self.port}: expected a number from 0 to {_LAST_PORT}")
        for name in ("driver_files", "wait_seconds", "plan_seconds", "queued", "cached_bytes"):
            if getattr(self, name) < 0:
                raise SettingError(f"{name} is {getattr(self, name)}: expected a number from 0")
        if len(self.secret) < _SHORTEST_SECRET:
            raise SettingError(f"the secret has {len(self.secret)} bytes: expected at least {_SHORTEST_SECRET}")
        if self.principals is None and not is_loopback(self.host):
            raise SettingError(
                f"host is {self.host}: a service that others can reach needs a bearer token (--token-file, "
                "--principals), also behind a proxy that authenticates users"
            )


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
