"""Read manifests in the layout of the Iceberg project as rows of `tree_schema` (docs/layout.md).

In this layout, an entry of a data file holds the file's deletion vector, and an entry of a leaf the deletion vector of
the leaf. In memory, both vectors are entries of their own, as in the layout of the proposal. Without Spark: tasks
import this.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparkmeta.entries.projection import CONTENT_STATS
from sparkmeta.errors import CorruptFileError, UnsupportedError
from sparkmeta.expr.arrays import field_id, whole
from sparkmeta.manifests.v4.fields import STRUCTS, StatsTypes, cast_field, nullable_type, read_stats, with_version
from sparkmeta.spec.bitmap import PositionBitmap, write_deletion_vector
from sparkmeta.spec.entry import BOUNDS, CONTENT_ENTRY, PARTITION_FIELD_ID, ContentType, Status, stats_struct_id
from sparkmeta.spec.mumbling import read_mumbling

VECTORS: Final = "VECTORS"
"""The file format of manifests that represent the deletion vectors in a data leaf."""

NOT_AN_ENTRY: Final = 3
"""The status of rows that are no entries in memory, such as an entry before its deletion vector changed."""


class Change(IntEnum):
    """The status of an entry in a file (field 0)."""

    EXISTING = 0
    ADDED = 1
    DELETED = 2
    REPLACED = 3
    MODIFIED = 4


_TRACKING, _FORMAT_VERSION, _VECTOR, _INFO, _STATS = 147, 157, 148, 150, 146
_COLUMN_FILES = 158
_MANIFEST_DV, _DV_CARDINALITY = 522, 523
_STATUS, _SNAPSHOT, _DV_SNAPSHOT, _DELETED_POSITIONS, _REPLACED_POSITIONS = 0, 1, 5, 6, 7
# Fields of `tracking` in leaves; the others are read from roots.
_READ_TRACKING = (_STATUS, _SNAPSHOT, 3, 4, _DV_SNAPSHOT, 142)
_VECTOR_LOCATION, _OFFSET, _SIZE, _CARDINALITY = 155, 144, 145, 156
# Counts of replaced entries, which count as deleted ones in memory.
_REPLACED_COUNTS = {"deleted_files_count": 520, "deleted_rows_count": 521}
# Counts of modified entries, which count as existing ones in memory.
_MODIFIED_COUNTS = {"existing_files_count": 524, "existing_rows_count": 525}

# Field of the content entry -> its id in this layout, if it is a field of the entry itself.
_IDS = {spec.name: spec.id for spec in CONTENT_ENTRY if spec.id in (100, 101, 103, 104, 131, 132, 134, 135, 140)}
_IDS["partition_spec_id"] = 141
_LEAVES = (ContentType.DATA_MANIFEST, ContentType.DELETE_MANIFEST)

# Status in the file -> status in memory, of entries and of the deletion vectors in them.
_STATUS_OF_ENTRY = {
    Change.EXISTING: Status.EXISTING,
    Change.ADDED: Status.ADDED,
    Change.DELETED: Status.DELETED,
    Change.REPLACED: NOT_AN_ENTRY,
    Change.MODIFIED: Status.EXISTING,
}
_STATUS_OF_VECTOR = {
    Change.EXISTING: Status.EXISTING,
    Change.ADDED: Status.ADDED,
    Change.DELETED: Status.DELETED,
    Change.REPLACED: Status.DELETED,
    Change.MODIFIED: Status.ADDED,
}


def has_iceberg_layout(schema: pa.Schema) -> bool:
    """Return whether a Parquet manifest has the layout of the Iceberg project: field 147 has the status of entries."""
    return any(
        field_id(field) == _TRACKING
        and pa.types.is_struct(field.type)
        and any(field_id(child) == _STATUS for child in field.type)
        for field in schema
    )


def refuse_unfinished(schema: pa.Schema, location: str) -> None:
    """Raise UnsupportedError for manifests of an earlier prototype of the Iceberg project."""
    if not any(field_id(field) == _FORMAT_VERSION for field in schema):
        raise UnsupportedError(
            f"{location}: the manifest lacks the field format_version (157): trees of this prototype of the Iceberg "
            "project can't be read; read the table with the library that wrote it"
        )


def iceberg_paths(
    schema: pa.Schema, columns: Collection[str], stats: StatsTypes, fields: Mapping[int, int], *, vectors: bool = False
) -> list[str]:
    """Return the paths in the file of fields of the content entry, of stats and of partition fields.

    Versions and statistics of manifests are always read: they are small. See `read_manifest`.

    Args:
        schema: the schema of the file.
        columns: the fields of the content entry.
        stats: the ids of the stats, and their types.
        fields: partition field id -> id of the stats that hold its values in memory.
        vectors: whether the entries' deletion vectors are read, instead of the entries.
    """
    names = ("location", "partition_spec_id") if vectors else ("content_type", *columns)
    ids = {_IDS[name] for name in names if name in _IDS} | {_COLUMN_FILES, _VECTOR if vectors else _INFO}
    structs = set() if vectors else {stats_struct_id(stats_id) for stats_id in stats}
    wanted_children = {_STATS: structs, PARTITION_FIELD_ID: {*fields}, _TRACKING: {*_READ_TRACKING}}
    paths = [field.name for field in schema if field_id(field) in ids]
    for field in schema:
        if pa.types.is_struct(field.type):
            wanted = wanted_children.get(field_id(field) or 0, set())
            paths += [f"{field.name}.{child.name}" for child in field.type if field_id(child) in wanted]
    return paths


def lacks_vectors(file: pq.ParquetFile) -> bool:
    """Return whether no entry of a manifest has a deletion vector, by the statistics in the footer."""
    field = next((field for field in file.schema_arrow if field_id(field) == _VECTOR), None)
    if field is None:
        return True
    if not pa.types.is_struct(field.type):
        return False
    # A required child is null only in null structs.
    required = {f"{field.name}.{child.name}" for child in field.type if not child.nullable}
    groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
    return all(any(_is_null(group.column(index), required) for index in range(group.num_columns)) for group in groups)


def _is_null(chunk: pq.ColumnChunkMetaData, paths: Collection[str]) -> bool:
    """Return whether a column chunk has one of the paths, and only nulls."""
    if chunk.path_in_schema not in paths or not chunk.is_stats_set:
        return False
    statistics = chunk.statistics
    return bool(statistics.has_null_count and statistics.null_count == chunk.num_values)


def iceberg_rows(
    table: pa.Table, schema: pa.Schema, stats: StatsTypes, location: str, fields: Mapping[int, int], *, vectors: bool
) -> pa.Table:
    """Return a row of `tree_schema` for each entry of a manifest, or for the deletion vector in it.

    Rows without a counterpart have the status `NOT_AN_ENTRY`, so that the number of a row stays the entry's ordinal.

    Args:
        table: the columns of the file.
        schema: the `tree_schema` of the result.
        stats: the ids of the stats to read, and their types.
        location: the file's location, for errors.
        fields: partition field id -> id of the stats that hold its values in memory.
        vectors: whether to return the deletion vectors.

    Raises:
        CorruptFileError: a field has another type, or lacks a required value.
    """
    entries = _Entries(table, location)
    return entries.rows(schema, entries.stats(stats, fields, vectors=vectors), vectors=vectors)


def entries_only(rows: pa.Table, ordinals: pa.Array) -> tuple[pa.Table, pa.Array]:
    """Return rows and their ordinals without those that are no entries (`NOT_AN_ENTRY`)."""
    status = pc.struct_field(rows.column("version_info"), "status")
    is_entry = pc.not_equal(status, NOT_AN_ENTRY)
    if pc.all(is_entry).as_py() is not False:
        return rows, ordinals
    # Filters of nested columns are slow, even of nulls.
    count = whole(is_entry).true_count
    columns = [
        pa.nulls(count, values.type) if values.null_count == len(values) else values.filter(is_entry)
        for values in rows.columns
    ]
    return pa.Table.from_arrays(columns, schema=rows.schema), ordinals.filter(whole(is_entry))


@dataclass(frozen=True)
class _Entries:
    """The columns of a manifest.

    Attributes:
        table: the columns that were read.
        location: the file's location, for errors.
    """

    table: pa.Table
    location: str

    def rows(self, schema: pa.Schema, stats: pa.StructArray, *, vectors: bool) -> pa.Table:
        """Return the rows of `iceberg_rows` with `content_stats`."""
        self.refuse_column_files()
        columns = self.vector_columns() if vectors else self.columns()
        columns[CONTENT_STATS] = stats
        arrays = [columns.get(field.name, pa.nulls(len(self.table), field.type)) for field in schema]
        return pa.Table.from_arrays(arrays, schema=schema)

    def columns(self) -> dict[str, pa.Array]:
        """Return the fields of the entries themselves."""
        columns = {name: self._field(name) for name in _IDS}
        content = columns["content_type"]
        self._refuse_unknown("content_type", content, _CONTENTS)
        snapshots = self._tracking(_SNAPSHOT, pa.int64())
        columns["version_info"] = self._versions(self._statuses(_STATUS_OF_ENTRY), snapshots)
        columns["manifest_stats"] = self._manifest_stats(pc.is_in(content, pa.array([*map(int, _LEAVES)], pa.int32())))
        columns["first_row_id"] = self._tracking(142, pa.int64())
        return columns

    def vector_columns(self) -> dict[str, pa.Array]:
        """Return the fields of the deletion vectors in entries of data files."""
        vectors = self._struct(_VECTOR)
        has_vector = pa.repeat(False, len(self.table)) if vectors is None else vectors.is_valid()
        values = {
            "location": self._child(_VECTOR, _VECTOR_LOCATION, pa.string()),
            "offset": self._child(_VECTOR, _OFFSET, pa.int64()),
            "size_in_bytes": self._child(_VECTOR, _SIZE, pa.int64()),
            "record_count": self._child(_VECTOR, _CARDINALITY, pa.int64()),
        }
        for name, array in values.items():
            if pc.any(pc.and_(has_vector, array.is_null())).as_py():
                raise CorruptFileError(self.location, f"deletion_vector.{name}", None, "the field is required")
        kind = nullable_type(_TYPES["deletion_vector"])
        inline = pa.nulls(len(self.table), pa.binary())
        vector = pa.StructArray.from_arrays([values["offset"], values["size_in_bytes"], inline], fields=list(kind))
        status = pc.if_else(has_vector, self._statuses(_STATUS_OF_VECTOR), pa.scalar(NOT_AN_ENTRY, pa.int32()))
        file_snapshots, vector_snapshots = (self._tracking(number, pa.int64()) for number in (_SNAPSHOT, _DV_SNAPSHOT))
        is_removed = pc.equal(status, int(Status.DELETED))
        snapshots = pc.if_else(is_removed, file_snapshots, pc.coalesce(vector_snapshots, file_snapshots))
        return {
            "content_type": pa.repeat(pa.scalar(int(ContentType.POSITION_DELETES), pa.int32()), len(self.table)),
            "location": values["location"],
            "file_format": pa.repeat(pa.scalar("PUFFIN"), len(self.table)),
            "version_info": self._versions(status, snapshots, has_numbers=False),
            "deletion_vector": vector,
            "partition_spec_id": self._field("partition_spec_id"),
            "record_count": values["record_count"],
            # Entries tell no size of the Puffin file. It has at least the bytes up to the end of the vector.
            "file_size_in_bytes": pc.add(values["offset"], values["size_in_bytes"]),
            "referenced_file": self._field("location"),
        }

    def refuse_column_files(self) -> None:
        """Raise UnsupportedError if an entry has column files."""
        files = self._columns.get(_COLUMN_FILES)
        if files is not None and files.null_count < len(files):
            raise UnsupportedError(f"{self.location}: entries have column files (158), which can't be read")

    def manifest_vectors(self) -> list[dict[str, Any]]:
        """Return the deletion vectors of leaves: row number, positions, and positions that the commit removed."""
        vectors = self._child(_INFO, _MANIFEST_DV, pa.binary())
        rows = np.flatnonzero(vectors.is_valid().to_numpy(zero_copy_only=False)).tolist()
        counts = self._child(_INFO, _DV_CARDINALITY, pa.int64())
        changes = {number: self._tracking(number, pa.binary()) for number in (_DELETED_POSITIONS, _REPLACED_POSITIONS)}
        result = []
        for row in rows:
            positions = self._positions(vectors, row, "manifest_info.dv")
            count = counts[row].as_py()
            if count is not None and count != len(positions):
                problem = f"the deletion vector has {len(positions)} positions"
                raise CorruptFileError(self.location, "manifest_info.dv_cardinality", count, problem)
            deleted = self._positions(changes[_DELETED_POSITIONS], row, "tracking.deleted_positions")
            result.append({"row": row, "positions": positions, "removed": deleted})
        return result

    def statuses(self) -> pa.Array:
        """Return the statuses in the file."""
        return self._tracking(_STATUS, pa.int32())

    def vector_snapshots(self) -> pa.Array:
        """Return the snapshots that changed deletion vectors."""
        return self._tracking(_DV_SNAPSHOT, pa.int64())

    def format_versions(self) -> pa.Array:
        """Return the format versions of the manifests that entries are for."""
        values = self._columns.get(_FORMAT_VERSION)
        return pa.nulls(len(self.table), pa.int32()) if values is None else values.cast(pa.int32())

    # -- fields -----------------------------------------------------------------------------------------------------

    @cached_property
    def _columns(self) -> dict[int, pa.Array]:
        columns = zip(self.table.schema, self.table.columns, strict=True)
        return {number: whole(values) for field, values in columns if (number := field_id(field)) is not None}

    @cached_property
    def _children(self) -> dict[int, dict[int, tuple[str, pa.Array]]]:
        """The name and the values of the fields of each struct, null where the struct is."""
        structs = {number: values for number, values in self._columns.items() if pa.types.is_struct(values.type)}
        return {
            number: {
                child: (field.name, array)
                for field, array in zip(values.type, values.flatten(), strict=True)
                if (child := field_id(field)) is not None
            }
            for number, values in structs.items()
            if number != _STATS
        }

    def _struct(self, number: int) -> pa.StructArray | None:
        values = self._columns.get(number)
        if values is not None and not pa.types.is_struct(values.type):
            raise CorruptFileError(self.location, f"field {number}", str(values.type), "it is not a struct")
        return values

    def _child(self, parent: int, number: int, kind: pa.DataType) -> pa.Array:
        """Return a field of a struct; nulls if the file lacks it."""
        self._struct(parent)
        if number not in self._children.get(parent, {}):
            return pa.nulls(len(self.table), kind)
        name, values = self._children[parent][number]
        return cast_field(values, kind, name, self.location)

    def _tracking(self, number: int, kind: pa.DataType) -> pa.Array:
        return self._child(_TRACKING, number, kind)

    def _field(self, name: str) -> pa.Array:
        values, kind = self._columns.get(_IDS[name]), nullable_type(_TYPES[name])
        if values is None:
            return pa.nulls(len(self.table), kind)
        return cast_field(values, kind, name, self.location)

    def _statuses(self, statuses: Mapping[Change, int]) -> pa.Array:
        values = self.statuses()
        self._refuse_unknown("tracking.status", values, pa.array([*map(int, Change)], pa.int32()))
        return pa.array([int(statuses[change]) for change in Change], pa.int32()).take(values)

    def _refuse_unknown(self, name: str, values: pa.Array, known: pa.Array) -> None:
        unknown = values.filter(pc.invert(pc.is_in(values, known)))
        if len(unknown):
            numbers = ", ".join(map(str, known.to_pylist()))
            raise CorruptFileError(self.location, name, unknown[0].as_py(), f"not one of {numbers}")

    def _versions(self, status: pa.Array, snapshots: pa.Array, *, has_numbers: bool = True) -> pa.StructArray:
        kind = nullable_type(_TYPES["version_info"])
        nothing = pa.nulls(len(status), pa.int64())
        numbers = [self._tracking(number, pa.int64()) if has_numbers else nothing for number in (3, 4)]
        return pa.StructArray.from_arrays([status, snapshots, *numbers], fields=list(kind))

    def _manifest_stats(self, is_leaf: pa.Array) -> pa.StructArray:
        kind = nullable_type(_TYPES["manifest_stats"])
        children = []
        for spec in STRUCTS["manifest_stats"]:
            values = self._child(_INFO, spec.id, spec.type)
            for others in (_REPLACED_COUNTS, _MODIFIED_COUNTS):
                if spec.name in others:
                    counts = self._child(_INFO, others[spec.name], spec.type)
                    values = pc.add(values, pc.fill_null(counts, 0)).cast(spec.type)
            children.append(values)
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=pc.invert(is_leaf))

    def _positions(self, values: pa.Array, row: int, name: str) -> np.ndarray[Any, np.dtype[np.int64]]:
        data = values[row].as_py()
        return np.empty(0, np.int64) if data is None else read_mumbling(data, self.location, name)

    # -- statistics -------------------------------------------------------------------------------------------------

    def stats(self, stats: StatsTypes, fields: Mapping[int, int], *, vectors: bool) -> pa.StructArray:
        """Return `content_stats`, whose bounds hold partition values as in the layout of the proposal.

        Deletion vectors have no others, since the statistics in their entry describe the data file.
        """
        known = None if vectors else self._resolved_stats()
        content = read_stats(known, stats, len(self.table), self.location, {})
        corrected: dict[str, pa.StructArray] = {}
        for partition_field, source in fields.items():
            name = str(source)
            if source in stats:
                struct = corrected.get(name, _child_of(content, name))
                kind = struct.type.field("lower_bound").type
                corrected[name] = _with_value(struct, self._child(PARTITION_FIELD_ID, partition_field, kind))
        if not corrected:
            return content
        structs = [corrected.get(field.name, _child_of(content, field.name)) for field in content.type]
        return pa.StructArray.from_arrays(structs, fields=list(content.type))

    def _resolved_stats(self) -> pa.StructArray | None:
        """Return the file's statistics without names, which are not significant, and without bounds of geometries."""
        values = self._struct(_STATS)
        if values is None:
            return None
        structs: list[pa.Array] = []
        fields: list[pa.Field] = []
        for field, struct in zip(values.type, values.flatten(), strict=True):
            if not pa.types.is_struct(field.type):
                continue
            indices = [index for index, child in enumerate(field.type) if not pa.types.is_struct(child.type)]
            flat, children = struct.flatten(), [field.type[index].with_name(f"_{index}") for index in indices]
            structs.append(
                pa.StructArray.from_arrays([flat[index] for index in indices], fields=children, mask=struct.is_null())
                if children
                else pa.array([{}] * len(values), pa.struct([]))
            )
            fields.append(field.with_name(f"_{len(fields)}").with_type(structs[-1].type))
        if not fields:
            return None
        return pa.StructArray.from_arrays(structs, fields=fields, mask=values.is_null())


