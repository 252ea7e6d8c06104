"""Trees in memory: random sequences of commits are compared with a model, and invalid commits are refused.

SPARKMETA_SOAK=1 runs 10,000 sequences.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sparkmeta.commit.next_root import FileKey, NextRoot, Stamp, TreeChange, next_root
from sparkmeta.errors import CommitConflictError, CorruptFileError
from sparkmeta.manifests.v4.layout import TreeTypes, tree_schema
from sparkmeta.manifests.v4.root import Root, check_root, read_root, write_root
from sparkmeta.manifests.v4.write import leaf_row
from sparkmeta.spec.bitmap import PositionBitmap, write_deletion_vector
from sparkmeta.spec.entry import ContentType
from sparkmeta.spec.locations import Locations
from tests.commit.tree_model import (
    ADDED,
    DELETED,
    EXISTING,
    FILES,
    LEAVES,
    MDV,
    Changes,
    Place,
    Reading,
    Row,
    Seen,
    Store,
    change_set,
    inherited,
    key_of,
    status,
)

SOAK = os.environ.get("SPARKMETA_SOAK") == "1"
ROUNDS = settings(
    max_examples=10_000 if SOAK else 40,
    deadline=None,
    derandomize=not SOAK,
    database=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)

DATA, PD, EQ, DM, XM = (ContentType(value) for value in range(5))
NARROW = {1: "long"}
WIDE = {1: "long", 7: "string"}
SCHEMAS = {len(types): tree_schema(types) for types in (NARROW, WIDE)}
SPECS = (0, 1)


def entry(kind: ContentType, name: str, records: int, **values: Any) -> Row:
    """Return an entry that a commit adds."""
    row = {
        "content_type": int(kind),
        "location": f"/t/data/{name}",
        "file_format": "puffin" if kind == PD else "parquet",
        "version_info": {"status": int(ADDED)},
        "partition_spec_id": 0,
        "record_count": records,
        "file_size_in_bytes": 100 + records,
        "deletion_vector": None,
        "referenced_file": None,
    }
    if kind == EQ:
        row["equality_ids"] = [1]
    return row | values


def data_entry(name: str, records: int, **values: Any) -> Row:
    bounds = {"lower_bound": records, "upper_bound": records, "value_count": records, "null_value_count": 0}
    return entry(DATA, name, records, **{"content_stats": {"1": bounds}, **values})


def rows_of(table: pa.Table) -> list[Row]:
    return table.to_pylist()


@dataclass
class Writer:
    """A table whose leaves are in memory, with a model of its files."""

    rng: random.Random
    stats: dict[int, str] = field(default_factory=lambda: dict(NARROW))
    store: Store = field(default_factory=Store)
    root: Root | None = None
    model: dict[FileKey, Seen] = field(default_factory=dict)
    snapshot: int = 0
    next_row_id: int = 0
    name_count: int = 0

    @property
    def schema(self) -> pa.Schema:
        return SCHEMAS[len(self.stats)]

    @property
    def reading(self) -> Reading:
        return Reading([] if self.root is None else rows_of(self.root.table), self.store)

    def name(self, what: str) -> str:
        self.name_count += 1
        return f"{what}-{self.name_count}"

    def leaf(self, rows: list[Row], affinity: str | None = None) -> Row:
        """Add a leaf of these rows to the store, and return the root's entry for it."""
        location = f"/t/metadata/{self.name('leaf')}.parquet"
        table = pa.Table.from_pylist(rows, schema=self.schema)
        self.store.leaves[location] = table
        row = rows_of(leaf_row(table, location, 1000 + len(rows), ()))[0]
        return row | {"referenced_file": affinity}

    def table(self, rows: list[Row]) -> pa.Table | None:
        return pa.Table.from_pylist(rows, schema=self.schema) if rows else None

    def new_files(self, limit: int, spec: int | None = None) -> list[Row]:
        return [
            data_entry(
                self.name("f"),
                self.rng.randrange(20),
                partition_spec_id=self.rng.choice(SPECS) if spec is None else spec,
            )
            for _ in range(self.rng.randrange(limit + 1))
        ]


