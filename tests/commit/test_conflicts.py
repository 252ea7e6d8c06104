"""Conflicts with concurrent commits, and the files that are read to find them, beyond the comparisons with Java."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

import sparkmeta as sm
from sparkmeta.errors import CommitConflictError, ValidationError
from sparkmeta.storage.files import LocalFiles
from tests.commit.operations import SCHEMA, SPEC, Change, File, JavaPeer, Pointer, apply, planned, rows
from tests.peers.java import Java
from tests.peers.workshop import Workshop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

# New files are in the root, or in leaves.
ROOT, LEAVES = {"write.tree.direct-files": "9"}, {"write.tree.direct-files": "0"}
PARTS = "abcd"


@dataclass(frozen=True)
class NotedFiles(LocalFiles):
    """Local files that record the locations that the driver reads."""

    read_locations: list[str] = field(default_factory=list)

    def read(self, location: str) -> bytes:
        self.read_locations.append(location)
        return super().read(location)


def in_memory(table: sm.Table) -> sm.Table:
    """Return the table with operations that commit in memory, so that other tests see no change."""
    return replace(table, operations=Pointer(table.version))


def behind(table: sm.Table, newest: sm.Table) -> sm.Table:
    """Return the table before a concurrent commit, so that its own commits meet the newest version."""
    return replace(table, operations=Pointer(newest.version))


def append(table: sm.Table, *names: str) -> sm.Table:
    """Add files, in a leaf."""
    with table.transaction() as tx:
        tx.set_properties(LEAVES)
        tx.update_snapshot().append(rows(table.state.spark, map(File, names)))
    return tx.commit()


def delete(table: sm.Table, *names: str) -> sm.Table:
    with table.transaction() as tx:
        tx.update_snapshot().delete(rows(table.state.spark, map(File, names)).select("file_path"))
    return tx.commit()


def insert(table: sm.Table, row_filter: str, **options: Any) -> sm.Table:
    """Append a file, after reading the rows that a filter matches."""
    with table.transaction() as tx:
        update = tx.update_snapshot().append(rows(table.state.spark, [File("z1")]))
        update.validate_no_conflicts(row_filter, **options)
    return tx.commit()


def leaf_of(table: sm.Table, name: str) -> Path:
    """Return the leaf that contains a data file."""
    rows_of_file = table.scan().plan_files().where(f"file_path = '/data/{name}'").select("manifest_path").collect()
    return Path(rows_of_file[0][0].removeprefix("file://"))


@contextmanager
def missing(leaves: set[Path]) -> Iterator[None]:
    """Move leaves away for a while, so that they can't be opened."""
    for leaf in leaves:
        leaf.rename(leaf.with_suffix(".away"))
    try:
        yield
    finally:
        for leaf in leaves:
            leaf.with_suffix(".away").rename(leaf)


