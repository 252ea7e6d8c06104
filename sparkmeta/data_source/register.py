"""Register the data source and the table functions with a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.functions import udtf

from sparkmeta.catalog.configuration import spark_catalog
from sparkmeta.data_source.functions import table_functions
from sparkmeta.data_source.source import DataSource
from sparkmeta.errors import InvalidArgumentError, UnsupportedError
from sparkmeta.session import in_use
from sparkmeta.settings import iceberg_catalogs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sparkmeta.data_source.options import Catalogs


def register(spark: SparkSession) -> None:
    """Register the format `sparkmeta` and the functions `sparkmeta_*` with a session, classic or Connect.

    Names such as `prod.db.events` then also find the Iceberg catalogs of the session's configuration.

    Raises:
        SessionError: the session was stopped.
    """
    catalogs = _catalogs(in_use(spark))
    # The class is sent to Python workers with these values.
    source = type("DataSource", (DataSource,), {"_catalogs": catalogs})
    spark.dataSource.register(source)
    for name, function in table_functions(catalogs).items():
        spark.udtf.register(name, udtf(function))  # type: ignore[arg-type]


def _catalogs(spark: SparkSession) -> Catalogs:
    catalogs: Catalogs = {}
    for name in iceberg_catalogs(spark):
        try:
            catalogs[name] = spark_catalog(name, spark) or {}
        except (UnsupportedError, InvalidArgumentError) as error:
            catalogs[name] = str(error)
    return catalogs
