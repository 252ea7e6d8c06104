"""Relations of entries: few are an Arrow table on the driver, many a DataFrame. Both have the same operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce, wraps
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, cast

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.expr import evaluate, sql
from sparkmeta.expr.arrays import whole
from sparkmeta.session import map_arrow, map_on_driver, materialize, selectable_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from sparkmeta.expr.sql import Aliased, Sql
    from sparkmeta.session import MapFunction
    from sparkmeta.storage.files import FileAccess

Relation: TypeAlias = "pa.Table | DataFrame"
Rows = TypeVar("Rows", bound="Relation")
_Operation = TypeVar("_Operation", bound="Callable[..., Any]")

_KEY = "key_of_the_row"
_MATCHES = "entries_with_the_key"
_COUNT = "rows_with_the_key"


class HasSession(Protocol):
    """An object that has or starts a session, such as a `TableState`."""

    @property
    def spark(self) -> SparkSession: ...


class HasAccess(HasSession, Protocol):
    """An object that also knows whether there is a session at all."""

    @property
    def access(self) -> FileAccess: ...


# Maximum number of rows that are collected on the driver.
FEW_ROWS = 20_000


def is_few(count: int, source: HasAccess) -> bool:
    """Return whether this number of rows is collected on the driver."""
    return count <= source.access.limit(FEW_ROWS)


# -- Tell tables from DataFrames --------------------------------------------------------------------------------------


def _on_driver(of_tables: Callable[..., Any], sides: int = 1) -> Callable[[_Operation], _Operation]:
    """Return a decorator for an operation of DataFrames, which then accepts tables too.

    Args:
        of_tables: the operation of tables, with the same arguments.
        sides: the number of relations among the arguments, 1 or 2: they come first. The operation of DataFrames gets
            them if one of them is a DataFrame.
    """

    def decorate(of_frames: _Operation) -> _Operation:
        @wraps(of_frames)
        def operation(rows: Relation, *args: Any, **kwargs: Any) -> Any:
            are_tables = isinstance(rows, pa.Table) and (sides == 1 or isinstance(args[0], pa.Table))
            return (of_tables if are_tables else of_frames)(rows, *args, **kwargs)

        return cast("_Operation", operation)

    return decorate


def alike(rows: Relation, others: Relation) -> tuple[Relation, Relation]:
    """Return two tables or two DataFrames. If only the second is a table, Spark sends it to each task.

    Call this before you compare expressions of both: Spark and Arrow compute different texts and hashes.
    """
    if isinstance(rows, pa.Table) and not isinstance(others, pa.Table):
        rows = selectable_frame(others.sparkSession, rows)
    if isinstance(others, pa.Table) and not isinstance(rows, pa.Table):
        others = broadcast(selectable_frame(rows.sparkSession, others))
    return rows, others


def _same(rows: pa.Table) -> pa.Table:
    return rows


@_on_driver(lambda rows, source: selectable_frame(source.spark, rows))
def frame_of(rows: Relation, source: HasSession) -> DataFrame:  # noqa: ARG001
    """Return the rows as a DataFrame."""
    return rows


@_on_driver(_same)
def collected(rows: Relation) -> pa.Table:
    """Return all rows in memory. For a DataFrame, runs a job."""
    return rows.toArrow()


@_on_driver(_same)
def computed(rows: Rows) -> Rows:
    """Compute the rows once if they are a DataFrame. This runs a job."""
    return cast("Rows", materialize(rows))


@_on_driver(_same)
def broadcast(rows: Rows) -> Rows:
    """Return rows that Spark sends to each task when it joins them."""
    from pyspark.sql import functions as F

    return cast("Rows", F.broadcast(rows))


def few(rows: Relation, source: HasAccess) -> pa.Table | None:
    """Return rows as a table; None if there are many, unless there is no Spark. For a DataFrame, runs a job."""
    allowed = source.access.limit(FEW_ROWS)
    first_rows = head(rows, allowed + 1)
    return first_rows if len(first_rows) <= allowed else None


def few_or_many(rows: Relation, source: HasAccess) -> Relation:
    """Return rows as a table if there are few; otherwise compute them once. For a DataFrame, runs jobs."""
    few_rows = few(rows, source)
    return materialize(frame_of(rows, source)) if few_rows is None else few_rows


# -- Choose rows and columns ------------------------------------------------------------------------------------------


@_on_driver(evaluate.where)
def where(rows: Rows, condition: Sql) -> Rows:
    """Return the rows for which a condition is true."""
    return cast("Rows", rows.where(condition.text))


@_on_driver(evaluate.select)
def select(rows: Rows, columns: Sequence[Aliased]) -> Rows:
    """Return columns that are computed from rows, by their names."""
    return cast("Rows", rows.selectExpr(*sql.texts(columns)))


@_on_driver(evaluate.with_columns)
def with_columns(rows: Rows, *columns: Aliased) -> Rows:
    """Return rows with further columns."""
    return cast("Rows", rows.selectExpr("*", *sql.texts(columns)))


@_on_driver(lambda rows: rows.column_names)
def names(rows: Relation) -> list[str]:
    """Return the names of the columns."""
    return rows.columns


def some_columns(rows: Rows, columns: Iterable[str]) -> Rows:
    """Return the columns with the given names, without the names that the rows lack."""
    present = names(rows)
    return cast("Rows", rows.select([name for name in columns if name in present]))


def columns_of(rows: Rows, paths: Mapping[str, str]) -> Rows:
    """Return columns by new name -> path."""
    return select(rows, [sql.col(path).alias(name) for name, path in paths.items()])


@_on_driver(lambda rows, column: pa.Table.from_struct_array(pc.list_flatten(whole(rows.column(column)))))
def exploded(rows: Rows, column: str) -> Rows:
    """Return the structs in the lists of a column, as rows."""
    return cast("Rows", rows.selectExpr(f"explode({column}) AS {column}").select(f"{column}.*"))


@_on_driver(partial(map_on_driver, runs=True))
def mapped(rows: Relation, function: MapFunction, schema: pa.Schema | StructType) -> Relation:
    """Apply a function to batches of rows, on the driver or, for a DataFrame, lazily in tasks.

    Args:
        rows: the rows.
        function: accepts batches of rows, and yields batches of `schema`.
        schema: the schema of the result.
    """
    return map_arrow(rows, function, schema)


@_on_driver(lambda rows, function, _: function(rows))
def mapped_together(rows: Relation, function: Callable[[pa.Table], pa.Table], schema: pa.Schema) -> Relation:
    """Apply a function to all rows at once: for a DataFrame lazily, in one task, and only if there are rows.

    Args:
        rows: the rows.
        function: accepts a table, and returns a table of `schema`.
        schema: the schema of the result.
    """
    from sparkmeta.arrow_types import spark_schema

    # PySpark mistakes a method for a function of two arguments.
    return rows.groupBy().applyInArrow(lambda table: function(table), spark_schema(schema))  # noqa: PLW0108


@_on_driver(lambda rows, count: rows.slice(0, count))
def limited(rows: Rows, count: int) -> Rows:
    """Return the first `count` rows."""
    return cast("Rows", rows.limit(count))


def nothing(rows: Rows) -> Rows:
    """Return an empty relation with the same columns."""
    return limited(rows, 0)


def head(rows: Relation, count: int) -> pa.Table:
    """Return the first `count` rows in memory. For many rows, runs a job."""
    return collected(limited(rows, count))


def tail(rows: Relation, count: int) -> pa.Table:
    """Return the last `count` rows in memory, for few rows. For a DataFrame, runs a job that returns all rows."""
    table = collected(rows)
    return table.slice(max(0, len(table) - count))


def first(rows: Relation, condition: Sql | None = None) -> dict[str, Any] | None:
    """Return a row that satisfies a condition; None if there is none. For many rows, runs a job."""
    matches = rows if condition is None else where(rows, condition)
    return next(iter(head(matches, 1).to_pylist()), None)


@_on_driver(lambda rows, columns: rows.sort_by([(name, "ascending") for name in columns]))
def ordered(rows: Rows, columns: Sequence[str]) -> Rows:
    """Return the rows in ascending order of columns."""
    return cast("Rows", rows.orderBy(*columns))


@_on_driver(lambda rows, columns, count: rows.sort_by([(name, "descending") for name in columns]).slice(0, count))
def largest(rows: Relation, columns: Sequence[str], count: int) -> pa.Table:
    """Return the first rows in descending order of columns, in memory. For a DataFrame, runs a job."""
    return rows.orderBy(*columns, ascending=False).limit(count).toArrow()


@_on_driver(lambda rows: iter(rows.column(0).to_pylist()))
def values(rows: Relation) -> Iterator[Any]:
    """Yield the values of the first column. The driver holds one partition of a DataFrame at a time."""
    return (row[0] for row in rows.toLocalIterator(prefetchPartitions=True))


@_on_driver(evaluate.typed)
def typed(rows: Rows, schema: pa.Schema) -> Rows:  # noqa: ARG001
    """Return a table with the columns and types of a schema. A DataFrame has them already."""
    return rows


@_on_driver(lambda rows, fields: rows.cast(pa.schema([fields.get(field.name, field) for field in rows.schema])))
def with_types(rows: Rows, fields: Mapping[str, pa.Field]) -> Rows:  # noqa: ARG001
    """Return the rows of a table with the types of fields, by their names. A DataFrame has these types already."""
    return rows


# -- Aggregate --------------------------------------------------------------------------------------------------------


@_on_driver(evaluate.grouped)
def grouped(rows: Rows, keys: Sequence[Aliased], aggregates: Sequence[Aliased]) -> Rows:
    """Return a row for each group of rows with equal keys.

    Args:
        rows: the rows.
        keys: the keys. Nulls are equal.
        aggregates: calls of `sum`, `min`, `max`, `first` and `collect_list`.
    """
    by_key = rows.groupBy(*(key.column() for key in keys))
    return cast("Rows", by_key.agg(*(aggregate.column() for aggregate in aggregates)))


def totals(rows: Relation, aggregates: Sequence[Aliased]) -> dict[str, Any]:
    """Return aggregates of all rows by their names; see `grouped`. For many rows, runs a job."""
    return dict(head(grouped(rows, [], aggregates), 1).to_pylist()[0])


@_on_driver(len)
def count(rows: Relation) -> int:
    """Count the rows. For many rows, runs a job."""
    return rows.count()


@_on_driver(lambda rows: len(rows) > 0)
def has_rows(rows: Relation) -> bool:
    """Return whether there are rows. Uses `collect`, which starts no job for local rows such as a root's."""
    return bool(rows.select(rows.columns[0]).limit(1).collect())


