"""List files, compare their locations, and find other tables by metadata files. Spark tasks import this module."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sparkmeta.entries.relation import (
    FEW_ROWS,
    alike,
    computed,
    first,
    grouped,
    head,
    mapped,
    matching,
    some_columns,
    union,
    where,
    with_columns,
)
from sparkmeta.errors import FileAccessError, NotFoundError, ValidationError, shown
from sparkmeta.expr import sql
from sparkmeta.manifests.sorted_manifests import most_tasks
from sparkmeta.operations.metadata_files import METADATA, METADATA_FILE
from sparkmeta.session import local_frame, map_arrow, map_on_driver, materialize, read_tasks
from sparkmeta.storage.content import read_ahead
from sparkmeta.storage.executors import ExecutorReader
from sparkmeta.storage.location import file_name, is_local, join, parents, parts_of, path_of
from sparkmeta.storage.reading import authority_of, of_text, path_key, scheme_of
from sparkmeta.storage.walk import WALKED, with_status

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyspark.sql import DataFrame, SparkSession

    from sparkmeta.entries.relation import Relation
    from sparkmeta.expr.sql import Sql
    from sparkmeta.operations.table_operations import BaseTable
    from sparkmeta.snapshot.state import TableState


# -- Compare locations of files (semantics 14.3) ----------------------------------------------------------------------
# Locations are compared by path, then by scheme and authority.


_LOCAL = "file"
_EQUAL_SCHEMES = {"s3a": "s3", "s3n": "s3"}


def hidden_pattern(specs: Iterable[PartitionSpec]) -> str:
    """Return a regular expression that finds a hidden name in a path: a name that begins with ``_`` or a dot.

    Names that begin with the name of a partition field and ``=`` are not hidden.
    """
    names = {spec_field.name for spec in specs for spec_field in spec.fields if spec_field.name[:1] in {"_", "."}}
    partitions = "|".join(f"{re.escape(name)}=" for name in sorted(names))
    return f"(?:^|/)(?!{partitions})[._]" if partitions else "(?:^|/)[._]"


@dataclass(frozen=True)
class Folder:
    """A folder to compare the locations of files with.

    Attributes:
        location: the folder.
        schemes: scheme in lower case -> the scheme that it equals. In addition, s3a and s3n equal s3.
        authorities: authority in lower case -> the authority that it equals.
    """

    location: str
    schemes: Mapping[str, str] = field(default_factory=dict)
    authorities: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(
        location: str,
        equal_schemes: Mapping[str, str] | None = None,
        equal_authorities: Mapping[str, str] | None = None,
    ) -> Folder:
        """Return a folder. The keys of schemes and authorities may be lists such as ``s3a,s3n``.

        Raises:
            ValidationError: the location is all of a disk, or a scheme or authority is empty.
        """
        schemes = equal_names(equal_schemes, "equal_schemes")
        folder = Folder(location, schemes, equal_names(equal_authorities, "equal_authorities"))
        if folder.key == "/" and is_local(location):
            raise ValidationError(f"location is {shown(location)}: expected a folder")
        return folder

    @cached_property
    def key(self) -> str:
        """The folder's path with a slash at its end. The paths of files below the folder begin with it."""
        return join(path_of(self.location), "")

    def key_of(self, path: Sql) -> Sql:
        """Return the path of locations without scheme and authority, in the form of `storage.location.path_of`."""
        path_inside = sql.call("substr", path, len(self._beginning))
        key = sql.when(self._is_plain(path), sql.concat(self.key.rstrip("/"), path_inside)).otherwise(path_key(path))
        return of_text(key, path, path_of)

    def has_prefix_of(self, path: Sql, *, or_none: bool) -> Sql:
        """Return whether locations have the folder's scheme and authority, ignoring case.

        Args:
            path: the locations.
            or_none: whether a location without a scheme, or without an authority, may have any.
        """
        scheme, authority = parts_of(self.location)
        schemes = _equal_to(scheme or _LOCAL, {**_EQUAL_SCHEMES, **self.schemes}, or_none)
        authorities = _equal_to(authority, self.authorities, or_none)
        is_equal = sql.call("lower", scheme_of(path)).isin(sorted(schemes))
        is_equal &= sql.call("lower", authority_of(path)).isin(sorted(authorities))
        return of_text(
            sql.when(self._is_plain(path), True).otherwise(is_equal),
            path,
            lambda text: all(
                part.lower() in names for part, names in zip(parts_of(text), (schemes, authorities), strict=True)
            ),
            pa.bool_(),
        )

    def hides(self, key: Sql, hidden: str) -> Sql:
        """Return whether a name below the folder, in the path of a file, is hidden; see `hidden_pattern`."""
        below = sql.call("substr", key, len(self.key))
        may_hide = sql.call("contains", below, "/_") | sql.call("contains", below, "/.")
        pattern, start = re.compile(hidden), len(self.key) - 1
        is_hidden = may_hide & sql.call("rlike", below, hidden)
        return of_text(is_hidden, key, lambda text: pattern.search(text, start) is not None, pa.bool_())

    @property
    def _beginning(self) -> str:
        return join(self.location, "")

    def _is_plain(self, path: Sql) -> Sql:
        """Return whether locations begin with the exact text of the folder, and need no further comparison."""
        path_inside = sql.call("substr", path, len(self._beginning))
        is_irregular = sql.call("contains", path_inside, "//") | sql.call("contains", path_inside, "/.")
        is_irregular |= sql.call("endswith", path_inside, "/")
        return path.startswith(self._beginning) & ~is_irregular


