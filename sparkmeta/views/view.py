"""`View`: a named query over tables and other views, its versions and its rows."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version as package_version
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

from pyiceberg.view.metadata import ViewVersion as PyIcebergViewVersion
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F
from pyspark.sql import types as spark

from sparkmeta.checks import NAMES, property_texts, string_map
from sparkmeta.columns.types import spark_type
from sparkmeta.errors import (
    CommitFailedError,
    NoSuchTableError,
    NoSuchViewError,
    UnsupportedError,
    ValidationError,
    first_line,
    shown,
)
from sparkmeta.operations.view_operations import LoadedView
from sparkmeta.session import resolve_session
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
from sparkmeta.views.sql_text import SPARK, parse_query, translate_query

if TYPE_CHECKING:
    from uuid import UUID

    from pyiceberg.schema import Schema
    from pyiceberg.types import NestedField
    from pyspark.sql import Column, DataFrame, SparkSession

    from sparkmeta.operations.view_operations import ViewOperations
    from sparkmeta.spec.view_metadata import ViewHistoryEntry, ViewMetadata
    from sparkmeta.table import Table


# -- `BaseView` -------------------------------------------------------------------------------------------------------


class ViewCatalog(Protocol):
    """A catalog, which has the tables and views that queries name."""

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
        operations: load and commit newer versions.
        catalog: has the view, and the tables that its queries name without a catalog.
        spark: the session that it was loaded with, if any.
    """

    identifier: tuple[str, ...]
    metadata: ViewMetadata
    metadata_location: str
    operations: ViewOperations
    catalog: ViewCatalog
    spark: SparkSession | None = None

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

    def sql(self, dialect: str = SPARK, *, translate: bool = False) -> str:
        """Return the text of the query in a dialect, of any case.

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
            hint = ": translate=True translates one" if queries else ""
            raise UnsupportedError(
                f"{self.full_name}: no query in the dialect {shown(dialect)}, only in {dialects}{hint}"
            )
        return translate_query(queries[0].sql, queries[0].dialect, dialect, self.full_name)

    def refresh(self) -> Self:
        """Return the current version of the view.

        Raises:
            NoSuchViewError: the view is gone.
            ValidationError: another view has taken its place.
        """
        return self.at(self.operations.refresh())

    def at(self, loaded: LoadedView) -> Self:
        """Return the view at another version of its metadata."""
        return replace(self, metadata=loaded.metadata, metadata_location=loaded.metadata_location)


# -- The rows of a view -----------------------------------------------------------------------------------------------


_INTEGERS = (spark.ByteType, spark.ShortType, spark.IntegerType, spark.LongType)
_FLOATS = (spark.FloatType, spark.DoubleType)

_log = logging.getLogger(__name__)


class _Place(NamedTuple):
    """A table or view that a query names.

    Attributes:
        catalog: The catalog that has it.
        identifier: Its identifier in the catalog.
        full_name: Its name in the query, completed by the defaults.
    """

    catalog: ViewCatalog
    identifier: tuple[str, ...]
    full_name: tuple[str, ...]

    @property
    def key(self) -> tuple[int, tuple[str, ...]]:
        """Equal for all names of one table. It has the catalog's id, since different catalogs may share a name."""
        return id(self.catalog), self.identifier


@dataclass(frozen=True)
class ViewReader:
    """Reads views and the views in their queries.

    Attributes:
        catalogs: The catalogs that queries may name, in addition to each view's own.
        translate: Whether queries of other dialects are translated.
        above: The views whose queries are being read, outermost first.
    """

    session: SparkSession
    catalogs: Mapping[str, ViewCatalog]
    translate: bool
    above: tuple[_Place, ...] = ()

    def read(self, view: BaseView) -> DataFrame:
        """Return the rows of a view; see `View.to_df`."""
        place = _Place(view.catalog, view.identifier, (view.catalog.name, *view.identifier))
        keys = [outer.key for outer in self.above]
        if place.key in keys:
            circle = (*self.above[keys.index(place.key) :], place)
            path = " -> ".join(".".join(outer.full_name) for outer in circle)
            raise ValidationError(f"{view.full_name}: its query refers to itself: {path}")
        frame = replace(self, above=(*self.above, place))._run(view)
        return _as_schema(frame, view.schema().fields, view.full_name)

    def _run(self, view: BaseView) -> DataFrame:
        text = view.sql(SPARK, translate=self.translate)
        if view.sql_for(SPARK) is None:
            _log.info("%s: translated query: %s", view.full_name, text)
        query = parse_query(text, view.full_name)
        places = {table: self._resolve(view, table.names) for table in query.tables}
        distinct = {place.key: place for place in places.values()}
        frames = {key: f"t{n}" for n, key in enumerate(distinct)}
        template = query.template(
            {table: frames[place.key] for table, place in places.items()},
            {table: place.full_name for table, place in places.items()},
        )
        rows: dict[str, Any] = {frames[key]: self._load(view, place) for key, place in distinct.items()}
        try:
            result = self.session.sql(template, **rows)
            result.schema  # noqa: B018  on Spark Connect, the query is analyzed by this
        except AnalysisException as error:
            raise ValidationError(f"{view.full_name}: Spark refuses its query: {first_line(error)}") from error
        return result

    def _resolve(self, view: BaseView, names: tuple[str, ...]) -> _Place:
        catalogs = {view.catalog.name: view.catalog, **self.catalogs}
        if len(names) > 1 and names[0] in catalogs:
            return _Place(catalogs[names[0]], names[1:], names)
        version = view.current_version()
        identifier = names if len(names) > 1 else (*version.default_namespace, *names)
        default = version.default_catalog
        if default is None:
            return _Place(view.catalog, identifier, (view.catalog.name, *identifier))
        if default not in catalogs:
            raise ValidationError(
                f"{view.full_name}: its default catalog is {shown(default)}, and it is loaded from "
                f"{shown(view.catalog.name)}: pass catalogs={{{default!r}: ...}}"
            )
        return _Place(catalogs[default], identifier, (default, *identifier))

    def _load(self, view: BaseView, place: _Place) -> DataFrame:
        try:
            return place.catalog.load_table(place.identifier, self.session).scan().to_df()
        except NoSuchTableError as error:
            try:
                nested = place.catalog.load_view(place.identifier, self.session)
            except (NoSuchViewError, UnsupportedError):
                raise NoSuchTableError(
                    f"{view.full_name}: its query names {'.'.join(place.identifier)}, which is not a table or view of "
                    f"catalog {place.catalog.name}"
                ) from error
        return self.read(nested)


