"""Iceberg's Java library and sparkmeta alternately change and maintain a table, at random.

After each turn, both read the same rows, and each remaining snapshot has the rows of its commit.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from tests.maintain.row_turns import RowTurns
from tests.maintain.test_expire import files_below, opened
from tests.peers.java import Java
from tests.peers.slices import SOAK
from tests.peers.workshop import MERGE_ON_READ, Workshop
from tests.rows.comparison import row_texts
from tests.rows.test_changelog import History

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    import sparkmeta as sm

pytestmark = pytest.mark.java

Rows = Counter[tuple[str | None, ...]]
SECOND = 1_000
# The long form's steps for each version and file format, and the seed of the random changes.
STEPS, SEED = int(os.environ.get("SPARKMETA_STEPS", "200")), os.environ.get("SPARKMETA_SEED", "1")


class Turns:
    """A table that both libraries change.

    Attributes:
        rows: the rows of each snapshot on main, as Java read them after its commit.
        names: the turns so far.
    """

    def __init__(self, shop: Workshop, rng: random.Random) -> None:
        self.shop, self.rng = shop, rng
        self.history = History(shop, rng)
        self.rows: dict[int, Rows] = {}
        self.names: list[str] = []

    # -- turns

    def java(self) -> None:
        """Let Java take a turn: a change of rows, or maintenance."""
        changes = [
            self.history.insert, self.history.delete, self.history.delete, self.history.update, self.history.merge,
            self.history.delete_by_equality, self.history.replace_rows, self.history.delete_partition,
        ]  # fmt: skip
        upkeep = [
            self.history.rewrite_data, self.history.rewrite_deletes, self.history.rewrite_manifests, self.java_expires,
            self.java_removes_orphans, self.java_commits_to_a_branch,
        ]  # fmt: skip
        self._take(self.rng.choice(changes if self.rng.random() < 0.6 else upkeep), changes)

    def sparkmeta(self) -> None:
        """Let sparkmeta take a turn, after which the rows are the same."""
        turns = [
            self.rewrite_manifests, self.expire, self.remove_orphans, self.remove_dangling_deletes,
            self.rewrite_deletes, self.rewrite_deletes, self.rewrite_data, self.rewrite_data, self.tag,
            self.fast_forward,
        ]  # fmt: skip
        self._take(self.rng.choice(turns), [self.fast_forward])

    def _take(self, turn: Callable[[], object], may_change: list[Any]) -> None:
        before = self._java_rows() if self.rows else Counter()
        self.names.append(turn.__name__)
        turn()
        self.shop.sql("REFRESH TABLE {t}")
        after = self._java_rows()
        assert turn in may_change or not self.rows or after == before, self.names
        self.rows[self.shop.snapshot_id()] = after
        self.check()

    def check(self, *, all_snapshots: bool = False) -> None:
        """Compare the rows of the table and of one earlier snapshot, or of all."""
        table = opened(self.shop)
        current = self.shop.snapshot_id()
        assert Counter(row_texts(table.scan().to_df())) == self.rows[current], self.names
        left = [snapshot.snapshot_id for snapshot in table.metadata.snapshots if snapshot.snapshot_id in self.rows]
        for snapshot_id in left if all_snapshots else self.rng.sample(left, 1):
            assert self._java_rows(snapshot_id) == self.rows[snapshot_id], self.names
            ours = table.scan(snapshot_id=snapshot_id).to_df()
            assert Counter(row_texts(ours)) == self.rows[snapshot_id], self.names

    def _java_rows(self, snapshot_id: int | None = None) -> Rows:
        version = "" if snapshot_id is None else f" VERSION AS OF {snapshot_id}"
        return Counter(row_texts(self.shop.sql(f"SELECT * FROM {{t}}{version}")))

    # -- turns of Java

    def java_expires(self) -> None:
        when = datetime.fromtimestamp(self._past_or_now() / 1000, UTC).strftime("%F %T.%f")
        self.shop.call("expire_snapshots", f"older_than => TIMESTAMP '{when}', retain_last => 2")

    def java_removes_orphans(self) -> None:
        action = self.shop.java.iceberg.spark.actions.SparkActions.get(self.shop.java.session)
        orphan = self._orphan()
        action.deleteOrphanFiles(self.shop.table).olderThan(_soon()).execute()
        assert orphan not in files_below(self.shop.folder)

    def java_commits_to_a_branch(self) -> None:
        self.shop.sql("ALTER TABLE {t} CREATE BRANCH IF NOT EXISTS ahead")
        self.shop.sql(f"INSERT INTO {self.shop.sql_name}.branch_ahead VALUES ({self.history.row()})")

    # -- turns of sparkmeta

    @property
    def table(self) -> sm.Table:
        return opened(self.shop)

    def rewrite_manifests(self) -> None:
        self.table.maintenance.rewrite_manifests(target_manifest_bytes=self.rng.choice([4_000, 8 << 20])).commit()

    def expire(self) -> None:
        self.table.maintenance.expire_snapshots(older_than=self._past_or_now(), retain_last=2).commit()

    def remove_orphans(self) -> None:
        orphan = self._orphan()
        self.table.maintenance.remove_orphan_files(older_than=_soon(), force=True).commit()
        assert orphan not in files_below(self.shop.folder)

    def remove_dangling_deletes(self) -> None:
        self.table.maintenance.remove_dangling_deletes().commit()

    def rewrite_deletes(self) -> None:
        everything = self.rng.random() < 0.5
        row_filter = self.rng.choice(["part = 'x'", "true"])
        options = {"rewrite_all": everything, "min_input_files": 1 if everything else 2}
        maintenance = self.table.maintenance
        if row_filter == "true":
            maintenance.rewrite_position_delete_files(**options).commit()  # type: ignore[arg-type]
        else:
            maintenance.rewrite_position_delete_files(row_filter, **options).commit()  # type: ignore[arg-type]

    def rewrite_data(self) -> None:
        orders: list[dict[str, Any]] = [
            {}, {"strategy": "sort", "sort_order": "id DESC"}, {"strategy": "sort", "sort_order": "zorder(id, name)"},
            {"partial_progress_enabled": True}, {"remove_dangling_deletes": True},
        ]  # fmt: skip
        chosen = {"rewrite_all": True} if self.rng.random() < 0.5 else {"min_input_files": 2}
        self.table.maintenance.rewrite_data_files(**chosen, **self.rng.choice(orders)).commit()

    def tag(self) -> None:
        snapshot = self.rng.choice(self.table.metadata.snapshots)
        self.table.manage_snapshots().create_tag(snapshot.snapshot_id, f"t{len(self.names)}").commit()

    def fast_forward(self) -> None:
        """Set main to the branch `ahead`, if main is its ancestor."""
        table = self.table
        ahead, parents = table.metadata.snapshot_by_name("ahead"), set()
        while ahead is not None:
            parents.add(ahead.snapshot_id)
            ahead = table.metadata.snapshot_by_id(ahead.parent_snapshot_id or 0)
        if table.metadata.current_snapshot_id in parents:
            table.manage_snapshots().fast_forward("main", "ahead").commit()

    # -- helpers of both

    def _orphan(self) -> str:
        """Write a file that nothing needs."""
        path = self.shop.folder / "data" / f"orphan-{len(self.names)}.parquet"
        path.write_bytes(b"orphan")
        return str(path)

    def _past_or_now(self) -> int:
        snapshot = self.rng.choice(self.table.metadata.snapshots)
        return self.rng.choice([snapshot.timestamp_ms + 1, _soon()])


def _soon() -> int:
    return int(time.time() * 1000) + 3_600 * SECOND


@pytest.mark.parametrize("seed", range(20) if SOAK else [5])
def test_in_turns(spark: SparkSession, seed: int) -> None:
    rng = random.Random(seed)
    shop = Workshop(Java(spark), f"turns_{seed}")
    granularity = {"write.delete.granularity": rng.choice(["file", "partition"])}
    properties = MERGE_ON_READ | granularity
    shop.create("id INT, name STRING, part STRING", "part", version=2, properties=properties)
    turns = Turns(shop, rng)
    shop.insert(*turns.history.rows(), *turns.history.rows())
    shop.sql("DELETE FROM {t} WHERE id % 3 = 0")
    steps = 24 if SOAK else 6
    for step in range(steps):
        if step == steps // 2 and seed % 2:
            shop.set(format_version="3")
        (turns.java if step % 2 else turns.sparkmeta)()
    turns.check(all_snapshots=True)


LAYOUTS = [(version, file_format) for version in (1, 2, 3) for file_format in ("parquet", "orc")]


@pytest.mark.parametrize(("version", "file_format"), LAYOUTS if SOAK else [(2, "parquet"), (3, "orc")])
def test_changes_in_turns(spark: SparkSession, version: int, file_format: str) -> None:
    """Each library in turn changes rows, schemas and specs, and maintains the table. The rows equal a model's."""
    rng = random.Random(f"{version} {file_format} {SEED}")
    shop = Workshop(Java(spark), f"changed_in_turns_{version}_{file_format}")
    properties = {"write.format.default": file_format} | (MERGE_ON_READ if version > 1 else {})
    shop.create("id INT, name STRING, part STRING", "part", version=version, properties=properties)
    turns = RowTurns(shop, rng, version)
    turns.append(by_java=True)
    for step in range(STEPS if SOAK else 6):
        turns.step(by_java=step % 2 == 0)
