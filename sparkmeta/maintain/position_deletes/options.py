"""The options of a rewrite of position deletes, and the table properties that they default to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyiceberg.expressions import AlwaysTrue, BooleanExpression

from sparkmeta.errors import ValidationError, shown
from sparkmeta.write.delete_options import delete_target_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

# Shares of the target size, as in Iceberg's action.
_LEAST, _MOST = 0.75, 1.8


@dataclass(frozen=True)
class FileSizes:
    """Sizes of delete files in bytes.

    Attributes:
        least: smaller files are merged.
        most: larger files are divided.
    """

    target: int
    least: int
    most: int


@dataclass(frozen=True)
class DeleteRewriteOptions:
    """See `Maintenance.rewrite_position_delete_files`."""

    row_filter: BooleanExpression | str = AlwaysTrue()  # noqa: RUF009  an immutable singleton
    target_file_size_bytes: int | None = None
    min_file_size_bytes: int | None = None
    max_file_size_bytes: int | None = None
    min_input_files: int = 5
    rewrite_all: bool = False

    def sizes(self, properties: Mapping[str, str]) -> FileSizes:
        """Return the sizes of files, which default to table properties.

        Raises:
            ValidationError: an option or a table property has an invalid value.
        """
        _check_count("min_input_files", self.min_input_files)
        target = _check_count("target_file_size_bytes", self.target_file_size_bytes)
        if target is None:
            target = delete_target_bytes(properties)
        least = _check_count("min_file_size_bytes", self.min_file_size_bytes)
        most = _check_count("max_file_size_bytes", self.max_file_size_bytes)
        least = int(target * _LEAST) if least is None else least
        most = int(target * _MOST) if most is None else most
        if not least <= target <= most:
            raise ValidationError(
                f"min_file_size_bytes is {least}, target_file_size_bytes {target} and max_file_size_bytes {most}: they "
                "must not decrease"
            )
        return FileSizes(target, least, most)


def _check_count(name: str, value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValidationError(f"{name} is {shown(value)}: expected a whole number of 1 or more")
    return value
