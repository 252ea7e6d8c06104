"""Views in REST catalogs: the endpoints that pyiceberg's client lacks, over its session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyiceberg.exceptions as iceberg
from pyiceberg.catalog.rest import (
    API_PREFIX,
    VIEW_ENDPOINTS_SUPPORTED,
    Endpoint,
    HttpMethod,
    IdentifierKind,
    RestCatalog,
)
from pyiceberg.utils.properties import property_as_bool
from requests import RequestException

from sparkmeta.errors import CatalogError, NoSuchViewError, UnsupportedError
from sparkmeta.operations.catalog_errors import catalog_errors, shown_error
from sparkmeta.operations.rest import refuse_missing_namespace, rest_request
from sparkmeta.operations.table_operations import Outcome, failure, outcome_of
from sparkmeta.operations.view_operations import LoadedView, refuse_other_view
from sparkmeta.spec.json_node import JsonNode
from sparkmeta.spec.schema import schema_to_json
from sparkmeta.spec.view_metadata import view_metadata_from_json, view_version_to_json
from sparkmeta.spec.view_updates import same_columns

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from sparkmeta.spec.view_metadata import ViewMetadata

_VIEWS = "namespaces/{namespace}/views"
_VIEW = "namespaces/{namespace}/views/{view}"
_RENAME = "views/rename"
_LOADING: dict[int, type[Exception]] = {404: iceberg.NoSuchViewError}
_COMMITTING = _LOADING | {409: iceberg.CommitFailedException}
_CREATING: dict[int, type[Exception]] = {404: iceberg.NoSuchNamespaceError, 409: iceberg.ViewAlreadyExistsError}
# The id that means: the schema or version that the same request has added last.
_LAST_ADDED = -1


@dataclass(frozen=True)
class RestViewOperations:
    """The operations of a view in a REST catalog.

    The server applies the difference of base and new metadata to its own version. It refuses another view in the place
    of the base, but not a base that is no longer current.

    Attributes:
        view_uuid: the expected view; None for any.
    """

    catalog: RestCatalog
    names: tuple[str, ...]
    view_uuid: UUID | None = None

    def refresh(self) -> LoadedView:
        """See `ViewOperations.refresh`."""
        with catalog_errors(self.catalog, self.names):
            return self._loaded(self._request(HttpMethod.GET, _VIEW, _LOADING))

    def commit(self, base: LoadedView | None, new: ViewMetadata) -> LoadedView:
        """See `ViewOperations.commit`."""
        with catalog_errors(self.catalog, self.names):
            if base is None:
                refuse_missing_namespace(self.catalog, self.names)
            try:
                if base is None:
                    return self._loaded(self._request(HttpMethod.POST, _VIEWS, _CREATING, self._creation(new)))
                request = _commit_request(base.metadata, new)
                return self._loaded(self._request(HttpMethod.POST, _VIEW, _COMMITTING, request))
            except (RequestException, iceberg.ServerError, iceberg.ServiceUnavailableError) as error:
                outcome = outcome_of(lambda: self._outcome(base, new), new.properties)
                if outcome is not Outcome.WON:
                    reason = CatalogError(shown_error(error, self.catalog.properties))
                    raise failure(outcome, ".".join(self.names), reason) from reason
                return self.refresh()

    def rename(self, names: tuple[str, ...]) -> None:
        """Give the view another name. Raises NoSuchViewError, ViewAlreadyExistsError or NoSuchNamespaceError."""
        self.refresh()
        with catalog_errors(self.catalog, names):
            refuse_missing_namespace(self.catalog, names)
            request = {"source": _named(self.names), "destination": _named(names)}
            self._request(HttpMethod.POST, _RENAME, _CREATING, request)

    def drop(self) -> None:
        """Drop the view. Raises NoSuchViewError."""
        with catalog_errors(self.catalog, self.names):
            self._request(HttpMethod.DELETE, _VIEW, _LOADING)

    def _creation(self, new: ViewMetadata) -> dict[str, Any]:
        request = {
            "name": self.names[-1],
            "schema": schema_to_json(new.schema()),
            "view-version": view_version_to_json(new.current_version()),
            "properties": dict(new.properties),
        }
        return request | ({"location": new.location} if new.location else {})

    def _outcome(self, base: LoadedView | None, new: ViewMetadata) -> Outcome:
        """Return whether the view is as the commit would have made it; if not, the request may still be under way."""
        try:
            current = self.refresh().metadata
        except NoSuchViewError:
            return Outcome.UNKNOWN
        removed = base.metadata.properties.keys() - new.properties.keys() if base is not None else set()
        has_properties = (
            new.properties.items() <= current.properties.items() and not removed & current.properties.keys()
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
    needed = Endpoint(http_method=method, path=f"{API_PREFIX}/{endpoint}")
    # Old servers do not list what they offer: then the user says whether they offer views.
    claimed = property_as_bool(catalog.properties, VIEW_ENDPOINTS_SUPPORTED, False)
    if needed not in catalog._supported_endpoints and not claimed:
        raise UnsupportedError(
            f"catalog {catalog.name}: the server does not offer {needed}: if it does, set "
            f"{VIEW_ENDPOINTS_SUPPORTED}=true"
        )


def _commit_request(base: ViewMetadata, new: ViewMetadata) -> dict[str, Any]:
    uuid = base.view_uuid
    requirements = [] if uuid is None else [{"type": "assert-view-uuid", "uuid": str(uuid)}]
    return {"requirements": requirements, "updates": _updates(base, new)}


def _updates(base: ViewMetadata, new: ViewMetadata) -> list[dict[str, Any]]:
    """Return the updates that make `new` of `base`. Servers assign the ids and expire old versions themselves."""
    schema_ids = {schema.schema_id for schema in base.schemas}
    added_schemas = [schema for schema in new.schemas if schema.schema_id not in schema_ids]
    updates: list[dict[str, Any]] = [
        {"action": "add-schema", "schema": schema_to_json(schema)} for schema in added_schemas
    ]
    added = [version for version in new.versions if base.version_by_id(version.version_id) is None]
    for version in added:
        document = view_version_to_json(version)
        if version.schema_id not in schema_ids:
            document["schema-id"] = _LAST_ADDED
        updates.append({"action": "add-view-version", "view-version": document})
    if new.current_version_id != base.current_version_id:
        current = _LAST_ADDED if added else new.current_version_id
        updates.append({"action": "set-current-view-version", "view-version-id": current})
    if changed := dict(new.properties.items() - base.properties.items()):
        updates.append({"action": "set-properties", "updates": changed})
    if removed := sorted(base.properties.keys() - new.properties.keys()):
        updates.append({"action": "remove-properties", "removals": removed})
    return updates


def _same_current(left: ViewMetadata, right: ViewMetadata) -> bool:
    """Return whether the current versions have the same queries, defaults and columns, whatever their summaries."""
    versions = left.current_version(), right.current_version()
    definitions = [(v.representations, v.default_catalog, v.default_namespace) for v in versions]
    return definitions[0] == definitions[1] and same_columns(left.schema(), right.schema())


def _named(names: tuple[str, ...]) -> dict[str, Any]:
    return {"namespace": list(names[:-1]), "name": names[-1]}
