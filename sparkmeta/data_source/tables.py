"""The reads of the data source in a process without a session: metadata tables, plans and rows.

A read is divided into shares for tasks. One process opens the table and returns the row type and the shares. Other
processes open the same metadata file and make the rows of a share in Arrow, with the functions of `table.inspect.arrow`
and `Scan.arrow.plan_files`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.types import StructType

from sparkmeta.arrow_types import arrow_schema, spark_schema
from sparkmeta.data_source.options import CHANGELOG, ROWS
from sparkmeta.entries.live import estimated_entry_counts
from sparkmeta.entries.projection import MANIFEST
from sparkmeta.entries.relation import collected
from sparkmeta.errors import InvalidArgumentError, hint_at, shown
from sparkmeta.expr.arrays import from_stream, to_stream
from sparkmeta.expr.evaluate import typed
from sparkmeta.fleet.opened import Opened
from sparkmeta.inspect import files, history
from sparkmeta.inspect.inspect_table import InspectArrow
from sparkmeta.inspect.manifest_rows import ALL_MANIFESTS
from sparkmeta.inspect.manifests import manifests
from sparkmeta.inspect.partition_statistics import statistics_type
from sparkmeta.inspect.position_deletes import position_deletes_type
from sparkmeta.manifests.placement import MOST_ENTRIES
from sparkmeta.manifests.sorted_manifests import packed
from sparkmeta.plan.choose import choose
from sparkmeta.plan.file_columns import entries_selection, files_selection
from sparkmeta.plan.files import plan_files_arrow, plan_schema
from sparkmeta.plan.prune import part_of, prune_manifests
from sparkmeta.rows.arrow_reader import row_type
from sparkmeta.rows.engines import shares_of
from sparkmeta.spec.entry import ContentType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from sparkmeta.data_source.options import ReadOptions
    from sparkmeta.snapshot.state import TableState
    from sparkmeta.table import Table

PLAN: Final = "plan"
OF_SNAPSHOT: Final = (
    "entries", "files", "data_files", "delete_files", "manifests", "partitions", "position_deletes",
    "partition_statistics",
)  # fmt: skip
OF_HISTORY: Final = (
    "snapshots", "history", "refs", "metadata_log_entries", "all_manifests", "all_files", "all_data_files",
    "all_delete_files", "all_entries",
)  # fmt: skip
HEALTH: Final = "health"
TABLES: Final = (ROWS, PLAN, HEALTH, *OF_SNAPSHOT, *OF_HISTORY)
_ENTRIES: Final = ("entries", "all_entries")
_FILES: Final = ("files", "data_files", "delete_files", "all_files", "all_data_files", "all_delete_files")
DECODED: Final = (*_FILES, *_ENTRIES)
"""Tables whose columns to decode can be chosen."""
_ALL_CONTENTS: Final = {
    "all_files": None,
    "all_entries": None,
    "all_data_files": ContentType.DATA_MANIFEST,
    "all_delete_files": ContentType.DELETE_MANIFEST,
}
# Maximum number of entries of a share. A share has at least one manifest.
SHARE_ENTRIES: Final = 50_000
BATCH_ROWS: Final = 10_000
"""The maximum number of rows of a batch for Spark."""
WHOLE: Final = "whole"
"""The share of a read that is not divided."""


class Read(ABC):
    """A read. It is pickled for tasks without the attributes that only the planning process needs.

    Attributes:
        row_type: the type of all of its columns.
    """

    row_type: StructType

    @abstractmethod
    def shares(self) -> list[Any]:
        """Return the shares: small values that can be pickled."""

    @abstractmethod
    def rows(self, share: Any, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the rows of a share.

        Args:
            share: one of the `shares`.
            columns: the columns that are needed. Others may be left out.
        """

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "planning"}


