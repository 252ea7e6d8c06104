"""Iceberg's own REST catalog, in a process of its own: `make rest` fetches and compiles it."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from sparkmeta.java import java_home

if TYPE_CHECKING:
    from collections.abc import Iterator

BUILD = Path(__file__).parents[2] / "build" / "rest"
# Few requests: starting quickly counts for more than running fast.
_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=off")


@contextmanager
def rest_server(warehouse: str, file_io: str = "org.apache.iceberg.hadoop.HadoopFileIO") -> Iterator[str]:
    """The URI of a new REST catalog without namespaces; skips the test where it is not compiled.

    Args:
        warehouse: the folder of its tables.
        file_io: the class with which the catalog reads and writes metadata files. Its jars belong in build/rest.
    """
    if not (BUILD / "RestServer.class").is_file():
        pytest.skip("no REST catalog: run `make rest`")
    # PySpark's jars have Hadoop's classes.
    jars = [BUILD, BUILD / "*", *(Path(pyspark.__file__).parent / "jars").glob("hadoop-client-*.jar")]
    command = [Path(java_home()) / "bin" / "java", *_JVM, "-cp", ":".join(map(str, jars)), "RestServer"]
    with subprocess.Popen(
        [*map(str, command), warehouse, file_io], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        assert port, "the REST catalog has not started"
        yield f"http://127.0.0.1:{port}"
        # The end of its standard input ends the process.
