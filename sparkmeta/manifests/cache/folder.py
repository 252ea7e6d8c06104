"""A folder of the manifest cache, as the driver looks into it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from sparkmeta.errors import NotFoundError
from sparkmeta.manifests.cache.layout import (
    LEAF_SUFFIX,
    TYPES_SUFFIX,
    CachedLeaf,
    CacheTypes,
    leaf_folder,
    leaf_key,
    manifests_folder,
)
from sparkmeta.manifests.projection import EntryProjection
from sparkmeta.storage.files import Files
from sparkmeta.storage.location import join

if TYPE_CHECKING:
    from sparkmeta.manifests.cache.write import CacheWriter


@dataclass(frozen=True)
class ManifestCache:
    """A cache folder as the driver looks into it.

    types: those of the table that asks. writer: what tasks write leaves with; None where they can't.
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

    def serving(self, parts: pa.Table, lengths: Mapping[int, int], projection: EntryProjection) -> list[str | None]:
        """For each row of `PART_SCHEMA` the location of a leaf that has what is wanted, or None.

        lengths: of the manifests, by their small ids. A manifest that is listed twice has none: Spark would read the
        leaf twice, and tell the rows apart no more.
        """
        folders = sorted({manifests_folder(location) for location in parts.column("location").to_pylist()})
        leaves: dict[str, str] = {}
        for leaf in sorted((leaf for one in folders for leaf in self.leaves(one)), key=lambda leaf: leaf.status):
            types = self.types(leaf.types) if leaf.whole else None
            if types is not None and types.serves(projection):
                leaves.setdefault(leaf.key, leaf.status.location)
        keys = [
            leaf_key(row["location"], lengths[row["manifest"]], row["partition_spec_id"], row["part"], row["parts"])
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
