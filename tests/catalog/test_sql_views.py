"""Views of SQL catalogs: their rows, names that they share with tables, and Iceberg's JDBC catalog as a peer."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from sqlalchemy import text

from sparkmeta import load_catalog
from sparkmeta.catalog.iceberg import IcebergCatalog
from sparkmeta.errors import (
    CommitFailedError,
    CommitStateUnknownError,
    NamespaceNotEmptyError,
    NoSuchTableError,
    NoSuchViewError,
    TableAlreadyExistsError,
    UnsupportedError,
    ViewAlreadyExistsError,
)
from sparkmeta.operations.sql import SqlViewOperations
from tests.conftest import JARS, configured, iceberg_catalog
from tests.peers.java import Java
from tests.rows.comparison import row_texts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from sparkmeta.operations.view_operations import LoadedView

SCHEMA = Schema(NestedField(1, "id", LongType()))
SQL = {"spark": "SELECT id FROM t"}


@pytest.fixture(params=["sqlite", "postgres"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> IcebergCatalog:
    uri = request.getfixturevalue("postgres") if request.param == "postgres" else f"sqlite:///{tmp_path}/catalog.db"
    return opened(tmp_path, uri)


def opened(folder: Path, uri: str, **properties: str) -> IcebergCatalog:
    catalog = load_catalog("shop", type="sql", uri=uri, warehouse=f"{folder.as_uri()}/w", **properties)
    assert isinstance(catalog, IcebergCatalog)
    return catalog


@pytest.fixture
def namespace(catalog: IcebergCatalog) -> str:
    name = f"ns_{uuid.uuid4().hex[:8]}"
    catalog.create_namespace(name)
    return name


def rows(catalog: IcebergCatalog, namespace: str) -> list[dict[str, Any]]:
    engine: Any = catalog.pyiceberg
    with engine.engine.connect() as connection:
        query = text("SELECT * FROM iceberg_tables WHERE table_namespace = :name ORDER BY table_name")
        return [dict(row) for row in connection.execute(query, {"name": namespace}).mappings()]


def test_the_row(catalog: IcebergCatalog, namespace: str) -> None:
    view = catalog.create_view(f"{namespace}.v", SCHEMA, SQL)
    new = view.set_properties(a="b")
    assert rows(catalog, namespace) == [
        {
            "catalog_name": "shop",
            "table_namespace": namespace,
            "table_name": "v",
            "metadata_location": new.metadata_location,
            "previous_metadata_location": view.metadata_location,
            "iceberg_type": "VIEW",
        }
    ]
    names = [Path(location).name for location in (view.metadata_location, new.metadata_location)]
    assert [name.partition("-")[0] for name in names] == ["00000", "00001"]
    assert all(name.endswith(".gz.metadata.json") for name in names)
    assert Path(new.metadata_location.removeprefix("file://")).parent == Path(new.location()[7:]) / "metadata"
    moved = new.set_properties(
        {"write.metadata.path": f"{new.location()}/other", "write.metadata.compression-codec": "none"}
    )
    assert moved.metadata_location.startswith(f"{new.location()}/other/00002-")
    assert json.loads(Path(moved.metadata_location[7:]).read_text())["view-uuid"] == str(view.uuid())
    catalog.drop_view(f"{namespace}.v")
    assert rows(catalog, namespace) == []
    assert [Path(location[7:]).exists() for location in (new.metadata_location, moved.metadata_location)] == [
        True,
        False,
    ]
    stays = catalog.create_view(f"{namespace}.v", SCHEMA, SQL, properties={"gc.enabled": "false"})
    catalog.drop_view(f"{namespace}.v")
    assert catalog.register_view(f"{namespace}.v", stays.metadata_location).metadata == stays.metadata


def test_a_file_that_two_views_have(catalog: IcebergCatalog, namespace: str) -> None:
    view = catalog.create_view(f"{namespace}.v", SCHEMA, SQL)
    catalog.register_view(f"{namespace}.w", view.metadata_location)
    catalog.drop_view(f"{namespace}.v")
    assert catalog.load_view(f"{namespace}.w").metadata == view.metadata
    catalog.drop_view(f"{namespace}.w")
    assert not Path(view.metadata_location[7:]).exists()


def test_tables_and_views_share_names(catalog: IcebergCatalog, namespace: str) -> None:
    catalog.create_table(f"{namespace}.t", SCHEMA)
    view = catalog.create_view(f"{namespace}.v", SCHEMA, SQL)
    assert (catalog.list_tables(namespace), catalog.list_views(namespace)) == ([(namespace, "t")], [(namespace, "v")])
    assert (catalog.table_exists(f"{namespace}.v"), catalog.view_exists(f"{namespace}.t")) == (False, False)
    before = rows(catalog, namespace)
    for taken in (
        lambda: catalog.create_view(f"{namespace}.t", SCHEMA, SQL),
        lambda: catalog.create_or_replace_view(f"{namespace}.t", SCHEMA, SQL),
        lambda: catalog.register_view(f"{namespace}.t", view.metadata_location),
        lambda: catalog.rename_view(f"{namespace}.v", f"{namespace}.t"),
    ):
        with pytest.raises(TableAlreadyExistsError, match=rf"{namespace}\.t: there is a table of this name already"):
            taken()
    with pytest.raises(TableAlreadyExistsError, match=rf"{namespace}\.v: there is a view of this name already"):
        catalog.create_table(f"{namespace}.v", SCHEMA)
    catalog.create_view(f"{namespace}.w", SCHEMA, SQL)
    with pytest.raises(ViewAlreadyExistsError, match=rf"{namespace}\.w: there is a view of this name already"):
        catalog.rename_view(f"{namespace}.v", f"{namespace}.w")
    with pytest.raises(TableAlreadyExistsError):
        catalog.rename_table(f"{namespace}.t", f"{namespace}.v")
    catalog.drop_view(f"{namespace}.w")
    for missing in (catalog.load_view, catalog.drop_view):
        with pytest.raises(NoSuchViewError, match=rf"{namespace}\.t: there is no such view in the catalog shop"):
            missing(f"{namespace}.t")
    for no_table in (catalog.load_table, catalog.drop_table):
        with pytest.raises(NoSuchTableError):
            no_table(f"{namespace}.v")
    assert rows(catalog, namespace) == before
    catalog.drop_table(f"{namespace}.t")
    with pytest.raises(NamespaceNotEmptyError, match="it has views"):
        catalog.drop_namespace(namespace)
    catalog.drop_view(f"{namespace}.v")
    catalog.drop_namespace(namespace)


def test_files_of_commits_that_failed(catalog: IcebergCatalog, namespace: str) -> None:
    """An outdated commit and a taken name leave no file; a registration deletes nothing."""
    view = catalog.create_view(f"{namespace}.v", SCHEMA, SQL, properties={"commit.retry.num-retries": "0"})
    view.set_properties(a="b")
    folder = Path(view.location()[7:]) / "metadata"
    before = sorted(folder.iterdir())
    with pytest.raises(CommitFailedError, match="is no longer the current version"):
        view.set_properties(c="d")
    with pytest.raises(ViewAlreadyExistsError):
        catalog.create_view(f"{namespace}.v", SCHEMA, SQL)
    with pytest.raises(ViewAlreadyExistsError):
        catalog.register_view(f"{namespace}.v", view.metadata_location)
    assert sorted(folder.iterdir()) == before


def test_a_view_whose_file_is_lost(catalog: IcebergCatalog, namespace: str) -> None:
    view = catalog.create_view(f"{namespace}.v", SCHEMA, SQL)
    Path(view.metadata_location[7:]).unlink()
    catalog.drop_view(f"{namespace}.v")
    assert catalog.list_views(namespace) == []


def test_a_commit_while_a_view_is_dropped(
    catalog: IcebergCatalog, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = catalog.create_view(f"{namespace}.v", SCHEMA, SQL)
    loaded, later = SqlViewOperations._loaded, []

    def interrupted(operations: SqlViewOperations, location: str) -> LoadedView:
        monkeypatch.undo()
        later.append(view.set_properties(a="b"))
        return loaded(operations, location)

    monkeypatch.setattr(SqlViewOperations, "_loaded", interrupted)
    with pytest.raises(CommitFailedError, match="is no longer the current version"):
        catalog.drop_view(f"{namespace}.v")
    assert catalog.load_view(f"{namespace}.v").metadata == later[0].metadata
    assert Path(view.metadata_location[7:]).exists()


def test_the_layout_without_views(tmp_path: Path) -> None:
    """Catalogs that Java created without jdbc.schema-version=V1 have no column iceberg_type."""
    uri = f"sqlite:///{tmp_path}/catalog.db"
    created: Any = opened(tmp_path, uri).pyiceberg
    with created.engine.begin() as connection:
        connection.execute(text("ALTER TABLE iceberg_tables DROP COLUMN iceberg_type"))
    catalog = opened(tmp_path, uri)
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", SCHEMA)
    for refused in (catalog.load_view, catalog.list_views, catalog.drop_view, catalog.view_exists):
        with pytest.raises(UnsupportedError, match="catalog shop: its table iceberg_tables has no column iceberg_type"):
            refused("db.v")
    with pytest.raises(UnsupportedError, match="the catalog property schema_version=v1 adds it"):
        catalog.create_view("db.v", SCHEMA, SQL)
    assert not (tmp_path / "w" / "db" / "v").exists()
    newer = opened(tmp_path, uri, schema_version="v1")
    newer.create_view("db.v", SCHEMA, SQL)
    # Rows without a type are tables.
    assert (newer.list_tables("db"), newer.load_table("db.t").metadata) == ([("db", "t")], table.metadata)
    assert catalog.list_tables("db") == [("db", "t"), ("db", "v")]
    assert opened(tmp_path, uri).list_views("db") == [("db", "v")]


QUICK = {"commit.status-check.num-retries": "1", "commit.status-check.min-wait-ms": "1"}


def test_lost_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The outcome of a commit that got no response is looked up, also after others followed."""
    catalog = opened(tmp_path, f"sqlite:///{tmp_path}/catalog.db")
    catalog.create_namespace("db")
    other = opened(tmp_path, f"sqlite:///{tmp_path}/catalog.db")
    dialect: Any = catalog.pyiceberg.engine.dialect  # type: ignore[attr-defined]
    real = dialect.do_commit

    def losing(act: Any) -> None:
        def do_commit(connection: Any) -> None:
            monkeypatch.undo()
            real(connection)
            act()
            raise ConnectionError("the server is gone")

        monkeypatch.setattr(dialect, "do_commit", do_commit)

    losing(lambda: None)
    view = catalog.create_view("db.v", SCHEMA, SQL, properties=QUICK)
    losing(lambda: None)
    view = view.set_properties(a="b")
    losing(lambda: other.load_view("db.v").set_properties(later="1"))
    view = view.set_properties(a="c")
    assert catalog.load_view("db.v").properties == {**QUICK, "a": "c", "later": "1"}

    def two_commits() -> None:
        other.load_view("db.v").set_properties(later="2").set_properties(later="3")

    losing(two_commits)
    with pytest.raises(CommitStateUnknownError, match="may have been committed"):
        catalog.load_view("db.v").set_properties(a="d")
    assert catalog.load_view("db.v").properties["a"] == "d"


