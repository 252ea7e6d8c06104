"""Tables as streams: appended rows and changelogs, compared with `table.changelog` and with what was written.

`Stream` is a query in this process: Spark's calls of a reader, with offsets as JSON and pickled partitions. Queries of
Spark itself are below it.
"""

from __future__ import annotations

import json
import pickle
import random
import struct
import sys
import time
import zipfile
import zipimport
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    DateType,
    DoubleType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
)

import sparkmeta as sm
from sparkmeta.changes import change_plans
from sparkmeta.errors import InvalidArgumentError
from sparkmeta.rows import arrow_reader
from tests.maintain.test_expire import soon
from tests.peers.java import Java
from tests.peers.slices import SOAK
from tests.peers.workshop import MERGE_ON_READ, Workshop
from tests.trees import TreeTable, data

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

SCHEMA = Schema(
    NestedField(1, "id", LongType()), NestedField(2, "name", StringType()), NestedField(3, "part", StringType())
)
BY_PART = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "part"))
MODES = {f"write.{command}.mode": "merge-on-read" for command in ("delete", "update", "merge")}
LIMITS = {"streaming-max-files-per-micro-batch": 1}


def created(folder: Path, version: int = 2, schema: Schema = SCHEMA, spec: PartitionSpec = BY_PART) -> sm.Table:
    """A table in a folder, which finds its newest version alone."""
    catalog = sm.load_catalog("streams", type="hadoop", warehouse=str(folder))
    catalog.create_namespace_if_not_exists("db")
    return catalog.create_table("db.t", schema, spec, format_version=version, properties=MODES)


def rows(*ids: int, part: str = "x", name: str | None = "a") -> pa.Table:
    values = [{"id": i, "name": name, "part": part} for i in ids]
    return pa.Table.from_pylist(values, pa.schema([("id", pa.int64()), ("name", pa.string()), ("part", pa.string())]))


class Stream:
    """A query over a table, which can be killed at any time.

    Attributes:
        offset: the offset of the last batch that was committed; None before the first one.
        rows: the rows of these batches.
        batches: their number.
    """

    def __init__(self, path: str, **options: Any) -> None:
        self.options = {"path": path} | {name.replace("_", "-"): str(value) for name, value in options.items()}
        self.offset: str | None = None
        self.logged: str | None = None
        self.rows: list[tuple[Any, ...]] = []
        self.batches = 0
        self.start()

    def start(self) -> None:
        """Start the query, for the first time or again: a batch that was logged and not committed is run again."""
        source = pickle.loads(pickle.dumps(sm.DataSource(self.options)))
        self.reader = source.streamReader(source.schema())
        if self.offset is None:
            self.offset = json.dumps(self.reader.initialOffset())
        if (seen := self.logged or self.offset) is not None:
            self.reader.partitions(json.loads(seen), json.loads(seen))
        if self.logged is not None:
            self.run()

    def plan(self) -> bool:
        """Log the next batch; False if there is none."""
        assert self.offset is not None
        self.logged = json.dumps(self.reader.latestOffset(json.loads(self.offset)))
        if self.logged == self.offset:
            self.logged = None
        return self.logged is not None

    def run(self) -> None:
        """Run and commit the batch that was logged."""
        assert self.offset is not None
        assert self.logged is not None
        start, end = json.loads(self.offset), json.loads(self.logged)
        partitions = pickle.loads(pickle.dumps(self.reader.partitions(start, end)))
        reader = pickle.loads(pickle.dumps(self.reader))
        read = [batch for partition in partitions for batch in reader.read(partition)]
        self.rows += [tuple(row.values()) for batch in read for row in batch.to_pylist()]
        self.offset, self.logged, self.batches = self.logged, None, self.batches + 1
        self.reader.commit(end)

    def drain(self) -> list[tuple[Any, ...]]:
        """Run batches until there is none; return their rows."""
        known = len(self.rows)
        while self.plan():
            self.run()
        return self.rows[known:]


