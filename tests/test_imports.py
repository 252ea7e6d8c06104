"""The rules that the package's source keeps: which module imports which, and what Spark Connect does not have."""

from __future__ import annotations

import ast
import gc
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import sparkmeta

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.core
Trees = dict[str, ast.Module]

PACKAGE = Path(sparkmeta.__file__).parent
# From the top floor down; a module imports modules of its own room and of floors below. A room is a folder, or a module
# on top of the package.
FLOORS = [
    {"__main__"}, {"cli"}, {"__init__"}, {"service"}, {"data_source"}, {"catalog"}, {"fleet"}, {"views"}, {"table"},
    {"maintain"}, {"write", "inspect"}, {"commit"}, {"changes"}, {"scan"}, {"scan_plan"}, {"rows"}, {"plan"},
    {"operations"}, {"snapshot"}, {"manifests"}, {"avro"}, {"entries"}, {"storage"}, {"progress"},
    {"session", "expr"}, {"reports"}, {"settings", "spec", "java", "arrow_types", "charts"}, {"checks", "text"},
    {"errors"},
]  # fmt: skip
# Features that Spark Connect lacks or serverless Spark refuses.
BANNED_ATTRIBUTES = {
    "_jvm", "_jsc", "_jdf", "_jsparkSession", "_sc", "sparkContext", "rdd", "parallelize",
    "cache", "persist", "checkpoint", "foreachPartition", "toPandas", "mapInPandas", "applyInPandas",
}  # fmt: skip
BANNED_NAMES = {"RDD", "SparkContext", "pandas_udf"}
# Names of variables, parameters, attributes and functions that would not say what they hold.
VAGUE_NAMES = {"one", "found", "own", "made", "kept", "here", "most", "plain"}
# The modules of PySpark that are in its reference. Others change between minor versions.
PUBLIC_PYSPARK = {"pyspark"} | {
    f"pyspark.{name}" for name in ("errors", "logger", "sql", "sql.datasource", "sql.functions", "sql.types")
}

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
    nodes = [tree]
    while nodes:
        yield (node := nodes.pop())
        if not (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            nodes += ast.iter_child_nodes(node)


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def imports(tree: ast.AST) -> set[str]:
    """What a module imports when it runs, by dotted names."""
    return {name for node in run_time_nodes(tree) for name in imported(node)}


def package_imports(tree: ast.AST, names: set[str]) -> set[str]:
    """Return which of the modules `names` a module imports: at its top, in functions, and for type checking."""
    targets = {name for node in ast.walk(tree) for name in imported(node)}
    in_package = {name for name in targets if name.split(".")[0] == "sparkmeta"}
    return {name if name in names else name.rpartition(".")[0] for name in in_package}


def banned_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The line and the name of each use of what Spark Connect lacks."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in BANNED_ATTRIBUTES:
            if not (isinstance(node.value, ast.Name) and node.value.id == "functools"):
                yield node.lineno, node.attr
        elif isinstance(node, ast.Name) and node.id in BANNED_NAMES:
            yield node.lineno, node.id


def assigned(tree: ast.AST) -> Iterator[str]:
    """The names that code gives to values."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name


def syntax_trees() -> Trees:
    """The syntax trees of the package's modules, by dotted names."""
    return {module_name(path): ast.parse(path.read_text()) for path in MODULES}


@pytest.fixture(scope="module")
def trees() -> Iterator[Trees]:
    # They are many objects, among which Python would look for garbage again and again.
    gc.disable()
    yield syntax_trees()
    gc.enable()


@pytest.fixture(scope="module")
def package(trees: Trees) -> dict[str, set[str]]:
    return {module: package_imports(tree, set(trees)) for module, tree in trees.items()}


def test_imports_point_down(package: dict[str, set[str]]) -> None:
    upward = {}
    for module, names in package.items():
        room = room_of(module)
        upward[module] = {name for name in names if room_of(name) != room and FLOOR[room_of(name)] >= FLOOR[room]}
    assert not {module: names for module, names in upward.items() if names}


def test_no_circle_of_imports(package: dict[str, set[str]]) -> None:
    try:
        TopologicalSorter(package).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_nothing_that_spark_connect_lacks(trees: Trees) -> None:
    banned = [f"{module}, line {line}: {name}" for module, tree in trees.items() for line, name in banned_names(tree)]
    assert not banned


def test_only_what_pyspark_documents(trees: Trees) -> None:
    targets = {name for tree in trees.values() for node in ast.walk(tree) for name in imported(node)}
    of_pyspark = {name for name in targets if name.split(".")[0] == "pyspark"}
    private = {
        name for name in of_pyspark - PUBLIC_PYSPARK if "._" in name or name.rpartition(".")[0] not in PUBLIC_PYSPARK
    }
    assert not private


def test_names_say_what_they_hold(trees: Trees) -> None:
    names = {f"{module}: {name}" for module, tree in trees.items() for name in assigned(tree) if name in VAGUE_NAMES}
    assert not names


def test_pandas_is_not_ours_to_import(trees: Trees) -> None:
    tops = {module: {name.partition(".")[0] for name in imports(tree)} for module, tree in trees.items()}
    assert not {module for module, names in tops.items() if names & {"pandas", "pytest"}}


# Workers take 0.2 s to import these, and the first task in each waits for it.
HEAVY = ("pyiceberg.table", "pyiceberg.manifest", "strictyaml", "sparkmeta.spec.metadata")


def test_modules_of_tasks_are_light() -> None:
    marks = ("Spark tasks import this", "Picklable", "Without Spark")
    of_tasks = [module_name(path) for path in MODULES if any(mark in path.read_text() for mark in marks)]
    assert {"sparkmeta.write.delete_tasks", "sparkmeta.write.tasks", "sparkmeta.manifests.decoder"} < set(of_tasks)
    loaded = f"import sys, {', '.join(of_tasks)}; print(*(name for name in {HEAVY} if name in sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", loaded], text=True).split() == []


def test_the_rules_are_rules() -> None:
    tree = ast.parse("if TYPE_CHECKING:\n    import a.b\ndef f():\n    from c import d\n    import e")
    assert imports(tree) == {"c.d", "e"}
    assert list(banned_names(ast.parse("functools.cache(f)\nspark.sparkContext"))) == [(2, "sparkContext")]
    tree = ast.parse("class C:\n    a: int\n    def b(self, c):\n        self.d = e = f.g")
    assert {*assigned(tree)} == {*"Cabcde", "self"}
