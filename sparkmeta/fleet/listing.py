"""Choose tables of a catalog by patterns of their names."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Protocol, TypeVar

from sparkmeta.checks import NAME
from sparkmeta.errors import NoSuchTableError
from sparkmeta.progress import progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from sparkmeta.session import SessionSource
    from sparkmeta.table import Table

ResultT = TypeVar("ResultT")

Identifier = tuple[str, ...]

# Threads decode manifests on the processors and wait for stores.
AT_ONCE = max(4, os.cpu_count() or 1)
"""The number of tables at work at once, unless the caller chooses another."""


class Tables(Protocol):
    """What this room needs of a catalog, whose room is above it."""

    @property
    def name(self) -> str: ...

    @property
    def sessions(self) -> SessionSource: ...

    @property
    def belongs_to_thread(self) -> bool: ...

    def list_tables(self, namespace: Identifier, /) -> list[Identifier]: ...

    def list_namespaces(self, namespace: Identifier, /) -> list[Identifier]: ...

    def load_table(self, identifier: str | Identifier, /, spark: SparkSession | None = None) -> Table: ...

    def table_exists(self, identifier: str, /) -> bool: ...

    def create_namespace_if_not_exists(self, namespace: str, /) -> None: ...

    def create_table_if_not_exists(
        self,
        identifier: str,
        /,
        schema: pa.Schema,
        *,
        partition_by: Sequence[str] = (),
        spark: SparkSession | None = None,
    ) -> Table: ...


@dataclass(frozen=True)
class Listing:
    """The tables of a catalog.

    Attributes:
        tables: their identifiers.
        problems: namespaces that can't be listed, as patterns -> the error.
    """

    tables: list[Identifier]
    problems: dict[str, Exception]

    @staticmethod
    def of(catalog: Tables) -> Listing:
        """List a catalog, without the namespaces that can't be listed."""
        listing = Listing([], {})
        pending: list[Identifier] = [()]
        while pending:
            namespace = pending.pop()
            try:
                listing.tables.extend(catalog.list_tables(namespace) if namespace else ())
                pending += catalog.list_namespaces(namespace)
            except Exception as error:  # noqa: BLE001  tables of other namespaces are chosen all the same
                listing.problems[".".join((*namespace, "*"))] = error
        return listing

    def exact(self, name: str) -> list[Identifier]:
        """Return the identifiers that a name stands for, if it has no wildcards or is the name of an existing table."""
        listed = [identifier for identifier in self.tables if ".".join(identifier) == name]
        return listed if listed or has_wildcard(name) else [tuple(name.split("."))]

    def matching(self, pattern: str) -> list[Identifier]:
        """Return the identifiers that a pattern matches, in their order."""
        return sorted(identifier for identifier in self.tables if matches(identifier, pattern))

    def problems_of(self, pattern: str) -> dict[str, Exception]:
        """Return the problems of namespaces in which a pattern may have tables."""
        return {below: error for below, error in self.problems.items() if _may_match_below(below[:-1], pattern)}


@dataclass(frozen=True)
class Chosen:
    """The tables that a pattern chooses, and the problems of namespaces in which it may have more."""

    tables: list[Identifier]
    problems: dict[str, Exception]


def chosen_tables(catalog: Tables, pattern: str) -> Chosen:
    """Return the tables of a catalog that a pattern chooses. A name without wildcards needs no listing.

    Raises:
        NoSuchTableError: the pattern matches no table.
        ValidationError: the pattern is not a text.
    """
    NAME.check("pattern", pattern)
    listing = Listing.of(catalog) if has_wildcard(pattern) else Listing([], {})
    tables = listing.exact(pattern) or listing.matching(pattern)
    chosen = Chosen(tables, listing.problems_of(pattern))
    if not chosen.tables and not chosen.problems:
        raise NoSuchTableError(f"{pattern}: no table of {catalog.name} has this name")
    return chosen


def side_by_side(
    catalog: Tables, tables: Sequence[Identifier], function: Callable[[Identifier], ResultT], at_once: int, doing: str
) -> Iterator[ResultT]:
    """Yield the results of a function for tables, in their order. Threads call it for several tables at once.

    Args:
        catalog: the catalog of the tables.
        tables: the tables.
        function: the function. Its threads have no active session.
        at_once: the number of threads.
        doing: the text of the progress.
    """
    pool = ThreadPoolExecutor(at_once, thread_name_prefix="sparkmeta-fleet")
    run = map if catalog.belongs_to_thread else pool.map
    try:
        with progress(doing, catalog.sessions) as line:
            line.total = len(tables)
            for result in run(function, tables):
                yield result
                line.done += 1
    finally:
        pool.shutdown(cancel_futures=True)


def has_wildcard(name: str) -> bool:
    """Return whether a name is a pattern: it has `*` or `?`, which stand for any characters."""
    return "*" in name or "?" in name


def matches(identifier: Identifier, pattern: str) -> bool:
    """Return whether a pattern matches an identifier, joined by dots."""
    return _fits(".".join(identifier), pattern)


def _may_match_below(prefix: str, pattern: str) -> bool:
    """Return whether a pattern may match more than a prefix: its beginning matches the prefix, and more follows."""
    ends = range(len(pattern) + pattern.endswith("*"))
    return any(_fits(prefix, pattern[:end]) for end in ends)


def _fits(text: str, pattern: str) -> bool:
    # A bracket is not a wildcard.
    return fnmatchcase(text, pattern.replace("[", "[[]"))
