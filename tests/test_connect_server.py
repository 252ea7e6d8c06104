"""What a separate Spark Connect server (`make connect`) has of its client."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import sparkmeta as sm
from tests.conftest import SEPARATE
from tests.connect_server import ROOT
from tests.small_table import IDENTIFIER, LOADS, write_small_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.connect


@pytest.fixture(autouse=True)
def separate(pytestconfig: pytest.Config) -> None:
    if pytestconfig.option.spark_connect_url != SEPARATE:
        pytest.skip("no separate Connect server: --spark_connect_url separate")


def test_workers_have_the_package_and_no_files_of_the_client(spark: SparkSession, hidden_folder: Path) -> None:
    (hidden_folder / "file").write_text("of the client")
    theirs = [str(hidden_folder / "file"), str(ROOT / "sparkmeta" / "__init__.py"), str(ROOT / "tests" / "conftest.py")]

    def look(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        from pathlib import Path

        import pyarrow as pa

        import sparkmeta

        for batch in batches:
            seen = [str(path) for path in batch["path"].to_pylist() if Path(path).exists()]
            seen += [sparkmeta.__file__, *(name for name in os.environ if name.startswith("PYTEST"))]
            yield pa.RecordBatch.from_pydict({"seen": seen})

    rows = spark.createDataFrame([(path,) for path in theirs], "path string").coalesce(1)
    seen = {row.seen for row in rows.mapInArrow(look, "seen string").collect()}
    assert len(seen) == 1, seen
    assert seen.pop().endswith("connect-server/lib/sparkmeta/__init__.py")


def test_a_local_table_of_the_client_is_refused(spark: SparkSession, hidden_folder: Path) -> None:
    """Its files would be the server's. One line says so."""
    location = write_small_table(hidden_folder / "warehouse").metadata_location
    uri = f"sqlite:///{hidden_folder}/warehouse/catalog.db"
    catalog = sm.load_catalog("shop", type="sql", uri=uri, warehouse=(hidden_folder / "warehouse").as_uri())
    with pytest.raises(sm.NotFoundError) as caught:
        catalog.load_table(IDENTIFIER, spark)
    assert location in str(caught.value)
    assert "Spark Connect" in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(sm.NoSuchTableError, match="Spark Connect"):
        sm.load_table(location.rpartition("/metadata/")[0], spark)


def test_commits_to_a_folder_that_both_see(spark: SparkSession, tmp_path: Path) -> None:
    write_small_table(tmp_path)
    catalog = sm.load_catalog("shop", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    table = catalog.load_table(IDENTIFIER, spark)
    table.maintenance.upgrade(4).commit()
    tree = catalog.load_table(IDENTIFIER, spark)
    assert tree.format_version == 4
    assert tree.scan().plan_files().count() == 2 * LOADS


def test_commits_to_a_folder_of_the_server_are_refused(spark: SparkSession, hidden_folder: Path) -> None:
    """The server has a copy of the client's folder, as an image of both has."""
    warehouse = hidden_folder / "copied"
    write_small_table(warehouse)
    copy_to_server(spark, warehouse)
    uri = f"sqlite:///{warehouse}/catalog.db"
    catalog = sm.load_catalog("shop", type="sql", uri=uri, warehouse=warehouse.as_uri())
    table = catalog.load_table(IDENTIFIER, spark)
    assert table.scan().plan_files().count() == 2 * LOADS
    before = sorted(warehouse.rglob("*"))
    for plan in (table.maintenance.rewrite_manifests(), table.maintenance.upgrade(4)):
        with pytest.raises(sm.UnsupportedError, match="client and server don't share are read-only") as caught:
            plan.commit()
        assert "\n" not in str(caught.value)
    assert sorted(warehouse.rglob("*")) == before


def copy_to_server(spark: SparkSession, folder: Path) -> None:
    """Write the files of a folder that the server sees as an empty one there, by a task."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pathlib import Path

        for batch in batches:
            for path, content in zip(batch["path"].to_pylist(), batch["content"].to_pylist(), strict=True):
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                Path(path).write_bytes(content)
            yield batch.select(["path"])

    files = [(str(path), path.read_bytes()) for path in folder.rglob("*") if path.is_file()]
    rows = spark.createDataFrame(files, "path string, content binary")
    assert len(rows.mapInArrow(write, "path string").collect()) == len(files)
