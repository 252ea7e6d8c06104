"""8 processes commit to one table, and some are killed: the history is linear, and no commit is lost or doubled.

Then 4 processes commit beside 2 that compact the table. `make test` runs 25 commits per process, and SPARKMETA_SOAK=1
runs 200.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.table import StaticTable

from sparkmeta.manifests.v4.layout import read_manifest
from sparkmeta.manifests.v4.root import read_root
from sparkmeta.operations.rest import RestOperations, create_rest_table
from sparkmeta.operations.sql import SqlOperations
from sparkmeta.operations.table_operations import load_version
from sparkmeta.storage.files import LocalFiles
from sparkmeta.storage.location import file_name
from sparkmeta.storage.writing import is_temporary
from tests.commit import list_committers as lists
from tests.commit import tree_committers as trees
from tests.commit import tree_compactors as compactors
from tests.commit.committers import COMPACTORS, WORKERS, WRITERS
from tests.commit.places import KINDS, open_operations, place
from tests.commit.tables import new_table
from tests.commit.tree_model import Reading, Store, change_set
from tests.rest.proxy import Fault, Way, rest_proxy
from tests.s3 import BUCKET
from tests.store_proxy import store_proxy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkmeta import Table
    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.storage.files import Files
    from tests.s3 import S3Server
    from tests.store_proxy import StoreProxy

# Commits per process, and the total number of kills.
SHORT, SHORT_OF_TREES, SHORT_ON_STORE, LONG = (25, 15), (8, 4), (3, 3), (200, 120)
ANSWERS = ("done", "carried", "nothing", "overtaken", "failed", "unknown")
ROOT = Path(__file__).parent.parent.parent


def history(files: Files, location: str) -> Iterator[tuple[str, TableMetadata]]:
    """Yield the versions, newest first. Each is the last entry of the newer version's log."""
    while True:
        metadata = load_version(files, location).metadata
        yield location, metadata
        if not metadata.metadata_log:
            return
        location = metadata.metadata_log[-1].metadata_file


def counters(metadata: TableMetadata) -> Counter[str]:
    return Counter({key: int(value) for key, value in metadata.properties.items() if key.startswith("worker.")})


@pytest.mark.parametrize("kind", [*KINDS, "s3"])
def test_committers(request: pytest.FixtureRequest, tmp_path: Path, kind: str, soak: bool) -> None:
    server: S3Server | None = request.getfixturevalue("s3") if kind == "s3" else None
    uri = server.url if server is not None else uri_of(request, kind, tmp_path)
    location = f"file://{tmp_path}/table" if server is None else f"s3://{BUCKET}{tmp_path}/table"
    commits, kills = LONG if soak else SHORT_ON_STORE if server is not None else SHORT
    swap: Any = open_operations(uri, tmp_path)
    swap.commit(None, new_table(location))
    began = time.monotonic()
    done = run("metadata", uri, tmp_path, commits, kills)
    took = time.monotonic() - began

    newest = swap.refresh()
    versions = [*history(swap.files, newest.metadata_location)]
    outcomes = check_authors(tmp_path, versions, commits, kills)
    left = {file_name(status.location) for status in swap.files.list(f"{location}/metadata")}
    left -= {Path(location).name for location, _ in versions} | {"version-hint.text"}
    assert all(
        is_temporary(name) or (kind not in {"folder", "s3"} and name.endswith(".metadata.json")) for name in left
    )
    assert len(left) <= kills
    loaded = (
        swap.catalog.load_table(swap.identifier)
        if isinstance(swap, SqlOperations)
        else StaticTable.from_metadata(newest.metadata_location, {} if server is None else server.properties)
    )
    assert loaded.metadata.current_snapshot_id == newest.metadata.current_snapshot_id
    print(  # noqa: T201
        f"\n{kind}: {WORKERS} x {commits} commits in {took:.1f} s, {len(outcomes['failed'])} refused, "
        f"{len(outcomes['unknown'])} unknown, {done['killed']} kills, {len(left)} files left over"
    )


