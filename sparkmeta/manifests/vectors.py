"""Deletion vectors of leaf manifests: from bitmaps in a root or in Puffin files to rows (manifest, ordinal)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.errors import CorruptFileError
from sparkmeta.manifests.projection import MANIFEST, ORDINAL
from sparkmeta.spec.bitmap import read_inline_vector

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from sparkmeta.manifests.root import Root
    from sparkmeta.storage.files import ExecutorReader, Files

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

MASK = "mask"
MASK_SCHEMA = pa.schema([pa.field(MANIFEST, pa.int32()), pa.field(MASK, pa.list_(pa.int64()))])

# As MASKED_SCHEMA; or a deletion vector that can't be read, or an ordinal that its leaf does not have.
CHECKED_SCHEMA = pa.schema([*MASKED_SCHEMA, pa.field("value", pa.string()), pa.field("problem", pa.string())])

# Masks of so many bytes, with so many bitmaps to fetch for them, are made on the driver.
_DRIVER_MASKS = 1 << 20
_DRIVER_BLOBS = 16
# Spark's version since which there are Arrow UDFs; bytes of vectors, inline bitmaps included, that each task gets.
_ARROW_UDFS = (4, 1)
_MOST_SENT = 16 << 20
# Leaves whose masks a task keeps.
_HELD = 4

# What becomes of a vector, a row of `VECTOR_SCHEMA`, and its blob.
_Decode = Callable[[dict[str, Any], bytes], Iterator[pa.RecordBatch]]


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


def vector_row(manifest: int, leaf: Mapping[str, Any], vector: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of content type 5 and that of its leaf as a row of `VECTOR_SCHEMA`; `manifest` is any id."""
    return {
        MANIFEST: manifest,
        "referenced_file": leaf["location"],
        "location": vector["location"],
        **vector["deletion_vector"],
        "record_count": vector["record_count"],
        "leaf_entries": leaf["record_count"],
    }


def masked_ordinals(spark: SparkSession, vectors: pa.Table, reader: ExecutorReader | Files | None) -> DataFrame:
    """The entries that deletion vectors mask, as a lazy DataFrame of `manifest`, `ordinal`.

    vectors: rows of `VECTOR_SCHEMA`. reader: opens Puffin files on executors; None where only Spark's sources can.

    Raises, when it runs:
        CorruptFileError: a bitmap that is none, has another cardinality than its entry says, or masks an entry that
            the leaf does not have.
    """
    return _exploded(spark, vectors, reader, _ordinals, MASKED_SCHEMA)


def leaf_masks(spark: SparkSession, vectors: pa.Table, reader: ExecutorReader | None, files: Files | None) -> DataFrame:
    """As `masked_ordinals`, a row for each leaf: `manifest`, and `mask`, whose bit `ordinal` is set for masked entries.

    The mask is an array of 64-bit words, the lowest bit first. files: with which the driver reads few Puffin files,
    where that takes less time than a job. What the driver reads it reads at once, and raises at once.
    """
    if few_masks(vectors, files):
        from sparkmeta.session import map_units

        return map_units(spark, vectors, partial(_explode, files, _mask), MASK_SCHEMA, here=True)
    return _exploded(spark, vectors, reader, _mask, MASK_SCHEMA)


def few_masks(vectors: pa.Table, files: Files | None) -> bool:
    """Whether the driver makes the masks sooner than tasks do. files: as in `leaf_masks`."""
    stored = vectors.column("inline_content").null_count
    return mask_bytes(vectors) <= _DRIVER_MASKS and stored <= (0 if files is None else _DRIVER_BLOBS)


