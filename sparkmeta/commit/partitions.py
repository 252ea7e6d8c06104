"""The partitions of new files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from sparkmeta.columns import sql
from sparkmeta.commit.converters import rows_of
from sparkmeta.commit.file_rows import FILE_COLUMNS
from sparkmeta.entries.projection import MANIFEST, ORDINAL, PARTITION
from sparkmeta.manifests.v4.spark import entry_columns
from sparkmeta.plan.deletes.views import partition_key
from sparkmeta.session import map_arrow
from sparkmeta.spec.metadata import has_tree

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.state import TableState

PARTITION_KEY = "key_of_new_files"


def new_partitions(state: TableState, files: DataFrame) -> DataFrame:
    """Return the distinct partitions of new files, as the columns `partition_spec_id` and `partition` of entries.

    Args:
        files: rows with the columns of `inspect.files`.
    """
    rows = rows_of(state)
    known = files.select(*(name for name in FILE_COLUMNS if name in files.columns))
    entries = map_arrow(known, rows.batches, rows.schema)
    if not has_tree(state.metadata):
        return entries.select(*("partition_spec_id", PARTITION)[: 2 if state.types.partition_fields else 1]).distinct()
    placed = entries.withColumns({MANIFEST: F.lit(0), ORDINAL: F.lit(0).cast("long")})
    columns = entry_columns(state.projection(("partition_spec_id",)), state.types.tuple_sources, None)
    return placed.selectExpr(*sql.texts(columns)).drop(MANIFEST, ORDINAL).distinct()


def replaces_everything(state: TableState, partitions: DataFrame) -> bool:
    """Return whether `new_partitions` include an unpartitioned one, which replaces all files (semantics 12.4)."""
    unpartitioned = [spec_id for spec_id, spec in state.specs.items() if spec.is_unpartitioned()]
    if not unpartitioned:
        return False
    return len(partitions.where(F.col("partition_spec_id").isin(unpartitioned)).limit(1).toArrow()) > 0


def replaced_partitions(state: TableState, files: DataFrame) -> DataFrame | None:
    """Return the keys of the partitions that new files replace; None if they replace everything."""
    partitions = new_partitions(state, files)
    return None if replaces_everything(state, partitions) else keys_of(state, partitions)


def keys_of(state: TableState, partitions: DataFrame) -> DataFrame:
    """Convert partitions to values that can be compared with the `partition_key` of entries."""
    return partitions.select(partition_key(state).alias(PARTITION_KEY).column())
