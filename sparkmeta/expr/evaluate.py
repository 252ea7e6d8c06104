"""Evaluate expressions over Arrow tables, with the results of Spark SQL.

The driver evaluates expressions for small numbers of entries, for which Spark would take longer to compile a query than
to run it.
Each operation is applied to all rows at once, and to the elements of all lists at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.errors import ValidationError
from sparkmeta.expr.arrays import compact_lists, indices_where, kept_rows, uuid_bytes, uuid_texts, whole
from sparkmeta.expr.bounds import as_numbers, bound_arrow_type
from sparkmeta.expr.sql import Aliased, Sql
from sparkmeta.expr.variants import bounds_of_field, extracted

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

# A scalar has the same value for each row.
Values: TypeAlias = pa.Array | pa.Scalar

_CAST_TYPES: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "string": pa.string(),
    "array<int>": pa.list_(pa.int32()),
}
_INT_BITS: Final = 31
_ROW: Final = "_row"
# Parts of keys. Different tuples may have equal keys, since joined rows are compared in full afterwards.
_NULL: Final = b"\0"
_BETWEEN: Final = b"\1"


def where(rows: pa.Table, condition: Sql) -> pa.Table:
    """Return the rows for which a condition is true."""
    passed = _flags(_Rows.of(rows).evaluate(condition))
    if isinstance(passed, pa.Scalar):
        return rows if passed.as_py() else rows.slice(0, 0)
    return kept_rows(rows, passed)


def select(rows: pa.Table, columns: Sequence[Aliased]) -> pa.Table:
    """Return columns that are computed from rows, by their names."""
    scope = _Rows.of(rows)
    arrays = [_array(scope.evaluate(column), len(rows)) for column in columns]
    return pa.Table.from_arrays(arrays, [column.name for column in columns])


def values(rows: pa.Table, expression: Sql) -> pa.Array:
    """Return the values of an expression for rows."""
    return _Rows.of(rows).array(expression)


def with_columns(rows: pa.Table, *columns: Aliased) -> pa.Table:
    """Return rows with further columns."""
    new_columns = select(rows, columns)
    return pa.Table.from_arrays([*rows.columns, *new_columns.columns], [*rows.column_names, *new_columns.column_names])


def grouped(rows: pa.Table, keys: Sequence[Aliased], aggregates: Sequence[Aliased]) -> pa.Table:
    """Return a row for each group of rows with equal keys; see `relation.grouped`."""
    scope = _Rows.of(rows)
    values = [*map(scope.array, keys)]
    offsets, order = _groups(values, len(rows))
    arrays = [
        _AGGREGATES[column.operation](scope.array(column.operands[0]).take(order), offsets) for column in aggregates
    ]
    if not keys and not len(rows):
        arrays = [pa.nulls(1, array.type) for array in arrays]
    firsts = order.take(offsets.slice(0, len(offsets) - 1)) if keys else None
    return pa.Table.from_arrays(
        [*(array.take(firsts) for array in values), *arrays], [column.name for column in (*keys, *aggregates)]
    )


def _groups(values: Sequence[pa.Array], length: int) -> tuple[pa.Array, pa.Array]:
    """Return the offsets of groups of rows with equal values, and the indices of the rows by group."""
    if not values:
        return pa.array([0, length], pa.int32()), pa.array(np.arange(length))
    key_parts = [key_part for array in values for key_part in _parts(array)]
    names = [str(index) for index in range(len(key_parts))]
    rows_with_keys = pa.Table.from_arrays([*key_parts, pa.array(np.arange(length))], [*names, _ROW])
    groups = rows_with_keys.group_by(names, use_threads=False).aggregate([(_ROW, "list")])
    return compact_lists(whole(groups.column(f"{_ROW}_list")))


def numbered_groups(values: Sequence[pa.Array], length: int) -> tuple[pa.Array, pa.Array]:
    """Return the index of the first row of each group of rows with equal values, and the number of each row's group.

    Args:
        values: the columns to compare. Nulls are equal.
        length: the number of rows.
    """
    offsets, order = _groups(values, length)
    numbers = np.empty(length, np.int64)
    numbers[order.to_numpy()] = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets.to_numpy()))
    return order.take(offsets.slice(0, len(offsets) - 1)), pa.array(numbers)


def index_in(values: pa.Array, others: pa.Array) -> pa.Array:
    """Return the index of each value among others; null if it is not there. Nulls in structs are equal."""
    if not pa.types.is_struct(values.type):
        return pc.index_in(values, others)
    both = pa.concat_arrays(_unified([others, values]))
    firsts, numbers = numbered_groups([both], len(both))
    indices = firsts.take(numbers.slice(len(others))).to_numpy()
    return pa.array(indices, mask=indices >= len(others))


def typed(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with the columns and types of a schema, and with its nullability."""
    return pa.Table.from_arrays([_cast(whole(rows.column(field.name)), field.type) for field in schema], schema=schema)