@pytest.fixture(scope="module")
def base(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> sm.Table:
    """Return a table with a leaf for each partition, which contains the partition's files 1 and 2."""
    catalog = sm.load_catalog("test", type="hadoop", warehouse=str(tmp_path_factory.mktemp("leaves")))
    table = catalog.create_table("db.t", SCHEMA, SPEC, format_version=4, spark=spark)
    with table.transaction() as tx:
        tx.set_properties(LEAVES | {"commit.retry.min-wait-ms": "1"})
        for part in PARTS:
            tx.update_snapshot().append(rows(spark, [File(f"{part}1"), File(f"{part}2")]))
        tx.set_properties(ROOT)
    return tx.commit()


@pytest.fixture(scope="module")
def newest(base: sm.Table) -> sm.Table:
    """Return the table after concurrent commits: data in a and b, a file of c removed, a vector for a file of d."""
    table = append(in_memory(base), "a5", "a6")
    table = append(table, "b5")
    table = delete(table, "c1")
    return apply(table, Change("vector", "d1", "x"))


@pytest.mark.parametrize(
    ("row_filter", "isolation", "opened", "conflict"),
    [
        ("s = 'e'", "serializable", (), None),
        ("s = 'a' and id > 1000", "serializable", (), None),
        ("s in ('a', 'b') and id < 10", "serializable", (), None),
        ("s = 'a' and id >= 55", "serializable", ("a5",), "added data that may match: /data/a6"),
        ("s = 'a'", "snapshot", (), None),
        ("s = 'c' and id < 10", "serializable", ("c2",), "removed a data file that may match: /data/c1"),
        ("s = 'c' and id < 10", "snapshot", ("c2",), "removed a data file that may match: /data/c1"),
        ("s = 'c' and id >= 10", "serializable", ("c2",), None),
    ],
)
def test_only_leaves_that_may_tell_are_opened(
    base: sm.Table,
    newest: sm.Table,
    row_filter: str,
    isolation: str,
    opened: tuple[str, ...],
    conflict: str | None,
) -> None:
    """Of many leaves, only leaves that concurrent commits added or masked are read, if the filter may match."""
    leaves = {leaf_of(newest, f"{part}2") for part in PARTS} | {leaf_of(newest, "a5"), leaf_of(newest, "b5")}
    assert len(leaves) == len(PARTS) + 2
    needed = {leaf_of(newest, name) for name in opened}
    files = NotedFiles()
    stale = behind(replace(base, state=replace(base.state, files=files)), newest)
    with missing(leaves - needed):
        if conflict is None:
            insert(stale, row_filter, isolation=isolation)
        else:
            with pytest.raises(CommitConflictError, match=conflict):
                insert(stale, row_filter, isolation=isolation)
    roots = {snapshot.root_manifest for snapshot in newest.snapshots()[len(PARTS) - 1 :]}
    read = {location for location in files.read_locations if "-root-" in location}
    assert read == roots, "the roots since the table was read, its own among them"
    for leaf in needed:
        with missing({leaf}), pytest.raises(Exception, match=leaf.name):
            insert(behind(base, newest), row_filter, isolation=isolation)


def test_data_that_was_rewritten_since_is_still_new(base: sm.Table) -> None:
    """A rewritten file contains the added rows: the removal of the added file does not resolve the conflict."""
    table = append(in_memory(base), "a5")
    table = apply(table, Change("rewrite", "a5", "x"))
    with pytest.raises(CommitConflictError, match="added data that may match: /data/a5"):
        insert(behind(base, table), "s = 'a'")
    insert(behind(base, table), "s = 'b'")


def test_rows_that_were_rewritten_are_not_new(base: sm.Table) -> None:
    table = apply(in_memory(base), Change("rewrite", "a2", "x"))
    after = apply(behind(base, table), Change("equality", "a1", "y", "serializable", with_filter=True))
    assert planned(after)["/data/a1"] == ["/data/a1y.eq"]


@pytest.mark.parametrize("layout", ["root", "leaves"])
def test_partitions_are_overwritten_side_by_side(base: sm.Table, layout: str) -> None:
    table = in_memory(base)
    with table.transaction() as tx:
        tx.set_properties(ROOT if layout == "root" else LEAVES)
        tx.update_snapshot().append(rows(table.state.spark, [File("a3"), File("b3")]))
    table = in_memory(tx.commit())
    other = apply(table, Change("overwrite_filter", "b1", "x", "serializable", with_filter=True))
    both = apply(behind(table, other), Change("overwrite_filter", "a1", "x", "serializable"))
    names = {path.removeprefix("/data/") for path in planned(both)}
    assert {name for name in names if name[0] in "ab"} == {"a1x", "b1x"}
    with pytest.raises(CommitConflictError, match="removed a data file that may match"):
        apply(behind(table, other), Change("overwrite_filter", "b1", "y", "snapshot"))


@pytest.mark.parametrize(
    ("deletes", "refused"),
    [
        (["a1"], "added deletes that apply to a file to replace: /data/a1"),
        (["a2"], None),
        (["b1"], None),
        (["b1", "a2", "a1"], "added deletes that apply to a file to replace: /data/a1"),
    ],
)
@pytest.mark.parametrize("layout", ["root", "leaves"])
def test_new_equality_deletes_refuse_rewrites_of_files_that_they_apply_to(
    base: sm.Table, layout: str, deletes: list[str], refused: str | None
) -> None:
    """a1 has ids up to 9, and a2 from 10: deletes of a2's ids apply to no row of a1."""
    table = in_memory(base)
    with table.transaction() as tx:
        tx.set_properties(ROOT if layout == "root" else LEAVES)
    table = in_memory(tx.commit())
    other = table
    for target in deletes:
        other = apply(other, Change("equality", target, "x"))
    stale, change = behind(table, other), Change("rewrite", "a1", "y")
    if refused is None:
        assert "/data/a1y" in planned(apply(stale, change))
    else:
        with pytest.raises(CommitConflictError, match=refused):
            apply(stale, change)


@pytest.fixture(scope="module")
def upgraded(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[sm.Table, int]:
    """Return a tree that was a table of Java's, with a branch, and the first snapshot that Java made."""
    shop = Workshop(Java(spark), f"upgraded{tmp_path_factory.mktemp('upgraded').name}")
    shop.create_by_java(SCHEMA.model_dump()["fields"], [("s", "identity")], version=3)
    peer = JavaPeer(shop.java, shop.table)
    peer.append(peer.file(File("a1")), peer.file(File("b1")), peer.file(File("b2")))
    first = shop.snapshot_id()
    shop.table.manageSnapshots().createBranch("audit", first).commit()
    shop.table.newAppend().appendFile(peer.file(File("d1"))).toBranch("audit").commit()
    peer = JavaPeer(shop.java, shop.table)
    peer.append(peer.file(File("a2")))
    shop.table.newDelete().deleteFile(peer.file(File("b2"))).commit()
    table = sm.load_table(str(shop.table.location()), spark=spark).maintenance.upgrade(4).commit()
    with table.transaction() as tx:
        tx.update_snapshot().append(renamed(spark, File("c1")))
    return tx.commit(), first


def renamed(spark: SparkSession, *files: File) -> DataFrame:
    """Return files of a table whose partition field has the name that a workshop chooses."""
    return rows(spark, files).withColumn("partition", F.expr("named_struct('s_identity', partition.s)"))


@pytest.mark.java
@pytest.mark.parametrize(
    ("row_filter", "isolation", "conflict"),
    [
        ("s = 'a' and id >= 10", "serializable", "added data that may match: file:///data/a2"),
        ("s = 'a'", "snapshot", None),
        ("s = 'a' and id < 10", "serializable", None),
        ("s = 'b' and id >= 10", "snapshot", "removed a data file that may match: file:///data/b2"),
        ("s = 'b' and id < 10", "serializable", None),
        ("s = 'c'", "serializable", "added data that may match: file:///data/c1"),
    ],
)
def test_what_was_read_before_an_upgrade(
    upgraded: tuple[sm.Table, int], row_filter: str, isolation: str, conflict: str | None
) -> None:
    """Manifest lists record the changes of their snapshots too."""
    table, first = upgraded

    tx = in_memory(table).transaction()
    update = tx.update_snapshot().append(renamed(table.state.spark, File("z1")))
    update.validate_no_conflicts(row_filter, from_snapshot_id=first, isolation=isolation)  # type: ignore[arg-type]
    if conflict is None:
        assert "file:///data/z1" in planned(tx.commit())
    else:
        with pytest.raises(CommitConflictError, match=conflict):
            tx.commit()


@pytest.mark.java
def test_a_pick_of_what_was_staged_before_an_upgrade(upgraded: tuple[sm.Table, int]) -> None:
    table, _ = upgraded
    staged = table.snapshot_by_name("audit")
    assert staged is not None
    with in_memory(table).transaction() as tx:
        tx.manage_snapshots().cherry_pick(staged.snapshot_id).commit()
    assert {path: len(deletes) for path, deletes in planned(tx.commit()).items()} == {
        f"file:///data/{name}": 0 for name in ("a1", "a2", "b1", "c1", "d1")
    }
    assert tx.commit().check().collect() == []


def test_an_invalid_isolation(base: sm.Table) -> None:
    with pytest.raises(ValidationError, match="isolation is 'none': expected serializable or snapshot"):
        insert(in_memory(base), "s = 'a'", isolation="none")


def test_a_branch_that_the_transaction_creates_begins_at_its_snapshot(base: sm.Table) -> None:
    """Earlier deletes are no conflict: the rewrite has read them."""
    spark, table = base.state.spark, in_memory(base)
    table = apply(table, Change("equality", "a1", "x"))
    with table.transaction() as tx:
        tx.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, "new").commit()  # type: ignore[union-attr]
        replaced = rows(spark, [File("a1")]).select("file_path")
        tx.update_snapshot("new").rewrite(replaced, rows(spark, [File("a9")]))
    head = tx.commit().refs()["new"].snapshot_id
    assert "/data/a9" in {row.file_path for row in table.refresh().inspect.files(head).collect()}
