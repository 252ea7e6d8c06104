"""Of what kinds the deletes of a scan are: it decides how they are matched, and what is read of data files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.errors import ValidationError
from sparkmeta.manifests.projection import EntryProjection
from sparkmeta.manifests.v4.root import is_live as live_rows
from sparkmeta.plan import costs
from sparkmeta.plan.deletes.rules import NOT_A_DV
from sparkmeta.plan.deletes.views import arrow_entry_view, entry_view
from sparkmeta.plan.filter import ScanFilter, entry_filter, is_live
from sparkmeta.spec.entry import DELETE_FILE_PATH_ID

if TYPE_CHECKING:
    from sparkmeta.state import TableState

DV_COLUMNS = (
    "content_type",
    "location",
    "file_format",
    "version_info",
    "deletion_vector",
    "partition_spec_id",
    "record_count",
    "file_size_in_bytes",
    "referenced_file",
)
_DELETE_COLUMNS = (*DV_COLUMNS, "equality_ids")


def only_dvs(state: TableState, manifests: pa.Table, *, by_job: bool) -> bool:
    """Tell whether all live deletes are deletion vectors that name their data file.

    Those of trees are, but for equality deletes. Else nothing tells but the entries: the driver looks at few.

    Args:
        state: the table.
        manifests: its delete manifests.
        by_job: whether a job looks at many; without, these pass for deletes of any kind.
    """
    if state.tree is not None and not state.tree.is_upgraded:
        return True
    if state.metadata.format_version < 3:
        return False
    projection = EntryProjection.of(("content_type", "file_format", "version_info", "referenced_file"))
    if (entries := state.reader.driver_table(manifests, projection)) is not None:
        return all_dvs(entries)
    if not by_job:
        return False
    others = is_live() & NOT_A_DV.broken({}, entry_view())
    return state.entries(manifests, projection).where(others.text).count() == 0


def dv_projection(scan_filter: ScanFilter) -> EntryProjection:
    """Return what is read of deletion vectors: those that may be of use for the filter."""
    live = entry_filter(scan_filter, by_stats=False)
    return replace(scan_filter.state.projection(DV_COLUMNS), entry_filter=live)


def delete_projection(scan_filter: ScanFilter, equality_ids: Iterable[int] = ()) -> EntryProjection:
    """Return what is read of deletes that are joined. equality_ids: the columns that equality deletes compare."""
    stats = {DELETE_FILE_PATH_ID, *equality_ids, *scan_filter.undecided_ids}
    return replace(scan_filter.state.projection(_DELETE_COLUMNS, stats), entry_filter=entry_filter(scan_filter))


def all_dvs(entries: pa.Table) -> bool:
    """Tell whether the live ones of some delete entries are all deletion vectors that name their data file."""
    others = NOT_A_DV.broken({}, arrow_entry_view(entries)).array
    return not pc.any(pc.and_(others, live_rows(entries))).as_py()


def equality_ids(scan_filter: ScanFilter, manifests: pa.Table) -> frozenset[int]:
    """Return the distinct equality ids of the deletes, at most one for each column; no job where there are none.

    Raises:
        ValidationError: an id that no schema of the table ever had.
    """
    state = scan_filter.state
    projection = state.projection(("version_info", "equality_ids"))
    summary = state.snapshot.summary if state.snapshot else None
    if (decoded := state.reader.driver_table(manifests, projection, costs.COSTS.driver_deletes)) is not None:
        ids = pc.list_flatten(decoded.column("equality_ids").filter(live_rows(decoded))).unique().to_pylist()
    elif summary is not None and summary.additional_properties.get("total-equality-deletes") == "0":
        return frozenset()
    else:
        entries = state.entries(manifests, projection).where(is_live().text)
        ids = entries.select(F.explode("equality_ids").alias("id")).distinct().toArrow().column("id").to_pylist()
    for unknown in sorted(set(ids).difference(state.types.fields)):
        raise ValidationError(f"{state.metadata.location}: equality_ids has {unknown}: no schema has such a field")
    return frozenset(ids)
