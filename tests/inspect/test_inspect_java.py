"""Every metadata table equals the one that Iceberg's Spark integration shows, row by row and type by type.

Known departures, each on purpose:
- Summaries of a partition field whose source column was dropped: Java has lost the type and shows its bounds as the
  text `null`, which says that the partitions are; we show the bounds.
- partition_summaries.contains_nan of all_manifests is declared as required by Java, and yet null where a list does not
  say; we declare it as what it is.
- Tables whose lists don't say how many files a manifest has: Java's readers of manifests and of manifest lists fail;
  for us the counts are null.
- first_row_id in all_* of a table that was upgraded to version 3: its old manifests are in lists with and without row
  ids. Java takes the list that one of its threads reads first; we take the one with row ids.
- A table that was replaced with another type under a field id: all_manifests fails at the old summaries, for both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.schema import index_by_id

import sparkmeta as sm
from sparkmeta.errors import CorruptFileError
from tests.inspect.comparison import assert_same_rows, collected, plain_type
from tests.peers import corpus as peers
from tests.peers.java import METADATA_TABLES, NOW, At
from tests.peers.slices import SOAK

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession

    from tests.peers.corpus import PeerTable

pytestmark = pytest.mark.java

OF_SNAPSHOT = ("entries", "files", "data_files", "delete_files", "manifests", "partitions", "position_deletes")
OF_METADATA = ("history", "metadata_log_entries", "snapshots", "refs", "manifests", "all_manifests")

# Every table is compared in these. The same code makes the others, so each table is compared in one of them in turn.
ALWAYS = ("entries", "manifests", "partitions", "position_deletes", "history", "snapshots", "refs", "all_manifests")
IN_TURN = (
    "files",
    "data_files",
    "delete_files",
    "all_data_files",
    "all_delete_files",
    "all_files",
    "all_entries",
    "metadata_log_entries",
)
EVERY_NTH = 16  # table in the short form of the tests; `make soak` has all of them, in all metadata tables


def sliced(names: list[str], start: int = 0) -> list[str]:
    """The names of the short form; in the soak all."""
    return names if SOAK else names[start::EVERY_NTH]


# Tables for which Java fails in all metadata tables but these, or in some.
WITHOUT_COUNTS = ("inline_manifests_v1", "unknown_counts_v1")
JAVA_SHOWS = dict.fromkeys(WITHOUT_COUNTS, ("partitions", "history", "metadata_log_entries", "snapshots", "refs"))
# These fail in both for snapshots of other types than the table's; for an older snapshot Java shows no files.
RETYPED = tuple(name for name in peers.names() if name.startswith("replaced_retyped"))
BOTH_FAIL = dict.fromkeys(RETYPED, ("all_manifests", "all_data_files", "all_files", "all_entries"))


@pytest.fixture(autouse=True)
def _plans_as_they_are(interpreted: SparkSession) -> Iterator[None]:
    """A few rows of many wide tables: to compile code for each of them, or to plan anew, takes most of the time."""
    before = interpreted.conf.get("spark.sql.adaptive.enabled")
    interpreted.conf.set("spark.sql.adaptive.enabled", "false")
    yield
    interpreted.conf.set("spark.sql.adaptive.enabled", before)


def kinds_of(peer: PeerTable, among: Iterable[str] = METADATA_TABLES) -> list[str]:
    """The metadata tables of a peer that Java shows, and for which the files are there."""
    kinds = OF_METADATA if "not_spark" in peer.recipe.tags else JAVA_SHOWS.get(peer.name, METADATA_TABLES)
    unread = {"position_deletes"} if "made_up" in peer.recipe.tags else set()
    return [kind for kind in among if kind in kinds and kind not in {*unread, *BOTH_FAIL.get(peer.name, ())}]


@pytest.mark.parametrize("name", sliced(peers.names()))
def test_equal_to_java(name: str, corpus: peers.Corpus, spark: SparkSession, soak: bool) -> None:
    peer = corpus.table(name)
    turn = IN_TURN[peers.names().index(name) // EVERY_NTH % len(IN_TURN)]
    kinds = kinds_of(peer, METADATA_TABLES if soak else (*ALWAYS, turn))
    assert_equal(peer, spark, {(kind, NOW) for kind in kinds})


@pytest.mark.parametrize("name", sliced([*peers.names("history"), *peers.names("deletes")], start=1))
def test_equal_to_java_at_every_snapshot(name: str, corpus: peers.Corpus, spark: SparkSession, soak: bool) -> None:
    peer = corpus.table(name)
    ids = peer.java.snapshot_ids
    places = [At(snapshot_id=snapshot_id) for snapshot_id in (ids[-1:] if name in RETYPED else ids)]
    kinds = kinds_of(peer, OF_SNAPSHOT if soak else ("files", "manifests", "partitions"))
    assert_equal(peer, spark, {(kind, place) for kind in kinds for place in places})


@pytest.mark.parametrize("name", RETYPED)
def test_snapshots_of_other_types_are_shown_by_their_own(name: str, corpus: peers.Corpus, spark: SparkSession) -> None:
    inspect = sm.load_table(corpus.table(name).metadata_location, spark=spark).inspect
    first = inspect.snapshots().orderBy("committed_at").first()
    assert first is not None
    files = inspect.files(snapshot_id=first.snapshot_id)
    bounds = {(row.partition.p, row.readable_metrics.p.lower_bound) for row in files.collect()}
    assert bounds == {(letter, letter) for letter in "abc"}
    assert {row.partition.p for row in inspect.partitions(snapshot_id=first.snapshot_id).collect()} == {*"abc"}
    # Bounds of another type are unknown, partition values are not.
    assert inspect.all_manifests().collect()
    for kind in BOTH_FAIL[name][1:]:
        with pytest.raises(CorruptFileError, match=r"not a value of type long|is 'a': not int64"):
            getattr(inspect, kind)()


@pytest.mark.parametrize("name", WITHOUT_COUNTS)
def test_unknown_counts_are_null(name: str, corpus: peers.Corpus, spark: SparkSession) -> None:
    peer = corpus.table(name)
    inspect = sm.load_table(peer.metadata_location, spark=spark).inspect
    assert sorted(row.file_path for row in inspect.files(columns=["file_path"]).collect()) == peer.java.paths()
    for kind in ("manifests", "all_manifests"):
        counts = getattr(inspect, kind)().select("added_data_files_count", "added_delete_files_count").collect()
        assert counts
        assert {tuple(row) for row in counts} == {(None, 0)}


def assert_equal(peer: PeerTable, spark: SparkSession, cases: set[tuple[str, At]]) -> None:
    table = sm.load_table(peer.metadata_location, spark=spark)
    frames: dict[Any, Any] = {}
    for kind, at in sorted(cases, key=str):
        moment = {} if at == NOW else {"snapshot_id": at.snapshot_id}
        frames["ours", kind, at] = getattr(table.inspect, kind)(**moment)
        frames["java", kind, at] = peer.java.metadata_table(kind, at)
    for kind, at in cases:
        said = f"{peer.name}.{kind} {at}"
        ours, java = (plain_type(frames[who, kind, at].schema, kind == "all_manifests") for who in ("ours", "java"))
        assert ours == java, said
    rows = collected(frames)
    for kind, at in cases:
        ours, java = (_compared(rows[who, kind, at], kind, peer) for who in ("ours", "java"))
        assert_same_rows(ours, java, f"{peer.name}.{kind} {at}")


def dropped_sources(peer: PeerTable) -> set[tuple[int, int]]:
    """(spec id, position) of the partition fields whose source column the present schema lacks."""
    there = index_by_id(peer.schema)
    return {
        (spec["spec-id"], position)
        for spec in peer.metadata.get("partition-specs", [])
        for position, field in enumerate(spec["fields"])
        if field.get("source-id") not in there
    }


def _compared(rows: list[dict[str, Any]], kind: str, peer: PeerTable) -> list[dict[str, Any]]:
    """The rows without what differs on purpose."""
    dropped = dropped_sources(peer)
    for row in rows:
        for position, summary in enumerate(row.get("partition_summaries") or []):
            if (row["partition_spec_id"], position) in dropped:
                summary["lower_bound"] = summary["upper_bound"] = "not compared"
        if kind.startswith("all_") and "upgraded" in peer.recipe.tags:
            row.get("data_file", row).pop("first_row_id", None)
    return rows


def test_row_ids_of_an_upgraded_table_are_kept_in_its_history(corpus: peers.Corpus, spark: SparkSession) -> None:
    inspect = sm.load_table(corpus.table("upgraded_appends_v3").metadata_location, spark=spark).inspect
    columns = ["file_path", "first_row_id"]
    rows = collected({"now": inspect.files(columns=columns), "ever": inspect.all_files(columns=columns)})
    assert all(row["first_row_id"] is not None for row in rows["now"])
    now, ever = ({(row["file_path"], row["first_row_id"]) for row in rows[when]} for when in ("now", "ever"))
    assert now <= ever
