"""Entries of V4 manifests as rows, complete enough to be valid; tests say what is special about theirs."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from sparkmeta.manifests.v4.layout import tree_schema
from sparkmeta.spec.bitmap import PositionBitmap, write_deletion_vector
from sparkmeta.spec.entry import ContentType

Row = dict[str, Any]

DATA, PD, EQ, DM, XM, MDV = map(int, ContentType)
STATS = {1: "long", 2: "string", 5: "double", 101: "int"}
SCHEMA = tree_schema(STATS)
LEAF = "/t/metadata/leaf.parquet"


def version(status: int = 0, snapshot_id: int | None = 11, sequence: int | None = 2) -> Row:
    numbers = {"sequence_number": sequence, "file_sequence_number": sequence}
    return {"status": status, "snapshot_id": snapshot_id, **numbers}


def bounds(lower: Any, upper: Any, values: int = 10, nulls: int = 0, **more: Any) -> Row:
    return {"lower_bound": lower, "upper_bound": upper, "value_count": values, "null_value_count": nulls, **more}


def file_row(kind: int = DATA, location: str = "/t/data/a.parquet", **values: Any) -> Row:
    row = {
        "content_type": kind,
        "location": location,
        "file_format": "puffin" if kind == PD else "parquet",
        "version_info": version(),
        "partition_spec_id": 0,
        "record_count": 10,
        "file_size_in_bytes": 1000,
    }
    if kind == EQ:
        row["equality_ids"] = [1, 2]
    if kind == PD:
        row["deletion_vector"] = {"offset": 4, "size_in_bytes": 40, "inline_content": None}
        row["referenced_file"] = "/t/data/a.parquet"
    return row | values


def leaf_row(kind: int = DM, location: str = LEAF, **values: Any) -> Row:
    counts = {"added_files_count": 2, "existing_files_count": 1, "deleted_files_count": 1}
    rows = {"added_rows_count": 20, "existing_rows_count": 10, "deleted_rows_count": 10}
    stats = {**counts, **rows, "min_sequence_number": 1}
    return file_row(kind, location, record_count=4, manifest_stats=stats) | values


def vector_row(positions: tuple[int, ...] = (0, 2), **values: Any) -> Row:
    blob = write_deletion_vector(PositionBitmap.of(positions))
    row = file_row(MDV, LEAF, file_format="puffin", record_count=len(positions), referenced_file=LEAF)
    place = {"offset": None, "size_in_bytes": None, "inline_content": blob}
    return row | {"location": None, "file_size_in_bytes": None, "deletion_vector": place} | values


def entry_table(*rows: Row, schema: pa.Schema = SCHEMA) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=schema)


def whole_root() -> pa.Table:
    """A root with an entry of every content type, with stats and everything else that they may have."""
    stats = {"1": bounds(1, 9), "2": bounds("a", "b"), "101": bounds(3, 3)}
    part = {"101": bounds(3, None)}
    ratio = {"5": bounds(-0.5, 2.0, nan_value_count=1, tight_bounds=True, avg_value_size_in_bytes=8)}
    return entry_table(
        leaf_row(DM, first_row_id=0, content_stats=stats),
        leaf_row(XM, "/t/metadata/deletes.parquet", referenced_file=LEAF, content_stats={"101": bounds(3, 3)}),
        vector_row(),
        file_row(sort_order_id=1, split_offsets=[4, 100], first_row_id=30, content_stats=stats | ratio),
        file_row(EQ, "/t/data/eq.parquet", content_stats=part),
        file_row(PD, "/t/data/dv.puffin", record_count=2, content_stats=part),
    )
