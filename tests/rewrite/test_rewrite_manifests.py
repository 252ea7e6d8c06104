"""Manifests of tables that other libraries wrote are rewritten: Java plans the same, and entries keep all they have."""

from __future__ import annotations

import io
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import fastavro
import pytest

import sparkmeta as sm
from sparkmeta.avro.container import inflate, read_blocks, read_header
from sparkmeta.avro.manifest_list import write_manifest_list
from sparkmeta.avro.schema import by_field_ids, bytes_for_fixed, parse
from sparkmeta.avro.write import entry_schema
from sparkmeta.maintain import rewrite_manifests
from sparkmeta.spec.partitioning import spec_partition_type
from tests.conformance.test_plan_java import compare
from tests.inspect.comparison import collected
from tests.maintain.clones import clone
from tests.peers import corpus as peers
from tests.peers.filters import filters
from tests.peers.java import NOW
from tests.peers.slices import SOAK, slice_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyiceberg.types import StructType
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.java

# Java's writers of manifests, of lists and of entries; odd forms; several specs; deletes and row ids of an upgrade.
CHOSEN = [
    "identity_fx_v2", "spec_dropped_source_v2", "upgraded_with_deletes_v3", "equality_by_java_v3",
    "branches_and_tags_v3",
]  # fmt: skip
# Their manifests can't be read, or not be written by one who doesn't know them.
REFUSED = {"encrypted", "unknown_transform"}
FILTERS = 8 if SOAK else 4
PLACES = ("manifest_path", "manifest_pos")
TARGET = 4_000  # bytes: several manifests come of most tables


def names() -> list[str]:
    older = [name for name in peers.names(without=REFUSED) if peers.RECIPES[name].version < 4]
    return older if SOAK else [name for name in older if name in {*CHOSEN, *slice_of(older)}]


@pytest.mark.parametrize("place", ["driver", "tasks"])
@pytest.mark.parametrize("name", names())
def test_a_table_reads_the_same(
    name: str, place: str, corpus: peers.Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java's plan stays the same and equals ours; entries keep the values of all their fields."""
    monkeypatch.setattr(rewrite_manifests, "driver_rewrites", lambda *_: place == "driver")
    peer = corpus.table(name)
    before = clone(peer, tmp_path / "t")
    plan = before.maintenance.rewrite_manifests(target_manifest_bytes=TARGET)
    if plan.summary().is_empty:
        assert not list(rewritable(before)), "only tables whose manifests are few and small are left alone"
        pytest.skip("no two manifests of one spec")
    table = plan.commit()
    again = peers.PeerTable(peer.recipe, table.metadata_location, corpus.java.table(table.metadata_location))
    assert without_places(again.java.plan()) == without_places(peer.java.plan())
    compare(again, planned(table), NOW)
    for row_filter in filters(peer, FILTERS):
        compare(again, planned(table, row_filter.expression, case_sensitive=row_filter.case_sensitive), NOW, row_filter)
    rows: dict[Any, Any] = collected({"before": live_entries(before), "after": live_entries(table)})
    assert all(row["status"] == 0 for row in rows["after"])
    assert keyed(rows["after"]) == keyed(rows["before"])
    assert table.maintenance.rewrite_manifests(target_manifest_bytes=TARGET).summary().is_empty
    check_list(table, before)


def rewritable(table: sm.Table) -> Iterator[tuple[int, int]]:
    counts = Counter((row["content"], row["partition_spec_id"]) for row in table.state.manifest_files.to_pylist())
    return (key for key, count in counts.items() if count > 1)


def planned(table: sm.Table, *row_filter: Any, **options: Any) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in table.scan(*row_filter, **options).plan_files().collect()]


