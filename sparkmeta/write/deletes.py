"""Write deletes of rows: deletion vectors, position delete files and equality delete files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.transforms import IdentityTransform, VoidTransform
from pyiceberg.types import DoubleType, FloatType, PrimitiveType, StructType, UnknownType
from pyspark.sql import functions as F

from sparkmeta.arrow_types import spark_schema
from sparkmeta.checks import NAMES
from sparkmeta.entries.live import is_kind
from sparkmeta.entries.relation import (
    collected,
    distinct,
    first,
    frame_of,
    matching,
    names,
    select,
    some_columns,
    totals,
    where,
)
from sparkmeta.errors import UnsupportedError, ValidationError, hint_at, shown, translated_errors
from sparkmeta.expr import sql
from sparkmeta.expr.arrays import whole
from sparkmeta.expr.sql import quoted
from sparkmeta.manifests.placement import few_requests
from sparkmeta.plan.deletes.rules import data_path, is_global
from sparkmeta.rows.planned import PARTITION
from sparkmeta.session import local_frame, map_arrow, read_tasks
from sparkmeta.snapshot.search import live_manifests, live_relation
from sparkmeta.snapshot.state import task_reader
from sparkmeta.spec.entry import DELETE_FILE_PATH_ID, ContentType
from sparkmeta.spec.schema import id_of_column, path_to, pruned
from sparkmeta.spec.table_properties import choice_property, number_property
from sparkmeta.spec.transforms import field_sources, is_unknown
from sparkmeta.storage.encryption import KEY_METADATA
from sparkmeta.storage.files import executor_writer
from sparkmeta.storage.keys import data_key_length
from sparkmeta.write.delete_tasks import (
    BOUNDS,
    MASK_SCHEMA,
    WRITTEN_SCHEMA,
    PositionFileTasks,
    VectorFileTasks,
    VectorTasks,
    read_masks,
)
from sparkmeta.write.few_rows import arranged, run
from sparkmeta.write.file_schema import FileColumns
from sparkmeta.write.files import Arrangement, arranged_rows, checkpointed, data_file_tasks, written_files
from sparkmeta.write.input import check_some, written_columns
from sparkmeta.write.merge import count_and_range, range_of_rows
from sparkmeta.write.options import parquet_codec
from sparkmeta.write.tasks import LocationProvider, named_on_failure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.partitioning import PartitionSpec
    from pyspark.sql import DataFrame

    from sparkmeta.entries.relation import Relation
    from sparkmeta.rows.planned import PlannedFiles
    from sparkmeta.snapshot.state import TableState
    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.storage.executors import ExecutorWriter
    from sparkmeta.storage.files import Files
    from sparkmeta.write.delete_tasks import WriteTasks
    from sparkmeta.write.matching import Masks
    from sparkmeta.write.tasks import DataFileTasks


# -- Read the table properties for new delete files -------------------------------------------------------------------


VECTORS_SINCE: Final = 3
"""The first format version whose position deletes are deletion vectors."""

GRANULARITIES = BY_FILE, BY_PARTITION = "file", "partition"

_DELETE: Final = "write.delete."
_GRANULARITY: Final = "write.delete.granularity"
_CODEC, _FALLBACK = "write.delete.parquet.compression-codec", "write.parquet.compression-codec"
_TARGET, _TARGET_BYTES = "write.delete.target-file-size-bytes", 64 << 20


def delete_granularity(properties: Mapping[str, str]) -> str:
    """Return the granularity of new position delete files: "file" or "partition".

    Iceberg's Spark writers have the same default.

    Raises:
        ValidationError: the table property has an invalid value.
    """
    return choice_property(properties, _GRANULARITY, GRANULARITIES)


def delete_codec(properties: Mapping[str, str]) -> str:
    """Return PyArrow's name of the compression codec of new position delete files.

    Raises:
        ValidationError: the table property has an invalid value.
        UnsupportedError: the installed pyarrow lacks the codec.
    """
    return parquet_codec(properties, _CODEC if _CODEC in properties else _FALLBACK)


def of_deletes(metadata: TableMetadata, spec_id: int) -> TableMetadata:
    """Return a table's metadata for writers of equality delete files.

    `spec_id` is the default spec. The properties of delete files replace the properties of data files: for example, the
    value of `write.delete.parquet.compression-codec` becomes the value of `write.parquet.compression-codec`.
    """
    properties = dict(metadata.properties)
    for name, value in metadata.properties.items():
        if name.startswith(_DELETE):
            properties[f"write.{name.removeprefix(_DELETE)}"] = value
    properties["write.target-file-size-bytes"] = str(delete_target_bytes(metadata.properties))
    return metadata.model_copy(update={"default_spec_id": spec_id, "properties": properties})


def delete_target_bytes(properties: Mapping[str, str]) -> int:
    """Return the target size of a delete file.

    Raises:
        ValidationError: the table property has an invalid value.
    """
    return number_property(properties, _TARGET, _TARGET_BYTES, least=1)


# -- Write deletes by position ----------------------------------------------------------------------------------------
# These are deletion vectors, or position delete files in tables of format version 2.


GROUP: Final = "group"
"""The column with the group of a mask. All masks of a group go to the same position delete files."""

_PATH_ID: Final = DELETE_FILE_PATH_ID
# Up to this many bytes of masks, writing on the driver is faster than starting tasks.
_DRIVER_BYTES: Final = 16 << 20
_INTERNAL: Final = ("data_path", "sequence_number")
_BOUNDED: Final = pa.schema([pa.field("file_path", pa.string()), pa.field("data_path", pa.string())])


@dataclass(frozen=True)
class WrittenDeletes:
    """New deletes of rows.

    Attributes:
        files: one row per deletion vector or position delete file with columns of `inspect.files`, computed once.
        superseded: the older position delete files whose deletes the new ones include, rows with `file_path`. The
            commit finds older deletion vectors itself.
        data_files: the data files of position delete files, rows with `file_path`, because the rows of `files` don't
            name all of them.
    """

    files: Relation
    superseded: Relation | None = None
    data_files: Relation | None = None


def write_deletes(state: TableState, masks: Masks, files: PlannedFiles) -> WrittenDeletes:
    """Write deletes of rows, on the driver if there are few, otherwise in tasks.

    A deletion vector includes the positions of older position deletes of its data file, since readers ignore these. A
    position delete file of a single data file includes them too and replaces the older ones, as in Iceberg's Java
    library.

    Args:
        state: the table at the snapshot that the positions refer to.
        masks: the rows, as returned by `masks_of`.
        files: the planned data files of these rows, with their deletes.

    Raises:
        ValidationError: a table property has an invalid value.
        UnsupportedError: tasks can't open or write the table's files.
        CorruptFileError: an older delete file is damaged.
    """
    makes_vectors = state.metadata.format_version >= VECTORS_SINCE
    writer = _VectorWriter(state, masks, files) if makes_vectors else _FileWriter(state, masks, files)
    with translated_errors():
        return writer.write()


@dataclass(frozen=True)
class _Writer(ABC):
    """Writes masks, and the older position deletes of their data files, to delete files."""

    state: TableState
    masks: Masks
    files: PlannedFiles

    @abstractmethod
    def write(self) -> WrittenDeletes:
        """Write the deletes, and return the new and the replaced delete files."""

    @abstractmethod
    def tasks(self, writer: ExecutorWriter | Files) -> WriteTasks:
        """Return the tasks that write masks."""

    @property
    @abstractmethod
    def groups(self) -> pa.Table | None:
        """The group of each data file: `data_path` and `GROUP`. None if tasks need no groups."""

    def written(self, older: pa.Table) -> Relation:
        """Write the masks and return the new deletes with the partitions of their data files.

        Args:
            older: older deletes to include in the new ones: `data_path` and `delete`.
        """
        by_tasks = self.tasks(executor_writer(self.state.files))
        driver = self.state.access.driver
        is_small = few_requests(older) and self._size <= _DRIVER_BYTES
        if driver is not None and self.state.access.driver_opens(is_small):
            return self._written_by_driver(older, driver).drop_columns(list(_INTERNAL))
        with named_on_failure(self.state.metadata.location, f"{by_tasks.name}-*-deletes.*"):
            written = checkpointed(map_arrow(self._arranged(older), by_tasks.write, WRITTEN_SCHEMA))
        kind = F.lit(int(ContentType.POSITION_DELETES)).alias("content")
        return written.join(local_frame(self.state.spark, self.owners), "data_path").select(kind, "*").drop(*_INTERNAL)

    @property
    def _size(self) -> int:
        """The total bytes of the masks."""
        size = sql.call("sum", sql.call("length", sql.col("vector"))).alias("size")
        return totals(self.masks, [size])["size"] or 0

    def _written_by_driver(self, older: pa.Table, driver: Files) -> pa.Table:
        masks = collected(self.masks).cast(MASK_SCHEMA)
        if len(older):
            locations = self.state.types.locations
            older_masks = pa.Table.from_batches(read_masks(driver, locations, _units(older).to_batches()), MASK_SCHEMA)
            delete_paths = pc.struct_field(whole(older.column("delete")), "file_path")
            applied = set(zip(delete_paths.to_pylist(), older.column("data_path").to_pylist(), strict=True))
            pairs = zip(
                older_masks.column("delete_path").to_pylist(), older_masks.column("data_path").to_pylist(), strict=True
            )
            masks = pa.concat_tables(
                [masks, older_masks.filter(pa.array([pair in applied for pair in pairs], pa.bool_()))]
            )
        order = [("data_path", "ascending")]
        if self.groups is not None:
            group_rows = pc.index_in(masks.column("data_path"), whole(self.groups.column("data_path")))
            masks = masks.append_column(GROUP, self.groups.column(GROUP).take(group_rows))
            order = [(GROUP, "ascending"), *order]
        tasks = self.tasks(driver)
        with named_on_failure(self.state.metadata.location, f"{tasks.name}-*-deletes.*"):
            written = pa.Table.from_batches(tasks.write(masks.sort_by(order).to_batches()), WRITTEN_SCHEMA)
        owners = self.owners
        rows = owners.take(pc.index_in(written.column("data_path"), whole(owners.column("data_path"))))
        for name in owners.column_names[1:]:
            written = written.append_column(name, rows.column(name))
        kind = pa.repeat(pa.scalar(int(ContentType.POSITION_DELETES), pa.int32()), len(written))
        return written.append_column("content", kind)

    def _arranged(self, older: pa.Table) -> DataFrame:
        """Return the masks in the order that tasks expect."""
        spark = self.state.spark
        masks = frame_of(self.masks, self.state)
        if len(older):
            masks = masks.unionByName(self._older_masks(older))
        if self.groups is None:
            return masks.repartition("data_path").sortWithinPartitions("data_path")
        groups = F.broadcast(local_frame(spark, self.groups))
        return masks.join(groups, "data_path").repartition(GROUP).sortWithinPartitions(GROUP, "data_path")

    def _older_masks(self, older: pa.Table) -> DataFrame:
        """Read position deletes in tasks and return them as rows of `MASK_SCHEMA`."""
        deletes, delete = local_frame(self.state.spark, older), sql.col("delete")
        vector = sql.struct(
            sql.col("data_path").alias("referenced_file"),
            delete["content_offset"].alias("offset"),
            delete["content_size_in_bytes"].alias("size_in_bytes"),
            delete["record_count"].alias("record_count"),
        )
        by_delete_file = deletes.groupBy(
            F.col("delete.file_path").alias("location"), F.col("delete.file_format").alias("file_format")
        )
        keys = [F.first(f"delete.{name}").alias(name) for name in self.state.key_columns]
        units = by_delete_file.agg(F.collect_list(vector.column()).alias("vectors"), *keys)
        read = partial(read_masks, task_reader(self.state), self.state.types.locations)
        masks = map_arrow(units.repartition(read_tasks(self.state.spark, len(older))), read, MASK_SCHEMA)
        applied = deletes.select("data_path", F.col("delete.file_path").alias("delete_path"))
        return masks.join(applied, ["delete_path", "data_path"], "left_semi").select(*MASK_SCHEMA.names)

    @cached_property
    def owners(self) -> pa.Table:
        """The data files (`data_path`) and their partitions."""
        owners = self.files.table.select(["file_path", "spec_id"]).rename_columns(["data_path", "spec_id"])
        partitions = self.files.partitions(self.state.types)
        return owners if partitions is None else owners.append_column(PARTITION, partitions)

    def with_data_files(self, deletes: pa.Table) -> pa.Table:
        """Return deletes as structs `delete`, with the `data_path` and partition of the data file at index `owner`."""
        structs = deletes.drop_columns(["owner"]).to_struct_array()
        return self.owners.take(deletes.column("owner")).append_column("delete", structs)

    @property
    def folder(self) -> str:
        return LocationProvider.of(self.state.metadata, ()).folder

    @property
    def target_bytes(self) -> int:
        return delete_target_bytes(self.state.metadata.properties)


@dataclass(frozen=True)
class _VectorWriter(_Writer):
    """Writes deletion vectors, several to a Puffin file."""

    groups: ClassVar[None] = None

    def write(self) -> WrittenDeletes:
        bounds = ("split_offsets", "column_sizes", *BOUNDS)
        written = self.written(self._older())
        return WrittenDeletes(some_columns(written, [name for name in names(written) if name not in bounds]))

    def tasks(self, writer: ExecutorWriter | Files) -> WriteTasks:
        length = data_key_length(self.state.metadata)
        return VectorFileTasks(VectorTasks(writer, self.folder, self.target_bytes, length))

    def _older(self) -> pa.Table:
        """Return all position deletes of the data files. A delete file of several data files occurs once for each."""
        files = self.files
        deletes = files.file_deletes
        is_shared = files.shared_deletes(ContentType.POSITION_DELETES)
        if is_shared.any():
            owners, members = files.sets.members_of(files.set_codes)
            is_chosen = is_shared[members]
            shared = files.sets.deletes.take(pa.array(members[is_chosen]))
            shared = shared.append_column("owner", pa.array(owners[is_chosen], pa.int64()))
            deletes = pa.concat_tables([deletes, shared.cast(deletes.schema)])
        return self.with_data_files(deletes)


@dataclass(frozen=True)
class _FileWriter(_Writer):
    """Writes position delete files, one or more per data file or per partition."""

    def write(self) -> WrittenDeletes:
        older, superseded = self.owners.slice(0, 0), None
        if self._by_file:
            older = self.with_data_files(self._bounded_deletes())
            if len(older):
                paths = pc.struct_field(whole(older.column("delete")), "file_path")
                with_paths = older.drop_columns(["data_path", "delete"]).append_column("file_path", paths)
                firsts = pc.index_in(whole(paths).unique(), whole(paths))
                superseded = with_paths.take(firsts)
        written = self.written(older)
        # As in Java's files, only delete files of a single data file have bounds.
        covers_one_file = sql.col("referenced_data_file").isNotNull()
        columns = {name: sql.col(name) for name in names(written)}
        columns |= {name: sql.when(covers_one_file, sql.col(name)) for name in BOUNDS}
        files = select(written, sql.named(columns))
        return WrittenDeletes(files, superseded, self.files.table.select(["file_path"]))

    def tasks(self, writer: ExecutorWriter | Files) -> WriteTasks:
        return PositionFileTasks(writer, self.folder, delete_codec(self.state.metadata.properties), self.target_bytes)

    @property
    def _by_file(self) -> bool:
        return delete_granularity(self.state.metadata.properties) == BY_FILE

    @property
    def groups(self) -> pa.Table:
        """See `_Writer.groups`."""
        paths = self.files.table.column("file_path")
        return pa.table({"data_path": paths, GROUP: paths if self._by_file else self.files.partition_codes})

    def _bounded_deletes(self) -> pa.Table:
        """Return the position delete files that cover a single data file, with their `owner`."""
        file_deletes = self.files.file_deletes
        shared = self.files.sets.deletes.filter(pa.array(self.files.shared_deletes(ContentType.POSITION_DELETES)))
        bounded = self._bounded(shared.column("file_path")) if len(shared) else _BOUNDED.empty_table()
        shared_rows = pc.index_in(whole(bounded.column("file_path")), whole(shared.column("file_path")))
        owners = pc.index_in(whole(bounded.column("data_path")), whole(self.files.table.column("file_path")))
        bounded_deletes = shared.take(shared_rows).append_column("owner", owners.cast(pa.int64()))
        deletes = pa.concat_tables([file_deletes, bounded_deletes.cast(file_deletes.schema)])
        return deletes.filter(deletes.column("owner").is_valid())

    def _bounded(self, paths: pa.ChunkedArray) -> pa.Table:
        """Return the delete files, such as Java's, whose path bounds name a single data file; rows of `_BOUNDED`."""
        state = self.state
        projection = state.projection(("version_info", "content_type", "location", "referenced_file"), {_PATH_ID})
        entries = live_relation(state, live_manifests(state.delete_manifests), projection)
        files = select(entries, [sql.col("location").alias("file_path"), data_path().alias("data_path")])
        named = pa.table({"file_path": paths.unique()})
        bounded = matching(where(files, sql.col("data_path").isNotNull()), named, {"file_path": "file_path"})
        return collected(bounded)


