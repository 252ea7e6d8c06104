"""Resolve the locations in entries and other Arrow data; see `spec.locations`. Without Spark: tasks import this."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.entries.projection import CONTENT_STATS
from sparkmeta.expr.arrays import whole
from sparkmeta.spec.entry import DELETE_FILE_PATH_ID
from sparkmeta.spec.locations import LOCAL, SCHEME, Locations, Relocation

ENTRY_LOCATIONS = ("location", "referenced_file")
"""The fields of a content entry that name files."""

PATH_BOUNDS = ("lower_bound", "upper_bound")
"""The stats of a position delete file's `file_path` that name data files."""


def resolved(values: pa.Array, locations: Locations, file: str, field: str) -> pa.Array:
    """Return absolute locations; see `Locations.resolve`. Values may be dictionary-encoded, or null."""
    if pa.types.is_dictionary(values.type):
        dictionary = resolved(values.dictionary, locations, file, field)
        return values if dictionary is values.dictionary else pa.DictionaryArray.from_arrays(values.indices, dictionary)
    # Comparing prefixes takes a tenth of the time of matching a regular expression.
    scheme = re.match(SCHEME, values[0].as_py() or "") if len(values) else None
    if _all(pc.starts_with(values, locations.folder)) or (scheme and _all(pc.starts_with(values, scheme.group()))):
        return values
    if locations.relative is not None and _all(is_relative(values)):
        return pc.binary_join_element_wise(locations.relative, values, "").cast(values.type)
    prefixes = _prefixes(values, locations)
    if locations.relative is None and prefixes.null_count > values.null_count:
        wrong = values.filter(pc.and_(prefixes.is_null(), values.is_valid()))
        raise locations.error(wrong[0].as_py(), file, field)
    if _all(pc.equal(prefixes, "")):
        return values
    return pc.binary_join_element_wise(prefixes, values, "").cast(values.type)


def _prefixes(values: pa.Array, locations: Locations) -> pa.Array:
    """Return the prefix of each location; null for null, and for relative locations that are an error."""
    is_complete = pc.match_substring_regex(values, SCHEME)
    if locations.relative is not None:
        is_complete = pc.or_(is_complete, pc.equal(values, ""))
    relative = pa.scalar(locations.relative, pa.string())
    prefixes = pc.if_else(pc.starts_with(values, "/"), pa.scalar(locations.rooted), relative)
    return pc.if_else(is_complete, pa.scalar(""), prefixes)


def written_locations(table: pa.Table, locations: Locations) -> pa.Table:
    """Return entries with locations as new files of format version 4 spell them; see `Locations.written`."""
    for name in ENTRY_LOCATIONS:
        index = table.column_names.index(name)
        values = spelled(whole(table.column(name)), locations)
        table = table.set_column(index, table.schema.field(name), values)
    return table


def spelled(values: pa.Array, locations: Locations) -> pa.Array:
    """Return locations as new files of format version 4 spell them; see `Locations.written`."""
    is_rooted, result = pc.starts_with(values, "/"), values
    if locations.rooted and pc.any(is_rooted).as_py():
        result = pc.if_else(is_rooted, pc.binary_join_element_wise(LOCAL, values, ""), values)
    if locations.writes_relative:
        path = pc.utf8_slice_codeunits(values, len(locations.folder))
        becomes_relative = pc.and_(pc.starts_with(values, locations.folder), is_relative(path))
        result = path if _all(becomes_relative) else pc.if_else(becomes_relative, path, result)
    return result


def is_relative(values: pa.Array) -> pa.Array:
    """Return whether each location is neither absolute nor empty."""
    return pc.invert(pc.match_substring_regex(values, f"{SCHEME}|^/|^$"))


def _all(flags: pa.Array) -> bool:
    return pc.all(flags).as_py() is not False


