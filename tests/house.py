"""Measure the package as a house: `python -m tests.house`.

Prints the figures of the source and of what small operations run through, beside those in `house.json`. Less is better.
Fails if a figure is worse than the recorded one, or records them with `--record`. `make check` runs it.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

import sparkmeta as sm
from tests.test_imports import Trees, imported, package_imports, room_of, syntax_trees

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

PACKAGE = Path(sm.__file__).parent
TESTS = Path(__file__).parent
RECORD = TESTS / "house.json"

FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)

# Imports between rooms that the house should not have.
UPWARD = (("rows", "commit"), ("rows", "inspect"), ("commit", "inspect"))

# Names of values that tell whether the driver, tasks or Spark do a piece of work.
PLACES = {
    "alone", "by_driver", "driver_opens", "driver_reads", "driver_reads_lists", "fits_driver", "is_few",
    "is_planned_by_driver",
}  # fmt: skip


def main() -> int:
    figures, limits = source_figures() | surface_figures() | flow_figures(), json.loads(RECORD.read_text())
    for name, figure in figures.items():
        mark = "  worse" if figure > limits.get(name, 0) else ""
        print(f"{name:56}{figure:>8}{limits.get(name, '-'):>8}{mark}")  # noqa: T201
    if "--record" in sys.argv:
        RECORD.write_text(json.dumps(figures, indent=2) + "\n")
        return 0
    return int(any(figure > limits.get(name, 0) for name, figure in figures.items()))


# -- The source -------------------------------------------------------------------------------------------------------


def source_figures() -> dict[str, int]:
    """Return the figures of the source, by their names."""
    trees = syntax_trees()
    asking = [(module, line) for module, tree in trees.items() for line in functions_that_ask_where(tree)]
    imports = {module: package_imports(tree, set(trees)) for module, tree in trees.items()}
    rooms = Counter((room_of(module), room_of(target)) for module, targets in imports.items() for target in targets)
    return {
        "package: files": len(trees),
        "package: lines of code": _hundreds(sum(_lines_of_code(path) for path in PACKAGE.rglob("*.py"))),
        "package: modules that load PySpark": len(_modules_that_load_pyspark(trees)),
        "package: functions that ask where work runs": len(asking),
        "package: files with such functions": len({module for module, _ in asking}),
        "tests: lines": _hundreds(sum(path.read_text().count("\n") for path in TESTS.rglob("*.py"))),
        **{f"imports: {source} of {target}": rooms[source, target] for source, target in UPWARD},
    }


def _hundreds(count: int) -> int:
    """Return a count rounded up, so that it need not be recorded for every line."""
    return -(-count // 100) * 100


def _lines_of_code(path: Path) -> int:
    """Count the lines that are neither blank, nor comments, docstrings or imports."""
    text = path.read_text()
    other: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        is_text = (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
        is_exports = isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__"
        if isinstance(node, ast.Import | ast.ImportFrom) or is_text or is_exports:
            other.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(text.splitlines(), 1)
    return len({number for number, line in lines if line.strip() and not line.strip().startswith("#")} - other)


def functions_that_ask_where(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of the functions that tell Arrow tables from DataFrames, or ask whether the driver works."""
    for function in _functions(tree):
        if any(map(_asks_where, _nodes_of_function(function))):
            yield function.lineno


