from __future__ import annotations

import pickle

import pyiceberg.exceptions
import pytest

from sparkmeta.errors import (
    CorruptFileError,
    InvalidFilterError,
    NoSuchSnapshotError,
    NoSuchTableError,
    NotFoundError,
    SparkmetaError,
    UnsupportedError,
    ValidationError,
)


@pytest.mark.parametrize(
    ("kind", "known_as"),
    [
        (ValidationError, pyiceberg.exceptions.ValidationError),
        (CorruptFileError, ValidationError),
        (UnsupportedError, NotImplementedError),
        (NoSuchTableError, pyiceberg.exceptions.NoSuchTableError),
        (NoSuchSnapshotError, ValueError),
        (NotFoundError, FileNotFoundError),
        (InvalidFilterError, ValueError),
    ],
)
def test_one_family(kind: type[Exception], known_as: type[Exception]) -> None:
    assert issubclass(kind, SparkmetaError)
    assert issubclass(kind, known_as)


@pytest.mark.parametrize(
    "value", [7, None, "text", b"bytes", "x" * 10_000, b"\x00" * 10_000, {"a": [1, {"b": 2}]}, object]
)
def test_a_corrupt_file_is_named_and_travels(value: object) -> None:
    error = CorruptFileError("s3://b/f.avro", "schema.fields[0]", value, "it is wrong")
    assert str(error).startswith("s3://b/f.avro: schema.fields[0] is ")
    assert str(error).endswith(": it is wrong")
    assert len(str(error)) < 1000
    travelled = pickle.loads(pickle.dumps(error))
    assert str(travelled) == str(error)
    assert (travelled.location, travelled.field, travelled.problem) == (
        "s3://b/f.avro",
        "schema.fields[0]",
        "it is wrong",
    )


def test_a_long_field_is_shortened() -> None:
    error = CorruptFileError("f", ".".join(["element"] * 500) + ".id", 1, "p")
    assert len(error.field) < 210
    assert error.field.endswith(".id")
