"""Look for damage: compare a table's metadata with the files that it names.

snapshots -> lists and roots -> manifests that are gone
live entries of a branch -> files that are gone, or differ from their entries
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.entries.live import is_live_entry
from sparkmeta.entries.projection import MANIFEST, ORDINAL
from sparkmeta.entries.relation import (
    among,
    beside,
    collected,
    computed,
    distinct_rows,
    first,
    frame_of,
    grouped,
    mapped_together,
    matching,
    select,
    some_columns,
    union,
    united,
    values,
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
    MENDING,
    STORED,
    USED,
    ContentComparison,
    Damage,
    RepeatedFiles,
    SnapshotManifests,
    StoredLengths,
    finding,
    findings,
)
from sparkmeta.manifests.placement import mapped_files
from sparkmeta.operations.metadata_files import METADATA, VERSION_HINT, hinted_version, version_of
from sparkmeta.plan.filter import manifest_path
from sparkmeta.session import read_tasks
from sparkmeta.snapshot.state import task_reader
from sparkmeta.spec.entry import ContentType
from sparkmeta.spec.metadata import has_tree
from sparkmeta.storage.location import join
from sparkmeta.storage.reading import location_key
from sparkmeta.write.add_files import measured_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.entries.relation import Relation
    from sparkmeta.expr.sql import Sql
    from sparkmeta.snapshot.state import TableState

_ENTRY_COLUMNS = (
    "content_type",
    "location",
    "file_format",
    "version_info",
    "deletion_vector",
    "partition_spec_id",
    "record_count",
    "file_size_in_bytes",
)
_KEY = "stored_key"
_OFFSET = "offset"
_IS_DATA = sql.col("content_type") == int(ContentType.DATA)
_IS_LOST = sql.col("stored_path").isNull() | sql.col("is_missing")
# Rules of `Table.check` whose violations are in the manifest list or root, and a rule for manifests that can't be read.
_COUNT_RULES = ("manifest-counts", "manifest-length")
_CONTENT_RULE = "manifest-content"
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
            parts: list[Relation] = [of_manifests, self._of_hint()]
            if self.reads_entries:
                parts += self._of_entries()
            return computed(united(parts, self.state)[0])

    @property
    def reads_entries(self) -> bool:
        """Whether the branch's manifests are complete, so that their entries are compared with files."""
        return not self.lost_manifests

    # -- the version hint

    def _of_hint(self) -> pa.Table:
        version, folder = version_of(self.metadata_location), self.state.metadata.location
        rows = []
        if Damage.HINT in self.kinds and version is not None:
            hinted = hinted_version(self.state.files, folder)
            if hinted != version:
                problem = "there is no version in it" if hinted is None else f"it says version {hinted}"
                location = join(join(folder, METADATA), VERSION_HINT)
                rows.append(finding(Damage.HINT, "version hint", location, f"{problem}: the newest is {version}"))
        return pa.Table.from_batches([findings(rows)])

    # -- manifests

    @cached_property
    def of_manifests(self) -> pa.Table:
        """Lists, roots and manifests of snapshots that are gone or unreadable, as `FINDINGS`. May run jobs."""
        if Damage.MANIFESTS not in self.kinds:
            return FINDINGS.empty_table()
        used, head_id = self._used, self.head_id
        manifests = distinct_rows(where(used, sql.col("content") == MANIFEST_FILE), ["location"])
        lost = where(self._lengths(manifests), sql.col("stored_length").isNull())
        problems = dict.fromkeys(values(lost), "the file is gone")
        unreadable = collected(where(used, sql.col("problem").isNotNull())).to_pylist()
        if not has_tree(self.state.metadata) and all(row["snapshot_id"] != head_id for row in unreadable):
            for row in self._violations:
                if row["rule"] == _CONTENT_RULE:
                    problems.setdefault(row["location"], f"{row['value']}: {row['problem']}")
        broken = collected(among(used, "location", pa.array(problems, pa.string()))).to_pylist()
        broken = [row | {"problem": problems[row["location"]]} for row in broken]
        rows = [
            finding(
                Damage.MANIFESTS, row["content"], row["location"], row["problem"],
                snapshot_id=row["snapshot_id"],
                lost_records=self._rows_of.get(row["location"], 0) if row["snapshot_id"] == head_id else None,
            )
            for row in [*unreadable, *broken]
        ]  # fmt: skip
        return pa.Table.from_batches([findings(rows)])

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
        lists = snapshot_lists(metadata, ())
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
    def _rows_of(self) -> dict[str, int]:
        """The live rows of the data manifests of the branch's head by location, as far as the list says."""
        try:
            manifests = self.state.data_manifests
        except SparkmetaError:
            return {}
        stats = manifests.column("manifest_stats")
        counts = [pc.struct_field(stats, f"{name}_rows_count") for name in ("added", "existing")]
        rows = pc.add(*(pc.fill_null(count, 0) for count in counts))
        return dict(zip(manifests.column("location").to_pylist(), rows.to_pylist(), strict=True))

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

    def _of_entries(self) -> Iterator[Relation]:
        kinds = self.kinds
        if self.state.snapshot is None:
            return
        if Damage.LISTED in kinds:
            yield self._miscounted()
        if Damage.DANGLING in kinds:
            dangling = with_columns(dangling_deletes(self.state), _manifest_path(self.state))
            yield _found(dangling, Damage.DANGLING, sql.lit("it applies to no data file"))
        if Damage.REPEATED in kinds:
            yield self._repeated()
        if kinds & {Damage.DATA, Damage.DELETES, Damage.SIZES}:
            yield from self._compared_with_store()
        if kinds & {Damage.UNREADABLE, Damage.COUNTS, Damage.STATISTICS}:
            contents = self._compared_with_content()
            yield where(contents, sql.col("damage").isin(sorted(kind.value for kind in kinds)))

    def entries(self, stats: Collection[int] = ()) -> Relation:
        """Return the live entries with their `manifest_path`, with bounds as they are written."""
        state = self.state
        projection = replace(state.projection(_ENTRY_COLUMNS, stats), as_written=True)
        # Counts in the list, which tell manifests without live files, may be wrong.
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
        several = where(grouped(live, sql.columns(*keys), number), sql.col("entries_of_file") > 1)
        columns = [*keys, "version_info", "manifest_path", MANIFEST, ORDINAL]
        rows = matching(some_columns(live, columns), several, {"location": "location", **{key: key for key in keys}})
        return mapped_together(rows, RepeatedFiles(), FINDINGS)

    def _compared_with_store(self) -> Iterator[Relation]:
        compared = self._stored_entries
        lost, gone = where(compared, _IS_LOST), sql.lit("the file is gone")
        records = sql.col("record_count")
        for damage, is_kind in ((Damage.DATA, _IS_DATA), (Damage.DELETES, ~_IS_DATA)):
            if damage in self.kinds:
                yield _found(where(lost, is_kind), damage, gone, records)
        if Damage.SIZES in self.kinds:
            size, length = sql.col("file_size_in_bytes"), sql.col("stored_length")
            texts = [part.cast("string") for part in (size, length)]
            problem = sql.concat("file_size_in_bytes is ", texts[0], ": the file has ", texts[1], " bytes")
            # In the layout of the Iceberg project, entries have the sizes of deletion vectors, not of their files.
            has_size = _IS_DATA | (sql.col("content_type") == int(ContentType.EQUALITY_DELETES))
            has_size = has_size if self.state.layout.colocates else sql.lit(True)
            yield _found(where(compared, ~_IS_LOST & has_size & (size != length)), Damage.SIZES, problem)

    @cached_property
    def _stored_entries(self) -> Relation:
        """The live entries with the path and length of their stored file."""
        if self.inventory is None:
            stored = self._lengths(distinct_rows(self._live, ["location"]))
            missing = sql.col("stored_length").isNull().alias("is_missing")
            return beside(self._live, with_columns(stored, missing), "location", "stored_path")
        files = inventory_files(self.inventory)
        # An inventory of a bucket with versions has several rows for a file. The newest counts.
        newest = files.groupBy(location_key(sql.col("path")).alias(_KEY).column()).agg(
            F.first("path").alias("stored_path"), F.max_by("length", "modified_ms").alias("stored_length")
        )
        keyed = frame_of(self._live, self.state).withColumn("entry_key", location_key(sql.col("location")).column())
        compared = computed(
            keyed.join(newest.withColumn("is_missing", F.lit(False)), F.col("entry_key") == F.col(_KEY), "left")
        )
        if first(compared) is not None and first(compared, ~_IS_LOST) is None:
            raise ValidationError(
                f"{self.state.metadata.location}: files has no file of the table: compare their paths"
            )
        return compared

    def _compared_with_content(self) -> Relation:
        state, statistics = self.state, Damage.STATISTICS in self.kinds
        comparison = ContentComparison(
            measured_files(state, full_bounds=True), state.types.column_types, statistics=statistics
        )
        entries = where(self.entries(state.types.column_types if statistics else ()), _IS_DATA)
        lost = where(self._stored_entries, _IS_LOST)
        present = matching(entries, lost, {"location": "location"}, absent=True)
        return mapped_files(
            present, lambda _: comparison, FINDINGS, state, tasks=partial(read_tasks, files=None, size=0)
        )

    def _lengths(self, paths: Relation) -> Relation:
        """Return the lengths of files, rows with their location, as `STORED`."""
        lengths = StoredLengths(task_reader(self.state))
        return computed(mapped_files(paths, lambda _: lengths, STORED, self.state, tasks=read_tasks))


def _manifest_path(state: TableState) -> sql.Aliased:
    return manifest_path(state.manifests, sql.col(MANIFEST)).alias("manifest_path")


def _found(entries: Relation, damage: Damage, problem: Sql, lost_records: Sql | None = None) -> Relation:
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
