"""The commands that make tables of existing files: `snapshot-table`, `migrate-table` and `recover-table`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sparkmeta.cli.maintain import MaintenanceCommand, carry_out, metadata_written
from sparkmeta.cli.output import TextColumn, progress
from sparkmeta.cli.source import KEY_VALUE, CatalogSource, takes_catalog
from sparkmeta.cli.tables import RowOptions, takes_row_options

if TYPE_CHECKING:
    from collections.abc import Callable

_SOURCE = """SOURCE is a folder of Parquet, ORC or Avro files, or a table of such files in Spark's own catalog. TABLE is
    an identifier in the catalog. The files are not written again.

    Prints the plan. Nothing changes without --commit."""
_ABOUT = {
    "snapshot": f"""Make a table of the files of a source that stays in use.

    Later commits write to the table's own folder, and nothing deletes files of the source.

    {_SOURCE}""",
    "migrate": f"""Make a table that takes the place of a source.

    The table's folder is the source's folder, and its maintenance may delete files of the source.

    {_SOURCE}""",
}
_PRINTED = MaintenanceCommand(
    "",
    metadata_written,
    (
        TextColumn("path", "file_path", "path"),
        TextColumn("format", "file_format"),
        TextColumn("records", "record_count", "count"),
        TextColumn("size", "file_size_in_bytes", "bytes"),
    ),
    "files of the source",
)
_LOCATION = click.option(
    "--location", metavar="FOLDER", help="The folder of the table. By default, the catalog's choice."
)


def _command(kind: str, *options: Callable[[Any], Any]) -> click.Command:
    def run(source: CatalogSource, row_options: RowOptions, files: bool, commit: bool, **arguments: Any) -> None:
        names = arguments.pop("source_name"), arguments.pop("table")
        arguments["properties"] = dict(arguments.pop("table_properties"))
        arguments["partition_by"] = arguments["partition_by"] or None
        with progress("Reading the source"):
            catalog = source.open_catalog()
            plan_table = catalog.snapshot_table if kind == "snapshot" else catalog.migrate_table
            plan = plan_table(*names, **arguments)
        carry_out(plan, row_options, _PRINTED, files=files, commit=commit)

    command = takes_row_options(takes_catalog(run))
    for option in (
        click.option("--commit", is_flag=True, help="Create the table, instead of only printing the plan."),
        click.option("--files", is_flag=True, help=f"Print the {_PRINTED.files}."),
        *options,
        click.option("--format-version", type=int, metavar="N", help="1, 2, 3 or 4. By default, 2."),
        click.option("--set", "table_properties", type=KEY_VALUE, multiple=True, help="A table property. Repeatable."),
        click.option(
            "--partition-by",
            multiple=True,
            metavar="TERM",
            help="A partition field, such as day(ts), instead of the source's partition columns. Repeatable.",
        ),
        click.argument("table", metavar="TABLE"),
        click.argument("source_name", metavar="SOURCE"),
    ):
        command = option(command)
    return click.command(f"{kind}-table", help=_ABOUT[kind])(command)


_RECOVERED = MaintenanceCommand(
    "",
    metadata_written,
    (
        TextColumn("path", "file_path", "path"),
        TextColumn("version", "version", "count"),
        TextColumn("chosen", "is_chosen"),
        TextColumn("problem"),
    ),
    "metadata files that are given up, and the one that becomes current",
)


@click.command("recover-table")
@click.argument("table", metavar="TABLE")
@click.option("--location", metavar="FOLDER", help="The folder of the table, if the catalog lacks the table.")
@click.option("--metadata-location", metavar="FILE", help="The metadata file to take. Defaults to the newest.")
@click.option("--files", is_flag=True, help=f"Print the {_RECOVERED.files}.")
@click.option("--commit", is_flag=True, help="Recover the table, instead of only printing the plan.")
@takes_row_options
@takes_catalog
def recover_table(
    source: CatalogSource, row_options: RowOptions, table: str, files: bool, commit: bool, **arguments: Any
) -> None:
    """Recover a table whose metadata file is lost or cut, from the metadata files in its folder.

    TABLE is an identifier in the catalog. The newest file that can be read becomes current.

    Prints the plan. Nothing changes without --commit.
    """
    with progress("Reading metadata files"):
        plan = source.open_catalog().recover_table(table, **arguments)
    carry_out(plan, row_options, _RECOVERED, files=files, commit=commit)


COMMANDS = [_command("snapshot", _LOCATION), _command("migrate"), recover_table]
