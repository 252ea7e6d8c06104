"""Match given rows with those of a table by keys: which rows change, and which are new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import and_, or_
from typing import TYPE_CHECKING

from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    GreaterThanOrEqual,
    LessThanOrEqual,
)
from pyiceberg.types import IntegerType, LongType, PrimitiveType, StringType
from pyspark.sql import functions as F
from pyspark.sql.types import MapType

from sparkmeta.columns.sql import quoted
from sparkmeta.columns.types import spark_type
from sparkmeta.errors import UnsupportedError, ValidationError, shown
from sparkmeta.manifests.arrays import whole
from sparkmeta.rows.write.files import checkpointed
from sparkmeta.rows.write.input import check_columns
from sparkmeta.rows.write.matching import FILE, POSITION, Matching

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.schema import Schema
    from pyspark.sql import Column, DataFrame

    from sparkmeta.rows.planned import PlannedFiles
    from sparkmeta.state import TableState

# Types of keys whose least and greatest value prune the files to read.
_RANGED = (IntegerType, LongType, StringType)


def upsert_of(state: TableState, rows: DataFrame, keys: Sequence[str] | None, lineage: tuple[str, ...]) -> Upsert:
    """Check given rows, and return how they match those of a table. Runs jobs.

    Args:
        state: the table at the branch's head.
        rows: the given rows.
        keys: the columns of the key; None for the schema's identifier fields.
        lineage: the metadata columns that rows keep.

    Raises:
        ValidationError: a column does not fit, there is no key, or two rows have the same one.
        UnsupportedError: a nested column is not of the table's type.
    """
    schema, table = state.metadata.schema(), state.metadata.location
    names = tuple(keys) if keys is not None else tuple(sorted(schema.identifier_field_names()))
    check_columns(rows, schema, table)
    _check_keys(rows, schema, names, table)
    _check_nested(rows, schema, table)
    source = checkpointed(rows)
    columns = [F.col(quoted(name)) for name in names]
    twice = source.dropna(subset=list(map(quoted, names))).groupBy(*columns).count().where("count > 1").limit(1)
    for row in twice.toArrow().drop_columns(["count"]).to_pylist():
        raise ValidationError(f"{table}: two of the rows have the key {shown(row)}")
    return Upsert(Matching(state, _key_range(source, schema, names), by_rows=True), source, names, lineage)


def _check_keys(rows: DataFrame, schema: Schema, names: Sequence[str], table: str) -> None:
    if not names:
        raise ValidationError(f"{table}: an upsert takes join_cols: the table's schema names no identifier fields")
    tops = {field.name: field for field in schema.fields}
    for name in names:
        if name not in rows.columns or name not in tops:
            raise ValidationError(f"{table}: column {name} of the key is not in both the rows and the table")
        if not isinstance(tops[name].field_type, PrimitiveType):
            raise ValidationError(f"{table}: column {name} of the key is of type {tops[name].field_type}")


def _check_nested(rows: DataFrame, schema: Schema, table: str) -> None:
    """Casts of structs go by position: nested columns have to be as the table has them."""
    types = {field.name: field.dataType for field in rows.schema.fields}
    for field in schema.fields:
        given = types.get(field.name)
        if given is None or isinstance(field.field_type, PrimitiveType):
            continue
        wanted = spark_type(field.field_type).simpleString()
        if given.simpleString() != wanted:
            problem = f"column {field.name} of the rows is {given.simpleString()}: an upsert takes {wanted}"
            raise UnsupportedError(f"{table}: {problem}")


def _key_range(source: DataFrame, schema: Schema, names: Sequence[str]) -> BooleanExpression:
    """Return a filter that all rows with keys of the source satisfy."""
    ranged = [name for name in names if isinstance(schema.find_field(name).field_type, _RANGED)]
    if not ranged:
        return AlwaysTrue()
    ends = [end(F.col(quoted(name))).alias(f"{end.__name__}{place}") for place, name in enumerate(ranged)
            for end in (F.min, F.max)]  # fmt: skip
    values = source.agg(*ends).toArrow().to_pylist()[0]
    row_filter: BooleanExpression = AlwaysTrue()
    for place, name in enumerate(ranged):
        least, most = values[f"min{place}"], values[f"max{place}"]
        if least is not None:
            at_least = GreaterThanOrEqual(name, least)  # type: ignore[arg-type, call-arg]
            at_most = LessThanOrEqual(name, most)  # type: ignore[arg-type, call-arg]
            row_filter = And(row_filter, And(at_least, at_most))
    return row_filter


@dataclass(frozen=True)
class Upsert:
    """How given rows match those of a table.

    Attributes:
        matching: the files that may have rows with the keys.
        source: the given rows, which Spark keeps.
        keys: the columns of the key.
        lineage: the metadata columns that rows keep.
    """

    matching: Matching
    source: DataFrame
    keys: tuple[str, ...]
    lineage: tuple[str, ...]

    @cached_property
    def changed(self) -> DataFrame:
        """The rows that change: their new values, lineage, `FILE` and `POSITION`. Spark keeps them. Runs jobs."""
        joined = self._target.alias("t").join(self.source.alias("s"), self._same_key)
        others = [name for name in self.source.columns if name not in self.keys]
        if not others:
            return checkpointed(joined.where("false").select(*self._new_values, *self._place))
        differs = reduce(or_, map(self._differs, others))
        return checkpointed(joined.where(differs).select(*self._new_values, *self._place))

    @property
    def _target(self) -> DataFrame:
        return self.matching.rows(self.matching.partial_files, (*self.lineage, FILE, POSITION))

    @property
    def _same_key(self) -> Column:
        return reduce(and_, (_of("t", name) == _of("s", name) for name in self.keys))

    def _differs(self, name: str) -> Column:
        if any(isinstance(field.dataType, MapType) for field in self.matching.row_type.fields if field.name == name):
            return F.lit(True)  # Spark compares no maps
        return ~_of("t", name).eqNullSafe(_of("s", name))

    @property
    def _new_values(self) -> list[Column]:
        given = set(self.source.columns)
        return [
            (_of("s", field.name).cast(field.dataType) if field.name in given else _of("t", field.name)).alias(
                field.name
            )
            for field in self.matching.row_type.fields
        ]

    @property
    def _place(self) -> list[Column]:
        """The lineage of changed rows, which have no sequence number of a last change, and where they are."""
        lineage = [_of("t", self.lineage[0]), F.lit(None).cast("bigint").alias(self.lineage[1])] if self.lineage else []
        return [*lineage, _of("t", FILE), _of("t", POSITION)]

    @property
    def changed_rows(self) -> DataFrame:
        """The new values of the rows that change."""
        return self.changed.drop(FILE, POSITION)

    @cached_property
    def changed_files(self) -> pa.Array:
        """The paths of the files with rows that change."""
        return whole(self.changed.select(FILE).distinct().toArrow().column(0))

    def rewritten(self, files: PlannedFiles) -> DataFrame:
        """Return all rows of the files with rows that change, with their new values."""
        rows = self.matching.rows(files, (*self.lineage, FILE, POSITION))
        others = rows.join(self.changed.select(FILE, POSITION), [FILE, POSITION], "left_anti").select(*rows.columns)
        return others.drop(FILE, POSITION).unionByName(self.changed_rows)

    @cached_property
    def new_rows(self) -> DataFrame:
        """The given rows whose keys no row has. Spark keeps them."""
        keys = self._target.select(*map(quoted, self.keys)).alias("t")
        return checkpointed(self.source.alias("s").join(keys, self._same_key, "left_anti"))

    @property
    def has_new_rows(self) -> bool:
        """Whether there are new rows."""
        return bool(len(self.new_rows.limit(1).toArrow()))


def _of(side: str, name: str) -> Column:
    return F.col(f"{side}.{quoted(name)}")
