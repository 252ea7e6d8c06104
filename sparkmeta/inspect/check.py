"""Check the invariants of a snapshot's metadata, a metadata tree or a manifest list (semantics 18.4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from operator import or_
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.arrow_types import spark_schema
from sparkmeta.changes.file_changes import Row, flat_rows, manifest_dvs_by_leaf
from sparkmeta.entries.live import is_live, is_live_entry
from sparkmeta.entries.manifest_records import whole_manifests
from sparkmeta.entries.projection import CONTENT_STATS, MANIFEST, ORDINAL, EntryProjection
from sparkmeta.entries.relation import (
    beside,
    broadcast,
    exploded,
    grouped,
    mapped,
    matching,
    names,
    pairs,
    select,
    where,
    with_columns,
)
from sparkmeta.entries.relation import union as rows_of_both
from sparkmeta.errors import CorruptFileError
from sparkmeta.expr import sql
from sparkmeta.expr.arrays import indices_where, whole, with_plain_types
from sparkmeta.expr.bounds import inverted, known_bounds
from sparkmeta.inspect.check_tasks import (
    CHECKED_COLUMNS,
    VIOLATIONS,
    Broken,
    ManifestChecks,
    above_upper,
    shown_value,
    violation,
)
from sparkmeta.inspect.metadata_rows import MetadataRows
from sparkmeta.manifests.deletion_vectors import (
    DV_SCHEMA,
    checked_ordinals,
    checked_ordinals_table,
    dv_row,
    few_masks,
)
from sparkmeta.manifests.placement import MOST_WIDE_ENTRIES, Placement
from sparkmeta.manifests.reader import root_location
from sparkmeta.manifests.v4.iceberg_layout import VECTORS
from sparkmeta.manifests.v4.root import (
    FILES,
    LEAVES,
    TWO_LIVE_ENTRIES,
    Root,
    entry_problems,
    one_of,
    read_unchecked_root,
    repeated_leaves,
    version,
)
from sparkmeta.manifests.v4.spark import entry_columns, narrowed_rows
from sparkmeta.manifests.v4.tree_manifests import Tree, leaf_manifests
from sparkmeta.plan.deletes.rules import SEQUENCE, partition_key
from sparkmeta.session import local_frame, map_arrow, map_by_tasks, map_on_driver
from sparkmeta.spec.entry import BOUNDS, ContentType, Status
from sparkmeta.storage.reading import with_content

if TYPE_CHECKING:
    from sparkmeta.entries.relation import Relation
    from sparkmeta.expr.sql import Aliased, Sql
    from sparkmeta.session import MapFunction
    from sparkmeta.snapshot.state import TableState


# -- What `check` examines in a tree ----------------------------------------------------------------------------------


ENTRY_COLUMNS = ("content_type", "location", "version_info", "deletion_vector", "referenced_file", "partition_spec_id")
UNBOUND, IS_MASKED = "_unbound", "_masked"
_DATA, _POSITION = int(ContentType.DATA), int(ContentType.POSITION_DELETES)
_EQUALITY = int(ContentType.EQUALITY_DELETES)
_LEAF, _PLACE, _MASKED_PLACE = "_leaf", "_place", "_masked_place"
COUNTED = {Status.ADDED: "added", Status.EXISTING: "existing", Status.DELETED: "deleted"}

_LEAF_SCHEMA = pa.schema(
    [
        pa.field(_LEAF, pa.int32()),
        pa.field("path", pa.string()),
        pa.field("kind", pa.int32()),
        pa.field("status", pa.int32()),
        pa.field("owner", pa.string()),
        pa.field("tree_layout", pa.bool_()),
        *(pa.field(name, pa.int64()) for name in ("records", *COUNTED.values())),
    ]
)


@dataclass(frozen=True)
class CheckedTree:
    """A tree to check. The root's entries have the required fields; nothing else is assumed."""

    state: TableState
    root: Root

    # -- on the driver ----------------------------------------------------------------------------------------------

    @cached_property
    def leaf_by_location(self) -> dict[str, Row]:
        """The root's entries for leaves by location; a live one takes precedence over a DELETED one."""
        in_files = self.root.table.filter(pc.not_equal(self.root.table.column("file_format"), VECTORS))
        entries = [row for _, row in flat_rows(in_files, LEAVES)]
        rows = sorted(entries, key=lambda row: row["status"] != Status.DELETED)
        return {row["location"]: row for row in rows}

    @cached_property
    def masks_by_leaf(self) -> dict[str, list[Row]]:
        """The manifest DVs, DELETED ones included, by the leaf that they mask."""
        return manifest_dvs_by_leaf(self.root)

    @cached_property
    def manifests(self) -> pa.Table:
        """The live leaves as manifests, with their row in the root as `manifest`."""
        leaves = self.root.leaves
        return leaf_manifests(leaves, leaves.column("ordinal").cast(pa.int32()))

    @cached_property
    def masks(self) -> pa.Table:
        """All live manifest DVs of live leaves, even several per leaf, as `DV_SCHEMA`."""
        locations, ids = (self.manifests.column(name).to_pylist() for name in ("location", MANIFEST))
        rows = [
            dv_row(manifest, self.leaf_by_location[leaf], mask)
            for leaf, manifest in zip(locations, ids, strict=True)
            for mask in self.masks_by_leaf.get(leaf, ())
            if mask["status"] != Status.DELETED
        ]
        return pa.Table.from_pylist(rows, schema=DV_SCHEMA)

    @property
    def tree(self) -> Tree:
        """The snapshot's metadata tree."""
        assert self.state.tree is not None
        return self.state.tree

    # -- entries ------------------------------------------------------------------------------------------------------

    @cached_property
    def parent(self) -> TableState | None:
        """The table at the parent snapshot, which is empty for the first one; None if the parent has expired."""
        state = self.state
        assert state.snapshot is not None
        parent_id = state.snapshot.parent_snapshot_id
        snapshot = None if parent_id is None else state.metadata.snapshot_by_id(parent_id)
        return None if snapshot is None and parent_id is not None else state.at(snapshot)

    @cached_property
    def on_driver(self) -> bool:
        """Whether the driver reads all entries, which requires that the parent snapshot has few entries too."""
        if not self.state.reader.fits_driver(self.manifests, MOST_WIDE_ENTRIES):
            return False
        if not few_masks(self.masks, self.state.access):
            return False
        before = self.parent
        if before is None or before.snapshot is None:
            return True
        return before.reader.driver_reads(before.manifests, before.projection(ENTRY_COLUMNS), MOST_WIDE_ENTRIES)

    def given(self, rows: pa.Table) -> Relation:
        """Return rows from the driver as a relation of the same kind as the entries."""
        return rows if self.on_driver else local_frame(self.state.spark, rows)

    @cached_property
    def leaves(self) -> Relation:
        """The root's entries for the live leaves, as `_LEAF_SCHEMA`."""
        stats = self.manifests.column("manifest_stats")
        columns: dict[str, Any] = {
            _LEAF: self.manifests.column(MANIFEST),
            "path": self.manifests.column("location"),
            "kind": self.manifests.column("content_type"),
            "status": version(self.manifests, "status"),
            "owner": self.manifests.column("referenced_file"),
            "tree_layout": self.tree.has_tree_layout(self.manifests),
            "records": self.manifests.column("record_count"),
            **{name: pc.struct_field(stats, f"{name}_files_count") for name in COUNTED.values()},
        }
        arrays = [columns[field.name].cast(field.type) for field in _LEAF_SCHEMA]
        return self.given(pa.Table.from_arrays(arrays, schema=_LEAF_SCHEMA))

    def with_leaves(self, rows: Relation) -> Relation:
        """Return rows with a `manifest`, with the columns of `leaves`."""
        return beside(rows, broadcast(self.leaves), MANIFEST, _LEAF)

    @cached_property
    def bound_types(self) -> dict[int, str]:
        """The ids of the stats that hold partition values -> Iceberg types."""
        ids = {source for fields in self.state.types.tuple_sources.values() for _, source in fields}
        return {field_id: self.state.types.stats_types[field_id] for field_id in sorted(ids)}

    def physical(self, manifests: pa.Table, projection: EntryProjection) -> Sequence[Relation]:
        """Return every physical entry of leaves."""
        if not len(manifests):
            return []
        reader = self.state.reader
        if self.on_driver:
            return [reader.physical_table(manifests, projection)]
        return reader.physical_frames(manifests, projection)

    def violations(self, leaves: pa.Table, projection: EntryProjection, function: MapFunction) -> Sequence[Relation]:
        """Return the violations that a function finds in physical entries of leaves."""
        if self.on_driver:
            return [mapped(entries, function, VIOLATIONS) for entries in self.physical(leaves, projection)]
        return self.state.reader.map_physical(leaves, projection, function, VIOLATIONS)

    def physical_entries(self, manifests: pa.Table) -> Relation:
        """Return every physical entry of leaves: `ENTRY_COLUMNS`, `manifest`, `ordinal` and `UNBOUND`.

        UNBOUND is the id of the first stats of a partition value that the entry lacks.
        """
        of_tree = self.tree.has_tree_layout(manifests)
        layouts: list[tuple[pa.Table, dict[int, str]]] = [
            (manifests.filter(of_tree), self.bound_types),
            (manifests.filter(pc.invert(of_tree)), {}),
        ]
        parts = [
            self._narrow(rows, projection)
            for leaves, stats in layouts
            for projection in [EntryProjection.of(ENTRY_COLUMNS, None, stats)]
            for rows in self.physical(leaves, projection)
        ]
        return self.union(parts) if parts else where(self.root_entries(FILES), sql.lit(False))

    def root_entries(self, kinds: Collection[ContentType]) -> Relation:
        """Return the files of the root itself with the columns of `physical_entries`, without a manifest."""
        projection, tuples = EntryProjection.of(ENTRY_COLUMNS, None, self.bound_types), self.state.types.tuple_sources
        files = self.root.of(kinds, live=False)
        rows = narrowed_rows(files, projection, tuples).append_column(MANIFEST, pa.nulls(len(files), pa.int32()))
        rows = rows.append_column(ORDINAL, files.column(ORDINAL))
        return self._narrow(select(self.given(rows), entry_columns(projection, tuples, None)), projection)

    def _narrow(self, rows: Relation, projection: EntryProjection) -> Relation:
        unbound = self._unbound() if projection.stats else sql.lit(None).cast("int")
        return select(rows, [*sql.columns(*ENTRY_COLUMNS, MANIFEST, ORDINAL), unbound.alias(UNBOUND)])

    def _unbound(self) -> Sql:
        """Return the id of the spec's first stats that are missing, or have an upper bound but no lower one."""
        cases: list[Sql] = []
        for spec_id, fields in self.state.types.tuple_sources.items():
            for _, source in fields:
                stats = sql.col(f"{CONTENT_STATS}.`{source}`")
                lacks = stats.isNull() | (stats["lower_bound"].isNull() & stats["upper_bound"].isNotNull())
                cases += [(sql.col("partition_spec_id") == spec_id) & lacks, sql.lit(source)]
        return sql.Case(*cases)

    @cached_property
    def leaf_files(self) -> Relation:
        """Every physical entry of the live leaves."""
        return self.physical_entries(self.manifests)

    @cached_property
    def ordinals(self) -> Relation:
        """The ordinals that are masked, and the problems of masks, as `CHECKED_SCHEMA`."""
        access = self.state.access
        if self.on_driver:
            return checked_ordinals_table(self.masks, access.driver)
        return checked_ordinals(self.state.spark, self.masks, access.tasks)

    @cached_property
    def masked_ordinals(self) -> Relation:
        """The entries that are masked: rows of `MANIFEST` and `ORDINAL`."""
        return where(self.ordinals, sql.col("problem").isNull())

    @cached_property
    def marked(self) -> Relation:
        """The entries of leaves with `IS_MASKED`."""
        if not len(self.masks):
            return with_columns(self.leaf_files, sql.lit(False).alias(IS_MASKED))
        position = sql.struct(*sql.columns(MANIFEST, ORDINAL))
        masked = grouped(self.masked_ordinals, [position.alias(_MASKED_PLACE)], [_COUNT])
        marked = beside(with_columns(self.leaf_files, position.alias(_PLACE)), masked, _PLACE, _MASKED_PLACE)
        is_masked = sql.col(_MASKED_PLACE).isNotNull().alias(IS_MASKED)
        return select(marked, [*sql.columns(*names(self.leaf_files)), is_masked])

    @cached_property
    def live(self) -> Relation:
        """The live files, as readers see them."""
        in_leaves = where(self.marked, _is_unmasked())
        return self.union([in_leaves, where(self.root_entries(FILES), is_live_entry())])

    def union(self, parts: Iterable[Relation]) -> Relation:
        """Return the rows of all parts."""
        return reduce(lambda left, right: rows_of_both(left, right, self.state), parts)


