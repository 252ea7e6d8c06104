"""Group the manifests of a v1 to v3 table that are rewritten together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue, BooleanExpression

from sparkmeta.avro.write import manifest_codec
from sparkmeta.checks import Rule, check_options, is_whole, names_of
from sparkmeta.columns.predicate import parse_filter
from sparkmeta.edit.list_options import MOST_BYTES, ListOptions
from sparkmeta.edit.rewritten_manifests import refuse_rewrite
from sparkmeta.entries.counts import live_count
from sparkmeta.errors import ValidationError
from sparkmeta.plan.filter import ScanFilter
from sparkmeta.plan.prune import matching_manifests
from sparkmeta.spec.entry import ContentType
from sparkmeta.spec.summary import summary_of

if TYPE_CHECKING:
    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.state import TableState

CONTENTS = {ContentType.DATA_MANIFEST: "data", ContentType.DELETE_MANIFEST: "deletes"}

REWRITTEN = "sparkmeta.rewritten-manifests"
"""A key in the summary of a snapshot that rewrote manifests. Its value is JSON with the parameters.

`target-bytes` is the target size of a manifest, `sorted-by` maps spec ids to ids of partition fields in order.
"""

# A single manifest is left alone up to this multiple of the target size.
_SURPLUS = 1.1


@dataclass(frozen=True)
class ManifestRewriteOptions:
    """See `Maintenance.rewrite_manifests`."""

    row_filter: BooleanExpression | str = AlwaysTrue()  # noqa: RUF009  an immutable singleton
    spec_id: int | None = None
    sort_by: Sequence[str] | None = None
    target_manifest_bytes: int | None = None

    def check(self) -> None:
        """Check values as far as possible without a table.

        Raises:
            ValidationError: an option has an invalid value.
            InvalidFilterError: the filter is not valid.
        """
        check_options(self, _RULES)
        parse_filter(self.row_filter)


_RULES = {
    "sort_by": names_of("partition fields"),
    "target_manifest_bytes": Rule(
        f"a number of bytes from 1 to {MOST_BYTES}", lambda value: is_whole(value) and 1 <= value <= MOST_BYTES
    ),
}


@dataclass(frozen=True)
class ManifestGroup:
    """The manifests of one content and spec that are rewritten together, rows of `TableState.manifests`.

    Attributes:
        keys: ids of the partition fields by which entries are sorted.
        parts: the expected number of new manifests.
    """

    content: ContentType
    spec_id: int
    manifests: pa.Table
    keys: tuple[int, ...]
    parts: int

    @property
    def paths(self) -> set[str]:
        return set(self.manifests.column("location").to_pylist())


def manifest_groups(state: TableState, options: ManifestRewriteOptions) -> list[ManifestGroup]:
    """Return the groups that are not in order yet.

    Raises:
        ValidationError: an option is not valid for the table.
        InvalidFilterError: the filter is not valid for the table.
        UnsupportedError: a manifest can't be rewritten.
    """
    options.check()
    target = target_bytes(state.metadata, options)
    manifest_codec(state.metadata)
    keys = _keys(state, options)
    manifests = matching_manifests(state.manifests, ScanFilter.of(state, options.row_filter))
    groups = []
    for content in CONTENTS:
        of_content = manifests.filter(pc.equal(manifests.column("content_type"), int(content)))
        for spec_id in sorted(set(of_content.column("partition_spec_id").to_pylist()) & keys.keys()):
            of_spec = of_content.filter(pc.equal(of_content.column("partition_spec_id"), spec_id))
            parts = max(1, min(-(-total_bytes(of_spec) // target), live_count(of_spec) or total_bytes(of_spec)))
            group = ManifestGroup(content, spec_id, of_spec, keys[spec_id], parts)
            if not _is_in_order(group, state, target):
                refuse_rewrite(group.manifests, spec_id, state)
                groups.append(group)
    return groups


def _is_in_order(group: ManifestGroup, state: TableState, target: int) -> bool:
    """Return whether a group need not be rewritten.

    It is one manifest that is not too large, or manifests that one rewrite wrote in the same order and size.
    """
    count = len(group.manifests)
    if count == 1 and total_bytes(group.manifests) <= _SURPLUS * target:
        return True
    writers = pc.struct_field(group.manifests.column("version_info"), "snapshot_id").unique().to_pylist()
    writer = state.metadata.snapshot_by_id(writers[0]) if len(writers) == 1 and writers[0] is not None else None
    try:
        how = json.loads(summary_of(writer).get(REWRITTEN, "{}"))
    except ValueError:  # written by another library
        return False
    known = how.get("sorted-by", {}) if isinstance(how, dict) else {}
    return known.get(str(group.spec_id)) == list(group.keys) and how.get("target-bytes") == target


def _keys(state: TableState, options: ManifestRewriteOptions) -> dict[int, tuple[int, ...]]:
    """Return the ids of the partition fields by which entries are sorted, for each spec to rewrite."""
    specs = state.specs
    if options.spec_id is not None:
        if options.spec_id not in specs:
            known = ", ".join(map(str, sorted(specs)))
            raise ValidationError(
                f"{state.metadata.location} has no partition spec {options.spec_id!r}: it has {known}"
            )
        specs = {options.spec_id: specs[options.spec_id]}
    default = {key: tuple(part.field_id for part in spec.fields) for key, spec in specs.items()}
    names = options.sort_by
    if names is None:
        return default
    by_name = {key: {part.name: part.field_id for part in spec.fields} for key, spec in specs.items()}
    for name in names:
        if not any(name in fields for fields in by_name.values()):
            raise ValidationError(
                f"{state.metadata.location}: sort_by names {name!r}: there is no such partition field"
            )
    named = {key: tuple(fields[name] for name in names if name in fields) for key, fields in by_name.items()}
    return {key: chosen or default[key] for key, chosen in named.items()}


def target_bytes(metadata: TableMetadata, options: ManifestRewriteOptions) -> int:
    """Return the target size of a manifest.

    Raises:
        ValidationError: the table property has an invalid value.
    """
    size = options.target_manifest_bytes
    return ListOptions.of(metadata).target_bytes if size is None else size


def total_bytes(manifests: pa.Table) -> int:
    """Return the total size of manifests in bytes."""
    return pc.sum(manifests.column("file_size_in_bytes")).as_py() or 0
