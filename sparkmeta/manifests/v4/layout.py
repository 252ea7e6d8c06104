"""The layout of V4 manifests: Parquet files with field ids as Arrow tables. Without Spark: tasks import this."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparkmeta.entries.live import is_live
from sparkmeta.entries.projection import CONTENT_STATS, EntryProjection, SpecTuples
from sparkmeta.errors import CorruptFileError, UnsupportedError
from sparkmeta.expr.arrays import field_id, whole, with_field_id
from sparkmeta.expr.bounds import bound_arrow_type, inverted, promoted_days
from sparkmeta.manifests.parquet_file import parquet_bytes
from sparkmeta.spec.entry import (
    BOUNDS,
    CONTENT_ENTRY,
    CONTENT_STATS_ID,
    DELETION_VECTOR,
    MANIFEST_STATS,
    ROW_ID_OFFSET,
    VERSION_INFO,
    FieldSpec,
    full_stats_struct,
    stats_children,
    stats_struct_id,
)
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

# Id of a column or expression with stats -> its Iceberg type name.
StatsTypes = Mapping[int, str]

_STRUCTS = {"version_info": VERSION_INFO, "deletion_vector": DELETION_VECTOR, "manifest_stats": MANIFEST_STATS}
_ELEMENT_IDS = {"split_offsets": 133, "equality_ids": 136}
_NEVER_IN = {
    ROOT: frozenset[str](),
    DATA: frozenset({"manifest_stats", "deletion_vector", "referenced_file", "equality_ids"}),
    DELETE: frozenset({"manifest_stats", "sort_order_id", "first_row_id"}),
}


def tree_schema(stats: StatsTypes) -> pa.Schema:
    """Return the row type of V4 entries in memory: the content entry, and `content_stats` with the given ids."""
    fields = [pa.field(field.name, _nullable(field.type)) for field in CONTENT_ENTRY]
    return pa.schema([*fields, pa.field(CONTENT_STATS, tree_stats_type(stats))])


def _nullable(kind: pa.DataType) -> pa.DataType:
    """Return a type without required fields, as Spark returns rows."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(child.name, _nullable(child.type)) for child in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _nullable(kind.value_type)))
    return kind


def tree_stats_type(stats: StatsTypes) -> pa.StructType:
    """Return the type of `content_stats` in memory: structs with all children, in order of their ids."""
    structs = {field_id: full_stats_struct(bound_arrow_type(stats[field_id])) for field_id in sorted(stats)}
    return pa.struct([pa.field(str(field_id), kind) for field_id, kind in structs.items()])


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
    stats = _file_stats(whole(table.column(CONTENT_STATS)))
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
    """Return a V4 manifest as rows of `tree_schema`, and its key-value metadata.

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
def open_manifest(source: Any, location: str, *, coalesce: bool = False) -> Iterator[OpenManifest]:
    """Open a V4 manifest to read parts of it.

    Args:
        source: a file that pyarrow accepts.
        location: the file's location, for errors.
        coalesce: whether to read neighbouring columns with one request; for sources that are not in memory.

    Raises:
        CorruptFileError: not a Parquet file, or not a V4 manifest.
        UnsupportedError: a manifest in another layout of V4 trees.
    """
    with _parquet_errors(location):
        file = pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=coalesce)
    with file:
        _refuse_other_layouts(file.schema_arrow, location)
        metadata = file.metadata.metadata or {}
        texts = {key.decode(errors="replace"): value.decode(errors="replace") for key, value in metadata.items()}
        version = texts.get(FORMAT_VERSION_KEY)
        if version != "4":
            raise CorruptFileError(
                location, "format-version", version, "the file is not a manifest of format version 4"
            )
        yield OpenManifest(file, location, texts)


def _refuse_other_layouts(schema: pa.Schema, location: str) -> None:
    """Refuse the layout of the Iceberg project's own trees, whose field ids have other meanings."""
    children = [child for field in schema if pa.types.is_struct(field.type) for child in field.type]
    for name, other_id in _OTHER_LAYOUTS.items():
        if any(field.name == name or (other_id and field_id(field) == other_id) for field in (*schema, *children)):
            raise UnsupportedError(
                f"{location}: the manifest has the field {name}: trees in this layout, which the Iceberg project has "
                "not finished, can't be read; read the table with the library that wrote it"
            )


# Fields of the other layout, with their ids unless these mean something else in this layout, as 147 (tracking) does.
_OTHER_LAYOUTS = {"tracking": None, "column_files": 160}

_parquet_errors = partial(translated_read_errors, field="file", problem="not a Parquet file")


