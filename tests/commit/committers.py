"""Processes that commit to one table, some of them killed: `python -m tests.commit.committers kind uri folder ...`.

The kind "metadata" swaps only metadata. "tree" commits to a tree (`tree_committers`), and "compaction" does so beside
compactors (`tree_compactors`). "list" appends manifests to a manifest list (`list_committers`).

This separate process imports everything once, and forks the workers, so that a killed worker is replaced at once.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sparkmeta.errors import CommitFailedError, CommitStateUnknownError
from tests.commit import list_committers, tree_committers, tree_compactors
from tests.commit.places import open_operations
from tests.commit.tables import appended

if TYPE_CHECKING:
    from collections.abc import Callable

    from sparkmeta.operations.table_operations import TableOperations

WORKERS = 8
# Beside compactors.
WRITERS, COMPACTORS = 4, 2
# The long form takes half an hour on a busy machine. After this many seconds, a process hangs.
LONGEST = 3600


def main(kind: str, uri: str, folder: str, workers: int, commits: int, seed: int, kills: int) -> None:
    """Run the workers until each has made its commits, and print how many times one was killed."""
    chance = random.Random(seed)
    working = {start(kind, uri, folder, worker, commits): worker for worker in range(workers)}
    try:
        killed = _killed_at_random(working, kills, chance, partial(start, kind, uri, folder, commits=commits))
    finally:
        for pid in working:
            os.kill(pid, signal.SIGKILL)
    print(json.dumps({"killed": killed}))  # noqa: T201


def _killed_at_random(
    working: dict[int, int], kills: int, chance: random.Random, start_again: Callable[[int], int]
) -> int:
    """Wait until no worker is left in `working` (process id -> number), and return how many were killed."""
    end = time.monotonic() + LONGEST
    killed = 0
    while working:
        time.sleep(chance.uniform(0.01, 0.15))
        if killed < kills:
            os.kill(chance.choice(list(working)), signal.SIGKILL)
            killed += 1
        while working and (child := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = child
            worker = working.pop(pid)
            if os.WIFSIGNALED(status):
                working[start_again(worker)] = worker
            elif os.waitstatus_to_exitcode(status):
                raise SystemExit(f"worker {worker} failed")
        if time.monotonic() > end:
            raise SystemExit("the workers hang")
    return killed


def start(kind: str, uri: str, folder: str, worker: int, commits: int) -> int:
    if pid := os.fork():
        return pid
    code = 1
    try:
        swap = open_operations(uri, Path(folder))
        if kind == "compaction" and worker >= WRITERS:
            tree_compactors.work(swap, Path(folder), worker, WRITERS, commits)
        else:
            does = {"metadata": work, "list": list_committers.work}.get(kind, tree_committers.work)
            does(swap, Path(folder), worker, commits)
        code = 0
    except BaseException:  # noqa: BLE001 - os._exit shows none
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def work(swap: TableOperations, folder: Path, worker: int, commits: int) -> None:
    """Raise the worker's counter in the table to ``commits``, one per commit, and note the outcome of each commit."""
    name = f"worker.{worker}"
    chance = random.Random(os.getpid())
    with (folder / name).open("a") as notes:
        while True:
            base = swap.refresh()
            step = int(base.metadata.properties.get(name, "0")) + 1
            if step > commits:
                return
            try:
                outcome = "done"
                swap.commit(base, appended(base.metadata, **{name: str(step), "author": f"{worker}/{step}"}))
            except CommitFailedError:
                outcome = "failed"
            except CommitStateUnknownError:
                outcome = "unknown"
            notes.write(f"{outcome} {step}\n")
            notes.flush()
            if outcome == "failed":
                time.sleep(chance.uniform(0, 0.02))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], *(int(argument) for argument in sys.argv[4:8]))