@_on_driver(lambda rows, columns: rows.group_by([*columns], use_threads=False).aggregate([]).select([*columns]))
def distinct_rows(rows: Rows, columns: Sequence[str]) -> Rows:
    """Return the distinct values of columns."""
    return cast("Rows", rows.select(*columns).distinct())


def distinct(rows: Relation, columns: Sequence[str]) -> pa.Table:
    """Return the distinct values of columns, in memory. For a DataFrame, runs a job."""
    return collected(distinct_rows(rows, columns))


@_on_driver(lambda rows, column: len(whole(rows.column(column)).flatten()) > 0)
def may_have_elements(rows: Relation, column: str) -> bool:  # noqa: ARG001
    """Return whether the lists in a column may have elements. Does not run a DataFrame."""
    return True


@_on_driver(lambda rows, column: {*whole(rows.column(column)).flatten().to_pylist()})
def elements(rows: Relation, column: str) -> set[Any]:
    """Return the distinct elements of the lists in a column. For a DataFrame, runs a job."""
    exploded_lists = rows.selectExpr(f"explode({column}) AS {_MATCHES}").distinct()
    return {*exploded_lists.toArrow().column(0).to_pylist()}


def _repeated_on_driver(rows: pa.Table, columns: Sequence[str]) -> dict[str, Any] | None:
    counts = rows.group_by([*columns]).aggregate([([], "count_all")])
    return first(counts.filter(pc.greater(counts.column("count_all"), 1)).drop_columns(["count_all"]))


