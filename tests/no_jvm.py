"""Choose the tests that start no JVM, and let those that try fail: `pytest --no-jvm`, which `make quick` runs."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pytest

# The fixtures that start a JVM. Fixtures that ask for one of them need no entry.
FIXTURES = {"spark", "spark_session", "rest_uri", "rest_s3_uri"}

_LAUNCHER = """\
#!/bin/sh
if [ "$1" = -version ]; then
  echo 'openjdk version "21"' >&2
  exit
fi
echo "java $*" >> {starts}
echo "no JVM may start" >&2
exit 1
"""


def without_jvm(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Return the tests that neither ask for a fixture that starts a JVM nor are marked `jvm`."""
    return [
        item
        for item in items
        if FIXTURES.isdisjoint(item.fixturenames) and not item.get_closest_marker("jvm")  # type: ignore[attr-defined]
    ]


class JavaTrap:
    """A launcher `java` that has a version, but starts nothing, and records each attempt to start a JVM."""

    def __init__(self, folder: Path) -> None:
        self.home = folder
        self._starts = folder / "starts"
        launcher = folder / "bin" / "java"
        launcher.parent.mkdir(parents=True)
        launcher.write_text(_LAUNCHER.format(starts=shlex.quote(str(self._starts))))
        launcher.chmod(0o755)

    def set(self) -> None:
        """Make it the Java of this process and of those that it starts."""
        os.environ["JAVA_HOME"] = str(self.home)
        os.environ["PATH"] = os.pathsep.join([str(self.home / "bin"), os.environ["PATH"]])

    def starts(self) -> list[str]:
        """Return the command lines of the attempts since the last call."""
        if not self._starts.exists():
            return []
        lines = self._starts.read_text().splitlines()
        self._starts.unlink()
        return lines
