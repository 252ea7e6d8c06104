"""Make requests to a store through a pyiceberg FileIO: repeat them while it is busy, and raise one kind of error.

Light: Spark tasks import this.
"""

from __future__ import annotations

import random
import re
import time
from typing import TYPE_CHECKING, TypeVar

from sparkmeta.errors import FileAccessError, FileAlreadyExistsError, NotFoundError, SparkmetaError
from sparkmeta.storage.secrets import without_secrets
from sparkmeta.storage.vended import expired_reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyiceberg.io import FileIO

T = TypeVar("T")

# Seconds between attempts. Each is several requests already: clients repeat them for some seconds at most.
_WAITS = (0.5, 2.0)
# Words in errors of a store that is busy or hung up, in the spelling of pyarrow, botocore, aiohttp and others. A store
# that can't be connected to is none: clients try for long enough.
_TRANSIENT = re.compile(
    r"slow.?down|throttl|request rate|unavailable|internal.?(?:error|failure)|\b50[0234]\b|time.?out|timed out|"
    r"connection.?(?:closed|reset|aborted)|disconnected|reset by peer|broken pipe|incomplete|httpclient",
    re.IGNORECASE,
)

_NO_CREDENTIALS = re.compile(r"NoCredentials|(?:no|locate) credentials", re.IGNORECASE)
_WHOSE_CREDENTIALS = "; tasks have a catalog's properties, but not the credentials of the driver's environment"


def requested(io: FileIO, location: str, request: Callable[[], T], *, repeat: bool = True) -> T:
    """Make a request to a file's store, and return its result.

    Args:
        io: the FileIO that the request uses.
        location: the file or folder, for errors.
        request: a request that raises FileNotFoundError for a missing file. It may run several times.
        repeat: whether to repeat it if the store is busy. False if its effect depends on earlier attempts.

    Raises:
        NotFoundError: the file is missing.
        FileAccessError: the store refused the request, or did not respond. The error contains no credentials.
    """
    waits = iter(_WAITS if repeat else ())
    while True:
        try:
            return request()
        except FileNotFoundError:
            raise NotFoundError(f"{location}: there is no such file") from None
        except SparkmetaError:
            raise
        except FileExistsError as error:
            raise FileAlreadyExistsError(f"{location}: the file already exists") from error
        except Exception as error:  # noqa: BLE001 - each store's client has its own errors
            wait = next(waits, None) if _is_transient(error) else None
            if wait is None:
                reason = expired_reason(io.properties, _text(error)) or _text(error)
                hint = _WHOSE_CREDENTIALS if _NO_CREDENTIALS.search(reason) else ""
                # Without the cause, whose text may contain credentials.
                raise FileAccessError(f"{location}: {without_secrets(reason, io.properties)}{hint}") from None
        time.sleep(wait * random.uniform(0.5, 1.5))


def _is_transient(error: BaseException) -> bool:
    return not isinstance(error, PermissionError) and _TRANSIENT.search(_text(error)) is not None


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
