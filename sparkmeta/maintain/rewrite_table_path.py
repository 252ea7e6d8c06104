"""Write a table's metadata for another location: the options, the plan, its jobs.

    files that snapshots need -> rewritten delete files -> rewritten manifests -> rewritten lists and roots -> metadata

Each step needs the lengths of the files that the previous step has written. Files are written to a staging folder and
copied from there.
"""

from __future__ import annotations

import gzip
import json
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.checks import NAME, Options, described, option
from sparkmeta.entries.relation import (
    collected,
    count,
    first,
    frame_of,
    grouped,
    mapped,
    matching,
    totals,
    union,
    values,
    where,
)
from sparkmeta.errors import NotFoundError, ValidationError, translated_errors
from sparkmeta.expr import sql
from sparkmeta.maintain.plans import Plan, PlanSummary
from sparkmeta.maintain.reachable import (
    UNREACHABLE,
    manifests_of_snapshots,
    mapped_by_size,
    statistics_files,
    unreachable_files,
)
from sparkmeta.maintain.reachable_tasks import LIST, MANIFEST, MISSING, PATHS, ROOT
from sparkmeta.maintain.relocation_tasks import (
    COPIED,
    LENGTHS,
    PLANNED,
    POSITION_DELETES,
    Copier,
    ListWriter,
    Measurer,
    Relocator,
    Targets,
    Unmoved,
)
from sparkmeta.manifests.placement import mapped_files
from sparkmeta.operations.metadata_files import hint_location, version_of
from sparkmeta.operations.table_operations import TableT, load_version, metadata_folder
from sparkmeta.progress import planning
from sparkmeta.snapshot.state import task_reader
from sparkmeta.spec.json_node import GZIP, decompressed
from sparkmeta.spec.locations import SCHEME, Relocation, is_absolute, relocated_document
from sparkmeta.spec.metadata import refuse_encrypted
from sparkmeta.storage.files import executor_writer
from sparkmeta.storage.location import file_name, join, normalize

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.entries.relation import Relation
    from sparkmeta.operations.table_operations import TableVersion
    from sparkmeta.snapshot.state import TableState

# -- The options of `Maintenance.rewrite_table_path` ------------------------------------------------------------------


@dataclass(frozen=True)
class PathOptions(Options):
    """See `Maintenance.rewrite_table_path`."""

    source_prefix: str = field(
        metadata=described("the beginning of the table's locations that is replaced: a folder or a bucket.", NAME)
    )
    target_prefix: str = field(metadata=described("what replaces it.", NAME))
    _: KW_ONLY
    start_version: str | None = option(
        None,
        "a metadata file of the table, by its name or location, that was copied before: only what later versions need "
        "is rewritten and copied.",
    )
    end_version: str | None = option(
        None, "the metadata file, by its name or location, to copy up to. Defaults to the current one."
    )
    staging_location: str | None = option(
        None, "the folder for rewritten files. Defaults to a new one in the table's metadata folder."
    )
    copy_files: bool = option(False, "also copy all files to their new locations.")

    def check(self) -> None:
        """See `Options.check`."""
        super().check()
        for name in ("source_prefix", "target_prefix", "staging_location"):
            value = getattr(self, name)
            if value is not None and (not is_absolute(value) or not re.sub(SCHEME, "", value).strip("/")):
                raise ValidationError(f"{name} is {value!r}: expected an absolute location of a folder or bucket")


# -- The plan ---------------------------------------------------------------------------------------------------------


_METADATA = "metadata"
_HINT = "version hint"


@dataclass(frozen=True)
class PathSummary(PlanSummary):
    """The files to rewrite and to copy; `str` formats them.

    Attributes:
        rewritten: content -> the number of files to rewrite.
        copied: content -> the number of other files to copy.
        bytes: the bytes of these other files, as far as metadata records them.
        metadata_location: the new location of the table's metadata file.
    """

    rewritten: Mapping[str, int]
    copied: Mapping[str, int]
    bytes: int
    metadata_location: str

    def __str__(self) -> str:
        rewritten, copied = sum(self.rewritten.values()), sum(self.copied.values())
        return "\n".join(
            [
                f"{self.table}: {rewritten} files are rewritten, {copied} files with {self.bytes} bytes are copied",
                *(f"  rewritten: {number} files, {content}" for content, number in self.rewritten.items()),
                *(f"  copied: {number} files, {content}" for content, number in self.copied.items()),
                f"  the table will be at {self.metadata_location}",
            ]
        )


