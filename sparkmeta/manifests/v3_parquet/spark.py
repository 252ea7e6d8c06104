"""Read Parquet manifests with the entry layout of versions 1 to 3, as Iceberg 1.12 writes them for format version 4.

Spark's Parquet reader reads the projected columns. One pass in Arrow types bounds and applies inheritance, with the
code for Avro manifests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.arrow_types import spark_schema
from sparkmeta.columns.bounds import ANY, bound_arrow_type
from sparkmeta.entries.locations import with_locations
from sparkmeta.entries.parts import PART_SCHEMA, part_of
from sparkmeta.entries.projection import EntryProjection
from sparkmeta.entries.records import EntryBuilder, projected_fields
from sparkmeta.errors import CorruptFileError, UnsupportedError
from sparkmeta.session import local_frame, map_arrow
from sparkmeta.spec.entry import (
    ENTRY_NAMES,
    FILE_NAMES,
    METRICS_MAP_IDS,
    METRICS_MAPS,
    STATS_SOURCES,
    V3_ENTRY_PATHS,
)
from sparkmeta.spec.locations import Locations
from sparkmeta.storage.location import PATH_KEY, spark_path_key
from sparkmeta.storage.reading import failing_if_skipped, read_parquet

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# Field id -> the name in the file, of fields of the entry and of data_file.
_ENTRY_NAMES = {field_id: name for name, field_id in ENTRY_NAMES.items() if field_id in V3_ENTRY_PATHS}
_FILE_NAMES = {field_id: name for name, field_id in FILE_NAMES.items() if field_id in V3_ENTRY_PATHS}
_TYPES = {
    **dict.fromkeys((0, 134, 140), pa.int32()),
    **dict.fromkeys((1, 3, 4, 103, 104, 142, 144, 145), pa.int64()),
    **dict.fromkeys((100, 101, 143), pa.string()),
    131: pa.binary(),
    132: pa.list_(pa.int64()),
    135: pa.list_(pa.int32()),
}

# Spec id -> (partition field id, name in the manifest's partition struct) of its fields.
PartitionNames = Mapping[int, Sequence[tuple[int, str]]]


def read_parquet_entries(
    spark: SparkSession, parts: pa.Table, projection: EntryProjection, names: PartitionNames, places: Locations
) -> DataFrame:
    """Return every physical entry of Parquet manifests as a lazy DataFrame of `projection.schema`.

    Args:
        spark: the session.
        parts: rows of `PART_SCHEMA`, one per manifest. Manifests of each spec are read together, since tuples differ.
        projection: the columns to return.
        names: the names of partition fields.
        places: resolves the locations in manifests.
    """
    if unknown := [field_id for field_id, type_name in projection.partition if type_name == ANY]:
        path = parts.column("location")[0].as_py()
        raise UnsupportedError(f"{path}: the transform of partition field {unknown[0]}, and so its type, is not known")
    reads = []
    for spec_id in sorted(parts.column("partition_spec_id").unique().to_pylist()):
        of_spec = parts.filter(pc.equal(parts.column("partition_spec_id"), spec_id))
        reads.append(_read_spec(spark, of_spec, projection, dict(names[spec_id])))
    raw = reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), reads)
    if "first_row_id" in projection.columns:
        raw = raw.repartition("manifest").sortWithinPartitions("manifest", "ordinal")
    entries = map_arrow(raw, partial(_build, projection, places), projection.schema)
    locations = parts.column("location").to_pylist()
    return failing_if_skipped(spark, entries, locations, spark_schema(projection.schema))


def _read_spec(
    spark: SparkSession, parts: pa.Table, projection: EntryProjection, names: Mapping[int, str]
) -> DataFrame:
    locations = parts.column("location").to_pylist()
    partition = {field_id: names[field_id] for field_id, _ in projection.partition if field_id in names}
    types = dict(projection.partition)
    schema = _schema(projection, {name: types[field_id] for field_id, name in partition.items()})
    files = read_parquet(spark, locations, schema)
    keys = pa.array([spark_path_key(location) for location in locations])
    units = F.broadcast(local_frame(spark, parts.append_column("path", keys)))
    columns = [*_columns(projection), *(_field(f"data_file.partition.`{n}`", f"p{i}") for i, n in partition.items())]
    read = files.select(
        *columns,
        F.expr(PATH_KEY).alias("path"),
        F.col("_metadata.row_index").alias("ordinal"),
    )
    return read.join(units, "path", "left")


def _schema(projection: EntryProjection, partition: Mapping[str, str]) -> Any:
    """Return the schema to read: the projected fields, and partition fields by their names in the file."""
    ids = projected_fields(projection)
    file = [pa.field(name, _TYPES[field_id]) for field_id, name in _FILE_NAMES.items() if field_id in ids]
    file += [pa.field(n, pa.map_(pa.int32(), value)) for i, (n, value) in METRICS_MAPS.items() if i in ids]
    if partition:
        fields = [pa.field(name, bound_arrow_type(type_name)) for name, type_name in partition.items()]
        file.append(pa.field("partition", pa.struct(fields)))
    entry = [pa.field(name, _TYPES[field_id]) for field_id, name in _ENTRY_NAMES.items() if field_id in ids]
    return spark_schema(pa.schema([*entry, pa.field("data_file", pa.struct(file))] if file else entry))


def _columns(projection: EntryProjection) -> list[Column]:
    """Return the projected fields and metrics maps as `f<id>`, and single keys of metrics maps as `m<id>_<key>`."""
    ids = projected_fields(projection)
    columns = [_field(name, f"f{field_id}") for field_id, name in _ENTRY_NAMES.items() if field_id in ids]
    columns += [_field(f"data_file.{n}", f"f{i}") for i, n in _FILE_NAMES.items() if i in ids]
    for name in projection.columns:
        if name in METRICS_MAP_IDS:
            columns.append(_field(f"data_file.{name}", f"f{METRICS_MAP_IDS[name]}"))
    for map_id in STATS_SOURCES.values() if projection.stats else ():
        values = F.col(f"data_file.{METRICS_MAPS[map_id][0]}")
        columns += [F.try_element_at(values, F.lit(key)).alias(f"m{map_id}_{key}") for key, _ in projection.stats]
    return columns


def _field(path: str, alias: str) -> Column:
    column: Column = F.col(path).alias(alias)
    return column


def _build(
    projection: EntryProjection, places: Locations, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield batches of entries of one manifest. A manifest's row id counter continues from batch to batch."""
    builder: EntryBuilder | None = None
    for batch in batches:
        for run in _runs(batch):
            part = part_of(_row(run))
            if builder is None or builder.part.manifest != part.manifest:
                builder = EntryBuilder(part, projection)
            entries = builder.batch(run.column("ordinal"), ArrowRecords(run))
            yield from with_locations([entries], places, part.location)