def _units(deletes: pa.Table) -> pa.Table:
    """Return deletes as units of work for `read_masks`."""
    units: dict[tuple[str, str, bytes | None], list[dict[str, Any]]] = {}
    for path, delete in zip(*(deletes.column(name).to_pylist() for name in ("data_path", "delete")), strict=True):
        key = (delete["file_path"], delete["file_format"], delete.get(KEY_METADATA))
        vectors = units.setdefault(key, [])
        blob = {"offset": delete["content_offset"], "size_in_bytes": delete["content_size_in_bytes"]}
        vectors.append({"referenced_file": path, **blob, "record_count": delete["record_count"]})
    rows = [
        {"location": path, "file_format": file_format, KEY_METADATA: key, "vectors": vectors}
        for (path, file_format, key), vectors in units.items()
    ]
    return pa.Table.from_pylist(rows)


# -- Write equality deletes (table spec, Equality Delete Files) -------------------------------------------------------
# Equality delete files hold the keys of rows to delete.


DELETES_SINCE: Final = 2
"""The first format version with deletes of rows."""


@dataclass
class KeyDeletes:
    """Deletes of the rows that have given keys in any data file of a snapshot.

    A partitioned delete file applies only to data files of its spec, so files are written for each spec of live data
    files and for the default spec. A delete file of an unpartitioned spec applies to all data files. If data files have
    such a spec, or the rows lack the columns of another spec, only unpartitioned files are written.

    Attributes:
        state: the table at the snapshot.
        rows: the keys and the partition source columns.
        keys: the field ids of the key.
        specs: the partition specs of the delete files.
        is_empty: whether no file was written because there are no keys. It is known once all files are written.
    """

    state: TableState
    rows: Relation
    keys: tuple[int, ...]
    specs: tuple[int, ...]
    is_empty: bool = True

    @staticmethod
    def of(state: TableState, rows: Relation, names: Sequence[str] | None) -> KeyDeletes:
        """Check keys against a table and return their deletes.

        Args:
            state: the table at the snapshot.
            rows: the keys; other columns of the table are ignored.
            names: the key columns; None for the schema's identifier fields.

        Raises:
            ValidationError: a column is missing, unknown or of another type, or can't be compared; or the partition of
                a key can't be known.
            UnsupportedError: the table has format version 1.
        """
        metadata, table = state.metadata, state.metadata.location
        if metadata.format_version < DELETES_SINCE:
            raise UnsupportedError(f"{table}: the table has format version 1, which has no equality deletes")
        schema = metadata.schema()
        row_type = spark_schema(rows.schema) if isinstance(rows, pa.Table) else rows.schema
        keys = _key_ids(schema, names, table)
        sources = {source for spec in state.specs.values() for field in spec.fields for source in field_sources(field)}
        present_ids = check_some(row_type, schema, [*keys, *sources.intersection(schema.field_ids)], table)
        for field_id in keys:
            if field_id not in present_ids:
                name = schema.find_column_name(field_id)
                raise ValidationError(f"{table}: column {name} of the key is not in the rows")
        specs = _specs(state, present_ids)
        fields = (field for spec_id in specs for field in state.specs[spec_id].fields)
        source_ids = {source for field in fields for source in field_sources(field)}
        top_names = {path_to(schema, field_id)[0].name for field_id in present_ids.intersection({*keys, *source_ids})}
        column_names = [field.name for field in schema.fields if field.name in top_names]
        if isinstance(rows, pa.Table):
            return KeyDeletes(state, rows.select(column_names), keys, specs)
        selected = rows.select(*map(quoted, column_names))
        return KeyDeletes(state, checkpointed(selected) if len(specs) > 1 else selected, keys, specs)

    def write(self) -> Iterator[Relation]:
        """Write the files, on the driver for rows in memory, otherwise by jobs.

        Yields:
            For each spec, one row per file with columns of `inspect.files`, computed once. Nothing if there are no
            keys.

        Raises:
            ValidationError: a required column has a null, or a table property has an invalid value.
            UnsupportedError: tasks can't write the table's files.
        """
        schema = self.state.metadata.schema()
        key_schema = pruned(schema, self.keys)
        for spec_id in self.specs:
            target = _target(self.state, spec_id)
            tasks = replace(data_file_tasks(target, schema, key_schema), sort_order_id=UNSORTED_SORT_ORDER.order_id)
            files: Relation
            if isinstance(self.rows, pa.Table):
                files = self._written(self.rows, target, tasks)
            else:
                rows = arranged_rows(target, self.rows, Arrangement(UNSORTED_SORT_ORDER, None))
                files = written_files(self.state, map_arrow(rows, tasks.write, tasks.result_schema), tasks.name)
            if first(files) is not None:
                self.is_empty = False
                yield files

    @staticmethod
    def _written(rows: pa.Table, target: TableState, tasks: DataFileTasks) -> pa.Table:
        """Write rows in memory."""
        table = target.metadata.location
        schema = Schema(*(field for field in target.metadata.schema().fields if field.name in rows.column_names))
        columns = FileColumns(table, written_columns(schema), tasks.columns.file_format)
        return run(tasks, arranged(rows, target, columns, schema, ()), table)

    @property
    def limited_to(self) -> tuple[int, ...] | None:
        """The partition specs whose data files the deletes apply to; None for all data files."""
        return None if any(is_global(self.state.specs[spec_id]) for spec_id in self.specs) else self.specs

    @property
    def row_filter(self) -> BooleanExpression:
        """A filter that every row with one of the keys in its partition satisfies. May run a job."""
        schema = self.state.metadata.schema()
        # Only an identity partition determines the value of its source column.
        sources = [
            {field.source_id for field in self.state.specs[spec_id].fields if field.transform == IdentityTransform()}
            for spec_id in self.specs
        ]
        ids = {*self.keys, *frozenset.intersection(*map(frozenset, sources))}
        fields = [field for field in schema.fields if field.field_id in ids]
        # Keys are never floating-point; bounds of such columns ignore NaN.
        top_names = [field.name for field in fields if not isinstance(field.field_type, FloatType | DoubleType)]
        if isinstance(self.rows, pa.Table):
            return range_of_rows(self.rows, schema, top_names, null_is_a_key=True)
        return count_and_range(self.rows, schema, top_names, null_is_a_key=True)[1]


