"""Read fields of V4 manifests, in either layout, by their ids. Without Spark: tasks import this."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.entries.projection import CONTENT_STATS
from sparkmeta.errors import CorruptFileError
from sparkmeta.expr.arrays import field_id, whole
from sparkmeta.expr.bounds import bound_arrow_type, promoted_days
from sparkmeta.spec.entry import (
    BOUNDS,
    DELETION_VECTOR,
    MANIFEST_STATS,
    VERSION_INFO,
    FieldSpec,
    full_stats_struct,
    stats_children,
    stats_struct_id,
)

# Id of a column or expression with stats -> its Iceberg type name.
StatsTypes = Mapping[int, str]


STRUCTS = {"version_info": VERSION_INFO, "deletion_vector": DELETION_VECTOR, "manifest_stats": MANIFEST_STATS}


def nullable_type(kind: pa.DataType) -> pa.DataType:
    """Return a type without required fields, as Spark returns rows."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(child.name, nullable_type(child.type)) for child in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", nullable_type(kind.value_type)))
    return kind


def tree_stats_type(stats: StatsTypes) -> pa.StructType:
    """Return the type of `content_stats` in memory: structs with all children, in order of their ids."""
    structs = {field_id: full_stats_struct(bound_arrow_type(stats[field_id])) for field_id in sorted(stats)}
    return pa.struct([pa.field(str(field_id), kind) for field_id, kind in structs.items()])


def with_version(rows: pa.Table, children: Sequence[pa.Array | pa.ChunkedArray]) -> pa.Table:
    """Return rows of `tree_schema` with another `version_info`.

    Args:
        rows: the rows.
        children: status, snapshot id, sequence number and file sequence number.
    """
    field = rows.schema.field("version_info")
    struct = pa.StructArray.from_arrays([*map(whole, children)], fields=list(field.type))
    return rows.set_column(rows.column_names.index("version_info"), field, struct)


def read_field(values: pa.Array | None, spec: FieldSpec, rows: int, location: str) -> pa.Array:
    """Return a field of the content entry, with its children resolved by id; nulls if the file lacks it."""
    kind = nullable_type(spec.type)
    if values is None:
        return pa.nulls(rows, kind)
    if spec.name in STRUCTS:
        return read_struct(values, kind, STRUCTS[spec.name], f"{spec.name}.", location)
    return cast_field(values, kind, spec.name, location)


def read_struct(
    values: pa.Array,
    kind: pa.StructType,
    children: Iterable[FieldSpec],
    prefix: str,
    location: str,
    *,
    named: bool = False,
    type_name: str = "",
) -> pa.StructArray:
    """Return a struct with its children resolved by id. Null structs stay null.

    Args:
        values: the struct in the file.
        kind: the type to return.
        children: the fields of the type.
        prefix: the beginning of the children's names in errors.
        location: the file, for errors.
        named: whether to resolve children without an id by name.
        type_name: the Iceberg type of the column, for its bounds.
    """
    if not pa.types.is_struct(values.type):
        raise CorruptFileError(location, prefix.rstrip("."), values.type, "it is not a struct")
    indices = {field_id(field): index for index, field in enumerate(values.type)}
    names = (
        {_PROPOSED_NAMES.get(field.name, field.name): index for index, field in enumerate(values.type)} if named else {}
    )
    flat = values.flatten()
    arrays = [
        pa.nulls(len(values), child.type)
        if (index := indices.get(child.id, names.get(child.name))) is None
        else cast_field(
            flat[index], child.type, prefix + child.name, location, type_name if child.name in BOUNDS else ""
        )
        for child in children
    ]
    return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=values.is_null())


# Names of stats in the proposal's examples (semantics 17.1).
_PROPOSED_NAMES = {
    "null_count": "null_value_count",
    "nan_count": "nan_value_count",
    "average_uncompressed_length": "avg_value_size_in_bytes",
}


