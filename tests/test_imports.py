"""The house's rules that its source must keep: who imports whom, and what Spark Connect does not have."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import sparkmeta

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(sparkmeta.__file__).parent
# Each imports from its own layer and those before.
LAYERS = [
    {"errors"},
    {"settings"},
    {"java"},
    {"session"},
    {"spec"},
    {"storage", "columns"},
    {"manifests"},
    {"state"},
    {"plan"},
    {"inspect"},
    {"catalog"},
    {"commit"},
    {"maintain"},
    {"scan", "table", "view"},
    {"cli"},
    {"__init__", "__main__"},
]
# A catalog gives tables, and a table is opened from a folder: the first is imported when it is called.
ALLOWED = {("catalog", "table"), ("catalog", "commit")}
# What classic Spark has and Spark Connect has not, or serverless Spark refuses.
BANNED_ATTRIBUTES = {
    "_jvm", "_jsc", "_jdf", "_jsparkSession", "_sc", "sparkContext", "rdd", "parallelize",
    "cache", "persist", "checkpoint", "foreachPartition", "toPandas", "mapInPandas", "applyInPandas",
}  # fmt: skip
BANNED_NAMES = {"RDD", "SparkContext", "pandas_udf"}

MODULES = sorted(PACKAGE.rglob("*.py"))
LAYER = {name: number for number, names in enumerate(LAYERS) for name in names}


def place(module: Path) -> str:
    """The package's folder or top module that a file belongs to."""
    return module.relative_to(PACKAGE).parts[0].removesuffix(".py")


def run_time_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those below ``if TYPE_CHECKING``."""
    yield tree
    for child in ast.iter_child_nodes(tree):
        if not (isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING"):
            yield from run_time_nodes(child)


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def imports(module: Path) -> set[str]:
    return {name for node in run_time_nodes(ast.parse(module.read_text())) for name in imported(node)}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(PACKAGE)))
def test_imports_point_one_way(module: Path) -> None:
    here = place(module)
    targets = {name.split(".")[1] for name in imports(module) if name.startswith("sparkmeta.")}
    upward = {name for name in targets if LAYER[name] > LAYER[here] and (here, name) not in ALLOWED}
    assert not upward, f"{here} imports {upward}"


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(PACKAGE)))
def test_nothing_that_spark_connect_lacks(module: Path) -> None:
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Attribute):
            of_functools = isinstance(node.value, ast.Name) and node.value.id == "functools"
            assert node.attr not in BANNED_ATTRIBUTES or of_functools, f"line {node.lineno} uses {node.attr}"
        if isinstance(node, ast.Name):
            assert node.id not in BANNED_NAMES, f"line {node.lineno} uses {node.id}"


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(PACKAGE)))
def test_pandas_is_not_ours_to_import(module: Path) -> None:
    assert not {name for name in imports(module) if name.partition(".")[0] in {"pandas", "pytest"}}


def test_the_rules_are_rules(tmp_path: Path) -> None:
    source = tmp_path / "x.py"
    source.write_text("if TYPE_CHECKING:\n    import a.b\ndef f():\n    from c import d\n    import e")
    assert imports(source) == {"c.d", "e"}