# -- Iceberg's JDBC catalog -------------------------------------------------------------------------------------------


@pytest.fixture
def jdbc(spark: SparkSession, tmp_path: Path) -> Iterator[IcebergCatalog]:
    """A SQL catalog that Iceberg's JDBC catalog has created, which is Spark's catalog of the same name."""
    if not any(JARS.glob("sqlite-jdbc-*.jar")):
        pytest.skip("no driver of SQLite: run `make jars`")
    java = Java(spark)
    java.jvm.java.lang.Class.forName("org.sqlite.JDBC", True, java.session.sharedState().jarClassLoader())
    name = f"jdbc_{uuid.uuid4().hex[:8]}"
    prefix = f"spark.sql.catalog.{name}"
    values = iceberg_catalog(prefix, tmp_path / "w") | {
        f"{prefix}.type": "jdbc",
        f"{prefix}.uri": f"jdbc:sqlite:{tmp_path}/catalog.db",
        f"{prefix}.jdbc.schema-version": "V1",
    }
    with configured(spark, values):
        spark.sql(f"CREATE NAMESPACE {name}.db")
        catalog = load_catalog(name)
        assert isinstance(catalog, IcebergCatalog)
        yield catalog


def texts(*numbers: int) -> list[tuple[str | None, ...]]:
    return [(str(number),) for number in numbers]


