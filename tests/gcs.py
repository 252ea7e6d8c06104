"""A server of the tests' own with the API of Google Cloud Storage, gcp-storage-emulator's, with conditional writes."""

from __future__ import annotations

from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GCS_BUCKET = "tests"


@contextmanager
def gcs_server() -> Iterator[str]:
    """Run a server in a thread of this process, and yield its address; skip the test if the emulator is missing."""
    emulator = pytest.importorskip("gcp_storage_emulator.server", reason="no gcp-storage-emulator: run `make setup`")
    from gcp_storage_emulator.handlers import objects

    server = emulator.create_server("127.0.0.1", 0, in_memory=True, default_bucket=GCS_BUCKET)
    with (
        patch.object(objects, "_multipart_upload", _conditional(objects._multipart_upload)),
        patch.object(objects, "_create_resumable_upload", _conditional(objects._create_resumable_upload)),
        server,
    ):
        yield f"http://127.0.0.1:{server._api._httpd.server_port}"


def gcs_properties(url: str) -> dict[str, str]:
    """The properties of a catalog or FileIO that uses the server."""
    return {"gcs.service.host": url, "gcs.oauth2.token": "anon", "gcs.project-id": "tests"}


def _conditional(upload: Callable[[Any, Any, Any], None]) -> Callable[[Any, Any, Any], None]:
    """Refuse an upload with the condition ifGenerationMatch=0 if the object exists, which the emulator does not."""

    def checked(request: Any, response: Any, storage: Any) -> None:
        from gcp_storage_emulator.exceptions import NotFound

        if request.query.get("ifGenerationMatch") == ["0"]:
            names = request.query.get("name") or [request.data["meta"]["name"]]
            try:
                storage.get_file_obj(request.params["bucket_name"], names[0])
            except NotFound:
                pass
            else:
                response.status = HTTPStatus.PRECONDITION_FAILED
                response.json({"error": {"code": 412, "message": "At least one of the pre-conditions did not hold."}})
                return
        upload(request, response, storage)

    return checked
