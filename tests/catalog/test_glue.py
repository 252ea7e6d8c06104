"""AWS Glue, moto's, whose entries point to metadata files of all versions."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError
from pyiceberg.catalog.glue import GlueCatalog

import sparkmeta as sm
from sparkmeta.errors import NamespaceNotEmptyError, NoSuchNamespaceError
from tests.catalog.test_operations import SCHEMA, SPEC
from tests.s3 import ACCESS_KEY, BUCKET, SECRET_KEY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.s3 import Request, S3Server


@pytest.fixture
def catalog(s3: S3Server) -> sm.Catalog:
    return sm.load_catalog("aws", type="glue", warehouse=f"s3://{BUCKET}/glue", **s3.glue, **s3.properties)


@pytest.fixture
def once(s3: S3Server) -> sm.Catalog:
    """A catalog whose client repeats no request."""
    return sm.load_catalog(
        "aws", type="glue", warehouse=f"s3://{BUCKET}/glue", **s3.glue, **s3.properties, **{"glue.max-retries": 0}
    )


def test_glue(spark: SparkSession, catalog: sm.Catalog) -> None:
    ns = f"ns_{uuid.uuid4().hex[:8]}"
    catalog.create_namespace(ns)
    catalog.create_namespace_if_not_exists(ns)
    assert (ns,) in catalog.list_namespaces()
    assert catalog.namespace_exists(ns)
    created = catalog.create_table(f"{ns}.t", SCHEMA, SPEC, properties={"a": "1"}, spark=spark)
    assert (created.format_version, created.properties["a"]) == (2, "1")
    assert catalog.create_table_if_not_exists(f"{ns}.t", SCHEMA, spark=spark).metadata == created.metadata
    assert catalog.list_tables(ns) == [(ns, "t")]
    renamed = catalog.rename_table(f"{ns}.t", f"{ns}.u", spark)
    assert (renamed.name(), renamed.metadata.table_uuid) == ((ns, "u"), created.metadata.table_uuid)
    assert (catalog.table_exists(f"{ns}.t"), catalog.table_exists(f"{ns}.u")) == (False, True)
    with pytest.raises(NamespaceNotEmptyError):
        catalog.drop_namespace(ns)
    catalog.drop_table(f"{ns}.u")
    registered = catalog.register_table(f"{ns}.w", created.metadata_location, spark)
    assert registered.metadata == created.metadata

    tree = catalog.create_table(f"{ns}.tree", SCHEMA, SPEC, format_version=4, spark=spark)
    with tree.transaction() as tx:
        tx.set_properties(a="2")
    moved = catalog.rename_table(f"{ns}.tree", f"{ns}.moved", spark)
    assert (moved.metadata.table_uuid, moved.properties["a"]) == (tree.metadata.table_uuid, "2")
    with pytest.raises(sm.TableAlreadyExistsError):
        catalog.rename_table(f"{ns}.w", f"{ns}.moved", spark)
    with pytest.raises(NoSuchNamespaceError):
        catalog.rename_table(f"{ns}.w", "none.w", spark)
    catalog.drop_table(f"{ns}.moved")
    assert catalog.register_table(f"{ns}.tree", moved.metadata_location, spark).metadata == moved.metadata
    catalog.drop_table(f"{ns}.tree")
    for operation in (
        lambda: catalog.create_namespace(f"{ns}.deep"),
        lambda: catalog.create_table(f"{ns}.deep.t", SCHEMA, spark=spark),
        lambda: catalog.rename_table(f"{ns}.w", f"{ns}.deep.w", spark),
        lambda: catalog.register_table(f"{ns}.deep.w", created.metadata_location, spark),
    ):
        with pytest.raises(sm.UnsupportedError, match=rf"catalog aws: {ns}\.deep: Glue has no nested namespaces"):
            operation()
    with pytest.raises(sm.NoSuchTableError, match=r"catalog aws: \w+\.none: "):
        catalog.load_table(f"{ns}.none", spark)
    with pytest.raises(NoSuchNamespaceError):
        catalog.list_tables("none")
    catalog.drop_table(f"{ns}.w")
    catalog.drop_namespace(ns)
    assert not catalog.namespace_exists(ns)


# No waits between looks at an unknown outcome.
IMPATIENT = {"commit.status-check.min-wait-ms": "0"}


@pytest.fixture
def table(spark: SparkSession, catalog: sm.Catalog) -> sm.Table:
    ns = f"ns_{uuid.uuid4().hex[:8]}"
    catalog.create_namespace(ns)
    return catalog.create_table(f"{ns}.old", SCHEMA, properties=IMPATIENT, spark=spark)


def renamed(catalog: sm.Catalog, table: sm.Table) -> sm.Table:
    return catalog.rename_table(table.name(), (table.name()[0], "new"))


def names(catalog: sm.Catalog, table: sm.Table) -> list[str]:
    return [name for _, name in catalog.list_tables(table.name()[0])]


def first(action: str) -> Any:
    """Return a fault of the first request of an action."""
    left = [action]

    def is_next(request: Request) -> bool:
        return bool(left) and request.action == left[0] and bool(left.pop())

    return is_next


def commit(table: sm.Table) -> None:
    with table.transaction() as tx:
        tx.set_properties(committed="yes")


def test_views_are_refused(catalog: sm.Catalog) -> None:
    """Iceberg's Java library has no views in Glue, so there is no layout to write."""
    ns = f"ns_{uuid.uuid4().hex[:8]}"
    catalog.create_namespace(ns)
    for refused in (
        lambda: catalog.create_view(f"{ns}.v", SCHEMA, {"spark": "SELECT 1"}),
        lambda: catalog.register_view(f"{ns}.v", "s3://absent/v.metadata.json"),
        lambda: catalog.list_views(ns),
    ):
        with pytest.raises(
            sm.UnsupportedError, match="catalog aws: GlueCatalog can't hold views: SQL and REST catalogs"
        ):
            refused()
    assert catalog.list_tables(ns) == []
    catalog.drop_namespace(ns)


