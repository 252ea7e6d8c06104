"""Tables and views of REST catalogs, which write metadata files themselves."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from weakref import WeakKeyDictionary

import pyiceberg.exceptions as iceberg
from pyiceberg.catalog import TOKEN
from pyiceberg.catalog.rest import (
    API_PREFIX,
    VIEW_ENDPOINTS_SUPPORTED,
    Capability,
    Endpoint,
    Endpoints,
    HttpMethod,
    IdentifierKind,
    RestCatalog,
)
from pyiceberg.catalog.rest.response import _handle_non_200_response
from pyiceberg.catalog.rest.scan_planning import StorageCredential
from pyiceberg.utils.properties import property_as_bool
from requests import HTTPError, RequestException
from requests.auth import AuthBase

from sparkmeta.errors import (
    CatalogError,
    CommitStateUnknownError,
    NoSuchTableError,
    NoSuchViewError,
    UnsupportedError,
    ValidationError,
    shown,
)
from sparkmeta.operations.catalog_errors import catalog_errors, settled, shown_error
from sparkmeta.operations.table_operations import (
    Outcome,
    TableVersion,
    failure,
    has_any_snapshot,
    new_snapshot_ids,
    new_version,
    outcome_of,
    readable_text,
    refuse_other_table,
)
from sparkmeta.operations.view_operations import LoadedView, refuse_other_view
from sparkmeta.spec.json_node import JsonNode
from sparkmeta.spec.metadata import table_metadata_from_json
from sparkmeta.spec.partitioning import partition_spec_to_json, sort_order_to_json
from sparkmeta.spec.schema import schema_to_json
from sparkmeta.spec.updates import Changes, changed_parts, has_changes, requirements_of, updates_of
from sparkmeta.spec.view_metadata import same_columns, view_metadata_from_json, view_version_to_json
from sparkmeta.storage.content import VENDED_FOR, secrets_in
from sparkmeta.storage.files import IO_PROPERTIES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO
    from requests import PreparedRequest, Response, Session

    from sparkmeta.reports import Report
    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.spec.view_metadata import ViewMetadata


# -- The client, with limits for response times -----------------------------------------------------------------------


# The names are the same as in Iceberg's Java library; the limits are in milliseconds.
_LIMITS = {"rest.client.connection-timeout-ms": 30_000, "rest.client.socket-timeout-ms": 300_000}


class TimedRestCatalog(RestCatalog):
    """A REST catalog whose requests fail if the server takes too long to connect, or is silent for too long."""

    def _config_headers(self, session: Session) -> None:
        """Set headers, and the limits: pyiceberg calls this for each new session before it sends a request."""
        super()._config_headers(session)
        send, limits = session.send, tuple(_seconds(self.properties, name) for name in _LIMITS)

        # An adapter would not suffice: pyiceberg mounts its own adapter for SigV4.
        def send_in_time(request: PreparedRequest, **options: Any) -> Response:
            options["timeout"] = options.get("timeout") or limits
            return send(request, **options)

        session.send = send_in_time  # type: ignore[method-assign]


def _seconds(properties: Mapping[str, Any], name: str) -> float:
    text = str(properties.get(name, _LIMITS[name]))
    if not text.isdecimal() or int(text) == 0:
        raise ValidationError(f"the catalog property {name} is {shown(text)}: expected milliseconds, more than 0")
    return int(text) / 1000


# -- Tables -----------------------------------------------------------------------------------------------------------


_LOADING = {404: iceberg.NoSuchTableError}
_SERVER_ERRORS = dict.fromkeys((500, 502, 503, 504), iceberg.ServerError)
_CREATING = {404: iceberg.NoSuchNamespaceError, 409: iceberg.TableAlreadyExistsError, **_SERVER_ERRORS}
_RENAMING = {404: iceberg.NoSuchTableError, 409: iceberg.TableAlreadyExistsError, **_SERVER_ERRORS}
_COMMITTING = {404: iceberg.NoSuchTableError, 409: iceberg.CommitFailedException, 429: iceberg.CommitFailedException}
_EXPIRED_TOKEN = {401, 419}
_WORTH_RETRYING = {408, 409, 429}
_NOT_IMPLEMENTED = 501
_REPORT_METRICS = Endpoint(http_method=HttpMethod.POST, path=f"{API_PREFIX}/{Endpoints.load_table}/metrics")
_REPORT_SECONDS = 5
_PAUSE_SECONDS = 300
# Catalogs that did not accept a report -> the time from which to send them reports again.
_pauses: WeakKeyDictionary[RestCatalog, float] = WeakKeyDictionary()
# Status codes of servers that lack an operation.
_UNSUPPORTED: dict[int, type[Exception]] = dict.fromkeys((405, 406), NotImplementedError)


class LoadedTable(NamedTuple):
    """A table as a REST catalog describes it.

    Attributes:
        io: the FileIO for its files, with the credentials that the catalog provides for it.
        token: the bearer token for further requests about the table; None for the catalog's.
        credentials: the credentials that the catalog has vended for the table's files.
    """

    version: TableVersion
    io: FileIO
    token: str | None
    credentials: tuple[StorageCredential, ...] = ()


@dataclass(frozen=True)
class RestOperations:
    """The operations of a table in a pyiceberg REST catalog.

    Commits send only changes, so changes that the catalog makes itself stay. Its response contains the new version.

    Attributes:
        table_uuid: the UUID of the expected table; None for any.
        token: the table's own bearer token; None for the catalog's.
        credentials: the credentials that the catalog vended for the table's files when the table was loaded.
    """

    refusal: ClassVar[str | None] = None
    replaces_metadata: ClassVar[bool] = False

    catalog: RestCatalog
    identifier: tuple[str, ...]
    table_uuid: UUID | None = None
    token: str | None = field(default=None, repr=False)
    credentials: tuple[StorageCredential, ...] = field(default=(), repr=False, compare=False)

    def refresh(self) -> TableVersion:
        """See `TableOperations.refresh`."""
        with catalog_errors(self.catalog, self.identifier):
            answer = rest_request(
                self.catalog, "GET", _table_url(self.catalog, self.identifier), _LOADING, token=self.token
            )
            return self._version(answer)

    def commit(self, base: TableVersion | None, new: TableMetadata) -> TableVersion:
        """See `TableOperations.commit`. Without a base, creates a table that `create_rest_table` has staged.

        If the response is lost, the request is sent again until its outcome is known. Repeating it is harmless: the
        requirements refuse a second table, snapshot or move of a branch, and properties get the same values.
        """
        changes = changed_parts(None if base is None else base.metadata, new)
        if base is not None and not changes:
            return base
        readable_text(new, ".".join(self.identifier), base)
        namespace, name = self.identifier[:-1], self.identifier[-1]
        request = {
            "identifier": {"namespace": namespace, "name": name},
            "requirements": requirements_of(None if base is None else base.metadata, changes),
            "updates": updates_of(changes, new),
        }
        properties = (new if base is None else base.metadata).properties
        attempt = _Attempt(base, changes, new_snapshot_ids(base, new), request, properties)
        with catalog_errors(self.catalog, self.identifier):
            try:
                return self._send(attempt)
            except Exception as error:
                if _is_refusal(error):
                    raise
                return self._settled(attempt, error)

    def takes_reports(self) -> bool:
        """Return whether the catalog accepts metrics reports: its server offers the endpoint, and no property bars it.

        After a failure, none are sent to the catalog for a while.
        """
        if time.monotonic() < _pauses.get(self.catalog, 0):
            return False
        is_enabled = property_as_bool(self.catalog.properties, "rest-metrics-reporting-enabled", True)
        return is_enabled and _REPORT_METRICS in self.catalog._supported_endpoints

    def report(self, report: Report) -> None:
        """Send a metrics report on the table, unless the catalog accepts none at present.

        Raises:
            CatalogError: the catalog refuses, or does not answer in time. An expired token is not renewed.
        """
        if not self.takes_reports():
            return
        try:
            with catalog_errors(self.catalog, self.identifier):
                url = f"{_table_url(self.catalog, self.identifier)}/metrics"
                auth = None if self.token is None else _Bearer(self.token)
                _answer(self.catalog._session.post(url, json=report, auth=auth, timeout=_REPORT_SECONDS), {})
        except Exception:
            _pauses[self.catalog] = time.monotonic() + _PAUSE_SECONDS
            raise

    def _send(self, attempt: _Attempt) -> TableVersion:
        self.catalog._check_endpoint(Capability.V1_UPDATE_TABLE)
        url = _table_url(self.catalog, self.identifier)
        errors = _CREATING if attempt.base is None else _COMMITTING
        return self._version(rest_request(self.catalog, "POST", url, errors, attempt.request, self.token))

    def _settled(self, attempt: _Attempt, error: Exception) -> TableVersion:
        """Return the version of a failed attempt if it was committed after all.

        Even a conflict may be with the attempt itself, if a proxy has repeated the request.
        """
        committed: list[TableVersion] = []

        def check() -> Outcome:
            try:
                current = self.refresh()
            except NoSuchTableError:
                if attempt.base is not None:
                    raise
                committed.append(self._send(attempt))
                return Outcome.WON
            outcome = attempt.outcome_in(current)
            if outcome is Outcome.WON:
                committed.append(current)
            elif isinstance(error, iceberg.CommitFailedException):
                return Outcome.LOST
            elif outcome is Outcome.UNKNOWN:
                committed.append(self._send(attempt))
                return Outcome.WON
            return outcome

        outcome = outcome_of(check, attempt.properties)
        if outcome is Outcome.WON:
            return committed[-1]
        if outcome is Outcome.LOST and isinstance(error, iceberg.TableAlreadyExistsError):
            raise error
        reason = CatalogError(shown_error(error, self.catalog.properties))
        raise failure(outcome, ".".join(self.identifier), reason) from reason

    def _version(self, answer: dict[str, Any]) -> TableVersion:
        version = _version_of(answer, self.identifier)
        refuse_other_table(version.metadata_location, version.metadata.table_uuid, self.table_uuid)
        return version


@dataclass(frozen=True)
class _Attempt:
    """An attempt to commit: its base, changes, new snapshots, and request.

    Attributes:
        properties: the table properties that control how the outcome of the attempt is found.
    """

    base: TableVersion | None
    changes: Changes
    snapshot_ids: set[int]
    request: dict[str, Any]
    properties: Mapping[str, str]

    def outcome_in(self, current: TableVersion) -> Outcome:
        """Return the outcome, given the catalog's version: unknown if the catalog would still accept the request."""
        metadata, ids = current.metadata, self.snapshot_ids
        if has_any_snapshot(metadata, ids) if ids else has_changes(metadata, self.changes):
            return Outcome.WON
        is_acceptable = requirements_of(metadata, self.changes) == self.request["requirements"]
        return Outcome.UNKNOWN if is_acceptable and self.base is not None else Outcome.LOST


