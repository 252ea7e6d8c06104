"""Tables as streams: `spark.readStream.format("sparkmeta")` reads appended rows or changelogs.

Spark makes the reader in a Python process on the driver, which plans batches and lives as long as the query, and in
tasks. `pyspark.sql.datasource` is the interface. Spark 4.2 and newer tell a source where a batch starts and what limits
it. Older versions ask only for the end of a batch. When a query restarts, they tell the reader where the last batch
ended, and the reader remembers it.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from importlib import import_module
from importlib.util import find_spec
from itertools import dropwhile
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import datasource

from sparkmeta.changes.change_plans import ChangedSnapshot
from sparkmeta.changes.changed_files import APPEND
from sparkmeta.changes.changelog import REPLACE
from sparkmeta.changes.file_changes import snapshots_between
from sparkmeta.data_source.changes import plans_of
from sparkmeta.data_source.options import CHANGELOG, ROWS, ReadOptions, moment, option, whole
from sparkmeta.data_source.tables import refuse_misfits, spark_batches
from sparkmeta.errors import (
    InvalidArgumentError,
    InvalidFilterError,
    NoSuchSnapshotError,
    SparkmetaError,
    ValidationError,
    first_line,
    shown,
)
from sparkmeta.session import worker_call
from sparkmeta.spec.metadata import ancestors_of, snapshot_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from sparkmeta.changes.snapshot_changes import SnapshotChanges
    from sparkmeta.data_source.options import Catalogs
    from sparkmeta.spec.metadata import Snapshot
    from sparkmeta.table import Table

limits: Any = None
"""The module of Spark's limits of batches; None in Spark 4.0 and 4.1."""
if find_spec("pyspark.sql.streaming.datasource") is not None:
    limits = import_module("pyspark.sql.streaming.datasource")

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_VERSION: Final = 1
# The errors for a range of snapshots that the table does not have.
_LOSSES: Final = (NoSuchSnapshotError, ValidationError)
_MEND: Final = (
    "start a new query with a new checkpoint, from a snapshot by start-snapshot-id or from all rows without it; "
    "keep snapshots longer than a stream may stop"
)


# -- Options ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StreamOptions(ReadOptions):
    """The options of a stream, with the names that Iceberg's Spark source uses."""

    from_timestamp: str | None = option(
        "stream-from-timestamp",
        "Begin with the first snapshot from this time or later: milliseconds since 1970, or a time in ISO 8601.",
    )
    skip_overwrites: str = option(
        "streaming-skip-overwrite-snapshots", "Whether a stream of rows passes over snapshots that overwrite.", "false"
    )
    skip_deletes: str = option(
        "streaming-skip-delete-snapshots", "Whether a stream of rows passes over snapshots that delete.", "false"
    )
    max_files: str | None = option("streaming-max-files-per-micro-batch", "The most files of a batch.")
    max_rows: str | None = option("streaming-max-rows-per-micro-batch", "The most rows of the files of a batch.")
    max_bytes: str | None = option("streaming-max-bytes-per-micro-batch", "The most bytes of the files of a batch.")

    def check(self) -> None:
        """Raise InvalidArgumentError for options that don't apply to streams, or contradict each other."""
        if self.table.lower() not in (ROWS, CHANGELOG):
            raise InvalidArgumentError(f"table is {shown(self.table)}: a stream is of {ROWS} or {CHANGELOG}")
        if self.end_snapshot_id is not None:
            raise InvalidArgumentError("a stream has no end: end-snapshot-id is for reads of a changelog")
        if self.start_snapshot_id is not None and self.from_timestamp is not None:
            raise InvalidArgumentError(
                "start-snapshot-id and stream-from-timestamp each name a start: give one of them"
            )
        _ = self.limits, self.skipped, self.start_id, self.start_millis

    @property
    def limits(self) -> dict[str, int]:
        """The limits of a batch by what they limit: `files`, `rows` and `bytes`."""
        given = {"files": self.max_files, "rows": self.max_rows, "bytes": self.max_bytes}
        limits = {}
        for name, text in given.items():
            if text is not None:
                full = f"streaming-max-{name}-per-micro-batch"
                limits[name] = whole(full, text)
                if limits[name] < 1:
                    raise InvalidArgumentError(f"{full} is {shown(text)}: expected a whole number above 0")
        return limits

    @property
    def skipped(self) -> dict[str, bool]:
        """Whether a stream of rows passes over snapshots, by their operation."""
        given = {"overwrite": self.skip_overwrites, "delete": self.skip_deletes}
        for operation, text in given.items():
            if text.lower() not in ("true", "false"):
                raise InvalidArgumentError(f"{_skip(operation)} is {shown(text)}: expected true or false")
            if text.lower() == "true" and self.table.lower() == CHANGELOG:
                raise InvalidArgumentError(f"{_skip(operation)} is for streams of {ROWS}: a {CHANGELOG} skips nothing")
        return {operation: text.lower() == "true" for operation, text in given.items()}

    @property
    def start_id(self) -> int | None:
        """The snapshot after which the stream begins."""
        return None if self.start_snapshot_id is None else whole("start-snapshot-id", self.start_snapshot_id)

    @property
    def start_millis(self) -> int | None:
        """The time from which snapshots are read, in milliseconds since 1970."""
        if self.from_timestamp is None:
            return None
        start = moment("stream-from-timestamp", self.from_timestamp)
        return start if isinstance(start, int) else (start - _EPOCH) // timedelta(milliseconds=1)


