"""A PostgreSQL server of the tests' own: in a temporary folder, on a Unix socket there, gone afterwards."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

# Where Debian has each version's; elsewhere they are on the path.
_PLACES = "/usr/lib/postgresql"


@contextmanager
def postgres_server() -> Iterator[str]:
    """The URI of a new server's database for SQLAlchemy; skips the test where there is no PostgreSQL, saying so."""
    pytest.importorskip("psycopg2", reason="no psycopg2: the driver for PostgreSQL")
    if (binaries := _binaries()) is None:
        pytest.skip(f"no PostgreSQL here: initdb is neither on the path nor below {_PLACES}")
    folder = Path(tempfile.mkdtemp(prefix="sparkmeta-pg-", dir="/tmp"))
    user = _owner(folder)
    data = folder / "data"
    options = f"-k {folder} -c listen_addresses='' -c max_connections=60"
    try:
        _run(user, binaries / "initdb", "-D", data, "-U", "iceberg", "-A", "trust", "--no-sync", "-E", "UTF8")
        _run(user, binaries / "pg_ctl", "-D", data, "-w", "-l", folder / "log", "-o", options, "start")
        try:
            yield f"postgresql+psycopg2://iceberg@/postgres?host={folder}"
        finally:
            _run(user, binaries / "pg_ctl", "-D", data, "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _binaries() -> Path | None:
    if (initdb := shutil.which("initdb")) is not None:
        return Path(initdb).resolve().parent
    versions = sorted(Path(_PLACES).glob("*/bin/initdb"), key=lambda path: int(path.parts[-3].partition(".")[0]))
    return versions[-1].parent if versions else None


def _owner(folder: Path) -> str | None:
    """Who runs the server: PostgreSQL refuses root, who hands the folder to another."""
    if os.geteuid() != 0:
        return None
    try:
        pwd.getpwnam("postgres")
    except KeyError:
        pytest.skip("root may not run PostgreSQL, and there is no user postgres")
    shutil.chown(folder, "postgres")
    return "postgres"


def _run(user: str | None, *command: str | Path) -> None:
    log = subprocess.DEVNULL
    done = subprocess.run(
        [str(part) for part in command], user=user, cwd="/", stdout=log, stderr=subprocess.PIPE, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
