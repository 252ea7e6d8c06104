"""Read the settings: of a session, ``spark.conf.set("spark.sparkmeta.<name with dashes>", value)``, or of the
environment, ``SPARKMETA_<NAME>=value``.
"""

from __future__ import annotations

import os
import re
from dataclasses import Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakSet

from sparkmeta.errors import SettingError, shown
from sparkmeta.text import fact_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

PREFIX = "spark.sparkmeta."
ICEBERG_CATALOG = "spark.sql.catalog."
_CATALOG_CLASSES = {f"org.apache.iceberg.spark.{name}" for name in ("SparkCatalog", "SparkSessionCatalog")}

_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30
_UNITS = {"b": 1, "k": _KIB, "kb": _KIB, "m": _MIB, "mb": _MIB, "g": _GIB, "gb": _GIB}


# PySpark 4.1 duplicates rows if it splits the batches of mapInArrow by this setting.
_REPEATS_ROWS = "spark.sql.execution.arrow.maxRecordsPerOutputBatch"
# If it is not true, results of `groupBy` lack the grouping columns.
_KEEPS_KEYS = "spark.sql.retainGroupColumns"


def _knob(default: Any, doc: str, *, choices: tuple[str, ...] = (), pattern: re.Pattern[str] | None = None) -> Any:
    return field(default=default, metadata={"doc": doc, "choices": choices, "pattern": pattern})


@dataclass(frozen=True)
class Settings:
    """The settings of a session. Sizes are in bytes; their configuration may have a unit, such as ``64m``."""

    executor_reads: Literal["auto", "direct", "spark"] = _knob(
        "auto",
        "Who opens manifests on executors: direct = Python, with the catalog's FileIO, spark = Spark's file sources "
        "(with Spark's credentials; works on Spark Connect), auto = direct if every executor can open the location, "
        "but Parquet manifests by Spark if it can open them.",
        choices=("auto", "direct", "spark"),
    )
    split_manifest_bytes: int = _knob(
        32 * _MIB, "Several tasks decode a manifest that is larger than this. 0: one task decodes each."
    )
    driver_manifest_bytes: int = _knob(
        64 * _MIB,
        "The driver decodes manifests of up to this size in total when a plan is made, if they have few entries and "
        "Python decodes them, because that is faster than a Spark job. 0: tasks decode all manifests.",
    )
    planning: Literal["auto", "join", "colocated"] = _knob(
        "auto",
        "How deletion vectors find their data files: join = Spark joins them, colocated = one task reads a data "
        "manifest together with the delete manifests that are affiliated to it (trees) or have deletes of the same "
        "partitions (Avro), auto = colocated unless join is estimated to be faster.",
        choices=("auto", "join", "colocated"),
    )
    file_handover: Literal["auto", "log", "paths"] = _knob(
        "auto",
        "How Spark gets the data files of a scan: log = as the log of a streaming sink, so that it lists no file, "
        "paths = as a list of paths, auto = log if a check of the session shows that Spark supports it. Spark "
        "Connect does not.",
        choices=("auto", "log", "paths"),
    )
    data_file_footers: Literal["auto", "always"] = _knob(
        "auto",
        "Which footers are read before the rows: auto = of files whose columns can't be resolved by name, always = of "
        "all files, which checks field ids, types, required columns and row counts, and opens each file twice.",
        choices=("auto", "always"),
    )
    manifest_cache: str = _knob(
        "", "A folder, on any file system, for decoded Avro manifests that later plans read. Empty: no cache."
    )
    metrics_reporter: str = _knob(
        "",
        "Who gets a report on each plan and commit, besides a REST catalog: log, opentelemetry, or a callable as "
        "module:name; several with commas.",
        pattern=re.compile(r"((log|opentelemetry|[\w.]+:[\w.]+)(\s*,\s*|$))*"),
    )

    def _repr_html_(self) -> str:
        """List the settings in a notebook by the names of their configuration."""
        return fact_table("Settings", {PREFIX + _dashed(each): getattr(self, each.name) for each in fields(self)})


