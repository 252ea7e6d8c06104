"""`View`: one version of a view, with pyiceberg's names, and its changes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version as package_version
from typing import TYPE_CHECKING, Protocol

from pyiceberg.view.metadata import ViewVersion as PyIcebergViewVersion

from sparkmeta.edit.attempts import Retry
from sparkmeta.errors import CommitFailedError, ValidationError, shown
from sparkmeta.operations.view_operations import LoadedView
from sparkmeta.spec.json_node import JsonNode
from sparkmeta.spec.view_metadata import SQLViewRepresentation, ViewVersion, view_version_from_json
from sparkmeta.spec.view_updates import replace_view, roll_back_view, set_view_properties

if TYPE_CHECKING:
    from uuid import UUID

    from pyiceberg.schema import Schema
    from pyspark.sql import SparkSession

    from sparkmeta.operations.view_operations import ViewOperations
    from sparkmeta.spec.view_metadata import ViewHistoryEntry, ViewMetadata
    from sparkmeta.table import Table

# A version of a view: SQL text by dialect, or all of it.
Definition = Mapping[str, str] | ViewVersion | PyIcebergViewVersion


class ViewCatalog(Protocol):
    """The catalog of a view, which has the tables and views that its queries name."""

    @property
    def name(self) -> str: ...

    def load_table(self, identifier: str | tuple[str, ...], spark: SparkSession | None = None) -> Table: ...

    def load_view(self, identifier: str | tuple[str, ...], spark: SparkSession | None = None) -> View: ...


@dataclass(frozen=True)
class View:
    """One version of a view's metadata.

    Methods that change the view commit at once, and return the new version. This object does not change.
    """

    identifier: tuple[str, ...]
    metadata: ViewMetadata
    metadata_location: str
    operations: ViewOperations
    catalog: ViewCatalog
    spark: SparkSession | None = None

    # -- metadata ---------------------------------------------------------------------------------------------------

    def name(self) -> tuple[str, ...]:
        """Return the view's identifier."""
        return self.identifier

    @property
    def full_name(self) -> str:
        """The identifier as text."""
        return ".".join(self.identifier)

    def location(self) -> str:
        """Return the view's base location."""
        return self.metadata.location

    def uuid(self) -> UUID | None:
        """Return the view's UUID; None if its metadata is of the view spec's first draft."""
        return self.metadata.view_uuid

    @property
    def properties(self) -> dict[str, str]:
        return dict(self.metadata.properties)

    @property
    def comment(self) -> str | None:
        """The property `comment`."""
        return self.metadata.properties.get("comment")

    def schema(self) -> Schema:
        """Return the schema of the current version."""
        return self.metadata.schema()

    def schemas(self) -> dict[int, Schema]:
        """Return all schemas by id."""
        return {schema.schema_id: schema for schema in self.metadata.schemas}

    @property
    def versions(self) -> list[ViewVersion]:
        """The versions that have not expired."""
        return list(self.metadata.versions)

    def version(self, version_id: int) -> ViewVersion | None:
        """Return the version with an id, or None."""
        return self.metadata.version_by_id(version_id)

    def current_version(self) -> ViewVersion:
        """Return the current version."""
        return self.metadata.current_version()

    def history(self) -> list[ViewHistoryEntry]:
        """Return the log of current versions and when they became current, oldest first."""
        return list(self.metadata.version_log)

    def sql_for(self, dialect: str) -> SQLViewRepresentation | None:
        """Return the query of the current version in a dialect, of any case, or None."""
        return self.current_version().sql_for(dialect)

    def refresh(self) -> View:
        """Return the current version of the view.

        Raises:
            NoSuchViewError: the view is gone.
            ValidationError: another view has taken its place.
        """
        return self.at(self.operations.refresh())

    def at(self, loaded: LoadedView) -> View:
        """Return the view at another version of its metadata."""
        return replace(self, metadata=loaded.metadata, metadata_location=loaded.metadata_location)

    # -- changing ---------------------------------------------------------------------------------------------------

    def replace(
        self, view_version: Definition, schema: Schema | None = None, properties: Mapping[str, str] | None = None
    ) -> View:
        """Replace queries and schema, and add properties.

        Args:
            view_version: SQL text by dialect, with the current version's default catalog and namespace; or a version.
            schema: the columns of the queries. Defaults to the current schema.
            properties: properties to set.

        Raises:
            ValidationError: the version lacks a dialect of the current one, and the property
                `replace.drop-dialect.allowed` is not true; or a property has an invalid value.
            CommitFailedError, CommitStateUnknownError: see `ViewOperations.commit`.
        """

        def replaced(base: ViewMetadata) -> ViewMetadata:
            current = base.current_version()
            version = as_version(view_version, current.default_namespace, current.default_catalog)
            return replace_view(base, schema or base.schema(), version, properties)

        return self._commit(replaced)

    def add_dialect(self, dialect: str, sql: str) -> View:
        """Add the query in another dialect to those of the current version.

        Raises:
            ValidationError: the view has a query in the dialect.
            UnsupportedError: the view has a representation of another type than SQL, which can't be written.
        """

        def added(base: ViewMetadata) -> ViewMetadata:
            current = base.current_version()
            if current.sql_for(dialect) is not None:
                raise ValidationError(
                    f"{self.full_name}: there is a query in the dialect {shown(dialect)}: replace() it"
                )
            representations = (*current.representations, SQLViewRepresentation(sql, dialect))
            version = replace(current, representations=representations, timestamp_ms=_now_ms(), unknown={})
            return replace_view(base, base.schema(), version)

        return self._commit(added)

    def rollback(self, version_id: int | None = None) -> View:
        """Make an earlier version current again.

        Args:
            version_id: defaults to the version that was current before.

        Raises:
            ValidationError: the view does not have the version, or see `replace`.
        """

        def rolled_back(base: ViewMetadata) -> ViewMetadata:
            earlier = [entry.version_id for entry in base.version_log if entry.version_id != base.current_version_id]
            if version_id is None and not earlier:
                raise ValidationError(f"{self.full_name}: its log has no earlier version")
            return roll_back_view(base, earlier[-1] if version_id is None else version_id, _now_ms())

        return self._commit(rolled_back)

    def set_properties(self, properties: Mapping[str, str] | None = None, **more: str) -> View:
        """Set properties, such as `comment`. Raises ValidationError for an invalid value."""
        return self._commit(lambda base: set_view_properties(base, {**(properties or {}), **more}))

    def remove_properties(self, *keys: str) -> View:
        """Remove properties. Those that the view does not have are ignored."""
        return self._commit(lambda base: set_view_properties(base, {}, keys))

    def _commit(self, change: Callable[[ViewMetadata], ViewMetadata]) -> View:
        """Apply a change to the newest version until it is committed, by the properties `commit.retry.*`."""
        view, retry = self, Retry.of(self.metadata.properties)
        started = time.monotonic()
        for attempt in range(retry.retries + 1):
            new = change(view.metadata)
            if new == view.metadata:
                return view
            try:
                return view.at(view.operations.commit(LoadedView(view.metadata_location, view.metadata), new))
            except CommitFailedError:
                if attempt == retry.retries or (time.monotonic() - started) * 1000 > retry.total_ms:
                    raise
            time.sleep(retry.wait(attempt))
            view = view.refresh()
        raise AssertionError("unreachable")

    def __repr__(self) -> str:
        return f"View({self.full_name}, version {self.metadata.current_version_id}, {self.metadata_location})"


def as_version(
    definition: Definition, default_namespace: tuple[str, ...], default_catalog: str | None = None
) -> ViewVersion:
    """Return a version whose ids are yet to be assigned.

    Args:
        definition: SQL text by dialect, or a version of sparkmeta or pyiceberg.
        default_namespace: the namespace of tables that SQL text names without one.
        default_catalog: the catalog of tables that SQL text names without one.

    Raises:
        ValidationError: a version of pyiceberg has two queries in a dialect.
    """
    if isinstance(definition, ViewVersion):
        return replace(definition, default_namespace=tuple(definition.default_namespace))
    if isinstance(definition, PyIcebergViewVersion):
        return view_version_from_json(JsonNode(json.loads(definition.model_dump_json()), "view version"))
    queries = tuple(SQLViewRepresentation(sql, dialect) for dialect, sql in definition.items())
    summary = {"engine-name": "sparkmeta", "engine-version": package_version("sparkmeta")}
    return ViewVersion(0, 0, _now_ms(), summary, queries, default_namespace, default_catalog)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
