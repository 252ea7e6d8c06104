"""Write equality delete files: the keys of rows to delete (table spec, Equality Delete Files). Spark jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc
from pyiceberg.schema import Schema, prune_columns
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.transforms import IdentityTransform, UnknownTransform, VoidTransform
from pyiceberg.types import DoubleType, FloatType, PrimitiveType, StructType, UnknownType
from pyspark.sql import functions as F

from sparkmeta.checks import NAMES
from sparkmeta.columns.sql import quoted
from sparkmeta.errors import UnsupportedError, ValidationError, shown
from sparkmeta.plan.deletes.views import is_global
from sparkmeta.plan.filter import is_live
from sparkmeta.plan.prune import live_manifests
from sparkmeta.session import map_arrow
from sparkmeta.spec.entry import ContentType
from sparkmeta.write.delete_options import of_deletes
from sparkmeta.write.files import (
    Arrangement,
    arranged_rows,
    checkpointed,
    data_file_tasks,
    written_files,
)
from sparkmeta.write.input import check_some, require_frame, way_to
from sparkmeta.write.key_range import count_and_range

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.partitioning import PartitionSpec
    from pyspark.sql import DataFrame

    from sparkmeta.state import TableState

DELETES_SINCE: Final = 2
"""The first format version with deletes of rows."""


@dataclass
class EqualityDeletes:
    """Deletes of the rows that have given keys in any data file of a snapshot.

    A partitioned delete file applies only to data files of its spec, so files are written for each spec of live data
    files and for the default spec. A delete file of an unpartitioned spec applies to all data files. If data files have
    such a spec, or the rows lack the columns of another spec, only unpartitioned files are written.

    Attributes:
        state: the table at the snapshot.
        rows: the keys and the partition source columns.
        keys: the field ids of the key.
        specs: the partition specs of the delete files.
        is_empty: whether no file was written because there are no keys; known once all files are written.
    """

    state: TableState
    rows: DataFrame
    keys: tuple[int, ...]
    specs: tuple[int, ...]
    is_empty: bool = True

    @staticmethod
    def of(state: TableState, rows: DataFrame, names: Sequence[str] | None) -> EqualityDeletes:
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
        require_frame(rows, table)
        schema = metadata.schema()
        keys = _key_ids(schema, names, table)
        sources = {field.source_id for spec in state.specs.values() for field in spec.fields}
        present = check_some(rows.schema, schema, [*keys, *sources.intersection(schema.field_ids)], table)
        for field_id in keys:
            if field_id not in present:
                name = schema.find_column_name(field_id)
                raise ValidationError(f"{table}: column {name} of the key is not in the rows")
        specs = _specs(state, present)
        needed = {field.source_id for spec_id in specs for field in state.specs[spec_id].fields}
        tops = {way_to(schema, field_id)[0].name for field_id in present.intersection({*keys, *needed})}
        rows = rows.select(*(quoted(field.name) for field in schema.fields if field.name in tops))
        return EqualityDeletes(state, checkpointed(rows) if len(specs) > 1 else rows, keys, specs)

    def write(self) -> Iterator[DataFrame]:
        """Write the files. Runs jobs.

        Yields:
            For each spec, one row per file with columns of `inspect.files`, checkpointed. Nothing if there are no keys.

        Raises:
            ValidationError: a required column has a null, or a table property has an invalid value.
            UnsupportedError: tasks can't write the table's files.
        """
        schema = self.state.metadata.schema()
        of_keys = prune_columns(schema, set(self.keys), select_full_types=False)
        for spec_id in self.specs:
            target = _target(self.state, spec_id)
            tasks = replace(data_file_tasks(target, schema, of_keys), sort_order_id=UNSORTED_SORT_ORDER.order_id)
            rows = arranged_rows(target, self.rows, Arrangement(UNSORTED_SORT_ORDER, None))
            files = written_files(self.state, map_arrow(rows, tasks.write, tasks.result_schema), tasks.name)
            if len(files.limit(1).toArrow()):
                self.is_empty = False
                yield files

    @property
    def limited_to(self) -> tuple[int, ...] | None:
        """The partition specs to whose data files the deletes apply; None for all data files."""
        return None if any(is_global(self.state.specs[spec_id]) for spec_id in self.specs) else self.specs

    @property
    def row_filter(self) -> BooleanExpression:
        """A filter that every row with one of the keys in its partition satisfies. Runs a job."""
        schema = self.state.metadata.schema()
        # Only an identity partition determines the value of its source column.
        sources = [
            {field.source_id for field in self.state.specs[spec_id].fields if field.transform == IdentityTransform()}
            for spec_id in self.specs
        ]
        ids = {*self.keys, *frozenset.intersection(*map(frozenset, sources))}
        fields = [field for field in schema.fields if field.field_id in ids]
        # Keys are never floating-point; bounds of such columns ignore NaN.
        tops = [field.name for field in fields if not isinstance(field.field_type, FloatType | DoubleType)]
        return count_and_range(self.rows, schema, tops, null_is_a_key=True)[1]


def _key_ids(schema: Schema, names: Sequence[str] | None, table: str) -> tuple[int, ...]:
    """Return the field ids of the key."""
    if names is not None:
        NAMES.check(f"{table}: equality_cols", names)
    given = sorted(schema.identifier_field_names()) if names is None else [*names]
    if not given:
        none = "the table's schema names no identifier fields" if names is None else "it names no column"
        raise ValidationError(f"{table}: an equality delete takes equality_cols: {none}")
    ids: list[int] = []
    for name in given:
        if name not in schema._name_to_id:
            raise ValidationError(f"{table}: column {name} of the key is not in the table")
        field_id = schema._name_to_id[name]
        kind, around = schema.find_type(field_id), way_to(schema, field_id)[:-1]
        if any(not isinstance(field.field_type, StructType) for field in around):
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
    needed = {state.metadata.default_spec_id} | _live_specs(state)
    everywhere = {spec_id for spec_id, spec in state.specs.items() if is_global(spec)}
    if everywhere & needed:
        return (max(everywhere & needed),)
    problems = [problem for spec_id in sorted(needed) for problem in _problems(state, state.specs[spec_id], present)]
    if not problems:
        return tuple(sorted(needed))
    if everywhere:
        return (max(everywhere),)
    raise ValidationError(
        f"{state.metadata.location}: the partitions of the keys are unknown: {'; '.join(dict.fromkeys(problems))}; "
        "and the table has no unpartitioned spec, whose deletes apply to all partitions"
    )


def _problems(state: TableState, spec: PartitionSpec, present: frozenset[int]) -> Iterator[str]:
    """Yield the reasons why partition values of rows can't be computed."""
    schema = state.metadata.schema()
    for field in spec.fields:
        if isinstance(field.transform, UnknownTransform):
            yield f"the transform {field.transform} of partition field {shown(field.name)} is unknown"
        elif not isinstance(field.transform, VoidTransform) and field.source_id not in present:
            name = schema.find_column_name(field.source_id)
            missing = "a dropped column" if name is None else f"column {name}, which the rows lack"
            yield f"partition field {shown(field.name)} is made from {missing}"


def _live_specs(state: TableState) -> set[int]:
    """Return the specs of the snapshot's live data files. Reads a tree's entries if there are several specs."""
    if len(state.specs) == 1:
        return set(state.specs)
    manifests = live_manifests(state.data_manifests)
    if state.tree is None:
        return set(manifests.column("partition_spec_id").to_pylist())
    entries = state.entries(manifests, state.projection(("version_info", "content_type", "partition_spec_id")))
    data = entries.where(is_live().text).where(F.col("content_type") == int(ContentType.DATA))
    return set(pc.unique(data.select("partition_spec_id").distinct().toArrow().column(0)).to_pylist())


def _target(state: TableState, spec_id: int) -> TableState:
    """Return the table with a default spec, and with delete-file properties instead of those for data files."""
    return replace(state, metadata=of_deletes(state.metadata, spec_id))