@dataclass(frozen=True)
class PathRewrite:
    """The outcome of `PathPlan.commit`.

    Attributes:
        metadata_location: the new location of the table's metadata file, after the copy.
        staging_location: the folder of the rewritten files.
        file_list: the folder of CSV files without a header. A line has the source and the target of a file to copy.
        rewritten: the number of rewritten files.
        listed: the number of files to copy.
        copied: the number of files that this commit copied, without files that earlier runs had copied; None without
            `copy_files`.
    """

    metadata_location: str
    staging_location: str
    file_list: str
    rewritten: int
    listed: int
    copied: int | None


@dataclass(frozen=True)
class PathPlan(Plan[TableT, PathRewrite]):
    """A plan to write a table's metadata for another location, carried out by `commit`. The table does not change.

    Attributes:
        options: the options.
        staging_location: the folder of the rewritten files.
    """

    _doing = "Rewriting metadata"

    options: PathOptions
    staging_location: str
    # The metadata file to copy up to.
    _end: TableVersion = field(repr=False)
    # The files of the log after the start, up to the end.
    _versions: tuple[str, ...] = field(repr=False)
    # The snapshots and statistics files whose files were copied before.
    _copied_snapshots: frozenset[int] = field(repr=False)
    _copied_statistics: frozenset[str] = field(repr=False)

    def to_df(self) -> DataFrame:
        """Return a row for each file to copy. Runs jobs.

        Columns: content, file_path, file_size_in_bytes (null if the metadata does not say), rewritten (whether the copy
        is a rewritten file), source_path (the rewritten file, or the file itself), target_path.

        Raises:
            NotFoundError: a manifest or list of the table is gone.
            ValidationError: a file has another prefix.
        """
        return frame_of(mapped(self._files, self._targets, PLANNED), self._state)

    @planning
    def summary(self) -> PathSummary:
        """Return the plan in numbers. Runs the jobs of `to_df`."""
        figures = {"files": sql.call("sum", 1), "bytes": sql.call("sum", sql.col("length"))}
        with translated_errors():
            rows = collected(grouped(self._files, sql.columns("content"), sql.named(figures))).sort_by("content")
        contents = self._rewritten_contents
        rewritten = {row["content"]: row["files"] for row in rows.to_pylist() if row["content"] in contents}
        others = [row for row in rows.to_pylist() if row["content"] not in contents]
        copied = {row["content"]: row["files"] for row in others}
        total = sum(row["bytes"] or 0 for row in others)
        return PathSummary(self.table.full_name, rewritten, copied, total, self._relocation.of(self._versions[-1]))

    def commit(self) -> PathRewrite:
        """Write the rewritten files and the list of files to copy, and copy the files with `copy_files`.

        Nothing that exists is changed or deleted. A second run with the same `staging_location` writes the same files
        again. Files that an interrupted copy has finished are not copied again. The metadata file is copied last.

        Raises:
            NotFoundError: a file of the table is gone.
            CorruptFileError: a file is damaged.
            ValidationError: a file has another prefix.
            UnsupportedError: only Spark's own sources can open the files.
        """
        return super().commit()

    def _commit(self) -> PathRewrite:
        with translated_errors():
            numbers = self.summary()
            rewritten = sum(numbers.rewritten.values())
            listed = rewritten + sum(numbers.copied.values())
            self._write()
            file_list = self._write_list(listed)
            copied = self._copy() if self.options.copy_files else None
        return PathRewrite(numbers.metadata_location, self.staging_location, file_list, rewritten, listed, copied)

    def _outcome(self) -> dict[str, Any] | None:
        return asdict(self._committed[0]) if self._committed else None

    # -- the files

    @property
    def _relocation(self) -> Relocation:
        return Relocation(self.options.source_prefix, self.options.target_prefix)

    @property
    def _staging(self) -> Relocation:
        return Relocation(self.options.source_prefix, self.staging_location)

    @cached_property
    def _state(self) -> TableState:
        return replace(self.table.state, metadata=self._end.metadata, snapshot=self._end.metadata.current_snapshot())

    @cached_property
    def _new_snapshots(self) -> frozenset[int]:
        return frozenset(snapshot.snapshot_id for snapshot in self._state.metadata.snapshots) - self._copied_snapshots

    @cached_property
    def _files(self) -> Relation:
        """The files to copy, rows of `UNREACHABLE`."""
        state, content = self._state, sql.col("content")
        with translated_errors():
            reached = unreachable_files(state, self._new_snapshots)
            if (lost := first(reached, content == MISSING)) is not None:
                raise NotFoundError(f"{lost['path']}: a snapshot of the table needs the file, which is gone")
            statistics = statistics_files(state.metadata)
            is_new = pc.invert(pc.is_in(statistics.column("path"), pa.array([*self._copied_statistics], pa.string())))
            new_statistics = statistics.filter(is_new).select(UNREACHABLE.names)
            of_snapshots = where(reached, ~content.isin([*set(statistics.column("content").to_pylist())]))
            files = union(union(of_snapshots, new_statistics, state), self._metadata_files, state)
            self._refuse_other_prefixes(files)
        return files

    def _refuse_other_prefixes(self, files: Relation) -> None:
        """Raise ValidationError for a file whose location does not begin with the prefix in any spelling."""
        other_files = where(files, ~sql.col("path").startswith(f"{self.options.source_prefix.rstrip('/')}/"))
        for path in values(mapped(other_files, Unmoved(self._relocation), PATHS)):
            raise ValidationError(
                f"{path}: the location does not begin with source_prefix, {self.options.source_prefix}: choose a "
                "prefix of all files, or bring the file into the table"
            )

    @cached_property
    def _metadata_files(self) -> pa.Table:
        rows = [{"content": _METADATA, "path": location} for location in self._versions]
        if version_of(self._versions[-1]) is not None:
            rows.append({"content": _HINT, "path": self._hint})
        return pa.Table.from_pylist(rows, UNREACHABLE)

    @property
    def _hint(self) -> str:
        return hint_location(self._end.metadata.location)

    @cached_property
    def _rewritten_contents(self) -> tuple[str, ...]:
        """The contents of the files to rewrite. If all locations are relative, only metadata files are rewritten."""
        locations = self._state.types.locations
        is_outside = ~sql.col("path").startswith(locations.folder)
        if locations.writes_relative and first(self._files, is_outside) is None:
            return (_METADATA, _HINT)
        return (_METADATA, _HINT, LIST, ROOT, MANIFEST, POSITION_DELETES)

    @property
    def _targets(self) -> Targets:
        return Targets(self._relocation, self._staging, self._rewritten_contents)

    # -- rewrite them

    def _write(self) -> None:
        """Write the rewritten files, first the files whose lengths other files record."""
        none = LENGTHS.empty_table()
        self._rewrite(none, [POSITION_DELETES])
        lengths = self._rewrite(none, [MANIFEST])
        lists = self._files_of([LIST, ROOT])
        if self._copied_snapshots and count(lists):
            lengths = pa.concat_tables([lengths, self._copied_lengths()])
        self._rewrite(lengths, [LIST, ROOT])
        for location in self._versions:
            self._state.files.overwrite(self._staging.of(location), self._new_metadata(location))
        if version_of(self._versions[-1]) is not None:
            hint = str(version_of(self._versions[-1])).encode()
            self._state.files.overwrite(self._staging.of(self._hint), hint)

    def _rewrite(self, lengths: pa.Table, contents: list[str]) -> pa.Table:
        """Rewrite the files of some contents, and return their new lengths."""
        return collected(mapped_by_size(self._state, self._files_of(contents), self._relocator(lengths), LENGTHS))

    def _files_of(self, contents: list[str]) -> Relation:
        """Return the files of some contents that are rewritten, rows of `UNREACHABLE`."""
        return where(self._files, sql.col("content").isin([*set(contents) & set(self._rewritten_contents)]))

    def _copied_lengths(self) -> pa.Table:
        """Return the new lengths of manifests that were copied before and are listed again."""
        metadata = self._state.metadata
        snapshots = [snapshot for snapshot in metadata.snapshots if snapshot.snapshot_id in self._new_snapshots]
        state = replace(self._state, metadata=metadata.model_copy(update={"snapshots": snapshots}))
        others = matching(manifests_of_snapshots(state), self._files_of([MANIFEST]), {"path": "path"}, absent=True)
        measurer = Measurer(self._relocator(LENGTHS.empty_table()))
        return collected(mapped_by_size(self._state, others, measurer, LENGTHS))

    def _relocator(self, lengths: pa.Table) -> Relocator:
        state = self._state
        reader, writer = task_reader(state), executor_writer(state.files)
        return Relocator(reader, writer, self._relocation, self._staging, state.types.locations, lengths)

    def _new_metadata(self, location: str) -> bytes:
        data = self._state.files.read(location)
        document = json.loads(decompressed(data, location))
        if not self._relocation.applies_to(str(document.get("location"))):
            # The folder of a table with relative locations has been moved, which the next commit would record.
            document["location"] = self._end.metadata.location
        document = relocated_document(document, self._relocation)
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
        return gzip.compress(text, mtime=0) if data.startswith(GZIP) else text

    # -- the list of files, and the copy

    def _write_list(self, listed: int) -> str:
        """Write the list of files to copy, given their number, and return its folder."""
        folder = join(self.staging_location, f"file-list-{uuid.uuid4()}")
        writer = ListWriter(executor_writer(self._state.files), folder, self._targets)
        tasks = listed // _LIST_ROWS + 1
        collected(mapped_files(self._files, lambda _: writer, PATHS, self._state, runs=True, tasks=lambda _: tasks))
        return folder

    def _copy(self) -> int:
        """Copy all files, the metadata file and the version hint last. Return how many this run copied.

        Raises:
            ValidationError: the table at the new location has commits of its own.
        """
        files = self._state.files
        for location in self._versions:
            target, staged = self._relocation.of(location), self._staging.of(location)
            if target != staged and files.exists(target) and files.read(target) != files.read(staged):
                raise ValidationError(
                    f"{target}: another metadata file has this name: the table there has commits of its own, which "
                    "the copy would overwrite"
                )
        state, is_last = self._state, sql.col("content").isin([_METADATA, _HINT])
        copier = Copier(task_reader(state), executor_writer(state.files), self._targets)
        copied = mapped_by_size(state, where(self._files, ~is_last), copier, COPIED)
        number = totals(copied, sql.named({"copied": sql.count_if(sql.col("copied"))}))["copied"] or 0
        copies = [copy for batch in self._metadata_files.to_batches(max_chunksize=1) for copy in copier([batch])]
        return int(number) + sum(map(len, copies))


