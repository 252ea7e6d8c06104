"""Matching by joins: every data entry gets the array of the deletes that apply to it.

Deletes are grouped and joined by their scope:

- DVs and file-scoped position deletes by the path of their data file
- partition-scoped position deletes and partitioned equality deletes by (spec, partition)
- global equality deletes without a key

A data file gets the deletes of a group that its sequence number and, for equality deletes, its stats don't rule out. It
gets the whole group if the group's facts show that every member applies.
"""

from __future__ import annotations

from functools import partial, reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.entries.projection import MANIFEST, EntryProjection
from sparkmeta.entries.relation import collected, frame_of, with_columns
from sparkmeta.expr import evaluate, sql
from sparkmeta.expr.arrays import whole
from sparkmeta.expr.sql import Aliased, Sql
from sparkmeta.plan import costs
from sparkmeta.plan.deletes.groups import (
    FACTS,
    GROUP,
    KEY,
    OF_FILE,
    OF_PARTITION,
    OF_TABLE,
    all_apply,
    compared_ids,
    compares,
    data_key,
    delete_groups,
    dv_path,
    file_key,
    is_of_file,
    is_of_partition,
    none_applies,
    refuse_second_dvs,
    table_key,
)
from sparkmeta.plan.deletes.rules import (
    DATA_WITHOUT_SEQUENCE,
    FOREIGN_DELETE,
    OLDER_DV,
    SEQUENCE,
    TWO_DVS,
    UNKNOWN_FILE,
    Check,
    DeleteRule,
    consistent,
    data_view,
    delete_struct,
    has_stats,
    may_share_values,
    partition_key,
)
from sparkmeta.plan.filter import DELETES, deletes_type, no_deletes, public_delete, shown_deletes
from sparkmeta.spec.entry import ContentType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from sparkmeta.entries.relation import Relation
    from sparkmeta.plan.deletes.groups import DeleteEntries
    from sparkmeta.snapshot.state import TableState

_NO_OWNER: Final = -1
_PATH: Final = "delete_path"
_DV: Final = "dv_of_file"
_FILLER_KEY: Final = "filler_key"


def attach_deletes(data: Relation, deletes: DeleteEntries, state: TableState) -> Relation:
    """Return the data entries with `deletes`, the array of deletes that apply to each, in Iceberg's order.

    Running a DataFrame fails if entries break one of the `rules`. If the driver has the deletes, this call fails for
    contradictions among them; if it also has the data files, for all contradictions.
    """
    if deletes.entries is None:
        return with_columns(data, shown_deletes(no_deletes(deletes.encrypted)))
    if isinstance(data, pa.Table) and isinstance(deletes.entries, pa.Table):
        attached = _attach_on_driver(data, deletes, deletes.entries, state)
        if attached is not None:
            return attached
    frame, entries = frame_of(data, state), frame_of(deletes.entries, state)
    if deletes.only_dvs and not deletes.broadcast:
        return _attach_dvs(frame, deletes, entries, state)
    return _attach_groups(frame, deletes, entries, state)


# -- Many deletion vectors, and nothing else --------------------------------------------------------------------------


