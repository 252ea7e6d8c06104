"""Run the maintenance jobs of `jobs/`: open a table, plan, commit, and print the result as JSON.

A job prints its plan to standard error, and commits it with --commit. The last line of standard output is a JSON
object: the table, the plan in numbers, the committed changes (null without a commit) and the time in seconds.

Exit codes: 0 success, or nothing to do; 1 an error, described in one line; 2 invalid arguments; 3 nothing was committed
because other commits came first: run the job again. The executors need sparkmeta installed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql import SparkSession

from sparkmeta.cli.maintain import OPERATIONS, call_operation, line_options, printed_on_failure
from sparkmeta.cli.output import report_error, text_ids, unread_output_dropped
from sparkmeta.cli.source import configured_catalog, key_value
from sparkmeta.errors import SparkmetaError, is_conflict
from sparkmeta.table import load_table
from sparkmeta.text import printable_lines

if TYPE_CHECKING:
    from sparkmeta.maintain.plans import Plan
    from sparkmeta.table import Table

T = TypeVar("T")


def run_job(
    parser: argparse.ArgumentParser, plan: Callable[..., Plan[Any, Any]], arguments: Sequence[str] | None
) -> int:
    """Run a maintenance job.

    Args:
        parser: A `job_parser`, with the options of the plan as additional arguments.
        plan: A function that makes the plan. It accepts the table, and the options as keyword arguments.
        arguments: The command-line arguments. None means the arguments of the process.

    The result is printed after an error as well, if a part of the plan was committed.

    Returns:
        The exit code: 0 for success, 1 for an error, 3 if other commits came first.
    """
    parsed = parser.parse_args(arguments)
    name = parser.prog.removesuffix(".py")
    try:
        _plan_and_commit(parsed, name, plan)
    except Exception as error:  # noqa: BLE001  report_error raises what it does not know
        report_error(name, error)
        return 3 if is_conflict(error) else 1
    return 0


def job_parser(prog: str, description: str) -> argparse.ArgumentParser:
    """Return a parser of the arguments that all jobs have."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    add_table_arguments(parser)
    parser.add_argument("--commit", action="store_true", help="commit the plan, instead of only printing it")
    return parser


def run_operation(operation: str, arguments: Sequence[str] | None = None) -> int:
    """Run an operation of `Maintenance` as a job, with its options as arguments; see `run_job`."""
    parser = job_parser(f"{operation}.py", OPERATIONS[operation].about)
    for option in line_options(operation):
        kind: dict[str, Any] = {}
        flag = option.off_flag if option.default is True else option.flag
        if option.is_switch:
            kind["action"] = "store_false" if option.default is True else "store_true"
        else:
            parse, metavar, is_repeatable = option.kind
            kind["type"] = parse if isinstance(parse, type) else argument(parse)
            kind |= {"choices": option.choices} if option.choices else {"metavar": metavar}
            kind["action"] = "append" if is_repeatable else "store"
        text = f"Turn this off: {option.help}" if flag == option.off_flag else option.help
        parser.add_argument(flag, dest=option.name, help=text, **kind)
    return run_job(parser, lambda table, **options: call_operation(table, operation, options), arguments)


def argument(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Return the type of a parsed argument. It keeps the message of a ValueError, which argparse would drop."""

    def parsed(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parsed


def add_table_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `load_job_table` needs."""
    parser.add_argument("--table", required=True, help="folder or metadata file, or with --catalog an identifier")
    parser.add_argument("--catalog", help="the name of a catalog in pyiceberg's configuration")
    parser.add_argument(
        "--property",
        dest="properties",
        metavar="KEY=VALUE",
        type=argument(key_value),
        action="append",
        default=[],
        help="a property of the catalog; repeatable",
    )


def load_job_table(spark: SparkSession, parsed: argparse.Namespace) -> Table:
    """Load the table that the arguments name.

    Raises:
        SparkmetaError: there is no such table, or no such catalog.
    """
    if parsed.catalog is not None:
        return configured_catalog(parsed.catalog, dict(parsed.properties)).load_table(parsed.table, spark)
    if parsed.properties:
        raise SparkmetaError("--property needs --catalog")
    return load_table(parsed.table, spark=spark)


# Arguments that are not options of the plan.
_JOB_ARGUMENTS = {"table", "catalog", "properties", "commit"}


def _plan_and_commit(parsed: argparse.Namespace, name: str, plan_of: Callable[..., Plan[Any, Any]]) -> None:
    started = time.perf_counter()
    spark = SparkSession.builder.appName(f"{name} {parsed.table}").getOrCreate()
    options = {name: value for name, value in vars(parsed).items() if name not in _JOB_ARGUMENTS and value is not None}
    plan = plan_of(load_job_table(spark, parsed), **options)
    with unread_output_dropped(sys.stderr):
        print(printable_lines(str(plan.summary())), file=sys.stderr)  # noqa: T201
    planned = time.perf_counter()

    def print_result() -> None:
        seconds = {"plan": round(planned - started, 3), "commit": round(time.perf_counter() - planned, 3)}
        print(json.dumps(text_ids({**plan.result(), "seconds": seconds})))  # noqa: T201

    if parsed.commit:
        with printed_on_failure(plan, print_result):
            plan.commit()
    with unread_output_dropped(sys.stdout):
        print_result()
