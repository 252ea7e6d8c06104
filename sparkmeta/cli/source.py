"""The options that choose a session, a table, a snapshot and a filter."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from importlib.abc import MetaPathFinder
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from sparkmeta.errors import SessionError, SparkmetaError
from sparkmeta.session import SessionSource, local_session
from sparkmeta.spec.iso_times import moment_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from datetime import datetime

    from pyspark.sql import SparkSession

    from sparkmeta.catalog import Catalog
    from sparkmeta.scan import Scan
    from sparkmeta.table import Table


T = TypeVar("T")

# -- Start a Spark session, with its log hidden -----------------------------------------------------------------------


_STDERR = 2
_LOG_LINES = 3


def cli_session(config: Mapping[str, str], remote: str | None, *, show_log: bool) -> SparkSession:
    """Start the session for a command: on a Spark Connect server, or on this machine.

    Args:
        config: Spark settings.
        remote: The URL of a Spark Connect server (``sc://host``). The default is the variable SPARK_REMOTE.
        show_log: Leave Spark's log on stderr.

    Raises:
        SessionError: Spark did not start.
    """
    _show_pandas()
    from pyspark.errors import PySparkException

    remote = remote or os.environ.get("SPARK_REMOTE")
    with tempfile.TemporaryFile() as log, _stderr_into(None if show_log else log):
        try:
            return _remote_session(remote, config) if remote else local_session(config=config)
        except PySparkException as error:
            raise SessionError(f"Spark did not start: {_reason(error, log)}") from error


class _NoPandas(MetaPathFinder):
    """Lets imports of pandas fail."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:  # noqa: ARG002
        if fullname == "pandas":
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


@contextmanager
def without_pandas() -> Iterator[None]:
    """Keep Arrow from importing pandas, which takes half a second, in the block or until Spark starts."""
    if "pyarrow" not in sys.modules:
        sys.meta_path.insert(0, _NoPandas())
    try:
        yield
    finally:
        _show_pandas()


@contextmanager
def few_collections() -> Iterator[None]:
    """Let Python rarely collect garbage in the block: scanning the objects of imports takes a tenth of a second."""
    before = gc.get_threshold()
    gc.set_threshold(50_000, 20, 20)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _show_pandas() -> None:
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _NoPandas)]


