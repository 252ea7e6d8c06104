"""The files of a whole table are added to a table with a manifest list, in newly written manifests."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType
from pyspark.errors import PySparkException

import sparkmeta as sm
from sparkmeta.errors import CommitConflictError, UnsupportedError, ValidationError
from tests.commit.test_append_table import (
    NUMBERS,
    A,
    B,
    assert_appended,
    column,
    committed,
    loaded,
    planned,
    source_of,
    tree_source,
)
from tests.frames import local_frame
from tests.handmade import (
    BY_DAY_AND_BUCKET,
    BY_PART,
    BY_RATIO,
    COLUMNS,
    HandmadeTable,
    data,
    deletion_vector,
    equality_deletes,
    position_deletes,
)
from tests.inspect.comparison import collected
from tests.maintain.clones import clone
from tests.maintain.test_convert import counted
from tests.peers import corpus as peers
from tests.peers.filters import filters
from tests.peers.slices import FILTERS, SOAK

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

DRIVER_BYTES = "spark.sparkmeta.driver-manifest-bytes"


@pytest.fixture(params=["driver", "tasks"])
def place(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    """Return the process that reads and writes manifests: the driver or tasks."""
    if request.param == "tasks":
        spark.conf.set(DRIVER_BYTES, "0")
    yield request.param
    spark.conf.unset(DRIVER_BYTES)


def target_of(
    spark: SparkSession, folder: Path, version: int, properties: dict[str, str] | None = None, **options: Any
) -> sm.Table:
    """Return a table with one file, whose partition specs have other ids than the source's."""
    options = {"specs": ((), BY_RATIO, BY_PART)} | options
    table = HandmadeTable(folder, version, properties=properties or {}, summaries=True, **options)
    return loaded(spark, table.add(0, 0, data("x:old")))


@pytest.mark.parametrize("version", [2, 3])
def test_files_are_those_of_a_data_frame(spark: SparkSession, tmp_path: Path, version: int, place: str) -> None:
    """The files have all metrics, and inherit the same values. Other readers find them."""
    source = loaded(spark, source_of(tmp_path / "source"))
    target = target_of(spark, tmp_path / "target", version)
    after = committed(target, lambda update: update.append(source))
    assert_appended(after, target_of(spark, tmp_path / "frame", version), source)
    row_ids = [row["first_row_id"] for row in after.scan().plan_files().where("file_path != 'x:old'").collect()]
    assert len(set(row_ids)) == (7 if version == 3 else 1)
    assert version < 3 or min(row_ids) >= 1000
    if version < 3:  # pyiceberg plans no tables of version 3
        tasks = StaticTable.from_metadata(after.metadata_location).scan(row_filter="part = 'a'").plan_files()
        assert sorted(task.file.file_path for task in tasks) == ["x:a0", "x:a2", "x:a3", "x:c0", "x:old"]


def test_manifests_follow_those_of_the_table(spark: SparkSession, tmp_path: Path, place: str) -> None:
    """Neighboring manifests are packed up to the target size.

    Each new manifest has only the partitions of its sources.
    """
    table = HandmadeTable(tmp_path / "source", summaries=True)
    for number in range(12):
        part = {"partition": {"part": f"p{number:02}"}}
        table.add(0, 1, *(data(f"x:f{number}-{ordinal}", **part) for ordinal in range(20)))
    source = loaded(spark, table)
    size = source.inspect.manifests().agg({"length": "max"}).collect()[0][0]
    limits = {"commit.manifest.target-size-bytes": str(3 * size), "commit.manifest-merge.enabled": "false"}
    after = committed(target_of(spark, tmp_path / "target", 2, limits), lambda update: update.append(source))
    manifests = after.inspect.manifests().where("partition_spec_id = 2").orderBy("path").collect()
    bounds = sorted(
        (row["partition_summaries"][0]["lower_bound"], row["partition_summaries"][0]["upper_bound"])
        for row in manifests
    )
    assert len(bounds) == 4
    assert bounds == [(f"p{first:02}", f"p{first + 2:02}") for first in range(0, 12, 3)]
    assert len(planned(after)) == 240


