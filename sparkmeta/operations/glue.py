"""Tables of AWS Glue, whose entries carry the location of the metadata file, and a version that each update raises."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pyiceberg.exceptions as iceberg
from botocore.exceptions import ClientError
from pyiceberg.catalog import METADATA_LOCATION
from pyiceberg.catalog.glue import _construct_rename_table_input, _construct_table_input

from sparkmeta.errors import CatalogError, CommitFailedError
from sparkmeta.operations.catalog_errors import catalog_errors, shown_error
from sparkmeta.operations.pointer import Attempt, PointerOperations
from sparkmeta.operations.table_operations import Outcome, TableVersion, failure, load_version, outcome_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.catalog.glue import GlueCatalog


class _Request(NamedTuple):
    """A table entry to write: in place of the entry's version, or a new one."""

    entry: Any
    replaced_version: str | None


@dataclass(frozen=True)
class GlueOperations(PointerOperations):
    """The operations of a table in AWS Glue; see `PointerOperations`.

    Glue refuses an update of an entry that is no longer at the version that the request names.
    """

    catalog: GlueCatalog

    def _current_location(self) -> str | None:
        entry = self._current_entry()
        return None if entry is None else _location_of(entry)

    def _move(self, attempt: Attempt) -> None:
        """See `PointerOperations._move`.

        A request whose answer is lost is sent again: Glue refuses it if the first one has been executed.
        """
        location = attempt.version.metadata_location
        with catalog_errors(self.catalog, self.identifier):
            try:
                request = self._request(attempt)
            except Exception:
                self._discard([location])
                raise
            try:
                self._send(request)
            except Exception as error:
                is_refused = _is_refusal(error)
                outcome = Outcome.LOST if is_refused else self._settled(attempt, request)
                if outcome is Outcome.LOST:
                    self._discard([location])
                if is_refused:
                    raise
                if outcome is not Outcome.WON:
                    reason = CatalogError(shown_error(error, self.catalog.properties))
                    raise failure(outcome, location, reason) from reason

    def _request(self, attempt: Attempt) -> _Request:
        """Return the request of an attempt. Raises CommitFailedError if its base is no longer the current version."""
        if attempt.base is None:
            return _Request(self._entry_of(attempt.version), None)
        entry = self._current_entry()
        if entry is None:
            raise self._no_such_table()
        base, current = attempt.base.metadata_location, _location_of(entry)
        if current != base:
            raise CommitFailedError(f"{base} is no longer the current version: {current} is")
        if (version := entry.get("VersionId")) is None:
            raise CatalogError(
                f"{'.'.join(self.identifier)}: Glue names no version of its entry, which a commit replaces"
            )
        return _Request(self._entry_of(attempt.version, entry, base), version)

    def _send(self, request: _Request) -> None:
        database, name = self.identifier
        if request.replaced_version is None:
            self.catalog._create_glue_table(database, name, request.entry)
        else:
            self.catalog._update_glue_table(database, name, request.entry, request.replaced_version)

    def _settled(self, attempt: Attempt, request: _Request) -> Outcome:
        """Return the outcome of a request that got no answer, or was repeated by the client and then refused."""

        def check() -> Outcome:
            entry = self._current_entry()
            location = None if entry is None else _location_of(entry)
            if location == attempt.version.metadata_location:
                return Outcome.WON
            if entry is None and attempt.base is not None:
                return Outcome.UNKNOWN
            if (None if entry is None else entry.get("VersionId")) == request.replaced_version:
                self._send(request)
                return Outcome.WON
            if attempt.base is not None and location == attempt.base.metadata_location:
                return Outcome.LOST
            return attempt.outcome_in(load_version(self.files, str(location)).metadata)

        return outcome_of(check, attempt.properties)

    def _current_entry(self) -> Mapping[str, Any] | None:
        try:
            entry: Mapping[str, Any] = self.catalog._get_glue_table(*self.identifier)
        except iceberg.NoSuchTableError:
            return None
        return entry

    def _entry_of(self, version: TableVersion, replaced: Any = None, previous_location: str | None = None) -> Any:
        location, metadata = version
        return _construct_table_input(
            self.identifier[-1], location, metadata.properties, metadata, replaced, previous_location
        )


def register_glue_table(catalog: GlueCatalog, identifier: tuple[str, ...], version: TableVersion) -> None:
    """Add the table of a metadata file. Call it inside `with catalog_errors(...)`."""
    location, metadata = version
    database, name = catalog.identifier_to_database_and_table(identifier)
    catalog._create_glue_table(database, name, _construct_table_input(name, location, {}, metadata))


def rename_glue_table(catalog: GlueCatalog, identifier: tuple[str, ...], new_identifier: tuple[str, ...]) -> None:
    """Rename a table: Glue has it under both names, then only under the new one.

    Call it inside `with catalog_errors(...)`.
    """
    database, name = catalog.identifier_to_database_and_table(new_identifier)
    entry = catalog._get_glue_table(*catalog.identifier_to_database_and_table(identifier, iceberg.NoSuchTableError))
    catalog._create_glue_table(database, name, _construct_rename_table_input(name, entry))
    try:
        catalog.drop_table(identifier)
    except Exception:
        with suppress(Exception):
            catalog.drop_table(new_identifier)
        raise


def _location_of(entry: Mapping[str, Any]) -> str | None:
    location: str | None = entry.get("Parameters", {}).get(METADATA_LOCATION)
    return location


def _is_refusal(error: BaseException) -> bool:
    """Return whether Glue has refused the only request that was sent."""
    cause = error if isinstance(error, ClientError) else error.__cause__
    if not isinstance(cause, ClientError):
        return False
    answer: Mapping[str, Any] = cause.response.get("ResponseMetadata", {})
    return 400 <= answer.get("HTTPStatusCode", 0) < 500 and not answer.get("RetryAttempts", 0)
