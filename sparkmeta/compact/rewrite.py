"""Write the leaves of a compaction: data leaves, then delete leaves affiliated with the data leaves of their files.

If the files of a data leaf have few deletion vectors, these go to unaffiliated leaves, like equality deletes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.compact.job import RewriteJob
from sparkmeta.edit.affinity import DELETE_ENTRY_BYTES, live_owners, named_owners, with_owners, write_affiliated
from sparkmeta.edit.leaves import leaf_frame, partition_columns
from sparkmeta.edit.range_sort import task_reader
from sparkmeta.entries.projection import MANIFEST, EntryProjection
from sparkmeta.manifests.v4.write import leaf_count, write_owned_leaves
from sparkmeta.session import materialize

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.compact.choose import Scope
    from sparkmeta.compact.groups import Choice, Group
    from sparkmeta.compact.job import Rewritten
    from sparkmeta.state import TableState


def rewrite(state: TableState, scope: Scope, choice: Choice, name: str) -> list[Rewritten]:
    """Write the leaves of all groups. Runs jobs.

    Args:
        name: the beginning of the files' names.

    Raises:
        UnsupportedError: tasks can't open the table's files.
    """
    job = RewriteJob(state, scope, task_reader(state), name)
    data = job.data(choice.data)
    if choice.deletes is None:
        return data
    return [*data, job.rewritten(choice.deletes, _rewrite_deletes(job, choice.deletes, data))]


def _rewrite_deletes(job: RewriteJob, group: Group, data: Sequence[Rewritten]) -> list[pa.Table]:
    """Write the deletes of a group to new leaves, and return the root's entries for them. Runs jobs.

    Args:
        data: the rewritten data leaves of the same compaction.
    """
    owners = _owners(job, group, data)
    placed = materialize(with_owners(job.entries(group), owners))
    size = job.entry_bytes(group.leaves) if group.leaves else DELETE_ENTRY_BYTES
    rest, new_leaves = write_affiliated(placed, job.form, job.scope.limits.affiliated_deletes, size)
    count = rest.count()
    parts = leaf_count(count, int(count * size), job.scope.limits.target_bytes)
    if parts:
        keys = [F.col("content_type"), F.col("partition_spec_id"), *partition_columns(job.state)]
        ordered = rest.repartitionByRange(parts, *keys, F.col("referenced_file")).sortWithinPartitions(
            *keys, "referenced_file", "location"
        )
        new_leaves = pa.concat_tables([new_leaves, write_owned_leaves(ordered, job.form, size)])
    return [new_leaves]


def _owners(job: RewriteJob, group: Group, data: Sequence[Rewritten]) -> DataFrame:
    """Return the live files of new and remaining data leaves with which deletes may be affiliated."""
    state = job.state
    projection = EntryProjection.of(("location", "version_info"))
    new_leaves = pa.concat_tables([job.form.schema.empty_table(), *(each.new_leaves for each in data)])
    remaining = _remaining(job, group, {location for each in data for location in each.leaves})
    frames = [live_owners(state, remaining)]
    if len(new_leaves):
        locations = dict(enumerate(new_leaves.column("location").to_pylist()))
        frames.append(named_owners(state, leaf_frame(state, new_leaves, projection), locations))
    return frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])


def _remaining(job: RewriteJob, group: Group, dropped: set[str]) -> pa.Table:
    """Return the remaining data leaves that may hold files of the group's deletes, rows of `state.manifests`.

    These are the data leaves of affiliated delete leaves, or all if there are unaffiliated deletes.
    """
    leaves = job.state.data_manifests
    leaves = leaves.filter(pc.is_in(leaves.column(MANIFEST), pa.array(sorted(job.scope.owners), pa.int32())))
    leaves = leaves.filter(pc.invert(pc.is_in(leaves.column("location"), pa.array(sorted(dropped), pa.string()))))
    owners = job.root.column("referenced_file").take(pa.array(group.leaves, pa.int64()))
    if group.files or owners.null_count:
        return leaves
    return leaves.filter(pc.is_in(leaves.column("location"), owners.combine_chunks()))
