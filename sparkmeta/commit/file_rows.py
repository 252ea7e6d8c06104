"""Convert rows of `inspect.files` to entries of manifests of every version. Spark tasks import this module."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.avro.write import ManifestFormat
from sparkmeta.entries.manifest_records import VALUE_SIZES, VALUE_SIZES_TYPE, map_type, stats_of_maps
from sparkmeta.entries.projection import FILE_COLUMNS, MANIFEST, ORDINAL, PARTITION, EntryProjection
from sparkmeta.entries.tally import tally_of
from sparkmeta.errors import ValidationError, shown
from sparkmeta.expr.arrays import from_stream, indices_where, to_stream, uuid_bytes, whole, with_plain_types
from sparkmeta.expr.bounds import ANY, UNORDERED, bound_arrow_type
from sparkmeta.manifests.sorted_manifests import SortedManifests, added_entries, key_table
from sparkmeta.manifests.v4.convert import PartitionValues, added_version, content_stats
from sparkmeta.manifests.v4.layout import checked_table, tree_schema
from sparkmeta.manifests.v4.root import EntryProblem, entry_problems
from sparkmeta.spec.entry import COUNTS, METRICS_MAP_IDS, ContentType

# -- Convert rows of files to entries of a V4 tree --------------------------------------------------------------------


FIELDS = {
    "content": "content_type",
    "file_path": "location",
    "file_format": "file_format",
    "spec_id": "partition_spec_id",
    "record_count": "record_count",
    "file_size_in_bytes": "file_size_in_bytes",
    "key_metadata": "key_metadata",
    "split_offsets": "split_offsets",
    "equality_ids": "equality_ids",
    "sort_order_id": "sort_order_id",
    "referenced_data_file": "referenced_file",
}
"""Columns of `inspect.files` -> fields of the content entry."""

# Fields of the content entry -> the columns that they are derived from.
_COLUMNS = {field: column for column, field in FIELDS.items()} | {
    "deletion_vector": "content_offset",
    "deletion_vector.offset": "content_offset",
    "deletion_vector.size_in_bytes": "content_size_in_bytes",
}
SEQUENCE_NUMBER = "explicit_sequence_number"
"""An optional column of new files: their data sequence numbers; null for the commit's number."""

DESCRIPTION_COLUMNS = (
    *FIELDS,
    "content_offset",
    "content_size_in_bytes",
    PARTITION,
    *METRICS_MAP_IDS,
    VALUE_SIZES,
    SEQUENCE_NUMBER,
)


@dataclass(frozen=True)
class TupleField:
    """A field of a partition spec.

    Attributes:
        field_id: the id of the partition field.
        names: the names that it may have in `partition`.
        source: the id of the stats that hold its values; None for a void transform.
        type: the Iceberg type name of its values.
        is_void: whether its transform is void, so that all of its values are null.
    """

    field_id: int
    names: tuple[str, ...]
    source: int | None
    type: str
    is_void: bool = False


