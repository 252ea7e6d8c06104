"""Shred variants as Iceberg's Java library does, and compute the bounds of their fields.

Spark tasks import this module. The first rows of a file decide which fields of objects, and which elements of arrays,
get columns of their own (Parquet format, Variant Shredding). Rows pass through Python one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.expr.arrays import field_id
from sparkmeta.expr.variants import (
    ARRAY,
    DECIMAL_IDS,
    FILE_VARIANT,
    INTEGER_IDS,
    NULL,
    OBJECT,
    TRUE_ID,
    VariantNames,
    elements_of,
    fields_of,
    is_file_variant,
    kind_of,
    normalized_path,
    object_of,
    primitive_of,
    primitives,
    sorted_metadata,
)

# The limits of Iceberg's Java library.
_MIN_SHARE: Final = 0.1
_MAX_FIELDS: Final = 300
_MAX_OBSERVED: Final = 1000
_MAX_DEPTH: Final = 50
_MAX_DIGITS: Final = 38

# By the id of a primitive type in the encoding of variants.
_TYPES: Final[dict[int, pa.DataType]] = {
    TRUE_ID: pa.bool_(),
    3: pa.int8(),
    4: pa.int16(),
    5: pa.int32(),
    6: pa.int64(),
    7: pa.float64(),
    11: pa.date32(),
    12: pa.timestamp("us", "UTC"),
    13: pa.timestamp("us"),
    14: pa.float32(),
    15: pa.binary(),
    16: pa.string(),
    17: pa.time64("us"),
    18: pa.timestamp("ns", "UTC"),
    19: pa.timestamp("ns"),
}


# -- Choose the columns -----------------------------------------------------------------------------------------------


@dataclass
class _Observed:
    """What the first variants of a file contain at a path."""

    count: int = 0
    kinds: set[int | str] = field(default_factory=set)
    digits: int = 0
    scale: int = 0
    fields: dict[bytes, _Observed] = field(default_factory=dict)
    element: _Observed | None = None

    def add(self, value: bytes, names: VariantNames, depth: int = 0) -> None:
        """Observe a value, unless it is the variant null."""
        kind = kind_of(value)
        if kind == 0:
            return
        self.count += 1
        self.kinds.add(kind)
        if kind in DECIMAL_IDS:
            _, digits, exponent = primitive_of(value).as_tuple()
            self.scale = max(self.scale, -exponent)
            self.digits = max(self.digits, len(digits) + exponent)
        if depth == _MAX_DEPTH:
            return
        if kind == OBJECT:
            for name, child in fields_of(value, names).items():
                if name in self.fields or len(self.fields) < _MAX_OBSERVED:
                    self.fields.setdefault(name, _Observed()).add(child, names, depth + 1)
        elif kind == ARRAY:
            self.element = self.element or _Observed()
            for child in elements_of(value):
                self.element.add(child, names, depth + 1)

    def typed(self, rows: int) -> pa.DataType | None:
        """Return the type of `typed_value`; None if the values are not shredded.

        Args:
            rows: the number of variants. Fields that few of them contain are not shredded.
        """
        kinds = self.kinds
        if kinds == {OBJECT}:
            frequent = [(each.count, name) for name, each in self.fields.items() if each.count >= rows * _MIN_SHARE]
            chosen = sorted(
                sorted(frequent, key=lambda pair: (-pair[0], pair[1]))[:_MAX_FIELDS], key=lambda pair: pair[1]
            )
            typed = [(name, self.fields[name].typed(rows)) for _, name in chosen]
            groups = [pa.field(name.decode(), _group(kind), nullable=False) for name, kind in typed if kind is not None]
            return pa.struct(groups) if groups else None
        if kinds == {ARRAY}:
            kind = self.element.typed(rows) if self.element is not None else None
            return None if kind is None else pa.list_(pa.field("element", _group(kind), nullable=False))
        if kinds and kinds.issubset(DECIMAL_IDS):
            scale = min(self.scale, max(_MAX_DIGITS - self.digits, 0))
            return pa.decimal128(max(min(self.digits + self.scale, _MAX_DIGITS), 1), scale)
        if kinds and kinds.issubset(INTEGER_IDS):
            return _TYPES[max(map(int, kinds))]
        return _TYPES.get(int(*kinds)) if len(kinds) == 1 else None


def _group(kind: pa.DataType) -> pa.StructType:
    return pa.struct([pa.field("value", pa.binary()), pa.field("typed_value", kind)])


# -- Shred rows -------------------------------------------------------------------------------------------------------


class Shredder:
    """Shreds the variants in the columns of a file, and tracks the bounds of their fields.

    Attributes:
        schema: the schema of the file.
    """

    def __init__(self, table: pa.Table, rows: int) -> None:
        """Choose the typed columns for the top-level variant columns.

        Args:
            table: the first rows of the file, in its schema without shredded variants.
            rows: the number of rows that determine the typed columns.
        """
        self.schema: pa.Schema = table.schema
        self._columns: list[_Column] = []
        for index, column in enumerate(table.schema):
            if is_file_variant(column.type):
                observed = _Observed()
                for names, value in _variants(table.column(index).slice(0, rows)):
                    if value is not None:
                        observed.add(value, names)
                if (kind := observed.typed(observed.count)) is not None:
                    metadata = FILE_VARIANT.field("metadata")
                    self.schema = self.schema.set(index, column.with_type(pa.struct([metadata, *_group(kind)])))
                    self._columns.append(_Column(index, kind))

    def shredded(self, table: pa.Table) -> pa.Table:
        """Return rows in the file's schema."""
        from sparkmeta.arrow_types import with_required_fields

        for column in self._columns:
            kind = self.schema.field(column.index).type
            rows = [
                None if value is None else _split(value, names, column.kind)
                for names, value in _variants(table.column(column.index))
            ]
            groups = pa.array(rows, _group(column.kind))
            column.bounds.add(groups)
            metadata = pc.struct_field(table.column(column.index).combine_chunks(), "metadata")
            parts = [pc.fill_null(metadata, b""), *groups.flatten()]
            values = pa.StructArray.from_arrays(parts, fields=list(kind), mask=groups.is_null())
            table = table.set_column(column.index, self.schema.field(column.index), values)
        return with_required_fields(table)

    def bounds(self) -> dict[int | None, FieldBounds]:
        """Return the bounds of the fields of each shredded column, by its id."""
        return {field_id(self.schema.field(column.index)): column.bounds for column in self._columns}


