"""Avro manifests read through the manifest cache: from leaves, by Spark or by tasks of ours, where they are there; the
others are decoded and then kept."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sparkmeta.columns import sql
from sparkmeta.columns.sql import Sql
from sparkmeta.errors import SettingError, shown
from sparkmeta.manifests.avro.read import decode_row, read_avro_entries, schema_of
from sparkmeta.manifests.cache.decode import decode_leaf
from sparkmeta.manifests.cache.folder import ManifestCache
from sparkmeta.manifests.cache.layout import CacheTypes
from sparkmeta.manifests.cache.write import CacheWriter
from sparkmeta.manifests.parts import part_of
from sparkmeta.manifests.projection import CONTENT_STATS, MANIFEST, ORDINAL, PARTITION, EntryProjection
from sparkmeta.manifests.v4.spark import read_leaves, version_info
from sparkmeta.settings import PREFIX
from sparkmeta.spec.entry import ROW_ID_OFFSET
from sparkmeta.storage.files import ExecutorReader, ExecutorWriter, Files, IOFiles, files_for
from sparkmeta.storage.location import scheme

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CACHED_LEAF = "cached_leaf"
"""The column, beside those of `PART_SCHEMA`, of the leaf that has a part's entries."""

_log = logging.getLogger(__name__)


def open_cache(
    spark: SparkSession,
    folder: str,
    files: Files,
    reader: ExecutorReader | None,
    stats: Mapping[int, str],
    partition: Mapping[int, str],
) -> ManifestCache:
    """The cache in a folder, which the table's FileIO opens where it is on no disk of this machine.

    files, reader: what opens the table's files, on the driver and in tasks. stats, partition: the Iceberg types of the
    table's columns, and of its partition fields, by id. Leaves are written where tasks open files themselves.

    Raises SettingError for a relative path, which would be another folder on each machine.
    """
    if not scheme(folder) and not folder.startswith("/"):
        problem = "it takes an absolute path, or a location with a scheme"
        raise SettingError(f"{PREFIX}manifest-cache is {shown(folder)}: {problem}")
    io = files.io if isinstance(files, IOFiles) else None
    writer = None
    if reader is not None:
        types = CacheTypes("", stats, partition)
        writer = CacheWriter(folder, types, reader, ExecutorWriter(reader.io_properties))
    return ManifestCache(folder, files_for(spark, folder, io), writer)


def leaves_of(
    parts: pa.Table, projection: EntryProjection, cache: ManifestCache, lengths: Mapping[int, int]
) -> pa.Array:
    """For each row of `PART_SCHEMA` the location of the leaf that has its entries, or null.

    lengths: of the manifests, by their small ids. A cache that can't be looked into holds nothing.
    """
    try:
        return pa.array(cache.serving(parts, lengths, projection), pa.string())
    except Exception as error:  # noqa: BLE001  each store's client has errors of its own
        _log.warning("the manifest cache in %s can't be read: %s", cache.folder, error)
        return pa.nulls(len(parts), pa.string())


def read_through_cache(
    spark: SparkSession,
    parts: pa.Table,
    projection: EntryProjection,
    reader: ExecutorReader | None,
    cache: ManifestCache,
    lengths: Mapping[int, int],
) -> list[DataFrame]:
    """As `read_avro_entries`, in as many DataFrames as there are ways to read the parts.

    lengths: of the manifests, by their small ids.
    """
    leaves = leaves_of(parts, projection, cache, lengths)
    frames = []
    if leaves.null_count < len(leaves):
        place = parts.column_names.index("location")
        found = parts.set_column(place, "location", leaves).filter(leaves.is_valid())
        frames.append(read_cached_entries(spark, found, projection))
    if leaves.null_count:
        missing = parts.filter(leaves.is_null())
        frames.append(read_avro_entries(spark, missing, projection, reader, cache.writer))
    return frames


def parts_here(parts: pa.Table, projection: EntryProjection, cache: ManifestCache | None, files: Files) -> pa.Table:
    """The entries of parts, rows of `PART_SCHEMA` with their `cached_leaf`, by threads of this process.

    files: open manifests.
    """
    from sparkmeta.session import map_here

    cached = files if cache is None else cache.files
    return map_here(parts, partial(_decode_parts, projection, cached, files), projection.schema)


def _decode_parts(
    projection: EntryProjection, cached: Files, files: Files, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for row in batch.to_pylist():
            yield from decode_part(row, projection, cached, files)


def decode_part(
    row: Mapping[str, Any],
    projection: EntryProjection,
    cached: Files | ExecutorReader,
    files: Files | ExecutorReader,
    writer: CacheWriter | None = None,
) -> Iterator[pa.RecordBatch]:
    """The entries of a manifest's part, a row of `PART_SCHEMA` with its leaf in the cache, if it has one.

    A leaf that is gone, or that can't be read from here, means decoding the manifest. cached, files: open leaves and
    manifests. writer: keeps what is decoded.
    """
    leaf = row[CACHED_LEAF]
    if leaf is not None and (content := _content(cached, leaf)) is not None:
        yield from decode_leaf(content, part_of(row), projection, leaf)
    else:
        yield from decode_row(row, projection, files, writer)


def _content(files: Files | ExecutorReader, leaf: str) -> bytes | None:
    try:
        return files.read(leaf)
    except Exception as error:  # noqa: BLE001  each store's client has errors of its own
        _log.warning("the manifest cache's leaf %s can't be read: %s", leaf, error)
        return None


def read_cached_entries(spark: SparkSession, leaves: pa.Table, projection: EntryProjection) -> DataFrame:
    """The entries of leaves of the cache as a lazy DataFrame of `projection.schema`, every physical row included.

    leaves: rows of `PART_SCHEMA`, with the leaf for a location. A leaf that was damaged after it was written is an
    error of Spark's that names it.
    """
    read = read_leaves(spark, leaves, schema_of(_read_schema(projection)), ORDINAL)
    columns = [_column(name, read.inherited).alias(name) for name in projection.columns]
    for name, fields in ((PARTITION, projection.partition), (CONTENT_STATS, projection.stats)):
        if fields:
            columns.append(sql.struct(*(sql.col(f"{name}.`{one}`").alias(str(one)) for one, _ in fields)).alias(name))
    return read.frame.selectExpr(*sql.texts([*columns, read.manifest.alias(MANIFEST)]), ORDINAL)


def _read_schema(projection: EntryProjection) -> pa.Schema:
    wanted = EntryProjection.of(
        {*projection.columns, "version_info"}, dict(projection.partition), dict(projection.stats)
    )
    fields = [one.with_nullable(True) for one in wanted.schema if one.name != MANIFEST]
    if "first_row_id" in projection.columns:
        fields.append(pa.field(ROW_ID_OFFSET.name, ROW_ID_OFFSET.type))
    return pa.schema(fields)


def _column(name: str, inherited: Sql) -> Sql:
    if name == "version_info":
        return version_info(inherited, of_version_1=True)
    return _row_id(inherited) if name == "first_row_id" else sql.col(name)


def _row_id(inherited: Sql) -> Sql:
    """As `RowIdCounter` has it: a manifest without a first row id leaves its entries none."""
    start, offset = inherited["first_row_id"], sql.col(ROW_ID_OFFSET.name)
    return sql.when(start.isNotNull(), sql.coalesce(sql.col("first_row_id"), start + offset))
