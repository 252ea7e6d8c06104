"""Report runs of maintenance to other systems: OpenLineage events, and metrics in Prometheus' text format.

If a system can't be reached, this is logged, and the run continues without sending it anything more.
"""

from __future__ import annotations

import json
import logging
import os
import re
import uuid
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import quote, urlsplit

from sparkmeta.fleet.exposition import gauges, replace_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


_log = logging.getLogger(__name__)

_PRODUCER: Final = "https://pypi.org/project/sparkmeta/"
_EVENT: Final = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
_ERROR_FACET: Final = "https://openlineage.io/spec/facets/1-0-1/ErrorMessageRunFacet.json"
_SECONDS: Final = 10
_KEY: Final = "OPENLINEAGE_API_KEY"
_JOB: Final = "sparkmeta_maintain"


class Ended(Protocol):
    """Sends the event of a job's end."""

    def __call__(self, *, error: str | None) -> None: ...


def is_url(target: str) -> bool:
    """Return whether a target is a URL. If not, it is a local file."""
    return target.startswith(("http://", "https://"))


@dataclass
class Lineage:
    """Sends the events of jobs that commit to an OpenLineage endpoint, or appends them to a file.

    Attributes:
        target: the URL that receives events, such as `http://marquez:5000/api/v1/lineage`, or a local file. The
            environment variable `OPENLINEAGE_API_KEY` may contain the endpoint's key.
    """

    target: str
    _gave_up: bool = field(default=False, init=False)

    def began(self, catalog: str | None, table: str, job: str, location: str) -> Ended:
        """Send the event of a job that begins to commit, and return a function that sends the event of its end."""
        run_id = str(uuid.uuid4())
        self._send(_event("START", run_id, catalog, table, job, location))

        def ended(*, error: str | None) -> None:
            event = _event("COMPLETE" if error is None else "FAIL", run_id, catalog, table, job, location)
            if error is not None:
                facet = {"_producer": _PRODUCER, "_schemaURL": _ERROR_FACET, "message": error}
                event["run"]["facets"] = {"errorMessage": {**facet, "programmingLanguage": "python"}}
            self._send(event)

        return ended

    def _send(self, event: Mapping[str, Any]) -> None:
        if self._gave_up:
            return
        text = json.dumps(event, ensure_ascii=False)
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(_KEY):
            headers["Authorization"] = f"Bearer {key}"
        if is_url(self.target):
            is_sent = _delivered(self.target, lambda: _request("POST", self.target, text, headers))
        else:
            is_sent = _delivered(self.target, lambda: _append(Path(self.target), f"{text}\n"))
        self._gave_up = not is_sent


def _event(kind: str, run_id: str, catalog: str | None, table: str, job: str, location: str) -> dict[str, Any]:
    parts = urlsplit(location)
    store = f"{parts.scheme or 'file'}://{parts.netloc}" if parts.netloc else (parts.scheme or "file")
    dataset = {"namespace": store, "name": parts.path}
    return {
        "eventType": kind,
        "eventTime": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "run": {"runId": run_id},
        "job": {"namespace": catalog or "sparkmeta", "name": f"{table}.{job}"},
        "inputs": [dataset],
        "outputs": [dataset],
        "producer": _PRODUCER,
        "schemaURL": _EVENT,
    }


@dataclass
class RunMetrics:
    """Counts the results of a run for Prometheus.

    Attributes:
        target: the URL of a push gateway, or a local file, as node_exporter collects them.
    """

    target: str
    _statuses: Counter[tuple[str, str]] = field(default_factory=Counter, init=False)
    _seconds: dict[str, float] = field(default_factory=dict, init=False)

    def count(self, job: str, status: str, seconds: float) -> None:
        """Count a result."""
        self._statuses[job, status] += 1
        self._seconds[job] = self._seconds.get(job, 0.0) + seconds

    def push(self) -> None:
        """Write or send what was counted."""
        now = datetime.now(UTC).timestamp()
        results = [({"job": job, "status": status}, number) for (job, status), number in sorted(self._statuses.items())]
        seconds: Sequence[Any] = [({"job": job}, round(value, 3)) for job, value in sorted(self._seconds.items())]
        metrics = {
            "results": ("The results of the last run, by job and status.", results),
            "seconds": ("The seconds that jobs of the last run took.", seconds),
            "ended_at_seconds": ("The time at which the last run ended.", [({}, round(now, 3))]),
        }
        text = gauges({f"sparkmeta_maintenance_{name}": metric for name, metric in metrics.items()})
        if is_url(self.target):
            url = f"{self.target.rstrip('/')}/metrics/job/{quote(_JOB)}"
            _delivered(url, lambda: _request("PUT", url, text, {"Content-Type": "text/plain; version=0.0.4"}))
        else:
            _delivered(self.target, lambda: replace_file(Path(self.target), text))


def _delivered(target: str, deliver: Callable[[], None]) -> bool:
    """Deliver something, and return whether it succeeded. A failure is logged, without a user and password."""
    try:
        deliver()
    except Exception as error:  # noqa: BLE001  maintenance goes on
        shown = re.sub(r"//[^/@]*@", "//", target)
        _log.warning("%s: not delivered: %s", shown, re.sub(r"//[^/@]*@", "//", str(error)))
        return False
    return True


def _request(method: str, url: str, text: str, headers: Mapping[str, str]) -> None:
    import requests

    requests.request(method, url, data=text.encode(), headers=dict(headers), timeout=_SECONDS).raise_for_status()


def _append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)
