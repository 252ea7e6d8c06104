"""The operations that catalogs share: in a warehouse of folders, a SQL catalog and a REST catalog."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

import sparkmeta as sm
from sparkmeta.catalog.iceberg import IcebergCatalog
from sparkmeta.errors import NamespaceAlreadyExistsError, NamespaceNotEmptyError, NoSuchNamespaceError
from tests.command_line import invoke

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = Schema(NestedField(5, "id", LongType(), required=True), NestedField(7, "name", StringType(), required=False))
SPEC = PartitionSpec(PartitionField(5, 1005, BucketTransform(4), "id_bucket"))
ORDER = SortOrder(SortField(7, IdentityTransform()))
OTHERS = ["sql", "rest"]


@pytest.fixture(params=["hadoop", *OTHERS])
def configuration(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    if request.param == "rest":
        return {"type": "rest", "uri": request.getfixturevalue("rest_uri"), "rest-page-size": "1"}
    uri = {"uri": f"sqlite:///{tmp_path}/catalog.db"} if request.param == "sql" else {}
    return {"type": request.param, "warehouse": f"file://{tmp_path}", **uri}


@pytest.fixture
def catalog(configuration: dict[str, str], spark: SparkSession) -> sm.Catalog:
    return sm.load_catalog("prod", **configuration)


@pytest.fixture
def ns(catalog: sm.Catalog) -> str:
    """A namespace of the test's own, since a REST catalog is shared."""
    name = f"ns_{uuid.uuid4().hex[:8]}"
    catalog.create_namespace(name, {"owner": "me"})
    return name


def test_namespaces(catalog: sm.Catalog, ns: str) -> None:
    with pytest.raises(NamespaceAlreadyExistsError):
        catalog.create_namespace(ns)
    catalog.create_namespace_if_not_exists(ns)
    for name in ("b", "a"):
        catalog.create_namespace((ns, name))
    assert (ns,) in catalog.list_namespaces()
    assert catalog.list_namespaces(ns) == [(ns, "a"), (ns, "b")]
    assert catalog.namespace_exists(f"{ns}.a")
    with pytest.raises(NamespaceNotEmptyError):
        catalog.drop_namespace(ns)
    catalog.create_table(f"{ns}.a.t", SCHEMA)
    with pytest.raises(NamespaceNotEmptyError):
        catalog.drop_namespace((ns, "a"))
    catalog.drop_table(f"{ns}.a.t")
    for name in ("a", "b"):
        catalog.drop_namespace((ns, name))
    catalog.drop_namespace(ns)
    assert not catalog.namespace_exists(ns)
    with pytest.raises(NoSuchNamespaceError):
        catalog.drop_namespace(ns)


@pytest.mark.parametrize("version", [2, 3, 4])
def test_tables(catalog: sm.Catalog, ns: str, version: int) -> None:
    name = f"{ns}.t"
    assert not catalog.table_exists(name)
    with pytest.raises(sm.NoSuchTableError):
        catalog.load_table(name)
    layout = (SCHEMA, SPEC, ORDER, {"a": "1"})
    if version == 4 and "rest" in repr(catalog):
        with pytest.raises(sm.UnsupportedError, match="SQL catalogs, Glue and file system tables can"):
            catalog.create_table(name, *layout, format_version=version)
        assert not catalog.table_exists(name)
        return
    created = catalog.create_table(name, *layout, format_version=version)
    assert (created.format_version, created.name(), created.read_only) == (version, (ns, "t"), False)
    assert [(field.field_id, field.name) for field in created.schema().fields] == [(1, "id"), (2, "name")]
    assert [(field.source_id, field.field_id, field.name) for field in created.spec().fields] == [
        (1, 1000, "id_bucket")
    ]
    assert [field.source_id for field in created.sort_order().fields] == [2]
    assert created.properties == {"a": "1", "write.parquet.compression-codec": "zstd"}
    with pytest.raises(sm.NoSuchSnapshotError, match="has no snapshot 1"):
        created.manage_snapshots().create_tag(1, "a").commit()
    with pytest.raises(sm.TableAlreadyExistsError):
        catalog.create_table(name, SCHEMA)
    assert catalog.create_table_if_not_exists(name, Schema()).metadata == created.metadata
    assert catalog.create_table_if_not_exists(f"{ns}.other", SCHEMA).name() == (ns, "other")
    assert catalog.list_tables(ns) == [(ns, "other"), (ns, "t")]
    assert catalog.table_exists(name)
    assert catalog.load_table(name).metadata == created.metadata

    catalog.drop_table(name)
    assert not catalog.table_exists(name)
    assert catalog.list_tables(ns) == [(ns, "other")]
    with pytest.raises(sm.NoSuchTableError):
        catalog.drop_table(name)
    with pytest.raises(sm.NoSuchTableError):
        created.refresh()
    again = catalog.create_table(name, *layout, format_version=version)
    assert again.metadata.table_uuid != created.metadata.table_uuid
    assert catalog.load_table(name).metadata == again.metadata


