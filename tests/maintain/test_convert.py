"""Upgraded tables whose manifests are converted to the tree's own layout: rows stay the same, and commits work."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.transforms import UnknownTransform

from tests.frames import local_frame
from tests.inspect.comparison import collected
from tests.maintain.clones import clone
from tests.peers import corpus as peers
from tests.peers.filters import filters
from tests.peers.slices import FILTERS, SOAK

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame

    import sparkmeta as sm
    from tests.peers.filters import Filter

pytestmark = pytest.mark.java

CHOSEN = ["unknown_counts_v1", "spec_dropped_source_v2", "upgraded_with_deletes_v3", "upgraded_with_deletes_v4"]
PLACES = ("manifest_path", "manifest_pos")
MAPS = ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")
# Trees have no column sizes, and only data files have sort orders.
DROPPED = ("column_sizes", "readable_metrics", "sort_order_id", *MAPS)


@pytest.mark.parametrize("name", peers.names() if SOAK else CHOSEN)
def test_a_converted_table_reads_the_same(name: str, corpus: peers.Corpus, tmp_path: Path) -> None:
    """The plans, row ids and metadata tables are the same, also of earlier snapshots.

    The same holds with masks, and after more commits.
    """
    peer = corpus.table(name)
    chosen = filters(peer, FILTERS if SOAK else 2)
    before = committed(clone(peer, tmp_path / "before").maintenance.upgrade(4).commit())
    upgraded = clone(peer, tmp_path / "after").maintenance.upgrade(4).commit()
    old = old_snapshots(upgraded)
    plan = upgraded.maintenance.compact_manifests()
    after = plan.commit()
    unknown = plan.summary().unknown_transforms
    assert_converted(after, plan.summary().position_deletes, unknown)
    after = committed(after) if unknown else after  # the first commit assigns row ids
    frames: dict[Any, DataFrame] = {}
    for state, table in (("before", before), ("after", after)):
        frames |= {(state, key): frame for key, frame in views(table, chosen, old).items()}
    if not unknown:  # their files can't be masked
        masked = without_some(before)
        frames |= {("before", "masked"): planned(masked)}
        frames |= {("after", "masked"): planned(masked.maintenance.compact_manifests().commit())}
    rows = {key: counted(frame_rows) for key, frame_rows in collected(frames).items()}
    for state, key in frames:
        if state == "before":
            assert rows["after", key] == rows["before", key], key


def assert_converted(table: sm.Table, *stay: Any) -> None:
    """Assert that only leaves that the summary names have the old layout."""
    tree, named = table.state.tree, sorted(location for locations in stay for location in locations)
    if tree is None:
        assert named == sorted(row.path for row in table.inspect.manifests().select("path").collect())
        return
    manifests = table.state.manifests
    old = manifests.filter(tree.has_old_layout(manifests)).column("location").to_pylist()
    assert sorted(old) == named
    if not old and table.state.manifests:
        assert table.maintenance.compact_manifests().summary().converted_leaves == 0


def committed(table: sm.Table) -> sm.Table:
    """Return the table with one more snapshot, of the same files."""
    with table.transaction() as tx:
        tx.update_snapshot()
    return table.refresh()


def without_some(table: sm.Table) -> sm.Table:
    """Return the table without every third of its first files, which its old manifests still list."""
    paths = sorted({row.file_path for row in table.scan().plan_files().select("file_path").limit(9).collect()})
    if paths:
        with table.transaction() as tx:
            tx.update_snapshot().delete(local_frame(table.state.spark, pa.table({"file_path": paths[::3]})))
    return table.refresh()


def old_snapshots(table: sm.Table) -> list[int]:
    return [snapshot.snapshot_id for snapshot in table.snapshots()][: None if SOAK else 1]


def views(table: sm.Table, chosen: list[Filter], old: list[int]) -> dict[Any, DataFrame]:
    """Return the plans of a table, with filters and of old snapshots, and its metadata tables."""
    frames = {("plan", "now"): planned(table)}
    frames |= {("plan", snapshot_id): planned(table, snapshot_id=snapshot_id) for snapshot_id in old}
    frames |= {
        ("plan", row_filter.name): planned(
            table, row_filter=row_filter.expression, case_sensitive=row_filter.case_sensitive
        )
        for row_filter in chosen
    }
    frames["files"] = table.inspect.files().drop(*DROPPED)
    frames["sort orders"] = table.inspect.data_files().select("file_path", "sort_order_id")
    frames["metrics"] = metrics(table)
    if not any(
        isinstance(field.transform, UnknownTransform) for spec in table.specs().values() for field in spec.fields
    ):
        frames["partitions"] = table.inspect.partitions()
    numbers = ("sequence_number", "file_sequence_number", "snapshot_id", "data_file.file_path")
    frames["entries"] = table.inspect.entries().where("status < 2").select(*numbers)
    return frames


def planned(table: sm.Table, **options: Any) -> DataFrame:
    return table.scan(**options).plan_files()


def metrics(table: sm.Table, tree: sm.Table | None = None) -> DataFrame:
    """Return the metrics of all columns but those with partition values, for which the tree stores the value."""
    types, tuples = table.state.types, (tree or table).state.types.tuple_sources
    sources = {source for pairs in tuples.values() for _, source in pairs}
    chosen = ",".join(str(column) for column in types.column_types if column not in sources)
    filtered = [f"map_filter({name}, (k, v) -> k IN ({chosen or '-1'})) AS {name}" for name in MAPS]
    return table.inspect.files().selectExpr(
        "file_path",
        *(f"if(cardinality({text.split(' AS ')[0]}) > 0, {text.replace(' AS ', ', NULL) AS ')}" for text in filtered),
    )


def counted(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(json.dumps(placeless(row), sort_keys=True) for row in rows)


def placeless(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row without the positions of its entries, with its deletes in a fixed order."""
    row = {key: value for key, value in row.items() if key not in PLACES}
    if "deletes" in row:
        row["deletes"] = sorted(json.dumps(placeless(delete), sort_keys=True) for delete in row["deletes"])
    return row
