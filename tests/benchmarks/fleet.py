"""Examine a catalog of a thousand tables, ten of them broken: `python -m tests.benchmarks.fleet`.

A SQL catalog has copies of a few tables of 1 to 100,000 files in all format versions, and the workload's table of 1.5
million. A copy has its own metadata file and manifest lists, or all files of a tree. A new
process examines all of them and writes the page. Print the figures and write build/bench/fleet-<time>.json.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from functools import cache
from itertools import chain, islice, pairwise, repeat
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console

import sparkmeta as sm
from tests.benchmarks.memory import MIB, Workers, peak_resident_set
from tests.benchmarks.report import write_runs
from tests.benchmarks.workload import BUILD, Workload, metadata_location
from tests.fleet.broken import WAYS, local

console = Console(width=None if sys.stdout.isatty() else 150)
FOLDER = BUILD / "fleet"
# Files of a table -> tables of a thousand.
SHARES = {100_000: 8, 10_000: 40, 1_000: 100, 100: 251, 10: 300, 1: 290}
SCHEMA = pa.schema([(name, pa.int64()) for name in ("id", "a", "b", "c")] + [("part", pa.string())])
# The most files of a commit.
_APPENDED = 25_000
_WORKLOAD = Workload(3, "none", 1.0)


@dataclass(frozen=True)
class Run:
    """An examination.

    Attributes:
        seconds: the time of `catalog.health()`.
        cpu: the seconds of processors that the process used for it, without Spark's processes.
        page_seconds: the time to write the page.
        python: peak resident set of the process, in MiB.
        workers: peak of the sum of Spark's Python workers, in MiB.
        page: size of the page in MiB.
        failed: the tables that could not be examined, and why.
    """

    tables: int
    files: int
    at_once: int | None
    seconds: float
    cpu: float
    page_seconds: float
    python: int
    workers: int
    page: float
    started_spark: bool
    failed: dict[str, str]


def properties() -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{FOLDER}/catalog.db", "warehouse": f"file://{FOLDER}/warehouse"}


def files_of(count: int, first: int) -> pa.Table:
    """Return files for `append`, with bounds and counts of all columns."""
    numbers = np.arange(first, first + count, dtype=np.int64)
    names = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), 9, "0")
    parts = pa.array([f"p{number}" for number in range(20)]).take(pa.array(numbers * 20 // (first + count)))
    ids = range(1, 5)
    offsets = pa.array(np.arange(0, 4 * count + 1, 4), pa.int32())
    keys = pa.array(np.tile(list(ids), count), pa.int32())
    counts = pa.MapArray.from_arrays(offsets, keys, pa.array(np.full(4 * count, 100), pa.int64()))
    limits = pa.MapArray.from_arrays(offsets, keys, _longs(numbers))
    return pa.table(
        {
            "file_path": pc.binary_join_element_wise(f"file://{FOLDER}/data/", names, ".parquet", ""),
            "file_format": pa.array(["PARQUET"] * count),
            "partition": pa.StructArray.from_arrays([parts], ["part"]),
            "record_count": pa.array(np.full(count, 100), pa.int64()),
            "file_size_in_bytes": pa.array(np.full(count, 200 << 20), pa.int64()),
            "value_counts": counts,
            "lower_bounds": limits,
            "upper_bounds": limits,
        }
    )


def _longs(numbers: np.ndarray[Any, Any]) -> pa.Array:
    content = np.repeat(numbers, 4).astype("<i8")
    return pa.Array.from_buffers(pa.binary(8), len(content), [None, pa.py_buffer(content)]).cast(pa.binary())


@cache
def template(files: int, version: int) -> sm.Table:
    """Return a table of some files, in commits of at most 25,000."""
    catalog = sm.load_catalog("templates", type="hadoop", warehouse=str(FOLDER / "templates"))
    name = f"t.files{files}_v{version}"
    if catalog.table_exists(name):
        return catalog.load_table(name)
    table = catalog.create_table(name, SCHEMA, partition_by=["part"], format_version=version)
    commits = max(3, -(-files // _APPENDED))
    edges = np.linspace(0, files, commits + 1).astype(int)
    for first, last in pairwise(edges):
        if last > first:
            with table.transaction() as transaction:
                transaction.update_snapshot().append(files_of(int(last - first), int(first)))
            table = table.refresh()
    return table


def fill(catalog: Any, tables: int) -> None:
    """Register copies of the templates under names that tell their files and version."""
    # Ten tables are broken, and one is the workload's.
    sizes = chain.from_iterable(repeat(files, share * tables // 1000) for files, share in SHARES.items())
    sizes = islice(chain(sizes, repeat(1)), tables - len(WAYS) - 1)
    for number, files in enumerate(sizes):
        copied(catalog, f"{('sales', 'web', 'ops')[number % 3]}.t{number:04}_{files}", template(files, 1 + number % 4))
    for number, (name, (break_table, _)) in enumerate(WAYS.items()):
        # With manifests of its own.
        broken = catalog.create_table(f"broken.{name}", SCHEMA, partition_by=["part"], format_version=1 + number % 4)
        with broken.transaction() as transaction:
            transaction.update_snapshot().append(files_of(100, 0))
        break_table(broken.refresh())
    catalog.register_table("sales.workload", metadata_location(_WORKLOAD))


def copied(catalog: Any, name: str, source: sm.Table) -> sm.Table:
    """Register a copy of a table's metadata file and manifest lists, or all of a tree, whose paths are relative."""
    folder = FOLDER / "warehouse" / name.replace(".", "/")
    document = json.loads(local(source.metadata_location).read_text())
    document |= {"table-uuid": str(uuid.uuid4()), "location": f"file://{folder}"}
    if source.format_version > 3:
        shutil.copytree(local(source.location()), folder)
    else:
        (folder / "metadata").mkdir(parents=True)
        for snapshot in document["snapshots"]:
            path = local(snapshot["manifest-list"])
            shutil.copy(path, folder / "metadata" / path.name)
            snapshot["manifest-list"] = f"file://{folder}/metadata/{path.name}"
    target = folder / "metadata" / "00001-copy.metadata.json"
    target.write_text(json.dumps(document))
    return catalog.register_table(name, f"file://{target}")


