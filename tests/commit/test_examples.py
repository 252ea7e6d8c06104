"""The examples of the V4 document, in its order.

Encodings that our commits write are made by commits. The document's other encodings are written by hand. Each example
states the live files, the snapshot's changes, and the root's entries as `name:status`, leaves first. Examples 18, 20
and 21 concern no table: see the tests of upgraded metadata, of the layout and of bitmaps.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType
from pyspark.sql import functions as F

import sparkmeta as sm
from sparkmeta.errors import CorruptFileError, from_spark
from sparkmeta.spec.bitmap import PositionBitmap, write_deletion_vector
from sparkmeta.spec.entry import ContentType
from sparkmeta.spec.puffin import deletion_vector_blob, write_puffin
from sparkmeta.spec.upgrade import upgrade_metadata
from sparkmeta.storage.location import file_name
from tests import handmade
from tests.commit.handmade_trees import HandmadeTree, data, vector
from tests.commit.tree_model import (
    ADDED,
    DELETED,
    EXISTING,
    MDV,
    Changes,
    Reading,
    Row,
    Store,
    change_set,
    ordinals,
    status,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STATUS = {EXISTING: "EXISTING", ADDED: "ADDED", DELETED: "DELETED"}
COLUMNS = Schema(NestedField(1, "id", LongType()))


def names(changes: Changes) -> tuple[set[str], set[str]]:
    """Return the names of the added and of the removed files."""
    return {file_name(file.location) for file in changes.added}, {file_name(file.location) for file in changes.removed}


def live(table: sm.Table, snapshot_id: int | None = None) -> dict[str, list[str]]:
    """Return the deletes of each data file, as a scan plans them."""
    try:
        rows = table.scan(snapshot_id=snapshot_id).plan_files().select("file_path", "deletes.file_path").collect()
    except Exception as error:
        raise from_spark(error) or error from error
    deletes = {file_name(row[0]): [file_name(path) for path in row[1] or []] for row in rows}
    assert len(deletes) == len(rows)
    return deletes


def planned(table: sm.Table, snapshot_id: int | None = None) -> set[str]:
    """Return the data files that a scan plans. None has deletes."""
    deletes = live(table, snapshot_id)
    assert not any(deletes.values())
    return set(deletes)


# -- tables that commits make ---------------------------------------------------------------------------------------


@dataclass
class Committed:
    """A table, and the number of files that its last commit wrote."""

    spark: SparkSession
    table: sm.Table
    written: int = 0

    @staticmethod
    def new(
        spark: SparkSession, folder: Path, direct_files: int, schema: Schema = COLUMNS, spec: Any = None
    ) -> Committed:
        """Create a table.

        Args:
            direct_files: the number of new files above which they become a leaf.
        """
        catalog = sm.load_catalog("x", type="hadoop", warehouse=str(folder))
        properties = {"write.tree.direct-files": str(direct_files)}
        spec = spec or UNPARTITIONED_PARTITION_SPEC
        return Committed(
            spark, catalog.create_table("db.t", schema, spec, properties=properties, format_version=4, spark=spark)
        )

    def files(self, *paths: str, **values: Any) -> DataFrame:
        """Return files of ten rows."""
        entry = {"file_format": "parquet", "record_count": 10, "file_size_in_bytes": 100} | values
        columns = ", ".join(f"{value!r} {name}" for name, value in entry.items() if not isinstance(value, str))
        texts = ", ".join(f"'{value}' {name}" for name, value in entry.items() if isinstance(value, str))
        selects = [f"select '/d/{path}' file_path, {texts}, {columns}" for path in paths]
        return self.spark.sql(" union all ".join(selects))

    def vectors(self, *pairs: tuple[str, str]) -> DataFrame:
        """Return deletion vectors of all ten rows, in a Puffin file each, from pairs of its name and the data file."""
        frames = []
        for name, of in pairs:
            blob = write_deletion_vector(PositionBitmap.of(range(10)))
            file = write_puffin([deletion_vector_blob(blob, f"/d/{of}", 10)])
            path = Path(self.table.location().removeprefix("file://")) / name
            path.write_bytes(file.data)
            (blob_position,) = file.blobs
            row = self.files(name, content=1, file_format="puffin", referenced_data_file=f"/d/{of}",
                             content_offset=blob_position.offset, content_size_in_bytes=blob_position.length,
                             file_size_in_bytes=len(file.data))  # fmt: skip
            frames.append(row.withColumn("file_path", F.lit(str(path))))
        whole = frames[0]
        for frame in frames[1:]:
            whole = whole.unionByName(frame)
        return whole

    def paths(self, *paths: str) -> DataFrame:
        return self.spark.sql(" union all ".join(f"select '/d/{path}' file_path" for path in paths))

    def commit(self, operation: str, *args: Any, **kwargs: Any) -> None:
        """Commit one operation, and set `written` to the number of manifests and Puffin files that it wrote."""
        folder = Path(self.table.location().removeprefix("file://")) / "metadata"
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        with self.table.transaction() as tx:
            getattr(tx.update_snapshot(), operation)(*args, **kwargs)
        self.table = self.table.refresh()
        after = {path.name for path in folder.iterdir()}
        assert all((folder / name).read_bytes() == old for name, old in before.items() if name != "version-hint.text")
        new = [name for name in after - set(before) if not name.startswith(".")]
        assert sum(name.endswith(".metadata.json") for name in new) == 1
        self.written = sum(name.endswith((".parquet", ".puffin", ".avro")) for name in new)

    def reading(self, back: int = 0) -> Reading:
        """Return the root of the newest snapshot, or of the one `back` snapshots before it."""
        snapshot = self.table.snapshots()[-1 - back]
        tree = self.table.state.at(snapshot).tree
        assert tree is not None
        store = Store()
        for location in (
            tree.root.of((ContentType.DATA_MANIFEST, ContentType.DELETE_MANIFEST), live=False)
            .column("location")
            .to_pylist()
        ):
            store.leaves[location] = self.leaf(location)
        return Reading(tree.root.table.to_pylist(), store)

    def leaf(self, location: str) -> Any:
        from sparkmeta.manifests.v4.layout import read_manifest

        return read_manifest(
            Path(location.removeprefix("file://")).read_bytes(), self.table.state.types.stats_types, location
        )[0]

    def root(self) -> list[str]:
        """Return the root's entries, with leaves by their files: `D1:ADDED`, `(D1 D2):EXISTING`, `mask{0}:ADDED`."""
        return shown(self.reading())

    def changes(self) -> tuple[set[str], set[str]]:
        parent = self.reading(1) if len(self.table.snapshots()) > 1 else None
        return names(change_set(self.reading(), parent))


