"""Every cell of the shipped notebooks runs, and shows what is stored (`make notebooks`)."""

from __future__ import annotations

import ast
import copy
import gc
import re
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import nbformat
import pytest
import zmq
from jupyter_client.manager import start_new_kernel
from nbclient import NotebookClient
from pyiceberg.catalog import load_catalog

from tests.rest.proxy import rest_proxy
from tests.rest.server import rest_server
from tests.small_table import IDENTIFIER, ROWS, orders
from tests.store_outputs import NOTEBOOKS, stored

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jupyter_client import KernelManager

pytestmark = pytest.mark.jvm

TOKEN = "a-token-of-a-workspace"


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_there_are_notebooks():
    assert [path.name for path in NOTEBOOKS] == [
        "01_look_at_a_table.ipynb", "02_v4_tree.ipynb", "03_compaction.ipynb", "04_unity_catalog.ipynb",
        "05_sql_and_streams.ipynb", "06_slow_table.ipynb", "07_a_month.ipynb", "08_other_engines.ipynb",
    ]  # fmt: skip


def test_no_outputs_of_a_workspace_are_stored():
    assert [cell.outputs for cell in code_cells(read(NOTEBOOKS[3])) if cell.outputs or cell.execution_count] == []


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KernelManager]:
    """A kernel that runs one notebook after the other, each with names of its own: they share a Spark.

    A socket of a client that is not closed reconnects to the kernel's port for as long as the process lives, also after
    the kernel has ended and another server has got the port, such as one of Spark's.
    """
    manager, client = start_new_kernel(kernel_name="python3", cwd=str(tmp_path_factory.mktemp("notebooks")))
    client.stop_channels()
    yield manager
    manager.shutdown_kernel(now=True)
    gc.collect()
    assert not [each for each in gc.get_objects() if isinstance(each, zmq.Socket) and not each.closed]


def run_of(number: int) -> Any:
    """Return a fixture: a notebook by its number, executed."""

    @pytest.fixture(scope="module")
    def run(kernel: KernelManager) -> Any:
        return executed(NOTEBOOKS[number - 1], kernel)

    return run


looked, tree, compacted, streamed = (run_of(number) for number in (1, 2, 3, 5))
slow, month, engines = (run_of(number) for number in (6, 7, 8))


