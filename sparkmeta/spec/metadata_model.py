"""The models of table metadata, format versions 1 to 4. They extend pyiceberg's and preserve unknown fields."""

from __future__ import annotations

import json
import uuid
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, cast, overload

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    StrictBool,
    StrictStr,
    ValidatorFunctionWrapHandler,
    field_serializer,
    field_validator,
    model_serializer,
    model_validator,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import metadata as iceberg
from pyiceberg.table import refs, snapshots, statistics
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.sorting import SortOrder

from sparkmeta.spec.locations import Locations, is_absolute, with_locations
from sparkmeta.spec.partitioning import (
    Expression,
    expression_to_json,
    partition_spec_from_json,
    partition_spec_to_json,
    referring_spec_json,
    sort_order_to_json,
    stats_field_id,
    without_empty_fields,
)
from sparkmeta.spec.schema import schema_to_json

if TYPE_CHECKING:
    from collections.abc import Mapping


# -- Snapshots, refs, logs and statistics files -----------------------------------------------------------------------
# They extend pyiceberg's models and preserve unknown fields.


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

    Exactly one of these attributes is set.

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

    @cached_property
    def texts(self) -> dict[Locations | None, str]:
        """A cache of the snapshot's JSON, by the rules for its locations; see `snapshot_text`."""
        return {}

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        copied = super().model_copy(update=update, deep=deep)
        copied.__dict__.pop("texts", None)
        return copied

    @property
    def operation(self) -> str | None:
        """The operation as Iceberg's Java library shows it: ``overwrite`` if a non-empty summary has none."""
        if not self.summary:
            return None
        operation = self.summary.operation
        return operation.value if isinstance(operation, Operation) else operation or Operation.OVERWRITE.value


@dataclass(slots=True, eq=False)
class StoredSnapshot:
    """A snapshot as its text in a metadata file. It needs a third of the memory of its model.

    The text is written back unchanged.

    Attributes:
        snapshot_id, parent_snapshot_id, sequence_number, timestamp_ms, key_id, has_root: as in `Snapshot`.
    """

    snapshot_id: int
    parent_snapshot_id: int | None
    sequence_number: int | None
    timestamp_ms: int
    text: str
    _model: weakref.ref[Snapshot] | None = None

    key_id: ClassVar[None] = None
    has_root: ClassVar[bool] = False

    @property
    def model(self) -> Snapshot:
        """The model of the snapshot, which is decoded again if nothing refers to it."""
        model = None if self._model is None else self._model()
        if model is None:
            model = Snapshot.model_validate(json.loads(self.text))
            self._model = weakref.ref(model)
        return model

    def __eq__(self, other: object) -> bool:
        if isinstance(other, StoredSnapshot):
            return self.text == other.text or self.model == other.model
        return self.model == other

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        numbers = self.snapshot_id, self.parent_snapshot_id, self.sequence_number, self.timestamp_ms
        return StoredSnapshot, (*numbers, self.text)


AnySnapshot = Snapshot | StoredSnapshot


def snapshot_model(snapshot: AnySnapshot) -> Snapshot:
    """Return the model of a snapshot."""
    return snapshot.model if isinstance(snapshot, StoredSnapshot) else snapshot


class StoredSnapshots(Sequence[Snapshot]):
    """The snapshots of a table, whose models are created on demand. Immutable.

    Attributes:
        stored: the snapshots, in order.
    """

    def __init__(self, stored: Iterable[AnySnapshot]) -> None:
        self.stored = tuple(stored)

    def __len__(self) -> int:
        return len(self.stored)

    @overload
    def __getitem__(self, index: int) -> Snapshot: ...
    @overload
    def __getitem__(self, index: slice) -> list[Snapshot]: ...
    def __getitem__(self, index: int | slice) -> Snapshot | list[Snapshot]:
        stored = self.stored[index]
        return [*map(snapshot_model, stored)] if isinstance(stored, tuple) else snapshot_model(stored)

    def __iter__(self) -> Iterator[Snapshot]:
        return map(snapshot_model, self.stored)

    def __add__(self, others: Iterable[Snapshot]) -> StoredSnapshots:
        return StoredSnapshots([*self.stored, *others])

    def __eq__(self, other: object) -> bool:
        if isinstance(other, StoredSnapshots):
            return self.stored == other.stored
        return self.stored == tuple(other) if isinstance(other, list) else NotImplemented

    __hash__ = None  # type: ignore[assignment]


