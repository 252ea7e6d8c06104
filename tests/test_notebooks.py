"""The notebooks as they are shipped: without outputs, and every cell runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_there_are_notebooks():
    assert [path.name for path in NOTEBOOKS] == ["01_look_at_a_table.ipynb"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_no_outputs_are_committed(path: Path):
    assert [cell.outputs for cell in code_cells(read(path)) if cell.outputs or cell.execution_count] == []


@pytest.fixture(scope="module")
def looked(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The first notebook, executed."""
    notebook = read(NOTEBOOKS[0])
    folder = str(tmp_path_factory.mktemp("notebook"))
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
    return notebook


def outputs(notebook: Any, source: str) -> str:
    """What the cell that holds this source printed and showed."""
    cell = next(cell for cell in code_cells(notebook) if source in cell.source)
    return "".join(one.get("text") or one.get("data", {}).get("text/plain", "") for one in cell.outputs)


def countries(text: str) -> list[str]:
    return sorted(re.findall(r"\b(?:NO|SE|DK|FI)\b", text))


def test_the_plan_has_the_files_that_the_filter_needs(looked: Any):
    # Ids 900 to 1099 are in the first two loads, of which each has a file for each country.
    assert countries(outputs(looked, "planned.select")) == ["NO", "NO", "SE", "SE"]
    assert "planned 4" in outputs(looked, "print(report)")


def test_the_table_shows_itself(looked: Any):
    cell = next(cell for cell in code_cells(looked) if cell.source.endswith("\ntable"))
    assert "shop.orders" in cell.outputs[0].data["text/html"]


def test_time_travel_finds_the_deleted_file(looked: Any):
    assert countries(outputs(looked, "left_anti")) == ["FI"]