class _Rows:
    """Rows that an expression is evaluated for.

    Args:
        length: the number of rows.
        read: returns a column by its name.
        columns: variables of lambdas, and columns that have been read.

    Attributes:
        fields: the fields of structs that have been read, by the text of the struct.
    """

    def __init__(self, length: int, read: Callable[[str], Values], columns: dict[str, Values] | None = None) -> None:
        self.length = length
        self.read = read
        self.columns = columns or {}
        self.fields: dict[tuple[str, str], Values] = {}

    @classmethod
    def of(cls, table: pa.Table) -> _Rows:
        return cls(len(table), lambda name: whole(table.column(name)))

    def column(self, name: str) -> Values:
        if name not in self.columns:
            self.columns[name] = self.read(name)
        return self.columns[name]

    def take(self, indices: pa.Array, **variables: Values) -> _Rows:
        """Return the rows at some indices."""

        def read(name: str) -> Values:
            values = self.column(name)
            return values.take(indices) if isinstance(values, pa.Array) else values

        return _Rows(len(indices), read, variables)

    def with_variables(self, **variables: Values) -> _Rows:
        return _Rows(self.length, self.column, variables)

    def evaluate(self, expression: Sql) -> Values:
        """Return the values of an expression.

        Raises:
            ValidationError: the expression raises an error for a row.
        """
        operation, operands = expression.operation, expression.operands
        if operation in _LAZY:
            return _LAZY[operation](self, *operands)
        if operation not in _FUNCTIONS:
            raise NotImplementedError(f"only Spark evaluates {expression.text}")
        return _FUNCTIONS[operation](*map(self.evaluate, operands))

    def array(self, expression: Sql) -> pa.Array:
        return _array(self.evaluate(expression), self.length)


def _array(values: Values, length: int) -> pa.Array:
    if isinstance(values, pa.Array):
        return values
    if pa.types.is_list(values.type) and values.is_valid and not len(values):
        # Arrow repeats lists one at a time.
        return pa.ListArray.from_arrays(pa.array(np.zeros(length + 1, np.int32)), values.values, type=values.type)
    return pa.repeat(values, length) if length else pa.array([], values.type)


# -- Comparisons and logic, which are null for nulls ------------------------------------------------------------------


def _equal(left: Values, right: Values) -> Values:
    if pa.types.is_struct(left.type):
        has_null = pc.or_(left.is_null(), right.is_null()) if isinstance(left, pa.Array) else None
        same = _same(left, right)
        return same if has_null is None else pc.if_else(has_null, pa.scalar(None, pa.bool_()), same)
    equal = pc.equal(left, right)
    return pc.or_kleene(equal, pc.and_kleene(pc.is_nan(left), pc.is_nan(right))) if _floating(left, right) else equal


def _same(left: Values, right: Values) -> Values:
    """Compare values where null equals null."""
    nulls = pc.and_(pc.is_null(left), pc.is_null(right))
    if pa.types.is_null(left.type) or pa.types.is_null(right.type):
        return nulls
    if pa.types.is_struct(left.type):
        same = pc.equal(pc.is_null(left), pc.is_null(right))
        for index in range(left.type.num_fields):
            same = pc.and_(same, _same(_field(left, index), _field(right, index)))
        return same
    if pa.types.is_list(left.type):
        return pc.or_(nulls, _same_lists(left, right))
    return pc.or_(nulls, pc.fill_null(_equal(left, right), False))


def _same_lists(left: pa.Array, right: pa.Array) -> pa.Array:
    """Return whether lists that are not null have the same elements in the same order."""
    same = pc.fill_null(pc.equal(pc.list_value_length(left), pc.list_value_length(right)), False)
    rows = np.flatnonzero(same)
    (parents, elements), (_, others) = (_elements(side.take(pa.array(rows))) for side in (left, right))
    result = np.asarray(same).copy()
    result[rows[parents.filter(pc.invert(_same(elements, others))).to_numpy()]] = False
    return pa.array(result)


def _less(left: Values, right: Values) -> Values:
    less = pc.less(left, right)
    if not _floating(left, right):
        return less
    # NaN is greater than all other numbers.
    return pc.or_kleene(less, pc.and_kleene(pc.is_nan(right), pc.invert(pc.is_nan(left))))


