"""The command `doctor`: check this machine, its session, a catalog and a table, and say how to mend problems."""

from __future__ import annotations

import os
import platform
import re
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from sparkmeta.cli.output import error_line, print_json, progress
from sparkmeta.cli.source import CatalogSource, Source, takes_catalog
from sparkmeta.cli.tables import takes_output
from sparkmeta.errors import SessionError
from sparkmeta.java import MINIMUM_JAVA, java_home, java_version
from sparkmeta.storage.content import without_secrets
from sparkmeta.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession

Status = Literal["ok", "absent", "fails"]

# Packages that make sparkmeta fast, and what works without them.
_FAST: Final = {
    "deflate": "Avro manifests are inflated by isal or zlib",
    "isal": "Avro manifests are packed by zlib",
    "numba": "Avro manifests are decoded by fastavro, twenty times slower",
}
# Extras for work on sparkmeta itself.
_OF_DEVELOPERS: Final = {"dev", "docs", "test"}
# Spark 4.0 and 4.1 run on Java 17 and 21.
_NEWEST_JAVA: Final = 21
_SPARK_OF_NEWEST_JAVA: Final = (4, 1)


@dataclass(frozen=True)
class Diagnosis:
    """What the command found out about a part.

    Attributes:
        part: what was checked.
        status: `absent` says that something optional is not there.
        detail: a version, a place or an error.
        mend: what to do about it.
    """

    part: str
    status: Status
    detail: str
    mend: str = ""

    def __str__(self) -> str:
        line = f"{self.status:<7} {self.part}: {self.detail}"
        return printable(f"{line} -> {self.mend}" if self.mend else line)


@click.command()
@click.argument("table", metavar="[TABLE]", default="")
@click.option("--no-spark", is_flag=True, help="Start no session.")
@takes_output
@takes_catalog
def doctor(source: CatalogSource, table: str, no_spark: bool, as_json: bool) -> None:
    """Check packages, Java, Spark, a catalog and a table, and say what mends what fails.

    With --catalog, lists its namespaces. With TABLE, reads its metadata and its list of manifests. Starts a Spark
    session and runs a job, unless there is --no-spark.

    Exit codes: 0 nothing fails, 1 something fails.
    """
    if no_spark and (source.spark or source.conf or source.remote):
        raise click.UsageError("--no-spark starts no session: it takes no --spark, --conf or --remote")
    findings, secrets = [], _secrets(source)
    for whole in _findings(source, table, with_spark=not no_spark):
        finding = replace(whole, detail=without_secrets(whole.detail, secrets))
        findings.append(finding)
        if not as_json:
            click.echo(str(finding))
    if as_json:
        print_json([asdict(finding) for finding in findings])
    if any(finding.status == "fails" for finding in findings):
        click.get_current_context().exit(1)