_TYPES = {spec.name: spec.type for spec in CONTENT_ENTRY}
_CONTENTS = pa.array([0, 2, 3, 4], pa.int32())


def _child_of(values: pa.StructArray, name: str) -> pa.StructArray:
    """Return a field of a struct, null where the struct is."""
    return pc.struct_field(values, [name])


def _with_value(struct: pa.StructArray, value: pa.Array) -> pa.StructArray:
    """Return the stats of a column or expression with a partition value, which all its rows have.

    The stats of entries without a value keep their bounds, but are not null: a null value is known.
    """
    is_nan = pc.is_nan(value) if pa.types.is_floating(value.type) else pa.repeat(False, len(value))
    is_nan, has_value = pc.fill_null(is_nan, False), value.is_valid()
    bound = pc.if_else(is_nan, pa.scalar(None, value.type), value)
    children = {}
    for child, values in zip(struct.type, struct.flatten(), strict=True):
        children[child.name] = values
        if child.name in BOUNDS:
            children[child.name] = pc.if_else(has_value, bound, values)
        elif child.name == "nan_value_count":
            at_least_one = pc.max_element_wise(values, pa.scalar(1, pa.int64()))
            children[child.name] = pc.if_else(is_nan, at_least_one, values)
    return pa.StructArray.from_arrays([*children.values()], fields=list(struct.type))


