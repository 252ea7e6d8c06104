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
from pyspark.sql import functions as F

from sparkmeta.arrow_types import spark_schema
from sparkmeta.columns import sql
from sparkmeta.columns.bounds import inverted, known_bounds
from sparkmeta.entries.arrays import is_live, is_live_entry, places_where, whole, with_plain_types
from sparkmeta.entries.projection import CONTENT_STATS, MANIFEST, ORDINAL, EntryProjection
from sparkmeta.entries.records import whole_manifests
from sparkmeta.entries.relation import grouped, pairs, select, where
from sparkmeta.entries.relation import union as rows_of_both
from sparkmeta.errors import CorruptFileError
from sparkmeta.inspect.check_tasks import (
    CHECKED_COLUMNS,
    VIOLATIONS,
    Broken,
    ManifestChecks,
    above_upper,
    shown_value,
    violation,
)
from sparkmeta.inspect.file_changes import Row, flat_rows, manifest_dvs_by_leaf
from sparkmeta.inspect.metadata_rows import MetadataRows
from sparkmeta.manifests.deletion_vectors import DV_SCHEMA, checked_ordinals, dv_row
from sparkmeta.manifests.placement import MOST_WIDE_ENTRIES
from sparkmeta.manifests.reader import root_location
from sparkmeta.manifests.v4.layout import stats_of_fields
from sparkmeta.manifests.v4.root import (
    FILES,
    LEAVES,
    Root,
    entry_problems,
    one_of,
    read_unchecked_root,
    version,
)
from sparkmeta.manifests.v4.spark import read_rows
from sparkmeta.manifests.v4.tree_manifests import Tree, leaf_manifests
from sparkmeta.plan.deletes.rules import SEQUENCE, partition_key
from sparkmeta.session import local_frame, map_arrow, map_by_tasks, map_on_driver
from sparkmeta.spec.entry import BOUNDS, ContentType, Status
from sparkmeta.storage.reading import with_content

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from sparkmeta.columns.sql import Aliased
    from sparkmeta.entries.relation import Relation
    from sparkmeta.state import TableState


# -- What `check` examines in a tree ----------------------------------------------------------------------------------


ENTRY_COLUMNS = ("content_type", "location", "version_info", "deletion_vector", "referenced_file", "partition_spec_id")
UNBOUND, IS_MASKED = "_unbound", "_masked"
COUNTED = {Status.ADDED: "added", Status.EXISTING: "existing", Status.DELETED: "deleted"}

