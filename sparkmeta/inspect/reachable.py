"""Manifests of the whole history, opened by Spark tasks that learn only then which they are. Light for their sake."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from sparkmeta.manifests.avro.read import decode_row
from sparkmeta.manifests.parts import ManifestPart, part_of
from sparkmeta.manifests.projection import EntryProjection
from sparkmeta.manifests.v4.decode import TreeContext
from sparkmeta.manifests.v4.layout import is_tree_manifest
from sparkmeta.storage.files import ExecutorReader

PARQUET_SUFFIX = ".parquet"


def read_manifests(
    projection: EntryProjection,
    reader: ExecutorReader,
    trees: TreeContext | None,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """The entries of the manifests that rows of `PART_SCHEMA` name, as batches of `projection.schema`.

    trees: to read V4 manifests with; None where there are none.
    """
    for batch in batches:
        for row in batch.to_pylist():
            if row["location"].lower().endswith(PARQUET_SUFFIX):
                yield from _decode_parquet(reader.read(row["location"]), part_of(row), projection, trees)
            else:
                yield from decode_row(row, projection, reader)


def _decode_parquet(
    data: bytes, part: ManifestPart, projection: EntryProjection, trees: TreeContext | None
) -> Iterator[pa.RecordBatch]:
    from sparkmeta.manifests.v3_parquet.decode import decode_parquet_manifest
    from sparkmeta.manifests.v4.decode import decode_tree_manifest

    if trees is not None and is_tree_manifest(data, part.location):
        return decode_tree_manifest(data, part, projection, trees)
    return decode_parquet_manifest(data, part, projection)