def _is_unmasked() -> Sql:
    return is_live_entry() & ~sql.col(IS_MASKED)


# -- Check a manifest list --------------------------------------------------------------------------------------------


_OFFSET = "_offset"


def check_list(state: TableState) -> Relation:
    """Return the violations in a snapshot with a manifest list; see `Table.check`. The driver checks few manifests."""
    try:
        manifests = state.manifests
    except CorruptFileError as error:
        broken = Broken(error.location, error.field, error.value, error.problem)
        return pa.Table.from_pylist([violation("manifest-list", broken)], schema=VIOLATIONS)
    of_list = [violation(rule, broken) for rule, find in LIST_RULES for broken in find(state)]
    parts: list[Relation] = [pa.Table.from_pylist(of_list, schema=VIOLATIONS)]
    if len(manifests):
        projection = state.projection(CHECKED_COLUMNS)
        on_driver = state.reader.fits_driver(manifests, MOST_WIDE_ENTRIES)
        reader = state.access.driver if on_driver else state.access.tasks
        types, version = state.types, state.metadata.format_version
        checks = ManifestChecks(reader, projection, types.column_types, types.locations, version)
        parts.append(_checked(state, checks.violations, VIOLATIONS, on_driver))
        live = where(_checked(state, checks.files, projection.schema, on_driver), is_live_entry())
        parts += [*_listed_twice("one-entry-per-file", live), *_contradictory_vectors(state, live)]
    return reduce(lambda left, right: rows_of_both(left, right, state), parts)


