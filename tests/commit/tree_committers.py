"""Processes without Spark that commit to a tree, and the expected table at the end.

The driver makes small commits alone, and searches for the files to remove in a few leaves. In each step, worker w
appends some files, and removes its files of an earlier step and an entry of a leaf. All workers remove entries from
that leaf, so that their deletion vectors are merged in any order.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import LongType, NestedField

from sparkmeta import Table
from sparkmeta.commit.new_files import NewFiles
from sparkmeta.errors import CommitFailedError, CommitStateUnknownError, FileAccessError
from sparkmeta.manifests.v4.layout import DATA, tree_schema, write_manifest
from sparkmeta.manifests.v4.write import leaf_row
from sparkmeta.operations.filesystem import FileSystemOperations
from sparkmeta.session import SessionSource
from sparkmeta.snapshot.state import TableState
from sparkmeta.spec.new_table import new_metadata

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sparkmeta.operations.table_operations import TableOperations
    from sparkmeta.storage.files import Files

STATS = {1: "long"}
LEAVES = 2
# The number of a worker's steps for which its files live.
LIFE = 4
QUICK = {
    "commit.status-check.min-wait-ms": "1",
    "commit.retry.num-retries": "50",
    "commit.retry.min-wait-ms": "2",
    "commit.retry.max-wait-ms": "200",
    "write.tree.inline-vector-bytes": "1000000",
}


@dataclass(frozen=True)
class ArrowFrame:
    """The part of a small DataFrame's interface that a commit uses."""

    table: pa.Table

    @property
    def columns(self) -> list[str]:
        return list(self.table.column_names)

    def select(self, *names: str | list[str]) -> ArrowFrame:
        return ArrowFrame(self.table.select([*names[0]] if isinstance(names[0], list) else [*names]))

    def selectExpr(self, *_expressions: str) -> ArrowFrame:  # noqa: N802  Spark's name
        """Return the frame itself. The paths have schemes, so that a commit changes none."""
        return self

    def limit(self, count: int) -> ArrowFrame:
        return ArrowFrame(self.table.slice(0, count))

    def toArrow(self) -> pa.Table:  # noqa: N802  Spark's name
        return self.table


def files_of(worker: int, step: int) -> dict[str, int]:
    """Return the files that a step adds, with their record counts; none before the first step."""
    if step < 1:
        return {}
    return {
        f"file:///data/{worker}-{step}-{number}": 1 + (worker + step + number) % 7 for number in range(1 + step % 3)
    }


def leaf_name(worker: int, step: int) -> str:
    """Return the entry of a leaf that a step removes."""
    return f"file:///data/leaf-{worker}-{step}"


def removed_by(worker: int, step: int) -> set[str]:
    return {*files_of(worker, step - LIFE), leaf_name(worker, step)}


def create(swap: TableOperations, folder: Path, workers: int, commits: int) -> Table:
    """Create the table, whose leaves have an entry for each step of each worker."""
    location = swap.folder if isinstance(swap, FileSystemOperations) else f"file://{folder}/table"
    schema = Schema(NestedField(1, "id", LongType()))
    swap.commit(None, new_metadata(location, schema, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, QUICK, 4))
    rows = [_entry(leaf_name(worker, step)) for step in range(1, commits + 1) for worker in range(workers)]
    leaves = [_write_leaf(files_of_table(swap), location, number, rows[number::LEAVES]) for number in range(LEAVES)]
    tx = opened(swap).transaction()
    update = tx.update_snapshot()
    update._step._progress.added = NewFiles(leaves=pa.concat_tables(leaves))
    return tx.commit()


def _entry(path: str) -> dict[str, Any]:
    return {"content_type": 0, "location": path, "file_format": "parquet", "version_info": {"status": 1},
            "partition_spec_id": 0, "record_count": 1, "file_size_in_bytes": 10}  # fmt: skip


def files_of_table(swap: TableOperations) -> Files:
    """Return the files of a table of a file system or SQL catalog."""
    return cast("FileSystemOperations", swap).files


def _write_leaf(files: Files, table: str, number: int, rows: list[dict[str, Any]]) -> pa.Table:
    entries = pa.Table.from_pylist(rows, schema=tree_schema(STATS))
    data, location = write_manifest(entries, DATA), f"{table}/metadata/leaf-{number}.parquet"
    files.write_new(location, data)
    return leaf_row(entries, location, len(data), ())


def opened(swap: TableOperations, spark: SparkSession | None = None) -> Table:
    """Return the current version of the table, without a Spark session unless `spark` is set."""
    version = swap.refresh()
    state = TableState(
        SessionSource(spark), files_of_table(swap), version.metadata, version.metadata.current_snapshot()
    )
    return Table(state, version.metadata_location, "table", swap)


def work(swap: TableOperations, folder: Path, worker: int, commits: int) -> None:
    """Make a worker's commits, from the step that the table records, and note the outcome of each."""
    with (folder / f"worker.{worker}").open("a") as notes:
        chance = random.Random(os.getpid())
        table: Table | None = None
        while True:
            step = 0
            try:
                table = table or opened(swap)
                step = int(table.properties.get(f"worker.{worker}", "0")) + 1
                if step > commits:
                    return
                table, outcome = commit(table, worker, step), "done"
            except CommitFailedError:
                table, outcome = None, "failed"
            except CommitStateUnknownError:
                table, outcome = None, "unknown"
            except FileAccessError:
                # The store did not respond before the commit.
                table, outcome = None, "nothing"
            notes.write(f"{outcome} {step}\n")
            notes.flush()
            if table is None:
                time.sleep(chance.uniform(0, 0.02))


def commit(table: Table, worker: int, step: int) -> Table:
    new = files_of(worker, step)
    rows = {
        "file_path": [*new],
        "file_format": ["PARQUET"] * len(new),
        "record_count": [*new.values()],
        "file_size_in_bytes": [100] * len(new),
    }
    gone = pa.table({"file_path": sorted(removed_by(worker, step))})
    tx = table.transaction()
    tx.set_properties({f"worker.{worker}": step})
    update = tx.update_snapshot(snapshot_properties={"author": f"{worker}/{step}"})
    update.append(cast("Any", ArrowFrame(pa.table(rows)))).delete(cast("Any", ArrowFrame(gone)))
    return tx.commit()


def authors(table: Table) -> Iterator[tuple[int, int] | None]:
    """Yield (worker, step) of each commit after the first, in order; None for a compaction."""
    for snapshot in table.snapshots()[1:]:
        assert snapshot.summary is not None
        worker, _, step = snapshot.summary.additional_properties["author"].partition("/")
        yield (int(worker), int(step)) if step else None
