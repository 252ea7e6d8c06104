"""A service in this process, and what its clients do: Spark SQL with Iceberg's runtime, pyiceberg, and plain HTTP."""

from __future__ import annotations

import itertools
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import requests
from pyiceberg.catalog import load_catalog as load_pyiceberg_catalog

import sparkmeta as sm
from sparkmeta import Catalog
from sparkmeta.service import planning
from tests.conftest import ICEBERG, configured
from tests.service.protocol import Checked, models

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pytest
    from pyiceberg.catalog import Catalog as PyIcebergCatalog
    from pyspark.sql import SparkSession

# Spark keeps a catalog of a name for good.
_numbers = itertools.count()


class _Refusing(Catalog):
    """A catalog that does nothing but what its subclass does."""


def _refuse(*_: Any, **__: Any) -> Any:
    raise sm.UnsupportedError("a catalog of tests")


for _name in Catalog.__abstractmethods__:
    setattr(_Refusing, _name, _refuse)
_Refusing.__abstractmethods__ = frozenset()


class LocatedTables(_Refusing):
    """Tables of any kind by the locations of their metadata files or folders, all in one namespace."""

    name = "located"

    def __init__(self, locations: Mapping[str, str], namespace: str = "db") -> None:
        self.locations, self.namespace = dict(locations), namespace

    def load_table(self, identifier: Any, spark: SparkSession | None = None) -> sm.Table:
        names = tuple(identifier)
        if names[:-1] != (self.namespace,) or names[-1] not in self.locations:
            raise sm.NoSuchTableError(f"{'.'.join(names)}: there is no such table")
        from dataclasses import replace

        return replace(sm.load_table(self.locations[names[-1]], spark=spark), identifier=names)

    def table_exists(self, identifier: Any) -> bool:
        return tuple(identifier)[-1] in self.locations

    def list_tables(self, namespace: Any) -> list[tuple[str, ...]]:
        return [(self.namespace, name) for name in self.locations]

    def namespace_exists(self, namespace: Any) -> bool:
        return tuple(namespace) == (self.namespace,)

    def list_namespaces(self, namespace: Any = ()) -> list[tuple[str, ...]]:
        return [] if namespace else [(self.namespace,)]


@contextmanager
def served(catalog: Catalog | Mapping[str, str], spark: SparkSession, **options: Any) -> Iterator[sm.Service]:
    """Serve a catalog, or tables by their locations as db.<name>."""
    tables = catalog if isinstance(catalog, Catalog) else LocatedTables(catalog)
    # However slow the machine is, plans are answered at once, unless a test wants clients to poll.
    service = sm.serve(tables, spark, port=0, **{"wait_seconds": 300, **options})
    checked = Checked(service._app)
    if models() is not None:
        service._server.config.app = checked
    with service:
        yield service
    assert not checked.problems, "\n".join(checked.problems[:10])


@contextmanager
def spark_catalog(spark: SparkSession, service: sm.Service, **properties: str) -> Iterator[str]:
    """The name of a Spark catalog, of Iceberg's runtime, that asks a service."""
    name = f"served{next(_numbers)}"
    key = f"spark.sql.catalog.{name}"
    values = {key: f"{ICEBERG}.SparkCatalog", f"{key}.type": "rest", f"{key}.uri": service.uri}
    values |= {f"{key}.cache-enabled": "false", f"{key}.io-impl": "org.apache.iceberg.hadoop.HadoopFileIO"}
    with configured(spark, values | {f"{key}.{name}": value for name, value in properties.items()}):
        yield name


def pyiceberg_catalog(service: sm.Service, **properties: str) -> PyIcebergCatalog:
    return load_pyiceberg_catalog("served", type="rest", uri=service.uri, **properties)


class Gate:
    """Holds all plans of this process, where they begin, until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._open, scan_of = threading.Event(), planning.scan_of

        def held(*arguments: Any) -> Any:
            assert self._open.wait(300), "nobody opened the gate"
            return scan_of(*arguments)

        monkeypatch.setattr(planning, "scan_of", held)

    def open(self) -> None:
        self._open.set()


def eventually(condition: Callable[[], bool]) -> None:
    """Wait for what is sure to happen, however slow the machine is."""
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline, "it has not happened"
        time.sleep(0.02)


class HasUri(Protocol):
    @property
    def uri(self) -> str: ...


class Client:
    """A client of plain HTTP.

    Args:
        service: the service, in this process or another.
        headers: of every request.
    """

    def __init__(self, service: HasUri, **headers: str) -> None:
        self.uri, self.session = service.uri, requests.Session()
        self.session.headers.update({name.replace("_", "-"): value for name, value in headers.items()})

    def request(self, method: str, path: str, **options: Any) -> requests.Response:
        return self.session.request(method, f"{self.uri}{path}", timeout=300, **options)

    def metric(self, name: str) -> float:
        """The value of a metric, 0 if it is not there; with labels as in Prometheus' text format."""
        values = [line for line in self.request("GET", "/metrics").text.splitlines() if line.startswith(f"{name} ")]
        return float(values[0].split()[-1]) if values else 0.0

    def polled(self, table: str, plan_id: str) -> dict[str, Any]:
        """The result of a plan, once it has ended."""
        answers: list[dict[str, Any]] = [{}]

        def has_ended() -> bool:
            answer = self.request("GET", f"{_path(table)}/plan/{plan_id}")
            assert answer.status_code == 200, answer.text
            answers[0] = answer.json()
            return answers[0]["status"] != "submitted"

        eventually(has_ended)
        return answers[0]

    def cancel(self, table: str, plan_id: str) -> requests.Response:
        return self.request("DELETE", f"{_path(table)}/plan/{plan_id}")

    def plan(self, table: str, **body: Any) -> requests.Response:
        return self.request("POST", f"{_path(table)}/plan", json={k.replace("_", "-"): v for k, v in body.items()})

    def tasks(self, table: str, token: Any, **options: Any) -> requests.Response:
        return self.request("POST", f"{_path(table)}/tasks", json={"plan-task": token}, **options)

    def planned(self, table: str, **body: Any) -> list[dict[str, Any]]:
        """All tasks of a plan, each with the delete files that it refers to."""
        answer = self.plan(table, **body)
        assert answer.status_code == 200, answer.text
        document = answer.json()
        assert document["status"] == "completed", document
        return [*_resolved(document), *self.fetched(table, document["plan-tasks"])]

    def fetched(self, table: str, tokens: list[str]) -> list[dict[str, Any]]:
        pages = [self.tasks(table, token) for token in tokens]
        assert all(page.status_code == 200 for page in pages), [page.text for page in pages]
        return [task for page in pages for task in _resolved(page.json())]


def _path(table: str) -> str:
    return f"/v1/namespaces/db/tables/{table}"


def _resolved(document: dict[str, Any]) -> list[dict[str, Any]]:
    deletes = document.get("delete-files", [])
    assert len({str(delete) for delete in deletes}) == len(deletes)
    return [
        task | {"deletes": [deletes[place] for place in task.pop("delete-file-references", [])]}
        for task in document.get("file-scan-tasks", [])
    ]
