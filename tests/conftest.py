"""The one Spark session of a test process, made by pytest-spark from the options below."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import zlib
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import pyspark
import pytest
from hypothesis import settings
from pytest_spark.config import SparkConfigBuilder

from sparkmeta.session import is_connect, local_config, prepare_environment
from sparkmeta.storage import reading
from tests.connect_server import LOG, connect_server
from tests.dealing import QUICK_SHARE, SHARE, dealt, longest_first, record
from tests.no_jvm import JavaTrap, without_jvm
from tests.peers.store import corpus_folder
from tests.postgres import postgres_server
from tests.rest.proxy import Proxy, rest_proxy
from tests.rest.server import rest_server

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

    from pyspark.sql import SparkSession

    from tests.peers.corpus import Corpus
    from tests.s3 import S3Server

ROOT = Path(__file__).parent.parent
JARS = ROOT / "build" / "jars"
# Files whose tests compile their queries in the slice too.
COMPILED = {"test_predicate.py", "test_deletes.py", "test_leaves.py"}
ICEBERG = "org.apache.iceberg.spark"
PLANNING = "spark.sparkmeta.planning"

INTERPRET = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
_COMPILE = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
# The slice runs many queries of few rows, each a few times: compiling them takes longer than they do. Its Python
# workers begin with their modules loaded.
QUICK = INTERPRET | {"spark.python.daemon.module": "tests.python_daemon"}
# Much of Spark runs a few times only: compiling it well takes longer than it saves. The first compiler alone is given
# 48 MB for what it compiles, which the suite fills, and then compiles again and again.
_QUICK_JVM = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC -Xms1g -Xmn512m -XX:MetaspaceSize=256m "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)

# An example's time says nothing on a busy machine.
settings.register_profile("sparkmeta", settings(), deadline=None)
settings.load_profile("sparkmeta")

# The value of --spark_connect_url that starts a server of the tests' own (tests/connect_server.py).
SEPARATE = "separate"

_scratch = pytest.StashKey[Path]()
_server_options = pytest.StashKey[dict[str, str]]()
_java_trap = pytest.StashKey[JavaTrap]()


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "How data files meet their deletes in plans, where a test does not choose: the setting `planning`."
    parser.addoption("--planning", choices=["auto", "join", "colocated"], help=text)
    text = "Refuse what serverless Spark refuses (tests/serverless.py). Tests that set such settings are skipped."
    parser.addoption("--serverless", action="store_true", help=text)
    text = "Run a share of the long tests, chosen by this hexadecimal number (tests/dealing.py). Without it, run all."
    parser.addoption("--deal", type=lambda number: int(number, 16), metavar="NUMBER", help=text)
    text = "Run only tests that start no JVM (tests/no_jvm.py). A test that tries to start one fails."
    parser.addoption("--no-jvm", action="store_true", help=text)
    text = "Write the seconds of a case of each test to tests/durations.json, for the deals of later runs."
    parser.addoption("--record-durations", action="store_true", help=text)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_scratch] = scratch = Path(tempfile.mkdtemp(prefix="sparkmeta-tests-"))
    if config.option.no_jvm:
        config.stash[_java_trap] = JavaTrap(scratch / "java")
        config.stash[_java_trap].set()
    prepare_environment()
    os.environ.setdefault("SPARK_LOCAL_DIRS", str(scratch / "local"))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    # Tests' server of Google Cloud Storage has no gRPC, by which gcsfs would ask it for the kind of a bucket.
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    options = spark_options(scratch) | (iceberg_options(jar, scratch) if (jar := iceberg_jar()) else {})
    if not _is_soak():
        os.environ.setdefault("SPARK_SUBMIT_OPTS", _QUICK_JVM)
        options |= QUICK
    if config.option.spark_connect_url == SEPARATE:
        config.stash[_server_options] = dict(options)
    if config.option.spark_connect_url:
        del options["spark.master"]
        # The client's local server takes a free port, not the fixed one that another may have.
        os.environ.setdefault("SPARK_TESTING", "1")
        # gRPC's handlers of forks break some children, such as the JVM of tests/peers/classic.py.
        os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
    SparkConfigBuilder.initialize(
        [f"{key}: {value}" for key, value in options.items()], spark_connect_url=config.option.spark_connect_url
    )


def pytest_report_header(config: pytest.Config) -> list[str]:
    """The versions that the tests run with, and which long tests run."""
    deal = config.option.deal
    share = "all tests" if deal is None else f"a share of the long tests: --deal {deal:x} repeats it"
    packages = [f"{name} {version(name)}" for name in ("pyspark", "pyarrow", "pandas", "numpy", "numba", "pyiceberg")]
    return [", ".join([f"python {python_version()}", *packages]), share]


def pytest_unconfigure(config: pytest.Config) -> None:
    if (scratch := config.stash.get(_scratch, None)) is not None:
        shutil.rmtree(scratch, ignore_errors=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if not config.option.record_durations:
        return
    reports = [report for kind in terminalreporter.stats.values() for report in kind]
    tests = [report for report in reports if isinstance(report, pytest.TestReport)]
    record(tests, whole=config.option.deal is None and config.args == ["tests"])


def iceberg_jar() -> Path | None:
    """The Iceberg runtime: of SPARKMETA_JARS (a jar or a folder), else of `make jars`."""
    places = [Path(os.environ["SPARKMETA_JARS"])] if "SPARKMETA_JARS" in os.environ else [JARS]
    jars = [
        jar for place in places for jar in (place.glob("iceberg-spark-runtime-*.jar") if place.is_dir() else [place])
    ]
    return next((jar for jar in jars if jar.is_file()), None)


def s3a_jars() -> Path | None:
    """The folder of Hadoop's client of S3 (`make s3a`), if Spark's Hadoop is of its version; None otherwise."""
    versions = {jar.stem.rpartition("-")[2] for jar in (ROOT / "build" / "s3a").glob("hadoop-aws-*.jar")}
    spark_jars = Path(pyspark.__file__).parent / "jars"
    fits = any((spark_jars / f"hadoop-client-api-{version}.jar").exists() for version in versions)
    return ROOT / "build" / "s3a" if fits else None


def spark_options(scratch: Path) -> dict[str, str]:
    s3a = {"spark.driver.extraClassPath": f"{folder}/*"} if (folder := s3a_jars()) else {}
    return (
        local_config(2, "4g")
        | s3a
        | {
            "spark.master": "local[2]",
            "spark.app.name": "sparkmeta tests",
            "spark.default.parallelism": "2",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.catalogImplementation": "in-memory",
            "spark.sql.warehouse.dir": f"{scratch}/spark-warehouse",
            "spark.ui.showConsoleProgress": "false",
            # No name in a query of the package may be a reserved one.
            "spark.sql.ansi.enforceReservedKeywords": "true",
        }
    )


def iceberg_options(jar: Path, scratch: Path) -> dict[str, str]:
    return {
        # A driver of databases for Iceberg's JDBC catalog.
        "spark.jars": ",".join(map(str, [jar, *JARS.glob("sqlite-jdbc-*.jar")])),
        "spark.sql.extensions": f"{ICEBERG}.extensions.IcebergSparkSessionExtensions",
    } | {
        key: value
        for name, folder in (("java", scratch / "java-warehouse"), ("corpus", corpus_folder(jar)))
        for key, value in iceberg_catalog(f"spark.sql.catalog.{name}", folder).items()
    }


def iceberg_catalog(name: str, folder: Path) -> dict[str, str]:
    return {
        name: f"{ICEBERG}.SparkCatalog",
        f"{name}.type": "hadoop",
        f"{name}.warehouse": f"file://{folder}",
        # Tests look at a table right after another library has committed to it.
        f"{name}.cache-enabled": "false",
    }


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without looking for garbage: nearly all objects, modules and tests, stay."""
    gc.disable()
    result = yield
    gc.freeze()
    gc.enable()
    return result


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = without_jvm(items) if config.option.no_jvm else [*items]
    if config.option.deal is not None:
        chosen = dealt(chosen, config.option.deal, QUICK_SHARE if config.option.no_jvm else SHARE)
    config.hook.pytest_deselected(items=[*{*items}.difference(chosen)])
    items[:] = chosen
    longest_first(items)
    reasons = {}
    if iceberg_jar() is None:
        reasons["java"] = "no Iceberg runtime: run `make jars`, or name a jar in SPARKMETA_JARS"
    if config.option.spark_connect_url:
        reasons["classic"] = "needs a classic session"
    for marker, reason in reasons.items():
        for item in items:
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def _jvm(pytestconfig: pytest.Config) -> None:
    """Skip a case that asks for a JVM while it runs, which its names of fixtures do not tell."""
    if pytestconfig.option.no_jvm:
        pytest.skip("starts a JVM")


