"""`python -m tests.benchmarks.maintain`: `sparkmeta maintain` over small tables, one after another and side by side.

The tables have five files of 100 rows each, which a run merges, and expires snapshots. They are on this machine's disk,
and in an S3-compatible server (moto, in this process) whose requests each take longer. Each run is a process of its own
with new tables, without Spark. Prints seconds, and how many times as fast four tables at once are.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pyarrow as pa

import sparkmeta as sm
from tests.s3 import BUCKET, FILE_IOS, s3_server

if TYPE_CHECKING:
    from collections.abc import Mapping

ROWS = pa.schema([("id", pa.int64()), ("part", pa.int64())])
FILES = 5
SIDE_BY_SIDE = (1, 4)


def make_tables(folder: Path, tables: int, properties: Mapping[str, str]) -> None:
    """Create the tables in a catalog of the folder."""
    catalog: Any = sm.load_catalog("bench", **properties)
    catalog.create_namespace("db")
    for number in range(tables):
        table = catalog.create_table(f"db.t{number:04}", ROWS, format_version=2 + number % 2)
        for load in range(FILES):
            ids = list(range(load * 100, load * 100 + 100))
            table = table.append(pa.table({"id": ids, "part": [0] * 100}, ROWS))


def maintain(folder: Path, side_by_side: int, properties: Mapping[str, str]) -> float:
    """Maintain the tables in a process, and return its seconds."""
    catalog = "\n".join(f'"{name}" = "{value}"' for name, value in properties.items())
    config = folder / "maintenance.toml"
    config.write_text(
        f"[run]\nside_by_side = {side_by_side}\n[catalogs.bench]\n{catalog}\n[thresholds]\nmin_small_files = 4\n"
        "[jobs.rewrite_data_files]\nmin_input_files = 2\n"
        "[jobs.expire_snapshots]\nolder_than = '0m'\nretain_last = 1\n"
        "[[tables]]\ncatalog = 'bench'\nnames = ['db.*']\n"
    )
    command = [sys.executable, "-m", "sparkmeta", "maintain", "--config", str(config), "--commit"]
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    seconds = time.perf_counter() - started
    statuses = Counter(json.loads(line)["status"] for line in done.stdout.splitlines())
    assert set(statuses) == {"committed"}, statuses
    return seconds


@click.command()
@click.option("--tables", default=60, show_default=True)
@click.option("--delay", default=0.03, show_default=True, help="Seconds that each request to the store takes longer.")
def main(tables: int, delay: float) -> None:
    for place in ("disk", "S3"):
        seconds = {}
        for count in SIDE_BY_SIDE:
            with tempfile.TemporaryDirectory() as text, s3_server() as store:
                folder = Path(text)
                of_store = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"s3://{BUCKET}/{count}",
                            "py-io-impl": FILE_IOS["pyarrow"], **store.properties}  # fmt: skip
                properties = {"type": "hadoop", "warehouse": f"{folder}/tables"} if place == "disk" else of_store
                make_tables(folder, tables, properties)
                with store.counted(delay):
                    seconds[count] = maintain(folder, count, properties)
        ratio = seconds[1] / seconds[4]
        click.echo(f"{place}: {tables} tables, 1: {seconds[1]:.1f} s, 4: {seconds[4]:.1f} s, {ratio:.2f}x")


if __name__ == "__main__":
    main()