def load_rest_table(catalog: RestCatalog, identifier: tuple[str, ...]) -> LoadedTable:
    """Load a table.

    Raises:
        NoSuchTableError: the table does not exist.
        CatalogError: the catalog refuses or does not respond.
    """
    with catalog_errors(catalog, identifier):
        catalog._check_endpoint(Capability.V1_LOAD_TABLE)
        return _loaded(catalog, identifier, rest_request(catalog, "GET", _table_url(catalog, identifier), _LOADING))


def rest_table_exists(catalog: RestCatalog, identifier: tuple[str, ...]) -> bool:
    """Return whether a table exists. Call it inside `with catalog_errors(...)`."""
    if Capability.V1_TABLE_EXISTS in catalog._supported_endpoints:
        return bool(catalog.table_exists(identifier))
    # pyiceberg would parse the response, with models that can't read all metadata.
    try:
        rest_request(catalog, "GET", _table_url(catalog, identifier), _LOADING)
    except iceberg.NoSuchTableError:
        return False
    return True


def create_rest_table(
    catalog: RestCatalog,
    identifier: tuple[str, ...],
    metadata: TableMetadata,
    location: str | None,
    *,
    staged: bool = False,
) -> LoadedTable:
    """Create an empty table with the schema, partition spec, sort order, properties and version of `metadata`.

    Args:
        catalog: the catalog.
        identifier: the table.
        metadata: what the table begins with.
        location: the folder of its files. Defaults to the catalog's choice.
        staged: whether the catalog only prepares the table, which the first commit then creates.

    Raises:
        NoSuchNamespaceError: the namespace does not exist.
        TableAlreadyExistsError: the table exists.
        CommitStateUnknownError: the catalog did not respond; the table may exist.
        CatalogError: the catalog refuses.
    """
    request: dict[str, Any] = (
        {
            "name": identifier[-1],
            "schema": schema_to_json(metadata.schema()),
            "partition-spec": partition_spec_to_json(metadata.spec()),
            "write-order": sort_order_to_json(metadata.sort_order()),
            "properties": metadata.properties | {"format-version": str(metadata.format_version)},
        }
        | ({} if location is None else {"location": location})
        | ({"stage-create": True} if staged else {})
    )
    with catalog_errors(catalog, identifier):
        catalog._check_endpoint(Capability.V1_CREATE_TABLE)
        namespace = catalog._encode_namespace_path(identifier[:-1])
        url = catalog.url(Endpoints.create_table, namespace=namespace)
        try:
            answer = rest_request(catalog, "POST", url, _CREATING, request)
        except (RequestException, iceberg.ServerError) as error:
            reason = shown_error(error, catalog.properties)
            if staged:
                raise CatalogError(f"{'.'.join(identifier)} can't be prepared: {reason}") from None
            raise CommitStateUnknownError(f"{'.'.join(identifier)} may have been created: {reason}") from None
        return _loaded(catalog, identifier, answer, staged=staged)


