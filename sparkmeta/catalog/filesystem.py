"""Tables that are folders: which metadata file is the current one, and catalogs of such folders."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder

from sparkmeta.errors import CorruptFileError, NoSuchTableError, NotFoundError, ValidationError
from sparkmeta.spec.new_table import new_metadata
from sparkmeta.storage.files import files_for
from sparkmeta.storage.location import file_name, join, path_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pyiceberg.schema import Schema
    from pyspark.sql import SparkSession

    from sparkmeta.storage.files import Files
    from sparkmeta.table import Table

METADATA = "metadata"
VERSION_HINT = "version-hint.text"
METADATA_FILES = "*.metadata.json*"
VERSIONED_FILES = "v*.metadata.json*"

# In the order in which Iceberg's Java library looks for them.
_SPELLINGS = ("v{}.metadata.json", "v{}.gz.metadata.json", "v{}.metadata.json.gz")
_VERSIONED = re.compile(r"v(0|[1-9]\d*)(?:\.metadata\.json|\.gz\.metadata\.json|\.metadata\.json\.gz)")
# Not the name that is a UUID alone, of a commit under way.
_METASTORE = re.compile(r"(?!\w{8}-\w{4}-\w{4}-\w{4}-\w{12}\.)(\d+)-.+\.metadata\.json(?:\.gz)?")
_METADATA_FILE = re.compile(r".*\.json(?:\.gz)?", re.DOTALL)
# How deep below a warehouse a namespace may hold its tables.
_DEEPEST = 3


class MetadataLocation(NamedTuple):
    """A table's current metadata file. ``read_only``: only the table's catalog can say that it is the current one."""

    location: str
    version: int
    read_only: bool


def is_metadata_file(location: str) -> bool:
    """Whether a location is by its name a metadata file, ``*.json`` or ``*.json.gz``, not a table's folder."""
    return _METADATA_FILE.fullmatch(location) is not None


def latest_metadata(files: Files, folder: str) -> MetadataLocation:
    """The current metadata file of the table in a folder.

    Of a file system table, ``v<N>.metadata.json``: the version that ``version-hint.text`` names, or the highest one
    where there is no such number, and from there on the last one before a gap, since the hint may lag. Of a table of
    a catalog, ``<N>-<uuid>.metadata.json``: the highest number. Each also gzip.

    Raises NoSuchTableError where there is none, CorruptFileError where the hinted version does not exist, nor one
    above it, and ValidationError where two files have the highest number, since the commit of one was lost.
    """
    metadata = join(folder, METADATA)
    hinted = hinted_version(files, folder)
    if hinted is None:
        return _highest(files, folder, metadata)
    if (location := _versioned(files, metadata, hinted)) is None:
        return _above(files, folder, hinted)
    return _last_of(files, metadata, MetadataLocation(location, hinted, read_only=False))


def newest_listed(files: Files, folder: str) -> MetadataLocation:
    """The current metadata file by a listing alone, which neither a hint that lags nor a gap between versions misleads.

    Raises as ``latest_metadata`` does.
    """
    metadata = join(folder, METADATA)
    with suppress(NotFoundError):
        names = {file_name(status.location) for status in files.list(metadata, VERSIONED_FILES)}
        if newest := _newest_version(metadata, names):
            return newest
    return _highest(files, folder, metadata)


def version_of(location: str) -> int | None:
    """The version of a file system table's metadata file, by its name; None for the name that a catalog gives."""
    match = _VERSIONED.fullmatch(file_name(location))
    return None if match is None else int(match[1])


def versioned_location(folder: str, version: int, compressed: bool) -> str:
    """Where the metadata file of a version is written, in the table of a folder."""
    return join(join(folder, METADATA), _SPELLINGS[1 if compressed else 0].format(version))


def hinted_version(files: Files, folder: str) -> int | None:
    """The number in the hint file; None where there is no file or no number, which a torn write may leave."""
    try:
        lines = files.read(join(join(folder, METADATA), VERSION_HINT)).splitlines()
    except NotFoundError:
        return None
    first = lines[0].strip() if lines else b""
    return int(first) if first.isdigit() and len(first) < 11 else None