def read_of(options: ReadOptions, table: Table) -> Read:
    """Return a read of a table.

    Raises:
        InvalidArgumentError: there is no such metadata table, or an option is not for it.
        SparkmetaError: see `ReadOptions.scan`.
    """
    name = options.table.lower()
    if name not in TABLES:
        raise InvalidArgumentError(f"table is {shown(options.table)}: expected {', '.join((*TABLES, CHANGELOG))}")
    if options.start_snapshot_id is not None or options.end_snapshot_id is not None:
        raise InvalidArgumentError(f"start-snapshot-id and end-snapshot-id are for {CHANGELOG}: table is {name}")
    if name == ROWS:
        return RowsRead(options, table)
    if name == PLAN:
        return PlanRead(options, table)
    if options.filter is not None:
        raise InvalidArgumentError(f"filter is for {PLAN} and {ROWS}: select from table {name} with WHERE")
    if name in (HEALTH, *OF_HISTORY) and options.chooses_snapshot:
        raise InvalidArgumentError(f"table {name} is of all snapshots: it takes no snapshot, ref or time")
    if name == HEALTH:
        return HealthRead(options, table)
    return MetadataRead(name, table, options.state(table), options.column_names)


# -- Metadata tables --------------------------------------------------------------------------------------------------


class MetadataRead(Read):
    """A read of a metadata table. Tables of many files and entries are divided among several tasks."""

    def __init__(self, name: str, table: Table, state: TableState, columns: list[str] | None) -> None:
        self.name = name
        self.opened = Opened.of(table, state)
        self.planning = (table, state)
        self.columns = columns
        self.row_type = selected_type(_row_type(name, state, table, columns), None if self._decodes else columns)

    @property
    def _decodes(self) -> bool:
        """Whether the columns to decode can be chosen."""
        return self.name in DECODED

    def shares(self) -> list[Any]:
        _, state = self.planning
        if self.name in _ALL_CONTENTS:
            listed = collected(files.reachable_manifests(state, _ALL_CONTENTS[self.name], MOST_ENTRIES))
            return [to_stream(part, "zstd") for part in _parts(listed, "manifest_length")] or [
                to_stream(listed, "zstd")
            ]
        sources: dict[str, Callable[[], pa.Table]] = {
            "files": lambda: state.manifests,
            "entries": lambda: state.manifests,
            "data_files": lambda: state.data_manifests,
            "delete_files": lambda: state.delete_manifests,
            "position_deletes": lambda: state.delete_manifests,
        }
        return _ids(sources[self.name]()) if self.name in sources else [WHOLE]

    def rows(self, share: Any, columns: Sequence[str]) -> Iterator[pa.Table]:
        state = self.opened.state()
        arguments: dict[str, Any] = {}
        if self._decodes:
            arguments["columns"] = self.columns or [*columns] or [self.row_type.names[0]]
        if isinstance(share, bytes):
            given = (arguments["columns"], MOST_ENTRIES, from_stream(share))
            of_entries = self.name == "all_entries"
            read = files.all_entries(state, *given) if of_entries else files.all_files(state, None, *given)
            yield read.table()
            return
        if share != WHOLE:
            state = state.with_manifests(share)
        yield getattr(InspectArrow(state, self.opened.location), self.name)(**arguments)


def _row_type(name: str, state: TableState, table: Table, columns: list[str] | None) -> StructType:
    """Return the row type of a metadata table, without reading its rows where these are many."""
    if name in _FILES:
        return files_selection(state, columns).files_type()
    if name in _ENTRIES:
        return entries_selection(state, columns).entries_type()
    types: dict[str, Callable[[TableState], StructType]] = {
        "manifests": lambda state: manifests(state).row_type,
        "partitions": files.partitions_type,
        "position_deletes": position_deletes_type,
        "partition_statistics": statistics_type,
        "all_manifests": lambda _: spark_schema(ALL_MANIFESTS),
    }
    if name in types:
        return types[name](state)
    return spark_schema(history.table_of(name, state, table.metadata_location).schema)


class HealthRead(Read):
    """A read of the findings of `table.maintenance.health()`."""

    def __init__(self, options: ReadOptions, table: Table) -> None:
        from sparkmeta.maintain.health import source_of  # more than other reads import
        from sparkmeta.maintain.health_findings import FINDINGS

        self.opened = Opened.of(table, table.state)
        self.source = source_of(table)
        self.row_type = selected_type(spark_schema(FINDINGS), options.column_names)

    def shares(self) -> list[Any]:
        return [WHOLE]

    def rows(self, share: Any, columns: Sequence[str]) -> Iterator[pa.Table]:  # noqa: ARG002
        from sparkmeta.maintain.health import examine
        from sparkmeta.maintain.health_findings import HealthOptions

        yield examine(self.opened.open(), HealthOptions(), self.source).arrow.findings()


