"""Write the metadata and position deletes of a table with other locations, and copy files. Spark tasks import this."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv

from sparkmeta.avro.relocate import relocated_position_deletes
from sparkmeta.entries.locations import relocated
from sparkmeta.errors import CorruptFileError, NotFoundError, SparkmetaError
from sparkmeta.expr.arrays import field_id
from sparkmeta.maintain.reachable_tasks import CONTENTS, LIST, PATHS
from sparkmeta.manifests.relocate import MetadataRelocation
from sparkmeta.spec.entry import DELETE_FILE_PATH_ID, ContentType
from sparkmeta.spec.puffin import MAGIC as PUFFIN
from sparkmeta.spec.puffin import with_referenced_files
from sparkmeta.storage.content import read_ahead, translated_read_errors
from sparkmeta.storage.location import join

if TYPE_CHECKING:
    from sparkmeta.spec.locations import Locations, Relocation
    from sparkmeta.storage.executors import ExecutorReader, ExecutorWriter

POSITION_DELETES = CONTENTS[ContentType.POSITION_DELETES]
LENGTHS = pa.schema([pa.field("path", pa.string()), pa.field("length", pa.int64())])
"""A file that was rewritten, by its location before, and its new length in bytes."""

# -- Rewrite files ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Relocator:
    """Writes metadata files and position deletes, with changed locations, to a staging folder. Picklable.

    A file is always rewritten to the same bytes, so that a second run of a task does no harm.

    Attributes:
        relocation: the change of locations.
        staging: gives the files' locations in the staging folder.
        locations: resolves locations before the change.
        lengths: the new lengths of manifests, rows of `LENGTHS`.
    """

    reader: ExecutorReader
    writer: ExecutorWriter
    relocation: Relocation
    staging: Relocation
    locations: Locations
    lengths: pa.Table

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write files, rows with `content` and `path`, and yield them as `LENGTHS`.

        Raises:
            NotFoundError: a file is gone, or a list names a manifest that is gone.
            CorruptFileError: a file is damaged.
        """
        for batch in batches:
            for row, data in read_ahead(batch.to_pylist(), self._read, lambda row: row["length"] or 0):
                changed = self.relocated(row["content"], row["path"], data)
                self.writer.overwrite(self.staging.of(row["path"]), changed)
                yield _lengths([row["path"]], [len(changed)])

    def relocated(self, content: str, path: str, data: bytes) -> bytes:
        """Return the content of a file with changed locations."""
        if content == LIST:
            return self._metadata.list(data, path)
        if content == POSITION_DELETES:
            return _relocated_deletes(data, path, self.relocation)
        return self._metadata.manifest(data, path)

    def new_length(self, content: str, path: str) -> int:
        """Return the length of a rewritten file, in the staging folder or at its new location.

        A file that an earlier run has copied may exist only at its new location. If neither can be opened, the file is
        rewritten in memory.
        """
        with suppress(NotFoundError):
            return self.reader.length(self.staging.of(path))
        with suppress(SparkmetaError):
            return self.reader.length(self.relocation.of(path))
        return len(self.relocated(content, path, self.reader.read(path)))

    def _read(self, row: Mapping[str, Any]) -> bytes:
        return self.reader.read(row["path"])

    @cached_property
    def _metadata(self) -> MetadataRelocation:
        return MetadataRelocation(self.relocation, self.locations, self._sizes_of_deletes, self._lengths_of_manifests)

    def _sizes_of_deletes(self, paths: pa.Array) -> pa.Array:
        encoded = paths.dictionary_encode()
        sizes = [size for _, size in read_ahead(encoded.dictionary.to_pylist(), self._size_of_deletes, _no_bytes)]
        return pa.array(sizes, pa.int64()).take(encoded.indices)

    def _size_of_deletes(self, path: str) -> int | None:
        """Return the new size; None for a file that expiry has deleted, whose entry the root masks."""
        with suppress(NotFoundError):
            return self.new_length(POSITION_DELETES, path)
        return None

    def _lengths_of_manifests(self, paths: pa.Array) -> pa.Array:
        lengths = [self._length_of_path.get(path) for path in paths.to_pylist()]
        if None in lengths:
            path = paths[lengths.index(None)].as_py()
            raise NotFoundError(f"{path}: a manifest list or root names the manifest, which is gone")
        return pa.array(lengths, pa.int64())

    @cached_property
    def _length_of_path(self) -> dict[str, int]:
        columns = self.lengths.to_pydict()
        return dict(zip(columns["path"], columns["length"], strict=True))


