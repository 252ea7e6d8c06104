"""Read JSON documents with errors that name file, field and value, and dates and times in ISO 8601."""

from __future__ import annotations

import gzip
import io
import json
import re
import uuid
import zlib
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

from pydantic import PrivateAttr
from pyiceberg.typedef import IcebergBaseModel

from sparkmeta.errors import CorruptFileError, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


# -- Dates and times in ISO 8601 --------------------------------------------------------------------------------------


EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
DAY_MICROS: Final = 86_400_000_000
_CYCLE_YEARS: Final = 400
_CYCLE_DAYS: Final = 146_097

_DATE: Final = r"(?P<year>[+-]?\d{4,9})-(?P<month>\d\d)-(?P<day>\d\d)"
_TIME: Final = r"(?P<hour>\d\d):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:\.(?P<fraction>\d{1,9}))?)?"
_OFFSET: Final = r"(?P<offset>[zZ]|[+-]\d\d:?\d\d)"
_ISO_DATE: Final = re.compile(_DATE, re.ASCII)
_ISO_TIME: Final = re.compile(_TIME, re.ASCII)
_ISO_TIMESTAMP: Final = re.compile(f"{_DATE}(?:[T ]{_TIME}{_OFFSET}?)?", re.ASCII)


def iso_days(text: str) -> int:
    """Return the days of a date since 1970-01-01."""
    return _days(_matched(_ISO_DATE, text, "a date, YYYY-MM-DD"))


def iso_nanos_of_day(text: str) -> int:
    """Return the nanoseconds of a time of day."""
    return _nanos_of_day(_matched(_ISO_TIME, text, "a time, HH:MM[:SS[.ffffff]]"))


def iso_nanos(text: str, zoned: bool) -> int:
    """Return the nanoseconds of a timestamp since 1970-01-01T00:00:00; with `zoned`, it has an offset from UTC."""
    parts = _matched(_ISO_TIMESTAMP, text, "a timestamp, YYYY-MM-DDTHH:MM[:SS[.ffffff]]")
    if zoned and not parts["offset"]:
        raise ValueError("a timestamptz needs its offset from UTC, as in 2026-01-31T00:00:00+00:00")
    if not zoned and parts["offset"]:
        raise ValueError("a timestamp without time zone has no offset")
    return _days(parts) * DAY_MICROS * 1000 + _nanos_of_day(parts) - _offset_nanos(parts["offset"])


def _matched(pattern: re.Pattern[str], text: str, expected: str) -> dict[str, str | None]:
    if not (match := pattern.fullmatch(text)):
        raise ValueError(f"{shown(text)} is not {expected}")
    return match.groupdict()


def _days(parts: dict[str, str | None]) -> int:
    year, month, day = (int(parts[part] or 0) for part in ("year", "month", "day"))
    cycles, year_of_cycle = divmod(year - 2000, _CYCLE_YEARS)
    return date(2000 + year_of_cycle, month, day).toordinal() - EPOCH_DAY + cycles * _CYCLE_DAYS


def _nanos_of_day(parts: dict[str, str | None]) -> int:
    hour, minute, second = (int(parts[part] or 0) for part in ("hour", "minute", "second"))
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError("hours go up to 23, minutes and seconds up to 59")
    return (hour * 3600 + minute * 60 + second) * 1_000_000_000 + int((parts["fraction"] or "").ljust(9, "0"))


def _offset_nanos(offset: str | None) -> int:
    if not offset or offset in "zZ":
        return 0
    minutes = int(offset[1:3]) * 60 + int(offset[-2:])
    return (-minutes if offset[0] == "-" else minutes) * 60_000_000_000


def iso_date(days: int) -> str:
    """Return the date of days since 1970-01-01 in ISO 8601. Years before 0 and after 9999 have a sign."""
    cycles, day_of_cycle = divmod(days + EPOCH_DAY - date(2000, 1, 1).toordinal(), _CYCLE_DAYS)
    within = date.fromordinal(date(2000, 1, 1).toordinal() + day_of_cycle)
    year = within.year + cycles * _CYCLE_YEARS
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04}-{within.month:02}-{within.day:02}"


def iso_time(ticks: int, per_second: int = 1_000_000) -> str:
    """Return the time of day in ISO 8601, with as few digits of the second as possible."""
    seconds, fraction = divmod(ticks, per_second)
    digits = f"{fraction:0{len(str(per_second)) - 1}}".rstrip("0")
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}" + (f".{digits}" if digits else "")


def iso_timestamp(ticks: int, per_second: int = 1_000_000) -> str:
    """Return the time of ticks since 1970-01-01T00:00:00 in ISO 8601."""
    days, ticks_of_day = divmod(ticks, 86_400 * per_second)
    return f"{iso_date(days)}T{iso_time(ticks_of_day, per_second)}"


