"""One immutable state of a table, and its relations as nouns: manifests and entries."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.transforms import VoidTransform
from pyiceberg.types import IcebergType, NestedField, PrimitiveType, StructType

from sparkmeta.columns.bounds import ANY, reads_as
from sparkmeta.errors import NoSuchSnapshotError, UnsupportedError
from sparkmeta.manifests.avro.read import read_avro_entries
from sparkmeta.manifests.cache.read import CACHED_LEAF, leaves_of, open_cache, parts_here, read_through_cache
from sparkmeta.manifests.manifest_list import decode_manifest_list, entry_count, inline_manifest_list, manifests_of_list
from sparkmeta.manifests.parts import manifest_parts
from sparkmeta.manifests.projection import FILE_COLUMNS, EntryProjection
from sparkmeta.manifests.v3_parquet.spark import read_parquet_entries
from sparkmeta.manifests.v4.decode import TreeContext, read_foreign_leaves, tree_entries_here
from sparkmeta.manifests.v4.root import Root, read_root
from sparkmeta.manifests.v4.spark import stats_of_fields
from sparkmeta.manifests.v4.tree_manifests import Tree, TreeReader, tree_manifest_files, tree_manifests
from sparkmeta.session import local_frame
from sparkmeta.settings import Settings, settings
from sparkmeta.spec.avro_name import avro_name
from sparkmeta.spec.entry import DELETE_FILE_PATH_ID, METRICS_MAP_IDS, ContentType
from sparkmeta.spec.expressions import stats_field_id
from sparkmeta.spec.metadata_model import TableMetadataV4
from sparkmeta.spec.partitioning import has_unknown_values, partition_type, spec_partition_type
from sparkmeta.storage.files import ExecutorReader, Files, SparkFiles, executor_reader

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyspark.sql import DataFrame, SparkSession

    from sparkmeta.manifests.cache.folder import ManifestCache
    from sparkmeta.spec.metadata import Snapshot, SnapshotRef, TableMetadata
    from sparkmeta.spec.snapshot import SnapshotLogEntry

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PARQUET_MAGIC = b"PAR1"

# What the driver may decode instead of a job: so many entries, so many where stats are tested, and that much less of
# manifests whose entries are large or not counted.
ENTRIES_HERE = 10_000
TESTED_HERE = 150_000
_WIDE = 16
_UNCOUNTED = 8

# Columns of metadata files that have no place in a table's schema: field id -> Iceberg type name.
_METADATA_FIELDS = {DELETE_FILE_PATH_ID: "string"}


@dataclass(frozen=True)
class TableState:
    """A table's metadata and one of its snapshots (None: the table is empty), with the means to read them.

    root: of the snapshot's V4 tree, where a commit has made one that is not written yet; read when it is None.

    Everything here is a function of files that never change, so whatever is read once is kept.
    """

    spark: SparkSession
    files: Files
    metadata: TableMetadata
    snapshot: Snapshot | None
    root: Root | None = None

    def at(self, snapshot: Snapshot | None) -> TableState:
        """The same table at another snapshot."""
        return replace(self, snapshot=snapshot, root=None)

    @cached_property
    def settings(self) -> Settings:
        return settings(self.spark)

    @cached_property
    def schemas(self) -> dict[int, Schema]:
        return {schema.schema_id: schema for schema in self.metadata.schemas}

    @property
    def specs(self) -> dict[int, PartitionSpec]:
        return self.metadata.specs()

    @cached_property
    def snapshot_schema(self) -> Schema:
        """The schema that the snapshot was written with; the table's where the snapshot names none."""
        schema_id = self.snapshot.schema_id if self.snapshot else None
        return self.metadata.schema() if schema_id is None else self.schemas[schema_id]

    @cached_property
    def typing_schema(self) -> Schema:
        """The schema by which values in manifests are read: the table's, which has every promotion, or the snapshot's
        own where the table's has a column's id for a column of another type, as a replaced table may."""
        current, schema_id = self.metadata.schema(), self.snapshot.schema_id if self.snapshot else None
        own = self.schemas.get(current.schema_id if schema_id is None else schema_id, current)
        types = {one: str(field.field_type) for one, field in index_by_id(current).items()}
        kept = all(
            field_id not in types or reads_as(str(field.field_type), types[field_id])
            for field_id, field in _primitives(index_by_id(own)).items()
        )
        return current if kept else own

    def metadata_ref(self, name: str) -> SnapshotRef:
        """A branch or tag. Raises NoSuchSnapshotError where there is none of that name."""
        if name not in self.metadata.refs:
            raise NoSuchSnapshotError(f"{self.metadata.location} has no branch or tag {name!r}")
        return self.metadata.refs[name]

    def snapshot_id_at(self, timestamp: datetime | int) -> int:
        """The id of the snapshot that was current at a time (a datetime with zone, or milliseconds since 1970).

        Raises NoSuchSnapshotError where the snapshot log begins later, ValueError for what is no such time.
        """
        if not isinstance(timestamp, datetime | int):
            what = "a datetime with a time zone, or milliseconds since 1970"  # type: ignore[unreachable]
            raise ValueError(f"{timestamp!r} is no time: as_of takes {what}")  # noqa: TRY004  as of one without a zone
        if isinstance(timestamp, datetime) and timestamp.tzinfo is None:
            raise ValueError(f"{timestamp} has no time zone")
        millis = timestamp if isinstance(timestamp, int) else (timestamp - _EPOCH) // timedelta(milliseconds=1)
        found: SnapshotLogEntry | None = None
        for entry in self.metadata.snapshot_log:
            if entry.timestamp_ms <= millis and (found is None or entry.timestamp_ms > found.timestamp_ms):
                found = entry
        if found is None:
            raise NoSuchSnapshotError(f"{self.metadata.location} has no snapshot as old as {timestamp}")
        return found.snapshot_id

    # -- partitions -------------------------------------------------------------------------------------------------

    @cached_property
    def partition_type(self) -> StructType:
        """The table's partition tuple as its metadata tables show it: the union over all specs."""
        return partition_type(self.specs.values(), self.metadata.schemas, self.typing_schema, active_only=True)

    @cached_property
    def spec_fields(self) -> dict[int, list[tuple[int, str]]]:
        """Spec id -> its fields' (partition field id, Iceberg type name), in the spec's order.

        A field has one type in all specs: where a spec made it void, that of the specs where it has values.
        """
        fields = [field for spec in self.specs.values() for field in spec.fields]
        unknown = {field.field_id for field in fields if has_unknown_values(field.transform)}
        names = {one: ANY if one in unknown else str(kind) for one, kind in self.partition_types.items()}
        return {
            one: [(field.field_id, names[field.field_id]) for field in spec.fields] for one, spec in self.specs.items()
        }

    @cached_property
    def partition_types(self) -> dict[int, IcebergType]:
        """Partition field id -> the type of its values, string where the transform is unknown; see `spec_fields`."""
        voids: dict[int, IcebergType] = {}
        valued: dict[int, IcebergType] = {}
        for spec in self.specs.values():
            kinds = spec_partition_type(spec, self.metadata.schemas, self.typing_schema).fields
            for field, kind in zip(spec.fields, kinds, strict=True):
                types = voids if isinstance(field.transform, VoidTransform) else valued
                types[field.field_id] = kind.field_type
        return voids | valued

    @cached_property
    def partition_fields(self) -> dict[int, str]:
        """The fields of the engine's partition struct: partition field id -> Iceberg type name.

        Values of unknown transforms are text (`ANY`): they tell partitions apart and say nothing else.
        """
        return dict(field for _, fields in sorted(self.spec_fields.items()) for field in fields)

    # -- manifests --------------------------------------------------------------------------------------------------

    @cached_property
    def manifest_files(self) -> pa.Table:
        """The snapshot's manifest list as it stands in the file, or a V4 root's leaves: `MANIFEST_FILE_SCHEMA`."""
        if self.tree is not None:
            return tree_manifest_files(self.tree.root, self.spec_fields, self.tuple_sources)
        return read_manifest_list(self.files, self.metadata, self.snapshot)

    @cached_property
    def tree(self) -> Tree | None:
        """The snapshot's metadata tree; None where a manifest list describes it, and for an empty table."""
        if self.root is not None:
            return Tree(self.root, self.tuple_sources)
        location = tree_location(self.files, self.metadata, self.snapshot)
        if location is None or self.snapshot is None:
            return None
        stamp = (self.snapshot.snapshot_id, self.snapshot.sequence_number or 0)
        fields = stats_of_fields(self.tuple_sources)
        root = read_root(self.files.read(location), self.stats_types, self.specs, location, stamp, fields)
        return Tree(root, self.tuple_sources)

    @cached_property
    def tree_context(self) -> TreeContext | None:
        """What tasks need to read V4 manifests of any snapshot; None for a table that has none."""
        if self.tree is None and not any(snapshot.root_manifest for snapshot in self.metadata.snapshots):
            return None
        columns = frozenset(self.primitive_fields)
        return TreeContext(self.stats_types, columns, self.spec_fields, self.tuple_sources)

    @cached_property
    def stats_types(self) -> dict[int, str]:
        """What may stand in `content_stats`: ids of columns and of expressions -> Iceberg type names."""
        columns = {one: str(field.field_type) for one, field in self.primitive_fields.items()}
        return columns | {
            source: self.partition_fields[field_id]
            for fields in self.tuple_sources.values()
            for field_id, source in fields
            if source not in columns
        }

    @cached_property
    def tuple_sources(self) -> dict[int, tuple[tuple[int, int], ...]]:
        """Spec id -> its fields' (partition field id, id of the stats that hold the value); without void ones."""
        expressions = self.metadata.expressions if isinstance(self.metadata, TableMetadataV4) else []
        return {
            spec_id: tuple(
                (field.field_id, source)
                for field in spec.fields
                if self.partition_fields[field.field_id] != ANY
                and (source := stats_field_id(expressions, spec, field)) is not None
            )
            for spec_id, spec in self.specs.items()
        }

    @cached_property
    def manifests(self) -> pa.Table:
        """The snapshot's manifests as content entries of types 3 and 4 (see `manifests_of_list`), on the driver."""
        if self.tree is not None:
            return tree_manifests(self.tree)
        return manifests_of_list(self.manifest_files, self.spec_fields, _list_location(self.snapshot))

    @property
    def data_manifests(self) -> pa.Table:
        """The rows of `manifests` that list data files."""
        return self._manifests_of(ContentType.DATA_MANIFEST)

    @property
    def delete_manifests(self) -> pa.Table:
        """The rows of `manifests` that list delete files and deletion vectors."""
        return self._manifests_of(ContentType.DELETE_MANIFEST)

    def _manifests_of(self, content: ContentType) -> pa.Table:
        return self.manifests.filter(pc.equal(self.manifests.column("content_type"), int(content)))

    # -- entries ----------------------------------------------------------------------------------------------------

    @cached_property
    def reader(self) -> ExecutorReader | None:
        """How executors open manifests; None where only Spark's own sources may."""
        if self.settings.executor_reads == "spark":
            return None
        reader = executor_reader(self.files)
        return ExecutorReader({}) if reader is None and self.settings.executor_reads == "direct" else reader

    @cached_property
    def manifest_cache(self) -> ManifestCache | None:
        """The cache of decoded Avro manifests; None where the session names no folder for it."""
        folder = self.settings.manifest_cache
        if not folder:
            return None
        stats = {one: str(field.field_type) for one, field in self.primitive_fields.items()} | _METADATA_FIELDS
        return open_cache(self.spark, folder, self.files, self.reader, stats, self.partition_fields)

    def projection(self, columns: Iterable[str] = FILE_COLUMNS, stats: Iterable[int] = ()) -> EntryProjection:
        """What to read of entries: these columns, the whole partition tuple, and stats of these column field ids."""
        return EntryProjection.of(columns, self.partition_fields, {one: self.field_type(one) for one in stats})

    def field_type(self, field_id: int) -> str:
        """The Iceberg type name of a column, dropped ones included: the newest schema that has it decides."""
        if field_id in _METADATA_FIELDS:
            return _METADATA_FIELDS[field_id]
        return str(self.fields[field_id].field_type)

    @cached_property
    def fields(self) -> Mapping[int, NestedField]:
        """Every column that any schema of the table ever had, by field id; the form of `typing_schema` wins."""
        found: dict[int, NestedField] = {}
        schemas = sorted(self.metadata.schemas, key=lambda schema: schema.schema_id)
        for schema in [*schemas, self.typing_schema]:
            found.update(index_by_id(schema))
        return found

    @cached_property
    def primitive_fields(self) -> dict[int, NestedField]:
        return _primitives(self.fields)

    def always_required(self, field_id: int) -> bool:
        """Whether every schema that has the column requires it, so that no file of any age holds a null.

        Only of top-level columns: a required field of a null struct is null.
        """
        holding = [schema for schema in self.metadata.schemas if field_id in schema.field_ids]
        top_level = [{field.field_id: field.required for field in schema.fields} for schema in holding]
        return all(fields.get(field_id, False) for fields in top_level)

    def entries(self, manifests: pa.Table, projection: EntryProjection) -> DataFrame:
        """The entries of the given manifests (rows of `manifests`) as a lazy DataFrame of `projection.schema`.

        Every physical row, DELETED ones included, with inheritance applied (table spec, Manifests). Few Avro manifests
        are read at once, on the driver (`fit_driver`).
        """
        reader = self.tree_reader
        return self.manifest_entries(manifests, projection) if reader is None else reader.entries(manifests, projection)

    @cached_property
    def tree_reader(self) -> TreeReader | None:
        """What reads the entries of `tree`; None where there is none."""
        if self.tree is None:
            return None
        columns = {one: str(field.field_type) for one, field in self.primitive_fields.items()}
        readers = (self.manifest_entries, self._foreign_entries)
        return TreeReader(self.spark, self.tree, self.driver_files, self.reader, columns, *readers)

    def _foreign_entries(self, leaves: pa.Table, projection: EntryProjection) -> DataFrame:
        assert self.tree_context is not None
        return read_foreign_leaves(self.spark, leaves, projection, self.reader, self.tree_context)

    def manifest_entries(self, manifests: pa.Table, projection: EntryProjection, *, cached: bool = True) -> DataFrame:
        """As `entries`, of manifests of the v1-v3 layout.

        cached: by the manifest cache, where there is one; what is to be written to a manifest is never read from it.
        """
        parquet = set(_manifest_ids(manifests, "PARQUET"))
        here = not parquet and self.manifest_cache is None and self.fit_driver(manifests, projection)
        split = self.settings.split_manifest_bytes
        parts = self.whole_parts(manifests, projection) if here else manifest_parts(manifests, projection, split)
        avro_parts = parts.filter(pc.invert(_among(parts, parquet)))
        frames = []
        if len(avro_parts) and (cache := self.manifest_cache) is not None and cached:
            frames += read_through_cache(self.spark, avro_parts, projection, self.reader, cache, _lengths(manifests))
        elif len(avro_parts):
            reader = self.files if here else self.reader
            frames.append(read_avro_entries(self.spark, avro_parts, projection, reader, here=here))
        if parquet:
            whole = parts.filter(pc.and_(_among(parts, parquet), pc.equal(parts.column("part"), 0)))
            frames.append(read_parquet_entries(self.spark, whole, projection, self._partition_names))
        if not frames:
            return local_frame(self.spark, projection.schema.empty_table())
        return reduce(lambda left, right: left.unionByName(right), frames)

    def entries_here(
        self, manifests: pa.Table, projection: EntryProjection, entries: int = TESTED_HERE
    ) -> pa.Table | None:
        """As `entries`, in Arrow on the driver.

        None where there are more than `entries` or the driver had better not (`fit_driver`), where some are manifests
        of before a tree's upgrade, or Parquet ones of the v1-v3 layout, or not all in the manifest cache, where there
        is one: it is tasks that keep what they decode.
        """
        if not self.fit_driver(manifests, projection, entries):
            return None
        if self.tree is not None:
            assert self.tree_context is not None
            return tree_entries_here(self.tree, manifests, projection, self.tree_context, self.files)
        if _manifest_ids(manifests, "PARQUET"):
            return None
        parts = self.parts_at_hand(manifests, projection)
        return None if parts is None else parts_here(parts, projection, self.manifest_cache, self.files)

    def parts_at_hand(self, manifests: pa.Table, projection: EntryProjection) -> pa.Table | None:
        """`whole_parts` `with_leaves`; None where the manifest cache has not all of them for the driver."""
        parts = self.with_leaves(self.whole_parts(manifests, projection), manifests, projection)
        cache = self.manifest_cache
        if cache is not None and (parts.column(CACHED_LEAF).null_count or isinstance(cache.files, SparkFiles)):
            return None
        return parts

    def whole_parts(self, manifests: pa.Table, projection: EntryProjection) -> pa.Table:
        """What those read who read whole manifests, as `PART_SCHEMA`: the parts that the manifest cache has of them."""
        whole = self.manifest_cache is None
        return manifest_parts(manifests, projection, sys.maxsize if whole else self.settings.split_manifest_bytes)

    def with_leaves(self, parts: pa.Table, manifests: pa.Table, projection: EntryProjection) -> pa.Table:
        """Rows of `PART_SCHEMA`, of some manifests, with `cached_leaf`: theirs in the manifest cache, or null."""
        cache = self.manifest_cache
        unknown = pa.nulls(len(parts), pa.string())
        leaves = unknown if cache is None else leaves_of(parts, projection, cache, _lengths(manifests))
        return parts.append_column(CACHED_LEAF, leaves)

    @property
    def driver_files(self) -> Files | None:
        """Opens what is small on the driver, where that takes less time than a job; None where Spark had better."""
        if self.reader is None or isinstance(self.files, SparkFiles) or not self.settings.driver_manifest_bytes:
            return None
        return self.files

    def fit_driver(self, manifests: pa.Table, projection: EntryProjection, entries: int | None = None) -> bool:
        """Whether manifests are so few that threads of this process read them sooner than Python tasks do.

        See the setting `driver_manifest_bytes`. entries: how many at most; by default as many as had better be brought
        into Spark from here: of very many a test of stats leaves few.
        """
        if self.driver_files is None:
            return False
        if entries is None:
            entries = TESTED_HERE if projection.wanted is not None and projection.wanted.selective else ENTRIES_HERE
        # Metrics maps are most of a manifest, and many stats are large.
        wide = not METRICS_MAP_IDS.keys().isdisjoint(projection.columns) or len(projection.stats) > _WIDE
        size, count = pc.sum(manifests.column("file_size_in_bytes")).as_py() or 0, entry_count(manifests)
        most = self.settings.driver_manifest_bytes // ((_WIDE if wide else 1) * (_UNCOUNTED if count is None else 1))
        return size <= most and (count or 0) <= entries

    @cached_property
    def _partition_names(self) -> dict[int, list[tuple[int, str]]]:
        """Spec id -> its fields' (partition field id, name in manifests)."""
        return {
            one: [(field.field_id, avro_name(field.name)) for field in spec.fields] for one, spec in self.specs.items()
        }