def _variants(column: pa.ChunkedArray) -> Sequence[tuple[VariantNames, bytes | None]]:
    """Return the names and the value of each variant; None for nulls."""
    known: dict[bytes, VariantNames] = {}
    rows = []
    for row in column.to_pylist():
        metadata = b"\x01\0\0" if row is None else row["metadata"]
        names = known.get(metadata) or known.setdefault(metadata, VariantNames(metadata))
        rows.append((names, None if row is None else row["value"]))
    return rows


def _split(value: bytes, names: VariantNames, kind: pa.DataType) -> dict[str, Any]:
    """Return a value as a group of the fields `value` and `typed_value`."""
    value_kind = kind_of(value)
    if pa.types.is_struct(kind):
        if value_kind == OBJECT:
            fields = fields_of(value, names)
            typed: dict[str, Any] = {}
            for group in kind:
                part = fields.pop(group.name.encode(), None)
                typed[group.name] = {} if part is None else _split(part, names, group.type.field("typed_value").type)
            return {"value": object_of(fields, names) if fields else None, "typed_value": typed}
    elif pa.types.is_list(kind):
        if value_kind == ARRAY:
            element = kind.value_type.field("typed_value").type
            return {"typed_value": [_split(part, names, element) for part in elements_of(value)]}
    elif _accepts(kind, value_kind):
        decoded = primitive_of(value)
        if isinstance(decoded, Decimal):
            decoded = _scaled(decoded, kind)
        if decoded is not None:
            return {"typed_value": decoded}
    return {"value": value}


