"""Describe existing data files in Spark jobs, so that a commit can add them to a table without writing them again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyiceberg.table.update import SetPropertiesUpdate
from pyiceberg.transforms import IdentityTransform, VoidTransform
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from sparkmeta.errors import (
    CommitConflictError,
    NotFoundError,
    UnsupportedError,
    ValidationError,
    shown,
    translated_errors,
)
from sparkmeta.expr import sql
from sparkmeta.expr.bounds import bound_arrow_type
from sparkmeta.expr.sql import quoted
from sparkmeta.expr.types import bound_value
from sparkmeta.manifests.sorted_manifests import most_tasks
from sparkmeta.rows.arrow_reader import task_rows
from sparkmeta.rows.columns import NAME_MAPPING, name_mapping, projected_column
from sparkmeta.rows.resolve import own_names
from sparkmeta.session import local_frame, map_arrow
from sparkmeta.settings import setting
from sparkmeta.snapshot.search import live_manifests
from sparkmeta.spec.metadata import refuse_encrypted
from sparkmeta.spec.metrics_modes import FULL, metrics_modes
from sparkmeta.spec.transforms import ColumnsBucket
from sparkmeta.spec.updates import update_table_metadata
from sparkmeta.storage.location import normalize
from sparkmeta.storage.reading import location_key
from sparkmeta.write.existing_tasks import (
    FILE_PATH,
    IS_MISSING,
    NEEDS_MAPPING,
    ExistingFiles,
    FileField,
    FilePartitions,
)
from sparkmeta.write.files import checkpointed, refuse_transforms
from sparkmeta.write.input import refuse_kinds, refuse_types, written_columns
from sparkmeta.write.metrics import TableColumns, metric_leaves, names_of, sized_leaves
from sparkmeta.write.tasks import PROBLEM

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionField
    from pyiceberg.schema import Schema
    from pyspark.sql import DataFrame, SparkSession

    from sparkmeta.rows.resolve import MappedName
    from sparkmeta.snapshot.state import TableState
    from sparkmeta.spec.metadata import TableMetadata

_PATH_COLUMNS: Final = (FILE_PATH, "path")
# Minimum number of files per task, and maximum number that an error names.
_TASK_FILES: Final = 50
_MAX_NAMED: Final = 10
_KEY: Final = "location_key"
_CASE_SENSITIVE: Final = "spark.sql.caseSensitive"


@dataclass(frozen=True)
class AddedFiles:
    """Existing files that fit a table.

    Attributes:
        files: rows with columns of `inspect.files`, checkpointed.
        needs_mapping: whether readers need a name mapping, because some files have no field ids or lack columns of
            identity partitions.
    """

    files: DataFrame
    needs_mapping: bool


@dataclass(frozen=True)
class AddNameMapping:
    """A step of a transaction that sets a table's name mapping for existing files, unless the table has one.

    Attributes:
        mapping: the JSON of the name mapping that described the files.
        columns: the parsed name mapping.
    """

    mapping: str
    columns: tuple[MappedName, ...]

    @staticmethod
    def of(described: TableMetadata) -> AddNameMapping:
        """Return the step for files that were described with a table's metadata."""
        schema = described.schema()
        mapping = described.properties.get(NAME_MAPPING) or schema.name_mapping.model_dump_json()
        return AddNameMapping(mapping, name_mapping(described) or own_names(map(projected_column, schema.fields)))

    def apply(self, state: TableState) -> TableMetadata:
        """Return the table's metadata with a name mapping. If others have set a name mapping, it stays.

        Raises:
            CommitConflictError: columns of the files may have other ids, or none, in the table's name mapping.
        """
        current = name_mapping(state.metadata)
        if current is None:
            return update_table_metadata(state.metadata, (SetPropertiesUpdate(updates={NAME_MAPPING: self.mapping}),))
        if not _includes(current, self.columns):
            raise CommitConflictError(
                f"{state.metadata.location}: others have changed {NAME_MAPPING}, which the added files rely on"
            )
        return state.metadata