def _checked(
    state: TableState, function: Callable[..., Iterator[pa.RecordBatch]], schema: pa.Schema, on_driver: bool
) -> Relation:
    units = whole_manifests(state.manifests)
    for name in ("content_type", "manifest_stats"):
        units = units.append_column(name, state.manifests.column(name))
    if on_driver:
        return map_on_driver(units, function, schema)
    if state.access.tasks is None:
        return map_arrow(with_content(state.spark, units), function, schema)
    return map_by_tasks(state.spark, units, function, schema)


# -- Rules of the list, on the driver ---------------------------------------------------------------------------------


def _manifests_listed_twice(state: TableState) -> Iterator[Broken]:
    for path, count in sorted(Counter(state.manifests.column("location").to_pylist()).items()):
        if count > 1:
            yield Broken(path, "manifest_path", path, f"the manifest list has {count} entries for this manifest")


def _newer_manifests(state: TableState) -> Iterator[Broken]:
    assert state.snapshot is not None
    newest = state.snapshot.sequence_number or 0
    numbers = pc.struct_field(state.manifests.column("version_info"), "sequence_number")
    for row in indices_where(pc.greater(numbers, newest)).to_pylist():
        problem = f"the snapshot has the sequence number {newest}"
        yield Broken(state.manifests.column("location")[row].as_py(), "sequence_number", numbers[row].as_py(), problem)


