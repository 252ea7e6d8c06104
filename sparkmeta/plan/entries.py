"""Read the entries of a scan: its data files and the deletes that are joined with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkmeta.plan.coplan import coplanned_entries
from sparkmeta.plan.deletes.entries import DeleteEntries, delete_entries
from sparkmeta.plan.filter import ScanFilter, data_projection, matching_entries

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from sparkmeta.entries.projection import EntryProjection
    from sparkmeta.manifests.placement import Placement
    from sparkmeta.plan.choose import Choice


@dataclass(frozen=True)
class ScanEntries:
    """The entries of the chosen manifests.

    Attributes:
        choice: how the scan's manifests are read.
        data: the live data entries that may match. Those of co-planned manifests have the columns that `with_dv` takes.
        deletes: the deletes that are joined.
    """

    choice: Choice
    data: DataFrame
    deletes: DeleteEntries


def read_entries(choice: Choice, columns: Iterable[str] = ()) -> ScanEntries:
    """Read the entries of a scan. The driver reads few manifests at once; others are read when Spark runs the plan.

    Args:
        choice: how they are read.
        columns: columns of data entries that planning itself does not need, such as `lower_bounds`.
    """
    deletes = delete_entries(choice)
    scan_filter, coplanned = choice.pruned.filter, choice.coplanned
    projection, placement = data_projection(scan_filter, deletes.equality_ids, columns), choice.data_reading.placement
    if coplanned is None:
        data = data_entries(scan_filter, choice.data, projection, placement, deletes.equality_ids)
        return ScanEntries(choice, data, deletes)
    coplanned_data = coplanned_entries(scan_filter, coplanned, projection)
    data = matching_entries(coplanned_data, scan_filter, deletes.equality_ids)
    if len(choice.data):
        alone = data_entries(scan_filter, choice.data, projection, placement, deletes.equality_ids)
        data = data.unionByName(alone, allowMissingColumns=True)
    return ScanEntries(choice, data, deletes)


def data_entries(
    scan_filter: ScanFilter,
    manifests: pa.Table,
    projection: EntryProjection,
    placement: Placement | None = None,
    joined_ids: Collection[int] = (),
) -> DataFrame:
    """Read the live data entries that may match.

    Args:
        scan_filter: the scan's filter.
        manifests: the data manifests.
        projection: the columns and stats to read.
        placement: where to read them. Defaults to their reader's choice.
        joined_ids: the columns whose stats a join uses later.
    """
    return matching_entries(scan_filter.state.entries(manifests, projection, placement), scan_filter, joined_ids)
