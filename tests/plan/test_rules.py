"""The rules about contradictory deletes: SQL and Arrow find the same, on every combination of what they look at."""

from __future__ import annotations

import itertools
import struct
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from sparkmeta.errors import ValidationError
from sparkmeta.expr import evaluate, sql
from sparkmeta.plan.deletes import rules
from sparkmeta.plan.deletes.rules import (
    DeleteRule,
    data_view,
    entry_view,
    partition_key,
    repeated_paths,
    second_dv,
)
from tests.frames import local_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import SparkSession

NAN, OTHER_NAN = (struct.unpack("<d", struct.pack("<Q", bits))[0] for bits in (0x7FF8 << 48, 0x7FF9 << 48))
TEXTS, RATIOS = ("x", "y", None), (0.0, -0.0, NAN, OTHER_NAN)
PARTITIONS = [(0, None, None), *((1, text, None) for text in TEXTS), *((2, None, ratio) for ratio in RATIOS)]
SEQUENCES = (None, 1, 2, 3)
KINDS = [(1, "PUFFIN", "a"), (1, "PUFFIN", None), (1, "PARQUET", "a"), (2, "PARQUET", None), (2, "PUFFIN", "a")]
STATE: Any = SimpleNamespace(types=SimpleNamespace(partition_fields={1000: "string", 1001: "double"}))

ENTRY = pa.schema(
    {
        "version_info": pa.struct({"sequence_number": pa.int64()}),
        "partition_spec_id": pa.int32(),
        "partition": pa.struct({"1000": pa.string(), "1001": pa.float64()}),
        "content_type": pa.int32(),
        "file_format": pa.string(),
        "referenced_file": pa.string(),
    }
)
EXPECTED: dict[str, Callable[[Any, Any], bool]] = {
    "DATA_WITHOUT_SEQUENCE": lambda data, _: data.sequence is None,
    "DELETE_WITHOUT_SEQUENCE": lambda _, delete: delete.sequence is None,
    "OLDER_DV": lambda data, delete: delete.is_dv and less(delete.sequence, data.sequence),
    "FOREIGN_DELETE": lambda data, delete: (
        delete.partition != data.partition and (delete.is_dv or less(data.sequence, delete.sequence, or_equal=True))
    ),
    "NOT_A_DV": lambda _, delete: not (delete.is_dv and delete.path),
    "NO_COLUMNS": lambda _, delete: delete.content == 2,
}


def less(left: int | None, right: int | None, *, or_equal: bool = False) -> bool:
    return left is not None and right is not None and (left < right or (or_equal and left == right))


def entry(sequence: int | None, partition: tuple[int, Any, Any], kind: tuple[int, str, str | None]) -> dict[str, Any]:
    spec_id, part, ratio = partition
    content, file_format, path = kind
    return {
        "version_info": {"sequence_number": sequence},
        "partition_spec_id": spec_id,
        "partition": {"1000": part, "1001": ratio},
        "content_type": content,
        "file_format": file_format,
        "referenced_file": path,
    }


def facts(row: dict[str, Any]) -> SimpleNamespace:
    """Return the values that the model compares. The text of floats distinguishes -0.0 from 0.0."""
    is_vector = (row["content_type"], row["file_format"]) == (1, "PUFFIN")
    return SimpleNamespace(
        sequence=row["version_info"]["sequence_number"],
        partition=(row["partition_spec_id"], *map(str, row["partition"].values())),
        content=row["content_type"],
        is_dv=is_vector,
        path=row["referenced_file"],
    )


