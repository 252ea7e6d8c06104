"""Deletion vectors of leaf manifests: from bitmaps in a root or in Puffin files to rows (manifest, ordinal)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.errors import CorruptFileError
from sparkmeta.manifests.projection import MANIFEST, ORDINAL
from sparkmeta.spec.bitmap import read_inline_vector
from sparkmeta.storage.ranges import FileRange, RangeReader, read_ranges

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from sparkmeta.manifests.v4.root import Root
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
# Batches of entries whose masks a task asks for together.
_BATCHES_AHEAD = 16

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

        rows = vectors.to_pylist() if files is None else inlined(vectors.to_pylist(), files)
        inline = pa.Table.from_pylist(rows, schema=VECTOR_SCHEMA)
        return map_units(spark, inline, partial(_explode, None, _mask), MASK_SCHEMA, here=True)
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

    # PySpark tells by the annotations what kind of function it is.
    def masked(places: Iterator[tuple[pa.Array, pa.Array]]) -> Iterator[pa.Array]:
        return _look_up(vectors, reader, places)

    of_entry = arrow_udf(spark, masked, "boolean") if vectors.nbytes <= _MOST_SENT else None
    return None if of_entry is None else of_entry(MANIFEST, ORDINAL)


def arrow_udf(spark: SparkSession, function: Callable[..., Any], kind: Any) -> Callable[..., Column] | None:
    """A function of Arrow arrays for columns; None where the client or the server is too old to have such."""
    from pyspark.sql import functions as F

    if not hasattr(F, "arrow_udf") or tuple(map(int, spark.version.split(".")[:2])) < _ARROW_UDFS:
        return None
    udf: Callable[..., Column] = F.arrow_udf(function, kind)
    return udf


def _look_up(
    vectors: pa.Table, reader: RangeReader, batches: Iterator[tuple[pa.Array, pa.Array]]
) -> Iterator[pa.Array]:
    """Whether entries are masked, for batches of `manifest` and `ordinal`, in which a leaf's entries are neighbours."""
    rows = {row[MANIFEST]: row for row in vectors.to_pylist()}
    # The next batches go on with the leaf that the last ones end in.
    last: dict[int, np.ndarray[Any, Any]] = {}
    while ahead := list(islice(batches, _BATCHES_AHEAD)):
        leaves, ordinals = (
            np.concatenate([column.to_numpy() for column in columns]) for columns in zip(*ahead, strict=True)
        )
        masked = np.zeros(len(leaves), np.bool_)
        places = _places_of(leaves)
        unread = [rows[leaf] for leaf in places if leaf in rows and leaf not in last]
        read = ((row[MANIFEST], _flags(row, blob)) for row, blob in _with_blobs(unread, reader))
        for leaf, flags in chain([*last.items()], read):
            of_leaf = places.get(leaf, _NOWHERE)
            masked[of_leaf] = np.take(flags, ordinals[of_leaf], mode="clip")
            last = {leaf: flags} if leaf in leaves[-1:] else last
        yield from map(pa.array, np.split(masked, np.cumsum([len(column) for column, _ in ahead])[:-1]))


_NOWHERE = np.empty(0, np.int64)


def _places_of(values: np.ndarray[Any, Any]) -> dict[int, np.ndarray[Any, Any]]:
    """The places of each value."""
    order = np.argsort(values, kind="stable")
    distinct, starts = np.unique(values[order], return_index=True)
    return dict(zip(distinct.tolist(), np.split(order, starts[1:]), strict=False))


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

    spark_type = schema_of(schema)
    if reader is not None:
        by_place = vectors.sort_by([("location", "ascending"), ("offset", "ascending")])
        return local_frame(spark, by_place).mapInArrow(partial(_explode, reader, decode), spark_type)
    is_inline = vectors.column("inline_content").is_valid()
    inline, stored = vectors.filter(is_inline), vectors.filter(pc.invert(is_inline))
    exploded = local_frame(spark, inline).mapInArrow(partial(_explode, None, decode), spark_type)
    if not len(stored):
        return exploded
    files = _with_content(spark, stored).mapInArrow(partial(_explode_files, decode), spark_type)
    return exploded.unionByName(files) if len(inline) else files


def _with_content(spark: SparkSession, vectors: pa.Table) -> DataFrame:
    """The Puffin files of vectors, a row each: `content`, its bytes, and `vectors`, those that it holds."""
    from pyspark.sql import functions as F

    from sparkmeta.session import local_frame
    from sparkmeta.storage.files import binary_files
    from sparkmeta.storage.location import spark_path_key

    by_file = vectors.sort_by("location").combine_chunks()
    locations = by_file.column("location").unique().to_pylist()
    counts = by_file.column("location").value_counts()
    ends = np.cumsum(counts.field("counts").to_numpy())
    lists = pa.ListArray.from_arrays(
        pa.array(np.concatenate([[0], ends]), pa.int32()), by_file.to_struct_array().combine_chunks()
    )
    paths = [spark_path_key(location) for location in locations]
    files = local_frame(spark, pa.table({"path": paths, "vectors": lists}))
    # `binary_files` raises an error for a file that Spark does not read: none is lost in the join.
    return binary_files(spark, locations).join(F.broadcast(files), "path").select("content", "vectors")


