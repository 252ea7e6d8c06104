"""Keep credentials out of messages. Light: Spark tasks import this."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

_SECRET_KEY = re.compile(
    r"token$|token\.|secret|password|credential|access[-_]key|account-key|connection-string|sas-|signature",
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
    values = [str(value) for key, value in properties.items() if _SECRET_KEY.search(key)]
    values += [part for value in values for part in value.split(":")]
    values += [urlsplit(str(value)).password or "" for key, value in properties.items() if key.endswith("uri")]
    return sorted({value for value in values if len(value) >= _LEAST_SECRET}, key=len, reverse=True)


def without_secrets(text: str, properties: Mapping[str, Any]) -> str:
    """Replace credentials in a text: those in properties, and parts of signed URLs."""
    for secret in secrets_in(properties):
        text = text.replace(secret, _HIDDEN)
    return _SIGNED.sub(rf"\1{_HIDDEN}", text)
