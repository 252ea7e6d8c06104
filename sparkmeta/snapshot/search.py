"""Find live entries by path, in as few manifests as possible."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.avro.manifest_list import SUMMARIES
from sparkmeta.entries.live import is_live, live_counts, may_be_live
from sparkmeta.entries.manifest_records import ManifestContext, ManifestPart, whole_manifests
from sparkmeta.entries.projection import CONTENT_STATS, DV_COLUMNS, MANIFEST, PARTITION, EntryProjection
from sparkmeta.entries.relation import among, collected, where
from sparkmeta.expr import sql
from sparkmeta.expr.arrays import whole
from sparkmeta.expr.bounds import bound_arrow_type
from sparkmeta.manifests.placement import mapped_files
from sparkmeta.manifests.v4.decode import LeafSearch, entries_of_rows, root_entries
from sparkmeta.manifests.v4.layout import conform, tree_schema
from sparkmeta.manifests.v4.root import same_manifest_dv
from sparkmeta.manifests.v4.tree_manifests import FILE_TYPES, IN_ROOT, MASKED
from sparkmeta.snapshot.overlaps import leaf_overlaps, overlaps
from sparkmeta.spec.entry import BOUNDS, COUNTS, ContentType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.entries.relation import Relation
    from sparkmeta.snapshot.state import TableState
    from sparkmeta.storage.files import Files


# -- Manifests that may hold an entry ---------------------------------------------------------------------------------


# Maximum number of (partition, leaf) pairs to compare. If there are more, all leaves of the spec are candidates.
_MOST_PAIRS = 50_000_000

_SPEC = "partition_spec_id"


def manifests_where(manifests: pa.Table, rows: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Return the manifests that a mask selects.

    Manifests of a partition are often adjacent, and a slice of them copies none of their many columns of stats.
    """
    indices = np.flatnonzero(pc.fill_null(whole(rows), False))
    if not len(indices) or indices[-1] - indices[0] == len(indices) - 1:
        return manifests.slice(indices[0] if len(indices) else 0, len(indices))
    return manifests.filter(rows)


def live_manifests(manifests: pa.Table) -> pa.Table:
    """Return the manifests that may have live files that manifest DVs don't mask."""
    if MASKED in manifests.column_names:
        return manifests_where(manifests, pc.greater(live_files(manifests), 0))
    return manifests_where(manifests, may_be_live(manifests))


def live_files(manifests: pa.Table) -> pa.Array | pa.ChunkedArray:
    """Return the number of live files in each manifest, without those masked by manifest DVs; null if unknown."""
    counts = live_counts(manifests)
    return pc.subtract(counts, manifests.column(MASKED)) if MASKED in manifests.column_names else counts


def live_leaves(state: TableState, content: ContentType) -> pa.Table:
    """Return the manifests of one content type that hold live entries, including the root, as rows of `manifests`."""
    return live_manifests(state.data_manifests if content == ContentType.DATA_MANIFEST else state.delete_manifests)


def root_manifests(state: TableState) -> pa.Table:
    """Return the rows of `state.manifests` that describe files listed in the root itself."""
    return state.manifests.filter(pc.equal(state.manifests.column("file_format"), IN_ROOT))


def named_leaves(leaves: pa.Table, locations: Collection[str]) -> pa.Table:
    """Return the leaves at the given locations."""
    return leaves.filter(pc.is_in(leaves.column("location"), pa.array(sorted(locations), pa.string())))


def leaves_of_partitions(state: TableState, leaves: pa.Table, partitions: pa.Table) -> pa.Table:
    """Return the leaves that may hold entries of the given partitions, by their statistics.

    Args:
        leaves: rows of `state.manifests`.
        partitions: the columns `partition_spec_id` and, if the table has partition fields, `partition`, a struct of the
            values by partition field id. Other columns are ignored.
    """
    distinct = _distinct(partitions)
    if not len(distinct) or not len(leaves):
        return leaves.slice(0, 0)
    if CONTENT_STATS in leaves.column_names:
        return leaves_sharing_partitions(state, leaves, _as_files(state, distinct))
    return manifests_sharing_partitions(state, leaves, _as_manifests(state, distinct))


