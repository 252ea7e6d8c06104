"""Measure the package as a house: `python -m tests.house`.

Prints the number of files and lines, the share of imports, the class names that several modules define, and the files
of the package that small operations run through. These run on a local Spark session and a table of few files.
"""

from __future__ import annotations

import ast
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

import sparkmeta as sm

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from pyspark.sql import DataFrame, SparkSession

    from sparkmeta.commit.given_files import GivenFiles

PACKAGE = Path(sm.__file__).parent
FILE_NAMES = ("file_path", "file_format", "record_count", "file_size_in_bytes")
FILE_COLUMNS = "file_path string, file_format string, record_count long, file_size_in_bytes long"


def main() -> None:
    for name, value in size().items():
        print(f"{name:46}{value}")  # noqa: T201
    spark = sm.local_session()
    for version in (2, 4):
        for name, (functions, files) in hops(spark, version).items():
            print(f"{name + f', version {version}':46}{functions} functions in {files} files")  # noqa: T201


def size() -> dict[str, object]:
    """Return the figures of the source, by their names."""
    sources = {path: path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in sources.items()}
    lines = [text.count("\n") for text in sources.values()]
    code, imports = 0, 0
    for path, text in sources.items():
        numbers = _lines_of_code(text)
        code += len(numbers)
        imports += len(numbers & _import_lines(trees[path]))
    modules: defaultdict[str, int] = defaultdict(int)
    for tree in trees.values():
        for name in {node.name for node in tree.body if isinstance(node, ast.ClassDef) and node.name[0] != "_"}:
            modules[name] += 1
    repeated = sorted(name for name, count in modules.items() if count > 1)
    return {
        "files": len(sources),
        "lines": sum(lines),
        "lines of the median file": statistics.median(lines),
        "lines of the longest file": max(lines),
        "lines of code other than imports": code - imports,
        "imports, percent of other code": round(100 * imports / (code - imports), 1),
        "public class names of several modules": f"{len(repeated)} ({', '.join(repeated)})",
    }


def _lines_of_code(text: str) -> set[int]:
    """Return the numbers of the lines that are neither blank, nor comments, nor docstrings."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(text.splitlines(), 1)
    return {number for number, line in lines if line.strip() and not line.strip().startswith("#")} - docstrings


def _import_lines(tree: ast.Module) -> set[int]:
    """Return the numbers of the lines of imports and of `__all__`."""
    numbers: set[int] = set()
    for node in ast.walk(tree):
        is_import = isinstance(node, ast.Import | ast.ImportFrom)
        is_exports = isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__"
        if is_import or is_exports:
            numbers.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return numbers


def hops(spark: SparkSession, format_version: int) -> dict[str, tuple[int, int]]:
    """Return the functions and the files of the package that each operation runs through, by its name."""
    with tempfile.TemporaryDirectory() as folder:
        catalog = sm.load_catalog("house", type="hadoop", warehouse=folder)
        catalog.create_namespace("db")
        schema = Schema(NestedField(1, "id", LongType(), required=False))
        table = catalog.create_table("db.t", schema, format_version=format_version, spark=spark)

        def file_rows(name: str) -> DataFrame:
            return spark.createDataFrame([(f"{folder}/{name}.parquet", "PARQUET", 1, 100)], FILE_COLUMNS)

        def append(name: str, files: Callable[[str], GivenFiles] = file_rows) -> None:
            with table.refresh().transaction() as transaction:
                transaction.update_snapshot().append(files(name))

        def in_memory(name: str) -> pa.Table:
            row = (f"{folder}/{name}.parquet", "PARQUET", 1, 100)
            return pa.Table.from_pylist([dict(zip(FILE_NAMES, row, strict=True))])

        def append_row() -> None:
            table.refresh().append(pa.table({"id": [1]}))

        def delete(name: str) -> None:
            with table.refresh().transaction() as transaction:
                transaction.update_snapshot().delete(file_rows(name).select("file_path"))

        for name in ("a", "b", "c"):
            append(name)
        # What only the first call of a function does is not part of an operation.
        delete("a")
        append("e", in_memory)
        append_row()
        return {
            "load a table": _traced(lambda: sm.load_table(table.location(), spark=spark)),
            "plan three files": _traced(lambda: table.refresh().scan().plan_files().collect()),
            "append a file": _traced(lambda: append("d")),
            "append a file, without Spark": _traced(lambda: append("f", in_memory)),
            "append a row, without Spark": _traced(append_row),
            "delete a file": _traced(lambda: delete("b")),
        }


def _traced(operation: Callable[[], object]) -> tuple[int, int]:
    functions: set[tuple[str, str]] = set()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(PACKAGE)):
            functions.add((code.co_filename, code.co_qualname))

    sys.setprofile(note)
    try:
        operation()
    finally:
        sys.setprofile(None)
    return len(functions), len({file for file, _ in functions})


if __name__ == "__main__":
    main()
