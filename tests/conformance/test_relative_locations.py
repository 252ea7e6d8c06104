"""Tables of format version 4 with relative locations, beside the same tables with absolute ones.

Iceberg 1.12.0 resolves no relative location of a manifest list or manifest: the oracle is the table itself, as Java
wrote it, with its locations absolute.
"""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

import sparkmeta as sm
from sparkmeta.spec.locations import with_locations
from tests.maintain.test_expire import files_below, planned_paths, random_history, soon
from tests.maintain.test_orphans import age, plant
from tests.peers.file_maker import local_path
from tests.peers.slices import SOAK
from tests.rows.comparison import row_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import DataFrame, SparkSession

PATH_ID = 2147483546


@dataclass
class Copy:
    """A copy of a table in another folder, in format version 4, whose locations are spelled anew.

    share: of the locations below the table, how many are relative.
    """

    source: Path
    folder: Path
    rng: random.Random
    share: float
    sizes: dict[str, int] = field(default_factory=dict)
    relative: int = 0

    @property
    def place(self) -> str:
        return f"file://{self.folder}"

    def below(self, location: str) -> str | None:
        """The path below the table, which Java spells in several ways."""
        path = local_path(location)
        below = path.removeprefix(f"{self.source}/")
        return None if below == path else below

    def spelled(self, location: str) -> str:
        below = self.below(location)
        if below is None:
            return location
        if self.rng.random() >= self.share:
            return f"{self.place}/{below}"
        self.relative += 1
        return below

    def make(self) -> Path:
        shutil.copytree(self.source, self.folder)
        for change, pattern in (
            (self._deletes, "data/**/*-deletes.parquet"),
            (self._manifest, "metadata/*-m[0-9]*.avro"),
            (self._parquet_manifest, "metadata/*-m[0-9]*.parquet"),
            (self._list, "metadata/snap-*.avro"),
            (self._metadata, "metadata/*.metadata.json"),
        ):
            for path in sorted(self.folder.glob(pattern)):
                change(path)
                self.sizes[str(path.relative_to(self.folder))] = path.stat().st_size
        for checksum in self.folder.rglob(".*.crc"):
            checksum.unlink()
        assert (self.relative > 0) == (self.share > 0)
        return self.folder

    def _size(self, location: str, size: int) -> int:
        return self.sizes.get(self.below(location) or "", size)

    def _deletes(self, path: Path) -> None:
        table = pq.read_table(path)
        paths = pa.array([self.spelled(each) for each in table.column("file_path").to_pylist()])
        pq.write_table(table.set_column(0, table.schema.field(0), paths), path)

    def _file(self, file: dict[str, Any]) -> dict[str, Any]:
        changed = {"file_size_in_bytes": self._size(file["file_path"], file["file_size_in_bytes"])}
        changed["file_path"] = self.spelled(file["file_path"])
        if file.get("referenced_data_file") is not None:
            changed["referenced_data_file"] = self.spelled(file["referenced_data_file"])
        bounds = {name: dict(_pairs(file.get(name))) for name in ("lower_bounds", "upper_bounds")}
        texts = {name: of.get(PATH_ID) for name, of in bounds.items()}
        if texts["lower_bounds"] is not None and texts["lower_bounds"] == texts["upper_bounds"]:
            path = self.spelled(texts["lower_bounds"].decode()).encode()
            for name, of in bounds.items():
                changed[name] = _unpaired(of | {PATH_ID: path}, file[name])
        return file | changed

    def _manifest(self, path: Path) -> None:
        _alter(path, lambda entry: entry | {"data_file": self._file(entry["data_file"])})

    def _parquet_manifest(self, path: Path) -> None:
        with pq.ParquetFile(path) as file:
            schema, rows = file.schema_arrow, file.read().to_pylist()
        changed = [row | {"data_file": self._file(row["data_file"])} for row in rows]
        pq.write_table(pa.Table.from_pylist(changed, schema), path)

    def _list(self, path: Path) -> None:
        def change(row: dict[str, Any]) -> dict[str, Any]:
            length = self._size(row["manifest_path"], row["manifest_length"])
            return row | {"manifest_path": self.spelled(row["manifest_path"]), "manifest_length": length}

        _alter(path, change)

    def _metadata(self, path: Path) -> None:
        document = json.loads(path.read_text())
        document = with_locations(document, lambda location, _: self.spelled(location))
        document |= {"location": self.place, "format-version": 4}
        document.setdefault("next-row-id", 0)
        for snapshot in document["snapshots"]:
            for name in ("first-row-id", "added-rows"):
                snapshot.setdefault(name, 0)
        path.write_text(json.dumps(document))


def _pairs(value: Any) -> Iterable[tuple[int, Any]]:
    return [pair if isinstance(pair, tuple) else (pair["key"], pair["value"]) for pair in value or ()]


def _unpaired(values: dict[int, Any], like: Any) -> Any:
    return [*values.items()] if isinstance(like[0], tuple) else [{"key": k, "value": v} for k, v in values.items()]


