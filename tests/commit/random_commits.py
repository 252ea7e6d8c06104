"""Random operations on a table: their requests to the engine, and their effects on the model of the table."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sparkmeta.errors import CommitConflictError, ValidationError
from sparkmeta.spec.bitmap import PositionBitmap, write_deletion_vector
from sparkmeta.spec.puffin import deletion_vector_blob, write_puffin
from tests.commit.table_model import (
    DATA,
    EQUALITY,
    POSITION,
    Draft,
    File,
    Key,
    deletes_replaced,
    matches,
    same_partition,
)
from tests.frames import local_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    import sparkmeta as sm

PARTS = ("a", "b", "ü/=", None)
# Names of partition fields -> the number of their values; None for a value of the column s.
PARTITION_FIELDS = {"s_identity": None, "id_bucket": 4, "id_more": 8}
_COUNTS, _BOUNDS = pa.map_(pa.int32(), pa.int64()), pa.map_(pa.int32(), pa.binary())
_COLUMNS = pa.schema(
    [
        ("content", pa.int32()),
        ("file_path", pa.string()),
        ("file_format", pa.string()),
        ("spec_id", pa.int32()),
        ("record_count", pa.int64()),
        ("file_size_in_bytes", pa.int64()),
        ("value_counts", _COUNTS),
        ("null_value_counts", _COUNTS),
        ("lower_bounds", _BOUNDS),
        ("upper_bounds", _BOUNDS),
        ("referenced_data_file", pa.string()),
        ("content_offset", pa.int64()),
        ("content_size_in_bytes", pa.int64()),
        ("equality_ids", pa.list_(pa.int32())),
    ]
)


@dataclass
class Maker:
    """A maker of files with random content, below a folder. Only files of deletion vectors are really written."""

    rng: random.Random
    spark: SparkSession
    folder: Path
    name_count: int = 0

    def name(self, what: str, suffix: str) -> str:
        self.name_count += 1
        return f"{self.folder}/data/{what} {self.name_count}{suffix}"

    def data(self, spec: tuple[int, Sequence[str]], like: File | None = None) -> File:
        """Return a data file in some partition, or in the partition of another file."""
        rng, start = self.rng, self.rng.randrange(100)
        part = rng.choice(PARTS) if like is None else like.part
        return File(
            DATA,
            self.name("data", ".parquet"),
            rng.randrange(1, 30),
            rng.randrange(100, 10_000),
            spec[0] if like is None else like.spec_id,
            self._partition(spec[1], part) if like is None else like.partition,
            part,
            (start, start + rng.randrange(20)) if rng.random() < 0.9 else None,
        )

    def _partition(self, names: Sequence[str], part: str | None) -> tuple[tuple[str, Any], ...]:
        buckets = {name: self.rng.randrange(count) for name, count in PARTITION_FIELDS.items() if count}
        return tuple((name, part if name == "s_identity" else buckets[name]) for name in names)

    def equality(self, spec: tuple[int, Sequence[str]]) -> File:
        part = self.rng.choice(PARTS)
        partition = (spec[0], self._partition(spec[1], part))
        return File(EQUALITY, self.name("equality", ".parquet"), self.rng.randrange(1, 9), 300, *partition)

    def positions(self, like: File, of: str | None) -> File:
        """Return a position delete file of version 2, for one data file or its partition."""
        partition = (like.spec_id, like.partition)
        return File(POSITION, self.name("positions", ".parquet"), self.rng.randrange(1, 9), 200, *partition, of=of)

    def vectors(self, files: Iterable[File], live: Mapping[Any, File], least: int = 1) -> list[File]:
        """Return deletion vectors of files, in one Puffin file.

        Each vector includes the positions of the vector that it replaces.
        """
        path, chosen = self.name("dv", ".puffin"), []
        for file in files:
            old = next(
                (
                    live_file.positions
                    for live_file in live.values()
                    if live_file.is_vector and live_file.of == file.path
                ),
                frozenset(),
            )
            new = self.rng.sample(range(file.records), self.rng.randrange(least, file.records + 1))
            chosen.append((file, frozenset(old | set(new))))
        written = write_puffin(
            deletion_vector_blob(write_deletion_vector(PositionBitmap.of(sorted(positions))), of.path, len(positions))
            for of, positions in chosen
        )
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(written.data)
        size = len(written.data)
        return [
            File(POSITION, path, len(positions), size, of.spec_id, of.partition, of=of.path, offset=blob.offset,
                 blob=blob.length, positions=positions)
            for (of, positions), blob in zip(chosen, written.blobs, strict=True)
        ]  # fmt: skip

    def frame(self, files: Iterable[File]) -> DataFrame:
        """Return files in the columns that a commit reads."""
        rows = [file_row(file) for file in files]
        partition = pa.struct(
            [(name, pa.int32() if count else pa.string()) for name, count in PARTITION_FIELDS.items()]
        )
        return local_frame(
            self.spark, pa.Table.from_pylist(rows, schema=_COLUMNS.append(pa.field("partition", partition)))
        )

    def named(self, files: Iterable[File]) -> DataFrame:
        """Return files to remove, in the columns that a commit reads."""
        rows = [{"file_path": file.path, "content_offset": file.offset} for file in files]
        return local_frame(self.spark, pa.Table.from_pylist(rows, schema=_NAMED))


_NAMED = pa.schema([("file_path", pa.string()), ("content_offset", pa.int64())])


def file_row(file: File) -> dict[str, Any]:
    row = {
        "content": file.content,
        "file_path": file.path,
        "file_format": "PUFFIN" if file.is_vector else "PARQUET",
        "spec_id": file.spec_id,
        "record_count": file.records,
        "file_size_in_bytes": file.size,
        "partition": dict(file.partition),
        "referenced_data_file": file.of,
        "content_offset": file.offset,
        "content_size_in_bytes": file.blob,
        "equality_ids": [1] if file.content == EQUALITY else None,
    }
    return row | (metrics(file) if file.content == DATA else {})


def metrics(file: File) -> dict[str, dict[int, Any]]:
    """Return the metrics maps of a data file."""
    lower: dict[int, bytes] = {}
    upper: dict[int, bytes] = {}
    if file.ids is not None:
        lower[1], upper[1] = (bound.to_bytes(8, "little") for bound in file.ids)
    if file.part is not None:
        lower[2] = upper[2] = file.part.encode()
    nulls = {1: 0, 2: file.records if file.part is None else 0}
    return {
        "value_counts": {1: file.records, 2: file.records},
        "null_value_counts": nulls,
        "lower_bounds": lower,
        "upper_bounds": upper,
    }


# -- operations -----------------------------------------------------------------------------------------------------


@dataclass
class Task:
    """A snapshot to make.

    Attributes:
        table: the table from which the transaction began. The paths of its live files are in `known`.
        spec: the partition spec of new files.
        added_counts: the number of files in each added DataFrame.
        error: the error with which the commit must be refused.
        before: the branch's live files before the first commit of the transaction.
    """

    maker: Maker
    update: Any
    table: sm.Table
    branch: str
    draft: Draft
    known: frozenset[str]
    spec: tuple[int, Sequence[str]]
    operation: str | None = None
    added_counts: list[int] = field(default_factory=list)
    error: type[Exception] | None = None
    before: Mapping[Key, File] = field(default_factory=dict)

    def replaces(self, removed: Sequence[File]) -> None:
        """Expect a conflict if rows that this transaction has deleted would come back."""
        equality = [file for file in self._new_deletes() if file.content == EQUALITY]
        if any(
            not file.partition or same_partition(file, removed_file) for file in equality for removed_file in removed
        ):
            self.error = CommitConflictError
        self.masks(removed)

    def masks(self, targets: Sequence[File]) -> None:
        """Expect a conflict if this transaction has added a deletion vector for one of the data files."""
        paths = {file.path for file in targets}
        if any(file.of in paths for file in self._new_deletes()):
            self.error = CommitConflictError

    def _new_deletes(self) -> list[File]:
        return [file for key, file in self.draft.live.items() if file.content and key not in self.before]

    def added(self, files: Sequence[File]) -> DataFrame:
        """Add new files to the draft, and return them in the columns that a commit reads."""
        self.draft.add(files)
        self.added_counts.append(len(files))
        return self.maker.frame(files)

    def fits_root(self, limit: int) -> bool:
        """Return whether all added files fit into the root, DataFrame by DataFrame."""
        room = limit
        for count in self.added_counts:
            if count > room:
                return False
            room -= count
        return True

    def some_data(self, max_files: int) -> list[File]:
        chosen = [file for file in self.draft.data() if file.path in self.known]
        return self.maker.rng.sample(chosen, min(len(chosen), self.maker.rng.randrange(1, max_files + 1)))

    def new_data(self, least: int, max_files: int) -> list[File]:
        return [self.maker.data(self.spec) for _ in range(self.maker.rng.randrange(least, max_files + 1))]


def append(task: Task) -> None:
    _append(task, task.new_data(1, 4))
    task.operation = "append"


def append_many(task: Task) -> None:
    _append(task, task.new_data(6, 14))
    task.operation = "append"


def _append(task: Task, files: list[File]) -> None:
    task.update.append(task.added(files))


def delete(task: Task) -> None:
    files = task.some_data(4)
    task.update.delete(task.maker.named(files))
    task.draft.remove(files)
    task.operation = "delete"


def delete_planned(task: Task) -> None:
    files = task.some_data(5)
    planned = task.table.scan().use_ref(task.branch).plan_files() if task.known else task.maker.named([])
    spellings = [prefix + file.path for file in files for prefix in ("", "file://")]
    task.update.delete(planned.where(planned.file_path.isin(spellings)))
    task.draft.remove(files)
    task.operation = "delete"


def delete_matching(task: Task) -> None:
    task.update.delete(row_filter=_filter(task))
    task.operation = "delete"


def _filter(task: Task) -> str:
    """Return a random filter.

    Files that it matches are removed from the draft. If a file matches partly, expect a refusal.
    """
    text, part, below = random_filter(task.maker.rng)
    judged = {file.key: matches(file, part, below) for file in task.draft.data()}
    if "some" in judged.values():
        task.error = ValidationError
    task.draft.remove([file for file in task.draft.data() if judged[file.key] == "all"])
    return text


def random_filter(rng: random.Random) -> tuple[str, str | None, int | None]:
    part = rng.choice([value for value in PARTS if value] + [None])
    below = rng.choice((None, rng.randrange(130), 200)) if part else rng.choice((5, 200, rng.randrange(130)))
    texts = [] if part is None else [f"s = '{part}'"]
    texts += [] if below is None else [f"id < {below}"]
    return " and ".join(texts), part, below


def overwrite(task: Task) -> None:
    new = task.new_data(1, 3)
    if task.maker.rng.random() < 0.5:
        removed = task.some_data(3)
        task.update.overwrite(task.added(new), task.maker.named(removed))
        task.draft.remove(removed)
    else:
        task.update.overwrite(task.added(new), row_filter=_filter(task))
    task.operation = "overwrite"


def row_delta(task: Task) -> None:
    maker, draft = task.maker, task.draft
    deletes: list[File] = []
    targets = task.some_data(5)
    if targets and maker.rng.random() < 0.8:
        task.masks(targets)
        deletes += maker.vectors(targets, draft.live)
    if not deletes or maker.rng.random() < 0.4:
        deletes += [maker.equality(task.spec) for _ in range(maker.rng.choice((1, 1, 2, 7)))]
    added = task.new_data(1, 3) if maker.rng.random() < 0.4 else []
    spared = {file.path for file in targets}
    removed = [file for file in task.some_data(2) if file.path not in spared] if maker.rng.random() < 0.3 else []
    if removed:
        task.replaces(removed)
    task.update.row_delta(
        task.added(added) if added else None, task.added(deletes), maker.named(removed) if removed else None
    )
    draft.remove(removed)
    draft.remove(deletes_replaced({file.of for file in deletes if file.of}, draft.live).values())
    task.operation = "overwrite" if added else "delete"


def rewrite(task: Task) -> None:
    """Replace files of one partition by one file, with the rows that are not deleted."""
    targets = task.some_data(1)
    if not targets:
        return append(task)
    removed = [file for file in task.draft.data() if same_partition(file, targets[0]) and file.path in task.known][:4]
    gone = [
        file
        for file in task.draft.live.values()
        if file.is_vector and file.of in {removed_file.path for removed_file in removed}
    ]
    rows = sum(file.records for file in removed) - sum(file.records for file in gone)
    new = [task.maker.data(task.spec, removed[0])] if rows else []
    new = [File(**{**vars(file), "records": rows}) for file in new]
    task.replaces(removed)
    task.update.rewrite(task.maker.named(removed), task.added(new))
    task.draft.remove(removed)
    task.operation = "replace"
    return None


def rewrite_vectors(task: Task) -> None:
    """Move deletion vectors to another Puffin file, unchanged."""
    old = [file for file in task.draft.live.values() if file.is_vector and file.of in task.known]
    if not old:
        return append(task)
    chosen = task.maker.rng.sample(old, min(len(old), 3))
    data = {file.path: file for file in task.draft.data()}
    new = task.maker.vectors(
        [File(**{**vars(data[file.of]), "records": 0}) for file in chosen if file.of], task.draft.live, 0
    )
    task.update.rewrite(task.maker.named(chosen), task.added(new))
    task.draft.remove(chosen)
    task.operation = "replace"
    return None


def replace_partitions(task: Task) -> None:
    new = task.new_data(1, 2)
    task.update.replace_partitions(task.added(new))
    everything = not task.spec[1]
    task.draft.remove(
        [file for file in task.draft.data() if everything or any(same_partition(file, new_file) for new_file in new)]
    )
    task.operation = "overwrite"


def delete_deletes(task: Task) -> None:
    """Remove deletion vectors and equality deletes without their data files, so that rows come back."""
    tree = [
        file
        for file in task.draft.live.values()
        if file.content != DATA and (file.is_vector or file.content == EQUALITY)
    ]
    chosen = task.maker.rng.sample(tree, min(len(tree), 3))
    task.update.delete(task.maker.named(chosen))
    task.draft.remove(chosen)
    task.operation = "delete"


def several(task: Task) -> None:
    """Chain operations: add files, and remove others by their paths and by a filter."""
    added = task.new_data(1, 7)
    task.update.append(task.added(added))
    files = task.some_data(3)
    task.update.delete(task.maker.named(files))
    task.draft.remove(files)
    task.operation = "overwrite"


def nothing(task: Task) -> None:
    """Add a snapshot without changes."""


def not_there(task: Task) -> None:
    missing = task.maker.data(task.spec)
    if task.maker.rng.random() < 0.5:
        task.update.delete(task.maker.named([missing]))
    else:
        task.update.row_delta(deletes=task.maker.frame(task.maker.vectors([missing], {})))
    task.error = ValidationError


Operation = Callable[[Task], None]
# Operations and their relative frequencies, and the operations that may also be done to a stale table.
OPERATIONS: Mapping[Operation, int] = {
    append: 3, append_many: 4, delete: 3, delete_planned: 3, delete_matching: 2, overwrite: 2, row_delta: 6,
    rewrite: 2, rewrite_vectors: 1, replace_partitions: 2, delete_deletes: 1, several: 2, nothing: 1, not_there: 1,
}  # fmt: skip
ON_STALE: Mapping[Operation, int] = {append: 2, append_many: 2, delete: 3, delete_planned: 2, several: 1, nothing: 1}


def chosen(rng: random.Random, operations: Mapping[Operation, int]) -> Operation:
    return rng.choices([*operations], [*operations.values()])[0]
