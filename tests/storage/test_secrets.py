"""Which values of properties are credentials, and what remains of a text without them."""

from __future__ import annotations

from typing import Any

import pytest

from sparkmeta.storage.content import secrets_in, without_secrets

PROPERTIES: list[tuple[dict[str, Any], str]] = [
    ({"uri": "postgresql://me:the-passw0rd@host/db"}, "the-passw0rd"),
    ({"uri": "postgresql://me:p%40ss%3Aword@host/db"}, "p@ss:word"),
    ({"uri": "postgresql://me:p%40ss%3Aword@host/db"}, "p%40ss%3Aword"),
    ({"uri": "postgresql://host/db?user=me&password=of-the-query"}, "of-the-query"),
    ({"uri": "mysql://host/db?passwd=of-the-query"}, "of-the-query"),
    ({"oauth2-server-uri": "https://me:the-passw0rd@host"}, "the-passw0rd"),
    ({"credential": "client-id:client-secret"}, "client-secret"),
    ({"header.Authorization": "Bearer the-token"}, "the-token"),
    ({"header.X-Api-Key": "the-api-key"}, "the-api-key"),
    ({"header.Cookie": "session=the-session"}, "session=the-session"),
    ({"auth": {"type": "basic", "basic": {"username": "me", "password": "the-passw0rd"}}}, "the-passw0rd"),
    ({"s3.session-token": "the-session"}, "the-session"),
    ({"adls.connection-string": "AccountKey=of-the-account"}, "AccountKey=of-the-account"),
    ({"gcs.oauth2.token": "the-token"}, "the-token"),
]


@pytest.mark.parametrize(("properties", "secret"), PROPERTIES, ids=lambda value: str(value)[:30])
def test_credentials_are_replaced(properties: dict[str, Any], secret: str) -> None:
    assert without_secrets(f"refused: {secret!s}!", properties) == "refused: ***!"


def test_what_is_no_credential_stays() -> None:
    properties = {"uri": "https://me@host/path?warehouse=orders", "warehouse": "s3://bucket", "s3.region": "eu-north-1"}
    assert secrets_in(properties | {"header.Authorization": "Bearer abc", "token": ""}) == ["Bearer abc"]