def _accepts(kind: pa.DataType, value_kind: int | str) -> bool:
    """Return whether a typed column can hold variant values of a kind."""
    if pa.types.is_decimal(kind):
        return value_kind in DECIMAL_IDS
    if pa.types.is_integer(kind):
        return value_kind in INTEGER_IDS and bool(_TYPES[int(value_kind)].bit_width <= kind.bit_width)
    return isinstance(value_kind, int) and _TYPES.get(value_kind) == kind


def _scaled(value: Decimal, kind: pa.Decimal128Type) -> Decimal | None:
    """Return a decimal with the scale of a column; None if it does not fit."""
    sign, digits, exponent = value.as_tuple()
    zeros = kind.scale + int(exponent)
    if zeros < 0 or len(digits) + zeros > kind.precision:
        return None
    return Decimal((sign, digits + (0,) * zeros, -kind.scale))


# -- Bounds of fields (table spec, Bounds for Variant) ----------------------------------------------------------------


@dataclass
class FieldBounds:
    """The bounds of the shredded fields of a column, by path.

    A field has no bounds if one of its values is not shredded, unless that value is the variant null.

    Attributes:
        least: the lower bounds.
        greatest: the upper bounds.
        unknown: paths without bounds.
    """

    least: dict[str, pa.Scalar] = field(default_factory=dict)
    greatest: dict[str, pa.Scalar] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)

    def add(self, groups: pa.StructArray, *names: str) -> None:
        """Add the values of the field at the path `names`: groups of the fields `value` and `typed_value`."""
        path, (value, typed) = normalized_path(names), groups.flatten()
        if pa.types.is_struct(typed.type):
            for child, values in zip(typed.type, typed.flatten(), strict=True):
                self.add(values, *names, child.name)
        elif pc.any(pc.not_equal(value, NULL)).as_py():
            self.unknown.add(path)
        elif not pa.types.is_list(typed.type) and typed.null_count < len(typed):
            if pa.types.is_floating(typed.type) and pc.any(pc.is_nan(typed)).as_py():
                self.unknown.add(path)
                return
            known = [each[path] for each in (self.least, self.greatest) if path in each]
            extremes = pc.min_max(pa.concat_arrays([typed, *(pa.repeat(each, 1) for each in known)]))
            self.least[path], self.greatest[path] = extremes["min"], extremes["max"]

    def encoded(self, cut: Callable[[Any], Any], cut_up: Callable[[Any], Any]) -> tuple[bytes | None, bytes | None]:
        """Return the bounds as variants: objects of paths and bounds. None if there are none.

        Args:
            cut: truncates a text or binary to a lower bound.
            cut_up: truncates one to an upper bound; None if there is none.
        """
        return _encoded(self.least, self.unknown, cut), _encoded(self.greatest, self.unknown, cut_up)


@dataclass
class _Column:
    """A shredded column.

    Attributes:
        index: its index in the file's schema.
        kind: the type of its `typed_value`.
        bounds: the bounds of its fields.
    """

    index: int
    kind: pa.DataType
    bounds: FieldBounds = field(default_factory=FieldBounds)


def _encoded(bounds: Mapping[str, pa.Scalar], unknown: Collection[str], cut: Callable[[Any], Any]) -> bytes | None:
    values = {}
    for path, bound in bounds.items():
        is_text = pa.types.is_string(bound.type) or pa.types.is_binary(bound.type)
        value = pa.scalar(cut(bound.as_py()), bound.type) if is_text else bound
        if path not in unknown and value.is_valid:
            values[path.encode()] = primitives(pa.repeat(value, 1))[0].as_py()
    if not values:
        return None
    metadata = sorted_metadata(sorted(values))
    return metadata + object_of(values, VariantNames(metadata))
