"""The files that a commit adds, their partitions, and the converters of their rows to entries."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.transforms import VoidTransform
from pyspark.sql import functions as F

from sparkmeta.avro.manifest_list import manifests_of_list
from sparkmeta.commit.file_rows import DESCRIPTION_COLUMNS, FileRows, ListedRows, TupleField
from sparkmeta.commit.leaves import few_entries, leaf_frame
from sparkmeta.entries.live import entry_count
from sparkmeta.entries.projection import MANIFEST, ORDINAL, PARTITION, EntryProjection
from sparkmeta.entries.relation import (
    few_or_many,
    first,
    is_few,
    matching_key,
    some_columns,
)
from sparkmeta.entries.tally import Tally
from sparkmeta.expr import sql
from sparkmeta.expr.arrays import identities, whole
from sparkmeta.expr.bounds import ANY
from sparkmeta.manifests.v4.root import one_of
from sparkmeta.manifests.v4.spark import entry_columns
from sparkmeta.plan.deletes.rules import partition_key
from sparkmeta.session import local_frame, map_arrow
from sparkmeta.snapshot.search import (
    leaves_of_partitions,
    leaves_sharing_partitions,
    manifests_sharing_partitions,
    new_entries,
    search_projection,
)
from sparkmeta.spec.entry import ContentType
from sparkmeta.spec.metadata import has_tree
from sparkmeta.storage.keys import data_key_length

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.partitioning import PartitionField
    from pyspark.sql import DataFrame

    from sparkmeta.entries.relation import Relation
    from sparkmeta.entries.tally import PartitionKey
    from sparkmeta.snapshot.state import TableState


# -- Converters of a table's new files to entries ---------------------------------------------------------------------


def file_rows(state: TableState) -> FileRows:
    """Return the converter of a table's files to entries of a tree."""
    return FileRows(
        state.metadata.location,
        state.types.stats_types,
        _tuple_fields(state),
        state.metadata.default_spec_id,
        state.types.measured_ids,
        data_key_length(state.metadata) is not None,
    )


def listed_rows(state: TableState) -> ListedRows:
    """Return the converter for files of a table with manifest lists."""
    types = state.types
    partition = EntryProjection.of((), types.partition_fields).partition
    return ListedRows(
        state.metadata.location,
        types.column_types,
        _tuple_fields(state),
        state.metadata.default_spec_id,
        frozenset(types.primitive_fields),
        data_key_length(state.metadata) is not None,
        state.metadata.format_version,
        partition,
    )


def rows_of(state: TableState) -> FileRows:
    """Return the converter for a table's files to entries of its manifests."""
    return file_rows(state) if has_tree(state.metadata) else listed_rows(state)


def _tuple_fields(state: TableState) -> dict[int, tuple[TupleField, ...]]:
    """Return the fields of a table's partition specs by spec id."""
    names = state.types.partition_field_names
    specs = {}
    for spec_id, spec in state.specs.items():
        sources = dict(state.types.tuple_sources[spec_id]) if has_tree(state.metadata) else {}
        unwritable = state.types.unwritable_fields.get(spec_id, ())
        specs[spec_id] = tuple(
            TupleField(
                field.field_id,
                _names_in_rows(field, names),
                sources.get(field.field_id),
                ANY if field.field_id in unwritable else str(state.types.partition_types[field.field_id]),
                isinstance(field.transform, VoidTransform),
            )
            for field in spec.fields
        )
    return specs


def _names_in_rows(field: PartitionField, names: Mapping[int, str]) -> tuple[str, ...]:
    """Return the names that a partition field may have in rows of files: its own name only if no other field has it."""
    name = names[field.field_id]
    return (name,) if field.name in names.values() else (name, field.name)


# -- The partitions of new files --------------------------------------------------------------------------------------


_PARTITION_KEY = "key_of_new_files"


def new_partitions(state: TableState, files: Relation) -> Relation:
    """Return the partitions of new files, as the columns `partition_spec_id` and `partition` of entries.

    If the files are a DataFrame, the partitions are distinct.

    Args:
        state: the table.
        files: rows with the columns of `inspect.files`.
    """
    rows = rows_of(state)
    names = ("partition_spec_id", PARTITION)[: 2 if state.types.partition_fields else 1]
    described = some_columns(files, DESCRIPTION_COLUMNS)
    if isinstance(described, pa.Table):
        entries = rows.entries(described)
        return (new_entries(state, entries) if has_tree(state.metadata) else entries).select(names)
    encoded = map_arrow(described, rows.batches, rows.schema)
    if not has_tree(state.metadata):
        return distinct_partitions(state, encoded.select(*names))
    with_position = encoded.withColumns({MANIFEST: F.lit(0), ORDINAL: F.lit(0).cast("long")})
    columns = entry_columns(state.projection(("partition_spec_id",)), state.types.tuple_sources, None)
    return distinct_partitions(state, with_position.selectExpr(*sql.texts(columns)).drop(MANIFEST, ORDINAL))


