"""Trees in the layout of the Iceberg project: tables that its prototype wrote, with its own plans and rows."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import sparkmeta as sm
from sparkmeta.errors import CorruptFileError
from tests.conformance.tree_corpus import NAMES, TABLE_NAMES, TABLES, Answer, answers, unpack_tables
from tests.conftest import configured

# Spark reads what the driver would read of other tables.
BY_SPARK = ("upgraded_v3", "s_manifest_dv_big")
EVERYWHERE = pytest.mark.parametrize(
    ("group", "name"),
    [pytest.param(*each, marks=pytest.mark.jvm if each[1] in BY_SPARK else (), id=each[1]) for each in NAMES],
)
IN_TASKS = {"spark.sparkmeta.driver-manifest-bytes": "0"}


@pytest.fixture(scope="module", autouse=True)
def tables() -> None:
    unpack_tables()


def load(group: str, name: str, **options: Any) -> tuple[sm.Table, list[Answer]]:
    """Return a table, and the answers for its snapshots."""
    answer = answers()[f"{group}/{name}.json"]
    return sm.load_table(answer["metadata_file"], **options), answer["snapshots"]


def tracked(group: str, name: str) -> dict[tuple[int, str], dict[str, Answer]]:
    """Return (snapshot id, location of a manifest) -> location of a file -> its live entry as Iceberg 1.12 reads it."""
    snapshots = answers()[f"{group}/{name}.tracked.json"]["snapshots"]
    return {
        (snapshot["snapshot_id"], location): {
            entry["location"]: entry for entry in entries if entry["status"] in ("ADDED", "EXISTING", "MODIFIED")
        }
        for snapshot in snapshots
        for location, entries in [("root", snapshot["root"]), *snapshot["leaves"].items()]
    }


def planned(rows: Sequence[dict[str, Any]]) -> list[Any]:
    """Return what the answers tell of planned files."""
    return sorted(
        (
            row["file_path"],
            row["record_count"],
            row["file_size_in_bytes"],
            row["spec_id"],
            row["data_sequence_number"],
            sorted(
                (delete["content"], delete["file_path"], delete["content_offset"], delete["content_size_in_bytes"],
                 delete["record_count"], delete["equality_ids"])
                for delete in row["deletes"]
            ),
        )
        for row in rows
    )  # fmt: skip


def answered(files: Sequence[Answer]) -> list[Any]:
    """Return the planned files of an answer as `planned` does."""
    contents = {"POSITION_DELETES": 1, "EQUALITY_DELETES": 2}
    return sorted(
        (
            file["path"],
            file["record_count"],
            file["file_size"],
            file["spec_id"],
            file["data_sequence_number"],
            sorted(
                (contents[delete["content"]], delete["path"], delete["content_offset"], delete["content_size"],
                 delete["record_count"], delete["equality_ids"])
                for delete in file["deletes"]
            ),
        )
        for file in files
    )  # fmt: skip


def shown(rows: Sequence[dict[str, Any]], table: sm.Table) -> list[Any]:
    """Return rows as the answers write them. Nanoseconds are numbers in Arrow."""
    kinds = {field.name: str(field.field_type) for schema in table.schemas().values() for field in schema.fields}
    return [{name: typed(value, kinds[name]) for name, value in row.items()} for row in rows]


def typed(value: Any, kind: str) -> Any:
    """Return a value of a column as the answers write it."""
    if value is None or not (kind == "time" or kind.endswith("_ns")):
        return text(value)
    if kind == "time":
        return (datetime.fromtimestamp(0, UTC) + timedelta(microseconds=value)).time().isoformat()
    seconds, rest = divmod(value, 1_000_000_000)
    fraction = f".{rest:09d}" if rest else ""
    zone = "Z" if kind.startswith("timestamptz") else ""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}{fraction}{zone}"


def text(value: Any) -> Any:
    """Return a value as the answers write it."""
    match value:
        case float() if math.isnan(value):
            return "NaN"
        case datetime():
            # Java leaves out seconds that are zero.
            return re.sub(r"(T\d\d:\d\d):00(?=Z?$)", r"\1", value.isoformat().replace("+00:00", "Z"))
        case date() | time():
            return value.isoformat()
        case Decimal() | UUID():
            return str(value)
        case bytes():
            return f"0x{value.hex()}"
        case dict():
            return {key: text(child) for key, child in value.items()}
        case list() | tuple():
            return [text(child) for child in value]
    return value


def sorted_rows(rows: Sequence[Any]) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


Plan = Callable[[sm.Scan], list[dict[str, Any]]]


@pytest.fixture(params=["driver", "spark", "tasks", "colocated"])
def plan(request: pytest.FixtureRequest) -> Iterator[Plan]:
    """Plan on the driver without Spark, in Spark, or in tasks, which may read data files and their deletes together."""
    if request.param == "driver":
        yield lambda scan: scan.arrow.plan_files().to_pylist()
        return
    spark = request.getfixturevalue("spark")

    def run(scan: sm.Scan) -> list[dict[str, Any]]:
        return [row.asDict(recursive=True) for row in scan.plan_files().collect()]

    together = {"spark.sparkmeta.planning": "colocated"} if request.param == "colocated" else {}
    with configured(spark, {} if request.param == "spark" else IN_TASKS | together):
        yield run


@EVERYWHERE
def test_plans(plan: Plan, group: str, name: str) -> None:
    table, snapshots = load(group, name)
    assert snapshots or name == "empty"
    for snapshot in snapshots:
        rows = plan(table.scan(snapshot_id=snapshot["snapshot_id"]))
        if group == "proto":
            assert planned(rows) == answered(snapshot["files"]), snapshot["step"]
        else:
            assert sorted(row["file_path"] for row in rows) == sorted(snapshot["files"])
            for row in rows:
                expected = snapshot["files"][row["file_path"]]
                vectors = [
                    f"{delete['file_path']}@{delete['content_offset']}+{delete['content_size_in_bytes']}"
                    f" n={delete['record_count']}"
                    for delete in row["deletes"]
                ]
                assert row["data_sequence_number"] == expected["data_sequence_number"]
                assert row["first_row_id"] == expected["first_row_id"]
                assert vectors == ([expected["dv"]] if "dv" in expected else [])
        entries = tracked(group, name)
        for row in rows:
            of_root = entries.get((snapshot["snapshot_id"], "root"), {}).get(row["file_path"])
            entry = of_root or entries.get((snapshot["snapshot_id"], row["manifest_path"]), {}).get(row["file_path"])
            if entry is not None:
                assert row["first_row_id"] == entry["first_row_id"], snapshot
                assert of_root or row["manifest_pos"] == entry["pos"]


@EVERYWHERE
def test_rows(group: str, name: str) -> None:
    table, snapshots = load(group, name)
    for snapshot in snapshots:
        rows = table.scan(snapshot_id=snapshot["snapshot_id"]).to_arrow().to_pylist()
        assert sorted_rows(shown(rows, table)) == sorted_rows(snapshot["rows"])


@EVERYWHERE
def test_rows_in_spark(spark: SparkSession, group: str, name: str) -> None:
    table, snapshots = load(group, name, spark=spark)
    with configured(spark, {"spark.sql.session.timeZone": "UTC"}):
        for snapshot in snapshots[-1:]:
            rows = table.scan(snapshot_id=snapshot["snapshot_id"]).to_df().toArrow().to_pylist()
            assert sorted_rows(shown(rows, table)) == sorted_rows(snapshot["rows"])


@pytest.mark.parametrize("name", [name for name in TABLE_NAMES["proto"] if name not in ("empty", "eq_deletes")])
def test_changes(spark: SparkSession, name: str) -> None:
    """Changes of the whole history are the answers' changes of each snapshot."""
    table, snapshots = load("proto", name, spark=spark)
    columns = ["content", "file_path", "record_count", "content_offset"]
    ids = {"DATA": 0, "POSITION_DELETES": 1, "EQUALITY_DELETES": 2}
    expected = [
        (change, snapshot["snapshot_id"], ids[file["content"]], file["path"], file["record_count"])
        for snapshot in snapshots
        for key in ("added_data_files", "removed_data_files", "added_delete_files", "removed_delete_files")
        for change in [key.split("_")[0]]
        for file in snapshot[key]
    ]
    changes = table.file_changes(None, columns=columns).collect()
    in_range = {row.snapshot_id for row in changes}
    assert sorted(
        (row.change_type, row.snapshot_id, row.content, row.file_path, row.record_count) for row in changes
    ) == sorted(change for change in expected if change[1] in in_range)


