"""Make a table of existing files: the files of a folder, or of a table in Spark's own catalog.

A source consists of files, folders that name their partitions, and columns. They determine the metadata of a new table.
The files are described as files of this table, and one commit creates it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from urllib.parse import quote

from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from sparkmeta.checks import NAME, property_texts
from sparkmeta.commit.partition_folders import NULL_FOLDERS
from sparkmeta.commit.snapshot_update import SnapshotStep, SnapshotUpdate
from sparkmeta.commit.transaction import Transaction
from sparkmeta.commit.write_target import WriteTarget
from sparkmeta.entries.relation import (
    collected,
    count,
    few_or_many,
    first,
    frame_of,
    grouped,
    select,
    values,
    where,
    with_columns,
)
from sparkmeta.errors import (
    CorruptFileError,
    FileAccessError,
    NoSuchTableError,
    NotFoundError,
    UnsupportedError,
    ValidationError,
    first_line,
    translated_errors,
)
from sparkmeta.expr import sql
from sparkmeta.maintain.delta_log import LOG, LOG_FILE, delta_table, unquoted
from sparkmeta.maintain.orphan_tasks import finds, walked_files, with_local_status
from sparkmeta.maintain.plans import Plan, PlanSummary
from sparkmeta.maintain.source_columns import Shape
from sparkmeta.maintain.take_in_tasks import SHAPE, SHAPES, ShapeReader
from sparkmeta.manifests.placement import mapped_files
from sparkmeta.operations.metadata_files import METADATA, METADATA_FILES
from sparkmeta.operations.table_operations import BaseTable, TableT
from sparkmeta.progress import planning
from sparkmeta.rows.columns import NAME_MAPPING
from sparkmeta.session import read_tasks
from sparkmeta.snapshot.state import TableState, task_reader
from sparkmeta.spec.new_table import new_metadata
from sparkmeta.spec.table_properties import METADATA_PATH
from sparkmeta.storage.location import absolute, is_local, join, normalize, parents
from sparkmeta.storage.reading import location_key, of_text
from sparkmeta.write.add_files import AddNameMapping, describe_rows, is_case_sensitive
from sparkmeta.write.existing_tasks import FILE_PATH, FOLDERS
from sparkmeta.write.tasks import DATA_PATHS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructField, StructType

    from sparkmeta.entries.relation import Relation
    from sparkmeta.session import SessionSource
    from sparkmeta.storage.executors import ExecutorReader
    from sparkmeta.storage.files import Files
    from sparkmeta.write.add_files import AddedFiles


# -- The plan ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TakeInSummary(PlanSummary):
    """The files that become a table; `str` formats them.

    Attributes:
        source: the folder or table that has the files.
        location: the folder of the new table.
        columns: the number of its columns.
        partition_by: its partition fields.
        files: format -> the number of files.
        records: the number of rows in the files.
        bytes: the size of the files.
    """

    source: str
    location: str
    columns: int
    partition_by: tuple[str, ...]
    files: Mapping[str, int]
    records: int
    bytes: int

    def __str__(self) -> str:
        number, fields = sum(self.files.values()), ", ".join(self.partition_by) or "nothing"
        return "\n".join(
            [
                f"{self.table}: {number} files of {self.source} with {self.records} rows and {self.bytes} bytes",
                *(f"  {file_format}: {files} files" for file_format, files in self.files.items()),
                f"  {self.columns} columns, partitioned by {fields}, at {self.location}",
            ]
        )


@dataclass(frozen=True)
class TakeInPlan(Plan[TableT, TableT]):
    """A plan to make a table of existing files, carried out by `commit`.

    Attributes:
        table: the table that the commit creates.
        source: the folder or table that has the files.
        migrates: whether the table takes the place of the source, and owns the files.
    """

    _doing = "Creating the table"

    source: str
    migrates: bool
    _source: Source = field(repr=False)
    # Loads the table once it exists.
    _load: Callable[[], TableT] = field(repr=False)

    def to_df(self) -> DataFrame:
        """Return one row per file: file_path, file_format, partition, record_count, file_size_in_bytes. Runs jobs.

        A table without partition fields has no column `partition`.

        Raises:
            ValidationError: a file does not fit the table. The message names it.
            NotFoundError: a file is gone.
        """
        columns = (FILE_PATH, "file_format", "partition", "record_count", "file_size_in_bytes")
        return self._added.files.select([name for name in columns if name in self._added.files.columns])

    @planning
    def summary(self) -> TakeInSummary:
        """Return the plan in numbers. Runs the jobs of `to_df`, and raises their errors."""
        figures = {
            "files": sql.call("sum", 1),
            "records": sql.call("sum", sql.col("record_count")),
            "bytes": sql.call("sum", sql.col("file_size_in_bytes")),
        }
        with translated_errors():
            by_format = grouped(self._added.files, sql.columns("file_format"), sql.named(figures))
            rows = collected(by_format).sort_by("file_format").to_pylist()
        metadata = self.table.metadata
        return TakeInSummary(
            self.table.full_name,
            self.source,
            metadata.location,
            len(metadata.schema().fields),
            tuple(spec_field.name for spec_field in metadata.spec().fields),
            {row["file_format"]: row["files"] for row in rows},
            sum(row["records"] for row in rows),
            sum(row["bytes"] for row in rows),
        )

    def commit(self) -> TableT:
        """Create the table with all files in one commit, and return it. The source does not change.

        Raises:
            TableAlreadyExistsError: another client has created a table of the name.
            ValidationError: a file does not fit the table. Nothing is written.
            NotFoundError: a file is gone. Nothing is written.
            UnsupportedError: the source of a migration has become an Iceberg table.
            CommitStateUnknownError: the catalog did not respond; the table may exist, and no file is deleted.
        """
        return super().commit()

    def _commit(self) -> TableT:
        files = self._added.files
        transaction = Transaction(self.table)
        transaction._add(AddNameMapping.of(self.table.metadata))
        if count(files):
            # All clients see the rows of a new table, whatever the session stages.
            step = SnapshotStep(self.table.state, WriteTarget(MAIN_BRANCH), {})
            SnapshotUpdate(step).append(files).assume_new_files()
            transaction._add_snapshot(step)
        if self.migrates:
            _refuse_iceberg(self._source.state.files, self._source.state.metadata.location)
        transaction.commit()
        return self._load()

    def _outcome(self) -> dict[str, Any] | None:
        return {"metadata_location": self._committed[0].metadata_location} if self._committed else None

    @cached_property
    def _added(self) -> AddedFiles:
        """The files, described as files of the table."""
        state = replace(self._source.state, metadata=self.table.metadata)
        rows = frame_of(self._source.rows, state)
        added = describe_rows(state, rows, self._source.count, check_other_tables=True)
        if not self.migrates and self._source.count is None:
            self._refuse_shared(added.files)
        return added

    def _refuse_shared(self, files: DataFrame) -> None:
        """Raise ValidationError if files are below the table's folder, or directly in it or in a folder above it."""
        location = self.table.metadata.location
        normal = normalize(location)
        key, folders = location_key(sql.col(FILE_PATH)).column(), [join(above, "") for above in parents(normal)]
        folder = sql.call("regexp_extract", location_key(sql.col(FILE_PATH)), "(?s)^(.*/)[^/]*$", 1).column()
        shared = files.where(key.startswith(join(normal, "")) | folder.isin(folders))
        for path in shared.select(FILE_PATH).limit(1).toArrow().column(0).to_pylist():
            raise ValidationError(
                f"{self.table.full_name}: location is {location}, and {path} is a file of {self.source}: expected a "
                "folder without its files, and outside of their folders"
            )


