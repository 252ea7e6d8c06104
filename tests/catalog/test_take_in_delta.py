"""Tables of the current files of a Delta table, by its log of commits and checkpoints."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sparkmeta as sm
from sparkmeta.errors import CorruptFileError, UnsupportedError, ValidationError
from sparkmeta.maintain.delta_log import _ACTIONS
from tests.catalog.test_take_in import sql_catalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sparkmeta.catalog import Catalog

SCHEMA = {
    "type": "struct",
    "fields": [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in (("id", "long"), ("v", "string"), ("p", "string"), ("n", "integer"))
    ],
}


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return sm.load_catalog("taking", type="hadoop", warehouse=str(tmp_path / "warehouse"))


@dataclass
class Delta:
    """A Delta table, whose commits are written by hand."""

    folder: Path
    actions: list[dict[str, Any]] = field(default_factory=list)
    versions: int = 0

    def begin(self, configuration: dict[str, str] | None = None, **protocol: Any) -> Delta:
        metadata = {
            "id": "an id",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(SCHEMA),
            "partitionColumns": ["p", "n"],
            "configuration": configuration or {},
        }
        self.commit({"protocol": {"minReaderVersion": 1, "minWriterVersion": 2, **protocol}}, {"metaData": metadata})
        return self

    @property
    def log(self) -> Path:
        return self.folder / "_delta_log"

    def commit(self, *actions: dict[str, Any]) -> None:
        self.log.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(action) for action in ({"commitInfo": {"operation": "WRITE"}}, *actions)]
        (self.log / f"{self.versions:020}.json").write_text("\n".join(lines))
        self.actions += actions
        self.versions += 1

    def write(self, name: str, p: str | None, n: str | None, **columns: Any) -> dict[str, Any]:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), path)
        values = {"p": p, "n": n}
        return {"add": {"path": quote(name, safe="/+"), "partitionValues": values, "size": 1, "dataChange": True}}

    def checkpoint(self, spark: SparkSession, actions: list[dict[str, Any]], parts: int = 1) -> None:
        """Write the actions to files of the newest version, and delete the commits up to it."""
        version = self.versions - 1
        for part in range(parts):
            texts = [(json.dumps(action),) for action in actions[part::parts]]
            schema = _ACTIONS.replace("\n", " ")
            rows = spark.createDataFrame(texts, "text STRING").selectExpr(f"from_json(text, '{schema}') AS a")
            scratch = self.folder / "_scratch"
            rows.select("a.*").coalesce(1).write.mode("overwrite").parquet(str(scratch))
            (file,) = scratch.glob("*.parquet")
            numbers = f".{part + 1:010}.{parts:010}" if parts > 1 else ""
            file.rename(self.log / f"{version:020}.checkpoint{numbers}.parquet")
        for number in range(version + 1):
            (self.log / f"{number:020}.json").unlink(missing_ok=True)


def remove(added: dict[str, Any]) -> dict[str, Any]:
    return {"remove": {"path": added["add"]["path"], "deletionTimestamp": 1, "dataChange": True}}


def ids(catalog: Catalog, delta: Delta, spark: SparkSession) -> list[int]:
    catalog.drop_table("db.t") if catalog.table_exists("db.t") else None
    table = catalog.snapshot_table(str(delta.folder), "db.t", spark=spark).commit()
    assert not table.check().collect()
    return sorted(row.id for row in table.scan().to_df().collect())


@pytest.mark.parametrize("parts", [1, 2])
def test_current_files(spark: SparkSession, tmp_path: Path, catalog: Catalog, parts: int) -> None:
    delta = Delta(tmp_path / "source").begin()
    first = delta.write("p=x y%2F+/n=1/a.parquet", "x y/+", "1", id=[1, 2], v=["a", "b"])
    second = delta.write("b.parquet", None, "", id=[3])
    delta.write("stale.parquet", "x", "1", id=[9])
    delta.commit(first, second)
    table = catalog.snapshot_table(str(delta.folder), "db.rows", spark=spark).commit()
    assert sorted(map(tuple, table.scan().to_df().collect())) == [
        (1, "a", "x y/+", 1),
        (2, "b", "x y/+", 1),
        (3, None, None, None),
    ]
    assert [spec_field.name for spec_field in table.spec().fields] == ["p", "n"]

    third = delta.write("p=null/c.parquet", "null", "-7", id=[4])
    third["add"]["path"] = quote(f"file:{delta.folder}/p=null/c.parquet", safe="/:")
    delta.commit(remove(first), third)
    assert ids(catalog, delta, spark) == [3, 4]
    delta.commit(first)
    delta.checkpoint(spark, [*delta.actions[:2], first, second, third, remove(delta.write("d", "x", "1"))], parts)
    assert ids(catalog, delta, spark) == [1, 2, 3, 4]
    delta.commit(remove(third))
    delta.commit(delta.write("p=q/e.parquet", "q", "2", id=[5]))
    assert ids(catalog, delta, spark) == [1, 2, 3, 5]
    with pytest.raises(UnsupportedError, match="a Delta table would go on to delete its files: snapshot_table leaves"):
        catalog.migrate_table(str(delta.folder), "db.m", spark=spark)


def test_files_of_another_table(spark: SparkSession, tmp_path: Path) -> None:
    """The new table is not in a folder that has files of a shallow clone, or below such a folder."""
    delta = Delta(tmp_path / "clone").begin()
    added = delta.write("a.parquet", None, "1", id=[1])
    (tmp_path / "original").mkdir()
    (delta.folder / "a.parquet").rename(tmp_path / "original" / "a.parquet")
    added["add"]["path"] = f"file:{tmp_path}/original/a.parquet"
    delta.commit(added)
    catalog = sql_catalog(tmp_path / "sql")
    for location in (tmp_path / "original", tmp_path / "original" / "new"):
        plan = catalog.snapshot_table(str(delta.folder), "db.t", location=str(location), spark=spark)
        with pytest.raises(ValidationError, match=f"t: location is {location}, and .*/original/a.parquet is a file of"):
            plan.summary()
    plan = catalog.snapshot_table(str(delta.folder), "db.t", location=f"{tmp_path}/new", spark=spark)
    assert plan.commit().scan().count() == 1


def test_tables_that_are_refused(spark: SparkSession, tmp_path: Path, catalog: Catalog) -> None:
    def problem(delta: Delta, kind: type[Exception] = UnsupportedError) -> str:
        with pytest.raises(kind) as info:
            catalog.snapshot_table(str(delta.folder), "db.t", spark=spark).summary()
        return str(info.value)

    features = {"minReaderVersion": 3, "minWriterVersion": 7}
    delta = Delta(tmp_path / "feature").begin(**features, readerFeatures=["timestampNtz", "v2Checkpoint"])
    assert problem(delta) == f"{delta.folder}: the Delta table needs v2Checkpoint, which is not supported"
    delta = Delta(tmp_path / "version").begin(minReaderVersion=4)
    assert "needs reader version 4, which" in problem(delta)
    delta = Delta(tmp_path / "mapping").begin({"delta.columnMapping.mode": "name"}, minReaderVersion=2)
    assert "delta.columnMapping.mode is name: column mapping is not supported" in problem(delta)

    delta = Delta(tmp_path / "vectors").begin(**features, readerFeatures=["deletionVectors"])
    added = delta.write("a.parquet", "x", "1", id=[1])
    masked = {"add": added["add"] | {"deletionVector": {"storageType": "u"}}}
    delta.commit(added)
    assert ids(catalog, delta, spark) == [1]
    catalog.drop_table("db.t")
    delta.commit(remove(added), masked)
    assert "file a.parquet has a deletion vector, which is not supported" in problem(delta)

    delta = Delta(tmp_path / "gap").begin()
    delta.commit(delta.write("a.parquet", "x", "1", id=[1]))
    delta.commit()
    (delta.log / f"{1:020}.json").unlink()
    assert "there is no commit 1" in problem(delta, CorruptFileError)
    (delta.log / f"{1:020}.json").write_text('{"add": {"path": "a.par')
    assert "_delta_log" in problem(delta, sm.SparkmetaError)

    (delta.log / f"{1:020}.json").write_text("")
    assert "0001.json: length is 0: an empty file is no part of a Delta log" in problem(delta, CorruptFileError)
    delta = Delta(tmp_path / "coordinated").begin()
    (delta.log / "_commits").mkdir()
    (delta.log / "_commits" / f"{1:020}.uuid.json").write_text("{}")
    assert "the Delta table has commits that a catalog coordinates: not supported" in problem(delta)

    nested = Delta(tmp_path / "nested" / "below").begin()
    pq.write_table(pa.table({"id": [1]}), tmp_path / "nested" / "1.parquet")
    assert "belongs to a Delta table, whose current files are not all" in problem(Delta(nested.folder.parent))
    delta = Delta(tmp_path / "value").begin()
    delta.commit(delta.write("a.parquet", "x", "many", id=[1]))
    assert "a.parquet: folder n=many: can't be parsed as int" in problem(delta, ValidationError)
