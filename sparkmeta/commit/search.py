"""Find the live entries of a tree that a commit is about, by path: on the driver, reading as few leaves as will do.

What a search found in a leaf holds as long as the leaf and its deletion vector stay, so that a commit that is tried
again searches only what other commits wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.columns import sql
from sparkmeta.edit.next_root import same_vector
from sparkmeta.manifests.arrays import whole
from sparkmeta.manifests.inherit import ManifestContext
from sparkmeta.manifests.parts import ManifestPart, whole_manifests
from sparkmeta.manifests.placement import MOST_REQUESTS
from sparkmeta.manifests.projection import MANIFEST, EntryProjection
from sparkmeta.manifests.v4.decode import entries_of_rows, root_entries
from sparkmeta.manifests.v4.root import is_live
from sparkmeta.manifests.v4.search import LeafSearch
from sparkmeta.manifests.v4.tree_manifests import IN_ROOT, OWN_ENTRIES
from sparkmeta.plan.deletes.kinds import DV_COLUMNS
from sparkmeta.plan.filter import is_live as entry_is_live
from sparkmeta.session import local_frame, map_by_tasks, map_on_driver
from sparkmeta.spec.entry import ContentType

if TYPE_CHECKING:
    from sparkmeta.state import TableState

# More files than this are never brought to the driver one by one.
FEW_FILES = 20_000

# What tells where an entry is, and what it amounts to.
FOUND_COLUMNS = DV_COLUMNS

# Up to so many values are written into a query.
_LITERALS = 200

# Gives manifests, rows of `state.manifests`, to search for files that none before it had.
Candidates = Callable[[Sequence["FileName"]], pa.Table]


class FileName(NamedTuple):
    """What tells a file from others: deletion vectors share a Puffin file, and differ in their offset."""

    path: str
    offset: int | None = None


@dataclass(frozen=True)
class _LeafHits:
    """What a search found in a leaf. mask: the leaf's deletion vector then. asked: the paths looked for."""

    mask: Mapping[str, Any] | None
    asked: frozenset[str]
    entries: pa.Table


@dataclass
class LeafMemo:
    """What a search found in leaves, for as long as these and their deletion vectors stay."""

    _hits: dict[str, list[_LeafHits]] = field(default_factory=dict)

    def recall(
        self, state: TableState, manifests: pa.Table, schema: pa.Schema, asked: frozenset[str] = frozenset()
    ) -> tuple[pa.Table, pa.Table]:
        """Return what is known of some manifests.

        Args:
            manifests: rows of `state.manifests`.
            schema: of the entries.
            asked: the paths looked for, where the search is for paths.

        Returns:
            The entries found in them, which may be of more paths, and the manifests that are still to be searched.
        """
        masks = state.tree.root.vector_of if state.tree is not None else {}
        places = dict(zip(*(manifests.column(name).to_pylist() for name in ("location", MANIFEST)), strict=True))
        tables, known = [schema.empty_table()], []
        for location, manifest in places.items():
            for hits in self._hits.get(location, ()):
                same_leaf = same_vector(hits.mask, masks.get(location)) and hits.entries.schema.equals(schema)
                if same_leaf and asked <= hits.asked:
                    known.append(location)
                    tables.append(_at_manifest(hits.entries, manifest))
                    break
        fresh = pc.invert(pc.is_in(manifests.column("location"), pa.array(known, pa.string())))
        return pa.concat_tables(tables), manifests.filter(fresh)

    def keep(
        self, state: TableState, manifests: pa.Table, entries: pa.Table, asked: frozenset[str] = frozenset()
    ) -> None:
        """Keep what was found in manifests that have been searched; the root's own files change with each commit."""
        masks = state.tree.root.vector_of if state.tree is not None else {}
        by_manifest = rows_by_manifest(entries)
        leaves = manifests.filter(pc.not_equal(manifests.column("file_format"), IN_ROOT))
        for location, manifest in zip(
            *(leaves.column(name).to_pylist() for name in ("location", MANIFEST)), strict=True
        ):
            hits = by_manifest.get(manifest, entries.slice(0, 0))
            self._hits.setdefault(location, []).append(_LeafHits(masks.get(location), asked, hits))