_LEAF_SCHEMA = pa.schema(
    [
        pa.field(MANIFEST, pa.int32()),
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
    """A tree to check. Its root's entries are known to have the required fields; nothing else is assumed."""

    state: TableState
    root: Root

    # -- on the driver ----------------------------------------------------------------------------------------------

    @cached_property
    def leaf_entries(self) -> list[Row]:
        """The root's entries for leaves."""
        return [row for _, row in flat_rows(self.root.table, LEAVES)]

    @cached_property
    def leaf_by_location(self) -> dict[str, Row]:
        """The root's entries for leaves by location; a live one takes precedence over a DELETED one."""
        rows = sorted(self.leaf_entries, key=lambda row: row["status"] != Status.DELETED)
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
        id_of = dict(zip(locations, ids, strict=True))
        rows = [
            dv_row(id_of[leaf], self.leaf_by_location[leaf], mask)
            for leaf, masks in self.masks_by_leaf.items()
            for mask in masks
            if leaf in id_of and mask["status"] != Status.DELETED
        ]
        return pa.Table.from_pylist(rows, schema=DV_SCHEMA)

    @property
    def tree(self) -> Tree:
        """The snapshot's metadata tree."""
        assert self.state.tree is not None
        return self.state.tree

    # -- in Spark ---------------------------------------------------------------------------------------------------

    @cached_property
    def _is_small(self) -> bool:
        return self.state.reader.fits_driver(self.manifests, MOST_WIDE_ENTRIES)

    def together(self, rows: DataFrame) -> DataFrame:
        """Return the rows of a small tree in one partition, which Spark groups and joins without a shuffle."""
        return rows.coalesce(1) if self._is_small else rows

    @cached_property
    def leaves(self) -> DataFrame:
        """The root's entries for the live leaves, as `_LEAF_SCHEMA`."""
        stats = self.manifests.column("manifest_stats")
        columns: dict[str, Any] = {
            MANIFEST: self.manifests.column(MANIFEST),
            "path": self.manifests.column("location"),
            "kind": self.manifests.column("content_type"),
            "status": version(self.manifests, "status"),
            "owner": self.manifests.column("referenced_file"),
            "tree_layout": self.tree.has_tree_layout(self.manifests),
            "records": self.manifests.column("record_count"),
            **{name: pc.struct_field(stats, f"{name}_files_count") for name in COUNTED.values()},
        }
        arrays = [columns[field.name].cast(field.type) for field in _LEAF_SCHEMA]
        return local_frame(self.state.spark, pa.Table.from_arrays(arrays, schema=_LEAF_SCHEMA))

    @cached_property
    def bound_types(self) -> dict[int, str]:
        """The ids of the stats that hold partition values -> Iceberg types."""
        ids = {source for fields in self.state.types.tuple_sources.values() for _, source in fields}
        return {field_id: self.state.types.stats_types[field_id] for field_id in sorted(ids)}

    def physical_entries(self, manifests: pa.Table) -> DataFrame:
        """Return every physical entry of leaves: `ENTRY_COLUMNS`, `manifest`, `ordinal` and `UNBOUND`.

        UNBOUND is the id of the first stats of a partition value that the entry lacks.
        """
        of_tree = self.tree.has_tree_layout(manifests)
        layouts: list[tuple[pa.Table, dict[int, str]]] = [
            (manifests.filter(of_tree), self.bound_types),
            (manifests.filter(pc.invert(of_tree)), {}),
        ]
        frames = [
            self._narrow(frame, projection)
            for leaves, stats in layouts
            if len(leaves)
            for projection in [EntryProjection.of(ENTRY_COLUMNS, None, stats)]
            for frame in self.state.reader.physical_frames(leaves, projection)
        ]
        return self.together(union(frames)) if frames else self.root_entries(FILES).where("false")

    def root_entries(self, kinds: Collection[ContentType]) -> DataFrame:
        """Return the files of the root itself with the columns of `physical_entries`, without a manifest."""
        projection = EntryProjection.of(ENTRY_COLUMNS, None, self.bound_types)
        files = self.root.of(kinds, live=False)
        rows = files.append_column(MANIFEST, pa.nulls(len(files), pa.int32()))
        frame = read_rows(self.state.spark, rows, projection, self.state.types.tuple_sources)
        return self.together(self._narrow(frame, projection))

    def _narrow(self, frame: DataFrame, projection: EntryProjection) -> DataFrame:
        unbound = self._unbound() if projection.stats else F.lit(None).cast("int")
        return frame.select(*ENTRY_COLUMNS, MANIFEST, ORDINAL, unbound.alias(UNBOUND))

    def _unbound(self) -> Column:
        """Return the id of the spec's first stats that are missing, or have an upper bound but no lower one."""
        cases = []
        for spec_id, fields in self.state.types.tuple_sources.items():
            for _, source in fields:
                stats = F.col(f"{CONTENT_STATS}.`{source}`")
                lacks = stats.isNull() | (stats.lower_bound.isNull() & stats.upper_bound.isNotNull())
                cases.append(F.when((F.col("partition_spec_id") == spec_id) & lacks, source))
        return F.coalesce(*cases).cast("int")

    @cached_property
    def leaf_files(self) -> DataFrame:
        """Every physical entry of the live leaves."""
        return self.physical_entries(self.manifests)

    @cached_property
    def ordinals(self) -> DataFrame:
        """The ordinals that are masked, and the problems of masks, as `CHECKED_SCHEMA`."""
        return self.together(checked_ordinals(self.state.spark, self.masks, self.state.access.tasks))

    @cached_property
    def masked_ordinals(self) -> DataFrame:
        return self.ordinals.where("problem IS NULL").select(MANIFEST, ORDINAL).distinct()

    @cached_property
    def marked(self) -> DataFrame:
        """The entries of leaves with `IS_MASKED`."""
        if not len(self.masks):
            return self.leaf_files.withColumn(IS_MASKED, F.lit(False))
        masked = self.masked_ordinals.withColumn(IS_MASKED, F.lit(True))
        marked = self.leaf_files.join(masked, [MANIFEST, ORDINAL], "left")
        return marked.withColumn(IS_MASKED, F.coalesce(IS_MASKED, F.lit(False)))

    @cached_property
    def live(self) -> DataFrame:
        """The live files, as readers see them."""
        in_leaves = self.marked.where(is_live_entry().column() & ~F.col(IS_MASKED)).drop(IS_MASKED)
        return self.together(in_leaves.unionByName(self.root_entries(FILES).where(is_live_entry().text)))


def union(frames: Sequence[DataFrame]) -> DataFrame:
    """Return all rows of frames with the same columns."""
    return reduce(lambda left, right: left.unionByName(right), frames)


# -- Check a manifest list --------------------------------------------------------------------------------------------


_VECTOR_OFFSET = "_offset"
_POSITION_DELETES, _DATA_FILES = int(ContentType.POSITION_DELETES), int(ContentType.DATA)


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
        parts += [*_listed_files_twice(live), *_contradictory_vectors(state, live)]
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
    for place in places_where(pc.greater(numbers, newest)).to_pylist():
        problem = f"the snapshot has the sequence number {newest}"
        yield Broken(
            state.manifests.column("location")[place].as_py(), "sequence_number", numbers[place].as_py(), problem
        )


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
                for place in [] if wrong is None else places_where(pc.fill_null(wrong, False)).to_pylist():
                    field = f"partitions.{field_id}.lower_bound"
                    path = paths[rows[place]].as_py()
                    yield Broken(path, field, shown_value(lower, place), above_upper(upper, place))
                continue
            for name, bound in known.items() if not pa.types.is_null(lower.type) else ():
                for place in places_where(pc.and_(raw[name].is_valid(), bound.is_null())).to_pylist():
                    problem = f"not a value of type {type_name}, so it is unknown"
                    path, field = paths[rows[place]].as_py(), f"partitions.{field_id}.{name}"
                    yield Broken(path, field, raw[name][place].as_py(), problem)


LIST_RULES: tuple[tuple[str, Callable[[TableState], Iterator[Broken]]], ...] = (
    ("one-entry-per-file", _manifests_listed_twice),
    ("sequence-numbers", _newer_manifests),
    ("bounds-order", inverted_summaries),
    ("bounds-value", partial(_summaries, order=False)),
)


# -- Rules of live files, each a query --------------------------------------------------------------------------------


_COUNT = sql.call("sum", sql.lit(1).cast("bigint")).alias("count")
_SEVERAL = sql.col("count") > 1


def _listed_files_twice(live: Relation) -> Iterator[Relation]:
    offset = sql.coalesce(sql.col("deletion_vector.offset"), sql.lit(-1).cast("bigint")).alias(_VECTOR_OFFSET)
    twice = where(grouped(live, [_named("location"), offset], [_COUNT]), _SEVERAL)
    yield _broken("one-entry-per-file", twice, "location", "count", "the file has several live entries")


def _contradictory_vectors(state: TableState, live: Relation) -> Iterator[Relation]:
    """Find second deletion vectors of a data file, and ones that are older than it or of another partition."""
    sequence, key = sql.col(SEQUENCE), partition_key(state)
    is_dv = (sql.col("content_type") == _POSITION_DELETES) & (sql.col("file_format") == "PUFFIN")
    dvs = where(live, is_dv)
    several = where(grouped(dvs, [_named("referenced_file")], [_COUNT]), _SEVERAL)
    problem = "the data file has several live deletion vectors"
    yield _broken("one-vector-per-file", several, "referenced_file", "count", problem)
    of_data = [sql.col("location").alias("file"), sequence.alias("data_sequence"), key.alias("data_key")]
    data = select(where(live, sql.col("content_type") == _DATA_FILES), of_data)
    of_dv = [sql.col("referenced_file").alias("file"), _named("location"), sequence.alias("sequence"), key.alias("key")]
    both = pairs(select(dvs, of_dv), data, "file")
    older = where(both, sql.col("sequence") < sql.col("data_sequence"))
    yield _broken("vector-target", older, "location", "file", "the deletion vector is older than its data file")
    foreign = where(both, sql.col("key") != sql.col("data_key"))
    problem = "the deletion vector has another partition spec or partition than its data file"
    yield _broken("vector-target", foreign, "location", "file", problem)


def _named(column: str) -> Aliased:
    return sql.col(column).alias(column)


def _broken(rule: str, rows: Relation, location: str, value: str, problem: str) -> Relation:
    values = (sql.lit(rule), sql.col(location), sql.col(value).cast("string"), sql.lit(problem))
    return select(rows, [each.alias(name) for each, name in zip(values, VIOLATIONS.names, strict=True)])


# -- Check a metadata tree (semantics 18.4) ---------------------------------------------------------------------------
# There are three tables of rules. The driver evaluates the rules of the root, one pass over the leaves the rules of
# entries, and a separate query each rule of the tree.


_LEAF, _OFFSET = "_leaf", "_offset"
_MATRIX = (*ENTRY_COLUMNS, "file_format", "record_count", "file_size_in_bytes", "manifest_stats", "equality_ids")
# Sequence numbers of entries in leaves have a separate rule: only ADDED entries may lack them.
_INHERITED = ("version_info.sequence_number", "version_info.file_sequence_number")

_DATA, _POSITION = int(ContentType.DATA), int(ContentType.POSITION_DELETES)
_EQUALITY = int(ContentType.EQUALITY_DELETES)


def violations(state: TableState) -> MetadataRows:
    """Return the violations in the metadata of the state's snapshot; see `Table.check`."""
    return MetadataRows(state, _found(state), spark_schema(VIOLATIONS))


def _found(state: TableState) -> Relation:
    """Return the violations, as a table if the driver finds them.

    Raises:
        CorruptFileError: the root is not a manifest.
    """
    if state.snapshot is None:
        return VIOLATIONS.empty_table()
    location = root_location(state.metadata, state.snapshot)
    if location is None:
        return check_list(state)
    stamp = (state.snapshot.snapshot_id, state.snapshot.sequence_number or 0)
    root = read_unchecked_root(
        state.files.read(location),
        state.types.stats_types,
        location,
        stamp,
        state.types.locations,
        stats_of_fields(state.types.tuple_sources),
        as_written=True,
    )
    broken_fields = [
        violation("entry-fields", Broken(location, broken.field, broken.value, broken.error(location).problem))
        for broken in entry_problems(root.table, state.specs, state.types.primitive_fields)
    ]
    if broken_fields:
        return pa.Table.from_pylist(broken_fields, schema=VIOLATIONS)
    return _violations(CheckedTree(replace(state, root=root), root))


def _violations(tree: CheckedTree) -> DataFrame:
    of_root = [violation(rule, broken) for rule, find in ROOT_RULES for broken in find(tree)]
    frames = [local_frame(tree.state.spark, pa.Table.from_pylist(of_root, schema=VIOLATIONS))]
    frames += _entry_violations(tree)
    for rule, query in TREE_RULES:
        named = F.lit(rule).alias("rule")
        frames += [
            broken.select(named, *(F.col(name).cast("string") for name in _BROKEN_COLUMNS)) for broken in query(tree)
        ]
    return union(frames)


def _entry_violations(tree: CheckedTree) -> Iterator[DataFrame]:
    """Evaluate `ENTRY_RULES` in one pass over the leaves, and for the root's own files only the rule about bounds."""
    if len(tree.manifests):
        in_leaves = tree.marked.join(F.broadcast(tree.leaves), MANIFEST)
        yield _exploded(in_leaves, [_struct(rule, make()) for rule, make in ENTRY_RULES])
    if tree.bound_types:
        in_root = tree.root_entries(FILES).withColumn("path", F.lit(tree.root.location))
        yield _exploded(in_root, [_struct("partition-bound", _unbound_entry())])


def _exploded(entries: DataFrame, violations: list[Column]) -> DataFrame:
    violation = F.explode(F.array_compact(F.array(*violations))).alias("violation")
    return entries.select(violation).select("violation.*")


def _struct(rule: str, broken: EntryRule) -> Column:
    """Return the violation of a rule as a struct of `VIOLATIONS`; null for valid entries."""
    values = (F.lit(rule), F.col("path"), broken.value.cast("string"), F.lit(broken.problem))
    columns = [value.alias(name) for value, name in zip(values, VIOLATIONS.names, strict=True)]
    return F.when(broken.condition, F.struct(*columns))


# -- Rules of the root, on the driver ---------------------------------------------------------------------------------


def _leaves_listed_twice(tree: CheckedTree) -> Iterator[Broken]:
    live = Counter(row["location"] for row in tree.leaf_entries if row["status"] != Status.DELETED)
    for location in sorted(location for location, count in live.items() if count > 1):
        yield Broken(location, "location", location, "the root has two live entries for this manifest")


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
            for row in places_where(pc.and_(lacks, has_tree_layout)).to_pylist():
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
        for row in [] if wrong is None else places_where(pc.fill_null(wrong, False)).to_pylist():
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

    condition: Column
    value: Column
    problem: str


def _misplaced_entry() -> EntryRule:
    kind, of_data = F.col("content_type"), F.col("kind") == int(ContentType.DATA_MANIFEST)
    condition = F.when(of_data, kind != _DATA).otherwise(~kind.isin(_POSITION, _EQUALITY))
    return EntryRule(condition, kind, "a manifest of the root's kind holds no such entry")


def _unnumbered_entry() -> EntryRule:
    missing = F.col("version_info.sequence_number").isNull() | F.col("version_info.file_sequence_number").isNull()
    condition = (F.col("version_info.status") != int(Status.ADDED)) & missing
    return EntryRule(condition, F.col("location"), "only ADDED entries inherit sequence numbers")


def _older_entry() -> EntryRule:
    status = F.col("version_info.status")
    is_added = F.col("tree_layout") & (F.col("status") == int(Status.ADDED))
    problem = "a manifest that the snapshot added holds an entry that is older"
    return EntryRule(is_added & (status != int(Status.ADDED)), status, problem)


def _masked_deleted_entry() -> EntryRule:
    condition = F.col(IS_MASKED) & (F.col("version_info.status") == int(Status.DELETED))
    return EntryRule(condition, F.col(ORDINAL), "a DELETED entry is masked")


def _affiliated_equality_delete() -> EntryRule:
    condition = F.col("owner").isNotNull() & (F.col("content_type") == _EQUALITY)
    return EntryRule(condition, F.col("location"), "equality deletes reach beyond one data manifest")


def _unbound_entry() -> EntryRule:
    value = F.concat(F.lit("content_stats."), F.col(UNBOUND), F.lit(" of "), F.col("location"))
    return EntryRule(is_live_entry().column() & F.col(UNBOUND).isNotNull(), value, _NO_BOUND)


ENTRY_RULES: tuple[tuple[str, Callable[[], EntryRule]], ...] = (
    ("leaf-content", _misplaced_entry),
    ("sequence-numbers", _unnumbered_entry),
    ("added-manifest", _older_entry),
    ("ordinal-deleted", _masked_deleted_entry),
    ("affinity-equality-deletes", _affiliated_equality_delete),
    ("partition-bound", _unbound_entry),
)


# -- Rules of the tree, each a query ----------------------------------------------------------------------------------

_BROKEN_COLUMNS = ("location", "value", "problem")


def _broken_rows(broken: DataFrame, location: str, value: Column | str, problem: Column | str) -> DataFrame:
    text = F.lit(problem) if isinstance(problem, str) else problem
    of_value = F.col(value) if isinstance(value, str) else value
    return broken.select(F.col(location).alias("location"), of_value.alias("value"), text.alias("problem"))


def _miscounted_leaves(tree: CheckedTree) -> Iterator[DataFrame]:
    if not len(tree.manifests):
        return
    status = F.col("version_info.status")
    sums = [F.count(F.when(status == int(value), 1)).alias(f"counted_{name}") for value, name in COUNTED.items()]
    counted = tree.leaf_files.groupBy(MANIFEST).agg(*sums, F.count("*").alias("counted_records"))
    compared = tree.leaves.join(counted, MANIFEST, "left")
    names = ("records", *COUNTED.values())
    differs = reduce(or_, (F.coalesce(f"counted_{name}", F.lit(0)) != F.col(name) for name in names))
    in_root, in_leaf = (
        F.to_json(F.struct(*(F.coalesce(f"{prefix}{name}", F.lit(0)).alias(name) for name in names)))
        for prefix in ("", "counted_")
    )
    yield _broken_rows(
        compared.where(differs), "path", in_root, F.concat(F.lit("the manifest's entries are "), in_leaf)
    )


def _unreadable_masks(tree: CheckedTree) -> Iterator[DataFrame]:
    yield from _broken_masks(tree, ~F.col("problem").startswith(f"{ORDINAL}:"))


def _ordinals_out_of_range(tree: CheckedTree) -> Iterator[DataFrame]:
    yield from _broken_masks(tree, F.col("problem").startswith(f"{ORDINAL}:"))


def _broken_masks(tree: CheckedTree, condition: Column) -> Iterator[DataFrame]:
    if len(tree.masks):
        broken = tree.ordinals.where(F.col("problem").isNotNull() & condition)
        yield _broken_rows(broken.join(F.broadcast(tree.leaves), MANIFEST), "path", "value", F.col("problem"))


def _files_listed_twice(tree: CheckedTree) -> Iterator[DataFrame]:
    twice = tree.live.groupBy("location", _offset()).count().where("count > 1")
    yield _broken_rows(twice, "location", "count", "the file has several live entries")


def _files_with_several_dvs(tree: CheckedTree) -> Iterator[DataFrame]:
    if not len(tree.root.of([ContentType.POSITION_DELETES, ContentType.DELETE_MANIFEST])):
        return
    dvs = tree.live.where(F.col("content_type") == _POSITION).where(F.col("deletion_vector.offset").isNotNull())
    several = dvs.groupBy("referenced_file").count().where("count > 1")
    yield _broken_rows(several, "referenced_file", "count", "the data file has several live deletion vectors")


def _dvs_of_other_leaves(tree: CheckedTree) -> Iterator[DataFrame]:
    """Find live deletion vectors in affiliated leaves whose data file is not in the data leaf, or is live elsewhere.

    Plans match them only with files of that data leaf.
    """
    if not pc.any(tree.manifests.column("referenced_file").is_valid()).as_py():
        return
    owners = F.broadcast(tree.leaves.select(F.col(MANIFEST).alias(_LEAF), F.col("path").alias("owner")))
    is_unmasked = is_live_entry().column() & ~F.col(IS_MASKED)
    dvs = tree.marked.where(is_unmasked & (F.col("content_type") == _POSITION))
    affiliated = dvs.join(F.broadcast(tree.leaves.drop("status", "kind")), MANIFEST).join(owners, "owner")
    file, key = F.col("location").alias("referenced_file"), [_LEAF, "referenced_file"]
    files = tree.marked.where(F.col("content_type") == _DATA)
    in_leaf, live_in_leaf = (
        frame.select(F.col(MANIFEST).alias(_LEAF), file) for frame in (files, files.where(is_unmasked))
    )
    lost = affiliated.join(in_leaf, key, "left_anti")
    problem = "the deletion vector's data file is not in the affiliated manifest "
    yield _broken_rows(lost, "path", "referenced_file", F.concat(F.lit(problem), F.col("owner")))
    live = tree.live.where(F.col("content_type") == _DATA).select(file)
    moved = affiliated.join(in_leaf, key, "left_semi").join(live_in_leaf, key, "left_anti")
    moved = moved.join(live, "referenced_file", "left_semi")
    problem = "the deletion vector's data file is live in another manifest than "
    yield _broken_rows(moved, "path", "referenced_file", F.concat(F.lit(problem), F.col("owner")))


def _entries_carried_from_nowhere(tree: CheckedTree) -> Iterator[DataFrame]:
    """Find EXISTING entries of new leaves and of the root that were not live in the parent snapshot.

    Nothing is checked if the parent has expired.
    """
    state, status = tree.state, F.col("version_info.status")
    assert state.snapshot is not None
    parent_id = state.snapshot.parent_snapshot_id
    parent = None if parent_id is None else state.metadata.snapshot_by_id(parent_id)
    if parent_id is not None and parent is None:
        return
    before = state.at(parent)
    known = set() if parent is None else set(before.manifests.column("location").to_pylist())
    is_new = pa.array([location not in known for location in tree.manifests.column("location").to_pylist()], pa.bool_())
    is_existing = pc.equal(version(tree.manifests, "status"), int(Status.EXISTING))
    leaves = tree.manifests.filter(pc.and_(is_existing, is_new))
    carried = tree.root_entries(FILES).where(status == int(Status.EXISTING))
    if len(leaves):
        in_leaves = tree.physical_entries(leaves).where(is_live_entry().text)
        if len(tree.masks):
            in_leaves = in_leaves.join(tree.masked_ordinals, [MANIFEST, ORDINAL], "left_anti")
        carried = carried.unionByName(in_leaves)
    elif not pc.any(pc.equal(version(tree.root.of(FILES), "status"), int(Status.EXISTING))).as_py():
        return
    keys = [F.col("content_type"), F.col("location"), _offset()]
    unknown = carried.select(*keys)
    if parent is not None:
        entries = before.live_entries(before.manifests, before.projection(ENTRY_COLUMNS))
        unknown = unknown.join(entries.select(*keys), ["content_type", "location", _OFFSET], "left_anti")
    problem = "the file is carried over as EXISTING, and was not live in the parent snapshot"
    yield _broken_rows(unknown, "location", "content_type", problem)


def _entries_with_broken_fields(tree: CheckedTree) -> Iterator[DataFrame]:
    """Find entries that break the field matrix (semantics 18.4), in leaves with the layout of trees."""
    leaves = tree.manifests.filter(tree.tree.has_tree_layout(tree.manifests))
    if not len(leaves):
        return
    paths = dict(zip(leaves.column(MANIFEST).to_pylist(), leaves.column("location").to_pylist(), strict=True))
    fields = partial(_broken_fields, paths, frozenset(tree.state.specs), frozenset(tree.state.types.primitive_fields))
    for frame in tree.state.reader.physical_frames(leaves, EntryProjection.of(_MATRIX)):
        yield map_arrow(tree.together(frame), fields, VIOLATIONS)


def _broken_fields(
    paths: dict[int, str], specs: frozenset[int], columns: frozenset[int], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        table = pa.Table.from_batches([batch])
        violations = []
        for broken in entry_problems(table, specs, columns):
            if broken.field not in _INHERITED:
                path = paths[table.column(MANIFEST)[broken.row].as_py()]
                problem = f"ordinal {table.column(ORDINAL)[broken.row].as_py()}: {broken.problem}"
                violations.append(violation("entry-fields", Broken(path, broken.field, broken.value, problem)))
        yield pa.RecordBatch.from_pylist(violations, schema=VIOLATIONS)


def _entries_with_inverted_bounds(tree: CheckedTree) -> Iterator[DataFrame]:
    """Find inverted bounds of entries in leaves."""
    if not len(tree.manifests):
        return
    types = tree.state.types.stats_types
    paths = dict(
        zip(tree.manifests.column(MANIFEST).to_pylist(), tree.manifests.column("location").to_pylist(), strict=True)
    )
    projection = replace(EntryProjection.of(("location",), None, types), as_written=True)
    for frame in tree.state.reader.physical_frames(tree.manifests, projection):
        yield map_arrow(tree.together(frame), partial(_inverted_bounds, paths, types), VIOLATIONS)


def _inverted_bounds(
    paths: dict[int, str], types: Mapping[int, str], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for raw in batches:
        entries = pa.Table.from_batches([with_plain_types(raw)])
        violations = []
        for row, field, value, problem in _inverted(entries, types):
            path, file = paths[entries.column(MANIFEST)[row].as_py()], entries.column("location")[row].as_py()
            violations.append(violation("bounds-order", Broken(path, f"{field} of {file}", value, problem)))
        yield pa.RecordBatch.from_pylist(violations, schema=VIOLATIONS)


def _offset() -> Column:
    """Return the offset that distinguishes deletion vectors of one file, -1 for other files."""
    return F.coalesce("deletion_vector.offset", F.lit(-1).cast("long")).alias(_OFFSET)


TREE_RULES: tuple[tuple[str, Callable[[CheckedTree], Iterator[DataFrame]]], ...] = (
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
