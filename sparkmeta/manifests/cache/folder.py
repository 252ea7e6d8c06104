"""Look up leaves in a folder of the manifest cache, on the driver."""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from sparkmeta.entries.projection import EntryProjection
from sparkmeta.errors import NotFoundError, SettingError, shown
from sparkmeta.manifests.cache.layout import (
    LEAF_SUFFIX,
    TYPES_SUFFIX,
    CachedLeaf,
    CacheTypes,
    leaf_folder,
    leaf_key,
    manifests_folder,
)
from sparkmeta.manifests.cache.write import CacheWriter
from sparkmeta.settings import PREFIX
from sparkmeta.storage.access import files_for
from sparkmeta.storage.executors import ExecutorWriter
from sparkmeta.storage.files import Files, IOFiles
from sparkmeta.storage.location import join, scheme

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sparkmeta.manifests.types import TableTypes
    from sparkmeta.storage.access import FileAccess

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
            return pa.array(self._serving(parts, projection), pa.string())
        except Exception as error:  # noqa: BLE001  each store's client has its own errors
            _log.warning("the manifest cache in %s can't be read: %s", self.folder, error)
            return pa.nulls(len(parts), pa.string())

    def _serving(self, parts: pa.Table, projection: EntryProjection) -> list[str | None]:
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
        listed = Counter(keys)
        return [leaves.get(key) if listed[key] == 1 else None for key in keys]


def _checked(document: bytes, name: str) -> CacheTypes | None:
    """Return the types in a document; None if it is not the one with this name."""
    with suppress(ValueError):
        types = CacheTypes.parse(document)
        return types if types.name == name else None
    return None


def open_cache(spark: SparkSession, folder: str, access: FileAccess, types: TableTypes) -> ManifestCache:
    """Return the cache in a folder. The table's FileIO opens it, unless it is on a local disk.

    Args:
        spark: the session.
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
    return ManifestCache(folder, files_for(spark, folder, io), writer)