def equal_names(names: Mapping[str, str] | None, option: str) -> dict[str, str]:
    """Return each name in lower case -> the name that it equals.

    Args:
        names: lists of names such as ``s3a,s3n`` -> the name that they equal.
        option: the name of the option in an error message.

    Raises:
        ValidationError: a name is empty.
    """
    equal: dict[str, str] = {}
    for name_list, name in (names or {}).items():
        parts = [part.strip().lower() for part in name_list.split(",")]
        if not (all(parts) and name.strip()):
            problem = f"{shown(name_list)}: {shown(name)}: expected names, as in 's3a,s3n': 's3'"
            raise ValidationError(f"{option} has {problem}")
        equal.update(dict.fromkeys(parts, name.strip().lower()))
    return equal


def prefix_of(path: Sql) -> Sql:
    """Return the scheme and authority of locations as text."""
    return sql.concat(scheme_of(path), "://", authority_of(path))


def name_of(path: Sql) -> Sql:
    """Return the name of files, after the last slash."""
    return of_text(sql.call("substring_index", path, "/", -1), path, file_name)


def finds(text: Sql, pattern: str) -> Sql:
    """Return whether a regular expression matches a part of a text."""
    compiled = re.compile(pattern)
    return of_text(sql.call("rlike", text, pattern), text, lambda value: compiled.search(value) is not None, pa.bool_())


def _equal_to(name: str, equal: Mapping[str, str], or_none: bool) -> frozenset[str]:
    """Return the names in lower case that equal a scheme or an authority."""
    names = [other_name for other_name in equal if _resolved(other_name, equal) == _resolved(name, equal)]
    none = [""] if or_none or name == _LOCAL else []
    return frozenset({name.lower(), _resolved(name, equal), *names, *none})


def _resolved(name: str, equal: Mapping[str, str]) -> str:
    return equal.get(name.lower(), name.lower())


# -- List the files below a location ----------------------------------------------------------------------------------
# Spark tasks list them, or an inventory contains them.


# The types of an inventory's columns.
_INVENTORY = {"file_path": T.StringType, "last_modified": T.TimestampType, "size": T.LongType}
_OPTIONAL = "size"

