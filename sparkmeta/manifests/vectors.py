"""Deletion vectors of leaf manifests: from bitmaps in a root or in Puffin files to rows (manifest, ordinal)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.errors import CorruptFileError
from sparkmeta.manifests.projection import MANIFEST, ORDINAL
from sparkmeta.spec.bitmap import read_inline_vector

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sparkmeta.manifests.root import Root
    from sparkmeta.storage.files import ExecutorReader

# A leaf's deletion vector: the leaf, where the bitmap stands, how many positions it has and how many the leaf has.
VECTOR_SCHEMA = pa.schema(
    [
        pa.field(MANIFEST, pa.int32()),
        pa.field("referenced_file", pa.string()),
        pa.field("location", pa.string()),
        pa.field("offset", pa.int64()),
        pa.field("size_in_bytes", pa.int64()),
        pa.field("inline_content", pa.binary()),
        pa.field("record_count", pa.int64()),
        pa.field("leaf_entries", pa.int64()),
    ]
)

MASKED_SCHEMA = pa.schema([pa.field(MANIFEST, pa.int32()), pa.field(ORDINAL, pa.int64())])


def leaf_vectors(root: Root) -> pa.Table:
    """The live deletion vectors of the root's leaves, as `VECTOR_SCHEMA`; `manifest` is the leaf's ordinal."""
    vectors, leaves = root.vectors, root.leaves
    places = pc.index_in(vectors.column("referenced_file"), leaves.column("location").combine_chunks())
    found = {name: pc.struct_field(vectors.column("deletion_vector"), name) for name in _IN_STRUCT}
    columns = {
        MANIFEST: leaves.column("ordinal").take(places),
        "leaf_entries": leaves.column("record_count").take(places),
        **{name: vectors.column(name) for name in ("referenced_file", "location", "record_count")},
        **found,
    }
    arrays = [columns[one.name].cast(one.type) for one in VECTOR_SCHEMA]
    return pa.Table.from_arrays(arrays, schema=VECTOR_SCHEMA)


_IN_STRUCT = ("offset", "size_in_bytes", "inline_content")


def masked_ordinals(spark: SparkSession, vectors: pa.Table, reader: ExecutorReader | None) -> DataFrame:
    """The entries that deletion vectors mask, as a lazy DataFrame of `manifest`, `ordinal`.

    vectors: rows of `VECTOR_SCHEMA`. reader: opens Puffin files on executors; None where only Spark's sources can.

    Raises, when it runs:
        CorruptFileError: a bitmap that is none, has another cardinality than its entry says, or masks an entry that
            the leaf does not have.
    """
    from sparkmeta.manifests.avro.read import schema_of
    from sparkmeta.session import local_frame

    rows = local_frame(spark, vectors)
    stored = [one for one in vectors.column("location").unique().to_pylist() if one]
    if not stored or reader is not None:
        return rows.mapInArrow(partial(_explode, reader), schema_of(MASKED_SCHEMA))
    return _with_content(spark, rows, stored).mapInArrow(_explode_contents, schema_of(MASKED_SCHEMA))


def _with_content(spark: SparkSession, rows: DataFrame, locations: list[str]) -> DataFrame:
    """The rows with `content`, the bytes of their Puffin file."""
    from pyspark.sql import functions as F

    from sparkmeta.session import local_frame
    from sparkmeta.storage.files import binary_files
    from sparkmeta.storage.location import spark_path_key

    keys = pa.table({"location": locations, "path": [spark_path_key(location) for location in locations]})
    contents = binary_files(spark, locations).join(F.broadcast(local_frame(spark, keys)), "path")
    return rows.join(contents.select("location", "content"), "location", "left")


def _explode(reader: ExecutorReader | None, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for row in batch.to_pylist():
            if row["inline_content"] is not None:
                yield from _ordinals(row, row["inline_content"])
            else:
                assert reader is not None
                end = row["offset"] + row["size_in_bytes"]
                yield from _ordinals(row, reader.read(row["location"])[row["offset"] : end])


def _explode_contents(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for row in batch.to_pylist():
            blob = row["inline_content"]
            if blob is None:
                if row["content"] is None:
                    raise CorruptFileError(row["location"], "location", row["location"], "Spark has not read the file")
                blob = row["content"][row["offset"] : row["offset"] + row["size_in_bytes"]]
            yield from _ordinals(row, blob)


def _ordinals(row: dict[str, Any], blob: bytes) -> Iterator[pa.RecordBatch]:
    where = f"{row['location'] or 'inline deletion vector'} of manifest {row['referenced_file']}"
    bitmap = read_inline_vector(blob, where, row["record_count"])
    for positions in bitmap.positions():
        if positions[-1] >= row["leaf_entries"]:
            problem = f"the manifest has {row['leaf_entries']} entries"
            raise CorruptFileError(where, "ordinal", int(positions[-1]), problem)
        manifests = pa.repeat(pa.scalar(row[MANIFEST], pa.int32()), len(positions))
        yield pa.RecordBatch.from_arrays([manifests, pa.array(positions, pa.int64())], schema=MASKED_SCHEMA)
