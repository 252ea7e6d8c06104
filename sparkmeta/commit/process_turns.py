"""Let the processes of a machine commit to a table in turn.

A commit that loses to another process starts again, and waits longer after each loss. Where several processes commit
small changes without a pause, most of the work is lost, and a process may lose for minutes. So they take turns by a
lock. A commit is as safe without it: processes of other machines compete anyway, and no process waits long for a turn.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from sparkmeta.operations.table_operations import TableT

# The longest time to wait for a turn, and the time between two attempts to lock, in seconds.
_LONGEST, _PAUSE = 10.0, 0.002


def commit_in_turn(table: TableT, commit: Callable[[TableT], TableT]) -> TableT:
    """Wait until no other process of this user has its turn to commit to the table, then commit.

    The lock is a file in the folder of temporary files, which holds the location of the version that the last turn
    committed. If it can't be used, commit without it.

    Args:
        table: the version to commit to. If the last turn committed another one, it is refreshed.
        commit: commits to a version, and returns the next one.
    """
    lock = _opened(table.metadata.location)
    if lock is None:
        return commit(table)
    try:
        is_locked = _locked(lock)
        # A commit to a catalog that accepts updates begins with the newest version anyway.
        if table.operations.replaces_metadata and _recorded(lock) not in ("", table.metadata_location):
            table = table.refresh()
        committed = commit(table)
        if is_locked:
            _record(lock, committed.metadata_location)
        return committed
    finally:
        os.close(lock)


def _opened(location: str) -> int | None:
    """Open the lock of the table at a location; None if it can't be opened."""
    if sys.platform == "win32":
        return None
    name = hashlib.sha256(location.encode()).hexdigest()[:32]
    folder = Path(tempfile.gettempdir(), f"sparkmeta-turns-{os.getuid()}")
    with suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        return os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    return None


def _locked(lock: int) -> bool:
    """Lock the file; return whether that succeeded in time. The lock ends when the file is closed."""
    import fcntl  # not available on Windows

    end = time.monotonic() + _LONGEST
    while True:
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if time.monotonic() > end:
            return False
        time.sleep(_PAUSE)


def _recorded(lock: int) -> str:
    """Return the location of the version that the last turn committed; empty if it is not known."""
    with suppress(OSError):
        return os.pread(lock, 1 << 16, 0).decode(errors="replace")
    return ""


def _record(lock: int, location: str) -> None:
    """Record the location of a version. An error would be taken for a failure of the commit, which has succeeded."""
    with suppress(OSError):
        os.ftruncate(lock, os.pwrite(lock, location.encode(), 0))
