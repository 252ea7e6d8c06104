"""Schemas of any writer mean what the same records mean in Iceberg's words, to both decoders."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from sparkmeta.avro.schema import canonical_schema, manifest_fields
from sparkmeta.entries.projection import FILE_COLUMNS, EntryProjection
from sparkmeta.errors import CorruptFileError
from tests.avro.avro_files import avro_file, data_file, entry, entry_schema, field, mislabelled_file, pairs
from tests.avro.decoders import decoded
from tests.avro.odd_schemas import Oddity
from tests.peers.slices import SOAK

DECIMALS = [
    {"type": "fixed", "name": f"decimal_{digits}", "size": size, "logicalType": "decimal", "precision": digits}
    for digits, size in ((9, 4), (9, 4), (4, 2))
]
PARTITION = {1000: "decimal(9, 0)", 1001: "decimal(9, 0)", 1002: "decimal(4, 0)", 1003: "string"}
TUPLES = ((0, tuple((number, number, f"p{number}") for number in PARTITION)),)
PROJECTION = EntryProjection.of(
    (*FILE_COLUMNS, "lower_bounds", "value_counts"), PARTITION, {4: "string"}, spec_tuples=TUPLES
)


def usual() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A schema in Iceberg's words, and records."""
    kinds = [*DECIMALS, "string"]
    partition = [field(f"p{1000 + place}", 1000 + place, ["null", kind]) for place, kind in enumerate(kinds)]
    file = data_file(
        field("content", 134, "int"),
        *(field(name, number, pairs(number + 1, number + 2, kind)) for name, number, kind in MAPS),
        field("split_offsets", 132, ["null", {"type": "array", "items": "long", "element-id": 133}]),
        field("sort_order_id", 140, ["null", "int"]),
        field("unknown", 4000, ["null", {"type": "record", "name": "u", "fields": [field("y", 4001, DECIMALS[2])]}]),
        partition=partition,
    )
    outer = [field(name, number, ["null", "long"]) for name, number in (("sequence_number", 3), ("extra", 77))]
    schema = entry_schema(file, *outer)
    records = [
        entry(
            number,
            partition={"p1000": b"\0\0\0\1", "p1001": None, "p1002": b"\xff\xff", "p1003": "x"},
            content=0,
            lower_bounds=[{"key": 4, "value": b"a"}],
            upper_bounds=None,
            value_counts=[{"key": 4, "value": number}],
            split_offsets=[4, number],
            sort_order_id=None,
            unknown={"y": b"\0\1"},
            sequence_number=7,
        )
        for number in range(20)
    ]
    return schema, [{**record, "extra": 1} for record in records]


MAPS = (("lower_bounds", 125, "bytes"), ("upper_bounds", 128, "bytes"), ("value_counts", 109, "long"))


@pytest.mark.parametrize("seed", range(400 if SOAK else 25))
def test_rewritten_schemas_decode_alike(seed: int) -> None:
    chance, (schema, records) = Random(seed), usual()
    named = json.loads(json.dumps(schema))
    names = iter(range(100))

    def unique(node: Any) -> None:  # fastavro writes no type twice
        if isinstance(node, dict) and node.get("type") in ("fixed", "record"):
            node["name"] = f"w{next(names)}"
        for value in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            unique(value)

    unique(named)
    expected = [batch.to_pylist() for batch in decoded(avro_file(named, records), PROJECTION, False)]
    assert expected[0][3]["partition"]["1002"] == -1
    odd = Oddity(chance).schema(schema, drop_ids=chance.random() < 0.7)
    data = mislabelled_file(odd, named, records)
    for compiled in (False, True):
        assert [batch.to_pylist() for batch in decoded(data, PROJECTION, compiled)] == expected, json.dumps(odd)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_reference_means_the_last_definition_and_ids_may_be_texts(compiled: bool) -> None:
    fixed = [{"type": "fixed", "name": "x", "size": size} for size in (4, 2)]
    declared, written = (
        entry_schema(data_file(partition=[
            {"name": f"other{place}", "type": kind, "field-id": str(1000 + place)} for place, kind in enumerate(kinds)
        ]))
        for kinds in ([*fixed, "x"], [fixed[0], {**fixed[1], "name": "y"}, "y"])
    )  # fmt: skip
    values = dict(zip(("other0", "other1", "other2"), (b"abcd", b"ef", b"gh"), strict=True))
    projection = EntryProjection.of(("record_count",), dict.fromkeys((1000, 1001, 1002), "binary"))
    (batch,) = decoded(mislabelled_file(declared, written, [entry(partition=values)]), projection, compiled)
    assert [*batch.to_pylist()[0]["partition"].values()] == [*values.values()]


def bomb() -> dict[str, Any]:
    kinds: list[Any] = [{"type": "record", "name": "n0", "fields": [field("a", 1, "int")]}]
    for level in range(1, 30):
        double = [field(name, place, f"n{level - 1}") for place, name in enumerate("ab")]
        kinds.append({"type": "record", "name": f"n{level}", "fields": double})
    return entry_schema(data_file(*(field(f"x{place}", 5000 + place, kind) for place, kind in enumerate(kinds))))


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (entry_schema(data_file(field("x", 5, "t1"))), "'t1': not a type"),
        (entry_schema(data_file(field("x", 5, {"type": "array", "items": "r2"}))), "'r2': a type that contains itself"),
        (bomb(), "nested too deeply"),
    ],
)
def test_references_that_lead_nowhere(schema: dict[str, Any], problem: str) -> None:
    with pytest.raises(CorruptFileError, match=f"m.avro: avro.schema is .*{problem}"):
        canonical_schema(schema, "m.avro", manifest_fields({}))


def test_tuples_of_another_spec_are_refused() -> None:
    """A live file whose tuple has values that its spec has no field for; spec 0 has the string only."""
    kinds = [field(f"p{number}", number, ["null", "string"]) for number in (1000, 1003)]
    projection = EntryProjection.of(
        ("location",), {1000: "string", 1003: "string"}, spec_tuples=((0, ((1003, 1003, "p1003"),)), (1, ()))
    )
    harmless = [{"p1000": None, "p1003": "x"}, {"p1000": "gone", "p1003": None}]
    foreign = {"p1000": "a", "p1003": None}
    for compiled in (False, True):
        schema = entry_schema(data_file(partition=kinds))
        records = [entry(status=status, partition=values) for status, values in zip((1, 2), harmless, strict=True)]
        (batch,) = decoded(avro_file(schema, records), projection, compiled)
        assert len(batch) == 2
        with pytest.raises(CorruptFileError, match=r"partition.1000 of file:///t/3.parquet is 'a': .* spec 0"):
            decoded(avro_file(schema, [*records, entry(3, partition=foreign)]), projection, compiled)
