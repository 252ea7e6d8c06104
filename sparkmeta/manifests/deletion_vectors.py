"""Deletion vectors of manifests: bitmaps, in a root or in Puffin files, of the entries that a leaf no longer has.

They are applied in one of four ways. Where leaves are decoded from their bytes, a bitmap becomes flags (`mask_flags`).
Where Spark reads leaves, few bitmaps are broadcast as bits; of many, tasks open those that their entries need; and
where tasks can't, the masked ordinals are rows of an anti-join (`without_masked`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.errors import CorruptFileError
from sparkmeta.manifests.placement import MOST_REQUESTS
from sparkmeta.manifests.projection import MANIFEST, ORDINAL
from sparkmeta.session import local_frame, spark_schema
from sparkmeta.spec.bitmap import read_inline_vector
from sparkmeta.storage.location import spark_path_key
from sparkmeta.storage.ranges import FileRange, RangeReader, read_ranges
from sparkmeta.storage.reading import binary_files

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from sparkmeta.manifests.v4.root import Root
    from sparkmeta.storage.access import FileAccess
    from sparkmeta.storage.executors import ExecutorReader
    from sparkmeta.storage.files import Files

# A leaf's deletion vector: the leaf, where the bitmap is, how many positions it has and how many the leaf has.
DV_SCHEMA = pa.schema(
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

# As MASKED_SCHEMA; or a deletion vector that can't be read, or an ordinal that its leaf does not have.
CHECKED_SCHEMA = pa.schema([*MASKED_SCHEMA, pa.field("value", pa.string()), pa.field("problem", pa.string())])

_MASK, _MASKED_LEAF = "mask", "_masked_leaf"
# Masks of more bytes are not made on the driver.
_DRIVER_MASKS = 1 << 20
# Spark's version since which there are Arrow UDFs; bytes of deletion vectors, inline bitmaps included, that each task
# gets.
_ARROW_UDFS = (4, 1)
_MOST_SENT = 16 << 20
# Batches of entries whose masks a task asks for together.
_BATCHES_AHEAD = 16

# Turns a deletion vector, a row of `DV_SCHEMA`, and its blob into rows.
_Decode = Callable[[dict[str, Any], bytes], Iterator[pa.RecordBatch]]


def manifest_dvs(root: Root) -> pa.Table:
    """Return the live deletion vectors of the root's leaves, as `DV_SCHEMA`; `manifest` is the leaf's ordinal."""
    entries, leaves = root.manifest_dvs, root.leaves
    places = pc.index_in(entries.column("referenced_file"), leaves.column("location").combine_chunks())
    blobs = entries.column("deletion_vector")
    columns = {
        MANIFEST: leaves.column("ordinal").take(places),
        "leaf_entries": leaves.column("record_count").take(places),
        **{name: entries.column(name) for name in ("referenced_file", "location", "record_count")},
        **{name: pc.struct_field(blobs, name) for name in ("offset", "size_in_bytes", "inline_content")},
    }
    arrays = [columns[field.name].cast(field.type) for field in DV_SCHEMA]
    return pa.Table.from_arrays(arrays, schema=DV_SCHEMA)


def dv_row(manifest: int, leaf: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry of content type 5 and that of its leaf as a row of `DV_SCHEMA`; `manifest` is any id."""
    return {
        MANIFEST: manifest,
        "referenced_file": leaf["location"],
        "location": entry["location"],
        **entry["deletion_vector"],
        "record_count": entry["record_count"],
        "leaf_entries": leaf["record_count"],
    }


# -- over rows that Spark reads ---------------------------------------------------------------------------------------


def few_masks(dvs: pa.Table, access: FileAccess) -> bool:
    """Return whether the driver makes the masks sooner than tasks do."""
    stored = dvs.column("inline_content").null_count
    mask_bytes = int(pc.sum(dvs.column("leaf_entries")).as_py() or 0) // 8
    return mask_bytes <= _DRIVER_MASKS and stored <= (MOST_REQUESTS if access.driver is not None else 0)


def without_masked(entries: DataFrame, dvs: pa.Table, access: FileAccess) -> DataFrame:
    """Leave out the entries that deletion vectors, rows of `DV_SCHEMA`, mask.

    Few masks are made at once, by the driver; else this is lazy.

    Raises:
        CorruptFileError: as `masked_ordinals`; at once for few masks.
    """
    spark = entries.sparkSession
    if few_masks(dvs, access):
        masks = F.broadcast(local_frame(spark, _masks(dvs, access.driver)))
        bit = f"bit_get(get({_MASK}, CAST({ORDINAL} >> 6 AS INT)), CAST({ORDINAL} & 63 AS INT))"
        joined = entries.join(masks, F.expr(f"{MANIFEST} = {_MASKED_LEAF}"), "left")
        return joined.where(f"coalesce({bit}, 0) = 0").drop(_MASK, _MASKED_LEAF)
    by_tasks = None if access.tasks is None else masked_by_tasks(spark, dvs, access.tasks)
    if by_tasks is not None:
        return entries.where(~by_tasks)
    return entries.join(masked_ordinals(spark, dvs, access.tasks), [MANIFEST, ORDINAL], "left_anti")


