"""Add the live files of another table: check that they fit, map their ids, and write manifests of them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.transforms import VoidTransform
from pyiceberg.types import PrimitiveType
from pyspark.sql import functions as F

from sparkmeta.commit.base_root import base_root
from sparkmeta.commit.compaction_groups import CompactionGroups, CompactionLimits, Scope, choose
from sparkmeta.commit.compaction_job import RewriteJob
from sparkmeta.commit.file_rows import FIELDS
from sparkmeta.commit.leaves import partition_stats
from sparkmeta.commit.lists import manifest_format
from sparkmeta.commit.new_files import ListedFiles
from sparkmeta.commit.new_snapshot import with_root
from sparkmeta.commit.options import ListOptions
from sparkmeta.entries.live import live_counts
from sparkmeta.entries.projection import FILE_COLUMNS, MANIFEST, PARTITION
from sparkmeta.entries.tally import KindCount, Tally
from sparkmeta.errors import ValidationError, translated_errors
from sparkmeta.expr.bounds import reads_as
from sparkmeta.manifests.decoder import EntryDecoder
from sparkmeta.manifests.manifest_tasks import SIZE, SIZED_MANIFEST_SCHEMA, AdoptedSpec, TableTasks
from sparkmeta.manifests.placement import MOST_WIDE_ENTRIES, Placement
from sparkmeta.manifests.sorted_manifests import file_count, packed, spread
from sparkmeta.manifests.v4.convert import Adoption, TableMatch
from sparkmeta.manifests.v4.iceberg_layout import VECTORS
from sparkmeta.manifests.v4.root import Root, one_of
from sparkmeta.manifests.v4.tree_manifests import IN_ROOT
from sparkmeta.plan.deletes.rules import OLDER_DV
from sparkmeta.session import map_arrow, map_on_driver, materialize
from sparkmeta.snapshot.search import live_files, live_manifests
from sparkmeta.snapshot.state import TableState, task_reader
from sparkmeta.spec.entry import METRICS_MAP_IDS, ContentType
from sparkmeta.spec.file_kind import FileKind
from sparkmeta.spec.metadata import has_tree, refuse_encrypted
from sparkmeta.spec.partitioning import partition_sources
from sparkmeta.spec.schema import path_to
from sparkmeta.spec.transforms import ColumnsBucket, field_sources, has_unknown_values
from sparkmeta.spec.upgrade import upgrade_metadata

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.table.sorting import SortOrder
    from pyiceberg.types import NestedField
    from pyspark.sql import Column, DataFrame

    from sparkmeta.commit.new_snapshot import SnapshotNames
    from sparkmeta.commit.options import TreeOptions
    from sparkmeta.manifests.v4.write import LeafFormat


# -- Match the columns, specs and sort orders of two tables -----------------------------------------------------------
# Data files identify columns by field id, so each id must mean the same in both tables. Partition specs, sort orders
# and expressions are the same if they have the same fields, regardless of their ids.


# Types that narrower types can be promoted to on read (table spec, Schema Evolution).
_WIDER = ("long", "double", "decimal")
_NAME_MAPPING = "schema.name-mapping.default"

T = TypeVar("T")


def table_match(source: TableState, target: TableState, spec_ids: Collection[int]) -> TableMatch:
    """Match the partition specs and sort orders of one table with another's.

    Args:
        source: the table with the entries.
        target: the table that adopts them.
        spec_ids: the partition specs of the entries.

    Raises:
        ValidationError: a column or a partition spec of the source means something else in the target.
        UnsupportedError: one of the tables is encrypted.
    """
    refuse_encrypted(source.metadata, "and its files can't be added to another")
    refuse_encrypted(target.metadata, "and the files of another table have no keys")
    _check_schemas(source, target)
    _check_name_mapping(source, target)
    specs = _specs(source, target, spec_ids)
    sort_orders = _equal_ids(_orders(source), _orders(target), None)
    return TableMatch(source.metadata.location, frozenset(source.types.primitive_fields), specs, sort_orders)


def adoption(source: TableState, target: TableState, spec_ids: Collection[int]) -> Adoption:
    """Return the converter from entries of one table to entries of a tree. See `table_match` for errors.

    Args:
        source: the table with the entries, including expressions for its partition fields.
        target: the tree that adopts them.
        spec_ids: the partition specs of the entries.
    """
    match = table_match(source, target, spec_ids)
    columns = source.types.primitive_fields.keys() & target.types.primitive_fields.keys()
    stats = {column: column for column in columns}
    functions = source.types.expressions
    stats |= {ours: functions[key] for key, ours in target.types.expressions.items() if key in functions}
    for spec_id, target_spec_id in match.specs.items():
        pairs = zip(source.types.tuple_sources[spec_id], target.types.tuple_sources[target_spec_id], strict=True)
        stats |= {target_key: source_key for (_, source_key), (_, target_key) in pairs}
    return Adoption(match.table, match.columns, match.specs, match.sort_orders, target.types.stats_types, stats)


# -- Columns --------------------------------------------------------------------------------------------------------


def _check_schemas(source: TableState, target: TableState) -> None:
    theirs, ours = source.metadata.schema(), target.metadata.schema()
    parents, target_parents = _parent_ids(theirs), _parent_ids(ours)
    prefix = f"{target.metadata.location}: files of {source.metadata.location}"
    target_fields = index_by_id(ours)
    for field_id, field in sorted(index_by_id(theirs).items(), key=lambda pair: _depth(pair[0], parents)):
        target_field = target_fields.get(field_id)
        if target_field is None:
            raise ValidationError(
                f"{prefix} have column {_field_text(field)}: this table's schema has no column of the id"
            )
        difference = _difference(field, target_field)
        if difference is None and parents[field_id] != target_parents[field_id]:
            difference = "it is in another column"
        if difference is not None:
            raise ValidationError(
                f"{prefix} have column {_field_text(field)}, which is {_field_text(target_field)} in this table: "
                f"{difference}"
            )
    _check_missing(source, target, prefix)


def _check_missing(source: TableState, target: TableState, prefix: str) -> None:
    """Refuse columns missing from the source's schema that its files may still have, or that the target requires."""
    source_fields, ours = index_by_id(source.metadata.schema()), target.metadata.schema()
    target_fields, parents = index_by_id(ours), _parent_ids(ours)
    for field_id, field in source.types.fields.items():
        if field_id not in source_fields and (field_id in target_fields or field_id > target.metadata.last_column_id):
            use = (
                f"is {_field_text(target_fields[field_id])} in"
                if field_id in target_fields
                else "will be a new column of"
            )
            raise ValidationError(
                f"{prefix} may have the dropped column {_field_text(field)}, whose id {use} this table"
            )
    for field_id, target_field in target_fields.items():
        has_known_parent = parents[field_id] is None or parents[field_id] in source_fields
        if (
            field_id not in source_fields
            and has_known_parent
            and target_field.required
            and target_field.initial_default is None
        ):
            raise ValidationError(f"{prefix} lack column {_field_text(target_field)}, which this table requires")