def _alter(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    with path.open("rb") as file:
        reader = fastavro.reader(file)
        rows, schema, known = list(reader), reader.writer_schema, reader.metadata
    metadata = {key: value for key, value in known.items() if not key.startswith("avro.")}
    with path.open("wb") as file:
        fastavro.writer(file, schema, map(change, rows), codec="deflate", metadata=metadata)  # type: ignore[arg-type]


def shown(table: sm.Table, frame: DataFrame, *dropped: str) -> list[Any]:
    """The rows as texts, in which the table has the same location as every other."""
    texts = row_texts(frame.drop(*dropped))
    place = table.location()
    return sorted((tuple(text and text.replace(place, "TABLE") for text in row) for row in texts), key=repr)


def looks(table: sm.Table) -> dict[str, Any]:
    """What a table shows of its files and rows, by every path that reads them."""
    inspect, scan = table.inspect, table.scan()
    lengths = ("length", "manifest_length", "file_size_in_bytes", "partition_summaries", "readable_metrics")
    bounds = ("lower_bounds", "upper_bounds", "column_sizes")
    frames = {
        "rows": scan.to_df(),
        "plan": scan.plan_files().selectExpr(
            "file_path", "deletes.file_path AS delete_paths", "deletes.referenced_data_file AS referenced"
        ),
        "some": table.scan("part = 'a' and id < 100").plan_files().select("file_path", "manifest_path"),
        "files": inspect.files().drop(*lengths, *bounds),
        "entries": inspect.entries().select("status", "data_file.file_path", "data_file.referenced_data_file"),
        "manifests": inspect.manifests().drop(*lengths),
        "all_files": inspect.all_files().select("file_path", "referenced_data_file"),
        "all_manifests": inspect.all_manifests().select("path", "reference_snapshot_id"),
        "position_deletes": inspect.position_deletes().select("file_path", "pos", "delete_file_path"),
        "snapshots": inspect.snapshots().select("snapshot_id", "manifest_list"),
    }
    counts = {"count": table.scan("id > 2").count(), "tasks": len(scan.plan_task_json().collect())}
    return {name: shown(table, frame) for name, frame in frames.items()} | counts


def orphans(table: sm.Table) -> set[str]:
    old = datetime.now(UTC) - timedelta(days=4)
    plan = table.maintenance.remove_orphan_files(older_than=old)
    return {path.removeprefix(local_path(table.location())) for path in planned_paths(plan.to_df())}


@pytest.mark.java
@pytest.mark.parametrize(
    ("version", "seed"), [(v, s) for v in (2, 3, 4) for s in range(10)] if SOAK else [(2, 5), (4, 1)]
)
def test_a_table_shows_the_same_with_relative_locations(
    spark: SparkSession, tmp_path: Path, version: int, seed: int
) -> None:
    rng = random.Random(seed)
    shop = random_history(spark, f"relative_{version}_{seed}", rng, steps=5, version=version).shop
    copy = partial(Copy, shop.folder, rng=rng)
    folders = {share: copy(folder=tmp_path / f"t{share}", share=share).make() for share in (0, 0.7, 1)}
    tables = {share: sm.load_table(f"file://{folder}", spark=spark) for share, folder in folders.items()}
    expected = looks(tables[0])
    planted = {folder: plant(folder, "data/lost.parquet", "metadata/lost.avro") for folder in folders.values()}
    for share, table in tables.items():
        age(folders[share])
        assert looks(table) == expected
        assert orphans(table) == {path.removeprefix(str(folders[share])) for path in planted[folders[share]]}
    trees = {share: table.maintenance.upgrade(4).commit() for share, table in tables.items()}
    changed: dict[float, Any] = {}
    for share, upgraded in trees.items():
        tree = upgraded.append(upgraded.scan().to_df().limit(3)).delete("id in (1, 4, 7, 10)")
        tree.maintenance.compact_manifests().commit()
        after = sm.load_table(tree.location(), spark=spark)
        rows = sorted(row.id for row in after.scan().select("id").to_df().collect())
        plan = after.maintenance.expire_snapshots(older_than=soon(), retain_last=1)
        before = files_below(folders[share])
        plan.commit()
        gone = {path.removeprefix(str(folders[share])) for path in before - files_below(folders[share])}
        age(folders[share])
        table = sm.load_table(tree.location(), spark=spark)
        assert sorted(row.id for row in table.scan().select("id").to_df().collect()) == rows
        data_paths = {path for path in gone if not path.startswith("/metadata")}
        changed[share] = (rows, data_paths, table.scan().plan_files().count(), len(orphans(table)))
    assert changed[0.7] == changed[0] == changed[1]


def test_nothing_acts_on_a_relative_location_of_an_earlier_version(spark: SparkSession, tmp_path: Path) -> None:
    catalog: Any = sm.load_catalog("old", type="hadoop", warehouse=str(tmp_path), spark=spark)
    schema = Schema(NestedField(1, "id", LongType()))
    table = catalog.create_table("db.t", schema, format_version=2)
    table.append(spark.range(3))
    folder = tmp_path / "db" / "t"
    (manifest,) = folder.glob("metadata/*-m*.avro")

    def relative(entry: dict[str, Any]) -> dict[str, Any]:
        path = entry["data_file"]["file_path"].removeprefix(f"{table.location()}/")
        return entry | {"data_file": entry["data_file"] | {"file_path": path}}

    _alter(manifest, relative)
    (listed,) = folder.glob("metadata/snap-*.avro")
    _alter(listed, lambda row: row | {"manifest_length": manifest.stat().st_size})
    age(folder)
    before = files_below(folder)
    table = sm.load_table(str(folder), spark=spark)
    message = rf"{manifest.name}: location is 'data/.*': a location is absolute in a table of format version 2"
    actions: list[Callable[[], Any]] = [
        lambda: table.scan().plan_files().collect(),
        lambda: table.scan().to_df().collect(),
        lambda: table.inspect.files().collect(),
        lambda: table.inspect.all_entries().collect(),
        lambda: table.maintenance.remove_orphan_files(older_than=datetime.now(UTC) - timedelta(days=2)).commit(),
        lambda: catalog.purge_table("db.t").commit(),
        lambda: table.delete("id = 1"),
    ]
    for action in actions:
        with pytest.raises(Exception, match=message):
            action()
    assert files_below(folder) == before
