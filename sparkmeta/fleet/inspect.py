"""`catalog.inspect`: metadata tables over many tables, with the name of the table as the first column."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import pyarrow as pa
from pyiceberg.types import IcebergType, UUIDType
from pyspark.sql import DataFrame
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from sparkmeta.arrow_types import arrow_schema, spark_schema
from sparkmeta.entries.relation import at_most_one, select, typed
from sparkmeta.errors import InvalidArgumentError, SparkmetaError, problem_line
from sparkmeta.expr import sql
from sparkmeta.fleet.listing import AT_ONCE, chosen_tables, side_by_side
from sparkmeta.fleet.opened import Opened
from sparkmeta.inspect.inspect_table import InspectRows
from sparkmeta.manifests.placement import MOST_ENTRIES, ManifestLoad
from sparkmeta.plan.tasks import json_object, single_value
from sparkmeta.session import local_frame, map_arrow, read_tasks

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from sparkmeta.entries.relation import Rows
    from sparkmeta.expr.sql import Aliased, Sql
    from sparkmeta.fleet.listing import Identifier, Tables
    from sparkmeta.inspect.metadata_rows import MetadataRows
    from sparkmeta.snapshot.state import TableState
    from sparkmeta.table import Table

T = TypeVar("T")
ResultT = TypeVar("ResultT")
_log = logging.getLogger(__name__)

TABLE: Final = "table"
_PARTITION, _DATA_FILE = "partition", "data_file"
# Structs of a table's own columns.
OF_ONE_TABLE: Final = ("readable_metrics", "row")
_TEXT = StructField(_PARTITION, StringType())
_OF_FILES = (("spec_id", _TEXT),)
# Metadata table -> columns that it has only for some tables, and the column before each.
_OF_SOME: Final[Mapping[str, tuple[tuple[str, StructField], ...]]] = {
    **dict.fromkeys(("files", "data_files", "delete_files", "entries"), _OF_FILES),
    **dict.fromkeys(("all_files", "all_data_files", "all_delete_files", "all_entries"), _OF_FILES),
    "partitions": (("", _TEXT), (_PARTITION, StructField("spec_id", IntegerType()))),
    "position_deletes": (
        ("pos", _TEXT),
        ("delete_file_path", StructField("content_offset", LongType())),
        ("content_offset", StructField("content_size_in_bytes", LongType())),
    ),
}
_Columns = dict[str, tuple[StructField, "Sql"]]


# -- Rows with the same columns for all tables ------------------------------------------------------------------------


@dataclass(frozen=True)
class CommonRows:
    """Converts the rows of a table's metadata table to columns that all tables share.

    The first column is the name of the table. Partitions are JSON objects, without nulls. Structs of the table's own
    columns, such as `readable_metrics`, are left out.

    Attributes:
        table: the name of the table.
        name: the metadata table.
        kinds: the types of its partition fields, by their names.
        options: the options of the metadata table.
    """

    table: str
    name: str
    kinds: Mapping[str, IcebergType]
    options: Mapping[str, Any]

    @staticmethod
    def of(table: str, name: str, state: TableState, options: Mapping[str, Any]) -> CommonRows:
        """Return the conversion of the rows of a table."""
        kinds = {part.name: part.field_type for part in state.types.partition_type.fields}
        return CommonRows(table, name, kinds, options)

    @property
    def own_options(self) -> dict[str, Any]:
        """The options for this table: an unpartitioned table has no column `partition`."""
        requested = self.options.get("columns")
        if requested is None or self.kinds:
            return dict(self.options)
        replacements = {_PARTITION: "spec_id", f"{_DATA_FILE}.{_PARTITION}": f"{_DATA_FILE}.spec_id"}
        return {**self.options, "columns": [*dict.fromkeys(replacements.get(column, column) for column in requested)]}

    def row_type(self, row_type: StructType) -> StructType:
        """Return the type of the rows that `rows` returns for rows of a type."""
        return StructType([StructField(TABLE, StringType()), *(kind for kind, _ in self._columns(row_type))])

    def rows(self, rows: Rows, row_type: StructType) -> Rows:
        """Return the rows with the same columns for all tables.

        Args:
            rows: rows of the metadata table.
            row_type: their type.
        """
        columns = [column.alias(kind.name) for kind, column in self._columns(row_type)]
        common = select(rows, [sql.lit(self.table).alias(TABLE), *columns])
        return typed(common, arrow_schema(self.row_type(row_type)))

    def _columns(self, row_type: StructType) -> list[tuple[StructField, Sql]]:
        if _DATA_FILE not in row_type.names:
            columns = self._common(row_type, "", is_file=not self.name.endswith("entries"))
        else:
            columns = self._common(row_type, "", is_file=False)
            inner: Any = row_type[_DATA_FILE].dataType
            parts = self._common(inner, f"{_DATA_FILE}.", is_file=True).values()
            struct = sql.struct(*(column.alias(kind.name) for kind, column in parts))
            columns[_DATA_FILE] = StructField(_DATA_FILE, StructType([kind for kind, _ in parts])), struct
        if not columns:
            raise InvalidArgumentError(f"columns is {self.options.get('columns')}: tables have none of them in common")
        return [*columns.values()]

    def _common(self, row_type: StructType, above: str, *, is_file: bool) -> _Columns:
        """Return the columns of rows or of a struct in them, by their names."""
        columns: _Columns = {}
        for kind in row_type.fields:
            value = sql.col(f"{above}{kind.name}")
            if kind.name == _PARTITION:
                names = kind.dataType.names  # type: ignore[attr-defined]
                columns[_PARTITION] = _TEXT, self._json(f"{above}{_PARTITION}", names)
            elif kind.name not in OF_ONE_TABLE:
                columns[kind.name] = StructField(kind.name, kind.dataType), value
        for before, kind in _OF_SOME.get(self.name, ()) if is_file else ():
            if kind.name not in columns:
                empty = sql.lit("{}") if kind is _TEXT else sql.lit(None).cast(kind.dataType.simpleString())
                items, index = [*columns.items()], [*columns].index(before) + 1 if before in columns else 0
                columns = dict([*items[:index], (kind.name, (kind, empty)), *items[index:]])
        return {name: column for name, column in columns.items() if self._is_requested(f"{above}{name}")}

    def _is_requested(self, path: str) -> bool:
        requested = self.options.get("columns")
        return requested is None or any(
            f"{column}.".startswith(f"{path}.") or f"{path}.".startswith(f"{column}.") for column in requested
        )

    def _json(self, path: str, names: Iterable[str]) -> Sql:
        members: list[Aliased] = []
        for name in names:
            value, kind = sql.col(f"{path}.`{name}`"), self.kinds[name]
            # UUIDs are texts already.
            members.append((value if isinstance(kind, UUIDType) else single_value(value, kind)).alias(name))
        return json_object(members) if members else sql.lit("{}")


# -- Metadata tables of many tables -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Deferred:
    """A table that a task reads."""

    common: CommonRows
    opened: Opened


@dataclass(frozen=True)
class _Tasks:
    """Reads tables in tasks, given by their indices."""

    tables: tuple[_Deferred, ...]
    skip_broken: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column("index").to_pylist():
                table = self.tables[index]
                try:
                    rows = metadata_rows(InspectRows(table.opened.state(), table.opened.location), table.common)
                    yield from table.common.rows(rows.table(), rows.row_type).to_batches()
                except SparkmetaError as error:
                    _leave_out(table.common.table, error, skip_broken=self.skip_broken)


def metadata_rows(tables: InspectRows, common: CommonRows) -> MetadataRows:
    """Return the rows of a table's metadata table."""
    rows: MetadataRows = getattr(tables, common.name)(**common.own_options)
    return rows