# -- Roots ------------------------------------------------------------------------------------------------------------


def iceberg_root(
    table: pa.Table, schema: pa.Schema, stats: StatsTypes, location: str, fields: Mapping[int, int], *, spec_id: int
) -> pa.Table:
    """Return the entries of a root as rows of `tree_schema`, followed by entries for its deletion vectors.

    The vectors of a leaf's files are in a manifest of their own, of the format `VECTORS`, at the location of the leaf.

    Args:
        table: the columns of the file.
        schema: the `tree_schema` of the result.
        stats: the ids of the stats to read, and their types.
        location: the root's location.
        fields: see `iceberg_rows`.
        spec_id: the partition spec of leaves that name none, since their files have several.
    """
    nothing = pa.repeat(0, len(table))
    columns = _Entries(table, location)
    entries, vectors = (
        columns.rows(schema, columns.stats(stats, fields, vectors=of_vectors), vectors=of_vectors)
        for of_vectors in (False, True)
    )
    index = entries.column_names.index("partition_spec_id")
    specs = pc.fill_null(entries.column(index), pa.scalar(spec_id, pa.int32()))
    entries = entries.set_column(index, entries.schema.field(index), specs)
    parts = [
        entries_only(entries, nothing)[0],
        entries_only(_numbered(vectors, entries), nothing)[0],
        _manifest_dvs(entries, columns, schema),
        vector_leaves(_data_leaves(entries, columns)),
    ]
    return pa.concat_tables(parts).combine_chunks()


