"""Write manifests in the layout of the Iceberg project from rows of `tree_schema` (docs/layout.md).

In this layout, the entry of a data file holds the file's deletion vector. Leaves are written from rows with the column
`vector`; in a root, deletion vectors are rows of their own. Without Spark: tasks import this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.entries.locations import spelled
from sparkmeta.entries.projection import CONTENT_STATS
from sparkmeta.errors import ValidationError
from sparkmeta.expr.arrays import indices_where, whole, with_field_id
from sparkmeta.expr.bounds import UNORDERED, bound_arrow_type
from sparkmeta.manifests.parquet_file import parquet_bytes
from sparkmeta.manifests.v4.colocated import VECTOR, VECTOR_TYPE, with_vectors
from sparkmeta.manifests.v4.fields import partition_value
from sparkmeta.manifests.v4.iceberg_layout import Change
from sparkmeta.manifests.v4.layout import CONTENT_KEY, FORMAT_VERSION_KEY, ROOT, TreeTypes, file_stats
from sparkmeta.manifests.v4.root import LEAVES, MANIFEST_DVS, in_files, one_of
from sparkmeta.manifests.v4.tree_manifests import UPGRADED_KEY
from sparkmeta.spec.bitmap import PositionBitmap, read_inline_vector
from sparkmeta.spec.entry import BOUNDS, PARTITION_FIELD_ID, ContentType, Status
from sparkmeta.spec.locations import Locations
from sparkmeta.spec.mumbling import MOST_POSITIONS, write_mumbling

# -- Leaves -----------------------------------------------------------------------------------------------------------


def write_iceberg_leaf(rows: pa.Table, types: TreeTypes) -> bytes:
    """Return the bytes of a leaf with rows of `colocated_schema`, all of data files or all of equality deletes."""
    is_data = len(rows) and rows.column("content_type")[0].as_py() == ContentType.DATA
    vectors = whole(rows.column(VECTOR))
    statuses = _leaf_statuses(pc.struct_field(rows.column("version_info"), "status"), vectors)
    table = _file_table(_Rows.of(rows.drop_columns([VECTOR]), statuses, vectors), types)
    return parquet_bytes(table, _metadata("data" if is_data else "equality-deletes"))


def _leaf_statuses(status: Any, vectors: pa.StructArray) -> pa.Array:
    """Return the statuses in a file of entries, which are MODIFIED if only their deletion vectors are new."""
    is_modified = pc.and_(pc.equal(whole(status), int(Status.EXISTING)), _are_new(vectors))
    return pc.if_else(is_modified, pa.scalar(int(Change.MODIFIED), pa.int32()), whole(status))


def _are_new(vectors: pa.StructArray) -> pa.Array:
    """Return whether each deletion vector, a value of the column `vector`, is ADDED; false for none."""
    return pc.fill_null(pc.equal(pc.struct_field(vectors, "status"), int(Status.ADDED)), False)


# -- Roots ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Moves:
    """Data files that move out of their leaves because their deletion vectors change.

    Locations are spelled as in the root.

    Attributes:
        masks: leaf location -> ordinals of the files' entries before the change.
        files: locations of files that are in the root after the change.
    """

    masks: Mapping[str, PositionBitmap] = field(default_factory=dict)
    files: frozenset[str] = frozenset()

    @staticmethod
    def of(masks: Mapping[str, PositionBitmap], files: pa.Table | None, locations: Locations) -> Moves:
        """Return the moves of files, rows of `tree_schema`.

        Args:
            masks: see `masks`, with absolute locations.
            files: the files that are in the root after the change.
            locations: spells the locations.
        """
        places = () if files is None else spelled(whole(files.column("location")), locations).to_pylist()
        return Moves({locations.written(leaf): ordinals for leaf, ordinals in masks.items()}, frozenset(places))


class RootStamp(Protocol):
    """The numbers of the commit that writes a root."""

    @property
    def snapshot_id(self) -> int:
        """The id of the root's snapshot. Leaves that it has written are ADDED."""

    @property
    def first_row_id(self) -> int:
        """The first row id of leaves whose entries have their own ids."""


