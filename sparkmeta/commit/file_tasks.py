"""The tasks that encode many new files for Avro manifests. Without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.avro.write import ManifestFormat
from sparkmeta.commit.file_rows import refuse_kinds
from sparkmeta.commit.listed_rows import ListedRows
from sparkmeta.edit.entry_tasks import added_entries
from sparkmeta.edit.sorted_manifests import SortedManifests, key_table
from sparkmeta.edit.tally import tally_of
from sparkmeta.entries.arrays import whole, with_plain_types
from sparkmeta.entries.projection import ORDINAL, PARTITION
from sparkmeta.manifests.v4.write import read_rows_stream, rows_stream
from sparkmeta.spec.entry import ContentType

PLACE = "place"
"""A column in addition to those of new files: their order."""

CONTENT, SPEC_ID, KINDS, TUPLES, KEYS, ROWS = "content", "spec_id", "kinds", "tuples", "keys", "rows"

FILES_PER_KEY = 100
"""The number of files for each key in the sample by which ranges are bounded."""

_KIND = pa.struct(
    [
        pa.field("kind", pa.string()),
        pa.field("files", pa.int64()),
        pa.field("records", pa.int64()),
        pa.field("size", pa.int64()),
    ]
)


@dataclass(frozen=True)
class FileTasks:
    """Encodes new files. Picklable.

    Attributes:
        rows: converts rows of files to entries.
        forms: (manifest content, partition spec) -> the format of its manifests.
        allowed: the content types that the operation may add.
        snapshot_id: the snapshot that adds the files.
    """

    rows: ListedRows
    forms: Mapping[tuple[int, int], ManifestFormat]
    allowed: frozenset[int]
    snapshot_id: int

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of encoded files: a row for each manifest content and partition spec of a batch of files.

        kinds: counts of the files by `FileKind`. tuples: their distinct partition tuples, unless the table has no
        partition fields. keys: a sample of their sort keys. rows: their encoded entries. The last two are Arrow
        streams.
        """
        fields = [pa.field(CONTENT, pa.int32()), pa.field(SPEC_ID, pa.int32()), pa.field(KINDS, pa.list_(_KIND))]
        if self.rows.partition:
            fields.append(pa.field(TUPLES, pa.list_(self.rows.schema.field(PARTITION).type)))
        return pa.schema([*fields, pa.field(KEYS, pa.binary()), pa.field(ROWS, pa.binary())])

    def encode(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Encode batches of files with the column `place`, and yield rows of `schema`.

        Raises:
            ValidationError: a row does not describe a file that the operation may add.
        """
        for raw in batches:
            files = with_plain_types(raw)
            entries = self.rows.entries(pa.Table.from_batches([files])).combine_chunks()
            refuse_kinds(entries, self.allowed, self.rows.table)
            place = entries.schema.get_field_index(ORDINAL)
            entries = entries.set_column(place, entries.schema.field(place), files.column(PLACE))
            contents = pc.not_equal(entries.column("content_type"), int(ContentType.DATA)).cast(pa.int32())
            marked = pa.table({CONTENT: contents, SPEC_ID: entries.column("partition_spec_id")})
            for group in marked.group_by([CONTENT, SPEC_ID]).aggregate([]).to_pylist():
                same = pc.and_(*(pc.equal(marked.column(name), group[name]) for name in (CONTENT, SPEC_ID)))
                yield self._encoded(entries.filter(same).combine_chunks(), **group)

    def _encoded(self, entries: pa.Table, content: int, spec_id: int) -> pa.RecordBatch:
        form = self.forms[content, spec_id]
        encoded = pa.Table.from_batches(
            [added_entries(batch, form, self.snapshot_id) for batch in entries.to_batches()]
        )
        kinds = [
            {"kind": kind.value, "files": count.files, "records": count.records, "size": count.size}
            for kind, count in tally_of(entries).items()
        ]
        # At random, since partitions may alternate.
        count = -(-len(encoded) // FILES_PER_KEY)
        places = np.random.default_rng(7).choice(len(encoded), count, replace=False)
        keys = key_table(encoded.take(pa.array(places)), tuple(field_id for field_id, _ in form.partition))
        values: dict[str, Any] = {CONTENT: content, SPEC_ID: spec_id, KINDS: kinds}
        values |= {KEYS: rows_stream(keys), ROWS: rows_stream(encoded, compression="lz4")}
        columns = {name: pa.array([value], self.schema.field(name).type) for name, value in values.items()}
        if self.rows.partition:
            columns[TUPLES] = self._tuples(entries)
        return pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)

    def _tuples(self, entries: pa.Table) -> pa.ListArray:
        """Return the distinct partition tuples of entries, as an array of one list."""
        children = pa.Table.from_struct_array(entries.column(PARTITION))
        distinct = children.group_by(children.column_names).aggregate([]).select(children.column_names)
        kind = self.schema.field(TUPLES).type
        arrays = [whole(column) for column in distinct.columns]
        structs = pa.StructArray.from_arrays(arrays, fields=[*kind.value_type])
        return pa.ListArray.from_arrays(pa.array([0, len(structs)], pa.int32()), structs, type=kind)


def read_keys(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the sampled sort keys of encoded files."""
    for blob in _blobs(batches, KEYS):
        yield from blob.cast(schema).to_batches()


def cut_rows(tasks: SortedManifests, bounds: pa.Table, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Cut encoded files into ranges, rows of `RANGE_SCHEMA`, given the last key of each range."""
    entries = (batch for table in _blobs(batches, ROWS) for batch in table.to_batches())
    yield from tasks.cut_entries(bounds, entries)


def _blobs(batches: Iterable[pa.RecordBatch], name: str) -> Iterator[pa.Table]:
    for batch in batches:
        for blob in batch.column(name):
            yield read_rows_stream(blob.as_buffer())
