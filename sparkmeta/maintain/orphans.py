"""Delete the files in a table's folder that the table does not need."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import KW_ONLY, asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import functions as F

from sparkmeta.checks import Options, Rule, one_of, option
from sparkmeta.entries import relation
from sparkmeta.entries.relation import (
    collected,
    computed,
    first,
    frame_of,
    grouped,
    head,
    pairs,
    select,
    some_columns,
    where,
    with_columns,
)
from sparkmeta.errors import NotFoundError, ValidationError, shown, translated_errors
from sparkmeta.expr import sql
from sparkmeta.maintain.expire_snapshots import to_millis
from sparkmeta.maintain.orphan_tasks import (
    FILES,
    Folder,
    equal_names,
    finds,
    hidden_pattern,
    inventory_files,
    name_of,
    other_tables,
    prefix_of,
    refuse_shared,
    walked_files,
    with_local_status,
)
from sparkmeta.maintain.plans import Plan, PlanSummary
from sparkmeta.maintain.reachable import count_files, reachable_paths
from sparkmeta.maintain.reachable_tasks import Deletion, delete_files
from sparkmeta.operations.metadata_files import METADATA, METADATA_FILE, VERSION_HINT
from sparkmeta.operations.table_operations import TableT, refuse_read_only
from sparkmeta.progress import planning
from sparkmeta.snapshot.state import task_reader
from sparkmeta.spec.expiry import refuse_without_gc
from sparkmeta.storage.files import executor_writer
from sparkmeta.storage.location import is_local, join, local_path, path_of, scheme
from sparkmeta.storage.writing import TEMPORARY_PATTERN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.entries.relation import Relation
    from sparkmeta.expr.sql import Aliased, Sql
    from sparkmeta.operations.table_operations import BaseTable
    from sparkmeta.snapshot.state import TableState


# -- The options of `Maintenance.remove_orphan_files` -----------------------------------------------------------------


ERROR: Final = "error"
IGNORE: Final = "ignore"
DELETE: Final = "delete"

_HOUR_MS = 60 * 60 * 1000
_LEAST_AGE_MS = 24 * _HOUR_MS
_DEFAULT_AGE_MS = 3 * 24 * _HOUR_MS


def _is_absolute(location: Any) -> bool:
    return isinstance(location, str) and (location.startswith("/") or scheme(location) != "")


@dataclass(frozen=True)
class OrphanOptions(Options):
    """See `Maintenance.remove_orphan_files`."""

    _: KW_ONLY
    older_than: datetime | int | None = option(
        None,
        "delete only files modified before this time. Defaults to 3 days ago.",
    )
    location: str | None = option(
        None,
        "the folder to search instead of the table's.",
        Rule("the URI or absolute path of a folder", _is_absolute),
    )
    files: DataFrame | None = option(
        None,
        "an inventory to use instead of listing files: file_path (string), last_modified (timestamp) and, if known, "
        "size (bigint). Files outside the location are ignored.",
    )
    prefix_mismatch_mode: str = option(
        ERROR,
        "what to do if the table has a file's path with another scheme or authority: `error` raises an error, `ignore` "
        "keeps the file, `delete` deletes it.",
        one_of(ERROR, IGNORE, DELETE),
    )
    equal_schemes: Mapping[str, str] | None = option(
        None, "schemes and the scheme that they equal. `s3a,s3n` and `s3` are built in."
    )
    equal_authorities: Mapping[str, str] | None = option(
        None, "authorities, such as buckets or hosts, and the authority that they equal."
    )
    force: bool = option(
        False, "allow `older_than` to be less than 24 hours ago, which may delete files of running commits."
    )
    shared_location: bool = option(
        False,
        "allow the location to have metadata files of another table, such as a dropped one. The other table's files "
        "are then deleted.",
    )

    def check(self) -> None:
        """See `Options.check`."""
        super().check()
        equal_names(self.equal_schemes, "equal_schemes")
        equal_names(self.equal_authorities, "equal_authorities")
        if self.location is not None:
            Folder.of(self.location)
        now = int(time.time() * 1000)
        if self.older_than_ms(now) > now - _LEAST_AGE_MS and not self.force:
            problem = "less than 24 hours ago: files of writers that have not committed yet would be deleted"
            raise ValidationError(f"older_than is {shown(self.older_than)}: {problem}; the option force permits it")

    def older_than_ms(self, now: int) -> int:
        """Return the time before which orphans were modified, in milliseconds since 1970.

        Args:
            now: the current time. The default is relative to it.
        """
        return now - _DEFAULT_AGE_MS if self.older_than is None else to_millis(self.older_than)


# -- The plan to delete files that the table does not need ------------------------------------------------------------


# Maximum number of folders, or of pairs of prefixes, that a message names.
_NAMED = 10
_COMPARED = ("newest", "has_prefix", "is_below")
_MISMATCHED = "is_mismatched"


@dataclass(frozen=True)
class OrphanRules:
    """The rules that decide which files are orphans.

    Attributes:
        folder: the folder that contains orphans, with equal schemes and authorities.
        older_than_ms: orphans were modified before this time, in milliseconds since 1970.
        mismatch: what to do about files that the table names under another scheme or authority: ERROR, IGNORE or
            DELETE.
        shared_location: whether the folder may be shared with another table.
    """

    folder: Folder
    older_than_ms: int
    mismatch: str
    shared_location: bool


@dataclass(frozen=True)
class OrphanSummary(PlanSummary):
    """The files that nothing needs; `str` formats them.

    Attributes:
        location: the folder that was searched.
        older_than: files modified at this time or later stay, whether they are needed or not.
        listed: the number of files below the location, except hidden ones.
        files: content ("data", "metadata" or "unfinished write") -> the number of orphans.
        bytes: content -> the orphans' bytes, as far as an inventory records them.
        elsewhere: the number of files that the table needs outside the location.
        mismatched: the number of old files that stay, since the table names them under another scheme or authority.
        other_tables: some folders of other tables below the location; their files stay.
    """

    location: str
    older_than: str
    listed: int
    files: Mapping[str, int]
    bytes: Mapping[str, int]
    elsewhere: int
    mismatched: int
    other_tables: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        return not self.files

    def __str__(self) -> str:
        total = f"{sum(self.files.values())} of {self.listed} files are orphans, with {sum(self.bytes.values())} bytes"
        elsewhere = (
            f"  {self.elsewhere} files referenced by the table are outside this location, which was not searched"
        )
        mismatched = f"  {self.mismatched} files are kept: the table has them under another scheme or authority"
        other_tables_text = f"  files of other tables stay: {', '.join(self.other_tables)}"
        return "\n".join(
            [
                f"{self.table}: below {self.location}, {total}; they are older than {self.older_than}",
                *(f"  {content}: {count} files, {self.bytes[content]} bytes" for content, count in self.files.items()),
                *([elsewhere] if self.elsewhere else []),
                *([mismatched] if self.mismatched else []),
                *([other_tables_text] if self.other_tables else []),
            ]
        )


class _Orphans(NamedTuple):
    """Orphans as of a version of the table.

    Attributes:
        files: the orphans, and files under another scheme or authority.
        elsewhere: the number of files that the table needs outside the location.
    """

    metadata_location: str
    files: Relation
    elsewhere: int


@dataclass(frozen=True)
class OrphanPlan(Plan[TableT, Deletion]):
    """A plan to delete orphans, carried out by `commit`. The table itself does not change.

    Attributes:
        rules: the rules that decide which files are orphans.
        inventory: the files below the location, instead of a listing.
    """

    _doing = "Deleting files"

    rules: OrphanRules
    inventory: DataFrame | None = None

    def to_df(self) -> DataFrame:
        """Return a row for each orphan. Runs jobs.

        Columns: content ("data", "metadata" or "unfinished write"), file_path, file_size_in_bytes (null if the
        inventory does not say), last_modified.

        Raises:
            NotFoundError: there is no file below the location, or a manifest or list of the table is gone.
            ValidationError: another table shares the location, or files have another scheme or authority in the table.
        """
        orphans = frame_of(_deletable(self._orphans.files), self.table.state)
        path, size = F.col("path").alias("file_path"), F.col("length").alias("file_size_in_bytes")
        return orphans.select("content", path, size, F.timestamp_millis("modified_ms").alias("last_modified"))

    @planning
    def summary(self) -> OrphanSummary:
        """Return the plan in numbers. Runs the jobs of `to_df`."""
        return self._summary

    def commit(self) -> Deletion:
        """Delete the orphans, by tasks if there are many. Deleted files can't be restored.

        If the table has changed since the search, files that it has come to need stay. It is not an error if a file
        can't be deleted: the file is counted, and the next plan retries it. A second call deletes nothing.

        Returns:
            The outcome of the first call that raised no error.

        Raises:
            NoSuchTableError: the table is gone. No file is deleted.
            NotFoundError, ValidationError: see `to_df`. No file is deleted.
        """
        return super().commit()

    def _commit(self) -> Deletion:
        # Count the orphans before the deletion: serverless sessions, which keep no rows, list the files again to count.
        count = sum(self.summary().files.values())
        orphans = self._orphans
        current = self.table.refresh()
        if current.metadata_location != orphans.metadata_location:
            with translated_errors():
                orphans = self._unneeded(current, orphans.files)
        return delete_files(_deletable(orphans.files), executor_writer(current.state.files), current.state, count)

    def _outcome(self) -> dict[str, Any] | None:
        return asdict(self._committed[0]) if self._committed else None

    @cached_property
    def _summary(self) -> OrphanSummary:
        counts = count_files(_deletable(self._orphans.files))
        others = head(self._other_tables, _NAMED).column("key").to_pylist()
        mismatched = where(self._orphans.files, sql.col(_MISMATCHED)) if self.rules.mismatch == IGNORE else None
        return OrphanSummary(
            table=self.table.full_name,
            location=self.rules.folder.location,
            older_than=datetime.fromtimestamp(self.rules.older_than_ms / 1000, UTC).isoformat(timespec="seconds"),
            listed=relation.count(self._listed),
            files=counts.files,
            bytes=counts.bytes,
            elsewhere=self._orphans.elsewhere,
            mismatched=0 if mismatched is None else relation.count(mismatched),
            other_tables=tuple(sorted(others)),
        )

    @cached_property
    def _listed(self) -> Relation:
        """The files below the location, except hidden ones: `FILES`, with the hash of their key."""
        folder, state, path, key = self.rules.folder, self.table.state, sql.col("path"), sql.col("key")
        hidden = hidden_pattern(self.table.metadata.partition_specs)
        if self.inventory is None:
            files = walked_files(state, task_reader(state), folder.location, hidden)
        else:
            files = where(inventory_files(self.inventory), folder.has_prefix_of(path, or_none=False))
        keyed = where(with_columns(files, folder.key_of(path).alias("key")), key.startswith(folder.key))
        listed = computed(select(where(keyed, ~folder.hides(key, hidden)), [*sql.columns(*FILES), _hash()]))
        if first(listed) is None and (self.inventory is None or not self.inventory.isEmpty()):
            problem = "there is no file below it" + ("" if self.inventory is None else " in the inventory")
            raise NotFoundError(f"{folder.location}: {problem}")
        return listed

    @cached_property
    def _other_tables(self) -> Relation:
        """The folders of other tables below the location: rows of `key`."""
        others = other_tables(self.table, task_reader(self.table.state), self.rules.folder, self._listed)
        if not self.rules.shared_location:
            refuse_shared(self.table, self.rules.folder.location, others.metadata_files)
        return computed(others.below)

    @cached_property
    def _orphans(self) -> _Orphans:
        with translated_errors():
            files = self._listed
            if first(self._other_tables) is not None:
                files = self._outside(files, self._other_tables)
            # The table is loaded after the listing, so that it names the files of all commits that ended before the
            # listing.
            return self._unneeded(self.table.refresh(), files)

    def _comparable(self, files: Relation, needed: Relation, state: TableState) -> tuple[Relation, Relation]:
        """Return files and needed paths as two tables or two DataFrames. Spark's hashes differ from the driver's."""
        if isinstance(files, pa.Table) and not isinstance(needed, pa.Table):
            frame = frame_of(files.select(FILES), state)
            keyed = with_columns(frame, self.rules.folder.key_of(sql.col("path")).alias("key"))
            return select(keyed, [*sql.columns(*FILES), _hash()]), needed
        return files, (needed if isinstance(files, pa.Table) else frame_of(needed, state))

    def _outside(self, files: Relation, folders: Relation) -> Relation:
        """Return the files that are outside all of the folders, rows of `key`."""
        if isinstance(files, pa.Table) and isinstance(folders, pa.Table):
            keys = tuple(folders.column("key").to_pylist())
            paths = map(path_of, files.column("path").to_pylist())
            return files.filter(pa.array([not path.startswith(keys) for path in paths], pa.bool_()))
        is_below = self.rules.folder.key_of(sql.col("path")).column().startswith(F.col("folder"))
        frame, state = frame_of(files, self.table.state), self.table.state
        return frame.join(F.broadcast(frame_of(folders, state).toDF("folder")), is_below, "left_anti")

    def _unneeded(self, table: BaseTable, files: Relation) -> _Orphans:
        """Return the old files that a version of the table does not need. May run jobs.

        Raises:
            ValidationError: see `to_df`.
        """
        refuse_without_gc(table.metadata)
        files, needed = some_columns(files, (*FILES, "hash")), _needed_paths(table)
        files, needed = self._comparable(files, needed, table.state)
        _refuse_link(table, self.rules.folder, needed)
        newest, has_prefix, is_below = (sql.col(name) for name in _COMPARED)
        is_old = newest < self.rules.older_than_ms
        if self._lacks_times:
            is_old |= newest.isNull()
        is_orphan = is_old & ~sql.coalesce(has_prefix, False)
        chosen = computed(where(self._compared(files, needed, table.state), ~is_below | is_orphan))
        is_mismatched = sql.lit(False) if self.rules.mismatch == DELETE else has_prefix.isNotNull()
        by_hash = select(where(chosen, is_below), [*sql.columns("hash", "newest"), is_mismatched.alias(_MISMATCHED)])
        rows = pairs(files, by_hash, "hash")
        older = sql.col("modified_ms") < self.rules.older_than_ms
        if self._lacks_times:
            rows = where(with_local_status(some_columns(rows, (*FILES, "hash", _MISMATCHED))), older)
        else:
            # An inventory of a bucket with versions has several rows for a file. The newest counts.
            rows = where(rows, sql.col("modified_ms") == newest)
            others = [sql.call("first", sql.col(name)).alias(name) for name in (*FILES[1:], "hash", _MISMATCHED)]
            rows = grouped(rows, sql.columns("path"), others)
        keyed = with_columns(rows, self.rules.folder.key_of(sql.col("path")).alias("key"))
        shown = [_content(table).alias("content"), *sql.columns("path", "key", *FILES[1:], "hash", _MISMATCHED)]
        unneeded = computed(select(keyed, shown))
        if self.rules.mismatch == ERROR:
            _refuse_mismatched(self.rules.folder, where(unneeded, sql.col(_MISMATCHED)), needed)
        return _Orphans(table.metadata_location, unneeded, relation.count(where(chosen, ~is_below)))

    def _compared(self, files: Relation, needed: Relation, state: TableState) -> Relation:
        """Return a row for each hash of a key of listed or needed files.

        `newest` is the time of the newest listed file. `has_prefix` is whether a needed file has the folder's prefix;
        it is null if no file is needed. `is_below` is whether a listed or needed file is below the folder. Spark groups
        numbers faster than paths. An orphan stays if another path has the same hash.
        """
        folder, path = self.rules.folder, sql.col("path")
        no_time, no_file = sql.lit(None).cast("bigint"), sql.lit(None).cast("boolean")
        keyed = select(needed, [*sql.columns("path"), folder.key_of(path).alias("key")])
        is_below = sql.col("key").startswith(folder.key)
        of_listed = (sql.col("modified_ms"), no_file, sql.lit(True))
        of_needed = (no_time, folder.has_prefix_of(path, or_none=True), is_below)
        listed, others = (
            select(rows, [key, *(value.alias(name) for value, name in zip(values, _COMPARED, strict=True))])
            for rows, key, values in ((files, sql.col("hash").alias("hash"), of_listed), (keyed, _hash(), of_needed))
        )
        latest = [sql.call("max", sql.col(name)).alias(name) for name in _COMPARED]
        return grouped(relation.union(listed, others, state), sql.columns("hash"), latest)

    @property
    def _lacks_times(self) -> bool:
        """Whether the listing leaves out lengths and times."""
        return self.inventory is None and is_local(self.rules.folder.location)


def plan_orphans(table: TableT, options: OrphanOptions) -> OrphanPlan[TableT]:
    """See `Maintenance.remove_orphan_files`."""
    options.check()
    location = table.metadata.location if options.location is None else options.location
    folder = Folder.of(location, options.equal_schemes, options.equal_authorities)
    older_than_ms = options.older_than_ms(int(time.time() * 1000))
    refuse_without_gc(table.metadata)
    refuse_read_only(table)
    executor_writer(table.state.files)
    if options.files is not None:
        inventory_files(options.files)
    rules = OrphanRules(folder, older_than_ms, options.prefix_mismatch_mode, options.shared_location)
    return OrphanPlan(table, rules, options.files)


def _refuse_link(table: BaseTable, folder: Folder, needed: Relation) -> None:
    """Raise ValidationError if a local folder is a link, and the table names files in the link's target.

    A listing shows such files under the link's path, by which the table does not name them. If a tree has relative
    locations, the link is the tree's location.
    """
    if not is_local(folder.location):
        return
    path = local_path(folder.location)
    target = os.path.realpath(path)
    if target == os.path.normpath(path):
        return
    if (row := first(needed, folder.key_of(sql.col("path")).startswith(join(target, "")))) is not None:
        problem = f"{path} is a link to {target}, where the table has the file {row['path']}: open the table there"
        raise ValidationError(f"{table.full_name}: {problem}")


def _hash() -> Aliased:
    return sql.call("xxhash64", sql.col("key")).alias("hash")


def _needed_paths(table: BaseTable) -> Relation:
    """Return the files that a table needs: its snapshots' files, its metadata files and its hint; rows of `path`."""
    paths = [entry.metadata_file for entry in table.metadata.metadata_log] + [table.metadata_location]
    folders = {join(table.metadata.location, METADATA), table.metadata_location.rpartition("/")[0]}
    paths += [join(folder, VERSION_HINT) for folder in folders]
    return relation.union(reachable_paths(table.state), pa.table([paths], ["path"]), table.state)


