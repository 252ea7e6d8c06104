"""Delete leaves of a compaction: deletion vectors go to leaves of the data leaves that hold their files.

Where a data leaf has few of them, they stand in leaves that belong to none, and so do equality deletes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.manifests.leaf_writer import OWNER, leaf_count, write_owned_leaves
from sparkmeta.manifests.projection import CONTENT_STATS, MANIFEST, EntryProjection
from sparkmeta.manifests.root import one_of
from sparkmeta.plan.prune import is_live
from sparkmeta.session import local_frame, materialize
from sparkmeta.spec.entry import ContentType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame

    from sparkmeta.commit.compact.choose import Group
    from sparkmeta.commit.compact.rewrite import RewriteJob, Rewritten
    from sparkmeta.manifests.leaf_writer import LeafFormat
    from sparkmeta.state import TableState

DELETE_ENTRY_BYTES = 100.0
"""What a deletion vector takes in a leaf, about, before one has been written."""

_DATA_PATH = "data_path"


def rewrite_deletes(job: RewriteJob, group: Group, data: Sequence[Rewritten]) -> list[pa.Table]:
    """Writes the deletes of a group into new leaves: the root's entries for them; runs jobs.

    data: what became of data leaves in the same run.
    """
    owners = _owners(job, group, data)
    placed = materialize(with_owners(job.entries(group), owners))
    size = job.entry_bytes(group.leaves) if group.leaves else DELETE_ENTRY_BYTES
    rest, made = write_affiliated(placed, job.rewriting([]).form, job.scope.limits.affiliated_deletes, size)
    count = rest.count()
    parts = leaf_count(count, int(count * size), job.scope.limits.target_bytes)
    if parts:
        keys = [F.col("content_type"), F.col("partition_spec_id"), *_partition_columns(job.state)]
        ordered = rest.repartitionByRange(parts, *keys, F.col("referenced_file")).sortWithinPartitions(
            *keys, "referenced_file", "location"
        )
        made = pa.concat_tables([made, write_owned_leaves(ordered, job.rewriting([]).form, size)])
    return [made]


def write_affiliated(placed: DataFrame, form: LeafFormat, few: int, entry_bytes: float) -> tuple[DataFrame, pa.Table]:
    """Writes the delete leaves of data leaves that have at least `few` deletion vectors.

    placed: entries and `owner`, computed already. Gives what is left, whose `owner` is null, and the root's entries.
    """
    counts = placed.where(F.col(OWNER).isNotNull()).groupBy(OWNER).count().where(F.col("count") >= few)
    chosen = counts.select(F.col(OWNER).alias("chosen")).toArrow()
    if not len(chosen):
        return placed.withColumn(OWNER, F.lit(None).cast("string")), form.schema.empty_table()
    known = F.broadcast(local_frame(placed.sparkSession, chosen))
    same = F.col(OWNER) == F.col("chosen")
    owned = placed.join(known, same, "left_semi").repartition(F.col(OWNER))
    made = write_owned_leaves(owned.sortWithinPartitions(OWNER, "referenced_file", "location"), form, entry_bytes)
    rest = placed.join(known, same, "left_anti").withColumn(OWNER, F.lit(None).cast("string"))
    return rest, made


def with_owners(entries: DataFrame, owners: DataFrame) -> DataFrame:
    """Entries with `owner`, the data leaf that holds a deletion vector's file. owners: `data_path`, `owner`."""
    position = F.col("content_type") == int(ContentType.POSITION_DELETES)
    return entries.join(owners, position & (F.col("referenced_file") == F.col(_DATA_PATH)), "left").drop(_DATA_PATH)


def live_owners(state: TableState, roots: pa.Table) -> DataFrame:
    """`data_path` and `owner` of the live data files in some leaves, rows of `state.roots`."""
    projection = EntryProjection.of(("location", "version_info"))
    return _named(state, state.entries(roots, projection).where(is_live()), _by_id(roots))


def _by_id(roots: pa.Table) -> Mapping[int, str]:
    return dict(zip(roots.column(MANIFEST).to_pylist(), roots.column("location").to_pylist(), strict=True))


def _named(state: TableState, entries: DataFrame, locations: Mapping[int, str]) -> DataFrame:
    """Entries as `data_path` and `owner`, by the names of their manifests."""
    columns = {MANIFEST: (list(locations), pa.int32()), OWNER: (list(locations.values()), pa.string())}
    table = pa.table({name: pa.array(values, kind) for name, (values, kind) in columns.items()})
    names = F.broadcast(local_frame(state.spark, table))
    return entries.join(names, MANIFEST).select(F.col("location").alias(_DATA_PATH), OWNER)


def _owners(job: RewriteJob, group: Group, data: Sequence[Rewritten]) -> DataFrame:
    """The owners that deletes of the group may come to have: new data leaves, and kept ones where need be."""
    from sparkmeta.commit.compact.rewrite import leaf_frame

    state = job.state
    projection = EntryProjection.of(("location", "version_info"))
    made = pa.concat_tables([job.rewriting([]).form.schema.empty_table(), *(one.made for one in data)])
    kept = _kept(job, group, {location for one in data for location in one.leaves})
    frames = [live_owners(state, kept)]
    if len(made):
        locations = dict(enumerate(made.column("location").to_pylist()))
        frames.append(_named(state, leaf_frame(state, made, projection), locations))
    return frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])


def _kept(job: RewriteJob, group: Group, dropped: set[str]) -> pa.Table:
    """The kept data leaves that may hold the files of the group's deletes, rows of `state.roots`.

    Of a delete leaf that belongs to a data leaf it is that one; all where a delete belongs to none.
    """
    roots = job.state.roots
    roots = roots.filter(one_of(roots, [ContentType.DATA_MANIFEST]))
    roots = roots.filter(pc.is_in(roots.column(MANIFEST), pa.array(sorted(job.scope.owners), pa.int32())))
    roots = roots.filter(pc.invert(pc.is_in(roots.column("location"), pa.array(sorted(dropped), pa.string()))))
    owners = job.root.column("referenced_file").take(pa.array(group.leaves, pa.int64()))
    if group.files or owners.null_count:
        return roots
    return roots.filter(pc.is_in(roots.column("location"), owners.combine_chunks()))


def _partition_columns(state: TableState) -> list[Column]:
    sources = dict.fromkeys(source for fields in state.tuple_sources.values() for _, source in fields)
    return [F.col(f"{CONTENT_STATS}.`{one}`.lower_bound") for one in sources]
