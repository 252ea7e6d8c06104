"""Convert new files to entries. A few stay on the driver; Spark tasks write larger numbers to manifests."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.avro.manifest_list import MANIFEST_FILE_SCHEMA
from sparkmeta.commit.file_rows import (
    CONTENT,
    DESCRIPTION_COLUMNS,
    FILE_ORDER,
    FILES_PER_KEY,
    KEYS,
    KINDS,
    ROWS,
    SPEC_ID,
    TUPLES,
    FileTasks,
    cut_rows,
    read_keys,
    refuse_kinds,
)
from sparkmeta.commit.leaves import (
    DELETE_ENTRY_BYTES,
    leaf_frame,
    live_owners,
    named_owners,
    value_column,
    with_owners,
    write_affiliated,
    write_few_leaves,
)
from sparkmeta.commit.lists import manifest_format
from sparkmeta.commit.moved_files import VECTOR_PATH, vector_columns, write_beside, write_moved
from sparkmeta.commit.new_files import (
    ListedFiles,
    NewFiles,
    distinct_partitions,
    file_rows,
    listed_rows,
    partitions_of,
)
from sparkmeta.commit.other_table import new_vectors, refuse_deletes, refuse_other_deletes, table_files
from sparkmeta.commit.vector_targets import find_targets
from sparkmeta.entries import relation
from sparkmeta.entries.live import is_kind
from sparkmeta.entries.projection import MANIFEST, ORDINAL, PARTITION, EntryProjection
from sparkmeta.entries.relation import (
    among,
    beside,
    collected,
    columns_of,
    computed,
    distinct,
    few,
    few_or_many,
    first,
    frame_of,
    matching,
    repeated,
    select,
    some_columns,
    where,
)
from sparkmeta.entries.tally import KindCount, Tally, file_kind, sums_by_kind, tally_of
from sparkmeta.errors import CommitConflictError, ValidationError, translated_errors
from sparkmeta.expr import sql
from sparkmeta.expr.arrays import whole
from sparkmeta.manifests.sorted_manifests import SortedManifests, file_count, key_schema, range_count
from sparkmeta.manifests.v4.iceberg_layout import vector_leaves
from sparkmeta.manifests.v4.root import one_of
from sparkmeta.manifests.v4.write import OWNER, LeafFormat, write_leaves
from sparkmeta.session import local_frame, map_arrow, materialize
from sparkmeta.snapshot.search import live_entries, live_leaves, new_entries, root_manifests
from sparkmeta.spec.entry import ContentType, Status
from sparkmeta.spec.file_kind import FileKind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.avro.write import ManifestFormat
    from sparkmeta.commit.file_rows import FileRows, ListedRows
    from sparkmeta.commit.new_snapshot import SnapshotNames
    from sparkmeta.commit.options import TreeOptions
    from sparkmeta.commit.removed_files import Searches
    from sparkmeta.entries.relation import Relation
    from sparkmeta.entries.tally import PartitionKey
    from sparkmeta.snapshot.state import TableState


# -- Entries of new files for a tree ----------------------------------------------------------------------------------
# A few files go into the root; larger numbers go into leaves that Spark tasks write.


_MANIFEST_PATH = "manifest_path"
# The position of a data file in a leaf: column -> path in entries.
_TARGET = {"data_path": "location", MANIFEST: MANIFEST, ORDINAL: ORDINAL}
_DATA = (int(ContentType.DATA),)
_DATA_OF_VECTOR = {"referenced_file": "location"}
_DELETES = (int(ContentType.POSITION_DELETES), int(ContentType.EQUALITY_DELETES))
# The maximum argument of DataFrame.limit(), minus the extra row that detects whether there are more.
_MAX_LIMIT = (1 << 31) - 2


@dataclass(frozen=True)
class FileWriter:
    """Converts the new files of a commit to entries: up to `direct_files` in the root, further files in leaves.

    If a commit adds at least `affiliated_deletes` deletion vectors for files of one data leaf, these vectors go to
    delete leaves affiliated with it.
    """

    state: TableState
    form: LeafFormat
    options: TreeOptions
    searches: Searches
    snapshot_id: int

    def add(self, files: Relation, allowed: Collection[int], added: NewFiles) -> NewFiles:
        """Convert files to entries. If there are many, jobs write them to leaves.

        Args:
            files: columns of `inspect.files`. Rows of deletion vectors may have the `manifest_path` of their data file.
            allowed: the content types that the operation may add.
            added: the new files of the commit so far.

        Raises:
            ValidationError: a row does not describe a file of this table.
        """
        room = self._room(added)
        if int(ContentType.DATA) not in allowed:
            if self.form.layout.colocates:
                return self._add_in_entries(files, allowed, added)
            if self.state.tree is not None:
                return self._add_deletes(files, room, allowed)
        described = some_columns(files, DESCRIPTION_COLUMNS)
        first_files = relation.head(described, min(room, _MAX_LIMIT) + 1)
        if len(first_files) <= room:
            return self._direct(self._rows.entries(first_files), allowed)
        if isinstance(described, pa.Table) and (few_files := few(described, self.state)) is not None:
            return self._few_in_leaves(self._rows.entries(few_files), allowed)
        return self._in_leaves(self._written(self._entries(frame_of(described, self.state))), allowed)

    def add_table(self, source: TableState, added: NewFiles, *, with_deletes: bool) -> NewFiles:
        """Convert the live data files of another table to entries. If there are many, jobs write them to leaves.

        Args:
            source: the other table.
            added: the new files of the commit so far.
            with_deletes: whether the commit adds the table's deletes too.

        Raises:
            ValidationError: the files mean something else in this table, or have deletes that are not added.
        """
        files = table_files(source, self.state, self.form, self.options)
        if with_deletes:
            refuse_other_deletes(files.state, self.state)
        else:
            refuse_deletes(files.state, self.state)
        if files.count <= self._room(added):
            return self._direct(files.entries(), _DATA)
        return self._in_leaves(files.leaves(), _DATA)

    def add_vectors(self, source: TableState, added: NewFiles) -> NewFiles:
        """Convert the deletion vectors of another table to entries. `added` contains its data files. Runs jobs.

        Raises:
            ValidationError: a deletion vector is older than its data file.
        """
        rows = new_vectors(replace(source, sessions=self.state.sessions), self.state)
        if rows is None:
            return NewFiles()
        vectors = self._entries(rows)
        if self.form.layout.colocates:
            # All of them are vectors of the table's data files.
            return self._of_new_data(few_or_many(vectors, self.state), _DELETES, added)[0]
        return self._add_placed(self._with_new_owners(vectors, added), self._room(added), _DELETES)

    def _with_new_owners(self, vectors: DataFrame, added: NewFiles) -> DataFrame:
        """Return deletion vectors with `owner`, the new data leaf that holds their data file."""
        leaves = added.of([ContentType.DATA], ContentType.DATA_MANIFEST).leaves
        if leaves is None or not len(leaves):
            return vectors.withColumn(OWNER, F.lit(None).cast("string"))
        entries = leaf_frame(self.state, leaves, EntryProjection.of(("location", "version_info")))
        return with_owners(vectors, named_owners(self.state, entries, dict(enumerate(leaves["location"].to_pylist()))))

    def _room(self, added: NewFiles) -> int:
        """Return the number of files that the commit may still put into the root."""
        return max(0, self.options.direct_files - added.on_driver)

    def _entries(self, files: DataFrame) -> DataFrame:
        return map_arrow(files, self._rows.batches, self._rows.schema)

    @property
    def _rows(self) -> FileRows:
        return file_rows(self.state)

    def _written(self, entries: DataFrame) -> pa.Table:
        return write_leaves(_clustered(entries, self.state), self.form)

    def _direct(self, entries: pa.Table, allowed: Collection[int]) -> NewFiles:
        """Return files that go into the root."""
        refuse_kinds(entries, allowed, self.state.metadata.location)
        return NewFiles(rows=entries, tally=_tally(entries, self.state)) if len(entries) else NewFiles()

    def _few_in_leaves(self, entries: pa.Table, allowed: Collection[int]) -> NewFiles:
        """Write a few files to leaves on the driver."""
        refuse_kinds(entries, allowed, self.state.metadata.location)
        leaves = write_few_leaves(entries, _cluster_columns(self.state), self.form)
        return NewFiles(leaves=leaves, tally=Tally(tally_of(entries), None))

    def _in_leaves(self, leaves: pa.Table, allowed: Collection[int]) -> NewFiles:
        """Return files that have been written to leaves."""
        _refuse_leaf_kinds(self.state, leaves, allowed)
        return (
            NewFiles(leaves=leaves, tally=Tally(_counts_of_leaves(self.state, leaves), None)) if leaves else NewFiles()
        )

    # -- Deletes ----------------------------------------------------------------------------------------------------

    def _add_deletes(self, files: Relation, room: int, allowed: Collection[int]) -> NewFiles:
        """Add deletes grouped by the data leaf of their data file. Equality deletes are treated like data files."""
        few_files = few(some_columns(files, (*DESCRIPTION_COLUMNS, _MANIFEST_PATH)), self.state)
        if few_files is None:
            described = frame_of(some_columns(files, DESCRIPTION_COLUMNS), self.state)
            leaves = self.state.data_manifests
            owners = live_owners(self.state, leaves.filter(self._may_own(leaves)))
            return self._add_placed(with_owners(self._entries(described), owners), room, allowed)
        entries, named = self._rows.entries(few_files), _named_manifests(few_files)
        if len(entries) < self.state.access.limit(self.options.affiliated_deletes):
            added = self._few_deletes(entries, room, allowed)
        else:
            owned = entries.append_column(OWNER, self._owners(entries, named))
            added = self._add_placed(local_frame(self.state.spark, owned), room, allowed)
        return added.plus(NewFiles(named=named))

    def _few_deletes(self, entries: pa.Table, room: int, allowed: Collection[int]) -> NewFiles:
        return self._direct(entries, allowed) if len(entries) <= room else self._few_in_leaves(entries, allowed)

    def _add_placed(self, entries: DataFrame, room: int, allowed: Collection[int]) -> NewFiles:
        """Add deletes that have the column `owner`."""
        materialized = materialize(entries)
        unaffiliated, affiliated = write_affiliated(
            materialized, self.form, self.options.affiliated_deletes, DELETE_ENTRY_BYTES
        )
        unaffiliated = unaffiliated.drop(OWNER)
        first_entries = unaffiliated.limit(room + 1).toArrow()
        if len(first_entries) <= room:
            direct = self._direct(first_entries.cast(self.form.schema).combine_chunks(), allowed)
            return direct.plus(self._in_leaves(affiliated, allowed))
        return self._in_leaves(pa.concat_tables([affiliated, self._written(unaffiliated)]), allowed)

    def _owners(self, entries: pa.Table, named: Collection[str]) -> pa.Array:
        """Return the data leaf of each deletion vector's file; null if no leaf has it, and for other deletes."""
        state = self.state
        dvs = new_entries(state, entries.filter(one_of(entries, [ContentType.POSITION_DELETES])))
        targets = find_targets(state, dvs, named, self.searches)
        leaves = state.manifests.filter(self._may_own(state.manifests))
        leaf_rows = pc.index_in(targets.column(MANIFEST), leaves.column(MANIFEST).combine_chunks())
        owners = leaves.column("location").combine_chunks().take(leaf_rows.combine_chunks())
        target_rows = pc.index_in(entries.column("referenced_file"), targets.column("location").combine_chunks())
        return owners.take(target_rows.combine_chunks())

    # -- Deletes of trees in the layout of the Iceberg project -----------------------------------------------------

    def _add_in_entries(self, files: Relation, allowed: Collection[int], added: NewFiles) -> NewFiles:
        """Add deletes to a tree whose data entries hold deletion vectors.

        A few deletes go into the root. With many deletion vectors, the entries of their data files are written to new
        leaves.
        """
        described = some_columns(files, (*DESCRIPTION_COLUMNS, _MANIFEST_PATH))
        few_files = few(described, self.state)
        if few_files is not None:
            entries, named = self._rows.entries(few_files), _named_manifests(few_files)
            is_vector = one_of(entries, [ContentType.POSITION_DELETES])
            others = entries.filter(pc.invert(is_vector))
            new, other_vectors = self._of_new_data(entries.filter(is_vector), allowed, added)
            new, room = new.plus(NewFiles(named=named)), self._room(added.plus(new))
            vectors = collected(other_vectors).cast(self.form.schema)
            if len(vectors) + len(others) <= room:
                return new.plus(self._direct(pa.concat_tables([vectors, others]).combine_chunks(), allowed))
            if len(vectors):
                targets = find_targets(self.state, new_entries(self.state, vectors), named, self.searches)
                new = new.plus(self._moved(vectors, columns_of(targets, _TARGET), allowed))
            return new.plus(self._few_deletes(others, room, allowed)) if len(others) else new
        entries = materialize(self._entries(frame_of(some_columns(files, DESCRIPTION_COLUMNS), self.state)))
        new, other_vectors = self._of_new_data(where(entries, is_kind(ContentType.POSITION_DELETES)), allowed, added)
        if first(other_vectors) is not None:
            leaves = live_leaves(self.state, ContentType.DATA_MANIFEST)
            data = where(live_entries(self.state, leaves), is_kind(ContentType.DATA))
            new = new.plus(self._moved(other_vectors, columns_of(data, _TARGET), allowed))
        others = entries.where(F.col("content_type") != int(ContentType.POSITION_DELETES))
        if first(others) is None:
            return new
        return new.plus(self._in_leaves(self._written(others), allowed))

    def _of_new_data(self, vectors: Relation, allowed: Collection[int], added: NewFiles) -> tuple[NewFiles, Relation]:
        """Add deletion vectors of data files that the commit itself adds.

        They go next to their data files: into the root, or into new leaves, which are written again with the vectors.

        Args:
            vectors: entries of deletion vectors.
            allowed: the content types that the operation may add.
            added: the new files of the commit so far.

        Returns:
            The added vectors, and the vectors of other files.

        Raises:
            ValidationError: a data file gets two vectors.
        """
        data, new = added.of([ContentType.DATA], ContentType.DATA_MANIFEST), NewFiles()
        self._refuse_repeated(vectors)
        if data.rows is not None:
            root_vectors = collected(matching(vectors, data.rows, _DATA_OF_VECTOR))
            new = self._direct(root_vectors.cast(self.form.schema).combine_chunks(), allowed)
            vectors = matching(vectors, data.rows, _DATA_OF_VECTOR, absent=True)
        if data.leaves is None or first(vectors) is None:
            return new, vectors
        projection = EntryProjection.of(("location", "version_info"))
        targets = columns_of(computed(data.entries_of_leaves(self.state, projection)), _TARGET)
        placed = computed(where(self._placed(vectors, targets), sql.col(MANIFEST).isNotNull()))
        if first(placed) is None:
            return new, vectors
        rewritten = data.leaves.take(pc.unique(distinct(placed, [MANIFEST]).column(MANIFEST)))
        leaves = write_beside(self.state, placed, data.leaves, self.form)
        leaf_vectors = matching(vectors, placed, {"referenced_file": VECTOR_PATH})
        new = new.plus(
            NewFiles(
                leaves=pa.concat_tables([leaves, vector_leaves(leaves)]),
                tally=Tally(_counts(leaf_vectors), None),
                superseded=frozenset(rewritten.column("location").to_pylist()),
            )
        )
        return new, matching(vectors, placed, {"referenced_file": VECTOR_PATH}, absent=True)

    def _placed(self, vectors: Relation, targets: Relation) -> Relation:
        """Return deletion vectors as the column `vector`, beside the positions of their data files, or nulls."""
        snapshot_id = sql.lit(self.snapshot_id).cast("bigint")
        return beside(select(vectors, vector_columns(Status.ADDED, snapshot_id)), targets, VECTOR_PATH, "data_path")

    def _refuse_repeated(self, vectors: Relation) -> None:
        if duplicate := repeated(vectors, ["referenced_file"]):
            path = duplicate["referenced_file"]
            raise ValidationError(f"{self.state.metadata.location}: {path} gets two deletion vectors in one commit")

    def _moved(self, vectors: Relation, targets: Relation, allowed: Collection[int]) -> NewFiles:
        """Write data files with new deletion vectors to leaves. Vectors of the root's own files go into the root.

        Args:
            vectors: entries of deletion vectors.
            targets: the positions of data files, with the columns of `_TARGET`.
            allowed: the content types that the operation may add.

        Raises:
            CommitConflictError: a data file is not live.
        """
        state = self.state
        if lost := first(matching(vectors, targets, {"referenced_file": "data_path"}, absent=True)):
            problem = f"{lost['referenced_file']}, of a new deletion vector, is not a live file"
            raise CommitConflictError(f"{state.metadata.location}: {problem}")
        in_root = sql.col(MANIFEST).isin(root_manifests(state).column(MANIFEST).to_pylist())
        root_vectors = collected(matching(vectors, where(targets, in_root), {"referenced_file": "data_path"}))
        direct = self._direct(root_vectors.cast(self.form.schema).combine_chunks(), allowed)
        placed = where(self._placed(vectors, where(targets, ~in_root)), sql.col(MANIFEST).isNotNull())
        leaves = write_moved(state, computed(placed), self.form)
        if not len(leaves):
            return direct
        vector_manifests = vector_leaves(leaves)
        counts = _counts(among(vectors, "referenced_file", whole(root_vectors.column("referenced_file")), absent=True))
        return direct.plus(NewFiles(leaves=vector_manifests, moved=leaves, tally=Tally(counts, None)))

    def _may_own(self, manifests: pa.Table) -> pa.Array:
        assert self.state.tree is not None
        return self.state.tree.has_tree_layout(manifests)


