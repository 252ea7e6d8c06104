"""8 processes commit to one table, and some are killed: a linear history, nothing lost or doubled.

`make test` runs 25 commits a process; SPARKMETA_SOAK=1 runs 200.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyiceberg.table import StaticTable

from sparkmeta.commit.sql import SqlSwap
from sparkmeta.spec.metadata import TableMetadata, parse_table_metadata
from sparkmeta.storage.writing import is_temporary
from tests.commit.committers import WORKERS
from tests.commit.places import KINDS, open_swap, place
from tests.commit.tables import new_table

if TYPE_CHECKING:
    from collections.abc import Iterator

# Commits a process, and how many are killed in all.
SHORT, LONG = (25, 15), (200, 120)
ROOT = Path(__file__).parent.parent.parent


def read(location: str) -> TableMetadata:
    return parse_table_metadata(Path(location.removeprefix("file://")).read_bytes(), location)


def history(location: str) -> Iterator[tuple[str, TableMetadata]]:
    """The versions from the newest back, each by the last line of the next one's log."""
    while True:
        metadata = read(location)
        yield location, metadata
        if not metadata.metadata_log:
            return
        location = metadata.metadata_log[-1].metadata_file


def counters(metadata: TableMetadata) -> Counter[str]:
    return Counter({key: int(value) for key, value in metadata.properties.items() if key.startswith("worker.")})


@pytest.mark.parametrize("kind", KINDS)
def test_committers(request: pytest.FixtureRequest, tmp_path: Path, kind: str, soak: bool) -> None:
    uri = place(kind, tmp_path, request.getfixturevalue("postgres") if kind == "postgres" else None)
    commits, kills = LONG if soak else SHORT
    swap = open_swap(uri, tmp_path)
    swap.commit(None, None, new_table(f"file://{tmp_path}/table"))
    began = time.monotonic()
    done = run(uri, tmp_path, commits, kills)
    took = time.monotonic() - began

    newest = swap.load()
    versions = [*history(newest.metadata_location)]
    assert len(versions) == len({location for location, _ in versions}) == WORKERS * commits + 1
    assert counters(newest.metadata) == {f"worker.{worker}": commits for worker in range(WORKERS)}
    authors = []
    for (_, after), (_, before) in pairwise(versions):
        step = counters(after) - counters(before)
        assert sum(step.values()) == 1, "one commit, of one worker"
        ((worker, _),) = step.items()
        authors.append(f"{worker.removeprefix('worker.')}/{counters(after)[worker]}")
        assert after.properties["author"] == authors[-1]
        head = after.current_snapshot()
        assert head is not None
        assert (head.parent_snapshot_id, head.sequence_number) == (
            before.current_snapshot_id,
            before.last_sequence_number + 1,
        )
    assert len(set(authors)) == WORKERS * commits
    told = notes(tmp_path)
    assert max(Counter(told["done"]).values()) == 1, "reported once, committed once"
    assert set(told["done"]) <= set(authors)
    # What is committed and was not reported, was made by one that was killed.
    assert len(set(authors) - {*told["done"], *told["unknown"]}) <= kills
    left = {path.name for path in (tmp_path / "table" / "metadata").iterdir()}
    left -= {Path(location).name for location, _ in versions} | {"version-hint.text"}
    assert all(is_temporary(name) or (kind != "folder" and name.endswith(".metadata.json")) for name in left)
    assert len(left) <= kills
    loaded = (
        swap.catalog.load_table(swap.identifier)
        if isinstance(swap, SqlSwap)
        else StaticTable.from_metadata(newest.metadata_location)
    )
    assert loaded.metadata.current_snapshot_id == newest.metadata.current_snapshot_id
    print(  # noqa: T201
        f"\n{kind}: {WORKERS} x {commits} commits in {took:.1f} s, {len(told['failed'])} refused, "
        f"{len(told['unknown'])} unknown, {done['killed']} kills, {len(left)} files left over"
    )


def test_committers_that_delete(tmp_path: Path, soak: bool) -> None:
    """Names of metadata files become free again under the feet of slow writers, and the hint may name one of them."""
    commits, kills = LONG if soak else SHORT
    swap = open_swap("", tmp_path)
    properties = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "1"}
    swap.commit(None, None, new_table(f"file://{tmp_path}/table", properties))
    run("", tmp_path, commits, kills)
    newest = swap.load()
    assert newest.metadata_location.endswith(f"/v{WORKERS * commits + 1}.metadata.json")
    assert newest.metadata.last_sequence_number == WORKERS * commits
    assert counters(newest.metadata) == {f"worker.{worker}": commits for worker in range(WORKERS)}
    assert max(Counter(notes(tmp_path)["done"]).values()) == 1
    left = {path.name for path in (tmp_path / "table" / "metadata").iterdir() if not is_temporary(path.name)}
    # A writer that is killed before it deletes leaves one.
    assert len(left) <= 3 + kills


def run(uri: str, folder: Path, commits: int, kills: int) -> dict[str, int]:
    seed = str(int.from_bytes(os.urandom(4), "big"))
    command = [sys.executable, "-m", "tests.commit.committers", uri, str(folder), str(commits), seed, str(kills)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    assert found["killed"] > kills / 4, "the workers were done before they were killed"
    return found


def notes(folder: Path) -> dict[str, list[str]]:
    """What the workers were told, by the answer: worker/step."""
    told: dict[str, list[str]] = {"done": [], "failed": [], "unknown": []}
    for worker in range(WORKERS):
        for line in (folder / f"worker.{worker}").read_text().splitlines():
            answer, step = line.split()
            told[answer].append(f"{worker}/{step}")
    return told