def place(table: sm.Table) -> str:
    return str(table.location())


def changelog(table: sm.Table, start: int | None = None) -> Counter[tuple[Any, ...]]:
    """The rows of `table.changelog`, which Spark reads."""
    return Counter(map(tuple, table.changelog(start).to_df().collect()))


def without_ordinals(changed: Counter[tuple[Any, ...]] | list[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    """Changes without their ordinals, which count the snapshots of a batch."""
    return Counter((*row[:-2], row[-1]) for row in Counter(changed).elements())


# -- changelogs -------------------------------------------------------------------------------------------------------


class Changes:
    """Random changes of a table of (id, name, part), which has several rows with equal values."""

    def __init__(self, table: sm.Table, rng: random.Random) -> None:
        self.table, self.rng = table, rng

    def change(self, kinds: int) -> None:
        """Make changes of some kinds, in any order."""
        every: list[Callable[[], sm.Table]] = [
            self.append, self.delete, self.update, self.overwrite, self.delete_by_equality, self.replace, self.copy,
            self.rewrite_data, self.rewrite_deletes, self.rewrite_manifests,
        ]  # fmt: skip
        for change in self.rng.sample(every, kinds):
            self.table = change()

    def new_rows(self) -> pa.Table:
        rng = self.rng
        parts = [
            rows(rng.randint(0, 9), part=rng.choice("xyz"), name=rng.choice(["a", "b", None]))
            for _ in range(rng.randint(1, 8))
        ]
        return pa.concat_tables(parts)

    def condition(self) -> str:
        n = self.rng.randint(0, 9)
        return self.rng.choice([f"id = {n}", f"id < {n}", "name is null", "name = 'a' and id > 4", "part = 'y'"])

    def append(self) -> sm.Table:
        return self.table.append(self.new_rows())

    def delete(self) -> sm.Table:
        return self.table.delete(self.condition())

    def update(self) -> sm.Table:
        return self.table.update(self.rng.choice([{"name": "'c'"}, {"id": "id"}, {"part": "'z'"}]), self.condition())

    def overwrite(self) -> sm.Table:
        return self.table.overwrite(self.new_rows(), self.condition())

    def copy(self) -> sm.Table:
        """Write the rows of a partition again, and one more."""
        others = self.table.scan("part = 'x'").to_arrow()
        return self.table.overwrite(pa.concat_tables([others.cast(rows().schema), rows(1)]), "part = 'x'")

    def delete_by_equality(self) -> sm.Table:
        keys = pa.table({"id": pa.array([self.rng.randint(0, 9), self.rng.randint(0, 9)], pa.int64())})
        return self.table.equality_delete(keys.append_column("part", [["x", "y"]]), ["id", "part"])

    def replace(self) -> sm.Table:
        """What Flink's upserts do: equality deletes and new rows in one commit."""
        with self.table.transaction() as transaction:
            transaction.equality_delete(pa.table({"name": ["a"], "part": ["x"]}), ["name", "part"])
            transaction.append(rows(self.rng.randint(0, 9)))
        return self.table.refresh()

    def rewrite_data(self) -> sm.Table:
        return self.maintained("rewrite_data_files", rewrite_all=True)

    def rewrite_deletes(self) -> sm.Table:
        return self.maintained("rewrite_position_delete_files", rewrite_all=True)

    def rewrite_manifests(self) -> sm.Table:
        return self.maintained("compact_manifests" if self.table.format_version == 4 else "rewrite_manifests")

    def maintained(self, job: str, **options: Any) -> sm.Table:
        getattr(self.table.maintenance, job)(**options).commit()
        return self.table.refresh()


HISTORIES = [(version, seed) for version in (2, 3, 4) for seed in range(20)] if SOAK else [(2, 3), (4, 2)]


@pytest.mark.parametrize(("version", "seed"), HISTORIES)
def test_changelogs_of_random_histories(spark: SparkSession, tmp_path: Path, version: int, seed: int) -> None:
    rng = random.Random(seed)
    made_changes = Changes(created(tmp_path, version), rng)
    for _ in range(3):
        made_changes.table = made_changes.append()
    for _ in range(3 if SOAK else 1):
        made_changes.change(10 if SOAK else 8)
    table = made_changes.table
    expected = changelog(table)
    assert Counter(Stream(place(table), table="changelog").drain()) == expected
    cut = Stream(place(table), table="changelog", **{"streaming-max-rows-per-micro-batch": 3})
    while cut.plan():
        if rng.random() < 0.3:
            cut.start()
        else:
            cut.run()
    assert without_ordinals(cut.rows) == without_ordinals(expected)
    if version < 4 and not SOAK:
        return
    middle = sorted(table.snapshots(), key=lambda snapshot: snapshot.timestamp_ms)[-3].snapshot_id
    since = Stream(place(table), table="changelog", start_snapshot_id=middle, filter="id > 3", columns="name,id")
    filtered = table.changelog(middle).filter("id > 3").select("name", "id").to_df()
    assert Counter(since.drain()) == Counter(map(tuple, filtered.collect()))


def test_keys_that_move_among_files(tmp_path: Path) -> None:
    """Who applies batches in order, and the deletes of each ordinal first, has the rows of the table."""
    table = created(tmp_path, 2).append(pa.concat_tables([rows(n, part=part) for n, part in enumerate("xyz")]))
    table = table.overwrite(pa.concat_tables([rows(1), rows(2, part="y")]), "id > 0")
    query, copy = Stream(place(table), table="changelog", **LIMITS), {}
    while query.plan():
        known = len(query.rows)
        query.run()
        for key, _, part, kind, *_ in sorted(query.rows[known:], key=lambda row: (row[4], row[3])):
            if kind == "INSERT":
                copy[key] = part
            else:
                del copy[key]
    assert copy == {0: "x", 1: "x", 2: "y"}
    assert query.batches == 4


@pytest.mark.java
@pytest.mark.parametrize(("version", "seed"), [(v, n) for v in (2, 3) for n in range(20)] if SOAK else [(3, 5)])
def test_changelogs_of_histories_by_java(spark: SparkSession, version: int, seed: int) -> None:
    from tests.rows.test_changelog import History

    rng = random.Random(seed)
    shop = Workshop(Java(spark), f"stream_{version}_{seed}")
    shop.create("id INT, name STRING, part STRING", "part", version=version, properties=MERGE_ON_READ)
    history = History(shop, rng)
    history.insert()
    for _ in range(20 if SOAK else 7):
        history.step()
    table = sm.load_table(shop.metadata_location, spark=spark)
    expected = changelog(table)
    assert Counter(Stream(shop.metadata_location, table="changelog").drain()) == expected
    assert without_ordinals(Stream(shop.metadata_location, table="changelog", **LIMITS).drain()) == without_ordinals(
        expected
    )


NESTED = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "m", MapType(11, StringType(), 12, IntegerType(), value_required=False)),
    NestedField(
        3,
        "s",
        StructType(
            NestedField(13, "d", DoubleType()), NestedField(14, "l", ListType(15, LongType(), element_required=False))
        ),
    ),
    NestedField(4, "t", StringType()),
    NestedField(5, "day", DateType()),
    NestedField(6, "moment", TimestampType()),
)


