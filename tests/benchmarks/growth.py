"""Measure V4 trees of a million to a billion files, which are written without Spark and kept in build/bench.

    python -m tests.benchmarks.growth 1000000 [--masked] [--columns 500] [--leaf-entries 100000]

writes a tree and compares each query with Spark's own reading of the same columns of the same leaves under the same
predicate. A million entries take about 26 MB of disk. A masked tree shares the leaves of the tree without masks.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField

from sparkmeta.expr.arrays import from_stream, to_stream
from sparkmeta.manifests.v4.layout import DATA, tree_schema, write_manifest
from sparkmeta.manifests.v4.root import write_root
from sparkmeta.manifests.v4.write import leaf_row
from sparkmeta.spec.bitmap import PositionBitmap, write_deletion_vector
from sparkmeta.spec.entry import ContentType, Status
from sparkmeta.spec.metadata import Snapshot, SnapshotRef, serialize_table_metadata
from sparkmeta.spec.new_table import new_metadata
from sparkmeta.spec.puffin import deletion_vector_blob, write_puffin
from tests.benchmarks.timing import consume, timed
from tests.benchmarks.workload import BUILD

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sparkmeta import Table

LEAF_ENTRIES = 100_000
PARTITIONS = 100
RECORDS = 100
MASKED_SHARE = 0.05

_TREE_FILES = ("root.parquet", "masks.puffin", "v1.metadata.json", "version-hint.text")
_SPEC = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "part"))


@dataclass(frozen=True)
class Growth:
    """A generated tree.

    Attributes:
        masked: Whether a manifest deletion vector masks 5 % of every leaf's entries.
        columns: Number of columns that have stats, at least three.
        copy: The name of a table of its own, whose leaves are hard links. Its leaves may be deleted.
        repeats: Number of leaves of a copy that are hard links to the same file, and so have the same entries.
    """

    entries: int
    masked: bool = False
    columns: int = 3
    leaf_entries: int = LEAF_ENTRIES
    copy: str = ""
    repeats: int = 1

    @property
    def source(self) -> Growth:
        """The tree whose leaves a copy has."""
        return replace(self, copy="", entries=self.entries // self.repeats, repeats=1)

    @property
    def leaves(self) -> int:
        return max(1, self.entries // self.leaf_entries)

    @property
    def folder(self) -> Path:
        unusual = (
            f"-{self.columns}-{self.leaf_entries}" if (self.columns, self.leaf_entries) != (3, LEAF_ENTRIES) else ""
        )
        copy = f"-{self.copy}" if self.copy else ""
        return BUILD / "growth" / f"{self.entries}{unusual}{'-masked' if self.masked else ''}{copy}"

    @property
    def stats(self) -> dict[int, str]:
        return {1: "int", 2: "long", 3: "int"} | dict.fromkeys(range(4, self.columns + 1), "long")

    @property
    def schema(self) -> Schema:
        named = {1: "part", 2: "id", 3: "needle"}
        types = {"int": IntegerType(), "long": LongType()}
        return Schema(*(NestedField(id_, named.get(id_, f"c{id_}"), types[kind]) for id_, kind in self.stats.items()))

    def partition(self, leaf: int) -> int:
        return leaf * PARTITIONS // self.leaves

    def ids(self, leaf: int) -> np.ndarray[Any, Any]:
        """Return the numbers of a leaf's entries, from which the stats are computed."""
        size = min(self.leaf_entries, self.entries)
        return np.arange(leaf * size, (leaf + 1) * size, dtype=np.int64)

    def needles(self, leaf: int) -> np.ndarray[Any, Any]:
        """Return a value for each entry of a leaf. Each leaf's values spread over all integers."""
        return ((self.ids(leaf) * 2_654_435_761) % (1 << 31)).astype(np.int32)

    def location(self) -> str:
        """Return the location of the table's metadata JSON; write the tree if it does not exist yet."""
        done = self.folder / "v1.metadata.json"
        if not done.exists():
            shutil.rmtree(self.folder, ignore_errors=True)
            (self.folder / "metadata").mkdir(parents=True)
            self._write(done)
        return f"file://{done}"

    def rewind(self) -> None:
        """Reset the table to its first snapshot and delete the files of later snapshots."""
        metadata = self.folder / "metadata"
        for file in metadata.iterdir():
            if file.name not in _TREE_FILES and not file.name.startswith("leaf-"):
                file.unlink()
        (metadata / "version-hint.text").write_text("1")

    def _write(self, done: Path) -> None:
        rows = self._leaf_rows()
        masks = self._manifest_dvs(rows.column("location").to_pylist()) if self.masked else []
        root = f"file://{self.folder}/metadata/root.parquet"
        Path(root.removeprefix("file://")).write_bytes(write_root(pa.concat_tables([rows, *masks])))
        document = {
            "snapshot-id": 1, "sequence-number": 1, "timestamp-ms": 1_700_000_000_000, "root-manifest": root,
            "summary": {"operation": "append", "total-equality-deletes": "0"}, "schema-id": 0,
            "first-row-id": 0, "added-rows": self.entries * RECORDS,
        }  # fmt: skip
        metadata = new_metadata(f"file://{self.folder}", self.schema, _SPEC, UNSORTED_SORT_ORDER, {}, 4)
        changed = {
            "snapshots": [Snapshot.model_validate(document)],
            "current_snapshot_id": 1,
            "refs": {"main": SnapshotRef.model_validate({"snapshot-id": 1, "type": "branch"})},
            "last_sequence_number": 1,
            "next_row_id": self.entries * RECORDS,
        }
        done.write_text(serialize_table_metadata(metadata.model_copy(update=changed)))
        (self.folder / "metadata" / done.name).write_text(done.read_text())
        (self.folder / "metadata" / "version-hint.text").write_text("1")

    def _leaf_rows(self) -> pa.Table:
        """Return the root's entries of the leaves; write the leaves if they do not exist yet."""
        stream = self.folder / "leaves.arrow"
        if self.copy:
            return self._links()
        if self.masked:
            unmasked = replace(self, masked=False)
            unmasked.location()
            return unmasked._leaf_rows()
        if not stream.exists():
            with ProcessPoolExecutor(2) as pool:
                rows = [from_stream(row) for row in pool.map(_leaf, ((self, i) for i in range(self.leaves)))]
            stream.write_bytes(to_stream(pa.concat_tables(rows)))
        return from_stream(stream.read_bytes())

    def _links(self) -> pa.Table:
        """Link the leaves of the source, and return the root's entries of the links."""
        self.source.location()
        rows = self.source._leaf_rows()
        leaves = np.arange(self.leaves)
        rows = rows.take(pa.array(leaves // self.repeats))
        links = [f"{self.folder}/metadata/leaf-{leaf:06d}.parquet" for leaf in leaves.tolist()]
        for location, link in zip(rows.column("location").to_pylist(), links, strict=True):
            Path(link).hardlink_to(location.removeprefix("file://"))
        changed = {
            "location": pa.array([f"file://{link}" for link in links]),
            "first_row_id": pa.array(leaves * (self.entries // self.leaves * RECORDS), pa.int64()),
        }
        for name, values in changed.items():
            rows = rows.set_column(rows.column_names.index(name), rows.schema.field(name), values)
        return rows.combine_chunks()

    def _manifest_dvs(self, leaves: list[str]) -> list[pa.Table]:
        """Write a manifest deletion vector for every leaf into one Puffin file, and return their entries."""
        size = min(self.leaf_entries, self.entries)
        count = int(size * MASKED_SHARE)
        random = np.random.default_rng(1)
        masks = [np.sort(random.choice(size, count, replace=False)) for _ in leaves]
        blobs = [write_deletion_vector(PositionBitmap.of(mask)) for mask in masks]
        file = write_puffin([deletion_vector_blob(b, leaf, count) for b, leaf in zip(blobs, leaves, strict=True)])
        location = f"file://{self.folder}/metadata/masks.puffin"
        Path(location.removeprefix("file://")).write_bytes(file.data)
        rows = [
            {
                "content_type": int(ContentType.MANIFEST_DELETION_VECTOR),
                "location": location, "file_format": "puffin", "file_size_in_bytes": len(file.data),
                "version_info": _version(), "partition_spec_id": 0, "record_count": count, "referenced_file": leaf,
                "deletion_vector": {"offset": blob.offset, "size_in_bytes": blob.length},
            }
            for leaf, blob in zip(leaves, file.blobs, strict=True)
        ]  # fmt: skip
        return [pa.Table.from_pylist(rows, schema=tree_schema(self.stats))]


def _version() -> dict[str, int]:
    return {"status": int(Status.ADDED), "snapshot_id": 1, "sequence_number": 1, "file_sequence_number": 1}


def _leaf(task: tuple[Growth, int]) -> bytes:
    """Write one leaf and return the root's entry for it as an Arrow stream."""
    growth, leaf = task
    table = _entries(growth, leaf)
    data = write_manifest(table, DATA)
    location = f"file://{growth.folder}/metadata/leaf-{leaf:06d}.parquet"
    Path(location.removeprefix("file://")).write_bytes(data)
    row = leaf_row(table, location, len(data), [1])
    first = pa.array([leaf * len(table) * RECORDS], pa.int64())
    row = row.set_column(row.column_names.index("first_row_id"), "first_row_id", first)
    field = row.schema.field("version_info")
    row = row.set_column(row.column_names.index(field.name), field, pa.array([_version()], field.type))
    return to_stream(row)


def _entries(growth: Growth, leaf: int) -> pa.Table:
    ids, needles, part = growth.ids(leaf), growth.needles(leaf), growth.partition(leaf)
    rows, types = len(ids), tree_schema(growth.stats)
    names = pc.utf8_lpad(pa.array(ids).cast(pa.string()), 12, "0")
    folder = f"file:///warehouse/growth/data/part={part}/"
    same = {
        "content_type": int(ContentType.DATA), "file_format": "parquet", "partition_spec_id": 0,
        "record_count": RECORDS, "file_size_in_bytes": 1 << 20,
    }  # fmt: skip
    columns = {name: pa.array(np.full(rows, value)) for name, value in same.items() if isinstance(value, int)}
    columns["file_format"] = pa.array(["parquet"]).take(pa.array(np.zeros(rows, np.int64)))
    columns["location"] = pc.binary_join_element_wise(folder, names, ".parquet", "")
    columns["split_offsets"] = pa.ListArray.from_arrays(pa.array(np.arange(rows + 1), pa.int32()), np.full(rows, 4))
    columns["version_info"] = pa.StructArray.from_arrays(
        [pa.array(np.full(rows, int(Status.ADDED)), pa.int32()), *(pa.nulls(rows, pa.int64()) for _ in range(3))],
        fields=list(types.field("version_info").type),
    )
    bounds = {1: (np.full(rows, part), np.full(rows, part)), 2: (ids * 10, ids * 10 + 9), 3: (needles, needles)}
    bounds |= {column: (ids * column, ids * column + column) for column in range(4, growth.columns + 1)}
    kind = types.field("content_stats").type
    structs = [_stats(kind.field(str(column)).type, *bounds[column]) for column in sorted(bounds)]
    columns["content_stats"] = pa.StructArray.from_arrays(structs, fields=list(kind))
    arrays = [columns[f.name].cast(f.type) if f.name in columns else pa.nulls(rows, f.type) for f in types]
    return pa.Table.from_arrays(arrays, schema=types)


def _stats(kind: pa.StructType, lower: np.ndarray[Any, Any], upper: np.ndarray[Any, Any]) -> pa.StructArray:
    rows = len(lower)
    known = {
        "lower_bound": pa.array(lower), "upper_bound": pa.array(upper),
        "value_count": pa.array(np.full(rows, RECORDS)), "null_value_count": pa.array(np.zeros(rows, np.int64)),
    }  # fmt: skip
    children = [known[f.name].cast(f.type) if f.name in known else pa.nulls(rows, f.type) for f in kind]
    return pa.StructArray.from_arrays(children, fields=list(kind))


# -- measuring ------------------------------------------------------------------------------------------------------

COUNT = "live count"
CONSUMED = 100_000_000
"""Entries up to which a plan of every file is consumed. Larger trees are only counted."""
COMMITS = 5
"""Commits of each kind, so many that a cold JVM does not affect the median."""
BUDGET = 120.0
"""Seconds after which a question is not repeated."""


@dataclass(frozen=True)
class Measured:
    """The median of the seconds that a question to a tree takes.

    Attributes:
        rows: Number of rows of the answer.
        peer: Median of the seconds of Spark's own reading, if it was measured.
    """

    entries: int
    masked: bool
    question: str
    rows: int
    seconds: float
    peer: float | None


def questions(growth: Growth) -> dict[str, tuple[str, str]]:
    """Return, by name, the filter of a question and the predicate on stats that Spark's own reading uses."""
    leaf = growth.leaves // 2
    needle, number = int(growth.needles(leaf)[7]), int(growth.ids(leaf)[7]) * 10
    within = "content_stats.`{0}`.lower_bound <= {1} AND content_stats.`{0}`.upper_bound >= {1}"
    part = growth.partition(leaf)
    every = {"every file": ("true", "true")} if growth.entries <= CONSUMED else {}
    return {
        COUNT: ("true", "true"),
        **every,
        "needle, unclustered": (f"needle = {needle}", within.format(3, needle)),
        "needle, clustered": (f"id = {number}", within.format(2, number)),
        "one partition": (f"part = {part}", f"content_stats.`1`.lower_bound = {part}"),
    }


def measure(spark: SparkSession, growth: Growth, repeats: int) -> list[Measured]:
    """Measure every question, then appends and deletes of one file."""
    import sparkmeta as sm

    location, results = growth.location(), []

    def add(question: str, rows: int, ours: list[float], peer: list[float]) -> None:
        other = statistics.median(peer) if peer else None
        results.append(Measured(growth.entries, growth.masked, question, rows, statistics.median(ours), other))

    for name, (row_filter, predicate) in questions(growth).items():
        answer, ours, peer = (methodcaller("count") if name == COUNT else consume), [], []
        rows = sm.load_table(location, spark=spark).scan(row_filter).plan_files().count()
        while len(ours) < repeats and sum(ours) < BUDGET:
            ours.append(timed(lambda: answer(sm.load_table(location, spark=spark).scan(row_filter).plan_files())))  # noqa: B023
            peer.append(timed(lambda: answer(_spark_reading(spark, location, row_filter, predicate))))  # noqa: B023
        add(name, rows, ours, peer)
        if name == COUNT:
            times = [timed(lambda: sm.load_table(location, spark=spark).scan().count_files()) for _ in range(repeats)]
            add("count_files()", rows, times, [])
    growth.rewind()
    for name in ("a file is appended", "a file is deleted"):
        add(name, 1, [timed(lambda: _commit(growth, spark, name, run)) for run in range(COMMITS)], [])  # noqa: B023
    return results


def _spark_reading(spark: SparkSession, location: str, row_filter: str, predicate: str) -> DataFrame:
    """Read with Spark the columns that a plan reads, from the leaves that it opens."""
    import sparkmeta as sm

    scan = sm.load_table(location, spark=spark).scan(row_filter)
    leaves = scan.plan.pruned.data.column("location").to_pylist()
    stats = {"1": "int", "2": "bigint", "3": "int"}
    counts = "value_count: bigint, null_value_count: bigint"
    read = [f"`{column}`: struct<lower_bound: {kind}, upper_bound: {kind}, {counts}>" for column, kind in stats.items()
            if column == "1" or f"`{column}`" in predicate]  # fmt: skip
    columns = [
        "location string", "file_format string", "version_info struct<status: int, sequence_number: bigint>",
        "partition_spec_id int", "sort_order_id int", "record_count bigint", "file_size_in_bytes bigint",
        "split_offsets array<bigint>", "first_row_id bigint", "row_id_offset bigint",
        f"content_stats struct<{', '.join(read)}>",
    ]  # fmt: skip
    return spark.read.schema(", ".join(columns)).parquet(*leaves).where(f"version_info.status <> 2 AND {predicate}")


def _commit(growth: Growth, spark: SparkSession, name: str, run: int) -> None:
    """Append a file, or delete the file of a plan."""
    import sparkmeta as sm

    table: Table = sm.load_table(f"file://{growth.folder}", spark=spark)
    with table.transaction() as tx:
        if name == "a file is appended":
            row = f"struct({questions(growth)['one partition'][0].split('=')[1]} AS part) AS partition"
            new = [
                "concat('file:///warehouse/growth/data/new/', uuid(), '.parquet') AS file_path",
                "'parquet' AS file_format",
                "0 AS spec_id",
                row,
            ]
            tx.update_snapshot().append(
                spark.range(1).selectExpr(*new, "1L AS record_count", "1L AS file_size_in_bytes")
            )
        else:
            number = int(growth.ids(growth.leaves // 2)[100 + run]) * 10
            tx.update_snapshot().delete(table.scan(f"id = {number}").plan_files())


@click.command()
@click.argument("entries", type=int)
@click.option("--masked", is_flag=True, help="5 % of every leaf's entries have a deletion vector.")
@click.option("--columns", default=3, show_default=True, help="Columns that have stats.")
@click.option("--leaf-entries", default=LEAF_ENTRIES, show_default=True, help="Entries of a leaf.")
@click.option("--repeats", default=3, show_default=True, help="Runs of each question; the median counts.")
@click.option("--heap", default="4g", show_default=True, help="Heap of the JVM, e.g. 4g.")
def main(entries: int, masked: bool, columns: int, leaf_entries: int, repeats: int, heap: str) -> None:
    """Write a tree of ENTRIES entries, and measure it."""
    from rich.console import Console

    from tests.benchmarks.report import print_growth
    from tests.benchmarks.session import bench_session

    growth = Growth(entries, masked, columns, leaf_entries)
    disk = entries * (26 + 24 * (columns - 3)) // 1_000_000
    sys.stdout.write(f"{entries:,} entries in {growth.leaves:,} leaves: about {disk:,} MB of disk\n")
    seconds = timed(growth.location)
    sys.stdout.write(f"written in {seconds:.0f} s\n")
    results = measure(bench_session(heap), growth, repeats)
    print_growth(Console(width=None if sys.stdout.isatty() else 150), results)
    path = BUILD / f"growth-{growth.folder.name}.json"
    path.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")


if __name__ == "__main__":
    main()
