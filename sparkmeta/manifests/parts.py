"""The shares of manifests that tasks read. Free of Spark: tasks import this."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.manifests.inherit import ManifestContext
from sparkmeta.manifests.projection import MANIFEST, EntryProjection

PART_SCHEMA = pa.schema(
    [
        pa.field("manifest", pa.int32()),
        pa.field("location", pa.string()),
        pa.field("partition_spec_id", pa.int32()),
        pa.field("snapshot_id", pa.int64()),
        pa.field("sequence_number", pa.int64()),
        pa.field("first_row_id", pa.int64()),
        pa.field("part", pa.int32()),
        pa.field("parts", pa.int32()),
        pa.field("file_size_in_bytes", pa.int64()),
    ]
)

_SOURCES = ["manifest", "location", "partition_spec_id", "version_info", "first_row_id", "file_size_in_bytes"]


@dataclass(frozen=True)
class ManifestPart:
    """One task's share of a manifest, part `part` of `parts`, and the manifest's own row of the manifest list."""

    manifest: int
    location: str
    spec_id: int
    context: ManifestContext
    part: int = 0
    parts: int = 1


def part_of(row: Mapping[str, Any]) -> ManifestPart:
    """A row of `PART_SCHEMA` as the part that it describes."""
    context = ManifestContext(row["snapshot_id"], row["sequence_number"], row["first_row_id"])
    return ManifestPart(row["manifest"], row["location"], row["partition_spec_id"], context, row["part"], row["parts"])


def manifest_parts(manifests: pa.Table, projection: EntryProjection, split_bytes: int) -> pa.Table:
    """The tasks' shares of the manifests in `manifests` (rows of `manifests_of_list`), as `PART_SCHEMA`.

    A manifest longer than `split_bytes` has several parts, which decode different blocks of it; not where first row ids
    are asked for, whose counter runs over the whole manifest. The order is such that any run of neighbours holds large
    and small manifests alike, since Spark deals rows to tasks in runs.
    """
    counted = "first_row_id" in projection.columns
    rows: list[dict[str, Any]] = []
    for row in manifests.select(_SOURCES).sort_by([("file_size_in_bytes", "descending")]).to_pylist():
        whole = counted and row["first_row_id"] is not None
        parts = 1 if whole else max(1, -(-row["file_size_in_bytes"] // split_bytes))
        version = row.pop("version_info")
        rows.extend({**row, **version, "part": part, "parts": parts} for part in range(parts))
    return pa.Table.from_pylist([rows[index] for index in _scattered(len(rows))], schema=PART_SCHEMA)


def _scattered(size: int) -> list[int]:
    """0..size-1 in bit-reversed order: every run of neighbours samples the whole range evenly."""
    width = max(1, (size - 1).bit_length())
    reversed_bits = (int(format(index, f"0{width}b")[::-1], 2) for index in range(1 << width))
    return [index for index in reversed_bits if index < size]


def leaf_units(leaves: pa.Table) -> pa.Table:
    """Leaves, rows of `leaf_manifests`, as rows of `PART_SCHEMA`."""
    zeros = pa.repeat(pa.scalar(0, pa.int32()), len(leaves))
    columns = {
        MANIFEST: leaves.column(MANIFEST),
        "location": leaves.column("location"),
        "partition_spec_id": leaves.column("partition_spec_id"),
        "snapshot_id": pc.struct_field(leaves.column("version_info"), "snapshot_id"),
        "sequence_number": pc.struct_field(leaves.column("version_info"), "sequence_number"),
        "first_row_id": leaves.column("first_row_id"),
        "part": zeros,
        "parts": pc.add(zeros, 1).cast(pa.int32()),
        "file_size_in_bytes": leaves.column("file_size_in_bytes"),
    }
    return pa.Table.from_arrays([columns[field.name] for field in PART_SCHEMA], schema=PART_SCHEMA)
