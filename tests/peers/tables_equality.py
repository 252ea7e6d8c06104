"""Tables with equality deletes, which only Java's writers (and streaming engines) make."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

from tests.peers.corpus import recipe
from tests.peers.workshop import MERGE_ON_READ

if TYPE_CHECKING:
    from tests.peers.workshop import Workshop


@recipe("deletes", "equality", versions=(2, 3, 4))
def equality_by_java(shop: Workshop, version: int) -> None:
    """By Java's own writers, partitioned: one and several columns, between appends and with rows in one commit."""
    shop.create("id BIGINT, s STRING, x DOUBLE, p STRING", "p", version=version, properties=MERGE_ON_READ)
    shop.insert(*(f"{i}, 's{i}', {i}.5D, '{'ab'[i % 2]}'" for i in range(8)))
    shop.row_delta(shop.equality_delete_by_java(["id"], [[1], [3]], ["b"]))
    shop.insert(*(f"{i}, 's{i}', {i}.5D, '{'ab'[i % 2]}'" for i in range(8, 12)), "20, null, null, null")
    shop.row_delta(
        shop.equality_delete_by_java(["s", "x"], [["s2", 2.5], ["s4", None]], ["a"]),
        shop.equality_delete_by_java(["id"], [[100]], ["a"]),
        shop.equality_delete_by_java(["id"], [[None]], [None]),
        rows=[shop.data_file("with-deletes.parquet", {"id": [4], "s": ["s4"], "p": ["a"]}, ["a"])],
    )
    shop.sql("DELETE FROM {t} WHERE id IN (9, 10)")
    shop.insert("1, 's1', 1.5D, 'b'")


@recipe("deletes", "equality", versions=(2, 3))
def equality_global(shop: Workshop, version: int) -> None:
    """Not partitioned: overlapping, disjoint and null-only deletes, on one column and on two, of growing sequence."""
    shop.create("id INT, s STRING, d DATE", version=version)
    shop.insert("1, 'a', date'2020-01-01'", "5, 'e', date'2020-01-05'")
    shop.insert("10, 'k', null", "15, 'p', null")
    shop.insert("null, null, null")
    shop.row_delta(
        shop.equality_delete("inside.parquet", {"id": [3]}),
        shop.equality_delete("edge.parquet", {"id": [5, 10]}),
        shop.equality_delete("above.parquet", {"id": [16, 20]}),
        shop.equality_delete("null.parquet", {"id": [None]}),
        shop.equality_delete("null-or-1.parquet", {"id": [None, 1]}),
        shop.equality_delete("two.parquet", {"id": [1], "s": ["z"]}),
        shop.equality_delete("two-null.parquet", {"id": [1], "s": [None]}),
        shop.equality_delete("dates.parquet", {"d": [None]}),
        shop.equality_delete("unknown.parquet", {"id": [1000]}, metrics={"write.metadata.metrics.default": "none"}),
        shop.equality_delete("counted.parquet", {"id": [1000]}, metrics={"write.metadata.metrics.default": "counts"}),
    )
    shop.insert("3, 'c', null", "1, null, null")
    shop.row_delta(shop.equality_delete("later.parquet", {"id": [1]}))
    shop.set(write__metadata__metrics__default="none")
    shop.insert("4, 'unmeasured', null")
    shop.row_delta(
        shop.equality_delete("last.parquet", {"id": [4]}), shop.equality_delete("far.parquet", {"s": ["zz"]})
    )


@recipe("deletes", "equality", "partitions", "evolved", versions=(2, 3, 4))
def equality_across_specs(shop: Workshop, version: int) -> None:
    """Global deletes (of the unpartitioned spec) reach every partition; deletes of a partition only its own spec."""
    shop.create("id INT, s STRING", version=version, properties=MERGE_ON_READ)
    shop.insert("1, 'a'", "2, 'b'")
    shop.row_delta(shop.equality_delete("global-1.parquet", {"id": [1]}))
    shop.sql("ALTER TABLE {t} ADD PARTITION FIELD s")
    shop.insert("1, 'a'", "2, 'b'", "3, null")
    shop.row_delta(
        shop.equality_delete("global-2.parquet", {"id": [2]}),
        shop.equality_delete("a.parquet", {"id": [1]}, ["a"], spec_id=1),
        shop.equality_delete("null.parquet", {"id": [3]}, [None], spec_id=1),
        shop.equality_delete("absent.parquet", {"id": [1]}, ["zzz"], spec_id=1),
    )
    shop.insert("1, 'a'", "4, 'd'")
    shop.sql("ALTER TABLE {t} ADD PARTITION FIELD bucket(2, id)")
    shop.insert("1, 'a'", "2, 'b'")
    shop.sql("DELETE FROM {t} WHERE id = 4")
    shop.row_delta(
        shop.equality_delete("global-3.parquet", {"id": [1, 2]}),
        shop.equality_delete("a-0.parquet", {"id": [1]}, ["a", 0], spec_id=2),
        shop.equality_delete("a-again.parquet", {"id": [1]}, ["a"], spec_id=1),
    )


