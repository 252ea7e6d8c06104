"""Find the files that a commit removes by a row filter or by the partitions of new files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.columns import sql
from sparkmeta.columns.fields import SchemaFields
from sparkmeta.columns.filter_text import as_text
from sparkmeta.columns.predicate import parse_filter, referenced_names
from sparkmeta.commit.candidates import leaves_of_partitions, live_leaves
from sparkmeta.commit.named import Searches, dvs_of, many_dvs_of
from sparkmeta.commit.partitions import PARTITION_KEY, keys_of, new_partitions, replaces_everything
from sparkmeta.commit.removal import Removal, removal_of, removal_of_rows
from sparkmeta.commit.search import FEW_FILES, SEARCH_COLUMNS, LeafMemo, live_entries
from sparkmeta.errors import CommitConflictError, InvalidFilterError, ValidationError, shown
from sparkmeta.plan.deletes.views import partition_key
from sparkmeta.plan.filter import ScanFilter, all_rows_match, matching_entries
from sparkmeta.plan.prune import matching_manifests
from sparkmeta.session import local_frame, materialize
from sparkmeta.spec.entry import ContentType

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyspark.sql import DataFrame

    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.state import TableState

_ALL_MATCH = "all_match"


def refuse_other_columns(
    filters: Iterable[BooleanExpression | str], started: TableMetadata, current: TableMetadata
) -> None:
    """Refuse filters with names of columns that others have renamed, deleted or replaced since an operation began.

    Raises:
        CommitConflictError: a name belongs to another column, or to none.
        InvalidFilterError: there was no such column when the operation began.
    """
    if started.current_schema_id == current.current_schema_id:
        return
    before, after = SchemaFields(started.schema()), SchemaFields(current.schema())
    for row_filter in map(parse_filter, filters):
        for name in sorted(referenced_names(row_filter)):
            if _field_id(after, name) != before.find(name).field.field_id:
                problem = f"others have renamed, deleted or replaced column {shown(name)}"
                raise CommitConflictError(f"{current.location}: {problem} of the filter {as_text(row_filter)}")


def _field_id(fields: SchemaFields, name: str) -> int | None:
    try:
        return fields.find(name).field.field_id
    except InvalidFilterError:
        return None


@dataclass
class FilteredFiles:
    """Finds the data files whose rows all match a filter."""

    row_filter: BooleanExpression | str
    _memo: LeafMemo = field(default_factory=LeafMemo)

    def find(self, state: TableState, searches: Searches) -> Removal:
        """Find the live files that match, and their deletion vectors.

        Raises:
            ValidationError: a file may match only partly.
        """
        scan = ScanFilter.of(state, self.row_filter)
        leaves = matching_manifests(live_leaves(state, ContentType.DATA_MANIFEST), scan)
        judged = _Matching(state, self._memo, _narrow(state).append(pa.field(_ALL_MATCH, pa.bool_())))
        entries = judged.entries(leaves, lambda fresh: self._judged(scan, fresh))
        if isinstance(entries, pa.Table):
            self._refuse_partly(state, entries.filter(pc.invert(entries.column(_ALL_MATCH))))
            return _with_dvs(state, entries.drop_columns([_ALL_MATCH]), searches)
        self._refuse_partly(state, entries.where(~F.col(_ALL_MATCH)).limit(1).toArrow())
        return _many_with_dvs(state, entries.drop(_ALL_MATCH))

    def _judged(self, scan: ScanFilter, leaves: pa.Table) -> DataFrame:
        """Return the entries that may match, and whether all of their rows match."""
        state = scan.state
        candidates = matching_entries(state.entries(leaves, state.projection(SEARCH_COLUMNS, scan.filter_ids)), scan)
        all_match = all_rows_match(scan).alias(_ALL_MATCH)
        return candidates.selectExpr(*map(sql.quoted, _narrow(state).names), all_match.selected)

    def _refuse_partly(self, state: TableState, partly: pa.Table) -> None:
        if len(partly):
            raise ValidationError(
                f"{state.metadata.location}: cannot delete {partly.column('location')[0]} as a whole: some of its rows "
                f"may not match {as_text(parse_filter(self.row_filter))}"
            )


@dataclass
class ReplacedFiles:
    """Finds the data files in the partitions of new files.

    If a new file has an unpartitioned spec, these are all files of all specs (semantics 12.4).
    """

    files: DataFrame
    _memo: LeafMemo = field(default_factory=LeafMemo)

    def find(self, state: TableState, searches: Searches) -> Removal:
        """Find the live files in these partitions, and their deletion vectors."""
        leaves = live_leaves(state, ContentType.DATA_MANIFEST)
        partitions = materialize(new_partitions(state, self.files))
        if replaces_everything(state, partitions):
            matching = partial(live_entries, state)
        else:
            head = partitions.limit(FEW_FILES + 1).toArrow()
            few = len(head) <= FEW_FILES
            leaves = leaves_of_partitions(state, leaves, head) if few else leaves
            matching = partial(_in_partitions, state, partitions=F.broadcast(partitions) if few else partitions)
        entries = _Matching(state, self._memo, _narrow(state)).entries(leaves, matching)
        if isinstance(entries, pa.Table):
            return _with_dvs(state, entries, searches)
        return _many_with_dvs(state, entries)


def _in_partitions(state: TableState, leaves: pa.Table, partitions: DataFrame) -> DataFrame:
    same = partition_key(state).eqNullSafe(sql.col(PARTITION_KEY)).column()
    return live_entries(state, leaves).join(keys_of(state, partitions), same, "left_semi")


@dataclass(frozen=True)
class _Matching:
    """Collects matching entries. If they are few, keeps them on the driver and remembers them for the next attempt.

    Attributes:
        memo: the entries found by earlier attempts.
        schema: the schema of the entries.
    """

    state: TableState
    memo: LeafMemo
    schema: pa.Schema

    def entries(self, leaves: pa.Table, matching: Callable[[pa.Table], DataFrame]) -> pa.Table | DataFrame:
        """Return the matching entries of leaves.

        Args:
            leaves: rows of `state.manifests`.
            matching: reads the matching entries of leaves that earlier attempts have not searched.
        """
        known, fresh = self.memo.recall(self.state, leaves, self.schema)
        if not len(fresh):
            return known
        entries = materialize(matching(fresh).select(*self.schema.names))
        head = entries.limit(FEW_FILES + 1).toArrow()
        if len(head) > FEW_FILES:
            return entries.unionByName(local_frame(self.state.spark, known))
        head = head.cast(self.schema)
        self.memo.keep(self.state, fresh, head)
        return pa.concat_tables([known, head]).combine_chunks()


def _narrow(state: TableState) -> pa.Schema:
    return state.projection(SEARCH_COLUMNS).schema


def _with_dvs(state: TableState, data: pa.Table, searches: Searches) -> Removal:
    """Return the removal of data files and their deletion vectors."""
    return removal_of_rows(pa.concat_tables([data, dvs_of(state, data, searches)]), state)


def _many_with_dvs(state: TableState, data: DataFrame) -> Removal:
    dvs = many_dvs_of(state, data)
    return removal_of(data.unionByName(dvs.select(*data.columns)), state)
