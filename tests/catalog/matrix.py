"""What works for tables of each catalog on each store: `test_matrix.py` tries it, and docs/catalogs.md shows it.

`python -m tests.catalog.matrix` writes the table of that page.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).parents[2] / "docs" / "catalogs.md"
OPERATIONS = ("open", "plan", "inspect", "rows", "append", "delete", "compact", "expire")
KINDS = ("v2", "tree")

_BEGIN, _END = "<!-- begin: python -m tests.catalog.matrix -->\n", "<!-- end -->\n"


class Place(NamedTuple):
    """A catalog and a store.

    Attributes:
        client: what opens the store.
        refused: what the errors say, by kind of table and operation. All else works.
    """

    catalog: str
    store: str
    client: str
    refused: dict[tuple[str, str], str]


def _refused(kind: str, operations: tuple[str, ...], text: str) -> dict[tuple[str, str], str]:
    return {(kind, operation): text for operation in operations}


_COMMITS = OPERATIONS[4:]
_NO_TREES = _refused("tree", OPERATIONS, r"SQL catalogs, Glue and file system tables can")
_BY_SPARK = r"(can't open its files|read by Spark only|write no single file): open (it|the table) through a catalog"
_NOT_EXCLUSIVE = r"PyArrowFileIO has no conditional writes: use py-io-impl=\S+ and s3fs.*Tables of a SQL catalog"

PLACES = (
    Place("none: its folder", "local", "Python, Spark", {}),
    Place(
        "none: its folder", "S3", "Spark", _refused("v2", _COMMITS, _BY_SPARK) | _refused("tree", _COMMITS, _BY_SPARK)
    ),
    Place("`hadoop`", "local", "Python, Spark", {}),
    Place("`hadoop`", "S3", "s3fs", {}),
    Place(
        "`hadoop`",
        "S3",
        "pyarrow",
        _refused("v2", _COMMITS, _NOT_EXCLUSIVE) | _refused("tree", _COMMITS, _NOT_EXCLUSIVE),
    ),
    Place("SQL", "local", "Python, Spark", {}),
    Place("SQL", "S3", "pyarrow", {}),
    Place("SQL", "S3", "pyarrow, Spark", {}),
    Place("`hadoop`", "Google Cloud Storage", "gcsfs", {}),
    Place("SQL", "Google Cloud Storage", "gcsfs", {}),
    Place("REST", "local", "Python, Spark", _NO_TREES),
    Place("REST", "S3", "pyarrow", _NO_TREES),
    Place("Glue", "S3", "pyarrow", {}),
)
_UNTESTED = (("Hive, DynamoDB, BigQuery", "any", "any"), ("any", "Azure", "any"))


def rendered() -> str:
    """The table of the page."""
    rows = [("catalog", "store", "opened by", *OPERATIONS), ("---",) * (3 + len(OPERATIONS))]
    rows += [(*place[:3], *(_cell(place, operation) for operation in OPERATIONS)) for place in PLACES]
    rows += [(*names, *("untested",) * len(OPERATIONS)) for names in _UNTESTED]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def shown() -> str:
    """The table that the page shows."""
    return PAGE.read_text().partition(_BEGIN)[2].partition(_END)[0]


def _cell(place: Place, operation: str) -> str:
    return ", ".join(kind for kind in KINDS if (kind, operation) not in place.refused) or "no"


if __name__ == "__main__":
    PAGE.write_text(PAGE.read_text().replace(f"{_BEGIN}{shown()}{_END}", f"{_BEGIN}{rendered()}{_END}"))
