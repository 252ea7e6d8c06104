"""Compare locations of files in Spark: by their path, then by their scheme and authority (semantics 14.3)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from sparkmeta.errors import ValidationError, shown
from sparkmeta.storage.location import is_local, join, parts_of, path_of
from sparkmeta.storage.location_columns import authority_of, path_key, scheme_of

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyspark.sql import Column

_LOCAL = "file"
_EQUAL_SCHEMES = {"s3a": "s3", "s3n": "s3"}


def hidden_pattern(specs: Iterable[PartitionSpec]) -> str:
    """Return a regular expression that finds a hidden name in a path: one that begins with ``_`` or a dot.

    Names that begin with that of a partition field and ``=`` are not hidden.
    """
    names = {spec_field.name for spec in specs for spec_field in spec.fields if spec_field.name[:1] in {"_", "."}}
    partitions = "|".join(f"{re.escape(name)}=" for name in sorted(names))
    return f"(?:^|/)(?!{partitions})[._]" if partitions else "(?:^|/)[._]"


@dataclass(frozen=True)
class Folder:
    """A folder with which the locations of files are compared.

    Attributes:
        location: the folder.
        schemes: scheme in lower case -> the scheme that it equals, besides s3a and s3n, which equal s3.
        authorities: authority in lower case -> the authority that it equals.
    """

    location: str
    schemes: Mapping[str, str] = field(default_factory=dict)
    authorities: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(
        location: str,
        equal_schemes: Mapping[str, str] | None = None,
        equal_authorities: Mapping[str, str] | None = None,
    ) -> Folder:
        """Return a folder, with schemes and authorities whose keys may be lists such as ``s3a,s3n``.

        Raises:
            ValidationError: the location is all of a disk, or a scheme or authority is empty.
        """
        schemes = equal_names(equal_schemes, "equal_schemes")
        folder = Folder(location, schemes, equal_names(equal_authorities, "equal_authorities"))
        if folder.key == "/" and is_local(location):
            raise ValidationError(f"location is {shown(location)}: expected a folder")
        return folder

    @cached_property
    def key(self) -> str:
        """The folder's path with a slash at its end. Those of files below it begin so."""
        return join(path_of(self.location), "")

    def key_of(self, path: Column) -> Column:
        """Return the path of locations without scheme and authority, in the form of `storage.location.path_of`."""
        rest = F.substr(path, F.lit(len(self._beginning)))
        return F.when(self._is_plain(path), F.concat(F.lit(self.key.rstrip("/")), rest)).otherwise(path_key(path))

    def has_prefix_of(self, path: Column, *, or_none: bool) -> Column:
        """Return whether locations have the folder's scheme and authority, ignoring case.

        Args:
            path: the locations.
            or_none: whether a location without a scheme, or without an authority, may have any.
        """
        scheme, authority = parts_of(self.location)
        schemes = {**_EQUAL_SCHEMES, **self.schemes}
        tests = (
            _equals(scheme_of(path), scheme or _LOCAL, schemes, or_none),
            _equals(authority_of(path), authority, self.authorities, or_none),
        )
        return F.when(self._is_plain(path), True).otherwise(tests[0] & tests[1])

    @property
    def _beginning(self) -> str:
        return join(self.location, "")

    def _is_plain(self, path: Column) -> Column:
        """Return whether locations begin with the folder as it is written, and need no further look."""
        rest = F.substr(path, F.lit(len(self._beginning)))
        odd = rest.contains("//") | rest.contains("/.") | rest.endswith("/")
        return path.startswith(self._beginning) & ~odd


def equal_names(names: Mapping[str, str] | None, option: str) -> dict[str, str]:
    """Return each name in lower case -> the name that it equals.

    Args:
        names: lists of names such as ``s3a,s3n`` -> the name that they equal.
        option: what they are called in an error message.

    Raises:
        ValidationError: a name is empty.
    """
    equal: dict[str, str] = {}
    for several, name in (names or {}).items():
        parts = [part.strip().lower() for part in several.split(",")]
        if not (all(parts) and name.strip()):
            problem = f"{shown(several)}: {shown(name)}: expected names, as in 's3a,s3n': 's3'"
            raise ValidationError(f"{option} has {problem}")
        equal.update(dict.fromkeys(parts, name.strip().lower()))
    return equal


def prefix_of(path: Column) -> Column:
    """Return the scheme and authority of locations as text."""
    return F.concat(scheme_of(path), F.lit("://"), authority_of(path))


def _equals(part: Column, name: str, equal: Mapping[str, str], or_none: bool) -> Column:
    names = [each for each in equal if _resolved(each, equal) == _resolved(name, equal)]
    same = F.lower(part).isin(sorted({name.lower(), _resolved(name, equal), *names}))
    if or_none:
        return same | (part == "")
    return same | (part == "") if name == _LOCAL else same


def _resolved(name: str, equal: Mapping[str, str]) -> str:
    return equal.get(name.lower(), name.lower())
