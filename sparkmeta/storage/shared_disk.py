"""Tell whether a Spark Connect server and its client see the same local files."""

from __future__ import annotations

import os
import platform
import uuid
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import pyarrow as pa

from sparkmeta.errors import translated_errors
from sparkmeta.session import map_arrow
from sparkmeta.storage.location import local_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession

# Linux's id of a running kernel, which containers share.
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_SCHEMA = pa.schema([pa.field("identity", pa.string())])
# By default, a range has a partition for each core of the server's executors, up to this number.
_ROWS = 10_000


def shares_disk(spark: SparkSession, location: str) -> bool:
    """Return whether this process and a session's tasks see the same file or folder at a local path.

    Runs a task for each core, and remembers the answer for the session. If the path does not exist, the deepest
    existing folder above it counts. Machines that share a folder by a network are taken to see different ones, since
    its device and inode need not agree among them. What this process may not read counts as different too.
    """
    identity = _identity(location, readable=True)
    if identity is None:
        return False
    known = _answers.setdefault(spark, {})
    if identity not in known:
        with translated_errors():
            rows = map_arrow(spark.range(_ROWS), partial(_identities, location), _SCHEMA).collect()
        known[identity] = {row.identity for row in rows} == {identity}
    return known[identity]


_answers: WeakKeyDictionary[SparkSession, dict[str, bool]] = WeakKeyDictionary()


def _identities(location: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        yield pa.RecordBatch.from_arrays([pa.array([_identity(location)], pa.string())], schema=_SCHEMA)


def _identity(location: str, *, readable: bool = False) -> str | None:
    """Return an identity of the file at a path, or of the deepest existing folder above it, among all machines.

    It is None if this process may not look at the path, or, if asked, not read the file or folder.
    """
    path = Path(local_path(location)).absolute()
    try:
        while not path.exists() and path != path.parent:
            path = path.parent
        status = path.stat()
    except OSError:
        return None
    if readable and not os.access(path, os.R_OK):
        return None
    return f"{_machine()} {status.st_dev} {status.st_ino} {path}"


def _machine() -> str:
    if _BOOT_ID.exists():
        return _BOOT_ID.read_text().strip()
    return f"{platform.node()} {uuid.getnode()}"