def refuse_without_register(catalog: RestCatalog) -> None:
    """Raise an error for a catalog that can't register tables. Call it inside `with catalog_errors(...)`."""
    catalog._check_endpoint(Capability.V1_REGISTER_TABLE)


def register_rest_table(catalog: RestCatalog, identifier: tuple[str, ...], metadata_location: str) -> LoadedTable:
    """Add the table of a metadata file. Call it inside `with catalog_errors(...)`."""
    refuse_without_register(catalog)
    url = catalog.url(Endpoints.register_table, namespace=catalog._encode_namespace_path(identifier[:-1]))
    request = {"name": identifier[-1], "metadata-location": metadata_location}
    return _loaded(catalog, identifier, rest_request(catalog, "POST", url, _CREATING, request))


def rename_rest_table(catalog: RestCatalog, identifier: tuple[str, ...], new_identifier: tuple[str, ...]) -> None:
    """Rename a table. Call it inside `with catalog_errors(...)`."""
    catalog._check_endpoint(Capability.V1_RENAME_TABLE)
    identifiers = {"source": identifier, "destination": new_identifier}
    request = {key: {"namespace": names[:-1], "name": names[-1]} for key, names in identifiers.items()}
    rest_request(catalog, "POST", catalog.url(Endpoints.rename_table), _RENAMING, request)