def _nodes_of_function(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function, except nodes of functions inside it."""
    for node in ast.iter_child_nodes(function):
        if not isinstance(node, FUNCTION):
            yield node
            yield from _nodes_of_function(node)


def _asks_where(node: ast.AST) -> bool:
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
        kinds = ast.unparse(node.args[1])
        return "pa.Table" in kinds or "DataFrame" in kinds
    if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
        return (node.id if isinstance(node, ast.Name) else node.attr) in PLACES
    return False


def _modules_that_load_pyspark(trees: Trees) -> set[str]:
    """Return the modules whose import loads PySpark, itself or by modules that they import at their top level."""
    at_load = {module: set(_imports_at_load(tree)) for module, tree in trees.items()}
    loading = {module for module, names in at_load.items() if any(name.split(".")[0] == "pyspark" for name in names)}
    while more := {module for module, names in at_load.items() if names & loading} - loading:
        loading |= more
    return loading


def _imports_at_load(tree: ast.AST) -> Iterator[str]:
    """Yield the names that are imported outside functions, and the modules that hold them."""
    for node in ast.iter_child_nodes(tree):
        is_for_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if isinstance(node, ast.Import | ast.ImportFrom):
            for name in imported(node):
                yield from (name, name.rpartition(".")[0])
        elif isinstance(node, ast.If | ast.Try) and not is_for_types:
            yield from _imports_at_load(node)


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, FUNCTION))


# -- The surface ------------------------------------------------------------------------------------------------------


def surface_figures() -> dict[str, int]:
    """Return the numbers of public names, and of the public members of public classes."""
    classes = [value for name in sm.__all__ if inspect.isclass(value := getattr(sm, name))]
    counts = {kind.__name__: len(_public_members(kind)) for kind in classes}
    return {
        "surface: top-level names": len(sm.__all__),
        "surface: public members": sum(counts.values()),
        "surface: members of Scan": counts["Scan"],
        "surface: members of Table": counts["Table"],
    }


def _public_members(kind: type) -> set[str]:
    """Return the public attributes and methods that a class gets from classes of the package."""
    bases = [base for base in kind.__mro__ if base.__module__.split(".")[0] == "sparkmeta"]
    names = {name for base in bases for name in [*vars(base), *vars(base).get("__annotations__", {})]}
    return {name for name in names if not name.startswith("_")}


# -- What small operations run through --------------------------------------------------------------------------------


def flow_figures() -> dict[str, int]:
    """Return the functions and files that small operations without Spark run through, in their second run."""
    figures = {}
    for name, operation in _operations().items():
        with tempfile.TemporaryDirectory() as folder:
            again = operation(folder)
            again()
            functions = _traced(again)
        figures[f"flow: {name}, functions"] = len(functions)
        figures[f"flow: {name}, files"] = len({file for file, _ in functions})
    return figures


def _operations() -> dict[str, Callable[[str], Callable[[], object]]]:
    """Return the operations by name: functions that make a table in a folder and return what to trace."""

    def plan(folder: str) -> Callable[[], object]:
        location = _table(folder, 3).delete("id = 3").metadata_location

        def planned() -> pa.Table:
            return sm.load_table(location).scan("part = 0 and id < 50").arrow.plan_files()

        return planned

    def append_file(folder: str) -> Callable[[], object]:
        table = _table(folder, 4)
        numbers = iter(range(10))

        def append() -> None:
            path = f"{folder}/{next(numbers)}.parquet"
            row = {"file_path": path, "file_format": "PARQUET", "record_count": 1, "file_size_in_bytes": 100}
            partition = pa.array([{"part": 0}], pa.struct([("part", pa.int64())]))
            with table.refresh().transaction() as transaction:
                transaction.update_snapshot().append(pa.Table.from_pylist([row]).append_column("partition", partition))

        return append

    def delete_row(folder: str) -> Callable[[], object]:
        table, ids = _table(folder, 3), iter(range(10))
        return lambda: table.refresh().delete(f"id = {next(ids)}")

    return {
        "plan of v3 with vectors": plan,
        "append of a file to a tree": append_file,
        "delete of a row, v3": delete_row,
    }


def _table(folder: str, version: int) -> sm.Table:
    """Return a new table of one partition with two files of 50 rows each."""
    catalog = sm.load_catalog("house", type="hadoop", warehouse=folder)
    schema = pa.schema([("id", pa.int64()), ("part", pa.int64())])
    properties = {"write.delete.mode": "merge-on-read"}
    table = catalog.create_table("db.t", schema, partition_by=["part"], format_version=version, properties=properties)
    for begin in (0, 50):
        table = table.append(pa.table({"id": range(begin, begin + 50), "part": [0] * 50}, schema))
    return table


def _traced(operation: Callable[[], object]) -> set[tuple[str, str]]:
    """Run an operation, and return the files and names of the package's functions and methods that it calls."""
    functions: set[tuple[str, str]] = set()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(PACKAGE)) and not code.co_name.startswith("<"):
            functions.add((code.co_filename, code.co_qualname))

    sys.setprofile(note)
    try:
        operation()
    finally:
        sys.setprofile(None)
    return functions


if __name__ == "__main__":
    sys.exit(main())
