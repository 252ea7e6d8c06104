"""Which deletes apply to a data file, as joins (table spec, Scan Planning; Iceberg's DeleteFileIndex).

Four kinds, each grouped once and joined by what it is about: DVs and file-scoped position deletes by the path of their
data file, partition-scoped position deletes and partitioned equality deletes by (spec, partition), global equality
deletes by nothing. A group is an array in ascending sequence number; a data file takes the part of it that is about it,
and that its own sequence number (and, for equality deletes, its stats) leaves: as a whole where that can be told of the
group.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import and_, or_
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.transforms import VoidTransform
from pyiceberg.types import DoubleType, FloatType, IcebergType, UUIDType
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, IntegerType, LongType, StringType, StructField, StructType

from sparkmeta.columns import sql
from sparkmeta.columns.sql import Aliased, Sql
from sparkmeta.errors import ValidationError
from sparkmeta.manifests.arrays import whole
from sparkmeta.manifests.manifest_list import live_count
from sparkmeta.manifests.projection import CONTENT_STATS, EntryProjection
from sparkmeta.manifests.v4.root import is_live as live_rows
from sparkmeta.plan.prune import ScanFilter, is_live, matching_entries, wanted_entries
from sparkmeta.plan.rows import manifest_path, partition_value
from sparkmeta.session import local_frame
from sparkmeta.spec.entry import DELETE_FILE_PATH_ID, ContentType
from sparkmeta.state import ENTRIES_HERE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyiceberg.partitioning import PartitionSpec
    from pyspark.sql import DataFrame

    from sparkmeta.state import TableState

DELETES = "deletes"
DELETES_TYPE = ArrayType(
    StructType(
        [
            StructField("content", IntegerType()),
            StructField("file_path", StringType()),
            StructField("file_format", StringType()),
            StructField("file_size_in_bytes", LongType()),
            StructField("referenced_data_file", StringType()),
            StructField("content_offset", LongType()),
            StructField("content_size_in_bytes", LongType()),
            StructField("record_count", LongType()),
            StructField("data_sequence_number", LongType()),
            StructField("equality_ids", ArrayType(IntegerType())),
            StructField("manifest_path", StringType()),
            StructField("manifest_pos", LongType()),
        ]
    )
)

_NO_DELETES = sql.empty_array(sql.lit(None).cast(DELETES_TYPE.elementType))

# Groups of at most this many delete files are broadcast; more are joined by hash, partition by partition.
BROADCAST_DELETES = 100_000

VECTOR_COLUMNS = (
    "content_type",
    "location",
    "file_format",
    "version_info",
    "deletion_vector",
    "partition_spec_id",
    "record_count",
    "file_size_in_bytes",
    "referenced_file",
)
_DELETE_COLUMNS = (*VECTOR_COLUMNS, "equality_ids")

_KEY, _PATH = "delete_key", "delete_path"


@dataclass(frozen=True)
class DeleteEntries:
    """The live delete entries that a scan may need.

    entries: None where the scan opens no delete manifest. manifests: those that they come from.
    count: how many entries at most; None where manifests don't say.
    equality_ids: every column that some equality delete compares, so that data stats are read for them.
    only_vectors: all of them are deletion vectors that name their data file.
    here: they are few rows on the driver, which groups them sooner than a job does.
    """

    entries: DataFrame | None
    manifests: pa.Table
    count: int | None
    equality_ids: frozenset[int]
    only_vectors: bool = False
    here: bool = False

    @property
    def few(self) -> bool:
        return self.count is not None and self.count <= BROADCAST_DELETES

    def sized(self, frame: DataFrame) -> DataFrame:
        """A relation of deletes with the join that fits its size; Spark has no statistics of what Python decodes."""
        return F.broadcast(frame) if self.few else frame.hint("shuffle_hash")


def delete_entries(scan_filter: ScanFilter, manifests: pa.Table, vectors_only: bool | None = None) -> DeleteEntries:
    """The live entries of the delete manifests that may hold deletes for the filter.

    vectors_only: what `only_vectors` says of them, where that was asked before.

    Their stats describe deleted rows, so the row filter prunes equality deletes as it prunes data files.
    """
    if not len(manifests):
        return DeleteEntries(None, manifests, 0, frozenset())
    state = scan_filter.state
    equality_ids = frozenset() if vectors_only else _equality_ids(scan_filter, manifests)
    count = live_count(manifests)
    if vectors_only is None:
        many = count is None or count > BROADCAST_DELETES
        vectors_only = not equality_ids and only_vectors(state, manifests, by_job=many)
    pruned_by = frozenset() if scan_filter.ignore_residuals else scan_filter.undecided_ids
    stats = {DELETE_FILE_PATH_ID, *equality_ids, *pruned_by}
    by_stats = not scan_filter.ignore_residuals
    wanted = wanted_entries(scan_filter, by_stats=by_stats)
    projection = replace(state.projection(_DELETE_COLUMNS, stats), wanted=wanted)
    here = state.entries_here(manifests, projection, ENTRIES_HERE)
    entries = state.entries(manifests, projection) if here is None else local_frame(state.spark, here)
    kept = matching_entries(entries, scan_filter, by_stats=by_stats)
    return DeleteEntries(kept, manifests, count, equality_ids, vectors_only, here is not None)


def only_vectors(state: TableState, manifests: pa.Table, *, by_job: bool) -> bool:
    """Whether all live deletes are deletion vectors that name their data file.

    Those of trees are, but for equality deletes. Else nothing tells but the entries: the driver looks at few. by_job: a
    job looks at many; without, these pass for deletes of any kind.
    """
    if state.tree is not None and not state.tree.is_upgraded:
        return True
    if state.metadata.format_version < 3:
        return False
    projection = EntryProjection.of(("content_type", "file_format", "version_info", "referenced_file"))
    if (entries := state.entries_here(manifests, projection)) is not None:
        return all_vectors(entries)
    if not by_job:
        return False
    others = is_live() & ~(_is_vector() & sql.col("referenced_file").isNotNull())
    return state.entries(manifests, projection).where(others.text).count() == 0


def vector_projection(scan_filter: ScanFilter) -> EntryProjection:
    """What is read of deletion vectors: those that may be of use for the filter."""
    wanted = wanted_entries(scan_filter, by_stats=False)
    return replace(scan_filter.state.projection(VECTOR_COLUMNS), wanted=wanted)


def all_vectors(entries: pa.Table) -> bool:
    """Whether the live ones of some delete entries are all deletion vectors that name their data file."""
    return pc.all(pc.or_(is_vector(entries), pc.invert(live_rows(entries)))).as_py() is not False


def _equality_ids(scan_filter: ScanFilter, manifests: pa.Table) -> frozenset[int]:
    """The distinct equality ids of the deletes, at most one for each column; no job where the snapshot has none.

    Raises:
        ValidationError: an id that no schema of the table ever had.
    """
    state = scan_filter.state
    projection = state.projection(("version_info", "equality_ids"))
    summary = state.snapshot.summary if state.snapshot else None
    if (here := state.entries_here(manifests, projection, ENTRIES_HERE)) is not None:
        ids = pc.list_flatten(here.column("equality_ids").filter(live_rows(here))).unique().to_pylist()
    elif summary is not None and summary.additional_properties.get("total-equality-deletes") == "0":
        return frozenset()
    else:
        entries = state.entries(manifests, projection).where(is_live().text)
        ids = entries.select(F.explode("equality_ids").alias("id")).distinct().toArrow().column("id").to_pylist()
    for unknown in sorted(set(ids).difference(state.fields)):
        raise ValidationError(f"{state.metadata.location}: equality_ids has {unknown}: no schema has such a field")
    return frozenset(ids)


def attach_deletes(data: DataFrame, deletes: DeleteEntries, state: TableState) -> DataFrame:
    """The data entries with `deletes`, the array of what applies to each, in Iceberg's order.

    Raises, when it runs (at once, where the driver has the deletes and they alone tell), for two DVs of one file, a DV
    older than its file, deletes of another partition than their file, equality deletes that compare no column, and
    files, of data or deletes, without a sequence number.
    """
    if deletes.entries is None:
        return data.selectExpr("*", _shown(_NO_DELETES))
    if deletes.only_vectors and not deletes.few:
        return _attach_vectors(data, deletes, deletes.entries, state)
    return _attach_groups(data, deletes, deletes.entries, state)


def _shown(deletes: Sql) -> str:
    """deletes: of `DELETES_TYPE`, without a cast: it would copy each delete where only nullability differs."""
    return deletes.alias(DELETES).selected


# -- many deletion vectors, and nothing else ------------------------------------------------------------------------


def _attach_vectors(data: DataFrame, deletes: DeleteEntries, entries: DataFrame, state: TableState) -> DataFrame:
    """SQL: data LEFT JOIN vectors ON path, with a second, narrow pass over the vectors for files that have two:
    grouping whole vectors would take longer than the join does."""
    vectors = entries.selectExpr(_vector_path().alias(_PATH).selected, _delete(state).alias(_OF_FILE).selected)
    joined = data.join(deletes.sized(vectors), F.expr(f"location = {_PATH}"), "left")
    vector = sql.col(_OF_FILE)
    shown = sql.when(vector.isNull(), _NO_DELETES).otherwise(sql.array(_public_delete(deletes)(vector)))
    with_vectors = joined.where(_vector_is_consistent(vector, state).text).selectExpr("*", _shown(shown))
    narrow = EntryProjection.of(("version_info", "referenced_file"))
    twice = _twice(state.entries(deletes.manifests, narrow).where(is_live().text))
    found = with_vectors.drop(_PATH, _OF_FILE).join(twice, F.expr(f"location = {_PATH}"), "left")
    second = (sql.col(_PATH).isNotNull(), sql.concat(TWO_VECTORS, sql.col("location")))
    return found.where(_or_error(second).text).drop(_PATH)


def _twice(vectors: DataFrame) -> DataFrame:
    """The data files that have two vectors. Counted by hash first, which leaves next to none to count by path."""
    path = sql.col("referenced_file")
    hashed = vectors.selectExpr(path.alias(_PATH).selected, _hash(path).alias(_KEY).selected)
    suspects = hashed.groupBy(_KEY).count().where("count > 1").select(_KEY)
    counted = hashed.join(F.broadcast(suspects), _KEY, "left_semi").groupBy(_PATH).count()
    return F.broadcast(counted.where("count > 1").select(_PATH))


# -- deletes of any kind --------------------------------------------------------------------------------------------

_GROUP, _SHARED = "group_of_deletes", "shared_deletes"
_OF_FILE, _OF_PARTITION, _OF_TABLE = "deletes_of_file", "deletes_of_partition", "deletes_of_table"
_NEAREST = "key_of_row"


def _attach_groups(data: DataFrame, deletes: DeleteEntries, entries: DataFrame, state: TableState) -> DataFrame:
    """SQL: data LEFT JOIN groups ON path LEFT JOIN what is known of groups ON (spec, partition) [LEFT JOIN the same of
    the global group], then LEFT JOIN groups whose members have to be looked at, and last those that apply as they are.

    A group of a partition or of the table can be thousands of times as long as the row of a data file. So rows first
    meet what is known of all its members, and get the group itself where they leave, from a join that writes it once.
    All joins take their groups from one shuffle, so Spark reads the delete manifests once. Keys are hashes, which are
    grouped and joined in a fraction of the time that paths and tuples take; members are compared in full after.
    """
    groups, scopes = _groups(entries, state, deletes)
    columns = [*map(sql.quoted, data.columns)]
    members = groups.select(_KEY, _GROUP)
    joined, is_consistent, has_own = data, _or_error(_no_sequence()), sql.lit(False)
    of_file = [scope for scope in scopes if scope == _OF_FILE]
    shared_scopes = [scope for scope in scopes if scope != _OF_FILE]
    if of_file:
        joined = _join(data, deletes, members, _hash(sql.col("location")), _OF_FILE)
        is_consistent, has_own = _is_consistent(sql.col(_OF_FILE), state), sql.col(_OF_FILE).isNotNull()
    if not shared_scopes:
        return joined.where(is_consistent.text).selectExpr(*columns, _shown(_own(deletes, state, scopes)))
    facts = groups.select(_KEY, _SHARED)
    for scope in shared_scopes:
        key = _EVERYWHERE if scope == _OF_TABLE else _hash(partition_key(state))
        joined = _join(joined, deletes, facts, key, scope)
    wanted = _keys_of_groups(shared_scopes, has_own, deletes, state)
    keys = (key.alias(name).selected for name, key in wanted.items())
    # Rows that need no group have the key of their own file, or a join by hash would bring all of them to one task. A
    # group that is found by it is not about their partition, and none of its members applies to them as such.
    nearest = (sql.lit(None).cast("bigint") if deletes.few else _hash(sql.col("location"))).alias(_NEAREST)
    joined = joined.selectExpr(*columns, *of_file, *keys, nearest.selected)
    for scope in shared_scopes:
        joined = _join(joined, deletes, members, _or_nearest(_wanted_key(scope)), scope)
    # It looks at the last of the joins too, or Spark would move it, and with it the end of a stage, before the others.
    last = sql.col(shared_scopes[-1])
    checked = sql.when(is_consistent, last.isNull() | (sql.size(last) > 0))
    own = _shown(_own(deletes, state, scopes))
    wholes = [_whole(scope) for scope in shared_scopes]
    joined = joined.where(checked.text).selectExpr(*columns, *map(_wanted_key, wholes), _NEAREST, own)
    shared = groups.where(f"{_SHARED} IS NOT NULL")
    shared = shared.selectExpr(_KEY, _public(sql.col(_GROUP), deletes).cast(DELETES_TYPE).alias(_GROUP).selected)
    shown = sql.col(DELETES)
    for scope, name in zip(shared_scopes, wholes, strict=True):
        joined = _join(joined, deletes, shared, _or_nearest(_wanted_key(name)), scope, name)
        shown = sql.when(sql.col(_wanted_key(name)).isNotNull(), sql.col(name)).otherwise(shown)
    return joined.selectExpr(*columns, _shown(shown))


def _join(
    data: DataFrame, deletes: DeleteEntries, groups: DataFrame, key: Sql, scope: str, name: str = ""
) -> DataFrame:
    """data LEFT JOIN groups, a key and one more column, which becomes `name` (that of the scope by default), with its
    key beside it."""
    name = name or scope
    chosen = groups.toDF(_key_of(name), name)
    if scope == _OF_TABLE and not deletes.few:  # by hash, all rows that need it would meet in one task
        chosen = F.broadcast(chosen.where(f"{_key_of(name)} = {_EVERYWHERE.text}"))
    else:
        chosen = deletes.sized(chosen)
    return data.join(chosen, F.expr(f"{key.text} = {_key_of(name)}"), "left")


def _whole(scope: str) -> str:
    return f"whole_{scope}"


def _key_of(name: str) -> str:
    return f"key_of_{name}"


def _wanted_key(name: str) -> str:
    return f"wanted_key_of_{name}"


def _or_nearest(key: str) -> Sql:
    return sql.coalesce(sql.col(key), sql.col(_NEAREST))


def _keys_of_groups(scopes: Sequence[str], has_own: Sql, deletes: DeleteEntries, state: TableState) -> dict[str, Sql]:
    """Which groups a data file needs: the one that applies as it is, if it is the only one to apply, else those whose
    members have to be looked at. has_own: whether there are deletes of the file alone."""
    whole = {scope: _applies_whole(scope, deletes, state) for scope in scopes}
    none = {scope: _applies_nowhere(scope, state) for scope in scopes}
    alone = {
        scope: reduce(and_, (none[other] for other in scopes if other != scope), ~has_own & whole[scope])
        for scope in scopes
    }
    passed = reduce(or_, alone.values())
    keys: dict[str, Sql] = {}
    for scope in scopes:
        key = sql.col(_key_of(scope))
        keys[_wanted_key(_whole(scope))] = sql.when(alone[scope], key)
        keys[_wanted_key(scope)] = sql.when(~(passed | none[scope]), key)
    return keys


def _groups(entries: DataFrame, state: TableState, deletes: DeleteEntries) -> tuple[DataFrame, Sequence[str]]:
    """The deletes grouped by what they are about, and what some may be about: a file, a partition, the table.

    Columns: delete_key, group_of_deletes (in ascending sequence number), and where there are others than of files
    shared_deletes (see `_shared`).

    Raises, when it runs, for two DVs of one file: the check stands inside the key, which no optimizer drops.
    """
    scope = sql.when(_data_path().isNotNull(), _hash(_data_path())).when(_is_global_delete(state), _EVERYWHERE)
    key = _hash(_vector_path()) if deletes.only_vectors else scope.otherwise(_hash(partition_key(state)))
    if not deletes.only_vectors and not deletes.equality_ids:
        message = sql.concat("no columns are known that an equality delete file compares: ", sql.col("location"))
        is_equality = sql.col("content_type") == int(ContentType.EQUALITY_DELETES)
        key = sql.when(is_equality, sql.raise_error(message).cast("bigint")).otherwise(key)
    keyed = entries.selectExpr(key.alias(_KEY).selected, _delete(state).alias("delete").selected)
    if deletes.here:
        here = keyed.toArrow()
        scopes = _scopes(here.column("delete"))
        grouped = local_frame(state.spark, _grouped(here))
    else:
        scopes = [_OF_FILE] if deletes.only_vectors else [_OF_FILE, _OF_PARTITION]
        if deletes.equality_ids and any(map(is_global, state.specs.values())):
            scopes.append(_OF_TABLE)
        grouped = keyed.groupBy(_KEY).agg(F.expr(f"sort_array(collect_list(delete)) AS {_GROUP}"))
    group = sql.col(_GROUP)

    def has_another(vector: Sql) -> Sql:
        same = sql.filter(group, lambda other: other["is_dv"] & (other["data_path"] == vector["data_path"]))
        return vector["is_dv"] & (sql.size(same) > 1)

    first = sql.call("get", sql.filter(group, has_another), 0)["data_path"]
    second = sql.when(sql.size(group) > 1, first).otherwise(None)
    twice = sql.raise_error(sql.concat(TWO_VECTORS, second)).cast("bigint")
    checked = sql.when(second.isNotNull(), twice).otherwise(sql.col(_KEY))
    shared = [] if scopes == [_OF_FILE] else [_shared(group, deletes, state).alias(_SHARED).selected]
    return grouped.selectExpr(checked.alias(_KEY).selected, _GROUP, *shared), scopes


def _scopes(deletes: pa.ChunkedArray) -> list[str]:
    """What some of the deletes are about."""
    of_file, of_table = pc.struct_field(deletes, "data_path").is_valid(), pc.struct_field(deletes, "is_global")
    found = {_OF_FILE: of_file, _OF_PARTITION: pc.invert(pc.or_(of_file, of_table)), _OF_TABLE: of_table}
    return [scope for scope, is_of in found.items() if pc.any(is_of).as_py()]


def _grouped(keyed: pa.Table) -> pa.Table:
    """Rows of a key and a delete by their key, as Spark's `sort_array(collect_list(delete))` groups them."""
    fields = ("sequence_number", "manifest", "ordinal")  # the first of a delete, and together unique
    columns = {_KEY: keyed.column(_KEY), **{name: pc.struct_field(keyed.column("delete"), name) for name in fields}}
    order = pc.sort_indices(pa.table(columns), [(name, "ascending") for name in columns])
    keys, deletes = (whole(keyed.column(name)).take(order) for name in (_KEY, "delete"))
    runs = pc.run_end_encode(keys)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), runs.run_ends])
    return pa.table({_KEY: runs.values, _GROUP: pa.ListArray.from_arrays(offsets, deletes)})