def _as_schema(frame: DataFrame, fields: tuple[NestedField, ...], view: str) -> DataFrame:
    """Return rows with the names, types and comments of a view's schema; columns are matched by position."""
    actual = [field.dataType for field in frame.schema.fields]
    if len(actual) != len(fields):
        raise ValidationError(f"{view}: its query has {len(actual)} columns, and its schema {len(fields)}")
    names = [f"c{n}" for n in range(len(fields))]
    columns = [
        _as_type(F.col(name), kind, spark_type(field.field_type), f"{view}: column {field.name}").alias(
            field.name, metadata={"comment": field.doc} if field.doc else {}
        )
        for name, kind, field in zip(names, actual, fields, strict=True)
    ]
    return frame.toDF(*names).select(*columns)


def _as_type(column: Column, actual: spark.DataType, expected: spark.DataType, place: str) -> Column:
    """Cast a column to the schema's type if that keeps every value. Narrowing of integers is checked when it runs."""
    if actual.simpleString() == expected.simpleString():
        return column
    if isinstance(actual, spark.NullType) or _widens(actual, expected):
        return column.cast(expected)
    if isinstance(actual, _INTEGERS) and isinstance(expected, _INTEGERS):
        message = F.concat(
            F.lit(f"{place} is "), column.cast("string"), F.lit(f", too large for {expected.simpleString()}")
        )
        fits = column.try_cast(expected)
        return F.when(fits.isNotNull() | column.isNull(), fits).otherwise(F.raise_error(message).cast(expected))
    raise ValidationError(
        f"{place}: the query has type {actual.simpleString()}, and the view's schema {expected.simpleString()}"
    )


def _widens(actual: spark.DataType, expected: spark.DataType) -> bool:
    if isinstance(actual, spark.DecimalType) and isinstance(expected, spark.DecimalType):
        more_digits = expected.precision - expected.scale >= actual.precision - actual.scale
        return more_digits and expected.scale >= actual.scale
    return any(
        isinstance(actual, kinds)
        and isinstance(expected, kinds)
        and kinds.index(type(actual)) < kinds.index(type(expected))
        for kinds in (_INTEGERS, _FLOATS)
    )


# -- `View` -----------------------------------------------------------------------------------------------------------


# A version of a view: SQL text by dialect, or all of it.
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

        Names of tables are never looked up in the session. A name without namespace is in the version's default
        namespace, and one without catalog in its default catalog, or else in the view's. Columns have the names, types
        and comments of the view's schema.

        Args:
            catalogs: other catalogs that the view, or a view in its query, names.
            translate: if a view has no Spark query, have sqlglot translate its first one; `view.sql(translate=True)`
                shows it.
            spark: the session. Defaults to the one that the view was loaded with, or else the active one.

        Raises:
            UnsupportedError: a view has no Spark query, and it is not to be translated or can't be; a query uses
                time travel; or sqlglot is not installed.
            NoSuchTableError: the query names a table that does not exist.
            ValidationError: the query is invalid, refers to its own view, names an unknown catalog, or has other
                columns than the view's schema.
        """
        session = resolve_session(spark or self.spark)
        return ViewReader(session, catalogs or {}, translate).read(self)

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
            new = change(view.metadata)
            if new == view.metadata:
                # If the current version differs from the loaded one, the change has an effect.
                view = view.refresh()
                new = change(view.metadata)
                if new == view.metadata:
                    return view
            try:
                return view.at(view.operations.commit(LoadedView(view.metadata_location, view.metadata), new))
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
