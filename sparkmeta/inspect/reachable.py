"""Manifests of the whole history, opened by Spark tasks that learn only then which they are. Light for their sake."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from sparkmeta.manifests.avro.decode import decode_manifest
from sparkmeta.manifests.avro.read import part_of
from sparkmeta.manifests.projection import EntryProjection
from sparkmeta.storage.files import ExecutorReader

PARQUET_SUFFIX = ".parquet"


def read_manifests(
    projection: EntryProjection, reader: ExecutorReader, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The entries of the manifests that rows of `PART_SCHEMA` name, as batches of `projection.schema`."""
    for batch in batches:
        for row in batch.to_pylist():
            data, part = reader.read(row["location"]), part_of(row)
            if row["location"].lower().endswith(PARQUET_SUFFIX):
                from sparkmeta.manifests.parquet_bytes import decode_parquet_manifest

                yield from decode_parquet_manifest(data, part, projection)
            else:
                yield from decode_manifest(data, part, projection)