@pytest.mark.parametrize("action", ["CreateTable", "DeleteTable"])
def test_a_lost_answer_to_a_rename(s3: S3Server, catalog: sm.Catalog, table: sm.Table, action: str) -> None:
    """The client repeats the request, which Glue then refuses."""
    with s3.faulty(loses_answer=first(action)):
        after = renamed(catalog, table)
    assert (after.metadata, names(catalog, table)) == (table.metadata, ["new"])


def test_a_lost_answer_to_a_registration(s3: S3Server, catalog: sm.Catalog, table: sm.Table) -> None:
    catalog.drop_table(table.name())
    with s3.faulty(loses_answer=first("CreateTable")):
        assert catalog.register_table(table.name(), table.metadata_location).metadata == table.metadata
    commit(table)
    fault = first("CreateTable")
    with s3.faulty(refuses=lambda request: 500 * fault(request)), pytest.raises(sm.TableAlreadyExistsError):
        catalog.register_table(table.name(), table.metadata_location)


def test_an_unknown_registration(s3: S3Server, catalog: sm.Catalog, table: sm.Table, once: sm.Catalog) -> None:
    catalog.drop_table(table.name())
    name = ".".join(table.name())
    with (
        s3.faulty(refuses=lambda request: 500 * (request.action == "CreateTable")),
        pytest.raises(sm.CommitStateUnknownError, match=f"^{name} may have been registered: "),
    ):
        once.register_table(name, table.metadata_location)


def test_a_commit_before_the_old_name_is_dropped(
    catalog: sm.Catalog, table: sm.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = GlueCatalog._create_glue_table

    def slow(*arguments: Any) -> None:
        create(*arguments)
        commit(table)

    monkeypatch.setattr(GlueCatalog, "_create_glue_table", slow)
    with pytest.raises(
        sm.CommitFailedError, match=r"^ns_\w+\.old was not renamed: another commit, or a drop, came first"
    ):
        renamed(catalog, table)
    assert (names(catalog, table), table.refresh().properties["committed"]) == (["old"], "yes")


def test_a_drop_of_the_old_name_that_glue_refuses(s3: S3Server, once: sm.Catalog, table: sm.Table) -> None:
    fault = first("DeleteTable")
    with s3.faulty(refuses=lambda request: 403 * fault(request)), pytest.raises(sm.CatalogError, match="403"):
        renamed(once, table)
    assert names(once, table) == ["old"]


def test_a_new_name_that_stays(s3: S3Server, once: sm.Catalog, table: sm.Table) -> None:
    with (
        s3.faulty(refuses=lambda request: 403 * (request.action == "DeleteTable")),
        pytest.raises(sm.CommitStateUnknownError, match=r"^(ns_\w+)\.old has the second name \1\.new: .*403"),
    ):
        renamed(once, table)
    assert names(once, table) == ["new", "old"]


def test_a_commit_to_the_new_name(once: sm.Catalog, table: sm.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not dropped with the new name, when the old one stays."""
    new = (table.name()[0], "new")

    def refused(*_: Any) -> None:
        monkeypatch.undo()
        commit(once.load_table(new))
        raise ClientError({"Error": {"Code": "AccessDeniedException"}}, "DeleteTable")

    monkeypatch.setattr(GlueCatalog, "drop_table", refused)
    with pytest.raises(sm.CommitStateUnknownError, match=r"^(ns_\w+)\.old has the second name \1\.new: .*AccessDenied"):
        renamed(once, table)
    assert once.load_table(new).properties["committed"] == "yes"


@pytest.mark.parametrize("fault", ["unreadable", "no answer", "another table"])
def test_an_unknown_drop_of_the_old_name(
    fault: str, s3: S3Server, once: sm.Catalog, table: sm.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing more is dropped."""
    drop = GlueCatalog.drop_table

    def failing(self: GlueCatalog, identifier: Any) -> None:
        if fault == "no answer":
            raise ConnectionClosedError(endpoint_url="https://glue")
        drop(self, identifier)
        if fault == "another table":
            once.create_table(identifier, SCHEMA)
        else:
            s3.refuses = lambda request: 500 * (request.action == "GetTable")
        raise ClientError({"Error": {"Code": "InternalServiceException"}}, "DeleteTable")

    monkeypatch.setattr(GlueCatalog, "drop_table", failing)
    problem = r"^(ns_\w+)\.old may have been renamed to \1\.new, or has both names: "
    with s3.faulty(refuses=s3.refuses), pytest.raises(sm.CommitStateUnknownError, match=problem):
        renamed(once, table)
    assert names(once, table) == (["new"] if fault == "unreadable" else ["new", "old"])
    assert once.load_table((table.name()[0], "new")).metadata == table.metadata


def test_a_glue_that_refuses(s3: S3Server, catalog: sm.Catalog) -> None:
    with s3.faulty(refuses=lambda _: 403), pytest.raises(sm.CatalogError, match=r"^catalog aws: ") as caught:
        catalog.list_namespaces()
    assert SECRET_KEY not in str(caught.value)
    assert ACCESS_KEY not in str(caught.value)