def _remote_session(url: str, config: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote(url)
    for key, value in config.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


@contextmanager
def _stderr_into(log: IO[bytes] | None) -> Iterator[None]:
    """Redirect stderr to a file for processes that the block starts.

    A logging configuration would not help: Spark's launcher prints its first lines before it reads the configuration.
    """
    if log is None:
        yield
        return
    sys.stderr.flush()
    original = os.dup(_STDERR)
    os.dup2(log.fileno(), _STDERR)
    try:
        yield
    finally:
        os.dup2(original, _STDERR)
        os.close(original)


def _reason(error: Exception, log: IO[bytes]) -> str:
    log.seek(0)
    lines = [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    return "; ".join([str(error).strip().splitlines()[0], *lines[-_LOG_LINES:]])


# -- Options that choose a table, a snapshot and a filter -------------------------------------------------------------


VERBOSE = "sparkmeta.verbose"


def names(text: str) -> list[str]:
    """Split a list of names such as ``a,b``; see `listed_names`."""
    from sparkmeta.expr.filter_text import listed_names

    return listed_names(text)


def key_value(text: str) -> tuple[str, str]:
    """Split a text of the form `key=value`. Raises ValueError if it has another form or no key."""
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise ValueError(f"{text!r} is not of the form key=value")
    return key, value


class Parsed(click.ParamType[T]):
    """A parameter whose text a function parses. The function raises ValueError for a text that is not valid."""

    def __init__(self, name: str, parse: Callable[[str], T]) -> None:
        self.name = name
        self.parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        try:
            return self.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


KEY_VALUE = Parsed("key=value", key_value)
TIMESTAMP = Parsed("timestamp", moment_of)


@dataclass(frozen=True)
class CatalogSource:
    """The catalog that a command reads, and the session for it."""

    catalog: str | None
    properties: dict[str, str]
    conf: dict[str, str]
    remote: str | None
    spark: bool
    verbose: bool

    def sessions(self) -> SessionSource:
        """Return the source of the command's session, which starts when it is needed, or at once with some options.

        Raises:
            SessionError: Spark did not start.
        """
        start = partial(cli_session, self.conf, self.remote, show_log=self.verbose)
        is_chosen = self.spark or self.conf or self.remote or os.environ.get("SPARK_REMOTE")
        return SessionSource(start()) if is_chosen else SessionSource(start=start)

    def open_catalog(self) -> Catalog:
        """Load the catalog.

        Raises:
            SessionError: Spark did not start.
            SparkmetaError: See `load_catalog`.
        """
        from sparkmeta.catalog.base import with_sessions

        # The catalog may be in the configuration of a session that options start.
        sessions = self.sessions()
        return with_sessions(configured_catalog(self.catalog, self.properties), sessions)


@dataclass(frozen=True)
class Source(CatalogSource):
    """The table that a command reads, and the session for it."""

    table: str

    def open(self) -> Table:
        """Load the table.

        Raises:
            SessionError: Spark did not start.
            SparkmetaError: See `load_table` and `load_catalog`.
        """
        if self.catalog is not None:
            return self.open_catalog().load_table(self.table)
        from sparkmeta.table import open_location

        return open_location(self.table, self.sessions())


def configured_catalog(name: str | None, properties: dict[str, str]) -> Catalog:
    """Load a catalog of pyiceberg's configuration. Raises SparkmetaError."""
    from sparkmeta.catalog import load_catalog

    try:
        return load_catalog(name, **properties)
    except SparkmetaError:
        raise
    except ValueError as error:
        raise SparkmetaError(f"catalog {name}: {error}" if name else str(error)) from error


@dataclass(frozen=True)
class SnapshotChoice:
    """A choice of snapshot: by id, by ref, by time, or the current one."""

    snapshot_id: int | None
    ref: str | None
    as_of: datetime | None

    def __post_init__(self) -> None:
        if [self.snapshot_id, self.ref, self.as_of].count(None) < 2:
            raise click.UsageError("--snapshot-id, --ref and --as-of are mutually exclusive")

    def snapshot_id_in(self, table: Table) -> int | None:
        """Return the id of the snapshot in a table, or None for the current snapshot.

        Raises:
            NoSuchSnapshotError: The table has no such ref, or had no snapshot at the time.
        """
        if self.ref is not None:
            return table.state.metadata_ref(self.ref).snapshot_id
        return self.snapshot_id if self.as_of is None else table.state.snapshot_id_at(self.as_of)


@dataclass(frozen=True)
class ScanOptions:
    """The snapshot and the filter of a scan."""

    snapshot: SnapshotChoice
    row_filter: str | None
    case_sensitive: bool

    def scan(self, table: Table) -> Scan:
        """Return the scan of a table.

        Raises:
            InvalidFilterError: The filter is invalid.
            NoSuchSnapshotError: The snapshot does not exist.
        """
        scan = table.scan(case_sensitive=self.case_sensitive, snapshot_id=self.snapshot.snapshot_id)
        if self.snapshot.ref is not None:
            scan = scan.use_ref(self.snapshot.ref)
        if self.snapshot.as_of is not None:
            scan = scan.as_of(self.snapshot.as_of)
        return scan if self.row_filter is None else scan.filter(self.row_filter)


_SOURCE = ("catalog", "properties", "conf", "remote", "spark", "verbose")
_SESSION_OPTIONS = (
    click.option(
        "--property", "properties", type=KEY_VALUE, multiple=True, help="A property of the catalog. Repeatable."
    ),
    click.option("--conf", type=KEY_VALUE, multiple=True, help="A Spark setting; starts Spark at once. Repeatable."),
    click.option("--remote", metavar="URL", help="A Spark Connect server (sc://host:port). [env: SPARK_REMOTE]"),
    click.option("--spark", is_flag=True, help="Start Spark at once. By default, it starts when it is needed."),
    click.option("--verbose", "-v", is_flag=True, help="Show Spark's log and tracebacks on stderr."),
)


def takes_source(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument TABLE and its options to a command. The command gets them as `source`."""
    return _takes_tables(command, click.argument("table", metavar="TABLE"))


def takes_tables(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add TABLE as `takes_source` does. With --catalog, it may be a pattern, and defaults to `*`."""
    return _takes_tables(command, click.argument("table", metavar="TABLE", required=False))


def _takes_tables(command: Callable[..., Any], argument: Callable[[Any], Any]) -> Callable[..., Any]:
    @wraps(command)
    def with_source(**arguments: Any) -> Any:
        parts = {name: arguments.pop(name) for name in ("table", *_SOURCE)}
        if parts["properties"] and parts["catalog"] is None:
            raise click.UsageError("--property needs --catalog")
        if parts["table"] is None:
            if parts["catalog"] is None:
                raise click.UsageError("Missing argument 'TABLE'.")
            parts["table"] = "*"
        click.get_current_context().meta[VERBOSE] = parts["verbose"]
        source = Source(**parts | {"properties": dict(parts["properties"]), "conf": dict(parts["conf"])})
        return command(source=source, **arguments)

    return _decorated(
        with_source,
        argument,
        click.option(
            "--catalog", metavar="NAME", help="TABLE is an identifier in this catalog of pyiceberg's configuration."
        ),
        *_SESSION_OPTIONS,
    )


def takes_catalog(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose a catalog to a command. The command gets them as `source`."""

    @wraps(command)
    def with_catalog(**arguments: Any) -> Any:
        parts = {name: arguments.pop(name) for name in _SOURCE}
        click.get_current_context().meta[VERBOSE] = parts["verbose"]
        parts |= {"properties": dict(parts["properties"]), "conf": dict(parts["conf"])}
        return command(source=CatalogSource(**parts), **arguments)

    catalog = click.option("--catalog", metavar="NAME", help="A catalog of pyiceberg's configuration, or its default.")
    return _decorated(with_catalog, catalog, *_SESSION_OPTIONS)


def takes_session(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a session to a command of several catalogs. The command gets them as `source`."""

    @wraps(command)
    def with_session(**arguments: Any) -> Any:
        parts = {name: arguments.pop(name) for name in _SOURCE[2:]}
        click.get_current_context().meta[VERBOSE] = parts["verbose"]
        return command(source=CatalogSource(None, {}, **parts | {"conf": dict(parts["conf"])}), **arguments)

    return _decorated(with_session, *_SESSION_OPTIONS[1:])


def takes_snapshot(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose a snapshot to a command. The command gets them as `choice`."""

    @wraps(command)
    def with_snapshot(snapshot_id: int | None, ref: str | None, as_of: datetime | None, **arguments: Any) -> Any:
        return command(choice=SnapshotChoice(snapshot_id, ref, as_of), **arguments)

    return _decorated(
        with_snapshot,
        click.option("--snapshot-id", type=int, help="The snapshot to read, instead of the current one."),
        click.option("--ref", metavar="NAME", help="The branch or tag to read."),
        click.option(
            "--as-of",
            type=TIMESTAMP,
            metavar="TIME",
            help="Read the snapshot that was current then (UTC without a zone).",
        ),
    )


def takes_scan_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a scan to a command. The command gets them as `scan_options`."""

    @wraps(command)
    def with_scan_options(
        choice: SnapshotChoice, row_filter: str | None, case_insensitive: bool, **arguments: Any
    ) -> Any:
        return command(scan_options=ScanOptions(choice, row_filter, not case_insensitive), **arguments)

    options = _decorated(
        with_scan_options,
        click.option(
            "--filter", "row_filter", metavar="FILTER", help="The rows to scan for: \"id = 7 and name like 'a%'\"."
        ),
        click.option("--case-insensitive", is_flag=True, help="Ignore the case of column names in the filter."),
    )
    return takes_snapshot(options)


def _decorated(command: Callable[..., Any], *options: Callable[[Any], Any]) -> Callable[..., Any]:
    for option in reversed(options):
        command = option(command)
    return command