def manifests_sharing_partitions(state: TableState, manifests: pa.Table, others: pa.Table) -> pa.Table:
    """Return the manifests of a list that may share a partition with others, by their partition summaries.

    Args:
        manifests: rows of `manifests_of_list`.
        others: rows of the same form.
    """
    if SUMMARIES not in manifests.column_names or len(manifests) * len(others) > _MOST_PAIRS:
        return manifests.filter(pc.is_in(manifests.column(_SPEC), whole(others.column(_SPEC))))
    return manifests.filter(pa.array(overlaps(others, manifests, state.types.spec_fields).any(axis=0)))


def leaves_sharing_partitions(state: TableState, leaves: pa.Table, entries: pa.Table) -> pa.Table:
    """Return the leaves that may share a partition with other entries, by their statistics.

    The root's own files may be in any partition.

    Args:
        leaves: rows of `state.manifests`.
        entries: entries of files or of other leaves, rows of `tree_schema`.
    """
    if len(entries) * len(leaves) > _MOST_PAIRS:
        return leaves.filter(pc.is_in(leaves.column(_SPEC), entries.column(_SPEC).combine_chunks()))
    overlaps = leaf_overlaps(entries, leaves, state.types.spec_fields, state.types.tuple_sources).any(axis=0)
    return leaves.filter(pc.or_(pa.array(overlaps), pc.equal(leaves.column("file_format"), IN_ROOT)))


def _distinct(partitions: pa.Table) -> pa.Table:
    if PARTITION not in partitions.column_names:
        return partitions.select([_SPEC]).group_by([_SPEC]).aggregate([])
    values = whole(partitions.column(PARTITION))
    names = [field.name for field in values.type]
    flat = pa.Table.from_arrays([whole(partitions.column(_SPEC)), *values.flatten()], names=[_SPEC, *names])
    grouped = flat.group_by([_SPEC, *names]).aggregate([])
    children = [whole(grouped.column(name)) for name in names]
    struct = pa.StructArray.from_arrays(children, names=names) if names else pa.array([{}] * len(grouped))
    return pa.table({_SPEC: grouped.column(_SPEC), PARTITION: struct})


def _as_manifests(state: TableState, partitions: pa.Table) -> pa.Table:
    """Return one manifest per partition, with the summaries of a manifest of only this partition."""
    specs = whole(partitions.column(_SPEC))
    if PARTITION not in partitions.column_names:
        return pa.table({_SPEC: specs})
    values = whole(partitions.column(PARTITION))
    children = []
    for field_id, name in sorted(state.types.partition_fields.items()):
        value = pc.struct_field(values, str(field_id)).cast(bound_arrow_type(name))
        is_nan = (
            pc.fill_null(pc.is_nan(value), False) if pa.types.is_floating(value.type) else pa.repeat(False, len(value))
        )
        bound = pc.if_else(is_nan, pa.scalar(None, value.type), value)
        names = ["contains_null", "contains_nan", "lower_bound", "upper_bound"]
        children.append(pa.StructArray.from_arrays([value.is_null(), is_nan, bound, bound], names=names))
    names = [str(field_id) for field_id in sorted(state.types.partition_fields)]
    return pa.table({_SPEC: specs, SUMMARIES: pa.StructArray.from_arrays(children, names)})


def _as_files(state: TableState, partitions: pa.Table) -> pa.Table:
    """Return one data file per partition, with the stats that hold the partition's values."""
    rows, specs = len(partitions), whole(partitions.column(_SPEC))
    values: dict[int, pa.Array] = {}
    for spec_id, fields in state.types.tuple_sources.items():
        is_of_spec = pc.equal(specs, spec_id)
        for field_id, source in fields:
            kind = bound_arrow_type(state.types.stats_types[source])
            value = pc.struct_field(whole(partitions.column(PARTITION)), str(field_id)).cast(kind)
            values[source] = pc.if_else(is_of_spec, value, values.get(source, pa.nulls(rows, kind)))
    structs = [_file_stats(values[source]) for source in values]
    stats = pa.StructArray.from_arrays(structs, names=[*map(str, values)]) if structs else pa.array([{}] * rows)
    kinds = pa.repeat(pa.scalar(int(ContentType.DATA), pa.int32()), rows)
    return pa.table({"content_type": kinds, _SPEC: specs, CONTENT_STATS: stats})


