"""A snapshot that names its root as `manifest-list` reads as with `root-manifest` (semantics 19.1)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import sparkmeta as sm
from tests.trees import BY_PART, TreeTable, data

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TABLES = ("files", "entries", "manifests", "snapshots", "all_files", "all_entries", "all_manifests")


def rows(frame: DataFrame) -> list[str]:
    return sorted(map(str, frame.collect()))


def readings(table: sm.Table) -> dict[str, list[str]]:
    tables = {name: rows(getattr(table.inspect, name)()) for name in _TABLES}
    expiry = table.maintenance.expire_snapshots(snapshot_ids=[1])
    return tables | {
        "plan": rows(table.scan("part = 'p1'").plan_files()),
        "check": rows(table.check()),
        "changes": rows(table.file_changes(None)),
        "expiry": rows(expiry.to_df()),
    }


def test_all_readings(spark: SparkSession, tmp_path: Path) -> None:
    tree = TreeTable(tmp_path / "t", BY_PART)
    first = tree.leaf("m1", *(data(f"x:d{number}", f"p{number % 3}") for number in range(9)))
    tree.snapshot(added=[first])
    mask = tree.mask(first, {3})
    tree.snapshot(existing=[first], added=[mask, data("x:d9", "p1")])
    expected = readings(tree.load(spark))
    metadata = max((tmp_path / "t" / "metadata").glob("*.metadata.json"))
    text = metadata.read_text()
    assert text.count('"root-manifest"') == 2
    metadata.write_text(text.replace('"root-manifest"', '"manifest-list"'))
    actual = readings(sm.load_table(f"file://{tmp_path}/t", spark=spark))
    assert len(expected["all_files"]) > len(expected["files"])
    assert any("root" in row for row in expected["expiry"])
    for name, expected_rows in expected.items():
        assert actual[name] == expected_rows, name
