"""Write entries as a Parquet file with suitable encodings and statistics. Without Spark: tasks import this."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparkmeta.expr import arrays
from sparkmeta.spec.entry import METRICS_MAP_IDS

# Columns whose Parquet statistics would prune nothing and bloat footers.
_NO_STATISTICS = ("key_metadata", "split_offsets", "equality_ids", "inline_content", *METRICS_MAP_IDS)
_ROW_GROUP_ROWS = 20_000


def parquet_bytes(table: pa.Table, metadata: Mapping[str, str], *, whole: bool = False) -> bytes:
    """Return the bytes of a Parquet file with entries, whose row groups can be skipped by bounds and partition values.

    Args:
        metadata: the file's key-value metadata.
        whole: optimize for size, since the file is always read as a whole, and rewritten by every commit.
    """
    leaves = list(_leaf_columns(table.schema))
    paths = [leaf.path for leaf in leaves]
    encodings = {path: _DELTA[path] for path in paths if path in _DELTA}
    if whole:
        encodings |= {leaf.path: "DELTA_BINARY_PACKED" for leaf in leaves if leaf.physical_type in ("INT32", "INT64")}
    with_statistics = [] if whole else [path for path in paths if not _lacks_statistics(path)]
    without_dictionary = set() if whole else {*_DELTA, *_distinct(table)}
    sink = io.BytesIO()
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression="zstd",
        store_schema=False,
        write_statistics=False if whole else with_statistics,
        use_dictionary=False if whole else [path for path in paths if path not in without_dictionary],
        column_encoding=encodings,
        write_page_checksum=True,
    ) as writer:
        writer.write_table(table, row_group_size=_ROW_GROUP_ROWS)
        if metadata:
            writer.add_key_value_metadata(dict(metadata))
    return sink.getvalue()


def _lacks_statistics(path: str) -> bool:
    return path.partition(".")[0] in _NO_STATISTICS or path.endswith("inline_content")


# Columns with sorted or slowly growing values.
_DELTA = {"location": "DELTA_BYTE_ARRAY", "referenced_file": "DELTA_BYTE_ARRAY"}


def _distinct(table: pa.Table) -> Iterator[str]:
    """Yield the columns whose first values hardly repeat, so that a dictionary would cost time and bytes."""
    rows = table.slice(0, _SAMPLE)
    for path, values in _flat((name, arrays.whole(rows.column(name))) for name in rows.column_names):
        countable = not pa.types.is_nested(values.type) and not pa.types.is_null(values.type)
        if countable and 2 * pc.count_distinct(values).as_py() > len(rows):
            yield path


_SAMPLE = 1_000


def _flat(columns: Iterable[tuple[str, pa.Array]]) -> Iterator[tuple[str, pa.Array]]:
    """Yield columns by their paths in Parquet, with structs replaced by their children, and without extension types."""
    for path, values in columns:
        if pa.types.is_struct(values.type):
            names = (f"{path}.{field.name}" for field in values.type)
            yield from _flat(zip(names, values.flatten(), strict=True))
        else:
            yield path, values.storage if isinstance(values, pa.ExtensionArray) else values


def _leaf_columns(schema: pa.Schema) -> Iterable[Any]:
    sink = io.BytesIO()
    # `Schema.empty_table` refuses extension types in structs.
    empty = pa.Table.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
    pq.write_table(empty, sink, store_schema=False)
    described = pq.ParquetFile(sink).schema
    return (described.column(index) for index in range(len(described)))
