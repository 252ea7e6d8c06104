"""Check the invariants of a snapshot's whole metadata tree (semantics 18.4).

There are three tables of rules. The driver evaluates those of the root, one pass over the leaves those of entries, and
separate queries those of the tree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial, reduce
from operator import or_
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.changes.check_list import check_list
from sparkmeta.changes.checked_tree import COUNTED, ENTRY_COLUMNS, IS_MASKED, UNBOUND, CheckedTree, union
from sparkmeta.changes.list_tasks import above_upper, shown_value
from sparkmeta.changes.violations import VIOLATIONS, Broken, violation
from sparkmeta.columns.bounds import inverted
from sparkmeta.entries.arrays import whole, with_plain_types
from sparkmeta.entries.projection import CONTENT_STATS, MANIFEST, ORDINAL, EntryProjection
from sparkmeta.manifests.snapshot_manifests import root_location
from sparkmeta.manifests.v4.root import FILES, LEAVES, entry_problems, is_live, one_of, read_unchecked_root, version
from sparkmeta.manifests.v4.tree_manifests import leaf_manifests
from sparkmeta.manifests.v4.types import stats_of_fields
from sparkmeta.plan.filter import is_live as entry_is_live
from sparkmeta.session import local_frame, map_arrow
from sparkmeta.spec.entry import ContentType, Status
from sparkmeta.spec.stats import BOUNDS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from sparkmeta.state import TableState

_LEAF, _OFFSET = "_leaf", "_offset"
_MATRIX = (*ENTRY_COLUMNS, "file_format", "record_count", "file_size_in_bytes", "manifest_stats", "equality_ids")
# Sequence numbers of entries in leaves have a separate rule: only ADDED entries may lack them.
_INHERITED = ("version_info.sequence_number", "version_info.file_sequence_number")

_DATA, _POSITION = int(ContentType.DATA), int(ContentType.POSITION_DELETES)
_EQUALITY = int(ContentType.EQUALITY_DELETES)


def check(state: TableState) -> DataFrame:
    """Return the violations in the metadata of the state's snapshot; see `Table.check`.

    Raises:
        CorruptFileError: the root is not a manifest.
    """
    if state.snapshot is None:
        return local_frame(state.spark, VIOLATIONS.empty_table())
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
        return local_frame(state.spark, pa.Table.from_pylist(broken_fields, schema=VIOLATIONS))
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


# -- rules of the root, on the driver -------------------------------------------------------------------------------


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
        # A mask that is added to a leaf removed in the same commit lists the removed entries (semantics 16.16).
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
            for row in pc.indices_nonzero(pc.and_(lacks, has_tree_layout)).to_pylist():
                yield Broken(live.column("location")[row].as_py(), f"content_stats.{source}", None, _NO_BOUND)


_NO_BOUND = "the value of a partition field is missing"


def _inverted_in_root(tree: CheckedTree) -> Iterator[Broken]:
    """Find bounds of the root's entries that are the wrong way round; the location is that of the file or leaf."""
    for row, field, value, problem in _inverted(tree.root.table, tree.state.types.stats_types):
        yield Broken(tree.root.table.column("location")[row].as_py(), field, value, problem)


def _inverted(entries: pa.Table, types: Mapping[int, str]) -> Iterator[tuple[int, str, Any, str]]:
    """Yield the row, field, value and problem of bounds that are the wrong way round."""
    stats = whole(entries.column(CONTENT_STATS))
    for field in stats.type:
        lower, upper = (pc.struct_field(stats, [field.name, name]) for name in BOUNDS)
        wrong = inverted(lower, upper, types[int(field.name)])
        for row in [] if wrong is None else pc.indices_nonzero(pc.fill_null(wrong, False)).to_pylist():
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


# -- rules of single entries, with the columns of their leaf -------------------------------------------------------


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
    return EntryRule(entry_is_live().column() & F.col(UNBOUND).isNotNull(), value, _NO_BOUND)


ENTRY_RULES: tuple[tuple[str, Callable[[], EntryRule]], ...] = (
    ("leaf-content", _misplaced_entry),
    ("sequence-numbers", _unnumbered_entry),
    ("added-manifest", _older_entry),
    ("ordinal-deleted", _masked_deleted_entry),
    ("affinity-equality-deletes", _affiliated_equality_delete),
    ("partition-bound", _unbound_entry),
)


# -- rules of the tree, each a query ---------------------------------------------------------------------------------

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
    is_unmasked = entry_is_live().column() & ~F.col(IS_MASKED)
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
    problem = "the deletion vector's data file lives elsewhere than in "
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
        in_leaves = tree.physical_entries(leaves).where(status != int(Status.DELETED))
        if len(tree.masks):
            in_leaves = in_leaves.join(tree.masked_ordinals, [MANIFEST, ORDINAL], "left_anti")
        carried = carried.unionByName(in_leaves)
    elif not pc.any(pc.equal(version(tree.root.of(FILES), "status"), int(Status.EXISTING))).as_py():
        return
    keys = [F.col("content_type"), F.col("location"), _offset()]
    unknown = carried.select(*keys)
    if parent is not None:
        entries = before.entries(before.manifests, before.projection(ENTRY_COLUMNS)).where(entry_is_live().text)
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
        yield map_arrow(frame, fields, VIOLATIONS)


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
    """Find bounds of entries in leaves that are the wrong way round."""
    if not len(tree.manifests):
        return
    types = tree.state.types.stats_types
    paths = dict(
        zip(tree.manifests.column(MANIFEST).to_pylist(), tree.manifests.column("location").to_pylist(), strict=True)
    )
    projection = replace(EntryProjection.of(("location",), None, types), as_written=True)
    for frame in tree.state.reader.physical_frames(tree.manifests, projection):
        yield map_arrow(frame, partial(_inverted_bounds, paths, types), VIOLATIONS)


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