@dataclass
class Plan:
    """A requested commit, and its effect on the model."""

    added: list[Row]
    leaves: list[Row]
    removed: set[FileKey]
    masks: dict[str, set[int]]
    dropped: set[str] = field(default_factory=set)
    moved: set[FileKey] = field(default_factory=set)
    existing: list[Row] = field(default_factory=list)
    affinity: dict[str, str | None] = field(default_factory=dict)
    existing_masks: dict[str, set[int]] = field(default_factory=dict)

    def change(self, writer: Writer) -> TreeChange:
        return TreeChange(
            writer.table(self.added),
            writer.table(self.leaves),
            frozenset(self.removed),
            {leaf: PositionBitmap.of(sorted(ordinals)) for leaf, ordinals in self.masks.items()},
            frozenset(self.dropped),
            frozenset(self.moved),
            writer.table(self.existing),
            self.affinity,
            {leaf: PositionBitmap.of(sorted(ordinals)) for leaf, ordinals in self.existing_masks.items()},
        )


def random_plan(writer: Writer) -> tuple[Plan, set[FileKey]]:
    """Return a random change of the table's data, and the keys of the files that it removes."""
    rng, reading = writer.rng, writer.reading
    places, model = reading.places(), writer.model
    data = [key for key in places if key.content_type == DATA]
    vectors = {model[key].referenced_file: key for key in places if key.content_type == PD}
    gone = set(rng.sample(data, min(len(data), rng.choice((0, 0, 1, 1, 2, 5)))))
    if places and rng.random() < 0.1:  # a whole leaf
        leaf = rng.choice([place.leaf for place in places.values()])
        gone |= {key for key, place in places.items() if place.leaf == leaf and key.content_type == DATA}
    gone |= {key for key in places if key.content_type == EQ and rng.random() < 0.1}
    gone |= {vectors[key.location] for key in gone if key.location in vectors}
    added = writer.new_files(3)
    leaves = []
    for spec in rng.sample(SPECS, rng.choice((0, 0, 1, 2))):
        rows = writer.new_files(5, spec)
        leaves += [writer.leaf(rows)] if rows else []
    targets = [key.location for key in data if key not in gone] + [row["location"] for row in added]
    of_leaf = {key.location: place.leaf for key, place in places.items() if place.leaf is not None}
    if of_leaf and rng.random() < 0.6:  # of the files of one leaf
        owner = rng.choice(sorted(of_leaf.values()))
        targets = [path for path in targets if of_leaf.get(path) == owner]
    deletes, replaced = random_deletes(writer, targets, vectors)
    gone |= replaced
    if deletes and rng.random() < 0.6:
        leaves += delete_leaves(writer, deletes, places)
    else:
        added += deletes
    masks: dict[str, set[int]] = {}
    for key in gone:
        if (place := places[key]).leaf is not None:
            masks.setdefault(place.leaf, set()).add(place.ordinal)
    return Plan(added, leaves, {key for key in gone if places[key].leaf is None}, masks), gone


def random_deletes(
    writer: Writer, targets: list[str], vectors: dict[str | None, FileKey]
) -> tuple[list[Row], set[FileKey]]:
    """Return new deletion vectors and equality deletes, and the keys of replaced vectors."""
    rng, rows, replaced = writer.rng, [], set()
    puffin = f"{writer.name('dv')}.puffin"
    for number, target in enumerate(rng.sample(targets, min(len(targets), rng.choice((0, 0, 1, 2, 4))))):
        vector = {"offset": 4 + 50 * number, "size_in_bytes": 50, "inline_content": None}
        rows.append(entry(PD, puffin, 1 + number, deletion_vector=vector, referenced_file=target))
        if target in vectors:
            replaced.add(vectors[target])
    if rng.random() < 0.1:
        rows.append(entry(EQ, writer.name("eq"), 3))
    return rows, replaced


def delete_leaves(writer: Writer, rows: list[Row], places: dict[FileKey, Place]) -> list[Row]:
    """Write deletes to a delete leaf, which is affiliated to a data leaf if that leaf has all of their files."""
    owners = {places.get(FileKey(DATA, row["referenced_file"]), Place(None, 0)).leaf for row in rows}
    only = next(iter(owners)) if len(owners) == 1 and all(row["content_type"] == PD for row in rows) else None
    return [writer.leaf(rows, only)]


