"""Check a snapshot that has a manifest list: the list on the driver, manifests in tasks, live files by queries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.changes.checked_tree import union
from sparkmeta.changes.list_tasks import CHECKED_COLUMNS, ManifestChecks, above_upper, shown_value
from sparkmeta.changes.violations import VIOLATIONS, Broken, violation
from sparkmeta.columns.bounds import inverted, known_bounds
from sparkmeta.entries.parts import whole_manifests
from sparkmeta.entries.projection import PARTITION
from sparkmeta.errors import CorruptFileError
from sparkmeta.plan.filter import is_live
from sparkmeta.session import local_frame, map_arrow, map_by_tasks
from sparkmeta.spec.entry import ContentType
from sparkmeta.spec.stats import BOUNDS
from sparkmeta.storage.reading import with_content

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from sparkmeta.state import TableState

_OFFSET = "_offset"
_POSITION, _DATA = int(ContentType.POSITION_DELETES), int(ContentType.DATA)


def check_list(state: TableState) -> DataFrame:
    """Return the violations in a snapshot with a manifest list; see `Table.check`."""
    try:
        manifests = state.manifests
    except CorruptFileError as error:
        broken = Broken(error.location, error.field, error.value, error.problem)
        of_list = pa.Table.from_pylist([violation("manifest-list", broken)], schema=VIOLATIONS)
        return local_frame(state.spark, of_list)
    violations = [violation(rule, broken) for rule, find in LIST_RULES for broken in find(state)]
    frames = [local_frame(state.spark, pa.Table.from_pylist(violations, schema=VIOLATIONS))]
    if len(manifests):
        projection = state.projection(CHECKED_COLUMNS)
        types, version = state.types, state.metadata.format_version
        checks = ManifestChecks(state.access.tasks, projection, types.column_types, types.locations, version)
        frames.append(_by_tasks(state, checks.violations, VIOLATIONS))
        live = _by_tasks(state, checks.files, projection.schema).where(is_live().text)
        frames += [*_files_listed_twice(live), *_contradictory_vectors(state, live)]
    return union(frames)


def _by_tasks(state: TableState, function: Callable[..., Iterator[pa.RecordBatch]], schema: pa.Schema) -> DataFrame:
    units = whole_manifests(state.manifests)
    for name in ("content_type", "manifest_stats"):
        units = units.append_column(name, state.manifests.column(name))
    if state.access.tasks is None:
        return map_arrow(with_content(state.spark, units), function, schema)
    return map_by_tasks(state.spark, units, function, schema)


# -- rules of the list, on the driver --------------------------------------------------------------------------------


def _manifests_listed_twice(state: TableState) -> Iterator[Broken]:
    for path, count in sorted(Counter(state.manifests.column("location").to_pylist()).items()):
        if count > 1:
            yield Broken(path, "manifest_path", path, f"the manifest list has {count} entries for this manifest")


def _newer_manifests(state: TableState) -> Iterator[Broken]:
    assert state.snapshot is not None
    newest = state.snapshot.sequence_number or 0
    numbers = pc.struct_field(state.manifests.column("version_info"), "sequence_number")
    for place in pc.indices_nonzero(pc.greater(numbers, newest)).to_pylist():
        problem = f"the snapshot has the sequence number {newest}"
        yield Broken(
            state.manifests.column("location")[place].as_py(), "sequence_number", numbers[place].as_py(), problem
        )


def inverted_summaries(state: TableState) -> Iterator[Broken]:
    """Find partition summaries whose lower bound is above the upper one."""
    return _summaries(state, order=True)


def _summaries(state: TableState, *, order: bool) -> Iterator[Broken]:
    """Find summaries whose bounds are the wrong way round (`order`), or not values of the field's type."""
    listed = state.manifest_files
    partitions, paths = listed.column("partitions").combine_chunks(), listed.column("manifest_path")
    specs, offsets = listed.column("partition_spec_id").to_pylist(), partitions.offsets.to_pylist()
    present = partitions.is_valid().to_pylist()
    for spec_id, fields in state.types.spec_fields.items():
        rows = [row for row, of_spec in enumerate(specs) if of_spec == spec_id and present[row]]
        for position, (field_id, type_name) in enumerate(fields):
            chosen = partitions.values.take(pa.array([offsets[row] + position for row in rows], pa.int64()))
            raw = {name: chosen.field(name) for name in BOUNDS}
            known = {name: known_bounds(bound, type_name) for name, bound in raw.items()}
            lower, upper = (known[name] for name in BOUNDS)
            if order:
                wrong = inverted(lower, upper, type_name)
                for place in [] if wrong is None else pc.indices_nonzero(pc.fill_null(wrong, False)).to_pylist():
                    field = f"partitions.{field_id}.lower_bound"
                    path = paths[rows[place]].as_py()
                    yield Broken(path, field, shown_value(lower, place), above_upper(upper, place))
                continue
            for name, bound in known.items() if not pa.types.is_null(lower.type) else ():
                for place in pc.indices_nonzero(pc.and_(raw[name].is_valid(), bound.is_null())).to_pylist():
                    problem = f"not a value of type {type_name}, and so unknown"
                    path, field = paths[rows[place]].as_py(), f"partitions.{field_id}.{name}"
                    yield Broken(path, field, raw[name][place].as_py(), problem)


LIST_RULES: tuple[tuple[str, Callable[[TableState], Iterator[Broken]]], ...] = (
    ("one-entry-per-file", _manifests_listed_twice),
    ("sequence-numbers", _newer_manifests),
    ("bounds-order", inverted_summaries),
    ("bounds-value", partial(_summaries, order=False)),
)


# -- rules of live files, each a query -------------------------------------------------------------------------------


def _files_listed_twice(live: DataFrame) -> Iterator[DataFrame]:
    offset = F.coalesce("deletion_vector.offset", F.lit(-1).cast("long")).alias(_OFFSET)
    twice = live.groupBy("location", offset).count().where("count > 1")
    yield _broken("one-entry-per-file", twice, "location", F.col("count"), "the file has several live entries")


def _contradictory_vectors(state: TableState, live: DataFrame) -> Iterator[DataFrame]:
    """Find deletion vectors that are two of one data file, older than it, or of another partition."""
    key = ["partition_spec_id", *([PARTITION] if state.types.partition_fields else [])]
    place = F.struct(F.col("version_info.sequence_number").alias("sequence"), F.to_json(F.struct(*key)).alias("key"))
    dvs = live.where((F.col("content_type") == _POSITION) & (F.col("file_format") == "PUFFIN"))
    several = dvs.groupBy("referenced_file").count().where("count > 1")
    problem = "the data file has several live deletion vectors"
    yield _broken("one-vector-per-file", several, "referenced_file", F.col("count"), problem)
    data = live.where(F.col("content_type") == _DATA).select(F.col("location").alias("file"), place.alias("of_data"))
    joined = dvs.select(F.col("referenced_file").alias("file"), "location", place.alias("of_dv")).join(data, "file")
    older = joined.where("of_dv.sequence < of_data.sequence")
    yield _broken("vector-target", older, "location", F.col("file"), "the deletion vector is older than its data file")
    foreign = joined.where("of_dv.key != of_data.key")
    problem = "the deletion vector has another partition spec or partition than its data file"
    yield _broken("vector-target", foreign, "location", F.col("file"), problem)


def _broken(rule: str, rows: DataFrame, location: str, value: Column, problem: str) -> DataFrame:
    values = (F.lit(rule), F.col(location), value.cast("string"), F.lit(problem))
    return rows.select(*(each.alias(name) for each, name in zip(values, VIOLATIONS.names, strict=True)))