def _findings(source: CatalogSource, table: str, *, with_spark: bool) -> Iterator[Diagnosis]:
    yield Diagnosis("Python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    yield from _packages()
    if remote := _remote(source):
        server, _, _ = remote.partition(";")
        yield Diagnosis("Spark Connect", "ok", f"sessions are on {re.sub('//[^/]*@', '//', server)}")
    else:
        yield _java()
        yield from _spark_home()
    if with_spark:
        yield from _session(source)
    if source.catalog is not None:
        yield _tried(f"catalog {source.catalog}", lambda: _namespaces(source))
    elif not table:
        yield _configuration()
    if table:
        yield _tried(f"table {table}", lambda: _manifests(source, table))


def _tried(part: str, look: Callable[[], str]) -> Diagnosis:
    try:
        with progress(f"Looking at the {part}"):
            return Diagnosis(part, "ok", look())
    except Exception as error:  # noqa: BLE001  whatever a catalog or store raises is what the user asks about
        return Diagnosis(part, "fails", error_line(error, ""))


def _remote(source: CatalogSource) -> str:
    return source.remote or os.environ.get("SPARK_REMOTE") or ""


def _secrets(source: CatalogSource) -> dict[str, Any]:
    """Return the properties whose credentials findings must not show: of catalogs, Spark, and its Connect server."""
    from pyiceberg.utils.config import Config

    known: dict[str, Any] = {}
    with suppress(Exception):  # `_configuration` reports it
        known |= Config().config
    server, *parameters = _remote(source).split(";")
    values = (value or name for name, _, value in (parameter.partition("=") for parameter in parameters))
    remote = {"uri": server} | {f"token.{index}": value for index, value in enumerate(values)}
    return {"configuration": known, "properties": source.properties, "conf": source.conf, "remote": remote}


# -- Packages ---------------------------------------------------------------------------------------------------------


def _packages() -> Iterator[Diagnosis]:
    yield Diagnosis("sparkmeta", "ok", metadata.version("sparkmeta"))
    required = dict(_requirements("sparkmeta"))
    yield from (_package(name, limits) for name, limits in required.items())
    markers = (requirement.partition(";")[2] for requirement in metadata.requires("sparkmeta") or ())
    for extra in sorted({*map(_extra, markers)} - {"", *_OF_DEVELOPERS}):
        packages = [_package(*package) for package in _requirements("sparkmeta", extra) if package[0] not in required]
        problems = [package for package in packages if package.status != "ok"]
        shown = ", ".join(f"{package.part} {package.detail}" for package in problems or packages)
        if problems:
            yield Diagnosis(f"extra {extra}", "absent", shown, f"pip install 'sparkmeta[{extra}]'")
        else:
            yield Diagnosis(f"extra {extra}", "ok", shown)


def _requirements(package: str, extra: str = "") -> Iterator[tuple[str, str]]:
    """Yield what an installed package or its extra requires: names, and limits such as `>=4.0,<4.4`."""
    for requirement in metadata.requires(package) or ():
        text, _, marker = requirement.partition(";")
        if _extra(marker) != extra:
            continue
        name, extras, limits = re.fullmatch(r"([\w.-]+)\s*(?:\[(.*)\])?(.*)", text.strip()).groups()  # type: ignore[union-attr]
        yield name, limits.strip()
        if _version(name) is not None:
            for required_extra in (extras or "").split(","):
                yield from _requirements(name, required_extra.strip()) if required_extra else ()


def _extra(marker: str) -> str:
    """Return the extra that a marker of a requirement names; empty for none."""
    named = re.search(r"extra == ['\"]([\w-]+)", marker)
    return named[1] if named else ""


def _package(name: str, limits: str) -> Diagnosis:
    """Return the finding for a package that sparkmeta requires, with limits such as `>=4.0,<4.4`."""
    version = _version(name)
    mend = f"pip install '{name}{limits}'"
    if version is None:
        return Diagnosis(name, "absent" if name in _FAST else "fails", _FAST.get(name, "is not installed"), mend)
    if not all(_within(version, limit) for limit in limits.split(",") if limit):
        return Diagnosis(name, "fails", f"{version} is not {limits}", mend)
    return Diagnosis(name, "ok", version)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _within(version: str, limit: str) -> bool:
    """Return whether a version is within a limit; True for limits that sparkmeta does not use."""
    parts = re.fullmatch(r"\s*(>=|<)\s*(\S+)", limit)
    if parts is None:
        return True
    numbers, bounds = (_numbers(text) for text in (version, parts[2]))
    return numbers >= bounds if parts[1] == ">=" else numbers < bounds


def _numbers(version: str) -> tuple[int, ...]:
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:3])
    return numbers + (0,) * (3 - len(numbers))


# -- Java and Spark ---------------------------------------------------------------------------------------------------


def _java() -> Diagnosis:
    try:
        home = java_home()
    except SessionError as error:
        return Diagnosis("Java", "fails", str(error))
    version = java_version(home)
    if version > _NEWEST_JAVA and _numbers(metadata.version("pyspark"))[:2] <= _SPARK_OF_NEWEST_JAVA:
        mend = f"set JAVA_HOME to Java {MINIMUM_JAVA} or {_NEWEST_JAVA}"
        return Diagnosis("Java", "fails", f"{version} in {home} is too new for this Spark", mend)
    return Diagnosis("Java", "ok", f"{version} in {home}")


