"""A key management service of the tests' own, also for tables that Java shares (tests/peers/MasterKeys.java)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sparkmeta.storage.encryption import cipher, sealed, unsealed

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME = f"{__name__}.MasterKeys"


class MasterKeys:
    """A key client whose master keys are their ids, filled up to 16 bytes."""

    def __init__(self, properties: Mapping[str, Any] | None = None) -> None:
        self.properties = properties or {}
        self.unwrapped: list[str] = []

    def unwrap_key(self, wrapped_key: bytes, key_id: str) -> bytes:
        self.unwrapped.append(key_id)
        return unsealed(cipher(master_key(key_id)), wrapped_key, None, "the wrapped key")

    def wrap_key(self, key: bytes, key_id: str) -> bytes:
        return sealed(cipher(master_key(key_id)), key, None)


def master_key(key_id: str) -> bytes:
    return f"{key_id}0123456789012345"[:16].encode()
