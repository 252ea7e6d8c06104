"""List the contents of a manifest cache, and delete files from it. Deleted manifests are decoded again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from sparkmeta.errors import ValidationError
from sparkmeta.manifests.cache.folder import ManifestCache
from sparkmeta.manifests.cache.layout import LEAF_SUFFIX, TYPES_SUFFIX, CachedLeaf, CacheTypes, leaf_folder
from sparkmeta.storage.listing import FileStatus
from sparkmeta.storage.location import file_name
from sparkmeta.storage.writing import DeleteFailure, is_temporary

DAY_MS = 86_400_000

# Levels of folders to search for files in a folder that may be no cache: those of a table, or of a warehouse of tables.
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

    Files that are not certainly documents of types, by their names and contents, are left out.

    Raises:
        NotFoundError: the folder does not exist.
        ValidationError: the folder, or one below, has files, but there is no document of types: it is no cache.
    """
    files = cache.files.list(cache.folder)
    documents = {status: types for status in files if (types := _document(cache, status)) is not None}
    if not documents and not all(map(is_temporary, chain((status.location for status in files), _below(cache)))):
        raise ValidationError(f"{cache.folder}: this is no manifest cache: it has other files")
    folders = sorted({types.manifests for types in documents.values()})
    return CacheContents(tuple(_folder(cache, folder) for folder in folders), tuple(documents))


def _below(cache: ManifestCache) -> Iterator[str]:
    """Yield the locations of files in folders below the cache's folder, level by level."""
    for depth in range(1, _LEVELS + 1):
        yield from cache.files.glob(cache.folder, f"{'*/' * depth}*")


def _document(cache: ManifestCache, status: FileStatus) -> CacheTypes | None:
    """Return the types in a file, or None if it is not a document of types."""
    named = status.location.endswith(TYPES_SUFFIX) and CacheTypes.is_name(_types_name(status))
    return cache.types(_types_name(status)) if named else None


def delete_cached(cache: ManifestCache, files: list[FileStatus]) -> list[DeleteFailure]:
    """Delete files of the cache. Return those that could not be deleted."""
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
        known = (leaf.key, leaf.types)
        if not leaf.whole or known in seen or leaf.status.modified_ms <= before_ms:
            yield leaf.status
        else:
            seen.add(known)
    yield from (file for file in folder.files if is_temporary(file.location) and file.modified_ms < crashed_ms)