# Levels of folders to list separately, so that there are enough folders for all tasks.
_LEVELS = 3
# Maximum number of folders that the driver lists in a store, in some 2 s. Jobs take longer.
_MOST_STORED = 1_000

_FOLDERS = pa.schema([WALKED.field("path")])

FILES = ("path", "length", "modified_ms")
"""The columns of listed files: the columns of `WALKED`, without folders."""


def walked_files(state: TableState, reader: ExecutorReader, location: str, hidden: str) -> Relation:
    """Return the files below a location, as `FILES`. Runs jobs if there are many.

    The driver lists the folders if they are few. Otherwise tasks list each folder of the upper levels separately, then
    whole subtrees.

    Args:
        state: the table.
        reader: lists folders.
        location: the folder.
        hidden: a pattern of hidden names; see `hidden_pattern`. Folders with such names in the upper levels are left
            out.
    """
    files = _walked_on_driver(reader, location, hidden) if state.access.driver is not None else None
    return _walked_by_tasks(state.spark, reader, location, hidden) if files is None else files


def _walked_on_driver(reader: ExecutorReader, location: str, hidden: str) -> pa.Table | None:
    """Return the files below a location, listed by the driver; None if there are many folders or files."""
    levels, folders, listed = [pa.Table.from_batches([], WALKED)], pa.table([[location]], _FOLDERS), 0
    limit = FEW_ROWS if is_local(location) else _MOST_STORED
    is_visible = ~finds(name_of(sql.col("path")), hidden)
    while len(folders):
        listed += len(folders)
        if listed > limit:
            return None
        level = map_on_driver(folders, _Walker(reader, recursive=False, limit=FEW_ROWS), WALKED)
        levels.append(level.filter(pc.invert(level.column("is_folder"))))
        if sum(map(len, levels)) > FEW_ROWS:
            return None
        folders = where(level.filter(level.column("is_folder")), is_visible).select(["path"])
    return pa.concat_tables(levels).select(FILES)


def _walked_by_tasks(spark: SparkSession, reader: ExecutorReader, location: str, hidden: str) -> DataFrame:
    tasks = most_tasks(spark)
    folders = local_frame(spark, pa.table([[location]], _FOLDERS))
    levels: list[DataFrame] = []
    for _ in range(_LEVELS):
        level = materialize(map_arrow(folders, _Walker(reader, recursive=False), WALKED))
        levels.append(level.where("NOT is_folder").select(*FILES))
        below = level.where("is_folder").where((~finds(name_of(sql.col("path")), hidden)).text).select("path")
        count = below.count()
        if count >= tasks or not count:
            break
        folders = below.repartition(read_tasks(spark, count, 0))
    if count:
        folders = below.repartition(min(count, tasks))
        levels.append(map_arrow(folders, _Walker(reader, recursive=True), WALKED).select(*FILES))
    return reduce(lambda above, level: above.union(level), levels)


def inventory_files(inventory: DataFrame) -> DataFrame:
    """Return the files of an inventory as `FILES`.

    Args:
        inventory: rows with the columns file_path (string), last_modified (timestamp) and optionally size (bigint).

    Raises:
        ValidationError: the inventory is not a DataFrame, or a column is missing or has another type.
    """
    if not hasattr(inventory, "toArrow"):
        raise ValidationError(f"files is {shown(inventory)}: expected a DataFrame")
    types = {field.name: field.dataType for field in inventory.schema}
    for name, expected in _INVENTORY.items():
        if name not in types and name != _OPTIONAL:
            problem = f"files has no column {name}: expected file_path, last_modified and, if known, size"
            raise ValidationError(f"{problem}, and has {shown(', '.join(types))}")
        if name in types and not isinstance(types[name], expected):
            simple = types[name].simpleString()
            raise ValidationError(f"files.{name} is of type {simple}: expected {expected().simpleString()}")
    size = F.col(_OPTIONAL) if _OPTIONAL in types else F.lit(None).cast("long")
    modified = F.unix_millis("last_modified").alias("modified_ms")
    return inventory.select(F.col("file_path").alias("path"), size.alias("length"), modified)


