"""What Spark reads of V4 leaves to plan a scan, and that a leaf is found again whatever its name."""

from __future__ import annotations

import json
import re
from datetime import date
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.types import DateType, DecimalType, LongType, NestedField, StringType
from pyspark.errors import PythonException
from pyspark.sql import functions as F

import sparkmeta as sm
from sparkmeta.entries.projection import FILE_COLUMNS
from sparkmeta.errors import CorruptFileError
from sparkmeta.manifests import deletion_vectors
from sparkmeta.manifests.v4 import spark as leaf
from sparkmeta.manifests.v4 import tree_manifests as tree_reader
from sparkmeta.spec.entry import METRICS_MAP_IDS
from tests.trees import BY_PART, STATS, TreeTable, data, equality_deletes, stats

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sparkmeta import Table

HOSTILE = "a b%20c[d]{e}?*=ü+'#"


@pytest.fixture
def table(tmp_path: Path, spark: SparkSession) -> Table:
    tree = TreeTable(tmp_path / "t", BY_PART)
    leaves = [
        tree.leaf(f"m{place}", *(data(f"x:{part}{place}{low}", part, content_stats=stats(part, (low, low + 5)))
                                 for part in "ab" for low in range(0, 50, 10)))
        for place in range(3)
    ]  # fmt: skip
    tree.snapshot(added=leaves)
    return tree.load(spark)


