"""What other commits did since an operation began, and whether the operation may still be committed (semantics 4)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyspark.sql import functions as F

from sparkmeta.columns.predicate import bind_filter, parse_filter
from sparkmeta.commit.search import FOUND_COLUMNS
from sparkmeta.errors import CommitConflictError, ValidationError
from sparkmeta.manifests.tree import IN_ROOT
from sparkmeta.plan.prune import ScanFilter, is_live, live_manifests, matching_entries, matching_manifests
from sparkmeta.spec.entry import ContentType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.spec.metadata import Snapshot
    from sparkmeta.state import TableState

_REPLACE = "replace"


@dataclass(frozen=True)
class Validation:
    """What must not have happened since the snapshot `start` (None: since the table was empty).

    data: files added whose rows may match the filter. deletes: delete files added, or data files removed, likewise.
    """

    start: int | None
    row_filter: BooleanExpression | str = AlwaysTrue()  # noqa: RUF009  an immutable singleton
    data: bool = False
    deletes: bool = False


def snapshots_since(head: TableState, start: int | None) -> list[Snapshot]:
    """The snapshots of the head's history after `start`, the newest first.

    Raises:
        ValidationError: the history does not go back to it.
    """
    found: list[Snapshot] = []
    snapshot = head.snapshot
    while snapshot is not None and snapshot.snapshot_id != start:
        found.append(snapshot)
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else head.metadata.snapshot_by_id(parent)
        if snapshot is None and parent != start and (start is not None or parent is not None):
            raise ValidationError(
                f"{head.metadata.location}: can't tell what was committed since snapshot {start}: the history of "
                f"{found[0].snapshot_id} ends at {found[-1].snapshot_id}"
            )
    return found


def validate(head: TableState, validation: Validation) -> None:
    """CommitConflictError where another commit did what an operation can't be committed after."""
    history = snapshots_since(head, validation.start)
    ids = [one.snapshot_id for one in history if one.operation != _REPLACE]
    if not ids:
        return
    # What others added may stand in a leaf that a compaction of theirs wrote.
    writers = [one.snapshot_id for one in history]
    schema = head.metadata.schema()
    scan = ScanFilter(head, bind_filter(parse_filter(validation.row_filter), schema, case_sensitive=True), schema)
    if validation.data:
        _refuse(head, _new_entries(scan, ContentType.DATA_MANIFEST, ids, writers), "added data that may match")
    if validation.deletes:
        _refuse(
            head, _new_entries(scan, ContentType.DELETE_MANIFEST, ids, writers), "added deletes of rows that may match"
        )
        _refuse_removed(scan, validation.start)


def refuse_new_deletes(head: TableState, files: DataFrame, start: int | None) -> None:
    """CommitConflictError where a data file that is to be replaced had rows deleted since the snapshot `start`.

    Its replacement was made of rows that are deleted now. Any new equality delete counts, whatever its partition.
    files: rows with `file_path`.
    """
    ids = [one.snapshot_id for one in snapshots_since(head, start)]
    if not ids:
        return
    entries = _since(head, ContentType.DELETE_MANIFEST, ids)
    equality = entries.where(F.col("content_type") == int(ContentType.EQUALITY_DELETES))
    _refuse(head, equality, "added equality deletes, which may be of rows of the files to replace,")
    paths = files.select(F.col("file_path").alias("replaced_path"))
    vectors = entries.join(paths, F.col("referenced_file") == F.col("replaced_path"), "left_semi")
    _refuse(head, vectors, "deleted rows of a file to replace")


def _since(head: TableState, content: ContentType, ids: Collection[int]) -> DataFrame:
    """The live entries that these snapshots added; only manifests that they wrote are opened."""
    roots = _written_by(live_manifests(head.manifests(content)), ids)
    entries = head.entries(roots, head.projection(FOUND_COLUMNS)).where(is_live().text)
    return entries.where(F.col("version_info.snapshot_id").isin(list(ids)))


def _written_by(roots: pa.Table, ids: Collection[int]) -> pa.Table:
    own = pc.equal(roots.column("file_format"), IN_ROOT)
    snapshot_ids = pc.struct_field(roots.column("version_info"), "snapshot_id")
    written = pc.fill_null(pc.is_in(snapshot_ids, _longs(ids)), False)
    return roots.filter(pc.or_(own, written))


def _longs(ids: Collection[int]) -> pa.Array:
    return pa.array(sorted(ids), pa.int64())


def _new_entries(scan: ScanFilter, content: ContentType, ids: Collection[int], writers: Collection[int]) -> DataFrame:
    """The live entries that some snapshots added; only manifests that `writers` wrote are opened."""
    head = scan.state
    roots = matching_manifests(_written_by(live_manifests(head.manifests(content)), writers), scan)
    entries = head.entries(roots, head.projection(FOUND_COLUMNS, scan.undecided_ids))
    return matching_entries(entries, scan).where(F.col("version_info.snapshot_id").isin(list(ids)))


def _refuse_removed(scan: ScanFilter, start: int | None) -> None:
    """Removed data files: any, since their stats are gone with them from where a filter could be applied."""
    from sparkmeta.commit.files_changed import file_changes

    head = scan.state
    assert head.snapshot is not None
    changes = file_changes(head, start, head.snapshot.snapshot_id, ("content", "file_path"))
    removed = changes.where((F.col("change_type") == "removed") & (F.col("content") == int(ContentType.DATA)))
    _refuse(head, removed.withColumnRenamed("file_path", "location"), "removed a data file that may match")


def _refuse(head: TableState, found: DataFrame, what: str) -> None:
    rows = found.select("location").limit(1).toArrow()
    if len(rows):
        who = "another commit, or an earlier change of this transaction,"
        raise CommitConflictError(f"{head.metadata.location}: {who} {what}: {rows.column('location')[0]}")