NewTable: TypeAlias = (
    "Callable[[Schema | pa.Schema | StructType, Sequence[str], Mapping[str, str], str | None], BaseTable]"
)
"""Takes the columns, partition fields, properties and folder of a table, and returns a table that a commit creates."""


@dataclass(frozen=True)
class TakeIn:
    """The source and the settings of a new table.

    Attributes:
        source: a folder, or the name of a table in Spark's catalog.
        schema: the columns; None for the columns of the source.
        partition_by: the partition fields; None for the partition columns of the source.
        properties: further properties of the table.
        format_version: its format version; None for the default.
        location: the folder of the table; None for the catalog's choice.
        migrates: whether the table takes the place of the source, and owns the files.
    """

    source: str
    schema: Schema | pa.Schema | StructType | None
    partition_by: Sequence[str] | None
    properties: Mapping[str, str] | None
    format_version: int | None
    location: str | None
    migrates: bool

    def plan(
        self,
        sessions: SessionSource,
        files_at: Callable[[str], Files],
        new_table: NewTable,
        load: Callable[[], TableT],
    ) -> TakeInPlan[TableT]:
        """Plan to make the table.

        Args:
            sessions: where the session comes from.
            files_at: opens the files at a location.
            new_table: makes a table that the first commit creates.
            load: loads the table once it exists.

        Raises:
            NoSuchTableError: Spark's catalog has no such table.
            NotFoundError: there is no file in the folder.
            UnsupportedError: the source is of another kind.
            ValidationError: files contradict each other, or the table and the source would share a folder.
        """

        def state_at(location: str) -> TableState:
            empty = new_metadata(location, Schema(), UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, None)
            return TableState(sessions, files_at(location), empty, None)

        def source_at(location: str) -> TableState:
            state = state_at(location)
            if self.migrates:
                _refuse_iceberg(state.files, location)
            return state

        NAME.check("source", self.source)
        properties = property_texts("properties", self.properties)
        with translated_errors():
            if "/" in self.source:
                state = source_at(absolute(self.source.rstrip("/")))
                source = folder_source(state, reads_columns=self.schema is None)
            else:
                source = table_source(self.source, sessions, source_at, migrates=self.migrates)
        source_location = source.state.metadata.location
        if self.migrates and source.is_shared is not None:
            raise UnsupportedError(f"{self.source}: {source.is_shared}: snapshot_table leaves the source as it is")
        terms = [*map(sql.quoted, source.partition_columns)] if self.partition_by is None else self.partition_by
        role = {"migrated": "true"} if self.migrates else {"snapshot": "true", "gc.enabled": "false"}
        table = new_table(
            source.schema if self.schema is None else self.schema,
            terms,
            {**source.properties, **properties, **role},
            source_location if self.migrates else self.location,
        )
        if not self.migrates:
            self._refuse_shared(table, source_location)
        return TakeInPlan(cast("TableT", table), self.source, self.migrates, source, load)

    def _refuse_shared(self, table: BaseTable, source_location: str) -> None:
        """Raise ValidationError if the folder of the table is in the source's folder, or the other way round."""
        keys = [join(normalize(location), "") for location in (table.metadata.location, source_location)]
        if keys[0].startswith(keys[1]) or keys[1].startswith(keys[0]):
            raise ValidationError(
                f"{table.full_name}: location is {table.metadata.location}, and the files of {self.source} are in "
                f"{source_location}: neither may be inside the other"
            )
        properties = table.metadata.properties
        for name in (METADATA_PATH, *DATA_PATHS):
            if name in properties and join(normalize(properties[name]), "").startswith(keys[1]):
                raise ValidationError(
                    f"{table.full_name}: {name} is {properties[name]}, inside the folder {source_location} of "
                    f"{self.source}: expected another folder"
                )


