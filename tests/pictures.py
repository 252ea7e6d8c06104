"""The cells that are compared with stored pictures: of fixed values, so that they never change by themselves.

`python -m tests.pictures` stores them again, as HTML, and as pictures of a browser if there is one.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sparkmeta as sm
from sparkmeta import Drawing, HealthReport, LeafMap, ScanReport
from sparkmeta.charts import Moment
from sparkmeta.inspect.excerpt import Entry, Excerpt, Node
from sparkmeta.maintain.file_groups import FileSizes
from sparkmeta.maintain.health_findings import Finding
from sparkmeta.maintain.health_measures import (
    DeleteFigures,
    EntryFigures,
    FieldDepth,
    History,
    Layout,
    PartitionFigures,
    PlacedBar,
    SampledStats,
    SmallFileLimits,
)
from sparkmeta.maintain.leaf_map import LeafBar
from sparkmeta.maintain.rewrite_position_deletes import SmallPuffinFiles
from sparkmeta.plan.report import EntryCounts, ManifestCounts
from sparkmeta.spec.entry import ContentType, Status

if TYPE_CHECKING:
    from collections.abc import Mapping

STORED = Path(__file__).parent / "pictures"
# Text and background, as notebooks have them.
THEMES = {"light": ("#1f2328", "#ffffff"), "dark": ("#e0e0e0", "#111111")}
_HOUR = 3_600_000
_BEGIN = 1_790_000_000_000


def table_with_history(folder: Path, snapshots: int, refs: Mapping[str, int]) -> sm.Table:
    """A table without manifests. The ids of its snapshots are 1, 2 and so on.

    Args:
        refs: the names of tags -> their snapshots.
    """
    document = {
        "format-version": 2, "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1", "location": "/warehouse/shop/orders",
        "last-sequence-number": snapshots, "last-updated-ms": _BEGIN + snapshots * _HOUR, "last-column-id": 2,
        "schemas": [{"type": "struct", "schema-id": 0, "fields": [
            {"id": 1, "name": "id", "required": False, "type": "long"},
            {"id": 2, "name": "country", "required": False, "type": "string"}]}],
        "current-schema-id": 0, "last-partition-id": 1000, "default-spec-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": [
            {"source-id": 2, "field-id": 1000, "name": "country", "transform": "identity"}]}],
        "sort-orders": [{"order-id": 0, "fields": []}], "default-sort-order-id": 0, "properties": {},
        "current-snapshot-id": snapshots,
        "snapshots": [
            {"snapshot-id": number, "sequence-number": number, "timestamp-ms": _BEGIN + number * _HOUR, "schema-id": 0,
             "manifest-list": "/lists/1.avro", "summary": _summary(number)}
            for number in range(1, snapshots + 1)],
        "refs": {"main": {"snapshot-id": snapshots, "type": "branch"},
                 **{name: {"snapshot-id": number, "type": "tag"} for name, number in refs.items()}},
    }  # fmt: skip
    location = folder / "00001.metadata.json"
    location.write_text(json.dumps(document))
    return sm.load_table(str(location))


def _summary(number: int) -> dict[str, str]:
    size = number * 3_000_000 - number // 8 * 15_000_000
    return {"operation": "append", "total-data-files": str(8 * number), "total-files-size": str(size),
            "total-records": str(1000 * number), "total-delete-files": "2"}  # fmt: skip


def cells(folder: Path) -> dict[str, Any]:
    """The objects of the cells, by name."""
    table = table_with_history(folder, 36, {"before <b>the</b> fix": 9, "audited": 20, "end-of-month": 30})
    return {
        "table": table,
        "report": _report(),
        "leaf_map": _leaf_map(),
        "drawing": _drawing(),
        "health": _health(table),
    }


def _report() -> ScanReport:
    return ScanReport(
        "/warehouse/shop/orders", 7, "customer = 17 AND country = 'NO' AND s < '<b>'",
        ManifestCounts(1200, 96_000_000, 40, 900, 260, 20_000_000), ManifestCounts(30, 600_000, 2, 20, 8, 90_000),
        EntryCounts(26_000, 300, 19_000, 6_500, 200), 25_600_000_000, 12, 14, "join: 14 deletes", 0.2, 1.234,
    )  # fmt: skip


def _leaf_map() -> LeafMap:
    stacked = [LeafBar(f"/m/{row}.parquet", 0.1 * row, 0.4 + 0.1 * row, row, 40, 6 * row) for row in range(5)]
    apart = [LeafBar("/m/<b>.parquet", 0.82, 0.9, 0, 40, 0), LeafBar("/m/y.parquet", 0.9, 1.0, 0, 40, 40)]
    return LeafMap("shop.orders", (*stacked, *apart), 2.9, 7)


def _drawing() -> Drawing:
    rows = tuple(
        Entry(ContentType.DATA, Status.ADDED, place, f"/d/D{place}.parquet", notes=("20 rows",),
              masked_by=("DV1",) if place == 1 else ())
        for place in range(3)
    )  # fmt: skip
    nodes = (
        Node(Entry(ContentType.DATA_MANIFEST, Status.EXISTING, 0, "/m/a.parquet", "M1", ("40 entries", "1 masked")),
             rows, "37 more entries"),
        Node(Entry(ContentType.MANIFEST_DELETION_VECTOR, Status.ADDED, 1, "", "DV1", ("masks {1} of M1", "inline"),
                   "/m/a.parquet")),
        Node(Entry(ContentType.DELETE_MANIFEST, Status.DELETED, 2, "/m/b.parquet", "X1", ("2 entries",),
                   "/m/a.parquet")),
        Node(Entry(ContentType.DATA, Status.ADDED, 3, "/d/<b>D9.parquet", notes=("20 rows",))),
    )  # fmt: skip
    title = "snapshot 7: overwrite, sequence number 7, 2026-11-28 09:08:07Z"
    return Drawing(Excerpt(title, "root manifest", "/m/root.parquet", 4, nodes, ("2 more data files: 2 existing",)))


def _health(table: sm.Table) -> HealthReport:
    partitions = tuple(
        PartitionFigures(0, {1000: country}, 40 - 8 * place, 10**9, 1000, 30 - 8 * place, 420 - 130 * place)
        for place, country in enumerate(("NO", "SE", "<b>DK</b>"))
    )
    findings = (
        Finding("small_files", 54, 10**8, "2 partitions have 54 files below 128.0 MiB", "54 entries and requests",
                "about 3 files", "rewrite_data_files", "table.maintenance.rewrite_data_files()",
                "sparkmeta rewrite-data-files /warehouse/shop/orders"),
        Finding("dense_deletes", 40, None, "in 1 partition, 30% of the rows or more are deleted", "rows are read twice",
                "no deletes"),
    )  # fmt: skip
    bars = tuple(PlacedBar(place, place / 12, min(1.0, (place + 3) / 12), place % 3) for place in range(12))
    entries = EntryFigures(
        files=340, bytes=52 << 30, records=1_200_000, partitions=3, crowded_partitions=2, small_files=54,
        sizes=((12, 20, 1 << 17), (20, 34, 1 << 25), (26, 60, 1 << 32), (28, 220, 50 << 30), (29, 6, 4 << 30)),
        files_saved=51, dense_partitions=1, dense_files=40, crowded=partitions[:2], densest=partitions,
        deletes=DeleteFigures(3, 0, 20), dangling=DeleteFigures(), small_puffin=SmallPuffinFiles(0, 0),
        bounds={}, stats=SampledStats(),
    )  # fmt: skip
    layout = Layout(12, 2, 1 << 22, 1 << 16, 0, 0, ((18, 12),),
                    (FieldDepth("country", "partition field", 0, 12, 2.5, 4),), bars, 12)  # fmt: skip
    moments = tuple(
        Moment(_BEGIN + number * _HOUR, 10 * number, number << 30, number < 12, ("old-tag",) if number == 5 else ())
        for number in range(30)
    )
    history = History(30, 12, (), 1 << 30, ("old-tag",), 5, 0, True, 40_000, 1 << 20, (*moments[:-1],
                      Moment(_BEGIN + 30 * _HOUR, 340, 52 << 30, refs=("audit", "main"))))  # fmt: skip
    limits = SmallFileLimits(512 << 20, 128 << 20, 5, 0.3, FileSizes(1 << 26, 1 << 25, 1 << 27))
    return HealthReport("shop.orders", table.state, table.metadata_location, datetime(2026, 11, 28, tzinfo=UTC), 1.5,
                        findings, limits, entries, layout, history, 1 << 12)  # fmt: skip


def html_of(cell: Any) -> str:
    """What a notebook shows of an object. A tag on a line, so that differences are short."""
    text: str = cell._repr_html_()
    return re.sub(r"(?<=>)(?=<)", "\n", text)


# -- A browser --------------------------------------------------------------------------------------------------------


BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def browser() -> str | None:
    """The program of a browser; None if there is none."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def run(program: str, *arguments: str) -> str:
    """Run a browser without a window, and return what it prints."""
    with tempfile.TemporaryDirectory() as folder:
        line = [program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                "--force-device-scale-factor=0.75", f"--user-data-dir={folder}", *arguments]  # fmt: skip
        return subprocess.run(line, capture_output=True, text=True, check=True, timeout=60).stdout