class FleetTables(ABC, Generic[T]):
    """The metadata tables of all tables whose names match a pattern, such as `sales.*`; by default of all.

    The first column, `table`, is the name of the table. The others are as in `table.inspect`, with two differences:
    `partition` is a JSON object such as `{"day":"2026-01-31","country":"NO"}`, without fields that are null, since
    tables have different partitions; and `readable_metrics`, and `row` of `position_deletes`, are left out.

    The options are `ref`, `as_of` and `columns`, as in `table.inspect`. A table that can't be read is an error that
    names it. With `skip_broken=True` it is left out, and a warning is logged.

    All raise NoSuchTableError if the pattern matches no table.
    """

    def __init__(self, catalog: Tables, spark: SparkSession | None = None) -> None:
        self._catalog, self._spark = catalog, spark

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._catalog.name})"

    @abstractmethod
    def _read(self, name: str, pattern: str, skip_broken: bool, options: Mapping[str, Any]) -> T:
        """Return the rows of a metadata table of the tables that a pattern chooses."""

    def entries(self, pattern: str = "*", *, skip_broken: bool = False, **options: Any) -> T:
        """Return a row for each entry of the manifests, including deleted files."""
        return self._read("entries", pattern, skip_broken, options)

    def files(self, pattern: str = "*", *, skip_broken: bool = False, **options: Any) -> T:
        """Return a row for each live data or delete file."""
        return self._read("files", pattern, skip_broken, options)

    def data_files(self, pattern: str = "*", *, skip_broken: bool = False, **options: Any) -> T:
        """Return a row for each live data file."""
        return self._read("data_files", pattern, skip_broken, options)

    def delete_files(self, pattern: str = "*", *, skip_broken: bool = False, **options: Any) -> T:
        """Return a row for each live delete file or deletion vector."""
        return self._read("delete_files", pattern, skip_broken, options)

    def manifests(self, pattern: str = "*", *, skip_broken: bool = False, **options: Any) -> T:
        """Return a row for each manifest."""
        return self._read("manifests", pattern, skip_broken, options)

    def partitions(self, pattern: str = "*", *, skip_broken: bool = False, **options: Any) -> T:
        """Return a row for each partition that has live files."""
        return self._read("partitions", pattern, skip_broken, options)

    def position_deletes(self, pattern: str = "*", *, skip_broken: bool = False, **options: Any) -> T:
        """Return a row for each deleted position."""
        return self._read("position_deletes", pattern, skip_broken, options)

    def snapshots(self, pattern: str = "*", *, skip_broken: bool = False, **options: Any) -> T:
        """Return a row for each snapshot that has not expired."""
        return self._read("snapshots", pattern, skip_broken, options)

    def history(self, pattern: str = "*", *, skip_broken: bool = False, **options: Any) -> T:
        """Return a row for each change of the current snapshot."""
        return self._read("history", pattern, skip_broken, options)

    def refs(self, pattern: str = "*", *, skip_broken: bool = False, **options: Any) -> T:
        """Return a row for each branch or tag."""
        return self._read("refs", pattern, skip_broken, options)

    def metadata_log_entries(self, pattern: str = "*", *, skip_broken: bool = False, **options: Any) -> T:
        """Return a row for each metadata file in the log."""
        return self._read("metadata_log_entries", pattern, skip_broken, options)

    def all_manifests(self, pattern: str = "*", *, skip_broken: bool = False, **options: Any) -> T:
        """Return a row for each manifest of each snapshot."""
        return self._read("all_manifests", pattern, skip_broken, options)

    def all_files(self, pattern: str = "*", *, skip_broken: bool = False, **options: Any) -> T:
        """Return a row for each live file in each manifest of any snapshot."""
        return self._read("all_files", pattern, skip_broken, options)

    def all_data_files(self, pattern: str = "*", *, skip_broken: bool = False, **options: Any) -> T:
        """Return a row for each data file among `all_files`."""
        return self._read("all_data_files", pattern, skip_broken, options)

    def all_delete_files(self, pattern: str = "*", *, skip_broken: bool = False, **options: Any) -> T:
        """Return a row for each delete file among `all_files`."""
        return self._read("all_delete_files", pattern, skip_broken, options)

    def all_entries(self, pattern: str = "*", *, skip_broken: bool = False, **options: Any) -> T:
        """Return a row for each entry of each manifest of any snapshot."""
        return self._read("all_entries", pattern, skip_broken, options)