def snapshot_text(snapshot: AnySnapshot, locations: Locations | None) -> str:
    """Return the JSON of a snapshot; see `written_text`. It is cached, since each commit writes all snapshots."""
    if isinstance(snapshot, StoredSnapshot):
        if locations is None:
            return snapshot.text
        snapshot = snapshot.model
    if (text := snapshot.texts.get(locations)) is None:
        array = f'{{"snapshots":[{snapshot.model_dump_json(by_alias=True, exclude_unset=True)}]}}'
        text = snapshot.texts[locations] = written_text(array, locations)[len('{"snapshots":[') : -2]
    return text


def written_text(text: str, locations: Locations | None) -> str:
    """Return the JSON of table metadata, with locations of files as `locations` writes them; unchanged for None."""
    if locations is None:
        return text
    document = with_locations(json.loads(text), lambda value, _: locations.written(value))
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


_LONG_KEYS = ("snapshot-id", "parent-snapshot-id", "sequence-number", "timestamp-ms", "first-row-id", "added-rows")
_REQUIRED_KEYS = {"snapshot-id", "timestamp-ms", "manifest-list"}
# Keys of rare snapshots, and names of attributes, which pydantic accepts as keys.
_RARE_KEYS = {"manifests", "root-manifest", "key-id"} | Snapshot.model_fields.keys() - {"summary"}


def stored_snapshot(document: Any, text: str) -> StoredSnapshot:
    """Return a snapshot as its text.

    Args:
        document: the JSON object.
        text: its text.

    Raises:
        ValueError: it may be invalid, or it is a rare kind: it has a root manifest, a relative location or a key.
    """
    if not isinstance(document, dict) or not document.keys() >= _REQUIRED_KEYS:
        raise ValueError("it lacks a key")
    if any(document[key] is not None for key in document.keys() & _RARE_KEYS):
        raise ValueError("it is a rare one")
    longs: list[Any] = [document.get(key) for key in _LONG_KEYS]
    snapshot_id, parent_id, number, timestamp_ms, *_ = longs
    schema_id, summary, location = document.get("schema-id"), document.get("summary"), document["manifest-list"]
    is_valid = (
        snapshot_id is not None
        and timestamp_ms is not None
        and all(value is None or (type(value) is int and -(1 << 63) <= value < 1 << 63) for value in longs)
        and (schema_id is None or (type(schema_id) is int and -(1 << 31) <= schema_id < 1 << 31))
        and (summary is None or (isinstance(summary, dict) and all(isinstance(v, str) for v in summary.values())))
        and (isinstance(location, str) and is_absolute(location) and not location.lower().endswith(".parquet"))
    )
    if not is_valid:
        raise ValueError("it may be invalid")
    return StoredSnapshot(snapshot_id, parent_id, number if "sequence-number" in document else 0, timestamp_ms, text)


class SnapshotRef(refs.SnapshotRef):
    """A branch or a tag."""

    model_config = _OPEN

    snapshot_id: Long = Field(alias="snapshot-id")

    @field_validator("snapshot_ref_type", mode="before")
    @classmethod
    def lower_type(cls, value: Any) -> Any:
        """Return the type in lower case: Java's parser ignores the case."""
        return value.lower() if isinstance(value, str) else value


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


# -- Table metadata ---------------------------------------------------------------------------------------------------
# They extend pyiceberg's models: fields are validated strictly, and unknown fields are preserved.


_COUNTERS = {"last_sequence_number", "next_row_id"}
# The fields that a new snapshot or file changes.
_HISTORY = _COUNTERS | {
    "snapshots", "refs", "current_snapshot_id", "snapshot_log", "metadata_log", "last_updated_ms", "statistics",
    "partition_statistics",
}  # fmt: skip


