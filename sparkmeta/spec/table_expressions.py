"""Add and check the expressions of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.transforms import IdentityTransform, VoidTransform

from sparkmeta.errors import CorruptFileError, UnsupportedError
from sparkmeta.spec.expressions import MAX_STATS_FIELD_ID, Expression, expressions_by_key, spec_keys

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionField, PartitionSpec

    from sparkmeta.spec.metadata_model import TableMetadataV4


def add_expressions(metadata: TableMetadataV4, spec: PartitionSpec) -> TableMetadataV4:
    """Return the metadata with an expression for every field of a spec.

    An existing expression is used if its source ids, transform, partition field id and name agree with the field.
    New expressions get ids from last-column-id + 1 on, and last-column-id advances (semantics 17.7).

    Args:
        metadata: The table's metadata.
        spec: A partition spec, which the metadata need not contain.

    Raises:
        UnsupportedError: A new id would be too large for content_stats.
    """
    known = expressions_by_key(metadata.expressions)
    added: list[Expression] = []
    last = max([metadata.last_column_id, *_column_ids(metadata)])
    for key, partition_field in zip(spec_keys(spec), spec.fields, strict=True):
        if key not in known:
            last += 1
            _check_stats_id(metadata, partition_field, last)
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
    """Check the ids of a table's expressions.

    Raises:
        CorruptFileError: An expression has the id of a column, or an id above last-column-id.
    """
    column_ids = _column_ids(metadata)
    for i, expression in enumerate(metadata.expressions):
        path, expr_id = f"expressions[{i}].expr-id", expression.expr_id
        if expr_id in column_ids:
            raise CorruptFileError(location, path, expr_id, "a column has the same id")
        if expr_id > metadata.last_column_id:
            raise CorruptFileError(location, path, expr_id, f"last-column-id is only {metadata.last_column_id}")


def _column_ids(metadata: TableMetadataV4) -> set[int]:
    return {field_id for schema in metadata.schemas for field_id in schema._lazy_id_to_field}


def _check_stats_id(metadata: TableMetadataV4, partition_field: PartitionField, expr_id: int) -> None:
    if expr_id > MAX_STATS_FIELD_ID and not isinstance(partition_field.transform, IdentityTransform | VoidTransform):
        raise UnsupportedError(
            f"{metadata.location}: partition field {partition_field.name} would get id {expr_id}, and statistics "
            f"support only ids up to {MAX_STATS_FIELD_ID}: last-column-id is {metadata.last_column_id}"
        )
