"""Reads of metadata tables over many tables, whose names a pattern such as `prod.sales.*` chooses."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructType

from sparkmeta.data_source.changes import read_of
from sparkmeta.data_source.options import CHANGELOG, ROWS
from sparkmeta.data_source.tables import DECODED, PLAN, MetadataRead, Read, selected_type
from sparkmeta.errors import InvalidArgumentError, SparkmetaError, shown
from sparkmeta.fleet.inspect import OF_ONE_TABLE, TABLE, CommonRows, readable_tables

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from sparkmeta.data_source.options import Catalogs, ReadOptions
    from sparkmeta.table import Table

_log = logging.getLogger(__name__)


def tables_of(options: ReadOptions, catalogs: Catalogs) -> dict[str, Table] | None:
    """Return the tables that options choose by a pattern, by their names; None if they name a table.

    Raises:
        InvalidArgumentError: the rows, a plan or a changelog of many tables are requested.
        NoSuchTableError: the pattern matches no table.
    """
    catalog_pattern = options.pattern(catalogs)
    if catalog_pattern is None:
        return None
    if options.table.lower() in (ROWS, PLAN, CHANGELOG):
        raise InvalidArgumentError(f"path is {shown(options.path)}, a pattern: {options.table} is read of one table")
    return readable_tables(*catalog_pattern, skip_broken=options.skips_broken)


class FleetRead(Read):
    """A read of a metadata table of many tables. A task reads a share of a table."""

    def __init__(self, options: ReadOptions, tables: Mapping[str, Table]) -> None:
        name, requested, self.skips = options.table.lower(), options.column_names, options.skips_broken
        self.planning = {}
        for table_name, table in tables.items():
            chosen = {"columns": requested} if requested is not None and name in DECODED else {}
            common = CommonRows.of(table_name, name, table.state, chosen)
            try:
                read = read_of(options.without_columns(), table)
                if isinstance(read, MetadataRead):
                    read = MetadataRead(name, table, options.state(table), common.own_options.get("columns"))
            except SparkmetaError as error:
                self._skip(table_name, error)
                continue
            needed = StructType([kind for kind in read.row_type.fields if kind.name not in OF_ONE_TABLE])
            self.planning[table_name] = common, read, needed
        if not self.planning:
            raise SparkmetaError(f"{options.path}: none of the tables can be read")
        common, _, needed = next(iter(self.planning.values()))
        row_type = common.row_type(needed)
        names = row_type.names if requested is None or name in DECODED else [TABLE, *requested]
        self.row_type = selected_type(row_type, names)

    def shares(self) -> list[Any]:
        shares = []
        for common, read, needed in self.planning.values():
            try:
                shares += [(common, read, needed, share) for share in read.shares()]
            except SparkmetaError as error:
                self._skip(common.table, error)
        return shares

    def rows(self, share: Any, columns: Sequence[str]) -> Iterator[pa.Table]:  # noqa: ARG002
        common, read, needed, of_table = share
        try:
            for rows in read.rows(of_table, needed.names):
                yield common.rows(rows, needed)
        except SparkmetaError as error:
            self._skip(common.table, error)

    def _skip(self, table: str, error: SparkmetaError) -> None:
        """Log that a table is left out, or raise the error."""
        if not self.skips or isinstance(error, InvalidArgumentError):
            raise error
        _log.warning("%s is left out: %s", table, error)