def inverted_summaries(state: TableState) -> Iterator[Broken]:
    """Find partition summaries whose lower bound is above the upper one."""
    return _summaries(state, order=True)


def _summaries(state: TableState, *, order: bool) -> Iterator[Broken]:
    """Find summaries whose bounds are inverted (`order`), or are not values of the field's type."""
    listed = state.manifest_files
    partitions, paths = listed.column("partitions").combine_chunks(), listed.column("manifest_path")
    specs, offsets = listed.column("partition_spec_id").to_pylist(), partitions.offsets.to_pylist()
    present = partitions.is_valid().to_pylist()
    for spec_id, fields in state.types.spec_fields.items():
        rows = [row for row, of_spec in enumerate(specs) if of_spec == spec_id and present[row]]
        for position, (field_id, type_name) in enumerate(fields):
            chosen = partitions.values.take(pa.array([offsets[row] + position for row in rows], pa.int64()))
            raw = {name: chosen.field(name) for name in BOUNDS}
            known = {name: known_bounds(bound, type_name) for name, bound in raw.items()}
            lower, upper = (known[name] for name in BOUNDS)
            if order:
                wrong = inverted(lower, upper, type_name)
                for index in [] if wrong is None else indices_where(pc.fill_null(wrong, False)).to_pylist():
                    field = f"partitions.{field_id}.lower_bound"
                    path = paths[rows[index]].as_py()
                    yield Broken(path, field, shown_value(lower, index), above_upper(upper, index))
                continue
            for name, bound in known.items() if not pa.types.is_null(lower.type) else ():
                for index in indices_where(pc.and_(raw[name].is_valid(), bound.is_null())).to_pylist():
                    problem = f"not a value of type {type_name}, so it is unknown"
                    path, field = paths[rows[index]].as_py(), f"partitions.{field_id}.{name}"
                    yield Broken(path, field, raw[name][index].as_py(), problem)


LIST_RULES: tuple[tuple[str, Callable[[TableState], Iterator[Broken]]], ...] = (
    ("one-entry-per-file", _manifests_listed_twice),
    ("sequence-numbers", _newer_manifests),
    ("bounds-order", inverted_summaries),
    ("bounds-value", partial(_summaries, order=False)),
)


# -- Rules of live files, each a query --------------------------------------------------------------------------------


_COUNT = sql.call("sum", sql.lit(1).cast("bigint")).alias("count")
_SEVERAL = sql.col("count") > 1


def _listed_twice(rule: str, live: Relation) -> Iterator[Relation]:
    offset = sql.coalesce(sql.col("deletion_vector.offset"), sql.lit(-1).cast("bigint")).alias(_OFFSET)
    twice = where(grouped(live, [*sql.columns("location"), offset], [_COUNT]), _SEVERAL)
    yield _broken(rule, twice, "location", "count", "the file has several live entries")


def _several_vectors(rule: str, dvs: Relation) -> Relation:
    files = where(grouped(dvs, sql.columns("referenced_file"), [_COUNT]), _SEVERAL)
    return _broken(rule, files, "referenced_file", "count", "the data file has several live deletion vectors")


def _contradictory_vectors(state: TableState, live: Relation) -> Iterator[Relation]:
    """Find second deletion vectors of a data file, and vectors that are older than it or in another partition."""
    sequence, key = sql.col(SEQUENCE), partition_key(state)
    is_dv = (sql.col("content_type") == _POSITION) & (sql.col("file_format") == "PUFFIN")
    dvs = where(live, is_dv)
    yield _several_vectors("one-vector-per-file", dvs)
    of_data = [sql.col("location").alias("file"), sequence.alias("data_sequence"), key.alias("data_key")]
    data = select(where(live, sql.col("content_type") == _DATA), of_data)
    owner = sql.col("referenced_file").alias("file")
    of_dv = [owner, *sql.columns("location"), sequence.alias("sequence"), key.alias("key")]
    with_data = pairs(select(dvs, of_dv), data, "file")
    older = where(with_data, sql.col("sequence") < sql.col("data_sequence"))
    yield _broken("vector-target", older, "location", "file", "the deletion vector is older than its data file")
    misplaced = where(with_data, sql.col("key") != sql.col("data_key"))
    problem = "the deletion vector has another partition spec or partition than its data file"
    yield _broken("vector-target", misplaced, "location", "file", problem)


