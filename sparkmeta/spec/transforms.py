"""Transforms that pyiceberg lacks: unknown ones, and buckets of several columns."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from pydantic import PrivateAttr
from pyiceberg import transforms
from pyiceberg.types import (
    BinaryType,
    DecimalType,
    FixedType,
    IntegerType,
    StringType,
    TimestampNanoType,
    TimestamptzNanoType,
    UUIDType,
)
from pyiceberg.utils.decimal import decimal_to_bytes

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionField
    from pyiceberg.schema import Schema
    from pyiceberg.table.sorting import SortField
    from pyiceberg.types import IcebergType

WITH_WIDTH: Final = re.compile(r"(bucket|truncate)\[(\d+)\]", re.IGNORECASE)
"""The text of a transform with a parameter."""

BUCKET_HASH: Final = "murmur3-concatenated"
"""The hash of several columns, see `ColumnsBucket`. No specification defines it, so fields name it."""


class UnknownTransform(transforms.UnknownTransform[Any, Any]):
    """A transform that can't be computed, known only by its text.

    Its values are strings, and filters on its source columns project to nothing.

    Attributes:
        sources: The source columns if there are several. They are a part of the transform, since pyiceberg's partition
            and sort fields have only the first one.
    """

    root: str  # type: ignore[assignment]
    _sources: tuple[int, ...] = PrivateAttr(())

    def __init__(self, transform: str, sources: Iterable[int] = (), by: str = "") -> None:
        several = tuple(sources)
        # pyiceberg compares transforms by their roots, and looks them up by their representations.
        root = f"{transform} of columns {several}{by}" if several else transform
        super(transforms.UnknownTransform, self).__init__(root=root)
        self._transform, self._sources = transform, several

    def __str__(self) -> str:
        return self._transform

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.root!r})"

    @property
    def sources(self) -> tuple[int, ...]:
        return self._sources

    def of_columns(self, sources: Sequence[int]) -> UnknownTransform:
        """Return the transform of the columns of a new table. A bucket gets a hash that can be computed."""
        return UnknownTransform(self._transform, sources)

    def can_transform(self, source: IcebergType) -> bool:  # noqa: ARG002
        """Return True, so that tables with such a transform can be read."""
        return True


class SeveralColumnsBucket(UnknownTransform):
    """The transform `bucket[n]` of several columns by an unknown hash. Its values are int."""

    def __init__(self, transform: str, sources: Iterable[int], by: str = "") -> None:
        super().__init__(transform, sources, by)  # pydantic's metaclass hides the inherited signature

    def result_type(self, source: IcebergType) -> IntegerType:  # type: ignore[override]  # noqa: ARG002
        return IntegerType()

    def of_columns(self, sources: Sequence[int]) -> ColumnsBucket:
        match = WITH_WIDTH.fullmatch(self._transform)
        assert match is not None
        return ColumnsBucket(int(match[2]), sources)


class ColumnsBucket(SeveralColumnsBucket):
    """The transform `bucket[n]` of several columns by the hash `BUCKET_HASH`, which can be computed.

    The bytes that Iceberg hashes of each value (table spec, Appendix B) are concatenated in the order of the columns,
    without nulls, and hashed as one value. The bucket is null if all values are null (semantics 5.6).
    """

    _single: transforms.BucketTransform[Any] = PrivateAttr()

    def __init__(self, num_buckets: int, sources: Iterable[int]) -> None:
        super().__init__(f"bucket[{num_buckets}]", sources, by=f" by {BUCKET_HASH}")
        self._single = transforms.BucketTransform(num_buckets)

    @property
    def num_buckets(self) -> int:
        return self._single.num_buckets

    def can_transform(self, source: IcebergType) -> bool:
        """Return whether a type can be the type of a source column."""
        return self._single.can_transform(source)

    def of_bytes(self, value: bytes | None) -> int | None:
        """Return the bucket of concatenated bytes; null for None."""
        return self._single.transform(BinaryType())(value)

    def of_values(self, values: Sequence[bytes | None]) -> int | None:
        """Return the bucket of the bytes of each column."""
        valid = [value for value in values if value is not None]
        return self.of_bytes(b"".join(valid) if valid else None)

    def default_name(self, schema: Schema) -> str:
        """Return the name of a partition field, such as `a_b_bucket_16`."""
        names = [schema.find_column_name(source) or "" for source in self.sources]
        return "_".join([*names, f"bucket_{self.num_buckets}"])


def field_sources(field: PartitionField | SortField) -> tuple[int, ...]:
    """Return the source columns of a partition field or sort field. A void field has only its first one."""
    several = field.transform.sources if isinstance(field.transform, UnknownTransform) else ()
    return several or (field.source_id,)


def is_unknown(transform: transforms.Transform[Any, Any]) -> bool:
    """Return whether the values of a transform can't be computed."""
    return isinstance(transform, transforms.UnknownTransform) and not isinstance(transform, ColumnsBucket)


def has_unknown_values(transform: transforms.Transform[Any, Any]) -> bool:
    """Return whether not even the type of a transform's values is known."""
    return isinstance(transform, UnknownTransform) and not isinstance(transform, SeveralColumnsBucket)


def hashed_bytes(value: Any, kind: IcebergType) -> bytes | None:
    """Return the bytes of a value that buckets hash (table spec, Appendix B).

    Args:
        value: a value as in literals and bounds: numbers for times; None for null.
        kind: its type, which a bucket supports.
    """
    match kind:
        case _ if value is None:
            return None
        case DecimalType():
            return decimal_to_bytes(value)
        case StringType():
            return value.encode() if isinstance(value, str) else bytes(value)
        case UUIDType():
            return value.bytes if isinstance(value, UUID) else bytes(value)
        case FixedType() | BinaryType():
            return bytes(value)
        case TimestampNanoType() | TimestamptzNanoType():
            return struct.pack("<q", value // 1000)
    return struct.pack("<q", value)
