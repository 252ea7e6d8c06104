"""Define the command `view`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sparkmeta.cli.describe import column_line, columns, property_lines, time_text
from sparkmeta.cli.output import print_facts, print_json, progress
from sparkmeta.cli.source import CatalogSource, takes_catalog
from sparkmeta.cli.tables import takes_output

if TYPE_CHECKING:
    from sparkmeta.views.view import View


@click.command()
@click.argument("name", metavar="VIEW")
@click.option("--sql", "dialect", metavar="DIALECT", help="Print only the query in this SQL dialect.")
@click.option("--translate", is_flag=True, help="With --sql: if there is no such query, have sqlglot translate one.")
@takes_output
@takes_catalog
def view(source: CatalogSource, name: str, dialect: str | None, translate: bool, as_json: bool) -> None:
    """Show the queries, columns, versions and properties of a view."""
    if dialect is None and translate:
        raise click.UsageError("--translate needs --sql")
    if dialect is not None and as_json:
        raise click.UsageError("--sql prints text: it takes no --output json")
    with progress("Opening the view"):
        opened = source.open().load_view(name)
    if dialect is not None:
        click.echo(opened.sql(dialect, translate=translate))
    elif as_json:
        print_json(_description(opened))
    else:
        print_facts(opened.full_name, _facts(opened))


def _description(view: View) -> dict[str, Any]:
    version = view.current_version()
    return {
        "name": view.full_name,
        "location": view.location(),
        "view_uuid": None if view.uuid() is None else str(view.uuid()),
        "metadata_location": view.metadata_location,
        "schema": columns(view.schema()),
        "queries": {query.dialect: query.sql for query in version.sql_representations},
        "default_catalog": version.default_catalog,
        "default_namespace": list(version.default_namespace),
        "current_version_id": version.version_id,
        "versions": [
            {
                "version_id": known.version_id,
                "created_at": time_text(known.timestamp_ms),
                "schema_id": known.schema_id,
                "dialects": [query.dialect for query in known.sql_representations],
                "summary": dict(known.summary),
            }
            for known in view.versions
        ],
        "history": [
            {"made_current_at": time_text(entry.timestamp_ms), "version_id": entry.version_id}
            for entry in view.history()
        ],
        "properties": view.properties,
    }


def _facts(view: View) -> dict[str, object]:
    known = _description(view)
    versions = ((each["version_id"], ", ".join(each["dialects"]), each["created_at"]) for each in known["versions"])
    return {
        "location": known["location"],
        "metadata file": known["metadata_location"],
        "uuid": known["view_uuid"] or "none",
        **{f"query in {dialect}": text.splitlines() for dialect, text in known["queries"].items()},
        "columns": [column_line(column) for column in known["schema"]],
        "default catalog": known["default_catalog"] or "the view's own",
        "default namespace": ".".join(known["default_namespace"]) or "none",
        "current version": known["current_version_id"],
        "versions": [f"{version_id} ({dialects} at {time})" for version_id, dialects, time in versions],
        "history": [f"{entry['version_id']} since {entry['made_current_at']}" for entry in known["history"]],
        "properties": property_lines(known["properties"]),
    }
