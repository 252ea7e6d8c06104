"""Files as users give them, rows with the columns of `inspect.files`, as entries of a V4 tree. Tasks import this."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.columns.bounds import ANY, bound_arrow_type
from sparkmeta.errors import ValidationError
from sparkmeta.manifests.layout import tree_schema, tree_stats_type, whole
from sparkmeta.manifests.maps import column_metric, derived_stats, map_type, stats_of_maps, true_where
from sparkmeta.spec.entry import METRICS_MAP_IDS, ContentType, Status

# Columns of `inspect.files` -> fields of the content entry.
_FIELDS = {
    "content": "content_type",
    "file_path": "location",
    "file_format": "file_format",
    "spec_id": "partition_spec_id",
    "record_count": "record_count",
    "file_size_in_bytes": "file_size_in_bytes",
    "key_metadata": "key_metadata",
    "split_offsets": "split_offsets",
    "equality_ids": "equality_ids",
    "sort_order_id": "sort_order_id",
    "referenced_data_file": "referenced_file",
}
_REQUIRED = ("file_path", "file_format", "record_count", "file_size_in_bytes")
PARTITION = "partition"
FILE_COLUMNS = (*_FIELDS, "content_offset", "content_size_in_bytes", PARTITION, *METRICS_MAP_IDS)


@dataclass(frozen=True)
class TupleField:
    """A field of a partition spec: its names in `partition`, and the stats that its values stand in (None: void)."""

    names: tuple[str, ...]
    source: int | None
    type: str


@dataclass(frozen=True)
class FileRows:
    """Turns rows of files into entries of one table. Picklable.

    table: its location, for errors. stats: ids that may have stats -> Iceberg types. specs: spec id -> its fields.
    default_spec: of files that name none.
    """

    table: str
    stats: Mapping[int, str]
    specs: Mapping[int, tuple[TupleField, ...]]
    default_spec: int

    @cached_property
    def schema(self) -> pa.Schema:
        return tree_schema(self.stats)

    def batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`."""
        for batch in batches:
            yield from self.entries(pa.Table.from_batches([batch])).combine_chunks().to_batches()

    def entries(self, files: pa.Table) -> pa.Table:
        """Rows of `tree_schema`: ADDED, of no snapshot and no sequence yet.

        files: columns of `inspect.files`, in any order; absent ones are null, others are passed over.

        Raises:
            ValidationError: a file without what a file must have, of an unknown spec, format or content, or without a
                value for a field of its partition.
        """
        rows = len(files)
        values = {field: self._values(files, column, field) for column, field in _FIELDS.items()}
        values["content_type"] = pc.fill_null(values["content_type"], 0)
        values["partition_spec_id"] = pc.fill_null(values["partition_spec_id"], self.default_spec)
        values["file_format"] = pc.utf8_lower(values["file_format"])
        self._check(values)
        values["deletion_vector"] = self._vectors(files, values)
        info = self.schema.field("version_info").type
        added = pa.repeat(pa.scalar(int(Status.ADDED), pa.int32()), rows)
        values["version_info"] = pa.StructArray.from_arrays(
            [added, *(pa.nulls(rows, pa.int64()) for _ in range(3))], fields=list(info)
        )
        values["content_stats"] = self._stats(files, values)
        arrays = [values.get(one.name, pa.nulls(rows, one.type)) for one in self.schema]
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def _values(self, files: pa.Table, column: str, field: str) -> pa.Array:
        kind = self.schema.field(field).type
        return self._column(files, column, kind)

    def _column(self, files: pa.Table, column: str, kind: pa.DataType) -> pa.Array:
        if column not in files.column_names:
            return pa.nulls(len(files), kind)
        values = whole(files.column(column))
        try:
            return values.cast(kind)
        except (pa.ArrowException, ValueError) as error:
            raise ValidationError(f"{self.table}: column {column} of the files is {values.type}, not {kind}") from error

    # -- checks -----------------------------------------------------------------------------------------------------

    def _check(self, values: Mapping[str, pa.Array]) -> None:
        for column in _REQUIRED:
            self._refuse(values, column, values[_FIELDS[column]].is_null(), "it is required")
        for column in ("record_count", "file_size_in_bytes"):
            self._refuse(values, column, pc.less(values[column], 0), "it is negative")
        kinds = values["content_type"]
        self._refuse(values, "content", pc.invert(_in(kinds, (0, 1, 2))), "not one of 0, 1, 2")
        self._refuse(values, "spec_id", pc.invert(_in(values["partition_spec_id"], self.specs)), "no spec of the table")
        unknown = [spec_id for spec_id, fields in self.specs.items() if any(one.type == ANY for one in fields)]
        problem = "the spec has a transform that is not known, and trees keep no values of such"
        self._refuse(values, "spec_id", _in(values["partition_spec_id"], unknown), problem)
        puffin = pc.equal(values["file_format"], "puffin")
        position = pc.equal(kinds, int(ContentType.POSITION_DELETES))
        known = _in(values["file_format"], ("parquet", "orc", "avro"))
        self._refuse(values, "file_format", pc.invert(pc.or_(known, puffin)), "not one of parquet, orc, avro, puffin")
        problem = "position deletes of format version 4 are deletion vectors in Puffin files"
        self._refuse(values, "file_format", pc.and_(position, pc.invert(puffin)), problem)
        self._refuse(values, "file_format", pc.and_(puffin, pc.invert(position)), "only deletion vectors are Puffin")
        path = values["referenced_file"]
        self._refuse(values, "referenced_data_file", pc.and_(position, path.is_null()), "a deletion vector has one")
        ids = values["equality_ids"]
        equality = pc.equal(kinds, int(ContentType.EQUALITY_DELETES))
        none = pc.equal(pc.fill_null(pc.list_value_length(ids), 0), 0)
        self._refuse(values, "equality_ids", pc.and_(equality, none), "equality deletes have some")

    def _refuse(self, values: Mapping[str, pa.Array], column: str, wrong: pa.Array, problem: str) -> None:
        found = pc.indices_nonzero(pc.fill_null(wrong, False))
        if len(found):
            row = found[0].as_py()
            path, value = values["location"][row].as_py(), values[_FIELDS[column]][row].as_py()
            raise ValidationError(f"{self.table}: {column} of file {path} is {value!r}: {problem}")

    def _vectors(self, files: pa.Table, values: Mapping[str, pa.Array]) -> pa.Array:
        kind = self.schema.field("deletion_vector").type
        position = pc.equal(values["content_type"], int(ContentType.POSITION_DELETES))
        places = [self._column(files, name, pa.int64()) for name in ("content_offset", "content_size_in_bytes")]
        for place, name in zip(places, ("content_offset", "content_size_in_bytes"), strict=True):
            missing = pc.indices_nonzero(pc.and_(position, place.is_null()))
            if len(missing):
                path = values["location"][missing[0].as_py()].as_py()
                raise ValidationError(f"{self.table}: {name} of file {path} is None: a deletion vector has one")
        children = [*places, pa.nulls(len(files), pa.binary())]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=pc.invert(position))

    # -- stats ------------------------------------------------------------------------------------------------------

    def _stats(self, files: pa.Table, values: Mapping[str, pa.Array]) -> pa.Array:
        rows = len(files)
        maps = {
            name: self._column(files, name, map_type(name)) for name in METRICS_MAP_IDS if name in files.column_names
        }
        stats = stats_of_maps(maps, self.stats, rows, self.table)
        sizes = dict(column_metric(maps["column_sizes"], self.stats, rows)) if "column_sizes" in maps else {}
        for field_id, metrics in stats.items():
            metrics.update(derived_stats(metrics, self.stats[field_id], sizes.get(field_id), rows))
        present = {one: _any_valid(children.values(), rows) for one, children in stats.items()}
        for spec_id in values["partition_spec_id"].unique().to_pylist():
            mask = pc.equal(values["partition_spec_id"], spec_id)
            for field in self.specs[spec_id]:
                if field.source is not None:
                    self._put(field, files, values, mask, stats.setdefault(field.source, {}))
                    known = present.get(field.source, pa.repeat(pa.scalar(False), rows))
                    present[field.source] = pc.or_(known, mask)
        kind = tree_stats_type(self.stats)
        structs = [_stats_struct(stats.get(int(one.name)), present, one, rows) for one in kind]
        return pa.StructArray.from_arrays(structs, fields=list(kind)) if structs else pa.array([{}] * rows, kind)

    def _put(
        self,
        field: TupleField,
        files: pa.Table,
        values: Mapping[str, pa.Array],
        mask: pa.Array,
        stats: dict[str, pa.Array],
    ) -> None:
        """Writes a partition value over the stats of its column or expression, for the rows of one spec."""
        value = self._partition_value(field, files, values, mask)
        records = values["record_count"]
        nan = pc.fill_null(pc.is_nan(value), False) if pa.types.is_floating(value.type) else None
        bound = value if nan is None else pc.if_else(nan, pa.scalar(None, value.type), value)
        own = {
            "lower_bound": bound,
            "upper_bound": bound,
            "tight_bounds": true_where(bound.is_valid()),
            "value_count": pc.coalesce(stats["value_count"], records) if "value_count" in stats else records,
            "null_value_count": pc.if_else(value.is_null(), records, pa.scalar(0, pa.int64())),
        }
        if nan is not None:
            own["nan_value_count"] = pc.if_else(nan, records, pa.scalar(0, pa.int64()))
        for child, new in own.items():
            old = stats.get(child, pa.nulls(len(files), new.type))
            stats[child] = pc.if_else(mask, new, old)

    def _partition_value(
        self, field: TupleField, files: pa.Table, values: Mapping[str, pa.Array], mask: pa.Array
    ) -> pa.Array:
        kind = bound_arrow_type(field.type)
        column = whole(files.column(PARTITION)) if PARTITION in files.column_names else None
        names = [one.name for one in column.type] if column is not None and pa.types.is_struct(column.type) else []
        name = next((one for one in field.names if one in names), None)
        missing = mask if name is None or column is None else pc.and_(mask, column.is_null())
        found = pc.indices_nonzero(missing)
        if len(found):
            path = values["location"][found[0].as_py()].as_py()
            raise ValidationError(f"{self.table}: partition of file {path} has no field {field.names[0]}")
        assert column is not None
        value = pc.struct_field(column, name)
        if field.type == "uuid" and pa.types.is_string(value.type):
            value = _uuid_bytes(value)
        try:
            return value.cast(kind)
        except (pa.ArrowException, ValueError) as error:
            raise ValidationError(f"{self.table}: partition.{name} of the files is {value.type}, not {kind}") from error


def _stats_struct(
    stats: Mapping[str, pa.Array] | None, present: Mapping[int, pa.Array], field: pa.Field, rows: int
) -> pa.StructArray:
    if stats is None:
        return pa.nulls(rows, field.type)
    children = [stats.get(one.name, pa.nulls(rows, one.type)).cast(one.type) for one in field.type]
    absent = pc.invert(present[int(field.name)])
    return pa.StructArray.from_arrays(children, fields=list(field.type), mask=absent)


def _any_valid(arrays: Iterable[pa.Array], rows: int) -> pa.Array:
    some = pa.repeat(pa.scalar(False), rows)
    for one in arrays:
        some = pc.or_(some, one.is_valid())
    return some


def _in(values: pa.Array, allowed: Iterable[Any]) -> pa.Array:
    return pc.is_in(values, pa.array(sorted(allowed), values.type))


def _uuid_bytes(values: pa.Array) -> pa.Array:
    texts = pc.replace_substring(values, "-", "").to_pylist()
    return pa.array([None if text is None else bytes.fromhex(text) for text in texts], pa.binary())
