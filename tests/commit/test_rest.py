"""Commits to tables of a REST catalog: requests, additions by the catalog, conflicts, and lost responses."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from requests.exceptions import ReadTimeout

from sparkmeta.errors import (
    CatalogError,
    CommitFailedError,
    CommitStateUnknownError,
    NoSuchTableError,
    TableAlreadyExistsError,
    UnsupportedError,
    ValidationError,
)
from sparkmeta.operations.rest import RestOperations, TimedRestCatalog, create_rest_table, load_rest_table
from sparkmeta.spec.metadata import SnapshotRef
from sparkmeta.spec.new_table import new_metadata
from tests.commit.tables import QUICK, appended, with_properties
from tests.rest.proxy import SILENT, Fault, Proxy, Request, Way, rest_proxy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkmeta.operations.table_operations import TableVersion
    from sparkmeta.spec.metadata import TableMetadata

SCHEMA = Schema(NestedField(1, "id", LongType(), required=True))


@pytest.fixture(scope="module")
def shared_proxy(rest_uri: str) -> Iterator[Proxy]:
    with rest_proxy(rest_uri) as proxy:
        yield proxy


@pytest.fixture
def proxy(shared_proxy: Proxy) -> Iterator[Proxy]:
    yield shared_proxy
    shared_proxy.faults.clear()
    shared_proxy.edit, shared_proxy.token = Proxy.edit, ""


@pytest.fixture
def swap(proxy: Proxy) -> RestOperations:
    """Return the operations of a table that does not exist yet, in a new namespace."""
    catalog = TimedRestCatalog("rest", uri=proxy.uri, **{"rest.client.socket-timeout-ms": "2000"})
    namespace = f"ns_{uuid.uuid4().hex[:8]}"
    catalog.create_namespace(namespace)
    return RestOperations(catalog, (namespace, "table"))


def empty(version: int = 2) -> TableMetadata:
    from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
    from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

    return new_metadata("/table", SCHEMA, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, QUICK, version)


def tagged(metadata: TableMetadata) -> TableMetadata:
    tag = SnapshotRef.model_validate({"snapshot-id": metadata.current_snapshot_id, "type": "tag"})
    return metadata.model_copy(update={"refs": {**metadata.refs, "a": tag}})


@pytest.fixture(params=[2, 3])
def base(request: pytest.FixtureRequest, swap: RestOperations) -> TableVersion:
    version = create_rest_table(swap.catalog, swap.identifier, empty(request.param), None).version
    assert version.metadata.format_version == request.param
    return version


def test_creation(swap: RestOperations) -> None:
    created = create_rest_table(swap.catalog, swap.identifier, empty(), None)
    assert created.version == swap.refresh()
    assert created.version.metadata.schema() == SCHEMA
    with pytest.raises(TableAlreadyExistsError, match=r"catalog rest: ns_\w+\.table: .*already exists"):
        create_rest_table(swap.catalog, swap.identifier, empty(), None)


def test_a_snapshot(swap: RestOperations, base: TableVersion, proxy: Proxy) -> None:
    proxy.requests.clear()
    after = swap.commit(base, appended(base.metadata))
    assert after == swap.refresh()
    assert after.metadata_location != base.metadata_location
    assert after.metadata.metadata_log[-1].metadata_file == base.metadata_location
    (request,) = proxy.sent("POST")
    assert [update["action"] for update in request.body["updates"]] == ["add-snapshot", "set-snapshot-ref"]
    assert request.body["requirements"] == [
        {"type": "assert-table-uuid", "uuid": str(base.metadata.table_uuid)},
        {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None},
    ]


def test_what_others_have_set_stays(swap: RestOperations, base: TableVersion) -> None:
    """A commit sends only its changes, so that concurrent changes by the catalog or by another client stay."""
    swap.commit(base, with_properties(base.metadata, other="theirs"))
    after = swap.commit(base, appended(base.metadata, mine="1"))
    assert after.metadata.properties.items() >= {"other": "theirs", "mine": "1"}.items()
    assert after.metadata.current_snapshot() is not None


def test_a_conflict(swap: RestOperations, base: TableVersion) -> None:
    first = swap.commit(base, appended(base.metadata))
    with pytest.raises(CommitFailedError, match=r"ns_\w+\.table was not committed: .*Requirement failed"):
        swap.commit(base, appended(base.metadata))
    assert swap.refresh() == first


def test_no_such_table_any_more(swap: RestOperations, base: TableVersion) -> None:
    swap.catalog.drop_table(swap.identifier)
    with pytest.raises(NoSuchTableError, match=r"catalog rest: ns_\w+\.table: "):
        swap.commit(base, appended(base.metadata))


def test_another_table_in_its_place(swap: RestOperations, base: TableVersion) -> None:
    opened = RestOperations(swap.catalog, swap.identifier, base.metadata.table_uuid)
    swap.catalog.drop_table(swap.identifier)
    create_rest_table(swap.catalog, swap.identifier, empty(), None)
    with pytest.raises(ValidationError, match=f"the table that was opened here is {base.metadata.table_uuid}"):
        opened.refresh()
    with pytest.raises(CommitFailedError, match="Requirement failed: UUID does not match"):
        swap.commit(base, appended(base.metadata))


# -- answers that are errors, or lost --------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [appended, tagged, lambda metadata: with_properties(metadata, a="1")])
@pytest.mark.parametrize("way", Way)
@pytest.mark.parametrize("status", [0, 500, 503, SILENT])
def test_one_lost_answer(swap: RestOperations, proxy: Proxy, change: Any, way: Way, status: int) -> None:
    """The state is loaded, and the request is repeated if it was not executed. A snapshot is added once."""
    base = create_rest_table(swap.catalog, swap.identifier, empty(), None).version
    base = swap.commit(base, appended(base.metadata))
    new = change(base.metadata)
    proxy.faults.append(Fault(way, status))
    after = swap.commit(base, new)
    assert after == swap.refresh()
    assert (after.metadata.properties, after.metadata.refs) == (new.properties, new.refs)
    assert [s.snapshot_id for s in after.metadata.snapshots] == [s.snapshot_id for s in new.snapshots]
    assert base.metadata_location in {entry.metadata_file for entry in after.metadata.metadata_log}


def test_a_conflict_with_itself(swap: RestOperations, base: TableVersion, proxy: Proxy) -> None:
    """A proxy that sends a request twice responds with the conflict of the second one."""
    proxy.faults.append(Fault(Way.REPEATED, None))
    new = appended(base.metadata)
    after = swap.commit(base, new)
    assert proxy.faults == []
    assert after.metadata.current_snapshot_id == new.current_snapshot_id


def test_a_lost_answer_after_another_commit(swap: RestOperations, base: TableVersion, proxy: Proxy) -> None:
    """The catalog did not receive the request, and would refuse it after the other commit."""
    first = swap.commit(base, appended(base.metadata))
    proxy.faults.append(Fault(Way.REFUSED))
    with pytest.raises(CommitFailedError, match="was not committed"):
        swap.commit(base, appended(base.metadata))
    assert swap.refresh() == first


@pytest.mark.parametrize(("way", "count"), [(Way.REFUSED, 0), (Way.ANSWER_LOST, 1)])
def test_an_unknown_outcome(
    swap: RestOperations, base: TableVersion, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, way: Way, count: int
) -> None:
    """Neither the request nor a later request for the table's state gets a response."""
    new = appended(base.metadata)
    proxy.faults.append(Fault(way))
    monkeypatch.setattr(RestOperations, "refresh", lambda _: 1 / 0)
    with pytest.raises(CommitStateUnknownError, match=r"ns_\w+\.table may have been committed"):
        swap.commit(base, new)
    monkeypatch.undo()
    assert len(swap.refresh().metadata.snapshots) == count


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, ValidationError),
        (403, CatalogError),
        (422, CatalogError),
        *((status, UnsupportedError) for status in (405, 406, 501)),
    ],
)
def test_a_refusal(swap: RestOperations, base: TableVersion, proxy: Proxy, status: int, kind: type[Exception]) -> None:
    proxy.faults.append(Fault(Way.REFUSED, status))
    proxy.requests.clear()
    with pytest.raises(kind, match=r"catalog rest: ns_\w+\.table: Injected: injected"):
        swap.commit(base, appended(base.metadata))
    assert [request.method for request in proxy.requests] == ["POST"], "neither looked up nor sent again"


