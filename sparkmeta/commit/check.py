"""The invariants of a metadata tree (semantics 8.5 E, C50), checked over the whole tree of a snapshot by Spark.

The driver looks at the root, and at nothing else. Rules of single entries are looked for in one pass over the leaves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.columns import sql
from sparkmeta.commit.root_changes import flat_rows, vectors_by_leaf
from sparkmeta.errors import UnsupportedError, shown
from sparkmeta.manifests.avro.read import schema_of
from sparkmeta.manifests.deletion_vectors import VECTOR_SCHEMA, checked_ordinals, vector_row
from sparkmeta.manifests.projection import CONTENT_STATS, MANIFEST, ORDINAL, EntryProjection
from sparkmeta.manifests.v4.root import (
    FILES,
    LEAVES,
    Root,
    entry_problems,
    is_live,
    one_of,
    read_unchecked_root,
    version,
)
from sparkmeta.manifests.v4.spark import entry_columns, stats_of_fields
from sparkmeta.manifests.v4.tree_manifests import TreeReader, leaf_manifests, narrowed_rows
from sparkmeta.plan.filter import is_live as entry_is_live
from sparkmeta.session import local_frame
from sparkmeta.spec.entry import ContentType, Status
from sparkmeta.state import tree_location

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from sparkmeta.state import TableState

VIOLATIONS = pa.schema([pa.field(name, pa.string()) for name in ("rule", "location", "value", "problem")])

_COLUMNS = ("content_type", "location", "version_info", "deletion_vector", "referenced_file", "partition_spec_id")
_UNBOUND, _MASKED, _LEAF, _OFFSET = "_unbound", "_masked", "_leaf", "_offset"
_MATRIX = (*_COLUMNS, "file_format", "record_count", "file_size_in_bytes", "manifest_stats", "equality_ids")
# Sequence numbers of entries in leaves are a rule of their own: only ADDED ones may leave them out.
_INHERITED = ("version_info.sequence_number", "version_info.file_sequence_number")
_COUNTED = {Status.ADDED: "added", Status.EXISTING: "existing", Status.DELETED: "deleted"}

_DATA, _POSITION = int(ContentType.DATA), int(ContentType.POSITION_DELETES)
_EQUALITY = int(ContentType.EQUALITY_DELETES)

# What the entries' rules need to know of their leaf.
_LEAF_SCHEMA = pa.schema(
    [
        pa.field(MANIFEST, pa.int32()),
        pa.field("path", pa.string()),
        pa.field("kind", pa.int32()),
        pa.field("status", pa.int32()),
        pa.field("owner", pa.string()),
        pa.field("tree_layout", pa.bool_()),
        *(pa.field(name, pa.int64()) for name in ("records", *_COUNTED.values())),
    ]
)


def check(state: TableState) -> DataFrame:
    """The violations in the tree of the state's snapshot, as `Table.check` says.

    Raises:
        UnsupportedError: a snapshot that a manifest list describes.
        CorruptFileError: its root is no manifest.
    """
    if state.snapshot is None:
        return local_frame(state.spark, VIOLATIONS.empty_table())
    location = tree_location(state.files, state.metadata, state.snapshot)
    if location is None:
        raise UnsupportedError(
            f"{state.metadata.location}: snapshot {state.snapshot.snapshot_id} has a manifest list: "
            "invariants are those of a metadata tree"
        )
    stamp = (state.snapshot.snapshot_id, state.snapshot.sequence_number or 0)
    root = read_unchecked_root(
        state.files.read(location), state.stats_types, location, stamp, stats_of_fields(state.tuple_sources)
    )
    broken = [
        _violation("entry-fields", location, found.field, found.value, found.error(location).problem)
        for found in entry_problems(root.table, state.specs, state.primitive_fields)
    ]
    if broken:
        return local_frame(state.spark, pa.Table.from_pylist(broken, schema=VIOLATIONS))
    return _TreeCheck(replace(state, root=root), root).violations()


def _violation(rule: str, location: str | None, field: str, value: Any, problem: str) -> dict[str, str | None]:
    return {"rule": rule, "location": location, "value": f"{field} is {shown(value)}", "problem": problem}


@dataclass(frozen=True)
class _TreeCheck:
    """The rules over one tree whose root's own entries have the fields that they must have."""

    state: TableState
    root: Root

    def violations(self) -> DataFrame:
        frames = [
            local_frame(self.state.spark, pa.Table.from_pylist(self._of_root(), schema=VIOLATIONS)),
            *self._of_entries(),
            *self._of_counts(),
            *self._of_vectors(),
            *self._of_duplicates(),
            *self._of_affinity(),
            *self._of_carried(),
            *self._of_fields(),
        ]
        return _union(frames)

    # -- the root, on the driver ------------------------------------------------------------------------------------

    @cached_property
    def _leaves(self) -> dict[str, dict[str, Any]]:
        """The root's entries for leaves, by location; a live one hides a DELETED one."""
        rows = [row for _, row in flat_rows(self.root.table, LEAVES)]
        return {row["location"]: row for row in sorted(rows, key=lambda row: row["status"] != Status.DELETED)}

    def _of_root(self) -> list[dict[str, str | None]]:
        found = [*self._root_vectors(), *self._root_affinity(), *self._root_bounds()]
        live = [row["location"] for _, row in flat_rows(self.root.table, LEAVES) if row["status"] != Status.DELETED]
        for location in sorted(one for one, count in Counter(live).items() if count > 1):
            problem = "the root has two live entries for this manifest"
            found.append(_violation("one-entry-per-file", location, "location", location, problem))
        return found

    def _root_vectors(self) -> Iterator[dict[str, str | None]]:
        for target, vectors in sorted(vectors_by_leaf(self.root).items()):
            live = [one for one in vectors if one["status"] != Status.DELETED]
            if len(live) > 1:
                problem = "a manifest has one live deletion vector at most"
                yield _violation("one-vector-per-manifest", target, "deletion vectors", len(live), problem)
            leaf = self._leaves.get(target)
            if live and (leaf is None or self._is_lost(leaf, live)):
                problem = "a live deletion vector masks a manifest that the root does not hold, or has deleted"
                yield _violation("vector-target", self.root.location, "referenced_file", target, problem)

    @staticmethod
    def _is_lost(leaf: dict[str, Any], live: list[Any]) -> bool:
        """A vector that is added to a manifest which goes in the same commit says what goes (semantics C11)."""
        return leaf["status"] == Status.DELETED and any(one["status"] != Status.ADDED for one in live)

    def _root_affinity(self) -> Iterator[dict[str, str | None]]:
        for location, leaf in self._leaves.items():
            owner = leaf["referenced_file"]
            if owner is None or leaf["status"] == Status.DELETED:
                continue
            found = self._leaves.get(owner)
            if found is None or found["status"] == Status.DELETED or found["content_type"] != ContentType.DATA_MANIFEST:
                problem = "the manifest is affiliated to one that is no live data manifest of the root"
                yield _violation("affinity-target", location, "referenced_file", owner, problem)

    def _root_bounds(self) -> Iterator[dict[str, str | None]]:
        """Stats of partition values that manifests, which were written for a tree, lack in the root."""
        live = self.root.table.filter(pc.and_(is_live(self.root.table), one_of(self.root.table, LEAVES)))
        if not len(live):
            return
        own = self._reader.tree.has_tree_layout(leaf_manifests(live, pa.nulls(len(live), pa.int32())))
        stats, specs = live.column(CONTENT_STATS), live.column("partition_spec_id")
        for spec_id, fields in self.state.tuple_sources.items():
            for _, source in fields:
                lacks = pc.and_(pc.equal(specs, spec_id), pc.struct_field(stats, str(source)).is_null())
                for row in pc.indices_nonzero(pc.and_(lacks, own)).to_pylist():
                    location = live.column("location")[row].as_py()
                    yield _violation("partition-bound", location, f"content_stats.{source}", None, _NO_BOUND)

    # -- entries ----------------------------------------------------------------------------------------------------

    @property
    def _reader(self) -> TreeReader:
        reader = self.state.tree_reader
        assert reader is not None
        return reader

    @cached_property
    def _manifests(self) -> pa.Table:
        """The live leaves as manifests; `manifest` is their place in the root."""
        leaves = self.root.leaves
        return leaf_manifests(leaves, leaves.column("ordinal").cast(pa.int32()))

    @cached_property
    def _leaf_frame(self) -> DataFrame:
        return F.broadcast(self._leaf_rows)

    @cached_property
    def _leaf_rows(self) -> DataFrame:
        manifests, stats = self._manifests, self._manifests.column("manifest_stats")
        columns = {
            MANIFEST: manifests.column(MANIFEST),
            "path": manifests.column("location"),
            "kind": manifests.column("content_type"),
            "status": version(manifests, "status"),
            "owner": manifests.column("referenced_file"),
            "tree_layout": self._reader.tree.has_tree_layout(manifests),
            "records": manifests.column("record_count"),
            **{name: pc.struct_field(stats, f"{name}_files_count") for name in _COUNTED.values()},
        }
        arrays = [columns[one.name].cast(one.type) for one in _LEAF_SCHEMA]
        table = pa.Table.from_arrays(arrays, schema=_LEAF_SCHEMA)
        return local_frame(self.state.spark, table)

    @cached_property
    def _sources(self) -> dict[int, str]:
        """Ids of the stats that hold partition values -> Iceberg types."""
        ids = {source for fields in self.state.tuple_sources.values() for _, source in fields}
        return {one: self.state.stats_types[one] for one in sorted(ids)}

    def _entries_of(self, manifests: pa.Table) -> DataFrame:
        """Every physical entry of some leaves, with `_unbound`: the stats of a partition value that it lacks."""
        own = self._reader.tree.has_tree_layout(manifests)
        frames = []
        for chosen, sources in ((manifests.filter(own), self._sources), (manifests.filter(pc.invert(own)), {})):
            if len(chosen):
                projection = EntryProjection.of(_COLUMNS, None, sources)
                for frame in self._reader.physical_frames(chosen, projection):
                    frames.append(self._narrow(frame, projection))  # noqa: PERF401
        return _union(frames) if frames else self._own_entries(FILES).where("false")

    def _narrow(self, frame: DataFrame, projection: EntryProjection) -> DataFrame:
        unbound = self._unbound() if projection.stats else F.lit(None).cast("int")
        return frame.select(*_COLUMNS, MANIFEST, ORDINAL, unbound.alias(_UNBOUND))

    def _unbound(self) -> Column:
        """The first of the spec's stats that are missing, or have an upper bound and no lower one."""
        cases = []
        for spec_id, fields in self.state.tuple_sources.items():
            for _, source in fields:
                stats = F.col(f"{CONTENT_STATS}.`{source}`")
                lacks = stats.isNull() | (stats.lower_bound.isNull() & stats.upper_bound.isNotNull())
                cases.append(F.when((F.col("partition_spec_id") == spec_id) & lacks, source))
        return F.coalesce(*cases).cast("int")

    @cached_property
    def _entries(self) -> DataFrame:
        return self._entries_of(self._manifests)

    def _own_entries(self, kinds: Iterable[ContentType]) -> DataFrame:
        """The root's own files, as `_entries`; of no manifest."""
        projection = EntryProjection.of(_COLUMNS, None, self._sources)
        files = self.root.of(kinds, live=False)
        table = narrowed_rows(files, projection, self.state.tuple_sources)
        table = table.append_column(MANIFEST, pa.nulls(len(table), pa.int32()))
        table = table.append_column(ORDINAL, files.column("ordinal"))
        frame = local_frame(self.state.spark, table).selectExpr(
            *sql.texts(entry_columns(projection, self.state.tuple_sources, None))
        )
        return self._narrow(frame, projection)

    @cached_property
    def _vectors(self) -> pa.Table:
        """The live deletion vectors of live leaves, all of them where there are several, as `VECTOR_SCHEMA`."""
        ids = dict(zip(self._manifests.column("location").to_pylist(), self._manifests.column(MANIFEST).to_pylist(),
                       strict=True))  # fmt: skip
        rows = [
            vector_row(ids[target], self._leaves[target], one)
            for target, vectors in vectors_by_leaf(self.root).items()
            for one in vectors
            if target in ids and one["status"] != Status.DELETED
        ]
        return pa.Table.from_pylist(rows, schema=VECTOR_SCHEMA)

    @cached_property
    def _ordinals(self) -> DataFrame:
        """What the deletion vectors mask, and what is wrong with them: `CHECKED_SCHEMA`."""
        return checked_ordinals(self.state.spark, self._vectors, self.state.reader)

    @cached_property
    def _masked_ordinals(self) -> DataFrame:
        return self._ordinals.where("problem IS NULL").select(MANIFEST, ORDINAL).distinct()

    @cached_property
    def _placed(self) -> DataFrame:
        """The entries of leaves with `_masked`."""
        if not len(self._vectors):
            return self._entries.withColumn(_MASKED, F.lit(False))
        placed = self._entries.join(self._masked_ordinals.withColumn(_MASKED, F.lit(True)), [MANIFEST, ORDINAL], "left")
        return placed.withColumn(_MASKED, F.coalesce(_MASKED, F.lit(False)))

    @cached_property
    def _live(self) -> DataFrame:
        """The files that a reader sees."""
        in_leaves = self._placed.where(entry_is_live().column() & ~F.col(_MASKED)).drop(_MASKED)
        return in_leaves.unionByName(self._own_entries(FILES).where(entry_is_live().text))

    # -- rules ------------------------------------------------------------------------------------------------------

    def _of_entries(self) -> Iterator[DataFrame]:
        """Rules of single entries, all in one pass over the leaves, and over the root's own files."""
        if len(self._manifests):
            in_leaves = self._placed.join(self._leaf_frame, MANIFEST)
            rules = F.array_compact(F.array(*_entry_rules(), _bound_rule()))
            yield in_leaves.select(F.explode(rules).alias("found")).select("found.*")
        if self._sources:
            own = self._own_entries(FILES).withColumn("path", F.lit(self.root.location))
            yield own.select(F.explode(F.array_compact(F.array(_bound_rule()))).alias("found")).select("found.*")

    def _of_counts(self) -> Iterator[DataFrame]:
        """Leaves whose entries are not as many as the root says."""
        if not len(self._manifests):
            return
        status = F.col("version_info.status")
        sums = [F.count(F.when(status == int(one), 1)).alias(f"found_{name}") for one, name in _COUNTED.items()]
        found = self._entries.groupBy(MANIFEST).agg(*sums, F.count("*").alias("found_records"))
        both = self._leaf_rows.join(found, MANIFEST, "left")
        names = ("records", *_COUNTED.values())
        differs = reduce(or_, (F.coalesce(f"found_{name}", F.lit(0)) != F.col(name) for name in names))
        said, there = (F.to_json(F.struct(*(F.coalesce(f"{prefix}{name}", F.lit(0)).alias(name) for name in names)))
                       for prefix in ("", "found_"))  # fmt: skip
        problem = F.concat(F.lit("the manifest's entries are "), there)
        yield both.where(differs).select(*_columns("manifest-counts", F.col("path"), said, problem))

    def _of_vectors(self) -> Iterator[DataFrame]:
        """Deletion vectors of manifests that can't be read, and ordinals that their manifest does not have."""
        if not len(self._vectors):
            return
        broken = self._ordinals.where("problem IS NOT NULL").join(self._leaf_frame, MANIFEST)
        of_ordinal = F.col("problem").startswith(f"{ORDINAL}:")
        rule = F.when(of_ordinal, F.lit("ordinal-range")).otherwise(F.lit("vector-content"))
        yield broken.select(rule.alias("rule"), F.col("path").alias("location"), "value", "problem")

    def _of_duplicates(self) -> Iterator[DataFrame]:
        """Files with several live entries, and data files with several live deletion vectors."""
        offset = F.coalesce("deletion_vector.offset", F.lit(-1).cast("long")).alias(_OFFSET)
        twice = self._live.groupBy("location", offset).count().where("count > 1")
        problem = F.lit("the file has several live entries")
        yield twice.select(*_columns("one-entry-per-file", F.col("location"), F.col("count"), problem))
        if not len(self.root.of([ContentType.POSITION_DELETES, ContentType.DELETE_MANIFEST])):
            return
        vectors = self._live.where(F.col("content_type") == _POSITION).where("deletion_vector.offset IS NOT NULL")
        several = vectors.groupBy("referenced_file").count().where("count > 1")
        problem = F.lit("the data file has several live deletion vectors")
        yield several.select(*_columns("one-vector-per-file", F.col("referenced_file"), F.col("count"), problem))

    def _of_affinity(self) -> Iterator[DataFrame]:
        """Live deletion vectors in an affiliated manifest whose data file is not in the data manifest, or lives
        elsewhere: plans look for it beside the data manifest only."""
        owned = self._manifests.filter(self._manifests.column("referenced_file").is_valid())
        if not len(owned):
            return
        owners = F.broadcast(self._leaf_frame.select(F.col(MANIFEST).alias(_LEAF), F.col("path").alias("owner")))
        alive = entry_is_live().column() & ~F.col(_MASKED)
        vectors = self._placed.where(alive & (F.col("content_type") == _POSITION))
        placed = vectors.join(self._leaf_frame.drop("status", "kind"), MANIFEST).join(owners, "owner")
        file, key = F.col("location").alias("referenced_file"), [_LEAF, "referenced_file"]
        files = self._placed.where(F.col("content_type") == _DATA)
        known, living = (one.select(F.col(MANIFEST).alias(_LEAF), file) for one in (files, files.where(alive)))
        lost = placed.join(known, key, "left_anti")
        problem = F.concat(F.lit("the deletion vector's data file is not in the affiliated manifest "), F.col("owner"))
        yield lost.select(*_columns("affinity-vector", F.col("path"), F.col("referenced_file"), problem))
        elsewhere = self._live.where(F.col("content_type") == _DATA).select(file)
        moved = placed.join(known, key, "left_semi").join(living, key, "left_anti")
        moved = moved.join(elsewhere, "referenced_file", "left_semi")
        problem = F.concat(F.lit("the deletion vector's data file lives elsewhere than in "), F.col("owner"))
        yield moved.select(*_columns("affinity-vector", F.col("path"), F.col("referenced_file"), problem))

    def _of_carried(self) -> Iterator[DataFrame]:
        """What is EXISTING in new manifests or the root, and was not live in the parent, unless that has expired."""
        assert self.state.snapshot is not None
        parent_id = self.state.snapshot.parent_snapshot_id
        parent = None if parent_id is None else self.state.metadata.snapshot_by_id(parent_id)
        if parent_id is not None and parent is None:
            return
        before = self.state.at(parent)
        known = set() if parent is None else set(before.manifests.column("location").to_pylist())
        existing = pc.equal(version(self._manifests, "status"), int(Status.EXISTING))
        new = pa.array([one not in known for one in self._manifests.column("location").to_pylist()], pa.bool_())
        status = F.col("version_info.status")
        carried = self._own_entries(FILES).where(status == int(Status.EXISTING))
        manifests = self._manifests.filter(pc.and_(existing, new))
        if len(manifests):
            in_leaves = self._entries_of(manifests).where(status != int(Status.DELETED))
            if len(self._vectors):
                in_leaves = in_leaves.join(self._masked_ordinals, [MANIFEST, ORDINAL], "left_anti")
            carried = carried.unionByName(in_leaves)
        elif not pc.any(pc.equal(version(self.root.of(FILES), "status"), int(Status.EXISTING))).as_py():
            return
        offset = F.coalesce("deletion_vector.offset", F.lit(-1).cast("long")).alias(_OFFSET)
        keys = [F.col("content_type"), F.col("location"), offset]
        asked = carried.select(*keys)
        if parent is not None:
            entries = before.entries(before.manifests, before.projection(_COLUMNS)).where(entry_is_live().text)
            asked = asked.join(entries.select(*keys), ["content_type", "location", _OFFSET], "left_anti")
        problem = F.lit("the file is carried over as EXISTING, and was not live in the parent snapshot")
        yield asked.select(*_columns("carried-entries", F.col("location"), F.col("content_type"), problem))

    def _of_fields(self) -> Iterator[DataFrame]:
        """Entries in leaves that break the field matrix (semantics 8.4); older layouts have other rules."""
        manifests = self._manifests.filter(self._reader.tree.has_tree_layout(self._manifests))
        if not len(manifests):
            return
        projection = EntryProjection.of(_MATRIX)
        paths = {row[MANIFEST]: row["location"] for row in manifests.select([MANIFEST, "location"]).to_pylist()}
        fields = partial(_fields, paths, frozenset(self.state.specs), frozenset(self.state.primitive_fields))
        for frame in self._reader.physical_frames(manifests, projection):
            yield frame.mapInArrow(fields, schema_of(VIOLATIONS))


