"""Writers that stream into tables while runs of `sparkmeta maintain` follow each other: nothing is lost, sizes stay."""

from __future__ import annotations

import json
import statistics
import threading
import time
from pathlib import Path

import pyarrow as pa

import sparkmeta as sm
from tests.fleet.test_killed_runs import process
from tests.fleet.test_run import ROWS, Fleet, ids

JOBS = """
[jobs.rewrite_data_files]
min_input_files = 2
[jobs.remove_dangling_deletes]
[jobs.rewrite_position_delete_files]
[jobs.expire_snapshots]
older_than = '0m'
retain_last = 5
[jobs.compact_manifests]
[jobs.rewrite_manifests]
"""
ROWS_A_BATCH = 10


class Writer(threading.Thread):
    """Appends batches of rows with new ids to a table, and deletes a row of each tenth batch.

    Attributes:
        ids: the ids that the table has.
        error: why the writer has stopped early.
    """

    def __init__(self, fleet: Fleet, name: str, pause: float) -> None:
        super().__init__(daemon=True)
        self.fleet, self.table_name, self.pause = fleet, name, pause
        self.ids: set[int] = set()
        self.error: BaseException | None = None
        self.ended = threading.Event()

    def run(self) -> None:
        try:
            number, table = 0, self.fleet.load(self.table_name)
            while not self.ended.is_set():
                new_ids = list(range(number, number + ROWS_A_BATCH))
                table = table.refresh().append(pa.table({"id": new_ids, "part": [0] * ROWS_A_BATCH}, ROWS))
                self.ids |= set(new_ids)
                if number // ROWS_A_BATCH % 10 == 9:
                    table = self._without(table, number)
                number += ROWS_A_BATCH
                time.sleep(self.pause)
        except BaseException as error:  # noqa: BLE001
            self.error = error

    def _without(self, table: sm.Table, row_id: int) -> sm.Table:
        """Delete a row, again if a rewrite replaces its file meanwhile."""
        while True:
            try:
                table = table.refresh().delete(f"id = {row_id}", isolation="snapshot")
            except (sm.CommitConflictError, sm.CommitFailedError):
                continue
            self.ids.discard(row_id)
            return table


def metadata_bytes(table: sm.Table) -> int:
    """The size of the metadata file, and of the manifests and the list or root that a plan reads."""
    manifests = table.inspect.arrow.manifests().column("length").to_pylist()
    return Path(table.metadata_location).stat().st_size + sum(manifests)


def test_writers_go_on(tmp_path: Path, soak: bool) -> None:
    seconds, pause = (3600, 1.0) if soak else (15, 0.5)
    fleet = Fleet(tmp_path)
    properties = {"write__delete__mode": "merge-on-read", "write__metadata__delete_after_commit__enabled": "true"}
    # Writers merge manifests early, so that the size of the metadata is level within minutes.
    few = {"write__metadata__previous_versions_max": "10", "commit__manifest__min_count_to_merge": "10"}
    writers = []
    for version in (2, 3, 4):
        fleet.table(f"v{version}", files=0, version=version, **properties, **few)
        writers.append(Writer(fleet, f"v{version}", pause))
    config = fleet.config('side_by_side = 3\nlease = "1m"', JOBS)
    output = tmp_path / "results.jsonl"
    for writer in writers:
        writer.start()
    sizes: dict[str, list[int]] = {writer.table_name: [] for writer in writers}
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        assert process(config, output).wait() in (0, 3), output.with_suffix(".log").read_text()[-3_000:]
        for name, measured in sizes.items():
            measured.append(metadata_bytes(fleet.load(name)))
        time.sleep(10 if soak else 0)
    for writer in writers:
        writer.ended.set()
        writer.join(60)
        assert writer.error is None
    results = [json.loads(line) for line in output.read_text().splitlines()]
    assert {result["status"] for result in results} <= {"committed", "nothing to do", "not applicable", "conflict"}
    assert {(result["table"], result["job"]) for result in results if result["status"] == "committed"} >= {
        (f"db.{writer.table_name}", job) for writer in writers for job in ("rewrite_data_files", "expire_snapshots")
    }
    for writer in writers:
        table = fleet.load(writer.table_name)
        assert ids(table) == sorted(writer.ids), writer.table_name
        assert not table.arrow.check().to_pylist()
        if soak:
            measured = sizes[writer.table_name]
            half = len(measured) // 2
            assert statistics.median(measured[half:]) < 1.5 * statistics.median(measured[:half]), measured
