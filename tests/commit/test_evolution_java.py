"""Changes of schema, partition spec, sort order, properties and refs result in the same metadata as Java's changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JJavaError
from pyiceberg.exceptions import ValidationError
from pyiceberg.table.sorting import NullOrder
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
)
from pyspark.errors import PySparkException

from tests.peers.slices import SOAK
from tests.peers.twins import comparable, document, opened, rows, twins

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    import sparkmeta as sm
    from tests.peers.workshop import Workshop

pytestmark = pytest.mark.java

COLUMNS = (
    "id INT NOT NULL, name STRING, at TIMESTAMP, price DECIMAL(9,2), "
    "s STRUCT<x: INT, y: STRING>, l ARRAY<STRUCT<v: INT>>, m MAP<STRING, STRUCT<w: INT>>"
)
FIRST_PROPERTIES = {
    "write.metadata.metrics.column.name": "full",
    "write.metadata.metrics.column.s.y": "counts",
    "write.parquet.bloom-filter-enabled.column.name": "true",
    "write.parquet.bloom-filter-enabled.column.price": "true",
}


def schema(change: Callable[[Any], Any]) -> Callable[[sm.Table], Any]:
    def carry_out(table: sm.Table) -> None:
        with table.update_schema() as update:
            change(update)

    return carry_out


def spec(change: Callable[[Any], Any]) -> Callable[[sm.Table], Any]:
    def carry_out(table: sm.Table) -> None:
        with table.update_spec() as update:
            change(update)

    return carry_out


def sort_order(change: Callable[[Any], Any], distribution: str = "range") -> Callable[[sm.Table], Any]:
    """Return a change of the sort order. It sets the distribution mode too, like Spark's statement."""

    def carry_out(table: sm.Table) -> None:
        with table.transaction() as tx:
            with tx.update_sort_order() as update:
                change(update)
            tx.set_properties({"write.distribution-mode": distribution})

    return carry_out


def properties(**values: str | None) -> Callable[[sm.Table], Any]:
    def carry_out(table: sm.Table) -> None:
        named = {key.replace("__", ".").replace("_", "-"): value for key, value in values.items()}
        with table.transaction() as tx:
            tx.set_properties({key: value for key, value in named.items() if value is not None})
            tx.remove_properties(*(key for key, value in named.items() if value is None))

    return carry_out


def refs(change: Callable[[Any, sm.Table], Any]) -> Callable[[sm.Table], Any]:
    def carry_out(table: sm.Table) -> None:
        with table.manage_snapshots() as update:
            change(update, table)

    return carry_out


def snapshot(table: sm.Table, number: int) -> int:
    return table.metadata.snapshots[number].snapshot_id


def api(statement: str) -> Callable[[Workshop], Any]:
    """Return a change by Java's API, an expression of `table`, `exprs` and `ids`, the snapshot ids in order."""

    def carry_out(shop: Workshop) -> None:
        exprs = shop.java.iceberg.expressions.Expressions
        ids = [snapshot["snapshot-id"] for snapshot in document(shop)["snapshots"]]
        iceberg = shop.java.iceberg
        names = {"table": shop.table, "ids": ids, "java": shop.java, "exprs": exprs}
        eval(statement, names | {"types": iceberg.types.Types, "literal": iceberg.expressions.Literal})

    return carry_out


