from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.postgres import postgres_server

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """Yield the URI of a PostgreSQL database."""
    with postgres_server() as uri:
        yield uri