def without_places(rows: list[dict[str, Any]]) -> list[str]:
    """Planned files and their deletes without the places of their entries, as text, in which NaN equals NaN."""
    bare = []
    for row in rows:
        deletes = [{key: delete[key] for key in delete if key not in PLACES} for delete in row["deletes"]]
        deletes.sort(
            key=lambda delete: json.dumps(delete, default=str, sort_keys=True)
        )  # Java's order follows the manifests
        bare.append({key: row[key] for key in row if key not in PLACES} | {"deletes": deletes})
    return sorted(json.dumps(row, default=str, sort_keys=True) for row in bare)


def live_entries(table: sm.Table) -> DataFrame:
    return table.inspect.entries().where("status != 2").drop("readable_metrics")


def keyed(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(row | {"status": 0}, sort_keys=True) for row in rows)


def check_list(table: sm.Table, before: sm.Table) -> None:
    """The manifest list agrees with its manifests, and the snapshot's summary with the changes."""
    head, version = table.current_snapshot(), table.format_version
    assert head is not None
    assert head.summary is not None
    assert head.operation == "replace"
    rows = table.state.manifest_files.to_pylist()
    old_paths = {row["manifest_path"] for row in before.state.manifest_files.to_pylist()}
    new_rows = [row for row in rows if row["manifest_path"] not in old_paths]
    assert rows[: len(new_rows)] == new_rows, "new manifests come first"
    properties = head.summary.additional_properties
    assert int(properties["manifests-created"]) == len(new_rows)
    assert int(properties["manifests-kept"]) == len(rows) - len(new_rows)
    assert int(properties["manifests-replaced"]) == len(old_paths) - (len(rows) - len(new_rows))
    assert int(properties["entries-processed"]) == sum(row["existing_files_count"] for row in new_rows)
    for row in new_rows:
        data = table.state.files.read(row["manifest_path"])
        assert len(data) == row["manifest_length"]
        records = records_of(data)
        assert {record["f0"] for record in records} == {0}
        assert row["existing_files_count"] == len(records)
        assert row["existing_rows_count"] == sum(record["f2"]["f103"] for record in records)
        assert (row["added_files_count"], row["deleted_files_count"]) == (0, 0)
        assert row["added_snapshot_id"] == head.snapshot_id
        assert row["sequence_number"] == (0 if version == 1 else head.sequence_number)
        if version > 1:
            sequences = [sequence for record in records if (sequence := record["f3"]) is not None]
            assert row["min_sequence_number"] == min(sequences, default=head.sequence_number)


def records_of(data: bytes) -> list[dict[str, Any]]:
    """A manifest's records by fastavro, fields named by ids; values of type fixed are written as Java does."""
    header, records = read_header(data, "m"), []
    schema = parse(by_field_ids(bytes_for_fixed(header.schema) or header.schema, "m"), "m")
    for block in read_blocks(data, header, "m"):
        stream = io.BytesIO(inflate(data, block, header, "m"))
        records += [fastavro.schemaless_reader(stream, schema, None) for _ in range(block.count)]
    return records


def test_layouts_are_javas(corpus: peers.Corpus) -> None:
    """Our schema of entries and lists is the one that Java writes, field by field, in its order."""
    for name in ("types_v1", "spec_dropped_source_v2", "branches_and_tags_v3"):
        table = sm.load_table(corpus.table(name).metadata_location, spark=corpus.spark)
        row = table.state.manifest_files.to_pylist()[-1]
        header = read_header(table.state.files.read(row["manifest_path"]), row["manifest_path"])
        ours = entry_schema(table.format_version, tuple_type(table, row["partition_spec_id"]))
        assert by_field_ids(ours, "ours") == by_field_ids(header.schema, "java")
        head = table.current_snapshot()
        assert head is not None
        assert head.manifest_list is not None
        lists = (
            table.state.files.read(head.manifest_list),
            write_manifest_list(table.state.manifest_files, table.format_version, {}, "ours"),
        )
        java, ours = (by_field_ids(read_header(manifest_list, "list").schema, "list") for manifest_list in lists)
        assert ours == java


def tuple_type(table: sm.Table, spec_id: int) -> StructType:
    return spec_partition_type(table.specs()[spec_id], table.metadata.schemas, table.state.types.typing_schema)