def _numbered(vectors: pa.Table, entries: pa.Table) -> pa.Table:
    """Return the deletion vectors of a root's files with sequence numbers, which the layout does not tell.

    Older vectors get the numbers of their files, as the least that they may have.
    """
    info, of_entries = (whole(rows.column("version_info")) for rows in (vectors, entries))
    status, snapshots, *numbers = info.flatten()
    is_added = pc.equal(status, int(Status.ADDED))
    of_files = of_entries.flatten()[-len(numbers) :]
    children = [pc.if_else(is_added, new, old) for new, old in zip(numbers, of_files, strict=True)]
    return with_version(vectors, [status, snapshots, *children])


def _manifest_dvs(entries: pa.Table, columns: _Entries, schema: pa.Schema) -> pa.Table:
    """Return entries for the deletion vectors of leaves. A changed vector is preceded by the DELETED one before it."""
    vectors = columns.manifest_vectors()
    leaves = entries.to_pylist() if vectors else []
    statuses, snapshots = columns.statuses().to_pylist(), columns.vector_snapshots().to_pylist()
    rows = []
    for vector in vectors:
        leaf, change = leaves[vector["row"]], statuses[vector["row"]]
        version = leaf["version_info"]
        snapshot_id = snapshots[vector["row"]] or version["snapshot_id"]
        before = np.setdiff1d(vector["positions"], vector["removed"])
        is_changed = change == Change.MODIFIED
        status = _STATUS_OF_VECTOR[Change(change)]
        for positions, of_vector in ((before, Status.DELETED), (vector["positions"], status)):
            if len(positions) and (is_changed or of_vector == status):
                versions = version | {"status": int(of_vector), "snapshot_id": snapshot_id}
                rows.append(_manifest_dv(leaf, positions, versions))
    return pa.Table.from_pylist(rows, schema=schema)


