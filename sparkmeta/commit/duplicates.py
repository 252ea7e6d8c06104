"""Refuse files that a commit adds twice, or that are already live in the table.

Only leaves that may hold the file's partition are searched. The root's stats select leaves, and Parquet statistics
select row groups. A path that is live in another partition, or is spelled differently, is detected only by
`refuse_added_paths` and `Table.check`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue
from pyspark.sql import functions as F

from sparkmeta.changes.history import snapshots_since
from sparkmeta.commit.candidates import leaves_of_partitions, live_leaves, root_manifests
from sparkmeta.commit.relevant_changes import changes_matching
from sparkmeta.commit.removal import without, without_rows
from sparkmeta.commit.search import FEW_FILES, live_entries, names_of, search_all
from sparkmeta.errors import CommitConflictError, ValidationError
from sparkmeta.spec.entry import ContentType
from sparkmeta.storage.location_columns import location_key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.commit.named import Searches
    from sparkmeta.commit.new_files import NewFiles
    from sparkmeta.commit.removal import Removal
    from sparkmeta.state import TableState

_KINDS = (
    ([ContentType.DATA], ContentType.DATA_MANIFEST),
    ([ContentType.POSITION_DELETES, ContentType.EQUALITY_DELETES], ContentType.DELETE_MANIFEST),
)


def refuse_duplicates(state: TableState, added: NewFiles, removal: Removal, searches: Searches) -> None:
    """Refuse a commit that would give the table two live entries for a file.

    Args:
        added: the new files.
        removal: the files that the commit removes; a new file may reuse the path of one of them.
        searches: the commit's searches.

    Raises:
        ValidationError: the commit adds a file twice.
        CommitConflictError: a file is already in the table.
    """
    if not added.count:
        return
    if added.count <= FEW_FILES:
        _check_few(state, added, removal, searches)
    else:
        _check_many(state, added, removal)


def refuse_added_paths(head: TableState, state: TableState, added: NewFiles, start: int | None) -> None:
    """Refuse new data files that have been added since the snapshot `start`, however their paths are spelled.

    Args:
        head: the table at the branch's head.
        state: the state that the files are added to.
        added: the new files.
        start: the head when the operation began.

    Raises:
        CommitConflictError: another commit, or an earlier change of the transaction, added one of the files.
    """
    if not (history := snapshots_since(head, start)):
        return
    changes = changes_matching(head, history, AlwaysTrue())
    new = added.of([ContentType.DATA], ContentType.DATA_MANIFEST).frame(state).select("location")
    for others in changes.added(ContentType.DATA_MANIFEST, rewritten=True):
        theirs = others.select(location_key(F.col("location")).alias("key"))
        same = new.join(theirs, location_key(F.col("location")) == F.col("key"), "left_semi")
        for path in same.limit(1).toArrow().column(0).to_pylist():
            raise _already_there(state, path)


def _check_few(state: TableState, added: NewFiles, removal: Removal, searches: Searches) -> None:
    entries = added.entries(state)
    names = names_of(entries)
    for name, count in Counter(names).items():
        if count > 1:
            raise ValidationError(f"{state.metadata.location}: {name.path} is added twice by the commit")
    stages = [search_all(root_manifests(state))]
    for kinds, content in _KINDS:
        new = entries.filter(pc.is_in(entries.column("content_type"), pa.array(list(map(int, kinds)), pa.int32())))
        if len(new):
            stages.append(search_all(leaves_of_partitions(state, live_leaves(state, content), new)))
    live = without_rows(searches.new_files.find(state, names, stages), removal, state)
    duplicates = set(names_of(live)).intersection(names)
    if duplicates:
        raise _already_there(state, min(name.path for name in duplicates))


def _already_there(state: TableState, path: str) -> CommitConflictError:
    return CommitConflictError(f"{state.metadata.location}: {path} is in the table already")


def _check_many(state: TableState, added: NewFiles, removal: Removal) -> None:
    keys = _keys(added.frame(state))
    # Shuffling hashes is much faster than shuffling paths, and leaves few paths to compare.
    hashed = keys.select(F.xxhash64(*keys.columns).alias("hash"))
    suspects = hashed.groupBy("hash").count().where("count > 1")
    twice = keys.join(F.broadcast(suspects), F.xxhash64(*keys.columns) == F.col("hash"), "left_semi")
    for row in twice.groupBy(*keys.columns).count().where("count > 1").limit(1).toArrow().to_pylist():
        raise ValidationError(f"{state.metadata.location}: {row['location']} is added twice by the commit")
    for kinds, content in _KINDS:
        new = added.of(kinds, content)
        leaves = live_leaves(state, content)
        if new.count and len(leaves):
            _refuse_live(state, new, new.sharing_partitions(state, leaves), removal)


def _refuse_live(state: TableState, new: NewFiles, leaves: pa.Table, removal: Removal) -> None:
    if not len(leaves):
        return
    entries = live_entries(state, leaves)
    if removal.masks or removal.keys:
        entries = without(entries, removal, state)
    keys = _keys(new.frame(state)).select(F.xxhash64("location", "offset").alias("hash"))
    live = _keys(entries)
    suspects = live.join(F.broadcast(keys), F.xxhash64("location", "offset") == F.col("hash"), "left_semi")
    duplicates = suspects.join(_keys(new.frame(state)), ["location", "offset"], "left_semi").limit(1).toArrow()
    if len(duplicates):
        raise _already_there(state, duplicates.column("location")[0].as_py())


def _keys(entries: DataFrame) -> DataFrame:
    offset = F.coalesce("deletion_vector.offset", F.lit(-1).cast("long")).alias("offset")
    return entries.select("location", offset)
