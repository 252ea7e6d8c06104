"""The live files of another table, for a commit that adds them.

Tasks decode the table's manifests directly to entries, sort them, and write them as leaves, as in a compaction. No
metrics maps are built, and entries do not pass through Spark rows.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.commit.table_match import adoption
from sparkmeta.compact.choose import Scope, choose
from sparkmeta.compact.groups import Choice, Group, Limits
from sparkmeta.compact.job import RewriteJob
from sparkmeta.edit.base_root import base_root
from sparkmeta.edit.leaves import partition_stats
from sparkmeta.edit.new_snapshot import with_root
from sparkmeta.edit.range_sort import task_reader
from sparkmeta.errors import ValidationError
from sparkmeta.manifests.projection import MANIFEST, EntryProjection
from sparkmeta.manifests.v4.root import Root, one_of
from sparkmeta.operations.base_table import BaseTable
from sparkmeta.plan.filter import is_live
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

    def refuse_deletes(self, target: TableState) -> None:
        """Raise ValidationError if there are deletes, without which deleted rows would reappear."""
        root = self.job.root
        places = [*self.deletes.leaves, *self.deletes.files]
        if not places:
            return
        path = root.column("location")[places[0]].as_py()
        what = f"{len(self.deletes.leaves)} delete manifests and {len(self.deletes.files)} deletes in its root"
        raise ValidationError(
            f"{target.metadata.location}: {self.state.metadata.location} has deletes, without which deleted rows would "
            f"come back: {what}, such as {path}; row_delta(added=table, deletes=table) adds deletion vectors too, and "
            "remove_dangling_deletes removes deletes that match no file"
        )

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

        Deletion vectors whose data file is no longer live are left out.

        Raises:
            ValidationError: there are other kinds of deletes.
        """
        assert self.job.adoption is not None
        deletes = materialize(self.job.entries(self.deletes))
        is_vector = (F.col("content_type") == int(ContentType.POSITION_DELETES)) & (F.col("file_format") == "puffin")
        for other in deletes.where(~is_vector).select("content_type", "location").limit(1).collect():
            raise self._not_movable(target, other.content_type, other.location)
        paths = EntryProjection.of(("location", "version_info"))
        data = self.state.entries(self.state.data_manifests, paths).where(is_live().text).select("location")
        data = data.withColumnRenamed("location", "data_path")
        applied = deletes.join(data, F.col("referenced_file") == F.col("data_path"), "left_semi")
        return map_arrow(applied, self.job.adoption.batches, self.job.form.schema)

    def _not_movable(self, target: TableState, content: int, path: str) -> ValidationError:
        if content == ContentType.EQUALITY_DELETES:
            problem = "an equality delete, which would apply to older files of this table and not to the added ones"
        else:
            problem = (
                "a position delete file, which a tree can't hold: rewrite_position_delete_files makes vectors of them"
            )
        source = self.state.metadata.location
        return ValidationError(f"{target.metadata.location}: {path}, of {source}, can't be added: it is {problem}")


def table_files(source: TableState, target: TableState, form: LeafFormat, options: TreeOptions) -> TableFiles:
    """Return the live files of a table, to be added to another. Reads its manifest list or root.

    Raises:
        ValidationError: a column or partition spec of the source means something else in the target.
        UnsupportedError: tasks can't open the source's files.
    """
    state = _as_tree(replace(source, spark=target.spark))
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
    stats = leaves.column("manifest_stats")
    counts = [pc.struct_field(stats, f"{status}_files_count").cast(pa.int64()) for status in ("added", "existing")]
    masked = {location: dv["record_count"] for location, dv in root.manifest_dv_of.items()}
    live = zip(_places(leaves), leaves.column("location").to_pylist(), pc.add(*counts).to_pylist(), strict=True)
    return {place: count - masked.get(location, 0) for place, location, count in live}


def _places(rows: pa.Table) -> list[int]:
    places: list[int] = rows.column("ordinal").to_pylist()
    return places