def distinct_partitions(state: TableState, partitions: DataFrame) -> DataFrame:
    """Return one row for each partition in `partition_spec_id` and, if the table has partition fields, `partition`."""
    keyed = partitions.withColumn(_PARTITION_KEY, partition_key(state).column())
    return keyed.dropDuplicates([_PARTITION_KEY]).drop(_PARTITION_KEY)


def replaces_everything(state: TableState, partitions: Relation) -> bool:
    """Return whether an unpartitioned spec is among `new_partitions`, which replaces all files (semantics 12.4)."""
    unpartitioned = [spec_id for spec_id, spec in state.specs.items() if spec.is_unpartitioned()]
    return bool(unpartitioned) and first(partitions, sql.col("partition_spec_id").isin(unpartitioned)) is not None


def replaced_partitions(state: TableState, files: Relation) -> Relation | None:
    """Return the partitions that new files replace; None if they replace everything."""
    partitions = few_or_many(new_partitions(state, files), state)
    return None if replaces_everything(state, partitions) else partitions


def in_partitions(state: TableState, entries: Relation, partitions: Relation) -> Relation:
    """Return the entries in partitions, which have the columns of `new_partitions`."""
    return matching_key(entries, partitions, partition_key(state))


def partitions_of(rows: pa.Table, state: TableState) -> frozenset[PartitionKey]:
    """Return the distinct partitions of entries that are on the driver."""
    return frozenset(partition_keys(rows, state))


def partition_keys(rows: pa.Table, state: TableState) -> list[PartitionKey]:
    """Return the partition of each entry."""
    values = {
        field_id: identities(pc.struct_field(whole(rows.column(PARTITION)), str(field_id))).to_pylist()
        for field_id in state.types.partition_fields
    }
    fields = state.types.spec_fields
    return [
        (spec_id, tuple((field_id, values[field_id][row]) for field_id, _ in fields[spec_id]))
        for row, spec_id in enumerate(rows.column("partition_spec_id").to_pylist())
    ]


# -- The files that a commit adds to a tree ---------------------------------------------------------------------------
# Up to a limit, files are rows on the driver; the others are in new leaves.