def _skip(operation: str) -> str:
    return f"streaming-skip-{operation}-snapshots"


# -- Offsets ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Offset:
    """How far a stream has read.

    Attributes:
        snapshot_id: the last snapshot that was read; None before the first one.
        position: the number of its units that were read; None for all.
        is_whole: whether the units cover all rows of the snapshot, not only its changes; see `ChangedSnapshot`.
        plan: what the units depend on besides the snapshot.
        from_millis: the time before which snapshots are skipped, until a snapshot from this time or later was read.
    """

    snapshot_id: int | None
    position: int | None = None
    is_whole: bool = False
    plan: str = ""
    from_millis: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the form in Spark's checkpoint."""
        known = {item.name: getattr(self, item.name) for item in fields(self)}
        defaults = {item.name: item.default for item in fields(self)}
        chosen = {name: value for name, value in known.items() if name == "snapshot_id" or value != defaults[name]}
        return {"version": _VERSION, **chosen}

    @staticmethod
    def of(value: dict[str, Any]) -> Offset:
        """Return the offset of `to_dict`. Raises InvalidArgumentError for another version of the format."""
        values = dict(value)
        version = values.pop("version", None)
        if version != _VERSION:
            raise InvalidArgumentError(f"version of the offset is {shown(version)}: expected {_VERSION}")
        return Offset(**values)


@dataclass
class _Budget:
    """The rest of a batch's limits. A batch has at least one unit."""

    limits: dict[str, int]
    is_empty: bool = True

    def units(self, changes: SnapshotChanges, start: int) -> int:
        """Return how many units from `start` fit, and count them as used. If the snapshot is mixed, all or none fit."""
        costs = {
            "files": changes.file_counts, "rows": changes.totals("record_count"),
            "bytes": changes.totals("file_size_in_bytes"),
        }  # fmt: skip
        stop, together = start, len(changes) - start if changes.is_mixed else 1
        while stop < len(changes):
            needed = {name: int(costs[name][stop : stop + together].sum()) for name in self.limits}
            if not self.is_empty and any(needed[name] > remaining for name, remaining in self.limits.items()):
                break
            self.limits = {name: remaining - needed[name] for name, remaining in self.limits.items()}
            self.is_empty = False
            stop += together
        return stop - start


# -- The reader -------------------------------------------------------------------------------------------------------


