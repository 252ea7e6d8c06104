"""The layout of V4 manifests: Parquet files with field ids as Arrow tables. Without Spark: tasks import this."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparkmeta.entries.live import is_live
from sparkmeta.entries.projection import CONTENT_STATS, EntryProjection, SpecTuples
from sparkmeta.errors import CorruptFileError, UnsupportedError
from sparkmeta.expr.arrays import field_id, whole, with_field_id
from sparkmeta.expr.bounds import inverted
from sparkmeta.manifests.parquet_file import parquet_bytes
from sparkmeta.manifests.v4.colocated import VECTOR_TYPE, vector_values, with_vector_column
from sparkmeta.manifests.v4.fields import (
    STRUCTS,
    StatsTypes,
    nullable_type,
    read_field,
    read_stats,
    stats_indices,
    tree_stats_type,
    values_in_sources,
)
from sparkmeta.manifests.v4.iceberg_layout import (
    NOT_AN_ENTRY,
    has_iceberg_layout,
    iceberg_paths,
    iceberg_root,
    iceberg_rows,
    lacks_vectors,
    refuse_unfinished,
)
from sparkmeta.spec.entry import (
    BOUNDS,
    CONTENT_ENTRY,
    CONTENT_STATS_ID,
    DELETE_FILE_PATH_ID,
    ROW_ID_OFFSET,
    FieldSpec,
    stats_children,
    stats_struct_id,
)
from sparkmeta.spec.tree_layout import ICEBERG, PROPOSAL, TreeLayout
from sparkmeta.storage.content import translated_read_errors

# -- Types of values in a table's V4 manifests ------------------------------------------------------------------------


# Spec id -> (partition field id, id of the stats that hold the value) of its fields, except void ones.
TupleSources = Mapping[int, Sequence[tuple[int, int]]]


def stats_of_fields(sources: TupleSources) -> dict[int, int]:
    """Return partition field id -> id of the stats that hold its values."""
    return {field_id: source for fields in sources.values() for field_id, source in fields}


@dataclass(frozen=True)
class TreeTypes:
    """The types of a table's V4 manifests. Picklable.

    Attributes:
        stats: ids of columns and expressions that may have stats -> Iceberg type names.
        columns: the ids in `stats` that are columns of a schema.
        spec_fields: spec id -> (partition field id, Iceberg type name) of its fields.
        sources: see `TupleSources`.
        spec_tuples: see `EntryProjection`.
    """

    stats: Mapping[int, str]
    columns: frozenset[int]
    spec_fields: Mapping[int, Sequence[tuple[int, str]]]
    sources: TupleSources
    spec_tuples: SpecTuples = ()

    ALWAYS_READ: ClassVar = ("content_type", "version_info", "partition_spec_id", "record_count")
    """Fields of entries that are read for every projection."""

    def with_stats(self, ids: Collection[int]) -> TreeTypes:
        """Return the types with the stats of some columns, and those that planning always reads."""
        wanted = {*ids, DELETE_FILE_PATH_ID, *stats_of_fields(self.sources).values()}
        return replace(self, stats={field_id: name for field_id, name in self.stats.items() if field_id in wanted})

    def stats_of(self, projection: EntryProjection) -> dict[int, str]:
        """Return the stats to read for a projection: its own, and the stats that hold partition values."""
        ids, partition = set(dict(projection.stats)), dict(projection.partition)
        for fields in self.sources.values():
            ids.update(source for field_id, source in fields if field_id in partition)
        return {field_id: name for field_id, name in self.stats.items() if field_id in ids}


# -- V4 manifests as Arrow tables -------------------------------------------------------------------------------------
# In memory, every V4 entry is a row of `tree_schema`: all fields of the content entry, and stats of the table's
# columns. Files omit fields that their kind of manifest can't have, and stats that no row has.


ROOT = "root"
DATA = "data"
DELETE = "delete"

FORMAT_VERSION_KEY = "format-version"
CONTENT_KEY = "content"

_ELEMENT_IDS = {"split_offsets": 133, "equality_ids": 136}
_NEVER_IN = {
    ROOT: frozenset[str](),
    DATA: frozenset({"manifest_stats", "deletion_vector", "referenced_file", "equality_ids"}),
    DELETE: frozenset({"manifest_stats", "sort_order_id", "first_row_id"}),
}


def tree_schema(stats: StatsTypes) -> pa.Schema:
    """Return the row type of V4 entries in memory: the content entry, and `content_stats` with the given ids."""
    fields = [pa.field(field.name, nullable_type(field.type)) for field in CONTENT_ENTRY]
    return pa.schema([*fields, pa.field(CONTENT_STATS, tree_stats_type(stats))])


def write_manifest(table: pa.Table, content: str, properties: Mapping[str, str] | None = None) -> bytes:
    """Return the bytes of a V4 manifest with rows of `tree_schema`.

    Args:
        content: ROOT, DATA or DELETE.
        properties: further key-value metadata of the file.
    """
    columns, fields = [], []
    for spec in CONTENT_ENTRY:
        if spec.name not in _NEVER_IN[content]:
            field = _file_field(spec)
            columns.append(_conformed(whole(table.column(spec.name)), field))
            fields.append(field)
    if content == DATA and (offsets := _row_id_offsets(table)) is not None:
        columns.append(offsets)
        fields.append(_file_field(ROW_ID_OFFSET))
    stats = file_stats(whole(table.column(CONTENT_STATS)))
    if stats is not None:
        columns.append(stats)
        fields.append(with_field_id(pa.field(CONTENT_STATS, stats.type), CONTENT_STATS_ID))
    metadata = {FORMAT_VERSION_KEY: "4", CONTENT_KEY: content, **(properties or {})}
    return parquet_bytes(pa.Table.from_arrays(columns, schema=pa.schema(fields)), metadata, whole=content == ROOT)


def _row_id_offsets(table: pa.Table) -> pa.Array | None:
    """Return each entry's offset from the leaf's first row id; None if all entries have first row ids."""
    ids = whole(table.column("first_row_id"))
    counted = pc.and_(ids.is_null(), whole(is_live(table)))
    if not pc.any(counted).as_py():
        return None
    rows = pc.if_else(counted, whole(table.column("record_count")), 0)
    before = pc.subtract(pc.cumulative_sum(rows), rows)
    return pc.if_else(counted, before, pa.scalar(None, pa.int64()))


def read_manifest(
    data: bytes | memoryview,
    stats: StatsTypes,
    location: str,
    columns: Collection[str] | None = None,
    fields: Mapping[int, int] | None = None,
    *,
    as_written: bool = False,
) -> tuple[pa.Table, dict[str, str]]:
    """Return a V4 manifest of either layout as rows of `tree_schema`, and its key-value metadata.

    Columns are resolved by field id. Missing fields are null, unknown ones are ignored. Stats without field ids are
    resolved by name, including the names in the proposal's examples (semantics 17.1).

    Args:
        data: the content of the file.
        stats: the ids of the stats to read, and their types.
        location: the file's location, for errors.
        columns: the fields of the content entry to read; others are null. Defaults to all.
        fields: partition field id -> id of its stats. If a file lacks these stats, the source column's stats may hold
            the values as `partition_<partition field id>_<name>` (semantics 17.1).
        as_written: see `EntryProjection`.

    Raises:
        CorruptFileError: not a Parquet file, not a V4 manifest, or a field has another type.
    """
    with open_manifest(pa.BufferReader(data), location) as manifest:
        return manifest.rows(None, stats, columns, fields, as_written=as_written), manifest.properties


@contextmanager
def open_manifest(
    source: Any, location: str, *, coalesce: bool = False, vectors: bool = False
) -> Iterator[OpenManifest]:
    """Open a V4 manifest to read parts of it.

    Args:
        source: a file that pyarrow accepts.
        location: the file's location, for errors.
        coalesce: whether to read neighbouring columns with one request; for sources that are not in memory.
        vectors: whether to read the deletion vectors in entries; see `OpenManifest`.

    Raises:
        CorruptFileError: not a Parquet file, or not a V4 manifest.
        UnsupportedError: a manifest in a layout that can't be read.
    """
    with _parquet_errors(location):
        file = pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=coalesce)
    with file:
        is_iceberg = has_iceberg_layout(file.schema_arrow)
        if is_iceberg:
            refuse_unfinished(file.schema_arrow, location)
        else:
            _refuse_other_layouts(file.schema_arrow, location)
        metadata = file.metadata.metadata or {}
        texts = {key.decode(errors="replace"): value.decode(errors="replace") for key, value in metadata.items()}
        version = texts.get(FORMAT_VERSION_KEY)
        if version != "4" and not is_iceberg:
            raise CorruptFileError(
                location, "format-version", version, "the file is not a manifest of format version 4"
            )
        yield OpenManifest(file, location, texts, ICEBERG if is_iceberg else PROPOSAL, vectors)


def _refuse_other_layouts(schema: pa.Schema, location: str) -> None:
    """Refuse other drafts of the Iceberg project's layout, such as one without field ids."""
    children = [child for field in schema if pa.types.is_struct(field.type) for child in field.type]
    for name, other_id in _OTHER_LAYOUTS.items():
        if any(field.name == name or (other_id and field_id(field) == other_id) for field in (*schema, *children)):
            raise UnsupportedError(
                f"{location}: the manifest has the field {name}: trees in this layout, which the Iceberg project has "
                "not finished, can't be read; read the table with the library that wrote it"
            )


