"""Compare the entries of files with the files, and correct entries. Spark tasks import this."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.avro.container import read_header
from sparkmeta.entries.manifest_records import map_type, stats_of_maps
from sparkmeta.entries.projection import CONTENT_STATS
from sparkmeta.errors import CorruptFileError, NotFoundError, SparkmetaError, UnsupportedError, shown
from sparkmeta.expr.arrays import indices_where, whole, with_plain_types
from sparkmeta.expr.bounds import inverted
from sparkmeta.inspect.check_tasks import above_upper, shown_value
from sparkmeta.maintain.reachable_tasks import CONTENTS, LIST, LISTED, MANIFEST, MISSING, ROOT, SNAPSHOTS, ListReader
from sparkmeta.manifests.v4.convert import PartitionValues, content_columns, content_stats
from sparkmeta.spec.entry import BOUNDS, METRICS_MAP_IDS, ContentType
from sparkmeta.storage.content import read_ahead
from sparkmeta.write.existing_tasks import FILE_PATH, IS_MISSING
from sparkmeta.write.tasks import PROBLEM

if TYPE_CHECKING:
    from sparkmeta.manifests.manifest_tasks import ExistingTasks
    from sparkmeta.storage.executors import ExecutorReader
    from sparkmeta.write.existing_tasks import ExistingFiles

# -- Kinds of damage --------------------------------------------------------------------------------------------------


class Damage(StrEnum):
    """A kind of damage, by the name that users give."""

    MANIFESTS = "lost-manifests"
    DATA = "lost-data-files"
    DELETES = "lost-delete-files"
    UNREADABLE = "unreadable-data-files"
    SIZES = "wrong-sizes"
    COUNTS = "wrong-counts"
    STATISTICS = "wrong-statistics"
    REPEATED = "repeated-files"
    DANGLING = "dangling-deletes"
    LISTED = "wrong-manifest-counts"
    HINT = "version-hint"


MENDING: Final = {
    Damage.MANIFESTS: "the manifest leaves its snapshot, or the snapshot leaves the table, or the branch goes back",
    Damage.DATA: "the file leaves the table",
    Damage.DELETES: "the delete file leaves the table, and the rows that it deletes come back",
    Damage.UNREADABLE: "the file leaves the table",
    Damage.SIZES: "the entry gets the size of the file",
    Damage.COUNTS: "the entry gets the record count and statistics of the file",
    Damage.STATISTICS: "the entry gets the record count and statistics of the file",
    Damage.REPEATED: "the entry leaves the table, which keeps another entry of the file",
    Damage.DANGLING: "the delete file leaves the table",
    Damage.LISTED: "the manifest is written again",
    Damage.HINT: "the hint gets the current version",
}
"""How each kind of damage is mended."""

FINDINGS: Final = pa.schema(
    [
        pa.field("damage", pa.string()),
        pa.field("content", pa.string()),
        pa.field("file_path", pa.string()),
        pa.field("problem", pa.string()),
        pa.field("mending", pa.string()),
        pa.field("lost_records", pa.int64()),
        pa.field("snapshot_id", pa.int64()),
        pa.field("content_offset", pa.int64()),
        pa.field("manifest_path", pa.string()),
        pa.field("manifest_pos", pa.int64()),
    ]
)
"""The columns of `RepairPlan.to_df`."""


def finding(damage: Damage, content: str, path: str, problem: str, **columns: Any) -> dict[str, Any]:
    """Return a row of `FINDINGS`."""
    row = {"damage": damage.value, "content": content, "file_path": path, "problem": problem}
    return row | {"mending": MENDING[damage], "lost_records": 0} | columns


def findings(rows: Iterable[Mapping[str, Any]]) -> pa.RecordBatch:
    """Return rows as `FINDINGS`. Missing columns are null."""
    return pa.RecordBatch.from_pylist([*rows], schema=FINDINGS)


# -- Compare with the store -------------------------------------------------------------------------------------------


STORED: Final = pa.schema([pa.field("stored_path", pa.string()), pa.field("stored_length", pa.int64())])
"""The length of a file in a store; null for a missing file."""


@dataclass(frozen=True)
class StoredLengths:
    """Finds the lengths of files. Picklable."""

    reader: ExecutorReader

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield files, given by their locations in the first column, as `STORED`."""
        for batch in batches:
            lengths = dict(read_ahead(batch.column(0).to_pylist(), self._length, lambda _: 0))
            arrays = [pa.array(lengths, pa.string()), pa.array(lengths.values(), pa.int64())]
            yield pa.RecordBatch.from_arrays(arrays, schema=STORED)

    def _length(self, location: str) -> int | None:
        with suppress(NotFoundError):
            return self.reader.length(location)
        return None


