"""Rewrite manifests of a v1 to v3 table: without entries that a snapshot removes, or merged with others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.avro.manifest_list import MANIFEST_FILE_SCHEMA, manifests_of_list
from sparkmeta.edit.manifest_format import manifest_format
from sparkmeta.edit.range_sort import spread, task_reader
from sparkmeta.edit.rewrite_tasks import GROUP, REMOVED, UNIT_SCHEMA, WRITTEN_SCHEMA, RewriteTasks
from sparkmeta.entries.parts import whole_manifests
from sparkmeta.errors import UnsupportedError, translated_errors
from sparkmeta.manifests.placement import MOST_REQUESTS
from sparkmeta.session import map_arrow, map_on_driver
from sparkmeta.spec.bitmap import PositionBitmap, write_deletion_vector
from sparkmeta.spec.entry import ContentType

if TYPE_CHECKING:
    from sparkmeta.state import TableState


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
        units = pa.Table.from_pylist([self._unit(*each, removed) for each in enumerate(groups)], schema=UNIT_SCHEMA)
        tasks = RewriteTasks(task_reader(state), forms, self.snapshot_id)
        size = sum(pc.sum(group.column("manifest_length")).as_py() for group in groups)
        with translated_errors():
            if len(groups) <= MOST_REQUESTS and size <= state.settings.driver_manifest_bytes:
                written = map_on_driver(units, tasks.rewrite, WRITTEN_SCHEMA)
            else:
                written = map_arrow(spread(state.spark, units), tasks.rewrite, WRITTEN_SCHEMA).toArrow()
        return written.cast(WRITTEN_SCHEMA).sort_by(GROUP).drop_columns([GROUP])

    def _unit(self, place: int, group: pa.Table, removed: Mapping[str, PositionBitmap]) -> dict[str, Any]:
        state = self.state
        manifests = manifests_of_list(group, state.types.spec_fields, state.metadata.location)
        content, spec_id = _first(group, "content"), _first(group, "partition_spec_id")
        refuse_rewrite(manifests, spec_id, state)
        sources = []
        for row in whole_manifests(manifests).to_pylist():
            ordinals = removed.get(row["location"])
            sources.append(row | {REMOVED: None if ordinals is None else write_deletion_vector(ordinals)})
        return {GROUP: place, "content": content, "spec_id": spec_id, "sources": sources}


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