def _attach_dvs(data: DataFrame, deletes: DeleteEntries, entries: DataFrame, state: TableState) -> DataFrame:
    """Join data entries with DVs: data LEFT JOIN DVs ON path.

    A second, narrow pass over the DVs looks for files that have two: grouping whole DVs takes longer than the join.
    """
    dvs = entries.selectExpr(
        dv_path().alias(_PATH).selected, delete_struct(state, encrypted=deletes.encrypted).alias(_DV).selected
    )
    joined = data.join(deletes.sized(dvs), F.expr(f"location = {_PATH}"), "left")
    dv, view, location = sql.col(_DV), data_view(state), sql.col("location")
    public = public_delete(dv, deletes.manifests, encrypted=deletes.encrypted)
    shown = sql.when(dv.isNull(), no_deletes(deletes.encrypted)).otherwise(sql.array(public))
    checked = consistent(
        (DATA_WITHOUT_SEQUENCE, DATA_WITHOUT_SEQUENCE.broken(view, dv), (location,)),
        (OLDER_DV, OLDER_DV.broken(view, dv), (location, dv["location"])),
        (FOREIGN_DELETE, dv.isNotNull() & FOREIGN_DELETE.broken(view, dv), (location, dv["location"])),
        *((UNKNOWN_FILE, dv.isNotNull() & broken(dv), (location, dv["location"])) for broken in _misplaced(deletes)),
    )
    attached = joined.where(checked.text).selectExpr("*", shown_deletes(shown).selected).drop(_PATH, _DV)
    narrow = EntryProjection.of(("version_info", "referenced_file"))
    repeated = _files_with_two_dvs(state.live_entries(deletes.manifests, narrow))
    marked = attached.join(repeated, F.expr(f"location = {_PATH}"), "left")
    return marked.where(consistent((TWO_DVS, sql.col(_PATH).isNotNull(), (location,))).text).drop(_PATH)


def _files_with_two_dvs(dvs: DataFrame) -> DataFrame:
    """Count DVs by hash first; few remain to be counted by path."""
    path = sql.col("referenced_file")
    hashed = dvs.selectExpr(path.alias(_PATH).selected, file_key(path).alias(KEY).selected)
    suspects = hashed.groupBy(KEY).count().where("count > 1").select(KEY)
    counted = hashed.join(F.broadcast(suspects), KEY, "left_semi").groupBy(_PATH).count()
    return F.broadcast(counted.where("count > 1").select(_PATH))


# -- Deletes of any kind ----------------------------------------------------------------------------------------------


def _attach_groups(data: DataFrame, deletes: DeleteEntries, entries: DataFrame, state: TableState) -> DataFrame:
    """Join data entries with groups of deletes, each by a LEFT JOIN:

    1. the groups of their paths
    2. the facts about the groups of their (spec, partition), and about the table's group if there is one
    3. the groups whose members must be examined
    4. the groups that apply as a whole

    A group of a partition or of the table can be thousands of times as long as the row of a data file. So rows are
    first joined with facts about all members, and get the group itself only where needed, from a join that writes it
    once. All joins take their groups from one shuffle, so Spark reads the delete manifests once.
    """
    groups = delete_groups(entries, deletes, state)
    columns = [*map(sql.quoted, data.columns)]
    joined = data
    of_file = [scope for scope in groups.scopes if scope == OF_FILE]
    shared_scopes = [scope for scope in groups.scopes if scope != OF_FILE]
    has_own_deletes = sql.col(OF_FILE).isNotNull() if of_file else sql.lit(False)
    is_consistent = _consistent(groups.scopes, deletes, state)
    attached = shown_deletes(_applied_members(deletes, state, groups.scopes)).selected
    grouped = groups.frame(deletes, state)
    members = grouped.select(KEY, GROUP)
    if of_file:
        joined = _join(joined, deletes, members, data_key(OF_FILE, state), OF_FILE)
    if not shared_scopes:
        return joined.where(is_consistent.text).selectExpr(*columns, attached)
    facts = grouped.select(KEY, FACTS)
    for scope in shared_scopes:
        joined = _join(joined, deletes, facts, data_key(scope, state), scope)
    needed = _needed_groups(shared_scopes, has_own_deletes, deletes, state)
    keys = (key.alias(name).selected for name, key in needed.items())
    # Rows that need no group get the key of their own file, since a hash join would bring equal keys to one task. A
    # group with this key is not about their partition, and none of its members applies to them.
    filler = sql.lit(None).cast("bigint") if deletes.broadcast else data_key(OF_FILE, state)
    joined = joined.selectExpr(*columns, *of_file, *keys, filler.alias(_FILLER_KEY).selected)
    for scope in shared_scopes:
        joined = _join(joined, deletes, members, _or_filler(_needed_key(scope)), scope)
    # The check also reads the last join's column. Otherwise Spark would move the check, and the end of a stage, before
    # other joins.
    last = sql.col(shared_scopes[-1])
    checked = sql.when(is_consistent, last.isNull() | (sql.size(last) > 0))
    wholes = [_whole_group(scope) for scope in shared_scopes]
    joined = joined.where(checked.text).selectExpr(*columns, *map(_needed_key, wholes), _FILLER_KEY, attached)
    shared = grouped.where(f"{FACTS} IS NOT NULL")
    public = _public(sql.col(GROUP), deletes).cast(deletes_type(deletes.encrypted))
    shared = shared.selectExpr(KEY, public.alias(GROUP).selected)
    shown = sql.col(DELETES)
    for scope, name in zip(shared_scopes, wholes, strict=True):
        joined = _join(joined, deletes, shared, _or_filler(_needed_key(name)), scope, name)
        shown = sql.when(sql.col(_needed_key(name)).isNotNull(), sql.col(name)).otherwise(shown)
    return joined.selectExpr(*columns, shown_deletes(shown).selected)


