"""Raise the errors of pyiceberg's catalogs and their clients as errors of sparkmeta, without credentials."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyiceberg.exceptions as iceberg

from sparkmeta.errors import (
    CatalogError,
    CommitFailedError,
    CommitStateUnknownError,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NoSuchViewError,
    SparkmetaError,
    TableAlreadyExistsError,
    UnsupportedError,
    ValidationError,
    ViewAlreadyExistsError,
)
from sparkmeta.operations.table_operations import Outcome, outcome_of
from sparkmeta.storage.content import secrets_in, without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyiceberg.catalog import Catalog

_KINDS: dict[type[Exception], type[SparkmetaError]] = {
    iceberg.NoSuchNamespaceError: NoSuchNamespaceError,
    iceberg.NoSuchTableError: NoSuchTableError,
    iceberg.NoSuchViewError: NoSuchViewError,
    iceberg.NoSuchIdentifierError: NoSuchTableError,
    iceberg.TableAlreadyExistsError: TableAlreadyExistsError,
    iceberg.ViewAlreadyExistsError: ViewAlreadyExistsError,
    iceberg.NamespaceAlreadyExistsError: NamespaceAlreadyExistsError,
    iceberg.NamespaceNotEmptyError: NamespaceNotEmptyError,
    iceberg.CommitFailedException: CommitFailedError,
    iceberg.CommitStateUnknownException: CommitStateUnknownError,
    iceberg.BadRequestError: ValidationError,
    iceberg.ValidationError: ValidationError,
    NotImplementedError: UnsupportedError,
    OSError: CatalogError,
}
# Libraries that pyiceberg's catalogs use to reach their services.
_CLIENTS = {"botocore", "google", "pydantic_core", "pyiceberg", "requests", "sqlalchemy", "thrift", "urllib3"}
# Error classes of pyiceberg and these libraries for requests without a response, or with a failure of the server.
_UNANSWERED = {
    "BotoCoreError",
    "ConnectionError",
    "RequestException",
    "ServerError",
    "ServiceUnavailableError",
    "TTransportException",
    "TimeoutError",
}


@contextmanager
def catalog_errors(catalog: Catalog, identifier: tuple[str, ...] = ()) -> Iterator[None]:
    """Raise the errors of a block as errors of sparkmeta, which name the catalog.

    Args:
        catalog: the catalog. No error shows the credentials in its properties.
        identifier: the table or namespace of the request.

    Raises:
        CatalogError: the catalog refused the request, failed, or did not respond.
        SparkmetaError: the counterpart of a more specific error of pyiceberg.
    """
    with errors_of_catalog(catalog.name, catalog.properties, identifier):
        yield


@contextmanager
def errors_of_catalog(name: str, properties: Mapping[str, Any], identifier: tuple[str, ...] = ()) -> Iterator[None]:
    """See `catalog_errors`, for a catalog that is being loaded."""
    try:
        yield
    except SparkmetaError:
        raise
    except Exception as error:
        if (kind := _kind(error)) is None:
            raise
        about = f"catalog {name}: " + (f"{'.'.join(identifier)}: " if identifier else "")
        raise kind(about + shown_error(error, properties)) from _without_secrets(error, properties)


@contextmanager
def settled(
    catalog: Catalog, problem: str, is_done: Callable[[], bool], properties: Mapping[str, str]
) -> Iterator[None]:
    """Look for the outcome of a block's request if the catalog does not respond.

    Args:
        problem: the possible effect of the request, such as `db.t may have been registered`.
        is_done: returns whether the catalog has carried out the request.
        properties: the table properties `commit.status-check.*`, which limit how often to look.

    Raises:
        CommitStateUnknownError: the catalog has not carried out the request, but may still do so.
    """
    try:
        yield
    except Exception as error:
        if not _is_unanswered(error):
            raise
        outcome = outcome_of(lambda: Outcome.WON if is_done() else Outcome.UNKNOWN, properties)
        if outcome is not Outcome.WON:
            raise CommitStateUnknownError(f"{problem}: {shown_error(error, catalog.properties)}") from None


def shown_error(error: Exception, properties: Mapping[str, Any]) -> str:
    """Return the first line of an error's message, with the credentials in properties replaced."""
    return without_secrets(next(iter(str(error).splitlines()), type(error).__name__), properties)


def _kind(error: Exception) -> type[SparkmetaError] | None:
    classes = type(error).__mro__
    for base in classes:
        if base in _KINDS:
            return _KINDS[base]
    return CatalogError if any(base.__module__.partition(".")[0] in _CLIENTS for base in classes) else None


def _is_unanswered(error: Exception) -> bool:
    """Return whether an error leaves open whether the catalog carries out the request."""
    names = {base.__name__ for base in type(error).__mro__}
    if "DBAPIError" in names:
        # A transaction that fails in a statement, before its COMMIT, is rolled back.
        return getattr(error, "statement", None) is None
    return not names.isdisjoint(_UNANSWERED)


def _without_secrets(error: Exception, properties: Mapping[str, Any]) -> Exception | None:
    """Return the error if it may be the cause of another one; None if it or one of its causes shows credentials."""
    secrets = secrets_in(properties)
    cause: BaseException | None = error
    while cause is not None:
        if any(secret in str(cause) for secret in secrets):
            return None
        cause = cause.__cause__ or cause.__context__
    return error
