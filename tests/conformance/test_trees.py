"""Tables that another library wrote, held by V4 trees of several layouts: every plan, and every metadata table, stays.

The files of a table, as `inspect.files` shows them, are appended to an empty tree: the data files, then its deletes in
the order of their sequence numbers, so that each applies to the same files as before. Delete leaves of data leaves are
planned together with these. What differs, on purpose: row ids and sequence numbers are new, column sizes are gone, and
files are in other manifests.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.transforms import IdentityTransform
from pyspark.sql import functions as F

import sparkmeta as sm
from tests.inspect.comparison import assert_same_rows, collected
from tests.peers import corpus as peers
from tests.peers.filters import filters
from tests.peers.slices import FILTERS, SOAK

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import Column, DataFrame

    from tests.peers.corpus import PeerTable

pytestmark = pytest.mark.java

CHOSEN: list[tuple[str, tuple[str, ...]]] = [
    ("types_v2", ("root", "leaves")),
    ("spec_evolution_v2", ("leaves", "masked")),
    ("equality_across_specs_v3", ("root", "masked")),
    ("deletes_by_file_v3", ("masked", "flushed", "affiliated")),
]
MOST_FILTERS = FILTERS if SOAK else 3
LAYOUTS = {
    "root": {"write.tree.direct-files": "100000", "write.tree.flush-data-files": "100000"},
    "leaves": {"write.tree.direct-files": "0", "write.tree.leaf-target-bytes": "1"},
    "masked": {"write.tree.direct-files": "0"},
    "affiliated": {"write.tree.direct-files": "0", "write.tree.affiliated-deletes": "1"},
    "flushed": {"write.tree.flush-data-files": "0", "write.tree.flush-delete-files": "0"},
}
# Position deletes of version 2 are not for trees.
TAKEN = "(content <> 1 OR content_offset IS NOT NULL)"
_RESERVED = 2_147_483_447
_MAPS = ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")
# What a file is given anew by the tree.
_NEW = ("first_row_id", "data_sequence_number", "manifest_path", "manifest_pos")


NOT_APPENDED = {"duplicates", "encrypted", "unknown_transform"}
# They list a file twice, a negative number of rows, and one place of several vectors.
_NOT_VALID = ("equality_void", "odd_statistics", "splits_v3")


def cases() -> list[tuple[str, tuple[str, ...]]]:
    if not SOAK:
        return CHOSEN
    names = peers.names(without=NOT_APPENDED)
    return [(name, tuple(LAYOUTS)) for name in names if not name.startswith(_NOT_VALID)]


@pytest.mark.parametrize(("name", "layouts"), cases())
def test_trees_plan_what_lists_do(name: str, layouts: tuple[str, ...], corpus: peers.Corpus, tmp_path: Path) -> None:
    peer = corpus.table(name)
    source = sm.load_table(peer.metadata_location, spark=corpus.spark)
    entries = source.inspect.entries(columns=["status", "sequence_number", "data_file"]).where("status < 2")
    files = entries.select("data_file.*", "sequence_number").localCheckpoint()
    trees = {layout: tree_of(peer, files, layout, tmp_path / layout) for layout in layouts}
    for layout, tree in trees.items():
        assert_layout(layout, tree, files)
    complete = files.where(f"NOT {TAKEN}").isEmpty()
    tables = {"source": source, **trees}
    frames = {}
    for variant, table in tables.items():
        corpus.spark.conf.set("spark.sparkmeta.planning", "colocated" if variant == "affiliated" else "auto")
        frames |= {(variant, kind): rows for kind, rows in shown(peer, table, complete).items()}
    corpus.spark.conf.unset("spark.sparkmeta.planning")
    collected_rows: dict[Any, Any] = collected(frames)
    for (variant, kind), rows in collected_rows.items():
        assert_same_rows(rows, collected_rows["source", kind], f"{name} in the layout {variant}: {kind}")


def tree_of(peer: PeerTable, files: DataFrame, layout: str, folder: Path) -> sm.Table:
    """A tree of the source's files, but for those that trees don't take."""
    table, taken = empty_tree(peer, folder), files.where(TAKEN)
    in_order = not taken.where("content = 2").isEmpty()
    numbers = sorted(row[0] for row in taken.select("sequence_number").distinct().collect()) if in_order else [None]
    with table.transaction() as tx:
        tx.set_properties(LAYOUTS[layout])
        for number in numbers:
            group = taken if number is None else taken.where(F.col("sequence_number") == number)
            append(tx, group.drop("sequence_number"), masked=layout == "masked", together=in_order)
        if layout == "flushed":
            tx.update_snapshot()
    return table.refresh()


def append(tx: Any, files: DataFrame, *, masked: bool, together: bool) -> None:
    """Add data files, then deletes, or both in one commit; masked: among other files, which are removed again."""
    data, deletes = files.where("content = 0"), files.where("content > 0")
    has_data, has_deletes = not data.isEmpty(), not deletes.isEmpty()
    others = data.withColumn("file_path", F.concat("file_path", F.lit(".other")))
    if has_data:
        added = tx.update_snapshot().append(data.unionByName(others) if masked else data)
        if together and has_deletes:
            added.row_delta(deletes=deletes)
        if masked:
            tx.update_snapshot().delete(others.select("file_path"))
    if has_deletes and not (has_data and together):
        tx.update_snapshot().row_delta(deletes=deletes)


def empty_tree(peer: PeerTable, folder: Path) -> sm.Table:
    """A table of the peer's schemas and specs, without a snapshot."""
    location = f"file://{folder}"
    without = {"snapshots", "refs", "snapshot-log", "metadata-log", "statistics", "partition-statistics"}
    metadata = {key: value for key, value in peer.metadata.items() if key not in without}
    (folder / "metadata").mkdir(parents=True)
    text = json.dumps(metadata | {"location": location, "current-snapshot-id": -1})
    (folder / "metadata" / "v1.metadata.json").write_text(text)
    return sm.load_table(location, spark=peer.java.java.spark).maintenance.upgrade(4).commit()


