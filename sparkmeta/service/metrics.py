"""Metrics of the service, in Prometheus' text format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from sparkmeta.service.planning import Planning

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class Metrics:
    """The counters of one service."""

    def __init__(self, planning: Planning) -> None:
        self._registry = registry = CollectorRegistry()
        names = ("sparkmeta_requests", "Requests by endpoint and HTTP status.")
        self._requests = Counter(*names, ("endpoint", "status"), registry=registry)
        names = ("sparkmeta_request_seconds", "How long requests took, by endpoint.")
        self._seconds = Histogram(*names, ("endpoint",), buckets=_SECONDS, registry=registry)
        self._tasks = Counter("sparkmeta_scan_tasks", "Scan tasks of plans that clients got.", registry=registry)
        unfinished = Gauge("sparkmeta_plans_unfinished", "Plans that run or wait for a thread.", registry=registry)
        unfinished.set_function(lambda: len(planning.runs.unfinished))
        known = Gauge("sparkmeta_plans_known", "Plans in memory, finished ones included.", registry=registry)
        known.set_function(lambda: planning.runs.known)

    def request(self, endpoint: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(endpoint, str(status)).inc()
        self._seconds.labels(endpoint).observe(seconds)

    def planned(self, tasks: int) -> None:
        """Count the scan tasks of a plan that a client got."""
        self._tasks.inc(tasks)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        text: bytes = generate_latest(self._registry)
        return text
