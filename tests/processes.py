"""The processes below another one, for tests that kill them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def below(root: int) -> dict[int, tuple[int, bytes]]:
    """Return the processes below one, by their ids, with the id of the parent and the command."""
    running = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdecimal():
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                running[int(entry.name)] = parent, (entry / "cmdline").read_bytes()
    known = new = {root}
    while new := {pid for pid, (parent, _) in running.items() if parent in new}:
        known = known | new
    return {pid: running[pid] for pid in sorted(known - {root} & running.keys())}


def workers(root: int) -> list[int]:
    """Return the Python processes of Spark below a process: the forks of its daemons, and those that plan streams."""
    running = below(root)
    daemons = {pid for pid, (_, command) in running.items() if b"pyspark.daemon" in command}
    return [
        pid
        for pid, (parent, command) in running.items()
        if (pid in daemons and parent in daemons) or b"streaming_source_runner" in command
    ]


def executors(root: int) -> list[int]:
    """Return the JVMs of executors below a process."""
    return [pid for pid, (_, command) in below(root).items() if b"CoarseGrainedExecutorBackend" in command]