def shown(reading: Reading) -> list[str]:
    return [f"{what(row, reading)}:{STATUS[status(row)]}" for row in reading.root]


def what(row: Row, reading: Reading) -> str:
    if row["content_type"] == MDV:
        return "mask{" + " ".join(map(str, sorted(ordinals(row, reading.store.load)))) + "}"
    if row["manifest_stats"] is not None:
        return "(" + " ".join(file_name(entry["location"]) for entry in reading.store.rows(row["location"])) + ")"
    return file_name(row["location"])


def test_1_append_to_the_root(spark: SparkSession, tmp_path: Path) -> None:
    table = Committed.new(spark, tmp_path, 2)
    table.commit("append", table.files("D1", "D2", "D3"))
    assert table.root() == ["(D1 D2 D3):ADDED"]
    table.commit("append", table.files("D4"))
    assert table.root() == ["(D1 D2 D3):EXISTING", "D4:ADDED"]
    assert (table.changes(), table.written) == (({"D4"}, set()), 1)
    table.commit("append", table.files("D5"))
    assert table.root() == ["(D1 D2 D3):EXISTING", "D4:EXISTING", "D5:ADDED"]
    assert (table.changes(), table.written) == (({"D5"}, set()), 1)
    assert planned(table.table) == {"D1", "D2", "D3", "D4", "D5"}
    (leaf,) = table.reading().store.leaves.values()
    assert {row["version_info"]["status"] for row in leaf.to_pylist()} == {ADDED}