class _Source:
    """Plans the batches of a stream. It lives in the driver's Python process as long as the query runs."""

    def __init__(self, options: StreamOptions, table: Table, schema: StructType) -> None:
        self._options, self._table, self._schema = options, table, schema
        self.plan = " ".join(filter(None, (options.table.lower(), options.filter)))
        self._plans = plans_of(options, table)
        self._fit()

    def refresh(self) -> None:
        """Load the table again.

        Raises:
            InvalidArgumentError: the table lacks a column of the stream, or has it with another type.
        """
        known, self._table = self._table.metadata_location, self._table.refresh()
        if self._table.metadata_location != known:
            with self._changed():
                self._plans = plans_of(self._options, self._table)
            self._fit()

    def _fit(self) -> None:
        with self._changed():
            refuse_misfits(self._plans.row_type, self._schema)
        self._plans.select(self._schema.names)

    @contextmanager
    def _changed(self) -> Iterator[None]:
        """Add to errors how to mend a stream whose columns the table has lost."""
        try:
            yield
        except (InvalidArgumentError, InvalidFilterError) as error:
            location = self._table.location()
            problem = f"{first_line(error).removeprefix(f'{location}: ')}: the table's schema has changed"
            raise InvalidArgumentError(
                f"{location}: {problem}: load the stream again, and start its query again"
            ) from None

    def head(self) -> int | None:
        """Return the newest snapshot of the branch."""
        snapshot = self._plans.scan.snapshot()
        return None if snapshot is None else snapshot.snapshot_id

    def initial(self) -> Offset:
        """Return where a new query begins."""
        start = self._options.start_id
        if start is not None:
            with self._lost(start):
                snapshots_between(self._table.metadata, start, self.head())
        return Offset(start, from_millis=self._options.start_millis)

    def pending(self, start: Offset, end_id: int | None) -> list[ChangedSnapshot]:
        """Return the snapshots after an offset and up to a snapshot, oldest first.

        The first one is the offset's own snapshot if it was read only in part.
        """
        metadata, millis = self._table.metadata, start.from_millis
        if end_id is None:
            return []
        if start.snapshot_id is None:
            with self._lost(end_id):
                snapshot_of(metadata, end_id)
            snapshots = [*ancestors_of(metadata, end_id)][::-1]
            if millis is None:
                return [
                    ChangedSnapshot(snapshots[0], snapshots[0].parent_snapshot_id is not None),
                    *map(ChangedSnapshot, snapshots[1:]),
                ]
            return _from_time(snapshots, millis)
        with self._lost(start.snapshot_id):
            later = snapshots_between(metadata, start.snapshot_id, end_id)
            if millis is not None:
                return _from_time(later, millis)
            if start.position is None:
                return [*map(ChangedSnapshot, later)]
            return [
                ChangedSnapshot(snapshot_of(metadata, start.snapshot_id), start.is_whole),
                *map(ChangedSnapshot, later),
            ]

    def latest(self, start: Offset, end_id: int | None, *, limited: bool) -> Offset:
        """Return the end of the next batch.

        Args:
            start: where the batch starts.
            end_id: the last snapshot that the batch may have.
            limited: whether the limits of the options apply.

        Raises:
            ValidationError: the batch would begin with a snapshot that a stream of rows can't read, or the changes
                since the start are lost.
        """
        end, limits = start, self._options.limits if limited else {}
        budget, steps = _Budget(limits), [*self._unread_steps(start, end_id)]
        if not steps and start.from_millis is not None:
            return start if end_id is None else replace(start, snapshot_id=end_id)
        for step, first in steps:
            if (refusal := self._refusal(step)) is not None:
                if end == start:
                    raise refusal
                return end
            changes = self._changes(step) if limits else None
            if changes is not None:
                position = first + budget.units(changes, first)
                if position < len(changes):
                    partly = Offset(step.snapshot.snapshot_id, position, step.is_whole, self.plan)
                    return partly if position > first else end
            end = Offset(step.snapshot.snapshot_id)
        return end

    def partitions(self, start: Offset, end: Offset) -> list[datasource.InputPartition]:
        """Divide a batch among tasks."""
        self._refuse_other_plan(end)
        ranges: list[tuple[ChangedSnapshot, int, int | None]] = []
        for step, first in self._unread_steps(start, end.snapshot_id):
            if (refusal := self._refusal(step)) is not None:
                raise refusal
            self._changes(step)
            is_last = step.snapshot.snapshot_id == end.snapshot_id
            ranges.append((step, first, end.position if is_last else None))
        if ranges and end.position is not None and ranges[-1][0].is_whole != end.is_whole:
            with self._lost(end.snapshot_id):
                raise ValidationError(f"the history before snapshot {end.snapshot_id} has expired")
        shares = self._plans.shares(ranges)
        # The next batch reads the others.
        self._plans.forget(step for step, _, stop in ranges if stop is None)
        return [datasource.InputPartition(share) for share in shares]

    def _refuse_other_plan(self, offset: Offset) -> None:
        if offset.position is not None and offset.plan != self.plan:
            raise InvalidArgumentError(
                f"{self._table.location()}: the stream has read a part of snapshot {offset.snapshot_id} with the "
                f"table and filter {shown(offset.plan)}, not {shown(self.plan)}: keep them until it has read all"
            )

    def _unread_steps(self, start: Offset, end_id: int | None) -> Iterator[tuple[ChangedSnapshot, int]]:
        """Yield the steps of `pending`, each with its first unit that was not read."""
        self._refuse_other_plan(start)
        for index, step in enumerate(self.pending(start, end_id)):
            yield step, (start.position or 0) if index == 0 else 0

    def _changes(self, step: ChangedSnapshot) -> SnapshotChanges | None:
        with self._lost(step.snapshot.parent_snapshot_id, by=(NoSuchSnapshotError,)):
            return self._plans.changes(step)

    def _refusal(self, step: ChangedSnapshot) -> ValidationError | None:
        """Return why a stream of rows can't read a snapshot; None if it can."""
        operation = step.snapshot.operation
        if self._plans.is_changelog or step.is_whole or operation in (APPEND, REPLACE):
            return None
        is_skipped = self._options.skipped.get(str(operation))
        if is_skipped:
            return None
        skip = "" if is_skipped is None else f"pass over it by {_skip(str(operation))}=true, or "
        return ValidationError(
            f"{self._table.location()}: snapshot {step.snapshot.snapshot_id} has the operation {operation}, and a "
            f"stream of rows has only appended ones: {skip}read table={CHANGELOG}"
        )

    @contextmanager
    def _lost(self, snapshot_id: int | None, *, by: tuple[type[SparkmetaError], ...] = _LOSSES) -> Iterator[None]:
        """Add to errors how to mend a stream whose next changes can't be read.

        Args:
            snapshot_id: the last snapshot that was read.
            by: the types of such errors, or of their causes.
        """
        try:
            yield
        except _LOSSES as error:
            if not isinstance(error, by) and not isinstance(error.__cause__, by):
                raise
            problem = first_line(error).removeprefix(f"{self._table.location()}: ")
            raise ValidationError(
                f"{self._table.location()}: the stream can't go on after snapshot {snapshot_id}: {problem}: {_MEND}"
            ) from None


