"""Write, audit, publish: a session stages changes or writes to a branch, compared with Iceberg's Spark writer.

Each operation also runs with an idempotency key, so that repetitions are detected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyiceberg.expressions import AlwaysTrue
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

import sparkmeta as sm
from sparkmeta.cli.commands import description
from sparkmeta.errors import ValidationError
from sparkmeta.service.plans import scan_of
from sparkmeta.service.requests import PlanRequest
from sparkmeta.spec.summary import summary_of
from tests.conftest import configured
from tests.maintain.test_expire import files_below, planned_paths, soon
from tests.peers.slices import SOAK
from tests.peers.twins import comparable, document, opened, rows, twins
from tests.peers.workshop import MERGE_ON_READ
from tests.rows.comparison import row_texts
from tests.write.test_changes import MODES, Rows, frame, new_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ID, BRANCH = "spark.wap.id", "spark.wap.branch"
WAP = {"write.wap.enabled": "true"}
JAVA_ERRORS = (Py4JJavaError, PySparkException)
BASE: Rows = [(i, "ab"[i % 2], i) for i in range(8)]
NEW: Rows = [(100, "b", 1), (102, "b", 2)]
# A request to plan all rows of the current snapshot.
PLAN = PlanRequest(AlwaysTrue(), "true", None, None, False, True, None, None, None)
KEYED: Rows = [(0, "a", -1), *NEW]


@dataclass(frozen=True)
class Operation:
    """An operation on a table with the rows `BASE`, and the rows afterwards."""

    run: Callable[..., sm.Table]
    rows: Rows


def frame_for(table: sm.Table, values: Rows) -> DataFrame:
    return frame(table.state.spark, values).coalesce(1)


def merge(table: sm.Table, **options: Any) -> sm.Table:
    merge = table.merge(frame_for(table, KEYED), ["id"], **options)
    return merge.when_matched().delete().when_not_matched().insert_all().merge()


def add_files(table: sm.Table, **options: Any) -> sm.Table:
    path = f"{table.location().removeprefix('file:')}-added.parquet"
    ids, parts, numbers = zip(*NEW, strict=True)
    pq.write_table(pa.table({"id": ids, "part": parts, "n": pa.array(numbers, pa.int32())}), path)
    return table.add_files([path], **options)


def append_table(table: sm.Table, **options: Any) -> sm.Table:
    folder = Path(f"{table.location().removeprefix('file:')}-other")
    other = sm.load_table(f"{folder}/db/t") if folder.exists() else new_table(table.state.spark, folder, version=3)
    other = other if other.snapshots() else other.append(frame_for(table, NEW))
    with table.transaction() as tx:
        tx.update_snapshot(**options).append(other)
    return tx.commit()


OPERATIONS = {
    "append": Operation(lambda table, **options: table.append(frame_for(table, NEW), **options), [*BASE, *NEW]),
    "overwrite": Operation(
        lambda table, **options: table.overwrite(frame_for(table, NEW), "id < 3", **options), [*BASE[3:], *NEW]
    ),
    "dynamic_partition_overwrite": Operation(
        lambda table, **options: table.dynamic_partition_overwrite(frame_for(table, NEW), **options),
        [*BASE[::2], *NEW],
    ),
    "delete": Operation(lambda table, **options: table.delete("id = 3", **options), [*BASE[:3], *BASE[4:]]),
    "delete of a partition": Operation(lambda table, **options: table.delete("part = 'b'", **options), BASE[::2]),
    "equality_delete": Operation(
        lambda table, **options: table.equality_delete(frame_for(table, KEYED), ["id"], **options), BASE[1:]
    ),
    "update": Operation(
        lambda table, **options: table.update({"n": F.lit(-1)}, "id = 0", **options), [(0, "a", -1), *BASE[1:]]
    ),
    "upsert": Operation(
        lambda table, **options: table.upsert(frame_for(table, KEYED), ["id"], **options), [*BASE[1:], *KEYED]
    ),
    "merge": Operation(merge, [*BASE[1:], *NEW]),
    "add_files": Operation(add_files, [*BASE, *NEW]),
    "append of a table": Operation(append_table, [*BASE, *NEW]),
    "delete of nothing": Operation(lambda table, **options: table.delete("id = 99", **options), BASE),
}


def rows_of(table: sm.Table, **scan: Any) -> Rows:
    return sorted(map(tuple, table.scan(**scan).to_df().collect()), key=repr)


def published(table: sm.Table, wap_id: str) -> sm.Table:
    table.manage_snapshots().publish_changes(wap_id).commit()
    return table.refresh()


@pytest.mark.parametrize("version", [2, 3, 4])
def test_each_operation_is_staged_or_goes_to_the_branch_once(
    interpreted: SparkSession, tmp_path: Path, version: int
) -> None:
    spark, key = interpreted, {"idempotency_key": ("loader", 7)}
    modes = {f"write__{command}__mode": MODES[1] for command in ("delete", "update", "merge")}
    table = new_table(spark, tmp_path, version=version, write__wap__enabled="true", **modes)
    table = table.append(frame(spark, BASE).coalesce(1))
    main, folder = table.refs()["main"], Path(table.location().removeprefix("file:"))
    for name in [*OPERATIONS] if SOAK else [*OPERATIONS][version - 2 :: 3]:
        operation, expected = OPERATIONS[name], sorted(OPERATIONS[name].rows, key=repr)
        with configured(spark, {ID: name}):
            staged = operation.run(table)
            if name != "delete of nothing":
                last = staged.snapshots()[-1]
                assert summary_of(last)["wap.id"] == name
                assert last.parent_snapshot_id == main.snapshot_id
                assert rows_of(staged, snapshot_id=last.snapshot_id) == expected
                assert rows_of(staged) == sorted(BASE, key=repr)
                before = files_below(folder)
                with pytest.raises(ValidationError, match=f"spark.wap.id is '{name}', which snapshot"):
                    operation.run(staged)
                assert files_below(folder) == before
        assert staged.refs() == table.refs()
        with configured(spark, {BRANCH: name}):
            written = operation.run(staged, **key)
            assert rows_of(written) == expected
            assert written.committed_version("loader") == 7
            before = files_below(folder)
            for base in (written, staged):
                assert operation.run(base, **key).metadata == written.metadata
            assert files_below(folder) == before, "files of a repetition"
        assert len(written.snapshots()) == len(staged.snapshots()) + 1
        assert written.refs()["main"] == main
        table = written
    assert table.committed_version("loader") is None
    for wap_id in ("first", "second"):
        with configured(spark, {ID: wap_id}):
            table = table.append(frame(spark, NEW).coalesce(1), idempotency_key=(wap_id, 1))
            assert table.append(frame(spark, NEW), idempotency_key=(wap_id, 1)).metadata == table.metadata
    staged_ids = [snapshot.snapshot_id for snapshot in table.snapshots()[-2:]]
    table = published(table, "first")
    assert table.refs()["main"].snapshot_id == staged_ids[0]
    table = published(table, "second")
    assert summary_of(table.current_snapshot())["published-wap-id"] == "second"
    assert rows_of(table) == sorted([*BASE, *NEW, *NEW], key=repr)
    assert [table.append(frame(spark, NEW), idempotency_key=(wap_id, 1)) for wap_id in ("first", "second")] == [
        table
    ] * 2
    with configured(spark, {ID: "second"}), pytest.raises(ValidationError, match="which snapshot"):
        table.append(frame(spark, NEW))
    if version == 2 and not SOAK:
        return
    # A staged snapshot is part of the table until it expires.
    orphans = table.maintenance.remove_orphan_files(older_than=soon(), force=True)
    assert planned_paths(orphans.to_df()) == set()
    assert table.inspect.snapshots().count() == len(table.snapshots()) == description(table)["snapshots"]
    assert str(table.maintenance.health())
    table = table.maintenance.expire_snapshots(older_than=soon()).commit()
    assert {snapshot.snapshot_id for snapshot in table.snapshots()} == {
        ref.snapshot_id for ref in table.refs().values()
    }
    assert rows_of(table) == sorted([*BASE, *NEW, *NEW], key=repr)
    assert planned_paths(table.maintenance.remove_orphan_files(older_than=soon(), force=True).to_df()) == set()
    with pytest.raises(ValidationError, match="no snapshot is staged with it"):
        published(table, "second")


def test_what_a_session_may_say(interpreted: SparkSession, tmp_path: Path) -> None:
    spark = interpreted
    table = new_table(spark, tmp_path, version=3).append(frame(spark, BASE).coalesce(1))
    with configured(spark, {ID: "x", BRANCH: "y"}):
        table = table.append(frame(spark, NEW).coalesce(1))  # the property is not set
    both = sorted([*BASE, *NEW], key=repr)
    with table.transaction() as tx:
        tx.set_properties(WAP)
        tx.manage_snapshots().create_branch(table.snapshots()[0].snapshot_id, "audit").commit()
        tx.manage_snapshots().create_tag(table.snapshots()[0].snapshot_id, "old").commit()
    table, added = tx.commit(), frame(spark, [(7, "a", 7)])
    # A branch that is named comes first, also for a staged snapshot.
    with configured(spark, {BRANCH: "audit"}):
        assert rows_of(table) == rows_of(table, snapshot_id=table.snapshots()[0].snapshot_id) == sorted(BASE, key=repr)
        assert table.scan().use_ref("main").count() == table.scan().as_of(soon()).count() == len(both)
        assert table.incremental(None).to_df().count() == len(both)
        # Clients of a planning service have sessions of their own.
        assert scan_of(table, PLAN).snapshot() == table.current_snapshot()
        assert len(rows_of(table.append(added, branch="main").refresh())) == len(BASE)
    table = table.refresh()
    assert len(rows_of(table)) == len(both) + 1
    with configured(spark, {ID: "w"}):
        staged = table.append(added, branch="audit")
        assert staged.snapshots()[-1].parent_snapshot_id == table.refs()["audit"].snapshot_id
        assert staged.refs() == table.refs()
    table = staged
    # Several changes of a transaction go to the branch; only one can be staged.
    with configured(spark, {BRANCH: "new"}), table.transaction() as tx:
        tx.append(added).append(added)
    assert len(rows_of(tx.commit(), snapshot_id=tx.commit().refs()["new"].snapshot_id)) == len(both) + 3
    table = tx.commit()
    with configured(spark, {ID: "w2"}):
        tx = table.transaction().append(added)
        with pytest.raises(ValidationError, match=r"makes the snapshot of wap\.id 'w2'"):
            tx.append(added)
        tx.set_properties({"staged": "one"})
        assert tx.commit().refs() == table.refs()
        assert tx.commit().properties["staged"] == "one"
    table = tx.commit()
    for settings, problem in {
        (("", None)): "spark.wap.id is '': expected a name",
        ((None, "")): "spark.wap.branch is '': expected a name",
        (("x", "y")): "spark.wap.id is 'x' and spark.wap.branch is 'y': expected one of them",
        ((None, "old")): "'old' is a tag, not a branch",
    }.items():
        chosen = {name: value for name, value in zip((ID, BRANCH), settings, strict=True) if value is not None}
        with configured(spark, chosen), pytest.raises(ValidationError, match=problem):
            table.append(added)
    table = table.transaction().set_properties({"write.wap.enabled": "perhaps"}).commit()
    with configured(spark, {ID: "x"}), pytest.raises(ValidationError, match=r"write\.wap\.enabled is 'perhaps'"):
        table.append(added)
    assert table.refresh().metadata == table.metadata
    for wap_id in ("", "x"):
        with pytest.raises(ValidationError, match="wap_id is"):
            table.manage_snapshots().publish_changes(wap_id)


@pytest.mark.java
@pytest.mark.parametrize("version", [2, 3] if SOAK else [3])
def test_snapshots_and_refs_are_those_of_java(spark: SparkSession, version: int) -> None:
    theirs, ours = twins(
        spark, f"wap_{version}", "id bigint, part string", "part", version=version, properties=WAP | MERGE_ON_READ
    )
    # Java's totals start at 0 in the first snapshot of a branch, although it has all files of main.
    totals = {f"total-{counted}" for counted in ("records", "data-files", "delete-files", "position-deletes")}
    ignored = frozenset({"manifests-created", "manifests-kept", "manifests-replaced", *totals})

    def both(sql: str, change: Callable[[sm.Table], object]) -> None:
        theirs.sql(sql)
        change(opened(ours))

    def append(*ids: int) -> None:
        values = [f"{i}, '{'ab'[i % 2]}'" for i in ids]
        theirs.insert(*values)
        listed = ", ".join(f"({value})" for value in values)
        opened(ours).append(
            spark.sql(f"SELECT cast(id AS bigint), part FROM VALUES {listed} AS t(id, part)").coalesce(1)
        )

    def publish(wap_id: str, *, is_refused: bool = False) -> None:
        if not is_refused:
            theirs.call("publish_changes", f"wap_id => '{wap_id}'")
            published(opened(ours), wap_id)
            return
        with pytest.raises(JAVA_ERRORS):
            theirs.call("publish_changes", f"wap_id => '{wap_id}'")
        with pytest.raises(ValidationError):
            published(opened(ours), wap_id)

    def compare() -> None:
        java, our = (comparable(document(shop), ignored=ignored) for shop in (theirs, ours))
        assert our == java
        read = Counter(row_texts(opened(ours).scan().to_df()))
        assert rows(theirs) == rows(ours) == read

    append(1, 2, 3, 4)
    with configured(spark, {ID: "w1"}):
        append(5, 6)
        compare()
    with configured(spark, {ID: "w2", "spark.sql.sources.partitionOverwriteMode": "dynamic"}):
        seven = "SELECT cast(7 AS bigint) AS id, 'b' AS part"
        both(f"INSERT OVERWRITE {{t}} {seven}", lambda table: table.dynamic_partition_overwrite(spark.sql(seven)))
    with configured(spark, {ID: "w3"}):
        both("DELETE FROM {t} WHERE id = 3", lambda table: table.delete("id = 3"))
    with configured(spark, {BRANCH: "audit"}):
        append(8, 10)
        compare()
        append(12)
        both("DELETE FROM {t} WHERE id = 8", lambda table: table.delete("id = 8"))
        both("DELETE FROM {t} WHERE part = 'b'", lambda table: table.delete("part = 'b'"))
        both("UPDATE {t} SET id = 20 WHERE id = 2", lambda table: table.update({"id": 20}, "id = 2"))
        compare()
    publish("w1")
    publish("w1", is_refused=True)
    publish("none", is_refused=True)
    publish("w3", is_refused=True)  # main has moved on
    compare()
    publish("w2", is_refused=True)
    with configured(spark, {ID: "w4"}):
        append(14)
        theirs.sql("INSERT INTO {t}.branch_audit VALUES (22, 'a')".replace("{t}", theirs.sql_name))
        row = spark.sql("SELECT cast(22 AS bigint) AS id, 'a' AS part")
    with configured(spark, {ID: "w5"}):
        opened(ours).append(row, branch="audit")
    with configured(spark, {BRANCH: "audit"}):
        theirs.sql("INSERT INTO {t}.branch_main VALUES (24, 'a')".replace("{t}", theirs.sql_name))
        opened(ours).append(spark.sql("SELECT cast(24 AS bigint) AS id, 'a' AS part"), branch="main")
    java, our = (comparable(document(shop), ignored=ignored | {"wap.id"}) for shop in (theirs, ours))
    assert our == java
    with pytest.raises(JAVA_ERRORS, match="non-unique"):
        theirs.call("publish_changes", "wap_id => 'w4'")
    # Java stages a second snapshot with the id, and then can't publish either.
    with pytest.raises(ValidationError, match=r"the snapshots .* are staged with it"):
        published(opened(theirs), "w4")
    assert published(opened(ours), "w4").current_snapshot()
