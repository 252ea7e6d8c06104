"""Apply deletion vectors of manifests: bitmaps of removed entries of a leaf, stored in a root or in Puffin files.

If leaves are decoded from their bytes, a bitmap becomes an array of flags (`mask_flags`). If Spark reads the leaves
(`without_masked`), small bitmaps are broadcast as bits. Otherwise, tasks open the bitmaps that their entries need. If
tasks can't open files, an anti-join removes masked ordinals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.entries.projection import MANIFEST, ORDINAL
from sparkmeta.errors import CorruptFileError
from sparkmeta.expr.arrays import indices_where, kept_rows
from sparkmeta.manifests.placement import MOST_REQUESTS
from sparkmeta.session import local_frame, map_arrow
from sparkmeta.spec.bitmap import read_inline_vector
from sparkmeta.storage.content import FileRange, RangeReader, read_ranges

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from sparkmeta.manifests.v4.root import Root
    from sparkmeta.storage.executors import ExecutorReader
    from sparkmeta.storage.files import FileAccess, Files

# A manifest DV: the leaf, where the bitmap is, its cardinality, and the number of the leaf's entries.
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

# The columns of MASKED_SCHEMA, or the problem of an unreadable deletion vector or an ordinal out of range.
CHECKED_SCHEMA = pa.schema([*MASKED_SCHEMA, pa.field("value", pa.string()), pa.field("problem", pa.string())])

_MASK, _MASKED_LEAF = "mask", "_masked_leaf"
# Maximum bytes of masks that the driver builds.
_DRIVER_MASKS = 1 << 20
# The first version of Spark with Arrow UDFs.
_ARROW_UDFS = (4, 1)
# Maximum bytes of deletion vectors, with inline bitmaps, that are sent to each task.
_MOST_SENT = 16 << 20
# Batches of entries whose masks a task reads together.
_BATCHES_AHEAD = 16

# Turns a deletion vector, a row of `DV_SCHEMA`, and its blob into rows.
_Decode = Callable[[dict[str, Any], bytes], Iterator[pa.RecordBatch]]


def manifest_dvs(root: Root) -> pa.Table:
    """Return the live manifest DVs of a root as `DV_SCHEMA`; `manifest` is the leaf's ordinal."""
    entries, leaves = root.manifest_dvs, root.leaves
    # Two leaves may share a location: a leaf, and the leaf of the deletion vectors in its entries.
    masks = pc.index_in(leaves.column("location"), entries.column("referenced_file").combine_chunks())
    leaf_rows, entries = indices_where(masks.is_valid()), entries.take(masks.drop_null())
    blobs = entries.column("deletion_vector")
    columns = {
        MANIFEST: leaves.column("ordinal").take(leaf_rows),
        "leaf_entries": leaves.column("record_count").take(leaf_rows),
        **{name: entries.column(name) for name in ("referenced_file", "location", "record_count")},
        **{name: pc.struct_field(blobs, name) for name in ("offset", "size_in_bytes", "inline_content")},
    }
    arrays = [columns[field.name].cast(field.type) for field in DV_SCHEMA]
    return pa.Table.from_arrays(arrays, schema=DV_SCHEMA)


