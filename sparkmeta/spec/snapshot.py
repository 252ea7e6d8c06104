"""Define the models of snapshots, refs, logs and statistics files in table metadata.

They extend pyiceberg's models and preserve unknown fields.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, StrictStr, model_serializer, model_validator
from pyiceberg.table import refs, snapshots, statistics
from pyiceberg.table.snapshots import Operation

Long = Annotated[int, Field(strict=True, ge=-(1 << 63), lt=1 << 63)]
Int = Annotated[int, Field(strict=True, ge=-(1 << 31), lt=1 << 31)]

_OPERATIONS: dict[str, Operation] = {operation.value: operation for operation in Operation}
_OPEN = ConfigDict(extra="allow")


class Summary(snapshots.Summary):
    """A snapshot's summary.

    Attributes:
        operation: None if it is missing, a string if it is unknown.
    """

    operation: Operation | str | None = None  # type: ignore[assignment]
    _additional_properties: dict[str, str] = PrivateAttr()

    # self is positional-only because a summary may have the key "self".
    def __init__(self, /, **data: Any) -> None:
        operation = data.pop("operation", None)
        texts = data if isinstance(operation, Operation | None) else data | {"operation": operation}
        if invalid := next((key for key, value in texts.items() if not isinstance(value, str)), None):
            raise ValueError(f"the value of {invalid} is not a string")
        BaseModel.__init__(self, operation=_OPERATIONS.get(operation, operation))
        self._additional_properties = data

    def __len__(self) -> int:
        return (self.operation is not None) + len(self._additional_properties)

    @model_serializer
    def ser_model(self) -> dict[str, str]:
        operation = self.operation.value if isinstance(self.operation, Operation) else self.operation
        return ({} if operation is None else {"operation": operation}) | self._additional_properties


class Snapshot(snapshots.Snapshot):
    """A snapshot of the table.

    Exactly one of its attributes gives the location of the manifests.

    Attributes:
        manifest_list: The manifest list.
        inline_manifests: The manifests themselves, as early writers of format version 1 listed them.
        root_manifest: The Parquet root manifest of a metadata tree.
    """

    model_config = _OPEN

    snapshot_id: Long = Field(alias="snapshot-id")
    parent_snapshot_id: Long | None = Field(alias="parent-snapshot-id", default=None)
    sequence_number: Long | None = Field(alias="sequence-number", default=0)
    timestamp_ms: Long = Field(alias="timestamp-ms")
    manifest_list: StrictStr | None = Field(alias="manifest-list", default=None)  # type: ignore[assignment]
    inline_manifests: list[StrictStr] | None = Field(alias="manifests", default=None)
    root_manifest: StrictStr | None = Field(alias="root-manifest", default=None)
    summary: Summary | None = Field(default=None)
    schema_id: Int | None = Field(alias="schema-id", default=None)
    first_row_id: Long | None = Field(alias="first-row-id", default=None)
    added_rows: Long | None = Field(alias="added-rows", default=None)
    key_id: StrictStr | None = Field(alias="key-id", default=None)

    @model_validator(mode="after")
    def check_manifests(self) -> Snapshot:
        if self.manifest_list is None and self.inline_manifests is None and self.root_manifest is None:
            raise ValueError("it has no manifest-list")
        return self

    @property
    def manifests_location(self) -> str | None:
        """The location of the root manifest or manifest list; None if the snapshot lists its manifests itself."""
        return self.root_manifest or self.manifest_list

    @property
    def has_root(self) -> bool:
        """Whether the manifests are in a root manifest.

        A `manifest-list` that ends in `.parquet` names a root as well (semantics 19.1).
        """
        return bool(self.root_manifest) or (self.manifest_list or "").lower().endswith(".parquet")

    @property
    def operation(self) -> str | None:
        """The operation as Iceberg's Java library shows it: ``overwrite`` if a non-empty summary has none."""
        if not self.summary:
            return None
        operation = self.summary.operation
        return operation.value if isinstance(operation, Operation) else operation or Operation.OVERWRITE.value


class SnapshotRef(refs.SnapshotRef):
    """A branch or a tag."""

    model_config = _OPEN

    snapshot_id: Long = Field(alias="snapshot-id")


class SnapshotLogEntry(snapshots.SnapshotLogEntry):
    """The time at which a snapshot became the current one."""

    model_config = _OPEN

    snapshot_id: Long = Field(alias="snapshot-id")
    timestamp_ms: Long = Field(alias="timestamp-ms")


class MetadataLogEntry(snapshots.MetadataLogEntry):
    """An earlier metadata file of the table."""

    model_config = _OPEN

    metadata_file: StrictStr = Field(alias="metadata-file")
    timestamp_ms: Long = Field(alias="timestamp-ms")


class BlobMetadata(statistics.BlobMetadata):
    """A blob of a statistics file, of any type."""

    model_config = _OPEN

    type: StrictStr  # type: ignore[assignment]


class StatisticsFile(statistics.StatisticsFile):
    """A Puffin file of table statistics."""

    model_config = _OPEN

    blob_metadata: list[BlobMetadata] = Field(alias="blob-metadata")  # type: ignore[assignment]


class PartitionStatisticsFile(statistics.PartitionStatisticsFile):
    """A file of partition statistics."""

    model_config = _OPEN
