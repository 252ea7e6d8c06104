"""The remaining manifests that an expiry opens: manifests that may list a file of an expiring manifest."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.transforms import BucketTransform

import sparkmeta as sm
from sparkmeta.maintain.reachable_tasks import LISTED, MANIFEST, SharedFiles
from tests.commit.test_lists import change, new_table
from tests.maintain.test_expire import files_below, opened, planned_paths, soon
from tests.peers.file_maker import local_path
from tests.peers.java import Java
from tests.peers.slices import SOAK
from tests.peers.workshop import Workshop

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FIELDS = ((1000, "int"), (1001, "string"), (1002, "boolean"), (1003, "double"))
CODES: dict[str, Any] = {
    "int": lambda value: struct.pack("<i", value), "string": str.encode, "boolean": lambda value: bytes([value]),
    "double": lambda value: struct.pack("<d", value),
}  # fmt: skip
VALUES: dict[str, Any] = {
    "int": st.sampled_from([-300, -1, 0, 300]), "string": st.sampled_from(["", "a", "é", "\U00010000"]),
    "boolean": st.booleans(),
    "double": st.sampled_from([-1.0, -0.0, 0.0, 1.0]),
}  # fmt: skip
TUPLES = st.tuples(*(st.none() | VALUES[kind] for _, kind in FIELDS))


def summary(kind: str, values: list[Any]) -> dict[str, Any]:
    present = sorted(value for value in values if value is not None)
    bounds = [CODES[kind](present[index]) if present else None for index in (0, -1)]
    return {"contains_null": None in values, "contains_nan": None, "lower_bound": bounds[0], "upper_bound": bounds[1]}


@settings(max_examples=2_000 if SOAK else 200)
@given(drawn=st.data(), pool=st.lists(TUPLES, min_size=1, max_size=5))
def test_none_that_shares_a_tuple_is_left_out(drawn: st.DataObject, pool: list[Any]) -> None:
    """A manifest is left out if its range of some field overlaps no expiring manifest's, except for floats."""
    manifests = st.lists(st.lists(st.sampled_from(pool), min_size=1, max_size=3), max_size=4)
    expired, retained = drawn.draw(manifests), drawn.draw(manifests)
    unknown = drawn.draw(st.sets(st.integers(0, 7), max_size=1))
    rows = []
    for number, tuples in enumerate([*expired, *retained]):
        summaries = [summary(kind, [row[index] for row in tuples]) for index, (_, kind) in enumerate(FIELDS)]
        rows.append(
            {"content": MANIFEST, "path": str(number), "retained": number >= len(expired), "spec_id": 3, "kind": 0,
             "partitions": None if number in unknown else summaries}
        )  # fmt: skip
    if not rows:
        return
    chosen = SharedFiles({3: FIELDS}).chosen(pa.Table.from_pylist(rows, LISTED))
    opened_ones = {int(path) for path in chosen.column("path").to_pylist()}
    assert opened_ones >= set(range(len(expired)))
    for number, tuples in enumerate(retained, len(expired)):
        if any(row in other for other in expired for row in tuples):
            assert number in opened_ones
        if not unknown and expired:
            may_share = all(any(overlap(tuples, other, index) for other in expired) for index in range(3))
            assert (number in opened_ones) == may_share


def overlap(some: list[Any], others: list[Any], place: int) -> bool:
    """Return whether two manifests may share a value of a field, by its least and greatest values and nulls."""
    values = [[row[place] for row in rows] for rows in (some, others)]
    present = [sorted(value for value in column if value is not None) for column in values]
    within = all(present) and present[0][0] <= present[1][-1] and present[1][0] <= present[0][-1]
    return within or all(None in column for column in values)


@pytest.mark.java
def test_what_is_not_opened(spark: SparkSession) -> None:
    """A manifest of another partition is not opened unless a data file would be deleted."""
    shop = Workshop(Java(spark), "unopened")
    shop.create("id INT, part STRING", "part")
    again = shop.data_file("again.parquet", {"id": [1]}, ["a"])
    shop.append(again)
    shop.insert("2, 'b'")
    other = next(
        row["path"] for row in opened(shop).inspect.manifests().collect() if row["partition_summaries"][0][2] == "b"
    )
    shop.sql("DELETE FROM {t} WHERE part = 'a'")
    shop.append(again)
    moved = Path(local_path(other)).rename(f"{local_path(other)}.away")
    plan = opened(shop).maintenance.expire_snapshots(older_than=soon())
    assert not [path for path in planned_paths(plan.to_df()) if path.endswith(".parquet")]
    shop.append(shop.data_file("gone.parquet", {"id": [3]}, ["c"]))
    shop.sql("DELETE FROM {t} WHERE part = 'c'")
    with pytest.raises(sm.NotFoundError, match=Path(other).name):
        opened(shop).maintenance.expire_snapshots(older_than=soon()).to_df()
    moved.rename(local_path(other))
    plan = opened(shop).maintenance.expire_snapshots(older_than=soon())
    data_files = {Path(path).name for path in planned_paths(plan.to_df()) if path.endswith(".parquet")}
    assert data_files == {"gone.parquet"}
    after = plan.commit()
    assert after.scan().to_df().count() == 2
    assert any(path.endswith("again.parquet") for path in files_below(shop.folder))


def test_a_file_that_was_added_again_under_another_partition(spark: SparkSession, tmp_path: Path) -> None:
    """The file stays: a user may have corrected a wrong partition."""
    table = new_table(spark, tmp_path)

    def files(name: str, part: str) -> DataFrame:
        return spark.sql(
            f"SELECT '{tmp_path}/{name}' file_path, 'parquet' file_format, 0 spec_id, 10L record_count, "
            f"100L file_size_in_bytes, struct('{part}' AS s) partition"
        )

    table = change(table, files("again", "b"))
    table = change(table, files("gone", "b"))
    table = change(table, removed=files("again", "b").union(files("gone", "b")).select("file_path"))
    table = change(table, files("again", "z"))
    unneeded = {
        Path(path).name for path in planned_paths(table.maintenance.expire_snapshots(older_than=soon()).to_df())
    }
    assert "gone" in unneeded
    assert "again" not in unneeded


def test_a_file_that_was_added_again_under_another_spec(spark: SparkSession, tmp_path: Path) -> None:
    """The file stays, though the manifest that lists it overlaps with no expired one of its spec."""
    table = new_table(spark, tmp_path)

    def files(name: str, spec_id: int, part: str) -> DataFrame:
        bucket = ", CAST(0 AS INT) AS id_bucket" if spec_id else ""
        return spark.sql(
            f"SELECT '{tmp_path}/{name}' file_path, 'parquet' file_format, {spec_id} spec_id, 10L record_count, "
            f"100L file_size_in_bytes, struct('{part}' AS s{bucket}) partition"
        )

    table = change(table, files("again", 0, "a"))
    with table.update_spec() as update:
        update.add_field("id", BucketTransform(4), "id_bucket")
    table = change(table.refresh(), files("gone", 1, "b"))
    table = change(table, removed=files("again", 0, "a").select("file_path"))
    table = change(table, files("again", 1, "a"), files("gone", 1, "b").select("file_path"))
    plan = table.maintenance.expire_snapshots(older_than=soon())
    unneeded = {Path(path).name for path in planned_paths(plan.to_df())}
    assert "gone" in unneeded
    assert "again" not in unneeded
