"""An S3-compatible server of the tests' own, moto's: it counts requests, and can delay them and let them fail.

It enforces conditional writes (`If-None-Match`, `If-Match`), also of concurrent writers, and has a Glue catalog.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch
from urllib.parse import parse_qsl

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyiceberg.io import FileIO

BUCKET = "tests"
# Values that no other text has, so that a test can look for them.
ACCESS_KEY, SECRET_KEY, SESSION_TOKEN = "AKIATESTSKEY00000001", "tests-s3-secret-key-value", "tests-s3-session-token"
FILE_IOS = {"pyarrow": "pyiceberg.io.pyarrow.PyArrowFileIO", "fsspec": "pyiceberg.io.fsspec.FsspecFileIO"}

_CODES = {400: "ExpiredToken", 403: "InvalidAccessKeyId", 500: "InternalError", 503: "SlowDown"}


class Request(NamedTuple):
    """A request that the server got.

    Attributes:
        key: the prefix if it lists a bucket.
        action: what Glue is asked to do; empty for S3.
        token: of the client's session.
    """

    method: str
    key: str
    range: str
    action: str
    token: str


@dataclass
class S3Server:
    """A server with the bucket `BUCKET`.

    Attributes:
        url: its address.
        requests: all requests since the last `counted`.
        delay: seconds that each request takes longer.
        refuses: returns the status that a request is answered by without being carried out; 0 carries it out.
        loses_answer: returns whether a request is carried out, and then answered by 500.
        ignores_conditions: whether PUT is unconditional, as in some stores compatible with S3.
    """

    url: str = ""
    requests: list[Request] = field(default_factory=list)
    delay: float = 0
    refuses: Callable[[Request], int] = lambda _: 0
    loses_answer: Callable[[Request], bool] = lambda _: False
    ignores_conditions: bool = False
    _lock: Any = field(default_factory=threading.Lock)

    @property
    def properties(self) -> dict[str, str]:
        """The properties of a catalog or FileIO that uses the server."""
        return {
            "s3.endpoint": self.url,
            "s3.access-key-id": ACCESS_KEY,
            "s3.secret-access-key": SECRET_KEY,
            "s3.session-token": SESSION_TOKEN,
            "s3.region": "us-east-1",
        }

    @property
    def glue(self) -> dict[str, str]:
        """The properties of a Glue catalog, whose service the server has too."""
        keys = {
            "access-key-id": ACCESS_KEY,
            "secret-access-key": SECRET_KEY,
            "region": "us-east-1",
            "endpoint": self.url,
        }
        return {f"glue.{key}": value for key, value in keys.items()}

    @property
    def hadoop(self) -> dict[str, str]:
        """The configuration of Hadoop's client, by which the server is the store of the scheme s3a."""
        return {
            "fs.s3a.endpoint": self.url,
            "fs.s3a.endpoint.region": "us-east-1",
            "fs.s3a.access.key": ACCESS_KEY,
            "fs.s3a.secret.key": SECRET_KEY,
            "fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
            "fs.s3a.path.style.access": "true",
            "fs.s3a.connection.ssl.enabled": "false",
        }

    def io(self, kind: str, **properties: str) -> FileIO:
        """Return a FileIO of `FILE_IOS`."""
        from pyiceberg.io import load_file_io

        return load_file_io(self.properties | {"py-io-impl": FILE_IOS[kind]} | properties)

    @contextmanager
    def counted(self, delay: float = 0) -> Iterator[list[Request]]:
        """Yield a list that gets the requests of the block; each request takes `delay` seconds longer."""
        self.requests, self.delay = [], delay
        try:
            yield self.requests
        finally:
            self.delay = 0

    @contextmanager
    def faulty(self, **behaviour: Any) -> Iterator[None]:
        """Set attributes of the server for the length of a block."""
        before = {name: getattr(self, name) for name in behaviour}
        vars(self).update(behaviour)
        try:
            yield
        finally:
            vars(self).update(before)

    def around(self, app: Any) -> Any:
        """Return a WSGI application that counts, delays and fails the requests to another one."""

        def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
            key = environ["PATH_INFO"].lstrip("/").partition("/")[2]
            key = key or dict(parse_qsl(environ["QUERY_STRING"])).get("prefix", "")
            action = environ.get("HTTP_X_AMZ_TARGET", "").removeprefix("AWSGlue.")
            part, token = (environ.get(f"HTTP_{name}", "") for name in ("RANGE", "X_AMZ_SECURITY_TOKEN"))
            request = Request(environ["REQUEST_METHOD"], key, part, action, token)
            with self._lock:
                self.requests.append(request)
                refusal, loses = self.refuses(request), self.loses_answer(request)
            time.sleep(self.delay)
            if self.ignores_conditions:
                environ.pop("HTTP_IF_NONE_MATCH", None)
            if not refusal and loses:
                b"".join(app(environ, lambda *_: None))
                refusal = 500
            if refusal:
                start_response(f"{refusal} {_CODES[refusal]}", [("Content-Type", "application/xml")])
                message = "The provided token has expired." if refusal == 400 else f"of {ACCESS_KEY}"
                text = f"<Error><Code>{_CODES[refusal]}</Code><Message>{message}</Message></Error>"
                return [] if request.method == "HEAD" else [text.encode()]
            answer: Iterable[bytes] = app(environ, start_response)
            return answer

        return application


@contextmanager
def versioned_glue() -> Iterator[None]:
    """Let moto refuse an update if the table does not have the version that the request names, as Glue does."""
    from moto.core.exceptions import JsonRESTError
    from moto.glue.responses import GlueResponse

    update, lock = GlueResponse.update_table, threading.Lock()

    def update_version(response: GlueResponse) -> Any:
        parameters = response.parameters
        with lock:
            table = response.glue_backend.get_table(parameters["DatabaseName"], parameters["TableInput"]["Name"])
            if parameters.get("VersionId") not in {None, table.as_dict()["VersionId"]}:
                raise JsonRESTError("ConcurrentModificationException", "another version is the current one")
            return update(response)

    with patch.object(GlueResponse, "update_table", update_version):
        yield


def methods(requests: Iterable[Request]) -> dict[str, int]:
    """Return how many requests there are of each method."""
    return dict(Counter(request.method for request in requests))


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Run a server in a thread of this process; skip the test if moto is missing."""
    pytest.importorskip("moto.server", reason="no moto: `make setup` installs it")
    import boto3
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    # Clients look for credentials and regions at an address that only machines of AWS have.
    os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    store = S3Server()
    app = store.around(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=WSGIRequestHandler)
    store.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        keys = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY, "region_name": "us-east-1"}
        boto3.client("s3", endpoint_url=store.url, **keys).create_bucket(Bucket=BUCKET)
        with versioned_glue():
            yield store
    finally:
        server.shutdown()
        thread.join()
