"""Write manifests and the manifest list of a new snapshot, for tables of format versions 1 to 3."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.avro.manifest_list import MANIFEST_FILE_SCHEMA, manifests_of_list, write_manifest_list
from sparkmeta.avro.write import ManifestFormat, entry_schema, manifest_codec, manifest_properties, write_manifest
from sparkmeta.commit.base_root import with_counts
from sparkmeta.commit.new_snapshot import SnapshotNames, next_row_id, with_snapshot
from sparkmeta.commit.options import ListOptions
from sparkmeta.entries.live import estimated_entry_counts
from sparkmeta.entries.manifest_records import whole_manifests
from sparkmeta.errors import CommitConflictError, UnsupportedError, translated_errors
from sparkmeta.expr.arrays import whole
from sparkmeta.manifests.manifest_tasks import (
    GROUP,
    GROUP_MANIFEST_SCHEMA,
    LEFT_OUT,
    REMOVED,
    UNIT_SCHEMA,
    RewriteTasks,
)
from sparkmeta.manifests.placement import MOST_REQUESTS
from sparkmeta.manifests.sorted_manifests import added_entries, manifest_pieces, packed, spread
from sparkmeta.operations.table_operations import metadata_folder
from sparkmeta.session import map_arrow, map_on_driver
from sparkmeta.snapshot.state import task_reader
from sparkmeta.spec.bitmap import PositionBitmap, write_deletion_vector
from sparkmeta.spec.entry import ContentType
from sparkmeta.spec.partitioning import spec_partition_type
from sparkmeta.storage.encryption import KEY_METADATA, encrypted
from sparkmeta.storage.files import executor_writer
from sparkmeta.storage.keys import data_key_length, with_manifest_list_key
from sparkmeta.storage.location import join

if TYPE_CHECKING:
    from sparkmeta.snapshot.state import TableState
    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.spec.metadata_model import Summary


# -- Choose the format of a table's new Avro manifests ----------------------------------------------------------------


def manifest_format(
    state: TableState,
    content: ContentType,
    spec_id: int,
    name: str,
    target_bytes: int | None = None,
    format_version: int | None = None,
) -> ManifestFormat:
    """Return the format of a table's manifests with entries of one content and partition spec.

    Args:
        content: `DATA_MANIFEST` or `DELETE_MANIFEST`.
        name: the prefix of the files' names.
        target_bytes: the target size of a manifest. Defaults to the table's.
        format_version: the format version of the manifests. Defaults to the table's.

    Raises:
        ValidationError: a table property for manifests has an invalid value.
    """
    metadata, spec = state.metadata, state.specs[spec_id]
    version, written_content = format_version or metadata.format_version, int(content) - int(ContentType.DATA_MANIFEST)
    codec, level = manifest_codec(metadata)
    kinds = spec_partition_type(spec, metadata.schemas, state.types.typing_schema)
    return ManifestFormat(
        version,
        written_content,
        spec_id,
        tuple(state.types.spec_fields[spec_id]),
        entry_schema(version, kinds),
        manifest_properties(version, metadata.schema(), spec, written_content),
        codec,
        level,
        metadata_folder(metadata),
        name,
        target_bytes or ListOptions.of(metadata).target_bytes,
        executor_writer(state.files),
        state.types.spec_tuples,
        data_key_length(metadata),
    )


# -- Choose the manifests to merge (semantics 9.9) --------------------------------------------------------------------
# Merging commits of Iceberg's Java library choose the same manifests. Without a session, fewer are merged.

MOST_MERGED = 1_000
"""Maximum entries of each content that a commit without a session merges. Java's rule may merge a million, in 40 s."""

# Such a merge also covers at most this many manifests, since reading each one takes a request.
_MAX_MANIFESTS = 200


@dataclass(frozen=True)
class Bin:
    """Adjacent manifests of one partition spec.

    Attributes:
        indices: their indices in the list.
        is_merged: whether one manifest replaces them.
    """

    indices: tuple[int, ...]
    is_merged: bool