@dataclass(frozen=True)
class OpenManifest:
    """A V4 manifest opened for reading.

    Attributes:
        properties: the file's key-value metadata.
    """

    file: pq.ParquetFile
    location: str
    properties: dict[str, str]

    @property
    def row_groups(self) -> int:
        """The number of row groups in the file."""
        return int(self.file.metadata.num_row_groups)

    def first_row(self, group: int) -> int:
        """Return the ordinal of a row group's first entry."""
        return sum(self.file.metadata.row_group(before).num_rows for before in range(group))

    def bounds(self, group: int, column: str) -> tuple[str, str] | None:
        """Return the bounds of a text field in a row group; None if they are unknown."""
        (name,) = _paths(self.file.schema_arrow, {column}, {}, {}) or (None,)
        chunks = self.file.metadata.row_group(group)
        for index in range(chunks.num_columns if name is not None else 0):
            chunk = chunks.column(index)
            if chunk.path_in_schema == name:
                has_bounds = chunk.is_stats_set and chunk.statistics.has_min_max
                return (chunk.statistics.min, chunk.statistics.max) if has_bounds else None
        return None

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
        with _parquet_errors(self.location):
            names = None if columns is None else _paths(self.file.schema_arrow, columns, stats, fields or {})
            if groups is None:
                table = self.file.read(names, use_threads=False)
            else:
                table = self.file.read_row_groups(list(groups), names, use_threads=False)
            table.validate(full=True)
        rows = _canonical(table, stats, self.location, fields or {})
        return rows if as_written else _with_ordered_bounds(rows, stats, frozenset((fields or {}).values()))


def _paths(schema: pa.Schema, columns: Collection[str], stats: StatsTypes, fields: Mapping[int, int]) -> list[str]:
    """Return the paths in the file of the given fields of the content entry and stats, resolved by field id."""
    ids = {spec.id for spec in CONTENT_ENTRY if spec.name in columns}
    paths = [field.name for field in schema if field_id(field) in ids]
    for field in schema:
        if field_id(field) == CONTENT_STATS_ID and pa.types.is_struct(field.type):
            structs = _stats_indices(field.type, stats)
            paths += [f"{field.name}.{field.type[index].name}" for index in structs.values()]
            lacking = {
                field: stats_id for field, stats_id in fields.items() if stats_id in stats and stats_id not in structs
            }
            nested = _values_in_sources(field.type, lacking)
            paths += [
                f"{field.name}.{path}" for paths_of_bounds in nested.values() for path in paths_of_bounds.values()
            ]
    return paths


def _stats_indices(kind: pa.StructType, stats: StatsTypes) -> dict[int, int]:
    """Return the index in `content_stats` of stats by their id, resolved by field id or else by name."""
    by_id = {field_id(child): index for index, child in enumerate(kind)}
    by_name = {child.name: index for index, child in enumerate(kind)}
    indices = {stats_id: by_id.get(stats_struct_id(stats_id), by_name.get(str(stats_id))) for stats_id in stats}
    return {stats_id: index for stats_id, index in indices.items() if index is not None}


def _values_in_sources(kind: pa.StructType, fields: Mapping[int, int]) -> dict[int, dict[str, str]]:
    """Return the paths of partition values in the stats of source columns, by the id of the fields' stats.

    A path has the key "" for a file's value, or else the name of a bound. See `read_manifest` for `fields`.
    """
    paths: dict[int, dict[str, str]] = {}
    for struct in kind:
        for child in struct.type if pa.types.is_struct(struct.type) else ():
            match = _VALUE_IN_SOURCE.fullmatch(child.name)
            if match and int(match[1]) in fields:
                paths.setdefault(fields[int(match[1])], {})[match[2] or ""] = f"{struct.name}.{child.name}"
    return paths


_VALUE_IN_SOURCE = re.compile(r"partition_(\d{1,9})_.+?(?:_(lower_bound|upper_bound))?")


def is_tree_manifest(data: bytes | memoryview, location: str) -> bool:
    """Return whether a Parquet manifest has the V4 layout, and not the entry layout of versions 1 to 3."""
    with _parquet_errors(location):
        schema = pq.read_schema(pa.BufferReader(data))
    _refuse_other_layouts(schema, location)
    return "version_info" in schema.names


def _canonical(table: pa.Table, stats: StatsTypes, location: str, fields: Mapping[int, int]) -> pa.Table:
    present = {field_id(field): index for index, field in enumerate(table.schema) if field_id(field) is not None}
    columns = []
    for spec in CONTENT_ENTRY:
        values = whole(table.column(present[spec.id])) if spec.id in present else None
        columns.append(_read_field(values, spec, len(table), location))
    raw = whole(table.column(present[CONTENT_STATS_ID])) if CONTENT_STATS_ID in present else None
    columns.append(_read_stats(raw, stats, len(table), location, fields))
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


def _read_field(values: pa.Array | None, spec: FieldSpec, rows: int, location: str) -> pa.Array:
    kind = _nullable(spec.type)
    if values is None:
        return pa.nulls(rows, kind)
    if spec.name in _STRUCTS:
        return _read_struct(values, kind, _STRUCTS[spec.name], f"{spec.name}.", location)
    return _cast(values, kind, spec.name, location)