def masked_by_tasks(spark: SparkSession, vectors: pa.Table, reader: ExecutorReader) -> Column | None:
    """Whether a vector masks an entry, over rows with `manifest` and `ordinal`; None where Spark has no Arrow UDFs, and
    where the vectors themselves are too much for every task to have.

    vectors: rows of `VECTOR_SCHEMA`. A task opens the vectors of the leaves whose entries come to it, and no others.
    Raises, when it runs: CorruptFileError as `masked_ordinals` does, for a vector that some entry needs.
    """
    from pyspark.sql import functions as F

    # The server's version: a client may be newer.
    version = tuple(map(int, spark.version.split(".")[:2]))
    if not hasattr(F, "arrow_udf") or version < _ARROW_UDFS or vectors.nbytes > _MOST_SENT:
        return None

    # PySpark tells by the annotations what kind of function it is.
    def masked(places: Iterator[tuple[pa.Array, pa.Array]]) -> Iterator[pa.Array]:
        return _look_up(vectors, reader, places)

    of_entry: Column = F.arrow_udf(masked, "boolean")(MANIFEST, ORDINAL)
    return of_entry


def _look_up(
    vectors: pa.Table, reader: ExecutorReader, batches: Iterator[tuple[pa.Array, pa.Array]]
) -> Iterator[pa.Array]:
    """For pairs of `manifest` and `ordinal` whether they are masked. Neighbours are of the same leaf, mostly."""
    places = {manifest: place for place, manifest in enumerate(vectors.column(MANIFEST).to_pylist())}

    @lru_cache(maxsize=_HELD)
    def mask(manifest: int) -> np.ndarray[Any, Any]:
        (row,) = vectors.slice(places[manifest], 1).to_pylist()
        return _flags(row, _blob(row, reader))

    for manifests, ordinals in batches:
        ids, rows = manifests.to_numpy(), ordinals.to_numpy()
        found = np.zeros(len(ids), np.bool_)
        for manifest in np.unique(ids):
            if manifest in places:
                of_leaf = ids == manifest
                found[of_leaf] = np.take(mask(int(manifest)), rows[of_leaf], mode="clip")
        yield pa.array(found)


def mask_bytes(vectors: pa.Table) -> int:
    """What the masks of some leaves take: a bit for each entry."""
    return int(pc.sum(vectors.column("leaf_entries")).as_py() or 0) // 8


def checked_ordinals(spark: SparkSession, vectors: pa.Table, reader: ExecutorReader | Files | None) -> DataFrame:
    """As `masked_ordinals`, but what is wrong is a row with a `problem`: `CHECKED_SCHEMA`."""
    return _exploded(spark, vectors, reader, _checked_ordinals, CHECKED_SCHEMA)


def _exploded(
    spark: SparkSession, vectors: pa.Table, reader: ExecutorReader | Files | None, decode: _Decode, schema: pa.Schema
) -> DataFrame:
    from sparkmeta.manifests.avro.read import schema_of
    from sparkmeta.session import local_frame

    rows = local_frame(spark, vectors)
    stored = [one for one in vectors.column("location").unique().to_pylist() if one]
    if not stored or reader is not None:
        return rows.mapInArrow(partial(_explode, reader, decode), schema_of(schema))
    return _with_content(spark, rows, stored).mapInArrow(partial(_explode_contents, decode), schema_of(schema))


def _with_content(spark: SparkSession, rows: DataFrame, locations: list[str]) -> DataFrame:
    """The rows with `content`, the bytes of their Puffin file."""
    from pyspark.sql import functions as F

    from sparkmeta.session import local_frame
    from sparkmeta.storage.files import binary_files
    from sparkmeta.storage.location import spark_path_key

    keys = pa.table({"location": locations, "path": [spark_path_key(location) for location in locations]})
    contents = binary_files(spark, locations).join(F.broadcast(local_frame(spark, keys)), "path")
    return rows.join(contents.select("location", "content"), "location", "left")


def vector_ordinals(row: dict[str, Any], reader: ExecutorReader | Files) -> Iterator[pa.Array]:
    """What one deletion vector masks, a row of `VECTOR_SCHEMA`; raises CorruptFileError as `masked_ordinals` does."""
    for batch in _ordinals(row, _blob(row, reader)):
        yield batch.column(ORDINAL)


