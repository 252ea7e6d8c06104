"""pyiceberg's client of REST catalogs, with limits for the time that an answer takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyiceberg.catalog.rest import RestCatalog

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
        send, limits = session.send, tuple(_seconds(self.properties, name) for name in _LIMITS)

        # An adapter would not do: pyiceberg mounts one of its own for SigV4.
        def send_in_time(request: PreparedRequest, **named: Any) -> Response:
            named["timeout"] = named.get("timeout") or limits
            return send(request, **named)

        session.send = send_in_time  # type: ignore[method-assign]


def _seconds(properties: Mapping[str, Any], name: str) -> float:
    text = str(properties.get(name, _LIMITS[name]))
    if not text.isdecimal() or int(text) == 0:
        raise ValidationError(f"the catalog property {name} is {shown(text)}: expected milliseconds, more than 0")
    return int(text) / 1000
