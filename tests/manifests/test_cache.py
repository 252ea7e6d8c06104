"""The manifest cache: what is served from it, what is passed over, and that whatever happens to it harms no plan."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sparkmeta as sm
from sparkmeta.avro.decode import decode_manifest
from sparkmeta.entries.manifest_records import PART_SCHEMA, ManifestContext, ManifestPart
from sparkmeta.entries.projection import FILE_COLUMNS, EntryFilter, EntryProjection
from sparkmeta.errors import CorruptFileError, SettingError
from sparkmeta.expr.bounds import AllOf, BoundTest
from sparkmeta.manifests.cache import ManifestCache
from sparkmeta.manifests.cache_leaves import CacheTypes, CacheWriter, decode_leaf, encode_leaf, leaf_key
from sparkmeta.spec.entry import METRICS_MAP_IDS
from sparkmeta.storage.executors import ExecutorReader, ExecutorWriter
from sparkmeta.storage.files import LocalFiles
from tests.command_line import invoke
from tests.handmade import BY_PART, COLUMNS, HandmadeTable, data, equality_deletes, long_bounds
from tests.plans import optimized_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

SETTING = "spark.sparkmeta.manifest-cache"
HOSTILE = "a b%20c[d]{e}?*=ü+'#"


@pytest.fixture
def folder(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """Set the session's cache folder to a new one."""
    chosen = tmp_path / "cache"
    spark.conf.set(SETTING, chosen.as_uri())
    yield chosen
    spark.conf.unset(SETTING)
    spark.conf.unset("spark.sparkmeta.split-manifest-bytes")


def table_of(folder: Path, version: int = 2) -> HandmadeTable:
    """Two data manifests and one of deletes, some of whose entries inherit, and some are deleted."""
    table = HandmadeTable(folder, version=version)
    for number in range(2):
        table.add(0, 1, *(_data(number, place) for place in range(6)))
    return table.add(1, 1, equality_deletes("file:///t/eq", 4, partition={"part": "a"}, **long_bounds(0, 3)))


def _data(manifest: int, place: int) -> dict[str, object]:
    sequence = None if place % 2 else 1
    of = {"partition": {"part": "ab"[place % 2]}, "status": 2 if place == 5 else 1}
    return data(f"file:///t/{manifest}-{place}", sequence, **of, **long_bounds(place, place + 1))


def plan(location: str, spark: SparkSession, row_filter: str = "true") -> DataFrame:
    return sm.load_table(location, spark=spark).scan(row_filter).plan_files()


def rows(frame: DataFrame) -> list[str]:
    return sorted(str(row) for row in frame.collect())


def decodes(frame: DataFrame) -> bool:
    return "MapInArrow" in optimized_plan(frame)