def _read_struct(
    values: pa.Array,
    kind: pa.StructType,
    children: Iterable[FieldSpec],
    prefix: str,
    location: str,
    *,
    named: bool = False,
    type_name: str = "",
) -> pa.StructArray:
    """Return a struct with its children resolved by id. Null structs stay null.

    Args:
        values: the struct in the file.
        kind: the type to return.
        children: the fields of the type.
        prefix: the beginning of the children's names in errors.
        location: the file, for errors.
        named: whether to resolve children without an id by name.
        type_name: the Iceberg type of the column, for its bounds.
    """
    if not pa.types.is_struct(values.type):
        raise CorruptFileError(location, prefix.rstrip("."), values.type, "it is not a struct")
    indices = {field_id(field): index for index, field in enumerate(values.type)}
    names = (
        {_PROPOSED_NAMES.get(field.name, field.name): index for index, field in enumerate(values.type)} if named else {}
    )
    flat = values.flatten()
    arrays = [
        pa.nulls(len(values), child.type)
        if (index := indices.get(child.id, names.get(child.name))) is None
        else _cast(flat[index], child.type, prefix + child.name, location, type_name if child.name in BOUNDS else "")
        for child in children
    ]
    return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=values.is_null())


# Names of stats in the proposal's examples (semantics 17.1).
_PROPOSED_NAMES = {
    "null_count": "null_value_count",
    "nan_count": "nan_value_count",
    "average_uncompressed_length": "avg_value_size_in_bytes",
}


def _read_stats(
    values: pa.Array | None, stats: StatsTypes, rows: int, location: str, fields: Mapping[int, int]
) -> pa.StructArray:
    kind = tree_stats_type(stats)
    if values is None:
        return pa.nulls(rows, kind)
    if not pa.types.is_struct(values.type):
        raise CorruptFileError(location, CONTENT_STATS, values.type, "it is not a struct")
    indices = _stats_indices(values.type, stats)
    in_sources = _values_in_sources(
        values.type, {field: source for field, source in fields.items() if source not in indices}
    )
    flat = values.flatten()
    structs = []
    for stats_id in sorted(stats):
        struct_type = kind.field(str(stats_id)).type
        index = indices.get(stats_id)
        if index is None:
            paths = in_sources.get(stats_id)
            structs.append(
                pa.nulls(rows, struct_type)
                if paths is None
                else _of_source(values, paths, struct_type, location, stats[stats_id])
            )
            continue
        children = stats_children(stats_id, bound_arrow_type(stats[stats_id]))
        prefix = f"{CONTENT_STATS}.{stats_id}."
        kind_name = stats[stats_id]
        structs.append(
            _read_struct(flat[index], struct_type, children, prefix, location, named=True, type_name=kind_name)
        )
    if not structs:
        return pa.array([{}] * rows, kind)
    return pa.StructArray.from_arrays(structs, fields=list(kind), mask=values.is_null())


def _of_source(
    values: pa.StructArray, paths: Mapping[str, str], kind: pa.StructType, location: str, type_name: str
) -> pa.StructArray:
    """Return the stats of a partition field from values at paths of `_values_in_sources`."""
    bound, nothing = kind.field("lower_bound").type, pa.nulls(len(values), kind.field("lower_bound").type)

    def read(bound_name: str) -> pa.Array:
        if bound_name not in paths:
            return nothing
        raw = pc.struct_field(values, paths[bound_name].split(".", 1))
        return _cast(raw, bound, f"{CONTENT_STATS}.{paths[bound_name]}", location, type_name)

    value = read("")
    bounds = {name: pc.coalesce(read(name), value) for name in BOUNDS}
    children = [bounds.get(child.name, pa.nulls(len(values), child.type)) for child in kind]
    sources = [pc.struct_field(values, [path.split(".", 1)[0]]) for path in paths.values()]
    is_known = reduce(pc.or_, (source.is_valid() for source in sources))
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=pc.invert(is_known))


def _cast(values: pa.Array, kind: pa.DataType, name: str, location: str, type_name: str = "") -> pa.Array:
    if values.type == kind:
        return values
    try:
        return promoted_days(values, type_name).cast(kind)
    except (pa.ArrowException, ValueError) as error:
        raise CorruptFileError(location, name, values.type, f"not {kind}: {error}"[:200]) from error


def _file_field(spec: FieldSpec) -> pa.Field:
    kind = spec.type
    if spec.name in _STRUCTS:
        kind = pa.struct([with_field_id(child.arrow, child.id) for child in _STRUCTS[spec.name]])
    elif spec.name in _ELEMENT_IDS:
        kind = pa.list_(with_field_id(kind.value_field, _ELEMENT_IDS[spec.name]))
    return with_field_id(pa.field(spec.name, kind, nullable=not spec.required), spec.id)


def _file_stats(stats: pa.StructArray) -> pa.StructArray | None:
    """Return the stats that any row has, with field ids; None if there are none."""
    structs, fields = [], []
    for field, values in zip(stats.type, stats.flatten(), strict=True):
        stats_id = int(field.name)
        if values.null_count == len(values):
            continue
        flat = dict(zip((child.name for child in field.type), values.flatten(), strict=True))
        specs = stats_children(stats_id, field.type.field("lower_bound").type)
        written_specs = [
            spec for spec in specs if flat[spec.name].null_count < len(values) or spec.name in _ALWAYS_WRITTEN
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
