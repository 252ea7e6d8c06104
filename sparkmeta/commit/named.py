"""Find the files that a commit names, and the deletion vectors of the data files among them.

A search tries the root, then the manifest named in the file's row, then the manifests of its partition, then those of
the partition in the folder names of its path, and finally all manifests.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.commit.candidates import leaves_of_partitions, live_leaves, named_leaves, root_manifests
from sparkmeta.commit.converters import rows_of
from sparkmeta.commit.partition_folders import partitions_of_folders
from sparkmeta.commit.removal import Removal, removal_of, removal_of_rows
from sparkmeta.commit.search import FEW_FILES, Candidates, FileName, PathSearch, live_entries, names_of, search_all
from sparkmeta.entries.arrays import whole
from sparkmeta.entries.projection import MANIFEST, ORDINAL, PARTITION
from sparkmeta.errors import ValidationError
from sparkmeta.manifests.v4.tree_manifests import IN_ROOT
from sparkmeta.plan.overlap import deletes_by_affinity, deletes_by_partition
from sparkmeta.plan.prune import live_manifests
from sparkmeta.session import materialize
from sparkmeta.spec.entry import ContentType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

    from sparkmeta.state import TableState

_COLUMNS = ("file_path", "content_offset", "manifest_path", "spec_id", PARTITION)
_PATH, _OFFSET = "named_path", "named_offset"


class NotLiveError(ValidationError):
    """A file to remove is not a live file of the table."""


@dataclass
class Searches:
    """The searches of one commit, shared by its attempts."""

    files: PathSearch = field(default_factory=lambda: PathSearch("location"))
    new_files: PathSearch = field(default_factory=lambda: PathSearch("location"))
    deletes: PathSearch = field(default_factory=lambda: PathSearch("referenced_file"))


def find_files(state: TableState, files: DataFrame, searches: Searches) -> Removal:
    """Find the live entries of data and delete files by path, and of deletion vectors by path and offset.

    The result includes the deletion vectors of the data files.

    Args:
        files: rows with `file_path`, and `content_offset` for deletion vectors. `manifest_path`, and `spec_id` with
            `partition`, are hints for the search.
        searches: the searches of the commit.

    Raises:
        NotLiveError: a path is not a live file of the table.
        ValidationError: a path is null, or occurs twice.
    """
    return _find(state, files, searches, only_live_deletes=False)


def find_live_deletes(state: TableState, files: DataFrame, searches: Searches) -> Removal:
    """Find entries of delete files as `find_files` does, ignoring those that are not live."""
    return _find(state, files, searches, only_live_deletes=True)


def _find(state: TableState, files: DataFrame, searches: Searches, *, only_live_deletes: bool) -> Removal:
    named = [name for name in _COLUMNS if name in files.columns]
    if "file_path" not in named:
        raise ValidationError("the files to remove have no column file_path")
    rows = files.select(*named)
    head = rows.limit(FEW_FILES + 1).toArrow()
    if len(head) <= FEW_FILES:
        return _find_few(state, head, searches, only_live_deletes=only_live_deletes)
    return _find_many(state, rows, only_live_deletes=only_live_deletes)


# -- few ------------------------------------------------------------------------------------------------------------


def _find_few(state: TableState, rows: pa.Table, searches: Searches, *, only_live_deletes: bool) -> Removal:
    names = _names(state, rows)
    # Only deletion vectors have an offset.
    in_deletes = only_live_deletes or all(name.offset is not None for name in names)
    data = [] if in_deletes else [ContentType.DATA_MANIFEST]
    leaves = [live_leaves(state, content) for content in (*data, ContentType.DELETE_MANIFEST)]
    stages = [search_all(root_manifests(state))]
    stages += [stage for manifests in leaves for stage in _hinted(state, rows, manifests)]
    stages += [_by_folders(state, manifests) for manifests in leaves]
    stages += map(search_all, leaves)
    entries = searches.files.find(state, names, stages)
    removed = set(names)
    entries = entries.filter(pa.array([name in removed for name in names_of(entries)], pa.bool_()))
    if not only_live_deletes and (missing := removed.difference(names_of(entries))):
        raise NotLiveError(f"{state.metadata.location}: {min(missing).path} is not a live file of the table")
    data_files = entries.filter(pc.equal(entries.column("content_type"), int(ContentType.DATA)))
    dvs = dvs_of(state, data_files, searches)
    unnamed = dvs.filter(pa.array([name not in removed for name in names_of(dvs)], pa.bool_()))
    return removal_of_rows(pa.concat_tables([entries, unnamed]), state)


def _names(state: TableState, rows: pa.Table) -> list[FileName]:
    paths = rows.column("file_path").to_pylist()
    offsets = rows.column("content_offset").to_pylist() if "content_offset" in rows.column_names else [None] * len(rows)
    names = [FileName(*name) for name in zip(paths, offsets, strict=True)]
    for name, count in Counter(names).items():
        _refuse_name(state, name.path, count)
    return names


def _refuse_name(state: TableState, path: str | None, count: int) -> None:
    if path is None:
        raise ValidationError(f"{state.metadata.location}: file_path of a file to remove is None")
    if count > 1:
        raise ValidationError(f"{state.metadata.location}: {path} is to be removed twice")


def _hinted(state: TableState, rows: pa.Table, leaves: pa.Table) -> list[Candidates]:
    """Return search stages from hints in the rows: the leaves that they name, then those of their partitions."""
    stages: list[Candidates] = []
    if "manifest_path" in rows.column_names:
        paths = rows.column("manifest_path").drop_null().unique().to_pylist()
        stages.append(search_all(named_leaves(leaves, paths)))
    partitions = rows_of(state).partitions(rows)
    if partitions is not None and len(partitions):
        stages.append(lambda _: leaves_of_partitions(state, leaves, partitions))
    return stages


def _by_folders(state: TableState, leaves: pa.Table) -> Candidates:
    def candidates(names: Sequence[FileName]) -> pa.Table:
        partitions = partitions_of_folders(state, [name.path for name in names])
        return leaves_of_partitions(state, leaves, partitions)

    return candidates


def dvs_of(state: TableState, data: pa.Table, searches: Searches) -> pa.Table:
    """Return the live deletion vectors of data files, both as entries of `SEARCH_COLUMNS`."""
    if not may_have_vectors(state):
        return data.slice(0, 0)
    deletes = deletes_of(state, data, searches)
    return deletes.filter(pc.struct_field(deletes.column("deletion_vector"), "offset").is_valid())


def may_have_vectors(state: TableState) -> bool:
    """Return whether the table's format version has deletion vectors."""
    return state.metadata.format_version >= 3