def each_table(
    catalog: Tables, pattern: str, spark: SparkSession | None, skip_broken: bool, read: Callable[[str, Table], ResultT]
) -> Iterator[ResultT]:
    """Yield the results of a function of each table's name and the table. Tables are opened side by side.

    Args:
        catalog: the catalog.
        pattern: chooses the tables.
        spark: the session.
        skip_broken: whether to log a table that can't be read, and leave it out.
        read: the function.

    Raises:
        NoSuchTableError: the pattern matches no table.
        SparkmetaError: a table or namespace can't be read.
    """
    running = catalog.sessions.for_caller(spark).running()
    chosen = chosen_tables(catalog, pattern)

    def of_table(identifier: Identifier) -> ResultT | None:
        name = ".".join(identifier)
        try:
            return read(name, catalog.load_table(identifier, running))
        except InvalidArgumentError:
            raise
        except Exception as error:  # noqa: BLE001  Python's own errors name no table
            _leave_out(name, error, skip_broken=skip_broken)
            return None

    for name, error in chosen.problems.items():
        _leave_out(name, error, skip_broken=skip_broken)
    results = side_by_side(catalog, chosen.tables, of_table, AT_ONCE, "Reading metadata of tables")
    is_empty = True
    for result in results:
        if result is not None:
            is_empty = False
            yield result
    if is_empty:
        raise SparkmetaError(f"{pattern}: none of the tables can be read")