def with_local_status(files: Relation) -> Relation:
    """Return the local files that still exist, with their lengths and times, which a listing lacks.

    Args:
        files: `FILES`, and other columns.
    """
    return mapped(files, _statuses, files.schema)


def _statuses(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from map(with_status, batches)


@dataclass(frozen=True)
class _Walker:
    """Lists folders in tasks. Picklable.

    Attributes:
        limit: stop in a folder with more files and folders than this number; None to list all.
    """

    reader: ExecutorReader
    recursive: bool
    limit: int | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for folder in batch.column("path").to_pylist():
                listed = 0
                for files in self.reader.walk(folder, recursive=self.recursive):
                    yield files
                    listed += len(files)
                    if self.limit is not None and listed > self.limit:
                        break


# -- Other tables that share a location, by metadata files ------------------------------------------------------------


# Bytes at the beginning of a metadata file. They contain the table's uuid in files of common libraries.
_HEAD_BYTES = 1 << 16
_UUID = re.compile(rb'"table-uuid"\s*:\s*"([^"]+)"')
_IS_GZIP = b"\x1f\x8b"

# Maximum number of other tables' metadata files to name.
_NAMED_UUIDS = 3

_UUIDS = pa.schema([pa.field("path", pa.string()), pa.field("table_uuid", pa.string())])


class OtherTables(NamedTuple):
    """Other tables that share a location.

    Attributes:
        below: the folders of tables below the location: rows of `key`, a path with a slash at its end.
        metadata_files: some metadata files of tables whose folder is the location, a folder above it, or the table's
            own folder.
    """

    below: Relation
    metadata_files: list[str]


def other_tables(table: BaseTable, reader: ExecutorReader, folder: Folder, listed: Relation) -> OtherTables:
    """Find the other tables whose folders are below or above a folder. Runs jobs if many files are listed.

    A table's folder is the folder above `metadata`. In the table's own folder, and in folders that contain `folder`,
    metadata files without the table's uuid belong to another table, unless the table's log names them. If the current
    metadata file is at another path, as in a copy of the table, it belongs to another table too.

    Args:
        table: the table.
        reader: opens files in tasks.
        folder: the folder.
        listed: the files below the folder: rows of `path`.
    """
    state, path = table.state, sql.col("path")
    logged = [entry.metadata_file for entry in table.metadata.metadata_log] + [table.metadata_location]
    own_keys = sorted({path_of(location) for location in logged})
    # The folder itself is listed too, since an inventory may be older than its newest metadata file.
    above = pa.table([[join(parent, METADATA) for parent in (folder.location, *parents(folder.location))]], ["path"])
    siblings = mapped(alike(above, listed)[0], _MetadataFolders(reader), WALKED)
    may_be_metadata = of_text(
        sql.call("contains", path, ".metadata.json"), path, lambda text: ".metadata.json" in text, pa.bool_()
    )
    named = union(
        some_columns(where(listed, may_be_metadata & finds(path, METADATA_FILE)), ["path"]),
        some_columns(siblings, ["path"]),
        state,
    )
    named = grouped(named, [folder.key_of(path).alias("key")], [sql.call("first", path).alias("path")])
    named = matching(named, pa.table([own_keys], ["key"]), {"key": "key"}, absent=True)
    files = computed(with_columns(named, _table_key().alias("table")))
    _refuse_copy(table, files)
    own_tables = {join(path_of(table.metadata.location), ""), _folder_of(path_of(table.metadata_location))}
    of_table = sql.col("table")
    holds = of_text(
        sql.call("startswith", folder.key, of_table) | of_table.isin(sorted(own_tables)),
        of_table,
        lambda text: folder.key.startswith(text) or text in own_tables,
        pa.bool_(),
    )
    uuids = mapped(some_columns(where(files, holds), ["path"]), _UuidReader(reader), _UUIDS)
    is_other = name_of(path) == file_name(table.metadata_location)
    if table.metadata.table_uuid is not None:
        # Metadata of version 1 may have no uuid.
        is_other |= ~sql.call("lower", sql.col("table_uuid")).eqNullSafe(str(table.metadata.table_uuid))
    metadata_files = head(where(uuids, is_other), _NAMED_UUIDS).column("path").to_pylist()
    below = grouped(where(files, ~holds), [of_table.alias("key")], [sql.call("first", path).alias("path")])
    return OtherTables(some_columns(below, ["key"]), metadata_files)


def _refuse_copy(table: BaseTable, files: Relation) -> None:
    """Raise ValidationError if the table was opened elsewhere, and its location contains its current metadata file.

    Args:
        table: the table.
        files: metadata files that the table does not name: rows of `path` and `key`.
    """
    opened = table.metadata_location
    at_location = join(join(path_of(table.metadata.location), METADATA), file_name(opened))
    if (copy := first(files, sql.col("key") == at_location)) is not None:
        problem = f"it was opened by {opened}, and its location has this file as {copy['path']}: open the table there"
        raise ValidationError(f"{table.full_name}: {problem}")


def refuse_shared(table: BaseTable, location: str, metadata_files: list[str]) -> None:
    """Raise ValidationError if there are metadata files of other tables that share a location."""
    if metadata_files:
        problem = f"another table shares {location}, and its files would be deleted"
        raise ValidationError(
            f"{table.full_name}: {problem}: it has {', '.join(metadata_files)}; the option shared_location permits it"
        )


def _table_key() -> Sql:
    """Return the folder of the table that a metadata file belongs to, by the file's `key`."""
    pattern, key = rf"(?s)^(.*?/)(?:{METADATA}/)?[^/]*$", sql.col("key")
    compiled = re.compile(pattern)
    return of_text(sql.call("regexp_extract", key, pattern, 1), key, lambda text: compiled.sub(r"\1", text))


def _folder_of(key: str) -> str:
    folder = key.rpartition("/")[0]
    return join(folder.removesuffix(f"/{METADATA}"), "")


@dataclass(frozen=True)
class _MetadataFolders:
    """Lists the metadata files directly in folders. It skips folders that it may not list. Picklable."""

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
    """Reads the uuids of tables from their metadata files; null for a file without one. Picklable.

    Skips missing files, and files that end before they show what they are.
    """

    reader: ExecutorReader

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            texts = read_ahead(batch.to_pylist(), self._text, lambda _: _HEAD_BYTES)
            texts_by_path = [(row["path"], text) for row, text in texts if text is not None]
            rows = [{"path": path, "table_uuid": uuid_in(text)} for path, text in texts_by_path if _is_metadata(text)]
            yield pa.RecordBatch.from_pylist(rows, schema=_UUIDS)

    def _text(self, row: Mapping[str, Any]) -> bytes | None:
        """Return a metadata file up to its uuid or its end; None if it is gone."""
        try:
            head = _inflated(self.reader.read_range(row["path"], 0, _HEAD_BYTES))
            return head if uuid_in(head) is not None else _inflated(self.reader.read(row["path"]))
        except NotFoundError:
            return None


def _is_metadata(text: bytes) -> bool:
    return uuid_in(text) is not None or b'"format-version"' in text


def uuid_in(data: bytes) -> str | None:
    """Return the first table's uuid in the bytes of a metadata file, which may be cut; None if there is none."""
    match = _UUID.search(_inflated(data))
    return None if match is None else match[1].decode()


def _inflated(data: bytes) -> bytes:
    """Return the content of a file. For a gzip file, the content goes as far as `data` does."""
    if not data.startswith(_IS_GZIP):
        return data
    with suppress(zlib.error):
        return zlib.decompressobj(31).decompress(data)
    return b""
