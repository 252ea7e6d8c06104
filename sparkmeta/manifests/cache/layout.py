"""The layout of the manifest cache: decoded Avro manifests as Parquet leaves. Without Spark: tasks import this.

    <cache>/<types>.json                                          the types of stats and partition values
    <cache>/<folder>/<key>-<types>-<digest>-<size>.parquet        a leaf: a manifest, or a task's part of one

The key is a digest of the manifest's location, length, partition spec and part. `types` is a digest of the document
with this name; a leaf serves only plans that read every value as it is typed there. `size` is the leaf's length; a leaf
of another length is torn, and ignored. The content decides the name, so files are never changed, and concurrent writers
write the same.

A leaf holds the manifest's entries before inheritance.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from sparkmeta.entries.projection import EntryProjection
from sparkmeta.storage.listing import FileStatus
from sparkmeta.storage.location import file_name, join, normalize

LAYOUT = 4
"""The version of the layout and of the decoded values of leaves, which is part of keys."""

LEAF_SUFFIX, TYPES_SUFFIX = ".parquet", ".json"
_DIGITS, _FEW_DIGITS = 32, 16
_DIGEST = re.compile(rf"[0-9a-f]{{{_DIGITS}}}")


@dataclass(frozen=True)
class CacheTypes:
    """The Iceberg types of the values in a leaf.

    A type is None if manifests have values of the field, but the leaf does not.

    Attributes:
        manifests: the folder of the manifests.
        stats: column id -> type.
        partition: partition field id -> type.
    """

    manifests: str
    stats: Mapping[int, str | None]
    partition: Mapping[int, str | None]

    @property
    def document(self) -> bytes:
        """The content of the file of types."""
        types = {"stats": _by_text(self.stats), "partition": _by_text(self.partition)}
        return json.dumps({"manifests": self.manifests, **types}, sort_keys=True).encode()

    @property
    def name(self) -> str:
        return _digest(self.document)

    @staticmethod
    def is_name(text: str) -> bool:
        """Return whether a document of types can have this name."""
        return _DIGEST.fullmatch(text) is not None

    @staticmethod
    def parse(document: bytes) -> CacheTypes:
        """Parse a document of types. Raises ValueError if it is not one."""
        known: Any = json.loads(document)
        try:
            stats, partition = (
                {int(field_id): kind for field_id, kind in known[part].items()} for part in ("stats", "partition")
            )
            return CacheTypes(str(known["manifests"]), stats, partition)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no document of types: {error!r}") from error

    def serves(self, projection: EntryProjection) -> bool:
        """Return whether a leaf of these types has all values of a projection, with its types.

        Fields that the document does not name have no values in the manifest, and are null in the leaf.
        """
        projected = ((self.stats, projection.stats), (self.partition, projection.partition))
        return all(types.get(field_id, kind) == kind for types, fields in projected for field_id, kind in fields)


def _by_text(types: Mapping[int, str | None]) -> dict[str, str | None]:
    return {str(field_id): kind for field_id, kind in types.items()}


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()[:_DIGITS]


def short_digest(content: bytes) -> str:
    """Return the digest of a leaf's content that its name has."""
    return _digest(content)[:_FEW_DIGITS]


def manifests_folder(location: str) -> str:
    """Return the normalized folder of a manifest."""
    return normalize(location).rpartition("/")[0]


def leaf_folder(cache: str, manifests: str) -> str:
    """Return the cache's folder with the leaves of a folder of manifests."""
    return join(cache, short_digest(manifests.encode()))


def leaf_key(location: str, length: int, spec_id: int, part: int, parts: int) -> str:
    """Return the key of the leaf for a manifest's part; a whole manifest is part 0 of 1."""
    return _digest(json.dumps([LAYOUT, normalize(location), length, spec_id, part, parts]).encode())


@dataclass(frozen=True)
class CachedLeaf:
    """A leaf, described by its name.

    Attributes:
        size: the length of the file, according to its name.
    """

    key: str
    types: str
    size: int
    status: FileStatus

    @property
    def whole(self) -> bool:
        return self.size == self.status.length

    @staticmethod
    def of(status: FileStatus) -> CachedLeaf | None:
        """Return the leaf that a file is; None if its name is not that of a leaf."""
        parts = file_name(status.location).removesuffix(LEAF_SUFFIX).split("-")
        if len(parts) != 4 or not parts[3].isdecimal():
            return None
        return CachedLeaf(parts[0], parts[1], int(parts[3]), status)
