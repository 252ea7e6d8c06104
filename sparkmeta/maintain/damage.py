"""Look for damage: compare a table's metadata with the files that it names.

snapshots -> lists and roots -> manifests that are gone
live entries of a branch -> files that are gone, or differ from their entries
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.entries.live import is_live_entry
from sparkmeta.entries.projection import DV_COLUMNS, MANIFEST, ORDINAL
from sparkmeta.entries.relation import (
    among,
    beside,
    collected,
    computed,
    distinct_rows,
    first,
    frame_of,
    grouped,
    head,
    mapped_together,
    matching,
    names,
    select,
    some_columns,
    union,
    united,
    where,
    with_columns,
)
from sparkmeta.errors import SparkmetaError, ValidationError, translated_errors
from sparkmeta.expr import sql
from sparkmeta.inspect.check import violations
from sparkmeta.maintain.dangling_deletes import dangling_deletes
from sparkmeta.maintain.orphan_tasks import inventory_files
from sparkmeta.maintain.reachable import snapshot_lists
from sparkmeta.maintain.reachable_tasks import CONTENTS, ListReader
from sparkmeta.maintain.reachable_tasks import MANIFEST as MANIFEST_FILE
from sparkmeta.maintain.repair_tasks import (
    FINDINGS,
    GONE,
    MENDING,
    SOUND,
    STORED,
    USED,
    ContentComparison,
    Damage,
    RepeatedFiles,
    SnapshotManifests,
    Soundness,
    StoredLengths,
    finding,
    findings,
)
from sparkmeta.manifests.placement import mapped_files
from sparkmeta.manifests.v4.root import in_files
from sparkmeta.operations.metadata_files import hint_location, hinted_version, newest_listed, version_of
from sparkmeta.plan.filter import manifest_path
from sparkmeta.session import read_tasks
from sparkmeta.snapshot.state import task_reader
from sparkmeta.spec.entry import ContentType
from sparkmeta.spec.metadata import has_tree
from sparkmeta.storage.reading import location_key
from sparkmeta.write.add_files import measured_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.entries.relation import Relation
    from sparkmeta.expr.sql import Sql
    from sparkmeta.snapshot.state import TableState

REMOVED = frozenset({Damage.DATA, Damage.DELETES, Damage.UNREADABLE})
"""The kinds of damage whose mending removes files from the table."""

DELETE_MANIFEST = "delete manifest"
"""The content of a lost manifest of deletes."""

_KEY = "stored_key"
_OFFSET = "offset"
# Maximum number of files that an error names.
_MOST_NAMED = 3
_IS_DATA = sql.col("content_type") == int(ContentType.DATA)
_IS_LOST = sql.col("stored_path").isNull() | sql.col("is_missing")
# Rules of `Table.check` about the manifest list or root, and the rule for manifests that can't be read.
_COUNT_RULES = ("manifest-counts", "manifest-length")
_CONTENT_RULE = "manifest-content"
# The beginning of a violation's value if the manifest can't be opened. Such a manifest may be sound.
_NOT_OPENED = "file is "
_OF_LIST = ("min_sequence_number is ", "partitions.")


@dataclass(frozen=True)
class DamageSearch:
    """Looks for damage of a table.

    Attributes:
        state: the table at the head of a branch.
        metadata_location: the table's metadata file.
        kinds: the kinds of damage to look for.
        inventory: the files of a store, instead of a request for each file.
    """

    state: TableState
    metadata_location: str
    kinds: frozenset[Damage]
    inventory: DataFrame | None = None

    @cached_property
    def rows(self) -> Relation:
        """The damage, as `FINDINGS`. May run jobs."""
        with translated_errors():
            of_manifests = self.of_manifests
            parts: list[Relation] = [of_manifests, self._hint_findings()]
            if self.reads_entries:
                parts += self._entry_findings()
            return computed(united(parts, self.state)[0])

    def of_kinds(self, kinds: Iterable[Damage]) -> Relation:
        """Return the damage of some kinds, as `FINDINGS`."""
        return where(self.rows, _has_kind(kinds))

    @property
    def reads_entries(self) -> bool:
        """Whether the branch's manifests are complete, so that their entries are compared with files."""
        return not self.lost_manifests

    def files_that_are_back(self) -> list[str]:
        """Return some of the branch's lost or unreadable files that exist again and are complete."""
        lost = self.of_kinds(REMOVED)
        if first(lost) is None:
            return []
        files = matching(distinct_rows(self._live, ["location", "file_format"]), lost, {"location": "file_path"})
        back = head(where(self.soundness(files), sql.col("problem").isNull()), _MOST_NAMED)
        return [str(path) for path in back.column(0).to_pylist()]

    # -- the version hint

    def _hint_findings(self) -> pa.Table:
        files, folder, rows = self.state.files, self.state.metadata.location, []
        if Damage.HINT in self.kinds and version_of(self.metadata_location) is not None:
            # The table may be outdated.
            newest, hinted = newest_listed(files, folder).version, hinted_version(files, folder)
            if hinted != newest:
                problem = "it is gone or has no version" if hinted is None else f"it says version {hinted}"
                text = f"{problem}: the newest is {newest}"
                rows.append(finding(Damage.HINT, "version hint", hint_location(folder), text))
        return pa.Table.from_batches([findings(rows)])

    # -- manifests

    @cached_property
    def of_manifests(self) -> pa.Table:
        """Lists, roots and manifests of snapshots that are gone or unreadable, as `FINDINGS`. May run jobs."""
        if Damage.MANIFESTS not in self.kinds:
            return FINDINGS.empty_table()
        used, head_id = self._used, self.head_id
        manifests = distinct_rows(where(used, sql.col("content") == MANIFEST_FILE), ["location"])
        checked = self.soundness(manifests)
        unsound = collected(where(checked, sql.col("problem").isNotNull()))
        problems = dict(zip(*(unsound.column(name).to_pylist() for name in SOUND.names), strict=True))
        unreadable = collected(where(used, sql.col("problem").isNotNull())).to_pylist()
        if not has_tree(self.state.metadata) and all(row["snapshot_id"] != head_id for row in unreadable):
            problems |= {path: problem for path, problem in self._undecodable() if path not in problems}
        broken = collected(among(used, "location", pa.array(problems, pa.string()))).to_pylist()
        broken = [row | {"problem": problems[row["location"]]} for row in broken]
        return pa.Table.from_batches([findings(map(self._lost, [*unreadable, *broken]))])

    def _lost(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the finding of a row of `USED`. The records of lists, roots and older snapshots are unknown."""
        content, records = row["content"], None
        if row["snapshot_id"] == self.head_id and row["location"] in self._records:
            content, records = self._records[row["location"]]
        columns = {"snapshot_id": row["snapshot_id"], "lost_records": records}
        return finding(Damage.MANIFESTS, content, row["location"], row["problem"], **columns)

    def _undecodable(self) -> Iterator[tuple[str, str]]:
        """Yield the manifests of the branch's head that can be opened, but not decoded."""
        for row in self._violations:
            if row["rule"] == _CONTENT_RULE and not row["value"].startswith(_NOT_OPENED):
                yield row["location"], f"{row['value']}: {row['problem']}"

    @property
    def head_id(self) -> int | None:
        """The id of the branch's head."""
        return None if self.state.snapshot is None else self.state.snapshot.snapshot_id

    @cached_property
    def damaged_snapshots(self) -> frozenset[int]:
        """The ids of snapshots whose list, root or manifests are gone or unreadable."""
        return frozenset(self.of_manifests.column("snapshot_id").to_pylist())

    @cached_property
    def lost_manifests(self) -> frozenset[str]:
        """The locations of the lost manifests of the branch's head, and of its list or root."""
        is_of_head = pc.equal(self.of_manifests.column("snapshot_id"), pa.scalar(self.head_id, pa.int64()))
        return frozenset(self.of_manifests.filter(is_of_head).column("file_path").to_pylist())

    @property
    def has_list(self) -> bool:
        """Whether the list or root of the branch's head can be read."""
        snapshot = self.state.snapshot
        return snapshot is None or snapshot.manifests_location not in self.lost_manifests

    @cached_property
    def _used(self) -> Relation:
        """The lists, roots and manifests of all snapshots, as `USED`."""
        state, metadata = self.state, self.state.metadata
        lists = snapshot_lists(state.files, metadata, ())
        trees = state.types.tree_types if has_tree(metadata) else None
        reader = SnapshotManifests(ListReader(task_reader(state), trees, state.types.locations))
        tasks = partial(read_tasks, files=len(lists), size=0)
        used = mapped_files(lists, lambda _: reader, USED, state, tasks=tasks)
        inline = [
            {"snapshot_id": snapshot.snapshot_id, "content": MANIFEST_FILE, "location": path}
            for snapshot in metadata.snapshots
            if not snapshot.manifests_location
            for path in snapshot.inline_manifests or ()
        ]
        return computed(union(used, pa.Table.from_pylist(inline, USED), state) if inline else used)

    @cached_property
    def _records(self) -> dict[str, tuple[str, int]]:
        """The contents and live records of the branch head's manifests by location, as far as the list records them."""
        try:
            manifests = in_files(self.state.manifests)
        except SparkmetaError:
            return {}
        stats, kinds = manifests.column("manifest_stats"), manifests.column("content_type").to_pylist()
        counts = [pc.fill_null(pc.struct_field(stats, f"{name}_rows_count"), 0) for name in ("added", "existing")]
        contents = [DELETE_MANIFEST if kind == ContentType.DELETE_MANIFEST else MANIFEST_FILE for kind in kinds]
        values_of = zip(contents, pc.add(*counts).to_pylist(), strict=True)
        return dict(zip(manifests.column("location").to_pylist(), values_of, strict=True))

    @cached_property
    def _violations(self) -> list[dict[str, Any]]:
        """The violations in the branch's head that concern its list or root, and manifests that can't be read."""
        if self.state.snapshot is None:
            return []
        rule, value = sql.col("rule"), sql.col("value")
        is_of_list = rule.isin([*_COUNT_RULES, _CONTENT_RULE])
        for beginning in _OF_LIST:
            is_of_list |= value.startswith(beginning)
        broken = collected(where(violations(self.state).relation(), is_of_list))
        return list(broken.to_pylist())

    def _miscounted(self) -> pa.Table:
        """Return the manifests that the list or root describes wrongly, once each."""
        problems: dict[str, str] = {}
        for row in self._violations:
            if row["rule"] != _CONTENT_RULE and row["location"] not in self.lost_manifests:
                problems.setdefault(row["location"], f"{row['value']}: {row['problem']}")
        rows = [finding(Damage.LISTED, MANIFEST_FILE, path, text) for path, text in sorted(problems.items())]
        return pa.Table.from_batches([findings(rows)])

    # -- entries of the branch's head

    def _entry_findings(self) -> Iterator[Relation]:
        kinds = self.kinds
        if self.state.snapshot is None:
            return
        if Damage.LISTED in kinds:
            yield self._miscounted()
        if Damage.DANGLING in kinds:
            dangling = with_columns(dangling_deletes(self.state), _manifest_path(self.state))
            yield _as_findings(dangling, Damage.DANGLING, sql.lit("it applies to no data file"))
        if Damage.REPEATED in kinds:
            yield self._repeated()
        if kinds & {Damage.DATA, Damage.DELETES, Damage.SIZES}:
            yield from self._compared_with_store()
        if kinds & {Damage.UNREADABLE, Damage.COUNTS, Damage.STATISTICS}:
            contents = self._compared_with_content()
            yield where(contents, _has_kind(kinds))

    def entries(self, stats: Collection[int] = ()) -> Relation:
        """Return the live entries with their `manifest_path`, with unchanged bounds, which may be inverted."""
        state = self.state
        projection = replace(state.projection(DV_COLUMNS, stats), as_written=True)
        # All manifests are read: the list's counts, which tell which manifests have no live files, may be wrong.
        live = where(state.relation(state.manifests, projection), is_live_entry())
        return with_columns(live, _manifest_path(state))

    @cached_property
    def _live(self) -> Relation:
        return computed(self.entries())

    def _repeated(self) -> Relation:
        offset = sql.coalesce(sql.col("deletion_vector.offset"), sql.lit(-1).cast("bigint")).alias(_OFFSET)
        live = with_columns(self._live, offset)
        number = [sql.call("sum", sql.lit(1).cast("bigint")).alias("entries_of_file")]
        keys = ["content_type", "location", _OFFSET]
        repeated = where(grouped(live, sql.columns(*keys), number), sql.col("entries_of_file") > 1)
        columns = [*keys, "version_info", "manifest_path", MANIFEST, ORDINAL]
        rows = matching(some_columns(live, columns), repeated, {"location": "location", **{key: key for key in keys}})
        return mapped_together(rows, RepeatedFiles(), FINDINGS)

    def _compared_with_store(self) -> Iterator[Relation]:
        compared = self._stored_entries
        lost, gone = where(compared, _IS_LOST), sql.lit(GONE)
        records = sql.col("record_count")
        for damage, is_kind in ((Damage.DATA, _IS_DATA), (Damage.DELETES, ~_IS_DATA)):
            if damage in self.kinds:
                yield _as_findings(where(lost, is_kind), damage, gone, records)
        if Damage.SIZES in self.kinds:
            size, length = sql.col("file_size_in_bytes"), sql.col("stored_length")
            texts = [part.cast("string") for part in (size, length)]
            problem = sql.concat("file_size_in_bytes is ", texts[0], ": the file has ", texts[1], " bytes")
            # In the layout of the Iceberg project, entries have the sizes of deletion vectors, not of their files.
            has_size = _IS_DATA | (sql.col("content_type") == int(ContentType.EQUALITY_DELETES))
            has_size = has_size if self.state.layout.colocates else sql.lit(True)
            yield _as_findings(where(compared, ~_IS_LOST & has_size & (size != length)), Damage.SIZES, problem)

    @cached_property
    def _stored_entries(self) -> Relation:
        """The live entries with the path and length of their stored file, and whether it is missing.

        Raises:
            ValidationError: none of the table's files exists.
        """
        compared = self._by_requests(self._live) if self.inventory is None else self._by_inventory()
        if first(compared) is not None and first(compared, ~_IS_LOST) is None:
            problem = "no file of the table is there: its folder may be moved, or not be mounted"
            raise ValidationError(f"{self.state.metadata.location}: {problem}")
        return compared

    def _by_requests(self, entries: Relation) -> Relation:
        stored = self.lengths(distinct_rows(entries, ["location"]))
        missing = sql.col("stored_length").isNull().alias("is_missing")
        return beside(entries, with_columns(stored, missing), "location", "stored_path")

    def _by_inventory(self) -> Relation:
        """Compare with the inventory. Files that it lacks may be newer, so they are looked up in the store."""
        assert self.inventory is not None
        # An inventory of a bucket with versions has several rows for a file. The newest counts.
        newest = (
            inventory_files(self.inventory)
            .groupBy(location_key(sql.col("path")).alias(_KEY).column())
            .agg(F.first("path").alias("stored_path"), F.max_by("length", "modified_ms").alias("stored_length"))
        )
        present = newest.withColumn("is_missing", F.lit(False))
        keyed = frame_of(self._live, self.state).withColumn("entry_key", location_key(sql.col("location")).column())
        compared = computed(keyed.join(present, F.col("entry_key") == F.col(_KEY), "left").drop("entry_key", _KEY))
        unlisted = where(compared, sql.col("stored_path").isNull())
        if first(unlisted) is None:
            return compared
        requested = self._by_requests(some_columns(unlisted, names(self._live)))
        return computed(union(where(compared, sql.col("stored_path").isNotNull()), requested, self.state))

    def _compared_with_content(self) -> Relation:
        state, statistics = self.state, Damage.STATISTICS in self.kinds
        comparison = ContentComparison(
            measured_files(state, full_bounds=True), state.types.column_types, statistics=statistics
        )
        entries = where(self.entries(state.types.column_types if statistics else ()), _IS_DATA)
        lost = where(self._stored_entries, _IS_LOST)
        present = matching(entries, lost, {"location": "location"}, absent=True)
        return mapped_files(present, lambda _: comparison, FINDINGS, state, tasks=read_tasks)

    def lengths(self, paths: Relation) -> Relation:
        """Return the lengths of files, given by their locations, as `STORED`."""
        lengths = StoredLengths(task_reader(self.state))
        return computed(mapped_files(paths, lambda _: lengths, STORED, self.state, tasks=read_tasks))

    def soundness(self, files: Relation) -> Relation:
        """Return how files are damaged, given by their locations and optionally their formats, as `SOUND`."""
        soundness = Soundness(task_reader(self.state))
        return computed(mapped_files(files, lambda _: soundness, SOUND, self.state, tasks=read_tasks))


def _has_kind(kinds: Iterable[Damage]) -> Sql:
    return sql.col("damage").isin(sorted(kind.value for kind in kinds))


def _manifest_path(state: TableState) -> sql.Aliased:
    return manifest_path(state.manifests, sql.col(MANIFEST)).alias("manifest_path")


def _as_findings(entries: Relation, damage: Damage, problem: Sql, lost_records: Sql | None = None) -> Relation:
    """Return damaged entries as `FINDINGS`."""
    nothing = sql.lit(None)
    contents = [CONTENTS.get(ContentType(number), "") for number in range(max(CONTENTS) + 1)]
    columns = {
        "damage": sql.lit(damage.value),
        "content": sql.lookup(contents, sql.col("content_type")),
        "file_path": sql.col("location"),
        "problem": problem,
        "mending": sql.lit(MENDING[damage]),
        "lost_records": (sql.lit(0) if lost_records is None else lost_records).cast("bigint"),
        "snapshot_id": nothing.cast("bigint"),
        "content_offset": sql.col("deletion_vector.offset"),
        "manifest_path": sql.col("manifest_path"),
        "manifest_pos": sql.col(ORDINAL),
    }
    return select(entries, sql.named(columns))
