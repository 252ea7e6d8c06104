"""The kinds of files that snapshots count. Light: Spark tasks import this."""

from __future__ import annotations

from enum import Enum


class FileKind(Enum):
    """The kinds of files in summaries. A deletion vector counts as a file of the size of its blob."""

    DATA = "data"
    POSITION_DELETES = "position-deletes"
    EQUALITY_DELETES = "equality-deletes"
    DELETION_VECTOR = "deletion-vector"