@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.parametrize("configuration", OTHERS, indirect=True)
def test_renaming_and_registering(catalog: sm.Catalog, ns: str, version: int) -> None:
    if version == 4 and "rest" in repr(catalog):
        pytest.skip("test_registering_a_tree")
    created = catalog.create_table(f"{ns}.t", SCHEMA, format_version=version)
    catalog.create_namespace((ns, "deep"))
    renamed = catalog.rename_table(f"{ns}.t", (ns, "deep", "u"))
    assert (renamed.name(), renamed.metadata) == ((ns, "deep", "u"), created.metadata)
    assert not catalog.table_exists(f"{ns}.t")
    with pytest.raises(sm.NoSuchTableError):
        catalog.rename_table(f"{ns}.t", f"{ns}.v")
    catalog.create_table(f"{ns}.t", SCHEMA)
    with pytest.raises(sm.TableAlreadyExistsError):
        catalog.rename_table(f"{ns}.t", f"{ns}.deep.u")
    with pytest.raises(NoSuchNamespaceError):
        catalog.rename_table(f"{ns}.t", f"{ns}.none.u")

    with pytest.raises(sm.TableAlreadyExistsError):
        catalog.register_table(f"{ns}.t", renamed.metadata_location)
    catalog.drop_table(f"{ns}.deep.u")
    registered = catalog.register_table(f"{ns}.w", renamed.metadata_location)
    assert (registered.name(), registered.metadata, registered.read_only) == ((ns, "w"), created.metadata, False)
    with pytest.raises(NoSuchNamespaceError):
        catalog.register_table(f"{ns}.none.w", renamed.metadata_location)
    with pytest.raises(sm.SparkmetaError, match=r"none-\S+\.metadata\.json"):
        catalog.register_table(f"{ns}.x", renamed.metadata_location.replace("00000", "none"))
    assert not catalog.table_exists(f"{ns}.x")


@pytest.mark.parametrize("configuration", ["rest"], indirect=True)
def test_registering_a_tree(catalog: sm.Catalog, ns: str, tmp_path: Path) -> None:
    folders = sm.load_catalog("local", type="hadoop", warehouse=f"file://{tmp_path}")
    tree = folders.create_table("db.t", SCHEMA, format_version=4)
    with pytest.raises(sm.UnsupportedError, match="SQL catalogs, Glue and file system tables can"):
        catalog.register_table(f"{ns}.t", tree.metadata_location)
    assert not catalog.table_exists(f"{ns}.t")
    table = catalog.create_table(f"{ns}.u", SCHEMA)
    with pytest.raises(sm.UnsupportedError, match="SQL catalogs, Glue and file system tables can"):
        table.maintenance.upgrade(4)


def test_retention_that_others_set_meanwhile_stays(catalog: sm.Catalog, ns: str, spark: SparkSession) -> None:
    rows = spark.createDataFrame([(1, "a")], "id long, name string")
    stale = catalog.create_table(f"{ns}.t", SCHEMA, spark=spark).append(rows)
    others = catalog.load_table(f"{ns}.t").manage_snapshots()
    others.set_min_snapshots_to_keep("main", 7).set_max_ref_age_ms("main", 8).commit()
    stale.manage_snapshots().set_max_snapshot_age_ms("main", 9).commit()
    main = catalog.load_table(f"{ns}.t").refs()["main"]
    assert (main.min_snapshots_to_keep, main.max_snapshot_age_ms, main.max_ref_age_ms) == (7, 9, 8)