def _shared(group: Sql, deletes: DeleteEntries, state: TableState) -> Sql:
    """What is known of a group of which files mostly take all or nothing, so that its members need not be looked at
    file by file; null for others.

    It has only position deletes of one partition, or only equality deletes of one, or of the whole table:
    struct<lowest and highest sequence number, partition_key, is_equality, is_global, a column for each of
    `equality_ids`: the greatest lower bound and the least upper one of those that compare it>.
    """
    first = sql.call("get", group, 0)

    def of_partition(delete: Sql) -> Sql:
        position = delete["content_type"] == int(ContentType.POSITION_DELETES)
        same = delete["partition_key"].eqNullSafe(first["partition_key"])
        return position & ~delete["is_dv"] & delete["data_path"].isNull() & same

    def of_same(delete: Sql) -> Sql:
        equality = delete["content_type"] == int(ContentType.EQUALITY_DELETES)
        same = delete["is_global"] | delete["partition_key"].eqNullSafe(first["partition_key"])
        return equality & (delete["is_global"] == first["is_global"]) & same

    columns = {one: _named(group, one) for one in _compared_ids(deletes, state)}
    all_alike = sql.forall(group, of_partition)
    if deletes.equality_ids:
        bounded = (
            ~sql.exists(named, partial(_needs_a_look, field_id=one, state=state)) for one, named in columns.items()
        )
        all_alike = all_alike | reduce(and_, bounded, sql.forall(group, of_same))
    whole = sql.struct(
        first["sequence_number"].alias("lowest"),
        sql.call("element_at", group, -1)["sequence_number"].alias("highest"),
        first["partition_key"].alias("partition_key"),
        (first["content_type"] == int(ContentType.EQUALITY_DELETES)).alias("is_equality"),
        first["is_global"].alias("is_global"),
        *(_extremes(named, one, state).alias(f"f{one}") for one, named in columns.items()),
    )
    return sql.when(all_alike, whole)


