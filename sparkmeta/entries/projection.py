"""Projections: the columns and entries to read from manifests, and the resulting row type. Without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from sparkmeta.expr.bounds import AllOf, bound_arrow_type
from sparkmeta.spec.entry import CONTENT_ENTRY, METRICS_MAPS

PARTITION = "partition"
CONTENT_STATS = "content_stats"
MANIFEST = "manifest"
ORDINAL = "ordinal"

_ENTRY_TYPES = {field.name: field.type for field in CONTENT_ENTRY}
_MAP_TYPES = {
    name: pa.map_(pa.int32(), pa.field("value", value, nullable=False)) for name, value in METRICS_MAPS.values()
}

# Fields that every file's entry must have.
_REQUIRED_FIELDS = frozenset({"location", "file_format", "version_info", "record_count", "file_size_in_bytes"})

# Columns of the entries of v1-v3 manifests; manifest_stats belongs to roots only.
FILE_COLUMNS = tuple(name for name in _ENTRY_TYPES if name != "manifest_stats")


DV_COLUMNS = (
    "content_type",
    "location",
    "file_format",
    "version_info",
    "deletion_vector",
    "partition_spec_id",
    "record_count",
    "file_size_in_bytes",
    "referenced_file",
)
"""The columns that describe deletion vectors, and by which commits find files."""


# Spec id -> its fields: (id in the spec's manifests, unique id, name in manifests).
SpecTuples = tuple[tuple[int, tuple[tuple[int, int, str], ...]], ...]


@dataclass(frozen=True)
class EntryFilter:
    """A filter of entries: live ones whose stats and partition tuple pass tests.

    Readers may also return other entries. First row ids are counted over all entries.

    Attributes:
        stats: tests of stats.
        partitions: tests of partition tuples by spec id; tuples of other specs pass.
    """

    stats: AllOf
    partitions: tuple[tuple[int, AllOf], ...]


@dataclass(frozen=True)
class EntryProjection:
    """The columns, partition fields and stats to read from entries. Picklable.

    Attributes:
        columns: top-level names of the content entry, and of metrics maps (`column_sizes`, ...).
        partition: (partition field id, Iceberg type name) of the `partition` struct's fields.
        stats: (column field id, Iceberg type name) of the fields of `content_stats`.
        entry_filter: the entries to read; None for all.
        spec_tuples: the partition fields of the table's specs.
        as_written: whether `content_stats` includes inverted bounds: a lower bound above the upper one proves nothing.
    """

    columns: tuple[str, ...]
    partition: tuple[tuple[int, str], ...] = ()
    stats: tuple[tuple[int, str], ...] = ()
    entry_filter: EntryFilter | None = None
    spec_tuples: SpecTuples = ()
    as_written: bool = False

    @staticmethod
    def of(
        columns: Iterable[str],
        partition: Mapping[int, str] | None = None,
        stats: Mapping[int, str] | None = None,
        spec_tuples: SpecTuples = (),
    ) -> EntryProjection:
        """Return a projection with `columns` in the order of the content entry."""
        names = set(columns)
        all_names = [*_ENTRY_TYPES, *_MAP_TYPES]
        unknown = names.difference(all_names)
        if unknown:
            raise ValueError(f"not columns of a content entry: {sorted(unknown)}")
        ordered = tuple(name for name in all_names if name in names)
        tuple_types, stats_types = (tuple(sorted((types or {}).items())) for types in (partition, stats))
        return EntryProjection(ordered, tuple_types, stats_types, spec_tuples=spec_tuples)

    def tuple_of(self, spec_id: int) -> tuple[tuple[int, int, str], ...]:
        """Return the partition fields of a spec; see `SpecTuples`."""
        return dict(self.spec_tuples).get(spec_id, ())

    def unique_ids(self, spec_id: int) -> dict[int, int]:
        """Return partition field id in the manifests of a spec -> unique id, for fields whose ids differ."""
        return {id_in_spec: unique_id for id_in_spec, unique_id, _ in self.tuple_of(spec_id) if id_in_spec != unique_id}

    @cached_property
    def schema(self) -> pa.Schema:
        """The Arrow schema of rows: the columns, projected `partition` and `content_stats`, `manifest`, `ordinal`."""
        types = _ENTRY_TYPES | _MAP_TYPES
        fields = [pa.field(name, types[name], nullable=name not in _REQUIRED_FIELDS) for name in self.columns]
        if self.partition:
            fields.append(pa.field(PARTITION, self.partition_type, nullable=False))
        if self.stats:
            fields.append(pa.field(CONTENT_STATS, self.stats_type))
        return pa.schema([*fields, pa.field(MANIFEST, pa.int32()), pa.field(ORDINAL, pa.int64())])

    @cached_property
    def partition_type(self) -> pa.StructType:
        return pa.struct([pa.field(str(field_id), bound_arrow_type(name)) for field_id, name in self.partition])

    @cached_property
    def stats_type(self) -> pa.StructType:
        return pa.struct(
            [pa.field(str(field_id), stats_struct(bound_arrow_type(name))) for field_id, name in self.stats]
        )


def stats_struct(bound: pa.DataType) -> pa.StructType:
    """Return the struct type of one field's stats in `content_stats`."""
    counts = ("value_count", "null_value_count", "nan_value_count")
    return pa.struct(
        [
            pa.field("lower_bound", bound),
            pa.field("upper_bound", bound),
            *(pa.field(name, pa.int64()) for name in counts),
        ]
    )
