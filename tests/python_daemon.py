"""PySpark's daemon with the modules of sparkmeta's tasks loaded: the Python workers of tests are forks of it.

A worker of the ordinary daemon spends a second on imports. After every task it then collects garbage, for which it
traverses all that is loaded, and before every task it reads the directory of pyspark.zip once for each package in it.
"""

from __future__ import annotations

import gc
import importlib
import pkgutil
import sys

ARCHIVE = "pyspark.zip"
# What no task imports, and may need packages that are not installed.
SKIPPED = ("__main__", "daft_source")


def load() -> None:
    """Load what tasks import, PySpark from its folder, and exempt it from garbage collection."""
    for package in ("numba", "pandas", "pyarrow.parquet", "pyspark.worker"):
        importlib.import_module(package)
    import sparkmeta

    for module in pkgutil.walk_packages(sparkmeta.__path__, "sparkmeta."):
        if not module.name.endswith(SKIPPED):
            importlib.import_module(module.name)
    gc.freeze()


if __name__ == "__main__":
    sys.path[:] = [entry for entry in sys.path if not entry.endswith(ARCHIVE)]
    for entry in [*sys.path_importer_cache]:
        if ARCHIVE in entry:
            del sys.path_importer_cache[entry]
    load()

    from pyspark.daemon import manager

    manager()