# -- Compare entries with each other ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class RepeatedFiles:
    """Chooses which entries of a file to remove: all but the oldest, or all but the newest of a delete file. Picklable.

    All deletes of a data file apply to its oldest entry. The newest entry of a delete file applies to all data files
    that any of its entries applies to. So no row comes back.
    """

    def __call__(self, entries: pa.Table) -> pa.Table:
        """Return the entries to remove, as `FINDINGS`.

        Args:
            entries: entries with `manifest_path` and `offset`, all of each file.
        """
        numbers = pc.struct_field(whole(entries.column("version_info")), "sequence_number")
        keys = ["content_type", "location", "offset"]
        order = [(name, "ascending") for name in (*keys, "sequence_number", "manifest", "ordinal")]
        numbers = pc.fill_null(numbers, 0)
        is_data = pc.equal(entries.column("content_type"), int(ContentType.DATA))
        age = pc.if_else(is_data, numbers, pc.negate(numbers))
        table = entries.append_column("sequence_number", age).sort_by(order)
        rows, earlier = [], None
        for row in table.select([*keys, "manifest_path", "ordinal"]).to_pylist():
            key = tuple(row[name] for name in keys)
            if key == earlier:
                position = {"manifest_path": row["manifest_path"], "manifest_pos": row["ordinal"]}
                offset = None if row["offset"] < 0 else row["offset"]
                content = CONTENTS[ContentType(row["content_type"])]
                problem = "another entry has the same file"
                rows.append(
                    finding(Damage.REPEATED, content, row["location"], problem, content_offset=offset, **position)
                )
            earlier = key
        return pa.Table.from_batches([findings(rows)])


# -- Files that are cut -----------------------------------------------------------------------------------------------


GONE: Final = "the file is gone"
SOUND: Final = pa.schema([pa.field("sound_path", pa.string()), pa.field("problem", pa.string())])
"""A file and its problem, null if it is sound: it is gone, or does not begin or end as files of its format do."""

# The magic bytes at the beginning of files, and the number of bytes after the magic bytes at their end. An encrypted
# file is not damaged.
_BEGINNINGS: Final[dict[str, tuple[bytes, ...]]] = {
    "PARQUET": (b"PAR1", b"PARE"), "ORC": (b"ORC",), "AVRO": (b"Obj\x01",), "PUFFIN": (b"PFA1",),
}  # fmt: skip
_ENDS: Final = {"PARQUET": 0, "ORC": 1, "PUFFIN": 0}
_HEADER_BYTES: Final = 1 << 20


def damage_of(reader: ExecutorReader, location: str, file_format: str) -> str | None:
    """Return how a file is damaged; None if it exists, and begins and ends as files of its format do.

    Raises:
        FileAccessError: the store refuses the file, or does not respond.
    """
    try:
        length = reader.length(location)
        beginning = reader.read_range(location, 0, 4)
        if not beginning.startswith(_BEGINNINGS[file_format]):
            return f"it begins with {shown(beginning)}: not {file_format}"
        ends, bytes_after = _BEGINNINGS[file_format], _ENDS.get(file_format, 0)
        if file_format == "AVRO":
            ends = (read_header(reader.read_range(location, 0, min(length, _HEADER_BYTES)), location).sync,)
        size = len(ends[0])
        last = reader.read_range(location, max(0, length - size - bytes_after), size)
    except NotFoundError:
        return GONE
    except CorruptFileError as error:
        return str(error)
    return None if last in ends else f"it is cut: it ends with {shown(last)}"


@dataclass(frozen=True)
class Soundness:
    """Finds out whether files exist and are complete. Picklable."""

    reader: ExecutorReader

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield files, given by their locations and formats in the first columns, as `SOUND`.

        Files without a format are manifests.
        """
        for batch in batches:
            paths = batch.column(0).to_pylist()
            if batch.num_columns > 1:
                formats = batch.column(1).to_pylist()
            else:
                formats = ["PARQUET" if path.endswith(".parquet") else "AVRO" for path in paths]
            files = zip(paths, formats, strict=True)
            problems = {file[0]: problem for file, problem in read_ahead(files, self._damage, lambda _: 0)}
            arrays = [pa.array(problems, pa.string()), pa.array(problems.values(), pa.string())]
            yield pa.RecordBatch.from_arrays(arrays, schema=SOUND)

    def _damage(self, file: tuple[str, str]) -> str | None:
        location, file_format = file
        return damage_of(self.reader, location, file_format.upper())


# -- Compare with the manifests of snapshots --------------------------------------------------------------------------


USED: Final = pa.schema(
    [
        pa.field("snapshot_id", pa.int64()),
        pa.field("content", pa.string()),
        pa.field("location", pa.string()),
        pa.field("problem", pa.string()),
    ]
)
"""A list, root or manifest that a snapshot uses, and the problem of a list or root that can't be read."""