def explained(table: Table, row_filter: str, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    table.scan(row_filter).plan_files().explain("formatted")
    return capsys.readouterr().out


@pytest.mark.usefixtures("by_spark")
def test_a_scan_reads_the_columns_that_it_needs(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    schema = re.search(r"ReadSchema: (.*)", explained(table, "true", capsys))
    assert schema is not None
    assert "content_stats:struct<2:struct<lower_bound:string>>" in schema[1]
    for name in ("manifest_stats", "key_metadata", "equality_ids", "upper_bound", "file_sequence_number"):
        assert name not in schema[1]


@pytest.mark.usefixtures("by_spark")
def test_filters_reach_the_leaves(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    plan = explained(table, "id = 12 and part = 'b'", capsys)
    pushed = re.search(r"PushedFilters: \[(.*)\]", plan)
    assert pushed is not None
    for part in (
        "Not(EqualTo(version_info.status,2))",
        "LessThanOrEqual(content_stats.`1`.lower_bound,12)",
        "GreaterThanOrEqual(content_stats.`1`.upper_bound,12)",
        "EqualTo(content_stats.`2`.lower_bound,b)",
    ):
        assert part in pushed[1]
    assert "Exchange hash" not in plan


def test_the_first_rows_and_rows_one_by_one_need_no_shuffle(table: Table) -> None:
    scan = table.scan("id = 12")
    assert len(scan.plan_files().limit(2).collect()) == 2
    paths = [row["file_path"] for row in scan.iter_files()]
    assert sorted(paths) == [f"x:{part}{place}10" for part in "ab" for place in range(3)]


@pytest.mark.parametrize("named", [0, 8])
def test_leaves_are_told_apart_whatever_their_names(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, named: int
) -> None:
    """File names that are the same in two folders, and characters that Spark does not spell as metadata does."""
    monkeypatch.setattr(leaf, "_NAMED", named)
    tree = TreeTable(tmp_path / HOSTILE, BY_PART)
    names = [f"{HOSTILE}/m", "other/m", f"m {HOSTILE}", "%41", "A"]
    for folder in (HOSTILE, "other"):
        (tmp_path / HOSTILE / "metadata" / folder).mkdir(parents=True)
    leaves = [tree.leaf(name, data(f"x:kept {place}"), data(f"x:gone {place}")) for place, name in enumerate(names)]
    tree.snapshot(added=leaves)
    masks = [tree.mask(manifest, [1]) for manifest in leaves]
    tree.snapshot(existing=leaves, added=masks)
    rows = tree.load(spark).scan().plan_files().collect()
    manifests = {row["file_path"]: row["manifest_path"] for row in rows}
    assert manifests == {f"x:kept {place}": manifest.location for place, manifest in enumerate(leaves)}


NO_UDFS = {"arrow_udf": None}
FEW, LOOKED_UP, JOINED = None, "ArrowEvalPython", "MapInArrow"


@pytest.mark.usefixtures("by_spark")
@pytest.mark.parametrize(
    ("limits", "by"),
    [
        # With Spark Connect, Python tasks find leaves that Spark has passed over.
        pytest.param({}, FEW, marks=pytest.mark.classic),
        pytest.param({"_DRIVER_MASKS": -1}, LOOKED_UP, marks=pytest.mark.classic),
        pytest.param({"MOST_REQUESTS": 0}, LOOKED_UP, marks=pytest.mark.classic),
        ({"_DRIVER_MASKS": -1} | NO_UDFS, JOINED),
        ({"MOST_REQUESTS": 0} | NO_UDFS, JOINED),
        ({"_DRIVER_MASKS": -1, "_MOST_SENT": 1}, JOINED),
        ({"_DRIVER_MASKS": -1, "_ARROW_UDFS": (99, 0)}, JOINED),
    ],
)
def test_masks_for_each_reader(
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    limits: dict[str, Any],
    by: str | None,
) -> None:
    """The driver reads masks where they are few, else the tasks that need them; on an old PySpark they are joined."""
    for name, limit in limits.items():
        if limit is None:
            monkeypatch.delattr(F, name)
        else:
            monkeypatch.setattr(deletion_vectors, name, limit)
    tree = TreeTable(tmp_path / "t", BY_PART)
    leaves = [tree.leaf(f"m{place}", *(data(f"x:{place} {number}") for number in range(130))) for place in range(3)]
    tree.snapshot(added=leaves)
    masks = [tree.mask(leaves[0], [0, 63, 64, 129]), tree.mask(leaves[2], range(1, 130), puffin=True)]
    tree.snapshot(existing=leaves, added=masks)
    plan = tree.load(spark).scan().plan_files()
    left = {*range(130)} - {0, 63, 64, 129}
    expected = [*(f"x:0 {number}" for number in left), *(f"x:1 {number}" for number in range(130)), "x:2 0"]
    assert sorted(row["file_path"] for row in plan.select("file_path").collect()) == sorted(expected)
    capsys.readouterr()
    plan.explain("formatted")
    shown = capsys.readouterr().out
    assert [way for way in (LOOKED_UP, JOINED) if way in shown] == [way for way in [by] if way]


@pytest.mark.usefixtures("by_spark")
def test_a_mask_that_no_kept_entry_needs_is_not_opened(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries are filtered before masks are read. Both leaves are opened, since the bounds of both admit the row."""
    monkeypatch.setattr(deletion_vectors, "MOST_REQUESTS", 0)
    tree = TreeTable(tmp_path / "t", BY_PART)
    leaves = [
        tree.leaf(
            f"m{odd}",
            *(data(f"x:{number}", content_stats=stats("a", (number, number))) for number in range(odd, 100, 2)),
        )
        for odd in range(2)
    ]
    tree.snapshot(added=leaves)
    masks = [tree.mask(manifest, [3, 4], puffin=True) for manifest in leaves]
    tree.snapshot(existing=leaves, added=masks)
    table = tree.load(spark)
    scan = table.scan("id in (8, 10, 50)")
    assert scan.report().data_manifests.scanned == 2
    Path(masks[1].location.removeprefix("file:")).write_bytes(b"no Puffin file")
    assert [row["file_path"] for row in scan.plan_files().collect()] == ["x:10", "x:50"]
    with pytest.raises(PythonException, match=re.escape(masks[1].location)):
        table.scan("id = 51").plan_files().collect()


def test_files_are_counted_by_the_root(tmp_path: Path, spark: SparkSession) -> None:
    """Without a filter, neither manifests nor masks are opened: they may be missing. A filter opens those it needs."""
    tree = TreeTable(tmp_path / "t", BY_PART)
    leaves = [
        tree.leaf(
            f"m{part}",
            *(data(f"x:{part}{number}", part, content_stats=stats(part, (number, number))) for number in range(9)),
        )
        for part in "ab"
    ]
    tree.snapshot(added=[*leaves, data("x:c0", "c", content_stats=stats("c", (5, 5)))])
    mask = tree.mask(leaves[0], [3, 5], puffin=True)
    tree.snapshot(existing=[*leaves, data("x:c0", "c", content_stats=stats("c", (5, 5)))], added=[mask])
    table = tree.load(spark)
    counts = {row_filter: table.scan(row_filter).count_files() for row_filter in ("true", "id = 5", "part = 'a'")}
    assert counts == {"true": 17, "id = 5": 2, "part = 'a'": 7}
    assert counts == {row_filter: table.scan(row_filter).plan_files().count() for row_filter in counts}
    assert table.scan("false").count_files() == 0
    for entry in (*leaves, mask):
        Path(entry.location.removeprefix("file:")).unlink()
    assert tree.load(spark).scan().count_files() == 17


def test_a_driver_that_is_to_read_nothing_makes_masks_of_inline_vectors_only(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = TreeTable(tmp_path / "t", BY_PART)
    manifest = tree.leaf("m", *(data(f"x:{number}") for number in range(5)))
    tree.snapshot(added=[manifest])
    spark.conf.set("spark.sparkmeta.driver-manifest-bytes", "0")
    try:
        for puffin in (False, True):
            tree.snapshot(existing=[manifest], added=[tree.mask(manifest, [1, 3], puffin=puffin)])
            plan = tree.load(spark).scan().plan_files()
            capsys.readouterr()
            plan.explain("formatted")
            assert ("ArrowEvalPython" in capsys.readouterr().out) == puffin
            assert sorted(row["file_path"] for row in plan.select("file_path").collect()) == ["x:0", "x:2", "x:4"]
    finally:
        spark.conf.unset("spark.sparkmeta.driver-manifest-bytes")


def test_few_entries_are_read_here_as_spark_reads_them(tmp_path: Path, spark: SparkSession) -> None:
    """Entries of the root itself and of leaves, masked or not, with the values that they inherit."""
    tree = TreeTable(tmp_path / "t", BY_PART)
    live, gone = data("x:b1", "b").existing(), data("x:b2", None).deleted()
    leaves = [
        tree.leaf("plain", live, gone, data("x:b3", None)),
        tree.leaf("inline", *(data(f"x:a{number}") for number in range(70))),
        tree.leaf("puffin", *(equality_deletes(f"x:e{number}") for number in range(9))),
    ]
    in_root = [data("x:root1"), equality_deletes("x:root2", "c"), tree.vector("x:b1", [3], "b")]
    tree.snapshot(added=[*leaves, *in_root])
    masks = [tree.mask(leaves[1], [0, 64, 69]), tree.mask(leaves[2], [3, 8], puffin=True)]
    tree.snapshot(existing=[*leaves, *in_root[1:]], deleted=in_root[:1], added=masks)
    state = tree.load(spark).state
    columns = tuple(name for name in FILE_COLUMNS if name not in METRICS_MAP_IDS)
    for projection in (state.projection(columns, (1,)), state.projection(("location", "deletion_vector"))):
        table = state.reader.driver_table(state.manifests, projection)
        assert table is not None
        assert table.schema.equals(projection.schema)
        by_spark = state.entries(state.manifests, projection).toArrow().to_pylist()
        order = itemgetter("manifest", "ordinal")
        assert sorted(table.to_pylist(), key=order) == sorted(by_spark, key=order)
        assert len(table) == 3 + 67 + 7 + 3
    root_manifests = state.manifests.filter(pc.equal(state.manifests.column("file_format"), tree_reader.IN_ROOT))
    root_entries = state.reader.driver_table(root_manifests, projection)
    assert root_entries is not None
    assert len(root_entries) == 3
    assert state.reader.driver_table(state.manifests, projection, len(leaves)) is None


def test_a_mask_of_more_entries_than_the_leaf_has_is_refused_here(tmp_path: Path, spark: SparkSession) -> None:
    """The root itself may claim more entries than the leaf has."""
    tree = TreeTable(tmp_path / "t", BY_PART)
    written = tree.leaf("m", data("x:a1"), data("x:a2"))
    counts = {**written.row["manifest_stats"], "added_files_count": 1000}
    leaf_entry = written.with_fields(record_count=1000, manifest_stats=counts)
    tree.snapshot(added=[leaf_entry])
    tree.snapshot(existing=[leaf_entry], added=[tree.mask(leaf_entry, [1, 500])])
    state = tree.load(spark).state
    with pytest.raises(CorruptFileError, match=rf"{re.escape(leaf_entry.location)}: ordinal is 500: masked, of 2"):
        state.reader.driver_table(state.manifests, state.projection(("location",)))


def test_few_deletes_take_no_job_of_their_own(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = TreeTable(tmp_path / "t", BY_PART)
    leaves = [tree.leaf("m", data("x:a1"), data("x:b1", "b")), tree.leaf("d", equality_deletes("x:e1"))]
    tree.snapshot(added=leaves[:1])
    tree.snapshot(existing=leaves[:1], added=leaves[1:])
    planned = tree.load(spark).scan().plan_files()
    planned.explain("formatted")
    shown = capsys.readouterr().out
    assert "Scan parquet" not in shown
    assert "Exchange hashpartitioning" not in shown
    assert "Aggregate" not in shown
    assert {row.file_path: [delete.file_path for delete in row.deletes] for row in planned.collect()} == {
        "x:a1": ["x:e1"],
        "x:b1": [],
    }


@pytest.mark.parametrize("transform", [None, "identity", "truncate[1000]"])
def test_stats_of_decimals_that_were_widened(tmp_path: Path, spark: SparkSession, transform: str | None) -> None:
    """Leaves that were written before have bounds and partition values of the lower precision."""
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "amount", DecimalType(9, 2)))
    spec = PartitionSpec(PartitionField(2, 1000, parse_transform(transform), "part")) if transform else PartitionSpec()
    catalog = sm.load_catalog("c", type="hadoop", warehouse=str(tmp_path))
    table = catalog.create_table(
        "db.t", schema, spec, properties={"write.tree.direct-files": "1"}, format_version=4, spark=spark
    )
    rows = spark.range(0, 4, 1, 4).selectExpr("id", "CAST(id * 20 + 0.5 AS DECIMAL(9, 2)) AS amount")
    table.append(rows.repartitionByRange(4, "id"))
    table = table.refresh()
    with table.update_schema() as update:
        update.update_column("amount", DecimalType(18, 2))
    table = table.refresh()
    assert table.inspect.manifests().count() > 0
    beyond = "123456789012.34"
    for row_filter, ids in {
        "amount < 20": [0],
        f"amount < {beyond}": [0, 1, 2, 3],
        f"amount > -{beyond} and id > 1": [2, 3],
        f"amount in (20.5, {beyond}, -{beyond})": [1],
        f"amount >= {beyond}": [],
    }.items():
        scan = table.scan(row_filter)
        assert scan.plan_files().count() == scan.count_files() == len(ids), row_filter
        assert sorted(row.id for row in scan.to_df().collect()) == ids, row_filter


@pytest.mark.parametrize("in_root", [True, False], ids=["with stats of the leaf", "without"])
@pytest.mark.parametrize("later", ["timestamp", "timestamp_ns"])
def test_stats_of_dates_that_were_promoted(tmp_path: Path, spark: SparkSession, later: str, in_root: bool) -> None:
    """Leaves that were written before have the days of dates as bounds."""
    days = NestedField(3, "day", DateType())
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "part", StringType()), days)
    tree = TreeTable(tmp_path / "t", schema=schema, types=STATS | {3: "date"})

    def of_days(first: int, last: int) -> dict[str, Any]:
        bounds = {"lower_bound": date(2024, 1, first), "upper_bound": date(2024, 1, last)}
        return stats("a") | {"3": {**bounds, "value_count": 10, "null_value_count": 0}}

    files = [data(path, content_stats=of_days(*days)) for path, days in {"x:d1": (1, 5), "x:d2": (10, 15)}.items()]
    leaf_entry = tree.leaf("m", *files)
    if not in_root:
        leaf_entry = leaf_entry.with_fields(content_stats=stats("a"))
    tree.snapshot(added=[leaf_entry])
    tree.load(spark)
    (path,) = tree.folder.glob("metadata/*.json")
    metadata = json.loads(path.read_text())
    columns = [
        {**column, "type": later} if column["id"] == 3 else column for column in metadata["schemas"][0]["fields"]
    ]
    metadata["schemas"].append({"type": "struct", "schema-id": 1, "fields": columns})
    metadata["current-schema-id"] = 1
    path.write_text(json.dumps(metadata))
    table = sm.load_table(str(path), spark=spark)
    filters = {
        "day = '2024-01-05T00:00:00'": ["x:d1"],
        "day > '2024-01-12T00:00:00'": ["x:d2"],
        "day < '2000-01-01'": [],
    }
    for row_filter, expected in filters.items():
        assert [row["file_path"] for row in table.scan(row_filter).plan_files().collect()] == expected
    bounds = table.inspect.files().selectExpr("cast(readable_metrics.day.lower_bound AS string) AS lower").collect()
    nanos = {"2024-01-01 00:00:00", "2024-01-10 00:00:00"}, {"1704067200000000000", "1704844800000000000"}
    assert {row["lower"] for row in bounds} == nanos[later == "timestamp_ns"]
