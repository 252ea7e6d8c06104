"""Keep the last epoch of each stream in a table property, so that it outlives the snapshot that records it.

The remaining snapshots of a branch decide whether an epoch is committed, so that a rollback undoes it. If they record
no epoch of the stream, and older snapshots have expired, the property decides. An epoch in the property that is newer
than the oldest remaining snapshot does not count: its snapshot did not expire, but was rolled back.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from sparkmeta.spec.metadata import snapshot_of
from sparkmeta.spec.metadata_model import Snapshot, Summary
from sparkmeta.spec.summary import last_version

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.spec.summary import IdempotencyKey

_PROPERTY: Final = "sparkmeta.stream.{}.{}"
_VALUE: Final = re.compile(" ".join(["([0-9]{1,19})"] * 4))


class _Record(NamedTuple):
    """The value of the property. In format version 1, sequence numbers are 0, and times order the snapshots."""

    epoch: int
    snapshot_id: int
    sequence_number: int
    timestamp_ms: int


def with_epoch(metadata: TableMetadata, branch: str, key: IdempotencyKey) -> TableMetadata:
    """Return metadata that keeps the epoch of the snapshot that has just become the head of a branch."""
    head = snapshot_of(metadata, metadata.refs[branch].snapshot_id)
    record = _Record(key.version, head.snapshot_id, head.sequence_number or 0, head.timestamp_ms)
    name = _PROPERTY.format(key.application, branch)
    return metadata.model_copy(update={"properties": metadata.properties | {name: " ".join(map(str, record))}})


def earlier_repetition(
    metadata: TableMetadata, branch: str, history: Sequence[Snapshot], key: IdempotencyKey
) -> Snapshot | None:
    """Return the snapshot that recorded an epoch of a stream, or a later one, before a branch's history; or None.

    An expired snapshot is returned with only its id, and the key in its summary.

    Args:
        metadata: the metadata.
        branch: the branch.
        history: its snapshots that the table has, newest first.
        key: the stream and its epoch.
    """
    record = _earlier(metadata, branch, history, key.application)
    if record is None or record.epoch < key.version:
        return None
    summary = Summary(**key._replace(version=record.epoch).properties)
    expired = Snapshot.model_construct(snapshot_id=record.snapshot_id, summary=summary)
    return metadata.snapshot_by_id(record.snapshot_id) or expired


def earlier_epoch(metadata: TableMetadata, branch: str, history: Sequence[Snapshot], application: str) -> int | None:
    """Return the last epoch of a stream that a snapshot before a branch's history recorded, or None."""
    record = _earlier(metadata, branch, history, application)
    return None if record is None else record.epoch


def _earlier(metadata: TableMetadata, branch: str, history: Sequence[Snapshot], application: str) -> _Record | None:
    match = _VALUE.fullmatch(metadata.properties.get(_PROPERTY.format(application, branch), ""))
    if match is None or not history or last_version(history, application) is not None:
        return None
    record, oldest = _Record(*map(int, match.groups())), history[-1]
    if oldest.parent_snapshot_id is None:
        return None
    order = (record.sequence_number, record.timestamp_ms)
    return record if order < (oldest.sequence_number or 0, oldest.timestamp_ms) else None
