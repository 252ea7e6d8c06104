"""What a notebook shows of objects: short, escaped, and without a job or a session."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

import sparkmeta as sm
from sparkmeta.inspect.timeline import snapshots_by_time
from tests.pictures import table_with_history

if TYPE_CHECKING:
    from pathlib import Path

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


def facts(shown: Any) -> dict[str, str]:
    """The facts in the table that a cell shows."""
    return dict(re.findall("<tr><th [^>]*>(.*?)</th><td [^>]*>(.*?)</td></tr>", html(shown)))


def texts(shown: Any) -> list[str]:
    """The texts of the chart that a cell shows."""
    svg = ET.fromstring(re.search("<svg.*</svg>", html(shown), re.DOTALL).group())
    return ["".join(element.itertext()) for element in svg.iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize(
    "name",
    [
        "table",
        "scan",
        "report",
        "expiry",
        "summary",
        "upgrade",
        "drawing",
        "changelog",
        "appends",
        "catalog",
        "settings",
    ],
)
def test_html_is_short_and_safe(table: Table, name: str) -> None:
    expiry = table.maintenance.expire_snapshots(retain_last=1)
    scan = table.scan(f"s = '{SCRIPT}'")
    shown = {
        "table": table, "scan": scan, "report": scan.report(), "expiry": expiry, "summary": expiry.summary(),
        "upgrade": table.maintenance.upgrade(3), "drawing": table.draw(),
        "changelog": table.changelog(None).filter(f"s = '{SCRIPT}'"), "appends": table.incremental(None),
        "catalog": sm.load_catalog(SCRIPT, type="hadoop", warehouse=f"/tmp/{SCRIPT}"),
        "settings": sm.Settings(manifest_cache=SCRIPT),
    }[name]  # fmt: skip
    text = html(shown)
    assert SCRIPT not in text
    assert len(text) < (20_000 if name == "drawing" else 4_000)
    assert len(repr(shown)) < 500


def test_a_table_shows_its_history_and_refs(tmp_path: Path) -> None:
    shown = texts(table_with_history(tmp_path, 3, {"<b>audited": 2}))
    assert "<b>audited<b>audited" in shown
    assert "mainmain" in shown


def test_a_chart_of_a_long_history_keeps_the_snapshots_of_refs(tmp_path: Path) -> None:
    metadata = table_with_history(tmp_path, 1000, {"old": 2}).metadata
    shown = snapshots_by_time(metadata, marked=[2], limit=60)
    assert len(shown) < 70
    assert [(moment.refs, moment.marked) for moment in shown if moment.refs] == [(("old",), True), (("main",), False)]
    times = [moment.timestamp_ms for moment in shown]
    assert times == sorted(times)


def test_a_catalog_shows_no_credentials(tmp_path: Path) -> None:
    secret = {"s3.secret-access-key": "top-secret-key"}
    catalog = sm.load_catalog("prod", type="in-memory", warehouse=f"{tmp_path}?key=top-secret-key", **secret)
    text = html(catalog)
    assert "<caption>IcebergCatalog prod</caption>" in text
    assert facts(catalog)["warehouse"] == f"{tmp_path}?key=***"
    assert "top-secret-key" not in text + repr(catalog)


def test_settings_have_the_names_of_their_configuration() -> None:
    assert facts(sm.Settings(split_manifest_bytes=5))["spark.sparkmeta.split-manifest-bytes"] == "5"


def test_a_range_scan_shows_its_filter_and_ends(table: Table) -> None:
    first = table.snapshots()[0].snapshot_id
    assert repr(table.changelog(first).filter("id < 9")).endswith(f"row_filter=id < 9), from_exclusive={first})")


def test_completion_offers_what_is_public(table: Table) -> None:
    for shown in (table, table.scan(), table.inspect, table.inspect.arrow, table.maintenance):
        offered = [name for name in dir(shown) if not name.startswith("_")]
        assert offered
        assert [name for name in offered if name.startswith("refuse")] == []
        # All have a description in the reference: their own, or one among the attributes of the class.
        undescribed = [name for name in offered if not is_described(shown, name)]
        assert undescribed == []


def is_described(shown: Any, name: str) -> bool:
    classes = type(shown).__mro__
    return bool(getattr(getattr(type(shown), name, None), "__doc__", None)) or any(
        re.search(rf"^ +{name}: ", kind.__doc__ or "", re.MULTILINE) for kind in classes
    )


def test_a_scan_shows_its_filter_as_text(table: Table) -> None:
    assert repr(table.scan("id = 2 and s like 'a%'")).endswith("row_filter=id = 2 AND s LIKE 'a%')")


def test_a_report_shows_which_rule_skipped_what(table: Table) -> None:
    report = table.scan("id >= 10 and id < 15").report()
    assert repr(report).endswith("1 of 3 files in 3 manifests)")
    shown = texts(report)
    # A row has its label, which is also its title, and its number.
    assert shown == [
        *("data manifestsdata manifests", "3", "openedopened", "3"),
        *("files in themfiles in them", "3", "skipped by statisticsskipped by statistics", "2", "plannedplanned", "1"),
    ]


def test_a_plan_shows_its_options(table: Table) -> None:
    text = html(table.maintenance.upgrade(3))
    assert "<caption>UpgradePlan</caption>" in text
    shown = facts(table.maintenance.upgrade(3))
    assert (shown["to_version"], shown["committed"]) == ("3", "no")


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
