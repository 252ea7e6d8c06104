"""The entries of a scan: its data files, and the deletes that are joined with them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkmeta.plan.coplan import coplanned_entries
from sparkmeta.plan.deletes.entries import DeleteEntries, delete_entries
from sparkmeta.plan.filter import ScanFilter, data_projection, matching_entries

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from sparkmeta.plan.choose import Choice


@dataclass(frozen=True)
class ScanEntries:
    """What is read of the chosen manifests.

    Attributes:
        choice: how the scan's manifests are read.
        data: the live data entries that may match; those of co-planned manifests have the columns that `with_dv` takes.
        deletes: the deletes that are joined.
    """

    choice: Choice
    data: DataFrame
    deletes: DeleteEntries


def read_entries(choice: Choice) -> ScanEntries:
    """Read the entries of a scan: few manifests at once, on the driver; all else lazily, when Spark runs the plan."""
    deletes = delete_entries(choice)
    scan_filter, coplanned = choice.pruned.filter, choice.coplanned
    if coplanned is None:
        return ScanEntries(choice, data_entries(scan_filter, choice.data, deletes.equality_ids), deletes)
    together = coplanned_entries(scan_filter, coplanned, data_projection(scan_filter, deletes.equality_ids))
    data = matching_entries(together, scan_filter)
    if len(choice.data):
        alone = data_entries(scan_filter, choice.data, deletes.equality_ids)
        data = data.unionByName(alone, allowMissingColumns=True)
    return ScanEntries(choice, data, deletes)


def data_entries(scan_filter: ScanFilter, manifests: pa.Table, stats_ids: Iterable[int] = ()) -> DataFrame:
    """Read the live data entries that may match, with stats of the undecided columns and of `stats_ids`."""
    entries = scan_filter.state.entries(manifests, data_projection(scan_filter, stats_ids))
    return matching_entries(entries, scan_filter)
