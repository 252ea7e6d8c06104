from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sparkmeta.errors import SettingError
from sparkmeta.settings import Settings, from_conf, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_defaults(spark: SparkSession) -> None:
    assert settings(spark) == Settings()


def test_the_session_decides(spark: SparkSession) -> None:
    spark.conf.set("spark.sparkmeta.executor-reads", "SPARK")
    try:
        assert settings(spark).executor_reads == "spark"
    finally:
        spark.conf.unset("spark.sparkmeta.executor-reads")


@pytest.mark.parametrize(
    ("text", "size"), [("7", 7), ("7b", 7), ("2k", 2048), ("2 m", None), ("1GB", 1 << 30), ("-1", None)]
)
def test_sizes(text: str, size: int | None) -> None:
    if size is None:
        with pytest.raises(SettingError, match=r"spark\.sparkmeta\.split-manifest-bytes is '.*': it takes"):
            from_conf({"split-manifest-bytes": text})
    else:
        assert from_conf({"split-manifest-bytes": text}).split_manifest_bytes == size


def test_choices() -> None:
    with pytest.raises(SettingError, match=r"'never': it takes one of auto, direct, spark"):
        from_conf({"executor-reads": "never"})


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(SettingError, match=r"spark\.sparkmeta\.split-manifests is no setting"):
        from_conf({"split-manifests": "1"})
