"""Unwrap and wrap the keys of encrypted tables with a key management service.

    master key (in the service) -> key encryption keys -> keys of manifest lists (both in the table's metadata)

The keys of manifests are in manifest lists, and the keys of data and delete files in manifests (`encryption.py`).
"""

from __future__ import annotations

import base64
import binascii
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from sparkmeta.errors import EncryptionError, InvalidArgumentError, UnsupportedError
from sparkmeta.spec.table_properties import ENCRYPTION_KEY_ID
from sparkmeta.storage.encryption import KEY_LENGTHS, cipher, sealed, unsealed

if TYPE_CHECKING:
    from sparkmeta.spec.metadata import Snapshot, TableMetadata

KMS_TYPE, KMS_IMPL = "encryption.kms-type", "encryption.kms-impl"
_ONLY_UNWRAPS = f"{KMS_IMPL} has no method wrap_key"
# The only format version in which encrypted tables are written.
_FORMAT_VERSION = 3
_DATA_KEY_LENGTH = "encryption.data-key-length"
_TIMESTAMP = "KEY_TIMESTAMP"
# Key encryption keys are replaced after two years, as in Iceberg's Java library.
_LIFESPAN_MS = 730 * 24 * 60 * 60 * 1000
# Seconds for which an unwrapped key encryption key is cached.
_REMEMBERED = 3600.0
_ID_BYTES = 16


# -- Key clients ------------------------------------------------------------------------------------------------------


class KeyClient(Protocol):
    """A client of a key management service. Several threads call it."""

    def unwrap_key(self, wrapped_key: bytes, key_id: str) -> bytes:
        """Decrypt a key that the master key `key_id` encrypts."""

    def wrap_key(self, key: bytes, key_id: str) -> bytes:
        """Encrypt a key with the master key `key_id`."""


@dataclass(frozen=True)
class _Unwrapping:
    """A key client that is a function and only unwraps keys: its tables can be read, but not written."""

    unwrap_key: Callable[[bytes, str], bytes] = field(repr=False)


class AwsKeys:
    """AWS KMS, with boto3. Its properties are `kms.endpoint`, and the region and credentials of `client.` and `s3.`."""

    def __init__(self, properties: Mapping[str, Any]) -> None:
        import boto3

        def first(*names: str) -> Any:
            return next((properties[name] for name in names if name in properties), None)

        self._client = boto3.client(
            "kms",
            endpoint_url=first("kms.endpoint"),
            region_name=first("client.region", "s3.region"),
            aws_access_key_id=first("client.access-key-id", "s3.access-key-id"),
            aws_secret_access_key=first("client.secret-access-key", "s3.secret-access-key"),
            aws_session_token=first("client.session-token", "s3.session-token"),
        )
        self._algorithm = properties.get("kms.encryption-algorithm-spec", "SYMMETRIC_DEFAULT")

    def unwrap_key(self, wrapped_key: bytes, key_id: str) -> bytes:
        response = self._client.decrypt(CiphertextBlob=wrapped_key, KeyId=key_id, EncryptionAlgorithm=self._algorithm)
        return bytes(response["Plaintext"])

    def wrap_key(self, key: bytes, key_id: str) -> bytes:
        response = self._client.encrypt(Plaintext=key, KeyId=key_id, EncryptionAlgorithm=self._algorithm)
        return bytes(response["CiphertextBlob"])


class GcpKeys:
    """Google Cloud KMS, with google-cloud-kms, and the token `gcs.oauth2.token` or the environment's credentials."""

    def __init__(self, properties: Mapping[str, Any]) -> None:
        from google.cloud import kms

        credentials = None
        if (token := properties.get("gcs.oauth2.token")) is not None:
            from google.oauth2.credentials import Credentials

            credentials = Credentials(token)  # type: ignore[no-untyped-call]
        self._client = kms.KeyManagementServiceClient(credentials=credentials)

    def unwrap_key(self, wrapped_key: bytes, key_id: str) -> bytes:
        return bytes(self._client.decrypt(request={"name": key_id, "ciphertext": wrapped_key}).plaintext)

    def wrap_key(self, key: bytes, key_id: str) -> bytes:
        return bytes(self._client.encrypt(request={"name": key_id, "plaintext": key}).ciphertext)


