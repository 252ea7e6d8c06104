"""Damage is found, told and mended; nothing changes before `commit`, and rows that are not lost stay."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import sparkmeta as sm
from sparkmeta.errors import FileAccessError
from sparkmeta.storage.location import local_path
from tests.conftest import configured
from tests.peers.java import Java
from tests.trees import TreeTable, data

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

Rows: TypeAlias = dict[int, tuple[Any, ...]]
# A function that damages a table, and returns what is found, as (kind, name of the file), and the rows afterwards.
Damage: TypeAlias = "Callable[[sm.Table], tuple[set[tuple[str, str]], Rows]]"

BY_TASKS = {"spark.sparkmeta.driver-manifest-bytes": "0"}
MERGE = {"write.delete.mode": "merge-on-read"}
KINDS: dict[str, tuple[int, dict[str, str]]] = {
    "v1": (1, {}),
    "v2": (2, MERGE),
    "v2, partition deletes": (2, MERGE | {"write.delete.granularity": "partition"}),
    "v3": (3, MERGE),
    "tree": (4, MERGE),
    "tree with leaves": (4, MERGE | {"write.tree.direct-files": "0"}),
    "tree of the Iceberg project": (4, MERGE | {"write.tree.layout": "iceberg"}),
    "leaves of the Iceberg project": (4, MERGE | {"write.tree.layout": "iceberg", "write.tree.direct-files": "0"}),
}
LISTS = [kind for kind, (version, _) in KINDS.items() if version < 4]
WITH_DELETES = [kind for kind, (version, _) in KINDS.items() if version > 1]
PARTITIONS = {"unpartitioned": (), "identity": ("part",), "transforms": ("bucket(2, id)", "day(ts)")}


SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("part", pa.string()),
        pa.field("ts", pa.timestamp("us")),
        pa.field("price", pa.float64()),
        pa.field("place", pa.struct([pa.field("city", pa.string()), pa.field("zip", pa.int32())])),
    ]
)


def arrow_rows(start: int, stop: int) -> pa.Table:
    rows = [
        {
            "id": number,
            "part": None if number % 5 == 0 else f"p {number % 2}",
            "ts": number * 40_000_000_000,
            "price": float("nan") if number % 7 == 0 else number / 4,
            "place": {"city": f"city {number}", "zip": None},
        }
        for number in range(start, stop)
    ]
    return pa.Table.from_pylist(rows, SCHEMA)


def new_table(spark: SparkSession, folder: Path, kind: str, partitions: str = "identity") -> sm.Table:
    """Create a table with three appends, and with deleted rows if its version has deletes."""
    version, properties = KINDS[kind]
    catalog = sm.load_catalog("repair", type="hadoop", warehouse=folder.as_uri())
    layout: dict[str, Any] = {"partition_by": PARTITIONS[partitions], "properties": properties}
    table = catalog.create_table("db.t", SCHEMA, format_version=version, spark=spark, **layout)
    for start in (0, 10, 20):
        table = table.append(arrow_rows(start, start + 10))
    return table.delete("id in (1, 2, 12)") if version > 1 else table


def rows_of(table: sm.Table) -> Rows:
    rows = [*map(tuple, table.scan().to_df().collect())]
    by_id = {row[0]: tuple(map(repr, row)) for row in rows}
    assert len(by_id) == len(rows)
    return by_id


def data_files(table: sm.Table) -> list[str]:
    return sorted(table.inspect.arrow.data_files()["file_path"].to_pylist())


def ids_in(path: str) -> set[int]:
    return set(pq.ParquetFile(local_path(path)).read(columns=["id"])["id"].to_pylist())


def found_in(plan: Any) -> set[tuple[str, str]]:
    """Return the kind and the name of the file of each finding."""
    return {(row.damage, row.file_path.rpartition("/")[2]) for row in plan.to_df().collect()}


def without(rows: Rows, path: str) -> Rows:
    gone = ids_in(path)
    return {key: row for key, row in rows.items() if key not in gone}


def name_of(path: str) -> str:
    return path.rpartition("/")[2]


# -- Damage of files --------------------------------------------------------------------------------------------------


def lose_data_file(table: sm.Table) -> tuple[set[tuple[str, str]], Rows]:
    path = data_files(table)[0]
    rows = without(rows_of(table), path)
    Path(local_path(path)).unlink()
    return {("lost-data-files", name_of(path))}, rows


def lose_two_data_files(table: sm.Table) -> tuple[set[tuple[str, str]], Rows]:
    rows, paths = rows_of(table), data_files(table)[-2:]
    for path in paths:
        rows = without(rows, path)
        Path(local_path(path)).unlink()
    return {("lost-data-files", name_of(path)) for path in paths}, rows


def cut_data_file(table: sm.Table) -> tuple[set[tuple[str, str]], Rows]:
    path = data_files(table)[0]
    rows, file = without(rows_of(table), path), Path(local_path(path))
    file.write_bytes(file.read_bytes()[:-9])
    name = name_of(path)
    return {("unreadable-data-files", name), ("wrong-sizes", name)}, rows


def lose_deletes(table: sm.Table) -> tuple[set[tuple[str, str]], Rows]:
    """Lose a file of deletes: the rows that it deleted come back."""
    deletes = table.inspect.arrow.delete_files()
    path = min(deletes["file_path"].to_pylist())
    before = rows_of(table)
    named = deletes.filter(pc.equal(deletes["file_path"], path))["referenced_data_file"].to_pylist()
    everything = {row["id"]: row for row in arrow_rows(0, 30).to_pylist()}
    back = {1, 2, 12} & set().union(*(ids_in(data) for data in data_files(table) if data in named or None in named))
    if None in named:  # of one partition
        files = pq.ParquetFile(local_path(path)).read()["file_path"].to_pylist()
        back = {1, 2, 12} & set().union(*(ids_in(data) for data in data_files(table) if data in files))
    Path(local_path(path)).unlink()
    assert back
    values = {key: everything[key] for key in back}
    rows = before | {key: ("back", row["part"]) for key, row in values.items()}
    return {("lost-delete-files", name_of(path))}, rows


def replace_data_file(table: sm.Table) -> tuple[set[tuple[str, str]], Rows]:
    """Replace a file without deletes by another one of more and greater values, as some tools do."""
    undeleted = [path for path in data_files(table) if not ids_in(path) & {1, 2, 12}]
    path = min(undeleted, key=lambda path: min(ids_in(path)))  # row ids of other files follow
    rows, file = rows_of(table), local_path(path)
    old = pq.ParquetFile(file).read()
    more = old.set_column(0, old.schema.field(0), pc.add(old["id"], pa.scalar(1_000, pa.int64())))
    pq.write_table(pa.concat_tables([old, more]), file)
    added = {number + 1_000: ("new",) for number in ids_in(path) if number < 1_000}
    name = name_of(path)
    return {(kind, name) for kind in ("wrong-sizes", "wrong-counts", "wrong-statistics")}, rows | added


def replace_values(table: sm.Table) -> tuple[set[tuple[str, str]], Rows]:
    """Replace a file by one of as many rows."""
    path = data_files(table)[0]
    rows, file = rows_of(table), local_path(path)
    old = pq.ParquetFile(file).read()
    changed = old.set_column(0, old.schema.field(0), pc.add(old["id"], pa.scalar(1_000, pa.int64())))
    size = Path(file).stat().st_size
    pq.write_table(changed, file)
    of_file = {number - 1_000 for number in ids_in(path)}
    after = {key: row for key, row in rows.items() if key not in of_file}
    after |= {key + 1_000: ("new",) for key in of_file & rows.keys()}
    is_resized = Path(file).stat().st_size != size
    kinds = ["wrong-statistics", *(["wrong-sizes"] if is_resized else [])]
    return {(kind, name_of(path)) for kind in kinds}, after


DAMAGE: dict[str, Damage] = {
    function.__name__: function
    for function in (lose_data_file, lose_two_data_files, cut_data_file, replace_data_file, replace_values)
}
LAYOUTS = [(kind, "identity") for kind in KINDS] + [
    (kind, each) for kind in ("v2", "v3", "tree") for each in PARTITIONS
]
CASES = [(name, *layout, by) for name in DAMAGE for layout in sorted({*LAYOUTS}) for by in ("driver", "tasks")]
CASES += [("lose_deletes", kind, "identity", by) for kind in WITH_DELETES for by in ("driver", "tasks")]


@pytest.mark.parametrize(("name", "kind", "layout", "by"), CASES)
def test_files(spark: SparkSession, tmp_path: Path, name: str, kind: str, layout: str, by: str) -> None:
    table = new_table(spark, tmp_path, kind, layout)
    assert table.maintenance.repair().summary().is_empty
    expected, rows = (DAMAGE | {"lose_deletes": lose_deletes})[name](table)
    with configured(spark, BY_TASKS if by == "tasks" else {}):
        table = sm.load_table(table.metadata.location, spark=spark)
        if name == "replace_data_file" and kind not in LISTS:
            plan = table.maintenance.repair(sorted({damage for damage, _ in expected}))
            assert found_in(plan) == expected
            with pytest.raises(sm.UnsupportedError, match="remove the file, and add it again"):
                plan.commit()
            return
        mended = assert_mended(table, expected)
        assert_rows(mended, rows)
        assert_filters(mended)
        assert_totals(mended)
        if mended.metadata.format_version == 3:
            row_ids = mended.scan().select("_row_id").to_arrow()["_row_id"].to_pylist()
            assert len(set(row_ids)) == len(row_ids), "each row has an id of its own"


def assert_totals(table: sm.Table) -> None:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert int(snapshot.summary["total-data-files"]) == len(data_files(table))


def assert_mended(table: sm.Table, expected: set[tuple[str, str]]) -> sm.Table:
    """Assert that a table has damage, which only a commit for its kinds mends. Return the mended table."""
    version = table.metadata_location
    plan = table.maintenance.repair()
    summary = plan.summary()
    assert found_in(plan) == expected
    kinds = sorted({kind for kind, _ in expected})
    assert sorted(summary.damage) == kinds
    assert sum(summary.damage.values()) == len(plan.to_df().collect())
    assert all(row.problem and row.mending for row in plan.to_df().collect())
    with pytest.raises(sm.ValidationError, match="name the kinds of damage to mend"):
        plan.commit()
    assert table.refresh().metadata_location == version
    mended = table.maintenance.repair(kinds).commit()
    left = mended.refresh().maintenance.repair().summary()
    # Deletes of files that are gone.
    assert left.damage.keys() <= {"dangling-deletes"}
    assert left.is_empty or mended.metadata.format_version == 2
    assert not mended.arrow.check().to_pylist()
    return mended


def assert_rows(table: sm.Table, expected: Rows) -> None:
    rows = rows_of(table)
    assert rows.keys() == expected.keys()
    assert {key: row for key, row in rows.items() if len(expected[key]) == len(row)} == {
        key: row for key, row in expected.items() if len(row) == len(rows[key])
    }
    if table.metadata.format_version < 4:
        java = Java(table.state.spark).table(table.metadata_location).rows()
        assert {row["id"] for row in java.collect()} == expected.keys()


def assert_filters(table: sm.Table) -> None:
    """Assert that no row is lost to pruning by statistics."""
    ids = sorted(rows_of(table))
    for number in (ids[0], ids[-1]):
        assert table.scan(f"id = {number}").count() == 1
    assert table.scan("id >= 1000").count() == sum(number >= 1000 for number in ids)
    assert table.scan(f"id <= {ids[-1]}").count() == len(ids)


@pytest.mark.parametrize("kind", KINDS)
def test_files_of_older_schemas(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """Files are compared by the ids of columns, which were renamed, dropped, added and promoted since."""
    table = new_table(spark, tmp_path, kind)
    with table.update_schema() as change:
        change.rename_column("price", "cost").delete_column("ts").add_column("more", "long")
    table = table.refresh()
    assert table.maintenance.repair().summary().is_empty
    expected, rows = replace_values(table)
    mended = assert_mended(table.refresh(), expected)
    assert rows_of(mended).keys() == rows.keys()
    assert_filters(mended)


# -- Damage of entries ------------------------------------------------------------------------------------------------


def with_repeated(table: sm.Table, paths: list[str]) -> sm.Table:
    """Add files again, as Java's fast appends do."""
    files = table.inspect.arrow.data_files()
    with table.transaction() as change:
        repeated = files.filter(pc.is_in(files["file_path"], pa.array(paths)))
        change.update_snapshot().append(repeated).assume_new_files()
    return table.refresh()


