"""The last epoch of each stream, in a table property, so that it outlives the snapshot that records it.

As long as the table has the snapshot, the history of its branch decides whether the epoch is committed, so that a
rollback undoes it. Once the snapshot has expired, the property decides.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from sparkmeta.spec.metadata_model import Snapshot, Summary

if TYPE_CHECKING:
    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.spec.summary import IdempotencyKey

_PROPERTY: Final = "sparkmeta.stream.{}.{}"
_VALUE: Final = re.compile(r"([0-9]{1,19}) ([0-9]{1,19})")


class _Last(NamedTuple):
    epoch: int
    snapshot_id: int


def with_epoch(metadata: TableMetadata, branch: str, key: IdempotencyKey) -> TableMetadata:
    """Return metadata that keeps the epoch of the snapshot that has just become the head of a branch."""
    head = metadata.refs[branch].snapshot_id
    kept = {_PROPERTY.format(key.application, branch): f"{key.version} {head}"}
    return metadata.model_copy(update={"properties": metadata.properties | kept})


def expired_repetition(metadata: TableMetadata, branch: str, key: IdempotencyKey) -> Snapshot | None:
    """Return the expired snapshot that recorded an epoch of a stream or a later one, or None.

    It has only an id, and the key in its summary.
    """
    last = _last(metadata, branch, key.application)
    if last is None or last.epoch < key.version:
        return None
    summary = Summary(**key._replace(version=last.epoch).properties)
    return Snapshot.model_construct(snapshot_id=last.snapshot_id, summary=summary)


def expired_epoch(metadata: TableMetadata, branch: str, application: str) -> int | None:
    """Return the last epoch of a stream if its snapshot has expired, or None."""
    last = _last(metadata, branch, application)
    return None if last is None else last.epoch


def _last(metadata: TableMetadata, branch: str, application: str) -> _Last | None:
    found = _VALUE.fullmatch(metadata.properties.get(_PROPERTY.format(application, branch), ""))
    last = None if found is None else _Last(*map(int, found.groups()))
    return None if last is None or metadata.snapshot_by_id(last.snapshot_id) is not None else last
