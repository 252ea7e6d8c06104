"""Read the entries of a scan and match data files with their deletes, by joins or in tasks that read both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sparkmeta.entries.manifest_records import whole_manifests
from sparkmeta.entries.projection import MANIFEST, EntryProjection
from sparkmeta.entries.relation import frame_of, names, select, union
from sparkmeta.expr import sql
from sparkmeta.manifests.placement import Placement
from sparkmeta.plan.choose import dv_projection
from sparkmeta.plan.coplan_tasks import DV_KEY, UNITS, CoplanTask, join_known_dvs, join_units, one_dv_a_file
from sparkmeta.plan.deletes.attach import attach_deletes
from sparkmeta.plan.deletes.groups import DeleteEntries, delete_entries
from sparkmeta.plan.deletes.rules import TWO_DVS
from sparkmeta.plan.filter import (
    DELETES,
    ScanFilter,
    data_projection,
    deletes_type,
    manifest_path,
    matching_entries,
    shown_deletes,
)
from sparkmeta.session import map_by_tasks, map_on_driver
from sparkmeta.spec.entry import ContentType
from sparkmeta.storage.encryption import KEY_METADATA

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from pyspark.sql import DataFrame

    from sparkmeta.entries.relation import Relation
    from sparkmeta.expr.sql import Sql
    from sparkmeta.manifests.v4.tree_manifests import Tree
    from sparkmeta.plan.choose import Choice, Coplanned
    from sparkmeta.session import MapFunction
    from sparkmeta.snapshot.state import TableState


# -- Co-planning: one task reads data and delete manifests ------------------------------------------------------------
# No entry is shuffled, and a delete entry enters the JVM only with its data file (V4 proposal, Affinity). A tree's data
# leaf is paired with the delete manifests that are affiliated with it; an Avro manifest is paired with the delete
# manifests of the same partitions.


def coplanned_entries(scan_filter: ScanFilter, coplanned: Coplanned, data: EntryProjection) -> Relation:
    """Read the live entries of data manifests, each with its deletion vector from the paired delete manifests.

    The result contains the columns of `data`, and the columns that `with_dv` converts to a delete. If entries violate
    one of the `rules` or a manifest is damaged, a DataFrame fails when it runs, and this call fails for a table.

    A DV does not apply if its Avro manifest lists no deletes of its file's partition (table spec, Scan Planning). Such
    a DV is not checked. DVs paired with a data manifest that has no file for the filter are not checked either.

    Args:
        scan_filter: the scan's filter.
        coplanned: the manifests.
        data: the projection of data entries.
    """
    if coplanned.reading.placement is Placement.DRIVER:
        return coplanned_table(scan_filter, coplanned, data)
    return map_by_tasks(scan_filter.state.spark, *_joining(scan_filter, coplanned, data))


def coplanned_table(scan_filter: ScanFilter, coplanned: Coplanned, data: EntryProjection) -> pa.Table:
    """Return the entries of `coplanned_entries` as Arrow, read on the driver and including entries that are not live.

    Raises:
        ValidationError: entries violate one of the `rules`.
    """
    return map_on_driver(*_joining(scan_filter, coplanned, data))


def _joining(
    scan_filter: ScanFilter, coplanned: Coplanned, data: EntryProjection
) -> tuple[pa.Table, MapFunction, pa.Schema]:
    """Return units of work, the function that joins the data entries and DVs of each, and its output schema."""
    state, dvs = scan_filter.state, coplanned.dvs
    placement = coplanned.reading.placement
    assert placement is not None
    task = CoplanTask(data, dv_projection(scan_filter), state.reader.decoder(placement))
    if dvs is not None:
        return state.reader.parts(coplanned.data, data), partial(join_known_dvs, task, one_dv_a_file(dvs)), task.schema
    units = _leaf_units(state.tree, coplanned) if state.tree is not None else _part_units(state, coplanned, task)
    return pa.Table.from_pylist(units, schema=UNITS), partial(join_units, task), task.schema


def with_dv(joined: Sql, deletes: pa.Table, *, encrypted: bool) -> Sql:
    """Return the deletes of a data entry: the joined deletes, and the DV from `coplanned_entries`.

    Args:
        joined: deletes from other delete manifests, of `deletes_type`.
        deletes: the delete manifests that were read together with the data.
        encrypted: whether the table is encrypted.
    """
    dv = sql.struct(
        sql.lit(int(ContentType.POSITION_DELETES)).alias("content"),
        sql.col("dv_location").alias("file_path"),
        sql.lit("PUFFIN").alias("file_format"),
        sql.col("dv_file_size").alias("file_size_in_bytes"),
        sql.col("location").alias("referenced_data_file"),
        sql.col("dv_offset").alias("content_offset"),
        sql.col("dv_size").alias("content_size_in_bytes"),
        sql.col("dv_records").alias("record_count"),
        sql.col("dv_sequence").alias("data_sequence_number"),
        sql.lit(None).cast("array<int>").alias("equality_ids"),
        manifest_path(deletes, sql.col("dv_manifest")).alias("manifest_path"),
        sql.col("dv_ordinal").alias("manifest_pos"),
        *([sql.col(DV_KEY.name).alias(KEY_METADATA)] if encrypted else []),
    )
    only_dv = sql.array(dv)
    has_another = sql.exists(joined, lambda delete: delete["file_format"] == "PUFFIN")
    refused = TWO_DVS.raised(sql.col("location"), as_type=deletes_type(encrypted))
    equality = sql.filter(joined, lambda delete: delete["content"] == int(ContentType.EQUALITY_DELETES))
    merged = sql.when(sql.size(joined) == 0, only_dv).when(has_another, refused)
    return sql.when(sql.col("dv_location").isNull(), joined).otherwise(merged.otherwise(sql.concat(equality, only_dv)))


def _leaf_units(tree: Tree, coplanned: Coplanned) -> list[dict[str, Any]]:
    """Return one row of `UNITS` per data leaf."""
    masks = {row[MANIFEST]: row for row in tree.manifest_dvs.to_pylist()}

    def leaves(manifests: pa.Table) -> list[dict[str, Any]]:
        return [{**row, "mask": masks.get(row[MANIFEST])} for row in whole_manifests(manifests).to_pylist()]

    deletes = {leaf[MANIFEST]: leaf for leaf in leaves(coplanned.deletes)}
    return [
        {"data": leaf, "deletes": [deletes[partner] for partner in coplanned.partners[leaf[MANIFEST]]]}
        for leaf in leaves(coplanned.data)
    ]


def _part_units(state: TableState, coplanned: Coplanned, task: CoplanTask) -> list[dict[str, Any]]:
    """Return one row of `UNITS` per part of a data manifest, ordered so that neighbours share delete manifests."""

    def by_manifest(parts: pa.Table) -> Mapping[int, list[dict[str, Any]]]:
        rows: dict[int, list[dict[str, Any]]] = {}
        for row in parts.to_pylist():
            rows.setdefault(row[MANIFEST], []).append(row)
        return rows

    parts = by_manifest(state.reader.parts(coplanned.data, task.data, split=True))
    deletes = by_manifest(state.reader.parts(coplanned.deletes, task.deletes))
    return [
        {"data": part, "deletes": [row for partner in partners for row in deletes[partner]]}
        for manifest, partners in coplanned.partners.items()
        for part in parts[manifest]
    ]


# -- Read the entries of a scan ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScanEntries:
    """The entries of the chosen manifests.

    Attributes:
        choice: how the scan's manifests are read.
        data: the live data entries that may match. Entries of co-planned manifests have the columns for `with_dv`.
        deletes: the deletes that are joined.
    """

    choice: Choice
    data: Relation
    deletes: DeleteEntries


def read_entries(choice: Choice, columns: Iterable[str] = ()) -> ScanEntries:
    """Read the entries of a scan: few manifests at once on the driver, others when Spark runs the plan.

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
        others = data_entries(scan_filter, choice.data, projection, placement, deletes.equality_ids)
        data = union(data, others, scan_filter.state)
    return ScanEntries(choice, data, deletes)


