"""Choose the position deletes to rewrite. Spark jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import Window
from pyspark.sql import functions as F

from sparkmeta.plan.deletes.views import data_path, partition_key
from sparkmeta.plan.filter import ScanFilter, is_live, tuple_matches
from sparkmeta.plan.prune import live_manifests
from sparkmeta.rewrite.dangling_deletes.search import ENTRY_COLUMNS
from sparkmeta.spec.entry import DELETE_FILE_PATH_ID, ContentType
from sparkmeta.write.delete_options import BY_FILE, VECTORS_SINCE, delete_granularity

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.rewrite.file_sizes import FileSizes
    from sparkmeta.rewrite.position_deletes.options import DeleteRewriteOptions
    from sparkmeta.state import TableState

_IS_VECTOR = "file_format = 'PUFFIN'"
_GROUP, _PATH = "delete_group", "delete_of"


def chosen_entries(state: TableState, options: DeleteRewriteOptions) -> DataFrame:
    """Return the entries of the position deletes to rewrite. May run a job."""
    scan = ScanFilter.of(state, options.row_filter)
    manifests = live_manifests(state.delete_manifests)
    projection = state.projection(ENTRY_COLUMNS, {DELETE_FILE_PATH_ID})
    live = state.entries(manifests, projection).where(is_live().text)
    positional = live.where(F.col("content_type") == int(ContentType.POSITION_DELETES))
    matching = positional.where(tuple_matches(scan).text)
    if options.rewrite_all:
        return matching
    sizes = options.sizes(state.metadata.properties)
    if state.metadata.format_version >= VECTORS_SINCE:
        return _without_large_puffin_files(matching, options.min_input_files, sizes)
    return _unsuitable_files(matching, state, options.min_input_files, sizes)


class SmallPuffinFiles(NamedTuple):
    """Puffin files with deletion vectors that are smaller than they should be, and the bytes of the vectors."""

    files: int
    bytes: int

    def merged(self, sizes: FileSizes, min_input_files: int) -> int | None:
        """Return how many files a rewrite makes of them; None if they are not worth a rewrite."""
        after = -(-self.bytes // sizes.target)
        return None if self.files < min_input_files or self.files <= after else after


def small_puffin_files(
    vectors: DataFrame, file: str, size: str, sizes: FileSizes
) -> tuple[DataFrame, SmallPuffinFiles]:
    """Return the small Puffin files, rows of `file`, and their number. Runs a job.

    Args:
        vectors: a row for each deletion vector.
        file: the column that identifies the Puffin file.
        size: the size of the vector in bytes, in SQL.
    """
    by_file = vectors.groupBy(file).agg(F.expr(f"sum({size})").alias("size"))
    small = by_file.where(F.col("size") < sizes.least)
    figures = small.agg(F.count("*").alias("files"), F.coalesce(F.sum("size"), F.lit(0)).alias("bytes"))
    return small.select(file), SmallPuffinFiles(**figures.toArrow().to_pylist()[0])


def _without_large_puffin_files(matching: DataFrame, min_input_files: int, sizes: FileSizes) -> DataFrame:
    """Return all position delete files, and the deletion vectors of small Puffin files if fewer files result."""
    files = matching.where(f"NOT ({_IS_VECTOR})")
    vectors = matching.where(_IS_VECTOR)
    small, count = small_puffin_files(vectors, "location", "deletion_vector.size_in_bytes", sizes)
    if count.merged(sizes, min_input_files) is None:
        return files
    return files.unionByName(vectors.join(small, "location", "left_semi").select(*files.columns))


def _unsuitable_files(matching: DataFrame, state: TableState, min_input_files: int, sizes: FileSizes) -> DataFrame:
    """Return the position delete files that are too small or large, of partitions in which a rewrite helps.

    Their number falls, or one of them is divided. A file about a single data file can't be divided. If files are to be
    about data files, those that are the only one of theirs stay.
    """
    keyed = matching.withColumns({_GROUP: partition_key(state).column(), _PATH: data_path().column()})
    is_small, is_large = F.col("file_size_in_bytes") < sizes.least, F.col("file_size_in_bytes") > sizes.most
    of_many = F.col(_PATH).isNull()
    by_file = delete_granularity(state.metadata.properties) == BY_FILE
    files = keyed.where(is_small | (is_large & of_many))
    group = Window.partitionBy(_GROUP)
    if by_file:
        of_file = F.count("*").over(Window.partitionBy(_GROUP, _PATH)) > 1
        files = files.withColumns({"of_many": F.max(of_many).over(group), "of_file": of_file})
        files = files.where("of_many OR of_file").drop("of_many", "of_file")
    count, total = F.count("*").over(group), F.sum("file_size_in_bytes").over(group)
    is_many = (count >= min_input_files) | ((count > 1) & (total > sizes.target))
    fewer = F.lit(True) if by_file else F.ceil(total / sizes.target) < count
    helps = (is_many & fewer) | F.max(is_large).over(group)
    return files.withColumn("helps", helps).where("helps").select(*matching.columns)
