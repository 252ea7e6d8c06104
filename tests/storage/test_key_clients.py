"""Key clients of AWS and Google Cloud, and how properties name one."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import boto3
import pytest

from sparkmeta.errors import EncryptionError, UnsupportedError
from sparkmeta.storage.keys import TableKeys
from tests.master_keys import MasterKeys
from tests.s3 import ACCESS_KEY, SECRET_KEY

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.s3 import S3Server

KEY = b"sixteen secrets."


def entry(wrapped: bytes, key_id: str) -> dict[str, Any]:
    import base64

    return {"key-id": "k", "encrypted-key-metadata": base64.b64encode(wrapped).decode(), "encrypted-by-id": key_id}


@pytest.fixture
def aws(s3: S3Server) -> dict[str, Any]:
    """The properties of moto's KMS, which is on the server of the tests for S3."""
    credentials = {"client.access-key-id": ACCESS_KEY, "client.secret-access-key": SECRET_KEY}
    return {"encryption.kms-type": "aws", "kms.endpoint": s3.url, "client.region": "us-east-1"} | credentials


def test_aws(aws: dict[str, Any]) -> None:
    service = boto3.client(
        "kms", endpoint_url=aws["kms.endpoint"], region_name="us-east-1", aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
    )  # fmt: skip
    master, other = (service.create_key()["KeyMetadata"]["KeyId"] for _ in range(2))
    keys = TableKeys.of(aws)
    assert keys is not None
    wrapped = keys.wrapped(KEY, master, "t")
    assert KEY not in wrapped
    assert keys.unwrapped(entry(wrapped, master), "t") == KEY
    # As Java's client has wrapped a key.
    encrypted = service.encrypt(KeyId=master, Plaintext=KEY)["CiphertextBlob"]
    java = aws | {"encryption.kms-impl": "org.apache.iceberg.aws.AwsKeyManagementClient"}
    del java["encryption.kms-type"]
    fresh = TableKeys.of(java)
    assert fresh is not None
    assert fresh.unwrapped(entry(encrypted, master), "t") == KEY
    problem = r"^t: the key client failed to unwrap a key with key no-such: NotFoundException \(NotFoundException\)$"
    with pytest.raises(EncryptionError, match=problem):
        fresh.unwrapped(entry(b"no ciphertext" + wrapped, "no-such"), "t")
    with pytest.raises(EncryptionError, match=f"^t: the key client failed to unwrap a key with key {other}: ") as error:
        TableKeys(aws).unwrapped(entry(wrapped, other), "t")
    assert SECRET_KEY not in str(error.value)


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Google's client, replaced by one with the same methods."""
    master = MasterKeys()

    class Client:
        def __init__(self, credentials: Any) -> None:
            assert credentials == "token: t0"

        def decrypt(self, request: dict[str, Any]) -> Any:
            return SimpleNamespace(plaintext=master.unwrap_key(request["ciphertext"], request["name"]))

        def encrypt(self, request: dict[str, Any]) -> Any:
            return SimpleNamespace(ciphertext=master.wrap_key(request["plaintext"], request["name"]))

    def install() -> None:
        cloud, credentials = ModuleType("google.cloud"), ModuleType("google.oauth2.credentials")
        cloud.kms = SimpleNamespace(KeyManagementServiceClient=Client)  # type: ignore[attr-defined]
        credentials.Credentials = lambda token: f"token: {token}"  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "google.cloud", cloud)
        monkeypatch.setitem(sys.modules, "google.oauth2.credentials", credentials)

    return install


@pytest.mark.parametrize(
    "properties",
    [{"encryption.kms-type": "GCP"}, {"encryption.kms-impl": "org.apache.iceberg.gcp.GcpKeyManagementClient"}],
)
def test_google_cloud(google: Callable[..., None], properties: dict[str, Any]) -> None:
    google()
    keys = TableKeys.of(properties | {"gcs.oauth2.token": "t0"})
    assert keys is not None
    name = "projects/p/locations/l/keyRings/r/cryptoKeys/k"
    wrapped = keys.wrapped(KEY, name, "t")
    fresh = TableKeys.of(properties | {"gcs.oauth2.token": "t0"})
    assert fresh is not None
    assert fresh.unwrapped(entry(wrapped, name), "t") == KEY


def test_a_package_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("google.cloud.kms", "google.cloud", "boto3"):
        monkeypatch.setitem(sys.modules, module, None)
    for kind, package in (("aws", "boto3"), ("gcp", "google.cloud")):
        with pytest.raises(
            UnsupportedError, match=rf"^encryption.kms-type {kind}: {package}.* is not installed: spark"
        ):
            TableKeys({"encryption.kms-type": kind}).unwrapped(entry(b"wrapped", "k"), "t")


def test_no_property_names_a_client() -> None:
    assert TableKeys.of({"s3.region": "us-east-1", "kms.endpoint": "http://x"}) is None