@_on_driver(_repeated_on_driver)
def repeated(rows: Relation, columns: Sequence[str]) -> dict[str, Any] | None:
    """Return a key that several rows have; None if there is none. For many rows, runs jobs.

    Args:
        rows: the rows. Many are computed twice.
        columns: the columns of the key.
    """
    from pyspark.sql import functions as F

    # Spark shuffles hashes much faster than paths, and few keys are left to compare.
    hashes = rows.select(F.xxhash64(*columns).alias(_MATCHES))
    suspects = F.broadcast(hashes.groupBy(_MATCHES).agg(F.count("*").alias(_COUNT)).where(f"{_COUNT} > 1"))
    suspected = rows.select(*columns).join(suspects, F.xxhash64(*columns) == F.col(_MATCHES), "left_semi")
    counted = suspected.groupBy(*columns).agg(F.count("*").alias(_COUNT))
    return first(counted.where(f"{_COUNT} > 1").drop(_COUNT))


# -- Compare with other rows ------------------------------------------------------------------------------------------


def _beside_on_driver(rows: pa.Table, others: pa.Table, left: str, right: str) -> pa.Table:
    matches = others.take(evaluate.index_in(whole(rows.column(left)), whole(others.column(right))))
    return pa.table({name: table.column(name) for table in (rows, matches) for name in table.column_names})


