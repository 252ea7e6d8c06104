"""Every public call of a process without a Spark session works, or asks for a session; see `tests.no_session`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_public_calls_without_a_session(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.no_session", str(tmp_path)]
    process = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent.parent)
    assert process.returncode == 0, process.stderr
    outcomes = dict(line.split(": ", 1) for line in process.stdout.splitlines() if line.startswith("v"))
    assert not {name: outcome for name, outcome in outcomes.items() if outcome.startswith("error")}
    # A DataFrame asks for one; a plan in memory does not.
    asking = {name for name, outcome in outcomes.items() if outcome == "asks"}
    assert {
        "v2.changelog.to_df",
        "v2.table.file_changes",
        "v4.scan.plan_files",
        "v4.scan.to_df",
        "v0.view.to_df",
    } <= asking
    assert {"v0.catalog.create_view", "v2.transaction.set_properties", "v4.merge.merge"} <= outcomes.keys()
    # The rows of a plan are a DataFrame.
    of_catalogs = {name for name in asking if name.startswith("v0.catalog.")}
    assert of_catalogs <= {"v0.catalog.purge_table", "v0.catalog.recover_table"}
    assert not {"v2.scan.arrow.plan_files", "v4.scan.to_arrow", "v2.table.append", "v4.maintenance.health"} & asking