@pytest.mark.parametrize("configuration", ["hadoop"], indirect=True)
def test_what_folders_can_not_do(catalog: sm.Catalog, ns: str, tmp_path: Path) -> None:
    table = catalog.create_table(f"{ns}.t", SCHEMA, location=f"file://{tmp_path}/{ns}/t/")
    with pytest.raises(sm.UnsupportedError, match="can't be renamed"):
        catalog.rename_table(f"{ns}.t", f"{ns}.u")
    with pytest.raises(sm.UnsupportedError, match="can't be registered"):
        catalog.register_table(f"{ns}.u", table.metadata_location)
    with pytest.raises(sm.UnsupportedError, match="it can't be file:///elsewhere"):
        catalog.create_table(f"{ns}.u", SCHEMA, location="file:///elsewhere")
    assert catalog.list_tables(ns) == [(ns, "t")]


@pytest.mark.parametrize("configuration", ["hadoop"], indirect=True)
def test_a_dropped_folder_keeps_its_last_version(catalog: sm.Catalog, ns: str, tmp_path: Path) -> None:
    table = catalog.create_table(f"{ns}.t", SCHEMA, format_version=4)
    with table.transaction() as tx:
        tx.set_properties(a="1")
    metadata = tmp_path / ns / "t" / "metadata"
    (metadata / "data.parquet").write_bytes(b"a file")
    catalog.drop_table(f"{ns}.t")
    left = sorted(path.name for path in metadata.iterdir())
    assert left[0] == "data.parquet"
    assert [name.partition("-")[0] for name in left[1:]] == ["dropped"]
    dropped = sm.load_table(f"file://{metadata}/{left[1]}")
    assert (dropped.properties["a"], dropped.metadata.table_uuid) == ("1", table.metadata.table_uuid)


@pytest.mark.parametrize("version", [2, 4])
def test_purging(catalog: sm.Catalog, ns: str, tmp_path: Path, version: int, spark: SparkSession) -> None:
    """A plan lists what its commit deletes: what the table names, and no more."""
    if version == 4 and "rest" in repr(catalog):
        pytest.skip("no trees")
    name = f"{ns}.t"
    table = catalog.create_table(name, SCHEMA, format_version=version)
    expected = {"metadata": 1}
    if version == 4:
        data = tmp_path / "data.parquet"
        data.write_bytes(b"data")
        row = (str(data), "PARQUET", 1, 4)
        columns = "file_path string, file_format string, record_count long, file_size_in_bytes long"
        stale = catalog.purge_table(name)
        with table.transaction() as tx:
            tx.update_snapshot().append(spark.createDataFrame([row], columns))
        with pytest.raises(sm.CommitFailedError, match="has changed since the plan"):
            stale.commit()
        expected = {"data file": 1, "metadata": 2, "root": 1}
    elif isinstance(catalog, IcebergCatalog):
        catalog.pyiceberg.load_table(name).append(
            pa.table({"id": [1], "name": ["a"]}, schema=table.schema().as_arrow())
        )
        expected = {"data file": 1, "manifest": 1, "manifest list": 1, "metadata": 2}
    folder = Path(table.location().removeprefix("file:"))
    (folder / "stray.txt").write_text("a file that no metadata names")

    plan = catalog.purge_table(name)
    assert plan.summary().files == expected
    assert f"\n  metadata: {expected['metadata']} files\n" in f"{plan.summary()}\n"
    paths = [Path(row.file_path.removeprefix("file:")) for row in plan.to_df().collect()]
    assert len(paths) == sum(expected.values())
    assert all(path.exists() for path in paths)
    deletion = plan.commit()
    assert plan.by_catalog == (deletion is None) == ("rest" in repr(catalog))
    assert deletion is None or (deletion.files, deletion.failed) == (expected, 0)
    assert not any(path.exists() for path in paths)
    assert [path.name for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")] == [
        "stray.txt"
    ]
    assert not catalog.table_exists(name)
    assert plan.commit() is deletion
    with pytest.raises(sm.NoSuchTableError):
        catalog.purge_table(name)