def _less_equal(left: Values, right: Values) -> Values:
    return pc.or_kleene(_less(left, right), _equal(left, right))


def _floating(left: Values, right: Values) -> bool:
    return all(pa.types.is_floating(side.type) for side in (left, right))


def _typed(compare: Callable[[Values, Values], Values]) -> Callable[[Values, Values], Values]:
    """Return a comparison that is null where an operand is the literal NULL, which has no type."""

    def compare_typed(left: Values, right: Values) -> Values:
        if pa.types.is_null(left.type) or pa.types.is_null(right.type):
            return pa.scalar(None, pa.bool_())
        return compare(left, right)

    return compare_typed


def _junction(join: Callable[[Values, Values], Values]) -> Callable[..., Values]:
    def join_all(*operands: Values) -> Values:
        return reduce(join, map(_flags, operands))

    return join_all


def _flags(values: Values) -> Values:
    return values if pa.types.is_boolean(values.type) else values.cast(pa.bool_())


def _is_in(values: Values, *literals: Values) -> Values:
    return reduce(pc.or_kleene, (_COMPARISONS["="](values, literal) for literal in literals))


def _is_nan(values: Values) -> Values:
    return pc.fill_null(pc.is_nan(values), False)


# -- Choices, which evaluate an expression only for the rows that need it ---------------------------------------------


