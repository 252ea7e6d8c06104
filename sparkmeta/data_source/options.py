"""The options of the data source, and the table that they name."""

from __future__ import annotations

import re
from dataclasses import Field, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from sparkmeta.checks import one_of
from sparkmeta.errors import InvalidArgumentError, NoSuchSnapshotError, shown
from sparkmeta.expr.filter_text import listed_names
from sparkmeta.fleet.listing import has_wildcard
from sparkmeta.operations.metadata_files import is_metadata_file
from sparkmeta.session import NoSession
from sparkmeta.spec.iso_times import moment_of
from sparkmeta.storage.files import IOFiles, warehouse_io
from sparkmeta.storage.keys import TableKeys
from sparkmeta.storage.location import absolute, is_local
from sparkmeta.table import open_location, open_metadata, open_table

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from sparkmeta.catalog import Catalog
    from sparkmeta.checks import Rule
    from sparkmeta.scan import Scan
    from sparkmeta.snapshot.state import TableState
    from sparkmeta.table import Table

ROWS: Final = "rows"
CHANGELOG: Final = "changelog"

PROPERTY: Final = "property."
# A name that begins with a catalog: catalog.namespace.table.
_NAME: Final = re.compile(r"\w[\w-]*(?:\.\w[\w-]*){2,}")

Catalogs = dict[str, dict[str, str] | str]
"""Catalogs of Spark's configuration by name: their properties for pyiceberg, or why they have none."""


def option(name: str, doc: str, default: Any = None, allowed: Rule | None = None) -> Any:
    """Return a field of a class of options.

    Args:
        name: the name that users give.
        doc: what the option means.
        default: the value if they give none.
        allowed: the rule of its values, in lower case.
    """
    return field(default=default, metadata={"name": name, "doc": doc, "allowed": allowed})


class SourceOptions:
    """The options that reads and writes have in common. Subclasses are dataclasses.

    Their fields are made by `option`, or are dicts whose metadata has the `prefix` of the names of options.
    """

    path: str
    catalog: str | None
    properties: dict[str, str]
    _kind: ClassVar[str]
    _example: ClassVar[str]
    _ignored: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """Return the options that a mapping of names to texts sets.

        Raises:
            InvalidArgumentError: an option is unknown, has an unknown value, or contradicts another one.
            ValidationError: a snapshot property is computed.
        """
        described: tuple[Field[Any], ...] = fields(cls)  # type: ignore[arg-type]
        by_name = {entry.metadata["name"]: entry for entry in described if "name" in entry.metadata}
        by_prefix = {entry.metadata["prefix"]: entry.name for entry in described if "prefix" in entry.metadata}
        values: dict[str, Any] = {name: {} for name in by_prefix.values()}
        for key, text in options.items():
            name = key.lower()
            if (prefix := next(filter(name.startswith, by_prefix), None)) is not None:
                values[by_prefix[prefix]][key[len(prefix) :]] = text
            elif name in by_name:
                values[by_name[name].name] = _allowed(name, text, by_name[name].metadata["allowed"])
            elif name not in cls._ignored:
                names = ", ".join([*by_name, *(f"{prefix}*" for prefix in by_prefix)])
                raise InvalidArgumentError(f"{shown(key)} is not an option{cls._kind}; options are {names}")
        if not values.get("path"):
            raise InvalidArgumentError(f"path is missing: it names the table, as in {cls._example}('prod.db.events')")
        return cls(**values)

    def pattern(self, catalogs: Catalogs) -> tuple[Catalog, str] | None:
        """Return the catalog and the pattern of many tables in it; None if the path names a table."""
        if not has_wildcard(self.path):
            return None
        if self.catalog is not None:
            return self._catalog(self.catalog, catalogs), self.path
        first, _, rest = self.path.partition(".")
        return (self._catalog(first, catalogs), rest) if rest and _is_catalog(first, catalogs) else None

    def open(self, catalogs: Catalogs) -> Table:
        """Open the table without a session.

        Raises:
            SparkmetaError: see `load_catalog` and `load_table`.
        """
        if self.catalog is not None:
            return self._catalog(self.catalog, catalogs).load_table(self.path)
        first, _, rest = self.path.partition(".")
        if _NAME.fullmatch(self.path) and _is_catalog(first, catalogs):
            return self._catalog(first, catalogs).load_table(rest)
        location = absolute(self.path)
        keys = TableKeys.of(self.properties)
        io = None if is_local(location) else warehouse_io(self.properties, location)
        if io is None:
            return open_location(self.path, NoSession(), keys)
        if is_metadata_file(location):
            return open_metadata(location, NoSession(), io=io, keys=keys)
        return open_table(location, NoSession(), IOFiles(io, keys))

    def _catalog(self, name: str, catalogs: Catalogs) -> Catalog:
        from sparkmeta.catalog import load_catalog
        from sparkmeta.catalog.base import with_sessions

        configured = catalogs.get(name, {})
        if isinstance(configured, str):
            raise InvalidArgumentError(configured)
        return with_sessions(load_catalog(name, **{**configured, **self.properties}), NoSession())