@pytest.mark.parametrize("configuration", ["sql"], indirect=True)
def test_purging_a_damaged_table(catalog: IcebergCatalog, ns: str) -> None:
    """It stays, since its files can't be listed."""
    table = catalog.create_table(f"{ns}.t", SCHEMA)
    rows = pa.table({"id": [1], "name": ["a"]}, schema=table.schema().as_arrow())
    catalog.pyiceberg.load_table(f"{ns}.t").append(rows)
    plan = catalog.purge_table(f"{ns}.t")
    (manifest,) = (row.file_path for row in plan.to_df().where("content = 'manifest'").collect())
    Path(manifest.removeprefix("file:")).write_bytes(b"no manifest")
    with pytest.raises(sm.ValidationError, match=Path(manifest).name):
        catalog.purge_table(f"{ns}.t").commit()
    assert catalog.load_table(f"{ns}.t").refresh().current_snapshot() is not None


@pytest.mark.parametrize("left", [0, 1])
@pytest.mark.parametrize("configuration", ["hadoop"], indirect=True)
def test_purging_statistics_of_snapshots_that_are_gone(
    catalog: sm.Catalog, ns: str, left: int, spark: SparkSession
) -> None:
    rows = spark.createDataFrame([(1, "a")], "id long, name string")
    table = catalog.create_table(f"{ns}.t", SCHEMA, SPEC, spark=spark).append(rows)
    table = table.maintenance.compute_table_stats().commit().maintenance.compute_partition_stats().commit().append(rows)
    metadata = table.metadata
    statistics = [metadata.statistics[0].statistics_path, metadata.partition_statistics[0].statistics_path]
    changes = {"snapshots": metadata.snapshots[1:][:left], "snapshot_log": metadata.snapshot_log[1:][:left]}
    if not left:
        changes |= {"current_snapshot_id": None, "refs": {}}
    table.operations.commit(table.version, metadata.model_copy(update=changes))

    plan = catalog.purge_table(f"{ns}.t")
    of_statistics = {"statistics file": 1, "partition statistics file": 1}
    assert plan.summary().files.items() >= of_statistics.items()
    deletion = plan.commit()
    assert deletion is not None
    assert deletion.files.items() >= of_statistics.items()
    assert not any(Path(path.removeprefix("file:")).exists() for path in statistics)


@pytest.mark.parametrize("configuration", ["sql", "hadoop"], indirect=True)
def test_purging_an_encrypted_table(catalog: sm.Catalog, ns: str) -> None:
    catalog.create_table(f"{ns}.secret", SCHEMA, properties={"encryption.key-id": "k"})
    catalog.purge_table(f"{ns}.secret").commit()
    assert not catalog.table_exists(f"{ns}.secret")


def test_what_is_not_purged(catalog: sm.Catalog, ns: str) -> None:
    catalog.create_table(f"{ns}.shared", SCHEMA, properties={"gc.enabled": "false"})
    with pytest.raises(sm.ValidationError, match=r"gc\.enabled is false: its files may belong to other tables"):
        catalog.purge_table(f"{ns}.shared")
    with pytest.raises(sm.NoSuchTableError):
        catalog.purge_table(f"{ns}.none")


def test_the_command_line(catalog: sm.Catalog, configuration: dict[str, str], ns: str) -> None:
    catalog.create_namespace((ns, "deep"))
    for name in (f"{ns}.t", f"{ns}.deep.u"):
        catalog.create_table(name, SCHEMA)
    properties = [part for key, value in configuration.items() for part in ("--property", f"{key}={value}")]

    def run(*arguments: str) -> str:
        result = invoke([*arguments, "--catalog", "prod", *properties])
        assert result.exit_code == 0, result.output
        return result.stdout

    assert run("namespaces").splitlines().count(ns) == 1
    assert run("namespaces", ns) == f"{ns}.deep\n"
    assert json.loads(run("namespaces", ns, "--output", "json")) == [[ns, "deep"]]
    assert run("tables", ns) == f"{ns}.t\n"
    assert {f"{ns}.t", f"{ns}.deep.u"} <= set(run("tables").splitlines())
    assert json.loads(run("tables", f"{ns}.deep", "--output", "json")) == [[ns, "deep", "u"]]
    assert json.loads(run("describe", f"{ns}.t", "--output", "json"))["format_version"] == 2