def check_authors(
    folder: Path, versions: list[tuple[str, TableMetadata]], commits: int, kills: int
) -> dict[str, list[str]]:
    """Assert that the versions are a linear history with each commit of each worker once.

    Returns:
        The authors of the commits by outcome.
    """
    assert len(versions) == len({location for location, _ in versions}) == WORKERS * commits + 1
    assert counters(versions[0][1]) == {f"worker.{worker}": commits for worker in range(WORKERS)}
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
    outcomes = notes(folder)
    assert max(Counter(outcomes["done"]).values()) == 1, "reported once, committed once"
    assert set(outcomes["done"]) <= set(authors)
    # What is committed and was not reported, was made by one that was killed.
    assert len(set(authors) - {*outcomes["done"], *outcomes["unknown"]}) <= kills
    return outcomes


def test_committers_of_a_rest_catalog(rest_uri: str, tmp_path: Path, soak: bool) -> None:
    """Every fourth request of a commit is refused, fails, gets no response, or is repeated by the proxy."""
    commits, kills = (50, 30) if soak else (6, 4)
    chance = random.Random(7)
    ways = [Fault(way, status) for way in Way for status in (0, 500, 503)] + [Fault(Way.REPEATED, None)]
    with rest_proxy(rest_uri) as proxy:
        swap = open_operations(f"rest+{proxy.uri}", tmp_path)
        assert isinstance(swap, RestOperations)
        swap.catalog.create_namespace(swap.identifier[:-1])
        create_rest_table(swap.catalog, swap.identifier, new_table("/table"), f"file://{tmp_path}/table")
        proxy.faults = [chance.choice(ways) if chance.random() < 0.25 else None for _ in range(100 * commits * WORKERS)]
        run("metadata", f"rest+{proxy.uri}", tmp_path, commits, kills)
        posted = len(proxy.sent("POST"))
    newest = open_operations(f"rest+{rest_uri}", tmp_path).refresh()
    outcomes = check_authors(tmp_path, [*history(LocalFiles(), newest.metadata_location)], commits, kills)
    print(f"\n{posted} requests, {len(outcomes['failed'])} refused, {len(outcomes['unknown'])} unknown")  # noqa: T201


def test_committers_that_delete(tmp_path: Path, soak: bool) -> None:
    """Names of metadata files become free again while slow writers commit, and the hint may name a deleted file."""
    commits, kills = LONG if soak else SHORT
    swap = open_operations("", tmp_path)
    properties = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "1"}
    swap.commit(None, new_table(f"file://{tmp_path}/table", properties))
    run("metadata", "", tmp_path, commits, kills)
    newest = swap.refresh()
    assert newest.metadata_location.endswith(f"/v{WORKERS * commits + 1}.metadata.json")
    assert newest.metadata.last_sequence_number == WORKERS * commits
    assert counters(newest.metadata) == {f"worker.{worker}": commits for worker in range(WORKERS)}
    assert max(Counter(notes(tmp_path)["done"]).values()) == 1
    left = {path.name for path in (tmp_path / "table" / "metadata").iterdir() if not is_temporary(path.name)}
    # A writer that is killed before it deletes a file leaves it.
    assert len(left) <= 3 + kills


@pytest.mark.parametrize("kind", ["folder", "postgres"])
def test_committers_of_trees(request: pytest.FixtureRequest, tmp_path: Path, kind: str, soak: bool) -> None:
    """Every snapshot has the files of all commits up to it, and only its own commit's change set."""
    commits, kills = LONG if soak else SHORT_OF_TREES
    table, authors, outcomes = run_on_tree(request, tmp_path, kind, "tree", commits, kills)
    assert None not in authors
    roots = check_history(table, authors)
    assert max(Counter(outcomes["done"]).values()) == 1, "reported once, committed once"
    names = {"/".join(map(str, author)) for author in authors if author is not None}
    assert set(outcomes["done"]) <= names
    assert len(names - {*outcomes["done"], *outcomes["unknown"]}) <= kills
    left = {path.name for path in (tmp_path / "table" / "metadata").iterdir()}
    left = {name for name in left if name not in roots and not name.startswith(("leaf-", "version-hint"))}
    versions = {name for name in left if name.endswith(".metadata.json")}
    assert len(versions) <= WORKERS * commits + 2 + (0 if kind == "folder" else kills)
    left -= versions
    assert all(is_temporary(name) or "-root-" in name for name in left)
    # Files of failed attempts are deleted, except for files of killed writers.
    assert len(left) <= kills + len(outcomes["unknown"])
    print(f"{kind}: {len(left)} files left over")  # noqa: T201


