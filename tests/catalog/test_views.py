"""The same tests for views of warehouses in folders, local and on S3, SQL catalogs, and Iceberg's own REST catalog."""

from __future__ import annotations

import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import LongType, NestedField, StringType
from pyiceberg.view.metadata import SQLViewRepresentation, ViewRepresentation, ViewVersion

from sparkmeta import Catalog, load_catalog
from sparkmeta.catalog.filesystem import FileSystemCatalog
from sparkmeta.catalog.iceberg import IcebergCatalog
from sparkmeta.catalog.views import FileSystemViews
from sparkmeta.errors import (
    CatalogError,
    CommitFailedError,
    CommitStateUnknownError,
    NoSuchNamespaceError,
    NoSuchViewError,
    NotFoundError,
    TableAlreadyExistsError,
    UnsupportedError,
    ValidationError,
    ViewAlreadyExistsError,
)
from sparkmeta.operations.filesystem import FileSystemOperations
from sparkmeta.operations.view_operations import FileSystemViewOperations, LoadedView
from sparkmeta.spec.new_table import new_metadata
from sparkmeta.storage.files import LocalFiles
from tests.s3 import BUCKET

if TYPE_CHECKING:
    from sparkmeta import View
    from tests.s3 import S3Server

SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "name", StringType(), doc="of the user"))
OTHER = Schema(NestedField(1, "id", LongType()))
SQL = {"spark": "SELECT id, name FROM users"}


def rest_catalog(uri: str) -> RestCatalog:
    catalog = load_catalog("rest", type="rest", uri=uri)
    assert isinstance(catalog, IcebergCatalog)
    assert isinstance(catalog.pyiceberg, RestCatalog)
    return catalog.pyiceberg


def sql_catalog(folder: Path, uri: str | None = None, **properties: str) -> IcebergCatalog:
    where = {"uri": uri or f"sqlite:///{folder}/catalog.db", "warehouse": f"{folder.as_uri()}/w"}
    catalog = load_catalog("shop", type="sql", **where, **properties)
    assert isinstance(catalog, IcebergCatalog)
    return catalog


