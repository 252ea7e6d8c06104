"""The rows of a view: its Spark query over DataFrames of tables and other views."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F
from pyspark.sql import types as spark

from sparkmeta.errors import (
    NoSuchTableError,
    NoSuchViewError,
    UnsupportedError,
    ValidationError,
    first_line,
    shown,
)
from sparkmeta.expr.types import spark_type
from sparkmeta.views.base import BaseView, ViewCatalog
from sparkmeta.views.sql_text import SPARK, parse_query

if TYPE_CHECKING:
    from pyiceberg.types import NestedField
    from pyspark.sql import Column, DataFrame, SparkSession


_INTEGERS = (spark.ByteType, spark.ShortType, spark.IntegerType, spark.LongType)
_FLOATS = (spark.FloatType, spark.DoubleType)

_log = logging.getLogger(__name__)


class _Relation(NamedTuple):
    """A table or view that a query names.

    Attributes:
        catalog: the catalog that contains it.
        identifier: its identifier in the catalog.
        full_name: its name in the query, completed by the defaults.
    """

    catalog: ViewCatalog
    identifier: tuple[str, ...]
    full_name: tuple[str, ...]

    @property
    def key(self) -> tuple[int, tuple[str, ...]]:
        """A key that all names of one table share. It includes the catalog's id, since catalogs may share a name."""
        return id(self.catalog), self.identifier


@dataclass(frozen=True)
class ViewReader:
    """Reads views and the views in their queries.

    Attributes:
        catalogs: the catalogs that queries may name, in addition to each view's own.
        translate: whether queries of other dialects are translated.
        above: the views whose queries are being read, outermost first.
    """

    session: SparkSession
    catalogs: Mapping[str, ViewCatalog]
    translate: bool
    above: tuple[_Relation, ...] = ()

    def read(self, view: BaseView) -> DataFrame:
        """Return the rows of a view; see `View.to_df`."""
        relation = _Relation(view.catalog, view.identifier, (view.catalog.name, *view.identifier))
        keys = [enclosing.key for enclosing in self.above]
        if relation.key in keys:
            cycle = (*self.above[keys.index(relation.key) :], relation)
            path = " -> ".join(".".join(member.full_name) for member in cycle)
            raise ValidationError(f"{view.full_name}: its query refers to itself: {path}")
        frame = replace(self, above=(*self.above, relation))._run(view)
        return _as_schema(frame, view.schema().fields, view.full_name)

    def _run(self, view: BaseView) -> DataFrame:
        text = view.sql(SPARK, translate=self.translate)
        if view.sql_for(SPARK) is None:
            _log.info("%s: translated query: %s", view.full_name, text)
        query = parse_query(text, view.full_name)
        relations = {table: self._resolve(view, table.names) for table in query.tables}
        distinct = {relation.key: relation for relation in relations.values()}
        frames = {key: f"t{index}" for index, key in enumerate(distinct)}
        template = query.template(
            {table: frames[relation.key] for table, relation in relations.items()},
            {table: relation.full_name for table, relation in relations.items()},
        )
        rows: dict[str, Any] = {frames[key]: self._load(view, relation) for key, relation in distinct.items()}
        try:
            result = self.session.sql(template, **rows)
            result.schema  # noqa: B018  on Spark Connect, the query is analyzed by this
        except AnalysisException as error:
            raise ValidationError(f"{view.full_name}: Spark refuses its query: {first_line(error)}") from error
        return result

    def _resolve(self, view: BaseView, names: tuple[str, ...]) -> _Relation:
        catalogs = {view.catalog.name: view.catalog, **self.catalogs}
        if len(names) > 1 and names[0] in catalogs:
            return _Relation(catalogs[names[0]], names[1:], names)
        version = view.current_version()
        identifier = names if len(names) > 1 else (*version.default_namespace, *names)
        default = version.default_catalog
        if default is None:
            return _Relation(view.catalog, identifier, (view.catalog.name, *identifier))
        if default not in catalogs:
            raise ValidationError(
                f"{view.full_name}: its default catalog is {shown(default)}, and it is loaded from "
                f"{shown(view.catalog.name)}: pass catalogs={{{default!r}: ...}}"
            )
        return _Relation(catalogs[default], identifier, (default, *identifier))

    def _load(self, view: BaseView, relation: _Relation) -> DataFrame:
        try:
            return relation.catalog.load_table(relation.identifier, self.session).scan().to_df()
        except NoSuchTableError as error:
            try:
                nested = relation.catalog.load_view(relation.identifier, self.session)
            except (NoSuchViewError, UnsupportedError):
                raise NoSuchTableError(
                    f"{view.full_name}: its query names {'.'.join(relation.identifier)}, which is not a table or view "
                    f"of catalog {relation.catalog.name}"
                ) from error
        return self.read(nested)


def _as_schema(frame: DataFrame, fields: tuple[NestedField, ...], view: str) -> DataFrame:
    """Return rows with the names, types and comments of a view's schema; columns are matched by position."""
    actual = [field.dataType for field in frame.schema.fields]
    if len(actual) != len(fields):
        raise ValidationError(f"{view}: its query has {len(actual)} columns, and its schema {len(fields)}")
    names = [f"c{index}" for index in range(len(fields))]
    columns = [
        _as_type(F.col(name), kind, spark_type(field.field_type), f"{view}: column {field.name}").alias(
            field.name, metadata={"comment": field.doc} if field.doc else {}
        )
        for name, kind, field in zip(names, actual, fields, strict=True)
    ]
    return frame.toDF(*names).select(*columns)


def _as_type(column: Column, actual: spark.DataType, expected: spark.DataType, label: str) -> Column:
    """Cast a column to the schema's type if the cast keeps every value. Narrowed integers are checked at run time."""
    if actual.simpleString() == expected.simpleString():
        return column
    if isinstance(actual, spark.NullType) or _widens(actual, expected):
        return column.cast(expected)
    if isinstance(actual, _INTEGERS) and isinstance(expected, _INTEGERS):
        message = F.concat(
            F.lit(f"{label} is "), column.cast("string"), F.lit(f", too large for {expected.simpleString()}")
        )
        cast_column = column.try_cast(expected)
        return F.when(cast_column.isNotNull() | column.isNull(), cast_column).otherwise(
            F.raise_error(message).cast(expected)
        )
    raise ValidationError(
        f"{label}: the query has type {actual.simpleString()}, and the view's schema {expected.simpleString()}"
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
