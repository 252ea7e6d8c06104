from __future__ import annotations

import os
import random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkmeta.errors import CorruptFileError, UnsupportedError
from sparkmeta.expr.arrays import with_field_id
from sparkmeta.manifests.v4.layout import DATA as DATA_LEAF
from sparkmeta.manifests.v4.layout import TreeTypes, is_tree_manifest, write_manifest
from sparkmeta.manifests.v4.root import Root, check_root, read_root, write_root
from sparkmeta.spec.entry import ContentType
from sparkmeta.spec.locations import Locations
from tests.manifests.entry_rows import (
    EQ,
    LEAF,
    PD,
    STATS,
    XM,
    Row,
    entry_table,
    file_row,
    leaf_row,
    vector_row,
    version,
    whole_root,
)

SOAK = os.environ.get("SPARKMETA_SOAK") == "1"
SPECS = (0, 2)
TYPES = TreeTypes(STATS, frozenset(STATS), dict.fromkeys(SPECS, ()), {})
ROOT = "/t/metadata/root.parquet"
LOCATIONS = Locations("/t", 4)


def changed(row: Row, path: str, value: Any) -> Row:
    """Return the row with another value at a path with dots."""
    name, _, child = path.partition(".")
    return {**row, name: {**row[name], child: value} if child else value}


BAD: list[tuple[Row, str, Any, str]] = [
    # row, path, value, what the error says
    (file_row(), "content_type", 6, "content_type"),
    (file_row(), "content_type", None, "content_type"),
    (file_row(), "version_info", None, "version_info"),
    (file_row(), "version_info.status", 3, "version_info.status"),
    (file_row(), "version_info.status", None, "version_info.status"),
    (file_row(), "version_info.sequence_number", None, "version_info.sequence_number"),
    (file_row(), "version_info.file_sequence_number", None, "version_info.file_sequence_number"),
    (file_row(), "version_info.snapshot_id", None, "version_info.snapshot_id"),
    (file_row(), "record_count", None, "record_count"),
    (file_row(), "record_count", -1, "record_count.*negative"),
    (file_row(), "partition_spec_id", None, "partition_spec_id"),
    (file_row(), "partition_spec_id", 1, "partition_spec_id.*not one of 0, 2"),
    (file_row(), "file_format", None, "file_format"),
    (file_row(), "file_format", "puffin", "a data entry has one of avro, orc, parquet"),
    (file_row(PD), "file_format", "parquet", "a position_deletes entry has one of puffin"),
    (file_row(EQ), "file_format", "puffin", "an? equality_deletes entry"),
    (leaf_row(), "file_format", "orc", "a data_manifest entry has one of avro, parquet"),
    (leaf_row(XM), "file_format", "orc", "a delete_manifest entry"),
    (vector_row(), "file_format", "parquet", "a manifest_deletion_vector entry has one of puffin"),
    *((row, name, None, f"{name}.*missing") for name in ("location", "file_size_in_bytes")
      for row in (file_row(), file_row(PD), file_row(EQ), leaf_row(), leaf_row(XM))),
    (leaf_row(), "manifest_stats", None, "manifest_stats.*missing"),
    (file_row(), "manifest_stats", leaf_row()["manifest_stats"], "manifest_stats.*no such field"),
    (vector_row(), "manifest_stats", leaf_row()["manifest_stats"], "manifest_stats.*no such field"),
    (leaf_row(), "version_info.file_sequence_number", 1, "two sequence numbers must be equal"),
    *((leaf_row(), f"manifest_stats.{status}_files_count", value, f"manifest_stats.{status}_files_count.*{problem}")
      for status in ("added", "existing", "deleted") for value, problem in ((None, "missing"), (-1, "negative"))),
    (leaf_row(), "record_count", 5, "record_count.*number of its entries"),
    (leaf_row(XM), "record_count", 3, "record_count.*number of its entries"),
    (file_row(EQ), "equality_ids", None, "equality_ids.*missing"),
    (file_row(EQ), "equality_ids", [], "equality_ids.*there is none"),
    (file_row(), "equality_ids", [1], "equality_ids.*no such field"),
    (file_row(PD), "equality_ids", [1], "equality_ids.*no such field"),
    (leaf_row(XM), "equality_ids", [1], "equality_ids.*no such field"),
    (file_row(PD), "deletion_vector", None, "deletion_vector.*missing"),
    (file_row(PD), "deletion_vector.offset", None, "deletion_vector.offset.*missing"),
    (file_row(PD), "deletion_vector.size_in_bytes", None, "deletion_vector.size_in_bytes.*missing"),
    (file_row(PD), "deletion_vector.inline_content", b"x", "are in Puffin files"),
    (file_row(PD), "referenced_file", None, "referenced_file.*missing"),
    (file_row(), "deletion_vector", file_row(PD)["deletion_vector"], "deletion_vector.*no such field"),
    (file_row(EQ), "deletion_vector", file_row(PD)["deletion_vector"], "deletion_vector.*no such field"),
    (leaf_row(), "deletion_vector", file_row(PD)["deletion_vector"], "deletion_vector.*no such field"),
    (vector_row(), "deletion_vector", None, "deletion_vector.*missing"),
    (vector_row(), "referenced_file", None, "referenced_file.*missing"),
    (vector_row(), "deletion_vector.inline_content", None, "either inline or at an offset"),
    (vector_row(location="/t/v.puffin"), "deletion_vector.offset", 4, "either inline or at an offset"),
    (vector_row(record_count=1), "record_count", 0, "masks nothing"),
]  # fmt: skip


