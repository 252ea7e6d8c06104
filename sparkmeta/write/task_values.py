"""Compute transforms that have no exact form in Spark SQL. Spark tasks import this module."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.transforms import BucketTransform

if TYPE_CHECKING:
    from pyiceberg.transforms import Transform
    from pyiceberg.types import IcebergType


@dataclass(frozen=True)
class TaskValue:
    """A column of source values to replace with transformed values.

    Attributes:
        name: the column.
        transform: the transform.
        source: the Iceberg type of the source values.
    """

    name: str
    transform: Transform[Any, Any]
    source: IcebergType


@dataclass(frozen=True)
class TaskValues:
    """Replaces source values with transformed ones, transforming each distinct value of a batch once. Picklable.

    Truncated decimals with more digits than their type has become null.
    """

    values: tuple[TaskValue, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        functions = {value.name: value.transform.transform(value.source) for value in self.values}
        buckets = {value.name for value in self.values if isinstance(value.transform, BucketTransform)}
        for batch in batches:
            arrays, fields = [], []
            for field, array in zip(batch.schema, batch.columns, strict=True):
                if field.name not in functions:
                    arrays.append(array)
                    fields.append(field)
                    continue
                coded = array.dictionary_encode("encode")
                distinct = [functions[field.name](_plain(value)) for value in coded.dictionary.to_pylist()]
                kind = pa.int32() if field.name in buckets else array.type
                arrays.append(pa.array([_fitting(value, kind) for value in distinct], kind).take(coded.indices))
                fields.append(pa.field(field.name, kind))
            yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _plain(value: Any) -> Any:
    return value if isinstance(value, Decimal | str | bytes | None) else bytes(value)


def _fitting(value: Any, kind: pa.DataType) -> Any:
    """Return a value; None for a decimal with too many digits."""
    fits = not isinstance(value, Decimal) or value.copy_abs() < Decimal(10) ** (kind.precision - kind.scale)
    return value if fits else None