def test_a_busy_catalog(swap: RestOperations, base: TableVersion, proxy: Proxy) -> None:
    proxy.faults.append(Fault(Way.REFUSED, 429))
    with pytest.raises(CommitFailedError, match="injected"):
        swap.commit(base, appended(base.metadata))


@pytest.mark.parametrize("status", [0, 500, SILENT])
def test_a_creation_without_an_answer(swap: RestOperations, proxy: Proxy, status: int) -> None:
    proxy.faults.append(Fault(Way.ANSWER_LOST, status))
    with pytest.raises(CommitStateUnknownError, match=r"ns_\w+\.table may have been created"):
        create_rest_table(swap.catalog, swap.identifier, empty(), None)
    assert swap.refresh().metadata.schema() == SCHEMA


# -- tokens and credentials ------------------------------------------------------------------------------------------


def test_an_expired_token(swap: RestOperations, base: TableVersion, proxy: Proxy) -> None:
    """The catalog refuses the session's first token, so the client requests another one, once."""
    catalog = RestCatalog(
        "rest",
        uri=proxy.uri,
        credential="someone:a-secret",
        **{"oauth2-server-uri": f"{proxy.uri}/v1/oauth/tokens"},
    )
    catalog._session.auth.auth_manager._token = "expired-token"  # type: ignore[union-attr]
    proxy.token = "client-credentials-token:sub=someone"
    proxy.requests.clear()
    assert RestOperations(catalog, swap.identifier).refresh() == base
    assert [request.headers["authorization"] for request in proxy.sent("GET")] == [
        "Bearer expired-token",
        f"Bearer {proxy.token}",
    ]
    proxy.token = "another-token"
    with pytest.raises(CatalogError, match=r"catalog rest: .*injected"):
        RestOperations(catalog, swap.identifier).refresh()


