"""Recover a table whose metadata file is lost or truncated, from the metadata files in its folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from sparkmeta.errors import CommitFailedError, CorruptFileError, NoSuchTableError, NotFoundError, ValidationError
from sparkmeta.maintain.orphan_tasks import uuid_in
from sparkmeta.maintain.plans import Plan, PlanSummary
from sparkmeta.operations.metadata_files import metadata_files, number_of
from sparkmeta.operations.table_operations import BaseTable, StaticOperations, load_version
from sparkmeta.session import local_frame
from sparkmeta.storage.location import file_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.operations.table_operations import TableVersion
    from sparkmeta.session import SessionSource
    from sparkmeta.storage.files import Files
    from sparkmeta.table import Table

_ROWS = pa.schema(
    [
        pa.field("file_path", pa.string()),
        pa.field("version", pa.int64()),
        pa.field("problem", pa.string()),
        pa.field("is_chosen", pa.bool_()),
        pa.field("snapshot_id", pa.int64()),
        pa.field("last_updated_ms", pa.int64()),
    ]
)


class Candidate(NamedTuple):
    """A metadata file of a table.

    Attributes:
        location: the file.
        number: the number of its version.
        version: its content; None if it can't be read.
        problem: why it can't be read.
    """

    location: str
    number: int
    version: TableVersion | None
    problem: str | None

    @property
    def uuid(self) -> str | None:
        """The uuid of the table; None if it is unknown."""
        table_uuid = None if self.version is None else self.version.metadata.table_uuid
        return None if table_uuid is None else str(table_uuid)


@dataclass(frozen=True)
class Recovery:
    """How a catalog recovers a table.

    Attributes:
        name: the table.
        folder: its metadata folder.
        files: opens its metadata files.
        sessions: the source of the session.
        current: the file that the catalog names; None if it names none.
        restore: makes a version current, given it and the newer files, and returns the table.
        is_unknown: whether the catalog has the table, and did not say which file is current.
    """

    name: str
    folder: str
    files: Files
    sessions: SessionSource
    current: str | None
    restore: Callable[[TableVersion, Sequence[str]], Table]
    is_unknown: bool = False


@dataclass(frozen=True)
class RecoverySummary(PlanSummary):
    """The metadata file that becomes current; `str` formats it.

    Attributes:
        metadata_location: the file.
        current_location: the file that is current in the catalog; None if the catalog lacks the table, or has no such
            entry.
        given_up: newer files. Their commits are lost.
        snapshots: the number of snapshots in the chosen file.
    """

    metadata_location: str
    current_location: str | None
    given_up: tuple[str, ...]
    snapshots: int

    @property
    def is_empty(self) -> bool:
        return self.current_location == self.metadata_location and not self.given_up

    def __str__(self) -> str:
        if self.is_empty:
            return f"{self.table}: its metadata file can be read"
        lost = [f"  lost: {location}" for location in self.given_up]
        chosen = f"{self.metadata_location} with {self.snapshots} snapshots becomes current"
        return "\n".join([f"{self.table}: {chosen}", *lost])


@dataclass(frozen=True)
class RecoveryPlan(Plan[BaseTable, "Table"]):
    """A plan to make the newest readable metadata file current, carried out by `commit`.

    Attributes:
        metadata_location: the chosen file.
    """

    _doing = "Recovering the table"

    metadata_location: str
    _recovery: Recovery = field(repr=False)
    _chosen: str | None = field(repr=False)
    _candidates: tuple[Candidate, ...] = field(repr=False)

    def to_df(self) -> DataFrame:
        """Return a row for each newer file, which is given up, and for the chosen file. Runs no job.

        Columns: file_path, version, problem (null for the chosen file), is_chosen, snapshot_id (the current one),
        last_updated_ms.
        """
        rows = []
        for file in self._candidates:
            row: dict[str, Any] = {"file_path": file.location, "version": file.number, "problem": file.problem}
            metadata = None if file.version is None else file.version.metadata
            if metadata is not None:
                row |= {"snapshot_id": metadata.current_snapshot_id, "last_updated_ms": metadata.last_updated_ms}
            rows.append(row | {"is_chosen": file.location == self.metadata_location})
        return local_frame(self.table.state.spark, pa.Table.from_pylist(rows, _ROWS))

    def summary(self) -> RecoverySummary:
        """Return the plan in numbers."""
        snapshots = len(self.table.metadata.snapshots)
        recovery = self._recovery
        return RecoverySummary(recovery.name, self.metadata_location, recovery.current, self._given_up, snapshots)

    @property
    def _given_up(self) -> tuple[str, ...]:
        return tuple(file.location for file in self._candidates if file.version is None)

    def commit(self) -> Table:
        """Make the chosen file current, and return the table.

        In a catalog of folders, newer files are renamed to `metadata/broken-v<version>-<uuid>.json`. SQL and Glue
        catalogs get a copy of the chosen file as the next version. Other catalogs drop the name of the table, and
        register the chosen file. No file is deleted there.

        Raises:
            CommitFailedError: the metadata files have changed since the plan.
            CatalogError: the catalog refused. The message says whether the table's name is gone.
        """
        return super().commit()

    def _commit(self) -> Table:
        recovery = self._recovery
        listed = candidates(recovery, self._chosen)
        version = listed[-1].version
        if listed != [*self._candidates] or version is None:
            raise CommitFailedError(f"{recovery.name}: its metadata files have changed since the plan: plan again")
        return recovery.restore(version, self._given_up)

    def _outcome(self) -> dict[str, Any] | None:
        return {"metadata_location": self._committed[0].metadata_location} if self._committed else None


def candidates(recovery: Recovery, chosen: str | None) -> list[Candidate]:
    """Return the metadata files that are given up, newest first, then the one to take.

    If the catalog names a file, no other file with its number or a higher one was committed.

    Args:
        recovery: names the folder of the files.
        chosen: the name or location of the file to take; None for the newest that can be read.

    Raises:
        NoSuchTableError: no file can be read, or the chosen one is not there.
        ValidationError: several files that can be read have the newest number; or the chosen file can't be read.
    """
    files, folder = recovery.files, recovery.folder
    table_uuid = None
    with suppress(NotFoundError):
        table_uuid = None if recovery.current is None else uuid_in(files.read(recovery.current))
    newer: list[Candidate] = []
    readable: list[Candidate] = []
    for file in _listed(recovery, chosen):
        is_chosen = chosen is not None and file_name(file.location) == file_name(chosen)
        if readable and (chosen is not None or file.number < readable[0].number):
            break
        problem = file.problem
        if table_uuid is not None and file.uuid not in (None, table_uuid.lower()):
            problem = f"it is of another table, {file.uuid}: the table is {table_uuid}"
        if problem is not None and is_chosen:
            raise ValidationError(f"metadata_location is {chosen}: {problem}")
        if problem is not None:
            newer += [file] if file.version is None else []
        elif chosen is None or is_chosen:
            readable.append(file)
        else:
            newer.append(file._replace(version=None, problem=f"it is newer than {chosen}"))
    if not readable:
        wanted = "no metadata file can be read" if chosen is None else f"there is no metadata file {chosen}"
        raise NoSuchTableError(f"{folder}: {wanted}")
    if len(readable) > 1:
        names = " and ".join(sorted(file_name(file.location) for file in readable))
        problem = "so the commit of one was lost: name one as metadata_location"
        raise ValidationError(f"{folder}: {names} are version {readable[0].number}, {problem}")
    return [*newer, *readable]


def _listed(recovery: Recovery, chosen: str | None) -> Iterator[Candidate]:
    """Yield the metadata files, newest first, except for files that were never committed."""
    current = None if recovery.current is None else file_name(recovery.current)
    first_uncommitted = None if current is None or chosen is not None else number_of(current)
    for location in metadata_files(recovery.files, recovery.folder):
        number = number_of(location) or 0
        if first_uncommitted is not None and file_name(location) != current and number >= first_uncommitted:
            continue
        try:
            yield Candidate(location, number, load_version(recovery.files, location), None)
        except (CorruptFileError, ValidationError) as error:
            yield Candidate(location, number, None, str(error))


def plan_recovery(recovery: Recovery, chosen: str | None) -> RecoveryPlan:
    """Plan to recover a table; see `Catalog.recover_table`.

    Args:
        recovery: how it is recovered.
        chosen: the file to take; None for the newest that can be read.
    """
    from sparkmeta.table import table_of

    listed = candidates(recovery, chosen)
    version = listed[-1].version
    assert version is not None
    if recovery.is_unknown and chosen is None:
        problem = "the catalog does not say which metadata file is current: name one as metadata_location"
        raise ValidationError(f"{recovery.name}: {problem}; the newest that can be read is {version.metadata_location}")
    table = table_of(version, recovery.sessions, recovery.files, (recovery.name,), StaticOperations(version))
    return RecoveryPlan(table, version.metadata_location, recovery, chosen, tuple(listed))