# -- The source -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """The files and columns that a table is made of.

    Attributes:
        state: the source as a table without columns, which determines how files are opened.
        rows: the files: `FILE_PATH` and `FOLDERS`.
        count: the number of files; None if it is unknown, and files may be listed twice.
        schema: the columns.
        partition_columns: the names of the columns whose values are in folders.
        properties: the properties of the source.
        is_shared: why the source keeps the ownership of the files; None if a table can own them.
    """

    state: TableState
    rows: Relation
    count: int | None
    schema: Schema | StructType
    partition_columns: Sequence[str]
    properties: Mapping[str, str] = field(default_factory=dict)
    is_shared: str | None = None


# Names of files that Spark does not read.
_HIDDEN = r"(?:^|/)(?:\.|_(?![^/]*=))|\._COPYING_(?:/|$)"
# Folders and files in which other formats of tables say which files are current.
_LOGS = {LOG: "a Delta table", "_spark_metadata": "streaming output of Spark", ".hoodie": "a Hudi table"}
_LOG_NAMES = "|".join(map(re.escape, _LOGS))
_ICEBERG = r"(?:^|/)metadata/[^/]*\.metadata\.json(?:\.gz)?$"
_OF_TABLES = rf"(?:^|/)(?:{_LOG_NAMES})/|{_ICEBERG}"
# Names of folders that are not listed.
_UNLISTED = rf"(?:^|/)(?!(?:{_LOG_NAMES})$)(?:\.|_(?![^/]*=))"
_INSIDE = "path_inside"


def folder_source(state: TableState, *, reads_columns: bool) -> Source:
    """Return the data files below a folder, with the columns in files and in folders `name=value`.

    Args:
        state: the folder as a table without columns.
        reads_columns: whether to read columns from the files; otherwise only the folders' columns are known.

    Raises:
        NotFoundError: there is no data file.
        UnsupportedError: the folder holds a table of a format that lists its files elsewhere, or a Delta table with
            features that are not supported.
        ValidationError: files contradict each other, or a file is not a data file.
    """
    location, reader, path, inside = state.metadata.location, task_reader(state), sql.col("path"), sql.col(_INSIDE)
    _refuse_logs(state.files, location, parents(location))
    listed = _listed(state, reader)
    if first(listed, inside.startswith(f"{LOG}/")) is not None:
        return _delta_source(state, where(listed, finds(inside, f"^{LOG_FILE}")))
    _refuse_tables_below(listed, location)
    visible = where(listed, ~finds(inside, _HIDDEN))
    if is_local(location):
        visible = with_local_status(visible)
    folders = of_text(
        sql.call("regexp_extract", inside, "(?s)^(.*)/[^/]*$", 1), inside, lambda text: text.rpartition("/")[0]
    )
    # Like Spark, ignore empty files.
    rows = select(where(visible, sql.col("length") > 0), [path.alias(FILE_PATH), folders.alias(FOLDERS)])
    rows = few_or_many(rows, state)
    if not (number := count(rows)):
        raise NotFoundError(f"{location}: there is no data file below it")
    shape = _shape(state, rows, number, ShapeReader(reader, reads_columns))
    return Source(state, rows, number, shape.schema(), [column.name for column in shape.folders])


def _listed(state: TableState, reader: ExecutorReader) -> Relation:
    """Return the files below a source, with their paths relative to it."""
    location, path = state.metadata.location, sql.col("path")
    start = len(join(location, ""))
    path_inside = of_text(sql.call("substr", path, start + 1), path, lambda text: text[start:])
    return with_columns(walked_files(state, reader, location, _UNLISTED), path_inside.alias(_INSIDE))


def _refuse_tables_below(listed: Relation, location: str) -> None:
    """Raise UnsupportedError if files of a source belong to a table that lists its files elsewhere."""
    if (of_table := first(listed, finds(sql.col(_INSIDE), _OF_TABLES))) is not None:
        kinds = (kind for name, kind in _LOGS.items() if f"/{name}/" in of_table["path"])
        raise UnsupportedError(
            f"{location}: {of_table['path']} belongs to {next(kinds, 'an Iceberg table')}, whose current files are not "
            "all files of the folder"
        )


def _refuse_logs(files: Files, location: str, folders: Sequence[str]) -> None:
    """Raise UnsupportedError if one of the folders, which contain a source, has the log of a table."""
    for folder in folders:
        for name, kind in _LOGS.items():
            if _shows_files(files, join(folder, name)):
                raise UnsupportedError(
                    f"{location}: it is in the folder {folder} of {kind}, whose current files are not all files of the "
                    "folder"
                )


def _refuse_iceberg(files: Files, location: str) -> None:
    """Raise UnsupportedError if a folder is in an Iceberg table, or is one: only one table can own its files."""
    folder = location if _has_files(files, join(location, METADATA), METADATA_FILES) else None
    above = (parent for parent in parents(location) if _shows_files(files, join(parent, METADATA), METADATA_FILES))
    if folder is not None or (folder := next(above, None)) is not None:
        raise UnsupportedError(f"{location}: the folder {folder} is an Iceberg table already, which may own the files")


def _shows_files(files: Files, folder: str, pattern: str = "*") -> bool:
    """Return whether a folder above a source has files that the client may list."""
    with suppress(FileAccessError, PermissionError):
        return _has_files(files, folder, pattern)
    return False


def _has_files(files: Files, folder: str, pattern: str = "*") -> bool:
    with suppress(NotFoundError):
        return bool(files.list(folder, pattern))
    return False


def _delta_source(state: TableState, log_files: Relation) -> Source:
    """Return the current files of a Delta table."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    location = state.metadata.location
    if _has_files(state.files, join(join(location, LOG), "_commits")):
        raise UnsupportedError(f"{location}: the Delta table has commits that a catalog coordinates: not supported")
    if is_local(location):
        log_files = with_local_status(log_files)
    if (empty := first(log_files, sql.col("length") == 0)) is not None:
        raise CorruptFileError(empty["path"], "length", 0, "an empty file is no part of a Delta log")
    paths = list(values(select(log_files, [sql.col("path").alias("path")])))
    table = delta_table(state.spark, location, paths)
    # An empty text is null.
    texts = [(name, F.nullif(F.col("partitionValues")[name], F.lit(""))) for name in table.partition_columns]
    rows = table.files.select(FILE_PATH, _folders(texts).alias(FOLDERS))
    schema = StructType.fromJson(json.loads(table.schema))
    is_shared = "a Delta table would go on to delete its files"
    return Source(state, rows, None, schema, table.partition_columns, is_shared=is_shared)


