"""Write the manifest list and metadata of a new snapshot, for tables of format versions 1 to 3."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.avro.manifest_list import MANIFEST_FILE_SCHEMA, write_manifest_list
from sparkmeta.edit.manifest_counts import with_counts
from sparkmeta.edit.new_snapshot import SnapshotNames, next_row_id, with_snapshot
from sparkmeta.entries.arrays import whole
from sparkmeta.operations.table_operations import metadata_folder
from sparkmeta.storage.location import join

if TYPE_CHECKING:
    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.spec.snapshot import Summary
    from sparkmeta.state import TableState


@dataclass(frozen=True)
class NewList:
    """A snapshot with a manifest list, based on the snapshot of `state`, to commit to a branch; None to no branch."""

    state: TableState
    branch: str | None
    names: SnapshotNames

    def commit(self, manifests: pa.Table, summary: Summary) -> TableMetadata:
        """Write the manifest list and return the table's metadata with its snapshot.

        Args:
            manifests: rows of `MANIFEST_FILE_SCHEMA` in list order. Those of new manifests are as returned by
                `write_manifest`, without a sequence number.

        Raises:
            ValidationError: a manifest lacks a value that the format version requires.
        """
        state, metadata = self.state, self.state.metadata
        version = metadata.format_version
        sequence_number = 0 if version == 1 else metadata.last_sequence_number + 1
        rows = _stamped(manifests, self.names.snapshot_id, sequence_number)
        if version >= 2:
            rows = with_counts(state, rows)
        fields: dict[str, Any] = {
            "snapshot-id": self.names.snapshot_id,
            "sequence-number": sequence_number,
            "summary": summary,
        }
        first = next_row_id(metadata) if version >= 3 else None
        if first is not None:
            rows, end = with_row_ids(rows, first)
            fields |= {"first-row-id": first, "added-rows": end - first}
        self.names.used = frozenset(self.names.written.intersection(rows.column("manifest_path").to_pylist()))
        parent = None if state.snapshot is None else state.snapshot.snapshot_id
        properties = list_properties(version, self.names.snapshot_id, parent, sequence_number, first)
        name = f"snap-{self.names.snapshot_id}-{self.names.attempts}-{uuid.uuid4()}.avro"
        location = join(metadata_folder(metadata), name)
        self.names.lists.add(location)
        state.files.write_new(location, write_manifest_list(rows, version, properties, metadata.location))
        return with_snapshot(state, self.branch, fields | {"manifest-list": location})


def without_manifests(manifests: pa.Table, paths: Collection[str]) -> pa.Table:
    """Return rows of `MANIFEST_FILE_SCHEMA` without the manifests at `paths`."""
    named = pc.is_in(manifests.column("manifest_path"), pa.array(sorted(paths), pa.string()))
    return manifests.filter(pc.invert(named))


def is_new(manifests: pa.Table) -> pa.Array:
    """Return which rows of `MANIFEST_FILE_SCHEMA` describe manifests that are not committed yet."""
    return whole(manifests.column("sequence_number")).is_null()


def list_properties(
    format_version: int, snapshot_id: int, parent_id: int | None, sequence_number: int, first_row_id: int | None
) -> dict[str, str]:
    """Return the key-value metadata of a snapshot's manifest list."""
    properties = {
        "snapshot-id": str(snapshot_id),
        "parent-snapshot-id": "null" if parent_id is None else str(parent_id),
        "format-version": str(format_version),
    }
    if format_version >= 2:
        properties["sequence-number"] = str(sequence_number)
    if format_version >= 3:
        properties["first-row-id"] = str(first_row_id)
    return properties


def _stamped(manifests: pa.Table, snapshot_id: int, sequence_number: int) -> pa.Table:
    """Set the commit's snapshot id and sequence number on new manifests (semantics 9.5)."""
    new = is_new(manifests)
    columns = {name: whole(manifests.column(name)) for name in manifests.column_names}
    columns["min_sequence_number"] = pc.coalesce(
        columns["min_sequence_number"], pc.if_else(new, pa.scalar(sequence_number, pa.int64()), None)
    )
    for name, number in (("added_snapshot_id", snapshot_id), ("sequence_number", sequence_number)):
        columns[name] = pc.if_else(new, pa.scalar(number, pa.int64()), columns[name])
    return pa.table(columns, MANIFEST_FILE_SCHEMA)


def with_row_ids(manifests: pa.Table, first_row_id: int) -> tuple[pa.Table, int]:
    """Assign first row ids to data manifests without one. Return the manifests and next row id (semantics 9.6).

    A manifest without counts takes no ids; version 3 lists have no such manifest.
    """
    ids: list[int | None] = []
    following = first_row_id
    columns = ("content", "first_row_id", "added_rows_count", "existing_rows_count")
    for content, known, *counts in zip(*(manifests.column(name).to_pylist() for name in columns), strict=True):
        if content != 0 or known is not None:
            ids.append(known if content == 0 else None)
            continue
        ids.append(following)
        following += sum(count or 0 for count in counts)
    place = manifests.column_names.index("first_row_id")
    return manifests.set_column(place, MANIFEST_FILE_SCHEMA.field(place), pa.array(ids, pa.int64())), following