# The assumed length of a list or root.
_LIST_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class SnapshotManifests:
    """Reads the lists and roots of snapshots, as far as they can be read. Picklable."""

    lists: ListReader

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the list or root of each snapshot, rows of `SNAPSHOTS`, and its manifests, as `USED`."""
        for batch in batches:
            for _, used in read_ahead(batch.to_pylist(), self._used, lambda _: _LIST_BYTES):
                yield used

    def _used(self, row: Mapping[str, Any]) -> pa.RecordBatch:
        location, snapshot_id = row["location"], row["snapshot_id"]
        content, problem = LIST, None
        listed = pa.Table.from_batches([], LISTED)
        try:
            one_snapshot = pa.RecordBatch.from_pylist([dict(row) | {"retained": False}], SNAPSHOTS)
            listed = pa.Table.from_batches(self.lists([one_snapshot]), LISTED)
            if MISSING in (contents := listed.column("content").to_pylist()):
                problem = GONE
            content = ROOT if ROOT in contents else LIST
        except CorruptFileError as error:
            problem = str(error)
        is_used = pc.and_(pc.equal(listed.column("content"), MANIFEST), pc.invert(listed.column("removed")))
        paths = whole(listed.filter(is_used).column("path")).unique().to_pylist()
        rows = [(content, location, problem), *((MANIFEST, path, None) for path in paths)]
        columns = [pa.array(values, pa.string()) for values in zip(*rows, strict=True)]
        ids = pa.repeat(pa.scalar(snapshot_id, pa.int64()), len(rows))
        return pa.RecordBatch.from_arrays([ids, *columns], schema=USED)


# -- Compare with the content of files --------------------------------------------------------------------------------


_COUNTS: Final = ("value_count", "null_value_count", "nan_value_count")
_TEXTS: Final = ("string", "binary")
# Writers of Parquet may truncate longer texts in footers.
_LONGEST_TEXT: Final = 32
# Writers disagree on their order.
_UNORDERED: Final = ("uuid",)


@dataclass(frozen=True)
class ContentComparison:
    """Compares the record counts and statistics of data files with the files. Picklable.

    Attributes:
        files: describes files, with bounds that are not truncated.
        types: the ids of columns -> Iceberg types.
        statistics: whether to compare statistics.
    """

    files: ExistingFiles
    types: Mapping[int, str]
    statistics: bool

    @cached_property
    def _top_level(self) -> frozenset[int]:
        return frozenset(leaf.id for leaf in self.files.columns.leaves if len(leaf.path) == 1)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the damage of data files as `FINDINGS`.

        Args:
            batches: entries with `manifest_path`, and with statistics if they are compared.
        """
        for raw in batches:
            entries = pa.Table.from_batches([with_plain_types(raw)])
            paths = pa.RecordBatch.from_arrays([whole(entries.column("location"))], names=[FILE_PATH])
            described = pa.Table.from_batches(self.files.describe([paths]), self.files.schema).combine_chunks()
            rows = [*self._unreadable(entries, described), *self._miscounted(entries, described)]
            if self.statistics:
                rows += self._misjudged(entries, described)
            yield findings(rows)

    def _unreadable(self, entries: pa.Table, described: pa.Table) -> Iterator[dict[str, Any]]:
        """Yield the files that can't be described because they are cut, or are not of their format."""
        for row in indices_where(described.column(PROBLEM).is_valid()).to_pylist():
            names = ("location", "file_format", "record_count")
            location, file_format, lost = (entries.column(name)[row].as_py() for name in names)
            problem = damage_of(self.files.reader, location, file_format.upper())
            if problem is not None and problem != GONE:
                yield _entry_finding(Damage.UNREADABLE, entries, row, problem, lost_records=lost)

    @staticmethod
    def _miscounted(entries: pa.Table, described: pa.Table) -> Iterator[dict[str, Any]]:
        counts, measured = entries.column("record_count"), described.column("record_count")
        for row in indices_where(pc.fill_null(pc.not_equal(counts, measured), False)).to_pylist():
            problem = f"record_count is {counts[row]}: the file has {measured[row]} rows"
            yield _entry_finding(Damage.COUNTS, entries, row, problem)

    def _misjudged(self, entries: pa.Table, described: pa.Table) -> Iterator[dict[str, Any]]:
        """Yield a row for each file whose statistics are wrong, with the first wrong statistic."""
        maps = {name: whole(described.column(name)) for name in METRICS_MAP_IDS if name in described.column_names}
        measured = stats_of_maps(maps, self.types, len(described), "the described files", lenient=True)
        stats = whole(entries.column(CONTENT_STATS))
        problems: dict[int, str] = {}
        for child in stats.type:
            field_id = int(child.name)
            children = pc.struct_field(stats, child.name)
            values = {part.name: pc.struct_field(children, part.name) for part in children.type}
            for row, problem in self._problems(field_id, values, measured.get(field_id, {})):
                problems.setdefault(row, problem)
        for row, problem in sorted(problems.items()):
            yield _entry_finding(Damage.STATISTICS, entries, row, problem)

    def _problems(
        self, field_id: int, stats: Mapping[str, pa.Array], measured: Mapping[str, pa.Array]
    ) -> Iterator[tuple[int, str]]:
        kind = self.types[field_id]
        lower, upper = (stats.get(name) for name in BOUNDS)
        if lower is not None and upper is not None:
            is_inverted = inverted(lower, upper, kind)
            for row in _rows(is_inverted):
                yield row, f"lower_bounds[{field_id}] is {_text(lower, row)}: {above_upper(upper, row)}"
        # Writers disagree on the counts of columns inside structs that are null.
        for name in _COUNTS if field_id in self._top_level else ():
            if name in stats and name in measured:
                for row in _rows(pc.not_equal(stats[name], measured[name].cast(stats[name].type))):
                    text = f"{name}s[{field_id}] is {stats[name][row]}: the file has {measured[name][row]}"
                    yield row, text
        for name, is_wrong in (("lower_bound", pc.greater), ("upper_bound", pc.less)):
            if name not in stats or name not in measured or kind in _UNORDERED:
                continue
            bound, value = stats[name], measured[name].cast(stats[name].type)
            wrong = is_wrong(bound, value)
            if kind.startswith(_TEXTS):
                wrong = pc.and_(wrong, pc.less(pc.binary_length(value), _LONGEST_TEXT))
            for row in _rows(wrong):
                yield row, f"{name}s[{field_id}] is {_text(bound, row)}: the file has {_text(value, row)}"