def with_maintenance(writer: Writer, plan: Plan) -> Plan:
    """Return the plan with a flush and compactions of entries that it does not change."""
    rng, reading = writer.rng, writer.reading
    moved = [row for row in reading.of(*FILES) if key_of(row) not in plan.removed and rng.random() < 0.5]
    idle = [row for row in reading.of(*LEAVES) if row["location"] not in plan.masks]
    chosen = set(rng.sample(range(len(idle)), rng.randrange(min(len(idle), 3) + 1)))
    compacted = [
        row for number, row in enumerate(idle)
        if number in chosen or (not survivors(reading, row) and rng.random() < 0.5)
    ]  # fmt: skip
    dropped = {row["location"] for row in compacted}
    rows = [*moved, *(row for manifest in compacted for row in survivors(reading, manifest))]
    stale = [row for manifest in compacted for row in removed_rows(reading, manifest) if rng.random() < 0.3]
    left = [row for row in reading.of(*LEAVES) if row["location"] not in dropped]
    owned = [row["location"] for row in left if row["referenced_file"] in dropped]
    affinity: dict[str, str | None] = dict.fromkeys(rng.sample(owned, rng.randrange(len(owned) + 1)))
    existing, masks = rewritten(writer, rows, stale)
    moved_keys = {key_of(row) for row in moved}
    changed = {"dropped": dropped, "moved": moved_keys, "existing": existing, "existing_masks": masks}
    return replace(plan, affinity=affinity, **changed)


def rewritten(writer: Writer, rows: list[Row], stale: list[Row]) -> tuple[list[Row], dict[str, set[int]]]:
    """Return new leaves with these entries as EXISTING, one or two for each spec and kind, in random order.

    Args:
        stale: entries that were removed after the leaves had been written.

    Returns:
        The root's entries of the leaves, and the ordinals of stale entries as masks.
    """
    groups: dict[tuple[bool, int], list[Row]] = {}
    masks: dict[str, set[int]] = {}
    removed = {id(row) for row in stale}
    for row in [*rows, *stale]:
        groups.setdefault((row["content_type"] == DATA, row["partition_spec_id"]), []).append(row)
    leaves = []
    for group in groups.values():
        writer.rng.shuffle(group)
        cut = writer.rng.randrange(len(group))
        parts = [part for part in (group[:cut], group[cut:]) if part]
        for part in parts:
            leaves.append(writer.leaf([with_status(row, EXISTING) for row in part]))
            if stale_ordinals := {ordinal for ordinal, row in enumerate(part) if id(row) in removed}:
                masks[leaves[-1]["location"]] = stale_ordinals
    return leaves, masks


def removed_rows(reading: Reading, manifest: Row) -> list[Row]:
    masked = reading.mask(manifest["location"])
    rows = inherited(manifest, reading.store.rows(manifest["location"]))
    return [row for ordinal, row in enumerate(rows) if ordinal in masked]


def survivors(reading: Reading, manifest: Row) -> list[Row]:
    masked = reading.mask(manifest["location"])
    rows = inherited(manifest, reading.store.rows(manifest["location"]))
    return [row for ordinal, row in enumerate(rows) if ordinal not in masked and status(row) != DELETED]


def with_status(row: Row, value: int) -> Row:
    return {**row, "version_info": {**row["version_info"], "status": int(value)}}


def expect(
    writer: Writer, plan: Plan, gone: set[FileKey], stamp: Stamp
) -> tuple[dict[FileKey, Seen], set[FileKey], int]:
    """Return the model after a commit, the new keys in it, and the number of assigned row ids."""
    model = {key: seen for key, seen in writer.model.items() if key not in gone}
    new: set[FileKey] = set()
    next_id = stamp.first_row_id
    rows = [*plan.added, *(row for leaf in plan.leaves for row in writer.store.rows(leaf["location"]))]
    for row in rows:
        is_data = row["content_type"] == DATA
        records = row["record_count"]
        model[key_of(row)] = Seen(
            stamp.snapshot_id,
            stamp.sequence_number,
            stamp.sequence_number,
            next_id if is_data else None,
            records,
            row.get("referenced_file"),
            records if is_data else None,
        )
        next_id += records if is_data else 0
        new.add(key_of(row))
    return model, new, next_id - stamp.first_row_id