def _lengths(manifests: pa.Table) -> dict[int, int]:
    """The manifests' lengths by their small ids."""
    names = ("manifest", "file_size_in_bytes")
    return dict(zip(*(manifests.column(name).to_pylist() for name in names), strict=True))


def read_manifest_list(files: Files, metadata: TableMetadata, snapshot: Snapshot | None) -> pa.Table:
    """A snapshot's manifest list as `MANIFEST_FILE_SCHEMA`, on the driver; no rows for a table without snapshot.

    Raises:
        NotFoundError: the list is missing.
        CorruptFileError: it is no manifest list.
        UnsupportedError: an encrypted table, or a snapshot whose metadata tree is not a manifest list.
    """
    if snapshot is None:
        return pa.Table.from_batches([inline_manifest_list([], [], 0)])
    refuse_unreadable(metadata, snapshot)
    location = snapshot.manifest_list
    if location is None:
        paths = snapshot.inline_manifests or []
        batch = inline_manifest_list(paths, [files.length(path) for path in paths], snapshot.snapshot_id)
    else:
        batch = decode_manifest_list(files.read(location), location)
    table = pa.Table.from_batches([batch])
    encrypted = table.filter(table.column("key_metadata").is_valid())
    if len(encrypted):
        path = encrypted.column("manifest_path")[0].as_py()
        raise UnsupportedError(
            f"{location}: manifest {path} is encrypted (key_metadata); encrypted tables can't be read"
        )
    return table