DAY = 86_400_000
FIRST, LAST = NullOrder.NULLS_FIRST, NullOrder.NULLS_LAST
# The partition fields before the last change.
FIELDS = ("d2", "time_year", "label", "short", "label_trunc_3", "key_bucket_4")
Carry = str | Callable[["Workshop"], Any]
Change = Callable[["sm.Table"], Any]
# name -> Java's change, our change.
SCHEMA_STEPS: dict[str, tuple[Carry, Change]] = {
    "add a column": (
        "ADD COLUMN n INT COMMENT 'a number'", schema(lambda u: u.add_column("n", IntegerType(), doc="a number"))
    ),
    "drop it, as before": ("DROP COLUMN n", schema(lambda u: u.delete_column("n"))),
    "add it again": ("ADD COLUMN n INT", schema(lambda u: u.add_column("n", IntegerType()))),
    "add two": (
        "ADD COLUMNS (a DOUBLE, b ARRAY<STRUCT<k: INT, v: MAP<STRING, INT>>>)",
        schema(lambda u: u.add_column("a", DoubleType()).add_column("b", ListType(1, StructType(
            NestedField(2, "k", IntegerType()),
            NestedField(3, "v", MapType(4, StringType(), 5, IntegerType(), value_required=False))),
            element_required=False)))
    ),
    "add a nested column": ("ADD COLUMN s.z DOUBLE", schema(lambda u: u.add_column(("s", "z"), DoubleType()))),
    "add in a list": ("ADD COLUMN l.element.u INT", schema(lambda u: u.add_column(("l", "u"), IntegerType()))),
    "add in a map": ("ADD COLUMN m.value.u INT", schema(lambda u: u.add_column(("m", "u"), IntegerType()))),
    "rename with properties": ("RENAME COLUMN name TO label", schema(lambda u: u.rename_column("name", "label"))),
    "rename a nested column": ("RENAME COLUMN s.y TO why", schema(lambda u: u.rename_column("s.y", "why"))),
    "widen an int": ("ALTER COLUMN id TYPE BIGINT", schema(lambda u: u.update_column("id", LongType()))),
    "widen a decimal": (
        "ALTER COLUMN price TYPE DECIMAL(12,2)", schema(lambda u: u.update_column("price", DecimalType(12, 2)))
    ),
    "widen a nested int": ("ALTER COLUMN s.x TYPE BIGINT", schema(lambda u: u.update_column("s.x", LongType()))),
    "comment": ("ALTER COLUMN id COMMENT 'the key'", schema(lambda u: u.update_column("id", doc="the key"))),
    "identifier": ("SET IDENTIFIER FIELDS id", schema(lambda u: u.set_identifier_fields("id"))),
    "rename the identifier": ("RENAME COLUMN id TO key", schema(lambda u: u.rename_column("id", "key"))),
    "no identifier": ("DROP IDENTIFIER FIELDS key", schema(lambda u: u.set_identifier_fields())),
    "optional": ("ALTER COLUMN key DROP NOT NULL", schema(lambda u: u.make_column_optional("key"))),
    "first": ("ALTER COLUMN label FIRST", schema(lambda u: u.move_first("label"))),
    "after": ("ALTER COLUMN key AFTER at", schema(lambda u: u.move_after("key", "at"))),
    "nested first": ("ALTER COLUMN s.why FIRST", schema(lambda u: u.move_first("s.why"))),
    "add after": ("ADD COLUMN c INT AFTER label",
                  schema(lambda u: u.add_column("c", IntegerType()).move_after("c", "label"))),
    "drop a column with properties": ("DROP COLUMN price", schema(lambda u: u.delete_column("price"))),
    "drop a nested column": ("DROP COLUMN s.why", schema(lambda u: u.delete_column("s.why"))),
    "the same name, another type": ("ADD COLUMN price INT", schema(lambda u: u.add_column("price", IntegerType()))),
}  # fmt: skip
SPEC_STEPS: dict[str, tuple[Carry, Change]] = {
    "bucket": ("ADD PARTITION FIELD bucket(4, key)", spec(lambda u: u.add_field("key", BucketTransform(4)))),
    "named days": ("ADD PARTITION FIELD days(at) AS day", spec(lambda u: u.add_field("at", DayTransform(), "day"))),
    "months for days": (
        "REPLACE PARTITION FIELD day WITH months(at)",
        spec(lambda u: u.remove_field("day").add_field("at", MonthTransform())),
    ),
    "days again": (
        "REPLACE PARTITION FIELD at_month WITH days(at) AS day",
        spec(lambda u: u.remove_field("at_month").add_field("at", DayTransform(), "day")),
    ),
    "identity and truncate": (
        api('table.updateSpec().addField("label").addField(exprs.truncate("label", 3)).commit()'),
        spec(lambda u: u.add_identity("label").add_field("label", TruncateTransform(3))),
    ),
    "without the bucket": ("DROP PARTITION FIELD key_bucket_4", spec(lambda u: u.remove_field("key_bucket_4"))),
    "the bucket again": ("ADD PARTITION FIELD bucket(4, key)", spec(lambda u: u.add_field("key", BucketTransform(4)))),
    "rename": (
        api('table.updateSpec().renameField("label_trunc_3", "short").commit()'),
        spec(lambda u: u.rename_field("label_trunc_3", "short")),
    ),
    "a field of the old name": (
        "ADD PARTITION FIELD truncate(5, label) AS label_trunc_3",
        spec(lambda u: u.add_field("label", TruncateTransform(5), "label_trunc_3")),
    ),
    "rename the source": ("RENAME COLUMN at TO `time`", schema(lambda u: u.rename_column("at", "time"))),
    "years": ("ADD PARTITION FIELD years(time)", spec(lambda u: u.add_field("time", YearTransform()))),
    "remove and add": (
        api('table.updateSpec().removeField("day").addField("d2", exprs.day("time")).commit()'),
        spec(lambda u: u.remove_field("day").add_field("time", DayTransform(), "d2")),
    ),
    "nothing": (
        api("table.updateSpec()" + "".join(f'.removeField("{name}")' for name in FIELDS) + ".commit()"),
        spec(lambda u: [u.remove_field(name) for name in FIELDS]),
    ),
}  # fmt: skip
SORT_STEPS: dict[str, tuple[Carry, Change]] = {
    "sorted": ("WRITE ORDERED BY key", sort_order(lambda u: u.asc("key", IdentityTransform(), FIRST))),
    "by two": (
        "WRITE ORDERED BY bucket(8, key) DESC NULLS LAST, time ASC NULLS LAST",
        sort_order(lambda u: u.desc("key", BucketTransform(8), LAST).asc("time", IdentityTransform(), LAST)),
    ),
    "the first again": ("WRITE ORDERED BY key", sort_order(lambda u: u.asc("key", IdentityTransform(), FIRST))),
    "unsorted": ("WRITE UNORDERED", sort_order(lambda _: None, "none")),
    "locally": (
        "WRITE LOCALLY ORDERED BY key DESC", sort_order(lambda u: u.desc("key", IdentityTransform(), LAST), "none")
    ),
    "rename": ("RENAME COLUMN key TO id", schema(lambda u: u.rename_column("key", "id"))),
    "properties": ("SET TBLPROPERTIES ('x.owner'='me', 'write.x'='1')", properties(x__owner="me", write__x="1")),
    "other properties": ("UNSET TBLPROPERTIES ('write.x')", properties(write__x=None)),
    "an unknown property": ("UNSET TBLPROPERTIES IF EXISTS ('none')", properties(none=None)),
}  # fmt: skip
REF_STEPS: dict[str, tuple[Carry, Change]] = {
    "a tag": ("CREATE TAG first", refs(lambda u, t: u.create_tag(snapshot(t, -1), "first"))),
    "an old tag": (
        api('table.manageSnapshots().createTag("old", ids[0]).setMaxRefAgeMs("old", 5).commit()'),
        refs(lambda u, t: u.create_tag(snapshot(t, 0), "old", 5)),
    ),
    "a branch": (
        "CREATE BRANCH b RETAIN 7 DAYS WITH SNAPSHOT RETENTION 2 SNAPSHOTS 3 DAYS",
        refs(lambda u, t: u.create_branch(snapshot(t, -1), "b", 7 * DAY, 3 * DAY, 2)),
    ),
    "retention": (
        api(
            'table.manageSnapshots().setMinSnapshotsToKeep("b", 4).setMaxSnapshotAgeMs("b", 5)'
            '.setMaxRefAgeMs("b", 6).commit()'
        ),
        refs(
            lambda u, _: u.set_min_snapshots_to_keep("b", 4).set_max_snapshot_age_ms("b", 5).set_max_ref_age_ms("b", 6)
        ),
    ),
    "retention of main": (
        api('table.manageSnapshots().setMinSnapshotsToKeep("main", 3).commit()'),
        refs(lambda u, _: u.set_min_snapshots_to_keep("main", 3)),
    ),
    "rollback": (
        api("table.manageSnapshots().rollbackTo(ids[1]).commit()"),
        refs(lambda u, t: u.rollback_to_snapshot(snapshot(t, 1))),
    ),
    "forward again": (
        api("table.manageSnapshots().setCurrentSnapshot(ids[-1]).commit()"),
        refs(lambda u, t: u.set_current_snapshot(snapshot(t, -1))),
    ),
    "replace a branch": (
        api('table.manageSnapshots().replaceBranch("b", ids[0]).commit()'),
        refs(lambda u, t: u.replace_branch("b", snapshot(t, 0))),
    ),
    "fast-forward": (
        api('table.manageSnapshots().fastForwardBranch("b", "main").commit()'),
        refs(lambda u, _: u.fast_forward("b", "main")),
    ),
    "replace a tag": (
        api('table.manageSnapshots().replaceTag("first", ids[1]).commit()'),
        refs(lambda u, t: u.replace_tag("first", snapshot(t, 1))),
    ),
    "rename a branch": (
        api('table.manageSnapshots().renameBranch("b", "c").commit()'), refs(lambda u, _: u.rename_branch("b", "c"))
    ),
    "drop": (
        api('table.manageSnapshots().removeBranch("c").removeTag("old").commit()'),
        refs(lambda u, _: u.remove_branch("c").remove_tag("old")),
    ),
}  # fmt: skip
STEPS = [
    (f"{part}: {name}", *step)
    for part, steps in {"schema": SCHEMA_STEPS, "spec": SPEC_STEPS, "order": SORT_STEPS, "ref": REF_STEPS}.items()
    for name, step in steps.items()
]


