"""Tables whose metadata file is lost or cut are recovered from the files in their folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import sparkmeta as sm
from sparkmeta.storage.location import local_path
from tests.command_line import invoke

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

CATALOGS = ("folders", "sql")
VERSIONS = (2, 4)


def new_catalog(folder: Path, kind: str) -> Any:
    if kind == "folders":
        return sm.load_catalog("folders", type="hadoop", warehouse=folder.as_uri())
    properties = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": folder.as_uri()}
    return sm.load_catalog("sql", type="sql", **properties)


def new_table(catalog: Any, version: int, spark: SparkSession, **properties: str) -> sm.Table:
    catalog.create_namespace_if_not_exists("db")
    schema = pa.schema([("id", pa.int64())])
    table = catalog.create_table("db.t", schema, format_version=version, properties=properties, spark=spark)
    for number in range(3):
        table = table.append(pa.table({"id": pa.array([number], pa.int64())}))
    return table


def ids(table: sm.Table) -> list[int]:
    return sorted(row.id for row in table.scan().to_df().collect())


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


DAMAGE: dict[str, Callable[[Path], None]] = {"cut": cut, "empty": empty, "lost": Path.unlink}


@pytest.mark.parametrize("kind", CATALOGS)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_the_newest_file(spark: SparkSession, tmp_path: Path, kind: str, version: int, damage: str, codec: str) -> None:
    catalog = new_catalog(tmp_path, kind)
    table = new_table(catalog, version, spark, **{"write.metadata.compression-codec": codec})
    newest = Path(local_path(table.metadata_location))
    DAMAGE[damage](newest)
    plan = catalog.recover_table("db.t", spark=spark)
    before = sorted(path.name for path in newest.parent.iterdir())
    summary = plan.summary()
    assert not summary.is_empty
    assert summary.given_up == (() if damage == "lost" else (table.metadata_location,))
    assert [row.is_chosen for row in plan.to_df().collect()][-1]
    assert sorted(path.name for path in newest.parent.iterdir()) == before
    recovered = plan.commit()
    assert (recovered.metadata_location == plan.metadata_location) == (kind == "folders")
    assert ids(recovered) == [0, 1]
    assert ids(catalog.load_table("db.t", spark).append(pa.table({"id": pa.array([9], pa.int64())}))) == [0, 1, 9]
    assert len(list(newest.parent.glob("broken-*.json"))) == (kind == "folders" and damage != "lost")
    assert catalog.recover_table("db.t", spark=spark).summary().is_empty


@pytest.mark.parametrize("kind", CATALOGS)
def test_several_files_are_cut(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    catalog = new_catalog(tmp_path, kind)
    table = new_table(catalog, 2, spark)
    files = [*(entry.metadata_file for entry in table.metadata.metadata_log), table.metadata_location]
    for path in files[-2:]:
        cut(Path(local_path(path)))
    plan = catalog.recover_table("db.t", spark=spark)
    assert plan.summary().given_up == (files[-1], files[-2])
    assert str(plan.summary()).count("  lost: ") == 2
    recovered = plan.commit()
    assert ids(recovered) == [0]
    for path in {*files[:2], recovered.metadata_location}:
        cut(Path(local_path(path)))
    with pytest.raises(sm.NoSuchTableError, match="no metadata file can be read"):
        catalog.recover_table("db.t", spark=spark)


def test_a_catalog_without_the_table(spark: SparkSession, tmp_path: Path) -> None:
    """The pointer is gone: the folder tells the newest file."""
    catalog = new_catalog(tmp_path, "sql")
    table = new_table(catalog, 3, spark)
    catalog.drop_table("db.t")
    with pytest.raises(sm.ValidationError, match="location is needed, the folder of the table"):
        catalog.recover_table("db.t", spark=spark)
    plan = catalog.recover_table("db.t", table.location(), spark=spark)
    assert plan.metadata_location == table.metadata_location
    assert not catalog.table_exists("db.t")
    assert ids(plan.commit()) == [0, 1, 2]
    assert catalog.load_table("db.t", spark).metadata_location == table.metadata_location


def test_files_of_lost_commits_are_not_taken(spark: SparkSession, tmp_path: Path) -> None:
    """Files with the number of the catalog's file, or a higher one, were never committed."""
    catalog = new_catalog(tmp_path, "sql")
    table = new_table(catalog, 2, spark)
    path = Path(local_path(table.metadata_location))
    number = int(path.name.partition("-")[0])
    for other in (number, number + 1):
        (path.parent / f"{other:05d}-11111111-1111-4111-8111-111111111111.metadata.json").write_bytes(path.read_bytes())
    assert catalog.recover_table("db.t", spark=spark).summary().is_empty
    assert catalog.recover_table("db.t", spark=spark).commit().metadata_location == table.metadata_location
    cut(path)
    assert ids(catalog.recover_table("db.t", spark=spark).commit()) == [0, 1]
    catalog.drop_table("db.t")
    orphan = path.with_name(f"{number + 1:05d}-11111111-1111-4111-8111-111111111111.metadata.json")
    named = orphan.name.replace("1111-", "2222-")
    orphan.with_name(named).write_bytes(orphan.read_bytes())
    with pytest.raises(sm.ValidationError, match="so the commit of one was lost: name one as metadata_location"):
        catalog.recover_table("db.t", table.location(), spark=spark)
    assert ids(catalog.recover_table("db.t", table.location(), named, spark=spark).commit()) == [0, 1, 2]


