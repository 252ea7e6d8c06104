"""Table properties for manifest lists: the target size of manifests, and when a commit merges small ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sparkmeta.errors import ValidationError, shown

TARGET = "commit.manifest.target-size-bytes"
MOST_BYTES = 64 << 20
"""Most bytes of a manifest, since a task holds its uncompressed entries as one array."""

_MIN_COUNT = "commit.manifest.min-count-to-merge"
_MERGE = "commit.manifest-merge.enabled"
# Maximum number of digits that always fit an int64. int() raises its own error for thousands of digits.
_LONGEST = 18


@dataclass(frozen=True)
class ListOptions:
    """Table properties `commit.manifest.*` (semantics 3.1-9, 3.1-11).

    Attributes:
        target_bytes: target size of a manifest.
        min_count: minimum number of manifests to merge if the commit's own new manifest is one of them.
        merges: whether commits merge small manifests.
    """

    target_bytes: int = 8 << 20
    min_count: int = 100
    merges: bool = True

    @staticmethod
    def of(properties: Mapping[str, str]) -> ListOptions:
        """Return the options of a table. Raises ValidationError for an invalid value."""
        merges = properties.get(_MERGE, "true").lower()
        if merges not in ("true", "false"):
            raise ValidationError(f"the table property {_MERGE} is {shown(properties[_MERGE])}: it is true or false")
        target = min(_number(properties, TARGET, ListOptions.target_bytes, "a number of bytes"), MOST_BYTES)
        return ListOptions(target, _number(properties, _MIN_COUNT, ListOptions.min_count), merges == "true")


def _number(properties: Mapping[str, str], name: str, default: int, what: str = "a whole number from 1") -> int:
    text = properties.get(name, str(default))
    if not text.isdecimal() or len(text) > _LONGEST or not int(text):
        raise ValidationError(f"the table property {name} is {shown(text)}: expected {what}")
    return int(text)