@pytest.mark.parametrize("part_bytes", [arrow_reader.PART_BYTES, 500])
def test_rows_that_are_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part_bytes: int) -> None:
    """Values of every kind are compared, in one task or many: -0.0 is not 0.0, NaN is NaN, maps have no order.

    Python has no dates and times of the year 10000.
    """
    monkeypatch.setattr(change_plans, "PART_BYTES", part_bytes)
    table = created(tmp_path, 2, NESTED, PartitionSpec())
    kinds = table.scan().to_arrow().schema

    def written(order: int, zero: float, nan: bytes, copies: int, empty: dict[str, Any]) -> pa.Table:
        entries, (number,) = [("a", 1), ("b", None)][::order], struct.unpack("<d", nan)
        some = [
            {"id": n % 4, "m": entries, "s": {"d": zero if n == 3 else number, "l": [n, None]}, "t": f"t{n}"}
            for n in range(20)
        ]
        some += [{"id": 7, "m": None, "s": None, "t": None}, {"id": 7, "m": [], "s": {"d": None, "l": []}, "t": ""}]
        some += [{"id": 8, "m": None, "s": {"d": 8.0, "l": None}, "t": None}] * copies + [{"id": 9, "t": None, **empty}]
        table = pa.Table.from_pylist(some[::order], kinds)
        far = [None if row["id"] in (3, 8, 9) else 10**7 for row in some[::order]]
        days, moments = pa.array(far, pa.int32()), pc.multiply(pa.array(far, pa.int64()), 10**11)
        return table.set_column(4, "day", days.cast(pa.date32())).set_column(
            5, "moment", moments.cast(pa.timestamp("us"))
        )

    # Two representations of NaN.
    old = written(1, 0.0, b"\0\0\0\0\0\0\xf8\x7f", 3, {"m": None, "s": None})
    new = written(-1, -0.0, b"\1\0\0\0\0\0\xf8\x7f", 1, {"m": [], "s": {"d": None, "l": None}})
    table = table.append(old).overwrite(new)
    changed = Stream(place(table), table="changelog", start_snapshot_id=table.snapshots()[0].snapshot_id)
    source = changed.reader
    changed.plan()
    assert changed.logged is not None
    parts = source.partitions(json.loads(changed.offset or ""), json.loads(changed.logged))
    assert len(parts) == 1 if part_bytes > 500 else len(parts) > 2
    changed.run()
    assert sorted((row[0], str(row[1]), str(row[2] and row[2]["d"]), row[6]) for row in changed.rows) == [
        (3, "[('a', 1), ('b', None)]", "0.0", "DELETE"),
        (3, "[('b', None), ('a', 1)]", "-0.0", "INSERT"),
        (8, "None", "8.0", "DELETE"),
        (8, "None", "8.0", "DELETE"),
        (9, "None", "None", "DELETE"),
        (9, "[]", "None", "INSERT"),
    ]


