"""Trees are converted between the layouts: what is planned, refused and told. `test_sequences` converts random ones."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import sparkmeta as sm
from sparkmeta.errors import CommitConflictError, UnsupportedError, ValidationError
from tests.commit.test_transaction import SCHEMA, SPEC
from tests.maintain.test_commands import command
from tests.maintain.test_compact import EAGER, append, delete, mask_rows, seen

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

LAYOUTS = [("proposal", "iceberg"), ("iceberg", "proposal")]


def new_table(spark: SparkSession, folder: Path, layout: str, version: int = 4) -> sm.Table:
    catalog: Any = sm.load_catalog("test", type="hadoop", warehouse=folder.as_uri())
    properties = {**EAGER, "write.tree.layout": layout}
    table: sm.Table = catalog.create_table(
        "db.t", SCHEMA, SPEC, properties=properties, format_version=version, spark=spark
    )
    return table


def metadata_of(table: sm.Table) -> dict[str, Any]:
    """Return the JSON of a table's metadata."""
    document: dict[str, Any] = json.loads(table.state.files.read(table.metadata_location))
    return document


@pytest.mark.parametrize(("layout", "other"), LAYOUTS)
def test_what_a_conversion_tells(spark: SparkSession, tmp_path: Path, layout: str, other: str) -> None:
    table = mask_rows(append(new_table(spark, tmp_path, layout), 1, 2, 3), tmp_path, "v", f2=[0])
    table.manage_snapshots().create_tag(table.metadata.current_snapshot_id, "audited").commit()
    table = table.refresh()
    plan = table.maintenance.convert_tree(other)
    text, rows = str(plan.summary()), plan.to_df().collect()
    assert f"gets the layout {other}" in text
    assert "tags on earlier snapshots: audited" in text
    assert ("sequence numbers of deletion vectors are lost" in text) == (other == "iceberg")
    assert {row.branch for row in rows} == {"main"}
    assert {row.file_path for row in rows} >= {*table.inspect.arrow.manifests().column("path").to_pylist()}
    converted = plan.commit()
    assert seen(converted, table.metadata.current_snapshot_id) == seen(table)
    assert ("tree-layout-revision" in metadata_of(converted)) == (other == "proposal")
    fields = metadata_of(converted)["partition-specs"][0]["fields"]
    assert all(("expr-id" in field) == (other == "proposal") for field in fields)


def test_what_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    table = append(new_table(spark, tmp_path, "proposal"), 1)
    with pytest.raises(ValidationError, match="has the layout proposal already"):
        table.maintenance.convert_tree("proposal")
    with pytest.raises(ValidationError, match="layout is 'avro'"):
        table.maintenance.convert_tree("avro")
    lists = new_table(spark, tmp_path / "lists", "iceberg", version=3)
    with pytest.raises(ValidationError, match="no metadata tree"):
        lists.maintenance.convert_tree("iceberg")
    without_scheme: Any = sm.load_catalog("test", type="hadoop", warehouse=str(tmp_path / "paths"))
    properties = {"write.tree.layout": "iceberg"}
    with pytest.raises(ValidationError, match=r"it has a scheme, as in file:///"):
        without_scheme.create_table("db.t", SCHEMA, SPEC, properties=properties, format_version=4, spark=spark)
    with pytest.raises(ValidationError, match=r"write.tree.layout is 'avro': expected"):
        new_table(spark, tmp_path / "unknown", "avro")


@pytest.mark.parametrize(("layout", "other"), LAYOUTS)
def test_a_rollback_to_the_other_layout(spark: SparkSession, tmp_path: Path, layout: str, other: str) -> None:
    """Commits onto an earlier tree are refused until it is converted."""
    table = append(new_table(spark, tmp_path, layout), 1, 2, 3)
    earlier = table.metadata.current_snapshot_id
    table = delete(table.maintenance.convert_tree(other).commit(), 2)
    table.manage_snapshots().rollback_to_snapshot(earlier).commit()
    table = table.refresh()
    expected = seen(table)
    with pytest.raises(UnsupportedError, match=rf"has the layout {layout}.*convert_tree\('{other}'\) converts it"):
        append(table, 4)
    converted = table.maintenance.convert_tree(other).commit()
    assert seen(converted) == expected
    assert len(seen(append(converted, 4))) == len(expected) + 1


@pytest.mark.parametrize(("layout", "other"), LAYOUTS)
def test_others_commit_while_a_plan_is_made(spark: SparkSession, tmp_path: Path, layout: str, other: str) -> None:
    table = append(new_table(spark, tmp_path, layout), 1, 2, 3)
    plan = table.maintenance.convert_tree(other)
    expected = seen(mask_rows(delete(table, 1), tmp_path, "v", f2=[1]))
    assert len(seen(plan.commit())) == len(expected) == 2
    obsolete = table.refresh().maintenance.convert_tree(layout)
    head = table.refresh().metadata.current_snapshot_id
    table.refresh().manage_snapshots().create_branch(head, "new").commit()
    with pytest.raises(CommitConflictError, match="others have changed branches"):
        obsolete.commit()


def test_on_the_command_line(spark: SparkSession, tmp_path: Path) -> None:
    table = append(new_table(spark, tmp_path, "proposal"), 1)
    assert "gets the layout iceberg" in command(
        table.location(), "--layout", "iceberg", "--commit", name="convert-tree"
    )
    assert table.refresh().properties["write.tree.layout"] == "iceberg"
