"""Read which files snapshots reach, in Spark tasks: manifests by their lists, content files by their manifests.

Light: tasks import this.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.avro.container import Data, manifest_data
from sparkmeta.avro.manifest_list import MANIFEST_FILE_SCHEMA, decode_manifest_list
from sparkmeta.entries.arrays import kept_rows
from sparkmeta.entries.counts import may_be_live
from sparkmeta.entries.projection import EntryProjection
from sparkmeta.errors import NotFoundError
from sparkmeta.manifests.decoder import decode
from sparkmeta.manifests.deletion_vectors import DV_SCHEMA, inlined, manifest_dvs, unmasked
from sparkmeta.manifests.v4.root import FILES, LEAVES, MANIFEST_DVS, Root, is_live, read_root, version
from sparkmeta.manifests.v4.types import TreeTypes, stats_of_fields
from sparkmeta.spec.entry import ContentType, Status
from sparkmeta.spec.locations import Locations
from sparkmeta.storage.executors import ExecutorReader
from sparkmeta.storage.ranges import read_ahead

LIST, ROOT, MANIFEST = "manifest list", "root", "manifest"
MANIFEST_DV = "manifest deletion vectors"
CONTENTS = {
    ContentType.DATA: "data file",
    ContentType.POSITION_DELETES: "position delete file",
    ContentType.EQUALITY_DELETES: "equality delete file",
}
MISSING = "missing"
"""The content of a row about a file that only expired snapshots need, and that is gone."""

# A snapshot, and its manifest list or root.
SNAPSHOTS = pa.schema(
    [
        pa.field("snapshot_id", pa.int64()),
        pa.field("sequence_number", pa.int64()),
        pa.field("location", pa.string()),
        pa.field("retained", pa.bool_()),
    ]
)

# A manifest list, a root, or a manifest with the deletion vector that masks it in a snapshot.
LISTED = pa.schema(
    [
        pa.field("content", pa.string()),
        pa.field("path", pa.string()),
        pa.field("retained", pa.bool_()),
        pa.field("length", pa.int64()),
        pa.field("spec_id", pa.int32()),
        pa.field("sequence_number", pa.int64()),
        pa.field("snapshot_id", pa.int64()),
        pa.field("dv", pa.struct(list(DV_SCHEMA))),
        pa.field("kind", pa.int32()),  # 0 data, 1 deletes; null for leaves of trees
        pa.field("has_live", pa.bool_()),  # null if unknown
        pa.field("removed", pa.bool_()),  # whether a root has it as DELETED, so that only `file_changes` reads it
        pa.field("partitions", MANIFEST_FILE_SCHEMA.field("partitions").type),
    ]
)

REACHED = pa.schema(
    [
        pa.field("content", pa.string()),
        pa.field("path", pa.string()),
        pa.field("length", pa.int64()),
        pa.field("retained", pa.bool_()),
    ]
)

PATHS = pa.schema([REACHED.field("path")])
# What is read of entries for the columns of `REACHED`.
_SOURCES = {"content": "content_type", "path": "location", "length": "file_size_in_bytes"}
_MAGIC = b"PAR1"
# Assumed of a manifest list or root, whose length no metadata says.
_LIST_BYTES = 1 << 20

T = TypeVar("T")


@dataclass(frozen=True)
class ListReader:
    """Reads the lists and roots of snapshots. Picklable.

    Attributes:
        trees: the types of the table's V4 manifests; None if it has none.
        locations: resolves the locations in lists and roots.
    """

    reader: ExecutorReader
    trees: TreeTypes | None
    locations: Locations

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the lists of snapshots, rows of `SNAPSHOTS`, and the manifests in them, as `LISTED`.

        Raises:
            NotFoundError: the list of a retained snapshot is gone.
        """
        for batch in batches:
            for row, data in read_ahead(batch.to_pylist(), self._read, lambda _: _LIST_BYTES):
                if data is None:
                    yield listed(MISSING, {"path": [row["location"]]}, retained=False)
                else:
                    yield from self._rows(data, row)

    def _read(self, row: Mapping[str, Any]) -> bytes | None:
        return _unless_missing(row, lambda: self.reader.read(row["location"]))

    def _rows(self, data: bytes, row: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
        location, retained = row["location"], row["retained"]
        file = {"path": [location], "length": [len(data)]}
        if self.trees is None or not data.startswith(_MAGIC):
            yield listed(LIST, file, retained=retained)
            yield listed_manifests(decode_manifest_list(data, location, self.locations), retained=retained)
            return
        stamp = (row["snapshot_id"], row["sequence_number"] or 0)
        fields = stats_of_fields(self.trees.sources)
        root = read_root(data, self.trees.stats, self.trees.spec_fields, location, stamp, self.locations, fields)
        inherited = {name: [row[name]] for name in ("sequence_number", "snapshot_id")}
        yield listed(ROOT, file | inherited | {"spec_id": [_spec_id(root)]}, retained=retained)
        yield listed(MANIFEST, _leaves(root), retained=retained)
        for content, kinds in ((MANIFEST, LEAVES), (MANIFEST_DV, MANIFEST_DVS)):
            yield listed(content, _removed(root, kinds), retained=retained, removed=True)


def listed_manifests(manifests: pa.RecordBatch, *, retained: bool) -> pa.RecordBatch:
    """Return rows of `MANIFEST_FILE_SCHEMA` as `LISTED`."""
    columns = {
        "path": "manifest_path",
        "length": "manifest_length",
        "spec_id": "partition_spec_id",
        "sequence_number": "sequence_number",
        "snapshot_id": "added_snapshot_id",
        "kind": "content",
        "partitions": "partitions",
    }
    values = {name: manifests.column(source) for name, source in columns.items()}
    return listed(MANIFEST, values | {"has_live": may_be_live(manifests)}, retained=retained)


def listed(content: str, columns: Mapping[str, Any], *, retained: bool, removed: bool = False) -> pa.RecordBatch:
    """Return columns as `LISTED`, with nulls in those that are not given."""
    size = len(columns["path"])
    constants = {"content": content, "retained": retained, "removed": removed}
    table = pa.table(dict(columns) | {name: pa.repeat(value, size) for name, value in constants.items()})
    arrays = [
        table[field.name].combine_chunks().cast(field.type) if field.name in table.schema.names
        else pa.nulls(size, field.type)
        for field in LISTED
    ]  # fmt: skip
    return pa.RecordBatch.from_arrays(arrays, schema=LISTED)


def _spec_id(root: Root) -> int | None:
    """Return a partition spec of a root's own files."""
    files = root.of(FILES, live=False)
    return files.column("partition_spec_id")[0].as_py() if len(files) else None


def _leaves(root: Root) -> dict[str, pa.ChunkedArray]:
    leaves, dvs = root.leaves, manifest_dvs(root)
    # Deletion vectors of one leaf are equal if they are the same one.
    dvs = dvs.set_column(0, DV_SCHEMA.field(0), pa.repeat(pa.scalar(0, pa.int32()), len(dvs)))
    places = pc.index_in(leaves.column("location"), dvs.column("referenced_file").combine_chunks())
    return {
        "path": leaves.column("location"),
        "length": leaves.column("file_size_in_bytes"),
        "spec_id": leaves.column("partition_spec_id"),
        "sequence_number": version(leaves, "sequence_number"),
        "snapshot_id": version(leaves, "snapshot_id"),
        "dv": dvs.to_struct_array().combine_chunks().take(places),
    }


def _removed(root: Root, kinds: Collection[ContentType]) -> dict[str, pa.ChunkedArray]:
    """Return the files of DELETED entries. Changes of the root's snapshot are computed from them."""
    entries = root.of(kinds, live=False)
    has_file = pc.greater(pc.utf8_length(entries.column("location")), 0)
    removed = entries.filter(pc.and_not(pc.fill_null(has_file, False), is_live(entries)))
    return {"path": removed.column("location"), "length": removed.column("file_size_in_bytes")}


@dataclass(frozen=True)
class ContentReader:
    """Reads the live files of manifests. Picklable.

    Attributes:
        locations: resolves the locations in manifests.
        schema: the columns of `REACHED` to return.
    """

    reader: ExecutorReader
    trees: TreeTypes | None
    locations: Locations
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the live files of manifests, rows of `LISTED`, as `schema`.

        Raises:
            NotFoundError: a manifest of a retained snapshot is gone.
        """
        for batch in batches:
            for row, data in read_ahead(batch.to_pylist(), self._read, lambda row: row["length"] or 0):
                path = row["path"]
                if data is not None:
                    manifest, dv = data
                    if row["dv"] is None or dv is not None:
                        for entries in self._entries(manifest, row, dv):
                            yield self._live_files(entries, row["retained"])
                        continue
                    path = row["dv"]["location"]
                missing = {"content": MISSING, "path": path, "retained": False}
                yield pa.RecordBatch.from_pylist([missing], schema=self.schema)

    def _read(self, row: Mapping[str, Any]) -> tuple[Data, Mapping[str, Any] | None] | None:
        """Return a manifest, and its deletion vector with its bitmap; None for each that is missing."""
        data = _unless_missing(row, lambda: manifest_data(self.reader, _part(row)))
        if data is None or row["dv"] is None:
            return None if data is None else (data, None)
        dvs = _unless_missing(row, lambda: inlined([row["dv"]], self.reader))
        return data, None if dvs is None else dvs[0]

    def _entries(self, data: Data, row: Mapping[str, Any], dv: Mapping[str, Any] | None) -> Iterator[pa.RecordBatch]:
        batches = decode(data, _part(row), self._projection, self.trees, self.locations)
        if dv is None:
            yield from batches
            return
        table = pa.Table.from_batches(batches, self._projection.schema)
        yield from kept_rows(table, unmasked(len(table), dv)).to_batches()

    @cached_property
    def _projection(self) -> EntryProjection:
        names = (_SOURCES[name] for name in self.schema.names if name in _SOURCES)
        return EntryProjection.of({*names, "version_info"})

    def _live_files(self, entries: pa.RecordBatch, retained: bool) -> pa.RecordBatch:
        status = pc.struct_field(entries.column("version_info"), "status")
        live = entries.filter(pc.not_equal(status, int(Status.DELETED)))
        columns: dict[str, Any] = {"retained": pa.repeat(pa.scalar(retained), len(live))}
        for name in _SOURCES.keys() & self.schema.names:
            columns[name] = live.column(_SOURCES[name])
        if "content" in columns:
            columns["content"] = _CONTENT_NAMES.take(columns["content"])
        return pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)


_CONTENT_NAMES = pa.array([CONTENTS.get(ContentType(number)) for number in range(len(ContentType))])


def _part(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a whole manifest, a row of `LISTED`, as a row of `PART_SCHEMA`."""
    return {
        "manifest": 0,
        "location": row["path"],
        "file_format": "PARQUET" if row["path"].lower().endswith(".parquet") else "AVRO",
        "partition_spec_id": row["spec_id"],
        "snapshot_id": row["snapshot_id"],
        "sequence_number": row["sequence_number"],
        "first_row_id": None,
        "part": 0,
        "parts": 1,
        "file_size_in_bytes": row["length"],
    }


def _unless_missing(row: Mapping[str, Any], read: Callable[[], T]) -> T | None:
    """Return what is read, or None for a missing file that no retained snapshot needs."""
    try:
        return read()
    except NotFoundError:
        if row["retained"]:
            raise
        return None
