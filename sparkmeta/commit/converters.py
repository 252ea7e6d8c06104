"""Build the converters of a table's new files to entries of its manifests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.transforms import VoidTransform

from sparkmeta.columns.bounds import ANY
from sparkmeta.commit.file_rows import FileRows, TupleField
from sparkmeta.commit.listed_rows import ListedRows
from sparkmeta.entries.projection import EntryProjection
from sparkmeta.spec.metadata import has_tree

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.partitioning import PartitionField

    from sparkmeta.state import TableState


def file_rows(state: TableState) -> FileRows:
    """Return the converter of a table's files to entries of a tree."""
    return FileRows(
        state.metadata.location,
        state.types.stats_types,
        _tuple_fields(state),
        state.metadata.default_spec_id,
        frozenset(state.types.primitive_fields),
    )


def listed_rows(state: TableState) -> ListedRows:
    """Return the converter for files of a table with manifest lists."""
    types = state.types
    partition = EntryProjection.of((), types.partition_fields).partition
    return ListedRows(
        state.metadata.location,
        types.column_types,
        _tuple_fields(state),
        state.metadata.default_spec_id,
        frozenset(types.primitive_fields),
        state.metadata.format_version,
        partition,
    )


def rows_of(state: TableState) -> FileRows:
    """Return the converter for a table's files to entries of its manifests."""
    return file_rows(state) if has_tree(state.metadata) else listed_rows(state)


def _tuple_fields(state: TableState) -> dict[int, tuple[TupleField, ...]]:
    """Return the fields of a table's partition specs by spec id."""
    names = state.types.partition_field_names
    specs = {}
    for spec_id, spec in state.specs.items():
        sources = dict(state.types.tuple_sources[spec_id]) if has_tree(state.metadata) else {}
        unwritable = state.types.unwritable_fields.get(spec_id, ())
        specs[spec_id] = tuple(
            TupleField(
                field.field_id,
                _names_in_rows(field, names),
                sources.get(field.field_id),
                ANY if field.field_id in unwritable else str(state.types.partition_types[field.field_id]),
                isinstance(field.transform, VoidTransform),
            )
            for field in spec.fields
        )
    return specs


def _names_in_rows(field: PartitionField, names: Mapping[int, str]) -> tuple[str, ...]:
    """Return the names that a partition field may have in rows of files: its own only if no other field has that."""
    name = names[field.field_id]
    return (name,) if field.name in names.values() else (name, field.name)
