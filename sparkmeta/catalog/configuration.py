"""The configuration of catalogs by pyiceberg's properties, also translated from Spark's configuration."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NoReturn

from sparkmeta.errors import InvalidArgumentError, UnsupportedError, shown, with_command_line_message
from sparkmeta.session import running_session
from sparkmeta.settings import ICEBERG_CATALOG, iceberg_catalogs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession


def is_configured(properties: Mapping[str, Any]) -> bool:
    """Return whether properties say which kind of catalog they describe."""
    return any(properties.get(key) for key in ("type", "uri", "py-catalog-impl"))


# -- Catalogs of Spark's configuration --------------------------------------------------------------------------------


_TYPES: Final = {"hadoop": "hadoop", "hive": "hive", "rest": "rest", "glue": "glue", "jdbc": "sql"}
_CLASSES: Final = {
    "org.apache.iceberg.hadoop.HadoopCatalog": "hadoop",
    "org.apache.iceberg.hive.HiveCatalog": "hive",
    "org.apache.iceberg.rest.RESTCatalog": "rest",
    "org.apache.iceberg.aws.glue.GlueCatalog": "glue",
    "org.apache.iceberg.jdbc.JdbcCatalog": "jdbc",
}
# The type of Spark's catalog if neither its type nor its class is set.
_DEFAULT_TYPE: Final = "hive"
# FileIOs that choose an implementation by a location's scheme, or that the scheme implies, as in pyiceberg.
_FILE_IOS: Final = {
    f"org.apache.iceberg.{name}"
    for name in ("aws.s3.S3FileIO", "hadoop.HadoopFileIO", "io.ResolvingFileIO", "gcp.gcs.GCSFileIO",
                 "azure.adlsv2.ADLSFileIO")
}  # fmt: skip
# Properties that control authentication, files or commits, and that pyiceberg lacks.
_UNMAPPED: Final = re.compile(
    r"client\.(?:factory|credentials-provider.*|assume-role\..+)|hadoop\..+|lock-impl|rest\.client\..+|"
    r"s3\.(?:client-factory-impl|access-grants\..+)"
)
_JDBC: Final = re.compile(r"jdbc:(?:(?P<server>postgresql)://(?P<address>.+)|sqlite:(?:file:)?(?P<file>/.+))")
_AUTH_TYPES: Final = {"none": {}, "oauth2": {}, "sigv4": {"rest.sigv4-enabled": "true"}}


def spark_catalog(name: str, spark: SparkSession | None = None) -> dict[str, str] | None:
    """Return pyiceberg's properties for the Iceberg catalog of this name in a session's configuration.

    Args:
        name: the catalog.
        spark: the session. Defaults to the running one.

    Returns:
        None if no session runs, or Spark has no Iceberg catalog of the name.

    Raises:
        UnsupportedError: a type, class or property of the catalog has no counterpart in pyiceberg. The message names
            it.
        InvalidArgumentError: a property is missing.
    """
    properties = iceberg_catalogs(spark or running_session()).get(name)
    return None if properties is None else _translated(name, properties)


def _translated(name: str, properties: Mapping[str, str]) -> dict[str, str]:
    translated = dict(properties)
    kind = _kind(name, translated)
    for key in sorted(translated):
        if _UNMAPPED.fullmatch(key):
            _refuse(name, key, translated[key] if key.endswith(("-impl", "factory")) else None)
    if (file_io := translated.pop("io-impl", None)) is not None and file_io not in _FILE_IOS:
        _refuse(name, "io-impl", file_io)
    if (auth := translated.pop("rest.auth.type", None)) is not None:
        if auth.lower() not in _AUTH_TYPES:
            _refuse(name, "rest.auth.type", auth)
        translated |= _AUTH_TYPES[auth.lower()]
    path_style = translated.pop("s3.path-style-access", "false").lower() == "true"
    if "s3.endpoint" in translated and not path_style:
        # By default, Java puts the bucket into the host, but pyiceberg puts it into the path if there is another
        # endpoint.
        translated.setdefault("s3.force-virtual-addressing", "true")
    if kind == "jdbc":
        translated["uri"] = _database(name, translated)
        if (schema := translated.pop("jdbc.schema-version", None)) is not None:
            translated["schema_version"] = schema.lower()
    return translated | {"type": _TYPES[kind]}


def _kind(name: str, properties: dict[str, str]) -> str:
    """Remove the type and class of a catalog from its properties, and return its kind, a key of `_TYPES`."""
    declared, implementation = properties.pop("type", ""), properties.pop("catalog-impl", "")
    if implementation and implementation not in _CLASSES:
        _refuse(name, "catalog-impl", implementation)
    kind = _CLASSES[implementation] if implementation else declared.lower() or _DEFAULT_TYPE
    if kind not in _TYPES:
        _refuse(name, "type", declared)
    if kind != "glue" and not properties.get(needed := "warehouse" if kind == "hadoop" else "uri"):
        raise InvalidArgumentError(f"catalog {name}: {ICEBERG_CATALOG}{name}.{needed} is not set")
    return kind


def _database(name: str, properties: dict[str, str]) -> str:
    """Return SQLAlchemy's URL of a database, and move the user and password from the properties into it."""
    from sqlalchemy import make_url

    match = _JDBC.fullmatch(properties["uri"])
    if match is None:
        _refuse(name, "uri", properties["uri"].partition("://")[0].partition("?")[0])
    if match["file"]:
        return f"sqlite:///{match['file']}"
    url = make_url(f"postgresql+psycopg2://{match['address']}")
    user, password = properties.pop("jdbc.user", None), properties.pop("jdbc.password", None)
    if user is not None:
        url = url.set(username=user, password=password)
    return url.render_as_string(hide_password=False)


def _refuse(name: str, key: str, value: str | None) -> NoReturn:
    setting = f"{ICEBERG_CATALOG}{name}.{key} is " + ("set" if value is None else shown(value))
    problem = f"catalog {name}: {setting}, which has no counterpart in pyiceberg"
    remedy = "load the catalog with pyiceberg's properties, as in"
    raise with_command_line_message(
        UnsupportedError(f"{problem}: {remedy} load_catalog({name!r}, type=..., uri=...)"),
        f"{problem}: {remedy} --catalog {name} --property type=... --property uri=...",
    )
