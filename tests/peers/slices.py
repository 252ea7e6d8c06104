"""Which tables of the corpus `make test` compares; `make soak` compares all."""

from __future__ import annotations

import os
import re
import zlib
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

SOAK = os.environ.get("SPARKMETA_SOAK") == "1"

# How many filters a table in the soak, from all operators in turn; None: all, some hundreds, which take many hours.
FILTERS = int(os.environ["SPARKMETA_FILTERS"]) if "SPARKMETA_FILTERS" in os.environ else None

# The slice has one in so many tables that exist in three or more format versions, and one in so many others.
SHARE, RARE_SHARE = 2, 12


def slice_of(names: Iterable[str]) -> list[str]:
    """One format version of some tables that have three or more, and few of the rest; the same in every run."""
    listed = list(names)
    if SOAK:
        return listed
    versions: dict[str, list[str]] = defaultdict(list)
    for name in listed:
        versions[re.sub(r"_v\d$", "", name)].append(name)
    chosen = {
        alternatives[(zlib.crc32(base.encode()) >> 8) % len(alternatives)]
        for base, alternatives in versions.items()
        if zlib.crc32(base.encode()) % (SHARE if len(alternatives) > 2 else RARE_SHARE) == 0
    }
    return [name for name in listed if name in chosen]
