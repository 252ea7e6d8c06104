"""Writers of separate partitions don't conflict, in two processes.

One process is killed from time to time. `make test` runs 4 writers with 5 commits each, and SPARKMETA_SOAK=1 runs 8
writers with 200.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from sparkmeta.storage.writing import is_temporary
from tests.commit import partition_writers as writers
from tests.commit.operations import planned
from tests.peers.classic import classic_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    import sparkmeta as sm

PROCESSES = 2
# Writers per process, commits per writer, and the total number of kills.
SHORT, LONG = (2, 5, 1), (4, 200, 20)
# A process that runs for more seconds hangs; the long form takes hours.
LONGEST = 6 * 3600 if os.environ.get("SPARKMETA_SOAK") else 900
ROOT = Path(__file__).parent.parent.parent


def test_writers_of_other_partitions_do_not_conflict(spark: SparkSession, tmp_path: Path, soak: bool) -> None:
    each, commits, kills = LONG if soak else SHORT
    count = PROCESSES * each
    table = writers.create(spark, tmp_path, count)
    began = time.monotonic()
    run(table, tmp_path, each, commits, kills)
    took = time.monotonic() - began

    table = table.refresh()
    lines = [line for number in range(count) for line in (tmp_path / f"writer.{number}").read_text().splitlines()]
    assert [line for line in lines if not line.endswith(" done")] == []
    authors = [
        snapshot.summary.additional_properties.get("author") for snapshot in table.snapshots()[1:] if snapshot.summary
    ]
    assert sorted(authors) == sorted(f"{writer}/{step}" for writer in range(count) for step in range(1, commits + 1))
    assert planned(table) == writers.expected(count, commits)
    assert table.check().collect() == []
    left = orphans(table)
    print(  # noqa: T201
        f"\n{count} writers x {commits} commits in {took:.1f} s, {kills} kills, {len(left)} files left over: {left}"
    )
    # A writer that is killed leaves at most the root and the metadata file of its attempt.
    assert all(is_temporary(name) or "-root-" in name for name in left)
    assert len(left) <= 2 * kills * each


def run(table: sm.Table, folder: Path, each: int, commits: int, kills: int) -> None:
    """Run the processes to their end, and kill one of them repeatedly while its writers are at work."""
    chance = random.Random(17)
    running = {number: start(table, folder, number, each, commits) for number in range(PROCESSES)}
    killed = 0
    while killed < kills and (alive := [number for number, process in running.items() if process.poll() is None]):
        number = chance.choice(alive)
        before = progress(folder, number, each)
        while running[number].poll() is None and progress(folder, number, each) <= before:
            time.sleep(0.02)
        time.sleep(chance.uniform(0, 2))
        if running[number].poll() is None:
            running[number].kill()
            running[number].wait()
            running[number] = start(table, folder, number, each, commits)
            killed += 1
    assert killed, "the writers were done before one of them was killed"
    for number, process in running.items():
        assert process.wait(LONGEST) == 0, (folder / f"process.{number}").read_text()[-3000:]


def start(table: sm.Table, folder: Path, number: int, each: int, commits: int) -> subprocess.Popen[bytes]:
    arguments = [table.location(), str(folder), str(number * each), str(each), str(commits)]
    command = [sys.executable, "-m", "tests.commit.partition_writers", *arguments]
    environment = classic_environment() | {"PYTHONPATH": str(ROOT)}
    log = folder / f"process.{number}"
    with log.open("a") as errors:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=errors, stderr=errors)


def progress(folder: Path, number: int, each: int) -> int:
    """Return the number of lines that the writers of a process have noted."""
    notes = (folder / f"writer.{writer}" for writer in range(number * each, (number + 1) * each))
    return sum(len(path.read_text().splitlines()) for path in notes if path.exists())


def orphans(table: sm.Table) -> list[str]:
    """Return the files in the metadata folder that no version of the table names."""
    roots = {Path(snapshot.root_manifest).name for snapshot in table.snapshots() if snapshot.root_manifest}
    leaves = {Path(row.path).name for row in table.inspect.all_manifests().collect()}
    names = {path.name for path in (Path(table.location().removeprefix("file://")) / "metadata").iterdir()}
    versions = {name for name in names if name.endswith(".metadata.json") and name.startswith("v")}
    return sorted(names - roots - leaves - versions - {"version-hint.text"})
