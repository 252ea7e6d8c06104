"""Table properties for manifest lists: the target size of manifests, and when a commit merges small ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkmeta.spec.table_properties import flag_property, number_property

if TYPE_CHECKING:
    from sparkmeta.spec.metadata import TableMetadata

TARGET = "commit.manifest.target-size-bytes"
MOST_BYTES = 64 << 20
"""Most bytes of a manifest, since a task holds its uncompressed entries as one array."""

_MIN_COUNT = "commit.manifest.min-count-to-merge"
_MERGE = "commit.manifest-merge.enabled"


@dataclass(frozen=True)
class ListOptions:
    """Table properties `commit.manifest.*` (semantics 9.9).

    Attributes:
        target_bytes: target size of a manifest.
        min_count: minimum number of manifests to merge if the commit's own new manifest is one of them.
        merges: whether commits merge small manifests.
    """

    target_bytes: int = 8 << 20
    min_count: int = 100
    merges: bool = True

    @staticmethod
    def of(metadata: TableMetadata) -> ListOptions:
        """Return the options of a table. Raises ValidationError for an invalid value."""
        properties, location = metadata.properties, metadata.location
        target = number_property(properties, TARGET, ListOptions.target_bytes, least=1, location=location)
        return ListOptions(
            target_bytes=min(target, MOST_BYTES),
            min_count=number_property(properties, _MIN_COUNT, ListOptions.min_count, least=1, location=location),
            merges=flag_property(properties, _MERGE, default=True, location=location),
        )