def _masks(dvs: pa.Table, reader: RangeReader | None) -> pa.Table:
    """Return a row for each leaf: `mask` has 64-bit words, the lowest bit first; masked ordinals are bits set."""
    masks = [(row[MANIFEST], _flags(row, blob)) for row, blob in _with_blobs(dvs.to_pylist(), reader)]
    words = [np.packbits(flags, bitorder="little").view("<i8") for _, flags in masks]
    leaves = pa.array([manifest for manifest, _ in masks], pa.int32())
    return pa.table({_MASKED_LEAF: leaves, _MASK: pa.array(words, pa.list_(pa.int64()))})


def masked_by_tasks(spark: SparkSession, dvs: pa.Table, reader: ExecutorReader) -> Column | None:
    """Return whether an entry is masked, over rows with `manifest` and `ordinal`.

    A task opens the deletion vectors of the leaves whose entries come to it, and no others. None where Spark has no
    Arrow UDFs, and where the deletion vectors themselves are too much for every task to have.
    """

    # PySpark tells by the annotations what kind of function it is.
    def masked(places: Iterator[tuple[pa.Array, pa.Array]]) -> Iterator[pa.Array]:
        return _look_up(dvs, reader, places)

    of_entry = arrow_udf(spark, masked, "boolean") if dvs.nbytes <= _MOST_SENT else None
    return None if of_entry is None else of_entry(MANIFEST, ORDINAL)


def arrow_udf(spark: SparkSession, function: Callable[..., Any], kind: Any) -> Callable[..., Column] | None:
    """Return a function of Arrow arrays for columns; None where the client or the server is too old to have such."""
    if not hasattr(F, "arrow_udf") or tuple(map(int, spark.version.split(".")[:2])) < _ARROW_UDFS:
        return None
    udf: Callable[..., Column] = F.arrow_udf(function, kind)
    return udf


def _look_up(dvs: pa.Table, reader: RangeReader, batches: Iterator[tuple[pa.Array, pa.Array]]) -> Iterator[pa.Array]:
    """Yield whether entries are masked, for batches of `manifest` and `ordinal` in which a leaf's entries adjoin."""
    rows = {row[MANIFEST]: row for row in dvs.to_pylist()}
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
    """Return the places of each value."""
    order = np.argsort(values, kind="stable")
    distinct, starts = np.unique(values[order], return_index=True)
    return dict(zip(distinct.tolist(), np.split(order, starts[1:]), strict=False))


# -- as rows --------------------------------------------------------------------------------------------------------


def masked_ordinals(spark: SparkSession, dvs: pa.Table, reader: ExecutorReader | Files | None) -> DataFrame:
    """Return the entries that deletion vectors mask, as a lazy DataFrame of `manifest`, `ordinal`.

    Args:
        spark: the session.
        dvs: rows of `DV_SCHEMA`.
        reader: opens Puffin files in tasks; None where only Spark's sources can.

    Raises:
        CorruptFileError: when it runs: a bitmap that is none, has another cardinality than its entry says, or masks
            an entry that the leaf does not have.
    """
    return _exploded(spark, dvs, reader, _ordinals, MASKED_SCHEMA)


def checked_ordinals(spark: SparkSession, dvs: pa.Table, reader: ExecutorReader | Files | None) -> DataFrame:
    """As `masked_ordinals`, but what is wrong is a row with a `problem`: `CHECKED_SCHEMA`."""
    return _exploded(spark, dvs, reader, _checked_ordinals, CHECKED_SCHEMA)


def _exploded(
    spark: SparkSession, dvs: pa.Table, reader: ExecutorReader | Files | None, decode: _Decode, schema: pa.Schema
) -> DataFrame:
    row_type = spark_schema(schema)
    if reader is not None:
        by_place = dvs.sort_by([("location", "ascending"), ("offset", "ascending")])
        return local_frame(spark, by_place).mapInArrow(partial(_explode, reader, decode), row_type)
    is_inline = dvs.column("inline_content").is_valid()
    inline, stored = dvs.filter(is_inline), dvs.filter(pc.invert(is_inline))
    exploded = local_frame(spark, inline).mapInArrow(partial(_explode, None, decode), row_type)
    if not len(stored):
        return exploded
    files = _with_content(spark, stored).mapInArrow(partial(_explode_files, decode), row_type)
    return exploded.unionByName(files) if len(inline) else files