def _clustered(entries: DataFrame, state: TableState) -> DataFrame:
    """Sort entries across tasks by partition values, then the sort order's columns, then paths."""
    keys = _cluster_columns(state)
    return entries.repartitionByRange(*keys).sortWithinPartitions(*keys)


def _cluster_columns(state: TableState) -> list[str]:
    spec_id = state.metadata.default_spec_id
    sorted_by = [field.source_id for field in state.metadata.sort_order().fields]
    field_ids = [source for _, source in state.types.tuple_sources[spec_id]] + sorted_by
    with_stats = [source for source in dict.fromkeys(field_ids) if source in state.types.stats_types]
    return ["content_type", "partition_spec_id", *map(value_column, with_stats), "location"]


def _named_manifests(files: pa.Table) -> frozenset[str]:
    """Return the manifests that the column `manifest_path` of files names; none without the column."""
    has_column = _MANIFEST_PATH in files.column_names
    return frozenset(files.column(_MANIFEST_PATH).drop_null().to_pylist() if has_column else ())


def _tally(entries: pa.Table, state: TableState) -> Tally:
    return Tally(tally_of(entries), partitions_of(new_entries(state, entries), state))


def _counts_of_leaves(state: TableState, leaves: pa.Table) -> dict[FileKind, KindCount]:
    """Count the files in leaves that were just written, by kind. Runs a job that scans a few narrow columns."""
    columns = ("content_type", "file_format", "record_count", "file_size_in_bytes", "deletion_vector")
    return _counts(leaf_frame(state, leaves, state.projection(columns)))