def _broken(rule: str, rows: Relation, location: str, value: str | Sql, problem: str | Sql) -> Relation:
    of_value = sql.col(value) if isinstance(value, str) else value
    text = sql.lit(problem) if isinstance(problem, str) else problem
    values = (sql.lit(rule), sql.col(location), of_value.cast("string"), text)
    return select(rows, [column.alias(name) for column, name in zip(values, VIOLATIONS.names, strict=True)])


# -- Check a metadata tree (semantics 18.4) ---------------------------------------------------------------------------
# There are three tables of rules. The driver evaluates the rules of the root. One pass over the leaves evaluates the
# rules of entries. Each rule of the tree is a separate query. If there are few entries, the driver evaluates all
# queries.


_MATRIX = (*ENTRY_COLUMNS, "file_format", "record_count", "file_size_in_bytes", "manifest_stats", "equality_ids")
# Sequence numbers of entries in leaves have a separate rule: only ADDED entries may lack them.
_INHERITED = ("version_info.sequence_number", "version_info.file_sequence_number")


def violations(state: TableState) -> MetadataRows:
    """Return the violations in the metadata of the state's snapshot; see `Table.check`."""
    return MetadataRows(state, _snapshot_violations(state), spark_schema(VIOLATIONS))


def _snapshot_violations(state: TableState) -> Relation:
    """Return the violations in the snapshot's metadata, as a table if the driver evaluates all rules.

    Raises:
        CorruptFileError: the root is not a manifest.
    """
    if state.snapshot is None:
        return VIOLATIONS.empty_table()
    location = root_location(state.metadata, state.snapshot)
    if location is None:
        return check_list(state)
    snapshot = state.snapshot
    stamp = (snapshot.snapshot_id, snapshot.sequence_number or 0, snapshot.first_row_id)
    root = read_unchecked_root(
        state.files.read(location),
        state.types.tree_types,
        location,
        stamp,
        state.types.locations,
        as_written=True,
    )
    # The layout of the Iceberg project records the size of a deletion vector, not of its file.
    columns = None if root.layout.colocates else state.types.primitive_fields
    broken_fields = [
        violation("entry-fields", Broken(location, broken.field, broken.value, broken.error(location).problem))
        for broken in entry_problems(root.table, state.specs, columns, exact_counts=root.layout.is_strict)
    ]
    if broken_fields:
        return pa.Table.from_pylist(broken_fields, schema=VIOLATIONS)
    return _tree_violations(CheckedTree(replace(state, root=root), root))


def _tree_violations(tree: CheckedTree) -> Relation:
    of_root = [violation(rule, broken) for rule, find in ROOT_RULES for broken in find(tree)]
    parts: list[Relation] = [pa.Table.from_pylist(of_root, schema=VIOLATIONS), *_entry_violations(tree)]
    parts += [broken for rule, query in TREE_RULES for broken in query(tree, rule)]
    return tree.union(parts)


def _entry_violations(tree: CheckedTree) -> Iterator[Relation]:
    """Evaluate `ENTRY_RULES` in one pass over the leaves, and only the rule about bounds for the root's own files."""
    if len(tree.manifests):
        yield _broken_entries(tree.with_leaves(tree.marked), dict(ENTRY_RULES))
    if tree.bound_types:
        in_root = with_columns(tree.root_entries(FILES), sql.lit(tree.root.location).alias("path"))
        yield _broken_entries(in_root, {"partition-bound": _unbound_entry})


def _broken_entries(entries: Relation, rules: Mapping[str, Callable[[], EntryRule]]) -> Relation:
    structs = [_struct(rule, make()) for rule, make in rules.items()]
    violations = sql.filter(sql.array(*structs), lambda violation: violation.isNotNull())
    return exploded(select(entries, [violations.alias("violation")]), "violation")


def _struct(rule: str, broken: EntryRule) -> Sql:
    """Return the violation of a rule as a struct of `VIOLATIONS`; null for valid entries."""
    values = (sql.lit(rule), sql.col("path"), broken.value.cast("string"), sql.lit(broken.problem))
    columns = [value.alias(name) for value, name in zip(values, VIOLATIONS.names, strict=True)]
    return sql.when(broken.condition, sql.struct(*columns))


# -- Rules of the root, on the driver ---------------------------------------------------------------------------------


def _leaves_listed_twice(tree: CheckedTree) -> Iterator[Broken]:
    for location in repeated_leaves(tree.root.leaves):
        yield Broken(location, "location", location, TWO_LIVE_ENTRIES)


def _leaves_with_several_masks(tree: CheckedTree) -> Iterator[Broken]:
    for leaf, masks in sorted(tree.masks_by_leaf.items()):
        count = sum(mask["status"] != Status.DELETED for mask in masks)
        if count > 1:
            yield Broken(leaf, "deletion vectors", count, "a manifest has one live deletion vector at most")


