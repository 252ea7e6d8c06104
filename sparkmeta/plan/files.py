"""The engine on one page: which data files a scan must read, each with the deletes that apply to it.

    filter -> pruned manifests -> choice -> entries -> matched entries -> rows of plan_files

Each step is a module with one entry function, which takes the value before it: `filter.ScanFilter`,
`prune.prune_manifests`, `choose.choose`, `entries.read_entries`, `match.match_deletes`, `planned_rows`. A scan makes
each value once.

What runs when:

- `prune_manifests` reads the manifest list or the V4 root, and runs no job. It opens no manifest.
- `choose` opens none either, but for the delete manifests of an Avro list of format version 3 where tasks may match
  (the setting `planning`): it has to know whether they hold deletion vectors alone. The driver reads them where they
  and the data manifests are few (the setting `driver_manifest_bytes`), else one query does.
- `plan_files` makes a DataFrame. What is read at once, on the driver, are few manifests (the same setting). A query of
  local rows groups few deletes that are to be joined. Of many, one query looks for the columns of equality deletes,
  unless the snapshot's summary says that there are none, and one for other kinds among what may be DVs alone. All else
  runs when the DataFrame does.
- `count_files` follows `prune_manifests` alone. Without a filter it opens no manifest that has counts, and runs no job;
  with one, a query counts the entries of the data manifests that may match. It never looks for deletes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import ArrayType, DataType, IntegerType, LongType, StringType, StructType

from sparkmeta.columns import sql
from sparkmeta.columns.sql import Aliased
from sparkmeta.plan.entries import data_entries, read_entries
from sparkmeta.plan.filter import data_projection, residual_json
from sparkmeta.plan.match import MatchedEntries, match_deletes
from sparkmeta.plan.prune import PrunedManifests, live_files
from sparkmeta.plan.rows import (
    DELETES,
    DELETES_TYPE,
    SharedTexts,
    manifest_path,
    public_partition,
    public_partition_type,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.plan.choose import Choice
    from sparkmeta.state import TableState

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


def plan_files(choice: Choice, *extra: Aliased) -> DataFrame:
    """Plan a scan: one row a data file that may hold matching rows.

    Columns: file_path, file_format, spec_id, partition (where the table has any), record_count, file_size_in_bytes,
    split_offsets, sort_order_id, first_row_id, data_sequence_number, manifest_path, manifest_pos, deletes (the order of
    Iceberg's DeleteFileIndex: global equality, partition equality, then DV or position deletes; ascending sequence
    number in each), residual (Iceberg's expression JSON).

    The frame fails, when it runs, for metadata of deletes that contradicts itself (`deletes.rules`), but for DVs in
    manifests that have none of the file's partition: they may not be looked at.

    Args:
        choice: how the scan's manifests are read and their deletes matched.
        extra: further columns of the data entry to show after these.

    Raises:
        ValidationError: such a contradiction, among manifests that the driver reads.
    """
    return planned_rows(match_deletes(read_entries(choice)), *extra)


def planned_rows(matched: MatchedEntries, *extra: Aliased) -> DataFrame:
    """Return matched entries as the public rows of `plan_files`."""
    texts, pruned = SharedTexts(), matched.choice.pruned
    columns = sql.texts([*_public_columns(pruned, texts), *extra])
    return texts.joined_to(matched.frame, pruned.filter.state.spark).selectExpr(*columns)


def count_files(pruned: PrunedManifests) -> int:
    """Count the rows of `plan_files`, without looking for deletes, or finding them to be wrong.

    Without a filter the counts of manifests tell, less what manifest DVs mask, since these mask live entries only
    (semantics C19): no manifest is opened, and no job runs. Only manifests of v1 tables that have no counts are read.
    With a filter a query counts the entries of the pruned data manifests that match; few manifests are read on the
    driver for it.
    """
    counts = live_files(pruned.data)
    is_known = counts.is_valid() if pruned.filter.keeps_all else pa.repeat(pa.scalar(False), len(pruned.data))
    count: int = pc.sum(counts.filter(is_known)).as_py() or 0
    uncounted = pruned.data.filter(pc.invert(is_known))
    if not len(uncounted):
        return count
    return count + data_entries(pruned.filter, uncounted, data_projection(pruned.filter)).count()


def plan_schema(state: TableState) -> StructType:
    """Return the row type of `plan_files`."""
    schema = StructType()
    for name, kind in _PLAN_TYPES.items():
        schema.add(name, kind)
        if name == "spec_id" and state.types.partition_type.fields:
            schema.add("partition", public_partition_type(state))
    return schema


def _public_columns(pruned: PrunedManifests, texts: SharedTexts) -> list[Aliased]:
    state = pruned.filter.state
    values = {
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
        "manifest_path": manifest_path(pruned.data, sql.col("manifest")),
        "manifest_pos": sql.col("ordinal"),
        DELETES: sql.col(DELETES),
        "residual": residual_json(pruned.filter, texts.literal),
    }
    return [value.alias(name) for name, value in values.items()]
