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
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sparkmeta.errors import NotFoundError
from sparkmeta.manifests.projection import EntryProjection
from sparkmeta.storage.files import Files
from sparkmeta.storage.listing import FileStatus
from sparkmeta.storage.location import file_name, join, normalize

if TYPE_CHECKING:
    from sparkmeta.manifests.cache_leaf import CacheWriter

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
        wanted = ((self.stats, projection.stats), (self.partition, projection.partition))
        return all(
            kind != UNKNOWN_TYPE and types.get(one, kind) == kind for types, fields in wanted for one, kind in fields
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