@pytest.mark.connect
def test_reads_of_changelogs(spark: SparkSession, tmp_path: Path) -> None:
    """A batch of the source, and a table function."""
    sm.register(spark)
    table = created(tmp_path, 3).append(rows(1, 2, 3)).delete("id = 2").append(rows(4))
    first, _, last = sorted(table.snapshots(), key=lambda snapshot: snapshot.sequence_number or 0)
    read = spark.read.format("sparkmeta").option("table", "changelog").option("start-snapshot-id", first.snapshot_id)
    frame = read.load(place(table))
    assert frame.schema.simpleString() == table.changelog(None).to_df().schema.simpleString()
    since = Stream(place(table), table="changelog", start_snapshot_id=first.snapshot_id)
    assert Counter(map(tuple, frame.collect())) == Counter(since.drain())
    called = f"SELECT id FROM sparkmeta_changelog('{place(table)}', end_snapshot_id => {last.parent_snapshot_id})"
    assert sorted(row.id for row in spark.sql(called).collect()) == [1, 2, 2, 3]


# -- appended rows ----------------------------------------------------------------------------------------------------


def test_every_row_once(tmp_path: Path) -> None:
    """With any limit and kills at any time, while others commit."""
    rng = random.Random(7)
    table = created(tmp_path, 3)
    limits: list[dict[str, Any]] = [
        {}, {"streaming-max-files-per-micro-batch": 2}, {"streaming-max-rows-per-micro-batch": 3},
        {"streaming-max-bytes-per-micro-batch": 2000},
    ]  # fmt: skip
    streams = [Stream(place(table), **limit) for limit in limits]
    written: list[int] = []
    for start in range(0, 60, 10):
        parts = [rows(n, part=rng.choice("xyz")) for n in range(start, start + 10)]
        table = table.append(pa.concat_tables(parts))
        written += range(start, start + 10)
        for each in streams:
            if each.plan() and rng.random() < 0.5:
                each.start()
            elif each.logged:
                each.run()
    for each in streams:
        each.drain()
        assert sorted(row[0] for row in each.rows) == written
        assert each is streams[0] or each.batches > streams[0].batches


