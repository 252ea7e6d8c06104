"""Iceberg 1.12.0 refuses to load our trees, so that no operation changes them (semantics 19.1)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

import sparkmeta as sm
from tests.frames import local_frame
from tests.peers.file_maker import local_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.java

SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "s", StringType()))
PARTITIONED = PartitionSpec(
    PartitionField(2, 1000, IdentityTransform(), "s"), PartitionField(1, 1001, BucketTransform(4), "b")
)
BARE = PartitionSpec()


def full(table: sm.Table) -> sm.Table:
    """A tree with a file in the root, and leaves. One leaf has a deletion vector."""
    for tag, count in (("one", 1), ("many", 600)):
        with table.transaction() as tx:
            tx.update_snapshot().append(files(table, tag, count))
    with table.refresh().transaction() as tx:
        gone = pa.table({"file_path": [f"{table.location()}/data/many-7.parquet"]})
        tx.update_snapshot().delete(local_frame(table.state.spark, gone))
    fresh = table.refresh()
    assert fresh.state.tree is not None
    assert len(fresh.state.tree.root.manifest_dvs) == 1
    return fresh


def files(table: sm.Table, tag: str, count: int) -> object:
    rows = {
        "file_path": [f"{table.location()}/data/{tag}-{i}.parquet" for i in range(count)],
        "file_format": ["PARQUET"] * count,
        "record_count": [10] * count,
        "file_size_in_bytes": [1000] * count,
        "partition": [{"s": "ab"[i % 2], "b": i % 4} for i in range(count)],
    }
    return local_frame(table.state.spark, pa.table(rows))


def as_it_is(table: sm.Table) -> sm.Table:
    return table


def by_java(table: sm.Table) -> sm.Table:
    return table.maintenance.upgrade(4).commit()


OPERATIONS = {
    "load": "SELECT * FROM {t}",
    "properties": "ALTER TABLE {t} SET TBLPROPERTIES ('a'='b')",
    "column": "ALTER TABLE {t} ADD COLUMN more INT",
    "append": "INSERT INTO {t} VALUES (1, 'a')",
    "delete": "DELETE FROM {t}",
    "expire": "CALL java.system.expire_snapshots(`table` => '{n}', older_than => TIMESTAMP '2999-01-01')",
    "rewrite": "CALL java.system.rewrite_manifests(`table` => '{n}')",
}
TABLES: dict[str, tuple[PartitionSpec, int, Callable[[sm.Table], sm.Table]]] = {
    "full": (PARTITIONED, 4, full),
    "full_unpartitioned": (BARE, 4, full),
    "empty": (PARTITIONED, 4, as_it_is),
    "empty_unpartitioned": (BARE, 4, as_it_is),
    "upgraded": (PARTITIONED, 3, by_java),
    "upgraded_unpartitioned": (BARE, 3, by_java),
}


@pytest.mark.parametrize("name", TABLES)
def test_java_changes_nothing(name: str, spark: SparkSession, java_warehouse: str) -> None:
    spec, version, finish = TABLES[name]
    catalog = sm.load_catalog("trees", type="hadoop", warehouse=java_warehouse)
    table = catalog.create_table(f"refused.{name}", SCHEMA, spec, format_version=version, spark=spark)
    finish(table)
    folder = Path(local_path(table.location()))
    before = contents(folder)
    succeeded = [what for what, text in OPERATIONS.items() if works(spark, text, name)]
    assert not succeeded
    assert contents(folder) == before


def works(spark: SparkSession, text: str, name: str) -> bool:
    try:
        spark.sql(text.format(t=f"java.refused.{name}", n=f"refused.{name}")).collect()
    except Exception:  # noqa: BLE001 - what Java says is its own
        return False
    return True


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
