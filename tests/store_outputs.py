"""Run the notebooks and store their outputs in them: `make notebooks`, or `python -m tests.store_outputs 03 06`.

Folders of the run become `/tmp/...`, so that a stored notebook does not name a machine.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
# It needs a workspace of Databricks.
UNITY = "04_unity_catalog.ipynb"
_FOLDER = re.compile(r"/[\w./-]*?/?(?:tmp\w{8}|[a-z-]+-[a-z0-9_]{8})(?=/)")


def stored(notebook: Any) -> Any:
    """Return an executed notebook without what differs between machines: counts, log lines, folders."""
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type != "code":
            continue
        cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        for output in cell.outputs:
            texts = output.data if "data" in output else output
            for kind in [kind for kind in texts if isinstance(texts[kind], str) and kind != "output_type"]:
                texts[kind] = _FOLDER.sub("/tmp/warehouse", texts[kind])
    return notebook


def main() -> None:
    """Run each notebook in a folder of its own."""
    chosen = tuple(sys.argv[1:]) or ("",)
    for path in NOTEBOOKS:
        if path.name == UNITY or not path.name.startswith(chosen):
            continue
        notebook = nbformat.read(path, as_version=4)
        with tempfile.TemporaryDirectory() as folder:
            NotebookClient(notebook, timeout=600, resources={"metadata": {"path": folder}}).execute()
        nbformat.write(stored(notebook), path)
        print(f"written: {path}")  # noqa: T201


if __name__ == "__main__":
    main()