def merge_bins(manifests: pa.Table, options: ListOptions, most_entries: int | None = None) -> list[Bin]:
    """Pack the manifests of one content into bins, in the order of the next list.

    The newest partition spec comes first. Manifests of a spec are packed into bins of the target size, starting from
    the last. Bins of several manifests are merged. The bin with the commit's newest manifest is merged only if it holds
    at least `min_count` manifests.

    Args:
        manifests: rows of `MANIFEST_FILE_SCHEMA`, the commit's own first.
        most_entries: maximum entries of a bin. Only the newest of the bins to merge is merged then. None for no limit.
    """
    if not options.merges or not len(manifests):
        return [Bin((index,), is_merged=False) for index in range(len(manifests))]
    indices: dict[int, list[int]] = {}
    for index, spec_id in enumerate(manifests.column("partition_spec_id").to_pylist()):
        indices.setdefault(spec_id, []).append(index)
    sizes, max_manifests = whole(manifests.column("manifest_length")).to_numpy(), len(manifests)
    if most_entries is not None:
        counts = estimated_entry_counts(manifests, "manifest_length").to_numpy()
        sizes = np.maximum(sizes, counts * options.target_bytes // most_entries)
        max_manifests = _MAX_MANIFESTS
    bins = []
    for spec_id in sorted(indices, reverse=True):
        packs = packed(reversed(indices[spec_id]), options.target_bytes, sizes.__getitem__)
        from_end = [part for pack in packs for part in packed(pack, max_manifests, lambda _: 1)]
        for members in (tuple(reversed(pack)) for pack in reversed(from_end)):
            min_count = options.min_count if 0 in members else 2
            bins.append(Bin(members, is_merged=len(members) >= max(2, min_count)))
    if most_entries is None:
        return bins
    newest = next((pack for pack in bins if pack.is_merged), None)
    return [replace(pack, is_merged=pack is newest) for pack in bins]


# -- Write the new files of a commit to Avro manifests ----------------------------------------------------------------


def write_added(state: TableState, entries: pa.Table, names: SnapshotNames) -> pa.Table:
    """Write a few new files to manifests, one or more per partition spec, and return the manifests' rows.

    Args:
        state: the table.
        entries: see `added_entries`.
        names: the names of the snapshot's files, to which the new manifests are added.
    """
    rows, name = [MANIFEST_FILE_SCHEMA.empty_table()], names.file("m")
    deletes = pc.not_equal(entries.column("content_type"), int(ContentType.DATA))
    for kind, mask in ((ContentType.DATA_MANIFEST, pc.invert(deletes)), (ContentType.DELETE_MANIFEST, deletes)):
        kind_entries = entries.filter(mask)
        for spec_id in sorted(kind_entries.column("partition_spec_id").unique().to_pylist()):
            in_spec = pc.equal(kind_entries.column("partition_spec_id"), spec_id)
            spec_entries = kind_entries.filter(in_spec).combine_chunks()
            form = manifest_format(state, kind, spec_id, name)
            encoded = [added_entries(batch, form, names.snapshot_id) for batch in spec_entries.to_batches()]
            for piece in manifest_pieces(pa.Table.from_batches(encoded), form):
                content, row = write_manifest(piece, form)
                # The list, which is written next, is in the same folder.
                state.files.write_new(row.column("manifest_path")[0].as_py(), content, syncs_name=False)
                rows.append(row)
    return names.noted(pa.concat_tables(rows))


# -- Rewrite and merge manifests --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ManifestRewriter:
    """Rewrites manifests of a table, a few on the driver and more by a job.

    Attributes:
        names: the names of the snapshot's files, to which the new manifests are added.
    """

    state: TableState
    names: SnapshotNames

    def without_entries(self, manifests: pa.Table, removed: Mapping[str, PositionBitmap]) -> pa.Table:
        """Rewrite manifests without their removed entries, and return the rows of the new manifests in order.

        A removed entry becomes a DELETED entry of the snapshot; all other live entries become EXISTING, as in
        Iceberg's Java library.

        Args:
            manifests: rows of `MANIFEST_FILE_SCHEMA`. Manifests without removed entries are skipped.
            removed: manifest location -> ordinals of the entries to remove.

        Raises:
            UnsupportedError: a manifest can't be rewritten, or tasks can't open the table's files.
            CorruptFileError: a manifest is damaged.
        """
        paths = pa.array(sorted(removed), pa.string())
        affected = manifests.filter(pc.is_in(manifests.column("manifest_path"), paths))
        return self._written([affected.slice(index, 1) for index in range(len(affected))], removed)

    def corrected(self, manifests: pa.Table, left_out: Mapping[str, PositionBitmap]) -> pa.Table:
        """Rewrite each manifest, and return the rows of the new manifests in order. Raises as `without_entries` does.

        Live entries become EXISTING. Entries that are left out do not become DELETED: their files stay in the
        table. New rows have the counts and partition summaries of the entries.

        Args:
            manifests: rows of `MANIFEST_FILE_SCHEMA`.
            left_out: manifest location -> ordinals of entries to leave out.
        """
        return self._written([manifests.slice(index, 1) for index in range(len(manifests))], {}, left_out)

    def merged(self, groups: Sequence[pa.Table]) -> pa.Table:
        """Merge each group of manifests into one manifest, and return the rows of the new manifests.

        The snapshot's own ADDED and DELETED entries are unchanged. Other live entries become EXISTING, and other
        DELETED entries are dropped. Raises the same errors as `without_entries`.

        Args:
            groups: tables of `MANIFEST_FILE_SCHEMA`. The manifests of a group have one content and one partition spec.
                Rows of manifests that are not committed yet have no sequence number.
        """
        return self._written(groups, {})

    def _written(
        self,
        groups: Sequence[pa.Table],
        removed: Mapping[str, PositionBitmap],
        left_out: Mapping[str, PositionBitmap] | None = None,
    ) -> pa.Table:
        if not groups:
            return MANIFEST_FILE_SCHEMA.empty_table()
        state, name, forms = self.state, self.names.file("m"), {}
        for content, spec_id in {(_first(group, "content"), _first(group, "partition_spec_id")) for group in groups}:
            kind = ContentType.DELETE_MANIFEST if content else ContentType.DATA_MANIFEST
            forms[content, spec_id] = manifest_format(state, kind, spec_id, name)
        ordinals = {REMOVED: removed, LEFT_OUT: left_out or {}}
        units = pa.Table.from_pylist(
            [self._unit(number, group, ordinals) for number, group in enumerate(groups)], schema=UNIT_SCHEMA
        )
        tasks = RewriteTasks(task_reader(state), forms, self.names.snapshot_id)
        size = sum(pc.sum(group.column("manifest_length")).as_py() for group in groups)
        with translated_errors():
            if driver_rewrites(state, len(groups), size):
                written = map_on_driver(units, tasks.rewrite, GROUP_MANIFEST_SCHEMA)
            else:
                written = map_arrow(spread(state.spark, units), tasks.rewrite, GROUP_MANIFEST_SCHEMA).toArrow()
        return self.names.noted(written.cast(GROUP_MANIFEST_SCHEMA).sort_by(GROUP).drop_columns([GROUP]))

    def _unit(
        self, number: int, group: pa.Table, ordinals: Mapping[str, Mapping[str, PositionBitmap]]
    ) -> dict[str, Any]:
        state = self.state
        manifests = manifests_of_list(group, state.types.spec_fields, state.metadata.location)
        content, spec_id = _first(group, "content"), _first(group, "partition_spec_id")
        refuse_rewrite(manifests, spec_id, state)
        sources = []
        for row in whole_manifests(manifests).to_pylist():
            bitmaps = {name: of_manifest.get(row["location"]) for name, of_manifest in ordinals.items()}
            vectors = {
                name: None if bitmap is None else write_deletion_vector(bitmap) for name, bitmap in bitmaps.items()
            }
            sources.append(row | vectors)
        return {GROUP: number, "content": content, "spec_id": spec_id, "sources": sources}


def _first(manifests: pa.Table, name: str) -> Any:
    return manifests.column(name)[0].as_py()


def driver_rewrites(state: TableState, count: int, size: int) -> bool:
    """Return whether the driver rewrites manifests: if they are few and small, or there is no Spark.

    Args:
        state: the table.
        count: the number of manifests.
        size: their bytes.
    """
    limit = state.access.limit
    return count <= limit(MOST_REQUESTS) and size <= limit(state.settings.driver_manifest_bytes)


def refuse_rewrite(manifests: pa.Table, spec_id: int, state: TableState) -> None:
    """Refuse to rewrite manifests of one partition spec, rows of `TableState.manifests`.

    Raises:
        UnsupportedError: they are not Avro, or the spec has an unknown transform.
    """
    if unknown_fields := state.types.unwritable_fields.get(spec_id):
        raise UnsupportedError(
            f"{state.metadata.location}: partition spec {spec_id} has a transform that is not known, of field "
            f"{unknown_fields[0]}: its manifests can't be rewritten"
        )
    not_avro = manifests.filter(pc.not_equal(manifests.column("file_format"), "AVRO"))
    if len(not_avro):
        raise UnsupportedError(f"{not_avro.column('location')[0]} is not an Avro manifest: it can't be rewritten")


# -- Write the manifest list and metadata of a new snapshot -----------------------------------------------------------


@dataclass(frozen=True)
class NewList:
    """A snapshot with a manifest list, based on the snapshot of `state`. If `branch` is None, no branch moves to it."""

    state: TableState
    branch: str | None
    names: SnapshotNames

    def write(self, manifests: pa.Table, summary: Summary) -> TableMetadata:
        """Write the manifest list and return the table's metadata with its snapshot.

        Args:
            manifests: rows of `MANIFEST_FILE_SCHEMA` in list order. Rows of new manifests have no sequence number, as
                `write_manifest` returns them.

        Raises:
            ValidationError: a manifest lacks a value that the format version requires.
            EncryptionError: the table is encrypted, and there is no key client, or it refuses.
        """
        state, metadata = self.state, self.state.metadata
        version = metadata.format_version
        sequence_number = 0 if version == 1 else metadata.last_sequence_number + 1
        rows = stamped(manifests, self.names.snapshot_id, sequence_number)
        if version >= 2:
            rows = with_counts(state, rows)
        fields: dict[str, Any] = {
            "snapshot-id": self.names.snapshot_id,
            "sequence-number": sequence_number,
            "summary": summary,
        }
        first_id = next_row_id(metadata) if version >= 3 else None
        if first_id is not None:
            rows, next_id = with_row_ids(rows, first_id)
            fields |= {"first-row-id": first_id, "added-rows": next_id - first_id}
        self.names.used = frozenset(self.names.written.intersection(rows.column("manifest_path").to_pylist()))
        parent = None if state.snapshot is None else state.snapshot.snapshot_id
        properties = list_properties(version, self.names.snapshot_id, parent, sequence_number, first_id)
        name = f"snap-{self.names.snapshot_id}-{self.names.attempts}-{uuid.uuid4()}.avro"
        location = join(metadata_folder(metadata), name)
        content = write_manifest_list(rows, version, properties, metadata.location)
        length = data_key_length(metadata)
        keys = rows.filter(is_new(manifests)).column(KEY_METADATA)
        if keys.null_count if length is not None else keys.null_count < len(keys):
            raise CommitConflictError(f"{metadata.location}: the table became encrypted, or is not any more: try again")
        content, key_metadata = encrypted(content, length)
        if length is not None and key_metadata is not None:
            metadata, key_id = with_manifest_list_key(state.files, metadata, key_metadata, length)
            state, fields = replace(state, metadata=metadata), fields | {"key-id": key_id}
        self.names.lists.add(location)
        state.files.write_new(location, content)
        return with_snapshot(state, self.branch, fields | {"manifest-list": location})


def without_manifests(manifests: pa.Table, paths: Collection[str]) -> pa.Table:
    """Return rows of `MANIFEST_FILE_SCHEMA` without the manifests at `paths`."""
    is_named = pc.is_in(manifests.column("manifest_path"), pa.array(sorted(paths), pa.string()))
    return manifests.filter(pc.invert(is_named))


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


def stamped(manifests: pa.Table, snapshot_id: int, sequence_number: int, first_row_id: int | None = None) -> pa.Table:
    """Set the numbers of a snapshot on new manifests (semantics 9.5)."""
    is_uncommitted = is_new(manifests)
    columns = {name: whole(manifests.column(name)) for name in manifests.column_names}
    columns["min_sequence_number"] = pc.coalesce(
        columns["min_sequence_number"], pc.if_else(is_uncommitted, pa.scalar(sequence_number, pa.int64()), None)
    )
    numbers = {"added_snapshot_id": snapshot_id, "sequence_number": sequence_number}
    for name, number in (numbers if first_row_id is None else {**numbers, "first_row_id": first_row_id}).items():
        columns[name] = pc.if_else(is_uncommitted, pa.scalar(number, pa.int64()), columns[name])
    return pa.table(columns, MANIFEST_FILE_SCHEMA)


def with_row_ids(manifests: pa.Table, first_row_id: int) -> tuple[pa.Table, int]:
    """Assign first row ids to data manifests without one. Return the manifests and next row id (semantics 9.6).

    A manifest without counts gets no ids; lists of version 3 contain no such manifest.
    """
    ids: list[int | None] = []
    next_id = first_row_id
    columns = ("content", "first_row_id", "added_rows_count", "existing_rows_count")
    for content, assigned_id, *counts in zip(*(manifests.column(name).to_pylist() for name in columns), strict=True):
        if content != 0 or assigned_id is not None:
            ids.append(assigned_id if content == 0 else None)
            continue
        ids.append(next_id)
        next_id += sum(count or 0 for count in counts)
    index = manifests.column_names.index("first_row_id")
    return manifests.set_column(index, MANIFEST_FILE_SCHEMA.field(index), pa.array(ids, pa.int64())), next_id
