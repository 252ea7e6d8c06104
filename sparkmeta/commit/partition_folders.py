"""Parse partitions from folder names such as `.../day=2026-01-31/...`, the layout of Hive and Iceberg's writers.

Writers may use other names, so these partitions are only search hints.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from itertools import product
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, unquote_plus

import pyarrow as pa
from pyiceberg.transforms import HourTransform, MonthTransform, Transform, YearTransform

from sparkmeta.entries.projection import PARTITION
from sparkmeta.expr.bounds import ANY, bound_arrow_type

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyiceberg.partitioning import PartitionSpec

    from sparkmeta.snapshot.state import TableState

NULL_FOLDERS = ("null", "__HIVE_DEFAULT_PARTITION__")
"""The names of folders with null values."""

_EPOCH_YEAR = 1970


def partitions_of_folders(state: TableState, paths: Iterable[str]) -> pa.Table:
    """Return the partitions named by the folders in file paths.

    Returns:
        The distinct `partition_spec_id` and `partition`, a struct by partition field id, for each spec whose fields all
        occur.
    """
    types = {field_id: bound_arrow_type(name) for field_id, name in state.types.partition_fields.items() if name != ANY}
    folders = {path.rpartition("/")[0] for path in paths}
    texts_of_folders = [named_folders(folder) for folder in folders]
    rows = {
        (spec_id, values)
        for spec_id, spec in state.specs.items()
        if spec.fields and all(field.field_id in types for field in spec.fields)
        for texts in texts_of_folders
        for values in _partitions(spec, texts, types)
    }
    kind = pa.struct([(str(field_id), value_type) for field_id, value_type in types.items()])
    partition = pa.array([{str(field_id): value for field_id, value in values} for _, values in rows], kind)
    specs = pa.array([spec_id for spec_id, _ in rows], pa.int32())
    return pa.table({"partition_spec_id": specs, PARTITION: partition})


def named_folders(folder: str) -> dict[str, str]:
    """Return the escaped values of the folders `name=value` in a path, by each name that a folder may have."""
    return {name: text for names, text in assignments(folder) for name in names}


def assignments(folder: str) -> Iterator[tuple[Sequence[str], str]]:
    """Yield the names that each folder `name=value` in a path may have, and its escaped value."""
    for part in folder.split("/"):
        name, sign, text = part.partition("=")
        if sign:
            yield readings(name), text


def readings(escaped: str) -> Sequence[str]:
    """Return the possible meanings of an escaped folder name or value.

    Iceberg escapes a space as `+`; Spark and Hive do not.
    """
    return [*dict.fromkeys((unquote(escaped), unquote_plus(escaped)))]


def _partitions(
    spec: PartitionSpec, texts: Mapping[str, str], types: Mapping[int, pa.DataType]
) -> Iterable[tuple[tuple[int, Any], ...]]:
    """Return the partitions that folders may name; none if a folder is missing or its value can't be parsed."""
    choices = []
    for field in spec.fields:
        values = set()
        for text in readings(texts[field.name]) if field.name in texts else ():
            with suppress(ValueError, pa.ArrowException):
                values.add(folder_value(text, field.transform, types[field.field_id]))
        choices.append([(field.field_id, value) for value in values])
    return product(*choices)


def folder_value(text: str, transform: Transform[Any, Any], kind: pa.DataType) -> Any:
    """Parse the partition value in a folder name.

    Args:
        text: the unescaped text after the field's name.
        transform: the field's transform.
        kind: the Arrow type of its values.

    Raises:
        ValueError: the text is not a valid value. Arrow's own errors may also be raised.
    """
    if text in NULL_FOLDERS:
        return None
    match transform:
        case YearTransform():
            return int(text) - _EPOCH_YEAR
        case MonthTransform():
            month = datetime.strptime(text, "%Y-%m")  # noqa: DTZ007
            return (month.year - _EPOCH_YEAR) * 12 + month.month - 1
        case HourTransform():
            return (datetime.strptime(text, "%Y-%m-%d-%H") - datetime(_EPOCH_YEAR, 1, 1)).total_seconds() // 3600  # noqa: DTZ001, DTZ007
    return pa.scalar(text).cast(kind).as_py()
