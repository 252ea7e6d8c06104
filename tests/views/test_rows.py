"""Rows of views: their queries over our tables, whatever the session knows by the same names."""

from __future__ import annotations

import json
import uuid
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import DateType, DecimalType, IntegerType, LongType, NestedField, StringType

from sparkmeta import NoSuchTableError, UnsupportedError, ValidationError, load_catalog
from sparkmeta.catalog.filesystem import FileSystemCatalog
from sparkmeta.catalog.views import FileSystemViews
from sparkmeta.errors import from_spark
from sparkmeta.spec.view_metadata import ViewVersion, new_view
from sparkmeta.storage.files import LocalFiles
from sparkmeta.views.view import as_version
from tests.conftest import configured, iceberg_catalog
from tests.spec.view_metadata import draft_example, example

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from sparkmeta import Catalog, View

pytest.importorskip("sqlglot")

ID = NestedField(1, "id", LongType())
DAY = date(2026, 1, 31)


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Tables `shop.orders` and `eu.shop.{customers}` in folders."""
    folder = tmp_path_factory.mktemp("views")
    writer = SqlCatalog("writer", uri=f"sqlite:///{folder}/writer.db", warehouse=folder.as_uri())
    orders = {"id": [1, 2, 3], "customer": ["a", "b", "a"], "amount": pa.array([10, 20, 30], pa.int32())}
    tables = {
        ("shop", "orders"): pa.table(orders),
        ("eu", "shop", "{customers}"): pa.table({"customer": ["a", "b"], "country": ["NO", "SE"]}),
        ("default", "events"): pa.table({"event_ts": pa.array([1769817600000000] * 2, pa.timestamp("us"))}),
        ("anorwood", "base_tab"): pa.table({"c1": pa.array([1, 2], pa.int32()), "c2": ["one", "two"]}),
    }
    for names, rows in tables.items():
        namespace = ".".join(names[:-1])
        writer.create_namespace(namespace)
        table = writer.create_table(
            (namespace, names[-1]), rows.schema, location=f"file://{folder}/w/{'/'.join(names)}"
        )
        table.append(rows)
    return f"file://{folder}/w"


@pytest.fixture(scope="module")
def catalog(warehouse: str) -> Catalog:
    return load_catalog("prod", type="hadoop", warehouse=warehouse)


def create(catalog: Catalog, sql: str | Mapping[str, str], *fields: NestedField, name: str = "") -> View:
    """A new view, written by this process, since Spark Connect writes no local files."""
    assert isinstance(catalog, FileSystemCatalog)
    names = ("shop", name or f"v_{uuid.uuid4().hex[:8]}")
    version = as_version({"spark": sql} if isinstance(sql, str) else sql, ("shop",))
    views = FileSystemViews(catalog.warehouse, LocalFiles())
    metadata = new_view(views.location(names, None), Schema(*(fields or (ID,))), version, {})
    views.operations(names).commit(None, metadata)
    return catalog.load_view(names)


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.collect())


@pytest.mark.connect
def test_a_view_in_any_session(spark: SparkSession, catalog: Catalog) -> None:
    field = NestedField(1, "{n}", IntegerType(), doc="from 1")
    frame = create(catalog, "SELECT shop.orders.id FROM orders WHERE '{}' <> ''", field).to_df(spark=spark)
    assert [(field.name, field.metadata) for field in frame.schema] == [("{n}", {"comment": "from 1"})]
    assert rows(frame) == [(1,), (2,), (3,)]


def test_tables_and_views_of_the_catalog(spark: SparkSession, catalog: Catalog) -> None:
    fields = (NestedField(1, "Who", StringType(), doc="the customer"), NestedField(2, "total", LongType()))
    totals = "SELECT customer AS c, sum(shop.orders.amount) FROM orders WHERE customer <> '{' GROUP BY customer"
    create(catalog, totals, *fields, name="totals")
    text = """
        WITH totals AS (SELECT * FROM totals WHERE total > 0)
        SELECT country, t.who, eu.shop.`{customers}`.customer, -- of shop.orders
               (SELECT count(*) FROM prod.shop.orders)
        FROM totals t JOIN prod.eu.shop.`{customers}` ON who = `{customers}`.customer
        JOIN shop.orders o ON o.customer = who
    """
    columns = [NestedField(n, name, StringType()) for n, name in enumerate(("country", "who", "who again"))]
    view = create(catalog, text, *columns, NestedField(9, "n", IntegerType()))
    frame = view.to_df(spark=spark)
    assert frame.columns == ["country", "who", "who again", "n"]
    assert [field.dataType.simpleString() for field in frame.schema] == ["string", "string", "string", "int"]
    assert rows(frame) == [("NO", "a", "a", 3), ("NO", "a", "a", 3), ("SE", "b", "b", 3)]
    known = catalog.load_view("shop.totals").to_df(spark=spark).schema
    assert [(field.name, field.metadata.get("comment")) for field in known] == [
        ("Who", "the customer"),
        ("total", None),
    ]


def test_the_session_is_neither_asked_nor_changed(spark: SparkSession, catalog: Catalog) -> None:
    spark.range(100).createOrReplaceTempView("orders")
    views = spark.sql("SHOW VIEWS").collect()
    try:
        view = create(catalog, "SELECT id FROM orders WHERE '{0}{}' <> ''")
        frame = view.to_df(spark=spark)
        assert spark.sql("SHOW VIEWS").collect() == views
        assert rows(frame) == [(1,), (2,), (3,)]
    finally:
        spark.catalog.dropTempView("orders")
    assert rows(create(catalog, "VALUES (7L), (8L)").to_df()) == [(7,), (8,)]
    with pytest.raises(NoSuchTableError, match=r"names shop.absent, which is not a table or view of catalog prod"):
        create(catalog, "SELECT id FROM absent").to_df()
    with pytest.raises(ValidationError, match=r"Spark refuses its query: \[UNRESOLVED_COLUMN.*`nothing`"):
        create(catalog, "SELECT nothing FROM orders").to_df()


def test_views_in_a_circle(spark: SparkSession, catalog: Catalog) -> None:
    create(catalog, "SELECT id FROM second", name="first")
    create(catalog, "SELECT id FROM orders UNION SELECT id FROM first", name="second")
    circle = r"prod\.shop\.second -> prod\.shop\.first -> prod\.shop\.second"
    with pytest.raises(ValidationError, match=f"shop.second: its query refers to itself: {circle}"):
        create(catalog, "SELECT id FROM second").to_df(spark=spark)


def test_catalogs(spark: SparkSession, catalog: Catalog, warehouse: str) -> None:
    other = load_catalog("other", type="hadoop", warehouse=f"{warehouse}/eu")
    view = create(catalog, "SELECT id FROM prod.shop.orders JOIN shop.`{customers}` USING (customer)")
    with pytest.raises(NoSuchTableError, match=r"names shop\.\{customers\}, which is not a table"):
        view.to_df()
    queries = view.current_version().representations
    elsewhere = view.replace(ViewVersion(0, 0, 1, {}, queries, ("x",), "other"))
    with pytest.raises(ValidationError, match=r"its default catalog is 'other', .*: pass catalogs=\{'other': \.\.\.\}"):
        elsewhere.to_df(spark=spark)
    assert rows(elsewhere.to_df(catalogs={"other": other}, spark=spark)) == [(1,), (2,), (3,)]
    in_namespace = create(catalog, "SELECT cast(c1 AS BIGINT) FROM base_tab")
    with pytest.raises(NoSuchTableError, match=r"names shop\.base_tab, which"):
        in_namespace.to_df()
    queries = in_namespace.current_version().representations
    assert rows(in_namespace.replace(ViewVersion(0, 0, 1, {}, queries, ("anorwood",))).to_df()) == [(1,), (2,)]
    # Catalogs of one name have different tables.
    namesake = load_catalog("prod", type="hadoop", warehouse=f"{warehouse}/namesake")
    namesake.create_view("shop.orders", Schema(ID), {"spark": "SELECT -1L AS id"})
    both = create(
        catalog, "SELECT shop.orders.id FROM shop.orders UNION SELECT other.shop.orders.id FROM other.shop.orders"
    )
    assert rows(both.to_df(catalogs={"other": namesake}, spark=spark)) == [(-1,), (1,), (2,), (3,)]


def test_columns_by_the_schema(spark: SparkSession, catalog: Catalog) -> None:
    with pytest.raises(ValidationError, match="its query has 2 columns, and its schema 1"):
        create(catalog, "SELECT id, id FROM orders").to_df()
    for sql, kind in (("cast(1 AS DOUBLE)", "long"), ("cast(1 AS DECIMAL(9, 2))", "decimal"), ("'1'", "long")):
        field = NestedField(1, "x", DecimalType(8, 2) if kind == "decimal" else LongType())
        with pytest.raises(ValidationError, match=r"column x: the query has type .*, and the view's schema"):
            create(catalog, f"SELECT {sql}", field).to_df()
    wider = create(
        catalog,
        "SELECT cast(1 AS DECIMAL(9, 2)), NULL, 2 AS `2`, 3 AS `2`",
        NestedField(1, "a", DecimalType(11, 3)),
        NestedField(2, "b", DateType()),
        NestedField(3, "c", LongType()),
        NestedField(4, "d", IntegerType()),
    )
    assert [field.dataType.simpleString() for field in wider.to_df().schema] == [
        "decimal(11,3)",
        "date",
        "bigint",
        "int",
    ]
    narrower = create(catalog, "SELECT id * 1000000000L FROM orders WHERE id <> 0", NestedField(1, "n", IntegerType()))
    with pytest.raises(Exception, match="3000000000") as caught:
        narrower.to_df().collect()
    assert "column n is 3000000000, too large for int" in str(from_spark(caught.value))
    small = create(
        catalog, "SELECT id + null FROM orders UNION SELECT id FROM orders", NestedField(1, "n", IntegerType())
    )
    assert sorted(row.n or 0 for row in small.to_df().collect()) == [0, 1, 2, 3]


def test_another_dialect(spark: SparkSession, catalog: Catalog) -> None:
    view = create(catalog, {"trino": 'SELECT "id" FROM "orders" WHERE ARRAY[1, 5][2] = 5'})
    with pytest.raises(UnsupportedError, match=r"no query in the dialect 'spark', only in \['trino'\]: translate=True"):
        view.to_df()
    assert view.sql(translate=True) == "SELECT `id` FROM `orders` WHERE ARRAY(1, 5)[1] = 5"
    assert rows(view.to_df(translate=True, spark=spark)) == [(1,), (2,), (3,)]


def test_the_examples_of_the_spec(spark: SparkSession, catalog: Catalog, warehouse: str) -> None:
    folder = Path(warehouse.removeprefix("file://"))
    for name, document in (("default/event_agg", example(2)), ("anorwood/common_view", draft_example(1))):
        (folder / name / "metadata").mkdir(parents=True)
        (folder / name / "metadata" / "v1.metadata.json").write_text(json.dumps(document))
    frame = catalog.load_view("default.event_agg").to_df(spark=spark)
    assert frame.columns == ["event_count", "event_date"]
    assert frame.schema["event_count"].metadata == {"comment": "Count of events"}
    assert rows(frame) == [(2, DAY)]
    draft = catalog.load_view("anorwood.common_view")
    assert rows(draft.to_df(catalogs={"iceberg": catalog}, translate=True)) == [(1, "one"), (2, "two")]


@pytest.mark.java
def test_java_and_we_read_each_others_views(spark: SparkSession, rest_uri: str) -> None:
    catalog, ns = load_catalog("rest", type="rest", uri=rest_uri), f"ns_{uuid.uuid4().hex[:8]}"
    java = iceberg_catalog("spark.sql.catalog.views", Path("/unused")) | {
        "spark.sql.catalog.views.type": "rest",
        "spark.sql.catalog.views.uri": rest_uri,
    }
    del java["spark.sql.catalog.views.warehouse"]
    with configured(spark, java):
        spark.sql(f"CREATE NAMESPACE views.{ns}")
        spark.sql(f"CREATE TABLE views.{ns}.t (id BIGINT, name STRING) USING iceberg")
        spark.sql(f"INSERT INTO views.{ns}.t VALUES (1, 'a'), (2, 'b')")
        spark.sql(f"CREATE VIEW views.{ns}.theirs (n COMMENT 'names', k) AS SELECT name, id + 1 FROM views.{ns}.t")
        theirs = catalog.load_view(f"{ns}.theirs")
        assert theirs.schema().fields[0].doc == "names"
        frame = theirs.to_df(catalogs={"views": catalog}, spark=spark)
        assert (frame.columns, rows(frame)) == (["n", "k"], [("a", 2), ("b", 3)])
        ours = catalog.create_view(f"{ns}.ours", Schema(ID), {"trino": "SELECT 1", "spark": "SELECT id FROM t"})
        assert rows(spark.table(f"views.{ns}.ours")) == [(1,), (2,)]
        ours.replace({"trino": "SELECT 1", "spark": "SELECT k AS id FROM theirs"})
        assert rows(spark.table(f"views.{ns}.ours")) == rows(
            catalog.load_view(f"{ns}.ours").to_df(catalogs={"views": catalog})
        )
        assert catalog.list_views(ns) == [(ns, "ours"), (ns, "theirs")]
        spark.sql(f"ALTER VIEW views.{ns}.ours SET TBLPROPERTIES ('a' = 'b')")
        assert ours.refresh().properties["a"] == "b"
        spark.sql(f"DROP VIEW views.{ns}.theirs")
        assert not catalog.view_exists(f"{ns}.theirs")
