"""Find entries of V4 leaves by the values of one column, reading only row groups that may hold them.

It runs in Spark tasks or, for few leaves, in threads of the driver. Without Spark: tasks import this.
"""

from __future__ import annotations

import io
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.entries.arrays import whole
from sparkmeta.entries.locations import table_with_locations
from sparkmeta.entries.parts import part_of
from sparkmeta.entries.projection import EntryProjection
from sparkmeta.manifests.deletion_vectors import mask_flags
from sparkmeta.manifests.v4.decode import entries_of_rows
from sparkmeta.manifests.v4.layout import OpenManifest, open_manifest
from sparkmeta.manifests.v4.types import TreeTypes, stats_of_fields

if TYPE_CHECKING:
    from sparkmeta.spec.locations import Locations
    from sparkmeta.storage.executors import ExecutorReader
    from sparkmeta.storage.files import Files


@dataclass(frozen=True)
class LeafSearch:
    """Finds unmasked entries of leaves by the values of a column. Picklable.

    Attributes:
        column: a text field of the content entry: `location` or `referenced_file`.
        values: the values to find, sorted and distinct.
        projection: the columns to return, without metrics maps.
        types: the types of the table's V4 manifests.
        locations: resolves the locations in leaves.
        masks: small id of a leaf -> its deletion vector, a row of `DV_SCHEMA`.
        files: opens leaves, and Puffin files with their deletion vectors.
    """

    column: str
    values: Sequence[str]
    projection: EntryProjection
    types: TreeTypes
    locations: Locations
    masks: Mapping[int, Mapping[str, Any]]
    files: ExecutorReader | Files

    def __call__(self, units: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the entries found in leaves, rows of `PART_SCHEMA`, as batches of the projection's schema."""
        for unit in units:
            for row in unit.to_pylist():
                yield from self._in_leaf(row).to_batches()

    def _in_leaf(self, unit: Mapping[str, Any]) -> pa.Table:
        source = RangedFile(self.files, unit["location"], unit["file_size_in_bytes"])
        with open_manifest(pa.PythonFile(source, "r"), unit["location"], coalesce=True) as manifest:
            groups = [group for group in range(manifest.row_groups) if self._may_hold(manifest, group)]
            rows, ordinals = self._matching(manifest, groups)
        mask = self.masks.get(unit["manifest"])
        if len(ordinals) and mask is not None:
            unmasked = ~mask_flags(mask, self.files)[ordinals]
            rows, ordinals = rows.filter(pa.array(unmasked)), ordinals[unmasked]
        rows = table_with_locations(rows, self.locations, unit["location"])
        is_named = pc.is_in(rows.column(self.column), pa.array(self.values, pa.string()))
        rows, ordinals = rows.filter(is_named), ordinals[is_named.to_numpy()]
        return entries_of_rows(rows, pa.array(ordinals, pa.int64()), part_of(unit), self.projection, self.types)

    @cached_property
    def _spellings(self) -> list[str]:
        """The values as leaves may spell them, sorted."""
        return sorted({*self.values, *map(self.locations.relativize, self.values)})

    def _may_hold(self, manifest: OpenManifest, group: int) -> bool:
        bounds = manifest.bounds(group, self.column)
        if bounds is None:
            return True
        place = bisect_left(self._spellings, bounds[0])
        return place < len(self._spellings) and self._spellings[place] <= bounds[1]

    def _matching(self, manifest: OpenManifest, groups: list[int]) -> tuple[pa.Table, np.ndarray[Any, Any]]:
        """Return the matching rows of `tree_schema` and their ordinals.

        Other columns are read only from row groups with a match.
        """
        values = pa.array(self._spellings, pa.string())
        matches: dict[int, np.ndarray[Any, Any]] = {}
        for group in groups:
            column = whole(manifest.rows([group], {}, {self.column}).column(self.column))
            places = np.flatnonzero(pc.is_in(column, values).to_numpy(zero_copy_only=False))
            if len(places):
                matches[group] = places
        stats, fields = self.types.stats_of(self.projection), stats_of_fields(self.types.sources)
        columns = {*self.projection.columns, *TreeTypes.ALWAYS_READ}
        tables, ordinals = [manifest.rows([], stats, columns, fields)], [np.empty(0, np.int64)]
        for group, places in matches.items():
            tables.append(manifest.rows([group], stats, columns, fields).take(pa.array(places)))
            ordinals.append(manifest.first_row(group) + places)
        return pa.concat_tables(tables), np.concatenate(ordinals)


class RangedFile(io.RawIOBase):
    """A file object for pyarrow that reads ranges of a stored file."""

    def __init__(self, files: ExecutorReader | Files, location: str, size: int) -> None:
        super().__init__()
        self._files, self._location, self._size, self._position = files, location, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def size(self) -> int:
        return self._size

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = start + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._size - self._position)
        count = left if size is None or size < 0 else min(size, left)
        data = self._files.read_range(self._location, self._position, count) if count else b""
        self._position += len(data)
        return data
