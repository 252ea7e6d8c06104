"""The manifest cache: look up, read, list and delete decoded Avro manifests."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa

from sparkmeta.arrow_types import spark_schema
from sparkmeta.entries.locations import ENTRY_LOCATIONS
from sparkmeta.entries.projection import CONTENT_STATS, MANIFEST, ORDINAL, PARTITION, EntryProjection
from sparkmeta.errors import NotFoundError, SettingError, ValidationError, shown
from sparkmeta.expr import sql
from sparkmeta.expr.sql import Sql
from sparkmeta.manifests.cache_leaves import (
    LEAF_SUFFIX,
    TYPES_SUFFIX,
    CachedLeaf,
    CacheTypes,
    CacheWriter,
    leaf_folder,
    leaf_key,
    manifests_folder,
)
from sparkmeta.manifests.decoder import CACHED_LEAF
from sparkmeta.manifests.v4.spark import read_leaves, resolved, version_info
from sparkmeta.settings import PREFIX
from sparkmeta.spec.entry import ROW_ID_OFFSET
from sparkmeta.storage.executors import ExecutorWriter
from sparkmeta.storage.files import Files, IOFiles, files_for
from sparkmeta.storage.listing import FileStatus
from sparkmeta.storage.location import file_name, join, scheme
from sparkmeta.storage.writing import DeleteFailure, is_temporary

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sparkmeta.manifests.types import TableTypes
    from sparkmeta.session import SessionSource
    from sparkmeta.spec.locations import Locations
    from sparkmeta.storage.files import FileAccess


# -- Read leaves with Spark -------------------------------------------------------------------------------------------


def read_cached_entries(
    spark: SparkSession, parts: pa.Table, projection: EntryProjection, locations: Locations
) -> DataFrame:
    """Return every physical entry of parts, rows of `PART_SCHEMA` with their `CACHED_LEAF`, as a lazy DataFrame.

    For a leaf that was damaged after it was written, Spark raises an error that names it.

    Args:
        spark: the session.
        parts: the parts.
        projection: the columns to return.
        locations: resolves the locations in manifests. Locations in leaves are absolute, but may lack a scheme.
    """
    leaves = parts.set_column(parts.column_names.index("location"), "location", parts.column(CACHED_LEAF))
    leaf_rows = read_leaves(spark, leaves, spark_schema(_read_schema(projection)), ORDINAL)
    older = locations.before_version_4
    columns = [_column(name, leaf_rows.inherited, older).alias(name) for name in projection.columns]
    for name, fields in ((PARTITION, projection.partition), (CONTENT_STATS, projection.stats)):
        if fields:
            columns.append(
                sql.struct(*(sql.col(f"{name}.`{field_id}`").alias(str(field_id)) for field_id, _ in fields)).alias(
                    name
                )
            )
    return leaf_rows.frame.selectExpr(*sql.texts([*columns, leaf_rows.manifest.alias(MANIFEST)]), ORDINAL)


def _read_schema(projection: EntryProjection) -> pa.Schema:
    with_version = EntryProjection.of(
        {*projection.columns, "version_info"}, dict(projection.partition), dict(projection.stats)
    )
    fields = [field.with_nullable(True) for field in with_version.schema if field.name != MANIFEST]
    if "first_row_id" in projection.columns:
        fields.append(pa.field(ROW_ID_OFFSET.name, ROW_ID_OFFSET.type))
    return pa.schema(fields)


def _column(name: str, inherited: Sql, locations: Locations) -> Sql:
    if name in ENTRY_LOCATIONS and locations.rooted:
        return resolved(sql.col(name), locations)
    if name == "version_info":
        return version_info(inherited, of_version_1=True)
    return _row_id(inherited) if name == "first_row_id" else sql.col(name)


def _row_id(inherited: Sql) -> Sql:
    """Return the first row id, as `RowIdCounter` assigns it: null if the manifest has none."""
    start, offset = inherited["first_row_id"], sql.col(ROW_ID_OFFSET.name)
    return sql.when(start.isNotNull(), sql.coalesce(sql.col("first_row_id"), start + offset))


# -- Look up leaves ---------------------------------------------------------------------------------------------------


_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ManifestCache:
    """A folder of the manifest cache.

    Attributes:
        folder: the folder's location.
        files: opens the files in it.
        writer: writes leaves in tasks, with the types of the table's columns; None if tasks can't write.
    """

    folder: str
    files: Files
    writer: CacheWriter | None
    _types: dict[str, CacheTypes | None] = field(default_factory=dict, repr=False, compare=False)

    def leaves(self, manifests: str) -> list[CachedLeaf]:
        """Return the leaves for a folder of manifests (`manifests_folder`), of any types."""
        try:
            statuses = self.files.list(leaf_folder(self.folder, manifests), f"*{LEAF_SUFFIX}")
        except NotFoundError:
            return []
        return [leaf for status in statuses if (leaf := CachedLeaf.of(status)) is not None]

    def types(self, name: str) -> CacheTypes | None:
        """Return the types with a name; None if their document is missing or damaged."""
        if name not in self._types:
            with suppress(NotFoundError):
                self._types[name] = _checked(self.files.read(join(self.folder, f"{name}{TYPES_SUFFIX}")), name)
        return self._types.get(name)

    def leaves_of(self, parts: pa.Table, projection: EntryProjection) -> pa.Array:
        """Return the location of each part's leaf, or null. Parts are rows of `PART_SCHEMA`.

        A cache that can't be read counts as empty.
        """
        try:
            return pa.array(self._usable_leaves(parts, projection), pa.string())
        except Exception as error:  # noqa: BLE001  each store's client has its own errors
            _log.warning("the manifest cache in %s can't be read: %s", self.folder, error)
            return pa.nulls(len(parts), pa.string())

    def _usable_leaves(self, parts: pa.Table, projection: EntryProjection) -> list[str | None]:
        """Return the leaf of each part; None for manifests listed twice, whose rows Spark could not tell apart."""
        folders = sorted({manifests_folder(location) for location in parts.column("location").to_pylist()})
        leaves: dict[str, str] = {}
        for leaf in sorted((leaf for folder in folders for leaf in self.leaves(folder)), key=lambda leaf: leaf.status):
            types = self.types(leaf.types) if leaf.whole else None
            if types is not None and types.serves(projection):
                leaves.setdefault(leaf.key, leaf.status.location)
        keys = [
            leaf_key(*(row[name] for name in ("location", "file_size_in_bytes", "partition_spec_id", "part", "parts")))
            for row in parts.to_pylist()
        ]
        counts = Counter(keys)
        return [leaves.get(key) if counts[key] == 1 else None for key in keys]


def _checked(document: bytes, name: str) -> CacheTypes | None:
    """Return the types in a document; None if it is damaged or does not have this name."""
    with suppress(ValueError):
        types = CacheTypes.parse(document)
        return types if types.name == name else None
    return None


def open_cache(sessions: SessionSource, folder: str, access: FileAccess, types: TableTypes) -> ManifestCache:
    """Return the cache in a folder. The table's FileIO opens it, unless it is on a local disk.

    Args:
        sessions: the source of the session, which is needed if only Spark opens the folder.
        folder: the setting `manifest_cache`.
        access: opens the table's files. Leaves are written only if tasks can open them.
        types: the table's types.

    Raises:
        SettingError: the path is relative, and would be a different folder on each machine.
    """
    if not scheme(folder) and not folder.startswith("/"):
        problem = "expected an absolute path, or a location with a scheme"
        raise SettingError(f"{PREFIX}manifest-cache is {shown(folder)}: {problem}")
    io = access.files.io if isinstance(access.files, IOFiles) else None
    writer = None
    if access.tasks is not None:
        cached = CacheTypes("", types.cached_types, types.partition_fields)
        writer = CacheWriter(folder, cached, access.tasks, ExecutorWriter(access.tasks.io_properties))
    return ManifestCache(folder, files_for(sessions, folder, io), writer)


# -- List and delete files of a cache ---------------------------------------------------------------------------------
# Manifests whose leaves were deleted are decoded again.


DAY_MS = 86_400_000

# How deep to search for files in a folder that may be no cache, but a table or a warehouse of tables.
_LEVELS = 6


@dataclass(frozen=True)
class CachedFolder:
    """The leaves for one folder of manifests, and all files in the same folder of the cache."""

    manifests: str
    leaves: tuple[CachedLeaf, ...]
    files: tuple[FileStatus, ...]

    @property
    def size_in_bytes(self) -> int:
        return sum(status.length for status in self.files)

    @property
    def written_ms(self) -> tuple[int, int] | None:
        """The times when the first and the last leaf were written, in ms since 1970."""
        times = [leaf.status.modified_ms for leaf in self.leaves]
        return (min(times), max(times)) if times else None


@dataclass(frozen=True)
class CacheContents:
    """The contents of a cache.

    Attributes:
        folders: the leaves by folder of manifests.
        types: the documents with the types of leaves.
    """

    folders: tuple[CachedFolder, ...]
    types: tuple[FileStatus, ...]

    def superfluous(self, before_ms: int, now_ms: int) -> list[FileStatus]:
        """Return the files to delete: leaves written up to a time, and torn or duplicate ones.

        Temporary files and unused documents of types are included when they are a day old, since writers create them
        before the leaf. Unused documents are also included if all leaves are.
        """
        deleted = [status for folder in self.folders for status in _superfluous(folder, before_ms, now_ms - DAY_MS)]
        skipped = set(deleted)
        used = {leaf.types for folder in self.folders for leaf in folder.leaves if leaf.status not in skipped}
        unused = [status for status in self.types if _types_name(status) not in used]
        return deleted + [file for file in unused if file.modified_ms < now_ms - DAY_MS or before_ms >= now_ms]


def _types_name(status: FileStatus) -> str:
    return file_name(status.location).removesuffix(TYPES_SUFFIX)


def cache_contents(cache: ManifestCache) -> CacheContents:
    """List the contents of a cache.

    Documents of types are recognized by their names and contents; doubtful files are left out.

    Raises:
        NotFoundError: the folder does not exist.
        ValidationError: the folder, or a folder below, contains files, but no document of types: it is no cache.
    """
    files = cache.files.list(cache.folder)
    documents = {status: types for status in files if (types := _document(cache, status)) is not None}
    if not documents and not all(map(is_temporary, chain((status.location for status in files), _files_below(cache)))):
        raise ValidationError(f"{cache.folder}: this is no manifest cache: it has other files")
    folders = sorted({types.manifests for types in documents.values()})
    return CacheContents(tuple(_folder(cache, folder) for folder in folders), tuple(documents))


def _files_below(cache: ManifestCache) -> Iterator[str]:
    """Yield the locations of files in folders below the cache's folder, level by level."""
    for depth in range(1, _LEVELS + 1):
        yield from cache.files.glob(cache.folder, f"{'*/' * depth}*")