def test_2_append_with_a_leaf(spark: SparkSession, tmp_path: Path) -> None:
    table = Committed.new(spark, tmp_path, 2)
    table.commit("append", table.files("D1", "D2", "D3"))
    table.commit("append", table.files("D4", "D5", "D6"))
    assert table.root() == ["(D1 D2 D3):EXISTING", "(D4 D5 D6):ADDED"]
    assert (table.changes(), table.written) == (({"D4", "D5", "D6"}, set()), 2)
    assert planned(table.table) == {f"D{number}" for number in range(1, 7)}


def test_3_remove_from_the_root(spark: SparkSession, tmp_path: Path) -> None:
    table = Committed.new(spark, tmp_path, 2)
    table.commit("append", table.files("D1", "D2"))
    table.commit("delete", table.paths("D1"))
    assert table.root() == ["D2:EXISTING", "D1:DELETED"]
    assert (table.changes(), table.written) == ((set(), {"D1"}), 1)
    assert planned(table.table) == {"D2"}
    table.commit("append", table.files("D3"))
    assert table.root() == ["D2:EXISTING", "D3:ADDED"]
    assert table.changes() == ({"D3"}, set())


def test_4_remove_from_a_leaf(spark: SparkSession, tmp_path: Path) -> None:
    table = Committed.new(spark, tmp_path, 2)
    table.commit("append", table.files("D1", "D2", "D3"))
    table.commit("delete", table.paths("D2"))
    assert table.root() == ["(D1 D2 D3):EXISTING", "mask{1}:ADDED"]
    assert (table.changes(), table.written) == ((set(), {"D2"}), 1)
    leaf, mask = table.reading().root
    assert leaf["manifest_stats"]["added_files_count"] == 3
    assert (mask["referenced_file"], mask["record_count"], mask["location"]) == (leaf["location"], 1, None)
    assert planned(table.table) == {"D1", "D3"}


def test_5_overwrite_in_the_root(spark: SparkSession, tmp_path: Path) -> None:
    table = Committed.new(spark, tmp_path, 2)
    table.commit("append", table.files("D1"))
    table.commit("overwrite", table.files("D2"), table.paths("D1"))
    assert table.root() == ["D1:DELETED", "D2:ADDED"]
    assert (table.changes(), table.written) == (({"D2"}, {"D1"}), 1)
    table.commit("overwrite", table.files("D3"), table.paths("D2"))
    assert table.root() == ["D2:DELETED", "D3:ADDED"]
    assert table.changes() == ({"D3"}, {"D2"})
    assert planned(table.table) == {"D3"}


def test_6_overwrite_in_a_leaf(spark: SparkSession, tmp_path: Path) -> None:
    table = Committed.new(spark, tmp_path, 2)
    table.commit("append", table.files("D1", "D2", "D3"))
    table.commit("overwrite", table.files("D4"), table.paths("D2"))
    assert table.root() == ["(D1 D2 D3):EXISTING", "mask{1}:ADDED", "D4:ADDED"]
    assert (table.changes(), table.written) == (({"D4"}, {"D2"}), 1)
    assert planned(table.table) == {"D1", "D3", "D4"}


def test_7_row_delta_in_the_root(spark: SparkSession, tmp_path: Path) -> None:
    table = Committed.new(spark, tmp_path, 2)
    table.commit("append", table.files("D1"))
    table.commit("row_delta", table.files("D2"), table.vectors(("DV1", "D1")))
    assert table.root() == ["D1:EXISTING", "D2:ADDED", "DV1:ADDED"]
    assert (table.changes(), table.written) == (({"D2", "DV1"}, set()), 1)
    assert live(table.table) == {"D1": ["DV1"], "D2": []}


def test_8_complex_row_delta(spark: SparkSession, tmp_path: Path) -> None:
    table = Committed.new(spark, tmp_path, 0)
    table.commit("row_delta", table.files("D1", "D2"), None)
    table.commit("row_delta", None, table.vectors(("DV1", "D1"), ("DV2", "D2")))
    assert live(table.table) == {"D1": ["DV1"], "D2": ["DV2"]}
    table.commit("row_delta", table.files("D3"), table.vectors(("DV4", "D1")))
    assert table.root() == ["(D1 D2):EXISTING", "(D3):ADDED", "(DV1 DV2):EXISTING", "(DV4):ADDED", "mask{0}:ADDED"]
    assert (table.changes(), table.written) == (({"D3", "DV4"}, {"DV1"}), 3)
    assert live(table.table) == {"D1": ["DV4"], "D2": ["DV2"], "D3": []}