def _shape(state: TableState, rows: Relation, number: int, shapes: ShapeReader) -> Shape:
    """Return the merged shape of all files."""
    of_files = mapped_files(
        rows, lambda _: shapes, SHAPES, state, runs=True, tasks=lambda spark: read_tasks(spark, number, 0)
    )
    first_path = sql.call("min", sql.col(FILE_PATH)).alias(FILE_PATH)
    rows_of_shapes = collected(grouped(of_files, sql.columns(SHAPE), [first_path])).sort_by(FILE_PATH)
    case_sensitive = is_case_sensitive(state.spark)
    shapes_of_files = (Shape.of(row, case_sensitive=case_sensitive) for row in rows_of_shapes.to_pylist())
    return reduce(Shape.with_files, shapes_of_files)


_FORMATS = ("parquet", "orc", "avro")
_PURGE = "external.table.purge"
# Properties that concern only the table of Spark or Hive, or name its folders.
_NOT_COPIED = re.compile(
    "|".join(map(re.escape, (_PURGE, METADATA_PATH, *DATA_PATHS, NAME_MAPPING, "serialization.format", "path")))
    + r"|external|transient_lastddltime|last_modified_(?:by|time)|bucketing_version|column_stats_accurate"
    + r"|num(?:files|rows|partitions|fileserasurecoded)|(?:total|rawdata)size|spark\.sql\..*",
    re.IGNORECASE,
)
# The key in Spark's metadata of a field for the value that existing rows have.
_DEFAULT = "EXISTS_DEFAULT"