@dataclass
class PathSearch:
    """Finds live entries by one of their paths; keeps what it found for the next attempt.

    Args:
        column: the path: `location`, or `referenced_file` for the deletes of a data file.
    """

    column: str
    _memo: LeafMemo = field(default_factory=LeafMemo)

    def find(self, state: TableState, names: Iterable[FileName], stages: Sequence[Candidates]) -> pa.Table:
        """Find files by `location`, stage by stage: each searches its manifests for those that none before it found.

        Args:
            names: at most `FEW_FILES`.
            stages: give the manifests to search; what was searched before is left out.

        Returns:
            The live entries, in the schema of a projection of `FOUND_COLUMNS`, with others of the same paths.
        """
        missing, searched = list(dict.fromkeys(names)), pa.array([], pa.int32())
        tables = [state.projection(FOUND_COLUMNS).schema.empty_table()]
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
        """Return the live entries of some manifests, rows of `state.manifests`, that have one of the paths."""
        wanted = sorted(set(paths))
        schema = state.projection(FOUND_COLUMNS).schema
        if not wanted or not len(manifests):
            return schema.empty_table()
        asked = frozenset(wanted)
        known, fresh = self._memo.recall(state, manifests, schema, asked)
        known = known.filter(pc.is_in(known.column(self.column), pa.array(wanted, pa.string())))
        entries = _entries_with(state, fresh, self.column, wanted)
        self._memo.keep(state, fresh, entries, asked)
        return pa.concat_tables([known, entries])


def new_entries(state: TableState, rows: pa.Table) -> pa.Table:
    """New files, rows of `tree_schema`, as entries of `FOUND_COLUMNS`; of no manifest."""
    part = ManifestPart(-1, state.metadata.location, 0, ManifestContext(None, None, None))
    nowhere = pa.nulls(len(rows), pa.int64())
    return entries_of_rows(rows, nowhere, part, state.projection(FOUND_COLUMNS), state.types.tree_types)


def names_of(entries: pa.Table) -> list[FileName]:
    """Return the names of entries of files."""
    offsets = pc.struct_field(entries.column("deletion_vector"), "offset").to_pylist()
    return [FileName(*name) for name in zip(entries.column("location").to_pylist(), offsets, strict=True)]


def rows_by_manifest(entries: pa.Table) -> dict[int, pa.Table]:
    """Return entries by the small id of their manifest, in the order of these."""
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
    projection = state.projection(FOUND_COLUMNS)
    tables = [projection.schema.empty_table()]
    if state.tree is not None and len(manifests):
        in_root = pc.equal(manifests.column("file_format"), IN_ROOT)
        for content in manifests.filter(in_root).column("content_type").to_pylist():
            tables.append(_own_entries(state, ContentType(content), column, values, projection))  # noqa: PERF401
        leaves = manifests.filter(pc.invert(in_root))
        searchable = (
            state.tree.has_tree_layout(leaves) if state.access.tasks is not None else pa.repeat(False, len(leaves))
        )
        tables.append(_search_leaves(state, leaves.filter(searchable), column, values, projection))
        tables.append(_query(state, leaves.filter(pc.invert(searchable)), column, values, projection))
    entries = pa.concat_tables([table.cast(projection.schema) for table in tables])
    return entries.filter(is_live(entries))


def _own_entries(
    state: TableState, content: ContentType, column: str, values: Sequence[str], projection: EntryProjection
) -> pa.Table:
    """Files in the root itself."""
    assert state.tree is not None
    rows = state.tree.root.of(OWN_ENTRIES[content])
    rows = rows.filter(pc.is_in(rows.column(column), pa.array(values, pa.string())))
    types, manifest = state.types.tree_types, state.tree.own_id(content)
    return root_entries(rows, manifest, state.tree.root.location, projection, types)


def _search_leaves(
    state: TableState, leaves: pa.Table, column: str, values: Sequence[str], projection: EntryProjection
) -> pa.Table:
    """Leaves in the layout of trees, which this process or tasks can open."""
    if not len(leaves):
        return projection.schema.empty_table()
    assert state.tree is not None
    assert state.access.tasks is not None
    on_driver = state.access.driver is not None and len(leaves) <= MOST_REQUESTS
    files = state.files if on_driver else state.access.tasks
    ids = set(leaves.column(MANIFEST).to_pylist())
    masks = {row[MANIFEST]: row for row in state.tree.manifest_dvs.to_pylist() if row[MANIFEST] in ids}
    search = LeafSearch(column, values, projection, state.types.tree_types, masks, files)
    if on_driver:
        return map_on_driver(whole_manifests(leaves), search, projection.schema)
    return map_by_tasks(state.spark, whole_manifests(leaves), search, projection.schema).toArrow()


def _query(
    state: TableState, manifests: pa.Table, column: str, values: Sequence[str], projection: EntryProjection
) -> pa.Table:
    """Manifests of other layouts, and leaves that only Spark's own sources reach."""
    if not len(manifests):
        return projection.schema.empty_table()
    entries = state.entries(manifests, projection).where(entry_is_live().text)
    if len(values) <= _LITERALS:
        return entries.where(sql.col(column).isin(list(values)).text).toArrow()
    keys = F.broadcast(local_frame(state.spark, pa.table({"wanted_path": values})))
    return entries.join(keys, F.expr(f"{column} = wanted_path"), "left_semi").toArrow()


def search_all(manifests: pa.Table) -> Candidates:
    """Return a stage that searches the same manifests for all paths."""
    return lambda _: manifests
