"""Data files and delete files of rows, written without an Iceberg library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc

from sparkmeta.spec.bitmap import PositionBitmap, write_deletion_vector

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


def with_ids(schema: pa.Schema, ids: Mapping[str, int], key: str = "PARQUET:field_id") -> pa.Schema:
    return pa.schema([field.with_metadata({key: str(ids[field.name])}) for field in schema])


def write(path: Path, table: pa.Table, ids: Sequence[int] = (), **options: Any) -> Path:
    """Write a file whose columns have the given ids, or else 1, 2, 3 ..."""
    kind = path.suffix[1:]
    by_name = dict(zip(table.column_names, ids or range(1, len(table.column_names) + 1), strict=True))
    if kind == "parquet":
        pq.write_table(table.cast(with_ids(table.schema, by_name)), path, **options)
    elif kind == "orc":
        orc.write_table(table.cast(with_ids(table.schema, by_name, "iceberg.id")), path, **options)
    else:
        names = {
            pa.int32(): "int", pa.int64(): "long", pa.string(): "string", pa.float32(): "float", pa.float64(): "double",
        }  # fmt: skip
        fields = [
            {"name": field.name, "type": ["null", names[field.type]], "field-id": by_name[field.name]}
            for field in table.schema
        ]
        with path.open("wb") as file:
            fastavro.writer(file, {"type": "record", "name": "t", "fields": fields}, table.to_pylist(), **options)
    return path


def write_position_deletes(path: Path, pairs: list[tuple[str, int]]) -> Path:
    paths, positions = zip(*pairs, strict=True)
    table = pa.table({"file_path": pa.array(paths), "pos": pa.array(positions, pa.int64())})
    schema = with_ids(table.schema, {"file_path": 2147483546, "pos": 2147483545})
    if path.suffix == ".parquet":
        pq.write_table(table.cast(schema), path)
    else:
        orc.write_table(table, path)
    return path


def write_vector(path: Path, positions: list[int]) -> dict[str, int]:
    """Write a deletion vector behind other bytes, and return its position in the fields of a manifest."""
    blob = write_deletion_vector(PositionBitmap.of(positions))
    path.write_bytes(b"PFA1" + blob)
    return {"content_offset": 4, "content_size_in_bytes": len(blob), "record_count": len(positions)}
