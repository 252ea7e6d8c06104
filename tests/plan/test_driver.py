"""A driver that may take 1 MB of results from tasks plans larger tables, and shows their metadata.

The session is of a process of its own, as the limit can't be set in one that runs: `python -m tests.plan.test_driver`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from hashlib import sha512
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import sparkmeta as sm
from tests.conftest import QUICK
from tests.handmade import BY_PART, HandmadeTable, data, deletion_vector
from tests.trees import BY_PART as TREE_BY_PART
from tests.trees import TreeTable
from tests.trees import data as tree_data

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROOT = Path(__file__).parents[2]
FILES = 12_000
LIMIT = "1m"
INSPECTED = (
    "entries", "files", "data_files", "delete_files", "partitions", "all_entries", "all_files", "all_data_files",
    "all_delete_files", "manifests", "all_manifests",
)  # fmt: skip


@pytest.mark.classic
@pytest.mark.jvm
def test_nothing_that_grows_with_the_table_reaches_the_driver(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "tests.plan.test_driver", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    counts = json.loads(done.stdout.splitlines()[-1])
    assert counts == {"lists": FILES, "tree": FILES, "too large to be collected": 2}


def main(folder: Path) -> dict[str, int]:
    """Run every relation to its end in tasks; count the rows of the plans, and the plans that can't be collected."""
    limited = QUICK | {"spark.driver.maxResultSize": LIMIT, "spark.ui.showConsoleProgress": "false"}
    spark = sm.local_session("limited", cores=2, memory="2g", config=limited)
    tables = {"lists": sm.load_table(lists(folder / "lists"), spark=spark), "tree": tree(folder / "tree").load(spark)}
    counts = {"too large to be collected": 0}
    for name, table in tables.items():
        plan = table.scan().plan_files()
        counts[name] = plan.count()
        for relation in (plan, table.scan().plan_tasks(), table.scan().plan_task_json()):
            run(relation)
        for kind in INSPECTED:
            run(getattr(table.inspect, kind)())
        try:
            plan.collect()
        except Exception as error:  # noqa: BLE001  Py4J's or PySpark's
            counts["too large to be collected"] += "maxResultSize" in str(error)
    return counts


def run(relation: DataFrame) -> None:
    relation.write.format("noop").mode("overwrite").save()


def path(number: int) -> str:
    """Text that results can't compress well."""
    return f"file:///t/data/{sha512(str(number).encode()).hexdigest()}.parquet"


def lists(folder: Path) -> str:
    """A table of version 3: two data manifests, vectors of some files."""
    table, part = HandmadeTable(folder, specs=((), BY_PART), summaries=True), {"partition": {"part": "x"}}
    half = FILES // 2
    for start in (0, half):
        table.add(0, 1, *(data(path(start + number), 1, **part) for number in range(half)))
    table.add(1, 1, *(deletion_vector(path(number), **part) for number in range(half)))
    return table.write()


def tree(folder: Path) -> TreeTable:
    """A tree of two leaves, whose first entries are masked."""
    table, half = TreeTable(folder, TREE_BY_PART), FILES // 2 + 1
    leaves = [
        table.leaf(f"m{start}", *(tree_data(path(start + number)) for number in range(half))) for start in (0, half)
    ]
    table.snapshot(added=leaves)
    table.snapshot(existing=leaves, added=[table.mask(leaf, [0]) for leaf in leaves])
    return table


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(main(Path(sys.argv[1]))) + "\n")
