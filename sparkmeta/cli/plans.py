"""Print a maintenance plan, commit it, and print the outcome, for all commands that change a table."""

from __future__ import annotations

import sys
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import click

from sparkmeta.cli.output import print_json, progress, unread_output_dropped
from sparkmeta.inspect.excerpt import printable_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame

    from sparkmeta.cli.output import TextColumn
    from sparkmeta.cli.tables import RowOptions
    from sparkmeta.table import Table

UNCHANGED = "nothing is changed without --commit"


class Plan(Protocol):
    """A plan of `table.maintenance`."""

    @property
    def table(self) -> Table: ...

    def files(self) -> DataFrame: ...

    def summary(self) -> Any: ...

    def commit(self) -> Any: ...

    def result(self) -> dict[str, Any]: ...


def carry_out(
    plan: Plan,
    row_options: RowOptions,
    columns: tuple[TextColumn, ...],
    outcome: Callable[[Mapping[str, Any]], Iterable[str]],
    *,
    files: bool,
    commit: bool,
    doing: str,
) -> None:
    """Print a plan, and commit it if that is asked for.

    Args:
        plan: the plan.
        row_options: how rows are printed.
        columns: the columns of `plan.files()` in text.
        outcome: lines about the part `committed` of the plan's result.
        files: whether to print the plan's files; without `commit` nothing else. As JSON, the result is a line too.
        commit: whether to commit.
        doing: the name of the commit's progress.
    """
    if files:
        with unread_output_dropped(sys.stdout) if commit else nullcontext():
            row_options.print(plan.files(), columns, plan.table.location())
        if not commit:
            return
    with progress("Planning"):
        summary = plan.summary()

    def print_result() -> None:
        result = plan.result()
        if row_options.as_json:
            print_json(result, in_a_line=files)
            return
        click.echo(printable_lines(str(summary)))
        if result["committed"] is not None:
            for line in outcome(result["committed"]):
                click.echo(printable_lines(line))
        elif not commit and not getattr(summary, "is_empty", False):
            click.echo(UNCHANGED)

    if commit:
        with printed_on_failure(plan, print_result), progress(doing):
            plan.commit()
    print_result()


@contextmanager
def printed_on_failure(plan: Plan, print_result: Callable[[], None]) -> Iterator[None]:
    """Print a plan's result if its commit in the block fails after parts of the plan were committed."""
    try:
        yield
    except Exception:
        if getattr(plan, "is_partly_committed", False):
            with unread_output_dropped(sys.stdout):
                print_result()
        raise
