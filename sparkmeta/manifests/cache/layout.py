"""The manifest cache: Avro manifests decoded once, and kept as Parquet leaves, of which plans read what they need.

    <cache>/<types>.json                                          the types of stats and partition values
    <cache>/<folder>/<key>-<types>-<digest>-<size>.parquet        a leaf: a manifest, or a task's part of one

A key stands for the manifest's location, its length, its partition spec and the part, so that no other manifest's leaf
is taken for it. `types` is a digest of the document of that name: a leaf serves a plan only if that wants every value
as it is typed there. `size` is the leaf's own length; one of another length is torn, and passed over. Nobody writes two
contents under one name, so it does not matter who writes when, and nothing is ever changed.

What is in a leaf is what the manifest has, before inheritance. Free of Spark: tasks import this.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from sparkmeta.manifests.projection import EntryProjection
from sparkmeta.storage.listing import FileStatus
from sparkmeta.storage.location import file_name, join, normalize

LAYOUT = 1
"""Of the leaves. Another one gives other keys."""

LEAF_SUFFIX, TYPES_SUFFIX = ".parquet", ".json"
_DIGITS, _FEW_DIGITS = 32, 16

UNKNOWN_TYPE = "unknown"
"""Of columns that have no values, for which Parquet has no column that Spark reads."""


@dataclass(frozen=True)
class CacheTypes:
    """The Iceberg types by which the values in a leaf are typed, by id of the column and of the partition field.

    manifests: the folder of the manifests. None for a type: manifests have such values, and the leaf does not.
    """

    manifests: str
    stats: Mapping[int, str | None]
    partition: Mapping[int, str | None]

    @property
    def document(self) -> bytes:
        """What stands in the file of types."""
        types = {"stats": _by_text(self.stats), "partition": _by_text(self.partition)}
        return json.dumps({"manifests": self.manifests, **types}, sort_keys=True).encode()

    @property
    def name(self) -> str:
        return _digest(self.document)

    @staticmethod
    def parse(document: bytes) -> CacheTypes:
        """Raises ValueError for what is no document of types."""
        known: Any = json.loads(document)
        try:
            stats, partition = (
                {int(one): kind for one, kind in known[part].items()} for part in ("stats", "partition")
            )
            return CacheTypes(str(known["manifests"]), stats, partition)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no document of types: {error!r}") from error

    def serves(self, projection: EntryProjection) -> bool:
        """Whether a leaf of these types has every value that is wanted, as it is wanted.

        What the document doesn't name is in no manifest that it stands for, and so is null in the leaf too.
        """
        projected = ((self.stats, projection.stats), (self.partition, projection.partition))
        return all(
            kind != UNKNOWN_TYPE and types.get(one, kind) == kind for types, fields in projected for one, kind in fields
        )


def _by_text(types: Mapping[int, str | None]) -> dict[str, str | None]:
    return {str(one): kind for one, kind in types.items()}


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()[:_DIGITS]


def short_digest(content: bytes) -> str:
    """What stands in a leaf's name for its content."""
    return _digest(content)[:_FEW_DIGITS]


def manifests_folder(location: str) -> str:
    """The folder of a manifest, in a form that is equal for all spellings of it."""
    return normalize(location).rpartition("/")[0]


def leaf_folder(cache: str, manifests: str) -> str:
    """Where the leaves of the manifests in a folder are."""
    return join(cache, short_digest(manifests.encode()))


def leaf_key(location: str, length: int, spec_id: int, part: int, parts: int) -> str:
    """What names the leaf of a manifest's part, or of a whole one (part 0 of 1)."""
    return _digest(json.dumps([LAYOUT, normalize(location), length, spec_id, part, parts]).encode())


@dataclass(frozen=True)
class CachedLeaf:
    """A leaf by its name. size: as the name says it."""

    key: str
    types: str
    size: int
    status: FileStatus

    @property
    def whole(self) -> bool:
        return self.size == self.status.length

    @staticmethod
    def of(status: FileStatus) -> CachedLeaf | None:
        """None for a file with no leaf's name."""
        parts = file_name(status.location).removesuffix(LEAF_SUFFIX).split("-")
        if len(parts) != 4 or not parts[3].isdecimal():
            return None
        return CachedLeaf(parts[0], parts[1], int(parts[3]), status)
