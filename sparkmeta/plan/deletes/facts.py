"""Facts about all deletes of a group, by which a data file can take or leave them without looking at each."""

from __future__ import annotations

from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Final

from sparkmeta.columns import sql
from sparkmeta.plan.deletes.keys import OF_TABLE
from sparkmeta.plan.deletes.stats import extreme_bounds, extremes_decide, meets_all
from sparkmeta.plan.deletes.views import SEQUENCE, partition_key
from sparkmeta.spec.entry import ContentType

if TYPE_CHECKING:
    from sparkmeta.columns.sql import Sql
    from sparkmeta.plan.deletes.entries import DeleteEntries
    from sparkmeta.state import TableState

FACTS: Final = "facts_of_group"


def group_facts(group: Sql, deletes: DeleteEntries, state: TableState) -> Sql:
    """Return the facts of a group that mostly applies to a file as a whole or not at all; null for other groups.

    Such a group has only position deletes of one partition, or only equality deletes of one, or of the whole table.

    The facts are struct<lowest and highest sequence number, partition_key, is_equality, is_global, and for each of
    `equality_ids` the `extreme_bounds` of the deletes that compare it>.
    """
    first = sql.call("get", group, 0)

    def is_position_delete_of_same(delete: Sql) -> Sql:
        position = delete["content_type"] == int(ContentType.POSITION_DELETES)
        same = delete["partition_key"].eqNullSafe(first["partition_key"])
        return position & ~delete["is_dv"] & delete["data_path"].isNull() & same

    def is_equality_delete_of_same(delete: Sql) -> Sql:
        equality = delete["content_type"] == int(ContentType.EQUALITY_DELETES)
        same = delete["is_global"] | delete["partition_key"].eqNullSafe(first["partition_key"])
        return equality & (delete["is_global"] == first["is_global"]) & same

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
    of_equal = facts["partition_key"].eqNullSafe(partition_key(state))
    return sql.when(facts.isNotNull(), of_equal & ~(facts["is_equality"] & facts["is_global"]))
