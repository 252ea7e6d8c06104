"""The delete entries of a scan that joins match with data files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from sparkmeta.plan.deletes.kinds import delete_projection, equality_ids, only_dvs
from sparkmeta.plan.filter import matching_deletes
from sparkmeta.plan.pairs import owners
from sparkmeta.session import local_frame

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from sparkmeta.plan.choose import Choice


@dataclass(frozen=True)
class DeleteEntries:
    """The live delete entries of a scan.

    Attributes:
        entries: None if the scan opens no delete manifest.
        manifests: the manifests of the entries.
        equality_ids: every column that an equality delete compares; data stats are read for these.
        broadcast: whether the entries are few enough to be broadcast.
        only_dvs: whether all are deletion vectors that name their data file.
        on_driver: whether they are few rows on the driver, which groups them faster than a job would.
        data_on_driver: whether the data entries are there too.
        owners: small id of a leaf of a tree -> that of the data leaf that it is affiliated to.
    """

    entries: DataFrame | None
    manifests: pa.Table
    equality_ids: frozenset[int]
    broadcast: bool = False
    only_dvs: bool = False
    on_driver: bool = False
    data_on_driver: bool = False
    owners: Mapping[int, int] = field(default_factory=dict)

    def sized(self, frame: DataFrame) -> DataFrame:
        """Return a relation of deletes with a join hint, since Spark can't size what Python decodes."""
        return F.broadcast(frame) if self.broadcast else frame.hint("shuffle_hash")


def delete_entries(choice: Choice) -> DeleteEntries:
    """Read the live entries of the delete manifests that are joined: on the driver if they are few, else lazily."""
    manifests, scan_filter, broadcast = choice.deletes, choice.pruned.filter, choice.broadcast
    if not len(manifests):
        return DeleteEntries(None, manifests, frozenset(), broadcast)
    state, are_dvs = scan_filter.state, choice.figures.only_dvs
    compared = frozenset() if are_dvs else equality_ids(scan_filter, manifests)
    if are_dvs is None:
        are_dvs = not compared and only_dvs(state, manifests, by_job=not broadcast)
    projection = delete_projection(scan_filter, compared)
    if choice.driver_groups:
        entries = local_frame(state.spark, state.reader.table(manifests, projection))
    else:
        entries = state.entries(manifests, projection, choice.delete_reading.placement)
    matching = matching_deletes(entries, scan_filter)
    on_driver = (choice.driver_groups, choice.driver_joins)
    return DeleteEntries(matching, manifests, compared, broadcast, are_dvs, *on_driver, owners=owners(state, manifests))