def inlined(vectors: Sequence[Mapping[str, Any]], reader: RangeReader) -> list[dict[str, Any]]:
    """Vectors, rows of `VECTOR_SCHEMA`, with all bitmaps inline: of as many as memory holds."""
    return [{**row, "inline_content": blob} for row, blob in _with_blobs(vectors, reader)]


def unmasked(entries: int, row: Mapping[str, Any]) -> pa.Array:
    """Which of a leaf's entries its deletion vector leaves.

    Args:
        entries: the number of entries that the leaf has.
        row: the vector, `inlined`.

    Raises:
        CorruptFileError: as of `masked_ordinals`.
    """
    left = np.ones(entries, np.bool_)
    for batch in _ordinals(row, row["inline_content"]):
        places = batch.column(ORDINAL).to_numpy()
        if len(places) and places.max() >= entries:
            raise CorruptFileError(row["referenced_file"], ORDINAL, int(places.max()), f"masked, of {entries} entries")
        left[places] = False
    return pa.array(left)


def mask_flags(row: Mapping[str, Any], reader: RangeReader) -> np.ndarray[Any, Any]:
    """For each ordinal of a leaf whether its deletion vector, a row of `VECTOR_SCHEMA`, masks it."""
    ((_, blob),) = _with_blobs([row], reader)
    return _flags(row, blob)


_Vector = TypeVar("_Vector", bound=Mapping[str, Any])


def _with_blobs(vectors: Sequence[_Vector], reader: RangeReader | None) -> Iterator[tuple[_Vector, bytes]]:
    """Vectors with their bitmaps as bytes, the inline ones first. reader: None where all are inline."""
    stored = [row for row in vectors if row["inline_content"] is None]
    yield from ((row, row["inline_content"]) for row in vectors if row["inline_content"] is not None)
    if stored:
        assert reader is not None
        ranges = [FileRange(row["location"], row["offset"], row["size_in_bytes"]) for row in stored]
        yield from ((stored[place], blob) for place, blob in read_ranges(reader, ranges))


def _explode(
    reader: RangeReader | None, decode: _Decode, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for row, blob in _with_blobs(batch.to_pylist(), reader):
            yield from decode(row, blob)


def _explode_files(decode: _Decode, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for contents, vectors in zip(*map(batch.column, ("content", "vectors")), strict=True):
            content = contents.as_buffer()
            for row in vectors.as_py():
                yield from decode(row, content[row["offset"] : row["offset"] + row["size_in_bytes"]].to_pybytes())


def _checked_ordinals(row: dict[str, Any], blob: bytes) -> Iterator[pa.RecordBatch]:
    try:
        for batch in _ordinals(row, blob):
            nothing = pa.nulls(len(batch), pa.string())
            yield pa.RecordBatch.from_arrays([*batch.columns, nothing, nothing], schema=CHECKED_SCHEMA)
    except CorruptFileError as error:
        found = {MANIFEST: row[MANIFEST], "value": str(error.value), "problem": f"{error.field}: {error.problem}"}
        yield pa.RecordBatch.from_pylist([found], schema=CHECKED_SCHEMA)


def _flags(row: Mapping[str, Any], blob: bytes) -> np.ndarray[Any, Any]:
    """For each ordinal of a leaf whether it is masked; the number is rounded up, so that one more at least is not."""
    flags = np.zeros((row["leaf_entries"] // 64 + 1) * 64, np.bool_)
    for batch in _ordinals(row, blob):
        flags[batch.column(ORDINAL).to_numpy()] = True
    return flags


def _mask(row: dict[str, Any], blob: bytes) -> Iterator[pa.RecordBatch]:
    words = np.packbits(_flags(row, blob), bitorder="little").view("<i8")
    arrays = [pa.array([row[MANIFEST]], pa.int32()), pa.array([words], pa.list_(pa.int64()))]
    yield pa.RecordBatch.from_arrays(arrays, schema=MASK_SCHEMA)


def _ordinals(row: Mapping[str, Any], blob: bytes) -> Iterator[pa.RecordBatch]:
    where = f"{row['location'] or 'inline deletion vector'} of manifest {row['referenced_file']}"
    bitmap = read_inline_vector(blob, where, row["record_count"])
    for positions in bitmap.positions():
        if positions[-1] >= row["leaf_entries"]:
            problem = f"the manifest has {row['leaf_entries']} entries"
            raise CorruptFileError(where, "ordinal", int(positions[-1]), problem)
        manifests = pa.repeat(pa.scalar(row[MANIFEST], pa.int32()), len(positions))
        yield pa.RecordBatch.from_arrays([manifests, pa.array(positions, pa.int64())], schema=MASKED_SCHEMA)
