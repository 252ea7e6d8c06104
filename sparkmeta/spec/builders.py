"""Name the table in the errors of pyiceberg's builders."""

from __future__ import annotations

import inspect
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from pyiceberg import exceptions as iceberg
from pyiceberg.table.update.sorting import UpdateSortOrder as IcebergUpdateSortOrder

from sparkmeta.errors import InvalidChangeError, SparkmetaError, first_line

if TYPE_CHECKING:
    from collections.abc import Callable

_Builder = TypeVar("_Builder", bound=type)


def names_table(builder: _Builder) -> _Builder:
    """Let a subclass of a pyiceberg builder raise InvalidChangeError, which names the table, for pyiceberg's errors."""
    for name, method in inspect.getmembers(builder, inspect.isfunction):
        # Both `commit` and the end of a `with` block compute the changes by `_commit`.
        if name == "_commit" or (not name.startswith("_") and name != "commit"):
            setattr(builder, name, _naming_table(method))
    return builder


def _naming_table(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def named(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except SparkmetaError:
            raise
        except (TypeError, ValueError, iceberg.ValidationError) as error:
            location = self._transaction.table_metadata.location
            raise InvalidChangeError(f"{location}: {first_line(error)}") from error

    return named


@names_table
class UpdateSortOrder(IcebergUpdateSortOrder):
    """pyiceberg's builder of a sort order."""
