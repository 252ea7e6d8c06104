"""Tables whose schema and partition specs changed while files were written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.peers.corpus import ALL_VERSIONS, recipe
from tests.peers.workshop import MERGE_ON_READ

if TYPE_CHECKING:
    from tests.peers.workshop import Workshop


def events(shop: Workshop, start: int, count: int = 3) -> None:
    """Rows of (id, s, ts)."""
    shop.insert(
        *(
            f"{i}, '{'abc'[i % 3]}bcdef', timestamp_micros({(i - 3) * 40_000_000_000_000})"
            for i in range(start, start + count)
        ),
        f"{start}, null, null",
    )


@recipe("partitions", "evolved", versions=ALL_VERSIONS)
def spec_evolution(shop: Workshop, version: int) -> None:
    """Fields added, dropped (void in version 1), replaced and added again; files of every spec stay."""
    shop.create("id INT, s STRING, ts TIMESTAMP", "s", version=version)
    events(shop, 0)
    shop.sql("ALTER TABLE {t} ADD PARTITION FIELD days(ts)")
    events(shop, 3)
    shop.sql("ALTER TABLE {t} DROP PARTITION FIELD s")
    events(shop, 1)
    shop.sql("ALTER TABLE {t} ADD PARTITION FIELD bucket(3, id)")
    events(shop, 5)
    shop.sql("ALTER TABLE {t} REPLACE PARTITION FIELD days(ts) WITH months(ts)")
    events(shop, 2)
    shop.sql("ALTER TABLE {t} ADD PARTITION FIELD s")
    events(shop, 6)
    shop.sql("ALTER TABLE {t} DROP PARTITION FIELD months(ts)")
    shop.sql("ALTER TABLE {t} DROP PARTITION FIELD s")
    shop.sql("ALTER TABLE {t} DROP PARTITION FIELD bucket(3, id)")
    events(shop, 4)


@recipe("partitions", "evolved", versions=ALL_VERSIONS)
def spec_from_unpartitioned(shop: Workshop, version: int) -> None:
    """Not partitioned at first, then by a truncated text of two widths, whose names clash."""
    shop.create("id INT, s STRING, ts TIMESTAMP", version=version)
    events(shop, 0)
    shop.sql("ALTER TABLE {t} ADD PARTITION FIELD truncate(1, s)")
    events(shop, 2)
    shop.sql("ALTER TABLE {t} DROP PARTITION FIELD truncate(1, s)")
    shop.sql("ALTER TABLE {t} ADD PARTITION FIELD truncate(3, s)")
    events(shop, 1)
    shop.sql("ALTER TABLE {t} DROP PARTITION FIELD truncate(3, s)")
    shop.sql("ALTER TABLE {t} ADD PARTITION FIELD truncate(1, s) AS first_letter")
    events(shop, 3)


@recipe("partitions", "evolved", versions=(1, 2, 3))
def spec_renamed(shop: Workshop, version: int) -> None:
    """Partition fields renamed, and one replaced under a new name."""
    shop.create("id INT, s STRING, ts TIMESTAMP", "s, bucket(2, id)", version=version)
    events(shop, 0)
    shop.table.updateSpec().renameField("s", "letter").renameField("id_bucket", "shard").commit()
    events(shop, 2)
    terms = shop.java.iceberg.expressions.Expressions
    shop.table.updateSpec().removeField("shard").addField("group", terms.truncate("id", 5)).commit()
    events(shop, 3)
    events(shop, 7)


@recipe("partitions", "evolved", "schema", versions=(1, 2, 4))
def spec_source_renamed(shop: Workshop, version: int) -> None:
    """Source columns renamed; partition fields keep the old names."""
    shop.create("id INT, s STRING, ts TIMESTAMP", "s, days(ts), truncate(2, id)", version=version)
    events(shop, 0)
    shop.sql("ALTER TABLE {t} RENAME COLUMN s TO letter")
    shop.sql("ALTER TABLE {t} RENAME COLUMN id TO key")
    events(shop, 3)
    shop.sql("ALTER TABLE {t} RENAME COLUMN letter TO id")
    events(shop, 6)


@recipe("partitions", "schema", versions=(2, 3))
def spec_nested_source(shop: Workshop, version: int) -> None:
    """Partitioned by fields inside structs, which may be null."""
    columns = "id INT, st STRUCT<x: INT, deep: STRUCT<y: STRING, at: TIMESTAMP>>"
    shop.create(columns, "st.x, truncate(1, st.deep.y), hours(st.deep.at)", version=version, properties=MERGE_ON_READ)
    for i in range(3):
        deep = f"named_struct('y', '{'ab'[i % 2]}{i}', 'at', timestamp_micros({(i - 1) * 3_600_000_001}))"
        shop.insert(
            f"{i}, named_struct('x', {i}, 'deep', {deep})",
            f"{i + 10}, named_struct('x', null, 'deep', {deep})",
            f"{i + 20}, null",
        )
    shop.sql("DELETE FROM {t} WHERE id IN (20, 11)")


@recipe("partitions", "evolved", "not_spark", "name_clash", versions=(2, 3))
def spec_name_clash(shop: Workshop, version: int) -> None:
    """Two partition fields of one name, of different specs: Java's metadata tables fail on them."""
    shop.create("id INT, s STRING, ts TIMESTAMP", "bucket(2, id), s", version=version)
    events(shop, 0)
    terms = shop.java.iceberg.expressions.Expressions
    shop.table.updateSpec().removeField("id_bucket").addField("id_bucket", terms.truncate("id", 5)).commit()
    for start in (3, 7):
        shop.append(
            shop.content_file({"file-path": shop.file_location(str(start)), "spec-id": 1, "partition": ["a", start]})
        )


