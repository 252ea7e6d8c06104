"""The corpus: named tables that other libraries wrote, each built when any process first asks for it.

A conformance test takes its names by tag and its tables from the corpus:

    @pytest.mark.java
    @pytest.mark.parametrize("name", peers.names("deletes"))
    def test_plan(corpus, name):
        table = corpus.table(name)
        table.metadata_location     # a metadata.json
        table.java                  # Java's view of it: plan(filter, at), tasks(), metadata_table(kind, at), ...
        table.schema                # pyiceberg's Schema of the current state

Tags: v1 to v4; java or pyiceberg (who wrote it); what it is about: types, metrics, formats, variant, defaults,
partitions, single (one partition field), evolved, schema, deletes, positions, equality, upgraded, history, refs,
staged, rewrites, manifests, codecs, expired, empty, sorted, metadata, statistics, imported, duplicates, names,
locations, splits, encrypted, old (forms that current writers don't use), no_counts, no_nan, unknown_transform,
name_clash, retyped; made_up (its files do not exist); not_spark (of types that Java's Spark integration lacks).
`table.refused` are the metadata tables on which Java itself fails. Later runs find the tables where they are: a test
commits to a clone of one (tests/maintain/clones.py), never to the table.
"""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.peers.file_maker import local_path
from tests.peers.java import Java, JavaTable
from tests.peers.store import make_once
from tests.peers.workshop import NAMESPACE, Workshop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyiceberg.schema import Schema
    from pyspark.sql import SparkSession

BUILDERS = ("types", "partitions", "evolution", "deletes", "equality", "history", "names", "odd", "pyiceberg")
ALL_VERSIONS = (1, 2, 3, 4)
CATALOG = "corpus"
OF_FILES = frozenset({"entries", "files", "data_files", "delete_files"})
OF_ALL_FILES = frozenset({"all_entries", "all_files", "all_data_files", "all_delete_files"})
# Metadata tables that Iceberg 1.12.0 can't show in Spark, by tag.
REFUSED: dict[str, frozenset[str]] = {
    "not_spark": OF_FILES | OF_ALL_FILES | {"partitions", "position_deletes"},
    "made_up": frozenset({"position_deletes"}),
    "no_counts": OF_FILES | OF_ALL_FILES | {"manifests", "all_manifests"},
    "no_nan": frozenset({"all_manifests"}),
    "retyped": OF_ALL_FILES | {"all_manifests"},
}


@dataclass(frozen=True)
class Recipe:
    """How a table is made. `build` returns the metadata.json's location where it is not the catalog's current one."""

    name: str
    doc: str
    version: int
    tags: frozenset[str]
    build: Callable[[Workshop], str | None]


RECIPES: dict[str, Recipe] = {}


def recipe(
    *tags: str, versions: Iterable[int] = (2,)
) -> Callable[[Callable[..., str | None]], Callable[..., str | None]]:
    """Registers a builder `build(workshop, version)` for each version, as <function>_v<version>.

    Tags are the recipe's own and "v<version>"; every table not tagged otherwise is "java" (its writer).
    """

    def register(build: Callable[..., str | None]) -> Callable[..., str | None]:
        for version in versions:
            add(f"{build.__name__}_v{version}", build, version, tags)
        return build

    return register


def add(name: str, build: Callable[..., str | None], version: int, tags: Iterable[str], doc: str = "") -> None:
    """Registers one table; the builder is called with the workshop and the format version."""
    writer = {"pyiceberg"} if "pyiceberg" in tags else {"java"}
    text = doc or " ".join((build.__doc__ or "").split())
    RECIPES[name] = Recipe(
        name, text, version, frozenset({*tags, f"v{version}", *writer}), lambda workshop: build(workshop, version)
    )


@dataclass
class PeerTable:
    """A finished table of the corpus, at one metadata.json."""

    recipe: Recipe
    metadata_location: str
    java: JavaTable

    @property
    def name(self) -> str:
        return self.recipe.name

    @property
    def location(self) -> str:
        return str(self.metadata["location"])

    @property
    def refused(self) -> frozenset[str]:
        """The metadata tables of this table on which Java fails."""
        return frozenset().union(*(REFUSED.get(tag, frozenset()) for tag in self.recipe.tags))

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """The JSON of the table's metadata."""
        return read_metadata(self.metadata_location)

    @cached_property
    def schema(self) -> Schema:
        return self.schema_of(None)

    def schema_of(self, schema_id: int | None) -> Schema:
        """One of the table's schemas, by default the current one, without the columns that pyiceberg can't model."""
        from pyiceberg.schema import Schema

        chosen_id = self.metadata.get("current-schema-id", 0) if schema_id is None else schema_id
        schemas = self.metadata.get("schemas") or [self.metadata["schema"] | {"schema-id": 0}]
        schema = next(each for each in schemas if each.get("schema-id", 0) == chosen_id)
        return Schema.model_validate(schema | {"fields": modelled(schema["fields"])})

    def __str__(self) -> str:
        return self.name


def modelled(fields: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The fields, nested ones too, without those whose type pyiceberg can't model."""
    supported = [each for each in fields if not str(each["type"]).startswith(("variant", "geo"))]
    return [
        each | {"type": each["type"] | {"fields": modelled(each["type"]["fields"])}}
        if isinstance(each["type"], dict) and each["type"]["type"] == "struct"
        else each
        for each in supported
    ]


def read_metadata(location: str) -> dict[str, Any]:
    import gzip

    data = Path(local_path(location)).read_bytes()
    loaded: dict[str, Any] = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    return loaded


@dataclass
class Corpus:
    """The tables of the Spark catalog `corpus`, as one session sees them."""

    spark: SparkSession
    tables: dict[str, PeerTable] = field(default_factory=dict)

    @cached_property
    def java(self) -> Java:
        return Java(self.spark)

    @cached_property
    def folder(self) -> Path:
        return Path(local_path(self.spark.conf.get(f"spark.sql.catalog.{CATALOG}.warehouse")))

    def table(self, name: str) -> PeerTable:
        _load()
        if name not in self.tables:
            self.tables[name] = self._open(RECIPES[name])
        return self.tables[name]

    def _open(self, recipe: Recipe) -> PeerTable:
        name = recipe.name
        apart = self.folder / "apart" / name
        workshop = Workshop(self.java, name, f"file://{apart}", CATALOG)
        parts = [self.folder / NAMESPACE / name, apart]
        location = make_once(self.folder, name, parts, lambda: recipe.build(workshop) or workshop.metadata_location)
        return PeerTable(recipe, location, self.java.table(location, name))


def names(*tags: str, without: Iterable[str] = ()) -> list[str]:
    """The names of the tables with all of these tags and none of the tags in `without`, in the order of making."""
    _load()
    return [
        recipe.name for recipe in RECIPES.values() if set(tags) <= recipe.tags and not recipe.tags & frozenset(without)
    ]


def _load() -> None:
    for module in BUILDERS:
        importlib.import_module(f"tests.peers.tables_{module}")
