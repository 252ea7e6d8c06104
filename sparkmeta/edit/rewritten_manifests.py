"""Rewrite manifests of a v1 to v3 table: without entries that a snapshot removes, or merged with others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.edit.range_sort import spread, task_reader, task_rows
from sparkmeta.edit.sorted_manifests import manifest_format
from sparkmeta.errors import UnsupportedError, translated_errors
from sparkmeta.manifests.avro.container import manifest_data
from sparkmeta.manifests.avro.raw_entries import RemovedEntries, encoded_entries
from sparkmeta.manifests.avro.write import ManifestFormat, write_manifest
from sparkmeta.manifests.manifest_list import MANIFEST_FILE_SCHEMA, manifests_of_list
from sparkmeta.manifests.parts import PART_SCHEMA, part_of, whole_manifests
from sparkmeta.manifests.placement import MOST_REQUESTS
from sparkmeta.manifests.projection import EntryProjection
from sparkmeta.manifests.v4.write import put_behind
from sparkmeta.session import map_arrow, map_on_driver
from sparkmeta.spec.bitmap import PositionBitmap, read_inline_vector, write_deletion_vector
from sparkmeta.spec.entry import ContentType
from sparkmeta.storage.executors import ExecutorReader

if TYPE_CHECKING:
    from sparkmeta.state import TableState

_GROUP, _REMOVED = "group", "removed"
_SOURCE = pa.struct([*PART_SCHEMA, pa.field(_REMOVED, pa.binary())])
# A manifest to write and the manifests that its entries come from.
_UNIT_SCHEMA = pa.schema(
    [
        pa.field(_GROUP, pa.int32()),
        pa.field("content", pa.int32()),
        pa.field("spec_id", pa.int32()),
        pa.field("sources", pa.list_(_SOURCE)),
    ]
)
_WRITTEN_SCHEMA = MANIFEST_FILE_SCHEMA.append(pa.field(_GROUP, pa.int32()))


@dataclass(frozen=True)
class ManifestRewriter:
    """Rewrites manifests of a table, a few on the driver and more by a job.

    Attributes:
        snapshot_id: the snapshot whose changes the new manifests record.
        name: the prefix of the new manifests' names.
        target_bytes: the target size of a manifest.
    """

    state: TableState
    snapshot_id: int
    name: str
    target_bytes: int

    def without_entries(self, manifests: pa.Table, removed: Mapping[str, PositionBitmap]) -> pa.Table:
        """Rewrite manifests without their removed entries, and return the rows of the new ones in order.

        A removed entry becomes a DELETED entry of the snapshot, and all other live ones become EXISTING, as in
        Iceberg's Java library.

        Args:
            manifests: rows of `MANIFEST_FILE_SCHEMA`. Those without removed entries are skipped.
            removed: manifest location -> ordinals of the entries to remove.

        Raises:
            UnsupportedError: a manifest can't be rewritten, or tasks can't open the table's files.
            CorruptFileError: a manifest is damaged.
        """
        paths = pa.array(sorted(removed), pa.string())
        affected = manifests.filter(pc.is_in(manifests.column("manifest_path"), paths))
        return self._written([affected.slice(place, 1) for place in range(len(affected))], removed)

    def merged(self, groups: Sequence[pa.Table]) -> pa.Table:
        """Merge each group of manifests into one manifest, and return the rows of the new ones.

        The snapshot's own ADDED and DELETED entries are unchanged. Other live entries become EXISTING, and other
        DELETED ones are dropped. Raises the same errors as `without_entries`.

        Args:
            groups: rows of `MANIFEST_FILE_SCHEMA` of one content and partition spec each. Those of manifests that are
                not committed yet have no sequence number.
        """
        return self._written(groups, {})

    def _written(self, groups: Sequence[pa.Table], removed: Mapping[str, PositionBitmap]) -> pa.Table:
        if not groups:
            return MANIFEST_FILE_SCHEMA.empty_table()
        state, forms = self.state, {}
        for content, spec_id in {(_first(group, "content"), _first(group, "partition_spec_id")) for group in groups}:
            kind = ContentType.DELETE_MANIFEST if content else ContentType.DATA_MANIFEST
            forms[content, spec_id] = manifest_format(state, kind, spec_id, self.name, self.target_bytes)
        units = pa.Table.from_pylist([self._unit(*each, removed) for each in enumerate(groups)], schema=_UNIT_SCHEMA)
        tasks = _RewriteTasks(task_reader(state), forms, self.snapshot_id)
        size = sum(pc.sum(group.column("manifest_length")).as_py() for group in groups)
        with translated_errors():
            if len(groups) <= MOST_REQUESTS and size <= state.settings.driver_manifest_bytes:
                written = map_on_driver(units, tasks.rewrite, _WRITTEN_SCHEMA)
            else:
                written = map_arrow(spread(state.spark, units), tasks.rewrite, _WRITTEN_SCHEMA).toArrow()
        return written.cast(_WRITTEN_SCHEMA).sort_by(_GROUP).drop_columns([_GROUP])

    def _unit(self, place: int, group: pa.Table, removed: Mapping[str, PositionBitmap]) -> dict[str, Any]:
        state = self.state
        manifests = manifests_of_list(group, state.types.spec_fields, state.metadata.location)
        content, spec_id = _first(group, "content"), _first(group, "partition_spec_id")
        refuse_rewrite(manifests, spec_id, state)
        sources = []
        for row in whole_manifests(manifests).to_pylist():
            ordinals = removed.get(row["location"])
            sources.append(row | {_REMOVED: None if ordinals is None else write_deletion_vector(ordinals)})
        return {_GROUP: place, "content": content, "spec_id": spec_id, "sources": sources}


def _first(manifests: pa.Table, name: str) -> Any:
    return manifests.column(name)[0].as_py()


def refuse_rewrite(manifests: pa.Table, spec_id: int, state: TableState) -> None:
    """Refuse to rewrite manifests of one partition spec, rows of `TableState.manifests`.

    Raises:
        UnsupportedError: they are encrypted or not Avro, or the spec has an unknown transform.
    """
    if unknown := state.types.unwritable_fields.get(spec_id):
        raise UnsupportedError(
            f"{state.metadata.location}: partition spec {spec_id} has a transform that is not known, of field "
            f"{unknown[0]}: its manifests can't be rewritten"
        )
    encrypted = manifests.filter(manifests.column("key_metadata").is_valid())
    if len(encrypted):
        raise UnsupportedError(f"{encrypted.column('location')[0]} is encrypted: it can't be rewritten")
    other = manifests.filter(pc.not_equal(manifests.column("file_format"), "AVRO"))
    if len(other):
        raise UnsupportedError(f"{other.column('location')[0]} is not an Avro manifest: it can't be rewritten")


@dataclass(frozen=True)
class _RewriteTasks:
    """Rewrites manifests without Spark. Picklable.

    Attributes:
        forms: content and spec id -> the format of new manifests.
        snapshot_id: the snapshot that changes entries.
    """

    reader: ExecutorReader
    forms: Mapping[tuple[int, int], ManifestFormat]
    snapshot_id: int

    def rewrite(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write a manifest for each row of `_UNIT_SCHEMA`, and yield rows of `_WRITTEN_SCHEMA`."""
        writer = next(iter(self.forms.values())).writer
        for place, row in put_behind(map(self._written, task_rows(batches)), writer, "manifest_path"):
            column = pa.array([place], pa.int32())
            yield from row.append_column(_WRITTEN_SCHEMA.field(_GROUP), column).to_batches()

    def _written(self, unit: Mapping[str, Any]) -> tuple[int, tuple[bytes, pa.Table]]:
        form = self.forms[unit["content"], unit["spec_id"]]
        read = partial(self._entries, form, form.projection)
        batches = [batch for source in unit["sources"] for batch in read(source)]
        return unit[_GROUP], write_manifest(pa.Table.from_batches(batches), form)

    def _entries(
        self, form: ManifestFormat, projection: EntryProjection, source: Mapping[str, Any]
    ) -> Iterator[pa.RecordBatch]:
        vector = source[_REMOVED]
        removed = None
        if vector is not None:
            removed = RemovedEntries(read_inline_vector(vector, source["location"]), self.snapshot_id)
        data = manifest_data(self.reader, source)
        return encoded_entries(data, part_of(source), projection, form, removed, self.snapshot_id)