@dataclass(frozen=True)
class FileRows:
    """Converts rows of files to entries of one table. Picklable.

    Attributes:
        table: the table's location, for errors.
        stats: ids that may have stats -> Iceberg type names.
        specs: spec id -> its fields.
        default_spec: the spec of rows without `spec_id`.
        columns: ids of all columns in any schema of the table.
        encrypted: whether the table is encrypted. If it is, its files must have key metadata; otherwise they must not.
    """

    table: str
    stats: Mapping[int, str]
    specs: Mapping[int, tuple[TupleField, ...]]
    default_spec: int
    columns: frozenset[int]
    encrypted: bool

    @cached_property
    def schema(self) -> pa.Schema:
        return tree_schema(self.stats)

    def batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Convert batches of files with `entries`. For `map_arrow`."""
        for batch in batches:
            yield from self.entries(pa.Table.from_batches([batch])).combine_chunks().to_batches()

    def entries(self, files: pa.Table) -> pa.Table:
        """Return the files as rows of `tree_schema` with status ADDED, without the fields that the commit sets.

        Args:
            files: columns of `inspect.files`, `VALUE_SIZES` and `SEQUENCE_NUMBER`, in any order. Missing columns count
                as null; further columns are ignored.

        Raises:
            ValidationError: a file lacks a required field or a value of its partition, or has an unknown spec, format
                or content.
        """
        row_count = len(files)
        values = {field: self._values(files, column, field) for column, field in FIELDS.items()}
        values["content_type"] = pc.fill_null(values["content_type"], 0)
        values["partition_spec_id"] = pc.fill_null(values["partition_spec_id"], self.default_spec)
        values["file_format"] = pc.utf8_lower(values["file_format"])
        values["equality_ids"] = _without_empty_lists(values["equality_ids"], values["content_type"])
        values["deletion_vector"] = self._vectors(files, values["content_type"])
        values["version_info"] = added_version(row_count, self.schema, self._column(files, SEQUENCE_NUMBER, pa.int64()))
        self._check(values)
        return self._table(values | self._details(files, values))

    def _details(self, files: pa.Table, values: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
        """Return the partition values and metrics of files."""
        return {"content_stats": self._stats(files, values)}

    def _problems(self, values: Mapping[str, pa.Array]) -> list[EntryProblem]:
        """Return the entries that a reader or `Table.check` would refuse."""
        return entry_problems(checked_table(values), self.specs, self.columns)

    def _table(self, values: Mapping[str, pa.Array]) -> pa.Table:
        row_count = len(values["location"])
        arrays = [values.get(field.name, pa.nulls(row_count, field.type)) for field in self.schema]
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def partitions(self, files: pa.Table) -> pa.Table | None:
        """Return the partitions named in rows of files, as hints for a search.

        Returns:
            `partition_spec_id` and `partition`, a struct by partition field id. Rows without a spec or partition are
            left out. None if a column is missing or has another type.
        """
        if PARTITION not in files.column_names or "spec_id" not in files.column_names:
            return None
        column = whole(files.column(PARTITION))
        if not pa.types.is_struct(column.type):
            return None
        files = files.filter(pc.and_(column.is_valid(), files.column("spec_id").is_valid()))
        specs = self._column(files, "spec_id", pa.int32())
        column = whole(files.column(PARTITION))
        values: dict[int, pa.Array] = {}
        for spec_id in specs.unique().to_pylist():
            for field in self.specs.get(spec_id, ()):
                name = next((name for name in field.names if column.type.get_field_index(name) >= 0), None)
                if name is None or field.type == ANY:
                    return None
                value = self._as_bound(pc.struct_field(column, name), field, name)
                values_so_far = values.get(field.field_id, pa.nulls(len(files), value.type))
                values[field.field_id] = pc.if_else(pc.equal(specs, spec_id), value, values_so_far)
        for field in (field for fields in self.specs.values() for field in fields if field.type != ANY):
            values.setdefault(field.field_id, pa.nulls(len(files), bound_arrow_type(field.type)))
        names = [str(field_id) for field_id in values]
        struct = (
            pa.StructArray.from_arrays(list(values.values()), names=names) if names else pa.array([{}] * len(files))
        )
        return pa.table({"partition_spec_id": specs, PARTITION: struct})

    def _values(self, files: pa.Table, column: str, field: str) -> pa.Array:
        kind = self.schema.field(field).type
        return self._column(files, column, kind)

    def _column(self, files: pa.Table, column: str, kind: pa.DataType) -> pa.Array:
        if column not in files.column_names:
            return pa.nulls(len(files), kind)
        values = whole(files.column(column))
        try:
            return values.cast(kind)
        except (pa.ArrowException, ValueError) as error:
            raise ValidationError(f"{self.table}: column {column} of the files is {values.type}, not {kind}") from error

    # -- Checks -----------------------------------------------------------------------------------------------------

    def _check(self, values: Mapping[str, pa.Array]) -> None:
        """Raise ValidationError for the first file that a reader or `Table.check` would refuse."""
        kinds = values["content_type"]
        for row in indices_where(pc.greater(kinds, int(ContentType.EQUALITY_DELETES))).to_pylist()[:1]:
            raise self._error(values, row, "content", kinds[row].as_py(), "this is the type of a manifest's entry")
        for problem_entry in self._problems(values):
            column = _COLUMNS.get(problem_entry.field, problem_entry.field)
            raise self._error(values, problem_entry.row, column, problem_entry.value, problem_entry.problem)
        keys = values["key_metadata"]
        for row in indices_where(keys.is_null() if self.encrypted else keys.is_valid()).to_pylist()[:1]:
            problem = "the table is encrypted" if self.encrypted else "the table is not encrypted"
            has_key = "null" if self.encrypted else "present"
            path = values["location"][row].as_py()
            raise ValidationError(f"{self.table}: key_metadata of file {path} is {has_key}: {problem}")
        unknown = [spec_id for spec_id, fields in self.specs.items() if any(field.type == ANY for field in fields)]
        of_unknown = indices_where(_is_in(values["partition_spec_id"], unknown)).to_pylist()
        for row in of_unknown[:1]:
            problem = "the spec has an unknown transform, whose values can't be written"
            raise self._error(values, row, "spec_id", values["partition_spec_id"][row].as_py(), problem)

    def _error(
        self, values: Mapping[str, pa.Array], row: int, column: str, value: Any, problem: str
    ) -> ValidationError:
        path = values["location"][row].as_py()
        return ValidationError(f"{self.table}: {column} of file {path} is {shown(value)}: {problem}")

    def _vectors(self, files: pa.Table, kinds: pa.Array) -> pa.Array:
        kind = self.schema.field("deletion_vector").type
        is_position_delete = pc.equal(kinds, int(ContentType.POSITION_DELETES))
        offset_and_size = [
            self._column(files, name, pa.int64()) for name in ("content_offset", "content_size_in_bytes")
        ]
        children = [*offset_and_size, pa.nulls(len(files), pa.binary())]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=pc.invert(is_position_delete))

    # -- Stats ------------------------------------------------------------------------------------------------------

    def _stats(self, files: pa.Table, values: Mapping[str, pa.Array]) -> pa.Array:
        maps = self._maps(files)
        stats = self._checked_stats(maps, values)
        partitions = self._partitions(files, values)
        sizes = self._column(files, VALUE_SIZES, VALUE_SIZES_TYPE)
        return content_stats(stats, sizes, partitions, values["record_count"], self.stats)

    def _maps(self, files: pa.Table) -> dict[str, pa.Array]:
        """Return the metrics maps present in files, by name."""
        return {
            name: self._column(files, name, map_type(name)) for name in METRICS_MAP_IDS if name in files.column_names
        }

    def _checked_stats(
        self, maps: Mapping[str, pa.Array], values: Mapping[str, pa.Array]
    ) -> dict[int, dict[str, pa.Array]]:
        """Convert metrics maps to typed stats; see `stats_of_maps`. Raises ValidationError for contradictory ones."""
        stats = stats_of_maps(maps, self.stats, len(values["location"]), self.table)
        self._check_stats(stats, values)
        return stats

    def _partitions(self, files: pa.Table, values: Mapping[str, pa.Array]) -> Iterator[PartitionValues]:
        specs = values["partition_spec_id"]
        for spec_id in specs.unique().to_pylist():
            mask = pc.equal(specs, spec_id)
            for field in self.specs[spec_id]:
                if field.source is not None:
                    yield PartitionValues(field.source, mask, self._partition_value(field, files, values, mask))

    def _check_stats(self, stats: Mapping[int, Mapping[str, pa.Array]], values: Mapping[str, pa.Array]) -> None:
        """Raise ValidationError for contradictory counts or bounds, which would make scans prune files wrongly."""
        for field_id, children in stats.items():
            total = children.get("value_count")
            for name in COUNTS:
                count = children.get(name)
                if count is None:
                    continue
                self._refuse_stats(values, f"{name}s[{field_id}]", count, pc.less(count, 0), "it is negative")
                if total is not None:
                    problem = f"there are no more than value_counts[{field_id}]"
                    self._refuse_stats(values, f"{name}s[{field_id}]", count, pc.greater(count, total), problem)
            lower, upper = children.get("lower_bound"), children.get("upper_bound")
            # Writers disagree on the order of UUIDs (semantics 1.11). Corners of shapes are not in the order of bytes.
            has_order = not self.stats[field_id].startswith(("uuid", *UNORDERED))
            if lower is not None and upper is not None and has_order:
                problem = f"it is greater than upper_bounds[{field_id}]"
                self._refuse_stats(values, f"lower_bounds[{field_id}]", lower, pc.greater(lower, upper), problem)

    def _refuse_stats(
        self, values: Mapping[str, pa.Array], column: str, stats: pa.Array, is_wrong: pa.Array, problem: str
    ) -> None:
        for row in indices_where(is_wrong).to_pylist()[:1] if is_wrong.true_count else ():
            raise self._error(values, row, column, stats[row].as_py(), problem)

    def _partition_value(
        self, field: TupleField, files: pa.Table, values: Mapping[str, pa.Array], mask: pa.Array
    ) -> pa.Array:
        column = whole(files.column(PARTITION)) if PARTITION in files.column_names else None
        names = [field.name for field in column.type] if column is not None and pa.types.is_struct(column.type) else []
        name = next((name for name in field.names if name in names), None)
        missing = mask if name is None or column is None else pc.and_(mask, column.is_null())
        rows = indices_where(missing)
        if len(rows):
            path = values["location"][rows[0].as_py()].as_py()
            raise ValidationError(f"{self.table}: partition of file {path} has no field {field.names[0]}")
        assert column is not None
        assert name is not None
        return self._as_bound(pc.struct_field(column, name), field, name)

    def _as_bound(self, value: pa.Array, field: TupleField, name: str) -> pa.Array:
        """Cast partition values to the type of bounds in stats."""
        kind = bound_arrow_type(field.type)
        if field.type == "uuid" and pa.types.is_string(value.type):
            try:
                value = uuid_bytes(value)
            except ValueError as error:
                raise ValidationError(f"{self.table}: partition.{name} of the files: {error}") from error
        try:
            return value.cast(kind)
        except (pa.ArrowException, ValueError) as error:
            raise ValidationError(f"{self.table}: partition.{name} of the files is {value.type}, not {kind}") from error


def refuse_kinds(entries: pa.Table, allowed: Iterable[int], table: str) -> None:
    """Raise ValidationError for an entry of a table whose content type is not allowed."""
    for kind in entries.column("content_type").unique().to_pylist():
        if kind not in set(allowed):
            location = entries.filter(pc.equal(entries.column("content_type"), kind)).column("location")[0]
            raise ValidationError(f"{table}: {location} has content {kind}: this operation adds none of it")


def _without_empty_lists(ids: pa.Array, kinds: pa.Array) -> pa.Array:
    """Replace empty lists with null except for equality deletes, since some writers give data files empty lists."""
    is_empty = pc.fill_null(pc.equal(pc.list_value_length(ids), 0), False)
    is_other_content = pc.fill_null(pc.not_equal(kinds, int(ContentType.EQUALITY_DELETES)), True)
    return pc.if_else(pc.and_(is_empty, is_other_content), pa.scalar(None, ids.type), ids)


def _is_in(values: pa.Array, allowed: Iterable[Any]) -> pa.Array:
    return pc.is_in(values, pa.array(sorted(allowed), values.type))


# -- Convert rows of files to entries of v1 to v3 manifests -----------------------------------------------------------


@dataclass(frozen=True)
class ListedRows(FileRows):
    """Converts rows of files to entries of one table with manifest lists. Picklable.

    Attributes:
        format_version: the table's format version.
        partition: (partition field id, type name) of the fields of `partition` in entries.
    """

    format_version: int
    partition: tuple[tuple[int, str], ...]

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of content entries, unconverted metrics maps, `partition`, `manifest` and `ordinal`."""
        return EntryProjection((*FILE_COLUMNS, *METRICS_MAP_IDS), self.partition).schema

    def _table(self, values: Mapping[str, pa.Array]) -> pa.Table:
        row_count = len(values["location"])
        values = {
            **values,
            "file_format": pc.utf8_upper(values["file_format"]),
            MANIFEST: pa.repeat(pa.scalar(0, pa.int32()), row_count),
            ORDINAL: pa.array(range(row_count), pa.int64()),
        }
        return super()._table(values)

    def _problems(self, values: Mapping[str, pa.Array]) -> list[EntryProblem]:
        if self.format_version == 1:
            kinds = values["content_type"]
            for row in indices_where(pc.not_equal(kinds, int(ContentType.DATA))).to_pylist()[:1]:
                problem = "tables of format version 1 have no deletes"
                raise self._error(values, row, "content", kinds[row].as_py(), problem)
        vectors = self.format_version >= 3
        return entry_problems(checked_table(values), self.specs, self.columns, vectors=vectors)

    def _vectors(self, files: pa.Table, kinds: pa.Array) -> pa.Array:
        vectors = super()._vectors(files, kinds)
        if self.format_version >= 3:
            return vectors
        has_offset_or_size = pc.or_(vectors.field("offset").is_valid(), vectors.field("size_in_bytes").is_valid())
        return pc.if_else(has_offset_or_size, vectors, pa.scalar(None, vectors.type))

    def _details(self, files: pa.Table, values: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
        """Return the partition tuples and the metrics maps."""
        maps = self._maps(files)
        self._checked_stats(maps, values)
        return maps | ({PARTITION: self._tuples(files, values)} if self.partition else {})

    def _tuples(self, files: pa.Table, values: Mapping[str, pa.Array]) -> pa.StructArray:
        kind = self.schema.field(PARTITION).type
        specs = values["partition_spec_id"]
        columns = {field.name: pa.nulls(len(files), field.type) for field in kind}
        for spec_id in specs.unique().to_pylist():
            mask = pc.equal(specs, spec_id)
            for field in self.specs[spec_id]:
                if not field.is_void:
                    name = str(field.field_id)
                    columns[name] = pc.if_else(mask, self._partition_value(field, files, values, mask), columns[name])
        return pa.StructArray.from_arrays([*columns.values()], fields=list(kind))


# -- Encode many new files for Avro manifests -------------------------------------------------------------------------


FILE_ORDER = "file_order"
"""An additional column of new files: their order."""

CONTENT, SPEC_ID, KINDS, TUPLES, KEYS, ROWS = "content", "spec_id", "kinds", "tuples", "keys", "rows"

FILES_PER_KEY = 100
"""The number of files for each key in the sample that determines the bounds of ranges."""

_KIND = pa.struct(
    [
        pa.field("kind", pa.string()),
        pa.field("files", pa.int64()),
        pa.field("records", pa.int64()),
        pa.field("size", pa.int64()),
    ]
)


@dataclass(frozen=True)
class FileTasks:
    """Encodes new files. Picklable.

    Attributes:
        rows: converts rows of files to entries.
        forms: (manifest content, partition spec) -> the format of its manifests.
        allowed: the content types that the operation may add.
        snapshot_id: the snapshot that adds the files.
    """

    rows: ListedRows
    forms: Mapping[tuple[int, int], ManifestFormat]
    allowed: frozenset[int]
    snapshot_id: int

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of encoded files: a row for each manifest content and partition spec of a batch of files.

        kinds: counts of the files by `FileKind`. tuples: their distinct partition tuples, unless the table has no
        partition fields. keys: a sample of their sort keys. rows: their encoded entries. `keys` and `rows` are Arrow
        streams.
        """
        fields = [pa.field(CONTENT, pa.int32()), pa.field(SPEC_ID, pa.int32()), pa.field(KINDS, pa.list_(_KIND))]
        if self.rows.partition:
            fields.append(pa.field(TUPLES, pa.list_(self.rows.schema.field(PARTITION).type)))
        return pa.schema([*fields, pa.field(KEYS, pa.binary()), pa.field(ROWS, pa.binary())])

    def encode(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Encode batches of files with the column `FILE_ORDER`, and yield rows of `schema`.

        Raises:
            ValidationError: a row does not describe a file that the operation may add.
        """
        for raw in batches:
            files = with_plain_types(raw)
            entries = self.rows.entries(pa.Table.from_batches([files])).combine_chunks()
            refuse_kinds(entries, self.allowed, self.rows.table)
            index = entries.schema.get_field_index(ORDINAL)
            entries = entries.set_column(index, entries.schema.field(index), files.column(FILE_ORDER))
            contents = pc.not_equal(entries.column("content_type"), int(ContentType.DATA)).cast(pa.int32())
            marked = pa.table({CONTENT: contents, SPEC_ID: entries.column("partition_spec_id")})
            for group in marked.group_by([CONTENT, SPEC_ID]).aggregate([]).to_pylist():
                is_in_group = pc.and_(*(pc.equal(marked.column(name), group[name]) for name in (CONTENT, SPEC_ID)))
                yield self._encoded(entries.filter(is_in_group).combine_chunks(), **group)

    def _encoded(self, entries: pa.Table, content: int, spec_id: int) -> pa.RecordBatch:
        form = self.forms[content, spec_id]
        encoded = pa.Table.from_batches(
            [added_entries(batch, form, self.snapshot_id) for batch in entries.to_batches()]
        )
        kinds = [
            {"kind": kind.value, "files": count.files, "records": count.records, "size": count.size}
            for kind, count in tally_of(entries).items()
        ]
        # Sample at random, since partitions may alternate.
        count = -(-len(encoded) // FILES_PER_KEY)
        sample_rows = np.random.default_rng(7).choice(len(encoded), count, replace=False)
        keys = key_table(encoded.take(pa.array(sample_rows)), tuple(field_id for field_id, _ in form.partition))
        values: dict[str, Any] = {CONTENT: content, SPEC_ID: spec_id, KINDS: kinds}
        values |= {KEYS: to_stream(keys), ROWS: to_stream(encoded, compression="lz4")}
        columns = {name: pa.array([value], self.schema.field(name).type) for name, value in values.items()}
        if self.rows.partition:
            columns[TUPLES] = self._tuples(entries)
        return pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)

    def _tuples(self, entries: pa.Table) -> pa.ListArray:
        """Return the distinct partition tuples of entries, as an array of one list."""
        children = pa.Table.from_struct_array(entries.column(PARTITION))
        distinct = children.group_by(children.column_names).aggregate([]).select(children.column_names)
        kind = self.schema.field(TUPLES).type
        arrays = [whole(column) for column in distinct.columns]
        structs = pa.StructArray.from_arrays(arrays, fields=[*kind.value_type])
        return pa.ListArray.from_arrays(pa.array([0, len(structs)], pa.int32()), structs, type=kind)


def read_keys(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the sampled sort keys of encoded files."""
    for blob in _blobs(batches, KEYS):
        yield from blob.cast(schema).to_batches()


def cut_rows(tasks: SortedManifests, bounds: pa.Table, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Cut encoded files into ranges, rows of `RANGE_SCHEMA`, given the last key of each range."""
    entries = (batch for table in _blobs(batches, ROWS) for batch in table.to_batches())
    yield from tasks.cut_entries(bounds, entries)


def _blobs(batches: Iterable[pa.RecordBatch], name: str) -> Iterator[pa.Table]:
    for batch in batches:
        for blob in batch.column(name):
            yield from_stream(blob.as_buffer())
