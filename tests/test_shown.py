"""What a notebook shows of objects: short, escaped, and without a job or a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

import sparkmeta as sm

if TYPE_CHECKING:
    from sparkmeta import Table

SCRIPT = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    catalog = sm.load_catalog("prod", type="hadoop", warehouse=str(tmp_path_factory.mktemp("shown")))
    fields = NestedField(1, "id", LongType()), NestedField(2, "s", StringType())
    table = catalog.create_table("shop.orders", Schema(*fields))
    for first in (0, 10, 20):
        rows = {"id": range(first, first + 10), "s": [SCRIPT] * 10}
        table.append(pa.table({name: list(values) for name, values in rows.items()}))
    return catalog.load_table("shop.orders")


def html(shown: Any) -> str:
    text: str = shown._repr_html_()
    return text


@pytest.mark.parametrize("name", ["table", "scan", "report", "expiry", "summary", "upgrade", "drawing"])
def test_html_is_short_and_safe(table: Table, name: str) -> None:
    expiry = table.maintenance.expire_snapshots(retain_last=1)
    shown = {
        "table": table, "scan": table.scan(f"s = '{SCRIPT}'"), "report": table.scan(f"s = '{SCRIPT}'").report(),
        "expiry": expiry, "summary": expiry.summary(), "upgrade": table.maintenance.upgrade(3), "drawing": table.draw(),
    }[name]  # fmt: skip
    text = html(shown)
    assert SCRIPT not in text
    assert len(text) < (20_000 if name == "drawing" else 4_000)
    assert len(repr(shown)) < 500


def test_a_scan_shows_its_filter_as_text(table: Table) -> None:
    assert repr(table.scan("id = 2 and s like 'a%'")).endswith("row_filter=id = 2 AND s LIKE 'a%')")


def test_a_report_shows_which_rule_skipped_what(table: Table) -> None:
    report = table.scan("id >= 10 and id < 15").report()
    assert repr(report).endswith("1 of 3 files in 3 manifests)")
    text = html(report)
    assert "<tr><th>skipped by statistics</th><td>2</td>" in text
    assert "<tr><th>planned</th><td>1</td>" in text
    assert "skipped by partition" not in text


def test_a_plan_shows_its_options(table: Table) -> None:
    text = html(table.maintenance.upgrade(3))
    assert "<caption>UpgradePlan</caption>" in text
    assert "<tr><th>to_version</th><td>3</td></tr>" in text
    assert "<tr><th>committed</th><td>no</td></tr>" in text


def test_metadata_tables_name_their_methods(table: Table) -> None:
    text = repr(table.inspect)
    assert text.startswith("InspectTable(")
    assert "all_data_files" in text
    assert "arrow" not in text
    assert repr(table.inspect.arrow).startswith("InspectArrow(")


def test_a_transaction_shows_its_steps(table: Table) -> None:
    with table.transaction() as transaction:
        assert repr(transaction) == "RowTransaction(shop.orders: no steps)"
        transaction.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "audited").commit()
        assert "no steps" not in repr(transaction)
    assert repr(transaction).endswith(", committed)")
