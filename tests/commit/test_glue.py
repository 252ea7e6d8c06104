"""Commits to tables of AWS Glue: conflicts by the versions of its entries, and lost responses."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.catalog.glue import GlueCatalog

from sparkmeta.errors import (
    CatalogError,
    CommitFailedError,
    CommitStateUnknownError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from sparkmeta.operations.glue import GlueOperations
from sparkmeta.storage.files import LocalFiles
from tests.commit.tables import appended, new_table

if TYPE_CHECKING:
    from pathlib import Path

    from sparkmeta.operations.table_operations import TableVersion
    from tests.s3 import Request, S3Server


def operations(s3: S3Server, namespace: str, retries: int = 0) -> GlueOperations:
    catalog = GlueCatalog("aws", **s3.glue, **{"glue.max-retries": retries})
    return GlueOperations(catalog, (namespace, "t"), LocalFiles())


@pytest.fixture
def swap(s3: S3Server) -> GlueOperations:
    """Return the operations of a table that does not exist yet. Its client repeats no request."""
    swap = operations(s3, f"ns_{uuid.uuid4().hex[:8]}")
    swap.catalog.create_namespace(swap.identifier[:-1])
    return swap


@pytest.fixture(params=[2, 4])
def base(request: pytest.FixtureRequest, swap: GlueOperations, tmp_path: Path) -> TableVersion:
    return swap.commit(None, new_table(tmp_path.as_uri(), version=request.param))


def metadata_files(version: TableVersion) -> int:
    folder = version.metadata_location.removeprefix("file://").rpartition("/")[0]
    return sum(1 for _ in LocalFiles().list(folder, "*.metadata.json"))


def test_versions_follow_each_other(swap: GlueOperations, base: TableVersion) -> None:
    first = swap.commit(base, appended(base.metadata))
    second = swap.commit(first, appended(first.metadata, a="1"))
    assert swap.refresh() == second
    assert [entry.metadata_file for entry in second.metadata.metadata_log] == [
        base.metadata_location,
        first.metadata_location,
    ]
    parameters = swap.catalog._get_glue_table(*swap.identifier)["Parameters"]
    assert parameters.items() >= {"a": "1", "previous_metadata_location": first.metadata_location}.items()
    with pytest.raises(TableAlreadyExistsError, match=r"catalog aws: ns_\w+\.t: "):
        swap.commit(None, base.metadata)
    assert metadata_files(second) == 3, "what was refused is deleted"


def test_nothing_to_commit_to(swap: GlueOperations, base: TableVersion) -> None:
    swap.catalog.drop_table(swap.identifier)
    with pytest.raises(NoSuchTableError):
        swap.refresh()
    with pytest.raises(NoSuchTableError):
        swap.commit(base, appended(base.metadata))
    with pytest.raises(NoSuchNamespaceError):
        GlueOperations(swap.catalog, ("none", "t"), LocalFiles()).commit(None, base.metadata)


def test_a_conflict(swap: GlueOperations, base: TableVersion, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another commit comes first: before the client reads the entry, or between its read and its request."""
    first = swap.commit(base, appended(base.metadata))
    with pytest.raises(CommitFailedError, match=f"{base.metadata_location} is no longer the current version"):
        swap.commit(base, appended(base.metadata))
    prepare = GlueOperations._request

    def late(self: GlueOperations, attempt: Any) -> Any:
        request = prepare(self, attempt)
        monkeypatch.undo()
        swap.commit(first, appended(first.metadata))
        return request

    monkeypatch.setattr(GlueOperations, "_request", late)
    with pytest.raises(CommitFailedError, match="Glue detected concurrent update"):
        swap.commit(first, appended(first.metadata))
    current = swap.refresh()
    assert len(current.metadata.snapshots) == 2
    assert metadata_files(current) == 3, "those of versions"


def test_an_entry_without_a_version(swap: GlueOperations, base: TableVersion, monkeypatch: pytest.MonkeyPatch) -> None:
    load = GlueCatalog._get_glue_table
    unversioned = lambda *names: {key: value for key, value in load(*names).items() if key != "VersionId"}  # noqa: E731
    monkeypatch.setattr(GlueCatalog, "_get_glue_table", unversioned)
    with pytest.raises(CatalogError, match="Glue names no version of its entry"):
        swap.commit(base, appended(base.metadata))
    assert swap.refresh() == base


class Faults:
    """Let a number of requests to Glue fail in one way."""

    def __init__(self, action: str, times: int) -> None:
        self.action, self.times = action, times

    def __call__(self, request: Request) -> int:
        is_next = request.action == self.action and self.times > 0
        self.times -= is_next
        return 500 if is_next else 0


@pytest.mark.parametrize("action", ["CreateTable", "UpdateTable"])
@pytest.mark.parametrize("fault", ["refuses", "loses_answer"])
@pytest.mark.parametrize("retries", [0, 2])
def test_one_lost_answer(
    s3: S3Server, swap: GlueOperations, tmp_path: Path, action: str, fault: str, retries: int
) -> None:
    """The entry is read, and the request is repeated unless it was executed, by the client itself or by us."""
    swap = operations(s3, swap.identifier[0], retries)
    version = None if action == "CreateTable" else swap.commit(None, new_table(tmp_path.as_uri()))
    new = new_table(tmp_path.as_uri()) if version is None else appended(version.metadata)
    faults = Faults(action, 1)
    with s3.faulty(**{fault: faults}):
        committed = swap.commit(version, new)
    assert faults.times == 0
    assert swap.refresh() == committed
    assert committed.metadata.current_snapshot_id == new.current_snapshot_id
    assert metadata_files(committed) == (1 if version is None else 2)


def test_an_unknown_outcome(s3: S3Server, swap: GlueOperations, base: TableVersion) -> None:
    """The metadata file stays, since Glue may point to it."""
    new = appended(base.metadata)
    gone = Faults("UpdateTable", 100)
    with s3.faulty(refuses=gone), pytest.raises(CommitStateUnknownError, match="may have been committed"):
        swap.commit(base, new)
    assert swap.refresh() == base
    assert metadata_files(base) == 2


def test_a_refusal(s3: S3Server, swap: GlueOperations, base: TableVersion) -> None:
    denied = lambda request: 403 if request.action == "UpdateTable" else 0  # noqa: E731
    with s3.faulty(refuses=denied), pytest.raises(CatalogError, match=r"catalog aws: ns_\w+\.t: "):
        swap.commit(base, appended(base.metadata))
    assert metadata_files(base) == 1