def _attach_on_driver(data: pa.Table, deletes: DeleteEntries, entries: pa.Table, state: TableState) -> pa.Table | None:
    """Attach deletes to data entries that the driver has as well.

    Returns:
        The data entries with `deletes`; None if the groups of all data files have too many deletes in total.

    Raises:
        ValidationError: entries break one of the `rules`.
    """
    groups = delete_groups(entries, deletes, state)
    rows_of_groups = collected(groups.grouped)
    grouped, known = (whole(rows_of_groups.column(name)) for name in (GROUP, KEY))
    keys = evaluate.select(data, [data_key(scope, state).alias(scope) for scope in groups.scopes])
    places = {scope: pc.index_in(whole(keys.column(scope)), known) for scope in groups.scopes}
    lengths = pc.list_value_length(grouped)
    pairs = sum(pc.sum(lengths.take(place)).as_py() or 0 for place in places.values())
    if pairs > state.access.limit(costs.COSTS.driver_pairs):
        return None
    refuse_second_dvs(rows_of_groups)
    shared = _files_that_share(data, places, rows_of_groups, deletes, state)
    rows = data if shared is None else data.take(shared[0])
    for scope, place in places.items():
        rows = rows.append_column(scope, grouped.take(place if shared is None else place.take(shared[0])))
    consistent_rows = evaluate.where(rows, _consistent(groups.scopes, deletes, state))
    attached = evaluate.values(consistent_rows, _applied_members(deletes, state, groups.scopes))
    return data.append_column(DELETES, attached if shared is None else attached.take(shared[1]))


def _files_that_share(
    data: pa.Table, places: Mapping[str, pa.Array], groups: pa.Table, deletes: DeleteEntries, state: TableState
) -> tuple[pa.Array, pa.Array] | None:
    """Find the data files to which the same deletes apply, so that these are matched once.

    They have the same partition and sequence number. Files that have deletes of their own, or equality deletes that
    stats may rule out, share with no other file.

    Args:
        data: the data entries.
        places: for each scope, the row of `groups` that has the deletes of a data entry.
        groups: all groups of deletes.
        deletes: all deletes.
        state: the table.

    Returns:
        The row of a data entry for each kind of files, and the number of the kind for each data entry; None if no file
        shares.
    """
    shared_places = [place for scope, place in places.items() if scope != OF_FILE]
    if not shared_places:
        return None

    def is_compared(delete: Sql) -> Sql:
        ids = compared_ids(deletes, state)
        return reduce(or_, (compares(delete, each) & has_stats(delete, each) for each in ids), sql.lit(False))

    are_compared = evaluate.values(groups, sql.exists(sql.col(GROUP), is_compared))
    flags = [pc.fill_null(are_compared.take(place), False) for place in shared_places]
    is_alone = reduce(pc.or_, [*flags, *([places[OF_FILE].is_valid()] if OF_FILE in places else [])])
    if pc.all(is_alone).as_py():
        return None
    numbers = pc.if_else(is_alone, pa.array(np.arange(len(data))), pa.scalar(None, pa.int64()))
    alike = [sql.col(SEQUENCE), *([partition_key(state)] if OF_PARTITION in places else [])]
    return evaluate.numbered_groups([numbers, *(evaluate.values(data, value) for value in alike)], len(data))