def _content(table: BaseTable) -> Sql:
    """Return the kind of a file, by its name and folder."""
    folders = {path_of(join(table.metadata.location, METADATA)), path_of(table.metadata_location.rpartition("/")[0])}
    path, key = sql.col("path"), sql.col("key")
    is_metadata = finds(path, METADATA_FILE)
    for folder in sorted(folders):
        is_metadata |= key.startswith(join(folder, ""))
    is_unfinished = finds(name_of(path), f"^{TEMPORARY_PATTERN}$")
    return sql.when(is_unfinished, "unfinished write").when(is_metadata, "metadata").otherwise("data")


def _deletable(files: Relation) -> Relation:
    return where(files, ~sql.col(_MISMATCHED))


def _refuse_mismatched(folder: Folder, mismatched: Relation, needed: Relation) -> None:
    if first(mismatched) is None:
        return
    path = sql.col("path")
    keyed = select(needed, [folder.key_of(path).alias("key"), prefix_of(path).alias("prefix")])
    same_paths = pairs(keyed, some_columns(mismatched, ("key", "path")), "key")
    count, least = sql.call("sum", 1).alias("files"), sql.call("min", path).alias("path")
    distinct = some_columns(grouped(same_paths, sql.columns("prefix", "path"), [count]), ("prefix", "path"))
    by_prefix = collected(grouped(distinct, sql.columns("prefix"), [count, least]))
    rows = by_prefix.sort_by("prefix").slice(0, _NAMED).to_pylist()
    listed = "; ".join(f"{row['prefix']} has {row['files']} files, such as {row['path']}" for row in rows)
    raise ValidationError(
        f"{folder.location}: the table has files of the same paths under another scheme or authority: {listed}: "
        "say which are equal by equal_schemes and equal_authorities, or set prefix_mismatch_mode to ignore or delete"
    )