class _Metadata(iceberg.TableMetadataCommonFields):
    """The fields of all format versions. Fields that the file lacked are not written."""

    model_config = ConfigDict(extra="allow")
    _UNWRITTEN: ClassVar[frozenset[str]] = frozenset()

    location: StrictStr
    last_updated_ms: Long = Field(alias="last-updated-ms")
    last_column_id: Int = Field(alias="last-column-id")
    current_schema_id: Int = Field(alias="current-schema-id")
    default_spec_id: Int = Field(alias="default-spec-id")
    last_partition_id: Int = Field(alias="last-partition-id")
    default_sort_order_id: Int = Field(alias="default-sort-order-id")
    properties: dict[str, StrictStr] = Field(default_factory=dict)
    current_snapshot_id: Long | None = Field(alias="current-snapshot-id", default=None)
    snapshots: Sequence[Snapshot] = Field(default_factory=list)  # type: ignore[assignment]
    snapshot_log: list[SnapshotLogEntry] = Field(alias="snapshot-log", default_factory=list)  # type: ignore[assignment]
    metadata_log: list[MetadataLogEntry] = Field(alias="metadata-log", default_factory=list)  # type: ignore[assignment]
    refs: dict[str, SnapshotRef] = Field(default_factory=dict)  # type: ignore[assignment]
    statistics: list[StatisticsFile] = Field(default_factory=list)  # type: ignore[assignment]
    partition_statistics: list[PartitionStatisticsFile] = Field(  # type: ignore[assignment]
        alias="partition-statistics", default_factory=list
    )

    @field_validator("properties", mode="before")
    @classmethod
    def transform_properties_dict_value_to_str(cls, properties: Any) -> Any:
        return properties

    @field_validator("snapshots", mode="wrap")
    @classmethod
    def _validated_snapshots(cls, snapshots: Any, validated: ValidatorFunctionWrapHandler) -> Any:
        return snapshots if isinstance(snapshots, StoredSnapshots) else validated(snapshots)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:  # noqa: ARG002
        """Return a copy, with changes if there are any.

        A copy with changes writes all fields, including the ones that the file left to defaults. Fields of `_UNWRITTEN`
        are written only if the file or the changes have them. Counters that the format version does not have are
        dropped from the changes, since pyiceberg's updates set them for every version.

        Copies share their parts, which never change. pyiceberg's updates end with a deep copy, which would take most of
        the time of a commit to a table with many snapshots.
        """
        fields = type(self).model_fields
        if update:
            update = {key: value for key, value in update.items() if key in fields or key not in _COUNTERS}
        copied = super().model_copy(update=update)
        copied.__dict__.pop("stored_by_id", None)
        if any(getattr(self, key, None) != value for key, value in (update or {}).items() if key not in _HISTORY):
            copied.__dict__.pop("derived", None)
        if update:
            copied.model_fields_set.update(name for name in fields if getattr(copied, name) is not None)
            copied.model_fields_set.difference_update(self._UNWRITTEN - self.model_fields_set - update.keys())
        return copied

    def model_dump_json(self, *_: Any, **__: Any) -> str:
        """Return the JSON of the metadata file, with absolute locations."""
        return self.written(None)

    def written(self, locations: Locations | None) -> str:
        """Return the JSON of the metadata file; see `written_text`."""
        no_snapshots = BaseModel.model_copy(self, update={"snapshots": []}) if self.snapshots else self
        text = written_text(BaseModel.model_dump_json(no_snapshots, by_alias=True, exclude_unset=True), locations)
        if not self.snapshots:
            return text
        parts = text.split('"snapshots":[]')
        if len(parts) != 2:  # an unknown field has the same name
            return written_text(BaseModel.model_dump_json(self, by_alias=True, exclude_unset=True), locations)
        snapshots = ",".join(snapshot_text(each, locations) for each in self.stored_snapshots)
        return f'{parts[0]}"snapshots":[{snapshots}]{parts[1]}'

    def without_parts_of(self, base: _Metadata) -> Self:
        """Return the metadata without the snapshots and log entries that it shares with earlier metadata.

        Snapshots that the metadata refers to stay.
        """
        lists = "stored_snapshots", "snapshot_log", "metadata_log"
        earlier = {id(each) for name in lists for each in getattr(base, name)}
        snapshots, *logs = ([each for each in getattr(self, name) if id(each) not in earlier] for name in lists)
        added = {snapshot.snapshot_id for snapshot in snapshots}
        referred = {self.current_snapshot_id, *(ref.snapshot_id for ref in self.refs.values())} - added
        snapshots += [self.stored_by_id[each] for each in referred if each in self.stored_by_id]
        update = {"snapshots": StoredSnapshots(snapshots), "snapshot_log": logs[0], "metadata_log": logs[1]}
        return BaseModel.model_copy(self, update=update)

    @property
    def stored_snapshots(self) -> Sequence[AnySnapshot]:
        """The snapshots, for work that needs only the attributes of `StoredSnapshot`: no model is created."""
        return self.snapshots.stored if isinstance(self.snapshots, StoredSnapshots) else self.snapshots

    def snapshot_by_id(self, snapshot_id: int) -> Snapshot | None:
        snapshot = self.stored_by_id.get(snapshot_id)
        return None if snapshot is None else snapshot_model(snapshot)

    def snapshot_by_name(self, name: str | None) -> Snapshot | None:
        ref = self.refs.get(name or MAIN_BRANCH)
        return None if ref is None else self.snapshot_by_id(ref.snapshot_id)

    def current_snapshot(self) -> Snapshot | None:
        return None if self.current_snapshot_id is None else self.snapshot_by_id(self.current_snapshot_id)

    @cached_property
    def stored_by_id(self) -> dict[int, AnySnapshot]:
        """`stored_snapshots` by their ids."""
        return {snapshot.snapshot_id: snapshot for snapshot in self.stored_snapshots}

    @cached_property
    def derived(self) -> dict[Any, Any]:
        """A cache of results that depend only on the table's definitions and properties. Most versions share it."""
        return {}

    @field_serializer("schemas")
    def _schemas(self, schemas: list[Schema]) -> list[dict[str, Any]]:
        return [schema_to_json(schema) for schema in schemas]

    @field_serializer("partition_specs")
    def _partition_specs(self, specs: list[PartitionSpec]) -> list[dict[str, Any]]:
        return [partition_spec_to_json(spec) for spec in specs]

    @field_serializer("sort_orders")
    def _sort_orders(self, orders: list[SortOrder]) -> list[dict[str, Any]]:
        return [sort_order_to_json(order) for order in orders]

    @field_serializer("snapshots", mode="wrap")
    def serialize_snapshots(  # type: ignore[override]
        self, snapshots: Sequence[Snapshot], write: SerializerFunctionWrapHandler
    ) -> Any:
        return write([*snapshots])

    @field_serializer("current_snapshot_id")
    def serialize_current_snapshot_id(self, current_snapshot_id: int | None) -> int | None:
        version: int = cast("Any", self).format_version
        return -1 if current_snapshot_id is None and version < 3 else current_snapshot_id