def data_entries(
    scan_filter: ScanFilter,
    manifests: pa.Table,
    projection: EntryProjection,
    placement: Placement | None = None,
    joined_ids: Collection[int] = (),
) -> Relation:
    """Read the live data entries that may match.

    Args:
        scan_filter: the scan's filter.
        manifests: the data manifests.
        projection: the columns and stats to read.
        placement: where to read them. Defaults to their reader's choice.
        joined_ids: the columns whose stats a join uses later.
    """
    return matching_entries(scan_filter.state.relation(manifests, projection, placement), scan_filter, joined_ids)


# -- Match data entries with their deletes ----------------------------------------------------------------------------


@dataclass(frozen=True)
class MatchedEntries:
    """The data entries of a scan with `deletes`, the array of deletes that apply to each.

    Attributes:
        choice: how they are read and matched.
        rows: the entries.
    """

    choice: Choice
    rows: Relation

    @property
    def frame(self) -> DataFrame:
        """The entries as a DataFrame."""
        return frame_of(self.rows, self.choice.pruned.filter.state)


def match_deletes(entries: ScanEntries) -> MatchedEntries:
    """Match data entries with their deletes: at once if the driver has read them, else lazily.

    Raises:
        ValidationError: deletes that the driver has read violate one of the `rules`. For others, the plan fails when
            it runs.
    """
    choice = entries.choice
    matched = attach_deletes(entries.data, entries.deletes, choice.pruned.filter.state)
    if choice.coplanned is not None:
        merged = with_dv(sql.col(DELETES), choice.coplanned.deletes, encrypted=entries.deletes.encrypted)
        columns = [sql.col(sql.quoted(name)).alias(name) for name in names(entries.data)]
        matched = select(matched, [*columns, shown_deletes(merged)])
    return MatchedEntries(choice, matched)