# Fields of other layouts, with their ids unless these mean something else in this layout, as 147 (tracking) does.
_OTHER_LAYOUTS = {"tracking": None, "column_files": 160}

_parquet_errors = partial(translated_read_errors, field="file", problem="not a Parquet file")


@dataclass(frozen=True)
class OpenManifest:
    """A V4 manifest opened for reading.

    Attributes:
        properties: the file's key-value metadata.
        layout: the layout of the file.
        vectors: whether the rows are the deletion vectors in entries of this layout, instead of the entries; none if no
            entry has a vector.
    """

    file: pq.ParquetFile
    location: str
    properties: dict[str, str]
    layout: TreeLayout = PROPOSAL
    vectors: bool = False

    @property
    def _is_iceberg(self) -> bool:
        return self.layout == ICEBERG

    @property
    def may_be_root(self) -> bool:
        """Whether the file may be a root. Roots and leaves of the Iceberg project's layout look alike."""
        return self._is_iceberg or self.properties.get(CONTENT_KEY) == ROOT

    @property
    def row_groups(self) -> int:
        """The number of row groups in the file."""
        return int(self.file.metadata.num_row_groups)

    def first_row(self, group: int) -> int:
        """Return the ordinal of a row group's first entry."""
        return sum(self.file.metadata.row_group(before).num_rows for before in range(group))

    def bounds(self, group: int, column: str) -> tuple[str, str] | None:
        """Return the bounds of a text field in a row group; None if they are unknown."""
        name = self._text_path(column)
        chunks = self.file.metadata.row_group(group)
        for index in range(chunks.num_columns if name is not None else 0):
            chunk = chunks.column(index)
            if chunk.path_in_schema == name:
                has_bounds = chunk.is_stats_set and chunk.statistics.has_min_max
                return (chunk.statistics.min, chunk.statistics.max) if has_bounds else None
        return None

    def _text_path(self, column: str) -> str | None:
        """Return the path of a text field; None if the file lacks it."""
        number = next(spec.id for spec in CONTENT_ENTRY if spec.name == column)
        if self.vectors:
            # A deletion vector's `referenced_file` is the location of the entry, and its own location is in a struct.
            number = {"referenced_file": _LOCATION_ID}.get(column, -1)
        return next((field.name for field in self.file.schema_arrow if field_id(field) == number), None)

    def rows(
        self,
        groups: Sequence[int] | None,
        stats: StatsTypes,
        columns: Collection[str] | None,
        fields: Mapping[int, int] | None = None,
        *,
        as_written: bool = False,
    ) -> pa.Table:
        """Return the entries of row groups, by default all, as `read_manifest` does."""
        if self.vectors and (not self._is_iceberg or lacks_vectors(self.file)):
            return tree_schema(stats).empty_table()
        table = self._columns(groups, stats, columns, fields or {})
        if self._is_iceberg:
            schema = tree_schema(stats)
            rows = iceberg_rows(table, schema, stats, self.location, fields or {}, vectors=self.vectors)
        else:
            rows = _canonical(table, stats, self.location, fields or {})
        return rows if as_written else _with_ordered_bounds(rows, stats, frozenset((fields or {}).values()))

    def root_rows(self, types: TreeTypes, *, as_written: bool = False) -> pa.Table:
        """Return the entries of a root. Deletion vectors in entries are rows of their own (`iceberg_root`)."""
        stats, fields = types.stats, stats_of_fields(types.sources)
        if not self._is_iceberg:
            return self.rows(None, stats, [spec.name for spec in CONTENT_ENTRY], fields, as_written=as_written)
        table, schema = self._columns(None, stats, None, fields), tree_schema(stats)
        rows = iceberg_root(table, schema, stats, self.location, fields, spec_id=max(types.spec_fields))
        return rows if as_written else _with_ordered_bounds(rows, stats, frozenset(fields.values()))

    def colocated_rows(self, types: TreeTypes) -> pa.Table:
        """Return all rows of a leaf with their deletion vectors, as `colocated_schema`.

        Leaves of the proposal's layout have no vectors. Rows that are no entries (`NOT_AN_ENTRY`) are included.
        """
        stats, fields = types.stats, stats_of_fields(types.sources)
        if not self._is_iceberg:
            return with_vector_column(self.rows(None, stats, None, fields))
        table, schema = self._columns(None, stats, None, fields), tree_schema(stats)
        rows = iceberg_rows(table, schema, stats, self.location, fields, vectors=False)
        vectors = iceberg_rows(table, tree_schema({}), {}, self.location, {}, vectors=True)
        status = pc.struct_field(vectors.column("version_info"), "status")
        values = pc.if_else(whole(pc.equal(status, NOT_AN_ENTRY)), pa.scalar(None, VECTOR_TYPE), vector_values(vectors))
        return with_vector_column(_with_ordered_bounds(rows, stats, frozenset(fields.values())), values)

    def _columns(
        self,
        groups: Sequence[int] | None,
        stats: StatsTypes,
        columns: Collection[str] | None,
        fields: Mapping[int, int],
    ) -> pa.Table:
        """Return columns of the file, without conversion."""
        paths = partial(iceberg_paths, vectors=self.vectors) if self._is_iceberg else _paths
        with _parquet_errors(self.location):
            names = None if columns is None else paths(self.file.schema_arrow, columns, stats, fields)
            if groups is None:
                table = self.file.read(names, use_threads=False)
            else:
                table = self.file.read_row_groups(list(groups), names, use_threads=False)
            table.validate(full=True)
        return table