@click.command()
@click.option("--tables", type=int, default=1000, show_default=True)
@click.option("--at-once", type=int, multiple=True, help="Tables at once; by default as catalog.health() chooses.")
@click.option("--again", is_flag=True, help="Make the catalog anew.")
@click.option("--run", "is_run", is_flag=True, hidden=True)
def main(tables: int, at_once: tuple[int, ...], again: bool, is_run: bool) -> None:
    """Examine the health of a thousand tables."""
    if is_run:
        sys.stdout.write(json.dumps(vars(examined(at_once[0] if at_once else None))) + "\n")
        return
    if again or not (FOLDER / "catalog.db").exists() or counted() != tables:
        shutil.rmtree(FOLDER / "warehouse", ignore_errors=True)
        (FOLDER / "catalog.db").unlink(missing_ok=True)
        FOLDER.mkdir(parents=True, exist_ok=True)
        catalog = sm.load_catalog("fleet", **properties())
        for namespace in ("sales", "web", "ops", "broken"):
            catalog.create_namespace(namespace)
        began = time.perf_counter()
        fill(catalog, tables)
        console.print(f"made {tables} tables in {time.perf_counter() - began:.0f} s")
    runs = []
    for threads in at_once or (None,):
        command = [sys.executable, "-m", "tests.benchmarks.fleet", "--run"]
        command += [] if threads is None else ["--at-once", str(threads)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
        if done.returncode:
            raise click.ClickException(done.stderr[-3000:])
        runs.append(Run(**json.loads(done.stdout.splitlines()[-1])))
        console.print(runs[-1])
    console.print(f"written: {write_runs(BUILD, 'fleet', runs)}")


def counted() -> int:
    with sqlite3.connect(FOLDER / "catalog.db") as database:
        return int(database.execute("SELECT count(*) FROM iceberg_tables").fetchone()[0])


def examined(at_once: int | None) -> Run:
    catalog = sm.load_catalog("fleet", **properties())
    began, cpu = time.perf_counter(), time.process_time()
    with Workers() as workers:
        health = catalog.health(at_once=at_once)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    began = time.perf_counter()
    health.save(FOLDER / "tables.html")
    page_seconds = time.perf_counter() - began
    rows = health.to_arrow()
    failed = rows.filter(pc.is_valid(rows.column("error"))).select(["table", "error"]).to_pylist()
    return Run(
        len(rows),
        pc.sum(rows.column("data_files")).as_py(),
        at_once,
        round(seconds, 1),
        round(cpu, 1),
        round(page_seconds, 1),
        peak_resident_set() // MIB,
        workers.together // MIB,
        round((FOLDER / "tables.html").stat().st_size / MIB, 1),
        "pyspark.sql" in sys.modules and catalog.sessions.running() is not None,
        {row["table"]: row["error"] for row in failed},
    )


if __name__ == "__main__":
    main()
