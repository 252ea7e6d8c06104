"""Maintenance of encrypted tables: what reads, expires and deletes files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

import sparkmeta as sm
from tests.write.test_encrypted_tables import KEYS, SCHEMA, Encrypted, rows

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

_OLD = 1e9


def test_expiry_orphans_and_health(spark: SparkSession, tmp_path: Path) -> None:
    encrypted = Encrypted(tmp_path)
    for start in (0, 10, 20):
        encrypted.table.append(rows(start, start + 10))
    encrypted.table.delete("id < 3")
    table = encrypted.catalog.load_table("db.t", spark)
    assert "deletion vectors" in str(table.maintenance.health())
    plan = table.maintenance.expire_snapshots(retain_last=1, older_than=1 << 42)
    assert plan.summary().files["manifest list"] == 3
    plan.commit()
    stray = tmp_path / "warehouse" / "db" / "t" / "data" / "stray.parquet"
    stray.write_bytes(b"stray")
    for path in encrypted.files():
        os.utime(path, (_OLD, _OLD))
    table = encrypted.catalog.load_table("db.t", spark)
    table.maintenance.remove_orphan_files().commit()
    assert not stray.exists()
    assert encrypted.ids == [*range(3, 30)]
    table = encrypted.catalog.load_table("db.t", spark)
    for refused in ("rewrite_data_files", "rewrite_manifests", "repair", "compute_table_stats"):
        with pytest.raises(sm.UnsupportedError, match="db/t: the table is encrypted"):
            getattr(table.maintenance, refused)()


def test_trees_are_refused(tmp_path: Path) -> None:
    """A tree can have the property, but its files would not be encrypted."""
    catalog = sm.load_catalog("trees", type="hadoop", warehouse=tmp_path.as_uri(), **KEYS)
    catalog.create_namespace("db")
    properties = {"encryption.key-id": "master"}
    table = catalog.create_table("db.t", SCHEMA, properties=properties, format_version=4)
    before = table.metadata_location
    maintenance = table.maintenance
    for refused in (
        maintenance.compact_manifests,
        lambda: maintenance.convert_tree("iceberg"),
        lambda: maintenance.downgrade(3),
    ):
        with pytest.raises(sm.UnsupportedError, match="db/t: the table is encrypted, which metadata trees can't be"):
            refused()
    with pytest.raises(sm.UnsupportedError, match="db/t: the table is encrypted, and can't be committed to"):
        table.append(rows(0, 3))
    assert table.refresh().metadata_location == before