def test_snapshots_that_do_not_append(spark: SparkSession, tmp_path: Path) -> None:
    """Compactions are no change; an overwrite and a delete stop the stream after what came before them."""
    table = created(tmp_path, 2).append(rows(1)).append(rows(2))
    table.maintenance.rewrite_data_files(rewrite_all=True).commit()
    table = table.refresh().append(rows(3))
    query = Stream(place(table), columns="id,_pos")
    assert sorted(query.drain()) == [(1, 0), (2, 0), (3, 0)]
    table = table.append(rows(4)).delete("id = 1").append(rows(5)).overwrite(rows(6), "id = 2")
    with pytest.raises(
        sm.ValidationError, match=r"operation delete, .* by streaming-skip-delete-snapshots=true, or read"
    ):
        query.drain()
    assert query.rows[-1][0] == 4
    query.options["streaming-skip-delete-snapshots"] = "true"
    query.start()
    with pytest.raises(sm.ValidationError, match=r"operation overwrite, .* by streaming-skip-overwrite-snapshots=true"):
        query.drain()
    query.options["streaming-skip-overwrite-snapshots"] = "TRUE"
    query.start()
    table.append(rows(7))
    assert [row[0] for row in query.drain()] == [7]
    assert sorted(row[0] for row in query.rows) == [1, 2, 3, 4, 5, 7]


def test_starts(tmp_path: Path) -> None:
    table = created(tmp_path, 2)
    empty = Stream(place(table))
    assert empty.drain() == []
    moments = []
    for n in range(3):
        time.sleep(0.005)
        moments.append(int(time.time() * 1000))
        time.sleep(0.005)
        table = table.append(rows(n))
    first, second, third = sorted(table.snapshots(), key=lambda snapshot: snapshot.timestamp_ms)
    later = f"{time.gmtime().tm_year + 1}-01-01T00:00:00Z"
    for options, ids in (
        ({}, [0, 1, 2]),
        ({"start-snapshot-id": first.snapshot_id}, [1, 2]),
        ({"stream-from-timestamp": moments[1]}, [1, 2]),
        ({"stream-from-timestamp": 0}, [0, 1, 2]),
        ({"stream-from-timestamp": later}, []),
        ({"stream-from-timestamp": third.timestamp_ms}, [2]),
        ({"branch": "side"}, [0, 1]),
    ):
        if "branch" in options:
            table.manage_snapshots().create_branch(second.snapshot_id, "side").commit()
        query = Stream(place(table), **options)
        assert sorted(row[0] for row in query.drain()) == ids, options
    table = table.refresh().append(rows(8), branch="side")
    assert [row[0] for row in query.drain()] == [8]
    assert sorted(row[0] for row in empty.drain()) == [0, 1, 2]


def test_importers_after_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No importer of Spark's archives is left after a call, since Spark lets importers read their archives again."""
    archive = tmp_path / "pyspark.zip"
    with zipfile.ZipFile(archive, "w") as content:
        content.writestr("some_module.py", "")

    def add_importer() -> None:
        monkeypatch.setitem(sys.path_importer_cache, str(archive), zipimport.zipimporter(str(archive)))

    table = created(tmp_path)
    table.append(rows(1))
    source = sm.DataSource({"path": place(table)})
    stream = Stream(place(table))
    assert stream.plan()
    writer = source.writer(source.schema(), False)
    reads = [source.schema, lambda: source.reader(source.schema()).partitions(), stream.plan, stream.run]
    writes = [lambda: source.streamWriter(source.schema(), False), lambda: writer.commit([])]
    for call in [*reads, *writes]:
        add_importer()
        call()
        assert str(archive) not in sys.path_importer_cache