@pytest.fixture(scope="module")
def unity(kernel: KernelManager, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The fourth notebook, executed on Iceberg's REST catalog in the place of Unity Catalog."""
    with (
        rest_server(tmp_path_factory.mktemp("unity").as_uri()) as uri,
        rest_proxy(uri) as workspace,
    ):
        catalog = load_catalog("unity", type="rest", uri=uri)
        catalog.create_namespace("shop")
        catalog.create_table(IDENTIFIER, orders(0).schema).append(orders(0))
        workspace.token, workspace.folder = TOKEN, "/api/2.1/unity-catalog/iceberg-rest"
        client = kernel.blocking_client()
        client.start_channels()
        variables = {"DATABRICKS_HOST": f"{workspace.uri}/", "DATABRICKS_TOKEN": TOKEN}
        client.execute_interactive(f"import os; os.environ.update({variables})", store_history=False, timeout=60)
        client.stop_channels()
        yield executed(NOTEBOOKS[3], kernel)
        assert workspace.requests[0].path == "/v1/config?warehouse=main"


def executed(path: Path, kernel: KernelManager) -> Any:
    notebook = read(path)
    notebook.cells.insert(0, nbformat.v4.new_code_cell("%reset -f"))
    client = NotebookClient(notebook, km=kernel, timeout=300)
    try:
        client.execute(reset_kc=True)
    finally:
        client.kc.stop_channels()
    return notebook


def outputs(notebook: Any, source: str) -> str:
    """The text that the cell with this source printed and showed."""
    cell = next(cell for cell in code_cells(notebook) if source in cell.source)
    return "".join(output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs)


def shown(notebook: Any) -> list[str]:
    """The words that cells show. Words with numbers, ids and times differ between runs, as do the ends of outputs."""
    texts = [" ".join(text_of(output) for output in cell.outputs) for cell in code_cells(stored(notebook))]
    return [_VARIES.sub("#", " ".join(text.split())) for text in texts]


_VARIES = re.compile(r"\S*(?:\d|/tmp|…|--)\S*(?: [KMG]iB| B)?")


def text_of(output: Any) -> str:
    text: str = output.get("text") or output.get("data", {}).get("text/plain", "")
    return text


@pytest.mark.parametrize(
    ("number", "name"),
    [(0, "looked"), (1, "tree"), (2, "compacted"), (4, "streamed"), (5, "slow"), (6, "month"), (7, "engines")],
)
def test_stored_outputs_are_those_of_a_run(number: int, name: str, request: pytest.FixtureRequest):
    path, run = NOTEBOOKS[number], copy.deepcopy(request.getfixturevalue(name))
    del run.cells[0]
    assert shown(run) == shown(read(path))


def test_the_plan_has_the_files_that_the_filter_needs(looked: Any):
    # Ids up to 599 are in the first two loads. Each load has a file for each country.
    assert sorted(re.findall(r"'country': '(\w+)'", outputs(looked, "arrow.plan_files()"))) == ["NO", "NO", "SE", "SE"]
    assert "4 of 12 files" in outputs(looked, "scan.report()")


def test_the_table_shows_itself(looked: Any):
    cell = next(cell for cell in code_cells(looked) if cell.source.endswith("\ntable"))
    assert "shop.orders" in cell.outputs[0].data["text/html"]


def test_time_travel_finds_the_deleted_row(looked: Any):
    assert outputs(looked, "snapshot_id=before").split() == ["id", "country", "0", "7", "SE"]
    assert outputs(looked, "scan.count()").startswith("299 rows")


def drawn(notebook: Any, source: str) -> list[str]:
    """The texts of the drawing that the cell with this source shows."""
    cell = next(cell for cell in code_cells(notebook) if source in cell.source)
    svg = ET.fromstring(cell.outputs[-1].data["image/svg+xml"])
    shown = svg.iter("{http://www.w3.org/2000/svg}text")
    return ["".join([element.text or "", *(title.tail or "" for title in element)]) for element in shown]


def root_entries(notebook: Any, source: str) -> dict[str, str]:
    """The entries in the root's box of that drawing: name and kind -> status."""
    texts = drawn(notebook, source)
    start = next(number for number, text in enumerate(texts) if text.startswith("root manifest"))
    statuses = {}
    for name, status in zip(texts[start + 1 :: 2], texts[start + 2 :: 2], strict=False):
        if status not in {"ADDED", "EXISTING", "DELETED"} or name in statuses:
            break
        statuses[name] = status
    return statuses


def test_the_examples_of_the_proposal(tree: Any):
    leaf = "M1  data manifest"
    assert root_entries(tree, 'append(new_files("D1", ')[leaf] == "ADDED"
    appended = root_entries(tree, '"D4", "D5"')
    assert appended == {leaf: "EXISTING", "D4.parquet  data file": "ADDED", "D5.parquet  data file": "ADDED"}
    assert root_entries(tree, 'delete(files("D4"))')["D4.parquet  data file"] == "DELETED"
    masked = root_entries(tree, 'delete(files("D2"))')
    assert masked == {leaf: "EXISTING", "DV1  manifest DV": "ADDED", "D5.parquet  data file": "EXISTING"}
    overwritten = drawn(tree, ".overwrite(")
    assert "masks {1, 2} of M1 · new are {2} · inline" in overwritten
    assert root_entries(tree, ".overwrite(")["DV1  manifest DV"] == "DELETED"
    assert root_entries(tree, 'vector("rows"')["DV of D1.parquet  deletion vector"] == "ADDED"
    flushed = root_entries(tree, "flush-data-files")
    assert flushed["M2  data manifest"] == flushed["X1  delete manifest"] == "EXISTING"
    assert flushed["D8.parquet  data file"] == "ADDED"
    assert "masks {0} of X1 · inline" in drawn(tree, 'vector("more-rows"')


def test_the_tree_as_text(tree: Any):
    assert "masked by DV2" in outputs(tree, "print(drawing)")
    assert "D8" not in outputs(tree, "snapshots()[0]")
    lives = [cell.outputs[0].data["text/plain"] for cell in code_cells(tree) if cell.source == "live()"]
    assert lives == ["['D1', 'D6']", "['D1', 'D6', 'D7', 'D8']"]


def test_a_compaction(compacted: Any):
    maps = [cell for cell in code_cells(compacted) if cell.source == "table.maintenance.leaf_map()"]
    before, after = ([svg.attrib for svg in bars_of(cell)] for cell in maps)
    # Each leaf overlaps all others. Four have masked entries, drawn as a second bar.
    assert len(before) == 12
    assert len({bar["y"] for bar in before}) == 8
    # They are side by side, and fill the map together.
    assert 1 < len(after) < 8
    assert len({bar["y"] for bar in after}) == 1
    ends = [(float(bar["x"]), float(bar["x"]) + float(bar["width"])) for bar in after]
    assert all(0 < start - end < 1.2 for (_, end), (start, _) in pairwise(sorted(ends)))
    opened = re.findall(r"\d+", outputs(compacted, "leaves opened before"))
    assert int(opened[0]) == 8
    assert int(opened[1]) < 8
    assert outputs(compacted, "snapshot.operation").split() == ["replace", "0", "0"]
    assert "need no compaction" in outputs(compacted, "target_leaf_bytes=2 * target).summary())")


def bars_of(cell: Any) -> list[ET.Element]:
    """The bars of the chart that a cell shows."""
    svg = ET.fromstring(cell.outputs[0].data["image/svg+xml"])
    return [rect for rect in svg.iter("{http://www.w3.org/2000/svg}rect") if len(rect)]


def test_a_slow_table_gets_fast(slow: Any):
    opened, planned, opened_after, planned_after = map(int, re.findall(r"\d+", outputs(slow, "manifests opened")))
    assert (opened, planned) == (24, 96)
    assert opened_after <= 2
    assert planned_after <= 8


def test_a_month(month: Any):
    assert outputs(month, "after the rollback").split()[-1] == "1440"
    counts = ast.literal_eval(outputs(month, "use_ref(name)"))
    assert list(counts) == ["main", "week-1", "week-2", "week-3", "week-4"]
    assert counts["main"] == counts["week-4"]
    assert "0 violations" in outputs(month, "arrow.check")
    assert "is healthy" in outputs(month, "arrow.check")


def test_a_stream_of_changes_makes_a_copy(streamed: Any):
    assert outputs(streamed, "exceptAll").split() == ["[198,", "198]", "0"]


def test_other_engines_get_rows_without_the_deleted_ones(engines: Any):
    assert re.findall(r"2026-01-0\d 00:00:00 │ +(\d+)", outputs(engines, "to_duckdb")) == ["600", "475", "600"]
    assert outputs(engines, "fetchall") == "True"
    assert outputs(engines, "to_arrow_batch_reader") == "(16798, 1675)"
    assert outputs(engines, "arrow.plan_task_json") == "[(2400, 0), (2400, 1), (2400, 0)]"


def test_a_table_of_unity_catalog(unity: Any) -> None:
    assert outputs(unity, "tables[:20]") == "[('shop', 'orders')]"
    assert "append" in outputs(unity, "inspect.snapshots()")
    assert str(ROWS) in outputs(unity, "plan_files()")
    assert "planned 1" in outputs(unity, "print(scan.report())")
    assert TOKEN not in nbformat.writes(unity)
