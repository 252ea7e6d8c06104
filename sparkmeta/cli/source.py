"""Options that say which table, in which state, and the table that they name."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sparkmeta.errors import SparkmetaError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sparkmeta.catalog import Catalog
    from sparkmeta.scan import Scan
    from sparkmeta.table import Table

VERBOSE = "sparkmeta.verbose"


class KeyValue(click.ParamType[tuple[str, str]]):
    """`key=value`; an empty key is refused."""

    name = "key=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        key, separator, text = str(value).partition("=")
        if not key or not separator:
            self.fail(f"{value!r} is not of the form key=value", param, ctx)
        return key, text


class Timestamp(click.ParamType[datetime]):
    """An ISO 8601 date or time, without a zone in UTC."""

    name = "timestamp"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        try:
            moment = datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"{value!r} is no ISO 8601 time, such as 2026-01-31T12:00:00Z", param, ctx)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Source:
    """A table as the command line names it."""

    table: str
    catalog: str | None
    properties: dict[str, str]
    conf: dict[str, str]
    remote: str | None
    verbose: bool

    def open(self) -> Table:
        """The table, in the command line's session. Raises what `load_table` and `load_catalog` raise."""
        from sparkmeta.cli.session import cli_session

        spark = cli_session(self.conf, self.remote, show_log=self.verbose)
        if self.catalog is None:
            from sparkmeta.table import load_table

            return load_table(self._location, spark=spark)
        return _catalog(self.catalog, self.properties).load_table(self.table, spark=spark)

    @property
    def _location(self) -> str:
        """The table as a location: a path that is relative here is so for no Spark task."""
        return self.table if "://" in self.table or ":/" in self.table else str(Path(self.table).absolute())


def _catalog(name: str, properties: dict[str, str]) -> Catalog:
    from sparkmeta.catalog import load_catalog

    try:
        return load_catalog(name, **properties)
    except (ValueError, OSError) as error:
        raise SparkmetaError(f"catalog {name}: {error}") from error


@dataclass(frozen=True)
class Moment:
    """The snapshot asked for, in one of three ways, or the current one."""

    snapshot_id: int | None
    ref: str | None
    as_of: datetime | None

    def __post_init__(self) -> None:
        if sum(one is not None for one in (self.snapshot_id, self.ref, self.as_of)) > 1:
            raise click.UsageError("--snapshot-id, --ref and --as-of exclude each other")

    def of(self, table: Table) -> int | None:
        """Its id; None for the current snapshot. Raises NoSuchSnapshotError."""
        if self.ref is not None:
            return table.state.metadata_ref(self.ref).snapshot_id
        return self.snapshot_id if self.as_of is None else table.state.snapshot_id_at(self.as_of)


@dataclass(frozen=True)
class Question:
    """Which rows of which snapshot to plan for."""

    moment: Moment
    row_filter: str | None
    case_sensitive: bool

    def scan(self, table: Table) -> Scan:
        """The scan of the table. Raises InvalidFilterError, NoSuchSnapshotError."""
        scan = table.scan(case_sensitive=self.case_sensitive, snapshot_id=self.moment.snapshot_id)
        if self.moment.ref is not None:
            scan = scan.use_ref(self.moment.ref)
        if self.moment.as_of is not None:
            scan = scan.as_of(self.moment.as_of)
        return scan if self.row_filter is None else scan.filter(self.row_filter)


def takes_source(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command's TABLE argument and the options beside it, handed over as `source`."""

    @wraps(command)
    def with_source(**given: Any) -> Any:
        names = ("table", "catalog", "properties", "conf", "remote", "verbose")
        parts = {name: given.pop(name) for name in names}
        if parts["properties"] and parts["catalog"] is None:
            raise click.UsageError("--property needs --catalog")
        click.get_current_context().meta[VERBOSE] = parts["verbose"]
        source = Source(**parts | {"properties": dict(parts["properties"]), "conf": dict(parts["conf"])})
        return command(source=source, **given)

    return _decorated(
        with_source,
        click.argument("table", metavar="TABLE"),
        click.option(
            "--catalog", metavar="NAME", help="TABLE is an identifier in this catalog of pyiceberg's configuration."
        ),
        click.option(
            "--property", "properties", type=KeyValue(), multiple=True, help="A property of the catalog; repeatable."
        ),
        click.option("--conf", type=KeyValue(), multiple=True, help="A Spark setting; repeatable."),
        click.option("--remote", metavar="URL", help="A Spark Connect server (sc://host:port). [env: SPARK_REMOTE]"),
        click.option("--verbose", "-v", is_flag=True, help="Leave Spark's log on stderr, and tracebacks on errors."),
    )


def takes_moment(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that choose a snapshot, handed over as `moment`."""

    @wraps(command)
    def with_moment(snapshot_id: int | None, ref: str | None, as_of: datetime | None, **given: Any) -> Any:
        return command(moment=Moment(snapshot_id, ref, as_of), **given)

    return _decorated(
        with_moment,
        click.option("--snapshot-id", type=int, help="The snapshot to look at, instead of the current one."),
        click.option("--ref", metavar="NAME", help="A branch or tag to look at."),
        click.option(
            "--as-of", type=Timestamp(), metavar="TIME", help="The snapshot that was current then (UTC without a zone)."
        ),
    )


def takes_question(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a scan, handed over as `question`."""

    @wraps(command)
    def with_question(moment: Moment, row_filter: str | None, case_insensitive: bool, **given: Any) -> Any:
        return command(question=Question(moment, row_filter, not case_insensitive), **given)

    options = _decorated(
        with_question,
        click.option(
            "--filter", "row_filter", metavar="FILTER", help="The rows to find: \"id = 7 and name like 'a%'\"."
        ),
        click.option("--case-insensitive", is_flag=True, help="Look up the filter's columns without regard to case."),
    )
    return takes_moment(options)


def _decorated(command: Callable[..., Any], *options: Callable[[Any], Any]) -> Callable[..., Any]:
    for option in reversed(options):
        command = option(command)
    return command
