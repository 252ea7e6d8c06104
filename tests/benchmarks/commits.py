"""Measure single commits by the size of the table: seconds, and bytes that all of Spark's processes read.

    python -m tests.benchmarks.commits [1000000 10000000 100000000]

Each commit runs on a tree of `growth.py`, which is clustered by partition and id and is reset to its only snapshot
before each run. Commits name files by a row of a plan, by path and partition, by path, or by a filter.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import pyarrow as pa

from sparkmeta.spec.bitmap import PositionBitmap, write_deletion_vector
from sparkmeta.spec.puffin import deletion_vector_blob, write_puffin
from tests.benchmarks.growth import Growth
from tests.benchmarks.timing import timed
from tests.benchmarks.workload import BUILD
from tests.frames import local_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sparkmeta import Table

SIZES = (1_000_000, 10_000_000, 100_000_000)
MANY_DVS = 1_000
NAMED_FILES = 20_000

_PARTITION = pa.struct([("part", pa.int32())])


@dataclass(frozen=True)
class Cost:
    """The median cost of a commit over several runs.

    Attributes:
        entries: Number of entries of the tree.
        read: Bytes that the driver and its child processes read, from the page cache or not.
        driver: Resident set of the driver's Python process after the commit, in bytes.
    """

    entries: int
    commit: str
    seconds: float
    read: int
    driver: int


@dataclass(frozen=True)
class Bench:
    """The commits to measure on one tree."""

    spark: SparkSession
    growth: Growth

    def table(self) -> Table:
        import sparkmeta as sm

        return sm.load_table(f"file://{self.growth.folder}", spark=self.spark)

    def commits(self) -> dict[str, Callable[[Table, Any], Callable[[Any], Any]]]:
        """Return, by name, functions that prepare a commit and return the change to time."""
        return {
            "append of one file": self._append,
            "one DV, by plan row": self._dv_of_plan_row,
            "one DV, by path and partition": lambda _, run: self._dvs(np.array([run * 11 + 5])),
            "delete of one file, by plan row": self._delete_plan_row,
            "delete of one file, by path": lambda _, run: self._delete_paths(self._spread(1, run)),
            "delete(row_filter) of one partition": self._delete_partition,
            "overwrite of one partition": self._overwrite_partition,
            f"{MANY_DVS:,} DVs over the table": lambda _, run: self._dvs(self._spread(MANY_DVS, run)),
            f"delete of {NAMED_FILES:,} plan rows": self._delete_plan_rows,
        }

    # -- files ------------------------------------------------------------------------------------------------------

    def _spread(self, count: int, run: int) -> np.ndarray[Any, Any]:
        """Return the numbers of entries that are spread over the table."""
        return np.linspace(run + 3, self.growth.entries - 100 + run, count).astype(np.int64)

    def _path(self, number: int) -> str:
        return f"file:///warehouse/growth/data/part={self._part(number)}/{number:012d}.parquet"

    def _part(self, number: int) -> int:
        return self.growth.partition(number // min(self.growth.leaf_entries, self.growth.entries))

    def _new_files(self, parts: list[int], run: int) -> DataFrame:
        rows = [
            {"file_path": f"file:///warehouse/growth/data/part={part}/new-{run}-{index}.parquet",
             "file_format": "parquet", "spec_id": 0, "partition": {"part": part}, "record_count": 1,
             "file_size_in_bytes": 100}
            for index, part in enumerate(parts)
        ]  # fmt: skip
        schema = pa.schema([("file_path", pa.string()), ("file_format", pa.string()), ("spec_id", pa.int32()),
                            ("partition", _PARTITION), ("record_count", pa.int64()),
                            ("file_size_in_bytes", pa.int64())])  # fmt: skip
        return local_frame(self.spark, pa.Table.from_pylist(rows, schema=schema))

    def _dv_frame(self, paths: list[str], parts: list[int], manifests: list[str] | None = None) -> DataFrame:
        blob = write_deletion_vector(PositionBitmap.of([1]))
        file = write_puffin([deletion_vector_blob(blob, path, 1) for path in paths])
        location = self.growth.folder / "metadata" / "new-vectors.puffin"
        location.write_bytes(file.data)
        columns: dict[str, Any] = {
            "content": pa.array([1] * len(paths), pa.int32()),
            "file_path": [f"file://{location}"] * len(paths),
            "file_format": ["puffin"] * len(paths),
            "spec_id": pa.array([0] * len(paths), pa.int32()),
            "partition": pa.array([{"part": part} for part in parts], _PARTITION),
            "record_count": [1] * len(paths),
            "file_size_in_bytes": [len(file.data)] * len(paths),
            "referenced_data_file": paths,
            "content_offset": [place.offset for place in file.blobs],
            "content_size_in_bytes": [place.length for place in file.blobs],
        }
        if manifests is not None:
            columns["manifest_path"] = manifests
        return local_frame(self.spark, pa.table(columns))

    # -- commits ----------------------------------------------------------------------------------------------------

    def _append(self, table: Table, run: int) -> Callable[[Any], Any]:
        new = self._new_files([self._part(self.growth.entries // 2)], run)
        return lambda update: update.append(new)

    def _dvs(self, numbers: np.ndarray[Any, Any]) -> Callable[[Any], Any]:
        chosen = numbers.tolist()
        frame = self._dv_frame([*map(self._path, chosen)], [*map(self._part, chosen)])
        return lambda update: update.row_delta(deletes=frame)

    def _planned(self, table: Table, row_filter: str) -> DataFrame:
        """Return rows of a plan as a local frame, so that the timed commit does not compute them."""
        rows = table.scan(row_filter).plan_files().select("file_path", "manifest_path", "manifest_pos", "partition")
        return local_frame(self.spark, rows.toArrow())

    def _plan_row(self, table: Table, run: int) -> DataFrame:
        number = self.growth.entries // 2 + run * 7
        return self._planned(table, f"id = {number * 10}")

    def _dv_of_plan_row(self, table: Table, run: int) -> Callable[[Any], Any]:
        (row,) = self._plan_row(table, run).collect()
        frame = self._dv_frame([row.file_path], [row.partition.part], [row.manifest_path])
        return lambda update: update.row_delta(deletes=frame)

    def _delete_plan_row(self, table: Table, run: int) -> Callable[[Any], Any]:
        row = self._plan_row(table, run)
        return lambda update: update.delete(row)

    def _delete_paths(self, numbers: np.ndarray[Any, Any]) -> Callable[[Any], Any]:
        named = local_frame(self.spark, pa.table({"file_path": [*map(self._path, numbers.tolist())]}))
        return lambda update: update.delete(named)

    def _delete_plan_rows(self, table: Table, run: int) -> Callable[[Any], Any]:
        start = self.growth.entries // 3
        rows = self._planned(table, f"id >= {start * 10} and id < {(start + NAMED_FILES) * 10}")
        return lambda update: update.delete(rows)

    def _delete_partition(self, table: Table, run: int) -> Callable[[Any], Any]:
        part = self._part(self.growth.entries // 4)
        return lambda update: update.delete(row_filter=f"part = {part}")

    def _overwrite_partition(self, table: Table, run: int) -> Callable[[Any], Any]:
        new = self._new_files([self._part(self.growth.entries // 5)] * 10, run)
        return lambda update: update.replace_partitions(new)

    # -- measuring --------------------------------------------------------------------------------------------------

    def measure(self, repeats: int, only: str = "") -> Iterator[Cost]:
        for name, prepare in self.commits().items():
            if only not in name:
                continue
            seconds, read = [], []
            for run in range(repeats + 1):
                self.growth.rewind()
                table = self.table()
                change = prepare(table, run)
                before = bytes_read()
                seconds.append(timed(lambda: self._commit(change)))  # noqa: B023
                read.append(bytes_read() - before)
            # The first run is a warm-up.
            middle = statistics.median(seconds[1:]), int(statistics.median(read[1:]))
            yield Cost(self.growth.entries, name, *middle, resident())

    def _commit(self, change: Callable[[Any], Any]) -> None:
        with self.table().transaction() as tx:
            change(tx.update_snapshot())


def bytes_read() -> int:
    """Return the bytes that this process and its descendants have read by system calls so far."""
    total, parents = 0, {os.getpid()}
    processes = {int(path.name): path for path in Path("/proc").iterdir() if path.name.isdigit()}
    grown = True
    while grown:
        below = {pid for pid, path in processes.items() if pid not in parents and _parent(path) in parents}
        grown, parents = bool(below), parents | below
    for pid in parents:
        try:
            fields = dict(line.split(": ") for line in (processes[pid] / "io").read_text().splitlines())
            total += int(fields["rchar"])
        except (OSError, KeyError):
            continue
    return total


def resident() -> int:
    """Return the resident set of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _parent(process: Path) -> int:
    try:
        return int(process.joinpath("stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0


@click.command()
@click.argument("sizes", type=int, nargs=-1)
@click.option("--repeats", default=3, show_default=True, help="Runs of each commit, after a warm-up.")
@click.option("--only", default="", help="Measure the commits whose names contain this text.")
@click.option("--heap", default="4g", show_default=True, help="Of the JVM, e.g. 4g.")
def main(sizes: tuple[int, ...], repeats: int, only: str, heap: str) -> None:
    """Commit to trees of these sizes."""
    from tests.benchmarks.session import bench_session

    spark, costs = bench_session(heap), []
    for entries in sizes or SIZES:
        growth = Growth(entries)
        growth.location()
        for cost in Bench(spark, growth).measure(repeats, only):
            costs.append(cost)
            rest = f"{cost.read / 1e6:10.1f} MB read {cost.driver / 1e6:8.0f} MB in the driver"
            sys.stdout.write(f"{entries:>13,}  {cost.commit:<36} {cost.seconds:7.2f} s {rest}\n")
            sys.stdout.flush()
    path = BUILD / "commits.json"
    path.write_text(json.dumps([asdict(cost) for cost in costs], indent=1) + "\n")


if __name__ == "__main__":
    main()
