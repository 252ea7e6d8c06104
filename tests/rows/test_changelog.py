"""Changelogs of Java's histories are compared with the differences of snapshots, and with Java's changelogs."""

from __future__ import annotations

import random
from collections import Counter
from itertools import product
from typing import TYPE_CHECKING

import pytest

import sparkmeta as sm
from sparkmeta.changes import changed_files
from sparkmeta.errors import NoSuchSnapshotError, ValidationError
from tests.conftest import configured
from tests.peers.java import Java
from tests.peers.slices import SOAK
from tests.peers.workshop import MERGE_ON_READ, Workshop
from tests.rows.comparison import row_texts, typed_columns

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.java

Changes = list[tuple[str | None, ...]]
COPY_ON_WRITE = dict.fromkeys(MERGE_ON_READ, "copy-on-write")


def rows_at(shop: Workshop, snapshot_id: int | None) -> Counter[tuple[str | None, ...]]:
    """Return the rows of a snapshot as Java reads them."""
    if snapshot_id is None:
        return Counter()
    return Counter(row_texts(shop.sql(f"SELECT * FROM {{t}} VERSION AS OF {snapshot_id}")))


def expected_changes(shop: Workshop) -> Changes:
    """Return the differences between each snapshot and its parent, except for `replace`, oldest first."""
    table = sm.load_table(shop.metadata_location, spark=shop.spark)
    changes: Changes = []
    before = rows_at(shop, None)
    snapshots = [snapshot for snapshot in table.metadata.snapshots if snapshot.operation != "replace"]
    for ordinal, snapshot in enumerate(snapshots):
        after = rows_at(shop, snapshot.snapshot_id)
        change_columns = (str(ordinal), str(snapshot.snapshot_id))
        for kind, rows in (("INSERT", after - before), ("DELETE", before - after)):
            changes += [(*row, kind, *change_columns) for row in rows.elements()]
        before = after
    return changes


def since(changes: Changes, snapshot: int) -> Changes:
    """Return the changes after a snapshot, with ordinals from 0."""
    last = max((int(change[-2]) for change in changes if change[-1] == str(snapshot)), default=-1)
    return [(*change[:-2], str(int(change[-2]) - last - 1), change[-1]) for change in changes if int(change[-2]) > last]