# -- Plans ------------------------------------------------------------------------------------------------------------


class PlanRead(Read):
    """A read of the rows of `Scan.plan_files`. A task plans the files of some data manifests."""

    def __init__(self, options: ReadOptions, table: Table) -> None:
        scan = options.scan(table)
        state = table.state.at(scan.snapshot())
        self.opened = Opened.of(table, state)
        self.options = replace(options, snapshot_id=None, ref=None, branch=None, tag=None, as_of=None)
        self.planning = scan
        self.follows_table = scan.schema() == table.schema()
        self.row_type = selected_type(plan_schema(state), options.column_names)

    def shares(self) -> list[Any]:
        return _ids(prune_manifests(self.planning.plan.filter).data)

    def rows(self, share: Any, columns: Sequence[str]) -> Iterator[pa.Table]:  # noqa: ARG002
        scan = self.options.scan(self.opened.open())
        if self.opened.snapshot_id is not None:
            scan = replace(scan, snapshot_id=self.opened.snapshot_id).with_table_schema(self.follows_table)
        pruned = prune_manifests(scan.plan.filter)
        yield plan_files_arrow(choose(part_of(pruned, share)))


# -- Rows -------------------------------------------------------------------------------------------------------------


class RowsRead(Read):
    """A read of the live rows of a table. The planning process plans the files, and tasks read them."""

    def __init__(self, options: ReadOptions, table: Table) -> None:
        self.planning = options.scan(table)
        if options.column_names is not None:
            self.select(options.column_names)
        scan = self.planning
        self.row_type = row_type(scan.state.at(scan.snapshot()), scan.projection(), scan.metadata_columns)

    def select(self, columns: Sequence[str]) -> None:
        """Read only these columns."""
        self.planning = self.planning.select(*columns)

    def shares(self) -> list[Any]:
        reader, shares = shares_of(self.planning.plan.rows, self.planning.plan.choice)
        return [(reader, to_stream(share, "zstd")) for share in shares]

    def rows(self, share: Any, columns: Sequence[str]) -> Iterator[pa.Table]:  # noqa: ARG002
        reader, parts = share
        for batch in reader.read(from_stream(parts).to_batches()):
            yield pa.Table.from_batches([batch])


# -- Shares -----------------------------------------------------------------------------------------------------------


def selected_type(row_type: StructType, columns: list[str] | None) -> StructType:
    """Return the type of some columns, by their names. Raises InvalidArgumentError for an unknown one."""
    return row_type if columns is None else StructType([field_of(row_type, name) for name in columns])


def field_of(row_type: StructType, name: str) -> Any:
    """Return a field of a row type. Raises InvalidArgumentError if there is none."""
    if name not in row_type.names:
        raise InvalidArgumentError(f"no column {shown(name)} in the table{hint_at(name, row_type.names)}")
    return row_type[name]


def refuse_misfits(row_type: StructType, schema: StructType) -> None:
    """Raise InvalidArgumentError if the rows lack a column of a schema, or have it with another type."""
    for field in schema.fields:
        known = field_of(row_type, field.name)
        if known.dataType.simpleString() != field.dataType.simpleString():
            types = f"{field.dataType.simpleString()} in the schema: expected {known.dataType.simpleString()}"
            raise InvalidArgumentError(f"column {field.name} is {types}")


def spark_batches(tables: Iterable[pa.Table], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield rows in the form that Spark accepts from a data source.

    Args:
        tables: rows with the columns of the schema and possibly others.
        schema: the schema that Spark expects.
    """
    kinds = arrow_schema(schema)
    for rows in tables:
        yield from typed(rows.select(kinds.names), kinds).to_batches(max_chunksize=BATCH_ROWS)


def _ids(listed: pa.Table) -> list[tuple[int, ...]]:
    """Return the small ids of manifests in shares; a share without manifests if there are none."""
    parts = _parts(listed, "file_size_in_bytes") or [listed]
    return [tuple(part.column(MANIFEST).to_pylist()) for part in parts]


def _parts(listed: pa.Table, size: str) -> list[pa.Table]:
    """Cut manifests into shares of few entries."""
    entries = estimated_entry_counts(listed, size).to_pylist()
    shares = packed(range(len(listed)), SHARE_ENTRIES, entries.__getitem__)
    return [listed.slice(rows[0], len(rows)) for rows in shares]