def dv_row(manifest: int, leaf: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of `DV_SCHEMA` with any id as `manifest`, from the entries of a leaf and its deletion vector."""
    return {
        MANIFEST: manifest,
        "referenced_file": leaf["location"],
        "location": entry["location"],
        **entry["deletion_vector"],
        "record_count": entry["record_count"],
        "leaf_entries": leaf["record_count"],
    }


# -- Masks over rows that Spark reads ---------------------------------------------------------------------------------


def few_masks(dvs: pa.Table, access: FileAccess) -> bool:
    """Return whether the driver builds masks faster than tasks would."""
    stored = dvs.column("inline_content").null_count
    mask_bytes = int(pc.sum(dvs.column("leaf_entries")).as_py() or 0) // 8
    allowed = MOST_REQUESTS if access.driver is not None else 0
    return mask_bytes <= access.limit(_DRIVER_MASKS) and stored <= access.limit(allowed)


def without_masked(entries: DataFrame, dvs: pa.Table, access: FileAccess) -> DataFrame:
    """Return entries without those that deletion vectors, rows of `DV_SCHEMA`, mask.

    If the masks are few and small, the driver builds them when this is called; otherwise this is lazy.

    Raises:
        CorruptFileError: see `masked_ordinals`; for few masks, when this is called.
    """
    from pyspark.sql import functions as F

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
    """Return a row for each leaf. `mask` has 64-bit words, lowest bit first, with the bits of masked ordinals set."""
    masks = [(row[MANIFEST], _flags(row, blob)) for row, blob in _with_blobs(dvs.to_pylist(), reader)]
    words = [np.packbits(flags, bitorder="little").view("<i8") for _, flags in masks]
    leaves = pa.array([manifest for manifest, _ in masks], pa.int32())
    return pa.table({_MASKED_LEAF: leaves, _MASK: pa.array(words, pa.list_(pa.int64()))})


def masked_by_tasks(spark: SparkSession, dvs: pa.Table, reader: ExecutorReader) -> Column | None:
    """Return a column that tells whether an entry is masked, over rows with `manifest` and `ordinal`.

    A task opens only the deletion vectors of leaves whose entries it gets. The result is None if Spark has no Arrow
    UDFs, or if the deletion vectors are too large to be sent to every task.
    """

    # PySpark infers the kind of function from the annotations.
    def masked(batches: Iterator[tuple[pa.Array, pa.Array]]) -> Iterator[pa.Array]:
        return _look_up(dvs, reader, batches)

    is_masked = arrow_udf(spark, masked, "boolean") if dvs.nbytes <= _MOST_SENT else None
    return None if is_masked is None else is_masked(MANIFEST, ORDINAL)


def arrow_udf(spark: SparkSession, function: Callable[..., Any], kind: Any) -> Callable[..., Column] | None:
    """Return a UDF over Arrow arrays; None if the client or the server is too old."""
    from pyspark.sql import functions as F

    if not hasattr(F, "arrow_udf") or tuple(map(int, spark.version.split(".")[:2])) < _ARROW_UDFS:
        return None
    udf: Callable[..., Column] = F.arrow_udf(function, kind)
    return udf


def _look_up(dvs: pa.Table, reader: RangeReader, batches: Iterator[tuple[pa.Array, pa.Array]]) -> Iterator[pa.Array]:
    """Yield whether entries are masked, for batches of `manifest` and `ordinal` with adjacent entries of a leaf."""
    rows = {row[MANIFEST]: row for row in dvs.to_pylist()}
    # The flags of the last leaf, since the next batches may continue with it.
    last_flags: dict[int, np.ndarray[Any, Any]] = {}
    while ahead := list(islice(batches, _BATCHES_AHEAD)):
        leaves, ordinals = (
            np.concatenate([column.to_numpy() for column in columns]) for columns in zip(*ahead, strict=True)
        )
        masked = np.zeros(len(leaves), np.bool_)
        rows_of_leaves = _rows_by_value(leaves)
        unread = [rows[leaf] for leaf in rows_of_leaves if leaf in rows and leaf not in last_flags]
        unread_flags = ((row[MANIFEST], _flags(row, blob)) for row, blob in _with_blobs(unread, reader))
        for leaf, flags in chain([*last_flags.items()], unread_flags):
            rows_of_leaf = rows_of_leaves.get(leaf, _NO_ROWS)
            masked[rows_of_leaf] = np.take(flags, ordinals[rows_of_leaf], mode="clip")
            last_flags = {leaf: flags} if leaf in leaves[-1:] else last_flags
        yield from map(pa.array, np.split(masked, np.cumsum([len(column) for column, _ in ahead])[:-1]))


_NO_ROWS = np.empty(0, np.int64)


def _rows_by_value(values: np.ndarray[Any, Any]) -> dict[int, np.ndarray[Any, Any]]:
    """Return the indices of each value."""
    order = np.argsort(values, kind="stable")
    distinct, starts = np.unique(values[order], return_index=True)
    return dict(zip(distinct.tolist(), np.split(order, starts[1:]), strict=False))


# -- Masked entries as rows -------------------------------------------------------------------------------------------


def masked_ordinals(spark: SparkSession, dvs: pa.Table, reader: ExecutorReader | Files | None) -> DataFrame:
    """Return the entries that deletion vectors mask, as a lazy DataFrame of `manifest`, `ordinal`.

    Args:
        spark: the session.
        dvs: rows of `DV_SCHEMA`.
        reader: opens Puffin files in tasks; None if only Spark's sources can.

    Raises:
        CorruptFileError: when it runs: a bitmap is invalid, has another cardinality than its entry says, or masks an
            entry that the leaf does not have.
    """
    return _exploded(spark, dvs, reader, _ordinals, MASKED_SCHEMA)


def checked_ordinals(spark: SparkSession, dvs: pa.Table, reader: ExecutorReader | Files | None) -> DataFrame:
    """Return masked entries, and rows with a `problem` instead of errors, as `CHECKED_SCHEMA`."""
    return _exploded(spark, dvs, reader, _checked_ordinals, CHECKED_SCHEMA)


def checked_ordinals_table(dvs: pa.Table, reader: RangeReader | None) -> pa.Table:
    """Return the rows of `checked_ordinals`, read on the driver."""
    return pa.Table.from_batches(_explode(reader, _checked_ordinals, dvs.to_batches()), CHECKED_SCHEMA)


def _exploded(
    spark: SparkSession, dvs: pa.Table, reader: ExecutorReader | Files | None, decode: _Decode, schema: pa.Schema
) -> DataFrame:
    from sparkmeta.arrow_types import spark_schema

    row_type = spark_schema(schema)
    if reader is not None:
        by_location = dvs.sort_by([("location", "ascending"), ("offset", "ascending")])
        return map_arrow(local_frame(spark, by_location), partial(_explode, reader, decode), row_type)
    is_inline = dvs.column("inline_content").is_valid()
    inline, stored = dvs.filter(is_inline), dvs.filter(pc.invert(is_inline))
    exploded = map_arrow(local_frame(spark, inline), partial(_explode, None, decode), row_type)
    if not len(stored):
        return exploded
    files = map_arrow(_with_content(spark, stored), partial(_explode_files, decode), row_type)
    return exploded.unionByName(files) if len(inline) else files


def _with_content(spark: SparkSession, dvs: pa.Table) -> DataFrame:
    """Return a row for each Puffin file, with `content` and its deletion vectors, `dvs`."""
    from sparkmeta.storage.reading import with_content

    by_file = dvs.sort_by("location").combine_chunks()
    locations = by_file.column("location").unique().to_pylist()
    counts = by_file.column("location").value_counts()
    ends = np.cumsum(counts.field("counts").to_numpy())
    lists = pa.ListArray.from_arrays(
        pa.array(np.concatenate([[0], ends]), pa.int32()), by_file.to_struct_array().combine_chunks()
    )
    return with_content(spark, pa.table({"location": locations, "dvs": lists})).select("content", "dvs")


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


# -- Masks over rows in memory ----------------------------------------------------------------------------------------


def inlined(dvs: Sequence[Mapping[str, Any]], reader: RangeReader) -> list[dict[str, Any]]:
    """Return deletion vectors, rows of `DV_SCHEMA`, with all bitmaps read into memory."""
    return [{**row, "inline_content": blob} for row, blob in _with_blobs(dvs, reader)]


def unmasked(entries: int, dv: Mapping[str, Any]) -> pa.Array:
    """Return whether each entry of a leaf is not masked by the leaf's deletion vector.

    Args:
        entries: the number of the leaf's entries.
        dv: the deletion vector, `inlined`.

    Raises:
        CorruptFileError: see `masked_ordinals`.
    """
    flags = _flags(dv, dv["inline_content"])
    masked = np.concatenate([flags, np.zeros(max(0, entries - len(flags)), np.bool_)])
    if masked[entries:].any():
        last = int(np.flatnonzero(masked)[-1])
        raise CorruptFileError(dv["referenced_file"], ORDINAL, last, f"masked, of {entries} entries")
    return pa.array(~masked[:entries])


def unmasked_entries(entries: pa.Table, dv: Mapping[str, Any], *, some: bool = False) -> pa.Table:
    """Return the entries of a leaf that its deletion vector does not mask; see `unmasked`.

    Args:
        entries: entries with their `ordinal`, in its order.
        dv: the deletion vector, `inlined`.
        some: whether the leaf may have further entries.
    """
    ordinals = entries.column(ORDINAL).to_numpy()
    count = int(ordinals[-1]) + 1 if len(ordinals) else 0
    flags = unmasked(max(count, dv["leaf_entries"]) if some else count, dv)
    return kept_rows(entries, flags.take(pa.array(ordinals)))


def mask_flags(dv: Mapping[str, Any], reader: RangeReader) -> np.ndarray[Any, Any]:
    """Return whether each ordinal of a leaf is masked by its deletion vector, a row of `DV_SCHEMA`."""
    ((_, blob),) = _with_blobs([dv], reader)
    return _flags(dv, blob)


_DV = TypeVar("_DV", bound=Mapping[str, Any])


def _with_blobs(dvs: Sequence[_DV], reader: RangeReader | None) -> Iterator[tuple[_DV, bytes]]:
    """Yield deletion vectors with their bitmaps as bytes, the inline ones first.

    Args:
        reader: None if all are inline.
    """
    stored = [row for row in dvs if row["inline_content"] is None]
    yield from ((row, row["inline_content"]) for row in dvs if row["inline_content"] is not None)
    if stored:
        assert reader is not None
        ranges = [FileRange(row["location"], row["offset"], row["size_in_bytes"]) for row in stored]
        yield from ((stored[index], blob) for index, blob in read_ranges(reader, ranges))


def _flags(row: Mapping[str, Any], blob: bytes) -> np.ndarray[Any, Any]:
    """Return whether each ordinal of a leaf is masked, padded to a multiple of 64 with at least one more flag."""
    flags = np.zeros((row["leaf_entries"] // 64 + 1) * 64, np.bool_)
    for batch in _ordinals(row, blob):
        flags[batch.column(ORDINAL).to_numpy()] = True
    return flags


def _ordinals(row: Mapping[str, Any], blob: bytes) -> Iterator[pa.RecordBatch]:
    source = f"{row['location'] or 'inline deletion vector'} of manifest {row['referenced_file']}"
    bitmap = read_inline_vector(blob, source, row["record_count"])
    for positions in bitmap.positions():
        if positions[-1] >= row["leaf_entries"]:
            problem = f"the manifest has {row['leaf_entries']} entries"
            raise CorruptFileError(source, "ordinal", int(positions[-1]), problem)
        manifests = pa.repeat(pa.scalar(row[MANIFEST], pa.int32()), len(positions))
        yield pa.RecordBatch.from_arrays([manifests, pa.array(positions, pa.int64())], schema=MASKED_SCHEMA)