def tree_location(files: Files, metadata: TableMetadata, snapshot: Snapshot | None) -> str | None:
    """The location of a snapshot's V4 root; None where it has a manifest list.

    A root is named as `root-manifest`; `manifest-list` is accepted for one in a table of format version 4.
    """
    if snapshot is None:
        return None
    refuse_unreadable(metadata, snapshot)
    if snapshot.root_manifest is not None:
        return snapshot.root_manifest
    listed = snapshot.manifest_list
    if metadata.format_version < 4 or listed is None or not listed.lower().endswith(".parquet"):
        return None
    return listed if files.read(listed)[:4] == _PARQUET_MAGIC else None


def refuse_unreadable(metadata: TableMetadata, snapshot: Snapshot) -> None:
    """UnsupportedError for a snapshot that no manifest list describes, or whose list is encrypted."""
    where = f"{metadata.location}: snapshot {snapshot.snapshot_id}"
    if snapshot.key_id is not None:
        raise UnsupportedError(f"{where} is encrypted (key-id {snapshot.key_id}); encrypted tables can't be read")


def _primitives(fields: Mapping[int, NestedField]) -> dict[int, NestedField]:
    return {one: field for one, field in fields.items() if isinstance(field.field_type, PrimitiveType)}


def _list_location(snapshot: Snapshot | None) -> str:
    return "" if snapshot is None else snapshot.manifest_list or f"snapshot {snapshot.snapshot_id}"


def _manifest_ids(manifests: pa.Table, file_format: str) -> list[int]:
    ids: list[int] = (
        manifests.filter(pc.equal(manifests.column("file_format"), file_format)).column("manifest").to_pylist()
    )
    return ids


def _among(parts: pa.Table, manifests: set[int]) -> Any:
    return pc.is_in(parts.column("manifest"), pa.array(sorted(manifests), pa.int32()))