class TableMetadataV1(_Metadata, iceberg.TableMetadataV1):
    """Metadata of format version 1.

    It has the lists of schemas, specs and sort orders even if the file has only the single fields of early writers.
    """

    table_uuid: uuid.UUID | None = Field(alias="table-uuid", default=None)  # type: ignore[assignment]

    # These four validators of pyiceberg are turned off: parse_table_metadata has filled in the defaults.
    @model_validator(mode="before")
    @classmethod
    def set_v2_compatible_defaults(cls, data: dict[str, Any]) -> dict[str, Any]:
        return data

    @model_validator(mode="before")
    @classmethod
    def construct_schemas(cls, data: dict[str, Any]) -> dict[str, Any]:
        return data

    @model_validator(mode="before")
    @classmethod
    def construct_partition_specs(cls, data: dict[str, Any]) -> dict[str, Any]:
        return data

    @model_validator(mode="before")
    @classmethod
    def set_sort_orders(cls, data: dict[str, Any]) -> dict[str, Any]:
        return data

    @property
    def last_sequence_number(self) -> int:
        """Always 0, since version 1 has no sequence numbers."""
        return 0

    # "schema" and "partition-spec" repeat the current schema and spec, for readers that don't know the lists.
    @field_serializer("schema_")
    def _schema(self, schema: Schema) -> dict[str, Any]:
        return schema_to_json(schema if schema == self.schema() else self.schema())

    @field_serializer("partition_spec")
    def _partition_spec(self, fields: list[dict[str, Any]]) -> Any:
        spec = partition_spec_from_json({"spec-id": self.default_spec_id, "fields": fields})
        return fields if spec == self.spec() else partition_spec_to_json(self.spec())["fields"]


