"""The counts of `tests.house`, whose figures `make check` compares with the recorded ones."""

from __future__ import annotations

import ast

from tests import house


def test_functions_that_ask_where_work_runs_are_counted() -> None:
    asking = "def f(rows):\n    if isinstance(rows, pa.Table): ...\ndef g(access):\n    return access.alone"
    others = "def f(rows):\n    return isinstance(rows, dict)\ndef g():\n    def h(state): return state.alone"
    assert list(house.functions_that_ask_where(ast.parse(asking))) == [1, 3]
    assert list(house.functions_that_ask_where(ast.parse(others))) == [4]