def _includes(mapping: Sequence[MappedName], columns: Sequence[MappedName]) -> bool:
    """Return whether a name mapping contains all names of columns, with the columns' ids."""
    columns_by_name = {name: mapped for mapped in mapping for name in mapped.names}
    return all(
        name in columns_by_name
        and columns_by_name[name].id == column.id
        and _includes(columns_by_name[name].children, column.children)
        for column in columns
        for name in column.names
    )


def describe_files(
    state: TableState, paths: Sequence[str] | DataFrame, *, check_duplicates: bool, check_other_tables: bool
) -> AddedFiles:
    """Describe existing files as data files of a table's default partition spec. Runs jobs.

    Args:
        state: the table at the branch's head.
        paths: the locations of the files, or a DataFrame that has them in a column `file_path` or `path`, or in its
            only column.
        check_duplicates: whether to compare the paths with the table's files.
        check_other_tables: whether to refuse files in the folder of another Iceberg table.

    Raises:
        ValidationError: paths are not strings, a path occurs twice or is in the table, or a file does not fit it.
        NotFoundError: a file is missing.
        UnsupportedError: tasks can't open the files, or the table is encrypted or has a type or transform that can't be
            written.
    """
    path_rows = _path_rows(state, paths)
    if check_duplicates:
        _refuse_present(path_rows, state)
    count = len(paths) if isinstance(paths, Sequence) else None
    return describe_rows(state, path_rows, count, check_other_tables=check_other_tables)