def read_stats(
    values: pa.Array | None, stats: StatsTypes, rows: int, location: str, fields: Mapping[int, int]
) -> pa.StructArray:
    """Return `content_stats` with the given stats; see `read_manifest` for `fields`."""
    kind = tree_stats_type(stats)
    if values is None:
        return pa.nulls(rows, kind)
    if not pa.types.is_struct(values.type):
        raise CorruptFileError(location, CONTENT_STATS, values.type, "it is not a struct")
    indices = stats_indices(values.type, stats)
    in_sources = values_in_sources(
        values.type, {field: source for field, source in fields.items() if source not in indices}
    )
    flat = values.flatten()
    structs = []
    for stats_id in sorted(stats):
        struct_type = kind.field(str(stats_id)).type
        index = indices.get(stats_id)
        if index is None:
            paths = in_sources.get(stats_id)
            structs.append(
                pa.nulls(rows, struct_type)
                if paths is None
                else _of_source(values, paths, struct_type, location, stats[stats_id])
            )
            continue
        children = stats_children(stats_id, bound_arrow_type(stats[stats_id]))
        prefix = f"{CONTENT_STATS}.{stats_id}."
        kind_name = stats[stats_id]
        structs.append(
            read_struct(flat[index], struct_type, children, prefix, location, named=True, type_name=kind_name)
        )
    if not structs:
        return pa.array([{}] * rows, kind)
    return pa.StructArray.from_arrays(structs, fields=list(kind), mask=values.is_null())


def _of_source(
    values: pa.StructArray, paths: Mapping[str, str], kind: pa.StructType, location: str, type_name: str
) -> pa.StructArray:
    """Return the stats of a partition field from values at paths of `values_in_sources`."""
    bound, nothing = kind.field("lower_bound").type, pa.nulls(len(values), kind.field("lower_bound").type)

    def read(bound_name: str) -> pa.Array:
        if bound_name not in paths:
            return nothing
        raw = pc.struct_field(values, paths[bound_name].split(".", 1))
        return cast_field(raw, bound, f"{CONTENT_STATS}.{paths[bound_name]}", location, type_name)

    value = read("")
    bounds = {name: pc.coalesce(read(name), value) for name in BOUNDS}
    children = [bounds.get(child.name, pa.nulls(len(values), child.type)) for child in kind]
    sources = [pc.struct_field(values, [path.split(".", 1)[0]]) for path in paths.values()]
    is_known = reduce(pc.or_, (source.is_valid() for source in sources))
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=pc.invert(is_known))


def partition_value(stats: pa.StructArray) -> pa.Array:
    """Return the partition value that stats of `tree_schema` hold: the lower bound, or NaN if there are only NaNs."""
    lower = pc.struct_field(stats, ["lower_bound"])
    if not pa.types.is_floating(lower.type):
        return lower
    is_nan = pc.and_(lower.is_null(), pc.fill_null(pc.greater(pc.struct_field(stats, ["nan_value_count"]), 0), False))
    return pc.if_else(is_nan, pa.scalar(float("nan"), lower.type), lower)


def cast_field(values: pa.Array, kind: pa.DataType, name: str, location: str, type_name: str = "") -> pa.Array:
    """Return values of a file as the type to which they may be promoted.

    Raises:
        CorruptFileError: their type can't be promoted.
    """
    if values.type == kind:
        return values
    try:
        return promoted_days(values, type_name).cast(kind)
    except (pa.ArrowException, ValueError) as error:
        raise CorruptFileError(location, name, values.type, f"not {kind}: {error}"[:200]) from error


# -- Statistics -------------------------------------------------------------------------------------------------------


def stats_indices(kind: pa.StructType, stats: StatsTypes) -> dict[int, int]:
    """Return the index in `content_stats` of stats by their id, resolved by field id or else by name."""
    by_id = {field_id(child): index for index, child in enumerate(kind)}
    by_name = {child.name: index for index, child in enumerate(kind)}
    indices = {stats_id: by_id.get(stats_struct_id(stats_id), by_name.get(str(stats_id))) for stats_id in stats}
    return {stats_id: index for stats_id, index in indices.items() if index is not None}


def values_in_sources(kind: pa.StructType, fields: Mapping[int, int]) -> dict[int, dict[str, str]]:
    """Return the paths of partition values in the stats of source columns, by the id of the fields' stats.

    A path has the key "" for a file's value, or else the name of a bound. See `read_manifest` for `fields`.
    """
    paths: dict[int, dict[str, str]] = {}
    for struct in kind if fields else ():
        for child in struct.type if pa.types.is_struct(struct.type) else ():
            match = _VALUE_IN_SOURCE.fullmatch(child.name)
            if match and int(match[1]) in fields:
                paths.setdefault(fields[int(match[1])], {})[match[2] or ""] = f"{struct.name}.{child.name}"
    return paths


_VALUE_IN_SOURCE = re.compile(r"partition_(\d{1,9})_.+?(?:_(lower_bound|upper_bound))?")
