"""Count the rows of a scan: from metadata and deleted positions if these are exact, otherwise by reading.

They are exact for a file if its partition proves that the filter holds for all of its rows, and it has no equality
deletes, whose matches are unknown. Positions in a deletion vector are distinct, and metadata has their count. Position
delete files may list a row twice, or rows of other files, and are decoded. Other files are read, but only the columns
that are compared.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyspark.sql import functions as F

from sparkmeta.columns import sql
from sparkmeta.columns.expression_json import TRUE_JSON
from sparkmeta.errors import translated_errors
from sparkmeta.manifests.placement import Placement
from sparkmeta.manifests.v4.root import is_live
from sparkmeta.plan.coplan import coplanned_table
from sparkmeta.plan.filter import data_projection
from sparkmeta.plan.rows import DELETES
from sparkmeta.rows import masks
from sparkmeta.rows.delete_sets import Flags, Indices
from sparkmeta.rows.planned import PlannedFiles, plan_rows
from sparkmeta.rows.read import RowScan, rows_of
from sparkmeta.spec.entry import ContentType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.columns.sql import Sql
    from sparkmeta.plan.choose import Choice
    from sparkmeta.state import TableState

_PUFFIN: Final = "PUFFIN"
_MATCHES_WHOLE: Final = "matches_whole"
# The number of set bits in each 16-bit number.
_BITS_SET: Final = (
    np.unpackbits(np.arange(1 << 16, dtype=np.uint16).view(np.uint8)).reshape(-1, 16).sum(axis=1, dtype=np.uint8)
)


def count_rows(choice: Choice) -> int:
    """Count the rows of a scan.

    Runs no job if there is no filter, all deletes are deletion vectors and the manifests are small. Otherwise runs one
    job over the plan: it adds up the rows if there is no filter and all deletes may be deletion vectors, and collects
    the files on the driver if not. If files have to be read, another job reads them.

    Raises:
        ValidationError: as `read_rows`.
        CorruptFileError: as `read_rows`.
        NotFoundError: as `read_rows`.
    """
    if (rows := _count_on_driver(choice)) is not None:
        return rows
    plan = plan_rows(choice)
    if _vectors_may_be_all(choice) and (rows := _count_by_job(plan.frame)) is not None:
        return rows
    state = choice.pruned.filter.state
    marked = replace(plan, frame=plan.frame.selectExpr("*", _matches_whole().alias(_MATCHES_WHOLE).selected))
    files = PlannedFiles.of([marked], state, _MATCHES_WHOLE)
    is_counted = _are_counted(files)
    counted, others = files.filter(is_counted), files.filter(~is_counted)
    rows = _count_by_positions(counted, state)
    if len(others):
        with translated_errors():
            rows += rows_of(RowScan(choice.pruned.filter, Schema(), ("_pos",)), others).count()
    return rows


def _count_on_driver(choice: Choice) -> int | None:
    """Add up the live entries of manifests that the driver decodes; None if these don't suffice."""
    pruned = choice.pruned
    if not pruned.filter.keeps_all or len(choice.deletes):
        return None
    state = pruned.filter.state
    projection = state.projection(("version_info", "record_count"))
    entries = state.reader.driver_table(choice.data, projection)
    if entries is None:
        return None
    entries = entries.filter(is_live(entries))
    counts, deleted = entries.column("record_count"), 0
    if choice.coplanned is not None:
        if choice.coplanned.reading.placement is not Placement.DRIVER:
            return None
        joined = coplanned_table(pruned.filter, choice.coplanned, data_projection(pruned.filter))
        joined = joined.filter(is_live(joined))
        counts = pa.chunked_array([*counts.chunks, *joined.column("record_count").chunks], pa.int64())
        deleted = pc.sum(joined.column("dv_records"), min_count=0).as_py()
    is_known = pc.all(pc.greater_equal(counts, 0), min_count=0).as_py()
    return int(pc.sum(counts, min_count=0).as_py()) - deleted if is_known else None


def _vectors_may_be_all(choice: Choice) -> bool:
    """Return whether there is no filter and all deletes may be deletion vectors."""
    pruned, figures = choice.pruned, choice.figures
    may_be_vectors = figures.format_version >= 3 and figures.only_dvs is not False
    return pruned.filter.keeps_all and (may_be_vectors or not len(pruned.deletes))


def _count_by_job(planned: DataFrame) -> int | None:
    """Add up the rows of a plan; None if a file's count is not exact or it has deletes other than deletion vectors."""
    deletes = sql.col(DELETES)
    only_vectors = sql.forall(deletes, lambda delete: sql.call("upper", delete["file_format"]) == _PUFFIN)
    is_exact = _matches_whole() & only_vectors
    deleted = sql.aggregate(deletes, sql.lit(0).cast("bigint"), lambda rows, delete: rows + delete["record_count"])
    rows = sql.when(is_exact, sql.col("record_count") - deleted)
    with translated_errors():
        ((known, are_exact),) = planned.select(
            F.coalesce(F.sum(rows.column()), F.lit(0)), F.coalesce(F.bool_and(is_exact.column()), F.lit(True))
        ).collect()
    return int(known) if are_exact else None


def _matches_whole() -> Sql:
    """Return whether the filter holds for all rows of a file and their number is known."""
    return (sql.col("residual") == TRUE_JSON) & (sql.col("record_count") >= 0)


def _are_counted(files: PlannedFiles) -> Flags:
    """Return which files' rows can be counted without reading them."""
    flags: Flags = files.table.column(_MATCHES_WHOLE).to_numpy() & masks.fits(_listed_word_counts(files))
    flags &= ~files.have(ContentType.EQUALITY_DELETES)
    paths = files.table.column("file_path").combine_chunks().dictionary_encode().indices.to_numpy()
    flags &= np.bincount(paths)[paths] == 1  # positions are found by path
    return flags


def _listed_word_counts(files: PlannedFiles) -> Indices:
    """Return the `word_counts` of files with position delete files; 0 for others."""
    is_listed = files.sets.any(files.shared_deletes(ContentType.POSITION_DELETES))[files.set_codes]
    of_file = files.file_deletes
    is_listed[of_file.filter(pc.invert(_are_vectors(of_file))).column("owner").to_numpy()] = True
    return np.where(is_listed, masks.word_counts(files), 0)


def _are_vectors(deletes: pa.Table) -> pa.ChunkedArray:
    return pc.equal(pc.utf8_upper(deletes.column("file_format")), _PUFFIN)


def _count_by_positions(files: PlannedFiles, state: TableState) -> int:
    """Count the rows of files by their deletion vectors and position delete files."""
    deleted = pc.sum(
        files.file_deletes.filter(_are_vectors(files.file_deletes)).column("record_count"), min_count=0
    ).as_py()
    counts = _listed_word_counts(files)
    for rows in masks.batches(np.flatnonzero(counts), counts):
        words = masks.masked_words(state, files, rows, masks.numbers(counts[rows]))
        deleted += int(_BITS_SET[words.view(np.uint16)].sum())
    return int(pc.sum(files.table.column("record_count"), min_count=0).as_py()) - int(deleted)