def test_snapshots_are_planned_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many batches read them."""
    table = created(tmp_path, 2)
    for _ in range(2):
        table = table.append(pa.concat_tables([rows(n, part=part) for n, part in enumerate("xyz")]))
    planned, plan = [], change_plans.appends_of
    monkeypatch.setattr(change_plans, "appends_of", lambda *args: planned.append(args[1].snapshot_id) or plan(*args))
    query = Stream(place(table), **{"streaming-max-files-per-micro-batch": 2})
    while query.plan():
        query.run()
    assert (len(query.rows), query.batches) == (6, 3)
    assert sorted(planned) == sorted(snapshot.snapshot_id for snapshot in table.snapshots())


@pytest.mark.parametrize("first", [0, 3])
def test_a_start_in_the_future(tmp_path: Path, first: int) -> None:
    """Snapshots from before it are passed over, also those that came after the query's start or its restart."""
    table = created(tmp_path, 2)
    for n in range(first):
        table = table.append(rows(n))
    now = int(time.time())
    query = Stream(place(table), **LIMITS, **{"stream-from-timestamp": (now + 60) * 1000})
    initial = query.reader.initialOffset()
    assert query.drain() == []
    table = table.append(rows(3, 4))
    again = Stream(place(table), **LIMITS, **{"stream-from-timestamp": (now + 60) * 1000})
    assert again.reader.initialOffset() == initial
    for each in (query, again):
        assert each.drain() == []
        each.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: now + 61.0)
        table = table.append(pa.concat_tables([rows(5), rows(6, part="y")])).append(rows(7))
    for each in (query, again):
        assert sorted(row[0] for row in each.drain()) == [5, 6, 7]


def test_a_history_that_has_expired(spark: SparkSession, tmp_path: Path) -> None:
    """A stream without a start begins with the rows of the oldest snapshot."""
    table = created(tmp_path, 3).append(rows(1, 2)).append(rows(3, part="y")).delete("id = 2")
    table.maintenance.expire_snapshots(older_than=soon(), retain_last=1).commit()
    table = table.refresh()
    for options in ({}, LIMITS):
        query = Stream(place(table), table="changelog", **options)
        if options:
            query.plan()
            query.run()
            query.start()
        query.drain()
        assert sorted((row[0], row[3]) for row in query.rows) == [(1, "INSERT"), (3, "INSERT")]
        assert query.batches == (2 if options else 1)
    assert sorted(row[0] for row in Stream(place(table)).drain()) == [1, 3]
    table = table.delete("id = 3")
    assert [(row[0], row[3]) for row in query.drain()] == [(3, "DELETE")]


# -- errors and what mends them ---------------------------------------------------------------------------------------


def test_lost_changes(spark: SparkSession, tmp_path: Path) -> None:
    """An offset whose snapshot has expired, or was rolled back."""
    table = created(tmp_path, 2).append(rows(1))
    query = Stream(place(table), table="changelog")
    query.drain()
    first = table.current_snapshot()
    assert first is not None
    table = table.append(rows(2))
    second = table.current_snapshot()
    assert second is not None
    table = table.append(rows(3))
    table.maintenance.expire_snapshots(older_than=soon(), retain_last=1).commit()
    for again in (False, True):
        if again:
            query.start()
        with pytest.raises(
            sm.ValidationError, match=r"can't go on after snapshot \d+: .*: start a new query with a new"
        ):
            query.drain()
    with pytest.raises(sm.ValidationError, match=f"can't go on after snapshot {first.snapshot_id}"):
        Stream(place(table), start_snapshot_id=first.snapshot_id)
    mended = Stream(place(table), table="changelog", start_snapshot_id=second.snapshot_id)
    assert [row[0] for row in mended.drain()] == [3]
    table = table.refresh()
    head = table.current_snapshot()
    assert head is not None
    table = table.append(rows(4))
    mended.drain()
    refs = table.manage_snapshots()
    refs.rollback_to_snapshot(head.snapshot_id).commit()
    table.refresh().append(rows(5))
    with pytest.raises(sm.ValidationError, match="can't go on after snapshot"):
        mended.drain()
    refs = table.refresh().manage_snapshots()
    refs.set_current_snapshot(json.loads(mended.offset or "")["snapshot_id"]).commit()
    assert mended.drain() == []


