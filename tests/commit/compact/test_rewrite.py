"""The sizes of the inputs of a compaction's tasks."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from sparkmeta.commit import compaction_job
from sparkmeta.commit.compaction_groups import Group
from sparkmeta.commit.compaction_job import RewriteJob
from sparkmeta.commit.compaction_tasks import Rewriting
from sparkmeta.errors import CorruptFileError
from sparkmeta.manifests.v4.layout import TreeTypes, tree_schema, write_manifest
from sparkmeta.spec.entry import ContentType
from sparkmeta.spec.locations import Locations
from sparkmeta.spec.tree_layout import PROPOSAL
from tests.trees import data


@pytest.mark.parametrize(
    ("sizes", "counts", "expected"),
    [
        ([40, 40, 40, 40], [1, 1, 1, 1], [[0, 1], [2, 3]]),  # bytes
        ([1, 1, 1, 1], [4, 4, 4, 1], [[0, 1], [2, 3]]),  # entries
        ([90, 200, 5, 5], [1, 1, 30, 1], [[0], [1], [2], [3]]),  # a leaf beyond either limit stands alone
    ],
)
def test_entries_that_are_exchanged_are_read_in_bounded_parts(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], counts: list[int], expected: list[list[int]]
) -> None:
    monkeypatch.setattr(compaction_job, "_CUT_BYTES", 100)
    monkeypatch.setattr(compaction_job, "CUT_ENTRIES", 9)
    taken: list[tuple[list[int], bool]] = []

    class Job(RewriteJob):
        def _bin(self, number: int, group: Group, leaves: Any, *, files: bool = True) -> dict[str, Any]:
            taken.append((list(leaves), files))
            return {}

    table = pa.table({"file_size_in_bytes": [0, *sizes], "record_count": [0, *counts]})
    scope: Any = SimpleNamespace(root=SimpleNamespace(table=table))
    state: Any = None
    group = Group(ContentType.DATA_MANIFEST, 0, tuple(range(1, 5)), files=(0,))
    Job(state, scope, state, "")._chunks(replace(group, parts=2, exchanged=True))
    assert [[ordinal - 1 for ordinal in leaves] for leaves, _ in taken] == expected
    assert [files for _, files in taken] == [True, *[False] * (len(expected) - 1)]


def test_a_leaf_of_fewer_entries_than_its_root_counts_is_refused() -> None:
    entry = data("f", content_stats={}, version_info={"status": 1}).row
    content = write_manifest(pa.Table.from_pylist([entry], tree_schema({})), "data")
    reader: Any = SimpleNamespace(read=lambda _: content)
    form: Any = SimpleNamespace(stats={}, schema=tree_schema({}), layout=PROPOSAL)
    leaf = {"manifest": 0, "location": "leaf", "snapshot_id": 1, "sequence_number": 1, "first_row_id": None}
    leaf |= {"file_format": None, "partition_spec_id": 0, "part": 0, "parts": 1, "dv": None}
    rewriting = Rewriting(reader, form, TreeTypes({}, frozenset(), {0: []}, {0: []}), Locations("/t", 4), {}, 1.0)
    assert [len(table) for table in rewriting.live_entries([leaf | {"record_count": 1}])] == [1]
    with pytest.raises(CorruptFileError, match="leaf: entries is 1: the root's entry for the leaf counts 2 entries"):
        list(rewriting.live_entries([leaf | {"record_count": 2}]))
