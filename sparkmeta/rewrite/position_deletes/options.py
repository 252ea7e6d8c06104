"""The options of a rewrite of position deletes, and the table properties that they default to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyiceberg.expressions import AlwaysTrue, BooleanExpression

from sparkmeta.checks import at_least, check_options
from sparkmeta.columns.predicate import parse_filter
from sparkmeta.rewrite.file_sizes import FileSizes
from sparkmeta.write.delete_options import delete_target_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class DeleteRewriteOptions:
    """See `Maintenance.rewrite_position_delete_files`."""

    row_filter: BooleanExpression | str = AlwaysTrue()  # noqa: RUF009  an immutable singleton
    target_file_size_bytes: int | None = None
    min_file_size_bytes: int | None = None
    max_file_size_bytes: int | None = None
    min_input_files: int = 5
    rewrite_all: bool = False

    def check(self) -> None:
        """Check values as far as possible without a table.

        Raises:
            ValidationError: an option has an invalid value.
            InvalidFilterError: the filter is not valid.
        """
        counts = ("target_file_size_bytes", "max_file_size_bytes", "min_input_files")
        check_options(self, {**dict.fromkeys(counts, at_least(1)), "min_file_size_bytes": at_least(0)})
        parse_filter(self.row_filter)
        if self.target_file_size_bytes is not None:
            self._sizes(self.target_file_size_bytes)

    def sizes(self, properties: Mapping[str, str]) -> FileSizes:
        """Return the sizes of files, which default to table properties.

        Raises:
            ValidationError: sizes are not in order, or the table property is invalid.
        """
        target = self.target_file_size_bytes
        return self._sizes(delete_target_bytes(properties) if target is None else target)

    def _sizes(self, target: int) -> FileSizes:
        return FileSizes.of(target, self.min_file_size_bytes, self.max_file_size_bytes)
