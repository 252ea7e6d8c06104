"""Commits to tables with manifest lists are compared with the same commits by Iceberg's Java library."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

import sparkmeta as sm
from tests.commit.operations import OPERATIONS, Change, JavaPeer, apply, planned
from tests.peers.java import Java

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.java, pytest.mark.core]

LISTED = tuple(name for name in OPERATIONS if name != "compact_manifests")


@dataclass
class Pair:
    """A table of Java's, and one of ours whose first metadata is a copy of Java's."""

    peer: JavaPeer
    folder: Path
    spark: SparkSession

    @staticmethod
    def new(spark: SparkSession, folder: Path, format_version: int, properties: dict[str, str] | None = None) -> Pair:
        peer = JavaPeer.in_folder(Java(spark), folder / "java", format_version, properties)
        return Pair(peer, folder, spark)

    def clone(self) -> sm.Table:
        """Return our table, with a copy of the current metadata of Java's table."""
        return cloned(self.spark, self.folder / "java", self.folder / "ours")

    def java_reads(self, location: str) -> Any:
        return self.peer.java.table(location)


def cloned(spark: SparkSession, source: Path, target: Path) -> sm.Table:
    metadata = source / "metadata"
    newest = max(metadata.glob("v*.metadata.json"), key=lambda path: int(path.name[1:].partition(".")[0]))
    (target / "metadata").mkdir(parents=True)
    document = json.loads(newest.read_text()) | {"location": f"file://{target}"}
    (target / "metadata" / "v1.metadata.json").write_text(json.dumps(document))
    return sm.load_table(f"file://{target}", spark=spark)


IGNORED = ("iceberg-version", "engine-name", "engine-version", "app-id", "app-name", "spark.app.id")


def shown(table: Any) -> dict[str, Any]:
    """Return a table as Java's metadata tables show it, without ids, paths and times."""
    ids = [row["snapshot_id"] for row in table.metadata_table("snapshots").orderBy("committed_at").collect()]
    return {
        "snapshots": [
            (
                row["operation"],
                ids.index(row["parent_id"]) if row["parent_id"] else None,
                {key: value for key, value in sorted(row["summary"].items()) if key not in IGNORED},
            )
            for row in table.metadata_table("snapshots").orderBy("committed_at").collect()
        ],
        "manifests": [
            {
                **{key: value for key, value in row.asDict(recursive=True).items() if key not in ("path", "length")},
                "added_snapshot_id": ids.index(row["added_snapshot_id"]),
            }
            for row in table.metadata_table("manifests").collect()
        ],
        "entries": sorted(
            (entry(row.asDict(recursive=True), ids) for row in table.metadata_table("entries").collect()), key=str
        ),
    }


def entry(row: dict[str, Any], ids: list[int]) -> dict[str, Any]:
    del row["readable_metrics"]
    row["snapshot_id"] = ids.index(row["snapshot_id"])
    return row


@pytest.mark.parametrize("format_version", [1, 2, 3])
@pytest.mark.parametrize("operation", LISTED)
def test_an_operation_leaves_what_java_leaves(
    operation: str, format_version: int, spark: SparkSession, tmp_path: Path
) -> None:
    if (format_version < 3 and operation == "vector") or (format_version == 1 and operation == "equality"):
        pytest.skip("the format version has no such deletes")
    pair = Pair.new(spark, tmp_path, format_version)
    change = Change(operation, "a1", "x")
    ours = apply(pair.clone(), change)
    start = pair.peer.table.currentSnapshot().snapshotId()
    pair.peer.update(change, start).commit()
    theirs = pair.peer.current
    reread = pair.java_reads(ours.metadata_location)
    assert shown(reread) == shown(theirs)
    assert planned(ours) == pair.peer.planned()
    assert reread.plan() == [] or len(reread.plan()) == len(planned(ours))


@pytest.mark.parametrize("format_version", [2, 3])
def test_small_manifests_are_merged_as_java_merges_them(
    format_version: int, spark: SparkSession, tmp_path: Path
) -> None:
    """The manifests are the same after each change.

    Some changes merge data manifests, some delete manifests, and some neither.
    """
    properties = {"commit.manifest.min-count-to-merge": "2"}
    pair = Pair.new(spark, tmp_path, format_version, properties)
    ours = pair.clone()
    changes = [
        Change("append", "a1", "x"),
        Change("equality", "b1", "e"),
        Change("append", "b2", "y"),
        Change("equality", "a2", "f"),
        Change("delete_files", "b1", ""),
        Change("append", "a1", "z"),
    ]
    for change in changes:
        ours = apply(ours, change)
        pair.peer.update(change, pair.peer.table.currentSnapshot().snapshotId()).commit()
        pair.peer.table.refresh()
        assert shown(pair.java_reads(ours.metadata_location)) == shown(pair.peer.current), str(change)
    assert planned(ours) == pair.peer.planned()
