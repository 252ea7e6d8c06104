"""The deletes of another table whose files a commit adds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.errors import UnsupportedError, ValidationError
from sparkmeta.manifests.v4.tree_manifests import IN_ROOT
from sparkmeta.plan.deletes.rules import OLDER_DV
from sparkmeta.plan.filter import is_live
from sparkmeta.plan.prune import live_manifests
from sparkmeta.session import materialize
from sparkmeta.spec.entry import ContentType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparkmeta.state import TableState

# Maximum number of deletion vectors without a live data file that a commit to a manifest list leaves out.
_MOST_DANGLING = 10_000
DATA_SEQUENCE = "data_sequence"
_DELETE_TYPES = (ContentType.POSITION_DELETES, ContentType.EQUALITY_DELETES)
_DELETE_COLUMNS = ("content_type", "location", "file_format", "referenced_file", "version_info")


def live_deletes(source: TableState) -> pa.Table:
    """Return the rows of `source.manifests` with live deletes."""
    return live_manifests(source.delete_manifests)


def refuse_deletes(source: TableState, target: TableState) -> None:
    """Raise ValidationError if a table has deletes, without which deleted rows would reappear."""
    manifests = live_deletes(source)
    if not len(manifests):
        return
    leaves = manifests.filter(pc.not_equal(manifests.column("file_format"), IN_ROOT))
    in_root = [] if source.tree is None else source.tree.root.of(_DELETE_TYPES).column("location").to_pylist()
    path = [*leaves.column("location").to_pylist(), *in_root][0]
    what = f"{len(leaves)} delete manifests and {len(in_root)} deletes in its root"
    raise ValidationError(
        f"{target.metadata.location}: {source.metadata.location} has deletes, without which deleted rows would come "
        f"back: {what}, such as {path}; row_delta(added=table, deletes=table) adds deletion vectors too, and "
        "remove_dangling_deletes removes deletes that match no file"
    )


def refuse_other_deletes(source: TableState, target: TableState) -> None:
    """Refuse to add the deletes of a table to another that can't have them. Reads the delete manifests.

    Raises:
        ValidationError: a live delete is no deletion vector, or the other table can't have deletion vectors.
    """
    if not len(live_deletes(source)):
        return
    version = target.metadata.format_version
    is_vector = F.lit(version >= 3) & (F.col("content_type") == int(ContentType.POSITION_DELETES))
    is_vector = is_vector & (F.lower("file_format") == "puffin")
    for other in _live_deletes(source).where(~is_vector).select("content_type", "location").limit(1).collect():
        if other.content_type == ContentType.EQUALITY_DELETES:
            problem = "an equality delete, which would apply to older files of this table and not to the added ones"
        elif version < 3:
            problem = f"a delete, and format version {version} has no deletion vectors: rewrite_data_files applies it"
        else:
            problem = "a position delete file, and only deletion vectors can: rewrite_position_delete_files makes them"
        raise ValidationError(
            f"{target.metadata.location}: {other.location}, of {source.metadata.location}, can't be added: it is "
            f"{problem}"
        )


def matched(deletes: DataFrame, source: TableState) -> DataFrame:
    """Return deletion vectors with `DATA_SEQUENCE`, the sequence number of their live data file, or null without one.

    Args:
        deletes: live deletion vectors of `source` with `referenced_file`.
    """
    manifests = live_manifests(source.data_manifests)
    entries = source.entries(manifests, source.projection(("location", "version_info"))).where(is_live().text)
    data = entries.select(F.col("location").alias("_path"), F.col("version_info.sequence_number").alias(DATA_SEQUENCE))
    return deletes.join(data, F.col("referenced_file") == F.col("_path"), "left").drop("_path")


def refuse_older(vectors: DataFrame, source: TableState, target: TableState) -> None:
    """Refuse deletion vectors that are older than their data file, which `source` can't be read with. Runs a job.

    Args:
        vectors: rows of `matched` with `location` and `version_info`.
    """
    is_older = F.col(DATA_SEQUENCE) > F.col("version_info.sequence_number")
    for older in vectors.where(is_older).select("referenced_file", "location").limit(1).collect():
        raise ValidationError(
            f"{target.metadata.location}: files of {source.metadata.location} can't be added: {OLDER_DV.text}"
            f"{older.referenced_file} {older.location}"
        )


def dangling_paths(source: TableState, target: TableState) -> frozenset[str]:
    """Return the data files of deletion vectors that are not live. Runs jobs.

    Raises:
        ValidationError: a deletion vector is older than its data file.
        UnsupportedError: there are more than the tasks of a commit can leave out.
    """
    vectors = materialize(matched(_live_deletes(source), source))
    refuse_older(vectors, source, target)
    dangling = vectors.where(F.col(DATA_SEQUENCE).isNull()).select("referenced_file").limit(_MOST_DANGLING + 1)
    paths = [row.referenced_file for row in dangling.collect()]
    if len(paths) > _MOST_DANGLING:
        raise UnsupportedError(
            f"{target.metadata.location}: {source.metadata.location} has more than {_MOST_DANGLING} deletion vectors "
            f"without a live data file, such as that of {paths[0]}: remove_dangling_deletes removes them"
        )
    return frozenset(paths)


def _live_deletes(source: TableState) -> DataFrame:
    return source.entries(live_deletes(source), source.projection(_DELETE_COLUMNS)).where(is_live().text)
