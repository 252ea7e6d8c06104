"""The rules that the package's source keeps: which module imports which, and what Spark Connect does not have."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import sparkmeta

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(sparkmeta.__file__).parent
# From the top floor down; a module imports modules of its own room and of floors below. A room is a folder, or a module
# on top of the package.
FLOORS = [
    {"__main__"},
    {"cli"},
    {"schedule"},
    {"__init__"},
    {"service"},
    {"catalog"},
    {"views"},
    {"table"},
    {"range_scan"},
    {"scan", "maintain"},
    {"health"},
    {"rewrite"},
    {"write"},
    {"data_files"},
    {"rows"},
    {"commit"},
    {"compact"},
    {"edit"},
    {"changes"},
    {"inspect"},
    {"plan"},
    {"operations"},
    {"state"},
    {"manifests"},
    {"avro"},
    {"entries"},
    {"storage"},
    {"session", "columns"},
    {"settings", "spec", "java"},
    {"checks"},
    {"errors"},
]
# What classic Spark has and Spark Connect has not, or serverless Spark refuses.
BANNED_ATTRIBUTES = {
    "_jvm", "_jsc", "_jdf", "_jsparkSession", "_sc", "sparkContext", "rdd", "parallelize",
    "cache", "persist", "checkpoint", "foreachPartition", "toPandas", "mapInPandas", "applyInPandas",
}  # fmt: skip
BANNED_NAMES = {"RDD", "SparkContext", "pandas_udf"}

MODULES = sorted(PACKAGE.rglob("*.py"))
FLOOR = {room: floor for floor, rooms in enumerate(reversed(FLOORS)) for room in rooms}


def room_of(module: str) -> str:
    """The room of a module, given by its dotted name."""
    return module.split(".")[1] if "." in module else "__init__"


def module_name(path: Path) -> str:
    """The dotted name of a module of the package."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


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
    """What a module imports when it runs, by dotted names."""
    return {name for node in run_time_nodes(ast.parse(module.read_text())) for name in imported(node)}


def package_imports(module: Path, names: set[str]) -> set[str]:
    """The modules of the package that a module imports anywhere: at its top, in functions, and for type checking.

    names: the dotted names of the package's modules.
    """
    targets = {name for node in ast.walk(ast.parse(module.read_text())) for name in imported(node)}
    in_package = {name for name in targets if name.split(".")[0] == "sparkmeta"}
    return {name if name in names else name.rpartition(".")[0] for name in in_package}


NAMES = {module_name(path) for path in MODULES}
IMPORTS = {module_name(path): package_imports(path, NAMES) for path in MODULES}


@pytest.mark.parametrize("module", sorted(NAMES))
def test_imports_point_down(module: str) -> None:
    room = room_of(module)
    upward = {name for name in IMPORTS[module] if room_of(name) != room and FLOOR[room_of(name)] >= FLOOR[room]}
    assert not upward, f"{module} of {room} imports {sorted(upward)}, which are not on a floor below"


def test_no_circle_of_imports() -> None:
    try:
        TopologicalSorter(IMPORTS).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


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


# What workers take 0.2 s to import: the first task in each waits for it.
HEAVY = ("pyiceberg.table", "pyiceberg.manifest", "strictyaml", "sparkmeta.spec.metadata")


def test_modules_of_tasks_are_light() -> None:
    marks = ("Spark tasks import this", "Picklable", "Without Spark")
    of_tasks = [module_name(path) for path in MODULES if any(mark in path.read_text() for mark in marks)]
    assert {"sparkmeta.write.position_tasks", "sparkmeta.write.tasks", "sparkmeta.manifests.decoder"} < set(of_tasks)
    loaded = f"import sys, {', '.join(of_tasks)}; print(*(name for name in {HEAVY} if name in sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", loaded], text=True).split() == []


def test_the_rules_are_rules(tmp_path: Path) -> None:
    source = tmp_path / "x.py"
    source.write_text("if TYPE_CHECKING:\n    import a.b\ndef f():\n    from c import d\n    import e")
    assert imports(source) == {"c.d", "e"}