def pairs() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Data files and deletes, each data file with each delete."""
    data = [entry(*values, (0, "PARQUET", None)) for values in itertools.product(SEQUENCES, PARTITIONS)]
    deletes = [entry(*values) for values in itertools.product(SEQUENCES, PARTITIONS, KINDS)]
    both = [*itertools.product(data, deletes)]
    return [file for file, _ in both], [delete for _, delete in both]


def flags(values: Iterable[Any]) -> list[bool]:
    return [bool(value) for value in values]


@pytest.fixture(scope="module")
def cases(spark: SparkSession) -> dict[str, dict[str, list[bool]]]:
    """Rule -> where it is broken, by the model, by Arrow and by SQL."""
    data, deletes = pairs()
    of_data, of_deletes = (pa.Table.from_pylist(rows, schema=ENTRY) for rows in (data, deletes))
    # The data file's columns are in the row, a delete's in a struct, as in a join with groups.
    frame = local_frame(spark, of_deletes.append_column("place", pa.array(range(len(deletes)))))
    kinds = entry_view()
    seen = {name: kinds[name] for name in ("sequence_number", "content_type", "is_dv", "data_path")}
    columns = [value.alias(name) for name, value in {**seen, "partition_key": partition_key(STATE)}.items()]
    delete_frame = frame.selectExpr("place", sql.struct(*columns).alias("delete").selected)
    data_frame = local_frame(spark, of_data.append_column("place", pa.array(range(len(data)))))
    joined = data_frame.join(delete_frame, "place")
    by_name = {name: getattr(rules, name) for name in EXPECTED}
    broken = [rule.broken(data_view(STATE), sql.col("delete")).alias(name) for name, rule in by_name.items()]
    by_sql = joined.selectExpr("place", *sql.texts(broken)).toArrow().sort_by("place")
    delete_structs = evaluate.select(of_deletes, [sql.struct(*columns).alias("delete")])
    by_arrow = evaluate.select(of_data.append_column("delete", delete_structs.column("delete")), broken)
    return {
        name: {
            "model": [EXPECTED[name](*map(facts, pair)) for pair in zip(data, deletes, strict=True)],
            "arrow": flags(by_arrow.column(name).to_pylist()),
            "sql": flags(by_sql.column(name).to_pylist()),
        }
        for name in by_name
    }


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("form", ["arrow", "sql"])
def test_a_rule_in_both_forms(cases: dict[str, dict[str, list[bool]]], name: str, form: str) -> None:
    assert any(cases[name]["model"])
    assert not all(cases[name]["model"])
    assert cases[name][form] == cases[name]["model"]


def test_every_rule_about_files_is_tested() -> None:
    assert {getattr(rules, name).text for name in EXPECTED} == {rule.text for rule in rules.RULES}


@pytest.mark.parametrize("rule", [*rules.RULES, rules.TWO_DVS, rules.UNKNOWN_FILE], ids=lambda rule: rule.text)
def test_both_forms_give_one_message(rule: DeleteRule, spark: SparkSession) -> None:
    names = pa.array(["a", "b'"])
    with pytest.raises(ValidationError) as by_arrow:
        rule.refuse(pa.array([None, True]), lambda row: (names[row], "d"))
    assert str(by_arrow.value) == f"{rule.text}b' d"
    frame = local_frame(spark, pa.table({"name": names}))
    shown = [row[0] for row in frame.selectExpr(rule.message(sql.col("name"), sql.lit("d")).text).collect()]
    assert shown == [f"{rule.text}a d", f"{rule.text}b' d"]
    rule.refuse(pa.array([None, False]), lambda _: ())


@pytest.mark.parametrize(
    ("dvs", "repeated"),
    [([], []), (["a"], []), (["a", "b"], []), (["b", "a", "b"], ["b"]), (["a", "b", "b", "a"], ["a", "b"])],
)
def test_two_dvs_of_a_file(spark: SparkSession, dvs: list[str], repeated: list[str]) -> None:
    """Position deletes of the same file don't count as a second vector."""
    assert sorted(repeated_paths(pa.array(dvs, pa.string())).to_pylist()) == repeated
    kind = pa.struct({"is_dv": pa.bool_(), "data_path": pa.string()})
    deletes = [{"is_dv": True, "data_path": path} for path in dvs]
    deletes += [{"is_dv": False, "data_path": path} for path in ("a", "c", "c")]
    frame = local_frame(spark, pa.table({"group": pa.array([deletes], pa.list_(kind))}))
    (row,) = frame.selectExpr(second_dv(sql.col("group")).text).collect()
    assert row[0] in repeated if repeated else row[0] is None


def test_a_file_that_is_not_in_its_leaf() -> None:
    broken = rules.UNKNOWN_FILE.broken({"location": sql.col("location")}, {})
    assert evaluate.values(pa.table({"location": ["a", None]}), broken).to_pylist() == [False, True]