def _file_stats(values: pa.Array) -> pa.StructArray:
    if pa.types.is_floating(values.type):  # NaN is not a bound
        values = pc.if_else(pc.fill_null(pc.is_nan(values), False), pa.scalar(None, values.type), values)
    unknown = pa.nulls(len(values), pa.int64())
    none_if_bounded = pc.if_else(values.is_valid(), pa.scalar(0, pa.int64()), unknown)  # neither nulls nor NaNs
    counts = {"value_count": unknown, "null_value_count": none_if_bounded, "nan_value_count": none_if_bounded}
    return pa.StructArray.from_arrays([values, values, *map(counts.get, COUNTS)], names=[*BOUNDS, *COUNTS])


# -- Find live entries of a tree by path ------------------------------------------------------------------------------
# The result for a leaf stays valid until the leaf or its deletion vector changes, so a retried commit searches only the
# leaves that other commits wrote.


# The columns of an entry that a search returns.
SEARCH_COLUMNS = DV_COLUMNS


def search_projection(state: TableState, stats: Iterable[int] = ()) -> EntryProjection:
    """Return the projection of the entries that a search returns: `SEARCH_COLUMNS`, with the keys of encrypted files.

    Args:
        state: the table.
        stats: the columns whose stats are read.
    """
    return state.projection((*SEARCH_COLUMNS, *state.key_columns), stats)


# Maximum number of paths that a query contains as literals.
_LITERALS = 200

# A stage of a search: maps the files not found so far to the rows of `state.manifests` to search next.
Candidates = Callable[[Sequence["FileName"]], pa.Table]


class FileName(NamedTuple):
    """The identity of a file: a path, and an offset for deletion vectors, which share a Puffin file."""

    path: str
    offset: int | None = None


@dataclass(frozen=True)
class _LeafHits:
    """The result of a search of one leaf.

    Attributes:
        mask: the leaf's deletion vector at the time of the search.
        paths: the paths that were searched for; empty for other searches.
        entries: the entries found.
    """

    mask: Mapping[str, Any] | None
    paths: frozenset[str]
    entries: pa.Table


@dataclass
class LeafMemo:
    """Search results by leaf. A result stays valid until the leaf or its deletion vector changes."""

    _hits: dict[_Leaf, list[_LeafHits]] = field(default_factory=dict)

    def recall(
        self, state: TableState, manifests: pa.Table, schema: pa.Schema, paths: frozenset[str] = frozenset()
    ) -> tuple[pa.Table, pa.Table]:
        """Return the known results for manifests.

        Args:
            manifests: rows of `state.manifests`.
            schema: the schema of the entries.
            paths: the paths to search for; empty for other searches.

        Returns:
            The known entries, possibly also of other paths, and the manifests that have not been searched yet.
        """
        masks = state.tree.root.manifest_dv_of if state.tree is not None else {}
        tables, searched = [schema.empty_table()], []
        for manifest, leaf in _leaves(manifests):
            location, _ = leaf
            for hits in self._hits.get(leaf, ()):
                is_current = same_manifest_dv(hits.mask, masks.get(location)) and hits.entries.schema.equals(schema)
                if is_current and paths <= hits.paths:
                    searched.append(manifest)
                    tables.append(_at_manifest(hits.entries, manifest))
                    break
        is_unsearched = pc.invert(pc.is_in(manifests.column(MANIFEST), pa.array(searched, pa.int32())))
        return pa.concat_tables(tables), manifests.filter(is_unsearched)

    def keep(
        self, state: TableState, manifests: pa.Table, entries: pa.Table, paths: frozenset[str] = frozenset()
    ) -> None:
        """Remember the results for the leaves among the manifests, but not for the root, which each commit changes."""
        masks = state.tree.root.manifest_dv_of if state.tree is not None else {}
        by_manifest = rows_by_manifest(entries)
        leaves = manifests.filter(pc.not_equal(manifests.column("file_format"), IN_ROOT))
        for manifest, leaf in _leaves(leaves):
            location, _ = leaf
            hits = by_manifest.get(manifest, entries.slice(0, 0))
            self._hits.setdefault(leaf, []).append(_LeafHits(masks.get(location), paths, hits))


