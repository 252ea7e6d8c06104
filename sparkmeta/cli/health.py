"""Define the command `health`."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from sparkmeta.cli.output import print_json, progress
from sparkmeta.cli.source import Source, names, takes_source
from sparkmeta.cli.tables import takes_output
from sparkmeta.inspect.excerpt import printable_lines

if TYPE_CHECKING:
    from collections.abc import Callable

_THRESHOLDS = (
    click.option("--max-overlap", type=int, metavar="N", help="Mean number of other manifests that one may overlap."),
    click.option("--min-small-files", type=int, metavar="N", help="Small files at which a partition is reported."),
    click.option("--small-file-ratio", type=float, metavar="SHARE", help="Files below this share of the target size."),
    click.option("--max-deleted-ratio", type=float, metavar="SHARE", help="Share of deleted rows to report."),
    click.option("--max-excess-stats-ratio", type=float, metavar="SHARE", help="Share of excess metrics to report."),
    click.option("--max-ref-age-days", type=int, metavar="DAYS", help="Age at which branches and tags are reported."),
    click.option("--max-metadata-json-bytes", type=int, metavar="N", help="Maximum size of the metadata file."),
)


def _takes_thresholds(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_THRESHOLDS):
        command = option(command)
    return command


@click.command("health")
@click.option("--columns", metavar="A,B", help="Columns to measure overlaps of, instead of those of the sort order.")
@_takes_thresholds
@click.option(
    "--html", type=click.Path(dir_okay=False, writable=True), metavar="FILE", help="Write a page with pictures."
)
@takes_output
@takes_source
def health(source: Source, columns: str | None, html: str | None, as_json: bool, **thresholds: Any) -> None:
    """Report what maintenance a table needs, and why. Nothing changes."""
    from sparkmeta.health.examine import examine
    from sparkmeta.health.options import HealthOptions

    given = {name: value for name, value in thresholds.items() if value is not None}
    chosen = None if columns is None else names(columns)
    with progress("Opening the table"):
        table = source.open()
    with progress("Examining the table"):
        report = examine(table, HealthOptions(chosen, **given), _arguments(source))
    if html is not None:
        report.save(html)
        click.echo(f"written: {html}", err=True)
    if as_json:
        print_json(report.to_dict())
    else:
        click.echo(printable_lines(str(report)))


def _arguments(source: Source) -> str:
    """Return the arguments that name the table on a command line, without properties, which may be secret."""
    catalog = "" if source.catalog is None else f"--catalog {shlex.quote(source.catalog)} "
    return f"{catalog}{shlex.quote(source.table)}"