@pytest.mark.parametrize("kind", ["folder", "postgres"])
def test_writers_and_compactors(request: pytest.FixtureRequest, tmp_path: Path, kind: str, soak: bool) -> None:
    """Compactions change no data. Files that another commit removes from a replaced leaf stay removed."""
    commits, kills = LONG if soak else SHORT_OF_TREES
    table, authors, outcomes = run_on_tree(request, tmp_path, kind, "compaction", commits, kills)
    compactions = authors.count(None)
    of_compactors = [author for author in outcomes["done"] if int(author.split("/")[0]) >= WRITERS] + outcomes[
        "carried"
    ]
    assert 0 < len(of_compactors) <= compactions <= len(of_compactors) + len(outcomes["unknown"]) + kills
    assert outcomes["carried"] or not soak, "no compaction met removals from what it rewrote"
    with compactors.without_spark():
        plan = table.maintenance.compact_manifests(min_masked_ratio=0.02, min_leaf_ratio=1.0, max_root_files=0)
        last = plan.commit()
    check_history(last, authors + [None] * (not plan.summary().is_empty))


def test_writers_of_a_tree_on_a_faulty_store(s3: S3Server, tmp_path: Path, soak: bool) -> None:
    """Some conditional writes are dropped, delayed or not answered. Each snapshot's root exists."""
    commits, kills = (25, 30) if soak else (3, 2)
    swap = open_operations(s3.url, tmp_path)
    trees.create(swap, tmp_path, WRITERS, commits)
    with store_proxy(s3.url, seed=5, share=0.25) as proxy:
        run("tree", proxy.uri, tmp_path, commits, kills, WRITERS)
    table = trees.opened(swap)
    authors = list(trees.authors(table))
    check_history(table, authors)
    check_writers(tmp_path, [f"{worker}/{step}" for worker, step in filter(None, authors)], commits, kills, proxy)


def test_writers_through_a_faulty_catalog_and_store(rest_s3_uri: str, s3: S3Server, tmp_path: Path, soak: bool) -> None:
    """Requests to the REST catalog and to the store fail. Every manifest list that a snapshot names exists."""
    commits, kills = (25, 30) if soak else (3, 2)
    location = f"s3://{BUCKET}{tmp_path}/table"
    swap = open_operations(f"rest+{rest_s3_uri}|{s3.url}", tmp_path)
    assert isinstance(swap, RestOperations)
    lists.create(swap, location, WRITERS, commits)
    with store_proxy(rest_s3_uri, 5, 0.3, "/v1/config") as catalog, store_proxy(s3.url, 6) as store:
        run("list", f"rest+{catalog.uri}|{store.uri}", tmp_path, commits, kills, WRITERS)
    table = lists.opened(swap)
    snapshots = table.snapshots()
    authors = [snapshot.summary.additional_properties["author"] for snapshot in snapshots if snapshot.summary]
    check_writers(tmp_path, authors, commits, kills, catalog)
    expected: set[str] = set()
    for before, snapshot, author in zip([None, *snapshots], snapshots, authors, strict=False):
        assert snapshot.parent_snapshot_id == (None if before is None else before.snapshot_id)
        expected.add(lists.data_file(location, *map(int, author.split("/"))))
        tasks = swap.catalog.load_table(swap.identifier).scan(snapshot_id=snapshot.snapshot_id).plan_files()
        assert {task.file.file_path for task in tasks} == expected


def check_writers(folder: Path, authors: list[str], commits: int, kills: int, proxy: StoreProxy) -> None:
    """Assert that each commit of `WRITERS` is in the history once, and that reported outcomes are true."""
    assert sorted(authors) == sorted(f"{worker}/{step}" for worker in range(WRITERS) for step in range(1, commits + 1))
    outcomes = notes(folder, WRITERS)
    assert max(Counter(outcomes["done"]).values()) == 1, "reported once, committed once"
    # What is committed and was not reported, was made by one that was killed.
    assert len(set(authors) - {*outcomes["done"], *outcomes["unknown"]}) <= kills
    counts = {outcome: len(authors) for outcome, authors in outcomes.items()}
    print(f"\n{counts}, {dict(proxy.seen)}")  # noqa: T201


