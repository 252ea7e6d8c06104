"""Find other tables that share a location, by their metadata files."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.errors import FileAccessError, NotFoundError, ValidationError
from sparkmeta.maintain.orphans.prefixes import Folder
from sparkmeta.operations.metadata_files import METADATA, METADATA_FILE
from sparkmeta.session import local_frame, map_arrow, materialize
from sparkmeta.storage.executors import ExecutorReader
from sparkmeta.storage.location import file_name, join, parents, path_of
from sparkmeta.storage.ranges import read_ahead
from sparkmeta.storage.walking import WALKED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.operations.base_table import BaseTable

# Bytes at the beginning of a metadata file that have the table's uuid, if one of the usual libraries wrote it.
_HEAD_BYTES = 1 << 16
_UUID = re.compile(rb'"table-uuid"\s*:\s*"([^"]+)"')
_IS_GZIP = b"\x1f\x8b"

# Most metadata files of other tables to name.
_NAMED = 3

_UUIDS = pa.schema([pa.field("path", pa.string()), pa.field("table_uuid", pa.string())])


class OtherTables(NamedTuple):
    """Other tables that share a location.

    Attributes:
        below: the folders of tables below the location: rows of `key`, a path with a slash at its end.
        in_it: some metadata files of tables whose folder is the location or above it, or the table's own folder.
    """

    below: DataFrame
    in_it: list[str]


def other_tables(table: BaseTable, reader: ExecutorReader, folder: Folder, listed: DataFrame) -> OtherTables:
    """Find the other tables whose folders are below a folder or above it. Runs jobs.

    A table's folder is the one above `metadata`. In the table's own folder, and in those that contain `folder`,
    metadata files with another uuid or without one are another table's, unless the table's log names them. So is the
    current metadata file at another path, as in a copy of the table.

    Args:
        table: the table.
        reader: opens files in tasks.
        folder: the folder.
        listed: the files below it: rows of `path`.
    """
    spark = table.state.spark
    logged = [entry.metadata_file for entry in table.metadata.metadata_log] + [table.metadata_location]
    own_keys = sorted({path_of(location) for location in logged})
    # The folder itself too, since an inventory may be older than its newest metadata file.
    above = [join(parent, METADATA) for parent in (folder.location, *parents(folder.location))]
    siblings = map_arrow(local_frame(spark, pa.table([above], ["path"])), _MetadataFolders(reader), WALKED)
    is_metadata = F.col("path").contains(".metadata.json") & F.col("path").rlike(METADATA_FILE)
    named = listed.select("path").where(is_metadata).union(siblings.select("path"))
    named = named.withColumn("key", folder.key_of(F.col("path"))).dropDuplicates(["key"])
    keys = local_frame(spark, pa.table([own_keys], ["key"]))
    files = materialize(named.join(F.broadcast(keys), "key", "left_anti").withColumn("table", _table_key()))
    _refuse_copy(table, files)
    own_tables = {join(path_of(table.metadata.location), ""), _folder_of(path_of(table.metadata_location))}
    holds = F.lit(folder.key).startswith(F.col("table")) | F.col("table").isin(sorted(own_tables))
    uuids = map_arrow(files.where(holds).select("path"), _UuidReader(reader), _UUIDS)
    is_other = F.substring_index("path", "/", -1) == file_name(table.metadata_location)
    if table.metadata.table_uuid is not None:
        # Metadata of version 1 may have no uuid.
        is_other |= ~F.lower("table_uuid").eqNullSafe(str(table.metadata.table_uuid))
    in_it = [row.path for row in uuids.where(is_other).limit(_NAMED).collect()]
    return OtherTables(files.where(~holds).select(F.col("table").alias("key")).distinct(), in_it)


def _refuse_copy(table: BaseTable, files: DataFrame) -> None:
    """Raise ValidationError if the table's location has its current metadata file, and it was opened elsewhere.

    Args:
        table: the table.
        files: metadata files that the table does not name: rows of `path` and `key`.
    """
    opened = table.metadata_location
    at_location = join(join(path_of(table.metadata.location), METADATA), file_name(opened))
    for row in files.where(F.col("key") == at_location).limit(1).collect():
        problem = f"it was opened by {opened}, and its location has this file as {row.path}: open the table there"
        raise ValidationError(f"{table.full_name}: {problem}")


def refuse_shared(table: BaseTable, location: str, metadata_files: list[str]) -> None:
    """Raise ValidationError if there are metadata files of other tables that share a location."""
    if metadata_files:
        problem = f"another table shares {location}, and its files would be deleted"
        raise ValidationError(
            f"{table.full_name}: {problem}: it has {', '.join(metadata_files)}; the option shared_location permits it"
        )


def _table_key() -> Any:
    """Return the folder of the table that has a metadata file, by the file's `key`."""
    return F.regexp_extract("key", rf"(?s)^(.*?/)(?:{METADATA}/)?[^/]*$", 1)


def _folder_of(key: str) -> str:
    folder = key.rpartition("/")[0]
    return join(folder.removesuffix(f"/{METADATA}"), "")


@dataclass(frozen=True)
class _MetadataFolders:
    """Lists the metadata files directly in folders, and passes over those that it may not list. Picklable."""

    reader: ExecutorReader

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for folder in batch.column("path").to_pylist():
                with suppress(FileAccessError):
                    for files in self.reader.walk(folder, recursive=False):
                        names = pc.match_substring_regex(files.column("path"), METADATA_FILE)
                        yield files.filter(names)


@dataclass(frozen=True)
class _UuidReader:
    """Reads the uuids of tables from their metadata files; null for a file without. Picklable.

    Files that are gone, or cut short before they say anything, are passed over.
    """

    reader: ExecutorReader

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            texts = read_ahead(batch.to_pylist(), self._text, lambda _: _HEAD_BYTES)
            read = [(row["path"], text) for row, text in texts if text is not None]
            rows = [{"path": path, "table_uuid": _uuid(text)} for path, text in read if _is_metadata(text)]
            yield pa.RecordBatch.from_pylist(rows, schema=_UUIDS)

    def _text(self, row: Mapping[str, Any]) -> bytes | None:
        """Return a metadata file up to its uuid or its end; None if it is gone."""
        try:
            head = _inflated(self.reader.read_range(row["path"], 0, _HEAD_BYTES))
            return head if _uuid(head) is not None else _inflated(self.reader.read(row["path"]))
        except NotFoundError:
            return None


def _is_metadata(text: bytes) -> bool:
    return _uuid(text) is not None or b'"format-version"' in text


def _uuid(text: bytes) -> str | None:
    match = _UUID.search(text)
    return None if match is None else match[1].decode()


def _inflated(data: bytes) -> bytes:
    """Return the content of a file, of a gzip file as far as `data` holds it."""
    if not data.startswith(_IS_GZIP):
        return data
    with suppress(zlib.error):
        return zlib.decompressobj(31).decompress(data)
    return b""