def assert_layout(layout: str, table: sm.Table, files: DataFrame) -> None:
    """The layout is what its name says, where there are data files."""
    if files.where("content = 0").isEmpty():
        return
    assert table.state.tree is not None
    root = table.state.tree.root
    in_root = [kind for kind in root.table.column("content_type").to_pylist() if kind < 3]
    assert bool(in_root) == (layout == "root")
    assert (root.leaves.num_rows > 0) == (layout != "root")
    assert (root.manifest_dvs.num_rows > 0) == (layout == "masked")
    if layout == "affiliated" and not files.where("content = 1 AND content_offset IS NOT NULL").isEmpty():
        assert root.leaves.column("referenced_file").null_count < root.leaves.num_rows


def shown(peer: PeerTable, table: sm.Table, complete: bool) -> dict[str, DataFrame]:
    """Plans without and with filters, and metadata tables, without columns that trees assign anew or don't store."""
    frames = {"plan": without_new(table.scan().plan_files())}
    for row_filter in filters(peer, MOST_FILTERS):
        scan = table.scan(row_filter.expression, case_sensitive=row_filter.case_sensitive)
        frames[f"plan {row_filter.name}"] = without_new(scan.plan_files())
    files = table.inspect.files().where(TAKEN)
    of_data = F.when(F.col("content") == 0, F.col("sort_order_id"))  # a tree's delete files have none
    files = files.withColumn("sort_order_id", of_data)
    frames["files"] = files.withColumns({name: _compared(name, table) for name in _MAPS}).drop(
        "column_sizes", "readable_metrics", "first_row_id"
    )
    live = table.inspect.entries(columns=["status", "data_file"]).where("status < 2").select("data_file.*")
    frames["entries"] = live.where(TAKEN).select("content", "file_path", "content_offset")
    if complete:
        # If a partition has several specs, spec_id is the spec of the files that were added last.
        updates = ["last_updated_at", "last_updated_snapshot_id", *(["spec_id"] if len(table.specs()) > 1 else [])]
        frames["partitions"] = table.inspect.partitions().drop(*updates)
    return frames


def _compared(name: str, table: sm.Table) -> Column:
    """A metrics map without the columns that trees store in another way, null where it is empty.

    A tree always knows the columns that files are partitioned by, and has no room for columns of reserved ids, nor for
    structs, lists and maps, whose values only ORC files count. Its bounds are of the column's current type, which has
    more bytes than bounds of files from before a promotion.
    """
    sources = [
        field.source_id
        for spec in table.specs().values()
        for field in spec.fields
        if isinstance(field.transform, IdentityTransform)
    ]
    types = defaultdict(set)
    for schema in table.metadata.schemas:
        for field in schema._lazy_id_to_field.values():
            types[field.field_id].add(str(field.field_type))
    promoted = [field_id for field_id, kinds in types.items() if len(kinds) > 1 and name.endswith("_bounds")]
    nested = [
        field.field_id
        for schema in table.metadata.schemas
        for field in schema._lazy_id_to_field.values()
        if not field.field_type.is_primitive
    ]
    remaining = F.map_filter(name, lambda key, _: (key < _RESERVED) & ~key.isin(sources + promoted + nested))
    return F.when(F.size(remaining) > 0, remaining)


def without_new(plan: DataFrame) -> DataFrame:
    deletes = F.transform(
        "deletes", lambda delete: delete.dropFields(*(name for name in _NEW if name != "first_row_id"))
    )
    taken = F.filter(deletes, lambda delete: (delete["content"] != 1) | delete["content_offset"].isNotNull())
    return plan.drop(*_NEW).withColumn("deletes", F.array_sort(taken))
