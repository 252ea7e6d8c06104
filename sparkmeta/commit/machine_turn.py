"""Let the processes of a machine commit to a table in turn.

A commit that loses to another process starts again, and waits longer after each loss. Where several processes commit
small changes without a pause, most of the work is lost, and a process may lose for minutes. So they take turns by a
lock. A commit is as safe without it: processes of other machines compete, and a turn that takes long is not waited for.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic

from sparkmeta.operations.table_operations import TableT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkmeta.operations.table_operations import TableVersion

# The longest time to wait for a turn, and the time between two looks, in seconds.
_LONGEST, _PAUSE = 10.0, 0.002


@dataclass
class Turn(Generic[TableT]):
    """The turn of a process.

    Attributes:
        table: the version to commit to: the newest one, unless a process without turns has committed.
        committed: the version that was committed; None before.
    """

    table: TableT
    committed: TableVersion | None = None


@contextmanager
def machine_turn(table: TableT) -> Iterator[Turn[TableT]]:
    """Wait until no other process of this user commits to the table in its turn.

    The lock is a file in the folder of temporary files, which holds the location of the version that the last turn
    committed.
    """
    descriptor = _opened(table.metadata.location)
    if descriptor is None:
        yield Turn(table)
        return
    try:
        is_locked = _locked(descriptor)
        last = os.pread(descriptor, 1 << 16, 0).decode(errors="replace")
        # A commit to a catalog that accepts updates begins with the newest version anyway.
        is_outdated = table.operations.replaces_metadata and last not in ("", table.metadata_location)
        turn = Turn(table.refresh() if is_outdated else table)
        yield turn
        if is_locked and turn.committed is not None:
            text = turn.committed.metadata_location.encode()
            os.ftruncate(descriptor, os.pwrite(descriptor, text, 0))
    finally:
        os.close(descriptor)


def _opened(location: str) -> int | None:
    """Open the lock of the table at a location; None if there can be none."""
    if sys.platform == "win32":
        return None
    name = hashlib.sha256(location.encode()).hexdigest()[:32]
    folder = Path(tempfile.gettempdir(), f"sparkmeta-turns-{os.getuid()}")
    with suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        return os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    return None


def _locked(descriptor: int) -> bool:
    """Lock the file; return whether that succeeded in time. The lock ends when the file is closed."""
    import fcntl  # Windows has none

    end = time.monotonic() + _LONGEST
    while True:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if time.monotonic() > end:
            return False
        time.sleep(_PAUSE)