@dataclass(frozen=True)
class NewFiles:
    """The files that a commit adds to a tree.

    Attributes:
        rows: entries for the root, rows of `tree_schema`.
        leaves: the root's entries for leaves with the other files.
        tally: counts of the files, for the snapshot's summary.
        named: locations of the data files' manifests, as named by the rows of deletion vectors.
        moved: the root's entries for leaves with data files of the table that get deletion vectors, in the layout of
            the Iceberg project. `leaves` contains the manifests of these vectors.
        superseded: locations of the commit's earlier leaves that `leaves` replaces, since their files got deletion
            vectors.
    """

    rows: pa.Table | None = None
    leaves: pa.Table | None = None
    tally: Tally = field(default_factory=Tally)
    named: frozenset[str] = frozenset()
    moved: pa.Table | None = None
    superseded: frozenset[str] = frozenset()

    def plus(self, other: NewFiles) -> NewFiles:
        """Return these files and the other files, which are added later."""
        staying = self.leaves
        if staying is not None and other.superseded:
            is_superseded = pc.is_in(staying.column("location"), pa.array(sorted(other.superseded), pa.string()))
            staying = staying.filter(pc.invert(is_superseded))
        rows, leaves, moved = (
            pa.concat_tables(tables) if (tables := [table for table in pair if table is not None]) else None
            for pair in ((self.rows, other.rows), (staying, other.leaves), (self.moved, other.moved))
        )
        tally, named = self.tally.plus(other.tally), self.named | other.named
        superseded = self.superseded | other.superseded
        return replace(self, rows=rows, leaves=leaves, tally=tally, named=named, moved=moved, superseded=superseded)

    @property
    def on_driver(self) -> int:
        """The number of files in `rows`."""
        return 0 if self.rows is None else len(self.rows)

    @property
    def count(self) -> int:
        """The number of files."""
        return self.on_driver + (0 if self.leaves is None else self._count_in_leaves())

    def of(self, kinds: Collection[ContentType], leaves: ContentType) -> Self:
        """Return the files in `rows` of some kinds, and all leaves of one type, whose files may be of other kinds."""
        rows = None if self.rows is None else self.rows.filter(one_of(self.rows, kinds))
        chosen_leaves = None if self.leaves is None else self._leaves_of(leaves)
        return replace(self, rows=rows or None, leaves=chosen_leaves or None, tally=Tally())

    def relation(self, state: TableState) -> Relation:
        """Return the files as entries of `SEARCH_COLUMNS`, without a manifest."""
        if not is_few(self.count, state):
            return self.frame(state)
        projection = search_projection(state)
        tables = [projection.schema.empty_table()]
        if self.rows is not None:
            tables.append(self._entries_of_rows(state))
        if self.leaves is not None:
            tables.append(self._entries_of_leaves(state, projection))
        entries = pa.concat_tables(tables).combine_chunks().drop_columns([MANIFEST])
        return entries.append_column(MANIFEST, pa.nulls(len(entries), pa.int32())).select(projection.schema.names)

    def frame(self, state: TableState) -> DataFrame:
        """Return the files as entries of `SEARCH_COLUMNS`, without a manifest."""
        projection = search_projection(state)
        rows = local_frame(state.spark, self._entries_of_rows(state)) if self.rows is not None else None
        in_leaves = self._frame_of_leaves(state, projection) if self.leaves is not None else None
        frames = [frame.drop(MANIFEST) for frame in (rows, in_leaves) if frame is not None]
        if not frames:
            return local_frame(state.spark, projection.schema.empty_table())
        union = frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])
        return union.withColumn(MANIFEST, F.lit(None).cast("int"))

    def entries_of_leaves(self, state: TableState, projection: EntryProjection) -> Relation:
        """Return the files in `leaves` as entries. `manifest` is the index of their leaf."""
        assert self.leaves is not None
        read = few_entries if is_few(self._count_in_leaves(), state) else leaf_frame
        return read(state, self.leaves, projection)

    def sharing_partitions(self, state: TableState, manifests: pa.Table) -> pa.Table:
        """Return the rows of `state.manifests` that may share a partition with the files."""
        sharing = []
        if self.rows is not None:
            sharing.append(leaves_of_partitions(state, manifests, self._entries_of_rows(state)))
        if self.leaves is not None:
            sharing.append(self._sharing_with_leaves(state, manifests))
        ids = [whole(part.column(MANIFEST)) for part in sharing]
        sharing_ids = pa.concat_arrays(ids) if ids else pa.array([], pa.int32())
        return manifests.filter(pc.is_in(manifests.column(MANIFEST), sharing_ids))

    # -- How a tree holds the files -----------------------------------------------------------------------------------

    def _count_in_leaves(self) -> int:
        assert self.leaves is not None
        return int(pc.sum(self.leaves.column("record_count")).as_py() or 0)

    def _leaves_of(self, content: ContentType) -> pa.Table:
        assert self.leaves is not None
        return self.leaves.filter(one_of(self.leaves, [content]))

    def _entries_of_rows(self, state: TableState) -> pa.Table:
        assert self.rows is not None
        return new_entries(state, self.rows)

    def _frame_of_leaves(self, state: TableState, projection: EntryProjection) -> DataFrame:
        assert self.leaves is not None
        return leaf_frame(state, self.leaves, projection)

    def _entries_of_leaves(self, state: TableState, projection: EntryProjection) -> pa.Table:
        assert self.leaves is not None
        return few_entries(state, self.leaves, projection)

    def _sharing_with_leaves(self, state: TableState, manifests: pa.Table) -> pa.Table:
        assert self.leaves is not None
        return leaves_sharing_partitions(state, manifests, self.leaves)


# -- The files that a commit adds to a manifest list ------------------------------------------------------------------
# Up to a limit, files are rows on the driver; the others are in new manifests.


@dataclass(frozen=True)
class ListedFiles(NewFiles):
    """The files that a commit adds to a manifest list.

    Attributes:
        rows: entries, rows of `ListedRows.schema`.
        leaves: the manifests with the other files, rows of `MANIFEST_FILE_SCHEMA`.
    """

    def _count_in_leaves(self) -> int:
        assert self.leaves is not None
        return entry_count(self.leaves) or 0

    def _leaves_of(self, content: ContentType) -> pa.Table:
        assert self.leaves is not None
        return self.leaves.filter(pc.equal(self.leaves.column("content"), int(content - ContentType.DATA_MANIFEST)))

    def _entries_of_rows(self, state: TableState) -> pa.Table:
        assert self.rows is not None
        rows, schema = self.rows, search_projection(state).schema
        if PARTITION in schema.names and PARTITION not in rows.column_names:
            # An earlier attempt made the rows, and another commit has partitioned the table since.
            kind = schema.field(PARTITION).type
            nulls = [pa.nulls(len(rows), field.type) for field in kind]
            rows = rows.append_column(PARTITION, pa.StructArray.from_arrays(nulls, fields=list(kind)))
        return rows.select(schema.names).cast(schema)

    def _frame_of_leaves(self, state: TableState, projection: EntryProjection) -> DataFrame:
        return state.entries(self._manifests(state), projection)

    def _entries_of_leaves(self, state: TableState, projection: EntryProjection) -> pa.Table:
        return self._frame_of_leaves(state, projection).toArrow().cast(projection.schema)

    def _sharing_with_leaves(self, state: TableState, manifests: pa.Table) -> pa.Table:
        return manifests_sharing_partitions(state, manifests, self._manifests(state))

    def _manifests(self, state: TableState) -> pa.Table:
        assert self.leaves is not None
        return manifests_of_list(self.leaves, state.types.spec_fields, state.metadata.location)
