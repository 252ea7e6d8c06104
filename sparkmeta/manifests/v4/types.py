"""The types of values in a table's V4 manifests. Without Spark: tasks import this."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from sparkmeta.entries.projection import EntryProjection, SpecTuples

# Spec id -> (partition field id, id of the stats that hold the value) of its fields, except void ones.
TupleSources = Mapping[int, Sequence[tuple[int, int]]]


def stats_of_fields(sources: TupleSources) -> dict[int, int]:
    """Return partition field id -> id of the stats that hold its values."""
    return {field_id: source for fields in sources.values() for field_id, source in fields}


@dataclass(frozen=True)
class TreeTypes:
    """The types of a table's V4 manifests. Picklable.

    Attributes:
        stats: ids of columns and expressions that may have stats -> Iceberg type names.
        columns: the ids in `stats` that are columns of a schema.
        spec_fields: spec id -> (partition field id, Iceberg type name) of its fields.
        sources: see `TupleSources`.
        spec_tuples: see `EntryProjection`.
    """

    stats: Mapping[int, str]
    columns: frozenset[int]
    spec_fields: Mapping[int, Sequence[tuple[int, str]]]
    sources: TupleSources
    spec_tuples: SpecTuples = ()

    ALWAYS_READ: ClassVar = ("content_type", "version_info", "partition_spec_id", "record_count")
    """Fields of entries that are read for every projection."""

    def stats_of(self, projection: EntryProjection) -> dict[int, str]:
        """Return the stats to read for a projection: those that it names, and those that hold partition values."""
        ids, partition = set(dict(projection.stats)), dict(projection.partition)
        for fields in self.sources.values():
            ids.update(source for field_id, source in fields if field_id in partition)
        return {field_id: name for field_id, name in self.stats.items() if field_id in ids}
