"""Read JSON documents with errors that name file, field and value."""

from __future__ import annotations

import gzip
import io
import json
import re
import uuid
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Self

from pydantic import PrivateAttr
from pyiceberg.typedef import IcebergBaseModel

from sparkmeta.errors import CorruptFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


GZIP = b"\x1f\x8b"
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

    def member(self, key: str) -> JsonNode:
        """Return the value of a key, which may be null."""
        return self._child(key, self.object().get(key))

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
    if not data.startswith(GZIP):
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
    return JsonNode(json_value(json_text(data, location), location), location)


def json_text(data: bytes, location: str) -> str:
    """Return the text of a JSON file. Raises CorruptFileError, see `parse_json`."""
    try:
        return data.decode(json.detect_encoding(data))
    except UnicodeDecodeError as error:
        raise CorruptFileError(location, "document", data[:40], f"not valid JSON: {error}") from None


def json_value(text: str, location: str) -> Any:
    """Return the value of a JSON text. Raises CorruptFileError, see `parse_json`."""
    try:
        return json.loads(text)
    except RecursionError:
        raise CorruptFileError(location, "document", text[:40].encode(), "it is nested too deeply") from None
    except ValueError as error:  # including JSONDecodeError and the limit of integer digits
        raise CorruptFileError(location, "document", text[:40].encode(), f"not valid JSON: {error}") from None


_decoded = json.JSONDecoder().raw_decode
_MARK = re.compile(r"[ \t\n\r]*([\[\]{},:]?)[ \t\n\r]*")


def json_object(text: str, array: str, item: Callable[[Any, str], Any]) -> dict[str, Any]:
    """Return the object of a JSON text, without decoding all elements of a large array at once.

    Args:
        text: The JSON text.
        array: The key of the array.
        item: Takes an element and its text, and returns the element of the result.

    Raises:
        ValueError, RecursionError: The text is not an object, the array is missing or empty, or a key is given twice.
    """
    document: dict[str, Any] = {}
    mark, index = _mark(text, 0, "{")
    while mark != "}":
        key, end = _decoded(text, index)
        _, index = _mark(text, end, ":")
        if not isinstance(key, str) or key in document:
            raise ValueError(f"{key} is no key, or is given twice")
        document[key], end = _items(text, index, item) if key == array else _decoded(text, index)
        mark, index = _mark(text, end, ",}")
    if index < len(text) or array not in document:
        raise ValueError(f"expected one object with {array}")
    return document


def _items(text: str, index: int, item: Callable[[Any, str], Any]) -> tuple[list[Any], int]:
    items = []
    mark, index = _mark(text, index, "[")
    while mark != "]":
        value, end = _decoded(text, index)
        items.append(item(value, text[index:end]))
        mark, index = _mark(text, end, ",]")
    return items, index


def _mark(text: str, index: int, expected: str) -> tuple[str, int]:
    """Return the mark at an index, and the index after it and the white space around it."""
    match = _MARK.match(text, index)
    if match is None or match[1] not in [*expected]:
        raise ValueError(f"expected {expected} at {index}")
    return match[1], match.end()


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