def test_10_one_mask_takes_the_place_of_another(spark: SparkSession, tmp_path: Path) -> None:
    table = Committed.new(spark, tmp_path, 2)
    table.commit("append", table.files("D1", "D2", "D3"))
    table.commit("delete", table.paths("D2"))
    table.commit("delete", table.paths("D3"))
    assert sorted(table.root()) == ["(D1 D2 D3):EXISTING", "mask{1 2}:ADDED", "mask{1}:DELETED"]
    assert (table.changes(), table.written) == ((set(), {"D3"}), 1)
    assert planned(table.table) == {"D1"}
    table.commit("append", table.files("D4"))
    assert table.root() == ["(D1 D2 D3):EXISTING", "mask{1 2}:EXISTING", "D4:ADDED"]
    assert table.changes() == ({"D4"}, set())
    assert planned(table.table) == {"D1", "D4"}


def test_11_one_deletion_vector_takes_the_place_of_another(spark: SparkSession, tmp_path: Path) -> None:
    table = Committed.new(spark, tmp_path, 0)
    table.commit("append", table.files("D1", "D2"))
    table.commit("row_delta", None, table.vectors(("DV1", "D2")))
    with table.table.transaction() as tx:
        tx.set_properties({"write.tree.direct-files": "5"})
    table.table = table.table.refresh()
    table.commit("row_delta", None, table.vectors(("DV2", "D2")))
    assert table.root() == ["(D1 D2):EXISTING", "(DV1):EXISTING", "mask{0}:ADDED", "DV2:ADDED"]
    assert table.changes() == ({"DV2"}, {"DV1"})
    table.commit("row_delta", None, table.vectors(("DV4", "D2")))
    # The delete leaf, which is fully masked, has left the root.
    assert table.root() == ["(D1 D2):EXISTING", "DV2:DELETED", "DV4:ADDED"]
    assert table.changes() == ({"DV4"}, {"DV2"})
    assert live(table.table) == {"D1": [], "D2": ["DV4"]}


def test_13_the_rest_of_a_leaf_is_removed(spark: SparkSession, tmp_path: Path) -> None:
    table = Committed.new(spark, tmp_path, 2)
    files = [f"D{number}" for number in range(10)]
    table.commit("append", table.files(*files))
    table.commit("delete", table.paths(*files[:7]))
    table.commit("delete", table.paths(*files[7:]))
    assert [text.split(":")[1] for text in table.root()] == ["EXISTING", "DELETED", "ADDED"]
    assert (table.changes(), table.written) == ((set(), set(files[7:])), 1)
    assert planned(table.table) == set()


def test_16_a_data_file_goes_with_its_deletion_vector(spark: SparkSession, tmp_path: Path) -> None:
    table = Committed.new(spark, tmp_path, 0)
    table.commit("append", table.files("D1", "D2"))
    table.commit("row_delta", None, table.vectors(("DV1", "D1")))
    table.commit("delete", table.paths("D1"))
    assert table.root() == ["(D1 D2):EXISTING", "(DV1):EXISTING", "mask{0}:ADDED", "mask{0}:ADDED"]
    assert (table.changes(), table.written) == ((set(), {"D1", "DV1"}), 1)
    assert planned(table.table) == {"D2"}
    table.commit("delete", table.paths("D2"))
    # The delete leaf has no live entry left: it leaves the root with its mask (semantics 16.17).
    assert sorted(table.root()) == ["(D1 D2):EXISTING", "mask{0 1}:ADDED", "mask{0}:DELETED"]
    assert planned(table.table) == set()