# Type -> the client, and the extra that installs its package.
_TYPES: dict[str, tuple[Callable[[Mapping[str, Any]], KeyClient], str]] = {
    "aws": (AwsKeys, "encryption-aws"),
    "gcp": (GcpKeys, "encryption-gcp"),
}
# Java class -> type.
_JAVA_CLIENTS = {
    "org.apache.iceberg.aws.AwsKeyManagementClient": "aws",
    "org.apache.iceberg.gcp.GcpKeyManagementClient": "gcp",
}


def _key_client(properties: Mapping[str, Any]) -> KeyClient | _Unwrapping:
    """Return the key client that properties describe.

    Raises:
        InvalidArgumentError: the properties contradict each other, or name no client.
        UnsupportedError: there is no client for the type, or its package is not installed.
    """
    kind, implementation = properties.get(KMS_TYPE), properties.get(KMS_IMPL)
    if kind is not None and implementation is not None:
        raise InvalidArgumentError(f"{KMS_TYPE} and {KMS_IMPL} are both set: only one may be")
    if isinstance(implementation, str):
        kind = _JAVA_CLIENTS.get(implementation)
    if kind is not None:
        make, extra = _TYPES.get(str(kind).lower(), (None, ""))
        if make is None:
            raise UnsupportedError(
                f"{KMS_TYPE}: there is no client for {kind!r}: use {', '.join(_TYPES)} or {KMS_IMPL}"
            )
        try:
            return make(properties)
        except ImportError as error:
            raise UnsupportedError(f"{KMS_TYPE} {kind}: {error.name} is not installed: sparkmeta[{extra}]") from None
    client = _implementation(implementation, properties) if isinstance(implementation, str) else implementation
    if hasattr(client, "unwrap_key"):
        return client  # type: ignore[return-value]  # checked when it is called
    if callable(client):
        return _Unwrapping(client)
    raise InvalidArgumentError(f"{KMS_IMPL}: {type(client).__name__} has no method unwrap_key")


def _implementation(name: str, properties: Mapping[str, Any]) -> object:
    """Import a full name. Return an instance if it names a class, and otherwise the object, such as a function."""
    module, _, member = name.rpartition(".")
    try:
        implementation = getattr(import_module(module), member)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidArgumentError(f"{KMS_IMPL}: {name} can't be imported: {error}") from None
    return implementation(properties) if isinstance(implementation, type) else implementation


# -- Keys of a table's metadata ---------------------------------------------------------------------------------------


class HasKeys(Protocol):
    """What gives access to a catalog's keys: the files on the driver."""

    @property
    def keys(self) -> TableKeys | None:
        """The keys of encrypted tables; None if no key client is configured."""


class TableKeys:
    """The keys of a catalog's encrypted tables."""

    def __init__(self, properties: Mapping[str, Any]) -> None:
        self._properties = properties
        self._client: KeyClient | _Unwrapping | None = None
        # Wrapped key -> the key, and the time at which it expires from the cache.
        self._unwrapped: dict[bytes, tuple[bytes, float]] = {}

    @staticmethod
    def of(properties: Mapping[str, Any]) -> TableKeys | None:
        """Return the keys that the key client in a catalog's properties unwraps; None if there is no key client."""
        return TableKeys(properties) if properties.keys() & {KMS_TYPE, KMS_IMPL} else None

    def unwrapped(self, entry: Mapping[str, Any], table: str) -> bytes:
        """Unwrap a key encryption key, and cache it for an hour.

        Args:
            entry: the key in the table's metadata.
            table: names the table in errors.

        Raises:
            EncryptionError: the key client refuses, or fails.
        """
        wrapped = _encrypted(entry, table)
        key, expiry = self._unwrapped.get(wrapped, (b"", 0.0))
        if time.monotonic() >= expiry:
            key = self._call_client("unwrap", wrapped, entry["encrypted-by-id"], table)
            self._unwrapped[wrapped] = key, time.monotonic() + _REMEMBERED
        return key

    def wrapped(self, key: bytes, key_id: str, table: str) -> bytes:
        """Encrypt a new key encryption key with the master key. Raises EncryptionError, as `unwrapped` does."""
        wrapped = self._call_client("wrap", key, key_id, table)
        self._unwrapped[wrapped] = key, time.monotonic() + _REMEMBERED
        return wrapped

    def refuse_wrapping(self, key_id: str, table: str) -> None:
        """Raise UnsupportedError if the key client can't wrap new keys."""
        if self._client is None:
            self._client = _key_client(self._properties)
        if not hasattr(self._client, "wrap_key"):
            raise UnsupportedError(f"{table}: the key client can't wrap a new key with key {key_id}: {_ONLY_UNWRAPS}")

    def _call_client(self, verb: str, key: bytes, key_id: str, table: str) -> bytes:
        if self._client is None:
            self._client = _key_client(self._properties)
        try:
            answer = getattr(self._client, f"{verb}_key")(key, key_id)
        except Exception as error:  # noqa: BLE001  each service's client has its own errors
            # The error and its text may contain keys.
            reason = f"the key client failed to {verb} a key with key {key_id}: {_reason(error)}"
            raise EncryptionError(f"{table}: {reason}") from None
        if not isinstance(answer, bytes | bytearray | memoryview):
            reason = f"the key client returned {type(answer).__name__}, not bytes, for key {key_id}"
            raise EncryptionError(f"{table}: {reason}")
        if verb == "unwrap" and len(answer) not in KEY_LENGTHS:
            reason = f"the key client returned {len(answer)} bytes for key {key_id}, not 16, 24 or 32"
            raise EncryptionError(f"{table}: {reason}")
        return bytes(answer)


