"""The content entry, into which entries of every format version are decoded, and its statistics."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import pyarrow as pa

# -- The content entry ------------------------------------------------------------------------------------------------
# The tables of fields follow the V4 proposal ("V4 content entry structure"). `V3_ENTRY_PATHS` maps the ids of
# Iceberg's v1-v3 `manifest_entry` and `data_file` structs (table spec, Manifests) to them. Types are Arrow types,
# since executors build Arrow batches.


class ContentType(IntEnum):
    """The content type of an entry (field 134).

    Values 3 and 4 occur only in roots and manifest lists, 5 only in roots.
    """

    DATA = 0
    POSITION_DELETES = 1
    EQUALITY_DELETES = 2
    DATA_MANIFEST = 3
    DELETE_MANIFEST = 4
    MANIFEST_DELETION_VECTOR = 5


class Status(IntEnum):
    """The status of an entry (field 0): what the commit that wrote the entry did with its file."""

    EXISTING = 0
    ADDED = 1
    DELETED = 2


@dataclass(frozen=True)
class FieldSpec:
    """A field of a metadata struct, with its Iceberg field id and Arrow type."""

    id: int
    name: str
    type: pa.DataType
    required: bool = False

    @property
    def arrow(self) -> pa.Field:
        return pa.field(self.name, self.type, nullable=not self.required)


def _struct(*fields: FieldSpec) -> pa.DataType:
    return pa.struct([field.arrow for field in fields])


VERSION_INFO = (
    FieldSpec(0, "status", pa.int32(), required=True),
    FieldSpec(1, "snapshot_id", pa.int64()),
    FieldSpec(3, "sequence_number", pa.int64()),
    FieldSpec(4, "file_sequence_number", pa.int64()),
)

DELETION_VECTOR = (
    FieldSpec(144, "offset", pa.int64()),
    FieldSpec(145, "size_in_bytes", pa.int64()),
    FieldSpec(146, "inline_content", pa.binary()),
)

MANIFEST_STATS = (
    FieldSpec(504, "added_files_count", pa.int32()),
    FieldSpec(505, "existing_files_count", pa.int32()),
    FieldSpec(506, "deleted_files_count", pa.int32()),
    FieldSpec(512, "added_rows_count", pa.int64()),
    FieldSpec(513, "existing_rows_count", pa.int64()),
    FieldSpec(514, "deleted_rows_count", pa.int64()),
    FieldSpec(516, "min_sequence_number", pa.int64()),
)

# content_stats (149) is missing because its children depend on the fields that a reader projects (`EntryProjection`).
CONTENT_ENTRY = (
    FieldSpec(134, "content_type", pa.int32(), required=True),
    FieldSpec(100, "location", pa.string()),
    FieldSpec(101, "file_format", pa.string(), required=True),
    FieldSpec(5, "version_info", _struct(*VERSION_INFO), required=True),
    FieldSpec(147, "deletion_vector", _struct(*DELETION_VECTOR)),
    FieldSpec(148, "partition_spec_id", pa.int32(), required=True),
    FieldSpec(140, "sort_order_id", pa.int32()),
    FieldSpec(103, "record_count", pa.int64(), required=True),
    FieldSpec(104, "file_size_in_bytes", pa.int64()),
    FieldSpec(521, "manifest_stats", _struct(*MANIFEST_STATS)),
    FieldSpec(143, "referenced_file", pa.string()),
    FieldSpec(131, "key_metadata", pa.binary()),
    FieldSpec(132, "split_offsets", pa.list_(pa.field("element", pa.int64(), nullable=False))),
    FieldSpec(135, "equality_ids", pa.list_(pa.field("element", pa.int32(), nullable=False))),
    FieldSpec(142, "first_row_id", pa.int64()),
)

# A field of data leaves that is not in the proposal (layout revision 1): the number of rows in preceding entries
# whose ids are inherited from the leaf's first_row_id. An entry's first row id is the sum of both, so that readers need
# not count the rows of the leaf.
ROW_ID_OFFSET = FieldSpec(9001, "row_id_offset", pa.int64())

# Field id in a v1-v3 manifest -> path of the value in a content entry.
V3_ENTRY_PATHS: dict[int, tuple[str, ...]] = {
    0: ("version_info", "status"),
    1: ("version_info", "snapshot_id"),
    3: ("version_info", "sequence_number"),
    4: ("version_info", "file_sequence_number"),
    134: ("content_type",),
    100: ("location",),
    101: ("file_format",),
    103: ("record_count",),
    104: ("file_size_in_bytes",),
    140: ("sort_order_id",),
    131: ("key_metadata",),
    132: ("split_offsets",),
    135: ("equality_ids",),
    142: ("first_row_id",),
    143: ("referenced_file",),
    144: ("deletion_vector", "offset"),
    145: ("deletion_vector", "size_in_bytes"),
}

# The metrics maps of a v1-v3 data_file: field id -> name and value type. The maps' keys are field ids of columns.
METRICS_MAPS: dict[int, tuple[str, pa.DataType]] = {
    108: ("column_sizes", pa.int64()),
    109: ("value_counts", pa.int64()),
    110: ("null_value_counts", pa.int64()),
    137: ("nan_value_counts", pa.int64()),
    125: ("lower_bounds", pa.binary()),
    128: ("upper_bounds", pa.binary()),
}
METRICS_MAP_IDS = {name: field_id for field_id, (name, _) in METRICS_MAPS.items()}

# Child of a column's content_stats -> field id of the metrics map that it is read from.
STATS_SOURCES = {
    "lower_bound": 125,
    "upper_bound": 128,
    "value_count": 109,
    "null_value_count": 110,
    "nan_value_count": 137,
}

PARTITION_FIELD_ID = 102
DATA_FILE_FIELD_ID = 2
PARTITION_SUMMARIES_ID = 507

# The names and ids of the fields in v1 to v3 manifests and manifest lists (table spec, Manifests, Manifest Lists).
ENTRY_NAMES = {"status": 0, "snapshot_id": 1, "data_file": DATA_FILE_FIELD_ID, "sequence_number": 3,
               "file_sequence_number": 4}  # fmt: skip
FILE_NAMES = {
    "content": 134, "file_path": 100, "file_format": 101, "partition": PARTITION_FIELD_ID, "record_count": 103,
    "file_size_in_bytes": 104, "block_size_in_bytes": 105, "file_ordinal": 106, "sort_columns": 107,
    "distinct_counts": 111, "key_metadata": 131, "split_offsets": 132, "equality_ids": 135, "sort_order_id": 140,
    "first_row_id": 142, "referenced_data_file": 143, "content_offset": 144, "content_size_in_bytes": 145,
    **METRICS_MAP_IDS,
}  # fmt: skip
LIST_NAMES = {
    "manifest_path": 500, "manifest_length": 501, "partition_spec_id": 502, "content": 517, "sequence_number": 515,
    "min_sequence_number": 516, "added_snapshot_id": 503, "added_files_count": 504, "existing_files_count": 505,
    "deleted_files_count": 506, "added_rows_count": 512, "existing_rows_count": 513, "deleted_rows_count": 514,
    "partitions": PARTITION_SUMMARIES_ID, "key_metadata": 519, "first_row_id": 520,
    # Early writers spell the names of the counts in this way.
    "added_data_files_count": 504, "existing_data_files_count": 505, "deleted_data_files_count": 506,
}  # fmt: skip
SUMMARY_NAMES = {"contains_null": 509, "contains_nan": 518, "lower_bound": 510, "upper_bound": 511}

FIRST_RESERVED_ID = 2147483447
"""The first field id reserved for metadata columns (table spec, Reserved Field IDs)."""

# The `file_path` column of position delete files. If its bounds are equal, they name the only data file to which the
# delete file applies.
DELETE_FILE_PATH_ID = 2147483546
DELETE_FILE_POS_ID = 2147483545

FILE_FORMATS = ("AVRO", "ORC", "PARQUET", "PUFFIN")


# -- `content_stats` (field 149): statistics of columns ---------------------------------------------------------------
# The stats of a column or expression with id `f` are a struct with field id 10000 + 200 * f. The ids of its children
# are at fixed offsets from that. The name of the struct is `f` in decimal, which does not change if the column is
# renamed.


CONTENT_STATS_ID = 149

_BASE, _STEP = 10_000, 200

# Child -> offset of its field id, and type. None is the type of the column's values.
_CHILDREN: dict[str, tuple[int, pa.DataType | None]] = {
    "lower_bound": (1, None),
    "upper_bound": (2, None),
    "tight_bounds": (3, pa.bool_()),
    "value_count": (4, pa.int64()),
    "null_value_count": (5, pa.int64()),
    "nan_value_count": (6, pa.int64()),
    "avg_value_size_in_bytes": (7, pa.int32()),
}

BOUNDS = ("lower_bound", "upper_bound")
COUNTS = ("value_count", "null_value_count", "nan_value_count")


def stats_struct_id(field_id: int) -> int:
    """Return the field id of the struct with a column's stats."""
    return _BASE + _STEP * field_id


def stats_children(field_id: int, bound: pa.DataType) -> tuple[FieldSpec, ...]:
    """Return the children of the struct with a column's stats, given the type of its bounds."""
    base = stats_struct_id(field_id)
    return tuple(FieldSpec(base + offset, name, kind or bound) for name, (offset, kind) in _CHILDREN.items())


def full_stats_struct(bound: pa.DataType) -> pa.StructType:
    """Return the Arrow type of a column's stats with all children, given the type of its bounds."""
    return pa.struct([pa.field(name, kind or bound) for name, (_, kind) in _CHILDREN.items()])
