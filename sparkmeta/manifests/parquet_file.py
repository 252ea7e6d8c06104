"""Entries written as a Parquet file: encodings and statistics chosen for what readers skip. Free of Spark."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparkmeta.manifests import arrays
from sparkmeta.spec.entry import METRICS_MAP_IDS

# Parquet's own statistics of these prune nothing and fill footers.
_NO_STATISTICS = ("key_metadata", "split_offsets", "equality_ids", "inline_content", *METRICS_MAP_IDS)
_ROW_GROUP_ROWS = 20_000


def parquet_bytes(table: pa.Table, metadata: Mapping[str, str], *, whole: bool = False) -> bytes:
    """Entries as a Parquet file, laid out so that filters of bounds and partition values skip row groups of it.

    metadata: its key-value metadata. whole: it is only ever read as a whole, and every commit writes it anew, so that
    bytes count alone.
    """
    leaves = list(_leaf_columns(table.schema))
    unskipped = [
        one.path for one in leaves if one.path.split(".")[0] in _NO_STATISTICS or one.path.endswith("inline_content")
    ]
    encodings = {one.path: _DELTA[one.path] for one in leaves if one.path in _DELTA}
    if whole:
        encodings |= {one.path: "DELTA_BINARY_PACKED" for one in leaves if one.physical_type in ("INT32", "INT64")}
    plain = set() if whole else {*_DELTA, *_distinct(table)}
    sink = io.BytesIO()
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression="zstd",
        store_schema=False,
        write_statistics=False if whole else [one.path for one in leaves if one.path not in unskipped],
        use_dictionary=False if whole else [one.path for one in leaves if one.path not in plain],
        column_encoding=encodings,
        write_page_checksum=True,
    ) as writer:
        writer.write_table(table, row_group_size=_ROW_GROUP_ROWS)
        if metadata:
            writer.add_key_value_metadata(dict(metadata))
    return sink.getvalue()


# Sorted or slowly growing values.
_DELTA = {"location": "DELTA_BYTE_ARRAY", "referenced_file": "DELTA_BYTE_ARRAY"}


def _distinct(table: pa.Table) -> Iterator[str]:
    """Columns whose values hardly repeat, by their first rows: a dictionary of them takes time and adds bytes."""
    rows = table.slice(0, _SAMPLE)
    for path, values in _flat((name, arrays.whole(rows.column(name))) for name in rows.column_names):
        countable = not pa.types.is_nested(values.type) and not pa.types.is_null(values.type)
        if countable and 2 * pc.count_distinct(values).as_py() > len(rows):
            yield path


_SAMPLE = 1_000


def _flat(columns: Iterable[tuple[str, pa.Array]]) -> Iterator[tuple[str, pa.Array]]:
    """Columns by their paths in Parquet, the children of structs in the place of these."""
    for path, values in columns:
        if pa.types.is_struct(values.type):
            names = (f"{path}.{field.name}" for field in values.type)
            yield from _flat(zip(names, values.flatten(), strict=True))
        else:
            yield path, values


def _leaf_columns(schema: pa.Schema) -> Iterable[Any]:
    sink = io.BytesIO()
    pq.write_table(schema.empty_table(), sink, store_schema=False)
    described = pq.ParquetFile(sink).schema
    return (described.column(index) for index in range(len(described)))