# -- JSON documents ---------------------------------------------------------------------------------------------------


_GZIP = b"\x1f\x8b"
# The limit guards against gzip bombs. The largest metadata files that users report have 300 MB.
_MAX_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class JsonNode:
    """A value in a JSON document.

    Attributes:
        value: The decoded value.
        location: The file that the document was read from.
        path: The path of the value in the document, such as ``schemas[0].fields``.
    """

    value: Any
    location: str = "JSON"
    path: str = ""

    def fail(self, problem: str) -> NoReturn:
        """Raise CorruptFileError for this value."""
        raise CorruptFileError(self.location, self.path or "document", self.value, problem)

    def has(self, key: str) -> bool:
        """Return whether this object has a value other than null for the key."""
        return self.object().get(key) is not None

    def get(self, key: str) -> JsonNode:
        """Return the value of a required key."""
        if not self.has(key):
            self._child(key, None).fail("it is required")
        return self._child(key, self.value[key])

    def optional(self, key: str) -> JsonNode | None:
        """Return the value of a key, or None if it is absent or null."""
        return self.get(key) if self.has(key) else None

    def items(self) -> Iterator[JsonNode]:
        """Iterate over the elements of this array."""
        if not isinstance(self.value, list):
            self.fail("an array is expected")
        return (JsonNode(element, self.location, f"{self.path}[{i}]") for i, element in enumerate(self.value))

    def object(self) -> dict[str, Any]:
        if not isinstance(self.value, dict):
            self.fail("an object is expected")
        return self.value

    def text(self) -> str:
        if not isinstance(self.value, str):
            self.fail("a string is expected")
        return self.value

    def integer(self) -> int:
        if not isinstance(self.value, int) or isinstance(self.value, bool):
            self.fail("a whole number is expected")
        return self.value

    def boolean(self) -> bool:
        if not isinstance(self.value, bool):
            self.fail("true or false is expected")
        return self.value

    def uuid(self) -> uuid.UUID:
        try:
            return uuid.UUID(self.text())
        except ValueError:
            self.fail("not a UUID")

    def texts(self) -> dict[str, str]:
        """Return this object, whose values are strings."""
        return {key: self._child(key, value).text() for key, value in self.object().items()}

    def _child(self, key: str, value: Any) -> JsonNode:
        return JsonNode(value, self.location, f"{self.path}.{key}" if self.path else key)


def decompressed(data: bytes, location: str) -> bytes:
    """Return the bytes of a metadata file that may be compressed with gzip.

    Raises:
        CorruptFileError: It is not a complete gzip file, or decompresses to more than 1 GiB.
    """
    if not data.startswith(_GZIP):
        return data
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            text = file.read(_MAX_BYTES + 1)
    except (EOFError, OSError, zlib.error) as error:
        raise CorruptFileError(location, "document", data[:20], f"not a complete gzip file: {error}") from None
    if len(text) > _MAX_BYTES:
        raise CorruptFileError(location, "document", data[:20], f"it decompresses to more than {_MAX_BYTES} bytes")
    return text


def parse_json(data: bytes, location: str) -> JsonNode:
    """Return the JSON document in a file, which may begin with a byte order mark.

    Args:
        data: The bytes of the file.
        location: The file, for error messages.

    Raises:
        CorruptFileError: The bytes are not valid JSON.
    """
    try:
        return JsonNode(json.loads(data.decode(json.detect_encoding(data))), location)
    except RecursionError:
        raise CorruptFileError(location, "document", data[:40], "it is nested too deeply") from None
    except ValueError as error:  # including UnicodeDecodeError, JSONDecodeError and the limit of integer digits
        raise CorruptFileError(location, "document", data[:40], f"not valid JSON: {error}") from None


def check_unique_ids(nodes: Iterable[tuple[JsonNode, int | str]], what: str) -> None:
    """Check that no two nodes have the same id.

    Args:
        nodes: Each node with its id.
        what: The kind of id, for error messages.

    Raises:
        CorruptFileError: A node has the id of an earlier one.
    """
    seen = set()
    for node, node_id in nodes:
        if node_id in seen:
            node.fail(f"{what} {node_id} is given twice")
        seen.add(node_id)


class KeepsJson(IcebergBaseModel):
    """A pyiceberg model that keeps the JSON object that it was read from.

    Unknown keys and alternative spellings survive a round trip this way. A copy with changes drops the object.
    """

    _json: dict[str, Any] | None = PrivateAttr(default=None)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        copied = super().model_copy(update=update, deep=deep)
        if update:
            copied._json = None
        return copied
