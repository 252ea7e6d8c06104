"""The options of `Maintenance.expire_snapshots`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any

from sparkmeta.checks import Rule, at_least, check_options, one_of
from sparkmeta.maintain.expire_snapshots import ALL, METADATA, NONE, to_millis

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime


@dataclass(frozen=True)
class ExpiryOptions:
    """See `Maintenance.expire_snapshots`."""

    older_than: datetime | int | None = None
    retain_last: int | None = None
    snapshot_ids: Sequence[int] = ()
    clean_expired_metadata: bool = False
    cleanup: str = ALL

    def check(self) -> None:
        """Raise ValidationError for a value out of range or of the wrong type."""
        check_options(self, _RULES)
        if self.older_than is not None:
            to_millis(self.older_than)


def listed(values: Any) -> Any:
    """Return an iterable as a tuple, since a generator can be read only once; return any other value unchanged."""
    return tuple(values) if isinstance(values, Iterable) and not isinstance(values, str) else values


def _are_ids(values: Any) -> bool:
    """Return whether a value is a list of whole numbers, which may be numpy's."""
    if not isinstance(values, list | tuple):
        return False
    return all(isinstance(value, Integral) and not isinstance(value, bool) for value in values)


_RULES = {
    "retain_last": at_least(1),
    "snapshot_ids": Rule("ids of snapshots", _are_ids),
    "cleanup": one_of(ALL, METADATA, NONE),
}