class History:
    """Random operations on a table of (id, name, part), which has several rows with equal values."""

    def __init__(self, shop: Workshop, rng: random.Random) -> None:
        self.shop, self.rng = shop, rng
        self._files = 0

    def step(self) -> None:
        operations = [
            self.insert, self.insert, self.delete, self.update, self.merge, self.overwrite, self.delete_by_equality,
            self.replace_rows, self.rewrite_data, self.rewrite_deletes, self.rewrite_manifests, self.change_mode,
            self.delete_partition,
        ]  # fmt: skip
        self.rng.choice(operations)()

    def row(self) -> str:
        name = self.rng.choice(["'a'", "'b'", "NULL"])
        return f"{self.rng.randint(0, 9)}, {name}, '{self.rng.choice('xyz')}'"

    def rows(self) -> list[str]:
        return [self.row() for _ in range(self.rng.randint(1, 8))]

    def condition(self) -> str:
        choices = [f"id = {self.rng.randint(0, 9)}", f"id % 3 = {self.rng.randint(0, 2)}", "name IS NULL", "name = 'a'"]
        return self.rng.choice(choices)

    def insert(self) -> None:
        self.shop.insert(*self.rows())

    def delete(self) -> None:
        self.shop.sql(f"DELETE FROM {{t}} WHERE {self.condition()}")

    def delete_partition(self) -> None:
        self.shop.sql(f"DELETE FROM {{t}} WHERE part = '{self.rng.choice('xyz')}'")

    def update(self) -> None:
        change = self.rng.choice(["id = id", "id = id + 1", "name = 'c'", "part = 'z'"])
        self.shop.sql(f"UPDATE {{t}} SET {change} WHERE {self.condition()}")

    def merge(self) -> None:
        self.shop.sql(
            f"MERGE INTO {{t}} t USING (SELECT DISTINCT {self.rng.randint(0, 9)} AS id) s ON t.id = s.id "
            "WHEN MATCHED AND t.name = 'a' THEN DELETE WHEN MATCHED THEN UPDATE SET name = 'm' "
            "WHEN NOT MATCHED THEN INSERT (id, name, part) VALUES (s.id, 'new', 'x')"
        )

    def overwrite(self) -> None:
        values = ", ".join(f"({row})" for row in self.rows())
        mode = self.rng.choice(["static", "dynamic"])
        self.shop.spark.conf.set("spark.sql.sources.partitionOverwriteMode", mode)
        self.shop.sql(f"INSERT OVERWRITE {{t}} SELECT * FROM VALUES {values}")
        self.shop.spark.conf.unset("spark.sql.sources.partitionOverwriteMode")

    def delete_by_equality(self) -> None:
        self._row_delta(rows=False)

    def replace_rows(self) -> None:
        """Replace rows like Flink's upserts: by an equality delete and a new file in one commit."""
        self._row_delta(rows=True)

    def _row_delta(self, *, rows: bool) -> None:
        self._files += 1
        part = self.rng.choice("xyz")
        keys = [self.rng.choice([0, 1, 2, 3, None]) for _ in range(2)]
        names = [self.rng.choice(["a", None]) for _ in keys]
        columns = {"id": keys, "name": names} if self.rng.random() < 0.5 else {"name": names}
        delete = self.shop.equality_delete(f"eq-{self._files}.parquet", columns, [part])
        new = {"id": keys, "name": names, "part": [part] * len(keys)}
        data = [self.shop.data_file(f"new-{self._files}.parquet", new, [part])] if rows else []
        self.shop.row_delta(delete, rows=data)

    def rewrite_data(self) -> None:
        self.shop.call("rewrite_data_files", "options => map('rewrite-all', 'true')")

    def rewrite_deletes(self) -> None:
        self.shop.call("rewrite_position_delete_files", "options => map('rewrite-all', 'true')")

    def rewrite_manifests(self) -> None:
        self.shop.call("rewrite_manifests", "use_caching => false")

    def change_mode(self) -> None:
        mode = self.rng.choice(["merge-on-read", "copy-on-write"])
        changed = {f"write__{command}__mode": mode for command in ("delete", "update", "merge")}
        self.shop.set(**changed, write__delete__granularity=self.rng.choice(["file", "partition"]))