def test_a_lost_parent_of_a_tree(tmp_path: Path) -> None:
    """Only the parent's root says what a removed leaf had."""
    tree = TreeTable(tmp_path / "t")
    leaf = tree.leaf("m1", data("x"), data("y"))
    tree.snapshot(added=[leaf])
    tree.snapshot(deleted=[leaf])
    tree.load(None, expired=[1])
    with pytest.raises(
        sm.ValidationError, match=r"can't go on after snapshot 1: .* no longer has snapshot 1: start a new query with"
    ):
        Stream(tree.location, table="changelog", start_snapshot_id=1).drain()


def test_schema_changes(tmp_path: Path) -> None:
    """Rows are read by field ids. A column that the stream has and the table has not is an error."""
    table = created(tmp_path, 2).append(rows(1))
    query, narrow = Stream(place(table), table="changelog"), Stream(place(table), columns="id")
    for each in (query, narrow):
        each.drain()

    def append(table: sm.Table, **values: Any) -> sm.Table:
        return table.append(pa.Table.from_pylist([values]))

    with table.update_schema() as update:
        update.add_column("extra", StringType())
    table = append(table.refresh(), id=2, name="b", part="x", extra="e")
    assert [row[:4] for row in query.drain()] == [(2, "b", "x", "INSERT")]
    query.start()
    with table.update_schema() as update:
        update.rename_column("name", "title")
    table = append(table.refresh(), id=3, title="c", part="y", extra="f")
    with pytest.raises(
        InvalidArgumentError, match=r"no column 'name' in the table.*: load the stream again, and start"
    ):
        query.drain()
    query.start()
    assert [row[:5] for row in query.drain()] == [(3, "c", "y", "f", "INSERT")]
    assert query.plan() is False
    with table.update_schema() as update:
        update.delete_column("extra")
        update.add_column("extra", LongType())
    table = append(table.refresh(), id=4, title="d", part="y", extra=7)
    with pytest.raises(InvalidArgumentError, match="column extra is string in the schema: expected bigint"):
        query.drain()
    query.start()
    assert [row[:5] for row in query.drain()] == [(4, "d", "y", 7, "INSERT")]
    assert [row[0] for row in narrow.drain()] == [2, 3, 4]


