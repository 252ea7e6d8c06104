"""Deletes grouped by data file, partition or table, each group an array in ascending sequence number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.columns import sql
from sparkmeta.entries.arrays import whole
from sparkmeta.plan.deletes.facts import FACTS, group_facts
from sparkmeta.plan.deletes.keys import KEY, OF_FILE, OF_PARTITION, OF_TABLE, delete_key
from sparkmeta.plan.deletes.rules import TWO_DVS, repeated_paths, second_dv
from sparkmeta.plan.deletes.views import delete_struct, is_global
from sparkmeta.session import local_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.plan.deletes.entries import DeleteEntries
    from sparkmeta.state import TableState

GROUP: Final = "group_of_deletes"


@dataclass(frozen=True)
class DeleteGroups:
    """The deletes of a scan, grouped.

    Attributes:
        grouped: the columns `KEY` and `GROUP`; an Arrow table where the driver has the deletes.
        scopes: what some deletes are, or may be, about: of `OF_FILE`, `OF_PARTITION` and `OF_TABLE`.
    """

    grouped: DataFrame | pa.Table
    scopes: Sequence[str]

    def frame(self, deletes: DeleteEntries, state: TableState) -> DataFrame:
        """Return the groups with their `FACTS`, where there are others than of files.

        The frame fails, when it runs, for two DVs of one file: the check is part of the key, which no optimizer drops.
        """
        rows = local_frame(state.spark, self.grouped) if isinstance(self.grouped, pa.Table) else self.grouped
        group = sql.col(GROUP)
        second = second_dv(group)
        key = sql.when(second.isNotNull(), TWO_DVS.raised(second, as_type="bigint")).otherwise(sql.col(KEY))
        facts = [] if self.scopes == [OF_FILE] else [group_facts(group, deletes, state).alias(FACTS).selected]
        return rows.selectExpr(key.alias(KEY).selected, GROUP, *facts)


def delete_groups(entries: DataFrame, deletes: DeleteEntries, state: TableState) -> DeleteGroups:
    """Group the delete entries by data file, partition or table: on the driver if it has read them, else by a job."""
    keyed = entries.selectExpr(
        delete_key(deletes, state).alias(KEY).selected, delete_struct(state).alias("delete").selected
    )
    if deletes.on_driver:
        rows = keyed.toArrow()
        return DeleteGroups(_grouped(rows), _scopes(rows.column("delete")))
    scopes = [OF_FILE] if deletes.only_dvs else [OF_FILE, OF_PARTITION]
    if deletes.equality_ids and any(map(is_global, state.specs.values())):
        scopes.append(OF_TABLE)
    return DeleteGroups(keyed.groupBy(KEY).agg(F.expr(f"sort_array(collect_list(delete)) AS {GROUP}")), scopes)


def refuse_second_dvs(groups: pa.Table) -> None:
    """Raise ValidationError for two DVs of one file in groups on the driver."""
    deletes = whole(groups.column(GROUP)).flatten()
    repeated = repeated_paths(deletes.field("data_path").filter(deletes.field("is_dv")))
    TWO_DVS.refuse(repeated.is_valid(), lambda row: (repeated[row],))


def _scopes(deletes: pa.ChunkedArray) -> list[str]:
    of_file, of_table = pc.struct_field(deletes, "data_path").is_valid(), pc.struct_field(deletes, "is_global")
    by_scope = {OF_FILE: of_file, OF_PARTITION: pc.invert(pc.or_(of_file, of_table)), OF_TABLE: of_table}
    return [scope for scope, is_of in by_scope.items() if pc.any(is_of).as_py()]


def _grouped(keyed: pa.Table) -> pa.Table:
    """Group rows of a key and a delete as Spark's `sort_array(collect_list(delete))` does."""
    fields = ("sequence_number", "manifest", "ordinal")  # the first of a delete, and together unique
    columns = {KEY: keyed.column(KEY), **{name: pc.struct_field(keyed.column("delete"), name) for name in fields}}
    order = pc.sort_indices(pa.table(columns), [(name, "ascending") for name in columns])
    keys, deletes = (whole(keyed.column(name)).take(order) for name in (KEY, "delete"))
    runs = pc.run_end_encode(keys)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), runs.run_ends])
    return pa.table({KEY: runs.values, GROUP: pa.ListArray.from_arrays(offsets, deletes)})
