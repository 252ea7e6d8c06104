"""The commands that check a table and change its branches and tags, and the names of commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sparkmeta import load_catalog, load_table
from sparkmeta.errors import NoSuchTableError, UnsupportedError
from tests.command_line import invoke
from tests.small_table import LOADS, orders

if TYPE_CHECKING:
    from collections.abc import Callable

    from sparkmeta import Table


@pytest.fixture
def table(tmp_path: Path) -> Table:
    catalog = load_catalog("shop", type="hadoop", warehouse=str(tmp_path))
    catalog.create_namespace("db")
    table = catalog.create_table("db.orders", orders(0).schema, partition_by=["country"])
    for load in range(LOADS):
        table = table.append(orders(load))
    return table


def run(*arguments: object, code: int = 0) -> str:
    result = invoke([str(argument) for argument in arguments])
    assert result.exit_code == code, result.output + repr(result.exception)
    return result.output


def test_tags_branches_and_rollbacks_change_only_with_commit(table: Table) -> None:
    location, first, last = table.location(), table.snapshots()[0].snapshot_id, table.snapshots()[-1].snapshot_id
    assert f"move the tag audit from snapshot {first}" in _both(
        table, lambda: run("tag", location, "audit", "--snapshot-id", first, "--commit"), "tag", "audit", "--replace"
    )
    branch = _both(table, None, "branch", "dev", "--ref", "main", "--min-snapshots-to-keep", 3)
    assert f"create the branch dev at snapshot {last} (append at " in branch
    assert load_table(location).refs()["dev"].min_snapshots_to_keep == 3
    rolled_back = _both(table, None, "rollback", "--snapshot-id", first)
    assert f"to snapshot {first} (append at " in rolled_back
    assert "this undoes 2 snapshots" in rolled_back
    assert run("rollback", location, "--snapshot-id", first) == "nothing to do\n"
    assert "not in the history of main" in run("rollback", location, "--ref", "dev", code=1)
    removed = _both(table, None, "tag", "audit", "--remove")
    assert f"remove the tag audit, which is at snapshot {last}" in removed
    answer = json.loads(run("branch", location, "dev", "--remove", "-o", "json", "--commit"))
    assert answer["plan"]["replaced_snapshot_id"] == str(last)
    refs = load_table(location).refs()
    assert answer["committed"] == load_table(location).metadata_location
    assert {name: ref.snapshot_id for name, ref in refs.items()} == {"main": first}
    for wrong in (["tag", location, "x", "--remove", "--replace"], ["rollback", location]):
        run(*wrong, code=2)
    for wrong in (
        ["tag", location, "x", "--remove"],
        ["branch", location, "main"],
        ["tag", location, "y", "--ref", "z"],
    ):
        run(*wrong, code=1)


def _both(table: Table, before: Callable[[], object] | None, command: str, *arguments: object) -> str:
    """Run a command without and with `--commit`, and return its output without."""
    if before is not None:
        before()
    location = table.location()
    metadata = load_table(location).metadata_location
    output = run(command, location, *arguments)
    assert "nothing is changed without --commit" in output
    assert load_table(location).metadata_location == metadata
    assert "written: " in run(command, location, *arguments, "--commit")
    assert load_table(location).metadata_location != metadata
    return output


def test_check_succeeds_only_without_contradictions(table: Table) -> None:
    assert "no rows" in run("check", table.location())
    assert run("check", table.location(), "-o", "json") == ""
    manifest = table.inspect.arrow.manifests()["path"][0].as_py()
    with open(manifest, "ab") as file:  # noqa: PTH123
        file.write(b"?")
    assert "manifest-length" in run("check", table.location(), code=1)
    rows = run("check", table.location(), "-o", "json", "--columns", "rule", code=1).splitlines()
    assert {json.loads(row)["rule"] for row in rows} >= {"manifest-length"}


@pytest.mark.parametrize("command", ["history", "snapshots", "metadata-log", "metadata_log_entries"])
def test_limit_keeps_the_newest(table: Table, command: str) -> None:
    everything = run(command, table.location(), "-o", "json").splitlines()
    assert len(everything) >= LOADS
    assert run(command, table.location(), "-o", "json", "--limit", "2").splitlines() == everything[-2:]
    text = run(command, table.location(), "--limit", "1")
    assert str(table.snapshots()[-1].snapshot_id)[:10] in text
    assert str(table.snapshots()[0].snapshot_id) not in text.splitlines()[1].split()[1:3]
    assert "the newest 1 rows" in text


def test_commands_have_the_names_of_methods() -> None:
    for name in ("compact-manifests", "compact_manifests", "compact"):
        assert "Its other name is compact-manifests." in run(name, "--help")
    assert "Rewrite data files" in run("rewrite_data_files", "--help")
    run("compress", code=2)


def test_scan_takes_a_ref_or_a_time(table: Table) -> None:
    first, last = table.snapshots()[0], table.snapshots()[-1]
    table.manage_snapshots().create_tag(first.snapshot_id, "audit").commit()
    table = table.refresh()
    at = first.timestamp_ms
    iso = f"{last.timestamp_ms // 1000 + 60}"
    assert table.scan(ref="audit").snapshot() == first
    assert table.scan(as_of=at).snapshot() == first
    assert table.scan(as_of="9999-01-01").snapshot() == table.scan(ref="main").snapshot() == last
    with pytest.raises(ValueError, match=f"'{iso}' is not an ISO 8601 time"):
        table.scan(as_of=iso)


def test_errors_advise_options(table: Table, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    answer = run("describe", "shop.orders", code=1)
    assert "table of a catalog by --catalog" in answer
    assert "load_catalog" not in answer
    with pytest.raises(NoSuchTableError, match=r'load_catalog\("\w+"\).load_table\("shop.orders"\)'):
        load_table("shop.orders")
    answer = run("compact", table.location(), code=1)
    assert "`sparkmeta upgrade --format-version 4` makes" in answer
    assert "table.maintenance" not in answer
    with pytest.raises(UnsupportedError, match=r"which table.maintenance.upgrade\(4\) makes"):
        table.maintenance.compact_manifests()
    for row_filter in ("year(id) = 1", "id + 1 = 2"):
        answer = run("plan", table.location(), "--filter", row_filter, code=1)
        assert "filter the rows that are read, in Spark" in answer
        assert "()" not in answer.replace(row_filter, "")
    planned = run("upgrade", table.location(), "--format-version", 4)
    assert "an upgrade with the option compact does both" in planned


def test_health_advises_commands(table: Table) -> None:
    table.manage_snapshots().create_tag(table.snapshots()[0].snapshot_id, "audit's").commit()
    options = ("--max-ref-age-days", 0, "--min-small-files", 2, "-o")
    location = table.location()
    text = run("health", location, *options, "text")
    assert f"""command  sparkmeta tag {location} 'audit'"'"'s' --remove --commit""" in text
    assert f"command  sparkmeta rewrite-data-files {location}" in text
    assert "table." not in text
    assert ".commit()" not in text
    calls = [finding["call"] for finding in json.loads(run("health", location, *options, "json"))["findings"]]
    assert """table.manage_snapshots().remove_tag("audit's").commit()""" in calls


def test_unknown_columns_are_told_from_similar_names(table: Table) -> None:
    def told(*arguments: str) -> str:
        return run(arguments[0], table.location(), *arguments[1:], code=1).partition("did you mean ")[2].strip()

    assert told("plan", "--filter", "contry = 'NO'") == "'country'?"
    assert told("changelog", "--filter", "contry = 'NO'") == "'country'?"
    assert told("changelog", "--identifier-columns", "Id") == "'id'?"
    assert told("rewrite-data-files", "--strategy", "sort", "--sort-order", "zorder(notes, id)") == "'note'?"
    assert told("compute-table-stats", "--columns", "notes") == "'note'?"
    assert told("health", "--columns", "notes") == "'note'?"
    tree = table.maintenance.upgrade(4).commit()
    assert told("compact", "--cluster-by", "notes") == "'note'?", tree


def test_tables_of_another_library_are_refused_with_a_command(table: Table) -> None:
    path = Path(table.metadata_location.removeprefix("file://"))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format-version": 4, "next-row-id": 0}))
    for command in ("remove-dangling-deletes", "rewrite-position-delete-files"):
        answer = run(command, table.location(), code=1)
        assert "which `sparkmeta upgrade --format-version 4` makes" in answer
        assert "table.maintenance" not in answer