def test_17_upgrade(spark: SparkSession, tmp_path: Path) -> None:
    """A manifest list becomes a root of EXISTING leaves. The manifests stay, and deletes mask their rows."""
    old = handmade.HandmadeTable(tmp_path / "t", 3)
    old.add(0, 0, handmade.data("/d/D0", status=2), *(handmade.data(f"/d/D{number}") for number in (1, 2, 3)))
    old.add(1, 0, handmade.deletion_vector("/d/D1"), handmade.deletion_vector("/d/D3", content_offset=50))
    old.write()
    before = sm.load_table(str(old.folder), spark=spark)
    listed = before.state.manifest_files.to_pylist()
    swapped = before.operations.commit(before.version, upgrade_metadata(before.metadata))
    table = Committed(spark, before.at(swapped))
    assert set(live(table.table)) == {"D1", "D2", "D3"}
    table.commit("append", table.files("D4"))
    tree = table.table.state.tree
    assert tree is not None
    rows = tree.root.table.to_pylist()
    assert [(row["content_type"], status(row)) for row in rows] == [(3, EXISTING), (4, EXISTING), (0, ADDED)]
    for row, was in zip(rows, listed, strict=False):
        assert (row["location"], row["file_size_in_bytes"]) == (was["manifest_path"], was["manifest_length"])
        assert (row["file_format"], row["partition_spec_id"]) == ("avro", was["partition_spec_id"])
        assert row["version_info"]["snapshot_id"] == was["added_snapshot_id"]
        assert row["version_info"]["sequence_number"] == was["sequence_number"]
    counts = [
        (row["manifest_stats"]["added_files_count"], row["manifest_stats"]["deleted_files_count"]) for row in rows[:2]
    ]
    assert counts == [(3, 1), (2, 0)]
    assert table.written == 1
    assert set(live(table.table)) == {"D1", "D2", "D3", "D4"}
    table.commit("delete", table.paths("D2"))
    assert table.written == 1
    masks = [row for row in table.table.state.tree.root.table.to_pylist() if row["content_type"] == MDV]  # type: ignore[union-attr]
    assert [(row["referenced_file"], ordinals(row, Store().load)) for row in masks] == [(rows[0]["location"], {2})]
    assert live(table.table) == {"D1": ["dvs.puffin"], "D3": ["dvs.puffin"], "D4": []}
    first = table.table.metadata.snapshots[0]
    assert (first.manifest_list is not None, first.root_manifest) == (True, None)
    assert set(live(table.table, first.snapshot_id)) == {"D1", "D2", "D3"}


def test_19_partition_values_of_equality_deletes(spark: SparkSession, tmp_path: Path) -> None:
    """("commit", 2025-06-20) is the day of the time, derived from the expression's stats (semantics 17.8)."""
    schema = Schema(NestedField(1, "event_type", StringType()), NestedField(2, "event_ts", TimestamptzType()))
    day = PartitionField(2, 1001, DayTransform(), "event_ts_day")
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "event_type"), day)
    table = Committed.new(spark, tmp_path, 9, schema, spec)

    def of(name: str, kind: str | None, when: str | None, **values: Any) -> DataFrame:
        kind, when = (f"'{kind}'" if kind else "null", f"date'{when}'" if when else "cast(null as date)")
        value = f"struct(cast({kind} as string) event_type, {when} event_ts_day) partition"
        return table.files(name, **values).selectExpr("*", value)

    deletes = {"content": 2}
    files = of("D1", "commit", "2025-06-20").unionByName(of("other", "commit", "2025-06-21"))
    table.commit("append", files.unionByName(of("null", None, None)))
    eq = of("E1", "commit", "2025-06-20", **deletes).unionByName(of("E2", None, None, **deletes))
    table.commit("row_delta", of("D2", "commit", "2025-06-20"), eq.selectExpr("*", "array(1) equality_ids"))
    assert live(table.table) == {"D1": ["E1"], "other": [], "null": ["E2"], "D2": []}
    row = next(row for row in table.reading().root if row["location"] == "/d/E1")
    stats = {field_stats["lower_bound"] for field_stats in row["content_stats"].values() if field_stats is not None}
    assert stats == {"commit", date(2025, 6, 20)}


# -- other encodings ------------------------------------------------------------------------------------------------

THREE = [data("D1"), data("D2"), data("D3")]


@pytest.fixture
def tree(tmp_path: Path) -> HandmadeTree:
    return HandmadeTree(tmp_path / "t")


def check(tree: HandmadeTree, spark: SparkSession, *expected: tuple[set[str], set[str], set[str]]) -> None:
    """Compare the live, added and removed files of each snapshot with the expected ones."""
    table = tree.load(spark)
    for number, (files, added, removed) in enumerate(expected, 1):
        assert planned(table, 100 + number) == files
        parent = tree.reading(number - 1) if number > 1 else None
        assert names(change_set(tree.reading(number), parent)) == (added, removed)


