"""Plans by different columns of one table, whose root lists files and deletes."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING

import pytest

from tests.trees import BY_PART, TreeTable, data, equality_deletes, stats

if TYPE_CHECKING:
    from pathlib import Path

    from sparkmeta import Table

# Filter -> path of each planned file -> paths of its deletes.
PLANS = {
    "true": {"x:1": ["x:eq5"], "x:2": []},
    "part = 'a'": {"x:1": ["x:eq5"]},
    "id >= 10": {"x:2": []},
    "part = 'a' and id < 3": {"x:1": []},
}


def planned(table: Table, row_filter: str) -> dict[str, list[str]]:
    rows = table.scan(row_filter).arrow.plan_files().to_pylist()
    return {row["file_path"]: [delete["file_path"] for delete in row["deletes"]] for row in rows}


@pytest.mark.parametrize("filters", [*permutations(PLANS, 2)])
def test_plans_by_different_columns_read_one_root(tmp_path: Path, filters: tuple[str, ...]) -> None:
    """Equality deletes of ids that a file can't have are left out, whatever columns the filter has."""
    tree = TreeTable(tmp_path / "t", BY_PART)
    files = [data("x:1", "a"), data("x:2", "b", content_stats=stats("b", (10, 19)))]
    tree.snapshot(added=files)
    deletes = [equality_deletes(f"x:eq{low}", content_stats=stats("a", (low, low + 1))) for low in (5, 100)]
    tree.snapshot(existing=files, added=deletes)
    table = tree.load(None)
    for row_filter in (*filters, filters[0]):
        assert planned(table, row_filter) == PLANS[row_filter]
        (tmp_path / "t" / "metadata" / "root2.parquet").unlink(missing_ok=True)
