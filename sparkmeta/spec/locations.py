"""Resolve the locations of files in a table's metadata (table spec, Relative Locations of format version 4)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sparkmeta.errors import CorruptFileError

LAYOUT_REVISION_KEY = "tree-layout-revision"
"""The key of the layout revision of a V4 metadata tree, in table metadata and in the key-value metadata of roots."""
LAYOUT_REVISION = 2
"""The newest supported layout revision. Since revision 2, locations may be relative to the table's."""
ABSOLUTE_REVISION = 1
"""The layout revision of trees whose locations are all absolute, and may lack a scheme."""
RELATIVE_LOCATIONS_KEY = "tree-relative-locations"
"""The key in table metadata that says whether a tree names files relative to the table's location."""

# -- Fields of table metadata that name files -------------------------------------------------------------------------


# Array -> the fields of its elements.
_FIELDS = {
    "snapshots": ("manifest-list", "root-manifest", "manifests"),
    "statistics": ("statistics-path",),
    "partition-statistics": ("statistics-path",),
    "metadata-log": ("metadata-file",),
}


def with_locations(document: Mapping[str, Any], change: Callable[[str, str], str]) -> dict[str, Any]:
    """Return the JSON of table metadata with changed locations of files. Values of other types stay.

    Args:
        document: the JSON object.
        change: takes a location and the path of its field, and returns another location.
    """
    result = dict(document)
    for array, fields in _FIELDS.items():
        elements = document.get(array)
        if isinstance(elements, list):
            result[array] = [
                _with_changed_fields(element, fields, f"{array}[{i}]", change) for i, element in enumerate(elements)
            ]
    return result


def _with_changed_fields(element: Any, fields: tuple[str, ...], path: str, change: Callable[[str, str], str]) -> Any:
    if not isinstance(element, dict):
        return element
    values = {field: element[field] for field in fields if field in element}
    return element | {field: _value(value, f"{path}.{field}", change) for field, value in values.items()}


def _value(value: Any, path: str, change: Callable[[str, str], str]) -> Any:
    if isinstance(value, list):
        return [_value(item, f"{path}[{i}]", change) for i, item in enumerate(value)]
    return change(value, path) if isinstance(value, str) else value


# -- Resolve locations ------------------------------------------------------------------------------------------------
# In format version 4, a location without a scheme is relative to the table's location. In versions 1 to 3, every
# location is absolute. Readers resolve locations where they decode a file, so that all other code sees absolute ones.


SCHEME = r"^[A-Za-z0-9+.\-]+:"
"""Matches the scheme of a location, for the regular expressions of Python, Java and Arrow."""

LOCAL = "file://"
"""The prefix of an absolute path on this machine."""

_SCHEME = re.compile(SCHEME)
_FILE = re.compile(r"file:(?://[^/]*)?(?=/)", re.IGNORECASE)
_S3 = re.compile(r"^s3[an]?:", re.IGNORECASE)
_RELATIVE_SINCE = 4


def is_absolute(location: str) -> bool:
    """Return whether a location has a scheme or begins with a slash."""
    return location.startswith("/") or _SCHEME.match(location) is not None


def place_of(folder: str, recorded: str) -> str:
    """Return the location of a table that may have been moved: its folder, or the recorded location.

    The recorded location stays if it names the same folder. A local path has a scheme if the recorded location has one.

    Args:
        folder: the folder from which the table is opened.
        recorded: the location in the metadata.
    """
    (local, path), (was_local, old_path) = _split(folder), _split(recorded)
    if (local, path) == (was_local, old_path):
        return recorded
    if not local or not was_local:
        return folder
    return path if recorded.startswith("/") else LOCAL + path


def _split(location: str) -> tuple[bool, str]:
    """Return whether a location is on this machine, and its comparable path or URI."""
    text = location.rstrip("/")
    if text.startswith("/"):
        return True, text
    if match := _FILE.match(text):
        return True, text[match.end() :]
    return False, _S3.sub("s3:", text)


