"""Tables of AWS Glue, whose entries carry the location of the metadata file, and a version that each update raises."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pyiceberg.exceptions as iceberg
from botocore.exceptions import ClientError
from pyiceberg.catalog import METADATA_LOCATION
from pyiceberg.catalog.glue import _construct_rename_table_input, _construct_table_input

from sparkmeta.errors import CatalogError, CommitFailedError, CommitStateUnknownError
from sparkmeta.operations.catalog_errors import catalog_errors, shown_error
from sparkmeta.operations.pointer import PointerCommit, PointerOperations
from sparkmeta.operations.table_operations import Outcome, TableVersion, failure, load_version, outcome_of
from sparkmeta.storage.writing import discard

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.catalog.glue import GlueCatalog


class _Request(NamedTuple):
    """A table entry to write: a replacement for the entry's version, or a new entry."""

    entry: Any
    replaced_version: str | None


@dataclass(frozen=True)
class GlueOperations(PointerOperations):
    """The operations of a table in AWS Glue; see `PointerOperations`.

    An update names a version of the entry. Glue refuses it if the entry has another version.
    """

    catalog: GlueCatalog

    def _current_location(self) -> str | None:
        entry = self._current_entry()
        return None if entry is None else _location_of(entry)

    def _move(self, attempt: PointerCommit) -> None:
        """See `PointerOperations._move`.

        If the response is lost, the request is sent again: Glue refuses it if the first one was executed.
        """
        location = attempt.version.metadata_location
        with catalog_errors(self.catalog, self.identifier):
            try:
                request = self._request(attempt)
            except Exception:
                discard(self.files, [location])
                raise
            try:
                self._send(request)
            except Exception as error:
                is_refused = _is_refusal(error)
                outcome = Outcome.LOST if is_refused else self._settled(attempt, request)
                if outcome is Outcome.LOST:
                    discard(self.files, [location])
                if is_refused:
                    raise
                if outcome is not Outcome.WON:
                    reason = CatalogError(shown_error(error, self.catalog.properties))
                    raise failure(outcome, location, reason) from reason

    def _request(self, attempt: PointerCommit) -> _Request:
        """Return the request of an attempt. Raises CommitFailedError if its base is not the current version."""
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

    def _settled(self, attempt: PointerCommit, request: _Request) -> Outcome:
        """Return the outcome of a request that got no response, or that the client repeated and Glue then refused."""

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
        return _entry(self.catalog, self.identifier)

    def _entry_of(self, version: TableVersion, replaced: Any = None, previous_location: str | None = None) -> Any:
        location, metadata = version
        return _construct_table_input(
            self.identifier[-1], location, metadata.properties, metadata, replaced, previous_location
        )


def register_glue_table(catalog: GlueCatalog, identifier: tuple[str, ...], version: TableVersion) -> None:
    """Add the table of a metadata file. Call it inside `with catalog_errors(...)`.

    Raises:
        TableAlreadyExistsError, NoSuchNamespaceError: nothing was added.
        CommitStateUnknownError: Glue did not respond, and may have added the table.
    """
    location, metadata = version
    entry = _construct_table_input(identifier[-1], location, {}, metadata)
    _create(catalog, identifier, entry, metadata.properties, f"{'.'.join(identifier)} may have been registered")


def rename_glue_table(catalog: GlueCatalog, identifier: tuple[str, ...], new_identifier: tuple[str, ...]) -> None:
    """Rename a table. Glue holds it under both names at first, then only under the new one.

    Call it inside `with catalog_errors(...)`. The old name is dropped only if its entry has not changed since it was
    copied. Glue has no conditional drop, so a commit in the moment between this check and the drop is lost.

    Raises:
        NoSuchTableError, NoSuchNamespaceError, TableAlreadyExistsError: nothing was renamed.
        CommitFailedError: another commit to the table came first.
        CommitStateUnknownError: the table may have both names, or only the new one.
    """
    old_name, new_name = ".".join(identifier), ".".join(new_identifier)
    copied = catalog._get_glue_table(*catalog.identifier_to_database_and_table(identifier, iceberg.NoSuchTableError))
    properties = copied.get("Parameters", {})
    copied_entry = _construct_rename_table_input(new_identifier[-1], copied)
    _create(catalog, new_identifier, copied_entry, properties, f"{old_name} may have the second name {new_name}")
    is_sent = False
    try:
        _refuse_changed(catalog, identifier, copied)
        is_sent = True
        catalog.drop_table(identifier)
    except Exception as error:
        # A request without a response may still be under way.
        is_over = _answer_in(error) is not None

        def check() -> Outcome:
            entry = _entry(catalog, identifier)
            if entry is None and is_sent:
                return Outcome.WON
            return Outcome.LOST if not is_sent or (is_over and _is_same(entry, copied)) else Outcome.UNKNOWN

        outcome = outcome_of(check, properties)
        if outcome is Outcome.UNKNOWN:
            problem = f"{old_name} may have been renamed to {new_name}, or has both names"
            raise _unknown(catalog, problem, error) from None
        if outcome is Outcome.LOST:
            if not _drop_copy(catalog, new_identifier, copied):
                raise _unknown(catalog, f"{old_name} has the second name {new_name}", error) from None
            raise


