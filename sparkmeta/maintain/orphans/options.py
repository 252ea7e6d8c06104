"""The options of `Maintenance.remove_orphan_files`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sparkmeta.checks import Rule, check_options, one_of
from sparkmeta.errors import ValidationError, shown
from sparkmeta.maintain.expire_snapshots import to_millis
from sparkmeta.maintain.orphans.prefixes import Folder, equal_names
from sparkmeta.storage.location import scheme

if TYPE_CHECKING:
    from datetime import datetime

ERROR: Final = "error"
IGNORE: Final = "ignore"
DELETE: Final = "delete"

_HOUR_MS = 60 * 60 * 1000
_LEAST_AGE_MS = 24 * _HOUR_MS
_DEFAULT_AGE_MS = 3 * 24 * _HOUR_MS


@dataclass(frozen=True)
class OrphanOptions:
    """See `Maintenance.remove_orphan_files`."""

    older_than: datetime | int | None = None
    location: str | None = None
    prefix_mismatch_mode: str = ERROR
    equal_schemes: Mapping[str, str] | None = None
    equal_authorities: Mapping[str, str] | None = None
    force: bool = False
    shared_location: bool = False

    def check(self) -> None:
        """Raise ValidationError for a value out of range or of the wrong type."""
        check_options(self, _RULES)
        equal_names(self.equal_schemes, "equal_schemes")
        equal_names(self.equal_authorities, "equal_authorities")
        if self.location is not None:
            Folder.of(self.location)
        now = int(time.time() * 1000)
        if self.older_than_ms(now) > now - _LEAST_AGE_MS and not self.force:
            problem = "less than 24 hours ago: files of writers that have not committed yet would be deleted"
            raise ValidationError(f"older_than is {shown(self.older_than)}: {problem}; the option force permits it")

    def older_than_ms(self, now: int) -> int:
        """Return the time before which files were modified, in milliseconds since 1970.

        Args:
            now: the current time, from which the default is counted.
        """
        return now - _DEFAULT_AGE_MS if self.older_than is None else to_millis(self.older_than)


def _is_absolute(location: Any) -> bool:
    return isinstance(location, str) and (location.startswith("/") or scheme(location) != "")


_RULES = {
    "location": Rule("the URI or absolute path of a folder", _is_absolute),
    "prefix_mismatch_mode": one_of(ERROR, IGNORE, DELETE),
}
