"""Choose the format of a table's new Avro manifests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkmeta.avro.write import ManifestFormat, entry_schema, manifest_codec, manifest_properties
from sparkmeta.operations.table_operations import metadata_folder
from sparkmeta.spec.entry import ContentType
from sparkmeta.spec.partitioning import spec_partition_type
from sparkmeta.storage.access import executor_writer

if TYPE_CHECKING:
    from sparkmeta.state import TableState


def manifest_format(
    state: TableState,
    content: ContentType,
    spec_id: int,
    name: str,
    target_bytes: int,
    format_version: int | None = None,
) -> ManifestFormat:
    """Return the format of a table's manifests with entries of one content and partition spec.

    Args:
        content: `DATA_MANIFEST` or `DELETE_MANIFEST`.
        name: the prefix of the files' names.
        target_bytes: the target size of a manifest.
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
        target_bytes,
        executor_writer(state.files),
        state.types.spec_tuples,
    )
