"""Deduplicate deletes that apply to several data files, and the sets in which they apply.

Thousands of equality deletes may apply to each of thousands of files, and files of one partition and commit have the
same ones. A plan therefore sends the driver eight bytes per pair of a file and such a delete, and the driver keeps only
the distinct sets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.entries.arrays import whole
from sparkmeta.errors import SparkmetaError

Flags = np.ndarray[Any, np.dtype[np.bool_]]
Indices = np.ndarray[Any, np.dtype[np.int64]]

ENTRY_ID: Final = "entry_id"
ENTRY: Final = ("manifest_path", "manifest_pos")
"""The identity of an entry; its hash is the `ENTRY_ID`."""

_BYTES: Final = 8


@dataclass(frozen=True)
class DeleteSets:
    """Sets of deletes.

    Attributes:
        deletes: the deletes.
        members: the members of all sets, one set after another, as indices into `deletes`.
        offsets: the start of each set in `members`, followed by the end of the last one.
    """

    deletes: pa.Table
    members: Indices
    offsets: Indices

    @staticmethod
    def none(schema: pa.Schema) -> DeleteSets:
        """Return a single empty set and no deletes."""
        return DeleteSets(schema.empty_table(), np.zeros(0, np.int64), np.zeros(2, np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def any(self, of_deletes: Flags) -> Flags:
        """Return which sets contain any of the flagged deletes."""
        counts = np.concatenate([[0], np.cumsum(of_deletes[self.members])])
        flags: Flags = counts[self.offsets[1:]] > counts[self.offsets[:-1]]
        return flags

    def members_of(self, sets: Indices) -> tuple[Indices, Indices]:
        """Return the members of sets, and for each member the index of its set in `sets`."""
        starts, lengths = self.offsets[sets], np.diff(self.offsets)[sets]
        ends = np.cumsum(lengths)
        places = np.arange(lengths.sum()) + np.repeat(starts - (ends - lengths), lengths)
        return np.repeat(np.arange(len(sets)), lengths), self.members[places]

    def with_sets(self, lengths: Indices, members: Indices) -> DeleteSets:
        """Append further sets of the same deletes."""
        offsets = np.concatenate([self.offsets, self.offsets[-1] + np.cumsum(lengths)])
        return DeleteSets(self.deletes, np.concatenate([self.members, members]), offsets)


def delete_sets(ids: pa.Array, deletes: pa.Table, schema: pa.Schema) -> tuple[Indices, DeleteSets]:
    """Return the set of each file, and the distinct sets.

    Args:
        ids: the delete ids of each file.
        deletes: `ENTRY_ID`, `ENTRY` and the columns of `schema`. An entry may occur several times.
        schema: the schema of the deletes in the sets.

    Raises:
        SparkmetaError: two entries have the same hash.
    """
    known, deletes = _distinct(deletes)
    lengths = pc.list_value_length(ids).to_numpy(zero_copy_only=False)
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    buffers = [None, pa.py_buffer(ends * _BYTES), pa.py_buffer(ids.flatten().to_numpy())]
    encoded = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(ids), buffers).dictionary_encode()
    distinct = encoded.dictionary
    offsets = np.frombuffer(distinct.buffers()[1], np.int64, len(distinct) + 1) // _BYTES
    members = np.frombuffer(distinct.buffers()[2] or b"", np.int64, int(offsets[-1]))
    places = np.searchsorted(known, members)
    if not np.array_equal(known[np.minimum(places, len(known) - 1)], members):
        raise SparkmetaError("a plan has deletes that are in no manifest which it read")
    sets = DeleteSets(deletes.select(schema.names).cast(schema), places, offsets)
    return encoded.indices.to_numpy().astype(np.int64), sets


def _distinct(deletes: pa.Table) -> tuple[Indices, pa.Table]:
    """Return the distinct ids in ascending order, and a delete for each."""
    ids = deletes.column(ENTRY_ID).to_numpy()
    known, firsts, places = np.unique(ids, return_index=True, return_inverse=True)
    entries = [whole(deletes.column(name)) for name in ENTRY]
    for column in entries:
        if len(known) < len(ids) and not column.equals(column.take(pa.array(firsts[places]))):
            raise SparkmetaError("two entries of delete manifests have the same hash")
    return known, deletes.take(pa.array(firsts))
