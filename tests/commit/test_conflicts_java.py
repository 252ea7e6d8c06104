"""For every pair of operations, a commit is refused after the other one if Iceberg's Java library refuses it.

Java's outcomes are recorded during the test, on a table with the same files: of format version 3 for trees, and of the
same version for manifest lists.
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

import sparkmeta as sm
from tests.commit.operations import (
    BASE,
    BY_PARTITION,
    FILTERED,
    OPERATIONS,
    SCHEMA,
    SPEC,
    VALIDATED,
    Change,
    JavaPeer,
    Pointer,
    apply,
    outcome,
    planned,
    rows,
)
from tests.peers.java import Java
from tests.peers.slices import SOAK

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.java, pytest.mark.usefixtures("either_way")]

# The pairs of the slice: for each rule, a pair that it refuses, and a pair that it accepts.
CHOSEN = {
    "overwrite_filter-serializable": ("append-a1", "append-b1"),
    "overwrite_filter-snapshot-filter": ("append-a1", "overwrite_filter-b1", "rewrite-a2", "equality-a2"),
    "overwrite_files-snapshot": ("vector-a1", "vector-a2", "equality-a1", "equality-a2"),
    "overwrite_files-serializable": ("append-b1",),
    "overwrite_files": ("delete_files-a1",),
    "vector-snapshot-filter": ("delete_files-a2", "equality-b1"),
    "vector-serializable": ("equality-b1",),
    "equality-serializable-filter": ("rewrite-a1", "append-a1"),
    "rewrite": ("equality-b1", "vector-a1", "compact_manifests-b1"),
    "replace_partitions-serializable": ("append-a1", "append-b1"),
    "replace_partitions-snapshot": ("vector-b1", "delete_files-a2"),
    "compact_manifests": ("delete_files-a1",),
    "delete_filter": ("vector-a1",),
}
LAYOUTS = {"root": {}, "leaves": {"write.tree.direct-files": "0"}}
VERSIONS = {"v1": 1, "v2": 2, "v3": 3}

# (operation, concurrent operation) -> the reason why we refuse, though Java commits.
COMPACTED = "a compaction is a plan for named leaves: where another one has replaced them, it is to be planned again"
MISSING = "without a validation Java does not look whether what is replaced is there, and doubles its rows"
DANGLING = "Java keeps a deletion vector of a data file that is gone"
_REMOVING = ("delete_files", "delete_filter", "overwrite_filter", "overwrite_files", "rewrite", "replace_partitions")
REFUSED_BY_OURS = {
    ("compact_manifests", "compact_manifests-a1"): COMPACTED,
    ("compact_manifests", "compact_manifests-b1"): COMPACTED,
    **{("overwrite_files", f"{other}-a1"): MISSING for other in _REMOVING},
    **{("vector", f"{other}-a1"): DANGLING for other in ("delete_files", "delete_filter")},
}


def changes() -> list[Change]:
    """Return the operations in progress, which all concern the file a1 or its partition."""
    listed = []
    for operation in OPERATIONS:
        isolations = (None, "snapshot", "serializable") if operation in VALIDATED else (None,)
        for isolation in isolations:
            filters = (False, True) if operation in FILTERED and isolation else (False,)
            listed += [Change(operation, "a1", "x", isolation, with_filter) for with_filter in filters]
    return listed


def others() -> list[Change]:
    """Return the concurrent operations: on the same file, another one of its partition, or one of another partition."""
    pairs = product(OPERATIONS, ("a1", "a2", "b1"))
    return [Change(operation, target, "y") for operation, target in pairs
            if not (operation in BY_PARTITION and target == "a2")]  # fmt: skip


def cases() -> list[tuple[Change, Change]]:
    everything = [*product(changes(), others())]
    if SOAK:
        return everything
    return [pair for pair in everything if f"{pair[1]}-{pair[1].target}" in CHOSEN.get(str(pair[0]), ())]


class Tables:
    """A table for each layout or format version, and its versions after the concurrent operations."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self._tables: dict[str, sm.Table] = {}
        self._versions: dict[tuple[str, Change], sm.Table] = {}

    def stale(self, layout: str, other: Change) -> sm.Table:
        """Return the table before the concurrent operation, which its next commit then meets."""
        before = self._table(layout)
        if (layout, other) not in self._versions:
            self._versions[layout, other] = apply(self._at(before, before), other)
        return self._at(before, self._versions[layout, other])

    def _at(self, table: sm.Table, newest: sm.Table) -> sm.Table:
        return replace(table, operations=Pointer(newest.version))

    def _table(self, layout: str) -> sm.Table:
        if layout not in self._tables:
            catalog = sm.load_catalog("test", type="hadoop", warehouse=str(self.folder))
            table = catalog.create_table(
                f"db.{layout}", SCHEMA, SPEC, format_version=VERSIONS.get(layout, 4), spark=self.spark
            )
            retries = {"commit.retry.min-wait-ms": "1", "commit.retry.max-wait-ms": "1"}
            with table.transaction() as tx:
                tx.set_properties(LAYOUTS.get(layout, {}) | retries)
                for files in BASE:
                    tx.update_snapshot().append(rows(self.spark, files))
            self._tables[layout] = tx.commit()
        return self._tables[layout]


@pytest.fixture(scope="module")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    return Tables(spark, tmp_path_factory.mktemp("conflicts"))


@pytest.mark.parametrize(("change", "other"), cases(), ids=lambda change: f"{change}-{change.target}")
def test_conflicts_are_those_of_java(change: Change, other: Change, tables: Tables, spark: SparkSession) -> None:
    expected = JavaPeer.in_memory(Java(spark)).outcome(change, other)
    if (str(change), f"{other}-{other.target}") in REFUSED_BY_OURS:
        assert expected != "refused"
        expected = "refused"
    layout = sorted(LAYOUTS)[(zlib.crc32(f"{change} {other} {other.target}".encode()) >> 8) % len(LAYOUTS)]
    stale = tables.stale(layout, other)
    assert outcome(stale, change) == expected
    if expected != "refused":
        assert stale.refresh().check().collect() == []
        assert planned(stale.refresh()) == expected


def case_id(part: Change | str) -> str:
    return part if isinstance(part, str) else f"{part}-{part.target}"


def list_cases() -> list[Any]:
    """Return pairs without compactions of manifests, each in one version that supports its files.

    The soak has every version.
    """
    listed = []
    for change, other in cases():
        needed = max(3 if candidate.operation == "vector" else 2 if candidate.operation == "equality" else 1
                     for candidate in (change, other))  # fmt: skip
        if "compact_manifests" in (change.operation, other.operation):
            continue
        versions = [name for name, version in VERSIONS.items() if version >= needed]
        chosen = versions if SOAK else [versions[zlib.crc32(f"{change} {other}".encode()) % len(versions)]]
        listed += [(name, change, other) for name in chosen]
    return listed if SOAK else listed[::4]


@pytest.mark.parametrize(("version", "change", "other"), list_cases(), ids=case_id)
def test_conflicts_of_lists_are_those_of_java(
    version: str, change: Change, other: Change, tables: Tables, spark: SparkSession
) -> None:
    expected = JavaPeer.in_memory(Java(spark), VERSIONS[version]).outcome(change, other)
    if (str(change), f"{other}-{other.target}") in REFUSED_BY_OURS:
        assert expected != "refused"
        expected = "refused"
    stale = tables.stale(version, other)
    assert outcome(stale, change) == expected
    if expected != "refused":
        assert planned(stale.refresh()) == expected
