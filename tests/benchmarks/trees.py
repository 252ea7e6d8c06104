"""Write the tables of the workload as V4 trees, which are kept in build/bench."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from tests.benchmarks.workload import BUILD, Workload, metadata_location

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from sparkmeta import Catalog, SnapshotUpdate, Table

NAME = "bench.tree"


def tree_location(spark: SparkSession, workload: Workload) -> str:
    """Return the location of the tree's metadata JSON; write the tree if it does not exist yet.

    A tree cannot hold position delete files: it has equality deletes of the same partitions instead.
    """
    import sparkmeta as sm

    folder = _folder(workload)
    done = folder / "location.txt"
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        source = sm.load_table(metadata_location(workload), spark=spark)
        catalog = _catalog(folder)
        table = catalog.create_table(NAME, source.schema(), partition_spec=source.spec(), format_version=4, spark=spark)
        _commit(table, lambda update: update.append(source.inspect.data_files()))
        if workload.deletes != "none":
            deletes = _tree_deletes(source.inspect.delete_files(), workload.deletes)
            _commit(table.refresh(), lambda update: update.row_delta(deletes=deletes))
        done.write_text(table.refresh().metadata_location)
    return done.read_text()


def iceberg_tree_location(spark: SparkSession, workload: Workload) -> str:
    """Return the location of the metadata JSON of the same tree, converted to the layout of the Iceberg project.

    The conversion is a later version of the table. The metadata JSON before it is still that of the tree.
    """
    tree_location(spark, workload)
    folder = _folder(workload)
    done = folder / "iceberg-location.txt"
    if not done.exists():
        table = _catalog(folder).load_table(NAME, spark=spark)
        table.maintenance.convert_tree("iceberg").commit()
        done.write_text(table.refresh().metadata_location)
    return done.read_text()


def _folder(workload: Workload) -> Path:
    return BUILD / "trees" / f"v{workload.format_version}-{workload.deletes}-{workload.files}"


def _catalog(folder: Path) -> Catalog:
    import sparkmeta as sm

    return sm.load_catalog("bench", type="hadoop", warehouse=folder.as_uri())


def _commit(table: Table, change: Callable[[SnapshotUpdate], object]) -> None:
    with table.transaction() as tx:
        change(tx.update_snapshot())


def _tree_deletes(deletes: DataFrame, kind: str) -> DataFrame:
    from pyspark.sql import functions as F

    if kind == "dv":
        return deletes
    return deletes.withColumns({"content": F.lit(2), "equality_ids": F.array(F.lit(1))})