def _spark_home() -> Iterator[Diagnosis]:
    home = os.environ.get("SPARK_HOME")
    if not home:
        return
    jars = sorted(Path(home, "jars").glob("spark-core_*.jar"))
    pyspark_version = _version("pyspark")
    if not jars:
        yield Diagnosis("SPARK_HOME", "fails", f"{home} has no Spark", "unset SPARK_HOME, to use PySpark's own")
        return
    version = jars[0].stem.rpartition("-")[2]
    if pyspark_version is not None and _numbers(version)[:2] != _numbers(pyspark_version)[:2]:
        mend = f"pip install 'pyspark=={version}', or unset SPARK_HOME"
        yield Diagnosis("SPARK_HOME", "fails", f"{home} is Spark {version}, and PySpark is {pyspark_version}", mend)
    else:
        yield Diagnosis("SPARK_HOME", "ok", f"{home}, Spark {version}")


def _session(source: CatalogSource) -> Iterator[Diagnosis]:
    try:
        with progress("Starting Spark"):
            spark = source.sessions().get()
            detail = f"{spark.version}, {'Connect' if _is_remote(spark) else spark.conf.get('spark.master', '')}"
    except Exception as error:  # noqa: BLE001  Spark's start fails in many ways
        yield Diagnosis("Spark", "fails", error_line(error, " (--verbose shows its log)"))
        return
    yield Diagnosis("Spark", "ok", detail)
    try:
        with progress("Running a job"):
            versions = {row["package"]: row["version"] for row in _on_executor(spark)}
    except Exception as error:  # noqa: BLE001  the job may fail in many ways
        yield Diagnosis("executors", "fails", error_line(error, ""))
        return
    yield from (_compared(name, version) for name, version in versions.items())


def _is_remote(spark: SparkSession) -> bool:
    return "connect" in type(spark).__module__


def _on_executor(spark: SparkSession) -> list[Any]:
    """Return the versions of packages that a Python task sees."""

    def versions(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        # The function has no name of sparkmeta in it, so that it runs where sparkmeta is not installed.
        from importlib import metadata

        import pyarrow as pa

        for _ in batches:
            pass
        rows: list[dict[str, str | None]] = []
        for name in ("sparkmeta", "pyarrow", "pyiceberg", "fastavro", "pyroaring"):
            try:
                rows.append({"package": name, "version": metadata.version(name)})
            except metadata.PackageNotFoundError:
                rows.append({"package": name, "version": None})
        yield pa.RecordBatch.from_pylist(rows, pa.schema([("package", pa.string()), ("version", pa.string())]))

    return spark.range(1).coalesce(1).mapInArrow(versions, "package string, version string").collect()


def _compared(name: str, version: str | None) -> Diagnosis:
    part, driver_version = f"{name} of executors", _version(name)
    if version is None:
        return Diagnosis(part, "fails", "is not installed", f"install {name} {driver_version} on the executors")
    if name == "sparkmeta" and version != driver_version:
        return Diagnosis(
            part, "fails", f"{version}, and the driver has {driver_version}", "install the same version on both"
        )
    return Diagnosis(part, "ok", version)


# -- Catalogs and tables ----------------------------------------------------------------------------------------------


def _configuration() -> Diagnosis:
    from pyiceberg.utils.config import Config

    try:
        catalogs = sorted((Config().config.get("catalog") or {}).keys())  # type: ignore[union-attr]
    except Exception as error:  # noqa: BLE001  the message may show a credential
        return Diagnosis("catalogs", "fails", f"pyiceberg's configuration is not valid: {type(error).__name__}")
    if not catalogs:
        return Diagnosis("catalogs", "absent", "pyiceberg's configuration names none", "write ~/.pyiceberg.yaml")
    return Diagnosis("catalogs", "ok", f"pyiceberg's configuration names {', '.join(catalogs)}")


def _namespaces(source: CatalogSource) -> str:
    namespaces = source.open_catalog().list_namespaces()
    shown = ", ".join(".".join(name) for name in namespaces[:5])
    return f"{len(namespaces):,} namespaces: {shown}" if namespaces else "it has no namespaces"


def _manifests(source: CatalogSource, table: str) -> str:
    known = {name: getattr(source, name) for name in CatalogSource.__dataclass_fields__}
    opened = Source(**known, table=table).open()
    counts = f"{len(opened.snapshots()):,} snapshots, {len(opened.inspect.arrow.manifests()):,} manifests"
    return f"version {opened.format_version}, {counts}; {opened.location()}"