def _counts(entries: Relation) -> dict[FileKind, KindCount]:
    """Count new files by kind. For a DataFrame, runs a job."""
    if isinstance(entries, pa.Table):
        return tally_of(entries)
    size = F.coalesce("deletion_vector.size_in_bytes", "file_size_in_bytes")
    totals = [F.count("*").alias("files"), F.sum("record_count").alias("records"), F.sum(size).alias("size")]
    sums = entries.groupBy("content_type", "file_format").agg(*totals)
    return sums_by_kind(
        (file_kind(row["content_type"], row["file_format"]), KindCount(row["files"], row["records"], row["size"]))
        for row in sums.collect()
    )


def _refuse_leaf_kinds(state: TableState, leaves: pa.Table, allowed: Iterable[int]) -> None:
    kinds = set(allowed)
    has_deletes = ContentType.DELETE_MANIFEST in leaves.column("content_type").to_pylist()
    has_data = ContentType.DATA_MANIFEST in leaves.column("content_type").to_pylist()
    if (has_deletes and not kinds - {0}) or (has_data and 0 not in kinds):
        raise ValidationError(f"{state.metadata.location}: this operation adds only files of content {sorted(kinds)}")


# -- Entries of new files for Avro manifests --------------------------------------------------------------------------
# A few files stay on the driver. Spark tasks write larger numbers: they read and encode the files once, and Spark keeps
# the encoded entries until they are sorted and written. Serverless sessions can't keep them, so each of these steps
# reads and encodes the files again.


