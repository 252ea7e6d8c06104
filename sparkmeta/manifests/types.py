"""The types of values in a table's manifests, over all schemas and partition specs of the table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from pyiceberg.schema import Schema, index_by_id
from pyiceberg.transforms import IdentityTransform, TruncateTransform, VoidTransform
from pyiceberg.types import IcebergType, NestedField, PrimitiveType, StructType

from sparkmeta.entries.projection import FILE_COLUMNS, EntryProjection, SpecTuples
from sparkmeta.errors import ValidationError
from sparkmeta.expr.bounds import ANY, reads_as
from sparkmeta.manifests.v4.layout import TreeTypes
from sparkmeta.spec.avro_name import avro_name
from sparkmeta.spec.entry import DELETE_FILE_PATH_ID
from sparkmeta.spec.metadata import tree_layout
from sparkmeta.spec.metadata_model import TableMetadataV4, locations_of
from sparkmeta.spec.partitioning import (
    expression_of,
    partition_type,
    source_type,
    spec_partition_type,
    stats_field_id,
    with_unique_ids,
)
from sparkmeta.spec.transforms import has_unknown_values
from sparkmeta.spec.tree_layout import PROPOSAL

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionField, PartitionSpec

    from sparkmeta.spec.functions import Function
    from sparkmeta.spec.locations import Locations
    from sparkmeta.spec.metadata import Snapshot, TableMetadata
    from sparkmeta.spec.partitioning import Expression

# Reserved columns of delete files: field id -> Iceberg type name.
_METADATA_FIELDS = {DELETE_FILE_PATH_ID: "string"}


class ColumnFunction(NamedTuple):
    """A function that is applied to a column.

    Attributes:
        source_id: the id of the column.
        function: the function.
        field: a field of the function's values, with the id of the expression.
    """

    source_id: int
    function: Function
    field: NestedField


# Metadata may refer to its types, so a comparison by value would not end.
@dataclass(frozen=True, eq=False)
class TableTypes:
    """The types of columns, partition values and stats in a snapshot's manifests.

    Attributes:
        metadata: the table's metadata.
        snapshot: the snapshot; None for an empty table.
    """

    metadata: TableMetadata
    snapshot: Snapshot | None

    # -- columns ----------------------------------------------------------------------------------------------------

    @cached_property
    def schemas(self) -> dict[int, Schema]:
        """The table's schemas by id."""
        return {schema.schema_id: schema for schema in self.metadata.schemas}

    @property
    def _named_schema(self) -> Schema | None:
        """The schema that the snapshot names, or the table's if it names none; None if it is not in the metadata."""
        schema_id = self.snapshot.schema_id if self.snapshot else None
        return self.metadata.schema() if schema_id is None else self.schemas.get(schema_id)

    @property
    def snapshot_schema(self) -> Schema:
        """The schema that the snapshot was written with, or the table's if the snapshot names none.

        Raises:
            ValidationError: the table's metadata does not have the schema.
        """
        schema = self._named_schema
        if schema is None:
            assert self.snapshot is not None
            subject = f"{self.metadata.location}: snapshot {self.snapshot.snapshot_id}"
            raise ValidationError(
                f"{subject} has schema-id {self.snapshot.schema_id}: no such schema is in the metadata"
            )
        return schema

    @cached_property
    def typing_schema(self) -> Schema:
        """The schema that types values in manifests.

        This is the table's schema, which includes every type promotion. If the table's schema reuses a column id for
        another type, as after a replacement of the table, it is the snapshot's schema if the metadata contains it.
        """
        current = self.metadata.schema()
        named = self._named_schema or current
        types = {field_id: str(field.field_type) for field_id, field in index_by_id(current).items()}
        promoted = all(
            field_id not in types or reads_as(str(field.field_type), types[field_id])
            for field_id, field in _primitives(index_by_id(named)).items()
        )
        return current if promoted else named

    @cached_property
    def fields(self) -> Mapping[int, NestedField]:
        """Every column of any schema of the table, by field id; `typing_schema` takes precedence."""
        fields: dict[int, NestedField] = {}
        schemas = sorted(self.metadata.schemas, key=lambda schema: schema.schema_id)
        for schema in [*schemas, self.typing_schema]:
            fields.update(index_by_id(schema))
        return fields

    @cached_property
    def functions(self) -> dict[int, ColumnFunction]:
        """Expression id -> the column and function whose values the expression's statistics describe."""
        functions: dict[int, ColumnFunction] = {}
        for expression in self._expressions:
            function = expression.function
            source = self.fields.get(expression.source_ids[0]) if len(expression.source_ids) == 1 else None
            if function is not None and source is not None and function.can_transform(source.field_type):
                kind, name = function.result_type(source.field_type), function.of(source.name)
                field = NestedField(expression.expr_id, name, kind, required=False)
                functions[expression.expr_id] = ColumnFunction(source.field_id, function, field)
        return functions

    @cached_property
    def expressions(self) -> dict[tuple[int, str], int]:
        """(Column id, function) -> id of the expression whose statistics describe the function's values."""
        return {(each.source_id, str(each.function)): expr_id for expr_id, each in self.functions.items()}

    @cached_property
    def measured_ids(self) -> frozenset[int]:
        """The ids of columns and functions that may have stats."""
        return frozenset({*self.primitive_fields, *self.functions})

    @cached_property
    def primitive_fields(self) -> dict[int, NestedField]:
        """The columns in `fields` that have metrics."""
        return _primitives(self.fields)

    @cached_property
    def column_types(self) -> dict[int, str]:
        """The Iceberg type names of `primitive_fields`."""
        return {field_id: str(field.field_type) for field_id, field in self.primitive_fields.items()}

    @cached_property
    def cached_types(self) -> dict[int, str]:
        """The types of all columns that may have metrics in manifests, including reserved columns of delete files."""
        return self.column_types | _METADATA_FIELDS

    def field_type(self, field_id: int) -> str:
        """Return the Iceberg type name of a function, or of a column from the newest schema that has it."""
        if field_id in _METADATA_FIELDS:
            return _METADATA_FIELDS[field_id]
        if field_id in self.functions:
            return str(self.functions[field_id].field.field_type)
        return str(self.fields[field_id].field_type)

    @cached_property
    def has_all_schemas(self) -> bool:
        """Whether the metadata contains every schema that files may have been written with.

        A gap in the ids of schemas or columns shows that schemas were removed. If the newest schema was removed and
        had no new column, there is no gap.
        """
        ids = range(1, self.metadata.last_column_id + 1)
        used_ids = {*self.fields, *(expression.expr_id for expression in self._expressions)}
        return len(self.schemas) > max(self.schemas) and sum(used_id in ids for used_id in used_ids) == len(ids)

    @cached_property
    def widened_decimals(self) -> frozenset[int]:
        """The ids of decimal columns, and of stats of decimals, that may have a lower precision in some files."""
        names: dict[int, set[str]] = defaultdict(set)
        for schema in self.metadata.schemas:
            for field_id, field in index_by_id(schema).items():
                names[field_id].add(str(field.field_type))
        decimals = {field_id for field_id, types in names.items() if any(map(_is_decimal, types))}
        widened = {field_id for field_id in decimals if len(names[field_id]) > 1 or not self.has_all_schemas}
        if widened and isinstance(self.metadata, TableMetadataV4):
            # Expressions of decimals have separate stats.
            widened |= {
                source for source, name in self.stats_types.items() if source not in names and _is_decimal(name)
            }
        return frozenset(widened)

    def always_required(self, field_id: int) -> bool:
        """Return whether every schema that contains a column requires it, so that no file contains a null.

        False for nested columns, since a required field of a null struct is null.
        """
        schemas = [schema for schema in self.metadata.schemas if field_id in schema.field_ids]
        top_level = [{field.field_id: field.required for field in schema.fields} for schema in schemas]
        return all(fields.get(field_id, False) for fields in top_level)

    # -- partitions -------------------------------------------------------------------------------------------------

    @cached_property
    def specs(self) -> dict[int, PartitionSpec]:
        """The table's partition specs by id, with partition field ids that are unique over all specs."""
        return with_unique_ids(self.metadata.specs(), self.metadata.default_spec_id)

    @cached_property
    def spec_tuples(self) -> SpecTuples:
        """The partition fields of all specs; see `EntryProjection`."""
        return tuple(
            (
                spec_id,
                tuple(
                    (field.field_id, unique.field_id, avro_name(field.name))
                    for field, unique in zip(spec.fields, self.specs[spec_id].fields, strict=True)
                ),
            )
            for spec_id, spec in self.metadata.specs().items()
        )

    @cached_property
    def partition_ids(self) -> tuple[tuple[int, tuple[tuple[int, int], ...]], ...]:
        """Spec id -> (partition field id in its manifests, unique id), for specs in which these differ."""
        ids = ((spec_id, tuple(field[:2] for field in fields)) for spec_id, fields in self.spec_tuples)
        return tuple((spec_id, pairs) for spec_id, pairs in ids if any(a != b for a, b in pairs))

    @cached_property
    def partition_type(self) -> StructType:
        """The type of `partition` in metadata tables: the union of the fields of all specs.

        If several fields share a name, the newest spec's field keeps it, and the others get their ids as suffixes.
        """
        union = partition_type(self.specs.values(), self.metadata.schemas, self.typing_schema, active_only=True)
        names = self.partition_field_names
        return StructType(*(field.model_copy(update={"name": names[field.field_id]}) for field in union.fields))

    @cached_property
    def partition_field_names(self) -> dict[int, str]:
        """Partition field id -> a unique name, for the fields of all specs.

        The fields of `partition_type` keep their names, and come first. The others, whose source columns were
        dropped, are named by the same rule.
        """
        column_ids = self.typing_schema.field_ids
        newest_first = sorted(self.specs.values(), key=lambda spec: spec.spec_id, reverse=True)
        fields = [field for spec in newest_first for field in spec.fields]
        names: dict[int, str] = {}
        # If a field has several names, use the name in the newest spec with its source column.
        for field in sorted(fields, key=lambda field: field.source_id not in column_ids):
            if field.field_id in names:
                continue
            name = field.name
            while name in names.values():
                name = f"{name}_{field.field_id}"
            names[field.field_id] = name
        return names

    @cached_property
    def spec_fields(self) -> dict[int, list[tuple[int, str]]]:
        """Spec id -> (partition field id, Iceberg type name) of its fields, in the spec's order.

        A field has the same type in all specs. Specs in which it is void use the type of the others. It is `ANY` if the
        transform is unknown, or if its values have the type of a column that no schema has, as after an expiry that
        removed schemas.
        """
        untyped = {
            field.field_id
            for spec in self.specs.values()
            for field in spec.fields
            if has_unknown_values(field.transform) or self._has_lost_type(field)
        }
        names = {field_id: ANY if field_id in untyped else str(kind) for field_id, kind in self.partition_types.items()}
        return {
            spec_id: [(field.field_id, names[field.field_id]) for field in spec.fields]
            for spec_id, spec in self.specs.items()
        }

    @cached_property
    def unwritable_fields(self) -> dict[int, tuple[int, ...]]:
        """Spec id -> its partition fields whose values can't be written, for specs that have any.

        Their transform is unknown, or the table is a tree, which has values only as stats of columns, and no schema has
        the column. Manifests of versions 1 to 3 hold values of such a column as text.
        """
        is_tree = isinstance(self.metadata, TableMetadataV4)
        unwritable = {
            spec_id: tuple(
                field.field_id
                for field in spec.fields
                if has_unknown_values(field.transform) or (is_tree and self._has_lost_type(field))
            )
            for spec_id, spec in self.specs.items()
        }
        return {spec_id: fields for spec_id, fields in unwritable.items() if fields}

    def _has_lost_type(self, field: PartitionField) -> bool:
        has_source_type = isinstance(field.transform, IdentityTransform | TruncateTransform)
        return has_source_type and source_type(field.source_id, self.metadata.schemas) is None

    @cached_property
    def partition_types(self) -> dict[int, IcebergType]:
        """Partition field id -> the type of its values, string for `ANY`; see `spec_fields`."""
        voids: dict[int, IcebergType] = {}
        valued: dict[int, IcebergType] = {}
        for spec in self.specs.values():
            kinds = spec_partition_type(spec, self.metadata.schemas, self.typing_schema).fields
            for field, kind in zip(spec.fields, kinds, strict=True):
                types = voids if isinstance(field.transform, VoidTransform) else valued
                types[field.field_id] = kind.field_type
        return voids | valued

    @cached_property
    def partition_fields(self) -> dict[int, str]:
        """The fields of `partition` in entries: partition field id -> Iceberg type name.

        Values of unknown type are text (`ANY`), which can only be compared for equality.
        """
        return dict(field for _, fields in sorted(self.spec_fields.items()) for field in fields)

    @cached_property
    def partition_names(self) -> dict[int, list[tuple[int, str]]]:
        """Spec id -> (partition field id, name in manifests) of its fields."""
        return {
            spec_id: [(field.field_id, avro_name(field.name)) for field in spec.fields]
            for spec_id, spec in self.specs.items()
        }

    # -- statistics -------------------------------------------------------------------------------------------------

    @cached_property
    def stats_types(self) -> dict[int, str]:
        """The ids of columns and expressions that may have stats -> Iceberg type names."""
        functions = {expr_id: self.field_type(expr_id) for expr_id in self.functions}
        return (
            self.column_types
            | functions
            | {
                source: self.partition_fields[field_id]
                for fields in self.tuple_sources.values()
                for field_id, source in fields
                if source not in self.column_types
            }
        )

    @property
    def _expressions(self) -> Sequence[Expression]:
        return self.metadata.expressions if isinstance(self.metadata, TableMetadataV4) else ()

    @cached_property
    def tuple_sources(self) -> dict[int, tuple[tuple[int, int], ...]]:
        """Spec id -> (partition field id, id of the stats that hold the value) of its fields, except void ones."""
        return {
            spec_id: tuple(
                (unique.field_id, source)
                for field, unique in zip(spec.fields, self.specs[spec_id].fields, strict=True)
                if self.partition_fields[unique.field_id] != ANY and (source := self._source(spec, field)) is not None
            )
            for spec_id, spec in self.metadata.specs().items()
        }

    def _source(self, spec: PartitionSpec, field: PartitionField) -> int | None:
        """Return the id of the stats that hold a partition field's value; None for a void field.

        Metadata of trees in the Iceberg project's layout may have no expression for the field: in memory, the values
        are then stats with the negative id of the field.
        """
        is_keyed = isinstance(field.transform, IdentityTransform | VoidTransform)
        if is_keyed or tree_layout(self.metadata) == PROPOSAL:
            return stats_field_id(self._expressions, spec, field)
        expression = expression_of(self._expressions, spec, field)
        return -field.field_id if expression is None else expression.expr_id

    def has_tuples_of(self, earlier: TableTypes) -> bool:
        """Return whether trees hold the partitions of an earlier state's specs as stats with the same ids.

        An upgrade gives expressions new ids if it follows a downgrade.
        """
        return all(self.tuple_sources.get(spec_id) == pairs for spec_id, pairs in earlier.tuple_sources.items())

    def spark_reads_stats(self, projection: EntryProjection) -> bool:
        """Return whether Spark's Parquet reader widens the stats of V4 leaves that a projection needs.

        It reads days as nanoseconds if a date was promoted to timestamp_ns.
        """
        names = self.tree_types.stats_of(projection)
        return not self._were_dates({field_id for field_id, name in names.items() if name == "timestamp_ns"})

    def spark_reads_partitions(self, projection: EntryProjection) -> bool:
        """Return whether Spark's Parquet reader widens the partition values of manifests; see `spark_reads_stats`."""
        nanos = {field_id for field_id, name in projection.partition if name == "timestamp_ns"}
        fields = (field for spec in self.specs.values() for field in spec.fields)
        return not self._were_dates({field.source_id for field in fields if field.field_id in nanos})

    def _were_dates(self, field_ids: Collection[int]) -> bool:
        """Return whether one of the columns is a date in any schema."""
        earlier = (index_by_id(schema).get(field_id) for schema in self.metadata.schemas for field_id in field_ids)
        return any(field is not None and str(field.field_type) == "date" for field in earlier)

    # -- for readers ------------------------------------------------------------------------------------------------

    @cached_property
    def locations(self) -> Locations:
        """The rules by which the table's metadata names files."""
        return locations_of(self.metadata)

    @cached_property
    def tree_types(self) -> TreeTypes:
        """The types that tasks need to read V4 manifests."""
        columns = frozenset(self.primitive_fields)
        return TreeTypes(self.stats_types, columns, self.spec_fields, self.tuple_sources, self.spec_tuples)

    def projection(self, columns: Iterable[str] = FILE_COLUMNS, stats: Iterable[int] = ()) -> EntryProjection:
        """Return a projection with the whole partition tuple.

        Args:
            columns: top-level fields of the content entry.
            stats: ids of the columns whose stats are read.
        """
        types = {field_id: self.field_type(field_id) for field_id in stats}
        return EntryProjection.of(columns, self.partition_fields, types, self.spec_tuples)


def table_types(metadata: TableMetadata, snapshot: Snapshot | None) -> TableTypes:
    """Return the types in a snapshot's manifests. Snapshots and versions of a table with equal types share them."""
    schema_id = None if snapshot is None else snapshot.schema_id
    if schema_id is not None and all(schema.schema_id != schema_id for schema in metadata.schemas):
        return TableTypes(metadata, snapshot)
    key = TableTypes, schema_id, tree_layout(metadata)
    if key not in metadata.derived:
        metadata.derived[key] = TableTypes(metadata, snapshot)
    types: TableTypes = metadata.derived[key]
    return types


def _is_decimal(type_name: str) -> bool:
    return type_name.startswith("decimal")


def _primitives(fields: Mapping[int, NestedField]) -> dict[int, NestedField]:
    return {field_id: field for field_id, field in fields.items() if isinstance(field.field_type, PrimitiveType)}
