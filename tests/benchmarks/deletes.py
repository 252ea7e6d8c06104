"""Compare the bytes that a delete of one file writes: Iceberg's Java library on version 3, and a metadata tree.

Both tables hold the same files with the same stats. All files that the commit adds to the table's folder count.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sparkmeta as sm
from tests.frames import local_frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Written:
    """What a commit wrote to a table.

    Attributes:
        manifests: Number of manifests or leaves of the table.
        files: Sizes in bytes of the files that the commit added, by name.
    """

    table: str
    data_files: int
    manifests: int
    files: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.files.values())

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "bytes": self.total}


def compare_deletes(spark: SparkSession, location: str, folder: Path, leaves: int = 100) -> list[Written]:
    """Delete the same file from a table of version 3 and from a tree of its files.

    Args:
        spark: Session of both commits.
        location: Location of the version 3 table's metadata JSON.
        folder: Folder of both tables, which is replaced. The version 3 table shares the manifests of `location`.
        leaves: Number of partitions that write the tree's leaves.
    """
    shutil.rmtree(folder, ignore_errors=True)
    peer = cloned(location, folder / "v3")
    source = sm.load_table(f"file://{folder}/v3", spark=spark)
    victim = source.inspect.files(columns=["file_path"]).limit(1).collect()[0].file_path
    counts = [source.inspect.files(columns=["file_path"]).count(), source.inspect.manifests().count()]
    by_java = Written("Iceberg Java, v3", *counts, added_files(peer, lambda: _delete_by_java(spark, peer, victim)))
    tree = _tree(spark, source, folder / "v4", leaves)
    gone = local_frame(spark, _paths(victim))
    ours = added_files(Path(tree.location().removeprefix("file:")), lambda: _delete(tree, gone))
    assert tree.state.tree is not None
    return [by_java, Written("sparkmeta, v4", counts[0], len(tree.state.tree.root.leaves), ours)]


def cloned(location: str, folder: Path) -> Path:
    """Create a file system table with the metadata of another table, and return its folder."""
    (folder / "metadata").mkdir(parents=True)
    metadata = json.loads(Path(location.removeprefix("file:")).read_text())
    (folder / "metadata" / "v1.metadata.json").write_text(json.dumps(metadata | {"location": f"file://{folder}"}))
    return folder


def _tree(spark: SparkSession, source: sm.Table, folder: Path, leaves: int) -> sm.Table:
    """Write the source's files as a tree of about `leaves` leaves."""
    catalog: Any = sm.load_catalog("bench", type="hadoop", warehouse=str(folder))
    files = source.inspect.files()
    sizes = {"write.tree.leaf-target-bytes": str(8 << 20)}
    table = catalog.create_table(
        "db.t", source.schema(), source.spec(), properties=sizes, format_version=4, spark=spark
    )
    parallelism = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", str(leaves))
    spark.conf.set("spark.sql.adaptive.coalescePartitions.enabled", "false")
    try:
        with (tx := table.transaction()):
            tx.update_snapshot().append(files)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", parallelism)
        spark.conf.set("spark.sql.adaptive.coalescePartitions.enabled", "true")
    return tx.commit()


def _paths(path: str) -> Any:
    import pyarrow as pa

    return pa.table({"file_path": [path]})


def _delete(table: sm.Table, files: Any) -> None:
    with table.transaction() as tx:
        tx.update_snapshot().delete(files)


def _delete_by_java(spark: SparkSession, folder: Path, path: str) -> None:
    jvm: Any = spark._jvm
    tables = jvm.org.apache.iceberg.hadoop.HadoopTables(jvm.org.apache.hadoop.conf.Configuration())
    # With a String, py4j would call an overload of `deleteFile` that deletes the file from storage.
    tables.load(f"file://{folder}").newDelete().deleteFile(jvm.java.lang.StringBuilder(path)).commit()


def added_files(folder: Path, commit: Callable[[], None]) -> dict[str, int]:
    """Return the sizes of the files that a commit adds below a folder, by name, without Hadoop's checksum files."""
    before = set(folder.rglob("*"))
    commit()
    new = [path for path in folder.rglob("*") if path not in before and path.is_file() and path.suffix != ".crc"]
    return {path.name: path.stat().st_size for path in new}
