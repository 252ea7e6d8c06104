"""What the protocol's OpenAPI document allows, as the checks of all requests and answers see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.handmade import HandmadeTable, data
from tests.service import protocol
from tests.service.serving import Client, served

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.skipif(protocol.models() is None, reason="no models of the REST protocol: run `make protocol`")

DATA_FILE = {
    "content": "data",
    "file-path": "/t/a",
    "file-format": "parquet",
    "spec-id": 0,
    "partition": [None, 1, "a"],
    "file-size-in-bytes": 1,
    "record-count": 1,
}
INVALID: dict[str, tuple[str, Any]] = {
    "$.plan-id is unknown": ("FetchPlanningResult", {"status": "submitted", "plan-id": "a"}),
    "$.status is 'lost'": ("FetchPlanningResult", {"status": "lost"}),
    "$.plan-task is missing": ("FetchScanTasksRequest", {}),
    "$.snapshot-id is '1'": ("PlanTableScanRequest", {"snapshot-id": "1"}),
    "$.filter.left is missing": ("PlanTableScanRequest", {"filter": {"type": "and", "right": True}}),
    "$.file-scan-tasks[1].data-file is missing": (
        "FetchScanTasksResult",
        {"file-scan-tasks": [{"data-file": DATA_FILE, "residual-filter": True}, {"residual-filter": False}]},
    ),
    "$.file-scan-tasks[0].data-file.record_count is unknown": (
        "FetchScanTasksResult",
        {"file-scan-tasks": [{"data-file": DATA_FILE | {"record_count": 1}}]},
    ),
    "$.error.code is 99": ("IcebergErrorResponse", {"error": {"message": "m", "type": "t", "code": 99}}),
}


@pytest.mark.parametrize("problem", INVALID)
def test_documents_that_are_not_valid(problem: str) -> None:
    model, document = INVALID[problem]
    assert problem in str(protocol.problem(model, document))


def test_answers_of_a_service_are_checked(spark: SparkSession, tmp_path: Path) -> None:
    table = HandmadeTable(tmp_path / "t")
    table.add(0, 1, *(data(f"file:///t/{number}.parquet", record_count=10) for number in range(4)))
    location = table.write()
    with served({"t": location}, spark, page_tasks=1) as service:
        client = Client(service)
        for path in ("/v1/config", "/v1/namespaces", "/v1/namespaces/db", "/v1/namespaces/db/tables"):
            assert client.request("GET", path).status_code == 200
        assert client.request("GET", "/v1/namespaces/db/tables/t").status_code == 200
        assert client.request("GET", "/v1/namespaces/db/tables/none").status_code == 404
        assert len(client.planned("t", filter={"type": "not-null", "term": "id"})) == 4
        checked = service._server.config.app
    assert isinstance(checked, protocol.Checked)
    assert checked.checked == {
        "CatalogConfig": 1,
        "ListNamespacesResponse": 1,
        "GetNamespaceResponse": 1,
        "ListTablesResponse": 1,
        "LoadTableResult": 1,
        "IcebergErrorResponse": 1,
        "PlanTableScanRequest": 1,
        "PlanTableScanResult": 1,
        "FetchScanTasksRequest": 4,
        "FetchScanTasksResult": 4,
    }
