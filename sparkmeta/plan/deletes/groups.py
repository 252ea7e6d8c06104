"""Deletes grouped by what they apply to: a data file, a partition or the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.entries.relation import frame_of, select
from sparkmeta.expr import sql
from sparkmeta.expr.arrays import whole
from sparkmeta.plan.choose import delete_projection, equality_ids, only_dvs
from sparkmeta.plan.deletes.rules import (
    NO_COLUMNS,
    NOT_A_DV,
    SEQUENCE,
    TWO_DVS,
    data_path,
    delete_struct,
    entry_view,
    extreme_bounds,
    extremes_decide,
    is_global,
    is_global_delete,
    meets_all,
    partition_key,
    repeated_paths,
    second_dv,
)
from sparkmeta.plan.filter import matching_deletes
from sparkmeta.plan.pairs import owners
from sparkmeta.spec.entry import ContentType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from sparkmeta.entries.relation import Relation
    from sparkmeta.expr.sql import Sql
    from sparkmeta.plan.choose import Choice
    from sparkmeta.snapshot.state import TableState


# -- The delete entries of a scan -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DeleteEntries:
    """The live delete entries of a scan.

    Attributes:
        entries: a table if they are few and the driver has read them; None if the scan opens no delete manifest.
        manifests: the manifests of the entries.
        equality_ids: every column that an equality delete compares; the stats of data files are read for these.
        broadcast: whether the entries are few enough to be broadcast.
        only_dvs: whether all are deletion vectors that name their data file.
        owners: small id of a leaf of a tree -> small id of the data leaf that it is affiliated to.
        encrypted: whether the entries have the key metadata of delete files.
    """

    entries: Relation | None
    manifests: pa.Table
    equality_ids: frozenset[int]
    broadcast: bool = False
    only_dvs: bool = False
    owners: Mapping[int, int] = field(default_factory=dict)
    encrypted: bool = False

    def sized(self, frame: DataFrame) -> DataFrame:
        """Return a relation of deletes with a join hint, since Spark can't size what Python decodes."""
        return F.broadcast(frame) if self.broadcast else frame.hint("shuffle_hash")


def delete_entries(choice: Choice) -> DeleteEntries:
    """Read the live entries of the delete manifests that are joined: on the driver if they are few, else lazily."""
    manifests, scan_filter, broadcast = choice.deletes, choice.pruned.filter, choice.broadcast
    if not len(manifests):
        return DeleteEntries(None, manifests, frozenset(), broadcast, encrypted=scan_filter.state.is_encrypted)
    state, are_dvs = scan_filter.state, choice.figures.only_dvs
    compared = frozenset() if are_dvs else equality_ids(scan_filter, manifests)
    if are_dvs is None:
        are_dvs = not compared and only_dvs(state, manifests, by_job=not broadcast)
    projection = delete_projection(scan_filter, compared)
    if choice.driver_groups:
        entries: Relation = state.reader.table(manifests, projection)
    else:
        entries = state.entries(manifests, projection, choice.delete_reading.placement)
    matching = matching_deletes(entries, scan_filter)
    of_leaves = owners(state, manifests)
    return DeleteEntries(matching, manifests, compared, broadcast, are_dvs, of_leaves, state.is_encrypted)


# -- The scope of a delete, and its join keys -------------------------------------------------------------------------
# Keys are hashes, which Spark groups and joins much faster than paths and tuples. Joined rows are therefore compared
# in full afterwards.


KEY: Final = "delete_key"

# The scopes of deletes. Each is also the name of the column with a data file's group of them.
OF_FILE: Final = "deletes_of_file"
OF_PARTITION: Final = "deletes_of_partition"
OF_TABLE: Final = "deletes_of_table"


def _hash(value: object) -> Sql:
    return sql.call("xxhash64", value)


def file_key(path: Sql) -> Sql:
    """Return the key of the deletes of one data file."""
    return _hash(path)


def data_key(scope: str, state: TableState) -> Sql:
    """Return the key by which a data entry finds the deletes of a scope."""
    if scope == OF_TABLE:
        return table_key()
    return file_key(sql.col("location")) if scope == OF_FILE else _hash(partition_key(state))


def table_key() -> Sql:
    """Return the key of the deletes of the whole table."""
    return _hash("every data file")


def delete_key(deletes: DeleteEntries, state: TableState) -> Sql:
    """Return the key of a delete entry. It fails for an entry that contradicts the known kinds of deletes."""
    if deletes.only_dvs:
        return file_key(dv_path())
    path = data_path()
    by_scope = sql.when(path.isNotNull(), file_key(path)).when(is_global_delete(state), table_key())
    key = by_scope.otherwise(_hash(partition_key(state)))
    if deletes.equality_ids:
        return key
    broken = NO_COLUMNS.broken({}, entry_view())
    return sql.when(broken, NO_COLUMNS.raised(sql.col("location"), as_type="bigint")).otherwise(key)