def describe_rows(
    state: TableState, path_rows: DataFrame, count: int | None, *, check_other_tables: bool
) -> AddedFiles:
    """Describe existing files; see `describe_files`.

    Args:
        state: the table at the branch's head.
        path_rows: the files: rows of `FILE_PATH` and, if the folders above the files do not name their partitions, of
            `FOLDERS`.
        count: the number of files, if all paths are known to differ; otherwise None.
        check_other_tables: see `describe_files`.
    """
    refuse_encrypted(state.metadata, "and existing files have no keys")
    refuse_types(state.metadata.schema(), state.metadata.location)
    refuse_kinds(state.metadata.schema(), state.metadata.location, "variant|geo", "and files with it can't be added")
    refuse_transforms(state, state.metadata.sort_order())
    for field in state.metadata.spec().fields:
        if isinstance(field.transform, ColumnsBucket):
            raise UnsupportedError(
                f"{state.metadata.location}: files can't be added by their paths: their values of the partition field "
                f"{field.name}, {field.transform} of several columns, are unknown: append them with partition values"
            )
    tasks = existing_files(state, check_other_tables=check_other_tables)
    if count is None:
        _refuse_repeated(path_rows, state)
        count = most_tasks(state.spark) * _TASK_FILES
    parts = max(1, min(most_tasks(state.spark), -(-count // _TASK_FILES)))
    with translated_errors():
        described = checkpointed(map_arrow(path_rows.repartition(parts), tasks.describe, tasks.schema))
    needs_mapping = _needs_mapping(described)
    return AddedFiles(described.drop(NEEDS_MAPPING, IS_MISSING, PROBLEM), needs_mapping)


def measured_files(state: TableState, *, full_bounds: bool) -> ExistingFiles:
    """Return the tasks that measure data files of a table, whose partitions are known.

    Args:
        full_bounds: whether bounds are not truncated. Otherwise, the table's properties determine the metrics.

    Raises:
        UnsupportedError: tasks can't open the table's files.
    """
    files = existing_files(state, check_other_tables=False, full_bounds=full_bounds)
    partitions = FilePartitions((), {}, frozenset(), {}, {}, case_sensitive=True)
    # Files may have columns that the table has dropped since.
    columns = replace(files.columns, refuses_others=False)
    return replace(files, columns=columns, partitions=partitions, partition=None, tuple_indices=())


def existing_files(state: TableState, *, check_other_tables: bool, full_bounds: bool = False) -> ExistingFiles:
    """Return the tasks that describe existing files; see `describe_files` and `measured_files`.

    Raises:
        UnsupportedError: tasks can't open the table's files.
    """
    metadata, types = state.metadata, state.types
    schema, spec = metadata.schema(), metadata.spec()
    modes = dict.fromkeys(schema.field_ids, FULL) if full_bounds else metrics_modes(metadata, schema)
    written = written_columns(schema)
    columns = tuple(map(projected_column, schema.fields))
    names_by_id: dict[int, set[str]] = {}
    for past_schema in metadata.schemas:
        for field_id, name in names_of(tuple(map(projected_column, past_schema.fields))):
            names_by_id.setdefault(field_id, set()).add(name)
    ids = [field.field_id for field in spec.fields]
    table = TableColumns(
        columns,
        name_mapping(metadata) or own_names(columns),
        {field_id: frozenset(names) for field_id, names in names_by_id.items()},
        metric_leaves(written, modes),
        sized_leaves(written, modes),
    )
    case_sensitive = is_case_sensitive(state.spark)
    top_level = {field.name: field.field_id for field in schema.fields}
    fields = tuple(
        FileField(
            field.name,
            _folder_names(field, schema, case_sensitive=case_sensitive),
            field.source_id,
            field.transform,
            # The schema may lack the column of a void field.
            types.partition_types[field.field_id]
            if isinstance(field.transform, VoidTransform)
            else schema.find_type(field.source_id),
            types.partition_fields[field.field_id],
        )
        for field in spec.fields
    )
    sources = {field.source for field in fields}.intersection(schema.field_ids)
    names = {source: schema.find_column_name(source) or "" for source in sources}
    required = frozenset(source for source in sources if schema.find_field(source).required)
    defaults = {source: bound_value(schema.find_field(source).initial_default) for source in sources}
    tuple_fields = types.partition_type.fields
    partition = pa.struct(
        [pa.field(field.name, bound_arrow_type(types.partition_fields[field.field_id])) for field in tuple_fields]
    )
    rows = task_rows(state, schema)
    return ExistingFiles(
        table=metadata.location,
        reader=rows.reader,
        columns=table,
        partitions=FilePartitions(fields, names, required, defaults, top_level, case_sensitive),
        rows=rows,
        written=written,
        modes=modes,
        spec_id=spec.spec_id,
        partition=partition if tuple_fields else None,
        tuple_indices=tuple(ids.index(field.field_id) if field.field_id in ids else None for field in tuple_fields),
        own_folder=normalize(metadata.location) if check_other_tables else None,
    )


def is_case_sensitive(spark: SparkSession) -> bool:
    """Return whether a session distinguishes columns whose names differ only in case."""
    return (setting(spark, _CASE_SENSITIVE) or "").lower() == "true"


def _folder_names(field: PartitionField, schema: Schema, *, case_sensitive: bool) -> tuple[str, ...]:
    """Return the names of the folders that hold a partition field's values.

    Hive, Spark and Iceberg's procedure `add_files` use the name of the field's column. Iceberg's writers use the
    field's own name, which is accepted unless another column has it.
    """
    if isinstance(field.transform, VoidTransform):
        return ()
    column = schema.find_column_name(field.source_id) or ""
    names = {column: None} if isinstance(field.transform, IdentityTransform) else {}
    with suppress(ValueError):
        if schema.find_field(field.name, case_sensitive=case_sensitive).field_id != field.source_id:
            return tuple(names)
    return (*names, field.name) if field.name not in names else tuple(names)


# -- Paths ----------------------------------------------------------------------------------------------------------


def _path_rows(state: TableState, paths: Sequence[str] | DataFrame) -> DataFrame:
    """Return the paths as rows of `FILE_PATH`. A DataFrame is computed only once."""
    table = state.metadata.location
    argument: object = paths
    if isinstance(argument, str):
        raise ValidationError(f"{table}: the files to add are {shown(paths)}: they are a list of paths, or a DataFrame")
    if isinstance(paths, Sequence):
        candidates: Sequence[object] = paths
        for path in candidates:
            if not isinstance(path, str) or not path:
                raise ValidationError(f"{table}: a path of the files to add is {shown(path)}: expected a string")
        counts = Counter(map(normalize, paths))
        if len(counts) < len(paths):
            repeated_paths = {counted: path for path in paths if counts[counted := normalize(path)] > 1}
            _refuse_paths(sorted(repeated_paths.values()), state, "given twice")
        return local_frame(state.spark, pa.table({FILE_PATH: pa.array(paths, pa.string())}))
    path_columns = [name for name in _PATH_COLUMNS if name in paths.columns] or paths.columns
    if len(path_columns) != 1 and path_columns[0] not in _PATH_COLUMNS:
        problem = f"expected {' or '.join(_PATH_COLUMNS)}, or a single column"
        raise ValidationError(f"{table}: the files to add have the columns {', '.join(paths.columns)}: {problem}")
    kind = paths.schema[path_columns[0]].dataType
    if not isinstance(kind, StringType):
        raise ValidationError(
            f"{table}: column {path_columns[0]} of the files to add is {kind.simpleString()}, not string"
        )
    return checkpointed(paths.select(F.col(quoted(path_columns[0])).alias(FILE_PATH)))


def _refuse_repeated(path_rows: DataFrame, state: TableState) -> None:
    if len(path_rows.where(F.col(FILE_PATH).isNull()).limit(1).toArrow()):
        raise ValidationError(f"{state.metadata.location}: a path of the files to add is null")
    path_counts = path_rows.groupBy(location_key(sql.col(FILE_PATH)).column()).agg(
        F.count("*").alias("count"), F.min(FILE_PATH).alias(FILE_PATH)
    )
    _refuse(path_counts.where("count > 1"), state, "given twice")


def _refuse_present(path_rows: DataFrame, state: TableState) -> None:
    manifests = live_manifests(state.data_manifests)
    if not len(manifests):
        return
    live = state.live_entries(manifests, state.projection(("location", "version_info")))
    keys = path_rows.select(FILE_PATH, location_key(sql.col(FILE_PATH)).alias(_KEY).column())
    table_keys = live.select(location_key(sql.col("location")).alias(_KEY).column())
    _refuse(keys.join(table_keys, _KEY, "left_semi"), state, "in the table already")


def _refuse(files: DataFrame, state: TableState, problem: str) -> None:
    paths = files.select(FILE_PATH).orderBy(FILE_PATH).limit(_MAX_NAMED + 1).toArrow().column(0).to_pylist()
    _refuse_paths(paths, state, problem)


def _refuse_paths(paths: Sequence[str], state: TableState, problem: str) -> None:
    if paths:
        more = ", and more" if len(paths) > _MAX_NAMED else ""
        verb = "is" if len(paths) == 1 else "are"
        raise ValidationError(f"{state.metadata.location}: {', '.join(paths[:_MAX_NAMED])}{more} {verb} {problem}")


def _needs_mapping(described: DataFrame) -> bool:
    """Return whether readers need a name mapping for any file.

    Raises:
        ValidationError: a file does not fit. If several fail, the first path's error is raised.
        NotFoundError: a file is missing.
    """
    is_broken = F.col(PROBLEM).isNotNull()
    (result,) = described.agg(
        F.count_if(is_broken).alias("broken"),
        F.min(F.when(is_broken, F.struct(FILE_PATH, PROBLEM, IS_MISSING))).alias("first"),
        F.count_if(NEEDS_MAPPING).alias("needs_mapping"),
    ).toArrow().to_pylist()  # fmt: skip
    if result["broken"]:
        first_file, other_count = result["first"], result["broken"] - 1
        more = f" (and {other_count:,} more files do not fit)" if other_count else ""
        raise (NotFoundError if first_file[IS_MISSING] else ValidationError)(f"{first_file[PROBLEM]}{more}")
    return bool(result["needs_mapping"])
