"""The file changes that become one snapshot."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sparkmeta.commit.conflicts import Operation
from sparkmeta.spec.entry import ContentType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.commit.conflicts import Validation
    from sparkmeta.commit.filtered import FilteredFiles, ReplacedFiles
    from sparkmeta.commit.write_target import WriteTarget
    from sparkmeta.spec.metadata import Snapshot
    from sparkmeta.state import TableState

DATA = (int(ContentType.DATA),)
DELETES = (int(ContentType.POSITION_DELETES), int(ContentType.EQUALITY_DELETES))


@dataclass(frozen=True)
class AddedPart:
    """Files to add.

    Attributes:
        files: the files, or a table whose live files are added.
        kinds: the content types that they may have.
        data_sequence_number: their data sequence number; None for that of the commit.
    """

    files: DataFrame | TableState
    kinds: tuple[int, ...]
    data_sequence_number: int | None = None


@dataclass(frozen=True)
class ReplacedPart:
    """Files to replace. Deletes of their rows by other commits conflict.

    Attributes:
        files: the files.
        data_sequence_number: that of the new files; None for that of the commit. If given, new equality deletes do not
            conflict, since they apply to the new files as well.
    """

    files: DataFrame
    data_sequence_number: int | None = None


@dataclass
class ChangeSet:
    """File changes that become one snapshot.

    Attributes:
        started: the table when the transaction began.
        target: where the snapshot goes.
        properties: extra properties for the snapshot's summary.
        added: the files to add.
        removed: rows that name files to remove.
        filters: filters that find data files to remove.
        partitions_of: files whose partitions are replaced.
        rewrites: whether the table's rows stay the same.
        overwrites: whether added files replace the removed ones.
        replaced: the removed files whose rows the added ones hold.
        superseded: position delete files that are removed if they are live.
        are_new: whether no added file can be in the table already.
        new_paths: whether other commits must not have added the data files, however their paths are spelled.
        referenced: data files of position delete files, and whether they must not have been deleted.
        validations: the checks against other commits.
        specs: the partition specs of data files that other commits may add; None for any.
        from_snapshot_id: the snapshot that was read; None for the branch's head when the transaction began.
    """

    started: TableState
    target: WriteTarget
    properties: dict[str, str]
    added: list[AddedPart] = field(default_factory=list)
    removed: list[DataFrame] = field(default_factory=list)
    filters: list[FilteredFiles] = field(default_factory=list)
    partitions_of: list[ReplacedFiles] = field(default_factory=list)
    rewrites: bool = False
    overwrites: bool = False
    replaced: list[ReplacedPart] = field(default_factory=list)
    superseded: list[DataFrame] = field(default_factory=list)
    are_new: bool = False
    new_paths: bool = False
    referenced: list[tuple[DataFrame, bool]] = field(default_factory=list)
    validations: list[Validation] = field(default_factory=list)
    specs: frozenset[int] | None = None
    from_snapshot_id: int | None = None

    @property
    def start(self) -> int | None:
        """The id of the snapshot that was read: what was committed since may conflict. None for an empty table."""
        if self.from_snapshot_id is not None:
            return self.from_snapshot_id
        return self.target.head_id(self.started.metadata)

    @property
    def read_snapshot(self) -> Snapshot | None:
        """The snapshot that was read, unless it has expired."""
        return None if self.start is None else self.started.metadata.snapshot_by_id(self.start)

    @property
    def conflicting(self) -> Operation:
        """The parts of this update that decide whether other commits conflict with it."""
        adds_deletes = any(part.kinds == DELETES for part in self.added)
        filters = [matching.row_filter for matching in self.filters]
        partitions_of = [replaced.files for replaced in self.partitions_of]
        return Operation(filters, partitions_of, bool(self.removed), adds_deletes)

    @property
    def moves_rows(self) -> bool:
        """Whether added data files hold rows of the table, with their row ids."""
        adds_data = any(DATA[0] in part.kinds for part in self.added)
        return adds_data and bool(self.replaced or (self.validations and self.conflicting.adds_deletes))

    @property
    def operation(self) -> str:
        """The operation of the snapshot's summary (semantics 10.4)."""
        if self.rewrites:
            return "replace"
        adds_data = any(DATA[0] in part.kinds for part in self.added)
        adds_deletes = any(DATA[0] not in part.kinds for part in self.added)
        removes = bool(self.removed or self.filters or self.partitions_of)
        if self.partitions_of or (self.overwrites and removes) or (adds_data and (adds_deletes or removes)):
            return "overwrite"
        return "append" if adds_data else "delete"