@EVERYWHERE
def test_metadata_tables_agree(spark: SparkSession, group: str, name: str) -> None:
    table, snapshots = load(group, name, spark=spark)
    files = table.inspect.arrow.files().to_pylist()
    if not snapshots:
        assert not files
        return
    expected = table.scan().arrow.plan_files().to_pylist()
    deletes = [delete for row in expected for delete in row["deletes"]]
    assert sorted(row["file_path"] for row in files if row["content"] == 0) == sorted(
        row["file_path"] for row in expected
    )
    vectors = {(row["file_path"], row["content_offset"]) for row in files if row["content"] == 1}
    assert vectors == {(row["file_path"], row["content_offset"]) for row in deletes if row["content"] == 1}
    in_spark = [row.asDict(recursive=True) for row in table.inspect.files().collect()]
    assert len(in_spark) == len(files)
    entries = table.inspect.arrow.entries().to_pylist()
    assert {row["status"] for row in entries} <= {0, 1, 2}
    assert sum(row["file_count"] for row in table.inspect.arrow.partitions().to_pylist()) == len(expected)
    assert table.inspect.arrow.manifests().num_rows
    assert table.inspect.all_files().count() >= len(files)


@EVERYWHERE
def test_checks_are_clean(group: str, name: str) -> None:
    table, snapshots = load(group, name)
    for snapshot in snapshots:
        assert table.arrow.check(snapshot["snapshot_id"]).to_pylist() == []


