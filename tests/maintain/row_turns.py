"""Random changes of a table by Java or sparkmeta, and a model of its rows in plain Python."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.types import IntegerType, LongType
from pyspark.sql import functions as F

from tests.frames import local_frame
from tests.peers.twins import LINEAGE, opened
from tests.rows.comparison import row_texts

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    import sparkmeta as sm
    from tests.peers.workshop import Workshop

Row = dict[str, Any]
Texts = Counter[tuple[str | None, ...]]
FIXED = ("id", "name", "part")
PARTS = "xyz"
COMMANDS = ("delete", "update", "merge")


@dataclass
class Condition:
    """A condition with the same meaning in Spark SQL and sparkmeta, and its counterpart in Python."""

    text: str
    holds: Callable[[Row], bool]


@dataclass
class RowTurns:
    """A table, its expected rows, and the changes so far.

    Attributes:
        extra: the columns besides `FIXED`, all of them integers.
        lineage: `_row_id` -> the fixed columns and `_last_updated_sequence_number`, in version 3 only.
        deletes: whether delete files may be written.
    """

    shop: Workshop
    rng: random.Random
    version: int
    rows: list[Row] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    lineage: dict[str, tuple[str | None, ...]] = field(default_factory=dict)
    evolved_spec: bool = False
    is_long: bool = False

    @property
    def table(self) -> sm.Table:
        return opened(self.shop)

    def step(self, *, by_java: bool) -> None:
        """Carry out a random turn, and compare the rows that each library reads with the model."""
        changes = [self.append, self.append, self.overwrite, self.dynamic_overwrite, self.delete, self.delete,
                   self.delete_partition, self.update, self.update, self.merge]  # fmt: skip
        upkeep = [self.rewrite_data, self.rewrite_data, self.rewrite_manifests, self.expire, self.rewrite_deletes]
        evolution = [self.add_column, self.drop_column, self.rename_column, self.widen, self.evolve_spec, self.sort,
                     self.set_modes]  # fmt: skip
        turn = self.rng.choice(self.rng.choices([changes, upkeep, evolution], [6, 2, 2])[0])
        self.names.append(f"{'java' if by_java else 'ours'}: {turn.__name__}")
        turn(by_java)
        self.check(touched=turn in (self.update, self.merge))

    def check(self, *, touched: bool) -> None:
        self.shop.sql("REFRESH TABLE {t}")
        columns = [*FIXED, *self.extra]
        expected: Texts = Counter(tuple(_text(row[name]) for name in columns) for row in self.rows)
        lineage = LINEAGE if self.version >= 3 else ()
        shown = [*columns, *lineage]
        theirs = Counter(row_texts(self.shop.sql(f"SELECT {', '.join(shown)} FROM {{t}}")))
        ours = Counter(row_texts(self.table.scan(selected_fields=tuple(shown)).to_df().select(*shown)))
        last = self.names[-12:]
        assert Counter(row[: len(columns)] for row in theirs.elements()) == expected, last
        assert ours == theirs, last
        if lineage:
            self._check_lineage([*theirs.elements()], touched=touched)

    def _check_lineage(self, rows: list[tuple[str | None, ...]], *, touched: bool) -> None:
        """Check that row ids are unique, and that only a change of a row updates its sequence number."""
        now = {str(row[-2]): (*row[: len(FIXED)], row[-1]) for row in rows}
        assert len(now) == len(rows), self.names[-12:]
        number = str(self.table.metadata.last_sequence_number)
        for row_id in now.keys() & self.lineage.keys():
            before, after = self.lineage[row_id], now[row_id]
            assert before == after or (touched and after[-1] == number), (self.names[-12:], row_id, before, after)
        new = now.keys() - self.lineage.keys()
        assert not self.lineage or not new or min(map(int, new)) > max(map(int, self.lineage)) or touched
        self.lineage = now

    # -- values -----------------------------------------------------------------------------------------------------

    def row(self, part: str | None = None) -> Row:
        row = {"id": self.rng.randint(0, 12), "name": self.rng.choice(["a", "b", None])}
        row["part"] = part or self.rng.choice(PARTS)
        return row | {name: self.rng.choice([None, 1, 2]) for name in self.extra}

    def new_rows(self, part: str | None = None) -> list[Row]:
        return [self.row(part) for _ in range(self.rng.randint(1, 8))]

    def condition(self) -> Condition:
        k = self.rng.randint(0, 12)
        return self.rng.choice([
            Condition(f"id = {k}", lambda row: row["id"] == k),
            Condition(f"id >= {k}", lambda row: row["id"] >= k),
            Condition(f"id > {k} and id < {k + 4}", lambda row: k < row["id"] < k + 4),
            Condition("name is null", lambda row: row["name"] is None),
            Condition("name = 'a'", lambda row: row["name"] == "a"),
            Condition(f"part = 'x' and id < {k}", lambda row: row["part"] == "x" and row["id"] < k),
        ])  # fmt: skip

    def frame(self, rows: list[Row]) -> DataFrame:
        whole = pa.int64() if self.is_long else pa.int32()
        columns = {name: [row[name] for row in rows] for name in (*FIXED, *self.extra)}
        kinds = {"id": whole, "name": pa.string(), "part": pa.string()}
        arrays = {name: pa.array(values, kinds.get(name, pa.int32())) for name, values in columns.items()}
        return local_frame(self.shop.spark, pa.table(arrays)).coalesce(self.rng.choice([1, 2]))

    # -- changes of rows ----------------------------------------------------------------------------------------------

    def append(self, by_java: bool) -> None:
        rows = self.new_rows()
        if by_java:
            self.frame(rows).writeTo(self.shop.sql_name).append()
        else:
            self.table.append(self.frame(rows))
        self.rows += rows

    def overwrite(self, by_java: bool) -> None:
        part = self.rng.choice(PARTS)
        rows = self.new_rows(part)
        if by_java:
            self.frame(rows).writeTo(self.shop.sql_name).overwrite(F.col("part") == part)
        else:
            self.table.overwrite(self.frame(rows), f"part = '{part}'")
        self.rows = [row for row in self.rows if row["part"] != part] + rows

    def dynamic_overwrite(self, by_java: bool) -> None:
        if self.evolved_spec:  # otherwise files of other specs would stay
            return
        rows = self.new_rows()
        if by_java:
            self.frame(rows).writeTo(self.shop.sql_name).overwritePartitions()
        else:
            self.table.dynamic_partition_overwrite(self.frame(rows))
        parts = {row["part"] for row in rows}
        self.rows = [row for row in self.rows if row["part"] not in parts] + rows

    def delete(self, by_java: bool, condition: Condition | None = None) -> None:
        condition = condition or self.condition()
        if by_java:
            self.shop.sql(f"DELETE FROM {{t}} WHERE {condition.text}")
        else:
            self.table.delete(condition.text)
        self.rows = [row for row in self.rows if not condition.holds(row)]

    def delete_partition(self, by_java: bool) -> None:
        part = self.rng.choice(PARTS)
        self.delete(by_java, Condition(f"part = '{part}'", lambda row: row["part"] == part))

    def update(self, by_java: bool) -> None:
        condition = self.condition()
        value: dict[str, Any] = self.rng.choice([{"name": "c"}, {"part": "z"}, {"name": None}])
        if by_java:
            ((name, to),) = value.items()
            self.shop.sql(f"UPDATE {{t}} SET {name} = {'NULL' if to is None else repr(to)} WHERE {condition.text}")
        else:
            self.table.update(value, condition.text)
        self.rows = [row | value if condition.holds(row) else row for row in self.rows]

    def merge(self, by_java: bool) -> None:
        keys = self.rng.sample(range(16), 3)
        present = {row["id"] for row in self.rows}
        if by_java:
            self.shop.sql(
                f"MERGE INTO {{t}} t USING (SELECT explode(array({', '.join(map(str, keys))})) AS id) s ON t.id = s.id "
                "WHEN MATCHED AND t.name = 'a' THEN DELETE WHEN MATCHED THEN UPDATE SET name = 'm' "
                "WHEN NOT MATCHED THEN INSERT (id, name, part) VALUES (s.id, 'new', 'x')"
            )
        else:
            kind = pa.int64() if self.is_long else pa.int32()
            source = local_frame(self.shop.spark, pa.table({"id": pa.array(keys, kind)}))
            merge = self.table.merge(source, on=["id"]).when_matched("target.name = 'a'").delete()
            merge = merge.when_matched().update({"name": F.lit("m")}).when_not_matched()
            merge.insert({"id": F.col("source.id"), "name": F.lit("new"), "part": F.lit("x")}).merge()
        matched = [row for row in self.rows if row["id"] in keys]
        self.rows = [row for row in self.rows if row["id"] not in keys]
        self.rows += [row | {"name": "m"} for row in matched if row["name"] != "a"]
        empty = dict.fromkeys(self.extra)
        self.rows += [{"id": key, "name": "new", "part": "x", **empty} for key in keys if key not in present]

    # -- upkeep -------------------------------------------------------------------------------------------------------

    def rewrite_data(self, by_java: bool) -> None:
        strategy = self.rng.choice(["binpack", "sort", "zorder"])
        order = {"binpack": None, "sort": "id DESC NULLS LAST", "zorder": "zorder(id, name)"}[strategy]
        if by_java:
            sorting = "" if order is None else f", strategy => 'sort', sort_order => '{order}'"
            self.shop.call("rewrite_data_files", f"options => map('rewrite-all', 'true'){sorting}")
        else:
            options: dict[str, Any] = {} if order is None else {"strategy": "sort", "sort_order": order}
            every: dict[str, Any] = {"rewrite_all": True} if self.rng.random() < 0.5 else {"min_input_files": 2}
            self.table.maintenance.rewrite_data_files(**every, **options).commit()

    def rewrite_manifests(self, by_java: bool) -> None:
        if by_java:
            self.shop.call("rewrite_manifests", "use_caching => false")
        else:
            target = self.rng.choice([4_000, 8 << 20])
            self.table.maintenance.rewrite_manifests(target_manifest_bytes=target).commit()

    def rewrite_deletes(self, by_java: bool) -> None:
        if self.version < 2:
            return
        if by_java:
            self.shop.call("rewrite_position_delete_files", "options => map('rewrite-all', 'true')")
        else:
            self.table.maintenance.rewrite_position_delete_files(rewrite_all=True).commit()

    def expire(self, by_java: bool) -> None:
        keep = self.rng.randint(1, 3)
        if by_java:
            self.shop.call("expire_snapshots", f"older_than => TIMESTAMP '2100-01-01 00:00', retain_last => {keep}")
        else:
            self.table.maintenance.expire_snapshots(older_than=4_102_444_800_000, retain_last=keep).commit()

    # -- evolution ----------------------------------------------------------------------------------------------------

    def add_column(self, by_java: bool) -> None:
        name = f"c{len(self.names)}"
        if by_java:
            self.shop.sql(f"ALTER TABLE {{t}} ADD COLUMN {name} INT")
        else:
            self.table.update_schema().add_column(name, IntegerType()).commit()
        self.extra.append(name)
        self.rows = [row | {name: None} for row in self.rows]

    def drop_column(self, by_java: bool) -> None:
        if not self.extra:
            return
        name = self.extra.pop(self.rng.randrange(len(self.extra)))
        if by_java:
            self.shop.sql(f"ALTER TABLE {{t}} DROP COLUMN {name}")
        else:
            self.table.update_schema().delete_column(name).commit()
        self.rows = [{key: value for key, value in row.items() if key != name} for row in self.rows]

    def rename_column(self, by_java: bool) -> None:
        if not self.extra:
            return
        old, new = self.extra.pop(0), f"r{len(self.names)}"
        if by_java:
            self.shop.sql(f"ALTER TABLE {{t}} RENAME COLUMN {old} TO {new}")
        else:
            self.table.update_schema().rename_column(old, new).commit()
        self.extra.append(new)
        self.rows = [{new if key == old else key: value for key, value in row.items()} for row in self.rows]

    def widen(self, by_java: bool) -> None:
        if self.is_long or self.rng.random() < 0.5:
            return
        if by_java:
            self.shop.sql("ALTER TABLE {t} ALTER COLUMN id TYPE BIGINT")
        else:
            self.table.update_schema().update_column("id", LongType()).commit()
        self.is_long = True

    def evolve_spec(self, by_java: bool) -> None:
        """Add the partition field of a second column, or remove it. The field `part` stays."""
        if not self.evolved_spec and self.rng.random() < 0.7:
            return
        live = [
            field.name for field in self.table.spec().fields if field.name != "part" and str(field.transform) != "void"
        ]
        if live and by_java:
            self.shop.sql(f"ALTER TABLE {{t}} DROP PARTITION FIELD {live[0]}")
        elif live:
            self.table.update_spec().remove_field(live[0]).commit()
        elif by_java:
            self.shop.sql("ALTER TABLE {t} ADD PARTITION FIELD bucket(2, id)")
        else:
            self.table.update_spec().add_field("id", "truncate[4]").commit()
        self.evolved_spec = True

    def sort(self, by_java: bool) -> None:
        if by_java:
            self.shop.sql(f"ALTER TABLE {{t}} WRITE {self.rng.choice(['ORDERED BY id', 'UNORDERED'])}")
        else:
            update = self.table.update_sort_order()
            (update.asc("name", "identity") if self.rng.random() < 0.5 else update).commit()  # type: ignore[arg-type]

    def set_modes(self, by_java: bool) -> None:
        modes = ["merge-on-read", "copy-on-write"] if self.version > 1 else ["copy-on-write"]
        changed = {f"write.{command}.mode": self.rng.choice(modes) for command in COMMANDS}
        changed["write.delete.granularity"] = self.rng.choice(["file", "partition"])
        if by_java:
            self.shop.set(**{key.replace(".", "__"): value for key, value in changed.items()})
        else:
            with self.table.transaction() as tx:
                tx.set_properties(changed)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
