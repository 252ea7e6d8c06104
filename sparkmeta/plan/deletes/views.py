"""Views of data files and deletes for rules and groups, in SQL and in Arrow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.transforms import VoidTransform

from sparkmeta.columns import sql
from sparkmeta.columns.sql import Sql
from sparkmeta.entries.arrays import whole
from sparkmeta.entries.projection import CONTENT_STATS, PARTITION
from sparkmeta.plan.deletes.rules import DELETE_WITHOUT_SEQUENCE, ArrowValues, View
from sparkmeta.plan.rows import partition_value
from sparkmeta.spec.entry import DELETE_FILE_PATH_ID, ContentType

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec

    from sparkmeta.state import TableState

SEQUENCE: Final = "version_info.sequence_number"
_FLOATS: Final = ("float", "double")


def data_view(state: TableState) -> View:
    """Return the view of a data entry."""
    return {
        "sequence_number": sql.col(SEQUENCE),
        "partition_key": partition_key(state),
    }


def entry_view() -> View:
    """Return a view of a delete entry with its kind and its data file only."""
    return {
        "sequence_number": sql.col(SEQUENCE),
        "content_type": sql.col("content_type"),
        "is_dv": is_dv(),
        "data_path": sql.col("referenced_file"),
    }


def arrow_data_view(entries: pa.Table) -> dict[str, ArrowValues]:
    """Return the view of data entries in Arrow. `delete_struct` has the same columns for deletes."""
    return {
        "sequence_number": ArrowValues(whole(entries.column("version_info")).field("sequence_number")),
        "partition_key": ArrowValues(_arrow_partition_key(entries)),
    }


def arrow_entry_view(entries: pa.Table) -> dict[str, ArrowValues]:
    """Return the view of `entry_view` for delete entries in Arrow."""
    content = whole(entries.column("content_type"))
    is_position = pc.equal(content, int(ContentType.POSITION_DELETES))
    return {
        "content_type": ArrowValues(content),
        "is_dv": ArrowValues(pc.and_(is_position, pc.equal(whole(entries.column("file_format")), "PUFFIN"))),
        "data_path": ArrowValues(whole(entries.column("referenced_file"))),
    }


def partition_key(state: TableState) -> Sql:
    """Return (spec id, partition tuple) of an entry as one comparable value.

    Floats are compared by their text, since -0.0 and 0.0 are different partitions but equal in Spark.
    """
    values = [
        (partition_value(field_id).cast("string") if name in _FLOATS else partition_value(field_id)).alias(
            f"p{field_id}"
        )
        for field_id, name in state.types.partition_fields.items()
    ]
    return sql.struct(sql.col("partition_spec_id").alias("spec_id"), *values)


def _arrow_partition_key(entries: pa.Table) -> pa.StructArray:
    partition = whole(entries.column(PARTITION)).flatten() if PARTITION in entries.column_names else []
    columns = [whole(entries.column("partition_spec_id")), *partition]
    return pa.StructArray.from_arrays(columns, names=[str(place) for place in range(len(columns))])


def delete_struct(state: TableState) -> Sql:
    """Return a delete entry as a struct for groups. The sequence number comes first, so that arrays sort by it.

    The struct is a view. It fails, when it runs, for a delete without a sequence number.
    """
    unknown = DELETE_WITHOUT_SEQUENCE.raised(sql.col("location"), as_type="bigint")
    stats = sql.when(sql.col("content_type") != int(ContentType.POSITION_DELETES), sql.col(CONTENT_STATS))
    return sql.struct(
        sql.coalesce(sql.col(SEQUENCE), unknown).alias("sequence_number"),
        *(sql.col(name).alias(name) for name in ("manifest", "ordinal", "content_type", "location", "file_format")),
        *(
            sql.col(name).alias(name)
            for name in ("file_size_in_bytes", "referenced_file", "record_count", "equality_ids")
        ),
        sql.col("deletion_vector.offset").alias("offset"),
        sql.col("deletion_vector.size_in_bytes").alias("size_in_bytes"),
        is_dv().alias("is_dv"),
        is_global_delete(state).alias("is_global"),
        data_path().alias("data_path"),
        partition_key(state).alias("partition_key"),
        stats.alias(CONTENT_STATS),
    )


def is_dv() -> Sql:
    """Return whether a delete entry is a deletion vector."""
    position = sql.col("content_type") == int(ContentType.POSITION_DELETES)
    return position & (sql.col("file_format") == "PUFFIN")


def data_path() -> Sql:
    """Return the data file of a DV or a file-scoped position delete file; null for partition-scoped ones.

    The entry names the file, or has equal bounds of `file_path`, which are never truncated in position deletes.
    """
    bounds = f"{CONTENT_STATS}.`{DELETE_FILE_PATH_ID}`"
    lower, upper = sql.col(f"{bounds}.lower_bound"), sql.col(f"{bounds}.upper_bound")
    path = sql.coalesce(sql.col("referenced_file"), sql.when(lower == upper, lower))
    return sql.when(sql.col("content_type") == int(ContentType.POSITION_DELETES), path)


def is_global_delete(state: TableState) -> Sql:
    """Return whether a delete entry is an equality delete of the whole table."""
    everywhere = [spec_id for spec_id, spec in state.specs.items() if is_global(spec)]
    equality = sql.col("content_type") == int(ContentType.EQUALITY_DELETES)
    return equality & sql.col("partition_spec_id").isin(everywhere)


def is_global(spec: PartitionSpec) -> bool:
    """Return whether equality deletes of a spec apply to every file, since it has only void fields, or none."""
    return all(isinstance(field.transform, VoidTransform) for field in spec.fields)