_LOCATION_ID = 100


def _paths(schema: pa.Schema, columns: Collection[str], stats: StatsTypes, fields: Mapping[int, int]) -> list[str]:
    """Return the paths in the file of the given fields of the content entry and stats, resolved by field id."""
    ids = {spec.id for spec in CONTENT_ENTRY if spec.name in columns}
    paths = [field.name for field in schema if field_id(field) in ids]
    for field in schema:
        if field_id(field) == CONTENT_STATS_ID and pa.types.is_struct(field.type):
            structs = stats_indices(field.type, stats)
            paths += [f"{field.name}.{field.type[index].name}" for index in structs.values()]
            lacking = {
                field: stats_id for field, stats_id in fields.items() if stats_id in stats and stats_id not in structs
            }
            nested = values_in_sources(field.type, lacking)
            paths += [
                f"{field.name}.{path}" for paths_of_bounds in nested.values() for path in paths_of_bounds.values()
            ]
    return paths


def is_tree_manifest(data: bytes | memoryview, location: str) -> bool:
    """Return whether a Parquet manifest has a layout of V4, and not the entry layout of versions 1 to 3."""
    with _parquet_errors(location):
        schema = pq.read_schema(pa.BufferReader(data))
    if has_iceberg_layout(schema):
        return True
    _refuse_other_layouts(schema, location)
    return "version_info" in schema.names