# The location and content type of a leaf. A leaf of data files and the leaf of the vectors in its entries share a
# location.
_Leaf = tuple[str, int]


def _leaves(manifests: pa.Table) -> Iterator[tuple[int, _Leaf]]:
    """Yield the small id of each manifest, and its location and content type."""
    names = (MANIFEST, "location", "content_type")
    for manifest, *leaf in zip(*(manifests.column(name).to_pylist() for name in names), strict=True):
        yield manifest, (leaf[0], leaf[1])


@dataclass
class PathSearch:
    """Finds live entries by path and keeps the results for the next attempt.

    Attributes:
        column: the column with the path: `location`, or `referenced_file` for the deletes of a data file.
    """

    column: str
    _memo: LeafMemo = field(default_factory=LeafMemo)

    def find(self, state: TableState, names: Iterable[FileName], stages: Sequence[Candidates]) -> pa.Table:
        """Find files by `location`. Each stage searches for the files that earlier stages did not find.

        Args:
            names: the files to find, which should be few.
            stages: functions that return the manifests to search. Each manifest is searched once.

        Returns:
            Live entries of `SEARCH_COLUMNS` that have one of the paths, regardless of their offset.
        """
        missing, searched = list(dict.fromkeys(names)), pa.array([], pa.int32())
        tables = [search_projection(state).schema.empty_table()]
        for candidates in stages:
            if not missing:
                break
            manifests = candidates(missing)
            manifests = manifests.filter(pc.invert(pc.is_in(manifests.column(MANIFEST), searched)))
            entries = self.search(state, manifests, [name.path for name in missing])
            tables.append(entries)
            searched = pa.concat_arrays([searched, whole(manifests.column(MANIFEST)).cast(pa.int32())])
            missing = sorted(set(missing).difference(names_of(entries)), key=str)
        return pa.concat_tables(tables).combine_chunks()

    def search(self, state: TableState, manifests: pa.Table, paths: Iterable[str]) -> pa.Table:
        """Return the live entries of manifests, rows of `state.manifests`, that have one of the paths."""
        distinct = frozenset(paths)
        schema = search_projection(state).schema
        if not distinct or not len(manifests):
            return schema.empty_table()
        ordered = sorted(distinct)
        remembered, unsearched = self._memo.recall(state, manifests, schema, distinct)
        remembered = remembered.filter(pc.is_in(remembered.column(self.column), pa.array(ordered, pa.string())))
        entries = _entries_with(state, unsearched, self.column, ordered)
        self._memo.keep(state, unsearched, entries, distinct)
        return pa.concat_tables([remembered, entries])


def live_entries(state: TableState, manifests: pa.Table) -> DataFrame:
    """Return the live entries of manifests, rows of `state.manifests`, with `SEARCH_COLUMNS`."""
    return state.live_entries(manifests, search_projection(state))


def live_relation(state: TableState, manifests: pa.Table, projection: EntryProjection | None = None) -> Relation:
    """Return the live entries of manifests, as a table if the driver reads them.

    Args:
        state: the table.
        manifests: rows of `state.manifests`.
        projection: what to read; by default `SEARCH_COLUMNS`.
    """
    columns = projection or search_projection(state)
    entries = state.reader.driver_table(manifests, columns)
    return state.live_entries(manifests, columns) if entries is None else entries.filter(is_live(entries))


def new_entries(state: TableState, rows: pa.Table) -> pa.Table:
    """Return new files, rows of a `tree_schema`, as entries of `SEARCH_COLUMNS` without a manifest.

    The schema may come from an earlier attempt. Another commit may have added columns and partition specs since.
    """
    rows = conform(rows, tree_schema(state.types.stats_types))
    part = ManifestPart(-1, state.metadata.location, 0, ManifestContext(None, None, None))
    ordinals = pa.nulls(len(rows), pa.int64())
    return entries_of_rows(rows, ordinals, part, search_projection(state), state.types.tree_types)