def is_of_file(delete: Sql) -> Sql:
    """Return whether a delete of a group applies only to the data entry's file."""
    return delete["data_path"] == sql.col("location")


def is_of_partition(delete: Sql, state: TableState) -> Sql:
    """Return whether a delete of a group applies to the data entry's partition."""
    return (
        delete["data_path"].isNull() & ~delete["is_global"] & delete["partition_key"].eqNullSafe(partition_key(state))
    )


def dv_path() -> Sql:
    """Return the data file of a deletion vector. It fails for other deletes, which would be lost."""
    failure = NOT_A_DV.raised(sql.col("location"), as_type="string")
    return sql.when(~NOT_A_DV.broken({}, entry_view()), sql.col("referenced_file")).otherwise(failure)


# -- Facts about all deletes of a group -------------------------------------------------------------------------------


FACTS: Final = "facts_of_group"


def group_facts(group: Sql, deletes: DeleteEntries, state: TableState) -> Sql:
    """Return the facts of a group whose deletes mostly all apply to a file, or none; null for other groups.

    Such a group has only position deletes of one partition, only equality deletes of one partition, or only equality
    deletes of the whole table.

    The facts are struct<lowest and highest sequence number, partition_key, is_equality, is_global, and for each of
    `equality_ids` the `extreme_bounds` of the deletes that compare it>.
    """
    first = sql.call("get", group, 0)

    def is_position_delete_of_same(delete: Sql) -> Sql:
        position = delete["content_type"] == int(ContentType.POSITION_DELETES)
        is_same_partition = delete["partition_key"].eqNullSafe(first["partition_key"])
        return position & ~delete["is_dv"] & delete["data_path"].isNull() & is_same_partition

    def is_equality_delete_of_same(delete: Sql) -> Sql:
        equality = delete["content_type"] == int(ContentType.EQUALITY_DELETES)
        is_same_partition = delete["is_global"] | delete["partition_key"].eqNullSafe(first["partition_key"])
        return equality & (delete["is_global"] == first["is_global"]) & is_same_partition

    columns = {
        field_id: sql.filter(group, lambda delete: compares(delete, field_id))  # noqa: B023  called at once
        for field_id in compared_ids(deletes, state)
    }
    all_alike = sql.forall(group, is_position_delete_of_same)
    if deletes.equality_ids:
        decided = (extremes_decide(comparing, field_id, state) for field_id, comparing in columns.items())
        all_alike = all_alike | reduce(and_, decided, sql.forall(group, is_equality_delete_of_same))
    facts = sql.struct(
        first["sequence_number"].alias("lowest"),
        sql.call("element_at", group, -1)["sequence_number"].alias("highest"),
        first["partition_key"].alias("partition_key"),
        (first["content_type"] == int(ContentType.EQUALITY_DELETES)).alias("is_equality"),
        first["is_global"].alias("is_global"),
        *(extreme_bounds(comparing, field_id, state).alias(f"f{field_id}") for field_id, comparing in columns.items()),
    )
    return sql.when(all_alike, facts)


def compared_ids(deletes: DeleteEntries, state: TableState) -> list[int]:
    """Return the columns that equality deletes compare and that files have stats of."""
    return [field_id for field_id in sorted(deletes.equality_ids) if field_id in state.types.primitive_fields]


def compares(delete: Sql, field_id: int) -> Sql:
    """Return SQL for whether a delete of a group compares a column."""
    return sql.coalesce(sql.array_contains(delete["equality_ids"], field_id), False)


def all_apply(scope: str, deletes: DeleteEntries, state: TableState) -> Sql:
    """Return SQL that is true only if all deletes of a group apply to a data file.

    It may be false for equality deletes that all apply.

    Args:
        scope: the column of the facts, named as what the group is about.
        deletes: all deletes of the scan.
        state: the table.
    """
    facts, sequence = sql.col(scope), sql.col(SEQUENCE)
    positions = ~facts["is_equality"] & (facts["lowest"] >= sequence)
    equality = [facts["is_equality"], facts["lowest"] > sequence]
    for field_id in compared_ids(deletes, state):
        equality += meets_all(facts[f"f{field_id}"], field_id, state)
    return sql.coalesce(_are_about(scope, state) & (positions | reduce(and_, equality)), False)


