from __future__ import annotations

import subprocess
import sys
from inspect import isfunction, unwrap

import pytest

import sparkmeta
from sparkmeta import errors
from sparkmeta.maintain import maintenance
from sparkmeta.maintain.maintenance import Maintenance
from sparkmeta.maintain.purge import PurgePlan


def test_the_public_names_are_sorted_and_exist() -> None:
    assert sparkmeta.__all__ == sorted(set(sparkmeta.__all__))
    for name in sparkmeta.__all__:
        assert getattr(sparkmeta, name).__name__ == name
    assert set(sparkmeta.__all__) <= set(dir(sparkmeta))


def test_errors_on_top_are_those_of_the_module() -> None:
    kinds = {name: value for name, value in vars(errors).items() if isinstance(value, type)}
    of_package = {name for name, kind in kinds.items() if issubclass(kind, errors.SparkmetaError)}
    on_top = {name for name in sparkmeta.__all__ if name.endswith("Error")}
    assert on_top < of_package
    assert all(getattr(sparkmeta, name) is kinds[name] for name in on_top)


def test_maintenance_returns_plans() -> None:
    """`sparkmeta.Plan` is the only class of plans that users name."""
    methods = {name: unwrap(method) for name, method in vars(Maintenance).items() if isfunction(method)}
    kinds = {
        name: vars(maintenance)[method.__annotations__["return"].partition("[")[0]]
        for name, method in methods.items()
        if not name.startswith("_")
    }
    plans = {name for name, kind in kinds.items() if issubclass(kind, sparkmeta.Plan)}
    assert kinds.keys() - plans == {"health", "leaf_map"}
    assert issubclass(PurgePlan, sparkmeta.Plan)


def test_no_other_name() -> None:
    with pytest.raises(AttributeError, match="module 'sparkmeta' has no attribute 'nothing'"):
        sparkmeta.nothing  # noqa: B018


def test_importing_the_package_imports_nothing_else() -> None:
    code = "import sys; before = set(sys.modules); import sparkmeta; print(*(sys.modules.keys() - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert loaded - set(sys.stdlib_module_names) <= {"sparkmeta", "__future__"}
