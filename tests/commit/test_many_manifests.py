"""Commits to lists of very many manifests, without a session."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pyarrow as pa

import sparkmeta as sm
from tests.benchmarks.many_manifests import ManyManifests

if TYPE_CHECKING:
    from pathlib import Path

MANIFESTS = 3_000


def test_commits_take_little_time_for_each_other_manifest(tmp_path: Path) -> None:
    location = ManyManifests(MANIFESTS, files=1, build=tmp_path).location()
    table = sm.load_table(location)
    (file,) = table.scan("part = 'p00050'").arrow.plan_files().slice(3, 1).to_pylist()
    template = ManyManifests(1, files=1).template_files()
    new = template.set_column(0, "file_path", pa.array(["file:///warehouse/many/data/new.parquet"]))
    before = table.inspect.arrow.manifests().column("path").to_pylist()

    start = time.process_time()
    with table.transaction() as tx:
        tx.update_snapshot().append(new)
    with table.refresh().transaction() as tx:
        tx.update_snapshot().delete(pa.table({"file_path": [file["file_path"]]}))
    seconds = time.process_time() - start

    after = table.refresh()
    assert after.scan().count_files() == MANIFESTS
    # With a table of Arrow for each manifest, the commits did not end in a minute.
    assert seconds < 3
    paths = after.inspect.arrow.manifests().column("path").to_pylist()
    removed = before.index(file["manifest_path"])
    assert paths[1 : removed + 1] == before[:removed]
    assert paths[-(MANIFESTS - removed - 1) :] == before[removed + 1 :]