def _masks_of_missing_leaves(tree: CheckedTree) -> Iterator[Broken]:
    problem = "a live deletion vector masks a manifest that the root does not hold, or has deleted"
    for location, masks in sorted(tree.masks_by_leaf.items()):
        live, leaf = [mask for mask in masks if mask["status"] != Status.DELETED], tree.leaf_by_location.get(location)
        # If a commit removes a leaf and adds a mask to it, the mask lists the removed entries (semantics 16.16).
        is_removed = leaf is not None and leaf["status"] == Status.DELETED
        if live and (leaf is None or (is_removed and any(mask["status"] != Status.ADDED for mask in live))):
            yield Broken(tree.root.location, "referenced_file", location, problem)


def _leaves_of_missing_owners(tree: CheckedTree) -> Iterator[Broken]:
    problem = "the manifest is affiliated to one that is not a live data manifest of the root"
    for location, leaf in tree.leaf_by_location.items():
        owner = tree.leaf_by_location.get(leaf["referenced_file"])
        is_owner = owner is not None and (owner["status"], owner["content_type"]) in _OWNERS
        if leaf["referenced_file"] is not None and leaf["status"] != Status.DELETED and not is_owner:
            yield Broken(location, "referenced_file", leaf["referenced_file"], problem)


_OWNERS = {(status, ContentType.DATA_MANIFEST) for status in (Status.EXISTING, Status.ADDED)}


def _leaves_without_bounds(tree: CheckedTree) -> Iterator[Broken]:
    """Find leaves in the layout of trees whose root entries lack stats of partition values."""
    live = tree.root.table.filter(pc.and_(is_live(tree.root.table), one_of(tree.root.table, LEAVES)))
    if not len(live):
        return
    has_tree_layout = tree.tree.has_tree_layout(leaf_manifests(live, pa.nulls(len(live), pa.int32())))
    stats, specs = live.column(CONTENT_STATS), live.column("partition_spec_id")
    for spec_id, fields in tree.state.types.tuple_sources.items():
        for _, source in fields:
            lacks = pc.and_(pc.equal(specs, spec_id), pc.struct_field(stats, str(source)).is_null())
            for row in indices_where(pc.and_(lacks, has_tree_layout)).to_pylist():
                yield Broken(live.column("location")[row].as_py(), f"content_stats.{source}", None, _NO_BOUND)


_NO_BOUND = "the value of a partition field is missing"


def _inverted_in_root(tree: CheckedTree) -> Iterator[Broken]:
    """Find inverted bounds of the root's entries; the location is the file's or leaf's."""
    for row, field, value, problem in _inverted(tree.root.table, tree.state.types.stats_types):
        yield Broken(tree.root.table.column("location")[row].as_py(), field, value, problem)


def _inverted(entries: pa.Table, types: Mapping[int, str]) -> Iterator[tuple[int, str, Any, str]]:
    """Yield the row, field, value and problem of inverted bounds."""
    stats = whole(entries.column(CONTENT_STATS))
    for field in stats.type:
        lower, upper = (pc.struct_field(stats, [field.name, name]) for name in BOUNDS)
        wrong = inverted(lower, upper, types[int(field.name)])
        for row in [] if wrong is None else indices_where(pc.fill_null(wrong, False)).to_pylist():
            name = f"content_stats.{field.name}.lower_bound"
            yield row, name, shown_value(lower, row), above_upper(upper, row)


ROOT_RULES: tuple[tuple[str, Callable[[CheckedTree], Iterator[Broken]]], ...] = (
    ("one-entry-per-file", _leaves_listed_twice),
    ("one-vector-per-manifest", _leaves_with_several_masks),
    ("vector-target", _masks_of_missing_leaves),
    ("affinity-target", _leaves_of_missing_owners),
    ("partition-bound", _leaves_without_bounds),
    ("bounds-order", _inverted_in_root),
)


# -- Rules of single entries, with the columns of their leaf ----------------------------------------------------------


class EntryRule(NamedTuple):
    """The condition under which an entry breaks a rule, and the value that breaks it."""

    condition: Sql
    value: Sql
    problem: str


def _misplaced_entry() -> EntryRule:
    kind, of_data = sql.col("content_type"), sql.col("kind") == int(ContentType.DATA_MANIFEST)
    condition = sql.when(of_data, kind != _DATA).otherwise(~kind.isin((_POSITION, _EQUALITY)))
    return EntryRule(condition, kind, "a manifest of the root's kind holds no such entry")


def _unnumbered_entry() -> EntryRule:
    missing = sql.col("version_info.sequence_number").isNull() | sql.col("version_info.file_sequence_number").isNull()
    condition = (sql.col("version_info.status") != int(Status.ADDED)) & missing
    return EntryRule(condition, sql.col("location"), "only ADDED entries inherit sequence numbers")


def _older_entry() -> EntryRule:
    status = sql.col("version_info.status")
    is_added = sql.col("tree_layout") & (sql.col("status") == int(Status.ADDED))
    problem = "a manifest that the snapshot added holds an entry that is older"
    return EntryRule(is_added & (status != int(Status.ADDED)), status, problem)


