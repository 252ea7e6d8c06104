"""Iceberg's own REST catalog, in a process of its own: `make rest` fetches and compiles it."""

from __future__ import annotations

import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

import pyspark
import pytest

from sparkmeta.java import java_home

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

BUILD = Path(__file__).parents[2] / "build" / "rest"
S3A = BUILD.parent / "s3a"
# Few requests: starting quickly counts for more than running fast.
_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=off")


@contextmanager
def rest_server(warehouse: str, hadoop: Mapping[str, str] | None = None) -> Iterator[str]:
    """The URI of a new REST catalog without namespaces; skips the test where it is not compiled.

    Args:
        warehouse: the folder of its tables.
        hadoop: the configuration with which the catalog opens a store, by Hadoop's client of S3 (`make s3a`).
    """
    if not (BUILD / "RestServer.class").is_file():
        pytest.skip("no REST catalog: run `make rest`")
    spark_jars = Path(pyspark.__file__).parent / "jars"
    with tempfile.TemporaryDirectory() as conf:
        # PySpark's jars have Hadoop's classes, and those that its client of S3 needs.
        jars = [BUILD, BUILD / "*", *spark_jars.glob("hadoop-client-*.jar")]
        if hadoop is not None:
            (Path(conf) / "core-site.xml").write_text(_configuration(hadoop))
            # Before the tests' jar of Iceberg, which has a class of the client's too.
            jars = [Path(conf), S3A / "*", *jars, spark_jars / "*"]
        command = [Path(java_home()) / "bin" / "java", *_JVM, "-cp", ":".join(map(str, jars)), "RestServer", warehouse]
        with subprocess.Popen(
            [*map(str, command), "org.apache.iceberg.hadoop.HadoopFileIO"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            port = process.stdout.readline().strip()
            assert port, "the REST catalog has not started"
            yield f"http://127.0.0.1:{port}"
            # The end of its standard input ends the process.


def _configuration(values: Mapping[str, str]) -> str:
    properties = (
        f"<property><name>{name}</name><value>{escape(text)}</value></property>" for name, text in values.items()
    )
    return f"<configuration>{''.join(properties)}</configuration>"
