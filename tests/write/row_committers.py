"""A process that changes rows of a table in a folder: `python -m tests.write.row_committers folder worker changes`.

Each worker has a separate partition. In each step it appends rows, then updates some of them, then deletes others:
three changes, each recorded in the summary of its snapshot. A restarted process continues after the last one.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F

import sparkmeta as sm
from sparkmeta import local_session
from sparkmeta.errors import CommitFailedError
from tests.frames import local_frame

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

NOTE = "change"
CHANGES = ("append", "update", "delete")
Row = tuple[int, str, int]


def part_of(worker: int) -> str:
    return "abcdefgh"[worker]


def rows_of(worker: int, step: int) -> list[Row]:
    """Return the rows that a step appends."""
    return [(100 * step + number, part_of(worker), 0) for number in range(4)]


def rows_after(worker: int, done: int) -> list[Row]:
    """Return the rows of a worker after a number of changes."""
    rows: list[Row] = []
    for number in range(done):
        step, kind = divmod(number, len(CHANGES))
        ids = {row[0] for row in rows_of(worker, step)[kind:]}
        if CHANGES[kind] == "append":
            rows += rows_of(worker, step)
        elif CHANGES[kind] == "update":
            rows = [(i, part, step + 1 if i in ids else n) for i, part, n in rows]
        else:
            rows = [row for row in rows if row[0] not in ids]
    return rows


def changes_of(table: sm.Table, worker: int) -> list[int]:
    """Return the numbers of the worker's changes in the table's snapshots, in order."""
    notes = [snapshot.summary.additional_properties.get(NOTE, "") for snapshot in table.snapshots() if snapshot.summary]
    return [int(note.partition("/")[2]) for note in notes if note.startswith(f"{worker}/")]


def change(table: sm.Table, spark: SparkSession, worker: int, number: int) -> None:
    """Make one change of a worker."""
    step, kind = divmod(number, len(CHANGES))
    notes: Any = {"snapshot_properties": {NOTE: f"{worker}/{number}"}, "isolation": "snapshot"}
    where = f"part = '{part_of(worker)}' and id >= {100 * step + kind} and id < {100 * (step + 1)}"
    if CHANGES[kind] == "append":
        del notes["isolation"]
        table.append(frame(spark, rows_of(worker, step)), **notes)
    elif CHANGES[kind] == "update":
        table.update({"n": F.lit(step + 1)}, where, **notes)
    else:
        table.delete(where, **notes)


def frame(spark: SparkSession, rows: Iterable[Row]) -> Any:
    ids, parts, numbers = zip(*rows, strict=True)
    columns = {"id": pa.array(ids, pa.int64()), "part": pa.array(parts), "n": pa.array(numbers, pa.int32())}
    return local_frame(spark, pa.table(columns)).coalesce(1)


def work(folder: Path, worker: int, changes: int) -> None:
    """Make the changes of a worker that the table does not have."""
    quick = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    spark = local_session("row committers", cores=1, memory="1g", config=quick)
    while True:
        table = sm.load_table(f"file://{folder}/db/t", spark=spark)
        number = max(changes_of(table, worker), default=-1) + 1
        print("at", number, flush=True)  # noqa: T201
        if number >= changes:
            return
        try:
            change(table, spark, worker, number)
        except CommitFailedError:
            continue


if __name__ == "__main__":
    work(Path(sys.argv[1]), *map(int, sys.argv[2:]))
