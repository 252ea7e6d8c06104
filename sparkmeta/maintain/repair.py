"""Mend the damage of a table: the options, the plan, and the steps of its commit.

Entries are corrected first, by their positions in manifests. Then files are removed, by their paths. Snapshots that
can't be read leave the table last.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from sparkmeta.checks import Rule, are_texts, option
from sparkmeta.commit.attempts import commit_steps
from sparkmeta.commit.new_snapshot import branch_head
from sparkmeta.commit.options import BranchOptions
from sparkmeta.commit.snapshot_update import SnapshotStep, SnapshotUpdate
from sparkmeta.commit.write_target import WriteTarget
from sparkmeta.entries.relation import collected, computed, distinct_rows, frame_of, grouped, has_rows, matching
from sparkmeta.errors import CommitConflictError, UnsupportedError, ValidationError, translated_errors
from sparkmeta.expr import sql
from sparkmeta.maintain.damage import DELETE_MANIFEST, REMOVED, DamageSearch
from sparkmeta.maintain.dangling_deletes import refuse_rewrite
from sparkmeta.maintain.orphan_tasks import inventory_files
from sparkmeta.maintain.plans import SnapshotPlan, SnapshotPlanSummary
from sparkmeta.maintain.repair_steps import (
    Corrected,
    ListRepair,
    LostManifests,
    LostSnapshots,
    Rollback,
    TreeRepair,
)
from sparkmeta.maintain.repair_tasks import Damage
from sparkmeta.operations.metadata_files import newest_listed
from sparkmeta.operations.table_operations import TableT, refuse_read_only
from sparkmeta.progress import planning
from sparkmeta.snapshot.state import task_reader
from sparkmeta.spec.metadata import ancestors_of, has_tree
from sparkmeta.spec.summary import summary_properties

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.commit.attempts import Step

_log = logging.getLogger(__name__)

_KINDS: Final = tuple(kind.value for kind in Damage)
_CORRECTED: Final = frozenset({Damage.SIZES, Damage.COUNTS, Damage.STATISTICS})


# -- The options and numbers ------------------------------------------------------------------------------------------


def _are_kinds(values: Any) -> bool:
    return are_texts(values) and 0 < len(set(values)) == len([*values]) and {*values} <= {*_KINDS}


@dataclass(frozen=True)
class RepairOptions(BranchOptions):
    """See `Maintenance.repair`."""

    kinds: Sequence[str] | None = option(
        None,
        "the kinds of damage to look for and to mend. Without them, all kinds are looked for, and nothing is mended.",
        Rule(f"kinds of damage, each once: {', '.join(_KINDS)}", _are_kinds),
    )
    _: KW_ONLY
    files: DataFrame | None = option(
        None,
        "an inventory to use instead of a request for each file: file_path (string), last_modified (timestamp) and, if "
        "known, size (bigint).",
    )


@dataclass(frozen=True)
class RepairSummary(SnapshotPlanSummary):
    """The damage of a table in numbers; `str` formats them.

    Attributes:
        damage: kind of damage -> the number of damaged files, entries or manifests.
        lost_rows: the rows of data files and manifests that leave the table, including deleted rows; None if this is
            unknown, since a list or root is lost.
        lost_deletes: the deletes of lost delete files and manifests. The rows that they delete come back.
        lost_snapshots: the snapshots that can't be read completely.
        checks_entries: whether entries were compared with files, which requires that no manifest is lost.
        mends: whether `commit` mends the damage.
    """

    damage: Mapping[str, int]
    lost_rows: int | None
    lost_deletes: int
    lost_snapshots: tuple[int, ...]
    checks_entries: bool
    mends: bool

    @property
    def is_empty(self) -> bool:
        return not self.damage

    def __str__(self) -> str:
        if self.is_empty:
            return f"{self.table}: no damage"
        lines = [f"{self.table}: is damaged" + ("" if self.mends else "; name the kinds of damage to mend")]
        if self.lost_rows is None:
            lines.append("  an unknown number of rows is lost: the branch goes back to an earlier snapshot")
        elif self.lost_rows:
            lines.append(f"  {self.lost_rows} rows are lost")
        if self.lost_deletes:
            lines.append(f"  {self.lost_deletes} deletes are lost, so that rows come back")
        if self.lost_snapshots:
            lines.append(f"  snapshots that can't be read: {', '.join(map(str, self.lost_snapshots))}")
        lines += [f"  {kind}: {number}" for kind, number in self.damage.items()]
        if not self.checks_entries:
            lines.append("  files were not looked at: mend lost-manifests first, and plan again")
        return "\n".join(lines)


# -- The plan ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RepairPlan(SnapshotPlan[TableT]):
    """A plan to mend damage, carried out by `commit`.

    `commit` raises ValidationError if the plan has found damage, and no kinds of damage were named. It raises
    CommitConflictError if other commits have changed damaged manifests or removed damaged files.

    Attributes:
        options: the options.
    """

    _doing = "Mending the table"

    options: RepairOptions

    def to_df(self) -> DataFrame:
        """Return a row for each damaged file, entry or manifest. May run jobs.

        Columns: damage (its kind), content ("data file", "position delete file", "equality delete file", "manifest",
        "manifest list", "root", "version hint"), file_path, problem, mending (what `commit` does), lost_records (the
        rows or deletes that are lost; null if unknown), snapshot_id (of a lost manifest), content_offset (of a deletion
        vector), manifest_path and manifest_pos (of an entry).
        """
        return frame_of(self._search.rows, self._state)

    @planning
    def summary(self) -> RepairSummary:
        """Return the damage in numbers. Runs the jobs of `to_df`."""
        return self._summary

    @cached_property
    def _summary(self) -> RepairSummary:
        search = self._search
        counted = grouped(
            search.rows,
            sql.columns("damage", "content"),
            [sql.call("sum", 1).alias("files"), sql.call("sum", sql.col("lost_records")).alias("records")],
        )
        rows = {(row["damage"], row["content"]): row for row in collected(counted).to_pylist()}
        lost = {key: row["records"] or 0 for key, row in rows.items()}
        of_deletes = [key for key in lost if key[0] == Damage.DELETES or key[1] == DELETE_MANIFEST]
        lost_rows = sum(records for key, records in lost.items() if key not in of_deletes)
        damage = {kind: sum(row["files"] for key, row in rows.items() if key[0] == kind) for kind in _KINDS}
        return RepairSummary(
            self.table.full_name,
            self._snapshot_id,
            {kind: number for kind, number in damage.items() if number},
            lost_rows if search.has_list else None,
            sum(lost[key] for key in of_deletes),
            tuple(sorted(search.damaged_snapshots)),
            search.reads_entries,
            self.options.kinds is not None,
        )

    @cached_property
    def _search(self) -> DamageSearch:
        kinds = frozenset(map(Damage, _KINDS if self.options.kinds is None else self.options.kinds))
        return DamageSearch(self._state, self.table.metadata_location, kinds, self.options.files)

    def _commit(self) -> TableT:
        summary = self.summary()
        if summary.is_empty:
            return self.table
        if not summary.mends:
            problem = f"it has {', '.join(summary.damage)}"
            raise ValidationError(f"{self.table.full_name}: {problem}: name the kinds of damage to mend")
        with translated_errors():
            steps = [*self._steps()]
        if back := self._search.files_that_are_back():
            raise CommitConflictError(f"{', '.join(back)}: the files are back: plan again")
        mended = commit_steps(self.table, steps) if steps else self.table
        for row in collected(self._search.of_kinds({Damage.HINT})).to_pylist():
            self._write_hint(row["file_path"], is_needed=not steps)
        return mended

    def _write_hint(self, location: str, *, is_needed: bool) -> None:
        """Write the newest version to the hint. After a commit, a failure is logged, since the hint may be outdated."""
        files = self._state.files
        try:
            newest = newest_listed(files, self.table.metadata.location).version
            files.overwrite(location, str(newest).encode())
        except Exception as error:
            if is_needed:
                raise
            _log.warning("%s: not written after the commit: %s", location, error)

    def _steps(self) -> Iterator[Step]:
        """Yield the steps of the commit in order."""
        search, state = self._search, self._state
        branch, properties = self.options.branch, summary_properties(self.options.snapshot_properties)
        if not search.has_list:
            yield self._rollback()
        elif search.lost_manifests:
            yield LostManifests(branch, properties, search.lost_manifests)
        else:
            corrected = Corrected.of(search, *map(search.of_kinds, (_CORRECTED, {Damage.REPEATED}, {Damage.LISTED})))
            if corrected.manifests:
                if state.tree is None and has_tree(state.metadata):
                    problem = "its branch still has a manifest list of an earlier version: compact its manifests first"
                    raise UnsupportedError(f"{self.table.full_name}: {problem}")
                step_type = ListRepair if state.tree is None else TreeRepair
                yield step_type(branch, properties, corrected)
            names = ["file_path", "content_offset"]
            removed, dangling = (distinct_rows(search.of_kinds(kinds), names) for kinds in (REMOVED, {Damage.DANGLING}))
            dangling = matching(dangling, removed, {name: name for name in names}, absent=True)
            for files, is_loss in ((computed(removed), True), (computed(dangling), False)):
                if has_rows(files):
                    step = SnapshotStep(state, WriteTarget(branch), dict(properties))
                    update = SnapshotUpdate(step)
                    _ = update.delete(files) if is_loss else update.rewrite(files)
                    yield step
        if search.damaged_snapshots:
            yield LostSnapshots(search.damaged_snapshots)

    def _rollback(self) -> Rollback:
        metadata, damaged = self._state.metadata, self._search.damaged_snapshots
        assert self._snapshot_id is not None
        for snapshot in ancestors_of(metadata, self._snapshot_id):
            if snapshot.snapshot_id not in damaged:
                return Rollback(self.options.branch, self._snapshot_id, snapshot.snapshot_id)
        raise ValidationError(
            f"{self.table.full_name}: the manifest list of branch {self.options.branch} is lost, and no earlier "
            "snapshot of the branch can be read: restore one of their files"
        )


def plan_repair(table: TableT, options: RepairOptions) -> RepairPlan[TableT]:
    """See `Maintenance.repair`."""
    options.check()
    if options.kinds is not None:
        refuse_read_only(table)
    refuse_rewrite(table.metadata)
    task_reader(table.state)
    if options.files is not None:
        inventory_files(options.files)
    return RepairPlan(table, branch_head(table.state, options.branch), options)