def test_a_changed_filter(tmp_path: Path) -> None:
    """Positions in a snapshot depend on the filter."""
    table = created(tmp_path, 2).append(pa.concat_tables([rows(1), rows(2, part="y"), rows(3, part="z")]))
    query = Stream(place(table), **LIMITS)
    query.plan()
    query.run()
    query.options["filter"] = "id > 2"
    query.start()
    with pytest.raises(InvalidArgumentError, match="with the table and filter 'rows', not 'rows id > 2'"):
        query.drain()
    del query.options["filter"]
    query.start()
    query.drain()
    query.options["filter"] = "id > 2"
    query.start()
    table.append(rows(0, 9))
    assert sorted(row[0] for row in query.drain()) == [9]
    assert sorted(row[0] for row in query.rows) == [1, 2, 3, 9]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"table": "files"}, "table is 'files': a stream is of rows or changelog"),
        ({"streaming-max-files-per-micro-batch": "0"}, "streaming-max-files-per-micro-batch is '0': expected a whole"),
        ({"streaming-max-rows-per-micro-batch": "many"}, "streaming-max-rows-per-micro-batch is 'many': expected"),
        (
            {"streaming-skip-delete-snapshots": "yes"},
            "streaming-skip-delete-snapshots is 'yes': expected true or false",
        ),
        ({"table": "changelog", "streaming-skip-overwrite-snapshots": "true"}, "is for streams of rows"),
        ({"start-snapshot-id": "5"}, "can't go on after snapshot 5: "),
        ({"start-snapshot-id": "first"}, "start-snapshot-id is 'first': expected a whole number"),
        ({"stream-from-timestamp": "noon"}, "stream-from-timestamp is 'noon': expected milliseconds"),
        ({"stream-from-timestamp": "1", "start-snapshot-id": "1"}, "each name a start"),
        ({"end-snapshot-id": "1"}, "a stream has no end"),
        ({"snapshot-id": "1"}, "changes are read of a branch|has no snapshot 1"),
        ({"ref": "first"}, "changes are read of a branch: first is a tag"),
        ({"columns": "ix"}, ".*ix"),
        ({"table": "changelog", "columns": "id,_pos"}, "a changelog has no column _pos"),
        ({"table": "changelog", "filter": "nothing = 1"}, ".*nothing"),
    ],
)
def test_bad_options(tmp_path_factory: pytest.TempPathFactory, options: dict[str, str], error: str) -> None:
    folder = tmp_path_factory.getbasetemp() / "stream-options"
    if not folder.exists():
        table = created(folder).append(rows(1))
        snapshot = table.current_snapshot()
        assert snapshot is not None
        table.manage_snapshots().create_tag(snapshot.snapshot_id, "first").commit()
    with pytest.raises(sm.SparkmetaError, match=error):
        Stream(str(folder / "db" / "t"), **options)


def test_options_of_streams_are_not_for_batches(tmp_path: Path) -> None:
    source = sm.DataSource({"path": place(created(tmp_path)), "stream-from-timestamp": "1"})
    with pytest.raises(InvalidArgumentError, match="'stream-from-timestamp' is not an option"):
        source.reader(source.schema())


# -- queries of Spark -------------------------------------------------------------------------------------------------


class Query:
    """A query of Spark over a table, whose sink is a folder of Parquet files."""

    def __init__(self, spark: SparkSession, path: str, folder: Path, **options: Any) -> None:
        sm.register(spark)
        self.spark, self.path, self.folder = spark, path, folder
        self.options = {name.replace("_", "-"): str(value) for name, value in options.items()}

    def write(self) -> Any:
        frame = self.spark.readStream.format("sparkmeta").options(**self.options).load(self.path)
        folders = {"path": str(self.folder / "out"), "checkpointLocation": str(self.folder / "checkpoint")}
        return frame.writeStream.format("parquet").options(**folders)

    def drain(self) -> list[tuple[Any, ...]]:
        """Run what there is, and return all rows of the sink.

        In Spark 4.0 and 4.1, a query runs a single batch, which may be one that was not committed.
        """
        known = -1
        while self.batches() > known:
            known = self.batches()
            query = self.write().trigger(availableNow=True).start()
            query.awaitTermination()
        return self.rows()

    def rows(self) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.spark.read.parquet(str(self.folder / "out")).collect()]

    def batches(self) -> int:
        return len([file for file in (self.folder / "checkpoint" / "commits").glob("*") if file.name.isdecimal()])


@pytest.mark.connect
def test_queries(spark: SparkSession, tmp_path: Path) -> None:
    """A changelog with limits while others commit, and a restart."""
    table = created(tmp_path / "table", 3).append(pa.concat_tables([rows(n, part="xyz"[n % 3]) for n in range(9)]))
    query = Query(spark, place(table), tmp_path / "log", table="changelog", **LIMITS)
    running = query.write().trigger(processingTime="0 seconds").start()
    running.processAllAvailable()
    assert query.batches() == 3
    table = table.append(rows(10, 11)).delete("id = 4 or id = 10")
    running.processAllAvailable()
    running.stop()
    table = table.overwrite(rows(1, 20), "id < 2").append(pa.concat_tables([rows(30), rows(31, part="y")]))
    assert without_ordinals(query.drain()) == without_ordinals(Stream(place(table), table="changelog").drain())
