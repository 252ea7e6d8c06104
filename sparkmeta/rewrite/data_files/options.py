"""The options of a rewrite of data files, which are those of Iceberg's procedure of that name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyiceberg.expressions import AlwaysTrue, BooleanExpression

from sparkmeta.checks import POSITIVE, SHARE, at_least, check_options, one_of
from sparkmeta.columns.predicate import parse_filter
from sparkmeta.data_files.options import WriteOptions
from sparkmeta.errors import ValidationError, shown
from sparkmeta.rewrite.file_sizes import FileSizes

if TYPE_CHECKING:
    from pyiceberg.table.sorting import SortOrder

    from sparkmeta.spec.metadata import TableMetadata

BINPACK: Final = "binpack"
SORT: Final = "sort"
STRATEGIES: Final = (BINPACK, SORT)
JOB_ORDERS: Final = ("none", "bytes-asc", "bytes-desc", "files-asc", "files-desc")
_GROUP_BYTES: Final = 100 << 30
_COUNTS: Final = (
    "min_input_files", "max_file_group_size_bytes", "partial_progress_max_commits", "delete_file_threshold",
    "max_concurrent_file_group_rewrites", "target_file_size_bytes", "max_file_size_bytes", "max_file_group_input_files",
    "max_files_to_rewrite",
)  # fmt: skip
_FROM_ZERO: Final = ("min_file_size_bytes", "partial_progress_max_failed_commits", "output_spec_id")
_RULES: Final = {
    **dict.fromkeys(_COUNTS, at_least(1)),
    **dict.fromkeys(_FROM_ZERO, at_least(0)),
    "strategy": one_of(*STRATEGIES),
    "rewrite_job_order": one_of(*JOB_ORDERS),
    "delete_ratio_threshold": SHARE,
    "compression_factor": POSITIVE,
}


@dataclass(frozen=True)
class DataRewriteOptions:
    """See `Maintenance.rewrite_data_files`."""

    row_filter: BooleanExpression | str = AlwaysTrue()  # noqa: RUF009  an immutable singleton
    strategy: str = BINPACK
    sort_order: SortOrder | str | None = None
    target_file_size_bytes: int | None = None
    min_file_size_bytes: int | None = None
    max_file_size_bytes: int | None = None
    min_input_files: int = 5
    delete_file_threshold: int | None = None
    delete_ratio_threshold: float = 0.3
    rewrite_all: bool = False
    max_file_group_size_bytes: int = _GROUP_BYTES
    max_concurrent_file_group_rewrites: int | None = None
    rewrite_job_order: str = JOB_ORDERS[0]
    partial_progress_enabled: bool = False
    partial_progress_max_commits: int = 10
    partial_progress_max_failed_commits: int | None = None
    use_starting_sequence_number: bool = True
    remove_dangling_deletes: bool = False
    output_spec_id: int | None = None
    compression_factor: float = 1.0
    max_file_group_input_files: int | None = None
    max_files_to_rewrite: int | None = None

    def check(self) -> None:
        """Check values as far as possible without a table.

        Raises:
            ValidationError: an option has an invalid value.
            InvalidFilterError: the filter is not valid.
        """
        check_options(self, _RULES)
        parse_filter(self.row_filter)
        if self.sort_order is not None and self.strategy != SORT:
            raise ValidationError(f"sort_order is {shown(str(self.sort_order))}: it requires strategy='sort'")
        if self.target_file_size_bytes is not None:
            self._sizes(self.target_file_size_bytes)

    def check_for(self, metadata: TableMetadata) -> None:
        """Check values for a table.

        Raises:
            ValidationError: an option or table property has an invalid value.
            InvalidFilterError: the filter is not valid.
        """
        self.check()
        if self.output_spec_id is not None and self.output_spec_id not in metadata.specs():
            known = ", ".join(map(str, sorted(metadata.specs())))
            problem = f"the table has the partition specs {known}"
            raise ValidationError(f"output_spec_id is {self.output_spec_id}: {problem}")
        self.sizes(metadata)

    def sizes(self, metadata: TableMetadata) -> FileSizes:
        """Return the sizes of files. The target defaults to `write.target-file-size-bytes`.

        Raises:
            ValidationError: sizes are not in order, or the table property is invalid.
        """
        target = self.target_file_size_bytes
        if target is None:
            target = WriteOptions.of(metadata).target_bytes
        return self._sizes(target)

    def _sizes(self, target: int) -> FileSizes:
        return FileSizes.of(target, self.min_file_size_bytes, self.max_file_size_bytes)