def refuse_missing_namespace(catalog: Catalog, identifier: tuple[str, ...]) -> None:
    """Raise NoSuchNamespaceError for a missing namespace, since some servers don't check it."""
    if not catalog.namespace_exists(identifier[:-1]):
        raise iceberg.NoSuchNamespaceError(f"there is no namespace {'.'.join(identifier[:-1])}")


def _table_url(catalog: RestCatalog, identifier: tuple[str, ...]) -> str:
    return catalog.url(Endpoints.load_table, **catalog._split_identifier_for_path(identifier))


def rest_request(
    catalog: RestCatalog,
    method: str,
    url: str,
    errors: Mapping[int, type[Exception]],
    body: Mapping[str, Any] | None = None,
    token: str | None = None,
) -> dict[str, Any]:
    """Send a request with a token or else the catalog's authentication, and return the JSON of the response.

    An expired token is replaced by the catalog's token, which is renewed if it has expired.

    Args:
        errors: the exceptions for status codes, instead of pyiceberg's general ones.
    """
    send = partial(catalog._session.request, method, url, json=body)
    response = send(auth=None if token is None else _Bearer(token))
    if response.status_code in _EXPIRED_TOKEN and token is not None:
        response = send()
    if response.status_code in _EXPIRED_TOKEN:
        catalog._refresh_token()
        response = send()
    return _answer(response, errors)


