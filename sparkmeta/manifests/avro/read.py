"""Avro manifests read by Spark tasks: each task opens its share of the manifests and decodes it into Arrow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sparkmeta.errors import CorruptFileError
from sparkmeta.manifests.avro.container import Data, Windows
from sparkmeta.manifests.avro.decode import decode_manifest
from sparkmeta.manifests.parts import ManifestPart, part_of
from sparkmeta.manifests.projection import EntryProjection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sparkmeta.manifests.cache.write import CacheWriter
    from sparkmeta.storage.files import ExecutorReader, Files

# A longer manifest is never held as a whole.
_LONG_BYTES = 32 << 20


def read_avro_entries(
    spark: SparkSession,
    parts: pa.Table,
    projection: EntryProjection,
    reader: Files | ExecutorReader | None,
    writer: CacheWriter | None = None,
    *,
    here: bool = False,
) -> DataFrame:
    """The entries of the manifest parts as a lazy DataFrame of `projection.schema`, every physical row included.

    reader: opens files on executors, or here; None where only Spark's own sources can reach them. writer: keeps what a
    task has read to the end in the manifest cache. here: decoded at once, by threads of this process.
    """
    if reader is None:
        decode_content = partial(decode_contents, decode_manifest, projection)
        return with_content(spark, parts).mapInArrow(decode_content, spark_schema(projection))
    from sparkmeta.session import map_units

    decode = partial(_decode_fetched, projection, reader, writer)
    return map_units(spark, parts, decode, projection.schema, here=here)


def spark_schema(projection: EntryProjection) -> Any:
    """The projection's row type as Spark's."""
    return schema_of(projection.schema)


def schema_of(schema: pa.Schema) -> Any:
    """An Arrow schema as Spark's; timestamps without a zone stay so."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def with_content(spark: SparkSession, parts: pa.Table) -> DataFrame:
    """The parts with the bytes of their manifests in `content`, read by Spark's binaryFile source.

    An outer join: a file whose path Spark spells in a way that matches no part must be seen, not dropped.
    """
    from pyspark.sql import functions as F

    from sparkmeta.session import local_frame
    from sparkmeta.storage.files import binary_files
    from sparkmeta.storage.location import spark_path_key

    locations = parts.column("location").unique().to_pylist()
    keys = pa.array([spark_path_key(location) for location in parts.column("location").to_pylist()])
    units = local_frame(spark, parts.append_column("path", keys))
    files = binary_files(spark, locations).select("path", "content")
    found = files.join(F.broadcast(units), "path", "left")
    split = len(parts) > len(locations)
    return found.repartition(len(parts), "manifest", "part") if split else found


def _decode_fetched(
    projection: EntryProjection,
    reader: Files | ExecutorReader,
    writer: CacheWriter | None,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for row in batch.to_pylist():
            yield from decode_row(row, projection, reader, writer)


def decode_row(
    row: Mapping[str, Any],
    projection: EntryProjection,
    reader: Files | ExecutorReader,
    writer: CacheWriter | None = None,
) -> Iterator[pa.RecordBatch]:
    """The entries of a manifest's part, a row of `PART_SCHEMA`. writer: keeps what was read to the end."""
    data, part = open_manifest(reader, row), part_of(row)
    yield from decode_manifest(data, part, projection)
    if writer is not None:
        writer.keep(data, part)


def open_manifest(reader: Files | ExecutorReader, row: Mapping[str, Any]) -> Data:
    """The bytes of a manifest: all of them, or of a long one a window at a time."""
    location = row["location"]
    if (row["file_size_in_bytes"] or 0) <= _LONG_BYTES:
        return reader.read(location)
    return Windows(partial(reader.read_range, location), reader.length(location), location)


def decode_contents(
    decode: Callable[[Any, ManifestPart, EntryProjection], Iterable[pa.RecordBatch]],
    projection: EntryProjection,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """The entries of manifests in rows of `with_content`."""
    for batch in batches:
        contents = batch.column("content")
        for index, row in enumerate(batch.drop_columns(["content"]).to_pylist()):
            if row["manifest"] is None:
                raise CorruptFileError(row["path"], "path", row["path"], "Spark read a file that no manifest names")
            yield from decode(memoryview(contents[index].as_buffer()).cast("B"), part_of(row), projection)