def test_a_tree_as_source(spark: SparkSession, tmp_path: Path, place: str) -> None:
    """All files of a tree are added, also of an older snapshot."""
    source = tree_source(spark, tmp_path)
    after = committed(target_of(spark, tmp_path / "target", 3), lambda update: update.append(source))
    assert planned(after) == planned(source)
    assert len(planned(after)) == 10
    assert planned(after, row_filter="id > 51") == planned(source, row_filter="id > 51")
    first = source.state.at(source.snapshots()[0])
    before = committed(target_of(spark, tmp_path / "before", 3), lambda update: update.append(first))
    assert planned(before) == planned(source, snapshot_id=source.snapshots()[0].snapshot_id)


def with_vectors(folder: Path) -> HandmadeTable:
    """Return a table with deletion vectors of three live files, of a removed one, and of an unknown one."""
    table = source_of(folder)
    places = {"file_size_in_bytes": 999, "content_size_in_bytes": 40}
    vectors = (("x:a0", A), ("x:b0", B), ("x:a3", A), ("x:a1", A), ("x:b9", B))
    return table.add(
        1, 1,
        *(deletion_vector(of, 2, content_offset=4 + 40 * i, **places, **part) for i, (of, part) in enumerate(vectors)),
    )  # fmt: skip


@pytest.mark.parametrize("tree", [False, True])
def test_deletion_vectors_follow(spark: SparkSession, tmp_path: Path, tree: bool, place: str) -> None:
    """Deletion vectors of removed files are left out. Without the vectors, the files are refused."""
    source = loaded(spark, with_vectors(tmp_path / "source"))
    target = target_of(spark, tmp_path / "target", 3)
    if tree:
        target = target.maintenance.upgrade(4).commit()
    with pytest.raises(ValidationError, match=r"deleted rows would come back: 1 delete manifests.*m3\.avro; row_delta"):
        committed(target, lambda update: update.append(source))
    after = committed(target, lambda update: update.row_delta(added=source, deletes=source))
    assert planned(after) == planned(source)
    deleted = [row["file_path"] for row in planned(after) for _ in row["deletes"]]
    assert deleted == ["x:a0", "x:a3", "x:b0"]
    assert after.inspect.delete_files().count() == 3
    head = after.current_snapshot()
    assert head is not None
    assert head.summary is not None
    counts = head.summary.additional_properties
    assert (counts["added-dvs"], counts["added-files-size"]) == ("3", str(7 * 100 + 3 * 40))


@pytest.mark.parametrize("tree", [False, True])
def test_a_vector_that_is_older_than_its_file(spark: SparkSession, tmp_path: Path, tree: bool) -> None:
    """Readers refuse such a table, and so does the commit."""
    vector = deletion_vector("x:again", 2, content_size_in_bytes=40, **A)
    source = loaded(spark, source_of(tmp_path / "source").add(0, 1, data("x:again", 4, **A)).add(1, 1, vector))
    target = target_of(spark, tmp_path / "target", 3)
    if tree:
        target = target.maintenance.upgrade(4).commit()
    with pytest.raises(ValidationError, match=r"vector is older than its data file: x:again file:///t/dvs\.puffin"):
        committed(target, lambda update: update.row_delta(added=source, deletes=source))
    assert target.refresh().metadata_location == target.metadata_location


@pytest.mark.parametrize(
    ("version", "entry", "message"),
    [
        (3, equality_deletes("x:e0", 3, **A), "e0, of .* an equality delete, which would apply to older files"),
        (
            3,
            position_deletes("x:p0", 3, **A),
            "p0, of .* a position delete file, and only deletion vectors can: rewrite_",
        ),
        (
            2,
            deletion_vector("x:a0", 3, **A),
            "dvs.puffin, of .* format version 2 has no deletion vectors: rewrite_data",
        ),
    ],
)
def test_deletes_that_can_not_follow(
    spark: SparkSession, tmp_path: Path, version: int, entry: dict[str, Any], message: str
) -> None:
    source = loaded(spark, source_of(tmp_path / "source").add(1, 1, entry))
    target = target_of(spark, tmp_path / "target", version)
    with pytest.raises(ValidationError, match=message):
        committed(target, lambda update: update.row_delta(added=source, deletes=source))
    assert target.refresh().metadata_location == target.metadata_location
    names = {path.name for path in (tmp_path / "target" / "metadata").glob("*")}
    assert names == {"m0.avro", "snap.avro", "v1.metadata.json"}