def table_source(
    name: str, sessions: SessionSource, state_at: Callable[[str], TableState], *, migrates: bool
) -> Source:
    """Return the files that Spark reads for a table in its own catalog, with the values of their partitions.

    The files of partitions may be anywhere. Files without rows are left out.

    Args:
        name: the table.
        sessions: where the session comes from.
        state_at: returns a folder as a table without columns.
        migrates: whether the new table is to own the files.

    Raises:
        NoSuchTableError: there is no such table.
        UnsupportedError: it is a view, a table of another format, or has a column with a default for existing rows.
    """
    table, described = _described(sessions.get(), name)
    if (file_format := _format(described)) is None or "location" not in described:
        kind = described.get("serde_library") or described.get("provider") or described.get("type", "").lower()
        raise UnsupportedError(f"{name}: it is of the kind {kind}: expected a table of Parquet, ORC or Avro files")
    schema, names = table.schema, described.get("partition_columns", [])
    if (column := next((field.name for field in schema if _DEFAULT in field.metadata), None)) is not None:
        raise UnsupportedError(f"{name}: column {column} has a default for existing rows, which their files lack")
    state = state_at(described["location"])
    _refuse_logs(state.files, name, (state.metadata.location, *parents(state.metadata.location)))
    if migrates:
        _refuse_tables_below(_listed(state, task_reader(state)), name)
    folders = _folders([(column, _text(schema[column])) for column in names])
    by_hive = described["provider"] == "hive" and file_format == "avro"
    rows = _files(table, file_format, folders, by_hive=by_hive)
    properties: Mapping[str, str] = described.get("table_properties", {})
    copied = {key: value for key, value in properties.items() if not _NOT_COPIED.fullmatch(key)}
    return Source(state, rows, None, schema, names, copied, _reason_to_share(described, properties))