def _difference(field: NestedField, target_field: NestedField) -> str | None:
    theirs, ours = field.field_type, target_field.field_type
    if isinstance(theirs, PrimitiveType) and isinstance(ours, PrimitiveType):
        wider = reads_as(str(theirs), str(ours)) and str(ours).startswith(_WIDER)
        if theirs != ours and not wider:
            return f"{theirs} can't be read as {ours}"
    elif type(theirs) is not type(ours):
        return f"{theirs} can't be read as {ours}"
    if target_field.required and not field.required:
        return "this table requires it, and the files may have nulls"
    if field.initial_default != target_field.initial_default:
        return f"files without it have {field.initial_default!r} there and {target_field.initial_default!r} here"
    return None


def _parent_ids(schema: Schema) -> Mapping[int, int | None]:
    """Return the parent of each column; None for top-level ones."""
    paths = {field_id: path_to(schema, field_id) for field_id in index_by_id(schema)}
    return {field_id: path[-2].field_id if len(path) > 1 else None for field_id, path in paths.items()}


def _depth(field_id: int | None, parents: Mapping[int, int | None]) -> int:
    return 0 if field_id is None else 1 + _depth(parents[field_id], parents)


def _field_text(field: NestedField) -> str:
    return f"{field.name} (id {field.field_id}, {field.field_type}{', required' if field.required else ''})"


