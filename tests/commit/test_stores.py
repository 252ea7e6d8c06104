"""Commits to tables in folders of a store with conditional writes, whose responses get lost."""

from __future__ import annotations

import uuid
from itertools import count
from typing import TYPE_CHECKING

import pytest
from pyiceberg.io import load_file_io
from s3fs import S3FileSystem

from sparkmeta.errors import CommitFailedError, CommitStateUnknownError, TableAlreadyExistsError, UnsupportedError
from sparkmeta.operations.filesystem import FileSystemOperations
from sparkmeta.storage import content, writing
from sparkmeta.storage.files import IOFiles
from tests.commit.tables import appended, new_table
from tests.gcs import GCS_BUCKET, gcs_properties
from tests.s3 import BUCKET, FILE_IOS, Request, S3Server

if TYPE_CHECKING:
    from collections.abc import Callable

FSSPEC = {"py-io-impl": FILE_IOS["fsspec"]}
HURRIED = {"commit.status-check.num-retries": "1", "commit.status-check.min-wait-ms": "1"}


@pytest.fixture
def folder() -> str:
    return f"s3://{BUCKET}/{uuid.uuid4()}"


@pytest.fixture
def table(s3: S3Server, folder: str, monkeypatch: pytest.MonkeyPatch) -> FileSystemOperations:
    """Return a new table, whose client sends each request at most twice."""
    # Only new clients read the environment, and fsspec keeps clients of earlier tests.
    S3FileSystem.clear_instance_cache()
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    monkeypatch.setattr(content, "_WAITS", ())
    operations = FileSystemOperations(IOFiles(s3.io("fsspec")), folder)
    operations.commit(None, new_table(folder, HURRIED))
    return operations


def puts_of(name: str, times: int = 1 << 30) -> Callable[[Request], bool]:
    """Return a predicate that selects the first requests that write a file of a name."""
    seen = count()
    return lambda request: request.method == "PUT" and request.key.endswith(name) and next(seen) < times


def test_commits(table: FileSystemOperations, folder: str) -> None:
    check_commits(table, folder)


def test_commits_to_google_cloud_storage(gcs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_proven", set())
    folder = f"gs://{GCS_BUCKET}/{uuid.uuid4()}"
    operations = FileSystemOperations(IOFiles(load_file_io(gcs_properties(gcs) | FSSPEC)), folder)
    operations.commit(None, new_table(folder, HURRIED))
    check_commits(operations, folder)


def check_commits(table: FileSystemOperations, folder: str) -> None:
    first = table.refresh()
    second = table.commit(first, appended(first.metadata))
    assert second == table.refresh()
    assert second.metadata_location == f"{folder}/metadata/v2.metadata.json"
    with pytest.raises(CommitFailedError, match=r"v1\.metadata\.json is no longer the current version"):
        table.commit(first, appended(first.metadata))
    with pytest.raises(TableAlreadyExistsError):
        table.commit(None, new_table(folder))
    assert table.files.read(f"{folder}/metadata/version-hint.text") == b"2"


@pytest.mark.parametrize("times", [1, 1 << 30])
def test_a_commit_without_an_answer_is_looked_up(s3: S3Server, table: FileSystemOperations, times: int) -> None:
    """The client's second attempt finds the file of its first."""
    base = table.refresh()
    with s3.faulty(loses_answer=puts_of("v2.metadata.json", times)):
        version = table.commit(base, appended(base.metadata))
    assert table.refresh() == version
    assert version.metadata_location.endswith("/v2.metadata.json")


def test_a_commit_that_is_refused_may_still_be_under_way(s3: S3Server, table: FileSystemOperations) -> None:
    base = table.refresh()
    refused = puts_of("v2.metadata.json")
    with (
        s3.faulty(refuses=lambda request: 503 * refused(request)),
        s3.counted() as sent,
        pytest.raises(CommitStateUnknownError, match=r"v2\.metadata\.json may have been committed"),
    ):
        table.commit(base, appended(base.metadata))
    assert not [request for request in sent if request.method == "DELETE"]
    assert table.refresh() == base


@pytest.mark.parametrize("client", ["fsspec", "pyarrow"])
def test_without_conditional_writes(s3: S3Server, folder: str, client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_proven", set())
    operations = FileSystemOperations(IOFiles(s3.io(client)), folder)
    with s3.faulty(ignores_conditions=True):
        with pytest.raises(UnsupportedError, match=r"v1\.metadata\.json: can't be written only if .* SQL catalog"):
            operations.commit(None, new_table(folder))
        assert not operations.files.exists(f"{folder}/metadata/v1.metadata.json")