# Maximum number of new files that a commit encodes on the driver.
MOST_ON_DRIVER = 10_000
# Maximum number of partitions of new files that the summary counts.
_MAX_PARTITIONS = 10_000
_CONTENTS = (ContentType.DATA_MANIFEST, ContentType.DELETE_MANIFEST)


@dataclass(frozen=True)
class ListedFileWriter:
    """Converts the new files of a commit to entries: up to `MOST_ON_DRIVER` as rows, further files in manifests."""

    state: TableState
    names: SnapshotNames

    @cached_property
    def _rows(self) -> ListedRows:
        return listed_rows(self.state)

    def add(self, files: Relation, allowed: Collection[int], on_driver: int) -> ListedFiles:
        """See `SnapshotWriter.add`.

        Args:
            on_driver: the number of files that the commit holds as rows so far.
        """
        hints = [_MANIFEST_PATH] if int(ContentType.DATA) not in allowed else []
        room = min(_MAX_LIMIT, self.state.access.limit(max(0, MOST_ON_DRIVER - on_driver)))
        first_files = relation.head(some_columns(files, (*DESCRIPTION_COLUMNS, *hints)), room + 1)
        if len(first_files) > room:
            with translated_errors():
                return self.in_manifests(frame_of(some_columns(files, DESCRIPTION_COLUMNS), self.state), allowed)
        entries, named = self._rows.entries(first_files), _named_manifests(first_files)
        refuse_kinds(entries, allowed, self.state.metadata.location)
        if not len(entries):
            return ListedFiles(named=named)
        return ListedFiles(entries, None, Tally(tally_of(entries), partitions_of(entries, self.state)), named)

    # -- In manifests -----------------------------------------------------------------------------------------------

    def in_manifests(self, files: DataFrame, allowed: Collection[int]) -> ListedFiles:
        """Write files to manifests, sorted by partition, then sequence number. Runs jobs.

        Args:
            files: rows with `DESCRIPTION_COLUMNS`.
            allowed: the content types that the operation may add.
        """
        tasks = FileTasks(self._rows, self._forms, frozenset(allowed), self.names.snapshot_id)
        numbered = files.withColumn(FILE_ORDER, F.monotonically_increasing_id())
        encoded = materialize(map_arrow(numbered, tasks.encode, tasks.schema))
        counts = encoded.select(CONTENT, SPEC_ID, F.inline(KINDS)).groupBy(CONTENT, SPEC_ID, "kind")
        sums = counts.agg(*(F.sum(name).alias(name) for name in ("files", "records", "size"))).collect()
        file_counts = dict.fromkeys(sorted((row.content, row.spec_id) for row in sums), 0)
        for row in sums:
            file_counts[row.content, row.spec_id] += row.files
        by_kind = sums_by_kind((FileKind(row.kind), KindCount(row.files, row.records, row["size"])) for row in sums)
        manifests_of_forms = [self._write(encoded, *key, count) for key, count in file_counts.items()]
        partitions = self._partitions(encoded, sorted({spec_id for _, spec_id in file_counts}))
        manifests = pa.concat_tables([MANIFEST_FILE_SCHEMA.empty_table(), *manifests_of_forms])
        return ListedFiles(leaves=manifests, tally=Tally(by_kind, partitions))

    @cached_property
    def _forms(self) -> dict[tuple[int, int], ManifestFormat]:
        """The formats of new manifests by content and partition spec, except for specs that tasks refuse."""
        name = self.names.file("m")
        writable_specs = self.state.specs.keys() - self.state.types.unwritable_fields.keys()
        return {
            (content, spec_id): manifest_format(self.state, kind, spec_id, name)
            for content, kind in enumerate(_CONTENTS)
            for spec_id in sorted(writable_specs)
        }

    def _write(self, encoded: DataFrame, content: int, spec_id: int, count: int) -> pa.Table:
        """Write the files of one manifest content and spec, sorted by partition, then in their original order."""
        form = self._forms[content, spec_id]
        encoded_rows = encoded.where((F.col(CONTENT) == content) & (F.col(SPEC_ID) == spec_id))
        keys = tuple(field_id for field_id, _ in form.partition)
        ranges = range_count(count, len(self.state.types.column_types), form.target_bytes)
        tasks = SortedManifests(form, keys)
        schema = key_schema(dict(form.partition), keys)
        sample = map_arrow(encoded_rows.select(KEYS), partial(read_keys, schema), schema)
        cut = partial(cut_rows, tasks)
        table = self.names.noted(tasks.run(encoded_rows.select(ROWS), cut, sample, -(-count // FILES_PER_KEY), ranges))
        if (written_count := file_count(table)) != count:
            raise ValidationError(
                f"{self.state.metadata.location}: {written_count} files of partition spec {spec_id} were written, and "
                f"{count} were counted before: the files to add have changed meanwhile"
            )
        return table

    def _partitions(self, encoded: DataFrame, spec_ids: Collection[int]) -> frozenset[PartitionKey] | None:
        """Return the partitions of the files; None if there are too many."""
        if TUPLES not in encoded.columns:
            return frozenset((spec_id, ()) for spec_id in spec_ids)
        tuples = encoded.select(F.col(SPEC_ID).alias("partition_spec_id"), F.explode(TUPLES).alias(PARTITION))
        first_partitions = distinct_partitions(self.state, tuples).limit(_MAX_PARTITIONS + 1).toArrow()
        return None if len(first_partitions) > _MAX_PARTITIONS else partitions_of(first_partitions, self.state)
