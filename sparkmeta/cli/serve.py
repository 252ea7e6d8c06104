"""Define the command `serve`, and the parts that it shares with the job of the same name."""

from __future__ import annotations

import logging
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sparkmeta.cli.source import (
    CatalogSource,
    configured_catalog,
    takes_catalog,
)
from sparkmeta.errors import SettingError
from sparkmeta.session import SessionSource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sparkmeta.service.access import Principals, ServeOptions


SECRET = "SPARKMETA_SERVE_SECRET"
_LOG = "%(asctime)s %(levelname)s %(name)s %(message)s"


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=int, default=8181, show_default=True, help="The port to listen on.")
@click.option("--token-file", metavar="FILE", help="A file with the bearer token that all clients share.")
@click.option("--principals", metavar="FILE", help='A JSON file of users: {"<name>": {"token": ..., "tables": [...]}}.')
@click.option("--principal-header", metavar="NAME", help="The header in which a proxy with a token names its user.")
@click.option("--spool", metavar="FOLDER", help="The folder, local or on a store, of the pages of large plans.")
@click.option("--slots", type=int, help="How many plans run at a time.")
@click.option("--page-tasks", type=int, help="How many scan tasks a page has.")
@click.option("--wait-seconds", type=float, help="How long a client waits before it has to ask again.")
@click.option("--keep-seconds", type=float, help="How long plans, pages and tokens last.")
@click.option("--vend-credentials", is_flag=True, default=None, help="Hand out credentials that the catalog vends.")
@takes_catalog
def serve(source: CatalogSource, **arguments: Any) -> None:
    """Serve a catalog by Iceberg's REST protocol, read-only, with scans planned by this process and Spark.

    Engines read all of its tables, metadata trees of format version 4 too. Replicas share --spool, and a secret in the
    variable SPARKMETA_SERVE_SECRET. Stops on SIGTERM or SIGINT.
    """
    from sparkmeta.cli.source import cli_session
    from sparkmeta.service.access import check_options
    from sparkmeta.service.server import FAIR
    from sparkmeta.service.server import serve as service_of

    options = serve_options(source.properties, **arguments)
    check_options(options)
    if source.catalog is None:
        # This fails before Spark starts if there is no default.
        configured_catalog(None, source.properties)
    log_to_stderr()
    start = partial(cli_session, FAIR | source.conf, source.remote, show_log=source.verbose)
    # A Connect server may open other files than this machine, so connect to it before the first table is opened.
    sessions = SessionSource(start()) if source.remote or "SPARK_REMOTE" in os.environ else SessionSource(start=start)
    service_of(configured_catalog(source.catalog, source.properties), sessions, options=options).run()


def serve_options(
    spool_properties: Mapping[str, str],
    token_file: str | None = None,
    principals: str | None = None,
    principal_header: str | None = None,
    **options: Any,
) -> ServeOptions:
    """Return the options of a service from arguments of a command. Arguments that are None are left out.

    Raises:
        SettingError: a file can't be read, or its content is not valid.
    """
    from sparkmeta.service.access import ServeOptions

    known = {name: value for name, value in options.items() if value is not None}
    if secret := os.environ.get(SECRET):
        known["secret"] = secret.encode()
    users = _principals(token_file, principals, principal_header)
    return ServeOptions(principals=users, spool_properties=dict(spool_properties), **known)


def _principals(token_file: str | None, principals: str | None, header: str | None) -> Principals | None:
    from sparkmeta.service.access import one_token, principals_from_json

    if token_file and principals:
        raise SettingError("--token-file and --principals are mutually exclusive")
    if token_file:
        return one_token(_content(token_file), header)
    if principals:
        return principals_from_json(_content(principals), header)
    if header:
        raise SettingError("--principal-header needs --token-file or --principals: anybody can send a header")
    return None


def _content(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise SettingError(f"{file}: {error.strerror}") from error


def log_to_stderr() -> None:
    """Write the log of the service to stderr: a line for each request, whose message is a JSON object."""
    # A session that starts in the background redirects stderr for a while, but not this copy.
    stderr = os.fdopen(os.dup(2), "w", buffering=1)
    logging.basicConfig(level=logging.WARNING, format=_LOG, stream=stderr)
    logging.getLogger("sparkmeta").setLevel(logging.INFO)