def _compared_ids(deletes: DeleteEntries, state: TableState) -> list[int]:
    return [one for one in sorted(deletes.equality_ids) if one in state.primitive_fields]


def _named(group: Sql, field_id: int) -> Sql:
    """The deletes of a group that compare a column."""
    return sql.filter(group, lambda delete: _names(delete, field_id))


def _names(delete: Sql, field_id: int) -> Sql:
    return sql.coalesce(sql.array_contains(delete["equality_ids"], field_id), False)


def _needs_a_look(delete: Sql, field_id: int, state: TableState) -> Sql:
    """Whether a delete's stats of a column may prove something that the extremes of its group don't tell."""
    if isinstance(state.primitive_fields[field_id].field_type, FloatType | DoubleType):
        return sql.lit(True)
    return _all_null(delete[CONTENT_STATS][str(field_id)], state.always_required(field_id))


def _extremes(named: Sql, field_id: int, state: TableState) -> Sql:
    """struct<the greatest lower bound, the least upper bound>, of deletes that have both; null where bounds prove
    nothing."""
    if not _is_ordered(state.primitive_fields[field_id].field_type):
        return sql.struct(sql.lit(None).alias("lower"), sql.lit(None).alias("upper"))

    def bound(name: str) -> Callable[[Sql], Sql]:
        return lambda delete: delete[CONTENT_STATS][str(field_id)][name]

    lower, upper = bound("lower_bound"), bound("upper_bound")
    both = sql.filter(named, lambda delete: lower(delete).isNotNull() & upper(delete).isNotNull())
    greatest = sql.call("array_max", sql.transform(both, lower))
    least = sql.call("array_min", sql.transform(both, upper))
    return sql.struct(greatest.alias("lower"), least.alias("upper"))


