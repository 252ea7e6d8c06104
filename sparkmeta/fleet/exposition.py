"""Write figures in Prometheus' text format, and replace files atomically."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


def gauges(values: Mapping[str, tuple[str, Iterable[tuple[Mapping[str, str], float]]]]) -> str:
    """Return gauges in Prometheus' text format.

    Args:
        values: name -> what it counts, and its values with their labels.
    """
    lines = []
    for name, (help_text, samples) in values.items():
        lines += [f"# HELP {name} {help_text}", f"# TYPE {name} gauge"]
        lines += [f"{name}{{{_labels(labels)}}} {value}" if labels else f"{name} {value}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    escapes = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
    return ",".join(f'{name}="{value.translate(escapes)}"' for name, value in labels.items())


def replace_file(path: Path, text: str) -> None:
    """Replace a file atomically. Readers see the whole old file or the whole new one."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)
