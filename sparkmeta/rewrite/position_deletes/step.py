"""Commit rewritten position deletes to a table of format version 2 or 3, as a manifest list."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from sparkmeta.changes.history import snapshots_since
from sparkmeta.commit.removal import Removal, removal_of
from sparkmeta.edit.list_options import ListOptions
from sparkmeta.edit.lists import NewList, without_manifests
from sparkmeta.edit.rewrite_plan import RewriteStep
from sparkmeta.edit.rewritten_manifests import ManifestRewriter
from sparkmeta.edit.summary import ManifestCounts
from sparkmeta.edit.tally import Tally
from sparkmeta.errors import CommitConflictError
from sparkmeta.plan.filter import is_live
from sparkmeta.plan.prune import live_manifests
from sparkmeta.rewrite.dangling_deletes.search import ENTRY_COLUMNS
from sparkmeta.rewrite.position_deletes.entries import write_delete_manifests
from sparkmeta.session import materialize
from sparkmeta.spec.bitmap import write_deletion_vector

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from sparkmeta.rewrite.position_deletes.rewrite import DeleteRewrite
    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.state import TableState

_APPEND = "append"
_KEY = ["location", "blob_offset"]


@dataclass
class DeleteRewriteStep(RewriteStep):
    """Replaces the entries of rewritten position deletes; see `DeleteRewritePlan.commit`.

    Manifests of new deletes are written once. Each attempt writes the manifests again that list replaced ones, unless
    an earlier attempt has written the same.

    Attributes:
        rewrite: the deletes that are replaced.
        new: the new deletes, rows of `WRITTEN_SCHEMA`.
        manifests: the manifests that attempts have written and what they add, by what they depend on.
    """

    rewrite: DeleteRewrite
    new: DataFrame
    manifests: dict[object, tuple[pa.Table, Tally]] = field(default_factory=dict)

    def apply_to(self, head: TableState) -> TableMetadata:
        """See `RewriteStep.apply_to`."""
        planned = self.rewrite.state
        if head.metadata.format_version != planned.metadata.format_version:
            raise CommitConflictError(f"{head.metadata.location}: its format version has changed: plan again")
        is_same = head.snapshot == planned.snapshot
        removal = removal_of(self.rewrite.entries, planned) if is_same else self._removal(head)
        names, snapshot_id = self.names, self.names.snapshot_id
        added, tally = self._once(
            snapshot_id, lambda: write_delete_manifests(self.new, planned, snapshot_id, names.file("m"))
        )
        masks = tuple((location, write_deletion_vector(removal.masks[location])) for location in sorted(removal.masks))
        unchanged = without_manifests(head.manifest_files, removal.masks.keys())
        rest, _ = self._once((snapshot_id, masks), lambda: (self._without(head, removal), Tally()))
        counts = ManifestCounts(len(added) + len(rest), len(unchanged), len(removal.masks))
        summary = self.summary(head, counts, removed=removal.tally, added=tally)
        return NewList(head, self.branch, names).commit(pa.concat_tables([added, rest, unchanged]), summary())

    def _without(self, head: TableState, removal: Removal) -> pa.Table:
        """Write the manifests that list removed entries without them, and return the rows of the new ones."""
        target = ListOptions.of(head.metadata).target_bytes
        rewriter = ManifestRewriter(head, self.names.snapshot_id, self.names.file("m"), target)
        return rewriter.without_entries(head.manifest_files, removal.masks)

    def _once(self, key: object, write: Callable[[], tuple[pa.Table, Tally]]) -> tuple[pa.Table, Tally]:
        if key not in self.manifests:
            self.manifests[key] = write()
            self.names.written.update(self.manifests[key][0].column("manifest_path").to_pylist())
        return self.manifests[key]

    def _removal(self, head: TableState) -> Removal:
        """Return the removal from a snapshot that others have committed since the plan.

        Raises:
            CommitConflictError: a replaced delete or, for deletion vectors, a data file is gone, or a data file has
                another deletion vector, or the planned snapshot is not an ancestor.
        """
        planned = self.rewrite.state
        start = planned.snapshot.snapshot_id if planned.snapshot is not None else None
        since = snapshots_since(head, start)
        replaced = materialize(_keyed(self.rewrite.entries).select(*_KEY))
        deletes = materialize(_keyed(_live(head, head.delete_manifests)))
        present = materialize(deletes.join(replaced, _KEY, "left_semi"))
        for row in replaced.join(present, _KEY, "left_anti").limit(1).toArrow().to_pylist():
            raise _conflict(head, f"removed {row['location']}, whose deletes are rewritten")
        if self.rewrite.makes_vectors and any(snapshot.operation != _APPEND for snapshot in since):
            self._check_data_files(head, deletes.join(replaced, _KEY, "left_anti"))
        return removal_of(present.drop("blob_offset"), head)

    def _check_data_files(self, head: TableState, others: DataFrame) -> None:
        """Refuse deletion vectors of data files that are gone, or that have another deletion vector."""
        files = self.new.select("referenced_data_file")
        same = F.col("referenced_file") == F.col("referenced_data_file")
        vectors = others.where("file_format = 'PUFFIN'")
        for row in vectors.join(files, same, "left_semi").limit(1).toArrow().to_pylist():
            raise _conflict(head, f"added a deletion vector for {row['referenced_file']}")
        data = _live(head, head.data_manifests).select("location")
        gone = files.join(data, F.col("referenced_data_file") == F.col("location"), "left_anti")
        for row in gone.limit(1).toArrow().to_pylist():
            raise _conflict(head, f"removed {row['referenced_data_file']}, whose deletes are rewritten")


def _live(state: TableState, manifests: pa.Table) -> DataFrame:
    return state.entries(live_manifests(manifests), state.projection(ENTRY_COLUMNS)).where(is_live().text)


def _keyed(entries: DataFrame) -> DataFrame:
    return entries.withColumn("blob_offset", F.coalesce("deletion_vector.offset", F.lit(-1)))


def _conflict(head: TableState, problem: str) -> CommitConflictError:
    return CommitConflictError(f"{head.metadata.location}: another commit has {problem}: plan again")