@dataclass(frozen=True)
class FileSystemCatalog:
    """The tables in the folders of a warehouse: ``<warehouse>/<namespace>/<table>``, a level for each name."""

    name: str
    warehouse: str

    def load_table(self, identifier: str | tuple[str, ...], spark: SparkSession | None = None) -> Table:
        """The table of a name; raises NoSuchTableError."""
        from sparkmeta.session import resolve_session
        from sparkmeta.table import open_table

        names = as_names(identifier)
        return replace(open_table(self._folder(names), resolve_session(spark)), name=".".join(names))

    def create_table(
        self,
        identifier: str | tuple[str, ...],
        schema: Schema,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: Mapping[str, str] | None = None,
        *,
        format_version: int | None = None,
        spark: SparkSession | None = None,
    ) -> Table:
        """Create an empty table: see `Catalog.create_table`."""
        from sparkmeta.commit.filesystem import FileSystemSwap
        from sparkmeta.session import resolve_session

        names = as_names(identifier)
        folder, session = self._folder(names), resolve_session(spark)
        metadata = new_metadata(folder, schema, partition_spec, sort_order, properties or {}, format_version)
        FileSystemSwap(files_for(session, folder), folder).commit(None, None, metadata)
        return self.load_table(names, session)

    def list_tables(self, namespace: str | tuple[str, ...], spark: SparkSession | None = None) -> list[tuple[str, ...]]:
        """The names of the tables right in a namespace, in order."""
        names = as_names(namespace)
        return [(*names, table) for table in self._first_names(names, 1, spark)]

    def list_namespaces(
        self, namespace: str | tuple[str, ...] = (), spark: SparkSession | None = None
    ) -> list[tuple[str, ...]]:
        """The namespaces right in a namespace that hold tables, up to three levels down, in order."""
        names = as_names(namespace)
        found = {name for depth in range(2, _DEEPEST + 2) for name in self._first_names(names, depth, spark)}
        return [(*names, name) for name in sorted(found - set(self._first_names(names, 1, spark)))]

    def _first_names(self, names: tuple[str, ...], depth: int, spark: SparkSession | None) -> list[str]:
        from sparkmeta.session import resolve_session

        folder = self._folder(names)
        pattern = "/".join([*["*"] * depth, METADATA, METADATA_FILES])
        found = files_for(resolve_session(spark), folder).glob(folder, pattern)
        above = len(path_of(folder).split("/"))
        return sorted({path_of(location).split("/")[above] for location in found})

    def _folder(self, names: tuple[str, ...]) -> str:
        folder = self.warehouse
        for name in names:
            folder = join(folder, name)
        return folder


def as_names(identifier: str | tuple[str, ...]) -> tuple[str, ...]:
    """The names of an identifier that is one text with dots, or already a tuple."""
    return tuple(identifier.split(".") if identifier else ()) if isinstance(identifier, str) else identifier


def _above(files: Files, folder: str, hinted: int) -> MetadataLocation:
    """The newest version, where the one that is hinted was deleted since: the hint of a slow writer came late."""
    with suppress(NoSuchTableError, ValidationError):
        newest = _highest(files, folder, join(folder, METADATA))
        if newest.version > hinted and not newest.read_only:
            return newest
    hint = join(join(folder, METADATA), VERSION_HINT)
    raise CorruptFileError(hint, "version", hinted, f"there is no v{hinted}.metadata.json beside it")


def _versioned(files: Files, metadata: str, version: int) -> str | None:
    locations = (join(metadata, spelling.format(version)) for spelling in _SPELLINGS)
    return next((location for location in locations if files.exists(location)), None)


def _last_of(files: Files, metadata: str, found: MetadataLocation) -> MetadataLocation:
    while (newer := _versioned(files, metadata, found.version + 1)) is not None:
        found = MetadataLocation(newer, found.version + 1, read_only=False)
    return found


def _highest(files: Files, folder: str, metadata: str) -> MetadataLocation:
    try:
        names = [file_name(status.location) for status in files.list(metadata, METADATA_FILES)]
    except NotFoundError:
        names = []
    if newest := _newest_version(metadata, names):
        return _last_of(files, metadata, newest)
    numbered = [(int(match[1]), name) for name in names if (match := _METASTORE.fullmatch(name))]
    if not numbered:
        raise NoSuchTableError(f"{folder}: there is no Iceberg table: {metadata} holds no metadata file")
    return _only_highest(metadata, numbered)


def _newest_version(metadata: str, names: Collection[str]) -> MetadataLocation | None:
    """The file with the highest version of a file system table; None where none has one."""
    versions = [int(match[1]) for name in names if (match := _VERSIONED.fullmatch(name))]
    if not versions:
        return None
    highest = max(versions)
    spellings = (spelling.format(highest) for spelling in _SPELLINGS)
    name = next(spelling for spelling in spellings if spelling in names)
    return MetadataLocation(join(metadata, name), highest, read_only=False)


def _only_highest(metadata: str, numbered: list[tuple[int, str]]) -> MetadataLocation:
    version = max(number for number, _ in numbered)
    names = sorted(name for number, name in numbered if number == version)
    if len(names) > 1:
        raise ValidationError(
            f"{metadata}: both {' and '.join(names[:5])} are version {version}, so the commit of one was lost: "
            "ask the table's catalog which is current, and open that file"
        )
    return MetadataLocation(join(metadata, names[0]), version, read_only=True)