@recipe("deletes", "equality", "schema", "evolved", versions=(2, 3))
def equality_evolved(shop: Workshop, version: int) -> None:
    """On columns that were renamed, widened and dropped later, also where another column took the name."""
    shop.create("id INT, s STRING, x INT, st STRUCT<y: INT>", version=version)
    shop.insert("1, 'a', 10, named_struct('y', 1)", "2, 'b', 20, null")
    shop.row_delta(
        shop.equality_delete("id.parquet", {"id": [1]}),
        shop.equality_delete("s.parquet", {"s": ["b"]}),
        shop.equality_delete("x.parquet", {"x": [99]}),
        shop.equality_delete("nested.parquet", {"st.y": [1]}),
        shop.equality_delete("nested-far.parquet", {"st.y": [77]}),
    )
    shop.sql("ALTER TABLE {t} RENAME COLUMN s TO text")
    shop.sql("ALTER TABLE {t} ALTER COLUMN id TYPE BIGINT")
    shop.sql("ALTER TABLE {t} DROP COLUMN x")
    shop.insert("1, 'a', null", "3, 'c', null")
    shop.row_delta(
        shop.equality_delete("wide.parquet", {"id": [2**40, 3]}),
        shop.equality_delete("text.parquet", {"text": ["zz"]}),
        shop.equality_delete("dropped.parquet", {"x": [10]}),
        shop.equality_delete("dropped-null.parquet", {"x": [None]}),
    )
    shop.sql("ALTER TABLE {t} ADD COLUMN x STRING")
    shop.insert("1, 'a', null, 'x'", "2, 'b', null, null")
    shop.row_delta(shop.equality_delete("new-x.parquet", {"text": ["a"]}))


@recipe("deletes", "equality", "partitions", versions=(2, 3))
def equality_void(shop: Workshop, version: int) -> None:
    """A spec of void fields only counts as unpartitioned: its deletes are global."""
    fields = [("id", "int"), ("s", "string")]
    listed = [{"id": n, "name": name, "required": False, "type": kind} for n, (name, kind) in enumerate(fields, 1)]
    shop.create_by_java(listed, [("id", "void")], version=version)
    shop.append(shop.data_file("a.parquet", {"id": [1, 2], "s": ["a", "b"]}))
    shop.row_delta(shop.equality_delete("void.parquet", {"id": [1]}))
    terms = shop.java.iceberg.expressions.Expressions
    shop.table.updateSpec().removeField("id_void").addField(terms.ref("s")).commit()
    shop.append(shop.data_file("b.parquet", {"id": [1], "s": ["a"]}, ["a"], spec_id=1))
    shop.row_delta(
        shop.equality_delete("void-again.parquet", {"id": [1]}),
        shop.equality_delete("a.parquet", {"id": [1]}, ["a"], 1),
    )


TYPED: dict[str, tuple[list[Any], list[Any]]] = {
    "i": ([1, 5], [6, 9]),
    "l": ([-(2**40), 2**40], [2**40 + 1, 2**41]),
    "f": ([-0.0, 1.5], [0.0, 0.0]),
    "d": ([float("nan"), 1.0], [5.0, float("nan")]),
    "dec": ([Decimal("1.20"), Decimal("5.00")], [Decimal("5.01"), Decimal("9.00")]),
    "day": ([0, 10], [-5, -1]),
    "ts": ([-1, 10**15], [-(10**6), -2]),
    "s": (["a", "z" * 20], ["z" * 16 + "y", "z" * 30]),
    "bin": ([b"\x00", b"\x7f"], [b"\x80", b"\xff"]),
    "b": ([True, False], [True, True]),
}


@recipe("deletes", "equality", versions=(2, 4))
def equality_types(shop: Workshop, version: int) -> None:
    """On every type: deletes of the file's own values, of others beside them, and of nulls."""
    shop.create(
        "i INT, l BIGINT, f FLOAT, d DOUBLE, dec DECIMAL(9,2), day DATE, ts TIMESTAMP, s STRING, bin BINARY, b BOOLEAN",
        version=version,
    )
    shop.append(
        shop.data_file("own.parquet", {name: value for name, (value, _) in TYPED.items()}),
        shop.data_file("beside.parquet", {name: beside for name, (_, beside) in TYPED.items()}),
        shop.data_file("nulls.parquet", {name: [None] for name in TYPED}),
    )
    shop.row_delta(
        *(shop.equality_delete(f"{name}-own.parquet", {name: value}) for name, (value, _) in TYPED.items()),
        *(shop.equality_delete(f"{name}-beside.parquet", {name: beside}) for name, (_, beside) in TYPED.items()),
        *(shop.equality_delete(f"{name}-null.parquet", {name: [None]}) for name in TYPED),
    )