class TableMetadataV2(_Metadata, iceberg.TableMetadataV2):
    """Metadata of format version 2."""

    table_uuid: uuid.UUID = Field(alias="table-uuid")
    last_sequence_number: Long = Field(alias="last-sequence-number")


class TableMetadataV3(_Metadata, iceberg.TableMetadataV3):
    """Metadata of format version 3."""

    _UNWRITTEN = frozenset({"encryption_keys"})

    table_uuid: uuid.UUID = Field(alias="table-uuid")
    last_sequence_number: Long = Field(alias="last-sequence-number")
    next_row_id: Long = Field(alias="next-row-id")
    encryption_keys: list[dict[str, Any]] = Field(alias="encryption-keys", default_factory=list)


class TableMetadataV4(TableMetadataV3):
    """Metadata of format version 4.

    The file may lack the table's location, which then follows from the location of the file. In a tree, partition
    fields that have an expression are written as references to it, and specs without fields lack the key ``fields``.
    Iceberg 1.12.0 refuses both, as it must, because it can't read the tree (semantics 19.1).

    Attributes:
        expressions: The expressions of partition fields. Empty in tables that Iceberg 1.12.0 writes.
        layout_revision: The layout of the metadata tree. None in tables that Iceberg 1.12.0 writes, which have manifest
            lists.
        relative_locations: Whether files of the tree name files below the table's location relative to it, in every
            snapshot, so that the table's folder can be moved.
    """

    _UNWRITTEN = frozenset({"encryption_keys", "location", "expressions", "relative_locations"})

    format_version: Literal[4] = Field(alias="format-version", default=4)  # type: ignore[assignment]
    expressions: list[Expression] = Field(default_factory=list)
    layout_revision: Int | None = Field(alias="tree-layout-revision", default=None)
    relative_locations: StrictBool = Field(alias="tree-relative-locations", default=False)

    def stats_field_id(self, spec: PartitionSpec, field: PartitionField) -> int | None:
        """Return the id under which content_stats has a partition field's value, or None for a void field.

        Raises:
            ValidationError: The field has no expression.
        """
        return stats_field_id(self.expressions, spec, field)

    @field_serializer("expressions")
    def _expressions(self, expressions: list[Expression]) -> list[dict[str, Any]]:
        return [expression_to_json(expression) for expression in expressions]

    @field_serializer("partition_specs")
    def _partition_specs(self, specs: list[PartitionSpec]) -> list[dict[str, Any]]:
        if self.layout_revision is None:
            return [partition_spec_to_json(spec) for spec in specs]
        return [without_empty_fields(referring_spec_json(spec, self.expressions)) for spec in specs]


def locations_of(metadata: TableMetadataV1 | TableMetadataV2 | TableMetadataV3 | TableMetadataV4) -> Locations:
    """Return the rules by which the files of a table name other files."""
    revision = metadata.layout_revision if isinstance(metadata, TableMetadataV4) else None
    is_relative = isinstance(metadata, TableMetadataV4) and metadata.relative_locations
    return Locations.of(metadata.location, metadata.format_version, revision, writes_relative=is_relative)


TableMetadata = TableMetadataV1 | TableMetadataV2 | TableMetadataV3 | TableMetadataV4
