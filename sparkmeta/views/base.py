"""`BaseView`: a version of a view's metadata."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, Self

from sparkmeta.errors import (
    UnsupportedError,
    shown,
    with_command_line_message,
)
from sparkmeta.operations.view_operations import LoadedView
from sparkmeta.spec.view_metadata import (
    SQLViewRepresentation,
    ViewVersion,
)
from sparkmeta.views.sql_text import SPARK, translate_query

if TYPE_CHECKING:
    from uuid import UUID

    from pyiceberg.schema import Schema
    from pyspark.sql import SparkSession

    from sparkmeta.operations.view_operations import ViewOperations
    from sparkmeta.session import SessionSource
    from sparkmeta.spec.view_metadata import ViewHistoryEntry, ViewMetadata
    from sparkmeta.table import Table


class ViewCatalog(Protocol):
    """A catalog of the tables and views that queries name."""

    @property
    def name(self) -> str: ...

    def load_table(self, identifier: str | tuple[str, ...], spark: SparkSession | None = None) -> Table: ...

    def load_view(self, identifier: str | tuple[str, ...], spark: SparkSession | None = None) -> BaseView: ...


@dataclass(frozen=True)
class BaseView:
    """One version of a view's metadata.

    Attributes:
        identifier: its identifier in its catalog.
        metadata_location: the file that the metadata was read from.
        catalog: the catalog of the view, and of the tables that its queries name without a catalog.
    """

    identifier: tuple[str, ...]
    metadata: ViewMetadata
    metadata_location: str
    _operations: ViewOperations
    catalog: ViewCatalog
    _sessions: SessionSource

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
        """Return the query of the current version in a dialect, or None. The case of the dialect is ignored."""
        return self.current_version().sql_for(dialect)

    def sql(self, dialect: str = SPARK, *, translate: bool = False) -> str:
        """Return the text of the query in a dialect, whose case is ignored.

        Args:
            dialect: such as `spark` or `trino`.
            translate: if there is no such query, have sqlglot translate the first one.

        Raises:
            UnsupportedError: there is no such query, and `translate` is false or the translation fails.
        """
        if (query := self.sql_for(dialect)) is not None:
            return query.sql
        queries = self.current_version().sql_representations
        if not queries or not translate:
            dialects = [query.dialect for query in queries]
            problem = f"{self.full_name}: no query in the dialect {shown(dialect)}, only in {dialects}"
            in_python, on_command_line = (
                f"{problem}: {option} translates one" if queries else problem
                for option in ("translate=True", "--translate")
            )
            raise with_command_line_message(UnsupportedError(in_python), on_command_line)
        return translate_query(queries[0].sql, queries[0].dialect, dialect, self.full_name)

    def refresh(self) -> Self:
        """Return the current version of the view.

        Raises:
            NoSuchViewError: the view is gone.
            ValidationError: another view has taken its place.
        """
        return self._at(self._operations.refresh())

    def _at(self, loaded: LoadedView) -> Self:
        """Return the view at another version of its metadata."""
        return replace(self, metadata=loaded.metadata, metadata_location=loaded.metadata_location)
