"""How many rows a scan has: from metadata where these are exact, else by reading.

The metadata of a file are exact where the filter holds for all of its rows by their partition, and its deletes are
deletion vectors, whose positions differ. Position delete files may name a row twice or rows of other files, and
equality deletes don't tell what they match: files with these are read, without columns that nobody compares.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyspark.sql import functions as F

from sparkmeta.columns import sql
from sparkmeta.columns.expression_json import TRUE_JSON
from sparkmeta.manifests.v4.root import is_live
from sparkmeta.plan.rows import DELETES
from sparkmeta.rows.planned import PlannedFiles, plan_rows, translated_errors
from sparkmeta.rows.read import RowScan, rows_of

if TYPE_CHECKING:
    from sparkmeta.columns.sql import Sql
    from sparkmeta.plan.choose import Choice


def count_rows(choice: Choice) -> int:
    """Count the rows of a scan.

    No job, if nothing is filtered or deleted and the manifests are small; else one over the plan, and a second one over
    rows if files have to be read.

    Raises:
        ValidationError: as `read_rows`.
    """
    if (rows_in_manifests := _count_on_driver(choice)) is not None:
        return rows_in_manifests
    planned = plan_rows(choice)
    is_exact, deletes = _is_exact(), sql.col(DELETES)
    deleted = sql.aggregate(deletes, sql.lit(0).cast("bigint"), lambda rows, delete: rows + delete["record_count"])
    rows = sql.when(is_exact, sql.col("record_count") - deleted)
    with translated_errors():
        ((known, unknown),) = planned.select(
            F.coalesce(F.sum(rows.column()), F.lit(0)), F.count_if((~is_exact).column())
        ).collect()
        if not unknown:
            return int(known)
        files = PlannedFiles.of(planned.where((~is_exact).text), choice.pruned.filter.state)
        return int(known) + rows_of(RowScan(choice.pruned.filter, Schema(), ("_pos",)), files).count()


def _count_on_driver(choice: Choice) -> int | None:
    """Add up the live entries of manifests that the driver decodes; None where these don't tell."""
    pruned = choice.pruned
    if not pruned.filter.keeps_all or len(pruned.deletes):
        return None
    state = pruned.filter.state
    entries = state.reader.driver_table(pruned.data, state.projection(("version_info", "record_count")))
    if entries is None:
        return None
    counts = entries.filter(is_live(entries)).column("record_count")
    is_known = pc.all(pc.greater_equal(counts, 0), min_count=0).as_py()
    return int(pc.sum(counts, min_count=0).as_py()) if is_known else None


def _is_exact() -> Sql:
    only_vectors = sql.forall(sql.col(DELETES), lambda delete: sql.call("upper", delete["file_format"]) == "PUFFIN")
    return (sql.col("residual") == TRUE_JSON) & (sql.col("record_count") >= 0) & only_vectors