def run_on_tree(
    request: pytest.FixtureRequest, folder: Path, kind: str, what: str, commits: int, kills: int
) -> tuple[Table, list[tuple[int, int] | None], dict[str, list[str]]]:
    """Run all writers of a tree, and kill some of them.

    Returns:
        The table, the authors of its snapshots, and the outcomes.
    """
    writers, others = (WRITERS, COMPACTORS) if what == "compaction" else (WORKERS, 0)
    uri = uri_of(request, kind, folder)
    swap = open_operations(uri, folder)
    trees.create(swap, folder, writers, commits)
    began = time.monotonic()
    done = run(what, uri, folder, commits, kills, writers + others)
    took = time.monotonic() - began

    table = trees.opened(swap)
    authors = list(trees.authors(table))
    written = sorted(author for author in authors if author is not None)
    assert written == [(worker, step) for worker in range(writers) for step in range(1, commits + 1)]
    outcomes = notes(folder, writers + others)
    counts = {outcome: len(outcomes[outcome]) for outcome in ("carried", "overtaken", "failed", "unknown")}
    print(  # noqa: T201
        f"\n{kind}: {writers} x {commits} commits to a tree, {authors.count(None)} compactions, in {took:.1f} s, "
        f"{counts}, {done['killed']} kills"
    )
    return table, authors, outcomes


def uri_of(request: pytest.FixtureRequest, kind: str, folder: Path) -> str:
    """Return the URI of a kind of pointer, for tables below a folder."""
    return place(kind, folder, request.getfixturevalue("postgres") if kind == "postgres" else None)


def check_history(table: Table, authors: list[tuple[int, int] | None]) -> set[str]:
    """Compare every snapshot with the commits, and return the names of the roots."""
    store = Store()
    names, before, next_row_id = set(), None, 0
    live = {trees.leaf_name(*author): 1 for author in authors if author is not None}
    for number, snapshot in enumerate(table.snapshots()):
        assert snapshot.root_manifest is not None
        stamp = (snapshot.snapshot_id, snapshot.sequence_number, snapshot.first_row_id)
        root = read_root(
            table.state.files.read(snapshot.root_manifest),
            table.state.types.tree_types,
            snapshot.root_manifest,
            stamp,
            table.state.types.locations,
        )
        for leaf in root.leaves.column("location").to_pylist():
            if leaf not in store.leaves:
                store.leaves[leaf] = read_manifest(table.state.files.read(leaf), trees.STATS, leaf)[0]
        reading = Reading(root.table.to_pylist(), store)
        author = authors[number - 1] if number else None
        added, removed = (trees.files_of(*author), trees.removed_by(*author)) if author else ({}, set())
        added = added if number else live
        live = {path: records for path, records in {**live, **added}.items() if path not in removed}
        live_files = reading.live()
        assert {key.location: seen.record_count for key, seen in live_files.items()} == live
        changes = change_set(reading, before)
        assert {key.location for key in changes.added} == set(added)
        assert {key.location for key in changes.removed} == removed
        assert snapshot.sequence_number == number + 1
        assert (snapshot.first_row_id, snapshot.added_rows) == (next_row_id, sum(added.values()))
        next_row_id += sum(added.values())
        names.add(Path(snapshot.root_manifest).name)
        before = reading
    spans = sorted((seen.first_row_id, seen.record_count) for seen in live_files.values())
    assert all(start + count <= following for (start, count), (following, _) in pairwise(spans))
    assert table.metadata.next_row_id == next_row_id
    return names


def run(kind: str, uri: str, folder: Path, commits: int, kills: int, workers: int = WORKERS) -> dict[str, int]:
    seed = int.from_bytes(os.urandom(4), "big")
    arguments = map(str, (kind, uri, folder, workers, commits, seed, kills))
    command = [sys.executable, "-m", "tests.commit.committers", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    assert report["killed"] > kills / 4, "the workers were done before they were killed"
    return report


def notes(folder: Path, workers: int = WORKERS) -> dict[str, list[str]]:
    """Return the commits that workers have noted, as worker/step, by outcome."""
    outcomes: dict[str, list[str]] = {outcome: [] for outcome in ANSWERS}
    for worker in range(workers):
        for line in (folder / f"worker.{worker}").read_text().splitlines():
            outcome, step = line.split()
            outcomes[outcome].append(f"{worker}/{step}")
    return outcomes