# -- checks of every commit -----------------------------------------------------------------------------------------


def check_statuses(writer: Writer, plan: Plan, table: pa.Table, stamp: Stamp) -> None:
    """Check that the commit's changes are ADDED or DELETED, other entries EXISTING, and no older tombstone is left."""
    before = writer.reading
    replaced = {leaf for leaf in plan.masks if before.has_mask(leaf, (EXISTING, ADDED))}
    after = Reading(rows_of(table), writer.store)
    assert {key_of(row) for row in after.of(*FILES, statuses=(ADDED,))} == {key_of(row) for row in plan.added}
    assert {key_of(row) for row in after.of(*FILES, statuses=(DELETED,))} == plan.removed
    assert [row["location"] for row in after.of(*LEAVES, statuses=(ADDED,))] == [
        row["location"] for kind in (DM, XM) for row in plan.leaves if row["content_type"] == kind
    ]
    assert not after.of(*LEAVES, statuses=(DELETED,))
    assert {row["referenced_file"] for row in after.of(MDV, statuses=(ADDED,))} == set(plan.masks)
    assert {row["referenced_file"] for row in after.of(MDV, statuses=(DELETED,))} == replaced
    carried = {row["location"] for row in before.of(*LEAVES) if row["location"] in plan.masks or has_live(row, before)}
    carried -= plan.dropped
    existing = {row["location"] for row in plan.existing}
    assert {row["location"] for row in after.of(*LEAVES, statuses=(EXISTING,))} == carried | existing
    for row in after.root:
        version = row["version_info"]
        if status(row) != EXISTING:
            assert version["snapshot_id"] == stamp.snapshot_id
        if status(row) == ADDED or row["location"] in existing:
            assert version["sequence_number"] == version["file_sequence_number"] == stamp.sequence_number
    ranks = [(DM, XM, MDV, DATA, EQ, PD).index(row["content_type"]) for row in after.root]
    assert ranks == sorted(ranks)


def has_live(manifest: Row, reading: Reading) -> bool:
    """Return whether some entry of a leaf is live: other leaves are left out of the next root."""
    masked = reading.mask(manifest["location"])
    rows = enumerate(reading.store.rows(manifest["location"]))
    return any(ordinal not in masked and status(row) != DELETED for ordinal, row in rows)


def check_vectors(writer: Writer, plan: Plan, table: pa.Table) -> None:
    """Check that a leaf's new vector masks old and newly removed ordinals, and the replaced vector is unchanged."""
    before, after = writer.reading, Reading(rows_of(table), writer.store)
    for manifest in after.of(*LEAVES):
        leaf = manifest["location"]
        old = before.mask(leaf)
        assert after.mask(leaf) == old | plan.masks.get(leaf, set()) | plan.existing_masks.get(leaf, set())
        if leaf in plan.masks and old:
            assert after.mask(leaf, (DELETED,)) == old
    assert {row["referenced_file"] for row in after.of(MDV)} <= {row["location"] for row in after.of(*LEAVES)}
    was = {row["referenced_file"]: row for row in before.of(MDV)}
    for row in after.of(MDV, statuses=(DELETED, EXISTING)):
        if row["referenced_file"] in plan.existing_masks:
            assert status(row) == EXISTING
            continue
        old_row = was[row["referenced_file"]]
        numbers = ("sequence_number", "file_sequence_number")
        assert [row["version_info"][name] for name in numbers] == [old_row["version_info"][name] for name in numbers]
        unchanged = ("deletion_vector", "record_count", "location", "partition_spec_id")
        assert [row[name] for name in unchanged] == [old_row[name] for name in unchanged]