def _canonical(table: pa.Table, stats: StatsTypes, location: str, fields: Mapping[int, int]) -> pa.Table:
    present = {field_id(field): index for index, field in enumerate(table.schema) if field_id(field) is not None}
    columns = []
    for spec in CONTENT_ENTRY:
        values = whole(table.column(present[spec.id])) if spec.id in present else None
        columns.append(read_field(values, spec, len(table), location))
    raw = whole(table.column(present[CONTENT_STATS_ID])) if CONTENT_STATS_ID in present else None
    columns.append(read_stats(raw, stats, len(table), location, fields))
    return pa.Table.from_arrays(columns, schema=tree_schema(stats))


def _with_ordered_bounds(rows: pa.Table, stats: StatsTypes, sources: Collection[int]) -> pa.Table:
    """Return rows without inverted bounds, which prove nothing.

    In stats that may hold partition values, `sources`, the lower bound stays: it is the value.
    """
    content = whole(rows.column(CONTENT_STATS))
    corrected = {}
    for stats_id, type_name in stats.items():
        of_field = content.field(str(stats_id))
        lower, upper = (pc.struct_field(of_field, [name]) for name in BOUNDS)
        if (wrong := inverted(lower, upper, type_name)) is not None:
            lost = ("upper_bound", "tight_bounds") if stats_id in sources else (*BOUNDS, "tight_bounds")
            wrong, kind = pc.fill_null(wrong, False), of_field.type
            children = [
                pc.if_else(wrong, pa.scalar(None, child.type), values) if child.name in lost else values
                for child, values in zip(kind, of_field.flatten(), strict=True)
            ]
            corrected[str(stats_id)] = pa.StructArray.from_arrays(children, fields=list(kind), mask=of_field.is_null())
    if not corrected:
        return rows
    structs = [corrected.get(field.name, content.field(field.name)) for field in content.type]
    struct = pa.StructArray.from_arrays(structs, fields=list(content.type), mask=content.is_null())
    index = rows.schema.get_field_index(CONTENT_STATS)
    return rows.set_column(index, rows.schema.field(index), struct)


