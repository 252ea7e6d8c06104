"""Decode manifests of every format from their bytes, in tasks or on the driver. Without Spark: tasks import this."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from sparkmeta.avro.container import Data, Windows, manifest_data
from sparkmeta.avro.decode import decode_manifest
from sparkmeta.entries.arrays import kept_rows
from sparkmeta.entries.locations import with_locations
from sparkmeta.entries.parts import part_of
from sparkmeta.entries.projection import MANIFEST, ORDINAL, EntryProjection
from sparkmeta.errors import CorruptFileError
from sparkmeta.manifests.cache.decode import decode_leaf
from sparkmeta.manifests.deletion_vectors import mask_flags, unmasked
from sparkmeta.manifests.v3_parquet.decode import decode_parquet_manifest
from sparkmeta.manifests.v4.decode import decode_tree_manifest
from sparkmeta.manifests.v4.layout import is_tree_manifest
from sparkmeta.storage.location import is_local
from sparkmeta.storage.ranges import read_ahead

if TYPE_CHECKING:
    from sparkmeta.manifests.cache.write import CacheWriter
    from sparkmeta.manifests.v4.types import TreeTypes
    from sparkmeta.spec.locations import Locations
    from sparkmeta.storage.executors import ExecutorReader
    from sparkmeta.storage.files import Files

CACHED_LEAF = "cached_leaf"
"""A column that rows of `PART_SCHEMA` may have: the location of the part's leaf in the manifest cache."""

MASK = "manifest_dv"
"""A column that rows of `PART_SCHEMA` may have: the deletion vector of the manifest, a row of `DV_SCHEMA`."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EntryDecoder:
    """Opens parts of manifests, rows of `PART_SCHEMA`, and decodes their entries. Picklable.

    Attributes:
        files: opens manifests.
        trees: the types of the table's V4 manifests; None if it has none.
        locations: resolves the locations in manifests.
        cached: opens leaves of the manifest cache.
        writer: stores parts that have been decoded completely in the manifest cache.
    """

    files: Files | ExecutorReader
    trees: TreeTypes | None
    locations: Locations
    cached: Files | ExecutorReader | None = None
    writer: CacheWriter | None = None

    def entries(self, part: Mapping[str, Any], projection: EntryProjection) -> Iterator[pa.RecordBatch]:
        """Decode the entries of a part in physical order, masked ones included, with inheritance applied.

        If a cached leaf can't be read, the manifest is decoded.

        Raises:
            NotFoundError: the manifest does not exist.
            CorruptFileError: it is not a manifest.
        """
        yield from self._decoded(part, self._read(part), projection)

    def _read(self, part: Mapping[str, Any]) -> _Content:
        leaf, dv = part.get(CACHED_LEAF), part.get(MASK)
        masked = None if dv is None else mask_flags(dv, self.files)
        if leaf is not None and (cached := self._cached(leaf)) is not None:
            return _Content(cached, leaf, masked)
        return _Content(manifest_data(self.files, part), None, masked)

    def _decoded(
        self, part: Mapping[str, Any], content: _Content, projection: EntryProjection
    ) -> Iterator[pa.RecordBatch]:
        data, leaf, _ = content
        if leaf is not None:
            assert isinstance(data, bytes)
            entries = decode_leaf(data, part_of(part), projection, leaf)
            yield from with_locations(entries, self.locations.before_version_4, part["location"])
            return
        yield from decode(data, part, projection, self.trees, self.locations)
        if self.writer is not None and part["file_format"] == "AVRO":
            self.writer.keep(data, part_of(part))

    def table(self, part: Mapping[str, Any], projection: EntryProjection) -> pa.Table:
        """Decode the entries of a part into one table."""
        return pa.Table.from_batches(self.entries(part, projection), projection.schema).combine_chunks()

    def decode_parts(self, projection: EntryProjection, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Decode the entries of parts, rows of the batches, of which several are read from a store at a time.

        Entries that the part's deletion vector, `MASK`, masks are left out.
        """
        for batch in batches:
            parts = batch.to_pylist()
            if len(parts) == 1 or all(is_local(part["location"]) for part in parts):
                contents: Iterable[tuple[dict[str, Any], _Content]] = ((part, self._read(part)) for part in parts)
            else:
                contents = read_ahead(parts, self._read, _size)
            for part, content in contents:
                entries = self._decoded(part, content, projection)
                yield from entries if content.masked is None else _without(content.masked, entries)

    def _cached(self, leaf: str) -> bytes | None:
        if self.cached is None:
            return None
        try:
            return self.cached.read(leaf)
        except Exception as error:  # noqa: BLE001  each store's client has its own errors
            _log.warning("the manifest cache's leaf %s can't be read: %s", leaf, error)
            return None

    def decode_unmasked(
        self,
        projection: EntryProjection,
        masks: Mapping[int, Mapping[str, Any]],
        batches: Iterable[pa.RecordBatch],
    ) -> Iterator[pa.RecordBatch]:
        """Decode the unmasked entries of parts, rows of the batches.

        Args:
            masks: small id of a leaf -> its deletion vector, `inlined`.
        """
        for batch in batches:
            for part in batch.to_pylist():
                mask = masks.get(part[MANIFEST])
                if mask is None:
                    yield from self.entries(part, projection)
                else:
                    table = self.table(part, projection)
                    yield from kept_rows(table, unmasked(len(table), mask)).to_batches()


class _Content(NamedTuple):
    """The bytes of a part of a manifest, or of its leaf in the manifest cache at the location `cached_leaf`.

    Attributes:
        masked: whether each ordinal of the manifest is masked; None if it has no deletion vector.
    """

    data: Data
    cached_leaf: str | None
    masked: np.ndarray[Any, Any] | None


def _without(masked: np.ndarray[Any, Any], entries: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the entries whose ordinals are not masked."""
    for batch in entries:
        flags = np.take(masked, batch.column(ORDINAL).to_numpy(), mode="clip")
        yield batch.filter(pa.array(~flags)) if flags.any() else batch


def _size(part: Mapping[str, Any]) -> int:
    return part["file_size_in_bytes"] or 0


def decode(
    data: Data, part: Mapping[str, Any], projection: EntryProjection, trees: TreeTypes | None, locations: Locations
) -> Iterator[pa.RecordBatch]:
    """Decode the entries of a part of a manifest, a row of `PART_SCHEMA`, from the manifest's bytes."""
    if part["file_format"] != "PARQUET":
        entries = decode_manifest(data, part_of(part), projection)
        return with_locations(entries, locations.before_version_4, part["location"])
    assert not isinstance(data, Windows)
    if trees is not None and is_tree_manifest(data, part["location"]):
        entries = decode_tree_manifest(data, part_of(part), projection, trees)
    else:
        entries = decode_parquet_manifest(data, part_of(part), projection)
    return with_locations(entries, locations, part["location"])


def decode_contents(
    projection: EntryProjection, trees: TreeTypes | None, locations: Locations, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Decode the entries of manifests that Spark has read: rows of `PART_SCHEMA` with `path` and `content`."""
    for batch in batches:
        contents = batch.column("content")
        for index, part in enumerate(batch.drop_columns(["content"]).to_pylist()):
            if part[MANIFEST] is None:
                raise CorruptFileError(part["path"], "path", part["path"], "Spark read a file that no manifest names")
            data = memoryview(contents[index].as_buffer()).cast("B")
            yield from decode(data, part, projection, trees, locations)
