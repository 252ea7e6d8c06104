"""The command line, in the process of the tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from click.testing import CliRunner

from sparkmeta.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterable

    from click.testing import Result


def invoke(arguments: Iterable[str], **options: Any) -> Result:
    """Run `sparkmeta` with arguments, and with options of click's `CliRunner.invoke`."""
    return CliRunner().invoke(main, [*arguments], **options)