def deletes_of(state: TableState, data: pa.Table, searches: Searches) -> pa.Table:
    """Return the live deletion vectors of data files, and position delete files that name one of them.

    Among trees, only those of upgraded tables have such position delete files.
    """
    leaves = delete_leaves(state, data)
    entries = searches.deletes.search(state, leaves, data.column("location").to_pylist())
    return entries.filter(pc.equal(entries.column("content_type"), int(ContentType.POSITION_DELETES)))


def delete_leaves(state: TableState, data: pa.Table) -> pa.Table:
    """Return the delete manifests that may hold deletes of data files (table spec, Scan Planning).

    These are the manifests affiliated with a manifest of the files, and unaffiliated ones that share their partitions.
    """
    deletes = live_leaves(state, ContentType.DELETE_MANIFEST)
    if not len(deletes) or not len(data):
        return deletes.slice(0, 0)
    if state.tree is None:
        return leaves_of_partitions(state, deletes, data)
    relevant = deletes_by_affinity(state, _manifests_with(state, data.column(MANIFEST)), deletes)
    affiliated = relevant.column("referenced_file").is_valid()
    unaffiliated = leaves_of_partitions(state, relevant.filter(pc.invert(affiliated)), data)
    return pa.concat_tables([relevant.filter(affiliated), unaffiliated])