def _refuse_changed(catalog: GlueCatalog, identifier: tuple[str, ...], copied: Mapping[str, Any]) -> None:
    """Raise CommitFailedError if the entry of a table to rename has changed since it was copied."""
    if not _is_same(_entry(catalog, identifier), copied):
        raise CommitFailedError(f"{'.'.join(identifier)} was not renamed: another commit, or a drop, came first")


def _create(
    catalog: GlueCatalog, identifier: tuple[str, ...], entry: Any, properties: Mapping[str, str], problem: str
) -> None:
    """Create an entry. If the response is lost, the request is sent again: Glue refuses it if the first was executed.

    Args:
        properties: the table properties `commit.status-check.*`.
        problem: the possible effect of a request with an unknown outcome, for error messages.
    """
    create = partial(catalog._create_glue_table, *catalog.identifier_to_database_and_table(identifier), entry)
    try:
        create()
    except Exception as error:
        if _is_refusal(error):
            raise

        def check() -> Outcome:
            current = _entry(catalog, identifier)
            if current is None:
                create()
                return Outcome.WON
            return Outcome.WON if _location_of(current) == _location_of(entry) else Outcome.LOST

        outcome = outcome_of(check, properties)
        if outcome is Outcome.LOST:
            raise
        if outcome is Outcome.UNKNOWN:
            raise _unknown(catalog, problem, error) from None


def _drop_copy(catalog: GlueCatalog, identifier: tuple[str, ...], copied: Mapping[str, Any]) -> bool:
    """Drop the new name of a table that still has its old one, and return whether the new name is gone.

    After a commit under the new name, it stays.
    """

    def check() -> Outcome:
        entry = _entry(catalog, identifier)
        if entry is None:
            return Outcome.WON
        if _location_of(entry) != _location_of(copied):
            return Outcome.LOST
        catalog.drop_table(identifier)
        return Outcome.WON

    return outcome_of(check, copied.get("Parameters", {})) is Outcome.WON


def _unknown(catalog: GlueCatalog, problem: str, error: Exception) -> CommitStateUnknownError:
    return CommitStateUnknownError(f"{problem}: {shown_error(error, catalog.properties)}")


def _entry(catalog: GlueCatalog, identifier: tuple[str, ...]) -> Mapping[str, Any] | None:
    """Return the entry of a table; None if there is no such table."""
    try:
        entry: Mapping[str, Any] = catalog._get_glue_table(*catalog.identifier_to_database_and_table(identifier))
    except iceberg.NoSuchTableError:
        return None
    return entry


def _is_same(entry: Mapping[str, Any] | None, before: Mapping[str, Any]) -> bool:
    """Return whether an entry is unchanged. The versions of a new table's entry start over, with other locations."""
    if entry is None:
        return False
    return (entry.get("VersionId"), _location_of(entry)) == (before.get("VersionId"), _location_of(before))


def _location_of(entry: Mapping[str, Any]) -> str | None:
    location: str | None = entry.get("Parameters", {}).get(METADATA_LOCATION)
    return location


def _is_refusal(error: BaseException) -> bool:
    """Return whether Glue has refused the only request that was sent."""
    answer = _answer_in(error)
    return answer is not None and 400 <= answer.get("HTTPStatusCode", 0) < 500 and not answer.get("RetryAttempts", 0)


def _answer_in(error: BaseException) -> Mapping[str, Any] | None:
    """Return the metadata of Glue's response to a request that failed; None if there was no response."""
    cause = error if isinstance(error, ClientError) else error.__cause__
    return cause.response.get("ResponseMetadata", {}) if isinstance(cause, ClientError) else None
