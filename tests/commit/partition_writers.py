"""Writers of one table, each on a partition of its own, and what the table must be at the end.

    python -m tests.commit.partition_writers <table> <notes> <first writer> <writers> <commits>

is a process of some writers, threads of one Spark session, that go on from where the table says that each stands. A
writer overwrites its partition in one step, and deletes rows of a file of it in the next, both validated with the
partition as the filter.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import sparkmeta as sm
from sparkmeta import local_session
from sparkmeta.errors import CommitConflictError, CommitFailedError, CommitStateUnknownError
from tests.commit.operations import SCHEMA, SPEC, Change, File, describe, rows
from tests.conftest import QUICK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RETRIES = {
    "commit.status-check.min-wait-ms": "1",
    "commit.retry.num-retries": "1000",
    "commit.retry.min-wait-ms": "10",
    "commit.retry.max-wait-ms": "300",
}
PARTS = "abcdefgh"


def change_of(writer: int, step: int) -> Change:
    """Return the change of a writer's step.

    Odd steps overwrite the writer's partition with one file, and even steps delete rows of that file.
    """
    operation = "overwrite_filter" if step % 2 else "vector"
    target = f"{PARTS[writer]}1" if step % 2 else f"{PARTS[writer]}1-{step - 1}"
    return Change(operation, target, f"-{step}", "serializable", with_filter=True)


def expected(writers: int, commits: int) -> dict[str, list[str]]:
    """Return the files that are planned at the end: the last file of each partition, with its last vector."""
    files = {}
    for writer in range(writers):
        last = commits if commits % 2 else commits - 1
        vector = [change_of(writer, commits).vector.path] if commits % 2 == 0 else []
        files[change_of(writer, last).added.path] = vector
    return files


def create(spark: SparkSession, folder: Path, writers: int) -> sm.Table:
    catalog = sm.load_catalog("test", type="hadoop", warehouse=str(folder))
    table = catalog.create_table("db.t", SCHEMA, SPEC, format_version=4, spark=spark)
    with table.transaction() as tx:
        tx.set_properties(RETRIES)
        tx.update_snapshot().append(rows(spark, [File(f"{PARTS[writer]}1") for writer in range(writers)]))
    return tx.commit()


def work(spark: SparkSession, location: str, notes: Path, writer: int, commits: int) -> None:
    """Make a writer's commits, and note the outcome of each."""
    table = sm.load_table(location, spark=spark)
    with notes.open("a") as lines:
        while (step := int(table.properties.get(f"writer.{writer}", "0")) + 1) <= commits:
            change = change_of(writer, step)
            try:
                with table.transaction() as tx:
                    tx.set_properties({f"writer.{writer}": str(step)})
                    update = tx.update_snapshot(snapshot_properties={"author": f"{writer}/{step}"})
                    describe(update, change, spark)
                    update.validate_no_conflicts(change.row_filter)
                table, outcome = tx.commit(), "done"
            except (CommitConflictError, CommitFailedError, CommitStateUnknownError) as error:
                outcome = f"{type(error).__name__} {error}"
                table = table.refresh()
            lines.write(f"{writer}/{step} {outcome}\n")
            lines.flush()


def main(location: str, folder: str, first: int, writers: int, commits: int) -> None:
    spark = local_session("writers", cores=2, memory="1g", config=QUICK)
    failures: list[BaseException] = []

    def run(writer: int) -> None:
        try:
            work(spark, location, Path(folder) / f"writer.{writer}", writer, commits)
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=run, args=(writer,)) for writer in range(first, first + writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *(int(argument) for argument in sys.argv[3:6]))
