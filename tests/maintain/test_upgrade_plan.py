"""Plans of upgrades: their descriptions, their refusals, and concurrent commits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import sparkmeta as sm
from sparkmeta.errors import UnsupportedError, ValidationError
from sparkmeta.spec.metadata import serialize_table_metadata
from tests.spec.table_metadata import VERSIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def empty_table(spark: SparkSession, folder: Path, version: int, **changes: Any) -> sm.Table:
    """Return a table of a version without snapshots. A change to None removes a key from its metadata."""
    empty = {"snapshots": [], "refs": {}, "current-snapshot-id": -1, "snapshot-log": [], "metadata-log": []}
    document = VERSIONS[version]() | empty | {"location": f"file://{folder}"}
    document.pop("statistics", None)
    document.pop("partition-statistics", None)
    document.pop("encryption-keys", None)
    document |= {key.replace("_", "-"): value for key, value in changes.items()}
    document = {key: value for key, value in document.items() if value is not None or key == "current-snapshot-id"}
    (folder / "metadata").mkdir(parents=True)
    (folder / "metadata" / "v1.metadata.json").write_text(json.dumps(document))
    return sm.load_table(f"file://{folder}", spark=spark)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("version", [1, 2, 3])
def test_nothing_happens_before_the_commit(spark: SparkSession, tmp_path: Path, version: int) -> None:
    table = empty_table(spark, tmp_path / "t", version)
    plan = table.maintenance.upgrade(4)
    summary = plan.summary()
    assert (summary.from_version, summary.to_version, summary.snapshots) == (version, 4, 0)
    assert len(summary.expressions) == sum(len(spec.fields) for spec in table.specs().values())
    for expression in summary.expressions:
        assert f"expression {expression.expr_id}: {expression.transform}" in str(summary)
    assert names(tmp_path) == ["v1.metadata.json"]
    upgraded = plan.commit()
    assert upgraded.format_version == 4
    assert upgraded.metadata.expressions == list(summary.expressions)  # type: ignore[union-attr]
    assert serialize_table_metadata(upgraded.refresh().metadata) == serialize_table_metadata(upgraded.metadata)
    assert names(tmp_path) == ["v1.metadata.json", "v2.metadata.json", "version-hint.text"]
    assert upgraded.metadata.last_updated_ms > table.metadata.last_updated_ms
    assert [entry.metadata_file for entry in upgraded.metadata.metadata_log] == [table.metadata_location]


def test_a_table_without_uuid_gets_one(spark: SparkSession, tmp_path: Path) -> None:
    table = empty_table(spark, tmp_path / "t", 1, table_uuid=None)
    plan = table.maintenance.upgrade(4)
    assert plan.commit().metadata.table_uuid is not None


def test_other_commits_come_first(spark: SparkSession, tmp_path: Path) -> None:
    table = empty_table(spark, tmp_path / "t", 2)
    plan = table.maintenance.upgrade(4)
    between = table.metadata.model_copy(update={"properties": {"owner": "them"}})
    table.operations.commit(table.version, between)
    upgraded = plan.commit()
    assert upgraded.properties == {"owner": "them"}
    assert names(tmp_path)[-2:] == ["v3.metadata.json", "version-hint.text"]


def test_another_upgrade_comes_first(spark: SparkSession, tmp_path: Path) -> None:
    table = empty_table(spark, tmp_path / "t", 3)
    late = table.maintenance.upgrade(4)
    table.maintenance.upgrade(4).commit()
    with pytest.raises(ValidationError, match="has the metadata tree of format version 4 already"):
        late.commit()
    assert names(tmp_path)[-2:] == ["v2.metadata.json", "version-hint.text"]


def test_what_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    table = empty_table(spark, tmp_path / "t", 3)
    by_path = sm.load_table(table.metadata_location, spark=spark)
    with pytest.raises(UnsupportedError, match="opened by its path"):
        by_path.maintenance.upgrade(4)
    upgraded = table.maintenance.upgrade(4).commit()
    with pytest.raises(ValidationError, match="already"):
        upgraded.maintenance.upgrade(4)


@pytest.mark.parametrize(
    "encrypted",
    [
        {"properties": {"encryption.key-id": "k"}},
        {"encryption_keys": [{"key-id": "k", "encrypted-key-metadata": "aGk="}]},
    ],
)
def test_encrypted_tables_are_refused(spark: SparkSession, tmp_path: Path, encrypted: dict[str, Any]) -> None:
    table = empty_table(spark, tmp_path / "t", 3, **encrypted)
    with pytest.raises(UnsupportedError, match="encrypted"):
        table.maintenance.upgrade(4)