def _check_name_mapping(source: TableState, target: TableState) -> None:
    theirs, ours = (state.metadata.properties.get(_NAME_MAPPING) for state in (source, target))
    if theirs is not None and _parsed(theirs) != _parsed(ours):
        raise ValidationError(
            f"{target.metadata.location}: {source.metadata.location} has the property {_NAME_MAPPING}, by which its "
            "files without field ids are read: set it to the same value in this table"
        )


def _parsed(text: str | None) -> Any:
    with suppress(ValueError):
        return None if text is None else json.loads(text)
    return text


# -- Partition specs and sort orders --------------------------------------------------------------------------------


def _specs(source: TableState, target: TableState, spec_ids: Collection[int]) -> dict[int, int]:
    ours = {spec_id: _spec_fields(spec) for spec_id, spec in target.specs.items()}
    theirs = {spec_id: _spec_fields(source.specs[spec_id]) for spec_id in sorted(spec_ids)}
    prefix = f"{target.metadata.location}: files of {source.metadata.location}"
    for spec_id in theirs:
        unknown = next((field for field in source.specs[spec_id].fields if has_unknown_values(field.transform)), None)
        if unknown is not None:
            problem = f"whose field {unknown.name} has the unknown transform {unknown.transform}"
            raise ValidationError(f"{prefix} have partition spec {spec_id}, {problem}: its values can't be read")
    matches = _equal_ids(theirs, ours, target.metadata.default_spec_id)
    for spec_id in theirs:
        if spec_id not in matches:
            fields = _fields_text(source.specs[spec_id])
            raise ValidationError(
                f"{prefix} have partition spec {spec_id}, {fields}: no spec of this table has its fields"
            )
        _check_values(source, target, spec_id, matches[spec_id], prefix)
    return matches


def _check_values(source: TableState, target: TableState, spec_id: int, target_id: int, prefix: str) -> None:
    """Refuse partition values whose type differs in the target. This is possible for values of a dropped column."""
    fields = zip(source.specs[spec_id].fields, source.types.spec_fields[spec_id], target.types.spec_fields[target_id],
                 strict=True)  # fmt: skip
    for field, (_, kind), (_, target_kind) in fields:
        if kind != target_kind and not isinstance(field.transform, VoidTransform) and not reads_as(kind, target_kind):
            raise ValidationError(
                f"{prefix} have partition spec {spec_id}, whose field {field.name} has values of type {kind}: they are "
                f"{target_kind} in this table"
            )


def _equal_ids(theirs: Mapping[int, T], ours: Mapping[int, T], default: int | None) -> dict[int, int]:
    """Map ids to the ids of equal values. Among several, prefer the default, then the lowest."""
    matches = {
        source_id: [target_id for target_id, target_value in ours.items() if target_value == value]
        for source_id, value in theirs.items()
    }
    return {source_id: default if default in ids else min(ids) for source_id, ids in matches.items() if ids}


def _spec_fields(spec: PartitionSpec) -> list[tuple[tuple[int, ...], str]]:
    sources = partition_sources(spec)
    return [
        # A bucket of several columns by an unknown hash has other values.
        (columns, field.transform.root if isinstance(field.transform, ColumnsBucket) else str(field.transform))
        for field, columns in zip(spec.fields, sources, strict=True)
    ]


def _fields_text(spec: PartitionSpec) -> str:
    if not spec.fields:
        return "which has no fields"
    return ", ".join(f"{transform} of column {', '.join(map(str, ids))}" for ids, transform in _spec_fields(spec))


def _orders(state: TableState) -> dict[int, list[tuple[tuple[int, ...], str, str, str]]]:
    return {order.order_id: _order_fields(order) for order in state.metadata.sort_orders}


def _order_fields(order: SortOrder) -> list[tuple[tuple[int, ...], str, str, str]]:
    return [
        (field_sources(field), str(field.transform), str(field.direction), str(field.null_order))
        for field in order.fields
    ]


# -- The deletes of another table whose files a commit adds -----------------------------------------------------------


