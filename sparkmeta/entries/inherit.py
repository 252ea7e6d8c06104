"""Fill nulls of entries from their manifest (table spec, Sequence Number Inheritance and First Row ID Inheritance).

This comes before any filter, since first row ids depend on every physical row before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.spec.entry import Status


@dataclass(frozen=True)
class ManifestContext:
    """The values of a manifest's row in the manifest list that entries inherit; None for no value.

    A manifest that is not committed yet has no sequence number.
    """

    snapshot_id: int | None
    sequence_number: int | None
    first_row_id: int | None


def inherited_snapshot_ids(snapshot_id: pa.Array, context: ManifestContext) -> pa.Array:
    """Replace null snapshot ids with the manifest's added snapshot id, for entries of any status."""
    if context.snapshot_id is None:
        return snapshot_id
    return pc.fill_null(snapshot_id, pa.scalar(context.snapshot_id, pa.int64()))


def inherited_sequence_numbers(sequence_number: pa.Array, status: pa.Array, context: ManifestContext) -> pa.Array:
    """Replace null sequence numbers with the manifest's, for ADDED entries and in manifests of sequence number 0 (v1).

    Other nulls, which older writers left, stay unknown.
    """
    if context.sequence_number is None:
        return sequence_number
    inherited = pa.scalar(context.sequence_number, pa.int64())
    if context.sequence_number == 0:
        return pc.fill_null(sequence_number, inherited)
    added = pc.equal(status, int(Status.ADDED))
    return pc.coalesce(sequence_number, pc.if_else(added, inherited, pa.scalar(None, pa.int64())))


def with_inherited_version(info: pa.StructArray, context: ManifestContext) -> pa.StructArray:
    """Return `version_info` with inheritance applied."""
    fields = dict(zip(info.type.names, info.flatten(), strict=True))
    fields["snapshot_id"] = inherited_snapshot_ids(fields["snapshot_id"], context)
    for name in ("sequence_number", "file_sequence_number"):
        fields[name] = inherited_sequence_numbers(fields[name], fields["status"], context)
    return pa.StructArray.from_arrays([*fields.values()], fields=list(info.type))


class RowIdCounter:
    """Assigns first row ids to the entries of one manifest, in physical order.

    The counter starts at the manifest's first row id. Every entry that is not DELETED and has no first row id gets the
    counter, which then advances by its record count. If the manifest has no first row id, no entry has one, unless the
    manifest is not committed yet.
    """

    def __init__(self, first_row_id: int | None, *, is_committed: bool = True) -> None:
        self._next = first_row_id
        self._is_committed = is_committed

    def assign(self, first_row_id: pa.Array, status: pa.Array, record_count: pa.Array) -> pa.Array:
        """Return the first row ids of the next entries (int64)."""
        if self._next is None:
            return pa.nulls(len(status), pa.int64()) if self._is_committed else first_row_id
        assigned = first_row_id.is_null().to_numpy(False) & (status.to_numpy(False) != Status.DELETED)
        counts = np.where(assigned, pc.fill_null(record_count, 0).to_numpy(False), 0)
        starts = self._next + np.cumsum(counts) - counts
        self._next += int(counts.sum())
        return pc.if_else(pa.array(assigned), pa.array(starts, pa.int64()), first_row_id)
