"""Live entries, and the counts of entries in manifests."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.expr import sql
from sparkmeta.expr.arrays import whole
from sparkmeta.expr.sql import Sql
from sparkmeta.spec.entry import ContentType, Status

# -- Live entries -----------------------------------------------------------------------------------------------------


def is_live(entries: pa.Table | pa.RecordBatch) -> Any:
    """Return whether each entry is live, that is, not DELETED."""
    return pc.not_equal(pc.struct_field(entries.column("version_info"), "status"), int(Status.DELETED))


def is_kind(kind: ContentType) -> Sql:
    """Return the condition that an entry has a content type."""
    return sql.col("content_type") == int(kind)


def is_live_entry() -> Sql:
    """Return `is_live` as SQL."""
    return sql.col("version_info.status") != int(Status.DELETED)


# -- Counts of manifests ----------------------------------------------------------------------------------------------


LIVE_FILES: Final = ("added_files_count", "existing_files_count")
LIVE_ROWS: Final = ("added_rows_count", "existing_rows_count")
FILE_COUNTS: Final = (*LIVE_FILES, "deleted_files_count")
# Estimated bytes of an entry, for manifests without counts.
ENTRY_BYTES: Final = 200
ROW_COUNTS: Final = (*LIVE_ROWS, "deleted_rows_count")


def manifest_counts(entries: pa.Table) -> dict[str, int | None]:
    """Return the counts that manifest lists and roots store for a manifest, by the names of their fields.

    These are the numbers of files and of their rows by status, and the least sequence number of live entries. It is
    None if no live entry has a number. Entries that inherit their number are ignored, since it is higher than all
    others.

    Args:
        entries: the manifest's entries with `version_info` and `record_count`.
    """
    version, records = entries.column("version_info"), entries.column("record_count")
    status, numbers = (pc.struct_field(version, name) for name in ("status", "sequence_number"))
    counts: dict[str, int | None] = {}
    for value in Status:
        has_status = pc.equal(status, int(value))
        counts[f"{value.name.lower()}_files_count"] = pc.sum(has_status).as_py() or 0
        counts[f"{value.name.lower()}_rows_count"] = pc.sum(records.filter(has_status)).as_py() or 0
    counts["min_sequence_number"] = pc.min(numbers.filter(is_live(entries))).as_py()
    return counts


def sums(manifests: pa.Table | pa.RecordBatch, names: Sequence[str]) -> pa.Array:
    """Return the sum of the named counts for each manifest; null if any of them is unknown.

    Args:
        manifests: rows with the counts in `manifest_stats`, as in roots, or as columns, as in manifest lists.
        names: the names of the counts.
    """
    return reduce(pc.add, (values.cast(pa.int64()) for values in _columns(manifests, names)))


def may_be_live(manifests: pa.Table | pa.RecordBatch) -> pa.Array:
    """Return whether each manifest may have live files. This is false only if its counts say that there are none."""
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


def estimated_entry_counts(manifests: pa.Table, size: str) -> pa.Array:
    """Return the number of entries of each manifest, estimated from its bytes if it has no counts.

    Args:
        manifests: see `sums`.
        size: the name of the column with the bytes of manifests; null counts as 0.
    """
    estimates = pc.divide(whole(manifests.column(size)), ENTRY_BYTES)
    return pc.fill_null(pc.coalesce(sums(manifests, FILE_COUNTS), estimates), 0)


def _total(counts: pa.Array) -> int | None:
    return None if counts.null_count else pc.sum(counts).as_py() or 0


def _columns(manifests: pa.Table | pa.RecordBatch, names: Sequence[str]) -> list[pa.Array]:
    if "manifest_stats" not in manifests.schema.names:
        return [whole(manifests.column(name)) for name in names]
    stats = whole(manifests.column("manifest_stats"))
    return [pc.struct_field(stats, name) for name in names]
