"""Choose how a scan is read and its deletes are matched, from kinds, counts and sizes. No other module chooses."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sparkmeta.entries.live import is_live, is_live_entry, live_count
from sparkmeta.entries.projection import DV_COLUMNS, EntryProjection
from sparkmeta.errors import ValidationError
from sparkmeta.expr.arrays import whole
from sparkmeta.expr.evaluate import where
from sparkmeta.manifests.placement import MOST_WIDE_ENTRIES, ManifestLoad, Placement
from sparkmeta.plan import costs
from sparkmeta.plan.deletes.rules import NOT_A_DV, entry_view
from sparkmeta.plan.filter import DELETES, ScanFilter, data_projection, tuple_filter
from sparkmeta.plan.pairs import Pairs, pairs_by_affinity, pairs_by_partition
from sparkmeta.reports import ScanResult
from sparkmeta.spec.entry import DELETE_FILE_PATH_ID
from sparkmeta.spec.summary import summary_number

if TYPE_CHECKING:
    from sparkmeta.entries.relation import Relation
    from sparkmeta.plan.prune import PrunedManifests
    from sparkmeta.snapshot.state import TableState


# -- The kinds of a scan's deletes ------------------------------------------------------------------------------------


_DELETE_COLUMNS = (*DV_COLUMNS, "equality_ids")


def only_dvs(state: TableState, manifests: pa.Table, *, by_job: bool) -> bool:
    """Return whether all live deletes are deletion vectors that name their data file.

    A tree that was not upgraded contains no position delete files, so the result is True without reading entries, even
    if there are equality deletes. Otherwise, the entries are read: few manifests on the driver, many by a job.

    Args:
        state: the table.
        manifests: its delete manifests.
        by_job: whether a job may read manifests that are too many for the driver. If not, the result for them is False.
    """
    if state.tree is not None and not state.tree.is_upgraded:
        return True
    if state.metadata.format_version < 3:
        return False
    projection = EntryProjection.of(("content_type", "file_format", "version_info", "referenced_file"))
    if (entries := state.reader.driver_table(manifests, projection)) is not None:
        return all_dvs(entries)
    if not by_job:
        return False
    others = is_live_entry() & NOT_A_DV.broken({}, entry_view())
    return state.entries(manifests, projection).where(others.text).count() == 0


def dv_projection(scan_filter: ScanFilter) -> EntryProjection:
    """Return the projection of deletion vectors, filtered by their partition tuples."""
    columns = (*DV_COLUMNS, *scan_filter.state.key_columns)
    return replace(scan_filter.state.projection(columns), entry_filter=tuple_filter(scan_filter))


def delete_projection(scan_filter: ScanFilter, equality_ids: Iterable[int] = ()) -> EntryProjection:
    """Return the projection of deletes that are joined.

    Args:
        scan_filter: the scan's filter.
        equality_ids: the ids of the columns that equality deletes compare.
    """
    stats = {DELETE_FILE_PATH_ID, *equality_ids, *scan_filter.undecided_ids}
    needed = tuple_filter(scan_filter) if scan_filter.reads_all_rows else scan_filter.entry_filter
    columns = (*_DELETE_COLUMNS, *scan_filter.state.key_columns)
    return replace(scan_filter.state.projection(columns, stats), entry_filter=needed)


def all_dvs(entries: pa.Table) -> bool:
    """Return whether all live delete entries are deletion vectors that name their data file."""
    return not len(where(entries, is_live_entry() & NOT_A_DV.broken({}, entry_view())))


def equality_ids(scan_filter: ScanFilter, manifests: pa.Table) -> frozenset[int]:
    """Return the ids of the columns that equality deletes compare.

    If the driver does not read the manifests, this runs a job, unless the summary counts no equality deletes.

    Raises:
        ValidationError: an id belongs to no column of any of the table's schemas.
    """
    state = scan_filter.state
    projection = state.projection(("version_info", "equality_ids"))
    if (decoded := state.reader.driver_table(manifests, projection, costs.COSTS.driver_deletes)) is not None:
        ids = pc.list_flatten(decoded.column("equality_ids").filter(is_live(decoded))).unique().to_pylist()
    elif summary_number(state.snapshot, "total-equality-deletes") == 0:
        return frozenset()
    else:
        entries = state.live_entries(manifests, projection)
        ids = entries.select(F.explode("equality_ids").alias("id")).distinct().toArrow().column("id").to_pylist()
    for unknown in sorted(set(ids).difference(state.types.fields)):
        raise ValidationError(f"{state.metadata.location}: equality_ids has {unknown}: no schema has such a field")
    return frozenset(ids)


# -- The choice -------------------------------------------------------------------------------------------------------
# `costs` contains the limits for matching, `manifests.placement` the limits for where manifests are read.


Matching = Literal["join", "colocated"]


class Verdict(NamedTuple):
    """How deletes are matched (by a join, or by tasks that read them with their data files) and why."""

    matching: Matching
    reason: str


@dataclass(frozen=True)
class Figures:
    """The figures that the choice is based on. None means unknown or not looked up.

    Attributes:
        planning: the value of the setting `planning`.
        executors_read: whether executors can open files themselves.
        format_version: the table's format version.
        is_tree: whether delete manifests name the data manifest that they belong to.
        formats: the file formats of the manifests.
        data_manifests: the number of data manifests that the scan opens.
        delete_manifests: the number of delete manifests that the scan opens.
        deletes: the number of live entries in the delete manifests.
        only_dvs: whether all deletes are deletion vectors.
        driver_dvs: the number of deletes that the driver has read, if the manifests are few.
        pairs: the number of pairs of a data and a delete manifest to read together.
        paired_entries: the number of live data entries in these pairs.
        paired_deletes: the number of live deletes in these pairs.
        decoded: the number of deletes decoded by a single task that reads all pairs.
        held: the maximum number of deletes that this task holds at once.
    """

    planning: str
    executors_read: bool
    format_version: int
    is_tree: bool
    formats: frozenset[str]
    data_manifests: int
    delete_manifests: int
    deletes: int | None
    only_dvs: bool | None = None
    driver_dvs: int | None = None
    pairs: int | None = None
    paired_entries: int | None = None
    paired_deletes: int | None = None
    decoded: int = 0
    held: int = 0


@dataclass(frozen=True)
class Reading:
    """Where manifests are read, and the figures that this is based on.

    Attributes:
        placement: where they are read. None: lazily, Parquet by Spark and other formats by tasks.
        manifests: the manifests.
        most_entries: the maximum entries that the driver may decode; None for the default.
    """

    placement: Placement | None
    manifests: pa.Table = field(repr=False)
    most_entries: int | None = None

    @property
    def load(self) -> ManifestLoad:
        """The work of decoding them."""
        return ManifestLoad.of(self.manifests, self.most_entries)

    @property
    def reason(self) -> str:
        """Why they are read there, in words."""
        where = "by format" if self.placement is None else self.placement.value
        entries = "an unknown number of" if self.load.entries is None else f"{self.load.entries:,}"
        verdict = "few enough" if self.placement is Placement.DRIVER else "not for the driver"
        return f"{where}: {entries} entries in {self.load.size_in_bytes:,} bytes are {verdict}"


@dataclass(frozen=True)
class Coplanned:
    """Manifests whose deletes are matched by the tasks, or the driver, that read them with their data files.

    Attributes:
        data: the data manifests.
        deletes: their delete manifests.
        partners: small id of a data manifest -> small ids of its delete manifests.
        dvs: the deletes, if the driver has read them.
        reading: where they are read.
    """

    data: pa.Table
    deletes: pa.Table
    reading: Reading
    partners: Mapping[int, Sequence[int]] = field(default_factory=dict)
    dvs: pa.Table | None = None


@dataclass(frozen=True)
class Choice:
    """How the manifests of a scan are read and their deletes matched.

    Attributes:
        pruned: the manifests.
        figures: what the choice is based on.
        verdict: how deletes are matched.
        data: the data manifests that are read on their own.
        data_reading: where these are read.
        deletes: the delete manifests whose entries are joined.
        delete_reading: where these are read.
        driver_groups: whether the driver reads and groups the deletes because they are few.
        broadcast: whether the deletes are few enough to be broadcast.
        coplanned: the manifests that are read together.
        seconds: how long choosing took.
        reporter: called for each plan, with a function that returns the sums that the driver knows, and the seconds
            that planning took; None for no reports.
    """

    pruned: PrunedManifests
    figures: Figures
    verdict: Verdict
    data: pa.Table
    data_reading: Reading
    deletes: pa.Table
    delete_reading: Reading
    driver_groups: bool
    broadcast: bool
    coplanned: Coplanned | None = None
    seconds: float = 0.0
    reporter: Callable[[Callable[[], ScanResult | None], float], None] | None = field(
        default=None, repr=False, compare=False
    )

    @property
    def strategy(self) -> str:
        """How deletes are matched, and why, in words."""
        return f"{self.verdict.matching}: {self.verdict.reason}"

    def report(self, started: float, result: Callable[[], ScanResult | None]) -> None:
        """Report on a plan of this choice.

        Args:
            started: when the rest of the plan was begun, by `time.perf_counter`.
            result: returns what the driver knows of the planned files; see `result_of`.
        """
        if self.reporter is not None:
            self.reporter(result, self.pruned.seconds + self.seconds + time.perf_counter() - started)


def result_of(rows: Relation) -> ScanResult | None:
    """Sum the planned files and their `deletes` if the rows are an Arrow table; return None for a DataFrame."""
    if not isinstance(rows, pa.Table):
        return None
    deletes = pa.Table.from_struct_array(whole(rows.column(DELETES)).flatten())
    sizes = pc.coalesce(deletes.column("content_size_in_bytes"), deletes.column("file_size_in_bytes"))
    data_sizes = rows.column("file_size_in_bytes")
    data_bytes, delete_bytes = (pc.sum(column, min_count=0).as_py() for column in (data_sizes, sizes))
    return ScanResult(len(rows), data_bytes, len(deletes), delete_bytes)


class Readings(NamedTuple):
    """Where the data and delete manifests of a scan are read on their own."""

    data: Reading
    deletes: Reading

    @property
    def by_driver(self) -> bool:
        """Whether the driver reads all of them."""
        return all(reading.placement is Placement.DRIVER for reading in self)


def readings(pruned: PrunedManifests) -> Readings:
    """Return where the manifests of a scan are read on their own."""
    data = _reading(pruned, pruned.data, data_projection(pruned.filter))
    return Readings(data, _reading(pruned, pruned.deletes, delete_projection(pruned.filter)))


def choose(pruned: PrunedManifests, known_readings: Readings | None = None) -> Choice:
    """Choose where the manifests of a scan are read and how deletes are matched.

    This opens delete manifests only if the choice depends on their kind, as it does for format version 3. The driver
    opens few manifests itself; one job opens more.

    Args:
        pruned: the manifests.
        known_readings: the result of `readings`, if it is known.
    """
    started = time.perf_counter()
    separate = readings(pruned) if known_readings is None else known_readings
    figures, pairs, dvs = _counts(pruned), None, None
    while (verdict := matching(figures)) is None:
        if not figures.is_tree and figures.only_dvs is None:
            figures, dvs = _with_kinds(figures, pruned)
        else:
            pairs = _pairs(pruned)
            figures = _with_pairs(figures, pairs)
    data, deletes, coplanned = pruned.data, pruned.deletes, None
    if verdict.matching == "join":
        deletes = pairs.other_deletes if pairs is not None and not pairs.count else deletes
    elif dvs is not None:
        coplanned = Coplanned(data, deletes, _together(pruned, data, deletes, driver=True), dvs=dvs)
        data, deletes = data.slice(0, 0), deletes.slice(0, 0)
    else:
        assert pairs is not None
        reading = _together(pruned, pairs.data, pairs.deletes, driver=False)
        coplanned = Coplanned(pairs.data, pairs.deletes, reading, pairs.partners)
        data, deletes = pairs.other_data, pairs.other_deletes
    count = live_count(deletes)
    broadcast = count is not None and count <= costs.COSTS.broadcast_deletes
    driver_groups = _driver_groups(pruned, deletes)
    delete_reading = separate.deletes
    if deletes is not pruned.deletes:
        delete_reading = _reading(pruned, deletes, delete_projection(pruned.filter))
    return Choice(
        pruned=pruned,
        figures=figures,
        verdict=verdict,
        data=data,
        data_reading=_data_reading(pruned, data, count, separate.data),
        deletes=deletes,
        delete_reading=replace(delete_reading, placement=Placement.DRIVER) if driver_groups else delete_reading,
        driver_groups=driver_groups,
        broadcast=broadcast,
        coplanned=coplanned,
        seconds=time.perf_counter() - started,
    )


def matching(figures: Figures) -> Verdict | None:
    """Return how deletes are matched; None if this depends on figures that have not been determined."""
    if not figures.data_manifests or not figures.delete_manifests:
        return Verdict("join", "the scan opens no delete manifest")
    if figures.planning == "join":
        return Verdict("join", "the setting planning says so")
    if not figures.executors_read:
        return Verdict("join", "executors can't open files themselves")
    return _by_affinity(figures) if figures.is_tree else _by_partition(figures)


def _by_affinity(figures: Figures) -> Verdict | None:
    if figures.pairs is None:
        return None
    if not figures.pairs:
        return Verdict("join", "no delete leaf is affiliated to a data leaf that the scan opens")
    dvs, limits = figures.paired_deletes or 0, costs.COSTS
    allowed = limits.few_entries + limits.entries_per_dv * dvs
    exceeds_allowed = figures.paired_entries is None or figures.paired_entries > allowed
    if figures.planning == "auto" and dvs <= limits.broadcast_deletes and exceeds_allowed:
        return Verdict("join", f"{dvs:,} deletion vectors are few enough to be broadcast")
    where = f"{figures.pairs:,} delete leaves affiliated to data leaves"
    return Verdict("colocated", f"{dvs:,} deletion vectors are in {where}")


def _by_partition(figures: Figures) -> Verdict | None:
    if figures.formats != {"AVRO"}:
        return Verdict("join", "there are manifests that are not Avro files")
    if figures.only_dvs is None:
        return None
    if not figures.only_dvs:
        what = "have no deletion vectors" if figures.format_version < 3 else "list more than deletion vectors"
        return Verdict("join", f"the delete manifests that are opened {what}")
    if figures.driver_dvs is not None:
        return Verdict("colocated", f"{figures.driver_dvs:,} deletion vectors are few enough for the driver to read")
    if figures.deletes is None:
        return Verdict("join", "the manifest list does not count its entries")
    limits = costs.COSTS
    if figures.data_manifests * figures.delete_manifests > limits.compared_pairs:
        return Verdict("join", f"{figures.delete_manifests:,} delete manifests are too many to compare partitions")
    if figures.pairs is None:
        return None
    if not figures.pairs:
        return Verdict("join", "no deletion vector is in a partition that is read")
    most_decoded = limits.decoded_times * figures.deletes + limits.held_dvs
    costly = figures.held > limits.held_dvs or figures.decoded > most_decoded
    if figures.pairs > limits.pairs or (costly and figures.planning == "auto"):
        return Verdict("join", f"partitions don't tell well where {figures.deletes:,} deletion vectors belong")
    where = "beside the data manifests of their partitions"
    return Verdict("colocated", f"{figures.deletes:,} deletion vectors are read {where}")


# -- Where manifests are read -----------------------------------------------------------------------------------------


def _reading(
    pruned: PrunedManifests, manifests: pa.Table, projection: EntryProjection, most_entries: int | None = None
) -> Reading:
    """Return where manifests are read on their own."""
    placement = pruned.filter.state.reader.table_placement(manifests, projection, most_entries)
    return Reading(placement, manifests, most_entries)


def _data_reading(pruned: PrunedManifests, data: pa.Table, deletes: int | None, known: Reading) -> Reading:
    """Return where to read data manifests on their own, given the number of deletes that their files are joined with.

    Args:
        pruned: the manifests of the scan.
        data: the data manifests.
        deletes: the number of deletes; None if it is unknown.
        known: where all data manifests of the scan are read.
    """
    drops_most = pruned.filter.entry_filter.stats.tests
    if not drops_most and deletes and (live_count(data) or 0) * deletes > costs.COSTS.driver_pairs:
        # Spark joins this many pairs, and its join is slower if the driver hands it the data files.
        return _reading(pruned, data, data_projection(pruned.filter), MOST_WIDE_ENTRIES)
    return known if data is pruned.data else _reading(pruned, data, data_projection(pruned.filter))


def _together(pruned: PrunedManifests, data: pa.Table, deletes: pa.Table, *, driver: bool) -> Reading:
    """Return where co-planned manifests are read. `driver` tells whether the driver has read the deletes."""
    state, manifests = pruned.filter.state, pa.concat_tables([data, deletes])
    on_driver = driver or (state.tree is not None and state.reader.fits_driver(manifests))
    return Reading(Placement.DRIVER if on_driver else Placement.TASKS, manifests)


def _driver_groups(pruned: PrunedManifests, deletes: pa.Table) -> bool:
    """Return whether the driver reads and groups the deletes."""
    reader, projection = pruned.filter.state.reader, delete_projection(pruned.filter)
    return reader.driver_reads(deletes, projection, costs.COSTS.driver_deletes)


# -- Figures ----------------------------------------------------------------------------------------------------------


def _counts(pruned: PrunedManifests) -> Figures:
    state, sides = pruned.filter.state, (pruned.data, pruned.deletes)
    return Figures(
        planning=state.settings.planning,
        executors_read=state.access.tasks is not None,
        format_version=state.metadata.format_version,
        is_tree=state.tree is not None,
        formats=frozenset(name for side in sides for name in side.column("file_format").unique().to_pylist()),
        data_manifests=len(pruned.data),
        delete_manifests=len(pruned.deletes),
        deletes=live_count(pruned.deletes),
    )


def _with_kinds(figures: Figures, pruned: PrunedManifests) -> tuple[Figures, pa.Table | None]:
    """Look up the kinds of deletes. If the scan opens few manifests, the driver reads all deletes."""
    dvs = _read_by_driver(pruned)
    if dvs is None:
        only = only_dvs(pruned.filter.state, pruned.deletes, by_job=True)
        return replace(figures, only_dvs=only), None
    return replace(figures, only_dvs=all_dvs(dvs), driver_dvs=len(dvs)), dvs


def _read_by_driver(pruned: PrunedManifests) -> pa.Table | None:
    reader, projection = pruned.filter.state.reader, data_projection(pruned.filter)
    manifests = pa.concat_tables([pruned.data, pruned.deletes])
    if pruned.filter.state.metadata.format_version < 3 or not reader.fits_driver(manifests):
        return None
    if reader.manifest_cache is not None and reader.driver_parts(pruned.data, projection) is None:
        return None
    return reader.driver_table(pruned.deletes, dv_projection(pruned.filter))


def _pairs(pruned: PrunedManifests) -> Pairs:
    state = pruned.filter.state
    pair = pairs_by_partition if state.tree is None else pairs_by_affinity
    return pair(state, pruned.data, pruned.deletes)


def _with_pairs(figures: Figures, pairs: Pairs) -> Figures:
    return replace(
        figures,
        pairs=pairs.count,
        paired_entries=live_count(pairs.data),
        paired_deletes=live_count(pairs.deletes),
        decoded=pairs.decoded,
        held=pairs.held,
    )
