"""Convert the rows of Arrow tables to JSON objects as Spark writes them."""

from __future__ import annotations

import json
from base64 import b64encode
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from sparkmeta.cli.output import OF_ROWS, SNAPSHOT_ID
from sparkmeta.expr.arrays import compact_lists, whole
from sparkmeta.expr.partition_text import java_double, java_float

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_BATCH_ROWS: Final = 1000


def json_lines(rows: pa.Table) -> Iterator[str]:
    """Yield each row as a JSON object, with `JSON_OPTIONS` of `cli.output`."""
    for start in range(0, len(rows), _BATCH_ROWS):
        batch = rows.slice(start, _BATCH_ROWS)
        columns = [_texts(whole(column), name) for name, column in zip(batch.column_names, batch.columns, strict=True)]
        yield from _objects(batch.column_names, columns, len(batch))


def _texts(values: pa.Array, name: str) -> list[str]:
    """Return each value of a field as JSON. In lists, and in values of a table's rows, `name` is empty."""
    kind = values.type
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        below = [""] * len(names) if not name or name in OF_ROWS else names
        texts = _objects(names, [_texts(*field) for field in zip(values.flatten(), below, strict=True)], len(values))
        return _with_nulls(values, texts)
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        return _with_nulls(values, _lists(values))
    if pa.types.is_int64(kind) and SNAPSHOT_ID.fullmatch(name):
        values = values.cast(pa.string())
    if pa.types.is_temporal(kind):
        return _with_nulls(values, map(json.dumps, _times(values)))
    if pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return _with_nulls(values, (f'"{b64encode(value or b"").decode()}"' for value in values.to_pylist()))
    if pa.types.is_floating(kind):
        show = java_float if pa.types.is_float32(kind) else java_double
        return _with_nulls(values, (_number(show(0.0 if value is None else value)) for value in values.to_pylist()))
    if pa.types.is_decimal(kind):
        return _with_nulls(values, map(str, values.to_pylist()))
    return [json.dumps(value, ensure_ascii=False) for value in values.to_pylist()]


def _with_nulls(values: pa.Array, texts: Iterator[str]) -> list[str]:
    return [text if is_valid else "null" for text, is_valid in zip(texts, values.is_valid().to_pylist(), strict=True)]


def _objects(names: Sequence[str], columns: Sequence[Sequence[str]], length: int) -> Iterator[str]:
    keys = [json.dumps(name, ensure_ascii=False) for name in names]
    for row in zip(*columns, strict=True) if columns else [()] * length:
        yield "{" + ",".join(f"{key}:{text}" for key, text in zip(keys, row, strict=True)) + "}"


def _lists(values: pa.Array) -> Iterator[str]:
    offsets, elements = compact_lists(values)
    start, end = "[]"
    if pa.types.is_map(values.type):
        keys, items = elements.flatten()
        pairs = zip(keys.cast(pa.string()).to_pylist(), _texts(items, ""), strict=True)
        texts, start, end = [f"{json.dumps(key, ensure_ascii=False)}:{text}" for key, text in pairs], "{", "}"
    else:
        texts = _texts(elements, "")
    bounds = offsets.to_pylist()
    for first, last in pairwise(bounds):
        yield start + ",".join(texts[first:last]) + end


def _times(values: pa.Array) -> Iterator[str]:
    in_utc = pa.types.is_timestamp(values.type) and values.type.tz is not None
    unzoned = values.cast(pa.timestamp("us")) if pa.types.is_timestamp(values.type) else values
    for text in unzoned.cast(pa.string()).to_pylist():
        yield (text or "").replace(" ", "T") + ("Z" if in_utc else "")


def _number(text: str) -> str:
    """Return a number that Java shows as JSON; NaN and infinities are text."""
    return json.dumps(text) if text[-1].isalpha() else text