def settings(spark: SparkSession | None) -> Settings:
    """Return the settings of a session: its ``spark.sparkmeta.*`` configuration, and defaults for the rest.

    Serverless sessions accept no such configuration, so all settings have their defaults. Without a session,
    variables of the environment apply, such as ``SPARKMETA_DRIVER_MANIFEST_BYTES``. Other variables with this prefix
    are ignored.

    Raises:
        SettingError: a value is invalid; a setting of Spark makes it duplicate rows or leave out columns; or, on the
            first call for a session, its configuration contains an unknown name ``spark.sparkmeta.*``.
    """
    if spark is None:
        return from_conf({key.removeprefix(PREFIX): text for key, text in environment_conf().items()})
    if (limit := setting(spark, _REPEATS_ROWS) or "-1").isdecimal() and int(limit) > 0:
        raise SettingError(f"{_REPEATS_ROWS} is {limit}: Spark repeats rows of Python functions under it; unset it")
    if (setting(spark, _KEEPS_KEYS) or "true").lower() == "false":
        raise SettingError(f"{_KEEPS_KEYS} is false: Spark leaves columns out of grouped rows under it; unset it")
    names = [*map(_dashed, fields(Settings))]
    values = {name: setting(spark, PREFIX + name) for name in names}
    known = {name: value for name, value in values.items() if value is not None}
    if spark not in _with_known_names:
        conf = spark.conf.getAll.items()
        known |= {key.removeprefix(PREFIX): value for key, value in conf if key.startswith(PREFIX)}
    parsed = from_conf(known)
    _with_known_names.add(spark)
    return parsed


def environment_conf() -> dict[str, str]:
    """Return the settings in the environment as the configuration of a session.

    Raises:
        SettingError: a value is invalid.
    """
    values = {knob: os.environ[_variable(knob)] for knob in fields(Settings) if _variable(knob) in os.environ}
    for knob, text in values.items():
        _parse(_variable(knob), knob, text)
    return {PREFIX + _dashed(knob): text for knob, text in values.items()}


def _dashed(knob: Field[Any]) -> str:
    return knob.name.replace("_", "-")


def _variable(knob: Field[Any]) -> str:
    return f"SPARKMETA_{knob.name.upper()}"


def setting(spark: SparkSession | None, name: str) -> str | None:
    """Return the value of a setting; None if it has none, no session runs, or the session does not show it.

    Serverless sessions show few settings.
    """
    if spark is None:
        return None
    from pyspark.errors import PySparkException

    try:
        return spark.conf.get(name, None)
    except PySparkException as error:
        if is_unavailable(error):
            return None
        raise


def iceberg_catalogs(spark: SparkSession | None) -> dict[str, dict[str, str]]:
    """Return the Iceberg catalogs of Spark's own configuration: name -> properties.

    There are none without a session, or if it does not show its configuration.
    """
    if spark is None:
        return {}
    from pyspark.errors import PySparkException

    try:
        catalogs = {
            key.removeprefix(ICEBERG_CATALOG): value
            for key, value in spark.conf.getAll.items()
            if key.startswith(ICEBERG_CATALOG)
        }
    except PySparkException as error:
        if is_unavailable(error):
            return {}
        raise
    names = sorted(name for name, kind in catalogs.items() if kind in _CATALOG_CLASSES)
    return {
        name: {key.removeprefix(f"{name}."): value for key, value in catalogs.items() if key.startswith(f"{name}.")}
        for name in names
    }


def is_unavailable(error: PySparkException) -> bool:
    """Return whether an error says that a session lacks an operation or a setting, as serverless ones do."""
    from pyspark.errors import PySparkNotImplementedError, UnsupportedOperationException

    if isinstance(error, PySparkNotImplementedError | UnsupportedOperationException):
        return True
    return re.search("NOT_(?:SUPPORTED|AVAILABLE)", error.getCondition() or "") is not None


# Sessions without settings of unknown names. The check is not repeated because listing a session's whole configuration
# takes tens of milliseconds.
_with_known_names: WeakSet[SparkSession] = WeakSet()


def from_conf(values: Mapping[str, str]) -> Settings:
    """Return the settings for configuration values by their names with dashes."""
    knobs = {_dashed(knob): knob for knob in fields(Settings)}
    if unknown := sorted(values.keys() - knobs.keys()):
        raise SettingError(f"{PREFIX}{unknown[0]} is not a setting; the settings are {', '.join(knobs)}")
    return Settings(**{knobs[name].name: _parse(PREFIX + name, knobs[name], value) for name, value in values.items()})


def _parse(name: str, knob: Field[Any], text: str) -> Any:
    choices = knob.metadata["choices"]
    if choices and text.lower() not in choices:
        raise SettingError(f"{name} is {shown(text)}: expected one of {', '.join(choices)}")
    if choices:
        return text.lower()
    if (pattern := knob.metadata["pattern"]) is not None and not pattern.fullmatch(text.strip()):
        raise SettingError(f"{name} is {shown(text)}: expected log, opentelemetry or module:name, several with commas")
    return text.strip() if isinstance(knob.default, str) else _number(name, text)


def _number(name: str, text: str) -> int:
    digits = text.strip().lower()
    unit = digits.lstrip("0123456789")
    number = digits.removesuffix(unit) if unit else digits
    if not number.isdecimal() or (unit and unit not in _UNITS):
        raise SettingError(f"{name} is {shown(text)}: expected a whole number, sizes also with k, m or g")
    return int(number) * _UNITS.get(unit, 1)