@dataclass(frozen=True)
class ReadOptions(SourceOptions):
    """The options of a read, with the names that Iceberg's Spark source uses. The case of names does not matter."""

    path: str = option("path", "The table: catalog.namespace.table, a folder, or a metadata file.", "")
    table: str = option("table", "What to read: rows, plan, or a metadata table such as files.", ROWS)
    catalog: str | None = option("catalog", "A catalog of pyiceberg's configuration; path is an identifier in it.")
    snapshot_id: str | None = option("snapshot-id", "The snapshot to read.")
    ref: str | None = option("ref", "The branch or tag to read.")
    branch: str | None = option("branch", "The branch to read.")
    tag: str | None = option("tag", "The tag to read.")
    as_of: str | None = option(
        "as-of-timestamp", "Read the snapshot that was current then: milliseconds since 1970, or a time in ISO 8601."
    )
    filter: str | None = option("filter", "The condition of a plan, or on rows: id = 7 AND name LIKE 'a%'.")
    columns: str | None = option("columns", 'The columns to read, with commas between them: id, "name, first".')
    skip_broken: str | None = option(
        "skip-broken",
        "Whether a pattern leaves out tables that can't be read: true or false.",
        None,
        one_of("true", "false"),
    )
    start_snapshot_id: str | None = option(
        "start-snapshot-id", "The snapshot after which a changelog or a stream begins; by default with the first one."
    )
    end_snapshot_id: str | None = option("end-snapshot-id", "The last snapshot of a changelog.")
    properties: dict[str, str] = field(default_factory=dict, repr=False, metadata={"prefix": PROPERTY})
    _kind = ""
    _example = "load"

    def __post_init__(self) -> None:
        snapshot = ("snapshot_id", "ref", "branch", "tag", "as_of")
        choices = [
            entry.metadata["name"]
            for entry in fields(self)
            if entry.name in snapshot and getattr(self, entry.name) is not None
        ]
        if len(choices) > 1:
            raise InvalidArgumentError(f"{choices[0]} and {choices[1]} each name a snapshot: give one of them")

    @property
    def chooses_snapshot(self) -> bool:
        """Whether an option names a snapshot."""
        return any(chosen is not None for chosen in (self.snapshot_id, self.ref, self.branch, self.tag, self.as_of))

    @property
    def column_names(self) -> list[str] | None:
        """The columns to read; None for all."""
        return None if self.columns is None else listed_names(self.columns)

    @property
    def skips_broken(self) -> bool:
        """Whether a pattern leaves out tables that can't be read."""
        return self.skip_broken == "true"

    def without_columns(self) -> Self:
        """Return the options for all columns."""
        return replace(self, columns=None)

    # -- the snapshot -----------------------------------------------------------------------------------------------

    def state(self, table: Table) -> TableState:
        """Return the table at the chosen snapshot.

        Raises:
            NoSuchSnapshotError: there is none.
            InvalidArgumentError: an id or a time is invalid.
        """
        return table.state.at(self.scan(table).snapshot())

    def scan(self, table: Table) -> Scan:
        """Return the scan of the chosen snapshot and columns with the filter.

        Raises:
            NoSuchSnapshotError: there is no such snapshot.
            InvalidArgumentError: an id or a time is invalid, or a column is unknown.
            InvalidFilterError: the filter is invalid.
        """
        scan = table.scan(snapshot_id=None if self.snapshot_id is None else whole("snapshot-id", self.snapshot_id))
        if (ref := self._ref(table)) is not None:
            scan = scan.use_ref(ref)
        if self.as_of is not None:
            scan = scan.as_of(moment("as-of-timestamp", self.as_of))
        if self.filter is not None:
            scan = scan.filter(self.filter)
        return scan

    def _ref(self, table: Table) -> str | None:
        for kind, name in (("branch", self.branch), ("tag", self.tag)):
            if name is None:
                continue
            known = table.refs().get(name)
            if known is not None and known.snapshot_ref_type != kind:
                raise NoSuchSnapshotError(
                    f"{table.location()} has no {kind} {name!r}: it is a {known.snapshot_ref_type}"
                )
            return name
        return self.ref


def _allowed(name: str, text: str, rule: Rule | None) -> str:
    if rule is None:
        return text
    if not rule.fits(text.lower()):
        raise InvalidArgumentError(f"{name} is {shown(text)}: expected {rule.expected}")
    return text.lower()


def _is_catalog(name: str, catalogs: Catalogs) -> bool:
    from pyiceberg.utils.config import Config

    return name in catalogs or Config().get_catalog_config(name) is not None


def whole(name: str, text: str) -> int:
    """Return the text of an option as a whole number. Raises InvalidArgumentError if it is not one."""
    try:
        return int(text)
    except ValueError:
        raise InvalidArgumentError(f"{name} is {shown(text)}: expected a whole number") from None


def moment(name: str, text: str) -> datetime | int:
    """Return the text of an option as a time. Raises InvalidArgumentError if it is not one."""
    if text.strip().lstrip("-").isdecimal():
        return int(text)
    try:
        return moment_of(text)
    except ValueError:
        expected = "milliseconds since 1970, or a time such as 2026-01-31T12:00:00Z"
        raise InvalidArgumentError(f"{name} is {shown(text)}: expected {expected}") from None
