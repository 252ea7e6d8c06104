"""The metadata tables of manifest lists: manifests, and all_manifests over all snapshots."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from sparkmeta.arrow_types import spark_schema
from sparkmeta.avro.manifest_list import inline_manifest_list
from sparkmeta.entries.relation import union
from sparkmeta.expr.bounds import ANY
from sparkmeta.inspect.manifest_rows import (
    ALL_MANIFESTS,
    LIST_SCHEMA,
    MANIFESTS,
    ListRows,
    ListShape,
    SpecTransforms,
    all_manifests_rows,
    manifest_rows,
)
from sparkmeta.inspect.metadata_rows import MetadataRows, few_files, read_files
from sparkmeta.manifests.reader import root_location
from sparkmeta.storage.encryption import KEY_METADATA
from sparkmeta.storage.keys import manifest_list_key

if TYPE_CHECKING:
    from sparkmeta.entries.relation import Relation
    from sparkmeta.snapshot.state import TableState


def manifests(state: TableState) -> MetadataRows:
    """Return a row for each manifest of the snapshot, with partition summaries as text.

    Counts, which Iceberg requires, are null if an old list lacks them.
    """
    location = (state.snapshot.manifests_location or "") if state.snapshot else ""
    rows = (manifest_rows(batch, spec_transforms(state), location) for batch in state.manifest_files.to_batches())
    table = pa.Table.from_batches(rows, MANIFESTS)
    fields = [field.with_nullable(field.nullable or table[field.name].null_count > 0) for field in table.schema]
    return MetadataRows(state, table, spark_schema(pa.schema(fields)))


def all_manifests(state: TableState, most_rows: int) -> MetadataRows:
    """Return a row for each manifest of each snapshot."""
    shape = partial(all_manifests_rows, spec_transforms(state))
    return MetadataRows(state, listed_manifests(state, shape, ALL_MANIFESTS, most_rows), spark_schema(ALL_MANIFESTS))


def listed_manifests(state: TableState, shape: ListShape, schema: pa.Schema, most_rows: int) -> Relation:
    """Return the rows of the manifest lists of all snapshots, converted by `shape`.

    The driver reads the lists if they are few. Otherwise the result is a lazy DataFrame.

    Args:
        state: the table.
        shape: converts the rows of a list.
        schema: the schema of the result.
        most_rows: the maximum number of rows of lists that the driver reads.

    Raises:
        EncryptionError: the key of a snapshot's manifest list is missing, refused or wrong.
        UnsupportedError: a metadata tree is encrypted.
    """
    for snapshot in state.metadata.snapshots:
        root_location(state.metadata, snapshot)
    lists = pa.Table.from_pylist(
        [
            {
                "reference_snapshot_id": snapshot.snapshot_id,
                "location": snapshot.manifests_location,
                "root_sequence_number": (snapshot.sequence_number or 0) if snapshot.has_root else None,
                KEY_METADATA: manifest_list_key(state.files, state.metadata, snapshot),
            }
            for snapshot in state.metadata.snapshots
            if snapshot.manifests_location
        ],
        schema=LIST_SCHEMA,
    )
    rows = ListRows(shape, state.types.tree_types if state.has_trees else None, state.types.locations)
    inline = [shape(batch, snapshot_id, f"snapshot {snapshot_id}") for snapshot_id, batch in _inline_lists(state)]
    in_metadata, row_type = pa.Table.from_batches(inline, schema), spark_schema(schema)
    read = read_files(state, lists, rows, row_type, partial(few_lists, state, most_rows))
    return union(read, in_metadata, state) if inline else read


def few_lists(state: TableState, most_rows: int, lists: pa.Table) -> bool:
    """Return whether manifest lists are few, and small like the list of the snapshot; see `few_files`."""
    newest, count = state.manifest_files if state.tree is None else state.tree.root.table, len(lists)
    return few_files(state, count, newest.nbytes * count, len(newest) * count, most_rows)


def spec_transforms(state: TableState) -> SpecTransforms:
    """Return the transforms and types that format summaries. Values of unknown type are text."""
    return {
        spec_id: tuple(
            (str(field.transform), "string" if type_name == ANY else type_name)
            for field, (_, type_name) in zip(state.specs[spec_id].fields, fields, strict=True)
        )
        for spec_id, fields in state.types.spec_fields.items()
    }


def _inline_lists(state: TableState) -> list[tuple[int, pa.RecordBatch]]:
    """Return (snapshot id, rows of MANIFEST_FILE_SCHEMA) for v1 snapshots whose manifests the table metadata lists."""
    inline = [
        (snapshot.snapshot_id, snapshot.inline_manifests)
        for snapshot in state.metadata.snapshots
        if snapshot.inline_manifests
    ]
    lengths = {path: 0 for _, paths in inline for path in paths}
    lengths.update((path, state.files.length(path)) for path in lengths)
    return [
        (snapshot_id, inline_manifest_list(paths, [lengths[path] for path in paths], snapshot_id))
        for snapshot_id, paths in inline
    ]
