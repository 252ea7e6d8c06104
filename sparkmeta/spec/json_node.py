"""A value of a JSON document that knows where it stands, so that an error can name file, field and value."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Self

from pydantic import PrivateAttr
from pyiceberg.typedef import IcebergBaseModel

from sparkmeta.errors import CorruptFileError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


@dataclass(frozen=True, slots=True)
class JsonNode:
    """One value of the JSON document at ``location``; ``path`` is its place in it (``schemas[0].fields``)."""

    value: Any
    location: str = "JSON"
    path: str = ""

    def fail(self, problem: str) -> NoReturn:
        """Raise CorruptFileError about this value."""
        raise CorruptFileError(self.location, self.path or "document", self.value, problem)

    def has(self, key: str) -> bool:
        """Whether this object holds the key with a value other than null."""
        return self.object().get(key) is not None

    def get(self, key: str) -> JsonNode:
        """The value of a required key."""
        if not self.has(key):
            self._at(key, None).fail("it is required")
        return self._at(key, self.value[key])

    def optional(self, key: str) -> JsonNode | None:
        """The value of a key, None where it is absent or null."""
        return self.get(key) if self.has(key) else None

    def items(self) -> Iterator[JsonNode]:
        """The elements of this array."""
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

    def _at(self, key: str, value: Any) -> JsonNode:
        return JsonNode(value, self.location, f"{self.path}.{key}" if self.path else key)


def parse_json(data: bytes, location: str) -> JsonNode:
    """The JSON document in the bytes of a file. Raises CorruptFileError where they hold none."""
    try:
        return JsonNode(json.loads(data.decode()), location)
    except RecursionError:
        raise CorruptFileError(location, "document", data[:40], "it is nested too deeply") from None
    except ValueError as error:  # UnicodeDecodeError, JSONDecodeError and the limit of digits are ValueErrors
        raise CorruptFileError(location, "document", data[:40], f"it is no JSON: {error}") from None


def refuse_twice(nodes: Iterable[tuple[JsonNode, int]], what: str) -> None:
    """Raise CorruptFileError about the first node whose number was given to an earlier one."""
    seen = set()
    for node, number in nodes:
        if number in seen:
            node.fail(f"{what} {number} is given twice")
        seen.add(number)


class KeepsJson(IcebergBaseModel):
    """A model of pyiceberg's that keeps the JSON object it was read from, and so its unknown keys and spellings."""

    _json: dict[str, Any] | None = PrivateAttr(default=None)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        copied = super().model_copy(update=update, deep=deep)
        if update:
            copied._json = None
        return copied