def unmasked(entries: int, row: dict[str, Any], reader: ExecutorReader | Files) -> pa.Array:
    """Which of a leaf's entries its deletion vector, a row of `VECTOR_SCHEMA`, leaves; raises as `vector_ordinals`."""
    left = np.ones(entries, np.bool_)
    for ordinals in vector_ordinals(row, reader):
        places = ordinals.to_numpy()
        if len(places) and places.max() >= entries:
            raise CorruptFileError(row["referenced_file"], ORDINAL, int(places.max()), f"masked, of {entries} entries")
        left[places] = False
    return pa.array(left)


def mask_flags(row: Mapping[str, Any], reader: ExecutorReader | Files) -> np.ndarray[Any, Any]:
    """For each ordinal of a leaf whether its deletion vector, a row of `VECTOR_SCHEMA`, masks it."""
    return _flags(dict(row), _blob(row, reader))


def _blob(row: Mapping[str, Any], reader: ExecutorReader | Files | None) -> bytes:
    if row["inline_content"] is not None:
        return bytes(row["inline_content"])
    assert reader is not None
    return reader.read_range(row["location"], row["offset"], row["size_in_bytes"])


def _explode(
    reader: ExecutorReader | Files | None, decode: _Decode, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for row in batch.to_pylist():
            yield from decode(row, _blob(row, reader))


def _explode_contents(decode: _Decode, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for row in batch.to_pylist():
            blob = row["inline_content"]
            if blob is None:
                if row["content"] is None:
                    raise CorruptFileError(row["location"], "location", row["location"], "Spark has not read the file")
                blob = row["content"][row["offset"] : row["offset"] + row["size_in_bytes"]]
            yield from decode(row, blob)


def _checked_ordinals(row: dict[str, Any], blob: bytes) -> Iterator[pa.RecordBatch]:
    try:
        for batch in _ordinals(row, blob):
            nothing = pa.nulls(len(batch), pa.string())
            yield pa.RecordBatch.from_arrays([*batch.columns, nothing, nothing], schema=CHECKED_SCHEMA)
    except CorruptFileError as error:
        found = {MANIFEST: row[MANIFEST], "value": str(error.value), "problem": f"{error.field}: {error.problem}"}
        yield pa.RecordBatch.from_pylist([found], schema=CHECKED_SCHEMA)


def _flags(row: dict[str, Any], blob: bytes) -> np.ndarray[Any, Any]:
    """For each ordinal of a leaf whether it is masked; the number is rounded up, so that one more at least is not."""
    flags = np.zeros((row["leaf_entries"] // 64 + 1) * 64, np.bool_)
    for batch in _ordinals(row, blob):
        flags[batch.column(ORDINAL).to_numpy()] = True
    return flags


def _mask(row: dict[str, Any], blob: bytes) -> Iterator[pa.RecordBatch]:
    words = np.packbits(_flags(row, blob), bitorder="little").view("<i8")
    arrays = [pa.array([row[MANIFEST]], pa.int32()), pa.array([words], pa.list_(pa.int64()))]
    yield pa.RecordBatch.from_arrays(arrays, schema=MASK_SCHEMA)


def _ordinals(row: dict[str, Any], blob: bytes) -> Iterator[pa.RecordBatch]:
    where = f"{row['location'] or 'inline deletion vector'} of manifest {row['referenced_file']}"
    bitmap = read_inline_vector(blob, where, row["record_count"])
    for positions in bitmap.positions():
        if positions[-1] >= row["leaf_entries"]:
            problem = f"the manifest has {row['leaf_entries']} entries"
            raise CorruptFileError(where, "ordinal", int(positions[-1]), problem)
        manifests = pa.repeat(pa.scalar(row[MANIFEST], pa.int32()), len(positions))
        yield pa.RecordBatch.from_arrays([manifests, pa.array(positions, pa.int64())], schema=MASKED_SCHEMA)
