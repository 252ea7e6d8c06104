"""Find the current metadata file in a table's folder, from the hint file or a listing."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from sparkmeta.errors import CorruptFileError, NoSuchTableError, NotFoundError, ValidationError
from sparkmeta.storage.location import file_name, join

if TYPE_CHECKING:
    from collections.abc import Collection

    from sparkmeta.storage.files import Files

METADATA = "metadata"
VERSION_HINT = "version-hint.text"
METADATA_FILES = "*.metadata.json*"
VERSIONED_FILES = "v*.metadata.json*"
METADATA_FILE = r"\.metadata\.json(?:\.gz)?$"
"""A pattern that finds the name of a metadata file in a path."""

# In the order in which Iceberg's Java library looks for them.
_SPELLINGS = ("v{}.metadata.json", "v{}.gz.metadata.json", "v{}.metadata.json.gz")
_VERSIONED = re.compile(r"v(0|[1-9]\d*)(?:\.metadata\.json|\.gz\.metadata\.json|\.metadata\.json\.gz)")
# Excludes names with only a UUID, which unfinished commits have.
_METASTORE = re.compile(r"(?!\w{8}-\w{4}-\w{4}-\w{4}-\w{12}\.)(\d+)-.+\.metadata\.json(?:\.gz)?")
_METADATA_FILE = re.compile(r".*\.json(?:\.gz)?", re.DOTALL)


class MetadataLocation(NamedTuple):
    """A table's current metadata file.

    Attributes:
        read_only: whether only the table's catalog knows which file is current.
    """

    location: str
    version: int
    read_only: bool


def is_metadata_file(location: str) -> bool:
    """Return whether a location is a metadata file, ``*.json`` or ``*.json.gz``, not a table's folder."""
    return _METADATA_FILE.fullmatch(location) is not None


def latest_metadata(files: Files, folder: str) -> MetadataLocation:
    """Return the current metadata file of the table in a folder.

    For a file system table, ``v<N>.metadata.json``, it is the last version that follows the one in
    ``version-hint.text`` without a gap, since the hint may be outdated. Without a hint, it is the highest version. For
    a table of a catalog, ``<N>-<uuid>.metadata.json``, it is the highest number. Files may be gzipped.

    Raises:
        NoSuchTableError: there is no metadata file.
        CorruptFileError: neither the hinted version nor a later one exists.
        ValidationError: two files have the highest number.
    """
    metadata = join(folder, METADATA)
    hinted = hinted_version(files, folder)
    if hinted is None:
        return _highest(files, folder, metadata)
    if (location := _versioned(files, metadata, hinted)) is None:
        return _above(files, folder, hinted)
    return _last_of(files, metadata, MetadataLocation(location, hinted, read_only=False))


def newest_listed(files: Files, folder: str) -> MetadataLocation:
    """Return the current metadata file from a listing alone, despite outdated hints and gaps between versions.

    Raises:
        NoSuchTableError, ValidationError: see `latest_metadata`.
    """
    metadata = join(folder, METADATA)
    with suppress(NotFoundError):
        names = {*files.names(metadata, VERSIONED_FILES)}
        if newest := _newest_version(metadata, names):
            return newest
    return _highest(files, folder, metadata)


def version_of(location: str) -> int | None:
    """Return the version in the name of a file system table's metadata file; None for names given by catalogs."""
    match = _VERSIONED.fullmatch(file_name(location))
    return None if match is None else int(match[1])


def number_of(location: str) -> int | None:
    """Return the number in the name of a metadata file of any catalog; None if the name has none."""
    match = _METASTORE.fullmatch(file_name(location))
    return version_of(location) if match is None else int(match[1])


def metadata_files(files: Files, metadata: str) -> list[str]:
    """Return the metadata files in a metadata folder, the highest number first."""
    locations = [status.location for status in files.list(metadata, METADATA_FILES)]
    numbered = [(number, location) for location in locations if (number := number_of(location)) is not None]
    return [location for _, location in sorted(numbered, reverse=True)]


def versioned_location(folder: str, version: int, compressed: bool) -> str:
    """Return the location of a version's metadata file."""
    return join(join(folder, METADATA), _SPELLINGS[1 if compressed else 0].format(version))


def hint_location(folder: str) -> str:
    """Return the location of the hint file of the table in a folder."""
    return join(join(folder, METADATA), VERSION_HINT)


def hinted_version(files: Files, folder: str) -> int | None:
    """Return the number in the hint file; None if there is no file, or no number after a torn write."""
    try:
        lines = files.read(hint_location(folder)).splitlines()
    except NotFoundError:
        return None
    first_line = lines[0].strip() if lines else b""
    return int(first_line) if first_line.isdigit() and len(first_line) < 11 else None


def _above(files: Files, folder: str, hinted: int) -> MetadataLocation:
    """Return the newest version if the hinted one has been deleted, as when a slow writer writes its hint late."""
    with suppress(NoSuchTableError, ValidationError):
        newest = _highest(files, folder, join(folder, METADATA))
        if newest.version > hinted and not newest.read_only:
            return newest
    raise CorruptFileError(hint_location(folder), "version", hinted, f"there is no v{hinted}.metadata.json beside it")


def _versioned(files: Files, metadata: str, version: int) -> str | None:
    locations = (join(metadata, spelling.format(version)) for spelling in _SPELLINGS)
    return next((location for location in locations if files.exists(location)), None)


def _last_of(files: Files, metadata: str, newest: MetadataLocation) -> MetadataLocation:
    while (newer := _versioned(files, metadata, newest.version + 1)) is not None:
        newest = MetadataLocation(newer, newest.version + 1, read_only=False)
    return newest


def _highest(files: Files, folder: str, metadata: str) -> MetadataLocation:
    try:
        names, reason = [*files.names(metadata, METADATA_FILES)], ""
    except NotFoundError as error:
        names, reason = [], f": {error}"
    if newest := _newest_version(metadata, names):
        return _last_of(files, metadata, newest)
    numbered = [(int(match[1]), name) for name in names if (match := _METASTORE.fullmatch(name))]
    if not numbered:
        raise NoSuchTableError(f"{folder}: there is no Iceberg table: {metadata} holds no metadata file{reason}")
    return _only_highest(metadata, numbered)


def _newest_version(metadata: str, names: Collection[str]) -> MetadataLocation | None:
    """Return a file system table's file with the highest version; None if there is none."""
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
