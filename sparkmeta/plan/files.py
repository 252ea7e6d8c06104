"""The engine on one page: which data files a scan reads, and which deletes apply to each.

    ScanFilter -> PrunedManifests -> Choice    -> ScanEntries -> MatchedEntries -> rows of plan_files
    filter.py     prune.py           choose.py    match.py       match.py          files.py

Each step is one function that takes the value of the previous step. Each value holds the previous one, so a
`MatchedEntries` leads back to its choice, manifests and filter. `Scan` creates the first three values, each once;
`plan_files` creates the others from a `Choice`.

What runs when:

- Creating a `Scan` reads nothing. Its methods create the values above, the first three once per scan.
- `prune_manifests` reads the manifest list or the V4 root on the driver. It opens no manifest and runs no job.
- `choose` opens delete manifests in one case: a snapshot of format version 3 with a manifest list of Avro manifests,
  executors that can open files, and a setting `planning` other than `join`. Tasks match the deletes of such a snapshot
  if all of them are deletion vectors. To find out, the driver reads the delete manifests if these and the data
  manifests are small (the setting `driver-manifest-bytes`); otherwise a job does. A V4 root has this information.
- `plan_files` returns a lazy DataFrame, with these exceptions. The driver decodes small manifests at once, to Arrow. If
  it has decoded all data files and all deletes to be joined, it matches them too, and builds the DataFrame from the
  result. If it has decoded only the deletes, a query over these local rows computes their keys, and the driver groups
  them. Before other deletes are joined, up to two jobs inspect them. The first collects the columns that equality
  deletes compare, unless the snapshot's summary counts no equality deletes. If there are none, the second checks
  whether all deletes are deletion vectors.
- `plan_files_arrow` starts no session if the driver decodes and matches everything: at most 300,000 pairs of a data
  file and a delete (`plan/costs.py`), and no manifests that the manifest cache lacks.
- The DataFrame does everything else when it runs: it opens the other manifests, matches deletes, and checks them.
- `count_files` takes the `PrunedManifests`. Without a filter, it adds up the counts of manifests; it opens only
  manifests without counts, and runs no job if all have counts. With a filter, it counts the matching entries by a job,
  unless the driver decodes the manifests or none is left. It never reads deletes.
- `report` plans the files, and counts the entries of the opened manifests: each by a job, unless the driver reads them.
- `plan_tasks` and `plan_task_json` pack the rows of `plan_files` and write their JSON: at once if the driver has them,
  otherwise lazily, in tasks.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, LongType, StringType, StructType

from sparkmeta.arrow_types import arrow_schema
from sparkmeta.entries.relation import collected, frame_of, select, with_types
from sparkmeta.entries.relation import count as count_rows
from sparkmeta.errors import translated_errors
from sparkmeta.expr import sql
from sparkmeta.expr.sql import Aliased, Sql
from sparkmeta.plan.choose import result_of
from sparkmeta.plan.filter import (
    DELETES,
    DELETES_TYPE,
    SharedTexts,
    data_projection,
    deletes_type,
    manifest_path,
    public_partition,
    public_partition_type,
    residual_json,
)
from sparkmeta.plan.match import MatchedEntries, data_entries, match_deletes, read_entries
from sparkmeta.plan.prune import PrunedManifests
from sparkmeta.snapshot.search import live_files
from sparkmeta.storage.encryption import KEY_METADATA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.entries.relation import Relation
    from sparkmeta.plan.choose import Choice
    from sparkmeta.snapshot.state import TableState

_PLAN_TYPES: dict[str, DataType] = {
    "file_path": StringType(),
    "file_format": StringType(),
    "spec_id": IntegerType(),
    "record_count": LongType(),
    "file_size_in_bytes": LongType(),
    "split_offsets": ArrayType(LongType()),
    "sort_order_id": IntegerType(),
    "first_row_id": LongType(),
    "data_sequence_number": LongType(),
    "manifest_path": StringType(),
    "manifest_pos": LongType(),
    DELETES: DELETES_TYPE,
    "residual": StringType(),
}


def plan_files(choice: Choice) -> DataFrame:
    """Plan a scan: one row per data file that may hold matching rows.

    Columns: file_path, file_format, spec_id, partition (if the table has any), record_count, file_size_in_bytes,
    split_offsets, sort_order_id, first_row_id, data_sequence_number, key_metadata (if the table is encrypted, as in the
    elements of deletes), manifest_path, manifest_pos, deletes (in the order of Iceberg's DeleteFileIndex: global
    equality, partition equality, then DV or position deletes; each by ascending sequence number), residual (Iceberg's
    expression JSON).

    Deletes must not contradict each other or their data files (`plan.deletes.rules`). If they do, the DataFrame fails
    when it runs; if the driver decodes the manifests, this call fails. Deletes in pruned manifests are not checked.

    Raises:
        ValidationError: manifests that the driver decodes contain such a contradiction.
    """
    started = time.perf_counter()
    rows = planned_rows(matched := match_deletes(read_entries(choice)))
    choice.report(started, partial(result_of, matched.rows))
    return frame_of(rows, choice.pruned.filter.state)


def plan_files_arrow(choice: Choice) -> pa.Table:
    """Return the rows of `plan_files` in memory. For many files, runs a job.

    Raises:
        ValidationError: as `plan_files`.
    """
    started = time.perf_counter()
    rows = _planned_files(choice)
    table = in_memory(rows, plan_schema(choice.pruned.filter.state))
    choice.report(started, partial(result_of, table))
    return table


def planned_files(choice: Choice, *extra: Aliased) -> Relation:
    """Return the rows of `plan_files`, in memory if the driver plans them.

    Args:
        choice: how the scan's manifests are read and their deletes matched.
        extra: further text columns of the data entry, to append.

    Raises:
        ValidationError: as `plan_files`.
    """
    started = time.perf_counter()
    rows = _planned_files(choice, *extra)
    choice.report(started, partial(result_of, rows))
    return rows


def _planned_files(choice: Choice, *extra: Aliased) -> Relation:
    matched = match_deletes(read_entries(choice))
    rows = planned_rows(matched, *extra, texts=SharedTexts.of(matched.rows, sys.maxsize))
    schema = plan_schema(choice.pruned.filter.state)
    for column in extra:
        schema = schema.add(column.name, "string")
    return with_types(rows, {field.name: field for field in arrow_schema(schema)})


def in_memory(rows: Relation, row_type: StructType) -> pa.Table:
    """Return rows in memory, with the types of this package. For a DataFrame, runs a job."""
    with translated_errors():
        return collected(rows).cast(arrow_schema(row_type))


def planned_rows(matched: MatchedEntries, *extra: Aliased, texts: SharedTexts | None = None) -> Relation:
    """Convert matched entries to the public rows of `plan_files`.

    Args:
        matched: the entries.
        extra: further columns to append.
        texts: collects long texts; by default only texts that would take much memory in the rows.
    """
    pruned = matched.choice.pruned
    texts = texts or SharedTexts.of(matched.rows)
    columns = [*_public_columns(pruned, texts), *extra]
    return select(texts.joined_to(matched.rows, pruned.filter.state), columns)


def count_files(pruned: PrunedManifests) -> int:
    """Count the rows of `plan_files` without reading or checking deletes.

    Without a filter, adds up the live files of the manifests, without the files that manifest DVs mask (they mask only
    live entries). Manifests without counts, which v1 tables may have, are read. With a filter, counts the matching
    entries of the data manifests; the driver decodes small ones.
    """
    counts = live_files(pruned.data)
    is_known = counts.is_valid() if pruned.filter.keeps_all else pa.repeat(pa.scalar(False), len(pruned.data))
    count: int = pc.sum(counts.filter(is_known)).as_py() or 0
    uncounted = pruned.data.filter(pc.invert(is_known))
    if not len(uncounted):
        return count
    return count + count_rows(data_entries(pruned.filter, uncounted, data_projection(pruned.filter)))


def plan_schema(state: TableState) -> StructType:
    """Return the row type of `plan_files`."""
    schema = StructType()
    for name, kind in _PLAN_TYPES.items():
        schema.add(name, deletes_type(state.is_encrypted) if name == DELETES else kind)
        if name == "data_sequence_number" and state.is_encrypted:
            schema.add(KEY_METADATA, BinaryType())
        if name == "spec_id" and state.types.partition_type.fields:
            schema.add("partition", public_partition_type(state))
    return schema


def file_columns(state: TableState) -> dict[str, Sql]:
    """Return the columns of `plan_files` that show the fields of a data entry."""
    return {
        "file_path": sql.col("location"),
        "file_format": sql.col("file_format"),
        "spec_id": sql.col("partition_spec_id"),
        **({"partition": public_partition(state)} if state.types.partition_type.fields else {}),
        "record_count": sql.col("record_count"),
        "file_size_in_bytes": sql.col("file_size_in_bytes"),
        "split_offsets": sql.col("split_offsets"),
        "sort_order_id": sql.col("sort_order_id"),
        "first_row_id": sql.col("first_row_id"),
        "data_sequence_number": sql.col("version_info.sequence_number"),
        **{name: sql.col(name) for name in state.key_columns},
    }


def _public_columns(pruned: PrunedManifests, texts: SharedTexts) -> list[Aliased]:
    values = {
        **file_columns(pruned.filter.state),
        "manifest_path": manifest_path(pruned.data, sql.col("manifest")),
        "manifest_pos": sql.col("ordinal"),
        DELETES: sql.col(DELETES),
        "residual": residual_json(pruned.filter, texts.literal),
    }
    return sql.named(values)
