"""The drawing of a metadata tree: what it shows, that it stays small, and that no name gets out of its text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from sparkmeta import Drawing, NoSuchSnapshotError, Table, load_catalog
from sparkmeta.errors import CorruptFileError
from sparkmeta.inspect import draw as drawing_module
from sparkmeta.inspect.draw import draw
from sparkmeta.inspect.draw_svg import svg_of
from sparkmeta.inspect.excerpt import Entry, Excerpt, Node, counted
from sparkmeta.manifests.v4.layout import tree_schema
from sparkmeta.manifests.v4.root import Root
from sparkmeta.spec.bitmap import PositionBitmap, write_deletion_vector
from sparkmeta.spec.entry import ContentType, Status
from sparkmeta.text import columns, middle_out, printable

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

SCHEMA = Schema(NestedField(1, "id", LongType(), required=True))
HOSTILE = "a<script>alert(1)</script>&\"'\u202e\x07\x1b[2J\n.parquet"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Table:
    return load_catalog("drawn", type="hadoop", warehouse=str(tmp_path)).create_table(
        "db.t", SCHEMA, format_version=4, spark=spark
    )


def data(spark: SparkSession, *names: str) -> DataFrame:
    rows = [(f"/data/{name}", "PARQUET", 10, 1000) for name in names]
    return spark.createDataFrame(
        rows, "file_path string, file_format string, record_count long, file_size_in_bytes long"
    )


def vector(spark: SparkSession, puffin: str, positions: int, of: str) -> DataFrame:
    row = (1, f"/data/{puffin}", "PUFFIN", positions, 100, f"/data/{of}", 4, 60)
    return spark.createDataFrame(
        [row],
        "content int, file_path string, file_format string, record_count long, file_size_in_bytes long, "
        "referenced_data_file string, content_offset long, content_size_in_bytes long",
    )


def texts(svg: str) -> list[str]:
    """The texts of a drawing, which must be well-formed XML of shapes and text only."""
    document = ET.fromstring(svg)
    assert {element.tag for element in document.iter()} <= {
        SVG + name for name in ("svg", "rect", "path", "text", "title")
    }
    return [
        "".join([element.text or "", *(title.tail or "" for title in element)])
        for element in document.iter(f"{SVG}text")
    ]


def lines(drawing: Drawing) -> list[str]:
    """The text without lines of the tree and the space between columns."""
    return [" ".join(line.strip("│├└─ ").split()) for line in drawing.text.splitlines()]


# -- V4 trees ---------------------------------------------------------------------------------------------------------


def test_the_life_of_a_tree(spark: SparkSession, table: Table):
    assert str(table.draw()) == "the table is empty: it has no snapshot"
    texts(table.draw().svg)

    with table.transaction() as tx:
        tx.set_properties({"write.tree.direct-files": "0"})
        tx.update_snapshot().append(data(spark, "D1", "D2", "D3"))
        tx.set_properties({"write.tree.direct-files": "9"})
    table = table.refresh()
    listed = lines(table.draw())
    assert listed[2].startswith("M1 data manifest ADDED 3 entries;")
    assert listed[3:] == [f"{ordinal} D{ordinal + 1} data file ADDED 10 rows" for ordinal in range(3)]

    with table.transaction() as tx:
        tx.update_snapshot().overwrite(data(spark, "D4"), data(spark, "D2"))
    with table.refresh().transaction() as tx:
        tx.update_snapshot().row_delta(data(spark, "D5"), vector(spark, "v.puffin", 2, "D4"), data(spark, "D3"))
    table = table.refresh()
    drawing = table.draw()
    listed = lines(drawing)
    assert listed[0].startswith(f"snapshot {table.current_snapshot().snapshot_id}: overwrite, sequence number 3, ")
    assert listed[1].startswith("root manifest ")
    assert listed[1].endswith(": 6 entries")
    assert listed[2].startswith("M1 data manifest EXISTING 3 entries; 2 masked;")
    assert listed[3:] == [
        "0 D1 data file ADDED 10 rows",
        "1 D2 data file ADDED 10 rows; masked by DV2",
        "2 D3 data file ADDED 10 rows; masked by DV2",
        "DV1 manifest DV DELETED masks {1} of M1; inline",
        "DV2 manifest DV ADDED masks {1, 2} of M1; new are {2}; inline",
        "D4 data file EXISTING 10 rows",
        "D5 data file ADDED 10 rows",
        "DV of D4 deletion vector ADDED 2 positions; (v.puffin)",
    ]
    drawn = texts(drawing.svg)
    for text in ("M1  data manifest", " 1 D2", "DV of D4", "masks {1, 2} of M1 · new are {2} · inline", "DELETED"):
        assert text in drawn
    assert drawing._repr_svg_() == drawing.svg
    assert svg_of(drawing._excerpt) in drawing._repr_html_()
    # The drawing of the first snapshot is unchanged.
    first = table.snapshots()[0].snapshot_id
    assert "DV1" not in table.draw(first).text
    with pytest.raises(NoSuchSnapshotError, match="has no snapshot 5"):
        table.draw(5)


def test_a_name_stays_text(spark: SparkSession, table: Table):
    with table.transaction() as tx:
        tx.update_snapshot().append(data(spark, HOSTILE))
    drawing = table.refresh().draw()
    shown = "script>&\"'\\u202e\\x07\\x1b[2J\\n.parquet"
    assert any(shown in line for line in lines(drawing))
    assert all(character.isprintable() or character == "\n" for character in drawing.text + drawing.svg)
    assert any(shown in text for text in texts(drawing.svg))
    assert "<script" not in drawing._repr_html_()


def test_it_is_saved_as_svg_or_text(table: Table, tmp_path: Path):
    drawing = table.draw()
    drawing.save(tmp_path / "tree.svg")
    drawing.save(str(tmp_path / "tree.txt"))
    assert (tmp_path / "tree.svg").read_text() == drawing.svg
    assert (tmp_path / "tree.txt").read_text() == f"{drawing.text}\n"


# -- large trees ------------------------------------------------------------------------------------------------------


def entry(kind: ContentType, location: str | None, status: Status = Status.EXISTING, **more: Any) -> dict[str, Any]:
    numbers = {"snapshot_id": 1, "sequence_number": 1, "file_sequence_number": 1}
    return {
        "content_type": int(kind), "location": location, "file_format": "parquet", "partition_spec_id": 0,
        "version_info": {"status": int(status), **numbers}, "record_count": 5000, **more,
    }  # fmt: skip


def mask(leaf: str, ordinals: range, status: Status = Status.EXISTING) -> dict[str, Any]:
    blob = write_deletion_vector(PositionBitmap.of(ordinals))
    content = {"offset": None, "size_in_bytes": None, "inline_content": blob}
    return entry(ContentType.MANIFEST_DELETION_VECTOR, None, status, record_count=len(ordinals), referenced_file=leaf,
                 deletion_vector=content)  # fmt: skip


def drawn(table: Table, entries: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> tuple[Drawing, list[str]]:
    """A root's drawing, made without reading leaves, and the leaves that it would have read."""
    root = Root("/r.parquet", pa.Table.from_pylist(entries, schema=tree_schema(table.state.types.stats_types)))
    opened: list[str] = []

    def read(_: Any, manifests: pa.Table, ordinals_by_leaf: Any, *__: Any) -> dict[str, Any]:
        opened.extend(manifests.column("location").to_pylist())
        assert all(len(ordinals) <= 8 for ordinals in ordinals_by_leaf.values())
        return {}

    monkeypatch.setattr(drawing_module, "_read", read)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return Drawing(drawing_module._of_root(table.state, snapshot, root)), opened


