"""`View`: a named query over tables and other views, its versions and its rows."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version as package_version
from typing import TYPE_CHECKING

from pyiceberg.view.metadata import ViewVersion as PyIcebergViewVersion

from sparkmeta.checks import NAMES, property_texts, string_map
from sparkmeta.errors import (
    CommitFailedError,
    ValidationError,
    shown,
)
from sparkmeta.operations.view_operations import LoadedView
from sparkmeta.spec.json_node import JsonNode
from sparkmeta.spec.table_properties import commit_retries
from sparkmeta.spec.view_metadata import (
    SQLViewRepresentation,
    ViewVersion,
    replace_view,
    roll_back_view,
    set_view_properties,
    view_version_from_json,
)
from sparkmeta.views.base import BaseView, ViewCatalog

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyspark.sql import DataFrame, SparkSession

    from sparkmeta.spec.view_metadata import ViewMetadata


# A version of a view: SQL text by dialect, or the whole version.
Definition = Mapping[str, str] | ViewVersion | PyIcebergViewVersion


@dataclass(frozen=True)
class View(BaseView):
    """One version of a view's metadata.

    Methods that change the view commit at once, and return the new version. This object does not change.
    """

    def to_df(
        self,
        *,
        catalogs: Mapping[str, ViewCatalog] | None = None,
        translate: bool = False,
        spark: SparkSession | None = None,
    ) -> DataFrame:
        """Return the rows of the view: its Spark query over the current tables and views of this catalog.

        Names of tables are never looked up in the session. A name without a namespace is in the version's default
        namespace. A name without a catalog is in the version's default catalog, or else in the view's. Columns have
        the names, types and comments of the view's schema.

        Args:
            catalogs: other catalogs that the view, or a view in its query, names.
            translate: if a view has no Spark query, have sqlglot translate its first one; `view.sql(translate=True)`
                shows it.
            spark: the session. Defaults to the one that the view was loaded with, or else the active one, or else a new
                local one.

        Raises:
            UnsupportedError: a view has no Spark query, and it is not to be translated or can't be; a query uses
                time travel; or sqlglot is not installed.
            NoSuchTableError: the query names a table that does not exist.
            ValidationError: the query is invalid, refers to its own view, names an unknown catalog, or has other
                columns than the view's schema.
        """
        from sparkmeta.views.rows import ViewReader

        session = self._sessions.for_caller(spark).get()
        return ViewReader(session, catalogs or {}, translate).read(self)

    # -- Changes ----------------------------------------------------------------------------------------------------

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
        texts = property_texts(f"{self.full_name}: properties", properties)

        def replaced(base: ViewMetadata) -> ViewMetadata:
            current = base.current_version()
            version = as_version(view_version, current.default_namespace, current.default_catalog)
            return replace_view(base, schema or base.schema(), version, texts)

        return self._commit(replaced)

    def add_dialect(self, dialect: str, sql: str) -> View:
        """Add a query in another dialect to the current version's.

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
        """Set properties, such as `comment`. Raises ValidationError for an invalid key or value."""
        name = f"{self.full_name}: properties"
        texts = property_texts(name, properties) | property_texts(name, more)
        return self._commit(lambda base: set_view_properties(base, texts))

    def remove_properties(self, *keys: str) -> View:
        """Remove properties. Properties that the view does not have are ignored.

        Raises:
            ValidationError: a key is not a string.
        """
        NAMES.check(f"{self.full_name}: keys", keys)
        return self._commit(lambda base: set_view_properties(base, {}, keys))

    def _commit(self, change: Callable[[ViewMetadata], ViewMetadata]) -> View:
        """Apply a change to the newest version until it is committed, by the properties `commit.retry.*`."""
        view, retries = self, commit_retries(self.metadata.properties)
        started = time.monotonic()
        for attempt in range(retries.count + 1):
            new_metadata = change(view.metadata)
            if new_metadata == view.metadata:
                # If the current version differs from the loaded one, the change has an effect.
                view = view.refresh()
                new_metadata = change(view.metadata)
                if new_metadata == view.metadata:
                    return view
            try:
                return view._at(
                    view._operations.commit(LoadedView(view.metadata_location, view.metadata), new_metadata)
                )
            except CommitFailedError:
                if attempt == retries.count or (time.monotonic() - started) * 1000 > retries.total_ms:
                    raise
            time.sleep(retries.wait(attempt))
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
    texts = string_map("view_version", definition)
    queries = tuple(SQLViewRepresentation(sql, dialect) for dialect, sql in texts.items())
    summary = {"engine-name": "sparkmeta", "engine-version": package_version("sparkmeta")}
    return ViewVersion(0, 0, _now_ms(), summary, queries, default_namespace, default_catalog)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