def _reason_to_share(described: Mapping[str, Any], properties: Mapping[str, str]) -> str | None:
    """Return why a table keeps the ownership of its files; None if another table can own them."""
    if described.get("type") == "MANAGED":
        return "Spark manages the table, so that DROP TABLE deletes its files"
    if any(key.lower() == _PURGE and value.lower() == "true" for key, value in properties.items()):
        return f"{_PURGE} is true, so that DROP TABLE deletes its files"
    return None


def _described(spark: SparkSession, name: str) -> tuple[DataFrame, dict[str, Any]]:
    """Return a table, and its description in Spark's catalog."""
    from pyspark.errors import AnalysisException

    try:
        table = spark.table(name)
        text = spark.sql(f"DESCRIBE TABLE EXTENDED {name} AS JSON").toArrow().column(0)[0].as_py()
    except AnalysisException as error:
        if "NOT_FOUND" in str(error):
            raise NoSuchTableError(f"{name}: there is no such table in Spark's catalog") from error
        raise UnsupportedError(f"{name}: Spark's catalog does not describe it: {first_line(error)}") from error
    return table, json.loads(text)


def _format(described: Mapping[str, Any]) -> str | None:
    """Return the format of a table's files; None if it is not supported."""
    provider = str(described.get("provider", "")).lower()
    text = str(described.get("serde_library", "")).lower() if provider == "hive" else provider
    return next((name for name in _FORMATS if (name in text if provider == "hive" else name == text)), None)


def _files(table: DataFrame, file_format: str, folders: Column, *, by_hive: bool) -> DataFrame:
    """Return a row for each file with rows.

    Args:
        table: the table.
        file_format: the format of its files.
        folders: the folders that name their partitions.
        by_hive: whether Spark reads the table through Hive's classes.
    """
    from pyspark.sql import functions as F

    if by_hive:
        path: Column = F.input_file_name()
    else:
        hidden = table.metadataColumn("_metadata")
        path = unquoted(hidden.getField("file_path"))
        if file_format == "parquet":
            table = table.where(hidden.getField("row_index") == 0)
    return table.select(path.alias(FILE_PATH), folders.alias(FOLDERS)).distinct()


def _text(column: StructField) -> Column:
    """Return the values of a partition column as text. Instants have an offset from UTC."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import TimestampType

    value = F.col(sql.quoted(column.name))
    is_instant = isinstance(column.dataType, TimestampType)
    return F.date_format(value, "yyyy-MM-dd HH:mm:ss.SSSSSSxxx") if is_instant else value.cast("string")


def _folders(texts: Sequence[tuple[str, Column]]) -> Column:
    """Return the folders `name=value` for the texts of partition columns."""
    from pyspark.sql import functions as F

    folders = []
    for name, text in texts:
        value = F.replace(F.url_encode(text), F.lit("+"), F.lit("%20"))
        folders += [F.lit(f"{quote(name, safe='')}="), F.coalesce(value, F.lit(NULL_FOLDERS[1])), F.lit("/")]
    return F.concat(*folders) if folders else F.lit("")
