"""The partitions that new files replace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from sparkmeta.columns import sql
from sparkmeta.commit.addition import file_rows
from sparkmeta.manifests.avro.read import schema_of
from sparkmeta.manifests.leaf import entry_columns
from sparkmeta.manifests.projection import MANIFEST, ORDINAL
from sparkmeta.plan.deletes import partition_key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.state import TableState

PARTITION_KEY = "partition_key"


def replaced_partitions(state: TableState, files: DataFrame) -> DataFrame | None:
    """`partition_key` of the partitions of new files; None where one is unpartitioned: it replaces all (semantics 4.8).

    files: rows with the columns of `inspect.files`.
    """
    rows = file_rows(state)
    raw = files.mapInArrow(rows.batches, schema_of(rows.schema))
    unpartitioned = [spec_id for spec_id, spec in state.specs.items() if spec.is_unpartitioned()]
    of_those = raw.where(F.col("partition_spec_id").isin(unpartitioned)).select("location").limit(1)
    if unpartitioned and (len(unpartitioned) == len(state.specs) or len(of_those.toArrow())):
        return None
    placed = raw.withColumns({MANIFEST: F.lit(0), ORDINAL: F.lit(0).cast("long")})
    new = placed.selectExpr(*sql.texts(entry_columns(state.projection(), state.tuple_sources, None)))
    return new.select(partition_key(state).alias(PARTITION_KEY).column()).distinct()