def _reason(error: Exception) -> str:
    """Return the type of an error, with the error code of AWS. The error's text is left out: it may contain keys."""
    response = getattr(error, "response", None)
    code = response.get("Error", {}).get("Code") if isinstance(response, dict) else None
    return type(error).__name__ + (f" ({code})" if code else "")


def _encrypted(entry: Mapping[str, Any], table: str) -> bytes:
    try:
        return base64.b64decode(entry["encrypted-key-metadata"], validate=True)
    except (KeyError, TypeError, binascii.Error):
        key = entry.get("key-id")
        raise EncryptionError(f"{table}: encryption key {key} has no encrypted-key-metadata in base64") from None


def manifest_list_key(files: HasKeys, metadata: TableMetadata, snapshot: Snapshot) -> bytes | None:
    """Return the key metadata of a snapshot's manifest list; None if it is not encrypted.

    Raises:
        EncryptionError: the table's metadata lacks the key, no key client is configured, the client refuses, or the
            key is wrong.
    """
    if snapshot.key_id is None:
        return None
    location, key_id = metadata.location, snapshot.key_id
    keys = _keys(files, location, f"snapshot {snapshot.snapshot_id} is encrypted (key-id {key_id})")
    entry, wrapping = _entry(metadata, key_id), None
    if entry is not None:
        wrapping = _entry(metadata, str(entry.get("encrypted-by-id")))
    if entry is None or wrapping is None:
        missing = key_id if entry is None else entry.get("encrypted-by-id")
        raise EncryptionError(f"{location}: snapshot {snapshot.snapshot_id}: encryption-keys has no key {missing}")
    aad, aes = _timestamp(wrapping, location).encode(), cipher(keys.unwrapped(wrapping, location))
    what = f"{location}: key {key_id} of snapshot {snapshot.snapshot_id}, encrypted by key {wrapping['key-id']}"
    return unsealed(aes, _encrypted(entry, location), aad, what)


def _entry(metadata: TableMetadata, key_id: str) -> Mapping[str, Any] | None:
    return next((entry for entry in _entries(metadata) if entry.get("key-id") == key_id), None)


def _entries(metadata: TableMetadata) -> Sequence[Mapping[str, Any]]:
    return getattr(metadata, "encryption_keys", [])


def _timestamp(entry: Mapping[str, Any], table: str) -> str:
    timestamp = (entry.get("properties") or {}).get(_TIMESTAMP)
    if not isinstance(timestamp, str):
        raise EncryptionError(f"{table}: encryption key {entry.get('key-id')} has no property {_TIMESTAMP}")
    return timestamp


def _keys(files: HasKeys, table: str, why: str) -> TableKeys:
    if files.keys is None:
        reason = f"open the table with the property {KMS_TYPE} or {KMS_IMPL}, which name a key client"
        raise EncryptionError(f"{table}: {why}: {reason}")
    return files.keys


# -- New keys ---------------------------------------------------------------------------------------------------------