def _masked_deleted_entry() -> EntryRule:
    condition = sql.col(IS_MASKED) & (sql.col("version_info.status") == int(Status.DELETED))
    return EntryRule(condition, sql.col(ORDINAL), "a DELETED entry is masked")


def _affiliated_equality_delete() -> EntryRule:
    condition = sql.col("owner").isNotNull() & (sql.col("content_type") == _EQUALITY)
    return EntryRule(condition, sql.col("location"), "equality deletes reach beyond one data manifest")


def _unbound_entry() -> EntryRule:
    value = sql.concat("content_stats.", sql.col(UNBOUND), " of ", sql.col("location"))
    return EntryRule(is_live_entry() & sql.col(UNBOUND).isNotNull(), value, _NO_BOUND)


ENTRY_RULES: tuple[tuple[str, Callable[[], EntryRule]], ...] = (
    ("leaf-content", _misplaced_entry),
    ("sequence-numbers", _unnumbered_entry),
    ("added-manifest", _older_entry),
    ("ordinal-deleted", _masked_deleted_entry),
    ("affinity-equality-deletes", _affiliated_equality_delete),
    ("partition-bound", _unbound_entry),
)


# -- Rules of the tree, each a query ----------------------------------------------------------------------------------


def _miscounted_leaves(tree: CheckedTree, rule: str) -> Iterator[Relation]:
    if not len(tree.manifests) or not tree.root.layout.is_strict:
        return
    status = sql.col("version_info.status")
    counts = {name: sql.when(status == int(value), 1).otherwise(0) for value, name in COUNTED.items()}
    sums = [sql.call("sum", count).alias(f"counted_{name}") for name, count in counts.items()]
    counted = grouped(
        tree.leaf_files, [sql.col(MANIFEST).alias(_PLACE)], [sql.call("sum", 1).alias("counted_records"), *sums]
    )
    compared = beside(tree.leaves, counted, _LEAF, _PLACE)

    def count_columns(prefix: str) -> list[Aliased]:
        return [sql.coalesce(sql.col(f"{prefix}{name}"), 0).alias(name) for name in ("records", *COUNTED.values())]

    differs = reduce(
        or_, (left != right for left, right in zip(count_columns(""), count_columns("counted_"), strict=True))
    )
    in_root, in_leaf = (sql.call("to_json", sql.struct(*count_columns(prefix))) for prefix in ("", "counted_"))
    problem = sql.concat("the manifest's entries are ", in_leaf)
    yield _broken(rule, where(compared, differs), "path", in_root, problem)


def _unreadable_masks(tree: CheckedTree, rule: str) -> Iterator[Relation]:
    yield from _broken_masks(tree, rule, ~sql.col("problem").startswith(f"{ORDINAL}:"))


def _ordinals_out_of_range(tree: CheckedTree, rule: str) -> Iterator[Relation]:
    yield from _broken_masks(tree, rule, sql.col("problem").startswith(f"{ORDINAL}:"))


def _broken_masks(tree: CheckedTree, rule: str, condition: Sql) -> Iterator[Relation]:
    if len(tree.masks):
        broken = where(tree.ordinals, sql.col("problem").isNotNull() & condition)
        yield _broken(rule, tree.with_leaves(broken), "path", "value", sql.col("problem"))


def _files_listed_twice(tree: CheckedTree, rule: str) -> Iterator[Relation]:
    return _listed_twice(rule, tree.live)


def _files_with_several_dvs(tree: CheckedTree, rule: str) -> Iterator[Relation]:
    if len(tree.root.of([ContentType.POSITION_DELETES, ContentType.DELETE_MANIFEST])):
        is_vector = (sql.col("content_type") == _POSITION) & sql.col("deletion_vector.offset").isNotNull()
        yield _several_vectors(rule, where(tree.live, is_vector))


def _dvs_of_other_leaves(tree: CheckedTree, rule: str) -> Iterator[Relation]:
    """Find live deletion vectors in affiliated leaves whose data file is not in the data leaf, or is live elsewhere.

    Plans match them only with files of that data leaf.
    """
    if not pc.any(tree.manifests.column("referenced_file").is_valid()).as_py():
        return
    kind = sql.col("content_type")
    in_leaves = tree.with_leaves(where(tree.marked, _is_unmasked() & (kind == _POSITION)))
    dvs = select(in_leaves, sql.columns("path", "referenced_file", "owner"))
    data_leaves = where(tree.leaves, sql.col("kind") == int(ContentType.DATA_MANIFEST))
    owners = select(data_leaves, [sql.col(_LEAF).alias(MANIFEST), sql.col("path").alias(_LEAF)])
    affiliated = where(beside(dvs, broadcast(owners), "owner", _LEAF), sql.col(MANIFEST).isNotNull())
    files, file = where(tree.marked, kind == _DATA), {"referenced_file": "location"}
    in_leaf = {MANIFEST: MANIFEST, **file}
    problem = sql.concat("the deletion vector's data file is not in the affiliated manifest ", sql.col("owner"))
    yield _broken(rule, matching(affiliated, files, in_leaf, absent=True), "path", "referenced_file", problem)
    moved = matching(affiliated, files, in_leaf)
    moved = matching(moved, where(files, _is_unmasked()), in_leaf, absent=True)
    moved = matching(moved, where(tree.live, kind == _DATA), file)
    problem = sql.concat("the deletion vector's data file is live in another manifest than ", sql.col("owner"))
    yield _broken(rule, moved, "path", "referenced_file", problem)