@pytest.mark.parametrize(("row", "path", "value", "problem"), BAD, ids=lambda value: str(value)[:30])
def test_an_entry_that_breaks_a_rule(row: Row, path: str, value: Any, problem: str) -> None:
    good = entry_table(file_row(location="/t/first"), row)
    check_root(good, SPECS, ROOT)
    with pytest.raises(CorruptFileError, match=problem) as caught:
        check_root(entry_table(file_row(location="/t/first"), changed(row, path, value)), SPECS, ROOT)
    assert ROOT in str(caught.value)
    assert path == "version_info" or "entry 1" in str(caught.value)


def test_a_stored_vector() -> None:
    """A vector in a Puffin file has a location, an offset and a size (semantics 16.14)."""
    place = {"offset": 4, "size_in_bytes": 40, "inline_content": None}
    stored = vector_row(location="/t/v.puffin", file_size_in_bytes=99, deletion_vector=place)
    check_root(entry_table(stored), SPECS, ROOT)
    for path, value, problem in (
        ("deletion_vector.size_in_bytes", None, "size_in_bytes.*missing"),
        ("location", None, "either inline or"),
        ("location", "", "either inline or"),
    ):
        with pytest.raises(CorruptFileError, match=problem):
            check_root(entry_table(changed(stored, path, value)), SPECS, ROOT)


def test_an_inline_vector_with_an_empty_location() -> None:
    """Readers accept an empty location as none (semantics 16.15)."""
    check_root(entry_table(vector_row(location="")), SPECS, ROOT)


def test_a_sound_root() -> None:
    read = read_root(write_root(whole_root()), TYPES, ROOT, (1, 1, None), LOCATIONS)
    assert read.properties["tree-layout-revision"] == "2"
    assert read.location == ROOT
    assert read.table.to_pylist() == whole_root().to_pylist()


def test_formats_in_capitals_are_known() -> None:
    check_root(entry_table(file_row(file_format="PARQUET"), leaf_row(file_format="Avro")), SPECS, ROOT)


def test_an_empty_root() -> None:
    root = read_root(write_root(entry_table()), TYPES, ROOT, (1, 1, None), LOCATIONS)
    assert len(root.table) == len(root.leaves) == len(root.manifest_dvs) == 0


def test_a_leaf_is_no_root() -> None:
    with pytest.raises(CorruptFileError, match=r"content.*not a root manifest"):
        read_root(write_manifest(entry_table(file_row()), DATA_LEAF), TYPES, ROOT, (1, 1, None), LOCATIONS)


# -- inheritance ----------------------------------------------------------------------------------------------------


def test_added_entries_inherit_from_the_snapshot() -> None:
    rows = [
        file_row(location="a", version_info=version(1, None, None)),
        file_row(location="b", version_info=version(1, 5, 3)),
        file_row(location="c", version_info=version(0, None, 3)),
        file_row(location="d", version_info=version(2, None, 3)),
    ]
    read = read_root(write_root(entry_table(*rows)), TYPES, ROOT, (77, 9, None), LOCATIONS).table.to_pylist()
    assert [row["version_info"] for row in read] == [
        version(1, 77, 9),
        version(1, 5, 3),
        version(0, 77, 3),
        version(2, 77, 3),
    ]


@pytest.mark.parametrize("status", [0, 2])
def test_only_added_entries_inherit_sequence_numbers(status: int) -> None:
    data = write_root(entry_table(file_row(version_info=version(status, 5, None))))
    with pytest.raises(CorruptFileError, match=r"version_info\.sequence_number"):
        read_root(data, TYPES, ROOT, (77, 9, None), LOCATIONS)


