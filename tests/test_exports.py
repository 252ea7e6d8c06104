from __future__ import annotations

import subprocess
import sys

import pytest

import sparkmeta
from sparkmeta import errors


def test_the_public_names_are_sorted_and_exist() -> None:
    assert sparkmeta.__all__ == sorted(set(sparkmeta.__all__))
    for name in sparkmeta.__all__:
        assert getattr(sparkmeta, name).__name__ == name
    assert set(sparkmeta.__all__) <= set(dir(sparkmeta))


def test_every_error_is_public() -> None:
    kinds = {name for name, value in vars(errors).items() if isinstance(value, type) and not name.startswith("_")}
    assert {name for name in kinds if issubclass(vars(errors)[name], Exception)} <= set(sparkmeta.__all__)


def test_no_other_name() -> None:
    with pytest.raises(AttributeError, match="module 'sparkmeta' has no attribute 'nothing'"):
        sparkmeta.nothing  # noqa: B018


def test_importing_the_package_imports_nothing_else() -> None:
    code = "import sys; before = set(sys.modules); import sparkmeta; print(*(sys.modules.keys() - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert loaded - set(sys.stdlib_module_names) <= {"sparkmeta", "__future__"}