def _case(rows: _Rows, *branches: Sql) -> Values:
    """Evaluate CASE. Branches are conditions and values in turn; if their number is odd, the last is the ELSE value."""
    pending: pa.Array = pa.array(np.arange(rows.length))
    chosen: list[tuple[pa.Array, Sql | None]] = []
    for condition, value in zip(branches[: len(branches) // 2 * 2 : 2], branches[1::2], strict=True):
        if not len(pending):
            break
        scope = rows if len(pending) == rows.length else rows.take(pending)
        holds = _array(_flags(scope.evaluate(condition)), len(pending))
        if count := holds.true_count:
            chosen.append((pending if count == len(pending) else pending.filter(holds), value))
            pending = (
                pending.slice(0, 0) if count == len(pending) else pending.filter(pc.invert(pc.fill_null(holds, False)))
            )
    if len(pending):
        chosen.append((pending, branches[-1] if len(branches) % 2 else None))
    values = _merged(rows, chosen)
    if not pa.types.is_null(values.type):
        return values
    no_rows = rows.take(pa.array([], pa.int64()))
    types = (no_rows.evaluate(value).type for value in (*branches[1::2], *branches[len(branches) // 2 * 2 :]))
    return _cast(values, next((kind for kind in types if not pa.types.is_null(kind)), pa.null()))


def _coalesce(rows: _Rows, *operands: Sql) -> Values:
    first_operand, *other_operands = operands
    values = rows.evaluate(first_operand)
    if not other_operands or not (values.null_count if isinstance(values, pa.Array) else not values.is_valid):
        return values
    array = _array(values, rows.length)
    present, absent = (indices_where(flags) for flags in (array.is_valid(), array.is_null()))
    filled = _array(_coalesce(rows.take(absent), *other_operands), len(absent))
    return _scattered([(present, array.take(present)), (absent, filled)])


def _merged(rows: _Rows, chosen: Sequence[tuple[pa.Array, Sql | None]]) -> Values:
    """Return the values of expressions, each for the rows at some indices."""
    if not chosen:
        return pa.nulls(0)
    if len(chosen) == 1:
        value = chosen[0][1]
        return pa.scalar(None) if value is None else rows.evaluate(value)
    parts = []
    for indices, value in chosen:
        values = pa.scalar(None) if value is None else rows.take(indices).evaluate(value)
        parts.append((indices, _array(values, len(indices))))
    return _scattered(parts)


def _scattered(parts: Sequence[tuple[pa.Array, pa.Array]]) -> pa.Array:
    """Return the values of parts of the rows, in the order of all rows."""
    indices = np.concatenate([indices_of_part.to_numpy() for indices_of_part, _ in parts])
    return pa.concat_arrays(_unified([values for _, values in parts])).take(pa.array(np.argsort(indices)))


def _unified(arrays: Sequence[pa.Array]) -> list[pa.Array]:
    """Cast arrays to their common type. The literal NULL has any type, and an int may be a long."""
    schemas = [pa.schema([("value", array.type)]) for array in arrays]
    kind = pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    return [array if array.type == kind else _cast(array, kind) for array in arrays]


def _raise_error(rows: _Rows, message: Sql) -> Values:
    if rows.length:
        raise ValidationError(rows.array(message)[0].as_py())
    return pa.nulls(0)


# -- Structs and lists ------------------------------------------------------------------------------------------------


def _struct(rows: _Rows, *fields: Aliased) -> Values:
    arrays = [rows.array(field) for field in fields]
    return pa.StructArray.from_arrays(arrays, [field.name for field in fields])


def _field_of(rows: _Rows, values: Sql, name: str) -> Values:
    key = (values.text, name)
    if key not in rows.fields:
        struct = rows.evaluate(values)
        rows.fields[key] = struct if pa.types.is_null(struct.type) else _field(struct, name)
    return rows.fields[key]


def _field(values: Values, key: str | int) -> Values:
    if isinstance(values, pa.Scalar):
        index = values.type.get_field_index(key) if isinstance(key, str) else key
        return values[index] if values.is_valid else pa.scalar(None, values.type.field(index).type)
    return pc.struct_field(values, [key] if isinstance(key, str) else key)


def _list(rows: _Rows, *elements: Sql) -> Values:
    count = len(elements)
    arrays = _unified([rows.array(element) for element in elements])
    indices = np.arange(count * rows.length).reshape(count, rows.length).T.reshape(-1)
    offsets = pa.array(np.arange(rows.length + 1, dtype=np.int32) * count)
    return pa.ListArray.from_arrays(offsets, pa.concat_arrays(arrays).take(pa.array(indices)))


def _slice_of(rows: _Rows, values: Sql, start: Sql, length: Sql) -> Values:
    """Evaluate `slice` as `empty_array` uses it."""
    assert (start.operands, length.operands) == ((1,), (0,))
    kind = rows.take(pa.array([], pa.int64())).evaluate(values.operands[0]).type
    return pa.scalar([], pa.list_(kind))


def _element(rows: _Rows, values: Sql, position: Sql) -> Values:
    """Return the elements at indexes from 0; null beyond the end."""
    lists, index = rows.array(values), rows.evaluate(position)
    offsets, elements = compact_lists(lists)
    starts, lengths = offsets.slice(0, len(lists)), pc.list_value_length(lists)
    indices = pc.add(starts, pc.cast(index, pa.int32()))
    return elements.take(pc.if_else(pc.less(index, lengths), indices, pa.scalar(None, pa.int32())))


def _contains(rows: _Rows, values: Sql, value: Sql) -> Values:
    """Return whether lists contain a value; null for null lists, and for lists that contain null but not the value."""
    lists = rows.array(values)
    parents, elements = _elements(lists)
    same = _COMPARISONS["="](elements, rows.take(parents).evaluate(value))
    return _any_element(lists, parents, _array(same, len(elements)))


def _elements(lists: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the index of each element's list, and the elements. Lists may have values under their nulls."""
    offsets, elements = compact_lists(lists)
    return pa.array(np.repeat(np.arange(len(lists)), np.diff(offsets.to_numpy()))), elements


def _over_elements(rows: _Rows, lists: Sql, variable: Sql, body: Sql) -> tuple[pa.Array, pa.Array, pa.Array, pa.Array]:
    """Return lists, the index of each element's list, the elements, and the value of an expression for each element."""
    array = rows.array(lists)
    parents, elements = _elements(array)
    scope = rows.take(parents, **{variable.operands[0]: elements})
    return array, parents, elements, scope.array(body)


def _exists(rows: _Rows, lists: Sql, variable: Sql, body: Sql) -> Values:
    if lists.operation == "array":
        return _junction(pc.or_kleene)(*_values_of_elements(rows, lists, variable, body))
    array, parents, _, holds = _over_elements(rows, lists, variable, body)
    return _any_element(array, parents, holds)


def _forall(rows: _Rows, lists: Sql, variable: Sql, body: Sql) -> Values:
    if lists.operation == "array":
        return _junction(pc.and_kleene)(*_values_of_elements(rows, lists, variable, body))
    array, parents, _, holds = _over_elements(rows, lists, variable, body)
    return pc.invert(_any_element(array, parents, pc.invert(holds)))


def _values_of_elements(rows: _Rows, elements: Sql, variable: Sql, body: Sql) -> Iterator[Values]:
    """Yield the values of an expression for each element of an array that lists its elements."""
    for element in elements.operands:
        yield rows.with_variables(**{variable.operands[0]: rows.evaluate(element)}).evaluate(body)


def _any_element(lists: pa.Array, parents: pa.Array, holds: pa.Array) -> pa.Array:
    """Return whether a condition holds for any element of each list; null if it is true for none and null for some."""

    def parents_with(flags: pa.Array) -> pa.Array:
        present = np.zeros(len(lists), bool)
        present[parents.filter(flags).to_numpy()] = True
        return pa.array(present)

    is_unknown = pc.or_(lists.is_null(), parents_with(holds.is_null())) if holds.null_count else lists.is_null()
    is_true = parents_with(pc.fill_null(holds, False))
    return pc.if_else(pc.and_(is_unknown, pc.invert(is_true)), pa.scalar(None, pa.bool_()), is_true)


def _filter(rows: _Rows, lists: Sql, variable: Sql, body: Sql) -> Values:
    array, parents, elements, holds = _over_elements(rows, lists, variable, body)
    passed = pc.fill_null(holds, False)
    lengths = np.bincount(parents.filter(passed).to_numpy(), minlength=len(array))
    return _lists(lengths, elements.filter(passed), array.is_null())


def _transform(rows: _Rows, lists: Sql, variable: Sql, body: Sql) -> Values:
    array, parents, _, values = _over_elements(rows, lists, variable, body)
    return _lists(np.bincount(parents.to_numpy(), minlength=len(array)), values, array.is_null())


def _lists(lengths: np.ndarray, elements: pa.Array, nulls: pa.Array) -> pa.ListArray:
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, elements, mask=nulls if pc.any(nulls).as_py() else None)


def _total(rows: _Rows, lists: Sql, variable: Sql, body: Sql) -> Values:
    array, parents, _, numbers = _over_elements(rows, lists, variable, body)
    sums = np.zeros(len(array), np.int64)
    np.add.at(sums, parents.to_numpy(), numbers.to_numpy(zero_copy_only=False))
    return pa.array(sums, mask=array.is_null().to_numpy(zero_copy_only=False))


def _let(rows: _Rows, value: Sql, variable: Sql, body: Sql) -> Values:
    return rows.with_variables(**{variable.operands[0]: rows.evaluate(value)}).evaluate(body)


def _fold(rows: _Rows, lists: Sql, start: Sql, left: Sql, right: Sql, body: Sql) -> Values:
    """Fold an array that lists its elements."""
    assert lists.operation == "array"
    result = rows.evaluate(start)
    for element in lists.operands:
        variables = {left.operands[0]: result, right.operands[0]: rows.evaluate(element)}
        result = rows.with_variables(**variables).evaluate(body)
    return result


def _flat(operands: Iterable[Sql]) -> Iterator[Sql]:
    """Yield the operands of nested concatenations."""
    for operand in operands:
        yield from _flat(operand.operands) if operand.operation == "concat" else (operand,)


def _as_text(values: Values) -> Values:
    return values if pa.types.is_string(values.type) else values.cast(pa.string())


def _concat(rows: _Rows, *operands: Sql) -> Values:
    values = [rows.evaluate(operand) for operand in _flat(operands)]
    if not pa.types.is_list(values[0].type):
        return pc.binary_join_element_wise(*map(_as_text, values), "")
    arrays = [_array(value, rows.length) for value in values]
    parts = [_elements(array) for array in arrays]
    parents = np.concatenate([parents_of_part.to_numpy() for parents_of_part, _ in parts])
    elements = pa.concat_arrays(_unified([array_elements for _, array_elements in parts]))
    nulls = reduce(pc.or_, (array.is_null() for array in arrays))
    order = pa.array(np.argsort(parents, kind="stable"))
    return _lists(np.bincount(parents, minlength=rows.length), elements.take(order), nulls)


def _list_of(maps: pa.Array, field: str | None = None) -> pa.Array:
    """Return the entries of maps as lists, or one of their fields."""
    offsets, entries = compact_lists(maps)
    values = entries if field is None else entries.field(field)
    return pa.ListArray.from_arrays(offsets, values, mask=maps.is_null() if maps.null_count else None)


def _value_of_key(rows: _Rows, maps: Sql, key: Sql) -> Values:
    array, value = rows.array(maps), key.operands[0]
    return pc.map_lookup(array, pa.scalar(value, array.type.key_type), "first")


def _number_of_key(rows: _Rows, maps: Sql, key: str) -> Values:
    from sparkmeta.spec.summary import long_of  # heavier than what tasks import

    array = rows.array(maps)
    texts = pc.map_lookup(array, pa.scalar(key, array.type.key_type), "first")
    return pa.array(map(long_of, texts.to_pylist()), pa.int64())


# -- Aggregates of values in the order of their groups, given the offsets of the groups -------------------------------


def _sum(values: pa.Array, offsets: pa.Array) -> pa.Array:
    return _by_group(values, offsets, "sum")


def _extreme(function: str) -> Callable[[pa.Array, pa.Array], pa.Array]:
    """Return a function that returns the least (`min`) or greatest value (`max`) of each group, without nulls.

    Structs are compared field by field, and nulls in them are the least.
    """

    def of_groups(values: pa.Array, offsets: pa.Array) -> pa.Array:
        columns = [part for field in _parts(values) for part in (field.is_valid(), field)]
        names = [str(index) for index in range(len(columns))]
        order = pc.sort_indices(pa.Table.from_arrays(columns, names), [(name, "ascending") for name in names])
        ranks = np.empty(len(values), np.int64)
        ranks[order.to_numpy()] = np.arange(len(values))
        valid = pa.array(ranks, mask=values.is_null().to_numpy(zero_copy_only=False))
        return values.take(order.take(_by_group(valid, offsets, function)))

    return of_groups


def _parts(values: pa.Array) -> list[pa.Array]:
    """Return columns by which Arrow groups and sorts values: the values, or the validity and fields of structs."""
    return [values.is_valid(), *values.flatten()] if pa.types.is_struct(values.type) else [values]


def _by_group(values: pa.Array, offsets: pa.Array, function: str) -> pa.Array:
    groups = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets.to_numpy()))
    by_group = pa.table({"group": groups, "value": values}).group_by("group", use_threads=False)
    return whole(by_group.aggregate([("value", function)]).column(f"value_{function}"))


# -- Literals, casts and texts ----------------------------------------------------------------------------------------


def _literal(_rows: _Rows, value: Any) -> Values:
    if isinstance(value, int) and not isinstance(value, bool):
        return pa.scalar(value, pa.int32() if value.bit_length() <= _INT_BITS else pa.int64())
    return pa.scalar(value)


def _typed_literal(_rows: _Rows, value: Any, primitive: Any) -> Values:
    kind = bound_arrow_type(str(primitive))
    if pa.types.is_temporal(kind):
        return pa.array([value], pa.int32() if pa.types.is_date(kind) else pa.int64()).view(kind)[0]
    return pa.scalar(value, kind)


def _cast_to(rows: _Rows, value: Sql, kind: str | DataType) -> Values:
    if isinstance(kind, str):
        return _cast(rows.evaluate(value), _CAST_TYPES[kind])
    from sparkmeta.arrow_types import arrow_type_of

    return _cast(rows.evaluate(value), arrow_type_of(kind))


def _cast(values: Values, kind: pa.DataType) -> Values:
    if pa.types.is_null(values.type):
        return pa.scalar(None, kind) if isinstance(values, pa.Scalar) else pa.nulls(len(values), kind)
    if pa.types.is_struct(kind) and isinstance(values, pa.Array):
        fields = [_cast(field, child.type) for field, child in zip(values.flatten(), kind, strict=True)]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=values.is_null())
    if pa.types.is_list(kind) and isinstance(values, pa.Array):
        offsets, elements = compact_lists(values)
        mask = values.is_null() if values.null_count else None
        return pa.ListArray.from_arrays(offsets, _cast(elements, kind.value_type), type=kind, mask=mask)
    return values.cast(kind)


def _lookup(rows: _Rows, texts: tuple[str, ...], index: Sql) -> Values:
    indices = rows.array(index)
    is_index = pc.and_(pc.greater_equal(indices, 0), pc.less(indices, len(texts)))
    return pa.array(texts, pa.string()).take(pc.if_else(is_index, indices, None))


def _key(values: Values) -> Values:
    """Return a key that is equal for equal values. Spark's key is a hash, so keys of both are never compared."""
    if not pa.types.is_struct(values.type):
        return values.cast(pa.binary())
    fields = [pc.fill_null(_text(field), _NULL) for field in values.flatten()]
    return pc.binary_join_element_wise(*fields, _BETWEEN)


def _text(values: pa.Array) -> pa.Array:
    if pa.types.is_null(values.type):
        return pa.nulls(len(values), pa.binary())
    is_text = pa.types.is_string(values.type) or pa.types.is_binary(values.type)
    return (values if is_text else as_numbers(values).cast(pa.string())).cast(pa.binary())


def _starts_with(rows: _Rows, values: Sql, prefix: Sql) -> Values:
    return pc.starts_with(rows.evaluate(values), prefix.operands[0])


def _substring(rows: _Rows, values: Sql, start: Sql, length: Sql) -> Values:
    index = start.operands[0] - 1
    return pc.utf8_slice_codeunits(rows.evaluate(values), index, index + length.operands[0])


def _translate(rows: _Rows, values: Sql, characters: Sql, replacements: Sql) -> Values:
    """Replace characters in texts. Each distinct text is translated once."""
    table = str.maketrans(characters.operands[0], replacements.operands[0])
    encoded = rows.array(values).dictionary_encode()
    translated = pa.array([text.translate(table) for text in encoded.dictionary.to_pylist()], pa.string())
    return translated.take(encoded.indices)


def _hex(values: pa.Array) -> pa.Array:
    binary = pa.concat_arrays([values.cast(pa.binary())])
    offsets = np.frombuffer(binary.buffers()[1], np.int32)[binary.offset : binary.offset + len(binary) + 1]
    data = (binary.buffers()[2] or pa.py_buffer(b"")).to_pybytes()[offsets[0] : offsets[-1]].hex().upper().encode()
    starts = pa.py_buffer(((offsets - offsets[0]) * 2).astype(np.int32))
    texts = pa.StringArray.from_buffers(len(binary), starts, pa.py_buffer(data))
    return pc.if_else(binary.is_valid(), texts, pa.scalar(None, pa.string()))


def _by_value(rows: _Rows, values: Sql, convert: Callable[[Any], Any], kind: pa.DataType | None = None) -> Values:
    """Convert each distinct value by a function of its physical form: days, ticks, bytes, a Decimal.

    `kind` is the type of the function's results if they are not texts.
    """
    encoded = rows.array(values).dictionary_encode()
    results = [None if value is None else convert(value) for value in as_numbers(encoded.dictionary).to_pylist()]
    return pa.array(results, kind or pa.string()).take(encoded.indices)


def _map_part(rows: _Rows, values: Sql, keys: Sequence[int]) -> Values:
    """Return the entries of maps with given keys, as a struct of `keys` and `values`; null if there are none.

    Binary values become hex. Entries stay in the order of the map.
    """
    maps = rows.array(values)
    parents, entries = _elements(maps)
    is_selected = pc.is_in(entries.field("key"), value_set=pa.array(keys, entries.type.field("key").type))
    parents, entries = parents.filter(is_selected), entries.filter(is_selected)
    items = entries.field("value")
    items = _hex(items) if pa.types.is_binary(items.type) else items
    lengths = np.bincount(parents.to_numpy(), minlength=len(maps))
    lists = [
        _lists(lengths, elements, pa.repeat(pa.scalar(False), len(maps))) for elements in (entries.field("key"), items)
    ]
    return pa.StructArray.from_arrays(lists, ["keys", "values"], mask=pa.array(lengths == 0))


def _array_join(rows: _Rows, values: Sql, separator: Sql) -> Values:
    return pc.binary_join(rows.array(values).cast(pa.list_(pa.string())), separator.operands[0])


# -- JSON -------------------------------------------------------------------------------------------------------------

_ESCAPES: Final = {code: f"\\u{code:04X}" for code in range(32)} | {
    ord(char): "\\" + escaped for char, escaped in zip('"\\\b\t\n\f\r', '"\\btnfr', strict=True)
}
_ESCAPED: Final = r'["\\\x00-\x1f]'


def _to_json(rows: _Rows, struct: Sql, *_options: Sql) -> Values:
    """Return structs as JSON objects, without members that are null."""
    return _json(rows.array(struct))


def _json_or_null(rows: _Rows, value: Sql) -> Values:
    """Return values as JSON, and `null` for null."""
    return _filled(_json(rows.array(value)), "null")


def _json(values: pa.Array) -> pa.Array:
    """Return values as JSON, null for null."""
    kind = values.type
    if pa.types.is_null(kind):
        return pa.nulls(len(values), pa.string())
    if pa.types.is_struct(kind):
        members = [
            _filled(pc.binary_join_element_wise(f",{_quoted(field.name)}:", _json(child), ""), "")
            for field, child in zip(kind, values.flatten(), strict=True)
            if child.null_count < len(child)
        ]
        joined = _array(pc.binary_join_element_wise("", *members, ""), len(values))
        joined = pc.utf8_slice_codeunits(joined, 1)
        return _valid_like(values, pc.binary_join_element_wise("{", joined, "}", ""))
    if pa.types.is_list(kind):
        offsets, elements = compact_lists(values)
        texts = pa.ListArray.from_arrays(offsets, _filled(_json(elements), "null"))
        return _valid_like(values, pc.binary_join_element_wise("[", pc.binary_join(texts, ","), "]", ""))
    if pa.types.is_string(kind):
        is_escaped = pc.match_substring_regex(values, _ESCAPED)
        if is_escaped.true_count:
            is_escaped = pc.fill_null(is_escaped, False)
            escaped = [text.translate(_ESCAPES) for text in values.filter(is_escaped).to_pylist()]
            values = pc.replace_with_mask(values, is_escaped, pa.array(escaped, pa.string()))
        return pc.binary_join_element_wise('"', values, '"', "")
    if pa.types.is_floating(kind):
        numbers = values.dictionary_encode()
        texts = [_number(value, kind) for value in numbers.dictionary.to_pylist()]
        return pa.array(texts, pa.string()).take(numbers.indices)
    return values.cast(pa.string())


def _filled(texts: pa.Array, text: str) -> pa.Array:
    return pc.fill_null(texts, text) if texts.null_count else texts


def _valid_like(values: pa.Array, texts: pa.Array) -> pa.Array:
    """Return texts, null for values that are null."""
    return pc.if_else(values.is_valid(), texts, pa.scalar(None, pa.string())) if values.null_count else texts


def _quoted(text: str) -> str:
    return f'"{text.translate(_ESCAPES)}"'


def _number(value: float, kind: pa.DataType) -> str:
    if math.isnan(value) or math.isinf(value):
        return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'
    return repr(float(str(np.float32(value))) if pa.types.is_float32(kind) else value)


_COMPARISONS: Final[Mapping[str | None, Callable[..., Values]]] = {
    "=": _typed(_equal),
    "<": _typed(_less),
    "<=": _typed(_less_equal),
    ">": _typed(lambda left, right: _less(right, left)),
    ">=": _typed(lambda left, right: _less_equal(right, left)),
    "<=>": _same,
}
_FUNCTIONS: Final[Mapping[str | None, Callable[..., Values]]] = {
    **_COMPARISONS,
    "AND": _junction(pc.and_kleene),
    "OR": _junction(pc.or_kleene),
    "NOT": lambda value: pc.invert(_flags(value)),
    "IS NULL": pc.is_null,
    "IS NOT NULL": pc.is_valid,
    "IN": _is_in,
    "isnan": _is_nan,
    "+": pc.add,
    "-": pc.subtract,
    "*": pc.multiply,
    "/": lambda left, right: pc.divide(left.cast(pa.float64()), right.cast(pa.float64())),
    "div": pc.divide,
    "%": lambda left, right: pc.subtract(left, pc.multiply(pc.divide(left, right), right)),
    "log2": pc.log2,
    "floor": pc.floor,
    "size": pc.list_value_length,
    "length": pc.binary_length,
    "map_keys": lambda maps: _list_of(maps, "key"),
    "map_entries": _list_of,
    "unix_date": lambda dates: dates.cast(pa.int32()),
    "unix_micros": lambda instants: instants.cast(pa.int64()),
    "hex": _hex,
    "lower": pc.utf8_lower,
    "abs": pc.abs,
    "greatest": pc.max_element_wise,
    "least": pc.min_element_wise,
    "xxhash64": _key,
    "uuid text": uuid_texts,
    "uuid bytes": lambda texts: uuid_bytes(texts).cast(pa.binary()),
}
_AGGREGATES: Final[Mapping[str | None, Callable[[pa.Array, pa.Array], pa.Array]]] = {
    "sum": _sum,
    "min": _extreme("min"),
    "max": _extreme("max"),
    "first": lambda values, offsets: values.take(offsets.slice(0, len(offsets) - 1)),
    "collect_list": lambda values, offsets: pa.ListArray.from_arrays(offsets, values),
}
_LAZY: Final[Mapping[str | None, Callable[..., Values]]] = {
    "column": lambda rows, name: rows.column(name),
    "literal": _literal,
    "typed literal": _typed_literal,
    "CAST": _cast_to,
    "CASE": _case,
    "coalesce": _coalesce,
    "raise_error": _raise_error,
    "struct": _struct,
    "field": _field_of,
    "array": _list,
    "slice": _slice_of,
    "element": _element,
    "get": _element,
    "array_contains": _contains,
    "try_element_at": _value_of_key,
    "number of key": _number_of_key,
    "exists": _exists,
    "forall": _forall,
    "filter": _filter,
    "transform": _transform,
    "total": _total,
    "let": _let,
    "aggregate": _fold,
    "concat": _concat,
    "lookup": _lookup,
    "startswith": _starts_with,
    "substring": _substring,
    "translate": _translate,
    "by value": _by_value,
    "variant field": lambda rows, variants, path, kind: extracted(rows.array(variants), path, kind),
    "bound of field": lambda rows, bounds, path, kind: bounds_of_field(rows.array(bounds), path, kind),
    "map part": _map_part,
    "array_join": _array_join,
    "to_json": _to_json,
    "json": _json_or_null,
}
