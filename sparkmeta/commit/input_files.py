"""Files as callers pass them to a commit: DataFrames, Arrow tables, pyiceberg's data files, or a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from uuid import UUID

import pyarrow as pa
from pyiceberg.manifest import DATA_FILE_TYPE, DataFile
from pyspark.sql import DataFrame

from sparkmeta.entries.manifest_records import map_type
from sparkmeta.entries.projection import PARTITION
from sparkmeta.entries.relation import Relation, names, select
from sparkmeta.errors import ValidationError, shown
from sparkmeta.expr import sql
from sparkmeta.expr.arrays import with_plain_types
from sparkmeta.expr.bounds import ANY, bound_arrow_type
from sparkmeta.operations.table_operations import BaseTable
from sparkmeta.snapshot.state import TableState
from sparkmeta.spec.entry import METRICS_MAP_IDS
from sparkmeta.spec.locations import LOCAL

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sparkmeta.expr.sql import Aliased
    from sparkmeta.spec.locations import Locations

InputFiles: TypeAlias = DataFrame | pa.Table | Sequence[DataFile]
"""Files with the columns of `inspect.files`: many as a DataFrame, few as an Arrow table or pyiceberg's data files."""

_PATHS: Final = ("file_path", "referenced_data_file")
_FILE_TYPES: Final[dict[str, pa.DataType]] = {
    "content": pa.int32(),
    "file_path": pa.string(),
    "file_format": pa.string(),
    "spec_id": pa.int32(),
    "record_count": pa.int64(),
    "file_size_in_bytes": pa.int64(),
    **{name: map_type(name) for name in METRICS_MAP_IDS},
    "key_metadata": pa.binary(),
    "split_offsets": pa.list_(pa.int64()),
    "equality_ids": pa.list_(pa.int32()),
    "sort_order_id": pa.int32(),
    "referenced_data_file": pa.string(),
    "content_offset": pa.int64(),
    "content_size_in_bytes": pa.int64(),
}
# Number of fields of pyiceberg's data files -> their names, which depend on the format version.
_FIELDS: Final = {len(kind.fields): tuple(field.name for field in kind.fields) for kind in DATA_FILE_TYPE.values()}


def table_of(files: InputFiles | BaseTable | TableState, state: TableState) -> Relation | TableState:
    """Return the state if the argument is a table, otherwise `rows_of_files`."""
    if isinstance(files, BaseTable):
        return files.state
    return files if isinstance(files, TableState) else rows_of_files(files, state, ", or a table")


def rows_of_files(files: InputFiles, state: TableState, others: str = "") -> Relation:
    """Return files as rows, with the scheme that the table's metadata uses in their local paths.

    Args:
        files: the files.
        state: the table.
        others: the further types that the caller accepts, as text for the error.

    Raises:
        ValidationError: the argument is neither a DataFrame, nor an Arrow table, nor a sequence of data files; or the
            partition of a data file does not fit its spec.
    """
    if hasattr(files, "toArrow"):
        return with_schemes(files, state.types.locations)
    if isinstance(files, pa.Table):
        return with_schemes(with_plain_types(files), state.types.locations)
    if isinstance(files, Sequence) and not isinstance(files, str) and all(isinstance(file, DataFile) for file in files):
        return with_schemes(_described(files, state), state.types.locations)
    expected = f"a DataFrame, an Arrow table or DataFiles of pyiceberg{others}"
    raise ValidationError(f"files is of type {type(files).__name__}: expected {expected}")


def with_schemes(files: Relation, locations: Locations) -> Relation:
    """Return rows of files, with the scheme that the table's metadata uses in their local paths.

    Args:
        files: rows with the columns of `inspect.files`.
        locations: how the table's metadata names files.
    """
    column_names = names(files)
    if not locations.rooted or not set(_PATHS).intersection(column_names):
        return files
    return select(files, [_with_scheme(name) if name in _PATHS else _column(name) for name in column_names])


def _column(name: str) -> Aliased:
    return sql.col(sql.quoted(name)).alias(name)


def _with_scheme(name: str) -> Aliased:
    path = sql.col(name)
    return sql.when(path.startswith("/"), sql.concat(LOCAL, path)).otherwise(path).alias(name)


# -- pyiceberg's data files -------------------------------------------------------------------------------------------


def _described(files: Sequence[DataFile], state: TableState) -> pa.Table:
    """Return the rows of data files."""
    rows = [dict(zip(_FIELDS[len(file._data)], file._data, strict=True)) for file in files]
    spec_ids = [getattr(file, "_spec_id", state.metadata.default_spec_id) for file in files]
    for row, spec_id in zip(rows, spec_ids, strict=True):
        row["spec_id"] = spec_id
        row["content"] = int(row.get("content") or 0)
        row["file_format"] = getattr(row["file_format"], "value", row["file_format"])
    columns = {name: _array((row.get(name) for row in rows), kind, name, state) for name, kind in _FILE_TYPES.items()}
    tuples = [_values(row, state) for row in rows]
    children = []
    for field_id, name in state.types.partition_field_names.items():
        kind = state.types.partition_fields[field_id]
        if kind != ANY:
            field_values = (values.get(field_id) for values in tuples)
            children.append((name, _array(field_values, bound_arrow_type(kind), f"partition.{name}", state)))
    if children:
        arrays = [values for _, values in children]
        columns[PARTITION] = pa.StructArray.from_arrays(arrays, names=[name for name, _ in children])
    return pa.table(columns)


def _values(row: dict[str, Any], state: TableState) -> dict[int, Any]:
    """Return the partition values of a data file by field id; empty for an unknown spec, which is refused later."""
    spec, record = state.specs.get(row["spec_id"]), row["partition"]
    if spec is None:
        return {}
    values = [] if record is None else [*record._data]
    if len(values) != len(spec.fields):
        problem = f"it has {len(values)} values: partition spec {row['spec_id']} has {len(spec.fields)} fields"
        raise ValidationError(f"{state.metadata.location}: partition of file {row['file_path']}: {problem}")
    return {field.field_id: value for field, value in zip(spec.fields, values, strict=True)}


def _array(values: Iterable[Any], kind: pa.DataType, name: str, state: TableState) -> pa.Array:
    plain_values = [_plain(value) for value in values]
    try:
        return pa.array(plain_values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        misfit = next((value for value in plain_values if not _fits(value, kind)), plain_values)
        problem = f"{name} of a file is {shown(misfit)}: expected {kind}"
        raise ValidationError(f"{state.metadata.location}: {problem}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return [*value.items()]
    return value.bytes if isinstance(value, UUID) else value


def _fits(value: Any, kind: pa.DataType) -> bool:
    try:
        pa.array([value], kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return False
    return True