@pytest.fixture
def committed(spark: SparkSession, table: Table) -> Table:
    with table.transaction() as tx:
        tx.update_snapshot().append(data(spark, "D1"))
    return table.refresh()


def test_of_ten_thousand_leaves_an_excerpt_is_drawn(committed: Table, monkeypatch: pytest.MonkeyPatch):
    leaves = [entry(ContentType.DATA_MANIFEST, f"/m/{number}.parquet") for number in range(10_000)]
    leaves[7000] |= {"version_info": leaves[7000]["version_info"] | {"status": int(Status.ADDED)}}
    masks = [mask(f"/m/{number}.parquet", range(0, 5000, 2)) for number in range(0, 10_000, 2)]
    masks.append(mask("/m/9001.parquet", range(3), Status.ADDED))
    files = [entry(ContentType.DATA, f"/d/{number}.parquet", Status(number % 3)) for number in range(1000)]
    drawing, opened = drawn(committed, [*leaves, *masks, *files], monkeypatch)
    # The entries that the snapshot changed, though they are far behind, then the first entries.
    assert opened == [f"/m/{number}.parquet" for number in (*range(6), 7000, 9001)]
    assert drawing._excerpt.left_out == (
        "9,992 more data manifests: 9,992 existing",
        "4,996 more manifest DVs: 4,996 existing",
        "988 more data files: 327 added, 334 existing, 327 deleted",
    )
    listed = lines(drawing)
    assert "masks {0, 2, 4, 6, 8, 10, … 2,500 in all} of M1; inline" in drawing.text
    assert any(line.startswith("M9002 data manifest EXISTING 5,000 entries; 3 masked;") for line in listed)
    assert len(drawing.text) < 10_000
    assert len(drawing.svg) < 60_000
    assert "… 9,992 more data manifests: 9,992 existing" in texts(drawing.svg)


