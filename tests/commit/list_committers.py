"""Processes without Spark that append to a manifest list, through a REST catalog.

The table's manifests are written beforehand, one for each step of each worker, so that a commit writes only the
manifest list.
"""

from __future__ import annotations

import os
import random
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntry, ManifestEntryStatus, write_manifest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField

from sparkmeta import Table
from sparkmeta.avro.manifest_list import MANIFEST_FILE_SCHEMA
from sparkmeta.commit.attempts import commit_steps
from sparkmeta.commit.lists import NewList
from sparkmeta.commit.new_snapshot import SnapshotNames
from sparkmeta.errors import CatalogError, CommitFailedError, CommitStateUnknownError, FileAccessError
from sparkmeta.operations.rest import RestOperations, create_rest_table, load_rest_table
from sparkmeta.session import SessionSource
from sparkmeta.snapshot.state import TableState
from sparkmeta.spec.metadata_model import Summary
from sparkmeta.spec.new_table import new_metadata
from sparkmeta.storage.files import IOFiles
from tests.commit.tree_committers import QUICK

if TYPE_CHECKING:
    from pathlib import Path

    from sparkmeta.operations.table_operations import TableOperations
    from sparkmeta.spec.metadata import TableMetadata

SCHEMA = Schema(NestedField(1, "id", LongType()))


def data_file(location: str, worker: int, step: int) -> str:
    """Return the path of the file that a step appends."""
    return f"{location}/data/{worker}-{step}.parquet"


def _manifest(location: str, worker: int, step: int) -> str:
    return f"{location}/metadata/{worker}-{step}.avro"


def create(swap: RestOperations, location: str, workers: int, commits: int) -> None:
    """Create the table and the manifests of all steps."""
    metadata = new_metadata(location, SCHEMA, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, QUICK, 2)
    swap.catalog.create_namespace(swap.identifier[:-1])
    io = create_rest_table(swap.catalog, swap.identifier, metadata, location).io
    for worker in range(workers):
        for step in range(1, commits + 1):
            added = DataFile.from_args(
                content=DataFileContent.DATA,
                file_path=data_file(location, worker, step),
                file_format=FileFormat.PARQUET,
                partition=Record(),
                record_count=1,
                file_size_in_bytes=10,
            )
            output = io.new_output(_manifest(location, worker, step))
            with write_manifest(2, UNPARTITIONED_PARTITION_SPEC, SCHEMA, output, 1, "null") as writer:
                writer.add_entry(ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, data_file=added))


def opened(swap: TableOperations) -> Table:
    """Return the current version of the table."""
    assert isinstance(swap, RestOperations)
    loaded = load_rest_table(swap.catalog, swap.identifier)
    metadata = loaded.version.metadata
    state = TableState(SessionSource(), IOFiles(loaded.io), metadata, metadata.current_snapshot())
    return Table(state, loaded.version.metadata_location, swap.identifier, swap)


@dataclass(frozen=True)
class AppendManifest:
    """The commit of a worker's step."""

    worker: int
    step: int
    names: SnapshotNames = field(default_factory=SnapshotNames)

    def apply(self, state: TableState) -> TableMetadata:
        self.names.next_attempt(state.metadata)
        location = _manifest(state.metadata.location, self.worker, self.step)
        counts = {"added_files_count": 1, "added_rows_count": 1}
        none = ("existing_files_count", "deleted_files_count", "existing_rows_count", "deleted_rows_count", "content")
        row = {"manifest_path": location, "manifest_length": state.files.length(location), "partition_spec_id": 0}
        added = pa.Table.from_pylist([row | counts | dict.fromkeys(none, 0)], schema=MANIFEST_FILE_SCHEMA)
        author = f"{self.worker}/{self.step}"
        summary = partial(Summary.model_validate, {"operation": "append", "author": author})
        metadata = NewList(state, "main", self.names).write(pa.concat_tables([added, state.manifest_files]), summary())
        properties = {f"worker.{self.worker}": str(self.step), "author": author}
        return metadata.model_copy(update={"properties": {**metadata.properties, **properties}})


def work(swap: TableOperations, folder: Path, worker: int, commits: int) -> None:
    """Make a worker's commits, from the step that the table records, and note the outcome of each."""
    name = f"worker.{worker}"
    with (folder / name).open("a") as notes:
        chance = random.Random(os.getpid())
        while True:
            outcome, step = "nothing", 0
            try:
                table = opened(swap)
                step = int(table.properties.get(name, "0")) + 1
                if step > commits:
                    return
                commit_steps(table, [AppendManifest(worker, step)])
                outcome = "done"
            except (CommitFailedError, CommitStateUnknownError) as error:
                outcome = "failed" if isinstance(error, CommitFailedError) else "unknown"
            except (CatalogError, FileAccessError):
                # The table could not be loaded, or its manifest list not written.
                outcome = "nothing"
            notes.write(f"{outcome} {step}\n")
            notes.flush()
            if outcome != "done":
                time.sleep(chance.uniform(0, 0.02))