def created(spark: SparkSession, folder: Path, version: int, kind: Any, *orders: str) -> sm.Table:
    """Create a table that is partitioned by a column of a type, with sort orders of one column each."""
    schema = Schema(NestedField(1, "n", kind, required=False), NestedField(2, "s", StringType(), required=False))
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), f"{folder.name}_n"), spec_id=0)
    catalog = sm.load_catalog("local", type="hadoop", warehouse=folder.as_uri())
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", schema, spec, format_version=version, spark=spark)
    for name in orders:
        with table.update_sort_order() as update:
            update.asc(name, IdentityTransform())
        table = table.refresh()
    return table


@pytest.mark.parametrize("versions", [(2, 2), (1, 2), (3, 1), (1, 3)])
def test_values_of_other_types_and_orders(
    spark: SparkSession, tmp_path: Path, versions: tuple[int, int], place: str
) -> None:
    """Partition values are widened. Sort orders become orders with the same fields, or none."""
    source = created(spark, tmp_path / "ints", versions[0], IntegerType(), "n", "s")
    rows = pa.table(
        {
            "file_path": ["x:a", "x:b", "x:c"],
            "partition": pa.array([{"ints_n": 1}, {"ints_n": 7}, {"ints_n": None}], pa.struct({"ints_n": pa.int32()})),
            "sort_order_id": pa.array([1, 2, 0], pa.int32()),
            "lower_bounds": pa.array([[(2, b"u")]] * 3, pa.map_(pa.int32(), pa.binary())),
            "column_sizes": pa.array([[(1, 9)]] * 3, pa.map_(pa.int32(), pa.int64())),
        }
    )
    frame = local_frame(spark, rows).selectExpr(
        "*", "5L AS record_count", "9L AS file_size_in_bytes", "'parquet' AS file_format"
    )
    source = committed(source, lambda update: update.append(frame))
    target = created(spark, tmp_path / "longs", versions[1], LongType(), "s")
    after = committed(target, lambda update: update.append(source))
    files = after.inspect.data_files().orderBy("file_path").collect()
    assert [(row["partition"]["longs_n"], row["sort_order_id"]) for row in files] == [(1, None), (7, 1), (None, 0)]
    assert {(bytes(row["lower_bounds"][2]), row["column_sizes"][1]) for row in files} == {(b"u", 9)}
    assert [row["file_path"] for row in planned(after, row_filter="n = 7")] == ["x:b"]
    if versions[1] < 3:
        tasks = StaticTable.from_metadata(after.metadata_location).scan(row_filter="n = 7").plan_files()
        assert [task.file.file_path for task in tasks] == ["x:b"]


TIMES = (*COLUMNS, {"id": 4, "name": "ts", "required": False, "type": "timestamp"})