def test_a_leaf_that_is_gone_is_not_opened(committed: Table, monkeypatch: pytest.MonkeyPatch):
    leaves = [
        entry(ContentType.DATA_MANIFEST, "/m/gone.parquet", Status.DELETED),
        entry(ContentType.DATA_MANIFEST, "/m/kept.parquet"),
        entry(ContentType.DELETE_MANIFEST, "/m/deletes.parquet", referenced_file="/m/kept.parquet"),
    ]
    drawing, opened = drawn(committed, leaves, monkeypatch)
    assert opened == ["/m/kept.parquet", "/m/deletes.parquet"]
    assert "affiliated to M2" in drawing.text
    svg = ET.fromstring(drawing.svg)
    dashed = [element for element in svg.iter() if element.get("stroke-dasharray")]
    assert len([element for element in dashed if element.tag == f"{SVG}rect"]) == 1
    assert len([element for element in dashed if element.tag == f"{SVG}path"]) == 2  # the affiliation, and the legend's


def test_a_broken_vector_is_named(committed: Table, monkeypatch: pytest.MonkeyPatch):
    broken = mask("/m/a.parquet", range(3)) | {"record_count": 4}
    with pytest.raises(CorruptFileError, match=r"of manifest /m/a\.parquet: record_count is 4"):
        drawn(committed, [entry(ContentType.DATA_MANIFEST, "/m/a.parquet"), broken], monkeypatch)


def test_masked_entries_are_among_those_that_are_read(spark: SparkSession, table: Table):
    with table.transaction() as tx:
        tx.set_properties({"write.tree.direct-files": "0"})
        tx.update_snapshot().append(data(spark, *(f"D{number:02}" for number in range(40))))
    with table.refresh().transaction() as tx:
        tx.update_snapshot().delete(data(spark, "D37"))
    drawing = table.refresh().draw()
    assert "37 D37 data file ADDED 10 rows; masked by DV1" in lines(drawing)
    assert lines(drawing)[3:11][:7] == [f"{ordinal} D{ordinal:02} data file ADDED 10 rows" for ordinal in range(7)]
    assert "… 32 more entries" in lines(drawing)


# -- older tables -----------------------------------------------------------------------------------------------------


def test_a_manifest_list_is_drawn_with_its_manifests(spark: SparkSession, tmp_path: Path):
    from tests.small_table import write_small_table

    written = write_small_table(tmp_path)
    drawing = draw(Table.from_pyiceberg(written, spark).state)
    listed = lines(drawing)
    assert listed[1].startswith("manifest list snap-")
    assert [line.split(" ")[:5] for line in listed if line.startswith("M")] == [
        [f"M{number + 1}", "data", "manifest", "EXISTING" if number else "ADDED", "2"] for number in range(3)
    ]
    assert sum(" data file ADDED 5 rows" in line for line in listed) == 6
    assert "manifest list" in "".join(texts(drawing.svg))


# -- parts ------------------------------------------------------------------------------------------------------------


def test_middle_out_counts_wide_characters():
    assert middle_out("abcdefghij", 10) == "abcdefghij"
    assert middle_out("abcdefghijk", 10) == "abcde…hijk"
    shortened = middle_out("数据文件数据文件" * 3, 11)
    assert columns(shortened) <= 11
    assert shortened.startswith("数据")


def test_printable_keeps_letters_and_escapes_the_rest():
    assert printable("naïve 数\u202e\ud800\r") == "naïve 数\\u202e\\ud800\\r"


def test_counted_is_a_line_a_kind():
    left_out = [(ContentType.DATA, Status.ADDED), (ContentType.DELETE_MANIFEST, Status.DELETED)] * 2
    assert counted([*left_out, (ContentType.DATA_MANIFEST, Status.EXISTING)]) == (
        "1 more data manifest: 1 existing",
        "2 more delete manifests: 2 deleted",
        "2 more data files: 2 added",
    )


def test_references_in_a_circle_are_drawn():
    pairs = [("/x", "/x"), ("/y", "/z"), ("/z", "/y")]
    nodes = tuple(
        Node(Entry(ContentType.DELETE_MANIFEST, Status.EXISTING, place, location, f"X{place}", refers=other))
        for place, (location, other) in enumerate(pairs)
    )
    drawn = texts(Drawing(Excerpt("s", "root manifest", "/r", 3, nodes)).svg)
    # In the root's box, and in their own.
    assert [drawn.count(f"X{place}  delete manifest") for place in range(3)] == [2, 2, 2]