def _applies_whole(scope: str, deletes: DeleteEntries, state: TableState) -> Sql:
    """Whether all of a shared group apply to a data file; of equality deletes, not every one that do is found."""
    shared, own = sql.col(scope), sql.col(_SEQUENCE)
    positions = ~shared["is_equality"] & (shared["lowest"] >= own)
    equality = [shared["is_equality"], shared["lowest"] > own]
    for one in _compared_ids(deletes, state):
        data, extremes = sql.col(f"{CONTENT_STATS}.`{one}`"), shared[f"f{one}"]
        equality.append(~_all_null(data, state.always_required(one)))
        apart = (data["lower_bound"] > extremes["upper"]) | (extremes["lower"] > data["upper_bound"])
        if _is_ordered(state.primitive_fields[one].field_type):
            equality.append(~sql.coalesce(apart, False))
    return sql.coalesce(_is_of_scope(scope, state) & (positions | reduce(and_, equality)), False)


def _applies_nowhere(scope: str, state: TableState) -> Sql:
    """Whether there is no group, or a shared one of which nothing applies to a data file: all of it is too old."""
    shared, own = sql.col(scope), sql.col(_SEQUENCE)
    too_old = (shared["highest"] < own) | (shared["is_equality"] & (shared["highest"] == own))
    return sql.col(_key_of(scope)).isNull() | sql.coalesce(~_is_of_scope(scope, state) | too_old, False)


