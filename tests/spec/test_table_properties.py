"""Table properties are text; a value that does not fit is refused by name."""

from __future__ import annotations

import re

import pytest

from sparkmeta.errors import ValidationError
from sparkmeta.spec.table_properties import choice_property, flag_property, number_property


@pytest.mark.parametrize(
    ("text", "number"), [(None, 7), ("0", 0), ("12", 12), ("007", 7), ("9223372036854775807", 2**63 - 1)]
)
def test_numbers(text: str | None, number: int) -> None:
    assert number_property({} if text is None else {"size": text}, "size", 7) == number


@pytest.mark.parametrize(
    "text", ["", "-1", "+1", "1.0", "1k", " 1", "1_000", "٣", "²", "9223372036854775808", "9" * 5000]
)
def test_invalid_numbers(text: str) -> None:
    says = r"^db\.t: the table property size is .*: expected a whole number of 0 or more$"
    with pytest.raises(ValidationError, match=says):
        number_property({"size": text}, "size", 7, location="db.t")


def test_numbers_below_the_least() -> None:
    assert number_property({"size": "1"}, "size", 7, least=1) == 1
    with pytest.raises(
        ValidationError, match=r"^the table property size is '0': expected a whole number of 1 or more$"
    ):
        number_property({"size": "0"}, "size", 7, least=1)


@pytest.mark.parametrize(("text", "flag"), [(None, None), ("true", True), ("FALSE", False), ("True", True)])
def test_flags(text: str | None, flag: bool | None) -> None:
    for default in (True, False):
        properties = {} if text is None else {"on": text}
        assert flag_property(properties, "on", default=default) is (default if flag is None else flag)


@pytest.mark.parametrize("text", ["", "yes", "1", " true"])
def test_invalid_flags(text: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(f"the table property on is {text!r}: expected true or false")):
        flag_property({"on": text}, "on", default=True)


def test_choices() -> None:
    allowed = ("none", "hash", "range")
    assert choice_property({}, "mode", allowed) == "none"
    assert choice_property({}, "mode", allowed, default="hash") == "hash"
    assert choice_property({"mode": "Range"}, "mode", allowed, default="hash") == "range"
    with pytest.raises(ValidationError, match=r"^t: the table property mode is 'some': expected none, hash or range$"):
        choice_property({"mode": "some"}, "mode", allowed, location="t")