def none_applies(scope: str, key: Sql, state: TableState) -> Sql:
    """Return SQL that is true only if there is no group, or its deletes are too old to apply to a data file.

    Args:
        scope: the column of the facts.
        key: the group's key, null where there is none.
        state: the table.
    """
    facts, sequence = sql.col(scope), sql.col(SEQUENCE)
    too_old = (facts["highest"] < sequence) | (facts["is_equality"] & (facts["highest"] == sequence))
    return key.isNull() | sql.coalesce(~_are_about(scope, state) | too_old, False)


def _are_about(scope: str, state: TableState) -> Sql:
    """Return SQL for whether facts are of the data file's group. Another group may have the same hash."""
    facts = sql.col(scope)
    if scope == OF_TABLE:
        return facts["is_global"]
    is_same_partition = facts["partition_key"].eqNullSafe(partition_key(state))
    return sql.when(facts.isNotNull(), is_same_partition & ~(facts["is_equality"] & facts["is_global"]))


# -- Deletes grouped by key -------------------------------------------------------------------------------------------


GROUP: Final = "group_of_deletes"


@dataclass(frozen=True)
class DeleteGroups:
    """The deletes of a scan, grouped.

    Attributes:
        grouped: the columns `KEY` and `GROUP`; an Arrow table where the driver has the deletes.
        scopes: the scopes that deletes have or may have, of `OF_FILE`, `OF_PARTITION` and `OF_TABLE`.
    """

    grouped: DataFrame | pa.Table
    scopes: Sequence[str]

    def frame(self, deletes: DeleteEntries, state: TableState) -> DataFrame:
        """Return the groups with their `FACTS`, unless all groups are of files.

        The frame fails, when it runs, for two DVs of one file: the check is part of the key, which no optimizer drops.
        """
        rows = frame_of(self.grouped, state)
        group = sql.col(GROUP)
        path = second_dv(group)
        key = sql.when(path.isNotNull(), TWO_DVS.raised(path, as_type="bigint")).otherwise(sql.col(KEY))
        facts = [] if self.scopes == [OF_FILE] else [group_facts(group, deletes, state).alias(FACTS).selected]
        return rows.selectExpr(key.alias(KEY).selected, GROUP, *facts)


def delete_groups(entries: Relation, deletes: DeleteEntries, state: TableState) -> DeleteGroups:
    """Group the delete entries by data file, partition or table: on the driver if it has read them, else by a job.

    Args:
        entries: the entries. The driver joins a table by its keys, and Spark joins a DataFrame by its own.
        deletes: all deletes.
        state: the table.
    """
    keyed = select(
        entries,
        [delete_key(deletes, state).alias(KEY), delete_struct(state, encrypted=deletes.encrypted).alias("delete")],
    )
    if isinstance(deletes.entries, pa.Table):
        rows = keyed if isinstance(keyed, pa.Table) else keyed.toArrow()
        return DeleteGroups(_grouped(rows), _scopes(rows.column("delete")))
    assert not isinstance(keyed, pa.Table)
    scopes = [OF_FILE] if deletes.only_dvs else [OF_FILE, OF_PARTITION]
    if deletes.equality_ids and any(map(is_global, state.specs.values())):
        scopes.append(OF_TABLE)
    return DeleteGroups(keyed.groupBy(KEY).agg(F.expr(f"sort_array(collect_list(delete)) AS {GROUP}")), scopes)


def refuse_second_dvs(groups: pa.Table) -> None:
    """Raise ValidationError for two DVs of one file in groups on the driver."""
    deletes = whole(groups.column(GROUP)).flatten()
    repeated = repeated_paths(deletes.field("data_path").filter(deletes.field("is_dv")))
    TWO_DVS.refuse(repeated.is_valid(), lambda row: (repeated[row],))


def _scopes(deletes: pa.ChunkedArray) -> list[str]:
    of_file, of_table = pc.struct_field(deletes, "data_path").is_valid(), pc.struct_field(deletes, "is_global")
    by_scope = {OF_FILE: of_file, OF_PARTITION: pc.invert(pc.or_(of_file, of_table)), OF_TABLE: of_table}
    return [scope for scope, is_of in by_scope.items() if pc.any(is_of).as_py()]


def _grouped(keyed: pa.Table) -> pa.Table:
    """Group rows of a key and a delete as Spark's `sort_array(collect_list(delete))` does."""
    fields = ("sequence_number", "manifest", "ordinal")  # the first of a delete, and together unique
    columns = {KEY: keyed.column(KEY), **{name: pc.struct_field(keyed.column("delete"), name) for name in fields}}
    order = pc.sort_indices(pa.table(columns), [(name, "ascending") for name in columns])
    keys, deletes = (whole(keyed.column(name)).take(order) for name in (KEY, "delete"))
    runs = pc.run_end_encode(keys)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), runs.run_ends])
    return pa.table({KEY: runs.values, GROUP: pa.ListArray.from_arrays(offsets, deletes)})
