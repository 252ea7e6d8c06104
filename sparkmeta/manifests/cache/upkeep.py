"""What is in a manifest cache, and what of it may go: anything may, since manifests can be decoded again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sparkmeta.manifests.cache.folder import ManifestCache
from sparkmeta.manifests.cache.layout import LEAF_SUFFIX, TYPES_SUFFIX, CachedLeaf, leaf_folder
from sparkmeta.storage.files import DeleteFailure
from sparkmeta.storage.listing import FileStatus
from sparkmeta.storage.location import file_name
from sparkmeta.storage.writing import is_temporary

DAY_MS = 86_400_000


@dataclass(frozen=True)
class CachedFolder:
    """The leaves of the manifests of one folder, and all files that are among them. Times are ms since 1970."""

    manifests: str
    leaves: tuple[CachedLeaf, ...]
    files: tuple[FileStatus, ...]

    @property
    def size_in_bytes(self) -> int:
        return sum(status.length for status in self.files)

    @property
    def written_ms(self) -> tuple[int, int] | None:
        """When the first and the last leaf were written."""
        times = [leaf.status.modified_ms for leaf in self.leaves]
        return (min(times), max(times)) if times else None


@dataclass(frozen=True)
class CacheContents:
    """A whole cache. types: the files that say how leaves are typed."""

    folders: tuple[CachedFolder, ...]
    types: tuple[FileStatus, ...]

    def superfluous(self, before_ms: int, now_ms: int) -> list[FileStatus]:
        """What nobody misses: leaves written up to a time, torn ones, and those that say what another says.

        And what a crash left behind, and types of no leaf that stays, which only go when they are a day old, or
        everything goes: writers write them before the leaf.
        """
        gone = [status for folder in self.folders for status in _superfluous(folder, before_ms, now_ms - DAY_MS)]
        leaving = set(gone)
        kept = {leaf.types for folder in self.folders for leaf in folder.leaves if leaf.status not in leaving}
        types = [one for one in self.types if file_name(one.location).removesuffix(TYPES_SUFFIX) not in kept]
        return [*gone, *(one for one in types if one.modified_ms < now_ms - DAY_MS or before_ms >= now_ms)]


def cache_contents(cache: ManifestCache) -> CacheContents:
    """Lists the cache. Raises NotFoundError where there is no such folder."""
    types = cache.files.list(cache.folder, f"*{TYPES_SUFFIX}")
    known = [cache.types(file_name(one.location).removesuffix(TYPES_SUFFIX)) for one in types]
    manifests = sorted({one.manifests for one in known if one is not None})
    return CacheContents(tuple(_folder(cache, one) for one in manifests), tuple(types))


def delete_cached(cache: ManifestCache, files: list[FileStatus]) -> list[DeleteFailure]:
    """Deletes files of the cache; gives those that could not be."""
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
    yield from (one for one in folder.files if is_temporary(one.location) and one.modified_ms < crashed_ms)