def _runs(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    ids = batch.column("manifest")
    if ids.null_count:
        path = batch.filter(ids.is_null()).column("path")[0].as_py()
        raise CorruptFileError(path, "path", path, "Spark read a file that no manifest names")
    edges = np.flatnonzero(np.diff(ids.to_numpy())) + 1
    starts = [0, *edges.tolist(), len(batch)]
    return (batch.slice(a, b - a) for a, b in pairwise(starts) if b > a)


def _row(run: pa.RecordBatch) -> dict[str, Any]:
    row: dict[str, Any] = run.slice(0, 1).select(PART_SCHEMA.names).to_pylist()[0]
    return row


class ArrowRecords:
    """`RawRecords` over the raw columns of `_columns`."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return len(self._batch)

    def values(self, field_id: int, kind: pa.DataType) -> pa.Array:
        return self._cast(f"f{field_id}", kind)

    def partition(self, field_id: int, type_name: str) -> pa.Array:
        return self._cast(f"p{field_id}", bound_arrow_type(type_name))

    def metrics_map(self, map_id: int, kind: pa.MapType) -> pa.Array:
        return self._cast(f"f{map_id}", kind)

    def metric(self, map_id: int, key: int, kind: pa.DataType) -> pa.Array:
        return self._cast(f"m{map_id}_{key}", kind)

    def taken(self, places: np.ndarray[Any, Any]) -> ArrowRecords:
        return ArrowRecords(self._batch.take(pa.array(places)))

    def _cast(self, name: str, kind: pa.DataType) -> pa.Array:
        if name not in self._batch.schema.names:
            return pa.nulls(len(self), kind)
        return self._batch.column(name).cast(kind)