@pytest.mark.java
@pytest.mark.classic
def test_views_of_iceberg(jdbc: IcebergCatalog, spark: SparkSession) -> None:
    name = jdbc.name
    spark.sql(f"CREATE TABLE {name}.db.t (id BIGINT, name STRING)")
    spark.sql(f"INSERT INTO {name}.db.t VALUES (1, 'a'), (2, NULL)")
    spark.sql(f"CREATE VIEW {name}.db.v (n COMMENT 'of t') COMMENT 'c' AS SELECT id + 1 FROM {name}.db.t")
    view = jdbc.load_view("db.v")
    assert (view.comment, view.schema().fields[0].doc) == ("c", "of t")
    assert row_texts(view.to_df(catalogs={name: jdbc})) == row_texts(spark.table(f"{name}.db.v")) == texts(2, 3)
    assert (jdbc.list_views("db"), jdbc.list_tables("db")) == ([("db", "v")], [("db", "t")])
    renamed = jdbc.rename_view("db.v", "db.w").set_properties(comment="d")
    assert row_texts(spark.table(f"{name}.db.w")) == texts(2, 3)
    spark.sql(f"ALTER VIEW {name}.db.w SET TBLPROPERTIES ('a' = 'b')")
    assert renamed.refresh().properties["a"] == "b"
    spark.sql(f"DROP VIEW {name}.db.w")
    with pytest.raises(NoSuchViewError):
        renamed.refresh()


