"""Measure the live entries of a snapshot by Spark jobs, which read each manifest once.

Deletes are read first. Then data files are read, and aggregated by manifest, partition and size. Spark keeps
the result, and all figures are queries over it. If deletes name their data files, it also keeps hashes of all paths.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.columns import sql
from sparkmeta.entries.projection import CONTENT_STATS, MANIFEST
from sparkmeta.errors import translated_errors
from sparkmeta.health.column_stats import (
    DIGEST,
    INVERTED,
    METRICS_MAPS,
    SampledStats,
    compared_columns,
    digest,
    inverted_bounds,
    sampled,
    sampled_stats,
)
from sparkmeta.plan.deletes.views import SEQUENCE, data_path, is_dv, is_global_delete, partition_key
from sparkmeta.plan.filter import is_live
from sparkmeta.plan.prune import live_manifests
from sparkmeta.rewrite.dangling_deletes.search import ENTRY_COLUMNS
from sparkmeta.rewrite.position_deletes.choose import SmallPuffinFiles, small_puffin_files
from sparkmeta.session import materialize
from sparkmeta.spec.entry import DELETE_FILE_PATH_ID, ContentType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.rewrite.file_sizes import FileSizes
    from sparkmeta.state import TableState

_KEY, _PATH, _SEQUENCE, _BIN, _FILE = "partition_key", "path", "sequence", "size_bin", "file"
_DATA_KEY, _DATA_PATH, _DATA_SEQUENCE = "data_key", "data_path", "data_sequence"
_DATA_COLUMNS = ("version_info", "partition_spec_id", "record_count", "file_size_in_bytes")
_POSITION, _EQUALITY = int(ContentType.POSITION_DELETES), int(ContentType.EQUALITY_DELETES)
_LARGEST_BIN = 62


@dataclass(frozen=True)
class Limits:
    """The limits by which files are counted as small or their rows as deleted.

    Attributes:
        target_bytes: the target size of data files.
        small_bytes: smaller files are small.
        min_small_files: the number of small files at which a partition is crowded.
        max_deleted_ratio: the share of deleted rows at which a partition is dense.
        puffin_sizes: the sizes that Puffin files should have.
        partitions: the maximum number of partitions to list, per kind.
    """

    target_bytes: int
    small_bytes: int
    min_small_files: int
    max_deleted_ratio: float
    puffin_sizes: FileSizes
    partitions: int = 12


@dataclass(frozen=True)
class PartitionFigures:
    """A partition in numbers.

    Attributes:
        values: spec id and partition values, by partition field id.
        deleted: the rows deleted by deletion vectors and position deletes whose entries name the data file.
    """

    spec_id: int
    values: Mapping[int, Any]
    files: int
    bytes: int
    records: int
    small_files: int
    deleted: int

    @property
    def deleted_ratio(self) -> float:
        """The share of its rows that are deleted, at most 1."""
        return min(1.0, self.deleted / self.records) if self.records else float(self.deleted > 0)


@dataclass(frozen=True)
class DeleteFigures:
    """Delete entries in numbers: files by kind, records, and bytes (of the blobs for deletion vectors)."""

    position_files: int = 0
    equality_files: int = 0
    vectors: int = 0
    records: int = 0
    bytes: int = 0

    @property
    def files(self) -> int:
        """The number of all delete entries."""
        return self.position_files + self.equality_files + self.vectors


@dataclass(frozen=True)
class ManifestBounds:
    """The bounds of a column in each data manifest, from its files; null where a file has none."""

    manifest: pa.Array
    lower: pa.Array
    upper: pa.Array


@dataclass(frozen=True)
class EntryFigures:
    """The live entries of a snapshot in numbers.

    Attributes:
        sizes: (exponent, files, bytes) of the data files from 2^exponent bytes up to twice that.
        partitions: the number of partitions.
        crowded_partitions: the number of those with too many small files.
        small_files: the number of small files in crowded partitions.
        files_saved: the number of files that merging these would save.
        dense_partitions: the number of partitions with too many deleted rows.
        dense_files: the data files in dense partitions.
        crowded: the partitions with most small files.
        densest: the partitions with the largest share of deleted rows.
        deletes: all delete entries.
        dangling: the delete entries that apply to no live data file.
        small_puffin: the Puffin files that are too small.
        bounds: bounds by column.
        stats: the metrics of some manifests' entries.
    """

    files: int
    bytes: int
    records: int
    sizes: tuple[tuple[int, int, int], ...]
    partitions: int
    crowded_partitions: int
    small_files: int
    files_saved: int
    dense_partitions: int
    dense_files: int
    crowded: tuple[PartitionFigures, ...]
    densest: tuple[PartitionFigures, ...]
    deletes: DeleteFigures
    dangling: DeleteFigures
    small_puffin: SmallPuffinFiles
    bounds: Mapping[int, ManifestBounds]
    stats: SampledStats


def measure_entries(state: TableState, limits: Limits, columns: Sequence[int]) -> EntryFigures:
    """Measure the live entries of a state's snapshot.

    Args:
        columns: ids of columns whose bounds are aggregated by manifest.

    Raises:
        CorruptFileError: a manifest is damaged.
    """
    with translated_errors():
        return _Measurement(state, limits, tuple(columns)).figures()


@dataclass(frozen=True)
class _Measurement:
    state: TableState
    limits: Limits
    columns: tuple[int, ...]

    def figures(self) -> EntryFigures:
        deletes = _figures(self._delete_counts)
        totals = self._totals()
        oldest = totals.pop("oldest")
        sizes = self._groups.groupBy(_BIN).agg(F.sum("files"), F.sum("bytes")).orderBy(_BIN)
        return EntryFigures(
            **totals,
            sizes=tuple(tuple(row.values()) for row in sizes.toArrow().to_pylist()),
            crowded=self._partitions_by("small_files", f"small_files >= {self.limits.min_small_files}")
            if totals["crowded_partitions"]
            else (),
            densest=self._partitions_by("ratio", "deleted > 0") if self._names_files else (),
            deletes=deletes,
            dangling=self._dangling(oldest) if deletes.files else DeleteFigures(),
            small_puffin=self._small_puffin() if deletes.vectors else SmallPuffinFiles(0, 0),
            bounds=self._bounds(),
            stats=sampled_stats(self._sample, len(self._sampled_manifests), len(self._data_manifests)),
        )

    # -- what is read ------------------------------------------------------------------------------------------------

    @cached_property
    def _deletes(self) -> DataFrame | None:
        """The live delete entries, kept by Spark; None without any."""
        state = self.state
        manifests = live_manifests(state.delete_manifests)
        if not len(manifests):
            return None
        entries = state.entries(manifests, state.projection(ENTRY_COLUMNS, {DELETE_FILE_PATH_ID}))
        path = data_path()
        columns = {
            _KEY: partition_key(state),
            "content": sql.col("content_type"),
            "is_vector": is_dv(),
            "is_global": is_global_delete(state),
            _SEQUENCE: sql.col(SEQUENCE),
            _PATH: sql.when(path.isNotNull(), sql.call("xxhash64", path)),
            "is_named": sql.col("referenced_file").isNotNull(),
            _FILE: sql.when(is_dv(), sql.call("xxhash64", sql.col("location"))),
            "records": sql.col("record_count"),
            "bytes": sql.coalesce(sql.col("deletion_vector.size_in_bytes"), sql.col("file_size_in_bytes")),
        }
        live = entries.where(is_live().text)
        return materialize(live.selectExpr(*sql.texts(value.alias(name) for name, value in columns.items())))

    @cached_property
    def _delete_counts(self) -> dict[str, int]:
        """`DeleteFigures` of all deletes by name, and the number of those that name their data file."""
        return _counted(self._deletes)

    @property
    def _names_files(self) -> bool:
        """Whether some delete names its data file."""
        return self._delete_counts[_NAMED] > 0

    @cached_property
    def _data_manifests(self) -> pa.Table:
        return live_manifests(self.state.data_manifests)

    @cached_property
    def _sampled_manifests(self) -> pa.Table:
        return sampled(self._data_manifests)

    @cached_property
    def _sample(self) -> DataFrame | None:
        """The data files of some manifests, with digests of their metrics maps, kept by Spark."""
        if not len(self._sampled_manifests):
            return None
        compared = compared_columns(self.state.types.column_types)
        extra = (*digest(self._sampled_manifests), *inverted_bounds(compared))
        return materialize(self._rows(self._sampled_manifests, METRICS_MAPS, extra, compared))

    @cached_property
    def _data(self) -> DataFrame:
        """The live data files, kept by Spark if their paths are needed later."""
        ids = self._sampled_manifests.column(MANIFEST).combine_chunks()
        others = self._data_manifests.filter(pc.invert(pc.is_in(self._data_manifests.column(MANIFEST), ids)))
        parts = [] if self._sample is None else [self._sample.drop(DIGEST, INVERTED)]
        if len(others) or not parts:
            parts.append(self._rows(others, (), ()))
        rows = reduce(lambda left, right: left.unionByName(right), parts)
        return materialize(rows) if self._names_files else rows

    def _rows(
        self, manifests: pa.Table, maps: Sequence[str], extra: Sequence[str], compared: Iterable[int] = ()
    ) -> DataFrame:
        state = self.state
        paths = ("location",) if self._names_files else ()
        columns = {*_DATA_COLUMNS, *paths, *maps, *(("location",) if extra else ())}
        projection = replace(state.projection(columns, {*self.columns, *compared}), as_written=bool(extra))
        entries = state.entries(manifests, projection)
        bounds = [
            sql.col(f"{CONTENT_STATS}.`{field_id}`.{end}_bound").alias(f"{end}_{field_id}").selected
            for field_id in self.columns
            for end in ("lower", "upper")
        ]
        return entries.where(is_live().text).selectExpr(
            MANIFEST,
            partition_key(state).alias(_KEY).selected,
            f"{SEQUENCE} AS {_SEQUENCE}",
            "record_count AS records",
            "coalesce(file_size_in_bytes, 0) AS bytes",
            *(f"xxhash64(location) AS {_PATH}" for _ in paths),
            *bounds,
            *extra,
        )

    # -- what is aggregated ------------------------------------------------------------------------------------------

    @cached_property
    def _groups(self) -> DataFrame:
        """The data files by manifest, partition and size, kept by Spark."""
        small = f"bytes < {self.limits.small_bytes}"
        # A little more than the logarithm, since that of a power of two may be a little less than whole.
        size_bin = f"cast(least(floor(log2(greatest(bytes, 1)) + 1e-9), {_LARGEST_BIN}) AS int) AS {_BIN}"
        bounds = [
            column
            for field_id in self.columns
            for column in (
                F.expr(f"min(lower_{field_id})").alias(f"lower_{field_id}"),
                F.expr(f"max(upper_{field_id})").alias(f"upper_{field_id}"),
                F.expr(f"count_if(lower_{field_id} IS NULL OR upper_{field_id} IS NULL)").alias(f"without_{field_id}"),
            )
        ]
        grouped = self._data.selectExpr("*", size_bin).groupBy(MANIFEST, _KEY, _BIN)
        return materialize(
            grouped.agg(
                F.count("*").alias("files"),
                F.sum("bytes").alias("bytes"),
                F.sum("records").alias("records"),
                F.expr(f"min(coalesce({_SEQUENCE}, 0))").alias("oldest"),
                F.expr(f"count_if({small})").alias("small_files"),
                F.expr(f"coalesce(sum(bytes) FILTER (WHERE {small}), 0)").alias("small_bytes"),
                *bounds,
            )
        )

    @cached_property
    def _partitions(self) -> DataFrame:
        """A row for each partition with data files, kept by Spark."""
        names = ("files", "bytes", "records", "small_files", "small_bytes")
        data = self._groups.selectExpr(_KEY, *names, "oldest", "0L AS deleted")
        if self._names_files:
            nothing = [f"0L AS {name}" for name in names]
            data = data.unionByName(self._deleted.selectExpr(_KEY, *nothing, "NULL AS oldest", "deleted"))
        sums = [F.sum(name).alias(name) for name in (*names, "deleted")]
        partitions = data.groupBy(_KEY).agg(*sums, F.min("oldest").alias("oldest")).where("files > 0")
        return materialize(partitions.selectExpr("*", "if(records = 0, 0D, least(1D, deleted / records)) AS ratio"))

    def _totals(self) -> dict[str, Any]:
        limits = self.limits
        crowded = f"small_files >= {limits.min_small_files}"
        dense = f"ratio >= {limits.max_deleted_ratio}"
        # Small files become at least one file.
        merged = f"greatest(1L, cast(ceil(small_bytes / {limits.target_bytes}D) AS bigint))"
        sums = {
            "files": "sum(files)",
            "bytes": "sum(bytes)",
            "records": "sum(records)",
            "partitions": "count(*)",
            "crowded_partitions": f"count_if({crowded})",
            "small_files": f"sum(small_files) FILTER (WHERE {crowded})",
            "files_saved": f"sum(small_files - {merged}) FILTER (WHERE {crowded})",
            "dense_partitions": f"count_if({dense})",
            "dense_files": f"sum(files) FILTER (WHERE {dense})",
        }
        figures = [F.expr(f"coalesce({text}, 0L)").alias(name) for name, text in sums.items()]
        (row,) = self._partitions.agg(*figures, F.min("oldest").alias("oldest")).toArrow().to_pylist()
        return dict(row)

    def _partitions_by(self, order: str, condition: str) -> tuple[PartitionFigures, ...]:
        """Return the first partitions by a column, in descending order."""
        first = self._partitions.where(condition).orderBy(F.desc(order), F.desc("files")).limit(self.limits.partitions)
        rows = []
        for row in first.drop("small_bytes", "oldest", "ratio").toArrow().to_pylist():
            spec_id, *values = row.pop(_KEY).values()
            by_field = dict(zip(self.state.types.partition_fields, values, strict=True))
            rows.append(PartitionFigures(spec_id, by_field, **row))
        return tuple(rows)

    def _bounds(self) -> dict[int, ManifestBounds]:
        if not self.columns:
            return {}
        known = [
            F.expr(f"if(sum(without_{field_id}) = 0, {which}({end}_{field_id}), NULL)").alias(f"{end}_{field_id}")
            for field_id in self.columns
            for which, end in (("min", "lower"), ("max", "upper"))
        ]
        table = self._groups.groupBy(MANIFEST).agg(*known).toArrow().combine_chunks()
        columns = {name: table.column(name).combine_chunks() for name in table.column_names}
        return {
            field_id: ManifestBounds(columns[MANIFEST], columns[f"lower_{field_id}"], columns[f"upper_{field_id}"])
            for field_id in self.columns
        }

    # -- deletes -----------------------------------------------------------------------------------------------------

    @cached_property
    def _named(self) -> DataFrame:
        """The deletes of a single data file, each with the file if it applies to it, kept by Spark."""
        assert self._deletes is not None
        columns = {_PATH: _DATA_PATH, _SEQUENCE: _DATA_SEQUENCE, _KEY: _DATA_KEY}
        data = self._data.select(*(F.col(name).alias(new) for name, new in columns.items()))
        older = f"(is_vector OR coalesce({_DATA_SEQUENCE}, 0) <= coalesce({_SEQUENCE}, {_DATA_SEQUENCE}, 0))"
        named = self._deletes.where(f"{_PATH} IS NOT NULL")
        return materialize(named.join(data, F.expr(f"{_PATH} = {_DATA_PATH} AND {older}"), "left"))

    @property
    def _deleted(self) -> DataFrame:
        """The number of deleted rows of each data file, counted as rewrites of data files count them.

        Those are deletes whose entry names the file. A deletion vector supersedes the others of its file.
        """
        applied = self._named.where(f"is_named AND {_DATA_PATH} IS NOT NULL")
        deleted = "coalesce(sum(records) FILTER (WHERE is_vector), sum(records)) AS deleted"
        return applied.groupBy(_DATA_KEY, _DATA_PATH).agg(F.expr(deleted)).withColumnRenamed(_DATA_KEY, _KEY)

    def _small_puffin(self) -> SmallPuffinFiles:
        assert self._deletes is not None
        return small_puffin_files(self._deletes.where("is_vector"), _FILE, "bytes", self.limits.puffin_sizes)[1]

    def _dangling(self, oldest_of_table: int | None) -> DeleteFigures:
        """Count the deletes that apply to no data file, by the rules of `dangling_deletes`, with paths as hashes.

        Args:
            oldest_of_table: the least sequence number of all data files.
        """
        assert self._deletes is not None
        deletes = self._deletes
        later = f"(content = {_EQUALITY} AND oldest < {_SEQUENCE} OR content != {_EQUALITY} AND oldest <= {_SEQUENCE})"
        applies = f"oldest IS NOT NULL AND coalesce({later}, true)"
        by_partition = deletes.where(f"{_PATH} IS NULL")
        oldest = self._partitions.select(F.col(_KEY).alias(_DATA_KEY), "oldest")
        joined = by_partition.join(oldest, F.expr(f"{_KEY} <=> {_DATA_KEY}"), "left")
        whole = "NULL" if oldest_of_table is None else str(oldest_of_table)
        scoped = joined.withColumn("oldest", F.expr(f"if(is_global, {whole}, oldest)"))
        dangling = [scoped.where(f"NOT ({applies})").select(*deletes.columns)]
        if self._names_files:
            dangling.append(self._named.where(f"{_DATA_PATH} IS NULL").select(*deletes.columns))
        return _figures(_counted(reduce(lambda left, right: left.unionByName(right), dangling)))


def _counted(deletes: DataFrame | None) -> dict[str, int]:
    if deletes is None:
        return dict.fromkeys(_DELETE_COUNTS, 0)
    figures = [F.coalesce(F.expr(text), F.lit(0)).alias(name) for name, text in _DELETE_COUNTS.items()]
    return dict(deletes.agg(*figures).toArrow().to_pylist()[0])


_NAMED = "naming_files"
_DELETE_COUNTS = {
    "position_files": f"count_if(content = {_POSITION} AND NOT is_vector)",
    "equality_files": f"count_if(content = {_EQUALITY})",
    "vectors": "count_if(is_vector)",
    "records": "sum(records)",
    "bytes": "sum(bytes)",
    _NAMED: f"count_if({_PATH} IS NOT NULL)",
}


def _figures(counts: Mapping[str, int]) -> DeleteFigures:
    return DeleteFigures(**{name: count for name, count in counts.items() if name != _NAMED})
