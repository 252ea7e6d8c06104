"""The contradictions between deletes and data files that make a plan fail, each written once for SQL and Arrow.

A rule is a condition on a data file and a delete. Both are views: mappings from column names to values, either `Sql` or
`ArrowValues`, which have the same operators. A view has `sequence_number` and `partition_key`; that of a delete also
has `is_dv`, `content_type` and `data_path`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.columns import sql
from sparkmeta.columns.sql import Sql
from sparkmeta.errors import ValidationError
from sparkmeta.spec.entry import ContentType

if TYPE_CHECKING:
    from pyspark.sql.types import DataType


class View(Protocol):
    """A data file or a delete: column name -> Sql or ArrowValues. A Sql of struct type is a view."""

    def __getitem__(self, name: str, /) -> Any: ...


@dataclass(frozen=True)
class Rule:
    """A contradiction in metadata, which is an error wherever deletes are matched.

    Attributes:
        text: the error message up to the location of the file.
        broken: (data file, delete) -> whether they contradict each other. A rule about one of them ignores the other.
    """

    text: str
    broken: Callable[[View, View], Any]

    def message(self, *locations: Sql) -> Sql:
        """Return the error message, which names files by their locations, in SQL."""
        first, *others = (sql.coalesce(location, "") for location in locations)
        return sql.concat(self.text, first, *(part for other in others for part in (" ", other)))

    def raised(self, *locations: Sql, as_type: str | DataType = "boolean") -> Sql:
        """Return a SQL expression of type `as_type` that fails with the message."""
        return sql.raise_error(self.message(*locations)).cast(as_type)

    def refuse(self, broken: pa.Array, locations: Callable[[int], tuple[Any, ...]]) -> None:
        """Raise ValidationError for the first row where `broken` is true.

        Args:
            broken: a flag for each row.
            locations: row -> the locations that the message names, as Arrow scalars.
        """
        rows = pc.indices_nonzero(pc.fill_null(broken, False))
        if len(rows):
            raise ValidationError(self.text + " ".join(str(location) for location in locations(rows[0].as_py())))


def _is_older_dv(data: View, delete: View) -> Any:
    return delete["is_dv"] & (delete["sequence_number"] < data["sequence_number"])


def _is_foreign(data: View, delete: View) -> Any:
    # Position deletes that are older than the data file do not apply, whatever their partition.
    applies = delete["is_dv"] | (delete["sequence_number"] >= data["sequence_number"])
    return applies & ~delete["partition_key"].eqNullSafe(data["partition_key"])


def _is_no_dv(_: View, delete: View) -> Any:
    return ~(delete["is_dv"] & delete["data_path"].isNotNull())


DATA_WITHOUT_SEQUENCE: Final = Rule(
    "no sequence number is known for data file ", lambda data, _: data["sequence_number"].isNull()
)
DELETE_WITHOUT_SEQUENCE: Final = Rule(
    "no sequence number is known for delete file ", lambda _, delete: delete["sequence_number"].isNull()
)
OLDER_DV: Final = Rule("a deletion vector is older than its data file: ", _is_older_dv)
FOREIGN_DELETE: Final = Rule("a delete file has another partition spec or partition than its data file: ", _is_foreign)
NOT_A_DV: Final = Rule("a delete file is not a deletion vector where only deletion vectors can be: ", _is_no_dv)
# Applied where no equality delete of the scan names a column.
NO_COLUMNS: Final = Rule(
    "no columns are known that an equality delete file compares: ",
    lambda _, delete: delete["content_type"] == int(ContentType.EQUALITY_DELETES),
)
RULES: Final = (DATA_WITHOUT_SEQUENCE, DELETE_WITHOUT_SEQUENCE, OLDER_DV, FOREIGN_DELETE, NOT_A_DV, NO_COLUMNS)

# A rule about several deletes, which `second_dv` and `repeated_paths` find.
TWO_DVS: Final = Rule("two deletion vectors for ", lambda _, delete: delete["is_dv"])
# A rule about an affiliated delete leaf and its data leaf.
UNKNOWN_FILE: Final = Rule(
    "a deletion vector in a delete manifest affiliated to a data manifest that does not have its file: ",
    lambda data, _: data["location"].isNull(),
)


# A rule, where it is broken, and the locations that its message names.
Check = tuple[Rule, Sql, tuple[Sql, ...]]


def consistent(*checks: Check) -> Sql:
    """Return a SQL condition that is true, or fails for the first broken check."""
    (rule, broken, locations), *others = checks
    verdict = sql.when(broken, rule.raised(*locations))
    for rule, broken, locations in others:
        verdict = verdict.when(broken, rule.raised(*locations))
    return verdict.otherwise(True)


def second_dv(group: Sql) -> Sql:
    """Return the data file that has two deletion vectors in an array of deletes; null if there is none."""

    def has_another(delete: Sql) -> Sql:
        same = sql.filter(group, lambda other: other["is_dv"] & (other["data_path"] == delete["data_path"]))
        return delete["is_dv"] & (sql.size(same) > 1)

    first = sql.call("get", sql.filter(group, has_another), 0)["data_path"]
    return sql.when(sql.size(group) > 1, first).otherwise(None)


def repeated_paths(paths: pa.Array) -> pa.Array:
    """Return the data files with several deletion vectors, given the file of each deletion vector."""
    if pc.count_distinct(paths).as_py() == len(paths):
        return paths.slice(0, 0)
    counts = pc.value_counts(paths)
    return counts.field("values").filter(pc.greater(counts.field("counts"), 1))


class ArrowValues:
    """An Arrow array with the operators of `Sql` that rules use."""

    __slots__ = ("array",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, array: pa.Array) -> None:
        self.array = array

    def __lt__(self, other: ArrowValues) -> ArrowValues:
        return ArrowValues(pc.less(self.array, other.array))

    def __ge__(self, other: ArrowValues) -> ArrowValues:
        return ArrowValues(pc.greater_equal(self.array, other.array))

    def __eq__(self, other: object) -> ArrowValues:  # type: ignore[override]
        return ArrowValues(pc.equal(self.array, other))

    def __and__(self, other: ArrowValues) -> ArrowValues:
        return ArrowValues(pc.and_kleene(self.array, other.array))

    def __or__(self, other: ArrowValues) -> ArrowValues:
        return ArrowValues(pc.or_kleene(self.array, other.array))

    def __invert__(self) -> ArrowValues:
        return ArrowValues(pc.invert(self.array))

    def isNull(self) -> ArrowValues:  # noqa: N802  named like Sql's, and so below
        return ArrowValues(self.array.is_null())

    def isNotNull(self) -> ArrowValues:  # noqa: N802
        return ArrowValues(self.array.is_valid())

    def eqNullSafe(self, other: ArrowValues) -> ArrowValues:  # noqa: N802
        return ArrowValues(_same(self.array, other.array))


def _same(left: pa.Array, right: pa.Array) -> pa.Array:
    """Compare values where null equals null, NaN equals NaN, and -0.0 differs from 0.0, as in partitions."""
    if pa.types.is_struct(left.type):
        same = pc.equal(left.is_null(), right.is_null())
        for left_field, right_field in zip(left.flatten(), right.flatten(), strict=True):
            same = pc.and_(same, _same(left_field, right_field))
        return same
    both_null = pc.and_(left.is_null(), right.is_null())
    if pa.types.is_null(left.type):  # of a partition field whose column no schema has
        return both_null
    if pa.types.is_floating(left.type):
        both_nan = pc.fill_null(pc.and_(pc.is_nan(left), pc.is_nan(right)), False)
        bits = pa.int32() if pa.types.is_float32(left.type) else pa.int64()
        both_null, left, right = pc.or_(both_null, both_nan), left.view(bits), right.view(bits)
    return pc.or_(both_null, pc.fill_null(pc.equal(left, right), False))