_NO_BOUND = "the value of a partition field is missing"


def _fields(
    paths: dict[int, str], specs: frozenset[int], columns: frozenset[int], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        table = pa.Table.from_batches([batch])
        violations = []
        for broken in entry_problems(table, specs, columns):
            if broken.field not in _INHERITED:
                path = paths[table.column(MANIFEST)[broken.row].as_py()]
                problem = f"ordinal {table.column(ORDINAL)[broken.row].as_py()}: {broken.problem}"
                violations.append(_violation("entry-fields", path, broken.field, broken.value, problem))
        yield pa.RecordBatch.from_pylist(violations, schema=VIOLATIONS)


def _entry_rules() -> list[Column]:
    """Of entries in leaves, joined with what is known of the leaf: a struct of `VIOLATIONS`, or null."""
    kind, entry_status = F.col("content_type"), F.col("version_info.status")
    of_data = F.col("kind") == int(ContentType.DATA_MANIFEST)
    misplaced = F.when(of_data, kind != _DATA).otherwise(~kind.isin(_POSITION, _EQUALITY))
    unnumbered = F.col("version_info.sequence_number").isNull() | F.col("version_info.file_sequence_number").isNull()
    mixed = F.col("tree_layout") & (F.col("status") == int(Status.ADDED)) & (entry_status != int(Status.ADDED))
    removed_twice = F.col(_MASKED) & (entry_status == int(Status.DELETED))
    global_delete = F.col("owner").isNotNull() & (kind == _EQUALITY)
    return [
        _rule("leaf-content", misplaced, kind, "a manifest of the root's kind holds no such entry"),
        _rule("sequence-numbers", (entry_status != int(Status.ADDED)) & unnumbered, F.col("location"),
              "only ADDED entries inherit sequence numbers"),
        _rule("added-manifest", mixed, entry_status, "a manifest that the snapshot added holds an entry that is older"),
        _rule("ordinal-deleted", removed_twice, F.col(ORDINAL), "a DELETED entry is masked"),
        _rule("affinity-equality-deletes", global_delete, F.col("location"),
              "equality deletes reach beyond one data manifest"),
    ]  # fmt: skip


def _bound_rule() -> Column:
    live = entry_is_live().column() & F.col(_UNBOUND).isNotNull()
    value = F.concat(F.lit("content_stats."), F.col(_UNBOUND), F.lit(" of "), F.col("location"))
    return _rule("partition-bound", live, value, _NO_BOUND)


def _rule(rule: str, broken: Column, value: Column, problem: str) -> Column:
    return F.when(broken, F.struct(*_columns(rule, F.col("path"), value, F.lit(problem))))


def _columns(rule: str, location: Column, value: Column, problem: Column) -> list[Column]:
    values = (F.lit(rule), location, value.cast("string"), problem)
    return [one.alias(name) for one, name in zip(values, VIOLATIONS.names, strict=True)]


def _union(frames: list[DataFrame]) -> DataFrame:
    return reduce(lambda left, right: left.unionByName(right), frames)
