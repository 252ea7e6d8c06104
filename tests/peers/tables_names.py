"""Hostile names: in partition values, of columns, of tables and thus in every location."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.peers.corpus import ALL_VERSIONS, add, recipe
from tests.peers.workshop import MERGE_ON_READ

if TYPE_CHECKING:
    from tests.peers.workshop import Workshop

NAMES = [
    "a b",
    "100%",
    "%20",
    "a%2Fb",
    "k=v",
    "a+b",
    "a/b",
    "ü",
    "日本",
    "\U0001f600",
    "[x]",
    "{y}",
    "a*b?",
    "#1",
    "a'b",
    "a\\\\b",
    '"q"',
    "",
    "null",
    "__HIVE_DEFAULT_PARTITION__",
    "a:b",
    "a&b;c",
    " lead",
    "..",
]


def quoted(text: str) -> str:
    return "'" + text.replace("'", "\\'") + "'"


@recipe("names", "deletes", versions=ALL_VERSIONS)
def hostile_values(shop: Workshop, version: int) -> None:
    """Partition values that need quoting somewhere, with deletes by path (from version 2)."""
    properties = MERGE_ON_READ if version > 1 else {}
    shop.create("id INT, p STRING", "p", version=version, properties=properties)
    rows = [f"{i}, {quoted(name)}" for i, name in enumerate(NAMES)]
    shop.insert(*rows, "99, null")
    shop.insert(*rows[:6])
    if version > 1:
        shop.insert(*(f"{i + 100}, {quoted(name)}" for i, name in enumerate(NAMES)))
        shop.sql("DELETE FROM {t} WHERE id > 150 OR id % 5 = 0")
        extra = [f"{i + 200}, {quoted(name)}" for i, name in enumerate(NAMES)] * 2
        shop.insert(*extra)
        shop.sql("UPDATE {t} SET id = -id WHERE id BETWEEN 200 AND 205")


@recipe("names", "deletes", "schema", versions=ALL_VERSIONS)
def hostile_columns(shop: Workshop, version: int) -> None:
    """Columns whose names must be escaped in Avro, paths or SQL, also as partition fields and in structs."""
    columns = (
        "`1st` INT, `a b` STRING, `a.b` INT, `ü%=` STRING, `日本` DOUBLE, `x-y` STRUCT<`z/w`: INT, `#`: STRING>, "
        "`Case` INT, `CASE2` INT"
    )
    properties = MERGE_ON_READ if version > 1 else {}
    shop.create(columns, "`a b`, `ü%=`, bucket(2, `1st`)", version=version, properties=properties)
    for i in range(3):
        shop.insert(
            f"{i}, 'v{i}', {i}, 'ü{i}', {i}.5D, named_struct('z/w', {i}, '#', 'h'), {i}, {i}",
            f"{i + 1}, 'v{i}', {i}, 'ü{i}', double('NaN'), null, null, {i}",
            f"{i + 4}, null, null, null, null, null, null, {i}",
        )
    if version > 1:
        shop.sql("DELETE FROM {t} WHERE `1st` = 1")


PLACES = ["a b%20c", "k=v,x+y", "ünï日本\U0001f600", "[b]{r}", "#hash", "it's", "q&a;~!@$^()", "a%2Fb"]


def placed(shop: Workshop, version: int) -> None:
    shop.create("id INT, p STRING", "p", version=version, properties=MERGE_ON_READ)
    shop.insert(*(f"{i}, '{'ab'[i % 2]} %+'" for i in range(6)))
    shop.insert("10, 'a %+'", "11, '[x]'")
    shop.sql("DELETE FROM {t} WHERE id IN (0, 2, 3)")
    shop.row_delta(shop.equality_delete("eq uality%.parquet", {"id": [4, 10]}, ["a %+"]))


for _number, _place in enumerate(PLACES):
    _version = (2, 3, 4)[_number % 3]
    add(f"{_place}_v{_version}", placed, _version, ("names", "locations", "deletes"), f"In a folder named {_place}.")
