"""Who may read which tables."""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from sparkmeta.errors import SettingError
from sparkmeta.service.errors import FORBIDDEN, UNAUTHORIZED, ApiError

if TYPE_CHECKING:
    from collections.abc import Sequence

_BEARER = "bearer "
_SHORTEST_TOKEN = 16


@dataclass(frozen=True)
class Principal:
    """A user of the service.

    Attributes:
        name: the name, for logs and tokens.
        tables: patterns of the full names of tables that the user may read, such as `sales.*`.
    """

    name: str
    tables: tuple[str, ...] = ("*",)

    def may_read(self, table: tuple[str, ...]) -> bool:
        """Return whether the user may read a table, given by its names.

        A pattern must also match when both are in lower case, since some catalogs ignore case: `sales.[!s]*` does not
        allow `sales.SECRET`.
        """
        name = ".".join(table)
        return any(fnmatchcase(name, pattern) and fnmatchcase(name.lower(), pattern.lower()) for pattern in self.tables)

    def check(self, table: tuple[str, ...]) -> None:
        """Raise ApiError if the user may not read a table."""
        if not self.may_read(table):
            raise ApiError(403, FORBIDDEN, f"{self.name} may not read {'.'.join(table)}")


ANYBODY = Principal("anybody")


@dataclass(frozen=True)
class Principals:
    """The users of a service by their bearer tokens.

    Attributes:
        by_token: the users.
        header: the header in which a proxy that has a token names the user whom it has authenticated, by OIDC or
            otherwise. The token's patterns hold for all of its users.
    """

    by_token: Mapping[str, Principal] = field(repr=False)
    header: str | None = None

    def __post_init__(self) -> None:
        if not self.by_token:
            raise SettingError("there are no principals: no client could use the service")
        for token, principal in self.by_token.items():
            if not token.isascii():
                raise SettingError(f"the token of {principal.name} has characters that are not ASCII")
            if len(token) < _SHORTEST_TOKEN:
                problem = f"expected at least {_SHORTEST_TOKEN} characters"
                raise SettingError(f"the token of {principal.name} has {len(token)} characters: {problem}")

    def authenticated(self, headers: Mapping[str, str]) -> Principal:
        """Return the user of a request. Raises ApiError if its token is missing or unknown."""
        value = headers.get("authorization", "")
        sent = value[len(_BEARER) :].strip().encode() if value.lower().startswith(_BEARER) else b""
        # All are compared, so that the time of an answer reveals nothing.
        matching = [user for token, user in self.by_token.items() if hmac.compare_digest(token.encode(), sent)]
        if not matching:
            raise ApiError(401, UNAUTHORIZED, "the request has no valid bearer token")
        (principal,) = matching
        if self.header is None:
            return principal
        if not (name := headers.get(self.header.lower(), "").strip()):
            raise ApiError(401, UNAUTHORIZED, f"the request has no header {self.header}")
        return Principal(f"{principal.name}/{name}", principal.tables)


def one_token(token: str, header: str | None = None) -> Principals:
    """Return the principals of a service whose users share a token."""
    return Principals({token.strip(): Principal("client")}, header)


def principals_from_json(text: str, header: str | None = None) -> Principals:
    """Return the principals in a JSON file: `{"<name>": {"token": "<token>", "tables": ["sales.*"]}}`.

    Raises:
        SettingError: the file is something else, or two principals have one name or token.
    """
    try:
        document = json.loads(text, object_pairs_hook=_without_duplicates)
    except json.JSONDecodeError as error:
        raise SettingError(f"the principals are not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise SettingError("the principals are not a JSON object of names")
    by_token: dict[str, Principal] = {}
    for name, entry in document.items():
        token, tables = _entry(name, entry)
        if token in by_token:
            raise SettingError(f"the principals {by_token[token].name} and {name} have the same token")
        by_token[token] = Principal(name, tuple(tables))
    return Principals(by_token, header)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if duplicates := {name for name in names if names.count(name) > 1}:
        raise SettingError(f"the principals have several entries named {', '.join(sorted(duplicates))}")
    return dict(pairs)


def _entry(name: str, entry: Any) -> tuple[str, Sequence[str]]:
    token = entry.get("token") if isinstance(entry, dict) else None
    tables = entry.get("tables", ["*"]) if isinstance(entry, dict) else None
    if not isinstance(token, str) or not isinstance(tables, list) or not all(isinstance(x, str) for x in tables):
        raise SettingError(f"the principal {name} needs a token, and tables as a list of patterns")
    if unknown := set(entry) - {"token", "tables"}:
        raise SettingError(f"the principal {name} has the unknown keys {', '.join(sorted(unknown))}")
    return token.strip(), tables