@pytest.fixture(params=["folders", "s3", "sqlite", "postgres", "rest"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Catalog:
    if request.param == "folders":
        return load_catalog("local", type="hadoop", warehouse=f"file://{tmp_path}/a [w]")
    if request.param == "sqlite":
        return sql_catalog(tmp_path)
    if request.param == "postgres":
        return sql_catalog(tmp_path, request.getfixturevalue("postgres"))
    if request.param == "s3":
        s3: S3Server = request.getfixturevalue("s3")
        return load_catalog("store", type="hadoop", warehouse=f"s3://{BUCKET}/{uuid.uuid4()}", **s3.properties)
    return load_catalog("rest", type="rest", uri=request.getfixturevalue("rest_uri"))


@pytest.fixture
def namespace(catalog: Catalog) -> str:
    name = f"ns_{uuid.uuid4().hex[:8]}"
    if isinstance(catalog, IcebergCatalog):
        catalog.pyiceberg.create_namespace(name)
    return name


def queries(view: View) -> dict[str, str]:
    return {sql.dialect: sql.sql for sql in view.current_version().sql_representations}


def test_a_view_from_creation_to_drop(catalog: Catalog, namespace: str) -> None:
    name = f"{namespace}.v"
    assert not catalog.view_exists(name)
    view = catalog.create_view(name, SCHEMA, SQL, properties={"comment": "all users"})
    assert (view.name(), view.comment, queries(view)) == ((namespace, "v"), "all users", SQL)
    assert view.schema() == SCHEMA
    assert view.current_version().default_namespace == (namespace,)
    assert view.metadata == catalog.load_view((namespace, "v")).metadata
    with pytest.raises(ViewAlreadyExistsError):
        catalog.create_view(name, SCHEMA, SQL)
    text: Any = "SELECT 1 id"
    with pytest.raises(ValidationError, match="view_version is 'SELECT 1 id': expected a mapping"):
        catalog.create_view(f"{namespace}.other", SCHEMA, text)
    with pytest.raises(ValidationError, match="schema is 'SELECT 1 id': expected a Schema"):
        catalog.create_view(f"{namespace}.other", text, SQL)

    trino = view.add_dialect("trino", 'SELECT "id", name FROM users')
    assert queries(trino) == {**SQL, "trino": 'SELECT "id", name FROM users'}
    with pytest.raises(ValidationError, match="a query in the dialect 'Trino'"):
        trino.add_dialect("Trino", "SELECT 1")
    with pytest.raises(ValidationError, match="lacks the dialects"):
        trino.replace({"spark": "SELECT id FROM users"}, OTHER)
    both = trino.replace({"spark": "SELECT id FROM users", "trino": "SELECT id FROM users"}, OTHER, {"a": "1"})
    assert (len(both.schema().fields), both.properties) == (1, {"comment": "all users", "a": "1"})
    assert [entry.version_id for entry in both.history()] == [1, 2, 3]

    back = both.rollback(2)
    assert (queries(back), back.schema()) == (queries(trino), SCHEMA)
    assert [entry.version_id for entry in back.history()] == [1, 2, 3, 2]
    assert queries(back.rollback()) == queries(both)
    with pytest.raises(ValidationError, match="there is no version 9"):
        back.rollback(9)
    assert back.remove_properties("a", "absent").set_properties(comment="c").properties == {"comment": "c"}
    assert back.refresh().metadata == catalog.load_view(name).metadata

    with pytest.raises(NoSuchViewError):
        catalog.rename_view(f"{namespace}.absent", f"{namespace}.w")
    renamed = catalog.rename_view(name, f"{namespace}.w")
    assert (renamed.uuid(), renamed.comment, len(renamed.history())) == (view.uuid(), "c", 5)
    assert catalog.list_views(namespace) == [(namespace, "w")]
    with pytest.raises(NoSuchViewError):
        back.set_properties(x="y")
    catalog.drop_view(f"{namespace}.w")
    assert catalog.list_views(namespace) == []
    for gone in (catalog.drop_view, catalog.load_view):
        with pytest.raises(NoSuchViewError):
            gone(f"{namespace}.w")
    assert catalog.create_view(f"{namespace}.w", SCHEMA, SQL).uuid() != view.uuid()
    for change in (renamed.refresh, lambda: renamed.set_properties(x="y")):
        with pytest.raises(ValidationError, match="the view that was opened here is"):
            change()
    assert catalog.load_view(f"{namespace}.w").properties == {}


def test_a_version_of_pyiceberg(catalog: Catalog, namespace: str) -> None:
    sql = SQLViewRepresentation(type="sql", sql="SELECT 1 AS id", dialect="spark")
    version = ViewVersion(schema_id=0, representations=[ViewRepresentation(sql)], default_namespace=("other", "ns"))
    view = catalog.create_or_replace_view(f"{namespace}.v", OTHER, version)
    assert (view.current_version().default_namespace, queries(view)) == (("other", "ns"), {"spark": "SELECT 1 AS id"})
    view = catalog.create_or_replace_view(f"{namespace}.v", SCHEMA, SQL, properties={"a": "b"})
    assert (view.current_version().default_namespace, queries(view), view.properties["a"]) == ((namespace,), SQL, "b")
    assert (view.current_version().version_id, view.schema()) == (2, SCHEMA)


def test_a_view_of_a_metadata_file(catalog: Catalog, namespace: str, tmp_path: Path) -> None:
    view = catalog.create_view(f"{namespace}.v", SCHEMA, SQL, properties={"comment": "c"}).add_dialect(
        "trino", "SELECT 1"
    )
    with pytest.raises(ViewAlreadyExistsError):
        catalog.register_view(f"{namespace}.v", view.metadata_location)
    registered = catalog.register_view(f"{namespace}.w", view.metadata_location)
    assert (registered.uuid(), registered.versions) == (view.uuid(), view.versions)
    assert registered.metadata == catalog.load_view(f"{namespace}.w").metadata
    # Both names have the file; a commit moves only one.
    registered = registered.set_properties(comment="d")
    assert [catalog.load_view(f"{namespace}.{name}").comment for name in "vw"] == ["c", "d"]
    assert sorted(catalog.list_views(namespace)) == [(namespace, "v"), (namespace, "w")]
    if isinstance(catalog, IcebergCatalog):
        with pytest.raises(NoSuchNamespaceError):
            catalog.register_view("absent.v", view.metadata_location)
    if "rest" not in catalog.name:
        with pytest.raises(NotFoundError):
            catalog.register_view(f"{namespace}.x", f"{tmp_path.as_uri()}/absent.metadata.json")
        assert not catalog.view_exists(f"{namespace}.x")


def test_writers_at_the_same_time(catalog: Catalog, namespace: str) -> None:
    view = catalog.create_view(
        f"{namespace}.v", SCHEMA, SQL, properties={"commit.retry.num-retries": "20", "commit.retry.min-wait-ms": "1"}
    )
    keys = [f"k{n}" for n in range(6)]
    with ThreadPoolExecutor(len(keys)) as pool:
        list(pool.map(lambda key: view.set_properties({key: "x"}), keys))
    assert set(keys) <= view.refresh().properties.keys()


def test_changes_that_an_outdated_view_already_has(catalog: Catalog, namespace: str) -> None:
    """The catalog has another version, so that none of them changes nothing."""
    name = f"{namespace}.v"
    old = catalog.create_view(name, SCHEMA, SQL, properties={"comment": "a"})
    old.replace({"spark": "SELECT 2"}, OTHER).set_properties(comment="b", note="n")
    assert old.set_properties(comment="a").properties == {"comment": "a", "note": "n"}
    assert old.remove_properties("note").properties == {"comment": "a"}
    assert queries(old.replace(SQL, SCHEMA)) == SQL
    current = catalog.load_view(name)
    assert (queries(current), current.schema().fields, current.properties) == (SQL, SCHEMA.fields, {"comment": "a"})
    assert old.set_properties(comment="a").metadata_location == current.metadata_location


@pytest.mark.parametrize(
    ("properties", "problem"),
    [
        ({"a": None}, "properties['a'] is None: keys and values are strings"),
        ({5: "x"}, "properties[5] is 'x': keys and values are strings"),
        ([1], "properties is [1]: expected a mapping of strings to strings"),
    ],
)
def test_properties_that_are_no_text(folders: FileSystemCatalog, properties: Any, problem: str) -> None:
    view = folders.create_view("db.v", SCHEMA, SQL)
    for change in (
        lambda: folders.create_view("db.w", SCHEMA, SQL, properties=properties),
        lambda: folders.create_or_replace_view("db.v", SCHEMA, SQL, properties=properties),
        lambda: view.replace(SQL, properties=properties),
        lambda: view.set_properties(properties),
    ):
        with pytest.raises(ValidationError, match=rf"^db\.[vw]: {re.escape(problem)}"):
            change()
    for keys in ((5,), (["a"],)):
        with pytest.raises(ValidationError, match=re.escape(f"db.v: keys is {keys!r}: expected a list of strings")):
            view.remove_properties(*keys)  # type: ignore[arg-type]
    assert folders.list_views("db") == [("db", "v")]
    assert folders.load_view("db.v").metadata == view.metadata
    assert view.set_properties({"a": 5}, b=True).properties == {"a": "5", "b": "true"}  # type: ignore[dict-item, arg-type]


# -- warehouses in folders --------------------------------------------------------------------------------------------


@pytest.fixture
def folders(tmp_path: Path) -> FileSystemCatalog:
    return FileSystemCatalog("local", f"file://{tmp_path}/w")


def create_table(catalog: FileSystemCatalog, name: str) -> None:
    folder = f"{catalog.warehouse}/{name.replace('.', '/')}"
    metadata = new_metadata(folder, SCHEMA, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, {})
    FileSystemOperations(LocalFiles(), folder).commit(None, metadata)


def test_files_of_a_view(folders: FileSystemCatalog, tmp_path: Path) -> None:
    folders.create_view("db.v", SCHEMA, SQL).set_properties(a="b").set_properties(
        {"write.metadata.compression-codec": "none"}
    ).set_properties(a="c")
    metadata = tmp_path / "w" / "db" / "v" / "metadata"
    assert sorted(file.name for file in metadata.iterdir()) == [
        "v1.metadata.json",
        "v2.gz.metadata.json",
        "v3.gz.metadata.json",
        "v4.metadata.json",
        "view.text",
    ]
    with pytest.raises(ValidationError, match="compression-codec is 'lzma'"):
        folders.load_view("db.v").set_properties({"write.metadata.compression-codec": "lzma"})
    with pytest.raises(UnsupportedError, match=r"can't have the property write\.metadata\.path"):
        folders.load_view("db.v").set_properties({"write.metadata.path": "/elsewhere"})
    with pytest.raises(UnsupportedError, match=r"is in file:.*/w/db/u, not /elsewhere"):
        folders.create_view("db.u", SCHEMA, SQL, "/elsewhere")
    folders.drop_view("db.v")
    assert list(metadata.iterdir()) == []


def test_tables_and_views_share_names(folders: FileSystemCatalog, tmp_path: Path) -> None:
    create_table(folders, "db.t")
    folders.create_view("db.v", SCHEMA, SQL)
    with pytest.raises(TableAlreadyExistsError, match="there is a table already"):
        folders.create_or_replace_view("db.t", SCHEMA, SQL)
    with pytest.raises(TableAlreadyExistsError):
        create_table(folders, "db.v")
    with pytest.raises(NoSuchViewError, match="it is a table"):
        folders.load_view("db.t")
    with pytest.raises(TableAlreadyExistsError):
        folders.rename_view("db.v", "db.t")
    # A creation that lost to a table's leaves its marker.
    (tmp_path / "w" / "db" / "t" / "metadata" / "view.text").write_text("x")
    assert folders.list_views("db") == [("db", "v")]


def test_a_lost_race(folders: FileSystemCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a table and a view are created at the same time, only one succeeds. So does only one of two commits on a
    base."""
    monkeypatch.setattr(FileSystemViewOperations, "_refuse_stale", lambda *_: None)
    create_table(folders, "db.t")
    with pytest.raises(TableAlreadyExistsError):
        folders.create_view("db.t", SCHEMA, SQL)
    view = folders.create_view("db.v", SCHEMA, SQL)
    with pytest.raises(ViewAlreadyExistsError):
        folders.create_view("db.v", SCHEMA, SQL)
    view.set_properties(a="b")
    monkeypatch.setattr("sparkmeta.spec.table_properties.Retries.wait", lambda *_: 0.0)
    assert view.set_properties(c="d").properties == {"a": "b", "c": "d"}
    limited = folders.create_view("db.w", SCHEMA, SQL, properties={"commit.retry.num-retries": "0"})
    limited.set_properties(a="b")
    with pytest.raises(CommitFailedError, match=r"v2\.gz\.metadata\.json was not committed"):
        limited.set_properties(c="d")


def test_a_commit_while_a_view_is_renamed(folders: FileSystemCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    view = folders.create_view("db.v", SCHEMA, SQL)
    commit = FileSystemViewOperations.commit

    def interrupted(operations: FileSystemViewOperations, base: Any, new: Any) -> Any:
        commit(
            view._operations,
            LoadedView(view.metadata_location, view.metadata),
            replace(view.metadata, properties={"a": "b"}),
        )  # type: ignore[arg-type]
        return commit(operations, base, new)

    monkeypatch.setattr(FileSystemViewOperations, "commit", interrupted)
    with pytest.raises(CommitFailedError, match="is no longer the current version"):
        folders.rename_view("db.v", "db.w")
    assert folders.load_view("db.v").properties == {"a": "b"}
    assert folders.load_view("db.w").metadata.versions == view.metadata.versions


def test_a_commit_while_a_view_is_dropped(folders: FileSystemCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    view = folders.create_view("db.v", SCHEMA, SQL).set_properties(a="b")
    delete_many, late = LocalFiles.delete_many, view.metadata_location.replace("/v2.", "/v3.")

    def interrupted(files: LocalFiles, locations: Any) -> Any:
        if view.metadata_location in locations:
            # The base of the other commit was current when it checked.
            files.publish(late, Path(view.metadata_location.removeprefix("file://")).read_bytes())
        return delete_many(files, locations)

    with monkeypatch.context() as patched:
        patched.setattr(LocalFiles, "delete_many", interrupted)
        with pytest.raises(CommitFailedError, match=r"v3\.gz\.metadata\.json .* drop it again"):
            folders.drop_view("db.v")
    assert folders.list_views("db") == [("db", "v")]
    assert folders.load_view("db.v").metadata == view.metadata
    folders.drop_view("db.v")
    assert (folders.list_views("db"), folders.view_exists("db.v")) == ([], False)
    folders.create_view("db.v", SCHEMA, SQL)


class Interrupted(LocalFiles):
    """Files whose publication raises an error after it has succeeded, or before."""

    def __init__(self, published: bool) -> None:
        object.__setattr__(self, "published", published)

    def publish(self, location: str, data: bytes) -> None:
        if self.published:  # type: ignore[attr-defined]
            super().publish(location, data)
        raise TimeoutError("no answer")


def test_a_lost_answer(tmp_path: Path) -> None:
    for published in (True, False):
        views = FileSystemViews(f"file://{tmp_path}/{published}", Interrupted(published))
        folder = f"file://{tmp_path}/{published}/v"
        metadata = FileSystemCatalog("local", f"file://{tmp_path}/x{published}").create_view("v", SCHEMA, SQL).metadata
        moved = replace(metadata, location=folder)
        if published:
            assert views.operations(("v",)).commit(None, moved).metadata == moved
        else:
            with pytest.raises(CommitFailedError, match="was not committed: no answer"):
                views.operations(("v",)).commit(None, moved)


# -- servers and other catalogs ---------------------------------------------------------------------------------------


def test_lost_answers_of_a_server(rest_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from requests import ConnectionError as Dropped

    client = rest_catalog(rest_uri)
    catalog = IcebergCatalog(client)
    namespace = f"ns_{uuid.uuid4().hex[:8]}"
    client.create_namespace(namespace)
    request = client._session.request
    arrives = True

    def losing(method: str, url: str, **arguments: Any) -> Any:
        answer = request(method, url, **arguments) if arrives or method != "POST" else None
        if method == "POST":
            raise Dropped("connection reset")
        return answer

    monkeypatch.setattr(client._session, "request", losing)
    wait = {"commit.status-check.min-wait-ms": "1", "commit.status-check.num-retries": "1"}
    view = catalog.create_view(f"{namespace}.v", SCHEMA, SQL, properties=wait)
    assert catalog.register_view(f"{namespace}.r", view.metadata_location).uuid() == view.uuid()
    view = view.add_dialect("trino", "SELECT 1").set_properties(a="b", b="c").remove_properties("a")
    assert (sorted(queries(view)), view.properties) == (["spark", "trino"], {**wait, "b": "c"})
    arrives = False
    with pytest.raises(CommitStateUnknownError, match=rf"{namespace}\.v may have been committed.*connection reset"):
        view.set_properties(a="c")
    with pytest.raises(CommitStateUnknownError):
        view.remove_properties("b")
    with pytest.raises(CommitStateUnknownError):
        catalog.create_view(f"{namespace}.w", SCHEMA, SQL, properties=wait)


def test_changes_of_an_old_version(rest_uri: str) -> None:
    """The server applies changes to its own version, where ids of the base could mean another schema or version."""
    catalog = IcebergCatalog(rest_catalog(rest_uri))
    namespace = f"ns_{uuid.uuid4().hex[:8]}"
    catalog.pyiceberg.create_namespace(namespace)
    view = catalog.create_view(f"{namespace}.v", SCHEMA, SQL)
    view.replace({"spark": "SELECT id FROM users"}, OTHER)
    third = Schema(NestedField(1, "name", StringType()))
    view = view.replace({"spark": "SELECT name FROM users"}, third)
    assert (queries(view), view.schema().fields) == ({"spark": "SELECT name FROM users"}, third.fields)
    assert [entry.version_id for entry in view.history()] == [1, 2, 3]


def test_errors_of_a_server(rest_uri: str) -> None:
    client = rest_catalog(rest_uri)
    catalog = IcebergCatalog(client)
    with pytest.raises(ValidationError, match=r"^new view: a view needs a query"):
        catalog.create_view("absent.v", SCHEMA, {})
    with pytest.raises(NoSuchNamespaceError):
        catalog.list_views("absent")
    with pytest.raises(NoSuchNamespaceError, match="there is no namespace absent"):
        catalog.create_view("absent.v", SCHEMA, SQL)
    client._supported_endpoints.clear()
    with pytest.raises(
        UnsupportedError, match=r"does not offer GET .*/views: if it does, set view-endpoints-supported"
    ):
        catalog.list_views("absent")
    client.properties["view-endpoints-supported"] = "true"
    with pytest.raises(NoSuchViewError):
        catalog.load_view("absent.v")
    client.uri = "http://127.0.0.1:9"
    with pytest.raises(CatalogError, match=r"catalog rest: absent\.v: .*/v1/.*views/v"):
        catalog.load_view("absent.v")


def test_pyiceberg_and_iceberg_read_our_views(rest_uri: str) -> None:
    """The server is Iceberg's own: what it answers it has read from the metadata file that it has written."""
    client = rest_catalog(rest_uri)
    namespace = f"ns_{uuid.uuid4().hex[:8]}"
    client.create_namespace(namespace)
    IcebergCatalog(client).create_view(f"{namespace}.v", SCHEMA, SQL).add_dialect("trino", "SELECT 1")
    read = client.load_view(f"{namespace}.v")
    assert [representation.root.dialect for representation in read.current_version().representations] == [
        "spark",
        "trino",
    ]
    assert read.schema().fields == SCHEMA.fields


def test_catalogs_that_hold_no_views() -> None:
    from pyiceberg.catalog.noop import NoopCatalog

    catalog = IcebergCatalog(NoopCatalog("noop"))
    for refused in (catalog.load_view, catalog.list_views, catalog.drop_view):
        with pytest.raises(UnsupportedError, match="catalog noop: NoopCatalog can't hold views: SQL and REST catalogs"):
            refused("db.v")
    with pytest.raises(UnsupportedError, match="NoopCatalog can't hold views"):
        catalog.register_view("db.v", "/absent.metadata.json")
