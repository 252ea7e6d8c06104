"""The metadata tables of files and entries of all snapshots. Each manifest is read once."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from sparkmeta.avro.manifest_list import MANIFEST_FILE_SCHEMA, manifests_of_list
from sparkmeta.entries.parts import PART_SCHEMA, part_bytes
from sparkmeta.errors import UnsupportedError
from sparkmeta.inspect.files import entries_of, entries_selection, files_of, files_selection
from sparkmeta.inspect.manifest_rows import REACHABLE, reachable_rows
from sparkmeta.inspect.manifests import listed_manifests, spec_transforms
from sparkmeta.manifests.decoder import EntryDecoder
from sparkmeta.session import map_arrow, read_tasks
from sparkmeta.spec.entry import ContentType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from sparkmeta.entries.projection import EntryProjection
    from sparkmeta.state import TableState

_OTHERS = [name for name in REACHABLE.names if name not in ("manifest_path", "content", "first_row_id")]


def all_files(state: TableState, content: ContentType | None, columns: Sequence[str] | None) -> DataFrame:
    """Return a row for each live file in each manifest of any snapshot, or only in manifests of one content."""
    selection = files_selection(state, columns)
    return files_of(all_entries_of(state, content, selection.projection), selection)


def all_entries(state: TableState, columns: Sequence[str] | None) -> DataFrame:
    """Return a row for each entry of each manifest of any snapshot."""
    selection = entries_selection(state, columns)
    return entries_of(all_entries_of(state, None, selection.projection), selection)


def all_entries_of(state: TableState, content: ContentType | None, projection: EntryProjection) -> DataFrame:
    """Return the entries of all manifests that any snapshot lists, as a DataFrame of `projection.schema`.

    It is lazy if tasks can open files. If only Spark's own sources can, a job collects the paths when this is called.
    """
    manifests = reachable_manifests(state, content)
    if state.access.tasks is not None:
        trees = state.types.tree_types if state.has_trees else None
        decoder = EntryDecoder(state.access.tasks, trees, state.types.locations)
        decode = partial(decoder.decode_parts, projection)
        return map_arrow(_parts(state, manifests, projection), decode, projection.schema)
    if state.has_trees:
        raise UnsupportedError(
            f"{state.metadata.location}: Spark's sources alone can't read the files of all snapshots of a metadata tree"
        )
    listed = manifests.toArrow()
    columns = [
        listed[field.name].cast(field.type) if field.name in listed.column_names else pa.nulls(len(listed), field.type)
        for field in MANIFEST_FILE_SCHEMA
    ]
    table = pa.table(columns, MANIFEST_FILE_SCHEMA)
    return state.entries(manifests_of_list(table, state.types.spec_fields, state.metadata.location), projection)


def reachable_manifests(state: TableState, content: ContentType | None) -> DataFrame:
    """Return the distinct manifests of all snapshots, as `REACHABLE`.

    If lists differ about a manifest, as they do after a table gets row ids, the row with the highest first_row_id is
    returned.

        SELECT manifest_path, max(struct(first_row_id, ...)).* FROM listed GROUP BY manifest_path
    """
    listed = listed_manifests(state, partial(reachable_rows, spec_transforms(state)), REACHABLE)
    if content is not None:
        listed = listed.where(F.col("content") == int(content) - int(ContentType.DATA_MANIFEST))
    newest = F.max(F.struct("first_row_id", *_OTHERS)).alias("newest")
    return listed.groupBy("manifest_path", "content").agg(newest).select("manifest_path", "content", "newest.*")


def _parts(state: TableState, manifests: DataFrame, projection: EntryProjection) -> DataFrame:
    """Return the parts of manifests for tasks, as `PART_SCHEMA`, distributed among tasks."""
    counted = F.lit("first_row_id" in projection.columns) & F.col("first_row_id").isNotNull()
    is_parquet = F.lower("manifest_path").endswith(".parquet")
    needed = F.ceil(F.col("manifest_length") / part_bytes(state.settings.split_manifest_bytes))
    columns = {
        "manifest": F.lit(0),
        "location": F.col("manifest_path"),
        "snapshot_id": F.col("added_snapshot_id"),
        "file_size_in_bytes": F.col("manifest_length"),
        "file_format": F.when(is_parquet, "PARQUET").otherwise("AVRO"),
        "parts": F.when(counted | is_parquet, 1).otherwise(F.greatest(F.lit(1), needed)).cast("int"),
    }
    manifests = manifests.withColumns(columns)
    shares = manifests.withColumn("part", F.explode(F.sequence(F.lit(0), F.col("parts") - 1)))
    return shares.select(*PART_SCHEMA.names).repartition(read_tasks(state.spark))