def test_expired_tokens_of_a_table_and_its_catalog(swap: RestOperations, base: TableVersion, proxy: Proxy) -> None:
    """The table's token is replaced by the catalog's, which is replaced by a new one."""
    catalog = RestCatalog(
        "rest", uri=proxy.uri, credential="someone:a-secret", **{"oauth2-server-uri": f"{proxy.uri}/v1/oauth/tokens"}
    )
    catalog._session.auth.auth_manager._token = "expired-token"  # type: ignore[union-attr]
    proxy.token = "client-credentials-token:sub=someone"
    proxy.requests.clear()
    assert RestOperations(catalog, swap.identifier, token="expired-of-the-table").refresh() == base
    assert [request.headers["authorization"] for request in proxy.sent("GET")] == [
        "Bearer expired-of-the-table",
        "Bearer expired-token",
        f"Bearer {proxy.token}",
    ]


def test_time_limits_with_sigv4(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits also apply to the adapter that pyiceberg mounts for SigV4."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "tests")
    signed = {"rest.sigv4-enabled": "true", "rest.signing-region": "us-east-1"}
    catalog = TimedRestCatalog("rest", uri=proxy.uri, **signed, **{"rest.client.socket-timeout-ms": "200"})
    proxy.faults.append(Fault(Way.REFUSED, SILENT))
    with pytest.raises(ReadTimeout):
        catalog.create_namespace("silent")


def test_credentials_of_a_table(swap: RestOperations, base: TableVersion, proxy: Proxy) -> None:
    """The FileIO has the vended credentials, and requests about the table have its token."""

    def vend(request: Request, answer: Any) -> Any:
        if not request.path.endswith("/table"):
            return answer
        prefixes = {"s3://elsewhere": "of elsewhere", "file:": "of the credential"}
        credentials = [{"prefix": prefix, "config": {"b": value}} for prefix, value in prefixes.items()]
        config = {"a": "of the table", "b": "of the table", "token": "the-tables-own-token"}
        return answer | {"config": config, "storage-credentials": credentials}

    proxy.edit = vend
    loaded = load_rest_table(swap.catalog, swap.identifier)
    assert loaded.io.properties.items() >= {"a": "of the table", "b": "of the credential"}.items()
    assert [credential.config["b"] for credential in loaded.credentials] == ["of elsewhere", "of the credential"]
    proxy.requests.clear()
    operations = RestOperations(swap.catalog, swap.identifier, token=loaded.token)
    operations.commit(loaded.version, appended(base.metadata))
    assert {request.headers["authorization"] for request in proxy.requests} == {"Bearer the-tables-own-token"}
    assert "the-tables-own-token" not in repr(operations)
    proxy.token = "None"
    assert operations.refresh().metadata.current_snapshot() is not None, "the catalog's own token, if that is refused"