def _answer(response: Response, errors: Mapping[int, type[Exception]]) -> dict[str, Any]:
    """Return the JSON of a response; see `rest_request`."""
    try:
        response.raise_for_status()
    except HTTPError as error:
        _handle_non_200_response(error, _UNSUPPORTED | dict(errors))
    answer: dict[str, Any] = response.json() if response.content else {}
    return answer


class _Bearer(AuthBase):
    """Authentication by a token."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: PreparedRequest) -> PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request


def _is_refusal(error: Exception) -> bool:
    """Return whether the catalog's response says that it will never execute a commit."""
    cause = error.__cause__
    status = cause.response.status_code if isinstance(cause, HTTPError) and cause.response is not None else 0
    return status == _NOT_IMPLEMENTED or (400 <= status < 500 and status not in _WORTH_RETRYING)


def _loaded(
    catalog: RestCatalog, identifier: tuple[str, ...], answer: Mapping[str, Any], *, staged: bool = False
) -> LoadedTable:
    version = _staged_version(answer, identifier) if staged else _version_of(answer, identifier)
    config: dict[str, str] = answer.get("config") or {}
    credentials = [StorageCredential(**credential) for credential in answer.get("storage-credentials") or []]
    vended = catalog._resolve_storage_credentials(credentials, version.metadata_location)
    provided = config | vended
    if secrets_in(provided):
        provided[VENDED_FOR] = f"catalog {catalog.name} has vended for the table {'.'.join(identifier)}"
    io = catalog._load_file_io({**version.metadata.properties, **provided}, version.metadata_location)
    return LoadedTable(version, io, config.get(TOKEN), tuple(credentials or _in_config(config, version.metadata)))


def _in_config(config: Mapping[str, str], metadata: TableMetadata) -> list[StorageCredential]:
    """Return the credentials that a catalog has put into a table's configuration, instead of a list of credentials."""
    file_properties = {name: value for name, value in config.items() if name.startswith(IO_PROPERTIES)}
    return [StorageCredential(prefix=metadata.location, config=file_properties)] if secrets_in(file_properties) else []


def _version_of(answer: Mapping[str, Any], identifier: tuple[str, ...]) -> TableVersion:
    location = answer.get("metadata-location")
    if not location:
        raise UnsupportedError(f"{'.'.join(identifier)}: the catalog's answer has no metadata-location")
    return TableVersion(location, table_metadata_from_json(JsonNode(answer.get("metadata"), location)))


def _staged_version(answer: Mapping[str, Any], identifier: tuple[str, ...]) -> TableVersion:
    return new_version(table_metadata_from_json(JsonNode(answer.get("metadata"), ".".join(identifier))))


# -- Views ------------------------------------------------------------------------------------------------------------


_VIEWS = "namespaces/{namespace}/views"
_VIEW = "namespaces/{namespace}/views/{view}"
_RENAME = "views/rename"
_REGISTER = "namespaces/{namespace}/register-view"
_VIEW_LOADING: dict[int, type[Exception]] = {404: iceberg.NoSuchViewError}
_VIEW_COMMITTING = _VIEW_LOADING | {409: iceberg.CommitFailedException}
_VIEW_CREATING: dict[int, type[Exception]] = {404: iceberg.NoSuchNamespaceError, 409: iceberg.ViewAlreadyExistsError}
# Stands for the id of the schema or version that the same request added last.
_LAST_ADDED = -1


