"""Define the commands that list catalogs: `namespaces` and `tables`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sparkmeta.cli.output import print_json, progress
from sparkmeta.cli.source import CatalogSource, takes_catalog
from sparkmeta.cli.tables import takes_output

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sparkmeta.catalog import Catalog


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
        identifiers = catalog.list_tables(namespace) if namespace else list(_all_tables(catalog))
    _print(identifiers, as_json)


def _all_tables(catalog: Catalog, namespace: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the identifiers of the tables below a namespace."""
    for below in catalog.list_namespaces(namespace):
        yield from catalog.list_tables(below)
        yield from _all_tables(catalog, below)


def _print(identifiers: Sequence[tuple[str, ...]], as_json: bool) -> None:
    if as_json:
        print_json(identifiers)
        return
    for identifier in identifiers:
        click.echo(".".join(identifier))
