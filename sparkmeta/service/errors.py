"""Errors in the protocol's form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparkmeta.errors import (
    CatalogError,
    FileAccessError,
    NoSuchNamespaceError,
    NoSuchTableError,
    SparkmetaError,
    UnsupportedError,
    from_spark,
)
from sparkmeta.plan.rest_tasks import INEXPRESSIBLE

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

# The first that fits counts. Errors of the table's metadata and files are none of these.
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
    """An error as clients get it.

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