def write_iceberg_root(
    table: pa.Table, types: TreeTypes, moves: Moves, stamp: RootStamp, properties: Mapping[str, str]
) -> bytes:
    """Return the bytes of a root with rows of `tree_schema`.

    Entries before a change of their deletion vector are REPLACED, unless they are masked in a leaf.

    Args:
        table: the rows. Deletion vectors are rows of their own.
        types: the types of the table's V4 manifests.
        moves: the files that the commit moves.
        stamp: the commit's numbers.
        properties: further key-value metadata of the file.

    Raises:
        ValidationError: a manifest has more entries than its deletion vector can mask.
    """
    leaves = _with_first_row_ids(in_files(table.filter(one_of(table, LEAVES))), stamp.first_row_id)
    masks = table.filter(one_of(table, MANIFEST_DVS))
    files = table.filter(one_of(table, (ContentType.DATA, ContentType.EQUALITY_DELETES)))
    vectors = table.filter(one_of(table, (ContentType.POSITION_DELETES,)))
    parts = [_leaf_rows(leaves, masks, moves, stamp.snapshot_id), *_file_rows(files, vectors, moves)]
    rows = _Rows(*(_joined(values) for values in zip(*parts, strict=True)))
    written = _file_table(rows, types, in_root=True, upgraded=int(properties.get(UPGRADED_KEY, -1)))
    return parquet_bytes(written, {**_metadata(ROOT), **properties}, whole=True)


class _Rows(NamedTuple):
    """Entries of a file.

    Attributes:
        entries: rows of `tree_schema`.
        statuses: their statuses in the file.
        snapshots: their snapshot ids in the file.
        vectors: the deletion vectors in them, values of the column `vector`.
        masks: the deletion vectors of leaves, values of `_MASK_TYPE`.
    """

    entries: pa.Table
    statuses: pa.Array
    snapshots: pa.Array
    vectors: pa.StructArray
    masks: pa.StructArray

    @staticmethod
    def of(entries: pa.Table, statuses: pa.Array, vectors: pa.StructArray | None = None) -> _Rows:
        """Return entries with their own snapshot ids. By default, they have no deletion vectors."""
        snapshots = pc.struct_field(whole(entries.column("version_info")), "snapshot_id")
        without = pa.nulls(len(entries), VECTOR_TYPE)
        masks = pa.nulls(len(entries), _MASK_TYPE)
        return _Rows(entries, statuses, snapshots, without if vectors is None else vectors, masks)

    def take(self, rows: pa.Array) -> _Rows:
        """Return some of the entries."""
        return _Rows(*(values.take(rows) for values in self))


def _joined(parts: Sequence[Any]) -> Any:
    return pa.concat_tables(parts).combine_chunks() if isinstance(parts[0], pa.Table) else pa.concat_arrays(parts)


def _with_first_row_ids(leaves: pa.Table, first_row_id: int) -> pa.Table:
    """Return leaves with a first row id for each data leaf: without it, readers ignore the ids of its entries."""
    is_data = pc.equal(leaves.column("content_type"), int(ContentType.DATA_MANIFEST))
    default = pc.if_else(is_data, pa.scalar(first_row_id, pa.int64()), pa.scalar(None, pa.int64()))
    index = leaves.column_names.index("first_row_id")
    ids = pc.coalesce(leaves.column("first_row_id"), default)
    return leaves.set_column(index, leaves.schema.field(index), ids)


def _file_rows(files: pa.Table, vectors: pa.Table, moves: Moves) -> list[_Rows]:
    """Return the entries of a root's files: pairs of REPLACED and MODIFIED ones for changed deletion vectors."""
    vector_status = pc.struct_field(vectors.column("version_info"), "status")
    is_removed = pc.equal(vector_status, int(Status.DELETED))
    has_file = pc.is_in(vectors.column("referenced_file"), whole(files.column("location")))
    for row in indices_where(pc.invert(pc.or_(is_removed, has_file))).to_pylist():
        path = vectors.column("referenced_file")[row].as_py()
        raise ValidationError(f"{path}: its deletion vector is in the root, and its entry is not")
    old_vectors, new_vectors = (
        whole(with_vectors(files, vectors.filter(rows)).column(VECTOR)) for rows in (is_removed, pc.invert(is_removed))
    )
    status = whole(pc.struct_field(files.column("version_info"), "status"))
    is_deleted = pc.equal(status, int(Status.DELETED))
    is_moved = pc.is_in(whole(files.column("location")), pa.array(sorted(moves.files), pa.string()))
    has_change = pc.or_(pc.or_(_are_new(new_vectors), old_vectors.is_valid()), is_moved)
    is_changed = pc.and_(pc.equal(status, int(Status.EXISTING)), has_change)
    statuses = pc.if_else(is_changed, pa.scalar(int(Change.MODIFIED), pa.int32()), status)
    current = _Rows.of(files, statuses, pc.if_else(is_deleted, old_vectors, new_vectors))
    pairs = indices_where(pc.and_not(is_changed, is_moved))
    if not len(pairs):
        return [current]
    snapshots = pc.coalesce(pc.struct_field(new_vectors, "snapshot_id"), pc.struct_field(old_vectors, "snapshot_id"))
    replaced = pa.repeat(pa.scalar(int(Change.REPLACED), pa.int32()), len(files))
    before = _Rows.of(files, replaced, old_vectors)._replace(snapshots=snapshots).take(pairs)
    # Each MODIFIED entry follows its REPLACED one.
    numbers = np.arange(len(files))
    order = np.argsort(np.concatenate([pairs.to_numpy() - 0.5, numbers]), kind="stable")
    both = _Rows(*(_joined(values) for values in zip(before, current, strict=True)))
    return [both.take(pa.array(order))]


