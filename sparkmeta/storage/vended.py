"""Credentials that a catalog vends for a table, and which expire. Light: Spark tasks import this."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING

from sparkmeta.errors import SparkmetaError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyiceberg.io import FileIO

VENDED_FOR = "sparkmeta.vended-for"
"""The property of a FileIO that names the catalog and the table of its credentials, for errors."""

# Credentials are replaced this many seconds before they expire, so that a job that starts with them has time.
# Short-lived ones are replaced after half of their remaining lifetime.
_AHEAD = 300.0
_EXPIRY = re.compile(
    r"s3\.session-token-expires-at-ms|gcs\.oauth2\.token-expires-at|adls\.sas-token-expires-at-ms(?:\..*)?"
)
_EXPIRED = re.compile(r"expired.?token|token (?:is|has) expired|request.?expired", re.IGNORECASE)


class VendedIO:
    """A FileIO with credentials that expire, and that its catalog replaces.

    Args:
        io: the FileIO with the first credentials.
        load: asks the catalog for the FileIO again, with new credentials.
    """

    def __init__(self, io: FileIO, load: Callable[[], FileIO]) -> None:
        self._io, self._load = io, load
        self._lock = Lock()
        self._replaced_at = _replaced_at(io)

    def current(self) -> FileIO:
        """Return the FileIO with credentials that do not expire soon.

        If the catalog can't vend new ones, those at hand are used until they expire.

        Raises:
            SparkmetaError: the catalog can't vend new ones, and the old ones have expired.
        """
        with self._lock:
            if time.time() >= self._replaced_at:
                with suppress(*(() if has_expired(self._io.properties) else (SparkmetaError,))):
                    self._io = self._load()
                    self._replaced_at = _replaced_at(self._io)
            return self._io


def expiry(properties: Mapping[str, str]) -> float | None:
    """Return when the first credentials in the properties of a FileIO expire, in seconds since 1970; None if never."""
    texts = [str(value) for name, value in properties.items() if _EXPIRY.fullmatch(name)]
    times = [int(text) / 1000 for text in texts if text.isdecimal()]
    return min(times, default=None)


def has_expired(properties: Mapping[str, str]) -> bool:
    """Return whether some credentials in the properties of a FileIO have expired."""
    end = expiry(properties)
    return end is not None and end <= time.time()


def expired_reason(properties: Mapping[str, str], reason: str) -> str | None:
    """Return why a request failed if its credentials, which a catalog has vended, have expired; None otherwise.

    Args:
        properties: of the FileIO.
        reason: the message of the store's client. Some answers have no text that tells of expiry, so time does.
    """
    if (vended_for := properties.get(VENDED_FOR)) is None:
        return None
    if not has_expired(properties) and _EXPIRED.search(reason) is None:
        return None
    return f"the credentials that {vended_for} have expired: call plan_files() or to_df() again to get new ones"


def _replaced_at(io: FileIO) -> float:
    end, now = expiry(io.properties), time.time()
    return float("inf") if end is None else end - min(_AHEAD, max(0.0, (end - now) / 2))