def _is_of_scope(scope: str, state: TableState) -> Sql:
    """Whether a shared group is about a data file: hashes may have brought another."""
    shared = sql.col(scope)
    if scope == _OF_TABLE:
        return shared["is_global"]
    of_equal = shared["partition_key"].eqNullSafe(partition_key(state))
    return sql.when(shared.isNotNull(), of_equal & ~(shared["is_equality"] & shared["is_global"]))


def _delete(state: TableState) -> Sql:
    """A delete as its group holds it: the sequence number first, so that arrays sort by it."""
    unknown = sql.raise_error(sql.concat("no sequence number is known for delete file ", sql.col("location")))
    stats = sql.when(sql.col("content_type") != int(ContentType.POSITION_DELETES), sql.col(CONTENT_STATS))
    return sql.struct(
        sql.coalesce(sql.col(_SEQUENCE), unknown.cast("bigint")).alias("sequence_number"),
        *(sql.col(name).alias(name) for name in ("manifest", "ordinal", "content_type", "location", "file_format")),
        *(
            sql.col(name).alias(name)
            for name in ("file_size_in_bytes", "referenced_file", "record_count", "equality_ids")
        ),
        sql.col("deletion_vector.offset").alias("offset"),
        sql.col("deletion_vector.size_in_bytes").alias("size_in_bytes"),
        _is_vector().alias("is_dv"),
        _is_global_delete(state).alias("is_global"),
        _data_path().alias("data_path"),
        partition_key(state).alias("partition_key"),
        stats.alias(CONTENT_STATS),
    )