def photograph(program: str, shown: str, theme: str, size: tuple[int, int], path: Path) -> None:
    """Write a picture of HTML in the colours of a theme."""
    colour, background = THEMES[theme]
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "page.html")
        page.write_text(
            f'<!doctype html><meta charset="utf-8"><body style="margin:8px;color:{colour};background:{background};'
            f'font:14px sans-serif">{shown}</body>'
        )
        run(program, f"--screenshot={path}", "--window-size={},{}".format(*size), page.as_uri())


# The mean brightness of squares is compared, since fonts and the edges of lines differ between machines.
_COMPARE = """<!doctype html><canvas id="c"></canvas><script>
const means = url => new Promise(done => { const image = new Image(); image.onload = () => {
  const c = document.getElementById("c"), w = c.width = image.width, h = c.height = image.height, size = 12;
  const paint = c.getContext("2d"); paint.drawImage(image, 0, 0);
  const pixels = paint.getImageData(0, 0, w, h).data, sums = [];
  for (let y = 0; y < h; y++) for (let x = 0; x < w; x++) {
    const square = Math.floor(y / size) * Math.ceil(w / size) + Math.floor(x / size), at = 4 * (y * w + x);
    for (let k = 0; k < 3; k++) sums[3 * square + k] = (sums[3 * square + k] || 0) + pixels[at + k] / size / size;
  }
  done([w, h, ...sums]); }; image.src = url; });
Promise.all([means("%s"), means("%s")]).then(([a, b]) => {
  const far = a.filter((value, place) => Math.abs(value - b[place]) > 24).length;
  document.title = a.length == b.length ? far / a.length : 1; });
</script>"""


def difference(program: str, *paths: Path) -> float:
    """The share of squares in which two pictures differ."""
    urls = [f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}" for path in paths]
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "page.html")
        page.write_text(_COMPARE % tuple(urls))
        shown = run(program, "--dump-dom", "--virtual-time-budget=10000", page.as_uri())
    return float(re.search("<title>(.*?)</title>", shown).group(1))


# Width and height.
SIZES = {
    "table": (580, 520),
    "report": (640, 400),
    "leaf_map": (580, 170),
    "drawing": (800, 600),
    "health": (1020, 1560),
}


def main() -> None:
    """Store what cells show."""
    STORED.mkdir(exist_ok=True)
    program = browser()
    with tempfile.TemporaryDirectory() as folder:
        for name, cell in cells(Path(folder)).items():
            (STORED / f"{name}.html").write_text(html_of(cell) + "\n")
            for theme in THEMES if program else ():
                photograph(program, cell._repr_html_(), theme, SIZES[name], STORED / f"{name}-{theme}.png")


if __name__ == "__main__":
    main()
