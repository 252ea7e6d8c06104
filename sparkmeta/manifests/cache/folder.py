"""A folder of the manifest cache, as the driver looks into it."""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

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
from sparkmeta.manifests.projection import EntryProjection
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
    """A cache folder as the driver looks into it.

    Args:
        folder: its location.
        files: opens what is in it.
        writer: writes leaves in tasks, typed as the table's columns are; None where tasks can't.
    """

    folder: str
    files: Files
    writer: CacheWriter | None
    _types: dict[str, CacheTypes | None] = field(default_factory=dict, repr=False, compare=False)

    def leaves(self, manifests: str) -> list[CachedLeaf]:
        """The leaves of the manifests of a folder (`manifests_folder`); of one key some may be for other types."""
        try:
            found = self.files.list(leaf_folder(self.folder, manifests), f"*{LEAF_SUFFIX}")
        except NotFoundError:
            return []
        return [leaf for status in found if (leaf := CachedLeaf.of(status)) is not None]

    def types(self, name: str) -> CacheTypes | None:
        """The types of a name; None where nothing says what it stands for, or not in the words that it is made of."""
        if name not in self._types:
            with suppress(NotFoundError):
                self._types[name] = _checked(self.files.read(join(self.folder, f"{name}{TYPES_SUFFIX}")), name)
        return self._types.get(name)

    def leaves_of(self, parts: pa.Table, projection: EntryProjection) -> pa.Array:
        """Return for each part, a row of `PART_SCHEMA`, the location of the leaf that has its entries, or null.

        A cache that can't be looked into holds nothing.
        """
        try:
            return pa.array(self._serving(parts, projection), pa.string())
        except Exception as error:  # noqa: BLE001  each store's client has errors of its own
            _log.warning("the manifest cache in %s can't be read: %s", self.folder, error)
            return pa.nulls(len(parts), pa.string())

    def _serving(self, parts: pa.Table, projection: EntryProjection) -> list[str | None]:
        """A manifest that is listed twice has no leaf: Spark would read it twice, and not tell the rows apart."""
        folders = sorted({manifests_folder(location) for location in parts.column("location").to_pylist()})
        leaves: dict[str, str] = {}
        for leaf in sorted((leaf for one in folders for leaf in self.leaves(one)), key=lambda leaf: leaf.status):
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
    """None for a document that is not the one that was named so."""
    with suppress(ValueError):
        types = CacheTypes.parse(document)
        return types if types.name == name else None
    return None


def open_cache(spark: SparkSession, folder: str, access: FileAccess, types: TableTypes) -> ManifestCache:
    """Return the cache in a folder, which the table's FileIO opens where it is on no disk of this machine.

    Args:
        spark: the session.
        folder: the setting `manifest_cache`.
        access: opens the table's files. Leaves are written where tasks open files themselves.
        types: of the table.

    Raises:
        SettingError: a relative path, which would be another folder on each machine.
    """
    if not scheme(folder) and not folder.startswith("/"):
        problem = "it takes an absolute path, or a location with a scheme"
        raise SettingError(f"{PREFIX}manifest-cache is {shown(folder)}: {problem}")
    io = access.files.io if isinstance(access.files, IOFiles) else None
    writer = None
    if access.tasks is not None:
        cached = CacheTypes("", types.cached_types, types.partition_fields)
        writer = CacheWriter(folder, cached, access.tasks, ExecutorWriter(access.tasks.io_properties))
    return ManifestCache(folder, files_for(spark, folder, io), writer)
