"""Implement `sparkmeta cache`, which lists and prunes manifest caches."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime
from typing import Any

import click

from sparkmeta.cli.output import TextColumn, print_json, print_table, timestamp
from sparkmeta.cli.source import KeyValue
from sparkmeta.cli.tables import takes_output
from sparkmeta.errors import SparkmetaError
from sparkmeta.inspect.units import byte_size
from sparkmeta.manifests.cache.folder import ManifestCache
from sparkmeta.manifests.cache.upkeep import DAY_MS, CachedFolder, cache_contents, delete_cached
from sparkmeta.storage.files import Files, IOFiles, LocalFiles
from sparkmeta.storage.location import is_local

_COLUMNS = (
    TextColumn("manifests", kind="path"),
    TextColumn("leaves", kind="count"),
    TextColumn("size", "size_in_bytes", "bytes"),
    TextColumn("first", "first_written_at"),
    TextColumn("last", "last_written_at"),
)


@click.group()
def cache() -> None:
    """List or prune a manifest cache, the folder of spark.sparkmeta.manifest-cache."""


_takes_folder = click.argument("folder", metavar="FOLDER")
_takes_properties = click.option(
    "--property", "properties", type=KeyValue(), multiple=True, help="A property of pyiceberg's FileIO. Repeatable."
)


@cache.command()
@takes_output
@_takes_properties
@_takes_folder
def info(folder: str, properties: tuple[tuple[str, str], ...], as_json: bool) -> None:
    """Show the number and size of cached manifests, by the folder of the manifests."""
    rows = [_row(cached) for cached in cache_contents(_manifest_cache(folder, properties)).folders]
    if as_json:
        print_json(rows)
    else:
        print_table([{column.name: row[column.source] for column in _COLUMNS} for row in rows], _COLUMNS)


def _number_of_days(_: click.Context, __: click.Parameter, days: float) -> float:
    if not math.isfinite(days * DAY_MS):
        raise click.BadParameter(f"{days} is not a number of days.")
    return days


@cache.command()
@click.option("--older-than", type=click.FloatRange(min=0), default=30.0, show_default=True, metavar="DAYS",
              callback=_number_of_days, help="Age of the files to delete; 0 empties the cache.")  # fmt: skip
@click.option("--commit", is_flag=True, help="Delete the files. Without this, only their number is printed.")
@_takes_properties
@_takes_folder
def prune(folder: str, properties: tuple[tuple[str, str], ...], older_than: float, commit: bool) -> None:
    """Delete old, damaged and duplicate files. No plan may read the cache meanwhile."""
    manifest_cache, now = _manifest_cache(folder, properties), int(time.time() * 1000)
    files = cache_contents(manifest_cache).superfluous(now - int(older_than * DAY_MS), now)
    failures = delete_cached(manifest_cache, files) if commit else []
    total = byte_size(sum(status.length for status in files))
    if failures:
        raise SparkmetaError(f"{failures[0].location}: {failures[0].reason} ({len(failures):,} files are still there)")
    click.echo(f"{len(files):,} files, {total}: {'deleted' if commit else 'would be deleted (--commit)'}")


def _manifest_cache(folder: str, properties: tuple[tuple[str, str], ...]) -> ManifestCache:
    return ManifestCache(folder, _files(folder, dict(properties)), None)


def _files(folder: str, properties: dict[str, str]) -> Files:
    if is_local(folder):
        return LocalFiles()
    from pyiceberg.io import load_file_io

    return IOFiles(load_file_io(properties, folder))


def _row(folder: CachedFolder) -> dict[str, Any]:
    first, last = map(_time, folder.written_ms or (None, None))
    return {
        "manifests": folder.manifests,
        "leaves": len(folder.leaves),
        "size_in_bytes": folder.size_in_bytes,
        "first_written_at": first,
        "last_written_at": last,
    }


def _time(millis: int | None) -> str | None:
    return None if millis is None else timestamp(datetime.fromtimestamp(millis / 1000, UTC))
