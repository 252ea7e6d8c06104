"""Compactions at any point of random histories, with commits between reading and committing, on the model.

SPARKMETA_SOAK=1 runs 5,000 histories. Other tests run the Spark jobs; here, tasks run in this process.
"""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkmeta.commit.compaction_groups import CompactionGroups, CompactionLimits, Scope, choose, choose_merges
from sparkmeta.commit.next_root import Stamp, TreeChange, next_root
from sparkmeta.manifests.v4.root import FILES as KINDS
from sparkmeta.manifests.v4.root import LEAVES as LEAF_KINDS
from sparkmeta.manifests.v4.root import Root, check_root
from sparkmeta.spec.entry import ContentType
from tests.commit.compact import local_job
from tests.commit.compact.local_job import local_fold, local_rewrite
from tests.commit.test_tree import ROUNDS, SPECS, Writer, check_row_ids, commit, rows_of
from tests.commit.tree_model import LEAVES, Changes, Reading, change_set


@pytest.fixture(autouse=True)
def _no_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkmeta.commit.leaves.executor_writer", lambda _: None)


def random_scope(writer: Writer, **fixed: Any) -> Scope:
    assert writer.root is not None
    rng, root = writer.rng, writer.root
    limits = {
        "target_bytes": rng.choice((1_500, 3_000, 6_000)),
        "min_masked_ratio": rng.choice((0.01, 0.3, 1.0)),
        "min_leaf_ratio": rng.choice((0.1, 0.5, 1.0)),
        "max_overlap": rng.choice((0, 0, 1, 3)),
        "max_root_files": rng.choice((None, 0, 2)),
        "affiliated_deletes": rng.choice((1, 3)),
        "max_entries": rng.choice((None, None, 3, 10)),
        "max_bytes": rng.choice((None, None, 3_000)),
    }
    places = [*root.of(LEAF_KINDS).column("ordinal").to_pylist(), *root.of(KINDS).column("ordinal").to_pylist()]
    usable = frozenset(ordinal for ordinal in places if rng.random() < rng.choice((0.7, 1.0)))
    owners = root.of([ContentType.DATA_MANIFEST]).column("ordinal").to_pylist()
    keys = dict.fromkeys(SPECS, rng.choice(((1,), ())))
    sources = dict.fromkeys(SPECS, frozenset[int]())
    return Scope(root, usable, frozenset(owners), keys, sources, CompactionLimits(**{**limits, **fixed}))


def check_choice(scope: Scope, choice: CompactionGroups) -> None:
    """Check that each entry is chosen at most once and usable, and that the choice is within the cap."""
    places = [ordinal for group in choice.groups for ordinal in (*group.leaves, *group.files)]
    assert len(set(places)) == len(places)
    assert set(places) <= scope.usable
    assert set(choice.reasons) == set(places)
    entries = 0
    for group in choice.data:
        rows = scope.root.table.take(pa.array(group.leaves, pa.int64())).select(
            ["location", "record_count", "partition_spec_id"]
        )
        entries += len(group.files)
        for row in rows.to_pylist():
            assert row["partition_spec_id"] == group.spec_id
            entries += row["record_count"] - scope.masked.get(row["location"], 0)
    assert scope.limits.max_entries is None or entries <= scope.limits.max_entries


def compact(writer: Writer, others: int) -> None:
    """Make a compaction that reads the table, and is committed after some concurrent commits."""
    scope = random_scope(writer)
    choice = choose(scope) if writer.rng.random() < 0.8 else choose_merges(scope)
    check_choice(scope, choice)
    if not choice.groups:
        return
    done = local_rewrite(scope, choice, writer.store, writer.stats, writer.name("c"))
    for _ in range(others):
        commit(writer)
    apply(writer, done)


def apply(writer: Writer, done: list[Any]) -> None:
    assert writer.root is not None
    before, base = writer.reading, writer.root
    rebased = local_fold(base, done, writer.store)
    stamp = Stamp(1000 + writer.snapshot, writer.snapshot + 1, writer.next_row_id)
    new = next_root(base, rebased.into(TreeChange()), stamp, writer.schema, writer.store.load)
    reading = Reading(rows_of(new.table), writer.store)
    assert new.assigned_row_ids == 0
    assert reading.live() == writer.model == before.live()
    assert change_set(reading, before) == Changes(frozenset(), frozenset())
    check_root(new.table, SPECS, "root")
    check_row_ids(writer.model, writer.next_row_id)
    check_affinity(reading)
    writer.root = Root("root", new.table)
    writer.snapshot += 1


def check_affinity(reading: Reading) -> None:
    """Check that vectors in an affiliated leaf belong to live files of its data leaf.

    Readers look for the vectors of other files elsewhere.
    """
    leaves = {row["location"]: row for row in reading.of(*LEAVES)}
    for row in leaves.values():
        owner = row["referenced_file"]
        if owner is not None:
            gone = reading.mask(owner)
            files = {entry["location"] for at, entry in enumerate(reading.store.rows(owner)) if at not in gone}
            masked = reading.mask(row["location"])
            rows = enumerate(reading.store.rows(row["location"]))
            assert all(entry["referenced_file"] in files for at, entry in rows if at not in masked)


@ROUNDS
@given(st.integers(0, 2**63 - 1))
def test_compactions_in_histories(seed: int) -> None:
    writer = Writer(random.Random(seed))
    for _ in range(writer.rng.randrange(2, 9)):
        if writer.root is not None and writer.rng.random() < 0.5:
            compact(writer, writer.rng.choice((0, 1, 3)))
        else:
            commit(writer)


@ROUNDS
@given(st.integers(0, 2**63 - 1))
def test_two_compactors(seed: int) -> None:
    """Both read one root. The second leaves alone the leaves that the first has rewritten."""
    writer = Writer(random.Random(seed))
    for _ in range(writer.rng.randrange(3, 9)):
        commit(writer)
    scopes = [random_scope(writer) for _ in range(2)]
    done = []
    for scope in scopes:
        choice = choose(scope)
        done.append(local_rewrite(scope, choice, writer.store, writer.stats, writer.name("c")))
    for rewritten in done:
        if writer.rng.random() < 0.3:
            commit(writer)
        if rewritten:
            apply(writer, rewritten)


@ROUNDS
@given(st.integers(0, 2**63 - 1))
def test_runs_end(seed: int) -> None:
    """Whatever the cap, nothing is left to do after that number of runs."""
    writer = Writer(random.Random(seed))
    for _ in range(writer.rng.randrange(3, 12)):
        commit(writer)
    rng = random.Random(seed)
    for _ in range(60):
        writer.rng = random.Random(seed)  # the same limits each time
        assert writer.root is not None
        scope = random_scope(writer, max_entries=rng.choice((None, 20)), max_bytes=None)
        choice = choose(scope)
        if not choice.groups:
            return
        apply(writer, local_rewrite(scope, choice, writer.store, writer.stats, writer.name("c")))
    raise AssertionError("compactions go on and on")


def test_the_local_job_is_not_the_real_one() -> None:
    assert local_job.LocalJob.data is local_job.RewriteJob.data
