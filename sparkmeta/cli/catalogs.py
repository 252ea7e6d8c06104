"""Define the commands that list catalogs: `namespaces`, `tables` and `views`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sparkmeta.cli.output import print_json, progress
from sparkmeta.cli.source import CatalogSource, takes_catalog
from sparkmeta.cli.tables import takes_output
from sparkmeta.inspect.excerpt import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from sparkmeta.catalog import Catalog
    from sparkmeta.catalog.base import Identifier


@click.command()
@click.argument("namespace", metavar="[NAMESPACE]", default="")
@takes_output
@takes_catalog
def namespaces(source: CatalogSource, namespace: str, as_json: bool) -> None:
    """List the namespaces of a catalog, or those directly in NAMESPACE."""
    with progress("Listing namespaces"):
        identifiers = source.open().list_namespaces(namespace)
    _print(identifiers, as_json)


@click.command()
@click.argument("namespace", metavar="[NAMESPACE]", default="")
@takes_output
@takes_catalog
def tables(source: CatalogSource, namespace: str, as_json: bool) -> None:
    """List the tables directly in NAMESPACE, or those of all namespaces of a catalog."""
    with progress("Listing tables"):
        catalog = source.open()
        identifiers = list(_listed(catalog, catalog.list_tables, namespace))
    _print(identifiers, as_json)


@click.command()
@click.argument("namespace", metavar="[NAMESPACE]", default="")
@takes_output
@takes_catalog
def views(source: CatalogSource, namespace: str, as_json: bool) -> None:
    """List the views directly in NAMESPACE, or those of all namespaces of a catalog."""
    with progress("Listing views"):
        catalog = source.open()
        identifiers = list(_listed(catalog, catalog.list_views, namespace))
    _print(identifiers, as_json)


def _listed(
    catalog: Catalog, list_names: Callable[[Identifier], Iterable[tuple[str, ...]]], namespace: str
) -> Iterator[tuple[str, ...]]:
    """Yield the identifiers that a function lists for a namespace, or for all namespaces if it is empty."""
    if namespace:
        yield from list_names(namespace)
        return
    namespaces = catalog.list_namespaces()
    while namespaces:
        below = namespaces.pop(0)
        yield from list_names(below)
        namespaces = [*catalog.list_namespaces(below), *namespaces]


def _print(identifiers: Sequence[tuple[str, ...]], as_json: bool) -> None:
    if as_json:
        print_json(identifiers)
        return
    for identifier in identifiers:
        click.echo(printable(".".join(identifier)))