@recipe("partitions", "evolved", "schema", versions=(2, 3, 4))
def spec_dropped_source(shop: Workshop, version: int) -> None:
    """The source column of a dropped partition field is dropped too, then another column takes its name."""
    shop.create("id INT, s STRING, ts TIMESTAMP", "s, days(ts)", version=version)
    events(shop, 0)
    shop.sql("ALTER TABLE {t} DROP PARTITION FIELD s")
    events(shop, 3)
    shop.sql("ALTER TABLE {t} DROP COLUMN s")
    shop.insert("1, timestamp_micros(0)", "2, timestamp_micros(-1)")
    shop.sql("ALTER TABLE {t} ADD COLUMN s BIGINT")
    shop.sql("ALTER TABLE {t} ADD PARTITION FIELD s")
    shop.insert("1, timestamp_micros(0), 5", "2, timestamp_micros(-1), null", "3, null, 7")


@recipe("partitions", "evolved", "schema", versions=(1, 2, 3))
def spec_promoted_source(shop: Workshop, version: int) -> None:
    """Partition sources whose types were widened: old manifests hold the narrow values."""
    shop.create("i INT, f FLOAT, d DECIMAL(9,2), x INT", "i, f, d, bucket(3, x)", version=version)
    for n in range(3):
        shop.insert(f"{n}, float('{n}.5'), cast({n}.25 as decimal(9,2)), {n}", f"-{n}, float('NaN'), null, {n + 10}")
    shop.sql("ALTER TABLE {t} ALTER COLUMN i TYPE BIGINT")
    shop.sql("ALTER TABLE {t} ALTER COLUMN f TYPE DOUBLE")
    shop.sql("ALTER TABLE {t} ALTER COLUMN d TYPE DECIMAL(18,2)")
    shop.sql("ALTER TABLE {t} ALTER COLUMN x TYPE BIGINT")
    for n in range(3):
        shop.insert(
            f"{n}, double('{n}.5'), cast({n}.25 as decimal(18,2)), {n}",
            f"{2**40 + n}, double('1e300'), cast({10**14} as decimal(18,2)), null",
        )


@recipe("evolved", "schema", versions=ALL_VERSIONS)
def schema_evolution(shop: Workshop, version: int) -> None:
    """Columns renamed, dropped, added under an old name, moved, widened; each state has files and a snapshot."""
    shop.create("id INT, a STRING, f FLOAT, d DECIMAL(5,2), st STRUCT<x: INT, y: STRING>, gone INT", version=version)
    shop.insert("1, 'a1', float('1.5'), cast(1.25 as decimal(5,2)), named_struct('x', 1, 'y', 'y1'), 10")
    shop.insert("2, 'a2', float('NaN'), cast(2.25 as decimal(5,2)), null, 20", "3, null, null, null, null, null")
    shop.sql("ALTER TABLE {t} RENAME COLUMN a TO b")
    shop.sql("ALTER TABLE {t} DROP COLUMN gone")
    shop.insert("4, 'a4', float('4.5'), cast(4.25 as decimal(5,2)), named_struct('x', 4, 'y', 'y4')")
    shop.sql("ALTER TABLE {t} ADD COLUMN gone STRING FIRST")
    shop.sql("ALTER TABLE {t} ADD COLUMN a BIGINT AFTER id")
    shop.insert("'back', 5, 50, 'a5', float('5.5'), cast(5.25 as decimal(5,2)), named_struct('x', 5, 'y', 'y5')")
    for column, wider in (("id", "BIGINT"), ("f", "DOUBLE"), ("d", "DECIMAL(20,2)"), ("st.x", "BIGINT")):
        shop.sql(f"ALTER TABLE {{t}} ALTER COLUMN {column} TYPE {wider}")
    shop.sql("ALTER TABLE {t} ADD COLUMN st.z DOUBLE")
    shop.sql("ALTER TABLE {t} RENAME COLUMN st.y TO w")
    shop.sql("ALTER TABLE {t} ALTER COLUMN b FIRST")
    nested = "named_struct('x', {0}L, 'w', 'w{0}', 'z', double('{0}.5'))"
    shop.insert(f"'a6', 'back6', {2**40}, 60, double('1e300'), cast(1e15 as decimal(20,2)), {nested.format(6)}")
    shop.sql("ALTER TABLE {t} DROP COLUMN st.x")
    shop.sql("ALTER TABLE {t} ADD COLUMN st.x STRING")
    shop.insert("'a7', null, 7, 70, null, null, named_struct('w', 'w7', 'z', null, 'x', 'text')")


@recipe("evolved", "schema", "deletes", versions=(2, 3))
def evolution_with_deletes(shop: Workshop, version: int) -> None:
    """Merge-on-read deletes before and after specs and columns changed."""
    shop.create("id INT, s STRING, ts TIMESTAMP", "s", version=version, properties=MERGE_ON_READ)
    events(shop, 0, 6)
    shop.sql("DELETE FROM {t} WHERE id = 1 AND s IS NOT NULL")
    shop.sql("ALTER TABLE {t} REPLACE PARTITION FIELD s WITH bucket(2, s)")
    events(shop, 2, 6)
    shop.sql("DELETE FROM {t} WHERE id IN (2, 3, 4)")
    shop.sql("ALTER TABLE {t} RENAME COLUMN id TO key")
    shop.sql("ALTER TABLE {t} ALTER COLUMN key TYPE BIGINT")
    shop.sql("ALTER TABLE {t} DROP PARTITION FIELD bucket(2, s)")
    events(shop, 5, 4)
    shop.sql("UPDATE {t} SET s = 'changed' WHERE key = 5")
    shop.sql("DELETE FROM {t} WHERE s IS NULL")