@_on_driver(_beside_on_driver, sides=2)
def beside(rows: Relation, others: Relation, left: str, right: str) -> Relation:
    """Return the rows with the columns of the other row whose key is equal, or with nulls.

    Args:
        rows: the rows.
        others: rows of other columns with unique keys. Few of them are sent to each task.
        left: the key of `rows`. If it is a struct, nulls in it are equal.
        right: the key of `others`.
    """
    from pyspark.sql import functions as F

    rows, others = alike(rows, others)
    return rows.join(others, F.col(left) == F.col(right), "left")


def _matching_on_driver(rows: pa.Table, others: pa.Table, keys: Mapping[str, str], *, absent: bool = False) -> pa.Table:
    if len(keys) == 1:
        ((path, other_path),) = keys.items()
        values, other_values = evaluate.values(rows, sql.col(path)), evaluate.values(others, sql.col(other_path))
        has_match = evaluate.index_in(values, other_values).is_valid()
        return rows.filter(pc.invert(has_match) if absent else has_match)
    other_keys = set(_values(others, keys.values()))
    return rows.filter(pa.array([(key in other_keys) != absent for key in _values(rows, keys)], pa.bool_()))


def _values(rows: pa.Table, paths: Iterable[str]) -> Iterable[tuple[Any, ...]]:
    return zip(*(evaluate.values(rows, sql.col(path)).to_pylist() for path in paths), strict=True)


@_on_driver(_matching_on_driver, sides=2)
def matching(rows: Relation, others: Relation, keys: Mapping[str, str], *, absent: bool = False) -> Relation:
    """Return the rows whose key occurs in other rows, or with `absent` the rows whose key does not.

    Args:
        rows: the rows.
        others: the other rows.
        keys: path of a column -> its path in `others`. Values of the first column are never null. In further columns, a
            null equals a null.
        absent: whether to return the rows whose key is not in the others.
    """
    from pyspark.sql import functions as F

    other_names = [f"{_MATCHES}_{number}" for number in range(len(keys))]
    named = select(others, [sql.col(path).alias(name) for name, path in zip(other_names, keys.values(), strict=True)])
    rows, named = alike(rows, named)
    is_same = F.col(next(iter(keys))) == F.col(other_names[0])
    for path, name in list(zip(keys, other_names, strict=True))[1:]:
        is_same &= F.col(path).eqNullSafe(F.col(name))
    return rows.join(named, is_same, "left_anti" if absent else "left_semi")


