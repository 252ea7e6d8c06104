"""The expressions of a whole table: added for the fields of its specs, and checked against its columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.transforms import IdentityTransform, VoidTransform

from sparkmeta.errors import CorruptFileError, UnsupportedError
from sparkmeta.spec.expressions import MAX_STATS_FIELD_ID, Expression, expressions_by_key, spec_keys

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionField, PartitionSpec

    from sparkmeta.spec.metadata_model import TableMetadataV4


def add_expressions(metadata: TableMetadataV4, spec: PartitionSpec) -> TableMetadataV4:
    """Add the missing expressions for the fields of a spec, which need not be one of the table's yet.

    An existing expression serves where source ids, transform, partition field id and name all agree (C31); new ones
    are numbered from last-column-id + 1, which advances (C30).

    Raises:
        UnsupportedError: no id is left that content_stats has room for.
    """
    known = expressions_by_key(metadata.expressions)
    added: list[Expression] = []
    last = max([metadata.last_column_id, *_columns(metadata)])
    for key, partition_field in zip(spec_keys(spec), spec.fields, strict=True):
        if key not in known:
            last += 1
            _refuse_without_stats(metadata, partition_field, last)
            sources, transform, partition_field_id, name = key
            known[key] = Expression(
                expr_id=last,
                source_ids=sources,
                transform=transform,
                name=name,
                partition_field_id=partition_field_id,
            )
            added.append(known[key])
    if not added:
        return metadata
    return metadata.model_copy(update={"expressions": [*metadata.expressions, *added], "last_column_id": last})


def check_expressions(metadata: TableMetadataV4, location: str) -> None:
    """Raise CorruptFileError where an expression's id is a column's as well, or is above last-column-id."""
    columns = _columns(metadata)
    for i, expression in enumerate(metadata.expressions):
        path, expr_id = f"expressions[{i}].expr-id", expression.expr_id
        if expr_id in columns:
            raise CorruptFileError(location, path, expr_id, "a column has the same id")
        if expr_id > metadata.last_column_id:
            raise CorruptFileError(location, path, expr_id, f"last-column-id is only {metadata.last_column_id}")


def _columns(metadata: TableMetadataV4) -> set[int]:
    return {column for schema in metadata.schemas for column in schema._lazy_id_to_field}


def _refuse_without_stats(metadata: TableMetadataV4, partition_field: PartitionField, expr_id: int) -> None:
    if expr_id > MAX_STATS_FIELD_ID and not isinstance(partition_field.transform, IdentityTransform | VoidTransform):
        raise UnsupportedError(
            f"{metadata.location}: partition field {partition_field.name} would get id {expr_id}, and statistics have "
            f"room for ids up to {MAX_STATS_FIELD_ID}: last-column-id is {metadata.last_column_id}"
        )