def _text(values: pa.Array, row: int) -> str:
    return shown(shown_value(values, row))


def _rows(wrong: pa.Array | None) -> list[int]:
    rows: list[int] = [] if wrong is None else indices_where(pc.fill_null(wrong, False)).to_pylist()
    return rows


def _entry_finding(damage: Damage, entries: pa.Table, row: int, problem: str, **columns: Any) -> dict[str, Any]:
    values = {
        name: entries.column(name)[row].as_py() for name in ("content_type", "location", "manifest_path", "ordinal")
    }
    position = {"manifest_path": values["manifest_path"], "manifest_pos": values["ordinal"]}
    return finding(
        damage, CONTENTS[ContentType(values["content_type"])], values["location"], problem, **position, **columns
    )


# -- Correct entries --------------------------------------------------------------------------------------------------


_NEW: Final = "new_"
_MEASURED: Final = ("record_count", "split_offsets", *METRICS_MAP_IDS)
_KINDS: Final = {
    "record_count": pa.int64(),
    "split_offsets": pa.list_(pa.int64()),
    **{name: map_type(name) for name in METRICS_MAP_IDS},
}
CORRECTIONS: Final = pa.schema(
    [
        pa.field("corrected_path", pa.string()),
        pa.field(f"{_NEW}file_size_in_bytes", pa.int64()),
        pa.field("is_measured", pa.bool_()),
        *(pa.field(f"{_NEW}{name}", kind) for name, kind in _KINDS.items()),
    ]
)
"""The size of a file, and its record count and statistics if these are corrected too."""


