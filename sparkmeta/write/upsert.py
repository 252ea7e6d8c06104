"""Express an upsert as a merge: update rows by key where a value differs, and insert the others."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from pyiceberg.types import MapType
from pyspark.sql import functions as F

from sparkmeta.checks import NAMES
from sparkmeta.columns.sql import quoted
from sparkmeta.errors import ValidationError
from sparkmeta.rows.projected import child_fields
from sparkmeta.write.input import check_columns
from sparkmeta.write.merge import Merge

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType
    from pyspark.sql import Column, DataFrame


def upsert_of(
    rows: DataFrame, keys: Sequence[str] | None, schema: Schema, table: str, *, updates: bool, inserts: bool
) -> Merge[None]:
    """Check the given rows and return the merge that carries out the upsert.

    Args:
        rows: the given rows.
        keys: the key columns; None for the schema's identifier fields.
        schema: the table's.
        table: the table, for errors.
        updates: whether to update existing rows.
        inserts: whether to insert new rows.

    Raises:
        ValidationError: a column does not fit, or there is no key.
    """
    if keys is not None:
        NAMES.check(f"{table}: join_cols", keys)
    names = tuple(keys) if keys is not None else tuple(sorted(schema.identifier_field_names()))
    if not names:
        raise ValidationError(f"{table}: an upsert needs join_cols: the table's schema names no identifier fields")
    check_columns(rows, schema, table)
    kinds = {field.name: field.field_type for field in schema.fields}
    others = [name for name in rows.columns if name not in names]
    merge = Merge(rows, names, lambda _: None)
    if updates and others:
        # Spark can't compare maps or types that contain them.
        differs = [F.lit(True) if _has_map(kinds[name]) else _differs(name) for name in others]
        merge = merge.when_matched(reduce(or_, differs)).update_all()
    return merge.when_not_matched().insert_all() if inserts else merge


def _has_map(kind: IcebergType) -> bool:
    return isinstance(kind, MapType) or any(_has_map(child.field_type) for child in child_fields(kind))


def _differs(name: str) -> Column:
    target, source = (F.col(f"{side}.{quoted(name)}") for side in ("target", "source"))
    return ~target.eqNullSafe(source)