def matching_key(rows: Relation, others: Relation, key: Sql) -> Relation:
    """Return the rows whose key occurs in other rows. Both have the columns that the key is computed from."""
    columns = names(rows)
    rows, others = alike(rows, others)
    with_key, keys = with_columns(rows, key.alias(_KEY)), select(others, [key.alias(_KEY)])
    return some_columns(matching(with_key, keys, {_KEY: _KEY}), columns)


def _among_on_driver(rows: pa.Table, column: str, values: pa.Array, *, absent: bool = False) -> pa.Table:
    is_among = pc.is_in(whole(rows.column(column)), values)
    return rows.filter(pc.invert(is_among) if absent else is_among)


@_on_driver(_among_on_driver)
def among(rows: Rows, column: str, values: pa.Array, *, absent: bool = False) -> Rows:
    """Return the rows whose value in a column is one of the values, or with `absent` the other rows.

    Spark sends the values to each task.
    """
    others = broadcast(selectable_frame(rows.sparkSession, pa.table({_MATCHES: values})))
    return cast("Rows", rows.join(others, rows[column] == others[_MATCHES], "left_anti" if absent else "left_semi"))


def _pairs_on_driver(rows: pa.Table, others: pa.Table, key: str) -> pa.Table:
    sides = {"left": rows, "right": others}
    keyed_rows = [
        pa.table({key: table.column(key), name: pa.array(range(len(table)), pa.int64())})
        for name, table in sides.items()
    ]
    matches = keyed_rows[0].join(keyed_rows[1], key, join_type="inner")
    return pa.table(
        {
            column: table.column(column).take(matches.column(name))
            for name, table in sides.items()
            for column in table.column_names
        }
    )


@_on_driver(_pairs_on_driver)
def pairs(rows: Relation, others: Relation, key: str) -> Relation:
    """Return the pairs of rows with equal keys, which are texts, with the columns of both. Null matches no key.

    Args:
        rows: the rows.
        others: rows of other columns, except for the key. They are few if `rows` are. Few are sent to each task.
        key: the column to compare.
    """
    rows, others = alike(rows, others)
    return rows.join(others, key)


# -- Unite ------------------------------------------------------------------------------------------------------------


@_on_driver(lambda left, right, source: _concatenated([left, right], "default"), sides=2)  # noqa: ARG005
def union(left: Relation, right: Relation, source: HasSession) -> Relation:
    """Return the rows of two relations. A column that only one of them has is null in rows of the other."""
    return frame_of(left, source).unionByName(frame_of(right, source), allowMissingColumns=True)


def united(relations: Sequence[Relation], source: HasSession) -> list[Relation]:
    """Return the union of relations as a list; empty for no relations. All rows are few if all relations are."""
    if relations and all(isinstance(rows, pa.Table) for rows in relations):
        return [_concatenated(relations, "permissive").combine_chunks()]
    return [*at_most_one([frame_of(rows, source) for rows in relations])]


def _concatenated(tables: Sequence[pa.Table], promotion: str) -> pa.Table:
    """Return the rows of all tables. Columns that some of them lack may be null."""
    rows = pa.concat_tables(tables, promote_options=promotion)
    everywhere = set.intersection(*({*table.column_names} for table in tables))
    fields = [field if field.name in everywhere else field.with_nullable(True) for field in rows.schema]
    return rows if fields == [*rows.schema] else pa.Table.from_arrays(rows.columns, schema=pa.schema(fields))


def at_most_one(frames: Sequence[DataFrame]) -> list[DataFrame]:
    """Return the union of frames as a list; empty for no frames."""
    return [reduce(lambda left, right: left.unionByName(right), frames)] if frames else []
