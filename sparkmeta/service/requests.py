"""Requests to plan scans, read from JSON, and errors in the protocol's form."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkmeta.errors import (
    CatalogError,
    FileAccessError,
    NoSuchNamespaceError,
    NoSuchTableError,
    SparkmetaError,
    UnsupportedError,
    from_spark,
    shown,
)
from sparkmeta.expr.expression_json import expression_from_json
from sparkmeta.service.rest_tasks import INEXPRESSIBLE

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression


# -- Errors in the protocol's form ------------------------------------------------------------------------------------


BAD_REQUEST = "BadRequestException"
NO_TABLE = "NoSuchTableException"
NO_NAMESPACE = "NoSuchNamespaceException"
NO_PLAN = "NoSuchPlanIdException"
NO_TASK = "NoSuchPlanTaskException"
UNSUPPORTED = "UnsupportedOperationException"
UNAUTHORIZED = "NotAuthorizedException"
FORBIDDEN = "ForbiddenException"
UNAVAILABLE = "ServiceUnavailableException"
INTERNAL = "InternalServerError"
CANCELLED = "PlanCancelledException"
TIMEOUT = "GatewayTimeoutException"

# The first matching entry counts. Errors of the table's metadata and files match none of these.
_KINDS: tuple[tuple[type[Exception], int, str], ...] = (
    (NoSuchTableError, 404, NO_TABLE),
    (NoSuchNamespaceError, 404, NO_NAMESPACE),
    (UnsupportedError, 406, UNSUPPORTED),
    (ValueError, 400, BAD_REQUEST),
)
_RETRY_SECONDS = 5
_MAX_CHARS = 2_000


@dataclass(eq=False)
class ApiError(Exception):
    """An error in the form that clients get.

    Attributes:
        status: the HTTP status.
        kind: the protocol's name of the error.
        message: what is wrong.
        retry_after: seconds after which the client may try again; None if that would not help.
    """

    status: int
    kind: str
    message: str
    retry_after: int | None = None

    def __str__(self) -> str:
        return self.message

    def document(self) -> dict[str, Any]:
        """Return the JSON object of the error."""
        return {"error": {"message": self.message[:_MAX_CHARS], "type": self.kind, "code": self.status}}


def busy(message: str, seconds: int = _RETRY_SECONDS) -> ApiError:
    """Return the error of a service that is too busy or lacks space."""
    return ApiError(503, UNAVAILABLE, message, seconds)


def api_error(error: BaseException) -> ApiError:
    """Return an error in the protocol's form. Clients get no details of errors that are not sparkmeta's own."""
    if isinstance(error, ApiError):
        return error
    known = error if isinstance(error, SparkmetaError) else from_spark(error)
    if known is None:
        return ApiError(500, INTERNAL, "the service failed: its log says why")
    message = str(known)
    if message.startswith(INEXPRESSIBLE):
        return ApiError(406, UNSUPPORTED, message)
    if isinstance(known, CatalogError):
        # The message may name the catalog's server, which clients need not know.
        return busy("the catalog does not answer, or refuses the request: the log of the service says why")
    if isinstance(known, FileAccessError):
        return busy(message)
    for kind, status, name in _KINDS:
        if isinstance(known, kind):
            return ApiError(status, name, message)
    return ApiError(500, INTERNAL, message)


# -- Requests to plan scans -------------------------------------------------------------------------------------------


_LONG = 2**63
# Clients would silently read null, since the protocol's tasks lack sequence numbers.
_SEQUENCE_NUMBER = "_last_updated_sequence_number"


@dataclass(frozen=True)
class PlanRequest:
    """A request to plan a scan.

    Attributes:
        row_filter: the filter.
        filter_text: the filter as JSON, which is the same for the same filter.
        select: the columns to read; None for all.
        snapshot_id: the snapshot; None for the current one.
        by_snapshot: whether names refer to the snapshot's schema.
        case_sensitive: whether names are case-sensitive.
        from_exclusive: the snapshot after which appends begin; None if this is no incremental append scan.
        to_inclusive: the last snapshot of appends.
        min_rows: how many rows are enough; None for all.
        stats_fields: the columns whose metrics are requested.
    """

    row_filter: BooleanExpression
    filter_text: str
    select: tuple[str, ...] | None
    snapshot_id: int | None
    by_snapshot: bool
    case_sensitive: bool
    from_exclusive: int | None
    to_inclusive: int | None
    min_rows: int | None
    stats_fields: tuple[str, ...] = ()

    @property
    def digest(self) -> bytes:
        """The hash of everything that the plan depends on. The filter itself may be as large as a megabyte."""
        ids = (self.snapshot_id, self.by_snapshot, self.from_exclusive, self.to_inclusive)
        parts = (self.filter_text, self.case_sensitive, self.min_rows, sorted({*self.stats_fields}), *ids)
        return hashlib.sha256(json.dumps(parts).encode()).digest()


def parse_json(body: bytes) -> dict[str, Any]:
    """Return the JSON object in a request. Raises ApiError for anything else."""
    try:
        document = json.loads(body, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise ApiError(400, BAD_REQUEST, f"the request is not valid JSON: {reason}") from error
    if not isinstance(document, dict):
        raise ApiError(400, BAD_REQUEST, "the request is not a JSON object")
    return document


def parse_plan_request(body: bytes) -> PlanRequest:
    """Return the request in a body.

    Raises:
        ApiError: it is not a request to plan, or asks for something that the protocol can't express.
        InvalidFilterError: the filter is invalid.
        UnsupportedError: the filter has functions or terms that filters don't support.
    """
    document = {name: value for name, value in parse_json(body).items() if value is not None}
    select = _names(document, "select")
    snapshot_id, start, end = (_whole(document, f"{name}snapshot-id") for name in ("", "start-", "end-"))
    if start is not None and end is None:
        raise _invalid("end-snapshot-id", None, "it is required with start-snapshot-id")
    if snapshot_id is not None and (start is not None or end is not None):
        raise _invalid("snapshot-id", snapshot_id, "an incremental append scan has a start and an end instead")
    if end is not None and start is None:
        raise ApiError(406, UNSUPPORTED, "incremental append scans need start-snapshot-id")
    if any(name.lower() == _SEQUENCE_NUMBER for name in select or ()):
        raise ApiError(406, UNSUPPORTED, f"{INEXPRESSIBLE} the column {_SEQUENCE_NUMBER}")
    tree = document.get("filter", True)
    return PlanRequest(
        row_filter=expression_from_json(tree),
        filter_text=_text(tree),
        select=select,
        snapshot_id=snapshot_id,
        by_snapshot=_flag(document, "use-snapshot-schema", False),
        case_sensitive=_flag(document, "case-sensitive", True),
        from_exclusive=start,
        to_inclusive=end,
        min_rows=_whole(document, "min-rows-requested", least=0),
        stats_fields=_names(document, "stats-fields") or (),
    )


def _text(tree: object) -> str:
    try:
        return json.dumps(tree, sort_keys=True, separators=(",", ":"))
    except RecursionError as error:
        raise ApiError(400, BAD_REQUEST, "the filter is nested too deeply") from error


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON number")


def _whole(document: dict[str, Any], name: str, least: int = -_LONG) -> int | None:
    value = document.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < _LONG:
        raise _invalid(name, value, "expected a 64-bit integer" if least < 0 else f"expected a number from {least}")
    return value


def _flag(document: dict[str, Any], name: str, default: bool) -> bool:
    value = document.get(name, default)
    if not isinstance(value, bool):
        raise _invalid(name, value, "expected true or false")
    return value


def _names(document: dict[str, Any], name: str) -> tuple[str, ...] | None:
    value = document.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _invalid(name, value, "expected a list of names")
    return tuple(value)


def _invalid(name: str, value: object, problem: str) -> ApiError:
    return ApiError(400, BAD_REQUEST, f"{name} is {shown(value)}: {problem}")