def java(shop: Workshop, change: Carry) -> None:
    if isinstance(change, str):
        shop.sql(f"ALTER TABLE {{t}} {change}")
    else:
        change(shop)


def settled(shop: Workshop) -> dict[str, Any]:
    """Return the fields to compare, with name mappings as JSON.

    The mappings lack columns without names, which Java keeps.
    """
    shown = comparable(document(shop))
    shown["properties"] = {
        key: named(json.loads(value)) if key == "schema.name-mapping.default" else value
        for key, value in shown["properties"].items()
    }
    return {key: value for key, value in shown.items() if key != "metadata-files"}


def named(fields: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [field | {"fields": named(field.get("fields", []))} for field in fields if field["names"]]


@pytest.mark.parametrize("version", [1, 2, 3] if SOAK else [1, 3])
def test_metadata_is_that_of_java(spark: SparkSession, version: int) -> None:
    """Twin tables with rows and a name mapping are changed repeatedly."""
    theirs, ours = twins(spark, f"evolved_{version}", COLUMNS, version=version, properties=FIRST_PROPERTIES)
    mapping = "java.iceberg.mapping.NameMappingParser.toJson(java.iceberg.mapping.MappingUtil.create(table.schema()))"
    for shop in (theirs, ours):
        for _ in range(3):
            shop.sql("INSERT INTO {t} (id) VALUES (1)")
        api(f'table.updateProperties().set("schema.name-mapping.default", {mapping}).commit()')(shop)
    for name, of_java, of_ours in STEPS:
        java(theirs, of_java)
        of_ours(opened(ours))
        after, expected = settled(ours), settled(theirs)
        for key in after.keys() | expected.keys():
            assert after.get(key) == expected.get(key), f"{name}: {key}"
    assert rows(ours) == rows(theirs)


# name -> the change that Java refuses, the change that we refuse, and our reason.
REFUSED: dict[str, tuple[Carry, Change, str]] = {
    "a default": (
        api('table.updateSchema().addColumn("d", types.IntegerType.get(), literal.of(5)).commit()'),
        schema(lambda u: u.add_column("d", IntegerType(), default_value=5)), "does not support the default",
    ),
    "nanoseconds": (
        api('table.updateSchema().addColumn("d", types.TimestampNanoType.withoutZone()).commit()'),
        schema(lambda u: u.add_column("d", TimestampNanoType())), "column d of type timestamp_ns",
    ),
    "a narrower type": (
        "ALTER COLUMN price TYPE DECIMAL(8,2)",
        schema(lambda u: u.update_column("price", DecimalType(8, 2))), "Cannot change",
    ),
    "a required column": (
        api('table.updateSchema().addRequiredColumn("d", types.IntegerType.get()).commit()'),
        schema(lambda u: u.add_column("d", IntegerType(), required=True)), "cannot add required column",
    ),
    "the source of a partition field": ("DROP COLUMN name", schema(lambda u: u.delete_column("name")), "a source of"),
    "a branch that exists": (
        "CREATE BRANCH b", refs(lambda u, t: u.create_branch(snapshot(t, 0), "b")), "there is a branch 'b' already"
    ),
    "a tag of a branch's name": (
        "CREATE TAG b", refs(lambda u, t: u.create_tag(snapshot(t, 0), "b")), "there is a branch 'b' already"
    ),
    "a tag of no snapshot": (
        api('table.manageSnapshots().createTag("n", 5).commit()'), refs(lambda u, _: u.create_tag(5, "n")), "snapshot"
    ),
    "remove an unknown branch": ("DROP BRANCH none", refs(lambda u, _: u.remove_branch("none")), "has no branch"),
    "remove main": ("DROP BRANCH main", refs(lambda u, _: u.remove_branch("main")), "main can't be removed"),
    "remove a branch as a tag": ("DROP TAG b", refs(lambda u, _: u.remove_tag("b")), "'b' is a branch: expected a tag"),
    "rename main": (
        api('table.manageSnapshots().renameBranch("main", "c").commit()'),
        refs(lambda u, _: u.rename_branch("main", "c")), "main can't be renamed",
    ),
    "rename to a name that exists": (
        api('table.manageSnapshots().renameBranch("b", "t").commit()'),
        refs(lambda u, _: u.rename_branch("b", "t")), "there is a tag 't' already",
    ),
    "retention of a tag": (
        api('table.manageSnapshots().setMinSnapshotsToKeep("t", 2).commit()'),
        refs(lambda u, _: u.set_min_snapshots_to_keep("t", 2)), "'t' is a tag: expected a branch",
    ),
    "no retention": (
        api('table.manageSnapshots().setMinSnapshotsToKeep("b", 0).commit()'),
        refs(lambda u, _: u.set_min_snapshots_to_keep("b", 0)), "min_snapshots_to_keep is 0",
    ),
    "move a branch as a tag": (
        api('table.manageSnapshots().replaceTag("b", ids[0]).commit()'),
        refs(lambda u, t: u.replace_tag("b", snapshot(t, 0))), "'b' is a branch: expected a tag",
    ),
    "rollback to no ancestor": (
        api("table.manageSnapshots().rollbackTo(ids[-1]).commit()"),
        refs(lambda u, t: u.rollback_to_snapshot(snapshot(t, -1))), "not an ancestor",
    ),
    "an earlier version": (
        "SET TBLPROPERTIES ('format-version'='1')", properties(format_version="1"), "table.maintenance.upgrade changes"
    ),
}  # fmt: skip


def test_what_both_refuse(spark: SparkSession) -> None:
    columns = "id INT, name STRING, price DECIMAL(9,2)"
    theirs, ours = twins(spark, "evolved_refused", columns, "name", version=2)
    for shop in (theirs, ours):
        shop.insert("1, 'a', 1.0")
        shop.sql("ALTER TABLE {t} CREATE BRANCH b")
        shop.sql("ALTER TABLE {t} CREATE TAG t")
        shop.sql(f"INSERT INTO {shop.sql_name}.branch_b VALUES (2, 'b', 1.0)")
    before = document(theirs), document(ours)
    for name, (of_java, of_ours, problem) in REFUSED.items():
        with pytest.raises((PySparkException, Py4JJavaError)):
            java(theirs, of_java)
        with pytest.raises((ValidationError, ValueError)) as caught:
            of_ours(opened(ours))
        assert problem in str(caught.value), name
    assert (document(theirs), document(ours)) == before