def _entries_carried_from_nowhere(tree: CheckedTree, rule: str) -> Iterator[Relation]:
    """Find EXISTING entries of new leaves and of the root that were not live in the parent snapshot.

    Nothing is checked if the parent has expired.
    """
    before = tree.parent
    if before is None:
        return
    known = set(before.manifests.column("location").to_pylist())
    is_new = pa.array([location not in known for location in tree.manifests.column("location").to_pylist()], pa.bool_())
    is_existing = pc.equal(version(tree.manifests, "status"), int(Status.EXISTING))
    leaves = tree.manifests.filter(pc.and_(is_existing, is_new))
    carried = where(tree.root_entries(FILES), sql.col("version_info.status") == int(Status.EXISTING))
    if len(leaves):
        in_leaves = where(tree.physical_entries(leaves), is_live_entry())
        if len(tree.masks):
            in_leaves = matching(in_leaves, tree.masked_ordinals, {MANIFEST: MANIFEST, ORDINAL: ORDINAL}, absent=True)
        carried = tree.union([carried, in_leaves])
    elif not pc.any(pc.equal(version(tree.root.of(FILES), "status"), int(Status.EXISTING))).as_py():
        return
    if before.snapshot is not None:
        parts = before.manifests, before.projection(ENTRY_COLUMNS)
        read = before.relation(*parts, Placement.DRIVER) if tree.on_driver else before.entries(*parts)
        entries = where(read, is_live_entry())
        keys = ("content_type", "location", "deletion_vector.offset")
        carried = matching(carried, entries, dict(zip(keys, keys, strict=True)), absent=True)
    problem = "the file is carried over as EXISTING, and was not live in the parent snapshot"
    yield _broken(rule, carried, "location", "content_type", problem)


def _entries_with_broken_fields(tree: CheckedTree, rule: str) -> Iterator[Relation]:
    """Find entries that break the field matrix (semantics 18.4), in leaves with the layout of trees."""
    leaves = tree.manifests.filter(tree.tree.has_tree_layout(tree.manifests))
    paths = dict(zip(leaves.column(MANIFEST).to_pylist(), leaves.column("location").to_pylist(), strict=True))
    specs, columns = frozenset(tree.state.specs), frozenset(tree.state.types.primitive_fields)
    function = partial(_broken_fields, rule, paths, specs, columns)
    yield from tree.violations(leaves, EntryProjection.of(_MATRIX), function)


def _broken_fields(
    rule: str, paths: dict[int, str], specs: frozenset[int], columns: frozenset[int], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        table = pa.Table.from_batches([batch])
        violations = []
        for broken in entry_problems(table, specs, columns):
            if broken.field not in _INHERITED:
                path = paths[table.column(MANIFEST)[broken.row].as_py()]
                problem = f"ordinal {table.column(ORDINAL)[broken.row].as_py()}: {broken.problem}"
                violations.append(violation(rule, Broken(path, broken.field, broken.value, problem)))
        yield pa.RecordBatch.from_pylist(violations, schema=VIOLATIONS)


def _entries_with_inverted_bounds(tree: CheckedTree, rule: str) -> Iterator[Relation]:
    """Find inverted bounds of entries in leaves."""
    types, leaves = tree.state.types.stats_types, tree.manifests
    paths = dict(zip(leaves.column(MANIFEST).to_pylist(), leaves.column("location").to_pylist(), strict=True))
    projection = replace(EntryProjection.of(("location",), None, types), as_written=True)
    yield from tree.violations(leaves, projection, partial(_inverted_bounds, rule, paths, types))


def _inverted_bounds(
    rule: str, paths: dict[int, str], types: Mapping[int, str], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for raw in batches:
        entries = pa.Table.from_batches([with_plain_types(raw)])
        violations = []
        for row, field, value, problem in _inverted(entries, types):
            path, file = paths[entries.column(MANIFEST)[row].as_py()], entries.column("location")[row].as_py()
            violations.append(violation(rule, Broken(path, f"{field} of {file}", value, problem)))
        yield pa.RecordBatch.from_pylist(violations, schema=VIOLATIONS)


TREE_RULES: tuple[tuple[str, Callable[[CheckedTree, str], Iterator[Relation]]], ...] = (
    ("manifest-counts", _miscounted_leaves),
    ("vector-content", _unreadable_masks),
    ("ordinal-range", _ordinals_out_of_range),
    ("one-entry-per-file", _files_listed_twice),
    ("one-vector-per-file", _files_with_several_dvs),
    ("affinity-vector", _dvs_of_other_leaves),
    ("carried-entries", _entries_carried_from_nowhere),
    ("entry-fields", _entries_with_broken_fields),
    ("bounds-order", _entries_with_inverted_bounds),
)