def names_of(entries: pa.Table) -> list[FileName]:
    """Return the path and offset of each entry."""
    offsets = pc.struct_field(entries.column("deletion_vector"), "offset").to_pylist()
    return [FileName(*name) for name in zip(entries.column("location").to_pylist(), offsets, strict=True)]


def rows_by_manifest(entries: pa.Table) -> dict[int, pa.Table]:
    """Return entries by the small id of their manifest, in ascending order."""
    ordered = entries.take(pc.sort_indices(entries.column(MANIFEST))) if len(entries) else entries
    runs = pc.run_end_encode(whole(ordered.column(MANIFEST)))
    starts = [0, *runs.run_ends.to_pylist()]
    return {
        manifest: ordered.slice(start, end - start)
        for manifest, start, end in zip(runs.values.to_pylist(), starts, starts[1:], strict=False)
    }


def _at_manifest(entries: pa.Table, manifest: int) -> pa.Table:
    ids = pa.repeat(pa.scalar(manifest, pa.int32()), len(entries))
    return entries.set_column(entries.column_names.index(MANIFEST), entries.schema.field(MANIFEST), ids)


def _entries_with(state: TableState, manifests: pa.Table, column: str, values: Sequence[str]) -> pa.Table:
    projection = search_projection(state)
    tables = [projection.schema.empty_table()]
    if state.tree is None:
        tables.append(_query(state, manifests, column, values))
    elif len(manifests):
        in_root = pc.equal(manifests.column("file_format"), IN_ROOT)
        for content in manifests.filter(in_root).column("content_type").to_pylist():
            tables.append(_search_root(state, ContentType(content), column, values, projection))  # noqa: PERF401
        leaves = manifests.filter(pc.invert(in_root))
        searchable = (
            state.tree.has_layout_of_root(leaves) if state.access.tasks is not None else pa.repeat(False, len(leaves))
        )
        tables.append(_search_leaves(state, leaves.filter(searchable), column, values, projection))
        tables.append(_query(state, leaves.filter(pc.invert(searchable)), column, values))
    entries = pa.concat_tables([table.cast(projection.schema) for table in tables])
    return entries.filter(is_live(entries))


def _search_root(
    state: TableState, content: ContentType, column: str, values: Sequence[str], projection: EntryProjection
) -> pa.Table:
    """Search the files that the root lists itself."""
    assert state.tree is not None
    rows = state.tree.root.of(FILE_TYPES[content])
    rows = rows.filter(pc.is_in(rows.column(column), pa.array(values, pa.string())))
    types, manifest = state.types.tree_types, state.tree.root_id(content)
    return root_entries(rows, manifest, state.tree.root.location, projection, types)


def _search_leaves(
    state: TableState, leaves: pa.Table, column: str, values: Sequence[str], projection: EntryProjection
) -> pa.Table:
    """Search leaves in tree layout, which the driver or tasks can open."""
    if not len(leaves):
        return projection.schema.empty_table()
    assert state.tree is not None
    assert state.access.tasks is not None
    tree, types, tasks = state.tree, state.types, state.access.tasks
    ids = set(leaves.column(MANIFEST).to_pylist())
    masks = {row[MANIFEST]: row for row in tree.manifest_dvs.to_pylist() if row[MANIFEST] in ids}

    def search(files: Files | None) -> LeafSearch:
        return LeafSearch(column, values, projection, types.tree_types, types.locations, masks, files or tasks)

    return collected(mapped_files(whole_manifests(leaves), search, projection.schema, state))


def _query(state: TableState, manifests: pa.Table, column: str, values: Sequence[str]) -> pa.Table:
    """Search manifests of other layouts, and leaves that only Spark can read. For many manifests, run a Spark query."""
    entries = live_relation(state, manifests)
    if len(values) <= _LITERALS:
        return collected(where(entries, sql.col(column).isin(list(values))))
    return collected(among(entries, column, pa.array(values, pa.string())))


def search_all(manifests: pa.Table) -> Candidates:
    """Return a stage that searches the given manifests."""
    return lambda _: manifests
