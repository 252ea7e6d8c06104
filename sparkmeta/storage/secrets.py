"""Keep credentials out of messages. Light: Spark tasks import this."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_SECRET_KEY = re.compile(
    r"token$|token\.|secret|passw(?:or)?d|credential|access[-_]key|account-key|api[-_]?key|connection-string|sas-|"
    r"signature|authorization|cookie",
    re.IGNORECASE,
)
_SIGNED = re.compile(
    r"((?:X-Amz-(?:Signature|Credential|Security-Token)|sig|X-Goog-(?:Signature|Credential))=)[^&\s\"']+", re.IGNORECASE
)
# Shorter values are words such as "true".
_LEAST_SECRET = 6
_HIDDEN = "***"


def secrets_in(properties: Mapping[str, Any]) -> list[str]:
    """Return the credentials in the properties of a catalog or FileIO, the longest first."""
    return sorted({value for value in _secrets(properties) if len(value) >= _LEAST_SECRET}, key=len, reverse=True)


def _secrets(properties: Mapping[str, Any]) -> Iterator[str]:
    for key, value in properties.items():
        if isinstance(value, dict):
            yield from _secrets(value)
        elif _SECRET_KEY.search(key):
            text = str(value)
            # An id with its secret; a scheme, such as Bearer, with its token.
            yield from (text, *text.split(":"), text.rpartition(" ")[2])
        elif key.endswith("uri"):
            yield from _secrets_of_uri(str(value))


def _secrets_of_uri(uri: str) -> Iterator[str]:
    parts = urlsplit(uri)
    password = parts.password or ""
    # Messages have it in either spelling.
    yield from (password, unquote(password))
    yield from _secrets(dict(parse_qsl(parts.query)))


def without_secrets(text: str, properties: Mapping[str, Any]) -> str:
    """Replace credentials in a text: those in properties, and parts of signed URLs."""
    for secret in secrets_in(properties):
        text = text.replace(secret, _HIDDEN)
    return _SIGNED.sub(rf"\1{_HIDDEN}", text)
