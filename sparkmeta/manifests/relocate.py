"""Change the locations in manifests, manifest lists and roots of any format. Without Spark: tasks import this."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparkmeta.avro.relocate import SizesOf, relocated_list, relocated_manifest, with_sizes
from sparkmeta.entries.locations import relocated, relocated_bounds, resolved
from sparkmeta.entries.projection import CONTENT_STATS
from sparkmeta.expr.arrays import field_id, whole
from sparkmeta.manifests.parquet_file import parquet_bytes
from sparkmeta.manifests.v4.fields import stats_indices
from sparkmeta.manifests.v4.layout import CONTENT_KEY, ROOT
from sparkmeta.manifests.v4.root import LEAVES
from sparkmeta.spec.entry import (
    BOUNDS,
    DELETE_FILE_PATH_ID,
    PARTITION_FIELD_ID,
    STATS_SOURCES,
    ContentType,
    Status,
)
from sparkmeta.storage.content import translated_read_errors

if TYPE_CHECKING:
    from sparkmeta.spec.locations import Locations, Relocation

_MAGIC = b"PAR1"
_LOCATION, _REFERENCED_FILE, _VECTOR_LOCATION, _SIZE, _CONTENT, _STATUS = 100, 143, 155, 104, 134, 0
_TEXTS = (_LOCATION, _REFERENCED_FILE, _VECTOR_LOCATION)
# Deleted, and replaced in the layout of the Iceberg project. Such files may be gone.
_NOT_LIVE = pa.array([int(Status.DELETED), 3], pa.int32())

Path = tuple[int, ...]
"""The index of a column, and the indices of fields inside."""


@dataclass(frozen=True)
class MetadataRelocation:
    """The change of manifests, lists and roots of a table that moves.

    Attributes:
        relocation: the change of locations.
        locations: resolves locations before the change.
        sizes_of_deletes: returns the new sizes of position delete files and Puffin files.
        lengths_of_manifests: returns the new lengths of manifests.
    """

    relocation: Relocation
    locations: Locations
    sizes_of_deletes: SizesOf
    lengths_of_manifests: SizesOf

    def manifest(self, data: bytes, location: str) -> bytes:
        """Return a manifest of any format, or a root, with other locations.

        Args:
            data: its content.
            location: its location before the change, for errors.

        Raises:
            CorruptFileError: it is damaged.
            UnsupportedError: an unsupported Avro codec.
        """
        if data.startswith(_MAGIC):
            return self._parquet(data, location)
        return relocated_manifest(data, location, self.relocation, self.sizes_of_deletes)

    def list(self, data: bytes, location: str) -> bytes:
        """Return a manifest list with other locations. See `manifest`."""

        def lengths_of(paths: pa.Array) -> pa.Array:
            return self.lengths_of_manifests(
                resolved(paths, self.locations.before_version_4, location, "manifest_path")
            )

        return relocated_list(data, location, self.relocation, lengths_of)

    def _parquet(self, data: bytes, location: str) -> bytes:
        with translated_read_errors(location, "file", "not a Parquet file"):
            file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
            table = file.read()
        metadata = {key: value for key, value in (file.metadata.metadata or {}).items() if key != b"ARROW:schema"}
        columns = _Columns([whole(column) for column in table.columns], table.schema)
        # The new sizes are found by the old locations.
        self._set_sizes(columns, location)
        self._move_texts(columns)
        self._move_bounds(columns)
        changed = pa.Table.from_arrays(columns.arrays, schema=table.schema.remove_metadata())
        is_root = metadata.get(CONTENT_KEY.encode()) == ROOT.encode()
        return parquet_bytes(changed, {key.decode(): value.decode() for key, value in metadata.items()}, whole=is_root)

    def _move_texts(self, columns: _Columns) -> None:
        for path in columns.paths_of(_TEXTS).values():
            columns.replace(path, relocated(columns.values(path), self.relocation))

    def _move_bounds(self, columns: _Columns) -> None:
        """Change the bounds of paths in position delete files: in metrics maps, or in `content_stats`."""
        paths = columns.paths_of([STATS_SOURCES[name] for name in BOUNDS])
        if len(paths) == len(BOUNDS):
            maps = [columns.values(paths[STATS_SOURCES[name]]) for name in BOUNDS]
            items = [_items(bound_map, DELETE_FILE_PATH_ID) for bound_map in maps]
            moved = relocated_bounds(items[0].values, items[1].values, self.relocation)
            for name, bound_map, item, values in zip(BOUNDS, maps, items, moved, strict=True):
                columns.replace(paths[STATS_SOURCES[name]], _with_items(bound_map, item, values))
        if (stats := columns.stats_of_paths()) is not None:
            lower, upper = (columns.values(stats[name]) for name in BOUNDS)
            for name, values in zip(BOUNDS, relocated_bounds(lower, upper, self.relocation), strict=True):
                columns.replace(stats[name], values)

    def _set_sizes(self, columns: _Columns, location: str) -> None:
        paths = columns.paths_of((_LOCATION, _SIZE, _CONTENT, _STATUS))
        if not len(columns.arrays[0]) or len(paths) < 4:
            return
        status, content, sizes = (columns.values(paths[number]) for number in (_STATUS, _CONTENT, _SIZE))
        is_live = pc.invert(pc.is_in(status, _NOT_LIVE))
        files = resolved(columns.values(paths[_LOCATION]), self.locations, location, "location")
        for kinds, sizes_of in (
            ((ContentType.POSITION_DELETES,), self.sizes_of_deletes),
            (LEAVES, self.lengths_of_manifests),
        ):
            is_kind = pc.is_in(content, pa.array([int(kind) for kind in kinds], content.type))
            is_changed = pc.fill_null(pc.and_(is_kind, is_live), False)
            sizes = with_sizes(sizes, is_changed, sizes_of(files.filter(is_changed)))
        columns.replace(paths[_SIZE], sizes)


class _Columns:
    """The columns of a Parquet file whose fields are found by their ids, also in structs."""

    def __init__(self, arrays: list[pa.Array], schema: pa.Schema) -> None:
        self.arrays = arrays
        self._schema = schema

    def paths_of(self, ids: Sequence[int]) -> dict[int, Path]:
        """Return the paths of the fields that the file has, by id."""
        paths: dict[int, Path] = {}
        for number, path in _paths(self._schema, ()):
            if number is not None and number in ids:
                paths.setdefault(number, path)
        return paths

    def stats_of_paths(self) -> Mapping[str, Path] | None:
        """Return the paths of the bounds of `file_path` in `content_stats`; None if there are none."""
        for index, field in enumerate(self._schema):
            if field.name == CONTENT_STATS:
                position = stats_indices(field.type, {DELETE_FILE_PATH_ID: "string"}).get(DELETE_FILE_PATH_ID)
                if position is not None:
                    kind = field.type[position].type
                    return {name: (index, position, kind.get_field_index(name)) for name in BOUNDS}
        return None

    def values(self, path: Path) -> pa.Array:
        """Return the values of a field; null where a struct around it is null."""
        values = self.arrays[path[0]]
        for index in path[1:]:
            values = values.flatten()[index]
        return values

    def replace(self, path: Path, values: pa.Array) -> None:
        """Replace the values of a field."""
        self.arrays[path[0]] = _replaced(self.arrays[path[0]], path[1:], values)


def _paths(fields: pa.Schema | pa.StructType, above: Path) -> Iterator[tuple[int | None, Path]]:
    """Yield the ids and paths of fields, also in structs, except stats and partition tuples."""
    for index, field in enumerate(fields):
        number = field_id(field)
        yield number, (*above, index)
        is_entry_struct = number != PARTITION_FIELD_ID and field.name != CONTENT_STATS
        if pa.types.is_struct(field.type) and is_entry_struct:
            yield from _paths(field.type, (*above, index))


def _replaced(array: pa.Array, path: Path, values: pa.Array) -> pa.Array:
    if not path:
        return values
    children = [array.field(index) for index in range(array.type.num_fields)]
    child = array.type[path[0]]
    if len(path) == 1 and not child.nullable:
        values = pc.fill_null(values, _FILLERS[child.type.id])
    children[path[0]] = _replaced(children[path[0]], path[1:], values)
    return pa.StructArray.from_arrays(children, fields=list(array.type), mask=array.is_null())


# Values of required fields in structs that are null.
_FILLERS = {pa.string().id: "", pa.int64().id: 0}


class _Items(NamedTuple):
    """The items of maps with a given key.

    Attributes:
        rows: the row of each such item.
        is_chosen: whether each item of all maps has the key.
        values: the value of the key in each row; null if the row's map lacks the key.
    """

    rows: np.ndarray[Any, Any]
    is_chosen: pa.Array
    values: pa.Array


def _items(maps: pa.MapArray, key: int) -> _Items:
    starts = maps.offsets.to_numpy()
    is_chosen = pc.equal(maps.keys, key)
    items = np.flatnonzero(is_chosen.to_numpy(zero_copy_only=False))
    rows = np.searchsorted(starts, items, side="right") - 1
    indices = np.full(len(maps), -1, np.int64)
    indices[rows] = items
    return _Items(rows, is_chosen, maps.items.take(pa.array(indices, mask=indices < 0)))


def _with_items(maps: pa.MapArray, items: _Items, values: pa.Array) -> pa.MapArray:
    """Replace the values of the items in maps. `values` has a value for each row."""
    changed = pc.replace_with_mask(maps.items, items.is_chosen, values.take(pa.array(items.rows)))
    kind = maps.type
    pairs = pa.StructArray.from_arrays([maps.keys, changed], fields=[kind.key_field, kind.item_field])
    validity, offsets = maps.buffers()[:2]
    return pa.Array.from_buffers(kind, len(maps), [validity, offsets], children=[pairs])