def _from_time(snapshots: Iterable[Snapshot], millis: int) -> list[ChangedSnapshot]:
    """Return the first snapshot from a time or later, and all snapshots after it."""
    return [*map(ChangedSnapshot, dropwhile(lambda snapshot: snapshot.timestamp_ms < millis, snapshots))]


_MIXINS = () if limits is None else (limits.SupportsTriggerAvailableNow,)


class StreamReader(datasource.DataSourceStreamReader, *_MIXINS):  # type: ignore[misc]
    """Reads a table as a stream."""

    def __init__(self, options: StreamOptions, catalogs: Catalogs, schema: StructType) -> None:
        options.check()
        self._options, self._catalogs, self._schema = options, catalogs, schema
        self._opened: _Source | None = None
        self._read_up_to: Offset | None = None
        self._target: list[int | None] = []

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_opened": None}

    @property
    def _source(self) -> _Source:
        """The table, as of its last refresh."""
        if self._opened is None:
            self._opened = _Source(self._options, self._options.open(self._catalogs), self._schema)
        return self._opened

    def _refreshed(self) -> _Source:
        if self._opened is not None:
            self._opened.refresh()
        return self._source

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a new query begins."""
        with worker_call():
            return self._source.initial().to_dict()

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch. Older versions of Spark pass no arguments."""
        with worker_call():
            source = self._refreshed()
            begin = Offset.of(start) if start is not None else self._read_up_to or source.initial()
            limited = limits is None or not isinstance(limit, limits.ReadAllAvailable)
            end_id = self._target[0] if self._target else source.head()
            return source.latest(begin, end_id, limited=limited).to_dict()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[datasource.InputPartition]:
        """Divide a batch among tasks. With equal offsets, Spark tells where a query goes on."""
        with worker_call():
            first, self._read_up_to = Offset.of(start), Offset.of(end)
            return [] if first == self._read_up_to else self._source.partitions(first, self._read_up_to)

    def read(self, partition: datasource.InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of a partition, in a task."""
        with worker_call():
            yield from spark_batches(partition.value.rows(), self._schema)

    # -- Spark 4.2 and newer ----------------------------------------------------------------------------------------

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """Return a limit that stands for all limits of the options, or no limit."""
        makers = {"files": limits.ReadMaxFiles, "rows": limits.ReadMaxRows, "bytes": limits.ReadMaxBytes}
        for name, limit in self._options.limits.items():
            return makers[name](limit)
        return limits.ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Let the query end with the snapshot that is the newest at this time."""
        with worker_call():
            self._target = [self._refreshed().head()]

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the newest offset that is known, for the progress of the query."""
        return None if self._opened is None else Offset(self._opened.head()).to_dict()