def _manifest_dv(
    leaf: Mapping[str, Any], positions: np.ndarray[Any, np.dtype[np.int64]], version: Mapping[str, Any]
) -> dict[str, Any]:
    blob = write_deletion_vector(PositionBitmap.of(positions))
    return {
        "content_type": int(ContentType.MANIFEST_DELETION_VECTOR),
        "file_format": "PUFFIN",
        "version_info": version,
        "deletion_vector": {"inline_content": blob},
        "partition_spec_id": leaf["partition_spec_id"],
        "record_count": len(positions),
        "referenced_file": leaf["location"],
    }


def _data_leaves(entries: pa.Table, columns: _Entries) -> pa.Table:
    """Return the entries of data leaves of this layout."""
    is_data = pc.equal(entries.column("content_type"), int(ContentType.DATA_MANIFEST))
    has_layout = pc.fill_null(pc.not_equal(columns.format_versions(), 0), True)
    return entries.filter(pc.and_(is_data, has_layout))


def vector_leaves(leaves: pa.Table) -> pa.Table:
    """Return the root's entries for the deletion vectors in data leaves of this layout."""
    schema = leaves.schema
    replaced = {
        "content_type": pa.repeat(pa.scalar(int(ContentType.DELETE_MANIFEST), pa.int32()), len(leaves)),
        "file_format": pa.repeat(pa.scalar(VECTORS), len(leaves)),
        "first_row_id": pa.nulls(len(leaves), pa.int64()),
        "referenced_file": leaves.column("location"),
        CONTENT_STATS: pa.nulls(len(leaves), schema.field(CONTENT_STATS).type),
    }
    arrays = [replaced.get(name, leaves.column(name)) for name in schema.names]
    return pa.Table.from_arrays(arrays, schema=schema)