def _document(cache: ManifestCache, status: FileStatus) -> CacheTypes | None:
    """Return the types in a file, or None if it is not a document of types."""
    has_name = status.location.endswith(TYPES_SUFFIX) and CacheTypes.is_name(_types_name(status))
    return cache.types(_types_name(status)) if has_name else None


def delete_cached(cache: ManifestCache, files: list[FileStatus]) -> list[DeleteFailure]:
    """Delete files of the cache, and return the failures."""
    return list(cache.files.delete_many(status.location for status in files))


def _folder(cache: ManifestCache, manifests: str) -> CachedFolder:
    try:
        files = cache.files.list(leaf_folder(cache.folder, manifests))
    except FileNotFoundError:
        files = []
    leaves = [CachedLeaf.of(status) for status in files if status.location.endswith(LEAF_SUFFIX)]
    return CachedFolder(manifests, tuple(leaf for leaf in leaves if leaf is not None), tuple(files))


def _superfluous(folder: CachedFolder, before_ms: int, crashed_ms: int) -> Iterator[FileStatus]:
    seen: set[tuple[str, str]] = set()
    for leaf in sorted(folder.leaves, key=lambda leaf: leaf.status):
        identity = (leaf.key, leaf.types)
        if not leaf.whole or identity in seen or leaf.status.modified_ms <= before_ms:
            yield leaf.status
        else:
            seen.add(identity)
    yield from (file for file in folder.files if is_temporary(file.location) and file.modified_ms < crashed_ms)