DATA_SEQUENCE = "data_sequence"
_DELETE_TYPES = (ContentType.POSITION_DELETES, ContentType.EQUALITY_DELETES)
# Columns of `inspect.files` that deletion vectors have -> paths in entries. The ids of partition specs differ.
_VECTOR_COLUMNS = {
    column: field for column, field in FIELDS.items() if field not in ("equality_ids", "sort_order_id")
} | {"content_offset": "deletion_vector.offset", "content_size_in_bytes": "deletion_vector.size_in_bytes"}


def live_deletes(source: TableState) -> pa.Table:
    """Return the rows of `source.manifests` with live deletes."""
    return live_manifests(source.delete_manifests)


def refuse_deletes(source: TableState, target: TableState) -> None:
    """Raise ValidationError if a table has deletes, since deleted rows would reappear without them."""
    manifests = live_deletes(source)
    if not len(manifests):
        return
    leaves = manifests.filter(pc.not_equal(manifests.column("file_format"), IN_ROOT))
    in_root = [] if source.tree is None else source.tree.root.of(_DELETE_TYPES).column("location").to_pylist()
    path = [*leaves.column("location").to_pylist(), *in_root][0]
    counts = f"{len(leaves)} delete manifests and {len(in_root)} deletes in its root"
    raise ValidationError(
        f"{target.metadata.location}: {source.metadata.location} has deletes, without which deleted rows would come "
        f"back: {counts}, such as {path}; row_delta(added=table, deletes=table) adds deletion vectors too, and "
        "remove_dangling_deletes removes deletes that match no file"
    )


def refuse_other_deletes(source: TableState, target: TableState) -> None:
    """Refuse to add the deletes of a table to another that can't have them. Reads the delete manifests.

    Raises:
        ValidationError: a live delete is not a deletion vector, or the other table can't have deletion vectors.
    """
    if not len(live_deletes(source)):
        return
    version = target.metadata.format_version
    is_vector = F.lit(version >= 3) & (F.col("content_type") == int(ContentType.POSITION_DELETES))
    is_vector = is_vector & (F.lower("file_format") == "puffin")
    for delete in _live_deletes(source).where(~is_vector).select("content_type", "location").limit(1).collect():
        if delete.content_type == ContentType.EQUALITY_DELETES:
            problem = "an equality delete, which would apply to older files of this table and not to the added ones"
        elif version < 3:
            problem = f"a delete, and format version {version} has no deletion vectors: rewrite_data_files applies it"
        else:
            problem = "a position delete file, and only deletion vectors can: rewrite_position_delete_files makes them"
        raise ValidationError(
            f"{target.metadata.location}: {delete.location}, of {source.metadata.location}, can't be added: it is "
            f"{problem}"
        )


def new_vectors(source: TableState, target: TableState) -> DataFrame | None:
    """Return the deletion vectors of a table's live data files as rows of `inspect.files` of another. Runs jobs.

    Args:
        source: a table without other deletes.
        target: the other table.

    Returns:
        The rows; None if the table has no deletes.

    Raises:
        ValidationError: a deletion vector is older than its data file, or the number of deletes differs from the counts
            in the manifest list or root.
    """
    manifests = live_deletes(source)
    if not len(manifests):
        return None
    match = table_match(source, target, _spec_ids(source, manifests))
    vectors = materialize(_with_data_sequence(_live_deletes(source), source))
    if VECTORS not in manifests.column("file_format").to_pylist():  # data leaves don't count their deletion vectors
        _check_count(source, manifests, vectors.count(), "deletes")
    _refuse_older(vectors, source, target)
    rows = vectors.where(F.col(DATA_SEQUENCE).isNotNull())
    columns = {column: F.col(path) for column, path in _VECTOR_COLUMNS.items()}
    columns["spec_id"] = _by_spec({spec_id: F.lit(target_spec_id) for spec_id, target_spec_id in match.specs.items()})
    return rows.select(*(value.alias(name) for name, value in columns.items()), *_partition(source, target, match))


