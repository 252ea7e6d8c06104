"""A commit writes all files but data files into the folder `write.metadata.path`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from sparkmeta import load_catalog
from sparkmeta.catalog.iceberg import IcebergCatalog
from tests.frames import local_frame

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    import sparkmeta as sm

SCHEMA = Schema(NestedField(1, "id", LongType()))
# New files become leaves, and masks Puffin files. A root with more than one file is flushed.
PROPERTIES = {"write.tree.direct-files": "1", "write.tree.inline-vector-bytes": "0", "write.tree.flush-data-files": "1"}


def files(spark: SparkSession, names: str) -> DataFrame:
    rows = [
        {"file_path": f"x:{name}", "file_format": "PARQUET", "record_count": 10, "file_size_in_bytes": 100}
        for name in names
    ]
    return local_frame(spark, pa.Table.from_pylist(rows))


def commit_everything(table: sm.Table, spark: SparkSession) -> sm.Table:
    """Write roots, leaves of an addition, a flush and a compaction, and masks in Puffin files."""
    for names in ("abcd", "e", "f", "g"):
        with table.transaction() as tx:
            tx.update_snapshot().append(files(spark, names))
        table = table.refresh()
    with table.transaction() as tx:
        tx.update_snapshot().delete(files(spark, "ac"))
    table = table.refresh()
    assert table.state.tree is not None
    assert table.state.tree.manifest_dvs.column("location").null_count == 0
    table = table.maintenance.compact_manifests().commit()
    assert [row[0] for row in table.scan().plan_files().select("file_path").sort("file_path").collect()] == [
        f"x:{name}" for name in "bdefg"
    ]
    return table


def written(folder: Path) -> set[str]:
    """Return the kinds of files below a folder, by the words in their names."""
    words = ("root", "leaf", "flush", "compact", "vectors", "metadata.json")
    names = [path.name for path in folder.rglob("*") if path.is_file()]
    return {word for name in names for word in words if word in name}


def test_a_table_of_a_catalog_has_its_metadata_elsewhere(tmp_path: Path, spark: SparkSession) -> None:
    catalog = load_catalog("sql", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/w")
    assert isinstance(catalog, IcebergCatalog)
    catalog.pyiceberg.create_namespace("ns")
    by_default = commit_everything(
        catalog.create_table("ns.plain", SCHEMA, properties=PROPERTIES, format_version=4, spark=spark), spark
    )
    everything = {"root", "leaf", "flush", "compact", "vectors", "metadata.json"}
    assert written(tmp_path / "w") == everything
    moved = PROPERTIES | {"write.metadata.path": f"file://{tmp_path}/elsewhere/"}
    before = sorted((tmp_path / "w").rglob("*"))
    table = commit_everything(
        catalog.create_table("ns.moved", SCHEMA, properties=moved, format_version=4, spark=spark), spark
    )
    assert sorted((tmp_path / "w").rglob("*")) == before
    assert written(tmp_path / "elsewhere") == everything
    assert "//" not in table.metadata_location.removeprefix("file://")
    assert by_default.metadata_location.startswith(by_default.location())