@pytest.fixture(scope="session")
def spark(_jvm: None, _separate_server: None, request: pytest.FixtureRequest) -> SparkSession:
    session: SparkSession = request.getfixturevalue("spark_session")
    return session


@pytest.fixture(scope="session")
def _separate_server(pytestconfig: pytest.Config, hidden_folder: Path, server_log: Path) -> Iterator[None]:
    """Start the server of `--spark_connect_url separate` before the session is made."""
    options = pytestconfig.stash.get(_server_options, None)
    if options is None:
        yield
        return
    server_log.parent.mkdir()
    with connect_server(server_log.parent, options, [hidden_folder]) as url, pytest.MonkeyPatch.context() as patch:
        SparkConfigBuilder.spark_connect_url = url
        # Commands and jobs use the server too.
        patch.setenv("SPARK_REMOTE", url)
        yield


@pytest.fixture(scope="session")
def server_log(pytestconfig: pytest.Config) -> Path:
    """The log of the separate Connect server; there is no such file without one."""
    return pytestconfig.stash[_scratch] / "connect-server" / LOG


@pytest.fixture(scope="session")
def hidden_folder(pytestconfig: pytest.Config) -> Path:
    """A folder that a separate Connect server does not see."""
    folder = pytestconfig.stash[_scratch] / "hidden"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def java_warehouse(pytestconfig: pytest.Config) -> str:
    """The folder of the Spark catalog `java`, written by Iceberg's own runtime: <warehouse>/<ns>/<table>."""
    return f"file://{pytestconfig.stash[_scratch]}/java-warehouse"


