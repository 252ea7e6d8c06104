"""Resolve the locations of files in a table's metadata (table spec, Relative Locations of format version 4).

In format version 4, a location without a scheme is relative to the table's location. In versions 1 to 3, every location
is absolute. Readers resolve locations where they decode a file, so that all other code sees absolute ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from sparkmeta.errors import CorruptFileError

SCHEME = r"^[A-Za-z0-9+.\-]+:"
"""Matches the scheme of a location, for the regular expressions of Python, Java and Arrow."""

LOCAL = "file://"
"""The prefix of an absolute path on this machine."""

RELATIVE_REVISION = 2
"""The first layout revision of metadata trees with relative locations."""

_SCHEME = re.compile(SCHEME)
_RELATIVE_SINCE = 4


def is_absolute(location: str) -> bool:
    """Return whether a location has a scheme or begins with a slash."""
    return location.startswith("/") or _SCHEME.match(location) is not None


@dataclass(frozen=True)
class Locations:
    """How the metadata of a table names files. Picklable.

    Attributes:
        table: the table's location.
        format_version: the table's format version.
        rooted: what comes before locations that begin with a slash.
    """

    table: str
    format_version: int
    rooted: str = ""

    @staticmethod
    def of(table: str, format_version: int, layout_revision: int | None = None) -> Locations:
        """Return how metadata of a format version names files.

        In version 4, a location that begins with a slash is relative, as for Iceberg's Java library, unless the table's
        location has no scheme either, or the table has a metadata tree of the first layout revision.

        Args:
            table: the table's location.
            format_version: the table's format version.
            layout_revision: the layout revision of its metadata tree; None if it has manifest lists.
        """
        locations = Locations(table, format_version)
        has_relative = layout_revision is None or layout_revision >= RELATIVE_REVISION
        is_java = format_version >= _RELATIVE_SINCE and has_relative and _SCHEME.match(table)
        return replace(locations, rooted=locations.folder) if is_java else locations

    @property
    def before_version_4(self) -> Locations:
        """The locations in a file that was written before version 4: absolute ones, which gain a missing scheme."""
        return replace(self, rooted=LOCAL if self.rooted else "")

    @property
    def folder(self) -> str:
        """The prefix of locations below the table's location."""
        return f"{self.table.rstrip('/')}/"

    @property
    def relative(self) -> str | None:
        """What comes before other locations without a scheme; None if they are an error."""
        return None if self.format_version < _RELATIVE_SINCE else self.folder

    def resolve(self, location: str, file: str, field: str) -> str:
        """Return the absolute form of a location. An empty one stays empty in format version 4.

        Args:
            location: the location as it is written.
            file: the file that has it, for errors.
            field: the field that has it, for errors.

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
        """Return an absolute location relative to the table's if that is possible, else with a scheme if needed."""
        below = location.removeprefix(self.folder)
        if below != location and below and not is_absolute(below):
            return below
        return LOCAL + location if self.rooted and location.startswith("/") else location

    def error(self, location: str, file: str, field: str) -> CorruptFileError:
        """Return the error for a relative location that the format version does not have."""
        problem = f"a location is absolute in a table of format version {self.format_version}"
        return CorruptFileError(file, field, location, problem)