def _partition(source: TableState, target: TableState, match: TableMatch) -> list[Column]:
    """Return `partition`, with the target's names of the fields; nothing if there are no partition fields."""
    values: dict[str, dict[int, Column]] = {}
    for spec_id, target_spec_id in match.specs.items():
        fields = zip(source.specs[spec_id].fields, target.specs[target_spec_id].fields, strict=True)
        for field, target_field in fields:
            if not isinstance(field.transform, VoidTransform):
                name = target.types.partition_field_names[target_field.field_id]
                values.setdefault(name, {})[spec_id] = F.col(f"{PARTITION}.`{field.field_id}`")
    columns = [_by_spec(by_spec).alias(name) for name, by_spec in values.items()]
    return [F.struct(*columns).alias(PARTITION)] if columns else []


def _by_spec(values: Mapping[int, Column]) -> Column:
    return F.coalesce(*(F.when(F.col("partition_spec_id") == spec_id, value) for spec_id, value in values.items()))


def _with_data_sequence(deletes: DataFrame, source: TableState) -> DataFrame:
    """Return deletion vectors with `DATA_SEQUENCE`, the sequence number of their live data file, or null without one.

    Args:
        deletes: live deletion vectors of `source` with `referenced_file`.
    """
    manifests = live_manifests(source.data_manifests)
    entries = source.live_entries(manifests, source.projection(("location", "version_info")))
    data = entries.select(F.col("location").alias("_path"), F.col("version_info.sequence_number").alias(DATA_SEQUENCE))
    return deletes.join(data, F.col("referenced_file") == F.col("_path"), "left").drop("_path")


def _refuse_older(vectors: DataFrame, source: TableState, target: TableState) -> None:
    """Refuse deletion vectors that are older than their data file, since `source` can't be read with them. Runs a job.

    Args:
        vectors: rows of `_with_data_sequence` with `location` and `version_info`.
    """
    is_older = F.col(DATA_SEQUENCE) > F.col("version_info.sequence_number")
    for older in vectors.where(is_older).select("referenced_file", "location").limit(1).collect():
        raise ValidationError(
            f"{target.metadata.location}: files of {source.metadata.location} can't be added: {OLDER_DV.text}"
            f"{older.referenced_file} {older.location}"
        )


def _live_deletes(source: TableState) -> DataFrame:
    columns = {path.partition(".")[0] for path in _VECTOR_COLUMNS.values()}
    return source.live_entries(live_deletes(source), source.projection({*columns, "version_info"}))


def _check_count(source: TableState, manifests: pa.Table, count: int, what: str) -> None:
    """Compare a number of live files with the counts of their manifests, rows of `source.manifests`."""
    counts = live_files(manifests)
    if not counts.null_count and (expected := pc.sum(counts).as_py() or 0) != count:
        raise ValidationError(
            f"{source.metadata.location}: the snapshot counts {expected} live {what}: its manifests have {count}"
        )


def _spec_ids(source: TableState, manifests: pa.Table) -> set[int]:
    """Return the partition specs of manifests, rows of `source.manifests`, and of the files in the root."""
    spec_ids = set(manifests.column("partition_spec_id").to_pylist())
    if source.tree is not None:
        files = source.tree.root.of((ContentType.DATA, ContentType.POSITION_DELETES))
        spec_ids.update(files.column("partition_spec_id").to_pylist())
    return spec_ids


# -- The live files of another table, for a commit that adds them -----------------------------------------------------
# Tasks decode the table's manifests directly to entries, sort them, and write them as leaves, as in a compaction. No
# metrics maps are built, and entries do not pass through Spark rows.


_MAX_OVERLAP = 3


@dataclass(frozen=True)
class TableFiles:
    """The live files of a table, to be added to another.

    Attributes:
        state: the table, with a root of its manifests.
        job: reads the table's manifests and writes leaves of the other table.
        choice: the groups of data manifests that are read together.
        count: the number of data files.
    """

    state: TableState
    job: RewriteJob
    choice: CompactionGroups
    count: int

    def entries(self) -> pa.Table:
        """Read a few data files and return them as entries of the other table. Runs a job."""
        assert self.job.adoption is not None
        schema = self.job.rewriting([]).schema
        rows = [self.job.entries(group).toArrow().cast(schema) for group in self.choice.data]
        return self.job.adoption(pa.concat_tables([schema.empty_table(), *rows]))

    def leaves(self) -> pa.Table:
        """Write the data files to leaves of the other table and return the leaves' root entries. Runs jobs."""
        new_leaves = [group.new_leaves for group in self.job.data(self.choice.data)]
        return pa.concat_tables([self.job.form.schema.empty_table(), *new_leaves]).combine_chunks()