def _join(
    data: DataFrame, deletes: DeleteEntries, groups: DataFrame, key: Sql, scope: str, name: str = ""
) -> DataFrame:
    """Add the columns `name` (`scope` by default) and `key_of_<name>`: data LEFT JOIN groups ON key.

    Args:
        data: rows to join.
        deletes: all deletes, whose size decides how to join.
        groups: a key and one more column.
        key: the key of the group that a row of data needs.
        scope: what the groups are about.
        name: the name of the new column.
    """
    name = name or scope
    chosen = groups.toDF(_key_of(name), name)
    if scope == OF_TABLE and not deletes.broadcast:  # by hash, all rows that need it would meet in one task
        chosen = F.broadcast(chosen.where(f"{_key_of(name)} = {table_key().text}"))
    else:
        chosen = deletes.sized(chosen)
    return data.join(chosen, F.expr(f"{key.text} = {_key_of(name)}"), "left")


def _whole_group(scope: str) -> str:
    return f"whole_{scope}"


def _key_of(name: str) -> str:
    return f"key_of_{name}"


def _needed_key(name: str) -> str:
    return f"needed_key_of_{name}"


def _or_filler(key: str) -> Sql:
    return sql.coalesce(sql.col(key), sql.col(_FILLER_KEY))


def _needed_groups(
    scopes: Sequence[str], has_own_deletes: Sql, deletes: DeleteEntries, state: TableState
) -> dict[str, Sql]:
    """Return the keys of the groups that a data file needs, by the columns to name them.

    If only one group applies, and applies as a whole, this is its key. Otherwise, these are the keys of the groups
    whose members must be examined.
    """
    all_members_apply = {scope: all_apply(scope, deletes, state) for scope in scopes}
    no_member_applies = {scope: none_applies(scope, sql.col(_key_of(scope)), state) for scope in scopes}
    is_only_group = {
        scope: reduce(
            and_,
            (no_member_applies[other] for other in scopes if other != scope),
            ~has_own_deletes & all_members_apply[scope],
        )
        for scope in scopes
    }
    any_is_only_group = reduce(or_, is_only_group.values())
    keys: dict[str, Sql] = {}
    for scope in scopes:
        key = sql.col(_key_of(scope))
        keys[_needed_key(_whole_group(scope))] = sql.when(is_only_group[scope], key)
        keys[_needed_key(scope)] = sql.when(~(any_is_only_group | no_member_applies[scope]), key)
    return keys


# -- Which deletes of a group apply -----------------------------------------------------------------------------------


def _applied_members(deletes: DeleteEntries, state: TableState, scopes: Sequence[str]) -> Sql:
    """Return the deletes of examined groups that apply, in the form of plans and in Iceberg's order.

    Args:
        deletes: all deletes.
        state: the table.
        scopes: the columns of the groups, each null where a data file has none.
    """
    if not scopes:
        return no_deletes(deletes.encrypted)

    def applied(members: Sql) -> Sql:
        others = [_positions(members[scope]) for scope in (OF_PARTITION, OF_FILE) if scope in scopes]
        if OF_FILE in scopes:
            dvs = sql.filter(members[OF_FILE], lambda delete: delete["is_dv"])
            dvs_or_positions = sql.when(sql.size(dvs) > 0, dvs).otherwise(sql.concat(*others))
            others = [dvs if deletes.only_dvs else dvs_or_positions]
        compared = [scope for scope in (OF_TABLE, OF_PARTITION) if scope in scopes and deletes.equality_ids]
        equality = [_overlapping(members[scope], deletes, state) for scope in compared]
        return _public(sql.concat(*equality, *others), deletes)

    # The first branch also makes all fields of a delete nullable; a cast would copy each delete to do so.
    is_none = reduce(and_, (sql.col(scope).isNull() for scope in scopes))
    shown = sql.let(sql.struct(*(_members_about(scope, state) for scope in scopes)), applied)
    return sql.when(is_none, no_deletes(deletes.encrypted)).otherwise(shown)


