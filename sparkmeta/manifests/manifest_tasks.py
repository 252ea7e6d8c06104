"""The tasks that rewrite, merge, sort and adopt Avro manifests. Without Spark: tasks import this."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.avro.container import Data, manifest_data
from sparkmeta.avro.manifest_list import MANIFEST_FILE_SCHEMA
from sparkmeta.avro.write import ManifestFormat, write_manifest
from sparkmeta.entries.live import is_live
from sparkmeta.entries.manifest_records import PART_SCHEMA, part_of
from sparkmeta.entries.projection import PARTITION, EntryProjection
from sparkmeta.entries.tally import file_sizes
from sparkmeta.expr.arrays import whole
from sparkmeta.expr.bounds import bound_arrow_type
from sparkmeta.manifests.decoder import EntryDecoder
from sparkmeta.manifests.raw_entries import RemovedEntries, encoded_entries
from sparkmeta.manifests.sorted_manifests import (
    SortedManifests,
    added_entries,
    existing_entries,
    manifest_pieces,
    task_rows,
)
from sparkmeta.manifests.v4.convert import TableMatch, added_version, content_columns
from sparkmeta.manifests.v4.layout import checked_table
from sparkmeta.manifests.v4.write import put_behind
from sparkmeta.spec.bitmap import read_inline_vector
from sparkmeta.spec.entry import ContentType
from sparkmeta.storage.content import read_ahead
from sparkmeta.storage.executors import ExecutorReader

# -- Rewrite and merge Avro manifests ---------------------------------------------------------------------------------


GROUP, REMOVED, LEFT_OUT = "group", "removed", "left_out"
# A manifest, with the ordinals of the entries to remove and of the entries to leave out.
_SOURCE = pa.struct([*PART_SCHEMA, *(pa.field(name, pa.binary()) for name in (REMOVED, LEFT_OUT))])
# A manifest to write and the manifests that its entries come from.
UNIT_SCHEMA = pa.schema(
    [
        pa.field(GROUP, pa.int32()),
        pa.field("content", pa.int32()),
        pa.field("spec_id", pa.int32()),
        pa.field("sources", pa.list_(_SOURCE)),
    ]
)
GROUP_MANIFEST_SCHEMA = MANIFEST_FILE_SCHEMA.append(pa.field(GROUP, pa.int32()))


@dataclass(frozen=True)
class RewriteTasks:
    """Rewrites manifests without Spark. Picklable.

    Attributes:
        forms: content and spec id -> the format of new manifests.
        snapshot_id: the snapshot that changes entries.
    """

    reader: ExecutorReader
    forms: Mapping[tuple[int, int], ManifestFormat]
    snapshot_id: int

    def rewrite(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write a manifest for each row of `UNIT_SCHEMA`, and yield rows of `GROUP_MANIFEST_SCHEMA`."""
        writer = next(iter(self.forms.values())).writer
        for group, row in put_behind(map(self._written, task_rows(batches)), writer, "manifest_path"):
            column = pa.array([group], pa.int32())
            yield from row.append_column(GROUP_MANIFEST_SCHEMA.field(GROUP), column).to_batches()

    def _written(self, unit: Mapping[str, Any]) -> tuple[int, tuple[bytes, pa.Table]]:
        form = self.forms[unit["content"], unit["spec_id"]]
        sources = read_ahead(
            unit["sources"], partial(manifest_data, self.reader), lambda source: source["file_size_in_bytes"] or 0
        )
        batches = [batch for source, data in sources for batch in self._entries(form, source, data)]
        return unit[GROUP], write_manifest(pa.Table.from_batches(batches), form)

    def _entries(self, form: ManifestFormat, source: Mapping[str, Any], data: Data) -> Iterator[pa.RecordBatch]:
        removed, left_out = (
            None if source[name] is None else read_inline_vector(source[name], source["location"])
            for name in (REMOVED, LEFT_OUT)
        )
        marked = None if removed is None else RemovedEntries(removed, self.snapshot_id)
        return encoded_entries(data, part_of(source), form.projection, form, marked, self.snapshot_id, left_out)


@dataclass(frozen=True)
class ExistingTasks:
    """Writes live entries to manifests as EXISTING entries. Picklable.

    Attributes:
        forms: manifest content and spec id -> the format of new manifests.
    """

    forms: Mapping[tuple[int, int], ManifestFormat]

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write live entries with all columns of manifests, and yield rows of `MANIFEST_FILE_SCHEMA`."""
        entries = pa.Table.from_batches([*batches]) if (batches := [*batches]) else None
        if entries is None or not len(entries):
            return
        writer = next(iter(self.forms.values())).writer
        for _, row in put_behind(self._encoded(entries.combine_chunks()), writer, "manifest_path"):
            yield from row.to_batches()

    def _encoded(self, entries: pa.Table) -> Iterator[tuple[None, tuple[bytes, pa.Table]]]:
        contents = pc.not_equal(entries.column("content_type"), int(ContentType.DATA)).cast(pa.int32())
        for content, spec_id in sorted(self.forms):
            is_in_form = pc.equal(entries.column("partition_spec_id"), spec_id)
            form_entries = entries.filter(pc.and_(is_in_form, pc.equal(contents, content)))
            form = self.forms[content, spec_id]
            for batch in form_entries.combine_chunks().to_batches():
                for piece in manifest_pieces(pa.Table.from_batches([existing_entries(batch, form)]), form):
                    yield None, write_manifest(piece, form)


# -- Sort the live entries of Avro manifests ------------------------------------------------------------------------


@dataclass(frozen=True)
class ManifestTasks(SortedManifests):
    """Reads, sorts and writes the entries of one partition spec. Picklable."""

    reader: ExecutorReader

    def cut_parts(self, bounds: pa.Table, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Cut the live entries of parts of manifests, rows of `PART_SCHEMA`, into ranges, rows of `RANGE_SCHEMA`.

        Args:
            bounds: the last keys of the ranges.
        """
        projection = self.form.projection
        for row in task_rows(batches):
            entries = encoded_entries(manifest_data(self.reader, row), part_of(row), projection, self.form)
            yield from self.cut_entries(bounds, entries)