def _is_global_delete(state: TableState) -> Sql:
    everywhere = [spec_id for spec_id, spec in state.specs.items() if is_global(spec)]
    equality = sql.col("content_type") == int(ContentType.EQUALITY_DELETES)
    return equality & sql.col("partition_spec_id").isin(everywhere)


def is_global(spec: PartitionSpec) -> bool:
    """Whether equality deletes of this spec apply to every file: it has no fields, or only void ones."""
    return all(isinstance(field.transform, VoidTransform) for field in spec.fields)


# -- keys -----------------------------------------------------------------------------------------------------------


def _hash(value: object) -> Sql:
    return sql.call("xxhash64", value)


_EVERYWHERE = _hash("every data file")


def partition_key(state: TableState) -> Sql:
    """(spec id, partition tuple) as one comparable value.

    Floats go by their text: -0.0 and 0.0 are different partitions, which Spark takes for one.
    """
    values = [
        (partition_value(one).cast("string") if name in _FLOATS else partition_value(one)).alias(f"p{one}")
        for one, name in state.partition_fields.items()
    ]
    return sql.struct(sql.col("partition_spec_id").alias("spec_id"), *values)


_FLOATS = ("float", "double")


def _is_vector() -> Sql:
    position = sql.col("content_type") == int(ContentType.POSITION_DELETES)
    return position & (sql.col("file_format") == "PUFFIN")


