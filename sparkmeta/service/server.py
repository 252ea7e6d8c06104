"""Start and stop a planning service."""

from __future__ import annotations

import logging
import signal
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from sparkmeta.catalog import Catalog, load_catalog
from sparkmeta.errors import SessionError, UnsupportedError
from sparkmeta.service.access import ServeOptions, check_options
from sparkmeta.session import SessionSource, map_arrow

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

FAIR = {
    "spark.scheduler.mode": "FAIR",
    "spark.scheduler.allocation.file": (Path(__file__).parent / "fair.xml").as_uri(),
}
"""Settings of a new session that keep slow plans from holding up short ones."""

_SWEEP_SECONDS = 30.0
_STOP_SECONDS = 10
_KEEP_ALIVE_SECONDS = 300
_BACKLOG = 2048

_log = logging.getLogger("sparkmeta.serve")


class Service:
    """A planning service, which runs from `start` to `stop`, or as a context manager.

    Args:
        catalog: the catalog that it serves.
        sessions: the session that makes the plans of many manifests. If none runs, it starts in the background.
        options: how it serves.

    Raises:
        SettingError: the options are invalid, or let anyone read the catalog without authentication.
        UnsupportedError: the extra `serve` is not installed.
    """

    def __init__(self, catalog: Catalog, sessions: SessionSource, options: ServeOptions) -> None:
        check_options(options)
        try:
            import uvicorn

            from sparkmeta.service.app import App
            from sparkmeta.service.planning import Planning
            from sparkmeta.service.plans import Tables
        except ModuleNotFoundError as error:
            raise UnsupportedError(f"the service needs {error.name}: pip install 'sparkmeta[serve]'") from error
        self.options, self._sessions = options, sessions
        self._planning = Planning(sessions, options)
        self._app = App(Tables(catalog, sessions), self._planning, options)
        config = uvicorn.Config(
            self._app,
            host=options.host,
            port=options.port,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            # Clients request plans over connections that were idle while Spark read rows, and don't retry them.
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_STOP_SECONDS,
        )
        self._server = uvicorn.Server(config)
        self._port = 0
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def uri(self) -> str:
        """The URI to give to clients, once the service has started."""
        host = f"[{self.options.host}]" if ":" in self.options.host else self.options.host
        return f"http://{host}:{self._port or self.options.port}"

    @property
    def spool(self) -> str:
        """The folder of pages."""
        return self._planning.spool.folder

    def run(self) -> None:
        """Serve until the process gets SIGTERM or SIGINT. Running requests are answered before it returns.

        After SIGINT it raises KeyboardInterrupt instead.

        Raises:
            SessionError: the port is taken.
        """
        listening = self._begin()
        # uvicorn raises SIGTERM again once it has stopped. This must not end the process before the plans have ended.
        in_main = threading.current_thread() is threading.main_thread()
        previous = signal.signal(signal.SIGTERM, lambda *_: None) if in_main else None
        try:
            self._server.run(sockets=[listening])
        finally:
            self._end()
            if previous is not None:
                signal.signal(signal.SIGTERM, previous)

    def start(self) -> Self:
        """Serve in a thread of this process.

        Raises:
            SessionError: the port is taken.
        """
        listening = self._begin()
        self._server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]  # older uvicorns have it
        self._thread = threading.Thread(target=self._serve, args=[listening], name="sparkmeta-serve", daemon=True)
        self._thread.start()
        while not self._server.started:
            self._thread.join(0.01)
            if not self._thread.is_alive():
                self._end()
                raise SessionError(f"the service can't serve on {self.uri}")
        return self

    def _serve(self, listening: socket.socket) -> None:
        with suppress(SystemExit):
            self._server.run(sockets=[listening])

    def stop(self) -> None:
        """Stop serving. Running requests are answered first, for some seconds."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join()
        self._end()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _begin(self) -> socket.socket:
        """Return the socket that listens, after all threads have started."""
        host, port = self.options.host, self.options.port
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            listening = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        except OSError as error:
            self._end()
            raise SessionError(f"the service can't listen on {host}:{port}: {error.strerror or error}") from error
        # Without this, the body of a response waits up to 40 ms for the client to acknowledge its headers.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._port = listening.getsockname()[1]
        _log.info("serving on %s", self.uri)
        threading.Thread(target=self._warm_up, name="sparkmeta-warm-up", daemon=True).start()
        threading.Thread(target=self._sweep, name="sparkmeta-sweep", daemon=True).start()
        return listening

    def _end(self) -> None:
        if not self._stopped.is_set():
            self._stopped.set()
            self._planning.close()
            self._app.close()

    def _warm_up(self) -> None:
        """Start the session and its Python workers, and load the modules of plans, before a client needs them."""
        try:
            map_arrow(self._sessions.get().range(1), _loaded, "id bigint").collect()
        except Exception:  # noqa: BLE001  it is logged, and the service stays unhealthy
            _log.exception("the session does not run tasks of Python")
            return
        self._app.is_ready = True

    def _sweep(self) -> None:
        seconds = min(_SWEEP_SECONDS, self.options.keep_seconds / 4)
        while not self._stopped.wait(seconds):
            try:
                self._planning.sweep()
            except Exception:  # noqa: BLE001  the next sweep may succeed
                _log.exception("old plans could not be deleted")


def _loaded(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import sparkmeta.manifests.decoder
    import sparkmeta.service.pages  # noqa: F401

    yield from batches


def serve(
    catalog: Catalog | str | None = None,
    spark: SparkSession | SessionSource | None = None,
    *,
    options: ServeOptions | None = None,
    **changed: Any,
) -> Service:
    """Serve a catalog's tables by Iceberg's REST catalog protocol, read-only, with scans planned by this process.

        with sm.serve("prod", port=8181) as service:
            print(service.uri)

    Clients get every table of the catalog, metadata trees as format version 3, and plans of scans.

    Args:
        catalog: the catalog, or its name in pyiceberg's configuration.
        spark: the session that makes the plans of many manifests, or its source; by default the active session, or else
            a new local one, which starts in the background.
        options: see `ServeOptions`.
        changed: options by name, which take precedence over `options`.

    Returns:
        The service, which `start()`, `run()` or a `with` block starts.

    Raises:
        SettingError: the options are invalid, or let anyone read the catalog without authentication.
        UnsupportedError: the extra `serve` is not installed.
    """
    opened = catalog if isinstance(catalog, Catalog) else load_catalog(catalog)
    sessions = spark if isinstance(spark, SessionSource) else SessionSource(spark)
    return Service(opened, sessions, replace(options or ServeOptions(), **changed))
