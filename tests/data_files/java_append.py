"""Commit data files that we wrote by Iceberg's Java library, to tables of every format version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from tests.peers.workshop import Workshop

MAPS = {
    "column_sizes": "column-sizes",
    "value_counts": "value-counts",
    "null_value_counts": "null-value-counts",
    "nan_value_counts": "nan-value-counts",
    "lower_bounds": "lower-bounds",
    "upper_bounds": "upper-bounds",
}


def append_by_java(shop: Workshop, files: pa.Table) -> None:
    """Append files, rows of `inspect.files`, with all that they say."""
    append = shop.table.newAppend()
    for row in files.to_pylist():
        append.appendFile(shop.content_file(file_json(row)))
    append.commit()


def file_json(row: dict[str, Any]) -> dict[str, Any]:
    """A file as Iceberg's JSON."""
    maps = {key: _map_json(row[name] or ()) for name, key in MAPS.items()}
    return {
        "content": "data",
        "file-path": row["file_path"],
        "file-format": row["file_format"],
        "spec-id": row["spec_id"],
        "partition": [_value_json(value) for value in (row.get("partition") or {}).values()],
        "file-size-in-bytes": row["file_size_in_bytes"],
        "record-count": row["record_count"],
        "split-offsets": row["split_offsets"],
        "sort-order-id": row["sort_order_id"],
        **maps,
    }


def _map_json(pairs: Iterable[tuple[int, Any]]) -> dict[str, list[Any]]:
    keys, values = zip(*pairs, strict=True) if pairs else ((), ())
    return {"keys": [*keys], "values": [_value_json(value) for value in values]}


def _value_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex().upper()
    return value if isinstance(value, int | str | None) else str(value)