def writable(group: str, name: str, folder: Path, spark: SparkSession) -> sm.Table:
    """Return a table of the corpus whose new files go to another folder."""
    answer = answers()[f"{group}/{name}.json"]
    metadata = json.loads(Path(answer["metadata_file"].removeprefix("file:")).read_text())
    properties = metadata["properties"] | {"write.delete.mode": "merge-on-read"}
    target = folder / "metadata" / "v1.metadata.json"
    target.parent.mkdir()
    target.write_text(json.dumps(metadata | {"location": folder.as_uri(), "properties": properties}))
    return sm.load_table(str(folder), spark=spark)


# Empty tables, and those with relative locations, which can't move.
UNCHANGEABLE = ("empty", "s_flat_root_relative")


@pytest.mark.parametrize(
    ("group", "name"), [each for each in NAMES if each[1] not in UNCHANGEABLE], ids=lambda value: value
)
def test_commits_continue_tables(spark: SparkSession, tmp_path: Path, group: str, name: str) -> None:
    """Rows are appended and deleted, leaves compacted, and trees converted. Earlier snapshots stay readable."""
    table = writable(group, name, tmp_path, spark)
    rows = table.scan().to_arrow()
    first = table.current_snapshot()
    assert first is not None

    def check(changed: sm.Table, expected: int) -> sm.Table:
        reloaded = sm.load_table(str(tmp_path), spark=spark)
        assert changed.scan().to_arrow().num_rows == reloaded.scan().to_arrow().num_rows == expected
        assert reloaded.scan(snapshot_id=first.snapshot_id).to_arrow().num_rows == len(rows)
        assert reloaded.arrow.check().to_pylist() == []
        return reloaded

    table = check(table.append(rows.slice(0, 2)), len(rows) + 2)
    column = table.schema().fields[0].name
    values = table.scan().to_arrow().column(column).to_pylist()
    condition = f"{column} is null" if values[0] is None else f"{column} = {values[0]!r}"
    count = len(values) - values.count(values[0])
    table = check(table.delete(condition), count)
    table = check(table.maintenance.compact_manifests(max_root_files=0).commit(), count)
    table = check(table.maintenance.convert_tree("proposal").commit(), count)
    table = check(table.append(rows.slice(0, 1)), count + 1)
    check(table.maintenance.convert_tree("iceberg").commit(), count + 1)


@pytest.mark.parametrize("name", ["flat_root", "parted", "unpart"])
def test_earlier_prototypes_are_refused(name: str) -> None:
    metadata = max((TABLES / "amt" / name / "metadata").glob("*.metadata.json"))
    with pytest.raises(sm.UnsupportedError, match=r"lacks the field format_version \(157\)"):
        sm.load_table(str(metadata)).scan().arrow.plan_files()


# Filters that the answers abbreviate, in the grammar of filters.
WRITTEN_OUT = {
    "d >= 2024-01-10": "d >= '2024-01-10'",
    "d >= 2023-01-01": "d >= '2023-01-01'",
    "u = 00000000-0000-0001-0000-000000000002": "u = '00000000-0000-0001-0000-000000000002'",
    "u = ..0001": "u = '12345678-90ab-cdef-0000-000000000001'",
}