@pytest.mark.parametrize("kind", CATALOGS)
def test_an_older_version_is_chosen(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    catalog = new_catalog(tmp_path, kind)
    table = new_table(catalog, 2, spark)
    older = table.metadata.metadata_log[-1].metadata_file
    assert ids(catalog.recover_table("db.t", metadata_location=older, spark=spark).commit()) == [0, 1]
    with pytest.raises(sm.NoSuchTableError, match="there is no metadata file v99"):
        catalog.recover_table("db.t", metadata_location="v99.metadata.json", spark=spark)


def test_the_command(spark: SparkSession, tmp_path: Path) -> None:
    catalog = new_catalog(tmp_path, "folders")
    table = new_table(catalog, 2, spark)
    cut(Path(local_path(table.metadata_location)))
    properties = ["--catalog", "lake", "--property", "type=hadoop", "--property", f"warehouse={tmp_path.as_uri()}"]
    planned = invoke(["recover-table", "db.t", *properties])
    assert planned.exit_code == 0, planned.output
    assert "v4.metadata.json" in invoke(["recover-table", "db.t", "--files", *properties]).stdout
    assert "v3.metadata.json with 2 snapshots becomes current" in planned.stdout
    assert "lost: " in planned.stdout
    assert invoke(["recover-table", "db.t", "--commit", *properties]).exit_code == 0
    assert ids(catalog.load_table("db.t", spark)) == [0, 1]


def test_others_have_recovered_the_table(spark: SparkSession, tmp_path: Path) -> None:
    """An old plan does not undo commits of others."""
    catalog = new_catalog(tmp_path, "sql")
    table = new_table(catalog, 2, spark)
    cut(Path(local_path(table.metadata_location)))
    plans = [catalog.recover_table("db.t", spark=spark) for _ in range(2)]
    plans[0].commit().append(pa.table({"id": pa.array([9], pa.int64())}))
    with pytest.raises(sm.CommitFailedError):
        plans[1].commit()
    assert ids(catalog.load_table("db.t", spark)) == [0, 1, 9]


def test_another_table_in_the_folder(spark: SparkSession, tmp_path: Path) -> None:
    """Files of another table, which had the name before, are not taken."""
    catalog = new_catalog(tmp_path, "sql")
    new_table(catalog, 2, spark)
    catalog.rename_table("db.t", "db.old")
    table = new_table(catalog, 2, spark)
    for entry in table.metadata.metadata_log:
        Path(local_path(entry.metadata_file)).unlink()
    cut(Path(local_path(table.metadata_location)))
    with pytest.raises(sm.NoSuchTableError, match="no metadata file can be read"):
        catalog.recover_table("db.t", spark=spark)
    other = catalog.load_table("db.old", spark)
    with pytest.raises(sm.ValidationError, match="it is of another table"):
        catalog.recover_table("db.t", metadata_location=other.metadata_location, spark=spark)


def test_others_have_committed(spark: SparkSession, tmp_path: Path) -> None:
    catalog = new_catalog(tmp_path, "folders")
    table = new_table(catalog, 2, spark)
    path = Path(local_path(table.metadata_location))
    data = path.read_bytes()
    cut(path)
    plan = catalog.recover_table("db.t", spark=spark)
    path.write_bytes(data)
    table.append(pa.table({"id": pa.array([7], pa.int64())}))
    with pytest.raises(sm.CommitFailedError, match="have changed since the plan"):
        plan.commit()
    assert ids(catalog.load_table("db.t", spark)) == [0, 1, 2, 7]


def test_a_rest_catalog(spark: SparkSession, rest_uri: str) -> None:
    """The server can't read the file, and pyiceberg repeats each request for a minute and a half."""
    catalog, namespace = sm.load_catalog("rest", type="rest", uri=rest_uri), "recovery"
    catalog.create_namespace(namespace)
    table = catalog.create_table(f"{namespace}.t", pa.schema([("id", pa.int64())]), spark=spark)
    for number in range(2):
        table = table.append(pa.table({"id": pa.array([number], pa.int64())}))
    cut(Path(local_path(table.metadata_location)))
    with pytest.raises(sm.ValidationError, match="the catalog does not say which metadata file is current") as error:
        catalog.recover_table(f"{namespace}.t", table.location(), spark=spark)
    newest = str(error.value).rpartition(" ")[2]
    recovered = catalog.recover_table(f"{namespace}.t", table.location(), newest, spark=spark).commit()
    assert ids(recovered) == [0]
    assert ids(recovered.append(pa.table({"id": pa.array([5], pa.int64())}))) == [0, 5]
