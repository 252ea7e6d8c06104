"""Encrypted tables: written, read, inspected and maintained without Spark, with every format and kind of deletes."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

import sparkmeta as sm
from sparkmeta.errors import EncryptionError, InvalidArgumentError, UnsupportedError, ValidationError
from sparkmeta.spec.schema import VariantType
from sparkmeta.storage import keys
from sparkmeta.storage.encryption import FileKey, Stream
from sparkmeta.storage.keys import manifest_list_key
from tests.master_keys import NAME, MasterKeys, master_key

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA = Schema(
    NestedField(1, "id", LongType()), NestedField(2, "data", StringType()), NestedField(3, "p", IntegerType())
)
SPEC = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "p"))
KEYS = {"encryption.kms-impl": NAME}


def rows(start: int, end: int, text: str = "visible-") -> pa.Table:
    ids = range(start, end)
    parts = pa.array([number % 3 for number in ids], pa.int32())
    return pa.table({"id": pa.array(ids, pa.int64()), "data": [f"{text}{number}" for number in ids], "p": parts})


class Encrypted:
    """A catalog with an encrypted table `db.t`."""

    def __init__(self, folder: Path, **properties: Any) -> None:
        self.folder = folder
        self.catalog = self.opened(KEYS)
        self.catalog.create_namespace("db")
        all_properties = {"encryption.key-id": "master", "write.delete.mode": "merge-on-read"} | properties
        self.catalog.create_table("db.t", SCHEMA, partition_spec=SPEC, properties=all_properties, format_version=3)

    def opened(self, properties: dict[str, Any]) -> sm.Catalog:
        places = {"uri": f"sqlite:///{self.folder}/c.db", "warehouse": f"file://{self.folder}/warehouse"}
        return sm.load_catalog("sql", type="sql", **places, **properties)

    @property
    def table(self) -> sm.Table:
        return self.catalog.load_table("db.t")

    def without_keys(self, **properties: Any) -> sm.Table:
        return self.opened(properties).load_table("db.t")

    @property
    def ids(self) -> list[int]:
        read = self.table.scan().to_arrow()
        assert read.column("data").to_pylist() == [f"visible-{number}" for number in read.column("id").to_pylist()]
        return sorted(read.column("id").to_pylist())

    def files(self) -> Iterator[Path]:
        return (path for path in self.folder.glob("warehouse/db/t/*/**/*") if path.is_file())


@pytest.fixture(params=["parquet", "avro"])
def encrypted(request: pytest.FixtureRequest, tmp_path: Path) -> Encrypted:
    return Encrypted(tmp_path, **{"write.format.default": request.param, "encryption.data-key-length": "24"})


def test_changes_of_rows(encrypted: Encrypted) -> None:
    encrypted.table.append(rows(0, 90))
    encrypted.table.append(rows(90, 100))
    assert encrypted.ids == [*range(100)]
    encrypted.table.delete("id < 5 or id = 95")
    encrypted.table.delete("id = 5 or id = 96")
    expected = [number for number in range(6, 100) if number not in (95, 96)]
    assert encrypted.ids == expected
    # The vectors of a file are merged.
    vectors = encrypted.table.inspect.arrow.delete_files(columns=["file_format", "record_count", "key_metadata"])
    assert {row["file_format"] for row in vectors.to_pylist()} == {"PUFFIN"}
    assert sum(vectors.column("record_count").to_pylist()) == 8
    assert not vectors.column("key_metadata").null_count
    encrypted.table.equality_delete(rows(10, 12).select(["id", "p"]), equality_cols=["id"])
    expected = [number for number in expected if number not in (10, 11)]
    assert encrypted.ids == expected
    encrypted.table.overwrite(rows(200, 203), overwrite_filter="id >= 90")
    expected = [number for number in expected if number < 90] + [200, 201, 202]
    assert encrypted.ids == expected
    encrypted.table.upsert(rows(202, 206), join_cols=["id"])
    expected += [203, 204, 205]
    assert encrypted.ids == expected
    assert encrypted.table.scan().count() == len(expected)
    assert encrypted.table.scan("id >= 203").to_arrow().num_rows == 3
    assert_all_encrypted(encrypted)


def test_deletes_after_equality_deletes(encrypted: Encrypted) -> None:
    """Deletion vectors must include position delete files, which equality deletes are not."""
    encrypted.table.append(rows(0, 30))
    encrypted.table.equality_delete(rows(10, 12).select(["id", "p"]), equality_cols=["id"])
    encrypted.table.delete("id = 2")
    encrypted.table.upsert(rows(3, 4, "visible-"), join_cols=["id"])
    assert encrypted.ids == [number for number in range(30) if number not in (2, 10, 11)]
    assert_all_encrypted(encrypted)


@pytest.mark.parametrize("starts", [True, False])
def test_encryption_that_starts_or_ends_beside_a_commit(tmp_path: Path, starts: bool) -> None:
    """No commit adds files in clear to an encrypted table, or encrypted files to another."""
    encrypted = Encrypted(tmp_path)
    properties = {"encryption.key-id": "master"}
    if starts:
        with encrypted.table.transaction() as tx:
            tx.remove_properties("encryption.key-id")
    transaction = encrypted.table.transaction()
    transaction.append(rows(0, 3))
    with encrypted.table.transaction() as tx:
        tx.set_properties(properties) if starts else tx.remove_properties(*properties)
    before = encrypted.table.metadata_location
    with pytest.raises(sm.SparkmetaError, match="encrypted"):
        transaction.commit()
    assert encrypted.table.metadata_location == before
    encrypted.table.append(rows(3, 5))
    assert encrypted.ids == [3, 4]


def test_files_in_clear(tmp_path: Path) -> None:
    encrypted, other = Encrypted(tmp_path), tmp_path / "other"
    other.mkdir()
    in_clear = Encrypted(other)
    with in_clear.table.transaction() as tx:
        tx.remove_properties("encryption.key-id")
    files = in_clear.table.append(rows(0, 3)).inspect.arrow.data_files()
    transaction = encrypted.table.transaction()
    transaction.update_snapshot().append(files)
    with pytest.raises(ValidationError, match=r"key_metadata of file .*parquet is null: the table is encrypted"):
        transaction.commit()


def test_bloom_filters_are_refused(tmp_path: Path) -> None:
    encrypted = Encrypted(tmp_path, **{"write.parquet.bloom-filter-enabled.column.id": "true"})
    with pytest.raises(UnsupportedError, match="the table is encrypted, and Bloom filters can't be"):
        encrypted.table.append(rows(0, 3))


def assert_all_encrypted(encrypted: Encrypted) -> None:
    """Each file but the table metadata is encrypted, and shows no value."""
    count = 0
    for path in encrypted.files():
        content = path.read_bytes()
        if path.name.endswith(".metadata.json"):
            assert b"visible-" not in content
            continue
        count += 1
        assert content[:4] == (b"PARE" if path.suffix == ".parquet" else b"AGS1")
        assert b"visible-" not in content
        assert str(path.parent).encode() not in content
    assert count > 10
    files = encrypted.table.inspect.arrow.all_files(columns=["file_path", "key_metadata", "file_size_in_bytes"])
    keys_of_files = [FileKey.parse(row["key_metadata"], row["file_path"]) for row in files.to_pylist()]
    assert {len(key.key) for key in keys_of_files} == {24}
    lengths = [key.length for key in keys_of_files]
    assert lengths == files.column("file_size_in_bytes").to_pylist()
    by_path = {row["file_path"]: row["key_metadata"] for row in files.to_pylist()}
    assert len(set(by_path.values())) == len(by_path)


def test_metadata_tables(encrypted: Encrypted) -> None:
    encrypted.table.append(rows(0, 30))
    encrypted.table.append(rows(30, 60))
    encrypted.table.delete("id < 2")
    table = encrypted.table
    assert len(table.inspect.arrow.files()) == 8
    assert len(table.inspect.arrow.all_files()) == 8
    assert len(table.inspect.arrow.all_entries()) == 8
    manifests = table.inspect.arrow.all_manifests()
    assert len(manifests) == 6
    assert not manifests.column("key_metadata").null_count
    assert table.inspect.arrow.partitions().num_rows == 3
    positions = table.inspect.arrow.position_deletes()
    assert sorted(positions.column("pos").to_pylist()) == [0, 0]
    planned = table.scan("id = 0").arrow.plan_files().to_pylist()
    assert [bool(row["key_metadata"]) for row in planned] == [True]
    assert [bool(delete["key_metadata"]) for row in planned for delete in row["deletes"]] == [True]
    assert len(table.scan().arrow.plan_files()) == 6
    task = json.loads(table.scan("id = 0").arrow.plan_task_json().column("task")[0].as_py())
    (file,) = planned
    assert task["data-file"]["key-metadata"] == file["key_metadata"].hex().upper()
    assert [delete["key-metadata"] for delete in task["delete-files"]] == [
        delete["key_metadata"].hex().upper() for delete in file["deletes"]
    ]


def test_merged_and_rewritten_manifests(encrypted: Encrypted) -> None:
    with encrypted.table.transaction() as transaction:
        transaction.set_properties({"commit.manifest.min-count-to-merge": "2"})
    for start in range(0, 40, 10):
        encrypted.table.append(rows(start, start + 10))
    assert len(encrypted.table.inspect.arrow.manifests()) == 1
    encrypted.table.delete("p = 1")
    assert encrypted.ids == [number for number in range(40) if number % 3 != 1]
    assert_all_encrypted_manifests(encrypted.table)


def assert_all_encrypted_manifests(table: sm.Table) -> None:
    for row in table.state.manifests.to_pylist():
        content = Path(row["location"].removeprefix("file://")).read_bytes()
        assert len(content) == row["file_size_in_bytes"]
        assert Stream.of(row["location"], row["key_metadata"]).decrypted(content)[:4] == b"Obj\x01"


def test_keys_of_the_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encrypted = Encrypted(tmp_path)
    encrypted.table.append(rows(0, 3))
    encrypted.table.append(rows(3, 6))
    first, *lists = encrypted.table.metadata.encryption_keys
    assert (first["encrypted-by-id"], [*first["properties"]]) == ("master", ["KEY_TIMESTAMP"])
    assert [entry["encrypted-by-id"] for entry in lists] == [first["key-id"]] * 2
    snapshots = encrypted.table.metadata.snapshots
    assert {snapshot.key_id for snapshot in snapshots} == {entry["key-id"] for entry in lists}
    # After two years a new key encrypts the keys of manifest lists. Snapshots with the old one can be read.
    monkeypatch.setattr(keys, "_LIFESPAN_MS", -1)
    encrypted.table.append(rows(6, 9))
    *_, wrapping, last = encrypted.table.metadata.encryption_keys
    assert wrapping["encrypted-by-id"] == "master"
    assert last["encrypted-by-id"] == wrapping["key-id"] != first["key-id"]
    assert encrypted.ids == [*range(9)]
    assert encrypted.table.scan(snapshot_id=snapshots[0].snapshot_id).count() == 3


def test_a_key_is_unwrapped_once_an_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encrypted, client = Encrypted(tmp_path), MasterKeys()
    encrypted.table.append(rows(0, 3))
    catalog = encrypted.opened({"encryption.kms-impl": client})
    for _ in range(3):
        assert catalog.load_table("db.t").scan().count() == 3
    assert len(catalog.load_table("db.t").scan().to_arrow()) == 3
    assert client.unwrapped == ["master"]
    monkeypatch.setattr(keys, "_REMEMBERED", 0.0)
    monkeypatch.setattr(keys.time, "monotonic", lambda: 1e12)
    assert len(catalog.load_table("db.t").scan().to_arrow()) == 3
    assert client.unwrapped == ["master"] * 2


def test_no_key_client(tmp_path: Path) -> None:
    encrypted = Encrypted(tmp_path)
    table = encrypted.without_keys()
    before = {*encrypted.files()}
    with pytest.raises(
        EncryptionError, match=r"db/t: the table is encrypted by key master: open the table with the prop"
    ):
        table.append(rows(0, 3))
    assert {*encrypted.files()} == before
    encrypted.table.append(rows(0, 3))
    table = encrypted.without_keys()
    problem = r"db/t: snapshot \d+ is encrypted \(key-id .*\): open the table with the property encryption.kms-type or"
    for read in (table.scan().to_arrow, table.scan("id = 1").to_arrow, partial(table.inspect.arrow.files)):
        with pytest.raises(EncryptionError, match=problem):
            read()
    assert len(table.inspect.arrow.snapshots()) == 1


class Refusing(MasterKeys):
    def unwrap_key(self, wrapped_key: bytes, key_id: str) -> bytes:
        raise PermissionError(f"not allowed: {wrapped_key!r} {master_key(key_id)!r}")


class Wrong(MasterKeys):
    def unwrap_key(self, wrapped_key: bytes, key_id: str) -> bytes:
        return b"sixteen secrets."


class Short(MasterKeys):
    def unwrap_key(self, wrapped_key: bytes, key_id: str) -> bytes:
        return b"secret"


@pytest.mark.parametrize(
    ("client", "problem"),
    [
        (Refusing(), "the key client failed to unwrap a key with key master: PermissionError$"),
        (Wrong(), "key .* of snapshot .*, encrypted by key .*: the key is wrong, or the bytes were changed"),
        (Short(), "the key client returned 6 bytes for key master, not 16, 24 or 32"),
        (lambda *_: "text", "the key client returned str, not bytes, for key master"),
    ],
)
def test_keys_that_are_refused_or_wrong(tmp_path: Path, client: object, problem: str) -> None:
    encrypted = Encrypted(tmp_path)
    encrypted.table.append(rows(0, 3))
    before = {*encrypted.files()}
    table = encrypted.without_keys(**{"encryption.kms-impl": client})
    with pytest.raises(EncryptionError, match=rf"db/t: {problem}") as error:
        table.scan().to_arrow()
    assert "secret" not in str(error.value)
    assert "master0123" not in str(error.value)
    assert error.value.__cause__ is None
    with pytest.raises(EncryptionError, match="db/t"):
        encrypted.without_keys(**{"encryption.kms-impl": client}).append(rows(0, 3))
    assert {*encrypted.files()} - before <= {path for path in encrypted.files() if client.__class__ is Wrong}


def test_a_function_that_unwraps(tmp_path: Path) -> None:
    encrypted = Encrypted(tmp_path)
    function = {"encryption.kms-impl": MasterKeys().unwrap_key}
    before = {*encrypted.files()}
    with pytest.raises(
        UnsupportedError, match=r"the key client can't wrap a new key with key master: encryption.kms-impl"
    ):
        encrypted.without_keys(**function).append(rows(0, 3))
    assert {*encrypted.files()} == before
    encrypted.table.append(rows(0, 3))
    # The key that encrypts the keys of lists exists.
    encrypted.without_keys(**function).append(rows(3, 6))
    assert encrypted.ids == [*range(6)]
    table = sm.load_table(encrypted.table.metadata_location, properties=function)
    assert table.scan().count() == 6


@pytest.mark.parametrize(
    ("properties", "problem"),
    [
        ({"encryption.kms-impl": "no.such.Client"}, "encryption.kms-impl: no.such.Client can't be imported"),
        ({"encryption.kms-impl": 7}, "encryption.kms-impl: int has no method unwrap_key"),
        ({"encryption.kms-type": "aws", "encryption.kms-impl": "x.Y"}, "encryption.kms-type and .* are both set"),
    ],
)
def test_invalid_key_clients(tmp_path: Path, properties: dict[str, Any], problem: str) -> None:
    encrypted = Encrypted(tmp_path)
    encrypted.table.append(rows(0, 3))
    with pytest.raises(InvalidArgumentError, match=problem):
        encrypted.without_keys(**properties).scan().to_arrow()


def test_an_unknown_type_of_key_client(tmp_path: Path) -> None:
    encrypted = Encrypted(tmp_path)
    encrypted.table.append(rows(0, 3))
    with pytest.raises(UnsupportedError, match=r"encryption.kms-type: there is no client for 'azure': use aws, gcp or"):
        encrypted.without_keys(**{"encryption.kms-type": "azure"}).scan().to_arrow()


def test_damaged_files(encrypted: Encrypted) -> None:
    encrypted.table.append(rows(0, 3))
    (data, *_) = encrypted.table.inspect.arrow.files(columns=["file_path"]).column(0).to_pylist()
    path = Path(data.removeprefix("file://"))
    content = path.read_bytes()
    path.write_bytes(content[:40] + bytes([content[40] ^ 1]) + content[41:])
    with pytest.raises(sm.errors.SparkmetaError, match=re.escape(path.name)):
        encrypted.table.scan().to_arrow()
    (manifest, *_) = encrypted.table.state.manifests.column("location").to_pylist()
    path = Path(manifest.removeprefix("file://"))
    content = path.read_bytes()
    path.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    with pytest.raises(EncryptionError, match=rf"{path.name}: block 0: the key is wrong, or the bytes were changed"):
        encrypted.table.scan().arrow.plan_files()


def test_metadata_without_a_key(tmp_path: Path) -> None:
    encrypted = Encrypted(tmp_path)
    encrypted.table.append(rows(0, 3))
    path = Path(encrypted.table.metadata_location.removeprefix("file://"))
    document = json.loads(path.read_text())
    wrapping, of_list = document["encryption-keys"]
    for remaining, problem in (
        ([wrapping], f"encryption-keys has no key {re.escape(of_list['key-id'])}"),
        ([of_list], f"encryption-keys has no key {re.escape(wrapping['key-id'])}"),
        ([{**wrapping, "properties": {}}, of_list], "has no property KEY_TIMESTAMP"),
        ([{**wrapping, "encrypted-key-metadata": "?"}, of_list], "has no encrypted-key-metadata in base64"),
        ([{**wrapping, "properties": {"KEY_TIMESTAMP": "1"}}, of_list], "the key is wrong, or the bytes were changed"),
    ):
        path.write_text(json.dumps(document | {"encryption-keys": remaining}))
        table = sm.load_table(str(path), properties=KEYS)
        with pytest.raises(EncryptionError, match=problem):
            table.scan().to_arrow()


@pytest.mark.parametrize("length", ["0", "20", "x"])
def test_invalid_lengths_of_keys(tmp_path: Path, length: str) -> None:
    encrypted = Encrypted(tmp_path, **{"encryption.data-key-length": length})
    before = {*encrypted.files()}
    with pytest.raises(InvalidArgumentError, match=rf"encryption.data-key-length is '{length}', not 16, 24 or 32"):
        encrypted.table.append(rows(0, 3))
    assert {*encrypted.files()} == before


def test_refused_variants(tmp_path: Path) -> None:
    """A variant is marked in a footer, which is encrypted."""
    encrypted = Encrypted(tmp_path)
    encrypted.table.update_schema().add_column("v", VariantType()).commit()
    before = {*encrypted.files()}
    with pytest.raises(UnsupportedError, match=r"column v .*variant, which can't be marked in encrypted Parquet files"):
        encrypted.table.append(rows(0, 3))
    assert {*encrypted.files()} == before


def test_refused_formats(tmp_path: Path) -> None:
    encrypted = Encrypted(tmp_path, **{"write.format.default": "orc"})
    before = {*encrypted.files()}
    with pytest.raises(UnsupportedError, match="the table is encrypted, and ORC files can't be"):
        encrypted.table.append(rows(0, 3))
    assert {*encrypted.files()} == before


def test_a_removed_key_id(tmp_path: Path) -> None:
    encrypted = Encrypted(tmp_path)
    encrypted.table.append(rows(0, 3))
    with encrypted.table.transaction() as transaction:
        transaction.remove_properties("encryption.key-id")
    with pytest.raises(UnsupportedError, match=r"can't be committed to: its property encryption.key-id is missing"):
        encrypted.table.append(rows(3, 6))
    assert encrypted.ids == [0, 1, 2]


@pytest.mark.parametrize("version", [1, 2])
def test_older_format_versions(tmp_path: Path, version: int) -> None:
    catalog = sm.load_catalog("h", type="hadoop", warehouse=f"file://{tmp_path}", **KEYS)
    catalog.create_namespace("db")
    properties = {"encryption.key-id": "master"}
    table = catalog.create_table("db.t", SCHEMA, properties=properties, format_version=version)
    with pytest.raises(UnsupportedError, match=f"can't be committed to: it has format version {version}, not 3"):
        table.append(rows(0, 3))


def test_a_manifest_list_has_a_key_of_its_own(tmp_path: Path) -> None:
    encrypted = Encrypted(tmp_path)
    encrypted.table.append(rows(0, 3))
    encrypted.table.append(rows(3, 6))
    state = encrypted.table.state
    of_lists = {manifest_list_key(state.files, state.metadata, snapshot) for snapshot in state.metadata.snapshots}
    assert len(of_lists) == 2
    assert None not in of_lists