@pytest.mark.parametrize(("kind", "by"), [(kind, by) for kind in KINDS for by in ("driver", "tasks")])
def test_repeated_files(spark: SparkSession, tmp_path: Path, kind: str, by: str) -> None:
    """A file that was added twice is read once, with all of its deletes, and expiry does not delete it."""
    table = new_table(spark, tmp_path, kind)
    if kind not in LISTS:
        table = table.maintenance.compact_manifests(max_root_files=0).commit()
    rows, paths = rows_of(table), data_files(table)[:3]
    table = with_repeated(table, paths)
    assert table.scan().count() > len(rows)
    with configured(spark, BY_TASKS if by == "tasks" else {}):
        table = sm.load_table(table.metadata.location, spark=spark)
        mended = assert_mended(table, {("repeated-files", name_of(path)) for path in paths})
    assert_rows(mended, rows)
    assert_totals(mended)
    assert mended.current_snapshot().operation == "replace"
    later = mended.append(arrow_rows(90, 91))
    later.maintenance.expire_snapshots(older_than=2**62, retain_last=1).commit()
    assert rows_of(later.refresh()).keys() == {*rows, 90}
    assert later.refresh().maintenance.repair().summary().is_empty


@pytest.mark.java
@pytest.mark.parametrize("kind", LISTS)
def test_java_expires_what_was_mended(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """Java's own expiry, which deletes the files of DELETED entries, keeps corrected and repeated files."""
    table = new_table(spark, tmp_path, kind)
    expected, rows = replace_values(table)
    table = with_repeated(table, data_files(table)[:2])
    table.maintenance.repair(["repeated-files", *sorted({kind for kind, _ in expected})]).commit()
    java = Java(spark)
    tables = java.iceberg.hadoop.HadoopTables(java.session.sessionState().newHadoopConf())
    loaded = tables.load(table.metadata.location)
    loaded.newFastAppend().commit()
    loaded.refresh()
    loaded.expireSnapshots().expireOlderThan(2**62).retainLast(1).commit()
    after = sm.load_table(table.metadata.location, spark=spark)
    assert len(after.snapshots()) == 1
    assert rows_of(after).keys() == rows.keys()


def rewrite_avro(location: str, change: Callable[[dict[str, Any]], object]) -> int:
    """Change the records of an Avro file in place, and return its new length."""
    path = Path(local_path(location))
    reader = fastavro.reader(io.BytesIO(path.read_bytes()))
    schema, metadata = json.loads(reader.metadata["avro.schema"]), reader.metadata
    records = [*reader]
    for record in records:
        change(record)  # type: ignore[arg-type]
    extra = {key: value for key, value in metadata.items() if not key.startswith("avro.")}
    with path.open("wb") as out:
        fastavro.writer(out, schema, records, codec="deflate", metadata=extra)
    return path.stat().st_size


def list_of(table: sm.Table) -> str:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.manifest_list is not None
    return snapshot.manifest_list


def change_entries(table: sm.Table, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the entries of all data manifests of a table in place."""

    def of_manifest(row: dict[str, Any]) -> None:
        if not row.get("content"):
            row["manifest_length"] = rewrite_avro(row["manifest_path"], change)

    rewrite_avro(list_of(table), of_manifest)


def swap_bounds(entry: dict[str, Any]) -> None:
    file = entry["data_file"]
    file["lower_bounds"], file["upper_bounds"] = file["upper_bounds"], file["lower_bounds"]


def lower_all_bounds(entry: dict[str, Any]) -> None:
    """Make the upper bound of `id` too small, so that scans lose rows."""
    for bound in entry["data_file"]["upper_bounds"]:
        if bound["key"] == 1:
            bound["value"] = (-5).to_bytes(8, "little", signed=True)
    for bound in entry["data_file"]["lower_bounds"]:
        if bound["key"] == 1:
            bound["value"] = (-9).to_bytes(8, "little", signed=True)


def no_nulls(entry: dict[str, Any]) -> None:
    for number in entry["data_file"]["null_value_counts"]:
        number["value"] = 0


CHANGES = {change.__name__: change for change in (swap_bounds, lower_all_bounds, no_nulls)}


@pytest.mark.parametrize(("kind", "change"), [(kind, change) for kind in LISTS for change in CHANGES])
def test_wrong_statistics(spark: SparkSession, tmp_path: Path, kind: str, change: str) -> None:
    table = new_table(spark, tmp_path, kind, "transforms")
    rows, before = rows_of(table), table.inspect.arrow.entries()
    with_nulls = [
        path for path in data_files(table) if None in pq.ParquetFile(local_path(path)).read()["part"].to_pylist()
    ]
    several = [path for path in data_files(table) if len(ids_in(path)) > 1]
    damaged = {"no_nulls": with_nulls, "swap_bounds": several}.get(change, data_files(table))
    change_entries(table, CHANGES[change])
    table = sm.load_table(table.metadata.location, spark=spark)
    if change == "lower_all_bounds":
        assert table.scan("id > 3").count() == 0
    expected = {("wrong-statistics", name_of(path)) for path in damaged}
    plan = table.maintenance.repair()
    assert expected <= found_in(plan)
    mended = table.maintenance.repair(["wrong-statistics"]).commit()
    assert mended.maintenance.repair().summary().is_empty
    assert_rows(mended, rows)
    assert mended.scan("id > 3").count() == sum(key > 3 for key in rows)
    assert mended.scan("part is null").count() == sum(row[1] == "None" for row in rows.values())
    numbers = ("sequence_number", "file_sequence_number")
    after = {row["data_file"]["file_path"]: row for row in mended.inspect.arrow.entries().to_pylist()}
    for row in before.to_pylist():
        if row["status"] == 2:
            continue
        new, path = after[row["data_file"]["file_path"]], row["data_file"]["file_path"]
        assert {name: new[name] for name in numbers} == {name: row[name] for name in numbers}, path
        same = ("partition", "record_count", "file_size_in_bytes", "sort_order_id", "split_offsets", "spec_id")
        assert {name: new["data_file"].get(name) for name in same} == {
            name: row["data_file"].get(name) for name in same
        }
    assert mended.current_snapshot().operation == "replace"


@pytest.mark.parametrize("kind", LISTS)
@pytest.mark.parametrize("surplus", [3, -300])
def test_wrong_counts_in_a_list(spark: SparkSession, tmp_path: Path, kind: str, surplus: int) -> None:
    table = new_table(spark, tmp_path, kind)
    rows, manifests = rows_of(table), []

    def change(row: dict[str, Any]) -> None:
        name = next(name for name in ("added_files_count", "added_data_files_count") if name in row)
        row[name] += 5
        row["manifest_length"] += surplus
        manifests.append(name_of(row["manifest_path"]))

    rewrite_avro(list_of(table), change)
    table = sm.load_table(table.metadata.location, spark=spark)
    mended = assert_mended(table, {("wrong-manifest-counts", name) for name in manifests})
    assert_rows(mended, rows)


def test_wrong_counts_in_a_root(spark: SparkSession, tmp_path: Path) -> None:
    tree = TreeTable(tmp_path / "t")
    leaves = [tree.leaf(f"m{number}", *(data(f"x:d{number}{part}") for part in range(3))) for number in range(2)]
    counts = {**leaves[0].row["manifest_stats"], "added_files_count": 4}
    tree.snapshot(added=[leaves[0].with_fields(record_count=4, manifest_stats=counts), leaves[1]])
    table = tree.load(spark)
    plan = table.maintenance.repair(["wrong-manifest-counts"])
    assert found_in(plan) == {("wrong-manifest-counts", "m0.parquet")}
    mended = plan.commit()
    assert not mended.arrow.check().to_pylist()
    assert sorted(data_files(mended)) == sorted(data_files(table))


@pytest.mark.parametrize("kind", ["v2", "v2, partition deletes"])
def test_dangling_deletes(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    table = new_table(spark, tmp_path, kind)
    deletes = sorted(table.inspect.arrow.delete_files()["file_path"].to_pylist())
    with table.transaction() as change:
        change.update_snapshot().delete(table.inspect.arrow.data_files().select(["file_path"]))
    mended = assert_mended(table.refresh(), {("dangling-deletes", name_of(path)) for path in deletes})
    assert rows_of(mended) == {}


# -- Damage of manifests and of the hint ------------------------------------------------------------------------------


def manifests_of(table: sm.Table) -> list[str]:
    manifests = table.inspect.arrow.manifests().to_pylist()
    return [row["path"] for row in manifests if row["content"] == 0 and row["existing_data_files_count"] == 0]


LOST = [(kind, cut) for kind in KINDS if kind != "tree" for cut in (False, True)]


@pytest.mark.parametrize(("kind", "cut"), LOST)
def test_a_lost_manifest(spark: SparkSession, tmp_path: Path, kind: str, cut: bool) -> None:
    table = new_table(spark, tmp_path, kind)
    if kind == "tree of the Iceberg project":
        table = table.maintenance.compact_manifests(max_root_files=0).commit()
        path = table.inspect.arrow.manifests()["path"].to_pylist()[0]
    else:
        path = manifests_of(table)[0]
    rows, file = rows_of(table), Path(local_path(path))
    lost_files = files_of(table, path)
    for name in lost_files:
        rows = without(rows, name)
    if cut:
        file.write_bytes(file.read_bytes()[:-40])
    else:
        file.unlink()
    table = table.refresh()
    plan = table.maintenance.repair()
    summary = plan.summary()
    assert summary.damage.keys() == {"lost-manifests"}
    assert not summary.checks_entries
    # Rows of entries that the root masks are counted too.
    masked = {row["id"] for row in arrow_rows(0, 10).to_pylist()} if kind == "leaves of the Iceberg project" else set()
    lost_ids = set().union(*map(ids_in, lost_files))
    assert len(lost_ids) <= summary.lost_rows <= len(lost_ids | masked)
    assert {name_of(path)} == {name for _, name in found_in(plan)}
    mended = table.maintenance.repair(["lost-manifests"]).commit()
    assert_rows(mended, rows)
    assert_totals(mended)
    left = mended.maintenance.repair()
    assert set(left.summary().damage) <= {"dangling-deletes"}
    assert [snapshot.snapshot_id for snapshot in mended.snapshots()][-1] == mended.current_snapshot().snapshot_id
    # Snapshots with the manifest are gone.
    for snapshot in mended.snapshots():
        mended.scan(snapshot_id=snapshot.snapshot_id).count()


def files_of(table: sm.Table, manifest: str) -> list[str]:
    plan = table.scan().arrow.plan_files()
    return plan.filter(pc.equal(plan["manifest_path"], manifest))["file_path"].to_pylist()


@pytest.mark.parametrize("kind", KINDS)
def test_a_lost_list(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """Without the list of its head, a branch goes back to the newest snapshot that is complete."""
    table = new_table(spark, tmp_path, kind)
    older = table.append(arrow_rows(50, 52))
    rows, newer = rows_of(older), older.append(arrow_rows(60, 62))
    head = newer.current_snapshot()
    assert head is not None
    Path(local_path(head.manifests_location or "")).unlink()
    plan = newer.refresh().maintenance.repair()
    assert plan.summary().lost_snapshots == (head.snapshot_id,)
    assert plan.summary().lost_rows is None
    assert "an unknown number of rows is lost" in str(plan.summary())
    mended = newer.refresh().maintenance.repair(["lost-manifests"]).commit()
    assert mended.current_snapshot().snapshot_id == older.current_snapshot().snapshot_id
    assert mended.metadata.snapshot_by_id(head.snapshot_id) is None
    assert_rows(mended, rows)
    assert mended.maintenance.repair().summary().is_empty


@pytest.mark.parametrize("kind", KINDS)
def test_a_lost_list_of_an_old_snapshot(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    table = new_table(spark, tmp_path, kind)
    rows, (first, second, *_) = rows_of(table), table.snapshots()
    table.manage_snapshots().create_tag(second.snapshot_id, "kept").commit()
    for snapshot in (first, second):
        Path(local_path(table.metadata.snapshot_by_id(snapshot.snapshot_id).manifests_location)).unlink()
    plan = table.refresh().maintenance.repair(["lost-manifests"])
    assert plan.summary().lost_snapshots == tuple(sorted((first.snapshot_id, second.snapshot_id)))
    mended = plan.commit()
    assert mended.metadata.snapshot_by_id(first.snapshot_id) is None
    assert mended.metadata.snapshot_by_id(second.snapshot_id) is not None, "a tag refers to it"
    assert mended.current_snapshot() == table.current_snapshot()
    assert_rows(mended, rows)


@pytest.mark.parametrize("hint", [None, "1", "x"])
def test_the_version_hint(spark: SparkSession, tmp_path: Path, hint: str | None) -> None:
    table = new_table(spark, tmp_path, "v2")
    path = tmp_path / "db" / "t" / "metadata" / "version-hint.text"
    current = path.read_text()
    path.unlink()
    if hint is not None:
        path.write_text(hint)
    table = sm.load_table(table.metadata.location, spark=spark)
    assert_mended(table, {("version-hint", "version-hint.text")})
    assert path.read_text() == current


# -- Beside other commits ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_beside_an_append(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    table = new_table(spark, tmp_path, kind)
    expected, rows = replace_values(table)
    table = table.refresh()
    plan = table.maintenance.repair(sorted({kind for kind, _ in expected}))
    assert found_in(plan) == expected
    table.append(arrow_rows(70, 73))
    mended = plan.commit()
    assert_rows(mended, rows | dict.fromkeys(range(70, 73), ("new",)))
    assert mended.maintenance.repair().summary().is_empty


@pytest.mark.parametrize("kind", ["v2", "v3"])
def test_beside_rewritten_manifests(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    table = new_table(spark, tmp_path, kind)
    expected, _ = replace_data_file(table)
    plan = table.refresh().maintenance.repair(sorted({kind for kind, _ in expected}))
    assert found_in(plan) == expected
    changed = table.maintenance.rewrite_manifests().commit()
    with pytest.raises(sm.CommitConflictError, match="plan again"):
        plan.commit()
    assert table.refresh().metadata_location == changed.metadata_location


def test_an_inventory(spark: SparkSession, tmp_path: Path) -> None:
    table = new_table(spark, tmp_path, "v3")
    expected, rows = lose_data_file(table)
    files = [path for path in (tmp_path / "db").rglob("*") if path.is_file()]
    listed = [(f"file:{path}", 1_700_000_000, path.stat().st_size) for path in files]
    listed += [(path, 1, 7) for path, *_ in listed]
    frame = spark.createDataFrame(listed, "file_path string, seconds bigint, size bigint")
    inventory = frame.selectExpr("file_path", "timestamp_seconds(seconds) AS last_modified", "size")
    kinds = ["lost-data-files", "lost-delete-files", "wrong-sizes"]
    assert found_in(table.maintenance.repair(kinds, files=inventory)) == expected
    mended = table.maintenance.repair(["lost-data-files"], files=inventory).commit()
    assert_rows(mended, rows)
    # Files that are newer than the inventory are there.
    newer = mended.append(arrow_rows(40, 44))
    assert newer.maintenance.repair(kinds, files=inventory).summary().is_empty
    elsewhere = inventory.selectExpr("concat('s3://bucket', file_path) AS file_path", "last_modified", "size")
    assert newer.maintenance.repair(kinds, files=elsewhere).summary().is_empty


def test_a_folder_that_is_not_mounted(spark: SparkSession, tmp_path: Path) -> None:
    """If no file is there, this is no damage of files. Files that come back stay in the table."""
    table = new_table(spark, tmp_path, "v2")
    folder, away = tmp_path / "db" / "t" / "data", tmp_path / "away"
    folder.rename(away)
    with pytest.raises(sm.ValidationError, match="no file of the table is there: its folder may be moved"):
        table.maintenance.repair(["lost-data-files"]).summary()
    away.rename(folder)
    path = Path(local_path(data_files(table)[0]))
    path.rename(tmp_path / "kept")
    plan = table.maintenance.repair(["lost-data-files"])
    assert plan.summary().damage == {"lost-data-files": 1}
    (tmp_path / "kept").rename(path)
    with pytest.raises(sm.CommitConflictError, match="the files are back: plan again"):
        plan.commit()
    assert table.refresh().metadata_location == table.metadata_location


def test_a_store_that_refuses(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest or file that can't be opened now is no damage."""
    table = new_table(spark, tmp_path, "v2")

    def refuse(self: object, location: str, *_: object) -> bytes:
        raise FileAccessError(f"{location}: AWS Error SLOW_DOWN")

    monkeypatch.setattr("sparkmeta.storage.executors.ExecutorReader.read_range", refuse)
    with pytest.raises(FileAccessError, match="SLOW_DOWN"):
        table.maintenance.repair(["lost-manifests"]).summary()


def test_encrypted_files_are_not_unreadable(spark: SparkSession, tmp_path: Path) -> None:
    """A Parquet file with an encrypted footer stays."""
    table = new_table(spark, tmp_path, "v2")
    path = Path(local_path(data_files(table)[0]))
    content = path.read_bytes()
    path.write_bytes(b"PARE" + content[4:-4] + b"PARE")
    assert table.maintenance.repair(["unreadable-data-files"]).summary().is_empty


@pytest.mark.parametrize("kind", ["v2", "v3"])
def test_a_delete_file_that_is_repeated(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """The newest entry of an equality delete file stays, so that no row comes back."""
    table = new_table(spark, tmp_path, kind, "unpartitioned")
    table = table.equality_delete(pa.table({"id": pa.array([5, 15], pa.int64())}), equality_cols=["id"])
    deletes = table.inspect.arrow.delete_files()
    equality = deletes.filter(pc.equal(deletes["content"], 2))
    table = table.append(arrow_rows(5, 6))
    with table.transaction() as change:
        change.update_snapshot().row_delta(deletes=equality).assume_new_files()
    table = table.refresh()
    rows = rows_of(table)
    assert not {5, 15} & rows.keys()
    mended = table.maintenance.repair(["repeated-files"]).commit()
    assert rows_of(mended) == rows


def test_lost_and_dangling(spark: SparkSession, tmp_path: Path) -> None:
    """A delete file that is lost, and would apply to no data file, is removed once."""
    table = new_table(spark, tmp_path, "v2, partition deletes")
    deletes = table.inspect.arrow.delete_files()["file_path"].to_pylist()
    with table.transaction() as change:
        change.update_snapshot().delete(table.inspect.arrow.data_files().select(["file_path"]))
    table = table.refresh().append(arrow_rows(50, 52))
    Path(local_path(deletes[0])).unlink()
    kinds = ["lost-delete-files", "dangling-deletes"]
    mended = table.refresh().maintenance.repair(kinds).commit()
    assert mended.maintenance.repair().summary().is_empty
    assert rows_of(mended).keys() == {50, 51}


def test_an_outdated_table_and_the_hint(spark: SparkSession, tmp_path: Path) -> None:
    """The hint of a newer version is no damage for a table that was opened before."""
    table = new_table(spark, tmp_path, "v2")
    table.append(arrow_rows(60, 61))
    assert table.maintenance.repair(["version-hint"]).summary().is_empty


def test_what_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    table = new_table(spark, tmp_path, "v2")
    for kinds in (["lost"], [], ["wrong-sizes", "wrong-sizes"], "wrong-sizes"):
        with pytest.raises(sm.ValidationError, match="expected kinds of damage, each once: lost-manifests"):
            table.maintenance.repair(kinds)
    empty = sm.load_catalog("e", type="hadoop", warehouse=tmp_path.as_uri()).create_table("db.e", SCHEMA, spark=spark)
    assert empty.maintenance.repair().summary().is_empty
    assert empty.maintenance.repair().commit() is empty