def table_files(source: TableState, target: TableState, form: LeafFormat, options: TreeOptions) -> TableFiles:
    """Return the live files of a table, to be added to another. Reads its manifest list or root.

    Raises:
        ValidationError: a column or partition spec of the source means something else in the target.
        UnsupportedError: tasks can't open the source's files.
    """
    state = _as_tree(replace(source, sessions=target.sessions))
    root = state.tree.root if state.tree is not None else Root(state.metadata.location, form.schema.empty_table())
    data, deletes = _live_leaves(root, ContentType.DATA_MANIFEST), live_deletes(state)
    files, delete_files = root.of([ContentType.DATA]), root.of(_DELETE_TYPES)
    leaves = deletes.filter(pc.not_equal(deletes.column("file_format"), IN_ROOT))
    spec_ids = {
        spec_id
        for rows in (data, leaves, files, delete_files)
        for spec_id in rows.column("partition_spec_id").to_pylist()
    }
    converter = adoption(state, target, spec_ids)
    scope = _scope(state, root, frozenset(_ordinals(data) + _ordinals(files)), target, options)
    job = RewriteJob(state, scope, task_reader(state), form.name, adoption=converter, adopted=form)
    count = len(files) + sum(_live_counts(root, data).values())
    return TableFiles(state, job, choose(scope), count)


def _as_tree(state: TableState) -> TableState:
    """Return a table with a root for its manifests, as an upgrade would create."""
    if not has_tree(state.metadata):
        state = replace(state, metadata=upgrade_metadata(state.metadata, uuid.uuid4()))
    return with_root(state, base_root(state))


def _scope(state: TableState, root: Root, ordinals: frozenset[int], target: TableState, options: TreeOptions) -> Scope:
    """Return the scope of a rewrite of all data files, clustered like the target's files."""
    limits = CompactionLimits(
        options.leaf_target_bytes, 1.0, 1.0, _MAX_OVERLAP, 0, options.affiliated_deletes, fewest_merged=1
    )
    sort_columns = [field.source_id for field in target.metadata.sort_order().fields]
    keys = {
        spec_id: tuple(dict.fromkeys([*sources, *(key for key in sort_columns if key in state.types.stats_types)]))
        for spec_id, sources in _partition_keys(state).items()
    }
    old_ordinals: list[int] = []
    if state.tree is not None:
        manifests = state.manifests
        old_ordinals = manifests.filter(state.tree.has_old_layout(manifests)).column(MANIFEST).to_pylist()
    sources = partition_stats(state)
    return Scope(root, ordinals, frozenset(), keys, sources, limits, old=frozenset(old_ordinals), rewrites_all=True)


def _partition_keys(state: TableState) -> dict[int, list[int]]:
    return {spec_id: [source for _, source in pairs] for spec_id, pairs in state.types.tuple_sources.items()}


def _live_leaves(root: Root, content: ContentType) -> pa.Table:
    """Return the leaves that have live files."""
    leaves = root.leaves.filter(one_of(root.leaves, [content]))
    counts = _live_counts(root, leaves)
    return leaves.filter(pa.array([counts[ordinal] > 0 for ordinal in _ordinals(leaves)], pa.bool_()))


def _live_counts(root: Root, leaves: pa.Table) -> dict[int, int]:
    """Return the number of live files in leaves, by row number."""
    masked = {location: dv["record_count"] for location, dv in root.manifest_dv_of.items()}
    rows = zip(_ordinals(leaves), leaves.column("location").to_pylist(), live_counts(leaves).to_pylist(), strict=True)
    return {ordinal: count - masked.get(location, 0) for ordinal, location, count in rows}


def _ordinals(rows: pa.Table) -> list[int]:
    ordinals: list[int] = rows.column("ordinal").to_pylist()
    return ordinals


# -- Write another table's files for a manifest list ------------------------------------------------------------------
# Tasks decode the table's manifests and encode their entries as entries of new files. Entries do not pass through Spark
# rows and are not sorted: a new manifest holds the entries of neighbouring manifests of the other table.