@dataclass(frozen=True)
class Measurer:
    """Finds the new lengths of files that earlier runs have copied. Picklable."""

    relocator: Relocator

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield files, rows with `content` and `path`, as `LENGTHS`; see `Relocator.new_length`."""
        for batch in batches:
            measured = [*read_ahead(batch.to_pylist(), self._new_length, _no_bytes)]
            yield _lengths([row["path"] for row, _ in measured], [length for _, length in measured])

    def _new_length(self, row: Mapping[str, Any]) -> int:
        return self.relocator.new_length(row["content"], row["path"])


def _no_bytes(_: object) -> int:
    """Return the number of bytes that are read to find the length of a file."""
    return 0


def _lengths(paths: list[str], lengths: list[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(paths, pa.string()), pa.array(lengths, pa.int64())], schema=LENGTHS)


def _relocated_deletes(data: bytes, location: str, relocation: Relocation) -> bytes:
    """Return the content of a position delete file or a Puffin file with changed locations of data files."""
    if data.startswith(PUFFIN):
        return with_referenced_files(data, relocation.of, location)
    if data.startswith(b"PAR1"):
        return _relocated_parquet(data, location, relocation)
    if data.startswith(b"ORC"):
        return _relocated_orc(data, location, relocation)
    return relocated_position_deletes(data, location, relocation)


def _path_column(schema: pa.Schema, location: str) -> int:
    for index, field in enumerate(schema):
        if field_id(field) == DELETE_FILE_PATH_ID or field.name == "file_path":
            return index
    raise CorruptFileError(location, "file_path", None, "a position delete file must have it")


def _relocated_parquet(data: bytes, location: str, relocation: Relocation) -> bytes:
    with translated_read_errors(location, "file", "not a Parquet file"):
        index = _path_column(pq.read_schema(pa.BufferReader(data)), location)
        name = pq.read_schema(pa.BufferReader(data)).names[index]
        file = pq.ParquetFile(pa.BufferReader(data), read_dictionary=[name])
        groups = [file.read_row_group(number) for number in range(file.num_row_groups)]
    footer = file.metadata
    codec = footer.row_group(0).column(0).compression if groups else "ZSTD"
    schema = file.schema_arrow.remove_metadata()
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        schema,
        compression={"UNCOMPRESSED": "none", "LZ4_RAW": "lz4"}.get(codec, codec),
        use_dictionary=[name],
        store_schema=False,
        write_page_index=True,
    ) as writer:
        notes = {key: value for key, value in (footer.metadata or {}).items() if key != b"ARROW:schema"}
        writer.add_key_value_metadata({key.decode(): value.decode() for key, value in notes.items()})
        for group in groups:
            column = group.column(index)
            moved = pa.chunked_array([relocated(chunk, relocation) for chunk in column.chunks], column.type)
            writer.write_table(group.set_column(index, schema.field(index), moved), row_group_size=max(len(group), 1))
    return bytes(sink.getvalue())


def _relocated_orc(data: bytes, location: str, relocation: Relocation) -> bytes:
    from pyarrow import orc

    with translated_read_errors(location, "file", "not an ORC file"):
        file = orc.ORCFile(pa.BufferReader(data))
        table = file.read()
    index = _path_column(table.schema, location)
    moved = pa.chunked_array([relocated(chunk, relocation) for chunk in table.column(index).chunks], pa.string())
    sink = pa.BufferOutputStream()
    with orc.ORCWriter(sink, compression=file.compression.lower()) as writer:
        writer.write(table.set_column(index, table.schema.field(index), moved))
    return bytes(sink.getvalue())


# -- Where files are copied from, and to ------------------------------------------------------------------------------


PLANNED = pa.schema(
    [
        pa.field("content", pa.string()),
        pa.field("file_path", pa.string()),
        pa.field("file_size_in_bytes", pa.int64()),
        pa.field("rewritten", pa.bool_()),
        pa.field("source_path", pa.string()),
        pa.field("target_path", pa.string()),
    ]
)
"""The columns of `PathPlan.to_df`."""


@dataclass(frozen=True)
class Targets:
    """Adds the source and the target of each file's copy. Picklable."""

    relocation: Relocation
    staging: Relocation
    rewritten: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield files, rows with content, path and length, as `PLANNED`."""
        for batch in batches:
            content, path, length = (batch.column(name) for name in ("content", "path", "length"))
            rewritten = pc.is_in(content, pa.array(self.rewritten))
            source = pc.if_else(rewritten, relocated(path, self.staging), path)
            columns = [content, path, length, rewritten, source, relocated(path, self.relocation)]
            yield pa.RecordBatch.from_arrays(columns, schema=PLANNED)


@dataclass(frozen=True)
class Unmoved:
    """Finds the files whose locations lack the source prefix. Picklable."""

    relocation: Relocation

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the paths of files that do not move."""
        for batch in batches:
            path = batch.column("path")
            has_prefix = pc.match_substring_regex(path, self.relocation.pattern)
            yield pa.RecordBatch.from_arrays([path.filter(pc.invert(has_prefix))], schema=PATHS)