@dataclass(frozen=True)
class Relocation:
    """A change of the prefix of locations. Picklable.

    Spellings of one store or disk count as equal: `s3`, `s3a` and `s3n`, or local paths with and without `file:`.

    Attributes:
        source: the prefix, a folder or a bucket.
        target: the prefix that replaces it.
    """

    source: str
    target: str

    @property
    def pattern(self) -> str:
        """Matches the prefix and the slash after it, for the regular expressions of Python and Arrow."""
        is_local, text = _split(self.source)
        if is_local:
            return rf"^(?:[fF][iI][lL][eE]:(?://[^/]*)?)?{re.escape(text)}/"
        path = text.removeprefix("s3:")
        return rf"^{re.escape(text)}/" if path == text else rf"^[sS]3[anAN]?:{re.escape(path)}/"

    @property
    def folder(self) -> str:
        """The new prefix with a slash."""
        return f"{self.target.rstrip('/')}/"

    def of(self, location: str) -> str:
        """Return the new location of a file or folder. Locations with another prefix stay."""
        return re.sub(self.pattern, lambda _: self.folder, f"{location}/", count=1)[:-1]

    def applies_to(self, location: str) -> bool:
        """Return whether a location has the prefix."""
        return re.match(self.pattern, f"{location}/") is not None


def relocated_document(document: Mapping[str, Any], relocation: Relocation) -> dict[str, Any]:
    """Return the JSON of table metadata with new locations of the table, its files and its folders."""
    result = with_locations(document, lambda value, _: relocation.of(value))
    if isinstance(location := document.get("location"), str):
        result["location"] = relocation.of(location)
    if isinstance(properties := document.get("properties"), dict):
        result["properties"] = {
            name: relocation.of(value) if _FOLDER_PROPERTY.fullmatch(name) and isinstance(value, str) else value
            for name, value in properties.items()
        }
    return result


_FOLDER_PROPERTY = re.compile(r"write\..*\.path")


@dataclass(frozen=True)
class Locations:
    """The rules by which the metadata of a table names files. Picklable.

    Attributes:
        table: the table's location.
        format_version: the table's format version.
        rooted: the prefix of locations that begin with a slash.
        writes_relative: whether new files name files below the table's location relative to it.
    """

    table: str
    format_version: int
    rooted: str = ""
    writes_relative: bool = False

    @staticmethod
    def of(
        table: str, format_version: int, layout_revision: int | None = None, *, writes_relative: bool = False
    ) -> Locations:
        """Return the rules of a format version.

        In version 4, a location that begins with a slash is relative, as in Iceberg's Java library. It is absolute if
        the table's location has no scheme either, or if the table has a metadata tree of the first layout revision.

        Args:
            table: the table's location.
            format_version: the table's format version.
            layout_revision: the layout revision of its metadata tree; None if it has manifest lists.
            writes_relative: whether new files name files below the table's location relative to it.
        """
        locations = Locations(table, format_version, writes_relative=writes_relative)
        has_relative = layout_revision is None or layout_revision > ABSOLUTE_REVISION
        is_slash_relative = format_version >= _RELATIVE_SINCE and has_relative and _SCHEME.match(table)
        return replace(locations, rooted=locations.folder) if is_slash_relative else locations

    @property
    def before_version_4(self) -> Locations:
        """The rules for a file written before version 4: locations are absolute, and get a missing scheme."""
        return replace(self, rooted=LOCAL if self.rooted else "")

    @property
    def folder(self) -> str:
        """The prefix of locations below the table's location."""
        return f"{self.table.rstrip('/')}/"

    @property
    def relative(self) -> str | None:
        """The prefix of other locations without a scheme; None if they are an error."""
        return None if self.format_version < _RELATIVE_SINCE else self.folder

    def resolve(self, location: str, file: str, field: str) -> str:
        """Return the absolute form of a location. An empty one stays empty in format version 4.

        Args:
            location: the location in the file.
            file: the file that contains it, for errors.
            field: the field that contains it, for errors.

        Raises:
            CorruptFileError: the location is relative, and the format version has no relative locations.
        """
        if _SCHEME.match(location):
            return location
        if location.startswith("/"):
            return self.rooted + location
        if self.relative is None:
            raise self.error(location, file, field)
        return self.relative + location if location else location

    def relativize(self, location: str) -> str:
        """Return a location relative to the table's location if it is below that, and otherwise unchanged."""
        path = location.removeprefix(self.folder)
        return location if path == location or not path or is_absolute(path) else path

    def written(self, location: str) -> str:
        """Return an absolute location as new files of format version 4 spell it."""
        spelled = self.relativize(location) if self.writes_relative else location
        return LOCAL + spelled if self.rooted and spelled.startswith("/") else spelled

    def error(self, location: str, file: str, field: str) -> CorruptFileError:
        """Return the error for a relative location, which the format version does not allow."""
        problem = f"a location is absolute in a table of format version {self.format_version}"
        return CorruptFileError(file, field, location, problem)