def data_key_length(metadata: TableMetadata) -> int | None:
    """Return the length of a table's new data keys in bytes; None if new files are not encrypted.

    Raises:
        InvalidArgumentError: the table's property is not a length of AES keys.
    """
    if ENCRYPTION_KEY_ID not in metadata.properties:
        return None
    text = metadata.properties.get(_DATA_KEY_LENGTH, "16")
    if text not in map(str, KEY_LENGTHS):
        raise InvalidArgumentError(f"{metadata.location}: {_DATA_KEY_LENGTH} is {text!r}, not 16, 24 or 32")
    return int(text)


def refuse_encrypted_commit(files: HasKeys, metadata: TableMetadata) -> None:
    """Raise an error if a table's encryption prevents new snapshots.

    Raises:
        UnsupportedError: the table's format version is not 3, its key id is missing, or the key client can't wrap a
            new key.
        EncryptionError: no key client is configured, or it refuses.
    """
    from sparkmeta.spec.metadata import is_encrypted  # tasks don't load it

    if not is_encrypted(metadata):
        return
    location, problem = metadata.location, None
    if metadata.format_version != _FORMAT_VERSION:
        problem = f"it has format version {metadata.format_version}, not {_FORMAT_VERSION}"
    elif ENCRYPTION_KEY_ID not in metadata.properties:
        problem = f"its property {ENCRYPTION_KEY_ID} is missing"
    if problem is not None:
        raise UnsupportedError(f"{location}: the table is encrypted, and can't be committed to: {problem}")
    data_key_length(metadata)
    cipher(bytes(_ID_BYTES))  # raises if the package is missing
    master = metadata.properties[ENCRYPTION_KEY_ID]
    keys = _keys(files, location, f"the table is encrypted by key {master}")
    wrapping = _wrapping(metadata)
    if wrapping is None:
        keys.refuse_wrapping(master, location)
    else:
        keys.unwrapped(wrapping, location)


def with_manifest_list_key(
    files: HasKeys, metadata: TableMetadata, key_metadata: bytes, length: int
) -> tuple[TableMetadata, str]:
    """Return metadata that contains the key of a new manifest list, and the key's id.

    The newest key encryption key of the table's master key encrypts it. It is replaced every two years.

    Args:
        files: gives access to the key client.
        metadata: the table's metadata.
        key_metadata: the key metadata of the manifest list.
        length: the length of a new key encryption key in bytes.

    Raises:
        EncryptionError: no key client is configured, or it refuses.
        UnsupportedError: the key client can't wrap keys.
    """
    location, master = metadata.location, metadata.properties[ENCRYPTION_KEY_ID]
    keys, now = _keys(files, location, f"the table is encrypted by key {master}"), int(time.time() * 1000)
    entries = list(_entries(metadata))
    wrapping = _wrapping(metadata)
    if wrapping is None:
        secret = os.urandom(length)
        wrapping = {
            "key-id": _new_id(),
            "encrypted-key-metadata": _base64(keys.wrapped(secret, master, location)),
            "encrypted-by-id": master,
            "properties": {_TIMESTAMP: str(now)},
        }
        entries.append(dict(wrapping))
    aes = cipher(keys.unwrapped(wrapping, location))
    encrypted = sealed(aes, key_metadata, _timestamp(wrapping, location).encode())
    key_id = _new_id()
    by_id = {"encrypted-by-id": wrapping["key-id"]}
    entries.append({"key-id": key_id, "encrypted-key-metadata": _base64(encrypted)} | by_id)
    return metadata.model_copy(update={"encryption_keys": entries}), key_id


def _wrapping(metadata: TableMetadata) -> Mapping[str, Any] | None:
    """Return the newest key encryption key of the table's master key; None if each is too old for manifest lists."""
    master, oldest = metadata.properties[ENCRYPTION_KEY_ID], int(time.time() * 1000) - _LIFESPAN_MS
    entry: Mapping[str, Any]
    for entry in reversed(_entries(metadata)):
        timestamp = str((entry.get("properties") or {}).get(_TIMESTAMP))
        if entry.get("encrypted-by-id") == master and timestamp.isdecimal() and int(timestamp) > oldest:
            return entry
    return None


def _new_id() -> str:
    return _base64(os.urandom(_ID_BYTES))


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