def _leave_out(name: str, error: Exception, *, skip_broken: bool) -> None:
    line = f"{name}: {problem_line(error)}"
    if not skip_broken:
        raise SparkmetaError(line) from error
    _log.warning("%s: the table is left out", line)


def readable_tables(catalog: Tables, pattern: str, *, skip_broken: bool) -> dict[str, Table]:
    """Return the tables that a pattern chooses, by their names; see `each_table`."""
    return dict(each_table(catalog, pattern, None, skip_broken, lambda name, table: (name, table)))


class FleetArrow(FleetTables[pa.Table]):
    """The metadata tables of many tables, as Arrow tables in memory. Small ones need no Spark."""

    def _read(self, name: str, pattern: str, skip_broken: bool, options: Mapping[str, Any]) -> pa.Table:
        def of_table(table: str, opened: Table) -> pa.Table:
            common = CommonRows.of(table, name, opened.state, options)
            rows = metadata_rows(InspectRows(opened.state, opened.metadata_location), common)
            return common.rows(rows.table(), rows.row_type)

        return pa.concat_tables([*each_table(self._catalog, pattern, self._spark, skip_broken, of_table)])


class InspectTables(FleetTables[DataFrame]):
    """The metadata tables of many tables, as DataFrames.

    The driver reads tables until it has 150,000 rows. Tasks read the other tables whose manifests the driver could
    read, a table each, when the DataFrame runs. The DataFrames of larger tables are united with these rows.
    """

    @property
    def arrow(self) -> FleetArrow:
        """The same metadata tables as Arrow tables: `catalog.inspect.arrow.files("sales.*")`."""
        return FleetArrow(self._catalog, self._spark)

    def _read(self, name: str, pattern: str, skip_broken: bool, options: Mapping[str, Any]) -> DataFrame:
        spark = self._catalog.sessions.for_caller(self._spark).get()
        row_count = 0

        def of_table(table: str, opened: Table) -> pa.Table | DataFrame | _Deferred:
            nonlocal row_count
            state = opened.state
            common = CommonRows.of(table, name, state, options)
            if row_count > MOST_ENTRIES and state.access.tasks is not None and _is_small(state):
                return _Deferred(common, Opened.of(opened, state))
            rows = metadata_rows(InspectRows(state, opened.metadata_location), common)
            read = common.rows(rows.relation(), rows.row_type)
            row_count += len(read) if isinstance(read, pa.Table) else 0
            return read

        results = [*each_table(self._catalog, pattern, self._spark, skip_broken, of_table)]
        tables = [rows for rows in results if isinstance(rows, pa.Table)]
        deferred = tuple(rows for rows in results if isinstance(rows, _Deferred))
        frames = [rows for rows in results if not isinstance(rows, pa.Table | _Deferred)]
        if deferred:
            kind = spark_schema(tables[0].schema)
            indices = local_frame(spark, pa.table({"index": pa.array(range(len(deferred)), pa.int32())}))
            spread = indices.repartition(read_tasks(spark, len(deferred)))
            frames.append(map_arrow(spread, _Tasks(deferred, skip_broken), kind))
        if tables:
            frames.insert(0, local_frame(spark, pa.concat_tables(tables)))
        return at_most_one(frames)[0]


def _is_small(state: TableState) -> bool:
    """Return whether the driver could decode the manifests of the current snapshot."""
    return ManifestLoad.of(state.manifests).fits_driver(state.settings.driver_manifest_bytes)
