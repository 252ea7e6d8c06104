"""One immutable state of a table: its metadata, a snapshot, and the manifests and entries of this snapshot.

    metadata, snapshot -> manifest list, or root of a metadata tree -> manifests -> entries

The driver holds the metadata, and the manifest list or the root as an Arrow table. The entries of manifests are a
DataFrame (`entries`), or an Arrow table if the driver reads the manifests (`relation`). The readers are imported when
the first manifest is read.

Whatever the format version of the table, manifests and entries have the columns of the content entries that format
version 4 proposes: `location`, `version_info`, `content_stats` and so on. The files that a V4 root lists itself appear
as the entries of one more manifest, which is not a file and has the `file_format` `IN_ROOT`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING

from sparkmeta.errors import InvalidArgumentError, NoSuchSnapshotError, SessionError, UnsupportedError
from sparkmeta.session import is_connect
from sparkmeta.spec.iso_times import moment_of
from sparkmeta.storage.encryption import KEY_METADATA
from sparkmeta.storage.executors import ExecutorReader
from sparkmeta.storage.files import executor_reader, how_tasks_can
from sparkmeta.storage.location import is_local

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.partitioning import PartitionSpec
    from pyspark.sql import DataFrame, SparkSession

    from sparkmeta.entries.projection import EntryProjection
    from sparkmeta.entries.relation import Relation
    from sparkmeta.manifests.placement import Placement
    from sparkmeta.manifests.reader import ManifestReader
    from sparkmeta.manifests.types import TableTypes
    from sparkmeta.manifests.v4.root import Root
    from sparkmeta.manifests.v4.tree_manifests import Tree
    from sparkmeta.reports import Reports
    from sparkmeta.session import SessionSource
    from sparkmeta.settings import Settings
    from sparkmeta.spec.entry import ContentType
    from sparkmeta.spec.metadata import Snapshot, SnapshotRef, TableMetadata
    from sparkmeta.spec.metadata_model import SnapshotLogEntry
    from sparkmeta.spec.tree_layout import TreeLayout
    from sparkmeta.storage.files import FileAccess, Files

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class _PlanPart:
    """The part of `whole` that a state for plans reads: the stats of partition values and of some columns."""

    whole: TableState
    columns: frozenset[int]


@dataclass(frozen=True)
class TableState:
    """A table's metadata and one of its snapshots.

    Everything is derived from files that never change, so each result is computed once and cached.

    Args:
        sessions: the source of the session, for when a session is needed.
        files: opens the table's files on the driver.
        metadata: the table's metadata.
        snapshot: the snapshot to read; None if the table is empty.
        root: the root manifest of an uncommitted snapshot; if None, the root is read from storage.
        reports: where reports on scans and commits go; None for no reports.
        part: see `for_plan`; None for every other state.
    """

    sessions: SessionSource
    files: Files
    metadata: TableMetadata
    snapshot: Snapshot | None
    root: Root | None = None
    reports: Reports | None = field(default=None, compare=False)
    part: _PlanPart | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        snapshot = "no snapshot" if self.snapshot is None else f"snapshot {self.snapshot.snapshot_id}"
        return f"TableState({self.metadata.location}, {snapshot})"

    @property
    def spark(self) -> SparkSession:
        """The session, to be used at once; see `SessionSource.get`."""
        return self._checked_session(self.sessions.get())

    def at(self, snapshot: Snapshot | None) -> TableState:
        """Return the table at a snapshot: this state itself if its snapshot and its settings are the same."""
        if self.part is not None:
            return self.whole.at(snapshot)
        is_same = snapshot == self.snapshot and self.root is None and self.sessions.settings() == self.settings
        return self if is_same else replace(self, snapshot=snapshot, root=None)

    @property
    def whole(self) -> TableState:
        """The state with the stats of all columns in the root; see `for_plan`."""
        return self if self.part is None else self.part.whole

    def for_plan(self, columns: Iterable[int]) -> TableState:
        """Return a state for plans that need the stats of some columns; see `Tree.root_with`.

        Stats make up the largest part of a root. The first plan of a state reads only the stats that it needs, and the
        stats of partition values. If another plan needs the stats of other columns, it reads all stats, which later
        plans then use.
        """
        if self.snapshot is None or not self.snapshot.has_root or self.root is not None or "tree" in vars(self):
            return self
        needed = frozenset(columns)
        if "_first_planned" not in vars(self):
            first = copy(self)
            vars(first)["part"] = _PlanPart(self, needed)
            vars(self)["_first_planned"] = first
        planned: TableState = vars(self)["_first_planned"]
        return planned if planned.part is not None and needed <= planned.part.columns else self

    def metadata_ref(self, name: str) -> SnapshotRef:
        """Return a branch or tag.

        Raises:
            NoSuchSnapshotError: the table has no branch or tag of that name.
        """
        if name not in self.metadata.refs:
            raise NoSuchSnapshotError(f"{self.metadata.location} has no branch or tag {name!r}")
        return self.metadata.refs[name]

    def snapshot_id_at(self, timestamp: datetime | str | int) -> int:
        """Return the id of the snapshot that was current at a time.

        Args:
            timestamp: a datetime with zone, text in ISO 8601 (in UTC without a zone), or milliseconds since 1970.

        Raises:
            NoSuchSnapshotError: the snapshot log begins later.
            InvalidArgumentError: the timestamp is of another type, no time, or a datetime without a zone.
        """
        if isinstance(timestamp, str):
            try:
                timestamp = moment_of(timestamp)
            except ValueError as error:
                raise InvalidArgumentError(f"{self.metadata.location}: as_of: {error}") from None
        if not isinstance(timestamp, datetime | int):
            expected = (  # type: ignore[unreachable]
                "a datetime with a time zone, ISO 8601 text, or milliseconds since 1970"
            )
            raise InvalidArgumentError(f"{self.metadata.location}: {timestamp!r} is not a time: as_of takes {expected}")
        if isinstance(timestamp, datetime) and timestamp.tzinfo is None:
            raise InvalidArgumentError(f"{self.metadata.location}: {timestamp} has no time zone")
        millis = timestamp if isinstance(timestamp, int) else (timestamp - _EPOCH) // timedelta(milliseconds=1)
        latest: SnapshotLogEntry | None = None
        for entry in self.metadata.snapshot_log:
            if entry.timestamp_ms <= millis and (latest is None or entry.timestamp_ms > latest.timestamp_ms):
                latest = entry
        if latest is None:
            raise NoSuchSnapshotError(f"{self.metadata.location} has no snapshot as old as {timestamp}")
        return latest.snapshot_id

    @property
    def specs(self) -> dict[int, PartitionSpec]:
        """The table's partition specs by their ids, with unique partition field ids; see `TableTypes.specs`."""
        return self.types.specs

    # -- manifests --------------------------------------------------------------------------------------------------

    @cached_property
    def layout(self) -> TreeLayout:
        """The layout of the table's metadata tree; for a table with manifest lists, the layout of the proposal."""
        from sparkmeta.spec.metadata import tree_layout
        from sparkmeta.spec.tree_layout import PROPOSAL

        return tree_layout(self.metadata) or PROPOSAL

    @cached_property
    def tree(self) -> Tree | None:
        """The snapshot's metadata tree; None if it has a manifest list, or the table is empty."""
        from sparkmeta.manifests.reader import root_location
        from sparkmeta.manifests.v4.root import read_root
        from sparkmeta.manifests.v4.tree_manifests import Tree

        if self.root is not None:
            return Tree(self.root, self.types.tuple_sources)
        location = root_location(self.metadata, self.snapshot)
        if location is None or self.snapshot is None:
            return None
        whole = self.whole
        snapshot, types = self.snapshot, self.types.tree_types
        stamp = (snapshot.snapshot_id, snapshot.sequence_number or 0, snapshot.first_row_id)
        if self.part is not None:
            types = types.with_stats(self.part.columns)
        data = vars(whole).pop("_root_data", None) or self.files.read(location)
        root = read_root(data, types, location, stamp, self.types.locations)
        if whole is self:
            return Tree(root, self.types.tuple_sources)
        if "tree" not in vars(whole):
            vars(whole)["_root_data"] = data

        def whole_root() -> Root:
            assert whole.tree is not None
            return whole.tree.root

        return Tree(root, self.types.tuple_sources, whole_root)

    @cached_property
    def has_trees(self) -> bool:
        """Whether some snapshot of the table has a metadata tree."""
        return self.tree is not None or any(snapshot.has_root for snapshot in self.metadata.stored_snapshots)

    @cached_property
    def manifest_files(self) -> pa.Table:
        """The manifest list, or the leaves of a tree's root, with the columns of manifest lists,
        `MANIFEST_FILE_SCHEMA`."""
        from sparkmeta.manifests.reader import read_manifest_list
        from sparkmeta.manifests.v4.tree_manifests import tree_manifest_files

        if self.tree is not None:
            return tree_manifest_files(self.tree.root, self.types.spec_fields, self.types.tuple_sources)
        return read_manifest_list(self.files, self.metadata, self.snapshot)

    @cached_property
    def manifests(self) -> pa.Table:
        """The snapshot's manifests as content entries of the types `DATA_MANIFEST` and `DELETE_MANIFEST`.

        See `manifests_of_list`. The column `manifest` numbers them.
        """
        from sparkmeta.avro.manifest_list import manifests_of_list
        from sparkmeta.manifests.v4.tree_manifests import tree_manifests

        if self.tree is not None:
            return tree_manifests(self.tree)
        location = ""
        if self.snapshot is not None:
            location = self.snapshot.manifest_list or f"snapshot {self.snapshot.snapshot_id}"
        return manifests_of_list(self.manifest_files, self.types.spec_fields, location)

    def with_manifests(self, ids: Collection[int]) -> TableState:
        """Return this state restricted to some of its manifests, given by their small ids."""
        import pyarrow as pa
        import pyarrow.compute as pc

        manifests = self.manifests
        chosen = pc.is_in(manifests.column("manifest"), pa.array(ids, pa.int32()))
        restricted = copy(self)
        vars(restricted)["manifests"] = manifests.filter(chosen)
        return restricted

    @property
    def data_manifests(self) -> pa.Table:
        """The rows of `manifests` that list data files."""
        from sparkmeta.spec.entry import ContentType

        return self._manifests_of(ContentType.DATA_MANIFEST)

    @property
    def delete_manifests(self) -> pa.Table:
        """The rows of `manifests` that list delete files and deletion vectors."""
        from sparkmeta.spec.entry import ContentType

        return self._manifests_of(ContentType.DELETE_MANIFEST)

    def _manifests_of(self, content: ContentType) -> pa.Table:
        import pyarrow.compute as pc

        return self.manifests.filter(pc.equal(self.manifests.column("content_type"), int(content)))

    # -- entries ----------------------------------------------------------------------------------------------------

    def projection(self, columns: Iterable[str] | None = None, stats: Iterable[int] = ()) -> EntryProjection:
        """Return a projection of entries, by default of `FILE_COLUMNS`; see `TableTypes.projection`."""
        from sparkmeta.entries.projection import FILE_COLUMNS

        return self.types.projection(FILE_COLUMNS if columns is None else columns, stats)

    def entries(
        self, manifests: pa.Table, projection: EntryProjection, placement: Placement | None = None
    ) -> DataFrame:
        """Return the entries of some of `manifests` as a DataFrame of `projection.schema`.

        This includes entries with the status DELETED, but not entries that a deletion vector of their manifest masks.
        Sequence numbers, snapshot ids and row ids are inherited (table spec, Manifests).

        Args:
            manifests: rows of `manifests`.
            projection: the columns and statistics to read.
            placement: where to read them. By default, the driver decodes few Avro manifests immediately; others are
                read lazily.
        """
        return self.reader.entries(manifests, projection, placement)

    def live_entries(self, manifests: pa.Table, projection: EntryProjection) -> DataFrame:
        """Return the live entries of some of `manifests`; see `entries`. The projection must contain `version_info`."""
        from sparkmeta.entries.live import is_live_entry

        return self.entries(manifests, projection).where(is_live_entry().text)

    def relation(
        self, manifests: pa.Table, projection: EntryProjection, placement: Placement | None = None
    ) -> Relation:
        """Return the rows of `entries`, as an Arrow table if the driver reads the manifests."""
        return self.reader.relation(manifests, projection, placement)

    # -- how they are read ------------------------------------------------------------------------------------------

    @cached_property
    def settings(self) -> Settings:
        """The settings at the time when they were first needed; see `SessionSource.settings`."""
        return self.sessions.settings()

    @cached_property
    def is_encrypted(self) -> bool:
        """Whether files of the table may be encrypted."""
        from sparkmeta.spec.metadata import is_encrypted

        return is_encrypted(self.metadata)

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The column of entries with the key metadata of files, if the table is encrypted."""
        return (KEY_METADATA,) if self.is_encrypted else ()

    @cached_property
    def types(self) -> TableTypes:
        """The types of values in the snapshot's manifests."""
        from sparkmeta.manifests.types import table_types

        return table_types(self.metadata, self.snapshot)

    @cached_property
    def access(self) -> FileAccess:
        """The access to the table's files, from the driver and from tasks."""
        from sparkmeta.storage.files import FileAccess

        return FileAccess.of(self.sessions, self.files, self.settings)

    @property
    def reader(self) -> ManifestReader:
        """The reader of manifest entries.

        Raises:
            SessionError: the caller's session was stopped.
        """
        if (session := self.sessions.running()) is not None:
            self._checked_session(session)
        return self._reader

    def _checked_session(self, session: SparkSession) -> SparkSession:
        """Check that a session's server sees the files of a table that was opened on this machine; return the session.

        A table that is opened before there is a session has local files. A Spark Connect server may have another disk.

        Raises:
            SessionError: the server does not see the files.
        """
        if is_connect(session) and self.sessions.given is None:
            from sparkmeta.storage.files import LocalFiles, shares_disk

            location = self.metadata.location
            if isinstance(self.files, LocalFiles) and is_local(location) and not shares_disk(session, location):
                problem = "it was opened on this machine before the session, whose server does not see its files"
                raise SessionError(f"{location}: {problem}: load the table again")
        return session

    @cached_property
    def _reader(self) -> ManifestReader:
        from sparkmeta.manifests.reader import ManifestReader

        trees = self.types.tree_types if self.has_trees else None
        return ManifestReader(
            self.sessions, self.settings, self.access, self.types, self.tree, trees, self.is_encrypted
        )


def task_reader(state: TableState) -> ExecutorReader:
    """Return the reader that opens the table's files in tasks.

    Raises:
        UnsupportedError: tasks can't open the files.
    """
    reader = executor_reader(state.files)
    if reader is None:
        raise UnsupportedError(
            f"{state.metadata.location}: its executors can't open its files: {how_tasks_can(state.files)}"
        )
    return reader
