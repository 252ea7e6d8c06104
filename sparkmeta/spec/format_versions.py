"""Say what a format version does not support."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.schema import index_by_id

from sparkmeta.errors import ValidationError
from sparkmeta.spec.partitioning import partition_sources

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema

_TYPES_SINCE_VERSION_3 = ("variant", "unknown", "timestamp_ns", "timestamptz_ns", "geometry", "geography")


def refuse_unsupported(version: int, schemas: Iterable[Schema], specs: Iterable[PartitionSpec], location: str) -> None:
    """Raise ValidationError if a schema or spec needs a later format version.

    Args:
        version: The format version of a table.
        schemas: Its schemas.
        specs: Its partition specs.
        location: Its location, for error messages.
    """
    if version >= 3:
        return
    where = f"{location}: version {version} does not support"
    for column in (column for schema in schemas for column in index_by_id(schema).values()):
        if str(column.field_type).startswith(_TYPES_SINCE_VERSION_3):
            raise ValidationError(f"{where} column {column.name} of type {column.field_type}")
        if column.initial_default is not None or column.write_default is not None:
            raise ValidationError(f"{where} the default of column {column.name}")
    for spec in specs:
        for field, sources in zip(spec.fields, partition_sources(spec), strict=True):
            if len(sources) > 1:
                raise ValidationError(f"{where} partition field {field.name}, which is computed of several columns")
