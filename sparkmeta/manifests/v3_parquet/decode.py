"""Decode a Parquet manifest with the entry layout of versions 1 to 3 from its bytes.

For manifests whose locations are unknown when a plan is made, such as those of a table's whole history. Otherwise
Spark's reader is faster (`spark.py`). Columns are resolved by field id.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparkmeta.columns.bounds import bound_arrow_type
from sparkmeta.entries.field_ids import field_id
from sparkmeta.entries.parts import ManifestPart
from sparkmeta.entries.projection import EntryProjection
from sparkmeta.entries.records import EntryBuilder, projected_fields, promoted_values
from sparkmeta.errors import CorruptFileError
from sparkmeta.spec.entry import DATA_FILE_FIELD_ID, PARTITION_FIELD_ID
from sparkmeta.storage.read_errors import translated_read_errors

MAGIC = b"PAR1"
BATCH_RECORDS = 8192


def decode_parquet_manifest(
    data: bytes | memoryview, part: ManifestPart, projection: EntryProjection
) -> Iterator[pa.RecordBatch]:
    """Yield the entries of a manifest as batches of `projection.schema` in physical order, with inheritance applied.

    Raises:
        CorruptFileError: not a Parquet file, or not a manifest.
    """
    builder, ordinal, unique_ids = EntryBuilder(part, projection), 0, projection.unique_ids(part.spec_id)
    with translated_read_errors(part.location, "file", "not readable as Parquet"):
        file = pq.ParquetFile(pa.BufferReader(data))
        columns = _projected_columns(file.schema_arrow, projection, part.location)
        for batch in file.iter_batches(BATCH_RECORDS, columns=columns):
            ordinals = pa.array(np.arange(ordinal, ordinal + len(batch)), pa.int64())
            yield builder.batch(ordinals, ParquetRecords(batch, part.location, unique_ids))
            ordinal += len(batch)


class ParquetRecords:
    """`RawRecords` over a batch of a manifest's columns. unique_ids: see `EntryProjection`."""

    def __init__(self, batch: pa.RecordBatch, location: str, unique_ids: Mapping[int, int]) -> None:
        self._batch = batch
        self._fields = _by_id(batch.schema, batch.columns)
        file = self._fields.pop(DATA_FILE_FIELD_ID, None)
        self._fields |= {} if file is None else _by_id(file.type, file.flatten())
        tuples = self._fields.get(PARTITION_FIELD_ID)
        values = {} if tuples is None else _by_id(tuples.type, tuples.flatten())
        self._partition = {unique_ids.get(field_id, field_id): column for field_id, column in values.items()}
        self._unique_ids = unique_ids
        self._location = location

    def __len__(self) -> int:
        return len(self._batch)

    def values(self, field_id: int, kind: pa.DataType) -> pa.Array:
        return self._cast(self._fields.get(field_id), kind, field_id)

    def partition(self, field_id: int, type_name: str) -> pa.Array:
        if (values := self._partition.get(field_id)) is None:
            return pa.nulls(len(self), bound_arrow_type(type_name))
        return promoted_values(values, type_name, self._location, f"partition.{field_id}")

    def metrics_map(self, map_id: int, kind: pa.MapType) -> pa.Array:
        return self._cast(self._fields.get(map_id), kind, map_id)

    def metric(self, map_id: int, key: int, kind: pa.DataType) -> pa.Array:
        maps = self._fields.get(map_id)
        values = None if maps is None else pc.map_lookup(maps, pa.scalar(key, maps.type.key_type), "first")
        return self._cast(values, kind, map_id)

    def taken(self, places: np.ndarray[Any, Any]) -> ParquetRecords:
        return ParquetRecords(self._batch.take(pa.array(places)), self._location, self._unique_ids)

    def _cast(self, values: pa.Array | None, kind: pa.DataType, field_id: int) -> pa.Array:
        if values is None:
            return pa.nulls(len(self), kind)
        try:
            return values.cast(kind)
        except pa.ArrowException as error:
            raise CorruptFileError(self._location, f"field {field_id}", str(values.type), f"not {kind}") from error


def _projected_columns(schema: pa.Schema, projection: EntryProjection, location: str) -> list[str]:
    """Return the paths of the projected columns, and of the whole partition tuple, since its names may have dots."""
    ids = {*projected_fields(projection), *([PARTITION_FIELD_ID] if projection.partition else [])}
    file = next((field for field in schema if field_id(field) == DATA_FILE_FIELD_ID), None)
    if file is None or not pa.types.is_struct(file.type):
        raise CorruptFileError(location, "schema", "data_file", "field 2 (data_file) is not a struct")
    of_entry = [field.name for field in schema if field_id(field) in ids]
    return [*of_entry, *(f"{file.name}.{field.name}" for field in file.type if field_id(field) in ids)]


def _by_id(fields: Any, columns: list[pa.Array]) -> dict[int, pa.Array]:
    ids = map(field_id, fields)
    return {number: column for number, column in zip(ids, columns, strict=True) if number is not None}