def is_vector(entries: pa.Table) -> pa.ChunkedArray:
    """As `_is_vector` and with a path, of entries in Arrow: which are deletion vectors that name their data file."""
    position = pc.equal(entries.column("content_type"), int(ContentType.POSITION_DELETES))
    vector = pc.and_(position, pc.equal(entries.column("file_format"), "PUFFIN"))
    return pc.and_(vector, entries.column("referenced_file").is_valid())


def _vector_path() -> Sql:
    """The data file of a vector, where there are no other deletes; an error for one, which would be lost."""
    message = sql.concat("a delete file of a tree without equality deletes is no vector: ", sql.col("location"))
    path = sql.col("referenced_file")
    other = sql.raise_error(message).cast("string")
    return sql.when(_is_vector() & path.isNotNull(), path).otherwise(other)


def _data_path() -> Sql:
    """The one data file that a position delete file or DV is about; null for partition-scoped ones.

    Either the file says so, or its bounds of `file_path` are equal, which position deletes never truncate.
    """
    bounds = f"{CONTENT_STATS}.`{DELETE_FILE_PATH_ID}`"
    lower, upper = sql.col(f"{bounds}.lower_bound"), sql.col(f"{bounds}.upper_bound")
    path = sql.coalesce(sql.col("referenced_file"), sql.when(lower == upper, lower))
    return sql.when(sql.col("content_type") == int(ContentType.POSITION_DELETES), path)


# -- what applies ---------------------------------------------------------------------------------------------------

_SEQUENCE = "version_info.sequence_number"


def _about(name: str, state: TableState) -> Aliased:
    """The members of a group that are about the data file: hashes may have brought others in."""
    about = {
        _OF_FILE: _is_of_file,
        _OF_PARTITION: lambda delete: (
            delete["data_path"].isNull()
            & ~delete["is_global"]
            & delete["partition_key"].eqNullSafe(partition_key(state))
        ),
        _OF_TABLE: lambda delete: delete["is_global"],
    }
    group = sql.col(name)
    return sql.coalesce(sql.filter(group, about[name]), sql.empty_array(sql.call("get", group, 0))).alias(name)


def _own(deletes: DeleteEntries, state: TableState, names: Sequence[str]) -> Sql:
    """What applies of the members that are looked at, as plans show it, in Iceberg's order.

    names: the columns of members, null without any: of the file, the partition and the table, but for those that no
    delete is about.
    """
    if not names:
        return _NO_DELETES

    def applied(members: Sql) -> Sql:
        others = [_positions(members[name]) for name in (_OF_PARTITION, _OF_FILE) if name in names]
        if _OF_FILE in names:
            vectors = sql.filter(members[_OF_FILE], lambda delete: delete["is_dv"])
            own = sql.when(sql.size(vectors) > 0, vectors).otherwise(sql.concat(*others))
            others = [vectors if deletes.only_vectors else own]
        scopes = [name for name in (_OF_TABLE, _OF_PARTITION) if name in names and deletes.equality_ids]
        equality = [_overlapping(members[name], deletes, state) for name in scopes]
        return _public(sql.concat(*equality, *others), deletes)

    # The first branch also says that all fields of a delete may be null, as a cast would by copying each.
    is_none = reduce(and_, (sql.col(name).isNull() for name in names))
    shown = sql.let(sql.struct(*(_about(name, state) for name in names)), applied)
    return sql.when(is_none, _NO_DELETES).otherwise(shown)


def _positions(group: Sql) -> Sql:
    """Position delete files apply to data files of their own sequence number, and to older ones."""
    position = int(ContentType.POSITION_DELETES)
    newer = sql.col(_SEQUENCE)
    return sql.filter(
        group,
        lambda delete: (delete["content_type"] == position) & (delete["sequence_number"] >= newer) & ~delete["is_dv"],
    )


def _overlapping(group: Sql, deletes: DeleteEntries, state: TableState) -> Sql:
    """Equality deletes apply to strictly older files, unless stats prove that no row of the file can be equal."""

    def applies(delete: Sql) -> Sql:
        possible = [
            ~_names(delete, one) | _may_share_values(delete, one, state) for one in _compared_ids(deletes, state)
        ]
        newer = delete["sequence_number"] > sql.col(_SEQUENCE)
        return reduce(and_, possible, (delete["content_type"] == int(ContentType.EQUALITY_DELETES)) & newer)

    return sql.filter(group, applies)


def _may_share_values(delete: Sql, field_id: int, state: TableState) -> Sql:
    """False only where one column's stats prove that no value, null included, is in both files."""
    required, kind = state.always_required(field_id), state.primitive_fields[field_id].field_type
    data, deleted = sql.col(f"{CONTENT_STATS}.`{field_id}`"), delete[CONTENT_STATS][str(field_id)]
    both_null = _may_be_null(data, required) & _may_be_null(deleted, required)
    apart = (_all_null(data, required) & ~_may_be_null(deleted, required)) | (
        _all_null(deleted, required) & ~_may_be_null(data, required)
    )
    if _is_ordered(kind):
        apart = apart | _disjoint(data, deleted, isinstance(kind, FloatType | DoubleType))
    return both_null | ~apart


