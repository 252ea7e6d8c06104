"""Processes without Spark that compact a tree beside committers: tasks run in the process itself.

The tree of `tree_committers` has leaves of data files only.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from sparkmeta.commit.next_root import FileKey, file_keys
from sparkmeta.errors import CommitConflictError, CommitFailedError, CommitStateUnknownError
from sparkmeta.manifests.v4.layout import read_manifest
from sparkmeta.spec.bitmap import PositionBitmap
from sparkmeta.storage.files import LocalFiles
from tests.commit import tree_committers as trees
from tests.commit.compact.local_job import LocalJob

if TYPE_CHECKING:
    from sparkmeta.commit.compaction_groups import CompactionGroups, Scope
    from sparkmeta.commit.compaction_job import Rewritten
    from sparkmeta.operations.table_operations import TableOperations
    from sparkmeta.snapshot.state import TableState

AUTHOR = "compactor"
# For each attempt to commit that met concurrent removals: the number of leaves and files that they concern.
CARRIED: list[int] = []


class Folder(LocalFiles):
    """The leaves of a folder, for `LocalJob`."""

    def leaf(self, location: str) -> pa.Table:
        return read_manifest(self.read(location), trees.STATS, location)[0]


@contextmanager
def without_spark() -> Iterator[None]:
    """Run the jobs of compactions in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sparkmeta.commit.leaves.executor_writer", lambda _: None)
        patch.setattr("sparkmeta.commit.snapshot_writer.rewrite", _rewrite)
        patch.setattr("sparkmeta.maintain.compact_manifests.rewrite", _rewrite)
        patch.setattr("sparkmeta.commit.compaction_job._masks", _masks)
        yield


def _rewrite(state: TableState, scope: Scope, choice: CompactionGroups, name: str) -> list[Rewritten]:
    assert choice.deletes is None
    stand_in: Any = SimpleNamespace(
        sessions=None,
        metadata=state.metadata,
        types=state.types,
        layout=state.layout,
        files=None,
        spark=SimpleNamespace(conf=SimpleNamespace(get=lambda *_: "2")),
    )
    return LocalJob(stand_in, scope, Folder(), name, Folder()).data(choice.data)  # type: ignore[arg-type]


def _masks(
    _: Any, new_leaves: pa.Table, gone: Mapping[str, PositionBitmap], lost: Sequence[FileKey]
) -> dict[str, PositionBitmap]:
    """Return the ordinals of removed files' entries by new leaf, found by their keys."""
    CARRIED.append(len(gone) + len(lost))
    keys, folder = set(lost), Folder()
    for leaf, bitmap in gone.items():
        known = file_keys(folder.leaf(leaf))
        keys |= {known[ordinal] for part in bitmap.positions() for ordinal in part}
    bitmaps = {}
    for leaf in new_leaves.column("location").to_pylist():
        places = [ordinal for ordinal, key in enumerate(file_keys(folder.leaf(leaf))) if key in keys]
        if places:
            bitmaps[leaf] = PositionBitmap.of(places)
    return bitmaps


def work(swap: TableOperations, folder: Path, worker: int, writers: int, commits: int) -> None:
    """Compact as long as writers have commits to make, and note the outcome of each compaction."""
    chance = random.Random(os.getpid())
    with without_spark(), (folder / f"worker.{worker}").open("a") as notes:
        while True:
            table = trees.opened(swap)
            steps = [int(table.properties.get(f"worker.{writer}", "0")) for writer in range(writers)]
            if min(steps) >= commits:
                return
            plan = table.maintenance.compact_manifests(
                target_leaf_bytes=chance.choice((None, 6_000)),
                max_entries=chance.choice((None, 50)),
                min_masked_ratio=chance.choice((0.02, 0.1, 0.5)),
                min_leaf_ratio=chance.choice((0.5, 1.0)),
                max_root_files=chance.choice((0, 3, None)),
                snapshot_properties={"author": AUTHOR},
            )
            outcome = "nothing"
            CARRIED.clear()
            if not plan.summary().is_empty:
                try:
                    plan.commit()
                    outcome = "carried" if CARRIED else "done"
                except CommitConflictError:
                    outcome = "overtaken"
                except (CommitFailedError, CommitStateUnknownError) as error:
                    outcome = "failed" if isinstance(error, CommitFailedError) else "unknown"
            notes.write(f"{outcome} {sum(steps)}\n")
            notes.flush()
            time.sleep(chance.uniform(0, 0.02))
