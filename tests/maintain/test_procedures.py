"""The documentation names every procedure of Iceberg's runtime, and every argument."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.peers.java import Java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "procedures.md"


@pytest.mark.java
def test_all_arguments_are_in_the_docs(spark: SparkSession) -> None:
    java = Java(spark)
    procedures = java.iceberg.spark.procedures.SparkProcedures
    catalog = java.session.sessionState().catalogManager().catalog("java")
    arguments = {}
    for name in [*procedures.names()]:
        procedure = procedures.newBuilder(name).withTableCatalog(catalog).build()
        arguments[name] = {each.name() for each in procedure.parameters()} - {"table"}
    _, _, section = PAGE.read_text().partition("## All arguments")
    rows = [line.split("|")[1:-1] for line in section.splitlines() if line.startswith("| `")]
    documented = {cells[0].strip(" `"): set(re.findall(r"`(\w+)`", " ".join(cells[1:]))) for cells in rows}
    missing = {name: names - documented.get(name, set()) for name, names in arguments.items()}
    assert {name: names for name, names in missing.items() if names or name not in documented} == {}