@pytest.mark.parametrize("name", [name for name in TABLE_NAMES["proto"] if name != "empty"])
def test_filters(plan: Plan, name: str) -> None:
    """Filters select the rows of the answers, from the files that Iceberg 1.12 plans for the same files."""
    table, _ = load("proto", name)
    pruned = {
        answer["filter"]: answer["files"] for answer in answers().get(f"rel1120/{name}.json", {}).get("filters", ())
    }
    for answer in answers()[f"proto/{name}.json"]["filters"]:
        scan = table.scan(WRITTEN_OUT.get(answer["filter"], answer["filter"]))
        planned_names = {row["file_path"].rpartition("/")[2] for row in plan(scan)}
        expected = pruned.get(answer["filter"], answer["files"])
        assert planned_names <= {path.rpartition("/")[2] for path in expected}, answer["filter"]
        # Java's evaluator of rows, which made the answers, treats null as less than any value.
        rows = [row for row in answer["rows"] if answer["filter"] != "dec9 < 0" or row["dec9"] is not None]
        assert sorted_rows(shown(scan.to_arrow().to_pylist(), table)) == sorted_rows(rows), answer["filter"]


def test_a_drawing_has_a_leaf_with_the_vectors_in_its_entries() -> None:
    text_of_drawing = str(load("proto", "dv")[0].draw())
    assert text_of_drawing.count("data manifest") == 2
    assert "delete manifest" not in text_of_drawing
    assert text_of_drawing.count("DV of f002.parquet") == 2


@pytest.mark.parametrize("name", ["dv", "eq_deletes", "spec_evolved", "upgraded_v3"])
def test_changelogs_and_sources(spark: SparkSession, name: str) -> None:
    """Changes of all snapshots, applied to nothing, are the current rows."""
    table, snapshots = load("proto", name, spark=spark)
    fields = [field.name for field in table.schema().fields]
    changes = table.changelog(None).to_df().collect()
    counts: dict[tuple[Any, ...], int] = {}
    for row in changes:
        key = tuple(row[field] for field in fields)
        counts[key] = counts.get(key, 0) + (1 if row["_change_type"] == "INSERT" else -1)
    left = [dict(zip(fields, key, strict=True)) for key, count in counts.items() for _ in range(count)]
    assert min(counts.values()) >= 0
    assert sorted_rows(shown(left, table)) == sorted_rows(snapshots[-1]["rows"])
    location = f"file:{TABLES}/proto/{name}"
    sm.register(spark)
    assert spark.read.format("sparkmeta").load(location).count() == len(snapshots[-1]["rows"])


# -- Broken files -----------------------------------------------------------------------------------------------------

Change = Callable[[list[dict[str, Any]]], Any]


