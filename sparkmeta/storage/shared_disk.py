"""Tell whether a Spark Connect server and its client see the same local files."""

from __future__ import annotations

import platform
import uuid
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from sparkmeta.errors import translated_errors
from sparkmeta.session import map_arrow
from sparkmeta.storage.location import local_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession

# Linux's id of a running kernel, which containers share.
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_SCHEMA = pa.schema([pa.field("identity", pa.string(), nullable=False)])


def shares_disk(spark: SparkSession, location: str) -> bool:
    """Return whether this process and a session's tasks see the same file or folder at a local path. Runs one task.

    If the path does not exist, the deepest existing folder above it counts. Machines that share a folder by a network
    are taken to see different ones, since its device and inode need not agree among them.
    """
    with translated_errors():
        rows = map_arrow(spark.range(0, 1, 1, 1), partial(_identities, location), _SCHEMA).collect()
    return [row.identity for row in rows] == [_identity(location)]


def _identities(location: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_arrays([pa.array([_identity(location)] * len(batch))], schema=_SCHEMA)


def _identity(location: str) -> str:
    """Return what tells the file at a path, or the deepest existing folder above it, from those of other machines."""
    path = Path(local_path(location))
    while not path.exists() and path != path.parent:
        path = path.parent
    status = path.stat()
    return f"{_machine()} {status.st_dev} {status.st_ino} {path}"


def _machine() -> str:
    if _BOOT_ID.exists():
        return _BOOT_ID.read_text().strip()
    return f"{platform.node()} {uuid.getnode()}"