def _leaf_rows(leaves: pa.Table, masks: pa.Table, moves: Moves, snapshot_id: int) -> _Rows:
    """Return the entries of leaves, with their deletion vectors."""
    places = {location: row for row, location in enumerate(leaves.column("location").to_pylist())}
    info = leaves.column("version_info")
    is_new = pc.equal(pc.struct_field(info, "snapshot_id"), snapshot_id)
    is_added = pc.and_(is_new, pc.equal(pc.struct_field(info, "status"), int(Status.EXISTING)))
    status = pc.if_else(is_added, int(Status.ADDED), pc.struct_field(info, "status")).to_pylist()
    vectors: list[dict[str, Any] | None] = [None] * len(leaves)
    rows = masks.to_pylist()
    is_old = [row["version_info"]["status"] == Status.DELETED for row in rows]
    before = {row["referenced_file"]: _positions(row) for row, old in zip(rows, is_old, strict=True) if old}
    for mask, old in zip(rows, is_old, strict=True):
        location = mask["referenced_file"]
        row = places.get(location)
        if row is None or old:
            continue
        positions, version = _positions(mask), mask["version_info"]
        vectors[row] = vector = {
            "dv": _mumbling(positions, location),
            "dv_cardinality": len(positions),
            "dv_snapshot_id": version["snapshot_id"],
        }
        if version["status"] == Status.ADDED:
            status[row] = int(Change.MODIFIED) if status[row] == Status.EXISTING else status[row]
            new = np.setdiff1d(positions, before.get(location, _NOTHING))
            moved = np.intersect1d(new, _array(moves.masks.get(location)))
            changes = {"deleted_positions": np.setdiff1d(new, moved), "replaced_positions": moved}
            vector |= {name: _mumbling(part, location) for name, part in changes.items() if len(part)}
    statuses = pa.array(status, pa.int32())
    return _Rows.of(leaves, statuses)._replace(masks=pa.array(vectors, _MASK_TYPE))


_NOTHING = np.empty(0, np.int64)
_MASK_TYPE = pa.struct(
    [
        pa.field("dv", pa.binary()),
        pa.field("dv_cardinality", pa.int64()),
        pa.field("dv_snapshot_id", pa.int64()),
        pa.field("deleted_positions", pa.binary()),
        pa.field("replaced_positions", pa.binary()),
    ]
)


