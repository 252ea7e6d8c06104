"""The corpus of tables in the layout of the Iceberg project, which its prototype wrote, and the answers for them."""

from __future__ import annotations

import fcntl
import json
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "iceberg_trees"
# The tables name their files by absolute paths below this folder.
TABLES = Path("/tmp/iceberg-v4-corpus")
TABLE_NAMES = {
    "proto": (
        "branches", "deletes", "dv", "dv_born", "dv_merge", "dv_rewrite", "dv_shared_leaf", "empty", "eq_deletes",
        "many_manifests", "metrics_modes", "parted", "replace_parts", "rewrite_manifests", "schema_evolved",
        "spec_evolved", "transforms", "types", "unpart", "upgraded_v3",
    ),
    "synth": ("s_flat_root", "s_flat_root_relative", "s_manifest_dv_big"),
}  # fmt: skip
NAMES = [(group, name) for group, names in TABLE_NAMES.items() for name in names]

Answer = dict[str, Any]


def unpack_tables() -> None:
    """Unpack the tables once, at the place that their metadata names."""
    TABLES.parent.mkdir(exist_ok=True)
    with (TABLES.parent / f"{TABLES.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not TABLES.exists():
            with tarfile.open(FOLDER / "tables.tar.xz") as archive:
                archive.extractall(TABLES.parent, filter="data")


@cache
def answers() -> dict[str, Answer]:
    """The answers by their file names, such as `proto/dv.json`."""
    with tarfile.open(FOLDER / "answers.tar.xz") as archive:
        files = ((member.name, archive.extractfile(member)) for member in archive.getmembers() if member.isfile())
        return {name: json.load(file) for name, file in files if file is not None}