def with_locations(batches: Iterable[pa.RecordBatch], locations: Locations, file: str) -> Iterator[pa.RecordBatch]:
    """Yield entries of a manifest with absolute locations."""
    for batch in batches:
        columns = {name: batch.column(name) for name in batch.schema.names}
        arrays = [*_resolved_columns(columns, locations, file).values()]
        yield pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


def table_with_locations(table: pa.Table, locations: Locations, file: str) -> pa.Table:
    """Return entries of a manifest with absolute locations."""
    columns = {name: whole(table.column(name)) for name in table.column_names}
    return pa.Table.from_arrays([*_resolved_columns(columns, locations, file).values()], schema=table.schema)


def _resolved_columns(columns: Mapping[str, pa.Array], locations: Locations, file: str) -> dict[str, pa.Array]:
    result = dict(columns)
    for name in ENTRY_LOCATIONS:
        if name in result:
            result[name] = resolved(result[name], locations, file, name)
    if CONTENT_STATS in result:
        result[CONTENT_STATS] = _with_path_bounds(result[CONTENT_STATS], locations, file)
    return result


def _with_path_bounds(stats: pa.StructArray, locations: Locations, file: str) -> pa.StructArray:
    """Return `content_stats` in which the bounds of paths in position delete files are absolute."""
    names = stats.type.names
    if str(DELETE_FILE_PATH_ID) not in names:
        return stats
    index = names.index(str(DELETE_FILE_PATH_ID))
    structs = stats.flatten()
    paths = structs[index]
    children = dict(zip(paths.type.names, paths.flatten(), strict=True))
    field = f"{CONTENT_STATS}.{DELETE_FILE_PATH_ID}"
    lower, upper = (children[name] for name in PATH_BOUNDS)
    if locations.relative is None:
        # Bounds that differ may be truncated, and name no file.
        named_paths = pc.if_else(pc.equal(lower, upper), lower, pa.scalar(None, lower.type))
        resolved(named_paths, locations, file, f"{field}.{PATH_BOUNDS[0]}")
        return stats
    for name in PATH_BOUNDS:
        children[name] = resolved(children[name], locations, file, f"{field}.{name}")
    structs[index] = pa.StructArray.from_arrays([*children.values()], fields=list(paths.type), mask=paths.is_null())
    return pa.StructArray.from_arrays(structs, fields=list(stats.type), mask=stats.is_null())


# -- Locations of files that move -------------------------------------------------------------------------------------


# A text that is not smaller than any path.
_LARGEST = "\U0010ffff"


def relocated(values: pa.Array, relocation: Relocation) -> pa.Array:
    """Replace the prefix of locations. Locations without it stay, and so do nulls. Values may be dictionary-encoded."""
    if pa.types.is_dictionary(values.type):
        return pa.DictionaryArray.from_arrays(values.indices, relocated(values.dictionary, relocation))
    folder = relocation.folder.replace("\\", "\\\\")
    return pc.replace_substring_regex(values, relocation.pattern, folder, max_replacements=1)


def relocated_bounds(lower: pa.Array, upper: pa.Array, relocation: Relocation) -> tuple[pa.Array, pa.Array]:
    """Return the bounds of paths in position delete files whose data files move.

    Bounds may be truncated, even inside the prefix, and their order may change if only one of them has the prefix. Such
    bounds become the least and the largest text. Equal bounds name a file, and stay equal.
    """
    bounds = lower, upper
    moved = [relocated(bound, relocation) for bound in bounds]
    have_moved = [pc.not_equal(bound, new) for bound, new in zip(bounds, moved, strict=True)]
    are_valid = pc.or_(pc.fill_null(pc.equal(*bounds), False), pc.fill_null(pc.and_(*have_moved), False))
    widest = [
        pc.if_else(bound.is_valid(), pa.scalar(text, bound.type), bound)
        for bound, text in zip(bounds, ("", _LARGEST), strict=True)
    ]
    result = [pc.if_else(are_valid, new, wide) for new, wide in zip(moved, widest, strict=True)]
    return result[0], result[1]
