"""Upgrades to format versions 2 and 3 are compared with Java's `ALTER TABLE` on a twin table, with later commits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import sparkmeta as sm
from tests.frames import local_frame
from tests.maintain.clones import clone
from tests.maintain.test_upgrade_plan import empty_table, names
from tests.peers.slices import SOAK
from tests.peers.twins import LINEAGE, comparable, document, opened, rows, twins
from tests.peers.workshop import MERGE_ON_READ

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.peers.corpus import Corpus
    from tests.peers.workshop import Workshop

COLUMNS = "id INT, name STRING, part STRING"
STEPS = [(1, (2,)), (2, (3,)), (1, (3,)), (1, (2, 3))]


def frame(spark: SparkSession, *ids: int) -> DataFrame:
    table = pa.table({"id": pa.array(ids, pa.int32()), "name": ["new"] * len(ids), "part": ["x"] * len(ids)})
    return local_frame(spark, table).coalesce(1)


def insert(shop: Workshop, *ids: int) -> None:
    shop.insert(*(f"{i}, 'new', 'x'" for i in ids))


def entries(shop: Workshop) -> list[tuple[Any, ...]]:
    """Return status, sequence numbers, content, record count and row id of the entries, ordered by partition."""
    columns = "status, sequence_number, file_sequence_number, data_file.content, data_file.record_count"
    columns += ", data_file.partition.part, data_file.first_row_id"
    present = shop.sql(f"SELECT * FROM {shop.sql_name}.entries").schema["data_file"].dataType.fieldNames()  # type: ignore[attr-defined]
    chosen = columns if "first_row_id" in present else columns.rpartition(",")[0]
    return sorted(map(tuple, shop.sql(f"SELECT {chosen} FROM {shop.sql_name}.entries").collect()), key=repr)


def manifests(shop: Workshop) -> list[tuple[Any, ...]]:
    table = opened(shop)
    shown = table.state.manifest_files.drop_columns(["manifest_path", "manifest_length", "added_snapshot_id"])
    return [tuple(row.values()) for row in shown.to_pylist()]


@pytest.mark.java
@pytest.mark.parametrize(("version", "steps"), STEPS if SOAK else STEPS[3:])
def test_tables_are_those_of_java(spark: SparkSession, version: int, steps: tuple[int, ...]) -> None:
    """The metadata is the same after each step.

    Rows, lineage, entries and manifests are the same after commits by each library.
    """
    name = f"upgraded_{version}_{''.join(map(str, steps))}"
    theirs, ours = twins(spark, name, COLUMNS, "part", version=version, properties=MERGE_ON_READ if version > 1 else {})
    for shop in (theirs, ours):
        shop.insert("1, 'a', 'x'", "2, 'b', 'x'", "3, 'c', 'y'")
        shop.insert("4, 'd', 'x'", "5, 'e', 'y'")
        shop.sql("DELETE FROM {t} WHERE id = 1")
        shop.sql("ALTER TABLE {t} ADD COLUMN more INT")
        shop.sql("ALTER TABLE {t} DROP COLUMN more")
        shop.sql("ALTER TABLE {t} CREATE BRANCH aside")
    for step in steps:
        theirs.set(format_version=str(step))
        plan = opened(ours).maintenance.upgrade(step)
        assert plan.commit().format_version == step
        assert comparable(document(ours)) == comparable(document(theirs))
    lineage = LINEAGE if steps[-1] >= 3 else ()
    for shop in (theirs, ours):
        shop.set(**{key.replace(".", "__"): value for key, value in MERGE_ON_READ.items()})

    def compare() -> None:
        assert rows(ours, *COLUMNS.split()[::2], *lineage) == rows(theirs, *COLUMNS.split()[::2], *lineage)
        assert entries(ours) == entries(theirs)
        assert manifests(ours) == manifests(theirs)
        assert comparable(document(ours))["snapshots"] == comparable(document(theirs))["snapshots"]
        table = opened(ours)
        assert table.scan().count() == sum(rows(ours).values())

    compare()
    insert(theirs, 10, 11)
    opened(ours).append(frame(spark, 10, 11))
    compare()
    for shop in (theirs, ours):
        insert(shop, 12)
    compare()
    theirs.sql("DELETE FROM {t} WHERE id IN (2, 10)")
    opened(ours).delete("id in (2, 10)")
    lineage_of = {row[0]: row[1:] for row in rows(theirs, "id", *lineage)}
    assert {row[0]: row[1:] for row in rows(ours, "id", *lineage)} == lineage_of
    for shop in (theirs, ours):
        shop.sql("DELETE FROM {t} WHERE id = 5")
        shop.call("rewrite_data_files", "options => map('rewrite-all', 'true')")
    assert rows(ours, "id", *lineage) == rows(theirs, "id", *lineage)
    # The other branch gets its row ids with its own next commit.
    theirs.sql(f"INSERT INTO {theirs.sql_name}.branch_aside VALUES (20, 'new', 'x')")
    opened(ours).append(frame(spark, 20), branch="aside")
    if lineage:
        of_branch = [shop.sql(f"SELECT id, _row_id FROM {shop.sql_name}.branch_aside ORDER BY id").collect()
                     for shop in (theirs, ours)]  # fmt: skip
        assert [row.id for row in of_branch[1]] == [row.id for row in of_branch[0]]
        assert len({row._row_id for row in of_branch[1]} - {None}) == len(of_branch[1])


@pytest.mark.java
@pytest.mark.parametrize("name", ["unknown_counts_v1", "inline_manifests_v1"])
def test_manifests_without_counts(name: str, corpus: Corpus, tmp_path: Path) -> None:
    """Lists of version 2 and later require the counts of files and rows, which lists of version 1 may lack."""
    peer = corpus.table(name)
    for version in (2, 3):
        before = clone(peer, tmp_path / f"v{version}")
        upgraded = before.maintenance.upgrade(version).commit()
        files = sorted(row.file_path for row in before.scan().plan_files().collect())
        assert sorted(row.file_path for row in upgraded.scan().plan_files().collect()) == files
        assert {row.data_sequence_number for row in upgraded.scan().plan_files().collect()} == {0}
        with upgraded.transaction() as tx:
            tx.update_snapshot().delete(row_filter="p = 'zz'")
        after = upgraded.refresh()
        counts = after.state.manifest_files.select(["added_files_count", "existing_files_count", "added_rows_count"])
        assert all(column.null_count == 0 for column in counts.columns)
        live = sum(sum(row[key] for key in ("added_files_count", "existing_files_count")) for row in counts.to_pylist())
        assert live == len(files)
        java = sorted(peer.java.java.table(after.metadata_location).paths())
        assert java == files


@pytest.mark.parametrize(("version", "to"), [(1, 2), (2, 3)])
def test_other_commits_come_first(spark: SparkSession, tmp_path: Path, version: int, to: int) -> None:
    table = empty_table(spark, tmp_path / "t", version)
    plan = table.maintenance.upgrade(to)
    assert f"format version {version} becomes {to}" in str(plan.summary())
    assert names(tmp_path) == ["v1.metadata.json"]
    between = table.metadata.model_copy(update={"properties": {"owner": "them"}})
    table.operations.commit(table.version, between)
    upgraded = plan.commit()
    assert (upgraded.format_version, upgraded.properties) == (to, {"owner": "them"})
    late = table.maintenance.upgrade(to)
    with pytest.raises(sm.ValidationError, match=f"has format version {to} already"):
        late.commit()


@pytest.mark.parametrize("version", [1, 2])
def test_unknown_fields_survive(spark: SparkSession, tmp_path: Path, version: int) -> None:
    table = empty_table(spark, tmp_path / "t", version)
    before, last = (tmp_path / "t" / "metadata" / f"v{i}.metadata.json" for i in (1, 4 - version))
    for to in range(version + 1, 4):
        table = table.maintenance.upgrade(to).commit()
    assert before.read_text().count('"x-') == last.read_text().count('"x-') > 5


def test_what_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    table = empty_table(spark, tmp_path / "t", 3)
    for version, problem in [(1, "format_version is 1: expected 2, 3 or 4"), (5, "format_version is 5"),
                             (2, "has format version 3 already"), (3, "has format version 3 already")]:  # fmt: skip
        with pytest.raises(sm.ValidationError, match=problem):
            table.maintenance.upgrade(version)
    with pytest.raises(sm.ValidationError, match="compact is 'no': expected true or false"):
        table.maintenance.upgrade(4, compact="no")  # type: ignore[arg-type]
    with pytest.raises(sm.ValidationError, match="compact is true"):
        empty_table(spark, tmp_path / "u", 2).maintenance.upgrade(3, compact=True)
    by_path = sm.load_table(empty_table(spark, tmp_path / "v", 1).metadata_location, spark=spark)
    with pytest.raises(sm.UnsupportedError, match="opened by its path"):
        by_path.maintenance.upgrade(2)
    tree = table.maintenance.upgrade(4).commit()
    with pytest.raises(sm.ValidationError, match="has the metadata tree of format version 4 already"):
        tree.maintenance.upgrade(3)