def in_entries(**values: Any) -> Change:
    """Return a change that sets fields of all entries; names of nested fields have `__` between them."""

    def change(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            for path, value in values.items():
                *parents, name = path.split("__")
                target = row
                for parent in parents:
                    target = target[parent]
                target[name] = value

    return change


def with_manifest_dv(data: str, cardinality: int | None) -> Change:
    """Return a change that gives leaves a deletion vector."""
    return in_entries(
        tracking__status=4, manifest_info__dv=bytes.fromhex(data), manifest_info__dv_cardinality=cardinality
    )


VECTOR = {"location": "data/dv.puffin", "offset": 4, "size_in_bytes": 44, "cardinality": 2}
MASKS_TWO = "0102000001000000020103"
BROKEN: list[tuple[str, Change, str]] = [
    # file, change, the field and value in the error
    *(("leaf-5", in_entries(tracking__status=status), f"tracking.status is {status}") for status in (5, -1, 99)),
    *(("root-5", in_entries(tracking__status=status), f"tracking.status is {status}") for status in (5, -1)),
    *(("leaf-5", in_entries(content_type=kind), f"content_type is {kind}") for kind in (1, 5, 6, -1)),
    *(("root-5", in_entries(content_type=kind), f"content_type is {kind}") for kind in (1, 5, 6)),
    *(("leaf-5", in_entries(content_type=kind), f"content_type is {kind}: a leaf lists files") for kind in (3, 4)),
    ("root-5", in_entries(spec_id=7), "partition_spec_id is 7"),
    ("root-5", in_entries(record_count=-1), "record_count is -1"),
    ("root-5", in_entries(file_format="csv"), "file_format is 'csv'"),
    ("root-5", in_entries(tracking__sequence_number=None), "version_info.sequence_number is None"),
    ("root-5", in_entries(tracking__file_sequence_number=77), "version_info.file_sequence_number is 77"),
    ("root-5", in_entries(manifest_info=None), "manifest_stats"),
    ("root-5", in_entries(manifest_info__added_files_count=-1), "manifest_stats.added_files_count is -1"),
    ("root-5", in_entries(location="leaf-5.parquet"), "location is"),
    *(("root-5", with_manifest_dv(MASKS_TWO[:size], 2), "manifest_info.dv is") for size in range(0, 22, 2)),
    ("root-5", with_manifest_dv("02" + MASKS_TWO[2:], 2), "manifest_info.dv is 2"),
    ("root-5", with_manifest_dv("010300" + MASKS_TWO[6:], 3), "manifest_info.dv is 3"),
    ("root-5", with_manifest_dv(MASKS_TWO[:-4] + "0301", 2), "manifest_info.dv is 1"),
    ("root-5", with_manifest_dv(MASKS_TWO + "00", 2), "manifest_info.dv is 12"),
    ("root-5", with_manifest_dv(MASKS_TWO, 3), "manifest_info.dv_cardinality is 3"),
    ("root-5", with_manifest_dv("010100000100" + "000001" + "09", 1), "ordinal is 9"),
    *(
        ("leaf-5", in_entries(deletion_vector={**VECTOR, name: None}), f"deletion_vector.{shown_name} is None")
        for name, shown_name in {"location": "location", "offset": "offset", "size_in_bytes": "size_in_bytes",
                                 "cardinality": "record_count"}.items()
    ),
    *(
        ("root-3", in_entries(deletion_vector={**VECTOR, name: None}), f"deletion_vector.{shown_name} is None")
        for name, shown_name in {"location": "location", "offset": "offset", "size_in_bytes": "size_in_bytes",
                                 "cardinality": "record_count"}.items()
    ),
]  # fmt: skip


def optional(field: pa.Field) -> pa.Field:
    """Return a field with nullable children, and with all of `manifest_info`, so that a test can change them."""
    kind = field.type
    if pa.types.is_struct(kind):
        cardinality = pa.field("dv_cardinality", pa.int64(), metadata={"PARQUET:field_id": "523"})
        kind = pa.struct([*map(optional, kind), *([cardinality] if field.name == "manifest_info" else [])])
    return field.with_type(kind).with_nullable(True)


@pytest.fixture(scope="module")
def movable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the table with relative locations."""
    folder = tmp_path_factory.mktemp("broken") / "t"
    shutil.copytree(TABLES / "synth" / "s_flat_root_relative", folder)
    return folder


def plan_at(request: pytest.FixtureRequest, place: str, scan: sm.Scan) -> None:
    """Plan a scan on the driver without Spark, or in tasks."""
    if place == "driver":
        scan.arrow.plan_files()
        return
    with configured(request.getfixturevalue("spark"), IN_TASKS):
        scan.plan_files().collect()


@pytest.mark.parametrize("case", range(len(BROKEN)), ids=[f"{file}, {text}" for file, _, text in BROKEN])
@pytest.mark.parametrize("place", ["driver", "tasks"])
def test_broken_files_are_one_clear_error(request: pytest.FixtureRequest, movable: Path, place: str, case: int) -> None:
    name, change, message = BROKEN[case]
    path = movable / "metadata" / f"{name}.parquet"
    original = path.read_bytes()
    table = pq.read_table(path)
    rows = table.to_pylist()
    change(rows)
    broken = pa.Table.from_pylist(rows, schema=pa.schema([optional(field) for field in table.schema]))
    snapshot_id = 13 if name == "root-3" else 15
    scan = sm.load_table(str(movable)).scan(snapshot_id=snapshot_id)
    try:
        pq.write_table(broken.replace_schema_metadata(table.schema.metadata), path)
        with pytest.raises((CorruptFileError, PySparkException)) as caught:
            plan_at(request, place, scan)
    finally:
        path.write_bytes(original)
    assert message in str(caught.value)
    # Ordinals are compared where leaves are read.
    assert ("leaf-" if message.startswith("ordinal") else name) in str(caught.value)
