"""Write deletion vectors for rows, merged with the older deletes of positions of their data files."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from sparkmeta.columns import sql
from sparkmeta.edit.range_sort import task_reader
from sparkmeta.errors import ValidationError, from_spark, shown
from sparkmeta.plan.rows import public_partition_type
from sparkmeta.rows.write.files import checkpointed
from sparkmeta.rows.write.matching import FILE, POSITION
from sparkmeta.rows.write.places import Places
from sparkmeta.rows.write.vector_tasks import MASK_SCHEMA, VECTOR_SCHEMA, VectorTasks, position_masks, read_masks
from sparkmeta.session import map_arrow, read_tasks
from sparkmeta.spec.entry import ContentType
from sparkmeta.storage.access import executor_writer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from sparkmeta.rows.planned import PlannedFiles
    from sparkmeta.state import TableState

_TARGET, _TARGET_BYTES = "write.delete.target-file-size-bytes", 64 << 20


def write_vectors(state: TableState, positions: DataFrame, files: PlannedFiles) -> DataFrame:
    """Write a deletion vector for each data file of which rows are to be deleted. Runs jobs.

    It has the positions that older deletion vectors and position delete files of the data file delete as well, since
    readers pass these over.

    Args:
        state: the table at the snapshot that the positions are of.
        positions: `FILE` and `POSITION` of rows.
        files: the planned data files that these rows are in, with their deletes.

    Returns:
        A row for each deletion vector with columns of `inspect.files`, which Spark keeps.

    Raises:
        UnsupportedError: tasks can't open or write the table's files.
        CorruptFileError: an older delete file is damaged.
    """
    folder = Places.of(state.metadata, ()).folder
    tasks = VectorTasks(executor_writer(state.files), folder, delete_target_bytes(state.metadata.properties))
    affected = files.frame(state.spark)
    new = map_arrow(
        positions.select(FILE, POSITION).repartition(FILE).sortWithinPartitions(FILE), position_masks, MASK_SCHEMA
    )
    has_older = bool(files.have(ContentType.POSITION_DELETES).any())
    masks = new.unionByName(_older_masks(state, affected)) if has_older else new
    ordered = masks.repartition("data_path").sortWithinPartitions("data_path") if has_older else masks
    owners = affected.select(
        F.col("file_path").alias("referenced_data_file"),
        "spec_id",
        *(["partition"] if public_partition_type(state).fields else []),
    )
    try:
        written = checkpointed(map_arrow(ordered, tasks.write, VECTOR_SCHEMA))
    except PySparkException as error:
        raise from_spark(error) or error from error
    kind = F.lit(int(ContentType.POSITION_DELETES)).alias("content")
    return (
        written.join(owners, "referenced_data_file")
        .select(kind, F.lit("PUFFIN").alias("file_format"), "*")
        .drop("sequence_number")
    )


def _older_masks(state: TableState, affected: DataFrame) -> DataFrame:
    """Return what position deletes that apply to data files delete of them, rows of `MASK_SCHEMA`."""
    pairs = affected.select(F.col("file_path").alias("data_path"), F.explode("deletes").alias("delete")).where(
        F.col("delete.content") == int(ContentType.POSITION_DELETES)
    )
    delete = sql.col("delete")
    vector = sql.struct(
        sql.col("data_path").alias("referenced_file"),
        delete["content_offset"].alias("offset"),
        delete["content_size_in_bytes"].alias("size_in_bytes"),
        delete["record_count"].alias("record_count"),
    )
    places = pairs.groupBy(
        F.col("delete.file_path").alias("location"), F.col("delete.file_format").alias("file_format")
    )
    units = places.agg(F.collect_list(vector.column()).alias("vectors"))
    read = partial(read_masks, task_reader(state))
    masks = map_arrow(units.repartition(read_tasks(state.spark)), read, MASK_SCHEMA)
    applied = pairs.select("data_path", F.col("delete.file_path").alias("delete_path"))
    return masks.join(applied, ["delete_path", "data_path"], "left_semi").select(*MASK_SCHEMA.names)


def delete_target_bytes(properties: Mapping[str, str]) -> int:
    """Return the target size of a delete file.

    Raises:
        ValidationError: the table property has an invalid value.
    """
    text = properties.get(_TARGET, str(_TARGET_BYTES))
    if not text.isdecimal() or not int(text):
        raise ValidationError(f"the table property {_TARGET} is {shown(text)}: it takes a number of bytes")
    return int(text)
