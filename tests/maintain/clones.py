"""Copies of the corpus's tables as file system tables, which a test may commit to."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import sparkmeta as sm

if TYPE_CHECKING:
    from pathlib import Path

    from tests.peers.corpus import PeerTable


def clone(peer: PeerTable, folder: Path, *, emptied: bool = False) -> sm.Table:
    """Create a table in `folder` whose first metadata is the peer's.

    Files that the metadata names stay at their locations, and are shared.

    Args:
        emptied: whether the copy has no snapshots.
    """
    location = f"file://{folder}"
    (folder / "metadata").mkdir(parents=True)
    metadata = peer.metadata | {"location": location}
    if emptied:
        metadata |= {"snapshots": [], "refs": {}, "snapshot-log": [], "current-snapshot-id": -1}
        metadata = {key: value for key, value in metadata.items() if "statistics" not in key}
    (folder / "metadata" / "v1.metadata.json").write_text(json.dumps(metadata))
    return sm.load_table(location, spark=peer.java.java.spark)
