"""The sizes by which rewrites choose files, as Iceberg's actions do."""

from __future__ import annotations

from dataclasses import dataclass

from sparkmeta.errors import ValidationError

# Shares of the target size.
_LEAST, _MOST = 0.75, 1.8


@dataclass(frozen=True)
class FileSizes:
    """Sizes of files in bytes.

    Attributes:
        target: the size that new files should have.
        least: smaller files are rewritten.
        most: larger files are rewritten.
    """

    target: int
    least: int
    most: int

    @classmethod
    def of(cls, target: int, least: int | None, most: int | None) -> FileSizes:
        """Return sizes with the defaults for those that are None.

        Raises:
            ValidationError: they do not increase.
        """
        least = int(target * _LEAST) if least is None else least
        most = max(int(target * _MOST), target + 1) if most is None else most
        if not least < target < most:
            raise ValidationError(
                f"min_file_size_bytes is {least}, target_file_size_bytes {target} and max_file_size_bytes {most}: they "
                "must increase"
            )
        return cls(target, least, most)

    @property
    def written(self) -> int:
        """The size at which a new file ends: above the target, so that no small file follows for the last rows."""
        return self.target + (self.most - self.target) // 2

    def outputs(self, size: int) -> int:
        """Return how many files of about the target size hold some bytes, as Iceberg's action computes it."""
        if size < self.target:
            return 1
        whole, rest = divmod(size, self.target)
        if not rest or (rest <= self.least and size / whole < min(1.1 * self.target, self.written)):
            return whole
        return whole + 1