def _file_field(spec: FieldSpec) -> pa.Field:
    kind = spec.type
    if spec.name in STRUCTS:
        kind = pa.struct([with_field_id(child.arrow, child.id) for child in STRUCTS[spec.name]])
    elif spec.name in _ELEMENT_IDS:
        kind = pa.list_(with_field_id(kind.value_field, _ELEMENT_IDS[spec.name]))
    return with_field_id(pa.field(spec.name, kind, nullable=not spec.required), spec.id)


def file_stats(stats: pa.StructArray, always: Sequence[str] = ()) -> pa.StructArray | None:
    """Return the stats that any row has, with field ids; None if there are none.

    Args:
        stats: `content_stats` in memory.
        always: further children that all structs have.
    """
    structs, fields = [], []
    for field, values in zip(stats.type, stats.flatten(), strict=True):
        stats_id = int(field.name)
        if values.null_count == len(values):
            continue
        flat = dict(zip((child.name for child in field.type), values.flatten(), strict=True))
        specs = stats_children(stats_id, field.type.field("lower_bound").type)
        written_specs = [
            spec
            for spec in specs
            if flat[spec.name].null_count < len(values) or spec.name in (*_ALWAYS_WRITTEN, *always)
        ]
        kind = pa.struct([with_field_id(spec.arrow, spec.id) for spec in written_specs])
        arrays = [flat[spec.name] for spec in written_specs]
        structs.append(pa.StructArray.from_arrays(arrays, fields=list(kind), mask=values.is_null()))
        fields.append(with_field_id(pa.field(field.name, kind), stats_struct_id(stats_id)))
    return pa.StructArray.from_arrays(structs, fields=fields, mask=stats.is_null()) if structs else None


# Written structs have these children, so that readers can tell a null partition value from a missing one.
_ALWAYS_WRITTEN = ("lower_bound", "value_count", "null_value_count")


def _conformed(values: pa.Array, field: pa.Field) -> pa.Array:
    """Cast values to a field's type, whose nested fields have ids."""
    if pa.types.is_struct(field.type):
        return pa.StructArray.from_arrays(values.flatten(), fields=list(field.type), mask=values.is_null())
    return values if values.type == field.type and not pa.types.is_list(field.type) else values.cast(field.type)


# -- Rows of roots in memory -----------------------------------------------------------------------------------------


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Convert rows of one `tree_schema` to another. Stats missing from the target are dropped; new ones are null."""
    if table.schema.equals(schema):
        return table
    columns = [
        _conform_stats(table.column(field.name).combine_chunks(), field.type)
        if pa.types.is_struct(field.type) and field.name == "content_stats"
        else table.column(field.name)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _conform_stats(values: pa.Array, kind: pa.StructType) -> pa.Array:
    values = whole(values)
    index_of_name = {field.name: index for index, field in enumerate(values.type)}
    stats_of_fields = values.flatten()
    children = [
        stats_of_fields[index_of_name[field.name]].cast(field.type)
        if field.name in index_of_name
        else pa.nulls(len(values), field.type)
        for field in kind
    ]
    if not children:
        return pa.array([{}] * len(values), kind)
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=values.is_null())


def checked_table(values: Mapping[str, pa.Array]) -> pa.Table:
    """Build rows of `tree_schema` from fields of new content entries, for `entry_problems`.

    The rows have no stats, and placeholder numbers in `version_info`: the commit sets the numbers.
    """
    schema, row_count = tree_schema({}), len(values["location"])
    kind = schema.field("version_info").type
    numbers = pa.repeat(pa.scalar({field.name: 1 for field in kind}, kind), row_count)
    columns = {**values, "version_info": numbers}
    arrays = [columns.get(field.name, pa.nulls(row_count, field.type)) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)
