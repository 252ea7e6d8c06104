"""Functions of columns as expressions over rows, with equal results by Spark and by the driver."""

from __future__ import annotations

from typing import Final

from sparkmeta.expr import sql
from sparkmeta.expr.sql import Sql
from sparkmeta.spec.functions import EXTRACTED, Cased, Function, letters

# The names of types in Spark's schemas of variants, by the type of the values that are extracted from them.
_IN_SCHEMAS: Final = {
    "boolean": "BOOLEAN",
    "long": "BIGINT",
    "double": r"BIGINT|FLOAT|DOUBLE|DECIMAL\(.*",
    "string": "STRING",
    "date": "DATE",
    "timestamp": "TIMESTAMP_NTZ",
    "timestamptz": "TIMESTAMP",
}
_SPARK: Final = {name: name for name in EXTRACTED} | {
    "long": "bigint", "timestamp": "timestamp_ntz", "timestamptz": "timestamp_ltz",
}  # fmt: skip


def function_value(function: Function, column: Sql) -> Sql:
    """Return the value of a function of a column, null for null."""
    if isinstance(function, Cased):
        return sql.call("translate", column, *letters(function.name))
    value = sql.call("try_variant_get", column, function.spelled_path, "variant")
    extracted = sql.call("try_variant_get", column, function.spelled_path, _SPARK[function.kind])
    has_type = sql.call("regexp_like", sql.call("schema_of_variant", value), f"^({_IN_SCHEMAS[function.kind]})$")
    names = tuple(name.encode() for name in function.path)
    return sql.spelled(sql.when(has_type, extracted), "variant field", column, names, function.kind)