# The commit assigns row ids. If tasks had to read the other table's row ids, they could not share a manifest.
_COLUMNS = (*(name for name in FILE_COLUMNS if name != "first_row_id"), *METRICS_MAP_IDS)


@dataclass(frozen=True)
class ListedTable:
    """Writes the live files of `source` to manifests of `target`, as files that its next snapshot adds."""

    source: TableState
    target: TableState
    names: SnapshotNames

    def data_files(self) -> ListedFiles:
        """Write the data files to manifests. If there are many, run a job.

        Raises:
            ValidationError: a column or a partition spec of the source means something else in the target, or an entry
                breaks a rule of the format.
            UnsupportedError: tasks can't open the source's files.
            CorruptFileError: a manifest is damaged.
        """
        manifests = live_manifests(self.source.data_manifests)
        written = self._written(manifests)
        count = file_count(written)
        _check_count(self.source, manifests, count, "data files")
        if not count:
            return ListedFiles()
        records, size = (pc.sum(written.column(name)).as_py() or 0 for name in ("added_rows_count", SIZE))
        tally = Tally({FileKind.DATA: KindCount(count, records, size)}, None)
        return ListedFiles(leaves=written.drop_columns([SIZE]), tally=tally)

    def _written(self, manifests: pa.Table) -> pa.Table:
        """Write the live files of manifests, rows of `source.manifests`, and return rows of `SIZED_MANIFEST_SCHEMA`."""
        reader, projection = self.source.reader, self.source.projection(_COLUMNS)
        match = table_match(self.source, self.target, _spec_ids(self.source, manifests))
        on_driver = reader.fits_driver(manifests, MOST_WIDE_ENTRIES)
        decoder = reader.decoder(Placement.DRIVER) if on_driver else self._task_decoder()
        tasks = TableTasks(decoder, projection, match, self._specs(match), self.names.snapshot_id)
        target_bytes = ListOptions.of(self.target.metadata).target_bytes
        units = _units(reader.task_parts(manifests, projection), target_bytes)
        with translated_errors():
            in_root = pa.Table.from_batches(
                tasks.write(reader.root_batches(manifests, projection)), SIZED_MANIFEST_SCHEMA
            )
            if on_driver or not len(units):
                written = map_on_driver(units, tasks.write_units, SIZED_MANIFEST_SCHEMA)
            else:
                written = map_arrow(
                    spread(self.target.spark, units), tasks.write_units, SIZED_MANIFEST_SCHEMA
                ).toArrow()
        return self.names.noted(pa.concat_tables([in_root, written.cast(SIZED_MANIFEST_SCHEMA)]))

    def _task_decoder(self) -> EntryDecoder:
        files = task_reader(self.source)
        return EntryDecoder(files, self.source.reader.trees, self.source.types.locations, files)

    def _specs(self, match: TableMatch) -> dict[int, AdoptedSpec]:
        """Return the source's partition specs, by id, with the formats of their new manifests."""
        name = self.names.file("m")
        return {
            spec_id: AdoptedSpec(
                manifest_format(self.target, ContentType.DATA_MANIFEST, target_spec_id, name),
                tuple(
                    None if isinstance(field.transform, VoidTransform) else field.field_id
                    for field in self.source.specs[spec_id].fields
                ),
            )
            for spec_id, target_spec_id in match.specs.items()
        }


def _units(parts: pa.Table, target_bytes: int) -> pa.Table:
    """Group neighbouring parts of manifests into lists, each with about as many bytes as a new manifest."""
    ordered = parts.sort_by([(MANIFEST, "ascending"), ("part", "ascending")]).combine_chunks()
    sizes = pc.divide(ordered.column("file_size_in_bytes"), ordered.column("parts").cast(pa.int64())).to_pylist()
    packs = packed(range(len(sizes)), target_bytes, sizes.__getitem__)
    starts = pa.array([*(pack[0] for pack in packs), len(sizes)], pa.int32())
    rows = pa.StructArray.from_arrays([column.combine_chunks() for column in ordered.columns], fields=[*ordered.schema])
    return pa.table({"parts": pa.ListArray.from_arrays(starts, rows)})
