"""Define the command `maintain`, and print its results for it and for `jobs/maintain.py`."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from sparkmeta.cli.output import text_ids, unread_output_dropped
from sparkmeta.cli.source import VERBOSE, KeyValue
from sparkmeta.errors import ValidationError
from sparkmeta.inspect.excerpt import printable_lines

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sparkmeta.schedule.config import MaintenanceConfig


@click.command("maintain")
@click.option(
    "--config",
    "path",
    required=True,
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="The configuration, in TOML or YAML.",
)
@click.option("--commit", is_flag=True, help="Commit plans, instead of only printing them.")
@click.option("--conf", type=KeyValue(), multiple=True, help="A Spark setting. Repeatable.")
@click.option("--remote", metavar="URL", help="A Spark Connect server (sc://host:port). [env: SPARK_REMOTE]")
@click.option("--verbose", "-v", is_flag=True, help="Show Spark's log and tracebacks on stderr.")
@click.pass_context
def maintain(
    ctx: click.Context, path: str, commit: bool, conf: tuple[tuple[str, str], ...], remote: str | None, verbose: bool
) -> None:
    """Maintain the tables of a configuration: run the jobs that their health makes necessary.

    Prints a JSON object for each table and job on stdout, and what it does on stderr. Nothing changes without --commit.

    Exit codes: 0 success, 1 a table or job failed and the others were maintained, 2 invalid arguments or configuration,
    3 a job lost to other commits and nothing failed.
    """
    from sparkmeta.cli.session import cli_session
    from sparkmeta.schedule.config import read_config

    ctx.meta[VERBOSE] = verbose
    try:
        config = read_config(path)
    except ValidationError as error:
        raise click.UsageError(str(error)) from error
    spark = cli_session(dict(conf), remote, show_log=verbose)
    ctx.exit(print_results(config, spark, commit=commit))


def print_results(config: MaintenanceConfig, spark: SparkSession, *, commit: bool) -> int:
    """Maintain the tables of a configuration, print results and progress, and return the exit code.

    With `commit`, all tables are maintained even if the reader of the output closes the pipe.
    """
    from sparkmeta.schedule.run import exit_code, run_maintenance

    statuses = set()
    for result in run_maintenance(config, spark, commit=commit, log=_log):
        statuses.add(result.status)
        with unread_output_dropped(sys.stdout) if commit else nullcontext():
            sys.stdout.write(json.dumps(text_ids(result.to_dict()), ensure_ascii=False, default=str) + "\n")
            sys.stdout.flush()
    return exit_code(statuses)


def _log(line: str) -> None:
    with unread_output_dropped(sys.stderr):
        sys.stderr.write(f"{datetime.now(UTC):%H:%M:%S} {printable_lines(line)}\n")