def test_9_compaction_during_an_append(spark: SparkSession, tree: HandmadeTree) -> None:
    """M3 has the entries of M1 and M2, each with its own numbers. The only change is D7."""
    from sparkmeta.commit.next_root import Stamp, TreeChange, next_root
    from sparkmeta.manifests.v4.root import Root
    from tests.commit.handmade_trees import SCHEMA, pa

    tree.leaf("M1", [data(f"D{number}", EXISTING, 1, first_row_id=10 * number) for number in (1, 2, 3)])
    tree.leaf("M2", [data(f"D{number}", EXISTING, 1, first_row_id=10 * number) for number in (4, 5, 6)])
    tree.leaf("M3", [data(f"D{number}", EXISTING, 1, first_row_id=10 * number) for number in (2, 3, 4, 6)])
    masks = [tree.mask("M1", {0}, EXISTING, 1), tree.mask("M2", {1}, EXISTING, 1)]
    base = tree.snapshot(tree.of("M1", EXISTING, 1), tree.of("M2", EXISTING, 1), *masks)
    change = TreeChange(
        added=pa.Table.from_pylist([data("D7")], schema=SCHEMA),
        dropped=frozenset(tree.leaves[name]["location"] for name in ("M1", "M2")),
        existing=pa.Table.from_pylist([tree.leaves["M3"]], schema=SCHEMA),
    )
    root = Root("base", pa.Table.from_pylist(base.root, schema=SCHEMA))
    rows = next_root(root, change, Stamp(102, 2, 500), SCHEMA, tree.store.load).table.to_pylist()
    assert shown(tree.snapshot(*rows)) == ["(D2 D3 D4 D6):EXISTING", "D7:ADDED"]
    rest = {"D2", "D3", "D4", "D6"}
    check(tree, spark, (rest, set(), set()), (rest | {"D7"}, {"D7"}, set()))
    assert [row["version_info"]["snapshot_id"] for row in tree.store.rows(tree.path("M3.parquet"))] == [101] * 4


def test_10_several_masks_of_a_leaf(spark: SparkSession, tree: HandmadeTree) -> None:
    """Two live vectors of a leaf are refused. Lenient readers still find the changes."""
    tree.leaf("M1", THREE)
    tree.snapshot(tree.of("M1", ADDED, 1))
    old = tree.of("M1", EXISTING, 1)
    tree.snapshot(old, tree.mask("M1", {1}, ADDED, 2))
    tree.snapshot(old, tree.mask("M1", {1}, EXISTING, 2), tree.mask("M1", {2}, ADDED, 3))
    tree.snapshot(old, tree.mask("M1", {1, 2}, EXISTING, 3), data("D4", ADDED, 4))
    table = tree.load(spark)
    with pytest.raises(CorruptFileError, match="two live deletion vectors"):
        planned(table, 103)
    assert planned(table, 104) == {"D1", "D4"}
    lenient = [tree.reading(number, lenient=True) for number in (1, 2, 3, 4)]
    assert [names(change_set(now, parent)) for parent, now in pairwise(lenient)] == [
        (set(), {"D2"}), (set(), {"D3"}), ({"D4"}, set())
    ]  # fmt: skip
    assert {file_name(key.location) for key in lenient[2].live()} == {"D1"}


def test_11_several_deletion_vectors_of_a_file(spark: SparkSession, tree: HandmadeTree) -> None:
    """Two live vectors of a file are refused: either alone would bring deleted rows back."""
    tree.leaf("M1", [data("D1", EXISTING, 1), data("D2", EXISTING, 1)])
    tree.leaf("M2", [vector("DV1", "D2", EXISTING, 1)])
    tree.leaf("M3", [vector("DV2", "D2")])
    old = [tree.of("M1", EXISTING, 1), tree.of("M2", EXISTING, 1)]
    tree.snapshot(*old)
    reading = tree.snapshot(*old, tree.of("M3", ADDED, 2))
    assert names(change_set(reading, tree.reading(1))) == ({"DV2"}, set())
    with pytest.raises(Exception, match=r"(?s)deletion vector.*D2|D2.*deletion vector"):
        live(tree.load(spark))


