"""Find a snapshot's list of manifests: a manifest list, the table metadata, or a V4 root."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from sparkmeta.avro.manifest_list import decode_manifest_list, inline_manifest_list
from sparkmeta.errors import UnsupportedError
from sparkmeta.spec.metadata_model import locations_of

if TYPE_CHECKING:
    from sparkmeta.spec.metadata import Snapshot, TableMetadata
    from sparkmeta.storage.files import Files


def read_manifest_list(files: Files, metadata: TableMetadata, snapshot: Snapshot | None) -> pa.Table:
    """Read a snapshot's manifest list as `MANIFEST_FILE_SCHEMA`; no rows for a table without snapshots.

    Raises:
        NotFoundError: the list is missing.
        CorruptFileError: not a manifest list.
        UnsupportedError: the table is encrypted, or the snapshot has a metadata tree of another draft.
    """
    if snapshot is None:
        return pa.Table.from_batches([inline_manifest_list([], [], 0)])
    refuse_unreadable(metadata, snapshot)
    location = snapshot.manifest_list
    if location is None:
        paths = snapshot.inline_manifests or []
        batch = inline_manifest_list(paths, [files.length(path) for path in paths], snapshot.snapshot_id)
    else:
        batch = decode_manifest_list(files.read(location), location, locations_of(metadata))
    table = pa.Table.from_batches([batch])
    encrypted = table.filter(table.column("key_metadata").is_valid())
    if len(encrypted):
        path = encrypted.column("manifest_path")[0].as_py()
        raise UnsupportedError(
            f"{location}: manifest {path} is encrypted (key_metadata); encrypted tables can't be read"
        )
    return table


def root_location(metadata: TableMetadata, snapshot: Snapshot | None) -> str | None:
    """Return the location of a snapshot's root manifest; None if it has a manifest list."""
    if snapshot is None:
        return None
    refuse_unreadable(metadata, snapshot)
    return snapshot.manifests_location if snapshot.has_root else None


def refuse_unreadable(metadata: TableMetadata, snapshot: Snapshot) -> None:
    """Raise UnsupportedError for a snapshot whose manifest list is encrypted."""
    where = f"{metadata.location}: snapshot {snapshot.snapshot_id}"
    if snapshot.key_id is not None:
        raise UnsupportedError(f"{where} is encrypted (key-id {snapshot.key_id}); encrypted tables can't be read")
