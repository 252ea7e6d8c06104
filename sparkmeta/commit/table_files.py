"""The live files of another table, for a commit that adds them.

Tasks decode the table's manifests directly to entries, sort them, and write them as leaves, as in a compaction. No
metrics maps are built, and entries do not pass through Spark rows.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from sparkmeta.commit.table_deletes import DATA_SEQUENCE, matched, refuse_older
from sparkmeta.commit.table_match import adoption
from sparkmeta.compact.choose import Scope, choose
from sparkmeta.compact.groups import Choice, Group, Limits
from sparkmeta.compact.job import RewriteJob
from sparkmeta.edit.base_root import base_root
from sparkmeta.edit.leaves import partition_stats
from sparkmeta.edit.new_snapshot import with_root
from sparkmeta.edit.range_sort import task_reader
from sparkmeta.entries.counts import live_counts
from sparkmeta.entries.projection import MANIFEST
from sparkmeta.errors import ValidationError
from sparkmeta.manifests.v4.root import Root, one_of
from sparkmeta.operations.base_table import BaseTable
from sparkmeta.session import map_arrow, materialize
from sparkmeta.spec.entry import ContentType
from sparkmeta.spec.metadata import has_tree
from sparkmeta.spec.upgrade import upgrade_metadata
from sparkmeta.state import TableState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.edit.options import TreeOptions
    from sparkmeta.manifests.v4.write import LeafFormat

_DELETES = (ContentType.POSITION_DELETES, ContentType.EQUALITY_DELETES)
_WHOLE_OVERLAP = 3


def table_of(files: DataFrame | BaseTable | TableState) -> DataFrame | TableState:
    """Return the state of a table whose files are to be added, or the DataFrame of files.

    Raises:
        ValidationError: the argument is neither.
    """
    if isinstance(files, BaseTable):
        return files.state
    if isinstance(files, TableState) or hasattr(files, "toArrow"):
        return files
    raise ValidationError(f"files is of type {type(files).__name__}: expected a DataFrame of files, or a table")


def frame_of(files: DataFrame) -> DataFrame:
    """Return the files. Raises ValidationError if they are not a DataFrame."""
    if hasattr(files, "toArrow"):
        return files
    raise ValidationError(f"files is of type {type(files).__name__}: expected a DataFrame of files")


@dataclass(frozen=True)
class TableFiles:
    """The live files of a table, to be added to another.

    Attributes:
        state: the table, with a root of its manifests.
        job: reads the table's manifests and writes leaves of the other table.
        choice: how its data manifests are read together.
        count: the number of data files.
        deletes: the live delete manifests and the delete files of the root.
    """

    state: TableState
    job: RewriteJob
    choice: Choice
    count: int
    deletes: Group

    def entries(self) -> pa.Table:
        """Read a few data files and return them as entries of the other table. Runs a job."""
        assert self.job.adoption is not None
        schema = self.job.rewriting([]).schema
        rows = [self.job.entries(group).toArrow().cast(schema) for group in self.choice.data]
        return self.job.adoption(pa.concat_tables([schema.empty_table(), *rows]))

    def leaves(self) -> pa.Table:
        """Write the data files to leaves of the other table and return the root entries of these. Runs jobs."""
        written = [group.new_leaves for group in self.job.data(self.choice.data)]
        return pa.concat_tables([self.job.form.schema.empty_table(), *written]).combine_chunks()

    def vectors(self, target: TableState) -> DataFrame:
        """Return the deletion vectors of the data files as entries of the other table. Runs jobs.

        Deletion vectors whose data file is no longer live are left out. The table has no other deletes.

        Raises:
            ValidationError: a deletion vector is older than its data file.
        """
        assert self.job.adoption is not None
        deletes = materialize(self.job.entries(self.deletes))
        vectors = materialize(matched(deletes, self.state))
        refuse_older(vectors, self.state, target)
        of_live = vectors.where(F.col(DATA_SEQUENCE).isNotNull()).drop(DATA_SEQUENCE)
        return map_arrow(of_live, self.job.adoption.batches, self.job.form.schema)


def table_files(source: TableState, target: TableState, form: LeafFormat, options: TreeOptions) -> TableFiles:
    """Return the live files of a table, to be added to another. Reads its manifest list or root.

    Raises:
        ValidationError: a column or partition spec of the source means something else in the target.
        UnsupportedError: tasks can't open the source's files.
    """
    state = _as_tree(replace(source, session=target.session))
    root = state.tree.root if state.tree is not None else Root(state.metadata.location, form.schema.empty_table())
    data, deletes = _live_leaves(root, ContentType.DATA_MANIFEST), _live_leaves(root, ContentType.DELETE_MANIFEST)
    files, delete_files = root.of([ContentType.DATA]), root.of(_DELETES)
    spec_ids = {
        spec_id
        for rows in (data, deletes, files, delete_files)
        for spec_id in rows.column("partition_spec_id").to_pylist()
    }
    adopt = adoption(state, target, spec_ids)
    scope = _scope(state, root, frozenset(_places(data) + _places(files)), target, options)
    job = RewriteJob(state, scope, task_reader(state), form.name, adoption=adopt, adopted=form)
    count = len(files) + sum(_live_counts(root, data).values())
    of_deletes = Group(ContentType.DELETE_MANIFEST, None, tuple(_places(deletes)), tuple(_places(delete_files)))
    return TableFiles(state, job, choose(scope), count, of_deletes)


def _as_tree(state: TableState) -> TableState:
    """Return a table with a root for its manifests, as an upgrade would create."""
    if not has_tree(state.metadata):
        state = replace(state, metadata=upgrade_metadata(state.metadata, uuid.uuid4()))
    return with_root(state, base_root(state))


def _scope(state: TableState, root: Root, places: frozenset[int], target: TableState, options: TreeOptions) -> Scope:
    """Return a rewrite of all data files, clustered like the target's."""
    limits = Limits(options.leaf_target_bytes, 1.0, 1.0, _WHOLE_OVERLAP, 0, options.affiliated_deletes, fewest_merged=1)
    sort_columns = [field.source_id for field in target.metadata.sort_order().fields]
    keys = {
        spec_id: tuple(dict.fromkeys([*of_spec, *(key for key in sort_columns if key in state.types.stats_types)]))
        for spec_id, of_spec in _partition_keys(state).items()
    }
    old: list[int] = []
    if state.tree is not None:
        manifests = state.manifests
        old = manifests.filter(state.tree.has_old_layout(manifests)).column(MANIFEST).to_pylist()
    sources = partition_stats(state)
    return Scope(root, places, frozenset(), keys, sources, limits, old=frozenset(old), every=True)


def _partition_keys(state: TableState) -> dict[int, list[int]]:
    return {spec_id: [source for _, source in pairs] for spec_id, pairs in state.types.tuple_sources.items()}


def _live_leaves(root: Root, content: ContentType) -> pa.Table:
    """Return the leaves that have live files."""
    leaves = root.leaves.filter(one_of(root.leaves, [content]))
    counts = _live_counts(root, leaves)
    return leaves.filter(pa.array([counts[place] > 0 for place in _places(leaves)], pa.bool_()))


def _live_counts(root: Root, leaves: pa.Table) -> dict[int, int]:
    """Return the number of live files in leaves, by row number."""
    masked = {location: dv["record_count"] for location, dv in root.manifest_dv_of.items()}
    live = zip(_places(leaves), leaves.column("location").to_pylist(), live_counts(leaves).to_pylist(), strict=True)
    return {place: count - masked.get(location, 0) for place, location, count in live}


def _places(rows: pa.Table) -> list[int]:
    places: list[int] = rows.column("ordinal").to_pylist()
    return places
