"""Determine the kinds of a scan's deletes, which decide the matching and the columns read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.entries.projection import EntryProjection
from sparkmeta.errors import ValidationError
from sparkmeta.manifests.v4.root import is_live as live_rows
from sparkmeta.plan import costs
from sparkmeta.plan.deletes.rules import NOT_A_DV
from sparkmeta.plan.deletes.views import arrow_entry_view, entry_view
from sparkmeta.plan.filter import ScanFilter, entry_filter, is_live
from sparkmeta.spec.entry import DELETE_FILE_PATH_ID
from sparkmeta.spec.summary import summary_number

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
    """Return whether all live deletes are deletion vectors that name their data file.

    In trees, all deletes but equality deletes are. Otherwise the entries are read, few manifests on the driver.

    Args:
        state: the table.
        manifests: its delete manifests.
        by_job: whether to read many manifests by a job, or to return False for these.
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
    """Return the projection of deletion vectors, with a filter for those that may be needed."""
    live = entry_filter(scan_filter, by_stats=False)
    return replace(scan_filter.state.projection(DV_COLUMNS), entry_filter=live)


def delete_projection(scan_filter: ScanFilter, equality_ids: Iterable[int] = ()) -> EntryProjection:
    """Return the projection of deletes that are joined.

    Args:
        equality_ids: the columns that equality deletes compare.
    """
    stats = {DELETE_FILE_PATH_ID, *equality_ids, *scan_filter.undecided_ids}
    needed = entry_filter(scan_filter, by_stats=not scan_filter.reads_all_rows)
    return replace(scan_filter.state.projection(_DELETE_COLUMNS, stats), entry_filter=needed)


def all_dvs(entries: pa.Table) -> bool:
    """Return whether all live delete entries are deletion vectors that name their data file."""
    others = NOT_A_DV.broken({}, arrow_entry_view(entries)).array
    return not pc.any(pc.and_(others, live_rows(entries))).as_py()


def equality_ids(scan_filter: ScanFilter, manifests: pa.Table) -> frozenset[int]:
    """Return the columns that equality deletes compare. Runs a job unless the summary counts no equality deletes.

    Raises:
        ValidationError: no schema of the table has had a column with an id.
    """
    state = scan_filter.state
    projection = state.projection(("version_info", "equality_ids"))
    if (decoded := state.reader.driver_table(manifests, projection, costs.COSTS.driver_deletes)) is not None:
        ids = pc.list_flatten(decoded.column("equality_ids").filter(live_rows(decoded))).unique().to_pylist()
    elif summary_number(state.snapshot, "total-equality-deletes") == 0:
        return frozenset()
    else:
        entries = state.entries(manifests, projection).where(is_live().text)
        ids = entries.select(F.explode("equality_ids").alias("id")).distinct().toArrow().column("id").to_pylist()
    for unknown in sorted(set(ids).difference(state.types.fields)):
        raise ValidationError(f"{state.metadata.location}: equality_ids has {unknown}: no schema has such a field")
    return frozenset(ids)