@pytest.mark.java
@pytest.mark.classic
def test_iceberg_reads_our_views(jdbc: IcebergCatalog, spark: SparkSession) -> None:
    name = jdbc.name
    schema = Schema(NestedField(1, "n", LongType(), doc="of t"))
    jdbc.create_table("db.t", SCHEMA).append(spark.range(3))
    view = jdbc.create_view("db.v", schema, {"spark": "SELECT id + 1 FROM t"}, properties={"comment": "c"})
    view = view.replace({"spark": "SELECT id + 2 FROM t"})
    assert row_texts(spark.table(f"{name}.db.v")) == row_texts(view.to_df()) == texts(2, 3, 4)
    listed = [row.viewName for row in spark.sql(f"SHOW VIEWS IN {name}.db").collect() if not row.isTemporary]
    tables = [row.tableName for row in spark.sql(f"SHOW TABLES IN {name}.db").collect()]
    assert (listed, "v" in tables) == (["v"], False)
    spark.sql(f"CREATE OR REPLACE VIEW {name}.db.v (m) AS SELECT id FROM {name}.db.t")
    replaced = view.refresh()
    assert (replaced.uuid(), [field.name for field in replaced.schema().fields]) == (view.uuid(), ["m"])
    registered = jdbc.register_view("db.r", view.metadata_location)
    assert row_texts(spark.table(f"{name}.db.r")) == texts(2, 3, 4)
    for statement in (f"CREATE VIEW {name}.db.r AS SELECT 1", f"CREATE TABLE {name}.db.r (id INT)"):
        with pytest.raises(Exception, match="already exists"):
            spark.sql(statement)
    assert registered.refresh().metadata_location == view.metadata_location
    jdbc.drop_view("db.r")
    with pytest.raises(Exception, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.table(f"{name}.db.r")
