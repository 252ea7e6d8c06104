"""Idempotency keys: how snapshots record which commits of an application the table has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sparkmeta.checks import Rule, is_whole
from sparkmeta.errors import ValidationError, shown
from sparkmeta.spec.summary import summary_number, summary_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sparkmeta.spec.snapshot import Snapshot

_LONG_MAX = (1 << 63) - 1
_APPLICATION, _VERSION = "idempotency.application", "idempotency.version"
# Properties of the summary that record a key: those of a key that is given, and those of Iceberg's streaming writer.
_NAMES = ((_APPLICATION, _VERSION), ("spark.sql.streaming.queryId", "spark.sql.streaming.epochId"))


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and _is_application(value[0]) and _is_version(value[1])


def _is_application(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _is_version(value: Any) -> bool:
    return is_whole(value) and 0 <= value <= _LONG_MAX


_KEY = Rule(f"a tuple of an application's name and a version, a whole number from 0 to {_LONG_MAX}", _is_pair)


class IdempotencyKey(NamedTuple):
    """Identifies a commit of an application. Later commits of the application have higher versions."""

    application: str
    version: int

    def __str__(self) -> str:
        return shown(tuple(self))

    def recorded_by(self, snapshots: Iterable[Snapshot]) -> Snapshot | None:
        """Return the first snapshot that records this version of the application or a later one, or None."""
        for snapshot in snapshots:
            if any(key.application == self.application and key.version >= self.version for key in recorded(snapshot)):
                return snapshot
        return None

    @property
    def properties(self) -> dict[str, str]:
        """The properties of a snapshot's summary that record the key."""
        return {_APPLICATION: self.application, _VERSION: str(self.version)}


def key_of(given: Any, properties: Mapping[str, str]) -> IdempotencyKey | None:
    """Return the key of a commit: the given one, or the one that properties of its snapshot contain.

    Args:
        given: the application and the version, or None.
        properties: the properties. A query and an epoch of Spark's streaming are a key, as for Iceberg's own sink.

    Raises:
        ValidationError: the key is invalid, or there are two different ones.
    """
    if given is not None:
        _KEY.check("idempotency_key", given)
    keys = [] if given is None else [IdempotencyKey(*given)]
    for application, version in _NAMES:
        if application in properties and version in properties:
            name, text = properties[application], properties[version]
            is_number = text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= _LONG_MAX
            if not is_number:
                problem = f"snapshot_properties[{shown(version)}] is {shown(text)}: expected a whole number from 0 to"
                raise ValidationError(
                    f"{problem} {_LONG_MAX}, since it is an idempotency key together with {application}"
                )
            keys.append(IdempotencyKey(name, int(text)))
    if len(set(keys)) > 1:
        raise ValidationError(
            f"idempotency_key is {keys[0]}, and snapshot_properties contain the key {keys[1]}: expected one key"
        )
    return keys[0] if keys else None


def recorded(snapshot: Snapshot) -> list[IdempotencyKey]:
    """Return the keys that a snapshot records."""
    summary = summary_of(snapshot)
    pairs = ((summary.get(application), summary_number(snapshot, version)) for application, version in _NAMES)
    return [IdempotencyKey(name, version) for name, version in pairs if name is not None and version is not None]


def recording_properties(snapshot: Snapshot) -> dict[str, str]:
    """Return the properties by which a snapshot records keys."""
    summary = summary_of(snapshot)
    return {name: summary[name] for pair in _NAMES for name in pair if name in summary}


def last_version(snapshots: Iterable[Snapshot], application: str) -> int | None:
    """Return the highest version of an application that snapshots record, or None."""
    keys = (key for snapshot in snapshots for key in recorded(snapshot))
    return max((key.version for key in keys if key.application == application), default=None)