def _with_content(spark: SparkSession, dvs: pa.Table) -> DataFrame:
    """Return a row for each Puffin file: `content`, its bytes, and `dvs`, the deletion vectors that it holds."""
    by_file = dvs.sort_by("location").combine_chunks()
    locations = by_file.column("location").unique().to_pylist()
    counts = by_file.column("location").value_counts()
    ends = np.cumsum(counts.field("counts").to_numpy())
    lists = pa.ListArray.from_arrays(
        pa.array(np.concatenate([[0], ends]), pa.int32()), by_file.to_struct_array().combine_chunks()
    )
    paths = [spark_path_key(location) for location in locations]
    files = local_frame(spark, pa.table({"path": paths, "dvs": lists}))
    # `binary_files` raises an error for a file that Spark does not read: none is lost in the join.
    return binary_files(spark, locations).join(F.broadcast(files), "path").select("content", "dvs")


def _explode(
    reader: RangeReader | None, decode: _Decode, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for row, blob in _with_blobs(batch.to_pylist(), reader):
            yield from decode(row, blob)


def _explode_files(decode: _Decode, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for contents, dvs in zip(*map(batch.column, ("content", "dvs")), strict=True):
            content = contents.as_buffer()
            for row in dvs.as_py():
                yield from decode(row, content[row["offset"] : row["offset"] + row["size_in_bytes"]].to_pybytes())


def _checked_ordinals(row: dict[str, Any], blob: bytes) -> Iterator[pa.RecordBatch]:
    try:
        for batch in _ordinals(row, blob):
            nothing = pa.nulls(len(batch), pa.string())
            yield pa.RecordBatch.from_arrays([*batch.columns, nothing, nothing], schema=CHECKED_SCHEMA)
    except CorruptFileError as error:
        problem = {MANIFEST: row[MANIFEST], "value": str(error.value), "problem": f"{error.field}: {error.problem}"}
        yield pa.RecordBatch.from_pylist([problem], schema=CHECKED_SCHEMA)


# -- over rows in memory ----------------------------------------------------------------------------------------------


def inlined(dvs: Sequence[Mapping[str, Any]], reader: RangeReader) -> list[dict[str, Any]]:
    """Return deletion vectors, rows of `DV_SCHEMA`, with all bitmaps inline: of as many as memory holds."""
    return [{**row, "inline_content": blob} for row, blob in _with_blobs(dvs, reader)]


def unmasked(entries: int, dv: Mapping[str, Any]) -> pa.Array:
    """Return which entries of a leaf its deletion vector leaves.

    Args:
        entries: the number of entries that the leaf has.
        dv: the deletion vector, `inlined`.

    Raises:
        CorruptFileError: as `masked_ordinals`.
    """
    flags = _flags(dv, dv["inline_content"])
    masked = np.concatenate([flags, np.zeros(max(0, entries - len(flags)), np.bool_)])
    if masked[entries:].any():
        last = int(np.flatnonzero(masked)[-1])
        raise CorruptFileError(dv["referenced_file"], ORDINAL, last, f"masked, of {entries} entries")
    return pa.array(~masked[:entries])


def mask_flags(dv: Mapping[str, Any], reader: RangeReader) -> np.ndarray[Any, Any]:
    """Return for each ordinal of a leaf whether its deletion vector, a row of `DV_SCHEMA`, masks it."""
    ((_, blob),) = _with_blobs([dv], reader)
    return _flags(dv, blob)


_DV = TypeVar("_DV", bound=Mapping[str, Any])


def _with_blobs(dvs: Sequence[_DV], reader: RangeReader | None) -> Iterator[tuple[_DV, bytes]]:
    """Yield deletion vectors with their bitmaps as bytes, the inline ones first. reader: None where all are inline."""
    stored = [row for row in dvs if row["inline_content"] is None]
    yield from ((row, row["inline_content"]) for row in dvs if row["inline_content"] is not None)
    if stored:
        assert reader is not None
        ranges = [FileRange(row["location"], row["offset"], row["size_in_bytes"]) for row in stored]
        yield from ((stored[place], blob) for place, blob in read_ranges(reader, ranges))


def _flags(row: Mapping[str, Any], blob: bytes) -> np.ndarray[Any, Any]:
    """Return for each ordinal of a leaf whether it is masked; there are at least one more, and 64 words' worth."""
    flags = np.zeros((row["leaf_entries"] // 64 + 1) * 64, np.bool_)
    for batch in _ordinals(row, blob):
        flags[batch.column(ORDINAL).to_numpy()] = True
    return flags


def _ordinals(row: Mapping[str, Any], blob: bytes) -> Iterator[pa.RecordBatch]:
    where = f"{row['location'] or 'inline deletion vector'} of manifest {row['referenced_file']}"
    bitmap = read_inline_vector(blob, where, row["record_count"])
    for positions in bitmap.positions():
        if positions[-1] >= row["leaf_entries"]:
            problem = f"the manifest has {row['leaf_entries']} entries"
            raise CorruptFileError(where, "ordinal", int(positions[-1]), problem)
        manifests = pa.repeat(pa.scalar(row[MANIFEST], pa.int32()), len(positions))
        yield pa.RecordBatch.from_arrays([manifests, pa.array(positions, pa.int64())], schema=MASKED_SCHEMA)