def check_leaves(writer: Writer, plan: Plan, table: pa.Table) -> None:
    """Check that the entry of a carried leaf is unchanged, except for the affiliation of a delete leaf."""
    was = {row["location"]: row for row in writer.reading.of(*LEAVES)}
    leaves = Reading(rows_of(table), writer.store).of(*LEAVES)
    data = {row["location"] for row in leaves if row["content_type"] == DM}
    for row in leaves:
        assert row["referenced_file"] is None or row["referenced_file"] in data
        assert row["manifest_stats"]["min_sequence_number"] == min(
            entry["version_info"]["sequence_number"] for entry in inherited(row, writer.store.rows(row["location"]))
        )
        if row["location"] in was:
            old = was[row["location"]]
            changed = {"version_info", "referenced_file", "content_stats"}
            assert {name: row[name] for name in row if name not in changed} == {
                name: old[name] for name in old if name not in changed
            }
            assert with_status(row, ADDED)["version_info"] == with_status(old, ADDED)["version_info"]
            assert (row["content_stats"] or {}).get("1") == (old["content_stats"] or {}).get("1")


def check_row_ids(model: dict[FileKey, Seen], next_row_id: int) -> None:
    """Check that no two rows share a row id."""
    ranges = sorted((seen.first_row_id, seen.record_count) for seen in model.values() if seen.first_row_id is not None)
    for (start, count), (following, _) in pairwise(ranges):
        assert start + count <= following
    assert all(start + count <= next_row_id for start, count in ranges)


def check(writer: Writer, plan: Plan, gone: set[FileKey], stamp: Stamp, new: NextRoot) -> None:
    expected, added, assigned = expect(writer, plan, gone, stamp)
    table = new.table
    reading = Reading(rows_of(table), writer.store)
    assert new.assigned_row_ids == assigned
    assert reading.live() == expected
    changes = change_set(reading, writer.reading)
    assert changes == Changes(frozenset(added), frozenset(gone))
    assert set(expected) == (set(writer.model) - changes.removed) | changes.added
    check_root(table, SPECS, "root")
    check_statuses(writer, plan, table, stamp)
    check_vectors(writer, plan, table)
    check_leaves(writer, plan, table)
    check_row_ids(expected, stamp.first_row_id + assigned)


def commit(writer: Writer) -> None:
    """Make a random commit, alone and together with maintenance, and check that readers see the same files."""
    if writer.rng.random() < 0.1:
        writer.stats = dict(WIDE)
    idle = writer.rng.random() < 0.15
    plan, gone = (Plan([], [], set(), {}), set[FileKey]()) if idle else random_plan(writer)
    stamp = Stamp(1000 + writer.snapshot, writer.snapshot + 1, writer.next_row_id)
    plans = [plan]
    if writer.root is not None and writer.rng.random() < 0.5:
        plans.append(with_maintenance(writer, plan))
    for variant in plans:
        new = next_root(writer.root, variant.change(writer), stamp, writer.schema, writer.store.load)
        check(writer, variant, gone, stamp, new)
    writer.model, _, assigned = expect(writer, plans[-1], gone, stamp)
    table = spilled(writer, new.table)
    if writer.rng.random() < 0.2:
        types = TreeTypes(writer.stats, frozenset(writer.stats), dict.fromkeys(SPECS, ()), {})
        numbers = (stamp.snapshot_id, stamp.sequence_number, None)
        read = read_root(write_root(table), types, "root", numbers, Locations("/t", 4))
        assert without_empty_stats(read.table) == without_empty_stats(table)
        table = read.table
    writer.root = Root("root", table)
    writer.snapshot += 1
    writer.next_row_id += assigned


def without_empty_stats(table: pa.Table) -> list[Row]:
    """Return the rows with empty stats as null, as in a file in which no entry has stats."""
    stats = [row["content_stats"] or {} for row in rows_of(table)]
    known = [{name: value for name, value in row.items() if value is not None} for row in stats]
    return [row | {"content_stats": values} for row, values in zip(rows_of(table), known, strict=True)]


