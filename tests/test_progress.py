"""The progress of long work: shown in notebooks, by commands on a terminal, and nowhere else."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from jupyter_client.manager import start_new_kernel
from rich.console import Console

import sparkmeta as sm
from sparkmeta import progress
from sparkmeta.session import SessionSource, is_connect, map_arrow

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

WORK = """
import time
from sparkmeta.progress import progress, tracked

with progress("Compacting"{arguments}):
    for _ in tracked(range(4), "Writing leaves"):
        time.sleep(0.4)
    for _ in tracked(range(1), "Writing one"):
        pass
print("end")
"""


def on_terminal(source: str) -> tuple[str, str]:
    """What a program writes to standard output, and to a terminal as its standard error."""
    ours, theirs = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, stderr=theirs) as program:
        os.close(theirs)
        text = b""
        try:
            while part := os.read(ours, 10_000):
                text += part
        except OSError:  # the program has ended
            pass
        assert program.stdout is not None
        output = program.stdout.read().decode()
    os.close(ours)
    return output, text.decode()


def test_commands_show_progress_on_a_terminal() -> None:
    output, shown = on_terminal(WORK.format(arguments=", on_terminal=True"))
    assert output == "end\n"
    assert "Compacting" in shown
    assert "2 of 4" in shown
    assert "of 1" not in shown
    assert shown.endswith("\x1b[2K")  # the lines are erased


def test_scripts_quick_work_and_other_threads_show_nothing() -> None:
    assert on_terminal(WORK.format(arguments="")) == ("end\n", "")
    work = WORK.format(arguments=", on_terminal=True")
    assert on_terminal(work.replace("0.4", "0")) == ("end\n", "")
    in_thread = f"from threading import Thread; work = Thread(target=exec, args=({work!r}, {{}})); work.start(); "
    assert on_terminal(f"{in_thread}work.join()") == ("end\n", "")


def test_notebooks_show_progress() -> None:
    manager, client = start_new_kernel(kernel_name="python3")
    messages: list[Any] = []
    try:
        work = WORK.format(arguments="")
        client.execute_interactive(f"{work}{work}", timeout=60, output_hook=messages.append)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    kinds = [message["msg_type"] for message in messages]
    texts = [message["content"]["data"]["text/plain"] for message in messages if "display" in message["msg_type"]]
    assert kinds.count("display_data") == 1  # for both works of the cell
    assert any("2 of 4" in text for text in texts)
    assert (texts[-1], texts.count("")) == ("", 2)
    printed = [message["content"]["text"] for message in messages if message["msg_type"] == "stream"]
    assert "".join(printed) == "end\nend\n"


# -- What is shown of work --------------------------------------------------------------------------------------------


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The pictures, as if this were a notebook."""
    pictures: list[str] = []

    def show(tables: Iterator[Any]) -> None:
        for table in tables:
            console = Console(width=200, file=open(os.devnull, "w"), record=True)  # noqa: SIM115, PTH123
            console.print(table)
            pictures.append(console.export_text())

    monkeypatch.setattr(progress, "_output", lambda _: show)
    monkeypatch.setattr(progress, "_QUIET_SECONDS", 0)
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN", 0.001)
    return pictures


def test_plans_and_commits(spark: SparkSession, tmp_path: Path, shown: list[str]) -> None:
    """Groups of data files are counted. Nothing is left after an error."""
    catalog = sm.load_catalog("files", type="hadoop", warehouse=tmp_path.as_uri())
    catalog.create_namespace("db")
    rows = pa.table({"id": [1, 2, 3]})
    table = catalog.create_table("db.t", rows.schema, spark=spark)
    for _ in range(6):
        table = table.append(rows)
    plan = table.maintenance.rewrite_data_files(
        max_file_group_size_bytes=1500, min_input_files=2, partial_progress_enabled=True
    )
    groups = plan.summary().groups
    assert groups > 1
    plan.commit()
    texts = "".join(shown)
    assert "Planning" in texts
    assert "Rewriting data files " in texts
    assert f"1 of {groups}" in texts
    with pytest.raises(sm.ValidationError):
        table.maintenance.expire_snapshots(snapshot_ids=[table.current_snapshot().snapshot_id]).commit()  # type: ignore[union-attr]
    assert progress._displays == []


@pytest.mark.connect
def test_tasks_on_connect(spark: SparkSession, shown: list[str]) -> None:
    """The server tells of tasks every two seconds."""
    if not is_connect(spark):
        pytest.skip("classic sessions have no public interface to the tasks of their jobs")

    def slow(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        time.sleep(1)
        yield from batches

    with progress.progress("Working", SessionSource(spark)), progress.progress("Planning", SessionSource(spark)):
        map_arrow(spark.range(0, 8, 1, 8), slow, "id BIGINT").toArrow()
    texts = [line.split() for picture in shown for line in picture.splitlines()]
    assert any(words[0] == "Planning" and words[-3:] == ["of", "8", "tasks"] for words in texts if words)
    assert not any(words[0] == "Working" and words[-1] == "tasks" for words in texts if words)