def _manifests_with(state: TableState, ids: pa.ChunkedArray) -> pa.Table:
    return state.manifests.filter(pc.is_in(state.manifests.column(MANIFEST), whole(ids).unique()))


# -- many -----------------------------------------------------------------------------------------------------------


def _find_many(state: TableState, rows: DataFrame, *, only_live_deletes: bool) -> Removal:
    files = materialize(rows)
    keys = files.select(*_key_columns(files))
    counts = keys.groupBy(_PATH, _OFFSET).count()
    for row in counts.where(f"count > 1 OR {_PATH} IS NULL").limit(1).toArrow().to_pylist():
        _refuse_name(state, row[_PATH], row["count"])
    everywhere = live_manifests(state.delete_manifests if only_live_deletes else state.manifests)
    manifests = _named_manifests(files, everywhere)
    entries = materialize(_entries_of(state, manifests, keys))
    missing = _first_missing(keys, entries)
    if missing is not None and len(manifests) < len(everywhere):
        entries = materialize(_entries_of(state, everywhere, keys))
        missing = _first_missing(keys, entries)
    if missing is not None and not only_live_deletes:
        raise NotLiveError(f"{state.metadata.location}: {missing} is not a live file of the table")
    dvs = many_dvs_of(state, entries.where(F.col("content_type") == int(ContentType.DATA)))
    named = entries.where(F.col("content_type") == int(ContentType.POSITION_DELETES))
    unnamed = dvs.join(named.select(MANIFEST, ORDINAL), [MANIFEST, ORDINAL], "left_anti")
    return removal_of(entries.unionByName(unnamed), state)


def _key_columns(files: DataFrame) -> tuple[Column, Column]:
    offset = F.col("content_offset") if "content_offset" in files.columns else F.lit(None).cast("long")
    return F.col("file_path").alias(_PATH), offset.alias(_OFFSET)


def _named_manifests(files: DataFrame, manifests: pa.Table) -> pa.Table:
    """Return the root's files and the manifests that files name; all manifests if a file names none."""
    if "manifest_path" not in files.columns:
        return manifests
    paths = files.select("manifest_path").distinct().toArrow().column("manifest_path")
    if paths.null_count:
        return manifests
    in_root = pc.equal(manifests.column("file_format"), IN_ROOT)
    return manifests.filter(pc.or_(in_root, pc.is_in(manifests.column("location"), whole(paths))))


def _same_file() -> Column:
    return (F.col("location") == F.col(_PATH)) & F.col("deletion_vector.offset").eqNullSafe(F.col(_OFFSET))


def _entries_of(state: TableState, manifests: pa.Table, keys: DataFrame) -> DataFrame:
    return live_entries(state, manifests).join(keys, _same_file(), "left_semi")


def _first_missing(keys: DataFrame, entries: DataFrame) -> str | None:
    missing = keys.join(entries, _same_file(), "left_anti").limit(1).toArrow().to_pylist()
    return str(missing[0][_PATH]) if missing else None


def many_dvs_of(state: TableState, data: DataFrame) -> DataFrame:
    """Do the same as `dvs_of` for data entries in a DataFrame."""
    if not may_have_vectors(state):
        return data.limit(0)
    return many_deletes_of(state, data).where(F.col("deletion_vector.offset").isNotNull())


def many_deletes_of(state: TableState, data: DataFrame) -> DataFrame:
    """Do the same as `deletes_of` for data entries in a DataFrame. Runs a job that collects their manifests."""
    deletes = live_leaves(state, ContentType.DELETE_MANIFEST)
    if len(deletes):
        manifests = _manifests_with(state, data.select(MANIFEST).distinct().toArrow().column(MANIFEST))
        deletes = deletes_by_partition(state, manifests, deletes_by_affinity(state, manifests, deletes))
    position = live_entries(state, deletes).where(F.col("content_type") == int(ContentType.POSITION_DELETES))
    return position.join(
        data.select(F.col("location").alias(_PATH)), F.col("referenced_file") == F.col(_PATH), "left_semi"
    )
