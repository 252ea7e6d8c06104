"""Write the new files of a commit to Avro manifests: few on the driver, many in tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.avro.manifest_list import MANIFEST_FILE_SCHEMA
from sparkmeta.avro.write import write_manifest
from sparkmeta.edit.entry_tasks import added_entries
from sparkmeta.edit.manifest_format import manifest_format
from sparkmeta.edit.sorted_manifests import manifest_pieces
from sparkmeta.spec.entry import ContentType

if TYPE_CHECKING:
    from sparkmeta.state import TableState


def write_added(state: TableState, entries: pa.Table, snapshot_id: int, name: str, target_bytes: int) -> pa.Table:
    """Write a few new files to manifests, one or more per partition spec, and return the manifests' rows.

    Args:
        entries: see `added_entries`.
        name: the prefix of the manifests' names.
        target_bytes: the target size of a manifest.
    """
    written = [MANIFEST_FILE_SCHEMA.empty_table()]
    deletes = pc.not_equal(entries.column("content_type"), int(ContentType.DATA))
    for kind, mask in ((ContentType.DATA_MANIFEST, pc.invert(deletes)), (ContentType.DELETE_MANIFEST, deletes)):
        of_kind = entries.filter(mask)
        for spec_id in sorted(of_kind.column("partition_spec_id").unique().to_pylist()):
            of_spec = of_kind.filter(pc.equal(of_kind.column("partition_spec_id"), spec_id)).combine_chunks()
            form = manifest_format(state, kind, spec_id, name, target_bytes)
            table = pa.Table.from_batches([added_entries(batch, form, snapshot_id) for batch in of_spec.to_batches()])
            for piece in manifest_pieces(table, form):
                data, row = write_manifest(piece, form)
                state.files.write_new(row.column("manifest_path")[0].as_py(), data)
                written.append(row)
    return pa.concat_tables(written)
