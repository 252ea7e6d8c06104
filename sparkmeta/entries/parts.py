"""The parts of manifests that tasks read. Without Spark: tasks import this."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.entries.inherit import ManifestContext
from sparkmeta.entries.projection import MANIFEST, EntryProjection

PART_SCHEMA = pa.schema(
    [
        pa.field(MANIFEST, pa.int32()),
        pa.field("location", pa.string()),
        pa.field("file_format", pa.string()),
        pa.field("partition_spec_id", pa.int32()),
        pa.field("snapshot_id", pa.int64()),
        pa.field("sequence_number", pa.int64()),
        pa.field("first_row_id", pa.int64()),
        pa.field("part", pa.int32()),
        pa.field("parts", pa.int32()),
        pa.field("file_size_in_bytes", pa.int64()),
    ]
)


@dataclass(frozen=True)
class ManifestPart:
    """A task's share of a manifest, part `part` of `parts`, and the values that its entries inherit."""

    manifest: int
    location: str
    spec_id: int
    context: ManifestContext
    part: int = 0
    parts: int = 1


def part_of(row: Mapping[str, Any]) -> ManifestPart:
    """Return the part that a row of `PART_SCHEMA` describes."""
    context = ManifestContext(row["snapshot_id"], row["sequence_number"], row["first_row_id"])
    return ManifestPart(row[MANIFEST], row["location"], row["partition_spec_id"], context, row["part"], row["parts"])


def whole_manifests(manifests: pa.Table) -> pa.Table:
    """Return manifests, rows of `TableState.manifests`, as rows of `PART_SCHEMA`, one per manifest."""
    return _parts(manifests, np.ones(len(manifests), np.int64))


def manifest_parts(manifests: pa.Table, projection: EntryProjection, split_bytes: int | None) -> pa.Table:
    """Split manifests, rows of `TableState.manifests`, into parts for tasks: rows of `PART_SCHEMA`.

    An Avro manifest longer than `split_bytes` has several parts, which decode different blocks, unless first row ids
    are read, which are counted over the whole manifest. Rows are ordered so that any run has large and small manifests,
    since Spark gives tasks runs of rows.
    """
    ordered = manifests.sort_by([("file_size_in_bytes", "descending")])
    sizes = ordered.column("file_size_in_bytes").to_numpy()
    counts = np.maximum(1, -(-sizes // part_bytes(split_bytes)))
    splits = pc.equal(ordered.column("file_format"), "AVRO")
    if "first_row_id" in projection.columns:
        splits = pc.and_(splits, ordered.column("first_row_id").is_null())
    parts = _parts(ordered, np.where(splits.to_numpy(), counts, 1))
    return parts.take(pa.array(_scattered(len(parts)), pa.int64()))


def part_bytes(split_bytes: int | None) -> int:
    """Return the most bytes of a part; 0 and None mean that manifests are not split."""
    return split_bytes or sys.maxsize


def _parts(manifests: pa.Table, counts: np.ndarray[Any, Any]) -> pa.Table:
    rows = np.repeat(np.arange(len(manifests)), counts)
    numbers = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    table = manifests.take(pa.array(rows)) if len(rows) > len(manifests) else manifests
    version = table.column("version_info")
    columns: dict[str, Any] = {
        "snapshot_id": pc.struct_field(version, "snapshot_id"),
        "sequence_number": pc.struct_field(version, "sequence_number"),
        "part": pa.array(numbers, pa.int32()),
        "parts": pa.array(counts[rows], pa.int32()),
    }
    arrays = [columns[field.name] if field.name in columns else table.column(field.name) for field in PART_SCHEMA]
    return pa.Table.from_arrays(arrays, schema=PART_SCHEMA)


def _scattered(size: int) -> list[int]:
    """Return 0..size-1 in bit-reversed order, so that every run samples the whole range evenly."""
    width = max(1, (size - 1).bit_length())
    reversed_bits = (int(format(index, f"0{width}b")[::-1], 2) for index in range(1 << width))
    return [index for index in reversed_bits if index < size]