@dataclass(frozen=True)
class RestViewOperations:
    """The operations of a view in a REST catalog.

    The server applies the difference between base and new metadata to its own version. It refuses a commit if another
    view has replaced the base's, but not if the base is outdated.

    Attributes:
        view_uuid: the UUID of the expected view; None for any.
    """

    catalog: RestCatalog
    names: tuple[str, ...]
    view_uuid: UUID | None = None

    def refresh(self) -> LoadedView:
        """See `ViewOperations.refresh`."""
        with catalog_errors(self.catalog, self.names):
            return self._loaded(self._request(HttpMethod.GET, _VIEW, _VIEW_LOADING))

    def commit(self, base: LoadedView | None, new: ViewMetadata) -> LoadedView:
        """See `ViewOperations.commit`."""
        with catalog_errors(self.catalog, self.names):
            if base is None:
                refuse_missing_namespace(self.catalog, self.names)
            try:
                if base is None:
                    return self._loaded(self._request(HttpMethod.POST, _VIEWS, _VIEW_CREATING, self._creation(new)))
                request = _commit_request(base.metadata, new)
                return self._loaded(self._request(HttpMethod.POST, _VIEW, _VIEW_COMMITTING, request))
            except (RequestException, iceberg.ServerError, iceberg.ServiceUnavailableError) as error:
                outcome = outcome_of(lambda: self._outcome(base, new), new.properties)
                if outcome is not Outcome.WON:
                    reason = CatalogError(shown_error(error, self.catalog.properties))
                    raise failure(outcome, ".".join(self.names), reason) from reason
                return self.refresh()

    def register(self, metadata_location: str) -> LoadedView:
        """Create the view of a metadata file, which the server reads."""
        with catalog_errors(self.catalog, self.names):
            refuse_missing_namespace(self.catalog, self.names)

            def is_done() -> bool:
                return self.refresh().metadata_location == metadata_location

            request = {"name": self.names[-1], "metadata-location": metadata_location}
            with settled(self.catalog, f"{'.'.join(self.names)} may have been registered", is_done, {}):
                self._request(HttpMethod.POST, _REGISTER, _VIEW_CREATING, request)
        return self.refresh()

    def rename(self, names: tuple[str, ...]) -> None:
        """Rename the view. Raises NoSuchViewError, ViewAlreadyExistsError or NoSuchNamespaceError."""
        self.refresh()
        with catalog_errors(self.catalog, names):
            refuse_missing_namespace(self.catalog, names)
            request = {"source": _named(self.names), "destination": _named(names)}
            self._request(HttpMethod.POST, _RENAME, _VIEW_CREATING, request)

    def drop(self) -> None:
        """Drop the view. Raises NoSuchViewError."""
        with catalog_errors(self.catalog, self.names):
            self._request(HttpMethod.DELETE, _VIEW, _VIEW_LOADING)

    def _creation(self, new: ViewMetadata) -> dict[str, Any]:
        request = {
            "name": self.names[-1],
            "schema": schema_to_json(new.schema()),
            "view-version": view_version_to_json(new.current_version()),
            "properties": dict(new.properties),
        }
        return request | ({"location": new.location} if new.location else {})

    def _outcome(self, base: LoadedView | None, new: ViewMetadata) -> Outcome:
        """Return WON if the view equals the commit's result; otherwise the request may still be under way."""
        try:
            current = self.refresh().metadata
        except NoSuchViewError:
            return Outcome.UNKNOWN
        removed_keys = base.metadata.properties.keys() - new.properties.keys() if base is not None else set()
        has_properties = (
            new.properties.items() <= current.properties.items() and not removed_keys & current.properties.keys()
        )
        return Outcome.WON if has_properties and _same_current(current, new) else Outcome.UNKNOWN

    def _loaded(self, answer: Mapping[str, Any]) -> LoadedView:
        location = str(answer.get("metadata-location"))
        metadata = view_metadata_from_json(JsonNode(answer.get("metadata"), location))
        refuse_other_view(location, metadata, self.view_uuid)
        return LoadedView(location, metadata)

    def _request(
        self,
        method: HttpMethod,
        endpoint: str,
        errors: Mapping[int, type[Exception]],
        body: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        _refuse_missing_endpoint(self.catalog, method, endpoint)
        path = self.catalog._split_identifier_for_path(self.names, IdentifierKind.VIEW)
        return rest_request(self.catalog, method.value, self.catalog.url(endpoint, **path), errors, body)


def list_rest_views(catalog: RestCatalog, namespace: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return the identifiers of the views in a namespace. Raises NoSuchNamespaceError."""
    with catalog_errors(catalog, namespace):
        _refuse_missing_endpoint(catalog, HttpMethod.GET, _VIEWS)
        return sorted(catalog.list_views(namespace))


def _refuse_missing_endpoint(catalog: RestCatalog, method: HttpMethod, endpoint: str) -> None:
    """Raise UnsupportedError if the server does not offer an operation on views."""
    endpoint_needed = Endpoint(http_method=method, path=f"{API_PREFIX}/{endpoint}")
    # Old servers do not list their endpoints: a property then says whether they offer views.
    is_claimed = property_as_bool(catalog.properties, VIEW_ENDPOINTS_SUPPORTED, False)
    if endpoint_needed not in catalog._supported_endpoints and not is_claimed:
        raise UnsupportedError(
            f"catalog {catalog.name}: the server does not offer {endpoint_needed}: if it does, set "
            f"{VIEW_ENDPOINTS_SUPPORTED}=true"
        )


def _commit_request(base: ViewMetadata, new: ViewMetadata) -> dict[str, Any]:
    uuid = base.view_uuid
    requirements = [] if uuid is None else [{"type": "assert-view-uuid", "uuid": str(uuid)}]
    return {"requirements": requirements, "updates": _updates(base, new)}


def _updates(base: ViewMetadata, new: ViewMetadata) -> list[dict[str, Any]]:
    """Return the updates that turn `base` into `new`. Servers assign the ids and expire old versions themselves."""
    schema_ids = {schema.schema_id for schema in base.schemas}
    added_schemas = [schema for schema in new.schemas if schema.schema_id not in schema_ids]
    updates: list[dict[str, Any]] = [
        {"action": "add-schema", "schema": schema_to_json(schema)} for schema in added_schemas
    ]
    added_versions = [version for version in new.versions if base.version_by_id(version.version_id) is None]
    for version in added_versions:
        document = view_version_to_json(version)
        if version.schema_id not in schema_ids:
            document["schema-id"] = _LAST_ADDED
        updates.append({"action": "add-view-version", "view-version": document})
    if new.current_version_id != base.current_version_id:
        current = _LAST_ADDED if added_versions else new.current_version_id
        updates.append({"action": "set-current-view-version", "view-version-id": current})
    if set_properties := dict(new.properties.items() - base.properties.items()):
        updates.append({"action": "set-properties", "updates": set_properties})
    if removed_keys := sorted(base.properties.keys() - new.properties.keys()):
        updates.append({"action": "remove-properties", "removals": removed_keys})
    return updates


def _same_current(left: ViewMetadata, right: ViewMetadata) -> bool:
    """Return whether the current versions have the same queries, defaults and columns, whatever their summaries."""
    versions = left.current_version(), right.current_version()
    definitions = [(v.representations, v.default_catalog, v.default_namespace) for v in versions]
    return definitions[0] == definitions[1] and same_columns(left.schema(), right.schema())


def _named(names: tuple[str, ...]) -> dict[str, Any]:
    return {"namespace": list(names[:-1]), "name": names[-1]}
