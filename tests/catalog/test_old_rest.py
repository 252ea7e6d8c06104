"""REST catalogs that offer little, and don't say what: old servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import sparkmeta as sm
from sparkmeta.catalog.iceberg import IcebergCatalog
from sparkmeta.errors import NoSuchNamespaceError
from sparkmeta.operations.rest import load_rest_table
from tests.rest.old_server import OldServer, old_server
from tests.spec.table_metadata import VERSIONS

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def server() -> Iterator[OldServer]:
    with old_server() as server:
        server.tables |= {f"t{version}": make() for version, make in VERSIONS.items()}
        yield server


def loaded(server: OldServer, **properties: str) -> IcebergCatalog:
    credential = {"credential": server.credential, "oauth2-server-uri": f"{server.uri}/v1/oauth/tokens"}
    catalog = sm.load_catalog("old", uri=server.uri, **{**credential, **properties})
    assert isinstance(catalog, IcebergCatalog)
    return catalog


@pytest.mark.parametrize("page_size", [1, 2, 100])
def test_pages(server: OldServer, page_size: int) -> None:
    server.page_size = page_size
    catalog = loaded(server)
    assert catalog.list_namespaces() == [("ns",), ("ns2",), ("ns3",)]
    assert catalog.list_tables("ns") == [("ns", name) for name in server.tables]


def test_what_exists(server: OldServer) -> None:
    """Without HEAD requests, also for tables that pyiceberg can't read."""
    catalog = loaded(server)
    assert (catalog.namespace_exists("ns"), catalog.namespace_exists("none")) == (True, False)
    assert all(catalog.table_exists(f"ns.{name}") for name in server.tables)
    assert not catalog.table_exists("ns.none")
    for name, metadata in server.tables.items():
        version = load_rest_table(catalog.pyiceberg, ("ns", name)).version  # type: ignore[arg-type]
        assert version.metadata.format_version == metadata["format-version"]


def test_what_the_server_lacks(server: OldServer) -> None:
    catalog = loaded(server)
    with pytest.raises(sm.UnsupportedError, match=r"catalog old: the server does not offer GET \S+/views"):
        catalog.list_views("ns")
    with pytest.raises(sm.UnsupportedError, match=r"^catalog old: ns\.t2: .*Not Acceptable"):
        catalog.rename_table("ns.t2", "ns.other")
    with pytest.raises(NoSuchNamespaceError):
        catalog.list_tables("none")


@pytest.mark.parametrize("status", [401, 419])
def test_tokens_that_expire(server: OldServer, status: int) -> None:
    """Each is replaced once; a request that is refused again is an error."""
    server.expired = status
    catalog = loaded(server)
    issued = len(server.tokens)
    for operation in (
        lambda: catalog.list_tables("ns"),
        lambda: catalog.table_exists("ns.t2"),
        lambda: load_rest_table(catalog.pyiceberg, ("ns", "t2")),  # type: ignore[arg-type]
    ):
        server.tokens.append("of another client")
        assert operation()
        issued += 2
        assert len(server.tokens) == issued
    server.credential = "someone:changed"
    server.tokens.append("of another client")
    with pytest.raises(sm.CatalogError, match="invalid_client") as caught:
        catalog.table_exists("ns.t2")
    assert "a-secret-of-someone" not in str(caught.value)


def test_a_credential_that_is_refused(server: OldServer) -> None:
    with pytest.raises(sm.CatalogError, match=r"^catalog old: .*invalid_client: not \*\*\*$") as caught:
        loaded(server, credential="someone:a-wrong-secret")
    assert "a-wrong-secret" not in str(caught.value)
