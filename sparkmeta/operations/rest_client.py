"""pyiceberg's client of REST catalogs, with limits for the time that an answer takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyiceberg.catalog.rest import RestCatalog
from requests.adapters import HTTPAdapter

from sparkmeta.errors import ValidationError, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from requests import PreparedRequest, Response, Session

# The names are those of Iceberg's Java library; the limits are in milliseconds.
_LIMITS = {"rest.client.connection-timeout-ms": 30_000, "rest.client.socket-timeout-ms": 300_000}


class TimedRestCatalog(RestCatalog):
    """A REST catalog whose requests fail if the server does not connect, or is silent, for too long."""

    def _config_headers(self, session: Session) -> None:
        """Set headers, and the limits: pyiceberg calls this for each new session before it sends a request."""
        super()._config_headers(session)
        adapter = _TimedAdapter(*(_seconds(self.properties, name) for name in _LIMITS))
        for scheme in ("http://", "https://"):
            session.mount(scheme, adapter)


class _TimedAdapter(HTTPAdapter):
    def __init__(self, connecting: float, answering: float) -> None:
        super().__init__()
        self._limits = (connecting, answering)

    def send(
        self,
        request: PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: bool | str = True,
        cert: Any = None,
        proxies: Any = None,
    ) -> Response:
        return super().send(request, stream, timeout or self._limits, verify, cert, proxies)


def _seconds(properties: Mapping[str, Any], name: str) -> float:
    text = str(properties.get(name, _LIMITS[name]))
    if not text.isdecimal() or int(text) == 0:
        raise ValidationError(f"the catalog property {name} is {shown(text)}: expected milliseconds, more than 0")
    return int(text) / 1000
