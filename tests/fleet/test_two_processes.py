"""Two processes of `sparkmeta maintain` at once: each table is rewritten once."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from sparkmeta.fleet.lease import LEASE
from tests.fleet.test_killed_runs import process
from tests.fleet.test_run import Fleet, ids

if TYPE_CHECKING:
    from pathlib import Path

ALL = "db.*"


@pytest.mark.parametrize(
    ("names", "limits", "codes"),
    [(("db.a*", "db.b*"), "", {0}), ((ALL, ALL), "\nlease = '10m'", {0, 3})],
    ids=["other tables", "the same tables with leases"],
)
def test_two_processes(tmp_path: Path, names: tuple[str, str], limits: str, codes: set[int]) -> None:
    """Runs of other tables do all of their jobs. Runs of the same tables share them by leases, and give these back."""
    fleet = Fleet(tmp_path)
    tables = [f"{'ab'[number % 2]}{number:02}" for number in range(12)]
    for number, name in enumerate(tables):
        fleet.table(name, files=4 + number % 3, version=2 + number % 3)
    text = fleet.config("side_by_side = 2" + limits).read_text()
    configs = [tmp_path / f"{place}.toml" for place in range(2)]
    for config, chosen in zip(configs, names, strict=True):
        config.write_text(text.replace(ALL, chosen))
    runs = [process(config, config.with_suffix(".jsonl")) for config in configs]
    assert {run.wait() for run in runs} <= codes, [each.with_suffix(".log").read_text()[-2_000:] for each in configs]
    results = [json.loads(line) for config in configs for line in config.with_suffix(".jsonl").read_text().splitlines()]
    committed = [result for result in results if result["status"] == "committed"]
    rewritten = Counter(result["table"] for result in committed if result["job"] == "rewrite_data_files")
    assert rewritten == {f"db.{name}": 1 for name in tables}
    if ALL not in names:
        assert committed == results
    for number, name in enumerate(tables):
        table = fleet.load(name)
        assert ids(table) == list(range(4 + number % 3))
        assert (len(table.inspect.arrow.files()), len(table.snapshots())) == (1, 1)
        assert LEASE not in table.properties
        assert not table.arrow.check().to_pylist()