# -- Write another table's live data files to Avro manifests ----------------------------------------------------------


SIZE = "files_size"
"""A column added to rows of manifests: the total bytes of their files."""

SIZED_MANIFEST_SCHEMA = MANIFEST_FILE_SCHEMA.append(pa.field(SIZE, pa.int64()))


@dataclass(frozen=True)
class AdoptedSpec:
    """A partition spec of another table. Its files go to manifests of this table's spec with the same fields.

    Attributes:
        manifest_format: the format of the manifests.
        field_ids: the other table's ids of the partition fields, in order; None for void ones.
    """

    manifest_format: ManifestFormat
    field_ids: tuple[int | None, ...]

    def tuples(self, partition: pa.StructArray) -> pa.StructArray:
        """Convert the other table's partition tuples to tuples of this table's spec."""
        kinds = [(str(field_id), bound_arrow_type(kind)) for field_id, kind in self.manifest_format.partition]
        values = [
            pa.nulls(len(partition), kind)
            if field_id is None
            else pc.struct_field(partition, [str(field_id)]).cast(kind)
            for field_id, (_, kind) in zip(self.field_ids, kinds, strict=True)
        ]
        return pa.StructArray.from_arrays(values, fields=[pa.field(name, kind) for name, kind in kinds])


@dataclass(frozen=True)
class TableTasks:
    """Reads entries of another table and writes the entries of live data files to manifests. Picklable.

    Attributes:
        projection: all columns of content entries except the first row id, plus metrics maps and `partition`.
        match: checks the entries, and maps their ids.
        specs: the other table's partition specs by id.
        snapshot_id: the snapshot that adds the files.
    """

    decoder: EntryDecoder
    projection: EntryProjection
    match: TableMatch
    specs: Mapping[int, AdoptedSpec]
    snapshot_id: int

    def write_units(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the files of each list of parts of manifests, and yield rows of `SIZED_MANIFEST_SCHEMA`."""
        units = (pa.RecordBatch.from_struct_array(parts.values) for batch in batches for parts in batch.column("parts"))
        yield from self._written(self.decoder.decode_parts(self.projection, [parts]) for parts in units)

    def write(self, entries: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the files of entries, rows of `projection`, and yield rows of `SIZED_MANIFEST_SCHEMA`."""
        yield from self._written([entries])

    def _written(self, units: Iterable[Iterable[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        if not self.specs:
            return
        writer = next(iter(self.specs.values())).manifest_format.writer
        encoded = (
            (pc.sum(piece.column(SIZE)).as_py(), write_manifest(piece, form))
            for unit in units
            for form, piece in self._pieces(unit)
        )
        for size, row in put_behind(encoded, writer, "manifest_path"):
            yield from row.append_column(SIZED_MANIFEST_SCHEMA.field(SIZE), pa.array([size], pa.int64())).to_batches()

    def _pieces(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[ManifestFormat, pa.Table]]:
        """Yield the encoded entries of each new manifest."""
        by_spec: dict[int, list[pa.RecordBatch]] = {}
        for batch in batches:
            for spec_id, files in self._live_files(batch):
                by_spec.setdefault(spec_id, []).append(self._encoded(files, self.specs[spec_id]))
        for spec_id, encoded in sorted(by_spec.items()):
            form = self.specs[spec_id].manifest_format
            for piece in manifest_pieces(pa.Table.from_batches(encoded).combine_chunks(), form):
                yield form, piece

    def _live_files(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the live files of each partition spec.

        Raises:
            ValidationError: an entry breaks a rule of the field matrix.
        """
        files = batch.filter(is_live(batch))
        for name, values in content_columns(files).items():
            files = files.set_column(files.schema.get_field_index(name), name, values)
        self.match.check(checked_table({name: files.column(name) for name in files.schema.names}))
        specs = files.column("partition_spec_id")
        for spec_id in specs.unique().to_pylist():
            yield spec_id, files.filter(pc.equal(specs, spec_id))

    def _encoded(self, files: pa.RecordBatch, adopted: AdoptedSpec) -> pa.RecordBatch:
        """Return files as ADDED entries with the columns `entry` and `SIZE`."""
        rows, form = len(files), adopted.manifest_format
        columns = {name: files.column(name) for name in files.schema.names}
        columns["version_info"] = added_version(rows, files.schema)
        columns["first_row_id"] = pa.nulls(rows, pa.int64())
        columns["sort_order_id"] = self.match.sort_orders_of(columns["sort_order_id"])
        columns["partition_spec_id"] = pa.repeat(pa.scalar(form.spec_id, pa.int32()), rows)
        if form.partition:
            columns[PARTITION] = adopted.tuples(whole(columns[PARTITION]))
        else:
            columns.pop(PARTITION, None)
        entries = added_entries(pa.RecordBatch.from_pydict(columns), form, self.snapshot_id)
        return entries.append_column(SIZE, file_sizes(files))