# -- what a root gives ----------------------------------------------------------------------------------------------


def test_entries_by_kind_keep_their_ordinals() -> None:
    gone = file_row(location="/t/gone", version_info=version(2))
    root = Root(ROOT, entry_table(gone, leaf_row(), file_row(), vector_row()))
    assert root.leaves.column("ordinal").to_pylist() == [1]
    assert root.manifest_dvs.column("ordinal").to_pylist() == [3]
    assert root.of([ContentType.DATA]).column("ordinal").to_pylist() == [2]
    assert root.of([ContentType.DATA], live=False).column("ordinal").to_pylist() == [0, 2]


def test_vectors_are_those_of_live_leaves() -> None:
    tombstone = vector_row(version_info=version(2))
    other = leaf_row(location="/t/other", version_info=version(2))
    rows = [leaf_row(), other, tombstone, vector_row((1,)), vector_row(referenced_file="/t/other")]
    root = Root(ROOT, entry_table(*rows))
    assert root.manifest_dvs.column("ordinal").to_pylist() == [3]


def test_two_live_vectors_of_one_leaf() -> None:
    root = Root(ROOT, entry_table(leaf_row(), vector_row(), vector_row((1,))))
    with pytest.raises(CorruptFileError, match=f"{LEAF}.*two live deletion vectors"):
        _ = root.manifest_dvs


# -- any bytes ------------------------------------------------------------------------------------------------------


def test_bytes_that_were_changed_are_one_clear_error() -> None:
    """Any bytes are either refused with an error or read as a root that keeps every rule."""
    rng = random.Random(8)
    written = write_root(whole_root())
    read, refused = [], []
    for _ in range(20_000 if SOAK else 1_500):
        data = mutated(written, rng)
        try:
            read.append(read_root(data, TYPES, ROOT, (1, 1, None), LOCATIONS).table)
        except CorruptFileError as error:
            refused.append(str(error))
    assert len(refused) > 200
    assert len(read) > 20
    assert all(ROOT in message for message in refused)
    for table in read:
        check_root(table, SPECS, ROOT)
        table.validate(full=True)
        table.to_pylist()


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Some bytes changed, cut out, doubled or swapped for bytes of other places; often in the footer."""
    changed = bytearray(data)
    footer = int.from_bytes(data[-8:-4], "little") + 8
    for _ in range(rng.choice((1, 1, 2, 8))):
        start = len(changed) - footer if rng.random() < 0.3 else 0
        at = rng.randrange(max(0, start), len(changed))
        what = rng.random()
        if what < 0.6:
            changed[at] = rng.choice(
                (0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256), changed[at] ^ (1 << rng.randrange(8)))
            )
        elif what < 0.75:
            del changed[at : at + rng.randrange(1, 20)]
        elif what < 0.9:
            changed[at:at] = changed[at : at + rng.randrange(1, 20)]
        else:
            changed = changed[:at]
        if len(changed) < 2:
            break
    return bytes(changed)


@pytest.mark.parametrize("place", ["tracking", "column_files", "tracking.column_files", "files, by id"])
def test_another_layout_of_trees_is_refused_by_name(place: str) -> None:
    """Leaves of such a layout are refused too: they are never read as a manifest of version 3 or as an empty one."""
    files = pa.list_(pa.struct([pa.field("location", pa.string())]))
    of_tracking = [pa.field("status", pa.int32()), *([pa.field("column_files", files)] if "." in place else [])]
    by_id = with_field_id(pa.field("files", files), 160)
    fields = {"column_files": pa.field("column_files", files), "files, by id": by_id}
    field = fields.get(place, pa.field("tracking", pa.struct(of_tracking)))
    table = pa.table([pa.nulls(1, field.type)], pa.schema([field]))
    table = table.append_column(with_field_id(pa.field("location", pa.string()), 100), pa.array(["f"]))
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata({"format-version": "4", "content": "root"}), sink)
    data, name = sink.getvalue().to_pybytes(), "tracking" if place.startswith("tracking") else "column_files"
    with pytest.raises(UnsupportedError, match=f"^file:///r: the manifest has the field {name}: trees in this layout"):
        read_root(data, TYPES, "file:///r", (1, 1, None), LOCATIONS)
    with pytest.raises(UnsupportedError, match=f"^file:///r: the manifest has the field {name}"):
        is_tree_manifest(data, "file:///r")
