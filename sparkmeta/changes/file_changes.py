"""`Table.file_changes`: the files that snapshots added and removed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from sparkmeta.changes.added_positions import ADDED_POSITIONS, POSITIONS_TYPE, with_added_positions
from sparkmeta.changes.entry_changes import CHANGE, SNAPSHOT, EntryChanges, at_most_one
from sparkmeta.changes.history import snapshots_between
from sparkmeta.inspect.files import files_selection
from sparkmeta.spec.entry import ContentType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.inspect.files import Selection
    from sparkmeta.state import TableState

CHANGE_TYPE = "change_type"


def file_changes(
    state: TableState,
    from_snapshot_id: int | None,
    to_snapshot_id: int | None,
    columns: Sequence[str] | None = None,
    *,
    lenient: bool = False,
) -> DataFrame:
    """Return the files that a range of snapshots added and removed; see `Table.file_changes`."""
    snapshots = list(snapshots_between(state.metadata, from_snapshot_id, to_snapshot_id))
    # The range may be of a table that was replaced by one with other types.
    state = state.at(snapshots[-1]) if snapshots else state
    selection = files_selection(state, columns)
    changes = EntryChanges(state, selection.projection, lenient)
    for snapshot in snapshots:
        changes.add(snapshot)
    return _shown(changes, selection)


def _shown(changes: EntryChanges, selection: Selection) -> DataFrame:
    """Return all changes with the columns of `Table.file_changes`, lazily."""
    state = changes.state
    data, deletes = changes.of_content(ContentType.DATA_MANIFEST), changes.of_content(ContentType.DELETE_MANIFEST)
    frames = [frame.withColumn(ADDED_POSITIONS, F.lit(None).cast(POSITIONS_TYPE)) for frame in at_most_one(data)]
    frames += [with_added_positions(state, frame) for frame in at_most_one(deletes)]
    frames = frames or [state.spark.createDataFrame([], changes.schema.add(ADDED_POSITIONS, POSITIONS_TYPE))]
    shown = [F.col(CHANGE).alias(CHANGE_TYPE), F.col(SNAPSHOT).alias("snapshot_id")]
    shown += [*selection.file_columns(), *selection.metrics_columns(), F.col(ADDED_POSITIONS)]
    return at_most_one(frames)[0].select(*shown)