@dataclass(frozen=True)
class Corrections:
    """Measures files whose entries are corrected. Picklable.

    Attributes:
        files: describes files by the table's properties for metrics.
    """

    files: ExistingFiles

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield corrections as `CORRECTIONS`.

        Args:
            batches: rows with the location of a file, and whether its content is measured.

        Raises:
            NotFoundError: a file is gone.
            CorruptFileError: a file can't be read.
        """
        for batch in batches:
            paths, is_measured = (batch.column(index) for index in range(2))
            sizes = [size for _, size in read_ahead(paths.to_pylist(), self.files.reader.length, lambda _: 0)]
            measured = pa.RecordBatch.from_arrays([paths.filter(is_measured)], names=[FILE_PATH])
            described = pa.Table.from_batches(self.files.describe([measured]), self.files.schema)
            for row in indices_where(described.column(PROBLEM).is_valid()).to_pylist()[:1]:
                problem, is_missing = (described.column(name)[row].as_py() for name in (PROBLEM, IS_MISSING))
                raise (NotFoundError(problem) if is_missing else SparkmetaError(problem))
            rows = pc.index_in(paths, whole(described.column(FILE_PATH)))
            columns = [paths, pa.array(sizes, pa.int64()), is_measured]
            columns += [whole(described.column(name)).take(rows).cast(kind) for name, kind in _KINDS.items()]
            yield pa.RecordBatch.from_arrays(columns, schema=CORRECTIONS)


def _corrected(columns: dict[str, pa.Array], entries: pa.RecordBatch, names: Sequence[str]) -> dict[str, pa.Array]:
    """Return columns of entries with the corrections that the entries' other columns contain."""
    is_measured = pc.fill_null(entries.column("is_measured"), False)
    size = pc.coalesce(entries.column(f"{_NEW}file_size_in_bytes"), columns["file_size_in_bytes"])
    measured = {
        name: pc.if_else(is_measured, entries.column(f"{_NEW}{name}").cast(columns[name].type), columns[name])
        for name in names
    }
    return columns | measured | {"file_size_in_bytes": size}


@dataclass(frozen=True)
class CorrectedEntries:
    """Writes corrected entries to Avro manifests. Picklable."""

    tasks: ExistingTasks

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write entries, rows of `EntryProjection.schema` with columns of `CORRECTIONS`.

        Yields rows of `MANIFEST_FILE_SCHEMA`.
        """
        yield from self.tasks.write(map(self._entries, batches))

    @staticmethod
    def _entries(raw: pa.RecordBatch) -> pa.RecordBatch:
        entries = with_plain_types(raw)
        names = [name for name in entries.schema.names if name not in CORRECTIONS.names]
        columns = {name: entries.column(name) for name in names} | content_columns(entries)
        corrected = _corrected(columns, entries, _MEASURED)
        # An entry with more rows needs new row ids, which the commit assigns.
        has_more = pc.greater(corrected["record_count"], columns["record_count"])
        first_row_ids = corrected["first_row_id"]
        corrected["first_row_id"] = pc.if_else(has_more, pa.scalar(None, first_row_ids.type), first_row_ids)
        return pa.RecordBatch.from_pydict(corrected)


@dataclass(frozen=True)
class CorrectedRows:
    """Corrects entries of a tree. Picklable.

    Attributes:
        table: the table, for errors.
        schema: the schema of the entries.
        types: ids that may have stats -> Iceberg type names.
        sources: spec id -> ids of the stats that hold partition values.
    """

    table: str
    schema: pa.Schema
    types: Mapping[int, str]
    sources: Mapping[int, frozenset[int]]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield corrected entries. The input is rows of a tree's leaf with columns of `CORRECTIONS`."""
        for raw in batches:
            entries = with_plain_types(raw)
            columns = {name: entries.column(name) for name in self.schema.names}
            old_stats = columns[CONTENT_STATS]
            counts = columns["record_count"]
            columns = _corrected(columns, entries, ("record_count", "split_offsets"))
            for row in indices_where(pc.greater(columns["record_count"], counts)).to_pylist()[:1]:
                location, count = (columns[name][row].as_py() for name in ("location", "record_count"))
                problem = f"the file has {count} rows, and its entry {counts[row]} row ids"
                raise UnsupportedError(f"{self.table}: {location}: {problem}: remove the file, and add it again")
            is_measured = pc.fill_null(entries.column("is_measured"), False)
            columns[CONTENT_STATS] = pc.if_else(is_measured, self._stats(entries, columns), old_stats)
            arrays = [columns[field.name].cast(field.type) for field in self.schema]
            yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _stats(self, entries: pa.RecordBatch, columns: Mapping[str, pa.Array]) -> pa.StructArray:
        maps = {name: entries.column(f"{_NEW}{name}").cast(map_type(name)) for name in METRICS_MAP_IDS}
        metrics = stats_of_maps(maps, self.types, len(entries), self.table)
        old_stats, specs = columns[CONTENT_STATS], columns["partition_spec_id"]
        partitions = [
            PartitionValues(source, pc.equal(specs, spec_id), pc.struct_field(old_stats, [str(source), "lower_bound"]))
            for spec_id, sources in self.sources.items()
            for source in sorted(sources)
        ]
        return content_stats(metrics, None, partitions, columns["record_count"], self.types)
