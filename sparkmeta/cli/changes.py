"""The commands `check` and `changelog`, and those that change branches and tags: `tag`, `branch` and `rollback`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sparkmeta.cli.maintain import UNCHANGED
from sparkmeta.cli.output import TextColumn, print_json, progress, time_text
from sparkmeta.cli.source import SnapshotChoice, Source, names, takes_snapshot, takes_source
from sparkmeta.cli.tables import RowOptions, takes_output, takes_row_options
from sparkmeta.errors import ValidationError
from sparkmeta.spec.iso_times import moment_of
from sparkmeta.text import counted, printable_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sparkmeta.commit.manage_snapshots import ManageSnapshots
    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.table import Table


# -- The command `check` ----------------------------------------------------------------------------------------------


_VIOLATIONS = (TextColumn("rule"), TextColumn("location", kind="path"), TextColumn("value"), TextColumn("problem"))


@click.command()
@takes_snapshot
@takes_row_options
@takes_source
@click.pass_context
def check(ctx: click.Context, source: Source, choice: SnapshotChoice, row_options: RowOptions) -> None:
    """Check the metadata of a snapshot for contradictions that would break plans or other engines. Nothing changes.

    Exit codes: 0 no contradictions, 1 there are some, or the table can't be read.
    """
    from sparkmeta.inspect.check import violations
    from sparkmeta.spec.metadata import snapshot_of

    with progress("Opening the table"):
        table = source.open()
        snapshot_id = choice.snapshot_id_in(table)
        state = table.state if snapshot_id is None else table.state.at(snapshot_of(table.metadata, snapshot_id))
        rows = violations(state)
    relation = rows.relation() if table.state.sessions.given is None else rows.frame()
    if row_options.print(relation, _VIOLATIONS, table.location(), table.state):
        ctx.exit(1)


# -- The command `changelog` ------------------------------------------------------------------------------------------


@click.command()
@click.option("--from", "start", metavar="SNAPSHOT", help="Begin after it: an id, a branch or tag, or a time.")
@click.option("--to", "end", metavar="SNAPSHOT", help="The last snapshot: an id, a branch or tag, or a time.")
@click.option("--filter", "row_filter", metavar="FILTER", help="A filter of the old and new rows.")
@click.option("--net-changes", is_flag=True, help="Leave out rows that come and go within the range.")
@click.option("--compute-updates", is_flag=True, help="Show updates, by the schema's identifier columns.")
@click.option("--identifier-columns", metavar="A,B", help="Show updates, by these columns.")
@takes_row_options
@takes_source
def changelog(
    source: Source,
    row_options: RowOptions,
    start: str | None,
    end: str | None,
    row_filter: str | None,
    identifier_columns: str | None,
    **switches: bool,
) -> None:
    """Print the rows that snapshots inserted and deleted, in the order of the snapshots if it is text.

    The default is the whole history of the current snapshot. Spark reads the rows.
    """
    with progress("Opening the table"):
        table = source.open()
        scan = table.changelog(
            _snapshot_id(table, start),
            _snapshot_id(table, end),
            identifier_columns=names(identifier_columns) if identifier_columns else (),
            **switches,
        )
    with progress("Planning"):
        rows = (scan if row_filter is None else scan.filter(row_filter)).to_df()
    # Readers such as jq round numbers of 64 bits.
    rows = rows.withColumn("_commit_snapshot_id", rows["_commit_snapshot_id"].cast("string"))
    if not row_options.as_json or row_options.limit is not None:
        rows = rows.orderBy("_change_ordinal")
    of_changes = [name for name in rows.columns if name.startswith("_change_") or name == "_commit_snapshot_id"]
    shown = [
        TextColumn(name) for name in (*of_changes, *(column for column in rows.columns if column not in of_changes))
    ]
    row_options.print(rows, shown, table.location(), table.state, of_metadata=False)


def _snapshot_id(table: Table, text: str | None) -> int | None:
    """Return the snapshot of an id, a branch or tag, or a time."""
    if text is None:
        return None
    if text in table.metadata.refs:
        return table.metadata.refs[text].snapshot_id
    if text.isdecimal():
        return int(text)
    try:
        moment = moment_of(text)
    except ValueError:
        problem = "expected an id, a branch or tag, or an ISO 8601 time"
        raise ValidationError(f"{table.full_name}: the table has no snapshot {text!r}: {problem}") from None
    return table.state.snapshot_id_at(moment)


# -- The commands `tag`, `branch` and `rollback` ----------------------------------------------------------------------


_takes_commit = click.option("--commit", is_flag=True, help="Commit the change, instead of only printing it.")
_takes_name = click.argument("name", metavar="NAME")
_removes = click.option("--remove", is_flag=True, help="Remove it.")
_replaces = click.option("--replace", is_flag=True, help="Move it to another snapshot.")
_AGE = click.IntRange(min=1)
_BRANCH_LIMITS = ("max_snapshot_age_ms", "min_snapshots_to_keep")
_max_ref_age = click.option("--max-ref-age-ms", type=_AGE, metavar="N", help="Expiry removes it at this age.")


@click.command()
@_removes
@_replaces
@_max_ref_age
@_takes_commit
@takes_snapshot
@takes_output
@takes_source
@_takes_name
def tag(source: Source, choice: SnapshotChoice, name: str, max_ref_age_ms: int | None, **switches: bool) -> None:
    """Create, move or remove a tag: the name of a snapshot, which then does not expire.

    The snapshot is the current one, unless an option chooses another. The command refs lists branches and tags.

    Prints the plan. Nothing changes without --commit.
    """
    _change_ref("tag", source, choice, name, retention={"max_ref_age_ms": max_ref_age_ms}, **switches)


@click.command()
@_removes
@_replaces
@_max_ref_age
@click.option("--max-snapshot-age-ms", type=_AGE, metavar="N", help="Expiry removes its snapshots at this age.")
@click.option("--min-snapshots-to-keep", type=_AGE, metavar="N", help="Expiry keeps this number of its snapshots.")
@_takes_commit
@takes_snapshot
@takes_output
@takes_source
@_takes_name
def branch(source: Source, choice: SnapshotChoice, name: str, **options: Any) -> None:
    """Create, move or remove a branch.

    It begins at the current snapshot, unless an option chooses another. The command refs lists branches and tags.

    Prints the plan. Nothing changes without --commit.
    """
    retention = {limit: options.pop(limit) for limit in ("max_ref_age_ms", *_BRANCH_LIMITS)}
    _change_ref("branch", source, choice, name, retention=retention, **options)


@click.command()
@click.option("--branch", "name", default="main", show_default=True, metavar="NAME", help="The branch.")
@_takes_commit
@takes_snapshot
@takes_output
@takes_source
def rollback(source: Source, choice: SnapshotChoice, name: str, as_json: bool, commit: bool) -> None:
    """Move a branch back to an earlier snapshot of its history: --snapshot-id, --ref or --as-of.

    The later snapshots stay until they expire; other branches and tags stay too.

    Prints the plan. Nothing changes without --commit.
    """
    from sparkmeta.spec.metadata import ancestors_of

    with progress("Opening the table"):
        table = source.open()
    snapshot_id = choice.snapshot_id_in(table)
    if snapshot_id is None:
        raise click.UsageError("rollback needs one of --snapshot-id, --ref and --as-of")
    metadata = table.metadata
    head = table.state.metadata_ref(name).snapshot_id
    history = [snapshot.snapshot_id for snapshot in ancestors_of(metadata, head)]
    if snapshot_id not in history:
        problem = f"it is not in the history of {name}; branch --replace moves a branch to any snapshot"
        raise ValidationError(f"{table.full_name}: can't roll back to snapshot {snapshot_id}: {problem}")
    undone = history[: history.index(snapshot_id)]
    plan = {
        "action": "roll back",
        "type": "branch",
        "name": name,
        "snapshot_id": snapshot_id,
        "replaced_snapshot_id": head,
    }
    line = f"roll back {name} from {_described(metadata, head)} to {_described(metadata, snapshot_id)}"
    lines = [line, f"this undoes {counted(len(undone), 'snapshot')}"] if undone else []
    _carry_out(
        table,
        plan | {"snapshots_undone": len(undone)},
        lines,
        lambda builder: builder.replace_branch(name, snapshot_id),
        as_json=as_json,
        commit=commit,
    )


def _change_ref(
    kind: str,
    source: Source,
    choice: SnapshotChoice,
    name: str,
    *,
    remove: bool,
    replace: bool,
    retention: Mapping[str, int | None],
    **output: bool,
) -> None:
    """Create, move or remove a branch or tag."""
    limits = {limit: value for limit, value in retention.items() if value is not None}
    chosen = [choice.snapshot_id, choice.ref, choice.as_of] != [None] * 3
    if (remove and replace) or (remove and (chosen or limits)) or (replace and limits):
        raise click.UsageError("--remove takes no other options, and --replace only a snapshot")
    with progress("Opening the table"):
        table = source.open()
    metadata = table.metadata
    existing = metadata.refs.get(name)
    replaced = None if existing is None else existing.snapshot_id
    target: int | None = None
    if not remove:
        target = choice.snapshot_id_in(table)
        if target is None and (current := table.current_snapshot()) is not None:
            target = current.snapshot_id
        if target is None:
            raise ValidationError(f"{table.full_name}: the table has no snapshot for a {kind}")
    action = "remove" if remove else "move" if replace else "create"

    def change(builder: ManageSnapshots) -> object:
        if remove:
            return getattr(builder, f"remove_{kind}")(name)
        if replace:
            return getattr(builder, f"replace_{kind}")(name, target)
        return getattr(builder, f"create_{kind}")(target, name, **limits)

    before = "" if replaced is None else f" from {_described(metadata, replaced)}"
    after = f", which is at {_described(metadata, replaced)}" if remove and replaced is not None else ""
    moved = f"{before} to" if replace else " at"
    line = f"{action} the {kind} {name}{after}" + ("" if target is None else f"{moved} {_described(metadata, target)}")
    plan = {
        "action": action,
        "type": kind,
        "name": name,
        "snapshot_id": target,
        "replaced_snapshot_id": replaced,
        **limits,
    }
    lines = [] if replace and target == replaced else [line]
    _carry_out(table, plan, lines, change, **output)


def _described(metadata: TableMetadata, snapshot_id: int) -> str:
    snapshot = metadata.snapshot_by_id(snapshot_id)
    if snapshot is None:
        return f"snapshot {snapshot_id}"
    return f"snapshot {snapshot_id} ({snapshot.operation or 'unknown operation'} at {time_text(snapshot.timestamp_ms)})"


def _carry_out(
    table: Table,
    plan: Mapping[str, Any],
    lines: list[str],
    change: Callable[[ManageSnapshots], object],
    *,
    as_json: bool,
    commit: bool,
) -> None:
    """Print a change of branches and tags, which is checked in any case, and commit it if requested.

    Args:
        lines: the change in words; empty if there is nothing to change.
    """
    transaction = table.transaction()
    builder = transaction.manage_snapshots()
    change(builder)
    builder.commit()
    committed = None
    if commit and lines:
        with progress("Committing"):
            committed = transaction.commit().metadata_location
    if as_json:
        print_json({"plan": plan, "committed": committed})
        return
    for text in lines or ["nothing to do"]:
        click.echo(printable_lines(text))
    if lines:
        click.echo(UNCHANGED if committed is None else printable_lines(f"written: {committed}"))


COMMANDS = (check, changelog, tag, branch, rollback)