def _key_ids(schema: Schema, names: Sequence[str] | None, table: str) -> tuple[int, ...]:
    """Return the field ids of the key."""
    if names is not None:
        NAMES.check(f"{table}: equality_cols", names)
    keys = sorted(schema.identifier_field_names()) if names is None else [*names]
    if not keys:
        reason = "the table's schema names no identifier fields" if names is None else "it names no column"
        raise ValidationError(f"{table}: an equality delete takes equality_cols: {reason}")
    ids: list[int] = []
    for name in keys:
        if (field_id := id_of_column(schema, name)) is None:
            hint = hint_at(name, schema.column_names)
            raise ValidationError(f"{table}: column {name} of the key is not in the table{hint}")
        kind, parents = schema.find_type(field_id), path_to(schema, field_id)[:-1]
        if any(not isinstance(field.field_type, StructType) for field in parents):
            raise ValidationError(f"{table}: column {name} of the key is in a list or a map")
        if isinstance(kind, FloatType | DoubleType | UnknownType) or not isinstance(kind, PrimitiveType):
            problem = "equality deletes compare no such values"
            raise ValidationError(f"{table}: column {name} of the key is of type {kind}: {problem}")
        if field_id in ids:
            raise ValidationError(f"{table}: the key has column {name} twice")
        ids.append(field_id)
    return tuple(ids)


