"""Counts of files, rows and entries, as manifest lists and roots have them for each manifest. Without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.entries.arrays import whole
from sparkmeta.spec.entry import Status

LIVE_FILES: Final = ("added_files_count", "existing_files_count")
LIVE_ROWS: Final = ("added_rows_count", "existing_rows_count")
FILE_COUNTS: Final = (*LIVE_FILES, "deleted_files_count")
ROW_COUNTS: Final = (*LIVE_ROWS, "deleted_rows_count")


def manifest_counts(entries: pa.Table) -> dict[str, int | None]:
    """Return the counts of a manifest that lists and roots have, by the names of their fields.

    These are the numbers of files and of their rows by status, and the least sequence number of live entries, which is
    None if none of them has one: an entry that inherits its number has one that is higher than all others.

    Args:
        entries: the manifest's entries with `version_info` and `record_count`.
    """
    version, records = entries.column("version_info"), entries.column("record_count")
    status, numbers = (pc.struct_field(version, name) for name in ("status", "sequence_number"))
    counts: dict[str, int | None] = {}
    for value in Status:
        of_status = pc.equal(status, int(value))
        counts[f"{value.name.lower()}_files_count"] = pc.sum(of_status).as_py() or 0
        counts[f"{value.name.lower()}_rows_count"] = pc.sum(records.filter(of_status)).as_py() or 0
    live = numbers.filter(pc.not_equal(status, int(Status.DELETED)))
    counts["min_sequence_number"] = pc.min(live).as_py()
    return counts


def sums(manifests: pa.Table | pa.RecordBatch, names: Sequence[str]) -> pa.Array:
    """Return the sum of some counts for each manifest; null if one of them is unknown.

    Args:
        manifests: rows with the counts in `manifest_stats`, as in roots, or as columns, as in manifest lists.
        names: the names of the counts.
    """
    return reduce(pc.add, (values.cast(pa.int64()) for values in _columns(manifests, names)))


def may_be_live(manifests: pa.Table | pa.RecordBatch) -> pa.Array:
    """Return which manifests may have live files: all but those whose counts say that there are none."""
    zeros = (pc.fill_null(pc.equal(count, 0), False) for count in _columns(manifests, LIVE_FILES))
    return pc.invert(reduce(pc.and_, zeros))


def live_counts(manifests: pa.Table | pa.RecordBatch) -> pa.Array:
    """Return the number of entries of each manifest that are not DELETED; null if unknown."""
    return sums(manifests, LIVE_FILES)


def live_count(manifests: pa.Table) -> int | None:
    """Return the total number of entries that are not DELETED; None if a manifest has no counts."""
    return _total(live_counts(manifests))


def entry_count(manifests: pa.Table) -> int | None:
    """Return the total number of entries of manifests; None if one has no counts."""
    return _total(sums(manifests, FILE_COUNTS))


def _total(counts: pa.Array) -> int | None:
    return None if counts.null_count else pc.sum(counts).as_py() or 0


def _columns(manifests: pa.Table | pa.RecordBatch, names: Sequence[str]) -> list[pa.Array]:
    if "manifest_stats" not in manifests.schema.names:
        return [whole(manifests.column(name)) for name in names]
    stats = whole(manifests.column("manifest_stats"))
    return [pc.struct_field(stats, name) for name in names]
