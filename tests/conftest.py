"""The one Spark session of the tests, made by pytest-spark from the options below."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pytest_spark.config import SparkConfigBuilder

from sparkmeta.session import local_config, prepare_environment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

ROOT = Path(__file__).parent.parent
JARS = ROOT / "build" / "jars"
# Files that take minutes begin first, so that no process is left alone with them at the end.
LONG = {"test_notebooks.py", "test_jobs.py", "test_plan_java.py", "test_inspect_java.py"}
# Where tests ask many queries of few rows: the slice interprets them; the rest, and the soak, compile as users do.
INTERPRETED, COMPILED = {"commit", "conformance", "inspect", "maintain", "plan"}, {"test_deletes.py", "test_leaves.py"}
ICEBERG = "org.apache.iceberg.spark"
PLANNING = "spark.sparkmeta.planning"

_WITHOUT_COMPILER = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}

_scratch = pytest.StashKey[Path]()


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "How data files meet their deletes in plans, where a test does not choose: the setting `planning`."
    parser.addoption("--planning", choices=["auto", "join", "colocated"], help=text)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_scratch] = scratch = Path(tempfile.mkdtemp(prefix="sparkmeta-tests-"))
    prepare_environment()
    os.environ.setdefault("SPARK_LOCAL_DIRS", str(scratch / "local"))
    if os.environ.get("SPARKMETA_SOAK") != "1":
        # Much of Spark runs a few times only: compiling it well takes longer than it saves.
        os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    options = spark_options(scratch) | (iceberg_options(jar, scratch) if (jar := iceberg_jar()) else {})
    if config.option.spark_connect_url:
        del options["spark.master"]
        # The client's local server takes a free port, not the fixed one that another may have.
        os.environ.setdefault("SPARK_TESTING", "1")
    SparkConfigBuilder.initialize(
        [f"{key}: {value}" for key, value in options.items()], spark_connect_url=config.option.spark_connect_url
    )


def pytest_unconfigure(config: pytest.Config) -> None:
    if (scratch := config.stash.get(_scratch, None)) is not None:
        shutil.rmtree(scratch, ignore_errors=True)


def iceberg_jar() -> Path | None:
    """The Iceberg runtime: of SPARKMETA_JARS (a jar or a folder), else of `make jars`."""
    places = [Path(os.environ["SPARKMETA_JARS"])] if "SPARKMETA_JARS" in os.environ else [JARS]
    jars = [
        jar for place in places for jar in (place.glob("iceberg-spark-runtime-*.jar") if place.is_dir() else [place])
    ]
    return next((jar for jar in jars if jar.is_file()), None)


def spark_options(scratch: Path) -> dict[str, str]:
    return local_config(2, "4g") | {
        "spark.master": "local[2]",
        "spark.app.name": "sparkmeta tests",
        "spark.default.parallelism": "2",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": f"{scratch}/spark-warehouse",
        "spark.ui.showConsoleProgress": "false",
    }


def iceberg_options(jar: Path, scratch: Path) -> dict[str, str]:
    return {
        "spark.jars": str(jar),
        "spark.sql.extensions": f"{ICEBERG}.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.java": f"{ICEBERG}.SparkCatalog",
        "spark.sql.catalog.java.type": "hadoop",
        "spark.sql.catalog.java.warehouse": f"file://{scratch}/java-warehouse",
        # Tests look at a table right after another library has committed to it.
        "spark.sql.catalog.java.cache-enabled": "false",
    }


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONG)
    if iceberg_jar() is not None:
        return
    skip = pytest.mark.skip(reason="no Iceberg runtime: run `make jars`, or name a jar in SPARKMETA_JARS")
    for item in items:
        if item.get_closest_marker("java"):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def spark(spark_session: SparkSession) -> SparkSession:
    return spark_session


@pytest.fixture(scope="session")
def java_warehouse(pytestconfig: pytest.Config) -> str:
    """The folder of the Spark catalog `java`, written by Iceberg's own runtime: <warehouse>/<ns>/<table>."""
    return f"file://{pytestconfig.stash[_scratch]}/java-warehouse"


@pytest.fixture
def interpreted(spark: SparkSession) -> Iterator[SparkSession]:
    """Spark as it is, but for the compilation of queries, which takes most of the time of many that see few rows."""
    before = {name: spark.conf.get(name) for name in _WITHOUT_COMPILER}
    for name, value in _WITHOUT_COMPILER.items():
        spark.conf.set(name, value)
    yield spark
    for name, value in before.items():
        spark.conf.set(name, value)


@pytest.fixture(autouse=True)
def _interpreted_in_the_slice(request: pytest.FixtureRequest, soak: bool) -> None:
    folder = request.path.relative_to(Path(__file__).parent).parts[0]
    asks_spark = not {"spark", "spark_session"}.isdisjoint(request.fixturenames)
    if asks_spark and folder in INTERPRETED and request.path.name not in COMPILED and not soak:
        request.getfixturevalue("interpreted")


@pytest.fixture(autouse=True)
def _planned_as_asked(request: pytest.FixtureRequest) -> Iterator[None]:
    asked = request.config.option.planning
    spark = request.getfixturevalue("spark") if asked and "spark" in request.fixturenames else None
    if spark is not None:
        spark.conf.set(PLANNING, asked)
    yield
    if spark is not None:
        spark.conf.unset(PLANNING)


@pytest.fixture(autouse=True)
def _no_views_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "spark" in request.fixturenames:
        session: SparkSession = request.getfixturevalue("spark")
        for table in session.catalog.listTables():
            if table.isTemporary:
                session.catalog.dropTempView(table.name)


@pytest.fixture(scope="session")
def soak() -> bool:
    """Whether the long form of a test runs (`make soak`); else a seeded slice of it."""
    return os.environ.get("SPARKMETA_SOAK") == "1"