def _is_ordered(kind: IcebergType) -> bool:
    """Whether ranges of bounds prove something: Java and Parquet order UUIDs differently."""
    return not isinstance(kind, UUIDType)


def _may_be_null(stats: Sql, required: bool) -> Sql:
    nulls = stats["null_value_count"]
    return sql.lit(False) if required else nulls.isNull() | (nulls > 0)


def _all_null(stats: Sql, required: bool) -> Sql:
    equal = sql.coalesce(stats["null_value_count"] == stats["value_count"], False)
    return sql.lit(False) if required else equal


def _disjoint(data: Sql, deleted: Sql, floating: bool) -> Sql:
    bounds = [stats[name] for stats in (data, deleted) for name in ("lower_bound", "upper_bound")]
    lower, upper, deleted_lower, deleted_upper = bounds
    apart = (lower > deleted_upper) | (deleted_lower > upper)
    known = reduce(and_, (one.isNotNull() & ~sql.isnan(one) if floating else one.isNotNull() for one in bounds))
    return sql.coalesce(known & apart, False)


def _is_consistent(group: Sql, state: TableState) -> Sql:
    """True, or an error where metadata contradicts itself: deletes are never guessed at. group: by path, or null."""
    sequence, own = sql.col(_SEQUENCE), partition_key(state)

    def older(delete: Sql) -> Sql:
        return _is_of_file(delete) & delete["is_dv"] & (delete["sequence_number"] < sequence)

    def foreign(delete: Sql) -> Sql:
        applies = delete["is_dv"] | (delete["sequence_number"] >= sequence)
        return _is_of_file(delete) & applies & ~delete["partition_key"].eqNullSafe(own)

    return _or_error(
        _no_sequence(),
        *(
            _about_delete(sql.exists(group, wrong), text, sql.call("get", sql.filter(group, wrong), 0))
            for wrong, text in ((older, _OLDER), (foreign, _FOREIGN))
        ),
    )


def _is_of_file(delete: Sql) -> Sql:
    return delete["data_path"] == sql.col("location")


def _vector_is_consistent(vector: Sql, state: TableState) -> Sql:
    """As `_is_consistent`, of one vector or none."""
    foreign = vector.isNotNull() & ~vector["partition_key"].eqNullSafe(partition_key(state))
    return _or_error(
        _no_sequence(),
        _about_delete(vector["sequence_number"] < sql.col(_SEQUENCE), _OLDER, vector),
        _about_delete(foreign, _FOREIGN, vector),
    )


_OLDER = "a deletion vector is older than its data file "
_FOREIGN = "a delete file has another partition spec or partition than its data file "
TWO_VECTORS = "two deletion vectors for "

_Check = tuple[Sql, Sql]


def _no_sequence() -> _Check:
    return sql.col(_SEQUENCE).isNull(), sql.concat("no sequence number is known for data file ", sql.col("location"))


def _about_delete(wrong: Sql, text: str, delete: Sql) -> _Check:
    return wrong, sql.concat(text, sql.col("location"), " ", sql.coalesce(delete["location"], ""))


def _or_error(*checks: _Check) -> Sql:
    """True, or an error for the first check that finds something wrong."""
    (wrong, message), *others = checks
    found = sql.when(wrong, sql.raise_error(message).cast("boolean"))
    for wrong, message in others:
        found = found.when(wrong, sql.raise_error(message).cast("boolean"))
    return found.otherwise(True)


# -- result ---------------------------------------------------------------------------------------------------------


def _public(group: Sql, deletes: DeleteEntries) -> Sql:
    return sql.transform(group, _public_delete(deletes))


def _public_delete(deletes: DeleteEntries) -> Callable[[Sql], Sql]:
    def public(delete: Sql) -> Sql:
        return sql.struct(
            delete["content_type"].alias("content"),
            delete["location"].alias("file_path"),
            delete["file_format"].alias("file_format"),
            delete["file_size_in_bytes"].alias("file_size_in_bytes"),
            delete["referenced_file"].alias("referenced_data_file"),
            delete["offset"].alias("content_offset"),
            delete["size_in_bytes"].alias("content_size_in_bytes"),
            delete["record_count"].alias("record_count"),
            delete["sequence_number"].alias("data_sequence_number"),
            delete["equality_ids"].alias("equality_ids"),
            manifest_path(deletes.manifests, delete["manifest"]).alias("manifest_path"),
            delete["ordinal"].alias("manifest_pos"),
        )

    return public