@pytest.mark.parametrize(("version", "seed"), [*product([2, 3], range(30))] if SOAK else [(2, 0), (3, 1)])
def test_random_histories(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, version: int, seed: int) -> None:
    shop = Workshop(Java(spark), f"changelog_{version}_{seed}")
    shop.create("id INT, name STRING, part STRING", "part", version=version, properties=MERGE_ON_READ)
    history = History(shop, random.Random(seed))
    history.insert()
    for _ in range(12):
        history.step()
    table = sm.load_table(shop.metadata_location, spark=spark)
    expected = expected_changes(shop)
    assert row_texts(table.changelog(None).to_df()) == sorted(expected, key=repr)
    with monkeypatch.context() as patch:
        patch.setattr(changed_files, "_PLANS_AT_ONCE", 1)
        assert row_texts(table.changelog(None).to_df()) == sorted(expected, key=repr)
    with configured(spark, {"spark.sparkmeta.driver-manifest-bytes": "0"}):
        assert row_texts(table.refresh().changelog(None).to_df()) == sorted(expected, key=repr)
    middle = int(expected[len(expected) // 2][-1])
    assert row_texts(table.changelog(middle).to_df()) == sorted(since(expected, middle), key=repr)


@pytest.mark.parametrize("file_format", ["orc", "avro"])
def test_files_that_tasks_read(spark: SparkSession, file_format: str) -> None:
    shop = Workshop(Java(spark), f"changelog_{file_format}")
    properties = MERGE_ON_READ | {"write.format.default": file_format}
    shop.create("id INT, name STRING, part STRING", "part", version=3, properties=properties)
    shop.insert("1, 'a', 'x'", "2, 'b', 'x'", "3, 'c', 'x'", "4, 'd', 'y'")
    shop.sql("DELETE FROM {t} WHERE id = 1")
    shop.sql("UPDATE {t} SET name = 'z' WHERE id IN (2, 4)")
    shop.row_delta(shop.equality_delete("eq.parquet", {"id": [3]}, ["x"]))
    table = sm.load_table(shop.metadata_location, spark=spark)
    assert row_texts(table.changelog(None).to_df()) == sorted(expected_changes(shop), key=repr)


def test_a_tree(spark: SparkSession, tmp_path: Path) -> None:
    """A tree with the same commits as a table of version 3 has the same changes."""
    shop = Workshop(Java(spark), "changelog_of_a_tree")
    shop.create("id INT, name STRING, part STRING", "part", version=3, properties=MERGE_ON_READ)
    history = History(shop, random.Random(1))
    steps = (
        history.insert, history.insert, history.delete, history.delete_by_equality, history.update,
        history.replace_rows, history.merge, history.overwrite,
    )  # fmt: skip
    for step in steps:
        step()
    source = sm.load_table(shop.metadata_location, spark=spark)
    catalog = sm.load_catalog("trees", type="hadoop", warehouse=f"file://{tmp_path}", spark=spark)
    catalog.create_table("n.t", source.schema(), partition_spec=source.spec(), format_version=4)
    for snapshot in source.metadata.snapshots:
        changes = source.file_changes(snapshot.parent_snapshot_id, snapshot.snapshot_id)
        added, removed = (changes.where(f"change_type = '{kind}'") for kind in ("added", "removed"))
        with catalog.load_table("n.t").transaction() as tx:
            update = tx.update_snapshot().append(added.where("content = 0"))
            update.row_delta(deletes=added.where("content <> 0"), removed=removed.where("content = 0"))
    tree = catalog.load_table("n.t")
    assert len(tree.metadata.snapshots) == len(source.metadata.snapshots)
    expected = [change[:-1] for change in expected_changes(shop)]
    assert row_texts(tree.changelog(None).to_df().drop("_commit_snapshot_id")) == sorted(expected, key=repr)


@pytest.fixture(scope="module")
def upserts(spark: SparkSession) -> Workshop:
    """Return a copy-on-write table with unique ids and two file formats, for which Java makes changelogs."""
    shop = Workshop(Java(spark), "upserts")
    shop.create("id INT, name STRING, ratio DOUBLE", properties=COPY_ON_WRITE)
    shop.insert("1, 'a', 0.5", "2, 'b', double('NaN')", "3, NULL, -0.0D", "4, 'd', 1.0")
    shop.set(write__format__default="avro")
    shop.insert("5, 'e', 2.0", "6, 'f', NULL")
    shop.sql("UPDATE {t} SET name = upper(name) WHERE id IN (2, 5)")
    shop.set(write__format__default="orc")
    shop.sql("DELETE FROM {t} WHERE id IN (1, 6)")
    shop.call("rewrite_data_files", "options => map('rewrite-all', 'true')")
    shop.insert("1, 'a', 0.5")
    shop.sql("UPDATE {t} SET name = 'b' WHERE id = 2")
    shop.sql("UPDATE {t} SET ratio = 0.0D WHERE id = 3")
    shop.sql("INSERT OVERWRITE {t} SELECT * FROM {t} WHERE id <> 4")
    return shop


def changes_by_java(shop: Workshop, start: int | None, arguments: str = "") -> Changes:
    """Return the rows of the view of the procedure `create_changelog_view`."""
    options = f"options => map('start-snapshot-id', '{start}')" if start else "options => map()"
    shop.call("create_changelog_view", f"changelog_view => 'changes_by_java', {options}{arguments}")
    return row_texts(shop.spark.table("changes_by_java"))


def test_changes_as_java_reads_them(upserts: Workshop, spark: SparkSession) -> None:
    table = sm.load_table(upserts.metadata_location, spark=spark)

    def without_place(changes: Changes) -> Changes:
        return [change[:-2] for change in changes]

    for start in [None, table.metadata.snapshots[1].snapshot_id]:
        assert row_texts(table.changelog(start).to_df()) == changes_by_java(upserts, start)
        net = row_texts(table.changelog(start, net_changes=True).to_df())
        # Java assigns the overwrite's ordinal to a row that the overwrite carried over.
        assert without_place(net) == without_place(changes_by_java(upserts, start, ", net_changes => true"))
        updates = table.changelog(start, identifier_columns=["id"])
        assert row_texts(updates.to_df()) == changes_by_java(upserts, start, ", identifier_columns => array('id')")


def test_filtered_and_projected_changes(upserts: Workshop, spark: SparkSession) -> None:
    """A row has changed if any of its columns has, whether selected or not."""
    table = sm.load_table(upserts.metadata_location, spark=spark)
    scan = table.changelog(None, identifier_columns=["id"]).filter("id = 3 or id = 5").select("id", "name")
    shown = scan.to_df()
    assert shown.columns == ["id", "name", "_change_type", "_change_ordinal", "_commit_snapshot_id"]
    assert sorted((row.id, row._change_type, row._change_ordinal) for row in shown.collect()) == [
        (3, "INSERT", 0), (3, "UPDATE_AFTER", 6), (3, "UPDATE_BEFORE", 6),
        (5, "INSERT", 1), (5, "UPDATE_AFTER", 2), (5, "UPDATE_BEFORE", 2),
    ]  # fmt: skip
    scan.create_temp_view("changes")
    assert spark.sql("SELECT count(*) FROM changes").first()[0] == 6


def test_repeated_identifiers(spark: SparkSession) -> None:
    """Two deleted rows and an inserted one with the same identifier are not an update."""
    shop = Workshop(Java(spark), "repeated_identifiers")
    shop.create("id INT, name STRING", properties=MERGE_ON_READ)
    shop.insert("1, 'a'", "1, 'b'", "2, 'c'")
    start = shop.snapshot_id()
    shop.sql("UPDATE {t} SET id = 3 WHERE name = 'c'")
    middle = shop.snapshot_id()
    shop.sql("DELETE FROM {t} WHERE id = 1")
    without_pair = shop.snapshot_id()
    shop.insert("1, 'a'", "1, 'b'")
    before = shop.snapshot_id()
    shop.sql("MERGE INTO {t} t USING (SELECT 1 AS id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET name = 'x'")
    table = sm.load_table(shop.metadata_location, spark=spark)
    kinds = [
        row._change_type for row in table.changelog(start, without_pair, identifier_columns=["id"]).to_df().collect()
    ]
    assert sorted(kinds) == ["DELETE", "DELETE", "DELETE", "INSERT"]
    assert table.changelog(start, middle).to_df().count() == 2
    with pytest.raises(Exception, match="several rows with the same id: 1"):
        table.changelog(before, identifier_columns=["id"]).to_df().collect()


def test_values_of_every_kind(spark: SparkSession) -> None:
    """Values that Spark does not group are compared: maps in any order, nested maps, variants; -0.0 is not 0.0."""
    shop = Workshop(Java(spark), "changed_values")
    columns = (
        "id INT, m MAP<STRING, INT>, s STRUCT<d: DOUBLE, m: MAP<INT, ARRAY<FLOAT>>>, a ARRAY<STRUCT<x: FLOAT>>, "
        "v VARIANT, b BINARY, t TIMESTAMP_NTZ"
    )
    shop.create(columns, version=3, properties=COPY_ON_WRITE)
    values = (
        "map('a', 1, 'b', NULL), named_struct('d', {zero}, 'm', map(1, array(float('NaN'), NULL))), "
        "array(named_struct('x', 1.5F)), parse_json('{{\"k\": [1, null]}}'), X'00FF', TIMESTAMP_NTZ'2020-01-01 00:00'"
    )
    shop.insert(
        *(f"{index}, {values.format(zero='-0.0D')}" for index in range(3)), "3, NULL, NULL, NULL, NULL, NULL, NULL"
    )
    shop.sql("UPDATE {t} SET s.d = 0.0D WHERE id = 1")
    table = sm.load_table(shop.metadata_location, spark=spark)
    changes = table.changelog(table.metadata.snapshots[0].snapshot_id).to_df()
    shown = changes.selectExpr(
        "id", "CAST(s.d AS STRING) AS d", "m['a'] AS a", "to_json(v) AS v", "_change_type AS kind"
    )
    assert sorted(map(tuple, shown.collect())) == [
        (1, "-0.0", 1, '{"k":[1,null]}', "DELETE"),
        (1, "0.0", 1, '{"k":[1,null]}', "INSERT"),
    ]
    narrow = table.changelog(None, net_changes=True).select("s.d").to_df()
    assert narrow.schema["s"].dataType.simpleString() == "struct<d:double>"
    assert sorted(row.s.d is not None for row in narrow.collect() if row.s) == [True, True, True]


def test_what_is_refused(upserts: Workshop, spark: SparkSession) -> None:
    table = sm.load_table(upserts.metadata_location, spark=spark)
    with pytest.raises(NoSuchSnapshotError, match="no snapshot 7"):
        table.changelog(7).to_df()
    with pytest.raises(ValidationError, match="net_changes and identifier_columns can't be combined"):
        table.changelog(None, net_changes=True, identifier_columns=["id"])
    with pytest.raises(ValidationError, match="no identifier fields"):
        table.changelog(None, compute_updates=True)
    with pytest.raises(ValidationError, match="no column 'nobody' in the schema"):
        table.changelog(None, identifier_columns=["nobody"]).to_df()
    with pytest.raises(ValidationError, match="no column 'i' in the schema"):
        table.changelog(None, identifier_columns="i").to_df()
    with pytest.raises(ValidationError, match="a changelog has no column _pos"):
        table.changelog(None).select("id", "_pos").to_df()


def test_an_expired_parent(spark: SparkSession) -> None:
    """The changes of a snapshot that only added files don't need its parent. Those of one that deleted rows do."""
    shop = Workshop(Java(spark), "expired_parent")
    shop.create("id INT", version=3, properties=MERGE_ON_READ)
    shop.insert("1", "2")
    first = shop.snapshot_id()
    shop.insert("3")
    second = shop.snapshot_id()
    shop.call("expire_snapshots", "older_than => TIMESTAMP '2100-01-01', retain_last => 1")
    table = sm.load_table(shop.metadata_location, spark=spark)
    assert [row.id for row in table.changelog(first).to_df().collect()] == [3]
    shop.sql("DELETE FROM {t} WHERE id = 1")
    shop.call("expire_snapshots", "older_than => TIMESTAMP '2100-01-01', retain_last => 1")
    table = sm.load_table(shop.metadata_location, spark=spark)
    with pytest.raises(NoSuchSnapshotError, match=str(second)):
        table.changelog(second).to_df()
    with pytest.raises(ValidationError, match="expired"):
        table.changelog(None).to_df()


def test_no_changes(upserts: Workshop, spark: SparkSession) -> None:
    """An empty range, replacing snapshots, no snapshot, and files without matching rows have no changes."""
    table = sm.load_table(upserts.metadata_location, spark=spark)
    replaced = next(snapshot for snapshot in table.metadata.snapshots if snapshot.operation == "replace")
    scans = [
        table.changelog(table.metadata.current_snapshot_id),
        table.changelog(replaced.parent_snapshot_id, replaced.snapshot_id),
        table.changelog(None).filter("id > 100"),
        table.changelog(None, net_changes=True).filter("id > 100"),
    ]
    shop = Workshop(Java(spark), "no_snapshots")
    shop.create("id INT, name STRING, ratio DOUBLE")
    scans.append(sm.load_table(shop.metadata_location, spark=spark).changelog(None))
    columns = typed_columns(table.changelog(None).to_df())
    for scan in scans:
        changes = scan.to_df()
        assert typed_columns(changes) == columns
        assert changes.collect() == []


def test_places_of_net_changes(spark: SparkSession) -> None:
    """Net changes have the ordinal of the first change that no later one reverted. Equal rows share it."""
    shop = Workshop(Java(spark), "net_places")
    shop.create("id INT", version=3, properties=MERGE_ON_READ)
    for values in (["1", "2"], ["1", "3"]):
        shop.insert(*values)
    shop.sql("DELETE FROM {t} WHERE id IN (2, 3)")
    shop.insert("3")
    table = sm.load_table(shop.metadata_location, spark=spark)
    net = table.changelog(None, net_changes=True).to_df()
    places = [(row.id, row._change_type, row._change_ordinal) for row in net.collect()]
    assert sorted(places) == [(1, "INSERT", 0), (1, "INSERT", 0), (3, "INSERT", 3)]
    ids = {row._change_ordinal: row._commit_snapshot_id for row in net.collect()}
    assert ids == {ordinal: table.metadata.snapshots[ordinal].snapshot_id for ordinal in (0, 3)}


def test_identifiers_inside_of_columns(spark: SparkSession) -> None:
    """Fields of structs identify rows, but elements of lists do not. Names of fields may differ in case alone."""
    shop = Workshop(Java(spark), "nested_identifiers")
    first, second = (f"named_struct('id', {n}, 'ID', {n}.5D), array({n}), {n}, '{name}'" for n, name in enumerate("xy"))
    with configured(spark, {"spark.sql.caseSensitive": "true"}):
        shop.create("s STRUCT<id: INT, ID: DOUBLE>, l ARRAY<INT>, `k0` INT, `a.b` STRING", properties=COPY_ON_WRITE)
        shop.insert(first, second)
        start = shop.snapshot_id()
        shop.sql("UPDATE {t} SET k0 = 7 WHERE `a.b` = 'y'")
    table = sm.load_table(shop.metadata_location, spark=spark)
    changes = table.changelog(start).to_df()
    assert sorted((row["a.b"], row.k0, row._change_type) for row in changes.collect()) == [
        ("y", 1, "DELETE"),
        ("y", 7, "INSERT"),
    ]
    updates = table.changelog(start, identifier_columns="a.b").to_df()
    assert sorted(row._change_type for row in updates.collect()) == ["UPDATE_AFTER", "UPDATE_BEFORE"]
    with pytest.raises(ValidationError, match=r"identifier column l\.element: it is inside a list or map"):
        table.changelog(start, identifier_columns=["l.element"]).to_df()


def test_a_file_that_is_listed_again(spark: SparkSession) -> None:
    """A commit that adds a file a second time, with an equality delete of the rows that it had before."""
    shop = Workshop(Java(spark), "listed_again")
    shop.create("id INT, name STRING")
    file = shop.data_file("a.parquet", {"id": [1, 2], "name": ["a", "b"]})
    shop.append(file)
    shop.row_delta(shop.equality_delete("eq.parquet", {"id": [1]}), rows=[file])
    table = sm.load_table(shop.metadata_location, spark=spark)
    assert row_texts(table.changelog(None).to_df()) == sorted(expected_changes(shop), key=repr)


def test_changed_files_of_a_table_that_was_replaced_by_one_of_other_types(spark: SparkSession) -> None:
    shop = Workshop(Java(spark), "files_changed_retyped")
    shop.create("p STRING, id INT", "p")
    shop.insert("'a', 1")
    shop.insert("'b', 2")
    shop.sql("CREATE OR REPLACE TABLE {t} (p BIGINT, x STRING) USING iceberg PARTITIONED BY (p)")
    shop.insert("7, 'x'")
    table = sm.load_table(shop.metadata_location, spark=spark)
    first, second, new = (snapshot.snapshot_id for snapshot in table.snapshots())
    for start, end, values in ((None, second, ["a", "b"]), (first, second, ["b"]), (None, new, [7])):
        changes = table.file_changes(start, end).collect()
        assert sorted(row.partition.p for row in changes) == values
