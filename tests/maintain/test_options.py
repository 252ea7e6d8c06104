"""The options of maintenance: methods, commands, jobs and configurations share one definition."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, dataclass, fields
from typing import Any

import pytest

from sparkmeta import Maintenance, ValidationError
from sparkmeta.checks import Options, at_least, option, takes_options
from sparkmeta.cli.maintain import OPERATIONS
from sparkmeta.fleet.jobs import JOBS
from tests.command_line import invoke

METHODS = {name: method for name, method in vars(Maintenance).items() if hasattr(method, "options")}


def test_each_operation_is_a_command_and_a_job() -> None:
    assert METHODS.keys() - {"health", "upgrade"} == OPERATIONS.keys()
    assert (METHODS.keys() - {"health", "convert_tree", "rewrite_table_path", "repair"}) | {"check"} == {
        job.name for job in JOBS
    }


@pytest.mark.parametrize("name", METHODS)
def test_methods_and_help_describe_the_options(name: str) -> None:
    method: Any = METHODS[name]
    names = [field.name for field in fields(method.options)]
    parameters = inspect.signature(method).parameters
    assert sorted(parameters) == sorted(["self", *names])
    assert {parameter.name: parameter.default for parameter in parameters.values()} == {
        "self": inspect.Parameter.empty,
        **{
            field.name: inspect.Parameter.empty if field.default is MISSING else field.default
            for field in fields(method.options)
        },
    }
    described = method.__doc__.partition("\n\nArgs:\n")[2].partition("\n\nRaises:")[0]
    command = {"compact_manifests": "compact"}.get(name, name.replace("_", "-"))
    shown = invoke([command, "--help"], terminal_width=1000).output
    for field in fields(method.options):
        about = " ".join(field.metadata["about"].split())
        assert f"    {field.name}: {about}" in " ".join(described.split("\n        ")), field.name
        assert about.replace("`", "").removesuffix(".")[1:] in " ".join(shown.split()), field.name


def test_a_field_is_all_that_an_option_needs() -> None:
    @dataclass(frozen=True)
    class Few(Options):
        count: int = option(1, "how many.", at_least(1))
        name: str | None = option(None, "the name.")

    class Thing:
        @takes_options(Few)
        def act(self, options: Few) -> Few:
            """Act.

            Raises:
                ValidationError: a value is wrong.
            """
            options.check()
            return options

    assert Thing().act(2) == Few(2) == Thing().act(count=2)
    assert Thing.act.__doc__ == (
        "Act.\n\nArgs:\n    count: how many.\n    name: the name.\n\nRaises:\n    ValidationError: a value is wrong."
    )
    for values, problem in (
        ({"count": 0}, "count is 0: expected a whole number of 1 or more"),
        ({"count": None}, "count is None: expected a whole number of 1 or more"),
        ({"name": 5}, "name is 5: expected a string"),
    ):
        with pytest.raises(ValidationError, match=problem):
            Thing().act(**values)  # type: ignore[arg-type]