def leaves(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.parquet"))


def filled(location: str, spark: SparkSession, folder: Path) -> list[Path]:
    """Return the leaves after a plan of everything."""
    rows(plan(location, spark))
    return leaves(folder)


# -- what is served ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [2, 3])
def test_the_second_plan_reads_leaves(version: int, folder: Path, tmp_path: Path, spark: SparkSession) -> None:
    location = table_of(tmp_path / HOSTILE, version).write()
    spark.conf.unset(SETTING)
    queries = ("true", "part = 'b' and id > 3")
    expected = [rows(plan(location, spark, query)) for query in queries]
    assert len(expected[0]) == 10
    spark.conf.set(SETTING, str(folder / HOSTILE))
    assert rows(plan(location, spark)) == expected[0]
    assert len(leaves(folder / HOSTILE)) == 3
    for query, known in zip(queries, expected, strict=True):
        frame = plan(location, spark, query)
        assert rows(frame) == known, query
        assert not decodes(frame)


@pytest.mark.usefixtures("by_spark")
def test_filters_are_pushed_into_leaves(
    folder: Path, tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    location = table_of(tmp_path / "t").write()
    filled(location, spark, folder)
    plan(location, spark, "id = 2 and part = 'a'").explain("formatted")
    pushed = re.findall(r"PushedFilters: (.*)", capsys.readouterr().out)
    for part in ("content_stats.`1`.lower_bound,2", "partition.`1000`,a", "EqualTo(version_info.status,2)"):
        assert any(part in filters for filters in pushed), part


def test_metadata_tables_have_the_maps_as_the_file_has_them(folder: Path, tmp_path: Path, spark: SparkSession) -> None:
    location = table_of(tmp_path / "t", 3).write()
    spark.conf.unset(SETTING)
    expected = rows(sm.load_table(location, spark=spark).inspect.entries())
    spark.conf.set(SETTING, str(folder))
    filled(location, spark, folder)
    frame = sm.load_table(location, spark=spark).inspect.entries()
    assert rows(frame) == expected
    assert not decodes(frame)


def test_manifests_missing_from_the_cache_are_decoded(folder: Path, tmp_path: Path, spark: SparkSession) -> None:
    location = table_of(tmp_path / "t").write()
    before = filled(location, spark, folder)
    expected = rows(plan(location, spark))
    for leaf in before[::2]:
        leaf.unlink()
    frame = plan(location, spark)
    assert decodes(frame)
    assert rows(frame) == expected
    assert leaves(folder) == before


def test_parts_of_a_manifest_are_leaves_of_their_own(folder: Path, tmp_path: Path, spark: SparkSession) -> None:
    table = HandmadeTable(tmp_path / "t", version=2, block_bytes=2_000)
    location = table.add(0, 0, *(data(f"file:///t/{n}") for n in range(500))).write()
    spark.conf.set("spark.sparkmeta.split-manifest-bytes", "1k")
    assert len(filled(location, spark, folder)) > 2
    frame = plan(location, spark)
    assert sorted(row.manifest_pos for row in frame.collect()) == list(range(500))
    assert not decodes(frame)


def test_one_leaf_serves_lists_that_say_other_things_of_the_manifest(
    folder: Path, tmp_path: Path, spark: SparkSession
) -> None:
    """Another branch, or an upgrade, lists the same manifest with another sequence number or first row id."""
    table = table_of(tmp_path / "t", 3)
    location = table.write()
    filled(location, spark, folder)
    row = table._manifest(0, *table.manifests[0]) | {"sequence_number": 0, "first_row_id": None}
    list_again(tmp_path / "t", [row])
    files = sm.load_table(location, spark=spark).scan().plan_files()
    inherited_by_path = {row.file_path: (row.data_sequence_number, row.first_row_id) for row in files.collect()}
    assert not decodes(files)
    assert inherited_by_path["file:///t/0-1"] == (0, None)
    assert inherited_by_path["file:///t/0-2"] == (1, None)


def list_again(folder: Path, manifests: list[dict[str, object]]) -> None:
    """Write the table's manifest list again with these rows."""
    from tests.avro.avro_files import LONG
    from tests.handmade import V2, avro_field, avro_file

    fields = [*V2, avro_field("min_sequence_number", 516, "long"), avro_field("first_row_id", 520, LONG)]
    schema = {"type": "record", "name": "manifest_file", "fields": fields}
    (folder / "metadata" / "snap.avro").write_bytes(avro_file(schema, manifests))


def test_a_manifest_that_is_listed_twice_is_read_twice(folder: Path, tmp_path: Path, spark: SparkSession) -> None:
    table = HandmadeTable(tmp_path / "t", version=2).add(0, 0, data("file:///t/a"))
    location = table.write()
    filled(location, spark, folder)
    list_again(tmp_path / "t", [table._manifest(0, *table.manifests[0])] * 2)
    assert [row.file_path for row in plan(location, spark).collect()] == ["file:///t/a"] * 2


# -- what is not ------------------------------------------------------------------------------------------------------


def test_another_length_or_spec_is_another_manifest(folder: Path, tmp_path: Path, spark: SparkSession) -> None:
    location = HandmadeTable(tmp_path / "t", version=2).add(0, 0, data("file:///t/a")).write()
    filled(location, spark, folder)
    HandmadeTable(tmp_path / "t", version=2).add(0, 0, data("file:///t/another")).write()
    assert [row.file_path for row in plan(location, spark).collect()] == ["file:///t/another"]
    assert len(leaves(folder)) == 2
    keys = [leaf_key(*key_parts) for key_parts in (("/a/m", 1, 0, 0, 1), ("/a/m", 2, 0, 0, 1), ("/a/m", 1, 1, 0, 1))]
    assert len({*keys, leaf_key("/a/m", 1, 0, 0, 2), leaf_key("/a/m", 1, 0, 1, 2)}) == 5
    assert leaf_key("file:/a//m", 1, 0, 0, 1) == keys[0]


def test_a_promoted_column_is_typed_anew(folder: Path, tmp_path: Path, spark: SparkSession) -> None:
    """When a date became a timestamp_ns, Spark would read days as nanoseconds."""
    days = {
        name: [{"key": 1, "value": (day).to_bytes(4, "little")}]
        for name, day in (("lower_bounds", 100), ("upper_bounds", 200))
    }
    table = HandmadeTable(tmp_path / "t", version=3).add(0, 0, data("file:///t/a", **days, value_counts=None))
    location = retyped(table, "date")
    assert filled(location, spark, folder)
    assert not decodes(plan(location, spark, "id = '1970-05-01'"))
    location = retyped(table, "timestamp_ns")
    for query, count in (("id < '1970-04-01T00:00:00'", 0), ("id < '1970-05-01T00:00:00'", 1)):
        assert plan(location, spark, query).count() == count
    frame = plan(location, spark, "id < '1970-04-01T00:00:00'")
    assert not decodes(frame)
    assert frame.count() == 0
    assert len(leaves(folder)) == 2
    assert not decodes(plan(retyped(table, "date"), spark, "id = '1970-05-01'"))


def test_columns_of_type_unknown(folder: Path, tmp_path: Path, spark: SparkSession) -> None:
    """Bounds and partition values are null. Before version 4.1, Spark reads no fields of their type from Parquet."""
    part, nothing = COLUMNS[1] | {"type": "unknown"}, {"id": 4, "name": "nothing", "required": False, "type": "unknown"}
    table = HandmadeTable(tmp_path / "t", schemas=((COLUMNS[0], part, nothing),), specs=((), BY_PART))
    counts = {name: [{"key": 1, "value": 7}, {"key": 4, "value": 9}] for name in ("value_counts", "null_value_counts")}
    files = [data(f"file:///t/{place}", partition={"part": None}, **counts) for place in range(3)]
    location = table.add(0, 1, *files[:2]).add(0, 1, *files[2:]).write()

    def frames() -> list[DataFrame]:
        loaded = sm.load_table(location, spark=spark)
        queries = ("true", "nothing is null", "nothing is not null", "part is null", "id > 3")
        return [loaded.inspect.entries(), *(loaded.scan(query).plan_files() for query in queries)]

    spark.conf.unset(SETTING)
    expected = [rows(frame) for frame in frames()]
    assert [len(known) for known in expected] == [3, 3, 3, 0, 3, 0]
    assert all("nothing=Row(column_size=None, value_count=9, null_value_count=9" in row for row in expected[0])
    spark.conf.set(SETTING, folder.as_uri())
    assert [rows(frame) for frame in frames()] == expected
    assert len(leaves(folder)) == 2
    cached = frames()
    assert [rows(frame) for frame in cached] == expected
    assert not any(map(decodes, cached))


def retyped(table: HandmadeTable, kind: str) -> str:
    """The table written with `id` of another type."""
    location = Path(table.write().removeprefix("file://"))
    metadata = json.loads(location.read_text())
    metadata["schemas"][0]["fields"][0]["type"] = kind
    location.write_text(json.dumps(metadata))
    return f"file://{location}"


def test_a_new_column_is_known_to_be_missing_from_old_leaves(folder: Path, tmp_path: Path, spark: SparkSession) -> None:
    table = table_of(tmp_path / "t")
    location = table.write()
    assert len(filled(location, spark, folder)) == 3
    path = Path(location.removeprefix("file://"))
    metadata = json.loads(path.read_text())
    metadata["schemas"][0]["fields"].append({"id": 4, "name": "more", "required": False, "type": "int"})
    path.write_text(json.dumps(metadata))
    frame = plan(location, spark, "more = 3")
    assert len(rows(frame)) == 10
    assert not decodes(frame)


def test_a_leaf_written_without_a_columns_type_does_not_serve_those_who_know_it(
    folder: Path, tmp_path: Path, spark: SparkSession
) -> None:
    """The newest metadata lacks the schema of a dropped column, which older metadata still contains."""
    table = HandmadeTable(tmp_path / "t", version=2).add(0, 1, *(_data(0, place) for place in range(6)))
    location = table.write()
    path = Path(location.removeprefix("file://"))
    text = path.read_text()
    forgetful = json.loads(text)
    forgetful["schemas"][0]["fields"] = [column for column in COLUMNS if column["id"] != 1]
    path.write_text(json.dumps(forgetful))
    assert len(filled(location, spark, folder)) == 1
    path.write_text(text)
    frame = plan(location, spark, "id > 4")
    assert decodes(frame)
    assert len(rows(frame)) == 1


def test_types_serve_what_they_type() -> None:
    types = CacheTypes("/t", {1: "int", 2: None}, {1000: "int", 1001: None})
    assert CacheTypes.parse(types.document) == types

    def serves(stats: dict[int, str], partition: dict[int, str]) -> bool:
        return types.serves(EntryProjection.of([], partition, stats))

    assert serves({1: "int", 9: "string"}, {1000: "int", 1009: "int"})
    assert not serves({1: "long"}, {})
    assert not serves({2: "int"}, {})
    assert not serves({}, {1000: "long"})
    assert not serves({}, {1001: "int"})


def test_ids_without_a_type_are_named(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    table.write()
    content = (tmp_path / "metadata" / "m0.avro").read_bytes()
    part = ManifestPart(0, "/x/m0.avro", 1, ManifestContext(1, 1, None))
    _, types = encode_leaf(content, part, CacheTypes("", {2: "string"}, {}))
    assert types == CacheTypes("file:/x", {1: None, 2: "string"}, {1000: None})


def test_relative_locations_are_not_cached(tmp_path: Path) -> None:
    """Tables in different places, or of different versions, would resolve them differently."""
    HandmadeTable(tmp_path).add(0, 0, data("data/a")).write()
    content = (tmp_path / "metadata" / "m0.avro").read_bytes()
    part = ManifestPart(0, "/x/m0.avro", 0, ManifestContext(1, 1, None))
    with pytest.raises(CorruptFileError, match=r"/x/m0.avro: location is 'data/a': a location is absolute"):
        encode_leaf(content, part, CacheTypes("", {}, {}))


@pytest.mark.parametrize("first_row_id", [None, 1000])
@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_leaf_has_the_entries_of_its_manifest(
    version: int, first_row_id: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Spark: the same entries for any projection and any row of the manifest list."""
    monkeypatch.setattr("sparkmeta.manifests.parquet_file._ROW_GROUP_ROWS", 2)
    table_of(tmp_path, version).write()
    content = (tmp_path / "metadata" / "m0.avro").read_bytes()
    part = ManifestPart(7, "/x/m0.avro", 1, ManifestContext(10, 0 if version == 1 else 5, first_row_id))
    leaf, _ = encode_leaf(content, part, CacheTypes("", {1: "long", 3: "double"}, {1000: "string", 1001: "double"}))
    tuples, stats = {1000: "string", 1001: "double"}, {1: "long", 3: "double"}
    entry_filter = EntryFilter(
        AllOf((BoundTest("lower_bound", 1, "long", upward=False, inclusive=True, limit=3),)),
        ((1, AllOf((BoundTest("partition", 1000, "string", upward=True, inclusive=True, limit="b"),))),),
    )
    for projection in (
        EntryProjection.of([*FILE_COLUMNS, *METRICS_MAP_IDS], tuples, stats),
        EntryProjection.of(["location"]),
        EntryProjection.of(["location", "first_row_id"], {1000: "string"}, {1: "long"}),
    ):
        for filtered in (projection, replace(projection, entry_filter=entry_filter)):
            expected = pa.Table.from_batches(decode_manifest(content, part, filtered), filtered.schema)
            actual = pa.Table.from_batches(decode_leaf(leaf, part, filtered, "leaf"), filtered.schema)
            assert actual.to_pylist() == expected.to_pylist()
            assert len(actual) == 6 if filtered.entry_filter is None else len(actual) < 6


def test_a_broken_leaf_is_named(tmp_path: Path) -> None:
    part, projection = ManifestPart(7, "m", 1, ManifestContext(10, 5, None)), EntryProjection.of(["location"])
    schema = pa.schema([("location", pa.string())])
    sink = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), sink)
    for content in (b"", b"PAR1PAR1", bytes(100), sink.getvalue().to_pybytes()):
        with pytest.raises(CorruptFileError, match=r"the leaf.*no leaf of the manifest cache"):
            decode_leaf(content, part, projection, "the leaf")


# -- what may happen to a cache ---------------------------------------------------------------------------------------


def torn(leaf: Path, _: Path) -> None:
    leaf.write_bytes(leaf.read_bytes()[:-9])


def emptied(leaf: Path, _: Path) -> None:
    leaf.write_bytes(b"")


def misnamed(leaf: Path, _: Path) -> None:
    leaf.rename(leaf.parent / "leaf.parquet")


def types_lost(leaf: Path, folder: Path) -> None:
    next(folder.glob("*.json")).unlink()


def types_garbled(leaf: Path, folder: Path) -> None:
    next(folder.glob("*.json")).write_bytes(b'{"stats": []}')


def types_of_others(leaf: Path, folder: Path) -> None:
    """A leaf is never read by types that it was not written with."""
    document = next(folder.glob("*.json"))
    document.write_text(document.read_text().replace("long", "date"))


def temporary_left(leaf: Path, folder: Path) -> None:
    leaf.rename(leaf.parent / "9c12d441-03fe-4693-9a96-a0705ddf69c1.tmp")


def folder_for_leaf(leaf: Path, folder: Path) -> None:
    leaf.unlink()
    leaf.mkdir()


HARMS = [torn, emptied, misnamed, types_lost, types_garbled, types_of_others, temporary_left, folder_for_leaf]


def serving(cache: ManifestCache, parts: pa.Table, projection: EntryProjection) -> list[str | None]:
    leaves: list[str | None] = cache.leaves_of(parts, projection).to_pylist()
    return leaves


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
def test_a_damaged_leaf_is_not_used(harm: Callable[[Path, Path], None], tmp_path: Path) -> None:
    table_of(tmp_path / "t").write()
    manifests = [tmp_path / "t" / "metadata" / f"m{number}.avro" for number in range(2)]
    types, folder = CacheTypes("", {1: "long"}, {1000: "string"}), tmp_path / "c"
    writer = CacheWriter(str(folder), types, ExecutorReader(), ExecutorWriter())
    cache = ManifestCache(folder.as_uri(), LocalFiles(), writer)
    sizes = [path.stat().st_size for path in manifests]
    rows = [
        {
            "manifest": 7 + n,
            "location": str(path),
            "partition_spec_id": 1,
            "part": 0,
            "parts": 1,
            "file_size_in_bytes": size,
        }
        for n, (path, size) in enumerate(zip(manifests, sizes, strict=True))
    ]
    parts, longer = (
        pa.Table.from_pylist([rows[0], {**rows[1], "file_size_in_bytes": size}], schema=PART_SCHEMA)
        for size in (sizes[1], sizes[1] + 1)
    )
    projection = EntryProjection.of(["location"], {1000: "string"}, {1: "long"})
    assert serving(cache, parts, projection) == [None, None]
    for number, path in enumerate(manifests):
        part = ManifestPart(number, str(path), 1, ManifestContext(1, 1, None))
        writer.keep(path.read_bytes(), part)
        (leaf_path,) = [leaf for leaf in serving(cache, parts, projection) if leaf is not None][number:]
        assert Path(leaf_path.removeprefix("file://")).parent.parent == folder
    both = serving(cache, parts, projection)
    assert None not in both
    assert serving(cache, longer, projection) == [both[0], None]
    assert serving(cache, pa.concat_tables([parts, parts.slice(0, 1)]), projection) == [None, both[1], None]
    other = EntryProjection.of(["location"], {1000: "string"}, {1: "int"})
    assert serving(cache, parts, other) == [None, None]
    harm(Path(str(both[0]).removeprefix("file://")), folder)
    left = serving(ManifestCache(folder.as_uri(), LocalFiles(), None), parts, projection)
    assert left == [None, None if harm.__name__.startswith("types") else both[1]]
    writer.keep(manifests[0].read_bytes(), ManifestPart(0, rows[0]["location"], 1, ManifestContext(1, 1, None)))
    mended = serving(ManifestCache(folder.as_uri(), LocalFiles(), None), parts, projection)
    assert mended == (both if harm is not folder_for_leaf else [None, both[1]])


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
def test_a_harmed_leaf_is_passed_over_and_mended(
    harm: Callable[[Path, Path], None], folder: Path, tmp_path: Path, spark: SparkSession
) -> None:
    location = HandmadeTable(tmp_path / "t").add(0, 0, data("file:///t/a", **long_bounds(1, 5))).write()
    (leaf,) = filled(location, spark, folder)
    expected = rows(plan(location, spark, "id = 3"))
    harm(leaf, folder)
    frame = plan(location, spark, "id = 3")
    assert decodes(frame)
    assert rows(frame) == expected
    mended = plan(location, spark, "id = 3")
    assert decodes(mended) == (harm is folder_for_leaf)
    assert rows(mended) == expected


def test_a_leaf_that_rots_is_an_error_that_names_it(folder: Path, tmp_path: Path, spark: SparkSession) -> None:
    """Page checksums catch any flipped bit, so that no plan holds values that were not written."""
    table = HandmadeTable(tmp_path / "t").add(0, 0, *(data(f"file:///t/{n}", **long_bounds(n, n)) for n in range(300)))
    location = table.write()
    (leaf,) = filled(location, spark, folder)
    expected, whole = rows(plan(location, spark)), leaf.read_bytes()
    for place in range(10, len(whole) - 3_000, len(whole) // 12):
        leaf.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        try:
            outcome = rows(plan(location, spark))
        except Exception as error:  # noqa: BLE001  which of Spark's it is depends on what is hit
            outcome = expected if leaf.name in str(error) else [str(error)]
        assert outcome == expected


@pytest.mark.parametrize("place", ["{}/file", "{}/file/cache", "unknown://scheme"])
def test_a_cache_that_cant_be_written_harms_no_plan(
    place: str, folder: Path, tmp_path: Path, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    spark.conf.set(SETTING, place.format(tmp_path))
    location = table_of(tmp_path / "t").write()
    with caplog.at_level(logging.WARNING):
        assert len(rows(plan(location, spark))) == 10


def test_a_relative_folder_is_refused(folder: Path, tmp_path: Path, spark: SparkSession) -> None:
    location = table_of(tmp_path / "t").write()
    spark.conf.set(SETTING, "cache")
    with pytest.raises(SettingError, match="manifest-cache is 'cache': expected an absolute path"):
        plan(location, spark)


def test_full_disk_and_bad_values_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    table_of(tmp_path).write()
    content = (tmp_path / "metadata" / "m0.avro").read_bytes()
    part = ManifestPart(0, "/x/m0.avro", 1, ManifestContext(1, 1, None))
    keeper = CacheWriter(str(tmp_path / "c"), CacheTypes("", {1: "long"}, {}), ExecutorReader(), ExecutorWriter())

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("sparkmeta.storage.writing.write_new_local", full)
        keeper.keep(content, part)
    assert "/x/m0.avro is not kept in the manifest cache: [Errno 28] No space left" in caplog.text
    keeper.keep(content[:-30], part)
    assert not leaves(tmp_path / "c")
    keeper.keep(content, part)
    keeper.keep(content, part)
    assert len(leaves(tmp_path / "c")) == 1


# -- upkeep -----------------------------------------------------------------------------------------------------------


def run(*arguments: str, code: int = 0) -> str:
    result = invoke(["cache", *arguments])
    assert result.exit_code == code, result.output
    return result.output


def test_info_and_prune(folder: Path, tmp_path: Path, spark: SparkSession) -> None:
    location = table_of(tmp_path / "t").write()
    leaf_paths = filled(location, spark, folder)
    (row,) = json.loads(run("info", str(folder), "--output", "json"))
    assert row["manifests"] == f"file:{tmp_path}/t/metadata"
    assert (row["leaves"], row["size_in_bytes"]) == (3, sum(path.stat().st_size for path in leaf_paths))
    assert run("info", str(folder)).splitlines()[1].split()[1] == "3"
    assert run("prune", str(folder)) == "0 files, 0 B: would be deleted (--commit)\n"
    os.utime(leaf_paths[0], (1, 1))
    torn(leaf_paths[1], folder)
    shutil.copy(leaf_paths[2], leaf_paths[2].parent / leaf_paths[2].name.replace("-", "0-", 1))
    twice = leaf_paths[2].name.split("-")
    shutil.copy(leaf_paths[2], leaf_paths[2].parent / "-".join([*twice[:2], "0" * 16, twice[3]]))
    leaf_bytes = sum(path.stat().st_size for path in leaves(folder))
    assert run("prune", str(folder)).startswith("3 files, ")
    assert sum(path.stat().st_size for path in leaves(folder)) == leaf_bytes
    assert run("prune", str(folder), "--commit").endswith(": deleted\n")
    assert len(leaves(folder)) == 2
    assert list(folder.glob("*.json"))
    run("prune", str(folder), "--older-than", "0", "--commit")
    assert [path for path in folder.rglob("*") if path.is_file()] == []
    assert len(rows(plan(location, spark))) == 10
    assert "there is no such file" in run("info", str(tmp_path / "nowhere"), code=1)


def test_prune_deletes_no_files_of_others(folder: Path, tmp_path: Path, spark: SparkSession) -> None:
    filled(table_of(tmp_path / "t").write(), spark, folder)
    foreign = [folder / "package.json", folder / f"{'0' * 32}.json"]
    for path, content in zip(foreign, ["{}", next(folder.glob("*.json")).read_text()], strict=True):
        path.write_text(content)
        os.utime(path, (1, 1))
    assert run("prune", str(folder), "--commit") == "0 files, 0 B: deleted\n"
    run("prune", str(folder), "--older-than", "0", "--commit")
    assert {path for path in folder.rglob("*") if path.is_file()} == {*foreign}


@pytest.mark.parametrize("command", [["info"], ["prune", "--older-than", "0", "--commit"]])
def test_a_folder_that_is_no_cache_is_refused(command: list[str], tmp_path: Path) -> None:
    table_of(tmp_path / "t").write()
    metadata = tmp_path / "t" / "metadata"
    before = sorted(metadata.iterdir())
    for path in before:
        os.utime(path, (1, 1))
    for folder in (metadata, tmp_path / "t", tmp_path):
        assert "this is no manifest cache" in run(*command, str(folder), code=1)
    assert sorted(metadata.iterdir()) == before
    (tmp_path / "empty" / "below").mkdir(parents=True)
    run(*command, str(tmp_path / "empty"))


@pytest.mark.parametrize("days", ["nan", "inf", "1e308", "-1"])
def test_an_age_that_is_no_number_of_days_is_refused(days: str, tmp_path: Path) -> None:
    assert "Invalid value for '--older-than'" in run("prune", str(tmp_path), "--older-than", days, code=2)
