"""Write delete leaves that are affiliated with one data leaf (semantics 16.12).

Many deletion vectors for one data leaf get a separate delete leaf, which only plans that open the data leaf read. For
few deletion vectors, another file would cost more than it saves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from sparkmeta.entries.projection import MANIFEST, EntryProjection
from sparkmeta.manifests.v4.write import OWNER, write_owned_leaves
from sparkmeta.plan.filter import is_live
from sparkmeta.session import local_frame
from sparkmeta.spec.entry import ContentType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from sparkmeta.manifests.v4.write import LeafFormat
    from sparkmeta.state import TableState

DELETE_ENTRY_BYTES = 100.0
"""An estimate of the size of a deletion vector's entry in a leaf, used until one has been written."""

_DATA_PATH = "data_path"


def write_affiliated(placed: DataFrame, form: LeafFormat, least: int, entry_bytes: float) -> tuple[DataFrame, pa.Table]:
    """Write delete leaves for data leaves that have at least `least` deletion vectors.

    Args:
        placed: materialized entries of deletes with `owner`.
        least: the minimum number of deletion vectors that get a separate delete leaf.
        entry_bytes: the expected size of an entry in a leaf.

    Returns:
        The other entries, with null as `owner`, and the root's entries for the new leaves.
    """
    counts = placed.where(F.col(OWNER).isNotNull()).groupBy(OWNER).count().where(F.col("count") >= least)
    chosen = counts.select(F.col(OWNER).alias("chosen")).toArrow()
    if not len(chosen):
        return placed.withColumn(OWNER, F.lit(None).cast("string")), form.schema.empty_table()
    known = F.broadcast(local_frame(placed.sparkSession, chosen))
    same = F.col(OWNER) == F.col("chosen")
    owned = placed.join(known, same, "left_semi").repartition(F.col(OWNER))
    delete_leaves = write_owned_leaves(
        owned.sortWithinPartitions(OWNER, "referenced_file", "location"), form, entry_bytes
    )
    rest = placed.join(known, same, "left_anti").withColumn(OWNER, F.lit(None).cast("string"))
    return rest, delete_leaves


def with_owners(entries: DataFrame, owners: DataFrame) -> DataFrame:
    """Return entries with `owner`, the data leaf of a deletion vector's file; null if the file is in several leaves.

    Args:
        entries: entries of deletes.
        owners: has `data_path` and `owner`. A file may be listed several times.
    """
    position = F.col("content_type") == int(ContentType.POSITION_DELETES)
    by_path = owners.groupBy(_DATA_PATH).agg(F.min(OWNER).alias(OWNER), F.max(OWNER).alias("last"))
    known = by_path.where(F.col(OWNER) == F.col("last")).drop("last")
    return entries.join(known, position & (F.col("referenced_file") == F.col(_DATA_PATH)), "left").drop(_DATA_PATH)


def live_owners(state: TableState, manifests: pa.Table) -> DataFrame:
    """Return `data_path` and `owner` of the live data files in leaves, rows of `state.manifests`."""
    projection = EntryProjection.of(("location", "version_info"))
    return named_owners(state, state.entries(manifests, projection).where(is_live().text), _by_id(manifests))


def _by_id(manifests: pa.Table) -> Mapping[int, str]:
    return dict(zip(manifests.column(MANIFEST).to_pylist(), manifests.column("location").to_pylist(), strict=True))


def named_owners(state: TableState, entries: DataFrame, locations: Mapping[int, str]) -> DataFrame:
    """Return `data_path` and `owner` of entries, given the locations of their manifests by small id."""
    columns = {MANIFEST: (list(locations), pa.int32()), OWNER: (list(locations.values()), pa.string())}
    table = pa.table({name: pa.array(values, kind) for name, (values, kind) in columns.items()})
    names = F.broadcast(local_frame(state.spark, table))
    return entries.join(names, MANIFEST).select(F.col("location").alias(_DATA_PATH), OWNER)