@pytest.fixture(scope="session")
def rest_uri(_jvm: None, pytestconfig: pytest.Config) -> Iterator[str]:
    """The URI of Iceberg's own REST catalog (tests/rest/server.py), which all tests of a process share."""
    with rest_server(f"file://{pytestconfig.stash[_scratch]}/rest-warehouse") as uri:
        yield uri


@pytest.fixture(scope="module")
def proxy(rest_uri: str) -> Iterator[Proxy]:
    """A proxy before that catalog, which loses answers."""
    with rest_proxy(rest_uri) as started:
        yield started


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """Yield the URI of a PostgreSQL database."""
    with postgres_server() as uri:
        yield uri


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """An S3-compatible server (tests/s3.py)."""
    from tests.s3 import s3_server

    with s3_server() as server:
        yield server


@pytest.fixture(scope="session")
def gcs() -> Iterator[str]:
    """The address of a server with the API of Google Cloud Storage (tests/gcs.py)."""
    from tests.gcs import gcs_server

    with gcs_server() as url:
        yield url


@pytest.fixture(scope="session")
def rest_s3_uri(_jvm: None, s3: S3Server) -> Iterator[str]:
    """The URI of Iceberg's own REST catalog whose tables are on the S3-compatible server."""
    from tests.s3 import BUCKET

    if s3a_jars() is None:
        pytest.skip("no Hadoop client of S3 for this Spark: run `make s3a`")
    hadoop = s3.hadoop | {"fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem"}
    with rest_server(f"s3://{BUCKET}/rest", hadoop) as uri:
        yield uri


@pytest.fixture
def s3a(spark: SparkSession, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let Spark read from the S3-compatible server by the scheme s3a."""
    if s3a_jars() is None or is_connect(spark):
        pytest.skip("no Hadoop client of S3 for this Spark: run `make s3a`")
    for known in ("_opened", "_schemes"):
        monkeypatch.setattr(reading, known, WeakKeyDictionary())
    with configured(spark, s3.hadoop):
        yield


@contextmanager
def configured(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Set configuration of the session for the length of a block."""
    before = {name: spark.conf.get(name, None) for name in values}
    try:
        for name, value in values.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)


@pytest.fixture(scope="session")
def corpus(spark: SparkSession) -> Corpus:
    """The tables of other libraries (tests/peers/corpus.py)."""
    from tests.peers.corpus import Corpus

    return Corpus(spark)


@pytest.fixture
def by_spark(spark: SparkSession) -> Iterator[None]:
    """Have Spark or its tasks read manifests, however few they are. The driver still reads masks."""
    with configured(spark, {"spark.sparkmeta.driver-manifest-bytes": "1"}):
        yield


@pytest.fixture
def either_way(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[None]:
    """Have Spark or its tasks do in half of the tests what the driver does if it is little; see `by_spark`."""
    few = {} if zlib.crc32(request.node.nodeid.encode()) % 2 else {"spark.sparkmeta.driver-manifest-bytes": "1"}
    with configured(spark, few):
        yield


@pytest.fixture
def interpreted(spark: SparkSession) -> Iterator[SparkSession]:
    """The session without the compilation of queries, in the soak too: for tests of many queries of few rows."""
    with configured(spark, INTERPRET):
        yield spark


@pytest.fixture(autouse=True)
def _starts_no_jvm(pytestconfig: pytest.Config) -> Iterator[None]:
    """Fail if the test or a fixture of it tries to start a JVM, with `--no-jvm`."""
    yield
    trap = pytestconfig.stash.get(_java_trap, None)
    if trap is not None and (starts := trap.starts()):
        pytest.fail(f"starts a JVM, so it is to have the marker `jvm`: {starts}")


@pytest.fixture(autouse=True)
def _session_as_asked(request: pytest.FixtureRequest, soak: bool) -> Iterator[None]:
    """Compile queries where the slice is to, and plan as `--planning` says."""
    values = {}
    if "spark" in request.fixturenames:
        if not soak and request.path.name in COMPILED:
            values |= _COMPILE
        if planning := request.config.option.planning:
            values[PLANNING] = planning
    if not values:
        yield
        return
    with configured(request.getfixturevalue("spark"), values):
        yield


@pytest.fixture(autouse=True)
def _serverless(request: pytest.FixtureRequest, _session_as_asked: None, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.config.option.serverless and "spark" in request.fixturenames:
        from tests.serverless import refuse

        refuse(request.getfixturevalue("spark"), monkeypatch, skip=True)


@pytest.fixture(scope="session")
def soak() -> bool:
    """Whether the long form of a test runs (`make soak`); else a seeded slice of it."""
    return _is_soak()


def _is_soak() -> bool:
    return os.environ.get("SPARKMETA_SOAK") == "1"