_LIST_ROWS = 100_000


# -- Make the plan ----------------------------------------------------------------------------------------------------


def plan_table_path(table: TableT, options: PathOptions) -> PathPlan[TableT]:
    """See `Maintenance.rewrite_table_path`."""
    options.check()
    metadata, files = table.metadata, table.state.files
    refuse_encrypted(metadata, "so that its manifests can't be rewritten")
    task_reader(table.state)
    executor_writer(files)
    relocation = Relocation(options.source_prefix, options.target_prefix)
    for location in (metadata.location, table.metadata_location):
        if not relocation.applies_to(location):
            raise ValidationError(f"source_prefix is {options.source_prefix!r}: {location} does not begin with it")
    for name in ("target_prefix", "staging_location"):
        folder = getattr(options, name)
        if folder is not None and normalize(folder.rstrip("/")) == normalize(options.source_prefix.rstrip("/")):
            raise ValidationError(f"{name} is {folder!r}: it is the source_prefix, whose files would be overwritten")
    log = list(dict.fromkeys([*(entry.metadata_file for entry in metadata.metadata_log), table.metadata_location]))
    end = len(log) - 1 if options.end_version is None else _index(log, "end_version", options.end_version)
    start = -1 if options.start_version is None else _index(log, "start_version", options.start_version)
    if start >= end:
        raise ValidationError(f"start_version is {options.start_version!r}: it is not before {log[end]}")
    versions = [version for version in log[start + 1 : end] if relocation.applies_to(version) and files.exists(version)]
    before = None if start < 0 else load_version(files, log[start]).metadata
    staging = options.staging_location or join(metadata_folder(metadata), f"moved-{uuid.uuid4()}")
    return PathPlan(
        table,
        options,
        staging,
        load_version(files, log[end]),
        (*versions, log[end]),
        frozenset() if before is None else frozenset(snapshot.snapshot_id for snapshot in before.snapshots),
        frozenset() if before is None else frozenset(statistics_files(before).column("path").to_pylist()),
    )


def _index(log: Sequence[str], name: str, version: str) -> int:
    """Return the index of a metadata file, given by its name or location, in a table's log."""
    for index, location in enumerate(log):
        if version == file_name(location) or normalize(version) == normalize(location):
            return index
    raise ValidationError(f"{name} is {version!r}: expected a metadata file in the table's log, such as {log[-1]}")