def spilled(writer: Writer, table: pa.Table) -> pa.Table:
    """Return the root with some of its inline vectors moved to Puffin files."""
    rows = rows_of(table)
    for row in rows:
        if row["content_type"] != MDV or row["location"] is not None or writer.rng.random() < 0.8:
            continue
        location = f"/t/metadata/{writer.name('mdv')}.puffin"
        blob = row["deletion_vector"]["inline_content"]
        writer.store.blobs[location, 4] = blob
        vector = {"offset": 4, "size_in_bytes": len(blob), "inline_content": None}
        row |= {"location": location, "file_size_in_bytes": len(blob) + 100, "deletion_vector": vector}
    return pa.Table.from_pylist(rows, schema=table.schema)


@ROUNDS
@given(st.integers(0, 2**63 - 1))
def test_sequences_of_commits(seed: int) -> None:
    writer = Writer(random.Random(seed))
    for _ in range(writer.rng.randrange(2, 9)):
        commit(writer)


# -- refused commits ------------------------------------------------------------------------------------------------

SCHEMA = tree_schema(NARROW)
STAMP = Stamp(7, 3, 100)
LEAF = "/t/metadata/leaf.parquet"
VERSION = {"status": int(EXISTING), "snapshot_id": 1, "sequence_number": 1, "file_sequence_number": 1}


def no_blobs(location: str, offset: int, size: int) -> bytes:
    raise AssertionError(f"{location} is read")


def table_of(*rows: Row) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=SCHEMA)


def leaf_entry(location: str = LEAF, records: int = 3, **values: Any) -> Row:
    counts = {"added_files_count": records, "existing_files_count": 0, "deleted_files_count": 0}
    rows = {"added_rows_count": 10 * records, "existing_rows_count": 0, "deleted_rows_count": 0}
    stats = {**counts, **rows, "min_sequence_number": 1}
    row = entry(DM, "", records, version_info=VERSION, manifest_stats=stats, first_row_id=0)
    return row | {"location": location} | values


def vector_entry(positions: list[int], **values: Any) -> Row:
    blob = write_deletion_vector(PositionBitmap.of(positions))
    vector = {"offset": None, "size_in_bytes": None, "inline_content": blob}
    row = entry(MDV, "", len(positions), version_info=VERSION, deletion_vector=vector, file_format="puffin")
    return row | {"location": None, "file_size_in_bytes": None, "referenced_file": LEAF} | values


def base_of(*rows: Row) -> Root:
    return Root("base", table_of(*rows))