def _members_about(scope: str, state: TableState) -> Aliased:
    """Return the members of a group that are about the data file: others may have the same hash."""
    is_about = {
        OF_FILE: is_of_file,
        OF_PARTITION: lambda delete: is_of_partition(delete, state),
        OF_TABLE: lambda delete: delete["is_global"],
    }
    group = sql.col(scope)
    return sql.coalesce(sql.filter(group, is_about[scope]), sql.empty_array(sql.call("get", group, 0))).alias(scope)


def _positions(group: Sql) -> Sql:
    """Return the position delete files that apply: they have at least the sequence number of the data file."""
    position = int(ContentType.POSITION_DELETES)
    sequence = sql.col(SEQUENCE)
    return sql.filter(
        group,
        lambda delete: (
            (delete["content_type"] == position) & (delete["sequence_number"] >= sequence) & ~delete["is_dv"]
        ),
    )


def _overlapping(group: Sql, deletes: DeleteEntries, state: TableState) -> Sql:
    """Return the equality deletes that apply: newer than the data file, and not ruled out by stats."""

    def applies(delete: Sql) -> Sql:
        possible = [
            ~compares(delete, field_id) | may_share_values(delete, field_id, state)
            for field_id in compared_ids(deletes, state)
        ]
        newer = delete["sequence_number"] > sql.col(SEQUENCE)
        return reduce(and_, possible, (delete["content_type"] == int(ContentType.EQUALITY_DELETES)) & newer)

    return sql.filter(group, applies)


def _public(group: Sql, deletes: DeleteEntries) -> Sql:
    return sql.transform(group, lambda delete: public_delete(delete, deletes.manifests, encrypted=deletes.encrypted))


# -- Contradictions ---------------------------------------------------------------------------------------------------


def _misplaced(deletes: DeleteEntries) -> list[Callable[[Sql], Sql]]:
    """Return the condition that an affiliated delete's file is not in its data leaf; none without affiliated leaves."""
    if not deletes.owners:
        return []
    owners = [str(deletes.owners.get(leaf, _NO_OWNER)) for leaf in range(max(deletes.owners) + 1)]

    def broken(delete: Sql) -> Sql:
        owner = sql.coalesce(sql.lookup(owners, delete["manifest"]), str(_NO_OWNER))
        is_in_leaf = (owner == str(_NO_OWNER)) | (owner == sql.col(MANIFEST).cast("string"))
        condition: Sql = UNKNOWN_FILE.broken({"location": sql.when(is_in_leaf, sql.col("location"))}, delete)
        return condition

    return [broken]


def _consistent(scopes: Sequence[str], deletes: DeleteEntries, state: TableState) -> Sql:
    """Return SQL that fails if a data file and one of its own deletes contradict each other, and is true otherwise.

    Args:
        scopes: the columns of the groups.
        deletes: all deletes.
        state: the table.
    """
    view, group = data_view(state), sql.col(OF_FILE)
    location = sql.col("location")
    checks: list[Check] = [(DATA_WITHOUT_SEQUENCE, DATA_WITHOUT_SEQUENCE.broken(view, {}), (location,))]
    if OF_FILE not in scopes:
        return consistent(*checks)
    contradictions: list[tuple[DeleteRule, Callable[[Sql], Sql]]] = [
        *((rule, partial(rule.broken, view)) for rule in (OLDER_DV, FOREIGN_DELETE)),
        *((UNKNOWN_FILE, misplaced) for misplaced in _misplaced(deletes)),
    ]
    for rule, contradicts in contradictions:

        def broken(delete: Sql, contradicts: Callable[[Sql], Sql] = contradicts) -> Sql:
            return is_of_file(delete) & contradicts(delete)

        first_broken = sql.call("get", sql.filter(group, broken), 0)
        checks.append((rule, sql.exists(group, broken), (location, first_broken["location"])))
    return consistent(*checks)
