"""Measure a table, and make the report of its health."""

from __future__ import annotations

import shlex
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sparkmeta.errors import ValidationError
from sparkmeta.health.entries import Limits, measure_entries
from sparkmeta.health.findings import Examination
from sparkmeta.health.history import measure_history
from sparkmeta.health.layout import measure_layout
from sparkmeta.health.report import HealthReport
from sparkmeta.rewrite.position_deletes.options import DeleteRewriteOptions
from sparkmeta.session import in_use
from sparkmeta.spec.metadata import refuse_encrypted
from sparkmeta.spec.table_properties import number_property

if TYPE_CHECKING:
    from sparkmeta.health.options import HealthOptions
    from sparkmeta.operations.base_table import BaseTable
    from sparkmeta.state import TableState

_TARGET, _TARGET_BYTES = "write.target-file-size-bytes", 512 << 20


def examine(table: BaseTable, options: HealthOptions, source: str | None = None) -> HealthReport:
    """Examine a table; see `Maintenance.health`.

    Args:
        source: the arguments that name the table on a command line. Defaults to its location, or to its identifier in a
            catalog whose name is not known.
    """
    options.check()
    state = table.state
    in_use(state.session)
    refuse_encrypted(table.metadata, "so that its manifests can't be read")
    limits = _limits(state, options)
    columns = _columns(state, options)
    started = time.perf_counter()
    history = measure_history(table, options.max_ref_age_days, int(time.time() * 1000))
    # The leaves of a tree have bounds of columns in the root.
    entries = measure_entries(state, limits, () if state.tree is not None else tuple(columns))
    layout = measure_layout(state, columns, entries.bounds)
    findings = Examination(table, options, limits, entries, layout, history, source or _source(table)).findings()
    return HealthReport(
        table=table.full_name,
        state=state,
        metadata_location=table.metadata_location,
        examined_at=datetime.now(UTC),
        seconds=round(time.perf_counter() - started, 3),
        list_findings=findings,
        limits=limits,
        entries=entries,
        layout=layout,
        history=history,
        list_bytes=_list_bytes(state),
    )


def _source(table: BaseTable) -> str:
    name = shlex.quote(table.full_name)
    return name if len(table.identifier) == 1 else f"--catalog NAME {name}"


def _limits(state: TableState, options: HealthOptions) -> Limits:
    target = number_property(state.metadata.properties, _TARGET, _TARGET_BYTES, least=1)
    # The size below which a rewrite takes files is less than the target.
    small = min(int(target * options.small_file_ratio), target - 1)
    puffin = DeleteRewriteOptions().sizes(state.metadata.properties)
    return Limits(target, small, options.min_small_files, options.max_deleted_ratio, puffin)


def _columns(state: TableState, options: HealthOptions) -> dict[int, str]:
    """Return the ids and names of the columns whose overlaps are measured."""
    schema, known = state.metadata.schema(), state.types.primitive_fields
    if options.columns is None:
        ids = dict.fromkeys(field.source_id for field in state.metadata.sort_order().fields)
        return {field_id: schema.find_column_name(field_id) or str(field_id) for field_id in ids if field_id in known}
    by_name = {schema.find_column_name(field_id): field_id for field_id in known}
    for name in options.columns:
        if name not in by_name:
            raise ValidationError(f"{state.metadata.location}: columns names {name!r}: no such column has bounds")
    return {by_name[name]: name for name in options.columns}


def _list_bytes(state: TableState) -> int:
    """Return the size of the manifest list or root; 0 for a table without one."""
    snapshot = state.snapshot
    location = None if snapshot is None else snapshot.manifests_location
    return 0 if location is None else state.files.length(location)
