"""Choose the tables of a configuration, and for each the one group that maintains it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING

from sparkmeta.catalog import load_catalog
from sparkmeta.errors import NoSuchTableError, ValidationError
from sparkmeta.storage.location import normalize
from sparkmeta.table import load_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sparkmeta.catalog import Catalog
    from sparkmeta.schedule.config import MaintenanceConfig, TableGroup
    from sparkmeta.table import Table

_Identifier = tuple[str, ...]


@dataclass(frozen=True)
class ChosenTable:
    """A table of a group.

    Attributes:
        name: its identifier, joined by dots, or its location.
        place: the place of the group in the configuration.
        group: the group.
        pattern: the name or location in the group that chooses the table.
        is_exact: whether `pattern` is the table's own name or location.
        load: opens the table. If a name or catalog chooses no table, or several groups choose it, it raises an error
            that says so.
    """

    name: str
    place: int
    group: TableGroup
    pattern: str
    is_exact: bool
    load: Callable[[SparkSession], Table]


def choose_tables(config: MaintenanceConfig) -> list[ChosenTable]:
    """Return the tables of all groups, in their order, each once.

    A group that names a table exactly takes it from groups that name it by a pattern. Catalogs are listed, and groups
    are compared, before a table is opened.
    """
    listings: dict[str, _Listing | Exception] = {}
    choices: dict[object, list[ChosenTable]] = {}
    for place, group in enumerate(config.tables):
        if group.catalog is None:
            for location in {normalize(location): location for location in group.locations}.values():
                table = ChosenTable(location, place, group, location, True, partial(load_table, location))
                choices.setdefault(normalize(location), []).append(table)
            continue
        if group.catalog not in listings:
            listings[group.catalog] = _listing(config, group.catalog)
        for key, table in _of_catalog(place, group, listings[group.catalog]):
            choices.setdefault((group.catalog, key), []).append(table)
    return sorted(map(_most_specific, choices.values()), key=lambda table: table.place)


def _most_specific(tables: list[ChosenTable]) -> ChosenTable:
    exact = [table for table in tables if table.is_exact] or tables
    if len(exact) == 1:
        return exact[0]
    groups = " and ".join(f"tables[{table.place}] ({table.pattern!r})" for table in exact)
    problem = f"{exact[0].name}: {groups} choose it: expected its exact name in one group only, or an exclusion"
    return replace(exact[0], load=_refusal(ValidationError(problem)))


def _refusal(error: Exception) -> Callable[[SparkSession], Table]:
    def load(_: SparkSession) -> Table:
        raise error

    return load


# -- catalogs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Listing:
    """The tables of a catalog, which is listed only if a name in the configuration has a wildcard.

    Attributes:
        catalog: the catalog.
        tables: their identifiers.
        problems: namespaces that can't be listed, as patterns -> the error.
    """

    catalog: Catalog
    tables: list[_Identifier]
    problems: dict[str, Exception]

    def exact(self, name: str) -> list[_Identifier]:
        """Return the identifiers that a name without wildcards, or of an existing table, stands for."""
        listed = [identifier for identifier in self.tables if ".".join(identifier) == name]
        return listed if listed or _has_wildcard(name) else [tuple(name.split("."))]

    def matching(self, pattern: str) -> list[_Identifier]:
        return sorted(identifier for identifier in self.tables if _matches(identifier, pattern))

    def problems_of(self, pattern: str) -> dict[str, Exception]:
        """Return the problems of namespaces in which a pattern may have tables."""
        return {below: error for below, error in self.problems.items() if _may_match_below(below[:-1], pattern)}


def _listing(config: MaintenanceConfig, name: str) -> _Listing | Exception:
    """List a catalog; return the error if it can't be loaded."""
    try:
        catalog = load_catalog(name, **config.catalogs.get(name, {}))
    except Exception as error:  # noqa: BLE001  tables of other catalogs are maintained all the same
        return error
    listing = _Listing(catalog, [], {})
    if not any(_has_wildcard(text) for group in config.tables if group.catalog == name for text in group.names):
        return listing
    pending: list[_Identifier] = [()]
    while pending:
        namespace = pending.pop()
        try:
            listing.tables.extend(catalog.list_tables(namespace) if namespace else ())
            pending += catalog.list_namespaces(namespace)
        except Exception as error:  # noqa: BLE001  tables of other namespaces are maintained all the same
            listing.problems[".".join((*namespace, "*"))] = error
    return listing


def _of_catalog(
    place: int, group: TableGroup, listing: _Listing | Exception
) -> Iterator[tuple[_Identifier | str, ChosenTable]]:
    """Yield the tables of a group of a catalog, with a key that is equal for the same table in other groups."""

    def failed(name: str, error: Exception) -> ChosenTable:
        return ChosenTable(name, place, group, name, True, _refusal(error))

    if isinstance(listing, Exception):
        yield f"catalog of {place}", failed(", ".join(group.names), listing)
        return
    unlisted: dict[str, Exception] = {}
    chosen: dict[_Identifier, tuple[str, bool]] = {}
    for name in sorted(group.names, key=_has_wildcard):
        exact = listing.exact(name)
        identifiers = exact or listing.matching(name)
        problems = {} if exact else listing.problems_of(name)
        unlisted |= problems
        if not identifiers and not problems:
            missing = NoSuchTableError(f"{name}: no table of {group.catalog} has this name")
            yield f"{place} {name}", failed(name, missing)
        for identifier in identifiers:
            chosen.setdefault(identifier, (name, bool(exact)))
    yield from ((f"{place} {pattern}", failed(pattern, error)) for pattern, error in unlisted.items())
    for identifier, (name, is_exact) in chosen.items():
        if not any(_matches(identifier, pattern) for pattern in group.excluded):
            load = partial(listing.catalog.load_table, identifier)
            yield identifier, ChosenTable(".".join(identifier), place, group, name, is_exact, load)


def _has_wildcard(name: str) -> bool:
    return "*" in name or "?" in name


def _matches(identifier: _Identifier, pattern: str) -> bool:
    return _fits(".".join(identifier), pattern)


def _may_match_below(prefix: str, pattern: str) -> bool:
    """Return whether a pattern may match more than a prefix: its beginning matches the prefix, and more follows."""
    ends = range(len(pattern) + pattern.endswith("*"))
    return any(_fits(prefix, pattern[:end]) for end in ends)


def _fits(text: str, pattern: str) -> bool:
    # A bracket is no wildcard.
    return fnmatchcase(text, pattern.replace("[", "[[]"))