@pytest.mark.parametrize("tree", [False, True])
def test_transforms(spark: SparkSession, tmp_path: Path, tree: bool, place: str) -> None:
    """Files and vectors keep their days and buckets under other spec ids; the target has specs that no file uses."""
    table = HandmadeTable(tmp_path / "source", specs=((), BY_PART, BY_RATIO, BY_DAY_AND_BUCKET), schemas=(TIMES,))
    days = {f"x:d{number}": {"ts_day": 19_000 + number // 2, "id_bucket": number % 4} for number in range(6)}
    for spec_id, files in ((3, days), (2, {"x:nan": {"ratio": float("nan")}, "x:null": {"ratio": None}})):
        table.add(0, spec_id, *(data(path, partition=values) for path, values in files.items()))
        masked = files | {f"x:gone{spec_id}": next(iter(files.values()))}
        vectors = {
            of: {"file_path": f"{of}.puffin", "file_size_in_bytes": 999, "partition": masked[of]} for of in masked
        }
        table.add(1, spec_id, *(deletion_vector(of, 2, **values) for of, values in vectors.items()))
    source = loaded(spark, table)
    if tree:
        source = source.maintenance.upgrade(4).commit()
    target = target_of(
        spark, tmp_path / "target", 3, specs=((), BY_DAY_AND_BUCKET, BY_PART, BY_RATIO), schemas=(TIMES,)
    )
    after = committed(target, lambda update: update.row_delta(added=source, deletes=source))
    assert [len(row["deletes"]) for row in planned(after)] == [1] * 8
    # NaN differs from itself in Python.
    assert str(planned(after)) == str(planned(source))
    for row_filter in ("ts < '2022-01-09T00:00:00'", "id = 7", "ratio is nan", "ratio is null"):
        assert str(planned(after, row_filter=row_filter)) == str(planned(source, row_filter=row_filter)), row_filter


def test_void_fields(spark: SparkSession, tmp_path: Path, place: str) -> None:
    """Void fields have no values, even if fields of other specs with the same id have values."""
    void = {"source-id": 4, "field-id": 1002, "name": "v", "transform": "void"}
    source_specs = ((), BY_PART, BY_RATIO, (void,), (void | {"name": "ts", "transform": "identity"},))
    table = HandmadeTable(tmp_path / "source", specs=source_specs, schemas=(TIMES,))
    source = loaded(spark, table.add(0, 0, data("x:a")))
    frame = local_frame(
        spark, pa.table({"file_path": ["x:x"], "record_count": [1], "file_size_in_bytes": [9], "spec_id": [3]})
    ).selectExpr("*", "'parquet' AS file_format")
    source = committed(sm.load_table(f"file://{table.folder}", spark=spark), lambda update: update.append(frame))
    hour = void | {"name": "ts_hour", "transform": "hour"}
    target = target_of(spark, tmp_path / "target", 3, specs=((), (void,), (hour,)), schemas=(TIMES,))
    after = committed(target, lambda update: update.append(source))
    assert [row["file_path"] for row in planned(after)] == ["x:a", "x:x"]
    files = after.inspect.data_files().where("file_path = 'x:x'").select("spec_id", "partition").collect()
    assert [(row["spec_id"], set(row["partition"].asDict().values())) for row in files] == [(1, {None})]


def test_values_of_dropped_columns(spark: SparkSession, tmp_path: Path) -> None:
    """Both tables have dropped the column of a partition field, which had other types."""
    by_dropped = ({"source-id": 9, "field-id": 1000, "name": "x", "transform": "identity"},)
    kinds = {"source": "string", "target": "int"}
    options = {
        name: {"specs": ((), by_dropped), "schemas": ((*COLUMNS, column(9, "x", kind)), COLUMNS)}
        for name, kind in kinds.items()
    }
    table = HandmadeTable(tmp_path / "source", **options["source"])
    source = loaded(spark, table.add(0, 1, data("x:f", partition={"part": "12"})))
    target = target_of(spark, tmp_path / "target", 3, **options["target"])
    problem = "partition spec 1, whose field x has values of type string: they are int in this table"
    with pytest.raises(ValidationError, match=problem):
        committed(target, lambda update: update.append(source))


def test_unknown_file_sequence_numbers(spark: SparkSession, tmp_path: Path, place: str) -> None:
    """Old writers left the numbers out of entries that are not new."""
    table = HandmadeTable(tmp_path / "source", 2)
    source = loaded(spark, table.add(0, 0, data("x:f", 3, status=0, file_sequence_number=None)))
    after = committed(target_of(spark, tmp_path / "target", 2), lambda update: update.append(source))
    assert [row["file_path"] for row in planned(after)] == ["x:f"]


def test_sessions_whose_tasks_open_no_files(spark: SparkSession, tmp_path: Path, place: str) -> None:
    """Manifests are still read by the driver or by tasks, as in other writes, though data files are left to Spark."""
    source = loaded(spark, source_of(tmp_path / "source"))
    target = target_of(spark, tmp_path / "target", 2)
    spark.conf.set("spark.sparkmeta.executor-reads", "spark")
    try:
        after = committed(target, lambda update: update.append(source))
    finally:
        spark.conf.unset("spark.sparkmeta.executor-reads")
    assert len(planned(after)) == 7


def test_the_manifest_cache(spark: SparkSession, tmp_path: Path) -> None:
    """Entries equal the manifests' entries, whether or not the cache contains them."""
    source = loaded(spark, source_of(tmp_path / "source"))
    spark.conf.set("spark.sparkmeta.manifest-cache", f"file://{tmp_path}/cache")
    spark.conf.set(DRIVER_BYTES, "0")
    try:
        for number in range(2):
            target = target_of(spark, tmp_path / f"target{number}", 2)
            after = committed(target, lambda update: update.append(source))
            assert planned(after) == planned(source)
            assert planned(after, row_filter="id > 11") == planned(source, row_filter="id > 11")
    finally:
        spark.conf.unset("spark.sparkmeta.manifest-cache")
        spark.conf.unset(DRIVER_BYTES)


def test_a_root_with_vectors(spark: SparkSession, tmp_path: Path) -> None:
    """The source is a tree with files of several specs and deletion vectors in its root."""
    source = loaded(spark, with_vectors(tmp_path / "source")).maintenance.upgrade(4).commit()
    compact = {"write.tree.direct-files": "100"}
    tree = target_of(spark, tmp_path / "tree", 3, compact).maintenance.upgrade(4).commit()
    tree = committed(tree, lambda update: update.row_delta(added=source, deletes=source))
    assert tree.state.tree is not None
    assert {row["content_type"] for row in tree.state.tree.root.table.to_pylist()} >= {0, 1}
    target = loaded(spark, HandmadeTable(tmp_path / "target", specs=((), BY_PART, BY_RATIO)))
    with pytest.raises(ValidationError, match=r"0 delete manifests and 3 deletes in its root, such as .*dvs\.puffin"):
        committed(target, lambda update: update.append(tree))
    after = committed(target, lambda update: update.row_delta(added=tree, deletes=tree))
    assert planned(after) == planned(tree)
    assert sum(len(row["deletes"]) for row in planned(after)) == 3


def test_an_entry_that_readers_would_refuse(spark: SparkSession, tmp_path: Path, place: str) -> None:
    handmade = source_of(tmp_path / "source").add(0, 0, data("x:bad", record_count=-1))
    source, target = loaded(spark, handmade), target_of(spark, tmp_path / "target", 2)
    with pytest.raises(ValidationError, match="record_count of file x:bad is -1: it is negative"):
        committed(target, lambda update: update.append(source))
    assert target.refresh().metadata_location == target.metadata_location


def test_counts_that_differ(spark: SparkSession, tmp_path: Path) -> None:
    """The manifest list counts more files than a manifest has."""
    source = loaded(spark, source_of(tmp_path / "source"))
    short = HandmadeTable(tmp_path / "short", summaries=True).add(0, 0, data("x:c0", 1))
    short.write()
    (tmp_path / "source" / "metadata" / "m0.avro").write_bytes(
        (tmp_path / "short" / "metadata" / "m0.avro").read_bytes()
    )
    target = target_of(spark, tmp_path / "target", 2)
    with pytest.raises(ValidationError, match=r"source: the snapshot counts 7 live data files: its manifests have 5"):
        committed(target, lambda update: update.append(source))
    assert target.refresh().metadata_location == target.metadata_location


def test_duplicates_and_retries(spark: SparkSession, tmp_path: Path, place: str) -> None:
    """A second attempt reuses the manifests of the first. A file that the table already has is a conflict."""
    source = loaded(spark, source_of(tmp_path / "source"))
    target = target_of(spark, tmp_path / "target", 2, {"commit.retry.min-wait-ms": "1"})
    transaction = target.transaction()
    transaction.update_snapshot().append(source)
    target.transaction().set_properties(a="b").commit()
    after = transaction.commit()
    assert after.properties["a"] == "b"
    assert len(planned(after)) == 7
    listed = {row["path"].rpartition("/")[2] for row in after.inspect.manifests().collect()}
    written = {path.name for path in (tmp_path / "target" / "metadata").glob("*-m-*.avro")}
    assert written == listed - {"m0.avro"}
    assert len(written) == 2
    with pytest.raises(CommitConflictError, match="is in the table already"):
        committed(after, lambda update: update.append(source))
    empty = loaded(spark, HandmadeTable(tmp_path / "empty"))
    assert planned(committed(after, lambda update: update.append(empty))) == planned(after)
    twice = target_of(spark, tmp_path / "twice", 2)
    with pytest.raises(ValidationError, match="is added twice by the commit"):
        committed(twice, lambda update: update.append(source).append(source))
    assert not [*(tmp_path / "twice" / "metadata").glob("*-m-*.avro")]


def test_tables_that_do_not_fit(spark: SparkSession, tmp_path: Path) -> None:
    source = loaded(spark, source_of(tmp_path / "source"))
    target = target_of(spark, tmp_path / "target", 2, specs=((), BY_RATIO))
    with pytest.raises(ValidationError, match="partition spec 1, identity of column 2: no spec of this table has its"):
        committed(target, lambda update: update.append(source))
    encrypted = loaded(spark, source_of(tmp_path / "keys", properties={"encryption.key-id": "k"}))
    with pytest.raises(UnsupportedError, match="keys: the table is encrypted, and its files can't be added to another"):
        committed(target, lambda update: update.append(encrypted))


# Versions 1 to 3: tables of version 4 take only trees.
NAMES = [name for name in peers.names() if not name.endswith("_v4")]
CHOSEN = ["unknown_counts_v1", "spec_promoted_source_v2", "sort_orders_v3", "pyiceberg_transforms_v1"]
# The reasons why emptied copies of some tables refuse their files.
REFUSED = {
    "duplicated": "is added twice by the commit",
    "odd_statistics": "record_count of file",
    "unknown_transform": "has the unknown transform",
}


# A table with two specs of the same fields. Files of the older spec get the default spec.
SAME_SPECS = "spec_from_unpartitioned"


def java_files(peer: peers.PeerTable, table: sm.Table) -> Counter[str] | None:
    """Return the data files of Iceberg's metadata table, without spec ids; None if it can't show them."""
    try:
        rows = peer.java.java.table(table.metadata_location).metadata_table("data_files")
        shown = collected({"files": rows.drop("first_row_id", "readable_metrics", "spec_id")})
    except (PySparkException, Py4JJavaError):
        return None
    return counted(shown["files"])


@pytest.mark.java
@pytest.mark.parametrize("name", NAMES if SOAK else CHOSEN)
def test_every_table_of_the_corpus(name: str, corpus: peers.Corpus, tmp_path: Path) -> None:
    """An emptied copy gets the table's files. It plans like the table, and Java reads the same files."""
    peer = corpus.table(name)
    source = clone(peer, tmp_path / "source")
    empty = clone(peer, tmp_path / "target", emptied=True)
    has_deletes = any(source.inspect.delete_files().limit(1).collect())
    reason = REFUSED.get(name.rpartition("_")[0])
    try:
        after = committed(empty, lambda update: update.append(source))
    except ValidationError as error:
        text = str(error)
        assert ("has deletes" if has_deletes else reason or "no error") in text, text
        return
    assert reason is None
    assert not has_deletes
    dropped = ["spec_id", *(["partition"] if name.startswith(SAME_SPECS) else [])]
    frames: dict[Any, Any] = {}
    for which, table in (("source", source), ("target", after)):
        frames[which, "files"] = table.inspect.data_files().drop("first_row_id", *dropped)
        for row_filter in filters(peer, FILTERS if SOAK else 2):
            scan = table.scan(row_filter.expression, case_sensitive=row_filter.case_sensitive)
            frames[which, row_filter.name] = scan.plan_files().drop(*NUMBERS, *dropped)
    rows = {key: counted(frame_rows) for key, frame_rows in collected(frames).items()}
    for which, key in frames:
        assert rows[which, key] == rows["source", key], key
    if "partition" not in dropped and (expected := java_files(peer, source)) is not None:
        assert java_files(peer, after) == expected