def _positions(mask: Mapping[str, Any]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the ordinals that a manifest's deletion vector masks. Vectors of this layout are inline."""
    name = f"the inline deletion vector of manifest {mask['referenced_file']}"
    return _array(read_inline_vector(mask["deletion_vector"]["inline_content"], name, mask["record_count"]))


def _array(bitmap: PositionBitmap | None) -> np.ndarray[Any, np.dtype[np.int64]]:
    return _NOTHING if bitmap is None else np.concatenate([_NOTHING, *bitmap.positions()]).astype(np.int64)


def _mumbling(positions: np.ndarray[Any, np.dtype[np.int64]], location: str) -> bytes:
    if len(positions) and positions[-1] >= MOST_POSITIONS:
        raise ValidationError(
            f"{location}: entry {positions[-1]} is to be removed: a deletion vector masks the first "
            f"{MOST_POSITIONS} entries of a manifest; compact the manifest first"
        )
    return write_mumbling(positions)


# -- Files ------------------------------------------------------------------------------------------------------------


def _metadata(content: str) -> dict[str, str]:
    return {FORMAT_VERSION_KEY: "4", CONTENT_KEY: content}


def _file_table(entries: _Rows, types: TreeTypes, *, in_root: bool = False, upgraded: int = -1) -> pa.Table:
    """Return the columns of a file with entries.

    Args:
        entries: the entries.
        types: the types of the table's V4 manifests.
        in_root: whether the file is a root, whose entries have `manifest_info`.
        upgraded: see `_format_versions`.
    """
    rows, statuses, snapshots, vectors, masks = entries
    _, _, *numbers = whole(rows.column("version_info")).flatten()
    vector_snapshots = pc.coalesce(pc.struct_field(masks, "dv_snapshot_id"), pc.struct_field(vectors, "snapshot_id"))
    tracking = [statuses, snapshots, *numbers, vector_snapshots, whole(rows.column("first_row_id"))]
    if in_root:
        tracking += [pc.struct_field(masks, name) for name in ("deleted_positions", "replaced_positions")]
    columns = [_struct(_TRACKING, tracking)]
    fields = [_field(147, "tracking", columns[0].type, required=True)]

    def add(number: int, name: str, values: pa.Array, *, required: bool = False) -> None:
        columns.append(values)
        fields.append(_field(number, name, values.type, required=required))

    formats = pc.utf8_upper(whole(rows.column("file_format")))
    add(134, "content_type", whole(rows.column("content_type")), required=True)
    add(157, "format_version", _format_versions(rows, formats, upgraded), required=True)
    add(100, "location", whole(rows.column("location")), required=True)
    add(101, "file_format", formats, required=True)
    add(103, "record_count", whole(rows.column("record_count")), required=True)
    add(104, "file_size_in_bytes", whole(rows.column("file_size_in_bytes")), required=True)
    add(141, "spec_id", whole(rows.column("partition_spec_id")))
    content = whole(rows.column(CONTENT_STATS))
    if (partition := _partition(rows, content, types)) is not None:
        add(PARTITION_FIELD_ID, "partition", partition)
    if (stats := _stats(content, types)) is not None:
        add(146, "content_stats", stats)
    add(140, "sort_order_id", whole(rows.column("sort_order_id")))
    children = [pc.struct_field(vectors, name) for name in ("location", "offset", "size_in_bytes", "record_count")]
    add(148, "deletion_vector", _struct(_VECTOR_FIELDS, children, mask=vectors.is_null()))
    if in_root:
        add(150, "manifest_info", _manifest_info(rows, masks))
    add(131, "key_metadata", whole(rows.column("key_metadata")))
    for number, name in ((132, "split_offsets"), (135, "equality_ids")):
        values = whole(rows.column(name))
        element = with_field_id(pa.field("element", values.type.value_type, nullable=False), number + 1)
        add(number, name, values.cast(pa.list_(element)))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


_TRACKING = (
    (0, "status", True),
    (1, "snapshot_id", False),
    (3, "sequence_number", False),
    (4, "file_sequence_number", False),
    (5, "dv_snapshot_id", False),
    (142, "first_row_id", False),
    (6, "deleted_positions", False),
    (7, "replaced_positions", False),
)
_VECTOR_FIELDS = (
    (155, "location", True),
    (144, "offset", True),
    (145, "size_in_bytes", True),
    (156, "cardinality", True),
)
_INFO = (
    (504, "added_files_count"),
    (505, "existing_files_count"),
    (506, "deleted_files_count"),
    (520, "replaced_files_count"),
    (512, "added_rows_count"),
    (513, "existing_rows_count"),
    (514, "deleted_rows_count"),
    (521, "replaced_rows_count"),
    (516, "min_sequence_number"),
)


def _field(number: int, name: str, kind: pa.DataType, *, required: bool = False) -> pa.Field:
    return with_field_id(pa.field(name, kind, nullable=not required), number)


def _struct(
    fields: Sequence[tuple[int, str, bool]], children: Sequence[pa.Array], mask: pa.Array | None = None
) -> pa.StructArray:
    """Return a struct. Required fields have values where the struct is null, as the writer of Parquet files expects."""
    arrays, kinds = [], []
    for (number, name, required), values in zip(fields, children, strict=False):
        default = "" if pa.types.is_string(values.type) else 0
        arrays.append(pc.fill_null(values, default) if required and mask is not None else values)
        kinds.append(_field(number, name, values.type, required=required))
    return pa.StructArray.from_arrays(arrays, fields=kinds, mask=mask)


def _format_versions(rows: pa.Table, formats: pa.Array, upgraded: int) -> pa.Array:
    """Return the format version of manifests, 0 for those in the layout of versions 1 to 3, and 4 for files.

    Args:
        rows: the entries.
        formats: their file formats.
        upgraded: the last sequence number before the upgrade to a tree; -1 for none.
    """
    is_leaf = whole(one_of(rows, LEAVES))
    numbers = pc.struct_field(whole(rows.column("version_info")), "sequence_number")
    is_old = pc.and_(is_leaf, pc.or_(pc.equal(formats, "AVRO"), pc.fill_null(pc.less_equal(numbers, upgraded), False)))
    return pc.if_else(is_old, pa.scalar(0, pa.int32()), pa.scalar(4, pa.int32()))


def _manifest_info(rows: pa.Table, masks: pa.StructArray) -> pa.StructArray:
    stats = whole(rows.column("manifest_stats"))
    is_leaf = whole(one_of(rows, LEAVES))
    by_name = {child.name: values for child, values in zip(stats.type, stats.flatten(), strict=True)}
    sequence = pc.struct_field(whole(rows.column("version_info")), "sequence_number")
    by_name["min_sequence_number"] = pc.coalesce(by_name["min_sequence_number"], sequence)
    zeros = {"replaced_files_count": pa.int32(), "replaced_rows_count": pa.int64()}
    children = [
        pa.repeat(pa.scalar(0, zeros[name]), len(rows)) if name in zeros else by_name[name] for _, name in _INFO
    ]
    fields = [(number, name, True) for number, name in _INFO]
    children += [pc.struct_field(masks, name) for name in ("dv", "dv_cardinality")]
    fields += [(522, "dv", False), (523, "dv_cardinality", False)]
    return _struct(fields, children, mask=pc.invert(is_leaf))


def _partition(rows: pa.Table, content: pa.StructArray, types: TreeTypes) -> pa.StructArray | None:
    """Return the partition values of entries: a struct of the fields of all specs; None if there are none."""
    names = {unique: name for _, fields in types.spec_tuples for _, unique, name in fields}
    kinds = {number: kind for fields in types.spec_fields.values() for number, kind in fields}
    if not kinds:
        return None
    children, fields, used = [], [], set[str]()
    specs = whole(rows.column("partition_spec_id"))
    is_leaf = whole(one_of(rows, LEAVES))
    for number, kind in sorted(kinds.items()):
        arrow = bound_arrow_type(kind)
        values = pa.nulls(len(rows), arrow)
        for spec_id, pairs in types.sources.items():
            source = dict(pairs).get(number)
            if source is not None:
                of_spec = pc.and_not(pc.equal(specs, spec_id), is_leaf)
                values = pc.if_else(of_spec, partition_value(pc.struct_field(content, [str(source)])), values)
        name = names.get(number, str(number))
        name = name if name not in used else f"{name}_{number}"
        used.add(name)
        children.append(_in_file(values, kind))
        fields.append(_field(number, name, children[-1].type))
    return pa.StructArray.from_arrays(children, fields=fields)


def _in_file(values: pa.Array, type_name: str) -> pa.Array:
    """Return partition values or bounds with the type that they have in files."""
    if type_name == "uuid":
        return pa.ExtensionArray.from_storage(pa.uuid(), values.cast(pa.binary(16)))
    if type_name.startswith("fixed"):
        return values.cast(pa.binary(int(type_name[len("fixed[") : -1])))
    return values


def _stats(content: pa.StructArray, types: TreeTypes) -> pa.StructArray | None:
    """Return the stats of columns, without the stats of partition fields."""
    chosen = [index for index, child in enumerate(content.type) if int(child.name) in types.columns]
    if not chosen:
        return None
    flat = content.flatten()
    fields = [content.type[index] for index in chosen]
    of_columns = pa.StructArray.from_arrays([flat[index] for index in chosen], fields=fields, mask=content.is_null())
    stats = file_stats(of_columns, always=("tight_bounds",))
    return None if stats is None else _with_values_in_files(stats, types.stats)


def _with_values_in_files(stats: pa.StructArray, types: Mapping[int, str]) -> pa.StructArray:
    """Return stats with the types of bounds in files, without bounds of shapes and variants, which have other types.

    Readers of this layout refuse an unknown tightness of bounds.
    """
    structs, kinds = [], []
    for kind, values in zip(stats.type, stats.flatten(), strict=True):
        type_name = types[int(kind.name)]
        has_bounds = not type_name.startswith(UNORDERED)
        children, fields = [], []
        for each, child in zip(kind.type, values.flatten(), strict=True):
            if has_bounds and each.name in BOUNDS:
                children.append(_in_file(child, type_name))
            elif has_bounds and each.name == "tight_bounds":
                children.append(pc.fill_null(child, False))
            elif each.name not in (*BOUNDS, "tight_bounds"):
                children.append(child)
            else:
                continue
            fields.append(each.with_type(children[-1].type))
        structs.append(pa.StructArray.from_arrays(children, fields=fields, mask=values.is_null()))
        kinds.append(kind.with_type(structs[-1].type))
    return pa.StructArray.from_arrays(structs, fields=kinds, mask=stats.is_null())
