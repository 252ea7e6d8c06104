"""One grammar of transforms, in every place that takes one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyiceberg.transforms import parse_transform

from sparkmeta import load_catalog
from sparkmeta.errors import ValidationError

if TYPE_CHECKING:
    from pathlib import Path

    from sparkmeta import Table

KNOWN = r"transforms: identity, bucket\(N\), truncate\(W\), year, month, day, hour, void"
COLUMNS = pa.schema([("id", pa.int64()), ("ts", pa.timestamp("us"))])
# The transform in a partition spec, its column and other spellings.
SPELLINGS = [
    ("bucket[4]", "id", "bucket(4)", "BUCKET( 4 )"),
    ("truncate[10]", "id", "truncate(10)", "Truncate[10]"),
    ("identity", "id", "Identity"),
    ("void", "id", "VOID"),
    *((period, "ts", f"{period}s", period.upper()) for period in ("year", "month", "day", "hour")),
]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    catalog = load_catalog("shop", type="hadoop", warehouse=str(tmp_path))
    catalog.create_namespace("db")
    return catalog.create_table("db.t", COLUMNS)


def test_every_place_takes_the_same_spellings(table: Table, tmp_path: Path) -> None:
    catalog = load_catalog("shop", type="hadoop", warehouse=str(tmp_path))
    for place, (text, column, *others) in enumerate(SPELLINGS):
        expected = parse_transform(text)
        term = f"{others[0].split('(')[0]}({others[0].partition('(')[2].rstrip(')')}, {column})".replace("(, ", "(")
        created = catalog.create_table(f"db.t{place}", COLUMNS, partition_by=[term], sort_by=[f"{term} DESC"])
        assert created.spec().fields[0].transform == created.sort_order().fields[0].transform == expected, term
        for arguments in [(term,), *((column, spelling) for spelling in (text, expected, *others))]:
            transaction = table.transaction()
            transaction.update_spec().add_field(*arguments).commit()
            transaction.update_sort_order().desc(*arguments).commit()
            metadata = transaction.table_metadata
            assert [field.transform for field in metadata.spec().fields] == [expected], arguments
            assert [field.transform for field in metadata.sort_order().fields] == [expected], arguments


@pytest.mark.parametrize("text", ["bukket(4)", "bucket", "bucket(0)", "bucket(2147483648)", "day(4)", "hash", ""])
def test_errors_name_the_transforms(table: Table, text: str) -> None:
    name, _, size = text.partition("(")
    term = f"{name}({size.rstrip(')')}, id)" if size else f"{name or 'x'}(id, ts)"
    for change in (
        lambda: table.update_spec().add_field("id", text),
        lambda: table.update_sort_order().asc("id", text),
        lambda: table.update_spec().add_field(term),
        lambda: table.maintenance.rewrite_data_files(strategy="sort", sort_order=term),
    ):
        with pytest.raises(ValidationError, match=f"is not a transform.*{KNOWN}"):
            change()


def test_deleting_a_source_names_the_way_out(tmp_path: Path) -> None:
    catalog = load_catalog("shop", type="hadoop", warehouse=str(tmp_path))
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", COLUMNS, partition_by=["bucket(4, id)"], sort_by=["day(ts) DESC"])
    field = r"column id can't be deleted: it is a source of the partition field id_bucket_4 = bucket\[4\]\(id\)"
    with pytest.raises(ValidationError, match=rf"{field}.*update_spec\(\).remove_field\('id_bucket_4'\)"):
        table.update_schema().delete_column("id").commit()
    order = r"column ts can't be deleted: it is a source of the sort order \(day\(ts\) DESC NULLS LAST\)"
    with pytest.raises(ValidationError, match=rf"{order}.*update_sort_order\(\)"):
        table.update_schema().delete_column("ts").commit()
    table.update_spec().remove_field("id_bucket_4").commit()
    table.refresh().update_schema().delete_column("id").commit()
    table.refresh().update_sort_order().commit()
    table.refresh().update_schema().add_column("other", "int").delete_column("ts").commit()
    assert table.refresh().schema().column_names == ["other"]
