"""The live files of another table, for a commit that adds them to a manifest list.

Tasks decode the table's manifests and encode their entries as those of new files. Entries do not pass through Spark
rows and are not sorted: a new manifest has the entries of manifests that are neighbours in the other table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.transforms import VoidTransform

from sparkmeta.commit.listed_files import ListedFiles
from sparkmeta.commit.table_deletes import dangling_paths, live_deletes
from sparkmeta.commit.table_match import table_match
from sparkmeta.commit.table_tasks import SIZE, WRITTEN_SCHEMA, AdoptedSpec, TableTasks
from sparkmeta.edit.manifest_format import manifest_format
from sparkmeta.edit.range_sort import spread, task_reader
from sparkmeta.edit.sorted_manifests import file_count
from sparkmeta.edit.tally import KindCount, Tally
from sparkmeta.entries.projection import FILE_COLUMNS, MANIFEST
from sparkmeta.errors import ValidationError, translated_errors
from sparkmeta.manifests.decoder import EntryDecoder
from sparkmeta.manifests.placement import Placement
from sparkmeta.plan.prune import live_files, live_manifests
from sparkmeta.session import map_arrow, map_on_driver
from sparkmeta.spec.entry import METRICS_MAP_IDS, ContentType, FileKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkmeta.edit.list_options import ListOptions
    from sparkmeta.edit.new_snapshot import SnapshotNames
    from sparkmeta.manifests.v4.adopt import TableMatch
    from sparkmeta.state import TableState

# Row ids are assigned by the commit. To read those of the other table, tasks could not share a manifest.
_COLUMNS = (*(name for name in FILE_COLUMNS if name != "first_row_id"), *METRICS_MAP_IDS)


@dataclass(frozen=True)
class ListedTable:
    """Writes the live files of `source` to manifests of `target`, as files that its next snapshot adds."""

    source: TableState
    target: TableState
    names: SnapshotNames
    options: ListOptions

    def data_files(self) -> ListedFiles:
        """Write the data files. Many are written by a job.

        Raises:
            ValidationError: a column or a partition spec of the source means something else in the target, or an entry
                breaks a rule of the format.
            UnsupportedError: tasks can't open the source's files.
            CorruptFileError: a manifest is damaged.
        """
        manifests = live_manifests(self.source.data_manifests)
        written = self._written(manifests, ContentType.DATA_MANIFEST, frozenset())
        self._check_count(manifests, file_count(written), "data files")
        return _listed_files(written, FileKind.DATA)

    def vectors(self) -> ListedFiles:
        """Write the deletion vectors of live data files, of a source without other deletes. Runs jobs if there are any.

        Raises the same errors as `data_files`; also ValidationError if a vector is older than its data file.
        """
        manifests = live_deletes(self.source)
        if not len(manifests):
            return ListedFiles()
        dangling = dangling_paths(self.source, self.target)
        written = self._written(manifests, ContentType.DELETE_MANIFEST, dangling)
        self._check_count(manifests, file_count(written) + len(dangling), "deletes")
        return _listed_files(written, FileKind.DELETION_VECTOR)

    def _check_count(self, manifests: pa.Table, count: int, what: str) -> None:
        counts, table = live_files(manifests), self.source.metadata.location
        if not counts.null_count and (expected := pc.sum(counts).as_py() or 0) != count:
            raise ValidationError(f"{table}: the snapshot counts {expected} live {what}: its manifests have {count}")

    def _written(self, manifests: pa.Table, content: ContentType, dangling: frozenset[str]) -> pa.Table:
        """Write the live files of manifests, rows of `source.manifests`, and return rows of `WRITTEN_SCHEMA`."""
        reader, projection = self.source.reader, self.source.projection(_COLUMNS)
        match = table_match(self.source, self.target, self._spec_ids(manifests))
        on_driver = reader.fits_driver(manifests, projection)
        decoder = reader.decoder(Placement.DRIVER) if on_driver else self._task_decoder()
        specs = self._specs(match, content)
        tasks = TableTasks(decoder, projection, match, specs, self.names.snapshot_id, dangling)
        units = _units(reader.task_parts(manifests, projection), self.options.target_bytes)
        with translated_errors():
            in_root = pa.Table.from_batches(tasks.write(reader.root_batches(manifests, projection)), WRITTEN_SCHEMA)
            if on_driver or not len(units):
                written = map_on_driver(units, tasks.write_units, WRITTEN_SCHEMA)
            else:
                written = map_arrow(spread(self.target.spark, units), tasks.write_units, WRITTEN_SCHEMA).toArrow()
        rows = pa.concat_tables([in_root, written.cast(WRITTEN_SCHEMA)])
        self.names.written.update(rows.column("manifest_path").to_pylist())
        return rows

    def _task_decoder(self) -> EntryDecoder:
        files = task_reader(self.source)
        return EntryDecoder(files, self.source.reader.trees, self.source.types.locations, files)

    def _spec_ids(self, manifests: pa.Table) -> set[int]:
        """Return the partition specs of manifests and of the files in the root."""
        spec_ids = set(manifests.column("partition_spec_id").to_pylist())
        if self.source.tree is not None:
            files = self.source.tree.root.of((ContentType.DATA, ContentType.POSITION_DELETES))
            spec_ids.update(files.column("partition_spec_id").to_pylist())
        return spec_ids

    def _specs(self, match: TableMatch, content: ContentType) -> dict[int, AdoptedSpec]:
        """Return the source's partition specs by id."""
        name = self.names.file("m")
        return {
            spec_id: AdoptedSpec(
                manifest_format(self.target, content, target_spec_id, name, self.options.target_bytes),
                tuple(
                    None if isinstance(field.transform, VoidTransform) else field.field_id
                    for field in self.source.specs[spec_id].fields
                ),
            )
            for spec_id, target_spec_id in match.specs.items()
        }


def _listed_files(written: pa.Table, kind: FileKind) -> ListedFiles:
    """Return the files in written manifests, rows of `WRITTEN_SCHEMA`."""
    if not len(written):
        return ListedFiles()
    count = KindCount(
        file_count(written), *(pc.sum(written.column(name)).as_py() or 0 for name in ("added_rows_count", SIZE))
    )
    return ListedFiles(leaves=written.drop_columns([SIZE]), tally=Tally({kind: count}, None))


def _units(parts: pa.Table, target_bytes: int) -> pa.Table:
    """Return neighbouring parts of manifests in lists, each of about the bytes of a new manifest."""
    ordered = parts.sort_by([(MANIFEST, "ascending"), ("part", "ascending")]).combine_chunks()
    sizes = pc.divide(ordered.column("file_size_in_bytes"), ordered.column("parts").cast(pa.int64())).to_pylist()
    starts = pa.array([*_starts(sizes, target_bytes), len(sizes)], pa.int32())
    rows = pa.StructArray.from_arrays([column.combine_chunks() for column in ordered.columns], fields=[*ordered.schema])
    return pa.table({"parts": pa.ListArray.from_arrays(starts, rows)})


def _starts(sizes: list[int], target_bytes: int) -> Iterator[int]:
    """Yield the indices at which packs of neighbours begin, of at most `target_bytes` unless one alone is larger."""
    total = target_bytes
    for place, size in enumerate(sizes):
        if total + size > target_bytes or not place:
            yield place
            total = 0
        total += size