def _specs(state: TableState, present: frozenset[int]) -> tuple[int, ...]:
    """Return the partition specs of the delete files, which together apply to all data files.

    Args:
        state: the table.
        present: field ids of the columns that the rows have.
    """
    spec_ids = {state.metadata.default_spec_id} | _live_specs(state)
    global_specs = {spec_id for spec_id, spec in state.specs.items() if is_global(spec)}
    if global_specs & spec_ids:
        return (max(global_specs & spec_ids),)
    problems = [problem for spec_id in sorted(spec_ids) for problem in _problems(state, state.specs[spec_id], present)]
    if not problems:
        return tuple(sorted(spec_ids))
    if global_specs:
        return (max(global_specs),)
    raise ValidationError(
        f"{state.metadata.location}: the partitions of the keys are unknown: {'; '.join(dict.fromkeys(problems))}; "
        "and the table has no unpartitioned spec, whose deletes apply to all partitions"
    )


def _problems(state: TableState, spec: PartitionSpec, present: frozenset[int]) -> Iterator[str]:
    """Yield the reasons why partition values of rows can't be computed."""
    schema = state.metadata.schema()
    for field in spec.fields:
        if is_unknown(field.transform):
            yield f"the transform {field.transform} of partition field {shown(field.name)} is unknown"
        elif not isinstance(field.transform, VoidTransform):
            for source in field_sources(field):
                if source not in present:
                    name = schema.find_column_name(source)
                    source_text = "a dropped column" if name is None else f"column {name}, which the rows lack"
                    yield f"partition field {shown(field.name)} is made from {source_text}"


def _live_specs(state: TableState) -> set[int]:
    """Return the specs of the snapshot's live data files. Reads a tree's entries if there are several specs."""
    if len(state.specs) == 1:
        return set(state.specs)
    manifests = live_manifests(state.data_manifests)
    if state.tree is None:
        return set(manifests.column("partition_spec_id").to_pylist())
    projection = state.projection(("version_info", "content_type", "partition_spec_id"))
    data = where(live_relation(state, manifests, projection), is_kind(ContentType.DATA))
    return set(distinct(data, ["partition_spec_id"]).column(0).to_pylist())


def _target(state: TableState, spec_id: int) -> TableState:
    """Return the table with a default spec, and with the properties of delete files instead of data files."""
    return replace(state, metadata=of_deletes(state.metadata, spec_id))
