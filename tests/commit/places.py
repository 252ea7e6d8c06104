"""The pointers of test tables: in a folder, on S3, in SQL or in a REST catalog.

A URI names each, so that it can be passed to processes.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog

from sparkmeta.operations.filesystem import FileSystemOperations
from sparkmeta.operations.rest import RestOperations
from sparkmeta.operations.sql import SqlOperations
from sparkmeta.storage.files import IOFiles, LocalFiles
from tests.s3 import BUCKET, FILE_IOS, S3Server

if TYPE_CHECKING:
    from sparkmeta.operations.table_operations import TableOperations
    from sparkmeta.storage.files import Files

KINDS = ["folder", "sqlite", "postgres"]


def place(kind: str, folder: Path, postgres: str | None = None) -> str:
    """Return the URI of a kind of pointer, for tables below a folder."""
    return {"folder": "", "sqlite": f"sqlite:///{folder}/catalog.db", "postgres": postgres or ""}[kind]


def open_operations(uri: str, folder: Path | str, files: Files | None = None) -> TableOperations:
    """Return the operations of the table in a folder, by the pointer that a URI names.

    The URI may be empty for a file system table, or name a database of SQLite or PostgreSQL, or an S3 server with the
    table's files in a folder of that name. `rest+` precedes the URI of a REST catalog. The URI of an S3 server for the
    tables' files may follow it, after `|`.
    """
    if uri.startswith("rest+"):
        catalog_uri, _, store = uri.removeprefix("rest+").partition("|")
        properties = S3Server(store).properties | {"py-io-impl": FILE_IOS["fsspec"]} if store else {}
        return RestOperations(RestCatalog("tests", uri=catalog_uri, **properties), (Path(folder).name, "table"))
    if uri.startswith("http:"):
        return FileSystemOperations(IOFiles(S3Server(uri).io("fsspec")), f"s3://{BUCKET}{folder}/table")
    location = f"file://{folder}/table"
    if not uri:
        return FileSystemOperations(files or LocalFiles(), location)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        catalog = SqlCatalog("tests", uri=uri, warehouse=f"file://{folder}")
    namespace = str(folder).replace(".", "_")
    catalog.create_namespace_if_not_exists((namespace,))
    return SqlOperations(catalog, (namespace, "table"), files or LocalFiles())
