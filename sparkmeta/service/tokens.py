"""Signed tokens of plans and pages, which every replica with the same secret accepts."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from dataclasses import dataclass

_SIGNATURE_BYTES = 16


@dataclass(frozen=True)
class Ticket:
    """The content of a token.

    Attributes:
        result: the plan's name in the spool.
        page: the page's name; empty in the id of a plan.
        table: the names of the table.
        principal: the name of the user who may use it.
        expires: the time at which it becomes invalid, in seconds since 1970.
        request: the id of the request that the plan was made for; empty in tokens of pages.
    """

    result: str
    page: str
    table: tuple[str, ...]
    principal: str
    expires: int
    request: str = ""


class Signer:
    """Writes and reads tokens with a secret."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def token(self, ticket: Ticket) -> str:
        """Return the token of a ticket."""
        fields = [
            ticket.result, ticket.page, ticket.table, ticket.principal, ticket.expires, ticket.request
        ]  # fmt: skip
        payload = json.dumps(fields, separators=(",", ":")).encode()
        return f"{_text(payload)}.{_text(self._signature(payload))}"

    def ticket(self, token: str) -> Ticket | None:
        """Return the ticket of a token; None if this secret has not signed it, or it has expired."""
        try:
            payload, signature = (base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in token.split("."))
            # The last letter of Base64 has bits that decoding ignores.
            if f"{_text(payload)}.{_text(signature)}" != token:
                return None
            if not hmac.compare_digest(signature, self._signature(payload)):
                return None
            result, page, table, principal, expires, request = json.loads(payload)
        except ValueError:
            return None
        ticket = Ticket(result, page, tuple(table), principal, expires, request)
        return ticket if time.time() < expires else None

    def _signature(self, payload: bytes) -> bytes:
        return hmac.new(self._secret, payload, hashlib.sha256).digest()[:_SIGNATURE_BYTES]


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
