"""Each operation on tables of each catalog on each store: it works, or an error says what can (matrix.py)."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import functions as F

import sparkmeta as sm
from tests.catalog.matrix import PLACES, Place, rendered, shown
from tests.conftest import configured
from tests.gcs import GCS_BUCKET, gcs_properties
from tests.s3 import BUCKET, FILE_IOS
from tests.small_table import LOADS, ROWS, orders
from tests.storage.test_s3_tables import BY_COUNTRY, SCHEMA, commit, paths

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.s3 import S3Server

# Where Spark opens the store last: it would do so for the others, since it keeps what it has opened.
ORDERED = sorted(PLACES, key=lambda place: place.store == "S3" and "Spark" in place.client)


def _marked(place: Place) -> Any:
    """A place as a parameter; one of them is of the slice on Spark Connect."""
    return pytest.param(place, marks=[pytest.mark.connect] if place[:2] == ("REST", "S3") else [])


# An append of more files than this to a tree writes a leaf.
DIRECT_FILES = {"write.tree.direct-files": "1"}


def test_the_page_shows_the_matrix() -> None:
    assert shown() == rendered(), "`python -m tests.catalog.matrix` updates it"


@dataclass
class Shelf:
    """The tables `v2` and `tree` of a place of the matrix, and the expected outcome of operations on them.

    Attributes:
        sql: a catalog of pyiceberg's on the store.
        catalog: the place's catalog.
        preparing: a catalog of the same tables; one that can commit, if the place's can't.
    """

    place: Place
    spark: SparkSession
    namespace: str
    sql: SqlCatalog
    catalog: sm.Catalog
    preparing: sm.Catalog

    def add_v2(self) -> None:
        """Write the table `v2` by pyiceberg: three commits of two files."""
        table = self.sql.create_table((self.namespace, "v2"), SCHEMA, partition_spec=BY_COUNTRY)
        for load in range(LOADS):
            table.append(orders(load))
        if self.place.catalog in {"REST", "Glue"}:
            self.catalog.register_table((self.namespace, "v2"), table.metadata_location, self.spark)
        elif self.place.catalog != "SQL":
            output = table.io.new_output(f"{table.location()}/metadata/v1.metadata.json")
            with table.io.new_input(table.metadata_location).open() as read, output.create() as written:
                written.write(read.read())

    def add_tree(self, *appends: DataFrame) -> None:
        """Write the table `tree` with a leaf for each append, or see that the catalog refuses it."""
        layout = ((self.namespace, "tree"), SCHEMA, BY_COUNTRY)
        create: Callable[[], sm.Table] = lambda: self.preparing.create_table(  # noqa: E731
            *layout, properties=DIRECT_FILES, format_version=4, spark=self.spark
        )
        if ("tree", "open") in self.place.refused:
            self.attempt("tree", "open", create)
            return
        tree = create()
        for files in appends:
            tree = commit(tree, "append", files)

    def open(self, name: str) -> sm.Table:
        if self.place.catalog.startswith("none"):
            location = self.catalog.load_table((self.namespace, name), self.spark).location()
            return sm.load_table(location.replace("s3:", "s3a:"), self.spark)
        return self.catalog.load_table((self.namespace, name), self.spark)

    def attempt(self, kind: str, operation: str, run: Callable[[], Any]) -> Any:
        """Run an operation, and return its result; None if it is refused, as the matrix says."""
        refusal = self.place.refused.get((kind, operation))
        if refusal is None:
            return run()
        with pytest.raises(sm.UnsupportedError, match=refusal) as caught:
            run()
        assert "\n" not in str(caught.value)
        return None


# After all of the tests' snapshots.
FAR_MS = 4_000_000_000_000


@pytest.fixture(params=[_marked(place) for place in ORDERED], ids=lambda place: "-".join(place[:3]))
def shelf(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Any:
    place: Place = request.param
    namespace, warehouse, properties = f"ns_{uuid.uuid4().hex[:8]}", f"file://{tmp_path}", {}
    settings = {}
    if place.store == "S3":
        s3: S3Server = request.getfixturevalue("s3")
        if "Spark" in place.client:
            request.getfixturevalue("s3a")
        else:
            settings = {"fs.s3a.impl": "no.such.FileSystem"}
        warehouse, properties = f"s3://{BUCKET}/{uuid.uuid4()}", s3.properties
    elif place.store == "Google Cloud Storage":
        warehouse = f"gs://{GCS_BUCKET}/{uuid.uuid4()}"
        properties = gcs_properties(request.getfixturevalue("gcs")) | {"py-io-impl": FILE_IOS["fsspec"]}
    client = {"py-io-impl": FILE_IOS["pyarrow"]} if "pyarrow" in place.client else {}
    sql = SqlCatalog("sql", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=warehouse, **properties)
    sql.create_namespace(namespace)
    folders = {"type": "hadoop", "warehouse": warehouse}
    catalog: sm.Catalog
    if place.catalog == "SQL":
        catalog = sm.load_catalog("sql", type="sql", **sql.properties, **client)
    elif place.catalog == "REST":
        uri = request.getfixturevalue("rest_uri" if place.store == "local" else "rest_s3_uri")
        catalog = sm.load_catalog("rest", type="rest", uri=uri, **properties, **client)
    elif place.catalog == "Glue":
        catalog = sm.load_catalog("glue", type="glue", warehouse=warehouse, **s3.glue, **properties, **client)
    else:
        catalog = sm.load_catalog("lake", **folders, **properties, **client)
    if place.catalog in {"REST", "Glue"}:
        catalog.create_namespace(namespace)
    is_folder = place.catalog not in {"SQL", "REST", "Glue"}
    preparing = sm.load_catalog("lake", **folders, **properties) if is_folder else catalog
    with configured(spark, settings):
        yield Shelf(place, spark, namespace, sql, catalog, preparing)


def test_a_place(shelf: Shelf) -> None:
    """Table after table: open it, read it, commit to it."""
    shelf.add_v2()
    v2 = shelf.open("v2")
    files = v2.inspect.files()
    all_paths = sorted(row.file_path for row in files.select("file_path").collect())
    first, second, third = (files.where(files.file_path.isin(all_paths[i : i + 2])) for i in (0, 2, 4))
    shelf.add_tree(first, second)
    read(shelf, "v2", v2, all_paths)
    has_tree = ("tree", "open") not in shelf.place.refused
    if has_tree:
        read(shelf, "tree", shelf.open("tree"), all_paths[:4])
    # Both tables have the same files: rows can't be read after one of them has deleted some.
    change(shelf, "v2", v2, all_paths, third.withColumn("file_path", F.concat("file_path", F.lit(".new"))))
    if has_tree:
        change(shelf, "tree", shelf.open("tree"), all_paths[:4], third)


def read(shelf: Shelf, kind: str, table: sm.Table, files: list[str]) -> None:
    assert shelf.attempt(kind, "plan", lambda: paths(table)) == files, kind
    assert len(paths(table, "country = 'NO' and id >= 20")) == 1, kind
    assert shelf.attempt(kind, "inspect", lambda: table.inspect.manifests().count()) == len(files) / 2, kind
    assert shelf.attempt(kind, "rows", lambda: table.scan("id >= 0").to_df().count()) == len(files) * ROWS / 2, kind


def change(shelf: Shelf, kind: str, table: sm.Table, files: list[str], added: DataFrame) -> None:
    """Commit to a table with some files; what it then has is what was not refused."""
    if (appended := shelf.attempt(kind, "append", lambda: commit(table, "append", added))) is not None:
        table, files = appended, [*files, *(row.file_path for row in added.select("file_path").collect())]
        assert paths(table) == sorted(files), kind
    gone = shelf.spark.createDataFrame([(files[0],)], "file_path string")
    if (deleted := shelf.attempt(kind, "delete", lambda: commit(table, "delete", gone))) is not None:
        table, files = deleted, files[1:]
        assert paths(table) == sorted(files), kind
    plan = table.maintenance.rewrite_manifests if kind == "v2" else table.maintenance.compact_manifests
    if shelf.attempt(kind, "compact", lambda: plan().commit()) is not None:
        compacted = shelf.open(kind)
        assert compacted.inspect.manifests().count() == 1, kind
        assert paths(compacted) == sorted(files), kind
        table = compacted
    expiry = table.maintenance.expire_snapshots
    if shelf.attempt(kind, "expire", lambda: expiry(older_than=FAR_MS, clean_expired_metadata=True).commit()):
        expired = shelf.open(kind)
        assert len(expired.metadata.snapshots) == 1, kind
        assert paths(expired) == sorted(files), kind
