"""Metadata tables as plain values: many DataFrames collected by one job, types without what only Java adds to them."""

from __future__ import annotations

import json
from collections import Counter
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from pyspark.sql import DataFrame

# Keep all digits of timestamps, and distinguish nulls from missing fields.
_JSON = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "ignoreNullFields": "false",
}


def collected(frames: Mapping[Any, DataFrame]) -> dict[Hashable, list[dict[str, Any]]]:
    """The rows of several DataFrames, collected by one job."""
    numbered = [
        frame.select(F.lit(number).alias("frame"), F.to_json(F.struct("*"), _JSON).alias("row"))
        for number, frame in enumerate(frames.values())
    ]
    names = list(frames)
    rows: dict[Hashable, list[dict[str, Any]]] = {name: [] for name in names}
    for row in reduce(lambda left, right: left.unionByName(right), numbered).collect() if numbered else []:
        rows[names[row.frame]].append(json.loads(row.row, object_hook=_without_null_partitions))
    return rows


def _without_null_partitions(row: dict[str, Any]) -> dict[str, Any]:
    """Java's rows lack the partition fields that the file's spec doesn't have; other rows have them as null."""
    if isinstance(row.get("partition"), dict):
        row["partition"] = {name: value for name, value in row["partition"].items() if value is not None}
    return row


def plain_type(kind: DataType, any_nan: bool = False) -> DataType:
    """A type without the metadata of its fields, where Java puts their descriptions.

    any_nan: contains_nan is taken for optional, whatever it is declared as.
    """
    if isinstance(kind, StructType):
        return StructType(
            [
                StructField(
                    field.name,
                    plain_type(field.dataType, any_nan),
                    field.nullable or (any_nan and field.name == "contains_nan"),
                )
                for field in kind.fields
            ]
        )
    if isinstance(kind, ArrayType):
        return ArrayType(plain_type(kind.elementType, any_nan), kind.containsNull)
    if isinstance(kind, MapType):
        return MapType(plain_type(kind.keyType, any_nan), plain_type(kind.valueType, any_nan), kind.valueContainsNull)
    return kind


def assert_same_rows(ours: list[dict[str, Any]], theirs: list[dict[str, Any]], said: str) -> None:
    """The same rows, in any order and as often, told by where they differ."""
    mine, java = (Counter(json.dumps(row, sort_keys=True) for row in rows) for rows in (ours, theirs))
    if mine == java:
        return
    only_ours, only_java = sorted((mine - java).elements()), sorted((java - mine).elements())
    differences = [_differences(json.loads(a), json.loads(b)) for a, b in zip(only_ours, only_java, strict=False)]
    closest = min(differences, key=len, default=[*only_ours[:1], *only_java[:1]])
    counts = f"{len(ours)} rows, Java {len(theirs)}; {len(only_ours)} only ours, {len(only_java)} only Java's"
    raise AssertionError(f"{said}: {counts}: {closest}")


def _differences(ours: Any, theirs: Any, path: str = "") -> list[str]:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        keys = sorted({*ours, *theirs})
        return [each for key in keys for each in _differences(ours.get(key), theirs.get(key), f"{path}.{key}")]
    return [] if ours == theirs else [f"{path}: {ours!r}, Java {theirs!r}"]