@dataclass(frozen=True)
class ListWriter:
    """Writes CSV files with the source and target of each file to copy. Picklable."""

    writer: ExecutorWriter
    folder: str
    targets: Targets

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write files, rows with content, path and length, to a CSV file, and yield its location.

        Without files, write nothing.
        """
        rows = pa.Table.from_batches(self.targets(batches), PLANNED).select(["source_path", "target_path"])
        if len(rows):
            data = _csv(rows)
            # A repeated task writes the same file again.
            location = join(self.folder, f"{hashlib.sha256(data).hexdigest()[:32]}.csv")
            self.writer.overwrite(location, data)
            yield pa.RecordBatch.from_arrays([pa.array([location])], schema=PATHS)


def _csv(rows: pa.Table) -> bytes:
    """Return rows as CSV without a header. If any value needs quotes, all values are quoted."""

    def written(quoting: str) -> bytes:
        sink = pa.BufferOutputStream()
        csv.write_csv(rows, sink, csv.WriteOptions(include_header=False, quoting_style=quoting))
        return bytes(sink.getvalue())

    try:
        return written("none")
    except pa.ArrowInvalid:
        return written("needed")


# -- Copy files -------------------------------------------------------------------------------------------------------


COPIED = pa.schema([pa.field("path", pa.string()), pa.field("length", pa.int64()), pa.field("copied", pa.bool_())])
"""The new location of a file, its length in bytes, and whether this run copied it."""

_CHUNK_BYTES: Final = 8 << 20


@dataclass(frozen=True)
class Copier:
    """Copies files. Picklable.

    A file at the target with the same length was copied before and stays. Rewritten files are always copied.

    Attributes:
        targets: adds `source_path`, `target_path` and `rewritten` to files.
    """

    reader: ExecutorReader
    writer: ExecutorWriter
    targets: Targets

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Copy files, rows with `content`, `path` and `length`, and yield them as `COPIED`.

        Raises:
            NotFoundError: a file is gone.
            CorruptFileError: a copy has another length than its source.
        """
        for batch in self.targets(batches):
            copies = [
                (row["target_path"], *copy)
                for row, copy in read_ahead(batch.to_pylist(), self._copy, lambda _: _CHUNK_BYTES)
            ]
            columns = [*map(list, zip(*copies, strict=True))] or [[], [], []]
            arrays = [pa.array(values, field.type) for values, field in zip(columns, COPIED, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=COPIED)

    def _copy(self, row: Mapping[str, Any]) -> tuple[int, bool]:
        """Copy a file unless an earlier run has copied it. Return its length, and whether it was copied."""
        source, target = row["source_path"], row["target_path"]
        length = self.reader.length(source)
        if source == target:
            return length, False
        if not row["rewritten"]:
            with suppress(NotFoundError):
                if self.reader.length(target) == length:
                    return length, False
        with self.reader.open(source) as stream, self.writer.open_new(target) as sink:
            shutil.copyfileobj(stream, sink, _CHUNK_BYTES)
        self.writer.sync(target)
        if (copied := self.reader.length(target)) != length:
            raise CorruptFileError(target, "length", copied, f"{source} has {length} bytes")
        return length, True