def test_12_a_mask_of_a_new_leaf(spark: SparkSession, tree: HandmadeTree) -> None:
    """Masked entries of a new leaf never existed."""
    tree.leaf("M1", THREE)
    tree.snapshot(tree.of("M1", ADDED, 1), data("D5", ADDED, 1), tree.mask("M1", {1}, ADDED, 1))
    check(tree, spark, ({"D1", "D3", "D5"}, {"D1", "D3", "D5"}, set()))


TEN = [f"D{number}" for number in range(10)]
SEVEN, LAST = set(range(7)), set(TEN[7:])


def ten(tree: HandmadeTree) -> None:
    """Add a leaf of ten files, and mask seven of them."""
    tree.leaf("m1", [data(name) for name in TEN])
    tree.snapshot(tree.of("m1", ADDED, 1), tree.mask("m1", SEVEN, ADDED, 1))


def test_13_a_leaf_that_is_deleted(spark: SparkSession, tree: HandmadeTree) -> None:
    ten(tree)
    tree.snapshot(tree.of("m1", DELETED, 1), tree.mask("m1", SEVEN, DELETED, 1))
    tree.snapshot()
    check(tree, spark, (LAST, LAST, set()), (set(), set(), LAST), (set(), set(), set()))


def test_13_a_leaf_that_is_deleted_with_a_mask_of_what_was_left(spark: SparkSession, tree: HandmadeTree) -> None:
    ten(tree)
    tree.snapshot(tree.of("m1", DELETED, 1), tree.mask("m1", {7, 8, 9}, ADDED, 2))
    check(tree, spark, (LAST, LAST, set()), (set(), set(), LAST))


@pytest.mark.parametrize("how", [ADDED, EXISTING])
def test_14_a_rewrite_changes_nothing(spark: SparkSession, tree: HandmadeTree, how: int) -> None:
    ten(tree)
    tree.leaf("m2", [data(name, EXISTING, 1) for name in TEN[7:]])
    tree.snapshot(tree.of("m2", how, 2))
    check(tree, spark, (LAST, LAST, set()), (LAST, set(), set()))


NEW = [f"N{number}" for number in range(5)]
REMAINING = {"D8", "D9"}


def test_15_a_rewrite_with_changes_in_one_leaf(spark: SparkSession, tree: HandmadeTree) -> None:
    ten(tree)
    entries = [data("D8", EXISTING, 1), data("D9", EXISTING, 1), data("D7", DELETED, 1), *(data(name) for name in NEW)]
    tree.leaf("m2", entries)
    tree.snapshot(tree.of("m1", DELETED, 1), tree.mask("m1", SEVEN, DELETED, 1), tree.of("m2", ADDED, 2))
    check(tree, spark, (LAST, LAST, set()), (REMAINING | set(NEW), set(NEW), {"D7"}))


@pytest.mark.parametrize("in_leaf", [False, True])
def test_15_as_our_commits_write_it(spark: SparkSession, tree: HandmadeTree, in_leaf: bool) -> None:
    ten(tree)
    tree.leaf("m3", [data(name) for name in NEW])
    new = [tree.of("m3", ADDED, 2)] if in_leaf else [data(name, ADDED, 2) for name in NEW]
    masks = [tree.mask("m1", SEVEN, DELETED, 1), tree.mask("m1", {*SEVEN, 7}, ADDED, 2)]
    tree.snapshot(tree.of("m1", EXISTING, 1), *masks, *new)
    check(tree, spark, (LAST, LAST, set()), (REMAINING | set(NEW), set(NEW), {"D7"}))


def test_15_with_a_compaction(spark: SparkSession, tree: HandmadeTree) -> None:
    ten(tree)
    tree.leaf("m2", [data(name, EXISTING, 1) for name in TEN[7:]])
    tree.leaf("m3", [data(name) for name in NEW])
    tree.snapshot(tree.of("m2", EXISTING, 2), tree.mask("m2", {0}, ADDED, 2), tree.of("m3", ADDED, 2))
    check(tree, spark, (LAST, LAST, set()), (REMAINING | set(NEW), set(NEW), {"D7"}))