def refused(base: Root | None, change: TreeChange, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        next_root(base, change, STAMP, SCHEMA, no_blobs)


FILE = data_entry("a", 5, version_info=VERSION, first_row_id=0)
FILE_KEY = FileKey(DATA, "/t/data/a")
GONE = FileKey(DATA, "/t/data/gone")


@pytest.mark.parametrize(
    "change",
    [
        TreeChange(removed=frozenset({GONE})),
        TreeChange(moved=frozenset({GONE})),
        TreeChange(masks={LEAF: PositionBitmap.of([0])}),
        TreeChange(dropped=frozenset({LEAF})),
    ],
)
def test_what_a_commit_is_about_must_be_there(change: TreeChange) -> None:
    refused(None, change, CommitConflictError, "the table is empty")
    refused(base_of(FILE), change, CommitConflictError, "no longer")
    dead = with_status(FILE, DELETED) | {"location": GONE.location}
    refused(base_of(FILE, dead), change, CommitConflictError, "no longer")


def test_an_offset_belongs_to_the_key_of_a_deletion_vector() -> None:
    place = {"offset": 4, "size_in_bytes": 40, "inline_content": None}
    vector = entry(PD, "v.puffin", 1, version_info=VERSION, deletion_vector=place, referenced_file="/t/data/a")
    base = base_of(FILE, vector)
    refused(base, TreeChange(removed=frozenset({FileKey(PD, "/t/data/v.puffin", 5)})), CommitConflictError, "no longer")
    new_root = next_root(
        base, TreeChange(removed=frozenset({FileKey(PD, "/t/data/v.puffin", 4)})), STAMP, SCHEMA, no_blobs
    )
    assert [status(row) for row in new_root.table.to_pylist()] == [EXISTING, DELETED]


def test_an_entry_that_is_removed_already() -> None:
    base = base_of(leaf_entry(), vector_entry([1]))
    change = TreeChange(masks={LEAF: PositionBitmap.of([1, 2])})
    refused(base, change, CommitConflictError, "removed already")


def test_an_ordinal_that_the_leaf_does_not_have() -> None:
    refused(base_of(leaf_entry()), TreeChange(masks={LEAF: PositionBitmap.of([3])}), CorruptFileError, "3 entries")


def test_a_mask_of_nothing() -> None:
    refused(base_of(leaf_entry()), TreeChange(masks={LEAF: PositionBitmap({})}), ValueError, "nothing is removed")


def test_a_leaf_is_not_compacted_and_deleted_from_at_once() -> None:
    change = TreeChange(masks={LEAF: PositionBitmap.of([0])}, dropped=frozenset({LEAF}))
    refused(base_of(leaf_entry()), change, CommitConflictError, "compacted and deleted from")


@pytest.mark.parametrize("again", [data_entry("a", 1), leaf_entry("/t/data/a", version_info={"status": int(ADDED)})])
def test_a_file_that_is_there_already(again: Row) -> None:
    refused(base_of(FILE), TreeChange(added=table_of(again)), CommitConflictError, "/t/data/a is in the table already")


def test_a_file_is_put_in_its_own_place() -> None:
    change = TreeChange(added=table_of(data_entry("a", 1)), removed=frozenset({FILE_KEY}))
    root_rows = next_root(base_of(FILE), change, STAMP, SCHEMA, no_blobs).table.to_pylist()
    assert [(row["location"], status(row)) for row in root_rows] == [("/t/data/a", DELETED), ("/t/data/a", ADDED)]


def test_a_base_with_two_vectors_of_a_leaf() -> None:
    refused(base_of(leaf_entry(), vector_entry([0]), vector_entry([1])), TreeChange(), CorruptFileError, "two live")


def test_a_base_whose_vector_is_corrupt() -> None:
    change = TreeChange(masks={LEAF: PositionBitmap.of([2])})
    refused(base_of(leaf_entry(), vector_entry([0], record_count=2)), change, CorruptFileError, "inline .* of manifest")


def test_the_vector_of_a_leaf_that_is_not_there_is_left_behind() -> None:
    new_root = next_root(base_of(FILE, vector_entry([0])), TreeChange(), STAMP, SCHEMA, no_blobs)
    assert [row["content_type"] for row in new_root.table.to_pylist()] == [DATA]


def test_row_ids_of_a_commit() -> None:
    """Files get ids first, in order, then leaves by their rows. Deletes get none (semantics 16.10)."""
    rows = [data_entry("b", 5), entry(EQ, "eq", 9), data_entry("c", 0), data_entry("d", 2)]
    leaves = [leaf_entry("/l1"), leaf_entry("/l2", content_type=int(XM)), leaf_entry("/l3", 1)]
    new_root = next_root(
        None, TreeChange(added=table_of(*rows), added_leaves=table_of(*leaves)), STAMP, SCHEMA, no_blobs
    )
    ids = {row["location"]: row["first_row_id"] for row in new_root.table.to_pylist()}
    assert ids == {
        "/t/data/b": 100, "/t/data/eq": None, "/t/data/c": 105, "/t/data/d": 105, "/l1": 107, "/l2": None, "/l3": 137
    }  # fmt: skip
    assert new_root.assigned_row_ids == 5 + 2 + 30 + 10


def test_the_least_sequence_number_of_a_new_leaf() -> None:
    """Entries that inherit their sequence number have the commit's, as the root records (semantics 16.8)."""
    rows = [data_entry("x", 1), data_entry("y", 1)]
    new = leaf_row(table_of(*rows), LEAF, 100, ())
    assert new.to_pylist()[0]["manifest_stats"]["min_sequence_number"] is None
    root_rows = next_root(base_of(FILE), TreeChange(added_leaves=new), STAMP, SCHEMA, no_blobs).table.to_pylist()
    assert [(row["manifest_stats"] or {}).get("min_sequence_number") for row in root_rows] == [3, None]
