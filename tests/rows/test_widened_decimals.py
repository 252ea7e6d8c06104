"""Rows of files from before decimals were widened, filtered by values that the narrower decimals can't contain."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from pyiceberg.types import DecimalType

import sparkmeta as sm
from tests.peers.java import Java
from tests.peers.workshop import Workshop
from tests.rows.comparison import row_texts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.java

COLUMNS = (
    "id INT, small DECIMAL(9, 2), middle DECIMAL(18, 2), large DECIMAL(20, 2), "
    "st STRUCT<small: DECIMAL(9, 2), deep: STRUCT<large: DECIMAL(20, 2)>>, listed ARRAY<DECIMAL(9, 2)>"
)
ROWS = [
    f"{n}, {n}.50, {n}.25, {n}.75, named_struct('small', {n}.50, 'deep', named_struct('large', {n}.75)), array({n}.5)"
    for n in range(10)
]
NULLS = "10, null, null, null, null, null"
WIDENED = {
    "small": DecimalType(18, 2), "middle": DecimalType(38, 2), "large": DecimalType(38, 2),
    "st.small": DecimalType(18, 2), "st.deep.large": DecimalType(38, 2),
}  # fmt: skip
# Unscaled, the literals overflow 32 bits, 64 bits, or the bytes of the files' DECIMAL(20, 2).
FILTERS = [
    "small < 30000000.00",
    "small > -30000000.00",
    "st.small < 30000000.00",
    "small in (1.50, 42949674.46) or id = 7",
    "not (st.small > 30000000.00) and id > 3",
    "middle < 300000000000000000.00",
    "middle > -300000000000000000.00",
    "large < 123456789012345678901234567890.12",
    "st.deep.large > -123456789012345678901234567890.12",
]


def written(spark: SparkSession, name: str, writer: str) -> Workshop:
    """Return a table with a file from before its decimals were widened, by a writer, and one from after."""
    shop = Workshop(Java(spark), f"widened_decimals_{name}_by_{writer}")
    shop.create(COLUMNS)
    if writer == "java":
        shop.insert(*ROWS, NULLS)
    else:
        values = ", ".join(f"({row})" for row in [*ROWS, NULLS])
        table = sm.load_table(str(shop.folder), spark=spark)
        table.append(spark.createDataFrame([], table.scan().to_df().schema).union(spark.sql(f"VALUES {values}")))
        shop.sql("REFRESH TABLE {t}")
    for column, kind in WIDENED.items():
        shop.sql(f"ALTER TABLE {{t}} ALTER COLUMN {column} TYPE {kind}")
    shop.insert("20, 42949674.46, 0, 0, null, null")
    return shop


@pytest.fixture(params=["java", "sparkmeta"])
def shop(request: pytest.FixtureRequest, spark: SparkSession) -> Workshop:
    return written(spark, request.node.originalname, request.param)


def ids(frame: DataFrame) -> list[int]:
    return sorted(row.id for row in frame.select("id").collect())


def test_filters_of_the_scan_and_of_its_rows(shop: Workshop) -> None:
    table = sm.load_table(shop.metadata_location, spark=shop.spark)
    for text in FILTERS:
        expected = ids(shop.sql(f"SELECT id FROM {{t}} WHERE {text}"))
        assert ids(table.scan(text).to_df()) == expected, text
        assert table.scan(text).count() == len(expected), text
        assert ids(table.scan().to_df().where(text)) == expected, text


def test_rows_are_whole(shop: Workshop) -> None:
    """Structs that are null, or contain a null, are unchanged."""
    table = sm.load_table(shop.metadata_location, spark=shop.spark)
    assert row_texts(table.scan().to_df()) == row_texts(shop.sql("SELECT * FROM {t}"))


def test_changes(shop: Workshop) -> None:
    table = sm.load_table(shop.metadata_location, spark=shop.spark)
    for text in FILTERS[:3]:
        expected = ids(shop.sql(f"SELECT id FROM {{t}} WHERE {text}"))
        assert ids(table.changelog(None).filter(text).to_df()) == expected, text
        assert ids(table.changelog(None).to_df().where(text)) == expected, text
        assert ids(table.incremental(None).filter(text).to_df()) == expected, text


def test_files_with_other_names(shop: Workshop) -> None:
    shop.sql("ALTER TABLE {t} RENAME COLUMN small TO little")
    shop.sql("ALTER TABLE {t} RENAME COLUMN st.small TO little")
    table = sm.load_table(shop.metadata_location, spark=shop.spark)
    for text in ("little < 30000000.00", "st.little > -30000000.00", "middle < 300000000000000000.00"):
        expected = ids(shop.sql(f"SELECT id FROM {{t}} WHERE {text}"))
        assert ids(table.scan(text).to_df()) == expected, text
        assert ids(table.scan().to_df().where(text)) == expected, text


def test_a_delete_that_copies_rows(shop: Workshop) -> None:
    shop.set(write__delete__mode="copy-on-write")
    sm.load_table(str(shop.folder), spark=shop.spark).delete("id = 3 or small > 30000000.00")
    shop.sql("REFRESH TABLE {t}")
    assert ids(shop.sql("SELECT id FROM {t}")) == [0, 1, 2, 4, 5, 6, 7, 8, 9, 10]


def test_other_columns_are_pushed(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    shop = written(spark, "pushed", "java")
    sm.load_table(shop.metadata_location, spark=spark).scan("id > 3 and small > 1").to_df().explain()
    pushed = re.search(r"PushedFilters: (\[.*?\])", capsys.readouterr().out)
    assert pushed is not None
    assert pushed[1] == "[IsNotNull(id), GreaterThan(id,3)]"
