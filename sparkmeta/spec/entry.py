"""The content entry: the one row shape that manifests of every format version are read into.

Field tables follow the V4 proposal ("V4 content entry structure"); the ids of Iceberg's v1-v3 `manifest_entry` and
`data_file` structs (table spec, Manifests) map onto them in `V3_ENTRY_PATHS`. Types are Arrow types, so that executors
can build rows without any other type system.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import pyarrow as pa


class ContentType(IntEnum):
    """What an entry stands for (field 134). 3 and 4 occur in roots and manifest lists only, 5 in roots only."""

    DATA = 0
    POSITION_DELETES = 1
    EQUALITY_DELETES = 2
    DATA_MANIFEST = 3
    DELETE_MANIFEST = 4
    MANIFEST_DELETION_VECTOR = 5


class Status(IntEnum):
    """Entry status (field 0): what the snapshot that wrote the entry did with it."""

    EXISTING = 0
    ADDED = 1
    DELETED = 2


@dataclass(frozen=True)
class FieldSpec:
    """One field of a metadata struct: its Iceberg field id, name, Arrow type and whether a row must have it."""

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

# content_stats (149) is left out: its children are the fields that a reader is asked for (`EntryProjection`).
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

# Our own field of data leaves (layout revision 1): rows of the entries before this one that take ids from the leaf's
# first_row_id. So an entry's id is a sum of two numbers, and needs no count over the leaf.
ROW_ID_OFFSET = FieldSpec(9001, "row_id_offset", pa.int64())

# Field id in a v1-v3 manifest -> where its value stands in a content entry.
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

# The metrics maps of a v1-v3 data_file: field id -> name and value type. Keys are column field ids.
METRICS_MAPS: dict[int, tuple[str, pa.DataType]] = {
    108: ("column_sizes", pa.int64()),
    109: ("value_counts", pa.int64()),
    110: ("null_value_counts", pa.int64()),
    137: ("nan_value_counts", pa.int64()),
    125: ("lower_bounds", pa.binary()),
    128: ("upper_bounds", pa.binary()),
}
METRICS_MAP_IDS = {name: field_id for field_id, (name, _) in METRICS_MAPS.items()}

# The maps that one field's content_stats come from: child of content_stats -> metrics map.
STATS_SOURCES = {
    "lower_bound": 125,
    "upper_bound": 128,
    "value_count": 109,
    "null_value_count": 110,
    "nan_value_count": 137,
}

PARTITION_FIELD_ID = 102
DATA_FILE_FIELD_ID = 2

# The position delete file's `file_path` column, whose equal bounds name the one data file that it applies to.
DELETE_FILE_PATH_ID = 2147483546

LAYOUT_REVISION_KEY = "tree-layout-revision"
"""The key of table metadata, and of a root's key-value metadata, that names our layout of the V4 metadata tree."""
LAYOUT_REVISION = 1
"""The newest layout of the V4 metadata tree that is known."""

FILE_FORMATS = ("AVRO", "ORC", "PARQUET", "PUFFIN")
