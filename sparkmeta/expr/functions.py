"""Functions of columns as SQL expressions that have the same results in Spark and on the driver."""

from __future__ import annotations

from typing import Final

from sparkmeta.expr import sql
from sparkmeta.expr.sql import Sql
from sparkmeta.spec.functions import EXTRACTED, Cased, Function, letters

# Name of an extracted type -> the types that Spark's `schema_of_variant` returns for it, as a regular expression.
_SCHEMA_TYPES: Final = {
    "boolean": "BOOLEAN",
    "long": "BIGINT",
    "double": r"BIGINT|FLOAT|DOUBLE|DECIMAL\(.*",
    "string": "STRING",
    "date": "DATE",
    "timestamp": "TIMESTAMP_NTZ",
    "timestamptz": "TIMESTAMP",
}
_SPARK_TYPES: Final = {name: name for name in EXTRACTED} | {
    "long": "bigint", "timestamp": "timestamp_ntz", "timestamptz": "timestamp_ltz",
}  # fmt: skip


def function_value(function: Function, column: Sql) -> Sql:
    """Return the function of a column as an expression. It is null where the column is null."""
    if isinstance(function, Cased):
        return sql.call("translate", column, *letters(function.name))
    value = sql.call("try_variant_get", column, function.spelled_path, "variant")
    extracted = sql.call("try_variant_get", column, function.spelled_path, _SPARK_TYPES[function.kind])
    has_type = sql.call("regexp_like", sql.call("schema_of_variant", value), f"^({_SCHEMA_TYPES[function.kind]})$")
    names = tuple(name.encode() for name in function.path)
    return sql.spelled(sql.when(has_type, extracted), "variant field", column, names, function.kind)
