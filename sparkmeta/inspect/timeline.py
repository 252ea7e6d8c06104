"""The snapshots of a table as moments of a chart of its history."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from sparkmeta.charts import Moment
from sparkmeta.spec.summary import summary_number

if TYPE_CHECKING:
    from sparkmeta.spec.metadata import TableMetadata


def snapshots_by_time(metadata: TableMetadata, marked: Collection[int] = (), limit: int = 160) -> list[Moment]:
    """Return the snapshots of a table by time, without reading any file.

    Args:
        marked: the ids of the snapshots to mark.
        limit: the number of snapshots in an even sample, if the table has more. The newest snapshots with refs, at most
            as many, are returned too.
    """
    refs: dict[int, list[str]] = {}
    for name, ref in metadata.refs.items():
        refs.setdefault(ref.snapshot_id, []).append(name)
    ordered = sorted(metadata.snapshots, key=lambda snapshot: snapshot.timestamp_ms)[::-1]
    # The newest snapshot comes first, so that the sample contains it.
    step = max(1, -(-len(ordered) // limit))
    with_refs = [index for index, snapshot in enumerate(ordered) if snapshot.snapshot_id in refs][:limit]
    indices = sorted({*range(0, len(ordered), step), *with_refs}, reverse=True)
    return [
        Moment(
            ordered[index].timestamp_ms,
            summary_number(ordered[index], "total-data-files"),
            summary_number(ordered[index], "total-files-size"),
            ordered[index].snapshot_id in marked,
            tuple(sorted(refs.get(ordered[index].snapshot_id, ()))),
        )
        for index in indices
    ]
